"""Runs contestants on problems under a budget, without the runs that an earlier result file has.

A run is one contestant, problem and seed. `Runs` makes many on all cores and saves them now and then, so that an
interrupted benchmark goes on.
"""

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
"""Seconds between two saves of the results of runs, so that an interrupted benchmark goes on."""

TIE = 0.005
"""Share by which costs of placements must differ to count as different: `ov_hsdag.place` prefers a split from this."""


def run(
    problem: PlacementProblem, contestant: Contestant, budget: Budget, *, seed: int = 0, judge: Judge | None = None
) -> dict[str, Any]:
    """Lets a contestant place a problem within a budget.

    Args:
        problem: the problem.
        contestant: the method.
        budget: limits of evaluations and of processor seconds.
        seed: seed of the contestant.
        judge: computes costs of placements; None for the simulator.

    Returns:
        A dictionary: `us`, cost of the best placement in µs, None without one; `why`, the reason if there is none or
        the method failed, else ""; `evaluations` and processor `seconds` that were spent. With a placement also
        `devices`, the number of devices that it uses, and `placement`, its device numbers as hexadecimal digits, two
        for each group.
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
    """The reason why an environment has no feasible placement."""
    limit = environment.budget.seconds
    if not environment.evaluations:
        late = limit is not None and environment.seconds >= limit
        return f"no placement within {limit:g} s" if late else "finds no placement"
    tried = environment.evaluations
    return "infeasible" if tried == 1 else f"infeasible, all {tried} that it tried"


# Begin of the reason of runs that another environment may make: a package is missing here.
_NOT_INSTALLED = "not installed"


def add_keep(parser: argparse.ArgumentParser) -> None:
    """Adds the option --keep [ROW …]: runs of an earlier result are kept, except those of the named rows."""
    parser.add_argument(
        "--keep",
        nargs="*",
        metavar="ROW",
        help="runs that the file of --output has, of the same settings, are not made again, but those of these rows",
    )


def earlier(path: Path | None, settings: Mapping[str, Any], keep: Collection[str] | None) -> Mapping[str, Any]:
    """Reads an earlier result whose runs are kept.

    Args:
        path: its file, which --output names; None for no file.
        settings: the settings; a result of other settings is ignored.
        keep: value of --keep: names of rows that are removed from the result; None to keep nothing.

    Returns:
        The result without these rows; empty if there is none.
    """
    found = None if keep is None else stored(path)
    return _without(found, keep or ()) if found is not None and found.get("settings") == settings else {}


def _without(tree: Any, rows: Collection[str]) -> Any:
    """A tree of dictionaries without the keys in `rows`, at any depth."""
    if isinstance(tree, Mapping):
        return {key: _without(value, rows) for key, value in tree.items() if key not in rows}
    return tree


class Runs(Generic[T, R]):
    """Runs tasks on all cores of this machine, except those whose results are known.

    Attributes:
        made: number of runs that were made.
        seconds: wall time that they took, s.
    """

    def __init__(
        self,
        function: Callable[[T], R],
        known: Callable[[T], R | None],
        save: Callable[[dict[T, R]], None] | None = None,
    ) -> None:
        """Prepares runs; `of` makes them.

        Args:
            function: makes a run of a task, in another process.
            known: returns the known result of a task, or None. Results of methods that were not installed do not count
                as known.
            save: called with the results so far, every `SAVE_EVERY` seconds.
        """
        self.seconds, self.made = 0.0, 0
        self._function, self._known, self._save = function, known, save

    def of(self, tasks: Collection[T]) -> dict[T, R]:
        """Makes the runs that are not known. Returns the results of all tasks, in their order."""
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
    """Whether a result only says that a package was not installed."""
    return isinstance(result, Mapping) and str(result.get("why", "")).startswith(_NOT_INSTALLED)


def made(earlier: Mapping[str, Any], runs: Runs[Any, Any], cells: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The `about` of a result, with the time of all runs, also of kept ones.

    Args:
        earlier: the result whose runs were kept; empty for none.
        runs: the runs that were made.
        cells: the results of all runs, with their processor `seconds`.

    Returns:
        `machine.about()`, `wall_seconds` and `processor_seconds`.
    """
    before = earlier.get("about", {})
    return {
        **about(),
        "wall_seconds": round(runs.seconds + before.get("wall_seconds", 0)),
        "processor_seconds": round(sum(cell["seconds"] or 0.0 for cell in cells)),
    }
