"""The experiment of HSDAG's paper on the simulator: Inception-V3, ResNet-50 and BERT on a Xeon and a Flex 170, latency.

`HSDAGConfig.paper()` and its ablations learn each model by itself, from scratch, with several seeds
(`ov_hsdag.training.episode`); what they find is put beside each single device, HETERO's rule, a minimum cut and, where
one ships, the pretrained policy. Every latency is simulated, with built-in profiles that were not measured.

The single runs are kept in benchmarks/results/paper_table.json and repeated only where the problem, the features or the
settings have changed since; benchmarks/results/paper_table.md is the table, and what of the paper's ordering it
confirms.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ov_hsdag.placers.mincut import MinCut
from ov_hsdag.placers.single import HeteroDefault
from ov_hsdag.policy.bundle import DEFAULT, ships
from ov_hsdag.policy.placer import HSDAGPlacer
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.training import corpus, episode
from ov_hsdag.training.config import HSDAGConfig, Widths
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.files import write_json, write_text

RESULTS = Path(__file__).parent / "results" / "paper_table.json"

MODELS = {"Inception-V3": "inception-v3", "ResNet-50": "resnet50", "BERT": "bert-base"}
"""The paper's models and their names in the zoo."""

DEVICES = "xeon+flex"

RECIPE = 1
"""Version of the training below: another one repeats all runs."""

# Latencies that differ by less, as a share, are equal.
_TIE = 1e-3

# Share of pairs of seeds that have to agree: with five seeds each, a Mann-Whitney test at 5%.
_AGREE = 0.9

# What the paper's abstract reports: time saved over CPU only, and over the other baselines, at most.
PAPER_OVER_CPU, PAPER_OVER_OTHERS = 58.2, 60.24

CPU, GPU, CUT, MOVED, BASE = "CPU only", "GPU only", "minimum cut", "GPU only but for one group", "HSDAG, base()"
GPU_FIRST, CPU_FIRST = "HETERO's rule, GPU first", "HETERO's rule, CPU first"
FULL, UNTRAINED, FASTER = "HSDAG, paper()", "paper(), not trained", "paper(), learning rate 1e-3"
WITHOUT = {
    "output_shape": "paper() without output shape",
    "node_id": "paper() without node id",
    "structure": "paper() without structural features",
}
REFUSED = ", single devices refused"


@dataclass(frozen=True)
class Variant:
    """A way to train.

    Attributes:
        name: its row in the table.
        without: groups of features that are left out.
        learning_rate: None: the paper's.
        split_only: placements on a single device count as infeasible, as in the authors' code.
    """

    name: str
    without: tuple[str, ...] = ()
    learning_rate: float | None = None
    split_only: bool = False


def variants() -> list[Variant]:
    """All that is trained, rows of the table first."""
    found = []
    for split_only, suffix in ((False, ""), (True, REFUSED)):
        found.append(Variant(FULL + suffix, split_only=split_only))
        found += [Variant(name + suffix, (group,), None, split_only) for group, name in WITHOUT.items()]
        found.append(Variant(UNTRAINED + suffix, (), 0.0, split_only))
    return [*found, Variant(FASTER, learning_rate=1e-3)]


def load(folder: Path, model: str) -> tuple[PlacementProblem, str]:
    """The paper's problem: a model of the zoo on HETERO:GPU,CPU, for latency; extracted first where it is missing.

    Returns:
        The problem and the model's family.
    """
    corpus.make(folder, [model], report=lambda text: print(text, file=sys.stderr))
    (path,) = folder.glob(f"*/{model}.npz")
    names, profile = corpus.device_set(corpus.HELD_OUT_SETS[DEVICES])
    return corpus.assemble(PlacementProblem.load(path), names, profile, "latency"), path.parent.name


def baselines(problem: PlacementProblem) -> dict[str, NDArray[np.uint8]]:
    """Placements that nobody learned, and the shipped policy's where there is one."""
    gpu, cpu = problem.devices.index("GPU"), problem.devices.index("CPU")
    last = len(problem.devices) - 1
    found = {
        CPU: problem.single(cpu),
        GPU: problem.single(gpu),
        CPU_FIRST: (last - problem.group_supported[:, ::-1].argmax(axis=1)).astype(np.uint8),
        GPU_FIRST: HeteroDefault().place(problem),
        CUT: MinCut().place(problem),
    }
    moved = np.tile(problem.single(gpu), (problem.group_count, 1))
    np.fill_diagonal(moved, cpu)
    found[MOVED] = moved[int(problem.scores(moved).argmin())]
    if ships(DEFAULT):
        try:
            found[BASE] = HSDAGPlacer(DEFAULT).place(problem)
        except UserError as error:
            print(f"no row for the shipped policy: {error}", file=sys.stderr)
    return found


def optimum_is_single(problem: PlacementProblem) -> bool:
    """Whether no split can be faster than the best single device, of two.

    Without costs of submodels the minimum cut is exact. A split has at least one submodel on each device.
    """
    free = replace(problem, submodel_us=np.zeros(len(problem.devices)))
    bound = float(free.scores(MinCut().place(free))[0]) + float(problem.submodel_us.sum())
    singles = np.stack([problem.single(device) for device in range(len(problem.devices))])
    return bool(problem.scores(singles).min() <= bound)


def fingerprint(task: episode.Task, config: HSDAGConfig, settings: Mapping[str, Any]) -> str:
    """Changes with anything that a run depends on, the code aside."""
    # The paper's network sees features of nodes alone, and these are hashed below.
    algorithm = {key: value for key, value in config.to_dict().items() if key != "widths"}
    digest = hashlib.sha256(json.dumps([RECIPE, algorithm, dict(settings)], sort_keys=True).encode())
    p, x = task.problem, task.x
    for array in (p.node_us, p.supported, p.groups, p.transfer_us, p.transfer_us_per_byte, p.submodel_us, x.coarse):
        digest.update(np.ascontiguousarray(array).tobytes())
    digest.update(p.graph.output_bytes.tobytes() + x.node_x.tobytes() + x.edge_index.tobytes())
    return digest.hexdigest()[:16]


def run(problem: PlacementProblem, variant: Variant, seed: int, episodes: int, known: Mapping[str, Any]) -> Any:
    """One training, or what is `known` of it where that is the same: JSON-able."""
    ours_off = HSDAGConfig.paper(Widths(0, 0, 0, 0), len(problem.devices), variant.without)
    task = episode.Task.of(problem, ours_off, variant.split_only)
    config = HSDAGConfig.paper(Widths.of(task.x), len(problem.devices), variant.without)
    rate = episode.LEARNING_RATE if variant.learning_rate is None else variant.learning_rate
    settings = {"episodes": episodes, "learning_rate": rate, "seed": seed, "split_only": variant.split_only}
    identity = fingerprint(task, config, settings)
    if known.get("fingerprint") == identity:
        return known
    result = episode.train(task, config, episodes=episodes, learning_rate=rate, seed=seed)
    tenth = max(episodes // 10, 1)
    return {
        "fingerprint": identity,
        **settings,
        "best_us": _finite(result.best_score),
        "best_episode": result.best_episode,
        "best_groups_on": dict(
            zip(problem.devices, np.bincount(result.best, minlength=len(problem.devices)).tolist(), strict=True)
        ),
        "greedy_us": _finite(result.greedy_score),
        "reward_first": float(result.mean_reward[:tenth].mean()),
        "reward_last": float(result.mean_reward[-tenth:].mean()),
        "infeasible": result.infeasible,
        "cpu_seconds": round(result.seconds, 2),
    }


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _number(value: float | None) -> float:
    return np.inf if value is None else value


def measure(
    folder: Path, models: Sequence[str], seeds: int, episodes: int, output: Path, known: dict[str, Any]
) -> dict[str, Any]:
    """All problems, baselines and runs; written to `output` after each run, so that an interrupted table goes on."""
    problems: dict[str, PlacementProblem] = {}
    runs: dict[str, Any] = {}
    start = time.perf_counter()
    every = variants()
    total = len(models) * len(every) * seeds
    result: dict[str, Any] = {
        "simulated": True,
        "devices": {"set": DEVICES, "profiles": list(corpus.HELD_OUT_SETS[DEVICES])},
        "settings": {
            "seeds": seeds,
            "episodes": episodes,
            "steps": HSDAGConfig.paper(Widths(0, 0, 0, 0)).steps,
            "config": HSDAGConfig.paper(Widths(0, 0, 0, 0)).to_dict() | {"widths": "those of the features"},
        },
        "models": {},
        "runs": runs,
    }
    for name in models:
        problem, family = load(folder, MODELS[name])
        problems[name] = problem
        result["models"][name] = {
            "zoo": MODELS[name],
            "family": family,
            "nodes": problem.graph.nodes,
            "legality_groups": problem.group_count,
            "coarse_groups": int(problem.coarse.max()) + 1,
            "optimum_is_single": optimum_is_single(problem),
            "latency_us": {row: _finite(float(problem.scores(where)[0])) for row, where in baselines(problem).items()},
        }
    for name in models:
        for variant in every:
            for seed in range(seeds):
                key = f"{name} | {variant.name} | {seed}"
                old = known.get("runs", {}).get(key, {})
                runs[key] = run(problems[name], variant, seed, episodes, old)
                if runs[key] is not old:
                    write_json(output, result)
                    passed = time.perf_counter() - start
                    best = _number(runs[key]["best_us"]) / 1e3
                    print(f"{len(runs)}/{total} {passed:6.0f} s  {key}: best {best:.4f} ms", file=sys.stderr)
    result["training_cpu_seconds"] = round(sum(entry["cpu_seconds"] for entry in runs.values()), 1)
    return result


def values(result: Mapping[str, Any], model: str, row: str, what: str = "best_us") -> NDArray[np.float64]:
    """A figure of a row: one value for a baseline's latency, one for each seed otherwise."""
    fixed = result["models"][model]["latency_us"]
    if row in fixed and what == "best_us":
        return np.array([_number(fixed[row])])
    runs = result["runs"].items()
    return np.array([_number(run[what]) for key, run in runs if key.rsplit(" | ", 1)[0] == f"{model} | {row}"])


def latency(result: Mapping[str, Any], model: str, row: str) -> float:
    """Latency of a row, µs: of a baseline, or the median over seeds of the best placement that was drawn."""
    return float(np.median(values(result, model, row)))


def saved(reference: float, value: float) -> float:
    """Share of the reference's time that is saved, per cent: the paper's speed-up."""
    return 100 * (1 - value / reference)


@dataclass(frozen=True)
class Comparison:
    """Whether one row is faster than another, model by model: {model: -1 faster, 0 equal, 1 slower}."""

    claim: str
    signs: Mapping[str, int]

    @property
    def verdict(self) -> str:
        """In words."""
        kinds = {-1: [], 0: [], 1: []}  # type: dict[int, list[str]]
        for model, sign in self.signs.items():
            kinds[sign].append(model)
        if not kinds[0] and not kinds[1]:
            return "confirmed"
        words = [
            f"{word} {', '.join(kinds[sign])}"
            for sign, word in ((-1, "confirmed for"), (0, "no difference for"), (1, "the reverse for"))
            if kinds[sign]
        ]
        return ("" if kinds[-1] else "not confirmed: ") + "; ".join(words)


def compare(result: Mapping[str, Any], claim: str, faster: str, slower: str) -> Comparison:
    """Compares two rows: the medians have to differ, and nearly all pairs of seeds in the same direction."""
    signs = {}
    for model in result["models"]:
        a, b = values(result, model, faster), values(result, model, slower)
        ratio = np.median(a) / np.median(b)
        pairs = np.sign(a[:, None] / b[None, :] - 1)
        agree = (pairs == np.sign(ratio - 1)).mean() >= _AGREE
        signs[model] = int(np.sign(ratio - 1)) if abs(ratio - 1) > _TIE and agree else 0
    return Comparison(claim, signs)


def comparisons(result: Mapping[str, Any], suffix: str) -> list[Comparison]:
    """The paper's ordering, of rows with a suffix, against ours."""
    full = FULL + suffix
    return [
        *(compare(result, f"HSDAG is faster than {row}", full, row) for row in (CPU, GPU, CPU_FIRST, GPU_FIRST)),
        *(
            compare(result, f"HSDAG is faster than {name.replace('paper() ', 'itself ')}", full, name + suffix)
            for name in WITHOUT.values()
        ),
    ]


def gains(result: Mapping[str, Any], suffix: str) -> dict[str, float]:
    """The two numbers of the paper's abstract, as ours: the largest time saved over CPU only, and over any baseline."""
    full = FULL + suffix
    over_cpu = [saved(latency(result, m, CPU), latency(result, m, full)) for m in result["models"]]
    others = [
        saved(latency(result, m, row), latency(result, m, full))
        for m in result["models"]
        for row in (GPU, CPU_FIRST, GPU_FIRST)
    ]
    return {"over_cpu_only_percent": max(over_cpu), "over_others_percent": max(others)}


def read(result: dict[str, Any]) -> None:
    """Adds what follows from the runs: rows and comparisons."""
    fixed = [row for row in (CPU, GPU, CPU_FIRST, GPU_FIRST, CUT, BASE) if all(
        row in entry["latency_us"] for entry in result["models"].values()
    )]  # fmt: skip
    learned = [FULL, *WITHOUT.values()]
    rows = [*fixed, *learned, MOVED, *(row + REFUSED for row in learned)]
    result["rows"] = {
        row: {
            model: {
                "latency_ms": round(latency(result, model, row) / 1e3, 6),
                "speed_up_percent": round(saved(latency(result, model, CPU), latency(result, model, row)), 2),
            }
            for model in result["models"]
        }
        for row in rows
    }
    result["comparisons"] = {
        mode: {
            **{item.claim: item.verdict for item in comparisons(result, suffix)},
            **{name: round(value, 2) for name, value in gains(result, suffix).items()},
        }
        for mode, suffix in (("all placements count", ""), ("single devices refused", REFUSED))
    }
    result["checks"] = {
        item.claim: item.verdict
        for item in (
            compare(result, "GPU only is faster than CPU only", GPU, CPU),
            compare(result, "the minimum cut is faster than GPU only", CUT, GPU),
            compare(result, "training finds faster placements than drawing without training", FULL, UNTRAINED),
            compare(
                result,
                "training finds faster placements than drawing without training, single devices refused",
                FULL + REFUSED,
                UNTRAINED + REFUSED,
            ),
            compare(result, "a learned split is faster than GPU only but for one group", FULL + REFUSED, MOVED),
        )
    }


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: bool = True) -> str:
    lines = [list(head), ["---", *["---:" if numbers else "---"] * (len(head) - 1)], *map(list, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _spread(figures: NDArray[np.float64], scale: float = 1.0, digits: int = 3) -> str:
    middle, least, most = (
        f"{value * scale:.{digits}f}" if np.isfinite(value) else "none"
        for value in (np.median(figures), figures.min(), figures.max())
    )
    return middle if least == most else f"{middle} ({least} … {most})"


def _paragraph(text: str) -> str:
    return "\n".join(textwrap.wrap(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False))


def _latencies(result: Mapping[str, Any], rows: Sequence[str]) -> str:
    head = [""]
    for model in result["models"]:
        head += [f"{model}, ms", "speed-up, %"]
    body = []
    for row in rows:
        line = [row.replace(REFUSED, "")]
        for cell in result["rows"][row].values():
            line += [f"{cell['latency_ms']:.3f}", f"{cell['speed_up_percent']:.1f}"]
        body.append(line)
    return _table(head, body)


def _learning(result: Mapping[str, Any], rows: Sequence[str]) -> str:
    head = ["", "model", "best drawn, ms", "found in episode", "greedy, ms", "reward, first", "reward, last"]
    body = []
    for row in rows:
        for model in result["models"]:
            line = [row.replace(REFUSED, ""), model]
            for what, scale, digits in (
                ("best_us", 1e-3, 3),
                ("best_episode", 1, 0),
                ("greedy_us", 1e-3, 3),
                ("reward_first", 1, 2),
                ("reward_last", 1, 2),
            ):
                line.append(_spread(values(result, model, row, what), scale, digits))
            body.append(line)
    return _table(head, body)


def _verdicts(result: Mapping[str, Any], mode: str) -> str:
    found = dict(result["comparisons"][mode])
    over_cpu, over_others = found.pop("over_cpu_only_percent"), found.pop("over_others_percent")
    body = [[claim, verdict] for claim, verdict in found.items()]
    body.append([f"up to {PAPER_OVER_CPU}% over CPU only", f"up to {over_cpu:.1f}%"])
    body.append([f"up to {PAPER_OVER_OTHERS}% over other baselines", f"up to {over_others:.1f}%"])
    return _table(["the paper", "here"], body, numbers=False)


def _policy(result: Mapping[str, Any]) -> str:
    models = result["models"]
    if BASE not in result["rows"]:
        return "The pretrained policy has no row: none shipped when this was made."
    seen = [model for model, entry in models.items() if entry["family"] not in corpus.HELD_OUT_FAMILIES]
    known = f", but on models of the same families as {', '.join(seen)}" if seen else ""
    return f"`{BASE}` is the shipped policy with refinement, pretrained on other devices{known}."


def page(result: Mapping[str, Any]) -> str:
    """The results as Markdown."""
    models, settings, config = result["models"], result["settings"], result["settings"]["config"]
    seeds, episodes, steps = settings["seeds"], settings["episodes"], settings["steps"]
    profiles, tie, agree = "`, `".join(result["devices"]["profiles"]), f"{100 * _TIE:.1f}%", f"{100 * _AGREE:.0f}%"
    minutes = f"{result['training_cpu_seconds'] / 60:.1f}"
    graphs = [
        [model, *(str(entry[key]) for key in ("nodes", "legality_groups", "coarse_groups"))]
        for model, entry in models.items()
    ]
    rows = list(result["rows"])
    refused = [row for row in rows if row.endswith(REFUSED)]
    both = [FULL, *WITHOUT.values(), UNTRAINED]
    parts = [
        "# HSDAG as published, on the simulator",
        "Made by `python benchmarks/paper_table.py`; single runs and settings are in paper_table.json. Do not edit.",
        _paragraph(
            f"""**Everything here is simulated.** The devices are two built-in profiles (`{profiles}`: an Intel Data
            Center GPU Flex 170 and a Xeon Platinum 8480+, from data sheets and estimates, not measured), the
            objective is the latency of one request. The paper measured on real hardware. So this compares orderings,
            not times, and what it says holds for this cost model only."""
        ),
        _table(["", "nodes", "legality groups", "coarse groups"], graphs),
        "## The table in the paper's form",
        _paragraph(
            f"""Speed-up is the share of the CPU-only latency that is saved. HSDAG's latencies are of the best
            placement that was drawn in {episodes} episodes of {steps} steps, median of {seeds} seeds. HETERO's rule
            fills the first device of its list with all that this supports: the nearest to the paper's rows
            OpenVINO-CPU and OpenVINO-GPU. Placeto and the RNN-based placer are not in this table. The minimum cut is
            exact for two devices, but for the cost of submodels. {_policy(result)}"""
        ),
        _latencies(result, [row for row in rows if row not in refused and row != MOVED]),
        "## What of the paper's ordering it confirms",
        _paragraph(
            f"""A row is faster than another where its median is by more than {tie}, and {agree} of all pairs of
            seeds agree; otherwise there is no difference."""
        ),
        _verdicts(result, "all placements count"),
        _paragraph(_reading(result)),
        "## Single devices refused",
        _paragraph(
            f"""The authors' code gives a placement on a single device the reward 0, so what it finds always uses
            both. With that rule (*{MOVED}*: the best placement that moves no more than one legality group):"""
        ),
        _latencies(result, [CPU, GPU, MOVED, *refused]),
        _verdicts(result, "single devices refused"),
        "## Checks",
        _table(["", "here"], [[claim, verdict] for claim, verdict in result["checks"].items()], numbers=False),
        "## Learning and spread",
        _paragraph(
            """Median over seeds (least … most). *Greedy* is what the trained policy says without draws (`none`:
            infeasible or refused). *Reward* is the mean of best single device / latency over the first and the last
            tenth of the episodes, 0 for placements that are infeasible or refused. *Not trained* draws as many
            placements from a network that stays as it was initialised."""
        ),
        _learning(result, [*both, FASTER]),
        "With single devices refused:",
        _learning(result, [row + REFUSED for row in both]),
        "## Settings, and where they differ from the paper",
        _paragraph(
            f"""Adam with learning rate {episode.LEARNING_RATE:g}, {episodes} episodes of {steps} steps with an
            update after each, discount {config["discount"]}, two GCN layers of width {config["hidden"]}, dropout
            {config["dropout"]}, no baseline, no entropy bonus; the authors' published code has learning rate 0.001
            and 25 episodes. Parsing stops at {config["min_clusters"]} clusters, where theirs goes on to 1 to 4.
            Chains are merged only up to a share of the work (`PlacementProblem.coarse`), so coarse graphs are larger
            than theirs. Each step's placement is weighed by the discounted rewards from that step on, where their
            code weighs all steps with one sum, and gradients run through the features that steps carry on, where
            theirs stop. Features of operation types are families of types, and shapes and places are scaled. The
            models are built from configurations with random weights. All trainings together took {minutes} minutes
            of CPU time on one core of a busy machine."""
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _reading(result: Mapping[str, Any]) -> str:
    """What the numbers mean, from the numbers."""
    models = list(result["models"])
    sentences = []

    def equal(model: str, row: str, other: str) -> bool:
        return abs(latency(result, model, row) / latency(result, model, other) - 1) <= _TIE

    trivial = [model for model in models if result["models"][model]["optimum_is_single"]]
    if trivial:
        names = ", ".join(trivial)
        fastest = {CPU if latency(result, model, CPU) < latency(result, model, GPU) else GPU for model in trivial}
        sentences.append(
            f"In this cost model the optimum of {names} is a single device ({', '.join(sorted(fastest))}): a minimum"
            " cut proves that no split is faster. No placer can be faster than every baseline here, so that claim of"
            " the paper cannot be confirmed by any."
        )
    found = [model for model in trivial if equal(model, FULL, CUT)]
    if found:
        sentences.append(f"HSDAG's best draw is that optimum for {', '.join(found)}.")
        most = {model: latency(result, model, CUT) * (1 + _TIE) for model in found}
        by_chance = [model for model in found if values(result, model, UNTRAINED).max() <= most[model]]
        if by_chance:
            latest = max(values(result, model, UNTRAINED, "best_episode").max() for model in by_chance)
            sentences.append(
                "Learning has no part in it: a network that is never trained draws it, too, for"
                f" {', '.join(by_chance)}, with every seed, within its first {latest + 1:.0f} episodes. Four clusters"
                " on two devices have 16 placements."
            )
    same = [model for model in models if all(equal(model, row, FULL) for row in WITHOUT.values())]
    if same:
        sentences.append(f"The best draws of the ablations are the same for {', '.join(same)}.")
    for row, rate in ((FULL, f"{episode.LEARNING_RATE:g}"), (FASTER, "0.001")):
        rises = {
            model: values(result, model, row, "reward_last") - values(result, model, row, "reward_first")
            for model in models
        }
        listed = ", ".join(f"{model} {_spread(rise)}" for model, rise in rises.items())
        sentences.append(
            f"With learning rate {rate} the mean reward changes by (median over seeds, least … most): {listed}."
        )
    right = {
        model: int((values(result, model, FULL, "greedy_us") <= latency(result, model, CUT) * (1 + _TIE)).sum())
        for model in models
    }
    by_default = {
        model: int((values(result, model, UNTRAINED, "greedy_us") <= latency(result, model, CUT) * (1 + _TIE)).sum())
        for model in models
    }
    sentences.append(
        f"The greedy choice after training is the optimum with {sum(right.values())} of"
        f" {len(models) * result['settings']['seeds']} seeds and models, without training with"
        f" {sum(by_default.values())}."
    )
    return " ".join(sentences)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS), metavar="MODEL")
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each kind (default %(default)s)")
    parser.add_argument("--episodes", type=int, default=episode.EPISODES, help="of a training (default %(default)s)")
    parser.add_argument("--corpus", type=Path, default=Path("corpus"), help="folder of graphs (default %(default)s)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="JSON; .md goes beside it (default %(default)s)")
    arguments = parser.parse_args()
    if arguments.seeds < 1 or arguments.episodes < 1:
        parser.error("--seeds and --episodes must be 1 or more")
    # The graphs are small: threads would wait for each other longer than they work, and results depend on their number.
    torch.set_num_threads(1)
    try:
        known = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
        result = measure(
            arguments.corpus, arguments.models, arguments.seeds, arguments.episodes, arguments.output, known
        )
        read(result)
        write_json(arguments.output, result)
        text = page(result)
        write_text(arguments.output.with_suffix(".md"), text)
    except (UserError, json.JSONDecodeError) as error:
        parser.error(str(error))
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
