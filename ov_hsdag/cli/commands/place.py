"""`ov-hsdag place`: decide where each operation of a model runs and write the model with that decision inside."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ov_hsdag.applications.application_file import of_folder, parse_counts
from ov_hsdag.applications.folder_fit import FolderFit, Part, describe_lacking, fit_parts
from ov_hsdag.cli import _common as common
from ov_hsdag.cli import applications, console, place_job, placed, remote
from ov_hsdag.cli.child_process import continue_in_child
from ov_hsdag.cli.command import Command
from ov_hsdag.cli.command_lines import again, command_line
from ov_hsdag.costs.builtin import costs_line
from ov_hsdag.costs.memory import check_kv_precision
from ov_hsdag.costs.profile import Profile
from ov_hsdag.costs.stored import ModelCosts, load_beside, path_beside
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
from ov_hsdag.placing.candidates import policy_placers
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
    count: applications.Counts = None,
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
    written = default_output(model) if output is None else output
    arguments = _Arguments(model, device, written, part, given, compress_to_fp16, hardlinks, report)
    if bucket is not None:
        if together or count:
            raise UserError("--bucket is for one model: leave out --together and --count")
        if is_model_folder(model) or ray is not None or as_json:
            raise UserError("--bucket is for one model on this machine: leave out --ray and --json, and name a file")
        remote.check_on(ray, on)
        _place_buckets(arguments, bucket)
        return
    if together:
        if ray is not None:
            raise UserError("--together places on this machine alone: leave out --ray")
        _place_together(arguments, count, as_json)
        return
    if count:
        raise UserError("--count says how often a model runs among others: give --together as well")
    remote.check_on(ray, on)
    job = _check(arguments)
    if ray is not None:
        with console.result(as_json) as show, remote.connected(ray, job.devices.names, on) as fleet:
            place_job.place(fleet, show, model, job.files, written, device, report, given.shapes, hardlinks)
        return
    continue_in_child(f"placing {model} on {device}")
    with console.result(as_json) as show:
        _place_here(job, show, as_json)


@dataclass(frozen=True, eq=False)
class _Arguments:
    """The arguments of `place` that every way of placing has, as they were given; for each see `place`."""

    model: Path
    device: str
    output: Path
    part: list[str] | None
    given: Any
    compress_to_fp16: bool | None
    hardlinks: bool
    report: Path | None


@dataclass(frozen=True, eq=False)
class _Job:
    """Models to place, with options that are checked and read.

    Attributes:
        model: the file or the folder.
        device: the devices as they were given.
        devices: the devices.
        files: the models to place; of a folder some of its files.
        output: the IR or the folder to write.
        given: the options of placing as they were given, see `options.flags`.
        limits: memory that all models together may have, bytes by device; None: as the devices have it.
        examples: example shapes by input name; "" for a model's only input.
        inputs: files of inputs by input name.
        workload: of decoders; None: none was given.
        measured_costs: costs that stand beside each model's file; None where there are none.
        affinity: device by node, where the user gave a placement.
        compress_to_fp16: whether weights are written as FP16; None: as they were read.
        hardlinks: whether unchanged weights are shared with the input folder.
        report: page or picture to write as well.
    """

    model: Path
    device: str
    devices: DeviceSet
    files: list[Path]
    output: Path
    given: Any
    limits: Mapping[str, int] | None
    examples: Mapping[str, Sequence[int]]
    inputs: Mapping[str, Sequence[str]]
    workload: Workload | None
    measured_costs: Mapping[Path, ModelCosts | None]
    affinity: Mapping[str, str] | None
    compress_to_fp16: bool | None
    hardlinks: bool
    report: Path | None

    @property
    def of_folder(self) -> bool:
        """Whether the models are those of a folder."""
        return is_model_folder(self.model)


@dataclass(frozen=True, eq=False)
class _Loaded:
    """The models of a job, by their files.

    Attributes:
        models: the models.
        shapes: example shapes of their inputs; None: none were given.
        configured: sizes that a config.json beside a model gives for other inputs.
        samples: inputs to measure with.
        decoders: files of the models that a workload and a context are for.
        compress: whether weights are written as FP16.
    """

    models: Mapping[Path, ov.Model]
    shapes: Mapping[Path, Mapping[str, Sequence[int]] | None]
    configured: Mapping[Path, Mapping[str, Sequence[int]]]
    samples: Mapping[Path, Any]
    decoders: list[Path]
    compress: Mapping[Path, bool]


def _place_buckets(arguments: _Arguments, sizes: str) -> None:
    """Places and writes a model for each of some sizes of its open dimensions; the size is added to the output's name.

    Args:
        arguments: the arguments of `place`.
        sizes: the sizes, as --bucket takes them.
    """
    model, given = arguments.model, arguments.given
    output, report = arguments.output, arguments.report
    common.check_output(output, model)
    continue_in_child(f"placing {model} on {arguments.device}")
    for size, shapes in _buckets(model, sizes, parse_shapes(given.shapes or ())).items():
        of_size = replace(
            arguments,
            output=output.with_stem(f"{output.stem}_{size}"),
            given=replace(given, static=True, shapes=shapes),
            report=None if report is None else report.with_stem(f"{report.stem}_{size}"),
        )
        job = _check(of_size)
        with console.result(False) as show:
            _place_here(job, show, as_json=False)


def _place_together(arguments: _Arguments, count: list[str] | None, as_json: bool) -> None:
    """Places the models of a folder together, as parts of one application.

    Args:
        arguments: name the folder.
        count: runs of models in one run of the application, as --count takes them.
        as_json: print JSON.
    """
    model, given = arguments.model, arguments.given
    if not is_model_folder(model):
        raise UserError("--together is for a folder of several models; ov-hsdag plan takes any models")
    of_one_model = {flags()[name].name or name: getattr(given, name) for name in _OF_ONE_MODEL}
    common.refuse_options({**of_one_model, "part": arguments.part}, "for one model, not for --together")
    spec = of_folder(model, parse_counts(count), given.workload, given.shapes)
    options = {
        **vars(given),
        "report": arguments.report,
        "hardlinks": arguments.hardlinks,
        "compress_to_fp16": arguments.compress_to_fp16,
    }
    applications.place(spec, arguments.device, arguments.output, model, options, as_json)


def _check(arguments: _Arguments) -> _Job:
    """Checks all options, before the minutes that reading a large model may take.

    Raises:
        UserError: an option is wrong, or options contradict each other.
    """
    given, report = arguments.given, arguments.report
    files = model_files(arguments.model, arguments.part or ())
    common.check_output(arguments.output, arguments.model)
    check_objective(given.objective)
    devices = DeviceSet.parse(arguments.device)
    limits = parse_memory(given.memory, devices.names) if given.memory is not None else None
    check_kv_precision(given.kv_precision)
    examples = parse_shapes(given.shapes or ())
    inputs = parse_inputs(given.inputs or ())
    workload = Workload.parse(given.workload) if given.workload is not None else None
    policy_placers(given.policy)
    if given.profile:
        Profile.load(given.profile)
    measured_costs = {file: load_beside(file) for file in files}
    if len(files) > 1:
        for option, value in (("--affinity", given.affinity), ("--pin", given.pin)):
            if value:
                raise UserError(f"{option} is for one model, and the folder has several to place: name one with --part")
    parse_pins(given.pin or (), devices.names)
    affinity = Placement.load(given.affinity, devices.names).affinity if given.affinity else None
    if report is not None:
        if len(files) > 1:
            raise UserError("--report is of one model, and the folder has several to place: name one with --part")
        check_report(report)
        check_not_input(report, files[0])
    return _Job(
        model=arguments.model,
        device=arguments.device,
        devices=devices,
        files=files,
        output=arguments.output,
        given=given,
        limits=limits,
        examples=examples,
        inputs=inputs,
        workload=workload,
        measured_costs=measured_costs,
        affinity=affinity,
        compress_to_fp16=arguments.compress_to_fp16,
        hardlinks=arguments.hardlinks,
        report=report,
    )


def _place_here(job: _Job, show: console.Show, as_json: bool) -> None:
    """Places the models of a job on this machine, writes them, and shows what was placed.

    Args:
        job: the models, with checked options.
        show: prints text or JSON.
        as_json: whether it prints JSON.
    """
    core = common.new_core()
    missing = absent(core, job.devices)
    measure, unmeasured = _decide_measuring(job, core, missing)
    loaded = _load(job, core)
    busy = busy_cores()
    others = _fit_of_others(core, job) if job.of_folder and job.limits is not None else None
    placements = _place_models(job, core, loaded, measure, others)
    _write(job, loaded, placements)
    lines = _render(job, core, loaded, placements, show, unmeasured, busy, as_json)
    if others and others.needed:
        show.text(_others_line(others))
    one_of_several = job.files[0].stem if len(job.files) > 1 else None
    placed.show_what_next(show, {job.output: lines}, job.device, one_of_several, job.given.shapes, here=not missing)


def _decide_measuring(job: _Job, core: ov.Core, missing: Sequence[str]) -> tuple[bool, str]:
    """Decides whether candidates are measured.

    Args:
        job: says whether the user asked for it.
        core: has the devices.
        missing: devices that are not on this machine.

    Returns:
        Whether to measure, and a line for the user about why not; "" where there is nothing to say.

    Raises:
        UserError: the user asked for measuring, and a device is not on this machine.
        RunError: the user asked for measuring, and there is no folder for temporary files.
    """
    if job.given.measure:
        selection.check_possible(core, job.devices)
        return True, ""
    if job.given.measure is False:
        return False, "not measured: --no-measure"
    # A placement that the user gave is written however fast it is, so that measuring would change nothing.
    decided = job.affinity is not None or job.given.experts is not None
    if missing and not decided:
        return False, f"not measured: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not on this machine"
    return not decided and common.has_temporary_folder(), ""


def _load(job: _Job, core: ov.Core) -> _Loaded:
    """Reads the models of a job, and finds sizes and inputs for each.

    Raises:
        UserError: a model cannot be read, or shapes or inputs do not fit the models.
    """
    models = {file: common.read_model(core, file) for file in job.files}
    shapes = dict(zip(job.files, example_shapes(list(models.values()), job.examples), strict=True))
    fixes_sizes = job.given.static or has_npu(job.devices)  # sizes of the user alone are fixed in the model
    configured = {file: {} if fixes_sizes else sizes_beside(models[file], file, shapes[file]) for file in job.files}
    samples = dict(zip(job.files, inputs_of_each(list(models.values()), job.inputs), strict=True))
    # If there are several models, such as encoder and decoder, only those with states have a context.
    decoders = [file for file in job.files if models[file].get_sinks()] or job.files
    for file in decoders:
        common.warn_of_long_context(file, max(job.given.context or 0, job.workload.tokens if job.workload else 0))
    # This is asked before placing, which widens FP16 weights.
    compress = {
        file: common.has_fp16_weights(loaded_model) if job.compress_to_fp16 is None else job.compress_to_fp16
        for file, loaded_model in models.items()
    }
    return _Loaded(models, shapes, configured, samples, decoders, compress)


def _place_models(
    job: _Job, core: ov.Core, loaded: _Loaded, measure: bool, others: FolderFit | None
) -> dict[Path, Placement]:
    """Places the models of a job, one after the other, and annotates them with their placements.

    Args:
        job: says how.
        core: has the devices.
        loaded: the models, which are changed in place.
        measure: measure candidates, and choose by that.
        others: memory of a folder's models and tokenizers that are not placed; None where there are no memory limits,
            or no folder.

    Returns:
        The placements by the models' files.
    """
    from ov_hsdag.placing.place import place as place_model

    given = job.given
    options = PlaceOptions.of(
        None,
        {**vars(given), "affinity": job.affinity, "measure": measure, "shapes": None, "inputs": None, "memory": None},
    )
    placements: dict[Path, Placement] = {}
    # The largest model first: it has the memory limits to itself, and the others share what is left.
    for file in sorted(job.files, key=weights_size, reverse=True):
        samples = loaded.samples[file]
        is_decoder = file in loaded.decoders
        model_options = replace(
            options,
            shapes={**(loaded.shapes[file] or {}), **({} if samples else loaded.configured[file])} or None,
            inputs=samples or None,
            memory=_remaining_limits(job.limits, placements.values(), others.needed if others else {}),
            costs=job.measured_costs[file],
            workload=job.workload if is_decoder else None,
            context=given.context if is_decoder else None,
        )
        with console.progress(f"placing {file} on {job.device}") as tell:
            placements[file] = place_model(
                loaded.models[file], job.device, options=model_options, core=core, report=tell
            )
    return placements


def _write(job: _Job, loaded: _Loaded, placements: Mapping[Path, Placement]) -> None:
    """Writes the annotated models, and the report where one was asked for.

    By default weights are written as they were read.
    """
    models = {file: (model, loaded.compress[file]) for file, model in loaded.models.items()}
    common.write_models(job.output, job.model, models, job.hardlinks)
    if job.report is not None:
        with console.progress(f"writing {job.report}"):
            (file,) = job.files
            placements[file].report(job.report, title=file.stem, done={"command": command_line(*again())})


def _render(
    job: _Job,
    core: ov.Core,
    loaded: _Loaded,
    placements: Mapping[Path, Placement],
    show: console.Show,
    unmeasured: str,
    busy: float,
    as_json: bool,
) -> list[str]:
    """Shows the placements, each with its table and the lines about it.

    Args:
        job: names the models.
        core: has the devices.
        loaded: the models.
        placements: by the models' files.
        show: prints text or JSON.
        unmeasured: a line about why nothing was measured; "" where there is nothing to say.
        busy: cores that other programs used.
        as_json: whether JSON is printed.

    Returns:
        The lines about all placements.
    """
    given = job.given
    objects: dict[str, Any] = {}
    all_lines: list[str] = []
    for file in job.files:
        model, placement = loaded.models[file], placements[file]
        written = job.output / file.name if job.of_folder else job.output
        used = (placement.predicted or {}).get("measured_costs", [])
        calibrated_now = "calibrate" in (placement.seconds or {})
        stored = path_beside(file) if job.measured_costs[file] and not calibrated_now else None
        costs = costs_line(used, stored, given.profile, job.devices.names, core)
        assumed = ""
        if not (job.workload or given.context or loaded.samples[file]):
            counted = (placement.settings or {}).get("shapes")
            assumed = common.assumed_shapes(model, loaded.shapes[file], counted, loaded.configured[file])
        lines = placed.notes(placement, [costs, assumed, unmeasured], busy, stateful=bool(model.get_sinks()))
        all_lines += lines
        objects[file.name] = placed.as_json(written, placement, lines)
        show.text("\n".join([f"{written}: {placement.summary()}", *lines]), placed.table(placement))
        if not as_json and sys.stdout.isatty() and len(placement.used()) > 1:
            print(console.printable("\n".join(placed.terminal_picture(operations_of(model), placement))))
    show.json({"output": str(job.output), "models": objects} if job.of_folder else objects[job.model.name])
    return all_lines


def _buckets(model: Path, sizes: str, examples: Mapping[str, Sequence[int]]) -> dict[int, list[str]]:
    """Computes the shapes of all inputs for each size in --bucket.

    Args:
        model: the model's file.
        sizes: value of --bucket, such as "128,512".
        examples: example shapes of the user, by input name. Inputs with one keep it.

    Returns:
        By size, the shapes of all inputs as --shape takes them. Other open dimensions have the size.

    Raises:
        UserError: a size is malformed, or the model cannot be read or does not take a size.
    """
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


def _fit_of_others(core: ov.Core, job: _Job) -> FolderFit:
    """Computes the memory that a folder's tokenizers and its models that are not placed need.

    Args:
        core: reads the models.
        job: of a folder, with memory limits.

    Raises:
        DoesNotFitError: they exceed a limit, before any model is placed.
    """
    assert job.limits is not None
    parts = {}
    for name, path in models_of(job.model).items():
        if path in job.files:
            continue
        loaded = common.read_model(core, path)
        parts[name] = Part(loaded, common.with_known_shapes(loaded, path, None), placed=False)
    workload = Workload.asked(job.workload, job.given.context)
    others = fit_parts(
        parts,
        job.device,
        workload=workload or Workload.of_context(UNBOUNDED_DIMENSION),
        tokenizers=tokenizers_size(job.model),
        memory=job.limits,
        kv_precision=job.given.kv_precision,
        profile=Profile.load(job.given.profile) if job.given.profile else None,
        core=core,
    )
    if not others.fits:
        raise DoesNotFitError("; ".join(describe_lacking(others)))
    return others


def _others_line(others: FolderFit) -> str:
    """Describes, in one line, the memory of models and tokenizers that were not placed."""
    names = [*others.parts, *(("tokenizers",) if others.tokenizers else ())]
    needs = ", ".join(f"{format_bytes(size)} on {device}" for device, size in others.needed.items())
    return f"left as they are, and counted for --memory: {', '.join(names)} ({needs})"


def _remaining_limits(
    limits: Mapping[str, int] | None, placements: Iterable[Placement], occupied: Mapping[str, int]
) -> Mapping[str, int] | None:
    """Computes the memory that is left for the next model of a folder.

    Args:
        limits: limits of all models together, bytes by device; None for none.
        placements: of the models that were placed so far.
        occupied: bytes by device of what is not placed.

    Returns:
        Bytes by device, 1 at least; None without limits.
    """
    if limits is None:
        return None
    taken = [occupied, *((placement.predicted or {}).get("memory_bytes", {}) for placement in placements)]
    return {name: max(limit - sum(one.get(name, 0) for one in taken), 1) for name, limit in limits.items()}


def default_output(model: Path) -> Path:
    """Returns the default output of placing a model, in the current directory, as ovc writes there, too.

    It is NAME_placed.xml for a model, and NAME_placed for an exported folder.
    """
    named = Path(os.path.abspath(model))  # for a link its own name, for ".." the name of the folder
    if is_model_folder(model):
        return Path(f"{named.name}_placed")
    return Path(f"{named.name if named.is_dir() else named.stem}_placed.xml")


COMMAND = Command(
    place, position=10, example="ov-hsdag place model.onnx --device HETERO:GPU,CPU --objective throughput"
)
