"""Pins: some operations stay on a device, and every placer searches the rest under that condition."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

import ov_hsdag
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.explaining.explain import explain
from ov_hsdag.measuring.verification import verify
from ov_hsdag.model.pins import parse_pins, pinned_nodes, pinned_support
from ov_hsdag.placing.candidates import find_candidates
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import opset13 as ops
from tests.commands import DEVICE, ran, run

PAIR = "HETERO:GPU,CPU"


def layers(rows: int = 1024, size: int = 512) -> ov.Model:
    """Eight layers that a GPU runs best, and a Softmax."""
    x = ops.parameter([rows, size], ov.Type.f32, name="x")
    node = x
    generator = np.random.default_rng(0)
    for number in range(8):
        weights = ops.constant(generator.normal(0, 0.02, (size, size)).astype(np.float32))
        node = ops.relu(ops.matmul(node, weights, False, True, name=f"fc{number}"), name=f"relu{number}")
    return ov.Model([ops.result(ops.softmax(node, 1, name="soft"))], [x], "layers")


def stateful() -> ov.Model:
    """A ReadValue and its Assign, which must share a device, around two operations."""
    x = ops.parameter([1, 8], ov.Type.f32, name="x")
    read = ops.read_value(ops.constant(np.zeros((1, 8), np.float32)), "state")
    read.set_friendly_name("read")
    total = ops.add(x, read, name="total")
    assign = ops.assign(total, "state")
    assign.set_friendly_name("assign")
    return ov.Model([ops.result(ops.relu(total, name="out"))], [assign], [x], "stateful")


def test_one_pinned_operation_leaves_the_rest_to_the_search() -> None:
    free = ov_hsdag.place(layers(), PAIR)
    assert set(free.affinity.values()) == {"GPU"}
    pinned = ov_hsdag.place(layers(), PAIR, pin={"soft": "CPU"})
    assert {name for name, device in pinned.affinity.items() if device == "CPU"} >= {"soft"}
    assert all(pinned.affinity[f"fc{number}"] == "GPU" for number in range(8))
    assert pinned.settings is not None and pinned.settings["pin"] == ["soft=CPU"]
    # What it costs is said against the best single device, which does not keep the pin.
    gain = pinned.predicted_gain(pinned.chosen)
    assert gain is not None and gain < 1
    assert pinned.notes["GPU"] == "left out: does not keep 'soft=CPU'"


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_every_placer_keeps_pins_of_names_and_of_types(objective: str) -> None:
    problem = build_problem(layers(), DeviceSet.parse(PAIR), objective=objective)
    pins = parse_pins(["fc[0-2]=CPU", "type:Softmax=GPU"], problem.devices)
    nodes = pinned_nodes(problem.graph, pins)
    names = {problem.graph.names[node]: pin.device for node, pin in nodes.items()}
    assert names == {"fc0": "CPU", "fc1": "CPU", "fc2": "CPU", "soft": "GPU"}
    supported = pinned_support(problem.graph, problem.supported, problem.devices, nodes)
    values = {name: getattr(problem, name) for name in problem.__dataclass_fields__}
    restricted = type(problem)(**values | {"supported": supported})
    feasible = []
    for candidate in find_candidates(restricted, ()):
        if np.isfinite(restricted.scores(candidate.placement)[0]):
            feasible.append(candidate.name)
            affinity = restricted.affinity(candidate.placement)
            assert {name: affinity[name] for name in names} == names, candidate.name
    assert {"hetero", "mincut", "pipeline", "search"} <= set(feasible)
    assert {"GPU", "CPU"}.isdisjoint(feasible)


def test_the_learned_policy_keeps_pins() -> None:
    pinned = ov_hsdag.place(layers(), PAIR, pin=["fc3=CPU"], policy="base")
    assert "hsdag" in pinned.baselines
    assert pinned.affinity["fc3"] == "CPU"


@pytest.mark.slow
@pytest.mark.usefixtures("declared")
def test_a_pinned_placement_runs_is_measured_and_computes_the_same(two_cpu_core: ov.Core, quiet_machine: None) -> None:
    model = layers(4, 64)
    placement = ov_hsdag.place(model, DEVICE, pin={"fc4": "CPU_B", "fc1": "CPU_A"}, measure=True, core=two_cpu_core)
    assert (placement.affinity["fc1"], placement.affinity["fc4"]) == ("CPU_A", "CPU_B")
    assert placement.measured is not None and not placement.measured[placement.chosen]["failed"]
    assert "CPU_A" not in placement.measured, "no device alone keeps both pins"
    assert verify(model, DEVICE, core=two_cpu_core).good


def test_a_group_follows_its_pinned_operation() -> None:
    placement = ov_hsdag.place(stateful(), PAIR, pin=["assign=CPU"])
    assert {placement.affinity[name] for name in ("read", "assign")} == {"CPU"}


@pytest.mark.parametrize(
    ("pins", "expected"),
    [
        (["soft=NPU"], "the pin 'soft=NPU' is to a device that is not in HETERO:GPU,CPU"),
        (["soft"], "cannot read the pin 'soft': give it as 'PATTERN=CPU' or 'type:Softmax=CPU'"),
        ([3], "cannot read the pin 3"),
        (["=CPU"], "names no operation"),
        (["type:=CPU"], "names no operation"),
        (["sort=CPU"], "the pin 'sort=CPU' fits no operation of the model; similar: soft"),
        (["zzz*=CPU"], "fits no operation of the model; [*] stands for any characters"),
        (["type:Softmux=CPU"], "the pin 'type:Softmux=CPU' fits no operation of the model; similar: Softmax"),
        (["x=CPU"], "the pin 'x=CPU' fits inputs, outputs and constants alone"),
        (["s*=CPU", "soft=GPU"], "the pins 's[*]=CPU' and 'soft=GPU' are both about 'soft'"),
    ],
)
def test_pins_that_cannot_be_kept_are_refused_in_a_line(pins: list[str], expected: str) -> None:
    model = layers(1, 8)
    with pytest.raises(UserError, match=expected) as error:
        ov_hsdag.place(model, PAIR, pin=pins)
    assert "\n" not in str(error.value)
    assert not model.has_rt_info(["ov_hsdag"])


def test_pins_that_contradict_each_other_in_a_group_are_refused() -> None:
    expected = "the pins 'read=GPU' and 'assign=CPU' contradict each other: 'read' and 'assign' must share a device"
    with pytest.raises(UserError, match=expected):
        ov_hsdag.place(stateful(), PAIR, pin={"read": "GPU", "assign": "CPU"})


def test_a_pin_to_a_device_without_support_is_refused() -> None:
    problem = build_problem(stateful(), DeviceSet.parse(PAIR))
    (node,) = pinned_nodes(problem.graph, parse_pins(["read=GPU"], problem.devices))
    supported = problem.supported.copy()
    supported[problem.graph.names.index("assign"), 0] = False
    pins = pinned_nodes(problem.graph, parse_pins(["read=GPU"], problem.devices))
    assert list(pins) == [node]
    expected = "'read=GPU' cannot be kept: GPU does not run Assign 'assign', which must share a device with 'read'"
    with pytest.raises(UserError, match=expected):
        pinned_support(problem.graph, supported, problem.devices, pins)


def test_pins_do_not_go_with_what_decides_everything() -> None:
    with pytest.raises(UserError, match="pins leave the rest to the search"):
        ov_hsdag.place(layers(1, 8), PAIR, pin=["soft=CPU"], affinity={"soft": "CPU"})


def test_the_command_places_with_pins_and_explain_and_report_know_them(tmp_path: Path) -> None:
    plain, placed = tmp_path / "plain.xml", tmp_path / "placed.xml"
    ov.save_model(layers(), plain)
    options = ("--device", PAIR, "--no-measure", "--output", placed, "--pin", "soft=cpu", "--pin", "type:Relu=GPU")
    found = json.loads(ran("place", plain, *options, "--json").stdout)
    assert found["placement"]["soft"] == "CPU"
    explained = json.loads(ran("explain", placed, "--json", "--node", "soft", "--node", "relu0").stdout)
    soft, relu = explained["nodes"] if explained["nodes"][0]["name"] == "soft" else explained["nodes"][::-1]
    assert (soft["reason"], soft["why"]) == ("pinned", "the pin soft=CPU keeps it on CPU")
    assert (relu["reason"], relu["why"]) == ("pinned", "the pin type:Relu=GPU keeps it on GPU")
    assert soft["us_on"]["GPU"] is not None, "the device would run it"
    moves = json.loads(ran("explain", placed, "--json").stdout)["closest_moves"]
    assert not {move["operation"] for move in moves} & {"soft", *(f"relu{number}" for number in range(8))}
    ran("report", placed, "--output", tmp_path / "report.html")
    assert "--pin soft=CPU --pin type:Relu=GPU" in (tmp_path / "report.html").read_text(encoding="utf-8")
    failed = run("place", plain, "--device", PAIR, "--no-measure", "--pin", "none=CPU", "--output", tmp_path / "no.xml")
    assert failed.returncode == 2
    assert failed.stderr.count("\n") == 1 and "error: the pin 'none=CPU' fits no operation" in failed.stderr
    assert not (tmp_path / "no.xml").exists()


def test_pins_that_a_changed_placement_does_not_keep_are_no_reasons() -> None:
    model = layers(1, 8)
    placement = ov_hsdag.place(model, PAIR, pin=["soft=CPU"])
    assert placement.settings is not None
    placement.settings["pin"] = ["soft=GPU", "gone=CPU", "nothing", "soft=NPU"]
    placement.embed(model)
    explained = explain(model)
    (node,) = explained.nodes(["soft"])
    assert explained.operation(node)["reason"] != "pinned"


def test_an_affinity_that_leaves_a_device_empty_is_warned_of(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="the affinity leaves GPU without an operation.*--pin NAME=DEVICE") as warned:
        ov_hsdag.place(layers(1, 8), PAIR, affinity={"soft": "CPU"})
    assert warned[0].filename == __file__  # where the user's program is wrong, not where the package says so


@pytest.mark.usefixtures("silence")
def test_an_affinity_that_uses_every_device_is_no_reason_to_warn() -> None:
    ov_hsdag.place(layers(1, 8), PAIR, affinity={"fc0": "GPU", "soft": "CPU"})
