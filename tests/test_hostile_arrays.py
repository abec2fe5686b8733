"""Arrays that the native core cannot work on raise, and never make it read what is not there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ov_hsdag import _native
from tests.graphs import random_graph, random_problem


def test_a_node_without_outputs_computes_no_open_length() -> None:
    """Reading the rank of its first output would be beyond the end."""
    graph = _native.Graph(
        np.array([1, 0], np.uint8),
        np.array([0, 0, 1], np.int32),
        np.array([0], np.int32),
        np.array([0, 1, 1], np.int32),
        np.array([4], np.int64),
        np.zeros(2, np.int64),
    )
    flags, ranks = np.ones(1, np.uint8), np.ones(1, np.int16)
    for kind in ("Concat", "Gather", "Range", "Squeeze", "Subtract"):
        known = _native.Legality(
            graph, ["Parameter", kind], ["", ""], flags, np.zeros(2, np.uint8), ranks, np.array([0, 1], np.int32),
            np.array([3], np.int64),
        )  # fmt: skip
        assert len(known.groups) == 2


def test_no_graph_is_no_graph() -> None:
    empty = np.zeros(0, np.int32)
    with pytest.raises(TypeError):
        _native.Legality(None, [], [], empty, empty, empty, np.zeros(1, np.int32), empty)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [-1, 2**31 - 1, 100])
def test_coarse_groups_that_are_none_are_refused(number: int) -> None:
    problem = random_problem(np.random.default_rng(1), nodes=9)
    coarse = np.zeros(problem.group_count, np.int32)
    coarse[-1] = number
    with pytest.raises(ValueError, match="coarse group numbers"):
        _native.SearchSpace(problem.native, coarse)


def test_costs_without_an_order_are_refused() -> None:
    problem = random_problem(np.random.default_rng(1), nodes=9)
    for name in ("node_us", "transfer_us", "transfer_us_per_byte", "submodel_us"):
        odd = getattr(problem, name).copy()
        odd.reshape(-1)[0] = np.nan
        with pytest.raises(ValueError, match=f"expected no NaN in '{name}'"):
            _ = replace(problem, **{name: odd}).native


@pytest.mark.parametrize("size", [-1, 2**62])
def test_sizes_whose_sums_have_no_end_are_refused(size: int) -> None:
    graph = random_graph(np.random.default_rng(1), 8)
    for name in ("output_bytes", "weight_bytes"):
        with pytest.raises(ValueError, match=f"sizes in bytes that a machine can have in '{name}'"):
            _ = replace(graph, **{name: np.full(len(getattr(graph, name)), size, np.int64)}).native


def test_groups_with_gaps_are_refused() -> None:
    """Refining coarse groups of such read beyond the end of an array."""
    problem = random_problem(np.random.default_rng(1), nodes=9)
    with pytest.raises(ValueError, match="dense numbers in 'groups'"):
        _ = replace(problem, groups=np.where(problem.groups == 1, 0, problem.groups).astype(np.int32)).native


def test_a_graph_without_nodes_is_no_problem() -> None:
    """A search of it would never end."""
    none, one = np.zeros(0, np.int32), np.zeros((1, 1))
    graph = _native.Graph(none, [0], none, [0], none, none)
    rows = np.zeros((0, 1))
    with pytest.raises(ValueError, match="a graph with nodes"):
        _native.Problem(
            graph, node_us=rows, supported=rows, groups=none, transfer_us=one, transfer_us_per_byte=one,
            submodel_us=[1.0], memory_bytes=[-1], same_submodel=np.zeros((0, 2)), fused_with=rows,
            fusion_penalty_us=rows, moved_bytes=none, held_bytes=rows, live_bytes=none, transfer_share=[1.0], rule=1,
        )  # fmt: skip


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, 1e305])
@pytest.mark.parametrize("array", [0, 1])
@pytest.mark.parametrize("skip", [False, True])
def test_parts_of_the_order_take_finite_times(odd: float, array: int, skip: bool) -> None:
    """libFuzzer: the difference of two infinite times is NaN, and no part was found where one was looked up."""
    work, fixed, blocked = np.arange(6.0).reshape(2, 3), np.ones(2), np.zeros((2, 2), np.uint8)
    (work, fixed)[array].reshape(-1)[-1] = odd
    with pytest.raises(ValueError, match="finite times"):
        _native.contiguous_partitions(
            np.array([0, 1], np.int32), True, separable=(work, fixed, blocked), skip=skip, sequences=3
        )


@pytest.mark.parametrize("odd", [np.nan, -np.inf])
def test_costs_of_parts_are_numbers(odd: float) -> None:
    kind, span = np.array([0, 1], np.int32), np.ones((2, 3, 3))
    separable = (np.arange(6.0).reshape(2, 3), np.ones(2), np.zeros((2, 2), np.uint8))
    bad, good = np.full((2, 2, 3), odd), np.zeros((2, 2, 3))
    for arguments in ({"separable": separable, "links": (bad, good)}, {"separable": separable, "links": (good, bad)}):
        with pytest.raises(ValueError, match="no NaN"):
            _native.contiguous_partitions(kind, True, **arguments)
    span[0, 0, 1] = odd
    with pytest.raises(ValueError, match="no NaN"):
        _native.contiguous_partitions(kind, True, span=span)
