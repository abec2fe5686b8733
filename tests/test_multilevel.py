"""Multilevel search: never worse than its starts, exact scores, repeatable, better than what it replaces."""

from __future__ import annotations

import dataclasses
import itertools
import time

import numpy as np
import openvino as ov
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ov_hsdag.model.colocation import split_rule
from ov_hsdag.model.graph import NodeKind
from ov_hsdag.placers.contiguous import Contiguous
from ov_hsdag.placers.mincut import MinCut
from ov_hsdag.placers.multilevel import Multilevel, search, search_until_agreed
from ov_hsdag.placers.refine import refine
from ov_hsdag.placers.settings import SearchSettings, search_settings
from ov_hsdag.problem.problem import OBJECTIVES, PlacementProblem, topological_groups
from ov_hsdag.training import corpus
from ov_hsdag.utils.lazy import opset13 as ops
from research.corpus import extract
from research.deepen import deepen, joined
from tests.graphs import every_placement, problem_of, random_problem, searched_problems

FEW = 30_000


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(searched_problems(), st.integers(0, 10_000))
def test_what_holds_for_every_search(problem: PlacementProblem, seed: int) -> None:
    found = search(problem, max_moves=FEW, seed=seed)
    again = search(problem, max_moves=FEW, seed=seed)
    np.testing.assert_array_equal(found.placement, again.placement)
    assert found.score == problem.scores(found.placement)[0]
    starts = problem.random(np.random.default_rng(seed), 2)
    from_starts = search(problem, max_moves=FEW, seed=seed, starts=starts)
    known = np.concatenate([problem.singles, starts])
    assert from_starts.score <= problem.scores(known).min() * (1 + 1e-9)
    assert found.score <= problem.scores(problem.singles).min() * (1 + 1e-9)
    if np.isfinite(found.score):
        assert found.progress[-1, 1] == pytest.approx(found.score)
        assert (np.diff(found.progress[:, 1]) < 0).all()


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_small_problems_are_solved(objective: str) -> None:
    """Against all placements, one by one."""
    for seed in range(12):
        problem = random_problem(seed, nodes=9, devices=2, objective=objective, submodel_us=8.0)
        best = problem.scores(every_placement(problem)).min()
        assert search(problem, max_moves=400_000).score == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_small_problems_in_little_memory_are_solved(objective: str) -> None:
    """Against all placements, one by one, of which few fit."""
    for seed in range(3):
        problem = random_problem(seed, nodes=8, devices=3, objective=objective, submodel_us=8.0)
        every = every_placement(problem)
        result = problem.evaluate(every)
        limit = int(np.quantile(result.memory_bytes[result.infeasible == 0].max(axis=1), 0.05))
        problem = dataclasses.replace(problem, memory_bytes=np.full(3, limit))
        scores = problem.scores(every)
        assert 0 < np.isfinite(scores).mean() < 0.2
        assert search_until_agreed(problem).score == pytest.approx(scores.min(), rel=1e-6)


def layered(layers: int) -> PlacementProblem:
    """The template of a model of equal layers: a matrix product, an activation, and what enters the layer is added."""
    generator = np.random.default_rng(0)
    x = ops.parameter([1, 64, 32], ov.Type.f32, name="x")
    value = ops.tanh(x)
    for number in range(layers):
        weights = ops.constant(generator.standard_normal((32, 32)).astype(np.float32))
        inner = ops.relu(ops.matmul(value, weights, False, False), name=f"relu_{number}")
        value = ops.add(value, ops.softmax(inner, 2), name=f"add_{number}")
    return extract(ov.Model([ops.result(ops.sigmoid(value))], [x], "layers"), split_rule(ov.__version__))


def large(seed: int, devices: int) -> PlacementProblem:
    """A problem of about 800 groups without memory limits."""
    generator = np.random.default_rng(seed)
    template = joined([layered(40), corpus.generated_template(generator, split_rule(ov.__version__)), layered(150)])
    return drawn(template, generator, devices)


def drawn(template: PlacementProblem, seed: int | np.random.Generator, devices: int) -> PlacementProblem:
    """A problem of a template without memory limits."""
    generator = np.random.default_rng(seed)
    for _ in range(50):
        problem = corpus.draw_problem(template, generator, devices)
        if corpus.placeable(problem):
            return dataclasses.replace(problem, memory_bytes=np.full(devices, -1, np.int64))
    raise AssertionError("no problem was drawn in which each group has a device")


def hidden_placement(seed: int, objective: str) -> tuple[PlacementProblem, NDArray[np.uint8]]:
    """A problem of 362 groups on 4 devices, and a placement of it: each device has 2% more memory than that needs.

    The placement consists of parts of the topological order. Devices run half of the other operations only.
    """
    generator = np.random.default_rng(seed)
    problem = dataclasses.replace(drawn(layered(90), seed, 4), objective=objective)
    position = np.empty(problem.group_count, int)
    position[topological_groups(problem)] = np.arange(problem.group_count)
    cuts, order = np.sort(generator.integers(0, problem.group_count, 11)), generator.permutation(4)
    placement = order[np.searchsorted(cuts, position) % 4].astype(np.uint8)
    lacking = generator.random((problem.group_count, 4)) < 0.5
    lacking[np.arange(problem.group_count), placement] = False
    supported = problem.supported & ~lacking[problem.groups]
    supported[np.arange(len(problem.groups)), placement[problem.groups]] = True
    problem = dataclasses.replace(problem, supported=supported)
    needed = problem.evaluate(placement[None]).memory_bytes[0]
    return dataclasses.replace(problem, memory_bytes=(1.02 * needed).astype(np.int64) + 1), placement


@pytest.mark.parametrize(("seed", "objective"), [(1, "throughput"), (3, "latency"), (5, "latency")])
def test_placements_are_found_where_hardly_any_fits(seed: int, objective: str) -> None:
    problem, hidden = hidden_placement(seed, objective)
    assert search_until_agreed(problem).score <= 1.02 * problem.scores(hidden)[0]


@pytest.mark.parametrize("seed", range(4))
def test_it_is_better_than_what_it_replaces(seed: int) -> None:
    """Than minimum cut and contiguous partition with local search from them, by the simulator."""
    problem = large(seed, 2 + seed % 3)
    starts = np.stack([*problem.singles, MinCut().place(problem), Contiguous().place(problem)])
    rival = refine(problem, starts)[1].min()
    assert Multilevel().place(problem).shape == (problem.group_count,)
    assert search(problem).score <= rival * 1.01


def test_starts_of_other_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="placements"):
        search(large(0, 3), starts=np.zeros((1, 3), np.uint8))


def lacking(*missing: str) -> PlacementProblem:
    """A model of 600 layers on devices of which each lacks one type of operation."""
    template = layered(600)
    types = np.array(template.graph.types)
    supported = np.stack([types != kind for kind in missing], axis=1)
    return dataclasses.replace(template, supported=supported)


def test_the_search_is_not_held_up_by_scattered_placements() -> None:
    """What one device lacks in each layer splits it 600 times; few moves are enough to find what does not."""
    problem = lacking("Softmax", "")
    scattered = problem.scores(problem.where_supported(problem.single(0)))[0]
    assert search(problem, max_moves=20_000).score < scattered / 10


def test_work_of_an_evaluation_can_be_limited() -> None:
    problem = lacking("Softmax", "Relu")
    scattered = problem.where_supported(problem.single(0))
    assert not problem.evaluate(scattered).infeasible.any()
    assert problem.evaluate(scattered, most_work=100_000).broken[0]
    assert np.array_equal(
        problem.scores(scattered), problem.evaluate(scattered, most_work=10**12).score(problem.objective)
    )


def test_scattered_placements_are_found_where_there_are_no_others() -> None:
    problem = lacking("Softmax", "Relu")
    scattered = problem.scores(problem.where_supported(problem.singles))
    assert search(problem, max_moves=20_000).score <= scattered.min()


def test_what_no_device_runs_ends_the_search_without_a_placement() -> None:
    """Every start puts it on some device of the list all the same."""
    problem = random_problem(3, nodes=9, devices=2, objective="latency", submodel_us=8.0)
    supported = problem.supported.copy()
    supported[problem.graph.kinds == NodeKind.OP] = False
    problem = dataclasses.replace(problem, supported=supported)
    for found in (search(problem, max_moves=100_000), search_until_agreed(problem)):
        assert np.isinf(found.score) and found.placement.max() < 2


AS_LARGE = {"most_groups": 1, "large_turn": 2, "more_per_group": 1, "most_more": 1}
"""The effort with which all graphs count as large: a turn is two first turns, or one in little memory, of few moves."""


def test_two_searches_of_a_large_graph_go_on_where_one_turn_found_nothing() -> None:
    problem = dataclasses.replace(large(0, 3), objective="throughput")
    moves = 10_000
    once = [search(problem, max_moves=moves, seed=seed, starts=Contiguous().place(problem)).score for seed in range(2)]
    assert once[0] == once[1]
    few: SearchSettings = {"effort": AS_LARGE | {"moves": moves // 2 - problem.group_count, "moves_per_group": 1}}
    assert search_until_agreed(problem, settings=few).score < once[0]


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_searches_of_a_large_graph_go_on_while_no_placement_fits(objective: str) -> None:
    problem, _ = hidden_placement(0, objective)

    def score(turns_over_memory: int) -> float:
        moves = 60_000
        effort = AS_LARGE | {"moves": 1, "moves_per_group": 1}
        effort |= {"moves_in_little_memory": moves, "times_in_little_memory": 1, "most_moves": moves}
        effort |= {"times_in_doubt": 1, "turns_over_memory": turns_over_memory}
        return search_until_agreed(problem, settings={"effort": effort}).score

    assert np.isinf(score(1))
    assert np.isfinite(score(3))


def test_infeasible_partitions_leave_moves_to_the_cycles() -> None:
    types = np.array((template := layered(2500)).graph.types)
    supported = np.stack([types != kind for kind in ("Softmax", "Relu", "")], axis=1)
    problem = dataclasses.replace(drawn(template, 1, 3), supported=supported, objective="throughput")
    few, all_of_them = (
        search(problem, max_moves=3_000_000, settings={"partitions": {"infeasible": most}}) for most in (1, 1000)
    )
    assert few.cycles > all_of_them.cycles
    assert few.score <= all_of_them.score


def test_equal_devices_begin_in_the_order_of_the_list() -> None:
    for seed in range(4):
        problem = large(seed, 3)
        equal = np.array([0, 0, 2])
        problem = dataclasses.replace(
            problem,
            objective="throughput",
            node_us=problem.node_us[:, equal],
            supported=problem.supported[:, equal],
            transfer_us=np.where(np.eye(3, dtype=bool), 0.0, 5.0),
            transfer_us_per_byte=np.where(np.eye(3, dtype=bool), 0.0, 1e-4),
            submodel_us=problem.submodel_us[equal],
        )
        short: SearchSettings = {"effort": {"most_moves": 1_500_000}}
        placement = Multilevel(seed=seed, settings=short).place(problem)
        found = search_until_agreed(problem.canonical.problem, seed=seed, settings=short)  # where `place` searches, too
        assert problem.scores(placement)[0] == pytest.approx(found.score)
        begins = [np.flatnonzero(placement[topological_groups(problem)] == device) for device in range(2)]
        if len(begins[1]):
            assert len(begins[0]) and begins[0][0] < begins[1][0]


def test_searches_that_agree_end_and_others_go_on() -> None:
    """The stated rule: what one more search gains, and what the last turn gained, are below the expected regret."""
    chain = problem_of([[node] for node in range(12)], [[3.0, 5.0]] * 12, objective="latency")
    agreed = search_until_agreed(chain)
    assert agreed.score == every_single(chain)
    effort = {"moves": 20_000, "more_per_group": 1, "most_moves": 640_000}
    gains = []
    for seed in (1, 5, 6):
        hard = dataclasses.replace(large(seed, 2), objective="throughput")
        patient = search_until_agreed(hard, settings={"effort": effort | {"expected_regret": 0.0}})
        hasty = search_until_agreed(hard, settings={"effort": effort | {"expected_regret": 10.0}})
        gains.append(hasty.score / patient.score)
    # More moves find nothing better in some problems, and which these are depends on the last bits of drawn costs.
    assert min(gains) >= 1.0
    assert max(gains) > 1.0


def test_annealing_on_coarse_levels_finds_what_moves_of_single_groups_do_not() -> None:
    hard = dataclasses.replace(large(0, 8), objective="throughput")
    effort = {"moves": 20_000, "more_per_group": 1, "most_moves": 640_000, "times_in_doubt": 1}

    def score(seed: int, coarse: float) -> float:
        return search_until_agreed(hard, seed=seed, settings={"effort": effort, "annealing": {"coarse": coarse}}).score

    gains = [score(seed, 0.0) / score(seed, 0.8) for seed in (0, 10, 20)]
    # 1.064, 1.031 and 1.031, where the last bits of drawn costs have not changed.
    assert np.mean(gains) > 1.015


def test_searches_in_doubt_have_more_moves() -> None:
    """Where one more search would gain much when half of the moves are spent, the number of moves is multiplied."""
    hard = dataclasses.replace(large(5, 3), objective="throughput")

    def cycles(times_in_doubt: int, large_regret: float) -> int:
        effort = {"moves": 20_000, "more_per_group": 1, "most_moves": 160_000}
        doubt = {"times_in_doubt": times_in_doubt, "large_regret": large_regret}
        # Without annealing, most moves are those of cycles, which are counted.
        settings: SearchSettings = {"effort": effort | doubt, "annealing": {"share": 0.0}}
        return search_until_agreed(hard, settings=settings).cycles

    assert cycles(8, 0.0) > 2 * cycles(1, 0.0)
    assert cycles(8, 10.0) == cycles(1, 0.0)


def test_searches_go_on_where_no_placement_fits() -> None:
    """Equal scores of searches are no agreement where they exceed the memory limits: a later placement may fit."""
    problem = dataclasses.replace(large(5, 3), memory_bytes=np.ones(3, np.int64))

    def cycles(most_moves: int) -> int:
        effort = {"moves": 20_000, "more_per_group": 1, "moves_in_little_memory": 20_000, "times_in_little_memory": 1}
        effort |= {"most_moves": most_moves, "times_in_doubt": 1}
        # Without other parts, most moves are those of cycles, which are counted.
        settings: SearchSettings = {
            "effort": effort,
            "annealing": {"share": 0.0},
            "judged_annealing": {"large_share": 0.0},
            "population": {"many_cycles": 1, "seldom_local": 1},
        }
        found = search_until_agreed(problem, settings=settings)
        assert not np.isfinite(found.score)
        return found.cycles

    assert cycles(1_280_000) > 2 * cycles(160_000)


def test_searches_agree_on_a_start_where_they_can_have_tried_every_placement() -> None:
    chain = problem_of([[node] for node in range(3)], [[3.0, 3.0, 3.0]] * 3, objective="throughput")
    cycles = [
        search_until_agreed(chain, settings={"effort": {"most_moves": most}}).cycles for most in (1_000_000, 4_000_000)
    ]
    assert cycles[0] == cycles[1]


def every_single(problem: PlacementProblem) -> float:
    return float(problem.scores(problem.singles).min())


@pytest.mark.parametrize("seed", range(3))
def test_agreed_searches_are_repeatable_on_any_number_of_cores(seed: int) -> None:
    problem = large(seed, 3)
    short: SearchSettings = {"effort": {"moves": 50_000, "more_per_group": 1, "most_moves": 200_000}}
    one, two = (search_until_agreed(problem, seed=seed, threads=threads, settings=short) for threads in (1, 2))
    np.testing.assert_array_equal(one.placement, two.placement)
    np.testing.assert_array_equal(one.elite_scores, two.elite_scores)
    assert (np.diff(one.elite_scores) >= 0).all()


def test_time_is_kept() -> None:
    begin = time.perf_counter()
    found = search(large(6, 3), seconds=0.05)
    assert found.progress[-1, 0] <= 1e3 * (time.perf_counter() - begin)
    begin = time.process_time()
    found = search(large(6, 3), seconds=0.05, processor_time=True)
    assert found.progress[-1, 0] <= 1e3 * (time.process_time() - begin)
    longer = search(large(6, 3), seconds=3600.0, max_moves=5_000_000, processor_time=True)
    assert sum(found.phases.values()) < sum(longer.phases.values())


def test_elites_are_what_was_found() -> None:
    problem = large(3, 3)
    found = search(problem, max_moves=200_000)
    np.testing.assert_array_equal(found.elites[0], found.placement)
    np.testing.assert_allclose(problem.scores(found.elites), found.elite_scores)
    assert (np.diff(found.elite_scores) >= 0).all()
    assert len(np.unique(found.elites, axis=0)) == len(found.elites) > 1


def test_elites_are_not_made_of_one() -> None:
    """What is found takes the place of what it was made of, so that others remain to be searched from."""
    apart = []
    for seed in (1, 2, 3, 6):
        pairs = itertools.combinations(search(large(seed, 2), max_moves=2_000_000).elites, 2)
        apart.append(np.mean([(one != other).mean() for one, other in pairs]))
    assert np.mean(apart) > 0.25


@pytest.mark.parametrize("seed", [6, 10, 12])
def test_eight_devices_are_never_behind_their_best_contiguous_partition(seed: int) -> None:
    """Few places where parts may end do not tell the best order of eight devices: searches begin with the best one."""
    problem = drawn(joined([layered(30), layered(50)]), seed, 8)
    problem = dataclasses.replace(problem, objective="throughput")
    best = problem.scores(Contiguous().place(problem))[0]
    hasty: SearchSettings = {"effort": {"moves": 5_000, "more_per_group": 1, "most_moves": 10_000}}
    assert problem.scores(Multilevel(settings=hasty).place(problem))[0] <= best


def test_each_part_of_a_partition_pays_for_one_submodel() -> None:
    """The cut that balances both parts is found before any move, whatever a submodel costs on each device."""
    length = 40
    for submodel_us in ([1.0, 200.0], [200.0, 1.0], [90.0, 90.0]):
        problem = problem_of(
            [[number] for number in range(length)],
            [[10.0, 10.0]] * length,
            objective="throughput",
            submodel_us=np.array(submodel_us),
        )
        first = np.arange(problem.group_count) < np.arange(problem.group_count + 1)[:, None]
        every = np.concatenate([first, ~first]).astype(np.uint8)
        assert search(problem, max_moves=100).score == pytest.approx(problem.scores(every).min())


def test_layers_are_repeated() -> None:
    template = layered(6)
    for layers in (9, 60):
        real = layered(layers).graph
        deep = deepen(template, int((real.kinds == NodeKind.OP).sum())).graph
        # What is repeated may be several layers.
        assert abs(deep.nodes - real.nodes) <= template.graph.nodes / 2
        assert sorted(set(deep.types)) == sorted(set(real.types))
        assert deep.flops.sum() == pytest.approx(real.flops.sum() * deep.nodes / real.nodes, rel=0.1)
        assert len(set(deep.names)) == deep.nodes
    assert deepen(template, 1) is template


def test_models_follow_each_other() -> None:
    generator = np.random.default_rng(4)
    parts = [layered(2), *(corpus.generated_template(generator, split_rule(ov.__version__)) for _ in range(2))]
    whole = joined(parts)
    assert whole.graph.nodes == sum(part.graph.nodes for part in parts) - 2
    assert whole.evaluate(whole.single(1)).submodels[0] >= 1
    assert (whole.graph.flops.sum()) == pytest.approx(sum(part.graph.flops.sum() for part in parts))


def test_threads_search_with_seeds_of_their_own() -> None:
    problem = large(2, 4)
    alone = [search(problem, max_moves=FEW, seed=seed) for seed in (5, 6, 7)]
    together = search(problem, max_moves=FEW, seed=5, threads=3)
    best = min(alone, key=lambda found: found.score)
    np.testing.assert_array_equal(together.placement, best.placement)
    assert together.score == best.score == problem.scores(together.placement)[0]
    assert Multilevel(seconds=0.05, threads=2).place(problem).shape == (problem.group_count,)


def test_live_tensors_decide_where_parts_may_be() -> None:
    """What fills the fast device's memory are tensors of the first half, so that it gets the second."""
    template = layered(150)
    graph = template.graph
    live = graph.output_bytes * np.where(graph.output_node < graph.nodes // 2, 100, 1)
    problem = dataclasses.replace(
        template,
        objective="throughput",
        node_us=template.node_us * np.array([1.0, 0.7]) + np.array([1.0, 0.7]),
        live_bytes=live,
        memory_bytes=np.array([-1, live.max() + graph.weight_bytes.sum()]),
    )
    found = search(problem, max_moves=20_000)
    assert found.score < problem.scores(problem.single(0))[0] * 0.6


def test_parts_leave_out_what_a_device_lacks() -> None:
    """One device lacks an operation of the first layers, the other one of the last: each has the others' part."""
    template = layered(600)
    types, at = np.array(template.graph.types), np.arange(template.graph.nodes) / template.graph.nodes
    supported = np.stack([(types != "Relu") | (at > 0.3), (types != "Softmax") | (at < 0.7)], axis=1)
    problem = dataclasses.replace(template, supported=supported, objective="throughput")
    order = topological_groups(problem)
    parts = np.ones((len(order) // 8, problem.group_count), np.uint8)
    for number, part in enumerate(parts):
        part[order[8 * number :]] = 0
    assert search(problem, max_moves=10_000).score <= problem.scores(parts).min() * 1.02


def test_settings_are_set_by_name() -> None:
    problem = random_problem(5, nodes=300, devices=2, submodel_us=6.0)
    default, fast, thorough = (search_settings(name) for name in ("default", "fast", "thorough"))
    assert fast["effort"]["moves"] < default["effort"]["moves"] < thorough["effort"]["moves"]
    assert {group: set(numbers) for group, numbers in fast.items()} == {
        group: set(numbers) for group, numbers in default.items()
    }
    changed = search_settings()
    changed["coarsening"]["target"] = 20
    changed["population"]["size"] = 3
    assert search_settings(changed) == search_settings({"coarsening": {"target": 20}, "population": {"size": 3}})
    plain, same, other = (search(problem, max_moves=200_000, settings=one) for one in ("default", default, changed))
    np.testing.assert_array_equal(plain.elites, same.elites)
    assert len(plain.elites) > len(other.elites) and len(other.elites) <= 3
    quick = Multilevel(settings="fast").place(problem)
    assert problem.scores(quick)[0] <= problem.scores(problem.singles).min()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("quick", "expected the preset fast, default or thorough, got 'quick'"),
        ({"moves": {"pases": 3}}, "settings by group and name"),
        ({"coarsening": {"target": 1}}, "at least 2 for 'coarsening.target'"),
        ({"population": {"size": 0}}, "at least 1 for 'population.size'"),
        ({"coarsening": {"noise": float("nan")}}, "at least 0 for 'coarsening.noise'"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: SearchSettings, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        search_settings(wrong)


def test_the_time_of_phases_is_told() -> None:
    problem = random_problem(5, nodes=300, devices=3, submodel_us=6.0)
    begin = time.perf_counter()
    found = search(problem, max_moves=300_000)
    seconds = time.perf_counter() - begin
    assert list(found.phases) == ["coarsen", "place", "refine"] and min(found.phases.values()) > 0
    assert sum(found.phases.values()) <= 1e3 * seconds
