"""`ov-hsdag fit`: whether a model fits into the devices' memory, and with how much context, before it is loaded."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from ov_hsdag.cli import _common as common
from ov_hsdag.cli import console
from ov_hsdag.cli.command_lines import given
from ov_hsdag.costs.builtin import builtin_profile
from ov_hsdag.costs.memory import check_kv_precision
from ov_hsdag.costs.profile import Profile
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.devices.discovery import USABLE, full_name
from ov_hsdag.devices.memory import parse_memory
from ov_hsdag.model.inputs import parse_shapes
from ov_hsdag.placing.memory_fit import Fit, Need, verdict
from ov_hsdag.placing.memory_fit import fit as fit_model
from ov_hsdag.utils.byte_sizes import format_bytes
from ov_hsdag.utils.lazy import ov

Context = Annotated[
    int | None,
    typer.Option("--context", metavar="TOKENS", min=2, help="Tokens that the states of a decoder hold (default 4096)."),
]
Batch = Annotated[int, typer.Option("--batch", min=1, help="Sequences at a time, beams included.")]


def fit(
    model: common.Model,
    device: common.Device,
    context: Context = None,
    batch: Batch = 1,
    memory: common.Memory = None,
    kv_precision: common.KvPrecision = None,
    profile: common.ProfileFile = None,
    shape: common.Shapes = None,
    part: common.Part = None,
    as_json: common.Json = False,
) -> None:
    """Say whether MODEL (a folder, too) fits into the devices' memory, alone or split, and with how much context.

    A model that carries a placement is judged as it is placed; else the search of `place` looks for a split that fits.

    Weights are not loaded. Exit status: 0 it fits, 1 it does not.
    """
    file = common.one_file(model, part, "count")
    devices = DeviceSet.parse(device)
    limits = parse_memory(memory, devices.names) if memory is not None else None
    check_kv_precision(kv_precision)
    examples = parse_shapes(shape or ())
    costs = Profile.load(profile) if profile else None
    with console.result(as_json) as show:
        core = common.new_core()
        loaded, shapes = common.read_with_shapes(core, file, examples)
        with console.progress(f"counting {model} on {device}"):
            found = fit_model(
                loaded,
                device,
                context=context,
                batch=batch,
                shapes=shapes,
                memory=limits,
                kv_precision=kv_precision,
                profile=costs,
                core=core,
            )
        common.warn_of_long_context(file, context or 0)
        lines = [verdict(found, str(model)), *_experts(found), _counted(found)]
        if costs is None:
            lines += _assumed(devices.names, limits or {}, core)
        show(_as_json(found), "\n".join(lines), _table(found))
        if found.placed and found.fits:
            show.next("verify", model, *given("--device", "--part", "--shape"))
        elif found.fits or (found.placed and found.other_fits):
            flags = ("--device", "--part", "--context", "--memory", "--kv-precision", "--profile", "--shape")
            show.next("place", model, *given(*flags))
    if not found.fits:
        raise typer.Exit(1)


def _experts(found: Fit) -> list[str]:
    """A line about how many layers' experts have to leave the first device; none for a model without experts."""
    apart = found.experts
    if apart is None:
        return []
    if apart.layers is None:
        either = "" if found.fits else ", either"
        return [f"experts: with those of all {apart.all} layers on {apart.target} it does not fit{either}"]
    if not apart.layers:
        return [f"experts: all {apart.all} layers' may stay on {apart.source}"]
    return [
        f"experts: those of {apart.layers} of {apart.all} layers have to leave {apart.source}, the rest being there"
        f" (place --experts {apart.target}:{apart.layers})"
    ]


def _assumed(names: Sequence[str], given: Collection[str], core: ov.Core) -> list[str]:
    """Lines about what devices may have, except those with limits that are given: those at hand, and the others."""
    asked = [name for name in names if name not in given]
    known = builtin_profile(names, core)
    absent = [known.device(name) for name in asked if full_name(core, name) is None]
    parts = [
        f"{one.name} has {format_bytes(one.memory_bytes)}, as the built-in profile {one.builtin}" for one in absent
    ]
    lines = [f"assumed: {', '.join(parts)}; --memory sets it"] if parts else []
    if asked:
        assumed = " or assumed" if absent else ""
        lines.append(f"may have: {USABLE:.0%} of the memory that is free now{assumed}; --memory gives other limits")
    return lines


def _counted(found: Fit) -> str:
    if found.context is None:
        if not found.tensors_counted:
            return "counted: weights and states alone; with inputs of 128 where they are open (--shape) nothing fits"
        return "counted: inputs as --shape gives them, their upper bounds, or else 1 for a batch and 128 elsewhere"
    precisions = ", ".join(f"{precision} on {name}" for name, precision in found.kv_precision.items())
    own = max(need.overhead for need in (*found.singles.values(), *found.split.values()))
    return (
        f"counted: {found.context:,} tokens of {found.batch} sequence{'s' if found.batch > 1 else ''}, up to"
        f" {found.prompt:,} of them read at once; KV caches in {precisions}. context: the most that fits."
        f" OpenVINO's own memory, not counted: about {format_bytes(own)}"
    )


def _table(found: Fit) -> Table:
    columns = ("on", "weights", "states", "tensors", "needed", "may have", "left")
    table = console.table(*columns, *(("context",) if found.largest else ()))
    split = {**found.split, **({} if found.shared is None else {"shared": found.shared})}
    rows = [(name, name, need) for name, need in found.singles.items()]
    for label, key, need in [*rows, *((f"split, {name}", "split", need) for name, need in split.items())]:
        counted = [need.weights, need.states, need.activations, need.total, need.room, need.headroom]
        row = ["-" if bytes_ is None else format_bytes(bytes_) for bytes_ in counted]
        if found.largest:
            most = found.largest.get(key)
            row.append("no limit" if most is None else str(most))
        table.add_row(label, *row)
    return table


# Of a `Fit`, as it is.
_SAME = (
    "fits", "single", "split_fits", "placed", "other_fits", "enough", "devices", "context", "batch", "prompt",
    "kv_precision",
)  # fmt: skip


def _as_json(found: Fit) -> dict[str, Any]:
    def part(need: Need) -> dict[str, Any]:
        return {**asdict(need), "needed": need.total, "headroom": need.headroom, "fits": (need.headroom or 0) >= 0}

    return {
        **{name: getattr(found, name) for name in _SAME},
        "singles": {name: part(need) for name, need in found.singles.items()},
        "split": {name: part(need) for name, need in found.split.items()},
        "shared": None if found.shared is None else {"devices": found.sharing, **part(found.shared)},
        "largest_context": found.largest,
        "experts": None if found.experts is None else asdict(found.experts),
    }
