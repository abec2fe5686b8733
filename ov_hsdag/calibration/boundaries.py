"""Measures partition boundaries (calls, tensors, bytes and layouts) with purpose-built models on HETERO.

A boundary is where one submodel ends and another begins. Its costs are the call of a submodel, a fixed time for each
tensor, a time for each byte, and for images a time for rewriting the tensor between a device's own layout and the plain
one.

A model is a chain of small operations with large tensors between them. It is cut at every large tensor, with the two
devices alternating. The sum of the times of two splits, with each device first, minus the times of the model on each
device alone, cancels the operations: the rest is the cost of the boundaries. Tensors of tokens are handed over as they
are; tensors of images are rewritten from the layout of convolutions.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from ov_hsdag.calibration.executions import CompiledModels, Counters, Executions
from ov_hsdag.calibration.models import Builder
from ov_hsdag.calibration.regression import fit_costs
from ov_hsdag.model.affinities import set_affinities
from ov_hsdag.model.graph import ComputationGraph, Floats
from ov_hsdag.model.inputs import TimedInputs
from ov_hsdag.utils.lazy import ov

# Channels of the small tensors, and number of large tensors of a chain, enough to be visible in its time.
_NARROW, _BOUNDARIES = 16, 8

# [rows, columns] of large tensors on tokens, [channels, side] of large tensors of images.
_TOKENS = ((16, 32), (128, 256), (128, 768), (256, 1536))
_IMAGES = ((32, 7), (256, 14), (64, 56), (128, 56), (256, 56))

# Rounds of measuring a chain, of which the median counts.
_ROUNDS = 9


@dataclass(frozen=True, eq=False)
class Boundaries:
    """Costs of partition boundaries."""

    submodel_us: Floats  # time to call a submodel on each device, µs, float64 [devices]
    tensor_us: Floats  # fixed time of a tensor from the row's device to the column's, µs, float64 [devices, devices]
    us_per_byte: Floats  # time per byte of a plain tensor from row to column, µs, float64 [devices, devices]
    # time per byte of rewriting a tensor between a device's own layout and the plain one, in either direction, µs,
    # float64 [devices]; 0 where a device has no own layout
    layout_us_per_byte: Floats
    error: float  # median relative error of the measured boundaries


def measure_boundaries(
    core: ov.Core, names: Sequence[str], advance: Callable[[str], None] = lambda _: None
) -> Boundaries:
    """Measures the boundaries between all pairs of two or more devices.

    Costs of a single device (submodels, layouts) are medians over its pairs.

    Args:
        core: the Core.
        names: names of the devices.
        advance: called with a line of progress before each chain.

    Returns:
        The costs of the boundaries.

    Raises:
        RuntimeError: a device or HETERO fails.
    """
    submodel: list[list[float]] = [[] for _ in names]
    layout: list[list[float]] = [[] for _ in names]
    tensor_us, us_per_byte = np.zeros((2, len(names), len(names)))
    errors = []
    for pair in combinations(range(len(names)), 2):
        costs, error = _measure_pair(core, (names[pair[0]], names[pair[1]]), advance)
        for device, of_layout in zip(pair, costs[3:], strict=True):
            submodel[device].append(costs[0])
            layout[device].append(of_layout)
        tensor_us[pair], us_per_byte[pair] = costs[1], costs[2]
        errors.append(error)
    return Boundaries(
        np.array([statistics.median(values) for values in submodel]),
        tensor_us + tensor_us.T,
        us_per_byte + us_per_byte.T,
        np.array([statistics.median(values) for values in layout]),
        statistics.median(errors),
    )


def _measure_pair(
    core: ov.Core, names: tuple[str, str], advance: Callable[[str], None]
) -> tuple[tuple[float, ...], float]:
    """Measures the boundaries between two devices with several chains, and fits costs to them.

    Args:
        core: the Core.
        names: names of the two devices.
        advance: called with a line of progress before each chain.

    Returns:
        costs: µs of a submodel's call, of a tensor, of a byte, and of rewriting a byte's layout on the first and on the
            second device. The first three are means over the two devices, or directions.
        error: median relative error of the chains' extra times.
    """
    rows, extra, weights = [], [], []
    # µs and bytes of conversions: [image, device].
    converted, handed = np.zeros((2, 2)), np.zeros((2, 2))
    chains = [_Chain(size) for size in _TOKENS] + [_Chain(size, image=True) for size in _IMAGES]
    chains.append(_Chain(_TOKENS[0], fan=True))
    for number, chain in enumerate(chains):
        advance(f"measuring boundaries between {names[0]} and {names[1]}, {number + 1} of {len(chains)}")
        extra_us, noise_us, total_us, converted_us = _measure_chain(core, chain, names)
        moved = chain.tensors * chain.bytes
        rows.append([chain.submodels - 1.0, chain.tensors, moved, moved if chain.image else 0.0])
        extra.append(extra_us)
        weights.append(1.0 / max(noise_us, 0.02 * total_us, 1.0))
        converted[int(chain.image)] += converted_us
        handed[int(chain.image)] += moved
    table, us = np.array(rows), np.array(extra)
    costs = fit_costs(table, us, np.array(weights))
    error = np.abs(table @ costs - us) / np.maximum(us, 1.0)
    submodels, tensors, plain, layout = (costs / 2).tolist()  # the fit has both devices, or directions, together
    of_layout = np.maximum(converted[1] / handed[1] - converted[0] / handed[0], 0.0)
    shares = of_layout / of_layout.sum() if of_layout.any() else np.full(2, 0.5)
    return (submodels, tensors, plain, *(layout * shares).tolist()), float(np.median(error))


def _measure_chain(core: ov.Core, chain: _Chain, names: tuple[str, str]) -> tuple[float, float, float, Floats]:
    """Measures a chain in two splits, with each device first, and on each device alone.

    Args:
        core: the Core.
        chain: the chain.
        names: names of the two devices.

    Returns:
        extra_us: cost of the boundaries in both splits together, µs.
        noise_us: error of `extra_us`, µs.
        total_us: time of both splits together, µs.
        converted_us: time of the nodes that the plugins inserted (conversions) in both splits, µs, float64 [2], by
            device.
    """
    graph = ComputationGraph.from_model(chain.model)
    inputs = TimedInputs([[np.ones(port.get_shape(), np.float32) for port in chain.model.inputs]])
    hetero = f"HETERO:{','.join(names)}"
    runs: list[Counters] = []
    compiled: list[tuple[Any, int]] = []
    models = CompiledModels(core)
    for first in (0, 1):
        placed = chain.model.clone()
        set_affinities(placed, {name: names[(stage + first) % 2] for name, stage in chain.stages.items()})
        split = models.get(placed, hetero, counters=True)
        runs.append(Counters(split, inputs))
        compiled.append((split.model, first))
    runs += [Counters(models.get(chain.model, name), inputs) for name in names]
    seconds = np.zeros((_ROUNDS, len(runs)))
    for one_round in seconds:
        for number, run in enumerate(runs):
            run.run()  # refills caches from which other runs displaced the model's data
            one_round[number] = run.run()
    extra = (seconds[:, 0] + seconds[:, 1] - seconds[:, 2] - seconds[:, 3]) * 1e6
    converted = np.zeros(2)
    for (split, first), run in zip(compiled, runs[:2], strict=True):
        for item in Executions.of(split, graph, run.us()).items:
            if item.inserted:
                converted[(chain.stages[graph.names[item.serves]] + first) % 2] += item.us
    spread = statistics.median(np.abs(extra - np.median(extra)).tolist()) / np.sqrt(_ROUNDS)
    return float(np.median(extra)), float(spread), float(np.median(seconds[:, :2].sum(axis=1))) * 1e6, converted


class _Chain(Builder):
    """A model of small operations with large tensors between them, and the stages at which it is cut.

    The operations are: widen | narrow, widen | … | narrow. A fan has many tensors from one submodel to another, so that
    the costs of tensors can be told from those of submodels.

    Attributes:
        model: the model.
        image: whether the tensors are images and the operations convolutions; else tokens and matrix products.
        bytes: bytes of each large tensor.
        tensors: number of large tensors.
        submodels: number of submodels of a split.
        stages: number of the submodel that each node belongs to, by the node's name.
    """

    def __init__(self, size: tuple[int, int], *, image: bool = False, fan: bool = False) -> None:
        """Builds the chain.

        Args:
            size: [rows, columns] of the large tensors of tokens, or [channels, side] of images.
            image: whether to use images.
            fan: whether to build a fan with two submodels.
        """
        super().__init__()
        self.image, self._large = image, size[0] if image else size[1]
        self.bytes = 4 * size[0] * (size[1] ** 2 if image else size[1])  # bytes of each large tensor, f32
        self.tensors = 3 * _BOUNDARIES if fan else _BOUNDARIES
        self.submodels = 2 if fan else _BOUNDARIES + 1
        self.stages: dict[str, int] = {}  # submodel of each node by name
        shape = [1, _NARROW, size[1], size[1]] if image else [1, size[0], _NARROW]
        node = parameter = self._keep(self.op.parameter(shape, np.float32), 0)
        if fan:
            wide = [self._widen(parameter, 0) for _ in range(self.tensors)]
            node = self._keep(self.op.concat([self._narrow(one, 1) for one in wide], 2), 1)
        else:
            for stage in range(_BOUNDARIES):
                node = self._narrow(self._widen(node, stage), stage + 1)
        result = self._keep(self.op.result(node), self.submodels - 1)
        self.model = ov.Model([result], [parameter], "ov_hsdag boundaries")

    def _keep(self, node: Any, stage: int) -> Any:
        """Names a node, records its stage in `stages`, and returns the node."""
        node.set_friendly_name(f"node{len(self.stages)}")
        self.stages[node.get_friendly_name()] = stage
        return node

    def _widen(self, source: Any, stage: int) -> Any:
        """Adds an operation that makes a large tensor of a small one."""
        return self._linear(source, _NARROW, self._large, stage)

    def _narrow(self, source: Any, stage: int) -> Any:
        """Adds an operation that makes a small tensor of a large one."""
        return self._linear(source, self._large, _NARROW, stage)

    def _linear(self, source: Any, channels: int, out: int, stage: int) -> Any:
        """Adds a convolution or matrix product with `channels` inputs and `out` outputs, and records its stage."""
        node = (self.conv if self.image else self.matrix_product)(source, channels, out)
        self._keep(node.input_value(1).get_node(), stage)  # weights belong to their consumer's submodel
        return self._keep(node, stage)
