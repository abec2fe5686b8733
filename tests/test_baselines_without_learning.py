"""Published placers that learn nothing: on schedules made by hand, against all placements of small problems, and legal
on models of the zoo."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

from ov_hsdag.model.repair import split_rule
from ov_hsdag.policy.placer import HSDAGPlacer
from ov_hsdag.problem.problem import OBJECTIVES, PlacementProblem
from ov_hsdag.training import corpus
from research.baselines.annealing import Annealing
from research.baselines.baechi import MEtf, MSct, favourite_children, schedule
from research.baselines.budget import Baseline, Budget, Environment
from research.baselines.celeritas import Celeritas, fuse, order
from research.baselines.metis import Metis
from research.baselines.package import (
    CONTIGUOUS_PARTITION,
    MINIMUM_CUT,
    NETWORK,
    SEARCH,
    Alone,
    HeteroRule,
    Shipped,
)
from research.baselines.tarnawski import DynamicProgramme, IntegerProgramme, contiguous_split, ideals, prefixes
from research.baselines.task_graph import TaskGraph
from research.instances import Instance
from research.zoo.catalog import ZOO
from tests.graphs import random_problem
from tests.test_tarnawski import node, written

EVERY: tuple[Baseline, ...] = (
    MEtf(),
    MSct(),
    Celeritas(),
    DynamicProgramme(most_ideals=300),
    IntegerProgramme(seconds=1.0),
    Annealing(evaluations=40),
    MINIMUM_CUT,
    CONTIGUOUS_PARTITION,
    SEARCH,
    NETWORK,
    Shipped(),
)


def instance(
    folder: Path, times: dict[int, float], edges: list[tuple[int, int, float]], *, accelerators: int = 1, **more: float
) -> Instance:
    """Tasks that take as long on the CPU as on each accelerator."""
    nodes = [node(number, us, us, **more) for number, us in times.items()]
    return Instance.load(written(folder, nodes, edges, maxFPGAs=accelerators))


def where(made: Instance, found: NDArray[np.int64]) -> dict[int, int]:
    """What each node of the file has."""
    return {number: int(found[place]) for place, number in enumerate(made.ids)}


def every_placement(problem: PlacementProblem) -> NDArray[np.uint8]:
    return np.array(list(itertools.product(range(len(problem.devices)), repeat=problem.group_count)), np.uint8)


def test_m_etf_starts_what_can_start_first(tmp_path: Path) -> None:
    """1 feeds 2, 3 and 4, which take 3 each; its tensor takes 1 to move."""
    made = instance(tmp_path, {1: 2.0, 2: 3.0, 3: 3.0, 4: 3.0}, [(1, 2, 1.0), (1, 3, 1.0), (1, 4, 1.0)])
    tasks = TaskGraph.of(made.problem())
    found = schedule(tasks)
    beside = (found.device == found.device[tasks.task[made.ids.index(1)]]).tolist()
    # One of the three follows at 2, one waits for the tensor until 3, the last one follows the first at 5.
    assert sorted(zip(found.start.tolist(), beside, strict=True)) == [(0, True), (2, True), (3, False), (5, True)]


def test_a_child_is_the_favourite_of_the_parent_that_would_send_longest(tmp_path: Path) -> None:
    made = instance(tmp_path, {1: 2.0, 2: 2.0, 3: 1.0}, [(1, 3, 5.0), (2, 3, 1.0)])
    tasks = TaskGraph.of(made.problem())
    favourite = favourite_children(tasks)
    one, two, three = (int(tasks.task[made.ids.index(number)]) for number in (1, 2, 3))
    assert favourite[one] == three
    assert favourite[two] == favourite[three] == -1
    found = schedule(tasks, favourite)
    assert found.device[three] == found.device[one] != found.device[two]
    assert found.end.max() == 4.0  # 2, one tensor of 1, and 1


@pytest.mark.parametrize("by_end", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_schedules_keep_order_and_devices(seed: int, by_end: bool) -> None:
    problem = random_problem(seed, nodes=25, devices=3, missing=0.2)
    tasks = TaskGraph.of(problem)
    for favourite in (None, favourite_children(tasks)):
        found = schedule(tasks, favourite, by_end=by_end)
        assert np.isfinite(tasks.us[np.arange(tasks.count), found.device]).all()
        moved = tasks.message_us[np.arange(len(tasks.source)), found.device[tasks.source], found.device[tasks.target]]
        assert (found.start[tasks.target] >= found.end[tasks.source] + moved - 1e-9).all()
        for device in range(3):
            mine = np.flatnonzero(found.device == device)
            mine = mine[np.lexsort((found.end[mine], found.start[mine]))]
            assert (found.start[mine[1:]] >= found.end[mine[:-1]] - 1e-9).all()


def test_list_schedulers_leave_full_devices(tmp_path: Path) -> None:
    made = instance(tmp_path, dict.fromkeys(range(6), 1.0), [(k, k + 1, 0.1) for k in range(5)], size=40.0)
    problem = made.problem()  # an accelerator of 100 bytes
    for baseline in (MEtf(), MSct(), Celeritas()):
        best = Environment(problem).run(baseline)
        assert best is not None
        assert (best.placement == 1).sum() <= 2


def test_live_tensors_leave_less_room_for_weights(tmp_path: Path) -> None:
    """Weights alone fill the accelerators to the last byte, where nothing is left for what flows between operations."""
    made = instance(
        tmp_path, dict.fromkeys(range(8), 1.0), [(k, k + 1, 1e-8) for k in range(7)], accelerators=2, size=24.0
    )
    problem = replace(made.problem(), live_bytes=np.full(8, 4, np.int64))
    for baseline in (MEtf(), MSct(), Celeritas(), DynamicProgramme()):
        best = Environment(problem).run(baseline)
        assert best is not None
        assert not problem.evaluate(best.placement).infeasible[0]


@pytest.mark.parametrize("seed", range(5))
def test_fusion_cuts_where_least_is_sent(seed: int) -> None:
    tasks = TaskGraph.of(random_problem(seed, nodes=9, devices=2))
    sequence = order(tasks)
    place = np.empty(tasks.count, int)
    place[sequence] = np.arange(tasks.count)
    assert (place[tasks.source] < place[tasks.target]).all()
    bound = 0.4
    size = np.maximum(
        tasks.mean_us / tasks.mean_us.sum(), tasks.held.max(axis=1) / max(tasks.held.max(axis=1).sum(), 1e-30)
    )

    def sent(cluster: NDArray[np.int64]) -> float:
        apart = cluster[tasks.source] != cluster[tasks.target]
        return float(tasks.mean_message_us[apart].sum())

    least = np.inf
    for cuts in itertools.product((0, 1), repeat=tasks.count - 1):
        number = np.concatenate([[0], np.cumsum(cuts)])
        cluster = np.empty(tasks.count, int)
        cluster[sequence] = number
        sizes, counts = np.bincount(cluster, size), np.bincount(cluster)
        if (sizes[counts > 1] <= bound).all():
            least = min(least, sent(cluster))
    assert sent(fuse(tasks, sequence, bound)) == pytest.approx(least)


@pytest.mark.parametrize("seed", range(6))
def test_the_dynamic_programme_finds_the_best_contiguous_split(tmp_path: Path, seed: int) -> None:
    generator = np.random.default_rng(seed)
    edges = [
        (a, b, float(cost))
        for a, cost in enumerate(generator.integers(1, 4, 6))
        for b in range(a + 1, 7)
        if (b == a + 1 and generator.random() < 0.7) or generator.random() < 0.25
    ]
    nodes = [
        node(k, float(cpu), float(fast), size=float(size))
        for k, (cpu, fast, size) in enumerate(generator.integers(1, 9, (7, 3)))
    ]
    made = Instance.load(written(tmp_path, nodes, edges, maxFPGAs=2, maxSizePerFPGA=15.0))
    problem = made.problem()
    least = np.inf
    for placement in every_placement(problem):
        device = placement[problem.groups].astype(np.int64)
        parts = {(device[a], device[b]) for a, b in made.edges if device[a] != device[b]}
        contiguous = any(
            all(line.index(a) < line.index(b) for a, b in parts) for line in itertools.permutations(range(3))
        )
        if contiguous:
            try:
                least = min(least, float(made.loads(device).max()))
            except ValueError:  # memory
                continue
    tasks = TaskGraph.of(problem)
    members = ideals(tasks, 1000)
    assert members is not None
    device = contiguous_split(tasks, members)
    assert device is not None
    of_node = device[tasks.task][problem.groups]
    assert made.loads(of_node).max() == pytest.approx(least)
    # Prefixes of one order are some of the ideals.
    along = contiguous_split(tasks, prefixes(tasks, order(tasks), 1000))
    assert along is not None
    assert made.loads(along[tasks.task][problem.groups]).max() >= least - 1e-9
    assert ideals(tasks, 3) is None


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_searches_find_the_optimum_of_a_small_problem(objective: str) -> None:
    """Without costs of submodels what adds up is all there is, so that the integer programme is exact as well."""
    problem = random_problem(5, nodes=9, devices=2, objective=objective, grouped=True)
    optimum = problem.scores(every_placement(problem)).min()
    for baseline in (IntegerProgramme(), Annealing(evaluations=2000), SEARCH, Shipped()):
        environment = Environment(problem, Budget(evaluations=2000))
        best = environment.run(baseline, seed=1)
        assert best is not None
        # What ships prefers simple placements where they are not 0.5% worse.
        assert best.cost * 1e6 <= optimum * 1.005 + 1e-9


def test_annealing_keeps_its_budget_and_is_repeatable() -> None:
    problem = random_problem(2, nodes=30, devices=3, objective="throughput")
    found = []
    for _ in range(2):
        environment = Environment(problem, Budget(evaluations=150))
        best = environment.run(Annealing(), seed=4)
        assert environment.evaluations == 150
        assert best is not None
        found.append(best.cost)
    assert found[0] == found[1] < problem.scores(np.stack([problem.single(d) for d in range(3)])).min() * 1e-6


def test_metis_cuts_where_little_is_sent(tmp_path: Path) -> None:
    pytest.importorskip("pymetis")
    times = dict.fromkeys(range(8), 1.0)
    edges = [(k, k + 1, 0.01 if k == 3 else 5.0) for k in range(7)]
    problem = instance(tmp_path, times, edges).problem()
    best = Environment(problem).run(Metis())
    assert best is not None
    assert best.cost * 1e6 == pytest.approx(4.01)


def test_single_devices_and_hetero_ask_once() -> None:
    problem = random_problem(6, nodes=12, devices=2, missing=0.1)
    assert corpus.placeable(problem)
    for baseline in (Alone(0, "first"), HeteroRule(), HeteroRule(reverse=True), *EVERY[-5:]):
        environment = Environment(problem)
        environment.run(baseline)
        assert environment.evaluations == 1
    supported = problem.group_supported
    environment = Environment(problem, judge=lambda placements: placements.sum(axis=1).astype(float))
    best = environment.run(HeteroRule(reverse=True))
    assert best is not None
    assert best.placement.tolist() == supported[:, 1].astype(int).tolist()


@pytest.mark.parametrize("model", ["inception-v3-small", "bert-small", "mobilenet-v2-small"])
def test_placements_of_real_models_are_legal(model: str) -> None:
    template = corpus.extract(ZOO[model].build(), split_rule(ov.__version__))
    names, profile = corpus.device_set(("iris_xe", "npu_core_ultra", "core_ultra_7_155h"))
    for objective in OBJECTIVES:
        problem = corpus.assemble(template, names, profile, objective)
        for baseline in EVERY:
            environment = Environment(problem)
            best = environment.run(baseline)
            assert best is not None, f"{baseline} found nothing"
            assert not problem.evaluate(best.placement).infeasible[0]


def test_the_network_alone_is_the_best_of_what_it_proposes() -> None:
    """What its placer makes of that by local search is no merit of the network."""
    for seed in range(4):
        problem = random_problem(seed, nodes=40, devices=2, objective="throughput")
        best = Environment(problem).run(NETWORK)
        proposed = HSDAGPlacer().propose(problem)
        scores = problem.scores(proposed)
        assert best is not None and best.cost * 1e6 == pytest.approx(scores.min())
        np.testing.assert_array_equal(best.placement, proposed[scores.argmin()])
