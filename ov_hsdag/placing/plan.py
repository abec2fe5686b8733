"""A plan: where each model of an application runs, and what the whole is predicted and measured to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import product
from os import PathLike
from pathlib import Path
from typing import Any, get_type_hints

from ov_hsdag.model.gains import on_device, times
from ov_hsdag.model.placement import Placement
from ov_hsdag.storage.files import write_json
from ov_hsdag.utils.arguments import check_argument
from ov_hsdag.utils.byte_sizes import format_bytes
from ov_hsdag.utils.errors import UserError, one_line
from ov_hsdag.utils.reading import TABLES, read_json

FORMAT_VERSION = 1

REACHED = 0.99
"""Share of what is asked for from which a rate counts as reached."""


@dataclass(frozen=True)
class PlannedModel:
    """A model of the application."""

    count: float  # runs of the model (of its workload, if it has one) in one run of the application
    after: tuple[str, ...]  # models whose outputs it waits for
    where: str  # its device, or what found its split
    devices: tuple[str, ...]  # that it uses
    busy_us: dict[str, float]  # work of each device for it in a run of the application, µs
    memory_bytes: dict[str, int]  # that it needs on each device
    begin_us: float  # in one run alone, µs
    end_us: float
    path: str | None = None  # where it was written; relative to the plan's file
    workload: str | None = None  # as `Workload.describe`
    # how many times as long as the profile says each device takes for it, and under "boundaries" calls of submodels and
    # transfers, as far as it was timed; empty: it was not
    timed: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """Several models on the devices of one machine.

    Attributes:
        devices: names in HETERO's order.
        objective: "throughput" of runs of the application, or "latency" of one run.
        models: by name.
        predicted: runs_per_second, latency_us of one run alone, busy_us and memory_bytes of each device.
        baselines: the same, and where each model is, of other plans by name: "on GPU" has everything there, "whole" is
            the best with each model on one device, "alone" has each where it would be best without the others.
        measured: None, or of each plan: runs_per_second or latency_us, ratio to the best without splits and its ci
            (95%), failed (why, or null).
        chosen: name of the plan.
        asked: runs a second that were asked for, None where rates were not.
        memory: limits that were given for all models together, bytes by device.
        placements: of the models, by name; they are written in the models' files. Not part of the stored plan.
    """

    devices: tuple[str, ...]
    objective: str
    models: dict[str, PlannedModel]
    predicted: dict[str, Any]
    baselines: dict[str, Any] = field(default_factory=dict)
    measured: dict[str, Any] | None = None
    chosen: str = "together"
    asked: float | None = None
    memory: dict[str, int] = field(default_factory=dict)
    placements: dict[str, Placement] = field(default_factory=dict, compare=False, repr=False)

    @property
    def gain(self) -> float | None:
        """How many times better than everything on the best one device; None where that does not fit or run."""
        key, figures = self._figures()
        single = [one[key] for name, one in figures.items() if name in self._on_one_device and one.get(key)]
        own = figures.get(self.chosen, {}).get(key)
        if not single or not own:
            return None
        return float(own / max(single) if key == "runs_per_second" else min(single) / own)

    @property
    def _on_one_device(self) -> list[str]:
        """Names of the plans that have everything on one device."""
        return [on_device(device) for device in self.devices]

    def _figures(self) -> tuple[str, Mapping[str, Any]]:
        """What is compared, and of each plan: as measured where that is known, else as predicted."""
        key = "latency_us" if self.objective == "latency" else "runs_per_second"
        if self.measured and (self.measured.get(self.chosen) or {}).get(key):
            return key, self.measured
        return key, {**self.baselines, self.chosen: self.predicted}

    def summary(self) -> str:
        """A few lines: what was chosen, what it does, and of a rate that is not reached, why."""
        _, figures = self._figures()
        how = "measured" if figures is self.measured else "predicted"
        own = figures[self.chosen]
        does = (
            f"{own['latency_us'] / 1e3:.2f} ms a run"
            if self.objective == "latency"
            else f"{own['runs_per_second']:.4g} runs a second"
        )
        gain = "" if self.gain is None else f", {times(self.gain, over='everything on the best device')}"
        first = f"HETERO:{','.join(self.devices)} ({self.objective}): {self.chosen}, {how} {does}{gain}"
        return f"{first}\n{self.fullest()}"

    @property
    def full(self) -> str:
        """The device with most work."""
        busy: dict[str, float] = self.predicted["busy_us"]
        return max(busy, key=busy.__getitem__)

    def fullest(self) -> str:
        """Which device is full and with what; of rates that were asked for, whether they are reached."""
        full = self.full
        most = max(self.models, key=lambda name: self.models[name].busy_us.get(full, 0.0))
        share = self.models[most].busy_us.get(full, 0.0) / max(self.predicted["busy_us"][full], 1e-30)
        if self.asked is None:
            return f"the fullest device is {full}, and {share:.0%} of its work is {most}"
        own = self._figures()[1][self.chosen]  # where latency was measured, the rate was not
        reached = (own.get("runs_per_second") or self.predicted["runs_per_second"]) / self.asked
        if reached >= REACHED:
            return f"rates: reached, with {reached:.2f} times what was asked for; the fullest device is {full}"
        more = ", and so may a plan for throughput, as this one is for latency" if self.objective == "latency" else ""
        return (
            f"rates: not reached, {reached:.2f} times what was asked for: {full} is full, and {share:.0%} of its work"
            f" is {most}; another device, a smaller {most} or a lower rate of it would help{more}"
        )

    def rows(self) -> list[tuple[str, ...]]:
        """A table: model, runs in a run of the application, where it is, its work and share of each device, its memory.

        Then what each device has of all: work, and memory with its limit.
        """
        total = self.predicted["busy_us"][self.full] or 1.0

        def work(busy: Mapping[str, float]) -> list[str]:
            return [f"{busy[name] / 1e3:,.2f} ms {busy[name] / total:.0%}" for name in self.devices]

        rows = [
            (
                name,
                f"{one.count:g}",
                one.where if len(one.devices) < 2 else f"{', '.join(one.devices)} ({one.where})",
                *work(one.busy_us),
                format_bytes(sum(one.memory_bytes.values())),
            )
            for name, one in self.models.items()
        ]
        limits = {name: f" of {format_bytes(limit)}" for name, limit in self.memory.items()}
        memory = self.predicted["memory_bytes"]
        needs = [f"{format_bytes(memory[name])}{limits.get(name, '')}" for name in self.devices]
        return [*rows, ("all", "", "", *work(self.predicted["busy_us"]), ""), ("memory", "", "", *needs, "")]

    def compared(self) -> list[tuple[str, ...]]:
        """A table of all plans: name, figures, times the best without splits, and where models are or why it failed."""
        key, unit, scale = (
            ("latency_us", " ms", 1e-3) if self.objective == "latency" else ("runs_per_second", "/s", 1.0)
        )

        def told(one: Mapping[str, Any] | None) -> str:
            return f"{one[key] * scale:.4g}{unit}" if one and one.get(key) else ""

        rows = list[tuple[str, ...]]()
        for name, one in {self.chosen: self.predicted, **self.baselines}.items():
            real = (self.measured or {}).get(name, {})
            ci = real.get("ci")
            interval = f"{real['ratio']:.2f} ({ci[0]:.2f} to {ci[1]:.2f})" if ci else ""
            where = (
                "" if name in self._on_one_device else ", ".join(f"{model}: {at}" for model, at in one["where"].items())
            )
            rows.append((name, told(one), told(real), interval, real.get("failed") or where))
        return rows

    def files(self, path: Path) -> dict[str, Path]:
        """The models' files by name. path: the plan's own. UserError: it does not know them."""
        if not all(one.path for one in self.models.values()):
            raise UserError(f"{path} was saved in Python, without its models' files: ov-hsdag plan writes all of them")
        return {name: path.parent / (one.path or "") for name, one in self.models.items()}

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; `load` reads it back."""
        found = {key: value for key, value in asdict(self).items() if key != "placements"}
        return {"format": FORMAT_VERSION, **found}

    def save(self, path: str | PathLike[str]) -> None:
        """Writes it as JSON. UserError: it cannot be written."""
        write_json(path, self.to_dict())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Plan:
        """Reads what `save` wrote. UserError: it cannot be read, or is no plan of this release."""
        try:
            data = dict(read_json(path, TABLES))
            if data.pop("format") != FORMAT_VERSION:
                raise ValueError("another format")
            models = {
                name: PlannedModel(**{**one, "after": tuple(one["after"]), "devices": tuple(one["devices"])})
                for name, one in data.pop("models").items()
            }
            for (name, one), (key, kind) in product(models.items(), get_type_hints(PlannedModel).items()):
                check_argument(f"{key} of '{name}'", getattr(one, key), kind)
            check_argument("memory", data.get("memory", {}), dict[str, int])
            found = cls(models=models, devices=tuple(data.pop("devices")), **data)
            for key in ("runs_per_second", "latency_us"):
                check_argument(f"predicted {key}", found.predicted[key], float)
            for told in (found.summary, found.rows, found.compared):  # which raise what it lacks
                told()
            return found
        except (OSError, UserError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
            raise UserError(f"'{path}' is no plan of several models: {one_line(error)}") from error
