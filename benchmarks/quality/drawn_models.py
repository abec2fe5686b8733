"""Thirteen models whose sizes a seed draws, on equal and on unlike devices: problems that no constant was chosen on.

Nine are of the families of `benchmarks.field.unseen`, in turn; four are decoders with states whose queries share keys
and values in different ways, one of them with experts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from benchmarks.common.machine import about
from benchmarks.common.output import stored
from benchmarks.common.workers import in_processes
from benchmarks.field.unseen import drawn
from ov_hsdag.kit.decoder import DecoderSize, decoder
from ov_hsdag.model.colocation import split_rule
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.storage.files import write_json
from ov_hsdag.training.corpus import assemble
from research.corpus import device_set, extract
from tests.decoders import RandomWeights

SEED = 20261128
"""Default seed of the sizes. No constant of the search was chosen on its models."""

DEVICES: dict[str, tuple[str, ...]] = {
    "four equal CPU devices": ("cpu_core",) * 4,
    "eight equal CPU devices": ("cpu_core",) * 8,
    "two GPUs and a CPU": ("flex_170", "flex_170", "xeon_platinum_8480"),
}
"""Built-in profiles of the devices, by what tables call them."""

FROM_FAMILIES = 9
"""Models of the families of `benchmarks.field.unseen`."""

VOCABULARY = 1000
"""Tokens of the decoders: few, as nothing but its time counts and embeddings take most of the memory."""


@dataclass(frozen=True, eq=False)
class DrawnProblem:
    """A drawn model on some devices, for throughput."""

    model: str
    devices: str  # of `DEVICES`
    problem: PlacementProblem


def drawn_problems(models: int | None = None, seed: int = SEED) -> Iterator[DrawnProblem]:
    """The problems, by model.

    Args:
        models: how many models, the first ones; None for all.
        seed: of the sizes.
    """
    rule = split_rule(ov.__version__)
    for name, build in list(_builders(seed).items())[:models]:
        print(name, file=sys.stderr, flush=True)
        template = extract(build(), rule)
        for devices, profiles in DEVICES.items():
            names, profile = device_set(profiles)
            unlimited = np.full(len(names), -1, np.int64)
            yield DrawnProblem(name, devices, assemble(template, names, profile, "throughput", unlimited))


def record_of(
    run: Callable[[DrawnProblem], dict[str, Any]],
    problems: Iterator[DrawnProblem],
    settings: dict[str, Any],
    output: Path | None,
) -> dict[str, Any]:
    """A benchmark's record: results of all problems ("cells"), with machine, time and settings.

    Results are made in processes of their own; those that a file has of the same settings are taken from it.

    Args:
        run: gives a result, with "model" and "devices", of a problem; a function of a module of this package.
        problems: that are wanted.
        settings: that results depend on.
        output: the file, which is written after each result; None: nothing is written.
    """
    begin = time.perf_counter()
    earlier = stored(output) or {}
    results: list[dict[str, Any]] = list(earlier["cells"]) if earlier.get("settings") == settings else []
    present = {(result["model"], result["devices"]) for result in results}
    lacking = [problem for problem in problems if (problem.model, problem.devices) not in present]
    for result in in_processes(run, lacking):
        results.append(result)
        print(f"{result['model']} | {result['devices']}", file=sys.stderr, flush=True)
        if output is not None:
            write_json(output, {"settings": settings, "cells": results})
    made = {**about(), "wall_seconds": round(time.perf_counter() - begin)}
    return {"about": made, "settings": settings, "cells": results}


def _builders(seed: int) -> dict[str, Callable[[], ov.Model]]:
    """What makes each model, by its name; decoders, which take the least time to make, first."""
    generator = np.random.default_rng(seed)
    builders: dict[str, Callable[[], ov.Model]] = {}
    for kind in ("multi-query", "grouped", "multi-head", "experts"):
        size = _drawn_decoder(generator, kind)
        builders[f"decoder, {kind}, {size.layers} layers of {size.hidden}"] = partial(
            decoder, size, RandomWeights(seed)
        )
    return builders | {model.name: model.build for model in drawn(seed, FROM_FAMILIES)}


def _drawn_decoder(generator: np.random.Generator, kind: str) -> DecoderSize:
    heads = 2 * int(generator.integers(2, 6))
    head = int(generator.choice([32, 64]))
    shared = {"multi-query": 1, "grouped": heads // 2, "multi-head": 0, "experts": 2}[kind]
    return DecoderSize(
        layers=int(generator.integers(8, 20)),
        heads=heads,
        head=head,
        inner=heads * head * int(generator.integers(2, 5)) // (4 if kind == "experts" else 1),
        vocabulary=VOCABULARY,
        shared=shared,
        experts=8 if kind == "experts" else 0,
    )
