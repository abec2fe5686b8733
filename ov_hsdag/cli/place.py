"""`ov-hsdag place`: decide where each operation of a model runs and write the model with that decision inside."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ov_hsdag.cli import _common as common
from ov_hsdag.cli import console, remote
from ov_hsdag.cli.candidates_table import Row, candidates_table, why_no_figure
from ov_hsdag.cli.command_lines import options, this_command
from ov_hsdag.cli.split_picture import operations_of, terminal_picture
from ov_hsdag.fleet.job import OUT, Inputs, Job, model_files_of, store
from ov_hsdag.measuring.evaluator import HETERO_DEFAULT, PIPELINE_HINT
from ov_hsdag.model.placement import placer_of, times
from ov_hsdag.problem.copies import COPIES
from ov_hsdag.utils.errors import RunError, UserError
from ov_hsdag.utils.model_folder import is_model_folder, model_files

if TYPE_CHECKING:
    import openvino as ov

    from ov_hsdag.fleet.machines import Kind
    from ov_hsdag.model.placement import Placement

Objective = Annotated[str, typer.Option("--objective", metavar="latency|throughput", help="What is to be best.")]
ProfileFile = Annotated[
    Path | None, typer.Option("--profile", metavar="FILE.json", help="Device profiles instead of the built-in ones.")
]
Policy = Annotated[
    str | None, typer.Option("--policy", metavar="NAME|DIR", help='A learned policy proposes as well: "base" ships.')
]
AffinityFile = Annotated[
    Path | None,
    typer.Option(
        "--affinity",
        metavar="FILE.json",
        help='Take {"node": "device"} from a file instead of deciding; nodes that it lacks follow their neighbours.'
        ' Names are those of "placement" in the output of --json.',
    ),
]
Memory = Annotated[
    str | None,
    typer.Option("--memory", metavar="CPU=8GiB,GPU=2GiB", help="What the model may have on a device."),
]
WorkloadOption = Annotated[
    str | None,
    typer.Option(
        "--workload",
        metavar="prompt=1024,generate=256",
        help="What a language model with states is asked for; batch=N counts sequences and beams.",
    ),
]
Context = Annotated[
    int | None,
    typer.Option(
        "--context",
        metavar="TOKENS",
        min=2,
        help="Tokens for whose states a language model must have memory.",
    ),
]
KvPrecision = Annotated[
    str | None,
    typer.Option(
        "--kv-precision",
        metavar="u8|f16|bf16|f32",
        help="Precision of KV caches of language models; by default as model and devices choose.",
    ),
]
Measure = Annotated[
    bool | None,
    typer.Option(
        "--measure/--no-measure",
        help="Measure the best placements on the devices and choose by that; by default where all devices are here.",
    ),
]
MeasureSeconds = Annotated[
    float | None,
    typer.Option("--measure-seconds", min=1, help="Time for measuring operations and placements, about (default 60)."),
]
SearchSeconds = Annotated[
    float | None,
    typer.Option(
        "--search-seconds",
        min=0.001,
        help="Time for searching a placement; by default 0.1 to 0.4 s, with the same result always.",
    ),
]
PlacedOutput = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="OUT.xml|DIR",
        help="IR to write; its .bin stands beside it. A symbolic link is replaced, not followed. By default"
        " MODEL_placed.xml in the current directory. Of a folder a folder, by default MODEL_placed.",
        show_default=False,
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


def place(
    model: common.Model,
    device: common.Device,
    output: PlacedOutput = None,
    part: common.Parts = None,
    objective: Objective = "latency",
    profile: ProfileFile = None,
    policy: Policy = None,
    affinity: AffinityFile = None,
    memory: Memory = None,
    shape: common.Shapes = None,
    workload: WorkloadOption = None,
    context: Context = None,
    kv_precision: KvPrecision = None,
    measure: Measure = None,
    measure_seconds: MeasureSeconds = None,
    search_seconds: SearchSeconds = None,
    compress_to_fp16: CompressToFp16 = None,
    hardlinks: common.HardLinks = True,
    report: Report = None,
    ray: remote.Ray = None,
    on: remote.On = None,
    as_json: common.Json = False,
) -> None:
    """Decide on which device each operation of MODEL runs and write an IR with the placement inside.

    Of a folder that optimum-intel exported, the language model, or encoder and decoder each, are placed (--part names
    others), and a folder is written that openvino.genai and optimum-intel load.
    """
    common.check_model(model)
    folder = is_model_folder(model)
    files = model_files(model, part or ())
    output = default_output(model) if output is None else output
    common.check_output(output, model)
    remote.check_on(ray, on)

    from ov_hsdag.costs.memory import check_kv_precision
    from ov_hsdag.devices.device_set import DeviceSet
    from ov_hsdag.devices.discovery import absent
    from ov_hsdag.devices.memory import parse_memory
    from ov_hsdag.devices.virtual import new_core
    from ov_hsdag.model.inputs import example_shapes, parse_shapes
    from ov_hsdag.model.workload import Workload
    from ov_hsdag.problem.problem import check_objective

    # Everything that can be wrong with the options comes before the minutes that a large model may take.
    check_objective(objective)
    devices = DeviceSet.parse(device)
    limits = parse_memory(memory, devices.names) if memory is not None else None
    check_kv_precision(kv_precision)
    examples = parse_shapes(shape or ())
    asked = Workload.parse(workload) if workload is not None else None

    from ov_hsdag.costs.profile import Profile
    from ov_hsdag.costs.stored import load_beside, path_beside
    from ov_hsdag.integration.requests import advice
    from ov_hsdag.measuring import selection
    from ov_hsdag.model.placement import Placement
    from ov_hsdag.place import place as place_model
    from ov_hsdag.policy.candidates import policy_placers
    from ov_hsdag.report.write import check_report
    from ov_hsdag.utils.files import check_not_input, save_model_atomically
    from ov_hsdag.utils.folder_writing import write_folder

    policy_placers(policy)
    costs = Profile.load(profile) if profile else None
    measured = {file: load_beside(file) for file in files}
    if affinity and len(files) > 1:
        raise UserError("--affinity is for one model, and the folder has several to place: name one with --part")
    given = Placement.load(affinity, devices.names).affinity if affinity else None
    if report is not None:
        if len(files) > 1:
            raise UserError("--report is of one model, and the folder has several to place: name one with --part")
        check_report(report)
        check_not_input(report, files[0])

    if ray is not None:
        given_options = {
            "--device": device,
            "--objective": objective,
            "--part": part,
            "--memory": memory,
            "--shape": shape,
            "--workload": workload,
            "--context": context,
            "--kv-precision": kv_precision,
            "--measure-seconds": measure_seconds,
            "--search-seconds": search_seconds,
        }
        flags = {
            "--measure": measure is True,
            "--no-measure": measure is False,
            "--compress-to-fp16": compress_to_fp16 is True,
            "--no-compress-to-fp16": compress_to_fp16 is False,
        }
        own_files = {"--profile": profile, "--affinity": affinity}
        elsewhere = _Elsewhere(model, files, output, report, given_options, flags, own_files, policy, hardlinks)
        with console.result(as_json) as show, remote.connected(ray, devices.names, on) as fleet:
            elsewhere.place(fleet, show, as_json)
        return

    unmeasured = "not measured: --no-measure" if measure is False else ""
    with console.result(as_json) as show:
        core = new_core()
        missing = absent(core, devices)
        if measure is None:
            # A placement that is given is taken however fast it is.
            measure = given is None and not missing and _has_temporary_folder()
            if given is None and missing:
                unmeasured = f"not measured: {_listed(missing)} not on this machine"
        elif measure:
            selection.check_possible(core, devices)
        with console.progress(f"reading {model}"):
            loaded = {file: common.read_model(core, file) for file in files}
        shapes = dict(zip(files, example_shapes(list(loaded.values()), examples), strict=True))
        compressed = {
            file: common.has_fp16_weights(one) if compress_to_fp16 is None else compress_to_fp16
            for file, one in loaded.items()
        }
        # Of several models, such as encoder and decoder, those with states have a context.
        decoders = [file for file in files if loaded[file].get_sinks()] or files
        for file in decoders:
            common.warn_of_long_context(file, max(context or 0, asked.tokens if asked else 0))
        placements: dict[Path, Placement] = {}
        # The largest first: it gets the best place, and the others what is left.
        for file in sorted(files, key=_weights, reverse=True):
            with console.progress(f"placing {file} on {device}") as tell:
                placements[file] = place_model(
                    loaded[file],
                    device,
                    objective=objective,
                    profile=costs,
                    policy=policy,
                    affinity=given,
                    core=core,
                    shapes=shapes[file],
                    memory=_left(limits, placements.values()),
                    measure=measure,
                    measure_seconds=selection.SECONDS if measure_seconds is None else measure_seconds,
                    report=tell,
                    costs=measured[file],
                    workload=asked if file in decoders else None,
                    context=context if file in decoders else None,
                    kv_precision=kv_precision,
                    search_seconds=search_seconds,
                )
        with console.progress(f"writing {output}"):
            # Unless asked otherwise, placing leaves weights as they were, compressed or exact.
            if folder:
                models = {file.name: (one, compressed[file]) for file, one in loaded.items()}
                write_folder(output, model, models, hard_links=hardlinks)
            else:
                save_model_atomically(loaded[model], output, compress_to_fp16=compressed[model])
        if report is not None:
            with console.progress(f"writing {report}"):
                placements[files[0]].report(report, title=files[0].stem, done={"command": this_command()})
        found = {}
        for file in files:
            placement, written = placements[file], output / file.name if folder else output
            used = (placement.predicted or {}).get("measured_costs", [])
            told = [
                placement.summary(),
                _costs(used, path_beside(file) if measured[file] else None, profile, devices.names, core),
                "" if asked or context else common.assumed_shapes(loaded[file], shapes[file]),
                _phases(placement),
                advice(placement),
                _copies(placement),
                unmeasured,
                _unsure(placement),
            ]
            lines = [f"{written}: {told[0]}", *filter(None, told[1:])]
            found[file.name] = _as_json(written, placement)
            if not folder or not as_json:
                show(found[file.name], "\n".join(lines), _table(placement))
            if not as_json and sys.stdout.isatty() and len(placement.used()) > 1:
                print(console.printable("\n".join(terminal_picture(operations_of(loaded[file]), placement))))
        if folder and as_json:
            show({"output": str(output), "models": found})
        if not folder:
            show.hint("run with", f"openvino.Core().compile_model({str(output)!r}, {device!r})")
        if missing:  # nothing runs it here
            named = files[0].stem if len(files) > 1 else None
            show.next("explain", output, *options({"--part": named, "--shape": shape}))
        else:
            show.next("verify", output, "--device", device, *options({"--shape": shape}))


@dataclass(frozen=True)
class _Elsewhere:
    """A placing on the machines of a cluster, which measure; the outputs are written here."""

    model: Path
    files: Sequence[Path]
    output: Path
    report: Path | None
    options: Mapping[str, object]
    flags: Mapping[str, bool]
    read: Mapping[str, Path | None]
    policy: str | None
    hardlinks: bool

    def place(self, fleet: remote.Fleet, show: console.Show, as_json: bool) -> None:
        """Places the model on each kind of machine, and shows what was found."""
        for kind in fleet.kinds:
            common.check_output(fleet.target(self.output, kind), self.model)
        failures: list[Exception] = []
        rows: list[tuple[Kind, str, Placement]] = []

        with remote.scratch() as scratch:
            jobs = [(kind, self.job(), scratch / kind.number) for kind in fleet.kinds]
            results = fleet.run(f"placing {self.model}", jobs)

            def use(kind: Kind, data: dict[str, Any]) -> dict[str, Any]:
                target = fleet.target(self.output, kind)
                self.write(scratch / kind.number, target)
                if self.report is not None:
                    came = scratch / kind.number / self.report.name
                    store(fleet.target(self.report, kind), [came.read_bytes()])
                models = data.get("models", {self.model.name: data})
                for name, one in models.items():
                    one["output"] = str(target / name if "models" in data else target)
                    placement = _of_json(one)
                    rows.append((kind, name, placement))
                    if not as_json:
                        text = f"{one['output']}: {placement.summary()}"
                        show({}, f"on {kind.told()}\n{text}", _table(placement))
                return data | ({"output": str(target)} if "models" in data else {})

            found = remote.collect(fleet, results, use, failures)
        if as_json:
            show({"machines": found} if fleet.several else found[0])
        elif fleet.several and rows:
            show({}, "all machines:", _overview(rows))
        remote.end(failures)

    def job(self) -> Job:
        """The command for a machine."""
        inputs = Inputs()
        folder = is_model_folder(self.model)
        if folder:
            # Parts are named by the files that there are; weights of those that are placed are needed.
            needed = [*self.model.glob("*.xml"), *(one for file in self.files for one in model_files_of(file))]
            name = inputs.folder(self.model, list(dict.fromkeys(needed)))
        else:
            name = inputs.model(self.model)
        given = {
            **self.options,
            "--output": f"{OUT}/{_PLACED}" if folder else f"{OUT}/{_PLACED}.xml",
            "--report": None if self.report is None else f"{OUT}/{self.report.name}",
            "--policy": remote.policy(inputs, self.policy),
            **{option: inputs.file(path) for option, path in self.read.items()},
        }
        return Job(tuple(remote.words("place", [name], given, self.flags)), inputs.files, inputs.shown)

    def write(self, came: Path, target: Path) -> None:
        """Writes what a machine placed as it is written here."""
        from ov_hsdag.devices.virtual import new_core
        from ov_hsdag.utils.files import save_model_atomically
        from ov_hsdag.utils.folder_writing import write_folder

        core = new_core()

        def read(path: Path) -> tuple[ov.Model, bool]:
            model = common.read_model(core, path)
            return model, common.has_fp16_weights(model)

        with console.progress(f"writing {target}"):
            if is_model_folder(self.model):
                placed = {file.name: read(came / _PLACED / file.name) for file in self.files}
                write_folder(target, self.model, placed, hard_links=self.hardlinks)
            else:
                model, compressed = read(came / f"{_PLACED}.xml")
                save_model_atomically(model, target, compress_to_fp16=compressed)


# What a job calls its output.
_PLACED = "placed"


def _overview(rows: Sequence[tuple[Kind, str, Placement]]) -> Table:
    """One row for each kind of machine (and model of a folder): what was chosen there."""
    throughput = rows[0][2].objective == "throughput"
    key, scale, unit = ("throughput_ips", 1.0, "inf/s") if throughput else ("latency_us", 1e-3, "ms")
    table = console.table(
        "machine", "model", "chosen", "devices used", f"predicted\n{unit}", f"measured\n{unit}", left=(0, 1, 2, 3)
    )
    for kind, name, placement in rows:
        predicted = (placement.predicted or {}).get(key)
        measured = (placement.measured or {}).get(placement.chosen, {}).get(key)
        figures = ["-" if one is None else f"{one * scale:.4g}" for one in (predicted, measured)]
        table.add_row(kind.told(), name, placement.chosen, ", ".join(placement.used()), *figures)
    return table


def _weights(model: Path) -> int:
    """Bytes of the file of an IR's weights; 0 where there is none."""
    weights = model.with_suffix(".bin")
    return weights.stat().st_size if weights.is_file() else 0


def _left(limits: Mapping[str, int] | None, placements: Iterable[Placement]) -> Mapping[str, int] | None:
    """What the models of a folder that are placed already leave of the memory, by device."""
    if limits is None:
        return None
    taken = [(placement.predicted or {}).get("memory_bytes", {}) for placement in placements]
    return {name: max(limit - sum(one.get(name, 0) for one in taken), 1) for name, limit in limits.items()}


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"


def _costs(used: Sequence[str], where: Path | None, profile: Path | None, names: Sequence[str], core: ov.Core) -> str:
    """Where the costs of operations come from, in a line.

    Args:
        used: devices whose operations were measured.
        where: the file of what was measured, where there is one.
        profile: the file of the profile; None for the built-in ones.
        names: all devices.
        core: has the virtual devices.
    """
    told = [f"measured on {', '.join(used)}{f' ({where})' if where else ''}"] if used else []
    others = [name for name in names if name not in used]
    if others and profile:
        told.append(f"{profile} for {', '.join(others)}")
    elif others:
        from ov_hsdag.costs.builtin import builtin_profile

        known = builtin_profile(names, core)
        profiles = ", ".join(f"{known.device(name).builtin} for {name}" for name in others)
        told.append(f"built-in profiles {profiles} (--profile gives others)")
    return f"costs: {', '.join(told)}"


def _unsure(placement: Placement) -> str:
    """A line where none of the measured placements was chosen and one may well be better; "" otherwise."""
    from ov_hsdag.measuring import selection

    simple = {*placement.devices, HETERO_DEFAULT, PIPELINE_HINT}
    others = simple | {COPIES}
    if not placement.measured or placement.chosen not in simple:
        return ""
    better = dict.fromkeys(
        placer_of(name)
        for name, figures in placement.measured.items()
        if name not in others
        and not figures.get("failed")
        and figures["ci"][0] < 1 < selection.MAY_GAIN < figures["ci"][1]
    )
    if not better:
        return ""
    return (
        f"unsure: {', '.join(better)} may be better, but rounds are too few or differ too much to tell. Run this again"
        " when no other program uses the devices, give it longer (--measure-seconds), or choose by prediction"
        " (--no-measure)"
    )


def _copies(placement: Placement) -> str:
    """A line where a copy of the model on each device is better than the placement; "" otherwise."""
    predicted, measured = placement.baselines.get(COPIES), (placement.measured or {}).get(COPIES)
    own = (placement.predicted or {}).get("throughput_ips")
    if predicted is None or not own:
        return ""
    if measured is not None:
        if measured["failed"] or measured["times_chosen_ci"][0] <= 1:
            return ""
        gain = f"was measured {times(measured['times_chosen'], measured['times_chosen_ci'])}"
    else:
        ratio = predicted["throughput_ips"] / own
        if ratio < _COPIES_GAIN:
            return ""
        gain = f"is predicted {times(ratio)}"
    needs = {name: size for name, size in predicted["memory_bytes"].items() if size}
    memory = ", ".join(f"{size / 2**20:,.0f} MiB on {name}" for name, size in needs.items())
    return (
        f"copies: the whole model on each of {', '.join(needs)} {gain} as good as this placement and needs {memory}:"
        f" compile it on each and share the requests, as AUTO:{','.join(needs)} does with CUMULATIVE_THROUGHPUT"
    )


# Below it the cost model knows nothing.
_COPIES_GAIN = 1.05


def _phases(placement: Placement) -> str:
    """What a workload takes, as predicted and as measured; "" where there is none."""
    measured = (placement.measured or {}).get(placement.chosen or "", {})
    lines = []
    for how, found in (("predicted", placement.predicted or {}), ("measured", measured)):
        phases = found.get("workload", {})
        times = [
            f"{phase['latency_us'] / 1000:.1f} ms for {_WORDS[name]}"
            if "latency_us" in phase
            else f"{phase['throughput_ips']:.1f} {_PLURALS[name]} a second"
            for name, phase in phases.items()
        ]
        lines += [f"{how}: {', '.join(times)}"] if times else []
    return f"{'; '.join(lines)}; the table has the mean" if lines else ""


_WORDS = {"prompt": "the prompt", "token": "each further token"}
_PLURALS = {"prompt": "prompts", "token": "further tokens"}


def default_output(model: Path) -> Path:
    """What a placed model is called by default: in the current directory, as ovc has it, and never the model itself."""
    named = Path(os.path.abspath(model))  # of a link, its own name; of "..", the folder's
    if is_model_folder(model):
        return Path(f"{named.name}_placed")
    return Path(f"{named.name if named.is_dir() else named.stem}_placed.xml")


def _has_temporary_folder() -> bool:
    """Whether measuring has a folder for its files; a line says so where it has none."""
    from ov_hsdag.measuring.process import require_temporary_folder

    try:
        require_temporary_folder()
    except RunError as error:
        console.message(f"warning: nothing is measured, the placement is chosen by prediction: {error}")
        return False
    return True


def _as_json(output: Path, placement: Placement) -> dict[str, Any]:
    return {
        "output": str(output),
        "placement": placement.affinity,
        "devices": placement.devices,
        "objective": placement.objective,
        "predicted": placement.predicted,
        "measured": placement.measured,
        "baselines": placement.baselines,
        "policy": placement.policy,
        "chosen": placement.chosen,
        "seconds": placement.seconds,
        "why": placement.why,
        "notes": placement.notes,
    }


def _of_json(data: Mapping[str, Any]) -> Placement:
    """Inverse of `_as_json`. Raises RunError where something is missing."""
    from ov_hsdag.model.placement import Placement

    try:
        kept = ("objective", "predicted", "measured", "baselines", "policy", "chosen", "seconds", "why", "notes")
        return Placement(
            devices=tuple(data["devices"]), affinity=data["placement"], **{name: data[name] for name in kept}
        )
    except (KeyError, TypeError) as error:
        raise RunError(f"a machine's answer lacks what a placement has: {error}") from error


def _table(placement: Placement) -> Table:
    """Predicted and, where there is any, measured, of each candidate; times better than the best single device."""
    throughput, measured = placement.objective == "throughput", placement.measured
    key, scale = ("throughput_ips", 1.0) if throughput else ("latency_us", 1e-3)
    ran = any(not one.get("failed") for one in (measured or {}).values())
    rows = []
    for name in dict.fromkeys([placement.chosen, *placement.baselines, *(measured or {}), *placement.notes]):
        chosen = name == placement.chosen
        predicted = (placement.predicted if chosen else placement.baselines.get(name)) or {}
        real = (measured or {}).get(name, {})
        note = why_no_figure(real.get("failed") or "") or placement.notes.get(name, "")
        rows.append(
            Row(
                name,
                real.get("submodels") or predicted.get("submodels"),
                _scaled(predicted.get(key), scale),
                _scaled(real.get(key), scale),
                placement.measured_gain(name) if ran else placement.predicted_gain(name),
                real.get("times_best_single_ci"),
                note,
                chosen,
            )
        )
    return candidates_table(rows, placement.objective, measured=ran)


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale
