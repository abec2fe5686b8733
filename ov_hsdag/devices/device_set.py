"""Device names, and the list of devices that "HETERO:GPU,CPU" is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ov_hsdag.utils.errors import UserError

PRECISIONS = ("f32", "f16", "bf16", "i8")

HETERO = "HETERO"
MOST_DEVICES = 16
"""Devices of a list, at most. Eight GPUs and a CPU are a real machine; more is untested."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z0-9]+)*")
_META_DEVICES = ("HETERO", "AUTO", "MULTI", "BATCH")


@dataclass(frozen=True)
class DeviceSet:
    """The devices of a HETERO device string, in its order of priority."""

    names: tuple[str, ...]

    @classmethod
    def parse(cls, text: str | Sequence[str]) -> DeviceSet:
        """Read a device string such as "HETERO:GPU,CPU", or a list of names such as ["GPU", "CPU"].

        Raises:
            UserError: not a HETERO string or a list of names, an empty or malformed name, fewer than two devices or
                more than `MOST_DEVICES`, or a device twice ("GPU" and "GPU.0" are the same device).
        """
        example = 'give at least two devices, for example "HETERO:GPU,CPU"'
        if isinstance(text, Sequence) and not isinstance(text, str | bytes) and all(isinstance(n, str) for n in text):
            text = f"{HETERO}:{','.join(text)}"
        if not isinstance(text, str):
            raise UserError(f"device {text!r} is not a HETERO device list; {example}")
        head, colon, tail = text.strip().partition(":")
        if head != HETERO or not colon:
            raise UserError(f'device "{text}" is not a HETERO device list; {example}')
        names = tuple(name.strip() for name in tail.split(","))
        for name in names:
            if not name:
                raise UserError(f'device list "{text}" has an empty device name; {example}')
            if not _NAME.fullmatch(name) or name.upper() in _META_DEVICES:
                raise UserError(f'device list "{text}": "{name}" is not the name of a physical device; {example}')
        if len(names) < 2:
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

    def index(self, name: str) -> int:
        """Position of a device. Raises UserError when it is not in the list."""
        if name not in self.names:
            raise UserError(f'device "{name}" is not in {self.hetero}')
        return self.names.index(name)

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)


def kind_of(name: str) -> str | None:
    """Kind of a device from its name: "CPU" (virtual ones too), "GPU", "NPU" or None."""
    base = name.partition(".")[0]
    if base in ("GPU", "NPU"):
        return base
    return "CPU" if "CPU" in base else None


def is_virtual(name: str) -> bool:
    """Whether a device name can only be that of a CPU plugin registered again ("CPU_A", never "CPU" or "CPU.0")."""
    base = name.partition(".")[0]
    return base != "CPU" and kind_of(name) == "CPU"
