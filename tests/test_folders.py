"""Folders as optimum-intel exports them: what of them is placed, what is written, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from typer.testing import CliRunner

from ov_hsdag.cli.app import app
from ov_hsdag.devices.virtual import new_core
from ov_hsdag.model.placement import Placement
from ov_hsdag.storage import files, folder_writing
from ov_hsdag.storage.folder_writing import MARKER, write_folder
from ov_hsdag.storage.model_folder import longest_context, model_files
from ov_hsdag.utils.errors import RunError, UserError
from ov_hsdag.utils.lazy import opset13 as ops
from tests.decoders import generate, stateful_decoder

pytestmark = pytest.mark.usefixtures("declared", "fast_search")

DEVICE = "HETERO:CPU_A,CPU_B"
CONFIGURATION = '{"model_type": "llama"}'
PLACE = ("--device", DEVICE, "--no-measure", "--policy", "none", "--objective", "throughput")


def tiny(width: int = 8) -> ov.Model:
    data = ops.parameter([1, width], np.float32, name="x")
    return ov.Model([ops.matmul(data, np.eye(width, dtype=np.float32) * 2, False, False)], [data], "tiny")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "llama"
    path.mkdir()
    ov.save_model(stateful_decoder(4), path / "openvino_model.xml", compress_to_fp16=False)
    for name in ("tokenizer", "detokenizer"):
        ov.save_model(tiny(), path / f"openvino_{name}.xml", compress_to_fp16=False)
    (path / "config.json").write_text(CONFIGURATION)
    (path / ".cache").mkdir()
    (path / "model_cache").mkdir()
    (path / "model_cache" / "old.blob").write_bytes(b"compiled")
    return path


def vision(path: Path) -> Path:
    """The folder of a vision-language model."""
    (path / "openvino_model.xml").rename(path / "openvino_language_model.xml")
    (path / "openvino_model.bin").rename(path / "openvino_language_model.bin")
    ov.save_model(tiny(), path / "openvino_vision_embeddings_model.xml", compress_to_fp16=False)
    return path


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(result: Any, *words: str) -> None:
    assert isinstance(result.exception, UserError), result
    assert "\n" not in str(result.exception)
    for word in words:
        assert word in str(result.exception)


def tree(path: Path) -> dict[str, bytes]:
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def carries(xml: Path) -> bool:
    return Placement.of(ov.Core().read_model(xml)) is not None


def test_a_placed_folder_is_complete_and_computes_the_same(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before, placed = tree(folder), folder.parent / "placed"
    done = run("place", folder, *PLACE, "--output", placed, "--json")
    assert not done.exit_code, done.exception
    told = json.loads(capfd.readouterr().out)
    assert told["output"] == str(placed)
    assert set(told["models"]["openvino_model.xml"]["placement"].values()) == {"CPU_A", "CPU_B"}
    models = {f"openvino_{name}.{kind}" for name in ("model", "tokenizer", "detokenizer") for kind in ("xml", "bin")}
    assert set(tree(placed)) == {*models, "config.json", MARKER}
    assert tree(folder) == before
    assert set(os.listdir(folder.parent)) == {"llama", "placed"}

    core = new_core()
    exact = {"INFERENCE_PRECISION_HINT": "f32"}
    wanted = generate(core.compile_model(folder / "openvino_model.xml", "CPU", exact))
    compiled = core.compile_model(placed / "openvino_model.xml", DEVICE)
    assert compiled.get_property("HETERO_NUMBER_OF_SUBMODELS") == 2
    for one, other in zip(generate(compiled), wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
    assert not run("verify", placed, "--device", DEVICE).exit_code


def test_files_that_people_edit_are_copied_and_weights_linked(folder: Path) -> None:
    placed = folder.parent / "placed"
    assert not run("place", folder, *PLACE, "--output", placed).exit_code
    assert (placed / "openvino_tokenizer.bin").samefile(folder / "openvino_tokenizer.bin")
    for name in ("config.json", "openvino_tokenizer.xml"):
        assert (placed / name).stat().st_nlink == 1
    alone = folder.parent / "alone"
    assert not run("place", folder, *PLACE, "--output", alone, "--no-hardlinks").exit_code
    assert all(path.stat().st_nlink == 1 for path in alone.iterdir() if path.name != "model_cache")
    assert (placed / "openvino_tokenizer.bin").stat().st_nlink == 2


def test_weights_that_stay_the_same_are_shared_and_what_is_added_stands_behind_them(folder: Path) -> None:
    core, source = ov.Core(), folder / "openvino_model.xml"
    model = core.read_model(source)
    model.set_rt_info("1", ["something"])
    assert write_folder(folder.parent / "same", folder, {source.name: (model, False)}) == {source.name: True}
    assert (folder.parent / "same" / "openvino_model.bin").samefile(source.with_suffix(".bin"))

    logits = model.get_results()[0]
    product = ops.multiply(logits.input_value(0), np.array([[[3.14159]]], np.float32))
    logits.input(0).replace_source_output(product.output(0))
    assert write_folder(folder.parent / "more", folder, {source.name: (model, False)}) == {source.name: False}
    old, new = (path.with_suffix(".bin").read_bytes() for path in (source, folder.parent / "more" / source.name))
    assert new == old + np.float32(3.14159).tobytes()
    exact = {"INFERENCE_PRECISION_HINT": "f32"}
    one = generate(core.compile_model(source, "CPU", exact))
    other = generate(core.compile_model(folder.parent / "more" / source.name, "CPU", exact))
    for wanted, found in zip(one, other, strict=True):
        np.testing.assert_allclose(found, wanted * np.float32(3.14159), rtol=1e-3, atol=1e-4)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="which files are mapped is told by /proc")
def test_weights_that_are_mapped_are_not_written_to_be_found_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_writing, "_LARGE", 256)
    written: list[int] = []
    save = folder_writing.save_model  # type: ignore[attr-defined]

    def saving(model: ov.Model, xml: Path, *rest: Any, **more: Any) -> None:
        large = [node for node in model.get_ops() if node.get_type_name() == "Constant" and node.get_byte_size() > 256]
        # Takes the memory that placeholders refer to, if that is free by now.
        others = [np.full(node.get_byte_size(), 7, np.uint8) for node in large]
        assert not any(node.data.any() for node in large if node.get_friendly_name().startswith(folder_writing._MAPPED))
        del others
        save(model, xml, *rest, **more)
        written.append(xml.with_suffix(".bin").stat().st_size)

    monkeypatch.setattr(folder_writing, "save_model", saving)
    core, source = ov.Core(), folder / "openvino_model.xml"
    whole = source.with_suffix(".bin").stat().st_size
    model = core.read_model(source)
    for node in model.get_ops():
        node.get_rt_info()["can_be_folded"] = ""  # as OpenVINO's clean-up leaves it
        node.get_rt_info()["affinity"] = "CPU_A"
    assert write_folder(folder.parent / "same", folder, {source.name: (model, False)}) == {source.name: True}
    assert len(written) == 1 and written[0] < 0.2 * whole
    placed = folder.parent / "same" / source.name
    for one, other in zip(model.get_ordered_ops(), core.read_model(placed).get_ordered_ops(), strict=True):
        assert one.get_friendly_name() == other.get_friendly_name()
        if one.get_type_name() == "Constant":
            np.testing.assert_array_equal(one.data, other.data)
    # What cannot use the old weights is saved as it is.
    for node in model.get_ops():
        if node.get_type_name() == "Constant" and node.get_byte_size() > 256:
            other = ops.constant(node.data + 1)
            for reader in node.output(0).get_target_inputs():
                reader.replace_source_output(other.output(0))
    model.get_ordered_ops()
    assert write_folder(folder.parent / "new", folder, {source.name: (model, False)}) == {source.name: False}


def test_strip_gives_back_a_plain_folder(folder: Path) -> None:
    placed, plain = folder.parent / "placed", folder.parent / "plain"
    assert not run("place", folder, *PLACE, "--output", placed).exit_code
    assert not run("strip", placed, "--output", plain).exit_code
    assert not carries(plain / "openvino_model.xml")
    assert (plain / "openvino_model.bin").samefile(placed / "openvino_model.bin")
    assert (plain / "config.json").read_text() == CONFIGURATION


def test_the_language_model_of_a_vision_model_is_placed_and_others_when_asked(folder: Path) -> None:
    source, placed = vision(folder), folder.parent / "placed"
    language, small = placed / "openvino_language_model.xml", placed / "openvino_vision_embeddings_model.xml"
    assert not run("place", source, *PLACE, "--output", placed).exit_code
    assert carries(language)
    assert not carries(small)
    parts = ("--part", "vision_embeddings", "--part", "openvino_language_model.xml")
    assert not run("place", source, *PLACE, "--output", placed, *parts).exit_code
    assert carries(language)
    assert carries(small)
    refused(run("place", source, *PLACE, "--output", placed, "--part", "speech"), "no part 'speech'", "language_model")


def test_a_folder_without_a_main_model_is_verified(folder: Path) -> None:
    for old, new in (("tokenizer", "text_part"), ("detokenizer", "image_part")):
        for kind in ("xml", "bin"):
            (folder / f"openvino_{old}.{kind}").rename(folder / f"openvino_{new}.{kind}")
    for kind in ("xml", "bin"):
        (folder / f"openvino_model.{kind}").unlink()
    placed = folder.parent / "placed"
    assert not run("place", folder, *PLACE, "--output", placed, "--part", "text_part").exit_code
    for part in ((), ("--part", "text_part")):
        assert not run("verify", placed, "--device", DEVICE, *part).exit_code
    refused(run("verify", folder, "--device", DEVICE), "several models", "--part")


def test_a_folder_where_a_disk_is_mounted_is_refused_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = folder.parent / "disk"
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == target)
    target.mkdir()
    refused(run("place", folder, *PLACE, "--output", target), "mounted there", "name a folder in it")


def test_encoder_and_decoder_share_the_memory(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for kind in ("xml", "bin"):
        (folder / f"openvino_model.{kind}").rename(folder / f"openvino_decoder_model.{kind}")
    ov.save_model(tiny(256), folder / "openvino_encoder_model.xml", compress_to_fp16=False)
    placed = folder.parent / "placed"
    done = run("place", folder, *PLACE, "--output", placed, "--memory", "CPU_A=64MiB,CPU_B=64MiB", "--json")
    assert not done.exit_code, done.exception
    models = json.loads(capfd.readouterr().out)["models"]
    assert list(models) == ["openvino_encoder_model.xml", "openvino_decoder_model.xml"]
    done = run("place", folder, *PLACE, "--output", placed, "--context", "64", "--json")
    assert not done.exit_code, done.exception
    counted = json.loads(capfd.readouterr().out)["models"]
    phases = {name: "workload" in one["predicted"] for name, one in counted.items()}
    assert phases == {"openvino_encoder_model.xml": False, "openvino_decoder_model.xml": True}
    # Weights alone count where inputs have no bounds.
    weights = [(folder / f"openvino_{part}_model.bin").stat().st_size for part in ("encoder", "decoder")]
    limit = (max(weights) + sum(weights)) // 4  # of each of two devices: room for one, not for both
    again = run("place", folder, *PLACE, "--output", placed, "--memory", f"CPU_A={limit}B,CPU_B={limit}B")
    assert isinstance(again.exception, UserError | RunError)
    assert "memory" in str(again.exception)


@pytest.mark.parametrize(
    ("told", "longest"),
    [
        ({"max_position_embeddings": 512}, 512),
        ({"n_positions": 512, "text_config": None}, 512),
        ({"text_config": {"max_position_embeddings": 512}}, 512),
        ({"max_position_embeddings": "512"}, None),
        ({"n_positions": True}, None),
        ([512], None),
        ({}, None),
    ],
)
def test_the_longest_context_is_what_the_configuration_says(tmp_path: Path, told: Any, longest: int | None) -> None:
    (tmp_path / "config.json").write_text(json.dumps(told))
    assert longest_context(tmp_path / "openvino_model.xml") == longest


@pytest.mark.slow
@pytest.mark.parametrize("longest", [512, None])
def test_a_context_that_the_model_was_not_made_for_is_told(folder: Path, longest: int | None) -> None:
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": longest} if longest else {}))
    fit = ("fit", folder, "--device", DEVICE, "--context")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert not run(*fit, "512").exit_code
        assert not caught
        assert not run(*fit, "513").exit_code
    texts = [f"{folder / 'config.json'} says that the model was made for 512 tokens"] if longest else []
    assert [str(one.message) for one in caught] == texts


@pytest.mark.parametrize("command", ["place", "verify", "bench", "strip"])
def test_a_folder_without_a_model_is_one_line(tmp_path: Path, command: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text("{}")
    options = ["--device", DEVICE] if command != "strip" else []
    options += ["--output", str(tmp_path / "out")] if command in ("place", "strip") else []
    refused(run(command, tmp_path / "empty", *options), "no model in folder", "openvino_model.xml")
    assert os.listdir(tmp_path) == ["empty"]


def test_what_others_wrote_is_not_replaced(folder: Path) -> None:
    out = folder.parent / "out"
    out.mkdir()
    assert not run("place", folder, *PLACE, "--output", out).exit_code  # it is empty
    (out / "model_cache").mkdir()
    (out / "model_cache" / "model.blob").write_bytes(b"")
    assert not run("place", folder, *PLACE, "--output", out).exit_code  # it is ours
    assert not (out / "model_cache").exists()
    configuration, weights = out / "config.json", out / "openvino_tokenizer.bin"
    configuration.write_text('{"model_type": "mine"}')
    refused(run("place", folder, *PLACE, "--output", out), "its 'config.json' was changed since ov-hsdag wrote it")
    assert configuration.read_text() == '{"model_type": "mine"}'
    configuration.write_text(CONFIGURATION)
    os.utime(configuration)
    weights.unlink()
    assert not run("place", folder, *PLACE, "--output", out).exit_code  # what is there is as it was
    (out / "notes.txt").write_text("mine")
    before = tree(out)
    refused(run("place", folder, *PLACE, "--output", out), "'notes.txt', which ov-hsdag did not write")
    assert tree(out) == before
    (out / "notes.txt").unlink()
    (out / MARKER).unlink()
    refused(run("strip", folder, "--output", out), "ov-hsdag did not write it")


def test_outputs_that_would_harm_the_input_are_refused(folder: Path) -> None:
    link = folder.parent / "link"
    link.symlink_to(folder)
    before = tree(folder)
    for output, words in (
        (folder, "it is the input"),
        (link, "it is the input"),
        (folder / "placed", "inside the input"),
        (folder.parent / "m.xml", "so is its output"),
        (folder / "config.json" / "x", "inside the input"),
    ):
        refused(run("place", folder, *PLACE, "--output", output), words)
    (folder.parent / "file").write_text("")
    refused(run("strip", folder, "--output", folder.parent / "file"), "it is a file")
    refused(run("place", folder / "openvino_model.xml", *PLACE, "--part", "model"), "has no parts")
    assert tree(folder) == before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_what_of_the_input_cannot_be_copied_is_named(folder: Path) -> None:
    out = folder.parent / "out"
    odd = folder / "odd"
    for make, words in (
        (lambda: odd.symlink_to("nowhere"), "cannot copy '*odd': it is a link to nothing"),
        (lambda: odd.symlink_to(odd), "cannot copy '*odd': it is a link to nothing"),
        (lambda: odd.symlink_to("."), "cannot copy '*odd': it is a link to a folder that it is in"),
        (lambda: os.mkfifo(odd), "cannot copy '*odd': it is neither a file nor a folder"),
    ):
        make()
        refused(run("place", folder, *PLACE, "--output", out), *words.split("*"))
        odd.unlink()
    (folder / "more").mkdir()
    (folder / "more" / "link").symlink_to(folder / "config.json")
    assert run("strip", folder, "--output", out).exit_code == 0
    assert (out / "more" / "link").read_text() == CONFIGURATION
    os.mkfifo(odd)
    refused(run("strip", odd, "--output", folder.parent / "x.xml"), "it is neither a file nor a folder")


@pytest.mark.parametrize("failure", [KeyboardInterrupt, RunError("no"), OSError(28, "No space left on device")])
def test_nothing_half_written_is_left(folder: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException) -> None:
    out, source = folder.parent / "out", folder / "openvino_model.xml"
    model = ov.Core().read_model(source)
    write_folder(out, folder, {source.name: (model, False)})
    before = tree(out)

    def fails(*_: object) -> None:
        raise failure

    for step in ("_share_weights", "_copy_others", "sync_file", "_exchange"):
        with monkeypatch.context() as patched:
            patched.setattr(folder_writing, step, fails)
            with pytest.raises((KeyboardInterrupt, RunError, UserError)):
                write_folder(out, folder, {source.name: (model, False)})
        assert tree(out) == before
        assert set(os.listdir(folder.parent)) == {"llama", "out"}


def test_folders_of_processes_that_are_gone_are_removed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = folder.parent / "out"
    left = files.temporary_name(out)
    left.mkdir()
    (left / "openvino_model.bin").write_bytes(b"half")
    monkeypatch.setattr(files, "process_runs", lambda *_: False)
    write_folder(out, folder, {})
    assert set(os.listdir(folder.parent)) == {"llama", "out"}


def test_weights_are_copied_where_links_are_not_possible(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuses)
    out, source = folder.parent / "out", folder / "openvino_model.xml"
    assert write_folder(out, folder, {source.name: (ov.Core().read_model(source), False)}) == {source.name: False}
    for name in ("openvino_model.bin", "openvino_tokenizer.bin"):
        assert (out / name).read_bytes() == (folder / name).read_bytes()
        assert not (out / name).samefile(folder / name)


def test_links_in_the_input_are_followed(folder: Path) -> None:
    """As in the cache of the Hugging Face hub."""
    blobs, snapshot = folder.parent / "blobs", folder.parent / "snapshot"
    shutil.copytree(folder, blobs)
    snapshot.mkdir()
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(os.path.relpath(file, snapshot))
    out = folder.parent / "out"
    assert not run("place", snapshot, *PLACE, "--output", out).exit_code
    assert not any(path.is_symlink() for path in out.iterdir())
    assert (out / "openvino_tokenizer.bin").samefile(blobs / "openvino_tokenizer.bin")


def test_one_affinity_file_is_for_one_model(folder: Path) -> None:
    vision(folder)
    affinity = folder.parent / "a.json"
    affinity.write_text("{}")
    parts = ("--part", "language_model", "--part", "vision_embeddings_model", "--affinity", affinity)
    refused(run("place", folder, *PLACE, *parts, "--output", folder.parent / "x"), "--affinity is for one model")


def test_model_files(folder: Path) -> None:
    assert model_files(folder) == [folder / "openvino_model.xml"]
    assert model_files(folder / "openvino_model.xml") == [folder / "openvino_model.xml"]
    (folder / "openvino_model.xml").rename(folder / "openvino_text_encoder.xml")
    shutil.copy(folder / "openvino_text_encoder.xml", folder / "openvino_unet.xml")
    with pytest.raises(UserError, match=r"several models.*text_encoder, unet"):
        model_files(folder)
