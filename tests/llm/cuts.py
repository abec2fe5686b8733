"""What becomes of a decoder that is cut between its layers: numbers that the tests check and the table shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.devices.runtime_options import compile_properties
from ov_hsdag.model import graph
from ov_hsdag.model.placement import set_affinities
from ov_hsdag.model.workload import decoder_shapes
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.problem.problem import PlacementProblem
from tests.llm.layers import cut, generate, layers

DEVICES = ("CPU_A", "CPU_B", "CPU_C", "CPU_D")
# What is compared is the arithmetic: states in f32, too.
EXACT = {"KV_CACHE_PRECISION": "f32"}
SETS_OF_CUTS = 10

Generated = tuple[list[list[int]], list[NDArray[Any]]]


def problem_of(
    core: ov.Core, model: ov.Model, devices: Sequence[str], shapes: Mapping[str, Sequence[int]] | None = None
) -> PlacementProblem:
    return build_problem(model, DeviceSet(tuple(devices)), core=core, shapes=shapes)


def split(core: ov.Core, model: ov.Model, problem: PlacementProblem, placement: NDArray[np.uint8]) -> ov.CompiledModel:
    copy = model.clone()
    set_affinities(copy, problem.affinity(placement))
    hetero = DeviceSet(problem.devices).hetero
    return core.compile_model(copy, hetero, compile_properties(core, copy, hetero, EXACT))


@dataclass(frozen=True)
class Boundary:
    """One cut into two parts: whether it is feasible, submodels as predicted and as HETERO has them."""

    feasible: bool
    predicted: int
    submodels: int


def boundaries(core: ov.Core, model: ov.Model) -> list[Boundary]:
    """Every boundary between layers."""
    own = model.clone()  # preparing a model changes it
    problem = problem_of(core, own, DEVICES[:2])
    found = []
    for boundary in range(1, int(layers(problem).max()) + 1):
        placement = cut(problem, [boundary], [0, 1])
        compiled = split(core, own, problem, placement)
        found.append(
            Boundary(
                not problem.evaluate(placement).infeasible[0],
                int(problem.summary(placement)["submodels"]),
                int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS")),
            )
        )
    return found


@dataclass(frozen=True)
class RandomCuts:
    """One random set of cuts, and what it computes over a prompt, further tokens, exchanged beams and a reset."""

    devices: int
    predicted: int
    submodels: int
    same_tokens: bool
    difference: float


def random_cuts(core: ov.Core, model: ov.Model, sets: int = SETS_OF_CUTS) -> list[RandomCuts]:
    """Random sets of cuts over two to four devices in any order, against the first device alone."""
    reference = generate(model, core.compile_model(model, DEVICES[0], EXACT))
    random = np.random.default_rng(0)
    models = {count: model.clone() for count in (2, 3, 4)}
    problems = {count: problem_of(core, own, DEVICES[:count]) for count, own in models.items()}
    found = []
    for _ in range(sets):
        count = int(random.integers(2, 5))
        problem = problems[count]
        last = int(layers(problem).max())
        at = sorted((random.permutation(last)[: count - 1] + 1).tolist())
        placement = cut(problem, at, random.permutation(count).tolist())
        compiled = split(core, models[count], problem, placement)
        tokens, logits = generate(model, compiled)
        found.append(
            RandomCuts(
                count,
                int(problem.summary(placement)["submodels"]),
                int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS")),
                tokens == reference[0],
                max(float(np.abs(a - b).max()) for a, b in zip(logits, reference[1], strict=True)),
            )
        )
    return found


def growth(core: ov.Core, model: ov.Model, contexts: tuple[int, int] = (128, 1152)) -> float:
    """Bytes that a further token of context adds to what crosses, one sequence, at the worst boundary."""
    sizes = []
    for context in contexts:
        shapes = decoder_shapes(model, 1, 1, context)
        for port in model.inputs:  # Whisper's
            if port.get_any_name() == "encoder_hidden_states":
                shapes["encoder_hidden_states"] = (1, 100, int(port.get_partial_shape()[2].get_length()))
        # States whose length no input tells have it.
        with mock.patch.object(graph, "UNBOUNDED_DIMENSION", context):
            problem = problem_of(core, model.clone(), DEVICES[:2], shapes)
        sizes.append(
            [crossing_bytes(problem, cut(problem, [at], [0, 1])) for at in range(1, layers(problem).max() + 1)]
        )
    return float(max(b - a for a, b in zip(*sizes, strict=True))) / (contexts[1] - contexts[0])


def crossing_bytes(problem: PlacementProblem, placement: NDArray[np.uint8]) -> int:
    """Of all tensors that cross, each once."""
    model, device = problem.graph, placement[problem.groups]
    crosses = device[model.input_source] != device[model.input_node]
    return int(model.output_bytes[np.unique(model.input_output[crosses])].sum())
