"""Machines on which the experiment of HSDAG's paper may have run: what is known of it, a profile, and draws around it.

    python -m benchmarks.field.paper_machines      # fits the profile anew: benchmarks/profiles/paper_2023.json

Duan et al., NeurIPS 2024, place Inception-V3, ResNet-50 and BERT on an Intel Core i9-12900K and an Intel Data Center
GPU Flex 170 with OpenVINO 2023.3. Its times in seconds could not be found in public sources, neither in the authors'
repository, whose notebooks have no outputs, nor elsewhere. What could be found is in `SAVED_PERCENT` and
`MOST_OVER_OTHERS_PERCENT`, each with its source, and says something about one thing only: how long GPU alone takes, as
a share of CPU alone.

- The paper reports HSDAG as the fastest of all its rows, GPU alone among them: GPU / CPU is at least 1 - saved.
- No other row is more than 60.24% slower than HSDAG's: GPU / CPU is at most (1 - saved) / (1 - 0.6024).

`fit` changes three figures of the Flex 170's data sheet (compute efficiency, launch of an operation, cost of a
submodel) so that the three models come near the middles of these intervals; the CPU stays as its data sheet, because
nothing public says how long it took. `draw` makes a plausible machine: every operation and every type of operation is
faster or slower by a random factor on each device, transfers and submodels cost more or less, and each model's totals
are scaled so that GPU / CPU is anywhere in its interval.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from scipy.optimize import least_squares

from ov_hsdag.costs import cost_model
from ov_hsdag.costs.profile import BUILTIN_DIRECTORY, DeviceProfile, Profile
from ov_hsdag.model.colocation import split_rule
from ov_hsdag.model.graph import NodeKind
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.storage.files import write_json
from ov_hsdag.training import corpus
from research.zoo.catalog import ZOO
from research.zoo.models.inputs import text

PROFILE = Path(__file__).parent / "profiles" / "paper_2023.json"

DEVICES = ("GPU", "CPU")
"""In HETERO's order, as the authors' code names them."""

MODELS = {
    "Inception-V3": ZOO["inception-v3"],
    "ResNet-50": ZOO["resnet50"],
    # The authors' code measures BERT on "Hello, my dog is cute", eight tokens.
    "BERT": replace(ZOO["bert-base"], name="bert-base-8-tokens", inputs=text(8, 30522)),
}
"""The paper's models; inputs as in the authors' code (github.com/hping666/HSDAG): 299² and 224² pixels, 8 tokens."""

SAVED_PERCENT = {"Inception-V3": 17.9, "ResNet-50": 52.1, "BERT": 58.2}
"""What HSDAG saves of CPU alone. 58.2: the abstract (arXiv:2405.14185). The other two: a machine-made summary of the
paper in a public repository (its head names openreview.net/forum?id=Kzno1r3Xef), not checked against the paper."""

MOST_OVER_OTHERS_PERCENT = 60.24
"""What HSDAG saves of another row at most: the abstract."""

_WEIGHT = 10.0
"""Of the ratios beside the wish to leave the data sheet as it is, in the fit."""

_SIGMAS = (0.1, 0.3, 0.6)
_FIXED_COSTS = 3.0


@dataclass(frozen=True)
class Interval:
    """What GPU alone takes as a share of CPU alone."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """The geometric mean of its ends."""
        return float(np.sqrt(self.low * self.high))


def interval(model: str) -> Interval:
    """The interval of one of `MODELS`."""
    left = 1 - SAVED_PERCENT[model] / 100
    return Interval(left, left / (1 - MOST_OVER_OTHERS_PERCENT / 100))


def template(model: str) -> PlacementProblem:
    """The graph of one of `MODELS` and its colocation groups."""
    return corpus.extract(MODELS[model].build(), split_rule(ov.__version__))


def priced(graph: PlacementProblem, profile: Profile, objective: str = "latency") -> PlacementProblem:
    """A template with a profile's costs, broken fusions included, and no memory limits.

    graph: of `template`. profile: of `DEVICES`. objective: "latency" or "throughput".
    """
    limits = np.full(len(DEVICES), -1, np.int64)
    problem = corpus.assemble(graph, DEVICES, profile, objective, memory_bytes=limits)
    fused_with, penalty_us = cost_model.fusion_costs(profile, graph.graph, DEVICES)
    return replace(problem, fused_with=fused_with, fusion_penalty_us=penalty_us)


def singles_us(problem: PlacementProblem) -> NDArray[np.float64]:
    """The objective of each device alone, µs, float64 [devices]."""
    return problem.scores(problem.singles)


def draw(problem: PlacementProblem, model: str, number: int) -> PlacementProblem:
    """The problem on a plausible machine.

    problem: of `priced`, on the fitted profile. model: its name. number: of the machine; what belongs to the machine is
    the same for all models.
    """
    machine = np.random.default_rng([2023, number])
    own = np.random.default_rng([2023, number, *model.encode()])
    sigma = float(machine.choice(_SIGMAS))
    cheaper = np.exp(machine.uniform(-np.log(_FIXED_COSTS), np.log(_FIXED_COSTS), 2))
    shape = problem.node_us.shape
    factor = np.exp(own.normal(0, sigma / 2, shape))
    # Types in alphabetical order of all that there are in the three models: a type has one factor on one machine.
    for kind in sorted(set(problem.graph.types)):
        seed = np.random.default_rng([2023, number, *kind.encode()])
        members = np.array([one == kind for one in problem.graph.types])
        factor[members] *= np.exp(seed.normal(0, sigma, shape[1]))
    operations = np.isin(problem.graph.kinds, (NodeKind.OP, NodeKind.SINK))
    factor[~operations] = 1.0
    assert problem.fusion_penalty_us is not None
    moved = replace(
        problem,
        node_us=problem.node_us * factor,
        fusion_penalty_us=problem.fusion_penalty_us * factor,
        transfer_us=problem.transfer_us * cheaper[0],
        transfer_us_per_byte=problem.transfer_us_per_byte * cheaper[0],
        submodel_us=problem.submodel_us * cheaper[1],
    )
    bounds = interval(model)
    ratio = float(np.exp(own.uniform(np.log(bounds.low), np.log(bounds.high))))
    cpu = float(singles_us(problem)[DEVICES.index("CPU")])
    return scaled(moved, {"CPU": cpu, "GPU": ratio * cpu})


def scaled(problem: PlacementProblem, totals_us: dict[str, float]) -> PlacementProblem:
    """The problem with its operations' times scaled so that each device alone takes so long.

    problem: of one graph on devices. totals_us: by device, µs; what transfers and submodels take is subtracted first.
    """
    operations = np.isin(problem.graph.kinds, (NodeKind.OP, NodeKind.SINK))
    node_us = problem.node_us.copy()
    penalty_us = None if problem.fusion_penalty_us is None else problem.fusion_penalty_us.copy()
    alone = singles_us(problem)
    for number, name in enumerate(problem.devices):
        work = float(node_us[operations, number].sum())
        factor = max(totals_us[name] - (alone[number] - work), 0.02 * work) / work
        node_us[operations, number] *= factor
        if penalty_us is not None:
            penalty_us[:, number] *= factor
    return replace(problem, node_us=node_us, fusion_penalty_us=penalty_us)


def fit(ratios: Callable[[NDArray[np.float64]], dict[str, float]]) -> NDArray[np.float64]:
    """Factors for compute efficiency, launch and cost of a submodel, for ratios near the middles of their intervals.

    ratios: GPU / CPU by model, for factors [3]. Returns the factors, float64 [3]; of those that fit alike the ones
    nearest to 1.
    """

    def residuals(logarithms: NDArray[np.float64]) -> NDArray[np.float64]:
        found = ratios(np.exp(logarithms))
        off = [np.log(found[model] / interval(model).middle) for model in found]
        return np.concatenate([_WEIGHT * np.array(off), logarithms])

    return np.exp(least_squares(residuals, np.zeros(3), diff_step=1e-3).x)


def changed(device: DeviceProfile, factors: NDArray[np.float64]) -> DeviceProfile:
    """A GPU with other compute efficiency, launch and cost of a submodel."""
    return replace(
        device,
        efficiency={name: min(value * factors[0], 1.0) for name, value in device.efficiency.items()},
        launch_us=device.launch_us * float(factors[1]),
        submodel_us=device.submodel_us * float(factors[2]),
    )


def _data_sheets() -> dict[str, Any]:
    """The two devices as their data sheets have them, as a profile's document."""
    flex = json.loads((BUILTIN_DIRECTORY / "flex_170.json").read_text())["devices"]["GPU"]
    client = json.loads((BUILTIN_DIRECTORY / "core_ultra_7_155h.json").read_text())["devices"]["CPU"]
    sheet = (
        "12th Gen Intel Core i9-12900K: 8 P-cores up to 5.2 GHz, 8 E-cores up to 3.9 GHz, two channels of"
        " DDR5-4800 with 76.8 GB/s"
        " (gizbot.com/computer/reviews/12th-gen-intel-core-i9-12900k-review-intel-strikes-back-077896.html)"
    )
    cores = 8 * 32 * 5.2 + 8 * 16 * 3.9
    return {
        "version": 1,
        "devices": {
            "GPU": {**flex, "matches": []},
            "CPU": {
                **client,
                "description": "Intel Core i9-12900K (8 P-cores and 8 E-cores, AVX2 with VNNI)",
                "matches": [],
                "cores": 16,
                "peak_gflops": {
                    "value": {"f32": round(cores), "i8": round(4 * cores)},
                    "source": f"{sheet}; operations per core and cycle as in the built-in profile core_ultra_7_155h",
                },
                "memory_gbps": {"value": 76.8, "source": sheet},
            },
        },
    }


def main() -> None:
    """Fits the profile and writes it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=PROFILE)
    options = parser.parse_args()
    document = _data_sheets()
    sheets = Profile.of(document, "data sheets")
    graphs = {model: template(model) for model in MODELS}

    def ratios(factors: NDArray[np.float64]) -> dict[str, float]:
        devices = {**sheets.devices, "GPU": changed(sheets.device("GPU"), factors)}
        found = {}
        for model, graph in graphs.items():
            gpu, cpu = singles_us(priced(graph, Profile(devices)))
            found[model] = float(gpu / cpu)
        return found

    factors = fit(ratios)
    reached = ratios(factors)
    for model, ratio in reached.items():
        bounds = interval(model)
        print(
            f"{model}: GPU / CPU {ratio:.3f}, wanted {bounds.low:.3f} to {bounds.high:.3f}, middle {bounds.middle:.3f}"
        )
    print(f"efficiency × {factors[0]:.3f}, launch × {factors[1]:.3f}, submodel × {factors[2]:.3f}")
    gpu = document["devices"]["GPU"]
    better = changed(sheets.device("GPU"), factors)
    how = "; × {:.3f}, fitted to what the paper's percentages allow of GPU alone / CPU alone (paper_machines.py)"
    new: dict[str, Any] = {name: getattr(better, name) for name in ("efficiency", "launch_us", "submodel_us")}
    for (key, value), factor in zip(new.items(), factors, strict=True):
        rounded = {k: round(v, 6) for k, v in value.items()} if isinstance(value, dict) else round(value, 4)
        source = gpu[key]["source"].removeprefix("estimate: ") + how.format(factor)
        gpu[key] = {"value": rounded, "source": f"estimate: {source}"}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    write_json(options.output, document)


if __name__ == "__main__":
    main()
