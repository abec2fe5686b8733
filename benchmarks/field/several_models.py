"""How good plans of several models are, on applications that no table has: a seed draws models and counts.

    python -m benchmarks.field.several_models [--seed N] [--applications N] [--rounds N] [--bf16] [--output FILE.json]
    python -m benchmarks.field.several_models whisper/ app.toml     # these applications, as `ov-hsdag plan` takes them

Two devices made of the CPU plugin (f32, with --bf16 the first in bf16), each bound to a core of its own, throughput.
Each application is planned by prediction and by measuring. These plans, everything on one device, each model where it
is best alone, and whole-device assignments (all of up to 16, else the best 8 by prediction and 8 drawn ones) then run
in turns, all models of one at the same time, for --most seconds (600) at most: where trials are long, fewer run.
Of those that only exchange equal devices, the trials count as one's.
Printed: rate of the measured plan over the best whole-device assignment, over everything on the best device (the best
of one half of the rounds, judged by the other, as the best of many is partly luck), and over each model placed alone;
the same of the predicted plan; what unlike devices have alone, added, over the better one's ("both": a copy of all on
each), which is about what a plan can have; over all that ran the median error of predicted ratios and Spearman's rank
correlation; and what failed.
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

from benchmarks.common.bound_worker import bound_worker
from benchmarks.common.machine import about
from benchmarks.common.output import add_output
from benchmarks.common.ranks import attainable, halves, spearman
from benchmarks.common.workers import start
from benchmarks.field.unseen import DEVICES, declared, drawn, unlike
from ov_hsdag.applications import planning
from ov_hsdag.applications.application_file import of_folder, read_application, to_place
from ov_hsdag.devices import virtual
from ov_hsdag.measuring import choice
from ov_hsdag.measuring.comparison import Comparison
from ov_hsdag.storage.files import write_json
from ov_hsdag.storage.model_folder import is_model_folder
from ov_hsdag.utils.errors import RunError
from ov_hsdag.utils.failures import out_of_time

SMOKE_ARGUMENTS = "--seed 4811 --applications 1 --rounds 1 --most 5 --seconds 5"
"""Its quickest arguments, for `make figures-smoke`."""

MOST_WHOLE = 16


def application(seed: int, number: int) -> dict[str, planning.ModelOf]:
    """Two to five models, each run one to four times in a run."""
    draw = np.random.default_rng([seed, number])
    models = drawn(1000 * seed + number, int(draw.integers(2, 6)))
    order = draw.permutation(len(models))
    return {
        models[place].name: planning.ModelOf(models[place].build(), float(draw.choice([1, 1, 2, 4])))
        for place in order.tolist()
    }


def application_of(path: Path, core: Any) -> dict[str, planning.ModelOf]:
    """What a file of an application, or a pipeline's folder, names."""
    spec = of_folder(path, {}, None, None) if is_model_folder(path) else read_application(path)
    return to_place(spec, core.read_model)


def planned(given: dict[str, planning.ModelOf], core: Any, measure: bool, seconds: float | None) -> tuple[Any, ...]:
    """The arguments of `planning.plan_of`: the application, plans by name, the chosen one, figures, models."""
    with mock.patch.object(planning, "plan_of", wraps=planning.plan_of) as recorded:
        planning.place_together(
            given, DEVICES.hetero, core=core, measure=measure, measure_seconds=seconds, start_worker=bound_worker
        )
    return tuple(recorded.call_args.args)


def judged(
    given: Callable[[], Any], draw: Sequence[int], core: Any, seconds: float | None, rounds: int, most: float
) -> dict[str, Any]:
    """See the module. given: makes the models anew; draw: seed of the assignments that are drawn."""
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
        {name: planning.candidate_of(app, named[name], DEVICES) for name in names},
        app.objective,
        core,
        needs={name: planning.figures_of(app, simulated, row)["memory_bytes"] for row, name in enumerate(names)},
        limit=most,
        start_worker=bound_worker,
        **planning.models_of(app, prepared),
    ) as comparison:
        trials = comparison.trials(rounds=rounds, seconds=planning.TRIAL, until=end)
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
        """None: one of the two computed something else, or there was no time for it."""
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
            told = f"{row['chosen']}, {row['ran']} ran, both {np.float64(row['both']):.2f}"
            print(f"       error {row['error']:.3f}, Spearman {ranks}, {told}")
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
