"""Recipes: a transformers architecture from its configuration, a module of `torch_modules`, an ONNX light model.

All weights are drawn from a seed, at scales that keep activations near 1 in every layer. With the libraries' own
initialisation, or with the constants of the ONNX light models, outputs would hardly depend on the input, and comparing
two placements would prove nothing.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from research.zoo.models.inputs import Inputs

if TYPE_CHECKING:
    import onnx
    import torch


@dataclass(frozen=True)
class Transformers:
    """A class of transformers, built from a configuration.

    Attributes:
        model: name of the class.
        config: arguments of its configuration.
        output: attributes of its result that become the model's outputs; "" for the result itself.
        part: dotted path of the submodule to convert; "" for the whole model.
        call: further arguments of its forward method.
        keep_linear: keep the library's own Linear and Embedding weights; T5 relies on them, as it does not scale its
            attention.
    """

    model: str
    config: Mapping[str, Any]
    output: str | tuple[str, ...] = "last_hidden_state"
    part: str = ""
    call: Mapping[str, Any] = field(default_factory=dict)
    keep_linear: bool = False

    def sources(self) -> tuple[Path, ...]:
        return (Path(__file__),)

    def convert(self, inputs: Inputs, seed: int) -> ov.Model:
        import torch
        import transformers

        with _quiet():
            torch.manual_seed(seed)
            cls = getattr(transformers, self.model)
            module = cls(cls.config_class(**self.config, attn_implementation="eager")).eval()
            tame(module, seed, keep_linear=self.keep_linear)
            if self.part:
                module = module.get_submodule(self.part)
            names = tuple(spec.name for spec in inputs.specs)
            return from_torch(_by_name(module, names, self.call, self.output), inputs, seed)


@dataclass(frozen=True)
class Torch:
    """A module of `torch_modules`, by name, with the arguments of its constructor."""

    module: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def sources(self) -> tuple[Path, ...]:
        return (Path(__file__), Path(__file__).with_name("torch_modules.py"))

    def convert(self, inputs: Inputs, seed: int) -> ov.Model:
        import torch

        from research.zoo.models import torch_modules

        with _quiet():
            torch.manual_seed(seed)
            module = getattr(torch_modules, self.module)(**self.options).eval()
            tame(module, seed)
            return from_torch(module, inputs, seed)


@dataclass(frozen=True)
class OnnxLight:
    """One of the real architectures in the onnx wheel (backend/test/data/light).

    Attributes:
        file: name of its file without "light_".
        branch: scale of the last normalization of each residual branch; a value below 1 keeps the activations from
            growing over dozens of sums until the final softmax saturates.
    """

    file: str
    branch: float = 0.5

    def sources(self) -> tuple[Path, ...]:
        return (Path(__file__),)

    def convert(self, inputs: Inputs, seed: int) -> ov.Model:
        import onnx

        proto = onnx.load(onnx_light_file(self.file))
        randomise_onnx(proto, seed, self.branch)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            onnx.save_model(proto, path)
            model = ov.convert_model(path)
        _name_inputs(model, inputs)
        return model


def onnx_light_file(name: str) -> Path:
    """The path of light_<name>.onnx in the installed onnx wheel. Its weights are constants, see `randomise_onnx`."""
    import onnx

    return Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / f"light_{name}.onnx"


def randomise_onnx(proto: onnx.ModelProto, seed: int, branch: float) -> None:
    """Replaces every float weight of a model, in place, by random values at a scale that suits its role.

    The light models fill their weights by ConstantOfShape nodes with one value each; these nodes become initializers.

    Args:
        proto: the model.
        seed: seed of the values.
        branch: scale of the last normalization of each residual branch.
    """
    from onnx import numpy_helper

    random = np.random.default_rng(seed)
    graph = proto.graph
    shapes = {item.name: numpy_helper.to_array(item) for item in graph.initializer if item.data_type == 7}
    weights = {item.name: tuple(item.dims) for item in graph.initializer if item.data_type == 1}
    filled = [node for node in graph.node if node.op_type == "ConstantOfShape"]
    weights.update({node.output[0]: tuple(shapes[node.input[0]]) for node in filled})
    roles = _onnx_roles(graph)
    sizes_used = {node.input[0] for node in filled}

    for node in filled:
        graph.node.remove(node)
    for item in [item for item in graph.initializer if item.data_type == 1 or item.name in sizes_used]:
        graph.initializer.remove(item)
    for item in [item for item in graph.input if item.name in weights or item.name in sizes_used]:
        graph.input.remove(item)
    for name, shape in weights.items():
        graph.initializer.append(numpy_helper.from_array(_draw(random, roles.get(name, "bias"), shape, branch), name))


def _onnx_roles(graph: onnx.GraphProto) -> dict[str, str]:
    """The role of each weight by its consumer: "weight", "bias", "scale" (near 1) or "branch scale"."""
    summed = {name for node in graph.node if node.op_type == "Sum" for name in node.input}
    by_port = {
        "Conv": {1: "weight", 2: "bias"},
        "Gemm": {1: "weight", 2: "bias"},
        "BatchNormalization": {1: "scale", 2: "bias", 3: "bias", 4: "scale"},
        "Mul": {0: "scale", 1: "scale"},
        "Add": {0: "bias", 1: "bias"},
    }
    roles: dict[str, str] = {}
    for node in reversed(graph.node):
        for port, name in enumerate(node.input):
            if node.op_type == "Unsqueeze":
                roles[name] = roles.get(node.output[0], "bias")
            elif role := by_port.get(node.op_type, {}).get(port):
                joins = node.op_type == "BatchNormalization" and port == 1 and node.output[0] in summed
                roles[name] = "branch scale" if joins else role
    return roles


def _draw(random: np.random.Generator, role: str, shape: tuple[int, ...], branch: float) -> NDArray[np.float32]:
    if role == "weight":
        deviation = np.float32(np.sqrt(2.0 / np.prod(shape[1:])))
        return random.standard_normal(shape, dtype=np.float32) * deviation
    if role in ("scale", "branch scale"):
        around_one = np.float32(0.8) + np.float32(0.4) * random.random(shape, dtype=np.float32)
        return around_one if role == "scale" else around_one * np.float32(branch)
    return np.float32(0.1) * random.standard_normal(shape, dtype=np.float32)


def tame(module: torch.nn.Module, seed: int, *, keep_linear: bool = False) -> None:  # noqa: C901 a branch for each kind of weight
    """Draws the weights of a module, in place, so that the output of every layer has a scale near 1 and matters.

    Args:
        module: the module.
        seed: seed of the weights.
        keep_linear: keep the weights of Linear and Embedding.
    """
    import torch
    from torch import nn

    generator = torch.Generator().manual_seed(seed)
    done: set[int] = set()

    def normal(tensor: torch.Tensor, deviation: float) -> None:
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * deviation)

    def uniform(tensor: torch.Tensor, low: float, high: float) -> None:
        tensor.copy_(torch.rand(tensor.shape, generator=generator) * (high - low) + low)

    with torch.no_grad():
        for path, part in module.named_modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is not None:
                assert part.running_var is not None
                normal(part.running_mean, 0.1)
                uniform(part.running_var, 0.8, 1.2)
            for name, tensor in part.named_parameters(recurse=False):
                if id(tensor) in done or not tensor.is_floating_point():
                    continue
                done.add(id(tensor))
                kind = type(part).__name__
                if any(word in f"{path}.{name}" for word in ("layer_scale", "lambda", "gamma")) and tensor.ndim == 1:
                    uniform(tensor, 0.3, 0.7)
                elif name == "weight" and kind.startswith("ConvTranspose"):
                    normal(tensor, float((tensor.shape[0] * tensor[0, 0].numel() / np.prod(part.stride)) ** -0.5))
                elif name == "weight" and isinstance(part, nn.modules.conv._ConvNd):
                    normal(tensor, float((2.0 / tensor[0].numel()) ** 0.5))
                elif kind in ("Linear", "Conv1D", "Embedding") and name == "weight":
                    if not keep_linear:
                        fan_in = tensor.shape[0] if kind == "Conv1D" else tensor.shape[-1]
                        normal(tensor, 0.5 if kind == "Embedding" else float(fan_in**-0.5))
                elif name == "weight" and tensor.ndim == 1:
                    uniform(tensor, 0.8, 1.2)
                elif "bias" in name and tensor.ndim == 1:
                    normal(tensor, 0.1)
                elif tensor.numel() > 1 and bool((tensor == tensor.flatten()[0]).all()):
                    normal(tensor, 0.1)  # class tokens, position tables and similar, which are initialised with zeros


def from_torch(module: torch.nn.Module, inputs: Inputs, seed: int) -> ov.Model:
    """Converts a module, by tracing unless it is scripted.

    Args:
        module: the module.
        inputs: names and shapes of the model's inputs, and which of them become states.
        seed: seed of the example inputs.

    Returns:
        The model.
    """
    import torch

    example = tuple(torch.from_numpy(array) for array in inputs.examples(seed).values())
    with torch.no_grad():
        module(*example)  # some modules compute tables in their first run, which would confuse the tracer
        model = ov.convert_model(module, example_input=example, input=[spec.partial_shape() for spec in inputs.specs])
    _name_inputs(model, inputs)
    for index, output in enumerate(model.outputs):
        output.get_tensor().set_names({f"output_{index}"})
    if states := {spec.name: f"output_{spec.state}" for spec in inputs.specs if spec.state is not None}:
        from openvino._offline_transformations import apply_make_stateful_transformation

        apply_make_stateful_transformation(model, states)
    return model


def _name_inputs(model: ov.Model, inputs: Inputs) -> None:
    if len(model.inputs) != len(inputs.specs):
        raise ValueError(f"the zoo expected {len(inputs.specs)} inputs, the converted model has {model.inputs}")
    for parameter, spec in zip(model.get_parameters(), inputs.specs, strict=True):
        parameter.set_friendly_name(spec.name)
        parameter.output(0).get_tensor().set_names({spec.name})
    model.validate_nodes_and_infer_types()


def _by_name(
    module: torch.nn.Module, names: tuple[str, ...], call: Mapping[str, Any], output: str | tuple[str, ...]
) -> torch.nn.Module:
    """Wraps a module that takes keywords and returns an object into one with positional tensors."""
    import torch

    class ByName(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *tensors: torch.Tensor) -> Any:
            result = self.module(**dict(zip(names, tensors, strict=True)), **call)
            if isinstance(output, tuple):
                return tuple(getattr(result, name) for name in output)
            return getattr(result, output) if output else result

    return ByName().eval()


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses the warnings of converters and transformers inside the block; none of them concerns users."""
    import transformers

    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers.logging.set_verbosity(verbosity)
