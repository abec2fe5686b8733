"""Device profiles: costs of operations and transfers on devices, which need not be on this machine.

A profile is a JSON file (format: profile.schema.json), or combines built-in profiles, which are based on public
datasheets. docs/reference/profiles.md describes the format and the cost model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.costs.schema import Violation, check, child_path, shown
from ov_hsdag.costs.supported_types import OF_KIND
from ov_hsdag.utils.errors import UserError, shortened
from ov_hsdag.utils.reading import SETTINGS, read_json

SCHEMA_PATH = Path(__file__).with_name("profile.schema.json")
BUILTIN_DIRECTORY = Path(__file__).with_name("profiles")

# n cores do the work of n^0.85 cores on a single request: 1.8 of 2, 9 of 14, 31 of 56. Estimated such that cpu_core
# and cpu_core_amx come near the built-in profiles of CPUs with 14 and 56 cores in dense operations.
_SCALING = 0.85

# Ratio of the peak rate with f16 to that with f32 from which a GPU has matrix engines; other GPUs have a ratio of 2.
_F16_RATIO_OF_MATRIX_ENGINES = 4.0

# Beginnings of the sources of figures that are guesses, and of figures that a device in host memory does not have.
_ESTIMATE, _IN_HOST_MEMORY = "estimate", "computes in host memory"


@dataclass(frozen=True)
class DeviceProfile:
    """The costs of one device. Times are in µs, rates in 10^9 operations or bytes per second."""

    name: str  # device name, "GPU.1"
    kind: str  # "CPU", "GPU" or "NPU"
    description: str  # the device that the figures describe, for users
    precision: str  # floating-point precision that the device infers in: "f32", "f16" or "bf16"
    peak_gflops: Mapping[str, float]  # peak rate by precision; "i8" counts for quantised operations
    efficiency: Mapping[str, float]  # share of the peak that operations reach, see `efficiency_of` for its keys
    memory_gbps: float  # memory bandwidth
    memory_bytes: int  # memory that models may use
    launch_us: float  # time to start one executed operation
    submodel_us: float  # time to call one submodel
    link_us: float  # time to start one transfer from or to host memory
    link_gbps: float | None  # bandwidth to host memory; None if the device computes in host memory
    sources: Mapping[str, str]  # origin of each figure, by its name; those of guesses begin with "estimate"
    matches: tuple[str, ...] = ()  # regular expressions for FULL_DEVICE_NAME of the devices that it describes
    # operation types that the device runs; by default those that its kind is known to run, see `runs`
    supported: tuple[str, ...] | None = None
    unsupported: tuple[str, ...] = ()  # operation types among these that the device cannot run
    # bandwidth of operation types where it differs from `memory_gbps`: tensors that the operation before left in caches
    # are read faster than from memory
    gbps: Mapping[str, float] = field(default_factory=dict)
    # rate of rewriting a tensor between the layout of convolutions and the plain one; None if it is not known
    layout_gbps: float | None = None
    cores: int = 0  # number of cores that the figures of a CPU hold for; 0 if it is not known
    builtin: str = ""  # name of the built-in profile with these figures; "" if they come from another file
    # precision of the KV caches of decoders ("u8", "f16", "bf16", "f32"); by default the model's or the device's choice
    kv_precision: str | None = None

    @property
    def estimates(self) -> tuple[str, ...]:
        """Names of the figures that are guesses, neither from this device's datasheet nor measured."""
        return tuple(key for key, source in self.sources.items() if source.startswith(_ESTIMATE))

    @property
    def has_matrix_engines(self) -> bool:
        """Whether a GPU multiplies matrices in units made for it, judged by its peak rates with f16 and f32."""
        f16, f32 = (self.peak_gflops.get(precision, 0.0) for precision in ("f16", "f32"))
        return f16 >= _F16_RATIO_OF_MATRIX_ENGINES * f32

    def runs(self, type_name: str) -> bool:
        """Whether the device runs operations of a type, as far as is known without asking it.

        GPUs and NPUs run only types that are listed. A CPU runs any type, because custom operations bring an
        implementation.
        """
        supported = self.supported if self.supported is not None else OF_KIND.get(self.kind)
        return type_name not in self.unsupported and (supported is None or type_name in supported)

    def gbps_of(self, type_name: str) -> float:
        """Bandwidth that an operation type reaches, 10^9 bytes per second."""
        return self.gbps.get(type_name, self.gbps.get("default", self.memory_gbps))

    def efficiency_of(self, type_name: str, precision: str) -> float:
        """Share of the peak rate that an operation type reaches in a precision."""
        keys = (f"{type_name}@{precision}", type_name, f"default@{precision}", "default")
        return self.efficiency[next((key for key in keys if key in self.efficiency), keys[-1])]

    def at_precision(self, precision: str | None) -> DeviceProfile:
        """Changes the precision that the device infers in.

        The profile stays as it is for None, "i8", or a precision without a peak rate.
        """
        if precision is None or precision == "i8" or precision not in self.peak_gflops:
            return self
        return replace(self, precision=precision)

    def with_threads(self, threads: int, memory_gbps: float) -> DeviceProfile:
        """Scales the profile of one core to a CPU of several such cores.

        Args:
            threads: number of cores.
            memory_gbps: memory bandwidth that the cores share, 10^9 bytes per second. The result has at most that of
                `threads` cores, and at least that of one.
        """
        many = self if threads == 1 else self._with_scaled_rates(threads**_SCALING, f"{threads} times")
        return replace(many, memory_gbps=max(self.memory_gbps, min(self.memory_gbps * threads, memory_gbps)))

    def with_fewer_cores(self, cores: int) -> DeviceProfile:
        """Scales the rates of a CPU down to `cores` of its cores; the profile stays as it is if it has no more."""
        if cores >= self.cores:
            return self
        return self._with_scaled_rates((cores / self.cores) ** _SCALING, f"{cores} of {self.cores} cores")

    def standing_in(self) -> DeviceProfile:
        """Returns the same figures for another device, with sources that say that they are guesses.

        Sources that say so already, and those of figures that a device in host memory does not have, stay as they are.
        """
        guess = f"{_ESTIMATE}: as in the built-in profile {self.builtin}, which is of another device"
        kept = (_ESTIMATE, _IN_HOST_MEMORY)
        return replace(self, sources={key: one if one.startswith(kept) else guess for key, one in self.sources.items()})

    def _with_scaled_rates(self, factor: float, description: str) -> DeviceProfile:
        """Multiplies the peak rates and `gbps` by a factor, and adds `description` to the texts that describe them."""
        return replace(
            self,
            description=f"{description}: {self.description}",
            peak_gflops={name: rate * factor for name, rate in self.peak_gflops.items()},
            gbps={name: rate * factor for name, rate in self.gbps.items()},
            sources={
                key: f"{source}; {description}" if key in ("peak_gflops", "gbps") else source
                for key, source in self.sources.items()
            },
        )


@dataclass(frozen=True)
class Link:
    """A direct transfer from one device to another, which does not go through host memory."""

    source: str  # name of the sending device
    target: str  # name of the receiving device
    us: float  # time to start a transfer, µs
    gbps: float  # bandwidth, 10^9 bytes per second


@dataclass(frozen=True)
class Profile:
    """Profiles of the devices of a machine, and the costs that follow from them."""

    devices: Mapping[str, DeviceProfile]  # profile of each device, by name
    links: tuple[Link, ...] = ()  # direct transfers; all others go through host memory
    origin: str = "the built-in profiles"  # name of its source, for messages

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Reads a profile's file.

        Raises:
            UserError: the file is no profile; the message has the file, the JSON path, the expected and the found
                value.
        """
        return cls.of(_read(Path(path)), str(path))

    @classmethod
    def of(cls, document: Mapping[str, Any], path: str) -> Profile:
        """Makes the profile of a document that keeps to the schema.

        Args:
            document: the JSON value.
            path: name of its source, for messages.

        Raises:
            UserError: a link is to an unknown device, or there is no such built-in profile.
        """
        profiles = {name: _read_device(name, entry, str(path)) for name, entry in document["devices"].items()}
        links = []
        for index, entry in enumerate(document.get("links", ())):
            for end in ("from", "to"):
                if entry[end] not in profiles:
                    names = ", ".join(profiles)
                    raise UserError(
                        f"{path}: $.links[{index}].{end}: expected one of {shortened(names)}, got {shown(entry[end])}"
                    )
            links.append(Link(entry["from"], entry["to"], float(entry["us"]["value"]), float(entry["gbps"]["value"])))
        return cls(profiles, tuple(links), str(path))

    def device(self, name: str) -> DeviceProfile:
        """Finds the profile of a device.

        If there is none of this name, that of the name without its number is taken: "GPU" for "GPU.1". "GPU" and
        "GPU.0" are the same device.

        Raises:
            UserError: there is no such device.
        """
        base, _, number = name.partition(".")
        for candidate in (name, f"{base}.0" if number in ("", "0") else name, base):
            if candidate in self.devices:
                return self.devices[candidate]
        raise UserError(
            f'{self.origin} has no device "{name}"; it has {", ".join(self.devices)}: add "{name}" under "devices"'
        )

    def layout_us_per_byte(self, names: Sequence[str]) -> NDArray[np.float64]:
        """Time of rewriting a byte between each device's own layout and the plain one, µs, float64 [devices].

        It is 0 where the profile does not have it.
        """
        rates = [self.device(name).layout_gbps for name in names]
        return np.array([1e-3 / rate if rate else 0.0 for rate in rates])

    def submodel_us(self, names: Sequence[str]) -> NDArray[np.float64]:
        """Time of calling one submodel on each device in µs, float64 [devices]."""
        return np.array([self.device(name).submodel_us for name in names], np.float64)

    def memory_bytes(self, names: Sequence[str]) -> NDArray[np.int64]:
        """Memory of each device in bytes, int64 [devices]."""
        return np.array([self.device(name).memory_bytes for name in names], np.int64)

    def with_kv_precision(self, precision: str | None) -> Profile:
        """The same devices with KV caches in this precision; unchanged for None."""
        if precision is None:
            return self
        return replace(self, devices={name: replace(one, kv_precision=precision) for name, one in self.devices.items()})

    def with_memory(self, limits: Mapping[str, int]) -> Profile:
        """Replaces the memory of some devices; `limits` are in bytes, by device name.

        Raises:
            UserError: there is no such device.
        """
        limited = {name: replace(self.device(name), memory_bytes=limit) for name, limit in limits.items()}
        return replace(self, devices={**self.devices, **limited})


def builtin_names() -> tuple[str, ...]:
    """Names of the built-in profiles, for a profile's {"builtin": name}."""
    return tuple(sorted(path.stem for path in BUILTIN_DIRECTORY.glob("*.json")))


@cache
def load_builtin(stem: str) -> DeviceProfile:
    """Reads a built-in profile.

    Raises:
        UserError: there is no such profile.
    """
    if stem not in builtin_names():
        raise UserError(f'there is no built-in profile "{stem}"; there are {", ".join(builtin_names())}')
    path = BUILTIN_DIRECTORY / f"{stem}.json"
    (profile,) = Profile.of(read_json(path, SETTINGS), str(path)).devices.values()
    return replace(profile, builtin=stem)


def _read(path: Path) -> dict[str, Any]:
    """Reads a profile's JSON and checks it against the schema.

    Raises:
        UserError: the file cannot be read, is no JSON, or breaks the schema.
    """
    try:
        document = read_json(path, SETTINGS, strict=True)
        check(json.loads(SCHEMA_PATH.read_text(encoding="utf-8")), document)
    except OSError as error:
        hint = "name a profile's JSON file"
        if str(path) in builtin_names():
            hint += f', in which {{"builtin": "{path}"}} stands for a device (docs/reference/profiles.md)'
        raise UserError(f"cannot read profile {path}: {error.strerror or error}; {hint}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is no text file: expected a profile in JSON (UTF-8)") from error
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is no JSON: {error.msg} in line {error.lineno}, column {error.colno}") from error
    except ValueError as error:  # nested too deep, numbers with thousands of digits
        raise UserError(f"{path} is no JSON: {error}") from error
    except Violation as error:
        raise UserError(f"{path}: {error}") from error
    except RecursionError as error:  # parsed, but too deep to be shown
        raise UserError(f"{path}: expected a profile, got JSON that is nested too deep") from error
    return dict(document)


def _read_device(name: str, entry: Mapping[str, Any], origin: str) -> DeviceProfile:
    """Makes a device's profile from its entry in a file.

    An entry is {"builtin": NAME}, in which the schema allows no other key, or it has all figures of the device. A
    figure is {"value": …, "source": …}; its value is a number, numbers by name, or null.

    Args:
        name: name of the device.
        entry: the entry, which keeps to the schema.
        origin: name of the file, for messages.

    Raises:
        UserError: there is no such built-in profile.
    """
    if "builtin" in entry:
        if entry["builtin"] not in builtin_names():
            expected = ", ".join(builtin_names())
            json_path = f"{child_path('$.devices', name)}.builtin"
            raise UserError(f"{origin}: {json_path}: expected one of {expected}, got {shown(entry['builtin'])}")
        return replace(load_builtin(entry["builtin"]), name=name)

    def as_float(value: Any) -> Any:
        """Converts the value of a figure, or each number in it, to float."""
        if isinstance(value, dict):
            return {key: float(number) for key, number in value.items()}
        return None if value is None else float(value)

    figures = {key: figure for key, figure in entry.items() if isinstance(figure, dict)}
    values: dict[str, Any] = {**entry, **{key: as_float(figure["value"]) for key, figure in figures.items()}}
    values |= {key: int(values[key]) for key in ("memory_bytes", "cores") if key in values}
    values |= {key: tuple(values[key]) for key in ("matches", "supported", "unsupported") if key in values}
    sources = {key: figure["source"] for key, figure in figures.items()}
    return DeviceProfile(name=name, sources=sources, **values)
