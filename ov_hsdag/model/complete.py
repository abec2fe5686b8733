"""Completion: a device for every node, from those of the nodes that a placement knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ov_hsdag.model.colocation import _merged, _tied, bonds, colocation, followers
from ov_hsdag.model.graph import ComputationGraph, NodeKind
from ov_hsdag.model.normalize import _copy_followers, unique_names
from ov_hsdag.model.repair import repair, split_rule

if TYPE_CHECKING:
    import openvino as ov


def complete(model: ov.Model, affinity: Mapping[str, str], devices: Sequence[str]) -> dict[str, str]:
    """A legal affinity for every node of `model`, from those of the nodes that are known.

    Nodes that appeared after the placement (preprocessing, decompressed weights, other passes) follow the nodes that
    they must share a device with, else their producers, else their consumers. Where known nodes that must share a
    device have different ones (the model was changed), the device of most of them wins. Followers with consumers on
    several devices are copied: `model` is changed.

    Args:
        model: the model that will be compiled; friendly names that repeat are made unique.
        affinity: device by friendly name; unknown names and names of devices not in `devices` are ignored.
        devices: devices to choose from; the first takes what is left.

    Returns:
        Device by friendly name, for every node of the model as it is afterwards.
    """
    unique_names(model)
    graph = ComputationGraph.from_model(model)
    follows = followers(graph)
    number = {device: index for index, device in enumerate(devices)}
    known = np.array([number.get(affinity.get(name, ""), -1) for name in graph.names], np.int64)

    groups = _merged(graph, _tied(graph, follows))
    votes = np.zeros((int(groups.max()) + 1, len(devices)), np.int64)
    # Operations decide; a Parameter or Result that was placed decides only where no operation does.
    weight = np.where(graph.kinds == NodeKind.OP, graph.nodes, 1) * ~follows
    np.add.at(votes, (groups[known >= 0], known[known >= 0]), weight[known >= 0])
    chosen = np.where(votes.any(axis=1), votes.argmax(axis=1), -1)

    edges = [
        (int(groups[a]), int(groups[b]))
        for a, b in zip(graph.input_source, graph.input_node, strict=True)
        if not follows[a] and groups[a] != groups[b]
    ]
    for forward in (True, False):
        for a, b in edges if forward else reversed(edges):
            source, target = (a, b) if forward else (b, a)
            if chosen[target] < 0:
                chosen[target] = chosen[source]
    chosen[chosen < 0] = 0
    homes = _copy_followers(model, graph, follows, chosen[groups])
    return _settle(model, {name: devices[home] for name, home in homes.items()}, devices)


def _settle(model: ov.Model, affinity: Mapping[str, str], devices: Sequence[str]) -> dict[str, str]:
    """Gives every legality group one device (most of its operations' choice) and repairs what HETERO would refuse.

    Followers that could not be copied, and changes of the model after its placement, leave something to do here.
    """
    import openvino as ov

    graph = ComputationGraph.from_model(model)
    groups = colocation(graph)
    number = {device: index for index, device in enumerate(devices)}
    votes = np.zeros((int(groups.max()) + 1, len(devices)), np.int64)
    weight = np.where(graph.kinds == NodeKind.OP, graph.nodes, 1)
    np.add.at(votes, (groups, np.array([number[affinity[name]] for name in graph.names])), weight)
    everywhere = np.ones_like(votes, bool)
    settled = repair(graph, groups, bonds(graph), votes.argmax(axis=1), everywhere, split_rule(ov.__version__))
    return {name: devices[home] for name, home in zip(graph.names, settled[groups].tolist(), strict=True)}
