"""Writes a placement into the layers of a model's outputs, where OpenVINO's native reader finds it.

A library that OpenVINO loads (``ov_hsdag.extension_path()``) sees one layer at a time while an IR is read, and never
the model's rt_info. So the outputs (Results, Assigns, and Parameters without consumers) carry marks:
``ov_hsdag:<version>:<id>:<number>/<count>:<placement>``, with the placement in one of them. OpenVINO writes runtime
information of a node into the layer's ``<data>`` under two names only, whoever saves the model. This is the name that
no plugin reads, so the marks have no effect without the library.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence

from ov_hsdag.utils.lazy import ov

ATTRIBUTE = "alt_width"  # one of the two names that OpenVINO writes into <data>; no plugin reads it
PREFIX = "ov_hsdag:"
VERSION = 1  # version of the format, which the library checks


def write(model: ov.Model, nodes: Mapping[str, Sequence[str]]) -> None:
    """Marks the outputs of ``model``, in place, and replaces earlier marks.

    Args:
        model: the model.
        nodes: friendly names by device, in HETERO's order.
    """
    remove(model)
    on = {f"on {number}": names for number, names in enumerate(nodes.values())}
    text = json.dumps({"devices": list(nodes), **on}, separators=(",", ":"))
    outputs = _outputs(model)
    # The library reads outputs in any order, so each mark has its number, their count and the placement's id.
    start = f"{PREFIX}{VERSION}:{zlib.crc32(text.encode()):08x}"
    for number, node in enumerate(outputs):
        node.get_rt_info()[ATTRIBUTE] = f"{start}:{number}/{len(outputs)}:{text if number == 0 else ''}"


def remove(model: ov.Model) -> None:
    """Removes the marks of ``model``, in place."""
    for node in [*model.get_parameters(), *model.get_results(), *model.get_sinks()]:
        rt_info = node.get_rt_info()
        if ATTRIBUTE in rt_info and rt_info[ATTRIBUTE].astype(str).startswith(PREFIX):
            del rt_info[ATTRIBUTE]


def _outputs(model: ov.Model) -> list[ov.Node]:
    """Lists the nodes that carry marks: Results, Assigns, and Parameters without consumers."""
    unused = [node for node in model.get_parameters() if not node.output(0).get_target_inputs()]
    return [*model.get_results(), *(node for node in model.get_sinks() if node.get_type_name() == "Assign"), *unused]
