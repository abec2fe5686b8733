"""Measures how near `place` comes to the best candidate on unseen models: architectures of sizes drawn from a seed.

    python -m benchmarks.field.unseen [--seed N] [--models N] [--seconds S] [--rounds N] [--bf16] [--repeats N]
        [--busy N [N ...]] [--latency] [--memory SHARE] [--jobs N] [--output FILE.json]

The devices are two one-core devices made of the CPU plugin, in f32 (with --bf16 different ones, see `unlike`), for
throughput or latency. With --memory each has this share of the memory that the model needs. Each model is placed by
prediction and by measuring, --repeats times, while --busy processes keep cores busy (each of several numbers in turn).

All candidates that any of these placings tried, and for throughput a copy on each device if there is memory, then run
in many short interleaved trials. Between them two loops count on the two cores; the count of the slower one over the
mean of both is the host's share: the largest rate that a balanced pair can have. Everything is compiled four times, in
separate processes, as two compilations of one split differ by 2%.

Printed are the rate of the chosen placement over the best candidate (chosen in one half of the compilations, measured
in the other), the candidate with the best figures ("luckiest"), the best single device, copies, and copies times the
host's share ("limit"); and how long placing took.

The shortest meaningful run has three models and 40 rounds: a quarter of an hour, and more if an inference takes tens of
milliseconds. --jobs models run at the same time, on a pair of cores each, in the order of the cores that the process
may use. Rounds differ by 8%, so that a ratio is known to 1% after 150. Candidates that are surely worse than the best
after the first compilation do not run in the others.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from itertools import chain
from multiprocessing import get_context
from typing import Any
from unittest import mock

import numpy as np
import openvino as ov

from benchmarks.common.counting import busy, count_for
from benchmarks.common.machine import about
from benchmarks.common.output import add_output
from benchmarks.common.workers import on_pairs_of_cores
from ov_hsdag.devices import virtual
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring import choice
from ov_hsdag.measuring.comparison import Comparison
from ov_hsdag.measuring.process import Candidate
from ov_hsdag.measuring.trials import SECONDS
from ov_hsdag.placing import selection
from ov_hsdag.placing.place import place
from ov_hsdag.problem.copies import COPIES
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.storage.files import write_json
from ov_hsdag.utils.errors import RunError
from research.zoo.models.base import ZooModel, model
from research.zoo.models.inputs import Input, image, inputs, text
from research.zoo.models.recipes import Transformers

SMOKE_ARGUMENTS = "--seed 8101 --models 1 --rounds 1 --seconds 2"
"""The arguments with which this command is quickest, for `make figures-smoke`."""

DEVICES = DeviceSet(("CPU_A", "CPU_B"))
HOST_SECONDS, EVERY = 0.5, 5  # time of the two counting loops, s, and number of rounds between them
COMPILED = 4  # compilations; after the first, surely worse candidates are left out unless they were chosen
NEAR = 0.98  # rate over the best from which on a placement counts as near
PREDICTED, CHOSEN = "predicted", "chosen"
FIGURES = ("of_best", "of_luckiest", "of_single", "of_copies", "of_limit")


# Placements by name, as device numbers, uint8 [groups]: names of operations differ from process to process.
Placements = dict[str, np.ndarray[Any, Any]]


def declared(first: str = "f32", threads: int = 1) -> str:
    """The value of OV_HSDAG_VIRTUAL_DEVICES for the devices, which have one thread each in f32.

    Args:
        first: precision of the first device.
        threads: threads of the first device.
    """
    properties = "{}:INFERENCE_NUM_THREADS={},INFERENCE_PRECISION_HINT={}"
    rows = zip(DEVICES, (threads, 1), (first, "f32"), strict=True)
    return ";".join(properties.format(*one) for one in rows)


def unlike(objective: str) -> str:
    """The value of OV_HSDAG_VIRTUAL_DEVICES for devices of which the first is faster.

    It computes in bf16. If the processor has no bf16, it has two threads for latency, and is equal for throughput:
    OpenVINO computes in bf16 there, too, if it is asked to, and takes far longer than in f32.
    """
    if "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        return declared("bf16")
    latency = objective == "latency"
    devices = "the first device has two threads" if latency else "the two devices are alike"
    print(f"this processor has no bf16: {devices}, in f32", flush=True)
    return declared(threads=2 if latency else 1)


# Functions that draw a model of a family: its recipe, and the inputs to infer it with.


def _resnet(draw: np.random.Generator) -> tuple[Transformers, Any]:
    width = int(draw.choice([24, 32, 48, 64]))
    config = {
        "embedding_size": width,
        "hidden_sizes": [width * 2**stage for stage in range(4)],
        "depths": draw.integers(1, 5, 4).tolist(),
        "layer_type": str(draw.choice(["basic", "bottleneck"])),
    }
    return Transformers("ResNetForImageClassification", config, "logits"), image(int(draw.choice([128, 160, 192, 224])))


def _convnext(draw: np.random.Generator) -> tuple[Transformers, Any]:
    width = int(draw.choice([32, 48, 64, 96]))
    config = {"hidden_sizes": [width * 2**stage for stage in range(4)], "depths": draw.integers(1, 6, 4).tolist()}
    return Transformers("ConvNextForImageClassification", config, "logits"), image(int(draw.choice([128, 192, 224])))


def _mobilenet(draw: np.random.Generator) -> tuple[Transformers, Any]:
    config = {
        "depth_multiplier": float(draw.choice([0.5, 0.75, 1.0, 1.3, 1.6])),
        "expand_ratio": int(draw.integers(3, 8)),
    }
    return Transformers("MobileNetV2ForImageClassification", config, "logits"), image(int(draw.choice([128, 160, 224])))


def _tower(draw: np.random.Generator) -> dict[str, Any]:
    """Draws the settings that all transformers have."""
    heads = int(draw.integers(2, 9))
    width = 64 * heads if draw.random() < 0.5 else 32 * heads
    layers = int(draw.integers(3, 11))
    return {
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "intermediate_size": width * int(draw.integers(2, 5)),
    }


def _vit(draw: np.random.Generator) -> tuple[Transformers, Any]:
    size = int(draw.choice([128, 192, 224]))
    config = {**_tower(draw), "image_size": size, "patch_size": 16}
    return Transformers("ViTForImageClassification", config, "logits"), image(size)


def _bert(draw: np.random.Generator) -> tuple[Transformers, Any]:
    config = {**_tower(draw), "vocab_size": 2000, "max_position_embeddings": 256}
    return Transformers("BertModel", config), text(int(draw.choice([32, 64, 128, 200])), 2000)


def _ast(draw: np.random.Generator) -> tuple[Transformers, Any]:
    length = int(draw.choice([128, 256, 384]))
    config = {**_tower(draw), "max_length": length, "num_mel_bins": 64, "frequency_stride": 10, "time_stride": 10}
    return Transformers("ASTForAudioClassification", config, "logits"), inputs(Input("input_values", (1, length, 64)))


FAMILIES: dict[str, Callable[[np.random.Generator], tuple[Transformers, Any]]] = {
    "resnet": _resnet,
    "vit": _vit,
    "mobilenet": _mobilenet,
    "bert": _bert,
    "convnext": _convnext,
    "ast": _ast,
}


def drawn(seed: int, count: int) -> list[ZooModel]:
    """The first `count` models of a seed, the families in turn."""
    draw = np.random.default_rng([seed, 30])
    found = []
    for number in range(count):
        family = list(FAMILIES)[number % len(FAMILIES)]
        recipe, given = FAMILIES[family](draw)
        found.append(model(f"unseen-{seed}-{number}-{family}", family, recipe, given))
    return found


def placing(args: argparse.Namespace, number: int, count: int | None) -> tuple[Placements, float]:
    """Places a model while some processes keep cores busy.

    Args:
        args: the options of the command line.
        number: number of the model.
        count: number of busy processes; None to place by prediction only.

    Returns:
        The placements that measuring tried, by name, with the chosen one also as `CHOSEN`, or the predicted one as
        `PREDICTED`; and the seconds that placing took.
    """
    found: list[selection.Result] = []

    def recorded(*some: Any, **more: Any) -> selection.Result:
        found.append(select(*some, **more))
        return found[-1]

    one, core, select = drawn(args.seed, args.models)[number], virtual.new_core(), selection.select
    problem = build_problem(one.build(), DEVICES, objective=args.objective, core=core)
    held = int(problem.evaluate(problem.singles).memory_bytes.max())
    memory = dict.fromkeys(DEVICES, int(args.memory * held)) if args.memory else None
    arguments: dict[str, Any] = {"core": core, "objective": args.objective, "memory": memory}
    begin = time.perf_counter()
    if count is None:
        predicted = place(one.build(), DEVICES.hetero, **arguments)
        return {PREDICTED: problem.placement_of(dict(predicted.affinity))}, time.perf_counter() - begin
    with mock.patch.object(selection, "select", recorded), busy(count):
        measured = place(one.build(), DEVICES.hetero, measure=True, measure_seconds=args.seconds, **arguments)
    took = time.perf_counter() - begin
    tried = found[-1].placements
    return {**tried, CHOSEN: tried[measured.chosen or ""]}, took


def host_share(pool: ProcessPoolExecutor) -> float:
    """Runs two counting loops. Returns the count of the slower one over the mean of both. pool: two processes."""
    turns = list(pool.map(count_for, [HOST_SECONDS] * len(DEVICES)))
    return min(turns) / statistics.mean(turns)


def compiled_once(
    args: argparse.Namespace, number: int, placements: Placements, turn: int
) -> tuple[list[choice.Round], list[float], dict[str, str]]:
    """Compiles the candidates, and measures them in trials.

    Args:
        args: the options of the command line.
        number: number of the model.
        placements: the candidates by name.
        turn: number of this compilation among those of the candidates.

    Returns:
        The trials, the share of the processor that the host gave to a pair of busy processes meanwhile, and what
        failed, by name.
    """
    model, core, rounds, shares = drawn(args.seed, args.models)[number].build(), virtual.new_core(), [], []
    problem = build_problem(model, DEVICES, core=core)  # it is normalized now
    candidates = {name: Candidate.placed(DEVICES, problem.affinity(one)) for name, one in placements.items()}
    if not args.memory and args.objective == "throughput":
        candidates[COPIES] = Candidate.copies(DEVICES.names)
    count = max(1, args.rounds // COMPILED)
    with (
        ProcessPoolExecutor(len(DEVICES), get_context("spawn")) as pool,
        Comparison(model, DEVICES, candidates, args.objective, core) as comparison,
    ):
        for one in range(turn * count, (turn + 1) * count):
            rounds += comparison.trials(rounds=1, seconds=SECONDS, begin=one)
            shares += [host_share(pool)] if one % EVERY == 0 else []
    return rounds, shares, {name: str(failure) for name, failure in comparison.failed.items()}


def judged(pool: ProcessPoolExecutor, args: argparse.Namespace, number: int) -> dict[str, Any]:
    """Places a model, measures all candidates, and compares the chosen placements with them.

    Args:
        pool: processes for placing and measuring.
        args: the options of the command line.
        number: number of the model.

    Returns:
        `best`, the name of the best candidate; `host`, the host's share; `failed`, reasons by candidate; and the
        figures of each placing, `measured` and `predicted`: ratios of the chosen placement by key of `FIGURES`.
    """
    busy_counts = [count for _ in range(args.repeats) for count in args.busy]
    names: dict[bytes, str] = {}  # of distinct placements
    placements: Placements = {}
    chosen = []
    for tried, took in pool.map(partial(placing, args, number), [*busy_counts, None]):
        for name, placement in tried.items():
            if (key := placement.tobytes()) not in names:
                names[key] = name if name not in placements else f"{name} ({len(names)})"
                placements[names[key]] = placement
        chosen += [(names[tried[CHOSEN].tobytes()], took)] if CHOSEN in tried else []
    predicted = names[tried[PREDICTED].tobytes()]  # the last one
    first = pool.submit(compiled_once, args, number, placements, 0).result()
    known = choice.infer(first[0])
    worse = {*choice.beaten(known, {*known.names})} - {predicted, *(name for name, _ in chosen)}
    left = {name: placement for name, placement in placements.items() if name not in worse}
    compilations = [first, *pool.map(partial(compiled_once, args, number, left), range(1, COMPILED))]
    trials = [rounds for rounds, _, _ in compilations]
    # The compilations are divided into two halves. The best of one half is measured in the other, as the best of many
    # noisy figures is partly luck.
    found, *parts = (choice.infer([*chain(*some)]) for some in (trials, trials[::2], trials[1::2]))
    ran = [name for name in left if all(name in one.names for one in parts)]
    judges = [(parts[1 - number], half.best(ran)) for number, half in enumerate(parts)]
    singles = [name for name in DEVICES if name in found.names]
    host = statistics.mean(chain(*(shares for _, shares, _ in compilations)))
    copies = COPIES in found.names
    rivals = {"of_luckiest": found.best(ran)}
    rivals |= {"of_single": found.best(singles)} if singles else {}
    rivals |= {"of_copies": COPIES} if copies else {}

    def figures(name: str, took: float | None = None, count: int = 0) -> dict[str, Any]:
        """The figures of one placing: the chosen candidate, seconds, number of busy processes, and ratios."""
        ratios = {rival: found.ratio(name, other).median for rival, other in rivals.items()}
        halves = [half.ratio(name, best).median for half, best in judges]
        ratios["of_best"] = statistics.geometric_mean(halves)
        ratios |= {"of_limit": ratios["of_copies"] / host} if copies else {}
        return {"chosen": name, "seconds": took, "busy": count, "of_halves": halves, **ratios}

    return {
        "best": found.best(ran),
        "host": host,
        "failed": dict(chain(*(failed.items() for _, _, failed in compilations))),
        "measured": [figures(name, took, count) for (name, took), count in zip(chosen, busy_counts, strict=True)],
        "predicted": [figures(predicted)],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Places and measures the models, and prints the figures. arguments: of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--models", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=selection.SECONDS)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--busy", type=int, nargs="+", default=[0])
    parser.add_argument("--latency", dest="objective", action="store_const", const="latency", default="throughput")
    parser.add_argument("--memory", type=float)
    parser.add_argument("--jobs", type=int, default=1)
    add_output(parser, "JSON of all figures")
    args = parser.parse_args(arguments)
    rows = []
    devices = unlike(args.objective) if args.bf16 else declared()
    with (
        mock.patch.dict("os.environ", {virtual.VIRTUAL_DEVICES_VARIABLE: devices}),
        on_pairs_of_cores(args.jobs, warnings_shown=False) as pool,
        ThreadPoolExecutor(1 if args.jobs == 1 else args.models) as models,
    ):
        print(f"seed {args.seed}\n{'':28} {'':>9} {'best':>8} {'luckiest':>8} {'single':>8} {'copies':>8} {'limit':>8}")
        each = [models.submit(judged, pool, args, number) for number in range(args.models)]
        for one, ran in zip(drawn(args.seed, args.models), each, strict=True):
            try:
                rows.append({"model": one.name, **ran.result()})
            except RunError as error:  # too little memory for this one
                print(f"{one.name:28} {error}", flush=True)
                continue
            if args.output:
                write_json(args.output, {"seed": args.seed, "about": about(), "models": rows})
            for how in ("measured", "predicted"):
                for figures in rows[-1][how]:
                    cells = " ".join(f"{figures.get(key, math.nan):8.3f}" for key in FIGURES)
                    took = "" if figures["seconds"] is None else f", {figures['seconds']:.0f} s"
                    took += f" beside {figures['busy']}" if figures["busy"] else ""
                    print(f"{one.name:28} {how:>9} {cells}  {figures['chosen']}{took}", flush=True)
    for how, count in [*(("measured", count) for count in args.busy), ("predicted", 0)]:
        known = [figures for row in rows for figures in row[how] if figures["busy"] == count]
        near = sum(figures["of_best"] >= NEAR for figures in known)
        print(f"{how} beside {count} busy processes: {near} of {len(known)} within {1 - NEAR:.0%} of the best")
        columns = [[one[key] for one in known if key in one] or [math.nan] for key in FIGURES]
        means = " ".join(f"{statistics.geometric_mean(ratios):8.3f}" for ratios in columns)
        worst = " ".join(f"{min(ratios):8.3f}" for ratios in columns)
        print(f"{'geometric mean':28} {how:>9} {means}\n{'worst':28} {how:>9} {worst}")
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
