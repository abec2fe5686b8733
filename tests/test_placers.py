from __future__ import annotations

from dataclasses import replace

import numpy as np
import openvino as ov
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ov_hsdag.costs.profile import Profile
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.model.graph import NodeKind
from ov_hsdag.placers.contiguous import Contiguous
from ov_hsdag.placers.mincut import MinCut
from ov_hsdag.placers.multilevel import Multilevel
from ov_hsdag.placers.partitions import Partitions
from ov_hsdag.placers.registry import PHRASES, REGISTERED, tuning_placers, unlearned_placers
from ov_hsdag.placers.single import HeteroDefault, NodeCount, SingleDevice
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.problem.problem import PlacementProblem
from research.graphs import graph_of, problem_on
from research.zoo.catalog import ZOO
from tests.graphs import every_placement, problem_of, random_problem


def additive_latency(problem: PlacementProblem, placement: np.ndarray) -> float:
    """What a minimum cut minimizes, from its definition: node times, and each tensor once per receiving device."""
    tensors = problem.tensors
    total = float(problem.group_us[np.arange(problem.group_count), placement].sum())
    for tensor, (source, size) in enumerate(zip(tensors.source, tensors.bytes, strict=True)):
        consumers = tensors.consumers[tensors.consumer_ptr[tensor] : tensors.consumer_ptr[tensor + 1]]
        sender = placement[source]
        for receiver in set(placement[consumers].tolist()) - {int(sender)}:
            total += problem.transfer_us[sender, receiver] + problem.transfer_us_per_byte[sender, receiver] * size
            total += problem.tensor_fusion_penalty_us[tensor, receiver]
    return total


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 10**6), nodes=st.integers(3, 11), missing=st.sampled_from([0.0, 0.2]), grouped=st.booleans())
def test_minimum_cut_is_the_optimum_of_two_devices(seed: int, nodes: int, missing: float, grouped: bool) -> None:
    problem = random_problem(seed, nodes=nodes, missing=missing, grouped=grouped)
    placement = MinCut().place(problem)
    result = problem.evaluate(every_placement(problem))
    allowed = np.where(result.infeasible & 2, np.inf, result.latency_us)
    found = problem.evaluate(placement)
    assert found.latency_us[0] == pytest.approx(allowed.min())
    assert found.latency_us[0] == pytest.approx(additive_latency(problem, placement))
    assert not found.infeasible[0] & 2


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), nodes=st.integers(4, 11))
def test_minimum_cut_counts_broken_fusions(seed: int, nodes: int) -> None:
    problem = random_problem(seed, nodes=nodes, fusing=True)
    every = every_placement(problem)
    additive = np.array([additive_latency(problem, placement) for placement in every])
    assert additive_latency(problem, MinCut().place(problem)) == pytest.approx(additive.min())
    # The simulator also sees fusions that HETERO breaks on one device, where submodels would else form a cycle.
    latency = problem.evaluate(every).latency_us
    assert (additive <= latency + 1e-9).all()
    cut_once = problem.evaluate(every).submodels <= 2
    np.testing.assert_allclose(additive[cut_once], latency[cut_once])


def test_minimum_cuts_for_throughput_give_both_devices_the_same_work() -> None:
    """The first device is faster with every branch, and by more from branch to branch."""
    us = [[100.0, 110.0 + 10 * branch] for branch in range(8)]
    problem = problem_of([[0] for _ in us], us, objective="throughput")
    assert not MinCut().place(replace(problem, objective="latency")).any()
    assert problem.scores(MinCut().place(problem))[0] == pytest.approx(problem.scores(every_placement(problem)).min())


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), nodes=st.integers(3, 30), missing=st.sampled_from([0.0, 0.2]))
def test_minimum_cuts_for_throughput_are_no_worse_than_one_for_latency(seed: int, nodes: int, missing: float) -> None:
    problem = random_problem(seed, nodes=nodes, missing=missing, objective="throughput", submodel_us=4.0)
    latency = MinCut().place(replace(problem, objective="latency"))
    assert problem.scores(MinCut().place(problem))[0] <= problem.scores(latency)[0]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_expansion_on_three_devices_is_close_to_the_optimum(seed: int) -> None:
    drawn = random_problem(seed, nodes=8, devices=3)
    # Alike between all devices, and so a metric, which the bound below asks for.
    alike = {name: np.full((3, 3), getattr(drawn, name)[0, 1]) for name in ("transfer_us", "transfer_us_per_byte")}
    problem = replace(drawn, **alike)
    found = problem.evaluate(MinCut().place(problem)).latency_us[0]
    best = problem.evaluate(every_placement(problem)).latency_us.min()
    singles = problem.evaluate(problem.singles).latency_us.min()
    assert best <= found <= singles
    # Two-approximation of alpha-expansion (Boykov et al. 2001), for metric transfers.
    assert found <= 2 * best + 1e-9


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), devices=st.integers(2, 3), objective=st.sampled_from(["latency", "throughput"]))
def test_pipeline_is_at_least_the_best_single_device(seed: int, devices: int, objective: str) -> None:
    problem = random_problem(seed, nodes=20, devices=devices, objective=objective, missing=0.05, submodel_us=1)
    singles = problem.scores(problem.singles)
    assert problem.scores(Contiguous().place(problem))[0] <= singles.min()


def chain(objective: str) -> PlacementProblem:
    """Twenty equal operations one after another on two equal devices, transfers a tenth of one."""
    graph = graph_of([NodeKind.PARAMETER, *[NodeKind.OP] * 20, NodeKind.RESULT], [[], *([k] for k in range(21))])
    work = np.array([0.0, *[10.0] * 20, 0.0])
    return problem_on(graph, np.stack([work, work], axis=1), objective=objective, transfer_us=np.ones((2, 2)), rule=1)


def test_pipeline_halves_a_chain_for_throughput() -> None:
    problem = chain("throughput")
    result = problem.evaluate(Contiguous().place(problem))
    assert result.period_us[0] == pytest.approx(101)
    assert result.submodels[0] == 2


@pytest.mark.parametrize(("share", "expected"), [(0.5, 10), (0.7, 14), (0.9, 18)])
def test_splits_by_node_count(share: float, expected: int) -> None:
    problem = chain("throughput")
    placement = NodeCount(share).place(problem)
    operations = placement[problem.groups][problem.graph.kinds == NodeKind.OP]
    assert operations.tolist() == [0] * expected + [1] * (20 - expected)
    assert NodeCount(share).name == f"nodes-{share}"


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), devices=st.integers(1, 4), share=st.floats(0, 1, allow_subnormal=False))
def test_splits_by_node_count_are_supported(seed: int, devices: int, share: float) -> None:
    problem = random_problem(seed, nodes=25, devices=devices, missing=0.2, grouped=True)
    placement = NodeCount(share).place(problem)
    assert not problem.evaluate(placement).broken[0]


def test_only_groups_that_a_device_does_not_run_go_elsewhere() -> None:
    problem = random_problem(7, nodes=30, devices=3, missing=0.4)
    chosen = np.random.default_rng(7).integers(0, 3, (5, problem.group_count))
    moved = problem.where_supported(chosen)
    everyone = np.arange(problem.group_count)
    runs = problem.group_supported[everyone, chosen]
    assert moved.dtype == np.uint8 and not runs.all() and runs.any()
    assert problem.group_supported[everyone, moved].all()
    np.testing.assert_array_equal(moved[runs], chosen[runs])
    np.testing.assert_array_equal(moved[0], problem.where_supported(chosen[0]))


def test_latency_of_a_chain_stays_on_one_device() -> None:
    problem = chain("latency")
    assert problem.evaluate(Contiguous().place(problem)).submodels[0] == 1
    assert problem.evaluate(MinCut().place(problem)).submodels[0] == 1


def test_hetero_default_fills_the_first_device_that_supports() -> None:
    problem = random_problem(4, nodes=15, missing=0.3)
    placement = HeteroDefault().place(problem)
    np.testing.assert_array_equal(placement == 0, problem.group_supported[:, 0])
    assert not problem.evaluate(placement).infeasible[0] & 2


def test_single_device_is_named_after_its_device() -> None:
    problem = random_problem(4, nodes=15)
    assert SingleDevice("D1").name == "D1"
    assert (SingleDevice("D1").place(problem) == 1).all()


@pytest.mark.parametrize("objective", ["latency", "throughput"])
@pytest.mark.parametrize("devices", [2, 3])
def test_partitions_are_never_worse_than_a_device_alone(objective: str, devices: int) -> None:
    gains = []
    for seed in range(6):
        problem = random_problem(seed, nodes=40, devices=devices, objective=objective, missing=0.1 * (seed % 2))
        placement = Partitions().place(problem)
        singles = problem.scores(problem.singles)
        score = problem.scores(placement)[0]
        assert np.isfinite(score) and score <= singles.min()
        gains.append(singles.min() / score)
        np.testing.assert_array_equal(placement, Partitions().place(problem))
        assert problem.scores(Partitions(refined=0).place(problem))[0] >= score
    assert objective == "latency" or max(gains) > 1.1


def test_partitions_find_room_where_no_device_holds_the_model() -> None:
    problem = random_problem(3, nodes=60, objective="throughput")
    need = problem.evaluate(problem.single(0)).memory_bytes.max()
    small = replace(problem, memory_bytes=np.full(2, int(0.75 * need), np.int64))
    assert np.isfinite(small.scores(Partitions().place(small))[0])


def test_search_cuts_branches_that_are_side_by_side(two_cpu_core: ov.Core) -> None:
    """Embeddings, each a branch: on two equal cores the best known placement cuts an order that no file has."""
    names = ("CPU_A", "CPU_B")
    profile = Profile.of({"version": 1, "devices": {name: {"builtin": "cpu_core"} for name in names}}, "two cores")
    model = ZOO["dlrm"].build()
    problem = build_problem(model, DeviceSet(names), objective="throughput", profile=profile, core=two_cpu_core)
    found = {placer.name: problem.scores(placer.place(problem))[0] for placer in unlearned_placers(problem)}
    assert min(found.values()) < 0.7 * found["CPU_A"]
    assert found["search"] < 1.01 * min(found.values())


def test_registered_placers_have_names_and_phrases_of_their_own() -> None:
    assert len(PHRASES) == len(REGISTERED) == len(set(PHRASES.values()))
    assert {placer.name for placer in tuning_placers()} < PHRASES.keys()


def test_another_search_takes_the_place_of_the_default_one() -> None:
    problem = random_problem(3)
    placers = unlearned_placers(problem, Multilevel(seed=7))
    assert [placer for placer in placers if isinstance(placer, Multilevel)] == [Multilevel(seed=7)]
    assert [placer.name for placer in placers[:3]] == [*problem.devices, "hetero"]
