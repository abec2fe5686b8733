"""`where`: what runs where in compiled models, against affinities, query_model and what plugins profile."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

import ov_hsdag
from ov_hsdag.explaining.where import HOMES, Operation, Where, where
from ov_hsdag.model.names import operations_of
from ov_hsdag.model.normalize import normalize
from ov_hsdag.model.relaxed_shapes import is_relaxing
from ov_hsdag.utils.lazy import opset13 as ops
from research.zoo.catalog import ZOO, select
from tests.commands import DEVICE, assert_one_error_line, run
from tests.graphs import halved
from tests.test_relaxed_shapes import batches

FEW = ("squeezenet", "lstm-stateful", "bert-small")
MANY = [one.name for one in select(["quick"])[::3] if one.name not in FEW]  # 55 of 166


def homes(found: Where) -> dict[str, str | None]:
    return {one.name: one.device for one in found.counted}


def profiled(compiled: ov.CompiledModel) -> set[str]:
    """Names of all that a plugin of one device runs, and of what is fused into that."""
    return {item.node_name for item in compiled.create_infer_request().profiling_info}


@pytest.mark.parametrize("name", [*FEW, *(pytest.param(name, marks=pytest.mark.slow) for name in MANY)])
def test_what_runs_where_is_what_hetero_was_told(name: str, core: ov.Core, declared: None) -> None:
    model = ZOO[name].build()

    alone = core.compile_model(model, "CPU_A")
    found = where(alone, model)
    assert [one.name for one in found.operations] == [node.get_friendly_name() for node in operations_of(model)]
    assert set(homes(found).values()) == {"CPU_A"} and found.on("CPU_A") == len(found.counted)
    # None that runs is called folded.
    assert not profiled(alone) & {one.name for one in found.operations if one.folded}

    own = core.compile_model(model, DEVICE)
    told = core.query_model(model, DEVICE)
    assert homes(where(own, model)) == {one: told[one] for one in homes(where(own, model))}
    assert homes(where(own, model)) == homes(found)

    nodes = [node.get_friendly_name() for node in model.get_ordered_ops()]
    half = {one: ("CPU_A", "CPU_B")[number >= len(nodes) // 2] for number, one in enumerate(nodes)}
    placement = ov_hsdag.place(model, DEVICE, affinity=half, measure=False)
    placed = core.compile_model(model, DEVICE)
    followed = where(placed, model)
    delattr(placed, HOMES)  # what our compile_model knows: HETERO alone tells the same
    plain = where(placed, model)
    assert followed.devices.keys() == plain.devices.keys() == set(placement.used())
    assert followed.submodels == plain.submodels
    assert len(plain.submodels) == placed.get_property("HETERO_NUMBER_OF_SUBMODELS")
    for one in followed.operations:
        assert one.folded or one.device == placement.affinity[one.name], one
    lost = any("no runtime model" in note for note in plain.notes)
    for one in plain.operations:
        assert one.folded or one.device == placement.affinity[one.name] or (lost and one.device is None), one
        assert one.submodel is None or plain.submodels[one.submodel] == one.device


def test_of_a_compiled_model_alone(core: ov.Core, model: Path, declared: None) -> None:
    """Names are the plugin's, and folded operations are not known; a placed model brings both."""
    plain = where(core.compile_model(model, "CPU_B"))
    assert {one.device for one in plain.operations} == {"CPU_B"} and len(plain.notes) == 1
    placed = batches()  # whose tensors cross through operations that placing inserts
    normalize(placed)
    ov_hsdag.place(placed, DEVICE, affinity=halved(placed).affinity, measure=False)
    assert any(is_relaxing(node.get_friendly_name()) for node in placed.get_ops())
    compiled = core.compile_model(placed, DEVICE)
    assert where(compiled) == where(compiled, placed) and len(where(compiled).devices) == 2
    assert not any(is_relaxing(one.name) for one in where(compiled).operations)
    shared = Where(tuple(Operation(one, one, None, False) for one in ("GPU.0", "GPU.1 or CPU", "GPU.1", "CPU")), (), ())
    assert [shared.on(one) for one in ("GPU", "GPU.1", "CPU", "G")] == [2, 1, 1, 0]


def test_what_is_computed_beforehand_is_folded_and_what_is_drawn_is_not(core: ov.Core) -> None:
    x = ops.parameter([2, 2], np.float32, name="x")
    shape = ops.constant(np.array([2, 2]))
    drawn = ops.random_uniform(shape, np.float32(0), np.float32(1), "f32", 1, 2, name="drawn")
    beforehand = ops.sqrt(ops.constant(np.ones((2, 2), np.float32)), name="beforehand")
    product = ops.multiply(drawn, beforehand, name="product")
    fused = ops.relu(
        ops.matmul(x, ops.constant(np.eye(2, dtype=np.float32)), False, False, name="matmul"), name="a,relu"
    )
    compiled = core.compile_model(model := ov.Model([ops.add(fused, product, name="sum")], [x]), "CPU")
    found = {one.name: one for one in where(compiled, model).operations}
    assert [name for name, one in found.items() if one.folded] == ["beforehand", "product"]  # by 1


def test_expectations_decide_the_exit_status(model: Path, tmp_path: Path) -> None:
    """Those of a split model, and of all on one device; "AUTO" is told as what it came to."""
    placed = tmp_path / "placed.xml"
    names = [node.get_friendly_name() for node in operations_of(ov.Core().read_model(model))]
    (tmp_path / "half.json").write_text(
        json.dumps({name: ("CPU_A", "CPU_B")[n > len(names) // 2] for n, name in enumerate(names)})
    )
    given = ("--affinity", tmp_path / "half.json", "--device", DEVICE, "--no-measure", "--output", placed)
    assert run("place", model, *given).returncode == 0
    done = run("where", placed, "-d", DEVICE, "--json")
    found = json.loads(done.stdout)
    share = found["devices"]["CPU_A"] / sum(found["devices"].values())
    assert 0 < share < 1 and len(found["submodels"]) == len(set(found["submodels"])) == 2
    for percent, status in ((100 * share - 0.1, 0), (100 * share + 0.1, 1)):
        done = run("where", placed, "-d", DEVICE, "--expect", f"CPU_A={percent:.3f}%", "--expect", "CPU_B=1%")
        assert done.returncode == status, done.stderr
        assert ("expected at least" in done.stdout) == bool(status)
        assert all(name in done.stdout for name in ("CPU_A ", "█", names[-1], "next: ov-hsdag verify"))
    for words, status in ((("CPU=100%",), 0), (("CPU=100%", "--expect", "GPU=0.5%"), 1)):
        assert run("where", model, "-d", "AUTO:CPU", "--expect", *words).returncode == status


@pytest.mark.parametrize("text", ["GPU", "GPU=80", "GPU=101%", "=1%", "GPU=nan%", "GPU=-1%", "GPU,CPU=1%"])
def test_bad_expectations_end_in_one_line(text: str, model: Path) -> None:
    assert_one_error_line(run("where", model, "-d", "AUTO", "--expect", text), "such as GPU=80%", repr(text)[1:-1])


def test_bad_input_ends_in_one_line(model: Path, tmp_path: Path) -> None:
    assert_one_error_line(run("where", model, "-d", "HETERO:CPU_A,CPU_C"), "no 'CPU_C'", "did you mean")
    assert_one_error_line(run("where", model, "-d", "AUTO:-CPU_C"), "no 'CPU_C'")
    assert_one_error_line(run("where", tmp_path / "none.xml", "-d", "AUTO"), "no such model")
