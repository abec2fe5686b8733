"""Models with operations of an application's own library, as `Core.add_extension` loads it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

import ov_hsdag
from ov_hsdag.devices import extensions
from ov_hsdag.integration.extension_build import installed_openvino, release
from ov_hsdag.measuring.process import Candidate, Workshop
from ov_hsdag.model.inputs import timed_inputs
from ov_hsdag.model.placement import Placement
from tests.commands import DEVICE, assert_one_error_line, ran, run

SOURCE = Path(__file__).parent / "cpp" / "custom_op.cpp"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    openvino = installed_openvino()
    assert openvino is not None
    made = tmp_path_factory.mktemp("library") / "libcustom_op.so"
    command = [*shlex.split(os.environ.get("CXX", "g++")), "-std=c++17", "-fPIC", "-shared", SOURCE, "-o", made]
    command += ["-isystem", openvino / "include", openvino / "libs" / f"libopenvino.so.{release(openvino)}"]
    subprocess.run(command, check=True)
    return made


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An IR with the operation between multiplications of matrices."""
    path = tmp_path_factory.mktemp("model") / "custom.xml"
    x = ops.parameter([64, 256], np.float32, name="x")
    weights = np.random.default_rng(0).standard_normal((2, 256, 256)).astype(np.float32) / 16
    own = ops.sigmoid(ops.matmul(x, weights[0], False, False), name="own")
    ov.save_model(ov.Model([ops.matmul(own, weights[1], False, False)], [x], "custom"), path, compress_to_fp16=False)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('type="Sigmoid" version="opset1"', 'type="TwiceAndOne" version="tests"'), "utf-8")
    return path


def test_commands_load_it(model: Path, library: Path, tmp_path: Path) -> None:
    placed, given = tmp_path / "placed.xml", ("--extension", library)
    affinity = tmp_path / "affinity.json"
    affinity.write_text(json.dumps({"own": "CPU_B"}))
    refused = run("place", model, "--device", DEVICE, "--output", placed, "--no-measure")
    assert refused.returncode == 2 and "TwiceAndOne" in refused.stderr
    done = ran("place", model, "--device", DEVICE, "-o", placed, "--no-measure", "--affinity", affinity, *given)
    assert done.stdout.splitlines()[-1] == f"next: ov-hsdag verify {placed} --device {DEVICE} --extension {library}"
    verified = run("verify", placed, "--device", DEVICE, *given)
    assert verified.returncode == 0, verified.stderr + verified.stdout
    assert "outputs agree" in verified.stdout
    assert "own (TwiceAndOne) on CPU_B" in run("explain", placed, "--all", *given).stdout
    for words in (("report", placed, "-o", tmp_path / "r.svg"), ("fit", model, "-d", DEVICE), ("show", placed)):
        done = run(*words, *given)
        assert done.returncode == 0, (words, done.stderr)


@pytest.mark.parametrize("content", [None, b"no library"])
def test_a_library_that_is_none(model: Path, content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    if content is not None:
        path.write_bytes(content)
    assert_one_error_line(run("place", model, "-d", DEVICE, "-o", tmp_path / "out.xml", "--extension", path), str(path))


def test_processes_that_measure_load_what_the_given_core_has(model: Path, library: Path, two_cpu_core: ov.Core) -> None:
    two_cpu_core.add_extension(str(library))
    read = two_cpu_core.read_model(model)
    placement = ov_hsdag.place(read, DEVICE, core=two_cpu_core)
    assert "own" in placement.affinity and Placement.of(read) is not None
    inputs = timed_inputs(read)
    expected = two_cpu_core.compile_model(model, "CPU_A")(inputs[0].steps[0])[0]
    with Workshop(read, inputs, "latency", extensions=extensions.of(two_cpu_core)) as workshop:
        (output,) = workshop.start().compile(Candidate("CPU_A"), 120)
    np.testing.assert_allclose(output, expected, rtol=1e-4)
