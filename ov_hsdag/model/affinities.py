"""The affinities of a model's nodes, which HETERO follows."""

from __future__ import annotations

from collections.abc import Mapping

from ov_hsdag.model.relaxed_shapes import relax_crossing_shapes, restore_shapes
from ov_hsdag.utils.errors import RunError, listed
from ov_hsdag.utils.lazy import ov


def affinities_of(model: ov.Model) -> dict[str, str]:
    """The affinity of each node that has one, by friendly name."""
    affinity = {}
    for node in model.get_ops():
        rt_info = node.get_rt_info()
        if "affinity" in rt_info:
            affinity[node.get_friendly_name()] = rt_info["affinity"].astype(str)
    return affinity


def set_affinities(model: ov.Model, affinity: Mapping[str, str]) -> dict[str, str]:
    """Sets the "affinity" of every node, in place, and relaxes the shapes of tensors that HETERO could not hand over.

    Returns:
        The device of each node by friendly name, including the nodes that were inserted.

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
    """Undoes `set_affinities`, in place, so that HETERO decides again."""
    restore_shapes(model)
    for node in model.get_ops():
        rt_info = node.get_rt_info()
        if "affinity" in rt_info:
            del rt_info["affinity"]
