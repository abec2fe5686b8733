"""How well placements of mixtures of experts are predicted and chosen: layer splits and expert splits, measured.

    PYTHONPATH=. build/llm/env/bin/python -m benchmarks.field.experts [MODEL …] [--rounds N] [--output FILE.json]

In the environment of tests/llm/run, which has optimum-intel. Decoders of six layers with 32 experts, random weights,
are exported into build/experts. Two unlike devices made of the CPU plugin (see `unlike`), latency of a workload; costs
are what `place` measures. Layer splits (the first n layers here, the rest there, both ways) and expert splits (the
experts of the first n layers there) run in turns, each compiled several times: two compilations of one split differ
by several percent. Printed: error of the predicted times of prompts and tokens, median over splits; rank correlation,
and what noise lets it be; and what `place` chose with 40, 60 and 80% of the model's bytes on the first device, over the
best split that keeps within that.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from benchmarks.common.machine import about
from benchmarks.common.ranks import attainable, halves, spearman
from benchmarks.field.unseen import DEVICES, unlike
from ov_hsdag.devices import virtual
from ov_hsdag.measuring.comparison import Comparison
from ov_hsdag.measuring.process import Candidate
from ov_hsdag.model.normalize import normalize
from ov_hsdag.model.workload import Workload
from ov_hsdag.placing.place import place
from ov_hsdag.problem.experts_away import experts_away
from ov_hsdag.problem.pricing import Session, WorkloadProblem
from ov_hsdag.storage.files import write_json
from tests.llm.families import export_decoder
from tests.llm.layers import cut

FOLDER = Path("build/experts")
LAYERS = 6
WORKLOAD = "prompt=64,generate=16"
SHARES = (0.4, 0.6, 0.8)
COMPILED = 4  # times that each split is compiled

_SIZES = {
    "hidden_size": 512,
    "intermediate_size": 512,
    "moe_intermediate_size": 512,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096,
    "vocab_size": 4096,
    "num_experts": 32,
    "num_local_experts": 32,
}
MODELS: dict[str, dict[str, Any]] = {
    "Qwen3MoeConfig": {"num_experts_per_tok": 4, "head_dim": 64},
    "MixtralConfig": {"num_experts_per_tok": 2},
    "Qwen2MoeConfig": {"num_experts_per_tok": 4, "shared_expert_intermediate_size": 512},
}


def exported(kind: str) -> Path:
    """The IR of a model with random weights, written where it is not there."""
    folder = FOLDER / kind
    if not (folder / "openvino_model.xml").exists():
        import torch
        import transformers

        torch.manual_seed(0)
        config = getattr(transformers, kind)(**_SIZES, **MODELS[kind])
        with tempfile.TemporaryDirectory() as source:
            export_decoder(config, source, folder)
    return folder / "openvino_model.xml"


def placed(file: Path, core: ov.Core, memory: dict[str, int] | None = None) -> tuple[WorkloadProblem, dict[str, str]]:
    """The problem with the costs that `place` measured, and the placement that it chose."""
    found: list[WorkloadProblem] = []
    price = Session.price

    def recorded(*args: Any, **more: Any) -> WorkloadProblem:
        result = price(*args, **more)
        if len(args) > 5 and args[5]:  # with measured costs
            found.append(result)
        return result

    with mock.patch.object(Session, "price", recorded):
        chosen = place(core.read_model(file), DEVICES.hetero, core=core, measure=True, workload=WORKLOAD, memory=memory)
    return found[0], dict(chosen.affinity)


def splits(priced: WorkloadProblem) -> dict[str, NDArray[np.uint8]]:
    """Single devices, layer splits both ways, and expert splits, each once."""
    problem = priced.problem
    found = dict(zip(DEVICES, problem.singles, strict=True))
    for layers in range(1, LAYERS):
        for order in ((0, 1), (1, 0)):
            found[f"{layers} layers on {DEVICES.names[order[0]]}"] = cut(problem, [layers], order)
    away = experts_away(problem)
    found |= {f"experts of {layers} layers on {DEVICES.names[-1]}": away[layers] for layers in range(1, len(away))}
    return found


def judged(kind: str, core: ov.Core, rounds: int) -> dict[str, Any]:
    """Errors of predictions, and what was chosen with little memory over the best split."""
    file = exported(kind)
    priced, _ = placed(file, core)
    problem, tried = priced.problem, splits(priced)
    held = problem.evaluate(problem.singles[0]).memory_bytes[0, 0]
    chosen = {}
    for share in SHARES:
        _, affinity = placed(file, core, {DEVICES.names[0]: int(share * held)})
        chosen[share] = f"chosen with {share:.0%}"
        tried[chosen[share]] = problem.placement_of(affinity)
    model = core.read_model(file)
    normalize(model)
    candidates = {name: Candidate.placed(DEVICES, problem.affinity(one)) for name, one in tried.items()}
    phases = Workload.parse(WORKLOAD).phases_with(model, None)
    # By candidate and phase, for each time that it was compiled.
    times: dict[str, dict[str, list[float]]] = {name: {} for name in candidates}
    failed: dict[str, str] = {}
    for _ in range(COMPILED):
        with Comparison(model, DEVICES, candidates, "latency", core, phases=phases) as comparison:
            comparison.trials(rounds=rounds)
            for name, rates in comparison.phase_rates.items():
                for phase, some in rates.items():
                    times[name].setdefault(phase, []).append(1e6 / statistics.median(some))
            failed |= comparison.failed
    rows: dict[str, dict[str, Any]] = {}
    for name, placement in tried.items():
        if name not in failed:
            measured = {phase: statistics.median(one) for phase, one in times[name].items()}
            predicted = {phase: one["latency_us"] for phase, one in priced.summary(placement).items()}
            used = problem.evaluate(placement).memory_bytes[0]
            rows[name] = {"measured": measured, "predicted": predicted, "bytes": int(used[0])}
    result: dict[str, Any] = {"model": kind, "rows": rows, "failed": failed}
    for phase in ("prompt", "token"):
        pairs = np.array([(one["predicted"][phase], one["measured"][phase]) for one in rows.values()])
        of_halves = [[statistics.mean(halves(times[name][phase])[half]) for name in rows] for half in (0, 1)]
        result[phase] = {
            "error": float(np.median(np.abs(pairs[:, 0] / pairs[:, 1] - 1))),
            "spearman": spearman(*pairs.T),
            "attainable": attainable(*of_halves),
        }

    def us(name: str, half: int) -> float:
        """Of one run of the workload, in one half of the compilations."""
        return sum(one["count"] * statistics.mean(halves(times[name][phase])[half]) for phase, one in counts.items())

    counts = priced.summary(problem.singles[0])
    result["chosen"] = {}
    for share, name in ((share, name) for share, name in chosen.items() if name in rows):
        within = [one for one in rows if rows[one]["bytes"] <= share * held and not one.startswith("chosen")]
        # The best of one half of the compilations, judged by the other: the best of all is partly luck.
        best = [min(within, key=partial(us, half=half)) for half in (0, 1)]
        ratios = [us(one, 1 - half) / us(name, 1 - half) for half, one in enumerate(best)]
        named = " or ".join(dict.fromkeys(best))
        result["chosen"][share] = {"of_best": statistics.geometric_mean(ratios), "best": named}
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--rounds", type=int, default=3, help="of each compilation")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    results = []
    with mock.patch.dict("os.environ", {virtual.VIRTUAL_DEVICES_VARIABLE: unlike("latency")}):
        core = virtual.new_core()
        for kind in args.models:
            results.append(judged(kind, core, args.rounds))
            one = results[-1]
            told = "; ".join(
                "{} {error:.1%} off, rank {spearman:.2f} of {attainable:.2f}".format(
                    phase,
                    **{key: np.float64(value) for key, value in one[phase].items()},  # nan where it is not known
                )
                for phase in ("prompt", "token")
            )
            print(f"{kind}: {told}; failed: {one['failed'] or 'none'}")
            for share, found in one["chosen"].items():
                print(f"  {share:.0%} on {DEVICES.names[0]}: {found['of_best']:.3f} of {found['best']}", flush=True)
    if args.output:
        write_json(args.output, {"about": about(), "models": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
