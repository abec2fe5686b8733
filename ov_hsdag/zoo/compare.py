"""Outputs of compiled models, to be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ov_hsdag.measuring.agreement import TOLERANCE, largest_difference

__all__ = ["TOLERANCE", "infer", "largest_difference"]


def infer(compiled: ov.CompiledModel, input_sets: Sequence[Mapping[str, NDArray[Any]]]) -> list[list[NDArray[Any]]]:
    """Outputs of each input set, in order. One request runs all sets, so a stateful model carries its state over."""
    request = compiled.create_infer_request()
    results = []
    for inputs in input_sets:
        request.infer(dict(inputs))
        # Copies: the request writes the next outputs over these.
        results.append([np.array(request.get_output_tensor(port).data) for port in range(len(compiled.outputs))])
    return results
