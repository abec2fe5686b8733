from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import openvino as ov
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from openvino.preprocess import PrePostProcessor

from ov_hsdag import _native
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.model import affinities, colocation, complete, normalize
from ov_hsdag.model.graph import ComputationGraph
from ov_hsdag.model.lengths import part_lengths
from ov_hsdag.model.nodes import Nodes
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.utils.lazy import opset13 as ops
from tests import legality_oracle
from tests.graphs import (
    attention,
    random_graph,
    random_inputs,
    random_model,
    random_typed_graph,
    set_affinities,
    unflattening_model,
)


def groups_by_name(model: ov.Model) -> dict[str, int]:
    graph = ComputationGraph.from_model(model)
    return dict(zip(graph.names, graph.legality.groups.tolist(), strict=True))


def dynamic_reshape_model(batch: ov.Dimension | int = -1) -> ov.Model:
    """x → relu → Reshape to [2 · batch, -1], whose pattern is computed from the shape of x."""
    x = ops.parameter(ov.PartialShape([batch, 2, 4]), ov.Type.f32, name="x")
    relu = ops.relu(x, name="relu")
    rows = ops.gather(ops.shape_of(x, name="shape"), ops.constant([0]), ops.constant(0), name="batch")
    rows = ops.multiply(rows, ops.constant(np.array([2])), name="rows")
    pattern = ops.concat([rows, ops.constant(np.array([-1]))], 0, name="pattern")
    first = ops.reshape(relu, pattern, False, name="first")
    second = ops.reshape(ops.tanh(relu, name="tanh"), pattern, False, name="second")
    return ov.Model([ops.result(first), ops.result(second)], [x], "dynamic")


def test_dimensions_that_come_from_values_are_not_relied_on(two_cpu_core: ov.Core) -> None:
    model = unflattening_model()
    graph = ComputationGraph.from_model(model)
    assert str(model.get_ordered_ops()[graph.index("exp")].output(0).partial_shape) == "[?,?,?,8]"
    movable = {name: bool(graph.output_movable[graph.output_ptr[graph.index(name)]]) for name in graph.names[:-1]}
    assert not movable["back"] and not movable["exp"]
    assert all(movable[name] for name in ("x", "first", "tanh", "sigmoid", "second", "relu"))
    normalize.normalize(model)
    graph = ComputationGraph.from_model(model)
    groups = graph.legality.groups
    assert groups[graph.index("back")] == groups[graph.index("exp")] == groups[graph.index("second")]
    assert groups[graph.index("first")] != groups[graph.index("sigmoid")] != groups[graph.index("second")]
    tokens = np.random.default_rng(0).normal(size=(2, 9, 3)).astype(np.float32)
    expected = two_cpu_core.compile_model(model, "CPU_A")(tokens)[0]
    for seed in range(6):
        devices = np.random.default_rng(seed).integers(0, 2, groups.max() + 1)[groups]
        set_affinities(model, [("CPU_A", "CPU_B")[device] for device in devices])
        actual = two_cpu_core.compile_model(model, "HETERO:CPU_A,CPU_B")(tokens)[0]
        np.testing.assert_allclose(actual, expected, rtol=1e-4)


def test_static_shapes_are_folded_though_a_converter_forbids_it() -> None:
    model = dynamic_reshape_model()
    model.reshape([3, 2, 4])
    for node in model.get_ops():
        node.get_rt_info()["can_be_folded"] = False
        if node.get_type_name() == "ShapeOf":
            node.get_rt_info()["DisableConstantFolding_0"] = ""
    normalize.normalize(model)
    assert "ShapeOf" not in {node.get_type_name() for node in model.get_ops()}


def test_shape_arithmetic_stays_with_its_consumer() -> None:
    model = dynamic_reshape_model(ov.Dimension(0, 8))
    graph = ComputationGraph.from_model(model)
    replicable = dict(zip(graph.names, graph.legality.replicable.tolist(), strict=True))
    assert all(replicable[name] for name in ("shape", "batch", "rows", "pattern"))
    assert not replicable["relu"] and not replicable["first"]


def test_an_open_length_stays_with_the_tensor_and_crosses_as_a_number() -> None:
    model = dynamic_reshape_model()
    graph = ComputationGraph.from_model(model)
    replicable = dict(zip(graph.names, graph.legality.replicable.tolist(), strict=True))
    assert replicable["pattern"]  # it has a known element besides
    assert not replicable["shape"] and not replicable["batch"] and not replicable["rows"]
    groups = groups_by_name(model)
    assert groups["x"] == groups["shape"] == groups["batch"]
    normalize.normalize(model)
    groups = groups_by_name(model)
    assert groups["rows"] not in (groups["first"], groups["second"])


def test_known_lengths_need_no_tensor() -> None:
    x = ops.parameter(ov.PartialShape([-1, 2, 4]), ov.Type.f32, name="x")
    both = ops.gather(ops.shape_of(x), ops.constant([0, 1]), ops.constant(0), name="both")
    pattern = ops.concat([both, ops.constant(np.array([-1]))], 0)
    model = ov.Model([ops.result(ops.reshape(ops.relu(x), pattern, False, name="first"))], [x], "lengths")
    part_lengths(Nodes(model))
    model.validate_nodes_and_infer_types()
    joined = next(node for node in model.get_ordered_ops() if node.get_friendly_name() == "both")
    assert joined.get_type_name() == "Concat"
    assert [value.get_node().get_type_name() for value in joined.input_values()] == ["Gather", "Constant"]
    assert str(model.outputs[0].partial_shape) == "[?,2,?]"


def test_shape_arithmetic_of_two_consumers_is_copied() -> None:
    model = dynamic_reshape_model()
    before = groups_by_name(model)
    assert before["first"] == before["second"]
    normalize.normalize(model)
    after = groups_by_name(model)
    assert after["first"] != after["second"]
    assert sum(node.get_type_name() == "Concat" for node in model.get_ordered_ops()) == 2


def shared_constant_model() -> ov.Model:
    x = ops.parameter([1, 4], ov.Type.f32, name="x")
    constant = ops.constant(np.arange(4, dtype=np.float32).reshape(1, 4), name="shared")
    first = ops.maximum(x, constant, name="first")
    second = ops.minimum(ops.tanh(first), constant, name="second")
    return ov.Model([ops.result(second)], [x], "shared")


def test_shared_constants_get_a_copy_for_each_consumer() -> None:
    model = shared_constant_model()
    normalize.normalize(model)
    groups = groups_by_name(model)
    constants = [node for node in model.get_ordered_ops() if node.get_type_name() == "Constant"]
    assert len(constants) == 2
    assert groups["first"] != groups["second"]
    np.testing.assert_array_equal(constants[0].data, constants[1].data)
    assert np.shares_memory(constants[0].data, constants[1].data)


def test_decompressed_weights_follow_their_consumer() -> None:
    x = ops.parameter([1, 4], ov.Type.f32, name="x")
    packed = ops.constant(np.ones((4, 4), np.int8), name="packed")
    scaled = ops.multiply(ops.convert(packed, ov.Type.f32, name="unpack"), ops.constant(np.float32(0.1)), name="scale")
    model = ov.Model(
        [ops.result(ops.matmul(ops.relu(x, name="relu"), scaled, False, False, name="matmul"))], [x], "int8"
    )
    groups = groups_by_name(model)
    assert groups["packed"] == groups["unpack"] == groups["scale"] == groups["matmul"] != groups["relu"]


def test_states_stay_together() -> None:
    x = ops.parameter([1, 4], ov.Type.f32, name="x")
    read = ops.read_value(ops.constant(np.zeros((1, 4), np.float32)), "memory", ov.Type.f32, [1, 4], name="read")
    total = ops.add(ops.relu(x, name="relu"), read, name="total")
    middle = ops.tanh(total, name="middle")
    assign = ops.assign(middle, "memory")
    model = ov.Model([ops.result(ops.sigmoid(middle, name="out"))], [assign], [x], "stateful")
    groups = groups_by_name(model)
    assert groups["read"] == groups[assign.get_friendly_name()]
    assert groups["read"] != groups["relu"]


def test_a_parameter_is_with_a_consumer_that_computes() -> None:
    x = ops.parameter([1, 4], ov.Type.f32, name="x")
    relu = ops.relu(x, name="relu")
    model = ov.Model([ops.result(x), ops.result(relu)], [x], "pass")
    groups = groups_by_name(model)
    assert groups["x"] == groups["relu"]


def test_tensors_of_unknown_rank_are_not_cut() -> None:
    x = ops.parameter(ov.PartialShape.dynamic(), ov.Type.f32, name="x")
    model = ov.Model([ops.result(ops.tanh(ops.relu(x, name="relu"), name="tanh"))], [x], "rank")
    groups = groups_by_name(model)
    assert groups["relu"] == groups["tanh"]


def test_names_become_unique_and_inputs_and_outputs_keep_theirs() -> None:
    x = ops.parameter([1, 4], ov.Type.f32, name="x")
    x.output(0).get_tensor().set_names({"tokens"})
    first = ops.relu(x, name="same")
    second = ops.tanh(first, name="same")
    second.output(0).get_tensor().set_names({"logits"})
    model = ov.Model([ops.result(second)], [x], "names")
    normalize.normalize(model)
    names = [node.get_friendly_name() for node in model.get_ordered_ops()]
    assert len(names) == len(set(names))
    assert model.inputs[0].get_names() == {"tokens"}
    assert model.outputs[0].get_names() == {"logits"}


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6))
def test_normalizing_keeps_what_a_model_computes(two_cpu_core: ov.Core, seed: int) -> None:
    model = random_model(seed)
    inputs = random_inputs(model)
    before = two_cpu_core.compile_model(model, "CPU_A")(inputs)
    outputs = len(model.outputs)
    normalize.normalize(model)
    after = two_cpu_core.compile_model(model, "CPU_A")(inputs)
    assert len(model.outputs) == outputs
    for port in range(outputs):
        np.testing.assert_allclose(after[port], before[port], rtol=1e-5, atol=1e-6)


def test_chains_merge_where_support_agrees() -> None:
    x = ops.parameter([1, 4], ov.Type.f32, name="x")
    model = ov.Model([ops.result(ops.tanh(ops.relu(x, name="relu"), name="tanh"))], [x], "chain")
    graph = ComputationGraph.from_model(model)
    groups = graph.legality.groups
    assert colocation.coarsen(graph, groups).max() == 0
    supported = np.ones((graph.nodes, 2), bool)
    supported[graph.index("tanh"), 1] = False
    coarse = colocation.coarsen(graph, groups, supported)
    assert coarse[graph.index("relu")] != coarse[graph.index("tanh")]


def known_everywhere(model: ov.Model, device_of: dict[str, str]) -> dict[str, str]:
    affinity = complete.complete(model, device_of, ["CPU_A", "CPU_B"])
    assert {node.get_friendly_name() for node in model.get_ordered_ops()} == set(affinity)
    groups = groups_by_name(model)
    homes: dict[int, set[str]] = {}
    for name, group in groups.items():
        homes.setdefault(group, set()).add(affinity[name])
    assert all(len(devices) == 1 for devices in homes.values())
    return affinity


def test_preprocessing_is_completed_and_runs(two_cpu_core: ov.Core) -> None:
    x = ops.parameter([1, 3, 8, 8], ov.Type.f32, name="x")
    weights = ops.constant(np.random.default_rng(0).normal(size=(4, 3, 3, 3)).astype(np.float32), name="weights")
    conv = ops.convolution(x, weights, [1, 1], [1, 1], [1, 1], [1, 1], name="conv")
    model = ov.Model([ops.result(ops.relu(conv, name="relu"))], [x], "image")
    process = PrePostProcessor(model)
    process.input().tensor().set_element_type(ov.Type.u8).set_layout(ov.Layout("NHWC"))
    process.input().preprocess().convert_element_type(ov.Type.f32).mean(1.0).scale(2.0)
    process.input().model().set_layout(ov.Layout("NCHW"))
    model = process.build()
    affinity = known_everywhere(model, {"conv": "CPU_B", "relu": "CPU_A"})
    set_affinities(model, [affinity[node.get_friendly_name()] for node in model.get_ordered_ops()])
    compiled = two_cpu_core.compile_model(model, "HETERO:CPU_A,CPU_B")
    assert set(compiled.get_property("EXECUTION_DEVICES")) == {"CPU_A", "CPU_B"}
    image = np.random.default_rng(1).integers(0, 255, (1, 8, 8, 3)).astype(np.uint8)
    expected = two_cpu_core.compile_model(model, "CPU_A")(image)
    np.testing.assert_allclose(compiled(image)[0], expected[0], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), known=st.floats(0, 1, allow_subnormal=False))
def test_partial_affinities_of_random_models_complete_and_run(two_cpu_core: ov.Core, seed: int, known: float) -> None:
    model = random_model(seed)
    normalize.unique_names(model)
    generator = np.random.default_rng(seed)
    given_devices = {
        node.get_friendly_name(): ("CPU_A", "CPU_B", "GONE")[generator.integers(0, 3)]
        for node in model.get_ordered_ops()
        if generator.random() < known
    }
    affinity = known_everywhere(model, given_devices)
    set_affinities(model, [affinity[node.get_friendly_name()] for node in model.get_ordered_ops()])
    inputs = random_inputs(model)
    expected = two_cpu_core.compile_model(model, "CPU_A")(inputs)
    actual = two_cpu_core.compile_model(model, "HETERO:CPU_A,CPU_B")(inputs)
    for port in range(len(model.outputs)):
        np.testing.assert_allclose(actual[port], expected[port], rtol=1e-4, atol=1e-5)


def masked_model() -> ov.Model:
    """Shape arithmetic, and feedback across devices: splitting cycles can part the arithmetic from its user."""
    x = ops.parameter(ov.PartialShape([-1, -1]), ov.Type.f32, name="x")
    base = ops.relu(x, name="base")
    away = ops.tanh(base, name="away")
    mixed = ops.add(base, away, name="mixed")
    pattern = ops.concat([ops.shape_of(base, name="shape"), ops.constant(np.array([1, 1]))], 0, name="pattern")
    grown = ops.broadcast(
        ops.reshape(mixed, ops.constant(np.array([0, 0, 1, 1])), True), pattern, broadcast_spec="BIDIRECTIONAL"
    )
    grown.set_friendly_name("grown")
    last = ops.sigmoid(grown, name="last")
    return ov.Model([ops.result(ops.exp(last, name="exp"))], [x], "masked")


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6))
def test_shape_arithmetic_survives_the_splitting_of_cycles(two_cpu_core: ov.Core, seed: int) -> None:
    model = masked_model()
    normalize.normalize(model)
    generator = np.random.default_rng(seed)
    names = [node.get_friendly_name() for node in model.get_ordered_ops()]
    affinity = known_everywhere(model, {name: ("CPU_A", "CPU_B")[generator.integers(0, 2)] for name in names})
    set_affinities(model, [affinity[node.get_friendly_name()] for node in model.get_ordered_ops()])
    data = np.ones((3, 2), np.float32)
    expected = two_cpu_core.compile_model(masked_model(), "CPU_A")(data)
    np.testing.assert_allclose(two_cpu_core.compile_model(model, "HETERO:CPU_A,CPU_B")(data)[0], expected[0], rtol=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        *("lstm-stateful", "llama-stateful", "gpt2-past"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("bert-dynamic", "t5-encoder-dynamic")),
    ],
)
def test_models_with_states_and_dynamic_shapes_run_anywhere(two_cpu_core: ov.Core, name: str) -> None:
    from research.zoo.catalog import ZOO
    from research.zoo.compare import TOLERANCE, infer, largest_difference

    model = ZOO[name].build()
    inputs = ZOO[name].inputs(0)
    expected = infer(two_cpu_core.compile_model(model.clone(), "CPU_A"), inputs)
    problem = build_problem(model, DeviceSet(("CPU_A", "CPU_B")), core=two_cpu_core)
    counts = []
    for placement in problem.random(np.random.default_rng(1), 2):
        placed = model.clone()
        affinities.set_affinities(placed, problem.affinity(placement))
        compiled = two_cpu_core.compile_model(placed, "HETERO:CPU_A,CPU_B")
        counts.append(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS"))
        assert counts[-1] == problem.evaluate(placement).submodels[0]
        assert largest_difference(expected, infer(compiled, inputs)) <= TOLERANCE
    assert max(counts) > 2


@pytest.mark.skipif(
    "BF16" not in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"), reason="the processor has no bf16"
)
@pytest.mark.parametrize("fused", [True, False])
def test_a_dynamic_encoder_runs_in_bf16_wherever_it_is_cut(two_cpu_core: ov.Core, fused: bool) -> None:
    first, model = attention(8, 4, fused), attention(8, 4, fused)
    model.get_parameters()[0].output(0).replace(first.get_results()[0].input_value(0))
    model = ov.Model(model.get_results(), first.get_parameters())
    model.reshape([-1, -1, 32])
    normalize.normalize(model)
    problem = build_problem(model, DeviceSet(("CPU_A", "CPU_B")), core=two_cpu_core)
    for cut in range(1, problem.group_count):
        for device in ("CPU_A", "CPU_B"):
            placement = (np.arange(problem.group_count) < cut) == (device == "CPU_B")
            placed = model.clone()
            affinities.set_affinities(placed, problem.affinity(placement.astype(np.uint8)))
            compiled = two_cpu_core.compile_model(placed, "HETERO:CPU_A,CPU_B", {"INFERENCE_PRECISION_HINT": "bf16"})
            request = compiled.create_infer_request()
            request.start_async(np.ones((1, 16, 32), np.float32))
            request.wait()


@pytest.mark.parametrize("fused", [True, False])
def test_attention_keeps_its_transposes(two_cpu_core: ov.Core, fused: bool) -> None:
    for tokens in (8, 4):  # more than heads, and as many
        model = attention(tokens, 4, fused)
        numbers = groups_by_name(model)
        assert numbers["attention"] == numbers["tokens first"]

    if fused and tuple(int(part) for part in ov.__version__.split(".")[:2]) < (2025, 4):
        return  # wrong where a Transpose before it is in another submodel, too (docs/reference/facts.md)
    data = np.random.default_rng(1).normal(size=(1, 4, 32)).astype(np.float32)
    expected = two_cpu_core.compile_model(model.clone(), "CPU_A")(data)[0]
    groups = ComputationGraph.from_model(model).legality.groups
    for seed in range(6):
        chosen = np.random.default_rng(seed).integers(0, 2, groups.max() + 1)[groups]
        placed = model.clone()
        set_affinities(placed, [("CPU_A", "CPU_B")[device] for device in chosen])
        outputs = two_cpu_core.compile_model(placed, "HETERO:CPU_A,CPU_B")(data)[0]
        assert np.abs(outputs - expected).max() < 1e-3 * np.abs(expected).max()


def cached(fused: bool) -> ov.Model:
    """Two layers of attention over keys and values that states keep, of which the first value is empty.

    With a mask: without one, the CPU plugin (2026.4) takes the scale for it where it fuses MatMul, Softmax, MatMul.
    """
    x = ops.parameter([-1, 2, -1, 16], ov.Type.f32, name="x")
    beams = ops.parameter([-1], ov.Type.i32, name="beam_idx")
    mask = ops.parameter([-1, 1, -1, -1], ov.Type.f32, name="mask")
    batch = ops.gather(ops.shape_of(x), np.array([0]), np.int64(0))
    sinks: list[ov.Node] = []

    def cache(new: ov.Node, name: str) -> ov.Node:
        empty = ops.broadcast(np.float32(0), ops.concat([batch, np.array([2, 0, 16])], 0))
        read = ops.gather(ops.read_value(empty, name, ov.Type.f32, [-1, 2, -1, 16]), beams, np.int64(0))
        joined = ops.concat([read, new], 2)
        sinks.append(ops.assign(joined, name))
        return joined

    hidden: ov.Node = x
    for layer in range(2):
        keys = cache(ops.multiply(hidden, np.float32(2)), f"keys.{layer}")
        values = cache(ops.tanh(hidden), f"values.{layer}")
        if fused:
            end = ops.scaled_dot_product_attention(hidden, keys, values, mask)
        else:
            scores = ops.multiply(ops.matmul(hidden, keys, False, True), np.float32(0.25))
            end = ops.matmul(ops.softmax(ops.add(scores, mask), -1), values, False, False)
        end.set_friendly_name(f"attention.{layer}")
        hidden = ops.add(hidden, ops.relu(end))
    return ov.Model([ops.result(hidden)], sinks, [x, mask, beams], "cached")


@pytest.mark.slow
@pytest.mark.parametrize("fused", [True, False])
def test_caches_stay_with_their_attention(two_cpu_core: ov.Core, fused: bool) -> None:
    graph = ComputationGraph.from_model(cached(fused))
    groups = graph.legality.groups
    assert groups.max() > 4
    for layer in range(2):
        names = [f"keys.{layer}", f"values.{layer}"]
        states = [node for node, variable in enumerate(graph.variables) if variable in names]
        assert len(states) == 4
        assert {groups[node] for node in states} == {groups[graph.names.index(f"attention.{layer}")]}

    def outputs(compiled: ov.CompiledModel) -> list[NDArray[np.float32]]:
        request, random = compiled.create_infer_request(), np.random.default_rng(0)
        return [
            request.infer(
                {
                    "x": random.normal(size=(1, 2, tokens, 16)).astype(np.float32),
                    "mask": random.normal(size=(1, 1, tokens, past + tokens)).astype(np.float32),
                    "beam_idx": np.zeros(1, np.int32),
                }
            )[0].copy()
            for past, tokens in ((0, 4), (4, 1), (5, 1))
        ]

    exact = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    expected = outputs(two_cpu_core.compile_model(cached(fused), "CPU_A", exact))
    assert [one.shape[2] for one in expected] == [4, 1, 1]
    properties = {"DEVICE_PROPERTIES": {"CPU_A": exact, "CPU_B": exact}}
    for seed in range(8):
        model = cached(fused)
        problem = build_problem(model, DeviceSet(("CPU_A", "CPU_B")), core=two_cpu_core)
        placement = problem.random(np.random.default_rng(seed), 1)[0]
        placed = model.clone()
        affinity = problem.affinity(placement)
        set_affinities(placed, [affinity[node.get_friendly_name()] for node in placed.get_ordered_ops()])
        for own, other in zip(
            outputs(two_cpu_core.compile_model(placed, "HETERO:CPU_A,CPU_B", properties)), expected, strict=True
        ):
            np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-5)


# --- the native core's rules against the same rules as plain Python


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), nodes=st.integers(2, 40))
def test_constraints_are_those_of_the_oracle(seed: int, nodes: int) -> None:
    graph = random_typed_graph(np.random.default_rng(seed), nodes)
    assert graph.legality.constant.tolist() == legality_oracle.constant_nodes(graph)
    assert graph.legality.replicable.tolist() == legality_oracle.replicable_producers(graph)
    pairs = sorted(map(tuple, graph.legality.colocated.tolist()))
    assert set(pairs) == set(legality_oracle.colocation_constraints(graph))
    together = list(map(tuple, graph.legality.same_submodel.tolist()))
    assert together == legality_oracle.same_submodel_constraints(graph)  # repair begins with the first
    assert graph.legality.hosts.tolist() == legality_oracle.hosts(graph)
    assert graph.legality.groups.tolist() == legality_oracle.colocation(graph)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), nodes=st.integers(2, 40), devices=st.integers(1, 4), rule=st.integers(0, 1))
def test_completion_is_that_of_the_oracle(seed: int, nodes: int, devices: int, rule: int) -> None:
    generator = np.random.default_rng(seed)
    graph = random_typed_graph(generator, nodes)
    known = generator.integers(-1, devices, nodes).astype(np.int32)
    hosts = graph.legality.host_devices(known, devices)
    assert hosts.tolist() == legality_oracle.host_devices(graph, known.tolist(), devices)
    copyable = generator.random(nodes) < 0.8
    homes, replicas = graph.legality.replication(hosts, copyable)
    assert (homes.tolist(), replicas) == legality_oracle.replication(graph, hosts.tolist(), copyable.tolist())
    settled = graph.legality.settle(homes, devices, rule)
    assert settled.tolist() == legality_oracle.settle(graph, homes.tolist(), devices, rule)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), nodes=st.integers(2, 40), devices=st.integers(1, 4), rule=st.integers(0, 1))
def test_repair_is_that_of_the_oracle(seed: int, nodes: int, devices: int, rule: int) -> None:
    generator = np.random.default_rng(seed)
    graph = random_typed_graph(generator, nodes)
    groups, pairs = graph.legality.groups, graph.legality.same_submodel
    count = int(groups.max()) + 1
    supported = generator.random((count, devices)) < 0.8
    placement = generator.integers(0, devices, count).astype(np.uint8)
    repaired = _native.repair(graph.native, groups, pairs, placement, supported, rule)
    assert repaired.tolist() == legality_oracle.repair(graph, groups, pairs, placement, supported, rule).tolist()


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), nodes=st.integers(2, 40), devices=st.integers(2, 3))
def test_completed_placements_keep_all_constraints(seed: int, nodes: int, devices: int) -> None:
    generator = np.random.default_rng(seed)
    graph = random_typed_graph(generator, nodes)
    device = graph.legality.settle(generator.integers(0, devices, nodes).astype(np.int32), devices, 1)
    for a, b in graph.legality.colocated:
        assert device[a] == device[b]
    replicable = graph.legality.replicable
    for source, target in zip(graph.input_source, graph.input_node, strict=True):
        assert not replicable[source] or device[source] == device[target]
    split = _native.split(graph.native, device, 1)
    submodel = split["submodel"]
    if len(set(device.tolist())) > 1:  # else nothing helped, and all is on one device
        assert split["sortable"]
        assert all(submodel[a] == submodel[b] for a, b in graph.legality.same_submodel)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda graph: graph.legality.host_devices(np.full(graph.nodes, 2, np.int32), 2),
        lambda graph: graph.legality.settle(np.full(graph.nodes, -1, np.int32), 2, 1),
        lambda graph: graph.legality.replication(np.zeros(1, np.int32), np.ones(graph.nodes, bool)),
        lambda graph: replace(graph, types=graph.types[1:]).legality,
        lambda graph: replace(graph, output_shapes=((),) * graph.outputs).legality,
    ],
)
def test_arrays_that_do_not_fit_the_graph_are_refused(wrong: Callable[[ComputationGraph], object]) -> None:
    graph = random_graph(np.random.default_rng(0), 10)
    with pytest.raises(ValueError, match="expected"):
        wrong(graph)


# --- the road is walked once


def extractions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of models whose graph is extracted from now on."""
    found: list[str] = []
    extract = ComputationGraph.from_model.__func__  # type: ignore[attr-defined]

    def counted(cls: type[ComputationGraph], model: ov.Model, **options: object) -> ComputationGraph:
        found.append(model.get_friendly_name())
        return extract(cls, model, **options)

    monkeypatch.setattr(ComputationGraph, "from_model", classmethod(counted))
    return found


def test_a_graph_is_extracted_once_whether_nodes_are_copied_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    extracted = extractions(monkeypatch)
    plain, shared = attention(8, 4, False), shared_constant_model()
    for model, copies in ((plain, False), (shared, True)):
        extracted.clear()
        graph = normalize.normalize(model)
        assert len(extracted) == 1
        assert any("/copy_" in name for name in graph.names) == copies
        assert graph.names == tuple(node.get_friendly_name() for node in model.get_ordered_ops())
        extracted.clear()
        affinity = complete.complete(model, {graph.names[-2]: "CPU_B"}, ["CPU_A", "CPU_B"], graph)
        assert len(extracted) == 0
        assert set(affinity) == set(graph.names)
