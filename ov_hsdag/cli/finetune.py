"""`ov-hsdag finetune`: improve the placement of a model by measuring on its devices."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ov_hsdag.cli import _common as common
from ov_hsdag.cli import console
from ov_hsdag.utils.errors import UserError

if TYPE_CHECKING:
    from rich.progress import Progress

    from ov_hsdag.training.finetune import Budget, Entry, Report

Folder = Annotated[
    Path, typer.Option("--output", metavar="DIR", help="Folder of the run, its policy and the placed model.")
]
Objective = Annotated[
    str | None,
    typer.Option("--objective", metavar="latency|throughput", help="What is to be best (default latency)."),
]
Duration = Annotated[
    str | None, typer.Option("--budget", metavar="10m", help="Time to spend, as 90s, 10m or 1h (default 10m).")
]
Measurements = Annotated[int | None, typer.Option("--measurements", min=1, help="Placements to measure.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in DIR with its own settings.")]
Policy = Annotated[
    str | None,
    typer.Option("--policy", metavar="NAME|DIR", help='The policy to begin with; "none" for an untrained one.'),
]
ProfileFile = Annotated[
    Path | None, typer.Option("--profile", metavar="FILE.json", help="Device profiles instead of the built-in ones.")
]
IsSimulated = Annotated[bool, typer.Option("--simulated", help="Judge placements by the profile, measure nothing.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of the run (default 0).")]
Threads = Annotated[int, typer.Option("--threads", min=1, help="Threads of torch.")]

_UNITS = {"s": 1, "m": 60, "h": 3600}
_DEFAULT_SECONDS = 600.0
_DEFAULT_SIMULATED = 60

# Placements in the table of the result.
_SHOWN = 5


def finetune(
    model: common.Model,
    device: common.Device,
    output: Folder,
    objective: Objective = None,
    budget: Duration = None,
    measurements: Measurements = None,
    resume: Resume = False,
    policy: Policy = None,
    profile: ProfileFile = None,
    simulated: IsSimulated = False,
    seed: Seed = None,
    threads: Threads = 1,
    as_json: common.Json = False,
    debug: common.Debug = False,
) -> None:
    """Measure placements of MODEL on its devices and learn from them; DIR gets the policy and the placed model.

    Needs the extra `train`.
    """
    common.check_model(model)
    given = {
        "--objective": objective is not None,
        "--policy": policy is not None,
        "--simulated": simulated,
        "--seed": seed is not None,
    }
    if resume and any(given.values()):
        options = ", ".join(name for name, there in given.items() if there)
        raise UserError(f"--resume continues a run with its own settings: leave out {options}")
    if budget is not None and measurements is not None:
        raise UserError("--budget and --measurements both say when to stop: give one of them")
    seconds = None if budget is None else duration(budget)

    from ov_hsdag.devices.device_set import DeviceSet
    from ov_hsdag.devices.virtual import register
    from ov_hsdag.problem.problem import check_objective

    check_objective(objective or "latency")
    DeviceSet.parse(device)
    try:
        import torch

        from ov_hsdag.training import finetune as tuning
    except ImportError as error:
        raise UserError(f"training needs torch and more ({error}): pip install ov-hsdag[train]") from error
    import openvino as ov

    from ov_hsdag.costs.profile import Profile
    from ov_hsdag.policy import bundle
    from ov_hsdag.policy.candidates import MARGIN

    if not resume:
        tuning.refuse_existing(output)
        if policy is None and not bundle.ships(bundle.DEFAULT):
            console.message("the package ships no policy: beginning with an untrained one")
            policy = tuning.SCRATCH
        elif policy != tuning.SCRATCH:
            bundle.check_folder(bundle.find(policy))
    costs = Profile.load(profile) if profile else None
    stop = _budget(tuning.Budget, measurements, seconds, simulated, resume)
    settings = None if resume else tuning.Settings(seed=seed or 0)
    if settings and simulated:  # nothing to be lost in noise
        settings = replace(settings, margin=MARGIN)

    torch.set_num_threads(threads)
    with console.result(as_json) as show:
        core = ov.Core()
        register(core)
        with console.progress(f"reading {model}"):
            loaded = common.read_model(core, model)
            compressed = common.has_fp16_weights(loaded)
        with console.bar() as bar:
            record, placement = tuning.finetune(
                loaded,
                device,
                output,
                objective=objective or "latency",
                budget=stop,
                profile=costs,
                policy=policy,
                simulated=simulated,
                resume=resume,
                settings=settings,
                core=core,
                compress_to_fp16=compressed,
                report=_reporter(bar),
            )
        text = f"{output / 'model.xml'}: {placement.summary()} ({record['measurements']} measurements)"
        show({**record, "placement": placement.affinity}, text, _table(record))


def duration(text: str) -> float:
    """Seconds of "90s", "10m", "1h" or "600". Raises UserError where it is no duration."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smh]?)", text.strip())
    if not match or float(match[1]) <= 0:
        raise UserError(f"budget '{text}' is no duration: give one like 90s, 10m or 1h")
    return float(match[1]) * _UNITS[match[2] or "s"]


def _budget(
    make: type[Budget], measurements: int | None, seconds: float | None, simulated: bool, resume: bool
) -> Budget | None:
    """What was asked for; the default of a new run; None for the resumed run's own."""
    if measurements is not None:
        return make(measurements=measurements)
    if seconds is not None:
        return make(seconds=seconds)
    if resume:
        return None
    return make(measurements=_DEFAULT_SIMULATED) if simulated else make(seconds=_DEFAULT_SECONDS)


def _reporter(bar: Progress) -> Report:
    """Moves the bar; where there is none, a line for each measurement."""
    task = bar.add_task("measuring", total=1.0)

    def report(number: int, done: float, entry: Entry, best: float) -> None:
        measured = entry.measurement
        told = f"failed: {measured.error}" if measured.failed else f"{measured.ratio:.3f}x"
        text = f"{number}: {told}, best {best:.3f}x the best single device"
        bar.update(task, completed=done, description=text)
        if bar.disable:
            console.message(f"measurement {text}")

    return report


def _table(record: dict[str, Any]) -> Table:
    """The best measured placements, best first."""
    table = Table(box=None)
    for column in ("measurement", "from", "times the reference", "again", "predicted", "submodels"):
        table.add_column(column, justify="left" if column == "from" else "right")
    numbers = iter(range(1, len(record["entries"]) + 1))
    named = [
        ("-" if entry["predicted"] is None else str(next(numbers)), record["final"].get(str(place)), entry)
        for place, entry in enumerate(record["entries"])
    ]
    for number, again, entry in sorted(named, key=lambda item: -item[2]["measurement"]["ratio"])[:_SHOWN]:
        table.add_row(
            number,
            entry["source"],
            f"{entry['measurement']['ratio']:.3f}",
            f"{again['ratio']:.3f}" if again else "-",
            "-" if entry["predicted"] is None else f"{entry['predicted']:.3f}",
            str(entry["measurement"]["submodels"] or "-"),
        )
    return table
