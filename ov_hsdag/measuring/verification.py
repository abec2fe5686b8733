"""Verifies that a placed model computes on HETERO what it computes on one device.

The references are the outputs of the whole model on each device alone. The inputs are sequences of inferences: a prompt
and its tokens for a stateful model, one inference for others. Each sequence runs twice, so that outputs which change
from run to run are noticed. Differences are those of `ov_hsdag.measuring.agreement`, relative to an output's largest
magnitude.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag._env import disabled
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.devices.discovery import full_name, inference_precision
from ov_hsdag.devices.virtual import check_declared, new_core
from ov_hsdag.measuring import agreement
from ov_hsdag.measuring.one_by_one import OneByOne
from ov_hsdag.model.flops import bodies_of
from ov_hsdag.model.inputs import conversations
from ov_hsdag.model.placement import Placement
from ov_hsdag.model.replay import infer
from ov_hsdag.model.samples import GivenInputs, Samples, samples_of
from ov_hsdag.model.shapes import input_shapes, sized, smaller_shapes
from ov_hsdag.model.steps import is_stateful
from ov_hsdag.utils.arguments import check_in_memory
from ov_hsdag.utils.errors import PlacementNotFollowedWarning, RunError, UserError, one_line
from ov_hsdag.utils.lazy import ov

DEPLOYED, F32 = "deployed", "f32"
"""Precisions that outputs can be compared in: that of an application that sets nothing, and f32 wherever possible."""

SEEDS = (0, 1)
"""Seeds of the random inputs. There are two, as an output that is the same for all inputs proves nothing."""

# Properties for f32: for computing, for states of language models on CPU devices, and, on the Core, for quantised
# models, which devices otherwise compute in integers.
_F32 = {"INFERENCE_PRECISION_HINT": "f32"}
_F32_STATES = {"KV_CACHE_PRECISION": "f32"}
_GROUP_SIZE, _LOW_PRECISION = "DYNAMIC_QUANTIZATION_GROUP_SIZE", "LP_TRANSFORMS_MODE"

# Kinds of devices that do not compute in f32, and the difference that is accepted in f32 where one of them is used.
_F16_ONLY = ("NPU",)
_TOLERANCE_F16 = 2e-2

# Accepted difference of a split, as a multiple of a single device's difference from f32: a split rounds at other
# places, which makes errors of the same size. The second number bounds it, as what is wrong (a lost tensor, a swapped
# input) differs by about 1.
_ROUNDING, _LARGEST_ROUNDING = 3.0, 0.25

_RANDOM = ("RandomUniform", "Multinomial", "Bernoulli")
"""Types of operations that draw random numbers."""

# Time limit for running operations one by one, seconds; large models have thousands of operations.
_ONE_BY_ONE_SECONDS = 120.0

Inputs = list[NDArray[Any]]
"""Inputs of one inference, in the order of the model's parameters."""


def verify(
    model: ov.Model,
    device: str | Sequence[str] | None = None,
    *,
    precision: str = DEPLOYED,
    shapes: Mapping[str, Sequence[int]] | None = None,
    inputs: GivenInputs | None = None,
    core: ov.Core | None = None,
    report: Callable[[str], None] | None = None,
    warn: Callable[[str], None] = warnings.warn,
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
        warn: called with a line for each problem that does not prevent the comparison.

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
    runner = _Runner(core or new_core(), model, devices, precision, report or (lambda _: None), warn)
    runs = runner.run_everywhere(samples, placed_with if shapes is None else shapes)
    return _compare(runner, runs)


Outputs = list[NDArray[Any]]
"""Outputs of a sequence of inferences, one after the other: of a prompt and its tokens, or of a single inference."""


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


# Running the model.


@dataclass(frozen=True, eq=False)
class _TwoRuns:
    """Outputs of each sequence of inferences, which ran twice in a row, see `_outputs_twice`.

    Attributes:
        first: outputs of each sequence in the first run.
        second: outputs of each sequence in the second run.
    """

    first: list[Outputs]
    second: list[Outputs]


@dataclass(frozen=True, eq=False)
class _Runs:
    """What the placed model and the whole model on each device computed of the same inputs.

    Attributes:
        inputs: for each sequence of inferences, the inputs of these.
        singles: outputs by device that runs the whole model alone; there is at least one.
        placed: outputs of the placed model.
        compiled: the placed model, compiled.
        ignored: lines that say in what respects the placement was not followed.
    """

    inputs: list[list[Inputs]]
    singles: dict[str, _TwoRuns]
    placed: _TwoRuns
    compiled: ov.CompiledModel
    ignored: list[str]


@dataclass(frozen=True, eq=False)
class _Runner:
    """Runs a placed model on HETERO and on single devices.

    Attributes:
        core: Core of the devices.
        model: a model with a placement; it is not changed.
        devices: the devices, in HETERO's order.
        precision: `DEPLOYED` or `F32`.
        report: called with a few words at each step.
        warn: called with a line for each problem that does not prevent the comparison.
    """

    core: ov.Core
    model: ov.Model
    devices: DeviceSet
    precision: str
    report: Callable[[str], None]
    warn: Callable[[str], None]

    @cached_property
    def outputs(self) -> list[str]:
        """Names of the model's outputs, in the model's order."""
        return [result.get_friendly_name() for result in self.model.get_results()]

    @cached_property
    def present(self) -> list[str]:
        """The devices that this machine has."""
        return [name for name in self.devices if full_name(self.core, name) is not None]

    @cached_property
    def _quantised(self) -> bool:
        """Whether the model has quantised weights or activations."""
        return agreement.quantised_tolerance(self.model) > agreement.TOLERANCE

    def run_everywhere(self, samples: Samples | None, shapes: Mapping[str, Sequence[int]] | None) -> _Runs:
        """Runs the model on each device alone, and the placed model on HETERO with the same inputs.

        Args:
            samples: inputs that the user gave; by default inputs are made up.
            shapes: example shapes of dynamic inputs, by input name; None for none.

        Returns:
            The outputs.

        Raises:
            UserError: inputs or shapes do not fit the model.
            RunError: the model does not run, on HETERO or on any device alone.
        """
        with self.quantised_in_floats() if self.precision == F32 else nullcontext():
            inputs, singles = self._run_alone(samples, shapes)
            self.report("compiling the placement")
            compiled, ignored = self._compile_placed()
            self.report("running the placement")
            placed = self._run_placed(compiled, inputs)
        return _Runs(inputs, singles, placed, compiled, ignored)

    def _run_alone(
        self, samples: Samples | None, shapes: Mapping[str, Sequence[int]] | None
    ) -> tuple[list[list[Inputs]], dict[str, _TwoRuns]]:
        """Runs the model on each device alone, with smaller inputs where no device runs it otherwise.

        Args:
            samples: inputs that the user gave; None for made-up ones.
            shapes: example shapes of dynamic inputs, by input name; None for none.

        Returns:
            The inputs, and the outputs by device that runs the model alone.

        Raises:
            RunError: no device runs the model alone.
        """
        failures: list[dict[str, str]] = []  # of each set of inputs: what went wrong by device
        for inputs, note in self._inputs_to_try(samples, shapes):
            singles, failed = self._run_each_alone(inputs)
            if singles:
                if note:
                    self.warn(note)
                self._warn_of(failed)
                return inputs, singles
            failures.append(failed)
        self._warn_of(failures[0])
        guessed = self.model.is_dynamic() and not shapes and samples is None
        remedy = "; --shape gives sizes that it takes" if guessed else ""
        raise RunError(f"there is no device to compare with: none can run the whole model alone{remedy}")

    def _run_each_alone(self, inputs: list[list[Inputs]]) -> tuple[dict[str, _TwoRuns], dict[str, str]]:
        """Runs the model on each device alone; returns the outputs, and what went wrong, both by device."""
        singles: dict[str, _TwoRuns] = {}
        failed: dict[str, str] = {}
        for name in self.present or ["CPU"]:
            self.report(f"running on {name} alone")
            try:
                singles[name] = _outputs_twice(self.compile_alone(name, self.precision), inputs)
            except RuntimeError as error:
                failed[name] = one_line(error)
        return singles, failed

    def _warn_of(self, failed: Mapping[str, str]) -> None:
        """Warns of devices that cannot run the model alone; `failed` has the reason by device."""
        for name, why in failed.items():
            self.warn(f"{name} cannot run the model alone: {why}")

    def _inputs_to_try(
        self, samples: Samples | None, shapes: Mapping[str, Sequence[int]] | None
    ) -> Iterator[tuple[list[list[Inputs]], str]]:
        """Yields inputs to try one after the other: the usual ones, then shorter sequences, then smaller shapes.

        Args:
            samples: inputs that the user gave, which have no alternative; None for made-up ones.
            shapes: example shapes of dynamic inputs, by input name; None for none.

        Yields:
            Sequences of inferences with their inputs, and a note for the user; "" for the usual ones.
        """
        inputs = conversations(self.model, SEEDS, shapes, samples)
        yield inputs, ""
        if samples is not None:
            return
        if len(inputs[0]) > 1:
            note = "only first inferences are compared, as it is not known what its inputs mean"
            yield [steps[:1] for steps in inputs], note
        for smaller in smaller_shapes(self.model, shapes):
            sizes = ", ".join(sized(name, shape) for name, shape in smaller.items())
            yield (
                conversations(self.model, SEEDS, smaller),
                f"compared with {sizes}: no device runs it with larger inputs",
            )

    def compile_alone(self, device: str, precision: str) -> ov.CompiledModel:
        """Compiles the model on one device in a precision. Raises RuntimeError where OpenVINO refuses."""
        return self.core.compile_model(self.model, device, self.f32_properties(device) if precision == F32 else {})

    def f32_properties(self, device: str) -> dict[str, str]:
        """Properties with which a device computes in f32; empty for one that does not."""
        return {} if device.startswith(_F16_ONLY) else {**_F32, **(_F32_STATES if "CPU" in device else {})}

    @contextmanager
    def quantised_in_floats(self) -> Iterator[None]:
        """Makes devices compute quantised models in floats inside of the block.

        The properties are set on the Core, as HETERO does not pass them on to its devices. Devices that do not compute
        in f32, or do not know the properties, are left as they are.
        """
        group_sizes = {}  # as they were before the block, by device
        for name in self.present if self._quantised else ():
            if not self.f32_properties(name):
                continue
            with suppress(RuntimeError):
                size = self.core.get_property(name, _GROUP_SIZE)
                self.core.set_property(name, {_LOW_PRECISION: "NO", _GROUP_SIZE: "0"})
                group_sizes[name] = size
        try:
            yield
        finally:
            # The CPU plugin does not report LP_TRANSFORMS_MODE; "YES" is its default.
            for name, size in group_sizes.items():
                self.core.set_property(name, {_LOW_PRECISION: "YES", _GROUP_SIZE: size})

    def _compile_placed(self) -> tuple[ov.CompiledModel, list[str]]:
        """Compiles the placed model on HETERO, as an unchanged script does.

        Returns:
            The compiled model, and lines that say in what respects the placement was not followed.

        Raises:
            RunError: OpenVINO refuses to compile it.
        """
        config: dict[str, Any] = {}
        if self.precision == F32:
            by_device = {name: self.f32_properties(name) for name in self.devices}
            config = {"DEVICE_PROPERTIES": {name: properties for name, properties in by_device.items() if properties}}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                compiled = self.core.compile_model(self.model, self.devices.hetero, config)
            except RuntimeError as error:
                raise RunError(f"cannot compile on {self.devices.hetero}: {one_line(error)}") from error
        for warning in caught:
            self.warn(str(warning.message))
        ignored = [warning for warning in caught if issubclass(warning.category, PlacementNotFollowedWarning)]
        return compiled, [str(warning.message).removeprefix("ov_hsdag: ") for warning in ignored]

    def _run_placed(self, compiled: ov.CompiledModel, inputs: list[list[Inputs]]) -> _TwoRuns:
        """Runs the placed model.

        Args:
            compiled: the placed model, compiled.
            inputs: for each sequence of inferences, the inputs of these.

        Returns:
            The outputs.

        Raises:
            RunError: an inference fails.
        """
        try:
            return _outputs_twice(compiled, inputs)
        except RuntimeError as error:
            raise RunError(
                f"{self.devices.hetero} fails with the placement, and a single device does not: {one_line(error)}"
            ) from error

    def run_again(self, device: str, inputs: list[list[Inputs]]) -> list[Outputs]:
        """Compiles the model on one device and runs it once.

        Args:
            device: the device.
            inputs: for each sequence of inferences, the inputs of these.

        Returns:
            The outputs of each sequence.
        """
        self.report(f"running on {device} once more")
        return _outputs(self.compile_alone(device, self.precision), inputs)

    def run_in_f32(self, devices: Iterable[str], inputs: list[list[Inputs]]) -> dict[str, list[Outputs]]:
        """Runs the model in f32 on each device that computes in f32.

        Args:
            devices: the devices.
            inputs: for each sequence of inferences, the inputs of these.

        Returns:
            The outputs of each sequence by device. A device that cannot run the model in f32 is left out, with a
            warning.
        """
        exact: dict[str, list[Outputs]] = {}
        with self.quantised_in_floats():
            for name in filter(self.f32_properties, devices):
                self.report(f"running on {name} alone in f32")
                try:
                    exact[name] = _outputs(self.compile_alone(name, F32), inputs)
                except RuntimeError as error:
                    self.warn(f"{name} cannot run the model in f32: {one_line(error)}")
        return exact

    def run_operations(self, device: str, inferences: Sequence[Inputs]) -> Outputs:
        """Runs the model's operations one by one, in f32.

        Args:
            device: the device that runs them.
            inferences: the inputs of a sequence of inferences; not empty.

        Returns:
            The outputs of the last inference.

        Raises:
            RuntimeError: an operation does not run alone, or the first value of a state is unknown.
            TimeoutError: it takes longer than `_ONE_BY_ONE_SECONDS`.
        """
        operations = OneByOne(self.core, device, self.model, self.report)
        end = time.monotonic() + _ONE_BY_ONE_SECONDS
        for inputs in inferences[:-1]:
            operations.infer(inputs, end)
        return operations.infer(inferences[-1], end)

    def computes_in(self, device: str) -> str:
        """The precision that a device computes in, as words for people."""
        if self.precision == F32 and self.f32_properties(device):
            return F32
        return inference_precision(self.core, device) or "its own choice"


# Comparing the outputs.


def _compare(runner: _Runner, runs: _Runs) -> Verification:
    """Compares the outputs of the placed model with those of single devices; where they differ, runs more for reasons.

    Args:
        runner: runs the model once more.
        runs: the outputs.

    Returns:
        The comparison.
    """
    differences = _Differences.of(runs, len(runner.outputs))
    varying = _find_varying(runner, runs, differences)
    accepted = _accept(runner, runs, differences.worst, varying)
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


def _figures(runner: _Runner, runs: _Runs, differences: _Differences) -> dict[str, Any]:
    """Makes the first entries of `Verification.result`, which say what ran and how far outputs differ.

    Args:
        runner: what ran the model.
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


@dataclass(frozen=True, eq=False)
class _Differences:
    """Largest differences of each output of the placed model from single devices.

    Attributes:
        by_device: in either run, by device, float64 [outputs].
        worst: in either run, from any device, float64 [outputs].
        worst_repeated: in the second run alone, from any device, float64 [outputs].
    """

    by_device: dict[str, NDArray[np.float64]]
    worst: NDArray[np.float64]
    worst_repeated: NDArray[np.float64]

    @classmethod
    def of(cls, runs: _Runs, outputs: int) -> _Differences:
        """Computes the differences.

        Args:
            runs: the outputs.
            outputs: number of outputs of one inference.
        """
        repeated = {
            name: agreement.differences(single.second, runs.placed.second, outputs)
            for name, single in runs.singles.items()
        }
        by_device = {
            name: np.maximum(agreement.differences(single.first, runs.placed.first, outputs), repeated[name])
            for name, single in runs.singles.items()
        }
        return cls(by_device, np.max(list(by_device.values()), axis=0), np.max(list(repeated.values()), axis=0))


@dataclass(frozen=True, eq=False)
class _Varying:
    """Outputs that a device alone computes differently when it runs the same inputs once more.

    Attributes:
        outputs: names of the outputs.
        notes: remarks for `Verification.notes`.
    """

    outputs: list[str]
    notes: list[str]


def _find_varying(runner: _Runner, runs: _Runs, differences: _Differences) -> _Varying:
    """Finds the outputs that vary by themselves. A device runs once more where this alone would show a reason.

    Args:
        runner: runs the model once more.
        runs: the outputs.
        differences: differences of the outputs.
    """
    differ = bool((differences.worst > agreement.TOLERANCE).any())
    if not differ and _draws_numbers(runner.model):
        return _Varying([], [])
    by_rerun = _changed_by_rerun(runner.outputs, runs, differences)
    if by_rerun.outputs or not differ:
        return by_rerun
    return _Varying(_changed_by_recompiling(runner, runs), [])


def _changed_by_rerun(names: Sequence[str], runs: _Runs, differences: _Differences) -> _Varying:
    """Finds the outputs that a device alone computes differently when the same request runs once more.

    Outputs that depend on memory which was never written are such. Where there is one, outputs that differ from the
    placed model's in the first run alone count as well. Numbers that a request draws from a seed also change from
    run to run; these prove something if the sequence is the same everywhere. A note says so where all second runs
    agree.

    Args:
        names: names of the model's outputs.
        runs: the outputs.
        differences: differences of the outputs.

    Returns:
        The outputs; none where no output of a device changes.
    """
    changes = [agreement.differences(single.first, single.second, len(names)) for single in runs.singles.values()]
    changed = np.max(changes, axis=0) > agreement.TOLERANCE
    if not changed.any():
        return _Varying([], [])
    agrees_repeated = differences.worst_repeated <= agreement.TOLERANCE
    settles = (differences.worst > agreement.TOLERANCE) & agrees_repeated
    note = "first inferences alone differ: when they are repeated, all agree"
    varying = [name for name, varies in zip(names, changed | settles, strict=True) if varies]
    return _Varying(varying, [note] if agrees_repeated.all() else [])


def _changed_by_recompiling(runner: _Runner, runs: _Runs) -> list[str]:
    """Finds the outputs that change when a device compiles and runs the model again, such as random numbers.

    Args:
        runner: runs the model once more, on the first device.
        runs: the outputs.

    Returns:
        Names of the outputs.
    """
    device, single = next(iter(runs.singles.items()))
    again = runner.run_again(device, runs.inputs)
    changes = agreement.differences(single.first, again, len(runner.outputs))
    return [name for name, change in zip(runner.outputs, changes, strict=True) if change > agreement.TOLERANCE]


@dataclass(frozen=True, eq=False)
class _Accepted:
    """The largest accepted differences, and what they were found by.

    Attributes:
        differences: largest accepted difference of each output, float64 [outputs].
        rounding: largest difference of single devices from f32, where that determines the accepted ones; else None.
        operations: an entry of `Verification.result` where operations ran one by one; else empty.
        notes: remarks for `Verification.notes`.
    """

    differences: NDArray[np.float64]
    rounding: float | None = None
    operations: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()


def _accept(runner: _Runner, runs: _Runs, worst: NDArray[np.float64], varying: _Varying) -> _Accepted:
    """Finds out what differences are accepted.

    Args:
        runner: runs the model in f32, and its operations one by one, where outputs differ.
        runs: the outputs.
        worst: largest difference of each output from the placed model's, float64 [outputs].
        varying: outputs that vary by themselves; where there is one, more runs would show nothing.
    """
    if varying.outputs:
        return _Accepted(np.full(len(runner.outputs), agreement.TOLERANCE))
    accepted = _accept_rounding(runner, runs, worst)
    if (worst > accepted.differences).any():
        return _ask_operations(runner, runs, accepted)
    return accepted


def _accept_rounding(runner: _Runner, runs: _Runs, worst: NDArray[np.float64]) -> _Accepted:
    """Computes the largest accepted difference of each output from how devices round.

    In f32 it is `agreement.TOLERANCE`, or `_TOLERANCE_F16` where a device does not compute in f32. In other
    precisions it is `_ROUNDING` times the difference of single devices from f32, which are run in f32 for that.

    Args:
        runner: runs the model in f32 where outputs differ.
        runs: the outputs.
        worst: largest difference of each output from the placed model's, float64 [outputs].
    """
    least = np.full(len(runner.outputs), agreement.TOLERANCE)
    if runner.precision == F32:
        all_in_f32 = all(map(runner.f32_properties, runner.present))
        return _Accepted(np.maximum(least, 0.0 if all_in_f32 else _TOLERANCE_F16))
    if (worst <= least).all():
        return _Accepted(least)
    exact = runner.run_in_f32(runs.singles, runs.inputs)
    if not exact:
        return _Accepted(np.maximum(least, agreement.tolerance(runner.core, runner.present, runner.model)))
    exact_of_others = next(iter(exact.values()))
    roundings = [
        agreement.differences(exact.get(name, exact_of_others), single.first, len(least))
        for name, single in runs.singles.items()
    ]
    by_rounding = np.minimum(_ROUNDING * np.max(roundings, axis=0), _LARGEST_ROUNDING)
    return _Accepted(np.maximum(least, by_rounding), float(np.max(roundings, initial=0.0)))


# Asking the operations: which run is wrong?


def _ask_operations(runner: _Runner, runs: _Runs, accepted: _Accepted) -> _Accepted:
    """Finds out which run is wrong by running the model's operations one by one.

    Args:
        runner: runs the operations.
        runs: the outputs, some of which differ more than is accepted.
        accepted: largest accepted differences by rounding.

    Returns:
        The accepted differences, which may be larger now, with notes; it has an entry of the result unless the
        operations do not run one by one.
    """
    names = runner.outputs
    inference = _find_difference(runs, accepted.differences, len(names))
    device = next((name for name in runner.present if "CPU" in name), (runner.present or ["CPU"])[0])
    try:
        expected = runner.run_operations(device, runs.inputs[inference.sequence][: inference.step + 1])
    except (RuntimeError, TimeoutError) as error:
        note = f"operations could not be run one by one, to see which is wrong: {one_line(error)}"
        return replace(accepted, notes=[note])
    hetero = runner.devices.hetero
    errors = {
        name: agreement.differences([expected], [inference.outputs(computed)], len(names))
        for name, computed in {hetero: runs.placed, **runs.singles}.items()
    }
    larger = _accept_quantising(runner, [errors[name] for name in runs.singles], accepted.differences)
    wrong = _wrong_runs(expected, errors, larger, only_floats=runner.precision != F32)
    largest = {name: float(error.max(initial=0.0)) for name, error in errors.items()}
    described = ", ".join(f"{name} {agreement.describe_difference(error)}" for name, error in largest.items())
    compared = f"differences from its operations run one by one on {device} in f32: {described}"
    return replace(
        accepted,
        differences=larger,
        operations={"operation_by_operation": {"device": device, "relative_errors": largest, "wrong": wrong}},
        notes=[compared, *_say_who_is_wrong(hetero, wrong)],
    )


@dataclass(frozen=True)
class _Inference:
    """One inference of all sequences, in one of their two runs.

    Attributes:
        repeated: whether it belongs to the second run.
        sequence: number of its sequence.
        step: its number in the sequence, from 0.
        count: number of outputs of one inference.
    """

    repeated: bool
    sequence: int
    step: int
    count: int

    def outputs(self, computed: _TwoRuns) -> Outputs:
        """Returns its outputs among those of both runs."""
        run = computed.second if self.repeated else computed.first
        return run[self.sequence][self.step * self.count : (self.step + 1) * self.count]


def _find_difference(runs: _Runs, accepted: NDArray[np.float64], count: int) -> _Inference:
    """Finds the first inference in which the placed model differs from a single device more than is accepted.

    Second runs come after all first ones.

    Args:
        runs: the outputs; one differs more, in either run.
        accepted: largest accepted difference of each output, float64 [outputs].
        count: number of outputs of one inference.
    """
    inferences = (
        _Inference(repeated, sequence, step, count)
        for repeated in (False, True)
        for sequence, steps in enumerate(runs.inputs)
        for step in range(len(steps))
    )
    return next(
        inference
        for inference in inferences
        for single in runs.singles.values()
        if (
            agreement.differences([inference.outputs(single)], [inference.outputs(runs.placed)], count) > accepted
        ).any()
    )


def _accept_quantising(
    runner: _Runner, singles: Sequence[NDArray[np.float64]], accepted: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Accepts larger differences, in f32, of outputs that depend on quantised tensors.

    The last bit of a sum decides how FakeQuantize rounds, on single devices as well.

    Args:
        runner: has the model and the precision.
        singles: for each single device, its differences from the operations run one by one, float64 [outputs].
        accepted: largest accepted difference of each output by rounding, float64 [outputs].

    Returns:
        The largest accepted difference of each output, float64 [outputs].
    """
    if runner.precision != F32:
        return accepted
    rounding = np.minimum(_ROUNDING * np.max(singles, axis=0), _LARGEST_ROUNDING)
    return np.maximum(accepted, np.where(_depends_on_fake_quantize(runner.model), rounding, 0.0))


def _wrong_runs(
    expected: Outputs,
    errors: Mapping[str, NDArray[np.float64]],
    accepted: NDArray[np.float64],
    *,
    only_floats: bool,
) -> list[str]:
    """Finds the runs that differ more than is accepted from the operations run one by one.

    Args:
        expected: outputs of these operations, of one inference.
        errors: differences from them by device of the run, float64 [outputs].
        accepted: largest accepted difference of each output, float64 [outputs].
        only_floats: whether other outputs do not count: where precisions differ, integers such as indices may differ.

    Returns:
        Names of the devices.
    """
    judged = np.array([not only_floats or np.issubdtype(array.dtype, np.floating) for array in expected], bool)
    return [name for name, error in errors.items() if (error > accepted)[judged].any()]


def _say_who_is_wrong(hetero: str, wrong: Sequence[str]) -> list[str]:
    """Returns a line that says whether the placement is right or wrong; none where this is open.

    Args:
        hetero: name of the placed model's device, HETERO.
        wrong: names of devices whose outputs are wrong.
    """
    if wrong and hetero not in wrong:
        return [f"so the placement is right, and the model is wrong on {' and '.join(wrong)} alone"]
    return ["so the placement is wrong"] if wrong == [hetero] else []


# Whether equal outputs prove something.


@dataclass(frozen=True, eq=False)
class _Proof:
    """What equal outputs prove.

    Attributes:
        lacks: reasons why they would prove nothing, one line each: no value is finite, or they do not depend on the
            inputs.
        notes: remarks for `Verification.notes`, on outputs that are empty or finite only in part.
    """

    lacks: list[str]
    notes: list[str]

    @classmethod
    def of(cls, runner: _Runner, outputs: list[Outputs], result: Mapping[str, Any]) -> _Proof:
        """Finds out what equal outputs would prove.

        Args:
            runner: has the model.
            outputs: outputs of the placed model, for each sequence of inferences.
            result: entries of `Verification.result`; "not_finite", "differing" and "depends_on_inputs" are read.
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
    """Words that say how to compare with other inputs; "" for models without inputs or with states."""
    if not model.get_parameters() or is_stateful(model):
        return ""
    return ": --input NAME=FILE gives inputs of your own"


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


def _depends_on_inputs(model: ov.Model, outputs: list[Outputs]) -> bool:
    """Whether some output differs between sequences with different inputs; also true for a model without inputs."""
    first, *other_sets = outputs
    varying = any(
        not np.array_equal(array, other[number], equal_nan=bool(np.issubdtype(array.dtype, np.floating)))
        for other in other_sets
        for number, array in enumerate(first)
    )
    return varying or not model.get_parameters()


def _depends_on_fake_quantize(model: ov.Model) -> NDArray[np.bool_]:
    """Finds out whether each output depends on a FakeQuantize of a tensor that is no constant, bool [outputs]."""
    depends = []
    for result in model.get_results():
        seen, waiting = {result.get_instance_id()}, [result]
        rounds = False
        while waiting and not rounds:
            node = waiting.pop()
            sources = [value.get_node() for value in node.input_values()]
            rounds = node.get_type_name() == "FakeQuantize" and sources[0].get_type_name() != "Constant"
            waiting += [source for source in sources if source.get_instance_id() not in seen]
            seen.update(source.get_instance_id() for source in sources)
        depends.append(rounds)
    return np.array(depends, bool)


def _draws_numbers(model: ov.Model) -> bool:
    """Whether the model, or a body in it, has an operation that draws random numbers."""
    nodes = model.get_ops()
    return any(node.get_type_name() in _RANDOM for node in nodes) or any(
        _draws_numbers(body) for node in nodes for body in bodies_of(node)
    )


def _shapes_of_placement(model: ov.Model) -> dict[str, list[int]] | None:
    """Returns the example shapes that the placement was made with; None without any, or where they no longer fit."""
    placement = Placement.of(model)
    shapes: dict[str, list[int]] | None = ((placement and placement.settings) or {}).get("shapes")
    try:
        input_shapes(model, shapes or {})
    except UserError:
        return None
    return shapes


def _outputs(compiled: ov.CompiledModel, inputs: Sequence[Sequence[Inputs]]) -> list[Outputs]:
    """Runs each sequence of inferences once; returns the outputs of each sequence, see `_outputs_twice`."""
    return _runs(compiled, inputs, times=1)[0]


def _outputs_twice(compiled: ov.CompiledModel, inputs: Sequence[Sequence[Inputs]]) -> _TwoRuns:
    """Runs each sequence of inferences twice in a row.

    Both runs of a sequence use the same request, so that the second one meets the memory that the first one left.
    States are reset after each run; without states, every sequence has a request of its own.

    Args:
        compiled: the compiled model.
        inputs: for each sequence, the inputs of its inferences.

    Returns:
        The outputs of both runs.
    """
    first, second = _runs(compiled, inputs, times=2)
    return _TwoRuns(first, second)


def _runs(compiled: ov.CompiledModel, inputs: Sequence[Sequence[Inputs]], times: int) -> list[list[Outputs]]:
    """Runs each sequence of inferences several times in a row, see `_outputs_twice`.

    Args:
        compiled: the compiled model.
        inputs: for each sequence, the inputs of its inferences.
        times: number of runs of each sequence.

    Returns:
        For each run, the outputs of each sequence.
    """
    runs: list[list[Outputs]] = [[] for _ in range(times)]
    request = compiled.create_infer_request()
    for steps in inputs:
        for run in runs:
            run.append(_run(compiled, request, steps))
            if stateful := bool(request.query_state()):
                request.reset_state()
        if not stateful:
            request = compiled.create_infer_request()
    return runs


def _run(compiled: ov.CompiledModel, request: ov.InferRequest, steps: Sequence[Inputs]) -> Outputs:
    """Runs a sequence of inferences on a request.

    Args:
        compiled: the compiled model.
        request: a request of it, whose states are not reset.
        steps: inputs of each inference.

    Returns:
        Copies of the outputs, one inference after the other.
    """
    outputs: Outputs = []
    for arrays in steps:
        infer(request, arrays)
        outputs += [np.array(request.get_output_tensor(port).data) for port in range(len(compiled.outputs))]
    return outputs


def _finite_values(array: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each value is neither NaN nor infinite, bool of the array's shape; true for all but floats."""
    return np.isfinite(array) if np.issubdtype(array.dtype, np.floating) else np.ones(array.shape, bool)
