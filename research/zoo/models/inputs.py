"""Seeded input tensors for a model, and the shapes for its conversion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from openvino import Dimension, PartialShape

Kind = Literal["normal", "uniform", "tokens", "mask", "ones", "positions", "flag"]


@dataclass(frozen=True)
class Input:
    """One input tensor.

    Attributes:
        name: name of the input.
        shape: sizes; a string is a dynamic dimension, whose size each input set gives by that name.
        kind: "normal" and "uniform" (0 to 1) are float32; "tokens" is int64 in [low, high); "mask" is int64, 1 except
            in the last quarter of the last dimension (padding); "ones" is int64; "positions" is int64, 0, 1, … along
            the last dimension; "flag" is random booleans.
        high: upper limit of "tokens", excluded.
        low: lower limit of "tokens".
        state: index of the output with this input's next value. Input and output become a variable (ReadValue and
            Assign) of a stateful model, and no longer exist then.
    """

    name: str
    shape: tuple[int | str, ...]
    kind: Kind = "normal"
    high: int = 0
    low: int = 0
    state: int | None = None

    def draw(self, random: np.random.Generator, sizes: Mapping[str, int]) -> NDArray[Any]:
        shape = tuple(sizes[size] if isinstance(size, str) else size for size in self.shape)
        if self.kind == "normal":
            return random.standard_normal(shape, dtype=np.float32)
        if self.kind == "uniform":
            return random.random(shape, dtype=np.float32)
        if self.kind == "tokens":
            return random.integers(self.low, self.high, shape, dtype=np.int64)
        if self.kind == "flag":
            return random.random(shape) < 0.5
        if self.kind == "ones":
            return np.ones(shape, np.int64)
        along = np.broadcast_to(np.arange(shape[-1], dtype=np.int64), shape)
        if self.kind == "positions":
            return np.ascontiguousarray(along)
        return (along < shape[-1] - shape[-1] // 4).astype(np.int64)

    def partial_shape(self) -> PartialShape:
        """The shape for the conversion, dynamic where a size is a string."""
        return PartialShape([Dimension(-1) if isinstance(size, str) else Dimension(size) for size in self.shape])


@dataclass(frozen=True)
class Inputs:
    """All inputs of a model in the order of its parameters, and the sizes of dynamic dimensions in each input set."""

    specs: tuple[Input, ...]
    sizes: tuple[Mapping[str, int], ...] = ({},)

    @property
    def dynamic(self) -> bool:
        given = [spec for spec in self.specs if spec.state is None]
        return any(isinstance(size, str) for spec in given for size in spec.shape)

    def __call__(self, seed: int) -> list[dict[str, NDArray[Any]]]:
        """One dict of arrays by input name for each entry of `sizes`."""
        random = np.random.default_rng(seed)
        given = [spec for spec in self.specs if spec.state is None]
        return [{spec.name: spec.draw(random, sizes) for spec in given} for sizes in self.sizes]

    def examples(self, seed: int) -> dict[str, NDArray[Any]]:
        """An input set for the conversion, including states."""
        random = np.random.default_rng(seed)
        return {spec.name: spec.draw(random, self.sizes[0]) for spec in self.specs}


def inputs(*specs: Input, sizes: tuple[Mapping[str, int], ...] = ({},)) -> Inputs:
    return Inputs(specs, sizes)


def image(height: int, width: int | None = None, *, channels: int = 3, name: str = "pixel_values") -> Inputs:
    """Inputs of a model that takes one normalized image, [1, channels, height, width].

    Args:
        height: pixels.
        width: pixels; None for as many as `height`.
        channels: number of channels.
        name: name of the input.

    Returns:
        The inputs.
    """
    return Inputs((Input(name, (1, channels, height, width or height)),))


def text(length: int, vocabulary: int, *, batch: int = 1, mask: bool = True) -> Inputs:
    """Inputs of a model that takes text: token ids and an attention mask with padding, [batch, length].

    Args:
        length: tokens.
        vocabulary: number of different tokens.
        batch: number of texts.
        mask: whether there is an attention mask.

    Returns:
        The inputs.
    """
    ids = Input("input_ids", (batch, length), "tokens", vocabulary, 3)
    return Inputs((ids, Input("attention_mask", (batch, length), "mask")) if mask else (ids,))


def dynamic_text(vocabulary: int, *, mask: bool = True) -> Inputs:
    """Inputs like those of `text` with dynamic batch and length, and three input sets of different sizes."""
    ids = Input("input_ids", ("batch", "length"), "tokens", vocabulary, 3)
    return Inputs(
        (ids, Input("attention_mask", ("batch", "length"), "mask")) if mask else (ids,),
        ({"batch": 1, "length": 16}, {"batch": 1, "length": 37}, {"batch": 3, "length": 8}),
    )
