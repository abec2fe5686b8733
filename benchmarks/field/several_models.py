"""Measures how good plans of several models are, on applications whose models and counts are drawn from a seed.

    python -m benchmarks.field.several_models [--seed N] [--applications N] [--rounds N] [--bf16] [--output FILE.json]
    python -m benchmarks.field.several_models whisper/ app.toml     # these applications, as `ov-hsdag plan` takes them

The devices are two made of the CPU plugin (in f32, with --bf16 the first in bf16), each bound to its own core. The
objective is throughput. Each application is planned by prediction and by measuring. The plans then run in turns with
everything on one device, each model on the device that is best for it, and whole-device assignments, in which each
model is on one device (all of them up to 16, else the best 8 by prediction and 8 drawn ones). All models of an
application run at the same time. Trials take --most seconds (600) at most; if they are long, fewer plans run. Plans
that only exchange equal devices count as one.

Printed are the rates of the measured plan over the best whole-device assignment, over everything on the best device,
and over each model placed by itself. (The best is chosen in one half of the rounds and measured in the other, as the
best of many is partly luck.) The same is printed for the predicted plan. "both" is the sum of the rates of the single
devices over the higher of the two, which is about the largest rate of a plan. Over all plans that ran, the median error
of predicted ratios and Spearman's rank correlation are printed, and what failed.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.common.bound_worker import BoundWorker
from benchmarks.common.machine import about
from benchmarks.common.output import add_output
from benchmarks.common.ranks import attainable, halves, spearman
from benchmarks.common.workers import start
from benchmarks.field.unseen import DEVICES, declared, drawn, unlike
from ov_hsdag.applications import planning
from ov_hsdag.applications.application_file import of_folder, read_application, to_place
from ov_hsdag.applications.plan_figures import figures_of, plan_of
from ov_hsdag.applications.plan_trials import TRIAL, candidate_of, comparison_arguments
from ov_hsdag.applications.prepared import ModelOf
from ov_hsdag.devices import virtual
from ov_hsdag.measuring import choice
from ov_hsdag.measuring.comparison import Comparison
from ov_hsdag.storage.files import write_json
from ov_hsdag.storage.model_folder import is_model_folder
from ov_hsdag.utils.errors import RunError
from ov_hsdag.utils.failures import out_of_time

SMOKE_ARGUMENTS = "--seed 1 --applications 1 --rounds 1 --most 45 --seconds 5"
"""The arguments with which this command is quickest, for `make figures-smoke`."""

MOST_WHOLE = 16


def application(seed: int, number: int) -> dict[str, ModelOf]:
    """Draws an application of two to five models, each inferred one, two or four times in a run.

    Args:
        seed: seed of all applications.
        number: number of the application.
    """
    draw = np.random.default_rng([seed, number])
    models = drawn(1000 * seed + number, int(draw.integers(2, 6)))
    order = draw.permutation(len(models))
    return {
        models[place].name: ModelOf(models[place].build(), float(draw.choice([1, 1, 2, 4]))) for place in order.tolist()
    }


def application_of(path: Path, core: Any) -> dict[str, ModelOf]:
    """Reads the models of an application's file, or of a pipeline's folder. core: reads models."""
    spec = of_folder(path, {}, None, None) if is_model_folder(path) else read_application(path)
    return to_place(spec, core.read_model)


def planned(given: dict[str, ModelOf], core: Any, measure: bool, seconds: float | None) -> tuple[Any, ...]:
    """Plans an application.

    Args:
        given: the models by name.
        core: has the devices.
        measure: whether to measure.
        seconds: time of measuring; None for the default.

    Returns:
        The arguments with which `plan_of` is called: the application, plans by name, the name of the chosen one,
        figures, and models.
    """
    with mock.patch.object(planning, "plan_of", wraps=plan_of) as recorded:
        planning.place_together(
            given, DEVICES.hetero, core=core, measure=measure, measure_seconds=seconds, start_worker=BoundWorker
        )
    return tuple(recorded.call_args.args)


def judged(
    given: Callable[[], Any], draw: Sequence[int], core: Any, seconds: float | None, rounds: int, most: float
) -> dict[str, Any]:
    """Plans an application, and measures the plans in turns with other assignments, see the module.

    Args:
        given: makes the models; it is called for each planning.
        draw: seed of the drawn assignments.
        core: has the devices.
        seconds: time of measuring of a plan; None for the default.
        rounds: number of rounds of trials.
        most: largest time of all trials, s.

    Returns:
        The figures of the application; those of a plan that did not run are None.

    Raises:
        RunError: no assignment of whole models ran.
    """
    app, plans, chosen, _, prepared, _ = planned(given(), core, True, seconds)
    by_profile, others, other, *_ = planned(given(), core, False, seconds)
    whole = app.whole_assignments()
    if len(whole) > MOST_WHOLE:
        rest = np.random.default_rng([*draw, 1]).permutation(len(whole) - MOST_WHOLE // 2)[: MOST_WHOLE // 2]
        whole = np.concatenate([whole[: MOST_WHOLE // 2], whole[MOST_WHOLE // 2 + rest]])
    # In the order in which they are compiled: where trials are long, there is no time for the last ones.
    named = {"measured": plans[chosen], "predicted": app.translate_assignment(by_profile, others[other])}
    named |= {name: one for name, one in plans.items() if name == "alone" or name.startswith("on ")}
    named |= {f"whole {n}": one for n, one in enumerate(whole)}
    distinct: dict[bytes, str] = {}
    same = {name: distinct.setdefault(one.tobytes(), name) for name, one in named.items()}
    names = list(distinct.values())
    simulated = app.evaluate(np.stack([named[name] for name in names]))
    scores = dict(zip(names, simulated.score(app.objective), strict=True))
    end = time.monotonic() + most
    with Comparison(
        prepared[0].analysis.model,
        DEVICES,
        {name: candidate_of(app, named[name], DEVICES) for name in names},
        app.objective,
        core,
        needs={name: figures_of(app, simulated, row)["memory_bytes"] for row, name in enumerate(names)},
        limit=most,
        start_worker=BoundWorker,
        **comparison_arguments(app, prepared),
    ) as comparison:
        trials = comparison.trials(rounds=rounds, seconds=TRIAL, until=end)
        failed = dict(comparison.failed)
    # What only exchanges equal devices is one assignment, which ran twice: cores differ by chance.
    first: dict[bytes, str] = {}
    keys = app.exchange_keys(np.stack([named[name] for name in names]))
    alike = {name: first.setdefault(key.tobytes(), name) for name, key in zip(names, keys, strict=True)}
    trials = [[choice.Trial(*trial)._replace(name=alike[trial[0]]) for trial in one] for one in trials]
    names, same = [*dict.fromkeys(alike.values())], {name: alike[one] for name, one in same.items()}
    found, *parts = (choice.infer(some) for some in (trials, *halves(trials)))
    ran = [name for name in names if name in found.names and name not in failed]
    where = {name: {*app.describe(named[name].tolist()).values()} for name in ran}
    wholes = [name for name in ran if where[name] <= {*DEVICES}]
    if not wholes:
        raise RunError(f"no assignment of whole models ran: {'; '.join(sorted({*failed.values()}))}")
    singles = [name for name in wholes if len(where[name]) == 1]
    alone = [name for name in ran if name == same.get("alone")]
    against = {"of_whole": wholes, "of_single": singles, "of_alone": alone}
    rates = np.array([found.rate(name) for name in ran])
    expected = np.array([1 / scores[name] for name in ran])
    of_halves = [[half.rate(name) for name in ran if all(name in one.names for one in parts)] for half in parts]
    errors = np.log(rates / expected) - np.median(np.log(rates / expected))
    row: dict[str, Any] = {
        "models": {one.member.name: one.given.count for one in prepared},
        "chosen": chosen,
        "ran": len(ran),
        "failed": {name: why for name, why in failed.items() if not out_of_time(why)},
        # of each plan: runs per second, the same predicted, and whether it has splits
        "plans": {name: [found.rate(name), 1e6 / scores[name], name not in wholes] for name in ran},
        "both": sum(map(found.rate, singles)) / max(map(found.rate, singles)) if len(singles) > 1 else None,
        "error": float(np.median(np.abs(np.expm1(errors)))),
        "spearman": spearman(rates, expected),
        "attainable": attainable(*of_halves) if len(trials) > 2 else None,
    }

    def over(name: str, others: Sequence[str]) -> float | None:
        """The rate of a plan over the best of others; None if it or all others did not run in both halves."""
        in_both = [one for one in (name, *others) if one in ran and all(one in part.names for part in parts)]
        known = [one for one in others if one in in_both]
        if name not in in_both or not known:
            return None
        return statistics.geometric_mean(
            parts[1 - number].ratio(name, half.best(known)).median for number, half in enumerate(parts)
        )

    row |= {how: {key: over(same[how], others) for key, others in against.items()} for how in ("measured", "predicted")}
    return row


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures the applications and prints the figures. arguments: of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--applications", type=int, default=3)
    parser.add_argument("--seconds", type=float, help="of measuring a plan; by default those of `place_together`")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--most", type=float, default=600.0)
    parser.add_argument("--bf16", action="store_true")
    add_output(parser, "JSON of all figures")
    args = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    precisions = ("bf16" if args.bf16 else "f32", "f32")
    devices = unlike("throughput") if args.bf16 else declared()
    rows = []
    keys = ("of_whole", "of_single", "of_alone")
    with mock.patch.dict("os.environ", {virtual.VIRTUAL_DEVICES_VARIABLE: devices}):
        core = virtual.new_core()
        print(
            f"seed {args.seed}\n{'models':>6} {'plan':>10} {'of whole':>9} {'of single':>10} {'of alone':>9}",
            flush=True,
        )
        made = [partial(application_of, path, core) for path in args.paths] or [
            partial(application, args.seed, number) for number in range(args.applications)
        ]
        for number, given in enumerate(made):
            row = judged(given, (args.seed, number), core, args.seconds, args.rounds, args.most)
            rows.append(row)
            for how in ("measured", "predicted"):
                figures = " ".join(f"{row[how][key] or float('nan'):9.3f}" for key in keys)
                print(f"{len(row['models']):6} {how:>10} {figures}", flush=True)
            ranks = " of ".join(f"{np.float64(row[key]):.3f}" for key in ("spearman", "attainable"))
            summary = f"{row['chosen']}, {row['ran']} ran, both {np.float64(row['both']):.2f}"
            print(f"       error {row['error']:.3f}, Spearman {ranks}, {summary}")
            print("".join(f"       {name} failed: {why}\n" for name, why in row["failed"].items()), end="", flush=True)
    for how in ("measured", "predicted"):
        known = ([row[how][key] for row in rows if row[how][key]] for key in keys)
        means = [statistics.geometric_mean(figures) if figures else math.nan for figures in known]
        print(f"{'mean':>6} {how:>10} {' '.join(f'{mean:9.3f}' for mean in means)}")
    error, rank = (np.nanmedian([np.float64(row[key]) for row in rows]) for key in ("error", "spearman"))
    print(f"medians: error {error:.3f}, Spearman {rank:.3f}")
    if args.output:
        write_json(args.output, {"seed": args.seed, "precisions": precisions, "about": about(), "applications": rows})
    return 0


if __name__ == "__main__":
    start(__spec__)
