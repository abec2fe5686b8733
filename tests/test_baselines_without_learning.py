"""What places without learning: METIS, the package's own placers as baselines, HETERO's rule, single devices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from ov_hsdag.model.colocation import split_rule
from ov_hsdag.policy.placer import HSDAGPlacer
from ov_hsdag.problem.problem import OBJECTIVES
from ov_hsdag.training import corpus
from research.baselines.budget import Baseline, Environment
from research.baselines.metis import Metis
from research.baselines.package import CONTIGUOUS_PARTITION, MINIMUM_CUT, NETWORK, SEARCH, Alone, HeteroRule, Shipped
from research.corpus import device_set, extract
from research.instances import Instance
from research.zoo.catalog import ZOO
from tests.graphs import random_problem
from tests.test_tarnawski import node, written

EVERY: tuple[Baseline, ...] = (MINIMUM_CUT, CONTIGUOUS_PARTITION, SEARCH, NETWORK, Shipped())


def test_metis_cuts_where_little_is_sent(tmp_path: Path) -> None:
    pytest.importorskip("pymetis")
    edges = [(k, k + 1, 0.01 if k == 3 else 5.0) for k in range(7)]
    problem = Instance.load(written(tmp_path, [node(k, 1.0, 1.0) for k in range(8)], edges, maxFPGAs=1)).problem()
    best = Environment(problem).run(Metis())
    assert best is not None
    assert best.cost * 1e6 == pytest.approx(4.01)


def test_single_devices_and_hetero_ask_once() -> None:
    problem = random_problem(6, nodes=12, devices=2, missing=0.1)
    assert corpus.placeable(problem)
    for baseline in (Alone(0, "first"), HeteroRule(), *EVERY):
        environment = Environment(problem)
        environment.run(baseline)
        assert environment.evaluations == 1
    best = Environment(problem).run(HeteroRule())
    assert best is not None
    assert best.placement.tolist() == (~problem.group_supported[:, 0]).astype(int).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("model", ["inception-v3-small", "bert-small", "mobilenet-v2-small"])
def test_placements_of_real_models_are_legal(model: str) -> None:
    template = extract(ZOO[model].build(), split_rule(ov.__version__))
    names, profile = device_set(("iris_xe", "npu_core_ultra", "core_ultra_7_155h"))
    for objective in OBJECTIVES:
        problem = corpus.assemble(template, names, profile, objective)
        for baseline in EVERY:
            environment = Environment(problem)
            best = environment.run(baseline)
            assert best is not None, f"{baseline} found nothing"
            assert not problem.evaluate(best.placement).infeasible[0]


def test_the_network_alone_is_the_best_of_what_it_proposes() -> None:
    """What its placer makes of that by local search is no merit of the network."""
    for seed in range(4):
        problem = random_problem(seed, nodes=40, devices=2, objective="throughput")
        best = Environment(problem).run(NETWORK)
        proposed = HSDAGPlacer().propose(problem)
        scores = problem.scores(proposed)
        assert best is not None and best.cost * 1e6 == pytest.approx(scores.min())
        np.testing.assert_array_equal(best.placement, proposed[scores.argmin()])
