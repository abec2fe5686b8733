"""Draws thirteen models from a seed, on equal and on different devices: problems on which no constant was chosen.

Nine are of the families of `benchmarks.field.unseen`, in turn. Four are decoders with states whose queries share keys
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
"""Built-in profiles of the devices, by name in tables."""

FROM_FAMILIES = 9
"""Number of models of the families of `benchmarks.field.unseen`."""

VOCABULARY = 1000
"""Number of tokens of the decoders: few, as only times count and embeddings would take most of the memory."""


@dataclass(frozen=True, eq=False)
class DrawnProblem:
    """A drawn model on some devices, for throughput."""

    model: str  # name of the model
    devices: str  # key of `DEVICES`
    problem: PlacementProblem


def drawn_problems(models: int | None = None, seed: int = SEED) -> Iterator[DrawnProblem]:
    """Yields the problems, all devices of a model before the next model.

    Args:
        models: number of models, the first ones; None for all.
        seed: seed of the models' sizes.
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
    """Makes a benchmark's results in parallel processes; results that the file has of the same settings are kept.

    Args:
        run: computes the result of a problem, a dictionary with "model" and "devices"; a function of a module of this
            package.
        problems: the problems.
        settings: the settings on which results depend.
        output: the file, which is written after each result; None to write nothing.

    Returns:
        The record: the results ("cells"), "settings", and "about" the machine and time.
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
    """Functions that make the models, by name. Decoders come first, as they take the least time to make."""
    generator = np.random.default_rng(seed)
    builders: dict[str, Callable[[], ov.Model]] = {}
    for kind in ("multi-query", "grouped", "multi-head", "experts"):
        size = _drawn_decoder(generator, kind)
        builders[f"decoder, {kind}, {size.layers} layers of {size.hidden}"] = partial(
            decoder, size, RandomWeights(seed)
        )
    return builders | {model.name: model.build for model in drawn(seed, FROM_FAMILIES)}


def _drawn_decoder(generator: np.random.Generator, kind: str) -> DecoderSize:
    """Draws the sizes of a decoder. kind: how queries share keys and values, or "experts"."""
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
