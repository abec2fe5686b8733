"""The samples run as their README says, in processes of their own, on a model that runs on both devices."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
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
from tests.conftest import TWO_CORES
from tests.processes import ended

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = ROOT / "samples" / "python"
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
    assert re.search(r"model\.blob: \d+\.\d MB, \['CPU_A', 'CPU_B'\], same outputs: True$", out.strip())


@pytest.fixture
def service(placed: Path, tmp_path: Path) -> Iterator[str]:
    """Address of a running service."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    uvicorn = [sys.executable, "-m", "ov_hsdag", "-m", "uvicorn", "--port", str(port), "--app-dir", str(SAMPLES)]
    variables = environment(MODEL=str(placed), DEVICE=DEVICE, CACHE_DIR=str(tmp_path / "cache"))
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen([*uvicorn, "service:app"], env=variables, stdout=log, stderr=log) as process,
    ):
        address = f"http://127.0.0.1:{port}"
        try:
            until = time.monotonic() + 60
            while time.monotonic() < until and process.poll() is None:
                try:
                    ask(address)
                    break
                except urllib.error.URLError:
                    time.sleep(0.2)
            else:
                pytest.fail((tmp_path / "log").read_text())
            yield address
        finally:
            process.terminate()
            process.wait(30)


def ask(address: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_service(service: str, placed: Path, tmp_path: Path) -> None:
    about = ask(service)
    assert about["devices"] == ["CPU_A", "CPU_B"]
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
