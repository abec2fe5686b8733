"""Decides how much a placed model's outputs may differ from those of single devices.

Outputs that are right differ as well, as devices round in other places. Outputs that a single device computes
differently from run to run tell nothing, and are found first. What is accepted of the others follows from how single
devices round. Where outputs differ more, the model's operations run one by one, which shows the run that is wrong.
Differences are those of `ov_hsdag.measuring.agreement`, relative to an output's largest magnitude.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.measuring import agreement
from ov_hsdag.measuring.verification_runs import F32, Outputs, Runner, Runs, TwoRuns
from ov_hsdag.model.flops import bodies_of
from ov_hsdag.utils.errors import one_line
from ov_hsdag.utils.lazy import ov

# Accepted difference in f32 where a device is used that does not compute in f32.
_TOLERANCE_F16 = 2e-2

# Accepted difference of a split, as a multiple of a single device's difference from f32: a split rounds in other
# places, which makes errors of the same size.
_ROUNDING = 3.0

# Largest difference that is accepted by that rule: what is wrong (a lost tensor, a swapped input) differs by about 1.
_LARGEST_ROUNDING = 0.25

_RANDOM = ("RandomUniform", "Multinomial", "Bernoulli")
"""Types of operations that draw random numbers."""


@dataclass(frozen=True, eq=False)
class Differences:
    """Largest difference of each output of the placed model from those of single devices.

    Attributes:
        by_device: by single device, in either run, float64 [outputs].
        worst: from any device, in either run, float64 [outputs].
        worst_repeated: from any device, in the second run alone, float64 [outputs].
    """

    by_device: dict[str, NDArray[np.float64]]
    worst: NDArray[np.float64]
    worst_repeated: NDArray[np.float64]

    @classmethod
    def of(cls, runs: Runs, outputs: int) -> Differences:
        """Computes the differences.

        Args:
            runs: the outputs.
            outputs: number of outputs of one inference.

        Returns:
            The differences.
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


# Outputs that vary by themselves.


@dataclass(frozen=True, eq=False)
class Varying:
    """Outputs that a device alone computes differently when it runs the same inputs once more.

    Attributes:
        outputs: names of the outputs.
        notes: remarks for `Verification.notes`.
    """

    outputs: list[str]
    notes: list[str]


def find_varying(runner: Runner, runs: Runs, differences: Differences) -> Varying:
    """Finds the outputs that vary by themselves.

    Random numbers do not count where no output differs: they are the same on all devices, which proves something.
    Where outputs differ though both runs of each device agree, a device compiles and runs the model once more, as only
    this can show that outputs vary.

    Args:
        runner: runs the model once more.
        runs: the outputs.
        differences: differences of the outputs.

    Returns:
        The outputs, with notes on them.
    """
    differ = bool((differences.worst > agreement.TOLERANCE).any())
    if not differ and _draws_numbers(runner.model):
        return Varying([], [])
    by_rerun = _changed_by_rerun(runner.outputs, runs, differences)
    if by_rerun.outputs or not differ:
        return by_rerun
    return Varying(_changed_by_recompiling(runner, runs), [])


def _changed_by_rerun(names: Sequence[str], runs: Runs, differences: Differences) -> Varying:
    """Finds the outputs that a device alone computes differently when the same request runs once more.

    Such outputs depend on memory which was never written, for example. Where there is one, outputs that differ from the
    placed model's in the first run alone count as well. A note says so where all second runs agree.

    Args:
        names: names of the model's outputs.
        runs: the outputs.
        differences: differences of the outputs.

    Returns:
        The outputs, with that note; none where no output of a device changes.
    """
    changes = [agreement.differences(single.first, single.second, len(names)) for single in runs.singles.values()]
    changed = np.max(changes, axis=0) > agreement.TOLERANCE
    if not changed.any():
        return Varying([], [])
    agrees_repeated = differences.worst_repeated <= agreement.TOLERANCE
    settles = (differences.worst > agreement.TOLERANCE) & agrees_repeated
    note = "first inferences alone differ: when they are repeated, all agree"
    varying = [name for name, varies in zip(names, changed | settles, strict=True) if varies]
    return Varying(varying, [note] if agrees_repeated.all() else [])


def _changed_by_recompiling(runner: Runner, runs: Runs) -> list[str]:
    """Finds the outputs, such as random numbers, that change when a device compiles and runs the model again.

    Args:
        runner: compiles and runs the model again, on the first device.
        runs: the outputs.

    Returns:
        Names of the outputs.
    """
    device, single = next(iter(runs.singles.items()))
    again = runner.run_again(device, runs.inputs)
    changes = agreement.differences(single.first, again, len(runner.outputs))
    return [name for name, change in zip(runner.outputs, changes, strict=True) if change > agreement.TOLERANCE]


def _draws_numbers(model: ov.Model) -> bool:
    """Whether the model, or a body in it, has an operation that draws random numbers."""
    nodes = model.get_ops()
    return any(node.get_type_name() in _RANDOM for node in nodes) or any(
        _draws_numbers(body) for node in nodes for body in bodies_of(node)
    )


# Accepted differences.


@dataclass(frozen=True, eq=False)
class Accepted:
    """The largest accepted differences, and how they were found.

    Attributes:
        differences: largest accepted difference of each output, float64 [outputs].
        rounding: largest difference of single devices from f32, where that determines the accepted ones; else None.
        operations: the entry of `Verification.result` that says what the operations computed one by one; empty where
            they did not run.
        notes: remarks for `Verification.notes`.
    """

    differences: NDArray[np.float64]
    rounding: float | None = None
    operations: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()


def find_accepted(runner: Runner, runs: Runs, worst: NDArray[np.float64], varying: Varying) -> Accepted:
    """Finds the largest accepted difference of each output.

    Args:
        runner: runs the model in f32, and its operations one by one, where outputs differ.
        runs: the outputs.
        worst: largest difference of each output of the placed model from any device's, float64 [outputs].
        varying: outputs that vary by themselves. Where there is one, nothing runs, as it would show nothing.

    Returns:
        The accepted differences, with notes on them.
    """
    if varying.outputs:
        return Accepted(np.full(len(runner.outputs), agreement.TOLERANCE))
    accepted = _accept_rounding(runner, runs, worst)
    if (worst > accepted.differences).any():
        return _ask_operations(runner, runs, accepted)
    return accepted


def _accept_rounding(runner: Runner, runs: Runs, worst: NDArray[np.float64]) -> Accepted:
    """Computes the largest accepted difference of each output from how devices round.

    In f32 it is `agreement.TOLERANCE`, or `_TOLERANCE_F16` where a device does not compute in f32. In other
    precisions it is `_ROUNDING` times the difference of single devices from f32, at most `_LARGEST_ROUNDING`; devices
    run the model in f32 for that. Where no device can, it is `agreement.tolerance`.

    Args:
        runner: runs the model in f32 where outputs differ.
        runs: the outputs.
        worst: largest difference of each output of the placed model from any device's, float64 [outputs].
    """
    least = np.full(len(runner.outputs), agreement.TOLERANCE)
    if runner.precision == F32:
        all_in_f32 = all(map(runner.f32_properties, runner.present))
        return Accepted(np.maximum(least, 0.0 if all_in_f32 else _TOLERANCE_F16))
    if (worst <= least).all():
        return Accepted(least)
    exact = runner.run_in_f32(runs.singles, runs.inputs)
    if not exact:
        return Accepted(np.maximum(least, agreement.tolerance(runner.core, runner.present, runner.model)))
    exact_of_others = next(iter(exact.values()))
    roundings = [
        agreement.differences(exact.get(name, exact_of_others), single.first, len(least))
        for name, single in runs.singles.items()
    ]
    by_rounding = np.minimum(_ROUNDING * np.max(roundings, axis=0), _LARGEST_ROUNDING)
    return Accepted(np.maximum(least, by_rounding), float(np.max(roundings, initial=0.0)))


# Asking the operations: which run is wrong?


def _ask_operations(runner: Runner, runs: Runs, accepted: Accepted) -> Accepted:
    """Finds out which run is wrong by running the model's operations one by one.

    Args:
        runner: runs the operations.
        runs: the outputs, some of which differ more than is accepted.
        accepted: largest accepted differences by rounding.

    Returns:
        The accepted differences, which may be larger now, with notes. They have an entry of the result where the
        operations run one by one.
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
    """One inference of one of the sequences, in one of its two runs.

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

    def outputs(self, computed: TwoRuns) -> Outputs:
        """Picks the outputs of this inference out of those of both runs."""
        run = computed.second if self.repeated else computed.first
        return run[self.sequence][self.step * self.count : (self.step + 1) * self.count]


def _find_difference(runs: Runs, accepted: NDArray[np.float64], count: int) -> _Inference:
    """Finds the first inference in which the placed model differs from a single device more than is accepted.

    The first runs of all sequences are searched before the second ones.

    Args:
        runs: the outputs. One of them differs more than is accepted, in either run.
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
    runner: Runner, singles: Sequence[NDArray[np.float64]], accepted: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Accepts larger differences, in f32, of outputs that depend on quantised tensors.

    How FakeQuantize rounds depends on the last bit of a sum, on single devices as well.

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
        only_floats: whether outputs that are no floats are left out. In another precision than f32, integers such as
            indices may differ.

    Returns:
        Names of the devices.
    """
    judged = np.array([not only_floats or np.issubdtype(array.dtype, np.floating) for array in expected], bool)
    return [name for name, error in errors.items() if (error > accepted)[judged].any()]


def _say_who_is_wrong(hetero: str, wrong: Sequence[str]) -> list[str]:
    """Returns a line that says whether the placement is right or wrong; no line where that remains open.

    Args:
        hetero: name of the placed model's device, HETERO.
        wrong: names of the devices whose outputs are wrong.
    """
    if wrong and hetero not in wrong:
        return [f"so the placement is right, and the model is wrong on {' and '.join(wrong)} alone"]
    return ["so the placement is wrong"] if wrong == [hetero] else []
