"""Reads names of devices, and device strings such as "HETERO:GPU,CPU"."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from ov_hsdag.utils.errors import UserError

# Names of precisions that devices compute in.
PRECISIONS = ("f32", "f16", "bf16", "i8")

HETERO = "HETERO"  # OpenVINO's name of the plugin that splits models
MOST_DEVICES = 16
"""Largest number of devices in a list. Eight GPUs and a CPU are a real machine; longer lists are untested."""

TRY_OUT = 'export OV_HSDAG_VIRTUAL_DEVICES="CPU_A:INFERENCE_NUM_THREADS=1;CPU_B:INFERENCE_NUM_THREADS=1"'
"""Shell command that makes two devices of a machine with one, for messages."""

# The name of a device, with its numbers.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z0-9]+)*")

# Names of OpenVINO's plugins that run models on other devices.
META_DEVICES = ("HETERO", "AUTO", "MULTI", "BATCH")


@dataclass(frozen=True)
class DeviceSet:
    """The devices of a HETERO device string, in its order of priority."""

    names: tuple[str, ...]  # names of the devices

    @classmethod
    def parse(cls, text: str | Sequence[str]) -> DeviceSet:
        """Reads a device string such as "HETERO:GPU,CPU", or a list of names such as ["GPU", "CPU"], in any case.

        Raises:
            UserError: the argument is not a HETERO string or a list of names, a name is empty or malformed, there are
                fewer than two devices or more than `MOST_DEVICES`, or a device is there twice ("GPU" and "GPU.0" are
                the same device).
        """
        example = 'give at least two devices, for example "HETERO:GPU,CPU"'
        if isinstance(text, Sequence) and not isinstance(text, str | bytes) and all(isinstance(n, str) for n in text):
            text = f"{HETERO}:{','.join(text)}"
        if not isinstance(text, str):
            raise UserError(f"device {text!r} is not a HETERO device list; {example}")
        head, colon, tail = in_upper_case(text).strip().partition(":")
        if head != HETERO or not colon:
            raise UserError(f'device "{text}" is not a HETERO device list; {example}')
        names = tuple(name.strip() for name in tail.split(","))
        for name in names:
            if not name:
                raise UserError(f'device list "{text}" has an empty device name; {example}')
            if not _NAME.fullmatch(name) or name.upper() in META_DEVICES:
                parts = [part for part in re.split(r"[;|/\s]+", tail.replace(",", ";")) if part]
                if len(parts) > len(names) and all(map(_NAME.fullmatch, parts)):
                    example = f'names are separated by commas, as in "{HETERO}:{",".join(parts)}"'
                raise UserError(f'device list "{text}": "{name}" is not the name of a physical device; {example}')
        if len(names) < 2:
            if kind_of(names[0]) == "CPU":
                example += f", or make two of the CPU: {TRY_OUT} and HETERO:CPU_A,CPU_B"
            raise UserError(f'device list "{text}" has only one device; {example}')
        _check_distinct(text, names)
        if len(names) > MOST_DEVICES:
            raise UserError(f'device list "{text}" has {len(names)} devices; give at most {MOST_DEVICES}')
        return cls(names)

    @property
    def hetero(self) -> str:
        """The device string for OpenVINO."""
        return f"{HETERO}:{','.join(self.names)}"

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)


def _check_distinct(text: str, names: Sequence[str]) -> None:
    """Raises UserError if two names are of one device; `text` is the device string, for the message."""
    seen: dict[str, str] = {}
    for name in names:
        first = seen.setdefault(name.removesuffix(".0"), name)
        if first is not name:
            same = f'lists "{name}" twice' if first == name else f'lists "{first}" and "{name}", the same device'
            raise UserError(f'device list "{text}" {same}; name every device once')


def in_upper_case(text: str) -> str:
    """Converts HETERO and the names of CPUs, GPUs and NPUs in a device string to upper case, as OpenVINO knows them."""

    def known(part: str) -> str:
        """Returns the name in upper case if only that is the name of a CPU, GPU or NPU."""
        name = part.strip().upper()
        return part.upper() if kind_of(part.strip()) is None and kind_of(name) else part

    head, colon, tail = text.partition(":")
    if head.strip().upper() != HETERO:
        return text
    return f"{head.upper()}{colon}{','.join(map(known, tail.split(',')))}"


def closest_names(name: str, known: Collection[str]) -> str:
    """Suggests known names for an unknown one: "; did you mean …?", or "" if no name is similar."""
    by_case = {similar_name.upper(): similar_name for similar_name in known}
    like = sorted(difflib.get_close_matches(name.upper(), by_case, 2))
    return f"; did you mean {' or '.join(by_case[similar_name] for similar_name in like)}?" if like else ""


def kind_of(name: str) -> str | None:
    """Returns the kind of a device by its name: "CPU" (also for virtual devices), "GPU", "NPU", or None for others."""
    base = name.partition(".")[0]
    if base in ("GPU", "NPU"):
        return base
    return "CPU" if "CPU" in base else None


def is_virtual(name: str) -> bool:
    """Whether a device name can only belong to a CPU plugin registered again ("CPU_A", never "CPU" or "CPU.0")."""
    return name.partition(".")[0] != "CPU" and kind_of(name) == "CPU"
