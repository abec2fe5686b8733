"""Refinement: never worse, exact scores, limits respected, repeatable; and as good as the best known placements."""

from __future__ import annotations

import dataclasses
import itertools
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.placers.contiguous import Contiguous
from ov_hsdag.placers.mincut import MinCut
from ov_hsdag.placers.refine import refine
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.problem.problem import OBJECTIVES, PlacementProblem
from research.zoo.catalog import ZOO
from tests.graphs import every_placement, random_problem, searched_problems
from tests.processes import ended

FEW = 20_000


def with_random_speeds(problem: PlacementProblem, seed: int, transfer: float, submodel: float) -> PlacementProblem:
    """Devices of equal total speed, each good at other types of operations: the placements worth having are mixed."""
    generator = np.random.default_rng(seed)
    speed = {
        name: np.exp(generator.uniform(-1.2, 1.2, len(problem.devices))) for name in sorted(set(problem.graph.types))
    }
    total = problem.node_us.sum(axis=0)
    return dataclasses.replace(
        problem,
        node_us=problem.node_us / total * total.min() * np.array([speed[name] for name in problem.graph.types]),
        transfer_us=problem.transfer_us * transfer,
        transfer_us_per_byte=problem.transfer_us_per_byte * transfer,
        submodel_us=problem.submodel_us * submodel,
    )


@settings(max_examples=100, deadline=None)
@given(searched_problems(fewest=2), st.integers(0, 10_000))
def test_what_holds_for_every_refinement(problem: PlacementProblem, seed: int) -> None:
    generator = np.random.default_rng(seed)
    batch = generator.integers(0, len(problem.devices), (5, problem.group_count)).astype(np.uint8)
    batch[4] = batch[0]
    for moves in (0, FEW):
        placements, scores = refine(problem, batch, max_moves=moves, seed=seed)
        before = problem.scores(batch)
        assert placements.shape == batch.shape
        assert placements.dtype == np.uint8
        np.testing.assert_allclose(scores, problem.scores(placements), rtol=1e-12)
        assert (scores <= before).all()
        # An infeasible placement without a feasible one nearby comes back as it was.
        np.testing.assert_array_equal(placements[np.isinf(scores)], batch[np.isinf(scores)])
        np.testing.assert_array_equal(placements[4], placements[0])
        again = refine(problem, batch, max_moves=moves, seed=seed, threads=3)
        np.testing.assert_array_equal(again[0], placements)
        np.testing.assert_array_equal(again[1], scores)


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(("devices", "nodes"), [(2, 11), (3, 7)])
@pytest.mark.parametrize("limited", [False, True])
def test_finds_the_optimum_of_small_problems(objective: str, devices: int, nodes: int, limited: bool) -> None:
    gaps = []
    for seed in range(100 if limited else 40):
        problem = random_problem(
            seed,
            nodes=nodes,
            devices=devices,
            objective=objective,
            submodel_us=8.0,
            missing=0.1,
            grouped=True,
            fusing=seed % 2 == 0,
        )
        if limited:
            need = problem.evaluate(problem.single(0)).memory_bytes.sum()
            problem = dataclasses.replace(problem, memory_bytes=np.full(devices, need * 3 // 4))
        optimum = problem.scores(every_placement(problem)).min()
        if np.isfinite(optimum) and optimum > 0:
            gaps.append(refine(problem, problem.singles)[1].min() / optimum - 1)
    assert len(gaps) > 20
    # Under limits few of these placements are feasible at all, and none of the starts.
    assert np.isfinite(gaps).mean() >= (0.9 if limited else 1.0)
    found = np.array(gaps)[np.isfinite(gaps)]
    assert np.mean(found) < (0.01 if limited else 0.002)
    assert np.median(found) < 1e-9
    assert found.max() < (0.2 if limited else 0.1)


def test_starts_anywhere() -> None:
    problem = random_problem(11, nodes=11, submodel_us=8.0)
    optimum = problem.scores(every_placement(problem)).min()
    batch = np.random.default_rng(0).integers(0, 2, (20, problem.group_count)).astype(np.uint8)
    alone = [refine(problem, placement, max_moves=FEW)[1][0] for placement in batch]
    assert np.mean(np.array(alone) / optimum) < 1.01


@pytest.mark.parametrize("name", ["resnet50", "inception-v1", "bert-small", "mobilenet-v2-small"])
def test_close_to_the_minimum_cut(name: str) -> None:
    original = build_problem(ZOO[name].build(), DeviceSet.parse("HETERO:GPU,CPU"))
    gaps, gains = [], []
    for seed, transfer in itertools.product(range(4), (1.0, 0.1)):
        problem = with_random_speeds(original, seed, transfer, 0.0)
        optimum = problem.scores(MinCut().place(problem))[0]
        starts = [*problem.singles, *problem.random(np.random.default_rng(seed), 1)]
        for start in starts:
            score = refine(problem, start)[1][0]
            gaps.append(score / optimum - 1)
        gains.append(problem.scores(problem.singles).min() / optimum)
    assert min(gaps) > -1e-6  # without submodel costs nothing is better than the cut
    assert np.mean(gaps) < 0.002
    assert max(gaps) < 0.02
    assert max(gains) > 1.02  # and there was something to find


@pytest.mark.parametrize("name", ["resnet50", "inception-v1", "bert-small", "mobilenet-v2-small"])
@pytest.mark.parametrize("device", ["HETERO:CPU_A,CPU_B", "HETERO:GPU,CPU"])
def test_balances_as_well_as_the_pipeline(name: str, device: str, declared: None) -> None:
    original = build_problem(ZOO[name].build(), DeviceSet.parse(device), objective="throughput")
    ratios = []
    for seed in range(4):
        problem = with_random_speeds(original, seed, 1.0, 1.0) if seed else original
        pipeline = problem.scores(Contiguous().place(problem))[0]
        ratios.append(refine(problem, problem.singles)[1].min() / pipeline)
    assert np.exp(np.mean(np.log(ratios))) < 1.005
    assert max(ratios) < 1.05


def test_memory_limits_are_met_from_a_start_that_breaks_them() -> None:
    original = build_problem(ZOO["resnet50"].build(), DeviceSet.parse("HETERO:GPU,CPU"))
    need = original.evaluate(original.single(0)).memory_bytes.sum()
    for objective in OBJECTIVES:
        problem = dataclasses.replace(original, objective=objective, memory_bytes=np.full(2, need * 7 // 10))
        assert np.isinf(problem.scores(problem.singles)).all()
        placements, scores = refine(problem, problem.singles)
        assert np.isfinite(scores).all()
        assert (problem.evaluate(placements).memory_bytes <= need * 7 // 10).all()


def test_states_stay_whole() -> None:
    problem = build_problem(ZOO["lstm-stateful"].build(), DeviceSet.parse("HETERO:GPU,CPU"), objective="throughput")
    batch = np.random.default_rng(0).integers(0, 2, (8, problem.group_count)).astype(np.uint8)
    placements, scores = refine(problem, np.concatenate([batch, problem.singles]))
    assert (problem.evaluate(placements[np.isfinite(scores)]).infeasible == 0).all()
    assert np.isfinite(scores).any()


def test_time_budget() -> None:
    problem = build_problem(ZOO["resnet50"].build(), DeviceSet.parse("HETERO:GPU,CPU"), objective="throughput")
    start = time.perf_counter()
    refine(problem, problem.singles, max_moves=0, budget_ms=100)  # without a limit of moves it ends by that of time
    assert time.perf_counter() - start > 0.09


def test_batches_of_any_size() -> None:
    problem = random_problem(1, nodes=8)
    assert refine(problem, np.zeros((0, problem.group_count), np.uint8))[0].shape == (0, problem.group_count)
    one = refine(problem, problem.single(1))
    assert one[0].shape == (1, problem.group_count)
    with pytest.raises(ValueError, match="expected device numbers below 2"):
        refine(problem, problem.single(2))
    with pytest.raises(ValueError, match=r"expected 'placements' of shape \[batch, "):
        refine(problem, np.zeros((1, problem.group_count + 1), np.uint8))
    with pytest.raises(ValueError, match="budget"):
        refine(problem, problem.single(0), max_moves=-1)


# Each thread's search needs 164 MB for its table of gains.
OUT_OF_MEMORY = """
import resource
from pathlib import Path
import numpy as np
from tests.graphs import random_problem

problem = random_problem(0, nodes=40_000, devices=32, objective="throughput")
problem.evaluate(problem.single(0))
scattered = np.random.default_rng(0).integers(0, 32, (2, problem.group_count)).astype(np.uint8)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 130 * 2**20,) * 2)
try:
    problem.evaluate(scattered, threads=2)
except MemoryError:
    print("MemoryError")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
def test_an_exception_on_a_native_thread_does_not_end_python() -> None:
    assert ended(sys.executable, "-c", OUT_OF_MEMORY).stdout.strip() == "MemoryError"
