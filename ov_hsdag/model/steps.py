"""Inputs of stateful models step by step, as language models take them: a prompt, then further tokens.

The inputs of a step have to fit the contents of the states: the attention mask is as long as all tokens so far, the
positions go on, and beams are numbers of sequences in the batch. Inputs are recognised by the names that optimum-intel,
openvino.genai and transformers share. Models with other names get inputs of the same shapes in every step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.model.shapes import counted_input_shapes
from ov_hsdag.model.workload import (
    BEAMS,
    CACHE_POSITIONS,
    MASKS,
    POSITIONS,
    TOKENS,
    convolution_window,
    mask_covers_past,
)
from ov_hsdag.utils.errors import RunError
from ov_hsdag.utils.lazy import ov

MASK = MASKS[0]
"""Name of the attention mask of decoders."""

FILLED = 256
"""Tokens that are read to fill states. States that have to hold more repeat them, which saves inferences."""

TIMED_STEPS = 128
"""Tokens that are timed one after the other before the states are reset."""

FURTHER = 5
"""Steps of a conversation after the prompt, of one token each."""

REORDERED = 3
"""Number of the step in which beams change places."""

Inputs = list[NDArray[Any]]
"""Arrays of one inference, in the order of the model's inputs."""


def is_stateful(model: ov.Model) -> bool:
    """Whether a model keeps states from one inference to the next."""
    return bool(model.get_variables())


@dataclass(frozen=True)
class _Sizes:
    """Sizes of one step, an inference of a decoder."""

    batch: int  # number of sequences
    tokens: int  # new tokens of each sequence
    past: int  # earlier tokens of each sequence


@dataclass(frozen=True)
class _Input:
    """An input with its counted shape."""

    role: str  # its known name, such as "attention_mask"; "" for other inputs
    shape: tuple[int, ...]  # the shape that costs count with
    open_batch: bool  # whether its batch is dynamic and has no example size
    synthetic: SyntheticInput  # generates its values


def _read_inputs(model: ov.Model, shapes: Mapping[str, Sequence[int]] | None) -> list[_Input]:
    """Describes the inputs of a model, in the model's order.

    Args:
        model: the model.
        shapes: example shapes by input name.

    Raises:
        RunError: an input has a type of which no values can be generated.
        UserError: `shapes` name no input, or do not fit.
    """
    counted = counted_input_shapes(model, shapes)
    return [
        _read_input(port, parameter, shape, shapes or {})
        for port, parameter, shape in zip(model.inputs, model.get_parameters(), counted, strict=True)
    ]


def _read_input(
    port: ov.Output, parameter: ov.Node, shape: Sequence[int], shapes: Mapping[str, Sequence[int]]
) -> _Input:
    """Describes one input.

    Args:
        port: the model's input.
        parameter: its node.
        shape: the shape that costs count with.
        shapes: example shapes by input name.

    Raises:
        RunError: it has a type of which no values can be generated.
    """
    names = {parameter.get_friendly_name(), *port.get_names()}
    partial = port.get_partial_shape()
    role = next((name for name in (*TOKENS, MASK, POSITIONS, BEAMS, CACHE_POSITIONS) if name in names), "")
    axis = len(shape) - 2 if role == POSITIONS else 0
    has_axis = partial.rank.is_static and 0 <= axis < len(shape)
    open_batch = has_axis and partial[axis].is_dynamic and names.isdisjoint(shapes) and role != CACHE_POSITIONS
    return _Input(role, tuple(shape), open_batch, SyntheticInput.of(parameter))


def _vocabulary(model: ov.Model) -> int:
    """Returns the number of values of a token: the last dimension of the logits, where it is known.

    Logits have a value for each token of the vocabulary. Without this size, only tokens 0 and 1 could be drawn.
    """
    last = [port.get_partial_shape()[-1] for port in model.outputs if port.get_partial_shape().rank == 3]
    return max([2, *(dimension.get_length() for dimension in last[:1] if dimension.is_static)])


class StatefulInputs:
    """Generates inputs of a stateful model that fit together.

    Attributes:
        past: tokens that the states hold before the inference of the example shapes: the length of the mask minus the
            number of new tokens.
    """

    def __init__(self, model: ov.Model, shapes: Mapping[str, Sequence[int]] | None = None, sequences: int = 1) -> None:
        """Reads the inputs of a model with states.

        Args:
            model: the model.
            shapes: example shapes by input name.
            sequences: least number of sequences in the batch of a model with beams, where inputs and example shapes
                leave the batch open.

        Raises:
            RunError: an input has a type of which no values can be generated.
            UserError: `shapes` name no input, or do not fit.
        """
        self._inputs = _read_inputs(model, shapes)
        self._vocabulary = _vocabulary(model)
        self._mask_covers_past = mask_covers_past(model)
        self._window = convolution_window(model)
        shape_of = {described.role: described.shape for described in self._inputs if described.role}
        tokens: tuple[int, ...] = next((shape_of[role] for role in TOKENS if role in shape_of), ())
        # Without an input of tokens, all steps have inputs of the same shapes.
        self._has_tokens = len(tokens) >= 2
        self.past = self._tokens_before(shape_of, tokens[1]) if self._has_tokens else 0
        batch = tokens[0] if tokens else 1
        if BEAMS in shape_of and self._batch_is_open():
            batch = max(batch, sequences)
        self._example_sizes = _Sizes(batch, tokens[1] if self._has_tokens else 0, 0)
        self._token_count_is_open = self._has_tokens and any(
            described.role in TOKENS and port.get_partial_shape()[1].is_dynamic
            for described, port in zip(self._inputs, model.inputs, strict=True)
        )

    def _tokens_before(self, shape_of: Mapping[str, Sequence[int]], new_tokens: int) -> int:
        """Computes how many tokens the states hold before the inference of the example shapes.

        Args:
            shape_of: shapes of the inputs by role.
            new_tokens: number of new tokens.
        """
        positions = shape_of.get(CACHE_POSITIONS)
        if self._window and positions and positions[0] != self._window:
            return self._window  # this is no prompt, and the mask does not show how many tokens came before
        return max(shape_of[MASK][-1] - new_tokens, 0) if MASK in shape_of else 0

    def _batch_is_open(self) -> bool:
        """Whether no input says how many sequences there are: all have an open batch, which counts as 1."""
        batched = [described for described in self._inputs if described.role != CACHE_POSITIONS and described.shape]
        return all(described.open_batch and described.shape[self._batch_axis(described)] == 1 for described in batched)

    @staticmethod
    def _batch_axis(described: _Input) -> int:
        """Axis of an input's shape that has the number of sequences."""
        return len(described.shape) - 2 if described.role == POSITIONS and len(described.shape) > 1 else 0

    def timed(self, seed: int = 0) -> tuple[list[Inputs], list[Inputs]]:
        """Generates the inputs of timed inferences and of the inferences before them.

        Args:
            seed: seed of the random numbers.

        Returns:
            (before, timed). `before` are inputs of untimed inferences that fill the states: none if the states are
            empty; one inference; or two, of `FILLED` tokens together and the last with one token, if the states hold
            more. `timed` are inputs of the timed inferences: `TIMED_STEPS` consecutive ones if the example shapes are
            one token after others, else one.
        """
        random = np.random.default_rng(seed)
        batch, tokens, past = self._example_sizes.batch, self._example_sizes.tokens, self.past
        counts = [FILLED - 1, 1] if self._token_count_is_open and past > FILLED else [past] if past else []
        before = [self._step(random, _Sizes(batch, count, sum(counts[:number]))) for number, count in enumerate(counts)]
        steps = TIMED_STEPS if self._token_count_is_open and past and tokens == 1 else 1
        return before, [self._step(random, _Sizes(batch, tokens, past + number * tokens)) for number in range(steps)]

    def conversation(self, seed: int = 0, further: int = FURTHER) -> list[Inputs]:
        """Generates the inputs of all steps after a reset.

        The steps are the earlier tokens, the tokens of the example shapes, and further single tokens. Sequences change
        places in step `REORDERED` where there are several. Models with unknown inputs, or with a fixed number of
        tokens, get the same shapes in each step.

        Args:
            seed: seed of the random numbers.
            further: number of steps after the tokens of the example shapes.

        Returns:
            Inputs of each step.
        """
        random = np.random.default_rng(seed)
        batch, tokens = self._example_sizes.batch, self._example_sizes.tokens
        counts = [tokens, *[1 if self._token_count_is_open else tokens] * further]
        if self.past:
            counts.insert(0, self.past)
        steps, past = [], 0
        for number, tokens in enumerate(counts):
            steps.append(self._step(random, _Sizes(batch, tokens, past), swap=number == REORDERED))
            past += tokens
        return steps

    def _step(self, random: np.random.Generator, sizes: _Sizes, swap: bool = False) -> Inputs:
        """Generates the inputs of one step; `swap` is whether the sequences change places in it."""
        return [self._array(random, one, sizes, swap) for one in self._inputs]

    def _array(self, random: np.random.Generator, described: _Input, sizes: _Sizes, swap: bool) -> NDArray[Any]:
        """Generates the value of one input.

        Args:
            random: the source of random numbers.
            described: the input.
            sizes: sizes of the step.
            swap: whether beams are in reverse order, so that sequences change places.
        """
        shape = list(described.shape)
        if shape and described.open_batch:
            shape[self._batch_axis(described)] = max(shape[self._batch_axis(described)], sizes.batch)
        if self._has_tokens and len(shape) >= 2:
            if described.role in TOKENS:
                shape[1] = sizes.tokens
            elif described.role == MASK:
                shape[-1] = sizes.past + sizes.tokens if self._mask_covers_past else sizes.tokens
            elif described.role == POSITIONS:
                shape[-1] = sizes.tokens
        past = sizes.past if self._has_tokens else 0
        if self._has_tokens and described.role == CACHE_POSITIONS and len(shape) == 1:
            shape[0] = self._window if self._window and not sizes.past else sizes.tokens
        values = described.synthetic.values(random, shape, past, self._vocabulary if described.role in TOKENS else 2)
        return np.ascontiguousarray(values[::-1]) if swap and described.role == BEAMS else values


# Endings of names that transformers, optimum-intel, openvino.genai and TensorFlow's models share.
_MASKS = ("mask",)
_POSITIONS = ("position_ids", "cache_position")
_BEAMS = ("beam_idx",)

# Operations that pass indices on from their first input.
_INDEX_PRESERVING = {"Convert", "Reshape", "Squeeze", "Unsqueeze", "Transpose"}


@dataclass(frozen=True)
class SyntheticInput:
    """Generates plausible values of an input, by its names, type and readers."""

    names: frozenset[str]  # lower-case names of the input, without TensorFlow's "…:0"
    dtype: np.dtype[Any]  # type of its values
    # length of the shortest table whose rows the input selects; None if it selects none, or the length is not known
    rows: int | None

    @classmethod
    def of(cls, parameter: ov.Node) -> SyntheticInput:
        """Makes the generator for the input of a Parameter.

        Raises:
            RunError: no values of its type can be generated.
        """
        try:
            dtype = np.dtype(parameter.get_element_type().to_dtype())
        except (RuntimeError, TypeError, KeyError) as error:
            raise RunError(f"cannot make up values of type {parameter.get_element_type()} for an input") from error
        if dtype.kind == "S":  # texts are Python's str here
            dtype = np.dtype(np.str_)
        names = {parameter.get_friendly_name(), *parameter.output(0).get_names()}
        rows = _rows(parameter) if np.issubdtype(dtype, np.integer) else None
        return cls(frozenset(name.partition(":")[0].lower() for name in names), dtype, rows)

    def values(self, random: np.random.Generator, shape: Sequence[int], past: int = 0, few: int = 2) -> NDArray[Any]:
        """Generates the values of one inference.

        Masks are ones, as a row without any would give NaN. Positions and beams are in order; other integers are random
        indices. Texts are sentences of several lengths. Images have areas with edges, because detectors find nothing in
        noise.

        Args:
            random: the source of random numbers.
            shape: shape of the input.
            past: the first position.
            few: number of different integers where no table limits them (at least 2), so values are below it.

        Returns:
            An array of the input's shape and type.
        """
        if self._ends_with(_MASKS):
            return np.ones(shape, self.dtype)
        if self.dtype.kind == "U":
            return _sentences(random, shape)
        if _is_image(shape) and self.rows is None and (self.dtype.kind == "f" or self.dtype == np.uint8):
            areas = _areas(random, shape)
            return (2 * areas - 1).astype(self.dtype) if self.dtype.kind == "f" else (255 * areas).astype(np.uint8)
        if np.issubdtype(self.dtype, np.floating):
            return random.standard_normal(shape).astype(self.dtype)
        if shape and self._ends_with(_POSITIONS):
            positions = np.arange(past, past + shape[-1])
            return np.broadcast_to(positions if self.rows is None else positions % self.rows, shape).astype(self.dtype)
        if len(shape) == 1 and self._ends_with(_BEAMS):
            return np.arange(shape[0]).astype(self.dtype)
        if self.dtype == np.uint8 and self.rows is None:  # an image
            return random.integers(0, 256, shape, dtype=self.dtype)
        return random.integers(0, few if self.rows is None else max(self.rows, 1), shape).astype(self.dtype)

    def _ends_with(self, ends: tuple[str, ...]) -> bool:
        """Whether any name of the input ends with one of the texts."""
        return any(name.endswith(ends) for name in self.names)


_SMALLEST_IMAGE = 16
"""Height and width from which on an input with one or three channels is treated as an image."""

_AREAS = 12
"""Number of rectangles in a generated image."""

_NOISE = 0.05
"""Standard deviation of the noise on each pixel, of values from 0 to 1, so that no two pixels are equal."""

_LONGEST_TEXT = 12
"""Largest number of words of a generated text."""

_WORDS = (
    "the a of and to in is that it with for on as was by at from this which an of two small large old new red green"
    " house water people time year day world city music river road light paper letter machine garden window morning"
    " answer question number story picture bread winter market runs reads writes finds makes sees takes gives opens"
)
"""Common words, which vocabularies have."""


def _is_image(shape: Sequence[int]) -> bool:
    """Whether a shape is that of images, with channels first or last."""
    if len(shape) != 4:
        return False
    sides = shape[2:] if shape[1] in (1, 3) else shape[1:3] if shape[3] in (1, 3) else (0,)
    return min(sides) >= _SMALLEST_IMAGE


def _areas(random: np.random.Generator, shape: Sequence[int]) -> NDArray[np.float64]:
    """Draws images of coloured rectangles on a gradient with a little noise.

    Args:
        random: the source of random numbers.
        shape: [batch, channels, height, width] or [batch, height, width, channels], with one or three channels.

    Returns:
        The images, float64 of this shape, with values from 0 to 1.
    """
    channels_first = shape[1] in (1, 3)
    channels, (height, width) = (shape[1], shape[2:]) if channels_first else (shape[3], shape[1:3])
    images = np.empty((shape[0], channels, height, width))
    down, right = np.linspace(0, 1, height)[:, None], np.linspace(0, 1, width)
    for image in images:
        slope = random.uniform(-0.5, 0.5, (2, channels, 1, 1))
        image[:] = random.uniform(0.2, 0.8, (channels, 1, 1)) + slope[0] * (down - 0.5) + slope[1] * (right - 0.5)
        for _ in range(_AREAS):
            top, left = int(random.integers(height)), int(random.integers(width))
            bottom, end = top + int(random.integers(1, height // 2)), left + int(random.integers(1, width // 2))
            image[:, top:bottom, left:end] = random.uniform(0, 1, (channels, 1, 1))
        image += _NOISE * random.standard_normal(image.shape)
    images = np.clip(images, 0, 1)
    return images if channels_first else images.transpose(0, 2, 3, 1)


def _sentences(random: np.random.Generator, shape: Sequence[int]) -> NDArray[Any]:
    """Draws texts of one to `_LONGEST_TEXT` words, an array of this shape."""
    words = _WORDS.split()
    texts = [
        " ".join(random.choice(words, int(random.integers(1, _LONGEST_TEXT + 1)))) for _ in range(int(np.prod(shape)))
    ]
    return np.array(texts).reshape(shape)


def _rows(parameter: ov.Node) -> int | None:
    """Finds the length of the shortest table from which Gathers take the rows that an input selects.

    Returns:
        The number of rows; None if there is no such Gather, or no table's length is known.
    """
    lengths, waiting = [], [parameter]
    while waiting:
        for reader in waiting.pop().output(0).get_target_inputs():
            node, port = reader.get_node(), reader.get_index()
            if node.get_type_name() == "Gather" and port == 1:
                shape, axis = node.get_input_partial_shape(0), node.input_value(2).get_node()
                if axis.get_type_name() == "Constant" and shape.rank.is_static:
                    size = shape[int(axis.get_data().item())]
                    lengths += [int(size.get_length())] if size.is_static else []
            elif node.get_type_name() in _INDEX_PRESERVING and port == 0:
                waiting.append(node)
    return min(lengths, default=None)
