"""One run of a contestant on a problem under a budget, and many of them, with what a file has already."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from benchmarks.common.contestants import Contestant
from benchmarks.common.machine import about
from benchmarks.common.output import stored
from benchmarks.common.workers import in_processes
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.utils.errors import RunError, UserError, one_line
from research.baselines.budget import Budget, Environment, Judge

T = TypeVar("T", bound=Hashable)
R = TypeVar("R")

SAVE_EVERY = 30.0
"""Seconds after which what runs have found is saved, so that an interrupted benchmark goes on."""

TIE = 0.005
"""Placements whose costs differ by no more, as a share, are tied: what `ov_hsdag.place` needs to prefer a split."""


def run(
    problem: PlacementProblem, contestant: Contestant, budget: Budget, *, seed: int = 0, judge: Judge | None = None
) -> dict[str, Any]:
    """Lets a contestant place a problem within a budget, which the environment keeps.

    contestant: who places it. budget: of evaluations and of processor seconds. seed: of the contestant. judge: of
    placements; None: the simulator. Returns a dict. us: of the best placement, µs; None where there is none, and then
    `why` says why. evaluations, seconds: that were spent. devices: how many the placement uses. placement: the bytes of
    its device numbers as hexadecimal digits.
    """
    environment = Environment(problem, budget, judge=judge)
    why = ""
    try:
        environment.run(contestant.make(), seed)
    except ImportError as error:
        why = f"not installed: {one_line(error)}"
    except (RunError, UserError, RuntimeError, MemoryError) as error:
        why = one_line(error) or type(error).__name__
    best = environment.best
    spent = {"evaluations": environment.evaluations, "seconds": round(environment.seconds, 3)}
    if best is None:
        return {"us": None, "why": why or _why(environment), **spent}
    return {
        "us": best.cost * 1e6,
        "why": why,
        **spent,
        "devices": len(np.unique(best.placement)),
        "placement": best.placement.tobytes().hex(),
    }


def _why(environment: Environment) -> str:
    limit = environment.budget.seconds
    if not environment.evaluations:
        late = limit is not None and environment.seconds >= limit
        return f"no placement within {limit:g} s" if late else "finds no placement"
    tried = environment.evaluations
    return "infeasible" if tried == 1 else f"infeasible, all {tried} that it tried"


# Why a run has no figure that another environment may have.
_NOT_INSTALLED = "not installed"


def add_keep(parser: argparse.ArgumentParser) -> None:
    """Adds the option --keep."""
    parser.add_argument(
        "--keep",
        nargs="*",
        metavar="ROW",
        help="runs that the file of --output has, of the same settings, are not made again, but those of these rows",
    )


def earlier(path: Path | None, settings: Mapping[str, Any], keep: Collection[str] | None) -> Mapping[str, Any]:
    """What an earlier result has.

    Args:
        path: its file, which --output names; None: there is none.
        settings: what it must have been made with.
        keep: what --keep says: rows that are left out of it; None: nothing is kept.

    Returns:
        The result, empty where there is none.
    """
    found = None if keep is None else stored(path)
    return _without(found, keep or ()) if found is not None and found.get("settings") == settings else {}


def _without(tree: Any, rows: Collection[str]) -> Any:
    if isinstance(tree, Mapping):
        return {key: _without(value, rows) for key, value in tree.items() if key not in rows}
    return tree


class Runs(Generic[T, R]):
    """Runs of tasks on all cores of this machine, without those that are known: how many, and seconds of wall time."""

    def __init__(
        self,
        function: Callable[[T], R],
        known: Callable[[T], R | None],
        save: Callable[[dict[T, R]], None] | None = None,
    ) -> None:
        """Takes the function that makes a run, and the results that are known.

        Args:
            function: makes a run.
            known: a run's result where it is known; runs of methods that were not installed do not count.
            save: is called with the results so far, every `SAVE_EVERY` seconds.
        """
        self.seconds, self.made = 0.0, 0
        self._function, self._known, self._save = function, known, save

    def of(self, tasks: Collection[T]) -> dict[T, R]:
        """Results of tasks, in their order."""
        begin = saved = time.perf_counter()
        results = {task: result for task in tasks if (result := self._known(task)) is not None}
        lacking = [task for task in tasks if task not in results or _lacks(results[task])]
        for number, result in enumerate(in_processes(self._function, lacking), start=1):
            results[lacking[number - 1]] = result
            now = time.perf_counter()
            self.made += 1
            self.seconds += now - begin
            begin = now
            if number % 100 == 0 or number == len(lacking):
                print(f"{number}/{len(lacking)}", file=sys.stderr, flush=True)
            if self._save is not None and now - saved > SAVE_EVERY:
                self._save(results)
                saved = now
        return {task: results[task] for task in tasks}


def _lacks(result: Any) -> bool:
    return isinstance(result, Mapping) and str(result.get("why", "")).startswith(_NOT_INSTALLED)


def made(earlier: Mapping[str, Any], runs: Runs[Any, Any], cells: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """`about` of a result: with the time of all runs, those of an earlier one included.

    earlier: whose runs were kept; nothing where there is none. runs: that were made. cells: all results, with times.
    """
    before = earlier.get("about", {})
    return {
        **about(),
        "wall_seconds": round(runs.seconds + before.get("wall_seconds", 0)),
        "processor_seconds": round(sum(cell["seconds"] or 0.0 for cell in cells)),
    }
