"""What a machine of a fleet says of itself, as labels of its Ray node, and which machines somebody means.

Machines of one kind have the same devices, cores and about the same memory: what is measured on one holds for all.
A label's value has at most 63 letters, digits, dots, dashes and underscores: names of devices are written with dashes.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ov_hsdag._version import __version__
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import ov

RESOURCE = "ov-hsdag"
"""Ray's resource, of which each machine has one: so one job runs on a machine at a time."""

KIND = "ov-hsdag/kind"
OPENVINO = "ov-hsdag/openvino"
VERSION = "ov-hsdag/version"
_DEVICE = "ov-hsdag/device."

_LONGEST = 63

# Machines whose memory differs by less than about a fifth are alike: firmware and kernels keep some of it.
_STEPS_OF_MEMORY = 4


@dataclass(frozen=True)
class Machine:
    """A machine that takes jobs."""

    node: str  # Ray's number of it
    host: str  # its name
    kind: str  # equal for machines on which the same is measured
    devices: Mapping[str, str]  # names of what its devices are, as labels have them, by OpenVINO's names ("GPU.0")
    openvino: str  # its release
    version: str  # of ov-hsdag

    @classmethod
    def of(cls, node: str, host: str, labels: Mapping[str, str]) -> Machine | None:
        """The machine behind a Ray node; None where the labels are of a node that measures nothing."""
        if KIND not in labels:
            return None
        devices = {key[len(_DEVICE) :]: value for key, value in labels.items() if key.startswith(_DEVICE)}
        return cls(node, host, labels[KIND], devices, labels.get(OPENVINO, ""), labels.get(VERSION, ""))

    def device(self, name: str) -> str | None:
        """What a device is; None where there is none. "GPU" and "GPU.0" are the same."""
        known = (name, f"{name}.0", name.removesuffix(".0"))
        return next((self.devices[one] for one in known if one in self.devices), None)


@dataclass(frozen=True)
class Kind:
    """Machines that are alike, with the devices that were asked for."""

    number: str  # see `Machine.kind`
    devices: Mapping[str, str]  # what the devices that were asked for are, by the names they were asked for by
    machines: int  # how many there are
    labels: Mapping[str, str]  # that all of them have, and no others

    @property
    def name(self) -> str:
        """For names of files: the first device, and the beginning of the number."""
        return f"{next(iter(self.devices.values()))}-{self.number[:6]}"

    def describe(self) -> str:
        """For people."""
        listed = ", ".join(f"{name} {text}" for name, text in self.devices.items())
        return f"{listed} ({self.number[:6]})"


def announcement(core: ov.Core) -> dict[str, str]:
    """The labels of this machine."""
    from ov_hsdag.devices.cpu import usable_cores
    from ov_hsdag.devices.discovery import available, memory_bytes

    found = available(core)
    memory = {one.name: memory_bytes(core, one.name) for one in found}
    described = [
        [
            one.name,
            one.full_name,
            sorted(one.capabilities),
            one.precision,
            dict(one.limits),
            round(_STEPS_OF_MEMORY * math.log2(size)) if (size := memory[one.name]) else None,
        ]
        for one in found
    ]
    text = json.dumps([sorted(described, key=str), usable_cores()], sort_keys=True)
    return {
        KIND: hashlib.sha256(text.encode()).hexdigest()[:16],
        OPENVINO: label(ov.__version__),
        VERSION: label(__version__),
        **{f"{_DEVICE}{one.name}": label(one.full_name or one.name) for one in found},
    }


def label(text: str) -> str:
    """A text as a label can have it: "Intel(R) Arc(TM) A770 Graphics" is "Intel-Arc-A770-Graphics"."""
    words = re.findall(r"[A-Za-z0-9._]+", re.sub(r"\((R|TM|C)\)", " ", text, flags=re.IGNORECASE))
    return "-".join(words)[:_LONGEST].strip("-._") or "unknown"


def parse_on(text: str) -> dict[str, str]:
    """What "GPU=Arc A770,CPU=Xeon" says of devices. Raises UserError where it says nothing."""
    found: dict[str, str] = {}
    for part in text.split(","):
        name, equals, words = (piece.strip() for piece in part.partition("="))
        if not name or not equals or not _words(words) or name in found:
            raise UserError(f"invalid --on '{text}': expected DEVICE=MODEL, such as \"GPU=Arc A770\"")
        found[name] = words
    return found


def kinds(machines: Iterable[Machine], devices: Sequence[str], openvino: str, on: Sequence[str]) -> list[Kind]:
    """The kinds of machines that are meant, each once; in the order of `on`, or of their devices. Raises UserError.

    devices, openvino: that they must have; another release may split and price models differently. on: texts for
    `parse_on`, each of which names one kind; none: all kinds.
    """
    there = list(machines)
    having = [one for one in there if all(one.device(name) for name in devices)]
    if not having:
        known = sorted({", ".join(f"{name} {text}" for name, text in one.devices.items()) for one in there})
        listed = f"there are {'; '.join(known)}" if known else "none has started ov-hsdag worker"
        raise UserError(f"no machine of the cluster has {', '.join(devices)}: {listed}")
    if not on:
        return _alike(having, devices, openvino)
    found = []
    for text in on:
        meant = {name: _words(words) for name, words in parse_on(text).items()}
        matching = [
            one for one in having if all(words <= _words(one.device(name) or "") for name, words in meant.items())
        ]
        if not matching:
            known = sorted({f"{name}={one.device(name)}" for one in having for name in meant if one.device(name)})
            raise UserError(f"no machine of the cluster is '{text}': there are {', '.join(known) or 'others'}")
        alike = _alike(matching, devices, openvino)
        if len(alike) > 1:
            listed = "; ".join(kind.describe() for kind in alike)
            raise UserError(f"--on '{text}' is several kinds of machines: say more, or leave it out for all: {listed}")
        found += alike
    return list({kind.number: kind for kind in found}.values())


def others(machines: Iterable[Machine], devices: Sequence[str], openvino: str) -> list[Machine]:
    """Machines that have the devices, and are left out for their versions."""
    having = [one for one in machines if all(one.device(name) for name in devices)]
    return [one for one in having if (one.openvino, one.version) != _versions(openvino)]


def _versions(openvino: str) -> tuple[str, str]:
    """What labels say of the versions of this machine."""
    return label(openvino), label(__version__)


def _alike(machines: Sequence[Machine], devices: Sequence[str], openvino: str) -> list[Kind]:
    """The kinds of some machines, without those of other versions. Raises UserError where all have others."""
    ours, other, found = _versions(openvino), machines[0], []
    same = [one for one in machines if (one.openvino, one.version) == ours]
    if not same:
        raise UserError(
            f"{other.host} has OpenVINO {other.openvino} and ov-hsdag {other.version}, this machine {ours[0]} and"
            f" {ours[1]}: install the same on both"
        )
    for number in dict.fromkeys(one.kind for one in same):
        alike = [one for one in same if one.kind == number]
        labels = {KIND: number, OPENVINO: ours[0], VERSION: ours[1]}
        found.append(Kind(number, {name: alike[0].device(name) or "" for name in devices}, len(alike), labels))
    return sorted(found, key=lambda kind: (*kind.devices.values(), kind.number))


def _words(text: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Za-z0-9._]+", text)}
