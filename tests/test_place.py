"""The whole road on real models and real HETERO."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import openvino as ov
import pytest
from openvino import opset13 as ops

import ov_hsdag
from ov_hsdag.costs.builtin import builtin_profile
from ov_hsdag.costs.profile import SCHEMA_PATH, Profile
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.explaining.explain import explain
from ov_hsdag.model.placement import Placement
from ov_hsdag.placing.candidates import MARGIN
from ov_hsdag.policy.placer import HSDAGPlacer
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.utils.errors import PlacementNotFollowedWarning, RunError, UserError
from research.zoo.catalog import ZOO
from tests.graphs import unflattening_model
from tests.processes import ended

PAIR = "HETERO:CPU_A,CPU_B"
LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


def outputs(compiled: ov.CompiledModel, data: dict[str, np.ndarray]) -> list[np.ndarray]:
    result = compiled(data)
    return [result[port] for port in range(len(compiled.outputs))]


@pytest.mark.parametrize("name", ["squeezenet", "bert-dynamic", "lstm", "swin-small"])
def test_throughput_on_two_equal_devices_uses_both(core: ov.Core, name: str, tmp_path: Path) -> None:
    model = ZOO[name].build()
    expected = [outputs(core.compile_model(model.clone(), "CPU_A"), data) for data in ZOO[name].inputs(0)]
    placement = ov_hsdag.place(model, device=PAIR, objective="throughput", core=core)
    assert placement.predicted is not None
    best = max(placement.baselines[device]["throughput_ips"] for device in placement.devices)
    assert placement.predicted["throughput_ips"] > best * (1 + MARGIN)
    ov.save_model(model, tmp_path / "model.xml", compress_to_fp16=False)
    compiled = core.compile_model(tmp_path / "model.xml", PAIR)
    assert set(compiled.get_property("EXECUTION_DEVICES")) == {"CPU_A", "CPU_B"}
    assert compiled.get_property("HETERO_NUMBER_OF_SUBMODELS") == placement.predicted["submodels"]
    for data, reference in zip(ZOO[name].inputs(0), expected, strict=True):
        for actual, wanted in zip(outputs(compiled, data), reference, strict=True):
            assert np.abs(actual - wanted).max() <= 1e-3 * np.abs(wanted).max()


def test_the_shipped_policy_is_asked_in_every_placing_without_torch(tmp_path: Path) -> None:
    code = """
import sys
sys.modules.update(dict.fromkeys(("torch", "safetensors")))  # importing them fails
import openvino as ov, openvino.passes, ov_hsdag
from openvino.tools.ovc import main as ovc
from ov_hsdag.cli import app
from ov_hsdag.integration import converters as hook

def told(placement):
    print(placement.policy, "hsdag" in placement.baselines, "search" in placement.baselines)

source, devices = sys.argv[1], "HETERO:GPU,CPU"
model = ov.convert_model(source)
for policy in (None, "base", "none"):
    told(ov_hsdag.place(model, device=devices, objective="throughput", policy=policy))
manager = ov.passes.Manager()
placing = manager.register_pass(ov_hsdag.HSDAGPlacement(device=devices))
manager.run_passes(model)
told(ov_hsdag.Placement.of(model))
hook.patch(ovc)
for run, *argv in (
    (ovc.main, "ovc", source, "--placement", devices, "--output_model", sys.argv[2]),
    (app.run, "ov-hsdag", "place", source, "--device", devices, "--no-measure", "--output", sys.argv[3]),
):
    sys.argv, sys.stdout = argv, sys.stderr
    assert not run()
    sys.stdout = sys.__stdout__
    told(ov_hsdag.Placement.of(ov.Core().read_model(argv[-1])))
"""
    files = (LIGHT / "light_squeezenet.onnx", tmp_path / "ovc.xml", tmp_path / "place.xml")
    variables = {key: value for key, value in os.environ.items() if key != "OV_HSDAG_DISABLE"}
    done = ended(sys.executable, "-c", code, *files, cwd=Path(__file__).parent.parent, env=variables)
    assert done.stdout.splitlines() == [
        "base True True", "base True True", "None False True", "base True True", "base True True", "base True True"
    ]  # fmt: skip


def test_a_policy_that_does_not_run_is_an_error_where_it_was_asked_for(
    core: ov.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: HSDAGPlacer, problem: object) -> None:
        raise RuntimeError("Exception from src/nowhere.cpp:1:\nno such kernel")

    monkeypatch.setattr(HSDAGPlacer, "place", broken)
    model = ZOO["squeezenet"].build()
    with pytest.warns(UserWarning, match="the policy is not asked: no such kernel") as warned:
        assert "hsdag" not in ov_hsdag.place(model, device=PAIR, core=core).baselines
    assert {one.filename for one in warned} == {__file__}
    with pytest.raises(RunError, match=r"the policy .*base' does not run: no such kernel"):
        ov_hsdag.place(model, device=PAIR, policy="base", core=core)


def test_latency_on_two_equal_devices_stays_on_one(core: ov.Core) -> None:
    model = ZOO["squeezenet"].build()
    placement = ov_hsdag.place(model, device=PAIR, core=core)
    assert placement.chosen == "CPU_A"
    assert set(placement.affinity.values()) == {"CPU_A"}
    compiled = core.compile_model(model, PAIR)
    assert compiled.get_property("HETERO_NUMBER_OF_SUBMODELS") == 1


def test_absent_devices_are_placed_from_profiles() -> None:
    model = ZOO["squeezenet"].build()
    placement = ov_hsdag.place(model, device="HETERO:NPU,GPU,CPU", objective="throughput")
    assert placement.devices == ("NPU", "GPU", "CPU")
    names = {node.get_friendly_name() for node in model.get_ordered_ops()}
    assert set(placement.affinity) == names
    assert Placement.of(model) == placement


def test_what_a_growing_cache_leaves_open_is_not_for_an_npu() -> None:
    """The inputs of this decoder have fixed sizes."""
    problem = build_problem(ZOO["llama-stateful"].build(), DeviceSet.parse("HETERO:NPU.7,CPU"))
    on_npu = {problem.graph.types[node] for node in np.flatnonzero(problem.supported[:, 0])}
    assert "MatMul" in on_npu and "Softmax" not in on_npu


def test_the_choice_is_the_best_candidate_beyond_the_margin(core: ov.Core) -> None:
    placement = ov_hsdag.place(ZOO["squeezenet"].build(), device="HETERO:GPU,CPU", objective="latency", core=core)
    assert placement.predicted is not None
    assert placement.chosen in placement.baselines
    best = min(figures["latency_us"] for figures in placement.baselines.values())
    assert placement.predicted["latency_us"] <= best / (1 - MARGIN)


def test_a_given_affinity_is_followed_and_completed(core: ov.Core, tmp_path: Path) -> None:
    model = ZOO["squeezenet"].build()
    convolutions = [n.get_friendly_name() for n in model.get_ordered_ops() if n.get_type_name() == "Convolution"]
    affinity = {name: ("CPU_A", "CPU_B")[index % 2] for index, name in enumerate(convolutions)}
    (tmp_path / "affinity.json").write_text(json.dumps(affinity))
    placement = ov_hsdag.place(model, device=PAIR, core=core, affinity=tmp_path / "affinity.json")
    assert placement.chosen == "affinity"
    kept = {name: placement.affinity[name] for name in convolutions if name in placement.affinity}
    assert kept == {name: affinity[name] for name in kept}
    assert len(kept) >= len(convolutions) // 2
    assert core.compile_model(model, PAIR).get_property("HETERO_NUMBER_OF_SUBMODELS") > 2


def test_a_placement_of_other_devices_is_followed_on_these(core: ov.Core) -> None:
    model = ZOO["squeezenet"].build()
    elsewhere = ov_hsdag.place(model.clone(), device="HETERO:GPU,CPU", objective="throughput", measure=False)
    with pytest.warns(PlacementNotFollowedWarning, match=r"GPU\.1"):
        placement = ov_hsdag.place(model, device="HETERO:GPU.1,CPU", core=core, affinity=elsewhere)
    counts = [Counter(one.affinity.values()) for one in (elsewhere, placement)]
    assert len(counts[0]) == 2 and counts[1] == {"GPU.1": counts[0]["GPU"], "CPU": counts[0]["CPU"]}


def test_names_that_normalizing_changes_are_told(core: ov.Core) -> None:
    x = ops.parameter([1, 8], np.float32, name="x")
    node = x
    for _ in range(6):
        node = ops.relu(ops.add(node, np.float32(1)))  # OpenVINO makes up their names
    model = ov.Model([node], [x])
    affinity = {one.get_friendly_name(): "CPU_B" for one in model.get_ordered_ops()}
    with pytest.warns(UserWarning, match="have the same names in the normalized model"):
        ov_hsdag.place(model, device=PAIR, core=core, affinity=affinity)


def test_an_affinity_for_another_model_is_refused(core: ov.Core) -> None:
    with pytest.raises(UserError, match="nowhere"):
        ov_hsdag.place(ZOO["squeezenet"].build(), device=PAIR, core=core, affinity={"nowhere": "CPU_A"})
    with pytest.raises(UserError, match="GPU"):
        ov_hsdag.place(ZOO["squeezenet"].build(), device=PAIR, core=core, affinity={"nowhere": "GPU"})


def test_an_empty_model_is_refused() -> None:
    with pytest.raises(UserError, match="the model is empty"):
        ov_hsdag.place(ov.Model([], [], "empty"), "HETERO:GPU,CPU")


def test_a_model_that_cannot_be_split_is_told_from_one_that_gains_nothing() -> None:
    x = ops.parameter(ov.PartialShape([2, 4]), ov.Type.f32)
    product = ops.matmul(x, np.eye(4, dtype=np.float32), False, False)
    model = ov.Model([ops.tanh(ops.matmul(product, np.ones((4, 4), np.float32), False, False))], [x])
    placement = ov_hsdag.place(model, "HETERO:GPU,CPU", policy="none")
    assert placement.why == "no split is predicted to gain 0.5%"
    assert placement.summary().endswith(placement.why)


def test_what_keeps_most_of_a_model_together_is_told_once(core: ov.Core) -> None:
    model = unflattening_model(7)
    placement = ov_hsdag.place(model, PAIR, core=core, shapes={"x": [1, 16, 3]})
    told = "14 of 22 operations must share a device, as HETERO does not know the sizes of back"
    assert placement.why.endswith(f": {told}; with fixed sizes they need not: ovc --input x[1,16,3]")
    found = explain(model, core=core)
    assert found.summary()["together"] == told
    whys = [found.operation(node)["why"] for node in found.nodes((), ())]
    assert "it must share a device with 13 others" in whys
    assert sum("would be the same" in why for why in whys) < 8


def branches_of_two_ranks() -> ov.Model:
    """A model with an If whose result has one or two dimensions, which depends on the input's size."""
    x = ops.parameter(ov.PartialShape([-1, -1]), np.float32, name="x")
    largest = ops.reduce_max(ops.shape_of(x), ops.constant(np.array([0])), False)
    condition = ops.squeeze(ops.greater(largest, ops.constant(np.int64(3))), ops.constant(np.array([0])))
    branches = []
    for make in (ops.relu, lambda x: ops.reduce_sum(x, ops.constant(np.array([1])), False)):
        inner = ops.parameter(ov.PartialShape([-1, -1]), np.float32)
        branches.append((inner, ov.Model([make(inner)], [inner])))
    choice = ops.if_op(condition.output(0))
    choice.set_then_body(branches[0][1])
    choice.set_else_body(branches[1][1])
    choice.set_input(x.output(0), branches[0][0], branches[1][0])
    result = choice.set_output(branches[0][1].get_results()[0], branches[1][1].get_results()[0])
    choice.set_friendly_name("branch")
    return ov.Model([ops.result(ops.exp(result))], [x], "branches")


@pytest.mark.parametrize("device", ["HETERO:CPU_A,CPU_B", "HETERO:GPU,CPU"])
def test_operations_of_open_rank_need_sizes(device: str, two_cpu_core: ov.Core) -> None:
    """CPUs say so themselves; GPUs and NPUs that are not here are known not to compile them."""
    model = branches_of_two_ranks()
    remedy = r"'branch' of type If \(and \d more\) .*number of dimensions .* is open: fix .* with --static --shape"
    with pytest.raises(UserError, match=remedy):
        ov_hsdag.place(model, device, core=two_cpu_core, shapes={"x": [4, 2]})
    model.reshape([4, 2])
    ov_hsdag.place(model, device, core=two_cpu_core)


def test_an_operation_that_no_device_runs_is_named() -> None:
    data = ops.parameter([1, 1, 2, 2], ov.Type.f32, name="x")
    grid = ops.constant(np.zeros((1, 2, 2, 2), np.float32))
    attributes = {"align_corners": False, "mode": "bilinear", "padding_mode": "zeros"}
    model = ov.Model([ops.result(ops.grid_sample(data, grid, attributes, name="sample"))], [data], "sample")
    profile = builtin_profile(["NPU", "GPU"])
    lacking = {name: replace(device, unsupported=("GridSample",)) for name, device in profile.devices.items()}
    with pytest.raises(UserError, match=r"of type GridSample is supported by none of NPU, GPU"):
        ov_hsdag.place(model, device="HETERO:NPU,GPU", profile=Profile(lacking))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "GPU,CPU"}, "not a HETERO device list"),
        ({"device": "HETERO:CPU"}, "only one device"),
        ({"device": "HETERO:CPU,CPU"}, "twice"),
        ({"device": "HETERO:GPU,XPU"}, "XPU"),
        ({"device": "HETERO:GPU,CPU", "objective": "speed"}, "unknown objective 'speed'"),
        ({"device": "HETERO:GPU,CPU", "profile": "missing.json"}, "missing.json"),
        ({"device": "HETERO:GPU,CPU", "shapes": {"image": [1, 3, 2**70, 224]}}, "an invalid dimension"),
        ({"device": "HETERO:GPU,CPU", "shapes": {"image": "1,3,224,224"}}, "shapes must be Mapping"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ov_hsdag.place(ZOO["squeezenet"].build(), **options)


def test_devices_may_be_a_list_and_other_things_are_refused() -> None:
    model = ZOO["squeezenet"].build()
    assert ov_hsdag.place(model, ["GPU", "NPU"], policy="none").devices == ("GPU", "NPU")
    for device in (None, 5, ["GPU", 5], b"HETERO:GPU,CPU"):
        with pytest.raises(UserError, match="is not a HETERO device list"):
            ov_hsdag.place(model, device)  # type: ignore[arg-type]
    for seconds in (0, -1, float("nan"), float("inf")):
        with pytest.raises(UserError, match="at most 1000000 seconds"):
            ov_hsdag.place(model, "HETERO:GPU,CPU", measure_seconds=seconds)
        with pytest.raises(UserError, match="the search must have"):
            ov_hsdag.place(model, "HETERO:GPU,CPU", search_seconds=seconds)


def test_a_longer_search_takes_its_time_and_is_no_worse() -> None:
    arguments = {"device": "HETERO:GPU,NPU,CPU", "objective": "throughput", "policy": "none"}
    rates, times = [], []
    for more in ({}, {"search_seconds": 0.8}):
        begin = time.perf_counter()
        placement = ov_hsdag.place(ZOO["squeezenet"].build(), **arguments, **more)
        times.append(time.perf_counter() - begin)
        assert placement.predicted is not None
        rates.append(placement.predicted["throughput_ips"])
    assert times[1] >= 0.8
    # A simpler placement that is as good within the margin may be chosen.
    assert rates[1] >= rates[0] * 0.99


def test_a_memory_limit_beyond_all_memory_is_none() -> None:
    model = ZOO["squeezenet"].build()
    assert ov_hsdag.place(model, "HETERO:GPU,CPU", policy="none", memory={"GPU": 10**30}).predicted


def test_placing_again_replaces_the_placement(core: ov.Core) -> None:
    model = ZOO["squeezenet"].build()
    ov_hsdag.place(model, device=PAIR, objective="throughput", core=core)
    nodes = len(model.get_ordered_ops())
    second = ov_hsdag.place(model, device=PAIR, objective="latency", core=core)
    assert len(model.get_ordered_ops()) == nodes
    embedded = Placement.of(model)
    assert embedded is not None
    assert embedded.objective == "latency"
    assert embedded.affinity == second.affinity


def any_size_model() -> ov.Model:
    x = ops.parameter(ov.PartialShape([-1] * 8), ov.Type.f32, name="x")
    return ov.Model([ops.result(ops.exp(ops.tanh(x)))], [x], "any size")


@pytest.mark.slow
@pytest.mark.usefixtures("fast_search")
def test_sizes_that_are_guessed_refuse_no_model() -> None:
    with pytest.warns(UserWarning, match="hold for weights and states alone"):
        placement = ov_hsdag.place(any_size_model(), "HETERO:GPU,CPU")
    assert placement.chosen in ("GPU", "CPU")
    assert not ov_hsdag.fit(any_size_model(), "HETERO:GPU,CPU").tensors_counted
    with pytest.raises(UserError, match=r"an NPU takes no open sizes, and dimension 0 of input 'x'"):
        ov_hsdag.place(any_size_model(), "HETERO:NPU,CPU")
    # Nor do many of them, whose sizes together are more than any machine holds.
    x = last = ops.parameter(ov.PartialShape([-1] * 8), ov.Type.f32, name="x")
    for _ in range(20):
        last = ops.tanh(last)
    with pytest.warns(UserWarning, match="hold for weights and states alone"):
        ov_hsdag.place(ov.Model([ops.result(last)], [x], "many of any size"), "HETERO:GPU,CPU")
    # What is known is not guessed: an example, and weights.
    shapes = {"x": [64] * 8}
    with pytest.raises(RunError, match="keeps within the devices' memory"):
        ov_hsdag.place(any_size_model(), "HETERO:GPU,CPU", shapes=shapes)
    limits = {"GPU": 1000, "CPU": 1000}
    with pytest.raises(RunError, match=r"keeps within the devices' memory: GPU holds 1,000 bytes"):
        ov_hsdag.place(ZOO["bert-dynamic"].build(), "HETERO:GPU,CPU", memory=limits)


def resetting_model() -> ov.Model:
    """A state that each inference sets to zero: HETERO finds nothing between its ReadValue and its Assign."""
    x = ops.parameter([1, 4], ov.Type.f32, name="x")
    read = ops.read_value(ops.constant(np.ones((1, 4), np.float32)), "state", ov.Type.f32, [1, 4])
    assign = ops.assign(ops.constant(np.zeros((1, 4), np.float32)), "state")
    return ov.Model([ops.result(ops.exp(ops.add(read, ops.tanh(x))))], [assign], [x], "resetting")


@pytest.mark.parametrize("affinity", [None, {}])
def test_what_hetero_cannot_run_at_all_is_told_as_that(affinity: dict[str, str] | None) -> None:
    with pytest.raises(UserError, match="does not run this model: the ReadValue and the Assign of a state"):
        ov_hsdag.place(resetting_model(), "HETERO:GPU,CPU", affinity=affinity)


def test_measuring_that_was_asked_for_needs_a_temporary_folder(core: ov.Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc/nowhere"])
    model = ZOO["squeezenet"].build()
    nodes = len(model.get_ops())
    with pytest.raises(RunError, match=r"^measuring needs a temporary folder \(TMPDIR\)"):
        ov_hsdag.place(model, PAIR, core=core, measure=True)
    assert len(model.get_ops()) == nodes
    assert ov_hsdag.place(model, PAIR, core=core).measured is None


def bounds(schema: dict[str, Any], part: dict[str, Any], which: str) -> Any:
    """The smallest or largest figures that the schema of profiles allows, as the value of one of its parts."""
    if "$ref" in part:
        part = {**schema["$defs"][part["$ref"].rpartition("/")[2]], **part}
    if part.get("type") == "object":
        found = {key: bounds(schema, value, which) for key, value in part.get("properties", {}).items()}
        return found if found else {"default": bounds(schema, part["additionalProperties"], which)}
    return part.get(which, "an extreme")


@pytest.mark.parametrize("gpu", ["minimum", "maximum"])
@pytest.mark.parametrize("npu", ["minimum", "maximum"])
@pytest.mark.filterwarnings("error")
def test_extreme_profiles_overflow_nowhere(tmp_path: Path, gpu: str, npu: str) -> None:
    schema = json.loads(SCHEMA_PATH.read_text(encoding="utf-8"))
    devices = {
        name: {
            "kind": name,
            "description": which,
            "precision": "f16",
            **{
                key: bounds(schema, part, which)
                for key, part in schema["$defs"]["device"]["properties"].items()
                if key
                not in (
                    "kind",
                    "description",
                    "matches",
                    "precision",
                    "cores",
                    "supported",
                    "unsupported",
                    "memory_bytes",
                )
            },
            "memory_bytes": {"value": 10**12, "source": "room for all"},
        }
        for name, which in (("GPU", gpu), ("NPU", npu))
    }
    (tmp_path / "p.json").write_text(json.dumps({"version": 1, "devices": devices}))
    for objective in ("latency", "throughput"):
        placement = ov_hsdag.place(
            ZOO["squeezenet"].build(), "HETERO:GPU,NPU", profile=tmp_path / "p.json", objective=objective
        )
        assert placement.predicted is not None and np.isfinite(placement.predicted["latency_us"])
