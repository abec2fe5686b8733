"""What is said of a placement: its figures are the simulator's, and each reason holds when the move is tried."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ov_hsdag
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.explaining.explain import explain
from ov_hsdag.explaining.explanation import Explanation
from ov_hsdag.model.graph import NodeKind
from ov_hsdag.model.normalize import normalize
from ov_hsdag.model.placement import Placement
from ov_hsdag.model.relaxed_shapes import is_relaxing
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import opset13 as ops
from research.zoo.catalog import select
from tests.commands import DEVICE, assert_one_error_line, ran, run
from tests.conftest import ONE_CORE
from tests.decoders import stateful_decoder
from tests.graphs import convolutions, random_model, random_problem
from tests.test_relaxed_shapes import batches

pytestmark = pytest.mark.usefixtures("fast_search")

PAIR = "HETERO:GPU,CPU"
SLOW = ("bert-small", "swin-small", "llama-stateful", "whisper-encoder-small", "unet-small", "mixture-of-experts-small")
MODELS = (
    "resnet-small",
    "lstm-stateful",
    "branching",
    "dlrm",
    *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW),
)
OPERATIONS = 20


def check_move(explained: Explanation, group: int, device: int) -> None:
    problem = explained.problem
    moved = explained.placement.copy()
    moved[group] = device
    move, result = explained.move(group, device), problem.evaluate(moved)
    assert move.infeasible == result.infeasible[0]
    wanted = problem.scores(moved)[0] - explained.score_us
    assert move.cost_us == pytest.approx(wanted, abs=1e-6) or (np.isinf(wanted) and np.isinf(move.cost_us))
    assert move.parts.total == pytest.approx(result.latency_us[0] - explained.evaluation.latency_us[0], abs=1e-6)
    if problem.group_supported[group, device]:
        assert explained.move_us[group, device] == pytest.approx(move.cost_us, abs=1e-6)


def check_reason(explained: Explanation, node: int) -> str:
    """Tries what the reason says; its kind."""
    problem, reason = explained.problem, explained.reason(node)
    here, group = explained.device[node], problem.groups[node]
    others = [device for device in range(len(problem.devices)) if device != here]
    assert reason.text
    if reason.kind == "only":
        assert not problem.supported[node, others].any()
        return reason.kind
    if reason.kind == "shared":
        assert problem.groups[reason.other] == group
        assert not problem.group_supported[group, others].any()
        assert not problem.supported[reason.other, others].all()
        return reason.kind
    if reason.kind == "consumer":
        reads = problem.graph.input_source[problem.graph.input_node == reason.other]
        assert node in reads
        assert problem.groups[reason.other] == group
        return reason.kind
    costs = []
    for device in others:
        moved = explained.placement.copy()
        moved[group] = device
        costs.append(problem.scores(moved)[0] - explained.score_us)
    if reason.kind == "order":
        assert np.isinf(costs).all()
        return reason.kind
    bits = {"submodel": 16, "nothing": 8}
    if reason.kind in bits:
        assert np.isinf(costs).all()
        ends = [explained.placement.copy() for _ in others]
        for end, device in zip(ends, others, strict=True):
            end[group] = device
        assert any(int(problem.evaluate(end).infeasible[0]) & bits[reason.kind] for end in ends)
        return reason.kind
    assert reason.move is not None
    moved = explained.placement.copy()
    moved[group] = reason.move.device
    infeasible = int(problem.evaluate(moved).infeasible[0])
    if reason.kind == "memory":
        assert np.isinf(costs).all()
        assert infeasible & 4
        return reason.kind
    assert infeasible == 0
    assert reason.move.cost_us == pytest.approx(min(costs), abs=1e-6)
    sign = {"dearer": 1, "equal": 0, "better": -1}[reason.kind]
    assert sign == (0 if abs(min(costs)) <= 1e-6 * explained.score_us else np.sign(min(costs)))
    return reason.kind


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(("latency", "throughput")), st.integers(2, 4))
def test_figures_are_the_simulators(seed: int, objective: str, devices: int) -> None:
    problem = random_problem(
        seed, nodes=12, devices=devices, objective=objective, submodel_us=3.0, missing=0.2, grouped=True, fusing=True
    )
    generator = np.random.default_rng(seed)
    explained = Explanation(problem, problem.random(generator, 1)[0])
    result = explained.evaluation
    assert explained.parts.total == pytest.approx(result.latency_us[0])
    assert sum(cut.bytes for cut in explained.cuts) == result.transfer_bytes[0]
    assert len(explained.cuts) == result.cut_tensors[0]
    assert explained.node_us.sum() == pytest.approx(explained.parts.nodes + explained.parts.fusions)
    for group in range(problem.group_count):
        for device in range(devices):
            if device != explained.placement[group]:
                check_move(explained, group, device)
    for node in range(problem.graph.nodes):
        check_reason(explained, node)
    closest = explained.closest_moves()
    assert [move.cost_us for move in closest] == sorted(move.cost_us for move in closest)
    with pytest.raises(ValueError, match="already"):
        explained.move(0, int(explained.placement[0]))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_reasons_of_models_hold(name: str, objective: str) -> None:
    (zoo_model,) = select([name])
    problem = build_problem(zoo_model.build(), DeviceSet.parse(PAIR), objective=objective)
    generator = np.random.default_rng(3)
    explained = Explanation(problem, problem.random(generator, 1)[0])
    operations = np.flatnonzero(problem.graph.kinds == NodeKind.OP)
    for node in generator.choice(operations, min(OPERATIONS, len(operations)), replace=False).tolist():
        check_reason(explained, node)
        group, other = problem.groups[node], 1 - int(explained.device[node])
        check_move(explained, int(group), other)


def with_limit(problem: PlacementProblem, device: int, limit: int) -> PlacementProblem:
    memory = np.full(len(problem.devices), -1, np.int64)
    memory[device] = limit
    return replace(problem, memory_bytes=memory)


def test_memory_is_a_reason() -> None:
    problem = build_problem(random_model(1), DeviceSet.parse(PAIR))
    everything_on_cpu = problem.single(1)
    explained = Explanation(with_limit(problem, 0, 0), everything_on_cpu)
    operations = np.flatnonzero(problem.graph.kinds == NodeKind.OP)
    kinds = {check_reason(explained, node) for node in operations.tolist()}
    assert "memory" in kinds
    reasons = [explained.reason(node) for node in operations.tolist()]
    assert all("GPU would need" in reason.text for reason in reasons if reason.kind == "memory")


def test_a_state_is_a_reason_of_its_own() -> None:
    problem = build_problem(stateful_decoder(2), DeviceSet.parse(PAIR))
    explained = Explanation(problem, problem.single(0))
    node = problem.graph.types.index("ReadValue")
    assert explained.evaluation.infeasible[0] == 0
    assert check_reason(explained, node) in ("dearer", "equal", "better", "submodel", "order")


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explain") / "model.xml"
    model = random_model(5)
    ov_hsdag.place(model, PAIR, measure=False)
    ov.save_model(model, path)
    return path


def test_command(placed: Path) -> None:
    done = ran("explain", placed)
    assert f"{placed} on {PAIR} (latency):" in done.stdout.replace("\n    ", " ")
    assert "submodel 1 on " in done.stdout
    assert "the single moves that come closest to paying:" in done.stdout


def test_json_has_every_operation_and_the_chosen_ones(placed: Path) -> None:
    found = json.loads(run("explain", placed, "--json").stdout)
    placement = Placement.of(ov.Core().read_model(placed))
    assert placement is not None
    assert found["feasible"]
    assert {one["name"]: one["device"] for one in found["nodes"]}.items() <= placement.affinity.items()
    assert found["latency_us"] == pytest.approx(placement.predicted["latency_us"], rel=1e-3)  # type: ignore[index]
    first = found["nodes"][0]
    chosen = json.loads(run("explain", placed, "--json", "--node", first["name"]).stdout)["nodes"]
    assert chosen == [first]
    of_type = json.loads(run("explain", placed, "--json", "--type", first["type"]).stdout)["nodes"]
    assert {one["type"] for one in of_type} == {first["type"]}


def test_a_question_about_one_operation_simulates_its_moves_alone(
    placed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = json.loads(run("explain", placed, "--json").stdout)["nodes"][0]["name"]
    monkeypatch.setattr(Explanation, "move_us", property(lambda self: 1 / 0))
    for options in (("--node", name), ("--type", "*", "--json")):
        done = ran("explain", placed, *options)
        assert name in done.stdout and "come closest to paying" not in done.stdout
    assert json.loads(done.stdout)["closest_moves"] is None
    assert "ZeroDivisionError" in run("explain", placed, "--debug").stderr


def test_a_placement_that_was_made_elsewhere(tmp_path: Path) -> None:
    model = random_model(7)
    nodes = model.get_ordered_ops()
    for number, node in enumerate(nodes):
        node.get_rt_info()["affinity"] = "GPU" if number < len(nodes) // 2 else "CPU"
    explained = explain(model).explanation
    assert set(explained.problem.devices) == {"GPU", "CPU"}
    path, plain = tmp_path / "plain.xml", random_model(7)
    ov.save_model(plain, path)
    names = [node.get_friendly_name() for node in plain.get_ops()]
    (tmp_path / "affinity.json").write_text(json.dumps(dict.fromkeys(names, "CPU")), encoding="utf-8")
    done = ran("explain", path, "--affinity", tmp_path / "affinity.json", "-d", PAIR, "--json")
    assert {one["device"] for one in json.loads(done.stdout)["nodes"]} == {"CPU"}


def test_what_the_placement_was_made_with_counts(tmp_path: Path) -> None:
    x = ops.parameter(ov.PartialShape([-1, 256]), np.float32, name="x")
    node: ov.Node = x
    for seed in range(6):
        weights = np.random.default_rng(seed).standard_normal((256, 256), np.float32)
        node = ops.relu(ops.matmul(node, ops.constant(weights), False, False))
    plain, path = tmp_path / "plain.xml", tmp_path / "placed.xml"
    ov.save_model(ov.Model([ops.result(node)], [x], "layers"), plain, compress_to_fp16=False)
    asked = ("--shape", "x=[640,256]", "--memory", "GPU=3MiB,CPU=4MiB")
    ran("place", plain, "--device", PAIR, "--no-measure", "-o", path, *asked)
    stored = json.loads(run("show", path, "--json").stdout)["predicted"]
    found = json.loads(run("explain", path, "--json").stdout)
    assert found["latency_us"] == pytest.approx(stored["latency_us"], rel=1e-3)
    assert [one["memory_limit_bytes"] for one in found["devices"].values()] == [3 << 20, 4 << 20]
    # What is given now goes before it.
    other = json.loads(run("explain", path, "--json", "--shape", "x=[1,256]", "--memory", "GPU=5MiB").stdout)
    assert other["latency_us"] < 0.5 * found["latency_us"]
    assert [one["memory_limit_bytes"] for one in other["devices"].values()] == [5 << 20, 4 << 20]
    run("report", path, "-o", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    command = json.loads(page.partition('<script type="application/json" id="data">')[2].partition("</script>")[0])
    assert command["done"]["command"] == (
        f"ov-hsdag place MODEL --device HETERO:GPU,CPU --objective latency --memory GPU={3 << 20},CPU={4 << 20}"
        " --shape 'x=[640,256]' --no-measure"
    )
    # A model that has other inputs by now is explained all the same.
    model = ov.Core().read_model(path)
    model.reshape([32, 256])
    assert explain(model).summary()["latency_us"] < 0.5 * found["latency_us"]
    model.set_rt_info('{"shapes": {"x": ["1"]}}', ["ov_hsdag", "settings"])
    with pytest.raises(UserError, match="cannot be read"):
        Placement.of(model)


def test_what_cannot_be_explained_is_told_in_one_line(placed: Path, tmp_path: Path) -> None:
    path = tmp_path / "plain.xml"
    ov.save_model(random_model(7), path)
    for command in ("explain", "report"):
        told = f"{path} carries no placement; run: ov-hsdag place {path} --device HETERO:CPU_A,CPU_B"
        assert_one_error_line(run(command, path), told)
    assert_one_error_line(run("explain", placed, "--type", "Convolutio"), "has no type 'Convolutio'")
    assert_one_error_line(run("explain", placed, "--objective", "speed"), "unknown objective")
    with pytest.raises(UserError, match="no node 'none'"):
        explain(ov.Core().read_model(placed)).nodes(["none"])


def test_a_submodel_of_inputs_is_said_in_a_sentence(tmp_path: Path) -> None:
    a, unused = (ops.parameter([4], np.float32, name=name) for name in ("a", "unused"))
    ov.save_model(ov.Model([ops.result(ops.relu(a, name="relu"))], [a, unused], "unused"), tmp_path / "unused.xml")
    (tmp_path / "affinity.json").write_text(json.dumps({"a": "CPU_A", "relu": "CPU_A", "unused": "CPU_B"}))
    placed = tmp_path / "placed.xml"
    options = ("--device", DEVICE, "--affinity", tmp_path / "affinity.json", "--no-measure", "--output", placed)
    ran("place", tmp_path / "unused.xml", *options)
    assert "on CPU_B holds inputs only, and computes nothing" in ran("explain", placed).stdout


def test_explaining_leaves_the_model_as_it_is() -> None:
    model = batches()
    normalize(model)  # which gives all nodes their names
    nodes = [node.get_friendly_name() for node in model.get_ordered_ops()]
    ov_hsdag.place(model, PAIR, affinity={name: "GPU" if at < 9 else "CPU" for at, name in enumerate(nodes)})
    names = [node.get_friendly_name() for node in model.get_ordered_ops()]
    assert any(map(is_relaxing, names))
    found = [explain(model).summary() for _ in range(2)]
    assert found[0] == found[1]
    ov_hsdag.fit(model, PAIR)
    assert [node.get_friendly_name() for node in model.get_ordered_ops()] == names


def test_what_is_left_of_a_placement_is_explained(placed: Path) -> None:
    model = ov.Core().read_model(placed)
    operations = [node for node in model.get_ordered_ops() if node.get_type_name() in ("MatMul", "Relu", "Add")]
    operations[0].set_friendly_name("new")
    with pytest.warns(UserWarning, match="names operations that are gone from the model: '[^']*'$"):
        found = explain(model)
    assert [one["name"] for one in map(found.operation, found.nodes(["new"]))] == ["new"]
    for number, node in enumerate(model.get_ops()):
        node.set_friendly_name(f"other{number}")
    with pytest.raises(UserError, match="was it made for another model"):
        explain(model)


def test_costs_that_were_not_kept_are_named(placed: Path, tmp_path: Path) -> None:
    model = ov.Core().read_model(placed)
    assert ": the placement was made" not in run("explain", placed).stdout
    placement = Placement.of(model)
    assert placement is not None
    first = placement.devices[0]
    replace(placement, predicted={**(placement.predicted or {}), "measured_costs": [first]}).embed(model)
    ov.save_model(model, tmp_path / "placed.xml")
    (line,) = [
        one
        for one in run("explain", tmp_path / "placed.xml", COLUMNS="1000").stdout.splitlines()
        if one.startswith("costs: ")
    ]
    assert f"; the placement was made with costs that were measured on {first} and not kept" in line
    assert "profile" in line.partition(";")[0]


def test_virtual_devices_that_the_shell_does_not_declare_are_those_of_the_file(tmp_path: Path) -> None:
    plain, path, bare = tmp_path / "plain.xml", tmp_path / "placed.xml", {"OV_HSDAG_VIRTUAL_DEVICES": ""}
    ov.save_model(convolutions(), plain, compress_to_fp16=False)
    assert run("place", plain, "-d", DEVICE, "--no-measure", "-o", path).returncode == 0
    here, elsewhere = ran("explain", path, "--json"), run("explain", path, "--json", **bare)
    assert json.loads(elsewhere.stdout)["latency_us"] == pytest.approx(json.loads(here.stdout)["latency_us"])
    page = tmp_path / "report.html"
    assert run("report", path, "-o", page, **bare).returncode == 0 and page.exists()
    verified = run("verify", path, "-d", DEVICE, **bare)
    declared = f"CPU_A:{ONE_CORE};CPU_B:{ONE_CORE}"
    assert_one_error_line(verified, f"not declared here: export OV_HSDAG_VIRTUAL_DEVICES='{declared}'")
    core, model = ov.Core(), ov.Core().read_model(path)
    model.set_rt_info('{"virtual_devices": "CPU_A:INFERENCE_NUM_THREADS=0"}', ["ov_hsdag", "settings"])
    with pytest.raises(UserError, match='CPU_A has INFERENCE_NUM_THREADS "0"'):
        explain(model, core=core)
