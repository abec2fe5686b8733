"""Models as they are deployed: quantised, compressed, from other formats, with unusual inputs."""

from __future__ import annotations

from typing import Any

from research.zoo.models import other, text, vision
from research.zoo.models.base import Recipe, ZooModel, model
from research.zoo.models.derived import BeamSearch, CompressedWeights, Quantised
from research.zoo.models.inputs import Input, Inputs, inputs
from research.zoo.models.written import Words, Written

_PLAIN = {one.name: one for one in (*text.MODELS, *vision.MODELS, *other.MODELS)}


def _derived(base: str, ending: str, recipe: type[Any], **options: Any) -> ZooModel:
    """A model of the zoo changed by another recipe, with the same family and inputs."""
    plain = _PLAIN[base]
    assert isinstance(plain.inputs, Inputs)
    made: Recipe = recipe(plain.recipe, **options)
    return model(f"{base}-{ending}", plain.family, made, plain.inputs, *(plain.tags | {ending}))


def _beams() -> ZooModel:
    step = _PLAIN["llama-stateful"]
    assert isinstance(step.inputs, Inputs)
    beams = 2
    # The inputs of the decoder for one beam, with a larger batch.
    decoder_inputs = tuple(
        Input(one.name, (beams, *one.shape[1:]), one.kind, one.high, one.low, one.state) for one in step.inputs.specs
    )
    order = Input("beams", (beams,), "tokens", beams)
    given_inputs = inputs(*decoder_inputs, order, sizes=step.inputs.sizes)
    return model("llama-beams", "llama", BeamSearch(step.recipe), given_inputs, "quick", "stateful")


MODELS: tuple[ZooModel, ...] = (
    # Quantised by NNCF: convolutions, transformers, a detector
    *(_derived(name, "int8", Quantised) for name in ("resnet-small", "mobilenet-v2-small", "yolo-like-small")),
    *(_derived(name, "int8", Quantised, transformer=True) for name in ("bert-small", "vit-small")),
    # Weights in f16, as ovc writes them by default, or smaller ones
    *(
        _derived(name, "fp16", CompressedWeights, type="f16")
        for name in ("resnet-small", "bert-small", "bert-dynamic", "t5-small", "unet-small", "lstm")
    ),
    *(_derived(name, "int8-weights", CompressedWeights, type="int8") for name in ("gpt2-small", "llama-stateful")),
    *(_derived(name, "int4-weights", CompressedWeights, type="int4") for name in ("llama-small", "qwen2-small")),
    # A decoder that reorders its states before using them
    _beams(),
    # Operations and inputs that the converter for torch does not produce
    model(
        "nms-detector", "nms", Written("onnx", "nms_detector"), inputs(Input("image", (1, 3, 64, 64))), "quick", "onnx"
    ),
    model("scan", "scan", Written("onnx", "scan"), inputs(Input("sequence", (10, 1, 16))), "quick", "onnx"),
    model(
        "splitting", "splitting", Written("onnx", "splitting"), inputs(Input("image", (1, 16, 16, 16))), "quick", "onnx"
    ),
    model(
        "masked-pooling",
        "pooling",
        Written("onnx", "masked_pooling"),
        inputs(Input("sequence", (2, 16, 24)), Input("counts", (2, 16), "flag")),
        "quick",
        "onnx",
    ),
    model("tensor-iterator", "scan", Written("openvino", "tensor_iterator"), inputs(Input("sequence", (1, 12, 16)))),
    model(
        "string-classifier",
        "strings",
        Written("openvino", "string_classifier"),
        inputs(Words("texts", ("batch",), high=20), sizes=({"batch": 4}, {"batch": 1}, {"batch": 7})),
    ),
    model(
        "mobilenet-tflite",
        "mobilenet",
        Written("tflite", "mobile_net"),
        inputs(Input("image", (1, 64, 64, 3))),
        "quick",
        "tflite",
    ),
)
