"""Files appear whole or not at all; the two files of an IR are the old model or the new one at every moment."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from ov_hsdag.storage import files
from ov_hsdag.storage.ir_text import rewritten_constants
from ov_hsdag.utils.errors import RunError, UserError

CORE = ov.Core()
DEAD_PID = 2**22 + 1  # above the kernel's limit: no process has it


def affine(seed: int, width: int = 40) -> ov.Model:
    """x @ W + b with random weights: two constants, so that offsets other than 0 occur."""
    generator = np.random.default_rng(seed)
    x = ops.parameter([1, width], np.float32, name="x")
    product = ops.matmul(x, generator.normal(size=(width, width)).astype(np.float32), False, False)
    return ov.Model([ops.add(product, generator.normal(size=(1, width)).astype(np.float32))], [x], f"affine{seed}")


def with_body_and_prior_box() -> ov.Model:
    """Constants inside an If, and operations whose own attribute is called "offset"."""
    x = ops.parameter([1, 4], np.float32, name="x")
    condition = ops.parameter([], bool, name="condition")
    bodies = []
    for value in (2.5, -1.5):
        inner = ops.parameter([1, 4], np.float32)
        bodies.append((inner, ov.Model([ops.multiply(inner, np.full((1, 4), value, np.float32))], [inner], "body")))
    choice = ops.if_op(condition)
    choice.set_then_body(bodies[0][1])
    choice.set_else_body(bodies[1][1])
    choice.set_input(x.output(0), bodies[0][0], bodies[1][0])
    chosen = choice.set_output(bodies[0][1].get_results()[0], bodies[1][1].get_results()[0])
    boxes = ops.prior_box(
        ops.constant(np.array([2, 2], np.int64)),
        ops.constant(np.array([8, 8], np.int64)),
        {"offset": 0.5, "min_size": [2.0], "max_size": [], "aspect_ratio": [1.0], "variance": [0.1]},
    )
    return ov.Model([chosen, boxes.output(0)], [x, condition], "body")


def outputs(model: ov.Model) -> list[np.ndarray]:
    compiled = CORE.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    inputs = [
        np.ones(port.shape, bool) if port.element_type == ov.Type.boolean else np.linspace(-1, 1, port.shape[1])[None]
        for port in compiled.inputs
    ]
    return [
        value.copy()
        for value in compiled(
            [x.astype(b.element_type.to_dtype()) for x, b in zip(inputs, compiled.inputs, strict=True)]
        ).values()
    ]


def which(path: Path, *models: ov.Model) -> int:
    """Index of the model that the pair on disk computes as."""
    got = outputs(CORE.read_model(path))
    same = [
        len(got) == len(want)
        and all(a.shape == b.shape and np.allclose(a, b, atol=1e-5) for a, b in zip(got, want, strict=True))
        for want in map(outputs, models)
    ]
    assert sum(same) == 1, "the pair on disk is none of the models"
    return same.index(True)


def entries(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


class Killed(BaseException):
    """Stands for a process that ends at once: nothing that handles Exception may see it."""


def fail_at(monkeypatch: pytest.MonkeyPatch, step: int, error: BaseException) -> list[tuple[str, str]]:
    """Make the rename number ``step`` (from 0) raise; returns the list of renames that were done."""
    done: list[tuple[str, str]] = []
    replace = os.replace

    def faulty(source: Path, target: Path) -> None:
        if len(done) == step:
            raise error
        replace(source, target)
        done.append((Path(source).name, Path(target).name))

    monkeypatch.setattr(os, "replace", faulty)
    return done


def test_text_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.txt"
    files.write_text(path, "first é\n")
    files.write_text(path, "second")
    assert path.read_text(encoding="utf-8") == "second"
    assert entries(path.parent) == {"a.txt"}


def test_json_keeps_order_and_names(tmp_path: Path) -> None:
    value = {"b/é, |\n": "CPU", "a": "GPU"}
    files.write_json(tmp_path / "a.json", value)
    assert list(json.loads((tmp_path / "a.json").read_text(encoding="utf-8")).items()) == list(value.items())


def test_binary_files_are_atomic_too(tmp_path: Path) -> None:
    with files.atomic_file(tmp_path / "a.npz", "wb") as file:
        np.savez(file, x=np.arange(3))
        assert not (tmp_path / "a.npz").exists()
    assert np.load(tmp_path / "a.npz")["x"].tolist() == [0, 1, 2]


def test_failing_writer_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    files.write_text(path, "old")
    with pytest.raises(ZeroDivisionError), files.atomic_file(path) as file:
        file.write("half of the n")
        file.flush()
        1 / 0  # noqa: B018
    assert path.read_text() == "old"
    assert entries(tmp_path) == {"a.txt"}


def test_links_and_modes_survive(tmp_path: Path) -> None:
    real, link = tmp_path / "real.txt", tmp_path / "link.txt"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    files.write_text(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert real.stat().st_mode & 0o777 == 0o640


def test_pipes_are_written_directly() -> None:
    read, write = os.pipe()
    try:
        files.write_text(f"/dev/fd/{write}", "through")
        assert os.read(read, 99) == b"through"
    finally:
        os.close(read)
        os.close(write)


WRITERS: tuple[Callable[[Any], object], ...] = (
    files.check_writable,
    lambda path: files.write_text(path, "x"),
    lambda path: files.save_model_atomically(affine(0), path),
)


@pytest.mark.parametrize("name", ["plain/under.xml", "plain/deep/under.xml"])
def test_directory_that_cannot_be_created_is_a_user_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "plain").write_text("a file")
    for write in WRITERS:
        with pytest.raises(UserError, match=r"cannot write .*under\.xml.*Not a directory"):
            write(tmp_path / name)
    assert entries(tmp_path) == {"plain"}


@pytest.fixture
def unprivileged() -> Iterator[None]:
    """Root may write anywhere: give up that right for the test."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    yield
    os.seteuid(0)


def test_directory_without_write_permission_is_a_user_error(unprivileged: None) -> None:
    for write in WRITERS:
        with pytest.raises(UserError, match=r"cannot write '/a\.xml': Permission denied"):
            write("/a.xml")


def test_write_protected_file_is_not_replaced(unprivileged: None) -> None:
    for write in WRITERS[:2]:
        with pytest.raises(UserError, match=r"cannot write '/etc/passwd': Permission denied"):
            write("/etc/passwd")


def test_directory_as_target_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a directory"):
        files.write_text(tmp_path, "x")


def test_check_writable_creates_nothing(tmp_path: Path) -> None:
    files.check_writable(tmp_path / "new" / "deeper" / "out.xml")
    assert entries(tmp_path) == set()


def test_model_needs_the_name_of_an_ir(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"must end in \.xml"):
        files.save_model_atomically(affine(0), tmp_path / "model.onnx")


def test_model_is_saved_as_openvino_saves_it(tmp_path: Path) -> None:
    for compress in (False, True):
        files.save_model_atomically(affine(0), tmp_path / "ours.xml", compress_to_fp16=compress)
        ov.save_model(affine(0), tmp_path / "theirs.xml", compress_to_fp16=compress)
        assert (tmp_path / "ours.bin").read_bytes() == (tmp_path / "theirs.bin").read_bytes()
        assert (tmp_path / "ours.xml").stat().st_size == (tmp_path / "theirs.xml").stat().st_size
    for release in (None, "another one"):  # what a model says of the release stays
        model = affine(0)
        if release is not None:
            model.set_rt_info(release, ["OpenVINO Runtime"])
        files.save_model_atomically(model, tmp_path / "ours.xml", compress_to_fp16=False)
        ov.save_model(model, tmp_path / "theirs.xml", compress_to_fp16=False)
        assert (tmp_path / "ours.xml").read_bytes() == (tmp_path / "theirs.xml").read_bytes()
        assert model.has_rt_info(["OpenVINO Runtime"]) == (release is not None)
    assert entries(tmp_path) == {"ours.xml", "ours.bin", "theirs.xml", "theirs.bin"}


def test_names_of_what_was_fused_are_in_no_file(tmp_path: Path) -> None:
    from openvino._offline_transformations import apply_moc_transformations

    def fused() -> ov.Model:
        model = affine(0)
        first = ops.multiply(model.get_results()[0].input_value(0), np.float32(2))
        model.get_results()[0].input(0).replace_source_output(ops.multiply(first, np.float32(3)).output(0))
        apply_moc_transformations(model, cf=True)
        return model

    assert any(key.startswith("fused_names") for node in fused().get_ops() for key in node.get_rt_info())
    files.save_model_atomically(fused(), tmp_path / "ours.xml", compress_to_fp16=False)
    ov.save_model(fused(), tmp_path / "theirs.xml", compress_to_fp16=False)
    text = (tmp_path / "ours.xml").read_text()
    assert "fused_names" not in text
    assert len(text) == len((tmp_path / "theirs.xml").read_text())


def test_replacing_a_model_ends_in_what_a_fresh_save_writes(tmp_path: Path) -> None:
    for width in (40, 70, 20):  # the new weights are larger, then smaller
        files.save_model_atomically(affine(width, width), tmp_path / "m.xml", compress_to_fp16=False)
        ov.save_model(affine(width, width), tmp_path / "fresh.xml", compress_to_fp16=False)
        assert (tmp_path / "m.bin").read_bytes() == (tmp_path / "fresh.bin").read_bytes()
        assert which(tmp_path / "m.xml", affine(width, width)) == 0
    assert entries(tmp_path) == {"m.xml", "m.bin", "fresh.xml", "fresh.bin"}


def test_equal_weights_need_one_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.save_model_atomically(affine(1), tmp_path / "m.xml")
    renamed = affine(1)
    renamed.set_rt_info("yes", ["marked"])
    done = fail_at(monkeypatch, 99, Killed())
    files.save_model_atomically(renamed, tmp_path / "m.xml")
    assert [target for _, target in done] == ["m.xml"]
    assert CORE.read_model(tmp_path / "m.xml").has_rt_info(["marked"])


def test_a_model_may_be_saved_over_the_file_that_it_is_mapped_from(tmp_path: Path) -> None:
    path = tmp_path / "m.xml"
    files.save_model_atomically(affine(1), path, compress_to_fp16=False)
    mapped = CORE.read_model(path)
    before = outputs(mapped)
    files.save_model_atomically(mapped, path, compress_to_fp16=True)
    assert np.allclose(outputs(mapped)[0], before[0])
    assert np.allclose(outputs(CORE.read_model(path))[0], before[0], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("widths", [(40, 40), (40, 70), (70, 40)])
@pytest.mark.parametrize("step", range(6))
def test_every_state_between_renames_is_the_old_or_the_new_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, widths: tuple[int, int]
) -> None:
    path = tmp_path / "m.xml"
    old, new = affine(1, widths[0]), affine(2, widths[1])
    files.save_model_atomically(old, path, compress_to_fp16=False)
    with monkeypatch.context() as patched:
        done = fail_at(patched, step, Killed())
        if step < 5:
            with pytest.raises(Killed):
                files.save_model_atomically(new, path, compress_to_fp16=False)
        else:
            files.save_model_atomically(new, path, compress_to_fp16=False)
    assert [target for _, target in done] == ["m.bin", "m.xml", "m.bin", "m.xml", "m.bin"][:step]
    assert which(path, old, new) == (0 if step < 2 else 1)
    # Whatever was left of it, the next write succeeds and cleans up.
    files.save_model_atomically(affine(3, 30), path, compress_to_fp16=False)
    assert which(path, affine(3, 30)) == 0
    assert entries(tmp_path) == {"m.xml", "m.bin"}


@pytest.mark.parametrize("step", [0, 1])
def test_first_save_shows_no_half_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    fail_at(monkeypatch, step, Killed())
    with pytest.raises(Killed):
        files.save_model_atomically(affine(1), tmp_path / "m.xml")
    assert "m.xml" not in entries(tmp_path)
    assert entries(tmp_path) <= {"m.bin"}


def test_openvino_that_cannot_save_is_a_run_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("Exception from\nserialize")

    monkeypatch.setattr(ov, "save_model", broken)
    monkeypatch.setattr(ov, "serialize", broken)
    for compress in (False, True):
        with pytest.raises(RunError, match=r"cannot save the model as .*Exception from serialize"):
            files.save_model_atomically(affine(0), tmp_path / "m.xml", compress_to_fp16=compress)
    assert entries(tmp_path) == set()


def test_shifting_moves_constants_in_bodies_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "m.xml"
    ov.save_model(with_body_and_prior_box(), path, compress_to_fp16=False)
    weights = path.with_suffix(".bin").read_bytes()
    text = path.read_bytes()
    shifted = rewritten_constants(text, lambda name, offset, _: (name, offset + 4096))
    assert b'offset="0.5"' in shifted
    expected = outputs(CORE.read_model(path))
    path.write_bytes(shifted)
    path.with_suffix(".bin").write_bytes(bytes(4096) + weights)
    for got, want in zip(outputs(CORE.read_model(path)), expected, strict=True):
        assert np.array_equal(got, want)


def test_shifting_refuses_what_it_does_not_understand() -> None:
    with pytest.raises(RunError, match="0 of 1 constants"):
        rewritten_constants(
            b'<layer id="0" name="c" type="Const" version="opset1"><output/></layer>', lambda name, at, _: (name, at)
        )


def test_leftovers_of_dead_processes_are_removed(tmp_path: Path) -> None:
    target, other = tmp_path / "m.xml", tmp_path / "other.xml"
    host = files._key(socket.gethostname())
    key, other_key = files._key(target.name), files._key(other.name)

    def leftover(key: str, host: str, process: str, suffix: str = "") -> str:
        name = f"{files.PREFIX}{key}-{host}-{process}-0.tmp{suffix}"
        (tmp_path / name).write_text("left")
        return name

    me = os.getpid()
    started = files._started(me)
    assert started and int(started) > 0
    gone = [leftover(key, host, f"{DEAD_PID}-7", suffix) for suffix in ("", ".xml", ".bin")]
    gone.append(leftover(key, host, f"{DEAD_PID}"))  # of an earlier version
    gone.append(leftover(key, host, f"{me}-{int(started) - 1}"))  # a process that had our number before us
    kept = [
        leftover(key, host, f"{me}-{started}", ".xml"),  # runs
        leftover(key, host, f"{me}", ".xml"),  # runs, of an earlier version
        leftover(key, host, f"{me}-0", ".xml"),  # runs, on a system without /proc
        leftover(other_key, host, f"{DEAD_PID}-7", ".xml"),  # another target's
        leftover(key, "00000000", f"{DEAD_PID}-7", ".xml"),  # another host's
    ]
    files.save_model_atomically(affine(0), target)
    assert entries(tmp_path) == {"m.xml", "m.bin", *kept}
    assert not any((tmp_path / name).exists() for name in gone)


def test_a_link_under_a_temporary_name_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a directory where anyone may create files, such as /tmp."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    shared = tmp_path / "shared"
    shared.mkdir()
    temporary = files.temporary_name

    def lies_in_wait(target: Path, suffix: str = "") -> Path:
        path = temporary(target, suffix)
        for name in (path, path.with_suffix(".bin")):
            name.unlink(missing_ok=True)
            name.symlink_to(precious)
        return path

    files.save_model_atomically(affine(1), shared / "m.xml", compress_to_fp16=False)
    before = (shared / "m.xml").read_bytes(), (shared / "m.bin").read_bytes()
    monkeypatch.setattr(files, "temporary_name", lies_in_wait)
    for write in (
        lambda: files.write_text(shared / "a.txt", "text"),
        lambda: files.save_model_atomically(affine(2), shared / "m.xml", compress_to_fp16=False),
    ):
        with pytest.raises(UserError, match=r"cannot write .*: File exists"):
            write()
    assert precious.read_text() == "precious"
    assert ((shared / "m.xml").read_bytes(), (shared / "m.bin").read_bytes()) == before


def test_every_temporary_file_is_created_exclusively_under_a_random_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert files.temporary_name(tmp_path / "m") != files.temporary_name(tmp_path / "m")
    modes: dict[str, str] = {}

    def noting(path: Any, mode: str = "r", **options: Any) -> Any:
        modes.setdefault(Path(path).name, mode)
        return open(path, mode, **options)

    files.save_model_atomically(affine(1), tmp_path / "m.xml", compress_to_fp16=False)
    monkeypatch.setattr(files, "open", noting, raising=False)
    files.save_model_atomically(affine(2), tmp_path / "m.xml", compress_to_fp16=False)
    files.write_text(tmp_path / "a.txt", "text")
    created = {name: mode for name, mode in modes.items() if name.startswith(files.PREFIX)}
    assert len(created) == 5  # the pair, its exchange, the text
    assert set(created.values()) <= {"x", "xb"}
    assert all(re.fullmatch(r".*-[0-9a-f]{16}\.tmp(\.xml|\.bin)?", name) for name in created)


def test_write_protected_weights_are_not_replaced(tmp_path: Path, unprivileged: None) -> None:
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # that the unprivileged user owns
    try:
        files.save_model_atomically(affine(1), folder / "m.xml", compress_to_fp16=False)
        (folder / "m.bin").chmod(0o444)
        with pytest.raises(UserError, match=r"cannot write .*m\.xml.*Permission denied"):
            files.save_model_atomically(affine(2), folder / "m.xml", compress_to_fp16=False)
        assert which(folder / "m.xml", affine(1), affine(2)) == 0
    finally:
        shutil.rmtree(folder)


SUICIDE = """
    import os, signal, sys
    sys.path.insert(0, sys.argv[2])
    from test_files import affine
    from ov_hsdag.storage import files
    replace, steps = os.replace, iter(range(99))
    def fatal(source, target):
        if next(steps) == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)
    os.replace = fatal
    files.save_model_atomically(affine(2, 50), sys.argv[1], compress_to_fp16=False)
"""


@pytest.mark.parametrize("step", range(5))
def test_process_killed_between_two_renames_leaves_a_model_and_no_lasting_litter(tmp_path: Path, step: int) -> None:
    path = tmp_path / "m.xml"
    old, new = affine(1, 40), affine(2, 50)
    files.save_model_atomically(old, path, compress_to_fp16=False)
    command = [sys.executable, "-c", textwrap.dedent(SUICIDE), str(path), str(Path(__file__).parent), str(step)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert which(path, old, new) == (0 if step < 2 else 1)
    assert len(entries(tmp_path)) > 2
    files.save_model_atomically(new, path, compress_to_fp16=False)
    assert which(path, old, new) == 1
    assert entries(tmp_path) == {"m.xml", "m.bin"}
