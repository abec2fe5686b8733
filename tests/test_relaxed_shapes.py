"""Models with open height and width: their tensors cross submodels once their shapes are relaxed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest

import ov_hsdag
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.model import normalize
from ov_hsdag.model.affinities import remove_affinities, set_affinities
from ov_hsdag.model.graph import ComputationGraph
from ov_hsdag.model.relaxed_shapes import is_relaxing
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.utils.lazy import opset13 as ops

DEVICES = DeviceSet.parse("HETERO:CPU_A,CPU_B")
IMAGES = ((1, 64, 64), (2, 96, 32), (1, 32, 64), (1, 64, 64))


def converted(name: str) -> ov.Model:
    """A torch module of the zoo with open batch, height and width."""
    torch = pytest.importorskip("torch")
    from research.zoo.models import torch_modules

    torch.manual_seed(0)
    module = getattr(torch_modules, name)().eval()
    shape = ov.PartialShape([-1, 3, -1, -1])
    with torch.no_grad():
        return ov.convert_model(module, example_input=(torch.zeros(1, 3, 64, 64),), input=[shape])


def batches() -> ov.Model:
    """Convolutions of one to eight images, with a residual connection."""
    random = np.random.default_rng(0)
    image = ops.parameter(ov.PartialShape([ov.Dimension(1, 8), 3, 64, 64]), np.float32, name="image")
    value = image
    for inputs in (3, 8, 8):
        weights = ops.constant(random.normal(0, 0.2, (8, inputs, 3, 3)).astype(np.float32))
        made = ops.relu(ops.convolution(value, weights, [1, 1], [1, 1], [1, 1], [1, 1]))
        value = ops.add(made, value) if inputs == 8 else made
    return ov.Model([value], [image], "batches")


def names(model: ov.Model) -> set[str]:
    return {node.get_friendly_name() for node in model.get_ops()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["UNet", "Hourglass", "DeepLab", "batches"])
def test_any_split_runs_for_all_sizes(two_cpu_core: ov.Core, tmp_path: Path, name: str) -> None:
    model = batches() if name == "batches" else converted(name)
    images = [image if name != "batches" else (image[0], 64, 64) for image in IMAGES]
    random = np.random.default_rng(0)
    inputs = [random.standard_normal((batch, 3, *size)).astype(np.float32) for batch, *size in images]
    alone = two_cpu_core.compile_model(model.clone(), "CPU_A")
    expected = [list(alone(one).values()) for one in inputs]

    def check(compiled: ov.CompiledModel, submodels: int) -> None:
        assert compiled.get_property("HETERO_NUMBER_OF_SUBMODELS") == submodels
        for one, outputs in zip(inputs, expected, strict=True):
            for got, wanted in zip(compiled(one).values(), outputs, strict=True):
                np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())

    problem = build_problem(model, DEVICES, core=two_cpu_core)
    before = names(model)
    for placement in problem.random(random, 4):
        affinity = set_affinities(model, problem.affinity(placement))
        assert affinity.keys() == names(model) > before
        check(two_cpu_core.compile_model(model, DEVICES.hetero), problem.evaluate(placement).submodels[0])
        remove_affinities(model)
        assert names(model) == before

    placement = ov_hsdag.place(model, DEVICES.hetero, objective="throughput", core=two_cpu_core)
    assert placement.predicted is not None and len(placement.used()) == 2
    ov.save_model(model, tmp_path / "model.xml", compress_to_fp16=False)
    check(two_cpu_core.compile_model(tmp_path / "model.xml", DEVICES.hetero), placement.predicted["submodels"])
    read = two_cpu_core.read_model(tmp_path / "model.xml")
    assert placement.affinity.keys() == names(read)
    normalize.normalize(read)
    assert not any(map(is_relaxing, names(read)))
    # A placement in a file of its own is one for the model as it was.
    placement.save(tmp_path / "affinity.json")
    again = ov_hsdag.place(read, DEVICES.hetero, affinity=tmp_path / "affinity.json", core=two_cpu_core)
    assert again.affinity == placement.affinity


def test_fixed_sizes_leave_nothing_to_relax(two_cpu_core: ov.Core) -> None:
    model = batches()
    placement = ov_hsdag.place(model, DEVICES.hetero, objective="throughput", core=two_cpu_core)
    assert any(map(is_relaxing, placement.affinity))
    model.reshape([4, 3, 64, 64])
    assert ComputationGraph.from_model(model).output_movable.all()
    compiled = two_cpu_core.compile_model(model, DEVICES.hetero)
    assert compiled.outputs[0].get_shape() == ov.Shape([4, 8, 64, 64])
    assert compiled.get_property("HETERO_NUMBER_OF_SUBMODELS") == 2
