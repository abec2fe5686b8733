"""The least memory with which the search finds a placement, for models that do not fit.

All limits are multiplied by one factor. A search is not guaranteed to find a placement with more memory because it
finds one with less, so what is returned was tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ov_hsdag.placers.contiguous import Contiguous
from ov_hsdag.placers.filling import Filling
from ov_hsdag.placing.candidates import NamedPlacement, evaluate, find_candidates, run
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.utils.byte_sizes import format_bytes, round_up

# The factor of all limits is determined to this ratio.
_LIMIT_PRECISION = 1.02

# Trials of the bisection with quick placers alone.
_QUICK_TRIALS = 8

# Further trials with the searches, few because each takes 2 s where nothing fits.
_SEARCH_TRIALS = 2

# Factors by which the tightest limits grow until the search finds a placement with them.
_GROWTHS = (1.0, 1.02, 1.05, 1.1, 1.2)


def enough_memory(problem: PlacementProblem, candidates: Sequence[NamedPlacement]) -> dict[str, int]:
    """Finds about the least memory with which the search finds a placement.

    All limits are multiplied by one factor, and the least factor is found by bisection: first with quick placers, then
    with the searches. Then the search is tried with the limits that the best placement needs; where it fails with
    these, wider ones are returned.

    Args:
        problem: a problem without a candidate that fits.
        candidates: its candidates.

    Returns:
        Limits in bytes, by name, of the devices that need more than they have. The search finds a placement with these
        limits. Empty where the bisection fails, or where candidates fail for another reason than memory.
    """
    held = problem.group_held.min(axis=1).sum()
    least = max(1.0, float(held / problem.memory_limits.sum()))
    need = _smallest_need(problem, candidates)
    if not 1 < need.factor < np.inf:
        return {}
    by_quick_placers = _bisect(problem, _Bracket(least, need, {}), _QUICK_TRIALS, quick=True)
    # The searches may succeed where the quick placers failed.
    by_searches = _bisect(problem, replace(by_quick_placers, low=least), _SEARCH_TRIALS, quick=False)
    return _sufficient(problem, _equal_for_equals(problem, by_searches.need.limits), by_searches.wide)


@dataclass(frozen=True)
class _Need:
    """The memory that a placement needs.

    Attributes:
        factor: factor of all limits with which the placement fits; inf where HETERO does not run it.
        limits: bytes that it needs on each device whose limit it exceeds, by device.
    """

    factor: float
    limits: Mapping[str, int]


@dataclass(frozen=True)
class _Bracket:
    """What the bisection knows of the least factor.

    Attributes:
        low: factor with which the placers find nothing that fits.
        need: what the placement that fits with the smallest factor so far needs; this is the upper end.
        wide: the last limits with which placers found a placement that fits, bytes by device; {} without any.
    """

    low: float
    need: _Need
    wide: Mapping[str, int]


def _smallest_need(problem: PlacementProblem, candidates: Sequence[NamedPlacement]) -> _Need:
    """Finds what the candidate needs that fits with the smallest factor of all limits."""
    result = evaluate(problem, candidates)
    factors = np.where(result.broken, np.inf, (result.memory_bytes / problem.memory_limits).max(axis=1))
    needs = problem.stored_bytes(result.memory_bytes[factors.argmin()])
    return _Need(
        float(factors.min()),
        {
            name: round_up(need)
            for name, need, limit in zip(problem.devices, needs, problem.stored_limits, strict=True)
            if limit is not None and need > limit
        },
    )


def _find_with(problem: PlacementProblem, limits: Mapping[str, int], *, quick: bool) -> list[NamedPlacement]:
    """Finds candidates with memory limits, bytes by device: of two quick placers, or of all placers."""
    limited = problem.with_memory(limits)
    return [run(placer, limited) for placer in (Contiguous(), Filling())] if quick else find_candidates(limited, ())


def _bisect(problem: PlacementProblem, bracket: _Bracket, trials: int, *, quick: bool) -> _Bracket:
    """Narrows the bracket of the least factor.

    Args:
        problem: the problem.
        bracket: the bracket so far.
        trials: largest number of trials; there are fewer where the bracket becomes as narrow as `_LIMIT_PRECISION`.
        quick: whether quick placers are tried instead of all.
    """
    narrowed = bracket
    for _ in range(trials):
        if narrowed.need.factor >= narrowed.low * _LIMIT_PRECISION:
            narrowed = _narrow(problem, narrowed, quick=quick)
    return narrowed


def _narrow(problem: PlacementProblem, bracket: _Bracket, *, quick: bool) -> _Bracket:
    """Tries the factor in the middle of the bracket; for the arguments see `_bisect`."""
    middle = float(np.sqrt(bracket.low * bracket.need.factor))
    limits = {
        name: round_up(middle * limit)
        for name, limit in zip(problem.devices, problem.stored_limits, strict=True)
        if limit is not None
    }
    found = _smallest_need(problem, _find_with(problem, limits, quick=quick))
    need = found if found.factor < bracket.need.factor else bracket.need
    if found.factor > middle:
        return _Bracket(middle, need, bracket.wide)
    return _Bracket(bracket.low, need, limits)


def _equal_for_equals(problem: PlacementProblem, tight: Mapping[str, int]) -> dict[str, int]:
    """Gives devices that had equal limits equal limits again: the largest; `tight` has bytes by device."""
    limit_of = dict(zip(problem.devices, problem.stored_limits, strict=True))
    return {name: max(more for other, more in tight.items() if limit_of[other] == limit_of[name]) for name in tight}


def _sufficient(problem: PlacementProblem, tight: Mapping[str, int], wide: Mapping[str, int]) -> dict[str, int]:
    """Finds limits with which the search finds a placement.

    The search is not guaranteed to find one with `tight`, which are tighter than the limits that were tried. Where it
    finds none, the result is `wide`; without these, limits grow until it does.

    Args:
        problem: the problem.
        tight: limits that a placement needs, bytes by device.
        wide: limits with which placers found a placement, bytes by device; {} where there are none.

    Returns:
        The limits, bytes by device; {} where the search finds no placement.
    """
    for growth in _GROWTHS[:1] if wide else _GROWTHS:
        limits = {name: round_up(growth * more) for name, more in tight.items()}
        for quick in (True, False):
            found = _find_with(problem, limits, quick=quick)
            if not evaluate(problem.with_memory(limits), found).infeasible.all():
                return limits
    return dict(wide)


def describe_enough(enough: Mapping[str, int], devices: Sequence[str]) -> str:
    """Describes a result of `enough_memory` as the end of an error message.

    Args:
        enough: limits in bytes, by device; the description is "" where it is empty.
        devices: names of all devices.
    """
    if not enough:
        return ""
    if len(devices) == len(enough) > 1 and len(set(enough.values())) == 1:
        return f"; {format_bytes(next(iter(enough.values())))} on each would do"
    return f"; {' and '.join(f'{format_bytes(size)} on {name}' for name, size in enough.items())} would do"
