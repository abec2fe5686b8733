"""An application: several models on the devices of one machine, judged together, and what places them together.

It is the disjoint union of its models' graphs, each of whose times counts as often as its model runs in one run of the
application. HETERO splits each model for itself, so each keeps its own problem: loads and memory of devices add up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import product

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.model.gains import on_device
from ov_hsdag.placers.multilevel import Multilevel
from ov_hsdag.placing.candidates import MARGIN, NamedPlacement, require_runnable
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.utils.byte_sizes import exceeding
from ov_hsdag.utils.errors import RunError, UserError

MOST_COUNT = 1e9
"""Inferences of a model in a run of an application, or in a second: with more, sums of times are no numbers."""

SPLIT = "search beside the other models"
"""Name of a placement that the search finds for a model beside the others."""

# Whole-device assignments that are all looked at; of more, those that single changes of good ones lead to.
_ENUMERATED = 100_000

# Norms of the devices' loads that climbing goes by: in the largest alone, most changes change nothing.
_POWERS = (3, 8, 32)

# Assignments that splits are tried from, passes over the models from each, and whole ones that one split is tried in.
_STARTS, _PASSES, _SOME = 3, 3, 50

# Behind all times, µs.
_NO_FIT = 1e18

# How often a model's search follows from the period last reached, and the least part of a device left to it.
_SEARCHES, _LEAST_LEFT = 2, 0.02


@dataclass(frozen=True, eq=False)
class Member:
    """A model of an application, with the ways to place it that are known."""

    name: str  # of the model in the application
    problem: PlacementProblem  # of one inference, or of the mean one of a workload
    count: float  # inferences in one run of the application
    ways: list[NamedPlacement]  # as `find_candidates` finds them; more are added
    after: tuple[str, ...] = ()  # models whose outputs it waits for

    @cached_property
    def whole(self) -> list[int]:
        """Numbers of the ways on one device; of all that HETERO runs, where there is none."""
        broken = self.problem.evaluate(np.stack([way.placement for way in self.ways])).broken
        runs = np.flatnonzero(~broken).tolist()
        return [number for number in runs if self.ways[number].name in self.problem.devices] or runs

    def way(self, placement: NDArray[np.uint8]) -> int:
        """Number of the way with this placement, which is added if it is new."""
        for number, known in enumerate(self.ways):
            if np.array_equal(known.placement, placement):
                return number
        self.ways.append(NamedPlacement(SPLIT, placement))
        return len(self.ways) - 1


@dataclass(frozen=True, eq=False)
class Judged:
    """What the simulator says of a batch of assignments."""

    busy_us: NDArray[np.float64]  # work of each device in one run of the application, µs, float64 [batch, devices]
    period_us: NDArray[np.float64]  # time between runs, with many in flight, µs, float64 [batch]
    memory_bytes: NDArray[np.int64]  # that each device stores, int64 [batch, devices]
    latency_us: NDArray[np.float64]  # time of one run alone, µs, float64 [batch]
    # when each model begins and ends in it, µs, float64 [batch, members, 2]
    span_us: NDArray[np.float64]
    over: NDArray[np.float64]  # bytes beyond the devices' memory, inf where a model does not run, float64 [batch]

    def score(self, objective: str) -> NDArray[np.float64]:
        """What is minimised, µs: time of one run, or between runs with many in flight; inf where it does not fit."""
        value = self.latency_us if objective == "latency" else self.period_us
        return np.where(self.over > 0, np.inf, value)

    def rank(self, objective: str) -> NDArray[np.float64]:
        """As `score`, with what exceeds memory behind all that fits, by how much it does, float64 [batch]."""
        return np.where(self.over > 0, _NO_FIT * (1 + self.over), self.score(objective))


@dataclass(frozen=True, eq=False)
class Application:
    """Models with what they are run for. An assignment is the number of a way for each, int64 [members]."""

    members: tuple[Member, ...]
    objective: str  # "throughput" of runs, many in flight, or "latency" of one run

    def __post_init__(self) -> None:
        """Raises as `check_runs`."""
        check_runs({one.name: (one.count, one.after) for one in self.members})

    @property
    def devices(self) -> tuple[str, ...]:
        return self.members[0].problem.devices

    @cached_property
    def limits(self) -> NDArray[np.float64]:
        """Bytes that the models may store on each device together, inf without a limit, float64 [devices]."""
        return np.array([np.inf if one is None else one for one in self.members[0].problem.stored_limits])

    @cached_property
    def sources(self) -> list[list[int]]:
        """Numbers of the members that each one waits for."""
        place = {member.name: number for number, member in enumerate(self.members)}
        return [[place[name] for name in member.after] for member in self.members]

    @cached_property
    def order(self) -> list[int]:
        """Members in an order in which they can run, those that most has to wait for first."""
        after = dict(enumerate(self.sources))
        ahead: dict[int, float] = {}
        for number in reversed(list(TopologicalSorter(after).static_order())):
            behind = [ahead[other] for other, sources in after.items() if number in sources]
            member = self.members[number]
            whole = member.problem.evaluate(member.problem.singles)  # the same whatever ways are known
            alone = float(np.where(whole.broken, np.inf, whole.latency_us).min())
            ahead[number] = alone * member.count + max(behind, default=0.0)
        waiting, found = {number: set(sources) for number, sources in after.items()}, list[int]()
        while waiting:
            ready = [number for number, sources in waiting.items() if sources <= set(found)]
            found.append(max(ready, key=ahead.__getitem__))
            del waiting[found[-1]]
        return found

    def taken(self, other: Application, assignment: NDArray[np.int64]) -> NDArray[np.int64]:
        """An assignment of an application of the same models as one of this, which gets ways that it lacks."""
        pairs = zip(self.members, other.members, assignment.tolist(), strict=True)
        return np.array([own.way(source.ways[way].placement) for own, source, way in pairs], np.int64)

    @cached_property
    def equal_devices(self) -> list[NDArray[np.int64]]:
        """Numbers of the devices that may change places without changing any model's costs, together; of each kind."""
        kinds = np.stack([member.problem.kinds for member in self.members])
        _, kind = np.unique(kinds, axis=1, return_inverse=True)
        return [np.flatnonzero(kind.reshape(-1) == number) for number in range(int(kind.max()) + 1)]

    def exchange_keys(self, assignments: NDArray[np.int64]) -> NDArray[np.int64]:
        """Keys that are equal where assignments differ by an exchange of equal devices only.

        A way's key is its pattern, in which devices are numbered as they first appear, and these devices. Of equal
        devices of an assignment, the first to appear gets the lowest number.

        Args:
            assignments: int64 [batch, members].

        Returns:
            int64 [batch, columns].
        """
        devices = len(self.devices)
        patterns, orders = [], []
        for number, member in enumerate(self.members):
            known: dict[bytes, int] = {}
            of_ways = np.full((len(member.ways), devices + 1), devices)  # behind the devices: none
            for way, candidate in enumerate(member.ways):
                values, first, inverse = np.unique(candidate.placement, return_index=True, return_inverse=True)
                by_appearance = np.argsort(first)
                pattern = np.argsort(by_appearance)[inverse].astype(np.uint8).tobytes()
                of_ways[way, 0] = known.setdefault(pattern, len(known))
                of_ways[way, 1 : 1 + len(values)] = values[by_appearance]
            patterns.append(of_ways[assignments[:, number], 0])
            orders.append(of_ways[assignments[:, number], 1:])
        order = np.concatenate(orders, axis=1)
        first = np.full((len(assignments), devices), order.shape[1])
        for column in reversed(range(order.shape[1])):
            used = order[:, column] < devices
            first[used, order[used, column]] = column
        renamed = np.full((len(assignments), devices + 1), devices)
        for equal in self.equal_devices:
            rank = np.argsort(np.argsort(first[:, equal], axis=1, kind="stable"), axis=1, kind="stable")
            renamed[:, equal] = equal[rank]
        return np.column_stack([*patterns, np.take_along_axis(renamed, order, axis=1)])

    def distinct(self, assignments: NDArray[np.int64]) -> NDArray[np.int64]:
        """Numbers of these, in order, without those that only exchange equal devices with an earlier one."""
        return np.sort(np.unique(self.exchange_keys(assignments), axis=0, return_index=True)[1])

    def judge(self, assignments: NDArray[np.integer]) -> Judged:
        """Simulates assignments, int64 [batch, members]; see `Judged`."""
        batch, devices = len(assignments), len(self.devices)
        busy, memory = np.zeros((batch, devices)), np.zeros((batch, devices), np.int64)
        runs = np.ones(batch, bool)
        free, span = np.zeros((batch, devices)), np.zeros((batch, len(self.members), 2))
        for number in self.order:
            member = self.members[number]
            chosen, of_row = np.unique(assignments[:, number], return_inverse=True)
            result = member.problem.evaluate(np.stack([member.ways[way].placement for way in chosen]))
            busy += member.count * result.busy_us[of_row]
            memory += np.array([member.problem.stored_bytes(row) for row in result.memory_bytes])[of_row]
            runs &= result.infeasible[of_row] == 0
            # One run alone: a model begins when its inputs are there, and no other uses one of its devices.
            uses = result.busy_us[of_row] > 0
            begin = np.where(uses, free, 0.0).max(axis=1)
            for source in self.sources[number]:
                begin = np.maximum(begin, span[:, source, 1])
            span[:, number, 0], span[:, number, 1] = begin, begin + member.count * result.latency_us[of_row]
            free = np.where(uses, span[:, number, 1:], free)
        over = np.where(runs, np.maximum(memory - self.limits, 0.0).sum(axis=1), np.inf)
        periods = self.members[0].problem.periods(busy)
        return Judged(busy, periods, memory, span[:, :, 1].max(axis=1), span, over)

    def ranks(self, assignments: NDArray[np.integer]) -> NDArray[np.float64]:
        """See `Judged.rank`, float64 [batch]."""
        return self.judge(assignments).rank(self.objective)

    def scores(self, assignments: NDArray[np.integer]) -> NDArray[np.float64]:
        """The objective of each assignment, see `Judged.score`, float64 [batch]."""
        return self.judge(assignments).score(self.objective)

    def describe(self, assignment: Sequence[int]) -> dict[str, str]:
        """Where each model is, in a word: its device, or what found its split."""
        return {one.name: one.ways[way].name for one, way in zip(self.members, assignment, strict=True)}

    def whole_assignments(self) -> NDArray[np.int64]:
        """Each model on one device, the best ones first, int64 [assignments, members]: all of them, if not too many."""
        choices = [member.whole for member in self.members]
        if np.prod([float(len(one)) for one in choices]) <= _ENUMERATED:
            found = np.array(list(product(*choices)), np.int64).reshape(-1, len(choices))
        else:
            found = self._climbed(choices)
        return found[np.argsort(self.ranks(found), kind="stable")]

    def distinct_whole(self, count: int) -> NDArray[np.int64]:
        """The best of these that fit, so many at most; of those that only exchange equal devices one."""
        found = self.whole_assignments()
        fitting = found[self.judge(found).over == 0]
        return fitting[self.distinct(fitting)][:count]

    def on_each_device(self) -> dict[str, NDArray[np.int64]]:
        """Everything on one device, by the device, where it runs all models, int64 [members] each."""
        numbers = {device: [self.number_on(member, device) for member in self.members] for device in self.devices}
        return {device: np.array(same, np.int64) for device, same in numbers.items() if None not in same}

    def moves(self, now: NDArray[np.int64]) -> dict[str, dict[str, float | None]]:
        """What the objective grows by, µs, with one model all on a device, by both; None: it does not run or fit."""
        found: dict[str, dict[str, float | None]] = {member.name: {} for member in self.members}
        for place, device in product(range(len(now)), self.devices):
            member, moved = self.members[place], np.stack([now, now])
            number = self.number_on(member, device)
            moved[1, place] = now[place] if number is None else number
            judged = self.judge(moved)
            before, after = replace(judged, over=np.zeros(2)).score(self.objective).tolist()
            if number != now[place]:
                fits = number is not None and judged.over[1] == 0
                found[member.name][device] = round(after - before, 3) if fits else None
        return found

    def _climbed(self, choices: Sequence[Sequence[int]]) -> NDArray[np.int64]:
        """Assignments on the way of single changes and exchanges, from everything on each device."""
        seen: dict[bytes, NDArray[np.int64]] = {}
        for device, power in product(range(len(self.devices)), _POWERS):
            best = np.array([one[min(device, len(one) - 1)] for one in choices], np.int64)
            now = None
            while now is None or not np.array_equal(now, best):
                now = best
                near = np.stack([now, *_neighbours(now, choices)])
                seen |= {row.tobytes(): row for row in near}
                judged = self.judge(near)
                smooth = replace(judged, period_us=np.linalg.norm(judged.busy_us, power, axis=1))
                best = near[smooth.rank(self.objective).argmin()]
        return np.stack(list(seen.values()))

    def with_splits(self, start: NDArray[np.int64], search: Multilevel) -> NDArray[np.int64]:
        """An assignment in which models are split where that gains more than `MARGIN`, int64 [members]."""
        now, value = start, float(self.ranks(start[None])[0])
        for _ in range(_PASSES):
            before, busy = value, self.judge(now[None]).busy_us[0]
            for number in sorted(range(len(now)), key=lambda n: -float(self._busy_us(n, now)[busy.argmax()])):
                for _ in range(_SEARCHES):
                    self._search_beside(number, now, value, search)
                    tried = np.repeat(now[None], len(self.members[number].ways), axis=0)
                    tried[:, number] = np.arange(len(tried))
                    ranks = self.ranks(tried)
                    best = int(ranks.argmin())
                    if not ranks[best] < value * (1 - MARGIN):
                        break
                    now, value = tried[best], float(ranks[best])
            if value == before:
                break
        return self._simpler(now, value)

    def _simpler(self, found: NDArray[np.int64], value: float) -> NDArray[np.int64]:
        """The assignment without splits whose gain is within `MARGIN`."""
        most = value * (1 + MARGIN)
        for number, member in enumerate(self.members):
            if found[number] not in member.whole:
                tried = np.repeat(found[None], len(member.whole), axis=0)
                tried[:, number] = member.whole
                ranks = self.ranks(tried)
                found = tried[ranks.argmin()] if ranks.min() <= most else found
        return found

    def _busy_us(self, number: int, assignment: NDArray[np.int64]) -> NDArray[np.float64]:
        """Work of each device for one model in a run of the application, µs, float64 [devices]."""
        member = self.members[number]
        return member.count * member.problem.evaluate(member.ways[assignment[number]].placement).busy_us[0]

    def _search_beside(self, number: int, now: NDArray[np.int64], value: float, search: Multilevel) -> None:
        """Adds what the search finds for one model on what the others leave of the devices.

        For throughput a device of whose period the others take three quarters is one that is four times slower.
        """
        member, others = self.members[number], self.judge(now[None])
        own = member.problem.evaluate(member.ways[now[number]].placement)
        stored = np.array(member.problem.stored_bytes(own.memory_bytes[0]))
        left = self.limits - (others.memory_bytes[0] - stored)
        limits = {name: max(int(room), 0) for name, room in zip(self.devices, left, strict=True) if np.isfinite(room)}
        problem = member.problem.with_memory(limits) if limits else member.problem
        if self.objective == "throughput" and value < _NO_FIT:
            taken = others.busy_us[0] - self._busy_us(number, now)
            factors = 1 / np.maximum(1 - taken / max(value, 1e-30), _LEAST_LEFT)
            problem = replace(slower(problem, factors), transfer_share=problem.transfer_shares * factors)
        member.way(problem.legalized(search.place(problem)))

    def plan(self, search: Multilevel | None = None) -> dict[str, NDArray[np.int64]]:
        """Assignments by name, those that need no split first; the best of them is never worse than any whole one.

        "on GPU": everything on one device, where that fits; "whole": the best with each model on one device; "alone":
        each where it is best without the others; "one split", "together": with splits. Raises RunError: nothing fits.
        """
        for member in self.members:
            require_runnable(member.problem, member.ways)
        whole = self.whole_assignments()
        found = {on_device(device): one for device, one in self.on_each_device().items()}
        alone = [member.problem.scores(np.stack([way.placement for way in member.ways])) for member in self.members]
        found |= {"whole": whole[0], "alone": np.array([one.argmin() for one in alone], np.int64)}
        distinct = whole[self.distinct(whole)]
        starts = [*distinct[: _STARTS - 1], found["alone"]]
        split = [self.with_splits(start, search or Multilevel()) for start in starts]
        numbers, rows = np.arange(len(self.members)), np.concatenate([distinct[:_SOME], whole[:_SOME]])
        ways = [(numbers == number, way) for number in numbers for way in range(len(self.members[number].ways))]
        single = np.concatenate([np.where(place, way, rows) for place, way in ways])
        kinds = {"one split": single, "together": np.stack(split)}
        found |= {name: rows[self.ranks(rows).argmin()] for name, rows in kinds.items()}
        fitting = np.isfinite(self.scores(np.stack(list(found.values()))))
        if not fitting.any():
            needs = self.judge(found["together"][None]).memory_bytes[0].tolist()
            told = exceeding(self.devices, needs, self.members[0].problem.stored_limits)
            raise RunError(f"the models do not fit together: they need {told}")
        return {name: one for (name, one), fits in zip(found.items(), fitting, strict=True) if fits}

    def best(self, found: Mapping[str, NDArray[np.int64]]) -> str:
        """Name of the best of `plan`; a later one has to win by more than `MARGIN`, unless it splits nothing."""
        names, scores = list(found), self.scores(np.stack(list(found.values())))
        best = 0
        for number in range(1, len(names)):
            if scores[number] < scores[best] * (1 - MARGIN * (names[number] != "whole")):
                best = number
        return names[best]

    @staticmethod
    def number_on(member: Member, device: str) -> int | None:
        """Number of the way that has all of a model on a device; None where the device does not run it."""
        return next((number for number in member.whole if member.ways[number].name == device), None)


def check_count(what: str, key: str, count: float) -> None:
    """UserError: an application cannot run a model so often. what: the model, for the message; key: count or rate."""
    if not 0 < count <= MOST_COUNT:
        raise UserError(f"{what} has a {key} of {count:g}: it has to be more than 0, and at most {MOST_COUNT:g}")


def check_runs(models: Mapping[str, tuple[float, Sequence[str]]], objective: str = "throughput") -> None:
    """UserError: no model, a count that cannot be run, an unknown name or a circle in the order.

    models: the count of each, and those that it waits for.
    """
    if not models:
        raise UserError("an application has at least one model")
    for name, (count, after) in models.items():
        check_count(f"'{name}'", "count", count)
        if objective == "latency" and count % 1:
            raise UserError(f"'{name}' runs {count:g} times: a run alone, for latency, has whole inferences")
        if unknown := sorted(set(after) - set(models)):
            raise UserError(f"'{name}' comes after '{unknown[0]}', which is no model of the application")
    try:
        TopologicalSorter({name: after for name, (_, after) in models.items()}).prepare()
    except CycleError as error:
        raise UserError(f"the order goes in a circle: {' after '.join(error.args[1])}") from error


def slower(problem: PlacementProblem, factors: NDArray[np.float64], boundaries: float = 1.0) -> PlacementProblem:
    """The problem on devices that take so many times as long, float64 [devices]; boundaries: how many times as long
    transfers, and beside that calls of submodels take, while the whole model on a device takes the same."""
    penalty = problem.fusion_penalty_us
    whole_us = np.maximum(np.where(problem.supported, problem.node_us, 0.0).sum(axis=0), 1e-9)
    operations = np.maximum(1 - (boundaries - 1) * problem.submodel_us / whole_us, _LEAST_LEFT)
    return replace(
        problem,
        node_us=problem.node_us * factors * operations,
        submodel_us=problem.submodel_us * factors * boundaries,
        transfer_us=problem.transfer_us * boundaries,
        transfer_us_per_byte=problem.transfer_us_per_byte * boundaries,
        fusion_penalty_us=None if penalty is None else penalty * factors,
    )


def _neighbours(now: NDArray[np.int64], choices: Sequence[Sequence[int]]) -> Iterator[NDArray[np.int64]]:
    """Assignments that differ in one model, or in two that change places."""
    for number, ways in enumerate(choices):
        for way in ways:
            if way != now[number]:
                other = now.copy()
                other[number] = way
                yield other
        for second in range(number):
            if now[number] != now[second] and now[second] in ways and now[number] in choices[second]:
                other = now.copy()
                other[[number, second]] = now[[second, number]]
                yield other
