"""Completion: finds a device for every node of a model, from the devices of the nodes that a placement knows.

A placement may lack nodes, because preprocessing or other passes added them after it was made.
"""

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
    """Finds a legal device for every node of `model`, from the devices of the nodes that a placement knows.

    Nodes that appeared after the placement (preprocessing, decompressed weights, other passes) get the device of the
    nodes that they must share one with, else that of their producers, else that of their consumers. Where known nodes
    that must share a device have different ones, because the model was changed, the most frequent device wins.
    Replicable producers with consumers on several devices are copied. cpp_ext/complete.hpp has the algorithm.

    Args:
        model: the model that will be compiled. It is changed in place: repeated friendly names are made unique, and
            copies of nodes are added.
        affinity: device by friendly name. Unknown names, and devices that are not in `devices`, are ignored.
        devices: the devices to choose from. The first one takes nodes that nothing else decides.
        graph: the graph of `model`, whose names are then unique already; by default it is extracted.

    Returns:
        The device of every node of the changed model, by friendly name.
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
