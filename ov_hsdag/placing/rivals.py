"""All ways to run one model on some devices, which `ov-hsdag bench` and the throughput benchmark compare.

A rival is one such way: a single device, HETERO's own choice, copies of the model, or a placement. Copies are the whole
model on each device at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.devices.virtual import definition
from ov_hsdag.measuring import choice
from ov_hsdag.measuring.comparison import ROUNDS, SECONDS, Comparison, measurements
from ov_hsdag.measuring.evaluator import HETERO_DEFAULT, PIPELINE_HINT, Measurement, simple_candidate
from ov_hsdag.measuring.process import Candidate
from ov_hsdag.placers.base import Placer
from ov_hsdag.placers.registry import unlearned_placers
from ov_hsdag.placers.single import NodeCount, simple_placers
from ov_hsdag.placing.candidates import why_left_out
from ov_hsdag.policy.placer import HSDAGPlacer
from ov_hsdag.problem.copies import COPIES, copies_summary, copy_devices
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.utils.errors import RunError
from ov_hsdag.utils.lazy import ov

AUTO_COPIES = "auto-cumulative"
"""Name of OpenVINO's own way to run a copy on each device: AUTO with CUMULATIVE_THROUGHPUT."""

OTHER_MODEL = "left out: the model has inputs that nothing reads, and without a placement HETERO makes outputs of these"
"""Reason for leaving out HETERO's own choices: it would compile a model with other outputs
(docs/reference/facts.md)."""

SHARES = (0.5, 0.7, 0.8, 0.9)
"""Shares of the operations that splits by hand put on the first device, as a user without this package might."""


@dataclass(frozen=True, eq=False)
class Rival:
    """One way to run the model.

    Attributes:
        name: name of the placer, the device or OpenVINO's mode.
        candidate: what is compiled.
        placement: device number of each group, uint8 [groups]; None for copies, and where HETERO decides in a way that
            is not known.
        predicted: figures as of `PlacementProblem.summary`; None where they are not known, or the placement is
            infeasible.
        seconds: time that placing took, seconds.
        same_as: name of an earlier rival with the same placement; "" without one.
    """

    name: str
    candidate: Candidate
    placement: NDArray[np.uint8] | None = None
    predicted: dict[str, Any] | None = None
    seconds: float = 0.0
    same_as: str = ""


def contenders(
    problem: PlacementProblem, devices: DeviceSet, policies: Sequence[HSDAGPlacer], *, by_hand: bool = True
) -> tuple[list[Rival], dict[str, str]]:
    """Lists all ways to run a model, simple ones first: devices, HETERO's own choices, copies, splits by hand, placers.

    Args:
        problem: problem of the model on the devices.
        devices: the devices, in HETERO's order.
        policies: placers of policies, each under its own name; they come last.
        by_hand: whether splits by hand are included.

    Returns:
        The rivals, and the reason by name for each rival that is left out, such as one that exceeds a memory limit.
    """
    placers = unlearned_placers(problem)
    simple = len(simple_placers(problem))
    rivals = [_run_placer(problem, devices, one, simple_candidate(one.name, devices)) for one in placers[:simple]]
    if problem.objective == "throughput":
        rivals.append(Rival(PIPELINE_HINT, simple_candidate(PIPELINE_HINT, devices)))
    if names := copy_devices(problem):
        rivals.append(Rival(COPIES, Candidate.copies(names), predicted=copies_summary(problem)))
        if not definition(names):  # AUTO would use only one of several virtual devices
            hint = {"PERFORMANCE_HINT": "CUMULATIVE_THROUGHPUT"}
            rivals.append(Rival(AUTO_COPIES, Candidate(f"AUTO:{','.join(names)}", properties=hint)))
    rivals += [
        _run_placer(problem, devices, placer)
        for placer in (*map(NodeCount, SHARES if by_hand else ()), *placers[simple:], *policies)
    ]
    left_out = {
        rival.name: why_left_out(problem, rival.placement)
        for rival in rivals
        if rival.placement is not None and rival.predicted is None
    }
    if problem.graph.has_unused_inputs:
        left_out |= {one.name: OTHER_MODEL for one in rivals if one.name in (HETERO_DEFAULT, PIPELINE_HINT)}
    return mark_twins([rival for rival in rivals if rival.name not in left_out]), left_out


def _run_placer(
    problem: PlacementProblem, devices: DeviceSet, placer: Placer, candidate: Candidate | None = None
) -> Rival:
    """Runs a placer, and makes a rival of its placement.

    Args:
        problem: the problem.
        devices: the devices, in HETERO's order.
        placer: the placer.
        candidate: a way to run the placement without affinities in the model, as HETERO would choose it itself; None
            where there is none. Other placements are repaired where HETERO would not run them.

    Returns:
        The rival, with `predicted` None where the placement is infeasible.
    """
    begin = time.perf_counter()
    placement = placer.place(problem)
    # Placements that HETERO makes itself need no repair.
    if candidate is None:
        placement = problem.legalized(placement)
    seconds = time.perf_counter() - begin
    feasible = bool(np.isfinite(problem.scores(placement)[0]))
    return Rival(
        placer.name,
        candidate or Candidate.placed(devices, problem.affinity(placement)),
        placement,
        problem.summary(placement) if feasible else None,
        seconds,
    )


def mark_twins(rivals: Sequence[Rival]) -> list[Rival]:
    """Returns the rivals with `same_as` set where an earlier one has the same placement.

    Rivals with one placement share one measurement: two would show what two compilations differ by, which is noise.
    """
    first: dict[bytes | str, str] = {}
    keys = [one.name if one.placement is None else one.placement.tobytes() for one in rivals]
    twins = [first.setdefault(key, one.name) for key, one in zip(keys, rivals, strict=True)]
    return [replace(one, same_as="" if twin == one.name else twin) for one, twin in zip(rivals, twins, strict=True)]


@dataclass(frozen=True)
class Result:
    """A rival with its measurement; rivals with the same placement share one measurement."""

    rival: Rival
    measurement: Measurement

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON-able values, one flat row of a table.

        Ratios are to the best single device, or to the best rival where no device runs the model.
        """
        measured, predicted = self.measurement, self.rival.predicted or {}
        low, high = measured.interval
        latency = "latency_us" in predicted
        return {
            "placer": self.rival.name,
            "predicted_latency_us": predicted["latency_us"] if latency else None,
            "predicted_ips": predicted["throughput_ips"] if latency else None,
            "predicted_submodels": predicted["submodels"] if latency else None,
            "measured": None if measured.failed else measured.value,
            "ratio": None if measured.failed else measured.ratio,
            "ratio_low": None if measured.failed else low,
            "ratio_high": None if measured.failed else high,
            "rounds": len(measured.rates),
            "submodels": measured.submodels,
            "placing_seconds": self.rival.seconds,
            "compiling_seconds": measured.seconds,
            "same_as": self.rival.same_as,
            "failed": measured.error,
            "failed_kind": measured.failure.kind.value if measured.failure else None,
        }


def measure(  # noqa: PLR0913 settings, all by keyword
    model: ov.Model,
    devices: DeviceSet,
    objective: str,
    core: ov.Core,
    found: Sequence[Rival],
    *,
    rounds: int = ROUNDS,
    seconds: float | None = None,
    total_seconds: float = math.inf,
    halving: bool = True,
    report: Callable[[str], None] | None = None,
    **comparison_options: Any,
) -> list[Result]:
    """Runs rivals in interleaved trials on real devices.

    Args:
        model: the normalized model; of co-running models, the first one.
        devices: the devices, in HETERO's order.
        objective: "latency" or "throughput".
        core: Core of the devices.
        found: the rivals, such as those of `contenders`.
        rounds: largest number of rounds.
        seconds: time of a trial, seconds; by default `comparison.SECONDS`.
        total_seconds: time for everything, seconds, after which no round but the first begins.
        halving: whether rivals that are surely worse than the best get fewer rounds. It saves time, and leaves wide
            intervals for these.
        report: called with a few words at each step.
        comparison_options: further arguments of `Comparison`, such as shapes, phases, and co-running models.

    Returns:
        The result of each rival, in their order.

    Raises:
        RunError: the model cannot be measured, or no rival runs it.
    """
    until = time.monotonic() + total_seconds
    candidates = {rival.name: rival.candidate for rival in found if not rival.same_as}
    needs = {rival.name: rival.predicted["memory_bytes"] for rival in found if rival.predicted is not None}
    comparison_options |= {"simple": {*devices.names, HETERO_DEFAULT, PIPELINE_HINT}, "needs": needs, "report": report}
    with Comparison(model, devices, candidates, objective, core, **comparison_options) as compiled:
        trials = compiled.trials(rounds=rounds, seconds=seconds or SECONDS, until=until, halving=halving)
        if not compiled.ready:
            raise RunError(f"nothing runs the model: {'; '.join(f'{k}: {v}' for k, v in compiled.failed.items())}")
        singles = [name for name in compiled.ready if name in devices.names]
        reference = choice.infer(trials).best(singles or compiled.ready)
        measured = measurements(candidates, compiled, trials, objective, reference)
    return [Result(rival, measured[rival.same_as or rival.name]) for rival in found]
