"""A placement: the device of every node of a model, with its predicted and measured figures."""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any, Protocol, cast

from ov_hsdag.model import stored_placement
from ov_hsdag.model.affinities import remove_affinities, set_affinities
from ov_hsdag.model.gains import BEST_SINGLE, HSDAG, placer_of, times
from ov_hsdag.model.relaxed_shapes import is_relaxing, restore_shapes
from ov_hsdag.storage import files
from ov_hsdag.utils.errors import PlacementNotFollowedWarning, UserError, listed, shortened
from ov_hsdag.utils.failures import out_of_time, read_failure
from ov_hsdag.utils.lazy import ov
from ov_hsdag.utils.warn import warn_caller

# Relative difference of predictions below which they are printed as equal: 0.05% rounds to 0.0%.
_EQUAL_FOR_USERS = 5e-4

NOT_TAKEN = ": not taken"
"""End of a note in `Placement.notes` on a candidate whose predicted gain is too small for its number of submodels."""


class ReportSource(Protocol):
    """The data from which reports of a placement made in this process are drawn (`ov_hsdag.explaining.report_data`)."""

    def write(
        self, placement: Placement, path: str | PathLike[str], title: str, done: Mapping[str, Any] | None
    ) -> None:
        """Writes a report, see `Placement.report`.

        Args:
            placement: the placement.
            path: the report's file, which ends in .html, .svg or .png.
            title: name of the model.
            done: further facts about how the placement was made; None for no further facts.
        """

    def image(self, placement: Placement) -> str:
        """Returns the picture of the split as an HTML element."""

    def bound(self) -> str:
        """Explains in a line why no split can gain more.

        Returns:
            The line; "" if every device is used and the gain is near their number.
        """


@dataclass(frozen=True)
class Placement:
    """The device of each node, with predicted and measured figures of the placement.

    Attributes:
        devices: the devices that the placement was made for, in HETERO's order.
        affinity: one of ``devices`` for each node, by friendly name; other nodes follow their neighbours.
        objective: "latency" or "throughput".
        predicted: figures of the cost model: latency_us, throughput_ips, memory_bytes {device: n}, submodels,
            transfer_bytes.
        measured: figures of each candidate that was run on the real devices, by its name (for a single device: the
            device); None if nothing was measured. latency_us or throughput_ips; ratio (how many times better than the
            best candidate that needs no placement) and ci (its 95% confidence interval [low, high]); times_best_single
            and times_best_single_ci, the same over the best single device; submodels; failed (the reason, or null).
            Unknown figures are null.
        baselines: predicted figures of other placements, by the name of the placer (for a single device: the device).
            For throughput, "copies" is the model on each device at once, which HETERO cannot run: it is never chosen.
            In `measured` it also has times_chosen and times_chosen_ci, how many times better it was than the chosen
            placement.
        policy: name of the policy that proposed a placement, or None.
        chosen: name of the placer whose placement this is.
        settings: other settings of the run, where they are known: command ("place", "finetune"); the given options of
            `PlaceOptions`, with names in place of files; shapes as {input: sizes}, memory as {device: bytes}; measure;
            and virtual_devices (their declaration).
        seconds: duration of each phase of placing, by the phase's name.
        why: the reason why a simple candidate was chosen and no other; "" where the figures show it.
        notes: reason why a candidate was left out, not taken or not measured, by the candidate's name.
        same_as: the first candidate that is the same placement, by the name of each later one.
        unsure: names of placers whose placements may be better than the chosen simple candidate: measured rounds were
            too few or differed too much to tell, or there was no time to run any placement.
        source: the data of `report`; None where the placement was read and not made here.

    The last six are not stored with the model, and placements that differ in them alone are equal.
    """

    devices: tuple[str, ...]
    affinity: dict[str, str]
    objective: str = "latency"
    predicted: dict[str, Any] | None = None
    measured: dict[str, Any] | None = None
    baselines: dict[str, Any] = field(default_factory=dict)
    policy: str | None = None
    chosen: str = "given"
    settings: dict[str, Any] | None = None
    seconds: dict[str, float] = field(default_factory=dict, compare=False)
    why: str = field(default="", compare=False)
    notes: dict[str, str] = field(default_factory=dict, compare=False)
    same_as: dict[str, str] = field(default_factory=dict, compare=False)
    unsure: tuple[str, ...] = field(default=(), compare=False)
    source: ReportSource | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Checks that `affinity` uses no other devices than `devices`. Raises UserError."""
        unknown = sorted(set(self.affinity.values()) - set(self.devices))
        if unknown:
            raise UserError(
                f"the placement uses {listed(unknown)}, which its device list {shortened(self.hetero)} lacks"
            )

    def __repr__(self) -> str:
        """One line, whatever the size of the model: devices, objective, placer, and number of nodes of each device."""
        counts = Counter(self.affinity.values())
        nodes = ", ".join(f"{device}: {counts[device]}" for device in self.devices)
        return f"<Placement {self.hetero} objective={self.objective} chosen={self.chosen} nodes={{{nodes}}}>"

    @property
    def hetero(self) -> str:
        """The device string that the placement was made for: "HETERO:GPU,CPU"."""
        return f"HETERO:{','.join(self.devices)}"

    def used(self) -> tuple[str, ...]:
        """Returns the devices that have at least one node, in the order of ``devices``."""
        present = set(self.affinity.values())
        return tuple(device for device in self.devices if device in present)

    def missing(self, names: Collection[str]) -> list[str]:
        """Lists nodes of the placement that a model lacks, except for nodes that relax shapes.

        Placing inserts those (`relaxed_shapes`), so that a model which is placed anew lacks them without being another.

        Args:
            names: friendly names of the model's nodes.

        Returns:
            Friendly names, in the placement's order.
        """
        known = set(names)
        return [name for name in self.affinity if name not in known and not is_relaxing(name)]

    def check_nodes(self, names: Collection[str]) -> None:
        """Checks that a model has all nodes of the placement, except for nodes that relax shapes.

        Args:
            names: friendly names of the model's nodes.

        Raises:
            UserError: the model lacks some of them.
        """
        if unknown := self.missing(names):
            raise UserError(
                f"the placement names {listed(unknown)}, which the model lacks: was it made for another model?"
            )

    def apply(self, model: ov.Model) -> None:
        """Sets rt_info["affinity"] of every node of ``model``, in place, so that HETERO follows the placement.

        Nodes that the placement does not know (from preprocessing, reshape, compression, other passes) get their
        devices from `ov_hsdag.model.complete.complete`, which may copy constants and other replicable producers.

        Raises:
            UserError: the placement knows no node of the model.
            RunError: a node is left without a device; the affinities are then as they were.
        """
        from ov_hsdag.model import complete

        if self.affinity.keys().isdisjoint(node.get_friendly_name() for node in model.get_ops()):
            raise UserError("the placement names no node of the model: was it made for another model?")
        if len(self.used()) == 1:  # there is nothing to decide, and nothing crosses
            restore_shapes(model)
            set_affinities(model, dict.fromkeys((node.get_friendly_name() for node in model.get_ops()), *self.used()))
            return
        set_affinities(model, complete.complete(model, self.affinity, self.devices))

    def embed(self, model: ov.Model) -> None:
        """Stores the placement in the model's rt_info and replaces an earlier one; ``Placement.of`` reads it back."""
        stored_placement.write(model, self.devices, self.affinity, self._stored_facts())

    def to_entries(self) -> dict[str, Any]:
        """Returns the placement as a JSON-able object (`stored_placement.to_entries`) for `from_entries`."""
        return stored_placement.to_entries(self.devices, self.affinity, self._stored_facts())

    @classmethod
    def from_entries(cls, entries: Mapping[str, Any]) -> Placement:
        """Reads the placement that `to_entries` made.

        Raises:
            UserError: the entries are damaged.
        """
        try:
            return cls(**stored_placement.from_entries(entries, tuple))
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise UserError("the stored placement cannot be read") from error

    def _stored_facts(self) -> dict[str, Any]:
        """Returns everything that is stored, except devices and affinities, by the entries' names."""
        return {
            "objective": self.objective,
            "prediction": self.predicted,
            "measured": self.measured,
            "baselines": self.baselines,
            "policy": self.policy,
            "chosen": self.chosen,
            "settings": self.settings,
        }

    @classmethod
    def of(cls, model: ov.Model) -> Placement | None:
        """Reads the placement that is embedded in a model; None where there is none.

        Its ``affinity`` has the nodes that were placed, whether ``model`` still has them or not. ``seconds`` is empty.

        Raises:
            UserError: the entry cannot be read.
        """
        fields = stored_placement.read(model)
        return None if fields is None else cls(**fields)

    @staticmethod
    def strip(model: ov.Model) -> None:
        """Removes an embedded placement and every node's affinity from ``model``, in place."""
        stored_placement.remove(model)
        remove_affinities(model)

    def save(self, path: str | PathLike[str]) -> None:
        """Writes {"node": "device"} as JSON, the format of OpenVINO's own affinity files.

        Raises:
            UserError: the file cannot be written.
        """
        files.write_json(path, self.affinity)

    @classmethod
    def load(cls, path: str | PathLike[str], devices: Sequence[str] | None = None) -> Placement:
        """Reads a JSON file {"node": "device"}.

        Args:
            path: the file.
            devices: the device list; by default the devices of the file, in order of appearance.

        Raises:
            UserError: the file cannot be read, is no such JSON, or uses a device that is not in ``devices``.
        """
        found, affinity = stored_placement.read_affinities(path, devices)
        return cls(devices=found, affinity=affinity)

    def map_to(self, available: Sequence[str] | Callable[[str], bool], supports: Supports | None = None) -> Placement:
        """Returns the placement of :meth:`mapped`, and gives a PlacementNotFollowedWarning for each replaced device.

        Args:
            available: the devices to use, in order of preference, or a predicate on ``devices``.
            supports: ``supports(node, device)``, whether a device can run a node; by default every device can run all.

        Raises:
            UserError: no device is available.
        """
        placement, replaced = self.mapped(available, supports)
        for message in replaced:
            warn_caller(message, PlacementNotFollowedWarning)
        return placement

    def mapped(
        self, available: Sequence[str] | Callable[[str], bool], supports: Supports | None = None
    ) -> tuple[Placement, list[str]]:
        """Returns the placement with every unavailable device replaced.

        A missing device gives its nodes to an available device of the same kind that has no nodes yet (GPU → GPU.1).
        Otherwise each node goes to the next device of the list that supports it, beginning after its own device. Where
        no device supports it, it goes to the last one of that order.

        Args:
            available: the devices to use, in order of preference, or a predicate on ``devices``.
            supports: ``supports(node, device)``, whether a device can run a node; by default every device can run all.

        Returns:
            The placement on the available devices, and one line for each device that was replaced.

        Raises:
            UserError: no device is available.
        """
        targets = tuple(filter(available, self.devices) if callable(available) else dict.fromkeys(available))
        if not targets:
            raise UserError(f"none of the devices of {self.hetero} is available")
        affinity, replaced = moved(self.affinity, self.devices, targets, supports)
        if targets == self.devices:
            return self, []
        return replace(self, devices=targets, affinity=affinity, source=None), replaced

    def summary(self) -> str:
        """Says in one line what was chosen and why: "HETERO:GPU,CPU (latency): mincut, 3 submodels, …"."""
        parts = [placer_of(self.chosen)]
        figures = (self.measured or {}).get(self.chosen, {})
        submodels = figures.get("submodels") or (self.predicted or {}).get("submodels")
        if submodels is not None:
            parts.append(f"{submodels} submodel{'' if submodels == 1 else 's'}")
        measured, predicted = self.measured_gain(self.chosen), self.predicted_gain(self.chosen)
        if measured is not None:
            parts.append(f"measured {times(measured, figures.get('times_best_single_ci'), self.measured_against())}")
            if predicted is not None:
                parts.append(f"predicted {times(predicted)}")
        elif predicted is not None:
            parts.append(f"predicted {times(predicted, over=BEST_SINGLE)}")
        return f"{self.hetero} ({self.objective}): {', '.join(parts)}{f'; {self.why}' if self.why else ''}"

    def report(self, path: str | PathLike[str], *, title: str = "model", done: Mapping[str, Any] | None = None) -> None:
        """Writes a report of what runs where, at what cost and why: one HTML page, or the picture of the split.

        A placement that was read from a model knows no costs: `ov-hsdag report MODEL` writes its report.

        Args:
            path: the file, whose name ends in .html, .svg or .png (which needs resvg-py).
            title: name of the model.
            done: further facts about how the placement was made, such as {"command": "…"}.

        Raises:
            UserError: the placement was not made by `ov_hsdag.place` in this process, or the file cannot be written.
            RunError: a .png cannot be drawn.
        """
        if self.source is None:
            raise UserError(
                "this placement was read and knows no costs: ov-hsdag report MODEL writes the report of a saved model"
            )
        self.source.write(self, path, title, done)

    def _repr_html_(self) -> str:
        """Returns the HTML that a notebook shows.

        It has the summary, and the picture of the split where the costs are known, else the number of nodes by device.
        """
        counts = Counter(self.affinity.values())
        nodes = ", ".join(f"{device}: {counts[device]:,} nodes" for device in self.devices)
        shown = f"<p>{html.escape(nodes)}</p>" if self.source is None else self.source.image(self)
        return f"<div><p><code>{html.escape(self.summary())}</code></p>{shown}</div>"

    def measured_gain(self, candidate: str) -> float | None:
        """Returns how many times better than the best single device a candidate was measured; None if it was not."""
        figures = (self.measured or {}).get(candidate, {})
        if "times_best_single" in figures:
            return cast("float | None", figures["times_best_single"])
        return self._gain(figures, self.measured or {})  # earlier releases did not store times_best_single

    def measured_against(self) -> str:
        """Returns the name of the reference of measured gains, for messages.

        It is `BEST_SINGLE`. If there was no time to measure some of the single devices, it is the best of the measured
        ones by its name.
        """
        singles = {name: figures for name in self.devices if (figures := (self.measured or {}).get(name))}
        late = [name for name, figures in singles.items() if out_of_time(read_failure(figures))]
        ran = [name for name, figures in singles.items() if not figures.get("failed")]
        return max(ran, key=lambda name: self.measured_gain(name) or 0.0) if late and ran else BEST_SINGLE

    def predicted_gain(self, candidate: str) -> float | None:
        """Returns how many times better than the best single device a candidate is predicted to be; None if unknown."""
        own = self.predicted if candidate == self.chosen else self.baselines.get(candidate)
        return self._gain(own or {}, self.baselines)

    def proposal(self) -> str:
        """Compares the policy's placement with the chosen one, in a line for users.

        Returns:
            The line; "" if no policy proposed a placement.
        """
        if self.policy is None:
            return ""
        introduction, proposed = f"policy: HSDAG ({self.policy}) proposed", self.baselines.get(HSDAG)
        if placer_of(self.chosen) == HSDAG or self._first_equal_candidate(HSDAG) == self._first_equal_candidate(
            self.chosen
        ):
            return f"{introduction} what was chosen"
        if proposed is None:
            return f"{introduction} nothing that the devices run"
        chosen_gain, proposed_gain = (
            self._gain(self.predicted or {}, self.baselines),
            self._gain(proposed, self.baselines),
        )
        if not chosen_gain or not proposed_gain:
            return f"{introduction} another placement, not taken{self._why_not_taken()}"
        behind = chosen_gain / proposed_gain - 1
        if abs(behind) < _EQUAL_FOR_USERS:
            return f"{introduction} a placement that is predicted to be as good"
        how = f"{abs(behind):.1%} {'worse' if behind > 0 else 'better'}"
        return f"{introduction} a placement predicted {how}, not taken{self._why_not_taken()}"

    def _why_not_taken(self) -> str:
        """Returns why the policy's placement was not taken, as ": reason" for the end of a line; "" if not known."""
        name = HSDAG if HSDAG in (self.measured or {}) else self._first_equal_candidate(HSDAG)
        figures = (self.measured or {}).get(name)
        if figures is None:
            return f": {self.notes[HSDAG].removesuffix(NOT_TAKEN)}" if HSDAG in self.notes else ""
        if figures.get("failed"):
            return f": when measured, {figures['failed']}"
        chosen_gain, proposed_gain = self.measured_gain(self.chosen), self.measured_gain(name)
        if not chosen_gain or not proposed_gain:
            return ""
        return f": measured {times(proposed_gain)}, and what was chosen {times(chosen_gain)}, {self.measured_against()}"

    def _first_equal_candidate(self, name: str) -> str:
        """Returns the name of the first candidate that has the same placement as the candidate `name`."""
        return self.same_as.get(name, name)

    def _gain(self, figures: Mapping[str, Any], others: Mapping[str, Any]) -> float | None:
        """Computes how many times better than the best single device a candidate is in the objective.

        Args:
            figures: figures of the candidate.
            others: figures of several candidates by name, among them the single devices.

        Returns:
            The ratio; None if the candidate, or every single device, has no finite figure.
        """
        key = "throughput_ips" if self.objective == "throughput" else "latency_us"
        single = [others[device].get(key) for device in self.devices if device in others]
        single_values = [value for value in single if value and math.isfinite(value)]
        value_of_figures = figures.get(key)
        if not single_values or not value_of_figures or not math.isfinite(value_of_figures):
            return None
        return float(
            value_of_figures / max(single_values)
            if self.objective == "throughput"
            else min(single_values) / value_of_figures
        )


Supports = Callable[[str, str], bool]
"""``supports(node, device)``: whether a device can run a node."""


def moved(
    affinity: Mapping[str, str], devices: Sequence[str], targets: Sequence[str], supports: Supports | None
) -> tuple[dict[str, str], list[str]]:
    """Computes affinities with each unavailable device replaced by available ones, see `Placement.mapped`.

    Args:
        affinity: device by friendly name.
        devices: the devices that the placement was made for, in HETERO's order.
        targets: the available devices, in order of preference.
        supports: whether a device can run a node; None if every device can run all.

    Returns:
        The new device by friendly name; and one line for each device that was replaced, except for "GPU" by "GPU.0" or
        the reverse, which are one device.
    """
    present = set(affinity.values())
    lost = [device for device in devices if device in present and device not in targets]
    orders = _replacement_orders(devices, present, lost, targets)
    moved_affinity = dict(affinity)
    counts: dict[str, Counter[str]] = {device: Counter() for device in lost}
    for name, device in affinity.items():
        order = orders.get(device)
        if order is None:
            continue
        able = order if supports is None else (target for target in order if supports(name, target))
        moved_affinity[name] = target = next(iter(able), order[-1])
        counts[device][target] += 1
    replaced = []
    for device, moves in counts.items():
        # No line is needed for these two names, because OpenVINO's "GPU" is "GPU.0".
        if not all({device, target} == {_kind(device), f"{_kind(device)}.0"} for target in moves):
            shares = ", ".join(f"{count} on {target}" for target, count in moves.items())
            replaced.append(
                f"ov_hsdag: the placement uses {device}, which is not among the devices here "
                f"({', '.join(targets)}); its nodes run: {shares}"
            )
    return moved_affinity, replaced


def _replacement_orders(
    devices: Sequence[str], present: set[str], lost: Sequence[str], targets: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Lists the available devices that may replace each missing one.

    Args:
        devices: the devices that the placement was made for, in HETERO's order.
        present: devices that have nodes.
        lost: those of them that are not available.
        targets: the available devices, in order of preference.

    Returns:
        Available devices by missing device, in the order in which they are tried.
    """
    used_targets = present & set(targets)
    orders: dict[str, tuple[str, ...]] = {}
    for device in lost:
        twins = [target for target in targets if _kind(target) == _kind(device) and target not in used_targets]
        # The next devices of the placement's list come first, then those that only `targets` has, then earlier ones.
        place = devices.index(device)
        ranked = [*devices[place + 1 :], *(t for t in targets if t not in devices), *devices[:place]]
        orders[device] = tuple(dict.fromkeys([*twins[:1], *(target for target in ranked if target in targets)]))
        used_targets.update(twins[:1])
    return orders


def _kind(device: str) -> str:
    """Returns the kind of a device, the name without its number: "GPU" for "GPU.1".

    Each virtual device (CPU_A) is a kind of its own, because their properties differ.
    """
    return device.split(".", 1)[0]
