"""A placement: which device every node of a model runs on, how it travels with the model and how it is read back."""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Protocol, cast

from ov_hsdag.model import output_tags
from ov_hsdag.storage import files
from ov_hsdag.utils.errors import PlacementNotFollowedWarning, RunError, UserError, shortened
from ov_hsdag.utils.reading import TABLES, once, parse_json, read_json

if TYPE_CHECKING:
    import openvino as ov

RT_INFO = "ov_hsdag"
"""The model-level rt_info entry that holds an embedded placement; it survives saving and reading an IR."""

VERSION = 1
"""Of the embedded form. A newer one than this is refused."""

BEST_SINGLE = "the best single device"
"""What every figure of a gain is relative to, in everything that is printed."""

HSDAG = "hsdag"
"""Name of the candidate that the policy proposes."""

# Predictions that differ by less are equal for people.
_ALIKE = 5e-4

NOISY = 4.0
"""An interval whose ends are further apart than this factor says nothing: "noise" is printed in its place."""


def times(ratio: float, interval: Sequence[float] | None = None, over: str = "") -> str:
    """A gain as all commands print it: "1.86x", "1.86x (1.80 to 1.93)", "1.86x the best single device".

    Args:
        ratio: how many times better.
        interval: its 95% confidence interval [low, high]; one without width (the device itself) is left out, and one
            that is wider than `NOISY` reads "(noise)".
        over: what it is better than.
    """
    told = f"{ratio:.2f}x {over}".rstrip()
    if interval is None or interval[0] == interval[1]:
        return told
    if interval[1] > NOISY * interval[0]:
        return f"{told} (noise)"
    return f"{told} ({interval[0]:.2f} to {interval[1]:.2f})"


def placer_of(candidate: str) -> str:
    """The placer of a candidate: "hsdag" of "hsdag (less on GPU)", one of several placements that it proposed."""
    return candidate.partition(" (")[0]


class ReportData(Protocol):
    """What reports of a placement are made of (`ov_hsdag.explaining.report_data`)."""

    def __call__(self, placement: Placement, title: str, done: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """All that a report shows."""

    def picture(self, placement: Placement, title: str) -> dict[str, Any]:
        """The part of it that a picture shows."""


@dataclass(frozen=True)
class Placement:
    """Node → device, with what was predicted and measured of it.

    Attributes:
        devices: the devices that the placement was made for, in HETERO's order.
        affinity: friendly name of a node → one of ``devices``; nodes that it lacks follow their neighbours.
        objective: "latency" or "throughput".
        predicted: by the cost model: latency_us, throughput_ips, memory_bytes {device: n}, submodels, transfer_bytes.
        measured: None, or what each candidate did on the real devices, by its name (for a single device: the device):
            latency_us or throughput_ips; ratio (how many times better than the best that needs no placement) and ci
            (its 95% confidence interval [low, high]); times_best_single and times_best_single_ci, the same over the
            best single device; submodels; failed (why, or null). What is not known is null.
        baselines: name of a placer (for a single device: the device) → predicted figures of its placement. For
            throughput, "copies" is the model on each device at once, which HETERO cannot run: it is never chosen, and
            has in measured, too, times_chosen and times_chosen_ci, how many times better it was than the chosen one.
        policy: name of the policy that was asked, or None.
        chosen: name of the placer whose placement this is.
        settings: what else it was made with, where that is known: command ("place", "finetune"), shapes {input: sizes},
            memory {device: bytes}, workload, context, kv_precision, profile (name of the file) and virtual_devices
            (their declaration), each where it was given.
        seconds: phase of placing → seconds.
        why: why a simple candidate was chosen and no other, in some words; "" where the figures tell.
        notes: name of a candidate → why it was left out or not measured, in some words.
        unsure: names of placers whose placements may well be better than the simple candidate that was chosen: measured
            rounds were too few, or differed too much, to tell.
        source: what `report` draws from; None where the placement was not made here, but read.

    The last five do not travel with the model, and placements that differ in them alone are equal.
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
    unsure: tuple[str, ...] = field(default=(), compare=False)
    source: ReportData | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        unknown = sorted(set(self.affinity.values()) - set(self.devices))
        if unknown:
            raise UserError(
                f"the placement uses {_listed(unknown)}, which its device list {shortened(self.hetero)} lacks"
            )

    def __repr__(self) -> str:
        """One line, whatever the size of the model: its devices, objective, placer, and nodes of each device."""
        counts = Counter(self.affinity.values())
        nodes = ", ".join(f"{device}: {counts[device]}" for device in self.devices)
        return f"<Placement {self.hetero} objective={self.objective} chosen={self.chosen} nodes={{{nodes}}}>"

    @property
    def hetero(self) -> str:
        """The device string that the placement was made for: "HETERO:GPU,CPU"."""
        return f"HETERO:{','.join(self.devices)}"

    def used(self) -> tuple[str, ...]:
        """The devices that have at least one node, in the order of ``devices``."""
        present = set(self.affinity.values())
        return tuple(device for device in self.devices if device in present)

    def check_nodes(self, names: Collection[str]) -> None:
        """Raise UserError when the placement names nodes that are not among a model's friendly names."""
        from ov_hsdag.model.relaxed_shapes import is_relaxing

        known = set(names)
        unknown = [name for name in self.affinity if name not in known and not is_relaxing(name)]
        if unknown:
            raise UserError(
                f"the placement names {_listed(unknown)}, which the model lacks: was it made for another model?"
            )

    def apply(self, model: ov.Model) -> None:
        """Set rt_info["affinity"] of every node of ``model``, in place, so that HETERO follows the placement.

        Nodes that the placement does not know (from preprocessing, reshape, compression, other passes) are completed by
        `ov_hsdag.model.complete.complete`, which may copy constants and the like. Raises UserError when it knows
        none of them, and RunError when a node is left without a device; the affinities are then as they were.
        """
        from ov_hsdag.model import complete

        if self.affinity.keys().isdisjoint(node.get_friendly_name() for node in model.get_ops()):
            raise UserError("the placement names no node of the model: was it made for another model?")
        set_affinities(model, complete.complete(model, self.affinity, self.devices))

    def embed(self, model: ov.Model) -> None:
        """Store the placement in the model's rt_info, in place of one that is there; ``Placement.of`` reads it back.

        Every value is a JSON string: rt_info comes back from a file as text. "default" is the device with most nodes,
        "default_nodes" are its nodes (so that nodes that appear later are told apart), "exceptions" are the other
        devices' nodes: {device: [names]}. The outputs get tags for readers without Python
        (:mod:`ov_hsdag.model.output_tags`).
        """
        if RT_INFO in model.rt_info:
            del model.rt_info[RT_INFO]
        counts = Counter(self.affinity.values())
        default = max(self.devices, key=lambda device: counts[device])
        nodes: dict[str, list[str]] = {device: [] for device in self.devices}
        for name, device in self.affinity.items():
            nodes[device].append(name)
        default_nodes = nodes.pop(default)
        entries = {
            "version": VERSION,
            "devices": self.devices,
            "default": default,
            "default_nodes": default_nodes,
            "exceptions": {device: names for device, names in nodes.items() if names},
            "objective": self.objective,
            "prediction": self.predicted,
            "measured": self.measured,
            "baselines": self.baselines,
            "policy": self.policy,
            "chosen": self.chosen,
            "settings": self.settings,
        }
        for key, value in entries.items():
            if value is None:
                continue
            # Plain text where it is a name or a number already: a C++ reader needs no JSON for those.
            text = str(value) if isinstance(value, str | int) else json.dumps(value, default=_plain)
            model.set_rt_info(text, [RT_INFO, key])
        output_tags.write(model, self.devices, self.affinity)

    @classmethod
    def of(cls, model: ov.Model) -> Placement | None:
        """The placement that is embedded in a model, None where there is none.

        Its ``affinity`` has the nodes that were placed, whether ``model`` still has them or not; ``seconds`` is empty.
        Raises UserError when the entry cannot be read.
        """
        if not model.has_rt_info([RT_INFO]):
            return None

        def text(key: str) -> str:
            return str(model.get_rt_info([RT_INFO, key]).astype(str))

        def optional(key: str) -> Any:
            return parse_json(text(key)) if model.has_rt_info([RT_INFO, key]) else None

        try:
            version = int(text("version"))
            if version > VERSION:
                raise UserError(
                    f"the model's placement has version {version}, this ov-hsdag reads up to {VERSION}: upgrade it"
                )
            devices = _names(parse_json(text("devices")))
            if len(devices) > _MOST_DEVICES or not all(map(str.isprintable, devices)):
                raise ValueError("expected names of devices")
            default = text("default")
            affinity = {name: device for device, names in optional("exceptions").items() for name in _names(names)}
            known = optional("default_nodes")
            if known is None:  # written by a tool that stores no more than the format asks for
                known = [op.get_friendly_name() for op in model.get_ops() if op.get_friendly_name() not in affinity]
            affinity.update(dict.fromkeys(_names(known), default))
            return cls(
                devices=devices,
                affinity=affinity,
                objective=text("objective"),
                predicted=_figures(optional("prediction")),
                measured=_all_figures(optional("measured")),
                baselines=_all_figures(optional("baselines")) or {},
                policy=text("policy") if model.has_rt_info([RT_INFO, "policy"]) else None,
                chosen=text("chosen"),
                settings=_settings(optional("settings")),
            )
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:
            raise UserError(
                "the model's embedded placement cannot be read: place the model again, or remove it (ov-hsdag strip)"
            ) from error

    @staticmethod
    def strip(model: ov.Model) -> None:
        """Remove an embedded placement and every node's affinity from ``model``, in place."""
        if RT_INFO in model.rt_info:
            del model.rt_info[RT_INFO]
        output_tags.remove(model)
        remove_affinities(model)

    def save(self, path: str | PathLike[str]) -> None:
        """Write {"node": "device"} as JSON, the format of OpenVINO's own affinity files. UserError: not writable."""
        files.write_json(path, self.affinity)

    @classmethod
    def load(cls, path: str | PathLike[str], devices: Sequence[str] | None = None) -> Placement:
        """Read a JSON file {"node": "device"}.

        ``devices`` gives the device list, without it the devices of the file in order of appearance. Raises UserError
        when the file cannot be read, is no such JSON, or uses a device that is not in ``devices``.
        """
        shown = fspath(path)
        try:
            affinity = read_json(path, TABLES, unique=lambda pairs: _unique(pairs, shown))
        except OSError as error:
            raise UserError(f"cannot read affinity file {shown!r}: {error.strerror or error}") from error
        except ValueError as error:
            raise UserError(f"affinity file {shown!r} is no JSON: {error}") from error
        if not isinstance(affinity, dict) or not affinity:
            raise UserError(f'affinity file {shown!r} must hold one object {{"node": "device", …}}')
        for name, device in affinity.items():
            if not isinstance(device, str) or not device or not device.isprintable():
                raise UserError(
                    f"affinity file {shown!r}: the device of {_short(name)} must be a name, got {_short(device)}"
                )
        found = tuple(dict.fromkeys(affinity.values()))
        if devices is not None:
            unknown = [device for device in found if device not in devices]
            if unknown:
                known = shortened(f"HETERO:{','.join(devices)}")
                raise UserError(f"affinity file {shown!r} uses {_listed(unknown)}, which is not in {known}")
            found = tuple(devices)
        return cls(devices=found, affinity=affinity)

    def map_to(
        self,
        available: Sequence[str] | Callable[[str], bool],
        supports: Callable[[str, str], bool] | None = None,
        *,
        stacklevel: int = 2,
    ) -> Placement:
        """The placement with every device that is not available replaced, with one warning for each of them.

        Args:
            available: The devices to use, in order of preference, or a predicate on ``devices``.
            supports: ``supports(node, device)``: whether a device can run a node; without it every device can run all.
            stacklevel: Of the warnings (PlacementNotFollowedWarning), as in `warnings.warn`; 2 is the caller.

        Returns:
            The placement on the available devices; see :meth:`mapped`.

        Raises:
            UserError: No device is available.
        """
        placement, replaced = self.mapped(available, supports)
        for message in replaced:
            warnings.warn(message, PlacementNotFollowedWarning, stacklevel=stacklevel)
        return placement

    def mapped(
        self,
        available: Sequence[str] | Callable[[str], bool],
        supports: Callable[[str, str], bool] | None = None,
    ) -> tuple[Placement, list[str]]:
        """The placement with every device that is not available replaced.

        A device that is gone gives its nodes to an available device of the same kind that has none yet (GPU → GPU.1),
        otherwise each node goes to the next device of the list that supports it, beginning after its own place. Where
        none does, it goes to the last of the list.

        Args:
            available: The devices to use, in order of preference, or a predicate on ``devices``.
            supports: ``supports(node, device)``: whether a device can run a node; without it every device can run all.

        Returns:
            The placement on the available devices, and one line for each device that others replace.

        Raises:
            UserError: No device is available.
        """
        if callable(available):
            targets = tuple(device for device in self.devices if available(device))
        else:
            targets = tuple(dict.fromkeys(available))
        if not targets:
            raise UserError(f"none of the devices of {self.hetero} is available")
        lost = [device for device in self.used() if device not in targets]
        if not lost:
            return self if targets == self.devices else replace(self, devices=targets, source=None), []
        orders = self._orders(lost, targets)
        affinity = dict(self.affinity)
        moved: dict[str, Counter[str]] = {device: Counter() for device in lost}
        for name, device in self.affinity.items():
            order = orders.get(device)
            if order is None:
                continue
            able = order if supports is None else (target for target in order if supports(name, target))
            affinity[name] = target = next(iter(able), order[-1])
            moved[device][target] += 1
        replaced = []
        for device, counts in moved.items():
            if not all(_same_device(device, target) for target in counts):
                shares = ", ".join(f"{count} on {target}" for target, count in counts.items())
                replaced.append(
                    f"ov_hsdag: the placement uses {device}, which is not among the devices here "
                    f"({', '.join(targets)}); its nodes run: {shares}"
                )
        return replace(self, devices=targets, affinity=affinity, source=None), replaced

    def _orders(self, lost: Sequence[str], targets: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """For each lost device the available ones in the order in which they are tried."""
        taken = set(self.used()) & set(targets)
        orders: dict[str, tuple[str, ...]] = {}
        for device in lost:
            twins = [target for target in targets if _kind(target) == _kind(device) and target not in taken]
            # The next in our own list comes first; what only the requested list has follows, and then the ones before.
            place = self.devices.index(device)
            ranked = [*self.devices[place + 1 :], *(t for t in targets if t not in self.devices), *self.devices[:place]]
            rest = [target for target in ranked if target in targets]
            orders[device] = tuple(dict.fromkeys([*twins[:1], *rest]))
            taken.update(twins[:1])
        return orders

    def summary(self) -> str:
        """One line that says what was chosen and why: "HETERO:GPU,CPU (latency): mincut, 3 submodels, …"."""
        parts = [placer_of(self.chosen)]
        own = (self.measured or {}).get(self.chosen, {})
        submodels = own.get("submodels") or (self.predicted or {}).get("submodels")
        if submodels is not None:
            parts.append(f"{submodels} submodel{'' if submodels == 1 else 's'}")
        measured, predicted = self.measured_gain(self.chosen), self.predicted_gain(self.chosen)
        if measured is not None:
            parts.append(f"measured {times(measured, own.get('times_best_single_ci'), BEST_SINGLE)}")
            if predicted is not None:
                parts.append(f"predicted {times(predicted)}")
        elif predicted is not None:
            parts.append(f"predicted {times(predicted, over=BEST_SINGLE)}")
        why = f"; {self.why}" if self.why else ""
        return f"{self.hetero} ({self.objective}): {', '.join(parts)}{why}"

    def report(self, path: str | PathLike[str], *, title: str = "model", done: Mapping[str, Any] | None = None) -> None:
        """Write what runs where, at what cost and why: as one HTML page, or the picture of the split.

        A placement that was read from a model knows no costs: `ov-hsdag report MODEL` writes its report.

        Args:
            path: The name of the file ends in .html, .svg or .png (which needs resvg-py).
            title: What the model is called.
            done: What else is known of how the placement was made, such as {"command": "…"}.

        Raises:
            UserError: The placement was not made by `ov_hsdag.place` in this process, or the file cannot be written.
            RunError: A .png cannot be drawn.
        """
        from ov_hsdag.report.write import check_report, is_picture, write_report

        check_report(path)
        if self.source is None:
            raise UserError(
                "this placement was read and knows no costs: ov-hsdag report MODEL writes the report of a saved model"
            )
        data = self.source.picture(self, title) if is_picture(path) else self.source(self, title, done)
        write_report(path, data)

    def _repr_html_(self) -> str:
        """What a notebook shows: one line, and the picture of the split where the costs are known."""
        from ov_hsdag.report.cell import cell

        counts = Counter(self.affinity.values())
        data = None if self.source is None else self.source.picture(self, "model")
        return cell(self.summary(), {device: counts[device] for device in self.devices}, data)

    def measured_gain(self, candidate: str) -> float | None:
        """How many times better than the best single device a candidate was measured; None where it was not."""
        figures = (self.measured or {}).get(candidate, {})
        if "times_best_single" in figures:
            return cast("float | None", figures["times_best_single"])
        return self._gain(figures, self.measured or {})  # of a model that an earlier release placed

    def predicted_gain(self, candidate: str) -> float | None:
        """How many times better than the best single device a candidate is predicted; None where that is not known."""
        own = self.predicted if candidate == self.chosen else self.baselines.get(candidate)
        return self._gain(own or {}, self.baselines)

    def proposal(self) -> str:
        """What the policy proposed, and how far that is from what was chosen, in a line; "" where none was asked."""
        if self.policy is None:
            return ""
        asked, proposed = f"policy: HSDAG ({self.policy}) proposed", self.baselines.get(HSDAG)
        if placer_of(self.chosen) == HSDAG:
            return f"{asked} what was chosen"
        if proposed is None:
            return f"{asked} nothing that the devices run"
        own, other = self._gain(self.predicted or {}, self.baselines), self._gain(proposed, self.baselines)
        if not own or not other:
            return f"{asked} another placement, not taken"
        behind = own / other - 1
        if abs(behind) < _ALIKE:
            return f"{asked} a placement that is predicted to be as good"
        return f"{asked} a placement predicted {abs(behind):.1%} {'worse' if behind > 0 else 'better'}, not taken"

    def _gain(self, figures: Mapping[str, Any], others: Mapping[str, Any]) -> float | None:
        """How many times better than the best single device the objective is; None where that is not known."""
        key = "throughput_ips" if self.objective == "throughput" else "latency_us"
        single = [others[device].get(key) for device in self.devices if device in others]
        known = [value for value in single if value and math.isfinite(value)]
        own = figures.get(key)
        if not known or not own or not math.isfinite(own):
            return None
        return float(own / max(known) if self.objective == "throughput" else min(known) / own)


def set_affinities(model: ov.Model, affinity: Mapping[str, str]) -> dict[str, str]:
    """Set every node's "affinity", in place, and relax the shapes of tensors that HETERO could not hand over.

    Raises RunError, with the model as it was, when a node has none.

    Returns:
        The affinities, with those of the nodes that were inserted.
    """
    from ov_hsdag.model.relaxed_shapes import relax_crossing_shapes

    missing = [name for node in model.get_ordered_ops() if (name := node.get_friendly_name()) not in affinity]
    if missing:
        raise RunError(f"the placement could not be completed for {_listed(missing)}")
    affinity = {**affinity, **relax_crossing_shapes(model, affinity)}
    for node in model.get_ordered_ops():
        node.get_rt_info()["affinity"] = affinity[node.get_friendly_name()]
    return affinity


def remove_affinities(model: ov.Model) -> None:
    """Undo `set_affinities`, in place, so that HETERO decides again."""
    from ov_hsdag.model.relaxed_shapes import restore_shapes

    restore_shapes(model)
    for node in model.get_ops():
        rt_info = node.get_rt_info()
        if "affinity" in rt_info:
            del rt_info["affinity"]


def _kind(device: str) -> str:
    """ "GPU" of "GPU.1". Virtual devices (CPU_A) are a kind each: their properties differ."""
    return device.split(".", 1)[0]


def _same_device(device: str, other: str) -> bool:
    """Whether two names mean one device: OpenVINO's "GPU" is "GPU.0"."""
    return {device, other} == {_kind(device), f"{_kind(device)}.0"}


def _listed(names: Sequence[str], limit: int = 3) -> str:
    shown = ", ".join(map(_short, names[:limit]))
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def _unique(pairs: list[tuple[str, Any]], shown: str) -> dict[str, Any]:
    return once(pairs, lambda name: UserError(f"affinity file {shown!r} names node {_short(name)} twice"))


def _short(value: Any) -> str:
    """A value in a line: the nested ones of hostile files are long, or too deep to be shown."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    return shortened(repr(value))


# The native core counts devices in a byte.
_MOST_DEVICES = 255

# Of figures, what has to be numbers where it is there.
_NUMBERS = ("latency_us", "throughput_ips", "submodels", "transfer_bytes", "ratio", "times_best_single", "times_chosen")
_INTERVALS = ("ci", "times_best_single_ci", "times_chosen_ci")


def _names(value: Any) -> tuple[str, ...]:
    """Names from JSON. Raises TypeError."""
    names = tuple(value)
    if not all(isinstance(name, str) for name in names):
        raise TypeError("expected names")
    return names


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _figures(value: Any) -> dict[str, Any] | None:
    """Figures of a placement from JSON: what is computed with is a number. Raises TypeError."""
    if value is None:
        return None
    intervals = [value.get(key) for key in _INTERVALS]
    numbers = [value.get(key) for key in _NUMBERS] + list((value.get("memory_bytes") or {}).values())
    if not all(one is None or (len(one) == 2 and all(map(_is_number, one))) for one in intervals):
        raise TypeError("expected intervals of two numbers")
    if not all(one is None or _is_number(one) for one in numbers):
        raise TypeError("expected numbers")
    if not isinstance(value.get("failed"), str | None):
        raise TypeError("expected a reason")
    _names(value.get("measured_costs") or ())
    return dict(value)


_TEXTS = ("command", "workload", "kv_precision", "profile", "virtual_devices")


def _settings(value: Any) -> dict[str, Any] | None:
    """Settings of a placement from JSON. Raises TypeError."""
    if value is None:
        return None
    shapes, memory = value.get("shapes") or {}, value.get("memory") or {}
    numbers = [*memory.values(), *(size for shape in shapes.values() for size in shape), value.get("context", 1)]
    if not all(type(number) is int and 0 < number < 1 << 62 for number in numbers):
        raise TypeError("expected positive numbers")
    if not all(isinstance(value.get(key, ""), str) for key in _TEXTS):
        raise TypeError("expected texts")
    return dict(value)


def _all_figures(value: Any) -> dict[str, Any] | None:
    """Figures of several placements by name. Raises TypeError."""
    return None if value is None else {name: _figures(figures) for name, figures in value.items()}


def _plain(value: Any) -> Any:
    """NumPy's scalars and arrays as JSON's numbers and lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"cannot store {type(value).__name__} in a model")
