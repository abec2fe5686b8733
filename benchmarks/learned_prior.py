"""Throughput of models that were never measured: predicted with what measurements of other models say, and without.

Twelve models of twelve families, two pairs of virtual devices of one core each (f32 and f32, bf16 and f32), ten
placements of each model on each pair: contiguous partitions and multilevel searches on costs that are off by random
factors, a minimum cut, and random stretches of the topological order. Each runs with four requests in flight, in turns
with the pair's first device alone, every thread bound to the core of its device (see prediction_accuracy.py).

What counts is the processor time of each device for one inference: the busiest decides the period, whatever else runs
on the machine. Wall time is in the records as well, and how busy others were.

The report leaves out one family at a time: what was measured of all other models makes a prior
(`ov_hsdag.calibration.common_factor`), and the family's models are predicted by the simulator, by the terms that
fine-tuning corrects with no prior, and with it. Besides the error of predictions, how much slower than the best of the
placements is the best of those that would be measured first.

    python -m benchmarks.learned_prior draw         # placements and normalized models, into the folder --work
    python -m benchmarks.learned_prior calibrate    # a profile of the devices, beside the records
    python -m benchmarks.learned_prior measure      # resumable; --seconds bounds one call
    python -m benchmarks.learned_prior report       # table; JSON beside the records
    python -m benchmarks.learned_prior experience   # the records as experience, for finetune_curves.py --experience

The machine must be idle while it calibrates and measures.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.prediction_accuracy import PERF_COUNT, bound_to_cores, cpu_seconds, submodel_devices
from ov_hsdag.calibration import experience
from ov_hsdag.calibration.common_factor import prior_of
from ov_hsdag.calibration.correction import Corrector, Floats, Prior, Terms
from ov_hsdag.calibration.device_profile import calibrate_devices
from ov_hsdag.calibration.experience import Experience, device_keys, of_measurements
from ov_hsdag.costs.builtin import builtin_profile
from ov_hsdag.devices import virtual
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring.worker import Runner
from ov_hsdag.model.inputs import random_inputs
from ov_hsdag.model.placement import set_affinities
from ov_hsdag.placers.contiguous import Contiguous
from ov_hsdag.placers.mincut import MinCut
from ov_hsdag.placers.multilevel import Multilevel
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.problem.problem import PlacementProblem, topological_groups
from ov_hsdag.storage.files import write_json
from ov_hsdag.utils.errors import RunError
from research.zoo.catalog import ZOO

RESULTS = Path(__file__).with_name("results")
RECORDS = RESULTS / "learned_prior_records.json"
PROFILE = RESULTS / "learned_prior_profile.json"

MODELS = (
    "squeezenet", "mobilenet-v2", "shufflenet", "mobilevit-s", "segformer-b0", "inception-v1", "resnet50",
    "densenet121", "convnext-tiny", "distilbert-base", "swin-tiny", "t5-encoder-base",
)  # fmt: skip
PAIRS = {"f32 + f32": ("CPU_A", "CPU_B"), "bf16 + f32": ("CPU_H", "CPU_A")}
DECLARED = {"CPU_A": "f32", "CPU_B": "f32", "CPU_H": "bf16"}
COSTS = {"built-in": None, "calibrated": PROFILE}
STEPS = ("draw", "calibrate", "measure", "report", "experience")
KINDS = ("search", "contiguous", "search", "contiguous", "stretches", "search", "contiguous", "minimum cut", "search",
         "many stretches")  # fmt: skip
SEED = 2

# Of a turn, and turns; requests in flight of a placement.
SECONDS, PERIODS, REQUESTS = 0.2, 3, 4
# Where other processes used fewer cores, wall time says the same as processor time.
DISTURBED = 0.15
# Threads of one core that ran so many times what the clock says were on others too.
ESCAPED = 1.15

# Measurements after which regret is told; of the pair's devices.
COUNTS = (1, 2, 3)
KEYS = ("first", "second")

# Standard deviations of logarithms, for the draws: what costs of devices and of operations are off by.
_DEVICE, _NODE = 0.3, 0.3


def draw(problem: PlacementProblem, seed: int = SEED) -> list[NDArray[np.uint8]]:
    """A placement of each of `KINDS`, legal and on both devices, none twice."""
    random = np.random.default_rng(seed)
    found: list[NDArray[np.uint8]] = []
    for attempt in range(20 * len(KINDS)):
        if len(found) == len(KINDS):
            return found
        kind = KINDS[len(found)]
        if "stretches" in kind:
            placement = _stretches(problem, random, int(random.integers(2, 5) if kind == "stretches" else 6))
        else:
            placer = {"search": Multilevel(seed=attempt), "contiguous": Contiguous(), "minimum cut": MinCut()}[kind]
            placement = placer.place(_off(problem, random, kind == "minimum cut"))
        placement = problem.repair(problem.where_supported(placement))
        if placement.min() != placement.max() and problem.evaluate(placement).infeasible[0] == 0:
            new = all((placement != other).any() for other in found)
            if new or attempt >= 10 * len(KINDS):
                found.append(placement)
    raise RunError(f"only {len(found)} placements of {len(KINDS)} are legal")


def _stretches(problem: PlacementProblem, random: np.random.Generator, count: int) -> NDArray[np.uint8]:
    cuts = np.sort(random.choice(np.arange(1, problem.group_count), count - 1, replace=False))
    placement = np.empty(problem.group_count, np.uint8)
    part = np.searchsorted(cuts, np.arange(problem.group_count), side="right")
    placement[topological_groups(problem)] = (part + random.integers(2)) % 2
    return placement


def _off(problem: PlacementProblem, random: np.random.Generator, level: bool) -> PlacementProblem:
    """The problem with costs that are off; level: with devices as fast as each other, or one would get everything."""
    factor = np.exp(_DEVICE * random.standard_normal(2) + _NODE * random.standard_normal(problem.node_us.shape))
    if level:
        factor = factor * problem.node_us.sum(axis=0).mean() / problem.node_us.sum(axis=0)
    return replace(problem, node_us=problem.node_us * factor, fusion_penalty_us=problem.fusions[1] * factor)


def draw_all(work: Path, core: ov.Core, models: Sequence[str] = MODELS) -> None:
    """Writes the normalized models and the placements of each pair, as far as they are not there."""
    for name in models:
        folder = work / name
        if (folder / "placements.json").exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        drawn: dict[str, Any] = {}
        for pair, names in PAIRS.items():
            model = ZOO[name].build()
            problem = build_problem(model, DeviceSet(names), objective="throughput", core=core)
            placements = draw(problem)
            drawn[pair] = [_text(placement) for placement in placements]
            # By numbers: the processes that measure have devices of the pair alone.
            groups = dict(zip(problem.graph.names, problem.groups.tolist(), strict=True))
        ov.save_model(model, folder / "model.xml", compress_to_fp16=False)
        write_json(folder / "placements.json", {"groups": groups, "drawn": drawn})
        print(f"{name}: drawn", file=sys.stderr, flush=True)


def _text(placement: NDArray[np.uint8]) -> str:
    return "".join(map(str, placement.tolist()))


def measure_all(work: Path, seconds: float) -> None:
    """Measures what RECORDS lacks, a placement of each model in turn, until the time is up."""
    end = time.monotonic() + seconds
    document: dict[str, Any] = json.loads(RECORDS.read_text()) if RECORDS.exists() else {"records": {}}
    document["about"] = {"openvino": ov.__version__, "cpu": _cpu_name(), "cores": os.cpu_count()}
    for number in range(-1, len(KINDS)):
        for name in MODELS:
            drawn = json.loads((work / name / "placements.json").read_text())["drawn"]
            for pair, devices in PAIRS.items():
                known = document["records"].setdefault(pair, {}).setdefault(name, {})
                text = "1" if number < 0 else drawn[pair][number]
                alike = len({DECLARED[device] for device in devices}) == 1
                if "busy_us" in known.get(text, {}) or (number < 0 and alike):
                    continue
                if time.monotonic() > end:
                    return
                known[text] = {
                    "kind": "single" if number < 0 else KINDS[number],
                    **measured(work, name, pair, text),
                }
                write_json(RECORDS, document)


def measured(work: Path, name: str, pair: str, text: str) -> dict[str, Any]:
    """What `turns` returns from a process of its own, or why it failed."""
    begin = time.monotonic()
    os.environ[virtual.VIRTUAL_DEVICES_VARIABLE] = declared(PAIRS[pair])
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            result = pool.submit(turns, str(work / name), PAIRS[pair], text).result()
    except (RunError, RuntimeError) as error:
        result = {"failed": str(error)}
    told = result.get("failed") or f"{_ratio(result):.3f}, others {result['others']}"
    print(f"{name} {pair}: {told}, {time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True)
    return result


def _ratio(record: dict[str, Any]) -> float:
    return float(np.exp(np.median(log_ratios(record))))


def log_ratios(record: dict[str, Any]) -> Floats:
    """Of each turn: log of the time of the first device alone over that of the busiest device, by processor time."""
    return np.array([np.log(max(alone) / max(own)) for own, alone in record["busy_us"]])


def _cpu_name() -> str:
    return str(ov.Core().get_property("CPU", "FULL_DEVICE_NAME"))


def declared(names: tuple[str, ...]) -> str:
    limits = "INFERENCE_NUM_THREADS=1,INFERENCE_PRECISION_HINT"
    return ";".join(f"{name}:{limits}={DECLARED[name]}" for name in names)


def turns(folder: str, names: tuple[str, ...], text: str) -> dict[str, Any]:
    """Periods in µs of a placement and of the first device alone, in turns; in a new process.

    Args:
        folder: of the model and its placements.
        names: of the devices.
        text: device of each group; "1" for everything on the second device.

    Raises:
        RunError: threads leave their cores.
    """
    os.environ["HWLOC_THISSYSTEM"] = "0"  # TBB asks hwloc when it makes its first arena
    core = virtual.new_core()
    devices = DeviceSet(names)
    model = core.read_model(Path(folder) / "model.xml")
    inputs = random_inputs(model)

    def compiled(what: ov.Model, device: str) -> ov.CompiledModel:
        return core.compile_model(what, device, virtual.compile_properties(device))

    order: list[str] = []
    if text == "1":
        with bound_to_cores([names[1]], devices=devices) as stages:
            own = Runner(compiled(model, names[1]), inputs, "throughput", 2)
    else:
        groups = json.loads((Path(folder) / "placements.json").read_text())["groups"]
        affinity = {name: names[int(text[group])] for name, group in groups.items()}
        placed = model.clone()
        set_affinities(placed, affinity)
        # Stays here while the others run: what is freed leaves threads behind, which the next model takes over.
        profiled = core.compile_model(placed, devices.hetero, virtual.compile_properties(devices.hetero, PERF_COUNT))
        order = submodel_devices(profiled, inputs, affinity)
        with bound_to_cores(order, before=1, devices=devices) as stages:
            own = Runner(compiled(placed, devices.hetero), inputs, "throughput", REQUESTS)
    with bound_to_cores([names[0]], devices=devices) as rivals:
        rival = Runner(compiled(model, names[0]), inputs, "throughput", 2)

    def trial(runner: Runner, threads: list[tuple[int, int]]) -> tuple[float, Floats]:
        """Seconds between two results, and of processor time of each device for one."""
        before = processor_seconds(threads)
        rate = runner.rate(SECONDS)
        return 1 / rate, (processor_seconds(threads) - before) / len(runner.finished)

    begin, used, others = time.perf_counter(), cpu_seconds(rivals + stages), others_seconds()
    trials = [(*trial(own, stages), *trial(rival, rivals)) for _ in range(PERIODS)]
    wall, used = time.perf_counter() - begin, cpu_seconds(rivals + stages) - used
    others = (others_seconds() - others) / wall
    periods = [(one[0], one[2]) for one in trials]
    if used.max() > ESCAPED * wall:
        raise RunError(f"threads bound to one core ran {used.max():.1f} s in {wall:.1f} s")
    return {
        "submodels": max(len(order), 1),
        "others": round(others, 3),
        "busy_us": [[np.round(one[1] * 1e6, 1).tolist(), np.round(one[3] * 1e6, 1).tolist()] for one in trials],
        "periods_us": [[round(seconds * 1e6, 1) for seconds in row] for row in zip(*periods, strict=True)],
    }


def problems(work: Path, core: ov.Core, models: Sequence[str] = MODELS) -> None:
    """Writes the problem of each model on each pair, with the costs of each profile, as far as it is not there."""
    for name in models:
        for pair, names in PAIRS.items():
            for costs, profile in COSTS.items():
                path = _problem_file(work, name, pair, costs)
                if path.exists():
                    continue
                build_problem(
                    ZOO[name].build(), DeviceSet(names), objective="throughput", profile=profile, core=core
                ).save(path)


def _problem_file(work: Path, name: str, pair: str, costs: str) -> Path:
    return work / name / f"{'-'.join(PAIRS[pair])}.{costs}.npz"


@dataclass(frozen=True, eq=False)
class Model:
    """Measured placements of a model on a pair of devices, with the costs of a profile.

    corrector: of the model. placements: uint8 [placements, groups]. log_ratios: measured, to the first device alone,
    [placements]. uncertain: their standard errors. split: which of them are on both devices.
    """

    corrector: Corrector
    placements: NDArray[np.uint8]
    log_ratios: Floats
    uncertain: Floats
    split: NDArray[np.bool_]
    terms: Terms

    @classmethod
    def read(cls, work: Path, name: str, pair: str, costs: str, known: dict[str, Any]) -> Model:
        problem = PlacementProblem.load(_problem_file(work, name, pair, costs))
        good = {text: record for text, record in known.items() if "busy_us" in record}
        placements = np.stack(
            [problem.single(1) if text == "1" else np.array([int(digit) for digit in text], np.uint8) for text in good]
        )
        logs = [log_ratios(record) for record in good.values()]
        corrector = Corrector(problem, problem.single(0))
        return cls(
            corrector,
            placements,
            np.array([np.median(one) for one in logs]),
            np.array([one.std(ddof=1) / np.sqrt(len(one)) for one in logs]),
            np.array([text != "1" for text in good]),
            corrector.terms(placements),
        )

    def simulated(self) -> Floats:
        """Log ratios that the simulator predicts, [placements]."""
        problem = self.corrector.problem
        return np.log(problem.scores(problem.single(0))[0] / problem.scores(self.placements))

    def experience(self) -> Experience:
        return of_measurements(self.corrector, KEYS, self.placements, np.exp(self.log_ratios), self.uncertain)


def best_after(model: Model, prior: Prior | None, counts: tuple[int, ...]) -> list[float]:
    """How much slower the best of the first placements is than the best of all; the most promising is measured next."""
    factors = model.corrector.factors
    pool = np.flatnonzero(model.split)
    # As fine-tuning does, each device alone is measured before anything else.
    known = np.flatnonzero(~model.split).tolist()
    best = max(model.log_ratios[pool].max(), 0.0)
    found, curve = 0.0, []
    for count in range(1, max(counts) + 1):
        fit = factors.fit(
            prior or factors.vague,
            model.corrector.reference,
            model.terms[known],
            np.exp(model.log_ratios[known]),
            model.uncertain[known],
        )
        left = [index for index in pool.tolist() if index not in known]
        if left:
            predicted = model.corrector.log_ratio(fit.mean, model.terms[left])
            known.append(left[int(predicted.argmax())])
            found = max(found, float(model.log_ratios[known[-1]]))
        if count in counts:
            curve.append(float(np.exp(best - found) - 1))
    return curve


def report(work: Path) -> dict[str, Any]:
    """Errors and regrets of each kind of costs and pair of devices, each model predicted by the others."""
    records = json.loads(RECORDS.read_text())["records"]
    document: dict[str, Any] = {}
    for costs in COSTS:
        for pair in PAIRS:
            models = {
                name: Model.read(work, name, pair, costs, records[pair][name])
                for name in MODELS
                if any("busy_us" in record and text != "1" for text, record in records[pair].get(name, {}).items())
            }
            document.setdefault(costs, {})[pair] = {
                name: _held_out(model, [other for one, other in models.items() if ZOO[one].family != ZOO[name].family])
                for name, model in models.items()
            }
    return document


def _held_out(model: Model, others: list[Model]) -> dict[str, Any]:
    corrector, split = model.corrector, model.split
    measured = model.log_ratios[split]
    prior = prior_of(corrector.factors, [one.experience() for one in others])
    assert prior is not None
    predictions = {
        "simulator": model.simulated()[split],
        "no prior": corrector.log_ratio(corrector.factors.nothing, model.terms)[split],
        "a constant": corrector.log_ratio(prior.mean, model.terms)[split],
    }
    return {
        "placements": int(split.sum()),
        "best_ratio": float(np.exp(measured.max())),
        "errors": {name: np.round(np.exp(one - measured) - 1, 4).tolist() for name, one in predictions.items()},
        "regret": {"no prior": best_after(model, None, COUNTS), "a constant": best_after(model, prior, COUNTS)},
    }


def write_experience(work: Path, folder: Path, core: ov.Core) -> None:
    """Writes what was measured as experience of this machine, by built-in profiles, for runs of fine-tuning."""
    os.environ[experience.VARIABLE] = str(folder)
    records = json.loads(RECORDS.read_text())["records"]
    for pair, names in PAIRS.items():
        keys = device_keys(core, builtin_profile(names, core), names)
        for name, known in records[pair].items():
            model = Model.read(work, name, pair, "built-in", known)
            experience.keep(replace(model.experience(), devices=keys))


def show(document: dict[str, Any]) -> None:
    """Prints the tables."""
    for costs, of_costs in document.items():
        for pair, models in of_costs.items():
            count = sum(one["placements"] for one in models.values())
            title = f"{costs} profile, {pair}: {len(models)} models, {count} placements"
            columns = (
                "prior",
                "median error",
                "of models, median",
                "worst model",
                *(f"regret after {n}" for n in COUNTS),
            )
            table = Table(*columns, title=title, box=None)
            for name in next(iter(models.values()))["errors"]:
                errors = [np.abs(one["errors"][name]) for one in models.values()]
                own = [float(np.median(one)) for one in errors]
                cells = [np.median(np.concatenate(errors)), np.median(own), max(own)]
                regret = [one["regret"][name] for one in models.values() if name in one["regret"]]
                cells += np.mean(regret, axis=0).tolist() if regret else []
                table.add_row(name, *(f"{cell:.1%}" for cell in cells))
            Console(width=140).print(table)


def processor_seconds(bound: list[tuple[int, int]]) -> Floats:
    """Seconds that threads have run, to the microsecond, [devices]."""
    seconds = np.zeros(2)
    for thread, device in bound:
        seconds[device] += int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0]) * 1e-9
    return seconds


def others_seconds() -> float:
    """Seconds of processor time that other processes of the machine have used."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    busy = sum(int(fields[column]) for column in (0, 1, 2, 5, 6, 7))  # all but idle, iowait and guests, see proc(5)
    own = os.times()
    return busy / os.sysconf("SC_CLK_TCK") - own.user - own.system


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="+", choices=STEPS)
    parser.add_argument("--work", type=Path, default=Path("learned_prior"), help="folder for models and placements")
    parser.add_argument("--experience", type=Path, default=Path("experience"), help="folder for experience")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop measuring after so long")
    options = parser.parse_args()

    if "measure" in options.steps:
        measure_all(options.work, options.seconds)
    os.environ[virtual.VIRTUAL_DEVICES_VARIABLE] = declared(tuple(DECLARED))
    core = virtual.new_core()
    if "draw" in options.steps:
        draw_all(options.work, core)
    if "calibrate" in options.steps:
        begin = time.perf_counter()
        document, _ = calibrate_devices(core, tuple(DECLARED))
        write_json(PROFILE, document)
        print(f"devices calibrated in {time.perf_counter() - begin:.1f} s", file=sys.stderr)
    if "experience" in options.steps:
        problems(options.work, core)
        write_experience(options.work, options.experience, core)
    if "report" in options.steps:
        problems(options.work, core)
        document = report(options.work)
        write_json(RESULTS / "learned_prior.json", document)
        show(document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
