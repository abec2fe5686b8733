"""`ov-hsdag place`: decide where each operation of a model runs and write the model with that decision inside."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ov_hsdag.cli import _common as common
from ov_hsdag.cli import console, place_job, placed, plan, remote
from ov_hsdag.cli.child_process import continue_in_child
from ov_hsdag.cli.command_lines import again, command_line
from ov_hsdag.costs.builtin import costs_line
from ov_hsdag.costs.memory import check_kv_precision
from ov_hsdag.costs.profile import Profile
from ov_hsdag.costs.stored import load_beside, path_beside
from ov_hsdag.devices.cpu import busy_cores
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.devices.discovery import absent
from ov_hsdag.devices.memory import parse_memory
from ov_hsdag.model.config_sizes import sizes_beside
from ov_hsdag.model.inputs import example_shapes, parse_shapes
from ov_hsdag.model.names import operations_of
from ov_hsdag.model.pins import parse_pins
from ov_hsdag.model.placement import Placement
from ov_hsdag.model.samples import inputs_of_each, parse_inputs
from ov_hsdag.model.shapes import UNBOUNDED_DIMENSION, fix_input_shapes, has_npu, input_name, input_shapes, sized
from ov_hsdag.model.workload import Workload
from ov_hsdag.placing import selection
from ov_hsdag.placing.application_file import of_folder, parse_counts
from ov_hsdag.placing.candidates import policy_placers
from ov_hsdag.placing.folder_fit import FolderFit, Part, describe_lacking, fit_parts
from ov_hsdag.placing.options import PlaceOptions, flags
from ov_hsdag.problem.problem import check_objective
from ov_hsdag.report.write import check_report
from ov_hsdag.storage.files import check_not_input
from ov_hsdag.storage.model_folder import is_model_folder, model_files, models_of, tokenizers_size, weights_size
from ov_hsdag.utils.byte_sizes import format_bytes
from ov_hsdag.utils.errors import DoesNotFitError, UserError
from ov_hsdag.utils.lazy import ov

PlacedOutput = Annotated[
    Path | None,
    common.output_option(
        "OUT.xml|DIR",
        "IR to write; its .bin stands beside it, and missing folders are made. MODEL is overwritten only where it"
        " carries a placement already. A symbolic link is replaced, not followed. By default MODEL_placed.xml in the"
        " current directory. Of a folder a folder, by default MODEL_placed.",
    ),
]
Report = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="FILE.html|svg|png",
        help="Also write what runs where, and why, as one page (or the picture of the split).",
    ),
]
CompressToFp16 = Annotated[
    bool | None,
    typer.Option(
        "--compress-to-fp16/--no-compress-to-fp16",
        help="Write weights as FP16, or as they are in memory; by default as MODEL has them.",
    ),
]

Bucket = Annotated[
    str | None,
    typer.Option(
        "--bucket",
        metavar="SIZE,SIZE",
        help="Write a model for each of these sizes of what --shape leaves open: MODEL_placed_SIZE.xml, with --static.",
    ),
]

# Options that hold for one model only, so that --together refuses them.
_OF_ONE_MODEL = ("affinity", "pin", "inputs", "experts", "context", "kv_precision", "search_seconds")


@common.with_options_of(common.options_of(*flags()), "given")
def place(
    model: common.Model,
    device: common.Device,
    output: PlacedOutput = None,
    part: common.Parts = None,
    given: Any = None,
    compress_to_fp16: CompressToFp16 = None,
    together: Annotated[
        bool,
        typer.Option("--together", help="Of a folder, place all models that a run of its pipeline has, in proportion."),
    ] = False,
    count: plan.Counts = None,
    bucket: Bucket = None,
    hardlinks: common.HardLinks = True,
    report: Report = None,
    ray: remote.Ray = None,
    on: remote.On = None,
    as_json: common.Json = False,
) -> None:
    """Decide on which device each operation of MODEL runs and write an IR with the placement inside.

    Of a folder that optimum-intel exported, the language model, or encoder and decoder each, are placed (--part names
    others), and a folder is written that openvino.genai and optimum-intel load.

    Args:
        model: a model's file or an exported folder.
        device: devices in the order of preference.
        output: the IR or folder to write; None for `default_output`.
        part: models of a folder to place.
        given: the options of placing, see `options.flags`.
        compress_to_fp16: write weights as FP16; None for as `model` has them.
        together: place the models of a folder together, as parts of one application.
        count: runs of models in one run of the application, as --count takes them.
        bucket: sizes of open dimensions, separated by commas; a model is written for each.
        hardlinks: share unchanged weights with the input folder.
        report: also write a page or a picture.
        ray: address of the Ray cluster that measures; None for this machine.
        on: which machines of the cluster, as --on takes them.
        as_json: print JSON.

    Raises:
        UserError: options contradict each other, or a model, a device or a file cannot be used.
        RunError: placing failed, see `ov_hsdag.place`.
    """
    common.check_model(model)
    if bucket is not None:
        if is_model_folder(model) or ray is not None or as_json:
            raise UserError("--bucket is for one model on this machine: leave out --ray and --json, and name a file")
        output = default_output(model) if output is None else output
        common.check_output(output, model)
        continue_in_child(f"placing {model} on {device}")
        for size, wanted in _buckets(model, bucket, parse_shapes(given.shapes or ())).items():
            file, page = (one and one.with_stem(f"{one.stem}_{size}") for one in (output, report))
            each = {**vars(given), "static": True, "shapes": wanted, "report": page, "as_json": as_json}
            each |= {"compress_to_fp16": compress_to_fp16, "together": together, "count": count, "on": on}
            place(model, device, file, part, **each)
        return
    if together:
        if not is_model_folder(model):
            raise UserError("--together is for a folder of several models; ov-hsdag plan takes any models")
        if ray is not None:
            raise UserError("--together places on this machine alone: leave out --ray")
        alone = {flags()[name].name or name: getattr(given, name) for name in _OF_ONE_MODEL}
        plan.check_options({**alone, "part": part}, "for one model, not for --together")
        spec = of_folder(model, parse_counts(count), given.workload, given.shapes)
        how = {**vars(given), "report": report, "hardlinks": hardlinks, "compress_to_fp16": compress_to_fp16}
        plan.write(spec, device, default_output(model) if output is None else output, model, how, as_json)
        return
    if count:
        raise UserError("--count says how often a model runs among others: give --together as well")
    folder = is_model_folder(model)
    files = model_files(model, part or ())
    output = default_output(model) if output is None else output
    common.check_output(output, model)
    remote.check_on(ray, on)

    # All options are checked before the work begins, which may take minutes for a large model.
    check_objective(given.objective)
    devices = DeviceSet.parse(device)
    limits = parse_memory(given.memory, devices.names) if given.memory is not None else None
    check_kv_precision(given.kv_precision)
    examples, inputs = parse_shapes(given.shapes or ()), parse_inputs(given.inputs or ())
    parsed_workload = Workload.parse(given.workload) if given.workload is not None else None

    from ov_hsdag.placing.place import place as place_model

    policy_placers(given.policy)
    if given.profile:
        Profile.load(given.profile)
    measured = {file: load_beside(file) for file in files}
    if given.affinity and len(files) > 1:
        raise UserError("--affinity is for one model, and the folder has several to place: name one with --part")
    if given.pin and len(files) > 1:
        raise UserError("--pin is for one model, and the folder has several to place: name one with --part")
    parse_pins(given.pin or (), devices.names)
    affinity = Placement.load(given.affinity, devices.names).affinity if given.affinity else None
    if report is not None:
        if len(files) > 1:
            raise UserError("--report is of one model, and the folder has several to place: name one with --part")
        check_report(report)
        check_not_input(report, files[0])

    if ray is not None:
        with console.result(as_json) as show, remote.connected(ray, devices.names, on) as fleet:
            place_job.place(fleet, show, model, files, output, device, report, given.shapes, hardlinks)
        return

    unmeasured = "not measured: --no-measure" if given.measure is False else ""
    continue_in_child(f"placing {model} on {device}")
    with console.result(as_json) as show:
        core = common.new_core()
        missing = absent(core, devices)
        measure = given.measure
        if measure is None:
            # A placement that the user gave is written however fast it is, so that measuring would change nothing.
            decided = affinity is not None or given.experts is not None
            measure = not decided and not missing and common.has_temporary_folder()
            if not decided and missing:
                are = "is" if len(missing) == 1 else "are"
                unmeasured = f"not measured: {', '.join(missing)} {are} not on this machine"
        elif measure:
            selection.check_possible(core, devices)
        loaded = {file: common.read_model(core, file) for file in files}
        shapes = dict(zip(files, example_shapes(list(loaded.values()), examples), strict=True))
        fixes_sizes = given.static or has_npu(devices)  # sizes of the user alone are fixed in the model
        configured_sizes = {
            file: {} if fixes_sizes else sizes_beside(one, file, shapes[file]) for file, one in loaded.items()
        }
        samples = dict(zip(files, inputs_of_each(list(loaded.values()), inputs), strict=True))
        compressed = {
            file: common.has_fp16_weights(loaded_model) if compress_to_fp16 is None else compress_to_fp16
            for file, loaded_model in loaded.items()
        }
        # If there are several models, such as encoder and decoder, only those with states have a context.
        decoders = [file for file in files if loaded[file].get_sinks()] or files
        for file in decoders:
            common.warn_of_long_context(file, max(given.context or 0, parsed_workload.tokens if parsed_workload else 0))
        options = PlaceOptions.of(
            None,
            {**vars(given), "affinity": affinity, "measure": measure, "shapes": None, "inputs": None, "memory": None},
        )
        placements: dict[Path, Placement] = {}
        busy = busy_cores()
        others = None
        if folder and limits is not None:
            others = _fit_of_others(
                core, model, files, device, limits, Workload.asked(parsed_workload, given.context), given
            )
        # The largest model first: it has the memory limits to itself, and the others share what is left.
        for file in sorted(files, key=weights_size, reverse=True):
            model_options = replace(
                options,
                shapes={**(shapes[file] or {}), **({} if samples[file] else configured_sizes[file])} or None,
                inputs=samples[file] or None,
                memory=_remaining_limits(limits, placements.values(), others.needed if others else {}),
                costs=measured[file],
                workload=parsed_workload if file in decoders else None,
                context=given.context if file in decoders else None,
            )
            with console.progress(f"placing {file} on {device}") as tell:
                placements[file] = place_model(loaded[file], device, options=model_options, core=core, report=tell)
        # By default weights are written as they were read, compressed or exact.
        common.write_models(output, model, {file: (loaded[file], compressed[file]) for file in files}, hardlinks)
        if report is not None:
            with console.progress(f"writing {report}"):
                placements[files[0]].report(report, title=files[0].stem, done={"command": command_line(*again())})
        json_models, all_lines = {}, []
        for file in files:
            placement, written = placements[file], output / file.name if folder else output
            used = (placement.predicted or {}).get("measured_costs", [])
            stored = path_beside(file) if measured[file] and "calibrate" not in (placement.seconds or {}) else None
            costs = costs_line(used, stored, given.profile, devices.names, core)
            counted = (placement.settings or {}).get("shapes")
            assumed = (
                ""
                if parsed_workload or given.context or samples[file]
                else common.assumed_shapes(loaded[file], shapes[file], counted, configured_sizes[file])
            )
            lines = placed.notes(placement, [costs, assumed, unmeasured], busy, stateful=bool(loaded[file].get_sinks()))
            all_lines += lines
            json_models[file.name] = placed.as_json(written, placement, lines)
            show.text("\n".join([f"{written}: {placement.summary()}", *lines]), placed.table(placement))
            if not as_json and sys.stdout.isatty() and len(placement.used()) > 1:
                print(console.printable("\n".join(placed.terminal_picture(operations_of(loaded[file]), placement))))
        show.json({"output": str(output), "models": json_models} if folder else json_models[model.name])
        if others and others.needed:
            show.text(_others_line(others))
        named = files[0].stem if len(files) > 1 else None
        placed.show_what_next(show, {output: all_lines}, device, named, given.shapes, here=not missing)


def _buckets(model: Path, sizes: str, examples: Mapping[str, Sequence[int]]) -> dict[int, list[str]]:
    """The shapes of all inputs, as --shape takes them, for each size in --bucket of the open dimensions."""
    if not all(size.strip().isdecimal() and int(size) for size in sizes.split(",")):
        raise UserError(f"--bucket takes sizes such as 128,512; got '{sizes}'")
    loaded = common.read_model(common.new_core(), model)
    (shapes,) = example_shapes([loaded], examples)
    names, shapes_by_size = [input_name(port) for port in loaded.inputs], dict[int, list[str]]()
    for size in map(int, sizes.split(",")):
        wanted = dict(zip(names, input_shapes(loaded, shapes or {}, size), strict=True))
        fix_input_shapes(loaded.clone(), wanted)  # raises UserError, if at all, before anything is written
        shapes_by_size[size] = [sized(name, one) for name, one in wanted.items()]
    return shapes_by_size


def _fit_of_others(
    core: ov.Core,
    folder: Path,
    files: Sequence[Path],
    device: str,
    limits: Mapping[str, int],
    workload: Workload | None,
    options: Any,
) -> FolderFit:
    """The memory needs of a folder's tokenizers and of its models that are not placed.

    Raises DoesNotFitError where they alone exceed a limit.
    """
    parts = {}
    for name, path in models_of(folder).items():
        if path in files:
            continue
        loaded = common.read_model(core, path)
        parts[name] = Part(loaded, common.with_known_shapes(loaded, path, None), placed=False)
    others = fit_parts(
        parts,
        device,
        workload=workload or Workload.of_context(UNBOUNDED_DIMENSION),
        tokenizers=tokenizers_size(folder),
        memory=limits,
        kv_precision=options.kv_precision,
        profile=Profile.load(options.profile) if options.profile else None,
        core=core,
    )
    if not others.fits:
        raise DoesNotFitError("; ".join(describe_lacking(others)))
    return others


def _others_line(others: FolderFit) -> str:
    """A line about the memory of models and tokenizers that were not placed."""
    names = [*others.parts, *(("tokenizers",) if others.tokenizers else ())]
    needs = ", ".join(f"{format_bytes(size)} on {device}" for device, size in others.needed.items())
    return f"left as they are, and counted for --memory: {', '.join(names)} ({needs})"


def _remaining_limits(
    limits: Mapping[str, int] | None, placements: Iterable[Placement], occupied: Mapping[str, int]
) -> Mapping[str, int] | None:
    """The limits in bytes, by device, after subtracting the folder's models placed so far and those not placed."""
    if limits is None:
        return None
    taken = [occupied, *((placement.predicted or {}).get("memory_bytes", {}) for placement in placements)]
    return {name: max(limit - sum(one.get(name, 0) for one in taken), 1) for name, limit in limits.items()}


def default_output(model: Path) -> Path:
    """The default output of placing a model: NAME_placed in the current directory, as ovc writes there, too."""
    named = Path(os.path.abspath(model))  # for a link its own name, for ".." the name of the folder
    if is_model_folder(model):
        return Path(f"{named.name}_placed")
    return Path(f"{named.name if named.is_dir() else named.stem}_placed.xml")
