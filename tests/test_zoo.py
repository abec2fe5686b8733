"""The model zoo: what it builds is worth comparing placements on."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from ov_hsdag.utils.errors import UserError
from research.zoo.catalog import CACHE_VARIABLE, ZOO, ZooModel, select
from research.zoo.compare import infer, largest_difference
from research.zoo.models.onnx_light import MODELS as ONNX_MODELS

F32 = {"INFERENCE_PRECISION_HINT": "f32"}


def test_outputs_are_finite_and_follow_the_inputs_alone(zoo_model: ZooModel) -> None:
    model = zoo_model.build()
    compiled = ov.Core().compile_model(model, "CPU", F32)
    outputs = infer(compiled, zoo_model.inputs(1))
    others = infer(compiled, zoo_model.inputs(2))
    for output, other in zip(chain(*outputs), chain(*others), strict=True):
        assert np.isfinite(output).all()
        scale = np.abs(output).max()
        if output.size > 1:
            assert np.ptp(output) > 1e-3 * scale
        assert np.abs(output - other).max() > 1e-3 * scale, "the same for other inputs"
    # A model that draws random numbers, for one, could not be compared with its placements.
    assert largest_difference(outputs, infer(ov.Core().compile_model(model, "CPU", F32), zoo_model.inputs(1))) < 1e-5


def test_inputs_fit_the_model(zoo_model: ZooModel) -> None:
    model = zoo_model.build()
    shapes = {port.any_name: port.get_partial_shape() for port in model.inputs}
    assert any(shape.is_dynamic for shape in shapes.values()) == (
        zoo_model.dynamic and "stateful" not in zoo_model.tags
    )
    for inputs in zoo_model.inputs(0):
        assert inputs.keys() == shapes.keys()
        assert all(shapes[name].compatible(ov.PartialShape(list(array.shape))) for name, array in inputs.items())
    assert bool(model.get_sinks()) == ("stateful" in zoo_model.tags)


def test_a_model_is_the_same_each_time_and_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ZOO["lstm"]
    inputs = model.inputs(3)
    results = []
    for folder in ("first", "second"):
        monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / folder))
        results.append(infer(ov.Core().compile_model(model.build(), "CPU", F32), inputs))
    assert largest_difference(*results) == 0

    (kept,) = (tmp_path / "second").iterdir()
    written = (kept / "model.xml").stat().st_mtime_ns
    model.build()
    assert [path.name for path in (tmp_path / "second").iterdir()] == [kept.name]
    assert (kept / "model.xml").stat().st_mtime_ns == written


def test_a_failed_conversion_leaves_nothing_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))

    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(ov, "save_model", fail)
    with pytest.raises(OSError, match="disk full"):
        ZOO["rnn"].build()
    assert not list(tmp_path.iterdir())


def test_dynamic_models_come_with_several_sizes() -> None:
    for model in ZOO.values():
        shapes = {tuple(array.shape for array in inputs.values()) for inputs in model.inputs(0)}
        assert (len(shapes) > 1) == model.dynamic, model.name


def test_the_zoo_covers_many_families() -> None:
    assert len(ONNX_MODELS) == 9
    assert {"bert", "vit", "swin", "t5", "mobilenet", "convnext", "lstm"} <= {model.family for model in ZOO.values()}
    assert {"bert-dynamic", "t5-encoder-dynamic"} <= {model.name for model in ZOO.values() if model.dynamic}
    assert len(select(["quick"])) >= 100
    assert len({model.family for model in select(["quick"])}) >= 60


@pytest.mark.parametrize(
    ("name", "type_name", "element_type"),
    [
        ("resnet-small-int8", "FakeQuantize", ov.Type.f32),
        ("bert-small-fp16", "Constant", ov.Type.f16),
        ("llama-small-int4-weights", "Constant", ov.Type.i4),
        ("llama-beams", "ReadValue", ov.Type.f32),
        ("nms-detector", "NonMaxSuppression", ov.Type.i64),
        ("scan", "TensorIterator", ov.Type.f32),
        ("looped-cell", "Loop", ov.Type.f32),
        ("branching", "If", ov.Type.f32),
        ("splitting", "VariadicSplit", ov.Type.f32),
        ("masked-pooling", "Parameter", ov.Type.boolean),
        ("string-classifier", "Parameter", ov.Type.string),
        ("mobilenet-tflite", "GroupConvolution", ov.Type.f32),
    ],
)
def test_kinds_of_models_are_what_they_say(name: str, type_name: str, element_type: ov.Type) -> None:
    nodes = [node for node in ZOO[name].build().get_ops() if node.get_type_name() == type_name]
    assert element_type in {node.get_output_element_type(0) for node in nodes}


def test_select_by_name_family_and_tag() -> None:
    assert [model.name for model in select(["lstm"])] == ["lstm"], "a model's name goes before its family's"
    assert {model.family for model in select(["swin"])} == {"swin"}
    assert all("stateful" in model.tags for model in select(["stateful"]))
    assert len(select(["swin", "swin-small"])) == len(select(["swin"]))
    with pytest.raises(UserError, match="'resnet5000'"):
        select(["resnet5000"])


@pytest.mark.parametrize("port", [0, 1])
def test_a_difference_is_relative_to_its_own_output(port: int) -> None:
    expected = [[np.array([1000.0, 0.0], np.float32), np.array([0.01, 0.0], np.float32)]]
    got = [[array.copy() for array in expected[0]]]
    assert largest_difference(expected, got) == 0
    got[0][port][1] = 0.5 * expected[0][port][0]
    assert largest_difference(expected, got) == pytest.approx(0.5)
    got[0][port][1] = np.nan
    assert largest_difference(expected, got) == float("inf")
    got[0][port] = got[0][port][:1]
    assert largest_difference(expected, got) == float("inf")
