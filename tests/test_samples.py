"""The samples run as their README says, in processes of their own, on a model that runs on both devices."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import openvino as ov
import pytest

import ov_hsdag
from tests.commands import ran
from tests.conftest import TWO_CORES
from tests.graphs import convolutions
from tests.processes import SAMPLES, ended, serving
from tests.scripts import dockerfile_of_an_application

SQUEEZENET = Path(onnx.__file__).parent / "backend/test/data/light/light_squeezenet.onnx"
DEVICE = "HETERO:CPU_A,CPU_B"


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("samples") / "model.xml"
    model = ov.convert_model(SQUEEZENET)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OV_HSDAG_VIRTUAL_DEVICES", TWO_CORES)
        ov_hsdag.place(model, DEVICE, objective="throughput")
    ov.save_model(model, path)
    return path


def environment(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("OV_HSDAG")}
    package = str(Path(ov_hsdag.__file__).parent.parent)
    return kept | {"PYTHONPATH": package, "OV_HSDAG_VIRTUAL_DEVICES": TWO_CORES} | more


def run(*arguments: object) -> str:
    """Standard output of a sample that has to succeed."""
    return ended(sys.executable, "-m", "ov_hsdag", *arguments, env=environment()).stdout


def test_plain_script(placed: Path) -> None:
    out = run(SAMPLES / "compile_and_run.py", placed, DEVICE)
    assert out == "['CPU_A', 'CPU_B'] [(1, 1000, 1, 1)]\n"


def test_export_and_import(placed: Path, tmp_path: Path) -> None:
    out = run(SAMPLES / "export_import.py", placed, DEVICE, tmp_path / "model.blob")
    said = r"model\.blob: \d+\.\d MB, \['CPU_A', 'CPU_B'\], same outputs: True\nrequests: (\d) compiled, \1 imported$"
    found = re.search(said, out.strip())
    assert found is not None and int(found[1]) >= 6


def test_export_and_import_with_an_open_batch(placed: Path, tmp_path: Path) -> None:
    model = ov.Core().read_model(placed)
    model.reshape({0: [-1, 3, 224, 224]})
    ov.save_model(model, tmp_path / "open.xml")
    out = run(SAMPLES / "export_import.py", tmp_path / "open.xml", DEVICE, tmp_path / "model.blob")
    assert "same outputs: True" in out


def test_detector_and_classifiers(tmp_path: Path) -> None:
    for name, size in {"detector": 16, "kind": 8, "colour": 8}.items():
        ov.save_model(convolutions(size), tmp_path / f"{name}.xml")
    application = "".join(f'models.{one.stem}.path = "{one}"\n' for one in tmp_path.glob("*.xml"))
    (tmp_path / "app.toml").write_text(application)
    ran("plan", tmp_path / "app.toml", "-d", DEVICE, "--no-measure", "-o", tmp_path / "placed")
    planned = ov_hsdag.Plan.load(tmp_path / "placed/plan.json").models.values()
    assert {device for one in planned for device in one.devices} == {"CPU_A", "CPU_B"}
    for folder, device in (tmp_path, "CPU_A"), (tmp_path / "placed", DEVICE):
        out = run(SAMPLES / "detector_and_classifiers.py", folder, device, "--seconds", 0.2)
        assert re.fullmatch(f"detector, colour, kind on {device}: [1-9].* frames per second\n", out)


@pytest.fixture
def service(placed: Path, tmp_path: Path) -> Iterator[str]:
    """Address of a running service."""
    variables = environment(MODEL=str(placed), DEVICE=DEVICE, CACHE_DIR=str(tmp_path / "cache"))
    with serving(tmp_path / "log", variables) as (port, _):
        yield f"http://127.0.0.1:{port}"


def ask(address: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_the_image_of_an_application_serves(placed: Path, tmp_path: Path) -> None:
    """What the Dockerfile in docs/guides/containers.md copies, sets and runs, in a folder in the place of an image."""
    lines = dict(line.split(" ", 1) for line in dockerfile_of_an_application().splitlines() if ".whl" not in line)
    script, model, weights, _ = lines["COPY"].split()
    shutil.copy(SAMPLES / script, tmp_path)
    shutil.copy(placed, tmp_path / model)
    shutil.copy(placed.with_suffix(".bin"), tmp_path / weights)
    variables = dict(pair.split("=", 1) for pair in lines["ENV"].split())
    assert variables["DEVICE"].startswith("HETERO:")
    program, *words = json.loads(lines["CMD"])
    assert program == "uvicorn"
    started = serving(tmp_path / "log", environment(**variables | {"DEVICE": DEVICE}), words, tmp_path)
    with started as (port, _):
        assert ask(f"http://127.0.0.1:{port}")["devices"] == ["CPU_A", "CPU_B"]


@pytest.mark.usefixtures("declared")
def test_service(service: str, placed: Path, tmp_path: Path) -> None:
    about = ask(service)
    assert about["devices"] == ["CPU_A", "CPU_B"]
    compiled = ov.Core().compile_model(placed, DEVICE)
    assert about["requests"] == compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
    assert list((tmp_path / "cache").iterdir())
    images = np.random.default_rng(0).random((3, 1, 3, 224, 224)).round(3).astype(np.float32)
    expected = ov.Core().compile_model(placed, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda image: ask(f"{service}/infer", {"inputs": [image.tolist()]}), images))
    for image, answer in zip(images, answers, strict=True):
        (output,) = answer["outputs"]
        np.testing.assert_allclose(np.array(output), expected([image])[0], rtol=1e-3, atol=1e-5)
    for body in ({"inputs": []}, {"inputs": [[1, 2]]}):
        with pytest.raises(urllib.error.HTTPError, match="422"):
            ask(f"{service}/infer", body)
