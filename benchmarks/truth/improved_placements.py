"""Does `ov-hsdag improve` replace placements by faster ones, and leave alone what nothing beats?

    python -m benchmarks.truth.improved_placements [MODEL …] [--budget 6m] [--rounds 40] [--wrong-profile]

Each model is saved, and loaded by the device name ``HSDAG:CPU_A,CPU_B`` for throughput into an empty cache, which keeps
the predicted placement. Then ``ov-hsdag improve`` runs as a user runs it, with one budget for all models. At last the
placements before and after, each device alone, HETERO's own choices, a copy on each device and every placer's placement
run in turns, in trials that `improve` did not see. The two devices are one-core CPU devices, in bf16 and in f32 where
the processor has bf16. With --wrong-profile the loads are told that the first device is a core with AMX, as if a file
of another machine had been taken along: what they keep is badly balanced, and `improve` has something to find.

Exit status 1 where a replacement's later rate over the kept one's is below the interval that `improve` printed, or a
placement that was left alone is beaten by another placement of the operations by more than `improve` asks for a
replacement. Copies are shown and do not count: a program that names ``HSDAG:`` runs one compiled model.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import openvino as ov

from benchmarks.common.machine import about
from benchmarks.common.output import add_output
from benchmarks.common.tables import markdown, publish
from benchmarks.common.workers import start
from benchmarks.field.unseen import DEVICES, unlike
from ov_hsdag.devices import virtual
from ov_hsdag.measuring.choice import Ratio, infer
from ov_hsdag.measuring.comparison import Comparison
from ov_hsdag.measuring.process import Candidate
from ov_hsdag.placing.improvement import PROVEN, completed_affinity
from ov_hsdag.placing.placement_cache import FOLDER_VARIABLE, CacheEntry, PlacementCache
from ov_hsdag.placing.rivals import contenders
from ov_hsdag.problem.copies import COPIES
from ov_hsdag.problem.pricing import Session
from ov_hsdag.storage.files import write_json
from research.zoo.catalog import ZOO

SMOKE_ARGUMENTS = "squeezenet --budget 40s --rounds 2 --no-finetune"
"""Its quickest arguments, for `make figures-smoke`."""

MODELS = ("resnet50", "bert-base", "segformer-b0")
"""A convolutional network, an encoder and a segmentation model of real size."""

OBJECTIVE = "throughput"

WRONG_PROFILE = {"version": 1, "devices": {"CPU_A": {"builtin": "cpu_core_amx"}, "CPU_B": {"builtin": "cpu_core"}}}
"""The profile of --wrong-profile."""

PROFILE_VARIABLE = "OV_HSDAG_PROFILE"
"""The environment variable for `HSDAG_PROFILE` of loads by device name."""

BEFORE, AFTER = "kept before", "kept now"

ROOT = Path(__file__).parents[2]

OV_HSDAG = "from ov_hsdag.cli import main; main()"
"""The console script, of the package that this process uses."""


def load_by_name(paths: Sequence[str]) -> None:
    """Loads models for throughput by the device name; each load keeps its placement."""
    core = ov.Core()
    for path in paths:
        core.compile_model(path, f"HSDAG:{','.join(DEVICES)}", {"PERFORMANCE_HINT": "THROUGHPUT"})


def run(command: Sequence[str]) -> str:
    """Runs a command; returns its standard output."""
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True).stdout


def kept_placements() -> dict[str, CacheEntry]:
    """Entries of the user's cache by the file that their model was read from."""
    cache = PlacementCache.default("")
    if cache is None:
        raise RuntimeError("the cache cannot be used")
    return {entry.model.source: entry for entry in cache.entries() if entry.model.source}


def compare(path: str, before: CacheEntry, after: CacheEntry, rounds: int) -> dict[str, dict[str, float]]:
    """Runs the kept placements and all others in turns.

    Args:
        path: path of the IR.
        before: entry of the cache before `improve`.
        after: entry of the cache after it.
        rounds: largest number of rounds; what is surely worse than the best has fewer.

    Returns:
        The rate over that of the placement before (`ratio`, `low`, `high`: the median and the 95% interval), by name:
        of the placement now, unless it is the one before, of copies, and of the best of the other placements.
    """
    core = ov.Core()
    model = core.read_model(path)
    session = Session.of(DEVICES, core, memory=before.limits)
    problem = session.price(session.analyse(model), OBJECTIVE).problem
    others, _ = contenders(problem, DEVICES, (), by_hand=False)
    affinities = {BEFORE: completed_affinity(problem, model, before.placement)}
    now = completed_affinity(problem, model, after.placement)
    if now != affinities[BEFORE]:
        affinities[AFTER] = now
    candidates = {name: Candidate.placed(DEVICES, affinity) for name, affinity in affinities.items()}
    placements = [problem.placement_of(affinity).tolist() for affinity in affinities.values()]
    for other in others:
        if not other.same_as and (other.placement is None or other.placement.tolist() not in placements):
            candidates[other.name] = other.candidate
    first = _ratios(core, model, candidates, rounds)
    # The best of several is partly luck, so it is compared in trials of its own.
    fastest = max((name for name in first if name not in (BEFORE, AFTER, COPIES)), key=lambda name: first[name].median)
    finalists = {name: candidates[name] for name in candidates if name in (BEFORE, AFTER, COPIES, fastest)}
    ratios = _ratios(core, model, finalists, rounds)
    return {name: {"ratio": one.median, "low": one.low, "high": one.high} for name, one in ratios.items()}


def _ratios(core: ov.Core, model: ov.Model, candidates: Mapping[str, Candidate], rounds: int) -> dict[str, Ratio]:
    """Runs candidates in turns; returns the rate of each that ran, over that of `BEFORE`."""
    with Comparison(model, DEVICES, candidates, OBJECTIVE, core) as comparison:
        if BEFORE not in comparison.ready:
            raise RuntimeError(f"the kept placement does not run: {comparison.failed.get(BEFORE)}")
        posterior = infer(comparison.trials(rounds=rounds, halving=True))
    return {name: posterior.ratio(name, BEFORE) for name in candidates if name in posterior.names}


def best_other(row: Mapping[str, Any]) -> str:
    """Name of the fastest placement other than those that are or were kept; copies are no placement."""
    names = [name for name in row["later"] if name not in (BEFORE, AFTER, COPIES)]
    return max(names, key=lambda name: row["later"][name]["ratio"])


def failures(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What must not be, a line each."""
    lines = []
    for row in rows:
        later = row["later"]
        if row["replaced"]:
            if AFTER in later and later[AFTER]["high"] < row["gained"]["ci"][0]:
                lines.append(f"{row['model']}: {later[AFTER]['ratio']:.2f} times later, less than was said")
        elif later[best_other(row)]["low"] > PROVEN:
            lines.append(f"{row['model']}: left alone, and {best_other(row)} is faster")
    return lines


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as Markdown."""

    def of(figures: Mapping[str, float] | None) -> str:
        return "" if figures is None else f"{figures['ratio']:.2f} ({figures['low']:.2f} to {figures['high']:.2f})"

    lines = []
    for row in rows:
        gained, later = row["gained"], row["later"]
        said = gained and {"ratio": gained["ratio"], "low": gained["ci"][0], "high": gained["ci"][1]}
        other = best_other(row)
        done = "replaced" if row["replaced"] else row["why"]
        lines.append(
            [row["model"], done, of(said), of(later.get(AFTER)), f"{of(later[other])}, {other}", of(later.get(COPIES))]
        )
    return markdown(["", "improve", "gained, it says", "gained, later", "best other placement", "copies"], lines)


def main() -> int:
    """Makes the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of the zoo (default {' '.join(MODELS)})")
    parser.add_argument("--budget", default="6m", help="of improve, for all models (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=40, help="of the later comparison (default %(default)s)")
    parser.add_argument("--no-finetune", action="store_true", help="improve without fine-tuning the policy")
    parser.add_argument("--wrong-profile", action="store_true", help="place by the profile of another machine")
    add_output(parser, "JSON of the results, and the table in Markdown beside it")
    options = parser.parse_args()
    os.environ[virtual.VIRTUAL_DEVICES_VARIABLE] = unlike(OBJECTIVE)
    names = options.models or MODELS
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        os.environ[FOLDER_VARIABLE] = temporary
        if options.wrong_profile:
            os.environ[PROFILE_VARIABLE] = str(Path(temporary) / "profile.json")
            write_json(Path(os.environ[PROFILE_VARIABLE]), WRONG_PROFILE)
        paths = {name: str(Path(temporary) / f"{name}.xml") for name in names}
        for name, path in paths.items():
            ov.save_model(ZOO[name].build(), path, compress_to_fp16=False)
        code = f"import sys; from {__name__} import load_by_name; load_by_name(sys.argv[1:])"
        run([sys.executable, "-c", code, *paths.values()])
        before = kept_placements()
        command = [sys.executable, "-c", OV_HSDAG, "improve", "--budget", options.budget, "--json"]
        begin = time.monotonic()
        improved = json.loads(run(command + ["--no-finetune"] * options.no_finetune))
        seconds = time.monotonic() - begin
        results, after = {entry["source"]: entry for entry in improved["entries"]}, kept_placements()
        for name, path in paths.items():
            kept = {key: results[path][key] for key in ("predicted_gain", "measured_gain", "gained", "replaced", "why")}
            rows.append({"model": name, **kept, "later": compare(path, before[path], after[path], options.rounds)})
            print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    settings = {
        "budget": options.budget,
        "rounds": options.rounds,
        "finetune": not options.no_finetune,
        "wrong_profile": options.wrong_profile,
    }
    result = {"about": about(), "settings": settings, "improving_seconds": seconds, "rows": rows}
    publish(options.output, result, {"Kept placements, improved, and compared later:": table(rows)})
    lines = failures(rows)
    print(*lines, sep="\n", file=sys.stderr)
    return int(bool(lines))


if __name__ == "__main__":
    start(__spec__)
