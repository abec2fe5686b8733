"""How near `place` comes to the best on models that no table has: architectures whose sizes a seed draws.

    python -m benchmarks.field.unseen [--seed N] [--models N] [--seconds S] [--rounds N] [--output FILE.json]

Two one-core devices made of the CPU plugin, f32, throughput. Each model is placed by prediction and by measuring. All
candidates that measuring tried, and a copy on each device, then run in long trials in turns, with two loops that do
nothing but count on the two cores between them: what the slower one counts, over the mean of both, is what the host
lets a pair have that is in balance. Printed: what was placed over (a) the best candidate, (b) copies, (c) copies times
that share. The shortest version that means something is three models and 20 rounds, about ten minutes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.common.machine import about
from ov_hsdag.devices import virtual
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring import choice
from ov_hsdag.measuring.comparison import Comparison
from ov_hsdag.measuring.process import Candidate
from ov_hsdag.model.normalize import normalize
from ov_hsdag.placing import selection
from ov_hsdag.placing.place import place
from ov_hsdag.problem.copies import COPIES
from ov_hsdag.storage.files import write_json
from research.zoo.models.base import ZooModel, model
from research.zoo.models.inputs import Input, image, inputs, text
from research.zoo.models.recipes import Transformers

DEVICES = DeviceSet(("CPU_A", "CPU_B"))
DECLARED = ";".join(f"{name}:INFERENCE_NUM_THREADS=1,INFERENCE_PRECISION_HINT=f32" for name in DEVICES)
TRIAL = 0.5


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
    """What transformers have in common."""
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
    """So many models of this seed, the families in turn."""
    draw = np.random.default_rng([seed, 30])
    found = []
    for number in range(count):
        family = list(FAMILIES)[number % len(FAMILIES)]
        recipe, given = FAMILIES[family](draw)
        found.append(model(f"unseen-{seed}-{number}-{family}", family, recipe, given))
    return found


def count_for(seconds: float) -> float:
    """Turns of a loop in a second of so many seconds."""
    end, turns = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        turns += 1
    return turns / seconds


def tried(one: ZooModel, core: Any, seconds: float) -> tuple[dict[str, dict[str, str]], dict[str, Any]]:
    """Distinct affinities that measuring tried, by name, with those that were chosen; and what else is told of it."""
    found: list[selection.Result] = []
    problems: list[Any] = []

    def recorded(*args: Any, **more: Any) -> selection.Result:
        problems.append(args[1])
        found.append(select(*args, **more))
        return found[-1]

    select = selection.select
    one.build()  # it is converted only once
    begin = time.perf_counter()
    with mock.patch.object(selection, "select", recorded):
        measured = place(
            one.build(), DEVICES.hetero, objective="throughput", core=core, measure=True, measure_seconds=seconds
        )
    took = time.perf_counter() - begin
    predicted = place(one.build(), DEVICES.hetero, objective="throughput", core=core)
    problem, placements = problems[0], dict(found[0].placements)
    placements["predicted"] = problem.placement_of(dict(predicted.affinity))
    distinct: dict[bytes, str] = {}
    same = {name: distinct.setdefault(placement.tobytes(), name) for name, placement in placements.items()}
    figures = {
        "chosen": measured.chosen,
        "seconds": took,
        "measured": same[measured.chosen or ""],
        "predicted": same["predicted"],
    }
    return {name: problem.affinity(placements[name]) for name in distinct.values()}, figures


def judged(one: ZooModel, core: Any, seconds: float, rounds: int) -> dict[str, Any]:
    """Ratios of what `place` chose to the best, to copies, and to what the host lets a pair in balance have."""
    affinities, figures = tried(one, core, seconds)
    normalized = one.build()
    normalize(normalized)
    candidates = {name: Candidate.placed(DEVICES, affinity) for name, affinity in affinities.items()}
    candidates |= {COPIES: Candidate.copies(DEVICES.names)}
    trials: list[choice.Round] = []
    shares: list[float] = []
    with (
        ProcessPoolExecutor(len(DEVICES)) as pool,
        Comparison(normalized, DEVICES, candidates, "throughput", core) as comparison,
    ):
        for number in range(rounds):
            trials += comparison.trials(rounds=1, seconds=TRIAL, begin=number)
            turns = list(pool.map(count_for, [TRIAL] * len(DEVICES)))
            shares.append(min(turns) / statistics.mean(turns))
        failed = dict(comparison.failed)
    found = choice.infer(trials)
    best = found.best([name for name in affinities if name not in failed])
    share = statistics.mean(shares)
    row: dict[str, Any] = {"model": one.name, **figures, "best": best, "host": share, "failed": failed}
    for how in ("measured", "predicted"):
        if figures[how] in found.names and COPIES in found.names:
            to_copies = found.ratio(figures[how], COPIES)
            row[how] = {
                "of_best": found.ratio(figures[how], best).median,
                "of_copies": to_copies.median,
                "of_copies_ci": [to_copies.low, to_copies.high],
                "of_limit": to_copies.median / share,
            }
    return row


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--models", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=selection.SECONDS)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    rows = []
    with mock.patch.dict("os.environ", {virtual.VIRTUAL_DEVICES_VARIABLE: DECLARED}):
        core = virtual.new_core()
        print(f"seed {args.seed}\n{'':28} {'':>9} {'of best':>8} {'of copies':>10} {'of limit':>9}")
        for one in drawn(args.seed, args.models):
            row = judged(one, core, args.seconds, args.rounds)
            rows.append(row)
            for how in ("measured", "predicted"):
                figures = row[how]
                if isinstance(figures, dict):
                    values = (figures["of_best"], figures["of_copies"], figures["of_limit"])
                    print(f"{one.name:28} {how:>9} {values[0]:8.3f} {values[1]:10.3f} {values[2]:9.3f}", flush=True)
    for how in ("measured", "predicted"):
        known = [row[how] for row in rows if isinstance(row[how], dict)]
        if known:
            means = [
                statistics.geometric_mean(one[key] for one in known) for key in ("of_best", "of_copies", "of_limit")
            ]
            print(f"{'geometric mean':28} {how:>9} {means[0]:8.3f} {means[1]:10.3f} {means[2]:9.3f}")
    if args.output:
        write_json(args.output, {"seed": args.seed, "about": about(), "models": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
