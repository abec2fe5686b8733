"""Do two compiled models compute the same?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

TOLERANCE = 1e-3


def infer(compiled: ov.CompiledModel, input_sets: Sequence[Mapping[str, NDArray[Any]]]) -> list[list[NDArray[Any]]]:
    """Outputs of each input set, in order. One request runs all sets, so a stateful model carries its state over."""
    request = compiled.create_infer_request()
    results = []
    for inputs in input_sets:
        request.infer(dict(inputs))
        # Copies: the request writes the next outputs over these.
        results.append([np.array(request.get_output_tensor(port).data) for port in range(len(compiled.outputs))])
    return results


def largest_difference(expected: Sequence[Sequence[NDArray[Any]]], got: Sequence[Sequence[NDArray[Any]]]) -> float:
    """Largest difference over all outputs of all input sets, each relative to that output's largest magnitude.

    inf where shapes differ, where a float is not finite, and where anything but a float (integers, strings) differs.
    """
    worst = 0.0
    for expected_set, got_set in zip(expected, got, strict=True):
        for reference, value in zip(expected_set, got_set, strict=True):
            worst = max(worst, _difference(reference, value))
    return worst


def _difference(reference: NDArray[Any], value: NDArray[Any]) -> float:
    if reference.shape != value.shape:
        return float("inf")
    if not np.issubdtype(reference.dtype, np.floating):
        return 0.0 if np.array_equal(reference, value) else float("inf")
    if not (np.isfinite(reference).all() and np.isfinite(value).all()):
        return float("inf")
    if reference.size == 0:
        return 0.0
    scale = max(float(np.abs(reference).max()), float(np.finfo(np.float32).tiny))
    return float(np.abs(reference.astype(np.float64) - value).max()) / scale
