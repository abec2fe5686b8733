"""Placing models that repeat layers: what is asked and done of an excerpt holds for the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

import ov_hsdag
from ov_hsdag.kit.decoder import DecoderSize
from ov_hsdag.model import clean_up, shapes
from ov_hsdag.model.excerpt import excerpt, structures
from ov_hsdag.model.graph import ComputationGraph
from ov_hsdag.model.nodes import Nodes
from ov_hsdag.model.normalize import normalize, normalize_by_excerpt
from ov_hsdag.model.support import support
from research.zoo.catalog import ZOO, ZooModel
from research.zoo.deep import FAMILIES, build, operations
from research.zoo.stored_decoders import write_decoder

LAYERS = {"decoder": 50, "encoder": 75, "convolutional": 160}


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.slow
def test_an_excerpt_has_each_kind_of_node_whatever_the_number_of_layers(family: str) -> None:
    model = FAMILIES[family](LAYERS[family])
    found, deeper = excerpt(model), excerpt(FAMILIES[family](2 * LAYERS[family]))
    assert found is not None
    assert deeper is not None
    assert (len(deeper.names), deeper.kinds) == (len(found.names), found.kinds)
    assert len(found.names) < len(model.get_ops()) / 2
    assert found.kinds <= len(found.names)
    own = {node.get_friendly_name(): node for node in model.get_ops()}
    for node in found.model.get_ops():
        original = own.get(node.get_friendly_name())
        if original is None:
            assert node.get_type_name() in ("Parameter", "Result")
            continue
        # Around it nothing is known less well than in the model.
        for port in range(original.get_output_size()):
            assert node.get_output_partial_shape(port) == original.get_output_partial_shape(port)


def test_a_node_that_differs_is_in_the_excerpt() -> None:
    model = FAMILIES["encoder"](LAYERS["encoder"])
    gelus = [node for node in model.get_ordered_ops() if node.get_type_name() == "Gelu"]
    odd = gelus[50]
    other = ov.opset13.tanh(odd.input_value(0))
    other.set_friendly_name("odd")
    for reader in odd.output(0).get_target_inputs():
        reader.replace_source_output(other.output(0))
    found = excerpt(model)
    assert found is not None
    assert "odd" in found.names


def test_models_without_repetition_have_no_excerpt() -> None:
    assert excerpt(ZOO["bert-small"].build()) is None


def test_the_model_is_as_it_was_after_an_excerpt(family: str) -> None:
    model = FAMILIES[family](LAYERS[family])
    reference = model.clone()

    def known(of: ov.Model) -> list[tuple[object, ...]]:
        readers = [[len(output.get_target_inputs()) for output in node.outputs()] for node in of.get_ordered_ops()]
        return list(zip(Nodes(of).names, Nodes(of).outputs, readers, strict=True))

    found = excerpt(model)
    assert found is not None
    found.model.validate_nodes_and_infer_types()  # what happens to the excerpt does not reach the model
    assert known(model) == known(reference)
    assert np.array_equal(Nodes(model).edges.source, Nodes(reference).edges.source)


class _Core(ov.Core):
    """Counts the nodes that it is asked about; lacks a type of operation."""

    def __init__(self, lacks: str = "") -> None:
        super().__init__()
        self.lacks, self.asked = lacks, []

    def query_model(self, model: ov.Model, *arguments: Any, **options: Any) -> dict[str, str]:
        self.asked.append(len(model.get_ops()))
        lacking = {node.get_friendly_name() for node in model.get_ops() if node.get_type_name() == self.lacks}
        claimed = super().query_model(model, *arguments, **options)
        return {name: device for name, device in claimed.items() if name not in lacking}


def test_a_large_model_is_asked_about_by_an_excerpt(family: str) -> None:
    model = FAMILIES[family](LAYERS[family])
    core = _Core()
    found = ComputationGraph.from_model(model)
    assert support(model, found, ["CPU"], core).all()
    assert len(core.asked) == 1
    assert core.asked[0] < found.nodes / 2


def test_a_device_that_lacks_operations_is_asked_about_all() -> None:
    model = FAMILIES["encoder"](LAYERS["encoder"])
    core = _Core(lacks="Gelu")
    found = ComputationGraph.from_model(model)
    supported = support(model, found, ["CPU"], core)[:, 0]
    assert (supported == (np.array(found.types) != "Gelu")).all()
    assert core.asked[-1] == found.nodes


@pytest.mark.slow
def test_compressed_experts_are_claimed_in_an_excerpt(tmp_path: Path) -> None:
    """Weights of experts that are no constants are no experts to a plugin."""
    size = DecoderSize(layers=36, heads=2, head=64, inner=128, vocabulary=64, experts=4)
    model = ov.Core().read_model(write_decoder(size, tmp_path / "decoder.xml", "i4"))
    normalize(model)
    part = excerpt(model)
    assert part is not None
    assert not set(part.names).difference(ov.Core().query_model(part.model, "CPU"))


@pytest.mark.slow
def test_the_excerpt_of_the_clean_up_serves_all_devices(family: str) -> None:
    """Written by OpenVINO's converter, which has transformed them: the clean-up leaves such models as they are."""
    from openvino._offline_transformations import apply_moc_transformations

    model = FAMILIES[family](LAYERS[family])
    apply_moc_transformations(model, cf=True, smart_reshape=True)
    found, part = normalize_by_excerpt(model)
    if part is None:  # lengths were parted: their nodes are new
        assert family == "decoder"
        return
    own = excerpt(model)
    assert own is not None
    kinds = {node.get_type_name() for node in own.model.get_ops()}
    assert kinds == {node.get_type_name() for node in part.model.get_ops()}
    core = _Core()
    assert support(model, found, ["CPU"], core, part).all() and support(model, found, ["CPU"], core).all()
    assert core.asked[0] == len(part.model.get_ops())
    names = {node.get_friendly_name() for node in part.model.get_ops() if node.get_type_name() == "MatMul"}
    assert part.whole.issuperset(names)


@pytest.mark.slow
def test_transformations_are_left_out_where_they_change_nothing(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from openvino import _offline_transformations

    sizes = []
    original = _offline_transformations.apply_moc_transformations

    def counted(model: ov.Model, **options: bool) -> None:
        sizes.append(len(model.get_ops()))
        original(model, **options)

    monkeypatch.setattr(_offline_transformations, "apply_moc_transformations", counted)
    model = FAMILIES[family](LAYERS[family])
    reference = model.clone()
    nodes = len(model.get_ops())
    assert clean_up.clean_up(model)[0]
    assert all(size < nodes / 2 for size in sizes)
    original(reference, cf=True, smart_reshape=True)
    one, other = structures(model, reference)
    assert np.array_equal(one, other)


def test_transformations_are_applied_where_they_change_something() -> None:
    model = FAMILIES["encoder"](LAYERS["encoder"])
    last = model.get_results()[0]
    nodes = [node for node in model.get_ordered_ops() if node.get_type_name() == "Gelu"]
    reader = next(iter(nodes[50].output(0).get_target_inputs()))
    reader.replace_source_output(ov.opset13.add(nodes[50], np.float32(0)).output(0))  # computes nothing
    before = operations(model)
    assert clean_up.clean_up(model) == (None, None)
    assert operations(model) == before - 1
    assert model.get_results()[0].get_friendly_name() == last.get_friendly_name()


_DYNAMIC = [model for model in ZOO.values() if model.dynamic and "quick" in model.tags]


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", _DYNAMIC, ids=lambda model: model.name)
def test_shapes_are_inferred_as_reshape_does(dynamic: ZooModel, monkeypatch: pytest.MonkeyPatch) -> None:
    model = dynamic.build()
    normalize(model)
    reshaped = ComputationGraph.from_model(model)
    monkeypatch.setattr(shapes, "_LARGE", 0)
    inferred = ComputationGraph.from_model(model)
    assert inferred.output_shapes == reshaped.output_shapes


def test_nodes_of_a_copy_are_those_of_the_model_whatever_their_order() -> None:
    model = FAMILIES["decoder"](3)
    normalize(model)
    nodes = Nodes(model)
    nodes.order.reverse()
    sized = shapes.Inference(model, nodes).with_static_inputs({})
    assert sized is not None
    names = [node.get_friendly_name() for node in sized]
    states = {name for name, kind in zip(nodes.names, nodes.types, strict=True) if kind == "ReadValue"}
    assert states
    assert all(own == name for own, name in zip(names, nodes.names, strict=True) if name not in states)


@pytest.mark.parametrize("name", ["decoder", "encoder"])
def test_the_graph_of_copies_is_the_one_that_the_model_has(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "_LARGE", 0)  # ov.Model.reshape merges copies
    model = FAMILIES[name](3)
    known = normalize(model)
    assert any("/copy_" in one for one in known.names) == (name == "decoder")
    extracted = ComputationGraph.from_model(model)
    assert known.names == extracted.names
    assert known.output_shapes == extracted.output_shapes
    for key in ("kinds", "input_ptr", "input_output", "output_ptr", "output_bytes", "output_movable", "flops"):
        assert np.array_equal(getattr(known, key), getattr(extracted, key)), key


@pytest.mark.slow
def test_a_large_model_is_placed_and_computes_the_same(two_cpu_core: ov.Core) -> None:
    model = build("encoder", 3000)
    given = {"hidden": np.random.default_rng(0).standard_normal((1, 16, 32), np.float32)}
    expected = two_cpu_core.compile_model(model, "CPU_A", {"INFERENCE_PRECISION_HINT": "f32"})(given)[0]
    placement = ov_hsdag.place(model, "HETERO:CPU_A,CPU_B", objective="throughput", core=two_cpu_core)
    assert set(placement.used()) == {"CPU_A", "CPU_B"}
    properties = {"DEVICE_PROPERTIES": {name: {"INFERENCE_PRECISION_HINT": "f32"} for name in placement.devices}}
    actual = two_cpu_core.compile_model(model, placement.hetero, properties)(given)[0]
    np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3)
