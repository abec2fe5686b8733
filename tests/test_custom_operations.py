"""Models with operations of an application's own library, as `Core.add_extension` loads it."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops
from openvino import opset15

import ov_hsdag
from ov_hsdag.costs.builtin import builtin_profile
from ov_hsdag.costs.supported_types import GPU
from ov_hsdag.devices import same_core
from ov_hsdag.integration.extension_build import installed_openvino, release
from ov_hsdag.measuring.process import Candidate, WorkerPool
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


class Clamp(ov.Op):  # type: ignore[misc]
    """An operation of a program's own, with the name of one of OpenVINO's."""

    def __init__(self, inputs: list[ov.Output] | None = None) -> None:
        super().__init__(self)
        if inputs is not None:
            self.set_arguments(inputs)
            self.constructor_validate_and_infer_types()

    def validate_and_infer_types(self) -> None:
        self.set_output_type(0, self.get_input_element_type(0), self.get_input_partial_shape(0))

    def clone_with_new_inputs(self, inputs: list[ov.Output]) -> Clamp:
        return type(self)(inputs)

    def has_evaluate(self) -> bool:
        return True

    def evaluate(self, outputs: list[ov.Tensor], inputs: list[ov.Tensor]) -> bool:
        outputs[0].shape = inputs[0].shape
        outputs[0].data[:] = np.clip(inputs[0].data, 0, 6)
        return True


class UnknownToAnyone(Clamp):
    """One with a name of its own."""


def layered(between: Callable[[ov.Output], ov.Node]) -> ov.Model:
    """Six multiplications of matrices, and between the third and the fourth what `between` makes, named "own"."""
    weights = ops.constant(np.random.default_rng(0).standard_normal((1024, 1024)).astype(np.float32) / 32)
    data = ops.parameter([64, 1024], np.float32, name="x")
    last: ov.Node = data
    for number in range(6):
        last = ops.matmul(last, weights, False, False, name=f"layer{number}")
        if number == 2:
            last = between(last.output(0))
            last.set_friendly_name("own")
    return ov.Model([ops.result(last)], [data], "layered")


def once_in_a_loop(inner: type[Clamp]) -> Callable[[ov.Output], ov.Node]:
    def made(output: ov.Output) -> ov.Node:
        inside = ops.parameter([64, 1024], np.float32)
        results = [ops.result(ops.constant(True)), ops.result(inner([inside.output(0)]))]
        body = ov.Model(results, [inside], "body")
        loop = ops.loop(ops.constant(2, np.int64), ops.constant(True))
        loop.set_function(body)
        loop.set_special_body_ports([-1, 0])
        loop.set_merged_input(inside, output, results[1].output(0))
        loop.get_iter_value(results[1].output(0), -1)
        return loop

    return made


@pytest.mark.parametrize("between", [lambda x: UnknownToAnyone([x]), lambda x: Clamp([x]), once_in_a_loop(Clamp)])
@pytest.mark.parametrize("absent", ["GPU", "NPU"])
def test_a_device_that_is_not_here_is_given_no_operation_that_it_cannot_have(
    between: Callable[[ov.Output], ov.Node], absent: str, core: ov.Core
) -> None:
    placement = ov_hsdag.place(layered(between), f"HETERO:{absent},CPU", core=core)
    assert placement.affinity["own"] == "CPU"
    assert {placement.affinity[f"layer{number}"] for number in range(6)} == {absent}
    assert "does not support an operation" in placement.notes[absent]


def test_who_has_a_kernel_for_an_operation_says_so_in_a_profile(core: ov.Core) -> None:
    profile = builtin_profile(["GPU", "CPU"], core)
    own_kernel = replace(profile.device("GPU"), supported=("MatMul", "UnknownToAnyone"))
    told = replace(profile, devices={**profile.devices, "GPU": own_kernel})
    placement = ov_hsdag.place(layered(lambda x: UnknownToAnyone([x])), "HETERO:GPU,CPU", core=core, profile=told)
    assert placement.used() == ("GPU",)


def test_texts_stay_on_the_cpu(core: ov.Core) -> None:
    """Of a model that takes texts and computes with matrices of what it reads of them."""
    text = ops.parameter([64], ov.Type.string, name="text")
    unpacked = opset15.string_tensor_unpack(text, name="unpacked")
    numbers = ops.unsqueeze(ops.convert(unpacked.output(0), np.float32), ops.constant(1))
    last = ops.multiply(numbers, ops.constant(np.ones((1, 1024), np.float32)))
    weights = ops.constant(np.random.default_rng(0).standard_normal((1024, 1024)).astype(np.float32))
    for number in range(6):
        last = ops.matmul(last, weights, False, False, name=f"layer{number}")
    model = ov.Model([ops.result(last)], [text], "texts")
    placement = ov_hsdag.place(model, "HETERO:GPU,CPU", core=core)
    assert placement.affinity["text"] == placement.affinity["unpacked"] == "CPU"
    assert {placement.affinity[f"layer{number}"] for number in range(6)} == {"GPU"}


def test_what_the_gpu_plugin_registers_is_known_to_run_there() -> None:
    plugin = Path(ov.__file__).parent / "libs" / "libopenvino_intel_gpu_plugin.so"
    if not plugin.exists():
        pytest.skip("this OpenVINO has no GPU plugin for Linux")
    registered = {one.decode() for one in re.findall(rb"__register_([A-Z][A-Za-z0-9]*)_v\d+", plugin.read_bytes())}
    assert len(registered) > 150
    assert registered - GPU == set()


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
    with WorkerPool(read, inputs, "latency", like=same_core.describe(two_cpu_core, ("CPU_A",))) as pool:
        (output,) = pool.start().compile(Candidate("CPU_A"), 120)
    np.testing.assert_allclose(output, expected, rtol=1e-4)
