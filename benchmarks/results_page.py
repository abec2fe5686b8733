"""The comparisons with other methods as Markdown and plots, made of the JSON files that their benchmarks wrote.

    python -m benchmarks.results_page       # between the markers of docs/results.md and README.md; docs/field_*.svg

Each table is followed by three sentences: who won, what that says, what it does not say. Their figures come from the
files; no figure is written here.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from scipy.stats import mannwhitneyu

from benchmarks import dot_plot
from benchmarks.contestants import DEFAULT, SHIPPED
from benchmarks.harness import TIE
from benchmarks.results_learning import (
    generalisation,
    generalisation_plot,
    learned,
    mean_behind,
    samples,
    samples_plot,
)
from benchmarks.results_text import (
    LEARNED_NAMES,
    MEASURED,
    WITH_POLICY,
    Result,
    listed,
    made_on,
    markdown_table,
    middle,
    named,
    paragraph,
    values,
    why,
)
from ov_hsdag.storage.files import write_text

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE, README = ROOT / "docs" / "results.md", ROOT / "README.md"
BEGIN, END = "<!-- field: made by benchmarks/results_page.py -->", "<!-- field: end -->"

CPU_ONLY, GPU_ONLY = "CPU only", "GPU only"

# Why ours is behind on drawn machines, which was looked at, and up to how many are named.
_FEW = 6
_NO_LUCK = (
    "the default's search, with one seed, stops short, and what it finds must win by 0.5% to be"
    " preferred to a simpler placement; four times the moves found the best on machine 14 of BERT, and not on 26"
)


# ---- (a) the paper's experiment


def paper(result: Result) -> str:
    """paper_table.py's tables."""
    settings = result["settings"]
    models = list(result["models"])
    said = [
        [
            model,
            *(str(entry[key]) for key in ("nodes", "groups", "coarse_groups")),
            f"{entry['gpu_over_cpu']:.2f}",
            f"{entry['gpu_over_cpu_allowed'][0]:.2f} to {entry['gpu_over_cpu_allowed'][1]:.2f}",
            f"{entry['paper_saved_percent']}",
        ]
        for model, entry in result["models"].items()
    ]
    parts = [
        "# The experiment of HSDAG's paper",
        f"Made by `python -m benchmarks.paper_table`; runs are in paper_table.json. {made_on(result)}",
        paragraph(
            """**Simulated, on a machine that is only partly known.** The paper's times in seconds could not be found
            in public sources: not for a single device, and not for any other row. What was found is the share of the
            CPU's time that HSDAG saves (58.2% for BERT from the abstract, the other two from a summary that was not
            checked against the paper), and that no other row is more than 60.24% slower. The profile `paper_2023`
            (benchmarks/profiles/paper_2023.json) is the data sheets of the two devices that the paper names, with
            three factors of the GPU fitted to what these percentages allow of GPU alone / CPU alone; how long the
            CPU takes is its data sheet's. Rows of the paper without a source are left out of the tables."""
        ),
        markdown_table(
            ["", "nodes", "groups", "coarse", "GPU / CPU, fitted", "allowed", "HSDAG in the paper saves, %"], said
        ),
        paragraph(
            f"""Budget of each run: {settings["evaluations"]} evaluations (the authors' code: 25 episodes of 20) and
            {settings["seconds"]:g} s of processor time. A measurement scatters by {100 * settings["noise"]:.1f}%.
            What depends on a seed ran with {settings["seeds"]}; figures are medians. Methods that compute with costs
            know those of the machine that they are run on; those that learn know its measurements. {WITH_POLICY}"""
        ),
        "## In the paper's layout",
        _paper_layout(result, models),
        _paper_layout_says(result, models),
        "## On plausible machines",
        paragraph(
            f"""{settings["machines"]} machines drawn around the profile (`paper_machines.draw`): each operation and
            type of operation faster or slower by a random factor (10 to 60%), transfers and submodels up to three
            times cheaper or dearer, GPU / CPU anywhere in the interval above. A method wins on a machine where its
            placement is more than {100 * TIE:g}% faster than the best single device, without noise. *Behind*: of the
            best that any method found, in the mean."""
        ),
        _paper_machines(result, models),
        _paper_machines_says(result, models),
        "## Ablations",
        paragraph(
            """HSDAG as published where there is something to find: latency on the drawn machine on which a split
            gains most, and throughput on the fitted profile, with parsing that stops at 48 clusters in place of
            four. Cost of the best placement against the full method's, medians over seeds; in bold what a
            Mann-Whitney test at 5% tells from it."""
        ),
        _paper_ablations(result, models),
        _paper_ablations_says(result, models),
    ]
    return "\n\n".join(parts) + "\n"


def _paper_layout(result: Result, models: Sequence[str]) -> str:
    head = [""]
    for model in models:
        head += [f"{model}: best drawn, ms", "again, ms", "saved, %"]
    body = []
    for row in result["fitted"][models[0]]:
        line = [named(row)]
        for model in models:
            cells = result["fitted"][model][row]
            if not values(cells, "us"):
                line += [why(cells), "", ""]
                continue
            cpu = middle(result["fitted"][model][CPU_ONLY], "us")
            saved = 100 * (1 - middle(cells, "us") / cpu)
            drawn, again = middle(cells, "drawn_us") / 1e3, middle(cells, "again_us") / 1e3
            line += [f"{drawn:.2f}", f"{again:.2f}", f"{saved:.1f}"]
        body.append([cell or why_empty for cell, why_empty in zip(line, ["", *["–"] * (len(line) - 1)], strict=True)])
    return markdown_table(head, body)


def _paper_layout_says(result: Result, models: Sequence[str]) -> str:
    fitted = result["fitted"]
    exact = {model: {row: middle(cells, "us") for row, cells in fitted[model].items()} for model in models}
    best = {model: min(exact[model].values()) for model in models}
    winners = [row for row in exact[models[0]] if all(exact[m][row] <= best[m] * (1 + TIE) for m in models)]
    saved = [f"{100 * (1 - best[model] / exact[model][CPU_ONLY]):.1f}% for {model}" for model in models]
    over_single = max(1 - best[model] / min(exact[model][CPU_ONLY], exact[model][GPU_ONLY]) for model in models)
    many = [row for row in fitted[models[0]] if row in LEARNED_NAMES or row == "simulated annealing"]
    flattery = [
        100 * (1 - middle(fitted[model][row], "drawn_us") / middle(fitted[model][row], "us"))
        for model in models
        for row in many
        if values(fitted[model][row], "us")
    ]
    both = [row for row in (SHIPPED, DEFAULT) if row in winners]
    verb = "are" if len(both) == 2 else "is"
    ours = f"{listed(both)} {verb} among them" if both else f"{SHIPPED} and {DEFAULT} are not among them"
    return paragraph(
        f"""{len(winners)} of {len(exact[models[0]])} methods are best or within {100 * TIE:g}% of the best for all
        models ({listed(winners)}); {ours}, and the best saves {listed(saved)} of the CPU's time. That is
        {100 * over_single:.1f}% more than the best single device gives by itself at most, so that on this machine
        the choice of the device is nearly everything, and the least of hundreds of noisy draws flatters whoever
        draws by {statistics.mean(flattery) if flattery else 0:.1f}% in the mean, which measuring once more takes
        away. It does not say that the paper's gains are wrong: its machine's times per operation are not known, and
        the fit knows one ratio for each model."""
    )


def _drawn(result: Result, model: str, row: str) -> dict[str, float]:
    """Cost by machine, inf where there is none."""
    cells = result["drawn"][model][row]
    return {machine: math.inf if cell["us"] is None else cell["us"] for machine, cell in cells.items()}


def _singles(result: Result, model: str) -> dict[str, float]:
    cpu, gpu = _drawn(result, model, CPU_ONLY), _drawn(result, model, GPU_ONLY)
    return {machine: min(cpu[machine], gpu[machine]) for machine in cpu}


def _best_known(result: Result, model: str) -> dict[str, float]:
    rows = [_drawn(result, model, row) for row in result["drawn"][model]]
    return {machine: min(row.get(machine, math.inf) for row in rows) for machine in _singles(result, model)}


def _wins(result: Result, model: str, cost: Mapping[str, float]) -> list[float]:
    """Gains over the best single device where a split wins."""
    single = _singles(result, model)
    return [1 - cost[k] / single[k] for k in cost if cost[k] < single[k] * (1 - TIE)]


def _paper_machines(result: Result, models: Sequence[str]) -> str:
    head = ["", "machines"]
    for model in models:
        head += [f"{model}: wins, %", "by, %", "behind, %"]
    body = []
    for row in result["drawn"][models[0]]:
        machines = len(result["drawn"][models[0]][row])
        line = [named(row), str(machines)]
        for model in models:
            cost, known = _drawn(result, model, row), _best_known(result, model)
            found = [k for k in cost if math.isfinite(cost[k])]
            if not found:
                line += [why(list(result["drawn"][model][row].values())), "–", "–"]
                continue
            won = _wins(result, model, cost)
            behind = statistics.mean(cost[k] / known[k] - 1 for k in found)
            line += [
                f"{100 * len(won) / len(cost):.0f}",
                f"{100 * statistics.mean(won):.1f}" if won else "0",
                f"{100 * behind:.1f}",
            ]
        body.append(line)
    line = ["any method", str(len(_singles(result, models[0])))]
    could = ["at most, by the bound", line[1]]
    for model in models:
        known, single = _best_known(result, model), _singles(result, model)
        won = _wins(result, model, known)
        line += [f"{100 * len(won) / len(known):.0f}", f"{100 * statistics.mean(won):.1f}" if won else "0", "0"]
        bounds = {k: v for k, v in result["bounds"][model].items() if k != "profile"}
        room = [1 - bounds[k] / single[k] for k in bounds if bounds[k] < single[k] * (1 - TIE)]
        could += [f"{100 * len(room) / len(bounds):.0f}", f"{100 * statistics.mean(room):.1f}" if room else "0", "–"]
    return markdown_table(head, [*body, line, could])


def _paper_machines_says(result: Result, models: Sequence[str]) -> str:
    shares, gains, best = [], [], 0.0
    for model in models:
        known = _best_known(result, model)
        won = _wins(result, model, known)
        shares.append(f"{100 * len(won) / len(known):.0f}% of the machines for {model}")
        gains += won
        best = max([best, *won])

    lost: list[str] = []

    def told(row: str) -> str:
        behind = []
        for model in models:
            cost = _drawn(result, model, row)
            for k, best_known in _best_known(result, model).items():
                behind.append(cost[k] / best_known - 1)
                if behind[-1] > TIE:
                    ahead = min(result["drawn"][model], key=lambda one: _drawn(result, model, one).get(k, math.inf))
                    lost.append(f"{row} on machine {k} of {model}, to {ahead}")
        tied = sum(share <= TIE for share in behind)
        return f"{row} on {tied} of {len(behind)} problems ({100 * max(behind):.1f}% behind at worst)"

    ours = f"{told(SHIPPED)} and {told(DEFAULT)}"
    where = f" ({'; '.join(lost)}: {_NO_LUCK})" if lost and len(lost) < _FEW else ""

    paper_gain = max(entry["paper_saved_percent"] for entry in result["models"].values())
    mean = f"{100 * statistics.mean(gains):.1f}%" if gains else "nothing"
    return paragraph(
        f"""A split beats the best single device on {listed(shares)}, by {mean} in the mean and {100 * best:.1f}% at
        most; within {100 * TIE:g}% of the best known are {ours}{where}, so that these figures are the search's, not
        the network's. For one request at a time, on machines that fit what is known of the paper's, whoever picks
        the right device has most of what there is, and {paper_gain}%, which the paper saves over the CPU for one
        model, can only be mainly the GPU's. It does not say what splits give where devices lack operations or memory
        or where many requests are in flight, and the draws are as good as their model of HETERO, which lets one
        submodel run after the other."""
    )


def _ablations(result: Result) -> dict[tuple[str, str], dict[str, list[float]]]:
    """(model, objective) → row → costs of all seeds."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for entry in result["ablations"]:
        key = (entry["model"], entry["objective"])
        cost = math.inf if entry["us"] is None else entry["us"]
        found.setdefault(key, {}).setdefault(entry["row"], []).append(cost)
    return found


def _paper_ablations(result: Result, models: Sequence[str]) -> str:
    found = _ablations(result)
    keys = [(model, objective) for objective in ("latency", "throughput") for model in models]
    keys = [key for key in keys if key in found]
    body = []
    for row in found[keys[0]]:
        line = [row]
        for key in keys:
            full = next(iter(found[key].values()))
            ratio = statistics.median(found[key][row]) / statistics.median(full)
            text = "1" if found[key][row] is full else f"{ratio:.3f}"
            line.append(f"**{text}**" if text != "1" and _differs(full, found[key][row]) else text)
        body.append(line)
    return markdown_table(["", *(f"{model}, {objective}" for model, objective in keys)], body)


def _differs(a: Sequence[float], b: Sequence[float]) -> bool:
    return bool(mannwhitneyu(a, b).pvalue < 0.05)


def _paper_ablations_says(result: Result, models: Sequence[str]) -> str:
    found = _ablations(result)
    tested = worse = better = 0
    untrained_worse = untrained = 0
    spread = []
    for rows in found.values():
        full = next(iter(rows.values()))
        spread.append(max(full) / min(full) - 1)
        for row, costs in rows.items():
            if costs is full:
                continue
            slower = statistics.median(costs) > statistics.median(full)
            if row == "not trained":
                untrained += 1
                untrained_worse += _differs(full, costs) and slower
            elif row.startswith("without"):
                tested += 1
                worse += _differs(full, costs) and slower
                better += _differs(full, costs) and not slower
    return paragraph(
        f"""Leaving a group of features out makes the result measurably worse in {worse} of {tested} cases and
        measurably better in {better}; not training at all makes it worse in {untrained_worse} of {untrained}. What
        the paper's ablation calls the contribution of its features is here less than the scatter between seeds
        ({100 * statistics.mean(spread):.0f}% between the best and the worst of five in the mean). It does not say
        that the features are useless: with five seeds and a budget of hundreds of draws only large effects can be
        seen, and the policy that ships is trained over many problems, not on one."""
    )


# ---- (f) public instances


def outside(result: Result) -> str:
    """outside.py's table."""
    settings = result["settings"]
    names = list(result["instances"])
    head = ["largest load, ms", *names]
    facts = [
        ["operations", *(str(result["instances"][name]["nodes"]) for name in names)],
        ["accelerators", *(str(result["instances"][name]["accelerators"]) for name in names)],
        ["published optimum of contiguous splits", *_figures(result, names, "contiguous_optimum_ms")],
        ["human experts", *_figures(result, names, "expert_ms")],
        ["lower bound of any placement", *_figures(result, names, "bound_ms")],
    ]
    body = []
    for row in result["cells"][names[0]]:
        line = [named(row)]
        for name in names:
            cells = result["cells"][name][row]
            loads = values(cells, "load_ms")
            line.append(_spread(loads) if loads else why(cells))
        body.append(line)
    return (
        "\n\n".join(
            [
                "# Public instances",
                f"Made by `python -m benchmarks.outside CLONE`; runs are in outside.json. {made_on(result)}",
                paragraph(
                    f"""The instances for throughput of Tarnawski et al. (NeurIPS 2020), in their objective: the
                    largest load of a device for one inference. Published optima are of contiguous splits, by their
                    exact dynamic programme; experts split layer graphs alone. Budget of each run:
                    {settings["evaluations"]} evaluations and {settings["seconds"]:g} s of processor time; medians of
                    {settings["seeds"]} seeds (least … most). Lower bounds are HiGHS' within its limit of time. What
                    learns has its rule of co-location on operator graphs alone. {WITH_POLICY}"""
                ),
                markdown_table(head, [*facts, *body]),
                _outside_says(result, names),
            ]
        )
        + "\n"
    )


def _figures(result: Result, names: Sequence[str], key: str) -> list[str]:
    found = [result["instances"][name][key] for name in names]
    return ["*none published*" if value is None else f"{value:.2f}" for value in found]


def _spread(figures: Sequence[float]) -> str:
    centre = f"{statistics.median(figures):.2f}"
    low, high = f"{min(figures):.2f}", f"{max(figures):.2f}"
    return centre if low == high else f"{centre} ({low} … {high})"


def _loads(result: Result) -> dict[str, dict[str, float]]:
    """Row → instance → median load."""
    names = list(result["cells"])
    return {
        row: {name: middle(result["cells"][name][row], "load_ms") for name in names}
        for row in result["cells"][names[0]]
    }


def _outside_says(result: Result, names: Sequence[str]) -> str:
    loads = _loads(result)
    best = {name: min(row[name] for row in loads.values()) for name in names}
    ours = loads[SHIPPED]
    tied = [name for name in names if ours[name] <= best[name] * (1 + TIE)]
    lost = {name: min(loads, key=lambda row: loads[row][name]) for name in names if name not in tied}
    published = {name: result["instances"][name]["contiguous_optimum_ms"] for name in names}
    known = [name for name in names if published[name] is not None]
    below = [name for name in known if ours[name] < published[name] * (1 - TIE)]
    above = [name for name in known if ours[name] > published[name] * (1 + TIE)]
    gain = max((1 - ours[name] / published[name] for name in below), default=0.0)
    learned = {
        row: statistics.geometric_mean(loads[row][name] / best[name] for name in names)
        for row in loads
        if row in LEARNED_NAMES and all(math.isfinite(loads[row][name]) for name in names)
    }
    order = sorted(learned, key=lambda row: learned[row])
    behind = f"; where it is not: {', '.join(f'{name} ({row})' for name, row in lost.items())}" if lost else ""
    alone = sum(loads[DEFAULT][name] <= best[name] * (1 + TIE) for name in names)
    without = f"without a network, {DEFAULT} is best or tied on {alone}, so that the search earns this"
    far = (
        f"What learns on the instance itself ends {100 * (learned[order[0]] - 1):.0f}% ({order[0]}) to"
        f" {100 * (learned[order[-1]] - 1):.0f}% ({order[-1]}) above the best in the geometric mean"
        if order
        else "No method that learns on the instance itself has an answer everywhere"
    )
    return paragraph(
        f"""{SHIPPED} is best or within {100 * TIE:g}% of the best on {len(tied)} of {len(names)} instances{behind};
        it is below the published optimum of contiguous splits on {len(below)} of {len(known)} by up to
        {100 * gain:.0f}%, as splits need not be contiguous in HETERO, and above it on {len(above)}; {without}.
        {far}, and list schedulers, which minimise the end of one inference, leave devices idle where many are in
        flight. It does not say that a placement which is better by this objective is faster on a machine: loads are
        sums of published costs, and the problems have no costs of submodels, which is what HETERO's splits pay
        first."""
    )


# ---- (e) what placing costs


def cost(result: Result) -> str:
    """cost.py's table."""
    settings, sizes = result["settings"], list(result["sizes"])
    head = ["processor seconds (period / best)"]
    head += [f"{result['sizes'][size]['operations']:,} operations" for size in sizes]
    best = _cheapest(result)
    body = []
    for row, of_size in result["cells"].items():
        line = [named(row)]
        for size in sizes:
            cell = of_size[size]
            line.append(why([cell]) if cell["us"] is None else f"{cell['seconds']:.2f} ({cell['us'] / best[size]:.2f})")
        body.append(line)
    return (
        "\n\n".join(
            [
                "# What placing costs",
                f"Made by `python -m benchmarks.cost`; runs are in cost.json. {made_on(result)}",
                paragraph(
                    f"""Encoders of growing depth on a Flex 170 and a Xeon (built-in profiles), throughput,
                    simulated. Budget of each run: {settings["evaluations"]} evaluations and {settings["seconds"]:g}
                    s of processor time of all threads together, reading the problem's costs included; extracting the
                    graph from the model, which all methods share, is not. In brackets: period of the placement over
                    the best that any method found for this graph."""
                ),
                markdown_table(head, body),
                _cost_says(result),
            ]
        )
        + "\n"
    )


def _cheapest(result: Result) -> dict[str, float]:
    """Best cost of each size."""
    return {
        size: min(cell[size]["us"] for cell in result["cells"].values() if cell[size]["us"] is not None)
        for size in result["sizes"]
    }


def _cost_says(result: Result) -> str:
    sizes, best = list(result["sizes"]), _cheapest(result)
    first, last = sizes[0], sizes[-1]
    good = [
        row
        for row, of_size in result["cells"].items()
        if all(cell["us"] is not None and cell["us"] <= best[size] * 1.05 for size, cell in of_size.items())
    ]
    lost = [row for row, of_size in result["cells"].items() if any(cell["us"] is None for cell in of_size.values())]

    def took(row: str) -> str:
        ours = result["cells"][row]
        behind = max(ours[size]["us"] / best[size] - 1 for size in sizes if ours[size]["us"] is not None)
        small, large = (ours[size]["seconds"] for size in (first, last))
        return f"{row} takes {small:.2f} s at the smallest and {large:.2f} s at the largest ({100 * behind:.1f}%)"

    return paragraph(
        f"""{took(DEFAULT)}, {took(SHIPPED)}, in brackets how far behind the best they are at worst; within 5% of the
        best at all sizes are {listed(good) if good else "no methods"}. What is in the budget for
        {len(result["cells"])} methods at {result["sizes"][first]["operations"]:,} operations is so for
        {len(result["cells"]) - len(lost)} at
        {result["sizes"][last]["operations"]:,}{f" (not for {listed(lost)})" if lost else ""}. It does not say how
        long a user waits, which reading, transforming and measuring the model decide (docs/results.md has these
        times), nor that another implementation of a method would not be faster: these are ours, in Python and
        PyTorch."""
    )


# ---- (b) measured on real HETERO

_SETTINGS = {
    "latency": "Latency of one request",
    "throughput": "Throughput",
    "memory": "Throughput, each device with memory for 60% of the model",
}


def measured(result: Result) -> str:
    """measured.py's tables."""
    settings = result["settings"]
    parts = [
        "# Measured on real HETERO",
        f"Made by `python -m benchmarks.measured`; figures are in measured.json. {made_on(result)}",
        paragraph(
            f"""Two one-core devices made of the CPU plugin; all ways to run a model in turns, {settings["rounds"]}
            rounds of {settings["seconds"]:g} s. Figures are rates over those of {MEASURED} ({DEFAULT} where it did
            not run), medians of the rounds that both ran in, with 95% intervals; above 1 is faster than ours. Of
            equal placements one was measured. Methods place by predicted costs with {settings["evaluations"]}
            evaluations."""
        ),
    ]
    for setting, title in _SETTINGS.items():
        models = [model for model, of in result["cells"].items() if setting in of]
        if not models:
            continue
        rows = list(dict.fromkeys(row for model in models for row in result["cells"][model][setting]))
        body = []
        for row in rows:
            line = [named(row)]
            for model in models:
                cell = result["cells"][model][setting].get(row, {"why": "not run"})
                line.append(f"*{cell['why']}*" if "why" in cell else _interval(cell))
            body.append(line)
        parts += [f"## {title}", markdown_table(["", *models], body), _measured_says(result, setting, models)]
    return "\n\n".join(parts) + "\n"


def _interval(cell: Result) -> str:
    centre, low, high = cell["of_ours"]
    same = f" (as {cell['same_as']})" if cell.get("same_as") else ""
    return f"{centre:.3f} ({low:.3f} … {high:.3f}){same}"


def _measured_says(result: Result, setting: str, models: Sequence[str]) -> str:
    cells = {model: result["cells"][model][setting] for model in models}
    reference = MEASURED if any("of_ours" in of.get(MEASURED, {}) for of in cells.values()) else DEFAULT
    faster = {
        model: [row for row, cell in of.items() if "of_ours" in cell and cell["of_ours"][1] > 1 + TIE]
        for model, of in cells.items()
    }
    behind = {model: rows for model, rows in faster.items() if rows}

    def mean(row: str) -> float | None:
        found = [of[row]["of_ours"][0] for of in cells.values() if "of_ours" in of.get(row, {})]
        return statistics.geometric_mean(found) if found else None

    means = {row: mean(row) for row in dict.fromkeys(row for of in cells.values() for row in of)}
    others = {
        row: value for row, value in means.items() if value is not None and row not in (DEFAULT, SHIPPED, MEASURED)
    }
    copies = (
        " Copies need the memory of the whole model on each device, and HETERO cannot run them; where they are faster,"
        " `place` says so."
        if any("copies" in rows for rows in behind.values())
        else ""
    )
    predicted = listed([f"{row} {means[row]:.3f}" for row in (DEFAULT, SHIPPED) if means.get(row) is not None])
    nearest = sorted(others, key=lambda row: -others[row])[:3]
    near = listed([f"{row} ({others[row]:.3f})" for row in nearest])
    lost = "; ".join(f"{model}: {listed(rows)}" for model, rows in behind.items())
    where = f" (where it is: {lost})" if lost else ""
    none = sum(value is None for value in means.values())
    told = (
        "One request leaves one of the two devices idle whatever the placement, so that a tie with the better device is"
        " what can be had"
        if setting == "latency"
        else "With many requests in flight both devices can work all the time: what counts is how evenly work is cut"
        " and how little moves"
    )
    return paragraph(
        f"""Nothing is measurably faster than {reference} on {len(models) - len(behind)} of {len(models)}
        models{where}; in the geometric mean over the models that they run the nearest are {near}, and by prediction
        alone {predicted}.{copies} {told}; {none} of {len(means)} ways to run a model have no figure at all here. It
        does not say how a GPU or an NPU beside a CPU would do: the devices are equal cores of one machine, which
        share its memory."""
    )


# ---- plots and page


def measured_plot(result: Result) -> str:
    """Throughput of each way to run each model over ours."""
    cells = {model: of["throughput"] for model, of in result["cells"].items() if "throughput" in of}
    names = dict.fromkeys(row for of in cells.values() for row in of)
    rows = {
        row: {model: [of[row]["of_ours"][0]] for model, of in cells.items() if "of_ours" in of.get(row, {})}
        for row in names
    }
    return dot_plot.dots(
        "Throughput on two one-core devices, real HETERO",
        f"rate / rate of {MEASURED} (further right is faster)",
        {row: of for row, of in rows.items() if of},
    )


def cost_plot(result: Result) -> str:
    """Processor seconds of each method, by size."""
    sizes = {size: f"{entry['operations']:,} operations" for size, entry in result["sizes"].items()}
    rows = {
        row: {sizes[size]: [max(cell["seconds"], 1e-3)] for size, cell in of.items() if cell["us"] is not None}
        for row, of in result["cells"].items()
    }
    return dot_plot.dots("What placing costs", "processor seconds of methods that found a placement", rows)


def paper_plot(result: Result) -> str:
    """Cost of each method's placement over the best single device, on every drawn machine."""
    models = list(result["models"])
    rows: dict[str, dict[str, list[float]]] = {}
    for row in result["drawn"][models[0]]:
        rows[row] = {}
        for model in models:
            cost, single = _drawn(result, model, row), _singles(result, model)
            rows[row][model] = [cost[k] / single[k] for k in cost]
    return dot_plot.dots(
        "Latency on plausible machines of the paper's experiment",
        "latency / best single device's (larger than 3 drawn at 3)",
        rows,
        most=3.0,
    )


def outside_plot(result: Result) -> str:
    """Load of each method over the best, on every instance."""
    loads = _loads(result)
    best = {name: min(row[name] for row in loads.values()) for name in result["cells"]}
    rows = {row: {name: [cost[name] / best[name]] for name in best} for row, cost in loads.items()}
    return dot_plot.dots(
        "Public instances of Tarnawski et al.",
        "largest load / best of all methods (larger than 10 drawn at 10)",
        rows,
        most=10.0,
    )


SECTIONS: dict[str, tuple[Callable[[Result], str], Callable[[Result], str] | None]] = {
    "paper_table": (paper, paper_plot),
    "measured": (measured, measured_plot),
    "generalisation": (generalisation, generalisation_plot),
    "finetune_busy": (samples, samples_plot),
    "cost": (cost, cost_plot),
    "outside": (outside, outside_plot),
    "baselines_learn": (learned, None),
}
"""Files of results/ → what makes Markdown and a plot of one."""


def section(folder: Path = RESULTS, plots: Path = PAGE.parent) -> str:
    """The section of docs/results.md; its plots are written beside it. Files that are missing are left out."""
    parts = []
    for stem, (text, plot) in SECTIONS.items():
        path = folder / f"{stem}.json"
        if not path.exists():
            continue
        result = json.loads(path.read_text(encoding="utf-8"))
        if "about" not in result:  # of a benchmark that had this name before
            continue
        # One level below the page's own headings.
        made = "\n".join(f"#{line}" if line.startswith("#") else line for line in text(result).splitlines())
        if plot is not None:
            name = f"field_{stem}.svg"
            write_text(plots / name, plot(result))
            made += f"\n\n![{made.splitlines()[0].lstrip('# ')}]({name})"
        parts.append(made)
    return "\n\n".join(parts)


_SHORT = (DEFAULT, SHIPPED, "search, no network", "HSDAG as published", "GO, from scratch", "RNN-based", "Placeto")
"""Rows of the short table, which the benchmarks of all its columns have."""


def _paper_short(result: Result, row: str) -> str:
    behind = [
        cost[k] / known[k] - 1
        for model in result["models"]
        for cost, known in [(_drawn(result, model, row), _best_known(result, model))]
        for k in cost
    ]
    return f"{100 * statistics.mean(behind):.1f}"


def _generalisation_short(result: Result, row: str) -> str:
    mean, lacking = mean_behind(result, row)
    return f"{100 * (mean - 1):.1f}" + f", no placement in {lacking}" * bool(lacking)


def _outside_short(result: Result, row: str) -> str:
    loads = _loads(result)
    best = {name: min(of[name] for of in loads.values()) for name in result["cells"]}
    return f"{100 * (statistics.geometric_mean(loads[row][name] / best[name] for name in best) - 1):.1f}"


_COLUMNS: dict[str, tuple[str, Callable[[Result, str], str]]] = {
    "paper_table": ("paper's experiment", _paper_short),
    "generalisation": ("unseen models and devices", _generalisation_short),
    "outside": ("public instances", _outside_short),
}
"""Files of results/ → title and figures of a column of the short table."""


def short(folder: Path = RESULTS) -> str:
    """The table of README.md: what each method loses. Files that are missing are left out."""
    found = {
        title: (json.loads((folder / f"{stem}.json").read_text(encoding="utf-8")), figure)
        for stem, (title, figure) in _COLUMNS.items()
        if (folder / f"{stem}.json").exists()
    }
    body = [[named(row), *(figure(result, row) for result, figure in found.values())] for row in _SHORT]
    return markdown_table(["behind the best of all methods, %", *found], body)


_SHORT_MEASURED = (MEASURED, DEFAULT, SHIPPED, "copies", "contiguous partition", "METIS", "hetero-pipeline", "hetero")
"""Rows of the short table of what was measured, besides the better device."""
_ALONE = ("CPU_A", "CPU_B")


def short_measured(result: Result) -> str:
    """The second table of README.md: the rate of each way to run a model over ours.

    Geometric means over the models that it runs, with their number where these are not all.
    """
    cells: dict[str, list[Mapping[str, Result]]] = {
        setting: [of[setting] for of in result["cells"].values() if setting in of] for setting in _SETTINGS
    }

    def figure(rows: Sequence[str], of_models: Sequence[Mapping[str, Result]]) -> str:
        found = [[of[row]["of_ours"][0] for row in rows if "of_ours" in of.get(row, {})] for of in of_models]
        rates = [max(of) for of in found if of]
        if not rates:
            return "–"
        some = "" if len(rates) == len(of_models) else f" ({len(rates)} of {len(of_models)})"
        return f"{statistics.geometric_mean(rates):.2f}{some}"

    rows = {named(row): (row,) for row in _SHORT_MEASURED} | {"the better device alone": _ALONE}
    body = [
        [title, *(figure(of, cells[setting]) for setting in ("latency", "throughput", "memory"))]
        for title, of in rows.items()
    ]
    return markdown_table([f"rate / rate of {MEASURED}", "latency", "throughput", "throughput in little memory"], body)


def between(page: Path, text: str) -> None:
    """Writes text between the markers of a page; at its end where it has none."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    if not rest:
        before, after = f"{before.rstrip()}\n\n", "\n"
    write_text(page, f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def main() -> None:
    """Writes the section and the short table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.parse_args()
    between(PAGE, section())
    tables = [short()]
    if (RESULTS / "measured.json").exists():
        result = json.loads((RESULTS / "measured.json").read_text(encoding="utf-8"))
        tables += [
            paragraph(
                f"""On real HETERO, two one-core devices, {len(result["cells"])} models in turns; little memory is 60%
                of the model on each device (in brackets, how many models a way runs, where not all; –: it does not run
                there):"""
            ),
            short_measured(result),
        ]
    between(README, "\n\n".join(tables))


if __name__ == "__main__":
    main()
