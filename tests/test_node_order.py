"""What is found does not depend on the order in which a file has its nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.model.colocation import split_rule
from ov_hsdag.placing.candidates import find_candidates
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.training import corpus
from research.zoo.catalog import ZOO
from tests.graphs import problem_of, random_order, random_problem, renumbered


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


def score(problem: PlacementProblem) -> float:
    found = find_candidates(problem, [])
    return float(problem.scores(np.stack([candidate.placement for candidate in found])).min())


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBLEMS)
def test_any_order_of_the_nodes_leads_to_the_same(name: str) -> None:
    problem = PROBLEMS[name]()
    scores = [score(renumbered(problem, random_order(problem.graph, seed))) for seed in range(5)]
    assert np.isfinite(scores).all()
    assert max(scores) <= 1.01 * min(scores)


def test_orders_follow_from_the_structure() -> None:
    """The same groups come in the same order, whatever their numbers; each order is topological."""
    problem = branches(3).problem([1.0, 1.2], "throughput")

    def names(order: NDArray[np.int32], numbered: PlacementProblem) -> list[list[float]]:
        return numbered.group_us[order].tolist()

    expected = [names(order, problem) for order in problem.search_space.orders()]
    assert len(expected) > 1
    for seed in range(3):
        other = renumbered(problem, random_order(problem.graph, seed))
        assert [names(order, other) for order in other.search_space.orders()] == expected
        for order in other.search_space.orders(random=3, seed=seed):
            place = np.argsort(order)
            source, target = other.groups[other.graph.input_source], other.groups[other.graph.input_node]
            assert (place[source] < place[target])[source != target].all()
