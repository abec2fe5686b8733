"""Verifies that a placed model computes on HETERO what it computes on one device.

The references are the outputs of the whole model on each device alone. The inputs are sequences of inferences: a prompt
and its tokens for a stateful model, one inference for others. Each sequence runs twice, so that outputs which change
from run to run are noticed. Differences are those of `ov_hsdag.measuring.agreement`, relative to an output's largest
magnitude.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
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
    samples = samples_of(model, inputs, shapes, _shapes_of_placement(model))
    told = report or (lambda _: None)
    return Verification(core or new_core(), model, devices, precision, shapes, samples, told, warn)


Outputs = list[NDArray[Any]]
"""Outputs of a sequence of inferences, one after the other: of a prompt and its tokens, or of a single inference."""


class Verification:
    """A comparison of a placed model's outputs with those of single devices.

    Attributes:
        result: the figures that `ov-hsdag verify --json` prints. Among them are "verified"; "reasons", why it is not;
            and "equal", which is None where outputs agree but that proves nothing.
        notes: further remarks about the figures, one line each.
        unproven: reasons why equal outputs would prove nothing about the placement, one line each.
    """

    def __init__(
        self,
        core: ov.Core,
        model: ov.Model,
        devices: DeviceSet,
        precision: str,
        shapes: Mapping[str, Sequence[int]] | None,
        samples: Samples | None,
        report: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        """Runs the model and compares the outputs.

        Args:
            core: Core of the devices.
            model: a model with a placement; it is not changed.
            devices: the devices, in HETERO's order.
            precision: `DEPLOYED` or `F32`.
            shapes: example shapes of dynamic inputs, by input name; by default those that the model was placed with.
            samples: inputs that the user gave; by default inputs are made up.
            report: called with a few words at each step.
            warn: called with a line for each problem that does not prevent the comparison.

        Raises:
            UserError: inputs or shapes do not fit the model.
            RunError: the model does not run, on HETERO or on any device alone.
        """
        self._core, self._model, self._precision = core, model, precision
        self._report, self._warn, self._samples = report, warn, samples
        self._quantised = agreement.quantised_tolerance(model) > agreement.TOLERANCE
        self._names = [result.get_friendly_name() for result in model.get_results()]
        device = devices.hetero
        self._present = [name for name in devices if full_name(core, name) is not None]
        shapes = _shapes_of_placement(model) if shapes is None else shapes
        with self._quantised_in_floats() if precision == F32 else nullcontext():
            inputs, references, repeated = self._references(shapes)
            report("compiling the placement")
            compiled, ignored = self._compile_placed(devices)
            report("running the placement")
            try:
                outputs, outputs_repeated = _outputs_twice(compiled, inputs)
            except RuntimeError as error:
                raise RunError(
                    f"{device} fails with the placement, and a single device does not: {one_line(error)}"
                ) from error
        differences_repeated = {name: self._differences(one, outputs_repeated) for name, one in repeated.items()}
        differences = {
            name: np.maximum(self._differences(one, outputs), differences_repeated[name])
            for name, one in references.items()
        }
        worst, worst_repeated = (np.max(list(one.values()), axis=0) for one in (differences, differences_repeated))
        self.notes: list[str] = []
        self._rounding: float | None = None
        operations: dict[str, Any] = {}
        varying = []
        differ = bool((worst > agreement.TOLERANCE).any())
        if differ or not _draws_numbers(self._model):
            varying = self._changed_by_rerun(references, repeated, worst, worst_repeated)
        if differ and not varying:
            varying = self._changed_by_recompiling(references, inputs)
        if varying:
            accepted = np.full(len(self._names), agreement.TOLERANCE)
        else:
            accepted = self._accepted_differences(references, worst, inputs)
            if (worst > accepted).any():
                accepted, operations = self._ask_operations(inputs, {device: outputs, **references}, accepted)
        too_far = zip(self._names, worst > accepted, strict=True)
        differing = [name for name, differs in too_far if differs and name not in varying]
        self.result: dict[str, Any] = {
            "device": device,
            "devices": list(compiled.get_property("EXECUTION_DEVICES")),
            "submodels": int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS")),
            "precision": {name: self._computes_in(name) for name in self._present},
            "max_relative_error": float(worst.max(initial=0.0)),
            "relative_errors": {name: float(one.max(initial=0.0)) for name, one in differences.items()},
            "largest_in": {name: self._names[int(one.argmax())] for name, one in differences.items() if len(one)},
            "not_finite": self._outputs_where(
                lambda array: not _finite_values(array).all(), outputs, *references.values()
            ),
            "depends_on_inputs": self._depends_on_inputs(outputs),
            "inferences": sum(map(len, inputs)),
            "tolerance": float(accepted.max(initial=agreement.TOLERANCE)),
            "rounding": self._rounding,
            "followed": not ignored,
            "differing": differing,
            "varying": varying,
            **operations,
        }
        self.unproven = [*ignored, *self._nothing_compared(outputs)]
        if varying:
            names = ", ".join(varying)
            self.unproven.append(f"{names}: a single device gives other values when the same inputs run once more")
        self.result |= self._verdict(differing)

    def _verdict(self, differing: Sequence[str]) -> dict[str, Any]:
        """Makes the entries "verified", "reasons" and "equal" of `result`.

        Args:
            differing: names of the outputs that differ more than is accepted.
        """
        reasons = [*([f"outputs differ: {', '.join(differing)}"] if differing else []), *self.unproven]
        equal = False if differing else None if self.unproven else True
        return {"verified": not reasons, "reasons": reasons, "equal": equal}

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
            where = f", {result['largest_in'][name]}" if len(self._names) > 1 else ""
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

    def _references(
        self, shapes: Mapping[str, Sequence[int]] | None
    ) -> tuple[list[list[Inputs]], dict[str, list[Outputs]], dict[str, list[Outputs]]]:
        """Runs the model on each device alone, with smaller inputs where no device runs it otherwise.

        Args:
            shapes: example shapes of dynamic inputs, by input name.

        Returns:
            The inputs, and the outputs of the first and the second run on each device that runs the model alone, by
            device, see `_outputs_twice`.

        Raises:
            RunError: no device runs the model alone.
        """
        first: dict[str, str] = {}
        for inputs, note in self._inputs_to_try(shapes):
            outputs: dict[str, list[Outputs]] = {}
            repeated: dict[str, list[Outputs]] = {}
            failed: dict[str, str] = {}
            for name in self._present or ["CPU"]:
                self._report(f"running on {name} alone")
                try:
                    outputs[name], repeated[name] = _outputs_twice(self._compile(name, self._precision), inputs)
                except RuntimeError as error:
                    failed[name] = one_line(error)
            first = first or failed
            if outputs:
                if note:
                    self._warn(note)
                self._warn_of(failed)
                return inputs, outputs, repeated
        self._warn_of(first)
        guessed = self._model.is_dynamic() and not shapes and self._samples is None
        remedy = "; --shape gives sizes that it takes" if guessed else ""
        raise RunError(f"there is no device to compare with: none can run the whole model alone{remedy}")

    def _warn_of(self, failed: Mapping[str, str]) -> None:
        """Warns of devices that cannot run the model alone; `failed` has the reason by device."""
        for name, why in failed.items():
            self._warn(f"{name} cannot run the model alone: {why}")

    def _inputs_to_try(self, shapes: Mapping[str, Sequence[int]] | None) -> Iterator[tuple[list[list[Inputs]], str]]:
        """Yields inputs to try one after the other: the usual ones, then shorter sequences, then smaller shapes.

        Args:
            shapes: example shapes of dynamic inputs, by input name; None for none.

        Yields:
            Sequences of inferences with their inputs, and a note for the user; "" for the usual ones. Inputs that the
            user gave have no alternative.
        """
        inputs = conversations(self._model, SEEDS, shapes, self._samples)
        yield inputs, ""
        if self._samples is not None:
            return
        if len(inputs[0]) > 1:
            note = "only first inferences are compared, as it is not known what its inputs mean"
            yield [steps[:1] for steps in inputs], note
        for smaller in smaller_shapes(self._model, shapes):
            told = ", ".join(sized(name, shape) for name, shape in smaller.items())
            note = f"compared with {told}: no device runs it with larger inputs"
            yield conversations(self._model, SEEDS, smaller), note

    def _compile(self, device: str, precision: str) -> ov.CompiledModel:
        """Compiles the model on one device in a precision. Raises RuntimeError where OpenVINO refuses."""
        return self._core.compile_model(self._model, device, self._f32_properties(device) if precision == F32 else {})

    def _f32_properties(self, device: str) -> dict[str, str]:
        """Properties with which a device computes in f32; empty for one that does not."""
        return {} if device.startswith(_F16_ONLY) else {**_F32, **(_F32_STATES if "CPU" in device else {})}

    @contextmanager
    def _quantised_in_floats(self) -> Iterator[None]:
        """Makes devices compute quantised models in floats inside of the block.

        The properties are set on the Core, as HETERO does not pass them on to its devices. Devices that do not compute
        in f32, or do not know the properties, are left as they are.
        """
        group_sizes = {}  # as they were before the block, by device
        for name in self._present if self._quantised else ():
            if not self._f32_properties(name):
                continue
            with suppress(RuntimeError):
                size = self._core.get_property(name, _GROUP_SIZE)
                self._core.set_property(name, {_LOW_PRECISION: "NO", _GROUP_SIZE: "0"})
                group_sizes[name] = size
        try:
            yield
        finally:
            # The CPU plugin does not report LP_TRANSFORMS_MODE; "YES" is its default.
            for name, size in group_sizes.items():
                self._core.set_property(name, {_LOW_PRECISION: "YES", _GROUP_SIZE: size})

    def _compile_placed(self, devices: DeviceSet) -> tuple[ov.CompiledModel, list[str]]:
        """Compiles the placed model on HETERO, as an unchanged script does.

        Returns:
            The compiled model, and lines that say in what respects the placement was not followed.

        Raises:
            RunError: OpenVINO refuses to compile it.
        """
        config: dict[str, Any] = {}
        if self._precision == F32:
            by_device = {name: self._f32_properties(name) for name in devices}
            config = {"DEVICE_PROPERTIES": {name: properties for name, properties in by_device.items() if properties}}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                compiled = self._core.compile_model(self._model, devices.hetero, config)
            except RuntimeError as error:
                raise RunError(f"cannot compile on {devices.hetero}: {one_line(error)}") from error
        for warning in caught:
            self._warn(str(warning.message))
        ignored = [warning for warning in caught if issubclass(warning.category, PlacementNotFollowedWarning)]
        return compiled, [str(warning.message).removeprefix("ov_hsdag: ") for warning in ignored]

    def _computes_in(self, device: str) -> str:
        """The precision that a device computes in, as words for people."""
        if self._precision == F32 and self._f32_properties(device):
            return F32
        return inference_precision(self._core, device) or "its own choice"

    # Comparing the outputs.

    def _differences(self, reference: list[Outputs], outputs: list[Outputs]) -> NDArray[np.float64]:
        """Returns the largest difference of each output between two runs of the same inputs, float64 [outputs]."""
        return agreement.differences(reference, outputs, len(self._names))

    def _changed_by_rerun(
        self,
        references: Mapping[str, list[Outputs]],
        repeated: Mapping[str, list[Outputs]],
        worst: NDArray[np.float64],
        worst_repeated: NDArray[np.float64],
    ) -> list[str]:
        """Finds the outputs that a device alone computes differently when the same request runs once more.

        Outputs that depend on memory which was never written are such. Where there is one, outputs that differ from the
        placed model's in the first run alone count as well. Numbers that a request draws from a seed also change from
        run to run; these prove something if the sequence is the same everywhere. A line is added to `notes` where all
        second runs agree.

        Args:
            references: outputs of the first run, by device.
            repeated: outputs of the second run, by device.
            worst: largest difference of each output from the placed model's in either run, float64 [outputs].
            worst_repeated: largest difference of each output from the placed model's in the second run alone, float64
                [outputs].

        Returns:
            Names of the outputs; empty where no output of a device changes.
        """
        changes = {name: self._differences(one, repeated[name]) for name, one in references.items()}
        changed = np.max(list(changes.values()), axis=0) > agreement.TOLERANCE
        if not changed.any():
            return []
        settles = (worst > agreement.TOLERANCE) & (worst_repeated <= agreement.TOLERANCE)
        if (worst_repeated <= agreement.TOLERANCE).all():
            self.notes.append("first inferences alone differ: when they are repeated, all agree")
        return [name for name, varies in zip(self._names, changed | settles, strict=True) if varies]

    def _changed_by_recompiling(self, references: Mapping[str, list[Outputs]], inputs: list[list[Inputs]]) -> list[str]:
        """Finds the outputs that change when a device compiles and runs the model again, such as random numbers.

        Args:
            references: outputs on single devices, by device; the first device is tried.
            inputs: the inputs.

        Returns:
            Names of the outputs.
        """
        device, first = next(iter(references.items()))
        self._report(f"running on {device} once more")
        changed = self._differences(first, _outputs(self._compile(device, self._precision), inputs))
        return [name for name, change in zip(self._names, changed, strict=True) if change > agreement.TOLERANCE]

    def _accepted_differences(
        self, references: Mapping[str, list[Outputs]], worst: NDArray[np.float64], inputs: list[list[Inputs]]
    ) -> NDArray[np.float64]:
        """Computes the largest accepted difference of each output, float64 [outputs].

        In f32 it is `agreement.TOLERANCE`, or `_TOLERANCE_F16` where a device does not compute in f32. In other
        precisions it is `_ROUNDING` times the difference of single devices from f32, which are run in f32 for that. The
        largest of these differences is stored for the report.

        Args:
            references: outputs on single devices, by device.
            worst: largest difference of each output from the placed model's, float64 [outputs].
            inputs: the inputs.
        """
        accepted = np.full(len(self._names), agreement.TOLERANCE)
        if self._precision == F32:
            return np.maximum(accepted, _TOLERANCE_F16 if not all(map(self._f32_properties, self._present)) else 0.0)
        if (worst <= accepted).all():
            return accepted
        exact: dict[str, list[Outputs]] = {}
        with self._quantised_in_floats():
            for name in filter(self._f32_properties, references):
                self._report(f"running on {name} alone in f32")
                try:
                    exact[name] = _outputs(self._compile(name, F32), inputs)
                except RuntimeError as error:
                    self._warn(f"{name} cannot run the model in f32: {one_line(error)}")
        if not exact:
            return np.maximum(accepted, agreement.tolerance(self._core, self._present, self._model))
        for name, one in references.items():
            rounding = self._differences(exact.get(name, next(iter(exact.values()))), one)
            self._rounding = max(self._rounding or 0.0, float(rounding.max(initial=0.0)))
            accepted = np.maximum(accepted, np.minimum(_ROUNDING * rounding, _LARGEST_ROUNDING))
        return accepted

    def _ask_operations(
        self, inputs: list[list[Inputs]], runs: Mapping[str, list[Outputs]], accepted: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Finds out which run is wrong by running the model's operations one by one, and adds lines to `notes`.

        In f32, larger differences are accepted of outputs that depend on quantised tensors: the last bit of a sum
        decides how FakeQuantize rounds, on single devices as well.

        Args:
            inputs: the inputs.
            runs: outputs of the placed model, then of single devices, by device.
            accepted: largest accepted difference of each output, float64 [outputs].

        Returns:
            The accepted differences, which may be larger now, and an entry of `result`; the entry is empty where the
            operations do not run one by one.
        """
        device, *singles = runs
        group, step = next(
            (group, step)
            for group, steps in enumerate(inputs)
            for step in range(len(steps))
            for name in singles
            if (
                self._differences(
                    [self._outputs_of_step(runs[name][group], step)],
                    [self._outputs_of_step(runs[device][group], step)],
                )
                > accepted
            ).any()
        )
        exact_device = next((name for name in self._present if "CPU" in name), (self._present or ["CPU"])[0])
        operations = OneByOne(self._core, exact_device, self._model, self._report)
        end = time.monotonic() + _ONE_BY_ONE_SECONDS
        try:
            for one in inputs[group][: step + 1]:
                expected = operations.infer(one, end)
        except (RuntimeError, TimeoutError) as error:
            self.notes.append(f"operations could not be run one by one, to see which is wrong: {one_line(error)}")
            return accepted, {}
        errors = {
            name: self._differences([expected], [self._outputs_of_step(found[group], step)])
            for name, found in runs.items()
        }
        if self._precision == F32:
            rounding = np.minimum(_ROUNDING * np.max([errors[name] for name in singles], axis=0), _LARGEST_ROUNDING)
            accepted = np.maximum(accepted, np.where(_depends_on_fake_quantize(self._model), rounding, 0.0))
        # Where precisions differ, integers such as indices may differ, too: only floats count then.
        judged = [self._precision == F32 or np.issubdtype(array.dtype, np.floating) for array in expected]
        wrong = [name for name, error in errors.items() if (error > accepted)[judged].any()]
        largest = {name: float(error.max(initial=0.0)) for name, error in errors.items()}
        told = ", ".join(f"{name} {agreement.describe_difference(error)}" for name, error in largest.items())
        self.notes.append(f"differences from its operations run one by one on {exact_device} in f32: {told}")
        if wrong and device not in wrong:
            self.notes.append(f"so the placement is right, and the model is wrong on {' and '.join(wrong)} alone")
        elif wrong == [device]:
            self.notes.append("so the placement is wrong")
        return accepted, {
            "operation_by_operation": {"device": exact_device, "relative_errors": largest, "wrong": wrong}
        }

    def _outputs_of_step(self, outputs: Outputs, number: int) -> Outputs:
        """Returns the outputs of one inference.

        Args:
            outputs: outputs of a sequence of inferences.
            number: number of the inference in the sequence, from 0.
        """
        return outputs[number * len(self._names) : (number + 1) * len(self._names)]

    def _outputs_where(self, holds: Callable[[NDArray[Any]], bool], *runs: list[Outputs]) -> list[str]:
        """Finds the outputs for which a condition holds in any inference.

        Args:
            holds: the condition on the values of an output.
            runs: runs to look at; each has the outputs of each sequence of inferences.

        Returns:
            Names of the outputs, in the model's order.
        """
        count = len(self._names)
        return [
            name
            for number, name in enumerate(self._names)
            if any(holds(array) for run in runs for found in run for array in found[number::count])
        ]

    def _depends_on_inputs(self, outputs: list[Outputs]) -> bool:
        """Whether some output differs between sequences with different inputs; also true for a model without inputs."""
        first, *other_sets = outputs
        varying = any(
            not np.array_equal(array, other[number], equal_nan=bool(np.issubdtype(array.dtype, np.floating)))
            for other in other_sets
            for number, array in enumerate(first)
        )
        return varying or not self._model.get_parameters()

    def _nothing_compared(self, outputs: list[Outputs]) -> list[str]:
        """Finds out why equal outputs would prove nothing: no value is finite, or they do not depend on the inputs.

        Outputs that are empty or finite only in part add lines to `notes`.

        Args:
            outputs: outputs of the placed model, for each sequence of inferences.

        Returns:
            Reasons, one line each; empty where the outputs prove something.
        """
        with_finite = self._outputs_where(lambda array: bool(_finite_values(array).any()), outputs)
        lines = []
        if empty := [
            name for name in self._names if name not in self._outputs_where(lambda array: array.size > 0, outputs)
        ]:
            self.notes.append(f"{', '.join(empty)}: empty, so that nothing of it is compared")
        if none := [name for name in self._names if name not in with_finite and name not in empty]:
            lines.append(f"no value is finite in {', '.join(none)}")
        if odd := [
            name for name in self.result["not_finite"] if name not in none and name not in self.result["differing"]
        ]:
            self.notes.append(f"NaN or infinite in the same places as on one device: values of {', '.join(odd)}")
        if not self.result["depends_on_inputs"]:
            all_empty = len(empty) == len(self._names)
            why = "all outputs are empty" if all_empty else "no output changed with the inputs that were tried"
            lines.append(why + self._other_inputs())
        return lines

    def _other_inputs(self) -> str:
        """Words that say how to compare with other inputs; "" for models without inputs or with states."""
        if not self._model.get_parameters() or is_stateful(self._model):
            return ""
        return ": --input NAME=FILE gives inputs of your own"


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


def _outputs_twice(
    compiled: ov.CompiledModel, inputs: Sequence[Sequence[Inputs]]
) -> tuple[list[Outputs], list[Outputs]]:
    """Runs each sequence of inferences twice in a row.

    Both runs of a sequence use the same request, so that the second one meets the memory that the first one left.
    States are reset after each run; without states, every sequence has a request of its own.

    Args:
        compiled: the compiled model.
        inputs: for each sequence, the inputs of its inferences.

    Returns:
        The outputs of each sequence in the first run, and the same in the second run.
    """
    first, second = _runs(compiled, inputs, times=2)
    return first, second


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
