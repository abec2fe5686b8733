"""What is found does not depend on the order in which a file has its nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.model.colocation import split_rule
from ov_hsdag.model.graph import NodeKind
from ov_hsdag.placers.base import Placer, best_of, by_structure
from ov_hsdag.placers.contiguous import Contiguous
from ov_hsdag.placers.mincut import MinCut
from ov_hsdag.placers.multilevel import Multilevel
from ov_hsdag.placers.partitions import Partitions
from ov_hsdag.placing.candidates import find_candidates
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.problem.problem import OBJECTIVES, PlacementProblem
from ov_hsdag.training import corpus
from research.numbering import breadth_first_order, random_order
from research.zoo.catalog import ZOO
from tests.graphs import problem_of, random_problem


@dataclass
class Operators:
    """Operations with times in µs and tensors in bytes; weights are nodes of their own, as in published instances."""

    sources: list[list[int]] = field(default_factory=list)
    us: list[float] = field(default_factory=list)
    size: list[int] = field(default_factory=list)

    def add(self, sources: list[int], us: float, size: int) -> int:
        """Returns the number of a new node, behind the Parameter that every problem begins with."""
        self.sources.append(sources)
        self.us.append(us)
        self.size.append(size)
        return len(self.sources)

    def weighted(self, source: int, us: float, size: int, weights: int) -> int:
        return self.add([source, self.add([], 0.0, weights)], us, size)

    def problem(
        self, speeds: list[float], objective: str, *, memory: float | None = None, us_per_byte: float = 1e-3
    ) -> PlacementProblem:
        """memory: limit of each device, a share of all weights."""
        devices = len(speeds)
        plain = problem_of(self.sources, [[us / speed for speed in speeds] for us in self.us], objective=objective)
        weights = [0 if sources else size for sources, size in zip(self.sources, self.size, strict=True)]
        held = np.zeros((plain.graph.nodes, devices), np.int64)
        held[1 : len(weights) + 1] = np.array(weights)[:, None]
        return replace(
            plain,
            graph=replace(plain.graph, output_bytes=np.array([100, *self.size], np.int64)),
            transfer_us=plain.transfer_us / 10,
            transfer_us_per_byte=us_per_byte * (1 - np.eye(devices)),
            submodel_us=np.full(devices, 0.1),
            memory_bytes=np.full(devices, -1 if memory is None else int(memory * sum(weights))),
            held_bytes=held,
            live_bytes=np.zeros(plain.graph.outputs, np.int64),
        )


def residual() -> Operators:
    """A residual network: convolutions with weights, a normalization with four more constants each."""
    made = Operators()

    def convolution(source: int, us: float, size: int, weights: int) -> int:
        value = made.weighted(source, us, size, weights)
        return made.add([value, *(made.add([], 0.0, 2) for _ in range(4))], us / 12, size)

    value = convolution(0, 4.0, 3200, 40)
    for stage in range(3):
        size = 3200 >> stage
        for block in range(3):
            inner = convolution(convolution(value, 1.0, size // 4, 16 << 2 * stage), 2.2, size // 4, 144 << 2 * stage)
            inner = convolution(inner, 1.0, size, 64 << 2 * stage)
            kept = convolution(value, 1.6, size, 64 << 2 * stage) if block == 0 else value
            value = made.add([made.add([inner, kept], 0.3, size)], 0.2, size)
    return made


def attention(layers: int = 3) -> Operators:
    """An encoder: a mask that all layers read, queries, keys and values side by side, a wide layer behind them."""
    made = Operators()
    mask = made.add([made.add([0], 0.02, 20)], 0.02, 20)
    value = made.weighted(0, 0.2, 3000, 90_000)
    for _ in range(layers):
        query, key, values = (made.add([made.weighted(value, 0.6, 3000, 2400)], 0.1, 3000) for _ in range(3))
        scores = made.add([made.add([query, key], 0.3, 6000), mask], 0.15, 6000)
        mixed = made.add([made.add([scores], 0.3, 6000), values], 0.3, 3000)
        value = made.add([value, made.weighted(mixed, 0.6, 3000, 2400)], 0.2, 3000)
        wide = made.weighted(value, 2.4, 12_000, 9400)
        narrow = made.weighted(made.add([wide, made.add([wide], 0.4, 12_000)], 0.3, 12_000), 2.4, 3000, 9400)
        value = made.add([value, narrow], 0.2, 3000)
    return made


def branches(seed: int) -> Operators:
    """Blocks of four branches of different lengths."""
    generator, made = np.random.default_rng(seed), Operators()
    value = made.weighted(0, 3.0, 2000, 40)
    for _ in range(5):
        ends = []
        for length in (1, 2, 3, 2):
            end = value
            for _ in range(length):
                end = made.weighted(end, generator.uniform(0.3, 1.2), int(generator.integers(200, 600)), 200)
            ends.append(end)
        value = made.add(ends, 0.1, 1600)
    return made


def corpus_problem(seed: int, devices: int, objective: str) -> PlacementProblem:
    generator = np.random.default_rng(seed)
    template = corpus.generated_template(generator, split_rule(ov.__version__))
    problems = (corpus.draw_problem(template, generator, devices) for _ in range(100))
    drawn = next(problem for problem in problems if corpus.placeable(problem))
    return replace(drawn, objective=objective, memory_bytes=np.full(devices, -1, np.int64))


PROBLEMS: dict[str, Callable[[], PlacementProblem]] = {
    "residual, six alike": lambda: residual().problem([1.0] * 6, "throughput"),
    "residual, six alike, little memory": lambda: residual().problem([1.0] * 6, "throughput", memory=0.25),
    "attention, three alike": lambda: attention(6).problem([1.0] * 3, "throughput"),
    "attention, three alike, little memory": lambda: attention().problem([1.0] * 3, "throughput", memory=0.6),
    "attention, two, latency, little memory": lambda: attention().problem([1.0, 1.4], "latency", memory=0.8),
    "branches, four": lambda: branches(1).problem([1.0, 1.0, 1.3, 0.8], "throughput"),
    "branches, five, latency": lambda: branches(2).problem([1, 1.1, 0.9, 1, 1], "latency", us_per_byte=1e-5),
    "generated, three": lambda: corpus_problem(5, 3, "throughput"),
    "random, four, latency": lambda: random_problem(3, nodes=120, devices=4, fusing=True),
    "bert": lambda: build_problem(ZOO["bert-small"].build(), DeviceSet.parse("HETERO:GPU,CPU"), objective="throughput"),
}


def best_score(problem: PlacementProblem, placements: list[NDArray[np.uint8]]) -> float:
    return float(problem.scores(np.stack(placements)).min())


def orders(problem: PlacementProblem) -> list[NDArray[np.int64]]:
    """All sources first, and three drawn at random."""
    return [breadth_first_order(problem.graph), *(random_order(problem.graph, seed) for seed in range(3))]


ROUNDING = 1e-9
"""Share by which sums of the same numbers in another order may differ."""


def values(problem: PlacementProblem) -> dict[str, list[Any]]:
    """All arrays of a problem and of its graph, as lists, but names and shapes, which no search sees."""
    return {
        one.name: np.asarray(getattr(owner, one.name)).tolist()
        for owner in (problem, problem.graph)
        for one in fields(owner)
        if {"axes"} <= set(one.metadata) and one.name not in ("names", "output_shapes")
    }


def alike() -> PlacementProblem:
    """Heads that cannot be told apart: two operations in a row each, which all read a pair of each other's results."""
    first = [[0]] * 6
    second = [[1 + head, 1 + (head + 1) % 6] for head in range(6)]
    third = [[7 + head, 7 + (head + 2) % 6] for head in range(6)]
    return problem_of([*first, *second, *third, list(range(13, 19))], [[4.0, 3.0, 5.0]] * 19, objective="throughput")


@pytest.mark.parametrize("name", [*PROBLEMS, "alike"])
def test_canonical_form_is_the_same_for_all_numberings(name: str) -> None:
    problem = alike() if name == "alike" else PROBLEMS[name]()
    expected = values(problem.canonical.problem)
    for order in orders(problem):
        assert values(problem.renumbered(order).canonical.problem) == expected


@pytest.mark.parametrize("seed", range(3))
def test_canonical_placements_are_those_of_the_problem(seed: int) -> None:
    problem = random_problem(seed, nodes=30, devices=3, fusing=True, grouped=True, submodel_us=2.0)
    drawn = np.random.default_rng(seed).integers(0, 3, (20, problem.canonical.problem.group_count)).astype(np.uint8)
    ours = problem.evaluate(problem.canonical.as_given(drawn))
    canonical = problem.canonical.problem.evaluate(drawn)
    sortable = canonical.submodels == ours.submodels
    assert sortable.any()
    np.testing.assert_allclose(ours.latency_us[sortable], canonical.latency_us[sortable])


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBLEMS)
def test_any_order_of_the_nodes_leads_to_the_same_candidates(name: str) -> None:
    problem = PROBLEMS[name]()
    scores = []
    for order in orders(problem):
        numbered = problem.renumbered(order)
        scores.append(best_score(numbered, [found.placement for found in find_candidates(numbered, [])]))
    assert np.isfinite(scores).all()
    assert max(scores) <= (1 + ROUNDING) * min(scores)


SEARCHES: tuple[Placer, ...] = (
    MinCut(), Contiguous(), Partitions(), Multilevel(settings={"effort": {"moves": 20_000, "most_moves": 80_000}}),
)  # fmt: skip


@pytest.mark.parametrize("placer", SEARCHES, ids=lambda placer: placer.name)
@pytest.mark.parametrize("seed", range(8))
def test_any_order_of_a_random_graph_leads_each_search_to_the_same(seed: int, placer: Placer) -> None:
    """With missing operations, fusions, both rules of HETERO, and weights that do not fit on one device."""
    problem = random_problem(
        seed,
        nodes=40,
        devices=2 + seed % 3,
        objective=OBJECTIVES[seed % 2],
        submodel_us=6.0,
        missing=0.3 * (seed // 2 % 2),
        grouped=True,
        fusing=seed % 3 == 0,
    )
    problem = replace(problem, rule=seed // 4)
    if seed % 3 == 1:
        weights = np.repeat(1000 * (problem.graph.kinds == NodeKind.OP)[:, None], len(problem.devices), axis=1)
        limits = np.full(len(problem.devices), weights[:, 0].sum() * 2 // 3)
        alive = np.zeros(problem.graph.outputs, np.int64)
        problem = replace(problem, held_bytes=weights.astype(np.int64), live_bytes=alive, memory_bytes=limits)
    scores = []
    for order in orders(problem):
        numbered = problem.renumbered(order)
        scores.append(best_score(numbered, [placer.place(numbered)]))
    if not np.isinf(scores).all():
        np.testing.assert_allclose(scores, scores[0], rtol=ROUNDING)


def test_what_the_order_of_the_nodes_makes_worse_is_searched_in_that_order() -> None:
    """Two branches one after the other keep less alive than side by side: only the first order fits into memory."""
    problem = problem_of([[0], [0], [1], [2], [3, 4]], [[5.0, 1.0]] * 5)
    problem = replace(problem, live_bytes=np.array([1, 100, 100, 1, 1, 1]))
    one_by_one, side_by_side = ([0, 1, 3, 2, 4, 5, 6], [0, 1, 2, 3, 4, 5, 6])
    needs = [
        problem.renumbered(np.array(order)).evaluate(problem.single(1)).memory_bytes[0, 1]
        for order in (one_by_one, side_by_side)
    ]
    assert needs[0] < needs[1]
    problem = replace(problem, memory_bytes=np.array([-1, needs[1] - 1]))
    asked = []

    def second_device(numbered: PlacementProblem) -> NDArray[np.uint8]:
        asked.append(numbered)
        return best_of(numbered, [numbered.single(1), numbered.single(0)])[None]

    for order, times, device in ((one_by_one, 1, 1), (side_by_side, 2, 0)):
        numbered = problem.renumbered(np.array(order))
        asked.clear()
        assert (by_structure(second_device, numbered)[0] == device).all()
        assert len(asked) == times


def test_orders_follow_from_the_structure() -> None:
    """The same groups come in the same order, whatever their numbers; each order is topological."""
    problem = branches(3).problem([1.0, 1.2], "throughput")

    def names(order: NDArray[np.int32], numbered: PlacementProblem) -> list[list[float]]:
        return numbered.group_us[order].tolist()

    expected = [names(order, problem) for order in problem.search_space.orders()]
    assert len(expected) > 1
    for seed in range(3):
        other = problem.renumbered(random_order(problem.graph, seed))
        assert [names(order, other) for order in other.search_space.orders()] == expected
        for order in other.search_space.orders(random=3, seed=seed):
            place = np.argsort(order)
            source, target = other.groups[other.graph.input_source], other.groups[other.graph.input_node]
            assert (place[source] < place[target])[source != target].all()
