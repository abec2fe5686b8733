"""Decoders as optimum-intel exports them, cut between layers, on real HETERO."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.devices.runtime_options import compile_properties
from ov_hsdag.model.placement import set_affinities
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.problem.problem import PlacementProblem
from tests.llm.conftest import DEVICES
from tests.llm.families import LAYERS
from tests.llm.layers import cut, generate, layers

# What is compared is the arithmetic: states in f32, too.
EXACT = {"KV_CACHE_PRECISION": "f32"}
SETS_OF_CUTS = 10


@pytest.fixture
def reference(core: ov.Core, exported: ov.Model) -> tuple[list[list[int]], list[NDArray[Any]]]:
    return generate(exported, core.compile_model(exported, DEVICES[0], EXACT))


def problem_of(core: ov.Core, model: ov.Model, devices: tuple[str, ...]) -> PlacementProblem:
    return build_problem(model, DeviceSet(devices), core=core)


def split(core: ov.Core, model: ov.Model, problem: PlacementProblem, placement: NDArray[np.uint8]) -> ov.CompiledModel:
    copy = model.clone()
    set_affinities(copy, problem.affinity(placement))
    hetero = DeviceSet(problem.devices).hetero
    return core.compile_model(copy, hetero, compile_properties(core, copy, hetero, EXACT))


def test_every_boundary_between_layers_can_be_cut(core: ov.Core, exported: ov.Model) -> None:
    problem = problem_of(core, exported, DEVICES[:2])
    last = int(layers(problem).max())
    assert last == LAYERS - 1
    for boundary in range(1, last + 1):
        placement = cut(problem, [boundary], [0, 1])
        assert problem.evaluate(placement).infeasible[0] == 0
        assert problem.summary(placement)["submodels"] == 2
        compiled = split(core, exported, problem, placement)
        assert compiled.get_property("HETERO_NUMBER_OF_SUBMODELS") == 2


def test_any_cuts_compute_what_one_device_does(
    core: ov.Core, exported: ov.Model, reference: tuple[list[list[int]], list[NDArray[Any]]]
) -> None:
    random = np.random.default_rng(0)
    models = {count: exported.clone() for count in (2, 3, 4)}  # preparing a model changes it
    problems = {count: problem_of(core, model, DEVICES[:count]) for count, model in models.items()}
    for _ in range(SETS_OF_CUTS):
        count = int(random.integers(2, 5))
        problem = problems[count]
        last = int(layers(problem).max())
        boundaries = sorted((random.permutation(last)[: count - 1] + 1).tolist())
        placement = cut(problem, boundaries, random.permutation(count).tolist())
        compiled = split(core, models[count], problem, placement)
        assert compiled.get_property("HETERO_NUMBER_OF_SUBMODELS") == count
        tokens, logits = generate(exported, compiled)
        assert tokens == reference[0]
        for own, other in zip(logits, reference[1], strict=True):
            np.testing.assert_allclose(own, other, atol=1e-3)
