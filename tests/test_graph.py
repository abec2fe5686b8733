from __future__ import annotations

from dataclasses import fields

import numpy as np
import openvino as ov
import pytest

from ov_hsdag.model.graph import ComputationGraph, NodeKind
from ov_hsdag.model.workload import decoder_shapes
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import opset13 as ops
from tests.decoders import stateful_decoder
from tests.graphs import random_model


def convolution_model() -> ov.Model:
    image = ops.parameter([1, 3, 8, 8], ov.Type.f32, name="image")
    weights = ops.constant(np.ones((4, 3, 3, 3), np.float32))
    conv = ops.convolution(image, weights, [1, 1], [1, 1], [1, 1], [1, 1])
    halves = ops.split(ops.relu(conv), ops.constant(1), 2)
    return ov.Model([ops.result(halves.output(1)), ops.result(halves.output(0))], [image], "conv")


def test_nodes_edges_and_sizes_of_a_convolution() -> None:
    graph = ComputationGraph.from_model(convolution_model())
    conv = graph.types.index("Convolution")
    assert graph.flops[conv] == 2 * (4 * 8 * 8) * (3 * 3 * 3)
    first, last = graph.input_ptr[conv], graph.input_ptr[conv + 1]
    assert [graph.types[n] for n in graph.input_source[first:last]] == ["Parameter", "Constant"]
    assert graph.output_shapes[graph.output_ptr[conv]] == (1, 4, 8, 8)
    assert graph.output_bytes[graph.output_ptr[conv]] == 4 * 8 * 8 * 4
    weights = [n for n in range(graph.nodes) if graph.kinds[n] == NodeKind.CONSTANT and graph.weight_bytes[n] > 100]
    assert graph.weight_bytes[weights[0]] == 4 * 3 * 3 * 3 * 4


def test_results_know_which_output_port_feeds_them() -> None:
    graph = ComputationGraph.from_model(convolution_model())
    split = graph.types.index("Split")
    results = [n for n in range(graph.nodes) if graph.kinds[n] == NodeKind.RESULT]
    ports = sorted(int(graph.input_output[graph.input_ptr[n]] - graph.output_ptr[split]) for n in results)
    assert ports == [0, 1]


def test_order_is_the_models_and_producers_come_first() -> None:
    for seed in range(10):
        model = random_model(seed)
        graph = ComputationGraph.from_model(model)
        assert list(graph.names) == [node.get_friendly_name() for node in model.get_ordered_ops()]
        assert (graph.input_source < graph.input_node).all()


def test_dynamic_dimensions_take_the_example_then_the_bound_then_the_default() -> None:
    tokens = ops.parameter(ov.PartialShape([-1, ov.Dimension(1, 64)]), ov.Type.i64, name="tokens")
    tokens.output(0).get_tensor().set_names({"tokens"})
    model = ov.Model([ops.result(ops.convert(tokens, ov.Type.f32))], [tokens], "dynamic")

    def shape(**options: object) -> tuple[int, ...]:
        graph = ComputationGraph.from_model(model, **options)  # type: ignore[arg-type]
        return graph.output_shapes[graph.output_ptr[graph.types.index("Convert")]]

    assert shape() == (1, 64)
    assert shape(shapes={"tokens": [2, 10]}) == (2, 10)
    assert model.is_dynamic()


def test_matmul_flops_do_not_depend_on_transposition() -> None:
    a = ops.parameter([2, 5, 7], ov.Type.f32)
    b = ops.parameter([2, 11, 7], ov.Type.f32)
    model = ov.Model([ops.result(ops.matmul(a, b, False, True))], [a, b], "matmul")
    graph = ComputationGraph.from_model(model)
    assert graph.flops[graph.types.index("MatMul")] == pytest.approx(2 * 2 * 5 * 11 * 7)


@pytest.mark.parametrize(("left", "right"), [([3, 5, 7], [7]), ([7], [3, 7, 5]), ([7], [7]), ([5, 7], [7])])
def test_flops_of_a_product_with_a_vector(left: list[int], right: list[int]) -> None:
    """The output has an axis less, so that its last two axes may be a batch and a side of the matrices."""
    a, b = ops.parameter(left, ov.Type.f32), ops.parameter(right, ov.Type.f32)
    product = ops.matmul(a, b, False, False)
    graph = ComputationGraph.from_model(ov.Model([ops.result(product)], [a, b], "vector"))
    outputs = float(np.prod(product.get_output_shape(0)))
    assert graph.flops[graph.types.index("MatMul")] == pytest.approx(2 * outputs * 7)


def test_loop_costs_all_of_its_iterations() -> None:
    state = ops.parameter([1, 16], ov.Type.f32)
    body_input = ops.parameter([1, 16], ov.Type.f32)
    matmul = ops.matmul(body_input, ops.constant(np.ones((16, 16), np.float32)), False, False)
    condition = ops.constant(True)
    body = ov.Model([ops.result(condition), ops.result(matmul)], [body_input], "body")
    loop = ops.loop(ops.constant(np.int64(5)), ops.constant(True))
    loop.set_function(body)
    loop.set_special_body_ports([-1, 0])
    loop.set_merged_input(body_input, state.output(0), matmul.output(0))
    end = loop.get_iter_value(matmul.output(0), -1)
    model = ov.Model([ops.result(end)], [state], "loop")
    graph = ComputationGraph.from_model(model)
    assert graph.flops[graph.types.index("Loop")] == pytest.approx(5 * 2 * 16 * 16)
    # What a body holds is memory of the device that runs it: the product's weights, and the condition.
    assert graph.weight_bytes[graph.types.index("Loop")] == 16 * 16 * 4 + 1


@pytest.mark.parametrize("sizes", [(2, 100, 100), (1, 1, 4096)])
def test_a_resized_graph_is_the_one_of_those_shapes(sizes: tuple[int, int, int]) -> None:
    model = stateful_decoder(2)
    graph = ComputationGraph.from_model(model, shapes=decoder_shapes(model, 1, 1, 512))
    shapes = decoder_shapes(model, *sizes)
    resized, extracted = graph.resized(model, shapes), ComputationGraph.from_model(model, shapes=shapes)
    for field in fields(graph):
        np.testing.assert_equal(getattr(resized, field.name), getattr(extracted, field.name), field.name)
    with pytest.raises(UserError, match="unknown input 'nothing'"):
        graph.resized(model, {"nothing": [1]})
