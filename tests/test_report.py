"""What a report says of a placement is what the simulator and the placement say; and the files that it comes in."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ov_hsdag
from ov_hsdag.explaining.explain import explain
from ov_hsdag.explaining.explained_model import ExplainedModel
from ov_hsdag.explaining.explanation import Explanation
from ov_hsdag.explaining.report_data import ReportSource, picture_data, report_data
from ov_hsdag.explaining.timeline import one_request, pipelined, stages
from ov_hsdag.model.graph import NodeKind
from ov_hsdag.model.names import NameTree
from ov_hsdag.model.placement import Placement
from ov_hsdag.report.drawing import Drawing
from ov_hsdag.report.picture import picture
from ov_hsdag.report.write import check_report, page
from ov_hsdag.utils.errors import RunError, UserError
from tests.commands import assert_one_error_line, ran, run
from tests.decoders import stateful_decoder
from tests.graphs import convolutions, halved, random_model, random_problem

TREE = Path(__file__).parents[1]
PAGE = TREE / "ov_hsdag" / "report" / "page.html"
SOURCES = TREE / "tools" / "report_page"
pytestmark = pytest.mark.usefixtures("fast_search")

PAIR = "HETERO:GPU,CPU"
HOSTILE = "</script><img src=x onerror=alert(1)>&\"'\u2028"


def split_convolutions() -> tuple[ov.Model, Placement]:
    """A model whose first half is on GPU."""
    model = convolutions()
    return model, ov_hsdag.place(model, PAIR, affinity=halved(model, ("GPU", "CPU")).affinity, measure=False)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 4))
def test_stages_are_the_simulators_latency_and_work(seed: int, devices: int) -> None:
    problem = random_problem(seed, nodes=14, devices=devices, submodel_us=3.0, grouped=True, fusing=True)
    explained = Explanation(problem, problem.random(np.random.default_rng(seed), 1)[0])
    found = stages(explained)
    result = explained.evaluation
    assert sum(stage.us for stage in found) == pytest.approx(result.latency_us[0])
    for device in range(devices):
        assert sum(stage.busy.get(device, 0.0) for stage in found) == pytest.approx(result.busy_us[0, device])
    assert sorted(stage.submodel for stage in found if stage.submodel >= 0) == list(range(result.submodels[0]))
    assert sorted(stage.cut for stage in found if stage.cut >= 0) == list(range(len(explained.cuts)))
    # What a submodel reads has run, and has arrived.
    ran: set[int] = set()
    for stage in found:
        own = explained.cuts[stage.cut].node if stage.cut >= 0 else -1
        if own >= 0:
            assert explained.submodel[own] in ran
            continue
        ran.add(stage.submodel)
        target = explained.submodel[problem.graph.input_node] == stage.submodel
        read = explained.submodel[problem.graph.input_source[target]]
        assert set(read[read >= 0].tolist()) <= ran


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 5))
def test_requests_in_flight_have_the_simulators_period(seed: int, devices: int) -> None:
    problem = random_problem(seed, nodes=12, devices=devices, submodel_us=1.0)
    # A Result that costs something would occupy its device while another one runs the submodel.
    problem = replace(problem, node_us=np.where(problem.graph.kinds[:, None] == NodeKind.RESULT, 0.0, problem.node_us))
    explained = Explanation(problem, problem.random(np.random.default_rng(seed), 1)[0])
    found = stages(explained)
    assert one_request(found) == pytest.approx(np.cumsum([0.0, *(stage.us for stage in found[:-1])]).tolist())
    first, second, *_ = times = pipelined(found, 30)
    period = second[0] - first[0]
    if devices == 2:
        assert period == pytest.approx(explained.evaluation.period_us[0])
    assert explained.evaluation.period_us[0] <= period + 1e-9 <= explained.evaluation.latency_us[0] + 2e-9
    busy: dict[int, list[tuple[float, float]]] = {}
    for begins in times:
        ends = [begin + stage.us for begin, stage in zip(begins, found, strict=True)]
        assert all(begin >= end - 1e-6 for begin, end in zip(begins[1:], ends, strict=False))
        for begin, stage in zip(begins, found, strict=True):
            for device, us in stage.busy.items():
                if us > 0:
                    busy.setdefault(device, []).append((begin, begin + us))
    for blocks in busy.values():
        blocks.sort()
        assert all(end <= begin + 1e-6 for (_, end), (begin, _) in pairwise(blocks))


def test_scopes_of_names() -> None:
    scopes = {
        "input": "",
        "encoder.layers.0.attention/MatMul": "encoder.layers.0.attention",
        "encoder.layers.0.attention/Add": "encoder.layers.0.attention",
        "encoder.layers.1/Relu": "encoder.layers.1",
        "Transpose_12": "encoder.layers.1",
        "into_layer_1": "into_layer_1",
        "into_layer_1/Power": "into_layer_1",
        "into_layer_1/Power/Add": "into_layer_1",
        "input/Convert": "into_layer_1",
        "/model/x/": "/model",
    }
    tree = NameTree.of([*scopes], [name == "input" for name in scopes])

    def told(entry: int) -> str:
        parts = []
        while entry >= 0:
            parts.append(tree.part[entry])
            entry = tree.parent[entry]
        return "".join(reversed(parts))

    assert [told(entry) for entry in tree.name] == [*scopes]
    assert [told(entry) for entry in tree.scope] == [*scopes.values()]
    deep = "x" + "/y" * 50
    assert NameTree.of([deep], [False]).scope[0] < 20


@pytest.mark.parametrize("model", [lambda: random_model(3), lambda: stateful_decoder(2)])
def test_data_are_those_of_explain(model: object) -> None:
    placed = model()  # type: ignore[operator]
    ov_hsdag.place(placed, PAIR, measure=False, objective="throughput")
    found = explain(placed)
    data = json.loads(json.dumps(report_data(found, "model"), allow_nan=False))
    graph, nodes = found.explanation.problem.graph, data["nodes"]

    def name(number: int) -> str:
        entry, parts = data["names"]["name"][number], []
        while entry >= 0:
            parts.append(data["texts"][data["names"]["part"][entry]])
            entry = data["names"]["parent"][entry]
        return "".join(reversed(parts))

    names = [name(number) for number in range(len(nodes["device"]))]
    summary = found.summary()
    for number, own in enumerate(names):
        told = found.operation(graph.index(own))
        assert data["devices"][nodes["device"][number]] == told["device"]
        assert data["texts"][nodes["type"][number]] == told["type"]
        assert data["texts"][nodes["why"][number]] == told["why"]
        assert data["texts"][nodes["reason"][number]] == told["reason"]
        assert nodes["us"][number] == pytest.approx(told["us"], rel=1e-5)
        for device, us in enumerate(told["us_on"].values()):
            got = nodes["us_on"][device][number]
            assert got == (None if us is None else pytest.approx(us, rel=1e-5))
        best = told["best_move"]
        if best is not None and best["cost_us"] is not None:
            moved = nodes["move_us"][data["devices"].index(best["to"])][number]
            assert moved == pytest.approx(best["cost_us"], rel=1e-4, abs=1e-4)
    # Only constants, and what is computed of them, are not shown.
    hidden = set(graph.names) - set(names)
    assert all(graph.legality.constant[graph.index(one)] for one in hidden)
    reads = {(names[one], names[other]) for one, other in zip(data["edges"]["from"], data["edges"]["to"], strict=True)}
    pairs = zip(graph.input_source.tolist(), graph.input_node.tolist(), strict=True)
    wanted = {(graph.names[one], graph.names[other]) for one, other in pairs}
    assert reads == {(one, other) for one, other in wanted if not {one, other} & hidden}
    assert data["summary"]["latency_us"] == pytest.approx(summary["latency_us"], rel=1e-5)
    assert sum(nodes["weights"]) == pytest.approx(sum(own["weights"] for own in data["memory"]), abs=2)
    assert sum(nodes["states"]) == pytest.approx(sum(own["states"] for own in data["memory"]), abs=2)
    for device, own in enumerate(data["memory"]):
        assert own["total"] == summary["devices"][data["devices"][device]]["memory_bytes"]
        assert own["weights"] + own["states"] + own["tensors"] == pytest.approx(own["total"], abs=2)
    stored = Placement.of(placed)
    assert stored is not None and stored.predicted is not None
    assert data["record"]["predicted"]["submodels"] == stored.predicted["submodels"]


def test_states_are_told_apart_from_weights() -> None:
    model = stateful_decoder(2)
    placement = ov_hsdag.place(model, PAIR, measure=False, context=512)
    data = data_of(placement, "decoder")
    assert sum(one["states"] for one in data["memory"]) > 0
    states = [number for number, kind in enumerate(data["nodes"]["type"]) if data["texts"][kind] == "ReadValue"]
    assert states
    assert all(data["nodes"]["states"][number] for number in states)


def data_of(placement: Placement, title: str, done: dict[str, str] | None = None) -> dict[str, Any]:
    """What the report of a placement that was just made shows."""
    source = placement.source
    assert isinstance(source, ReportSource)
    found = ExplainedModel(source.explanation, placement, source.profile, source.measured)
    return report_data(found, title, done)


def test_the_page_is_made_of_its_sources() -> None:
    """`npm ci && npm run build` in tools/report_page/ writes page.html; after a change there it has to run again."""
    names = [path.relative_to(SOURCES).as_posix() for path in (SOURCES / "src").iterdir()]
    names += ["build.mjs", "package.json", "package-lock.json"]
    hashes = [f"{one}\0{hashlib.sha256((SOURCES / one).read_bytes()).hexdigest()}\n" for one in sorted(names)]
    made = hashlib.sha256("".join(hashes).encode()).hexdigest()
    text = PAGE.read_text(encoding="utf-8")
    assert re.search(r'name="report-sources" content="([0-9a-f]{64})"', text)[1] == made  # type: ignore[index]
    licences = PAGE.with_name("LICENSES.txt").read_text(encoding="utf-8")
    for package in json.loads((SOURCES / "package.json").read_text(encoding="utf-8"))["dependencies"]:
        assert f"{package} " in licences
    assert len(text) < 400_000
    assert "http-equiv" in text
    assert "default-src 'none'" in text


def test_names_cannot_leave_their_place() -> None:
    _, placement = split_convolutions()
    data = data_of(placement, HOSTILE, {"command": HOSTILE})
    data["texts"] = [HOSTILE for _ in data["texts"]]
    text = page(data)
    plain = page(data_of(placement, "model"))
    for sign in ("<script", "</script", "<img", "<style"):
        assert text.count(sign) == plain.count(sign)
    inside = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert inside is not None
    assert json.loads(inside[1])["title"] == HOSTILE
    assert "&lt;/script&gt;" in text.partition("</title>")[0]
    # An SVG is XML: what is not escaped does not parse.
    drawn = ElementTree.fromstring(picture(data | {"devices": [f"{HOSTILE}{one}" for one in data["devices"]]}))
    assert {element.tag.rpartition("}")[2] for element in drawn.iter()} <= {
        "svg", "rect", "text", "line", "defs", "pattern", "path", "polygon"
    }  # fmt: skip


def test_a_placement_reports_itself(tmp_path: Path) -> None:
    model, placement = split_convolutions()
    placement.report(tmp_path / "deep" / "report.html", title="the model")
    assert "<title>the model: what runs where</title>" in (tmp_path / "deep" / "report.html").read_text("utf-8")
    placement.report(tmp_path / "split.svg")
    assert ElementTree.parse(tmp_path / "split.svg").getroot().tag.endswith("svg")
    shown = placement._repr_html_()
    assert "<img" in shown
    assert "<script" not in shown
    assert len(shown) < 60_000
    again = pickle.loads(pickle.dumps(placement))
    assert again == placement
    again.report(tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_bytes() == (tmp_path / "split.svg").read_bytes()
    read = Placement.of(model)
    assert read is not None
    assert "GPU: " in read._repr_html_()
    with pytest.raises(UserError, match="ov-hsdag report MODEL"):
        read.report(tmp_path / "read.html")
    moved, _ = placement.mapped(("CPU",))
    assert moved.source is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.svg", "deep", "split.svg"]


def test_a_picture_as_png(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, placement = split_convolutions()
    try:
        placement.report(tmp_path / "split.png")
    except RunError as error:
        if "needs a font" not in str(error) or os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    assert (tmp_path / "split.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr("ov_hsdag.report.write._FAMILIES", ("no font of this name",))
    with pytest.raises(RunError, match="apt-get install fonts"):
        placement.report(tmp_path / "other.png")
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    monkeypatch.setattr("ov_hsdag.report.write.find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install resvg-py"):
        check_report(tmp_path / "other.png")
    assert [path.name for path in tmp_path.iterdir()] == ["split.png"]


def test_pictures_of_many_submodels_stay_small() -> None:
    problem = random_problem(5, nodes=600, devices=3, submodel_us=1.0)
    explained = Explanation(problem, problem.random(np.random.default_rng(0), 1)[0])
    assert explained.evaluation.submodels[0] > 50
    names = {name: problem.devices[device] for name, device in zip(problem.graph.names, explained.device, strict=True)}
    placement = Placement(devices=problem.devices, affinity=names)
    assert len(picture(picture_data(explained, placement, "many"))) < 400_000


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "model.xml"
    model, _ = split_convolutions()
    ov.save_model(model, path)
    return path


def test_command(placed: Path, tmp_path: Path) -> None:
    done = ran("report", placed, "--output", tmp_path / "report.html", "--json")
    assert json.loads(done.stdout) == {
        "output": str(tmp_path / "report.html"),
        "bytes": (tmp_path / "report.html").stat().st_size,
    }
    inside = re.search(r'id="data">(.*?)</script>', (tmp_path / "report.html").read_text("utf-8"), re.DOTALL)
    assert inside is not None
    data = json.loads(inside[1])
    assert data["title"] == "model"
    assert data["done"]["versions"]["ov-hsdag"] == ov_hsdag.__version__
    assert set(data["done"]["profiles"]) == {"GPU", "CPU"}
    done = ran("report", placed, "-o", tmp_path / "split.svg")
    assert (tmp_path / "split.svg").stat().st_size > 1000


def test_what_cannot_be_reported_is_told_in_one_line(placed: Path, tmp_path: Path) -> None:
    assert_one_error_line(run("report", placed, "-o", tmp_path / "report.pdf"), "a report is a .html")
    (tmp_path / "file").touch()
    assert_one_error_line(run("report", placed, "-o", tmp_path / "file" / "r.html"), "r.html")
    done = run("place", placed, "-d", PAIR, "-o", tmp_path / "placed.xml", "--report", tmp_path / "r.txt")
    assert_one_error_line(done, "a report is a .html")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_place_writes_its_report(tmp_path: Path) -> None:
    ov.save_model(convolutions(), tmp_path / "model.xml")
    ran(
        "place", tmp_path / "model.xml", "-d", PAIR, "--no-measure", "-o", tmp_path / "placed.xml", "--report",
        tmp_path / "report.html",
    )  # fmt: skip
    text = (tmp_path / "report.html").read_text("utf-8")
    assert "ov-hsdag place" in text
    assert '"seconds":{' in text


def test_a_drawing_is_well_formed_and_escapes_what_names_hold() -> None:
    drawing = Drawing(100, 50)
    drawing.text(1.25, 2.0, 'a<b & "c"', text_anchor="end", fill='"red"')
    drawing.line(0, 1, 2.04, 3, "#123456", stroke_width=2)
    drawing.rectangle(0, 0, 3.14159, 1, "blue")
    root = ElementTree.fromstring(drawing.svg())
    assert root.get("viewBox") == "0 0 100 50"
    background, text, line, rectangle = root
    assert (background.get("width"), background.get("height"), background.get("fill")) == ("100", "50", "white")
    assert (text.text, text.get("text-anchor"), text.get("x"), text.get("y")) == ('a<b & "c"', "end", "1.25", "2")
    assert text.get("fill") == '"red"'
    assert (line.get("x2"), line.get("stroke-width")) == ("2.04", "2")
    assert rectangle.get("width") == "3.14"
