"""`ov-hsdag bench`: all placers on the same models and devices, measured on real HETERO in interleaved trials.

A rival is one way to run a model, such as a placer's placement or a single device (`ov_hsdag.placing.rivals`).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from ov_hsdag.applications.loaded_plan import LoadedPlan
from ov_hsdag.applications.plan import Plan, is_plan_file
from ov_hsdag.applications.plan_trials import TRIAL, comparison_arguments
from ov_hsdag.applications.rivals import contenders_of_plan
from ov_hsdag.cli import _common as common
from ov_hsdag.cli import applications, console, remote
from ov_hsdag.cli import kit as kits
from ov_hsdag.cli.candidates_table import Row, candidates_table, why_no_figure
from ov_hsdag.cli.command import Command
from ov_hsdag.cli.command_lines import given
from ov_hsdag.costs.profile import Profile
from ov_hsdag.costs.stored import load_beside
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.devices.discovery import absent
from ov_hsdag.jobs.job import Inputs, Job
from ov_hsdag.model.config_sizes import with_sizes_beside
from ov_hsdag.model.inputs import example_shapes, parse_shapes
from ov_hsdag.model.samples import inputs_of_each, parse_inputs, samples_of
from ov_hsdag.model.shapes import fix_npu_sizes, has_npu, sized
from ov_hsdag.model.workload import Workload
from ov_hsdag.placing.candidates import policy_placers
from ov_hsdag.placing.rivals import Rival, contenders, measure
from ov_hsdag.policy.bundle import DEFAULT, ships
from ov_hsdag.policy.placer import HSDAGPlacer
from ov_hsdag.problem.pricing import Session
from ov_hsdag.problem.problem import check_objective
from ov_hsdag.storage.files import check_writable, write_json, write_text
from ov_hsdag.storage.model_folder import is_model_folder, model_files
from ov_hsdag.storage.scratch import require_temporary_folder
from ov_hsdag.utils.errors import RunError, UserError
from ov_hsdag.utils.lazy import ov

Models = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="MODEL...", help="What OpenVINO reads, one or several; also as -m MODEL.", show_default=False
    ),
]
Devices = Annotated[
    str | None, common.device_option("Devices in the order of preference; with --kit all of the machine by default.")
]
Kit = Annotated[
    Path | None,
    typer.Option(
        "--kit",
        metavar="OUT.json",
        help="Instead of models: eight that are made on the spot, on every list of this machine's devices.",
    ),
]
Minutes = Annotated[float, typer.Option("--minutes", min=0.1, metavar="N", help="Time for --kit, about.")]
Policies = Annotated[
    str | None, typer.Option("--policies", metavar="A,B", help='Learned policies, names or folders; "none" for none.')
]
Rounds = Annotated[int, typer.Option("--rounds", min=1, metavar="N", help="Trials of each placement, at most.")]
Table_ = Annotated[Path | None, common.output_option("FILE", "Results: all of them as .json, or the rows as .csv.")]


def bench(
    models: Models = None,
    device: Devices = None,
    objective: common.Objective = "latency",
    policies: Policies = None,
    profile: common.ProfileFile = None,
    shape: common.Shapes = None,
    input: common.GivenInputs = None,
    workload: common.WorkloadOption = None,
    context: common.Context = None,
    rounds: Rounds = 12,
    part: common.Parts = None,
    output: Table_ = None,
    kit: Kit = None,
    minutes: Minutes = 15.0,
    ray: remote.Ray = None,
    on: remote.On = None,
    as_json: common.Json = False,
) -> None:
    """Run every placer's placement of each MODEL on its devices, trials interleaved, and compare them.

    Measured costs that lie beside a model, as NAME.costs.json, are used as `ov-hsdag place` does. With a workload or a
    context, figures are means over prompt and tokens. A plan.json is measured as its application runs, with all models
    at once, against everything on each device and the best assignments of whole models. --kit OUT.json shows what
    placing gains on this machine, for `ov-hsdag report OUT.json` to draw.

    Args:
        models: files or folders of models, or one plan.json; none with `kit`.
        device: devices in the order of preference; None with `kit` for all of this machine.
        objective: "latency" or "throughput".
        policies: learned policies, separated by commas; None for the shipped one.
        profile: file of a device profile; None for built-in profiles.
        shape: example shapes, as --shape takes them.
        input: files of inputs, as --input takes them; not with a workload.
        workload: prompt and tokens of a decoder, as --workload takes them.
        context: tokens of a decoder's context.
        rounds: trials of each placement, at most.
        part: models of a folder.
        output: results as .json or .csv; None for none.
        kit: results of the built-in models as .json, instead of `models`.
        minutes: time for `kit`, about.
        ray: address of the Ray cluster that measures; None for this machine.
        on: which machines of the cluster, as --on takes them.
        as_json: print JSON.

    Raises:
        UserError: options contradict each other, or a model, a device or a file cannot be used.
        RunError: measuring failed.
    """
    if kit is not None:
        if models:
            raise UserError("--kit makes its own models, and has no use for MODEL")
        others: dict[str, object] = {
            "policies": policies,
            "profile": profile,
            "shape": shape,
            "input": input,
            "workload": workload,
        }
        others |= {"context": context, "part": part, "output": output, "ray": ray, "on": on}
        common.refuse_options(others, "for models of your own, not for --kit")
        kits.run(kit, device, minutes, as_json)
        return
    if not models:
        raise UserError("which model? bench takes one or several, or --kit OUT.json")
    if device is None:
        raise UserError("which devices? give them with --device HETERO:A,B")
    for model in models:
        common.check_model(model)
    subject = _MODELS
    if any(map(is_plan_file, models)):
        of_one_model: dict[str, object] = {"part": part, "shape": shape, "input": input, "workload": workload}
        of_one_model |= {"context": context, "policies": policies, "ray": ray, "model": models[1:]}
        common.refuse_options(of_one_model, "for one model, not for a plan")
        objective = objective if given("--objective") else Plan.load(models[0]).objective
        subject = _APPLICATION
    job = _check(
        models, device, objective, policies, profile, shape, input, workload, context, rounds, part, output, ray, on
    )
    with console.result(as_json) as show, ExitStack() as stack:
        fleet = None if ray is None else stack.enter_context(remote.connected(ray, job.devices.names, on))
        outcomes = _bench_here(job, subject) if fleet is None else _bench_on_cluster(fleet, job)
        failures = _render(job, subject, outcomes, show)
    remote.end(failures)


@dataclass(frozen=True, eq=False)
class _Job:
    """What to measure, with options that are checked and read.

    Attributes:
        models: the models' files, or a plan's.
        device: the devices as they were given.
        devices: the devices.
        objective: "latency" or "throughput".
        policies: names or folders of learned policies as they were given; None: the shipped one.
        learned: placers of these policies.
        examples: example shapes by input name; "" for a model's only input.
        inputs: files of inputs by input name.
        workload: of decoders; None: none was given.
        profile: device profile; None: the built-in ones.
        rounds: trials of each placement, at most.
        output: file of the results; None: none is written.
    """

    models: list[Path]
    device: str
    devices: DeviceSet
    objective: str
    policies: str | None
    learned: list[HSDAGPlacer]
    examples: Mapping[str, Sequence[int]]
    inputs: Mapping[str, Sequence[str]]
    workload: Workload | None
    profile: Profile | None
    rounds: int
    output: Path | None


# The results of a model as JSON has them, the machine as a title names it, and the error if the model failed.
_Outcome = tuple[dict[str, Any], str, Exception | None]


def _check(
    models: list[Path],
    device: str,
    objective: str,
    policies: str | None,
    profile: Path | None,
    shape: list[str] | None,
    input: list[str] | None,
    workload: str | None,
    context: int | None,
    rounds: int,
    part: list[str] | None,
    output: Path | None,
    ray: str | None,
    on: list[str] | None,
) -> _Job:
    """Checks all options, before the minutes that measuring takes; the arguments are those of `bench`.

    Raises:
        UserError: an option is wrong, or options contradict each other.
    """
    if part and not any(map(is_model_folder, models)):
        raise UserError("--part names a model of a folder, and no folder is given")
    files = [file for model in models for file in model_files(model, (part or ()) if is_model_folder(model) else ())]
    if output is not None:
        if output.suffix not in (".json", ".csv"):
            raise UserError(f"results are written as .json or .csv, got '{output}'")
        check_writable(output)
    remote.check_on(ray, on)
    check_objective(objective)
    devices = DeviceSet.parse(device)
    learned = _policies(policies)
    examples, inputs = parse_shapes(shape or ()), parse_inputs(input or ())
    if inputs and (workload is not None or context is not None):
        raise UserError("a workload makes up its inputs, and others are given: leave out one of them")
    if inputs and ray is not None and len(files) > 1:
        raise UserError("--input with --ray is for one model: name one")
    return _Job(
        models=files,
        device=device,
        devices=devices,
        objective=objective,
        policies=policies,
        learned=learned,
        examples=examples,
        inputs=inputs,
        workload=Workload.asked(workload, context),
        profile=Profile.load(profile) if profile else None,
        rounds=rounds,
        output=output,
    )


def _bench_here(job: _Job, subject: _Subject) -> Iterator[_Outcome]:
    """Measures every model of a job, or its application, on this machine, and yields the outcome of each.

    Raises:
        UserError: a device is not on this machine, or a model cannot be read.
    """
    core = common.new_core()
    missing = absent(core, job.devices.names)
    if missing:
        there = ", ".join(core.available_devices)
        raise UserError(f"bench measures, and this machine has no {', '.join(missing)}; it has {there}")
    require_temporary_folder()
    for path, place in subject.each(job, core):
        outcome = _place_and_measure(job, core, path, place)
        del place  # with its model, whose memory is freed
        yield outcome


def _each_model(job: _Job, core: ov.Core) -> Iterator[tuple[Path, Callable[[], _Contenders]]]:
    """Reads the models of a job; yields the file of each, and a function that places it (`_contenders`)."""
    # All models are read before the first is measured, so that an error in one wastes no measurement.
    loaded = [common.read_model(core, path) for path in job.models]
    given_shapes = example_shapes(loaded, job.examples)
    given_inputs = inputs_of_each(loaded, job.inputs)
    for path, shapes, inputs in zip(job.models, given_shapes, given_inputs, strict=True):
        # The model is removed from the list, so that its memory is freed with its results.
        yield path, partial(_contenders, job, core, path, loaded.pop(0), shapes, inputs)


def _application(job: _Job, core: ov.Core) -> Iterator[tuple[Path, Callable[[], _Contenders]]]:
    """Reads the plan of a job; yields its file, and a function that lists the rivals of its application."""
    (path,) = job.models
    loaded = applications.read_plan(path, core, job.device, objective=job.objective, profile=job.profile)
    yield path, lambda: _contenders_of_plan(loaded)


@dataclass(frozen=True, eq=False)
class _Contenders:
    """The rivals of a model or an application, which are to be measured.

    Attributes:
        model: the normalized model; of an application, the first one.
        rivals: the ways to run it.
        left_out: reason for each rival that is left out, by its name.
        how: further arguments of `measure`, such as shapes and phases, and models that run beside the first one.
    """

    model: ov.Model
    rivals: list[Rival]
    left_out: dict[str, str]
    how: dict[str, Any]


def _contenders(
    job: _Job,
    core: ov.Core,
    path: Path,
    model: ov.Model,
    shapes: Mapping[str, Sequence[int]] | None,
    inputs: Mapping[str, object],
) -> _Contenders:
    """Lists the rivals of a model, with the placements of all placers.

    Args:
        job: says how.
        core: has the devices.
        path: the model's file, beside which measured costs and a config.json may lie.
        model: the model, which is changed in place.
        shapes: example shapes of its inputs; None: none were given.
        inputs: files of its inputs by input name.

    Returns:
        The ways to run it.
    """
    session = Session.of(job.devices, core, job.profile)
    samples = samples_of(model, inputs, shapes)
    sizes: Mapping[str, Sequence[int]] | None = shapes
    if samples is not None:
        sizes = dict(samples.shapes)
    elif not has_npu(job.devices):
        sizes = with_sizes_beside(model, path, shapes)
    fix_npu_sizes(model, job.devices, sizes)
    phases = job.workload.phases_with(model, sizes) if job.workload else ()
    costs = None if phases else load_beside(path)
    analysis = session.analyse(model, sizes, phases)
    problem = session.price(analysis, job.objective, costs, phases).problem
    rivals, left_out = contenders(problem, job.devices, job.learned)
    return _Contenders(model, rivals, left_out, {"shapes": sizes, "phases": phases, "samples": samples})


def _contenders_of_plan(loaded: LoadedPlan) -> _Contenders:
    """Lists the rivals of a plan's application."""
    rivals, left_out = contenders_of_plan(loaded.application, loaded.assignment)
    how = {"seconds": TRIAL, **comparison_arguments(loaded.application, loaded.prepared)}
    return _Contenders(loaded.prepared[0].analysis.model, rivals, left_out, how)


@dataclass(frozen=True)
class _Subject:
    """What is measured: models one by one, or the application of a plan.

    Attributes:
        each: reads the models; yields the file of each, and a function that places it.
        runs: word for what rates count a second: "inferences" or "runs".
        next_command: name of the command that a user may want next, for a file that was measured.
        next_options: words of that command behind the file, for a job.
    """

    each: Callable[[_Job, ov.Core], Iterator[tuple[Path, Callable[[], _Contenders]]]]
    runs: str
    next_command: str
    next_options: Callable[[_Job], list[object]]


_MODELS = _Subject(_each_model, "inferences", "place", lambda job: [*given("--device"), "--objective", job.objective])
_APPLICATION = _Subject(_application, "runs", "explain", lambda job: [])


def _place_and_measure(job: _Job, core: ov.Core, path: Path, place: Callable[[], _Contenders]) -> _Outcome:
    """Places and measures a model, or the models of a plan.

    Args:
        job: says how.
        core: has the devices.
        path: file of the model or of the plan.
        place: places it; called once, here, so that its errors are reported like those of measuring.

    Returns:
        The outcome. Where placing or measuring failed, it has no results and the error.
    """
    try:
        with console.progress(path.name) as tell:
            tell("placing")
            found = place()
            results = measure(
                found.model, job.devices, job.objective, core, found.rivals, rounds=job.rounds, report=tell, **found.how
            )
    except (RunError, UserError) as error:
        return {"model": str(path), "results": [], "failed": str(error)}, "", error
    rows = [result.to_dict() for result in results]
    return {"model": str(path), "results": rows, "left_out": found.left_out}, "", None


def _render(job: _Job, subject: _Subject, outcomes: Iterable[_Outcome], show: console.Show) -> list[Exception]:
    """Shows and writes the results of each model as soon as they are there.

    Args:
        job: says how.
        subject: says what is measured.
        outcomes: the outcomes; each is measured when it is taken from the iterator.
        show: prints text or JSON.

    Returns:
        The errors of models that failed, and of a file that could not be written.
    """
    document: dict[str, Any] = {"device": job.devices.hetero, "objective": job.objective, "openvino": ov.__version__}
    document["models"] = []
    failures: list[Exception] = []
    output = job.output
    for entry, where, failed in outcomes:
        document["models"].append(entry)
        if failed is not None:
            failures.append(type(failed)(f"{entry['model']}: {failed}"))
            continue
        title = f"{entry['model']}: {job.objective} on {job.devices.hetero}{where}"
        show.text(title, _table(entry["results"], entry.get("left_out", {}), job.objective, subject.runs))
        if output is not None:
            try:
                _write(output, document)
            except UserError as error:
                failures.append(error)
                output = None
    good = next((entry["model"] for entry in document["models"] if entry["results"]), None)
    show.json(document)
    if good is not None:
        if output is not None:
            show.hint("results", str(output))
        more = given("--shape", "--input", "--workload", "--context", "--profile")
        show.next(subject.next_command, good, *subject.next_options(job), *more)
    return failures


def _bench_on_cluster(fleet: remote.Fleet, job: _Job) -> Iterator[_Outcome]:
    """Measures every model on every kind of machine of a cluster, each as a job, and yields the outcome of each.

    All jobs have ended before the first outcome is yielded.
    """
    jobs, shapes = [], dict[Path, dict[str, tuple[int, ...]] | None]()
    if job.examples and len(job.models) > 1:  # each job gets the shapes of its own model
        core = common.new_core()
        loaded = [common.read_model(core, model) for model in job.models]
        shapes = dict(zip(job.models, example_shapes(loaded, job.examples), strict=True))
    pairs = [(kind, model) for model in job.models for kind in fleet.kinds]
    with remote.scratch() as scratch:
        for number, (kind, model) in enumerate(pairs):
            inputs = Inputs()
            name = inputs.model(model)
            named = [remote.policy(inputs, one.strip()) for one in (job.policies or "").split(",") if one.strip()]
            own: dict[str, object] = {"--policies": ",".join(map(str, named)) or None, "--output": None, "--part": None}
            own |= {"--shape": [sized(*one) for one in (shapes[model] or {}).items()]} if shapes else {}
            words = remote.words(inputs, [name], own)
            jobs.append((kind, Job(tuple(words), inputs.files, inputs.shown), scratch / str(number)))
        results = fleet.run(f"measuring {', '.join(map(str, job.models))}", jobs)
    for (kind, model), result in zip(pairs, results, strict=True):
        try:
            found = remote.parsed(kind, result)["models"]
            yield {**found[0], "model": str(model), "machine": remote.about(kind)}, f", {kind.describe()}", None
        except (RunError, UserError) as error:
            yield {"model": str(model), "results": [], **remote.failed(kind, error)}, "", error


def _policies(text: str | None) -> list[HSDAGPlacer]:
    """Makes the placers of learned policies; several get different names, "hsdag:POLICY".

    text: value of --policies; None for the shipped policy, if the package ships one. Raises UserError where a policy
    cannot be used.
    """
    if text is None:
        return policy_placers(DEFAULT) if ships(DEFAULT) else []
    names = [name.strip() for name in text.split(",") if name.strip()]
    named_placers = [(name, placer) for name in names for placer in policy_placers(name)]
    if len(named_placers) == 1:
        return [named_placers[0][1]]
    return [replace(placer, name=f"hsdag:{name}") for name, placer in named_placers]


def _write(path: Path, document: dict[str, Any]) -> None:
    """Writes all results as .json, or as .csv with a row for each rival of each model.

    path: the file; its ending decides. document: what the command prints as JSON. No .csv is written without rows.
    """
    if path.suffix == ".json":
        write_json(path, document)
        return
    rows = [
        {"model": entry["model"], **({"machine": entry["machine"]["kind"]} if "machine" in entry else {}), **row}
        for entry in document["models"]
        for row in entry["results"]
    ]
    if not rows:
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def _table(rows: Sequence[dict[str, Any]], left_out: Mapping[str, str], objective: str, runs: str) -> Table:
    """Makes the table of a model's rivals.

    Args:
        rows: results of the rivals, see `ov_hsdag.placing.rivals.Result.to_dict`.
        left_out: reason for each rival that is left out, by its name.
        objective: "latency" or "throughput".
        runs: word for what rates count a second: "inferences" or "runs".
    """
    key, scale = ("predicted_latency_us", 1e-3) if objective == "latency" else ("predicted_ips", 1.0)
    shown = []
    for row in rows:
        failed, predicted = row["failed"], row[key]
        same_as = row["same_as"] or ""
        note = why_no_figure(row)
        itself = row["ratio"] == 1 and not row["same_as"]
        interval = None if failed or itself else (row["ratio_low"], row["ratio_high"])
        value = None if failed or row["same_as"] else row["measured"] * scale
        predicted = None if predicted is None else predicted * scale
        shown.append(
            Row(
                row["placer"], row["submodels"] or None, predicted, value, row["ratio"], interval, note, same_as=same_as
            )
        )
    shown += [Row(name, note=note) for name, note in left_out.items()]
    return candidates_table(shown, objective, measured=True, what=runs)


COMMAND = Command(
    bench, position=130, example="ov-hsdag bench model.xml --device HETERO:GPU,CPU --objective throughput"
)
