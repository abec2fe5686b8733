"""Inputs made up for a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.model.graph import ComputationGraph
from ov_hsdag.utils.errors import RunError

if TYPE_CHECKING:
    import openvino as ov


def random_inputs(
    model: ov.Model, seed: int = 0, shapes: Mapping[str, Sequence[int]] | None = None
) -> list[NDArray[Any]]:
    """One array for each input of the model, drawn from the seed.

    Floats are normal; integers 0 or 1, which are valid as token ids, masks and indices alike; bytes cover their range
    (they are images). Dynamic dimensions get the size that costs count with, or that of `shapes`. Raises RunError for
    inputs of other types.
    """
    graph = ComputationGraph.from_model(model, shapes=shapes)
    random = np.random.default_rng(seed)
    arrays: list[NDArray[Any]] = []
    for parameter in model.get_parameters():
        shape = graph.output_shapes[graph.output_ptr[graph.index(parameter.get_friendly_name())]]
        try:
            dtype = np.dtype(parameter.get_element_type().to_dtype())
        except (RuntimeError, TypeError, KeyError) as error:
            raise RunError(f"cannot make up values of type {parameter.get_element_type()} for an input") from error
        if np.issubdtype(dtype, np.floating):
            arrays.append(random.standard_normal(shape).astype(dtype))
        elif dtype == np.uint8:
            arrays.append(random.integers(0, 256, shape, dtype=dtype))
        else:
            arrays.append(random.integers(0, 2, shape).astype(dtype))
    return arrays
