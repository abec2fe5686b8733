"""Placements come back: what was reported, saved or embedded places the same model in the same way, in any process."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import openvino as ov
import pytest

import ov_hsdag
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.model.names import name_generated
from ov_hsdag.model.placement import Placement
from ov_hsdag.model.relaxed_shapes import is_relaxing
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.utils.lazy import opset13 as ops
from research.zoo.catalog import ZooModel
from tests.commands import ran

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
DEVICES = DeviceSet(("CPU_A", "CPU_B"))


def other_process() -> None:
    """Makes OpenVINO count on, so that generated names are others, as in another process."""
    for _ in range(7):
        ops.constant(np.float32(0))


def at_random(model: ov.Model, core: ov.Core, seed: int = 0) -> Placement:
    """A random legal placement of a model, which is normalized."""
    problem = build_problem(model, DEVICES, core=core)
    generator = np.random.default_rng(seed)
    draws = [problem.random(generator, 1)[0] for _ in range(20)]
    placement = next((drawn for drawn in draws if drawn.min() != drawn.max()), draws[0])
    return Placement(devices=DEVICES.names, affinity=problem.affinity(placement))


@pytest.mark.slow
def test_of_the_zoo(zoo_model: ZooModel, two_cpu_core: ov.Core, tmp_path: Path) -> None:
    given = at_random(zoo_model.build(), two_cpu_core)
    goes_round(zoo_model.build, given, two_cpu_core, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["light_squeezenet", "light_shufflenet", "light_inception_v1"])
def test_of_onnx_files_whose_nodes_have_generated_names(name: str, two_cpu_core: ov.Core, tmp_path: Path) -> None:
    def build() -> ov.Model:
        return two_cpu_core.read_model(LIGHT / f"{name}.onnx")

    model = build()
    assert any(node.get_friendly_name() == node.get_name() for node in model.get_ops())
    goes_round(build, at_random(model, two_cpu_core), two_cpu_core, tmp_path)


def goes_round(build: object, given: Placement, core: ov.Core, folder: Path) -> None:
    assert callable(build)

    def place(model: ov.Model, affinity: object) -> Placement:
        return ov_hsdag.place(model, DEVICES.hetero, affinity=affinity, core=core, policy="none")  # type: ignore[arg-type]

    other_process()
    placed = build()
    first = place(placed, given)
    # Placing inserts what tensors with a lower bound need to cross.
    assert {name: one for name, one in first.affinity.items() if not is_relaxing(name)} == given.affinity
    first.save(folder / "affinity.json")
    other_process()
    assert place(build(), folder / "affinity.json").affinity == first.affinity
    # The file with the placement inside, placed once more.
    ov.save_model(placed, folder / "placed.xml", compress_to_fp16=False)
    embedded = Placement.of(core.read_model(folder / "placed.xml"))
    assert embedded is not None and embedded.affinity == first.affinity
    for source in (folder / "affinity.json", embedded):
        other_process()
        read = core.read_model(folder / "placed.xml")
        again = place(read, source)
        # Normalizing once more may find something to fold; what is left of the operations stays where it was. Copies of
        # replicable producers are where their consumers are.
        for node in read.get_ops():
            name = node.get_friendly_name()
            computes = node.get_type_name() not in ("Parameter", "Constant", "Result") and "/copy_" not in name
            if computes and name in first.affinity:
                assert again.affinity[name] == first.affinity[name], name


def test_the_command_takes_what_it_printed(two_cpu_core: ov.Core, tmp_path: Path) -> None:
    source, placed = LIGHT / "light_squeezenet.onnx", tmp_path / "placed.xml"
    options = ("--device", DEVICES.hetero, "--no-measure", "--objective", "throughput", "--policy", "none", "--json")
    first = ran("place", source, *options, "--output", placed)
    printed = json.loads(first.stdout)["placement"]
    assert set(printed.values()) == {"CPU_A", "CPU_B"}
    (tmp_path / "affinity.json").write_text(json.dumps(printed))
    for model in (source, placed):
        done = ran("place", model, *options, "--output", tmp_path / "o.xml", "--affinity", tmp_path / "affinity.json")
        assert json.loads(done.stdout)["placement"] == printed


def test_names_follow_from_the_model_alone() -> None:
    def build() -> ov.Model:
        x = ops.parameter([1, 4], np.float32, name="x")
        first = ops.relu(ops.add(x, ops.constant(np.ones((1, 4), np.float32))))
        named = ops.tanh(first, name="named")
        last = ops.multiply(ops.exp(named), ops.exp(named))
        return ov.Model([ops.result(last, name="out")], [x], "unnamed")

    found = []
    for _ in range(2):
        other_process()
        model = build()
        name_generated(model)
        found.append([node.get_friendly_name() for node in model.get_ordered_ops()])
    assert found[0] == found[1]
    assert set(found[0]) == {
        *("x", "x/Add", "x/Add/Constant_1", "x/Add/Relu", "named", "named/Exp", "named/Exp_2", "named/Exp/Multiply"),
        "out",
    }  # fmt: skip


def test_names_of_thousands_of_nodes_without_one_stay_short() -> None:
    x = node = ops.parameter([1, 4], np.float32, name="x")
    for _ in range(3000):
        node = ops.tanh(node)
    model = ov.Model([ops.result(node, name="out")], [x], "unnamed")
    name_generated(model)
    names = [node.get_friendly_name() for node in model.get_ordered_ops()]
    assert len(set(names)) == len(names) and max(map(len, names)) < 300
    assert {"x/Tanh", "x/Tanh/Tanh"} < set(names)


def test_names_of_a_file_stay(tmp_path: Path) -> None:
    """Those that look as if this process had generated them, too."""
    x = ops.parameter([1, 4], np.float32, name="x")
    relu = ops.relu(x)
    model = ov.Model([ops.result(relu, name="out")], [x], "unnamed")
    ov.save_model(model, tmp_path / "model.xml")
    read = ov.Core().read_model(tmp_path / "model.xml")
    assert relu.get_friendly_name() in ov_hsdag.place(read, "HETERO:GPU,CPU", policy="none").affinity
