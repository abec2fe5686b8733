"""Whether the learned baselines learn: placements that they draw, and the best of them, against their own start.

Problems are models of the zoo on the devices of HSDAG's paper (`corpus.HELD_OUT_SETS["xeon+flex"]`), simulated, for
throughput, where the best single device is far from the best split. Every arm measures as many placements. The arms of
policies that transfer begin with a policy trained on models of other families (`TRAINED_ON`), once for each seed:
zero-shot is its likeliest placement without learning. GO's multi-task arm and its single-task variant decide on a
runtime that runs parts of four requests at once (`ov_hsdag.baselines.schedule`), and are compared there.

    python -m benchmarks.learned_baselines

Results are kept in benchmarks/results/baselines_learn.json; what is there is not run again unless the settings changed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.machine import about
from ov_hsdag.baselines.budget import Budget, Environment
from ov_hsdag.baselines.go import GO
from ov_hsdag.baselines.placeto import Placeto
from ov_hsdag.baselines.rnn import RNN
from ov_hsdag.baselines.schedule import Scheduler
from ov_hsdag.baselines.transfer import TransferablePolicy
from ov_hsdag.placers.multilevel import search
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.training import corpus
from ov_hsdag.utils.files import write_json

RESULTS = Path(__file__).parent / "results" / "baselines_learn.json"

MODELS = ("resnet50", "bert-base", "t5-encoder-base")
TRAINED_ON = ("vit-base", "convnext-tiny", "inception-v1", "mobilevit-s", "gpt2-base", "whisper-encoder-base")
DEVICES = "xeon+flex"
OBJECTIVE = "throughput"
REQUESTS = 4

# Parts of a run whose median costs are kept, to see learning.
_PARTS = 20


@dataclass(frozen=True, eq=False)
class Arm:
    """A way to place.

    Attributes:
        name: in tables.
        make: a new baseline.
        trained: begins with a policy that was trained on `TRAINED_ON`.
        episodes: see the baselines; None: as many as the budget allows.
        scheduled: decides for the scheduling runtime.
    """

    name: str
    make: Callable[[], RNN | Placeto | GO]
    trained: bool = False
    episodes: int | None = None
    scheduled: bool = False


ARMS = (
    Arm("RNN placer", RNN),
    Arm("Placeto", Placeto),
    Arm("Placeto, zero-shot", Placeto, trained=True, episodes=0),
    Arm("Placeto, fine-tuned", Placeto, trained=True),
    Arm("GO", GO),
    Arm("GO, operations not grouped", lambda: GO(colocate=False)),
    Arm("GO, zero-shot", GO, trained=True, episodes=0),
    Arm("GO, fine-tuned", GO, trained=True),
    Arm("GO, single task, scheduled", GO, scheduled=True),
    Arm("GO, multi-task, scheduled", lambda: GO(multi_task=True), scheduled=True),
)


def load(folder: Path, model: str) -> PlacementProblem:
    """Returns a model's problem."""
    (path,) = folder.glob(f"*/{model}.npz")
    names, profile = corpus.device_set(corpus.HELD_OUT_SETS[DEVICES])
    return corpus.assemble(PlacementProblem.load(path), names, profile, OBJECTIVE)


class Recorder:
    """A judge that remembers what it said."""

    def __init__(self, problem: PlacementProblem, scheduled: bool) -> None:
        self._problem = problem
        self._scheduler = Scheduler(problem, REQUESTS) if scheduled else None
        self.costs: list[float] = []

    def __call__(self, placements: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Costs of placements, seconds."""
        scores = (
            self._problem.scores(placements) * 1e-6 if self._scheduler is None else self._scheduler.costs(placements)
        )
        self.costs += scores.tolist()
        return scores

    def parts(self) -> list[float | None]:
        """Median cost of each part of the run, µs; None: infeasible."""
        medians = [float(np.median(part)) * 1e6 for part in np.array_split(self.costs, _PARTS) if len(part)]
        return [round(value, 2) if np.isfinite(value) else None for value in medians]


def run(arm: Arm, problem: PlacementProblem, seed: int, evaluations: int, trained: RNN | Placeto | GO | None) -> Any:
    """One placing: JSON-able."""
    recorder = Recorder(problem, arm.scheduled)
    environment = Environment(problem, Budget(evaluations), judge=recorder)
    baseline = trained if trained is not None else arm.make()
    begin = time.process_time()
    options = {} if arm.episodes is None else {"episodes": arm.episodes}
    best = environment.run(baseline, seed, **options)
    singles = recorder(np.stack([problem.single(device) for device in range(len(problem.devices))]))
    del recorder.costs[-len(singles) :]
    start = np.asarray(recorder.costs[:10])
    return {
        "evaluations": environment.evaluations,
        "start": float(np.median(start)) * 1e6 if np.isfinite(np.median(start)) else None,
        "parts": recorder.parts(),
        "best": None if best is None else best.cost * 1e6,
        "found_at": None if best is None else best.evaluations,
        "curve": [(count, cost * 1e6) for count, _, cost in environment.curve],
        "single": float(singles.min()) * 1e6,
        "seconds": round(time.process_time() - begin, 2),
    }


def pretrained(arm: Arm, folder: Path, seed: int, evaluations: int) -> RNN | Placeto | GO:
    """A baseline that has learned on other families, `evaluations` on each model."""
    baseline = arm.make()
    environments = [Environment(load(folder, model), Budget(evaluations)) for model in TRAINED_ON]
    assert isinstance(baseline, TransferablePolicy)
    baseline.train(environments, seed)
    return baseline


def missing(
    arms: Sequence[Arm], models: Sequence[str], seeds: int, evaluations: int, records: list[dict[str, Any]]
) -> Iterator[tuple[Arm, int, list[str]]]:
    """What the records lack: models of each arm and seed."""
    known = {(r["model"], r["arm"], r["seed"]): r["settings"] for r in records}
    for seed in range(seeds):
        for arm in arms:
            settings = settings_of(arm, evaluations)
            lacking = [model for model in models if known.get((model, arm.name, seed)) != settings]
            if lacking:
                yield arm, seed, lacking


def settings_of(arm: Arm, evaluations: int) -> str:
    """Changes with what decides a run, the code aside."""
    return f"{arm.make()!r}, {evaluations} evaluations"


def table(records: list[dict[str, Any]]) -> Table:
    """All models, arm by arm."""
    shown = Table(title="µs per inference, median of seeds (worst)", box=None)
    columns = (
        "model",
        "arm",
        "seeds",
        "start",
        "last drawn",
        "best",
        "best single",
        "best known",
        "s of processor time",
    )
    for column in columns:
        shown.add_column(column, justify="left" if column in ("model", "arm") else "right")
    for model in dict.fromkeys(record["model"] for record in records):
        for arm in ARMS:
            of_arm = [r for r in records if (r["model"], r["arm"]) == (model, arm.name)]
            if not of_arm:
                continue
            best = [np.inf if r["best"] is None else r["best"] for r in of_arm]
            starts = [np.inf if r["start"] is None else r["start"] for r in of_arm]
            last = [np.inf if r["parts"][-1] is None else r["parts"][-1] for r in of_arm]
            known = "" if arm.scheduled else f"{of_arm[0]['known']:.0f}"
            shown.add_row(
                model,
                arm.name,
                str(len(of_arm)),
                f"{np.median(starts):.0f}",
                f"{np.median(last):.0f}",
                f"{np.median(best):.0f} ({max(best):.0f})",
                f"{of_arm[0]['single']:.0f}",
                known,
                f"{np.median([r['seconds'] for r in of_arm]):.1f}",
            )
    return shown


def main() -> None:
    """Runs what is missing and prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--arms", nargs="+", choices=[arm.name for arm in ARMS], help="default: all")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--evaluations", type=int, default=2000, help="of each placing; as many on each training model")
    parser.add_argument("--corpus", type=Path, help="folder of graphs, made where it lacks one")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arms = [arm for arm in ARMS if not arguments.arms or arm.name in arguments.arms]
    settings = {"evaluations": arguments.evaluations, "seeds": arguments.seeds, "requests": REQUESTS}
    records: list[dict[str, Any]] = []
    if arguments.output.exists():
        records = json.loads(arguments.output.read_text())["runs"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.corpus or Path(temporary)
        corpus.make(folder, [*arguments.models, *TRAINED_ON], report=lambda text: print(text, file=sys.stderr))
        problems = {model: load(folder, model) for model in arguments.models}
        known = {model: search(problem, max_moves=2_000_000).score for model, problem in problems.items()}
        policies: dict[tuple[type, int], RNN | Placeto | GO] = {}
        for arm, seed, lacking in missing(arms, arguments.models, arguments.seeds, arguments.evaluations, records):
            trained = None
            if arm.trained:
                key = (type(arm.make()), seed)
                if key not in policies:
                    policies[key] = pretrained(arm, folder, seed, arguments.evaluations)
                trained = policies[key]
            for model in lacking:
                result = run(arm, problems[model], seed, arguments.evaluations, trained)
                record = {"model": model, "arm": arm.name, "seed": seed, "known": known[model]}
                record |= {"settings": settings_of(arm, arguments.evaluations), **result}
                records = [r for r in records if (r["model"], r["arm"], r["seed"]) != (model, arm.name, seed)]
                records.append(record)
                print(model, arm.name, seed, record["start"], record["best"], file=sys.stderr, flush=True)
                write_json(arguments.output, {"about": about(), "settings": settings, "runs": records})
    Console(width=150).print(table(records))


if __name__ == "__main__":
    main()
