"""The native splitting rule against the real HETERO plugin."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ov_hsdag import _native
from ov_hsdag.model import normalize
from ov_hsdag.model.colocation import split_rule
from ov_hsdag.model.graph import ComputationGraph
from ov_hsdag.utils.lazy import opset13 as ops
from tests.graphs import random_inputs, random_model, set_affinities

RULE = split_rule(ov.__version__)
DEVICES = ["CPU_A", "CPU_B"]


def check_against_hetero(core: ov.Core, model: ov.Model, devices: np.ndarray) -> None:
    """HETERO makes as many submodels as predicted, or refuses as predicted; outputs are those of one device.

    Submodels that compute nothing are refused at times ("unordered_map::at" for seed 843 and placement 555), so
    placements with such submodels are infeasible; the plugin has its way with them here.
    """
    graph = ComputationGraph.from_model(model)
    split = _native.split(graph.native, devices, RULE)
    set_affinities(model, [DEVICES[device] for device in devices])
    if not split["sortable"]:
        with pytest.raises(RuntimeError, match=r"Cannot (sort|resolve)"):
            core.compile_model(model, "HETERO:CPU_A,CPU_B")
        return
    try:
        compiled = core.compile_model(model, "HETERO:CPU_A,CPU_B")
    except RuntimeError:
        assert any(split["trivial"])
        return
    assert compiled.get_property("HETERO_NUMBER_OF_SUBMODELS") == len(split["submodel_device"])
    inputs = random_inputs(model)
    expected = core.compile_model(model, "CPU_A")(inputs)
    actual = compiled(inputs)
    for port in range(len(model.outputs)):
        np.testing.assert_allclose(actual[port], expected[port], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), placement=st.integers(0, 10**6))
def test_any_affinities_of_random_models(two_cpu_core: ov.Core, seed: int, placement: int) -> None:
    model = random_model(seed)
    normalize.unique_names(model)
    nodes = len(model.get_ordered_ops())
    devices = np.random.default_rng(placement).integers(0, 2, nodes).astype(np.uint8)
    check_against_hetero(two_cpu_core, model, devices)


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), placement=st.integers(0, 10**6))
@example(seed=843, placement=555)
def test_legal_placements_of_random_models(two_cpu_core: ov.Core, seed: int, placement: int) -> None:
    model = random_model(seed, nodes=40)
    normalize.normalize(model)
    groups = ComputationGraph.from_model(model).legality.groups
    devices = np.random.default_rng(placement).integers(0, 2, groups.max() + 1).astype(np.uint8)
    check_against_hetero(two_cpu_core, model, devices[groups])


def two_way_model() -> tuple[ov.Model, np.ndarray]:
    """Two inputs, and two submodels that need each other without any tensor that comes back to its own submodel."""
    p, q = ops.parameter([1, 4], ov.Type.f32, name="p"), ops.parameter([1, 4], ov.Type.f32, name="q")
    a0, b0 = ops.relu(p, name="a0"), ops.relu(q, name="b0")
    a1 = ops.tanh(a0, name="a1")
    b1 = ops.add(a1, b0, name="b1")
    b2 = ops.sigmoid(b0, name="b2")
    a2 = ops.add(a0, b2, name="a2")
    model = ov.Model([ops.result(b1), ops.result(a2)], [p, q], "two_way")
    second = {"q", "b0", "b1", "b2"}
    graph = ComputationGraph.from_model(model)
    of_name = {name: int(name in second) for name in graph.names}
    devices = [of_name[name] for name in graph.names]
    for node in range(graph.nodes):  # Results go with their producers
        if graph.types[node] == "Result":
            devices[node] = devices[graph.input_source[graph.input_ptr[node]]]
    return model, np.array(devices, np.uint8)


def test_submodels_that_need_each_other(two_cpu_core: ov.Core) -> None:
    check_against_hetero(two_cpu_core, *two_way_model())


def test_each_release_has_its_rule() -> None:
    model, devices = two_way_model()
    graph = ComputationGraph.from_model(model).native
    classic, later = _native.split(graph, devices, 0), _native.split(graph, devices, 1)
    assert not classic["sortable"]
    assert classic["cyclic"].any()
    assert later["sortable"]
    assert len(later["submodel_device"]) == 3
    assert [split_rule(v) for v in ("2025.0.0-1", "2026.2.1-9-x", "2026.3.0", "2026.4.1-22982", "2027.0.0")] == [
        0,
        0,
        1,
        1,
        1,
    ]


def test_a_tensor_that_comes_back_splits_its_submodel(two_cpu_core: ov.Core) -> None:
    x = ops.parameter([1, 4], ov.Type.f32, name="x")
    first = ops.relu(x, name="first")
    away = ops.tanh(first, name="away")
    back = ops.add(first, away, name="back")
    model = ov.Model([ops.result(back)], [x], "residual")
    devices = np.array([node.get_friendly_name() == "away" for node in model.get_ordered_ops()], np.uint8)
    graph = ComputationGraph.from_model(model)
    split = _native.split(graph.native, devices, RULE)
    assert len(split["submodel_device"]) == 3
    check_against_hetero(two_cpu_core, model, devices)
