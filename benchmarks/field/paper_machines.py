"""Models the machine of the experiment in HSDAG's paper, as far as it is known, and draws machines of what is unknown.

Duan et al., NeurIPS 2024, place Inception-V3, ResNet-50 and BERT on an Intel Core i9-12900K and an Intel Data Center
GPU Flex 170 with OpenVINO 2023.3. Its times in seconds could not be found in public text, neither in the authors'
repository, whose notebooks have no outputs, nor elsewhere. The published percentages are in `SAVED_PERCENT` and
`MOST_OVER_OTHERS_PERCENT`, each with its source. They bound only one ratio: the time on the GPU over the time on the
CPU, each for the whole model.

- The paper reports HSDAG as the fastest of all its rows, GPU only among them: GPU / CPU is at least 1 - saved.
- No other row is more than 60.24% slower than HSDAG's: GPU / CPU is at most (1 - saved) / (1 - 0.6024).

`at_ratio` is a machine by the two devices' data sheets on which a model has any such ratio, and `paper_machine` the one
with the largest ratio on which search saves what the paper reports. `draw` is a plausible machine: every operation and
every type of operation is faster or slower by a random factor on each device, transfers and submodels cost more or
less, and GPU / CPU is anywhere in its interval.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ov_hsdag.costs import cost_model
from ov_hsdag.costs.profile import BUILTIN_DIRECTORY, Profile
from ov_hsdag.model.colocation import split_rule
from ov_hsdag.model.graph import NodeKind
from ov_hsdag.placers.multilevel import Multilevel
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.training import corpus
from research.corpus import extract
from research.zoo.catalog import ZOO
from research.zoo.models.inputs import text

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
"""Time that HSDAG saves compared with CPU only, %. 58.2: the abstract (arXiv:2405.14185). The other two: a machine-made
summary of the paper in a public repository (its head names openreview.net/forum?id=Kzno1r3Xef), not checked against the
paper."""

MOST_OVER_OTHERS_PERCENT = 60.24
"""Most time that HSDAG saves compared with another row, %. Source: the abstract."""

SIGMAS = (0.1, 0.3, 0.6)
"""Standard deviations of the logarithms of types' factors on drawn machines; a machine has one of them."""

FIXED_COSTS_FACTOR = 3.0
"""Largest factor by which transfers and submodels of a drawn machine cost more or less."""

BISECTIONS = 10
"""Steps in which `paper_machine` finds its ratio, to a thousandth of the interval."""


@dataclass(frozen=True)
class Interval:
    """The possible ratios of the time of GPU only to that of CPU only."""

    low: float
    high: float

    def at(self, share: float) -> float:
        """The ratio at a share of the way from low (0) to high (1), on a logarithmic scale."""
        return float(self.low * (self.high / self.low) ** share)

    def share_below(self, ratio: float) -> float:
        """The share of the way from low to high at which a ratio is; the inverse of `at`."""
        return float(np.log(ratio / self.low) / np.log(self.high / self.low))


def interval(model: str) -> Interval:
    """The interval of one of `MODELS`."""
    left = 1 - SAVED_PERCENT[model] / 100
    return Interval(left, left / (1 - MOST_OVER_OTHERS_PERCENT / 100))


def template(model: str) -> PlacementProblem:
    """One of `MODELS` for latency, priced by the data sheets, without memory limits."""
    graph = extract(MODELS[model].build(), split_rule(ov.__version__))
    profile = data_sheets()
    problem = corpus.assemble(graph, DEVICES, profile, "latency", memory_bytes=np.full(len(DEVICES), -1, np.int64))
    fused_with, penalty_us = cost_model.fusion_costs(profile, graph.graph, DEVICES)
    return replace(problem, fused_with=fused_with, fusion_penalty_us=penalty_us)


def singles_us(problem: PlacementProblem) -> NDArray[np.float64]:
    """The latency of each device alone, µs, float64 [devices]."""
    return problem.scores(problem.singles)


def saved_percent(problem: PlacementProblem, us: float) -> float:
    """The time that a latency in µs saves compared with CPU only, %."""
    return float(100 * (1 - us / singles_us(problem)[DEVICES.index("CPU")]))


def at_ratio(problem: PlacementProblem, ratio: float) -> PlacementProblem:
    """The problem with the GPU's operations faster or slower by one factor, so that GPU only / CPU only is `ratio`."""
    cpu = float(singles_us(problem)[DEVICES.index("CPU")])
    return _with_totals(problem, {"CPU": cpu, "GPU": ratio * cpu})


def paper_machine(problem: PlacementProblem, model: str) -> tuple[PlacementProblem, float]:
    """The machine nearest to the data sheets on which search saves at least what the paper reports.

    Args:
        problem: the problem of `template`.
        model: key of `MODELS`.

    Returns:
        The problem on it, and the share of the interval of ratios, from its low end, in which search saves as much.
    """
    bounds, low, high = interval(model), 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        found = at_ratio(problem, bounds.at(middle))
        best = float(found.scores(Multilevel().place(found)).min())
        if saved_percent(found, best) >= SAVED_PERCENT[model]:
            low = middle
        else:
            high = middle
    return at_ratio(problem, bounds.at(low)), low


def draw(problem: PlacementProblem, model: str, number: int) -> PlacementProblem:
    """The problem on a plausible machine.

    Args:
        problem: the problem of `template`.
        model: key of `MODELS`.
        number: number of the machine; its properties are the same for all models.
    """
    machine = np.random.default_rng([2023, number])
    of_model = np.random.default_rng([2023, number, *model.encode()])
    sigma = float(machine.choice(SIGMAS))
    cheaper = np.exp(machine.uniform(-np.log(FIXED_COSTS_FACTOR), np.log(FIXED_COSTS_FACTOR), 2))
    shape = problem.node_us.shape
    factor = np.exp(of_model.normal(0, sigma / 2, shape))
    # A type has one factor on one machine, whatever other types a model has.
    for kind in sorted(set(problem.graph.types)):
        of_type = np.random.default_rng([2023, number, *kind.encode()])
        members = np.array([name == kind for name in problem.graph.types])
        factor[members] *= np.exp(of_type.normal(0, sigma, shape[1]))
    factor[~_operations(problem)] = 1.0
    assert problem.fusion_penalty_us is not None
    moved = replace(
        problem,
        node_us=problem.node_us * factor,
        fusion_penalty_us=problem.fusion_penalty_us * factor,
        transfer_us=problem.transfer_us * cheaper[0],
        transfer_us_per_byte=problem.transfer_us_per_byte * cheaper[0],
        submodel_us=problem.submodel_us * cheaper[1],
    )
    cpu = float(singles_us(problem)[DEVICES.index("CPU")])
    return _with_totals(moved, {"CPU": cpu, "GPU": interval(model).at(of_model.uniform()) * cpu})


def _operations(problem: PlacementProblem) -> NDArray[np.bool_]:
    """Whether each node is an operation or Assign, bool [nodes]."""
    return np.isin(problem.graph.kinds, (NodeKind.OP, NodeKind.SINK))


def _with_totals(problem: PlacementProblem, totals_us: dict[str, float]) -> PlacementProblem:
    """Scales the times of operations so that each single device takes a given time. totals_us: by device, µs."""
    operations = _operations(problem)
    node_us = problem.node_us.copy()
    penalty_us = None if problem.fusion_penalty_us is None else problem.fusion_penalty_us.copy()
    alone = singles_us(problem)
    for number, name in enumerate(problem.devices):
        work = float(node_us[operations, number].sum())
        # What transfers and submodels take stays as it is; at least a fiftieth of the work remains.
        factor = max(totals_us[name] - (alone[number] - work), 0.02 * work) / work
        node_us[operations, number] *= factor
        if penalty_us is not None:
            penalty_us[:, number] *= factor
    return replace(problem, node_us=node_us, fusion_penalty_us=penalty_us)


def data_sheets() -> Profile:
    """The paper's two devices by their data sheets: the Flex 170's built-in profile, and a Core i9-12900K."""
    flex = json.loads((BUILTIN_DIRECTORY / "flex_170.json").read_text())["devices"]["GPU"]
    client = json.loads((BUILTIN_DIRECTORY / "core_ultra_7_155h.json").read_text())["devices"]["CPU"]
    sheet = (
        "12th Gen Intel Core i9-12900K: 8 P-cores up to 5.2 GHz, 8 E-cores up to 3.9 GHz, two channels of"
        " DDR5-4800 with 76.8 GB/s"
        " (gizbot.com/computer/reviews/12th-gen-intel-core-i9-12900k-review-intel-strikes-back-077896.html)"
    )
    gflops = 8 * 32 * 5.2 + 8 * 16 * 3.9
    core: dict[str, Any] = {
        **client,
        "description": "Intel Core i9-12900K (8 P-cores and 8 E-cores, AVX2 with VNNI)",
        "matches": [],
        "cores": 16,
        "peak_gflops": {
            "value": {"f32": round(gflops), "i8": round(4 * gflops)},
            "source": f"{sheet}; operations per core and cycle as in the built-in profile core_ultra_7_155h",
        },
        "memory_gbps": {"value": 76.8, "source": sheet},
    }
    return Profile.of({"version": 1, "devices": {"GPU": {**flex, "matches": []}, "CPU": core}}, "data sheets")
