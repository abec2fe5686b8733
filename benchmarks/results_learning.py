"""The comparisons about learning as Markdown and plots: generalisation, sample efficiency, whether baselines learn.

Part of what results_page.py writes; figures come from the files of results/.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks import dot_plot
from benchmarks.contestants import DEFAULT, SHIPPED
from benchmarks.harness import TIE
from benchmarks.results_text import Result, listed, made_on, markdown_table, middle, named, paragraph, values, why

# ---- (c) generalisation

# Why ours is behind, which was looked at.
_TOO_SHORT = (
    "for swin-tiny twice the default's moves find the best; for segformer-b0 what search finds is less than 0.5% better"
    " than the contiguous partition, which the default then prefers as the simpler one"
)

_TRANSFER = ("HSDAG, first choice", "HSDAG, network alone", "Placeto, zero-shot", "GO, zero-shot")
_ON_THE_GRAPH = ("Placeto", "RNN-based", "GO, from scratch", "HSDAG as published")
_SEARCH = "search, no network"
_UNTRAINED = {
    _TRANSFER[0]: "untrained network, first choice",
    _TRANSFER[1]: "untrained network alone",
    SHIPPED: "untrained network and search",
}


def _kinds(result: Result) -> dict[str, list[str]]:
    """Kind of problem → names of its problems."""
    found: dict[str, list[str]] = {}
    for name, problem in result["problems"].items():
        found.setdefault(problem["kind"], []).append(name)
    return found


def _behind(result: Result) -> dict[str, dict[str, float]]:
    """Row → problem → median cost over seeds / best known of the problem, inf where there is no placement."""
    best = {
        name: min([problem["known_us"], *(u for row in result["runs"].values() for u in values(row[name], "us"))])
        for name, problem in result["problems"].items()
    }

    def ratio(cells: Sequence[Result], known: float) -> float:
        return _median(cells) / known if math.isfinite(known) else math.inf

    return {row: {name: ratio(of[name], best[name]) for name in best} for row, of in result["runs"].items()}


def _median(cells: Sequence[Result]) -> float:
    """Median over seeds, a seed without a placement counting as inf."""
    return statistics.median_low([math.inf if cell["us"] is None else cell["us"] for cell in cells])


def _mean(ratios: Sequence[float]) -> float:
    found = [ratio for ratio in ratios if math.isfinite(ratio)]
    return statistics.geometric_mean(found) if found else math.inf


def mean_behind(result: Result, row: str) -> tuple[float, int]:
    """Geometric mean of a row's cost / best known where it has a placement, and in how many problems it has none."""
    ratios = list(_behind(result)[row].values())
    return _mean(ratios), sum(not math.isfinite(ratio) for ratio in ratios)


def generalisation(result: Result) -> str:
    """generalisation.py's table."""
    settings, kinds, behind = result["settings"], _kinds(result), _behind(result)
    body = []
    for row, of in result["runs"].items():
        knows = "other graphs" if row in (*_TRANSFER, SHIPPED) else "this graph" if row in _ON_THE_GRAPH else "nothing"
        line = [named(row), knows]
        for names in kinds.values():
            ratios = [behind[row][name] for name in names]
            lacking = sum(not math.isfinite(ratio) for ratio in ratios)
            if lacking == len(names):
                line.append(why([cell for name in names for cell in of[name]]))
                continue
            worst = max(ratio for ratio in ratios if math.isfinite(ratio))
            line.append(f"{_mean(ratios):.3f} ({worst:.2f})" + f", {lacking} infeasible" * bool(lacking))
        every = [cell for name in behind[row] for cell in of[name]]
        line += [f"{middle(every, 'evaluations'):.0f}", f"{middle(every, 'seconds'):.2f}"]
        body.append(line)
    trained = [max(cell["trained_seconds"] for cell in of[next(iter(of))]) for row, of in result["runs"].items()]
    return (
        "\n\n".join(
            [
                "# Models and devices that nothing was trained on",
                f"Made by `python -m benchmarks.generalisation`; runs are in generalisation.json. {made_on(result)}",
                paragraph(
                    f"""Six models of held-out families on held-out devices (built-in profiles; Flex 170 and Xeon
                    8480+; Meteor Lake's GPU, NPU and CPU), throughput, simulated; little memory is
                    {settings["room"]:.0%} of the model on each device. Budget of each run: {settings["evaluations"]}
                    evaluations and {settings["seconds"]:g} s of processor time; medians of {settings["seeds"]}
                    seeds. Figures are period / best known, a search of {settings["long_moves"]:,} moves included
                    (geometric mean, and the worst) of what has a placement. Policies of Placeto and GO were trained
                    on {settings["training_problems"]} models of other families with
                    {settings["training_evaluations"]} evaluations each, {max(trained):.0f} s at most; HSDAG's was
                    pretrained on 4,096 problems for 5,000 steps, which is not counted. An untrained network is
                    HSDAG's with random weights. *First choice* is one placement; *alone* the best of dozens that the
                    network proposes, by the simulator. {SHIPPED} is `place --policy base`, *{DEFAULT}* the same
                    without `--policy`."""
                ),
                markdown_table(["period / best known", "learned on", *kinds, "evaluations", "seconds"], body),
                _generalisation_says(behind, kinds),
            ]
        )
        + "\n"
    )


def _generalisation_says(behind: Mapping[str, Mapping[str, float]], kinds: Mapping[str, Sequence[str]]) -> str:
    every = [name for of in kinds.values() for name in of]
    names = [name for name in every if any(math.isfinite(of[name]) for of in behind.values())]
    unsolved = f" ({len(every) - len(names)} more has no placement that any method found)" * (len(names) < len(every))
    mean = {row: _mean([of[name] for name in names]) for row, of in behind.items()}
    lacking = {row: sum(not math.isfinite(of[name]) for name in names) for row, of in behind.items()}
    # The long search counts as well: there is no row for it.
    least = {name: min(1.0, *(of[name] for of in behind.values())) for name in names}
    tied = {row: sum(of[name] <= least[name] * (1 + TIE) for name in names) for row, of in behind.items()}

    def told(row: str) -> str:
        lost = f" ({lacking[row]} without a placement)" if lacking[row] else ""
        return f"{row} {100 * (mean[row] - 1):.1f}%{lost}"

    lost = [name for name in names if behind[SHIPPED][name] > least[name] * (1 + TIE)]
    by = max((behind[SHIPPED][name] / least[name] - 1 for name in lost), default=0.0)
    where = f" (behind by {100 * by:.1f}% at most on {listed(lost)}: {_TOO_SHORT})" if lost else ""
    compared = [f"{told(row)} against {told(other)}" for row, other in _UNTRAINED.items()]
    graph = sorted(_ON_THE_GRAPH, key=lambda row: (lacking[row], mean[row]))
    gain = mean[DEFAULT] / mean[SHIPPED] - 1
    earned = (
        "search finds as much without any network, and so it is search that earns what users get"
        if gain <= TIE
        else f"the network's proposals make what users get {100 * gain:.1f}% better than search without them"
    )
    return paragraph(
        f"""{SHIPPED} is best or within {100 * TIE:g}% of the best on {tied[SHIPPED]} of {len(names)}
        problems{unsolved}{where}, {DEFAULT} on {tied[DEFAULT]} and {_SEARCH} on {tied[_SEARCH]}; behind the best
        known in the mean is, of what learns on the very graph, {listed([told(row) for row in graph])}, and of what
        never saw it, {listed([told(row) for row in _TRANSFER])}. What training earned is the difference to a network
        with random weights, {"; ".join(compared)}: a trained network is worth much where nothing searches, and
        {earned}. It does not say that Placeto or GO could not transfer better with the training that their papers
        give them, which is larger by orders of magnitude, nor what devices would measure: costs are the profiles'."""
    )


def generalisation_plot(result: Result) -> str:
    """Cost of each row's placements over the best known."""
    kinds, behind = _kinds(result), _behind(result)
    rows = {row: {kind: [of[name] for name in names] for kind, names in kinds.items()} for row, of in behind.items()}
    return dot_plot.dots(
        "Models and devices that nothing was trained on",
        "period / best known (larger than 3 drawn at 3; without a placement not drawn)",
        rows,
        most=3.0,
    )


# ---- (d) sample efficiency

_ARMS = {
    "both": "policy and search, the default",
    "prior": "the default, with what other models measured",
    "search": "search alone, no network",
    "search prior": "search alone, with what other models measured",
    "pretrained": "pretrained policy alone",
    "untrained": "untrained network alone",
    "simulator": "best of 256 random placements by the simulator",
}
_SHOWN = (1, 2, 6, 16)


def _curves(result: Result) -> dict[str, dict[str, list[Sequence[float]]]]:
    """Arm → model and pair of devices → best ratio so far with each seed, of cells that have every arm that any has.

    Seeds that an arm of a cell lacks are left out of all arms of the cell.
    """
    cells = {
        f"{model}, {pair}": cell["arms"]
        for pair, of_pair in result["pairs"].items()
        for model, cell in of_pair.items()
        if cell["arms"]
    }
    most = max(len(arms) for arms in cells.values())
    common = {name: set.intersection(*map(set, arms.values())) for name, arms in cells.items() if len(arms) == most}
    return {
        arm: {name: [cells[name][arm][seed] for seed in sorted(seeds)] for name, seeds in common.items() if seeds}
        for arm in _ARMS
        if arm in cells[next(iter(common))]
    }


def _gaps(result: Result) -> dict[str, dict[int, dict[str, float]]]:
    """Arm → measurements → cell → log(the best of all arms and seeds / the arm's best so far), the mean over seeds."""
    curves = _curves(result)
    best = {
        name: max(max(curve) for of in curves.values() for curve in of[name]) for name in next(iter(curves.values()))
    }
    return {
        arm: {
            count: {
                name: statistics.mean(math.log(best[name] / max(curve[count - 1], 1e-9)) for curve in of_seed)
                for name, of_seed in of.items()
            }
            for count in _SHOWN
            if all(len(curve) >= count for of_seed in of.values() for curve in of_seed)
        }
        for arm, of in curves.items()
    }


def _interval(logs: Sequence[float]) -> tuple[float, float]:
    """95% interval of the geometric mean, models resampled."""
    generator = np.random.default_rng(0)
    drawn = generator.choice(np.asarray(logs), (4000, len(logs))).mean(axis=1)
    low, high = np.exp(np.quantile(drawn, [0.025, 0.975]))
    return float(low), float(high)


def samples(result: Result) -> str:
    """finetune_busy.py's table."""
    gaps, curves = _gaps(result), _curves(result)
    counts = list(next(iter(gaps.values())))
    of_cell = next(iter(curves.values()))
    cells = list(of_cell)
    seeds = sorted({len(of_seed) for of_seed in of_cell.values()})
    body = []
    for arm, of in gaps.items():
        line = [_ARMS[arm]]
        for count in counts:
            logs = list(of[count].values())
            low, high = _interval(logs)
            line.append(f"{math.exp(statistics.mean(logs)):.3f} ({low:.2f} to {high:.2f})")
        reached = [curve[counts[-1] - 1] for of_seed in curves[arm].values() for curve in of_seed]
        body.append([*line, f"{statistics.geometric_mean(reached):.2f}"])
    measured = sum(len(cell["measured"]) for of in result["pairs"].values() for cell in of.values())
    head = ["proposals by", *(f"after {count}" for count in counts), f"times the first device, after {counts[-1]}"]
    return (
        "\n\n".join(
            [
                "# Best so far against number of measurements",
                f"Made by `python -m benchmarks.finetune_busy`; curves are in finetune_busy.json. {made_on(result)}",
                paragraph(
                    f"""Fine-tuning on real HETERO with two one-core devices, throughput ({listed(cells)}): how much
                    slower the best placement so far is than the best that any arm found, as the geometric mean over
                    models with its 95% interval. A measurement is the processor time of the busiest device for one
                    inference, in turns with the first device alone, so that other processes hardly count; a
                    placement that several arms or seeds propose was measured once, {measured} in all. Means of
                    {" to ".join(map(str, seeds))} seeds of each arm and model."""
                ),
                markdown_table(head, body),
                _samples_says(gaps, counts, len(cells)),
            ]
        )
        + "\n"
    )


def _samples_says(gaps: Mapping[str, Mapping[int, Mapping[str, float]]], counts: Sequence[int], cells: int) -> str:
    def share(arm: str, count: int) -> float:
        return 100 * math.expm1(statistics.mean(gaps[arm][count].values()))

    first, last = counts[0], counts[-1]
    ahead = {
        count: min((arm for arm in gaps), key=lambda arm: statistics.mean(gaps[arm][count].values()))
        for count in counts
    }
    tied = []
    for arm in gaps:
        difference = [gaps[arm][last][name] - gaps["both"][last][name] for name in gaps["both"][last]]
        low, high = _interval(difference)
        if arm != "both" and low <= 1 + TIE and high >= 1 - TIE:
            tied.append(_ARMS[arm])
    order = listed([f"{_ARMS[ahead[count]]} after {count}" for count in counts])
    shown = (
        "no gain of the network beside search is shown"
        if _ARMS["search"] in tied
        else "search and the network's proposals together differ measurably from search alone"
    )
    return paragraph(
        f"""Ahead in the mean are {order}; the default is {share("both", first):.1f}% behind the best known after
        {first} measurement and {share("both", last):.1f}% after {last}, search alone {share("search", first):.1f}%
        and {share("search", last):.1f}%. After {last} measurements the default cannot be told from {listed(tied)}
        with {cells} models: {shown}. It does not say how it would be on devices that differ more than two equal
        cores, whose costs the built-in profile knows well, or with many more measurements."""
    )


def samples_plot(result: Result) -> str:
    """Gap of each arm on each model after each number of measurements."""
    rows = {
        _ARMS[arm]: {f"after {count}": [math.exp(gap) for gap in logs.values()] for count, logs in of.items()}
        for arm, of in _gaps(result).items()
    }
    return dot_plot.dots("Best so far against number of measurements", "slower than the best known, times", rows)


# ---- whether learned baselines learn

_NO_GROUPS = "GO, operations not grouped"


def learned(result: Result) -> str:
    """learned_baselines.py's table."""
    runs = result["runs"]
    models = list(dict.fromkeys(run["model"] for run in runs))
    arms = list(dict.fromkeys(run["arm"] for run in sorted(runs, key=lambda run: _order(run["arm"]))))
    single = {
        model: next(r["single"] for r in runs if r["model"] == model and not _scheduled(r["arm"])) for model in models
    }
    known = {model: next(run["known"] for run in runs if run["model"] == model) for model in models}
    body = [
        ["best single device", "–", *(f"{single[model]:,.0f}" for model in models)],
        [_SEARCH, "–", *(f"{known[model]:,.0f}" for model in models)],
    ]
    for arm in arms:
        of_arm = {model: [run for run in runs if (run["model"], run["arm"]) == (model, arm)] for model in models}
        line = [arm, str(min(len(of) for of in of_arm.values()))]
        for of in of_arm.values():
            line.append(f"{_middle(of, 'start'):,.0f} → {_middle(of, 'best'):,.0f}")
        body.append(line)
    return (
        "\n\n".join(
            [
                "# Whether learned baselines learn",
                f"Made by `python -m benchmarks.learned_baselines`; runs: baselines_learn.json. {made_on(result)}",
                paragraph(
                    f"""The RNN placer (Mirhoseini et al. 2017), Placeto (Addanki et al. 2019) and GO (Zhou et al.
                    2020), {result["settings"]["evaluations"]:,} evaluations each, simulated, for throughput on the
                    devices of HSDAG's paper: µs per inference, the median of the first ten draws → the best, medians
                    of seeds. Their settings were tuned on ResNet-50. Zero-shot and fine-tuned policies were trained
                    on six models of other families. The scheduled rows are of a runtime that runs parts of
                    {result["settings"]["requests"]} requests at once, and not comparable with the others."""
                ),
                markdown_table(["µs", "seeds", *models], body),
                _learned_says(runs, models, single, known),
            ]
        )
        + "\n"
    )


def _scheduled(arm: str) -> bool:
    return arm.endswith("scheduled")


def _order(arm: str) -> tuple[bool, bool, bool, str]:
    return _scheduled(arm), arm == _NO_GROUPS, "zero-shot" in arm or "fine-tuned" in arm, arm


def _middle(runs: Sequence[Result], key: str) -> float:
    return statistics.median(math.inf if run[key] is None else run[key] for run in runs)


def _learned_says(
    runs: Sequence[Result], models: Sequence[str], single: Mapping[str, float], known: Mapping[str, float]
) -> str:
    def best(arm: str, model: str) -> float:
        return _middle([run for run in runs if (run["model"], run["arm"]) == (model, arm)], "best")

    def behind(arm: str) -> str:
        ratios = [best(arm, model) / known[model] - 1 for model in models]
        return f"{arm} {100 * min(ratios):.0f} to {100 * max(ratios):.0f}%"

    def saved(arm: str) -> str:
        ratios = [1 - best(arm, model) / single[model] for model in models]
        return f"{100 * min(ratios):.0f} to {100 * max(ratios):.0f}%"

    scratch = listed([behind(arm) for arm in ("RNN placer", "Placeto", "GO", _NO_GROUPS)])
    later = listed(
        [behind(arm) for arm in ("Placeto, zero-shot", "GO, zero-shot", "Placeto, fine-tuned", "GO, fine-tuned")]
    )
    tasks = [best("GO, multi-task, scheduled", m) / best("GO, single task, scheduled", m) - 1 for m in models]
    several = listed([f"{100 * task:+.1f}% ({model})" for task, model in zip(tasks, models, strict=True)])
    return paragraph(
        f"""What learns on the graph itself draws better placements than it begins with, and its best is behind
        {_SEARCH}, which learns nothing: {scratch}; against the best single device the RNN placer saves
        {saved("RNN placer")}, Placeto {saved("Placeto")} and GO {saved("GO")}, where its paper claims 21% over human
        experts, with far more measurements and no experts here. Policies trained on other families are behind it by:
        {later}; deciding priorities and fusion as well as the placement changes GO's period by {several}, where its
        paper reports 33 to 60% over a default for three tasks together. It does not say what tens of thousands of
        measurements, which the papers have, would give: without groups of operations, above all, two thousand are
        too few."""
    )
