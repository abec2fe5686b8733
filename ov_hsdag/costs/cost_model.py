"""The cost model: times of operations and transfers on the devices of a profile, and what they store and support.

Costs are arrays with one column for each device of a list. Some devices compute only the routed experts of a mixture of
experts. So each device's costs are those of the graph that it executes (`ov_hsdag.costs.experts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.costs.experts import ExecutedGraphs
from ov_hsdag.costs.fusions import own_layout, with_layouts
from ov_hsdag.costs.profile import Profile
from ov_hsdag.costs.roofline import Roofline
from ov_hsdag.model.graph import ComputationGraph, NodeKind


def node_us(profile: Profile, graph: ComputationGraph, names: Sequence[str]) -> NDArray[np.float64]:
    """Estimates the time of each node on each device by the roofline model.

    Args:
        profile: profile of the devices.
        graph: the graph of a model.
        names: names of the devices.

    Returns:
        Times in µs, float64 [nodes, devices].
    """
    return _OperationCosts(profile, graph, names).node_us()


def boundary_costs(profile: Profile, names: Sequence[str]) -> dict[str, Any]:
    """Estimates the costs of partition boundaries, `ov_hsdag.costs.terms.BOUNDARY_TERMS`.

    Args:
        profile: profile of the devices.
        names: names of the devices.

    Returns:
        Arrays by the terms' names, attributes of a problem; their shapes and types are those of `CostTerm`.
    """
    transfer_us, transfer_us_per_byte = transfer_costs(profile, names)
    return {
        "submodel_us": profile.submodel_us(names),
        "transfer_us": transfer_us,
        "transfer_us_per_byte": transfer_us_per_byte,
    }


def all_costs(profile: Profile, graph: ComputationGraph, names: Sequence[str]) -> dict[str, Any]:
    """Estimates all terms of the cost model, `ov_hsdag.costs.terms.TERMS`.

    Args:
        profile: profile of the devices.
        graph: the graph of a model.
        names: names of the devices.

    Returns:
        Arrays by the terms' names, attributes of a problem; their shapes and types are those of `CostTerm`.
    """
    operations = _OperationCosts(profile, graph, names)
    fused_with, fusion_penalty_us = operations.fusions()
    return {
        "node_us": operations.node_us(),
        "fused_with": fused_with,
        "fusion_penalty_us": fusion_penalty_us,
        **boundary_costs(profile, names),
    }


def fusion_costs(
    profile: Profile, graph: ComputationGraph, names: Sequence[str]
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Finds the operations that devices fuse, and the penalties of broken fusions (see `ov_hsdag.costs.fusions`).

    Args:
        profile: profile of the devices.
        graph: the graph of a model.
        names: names of the devices.

    Returns:
        fused_with: the node that each node has to share a submodel with to avoid the penalty, -1 for none, int32
            [nodes, devices]; see `PlacementProblem.fused_with`.
        fusion_penalty_us: the time that the node takes longer otherwise, µs, float64 [nodes, devices].
    """
    return _OperationCosts(profile, graph, names).fusions()


class _OperationCosts:
    """Costs of a graph's operations on the devices of a list; what they share is computed once."""

    def __init__(self, profile: Profile, graph: ComputationGraph, names: Sequence[str]) -> None:
        """Makes the roofline models of the graphs that devices execute; the arguments are those of `all_costs`."""
        self._graph = graph
        self._executed = ExecutedGraphs.of(profile, graph, names)
        models = {fuses: Roofline(self._executed.graph(fuses)) for fuses in set(self._executed.fusing)}
        # The roofline model and the profile of each device.
        self._columns = [
            (models[fuses], profile.device(name)) for name, fuses in zip(names, self._executed.fusing, strict=True)
        ]
        self._layout_us_per_byte = profile.layout_us_per_byte(names)

    def node_us(self) -> NDArray[np.float64]:
        """Time of each node on each device, µs, float64 [nodes, devices]."""
        times = np.stack([model.node_us(device) for model, device in self._columns], axis=1)
        times[self._executed.absent] = 0.0
        return times

    def fusions(self) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Fusions and their penalties, see `fusion_costs`."""
        fusion_penalty_us = np.stack([model.fusion_penalty_us(device) for model, device in self._columns], axis=1)
        fused_with = np.stack([model.fused_with for model, _ in self._columns], axis=1)
        own = np.repeat(own_layout(self._graph)[:, None], len(self._columns), axis=1)
        return with_layouts(self._graph, fused_with, fusion_penalty_us, own, self._layout_us_per_byte)


def transfer_costs(profile: Profile, names: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Estimates the time of moving a tensor from one device (row) to another (column).

    A transfer goes through host memory unless the profile has a direct link. A device that computes in host memory
    still rewrites the tensor between its own layout and the plain one that submodels exchange.

    Args:
        profile: profile of the devices.
        names: names of the devices.

    Returns:
        fixed_us: time to start the transfer of a tensor, µs, float64 [devices, devices], 0 on the diagonal.
        us_per_byte: time for each of its bytes, in the model's element type, beyond that, µs, of the same shape.
    """
    profiles = [profile.device(name) for name in names]
    fixed = np.array([profile.link_us for profile in profiles])
    per_byte = np.array([1e-3 / (profile.link_gbps or profile.memory_gbps / 2.0) for profile in profiles])
    fixed_us, us_per_byte = fixed[:, None] + fixed[None, :], per_byte[:, None] + per_byte[None, :]
    direct = {(link.source, link.target): link for link in profile.links}
    for row, source in enumerate(profiles):
        for column, target in enumerate(profiles):
            link = direct.get((source.name, target.name))
            if link is not None:
                fixed_us[row, column], us_per_byte[row, column] = link.us, 1e-3 / link.gbps
    np.fill_diagonal(fixed_us, 0.0)
    np.fill_diagonal(us_per_byte, 0.0)
    return fixed_us, us_per_byte


def storage_ratios(profile: Profile, graph: ComputationGraph, names: Sequence[str]) -> NDArray[np.float64]:
    """Estimates how many bytes each device stores for each byte of a model's weights and tensors.

    A GPU or an NPU that infers in 16 bits keeps f32 weights in 16 bits. Tensors count with the ratio of the weights.

    Args:
        profile: profile of the devices.
        graph: the graph of a model.
        names: names of the devices.

    Returns:
        Ratios from 0.5 to 1, float64 [devices].
    """
    constants = np.flatnonzero(graph.weight_bytes)
    sizes = graph.weight_bytes[constants]
    types = np.array(graph.output_types, "<U8")[graph.output_ptr[constants]]
    narrow = np.where(types == "f32", sizes // 2, sizes).sum()
    share = float(narrow / sizes.sum()) if len(sizes) else 1.0
    profiles = [profile.device(name) for name in names]
    return np.array([1.0 if one.kind == "CPU" or one.precision == "f32" else share for one in profiles])


def assumed_support(profile: Profile, graph: ComputationGraph, names: Sequence[str]) -> NDArray[np.bool_]:
    """Predicts which nodes each device runs, for devices that cannot be asked because they are not on this machine.

    A device runs the types that its profile lists (`DeviceProfile.runs`). Only CPUs run operations on tensors of text.

    Args:
        profile: profile of the devices.
        graph: the graph of a model.
        names: names of the devices.

    Returns:
        Whether each device runs each node, bool [nodes, devices].
    """
    operations = np.isin(graph.kinds, (NodeKind.OP, NodeKind.SINK))
    types = set(graph.types)
    text = graph.touching(np.array(graph.output_types, "<U8") == "string")
    refused = []
    for device in map(profile.device, names):
        lacking = [type_name for type_name in types if not device.runs(type_name)]
        refused.append(operations & np.isin(graph.types, lacking) | (text & (device.kind != "CPU")))
    return ~np.stack(refused, axis=1)
