"""Mixtures of experts: recognised, kept together, priced by what runs, placed where people place them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

from ov_hsdag.costs import cost_model
from ov_hsdag.costs.experts import ChosenAlone, fuses_experts
from ov_hsdag.costs.profile import Profile, load_builtin
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.explaining.explain import explain
from ov_hsdag.model.experts import experts
from ov_hsdag.model.graph import ComputationGraph
from ov_hsdag.model.layer_lengths import _repeat_by_constants, _reshape_by_constants
from ov_hsdag.model.normalize import normalize
from ov_hsdag.model.workload import Workload
from ov_hsdag.placers.experts import ExpertsApart
from ov_hsdag.placing.candidates import find_candidates
from ov_hsdag.placing.memory_fit import fit
from ov_hsdag.placing.place import place
from ov_hsdag.problem.experts_away import experts_away, fewest_away
from ov_hsdag.problem.pricing import Session, WorkloadProblem, prepare, resolve_profile
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import opset13 as ops
from tests import legality_oracle
from tests.decoders import EXACT, compiled, decoder_of_experts, generate

DEVICES = DeviceSet.parse("HETERO:CPU_A,CPU_B")
LAYERS, ALL, CHOSEN = 3, 8, 2
WORKLOAD = Workload.parse("prompt=16,generate=16")


def problem_of(model: ov.Model, core: ov.Core) -> WorkloadProblem:
    profile, phases = resolve_profile(None, DEVICES.names, core), WORKLOAD.phases(model)
    analysis = prepare(model, DEVICES.names, core, profile, shapes=phases[-1].shapes)
    return Session(core, DEVICES, profile).price(analysis, "latency", phases=phases)


def away(problem: PlacementProblem, *layers: int) -> NDArray[np.uint8]:
    """The experts of some layers on the second device, all else on the first."""
    placement = problem.single(0)
    blocks = experts(problem.graph)
    placement[[problem.groups[blocks[layer].sum] for layer in layers]] = 1
    return placement


def executed(compiled: ov.CompiledModel) -> Counter[str]:
    return Counter(node.get_rt_info()["layerType"].astype(str) for node in compiled.get_runtime_model().get_ops())


@pytest.mark.slow
@pytest.mark.parametrize("common", [0, 32], ids=["alone", "shared expert"])
def test_experts_apart_from_attention_compute_the_same_and_stay_fused(two_cpu_core: ov.Core, common: int) -> None:
    plain = two_cpu_core.compile_model(decoder_of_experts(LAYERS, common=common), "CPU_A", EXACT)
    expected, fused = generate(plain), executed(plain)["GatherMatmul"]
    assert fused == 3 * LAYERS
    model = decoder_of_experts(LAYERS, common=common)
    problem = problem_of(model, two_cpu_core).problem
    for layers in ((0,), (LAYERS - 1,), (0, 1), tuple(range(LAYERS))):
        placement = away(problem, *layers)
        assert not problem.evaluate(placement).infeasible[0]
        split = compiled(two_cpu_core, model, problem, placement)
        assert split.get_property("HETERO_NUMBER_OF_SUBMODELS") == problem.summary(placement)["submodels"]
        assert executed(split)["GatherMatmul"] == fused
        for own, other in zip(generate(split), expected, strict=True):
            np.testing.assert_allclose(own, other, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [8, 4])
def test_compressed_experts_stay_fused(two_cpu_core: ov.Core, bits: int) -> None:
    nncf = pytest.importorskip("nncf")
    adjusted = nncf.AdvancedCompressionParameters(group_size_fallback_mode=nncf.GroupSizeFallbackMode.ADJUST)
    groups = {"group_size": 32, "all_layers": True, "advanced_parameters": adjusted} if bits == 4 else {}
    mode = nncf.CompressWeightsMode.INT4_SYM if bits == 4 else nncf.CompressWeightsMode.INT8_ASYM
    model = nncf.compress_weights(decoder_of_experts(2, inner=64, size=16), mode=mode, **groups)
    plain = two_cpu_core.compile_model(model.clone(), "CPU_A", EXACT)
    problem = problem_of(model, two_cpu_core).problem
    graph = problem.graph
    block = experts(graph)[0]
    stored = [node for node in block.weights(graph) if graph.weight_bytes[node]]
    read = sum(ChosenAlone.of(graph).graph.output_bytes[graph.output_ptr[stored]])
    assert read == pytest.approx(graph.weight_bytes[stored].sum() * CHOSEN / ALL)
    split = compiled(two_cpu_core, model, problem, away(problem, 0))
    assert executed(split)["GatherMatmul"] == executed(plain)["GatherMatmul"] == 6
    for own, other in zip(generate(split), generate(plain), strict=True):
        np.testing.assert_allclose(own, other, atol=1e-4)


@pytest.mark.slow
def test_random_placements_cut_no_block(two_cpu_core: ov.Core) -> None:
    plain = two_cpu_core.compile_model(decoder_of_experts(LAYERS), "CPU_A", EXACT)
    model = decoder_of_experts(LAYERS)
    problem = problem_of(model, two_cpu_core).problem
    for placement in problem.random(np.random.default_rng(0), 4):
        split = compiled(two_cpu_core, model, problem, placement)
        assert executed(split)["GatherMatmul"] == 3 * LAYERS
        for own, other in zip(generate(split), generate(plain), strict=True):
            np.testing.assert_allclose(own, other, atol=1e-4)


def test_normalizing_again_keeps_layers_apart(two_cpu_core: ov.Core) -> None:
    """OpenVINO's transformations take sizes of other layers again, as they are equal."""
    model = decoder_of_experts(LAYERS, common=16)
    first = problem_of(model, two_cpu_core).problem
    again = problem_of(model, two_cpu_core).problem
    for problem in (first, again):
        assert not problem.evaluate(away(problem, *range(LAYERS))).infeasible[0]
    computing = {"MatMul", "ScaledDotProductAttention", "ReadValue", "Add", "Multiply", "ReduceSum", "Reshape"}
    names = [
        {name for name, kind in zip(one.graph.names, one.graph.types, strict=True) if kind in computing}
        for one in (first, again)
    ]
    assert names[0] == names[1]


def test_a_block_is_its_router_its_experts_and_their_sum() -> None:
    graph = normalize(decoder_of_experts(LAYERS))
    found = experts(graph)
    assert [(block.all, block.chosen) for block in found] == [(ALL, CHOSEN)] * LAYERS
    for block in found:
        kinds = Counter(graph.types[node] for node in block.nodes)
        assert kinds["MatMul"] == 4  # with the router's
        assert kinds["TopK"] == kinds["Tile"] == kinds["Softmax"] == kinds["ScatterElementsUpdate"] == 1
        assert len(set(graph.legality.groups[block.nodes])) == 1
    assert len({int(graph.legality.groups[block.sum]) for block in found}) == LAYERS


def test_a_swish_that_plugins_do_not_fuse_makes_no_block(two_cpu_core: ov.Core) -> None:
    model = decoder_of_experts(LAYERS)
    for node in [one for one in model.get_ops() if one.get_type_name() == "Sigmoid"]:
        twice = ops.swish(node.input_value(0), np.float32(2))  # with beta, as in blocks of two products only
        (product,) = (port.get_node() for port in node.output(0).get_target_inputs())
        for port in product.output(0).get_target_inputs():
            port.replace_source_output(twice.output(0))
    assert executed(two_cpu_core.compile_model(model, "CPU_A"))["GatherMatmul"] == 0 == len(experts(normalize(model)))


def test_a_decoder_without_experts_has_no_blocks() -> None:
    assert not experts(normalize(decoder_of_experts(1, experts=0)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_blocks_are_those_of_the_oracle(seed: int) -> None:
    """Also where an operation of a block is another one, or a tensor has another rank."""
    graph = ComputationGraph.from_model(decoder_of_experts(2, common=16))
    random = np.random.default_rng(seed)
    inside = np.concatenate([block.nodes for block in experts(graph)])
    assert len(inside) > 40
    types, ranks = list(graph.types), graph.output_ranks.copy()
    for node in random.choice(inside, seed % 3, replace=False):
        types[node] = str(random.choice(["Tanh", "Relu", "Tile", "Multiply", "Convolution", "Reshape", "MatMul"]))
    if seed % 4 == 3:
        ranks[random.integers(len(ranks), size=30)] = 2
    changed = replace(graph, types=tuple(types), output_ranks=ranks)
    native = [(tile, scatter, end, nodes.tolist()) for tile, scatter, end, nodes in changed.legality.experts]
    assert native == legality_oracle.experts(changed)
    assert set(map(tuple, changed.legality.colocated.tolist())) == set(legality_oracle.colocation_constraints(changed))
    assert list(map(tuple, changed.legality.same_submodel.tolist())) == (
        legality_oracle.same_submodel_constraints(changed)
    )


# --- prices


def cpu() -> Profile:
    return Profile({name: replace(load_builtin("cpu_core"), name=name) for name in DEVICES.names})


def work(graph: ComputationGraph, block: Any, flops: NDArray[np.float64]) -> float:
    return float(sum(flops[node] for node in block.nodes if graph.types[node] == "MatMul"))


def test_tokens_are_priced_by_the_experts_that_they_choose() -> None:
    model = decoder_of_experts(LAYERS, experts=16, inner=64)
    phases = {phase.name: phase.shapes for phase in WORKLOAD.phases(model)}
    graph = normalize(model, phases["token"])
    block = experts(graph)[0]
    assert block.tokens == 1
    assert block.distinct == pytest.approx(2)
    alone = ChosenAlone.of(graph).graph
    hidden, inner = 32, 64
    assert work(graph, block, graph.flops) == 2 * hidden * (16 + 16 * 3 * inner)
    assert work(graph, block, alone.flops) == 2 * hidden * (16 + 2 * 3 * inner)
    read = sum(alone.output_bytes[graph.output_ptr[node]] for node in block.weights(graph))
    assert read == 2 * 3 * inner * hidden * 4
    np.testing.assert_array_equal(alone.weight_bytes, graph.weight_bytes)  # memory holds all
    prompt = experts(graph.resized(model, phases["prompt"]))[0]
    assert prompt.tokens == 16
    assert prompt.distinct == pytest.approx(16 * (1 - (1 - 2 / 16) ** 16))


def test_plugins_that_do_not_fuse_compute_all_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = normalize(decoder_of_experts(LAYERS, experts=64, inner=256))
    fused = cost_model.node_us(cpu(), graph, DEVICES.names).sum(axis=0)
    monkeypatch.setattr("ov_hsdag.costs.experts._EXPERTS_SINCE", (9999, 1))
    unfused = cost_model.node_us(cpu(), graph, DEVICES.names).sum(axis=0)
    assert (unfused > 3 * fused).all()
    gpu, integrated = (Profile({"GPU": load_builtin(name)}) for name in ("arc_a770", "arc_meteor_lake"))
    monkeypatch.undo()
    assert fuses_experts(gpu, graph, ["GPU"]) == [False]  # its plugin fuses compressed weights alone
    compressed = replace(graph, output_types=tuple("u8" if kind == "f32" else kind for kind in graph.output_types))
    assert fuses_experts(gpu, compressed, ["GPU"]) == [True]
    assert fuses_experts(integrated, compressed, ["GPU"]) == [False]  # it has no matrix engines


def test_tensors_for_all_experts_take_no_memory_where_they_are_not_computed(two_cpu_core: ov.Core) -> None:
    model = decoder_of_experts(LAYERS, experts=32)
    found = problem_of(model, two_cpu_core).problem
    graph = found.graph
    assert found.live_bytes is not None
    for block in experts(graph):
        for node in block.products(graph):
            output = graph.output_ptr[node]
            copies = found.live_bytes[output] / graph.output_bytes[output]
            assert copies == pytest.approx(1 / 32 if graph.output_node[output] == block.tile else 2 / 32, rel=0.6)


# --- placing


def placed(core: ov.Core, **options: Any) -> tuple[ov.Model, Any]:
    model = decoder_of_experts(LAYERS)
    return model, place(model, DEVICES.hetero, core=core, policy="none", workload=WORKLOAD, **options)


def homes(model: ov.Model, placement: Any) -> list[set[str]]:
    """Devices of the products of each block."""
    graph = ComputationGraph.from_model(model)
    return [{placement.affinity[graph.names[node]] for node in block.products(graph)} for block in experts(graph)]


@pytest.mark.parametrize(("asked", "away"), [("CPU_B", 3), ("cpu_b:2", 2), ("CPU_B:7", 3)])
@pytest.mark.filterwarnings("ignore:experts are in")
def test_experts_go_where_they_are_asked_to_be(two_cpu_core: ov.Core, asked: str, away: int) -> None:
    model, placement = placed(two_cpu_core, experts=asked)
    assert placement.chosen == "experts"
    assert homes(model, placement) == [{"CPU_B"}] * away + [{"CPU_A"}] * (LAYERS - away)
    graph = ComputationGraph.from_model(model)
    attention = [name for name, kind in zip(graph.names, graph.types, strict=True) if kind.startswith("ScaledDot")]
    assert {placement.affinity[name] for name in attention} == {"CPU_A"}


def test_more_layers_than_there_are_is_told(two_cpu_core: ov.Core) -> None:
    with pytest.warns(UserWarning, match=rf"experts are in {LAYERS} layers, not in 9: those of all layers move"):
        placed(two_cpu_core, experts="CPU_B:9")


@pytest.mark.parametrize("asked", ["GPU", "CPU_B:", "CPU_B:x", "CPU_B:-1", "CPU_B:0", "", "CPU_BB"])
def test_what_cannot_be_read_ends_in_one_line(two_cpu_core: ov.Core, asked: str) -> None:
    with pytest.raises(UserError, match="cannot read where experts are"):
        placed(two_cpu_core, experts=asked)


def test_a_model_without_experts_and_two_ways_are_refused(two_cpu_core: ov.Core) -> None:
    with pytest.raises(UserError, match="no experts"):
        place(decoder_of_experts(1, experts=0), DEVICES.hetero, core=two_cpu_core, experts="CPU_B")
    with pytest.raises(UserError, match="in two ways"):
        placed(two_cpu_core, experts="CPU_B", affinity={"x": "CPU_A"})


def test_as_few_layers_as_fit_are_a_candidate(two_cpu_core: ov.Core) -> None:
    model = decoder_of_experts(LAYERS, experts=32)
    problem = problem_of(model, two_cpu_core).problem
    singles = problem.evaluate(problem.single(0)).memory_bytes[0]
    weights = [sum(problem.graph.weight_bytes[one.weights(problem.graph)]) for one in experts(problem.graph)]
    tight = problem.with_memory({"CPU_A": int(singles[0] - 1.5 * weights[0]), "CPU_B": int(singles[0])})
    placement = ExpertsApart().place(tight)
    np.testing.assert_array_equal(placement, away(problem, 0, 1))
    assert not tight.evaluate(placement).infeasible[0]
    assert "experts" in [one.name for one in find_candidates(tight, ())]


@pytest.mark.parametrize(("experts", "inner"), [(32, 32), (8, 4)])  # of the small ones, memory grows
def test_the_fewest_layers_are_those_of_trying_all(two_cpu_core: ov.Core, experts: int, inner: int) -> None:
    problem = problem_of(decoder_of_experts(6, experts=experts, inner=inner), two_cpu_core).problem
    rows = experts_away(problem)
    held = problem.evaluate(rows).memory_bytes
    found = set()
    for first in (0.0, 0.3, 0.5, 0.8, 1.0, 1.2):
        for last in (0.0, 0.1, 0.6, 1.0):
            limits = {"CPU_A": int(first * held[0, 0]), "CPU_B": int(last * held[0, 0])}
            tight = problem.with_memory(limits)
            feasible = np.flatnonzero(tight.evaluate(rows).infeasible == 0)
            fewest = fewest_away(tight, rows)
            assert fewest == (feasible[0] if len(feasible) else None), limits
            found.add(fewest)
    assert len(found) > (3 if experts > 8 else 1) and None in found
    assert fewest_away(problem, rows[:0]) is None
    least = int(held.sum(axis=1).min())  # of all devices together, which may share a memory
    assert fewest_away(problem, rows, lambda bytes_: bool(bytes_.sum() <= least)) == held.sum(axis=1).argmin()
    assert fewest_away(problem, rows, lambda bytes_: bool(bytes_.sum() < least)) is None


@pytest.mark.slow
def test_a_model_of_101_mib_is_placed_within_60_mib_on_each_device(two_cpu_core: ov.Core) -> None:
    def model() -> ov.Model:
        return decoder_of_experts(4, experts=32, inner=256, heads=8, size=32)

    memory = {"CPU_A": "60MiB", "CPU_B": "60MiB"}
    options = {"core": two_cpu_core, "memory": memory, "policy": "none"}
    placement = place(model(), DEVICES.hetero, workload="prompt=128,generate=128", **options)
    held = placement.predicted["memory_bytes"]
    assert sum(held.values()) > 100 * 2**20
    assert max(held.values()) <= 60 * 2**20
    found = fit(model(), DEVICES.hetero, context=256, memory=memory, core=two_cpu_core)
    assert found.split_fits and found.single is None
    assert found.experts is not None
    assert (found.experts.source, found.experts.target, found.experts.layers, found.experts.all) == (
        "CPU_A", "CPU_B", 2, 4
    )  # fmt: skip


def test_explaining_names_the_experts(two_cpu_core: ov.Core) -> None:
    model, _ = placed(two_cpu_core, experts="CPU_B:2")
    summary = explain(model, core=two_cpu_core, workload=WORKLOAD).summary()
    blocks = summary["experts"]
    assert summary["feasible"]
    assert [(one["chosen"], one["all"], one["device"]) for one in blocks] == [
        (CHOSEN, ALL, "CPU_B"), (CHOSEN, ALL, "CPU_B"), (CHOSEN, ALL, "CPU_A"),
    ]  # fmt: skip
    assert all(one["weights_bytes"] >= ALL * 3 * 32 * 32 * 4 for one in blocks)


def test_sizes_that_do_not_follow_from_the_tensor_stay_as_they_are(two_cpu_core: ov.Core) -> None:
    """Rows split into a batch and what is left, and a mask that is repeated for a batch."""
    tokens, mask = ops.parameter([-1, -1], np.int64, name="tokens"), ops.parameter([-1, 1, 8], np.float32, name="mask")
    rows = ops.parameter([-1, 8], np.float32, name="rows")
    batch = ops.gather(ops.shape_of(tokens), ops.constant([0]), ops.constant(0))
    left, width = ops.constant([-1]), ops.constant([8])
    split = ops.reshape(rows, ops.concat([batch, left, width], 0), False)
    sizes = ops.concat([batch, ops.constant([1]), width], 0)
    repeated = ops.broadcast(mask, sizes)
    model = ov.Model([ops.result(split), ops.result(repeated)], [tokens, mask, rows], "open_sizes")
    assert not _reshape_by_constants(split)
    assert not _repeat_by_constants(repeated)
    given = [np.zeros((2, 3), np.int64), np.ones((1, 1, 8), np.float32), np.ones((6, 8), np.float32)]
    found = two_cpu_core.compile_model(model, "CPU_A")(given)
    assert [array.shape for array in found.values()] == [(2, 3, 8), (2, 1, 8)]
