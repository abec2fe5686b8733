"""An application: several models that share the devices of one machine, and the search that places them together.

The times of a model count as often as the model runs in one run of the application. HETERO splits each model
separately, so each model keeps a placement problem of its own; only the loads and the memory of the devices are summed
over the models.

A member is a model of an application with its known placements, the `ways` to run it. An assignment chooses one of them
for each member. A split is a placement on several devices. The period is the time between the ends of two runs while
many are in flight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import product

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.applications.plan import on_device
from ov_hsdag.placers.multilevel import Multilevel
from ov_hsdag.placing.candidates import MARGIN, NamedPlacement, require_runnable
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.utils.byte_sizes import exceeding
from ov_hsdag.utils.errors import RunError, UserError

MOST_COUNT = 1e9
"""Largest accepted number of inferences of a model in one run of an application, or in a second.

Larger numbers would make sums of times infinite or NaN."""

SPLIT = "search beside the other models"
"""Name of a placement that the search finds for one model while the other models stay where they are."""

# Up to this many assignments of whole models to devices, all of them are simulated. Where there are more, hill climbing
# (`Application._climb`) visits some of them.
_ENUMERATED = 100_000

# Orders of the norms of the devices' loads that hill climbing minimizes one after the other. It cannot minimize the
# largest load itself: most single changes do not touch the busiest device and would leave that unchanged.
_POWERS = (3, 8, 32)

# Three numbers that bound the time of the search for splits: assignments that it starts from, passes over the models
# from each of them, and whole-device assignments in which each model's splits are tried one at a time.
_STARTS, _PASSES, _SOME = 3, 3, 50

# Rank of an assignment that exceeds memory, µs: larger than any time of an assignment that fits.
_NO_FIT = 1e18

# How often one model is searched before the next one is, each time with the period that was reached last; and the least
# share of a device that counts as left for a model (or for its operations, in `scale_costs`), so that costs stay
# finite.
_SEARCHES, _LEAST_LEFT = 2, 0.02


@dataclass(frozen=True, eq=False)
class Member:
    """A model of an application, with the placements of it that have been found.

    Placements are only appended to `ways`, so that indices in it stay valid.

    Attributes:
        name: name of the model in the application.
        problem: placement problem of one inference, or of the mean inference of a workload.
        count: inferences in one run of the application.
        ways: the placements, first those of `find_candidates`; the joint search appends more.
        after: names of the models whose outputs this one waits for.
    """

    name: str
    problem: PlacementProblem
    count: float
    ways: list[NamedPlacement]
    after: tuple[str, ...] = ()

    @cached_property
    def whole(self) -> list[int]:
        """Indices in `ways` of the placements on a single device; where HETERO runs none, of all that it runs.

        They are found at the first access; placements that are appended later do not count.
        """
        broken = self.problem.evaluate(np.stack([way.placement for way in self.ways])).broken
        runs = np.flatnonzero(~broken).tolist()
        return [number for number in runs if self.ways[number].name in self.problem.devices] or runs

    def way(self, placement: NDArray[np.uint8]) -> int:
        """Returns the index in `ways` of a placement; a new placement is appended.

        Args:
            placement: device number of each co-location group, uint8 [groups].
        """
        for number, known in enumerate(self.ways):
            if np.array_equal(known.placement, placement):
                return number
        self.ways.append(NamedPlacement(SPLIT, placement))
        return len(self.ways) - 1


@dataclass(frozen=True, eq=False)
class ApplicationEvaluation:
    """The simulator's results for a batch of assignments.

    Attributes:
        busy_us: work of each device in one run of the application, µs, float64 [batch, devices].
        period_us: time between the ends of two runs while many are in flight, µs, float64 [batch].
        memory_bytes: bytes that each device stores for all models, int64 [batch, devices].
        latency_us: time of one run on an idle machine, µs, float64 [batch].
        span_us: times at which each model begins and ends in such a run, µs, float64 [batch, members, 2].
        over: bytes beyond the devices' memory, 0 where all models fit, float64 [batch]. It is inf where the placement
            of a model is infeasible by itself: HETERO does not run it, or it alone exceeds memory.
    """

    busy_us: NDArray[np.float64]
    period_us: NDArray[np.float64]
    memory_bytes: NDArray[np.int64]
    latency_us: NDArray[np.float64]
    span_us: NDArray[np.float64]
    over: NDArray[np.float64]

    def score(self, objective: str) -> NDArray[np.float64]:
        """Returns the value to minimize: latency, else the period, µs, float64 [batch].

        It is inf where memory is exceeded or a model does not run.

        Args:
            objective: "latency" or "throughput".
        """
        value = self.latency_us if objective == "latency" else self.period_us
        return np.where(self.over > 0, np.inf, value)

    def rank(self, objective: str) -> NDArray[np.float64]:
        """Returns `score` with a finite value where memory is exceeded, so that searches can reduce the excess.

        That value is above all times and grows with the excess; it is inf where `over` is.

        Args:
            objective: "latency" or "throughput".

        Returns:
            The value to minimize, float64 [batch].
        """
        return np.where(self.over > 0, _NO_FIT * (1 + self.over), self.score(objective))


@dataclass(frozen=True, eq=False)
class Application:
    """Models that share the devices of a machine, and the objective that they are placed for.

    An assignment has the index of one placement in `Member.ways` for each member, int64 [members]. Searches append
    placements to `ways`.

    Attributes:
        members: the models, which have the same devices and limits.
        objective: "throughput" of runs of the application with many in flight, or "latency" of one run.
    """

    members: tuple[Member, ...]
    objective: str

    def __post_init__(self) -> None:
        """Checks counts and order of the models. Raises UserError as `check_runs`."""
        check_runs({one.name: (one.count, one.after) for one in self.members})

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices, in HETERO's order; they are the same for all members."""
        return self.members[0].problem.devices

    @cached_property
    def limits(self) -> NDArray[np.float64]:
        """Bytes that all models together may store on each device, inf without a limit, float64 [devices]."""
        return np.array([np.inf if one is None else one for one in self.members[0].problem.stored_limits])

    @cached_property
    def sources(self) -> list[list[int]]:
        """For each member, the indices of the members that it waits for."""
        place = {member.name: number for number, member in enumerate(self.members)}
        return [[place[name] for name in member.after] for member in self.members]

    @cached_property
    def order(self) -> list[int]:
        """Indices of the members in an order in which they can run.

        Among members that could run next, the one with the longest chain of work behind it comes first.
        """
        after = dict(enumerate(self.sources))
        ahead: dict[int, float] = {}
        for number in reversed(list(TopologicalSorter(after).static_order())):
            behind = [ahead[other] for other, sources in after.items() if number in sources]
            member = self.members[number]
            whole = member.problem.evaluate(member.problem.singles)  # so the order does not depend on `ways`
            alone = float(np.where(whole.broken, np.inf, whole.latency_us).min())
            ahead[number] = alone * member.count + max(behind, default=0.0)
        waiting, order = {number: set(sources) for number, sources in after.items()}, list[int]()
        while waiting:
            ready = [number for number, sources in waiting.items() if sources <= set(order)]
            order.append(max(ready, key=ahead.__getitem__))
            del waiting[order[-1]]
        return order

    def translate_assignment(self, other: Application, assignment: NDArray[np.int64]) -> NDArray[np.int64]:
        """Translates an assignment of another application of the same models into one of this application.

        Args:
            other: the application that the assignment belongs to.
            assignment: indices of placements in the members of `other`, int64 [members].

        Returns:
            The same placements as indices in this application's members, int64 [members]. Placements that a member
            lacks are appended to its `ways`.
        """
        pairs = zip(self.members, other.members, assignment.tolist(), strict=True)
        return np.array([own.way(source.ways[way].placement) for own, source, way in pairs], np.int64)

    @cached_property
    def equal_devices(self) -> list[NDArray[np.int64]]:
        """Sets of devices that can be exchanged without changing the costs of any model.

        Each device is in one set, perhaps alone; a set has the numbers of its devices, int64 [devices of the set].
        """
        kinds = np.stack([member.problem.kinds for member in self.members])
        _, kind = np.unique(kinds, axis=1, return_inverse=True)
        return [np.flatnonzero(kind.reshape(-1) == number) for number in range(int(kind.max()) + 1)]

    def exchange_keys(self, assignments: NDArray[np.int64]) -> NDArray[np.int64]:
        """Computes keys that are equal for assignments which differ only by an exchange of equal devices.

        The key of a placement consists of its pattern, in which devices are numbered as they first appear, and of the
        devices in that order. Equal devices of an assignment are renamed: the first to appear gets the lowest number.

        Args:
            assignments: the assignments, int64 [batch, members].

        Returns:
            One row for each assignment, int64 [batch, columns].
        """
        devices = len(self.devices)
        patterns, orders = [], []
        for number, member in enumerate(self.members):
            pattern_numbers: dict[bytes, int] = {}
            of_ways = np.full((len(member.ways), devices + 1), devices)  # the number `devices` stands for no device
            for way, candidate in enumerate(member.ways):
                values, first, inverse = np.unique(candidate.placement, return_index=True, return_inverse=True)
                by_appearance = np.argsort(first)
                pattern = np.argsort(by_appearance)[inverse].astype(np.uint8).tobytes()
                of_ways[way, 0] = pattern_numbers.setdefault(pattern, len(pattern_numbers))
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
        """Finds assignments that differ from all earlier ones by more than an exchange of equal devices.

        Args:
            assignments: the assignments, int64 [batch, members].

        Returns:
            Their row numbers in increasing order, int64 [rows].
        """
        return np.sort(np.unique(self.exchange_keys(assignments), axis=0, return_index=True)[1])

    def evaluate(self, assignments: NDArray[np.integer]) -> ApplicationEvaluation:
        """Simulates a batch of assignments, int64 [batch, members].

        For latency, the members run in `order`: each begins when its inputs are there and its devices are free.
        """
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
            # Latency of one run: a model begins when its inputs are there and its devices are free.
            uses = result.busy_us[of_row] > 0
            begin = np.where(uses, free, 0.0).max(axis=1)
            for source in self.sources[number]:
                begin = np.maximum(begin, span[:, source, 1])
            span[:, number, 0], span[:, number, 1] = begin, begin + member.count * result.latency_us[of_row]
            free = np.where(uses, span[:, number, 1:], free)
        over = np.where(runs, np.maximum(memory - self.limits, 0.0).sum(axis=1), np.inf)
        periods = self.members[0].problem.periods(busy)
        return ApplicationEvaluation(busy, periods, memory, span[:, :, 1].max(axis=1), span, over)

    def ranks(self, assignments: NDArray[np.integer]) -> NDArray[np.float64]:
        """Simulates assignments, [batch, members]; returns their `ApplicationEvaluation.rank`, float64 [batch]."""
        return self.evaluate(assignments).rank(self.objective)

    def scores(self, assignments: NDArray[np.integer]) -> NDArray[np.float64]:
        """Simulates assignments, [batch, members]; returns their `ApplicationEvaluation.score`, float64 [batch]."""
        return self.evaluate(assignments).score(self.objective)

    def describe(self, assignment: Sequence[int]) -> dict[str, str]:
        """Returns the name of each model's placement in an assignment, by name of the model.

        It is the name of a device, or of the placer that found the split.
        """
        return {one.name: one.ways[way].name for one, way in zip(self.members, assignment, strict=True)}

    def whole_assignments(self) -> NDArray[np.int64]:
        """Lists assignments with each model on one device, the best by `rank` first, int64 [assignments, members].

        These are all such assignments, or those that hill climbing visits where there are more than `_ENUMERATED`. A
        model that runs on no single device has its other placements, see `Member.whole`.
        """
        choices = [member.whole for member in self.members]
        if np.prod([float(len(one)) for one in choices]) <= _ENUMERATED:
            assignments = np.array(list(product(*choices)), np.int64).reshape(-1, len(choices))
        else:
            assignments = self._climb(choices)
        return assignments[np.argsort(self.ranks(assignments), kind="stable")]

    def distinct_whole(self, count: int) -> NDArray[np.int64]:
        """Returns the best `count` of `whole_assignments` that fit, int64 [at most count, members].

        Of assignments that only exchange equal devices, one is returned.
        """
        found = self.whole_assignments()
        fitting = found[self.evaluate(found).over == 0]
        return fitting[self.distinct(fitting)][:count]

    def on_each_device(self) -> dict[str, NDArray[np.int64]]:
        """Returns the assignments that have all models on one device, int64 [members], by name of the device.

        Devices that do not run all models are left out; memory does not count.
        """
        numbers = {device: [self.number_on(member, device) for member in self.members] for device in self.devices}
        return {device: np.array(same, np.int64) for device, same in numbers.items() if None not in same}

    def moves(self, now: NDArray[np.int64]) -> dict[str, dict[str, float | None]]:
        """Computes how much the objective changes when one model moves to one device, µs, positive for worse.

        Args:
            now: the assignment to start from, int64 [members].

        Returns:
            The change by model and device, without the device that the model is on already; None where the model does
            not run there, or memory is exceeded.
        """
        changes: dict[str, dict[str, float | None]] = {member.name: {} for member in self.members}
        for place, device in product(range(len(now)), self.devices):
            member, moved = self.members[place], np.stack([now, now])
            number = self.number_on(member, device)
            moved[1, place] = now[place] if number is None else number
            evaluation = self.evaluate(moved)
            before, after = replace(evaluation, over=np.zeros(2)).score(self.objective).tolist()
            if number != now[place]:
                fits = number is not None and evaluation.over[1] == 0
                changes[member.name][device] = round(after - before, 3) if fits else None
        return changes

    def _climb(self, choices: Sequence[Sequence[int]]) -> NDArray[np.int64]:
        """Runs hill climbing; returns the assignments that it compares, int64 [assignments, members].

        It starts from all models on each device. A step changes one model's placement, or exchanges those of two. For
        throughput, it minimizes norms of the devices' loads (`_POWERS`) in place of the period.

        Args:
            choices: for each member, the indices of the placements that may be chosen.
        """
        seen: dict[bytes, NDArray[np.int64]] = {}
        for device, power in product(range(len(self.devices)), _POWERS):
            best = np.array([one[min(device, len(one) - 1)] for one in choices], np.int64)
            current = None
            while current is None or not np.array_equal(current, best):
                current = best
                near = np.stack([current, *_neighbours(current, choices)])
                seen |= {row.tobytes(): row for row in near}
                evaluation = self.evaluate(near)
                smooth = replace(evaluation, period_us=np.linalg.norm(evaluation.busy_us, power, axis=1))
                best = near[smooth.rank(self.objective).argmin()]
        return np.stack(list(seen.values()))

    def with_splits(self, start: NDArray[np.int64], search: Multilevel) -> NDArray[np.int64]:
        """Improves an assignment by splitting models, one after the other, where that gains more than `MARGIN`.

        New splits are appended to the members' `ways`.

        Args:
            start: the assignment to begin with, int64 [members].
            search: finds a split of one model on what the other models leave of the devices.

        Returns:
            The improved assignment, int64 [members].
        """
        current, value = start, float(self.ranks(start[None])[0])
        for _ in range(_PASSES):
            before, busy = value, self.evaluate(current[None]).busy_us[0]
            for number in sorted(range(len(current)), key=lambda n: -float(self._busy_us(n, current)[busy.argmax()])):
                for _ in range(_SEARCHES):
                    self._search_residual_capacity(number, current, value, search)
                    tried = np.repeat(current[None], len(self.members[number].ways), axis=0)
                    tried[:, number] = np.arange(len(tried))
                    ranks = self.ranks(tried)
                    best = int(ranks.argmin())
                    if not ranks[best] < value * (1 - MARGIN):
                        break
                    current, value = tried[best], float(ranks[best])
            if value == before:
                break
        return self._without_small_gains(current, value)

    def _without_small_gains(self, assignment: NDArray[np.int64], value: float) -> NDArray[np.int64]:
        """Undoes splits whose gain is within `MARGIN`.

        Args:
            assignment: an assignment with splits, int64 [members].
            value: its `rank`, µs.

        Returns:
            The assignment with fewer splits, int64 [members].
        """
        largest_rank = value * (1 + MARGIN)
        for number, member in enumerate(self.members):
            if assignment[number] not in member.whole:
                tried = np.repeat(assignment[None], len(member.whole), axis=0)
                tried[:, number] = member.whole
                ranks = self.ranks(tried)
                assignment = tried[ranks.argmin()] if ranks.min() <= largest_rank else assignment
        return assignment

    def _busy_us(self, number: int, assignment: NDArray[np.int64]) -> NDArray[np.float64]:
        """Computes the work of each device for one model in a run of the application, µs, float64 [devices].

        Args:
            number: index of the model among the members.
            assignment: the assignment, int64 [members].
        """
        member = self.members[number]
        return member.count * member.problem.evaluate(member.ways[assignment[number]].placement).busy_us[0]

    def _search_residual_capacity(
        self, number: int, current: NDArray[np.int64], value: float, search: Multilevel
    ) -> None:
        """Searches a split of one model on what the other models leave of the devices, and adds it to `ways`.

        Memory limits are reduced by what the other models store. For throughput, devices become slower: where the
        others need three quarters of the period, the device counts as four times slower.

        Args:
            number: index of the model among the members.
            current: the assignment of all members, int64 [members].
            value: its `rank`, µs; for throughput this is the period, unless memory is exceeded.
            search: places the model.
        """
        member, load = self.members[number], self.evaluate(current[None])
        present = member.problem.evaluate(member.ways[current[number]].placement)
        stored = np.array(member.problem.stored_bytes(present.memory_bytes[0]))
        remaining = self.limits - (load.memory_bytes[0] - stored)
        limits = {
            name: max(int(room), 0) for name, room in zip(self.devices, remaining, strict=True) if np.isfinite(room)
        }
        problem = member.problem.with_memory(limits) if limits else member.problem
        if self.objective == "throughput" and value < _NO_FIT:
            occupied = load.busy_us[0] - self._busy_us(number, current)
            factors = 1 / np.maximum(1 - occupied / max(value, 1e-30), _LEAST_LEFT)
            problem = replace(scale_costs(problem, factors), transfer_share=problem.transfer_shares * factors)
        member.way(problem.legalized(search.place(problem)))

    def plan(self, search: Multilevel | None = None) -> dict[str, NDArray[np.int64]]:
        """Finds assignments to choose from, those without splits first; splits are appended to the members' `ways`.

        Args:
            search: the search for splits of single models; the default one where it is None.

        Returns:
            Assignments that fit, int64 [members], by name. "on GPU" has all models on that device. "whole" is the best
            with each model on one device. "alone" has each model where it is best without the others. "one split" and
            "together" have one and any number of split models; the best one is never worse than "whole".

        Raises:
            RunError: no assignment fits into the devices' memory.
            UserError: HETERO does not run one of the models.
        """
        for member in self.members:
            require_runnable(member.problem, member.ways)
        whole = self.whole_assignments()
        on_devices = {on_device(device): assignment for device, assignment in self.on_each_device().items()}
        alone = self._alone()
        distinct = whole[self.distinct(whole)]
        together = self._together([*distinct[: _STARTS - 1], alone], search)
        # This comes second, so that it tries the splits that the search has appended to the members' `ways`, too.
        one_split = self._one_split(np.concatenate([distinct[:_SOME], whole[:_SOME]]))
        plans = {**on_devices, "whole": whole[0], "alone": alone, "one split": one_split, "together": together}
        return self._only_fitting(plans)

    def _alone(self) -> NDArray[np.int64]:
        """Returns the assignment that has each model where it is best without the others, int64 [members]."""
        best = []
        for member in self.members:
            scores = member.problem.scores(np.stack([way.placement for way in member.ways]))
            best.append(scores.argmin())
        return np.array(best, np.int64)

    def _together(self, starts: Sequence[NDArray[np.int64]], search: Multilevel | None) -> NDArray[np.int64]:
        """Returns the best assignment in which any number of models is split, int64 [members].

        Args:
            starts: assignments from which splits are searched, int64 [members].
            search: the search for splits of single models; a new default one for each start where it is None.
        """
        return self._best_rank(np.stack([self.with_splits(start, search or Multilevel()) for start in starts]))

    def _one_split(self, starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the best assignment that has one model's placement changed, int64 [members].

        Args:
            starts: assignments to change, int64 [starts, members]; each model gets each of its `ways` in each of them.
        """
        members = np.arange(len(self.members))
        changed = [
            np.where(members == number, way, starts)
            for number, member in enumerate(self.members)
            for way in range(len(member.ways))
        ]
        return self._best_rank(np.concatenate(changed))

    def _best_rank(self, assignments: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the assignment of the lowest rank among some, [batch, members]."""
        return assignments[self.ranks(assignments).argmin()]

    def _only_fitting(self, plans: Mapping[str, NDArray[np.int64]]) -> dict[str, NDArray[np.int64]]:
        """Returns the plans that fit into the devices' memory.

        Args:
            plans: assignments by name, int64 [members]; one is "together", whose needs an error states.

        Raises:
            RunError: none fits.
        """
        fitting = np.isfinite(self.scores(np.stack(list(plans.values()))))
        if not fitting.any():
            needs = self.evaluate(plans["together"][None]).memory_bytes[0].tolist()
            beyond = exceeding(self.devices, needs, self.members[0].problem.stored_limits)
            raise RunError(f"the models do not fit together: they need {beyond}")
        return {name: plan for (name, plan), fits in zip(plans.items(), fitting, strict=True) if fits}

    def best(self, found: Mapping[str, NDArray[np.int64]]) -> str:
        """Chooses the best assignment of `plan` by its predicted `score`.

        A later assignment replaces an earlier one only where it is better by more than `MARGIN`; for "whole", which
        splits no model, any gain suffices.

        Args:
            found: assignments by name, int64 [members], in the order in which `plan` returns them.

        Returns:
            Name of the best one.
        """
        names, scores = list(found), self.scores(np.stack(list(found.values())))
        best = 0
        for number in range(1, len(names)):
            if scores[number] < scores[best] * (1 - MARGIN * (names[number] != "whole")):
                best = number
        return names[best]

    @staticmethod
    def number_on(member: Member, device: str) -> int | None:
        """Returns the index in `member.ways` of the whole model on a device; None where the device does not run it."""
        return next((number for number in member.whole if member.ways[number].name == device), None)


def check_count(what: str, key: str, count: float) -> None:
    """Checks how often an application runs a model.

    Args:
        what: the model, as the message names it.
        key: "count" or "rate", as the message names the number.
        count: inferences in one run of the application, or in a second.

    Raises:
        UserError: the number is not positive, or above `MOST_COUNT`.
    """
    if not 0 < count <= MOST_COUNT:
        raise UserError(f"{what} has a {key} of {count:g}: it has to be more than 0, and at most {MOST_COUNT:g}")


def check_runs(models: Mapping[str, tuple[float, Sequence[str]]], objective: str = "throughput") -> None:
    """Checks the counts and the order of an application's models.

    Args:
        models: by name, the count of each model and the names of the models that it waits for.
        objective: "latency" allows whole counts only.

    Raises:
        UserError: there is no model, a count is not allowed, a name is unknown, or the order contains a cycle.
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


def scale_costs(problem: PlacementProblem, factors: NDArray[np.float64], boundaries: float = 1.0) -> PlacementProblem:
    """Scales the times of a problem.

    Args:
        problem: the problem.
        factors: how many times as long each device takes for everything it does, float64 [devices].
        boundaries: how many times as long transfers and calls of submodels take. Operations get faster in return, so
            that the whole model on one device still takes `factors` times its time.

    Returns:
        The scaled problem.
    """
    whole_us = np.maximum(np.where(problem.supported, problem.node_us, 0.0).sum(axis=0), 1e-9)
    operations = np.maximum(1 - (boundaries - 1) * problem.submodel_us / whole_us, _LEAST_LEFT)
    slowed = problem.with_scaled_costs({"nodes": factors, "fusions": factors, "submodels": factors})
    return slowed.with_scaled_costs({"nodes": operations, "submodels": boundaries, "transfers": boundaries})


def _neighbours(current: NDArray[np.int64], choices: Sequence[Sequence[int]]) -> Iterator[NDArray[np.int64]]:
    """Yields assignments that differ from the current one in one model's placement, or by an exchange of two of them.

    Args:
        current: the current assignment, int64 [members].
        choices: for each member, the indices of the placements that may be chosen.
    """
    for number, ways in enumerate(choices):
        for way in ways:
            if way != current[number]:
                neighbour = current.copy()
                neighbour[number] = way
                yield neighbour
        for second in range(number):
            if current[number] != current[second] and current[second] in ways and current[number] in choices[second]:
                neighbour = current.copy()
                neighbour[[number, second]] = current[[second, number]]
                yield neighbour
