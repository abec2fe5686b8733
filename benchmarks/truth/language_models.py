"""Language models on two and four one-core devices: predicted against measured times, requests in flight, limits.

    python -m benchmarks.truth.language_models [accuracy] [requests] [limits] [--splits 40] [--models 0,1,2]

accuracy: random layer splits of three decoders on two cores in bf16 and one in f32 (--cores 1: on one in bf16).
Predicted and measured time to the first token and for each further token, both in relation to the devices alone, which
are measured in turn with each split. Each split is compiled and measured four times, in a process of its own each time:
compiled again, a model has its weights elsewhere in memory, which changes times more than measuring again does; and in
a process that has compiled and freed others before, a token of a split takes up to a fifth longer, of a device alone
not. With --cpu-time it is the time that this process had a core, for machines that others use too. Huge pages make
compilations of a model alike: set GLIBC_TUNABLES=glibc.malloc.hugetlb=1 in the environment.
requests: tokens per second of two requests in flight on two one-core devices, against one of them; and what the
machine gives at most: those of a whole copy on each, both at work.
limits: placements under limits of 60% of the need on each of two devices and 30% on each of four, against all
contiguous splits by layers that keep them: time of a further token, measured in turn. The fastest ones are then
compiled and measured again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from scipy.stats import spearmanr

from ov_hsdag.calibration.calibrate import calibrate_prepared
from ov_hsdag.calibration.single_request import SingleRequest
from ov_hsdag.costs.stored import ModelCosts
from ov_hsdag.devices import virtual
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring.worker import Runner
from ov_hsdag.model.affinities import remove_affinities, set_affinities
from ov_hsdag.model.graph import NodeKind
from ov_hsdag.model.inputs import timed_inputs
from ov_hsdag.model.workload import Phase, Workload
from ov_hsdag.placing.memory_fit import fit
from ov_hsdag.placing.place import place
from ov_hsdag.problem.analysis import ModelAnalysis, prepare
from ov_hsdag.problem.pricing import WorkloadProblem, graph_of, price_workload, resolve_profile
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.storage.files import write_json
from research.zoo.decoders import DecoderSize
from research.zoo.stored_decoders import write_decoder

# In f32: with compressed weights a core in bf16 takes about as long as one in f32, so that all splits are alike.
MODELS = {
    "f32, 8 layers, 512 wide": DecoderSize(8, 8, 64, 1408, 4000),
    "f32, 12 layers, 768 wide": DecoderSize(12, 12, 64, 2048, 4000),
    "f32, 16 layers, 512 wide": DecoderSize(16, 8, 64, 1408, 4000),
}
WORKLOAD = Workload(prompt=64, generate=256)
PAIR = DeviceSet(("CPU_A", "CPU_B"))
FOUR = DeviceSet(("CPU_A", "CPU_B", "CPU_C", "CPU_D"))
STEPS = ("accuracy", "requests", "limits")
RESULTS = Path(__file__).parents[1] / "results" / "language_models.json"

# Each split is compiled so often, and runs in so many turns: where weights lie in memory changes what a token takes.
_COPIES, _TURNS = 4, 5

# Under limits so many of the fastest splits are measured again. They, and requests in flight, are compiled so often.
_BEST, _FRESH = 4, 7
_ROUNDS_OF_FASTEST = 8
_LAYER = re.compile(r"into_layer_(\d+)")

# Asked for: least rank correlation, largest median error, least gain, largest loss.
SPEARMAN, ERROR, GAIN, LOSS = 0.95, 0.10, 1.7, 0.03

Floats = NDArray[np.float64]


def declare(names: Sequence[str], precisions: Sequence[str], threads: Sequence[int] | None = None) -> ov.Core:
    """A Core with these devices, of one core each unless `threads` says otherwise."""
    os.environ[virtual.VIRTUAL_DEVICES_VARIABLE] = ";".join(
        f"{name}:INFERENCE_NUM_THREADS={cores},INFERENCE_PRECISION_HINT={precision}"
        for name, precision, cores in zip(names, precisions, threads or [1] * len(names), strict=True)
    )
    core = ov.Core()
    virtual.register(core)
    return core


def compiled(core: ov.Core, model: ov.Model, device: str) -> ov.CompiledModel:
    """The model on a device, as it is measured elsewhere."""
    return core.compile_model(model, device, virtual.compile_properties(device))


def layers(problem: PlacementProblem) -> NDArray[np.int64]:
    """The last layer that each group of nodes needs, int64 [groups]."""
    graph = problem.graph
    level = np.zeros(graph.nodes, np.int64)
    for node, name in enumerate(graph.names):
        found = _LAYER.fullmatch(name)
        if found and graph.kinds[node] != NodeKind.CONSTANT:
            level[node] = int(found[1])
        sources = graph.input_source[graph.input_ptr[node] : graph.input_ptr[node + 1]]
        level[node] = max([level[node], *level[sources]])
    of_group = np.zeros(problem.group_count, np.int64)
    np.maximum.at(of_group, problem.groups, level)
    return of_group


def random_splits(problem: PlacementProblem, count: int) -> list[NDArray[np.uint8]]:
    """Contiguous splits by layers into two to four parts, devices in turn, each once; all feasible."""
    random, level = np.random.default_rng(2026), layers(problem)
    found: dict[bytes, NDArray[np.uint8]] = {}
    for _ in range(100 * count):
        parts = int(random.integers(2, 5))
        cuts = np.sort(random.choice(np.arange(1, level.max() + 1), parts - 1, replace=False))
        split = ((np.searchsorted(cuts, level, side="right") + random.integers(2)) % 2).astype(np.uint8)
        if not problem.evaluate(split).infeasible[0]:
            found[split.tobytes()] = split
        if len(found) == count:
            break
    return list(found.values())


def calibrated(
    analysis: ModelAnalysis, core: ov.Core, workload: Workload
) -> tuple[WorkloadProblem, tuple[Phase, ...], dict[str, ModelCosts]]:
    """The problem of a workload, with operations measured in each phase."""
    profile = resolve_profile(None, analysis.devices, core)
    phases = workload.phases(analysis.model)
    costs = {
        phase.name: calibrate_prepared(
            replace(analysis, graph=graph_of(analysis, phase), shapes=phase.shapes), core, profile
        )[0]
        for phase in phases
        if phase.count
    }
    return price_workload(analysis, "latency", profile, core, phases, costs), phases, costs


def accuracy(path: Path, core: ov.Core, count: int, clock: Callable[[], float]) -> dict[str, Any]:
    """Predicted and measured times of random splits of one model, by phase; each split is compiled `_COPIES` times.

    "repeated" compares the even with the odd ones of them.
    """
    SingleRequest.clock = staticmethod(clock)
    model = core.read_model(path)
    shapes = WORKLOAD.phases(model)[-1].shapes
    begin = time.perf_counter()
    analysis = prepare(model, PAIR.names, core, resolve_profile(None, PAIR.names, core), shapes=shapes)
    problem, phases, _ = calibrated(analysis, core, WORKLOAD)
    print(f"  calibrated in {time.perf_counter() - begin:.0f} s", flush=True)
    timed = timed_inputs(model, phases=phases)
    splits = random_splits(problem.problem, count)
    singles = problem.problem.singles
    units = np.array([problem.phases[one.name].evaluate(singles).latency_us.sum() for one in timed])
    prepared = path.with_name(f"prepared_{path.name}")
    ov.save_model(model, prepared, compress_to_fp16=False)
    tasks = [
        (prepared, problem.problem.affinity(split), bool(number % 2), clock is time.process_time)
        for number in range(_COPIES)
        for split in splits
    ]
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        rows = list(pool.imap(_in_new_process, tasks, chunksize=1))
    measured = np.array(rows).reshape(_COPIES, len(splits), len(timed)) * units
    found: dict[str, Any] = {}
    for phase, one in enumerate(timed):
        predicted = problem.phases[one.name].evaluate(np.stack(splits)).latency_us
        us = np.median(measured[:, :, phase], axis=0)
        found[one.name] = {
            "predicted": predicted.tolist(),
            "measured": measured[:, :, phase].tolist(),
            **_agreement(predicted, us),
            "repeated": _agreement(*(np.median(measured[start::2, :, phase], axis=0) for start in (0, 1))),
            "slowest_over_fastest": float(us.max() / us.min()),
        }
    return found


def _in_new_process(task: tuple[Path, Mapping[str, str], bool, bool]) -> list[float]:
    """Time of a split over the sum of the devices' alone, of each phase, compiled once as in a user's program.

    Args:
        task: of `accuracy`: the model; affinities; whether the split is compiled before the devices alone are; whether
            time on cores counts.
    """
    path, affinity, first, of_cores = task
    SingleRequest.clock = staticmethod(time.process_time if of_cores else time.perf_counter)
    core = ov.Core()
    virtual.register(core)
    model = core.read_model(path)
    timed = timed_inputs(model, phases=WORKLOAD.phases(model))
    split = model.clone()
    set_affinities(split, affinity)
    ways = [(model, name) for name in PAIR] + [(split, PAIR.hetero)]
    made = {device: compiled(core, one, device) for one, device in (reversed(ways) if first else ways)}
    found = []
    for one in timed:
        requests = [SingleRequest(made[device], one) for _, device in ways]
        best = np.array([[_twice(request) for request in requests] for _ in range(_TURNS)]).min(axis=0)
        found.append(float(best[-1] / best[:-1].sum()))
    return found


def _agreement(predicted: Floats, measured: Floats) -> dict[str, float]:
    """Rank correlation, and median relative error."""
    return {
        "spearman": float(spearmanr(predicted, measured).statistic),
        "median_error": float(np.median(np.abs(predicted / measured - 1))),
    }


def _twice(request: SingleRequest) -> float:
    """Seconds of an inference after another one, which brings back into caches what others displaced."""
    request.run()
    return request.run()


def in_flight(path: Path, core: ov.Core) -> dict[str, Any]:
    """Tokens per second of two requests on two devices, of one device, and of a whole copy on each device at once."""
    model = core.read_model(path)
    workload = replace(WORKLOAD, prompt=32)
    placement = place(model, PAIR.names, objective="throughput", core=core, workload=workload, measure=False)
    (_, token) = timed_inputs(model, phases=workload.phases(model))
    rates = np.zeros((_FRESH, 3))
    for of_copy in rates:  # where weights lie in memory changes what a token takes
        set_affinities(model, placement.affinity)
        hetero = compiled(core, model, PAIR.hetero)
        remove_affinities(model)
        split = Runner(hetero, [token], "throughput", 2)
        alone = [Runner(compiled(core, model, name), [token], "throughput", 1) for name in PAIR]
        with ThreadPoolExecutor(len(alone)) as pool:
            found = [
                (split.rate(1.0), alone[0].rate(1.0), sum(pool.map(lambda one: one.rate(1.0), alone))) for _ in range(5)
            ]
        of_copy[:] = np.median(found, axis=0)
    return {
        "gain": float(np.median(rates[:, 0] / rates[:, 1])),
        "gain_of_two_copies": float(np.median(rates[:, 2] / rates[:, 1])),
        "tokens_per_second": rates.tolist(),
        "chosen": placement.chosen,
    }


def limited(path: Path, names: DeviceSet, share: float, clock: Callable[[], float]) -> dict[str, Any]:
    """Time of a further token under limits, of the placement and of every contiguous split by layers."""
    SingleRequest.clock = staticmethod(clock)
    core = declare(names.names, ["f32"] * len(names.names))
    workload = replace(WORKLOAD, context=1024)
    model = core.read_model(path)
    roomy = dict.fromkeys(names.names, 10**12)
    whole = fit(model, names.names, context=1024, memory=roomy, core=core).singles[names.names[0]].total
    limits = dict.fromkeys(names.names, int(whole * share))
    model = core.read_model(path)
    placement = place(model, names.names, core=core, workload=workload, memory=limits, measure=False)
    assert placement.predicted is not None
    phases = workload.phases(model)
    profile = resolve_profile(None, names.names, core).with_memory(limits)
    analysis = prepare(model, names.names, core, profile, shapes=phases[-1].shapes)
    problem = price_workload(analysis, "latency", profile, core, phases).problem
    level = layers(problem)
    cuts = itertools.combinations(range(1, int(level.max()) + 1), len(names.names) - 1)
    every = [np.searchsorted(np.array(cut), level, side="right").astype(np.uint8) for cut in cuts]
    kept = [split for split in every if not problem.evaluate(split).infeasible[0]]
    (_, token) = timed_inputs(model, phases=phases)
    affinities = [placement.affinity, *(problem.affinity(split) for split in kept)]

    def request(affinity: Mapping[str, str]) -> SingleRequest:
        set_affinities(model, affinity)
        split = compiled(core, model, names.hetero)
        remove_affinities(model)
        return SingleRequest(split, token)

    set_affinities(model, placement.affinity)
    compiled_bytes = held(compiled(core, model, names.hetero), problem, placement.affinity)
    remove_affinities(model)
    requests = [request(affinity) for affinity in affinities]
    # All are measured to find the fastest; what those were then lucky with, they are not with again.
    seconds = _in_turn(requests, 7)
    fastest = [0, *(1 + np.argsort(np.median(seconds[:, 1:] / seconds[:, :1], axis=0))[:_BEST])]
    del requests
    ratios = np.zeros((_FRESH, len(fastest)))
    random = np.random.default_rng(0)
    for of_copy in ratios:
        # In another order each time: what is compiled first has its weights elsewhere, and was up to 10% slower.
        requests = {at: request(affinities[fastest[at]]) for at in random.permutation(len(fastest)).tolist()}
        order = random.permutation(len(fastest))
        seconds = np.empty((_ROUNDS_OF_FASTEST, len(fastest)))
        seconds[:, order] = _in_turn([requests[at] for at in order.tolist()], _ROUNDS_OF_FASTEST)
        of_copy[:] = np.median(seconds[:, :1] / seconds, axis=0)
    predicted = problem.evaluate(np.stack(kept)).latency_us if kept else np.array([np.inf])
    return {
        "limit": limits[names.names[0]],
        "predicted_bytes": placement.predicted["memory_bytes"],
        "compiled_bytes": compiled_bytes,
        "splits_that_fit": len(kept),
        "splits": len(every),
        "times_the_best": float(np.median(ratios, axis=0)[1]) if kept else 1.0,
        "times_the_next_best": np.median(ratios, axis=0)[2:].tolist(),
        "predicted_times_the_best": placement.predicted["latency_us"] / float(predicted.min()),
        "token_us": float(np.median(seconds[:, 0]) * 1e6),
    }


def held(split: ov.CompiledModel, problem: PlacementProblem, affinity: Mapping[str, str]) -> dict[str, int]:
    """Bytes of weights in the compiled submodels of each device, as stored, and of its states at the context."""
    found = dict.fromkeys(problem.devices, 0)
    for node in split.get_runtime_model().get_ordered_ops():
        if _text(node, "layerType") != "Const":
            continue
        size = int(np.prod([int(one.get_length()) for one in node.get_output_partial_shape(0)]))
        readers = [target.get_node() for target in node.output(0).get_target_inputs()]
        names = [name for reader in readers for name in _text(reader, "originalLayersNames").split(",")]
        device = next((affinity[name] for name in names if name in affinity), None)
        if device is not None and size:
            found[device] += size * np.dtype(node.get_output_element_type(0).to_dtype()).itemsize
    for number, (name, kind) in enumerate(zip(problem.graph.names, problem.graph.types, strict=True)):
        if kind in ("ReadValue", "Assign"):
            device = affinity[name]
            found[device] += int(problem.node_held[number, problem.devices.index(device)])
    return found


def _text(node: ov.Node, key: str) -> str:
    info = node.get_rt_info()
    value = info[key] if key in info else ""  # noqa: SIM401
    return str(getattr(value, "value", value))


def _in_turn(requests: Sequence[SingleRequest], rounds: int) -> Floats:
    """Seconds of a token of each request, the median of three, [rounds, requests]."""
    return np.array([[np.median([_twice(one) for _ in range(3)]) for one in requests] for _ in range(rounds)])


def main() -> int:
    """Prints the tables; returns 1 where a figure misses what is asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", choices=[*STEPS, []], help="accuracy, requests, limits; all by default")
    parser.add_argument("--splits", type=int, default=40, help="of each model (default 40)")
    parser.add_argument("--cores", type=int, default=2, help="accuracy: of the device in bf16 (default 2)")
    parser.add_argument("--cpu-time", action="store_true", help="accuracy, limits: time on a core instead of wall time")
    parser.add_argument("--models", default="0,1,2", help="which of the three, by number")
    options = parser.parse_args()
    clock = time.process_time if options.cpu_time else time.perf_counter
    steps, missed = options.steps or STEPS, []
    found: dict[str, Any] = {"openvino": ov.__version__, "GLIBC_TUNABLES": os.environ.get("GLIBC_TUNABLES", "")}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, size) in enumerate(MODELS.items()):
            if str(number) not in options.models.split(","):
                continue
            path = write_decoder(size, Path(folder) / f"{number}.xml")
            print(name, flush=True)
            of_model: dict[str, Any] = {}
            if "accuracy" in steps:
                cores = options.cores, 1
                core = declare(PAIR.names, ("bf16", "f32"), cores)
                of_model["accuracy"] = accuracy(path, core, options.splits, clock)
                for phase, part in of_model["accuracy"].items():
                    print(
                        f"  {phase}: {len(part['predicted'])} splits, Spearman {part['spearman']:.3f},"
                        f" median error {part['median_error']:.1%}; compiled again"
                        f" {part['repeated']['spearman']:.3f}, {part['repeated']['median_error']:.1%}; slowest"
                        f" {part['slowest_over_fastest']:.2f} times the fastest",
                        flush=True,
                    )
                    if part["spearman"] < SPEARMAN or part["median_error"] > ERROR:
                        missed.append(f"{name}, {phase}")
            if "requests" in steps:
                of_model["requests"] = in_flight(path, declare(PAIR.names, ("f32", "f32")))
                print(f"  two requests in flight: {of_model['requests']}", flush=True)
                if of_model["requests"]["gain"] < GAIN:
                    missed.append(f"{name}, requests in flight")
            if "limits" in steps:
                for names, share in ((PAIR, 0.6), (FOUR, 0.3)):
                    of_limits = of_model[f"limits of {share:.0%}"] = limited(path, names, share, clock)
                    print(f"  limits of {share:.0%} on each of {len(names.names)}: {of_limits}", flush=True)
                    most = max(*of_limits["predicted_bytes"].values(), *of_limits["compiled_bytes"].values())
                    over = most > of_limits["limit"]
                    if over or of_limits["times_the_best"] > 1 + LOSS:
                        missed.append(f"{name}, limits of {share:.0%}")
            of_model["clock"] = dict.fromkeys(steps, "time on cores" if options.cpu_time else "wall time")
            found[name] = of_model
    # What was not measured now stays as it was.
    before = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for name in MODELS:
        old, new = before.get(name, {}), found.get(name, {})
        found[name] = {**old, **new, "clock": {**old.get("clock", {}), **new.get("clock", {})}}
    write_json(RESULTS, found)
    for line in missed:
        print(f"missed: {line}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
