"""Do two ways to run a model compute the same?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.devices import discovery
from ov_hsdag.utils.lazy import ov

TOLERANCE = 1e-3
"""Largest accepted difference of an output, relative to the output's largest magnitude, where all compute in f32."""

# Between f32 and bf16 differ: ResNet-50 0.6%, a small BERT 0.6%, a small ViT 1.1%; rounding adds up with depth. What
# is really wrong (a lost tensor, a swapped input) differs by about 1.
_ROUGHER = {"f16": 2e-2, "bf16": 1e-1}

# Rounding decides what a TopK chooses, such as a router experts: a Mixtral differs by 18% between bf16 and f32.
_ROUTED = 3e-1

# Quantised activations: where a rounding tips, a value moves by a whole step, and where a border cuts an int8 operation
# from its quantisation, it is computed in f32 (which is nearer to the truth, if anything). Splits of a small ResNet
# differ by 1.7%, BERT 1.1%, ViT 2.2%, a MobileNetV2 with random weights 21%, as a single device does from f32. Weights
# alone: the CPU plugin quantises their activations on the way (DYNAMIC_QUANTIZATION_GROUP_SIZE); GPT-2 1.4%.
_QUANTISED_ACTIVATIONS, _QUANTISED_WEIGHTS = 2.5e-1, 5e-2
_QUANTISED = ("i8", "u8", "i4", "u4", "nf4", "i2", "u2", "u1", "f8e4m3", "f8e5m2", "f4e2m1")


def tolerance(core: ov.Core, devices: Sequence[str], model: ov.Model) -> float:
    """Largest accepted difference between these devices, and placements of the model on them.

    It depends on what the devices say they infer in, and on whether the model is quantised or has routers.
    """
    rougher = max(_ROUGHER.get(discovery.inference_precision(core, name) or "", TOLERANCE) for name in devices)
    if rougher > TOLERANCE and any(node.get_type_name() == "TopK" for node in model.get_ops()):
        rougher = _ROUTED
    return max(quantised_tolerance(model), rougher)


def quantised_tolerance(model: ov.Model) -> float:
    """Largest accepted difference between ways to run a model in f32, by how it is quantised."""
    accepted = TOLERANCE
    for node in model.get_ops():
        kind = node.get_type_name()
        if kind == "FakeQuantize":
            return _QUANTISED_ACTIVATIONS
        if kind == "Convert" and node.input_value(0).get_node().get_type_name() == "Constant":
            packed = node.get_input_element_type(0).get_type_name() in _QUANTISED
            if packed and node.get_output_element_type(0).is_real():
                accepted = _QUANTISED_WEIGHTS
    return accepted


def largest_difference(expected: Sequence[Sequence[NDArray[Any]]], got: Sequence[Sequence[NDArray[Any]]]) -> float:
    """Largest difference over all outputs of all input sets, each relative to that output's largest magnitude.

    inf where shapes differ, where a float is not finite that should be (what is not finite in both has to be the same),
    and where anything but a float (integers, strings) differs.
    """
    return float(differences(expected, got, 1)[0])


def differences(
    expected: Sequence[Sequence[NDArray[Any]]], got: Sequence[Sequence[NDArray[Any]]], outputs: int
) -> NDArray[np.float64]:
    """Largest difference of each output, see `largest_difference`, float64 [outputs].

    Each input set has the outputs of several inferences one after the other, so many of each.
    """
    found = np.zeros(outputs)
    for one, two in zip(expected, got, strict=True):
        for number, (a, b) in enumerate(zip(one, two, strict=True)):
            found[number % outputs] = max(found[number % outputs], difference(a, b))
    return found


def difference(reference: NDArray[Any], value: NDArray[Any]) -> float:
    """Of one output, see `largest_difference`."""
    if reference.shape != value.shape:
        return float("inf")
    if not np.issubdtype(reference.dtype, np.floating):
        return 0.0 if np.array_equal(reference, value) else float("inf")
    odd = ~(np.isfinite(reference) & np.isfinite(value))
    if odd.any():
        if not np.array_equal(reference[odd], value[odd], equal_nan=True):
            return float("inf")
        reference, value = reference[~odd], value[~odd]
    if reference.size == 0:
        return 0.0
    scale = max(float(np.abs(reference).max()), float(np.finfo(np.float32).tiny))
    return float(np.abs(reference.astype(np.float64) - value).max()) / scale


def describe_difference(relative: float) -> str:
    """A result of `difference` as people are told it, to go behind "a difference of"."""
    if math.isinf(relative):
        return "another shape, other whole numbers or texts, or NaN elsewhere"
    return f"{relative:.1e} of the output's largest value"


def disagreement(expected: Sequence[NDArray[Any]], got: Sequence[NDArray[Any]], accepted: float, reference: str) -> str:
    """In what outputs differ by more than accepted from those of a named reference, one line; "": they agree."""
    if len(got) != len(expected):
        return f"it has {len(got)} outputs, {reference} has {len(expected)}"
    if not finite(got) and finite(expected):
        return "its outputs are not finite"
    if accepted > TOLERANCE:
        # Rounding decides which of two equals is the largest: indices may differ where precisions do.
        exact = [np.issubdtype(array.dtype, np.floating) for array in expected]
        expected, got = ([a for a, float_ in zip(arrays, exact, strict=True) if float_] for arrays in (expected, got))
    difference = largest_difference([expected], [got])
    if difference <= accepted:
        return ""
    if math.isinf(difference):
        return f"its outputs differ from those of {reference}: {describe_difference(difference)}"
    return f"its outputs differ from those of {reference} by {difference:.2g} of their largest value"


def finite(arrays: Sequence[NDArray[Any]]) -> bool:
    """Whether all values are."""
    return all(np.isfinite(array).all() for array in arrays)
