"""Pins: operations that stay on a device, whatever a placer chooses for the rest of the model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.model.colocation import group_support
from ov_hsdag.model.graph import ComputationGraph, NodeKind
from ov_hsdag.model.names import matching, similar
from ov_hsdag.utils.errors import UserError, quoted

_BY_TYPE = "type:"
"""Prefix of a pin's pattern that matches types of operations and not names."""


@dataclass(frozen=True)
class Pin:
    """Operations, by their friendly names or by their types, and the device that they stay on."""

    pattern: str  # matches friendly names or types; `*` and `?` are wildcards as in file names
    device: str  # one of the devices of the placement
    by_type: bool = False  # whether the pattern matches types

    def __str__(self) -> str:
        """The pin as users type it: "type:Softmax=CPU"."""
        return f"{_BY_TYPE if self.by_type else ''}{self.pattern}={self.device}"


def parse_pins(pins: Mapping[str, str] | Sequence[str], devices: Sequence[str]) -> tuple[Pin, ...]:
    """Reads pins.

    Args:
        pins: {"PATTERN": "DEVICE"}, or a list of "PATTERN=DEVICE"; a pattern "type:NAME" matches types.
        devices: the devices of the placement.

    Returns:
        The pins, with devices as `devices` spells them.

    Raises:
        UserError: a pin cannot be read, or its device is not in `devices`.
    """
    if isinstance(pins, Mapping):
        return tuple(_pin(pattern, device, devices) for pattern, device in pins.items())
    parsed = []
    for text in pins:
        pattern, equals, device = text.rpartition("=") if isinstance(text, str) else ("", "", "")
        if not equals:
            example = f"'PATTERN={devices[-1]}' or 'type:Softmax={devices[-1]}'"
            raise UserError(f"cannot read the pin {quoted(text)}: give it as {example}")
        parsed.append(_pin(pattern, device, devices))
    return tuple(parsed)


def _pin(pattern: str, device: str, devices: Sequence[str]) -> Pin:
    """Makes a pin from a pattern, which may begin with "type:", and the name of a device, in any case.

    Raises:
        UserError: the pattern is empty, or the device is not in `devices`.
    """
    name = next((name for name in devices if name.upper() == device.strip().upper()), device)
    by_type = pattern.startswith(_BY_TYPE)
    pin = Pin(pattern.removeprefix(_BY_TYPE), name, by_type)
    if not pin.pattern:
        raise UserError(f"the pin {quoted(f'{pattern}={device}')} names no operation: give a name, a pattern or a type")
    if name not in devices:
        raise UserError(f"the pin '{pin}' is to a device that is not in HETERO:{','.join(devices)}")
    return pin


def pinned_nodes(graph: ComputationGraph, pins: Sequence[Pin], original: Collection[str] = ()) -> dict[int, Pin]:
    """Finds the operations that pins match.

    Args:
        graph: the graph of a normalized model.
        pins: the pins.
        original: names of the model's operations before it was normalized; used in messages only.

    Returns:
        The pin of each pinned node, by the node's number.

    Raises:
        UserError: a pin matches no operation, or two pins put one operation on different devices.
    """
    pinned: dict[int, Pin] = {}
    able = np.isin(graph.kinds, (NodeKind.OP, NodeKind.SINK)) & ~graph.legality.constant
    for pin in pins:
        names = graph.types if pin.by_type else graph.names
        nodes = [node for node in matching(names, pin.pattern) if able[node]]
        if not nodes:
            raise UserError(_no_match_message(graph, pin, able, original))
        for node in nodes:
            other = pinned.setdefault(node, pin)
            if other.device != pin.device:
                raise UserError(f"the pins '{other}' and '{pin}' are both about {quoted(graph.names[node])}")
    return pinned


def pinned_support(
    graph: ComputationGraph, supported: NDArray[np.bool_], devices: Sequence[str], pinned: Mapping[int, Pin]
) -> NDArray[np.bool_]:
    """Restricts the devices of pinned nodes, and of their whole co-location groups, to the devices of the pins.

    Args:
        graph: the graph of a normalized model, with its co-location groups.
        supported: which devices run which nodes, bool [nodes, devices].
        devices: names of the devices.
        pinned: pins by the numbers of their nodes.

    Returns:
        Which devices may have which nodes, bool [nodes, devices].

    Raises:
        UserError: a device does not run a node that is pinned to it, or nodes that must share a device have different
            pins.
    """
    groups = graph.legality.groups
    able = group_support(groups, supported)
    first_pinned: dict[int, int] = {}  # first pinned node of each group
    allowed = supported.copy()
    for node, pin in pinned.items():
        group, device = int(groups[node]), devices.index(pin.device)
        other = first_pinned.setdefault(group, node)
        if pinned[other].device != pin.device:
            raise UserError(
                f"the pins '{pinned[other]}' and '{pin}' contradict each other: {quoted(graph.names[other])} and"
                f" {quoted(graph.names[node])} must share a device"
            )
        if other != node:
            continue
        members = np.flatnonzero(groups == group)
        if not able[group, device]:
            lacking = int(members[~supported[members, device]][0])
            kind = f"{graph.types[lacking]} {quoted(graph.names[lacking])}"
            shares = "" if lacking == node else f", which must share a device with {quoted(graph.names[node])}"
            raise UserError(f"the pin '{pin}' cannot be kept: {pin.device} does not run {kind}{shares}")
        allowed[members] &= np.arange(len(devices)) == device
    return allowed


def _no_match_message(graph: ComputationGraph, pin: Pin, able: NDArray[np.bool_], original: Collection[str]) -> str:
    """Returns the message for a pin that matches no operation, with a suggestion.

    Args:
        graph: the graph of the normalized model.
        pin: the pin.
        able: which nodes can be pinned, bool [nodes].
        original: names of the model's operations before it was normalized.
    """
    fits_none = f"the pin '{pin}' fits no operation of the model"
    if pin.by_type:
        return f"{fits_none}; {similar(pin.pattern, sorted({graph.types[node] for node in np.flatnonzero(able)}))}"
    if matching(graph.names, pin.pattern):
        return f"the pin '{pin}' fits inputs, outputs and constants alone: those are where what reads them is"
    if matching(tuple(original), pin.pattern):
        return (
            f"{fits_none} as it is placed: OpenVINO's transformations replace what has that name; the names that stay"
            " are in the output of ov-hsdag place --json"
        )
    return f"{fits_none}; {similar(pin.pattern, [graph.names[node] for node in np.flatnonzero(able)])}"
