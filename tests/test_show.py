"""`ov-hsdag explain --stored` and `show`: what is stored, as it is stored; and the picture of a split."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ov_hsdag
from ov_hsdag.cli.placed import split_picture
from ov_hsdag.model.normalize import normalize
from ov_hsdag.model.placement import Placement
from ov_hsdag.model.relaxed_shapes import is_relaxing
from ov_hsdag.utils.lazy import opset13 as ops
from tests.commands import assert_one_error_line, ran, run
from tests.decoders import decoder_of_experts
from tests.graphs import convolutions, halved
from tests.test_relaxed_shapes import batches

PAIR = "HETERO:GPU,CPU"


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Placement]:
    """A model whose first half is on GPU."""
    path = tmp_path_factory.mktemp("show") / "model.xml"
    model = convolutions()
    placement = ov_hsdag.place(model, PAIR, affinity=halved(model, ("GPU", "CPU")).affinity, measure=False)
    assert placement.used() == ("GPU", "CPU")
    ov.save_model(model, path)
    return path, placement


def test_facts_are_those_of_the_file(halves: tuple[Path, Placement]) -> None:
    path, placement = halves
    found = json.loads(run("show", path, "--json").stdout)
    model = ov.Core().read_model(path)
    names = [node.get_friendly_name() for node in model.get_ordered_ops()]
    operations = [one for one in names if one in placement.affinity]
    assert found["predicted"] == placement.predicted
    assert sum(found["devices"].values()) == sum(part["operations"] for part in found["parts"])
    for part, following in zip(found["parts"], found["parts"][1:], strict=False):
        assert part["device"] != following["device"]
        assert operations.index(part["last"]) < operations.index(following["first"])
    for cut in found["crossing"]:
        (node,) = [one for one in model.get_ops() if one.get_friendly_name() == cut["tensor"]]
        readers = {
            placement.affinity[port.get_node().get_friendly_name()]
            for output in node.outputs()
            for port in output.get_target_inputs()
        }
        assert placement.affinity[cut["tensor"]] == cut["from"] != cut["to"]
        assert cut["to"] in readers
    assert found["crossing"]


def test_show_and_explain_count_alike(tmp_path: Path) -> None:
    """Open sizes cross through operations that placing inserts, and an unused input is a submodel of HETERO's."""
    model, path = batches(), tmp_path / "model.xml"
    model.add_parameters([ops.parameter([1, 3], np.float32, name="unused")])
    normalize(model)  # which gives all nodes their names
    ov_hsdag.place(model, PAIR, affinity=halved(model, ("GPU", "CPU")).affinity, measure=False)
    assert any(is_relaxing(node.get_friendly_name()) for node in model.get_ops())
    ov.save_model(model, path)
    shown, explained = (json.loads(run(command, path, "--json").stdout) for command in ("show", "explain"))
    assert shown["devices"] == {name: one["operations"] for name, one in explained["devices"].items()}
    assert {cut["tensor"] for cut in shown["crossing"]} == {cut["tensor"] for cut in explained["cuts"]}
    lines = [line for line in run("explain", path).stdout.splitlines() if line.startswith("submodel ")]
    assert len(lines) == len(explained["submodels"]) == 3
    assert sum(line.endswith(" holds inputs only, and computes nothing") for line in lines) == 1


def test_of_a_decoder_they_count_what_the_file_has(tmp_path: Path) -> None:
    """What placing copied stays apart, and inputs that are read on both devices cross."""
    model, path = decoder_of_experts(2), tmp_path / "model.xml"
    placement = ov_hsdag.place(model, PAIR, experts="CPU:1", measure=False)
    ov.save_model(model, path)
    shown, explained = (json.loads(run(command, path, "--json").stdout) for command in ("show", "explain"))
    assert shown["devices"] == {name: one["operations"] for name, one in explained["devices"].items()}
    cuts = [sorted((cut["tensor"], cut["to"]) for cut in cuts) for cuts in (shown["crossing"], explained["cuts"])]
    assert cuts[0] == cuts[1] and len(cuts[0]) == len(cuts[1])
    assert placement.predicted and explained["latency_us"] == pytest.approx(placement.predicted["latency_us"])


def test_text_and_the_affinity_file(halves: tuple[Path, Placement], tmp_path: Path) -> None:
    path, placement = halves
    done = ran("show", path, "-o", tmp_path / "affinity.json", PYTHONIOENCODING="utf-8")
    assert done.stdout.startswith(f"{path}: ") or done.stdout.startswith(f"{path}:\n")
    assert "█" in done.stdout
    assert "in the order of the model:" in done.stdout and "part 0" not in done.stdout
    assert json.loads((tmp_path / "affinity.json").read_text(encoding="utf-8")) == placement.affinity
    plain = run("show", path, PYTHONIOENCODING="ascii")
    assert plain.returncode == 0
    assert "#" in plain.stdout


def test_explain_prints_the_same(halves: tuple[Path, Placement], tmp_path: Path) -> None:
    path, _ = halves
    for options in ((), ("--json",), ("--quiet",)):
        shown, stored = run("show", path, *options), run("explain", path, "--stored", *options)
        assert (stored.returncode, stored.stdout, stored.stderr) == (0, shown.stdout, shown.stderr)
    for number, words in enumerate((("show", path), ("explain", path, "--stored"))):
        ran(*words, "--output", tmp_path / f"{number}.json")
    assert (tmp_path / "0.json").read_bytes() == (tmp_path / "1.json").read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--stored", "--type", "MatMul"), "leave out --type"),
        (("--stored", "--device", PAIR), "leave out --device"),
        (("--output", "affinity.json"), "give --stored, too"),
    ],
)
def test_what_is_stored_and_what_is_explained_are_asked_apart(
    halves: tuple[Path, Placement], options: tuple[str, ...], message: str
) -> None:
    assert_one_error_line(run("explain", halves[0], *options), message)


@pytest.mark.parametrize("name", ["model.xml", "model.bin", "model.txt", "weights.json"])
def test_the_affinity_file_is_json_and_never_the_input(
    halves: tuple[Path, Placement], tmp_path: Path, name: str
) -> None:
    for suffix in (".xml", ".bin"):
        shutil.copy(halves[0].with_suffix(suffix), tmp_path)
    (tmp_path / "weights.json").symlink_to("model.bin")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    done = run("show", tmp_path / "model.xml", "-o", tmp_path / name)
    assert_one_error_line(done, "it is the input" if name == "weights.json" else "must end in .json")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@given(st.lists(st.integers(0, 2), max_size=300), st.integers(1, 120))
def test_picture(devices: list[int], width: int) -> None:
    lines = split_picture(("A", "BB", "C"), devices, width=width)
    assert all(len(line) <= width for line in lines)
    if not lines:
        assert min(width - 4, len(devices)) < 8
        return
    for number, line in enumerate(lines):
        assert bool(line[4:].strip()) == (number in devices)
    columns = range(4, max(map(len, lines)))
    assert all(any(line[column : column + 1].strip() for line in lines) for column in columns)
