"""Device names, and the list of devices that "HETERO:GPU,CPU" is."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from ov_hsdag.utils.errors import UserError

PRECISIONS = ("f32", "f16", "bf16", "i8")

HETERO = "HETERO"
MOST_DEVICES = 16
"""Devices of a list, at most. Eight GPUs and a CPU are a real machine; more is untested."""

TRY_OUT = 'export OV_HSDAG_VIRTUAL_DEVICES="CPU_A:INFERENCE_NUM_THREADS=1;CPU_B:INFERENCE_NUM_THREADS=1"'
"""Makes two devices of a machine that has one, in a shell."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z0-9]+)*")
META_DEVICES = ("HETERO", "AUTO", "MULTI", "BATCH")


@dataclass(frozen=True)
class DeviceSet:
    """The devices of a HETERO device string, in its order of priority."""

    names: tuple[str, ...]

    @classmethod
    def parse(cls, text: str | Sequence[str]) -> DeviceSet:
        """Read a device string such as "HETERO:GPU,CPU", or a list of names such as ["GPU", "CPU"]; in any case.

        Raises UserError: not a HETERO string or a list of names, an empty or malformed name, fewer than two devices or
        more than `MOST_DEVICES`, or a device twice ("GPU" and "GPU.0" are the same device).
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
        seen: dict[str, str] = {}
        for name in names:
            first = seen.setdefault(name.removesuffix(".0"), name)
            if first is not name:
                same = f'lists "{name}" twice' if first == name else f'lists "{first}" and "{name}", the same device'
                raise UserError(f'device list "{text}" {same}; name every device once')
        if len(names) > MOST_DEVICES:
            raise UserError(f'device list "{text}" has {len(names)} devices; give at most {MOST_DEVICES}')
        return cls(names)

    @property
    def hetero(self) -> str:
        """The device string that OpenVINO takes."""
        return f"{HETERO}:{','.join(self.names)}"

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)


def in_upper_case(text: str) -> str:
    """A device string as OpenVINO knows it, where HETERO or names of CPUs, GPUs and NPUs are in lower case."""

    def known(part: str) -> str:
        name = part.strip().upper()
        return part.upper() if kind_of(part.strip()) is None and kind_of(name) else part

    head, colon, tail = text.partition(":")
    if head.strip().upper() != HETERO:
        return text
    return f"{head.upper()}{colon}{','.join(map(known, tail.split(',')))}"


def closest_names(name: str, known: Collection[str]) -> str:
    """What to say of a name that is none of those known: "; did you mean …?" where some are like it, else ""."""
    by_case = {one.upper(): one for one in known}
    like = sorted(difflib.get_close_matches(name.upper(), by_case, 2))
    return f"; did you mean {' or '.join(by_case[one] for one in like)}?" if like else ""


def kind_of(name: str) -> str | None:
    """Kind of a device from its name: "CPU" (virtual ones too), "GPU", "NPU" or None."""
    base = name.partition(".")[0]
    if base in ("GPU", "NPU"):
        return base
    return "CPU" if "CPU" in base else None


def is_virtual(name: str) -> bool:
    """Whether a device name can only be that of a CPU plugin registered again ("CPU_A", never "CPU" or "CPU.0")."""
    return name.partition(".")[0] != "CPU" and kind_of(name) == "CPU"
