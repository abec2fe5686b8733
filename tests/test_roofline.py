"""The roofline cost model, on small models whose times can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as op
import pytest

from ov_hsdag.costs import cost_model
from ov_hsdag.costs.profile import DeviceProfile, Profile, load_builtin
from ov_hsdag.costs.roofline import Roofline
from ov_hsdag.model.graph import ComputationGraph

CPU = DeviceProfile(
    name="CPU",
    kind="CPU",
    description="a CPU of round figures",
    matches=(),
    precision="f32",
    peak_gflops={"f32": 100.0, "i8": 400.0},
    efficiency={"default": 0.5, "MatMul": 0.8, "Convolution": 1.0},
    memory_gbps=10.0,
    memory_bytes=2**34,
    launch_us=1.0,
    submodel_us=15.0,
    link_us=0.0,
    link_gbps=None,
    unsupported=(),
    sources={},
)
GPU = replace(
    CPU,
    name="GPU",
    kind="GPU",
    precision="f16",
    peak_gflops={"f32": 1000.0, "f16": 2000.0},
    memory_gbps=50.0,
    launch_us=5.0,
    link_us=10.0,
    link_gbps=20.0,
    unsupported=("Relu",),
)


def constant(*shape: int, dtype: Any = np.float32) -> Any:
    return op.constant(np.ones(shape, dtype))


def graph_of(*results: Any) -> ComputationGraph:
    parameters = {}
    for result in results:
        stack = [result.node if isinstance(result, ov.Output) else result]
        while stack:
            node = stack.pop()
            if node.get_type_name() == "Parameter":
                parameters[node.get_friendly_name()] = node
            stack += [value.get_node() for value in node.input_values()]
    model = ov.Model([op.result(result) for result in results], list(parameters.values()), "small")
    return ComputationGraph.from_model(model)


def times(graph: ComputationGraph, device: DeviceProfile) -> dict[str, float]:
    values = Roofline(graph).node_us(device)
    assert values.shape == (graph.nodes,) and values.dtype == np.float64
    assert np.isfinite(values).all() and (values >= 0).all()
    return dict(zip(graph.names, values.tolist(), strict=True))


def matmul_graph(m: int, k: int, n: int) -> ComputationGraph:
    x = op.parameter([m, k], np.float32, name="x")
    return graph_of(op.matmul(x, constant(k, n), False, False, name="product"))


def test_a_large_product_is_bound_by_compute() -> None:
    graph = matmul_graph(512, 512, 512)
    flops = 2 * 512**3
    assert times(graph, CPU)["product"] == pytest.approx(flops / (100e3 * 0.8) + 1.0)
    assert times(graph, GPU)["product"] == pytest.approx(flops / (2000e3 * 0.8) + 5.0)
    assert times(graph, GPU.at_precision("f32"))["product"] == pytest.approx(flops / (1000e3 * 0.8) + 5.0)


def test_a_product_with_a_vector_is_bound_by_memory_and_moves_half_the_bytes_in_f16() -> None:
    graph = matmul_graph(1, 1024, 1024)
    elements = 1024 * 1024 + 2 * 1024
    assert times(graph, CPU)["product"] == pytest.approx(4 * elements / 10e3 + 1.0)
    assert times(graph, GPU)["product"] == pytest.approx(2 * elements / 50e3 + 5.0)


def test_indices_keep_their_size_on_an_f16_device() -> None:
    x = op.parameter([1000, 1000], np.int32, name="x")
    graph = graph_of(op.relu(x, name="y"))
    assert times(graph, GPU)["y"] == pytest.approx(2 * 4e6 / 50e3 + 5.0)


def test_constants_are_free_and_inputs_and_results_cost_their_transfer_on_devices_with_a_link() -> None:
    graph = matmul_graph(100, 100, 200)
    on_cpu, on_gpu = times(graph, CPU), times(graph, GPU)
    by_type = dict(zip(graph.types, graph.names, strict=True))
    assert on_cpu[by_type["Constant"]] == on_gpu[by_type["Constant"]] == 0.0
    assert on_cpu["x"] == on_cpu[by_type["Result"]] == 0.0
    # Host tensors have the model's types: their bytes do not shrink on an f16 device.
    assert on_gpu["x"] == pytest.approx(10.0 + 4 * 100 * 100 / 20e3)
    assert on_gpu[by_type["Result"]] == pytest.approx(10.0 + 4 * 100 * 200 / 20e3)


def test_views_cost_a_launch_on_a_gpu_and_nothing_on_a_cpu() -> None:
    x = op.parameter([64, 64], np.float32, name="x")
    flat = op.reshape(x, op.constant(np.array([4096])), False, name="reshape")
    view = op.unsqueeze(flat, op.constant(0), name="unsqueeze")
    graph = graph_of(op.squeeze(view, op.constant(0), name="squeeze"), op.shape_of(x, name="shape"))
    views = np.isin(graph.types, ("Reshape", "Unsqueeze", "Squeeze", "ShapeOf"))
    assert views.sum() == 4
    assert not Roofline(graph).node_us(CPU)[views].any()
    assert (Roofline(graph).node_us(GPU)[views] == 5.0).all()


def activation_chain(readers: int) -> ComputationGraph:
    x = op.parameter([256, 256], np.float32, name="x")
    product = op.matmul(x, constant(256, 256), False, False, name="product")
    biased = op.add(product, constant(256), name="bias")
    active = op.relu(biased, name="relu")
    alone = op.sigmoid(op.softmax(active, 1), name="alone")
    return graph_of(alone, *[op.relu(product, name=f"reader{index}") for index in range(readers)])


def test_element_wise_operations_after_a_product_are_fused_into_it() -> None:
    graph = activation_chain(0)
    elements = 256 * 256
    on_cpu = times(graph, CPU)
    assert on_cpu["bias"] == pytest.approx(max(elements / (100e3 * 0.5), 4 * 256 / 10e3))
    assert on_cpu["relu"] == pytest.approx(elements / (100e3 * 0.5))
    # Not after a softmax: it reads and writes memory itself.
    assert on_cpu["alone"] == pytest.approx(2 * 4 * elements / 10e3 + 1.0)


def test_what_somebody_else_reads_cannot_stay_in_registers() -> None:
    graph = activation_chain(1)
    on_cpu = times(graph, CPU)
    assert on_cpu["bias"] == pytest.approx((2 * 4 * 256 * 256 + 4 * 256) / 10e3 + 1.0)
    assert on_cpu["relu"] == pytest.approx(2 * 4 * 256 * 256 / 10e3 + 1.0)


def test_a_torn_fusion_costs_what_the_operation_costs_alone() -> None:
    graph = activation_chain(0)
    model = Roofline(graph)
    product, bias, relu = (graph.index(name) for name in ("product", "bias", "relu"))
    assert {node: int(model.fused_with[node]) for node in np.flatnonzero(model.fused)} == {bias: product, relu: bias}
    torn = model.fusion_penalty_us(CPU)
    assert set(np.flatnonzero(torn)) == {bias, relu}
    # It reads its input, which would have been handed over in registers, and writes its output.
    assert model.node_us(CPU)[relu] + torn[relu] == pytest.approx(2 * 4 * 256 * 256 / 10e3 + 1.0)
    assert model.node_us(CPU)[bias] + torn[bias] == pytest.approx((2 * 4 * 256 * 256 + 4 * 256) / 10e3 + 1.0)


def test_a_fused_residual_addition_still_reads_the_other_branch() -> None:
    x = op.parameter([256, 256], np.float32, name="x")
    product = op.matmul(x, constant(256, 256), False, False)
    graph = graph_of(op.add(product, x, name="sum"))
    assert times(graph, CPU)["sum"] == pytest.approx(4 * 256 * 256 / 10e3)


def test_an_operation_that_grows_its_input_is_not_fused() -> None:
    x = op.parameter([1, 64], np.float32, name="x")
    y = op.parameter([64, 64], np.float32, name="y")
    graph = graph_of(op.add(op.matmul(x, constant(64, 64), False, False), y, name="grown"))
    assert not Roofline(graph).fused[graph.index("grown")]


def test_a_lookup_reads_its_rows_and_not_its_table() -> None:
    ids = op.parameter([128], np.int64, name="ids")
    graph = graph_of(op.gather(constant(30000, 256), ids, op.constant(0), name="lookup"))
    rows = 128 * 256 * 4
    assert times(graph, CPU)["lookup"] == pytest.approx((2 * rows + 128 * 8 + 8) / 10e3 + 1.0, rel=1e-3)


def compressed(dtype: Any) -> ComputationGraph:
    x = op.parameter([1, 1024], np.float32, name="x")
    stored = op.constant(np.ones((1024, 1024), dtype))
    weights = op.convert(stored, np.float32, name="convert")
    if dtype is np.int8:
        weights = op.multiply(weights, constant(1, 1024), name="scale")
    return graph_of(op.matmul(x, weights, False, False, name="product"))


def test_compressed_weights_are_read_as_they_are_stored_or_in_the_precision_of_the_device() -> None:
    elements, ends = 1024 * 1024, 2 * 1024
    half = compressed(np.float16)
    assert times(half, CPU)["convert"] == 0.0
    assert times(half, CPU)["product"] == pytest.approx(4 * (elements + ends) / 10e3 + 1.0)
    assert times(half, GPU)["product"] == pytest.approx(2 * (elements + ends) / 50e3 + 5.0)
    byte = compressed(np.int8)
    assert times(byte, CPU)["scale"] == 0.0
    assert times(byte, CPU)["product"] == pytest.approx((elements + 4 * 1024 + 4 * ends) / 10e3 + 1.0)


def test_quantised_products_run_at_the_i8_rate_where_there_is_one() -> None:
    def quantise(value: Any, name: str) -> Any:
        ends = [op.constant(np.float32(end)) for end in (-1.0, 1.0)]
        return op.fake_quantize(value, *ends, *ends, 256, name=name)

    x = op.parameter([512, 512], np.float32, name="x")
    quantised = op.matmul(quantise(x, "qx"), quantise(constant(512, 512), "qw"), False, False, name="quantised")
    graph = graph_of(op.matmul(quantised, constant(512, 512), False, False, name="usual"))
    flops = 2 * 512**3
    assert times(graph, CPU)["quantised"] == pytest.approx(flops / (400e3 * 0.8) + 1.0)
    assert times(graph, CPU)["usual"] == pytest.approx(flops / (100e3 * 0.8) + 1.0)
    assert times(graph, CPU)["qw"] == 0.0
    assert times(graph, GPU)["quantised"] == pytest.approx(flops / (2000e3 * 0.8) + 5.0)


def test_operations_that_run_every_time_are_no_constants() -> None:
    shape, low, high = op.constant(np.array([64, 64])), op.constant(np.float32(0)), constant()
    noise = op.random_uniform(shape, low, high, "f32", name="noise")
    graph = graph_of(op.relu(noise, name="y"))
    assert times(graph, CPU)["noise"] > 1.0
    assert times(graph, CPU)["y"] > 1.0


def test_a_profile_gives_a_column_for_each_device_and_what_it_supports() -> None:
    graph = activation_chain(0)
    profile = Profile({"CPU": CPU, "GPU": GPU})
    costs = cost_model.node_us(profile, graph, ["GPU", "CPU", "GPU.1"])
    assert costs.shape == (graph.nodes, 3)
    assert costs.dtype == np.float64
    assert costs[:, 1].tolist() == list(times(graph, CPU).values())
    assert np.array_equal(costs[:, 0], costs[:, 2])
    support = cost_model.assumed_support(profile, graph, ["GPU", "CPU"])
    assert support.dtype == bool
    assert [name for name, ok in zip(graph.types, support[:, 0], strict=True) if not ok] == ["Relu"]
    assert support[:, 1].all()


def test_a_profile_can_say_all_that_a_device_runs() -> None:
    graph = matmul_graph(2, 2, 2)
    for device, expected in (
        (replace(GPU, supported=("MatMul", "Relu"), unsupported=("Relu",)), {"MatMul"}),
        (replace(GPU, supported=()), set()),
        (replace(GPU, supported=None, unsupported=()), {"MatMul", "Relu"}),
        (replace(CPU, supported=None, unsupported=()), {"MatMul", "Relu", "Mine"}),
        (replace(CPU, supported=("Mine",), unsupported=()), {"Mine"}),
    ):
        assert {name for name in ("MatMul", "Relu", "Mine") if device.runs(name)} == expected
        runs = cost_model.assumed_support(Profile({"X": replace(device, name="X")}), graph, ["X"])
        assert runs[graph.types.index("MatMul"), 0] == ("MatMul" in expected)


def test_no_device_is_too_short_of_operations_for_its_inputs_and_outputs() -> None:
    stubborn = replace(GPU, unsupported=("Parameter", "Constant", "Result"))
    graph = matmul_graph(2, 2, 2)
    assert cost_model.assumed_support(Profile({"GPU": stubborn}), graph, ["GPU"]).all()


@pytest.mark.parametrize("name", ["resnet50", "squeezenet", "shufflenet"])
def test_builtin_profiles_order_devices_on_real_models_as_everybody_knows_them(name: str) -> None:
    onnx = pytest.importorskip("onnx")
    path = f"{onnx.__path__[0]}/backend/test/data/light/light_{name}.onnx"
    graph = ComputationGraph.from_model(ov.Core().read_model(path))
    totals = {}
    for stem in ("core_ultra_7_155h", "iris_xe", "arc_meteor_lake", "arc_a770"):
        totals[stem] = Roofline(graph).node_us(load_builtin(stem)).sum()
    if name == "resnet50":  # enough work to pay for launches
        assert list(totals.values()) == sorted(totals.values(), reverse=True)
        assert 5e3 < totals["core_ultra_7_155h"] < 40e3
    assert totals["arc_a770"] < totals["arc_meteor_lake"] < totals["iris_xe"]
