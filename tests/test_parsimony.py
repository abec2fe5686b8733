"""A placement with more submodels is chosen only where its predicted gain is worth them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import openvino as ov
import pytest

from ov_hsdag.model.colocation import split_rule
from ov_hsdag.placers.multilevel import Multilevel
from ov_hsdag.placing.candidates import (
    MARGIN,
    NamedPlacement,
    best_by_prediction,
    find_candidates,
    required_gain,
    why_not_taken,
)
from ov_hsdag.placing.reasons import margin_that_decides
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.training.corpus import assemble
from research.corpus import device_set, extract
from tests.decoders import stateful_decoder
from tests.graphs import problem_of


def chain_of_six(gain: float) -> tuple[PlacementProblem, list[NamedPlacement]]:
    """Six operations in a row on two equal devices, and placements in two and in six submodels.

    gain: of the six submodels over the two, about: the first two operations take longer, and are on one device or two.
    """
    usual = 1e6
    more = 3 * usual * gain / (1 - gain)
    us = [usual + more] * 2 + [usual] * 4
    problem = problem_of([[node] for node in range(6)], [[one, one] for one in us], objective="throughput")
    halves, turns = np.array([0, 0, 0, 0, 1, 1, 1], np.uint8), np.array([0, 0, 1, 0, 1, 0, 1], np.uint8)
    assert problem.evaluate(np.stack([halves, turns])).submodels.tolist() == [2, 6]
    return problem, [NamedPlacement("pipeline", halves), NamedPlacement("search", turns)]


def short_last(gain: float) -> tuple[PlacementProblem, list[NamedPlacement]]:
    """Two operations, of which the second gains so much on the second device, and placements on one and both."""
    problem = problem_of([[0], [1]], [[1e6, 5e6], [1e6 * gain, 9e5]], objective="throughput")
    whole, split = problem.single(0), np.array([0, 0, 1], np.uint8)
    return problem, [NamedPlacement("D0", whole), NamedPlacement("search", split)]


def test_what_has_to_be_gained_grows_with_submodels_and_with_the_prediction_error() -> None:
    assert required_gain(1, 1, calibrated=False) == required_gain(2, 6, calibrated=False) == MARGIN
    for calibrated, error in ((True, 0.05), (False, 0.14)):
        gains = [required_gain(submodels, 1, calibrated=calibrated) for submodels in (1, 2, 4, 8)]
        assert np.diff(gains) == pytest.approx([0.1 * error] * 3)
    assert required_gain(6, 2, calibrated=True) < required_gain(6, 2, calibrated=False)


@pytest.mark.parametrize(("gain", "calibrated", "taken"), [
    (0.005, True, False), (0.005, False, False), (0.02, True, True), (0.02, False, False), (0.03, False, True)
])  # fmt: skip
def test_six_submodels_have_to_be_worth_more_than_two(gain: float, calibrated: bool, taken: bool) -> None:
    problem, candidates = chain_of_six(gain)
    for order in (candidates, candidates[::-1]):  # which placer found it says nothing
        assert best_by_prediction(problem, order, calibrated=calibrated).name == ("search" if taken else "pipeline")


@pytest.mark.parametrize(("gain", "calibrated", "taken"), [
    (0.007, True, False), (0.015, True, True), (0.015, False, False), (0.03, False, True)
])  # fmt: skip
def test_one_cut_is_made_where_it_gains_three_percent(gain: float, calibrated: bool, taken: bool) -> None:
    problem, candidates = short_last(gain)
    assert best_by_prediction(problem, candidates, calibrated=calibrated).name == ("search" if taken else "D0")


def test_what_is_not_taken_is_said() -> None:
    problem, candidates = chain_of_six(0.005)
    chosen = best_by_prediction(problem, candidates)
    assert why_not_taken(problem, candidates, chosen) == {"search": "6 submodels for 0.5%: not taken"}
    assert why_not_taken(problem, candidates, candidates[1]) == {}


def test_what_submodels_have_to_gain_is_said_where_a_device_is_chosen() -> None:
    problem, candidates = short_last(0.015)
    told = margin_that_decides(candidates[0], problem, candidates, calibrated=False)
    assert told == "search is predicted 1.50% better and not taken: 2 submodels instead of 1 have to gain 1.9%"


def test_a_decoder_in_little_memory_is_not_cut_to_pieces_for_some_percent() -> None:
    """Multi-query attention; each of two unlike devices holds 0.6 of the weights and states."""
    template = extract(stateful_decoder(6, heads=4, shared=1, size=64), split_rule(ov.__version__))
    names, profile = device_set(("cpu_core_amx", "cpu_core"))
    unlimited = np.full(2, -1, np.int64)
    problem = assemble(template, names, profile, "throughput", unlimited)
    problem = replace(problem, live_bytes=np.zeros(problem.graph.outputs, np.int64))
    needs = problem.evaluate(problem.singles).memory_bytes.max(axis=0)
    problem = replace(problem, memory_bytes=(0.6 * needs).astype(np.int64))
    candidates = find_candidates(problem, [], search=Multilevel(settings="fast"))
    evaluation = problem.evaluate(np.stack([candidate.placement for candidate in candidates]))
    best = int(evaluation.score("throughput").argmin())
    chosen = best_by_prediction(problem, candidates)
    assert evaluation.submodels[best] > 5 and problem.evaluate(chosen.placement).submodels == 2
    note = why_not_taken(problem, candidates, chosen)[candidates[best].name]
    assert note.startswith(f"{evaluation.submodels[best]} submodels for 3.") and note.endswith("%: not taken")
