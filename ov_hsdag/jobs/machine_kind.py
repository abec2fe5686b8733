"""The kind of machine that a job runs on: machines on which measurements are the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """A group of equal machines that have the devices of a command."""

    number: str  # hash of the devices, cores and memory, 16 hexadecimal digits, see `Machine.kind`
    devices: Mapping[str, str]  # models of the command's devices, by the names in its device list
    machines: int  # number of machines
    labels: Mapping[str, str]  # Ray labels, value by name, by which exactly these machines are selected

    @property
    def name(self) -> str:
        """A name for files: the model of the first device, and the beginning of the number."""
        return f"{next(iter(self.devices.values()))}-{self.number[:6]}"

    def describe(self) -> str:
        """Returns the models of the devices and the beginning of the number, for messages."""
        listed = ", ".join(f"{name} {text}" for name, text in self.devices.items())
        return f"{listed} ({self.number[:6]})"
