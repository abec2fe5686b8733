"""A plan: where each model of an application runs, and the predicted and measured figures of the application.

A run of the application has `count` runs of each of its models. A device's work is the time, µs, that it computes in
one run. A figure is a predicted or measured number of a plan, such as its runs per second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import product
from os import PathLike
from pathlib import Path
from typing import Any, get_type_hints

from ov_hsdag.model.gains import times
from ov_hsdag.model.placement import Placement
from ov_hsdag.storage.files import write_json
from ov_hsdag.utils.arguments import check_argument
from ov_hsdag.utils.byte_sizes import format_bytes
from ov_hsdag.utils.errors import UserError, one_line
from ov_hsdag.utils.reading import TABLES, read_json

FORMAT_VERSION = 1
"""Version of the file format of plans; `Plan.load` refuses others."""

REACHED = 0.99
"""Share of a requested rate from which the rate counts as reached; predictions are not more precise than that."""


def is_plan_file(path: Path) -> bool:
    """Whether a file counts as the plan of an application and not as a model, by the suffix of its name alone."""
    return path.suffix == ".json"


def on_device(device: str) -> str:
    """Returns the name of the plan that has all models of an application on one device, such as "on GPU"."""
    return f"on {device}"


@dataclass(frozen=True)
class PlannedModel:
    """A model of a plan.

    Attributes:
        count: runs of the model (of its workload, if it has one) in one run of the application.
        after: names of the models whose outputs it waits for.
        where: its device, or the placer that found its split.
        devices: names of the devices that it uses.
        busy_us: work of each device for the model in one run of the application, µs.
        memory_bytes: memory that the model needs on each device, bytes.
        begin_us: time at which the model begins in one run on an idle machine, µs.
        end_us: time at which it ends in such a run, µs.
        path: file that the model was written to, relative to the plan's file; None where it was not.
        workload: text of its workload, see `Workload.describe`; None where it has none.
        timed: measured times divided by those of the profile, by device, and under "boundaries" the same for calls of
            submodels and transfers; empty where the model was not timed.
    """

    count: float
    after: tuple[str, ...]
    where: str
    devices: tuple[str, ...]
    busy_us: dict[str, float]
    memory_bytes: dict[str, int]
    begin_us: float
    end_us: float
    path: str | None = None
    workload: str | None = None
    timed: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """The placements of several models on the devices of one machine.

    Attributes:
        devices: names of the devices in HETERO's order.
        objective: "throughput" of runs of the application, or "latency" of one run.
        models: the models by name.
        predicted: "runs_per_second"; "latency_us" of one run on an idle machine; "busy_us", "memory_bytes" by device.
        baselines: the same figures, and the devices of the models, of other plans by name. "on GPU" has all models
            there, "whole" is the best with each model on one device, "alone" has each model where it is best without
            the others.
        measured: figures of each plan that was measured, by name: "runs_per_second" or "latency_us"; "ratio" to the
            best plan without splits, and its 95% interval "ci"; "failed", a reason or null. None without measuring.
        chosen: name of this plan among the compared ones.
        asked: requested runs of the application per second; None where no rates were requested.
        memory: limits that were given for all models together, bytes by device.
        placements: placements of the models, by name. They are stored in the models' files and not in the plan's.
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
        """How many times better the plan is than all models on the best single device.

        It is None where no device holds all models, and where figures are missing.
        """
        key, figures = self._compared_figures()
        single = [one[key] for name, one in figures.items() if name in self._single_device_plans and one.get(key)]
        own_figure = figures.get(self.chosen, {}).get(key)
        if not single or not own_figure:
            return None
        return float(own_figure / max(single) if key == "runs_per_second" else min(single) / own_figure)

    @property
    def _single_device_plans(self) -> list[str]:
        """Names of the plans that have everything on one device."""
        return [on_device(device) for device in self.devices]

    def _compared_figures(self) -> tuple[str, Mapping[str, Any]]:
        """Selects the figures by which plans are compared: measured ones if this plan was measured, else predicted.

        Returns:
            The key of the figure, "latency_us" or "runs_per_second"; and the figures of each plan by name.
        """
        key = "latency_us" if self.objective == "latency" else "runs_per_second"
        if self.measured and (self.measured.get(self.chosen) or {}).get(key):
            return key, self.measured
        return key, {**self.baselines, self.chosen: self.predicted}

    def summary(self) -> str:
        """A few lines for people: the chosen plan, its rate or latency, and whether requested rates are reached."""
        _, figures = self._compared_figures()
        how = "measured" if figures is self.measured else "predicted"
        chosen_figures = figures[self.chosen]
        does = (
            f"{chosen_figures['latency_us'] / 1e3:.2f} ms a run"
            if self.objective == "latency"
            else f"{chosen_figures['runs_per_second']:.4g} runs a second"
        )
        gain = "" if self.gain is None else f", {times(self.gain, over='everything on the best device')}"
        first = f"HETERO:{','.join(self.devices)} ({self.objective}): {self.chosen}, {how} {does}{gain}"
        return f"{first}\n{self.fullest()}"

    @property
    def full(self) -> str:
        """Name of the device with the most work."""
        busy: dict[str, float] = self.predicted["busy_us"]
        return max(busy, key=busy.__getitem__)

    def fullest(self) -> str:
        """A line that names the busiest device and, unless requested rates are reached, its model with the most work.

        Where rates were requested, it says whether they are reached, and if not, what would help.
        """
        full = self.full
        largest = max(self.models, key=lambda name: self.models[name].busy_us.get(full, 0.0))
        share = self.models[largest].busy_us.get(full, 0.0) / max(self.predicted["busy_us"][full], 1e-30)
        if self.asked is None:
            return f"the fullest device is {full}, and {share:.0%} of its work is {largest}"
        chosen_figures = self._compared_figures()[1][self.chosen]  # has no rate where latency was measured
        reached = (chosen_figures.get("runs_per_second") or self.predicted["runs_per_second"]) / self.asked
        if reached >= REACHED:
            return f"rates: reached, with {reached:.2f} times what was asked for; the fullest device is {full}"
        advice = ", and so may a plan for throughput, as this one is for latency" if self.objective == "latency" else ""
        return (
            f"rates: not reached, {reached:.2f} times what was asked for: {full} is full, and {share:.0%} of its work"
            f" is {largest}; another device, a smaller {largest} or a lower rate of it would help{advice}"
        )

    def rows(self) -> list[tuple[str, ...]]:
        """A table of the models for people: name, count, placement, work of each device, memory.

        The work is in ms, with its share of the busiest device's work. The last two rows are the sums by device: work,
        and memory with its limit.
        """
        total = self.predicted["busy_us"][self.full] or 1.0

        def work(busy: Mapping[str, float]) -> list[str]:
            """Cells with the work of each device and its share of the busiest device's."""
            return [f"{busy[name] / 1e3:,.2f} ms {busy[name] / total:.0%}" for name in self.devices]

        rows = [
            (
                name,
                f"{model.count:g}",
                model.where if len(model.devices) < 2 else f"{', '.join(model.devices)} ({model.where})",
                *work(model.busy_us),
                format_bytes(sum(model.memory_bytes.values())),
            )
            for name, model in self.models.items()
        ]
        limits = {name: f" of {format_bytes(limit)}" for name, limit in self.memory.items()}
        memory = self.predicted["memory_bytes"]
        needs = [f"{format_bytes(memory[name])}{limits.get(name, '')}" for name in self.devices]
        return [*rows, ("all", "", "", *work(self.predicted["busy_us"]), ""), ("memory", "", "", *needs, "")]

    def compared(self) -> list[tuple[str, ...]]:
        """A table of all plans for people, this one first.

        The columns are the name, the predicted and the measured figure, the gain over the best plan without splits with
        its interval, and where the models are, or why measuring failed. Cells without a value are "".
        """
        key, unit, scale = (
            ("latency_us", " ms", 1e-3) if self.objective == "latency" else ("runs_per_second", "/s", 1.0)
        )

        def shown(plan: Mapping[str, Any] | None) -> str:
            """A cell with the figure of a plan; "" where it has none."""
            return f"{plan[key] * scale:.4g}{unit}" if plan and plan.get(key) else ""

        rows = list[tuple[str, ...]]()
        for name, plan in {self.chosen: self.predicted, **self.baselines}.items():
            real = (self.measured or {}).get(name, {})
            ci = real.get("ci")
            interval = f"{real['ratio']:.2f} ({ci[0]:.2f} to {ci[1]:.2f})" if ci else ""
            where = (
                ""
                if name in self._single_device_plans
                else ", ".join(f"{model}: {at}" for model, at in plan["where"].items())
            )
            rows.append((name, shown(plan), shown(real), interval, real.get("failed") or where))
        return rows

    def files(self, path: Path) -> dict[str, Path]:
        """Returns the paths of the models' files, by name of the model.

        Args:
            path: the plan's file, in whose folder they are.

        Raises:
            UserError: the plan does not name the files.
        """
        if not all(one.path for one in self.models.values()):
            raise UserError(f"{path} was saved in Python, without its models' files: ov-hsdag plan writes all of them")
        return {name: path.parent / (one.path or "") for name, one in self.models.items()}

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON-able values without the placements; `load` reads them from a file."""
        found = {key: value for key, value in asdict(self).items() if key != "placements"}
        return {"format": FORMAT_VERSION, **found}

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the plan as JSON. Raises UserError where the file cannot be written."""
        write_json(path, self.to_dict())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Plan:
        """Reads a plan that `save` wrote. Raises UserError where the file cannot be read or has another format."""
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
            plan = cls(models=models, devices=tuple(data.pop("devices")), **data)
            for key in ("runs_per_second", "latency_us"):
                check_argument(f"predicted {key}", plan.predicted[key], float)
            for render in (plan.summary, plan.rows, plan.compared):  # they raise an error where a figure is missing
                render()
            return plan
        except (OSError, UserError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
            raise UserError(f"'{path}' is no plan of several models: {one_line(error)}") from error
