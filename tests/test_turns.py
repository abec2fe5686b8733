"""Placements in which devices take turns."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ov_hsdag.placers import turns
from ov_hsdag.placers.turns import Turns
from ov_hsdag.problem.coarse import CoarseView
from tests.graphs import random_problem


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), devices=st.integers(2, 4), throughput=st.booleans())
def test_devices_in_turn_are_supported_and_contiguous(seed: int, devices: int, throughput: bool) -> None:
    objective = "throughput" if throughput else "latency"
    problem = random_problem(seed, nodes=30, devices=devices, objective=objective, missing=0.1, grouped=True)
    placements = Turns.of(problem).placements((1.0, 0.5), 2, orders=3, seed=seed)
    assert placements.shape == ((1 + 3) * 2 * 2, problem.group_count) and placements.dtype == np.uint8
    assert problem.group_supported[np.arange(problem.group_count), placements].all()
    everywhere = dataclasses.replace(problem, supported=np.ones_like(problem.supported))
    first = Turns.of(everywhere).placements((1.0,), 1)[0]
    order = np.argsort(CoarseView.of(everywhere).position[everywhere.coarse], kind="stable")
    changes = np.flatnonzero(np.diff(first[order]))
    assert len(changes) < devices


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_orders_branch_by_branch_are_topological(seed: int) -> None:
    view = CoarseView.of(random_problem(seed, nodes=40))
    position = turns._branch_by_branch(view, np.random.default_rng(seed))
    assert sorted(position.tolist()) == list(range(view.size))
    assert (position[view.edge_index[0]] < position[view.edge_index[1]]).all()
