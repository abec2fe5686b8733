"""Describes machines by labels of their Ray nodes, groups them into kinds, and selects kinds by --on.

Machines of one kind have the same devices, as many cores and about the same memory, so that measurements on one hold
for all. Labels are texts by which Ray selects nodes. A label's value has at most 63 letters, digits, dots, dashes and
underscores, so that models of devices ("Intel-Arc-A770-Graphics") are written with dashes. The option --on of a command
names the devices of the wanted machines.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ov_hsdag._version import __version__
from ov_hsdag.jobs.machine_kind import Kind
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import ov

RESOURCE = "ov-hsdag"
"""Name of a resource in Ray. Each machine has 1 of it and each job takes 1, so that jobs do not overlap."""

KIND = "ov-hsdag/kind"
OPENVINO = "ov-hsdag/openvino"
VERSION = "ov-hsdag/version"
_DEVICE = "ov-hsdag/device."

_LONGEST_VALUE = 63  # characters of a label's value that Ray accepts

# Steps per factor of 2 to which memory sizes are rounded, so that sizes within about a fifth mostly count as equal:
# firmware and kernels reserve different amounts.
_MEMORY_STEPS_PER_DOUBLING = 4


@dataclass(frozen=True)
class Machine:
    """A machine that takes jobs."""

    node: str  # id of its Ray node
    host: str  # name of the machine
    kind: str  # hash of its devices, cores and memory, see `announcement`
    devices: Mapping[str, str]  # models of its devices, as labels spell them, by OpenVINO's names ("GPU.0")
    openvino: str  # release of OpenVINO
    version: str  # release of ov-hsdag

    @classmethod
    def of(cls, node: str, host: str, labels: Mapping[str, str]) -> Machine | None:
        """Makes a machine from a Ray node.

        Args:
            node: id of the node.
            host: name of the machine.
            labels: labels of the node, see `announcement`.

        Returns:
            The machine; None where the node takes no jobs.
        """
        if KIND not in labels:
            return None
        devices = {key[len(_DEVICE) :]: value for key, value in labels.items() if key.startswith(_DEVICE)}
        return cls(node, host, labels[KIND], devices, labels.get(OPENVINO, ""), labels.get(VERSION, ""))

    def device(self, name: str) -> str | None:
        """Returns the model of the device `name`, None where the machine lacks it. "GPU" and "GPU.0" mean the same."""
        known = (name, f"{name}.0", name.removesuffix(".0"))
        return next((self.devices[one] for one in known if one in self.devices), None)


def announcement(core: ov.Core) -> dict[str, str]:
    """Returns the Ray labels by which other machines know this one.

    Machines have the same kind if they have the same devices and as many usable cores. Devices are the same if OpenVINO
    reports the same name, full name, capabilities and inference precision for them, their memory is about the same, and
    virtual devices have the same declaration (`DeviceInfo.limits`).

    Args:
        core: the Core of this machine; its devices, virtual ones included, are announced.

    Returns:
        Values by label, at most 63 characters each: the kind as 16 hexadecimal digits, the releases of OpenVINO and
        ov-hsdag, and for each device ("ov-hsdag/device.GPU.0") its model.
    """
    from ov_hsdag.devices.cpu import usable_cores
    from ov_hsdag.devices.discovery import available, memory_bytes

    devices = available(core)
    memory = {device.name: memory_bytes(core, device.name) for device in devices}
    described = [
        [
            device.name,
            device.full_name,
            sorted(device.capabilities),
            device.precision,
            dict(device.limits),
            round(_MEMORY_STEPS_PER_DOUBLING * math.log2(size)) if (size := memory[device.name]) else None,
        ]
        for device in devices
    ]
    text = json.dumps([sorted(described, key=str), usable_cores()], sort_keys=True)
    return {
        KIND: hashlib.sha256(text.encode()).hexdigest()[:16],
        OPENVINO: label(ov.__version__),
        VERSION: label(__version__),
        **{f"{_DEVICE}{device.name}": label(device.full_name or device.name) for device in devices},
    }


def label(text: str) -> str:
    """Converts a text into a value of a label: "Intel(R) Arc(TM) A770 Graphics" into "Intel-Arc-A770-Graphics"."""
    words = re.findall(r"[A-Za-z0-9._]+", re.sub(r"\((R|TM|C)\)", " ", text, flags=re.IGNORECASE))
    return "-".join(words)[:_LONGEST_VALUE].strip("-._") or "unknown"


def parse_on(text: str) -> dict[str, str]:
    """Parses a value of --on, such as "GPU=Arc A770,CPU=Xeon".

    Args:
        text: the value.

    Returns:
        Words of the device's model, as one text, by device.

    Raises:
        UserError: the value is malformed, or names a device twice.
    """
    words_by_device: dict[str, str] = {}
    for part in text.split(","):
        name, equals, words = (piece.strip() for piece in part.partition("="))
        if not name or not equals or not _words(words) or name in words_by_device:
            raise UserError(f"invalid --on '{text}': expected DEVICE=MODEL, such as \"GPU=Arc A770\"")
        words_by_device[name] = words
    return words_by_device


def kinds(machines: Iterable[Machine], devices: Sequence[str], openvino: str, on: Sequence[str]) -> list[Kind]:
    """Groups machines into kinds, and selects those that --on names.

    Args:
        machines: the machines of the cluster.
        devices: devices that a machine must have.
        openvino: the release of OpenVINO that it must have, as another may split and price models differently.
        on: values of --on, each for one kind; none for all kinds.

    Returns:
        Each selected kind once, in the order of `on`, or else sorted by devices.

    Raises:
        UserError: no machine has the devices or the versions, or a value of --on means none or several kinds.
    """
    there = list(machines)
    having = [one for one in there if all(one.device(name) for name in devices)]
    if not having:
        existing = sorted({", ".join(f"{name} {text}" for name, text in one.devices.items()) for one in there})
        listed = f"there are {'; '.join(existing)}" if existing else "none has started ov-hsdag worker"
        raise UserError(f"no machine of the cluster has {', '.join(devices)}: {listed}")
    if not on:
        return _group_into_kinds(having, devices, openvino)
    selected = []
    for text in on:
        meant = {name: _words(words) for name, words in parse_on(text).items()}
        matching = [
            one for one in having if all(words <= _words(one.device(name) or "") for name, words in meant.items())
        ]
        if not matching:
            existing = sorted({f"{name}={one.device(name)}" for one in having for name in meant if one.device(name)})
            raise UserError(f"no machine of the cluster is '{text}': there are {', '.join(existing) or 'others'}")
        alike = _group_into_kinds(matching, devices, openvino)
        if len(alike) > 1:
            listed = "; ".join(kind.describe() for kind in alike)
            raise UserError(f"--on '{text}' is several kinds of machines: say more, or leave it out for all: {listed}")
        selected += alike
    return list({kind.number: kind for kind in selected}.values())


def others(machines: Iterable[Machine], devices: Sequence[str], openvino: str) -> list[Machine]:
    """Finds the machines that `kinds` leaves out because they have other versions.

    Args:
        machines: the machines of the cluster.
        devices: devices that a machine must have.
        openvino: the release of OpenVINO on this machine.

    Returns:
        Machines that have the devices, and another release of OpenVINO or ov-hsdag.
    """
    having = [one for one in machines if all(one.device(name) for name in devices)]
    return [one for one in having if (one.openvino, one.version) != _versions(openvino)]


def _versions(openvino: str) -> tuple[str, str]:
    """Returns the releases of OpenVINO and of ov-hsdag on this machine, as labels spell them."""
    return label(openvino), label(__version__)


def _group_into_kinds(machines: Sequence[Machine], devices: Sequence[str], openvino: str) -> list[Kind]:
    """Groups machines into kinds, without those of other versions.

    Args:
        machines: machines, at least one.
        devices: devices that all of them have.
        openvino: the release of OpenVINO on this machine.

    Returns:
        The kinds, sorted by the models of the devices.

    Raises:
        UserError: no machine has the versions of this one.
    """
    ours, other, grouped = _versions(openvino), machines[0], []
    same = [one for one in machines if (one.openvino, one.version) == ours]
    if not same:
        raise UserError(
            f"{other.host} has OpenVINO {other.openvino} and ov-hsdag {other.version}, this machine {ours[0]} and"
            f" {ours[1]}: install the same on both"
        )
    for number in dict.fromkeys(one.kind for one in same):
        alike = [one for one in same if one.kind == number]
        labels = {KIND: number, OPENVINO: ours[0], VERSION: ours[1]}
        grouped.append(Kind(number, {name: alike[0].device(name) or "" for name in devices}, len(alike), labels))
    return sorted(grouped, key=lambda kind: (*kind.devices.values(), kind.number))


def _words(text: str) -> set[str]:
    """Splits a text into its words in lower case, so that texts can be compared without order and punctuation."""
    return {word.lower() for word in re.findall(r"[A-Za-z0-9._]+", text)}
