"""Cuts decoders into parts on several devices, runs them, and returns the numbers that tests check.

A boundary is the number of a layer that begins a part. Placements are uint8 [groups], a device number for each group.
"""

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
from ov_hsdag.model import shapes as model_shapes
from ov_hsdag.model.affinities import set_affinities
from ov_hsdag.model.workload import decoder_shapes
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.problem.problem import PlacementProblem, topological_groups
from tests.llm.layers import cut, generate, layers

DEVICES = ("CPU_A", "CPU_B", "CPU_C", "CPU_D")
# What is compared is the arithmetic: states in f32, too.
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
SETS_OF_CUTS = 10

Generated = tuple[list[list[int]], list[NDArray[Any]]]


def problem_of(
    core: ov.Core, model: ov.Model, devices: Sequence[str], shapes: Mapping[str, Sequence[int]] | None = None
) -> PlacementProblem:
    """Prepares a model, in place, and makes its problem on devices. shapes: example shapes by input name."""
    return build_problem(model, DeviceSet(tuple(devices)), core=core, shapes=shapes)


def split(core: ov.Core, model: ov.Model, problem: PlacementProblem, placement: NDArray[np.uint8]) -> ov.CompiledModel:
    """Compiles a copy of a prepared model on HETERO with a placement, in f32."""
    copy = model.clone()
    set_affinities(copy, problem.affinity(placement))
    hetero = DeviceSet(problem.devices).hetero
    return core.compile_model(copy, hetero, compile_properties(core, copy, hetero, EXACT))


@dataclass(frozen=True)
class Boundary:
    """One cut of a decoder into two parts.

    Attributes:
        feasible: whether the problem finds the placement feasible.
        predicted: number of submodels that the problem predicts.
        submodels: number of submodels that HETERO made.
    """

    feasible: bool
    predicted: int
    submodels: int


def boundaries(core: ov.Core, model: ov.Model) -> list[Boundary]:
    """Cuts a decoder in two at each boundary between layers, and compiles it."""
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
class Computed:
    """One set of cuts of a decoder, and what it computes over a prompt, further tokens, exchanged beams and a reset.

    Attributes:
        feasible: whether the problem finds the placement feasible.
        parts: number of parts that the cuts make.
        predicted: number of submodels that the problem predicts.
        submodels: number of submodels that HETERO made.
        same_tokens: whether the greedy tokens are those of the references.
        difference: largest difference from the logits of the references; NaN where a logit is.
    """

    feasible: bool
    parts: int
    predicted: int
    submodels: int
    same_tokens: bool
    difference: float

    @property
    def good(self) -> bool:
        """Whether the parts are as predicted and give the tokens of one device."""
        return self.feasible and self.predicted == self.submodels == self.parts and self.same_tokens


def computed(
    core: ov.Core,
    model: ov.Model,
    problem: PlacementProblem,
    placement: NDArray[np.uint8],
    parts: int,
    references: Sequence[Generated],
) -> Computed:
    """Runs a prepared model with a placement, and compares it with runs on single devices.

    Args:
        core: has the devices.
        model: the prepared model.
        problem: its problem.
        placement: the placement.
        parts: number of parts that the placement makes.
        references: results of `generate` on single devices.
    """
    compiled = split(core, model, problem, placement)
    tokens, logits = generate(model, compiled)
    return Computed(
        not problem.evaluate(placement).infeasible[0],
        parts,
        int(problem.summary(placement)["submodels"]),
        int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS")),
        all(tokens == expected for expected, _ in references),
        largest_difference(logits, [expected for _, expected in references]),
    )


def largest_difference(logits: list[NDArray[Any]], references: Sequence[list[NDArray[Any]]]) -> float:
    """Returns the largest difference of logits from references, over all steps; NaN where any logit is NaN."""
    return float(np.max([np.abs(a - b).max() for one in references for a, b in zip(logits, one, strict=True)]))


def random_cuts(core: ov.Core, model: ov.Model, sets: int = SETS_OF_CUTS) -> list[Computed]:
    """Runs a decoder with random cuts over two to four devices in random order.

    sets: number of runs. Each is compared with a run of the model on the first device alone.
    """
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
        found.append(computed(core, models[count], problem, placement, count, [reference]))
    return found


def random_placements(core: ov.Core, model: ov.Model, count: int = 6) -> list[tuple[bool, float]]:
    """Runs a decoder in random contiguous partitions over two devices, which are cut anywhere, also inside layers.

    Args:
        core: has the devices.
        model: the decoder.
        count: the most partitions to run; infeasible ones are not counted.

    Returns:
        For each partition, whether its greedy tokens are those of the first device alone, and the largest difference
        of its logits.
    """
    tokens, expected = generate(model, core.compile_model(model, DEVICES[0], EXACT))
    own = model.clone()
    problem = problem_of(core, own, DEVICES[:2])
    order, random = topological_groups(problem), np.random.default_rng(1)
    found: list[tuple[bool, float]] = []
    for first in random.permutation(np.arange(1, len(order))).tolist():
        placement = np.zeros(len(order), np.uint8)
        placement[order[first:]] = 1
        if not problem.evaluate(placement).infeasible[0]:
            other, logits = generate(own, split(core, own, problem, placement))
            found.append((other == tokens, largest_difference(logits, [expected])))
        if len(found) == count:
            break
    return found


def growth(core: ov.Core, model: ov.Model, contexts: tuple[int, int] = (128, 1152)) -> float:
    """Computes how many bytes each further token of context adds to the tensors that cross, at the worst boundary.

    contexts: two numbers of tokens to compare, of one sequence.
    """
    sizes = []
    for context in contexts:
        shapes = decoder_shapes(model, 1, 1, context)
        for port in model.inputs:  # Whisper's
            if port.get_any_name() == "encoder_hidden_states":
                shapes["encoder_hidden_states"] = (1, 100, int(port.get_partial_shape()[2].get_length()))
        # States whose length no input tells have it.
        with mock.patch.object(model_shapes, "UNBOUNDED_DIMENSION", context):
            problem = problem_of(core, model.clone(), DEVICES[:2], shapes)
        sizes.append(
            [crossing_bytes(problem, cut(problem, [at], [0, 1])) for at in range(1, layers(problem).max() + 1)]
        )
    return float(max(b - a for a, b in zip(*sizes, strict=True))) / (contexts[1] - contexts[0])


def crossing_bytes(problem: PlacementProblem, placement: NDArray[np.uint8]) -> int:
    """Adds up the bytes of all tensors that cross between devices, each once."""
    model, device = problem.graph, placement[problem.groups]
    crosses = device[model.input_source] != device[model.input_node]
    return int(model.output_bytes[np.unique(model.input_output[crosses])].sum())
