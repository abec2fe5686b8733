"""A written model replaces an earlier IR of its name and nothing else: with real commands and real ONNX models."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import onnx
import openvino as ov
import pytest
from onnx import TensorProto, helper, numpy_helper
from openvino import opset13 as ops

from ov_hsdag.cli.commands import calibrate
from ov_hsdag.model.placement import Placement
from ov_hsdag.storage import files, overwriting
from ov_hsdag.utils.errors import UserError
from tests.commands import DEVICE, ovc, run

SIZE = 24


def save_onnx(path: Path, weights: str, seed: int = 0) -> np.ndarray:
    """An ONNX model of two matrix products with its weights in another file. Returns what it computes.

    An IR has constants in the order of the graph, ONNX in the other: replaced weights would be as many, and wrong.
    """
    random = np.random.default_rng(seed)
    matrices = [random.standard_normal((SIZE, SIZE)).astype(np.float32) for _ in range(2)]
    nodes = [helper.make_node("MatMul", ["x", "a"], ["h"]), helper.make_node("MatMul", ["h", "b"], ["y"])]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, SIZE]) for name in "xy"]
    constants = [numpy_helper.from_array(value, name) for value, name in zip(matrices[::-1], "ba", strict=True)]
    graph = helper.make_graph(nodes, "external", ports[:1], ports[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    onnx.save(model, path, save_as_external_data=True, location=weights, size_threshold=0)
    return computed(path)


def computed(path: Path) -> np.ndarray:
    compiled = ov.Core().compile_model(ov.Core().read_model(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return np.array(compiled(np.linspace(-1, 1, 4 * SIZE, dtype=np.float32).reshape(4, SIZE))[0])


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """One line on standard error, and exit status 2."""
    assert done.returncode == 2, done.stdout + done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "rror" in line]
    assert all(word in line for word in words), line


COMMANDS = {
    "place": lambda model, output: run("place", model, "--device", DEVICE, "--no-measure", "--output", output),
    "affinity": lambda model, output: run(
        "place", model, "--device", DEVICE, "--affinity", output.parent / "affinity.json", "--output", output
    ),
    "strip": lambda model, output: run("strip", model, "--output", output),
    "ovc": lambda model, output: ovc(model, "--placement", DEVICE, "--output_model", output),
}


@pytest.mark.parametrize("command", [*COMMANDS])
def test_weights_of_the_input_are_not_overwritten(tmp_path: Path, command: str) -> None:
    expected = save_onnx(tmp_path / "model.onnx", "model.bin")
    (tmp_path / "affinity.json").write_text(json.dumps({"x": "CPU_A"}))
    before = content(tmp_path)
    done = COMMANDS[command](tmp_path / "model.onnx", tmp_path / "model.xml")
    refused(done, "model.xml", "'model.bin' holds weights of the input", "choose another output")
    assert content(tmp_path) == before
    # Under another name it works, and the ONNX model is as it was.
    if command != "affinity":
        assert COMMANDS[command](tmp_path / "model.onnx", tmp_path / "placed.xml").returncode == 0
        assert np.allclose(computed(tmp_path / "placed.xml"), expected, rtol=1e-2, atol=1e-1)
        assert np.array_equal(computed(tmp_path / "model.onnx"), expected)


@pytest.mark.parametrize("command", ["place", "strip", "ovc"])
def test_weights_of_another_model_are_not_overwritten(tmp_path: Path, command: str) -> None:
    """Nothing in the input refers to them."""
    save_onnx(tmp_path / "model.onnx", "model.weights")
    save_onnx(tmp_path / "other.onnx", "out.bin", seed=1)
    before = content(tmp_path)
    refused(COMMANDS[command](tmp_path / "model.onnx", tmp_path / "out.xml"), "'out.bin'", "without 'out.xml'")
    assert content(tmp_path) == before


def test_weights_that_were_appended_to_those_of_an_ir_are_not_overwritten(tmp_path: Path) -> None:
    """onnx appends to a file that is there: model.bin then serves an IR and an ONNX model."""
    save_onnx(tmp_path / "plain.onnx", "plain.weights")
    assert COMMANDS["strip"](tmp_path / "plain.onnx", tmp_path / "model.xml").returncode == 0
    save_onnx(tmp_path / "model.onnx", "model.bin", seed=1)
    before = content(tmp_path)
    done = COMMANDS["place"](tmp_path / "model.onnx", tmp_path / "model.xml")
    refused(done, "'model.bin' holds weights of the input")
    assert content(tmp_path) == before


def test_data_in_a_folder_and_behind_a_link_is_recognized(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    save_onnx(tmp_path / "model.onnx", "data/model.bin")
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "m.onnx").symlink_to(tmp_path / "model.onnx")
    before = content(tmp_path)
    data = Path("data", "model.bin")
    assert list(overwriting.external_data(tmp_path / "model.onnx")) == [tmp_path / data]
    # OpenVINO looks beside the link, onnx beside what it points to.
    linked = list(overwriting.external_data(tmp_path / "link" / "m.onnx"))
    assert linked == [tmp_path / "link" / data, tmp_path / data]
    refused(COMMANDS["place"](tmp_path / "model.onnx", tmp_path / "data" / "model.xml"), "holds weights of the input")
    assert content(tmp_path) == before


def test_an_earlier_ir_is_replaced_also_when_it_is_the_input(tmp_path: Path) -> None:
    expected = save_onnx(tmp_path / "model.onnx", "model.weights")
    output = tmp_path / "model.xml"
    for words in ("place model.onnx", "ovc model.onnx", "place model.xml", "strip model.xml"):
        command, source = words.split()
        done = COMMANDS[command](tmp_path / source, output)
        assert done.returncode == 0, done.stderr
        assert np.allclose(computed(output), expected, rtol=1e-2, atol=1e-1)
    assert np.array_equal(computed(tmp_path / "model.onnx"), expected)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="fine-tuning needs torch")
@pytest.mark.parametrize("name", ["model", "policy/policy"])
def test_finetune_overwrites_no_weights_in_its_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "policy").mkdir()
    save_onnx(tmp_path / "model.onnx", f"{name}.bin")
    before = content(tmp_path)
    done = run(
        "finetune", tmp_path / "model.onnx", "--device", DEVICE, "--output", tmp_path,
        "--simulated", "--measurements", 2, "--policy", "none",
    )  # fmt: skip
    refused(done, f"{name}.xml", "holds weights of the input")
    assert content(tmp_path) == before


def test_calibrate_overwrites_no_data_of_the_model(tmp_path: Path) -> None:
    expected = save_onnx(tmp_path / "model.onnx", "model.costs.json")
    before = content(tmp_path)
    arguments = ("calibrate", "--device", DEVICE, "--model", tmp_path / "model.onnx", "--output")
    refused(run(*arguments, tmp_path / "p.json"), "model.costs.json", "holds no measured costs")
    assert content(tmp_path) == before
    save_onnx(tmp_path / "model.onnx", "p.json")
    (tmp_path / "model.costs.json").unlink()
    refused(run(*arguments, tmp_path / "p.json"), "p.json", "holds weights of the input")
    assert np.array_equal(computed(tmp_path / "model.onnx"), expected)


def ir(path: Path, seed: int = 0) -> None:
    x = ops.parameter([1, 8], np.float32, name="x")
    weights = np.random.default_rng(seed).normal(size=(8, 8)).astype(np.float32)
    ov.save_model(ov.Model([ops.matmul(x, weights, False, False)], [x]), path, compress_to_fp16=False)


def test_an_ir_with_control_characters_in_its_names_is_replaced(tmp_path: Path) -> None:
    """OpenVINO writes and reads them, and XML does not have them."""
    path = tmp_path / "model.xml"
    model = constantless()
    for number, node in enumerate(model.get_ops()):
        node.set_friendly_name(f"node\x01\x1b\x0b{number}")
    for _ in range(2):
        files.save_model_atomically(model, path, compress_to_fp16=False)
    names = [node.get_friendly_name() for node in ov.Core().read_model(path).get_ops()]
    assert sorted(names) == sorted(node.get_friendly_name() for node in model.get_ops())


def constantless() -> ov.Model:
    x = ops.parameter([1, 8], np.float32, name="x")
    return ov.Model([ops.relu(x)], [x])


FOREIGN = {
    "xml of something else": {"m.xml": b"<project><target/></project>"},
    "xml that cannot be parsed": {"m.xml": b"weights: [1, 2]"},
    "bin alone": {"m.bin": b"1234"},
    "bin beside an empty xml": {"m.xml": b"", "m.bin": b"1234"},
}


@pytest.mark.parametrize("there", FOREIGN.values(), ids=FOREIGN)
def test_foreign_files_are_refused_before_the_work_and_when_writing(tmp_path: Path, there: dict[str, bytes]) -> None:
    for name, text in there.items():
        (tmp_path / name).write_bytes(text)
    for write in (files.check_model_output, lambda path: files.save_model_atomically(constantless(), path)):
        with pytest.raises(UserError, match=r"cannot write '.*m\.xml': 'm\.(xml|bin)'.* is there already"):
            write(tmp_path / "m.xml")
        assert content(tmp_path) == there


@pytest.mark.parametrize("weights", [b"1234", b"longer than needed" * 99])
def test_weights_that_the_ir_beside_them_does_not_use_are_refused(tmp_path: Path, weights: bytes) -> None:
    if len(weights) > 4:
        ov.save_model(constantless(), tmp_path / "m.xml")  # uses none at all
    else:
        ir(tmp_path / "m.xml")  # uses more
    (tmp_path / "m.bin").write_bytes(weights)
    before = content(tmp_path)
    for write in (files.check_model_output, lambda path: files.save_model_atomically(constantless(), path)):
        with pytest.raises(UserError, match=r"'m\.bin', .* does not hold those of the model in 'm\.xml'"):
            write(tmp_path / "m.xml")
        assert content(tmp_path) == before


def test_what_is_replaced_as_ever(tmp_path: Path) -> None:
    """Earlier IRs with and without weights, empty files, an IR that has lost its weights."""
    path = tmp_path / "m.xml"

    def save() -> None:
        files.check_model_output(path)
        files.save_model_atomically(constantless(), path)
        assert ov.Core().read_model(path).get_ops()

    path.touch()
    path.with_suffix(".bin").touch()
    save()
    save()
    ir(path)
    save()
    ir(path, 1)
    path.with_suffix(".bin").unlink()
    save()


@pytest.mark.parametrize("how", ["same", "hard link", "folder", "linked input", "weights"])
def test_the_input_is_not_replaced(tmp_path: Path, how: str) -> None:
    model, output = tmp_path / "m.xml", tmp_path / "o.xml"
    ir(model)
    if how == "same":
        output = tmp_path / "." / "m.xml"
    elif how == "linked input":
        model.rename(output)
        model.symlink_to(output)
    elif how == "hard link":
        output.hardlink_to(model)
    elif how == "folder":
        (tmp_path / "link").symlink_to(tmp_path)
        output = tmp_path / "link" / "m.xml"
    else:
        output.with_suffix(".bin").hardlink_to(model.with_suffix(".bin"))
    before = content(tmp_path)
    with pytest.raises(UserError, match=r"cannot write '.*\.xml': it is the input; choose another output"):
        files.check_model_output(output, model)
    assert content(tmp_path) == before
    files.check_model_output(tmp_path / "p.xml", model)
    if how == "same":
        refused(COMMANDS["place"](model, output), "it is the input")
        assert content(tmp_path) == before


def test_a_folder_under_the_name_of_the_weights_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "m.bin").mkdir()
    with pytest.raises(UserError, match=r"cannot write .*m\.xml.*directory"):
        files.check_model_output(tmp_path / "m.xml")


def test_other_inputs_refer_to_nothing(tmp_path: Path) -> None:
    cut = b"\x0a\x08location\x12"
    for name, text in (("empty.onnx", b""), ("cut.onnx", cut), ("odd", cut + b"\xff")):
        (tmp_path / name).write_bytes(text)
        assert not any(path.is_file() for path in overwriting.external_data(tmp_path / name))
    assert not list(overwriting.external_data(tmp_path))
    assert not list(overwriting.external_data(tmp_path / "missing"))


def test_onnx_is_not_needed(tmp_path: Path) -> None:
    save_onnx(tmp_path / "model.onnx", "model.bin")
    code = "import sys; sys.modules['onnx'] = None; from ov_hsdag.cli import main; main()"
    done = run("strip", tmp_path / "model.onnx", "--output", tmp_path / "model.xml", code=code)
    refused(done, "holds weights of the input")


# Symbolic links


def cached(folder: Path, seed: int = 0) -> tuple[Path, dict[str, bytes]]:
    """An IR as Hugging Face's cache holds it: two links to files named after their content; and these files."""
    blobs, snapshot = folder / "blobs", folder / "snapshots" / "main"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    ir(folder / "made.xml", seed)
    for suffix in (".xml", ".bin"):
        (folder / "made").with_suffix(suffix).rename(blobs / f"0{suffix[1:]}f")
        (snapshot / "openvino_model").with_suffix(suffix).symlink_to(Path("..", "..", "blobs", f"0{suffix[1:]}f"))
    return snapshot / "openvino_model.xml", content(blobs)


def product(path: Path) -> np.ndarray:
    compiled = ov.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return np.array(compiled(np.arange(8, dtype=np.float32)[None])[0])


@pytest.mark.parametrize("command", ["place", "strip"])
def test_a_model_in_a_cache_is_replaced_where_it_is_linked(tmp_path: Path, command: str) -> None:
    model, blobs = cached(tmp_path)
    expected = product(model)
    done = COMMANDS[command](model, model)
    assert done.returncode == 0, done.stderr
    assert not model.is_symlink() and not model.with_suffix(".bin").is_symlink()  # of equal weights, too
    assert np.allclose(product(model), expected)
    assert content(tmp_path / "blobs") == blobs
    assert (Placement.of(ov.Core().read_model(model)) is not None) == (command == "place")


@pytest.mark.parametrize("steps", range(7))
def test_linked_files_are_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Not when other weights take their place either, at whatever rename that is interrupted."""
    model, blobs = cached(tmp_path)
    ir(tmp_path / "other.xml", seed=1)
    old, new = product(model), product(tmp_path / "other.xml")
    # Read whole: OpenVINO maps weights, and a mapped file stays as it is anyway.
    other = ov.Core().read_model((tmp_path / "other.xml").read_bytes(), (tmp_path / "other.bin").read_bytes())
    replace, left = os.replace, iter(range(steps))

    def interrupted(source: Path, target: Path) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    with contextlib.suppress(KeyboardInterrupt):
        files.save_model_atomically(other, model, compress_to_fp16=False)
    found = product(model)
    assert np.array_equal(found, old) or np.array_equal(found, new)
    assert np.array_equal(found, new) or steps < 5
    assert content(tmp_path / "blobs") == blobs
    assert {path.name for path in model.parent.iterdir()} == {"openvino_model.xml", "openvino_model.bin"}


def test_a_link_to_a_model_is_read_and_replaced(tmp_path: Path) -> None:
    """The weights are beside what it points to; what is written is a pair beside the link."""
    (tmp_path / "links").mkdir()
    ir(tmp_path / "model.xml")
    link = tmp_path / "links" / "link.xml"
    link.symlink_to(tmp_path / "model.xml")
    before, expected = content(tmp_path), product(tmp_path / "model.xml")
    done = COMMANDS["place"](link, link)
    assert done.returncode == 0, done.stderr
    assert not link.is_symlink() and np.allclose(product(link), expected)
    assert {name: text for name, text in content(tmp_path).items() if not name.startswith("links")} == {
        name: text for name, text in before.items() if not name.startswith("links")
    }


def test_links_that_point_nowhere_or_elsewhere_are_replaced(tmp_path: Path) -> None:
    for suffix in (".xml", ".bin"):
        (tmp_path / "m").with_suffix(suffix).symlink_to(tmp_path / "missing" / f"file{suffix}")
    files.check_model_output(tmp_path / "m.xml")
    files.save_model_atomically(constantless(), tmp_path / "m.xml")
    assert {path.name for path in tmp_path.iterdir()} == {"m.xml", "m.bin"}
    assert not any(path.is_symlink() for path in tmp_path.iterdir())
    (tmp_path / "kept.txt").write_text("not a model")
    (tmp_path / "other.xml").symlink_to("kept.txt")
    with pytest.raises(UserError, match=r"'other\.xml' is there already and is no OpenVINO IR"):
        files.check_model_output(tmp_path / "other.xml")


def test_a_write_protected_file_behind_a_link_is_no_obstacle(tmp_path: Path) -> None:
    model, blobs = cached(tmp_path)
    for blob in (tmp_path / "blobs").iterdir():
        blob.chmod(0o444)
    files.check_model_output(model)
    files.save_model_atomically(constantless(), model)
    assert content(tmp_path / "blobs") == blobs
    assert all(path.stat().st_mode & 0o200 for path in model.parent.iterdir())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
@pytest.mark.parametrize("name", ["m.xml", "m.bin"])
def test_a_named_pipe_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    for write in (files.check_model_output, lambda path: files.save_model_atomically(constantless(), path)):
        with pytest.raises(UserError, match=rf"cannot write '.*m\.xml': '{name}' is there already and is no file"):
            write(tmp_path / "m.xml")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_link_to_itself_is_a_name_as_any_other(tmp_path: Path) -> None:
    ir(tmp_path / "m.xml")
    for name in ("p.json", "m.costs.json", "o.xml", "o.bin"):
        (tmp_path / name).symlink_to(name)
    with pytest.raises(UserError, match=r"cannot read measured costs .*m\.costs\.json"):
        calibrate._check_outputs(tmp_path / "p.json", [tmp_path / "m.xml"])
    (tmp_path / "m.costs.json").unlink()
    calibrate._check_outputs(tmp_path / "p.json", [tmp_path / "m.xml"])
    files.check_model_output(tmp_path / "o.xml", tmp_path / "m.xml")
    files.write_text(tmp_path / "p.json", "{}")
    assert not (tmp_path / "p.json").is_symlink()
