"""Synthetic values of an input, by its name, its type, and the table that it is an index of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.utils.errors import RunError

if TYPE_CHECKING:
    import openvino as ov

# Ends of the names that transformers, optimum-intel, openvino.genai and TensorFlow's models have in common.
_MASKS = ("mask",)
_POSITIONS = ("position_ids", "cache_position")
_BEAMS = ("beam_idx",)

# Operations that hand indices on, from their first input.
_HANDED_ON = {"Convert", "Reshape", "Squeeze", "Unsqueeze", "Transpose"}


@dataclass(frozen=True)
class SyntheticInput:
    """What is known of an input's values."""

    names: frozenset[str]  # of the input, without "…:0" of TensorFlow
    dtype: np.dtype[Any]  # of its values
    # length of the shortest table that it picks rows of; None where it picks none, or of unknown length
    rows: int | None

    @classmethod
    def of(cls, parameter: ov.Node) -> SyntheticInput:
        """Of a Parameter. Raises RunError where values of its type cannot be made up."""
        try:
            dtype = np.dtype(parameter.get_element_type().to_dtype())
        except (RuntimeError, TypeError, KeyError) as error:
            raise RunError(f"cannot make up values of type {parameter.get_element_type()} for an input") from error
        names = {parameter.get_friendly_name(), *parameter.output(0).get_names()}
        rows = _rows(parameter) if np.issubdtype(dtype, np.integer) else None
        return cls(frozenset(name.partition(":")[0].lower() for name in names), dtype, rows)

    def values(self, random: np.random.Generator, shape: Sequence[int], past: int = 0, few: int = 2) -> NDArray[Any]:
        """Masks are ones (a row without any would be NaN), positions and beams in order, other integers random indices.

        past: the first position; few: integers are below, where no table says how many there are (0 and 1 are always
        valid).
        """
        if self._ends_with(_MASKS):
            return np.ones(shape, self.dtype)
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
        return any(name.endswith(ends) for name in self.names)


def _rows(parameter: ov.Node) -> int | None:
    """See `SyntheticInput.rows`."""
    found, waiting = [], [parameter]
    while waiting:
        for reader in waiting.pop().output(0).get_target_inputs():
            node, port = reader.get_node(), reader.get_index()
            if node.get_type_name() == "Gather" and port == 1:
                shape, axis = node.get_input_partial_shape(0), node.input_value(2).get_node()
                if axis.get_type_name() == "Constant" and shape.rank.is_static:
                    size = shape[int(axis.get_data())]
                    found += [int(size.get_length())] if size.is_static else []
            elif node.get_type_name() in _HANDED_ON and port == 0:
                waiting.append(node)
    return min(found, default=None)
