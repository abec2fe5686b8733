"""Reads, sets and removes the affinities of a model's nodes.

The affinity of a node is the name of a device in its `rt_info["affinity"]`. OpenVINO's HETERO plugin runs the node
there.
"""

from __future__ import annotations

from collections.abc import Mapping

from ov_hsdag.model.relaxed_shapes import relax_crossing_shapes, restore_shapes
from ov_hsdag.utils.errors import RunError, listed
from ov_hsdag.utils.lazy import ov


def affinities_of(model: ov.Model) -> dict[str, str]:
    """Reads the affinities of a model: device by friendly name, without nodes that have no affinity."""
    affinity = {}
    for node in model.get_ops():
        rt_info = node.get_rt_info()
        if "affinity" in rt_info:
            affinity[node.get_friendly_name()] = rt_info["affinity"].astype(str)
    return affinity


def set_affinities(model: ov.Model, affinity: Mapping[str, str]) -> dict[str, str]:
    """Sets the affinity of every node, and inserts the nodes that HETERO needs to hand over some dynamic tensors.

    `relax_crossing_shapes` inserts these nodes, each behind a tensor that crosses from one submodel to another.

    Args:
        model: the model; changed in place.
        affinity: device by friendly name, for every node of the model.

    Returns:
        The device of each node by friendly name, including the inserted nodes.

    Raises:
        RunError: `affinity` lacks a node of the model, which is then left as it was.
    """
    missing = [name for node in model.get_ordered_ops() if (name := node.get_friendly_name()) not in affinity]
    if missing:
        raise RunError(f"the placement could not be completed for {listed(missing)}")
    affinity = {**affinity, **relax_crossing_shapes(model, affinity)}
    for node in model.get_ordered_ops():
        node.get_rt_info()["affinity"] = affinity[node.get_friendly_name()]
    return affinity


def remove_affinities(model: ov.Model) -> None:
    """Removes all affinities and the nodes that `set_affinities` inserted, in place. HETERO then decides by itself."""
    restore_shapes(model)
    for node in model.get_ops():
        rt_info = node.get_rt_info()
        if "affinity" in rt_info:
            del rt_info["affinity"]
