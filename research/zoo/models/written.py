"""Recipes for models that are written operation by operation, in ONNX, TensorFlow Lite or OpenVINO."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from research.zoo.models.inputs import Input, Inputs


@dataclass(frozen=True)
class Written:
    """The model of a function in `onnx_graphs`, `tflite_graphs` or `openvino_graphs`, read from a file if necessary."""

    format: Literal["onnx", "tflite", "openvino"]
    function: str

    def sources(self) -> tuple[Path, ...]:
        return (Path(__file__), Path(__file__).with_name(f"{self.format}_graphs.py"))

    def convert(self, inputs: Inputs, seed: int) -> ov.Model:
        made = getattr(import_module(f"research.zoo.models.{self.format}_graphs"), self.function)(seed)
        if self.format == "openvino":
            model: ov.Model = made
        else:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / f"model.{self.format}"
                path.write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
                model = ov.convert_model(path)
        for parameter, spec in zip(model.get_parameters(), inputs.specs, strict=True):
            parameter.set_friendly_name(spec.name)
            parameter.output(0).get_tensor().set_names({spec.name})
        return model


@dataclass(frozen=True)
class Words(Input):
    """An input of random strings of up to `high` small letters each."""

    def draw(self, random: np.random.Generator, sizes: Mapping[str, int]) -> NDArray[Any]:
        shape = tuple(sizes[size] if isinstance(size, str) else size for size in self.shape)
        lengths = random.integers(0, self.high + 1, shape)
        words = ["".join(chr(letter) for letter in random.integers(97, 123, length)) for length in lengths.flat]
        return np.array(words).reshape(shape)
