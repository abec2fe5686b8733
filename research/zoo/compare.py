"""Computes outputs of compiled models for comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ov_hsdag.measuring.agreement import TOLERANCE, largest_difference

__all__ = ["TOLERANCE", "infer", "largest_difference"]


def infer(compiled: ov.CompiledModel, input_sets: Sequence[Mapping[str, NDArray[Any]]]) -> list[list[NDArray[Any]]]:
    """Infers input sets one after the other in one request, so that a stateful model keeps its states between them.

    Args:
        compiled: the model.
        input_sets: for each inference an array for every input, by name.

    Returns:
        For each inference copies of the outputs in the model's order.
    """
    request = compiled.create_infer_request()
    results = []
    for inputs in input_sets:
        request.infer(dict(inputs))
        # Copies, as the next inference overwrites the tensors of the request.
        results.append([np.array(request.get_output_tensor(port).data) for port in range(len(compiled.outputs))])
    return results
