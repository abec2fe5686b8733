"""The list of the cost model's terms, and what follows it."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from ov_hsdag.costs import cost_model
from ov_hsdag.costs.profile import builtin_names, load_builtin
from ov_hsdag.costs.terms import BOUNDARY_TERMS, NODE_TERMS, PARTS, TERMS, no_costs
from ov_hsdag.explaining.explanation import Parts
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.training.corpus import named_devices
from tests.graphs import random_problem


def test_a_problem_has_a_field_for_each_term() -> None:
    known = {attribute.name: attribute for attribute in fields(PlacementProblem)}
    for term in TERMS:
        attribute = known[term.name]
        assert attribute.metadata["axes"] == term.axes and (attribute.default is None) == term.optional
    assert {*NODE_TERMS, *BOUNDARY_TERMS} == set(TERMS)


def test_the_profile_gives_each_term_an_estimate() -> None:
    problem = random_problem(1)
    names, profile = named_devices([load_builtin(stem) for stem in builtin_names()[:2]])
    costs = cost_model.all_costs(profile, problem.graph, names)
    sizes = {"nodes": problem.graph.nodes, "devices": 2}
    assert costs.keys() == {term.name for term in TERMS}
    for term in TERMS:
        assert costs[term.name].shape == tuple(sizes[axis] for axis in term.axes)
        assert costs[term.name].dtype == term.dtype
    assert cost_model.boundary_costs(profile, names).keys() == {term.name for term in BOUNDARY_TERMS}


def test_parts_of_a_breakdown_are_those_of_the_list() -> None:
    problem = random_problem(2)
    assert problem.breakdown(problem.singles).latency_us.shape[1] == len(PARTS)
    assert [attribute.name for attribute in fields(Parts)] == list(PARTS)
    assert {term.part for term in TERMS} == set(PARTS)


def test_a_factor_multiplies_the_times_of_its_part_and_that_part_of_the_latency() -> None:
    problem = random_problem(3, submodel_us=2.0, fusing=True)
    placements = problem.random(np.random.default_rng(0), 5)
    before = problem.breakdown(placements).latency_us
    for number, part in enumerate(PARTS):
        scaled = problem.with_scaled_costs({part: 2.0})
        assert scaled.fused_with is problem.fused_with
        expected = before * np.where(np.arange(len(PARTS)) == number, 2.0, 1.0)
        np.testing.assert_allclose(scaled.breakdown(placements).latency_us, expected)


def test_terms_that_a_problem_lacks_stay_absent() -> None:
    problem = replace(random_problem(4), fused_with=None, fusion_penalty_us=None)
    assert problem.with_scaled_costs({"fusions": 2.0}).fusion_penalty_us is None
    assert problem.costs_of(TERMS).keys() == no_costs(1, 1).keys()
