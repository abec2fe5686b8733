"""Compares predicted with measured times of random legal placements on HETERO, on one core in bf16 and one in f32.

Six models have 40 legal placements each, in equal parts of five kinds: two to four contiguous stretches of the
topological order; five to twelve stretches; a random device for each coarse group; minimum cuts after operations were
made cheaper and dearer at random; a random device for each colocation group. The random devices favour one device more
or less.

Each placement runs in turns with both single devices, and its time is divided by the sum of theirs, so that drift of a
shared machine cancels. Times are lower quartiles, as background load only increases times. A placement is measured
again if the single devices were clearly slower meanwhile than at best. Two of five placements also run with four
requests in flight, in turns with the faster device; each thread is bound to the core of its submodel's device
(`benchmarks.common.bound_worker`).

Predictions come from the simulator, once after calibrating the devices only, and once with the costs of the model
measured on them (`ov-hsdag calibrate --model`), without any of the placements.

    python -m benchmarks.truth.prediction_accuracy calibrate --work DIR         # devices and models
    python -m benchmarks.truth.prediction_accuracy measure MODEL… --work DIR    # latency; --seconds bounds one call
    python -m benchmarks.truth.prediction_accuracy pipelines MODEL… --work DIR  # throughput of what was measured
    python -m benchmarks.truth.prediction_accuracy report --work DIR            # the table

    python -m benchmarks.truth.prediction_accuracy --lacks Gelu,MaxPool     # the first device does not run these types

Without the name of a step all four run, in a temporary folder unless --work names one, from which a second call goes
on. --output FILE.json stores the results, and the table in FILE.md; the repository's are
benchmarks/results/prediction_accuracy.json and prediction_accuracy_lacking.json. The exit status is 1 if a figure
misses its floor: Spearman 0.95 and 10% after calibration with the model, 0.85 and 25% without, throughput 0.9.

With `--lacks` the first device must be calibrated in a split, as NPUs are. Times are then divided by the other device's
only, throughput is not measured, and there are no floors.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from benchmarks.common.bound_worker import bound_to_cores, leave_threads_alone, submodel_devices
from benchmarks.common.output import add_output, folder_or_temporary
from benchmarks.common.ranks import spearman
from benchmarks.common.tables import markdown
from benchmarks.common.workers import start
from benchmarks.field.unseen import DEVICES, unlike
from ov_hsdag.calibration.calibrate import calibrate_prepared
from ov_hsdag.calibration.executions import SingleRequest
from ov_hsdag.calibration.machine import calibrate as calibrate_machine
from ov_hsdag.costs.profile import Profile
from ov_hsdag.costs.stored import SUFFIX, ModelCosts
from ov_hsdag.devices import virtual
from ov_hsdag.measuring.runner import Runner
from ov_hsdag.model.affinities import set_affinities
from ov_hsdag.model.inputs import timed_inputs
from ov_hsdag.placers.mincut import MinCut
from ov_hsdag.problem.pricing import build_problem, prepare
from ov_hsdag.problem.problem import PlacementProblem, topological_groups
from ov_hsdag.storage.files import write_json, write_text
from ov_hsdag.utils.errors import RunError, UserError
from research.zoo.catalog import ZOO, ZooModel
from research.zoo.lacking import Lacking

SMOKE_ARGUMENTS = "resnet-small --placements 5"
"""The arguments with which this command is quickest, for `make figures-smoke`."""

MODELS = ("resnet50", "bert-base", "vit-base", "mobilenet-v2", "densenet121", "inception-v3")

FLOORS = {"model": (0.95, 0.10), "devices": (0.85, 0.25)}
THROUGHPUT_FLOOR = 0.9

# Number of turns, and that of slow models: those for which both devices together take more than SLOW_SECONDS.
ROUNDS, SLOW_ROUNDS, SLOW_SECONDS = 9, 5, 0.15
# A placement is measured again, TRIES times at most, if a single device took more than DISTURBED times its best time.
TRIES, DISTURBED = 3, 1.15
KINDS = 5  # number of kinds of placements
STEPS = ("calibrate", "measure", "pipelines", "report")
REQUESTS = 4  # requests in flight for throughput
PERF_COUNT = {"PERF_COUNT": True}
PERIODS = 3  # number of turns for throughput
# If threads bound to one core used more than this multiple of the wall time, they also ran on other cores.
ESCAPED = 1.1
SECONDS = 0.5  # time of a turn for throughput
# Seed of the placements. The calibration was designed while looking at those of seed 0.
SEED = 1

Floats = NDArray[np.float64]


def draw(problem: PlacementProblem, count: int, seed: int = SEED) -> list[tuple[str, NDArray[np.uint8]]]:
    """Draws placements of the five kinds in turn, each legal and on both devices.

    A placement occurs twice only if a small model has no more of its kind.

    Args:
        problem: the problem.
        count: number of placements.
        seed: seed of the draws.

    Returns:
        Kind and placement, uint8 [groups], of each.

    Raises:
        RunError: there are fewer legal placements.
    """
    random = np.random.default_rng(seed)
    kinds: tuple[tuple[str, Callable[[], NDArray[np.uint8]]], ...] = (
        ("few stretches", lambda: _stretches(problem, random, int(random.integers(2, 5)))),
        ("stretches", lambda: _stretches(problem, random, int(random.integers(5, 13)))),
        ("coarse dice", lambda: _dice(problem.coarse, random)[problem.coarse]),
        ("minimum cuts", lambda: _cut(problem, random)),
        ("dice", lambda: _dice(np.arange(problem.group_count), random)),
    )
    found: list[tuple[str, NDArray[np.uint8]]] = []
    seen: set[bytes] = set()
    for attempt in range(50 * count):
        if len(found) == count:
            return found
        kind, make = kinds[len(found) % len(kinds)]
        placement = problem.repair(problem.where_supported(make()))
        new = placement.tobytes() not in seen
        if attempt % 50 == 49:  # a kind of which a small model has no more
            new = True
        if new and placement.min() != placement.max() and problem.evaluate(placement).infeasible[0] == 0:
            seen.add(placement.tobytes())
            found.append((kind, placement))
    raise RunError(f"only {len(found)} placements of {count} are legal")


def _stretches(problem: PlacementProblem, random: np.random.Generator, count: int) -> NDArray[np.uint8]:
    """`count` stretches of the topological order on alternating devices, uint8 [groups]."""
    order = topological_groups(problem)
    cuts = np.sort(random.choice(np.arange(1, problem.group_count), count - 1, replace=False))
    placement = np.empty(problem.group_count, np.uint8)
    placement[order] = (np.searchsorted(cuts, np.arange(problem.group_count), side="right") + random.integers(2)) % 2
    return placement


def _dice(items: NDArray[np.integer[Any]], random: np.random.Generator) -> NDArray[np.uint8]:
    """A random device for each number up to the largest of `items`, with a random probability, uint8."""
    return (random.random(int(items.max()) + 1) < random.uniform(0.1, 0.9)).astype(np.uint8)


def _cut(problem: PlacementProblem, random: np.random.Generator) -> NDArray[np.uint8]:
    """A minimum cut of the problem after times of nodes and fixed costs were changed at random, uint8 [groups]."""
    nodes = random.lognormal(0.0, 0.7, problem.node_us.shape)
    level = problem.node_us.sum(axis=0).mean() / problem.node_us.sum(axis=0)  # equal devices, else all goes to one
    cheaper = random.uniform(0.0, 0.5)
    return MinCut().place(
        replace(
            problem,
            node_us=problem.node_us * level * nodes,
            transfer_us=problem.transfer_us * cheaper,
            transfer_us_per_byte=problem.transfer_us_per_byte * cheaper,
            submodel_us=problem.submodel_us * cheaper,
            fusion_penalty_us=problem.fusions[1] * cheaper,
        )
    )


def compiled(core: ov.Core, model: ov.Model, device: str) -> ov.CompiledModel:
    """Compiles a model on a device with the properties that virtual devices need."""
    return core.compile_model(model, device, virtual.compile_properties(device))


def once(request: SingleRequest) -> float:
    """Seconds of one request. One before it brings the data back into caches that other models displaced."""
    request.run()
    return request.run()


def measure(
    zoo_model: ZooModel, core: ov.Core, path: Path, count: int, until: float, lacks: Collection[str] = ()
) -> None:
    """Measures the placements that a file does not have yet, and those that were disturbed, until the time is up.

    Args:
        zoo_model: the model.
        core: has the devices.
        path: JSON file, which is read and written after each placement.
        count: number of placements of the model.
        until: end by `time.perf_counter`, s.
        lacks: types of operations that the first device does not support.

    Raises:
        UserError: the file has other placements.
    """
    model = zoo_model.build()
    problem = build_problem(model, DEVICES, core=said(core, lacks))
    drawn = draw(problem, count)
    known = json.loads(path.read_text())["placements"] if path.exists() else []
    if [entry["placement"] for entry in known] != [_text(placement) for _, placement in drawn[: len(known)]]:
        raise UserError(f"{path} has other placements: remove it")
    (inputs,) = timed_inputs(model)
    singles = [SingleRequest(compiled(core, model, name), inputs) for name in DEVICES]
    for single in singles:
        once(single)
    tries: dict[int, int] = {}
    while time.perf_counter() < until:
        again = [number for number in _disturbed(known, "turns_us") if tries.get(number, 0) < TRIES]
        if len(known) == count and not again:
            break
        number = len(known) if len(known) < count else again[0]
        tries[number] = tries.get(number, 0) + 1
        kind, placement = drawn[number]
        placed = model.clone()
        set_affinities(placed, problem.affinity(placement))
        hetero = compiled(core, placed, DEVICES.hetero)
        runner = SingleRequest(hetero, inputs)
        once(runner)
        turns = []
        for _ in range(ROUNDS if sum(once(single) for single in singles) < SLOW_SECONDS else SLOW_ROUNDS):
            turns.append((once(runner), *(once(single) for single in singles)))
        entry: dict[str, Any] = {
            "kind": kind,
            "placement": _text(placement),
            "submodels": int(hetero.get_property("HETERO_NUMBER_OF_SUBMODELS")),
            "turns_us": np.round(np.array(turns).T * 1e6, 1).tolist(),
        }
        known[number:] = [entry, *known[number + 1 :]]
        write_json(path, {"model": zoo_model.name, "openvino": ov.__version__, "placements": known})
        print(
            f"{zoo_model.name} {number + 1}/{count} {kind}: {_undisturbed(entry['turns_us'])[0] / 1000:.1f} ms,"
            f" {entry['submodels']} submodels",
            file=sys.stderr,
            flush=True,
        )


def measure_pipelines(zoo_model: ZooModel, path: Path, until: float) -> None:
    """Adds throughput to two of five of the placements that a file has, until the time is up.

    Args:
        zoo_model: the model.
        path: JSON file of `measure`, which is written after each placement.
        until: end by `time.perf_counter`, s.
    """
    document = json.loads(path.read_text())
    known = document["placements"]
    wanted = [number for number in range(len(known)) if (number - number // KINDS) % KINDS in (0, 2)]
    tries: dict[int, int] = {}
    context = multiprocessing.get_context("spawn")
    while time.perf_counter() < until:
        missing = [number for number in wanted if "periods_us" not in known[number]]
        again = [number for number in _disturbed(known, "periods_us") if tries.get(number, 0) < TRIES]
        if not missing and not again:
            break
        number = (missing or again)[0]
        tries[number] = tries.get(number, 0) + 1
        with ProcessPoolExecutor(1, context) as pool:
            measured = pool.submit(pinned_periods, zoo_model.name, known[number]["placement"])
            known[number]["periods_us"] = measured.result()
        write_json(path, document)
        period, alone = _undisturbed(known[number]["periods_us"])
        print(
            f"{zoo_model.name} {number + 1} {known[number]['kind']}: {period / alone:.2f} times the faster device's",
            file=sys.stderr,
            flush=True,
        )


def pinned_periods(name: str, text: str) -> list[list[float]]:
    """Measures periods of a placement and of the faster single device, with requests in flight.

    It must be called in a new process, which has no threads of earlier models.

    Args:
        name: name of the model in the zoo.
        text: the placement as digits, see `_text`.

    Returns:
        Periods in µs, [2, PERIODS]: of the placement, and of the device.

    Raises:
        RunError: threads left their cores.
    """
    leave_threads_alone()
    core = virtual.new_core()
    model = ZOO[name].build()
    problem = build_problem(model, DEVICES, core=core)
    affinity = problem.affinity(np.array([int(digit) for digit in text], np.uint8))
    inputs = timed_inputs(model)
    placed = model.clone()
    set_affinities(placed, affinity)
    # Stays here while the others run: what is freed leaves threads behind, which the next model takes over.
    profiled = core.compile_model(placed, DEVICES.hetero, virtual.compile_properties(DEVICES.hetero, PERF_COUNT))
    order = submodel_devices(profiled, inputs[0].steps[0], affinity)
    with bound_to_cores([DEVICES.names[0]], DEVICES.names) as rivals:
        rival = Runner(compiled(core, model, DEVICES.names[0]), inputs, "throughput", 2)
    with bound_to_cores(order, DEVICES.names, before=1) as stages:
        pipeline = Runner(compiled(core, placed, DEVICES.hetero), inputs, "throughput", REQUESTS)
    begin, used = time.perf_counter(), cpu_seconds(rivals + stages)
    periods = [(1 / pipeline.rate(SECONDS), 1 / rival.rate(SECONDS)) for _ in range(PERIODS)]
    wall, used = time.perf_counter() - begin, cpu_seconds(rivals + stages) - used
    if used.max() > ESCAPED * wall:
        raise RunError(f"threads bound to one core ran {used.max():.1f} s in {wall:.1f} s")
    return [[round(seconds * 1e6, 1) for seconds in row] for row in zip(*periods, strict=True)]


def cpu_seconds(bound: list[tuple[int, int]]) -> Floats:
    """Processor seconds of threads so far, [devices]. bound: (thread id, device number) of each thread."""
    seconds = np.zeros(len(DEVICES))
    for thread, device in bound:
        fields = Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()
        seconds[device] += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime of proc(5)
    return seconds


def said(core: ov.Core, lacks: Collection[str]) -> ov.Core:
    """A Core in which the first device does not support some types of operations; the Core itself without any."""
    return cast(ov.Core, Lacking(core, DEVICES.names[0], lacks)) if lacks else core


def _disturbed(entries: list[dict[str, Any]], key: str) -> list[int]:
    """The indices of entries in which a single device was clearly slower than at best (`DISTURBED`).

    Args:
        entries: measured placements.
        key: "turns_us" or "periods_us"; entries without it are skipped.
    """
    numbers = [number for number, entry in enumerate(entries) if key in entry]
    if not numbers:
        return []
    alone = np.array([_undisturbed(entries[number][key])[1:] for number in numbers])
    slow = (alone > DISTURBED * np.quantile(alone, 0.1, axis=0)).any(axis=1)
    return [int(number) for number in np.array(numbers)[slow]]


def _undisturbed(turns: list[list[float]]) -> Floats:
    """The lower quartile of each row, as background load only increases times. turns: [what runs, turns]."""
    return np.quantile(np.array(turns), 0.25, axis=1)


def _text(placement: NDArray[np.uint8]) -> str:
    """A placement as a string of device numbers, a digit for each group."""
    return "".join(map(str, placement.tolist()))


def calibrate(models: list[ZooModel], core: ov.Core, work: Path, lacks: Collection[str] = ()) -> None:
    """Calibrates the devices and the models of which the folder has no results yet.

    Args:
        models: the models.
        core: has the devices.
        work: the folder.
        lacks: types of operations that the first device does not support.
    """
    path = work / "profile.json"
    if not path.exists():
        start = time.perf_counter()
        calibrate_machine(DEVICES.names, core=core).save(path)
        print(f"devices calibrated in {time.perf_counter() - start:.1f} s", file=sys.stderr)
    profile = Profile.load(path)
    for model in models:
        target = work / f"{model.name}{SUFFIX}"
        if target.exists():
            continue
        start = time.perf_counter()
        asked = said(core, lacks)
        costs, _ = calibrate_prepared(prepare(model.build(), DEVICES.names, asked, profile), asked, profile)
        costs.save(target)
        print(f"{model.name} calibrated in {time.perf_counter() - start:.1f} s", file=sys.stderr)


def compare(zoo_model: ZooModel, core: ov.Core, work: Path, lacks: Collection[str] = ()) -> dict[str, Any]:
    """Compares the measurements of a model with the predictions by both calibrations.

    Args:
        zoo_model: the model.
        core: has the devices.
        work: folder of the steps before.
        lacks: types of operations that the first device does not support.

    Returns:
        Figures by kind of calibration (keys of `FLOORS`), and `rows`, the measurements and predictions of each
        placement.
    """
    core = said(core, lacks)
    whole = [1] if lacks else [0, 1]  # devices that run the whole model
    measured = json.loads((work / f"{zoo_model.name}.measured.json").read_text())["placements"]
    placements = np.array([[int(digit) for digit in entry["placement"]] for entry in measured], np.uint8)
    for entry in measured:
        entry["latency_us"], *entry["alone_us"] = _undisturbed(entry.pop("turns_us")).tolist()
        entry["ratio"] = entry["latency_us"] / sum(entry["alone_us"][device] for device in whole)
        if "periods_us" in entry:
            entry["period_us"], entry["rival_period_us"] = _undisturbed(entry.pop("periods_us")).tolist()
            entry["period_ratio"] = entry["period_us"] / entry["rival_period_us"]
    ratios = np.array([entry["ratio"] for entry in measured])
    run = [number for number, entry in enumerate(measured) if "period_ratio" in entry]
    periods = np.array([measured[number]["period_ratio"] for number in run])
    result: dict[str, Any] = {"name": zoo_model.name, "placements": len(measured), "throughput_placements": len(run)}
    rows = [{key: value for key, value in entry.items() if key != "placement"} for entry in measured]
    for kind in FLOORS:
        costs = ModelCosts.load(work / f"{zoo_model.name}{SUFFIX}") if kind == "model" else None
        problem = build_problem(zoo_model.build(), DEVICES, core=core, profile=work / "profile.json", costs=costs)
        if costs is not None and len(costs.of(problem.graph, DEVICES.names, core)) < len(DEVICES):
            raise RunError(f"the measured costs of {zoo_model.name} in {work} are of another machine: remove them")
        alone = problem.evaluate(problem.singles)
        found = problem.evaluate(placements)
        predicted = found.latency_us / alone.latency_us[whole].sum()
        period = found.period_us[run] / alone.period_us[0]
        result[kind] = {
            "spearman": spearman(predicted, ratios),
            "median_error": float(np.median(np.abs(predicted / ratios - 1))),
            "worst_error": float(np.max(np.abs(predicted / ratios - 1))),
            "median_error_us": float(
                np.median(np.abs(found.latency_us / np.array([entry["latency_us"] for entry in measured]) - 1))
            ),
            "alone_us": alone.latency_us.tolist(),
            "throughput_spearman": spearman(period, periods),
            "throughput_median_error": float(np.median(np.abs(period / periods - 1))) if run else None,
        }
        for row, latency, ratio in zip(rows, found.latency_us.tolist(), predicted.tolist(), strict=True):
            row[f"{kind}_us"], row[f"{kind}_ratio"] = round(latency, 1), round(ratio, 4)
        for number, value in zip(run, period.tolist(), strict=True):
            rows[number][f"{kind}_period_ratio"] = round(value, 4)
    result["rows"] = rows
    return result


def table(results: list[dict[str, Any]]) -> str:
    """The table of all models in Markdown."""

    def cells(figures: dict[str, Any]) -> list[str]:
        return [
            f"{figures['spearman']:.3f}",
            f"{figures['median_error']:.1%}",
            f"{figures['worst_error']:.0%}",
            "-" if figures["throughput_spearman"] is None else f"{figures['throughput_spearman']:.3f}",
            "-" if figures["throughput_median_error"] is None else f"{figures['throughput_median_error']:.1%}",
        ]

    columns = ["Spearman", "median error", "worst", "throughput: Spearman", "median error"]
    rows = []
    for result in results:
        count = f"{result['placements']} ({result['throughput_placements']})"
        for kind, told in (("model", "with the model"), ("devices", "devices only")):
            rows.append([f"{result['name']}, {told}", count, *cells(result[kind])])
    return markdown(["calibrated", "placements (throughput)", *columns], rows)


def misses(result: dict[str, Any]) -> list[str]:
    """A line for each figure of a model that misses its floor."""
    found = []
    for kind, (rank, error) in FLOORS.items():
        figures = result[kind]
        if figures["spearman"] < rank:
            found.append(f"{result['name']}, calibrated {kind}: Spearman {figures['spearman']:.3f} < {rank}")
        if figures["median_error"] > error:
            found.append(
                f"{result['name']}, calibrated {kind}: median error {figures['median_error']:.1%} > {error:.0%}"
            )
    period = result["model"]["throughput_spearman"]
    if period is not None and period < THROUGHPUT_FLOOR:
        found.append(f"{result['name']}: throughput Spearman {period:.3f} < {THROUGHPUT_FLOOR}")
    return found


def main() -> int:
    """Runs the steps and prints the table. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "words", nargs="*", metavar="STEP|MODEL", help="calibrate, measure, pipelines, report; names of the zoo"
    )
    parser.add_argument("--placements", type=int, default=40, help="of each model (default 40)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop measuring after so long")
    parser.add_argument("--work", type=Path, metavar="DIR", help="folder for what is measured, which steps continue")
    parser.add_argument(
        "--lacks", default="", metavar="TYPE,…", help=f"operations that {DEVICES.names[0]} is said not to run"
    )
    add_output(parser, "JSON of the results, and the table in Markdown beside it")
    arguments = parser.parse_intermixed_args()
    steps = [step for step in STEPS if step in arguments.words] or list(STEPS)
    names = [word for word in arguments.words if word not in STEPS] or list(MODELS)
    unknown = [name for name in names if name not in ZOO]
    if unknown:
        parser.error(f"the model zoo has no '{unknown[0]}'")
    models = [ZOO[name] for name in names]
    lacks = [kind for kind in arguments.lacks.split(",") if kind]
    if steps != list(STEPS) and arguments.work is None:
        parser.error("a step alone needs the folder that the others use: --work DIR")
    if lacks and arguments.work is not None:
        arguments.work = arguments.work.with_name(f"{arguments.work.name}_{'_'.join(lacks)}")

    os.environ[virtual.VIRTUAL_DEVICES_VARIABLE] = unlike("throughput")
    core = virtual.new_core()
    with folder_or_temporary(arguments.work) as work:
        until = time.perf_counter() + arguments.seconds
        if "calibrate" in steps:
            calibrate(models, core, work, lacks)
        if "measure" in steps:
            for model in models:
                measure(model, core, work / f"{model.name}.measured.json", arguments.placements, until, lacks)
        measured = [model for model in models if (work / f"{model.name}.measured.json").exists()]
        if "pipelines" in steps and not lacks:
            for model in measured:
                measure_pipelines(model, work / f"{model.name}.measured.json", until)
        if "report" not in steps:
            return 0
        if not measured:
            raise RunError(f"there was no time to measure {', '.join(model.name for model in models)}")
        results = [compare(model, core, work, lacks) for model in measured]
    return report(results, lacks, arguments.output)


def report(results: list[dict[str, Any]], lacks: Sequence[str], output: Path | None) -> int:
    """Prints the table, and writes it and the results next to each other.

    Args:
        results: results of `compare`.
        lacks: types of operations that the first device does not support.
        output: JSON file of the results; None to write nothing.

    Returns:
        The exit status.
    """
    text = table(results)
    print(text)
    missed = [] if lacks else [line for result in results for line in misses(result)]
    for line in missed:
        print(f"missed: {line}")
    if output is None:
        return 1 if missed else 0
    command, which = "python -m benchmarks.truth.prediction_accuracy", "one core in bf16"
    if lacks:
        command += f" --lacks {','.join(lacks)}"
        which += f" that does not run {' and '.join(lacks)}"
    write_json(output, {"openvino": ov.__version__, "models": results})
    title = (
        f"Predicted against measured on real HETERO, {which} and one in f32 (OpenVINO {ov.__version__};"
        f" `{command}`, which says what is measured and how):"
    )
    write_text(output.with_suffix(".md"), f"{title}\n\n{text}\n")
    return 1 if missed else 0


if __name__ == "__main__":
    start(__spec__)
