"""Runs a placed model on HETERO, and the whole model on each device alone, with the same inputs.

The inputs are sequences of inferences: a prompt and its tokens for a stateful model, one inference for other models.
Each sequence runs twice, so that outputs which change from run to run are noticed.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.devices.discovery import full_name, inference_precision
from ov_hsdag.measuring import agreement
from ov_hsdag.measuring.one_by_one import OneByOne
from ov_hsdag.model.inputs import conversations
from ov_hsdag.model.replay import infer
from ov_hsdag.model.samples import Samples
from ov_hsdag.model.shapes import sized, smaller_shapes
from ov_hsdag.utils.errors import PlacementNotFollowedWarning, RunError, one_line
from ov_hsdag.utils.lazy import ov

DEPLOYED, F32 = "deployed", "f32"
"""Precisions that outputs can be compared in: that of an application that sets nothing, and f32 wherever possible."""

SEEDS = (0, 1)
"""Seeds of the random inputs. There are two, as an output that is the same for all inputs proves nothing."""

# Properties with which a device computes in f32. The second one is for states of language models on CPU devices.
_F32 = {"INFERENCE_PRECISION_HINT": "f32"}
_F32_STATES = {"KV_CACHE_PRECISION": "f32"}

# Properties that decide whether devices compute quantised models in integers, as they do by default, or in floats.
_GROUP_SIZE, _LOW_PRECISION = "DYNAMIC_QUANTIZATION_GROUP_SIZE", "LP_TRANSFORMS_MODE"

# Kinds of devices that do not compute in f32.
_F16_ONLY = ("NPU",)

# Time limit for running operations one by one, seconds; large models have thousands of operations.
_ONE_BY_ONE_SECONDS = 120.0

Inputs = list[NDArray[Any]]
"""Inputs of one inference, in the order of the model's parameters."""

Outputs = list[NDArray[Any]]
"""Outputs of a sequence of inferences, one after the other: of a prompt and its tokens, or of a single inference."""


@dataclass(frozen=True, eq=False)
class Runner:
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

    def run_everywhere(self, samples: Samples | None, shapes: Mapping[str, Sequence[int]] | None) -> Runs:
        """Runs the model on each device alone, and the placed model on HETERO, with the same inputs.

        Args:
            samples: inputs that the user gave; None for made-up ones.
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
        return Runs(inputs, singles, placed, compiled, ignored)

    def _run_alone(
        self, samples: Samples | None, shapes: Mapping[str, Sequence[int]] | None
    ) -> tuple[list[list[Inputs]], dict[str, TwoRuns]]:
        """Runs the model on each device alone. Where no device can run it, smaller inputs are tried.

        Args:
            samples: inputs that the user gave; None for made-up ones.
            shapes: example shapes of dynamic inputs, by input name; None for none.

        Returns:
            The inputs, and the outputs by device that runs the model alone.

        Raises:
            RunError: no device runs the model alone.
        """
        failures: list[dict[str, str]] = []  # for each set of inputs, what went wrong by device
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

    def _run_each_alone(self, inputs: list[list[Inputs]]) -> tuple[dict[str, TwoRuns], dict[str, str]]:
        """Runs the model on each device alone. Returns the outputs by device, and what went wrong by device."""
        singles: dict[str, TwoRuns] = {}
        failed: dict[str, str] = {}
        for name in self.present or ["CPU"]:
            self.report(f"running on {name} alone")
            try:
                singles[name] = _run_twice(self.compile_alone(name, self.precision), inputs)
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
        """Returns the properties with which a device computes in f32; empty for a device that does not."""
        return {} if device.startswith(_F16_ONLY) else {**_F32, **(_F32_STATES if "CPU" in device else {})}

    @contextmanager
    def quantised_in_floats(self) -> Iterator[None]:
        """Makes devices compute a quantised model in floats inside a `with` block.

        The properties are set on the Core, as HETERO does not pass them on to its devices. Devices that do not compute
        in f32, or do not know the properties, are left as they are.
        """
        group_sizes = {}  # by device, as they were before the block
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

    def _run_placed(self, compiled: ov.CompiledModel, inputs: list[list[Inputs]]) -> TwoRuns:
        """Runs the placed model.

        Args:
            compiled: the placed model, compiled.
            inputs: for each sequence of inferences, the inputs of each inference.

        Returns:
            The outputs of both runs.

        Raises:
            RunError: an inference fails.
        """
        try:
            return _run_twice(compiled, inputs)
        except RuntimeError as error:
            raise RunError(
                f"{self.devices.hetero} fails with the placement, and a single device does not: {one_line(error)}"
            ) from error

    def run_again(self, device: str, inputs: list[list[Inputs]]) -> list[Outputs]:
        """Compiles the model on one device and runs it once.

        Args:
            device: the device.
            inputs: for each sequence of inferences, the inputs of each inference.

        Returns:
            The outputs of each sequence.

        Raises:
            RuntimeError: the model cannot be compiled, or an inference fails.
        """
        self.report(f"running on {device} once more")
        return _run_once(self.compile_alone(device, self.precision), inputs)

    def run_in_f32(self, devices: Iterable[str], inputs: list[list[Inputs]]) -> dict[str, list[Outputs]]:
        """Runs the model in f32 on each device that computes in f32.

        Args:
            devices: the devices.
            inputs: for each sequence of inferences, the inputs of each inference.

        Returns:
            The outputs of each sequence by device. A device that cannot run the model in f32 is left out, with a
            warning.
        """
        exact: dict[str, list[Outputs]] = {}
        with self.quantised_in_floats():
            for name in filter(self.f32_properties, devices):
                self.report(f"running on {name} alone in f32")
                try:
                    exact[name] = _run_once(self.compile_alone(name, F32), inputs)
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
        """Returns the precision that a device computes in, in words for a report."""
        if self.precision == F32 and self.f32_properties(device):
            return F32
        return inference_precision(self.core, device) or "its own choice"


@dataclass(frozen=True, eq=False)
class Runs:
    """What the placed model, and the whole model on each device alone, computed from the same inputs.

    Attributes:
        inputs: for each sequence of inferences, the inputs of each inference.
        singles: outputs of the whole model, by the device that ran it alone; there is at least one.
        placed: outputs of the placed model.
        compiled: the placed model, compiled.
        ignored: lines that say in what respects the placement was not followed.
    """

    inputs: list[list[Inputs]]
    singles: dict[str, TwoRuns]
    placed: TwoRuns
    compiled: ov.CompiledModel
    ignored: list[str]


@dataclass(frozen=True, eq=False)
class TwoRuns:
    """Outputs of sequences of inferences that each ran twice in a row, see `_run_twice`.

    Attributes:
        first: outputs of each sequence in the first run.
        second: outputs of each sequence in the second run.
    """

    first: list[Outputs]
    second: list[Outputs]


# Running sequences of inferences.


def _run_once(compiled: ov.CompiledModel, inputs: Sequence[Sequence[Inputs]]) -> list[Outputs]:
    """Runs each sequence of inferences once, and returns the outputs of each sequence."""
    return _run_sequences(compiled, inputs, times=1)[0]


def _run_twice(compiled: ov.CompiledModel, inputs: Sequence[Sequence[Inputs]]) -> TwoRuns:
    """Runs each sequence of inferences twice in a row, on the same request, see `_run_sequences`.

    So the second run of a sequence meets the memory that the first one left.

    Args:
        compiled: the compiled model.
        inputs: for each sequence, the inputs of each inference.

    Returns:
        The outputs of both runs.
    """
    first, second = _run_sequences(compiled, inputs, times=2)
    return TwoRuns(first, second)


def _run_sequences(compiled: ov.CompiledModel, inputs: Sequence[Sequence[Inputs]], times: int) -> list[list[Outputs]]:
    """Runs each sequence of inferences several times in a row.

    All runs of a sequence use the same request. A model with states has one request for all sequences, and its states
    are reset after each run. For other models every sequence has a request of its own.

    Args:
        compiled: the compiled model.
        inputs: for each sequence, the inputs of each inference.
        times: number of runs of each sequence.

    Returns:
        For each run, the outputs of each sequence.
    """
    runs: list[list[Outputs]] = [[] for _ in range(times)]
    request = compiled.create_infer_request()
    for steps in inputs:
        for run in runs:
            run.append(_run_sequence(compiled, request, steps))
            if stateful := bool(request.query_state()):
                request.reset_state()
        if not stateful:
            request = compiled.create_infer_request()
    return runs


def _run_sequence(compiled: ov.CompiledModel, request: ov.InferRequest, steps: Sequence[Inputs]) -> Outputs:
    """Runs a sequence of inferences on a request.

    Args:
        compiled: the compiled model.
        request: a request of the compiled model. Its states are not reset.
        steps: inputs of each inference.

    Returns:
        Copies of the outputs, one inference after the other.
    """
    outputs: Outputs = []
    for arrays in steps:
        infer(request, arrays)
        outputs += [np.array(request.get_output_tensor(port).data) for port in range(len(compiled.outputs))]
    return outputs
