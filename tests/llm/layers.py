"""Placements of exported decoders layer by layer, and what they compute."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ov_hsdag.model.graph import NodeKind
from ov_hsdag.model.steps import StatefulInputs
from ov_hsdag.model.workload import TOKENS
from ov_hsdag.problem.problem import PlacementProblem

FURTHER = 8
"""Tokens after the prompt."""

# Weights as exports name them, "self.model.layers.3.self_attn.q_proj.weight", and what multiplies by them,
# "__module.transformer.h.3.attn.c_attn/aten::addmm/MatMul". Names of other operations tell less: a function that all
# layers call (the scan of a Mamba) has the name of the last one's.
_LAYER = re.compile(r"^(?:self|__module)\..*\.(?:layers|h|blocks)\.(\d+)\.")


def layers(problem: PlacementProblem) -> NDArray[np.int64]:
    """Finds the layer of a decoder that each group of nodes belongs to.

    Returns:
        int64 [groups], from 0: the last layer among those of the group's weights and of all that it depends on.
    """
    graph = problem.graph
    of_group = np.zeros(problem.group_count, np.int64)
    for node, name in enumerate(graph.names):
        found = _LAYER.search(name)
        weight = graph.kinds[node] == NodeKind.CONSTANT and name.startswith("self")
        if found and (weight or graph.types[node] == "MatMul"):
            group = problem.groups[node]
            of_group[group] = max(of_group[group], int(found[1]))
    source, target = problem.groups[graph.input_source], problem.groups[graph.input_node]
    while True:
        before = of_group.copy()
        np.maximum.at(of_group, target, of_group[source])
        if np.array_equal(before, of_group):
            return of_group


def cut(problem: PlacementProblem, boundaries: Sequence[int], devices: Sequence[int]) -> NDArray[np.uint8]:
    """Cuts a decoder into parts of successive layers.

    Args:
        problem: of the decoder.
        boundaries: layers that begin a part, ascending, without the first part's.
        devices: device number of each part, one more than `boundaries`.

    Returns:
        Device number of each group, uint8 [groups].
    """
    part = np.searchsorted(np.asarray(boundaries), layers(problem), side="right")
    return np.asarray(devices, np.uint8)[part]


def generate(model: ov.Model, compiled: ov.CompiledModel) -> tuple[list[list[int]], list[NDArray[Any]]]:
    """Runs a decoder with two sequences on two conversations: a prompt and further tokens, with beams exchanged.

    Models that take embeddings get made-up ones for their tokens. States are reset before the second prompt.

    Args:
        model: the decoder, which tells the inputs.
        compiled: the same, compiled.

    Returns:
        Of each inference the greedy tokens, and the logits of the last position, [sequences, vocabulary].
    """
    tokens_at = next(number for number, port in enumerate(model.inputs) if port.get_names() & set(TOKENS))
    request = compiled.create_infer_request()
    tokens: list[list[int]] = []
    logits: list[NDArray[Any]] = []
    for seed in range(2):
        for number, step in enumerate(StatefulInputs(model, sequences=2).conversation(seed, FURTHER)):
            if number and step[tokens_at].ndim == 2:
                step[tokens_at] = np.array(tokens[-1], step[tokens_at].dtype)[:, None]
            request.infer(step)
            logits.append(request.get_output_tensor(0).data[:, -1].copy())
            tokens.append(logits[-1].argmax(-1).tolist())
        request.reset_state()
    return tokens, logits
