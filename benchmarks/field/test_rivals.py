"""Tests of the comparison of published methods with ours: the machines, and the tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.common.contestants import ABLATIONS
from benchmarks.field import paper_machines, rivals
from benchmarks.field.rivals import CONTESTANTS, DRAWN, INSTANCES, PAPER, Cell, Problems, Task
from ov_hsdag.placers.multilevel import Multilevel
from ov_hsdag.problem.problem import PlacementProblem
from research.baselines.budget import Baseline, Environment
from research.baselines.package import AloneOfKind, HeteroRule
from research.instances import Instance
from tests.graphs import problem_of, random_problem
from tests.test_tarnawski import node, written

MODEL = "ResNet-50"


@pytest.fixture(scope="module")
def priced() -> PlacementProblem:
    return paper_machines.template(MODEL)


def test_an_interval_allows_what_the_paper_reports() -> None:
    bounds = paper_machines.interval(MODEL)
    assert bounds.low == pytest.approx(1 - 0.521) and bounds.high == pytest.approx(0.479 / 0.3976)
    assert bounds.share_below(bounds.at(0.3)) == pytest.approx(0.3)


def test_a_machine_has_its_ratio(priced: PlacementProblem) -> None:
    gpu, cpu = paper_machines.singles_us(paper_machines.at_ratio(priced, 0.7))
    assert gpu / cpu == pytest.approx(0.7) and cpu == pytest.approx(paper_machines.singles_us(priced)[1])


def test_search_saves_what_the_paper_reports_on_its_machine_and_hardly_beyond(priced: PlacementProblem) -> None:
    def saved(problem: PlacementProblem) -> float:
        return paper_machines.saved_percent(problem, float(problem.scores(Multilevel().place(problem)).min()))

    machine, share = paper_machines.paper_machine(priced, MODEL)
    assert saved(machine) >= paper_machines.SAVED_PERCENT[MODEL]
    assert saved(paper_machines.at_ratio(priced, paper_machines.interval(MODEL).at(share + 0.01))) < 52.1


def test_drawn_machines_differ_within_the_interval(priced: PlacementProblem) -> None:
    first, again, other = (paper_machines.draw(priced, MODEL, number) for number in (0, 0, 1))
    np.testing.assert_array_equal(first.node_us, again.node_us)
    assert not np.array_equal(first.node_us, other.node_us)
    bounds = paper_machines.interval(MODEL)
    for problem in (first, other):
        gpu, cpu = paper_machines.singles_us(problem)
        assert bounds.low * 0.999 <= gpu / cpu <= bounds.high * 1.001


def test_openvino_takes_the_devices_of_a_kind_first() -> None:
    problem = random_problem(3, nodes=20, devices=3, missing=0.3)
    object.__setattr__(problem, "devices", ("GPU.0", "NPU", "CPU"))

    def placed(baseline: Baseline) -> NDArray[np.uint8]:
        best = Environment(problem, judge=lambda placements: np.ones(len(placements))).run(baseline)
        assert best is not None
        return best.placement

    for kind, order in (("CPU", [2, 0, 1]), ("GPU", [0, 1, 2])):
        expected = np.array(order)[problem.group_supported[:, order].argmax(axis=1)]
        np.testing.assert_array_equal(placed(HeteroRule("", kind)), expected)
    assert (placed(AloneOfKind("CPU", "")) == 2).all()


def test_intervals_are_over_seeds() -> None:
    assert rivals._interval([]) == "–"
    assert rivals._interval([np.log(1.02)]) == "2.0" == rivals._interval([np.log(1.02)] * 3)
    # Student's t for two degrees of freedom: 4.303 times the standard error of 0.00577.
    assert rivals._interval([0.0, 0.01, 0.02]) == "1.0 ± 2.5"


@pytest.mark.slow
def test_every_row_of_every_table_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables say where a method has no placement, and no cell of a table is missing."""
    small = problem_of([[0], [1], [1], [2, 3]], [[9.0, 3.0], [2.0, 8.0], [7.0, 2.0], [4.0, 5.0]])
    object.__setattr__(small, "devices", ("GPU", "CPU"))
    instance = Instance.load(written(tmp_path, [node(k, 8.0, 2.0, size=60.0) for k in range(3)], [(0, 1, 0.5)]))
    cells = {Cell(PAPER, model, (0, 1)): small for model in paper_machines.MODELS}
    cells |= {Cell(DRAWN, f"a {number}", (number,)): small for number in range(2)}
    whole = Cell(INSTANCES, "LayerGraphs/a", (0, 1))
    problems = Problems({**cells, whole: instance.problem()}, {whole: instance})
    monkeypatch.setattr(rivals, "_said_of", lambda model: {
        "nodes": 4, "edges": 4, "interval": [0.5, 1.0], "reachable": 0.01, "saved": [[1.0, 2.0]] * len(rivals.RANGE),
    })  # fmt: skip
    settings = {"evaluations": 6, "ablations": True}
    result = rivals.measure(problems, settings, {})
    runs = result["cells"][INSTANCES]["LayerGraphs/a"]
    assert all(cell["evaluations"] <= 6 for of in runs.values() for cell in of.values())
    # An accelerator has memory for one of the three: one alone places nothing.
    assert runs["GPU only"]["0"]["us"] is None
    tables = rivals.tables(result)
    names = [contestant.name for contestant in CONTESTANTS]
    for caption, text in tables.items():
        lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
        assert len({len(line) for line in lines}) == 1, caption
    (behind, layout, along, _, ablations) = tables.values()
    assert [line.split("|")[1].strip() for line in behind.splitlines()[2:]] == names
    assert "no placement in 1" in behind and "nan" not in behind + layout + ablations
    assert all(contestant.name in ablations for contestant in ABLATIONS) and "the lowest 1.0%" in along
    # What a result has is not made again.
    again = rivals.measure(problems, settings, result)
    assert again["cells"] == result["cells"]
    task = Task(whole, "GO", 1, 6)
    assert rivals.run(problems, task)["us"] == runs["GO"]["1"]["us"]
