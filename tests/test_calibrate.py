"""Calibration: executed nodes have their operations, fits recover what made the data, stored costs hold or do not."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as op
import pytest

from ov_hsdag.calibration import boundaries, calibrate, models, node_times, scale_factors
from ov_hsdag.calibration import machine as machines
from ov_hsdag.calibration.executions import CompiledModels, Counters, Execution, Executions, SingleRequest, TimedModel
from ov_hsdag.calibration.regression import Samples, fit_costs, fit_figures
from ov_hsdag.costs import cost_model
from ov_hsdag.costs.builtin import builtin_profile
from ov_hsdag.costs.fusions import fusions, main_inputs, own_layout, with_layouts
from ov_hsdag.costs.profile import Profile
from ov_hsdag.costs.roofline import Roofline
from ov_hsdag.costs.stored import ModelCosts, graph_hash, identity, path_beside
from ov_hsdag.devices import cpu, discovery, virtual
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.model import normalize
from ov_hsdag.model.affinities import set_affinities
from ov_hsdag.model.graph import ComputationGraph, NodeKind
from ov_hsdag.model.inputs import timed_inputs
from ov_hsdag.placing.place import place
from ov_hsdag.problem.pricing import build_problem, prepare
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.utils.errors import RunError, UserError
from ov_hsdag.utils.timing import Deadline, OutOfTime
from research.zoo.catalog import ZOO
from research.zoo.lacking import Lacking
from tests.commands import assert_one_error_line, ran, run
from tests.conftest import ONE_CORE
from tests.decoders import stateful_decoder

NAMES = ("CPU_A", "CPU_B")
HETERO = "HETERO:CPU_A,CPU_B"


def residual_model(channels: int = 16, side: int = 14) -> ov.Model:
    """Convolution, bias and activation twice, a residual addition, pooling, a matrix product."""
    random = np.random.default_rng(0)

    def weights(*shape: int) -> ov.Node:
        return op.constant(random.standard_normal(shape).astype(np.float32) * 0.1)

    image = op.parameter([1, 8, side, side], np.float32, name="image")
    node = op.convolution(image, weights(channels, 8, 3, 3), [1, 1], [1, 1], [1, 1], [1, 1], name="first")
    node = stem = op.relu(op.add(node, weights(1, channels, 1, 1)), name="stem")
    node = op.convolution(node, weights(channels, channels, 3, 3), [1, 1], [1, 1], [1, 1], [1, 1], name="second")
    node = op.relu(op.add(node, stem), name="joined")
    node = op.convolution(node, weights(channels, channels, 1, 1), [1, 1], [0, 0], [0, 0], [1, 1], name="third")
    node = op.reduce_mean(node, np.array([2, 3]), False)
    node = op.softmax(op.matmul(node, weights(channels, 10), False, False), 1, name="out")
    return ov.Model([op.result(node)], [image], "residual")


@pytest.fixture(params=["residual", "bert-small", "mobilenet-v2-small", "lstm-stateful"])
def model(request: pytest.FixtureRequest) -> ov.Model:
    built = residual_model() if request.param == "residual" else ZOO[request.param].build()
    normalize.normalize(built)
    return built


def executed(core: ov.Core, model: ov.Model, device: str, count: int = 2) -> tuple[ov.CompiledModel, Counters]:
    compiled = CompiledModels(core).get(model, device, counters=True)
    counters = Counters(compiled, timed_inputs(model)[0])
    for _ in range(count):
        counters.run()
    return compiled.model, counters


def test_all_executed_time_has_an_operation(two_cpu_core: ov.Core, model: ov.Model) -> None:
    graph = ComputationGraph.from_model(model)
    compiled, counters = executed(two_cpu_core, model, "CPU_A")
    us = counters.us()
    found = Executions.of(compiled, graph, us)
    assert us
    assert found.unexplained_us == 0
    assert sum(item.us for item in found.items) == pytest.approx(sum(us.values()))
    for item in found.items:
        assert item.nodes or item.serves >= 0
        assert all(graph.kinds[node] != NodeKind.CONSTANT for node in item.nodes)


def test_every_operation_that_is_not_folded_is_part_of_an_execution(two_cpu_core: ov.Core, model: ov.Model) -> None:
    graph = ComputationGraph.from_model(model)
    compiled, counters = executed(two_cpu_core, model, "CPU_A")
    found = Executions.of(compiled, graph, counters.us())
    covered = {node for item in found.items for node in item.nodes}
    computing = (graph.kinds == NodeKind.OP) & ~Roofline(graph).folded & (graph.flops > 0)
    lost = [graph.names[node] for node in np.flatnonzero(computing) if node not in covered]
    assert lost == []


def test_executed_time_of_a_split_model_has_an_operation_of_its_submodel(two_cpu_core: ov.Core) -> None:
    model = residual_model()
    problem = build_problem(model, DeviceSet(NAMES), core=two_cpu_core)
    placement = problem.repair((np.arange(problem.group_count) % 2).astype(np.uint8))
    set_affinities(model, problem.affinity(placement))
    compiled, counters = executed(two_cpu_core, model, HETERO)
    us = counters.us()
    assert len({submodel for submodel, _ in us}) > 1
    found = Executions.of(compiled, problem.graph, us)
    assert found.unexplained_us == 0
    assert sum(item.us for item in found.items) == pytest.approx(sum(us.values()))
    device = placement[problem.groups]
    for item in found.items:
        assert len({device[node] for node in item.nodes}) <= 1
    leaving = {problem.graph.names[item.serves] for item in found.items if item.inserted and item.leaving}
    entering = {problem.graph.names[item.serves] for item in found.items if item.inserted and not item.leaving}
    assert entering  # images become what convolutions read
    assert not leaving & {"out"}


def test_fused_operations_share_an_execution(two_cpu_core: ov.Core) -> None:
    model = residual_model()
    normalize.normalize(model)
    graph = ComputationGraph.from_model(model)
    compiled, counters = executed(two_cpu_core, model, "CPU_A")
    found = Executions.of(compiled, graph, counters.us())
    stem = next(item for item in found.items if graph.index("stem") in item.nodes)
    assert {graph.types[node] for node in stem.nodes} == {"Convolution", "Add", "Relu"}


def test_layers_that_are_alike_take_alike() -> None:
    node = parameter = op.parameter([4, 8], np.float32, name="in")
    for columns in (8, 8, 8, 16):
        node = op.matmul(node, op.constant(np.ones((8, columns), np.float32)), False, False)
    graph = ComputationGraph.from_model(ov.Model([op.result(node)], [parameter], "layers"))
    products = [number for number, kind in enumerate(graph.types) if kind == "MatMul"]
    us = [3.0, 100.0, 5.0, 40.0]
    items = tuple(Execution(str(node), (node,), -1, False, "ab", time) for node, time in zip(products, us, strict=True))
    inserted = tuple(
        Execution(f"to {node}", (), node, False, "ab", time + 1) for node, time in zip(products, us, strict=True)
    )
    found = Executions((*items, *inserted), 7.0).alike(graph)
    assert [item.us for item in found.items] == [5.0, 5.0, 5.0, 40.0, 6.0, 6.0, 6.0, 41.0]
    assert found.unexplained_us == 7.0
    assert [item.name for item in found.items] == [item.name for item in (*items, *inserted)]


@pytest.mark.slow
def test_node_times_add_up_to_the_latency(two_cpu_core: ov.Core, model: ov.Model) -> None:
    graph = ComputationGraph.from_model(model)
    roofline = Roofline(graph)
    profile = builtin_profile(NAMES, two_cpu_core).device("CPU_A")
    weights = node_times.shares(graph, roofline, roofline.node_us(profile))
    compiled, (inputs,) = CompiledModels(two_cpu_core), timed_inputs(model)
    found = node_times.node_times(
        model, "CPU_A", compiled, graph=graph, weights=weights, inputs=inputs, submodel_us=1.0
    )
    assert found.us.sum() == pytest.approx(found.latency_us - 1.0)
    assert (found.us >= 0).all()
    assert found.us[graph.kinds == NodeKind.CONSTANT].sum() == 0


def test_counters_leave_the_first_inferences_out(two_cpu_core: ov.Core) -> None:
    model = residual_model()
    _, counters = executed(two_cpu_core, model, "CPU_A", 0)
    with pytest.raises(ValueError, match="no inference"):
        counters.us()
    counters.run()
    assert sum(counters.us().values()) > 0


def synthetic(noise: float) -> tuple[Samples, np.ndarray, np.ndarray, float]:
    random = np.random.default_rng(1)
    rates, bands, launch = np.array([800.0, 60.0, 30.0]), np.array([12.0, 25.0, 40.0]), 3.0
    count = 90
    kind = np.arange(count) % 3
    flops = 10 ** random.uniform(4, 9, count)
    moved = 10 ** random.uniform(3, 7, count)
    us = np.maximum(flops / rates[kind] / 1e3, moved / bands[kind] / 1e3) + launch
    us *= np.exp(noise * random.standard_normal(count))
    sample = np.arange(count)
    samples = Samples(us, sample, kind, flops, moved, np.ones(count, bool), ("Convolution", "MatMul", "Add"))
    return samples, rates, bands, launch


@pytest.mark.parametrize(("noise", "tolerance"), [(0.0, 0.06), (0.1, 0.25)])
def test_fit_recovers_the_figures_that_made_the_data(noise: float, tolerance: float) -> None:
    samples, rates, bands, launch = synthetic(noise)
    found = fit_figures(samples, np.full(3, 200.0), np.full(3, 14.0), 1.0)
    np.testing.assert_allclose(found.rate_gflops, rates, rtol=tolerance)
    np.testing.assert_allclose(found.gbps, bands, rtol=tolerance)
    assert found.launch_us == pytest.approx(launch, rel=tolerance)
    assert found.error < 0.02 + noise


def test_fit_withstands_outliers() -> None:
    samples, rates, _, _ = synthetic(0.02)
    us = samples.us.copy()
    us[::10] *= 8
    found = fit_figures(replace(samples, us=us), np.full(3, 200.0), np.full(3, 14.0), 1.0)
    np.testing.assert_allclose(found.rate_gflops, rates, rtol=0.2)


def test_costs_of_boundaries_are_recovered_and_never_negative() -> None:
    random = np.random.default_rng(2)
    rows = random.uniform(0, 10, (30, 4)) * [1, 10, 1e6, 1e6]
    true = np.array([5.0, 2.0, 1e-4, 0.0])
    us = rows @ true
    np.testing.assert_allclose(fit_costs(rows, us, np.ones(30)), true, rtol=1e-6, atol=1e-9)
    noisy = fit_costs(rows, us * (1 + 0.05 * random.standard_normal(30)), 1 / us)
    assert (noisy >= 0).all()
    np.testing.assert_allclose(rows @ noisy, us, rtol=0.15)


def test_factors_are_recovered_and_stay_where_nothing_speaks_of_them() -> None:
    random = np.random.default_rng(3)
    parts = random.uniform(0.2, 1.0, (24, 6)) * [1000.0, 200.0, 400.0, 300.0, 0.0, 500.0]
    true = np.array([2.0, 0.6, 1.5, 7.0, 1.8])
    found = scale_factors.fit_scale_factors(parts, parts[:, 0] + parts[:, 1:] @ true)
    told = [0, 1, 2, 4]
    np.testing.assert_allclose(found[told], true[told], rtol=0.2)
    assert found[3] == pytest.approx(1.0)
    noisy = (parts[:, 0] + parts[:, 1:] @ true) * np.exp(0.03 * random.standard_normal(24))
    again = scale_factors.fit_scale_factors(parts, noisy)
    np.testing.assert_allclose(parts[:, 0] + parts[:, 1:] @ again, parts[:, 0] + parts[:, 1:] @ true, rtol=0.1)


def test_terms_add_up_to_the_predicted_latency(two_cpu_core: ov.Core) -> None:
    problem = build_problem(ZOO["mobilenet-v2-small"].build(), DeviceSet(NAMES), core=two_cpu_core)
    placements = scale_factors.draw(problem)
    assert len(placements) > 2
    evaluation = problem.evaluate(np.stack(placements))
    assert (evaluation.infeasible == 0).all()
    terms = scale_factors.terms(problem, placements)
    np.testing.assert_allclose(terms.sum(axis=1), evaluation.latency_us)
    assert (terms[:, 5] == 0).all()
    helped = scale_factors.terms(problem, placements, [NAMES[1]])
    np.testing.assert_allclose(helped.sum(axis=1), evaluation.latency_us)
    np.testing.assert_allclose(helped[:, [0, 5]].sum(axis=1), terms[:, 0])
    everything_on_a = scale_factors.terms(problem, [problem.single(0)], [NAMES[1]])[0]
    assert everything_on_a[0] == 0 < everything_on_a[5]


def test_in_a_hurry_no_split_breaks_up_everything(two_cpu_core: ov.Core) -> None:
    problem = build_problem(ZOO["mobilenet-v2-small"].build(), DeviceSet(NAMES), core=two_cpu_core)
    drawn, quick = (problem.evaluate(np.stack(scale_factors.draw(problem, hurry=hurry))) for hurry in (False, True))
    assert quick.submodels.max() <= max(scale_factors._CONTIGUOUS) < drawn.submodels.max()


def test_a_device_is_given_all_that_it_runs(two_cpu_core: ov.Core) -> None:
    core = Lacking(two_cpu_core, "CPU_A", {"Clamp"})
    problem = build_problem(ZOO["mobilenet-v2-small"].build(), DeviceSet(NAMES), core=core)  # type: ignore[arg-type]
    placement = scale_factors.all_supported_on(problem, 0)
    assert problem.evaluate(placement).infeasible[0] == 0
    clamps = [problem.graph.types[node] == "Clamp" for node in range(problem.graph.nodes)]
    assert (placement[problem.groups[clamps]] == 1).all()
    assert (placement == 0).mean() > 0.5


def test_the_factor_on_operations_measured_in_a_split_is_that_devices_alone(two_cpu_core: ov.Core) -> None:
    problem = build_problem(ZOO["mobilenet-v2-small"].build(), DeviceSet(NAMES), core=two_cpu_core)
    corrected = calibrate.scaled(problem, [NAMES[1]], np.array([1.0, 1.0, 1.0, 1.0, 3.0]))
    np.testing.assert_allclose(corrected.node_us, problem.node_us * [3.0, 1.0])


def test_bandwidth_by_type_and_layouts_price_what_they_say() -> None:
    graph = ComputationGraph.from_model(residual_model())
    before = builtin_profile(["CPU"])
    device = before.device("CPU")
    slow = replace(device, gbps={"Softmax": device.memory_gbps / 100, "default": device.memory_gbps})
    after = Profile({"CPU": replace(slow, layout_gbps=2.0)})
    changed = cost_model.node_us(after, graph, ["CPU"])[:, 0] - cost_model.node_us(before, graph, ["CPU"])[:, 0]
    assert {graph.types[node] for node in np.flatnonzero(changed)} == {"Softmax"}
    fused_with, fusion_penalty_us = cost_model.fusion_costs(after, graph, ["CPU"])
    usual, usual_us = cost_model.fusion_costs(before, graph, ["CPU"])
    tied = np.flatnonzero(fused_with[:, 0] != usual[:, 0])
    assert [graph.names[node] for node in tied] == ["second", "third"]
    assert (fusion_penalty_us[tied, 0] > 0).all()
    others = np.setdiff1d(np.arange(graph.nodes), tied)
    np.testing.assert_array_equal(fusion_penalty_us[others], usual_us[others])


def test_fusions_follow_what_was_executed_together() -> None:
    graph = ComputationGraph.from_model(residual_model())
    first, stem = graph.index("first"), graph.index("stem")
    bias = int(graph.input_source[graph.input_ptr[stem]])
    parts = np.full(graph.nodes, -1, np.int32)
    parts[[first, bias, stem]] = 7
    us, alone = np.full(graph.nodes, 2.0), np.full(graph.nodes, 5.0)
    fused_with, fusion_penalty_us = fusions(graph, parts, us, alone)
    assert fused_with[bias] == first
    assert fused_with[stem] == bias
    assert (fused_with >= 0).sum() == 2
    assert fusion_penalty_us[bias] == fusion_penalty_us[stem] == 3.0
    assert fusion_penalty_us.sum() == 6.0


def test_layouts_bind_convolutions_across_what_stands_between() -> None:
    graph = ComputationGraph.from_model(residual_model())
    own = own_layout(graph)
    first, second, third = (graph.index(name) for name in ("first", "second", "third"))
    assert own[[first, second, third, graph.index("stem"), graph.index("joined")]].all()
    assert not own[graph.index("image")]
    assert not own[graph.index("out")]
    none = np.full((graph.nodes, 2), -1, np.int32), np.zeros((graph.nodes, 2))
    fused_with, fusion_penalty_us = with_layouts(graph, *none, np.stack([own, own], axis=1), np.array([1e-3, 0.0]))
    assert fused_with[second, 0] == first
    assert fused_with[third, 0] in (first, second)
    size = 4 * 16 * 14 * 14
    assert fusion_penalty_us[second, 0] > size * 1e-3  # entering, and a share of leaving
    assert (fused_with[:, 1] == -1).all()
    assert fusion_penalty_us[:, 1].sum() == 0


def test_main_input_is_the_largest_that_is_no_constant() -> None:
    graph = ComputationGraph.from_model(residual_model())
    edges = main_inputs(graph)
    for node in range(graph.nodes):
        inputs = range(graph.input_ptr[node], graph.input_ptr[node + 1])
        live = [edge for edge in inputs if graph.kinds[graph.input_source[edge]] != NodeKind.CONSTANT]
        sizes = [graph.output_bytes[graph.input_output[edge]] for edge in live]
        assert edges[node] == (live[int(np.argmax(sizes))] if live else -1)


class CompilingHere:
    """Does in this process what `Compiling` does in another one."""

    def __init__(self, core: ov.Core, names: Sequence[str]) -> None:
        self.core, self.kept, self.models = core, dict[str, Any](), list[ov.Model]()
        self.model = self.models.__getitem__
        self.report: Callable[[str], None] = lambda _: None

    def wait(self) -> None:
        """It is here."""

    def keep(self, model: ov.Model) -> int:
        self.models.append(model)
        return len(self.models) - 1

    def call(
        self, function: Callable[..., Any], *arguments: Any, doing: str, report: Callable[[str], None] | None = None
    ) -> Any:
        self.report = report or (lambda _: None)
        return function(self, *arguments)

    def close(self) -> None:
        """Nothing is left."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """A model's IR and the profile that the command wrote, with costs beside the model.

    From a few small microbenchmarks, boundaries and probe networks: what is tested is not how exact it is.
    """
    folder = tmp_path_factory.mktemp("calibrated")
    source, profile = folder / "model.xml", folder / "profile.json"
    ov.save_model(residual_model(), source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(virtual.VIRTUAL_DEVICES_VARIABLE, f"CPU_A:{ONE_CORE};CPU_B:{ONE_CORE}")
        for name in ("CONVOLUTIONS", "DEPTHWISE", "PRODUCTS", "ATTENTIONS", "TOKENS", "IMAGES"):
            patch.setattr(models, name, getattr(models, name)[:2])
        patch.setattr(boundaries, "_TOKENS", boundaries._TOKENS[:2])
        patch.setattr(boundaries, "_IMAGES", boundaries._IMAGES[:2])
        patch.setattr(boundaries, "_ROUNDS", 3)
        patch.setattr(models, "_STAGES", ((64, 14),))
        patch.setattr(models, "_LAYERS", 1)
        patch.setattr(scale_factors, "_CONTIGUOUS", (2, 4))
        patch.setattr(scale_factors, "_FEWEST_ROUNDS", 2)
        patch.setattr(machines, "_COPIES", 1)
        patch.setattr(calibrate, "Compiling", CompilingHere)  # another process would have none of these
        patch.setattr(node_times, "_SECONDS", 0.02)
        done = ran("calibrate", "--device", HETERO, "--output", profile, "--model", source, "--verbose")
        TOLD.extend(done.stderr.splitlines())
    yield source, profile


TOLD: list[str] = []
"""What the command of `written` said while it ran."""


@pytest.mark.slow
def test_the_command_says_how_far_it_is(written: tuple[Path, Path]) -> None:
    stages = [re.findall(r"calibrating: stage (\d) of (\d), (.*): ", text)[0] for text in TOLD if "stage" in text]
    names = [f"layers on {name}" for name in NAMES]
    names += ["boundaries", "a network of tokens", "a network of images", "model.xml"]
    assert list(dict.fromkeys(stages)) == [(str(number), "6", name) for number, name in enumerate(names, 1)]


@pytest.mark.slow
def test_command_writes_a_profile_that_loads(written: tuple[Path, Path], two_cpu_core: ov.Core) -> None:
    _, path = written
    profile = Profile.load(path)  # checks the schema
    document = json.loads(path.read_text())
    assert set(document["devices"]) == set(NAMES)
    assert {(link["from"], link["to"]) for link in document["links"]} == {NAMES, NAMES[::-1]}
    for name in NAMES:
        entry = document["devices"][name]
        assert ov.__version__ in entry["efficiency"]["source"]
        # Whatever CPU this is, what is cited is not another one's datasheet.
        assert not any("AMD" in json.dumps(figure) for figure in entry.values() if isinstance(figure, dict))
        assert two_cpu_core.get_property(name, "FULL_DEVICE_NAME") in entry["description"]
        assert profile.device(name).gbps_of("Convolution") == entry["gbps"]["value"]["Convolution"]
    transfer_us, per_byte = cost_model.transfer_costs(profile, NAMES)
    assert (transfer_us >= 0).all()
    assert (per_byte[~np.eye(2, dtype=bool)] >= 0).all()
    assert sorted(entry.name for entry in path.parent.iterdir()) == [
        "model.bin", "model.costs.json", "model.xml", "profile.json"
    ]  # fmt: skip


@pytest.mark.slow
def test_stored_costs_are_used_where_they_hold(
    written: tuple[Path, Path], two_cpu_core: ov.Core, recwarn: pytest.WarningsRecorder
) -> None:
    source, path = written
    costs = ModelCosts.load(path_beside(source))
    model = two_cpu_core.read_model(source)
    problem = build_problem(model, DeviceSet(NAMES), core=two_cpu_core, profile=path, costs=costs)
    for column, name in enumerate(NAMES):
        for key, values in costs.devices[name].costs.items():
            np.testing.assert_array_equal(getattr(problem, key)[:, column], values)
    assert not [warning for warning in recwarn if "costs" in str(warning.message)]
    options: dict[str, Any] = {"profile": path, "policy": "none", "costs": path_beside(source)}
    placement = place(two_cpu_core.read_model(source), HETERO, core=two_cpu_core, **options)
    assert placement.predicted is not None
    assert placement.predicted["measured_costs"] == list(NAMES)


@pytest.mark.slow
def test_place_says_that_it_used_measured_costs(written: tuple[Path, Path], tmp_path: Path) -> None:
    source, profile = written
    options = ("--profile", profile, "--policy", "none", "--no-measure")
    printed = " ".join(run("place", source, "-d", HETERO, "-o", tmp_path / "placed.xml", *options).stdout.split())
    assert f"costs: measured on CPU_A, CPU_B ({path_beside(source)})" in printed
    stored = ModelCosts.load(path_beside(source))
    kept = replace(stored, devices={"CPU_A": stored.devices["CPU_A"]})
    (tmp_path / "again.xml").write_bytes(source.read_bytes())
    (tmp_path / "again.bin").write_bytes(source.with_suffix(".bin").read_bytes())
    kept.save(path_beside(tmp_path / "again.xml"))
    measured = ("--profile", profile, "--policy", "none", "--measure-seconds", "20")
    done = run("place", tmp_path / "again.xml", "-d", HETERO, "-o", tmp_path / "placed.xml", *measured)
    assert "costs: measured on CPU_A, CPU_B" in done.stdout and "again.costs.json" not in done.stdout


@pytest.mark.parametrize("change", ["model", "version", "property", "name"])
def test_stored_costs_of_something_else_are_ignored_with_a_line(
    written: tuple[Path, Path], two_cpu_core: ov.Core, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    source, path = written
    costs = ModelCosts.load(path_beside(source))
    model = two_cpu_core.read_model(source)
    if change == "model":
        model = residual_model(channels=24)
    elif change == "name":
        costs = ModelCosts(costs.graph, {f"{name}_2": entry for name, entry in costs.devices.items()})
    else:
        key, value = ("openvino", "2025.0") if change == "version" else ("properties", {})
        entries = {
            name: replace(entry, identity={**entry.identity, key: value}) for name, entry in costs.devices.items()
        }
        costs = ModelCosts(costs.graph, entries)
    with pytest.warns(UserWarning, match="do not hold for CPU_A, CPU_B"):
        problem = build_problem(model, DeviceSet(NAMES), core=two_cpu_core, profile=path, costs=costs)
    expected = cost_model.node_us(Profile.load(path), problem.graph, NAMES)
    np.testing.assert_array_equal(problem.node_us, expected)


def test_costs_that_hold_for_one_device_are_used_for_it(written: tuple[Path, Path], two_cpu_core: ov.Core) -> None:
    source, path = written
    costs = ModelCosts.load(path_beside(source))
    one = ModelCosts(costs.graph, {"CPU_B": costs.devices["CPU_B"]})
    with pytest.warns(UserWarning, match="not measured on CPU_A "):
        problem = build_problem(
            two_cpu_core.read_model(source), DeviceSet(NAMES), core=two_cpu_core, profile=path, costs=one
        )
    np.testing.assert_array_equal(problem.node_us[:, 1], costs.devices["CPU_B"].costs["node_us"])
    assert not np.array_equal(problem.node_us[:, 0], costs.devices["CPU_A"].costs["node_us"])


def test_costs_of_gpu_are_those_of_gpu_0(written: tuple[Path, Path], two_cpu_core: ov.Core) -> None:
    costs = ModelCosts.load(path_beside(written[0]))
    assert costs.boundaries is not None
    renamed = replace(costs, devices={f"{name}.0": one for name, one in costs.devices.items()})
    assert renamed.device("CPU_A") is costs.devices["CPU_A"]
    assert renamed.device("CPU_A.0") is costs.devices["CPU_A"]
    assert renamed.device("CPU_A.1") is None
    swapped = costs.boundaries_of(("CPU_B.0", "CPU_A"))
    assert swapped is not None
    assert swapped.costs["submodel_us"].tolist() == costs.boundaries.costs["submodel_us"][::-1].tolist()


@pytest.mark.slow
def test_a_device_that_lacks_operations_is_measured_in_a_split(two_cpu_core: ov.Core) -> None:
    core = Lacking(two_cpu_core, "CPU_A", {"Gelu"})
    profile = builtin_profile(NAMES, two_cpu_core)
    analysis = prepare(ZOO["bert-small"].build(), NAMES, core, profile)  # type: ignore[arg-type]
    costs, times = calibrate.calibrate_prepared(analysis, core, profile)  # type: ignore[arg-type]
    assert {name: found.device for name, found in times.items()} == {"CPU_B": "CPU_B", "CPU_A": HETERO}
    assert set(costs.devices) == set(NAMES)
    assert costs.boundaries is not None
    # How good they are: benchmarks/truth/prediction_accuracy.py --lacks.
    assert (costs.devices["CPU_A"].costs["node_us"] > 0).sum() > 20


def test_a_device_that_runs_nothing_has_no_costs(two_cpu_core: ov.Core) -> None:
    model = residual_model()
    core = Lacking(two_cpu_core, "CPU_A", {node.get_type_name() for node in model.get_ops()})
    profile = builtin_profile(NAMES, two_cpu_core)
    analysis = prepare(model, NAMES, core, profile)  # type: ignore[arg-type]
    costs, times = calibrate.calibrate_prepared(analysis, core, profile)  # type: ignore[arg-type]
    assert set(costs.devices) == set(times) == {"CPU_B"}


def test_an_operation_that_no_device_runs_is_told_before_measuring(two_cpu_core: ov.Core) -> None:
    core = Lacking(Lacking(two_cpu_core, "CPU_A", {"Convolution"}), "CPU_B", {"Convolution"})  # type: ignore[arg-type]
    stages: list[str] = []
    with pytest.raises(UserError, match=r"of type Convolution \(and 2 more\) is supported by none of CPU_A, CPU_B"):
        machines.calibrate(NAMES, [residual_model()], core=core, report=stages.append)  # type: ignore[arg-type]
    assert not stages


class SlowMachine:
    """Real devices on which, by its clock, each compilation and each inference takes so many seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, compiling: float, inference: float) -> None:
        self.time, self.inferences, self.compilations = 0.0, 0, 0
        real_run, real_compile = SingleRequest.run, ov.Core.compile_model

        def run(request: SingleRequest, limit: float = math.inf) -> float:
            self.inferences += 1
            self.time += min(inference, limit)
            if inference > limit:
                raise OutOfTime("cancelled")
            real_run(request)
            return inference

        def compile_model(core: ov.Core, *args: Any) -> ov.CompiledModel:
            self.compilations += 1
            self.time += compiling
            return real_compile(core, *args)

        monkeypatch.setattr(SingleRequest, "run", run)
        monkeypatch.setattr(ov.Core, "compile_model", compile_model)

    def now(self) -> float:
        return self.time


def calibrated(core: ov.Core, machine: SlowMachine, seconds: float) -> tuple[ModelCosts, dict[str, Any], list[str]]:
    profile = builtin_profile(NAMES, core)
    analysis = prepare(residual_model(), NAMES, core, profile)
    machine.time = 0.0
    machine.inferences = machine.compilations = 0
    told: list[str] = []
    costs, times = calibrate.calibrate_prepared(analysis, core, profile, told.append, Deadline(seconds, machine.now))
    return costs, times, told


@pytest.mark.slow
@pytest.mark.parametrize(("inference", "seconds"), [(0.01, 30), (0.3, 30), (0.85, 30), (2.0, 60), (0.3, 10)])
def test_calibration_of_a_slow_model_keeps_its_budget(
    two_cpu_core: ov.Core, monkeypatch: pytest.MonkeyPatch, inference: float, seconds: float
) -> None:
    machine = SlowMachine(monkeypatch, 0.5, inference)
    costs, times, told = calibrated(two_cpu_core, machine, seconds)
    assert machine.time <= seconds
    assert set(costs.devices) == set(NAMES) and costs.boundaries is not None
    assert all(found.copies >= 1 for found in times.values()), "single operations are measured"
    assert all(found.latency_us == pytest.approx(inference * 1e6) for found in times.values())
    assert all("s left)" in text for text in told)


def test_devices_are_as_fast_as_they_were_in_turns(two_cpu_core: ov.Core, monkeypatch: pytest.MonkeyPatch) -> None:
    profile, in_turns = builtin_profile(NAMES, two_cpu_core), np.array([300.0, 500.0])
    found = calibrate.ModelCalibration(
        prepare(residual_model(), NAMES, two_cpu_core, profile), two_cpu_core, profile, lambda _: None
    )
    found.measure_operations()

    def measured(
        model: ov.Model, problem: PlacementProblem, alone: object, *args: Any
    ) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        return problem.evaluate(np.stack(args[2])).latency_us, in_turns, args[2]

    monkeypatch.setattr(calibrate, "measure_latencies", measured)
    found.measure_boundaries()
    alone = found._problem(found.times).evaluate(found.problem.singles)
    np.testing.assert_allclose(alone.latency_us, in_turns, rtol=0.02)
    np.testing.assert_allclose([one.latency_us for one in found.times.values()], in_turns)


def test_a_split_that_a_plugin_refuses_costs_no_other(two_cpu_core: ov.Core, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = SlowMachine(monkeypatch, 0.5, 0.01)
    refused: list[bytes] = []

    class Timed(TimedModel):
        def __init__(self, *args: Any) -> None:
            if len(args) > 5 and not refused:
                refused.append(args[5])
                raise RuntimeError("unordered_map::at")
            super().__init__(*args)

    monkeypatch.setattr(scale_factors, "TimedModel", Timed)
    costs, *_ = calibrated(two_cpu_core, machine, 60)
    assert refused and costs.boundaries is not None


def test_a_model_that_memory_has_no_room_for_is_not_compiled(
    two_cpu_core: ov.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = builtin_profile(NAMES, two_cpu_core)
    analysis = prepare(residual_model(), NAMES, two_cpu_core, profile)
    monkeypatch.setattr(discovery, "free_bytes", lambda core, name: 1)
    with pytest.raises(RunError, match="CPU_A: there is not memory enough to compile the model"):
        calibrate.calibrate_prepared(analysis, two_cpu_core, profile)


def test_phases_share_what_was_compiled(two_cpu_core: ov.Core, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = SlowMachine(monkeypatch, 0.5, 0.01)
    profile = builtin_profile(NAMES, two_cpu_core)
    analysis = prepare(residual_model(), NAMES, two_cpu_core, profile)
    compiled, counted = calibrate.compiled_models(analysis, two_cpu_core), list[int]()
    for _ in range(2):
        before = machine.compilations
        _, times = calibrate.calibrate_prepared(
            analysis, two_cpu_core, profile, deadline=Deadline(30, machine.now), compiled=compiled
        )
        # Each device alone and six splits are there the second time; counters have counted too much. Devices are equal,
        # so that operations of the first count for both.
        counted.append(machine.compilations - before - (times[NAMES[0]].copies - 1))
    assert counted == [len(NAMES) + 1 + 6, 1]


def test_counters_are_of_a_copy_s_last_use(two_cpu_core: ov.Core, monkeypatch: pytest.MonkeyPatch) -> None:
    model, us, real_run = residual_model(), list[float](), SingleRequest.run
    normalize.normalize(model)

    def run(request: SingleRequest, limit: float = math.inf) -> float:
        us.append(takes)
        return real_run(request, limit)

    monkeypatch.setattr(SingleRequest, "run", run)
    monkeypatch.setattr(Counters, "_read", lambda _: {(0, "node"): sum(us) / len(us)})  # of all that the copy ran
    compiled, (inputs,) = CompiledModels(two_cpu_core).get(model, "CPU_A", counters=True), timed_inputs(model)
    for takes in (100.0, 300.0):
        counters = Counters(compiled, inputs)
        for _ in range(5):
            counters.run()
        assert counters.us() == {(0, "node"): pytest.approx(takes)}


def test_a_device_that_was_not_counted_is_divided_as_another_of_its_kind(two_cpu_core: ov.Core) -> None:
    profile = builtin_profile(NAMES, two_cpu_core)
    analysis = prepare(residual_model(), NAMES, two_cpu_core, profile)
    found = calibrate.ModelCalibration(analysis, two_cpu_core, profile, lambda _: None)
    found.measure_operations()
    first, second = (found.times[name] for name in NAMES)
    found.alone = {NAMES[0]: first, NAMES[1]: replace(second, us=np.ones_like(second.us), copies=0)}
    alike = found._as_alike(NAMES[1], found.alone[NAMES[1]])
    assert (alike.device, alike.latency_us, alike.copies) == (NAMES[1], second.latency_us, first.copies)
    np.testing.assert_allclose(alike.us / alike.us.sum(), first.us / first.us.sum(), rtol=1e-6)
    found.alone[NAMES[0]] = replace(first, copies=0)
    assert found._as_alike(NAMES[1], found.alone[NAMES[1]]) is found.alone[NAMES[1]]


@pytest.mark.parametrize("layers", [4, 8])
def test_enough_splits_of_decoders_tear_nothing(
    layers: int, two_cpu_core: ov.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = build_problem(stateful_decoder(layers), DeviceSet(NAMES), core=two_cpu_core)
    monkeypatch.setattr(PlacementProblem, "repair", None)  # which takes half a second of each of larger ones
    found = scale_factors.draw(problem)
    assert len(found) == 6 and all(len(np.unique(split)) == 2 for split in found)
    assert (problem.evaluate(np.stack(found)).infeasible == 0).all()


def test_without_a_budget_calibration_is_as_thorough_as_ever(
    two_cpu_core: ov.Core, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    machine = SlowMachine(monkeypatch, 0.5, 0.85)
    _, times, told = calibrated(two_cpu_core, machine, math.inf)
    assert all(found.copies >= 3 for found in times.values())
    assert machine.inferences > 200 and machine.time > 180
    assert not recwarn and not any("left" in text for text in told)


def test_what_there_was_no_time_for_comes_from_the_profile_with_a_warning(
    two_cpu_core: ov.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = SlowMachine(monkeypatch, 0.5, 5.0)
    with pytest.warns(UserWarning, match="no time or memory to measure single operations on CPU_A, CPU_B") as warned:
        costs, times, _ = calibrated(two_cpu_core, machine, 30)
    told = str(warned[0].message)
    assert "(the whole model was measured there, and its time is divided among them as the profile says)" in told
    assert "nor what submodels and transfers cost (that is the profile's)" in told
    assert machine.time <= 30 and costs.boundaries is None
    assert {name: found.copies for name, found in times.items()} == dict.fromkeys(NAMES, 0)
    # The latency of the whole model is measured and divided as the profile says, which tells of fusions, too.
    profile = builtin_profile(NAMES, two_cpu_core)
    problem = build_problem(residual_model(), DeviceSet(NAMES), core=two_cpu_core, profile=profile, costs=costs)
    usual = build_problem(residual_model(), DeviceSet(NAMES), core=two_cpu_core, profile=profile)
    np.testing.assert_array_equal(problem.fusions[0], usual.fusions[0])
    np.testing.assert_array_equal(problem.transfer_us, usual.transfer_us)
    assert problem.node_us.sum(axis=0) == pytest.approx([5e6, 5e6], rel=0.01)


def test_a_model_that_memory_holds_once_is_measured_as_a_whole(
    two_cpu_core: ov.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = SlowMachine(monkeypatch, 0.5, 0.01)
    model = residual_model()
    size = int(ComputationGraph.from_model(model).weight_bytes.sum())
    monkeypatch.setattr(discovery, "free_bytes", lambda core, name: 2 * size)
    with pytest.warns(UserWarning, match="no time or memory to measure single operations on CPU_A, CPU_B"):
        costs, times, _ = calibrated(two_cpu_core, machine, math.inf)
    assert machine.compilations == 2
    assert costs.boundaries is None and {found.copies for found in times.values()} == {0}


def test_where_nothing_is_measured_in_time_it_is_an_error_in_one_line(
    two_cpu_core: ov.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = SlowMachine(monkeypatch, 0.5, 60.0)
    with pytest.raises(RunError, match="the time is too short to run the model on any device"):
        calibrated(two_cpu_core, machine, 30)
    assert machine.time <= 31


def test_an_inference_is_cancelled_at_its_limit(two_cpu_core: ov.Core) -> None:
    request = SingleRequest(two_cpu_core.compile_model(slow_model(), "CPU_A"), timed_inputs(slow_model())[0])
    took = request.run()
    with pytest.raises(OutOfTime):
        request.run(took / 10)
    assert request.run() > 0  # and it can run again


def slow_model(size: int = 1200, layers: int = 10) -> ov.Model:
    """A chain of large matrix products: about 0.3 s per inference on one core."""
    weights = op.constant(np.random.default_rng(0).standard_normal((size, size)).astype(np.float32) / size)
    x = op.parameter([size, size], np.float32, name="x")
    node = x
    for layer in range(layers):
        node = op.relu(op.matmul(node, op.add(weights, op.constant(np.float32(layer))), False, False))
    return ov.Model([op.result(node)], [x], "slow")


def test_graph_hash_ignores_names_and_sees_shapes(two_cpu_core: ov.Core) -> None:
    one, other = residual_model(), residual_model()
    for node in other.get_ops():
        node.set_friendly_name(f"renamed_{node.get_friendly_name()}")
    hashes = [graph_hash(ComputationGraph.from_model(model)) for model in (one, other, residual_model(side=16))]
    assert hashes[0] == hashes[1] != hashes[2]


def test_identity_tells_apart_how_many_cores_a_cpu_has(monkeypatch: pytest.MonkeyPatch, two_cpu_core: ov.Core) -> None:
    monkeypatch.setattr(cpu, "usable_cores", lambda: 8)
    before = {name: identity(two_cpu_core, name) for name in ("CPU", "CPU_A", "GPU")}
    monkeypatch.setattr(cpu, "usable_cores", lambda: 4)
    after = {name: identity(two_cpu_core, name) for name in before}
    assert [after[name] == before[name] for name in before] == [False, False, True]
    assert identity(two_cpu_core, "CPU") == after["CPU"]


def test_identity_tells_properties_apart(monkeypatch: pytest.MonkeyPatch, two_cpu_core: ov.Core) -> None:
    before = identity(two_cpu_core, "CPU_A")
    assert before["openvino"] == ov.__version__
    assert before["properties"]["INFERENCE_PRECISION_HINT"] == "f32"
    monkeypatch.setenv(virtual.VIRTUAL_DEVICES_VARIABLE, "CPU_A:INFERENCE_NUM_THREADS=2,INFERENCE_PRECISION_HINT=f32")
    core = virtual.new_core()
    assert identity(core, "CPU_A") != before


def stored(**changes: object) -> str:
    entry = {"identity": {}, "measured": "", "node_us": [1.0], "fused_with": [-1], "torn_us": [0.0]}
    return json.dumps({"version": 1, "graph": "x", "devices": {"CPU_A": {**entry, **changes}}})


def far_apart() -> dict[str, object]:
    return {"names": ["CPU_A"], "submodel_us": [1e300], "transfer_us": [[0.0]], "transfer_us_per_byte": [[0.0]]}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        stored(fused_with=[5]),
        stored(node_us=[-1.0]),
        stored(node_us=[1.0, 2.0]),
        stored(torn_us=["much"]),
        stored(node_us=[1e300]),
        stored(torn_us=[math.inf]),
        json.dumps({**json.loads(stored()), "borders": far_apart()}),
        '{"version": 7, "graph": "x", "devices": {}}',
    ],
)
def test_files_that_hold_no_costs_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "model.costs.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"model\.costs\.json"):
        ModelCosts.load(path)


@pytest.mark.parametrize("text", ["{", '{"version": 7, "graph": "x", "devices": {}}', None])
def test_a_costs_file_beside_the_model_that_cannot_be_used_is_a_warning(tmp_path: Path, text: str | None) -> None:
    """Nobody asked for it; a profile that was asked for stays an error."""
    source, beside = tmp_path / "model.xml", tmp_path / "model.costs.json"
    ov.save_model(residual_model(), source)
    if text is None:
        beside.mkdir()
    else:
        beside.write_text(text)
    words = ("place", source, "-d", HETERO, "-o", tmp_path / "placed.xml", "--no-measure")
    done = run(*words, "--policy", "none")
    assert re.search(r"warning: measured costs are not used: .*model\.costs\.json", done.stderr)
    assert (tmp_path / "placed.xml").exists() and "costs: measured" not in done.stdout
    assert_one_error_line(run(*words, "--profile", tmp_path / "none.json"), "cannot read profile")


def test_absent_device_is_refused(tmp_path: Path) -> None:
    done = run("calibrate", "-d", "HETERO:GPU,CPU_A", "-o", tmp_path / "profile.json")
    assert_one_error_line(done, 'device "GPU" is not at hand')
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("output", "message"),
    [("a.xml/profile.json", "profile.json"), ("profile.xml", "must end in .json"), ("a.costs.json", "written twice")],
)
def test_outputs_that_cannot_be_are_refused_at_once(tmp_path: Path, output: str, message: str) -> None:
    model = tmp_path / "a.xml"
    model.write_text("")
    assert_one_error_line(run("calibrate", "-d", HETERO, "-o", tmp_path / output, "-m", model), message)
    assert list(tmp_path.iterdir()) == [model]
