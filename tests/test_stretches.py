"""Stretches: the dynamic program against all sequences of devices and all places."""

from __future__ import annotations

from itertools import combinations_with_replacement, pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ov_hsdag.placers.stretches import all_stretches, best_stretches


def brute_force(
    us: np.ndarray, crossing: tuple[np.ndarray, np.ndarray], transfer: tuple[np.ndarray, np.ndarray],
    submodel_us: np.ndarray, weights: np.ndarray, alive: np.ndarray, room: np.ndarray, throughput: bool,
) -> dict[tuple[int, ...], float]:  # fmt: skip
    """The least value of each sequence of the devices."""
    items, devices = us.shape
    others = max(devices - 1, 1)
    best: dict[tuple[int, ...], float] = {}
    for sequence in permutations(range(devices)):
        for inner in combinations_with_replacement(range(items + 1), devices - 1):
            loads = []
            for device, (begin, end) in zip(sequence, pairwise((0, *inner, items)), strict=True):
                if begin == end:
                    continue
                load = us[begin:end, device].sum() + submodel_us[device]
                for other in range(devices):
                    if other == device:
                        continue
                    ways = [(begin, other, device)] + ([(end, device, other)] if throughput else [])
                    for place, a, b in ways:
                        load += (
                            crossing[0][place] * transfer[0][a, b] + crossing[1][place] * transfer[1][a, b]
                        ) / others
                excess = max(weights[begin:end].sum() + alive[begin:end].max() - room[device], 0.0)
                loads.append(load + 10 * us.sum(axis=0).min() * excess)
            value = max(loads) if throughput else sum(loads)
            best[sequence] = min(best.get(sequence, np.inf), value)
    return best


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    items=st.integers(1, 6),
    devices=st.integers(1, 3),
    throughput=st.booleans(),
    limited=st.booleans(),
)
def test_no_stretches_are_better(seed: int, items: int, devices: int, throughput: bool, limited: bool) -> None:
    generator = np.random.default_rng(seed)
    us = generator.uniform(1, 20, (items, devices))
    crossing = (generator.integers(0, 3, items + 1).astype(float), generator.uniform(0, 9, items + 1))
    for amount in crossing:
        amount[[0, -1]] = 0
    transfer = (generator.uniform(0, 4, (devices, devices)), generator.uniform(0, 1, (devices, devices)))
    submodel_us = generator.uniform(0, 3, devices)
    weights = 0.7 * generator.dirichlet(np.ones(items))
    alive = generator.uniform(0, 0.3, items)
    room = generator.uniform(0.3, 1.0, devices) if limited else np.full(devices, np.inf)
    arguments = (us, crossing, transfer, submodel_us, weights, alive, room, throughput)
    every, expected = all_stretches(*arguments), brute_force(*arguments)
    for item in every:
        assert item.value == pytest.approx(expected[tuple(np.argsort(item.turn).tolist())])
    found = best_stretches(devices, every)
    listed, least = expected[tuple(range(devices))], min(expected.values())
    assert found.value == pytest.approx(listed if listed <= 1.05 * least else least)
    # The stretches tile the order in their sequence, and the value is theirs.
    sequence = np.argsort(found.turn)
    bounds = [0, *(int(found.end[device]) for device in sequence)]
    assert bounds[-1] == items
    assert [int(found.begin[device]) for device in sequence] == bounds[:-1]


def test_long_orders_end_stretches_where_little_crosses() -> None:
    items = 1000
    crossing = np.full(items + 1, 1e6)
    crossing[::7] = 1.0
    crossing[[0, -1]] = 0
    found, *_ = all_stretches(
        np.ones((items, 2)),
        (np.ones(items + 1), crossing),
        (np.zeros((2, 2)), np.ones((2, 2))),
        np.zeros(2),
        np.full(items, 1 / items),
        np.zeros(items),
        np.full(2, np.inf),
        True,
    )
    assert found.begin[1] % 7 == 0
    assert found.value == pytest.approx(500, abs=15)
