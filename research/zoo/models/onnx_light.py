"""The nine real architectures of the onnx wheel, at their published size."""

from __future__ import annotations

from research.zoo.models.base import ZooModel, model
from research.zoo.models.inputs import Input, inputs
from research.zoo.models.recipes import OnnxLight

_IMAGE = inputs(Input("image", (1, 3, 224, 224)))

MODELS: tuple[ZooModel, ...] = (
    model("resnet50", "resnet", OnnxLight("resnet50"), _IMAGE, "quick", "full", "onnx"),
    model("densenet121", "densenet", OnnxLight("densenet121"), _IMAGE, "quick", "full", "onnx"),
    model("inception-v1", "inception", OnnxLight("inception_v1"), _IMAGE, "quick", "full", "onnx"),
    model("inception-v2", "inception", OnnxLight("inception_v2"), _IMAGE, "quick", "full", "onnx"),
    model("shufflenet", "shufflenet", OnnxLight("shufflenet", branch=0.25), _IMAGE, "quick", "full", "onnx"),
    model("squeezenet", "squeezenet", OnnxLight("squeezenet"), _IMAGE, "quick", "full", "onnx"),
    # Hundreds of megabytes of weights each, nearly all in the classifier.
    model("vgg19", "vgg", OnnxLight("vgg19"), _IMAGE, "full", "onnx"),
    model("alexnet", "alexnet", OnnxLight("bvlc_alexnet"), _IMAGE, "full", "onnx"),
    model("zfnet512", "zfnet", OnnxLight("zfnet512"), _IMAGE, "full", "onnx"),
)
