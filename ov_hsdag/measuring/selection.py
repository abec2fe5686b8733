"""Selection by measuring: the best predicted placements against what needs no placement, on the real devices."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.devices import discovery
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring import choice
from ov_hsdag.measuring.comparison import Comparison, Rates, measurements, out_of_time
from ov_hsdag.measuring.evaluator import HETERO_DEFAULT, PIPELINE_HINT
from ov_hsdag.measuring.process import Candidate, StartWorker, require_temporary_folder
from ov_hsdag.model.gains import placer_of, times
from ov_hsdag.model.workload import Phase
from ov_hsdag.problem.copies import COPIES, copies_summary, copy_devices
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.utils.errors import RunError, UserError

if TYPE_CHECKING:
    import openvino as ov

SECONDS = 60.0
"""Time budget of a placing's calibration and measuring together."""

CALIBRATING = 0.4
"""Share of a budget that calibrating the model may use."""

# Placements that are measured, the best by prediction.
_MEASURED = 6

# Of the head-to-head between the best simple candidate and a placement that was faster: enough to tell 3% where trials
# differ by 5%.
_HEAD_TO_HEAD_ROUNDS = 16

# Of the chosen candidate against a copy of the model on each device, which decides nothing.
_COPIES_ROUNDS = 8

# Of the time for measuring, what that may have where trials are long.
_COPIES_SHARE = 0.15

# Seconds that compiling a candidate may take at least, however small the budget.
_PATIENCE = 5.0

_NONE_RAN = "no placement ran"

MAY_GAIN = 1.1
"""Where an interval reaches this gain, and loss as well, measuring has not told whether a placement is better."""

Placed = NDArray[np.uint8]


@dataclass(frozen=True)
class Result:
    """What a selection gave.

    Attributes:
        measured: of each candidate: latency_us or throughput_ips (null where it failed); ratio, how many times better
            than the best simple candidate, and ci, its 95% confidence interval; times_best_single and
            times_best_single_ci, the same over the best single device (null where none ran); submodels; failed: why, or
            null; of a workload, count and latency_us or throughput_ips of each phase under workload. Beside the
            candidates, "copies": the model on each device at once, which is never chosen, with times_chosen and
            times_chosen_ci, how many times better it was than the chosen one.
        chosen: name of the candidate to use; None where nothing ran.
        placements: of all candidates, uint8 [groups].
        why: why it was chosen, where that is no gain; else "".
        unsure: placers whose placements may well be better than the simple candidate that was chosen: rounds were too
            few, or differed too much, to tell.
    """

    measured: dict[str, dict[str, Any]]
    chosen: str | None
    placements: dict[str, Placed]
    why: str = ""
    unsure: tuple[str, ...] = ()


def check_possible(core: ov.Core, devices: DeviceSet) -> None:
    """Checks that something can be measured, before the work that comes before it.

    Raises:
        UserError: a device is not on this machine.
        RunError: there is no folder for temporary files.
    """
    missing = discovery.absent(core, devices)
    if missing:
        raise UserError(f"device {missing[0]} is not on this machine, so nothing can be measured there")
    require_temporary_folder()


def select(
    model: ov.Model,
    problem: PlacementProblem,
    candidates: Mapping[str, Placed],
    core: ov.Core,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    phases: Sequence[Phase] = (),
    seconds: float = SECONDS,
    report: Callable[[str], None] | None = None,
    start_worker: StartWorker | None = None,
) -> Result:
    """Measures the best of the candidates by prediction against each single device and HETERO's own choices.

    A placement wins only in a head-to-head against the best of those, see `ov_hsdag.measuring.choice.choose`.

    Args:
        model: of the problem, normalized; not changed.
        problem: tells which candidates are feasible, and what they are predicted to do and to need.
        candidates: placements by name, uint8 [groups]; those of single devices have the device's name.
        core: has the devices.
        shapes: example shapes of dynamic inputs.
        phases: of a workload, in place of example shapes.
        seconds: time budget. Where trials of the model are long, fewer candidates are measured: the best simple one and
            the best placement by prediction come first.
        report: takes a line for people at each step, with the seconds that are left.
        start_worker: starts a worker; `ov_hsdag.measuring.process.Worker` by default.

    Returns:
        Whatever happens; where nothing could be measured there is a warning besides.
    """
    devices = DeviceSet(problem.devices)
    simple = _simple(model, problem, candidates, core)
    others = _others(problem, candidates, simple)
    ways = {name: _way(name, devices) for name in simple}
    ways |= {name: Candidate.placed(devices, problem.affinity(placement)) for name, placement in others.items()}
    placements = {**simple, **others}
    needs, on, copies = _needs(problem, placements), copy_devices(problem), copies_summary(problem)
    if copies is not None:
        ways[COPIES] = Candidate.copies(on)
        needs[COPIES] = copies["memory_bytes"]
    end = time.monotonic() + seconds
    try:
        comparison = Comparison(
            model,
            devices,
            ways,
            problem.objective,
            core,
            simple=simple,
            needs=needs,
            later=[COPIES] if on else [],
            first=_most_promising_first(problem, simple, others),
            shapes=shapes,
            phases=phases,
            patience=max(seconds / 3, _PATIENCE),
            limit=seconds,
            report=report,
            start_worker=start_worker,
        )
    except RunError as error:
        _warn(str(error))
        return Result({}, None, placements)
    with comparison:
        rates, head_to_head = _compared(comparison, set(simple), end - _COPIES_SHARE * seconds if on else end)
        chosen = choice.choose(rates, set(simple), head_to_head) if rates else None
        measured = _measured(comparison, list(placements), rates, devices, simple, head_to_head, problem.objective)
        if on and chosen is not None:
            measured[COPIES] = _copies(comparison, on, chosen, measured[chosen], end)
        for name, one in measured.items() if phases else ():
            if not one["failed"]:
                one["workload"] = _parts(comparison, name, phases, problem.objective)
    why = ""
    unsure: tuple[str, ...] = ()
    if chosen is None:
        reasons = {f"{placer_of(name)}: {why}" for name, why in comparison.failed.items()}
        short = all(map(out_of_time, comparison.failed.values()))
        _warn("the time is too short (--measure-seconds)" if short else "; ".join(sorted(reasons)))
    else:
        why = _why(chosen, list(others), rates, devices, simple, head_to_head, comparison.failed)
        if chosen in simple:
            unsure = _unsure({name: measured[name] for name in others})
            # HETERO's own choice may be a single device.
            winner = chosen
            chosen = next(name for name in simple if np.array_equal(simple[name], placements[winner]))
            if chosen != winner:
                why = f"{winner} does the same, and {why}"
    return Result(measured, chosen, placements, why, unsure)


def _unsure(measured: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Placers of those placements that may be better by `MAY_GAIN`, or worse. measured: of placements, by name."""
    intervals = {name: one["ci"] for name, one in measured.items() if not one["failed"]}
    return tuple(dict.fromkeys(placer_of(name) for name, (low, high) in intervals.items() if low < 1 < MAY_GAIN < high))


def _parts(
    comparison: Comparison, name: str, phases: Sequence[Phase], objective: str
) -> dict[str, dict[str, float | None]]:
    """Count of each phase, and latency_us or throughput_ips of one of its inferences, as far as it was measured."""
    us = comparison.phase_us(name)
    key = "throughput_ips" if objective == "throughput" else "latency_us"
    values = {one: 1e6 / us[one] if objective == "throughput" else us[one] for one in us}
    return {
        phase.name: {"count": phase.count, key: round(values[phase.name], 3)}
        for phase in phases
        if phase.name in values
    }


def _why(
    chosen: str,
    others: Sequence[str],
    rates: Mapping[str, Sequence[float]],
    devices: DeviceSet,
    simple: Mapping[str, Placed],
    head_to_head: Mapping[str, Sequence[float]] | None,
    failed: Mapping[str, str],
) -> str:
    """Why a candidate was chosen, as people are told; "" where it is its gain over the best single device."""
    if chosen not in simple:
        rivals = [name for name in head_to_head or () if name in simple]
        if not head_to_head or not rivals or _is_single(rivals[0], devices, simple):
            return ""
        gain = choice.Ratio.of(head_to_head[chosen], head_to_head[rivals[0]])
        return f"{times(gain.median, (gain.low, gain.high), rivals[0])}, the best that needs no placement"
    if not others:
        return "no placer finds a better split"
    if not any(name in rates for name in others):
        short = any(out_of_time(failed.get(name, "")) for name in others)
        return "the time for measuring was too short to run a placement (--measure-seconds)" if short else _NONE_RAN
    pair = choice.challenge(rates, simple.keys())
    if pair is None:
        return f"no placement was better than {choice.best({name: rates[name] for name in rates if name in simple})}"
    rival, challenger = pair
    if not head_to_head or not set(pair) <= set(head_to_head):
        return f"there was no time to make sure that {placer_of(challenger)} is better than {rival}"
    gain = choice.Ratio.of(head_to_head[challenger], head_to_head[rival])
    if gain.median < 1:
        return f"{placer_of(challenger)} was no better than {rival} when both were measured again"
    if gain.median < 1 + choice.GAIN and gain.high < MAY_GAIN:
        return f"{placer_of(challenger)} is within {choice.GAIN:.0%} of {rival}, kept simple"
    told = times(gain.median, (gain.low, gain.high), rival)
    return f"{placer_of(challenger)} is not better beyond the noise, {told}"


def _is_single(name: str, devices: DeviceSet, simple: Mapping[str, Placed]) -> bool:
    """Whether a simple candidate is a device, or HETERO's own choice gives one of them everything."""
    return any(np.array_equal(simple[name], simple[device]) for device in devices.names if device in simple)


def _compared(comparison: Comparison, simple: set[str], end: float) -> tuple[Rates, Rates | None]:
    """Rates of a race of all, and of the head-to-head after it, where there is one."""
    ready = comparison.ready
    if len(ready) == 2 and len(simple & set(ready)) == 1:
        # There is nothing to pick from, so no luck in it: the race is the head-to-head.
        rates = comparison.race(rounds=_HEAD_TO_HEAD_ROUNDS, until=end, halving=False)
        return rates, rates
    # The head-to-head needs about as long as all rounds before it.
    rates = comparison.race(until=(time.monotonic() + end) / 2)
    pair = choice.challenge(rates, simple)
    head_to_head = comparison.race(pair, _HEAD_TO_HEAD_ROUNDS, until=end, halving=False) if pair else None
    return {name: own for name, own in rates.items() if name not in comparison.failed}, head_to_head


def _copies(
    comparison: Comparison, on: Sequence[str], chosen: str, figures: Mapping[str, Any], end: float
) -> dict[str, Any]:
    """Figures of a copy on each device, which runs in turns with the chosen candidate. figures: of that one."""
    for name in on:  # a copy is compared with nothing, but each device was
        if name in comparison.failed:
            comparison.give_up(COPIES, f"{name}: {comparison.failed[name]}")
    rates: Rates = {}
    if comparison.join(COPIES, beside=chosen, until=end):
        rates = comparison.race((chosen, COPIES), _COPIES_ROUNDS, until=end, halving=False)
    if len(rates) < 2:
        why = comparison.failed.get(COPIES) or comparison.failed.get(chosen) or "it was not measured"
        none = dict.fromkeys(("throughput_ips", "ratio", "ci", "times_best_single", "times_best_single_ci"))
        return {**none, "submodels": None, "failed": why, "times_chosen": None, "times_chosen_ci": None}
    gain = choice.Ratio.of(rates[COPIES], rates[chosen])

    ips = figures["throughput_ips"]
    found: dict[str, Any] = {"throughput_ips": None if ips is None else round(gain.median * ips, 4)}
    for key, ci in (("ratio", "ci"), ("times_best_single", "times_best_single_ci")):
        own = gain.times(choice.Ratio(figures[key], *figures[ci])) if figures[key] and figures[ci] else None
        found[key] = round(own.median, 4) if own else None
        found[ci] = [round(own.low, 4), round(own.high, 4)] if own else None
    return {
        **found,
        "submodels": None,
        "failed": None,
        "times_chosen": round(gain.median, 4),
        "times_chosen_ci": [round(gain.low, 4), round(gain.high, 4)],
    }


def _needs(problem: PlacementProblem, placements: Mapping[str, Placed]) -> dict[str, dict[str, int]]:
    """Bytes that each placement needs on each device."""
    if not placements:
        return {}
    counted = problem.evaluate(np.stack(list(placements.values()))).memory_bytes
    return {
        name: dict(zip(problem.devices, problem.stored_bytes(row), strict=True))
        for name, row in zip(placements, counted, strict=True)
    }


def _most_promising_first(
    problem: PlacementProblem, simple: Mapping[str, Placed], others: Mapping[str, Placed]
) -> list[str]:
    """The best simple one and the best placement by prediction, then the other simple ones, then the placements."""

    def ranked(placements: Mapping[str, Placed]) -> list[str]:
        scores = {name: float(problem.scores(placement)[0]) for name, placement in placements.items()}
        return sorted(scores, key=scores.__getitem__)

    known, placed = ranked(simple), ranked(others)
    return [*known[:1], *placed[:1], *(name for name in simple if name not in known[:1]), *placed[1:]]


def _warn(why: str) -> None:
    warnings.warn(f"ov_hsdag: nothing could be measured, so the placement is chosen by prediction: {why}", stacklevel=5)


def _simple(
    model: ov.Model, problem: PlacementProblem, candidates: Mapping[str, Placed], core: ov.Core
) -> dict[str, Placed]:
    """What needs no placement and is feasible, simplest first."""
    found = dict(zip(problem.devices, problem.singles, strict=True))
    if HETERO_DEFAULT in candidates:
        found[HETERO_DEFAULT] = candidates[HETERO_DEFAULT]
    if problem.objective == "throughput":
        hint = _pipeline_hint(model, problem, core)
        if hint is not None:
            found[PIPELINE_HINT] = hint
    return {name: placement for name, placement in found.items() if np.isfinite(problem.scores(placement)[0])}


def _pipeline_hint(model: ov.Model, problem: PlacementProblem, core: ov.Core) -> Placed | None:
    """What HETERO does when it is told to make a pipeline; None where it does not say.

    A file holds affinities and no hints. HETERO splits by the answer that `query_model` gives under the same hint; with
    each legality group on the device of most of its operations, that is the same split or a legal one next to it.
    """
    from ov_hsdag.model.placement import Placement

    hint = Candidate.pipeline_hint(DeviceSet(problem.devices))
    plain = model.clone()
    Placement.strip(plain)
    try:
        answer = core.query_model(plain, hint.device, dict(hint.properties))
    except RuntimeError:
        return None
    votes = np.zeros((problem.group_count, len(problem.devices)), np.int64)
    for group, name in zip(problem.groups.tolist(), problem.graph.names, strict=True):
        if answer.get(name) in problem.devices:
            votes[group, problem.devices.index(answer[name])] += 1
    return problem.repair(np.where(problem.group_supported, votes, -1).argmax(axis=1))


def _others(
    problem: PlacementProblem, candidates: Mapping[str, Placed], simple: Mapping[str, Placed]
) -> dict[str, Placed]:
    """The best feasible placements by prediction that are not simple ones; of equal ones the first."""
    known = {placement.tobytes() for placement in simple.values()}
    distinct: dict[str, Placed] = {}
    for name, placement in candidates.items():
        if name not in problem.devices and placement.tobytes() not in known:
            known.add(placement.tobytes())
            distinct[name] = placement
    scores = {name: float(problem.scores(placement)[0]) for name, placement in distinct.items()}
    best = sorted((name for name in distinct if math.isfinite(scores[name])), key=scores.__getitem__)[:_MEASURED]
    return {name: distinct[name] for name in distinct if name in best}


def _way(name: str, devices: DeviceSet) -> Candidate:
    if name == HETERO_DEFAULT:
        return Candidate.hetero(devices)
    return Candidate.pipeline_hint(devices) if name == PIPELINE_HINT else Candidate(name)


def _measured(
    comparison: Comparison,
    names: Sequence[str],
    rates: Mapping[str, Sequence[float]],
    devices: DeviceSet,
    simple: Mapping[str, Placed],
    head_to_head: Mapping[str, Sequence[float]] | None,
    objective: str,
) -> dict[str, dict[str, Any]]:
    """See `Result.measured`. Of those in the head-to-head, the rounds of that count."""
    known = {name: own for name, own in rates.items() if name in simple} or dict(rates)
    if head_to_head and len(head_to_head) == 2:
        rival = next(name for name in head_to_head if name in simple)
    else:
        head_to_head, rival = {}, choice.best(known) if known else ""
    singles = {name: rates[name] for name in devices.names if name in rates}
    single = choice.best(singles) if singles else None
    key = "throughput_ips" if objective == "throughput" else "latency_us"
    found = {}
    shown = measurements(names, comparison, rates, objective, rival)
    over_single = measurements(names, comparison, rates, objective, single) if single else {}
    if head_to_head:
        shown |= measurements(list(head_to_head), comparison, head_to_head, objective, rival)
        if _is_single(rival, devices, simple):
            over_single |= {name: shown[name] for name in head_to_head}
    for name, one in shown.items():
        low, high = one.interval
        other = over_single.get(name)
        alone = None
        if other is not None and not other.failed:
            alone = (other.ratio, *other.interval) if name != single else (1.0, 1.0, 1.0)
        value = one.value
        if alone and single:
            # Rounds are not all of the same minutes: figures are as if the best single device had always been as fast.
            unit = over_single[single].value
            value = unit * alone[0] if objective == "throughput" else unit / alone[0]
        found[name] = {
            key: None if one.failed else round(value, 3),
            "ratio": None if one.failed else round(one.ratio, 4),
            "ci": None if one.failed else [round(low, 4), round(high, 4)],
            "times_best_single": round(alone[0], 4) if alone else None,
            "times_best_single_ci": [round(end, 4) for end in alone[1:]] if alone else None,
            "submodels": one.submodels or None,
            "failed": one.error or None,
        }
    return found
