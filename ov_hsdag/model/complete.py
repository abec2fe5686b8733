"""Completion: a device for every node, from those of the nodes that a placement knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ov_hsdag.model.colocation import split_rule
from ov_hsdag.model.graph import ComputationGraph
from ov_hsdag.model.nodes import Nodes
from ov_hsdag.model.normalize import replicate, unique_names
from ov_hsdag.model.relaxed_shapes import restore_shapes
from ov_hsdag.utils.lazy import ov


def complete(
    model: ov.Model, affinity: Mapping[str, str], devices: Sequence[str], graph: ComputationGraph | None = None
) -> dict[str, str]:
    """A legal affinity for every node of `model`, as it is afterwards, from those of the nodes that are known.

    Nodes that appeared after the placement (preprocessing, decompressed weights, other passes) get the device of the
    nodes that they must share one with, else that of their producers, else of their consumers. Where known nodes that
    must share a device have different ones (the model was changed), the device of most of them wins. Replicable
    producers with consumers on several devices are copied: `model` is changed. cpp_ext/complete.hpp decides.

    model: that will be compiled; friendly names that repeat are made unique. affinity: device by friendly name; unknown
    names and names of devices not in `devices` are ignored. devices: to choose from; the first takes what is left.
    graph: of `model`, whose names are unique then; it is extracted where it is not given.
    """
    if graph is None:
        restore_shapes(model)
    nodes = Nodes(model)
    if graph is None:
        if unique_names(model, nodes):
            nodes = Nodes(model)
        graph = ComputationGraph.from_model(model, nodes=nodes, counted=False)
    number = {device: index for index, device in enumerate(devices)}
    known = np.array([number.get(affinity.get(name, ""), -1) for name in graph.names], np.int32)
    replication = replicate(graph, graph.legality.host_devices(known, len(devices)), nodes)
    if replication.copied:
        graph = graph.with_copies(model, replication.copied, replication.inputs)
    device = np.array([replication.homes[name] for name in graph.names], np.int32)
    settled = graph.legality.settle(device, len(devices), split_rule(ov.__version__))
    return {name: devices[home] for name, home in zip(graph.names, settled.tolist(), strict=True)}
