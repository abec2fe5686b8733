"""How good plans of several models are, on applications that no table has: a seed draws models and counts.

    python -m benchmarks.field.several_models [--seed N] [--applications N] [--rounds N] [--bf16] [--output FILE.json]
    python -m benchmarks.field.several_models whisper/ app.toml     # these applications, as `ov-hsdag plan` takes them

Two devices made of the CPU plugin (f32, with --bf16 the first in bf16), each bound to a core of its own, throughput.
Each application is planned by prediction and by measuring. These plans, everything on one device, each model where it
is best alone, and whole-device assignments (all of up to 16, else the best 8 by prediction and 8 drawn ones) then run
in turns, all models of one at the same time. Printed: rate of the measured plan over the best whole-device assignment,
over everything on the best device, and over each model placed alone; the same of the predicted plan; and over all that
ran the median error of predicted ratios and Spearman's rank correlation.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from scipy.stats import spearmanr

from benchmarks.common.bound_worker import bound_worker
from benchmarks.common.machine import about
from benchmarks.field.unseen import DEVICES, declared, drawn
from ov_hsdag.devices import virtual
from ov_hsdag.measuring import choice
from ov_hsdag.measuring.comparison import Comparison
from ov_hsdag.model.inputs import example_shapes, parse_shapes
from ov_hsdag.placing import selection, together
from ov_hsdag.placing.application_file import of_folder, read_application
from ov_hsdag.storage.files import write_json
from ov_hsdag.storage.model_folder import is_model_folder

MOST_WHOLE = 16


def application(seed: int, number: int) -> dict[str, together.ModelOf]:
    """Two to five models, each run one to four times in a run."""
    draw = np.random.default_rng([seed, number])
    models = drawn(1000 * seed + number, int(draw.integers(2, 6)))
    order = draw.permutation(len(models))
    return {
        models[place].name: together.ModelOf(models[place].build(), float(draw.choice([1, 1, 2, 4])))
        for place in order.tolist()
    }


def application_of(path: Path, core: Any) -> dict[str, together.ModelOf]:
    """What a file of an application, or a pipeline's folder, names."""
    spec = of_folder(path, {}, None, None) if is_model_folder(path) else read_application(path)
    found = {}
    for name, one in spec.models.items():
        model = core.read_model(one.path)
        (shapes,) = example_shapes([model], parse_shapes([one.shape] if one.shape else ()))
        found[name] = together.ModelOf(model, one.count, one.after, shapes, one.workload if model.get_sinks() else None)
    return found


def planned(given: dict[str, together.ModelOf], core: Any, measure: bool, seconds: float) -> tuple[Any, ...]:
    """The arguments of `together.plan_of`: the application, plans by name, the chosen one, figures, models."""
    found: list[tuple[Any, ...]] = []

    def recorded(*args: Any) -> Any:
        found.append(args)
        return plan(*args)

    plan = together.plan_of
    with mock.patch.object(together, "plan_of", recorded):
        together.place_together(
            given, DEVICES.hetero, core=core, measure=measure, measure_seconds=seconds, start_worker=bound_worker
        )
    return found[0]


def judged(given: Callable[[], Any], draw: Sequence[int], core: Any, seconds: float, rounds: int) -> dict[str, Any]:
    """See the module. given: makes the models anew; draw: seed of the assignments that are drawn."""
    app, plans, chosen, _, prepared, _ = planned(given(), core, True, seconds)
    by_profile, others, other, *_ = planned(given(), core, False, seconds)
    moved = by_profile.members
    # The plan by prediction, as ways of the application that was timed.
    predicted = np.array(
        [
            member.way(source.ways[way].placement)
            for member, source, way in zip(app.members, moved, others[other].tolist(), strict=True)
        ],
        np.int64,
    )
    whole = app.whole_assignments()
    if len(whole) > MOST_WHOLE:
        rest = np.random.default_rng([*draw, 1]).permutation(len(whole) - MOST_WHOLE // 2)[: MOST_WHOLE // 2]
        whole = np.concatenate([whole[: MOST_WHOLE // 2], whole[MOST_WHOLE // 2 + rest]])
    named = {f"whole {n}": one for n, one in enumerate(whole)} | {"measured": plans[chosen], "predicted": predicted}
    named |= {name: one for name, one in plans.items() if name == "alone" or name.startswith("on ")}
    distinct: dict[bytes, str] = {}
    same = {name: distinct.setdefault(one.tobytes(), name) for name, one in named.items()}
    names = list(distinct.values())
    scores = dict(zip(names, app.scores(np.stack([named[name] for name in names])), strict=True))
    first, told = prepared[0], together.models_of(app, prepared)
    candidates = {name: together.candidate_of(app, named[name], DEVICES) for name in names}
    trials: list[choice.Round] = []
    with Comparison(
        first.analysis.model, DEVICES, candidates, "throughput", core, **told, start_worker=bound_worker
    ) as comparison:
        for turn in range(rounds):
            trials += comparison.trials(rounds=1, seconds=together.TRIAL, begin=turn)
        failed = dict(comparison.failed)
    found = choice.infer(trials)
    ran = [name for name in names if name in found.names and name not in failed]
    wholes = [name for name in ran if name.startswith(("whole", "on "))]
    singles = [
        name
        for name in wholes
        if len({member.ways[way].name for member, way in zip(app.members, named[name].tolist(), strict=True)}) == 1
    ]
    rates = np.array([found.rate(name) for name in ran])
    expected = np.array([1 / scores[name] for name in ran])
    errors = np.log(rates / expected) - np.median(np.log(rates / expected))
    row: dict[str, Any] = {
        "models": {one.member.name: one.given.count for one in prepared},
        "chosen": chosen,
        "failed": failed,
        "error": float(np.median(np.abs(np.expm1(errors)))),
        "spearman": float(spearmanr(rates, expected).statistic),
    }
    for how in ("measured", "predicted"):
        mine = same[how]
        if mine not in ran:  # it computed something else, or there was no time for it
            row[how] = dict.fromkeys(("of_whole", "of_single", "of_alone"))
            continue
        row[how] = {
            "of_whole": found.ratio(mine, found.best(wholes)).median,
            "of_single": found.ratio(mine, found.best(singles)).median,
            "of_alone": found.ratio(mine, same["alone"]).median if same.get("alone") in ran else None,
        }
    return row


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--applications", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=selection.SECONDS)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    precisions = ("bf16" if args.bf16 else "f32", "f32")
    rows = []
    keys = ("of_whole", "of_single", "of_alone")
    with mock.patch.dict("os.environ", {virtual.VIRTUAL_DEVICES_VARIABLE: declared(precisions[0])}):
        core = virtual.new_core()
        print(
            f"seed {args.seed}\n{'models':>6} {'plan':>10} {'of whole':>9} {'of single':>10} {'of alone':>9}",
            flush=True,
        )
        made = [partial(application_of, path, core) for path in args.paths] or [
            partial(application, args.seed, number) for number in range(args.applications)
        ]
        for number, given in enumerate(made):
            row = judged(given, (args.seed, number), core, args.seconds, args.rounds)
            rows.append(row)
            for how in ("measured", "predicted"):
                figures = " ".join(f"{row[how][key] or float('nan'):9.3f}" for key in keys)
                print(f"{len(row['models']):6} {how:>10} {figures}", flush=True)
            print(f"       error {row['error']:.3f}, Spearman {row['spearman']:.3f}, {row['chosen']}", flush=True)
    for how in ("measured", "predicted"):
        means = [statistics.geometric_mean([row[how][key] for row in rows if row[how][key]] or [1.0]) for key in keys]
        print(f"{'mean':>6} {how:>10} {' '.join(f'{mean:9.3f}' for mean in means)}")
    error, rank = (statistics.median(row[key] for row in rows) for key in ("error", "spearman"))
    print(f"medians: error {error:.3f}, Spearman {rank:.3f}")
    if args.output:
        write_json(args.output, {"seed": args.seed, "precisions": precisions, "about": about(), "applications": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
