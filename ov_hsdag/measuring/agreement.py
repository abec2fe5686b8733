"""Comparison of outputs: whether two ways to run a model compute the same.

An input set is a list of the model's inputs for one inference, or for a sequence of inferences. The difference of two
outputs is relative to the output's largest magnitude. The accepted difference (tolerance) depends on the precision of
the devices and on the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.devices import discovery
from ov_hsdag.utils.lazy import ov

TOLERANCE = 1e-3
"""Largest accepted difference of an output, relative to its largest magnitude, where all devices compute in f32.

Other summation orders in f32 differ by much less, and what is wrong (a lost tensor, a swapped input) by about 1."""

# Accepted differences where a device computes in f16 or bf16. Between f32 and bf16, ResNet-50 differs by 0.6%, a small
# BERT by 0.6% and a small ViT by 1.1%; errors of rounding grow with depth. What is wrong differs by about 1.
_ROUGHER = {"f16": 2e-2, "bf16": 1e-1}

# Accepted difference of models with a TopK, such as the one by which a router chooses experts: rounding can change what
# it chooses. A Mixtral differs by 18% between bf16 and f32.
_ROUTED = 3e-1

# Accepted differences of models with quantised activations, and with quantised weights alone.
#
# Activations: a value that rounds the other way moves by a whole quantisation step. Where a border of submodels cuts an
# int8 operation from its quantisation, it is computed in f32, which is more exact if anything. Splits of a small ResNet
# differ by 1.7%, of BERT by 1.1%, of ViT by 2.2%, and of a MobileNetV2 with random weights by 21%, as a single device
# does from f32.
#
# Weights: the CPU plugin quantises their activations while it runs (DYNAMIC_QUANTIZATION_GROUP_SIZE); GPT-2 differs by
# 1.4%.
_QUANTISED_ACTIVATIONS, _QUANTISED_WEIGHTS = 2.5e-1, 5e-2

# Element types that count as quantised weights.
_QUANTISED = ("i8", "u8", "i4", "u4", "nf4", "i2", "u2", "u1", "f8e4m3", "f8e5m2", "f4e2m1")


def tolerance(core: ov.Core, devices: Sequence[str], model: ov.Model) -> float:
    """Returns the largest accepted difference between outputs of the devices and of placements on them.

    It depends on the precisions that the devices infer in, and on whether the model is quantised or has a router.

    Args:
        core: Core of the devices.
        devices: names of the devices.
        model: the model.

    Returns:
        The difference relative to an output's largest magnitude, see `difference`.
    """
    rougher = max(_ROUGHER.get(discovery.inference_precision(core, name) or "", TOLERANCE) for name in devices)
    if rougher > TOLERANCE and any(node.get_type_name() == "TopK" for node in model.get_ops()):
        rougher = _ROUTED
    return max(quantised_tolerance(model), rougher)


def quantised_tolerance(model: ov.Model) -> float:
    """Returns the largest accepted difference between two ways to run a model in f32.

    It is `TOLERANCE`, and larger for a model with quantised weights or activations.
    """
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
    """Returns the largest `difference` over all outputs of all input sets.

    Args:
        expected: for each input set, the outputs of the reference.
        got: for each input set, the outputs that are compared with these.
    """
    return float(differences(expected, got, 1)[0])


def differences(
    expected: Sequence[Sequence[NDArray[Any]]], got: Sequence[Sequence[NDArray[Any]]], outputs: int
) -> NDArray[np.float64]:
    """Returns the largest `difference` of each output over all input sets and inferences.

    Args:
        expected: for each input set, the reference's outputs of its inferences, one inference after the other.
        got: the outputs that are compared, in the same order.
        outputs: number of outputs of one inference.

    Returns:
        The differences, float64 [outputs].

    Raises:
        ValueError: the numbers of input sets or of outputs differ.
    """
    largest = np.zeros(outputs)
    for one, two in zip(expected, got, strict=True):
        for number, (a, b) in enumerate(zip(one, two, strict=True)):
            largest[number % outputs] = max(largest[number % outputs], difference(a, b))
    return largest


def difference(reference: NDArray[Any], value: NDArray[Any]) -> float:
    """Computes the largest difference of an output's values, relative to the largest magnitude of the reference.

    Args:
        reference: values of the output on the reference.
        value: values of the same output on what is compared with it.

    Returns:
        The difference; 0 for equal values that are no floats, and for arrays without finite values. It is inf where
        shapes differ, where one of two floats is not finite or both are not finite but not equal, and where other
        values (integers, strings) differ.
    """
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
    """Describes a result of `difference` in words: its size, or for inf what can be the reason."""
    if math.isinf(relative):
        return "another shape, other whole numbers or texts, or NaN elsewhere"
    return f"{relative:.1e} of the output's largest value"


def disagreement(expected: Sequence[NDArray[Any]], got: Sequence[NDArray[Any]], accepted: float, reference: str) -> str:
    """Compares the outputs of one inference with those of a reference.

    Args:
        expected: outputs of the reference.
        got: the outputs that are compared with these.
        accepted: largest accepted `difference`. Above `TOLERANCE`, only floats are compared.
        reference: name of the reference, for the text.

    Returns:
        One line that says how they differ; "" where they agree.
    """
    if len(got) != len(expected):
        return f"it has {len(got)} outputs, {reference} has {len(expected)}"
    if not finite(got) and finite(expected):
        return "its outputs are not finite"
    if accepted > TOLERANCE:
        # Rounding decides which of two nearly equal values is the largest, so indices may differ between precisions.
        exact = [np.issubdtype(array.dtype, np.floating) for array in expected]
        expected, got = ([a for a, float_ in zip(arrays, exact, strict=True) if float_] for arrays in (expected, got))
    difference = largest_difference([expected], [got])
    if difference <= accepted:
        return ""
    if math.isinf(difference):
        return f"its outputs differ from those of {reference}: {describe_difference(difference)}"
    return f"its outputs differ from those of {reference} by {difference:.2g} of their largest value"


def finite(arrays: Sequence[NDArray[Any]]) -> bool:
    """Whether all values of all arrays are finite."""
    return all(np.isfinite(array).all() for array in arrays)
