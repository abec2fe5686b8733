"""Verifies that a placed model computes on HETERO what it computes on one device.

The references are the outputs of the whole model on each device alone. `ov_hsdag.measuring.verification_runs` runs the
models, `ov_hsdag.measuring.accepted_differences` says how much outputs may differ, and the verdict is given here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag._env import disabled
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.devices.virtual import check_declared, new_core
from ov_hsdag.measuring import agreement
from ov_hsdag.measuring.accepted_differences import Differences, find_accepted, find_varying
from ov_hsdag.measuring.verification_runs import DEPLOYED, F32, SEEDS, Outputs, Runner, Runs
from ov_hsdag.model.placement import Placement
from ov_hsdag.model.samples import GivenInputs, samples_of
from ov_hsdag.model.shapes import input_shapes
from ov_hsdag.model.steps import is_stateful
from ov_hsdag.utils.arguments import check_in_memory
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import ov
from ov_hsdag.utils.warn import warn_caller


def verify(
    model: ov.Model,
    device: str | Sequence[str] | None = None,
    *,
    precision: str = DEPLOYED,
    shapes: Mapping[str, Sequence[int]] | None = None,
    inputs: GivenInputs | None = None,
    core: ov.Core | None = None,
    report: Callable[[str], None] | None = None,
    warn: Callable[[str], None] = warn_caller,
) -> Verification:
    """Compiles a placed model on HETERO and compares its outputs with those of single devices.

    Args:
        model: a model with a placement; it is not changed.
        device: the devices, in order of preference: "HETERO:GPU,CPU", or ["GPU", "CPU"]; by default the placement's.
        precision: "deployed" computes as an application does that sets no precision, "f32" computes in f32.
        shapes: example shapes of dynamic inputs, by input name; by default those that the model was placed with.
        inputs: inputs to compare with instead of made-up ones: by input name ("" for the only one) an array, the path
            of a .npy, .npz, .png or .txt file, or a list of these, one for each sample.
        core: Core of the devices; a new one by default.
        report: called with a few words at each step.
        warn: called with a line for each problem that does not prevent the comparison; by default a Python warning.

    Returns:
        The comparison, whose `good` says whether the placement is verified.

    Raises:
        UserError: bad input, or a model without a placement.
        RunError: the model does not run, on HETERO or on any device alone.
    """
    check_in_memory("verify", model)
    if precision not in (DEPLOYED, F32):
        raise UserError(f"the precision must be '{DEPLOYED}' or '{F32}', got '{precision}'")
    if disabled():
        raise UserError("OV_HSDAG_DISABLE is set, so that HETERO ignores placements: unset it to verify one")
    placement = Placement.of(model)
    if placement is None:
        raise UserError("the model carries no placement: place it first, with ov_hsdag.place or ov-hsdag place")
    devices = DeviceSet(placement.devices) if device is None else DeviceSet.parse(device)
    check_declared((placement.settings or {}).get("virtual_devices", ""), devices.names)
    placed_with = _shapes_of_placement(model)
    samples = samples_of(model, inputs, shapes, placed_with)
    runner = Runner(core or new_core(), model, devices, precision, report or (lambda _: None), warn)
    runs = runner.run_everywhere(samples, placed_with if shapes is None else shapes)
    return _compare(runner, runs)


def _shapes_of_placement(model: ov.Model) -> dict[str, list[int]] | None:
    """Returns the example shapes that the model was placed with; None if there are none or they no longer fit."""
    placement = Placement.of(model)
    shapes: dict[str, list[int]] | None = ((placement and placement.settings) or {}).get("shapes")
    try:
        input_shapes(model, shapes or {})
    except UserError:
        return None
    return shapes


@dataclass(eq=False, repr=False)
class Verification:
    """A comparison of a placed model's outputs with those of single devices.

    Attributes:
        result: the figures that `ov-hsdag verify --json` prints. Among them are "verified"; "reasons", why it is not;
            and "equal", which is None where outputs agree but that proves nothing.
        notes: further remarks about the figures, one line each.
        unproven: reasons why equal outputs would prove nothing about the placement, one line each.
        outputs: names of the model's outputs.
    """

    result: dict[str, Any]
    notes: list[str]
    unproven: list[str]
    outputs: list[str]

    @property
    def good(self) -> bool:
        """Whether the placement is verified: outputs agree, and that proves something."""
        return bool(self.result["verified"])

    def __repr__(self) -> str:
        """The report that the command prints, of several lines."""
        result = self.result
        computed = ", ".join(f"{name} in {kind}" for name, kind in result["precision"].items())
        lines = [f"{result['device']} runs on {', '.join(result['devices'])} in {result['submodels']} submodel(s)"]
        if computed:
            lines.append(f"computed on {computed}")
        for name, difference in result["relative_errors"].items():
            where = f", {result['largest_in'][name]}" if len(self.outputs) > 1 else ""
            lines.append(f"largest difference from {name}: {agreement.describe_difference(difference)}{where}")
        rounding, tolerance = result["rounding"], f"{result['tolerance']:.2g}"
        why = "" if rounding is None else f", as single devices differ from f32 by {rounding:.2g}"
        if result["differing"]:
            lines.append(f"outputs DIFFER (more than {tolerance}{why}): {', '.join(result['differing'])}")
        elif not self.unproven:
            times = f" in {result['inferences']} inferences" if result["inferences"] > len(SEEDS) else ""
            stricter = "; --precision f32 compares more strictly" if why else ""
            lines.append(f"outputs agree{times} (within {tolerance}{why}{stricter})")
        return "\n".join([*lines, *self.notes, *(f"NOT VERIFIED: {line}" for line in self.unproven)])


# Comparing the outputs.


def _compare(runner: Runner, runs: Runs) -> Verification:
    """Compares the outputs of the placed model with those of single devices.

    Args:
        runner: where outputs differ, runs the model in other ways to find the reason.
        runs: the outputs.

    Returns:
        The comparison.
    """
    differences = Differences.of(runs, len(runner.outputs))
    varying = find_varying(runner, runs, differences)
    accepted = find_accepted(runner, runs, differences.worst, varying)
    too_far = zip(runner.outputs, differences.worst > accepted.differences, strict=True)
    differing = [name for name, differs in too_far if differs and name not in varying.outputs]
    result: dict[str, Any] = {
        **_figures(runner, runs, differences),
        "tolerance": float(accepted.differences.max(initial=agreement.TOLERANCE)),
        "rounding": accepted.rounding,
        "followed": not runs.ignored,
        "differing": differing,
        "varying": varying.outputs,
        **accepted.operations,
    }
    proof = _Proof.of(runner, runs.placed.first, result)
    varies = [f"{', '.join(varying.outputs)}: a single device gives other values when the same inputs run once more"]
    unproven = [*runs.ignored, *proof.lacks, *(varies if varying.outputs else [])]
    notes = [*varying.notes, *accepted.notes, *proof.notes]
    return Verification(result | _verdict(differing, unproven), notes, unproven, runner.outputs)


def _figures(runner: Runner, runs: Runs, differences: Differences) -> dict[str, Any]:
    """Makes the first entries of `Verification.result`, which say what ran and how far outputs differ.

    Args:
        runner: has run the model.
        runs: the outputs.
        differences: differences of the outputs.
    """
    singles = [single.first for single in runs.singles.values()]
    largest_in = {
        name: runner.outputs[int(errors.argmax())] for name, errors in differences.by_device.items() if len(errors)
    }
    return {
        "device": runner.devices.hetero,
        "devices": list(runs.compiled.get_property("EXECUTION_DEVICES")),
        "submodels": int(runs.compiled.get_property("HETERO_NUMBER_OF_SUBMODELS")),
        "precision": {name: runner.computes_in(name) for name in runner.present},
        "max_relative_error": float(differences.worst.max(initial=0.0)),
        "relative_errors": {name: float(errors.max(initial=0.0)) for name, errors in differences.by_device.items()},
        "largest_in": largest_in,
        "not_finite": _outputs_where(
            runner.outputs, lambda array: not _finite_values(array).all(), runs.placed.first, *singles
        ),
        "depends_on_inputs": _depends_on_inputs(runner.model, runs.placed.first),
        "inferences": sum(map(len, runs.inputs)),
    }


def _verdict(differing: Sequence[str], unproven: Sequence[str]) -> dict[str, Any]:
    """Makes the entries "verified", "reasons" and "equal" of `Verification.result`.

    Args:
        differing: names of the outputs that differ more than is accepted.
        unproven: reasons why equal outputs would prove nothing.
    """
    reasons = [*([f"outputs differ: {', '.join(differing)}"] if differing else []), *unproven]
    equal = False if differing else None if unproven else True
    return {"verified": not reasons, "reasons": reasons, "equal": equal}


# Whether equal outputs prove something.


@dataclass(frozen=True, eq=False)
class _Proof:
    """What equal outputs prove.

    Attributes:
        lacks: reasons why they would prove nothing, one line each: no value of an output is finite, or the outputs do
            not depend on the inputs.
        notes: remarks for `Verification.notes`, on outputs that are empty or finite only in part.
    """

    lacks: list[str]
    notes: list[str]

    @classmethod
    def of(cls, runner: Runner, outputs: list[Outputs], result: Mapping[str, Any]) -> _Proof:
        """Finds out what equal outputs would prove.

        Args:
            runner: has the model.
            outputs: outputs of the placed model, for each sequence of inferences.
            result: entries of `Verification.result`; "not_finite", "differing" and "depends_on_inputs" are read.

        Returns:
            Reasons and notes.
        """
        names = runner.outputs
        filled = _outputs_where(names, lambda array: array.size > 0, outputs)
        with_finite = _outputs_where(names, lambda array: bool(_finite_values(array).any()), outputs)
        empty = [name for name in names if name not in filled]
        without_finite = [name for name in names if name not in with_finite and name not in empty]
        finite_in_part = [
            name for name in result["not_finite"] if name not in without_finite and name not in result["differing"]
        ]
        lacks, notes = list[str](), list[str]()
        if empty:
            notes.append(f"{', '.join(empty)}: empty, so that nothing of it is compared")
        if without_finite:
            lacks.append(f"no value is finite in {', '.join(without_finite)}")
        if finite_in_part:
            notes.append(f"NaN or infinite in the same places as on one device: values of {', '.join(finite_in_part)}")
        if not result["depends_on_inputs"]:
            all_empty = len(empty) == len(names)
            why = "all outputs are empty" if all_empty else "no output changed with the inputs that were tried"
            lacks.append(why + _other_inputs(runner.model))
        return cls(lacks, notes)


def _other_inputs(model: ov.Model) -> str:
    """Returns words that say how to compare with other inputs; "" for models without inputs or with states."""
    if not model.get_parameters() or is_stateful(model):
        return ""
    return ": --input NAME=FILE gives inputs of your own"


def _depends_on_inputs(model: ov.Model, outputs: list[Outputs]) -> bool:
    """Whether some output differs between sequences with different inputs; also true for a model without inputs."""
    first, *other_sets = outputs
    varying = any(
        not np.array_equal(array, other[number], equal_nan=bool(np.issubdtype(array.dtype, np.floating)))
        for other in other_sets
        for number, array in enumerate(first)
    )
    return varying or not model.get_parameters()


def _outputs_where(names: Sequence[str], holds: Callable[[NDArray[Any]], bool], *runs: list[Outputs]) -> list[str]:
    """Finds the outputs for which a condition holds in any inference.

    Args:
        names: names of the model's outputs.
        holds: the condition on the values of an output.
        runs: runs to look at; each has the outputs of each sequence of inferences.

    Returns:
        Names of the outputs, in the model's order.
    """
    return [
        name
        for number, name in enumerate(names)
        if any(holds(array) for run in runs for outputs in run for array in outputs[number :: len(names)])
    ]


def _finite_values(array: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each value is neither NaN nor infinite, bool of the array's shape; true for all but floats."""
    return np.isfinite(array) if np.issubdtype(array.dtype, np.floating) else np.ones(array.shape, bool)
