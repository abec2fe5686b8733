"""`ov-hsdag finetune`: improve the placement of a model by measuring on its devices."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ov_hsdag.cli import _common as common
from ov_hsdag.cli import console, remote
from ov_hsdag.cli.command import Command
from ov_hsdag.cli.command_lines import given
from ov_hsdag.costs.profile import Profile
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.jobs.job import OUT, Inputs, Job
from ov_hsdag.jobs.machine_kind import Kind
from ov_hsdag.measuring.evaluator import HETERO_DEFAULT
from ov_hsdag.model.gains import BEST_SINGLE, times
from ov_hsdag.model.inputs import parse_shapes
from ov_hsdag.model.placement import Placement
from ov_hsdag.model.shapes import has_npu
from ov_hsdag.placing.candidates import MARGIN
from ov_hsdag.policy import bundle, tuned
from ov_hsdag.problem.problem import check_objective
from ov_hsdag.training import CHECKPOINT, FOUND_BY, check_outputs, refuse_existing
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.progress import Tell

if TYPE_CHECKING:
    from ov_hsdag.training.finetune import Entry, Report

Folder = Annotated[Path, common.output_option("DIR", "Folder of the run, its policy and the placed model.")]
Objective = Annotated[
    str | None, typer.Option("--objective", metavar="latency|throughput", help="What is to be best (default latency).")
]
Duration = Annotated[
    str | None, typer.Option("--budget", metavar="10m", help="Time to spend, as 90s, 10m or 1h (default 10m).")
]
Measurements = Annotated[int | None, typer.Option("--measurements", min=1, help="Placements to measure.")]
Policy = Annotated[
    str | None,
    typer.Option("--policy", metavar="NAME|DIR", help='The policy to begin with; "none" for an untrained one.'),
]
Proposer = Annotated[
    str | None,
    typer.Option(
        "--proposer",
        metavar="both|policy|search",
        help="What proposes placements to measure: the policy, search on the corrected costs, or both (default).",
    ),
]
IsSimulated = Annotated[bool, typer.Option("--simulated", help="Judge placements by the profile, measure nothing.")]

_DEFAULT_SECONDS = 600.0  # the 10 minutes that --budget documents
_DEFAULT_SIMULATED = 60  # measurements of a simulated run, whose time would say nothing

# Options that a resumed run keeps from its beginning.
_SETTINGS = ("--objective", "--policy", "--proposer", "--simulated", "--seed")

_SHOWN = 5  # placements in the table of the result


def finetune(
    model: common.Model,
    device: common.Device,
    output: Folder,
    objective: Objective = None,
    budget: Duration = None,
    measurements: Measurements = None,
    resume: common.Resume = False,
    policy: Policy = None,
    proposer: Proposer = None,
    profile: common.ProfileFile = None,
    shape: common.Shapes = None,
    simulated: IsSimulated = False,
    seed: common.Seed = None,
    threads: common.Threads = 1,
    ray: remote.Ray = None,
    on: remote.On = None,
    as_json: common.Json = False,
) -> None:
    """Measure placements of MODEL on its devices and learn from them; DIR gets the policy and the placed model.

    Needs the extra `train`; with --ray, on the machines that measure.

    Args:
        model: the model's file.
        device: devices in the order of preference.
        output: folder of the run.
        objective: "latency" or "throughput"; None for "latency", or that of a resumed run.
        budget: time to spend, such as "10m"; not with `measurements`.
        measurements: placements to measure.
        resume: continue the run in `output`.
        policy: name or folder of the policy to begin with; "none" for an untrained one.
        proposer: "both", "policy" or "search".
        profile: file of a device profile; None for built-in profiles.
        shape: example shapes, as --shape takes them.
        simulated: judge placements by the cost model and measure nothing.
        seed: seed of the run; None for 0, or that of a resumed run.
        threads: threads of torch.
        ray: address of the Ray cluster that measures; None for this machine.
        on: which machines of the cluster, as --on takes them.
        as_json: print JSON.

    Raises:
        UserError: options contradict each other, or the model, a device or the folder cannot be used.
        RunError: the devices do not run the model.
    """
    job = _check(
        model,
        device,
        output,
        objective,
        budget,
        measurements,
        resume,
        policy,
        proposer,
        profile,
        shape,
        simulated,
        seed,
        ray,
        on,
    )
    if ray is not None:
        with console.result(as_json) as show, remote.connected(ray, job.names, on) as fleet:
            _finetune_on_cluster(fleet, show, model, output, resume)
        return
    how = _prepare(job, threads)
    with console.result(as_json) as show:
        record, placement, kept = _run(job, how)
        _render(job, show, record, placement, kept)


@dataclass(frozen=True, eq=False)
class _Job:
    """A run of fine-tuning, with options that are checked; None stands for an option that was not given.

    Attributes:
        model: the model's file.
        device: the devices as they were given.
        names: the devices' names.
        output: folder of the run.
        objective: "latency" or "throughput".
        seconds: time to spend, seconds.
        measurements: placements to measure.
        resume: whether the run in `output` is continued.
        policy: name or folder of the policy to begin with.
        proposer: "both", "policy" or "search".
        profile: file of a device profile.
        examples: example shapes by input name; "" for a model's only input.
        simulated: whether the cost model judges placements, and nothing is measured.
        seed: seed of the run.
    """

    model: Path
    device: str
    names: tuple[str, ...]
    output: Path
    objective: str
    seconds: float | None
    measurements: int | None
    resume: bool
    policy: str | None
    proposer: str | None
    profile: Path | None
    examples: Mapping[str, Sequence[int]]
    simulated: bool
    seed: int | None


def _check(
    model: Path,
    device: str,
    output: Path,
    objective: str | None,
    budget: str | None,
    measurements: int | None,
    resume: bool,
    policy: str | None,
    proposer: str | None,
    profile: Path | None,
    shape: list[str] | None,
    simulated: bool,
    seed: int | None,
    ray: str | None,
    on: list[str] | None,
) -> _Job:
    """Checks all options, before torch is loaded; the arguments are those of `finetune`.

    Raises:
        UserError: an option is wrong, or options contradict each other.
    """
    common.check_model(model)
    remote.check_on(ray, on)
    values = (objective, policy, proposer, simulated or None, seed)
    settled = [name for name, value in zip(_SETTINGS, values, strict=True) if value is not None]
    if resume and settled:
        raise UserError(f"--resume continues a run with its own settings: leave out {', '.join(settled)}")
    if proposer not in (None, "both", "policy", "search"):
        raise UserError(f"--proposer is both, policy or search, got '{proposer}'")
    if proposer == "search" and policy is not None:
        raise UserError("--proposer search uses no policy: leave out --policy")
    if budget is not None and measurements is not None:
        raise UserError("--budget and --measurements both say when to stop: give one of them")
    seconds = None if budget is None else common.parse_duration(budget)
    check_objective(objective or "latency")
    names = DeviceSet.parse(device).names
    examples = parse_shapes(shape or ())
    if ray is not None and simulated:
        raise UserError("--simulated measures nothing and needs no other machine: leave out --ray")
    return _Job(
        model=model,
        device=device,
        names=names,
        output=output,
        objective=objective or "latency",
        seconds=seconds,
        measurements=measurements,
        resume=resume,
        policy=policy,
        proposer=proposer,
        profile=profile,
        examples=examples,
        simulated=simulated,
        seed=seed,
    )


def _prepare(job: _Job, threads: int) -> dict[str, Any]:
    """Loads torch, and prepares a run on this machine.

    Args:
        job: the run.
        threads: threads of torch.

    Returns:
        The options of `ov_hsdag.training.finetune.finetune` that follow from the job.

    Raises:
        UserError: the extra `train` is not installed, the folder of the run cannot be used, or there is no such policy
            or profile.
    """
    common.require_training("fine-tuning")
    with console.progress("starting torch"):
        import torch

        from ov_hsdag.training import finetune as tuning

    check_outputs(job.output, job.model)
    policy = job.policy
    if not job.resume:
        refuse_existing(job.output)
        if policy is None and not bundle.ships(bundle.DEFAULT):
            console.message("the package ships no policy: beginning with an untrained one")
            policy = tuning.SCRATCH
        elif policy != tuning.SCRATCH:
            bundle.check_folder(bundle.find(policy))
    costs = Profile.load(job.profile) if job.profile else None
    seconds, measurements = job.seconds, job.measurements
    if not job.resume and seconds is measurements is None:
        measurements, seconds = (_DEFAULT_SIMULATED, None) if job.simulated else (None, _DEFAULT_SECONDS)
    limits = measurements or math.inf, seconds or math.inf
    settings = None if job.resume else tuning.Settings(seed=job.seed or 0, proposer=job.proposer or "both")
    if settings and job.simulated:  # simulated figures have no noise, so that a small margin will do
        settings = replace(settings, margin=MARGIN)
    torch.set_num_threads(threads)
    return {
        "objective": job.objective,
        "budget": tuning.Budget(*limits) if measurements or seconds else None,
        "profile": costs,
        "policy": policy,
        "simulated": job.simulated,
        "resume": job.resume,
        "settings": settings,
    }


def _run(job: _Job, how: Mapping[str, Any]) -> tuple[dict[str, Any], Placement, Path | None]:
    """Fine-tunes on this machine.

    Args:
        job: the run.
        how: its options, of `_prepare`.

    Returns:
        The record of the run, the chosen placement, and the folder in which the policy is kept for later placements;
        None where it is not kept.
    """
    from ov_hsdag.training import finetune as tuning

    core = common.new_core()
    loaded, shapes = common.read_with_shapes(core, job.model, job.examples, fixes_sizes=has_npu(job.names))
    compressed = common.has_fp16_weights(loaded)
    try:
        with console.progress(f"fine-tuning {job.model} on {job.device}") as tell:
            tell("judging each device alone" if job.simulated else "measuring each device alone")
            record, placement = tuning.finetune(
                loaded,
                job.device,
                job.output,
                core=core,
                shapes=shapes,
                compress_to_fp16=compressed,
                report=_reporter(tell),
                **how,
            )
    except KeyboardInterrupt:
        if (job.output / CHECKPOINT).exists():
            console.message("stopped; all measurements are saved: continue with --resume")
        raise
    kept = tuned.find(core, job.names) if not job.simulated and record["measurements"] else None
    return record, placement, kept


def _render(job: _Job, show: console.Show, record: dict[str, Any], placement: Placement, kept: Path | None) -> None:
    """Shows the result of a run.

    Args:
        job: the run.
        show: prints text or JSON.
        record: the record of the run.
        placement: the chosen placement.
        kept: folder in which the policy is kept for later placements; None where it is not.
    """
    lines = [_headline(job.output / "model.xml", record, placement)]
    if kept is not None:
        lines.append(f"policy: kept in {kept}, where place finds it for {job.device}; --policy base leaves it aside")
    show({**record, "placement": placement.affinity}, "\n".join(lines), _table(record))
    show.hint("see", shlex.join(["tensorboard", "--logdir", str(job.output)]))
    show.next("verify", job.output / "model.xml", *given("--device", "--shape"))


def _finetune_on_cluster(fleet: remote.Fleet, show: console.Show, model: Path, output: Path, resume: bool) -> None:
    """Fine-tunes on each kind of machine of a cluster; checkpoints come back after each measurement."""
    folders = [fleet.target(output, kind) for kind in fleet.kinds]
    for folder in folders:
        check_outputs(folder, model)
        if not resume:
            refuse_existing(folder)
        elif not (folder / CHECKPOINT).exists():
            raise UserError(f"there is no run to resume in '{folder}'")
    jobs = [(kind, _job(model, folder, resume), folder) for kind, folder in zip(fleet.kinds, folders, strict=True)]
    done: list[Path] = []

    def use(kind: Kind, record: dict[str, Any]) -> dict[str, Any]:
        folder = fleet.target(output, kind)
        done.append(folder)
        gain = times(record["best"]["ratio"], over=_reference(record))
        text = (
            f"{folder / 'model.xml'}: {record['chosen']}, measured {gain}"
            f" ({record['measurements']} measurements) on {kind.describe()}"
        )
        show.text(text, _table(record))
        return record

    try:
        failures = fleet.each(f"fine-tuning {model}", jobs, use, show)
    except KeyboardInterrupt:
        if any((folder / CHECKPOINT).exists() for folder in folders):
            console.message("stopped; all measurements are saved: continue with --resume")
        raise
    if done:
        show.next("explain", done[0] / "model.xml", *given("--shape"))
    remote.end(failures)


def _job(model: Path, folder: Path, resume: bool) -> Job:
    """The command as a job for a machine. folder: where the run is kept on this machine."""
    inputs = Inputs()
    name = inputs.model(model)
    words = remote.words(inputs, [name], {"--output": OUT})
    resumed = words
    if not resume:
        settled = dict.fromkeys((*_SETTINGS, "--budget", "--measurements"))
        resumed = [*remote.words(inputs, [name], {**settled, "--output": OUT}), "--resume"]
    saved = f"{OUT}/{CHECKPOINT}"
    files = {**inputs.files, **({saved: folder / CHECKPOINT} if resume else {})}
    return Job(tuple(words), files, inputs.shown, (), saved, tuple(resumed))


def _reporter(tell: Tell) -> Report:
    """Makes the callback that shows each measurement and the share of the budget that is spent."""

    def report(number: int, done: float, entry: Entry, best: float) -> None:
        measured = entry.measurement
        result = f"failed: {measured.error}" if measured.failed else times(measured.ratio)
        tell(f"after measurement {number}: {result}, best {times(best, over=BEST_SINGLE)}", done)

    return report


def _headline(path: Path, record: Mapping[str, Any], placement: Placement) -> str:
    """One line about the chosen placement, with the figure of the marked row of the table."""
    best = record["best"]
    chosen = record["chosen"]
    if best["measurement"] is not None:
        chosen += f" (measurement {best['measurement']})"
    interval = (placement.measured or {}).get(placement.chosen, {}).get("ci")
    how = "simulated" if record["about"]["simulated"] else "measured"
    why = "" if best["measurement"] is not None else "; no placement was better beyond the noise"
    return (
        f"{path}: {placement.hetero} ({placement.objective}): {chosen}, {console.count(best['submodels'], 'submodel')},"
        f" {how} {times(best['ratio'], interval, _reference(record))},"
        f" {console.count(record['measurements'], 'measurement')}{why}"
    )


def _reference(record: Mapping[str, Any]) -> str:
    """The reference of ratios: the best single device, or HETERO's own rule where no device runs the model alone."""
    return "HETERO's own rule" if record["reference"] == HETERO_DEFAULT else BEST_SINGLE


def _table(record: Mapping[str, Any]) -> Table:
    """The table of the best placements, best first by all measurements of each; the chosen one is always in it."""
    rows = []
    for entry in record["entries"]:
        again = record["best"] if entry["chosen"] else record["final"].get(str(entry["number"]))
        rows.append((entry, (again or entry["measurement"])["ratio"]))
    rows.sort(key=lambda row: -row[1])
    shown = [row for place, row in enumerate(rows) if place < _SHOWN or row[0]["chosen"]]
    over = _reference(record)
    header = "x the best\nsingle device" if over == BEST_SINGLE else "x HETERO's\nown rule"
    table = console.table("measurement", "of", "submodels", "predicted", "first\nmeasured", header, left=(0, 1, 5))
    for entry, ratio in shown:
        measured = entry["measurement"]
        table.add_row(
            f"{'*' if entry['chosen'] else ' '} {entry['number'] or '-'}",
            entry["name"] or FOUND_BY[entry["source"]],
            str(measured["submodels"] or "-"),
            "-" if entry["predicted"] is None else f"{entry['predicted']:.2f}",
            "-" if measured["error"] else f"{measured['ratio']:.2f}",
            f"failed: {measured['error']}" if measured["error"] else f"{ratio:.2f}",
        )
    first = " first measured: before the best ones were measured again." if record["final"] else ""
    table.caption = f"* chosen. x {over}: all measurements of a placement together.{first}"
    return table


COMMAND = Command(
    finetune, position=150, example="ov-hsdag finetune model.xml --device HETERO:GPU,CPU --output tuned --budget 10m"
)
