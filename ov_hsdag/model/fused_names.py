"""Names of nodes that OpenVINO's transformations fused into others."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ov_hsdag.utils.lazy import ov

_FUSED_NAMES = "fused_names_0"
"""Entry of a node's rt_info: comma-separated friendly names of all nodes that it was made of.

OpenVINO's src/common/transformations/src/transformations/rt_info/fused_names_attribute.cpp defines it.
"""


def affinity_of_fused(transformed: ov.Model, affinity: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    """Finds the device of each node that was fused into nodes of one device.

    With these devices, a model as it was before the transformations follows a placement that was made for the
    transformed model. The parts of a fused operation, such as the attention of a transformer, stay on one device, where
    the plugin fuses them again.

    Args:
        transformed: the model after the transformations.
        affinity: device by friendly name, for the nodes of `transformed`.
        names: friendly names of the nodes before the transformations.

    Returns:
        Device by friendly name, for some of `names` that `affinity` does not have. Nodes that are part of nodes on
        several devices are left out. Where a node was fused into several, those with one of `names` decide, not new
        ones that transformations inserted.
    """
    earlier_names = set(names)
    missing_names = earlier_names - affinity.keys()
    devices: dict[bool, dict[str, set[str]]] = {True: {}, False: {}}
    for node in transformed.get_ops() if missing_names else ():
        name, info = node.get_friendly_name(), node.get_rt_info()
        if name not in affinity or _FUSED_NAMES not in info:
            continue
        for fused in missing_names.intersection(info[_FUSED_NAMES].astype(str).split(",")):
            devices[name in earlier_names].setdefault(fused, set()).add(affinity[name])
    return {name: min(used) for name, used in {**devices[False], **devices[True]}.items() if len(used) == 1}
