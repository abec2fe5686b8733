"""`ov-hsdag fit`: whether a model fits into the devices' memory, and with how much context, before it is loaded.

A part is a model of a folder, by its name in the folder. A decoder is a model with states. Its context is the number of
tokens that the states hold.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from ov_hsdag.applications.folder_fit import FolderFit, Part, counted_needs, fit_parts, folder_verdict
from ov_hsdag.cli import _common as common
from ov_hsdag.cli import console
from ov_hsdag.cli.command import Command
from ov_hsdag.cli.command_lines import given
from ov_hsdag.costs.builtin import builtin_profile
from ov_hsdag.costs.memory import check_kv_precision
from ov_hsdag.costs.profile import Profile
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.devices.discovery import USABLE, full_name
from ov_hsdag.devices.memory import parse_memory
from ov_hsdag.model.inputs import example_shapes, parse_shapes
from ov_hsdag.model.placement import Placement
from ov_hsdag.model.shapes import has_npu, sized
from ov_hsdag.model.workload import Workload
from ov_hsdag.placing.memory_fit import DEFAULT_CONTEXT, SPLIT, Fit, Need, verdict
from ov_hsdag.placing.memory_fit import fit as fit_model
from ov_hsdag.storage.model_folder import (
    is_model_folder,
    longest_context,
    model_files,
    models_of,
    pipeline,
    tokenizers_size,
    weights_size,
)
from ov_hsdag.utils.byte_sizes import format_bytes
from ov_hsdag.utils.errors import UserError
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
    workload: common.WorkloadOption = None,
    batch: Batch = 1,
    memory: common.Memory = None,
    kv_precision: common.KvPrecision = None,
    profile: common.ProfileFile = None,
    shape: common.Shapes = None,
    static: common.Static = None,
    part: common.Part = None,
    as_json: common.Json = False,
) -> None:
    """Say whether MODEL fits into the devices' memory, alone or split, and with how much context.

    Of a folder, all models count that a program loads. Those that `place` does not place are counted on the first
    device, where HETERO loads them.

    A model that carries a placement is judged as it is placed; else the search of `place` looks for a split that fits.

    Weights are not loaded. Exit status: 0 it fits, 1 it does not.

    Args:
        model: a model's file or an exported folder.
        device: devices in the order of preference.
        context: tokens of a decoder's context.
        workload: prompt and tokens of a decoder, as --workload takes them.
        batch: sequences at a time.
        memory: limits of devices, as --memory takes them.
        kv_precision: element type of KV caches.
        profile: file of a device profile; None for built-in profiles.
        shape: example shapes, as --shape takes them.
        static: count the model with its example shapes fixed.
        part: one model of a folder; None for all.
        as_json: print JSON.

    Raises:
        UserError: options contradict each other, or a model, a device or a file cannot be used.
        typer.Exit: with status 1 where the model does not fit.
    """
    common.check_model(model)
    sources = _sources(model, part)
    devices = DeviceSet.parse(device)
    limits = parse_memory(memory, devices.names) if memory is not None else None
    check_kv_precision(kv_precision)
    examples = parse_shapes(shape or ())
    if static and len(sources) > 1:
        raise UserError(f"--static is for one model, and {model} has several: name one with --part")
    costs = Profile.load(profile) if profile else None
    with console.result(as_json) as show:
        core = common.new_core()
        parts = _read_parts(core, sources, examples, bool(static) or has_npu(devices))
        if context is None and workload is None:
            context = _longest_by_default(parts, sources)
        elif not any(each.model.get_sinks() for each in parts.values()) and len(parts) > 1:
            raise UserError(f"a context, or a workload of prompt and tokens, is one of decoders, and {model} has none")
        _warn_of_long_context(parts, sources, Workload.asked(workload, context))
        decoding = {"context": context, "workload": workload, "batch": batch}
        options: dict[str, Any] = {
            **decoding,
            "memory": limits,
            "kv_precision": kv_precision,
            "profile": costs,
            "core": core,
        }
        assumed = _assumed(devices.names, limits or {}, core) if costs is None else []
        tokenizers = tokenizers_size(model) if part is None else 0
        notes = [*_tokenizers(tokenizers, devices.names), *assumed]
        with console.progress(f"counting {model} on {device}") as tell:
            if len(parts) > 1:
                options |= {"tokenizers": tokenizers, "report": tell}
                result: Fit | FolderFit = fit_parts(parts, device, **options)
            else:
                (only,) = parts.values()
                options |= {"shapes": only.shapes, "static": bool(static), "occupied": {"CPU": tokenizers}}
                result = fit_model(only.model, device, **options)
        if isinstance(result, FolderFit):
            _show_folder(show, result, model, notes)
        else:
            lines = [verdict(result, str(model)), *_experts(result), *_counted(result), *notes]
            show(_as_json(result), "\n".join(lines), _table(result))
        _show_next(show, result, model)
    if not result.fits:
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Source:
    """A model that is counted."""

    path: Path
    placed: bool  # whether `place` places it, when it is given the folder without --part


def _sources(model: Path, part: str | None) -> dict[str, _Source]:
    """Lists the models to count by the names of their parts, in the order in which `place` places them.

    Args:
        model: a model's file or an exported folder.
        part: one model of a folder; None for all.
    """
    if part is not None or not is_model_folder(model):
        file = common.one_file(model, part, "count")
        return {file.stem: _Source(file, placed=True)}
    files = {name: role.path for name, role in pipeline(model).items()} | models_of(model)
    main = _main_files(model) or list(files.values())
    largest_first = sorted(files, key=lambda name: weights_size(files[name]), reverse=True)
    return {name: _Source(files[name], placed=files[name] in main) for name in largest_first}


def _main_files(folder: Path) -> list[Path]:
    """Lists the models of a folder that `place` places by default.

    The list is empty where none is known to be the main one: `place` then demands --part, and `plan` places all.
    """
    with contextlib.suppress(UserError):
        return model_files(folder)
    return []


def _read_parts(
    core: ov.Core, sources: Mapping[str, _Source], examples: Mapping[str, Sequence[int]], fixes_sizes: bool
) -> dict[str, Part]:
    """Reads the models, and finds example shapes of their dynamic inputs.

    Args:
        core: reads the models.
        sources: the models by part.
        examples: example shapes of the user, by input name.
        fixes_sizes: whether example shapes are going to be fixed in the models; only the user's may be.
    """
    loaded = {name: common.read_model(core, source.path) for name, source in sources.items()}
    shapes = dict(zip(sources, example_shapes(list(loaded.values()), examples), strict=True))
    return {
        name: Part(
            loaded[name],
            shapes[name] if fixes_sizes else common.with_known_shapes(loaded[name], source.path, shapes[name]),
            source.placed,
        )
        for name, source in sources.items()
    }


def _longest_by_default(parts: Mapping[str, Part], sources: Mapping[str, _Source]) -> int | None:
    """Chooses the context to count where the user gave none: the longest that all decoders were made for.

    Args:
        parts: the models by part.
        sources: their files, beside which a config.json may say what the model was made for.

    Returns:
        The context in tokens. None leaves the choice to `fit`, which counts `DEFAULT_CONTEXT` or the context of the
        placement: without decoders, where all were made for at least `DEFAULT_CONTEXT` tokens, or where one carries a
        placement.
    """
    decoders = [name for name, part in parts.items() if part.model.get_sinks()]
    longest = min(
        (longest_context(sources[name].path) or DEFAULT_CONTEXT for name in decoders), default=DEFAULT_CONTEXT
    )
    placed = any(Placement.of(parts[name].model) for name in decoders)
    return None if placed or not 1 < longest < DEFAULT_CONTEXT else longest


def _warn_of_long_context(parts: Mapping[str, Part], sources: Mapping[str, _Source], workload: Workload | None) -> None:
    """Warns where the first decoder was made for fewer tokens than the workload has. workload: None for none."""
    decoders = [name for name, part in parts.items() if part.model.get_sinks()]
    for name in decoders[:1]:
        common.warn_of_long_context(sources[name].path, workload.tokens if workload else 0)


def _show_next(show: console.Show, result: Fit | FolderFit, model: Path) -> None:
    """Prints the command that usually comes next, where there is one: `plan`, `place` or `verify`.

    Args:
        show: prints it.
        result: of a model or of a folder.
        model: the file or folder that the user named.
    """
    counted = ("--context", "--workload", "--memory", "--kv-precision", "--profile", "--shape", "--static")
    flags = ("--device", "--part", *counted)
    if isinstance(result, FolderFit):
        if not _main_files(model):
            show.next("plan", model, *given("--device", "--workload", "--memory", "--profile", "--shape"))
        elif result.fits and not all(part.placed for part in result.parts.values()):
            show.next("place", model, *given(*flags))
    elif result.placed and result.fits:
        show.next("verify", model, *given("--device", "--part", "--shape"))
    elif result.fits or (result.placed and result.other_fits):
        show.next("place", model, *given(*flags))


def _experts(result: Fit) -> list[str]:
    """Says, in one line, how many layers' experts have to leave the first device; [] for a model without experts."""
    experts = result.experts
    if experts is None:
        return []
    if experts.layers is None:
        either = "" if result.fits else ", either"
        return [f"experts: with those of all {experts.all} layers on {experts.target} it does not fit{either}"]
    if not experts.layers:
        return [f"experts: all {experts.all} layers' may stay on {experts.source}"]
    return [
        f"experts: those of {experts.layers} of {experts.all} layers have to leave {experts.source},"
        f" the rest being there (place --experts {experts.target}:{experts.layers})"
    ]


def _assumed(names: Sequence[str], limited: Collection[str], core: ov.Core) -> list[str]:
    """Describes the memory limits of devices for which the user gave none.

    It is a share (`USABLE`) of the memory that is free now; where a device is absent, of that in its built-in profile.

    Args:
        names: names of all devices.
        limited: names of the devices for which the user gave a limit.
        core: tells which devices are on this machine.

    Returns:
        The lines; [] where the user gave a limit for every device.
    """
    unlimited = [name for name in names if name not in limited]
    profile = builtin_profile(names, core)
    absent = [profile.device(name) for name in unlimited if full_name(core, name) is None]
    parts = [
        f"{one.name} has {format_bytes(one.memory_bytes)}, as the built-in profile {one.builtin}" for one in absent
    ]
    lines = [f"assumed: {', '.join(parts)}; --memory sets it"] if parts else []
    if unlimited:
        assumed = " or assumed" if absent else ""
        lines.append(f"may have: {USABLE:.0%} of the memory that is free now{assumed}; --memory gives other limits")
    return lines


def _tokenizers(size: int, names: Sequence[str]) -> list[str]:
    """Describes the memory of a folder's tokenizers, in one line.

    Args:
        size: bytes of their files; 0 without any.
        names: names of the devices. Only if the CPU is among them its memory is counted.

    Returns:
        The line in a list; [] without tokenizers.
    """
    if not size:
        return []
    counted = "of its memory" if "CPU" in names else "more, not counted here"
    return [f"tokenizers: they run on the CPU and take {format_bytes(size)} {counted}"]


def _counted(result: Fit) -> list[str]:
    """Says, in lines, which tensors, tokens and precisions the figures of a model include."""
    if result.context is None:
        if not result.tensors_counted:
            return ["counted: weights and states alone; with inputs of 128 where they are open (--shape) nothing fits"]
        assumed = ", ".join(sized(*one) for one in result.assumed.items())
        others = f", and {assumed} where these are open (--shape counts others)" if assumed else ""
        return [f"counted: inputs at their sizes, those of --shape, or their upper bounds{others}"]
    precisions = ", ".join(f"{precision} on {name}" for name, precision in result.kv_precision.items())
    needs = (*result.singles.values(), *result.split.values())
    overhead = max((need.overhead for need in needs), default=0)
    lines = [
        f"counted: {result.context:,} tokens of {console.count(result.batch, 'sequence')}, {_prompt(result)};"
        f" KV caches in {precisions}. context: the most that fits."
        f" OpenVINO's own memory, not counted: about {format_bytes(overhead)}"
    ]
    whole = max((need.total for need in result.singles.values()), default=0)
    if result.prompt and result.output_bytes > _NOTABLE * whole:
        lines.append(
            f"of it {format_bytes(result.output_bytes)} are outputs for all {result.prompt:,} tokens of the prompt, as"
            " optimum-intel computes them; openvino.genai computes the last token's alone"
        )
    return lines


def _prompt(result: Fit) -> str:
    """Says, as part of a sentence, how many tokens of the prompt are read at once."""
    if result.by_context:
        return (
            "all of them a prompt that is read at once, as optimum-intel and openvino.genai do on several devices"
            " (--workload prompt=1024,generate=256 counts another one)"
        )
    return f"a prompt of {result.prompt:,} of them read at once"


def _table(result: Fit) -> Table:
    """Makes the table of a model's memory: the whole model on each device, then each device's part of the placement."""
    columns = ("on", "weights", "states", "tensors", "needed", "may have", "left")
    table = console.table(*columns, *(("context",) if result.largest else ()))
    rows = [(name, name, need) for name, need in result.singles.items()]
    label = "placed" if result.placed else SPLIT
    rows += [(f"{label}, {name}", SPLIT, need) for name, need in result.split.items()]
    if result.split and result.shared is not None:
        rows.append((f"{label}, shared", SPLIT, result.shared))
    for label, key, need in rows:
        table.add_row(label, *_figures(need), *((_tokens(result.largest.get(key)),) if result.largest else ()))
    return table


def _figures(need: Need) -> list[str]:
    """Makes the cells of a row: what is needed by kind and in total, the limit and the rest of it; "-" for no limit."""
    counted = [need.weights, need.states, need.activations, need.total, need.room, need.headroom]
    return ["-" if bytes_ is None else format_bytes(bytes_) for bytes_ in counted]


def _tokens(most: int | None) -> str:
    """Formats the longest context that fits, in tokens; None where memory does not limit it."""
    return "no limit" if most is None else str(most)


def _show_folder(show: console.Show, result: FolderFit, folder: Path, notes: Sequence[str]) -> None:
    """Prints the memory needs of the models of a folder, each and in total.

    Args:
        show: prints text or JSON.
        result: of the folder.
        folder: the folder.
        notes: further lines.
    """
    lines = [folder_verdict(result, str(folder))]
    for name, part in result.parts.items():
        counted = _counted(part) if part.context or part.assumed or not part.tensors_counted else []
        lines += [f"{name}: {line}" for line in (*_experts(part), *counted)]
    if result.unplaced:
        lines.append(f"left to HETERO, as place does: {', '.join(result.unplaced)}")
    heads = ("part", "on", "weights", "states", "tensors", "needed", "may have", "left", "context")
    table = console.table(*heads, left=(0, 1))
    for name, part in result.parts.items():
        for device, need in counted_needs(part).items():
            key = device if not part.placed and device == part.single else SPLIT
            table.add_row(name, device, *_figures(need), _tokens(part.largest.get(key)) if part.largest else "")
    for device, need in result.total.items():
        table.add_row("all", device, *_figures(need), "", style="bold")
    show(_folder_json(result), "\n".join([*lines, *notes]), table)


def _folder_json(result: FolderFit) -> dict[str, Any]:
    """Describes a folder as the object that --json prints.

    Where `place` places a single part, the object also has the keys that a single model has (`_as_json`), with the
    values of that part, except for "fits" and "devices".
    """
    placed_by = {name: "hetero" if name in result.unplaced else "place" for name in result.parts}
    main = [name for name, by in placed_by.items() if by == "place"]
    return {
        **(_as_json(result.parts[main[0]]) if len(main) == 1 else {}),
        "fits": result.fits,
        "devices": result.devices,
        "parts": {name: {**_as_json(part), "placed_by": placed_by[name]} for name, part in result.parts.items()},
        "tokenizers": result.tokenizers,
        "total": {name: _need_json(need) for name, need in result.total.items()},
    }


_NOTABLE = 0.05
"""Share of a model's memory above which a line mentions the outputs for the prompt; less would not change a verdict."""

# Attributes of a `Fit` that JSON has under the same names.
_JSON_ATTRIBUTES = (
    "fits", "single", "split_fits", "placed", "other_fits", "enough", "devices", "context", "batch", "prompt",
    "kv_precision", "output_bytes",
)  # fmt: skip


def _need_json(need: Need) -> dict[str, Any]:
    """Describes the memory on one device in JSON's types, bytes; without a limit it fits."""
    return {**asdict(need), "needed": need.total, "headroom": need.headroom, "fits": (need.headroom or 0) >= 0}


def _as_json(result: Fit) -> dict[str, Any]:
    """Describes a single model as the object that --json prints."""
    return {
        **{name: getattr(result, name) for name in _JSON_ATTRIBUTES},
        "singles": {name: _need_json(need) for name, need in result.singles.items()},
        "split": {name: _need_json(need) for name, need in result.split.items()},
        "shared": None if result.shared is None else {"devices": result.sharing, **_need_json(result.shared)},
        "largest_context": result.largest,
        "largest_context_of_splits": result.largest_of_splits,
        "experts": None if result.experts is None else asdict(result.experts),
    }


COMMAND = Command(fit, position=30, example="ov-hsdag fit llama/ --device HETERO:GPU.0,GPU.1,CPU --context 32768")
