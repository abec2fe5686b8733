"""Contiguous partitions: the dynamic programme against all orders of devices and all cuts, and what is made of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import combinations, combinations_with_replacement, pairwise, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ov_hsdag import _native
from ov_hsdag.placers import contiguous
from ov_hsdag.placers.contiguous import CoarsePartitions, Contiguous, contiguous_placements
from ov_hsdag.problem.problem import PlacementProblem, topological_groups
from tests.graphs import chain, random_problem


@dataclasses.dataclass(frozen=True)
class Costs:
    """Times of parts; see cpp_ext/contiguous.hpp. span: [C, P, P]. enter, leave: [C, C, P], or None."""

    kind: np.ndarray
    throughput: bool
    span: np.ndarray
    links: tuple[np.ndarray, np.ndarray] | None

    def value(self, sequence: tuple[int, ...], bounds: tuple[int, ...]) -> float:
        """The objective of parts of devices; empty ones are left out."""
        kinds, loads = [int(self.kind[device]) for device in sequence], []
        for number, (begin, end) in enumerate(pairwise(bounds)):
            if begin == end:
                continue
            load = self.span[kinds[number], begin, end]
            if self.links and number > 0:
                load += self.links[0][kinds[number - 1], kinds[number], begin]
            if self.links and number + 1 < len(kinds):
                load += self.links[1][kinds[number], kinds[number + 1], end]
            loads.append(load)
        return max(loads) if self.throughput else sum(loads)

    def chains(self, in_list_order: bool = False) -> Iterator[tuple[tuple[int, ...], list[float]]]:
        """Every sequence of some devices, and the values of all its partitions in which each has items."""
        last = self.span.shape[1] - 1
        for count in range(1, len(self.kind) + 1):
            choose = combinations if in_list_order else permutations
            for sequence in choose(range(len(self.kind)), count):
                inner = combinations(range(1, last), count - 1)
                yield sequence, [self.value(sequence, (0, *cuts, last)) for cuts in inner]

    def with_empty_parts(self, sequence: tuple[int, ...]) -> float:
        """The least value of a sequence of all devices, any of them without items."""
        last = self.span.shape[1] - 1
        inner = combinations_with_replacement(range(last + 1), len(sequence) - 1)
        return min(self.value(sequence, (0, *cuts, last)) for cuts in inner)


def random_costs(
    seed: int, items: int, kind: list[int], throughput: bool, linked: bool
) -> tuple[Costs, dict[str, Any]]:
    """Costs whose spans are differences of sums, and the arguments that say so."""
    generator = np.random.default_rng(seed)
    kinds = max(kind) + 1
    work = np.concatenate([np.zeros((kinds, 1)), generator.uniform(1, 20, (kinds, items)).cumsum(axis=1)], axis=1)
    fixed = generator.uniform(0, 3, kinds)
    blocked = generator.random((kinds, items)) < 0.1
    within = np.concatenate([np.zeros((kinds, 1)), blocked.cumsum(axis=1)], axis=1)
    span = work[:, None, :] - work[:, :, None] + fixed[:, None, None]
    span = np.where(within[:, None, :] > within[:, :, None], np.inf, span)
    span = np.where(np.tri(items + 1, dtype=bool), np.inf, span)
    links = None
    if linked:
        enter, leave = generator.uniform(0, 6, (2, kinds, kinds, items + 1))
        links = (enter, leave if throughput else np.zeros_like(leave))
    arguments = {"separable": (work, fixed, blocked), "links": links}
    return Costs(np.array(kind, np.int32), throughput, span, links), arguments


SIZES = st.integers(1, 6)
KINDS = st.sampled_from([[0], [0, 1], [0, 0], [0, 1, 2], [0, 1, 0], [0, 1, 1], [0, 0, 0]])


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), SIZES, KINDS, st.booleans(), st.booleans(), st.booleans())
def test_no_partition_is_better_over_all_orders_of_devices_and_all_cuts(
    seed: int, items: int, kind: list[int], throughput: bool, linked: bool, by_span: bool
) -> None:
    costs, arguments = random_costs(seed, items, kind, throughput, linked)
    if by_span:
        arguments = {"span": costs.span, "links": costs.links}
    values, devices, bounds = _native.contiguous_partitions(
        costs.kind, throughput, **arguments, sequences=100, per_sequence=3
    )
    expected = {sequence: sorted(found) for sequence, found in costs.chains()}
    least = min((found[0] for found in expected.values() if found), default=np.inf)
    if np.isinf(least):
        assert not len(values)
        return
    assert values[0] == pytest.approx(least)
    first: dict[tuple[int, ...], float] = {}
    for value, sequence, bound in zip(values.tolist(), devices.tolist(), bounds.tolist(), strict=True):
        used = tuple(device for device in sequence if device >= 0)
        assert (np.diff(bound[: len(used) + 1]) > 0).all() and bound[0] == 0 and bound[len(used)] == items
        assert value == pytest.approx(costs.value(used, tuple(bound[: len(used) + 1])))
        first.setdefault(used, value)
    # The best of each sequence, best sequences first; identical devices are used in the order of the list.
    assert list(first.values()) == pytest.approx(sorted(first.values()))
    for sequence, value in first.items():
        assert value == pytest.approx(expected[sequence][0])
    for sequence, found in expected.items():
        in_order = all(
            list(same) == sorted(same) for same in ([d for d in sequence if kind[d] == k] for k in set(kind))
        )
        members = [np.flatnonzero(costs.kind == k) for k in range(max(kind) + 1)]
        begins = all(list(m[: len(u)]) == u for m, u in ((m, [d for d in sequence if d in m]) for m in members))
        if found and np.isfinite(found[0]) and in_order and begins:
            assert sequence in first


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), SIZES, st.integers(1, 4), st.booleans(), st.booleans())
def test_in_list_order_no_partition_is_better(
    seed: int, items: int, devices: int, throughput: bool, linked: bool
) -> None:
    costs, arguments = random_costs(seed, items, list(range(devices)), throughput, linked)
    values, sequence, _ = _native.contiguous_partitions(costs.kind, throughput, **arguments, any_order=False)
    least = min((value for _, found in costs.chains(in_list_order=True) for value in found), default=np.inf)
    if np.isinf(least):
        assert not len(values)
    else:
        assert values[0] == pytest.approx(least)
        assert (np.diff([d for d in sequence[0].tolist() if d >= 0]) > 0).all()


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), SIZES, st.integers(1, 3), st.booleans())
def test_sequences_of_all_devices_come_in_the_order_of_their_best_partitions(
    seed: int, items: int, devices: int, throughput: bool
) -> None:
    generator = np.random.default_rng(seed)
    costs, _ = random_costs(seed, items, list(range(devices)), throughput, False)
    # Any span, not only differences of sums; finite.
    span = np.where(np.isinf(costs.span), generator.uniform(5, 50, costs.span.shape), costs.span)
    costs = dataclasses.replace(costs, span=np.where(np.tri(items + 1, dtype=bool), np.inf, span))
    arguments = {"span": costs.span, "skip": True}
    values, sequences, bounds = _native.contiguous_partitions(costs.kind, throughput, **arguments, sequences=6)
    every = {sequence: costs.with_empty_parts(sequence) for sequence in permutations(range(devices))}
    assert sorted(every) == sorted(map(tuple, sequences.tolist()))
    assert values.tolist() == pytest.approx(sorted(every.values()))
    for value, sequence, bound in zip(values.tolist(), sequences.tolist(), bounds.tolist(), strict=True):
        assert (
            value == pytest.approx(every[tuple(sequence)]) == pytest.approx(costs.value(tuple(sequence), tuple(bound)))
        )
    (listed,), (order,), _ = _native.contiguous_partitions(costs.kind, throughput, **arguments, any_order=False)
    assert order.tolist() == list(range(devices)) and listed == pytest.approx(every[tuple(range(devices))])


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"span": np.zeros((2, 3, 3)), "separable": (np.zeros((2, 3)), np.zeros(2), np.zeros((2, 2)))},
        {"span": np.zeros((1, 3, 3))},
        {"span": np.full((2, 3, 3), np.nan)},
        {"span": np.zeros((2, 3, 3)), "links": (np.zeros((2, 2, 4)), np.zeros((2, 2, 3)))},
        {"span": np.zeros((2, 3, 3)), "links": (np.zeros((2, 2, 3)), np.zeros((2, 2, 3))), "skip": True},
    ],
)
def test_malformed_costs_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        _native.contiguous_partitions(np.arange(2, dtype=np.int32), False, **arguments)


@pytest.mark.parametrize("kinds", [list(range(8)), [0] * 16, [0] * 8 + [1] * 8])
@pytest.mark.parametrize("throughput", [False, True])
def test_eight_devices_and_six_hundred_cuts_are_no_matter_of_patience(kinds: list[int], throughput: bool) -> None:
    costs, arguments = random_costs(1, 600, kinds, throughput, True)
    arguments["separable"] = (*arguments["separable"][:2], np.zeros((max(kinds) + 1, 600), bool))
    values, *_ = _native.contiguous_partitions(costs.kind, throughput, **arguments)
    assert len(values) == 1


def identical(problem: PlacementProblem, devices: int) -> PlacementProblem:
    """The problem on so many copies of its first device."""
    column = np.zeros(devices, int)
    return dataclasses.replace(
        problem,
        devices=tuple(f"D{number}" for number in range(devices)),
        node_us=problem.node_us[:, column],
        supported=problem.supported[:, column],
        transfer_us=problem.transfer_us[:1, 1:2].repeat(devices, 0).repeat(devices, 1),
        transfer_us_per_byte=problem.transfer_us_per_byte[:1, 1:2].repeat(devices, 0).repeat(devices, 1),
        submodel_us=problem.submodel_us[column],
        memory_bytes=problem.memory_bytes[column],
    )


def test_devices_of_equal_costs_are_one_kind() -> None:
    problem = random_problem(5, nodes=30, devices=3, submodel_us=4.0)
    assert CoarsePartitions.of(problem).kind.tolist() == [0, 1, 2]
    same = identical(problem, 5)
    assert CoarsePartitions.of(same).kind.tolist() == [0] * 5
    slower = same.node_us * [1, 1, 2, 2, 1]
    assert CoarsePartitions.of(dataclasses.replace(same, node_us=slower)).kind.tolist() == [0, 0, 1, 1, 0]
    # Equal devices with other links are not equal.
    transfer_us = same.transfer_us.copy()
    transfer_us[0, 4] += 1
    assert CoarsePartitions.of(dataclasses.replace(same, transfer_us=transfer_us)).kind.tolist() == [0, 1, 1, 1, 2]
    limited = dataclasses.replace(same, memory_bytes=np.array([-1, -1, 100, -1, -1]))
    assert CoarsePartitions.of(limited).kind.tolist() == [0, 0, 1, 0, 0]


@pytest.mark.parametrize("alike", [True, False])
def test_sixteen_devices_share_the_work(alike: bool) -> None:
    problem = identical(random_problem(8, nodes=200, objective="throughput"), 16)
    if not alike:
        generator = np.random.default_rng(0)
        problem = dataclasses.replace(problem, node_us=problem.node_us * generator.uniform(0.9, 1.1, 16))
    single = problem.scores(problem.single(0))[0]
    found = problem.scores(Contiguous().place(problem))[0]
    assert found < single / 3


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 4), st.sampled_from(["latency", "throughput"]), st.booleans())
def test_placements_are_contiguous_and_supported(seed: int, devices: int, objective: str, limited: bool) -> None:
    problem = random_problem(
        seed, nodes=25, devices=devices, objective=objective, missing=0.1, submodel_us=2.0, grouped=True
    )
    if limited:
        need = int(problem.evaluate(problem.single(0)).memory_bytes.sum())
        problem = dataclasses.replace(problem, memory_bytes=np.full(devices, need // 2))
    orders = [*problem.search_space.orders(random=1, seed=seed), topological_groups(problem)]
    for in_list_order in (False, True):
        for placement in contiguous_placements(problem, in_list_order=in_list_order):
            assert problem.group_supported[np.arange(problem.group_count), placement].all()
            parts = [
                placement[order][np.flatnonzero(np.diff(placement[order], prepend=-1))].tolist() for order in orders
            ]
            # It is a partition of one of the orders, and by chance of others, too.
            sequences = [sequence for sequence in parts if len(set(sequence)) == len(sequence)]
            assert sequences
            assert not in_list_order or any(sequence == sorted(sequence) for sequence in sequences)


def test_no_partition_is_judged_for_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where states keep layers together, some orders are cut into submodels that wait for each other."""
    allowed: list[int | None] = []
    evaluate = PlacementProblem.evaluate

    def limited(self: PlacementProblem, placements: np.ndarray, threads: int = 1, most_work: int | None = None) -> Any:
        allowed.append(most_work)
        return evaluate(self, placements, threads, most_work)

    monkeypatch.setattr(PlacementProblem, "evaluate", limited)
    Contiguous().place(random_problem(1, nodes=100, objective="throughput"))
    assert allowed and all(work is not None and work <= 10**8 for work in allowed)


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_parts_keep_to_memory(objective: str) -> None:
    problem = dataclasses.replace(chain((100.0, 10.0)), objective=objective)
    need = int(problem.evaluate(problem.single(0)).memory_bytes.sum())
    limited = dataclasses.replace(problem, memory_bytes=np.array([-1, int(need * 0.4)]))
    found = Contiguous().place(limited)
    assert np.isfinite(limited.scores(found)[0])
    # The fast device is as full as it may be.
    assert limited.evaluate(found).memory_bytes[0, 1] > 0.36 * need
    both = dataclasses.replace(problem, memory_bytes=np.full(2, int(need * 0.6)))
    assert np.isfinite(both.scores(Contiguous().place(both))[0])


def test_what_one_device_lacks_ends_its_part_and_no_more() -> None:
    # The faster device lacks an operation in the first quarter: the rest is all its own.
    problem = chain((100.0, 10.0))
    supported = np.ones((42, 2), bool)
    supported[10, 1] = False
    problem = dataclasses.replace(problem, supported=supported)
    placement = Contiguous().place(problem)
    assert problem.group_supported[np.arange(problem.group_count), placement].all()
    assert placement[problem.groups[11:41]].all() and not placement[problem.groups[:11]].any()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), devices=st.integers(2, 4), throughput=st.booleans())
def test_what_a_device_lacks_another_one_runs_inside_its_part(seed: int, devices: int, throughput: bool) -> None:
    objective = "throughput" if throughput else "latency"
    problem = random_problem(seed, nodes=30, devices=devices, objective=objective, missing=0.1, grouped=True)
    everywhere = dataclasses.replace(problem, supported=np.ones_like(problem.supported))
    for order in problem.search_space.orders(random=2, seed=seed):
        placements = problem.search_space.partitions(order, throughput, sequences=2, per_sequence=1, filled=0.5)
        assert problem.group_supported[np.arange(problem.group_count), placements].all()
        placements = everywhere.search_space.partitions(order, throughput, sequences=2, per_sequence=1)
        assert (np.count_nonzero(np.diff(placements[:, order]), axis=1) < devices).all()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), devices=st.integers(2, 3), throughput=st.booleans())
def test_the_order_of_the_device_list_is_taken_where_it_is_about_as_good(
    seed: int, devices: int, throughput: bool
) -> None:
    objective = "throughput" if throughput else "latency"
    problem = random_problem(seed, nodes=40, devices=devices, objective=objective, submodel_us=3.0)
    found = CoarsePartitions.of(problem)
    position = found.view.position
    best = found.best(position)
    assert sorted(best.sequence.tolist()) == list(range(devices))
    assert best.bounds[0] == 0 and best.bounds[-1] == found.view.size and (np.diff(best.bounds) >= 0).all()
    every = found._find(*found._parts(position), 6)
    listed = next(item.value for item in every if item.sequence.tolist() == list(range(devices)))
    least = min(item.value for item in every)
    assert best.value == pytest.approx(listed if listed <= 1.05 * least else least)


def test_of_many_places_cuts_are_where_little_crosses() -> None:
    crossing = np.full(1001, 1e6)
    crossing[::7] = 1.0
    cuts = contiguous._candidate_cuts(np.ones(1000), crossing, 96)
    assert len(cuts) <= 97 and cuts[0] == 0 and cuts[-1] == 1000
    assert (cuts[1:-1] % 7 == 0).all()
    assert np.diff(cuts).max() < 30
    np.testing.assert_array_equal(contiguous._candidate_cuts(np.ones(95), crossing[:96], 96), np.arange(96))
