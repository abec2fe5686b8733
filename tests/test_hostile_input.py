"""Files that somebody made to harm: each is refused in one clear line, soon, and without running anything of it."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import os
import pickle
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
import safetensors.numpy
from safetensors.numpy import load_file

from ov_hsdag.cli import console
from ov_hsdag.costs.profile import Profile
from ov_hsdag.costs.stored import ModelCosts, check_replaceable
from ov_hsdag.devices.virtual import virtual_devices
from ov_hsdag.integration import extension
from ov_hsdag.jobs.job import model_files_of
from ov_hsdag.measuring import process
from ov_hsdag.model.graph import ComputationGraph
from ov_hsdag.model.inputs import timed_inputs
from ov_hsdag.model.placement import Placement
from ov_hsdag.model.stored_placement import RT_INFO
from ov_hsdag.policy.bundle import SHIPPED, WEIGHTS_FILE, PolicyFolder, check_folder
from ov_hsdag.policy.config import HSDAGConfig, Widths
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.storage import files, ir_text
from ov_hsdag.storage.folder_writing import MARKER, _refuse_foreign
from ov_hsdag.storage.ir_text import constants_of, file_carries
from ov_hsdag.storage.model_folder import longest_context
from ov_hsdag.storage.overwriting import external_data, refuse_input
from ov_hsdag.utils import child, reading
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import opset13 as ops
from tests.graphs import random_model, random_problem

DEEP = "[" * 100_000
HUGE = "1" + "0" * 400
NESTED: Any = reduce(lambda inside, _: [inside], range(900), 1)  # type: ignore[return-value]


def refusal(read: Callable[[], object]) -> str:
    with pytest.raises(UserError) as raised:
        read()
    text = str(raised.value)
    assert "\n" not in text and len(text) < 2000
    return text


# What is no file


FILES: dict[str, Callable[[Path], object]] = {
    "profile": Profile.load, "affinity": Placement.load, "costs": ModelCosts.load, "problem": PlacementProblem.load,
}  # fmt: skip


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
@pytest.mark.parametrize("kind", FILES)
def test_what_would_never_end_is_not_read(kind: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "it is no file but a pipe or a device" in refusal(lambda: FILES[kind](tmp_path / "pipe"))
    (tmp_path / "link").symlink_to("/dev/zero")
    assert "it is no file but a pipe or a device" in refusal(lambda: FILES[kind](tmp_path / "link"))
    assert "directory" in refusal(lambda: FILES[kind](tmp_path))
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    refusal(lambda: FILES[kind](tmp_path / "circle"))
    refusal(lambda: FILES[kind](Path("a\0b")))


@pytest.mark.parametrize("kind", FILES)
def test_what_is_too_large_is_not_read(kind: str, tmp_path: Path) -> None:
    with open(tmp_path / "large", "wb") as file:
        file.truncate(2**40)  # a hole: no disk is used
    text = refusal(lambda: FILES[kind](tmp_path / "large"))
    assert "iB" in text or kind == "problem"


def test_a_pipe_that_a_shell_hands_on_is_read() -> None:
    read, write = os.pipe()
    with os.fdopen(write, "w") as file:
        file.write('{"a": "CPU"}')
    try:
        assert Placement.load(f"/dev/fd/{read}").affinity == {"a": "CPU"}
    finally:
        os.close(read)


def test_a_file_that_grows_while_it_is_read_ends_at_the_limit() -> None:
    read, write = os.pipe()
    os.write(write, bytes(1000))
    os.close(write)
    with pytest.raises(OSError, match="more than 999 bytes"):
        reading.read_bytes(f"/dev/fd/{read}", 999)
    os.close(read)


# JSON


def test_keys_are_compared_in_time(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({f"key {number}": 0 for number in range(200_000)}))
    assert "only the keys" in refusal(lambda: Profile.load(path))


def test_a_regular_expression_that_cannot_be_compiled_is_refused(tmp_path: Path) -> None:
    (entry,) = json.loads((SHIPPED.parent / "costs/profiles/arc_a770.json").read_text(encoding="utf-8"))[
        "devices"
    ].values()
    path = tmp_path / "profile.json"
    for bad in ("a{99999999999}", "(" * 5000):
        path.write_text(json.dumps({"version": 1, "devices": {"GPU": {**entry, "matches": [bad]}}}))
        assert "expected a regular expression" in refusal(lambda: Profile.load(path))


def test_a_key_is_quoted_in_part(tmp_path: Path) -> None:
    """Atheris: the path to a value named keys as long as they came."""
    for name in ("a" * 5000, "a " * 2500):
        path = tmp_path / "profile.json"
        path.write_text(json.dumps({"version": 1, "devices": {f"CPU_{name}": {"builtin": "no such"}}}))
        with pytest.raises(UserError) as caught:
            Profile.load(path)
        assert len(str(caught.value)) < 1000
        link = {"from": "NPU", "to": "CPU", "us": {"value": 1, "source": "x"}, "gbps": {"value": 1, "source": "x"}}
        devices = {f"CPU_{name}": {"builtin": "cpu_core"}, "CPU": {"builtin": "cpu_core"}}
        path.write_text(json.dumps({"version": 1, "devices": devices, "links": [link]}))
        with pytest.raises(UserError, match=r"\$\.(links|devices)") as caught:
            Profile.load(path)
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("text", [HUGE, "9999999999999", DEEP, '"' + "x" * 10_000 + '"'])
@pytest.mark.parametrize("key", ["node_us", "torn_us", "fused_with"])
def test_costs_of_any_numbers_are_refused(tmp_path: Path, key: str, text: str) -> None:
    entry = {"identity": {}, "measured": "", "node_us": [1], "torn_us": [0], "fused_with": [-1]}
    document = json.dumps({"version": 1, "graph": "", "devices": {"CPU": {**entry, key: ["@"]}}})
    path = tmp_path / "model.costs.json"
    path.write_text(document.replace('"@"', text))
    if (key, text) == ("fused_with", "9999999999999") or key == "fused_with" or text != "9999999999999":
        assert "holds no measured costs" in refusal(lambda: ModelCosts.load(path))
    else:
        assert ModelCosts.load(path).devices


def test_a_version_is_quoted_in_part(tmp_path: Path) -> None:
    path = tmp_path / "model.costs.json"
    path.write_text(json.dumps({"version": "x\ny" * 1000, "devices": {}}))
    assert "has format 'x\\ny" in refusal(lambda: ModelCosts.load(path))
    check_replaceable(path)  # of any version


@pytest.mark.parametrize("text", [DEEP, HUGE, '{"n_positions": ' + HUGE + "}", '{"text_config": [1]}', "null"])
def test_a_configuration_of_any_content_says_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    assert longest_context(tmp_path / "model.xml") is None


def test_a_marker_of_any_content_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    for text in (DEEP, "[]", '{"files": [[]]}', '{"files": 1}', '{"files": ["mine"], "digests": 1}'):
        (tmp_path / MARKER).write_text(text)
        assert "ov-hsdag did not write it" in refusal(lambda: _refuse_foreign(tmp_path, tmp_path))


def test_an_affinity_file_is_quoted_in_part(tmp_path: Path) -> None:
    path = tmp_path / "affinity.json"
    for value in ([[]] * 10_000, {"a": DEEP}, 10**300):
        path.write_text(json.dumps({"node": value}))
        assert "the device of 'node' must be a name" in refusal(lambda: Placement.load(path))
    path.write_text(json.dumps({"node": "G" * 10_000}))
    assert "is not in HETERO:" in refusal(lambda: Placement.load(path, ["C" * 10_000]))


def test_a_message_of_a_worker_that_is_nested_too_deep_is_none() -> None:
    data = DEEP.encode()
    frame = struct.pack("<4sI", b"hsdg", len(data)) + data
    with pytest.raises(ValueError, match="nested too deep"):
        child.read_frame(io.BytesIO(frame))


# Placements in models


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("version", "x"), ("devices", "{"), ("exceptions", "[]"), ("exceptions", '{"CPU_B": 5}'),
        ("default_nodes", "[[1]]"), ("prediction", "\x01"), ("devices", "[1]"),
        ("devices", '["CPU_A", "CPU_B\\n"]'), ("devices", DEEP),
        ("devices", json.dumps([f"CPU_{number}" for number in range(300)])),
        ("default_nodes", "[null]"), ("exceptions", '{"CPU_B": [1]}'), ("exceptions", DEEP),
        ("prediction", '"fast"'), ("prediction", '{"latency_us": "fast"}'), ("measured", '{"mincut": {"failed": 1}}'),
        ("prediction", '{"memory_bytes": {"a": []}}'), ("measured", '{"a": {"ci": [1]}}'),
        ("measured", '{"mincut": 5}'), ("measured", '{"CPU_A": null}'), ("baselines", "[1]"), ("baselines", DEEP),
        ("baselines", '{"CPU_A": null}'), ("baselines", '{"CPU_A": {"throughput_ips": true}}'),
    ],
)  # fmt: skip
def test_an_embedded_placement_of_other_kinds_is_refused(key: str, value: str) -> None:
    model = random_model(1)
    Placement(("CPU_A", "CPU_B"), {node.get_friendly_name(): "CPU_A" for node in model.get_ops()}).embed(model)
    assert Placement.of(model) is not None
    model.set_rt_info(value, [RT_INFO, key])
    assert "cannot be read" in refusal(lambda: Placement.of(model))


def test_tensors_that_no_machine_holds_are_refused() -> None:
    x = ops.parameter([2**40, 2**30], ov.Type.f32, name="x")
    model = ov.Model([ops.result(ops.relu(x))], [x], "large")
    assert "fits into no machine" in refusal(lambda: ComputationGraph.from_model(model))


def test_operations_of_unknown_rank_are_counted() -> None:
    x, state = (ops.parameter(ov.PartialShape.dynamic(), ov.Type.f32, name=name) for name in ("x", "state"))
    weights = [ops.constant(np.zeros(shape, np.float32)) for shape in ((6, 3), (6, 2), (6,))]
    model = ov.Model([ops.result(ops.gru_cell(x, state, *weights, 2))], [x, state], "open")
    assert (ComputationGraph.from_model(model, shapes={"x": [1, 3], "state": [1, 2]}).flops >= 0).all()
    assert "x=[1,128],state=[1,128] does not fit" in refusal(lambda: ComputationGraph.from_model(model))


def test_a_loop_without_end_is_refused() -> None:
    """A tensor of a body is not the graph's: its size says nothing before it is counted."""
    x = ops.parameter([1], ov.Type.f32, name="x")
    inner = ops.parameter([1], ov.Type.f32, name="inner")
    large = ops.broadcast(inner, ops.constant(np.full(20, 2**40)))
    body = ov.Model([ops.reduce_sum(large, ops.constant(np.arange(20))), ops.constant(True)], [inner], "body")
    loop = ops.loop(ops.constant(5), ops.constant(True))
    loop.set_function(body)
    loop.set_special_body_ports([-1, 1])
    loop.set_invariant_input(inner, x.output(0))
    out = loop.get_iter_value(body.get_results()[0].output(0), -1)
    model = ov.Model([ops.result(out)], [x], "model")
    assert "has no end on any machine" in refusal(lambda: ComputationGraph.from_model(model))


# Policies and their settings


def test_a_policy_of_another_network_is_refused_when_it_is_asked(tmp_path: Path) -> None:
    """Digests hold, and there are weights: of other names and shapes."""
    from ov_hsdag.policy.placer import HSDAGPlacer

    policy = Path(shutil.copytree(SHIPPED / "base", tmp_path / "policy"))
    problem = random_problem(np.random.default_rng(0), nodes=9)
    name = "encoder.input.parts.0.weight"
    weights = load_file(policy / WEIGHTS_FILE)
    for changed in ({**weights, name: weights[name][:, 1:]}, {key: weights[key] for key in weights if key != name}):
        content = safetensors.numpy.save(changed)
        (policy / WEIGHTS_FILE).write_bytes(content)
        record = json.loads((policy / "policy.json").read_text(encoding="utf-8"))
        record["files"][WEIGHTS_FILE] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        (policy / "policy.json").write_text(json.dumps(record))
        refusal(lambda: HSDAGPlacer(policy).place(problem))


@pytest.mark.parametrize(
    "change",
    [
        {"hidden": 10**12}, {"hidden": "64"}, {"hidden": True}, {"layers": -1}, {"conv": "magic"}, {"conv": []},
        {"devices": 2.5}, {"dropout": float("nan")}, {"discount": 5.0}, {"widths": {"node": 1}}, {"widths": [1]},
        {"without": [[]]}, {"without": 5}, {"directed": "yes"}, {"surprise": 1}, {"steps": NESTED}, {"levels": -1},
        {"levels": 10**30}, {"widths": None}, {"min_clusters": 0}, {"devices": 0}, {"devices": 10**9},
        {"without": [{}]}, {"without": ["x" * 5000]},
    ],
)  # fmt: skip
def test_settings_of_networks_that_make_no_sense_are_refused(change: Mapping[str, Any]) -> None:
    values = HSDAGConfig.base(Widths(3, 2, 4, 5)).to_dict()
    assert HSDAGConfig.from_dict(values).to_dict() == values
    assert "settings of an HSDAG network" in refusal(lambda: HSDAGConfig.from_dict({**values, **change}))


def test_settings_of_networks_of_earlier_releases_are_read_with_the_values_that_they_had() -> None:
    config = HSDAGConfig.base(Widths(3, 2, 4, 5))
    before = {"without": [], "conv": "gated", "directed": True, "device_aware": True, "devices": None, "carry": False}
    before |= {"reward": "log", "discount": 1.0, "steps": 1}
    assert not before.keys() & config.to_dict().keys()
    assert HSDAGConfig.from_dict({**config.to_dict(), **before}) == config
    for name in before:
        assert f"{name} can only be" in refusal(lambda name=name: HSDAGConfig.from_dict({**config.to_dict(), name: 2}))


def test_checkpoints_of_any_content_are_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save

    from ov_hsdag.training.finetune.settings import Settings
    from ov_hsdag.training.run import check_settings, read_metadata

    path = tmp_path / "checkpoint.safetensors"
    for text in (DEEP, "[]", "null", '"x"', "{}", '{"format": ' + HUGE + "}"):
        path.write_bytes(save({"a": np.zeros(1, np.float32)}, {"run": text}))
        refusal(lambda: read_metadata(path, "mine"))
    path.unlink()
    os.mkfifo(path)
    assert "no file but a pipe" in refusal(lambda: read_metadata(path, "mine"))
    for bad in ({"seed": "one"}, {"proposer": 3}, {"margin": float("nan")}, {"updates": None}, {"other": 1}):
        refusal(lambda bad=bad: check_settings(bad, Settings()))


# Arrays


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def archive(path: Path, entries: Mapping[str, bytes], packing: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", packing) as file:
        for name, content in entries.items():
            file.writestr(name, content)
    return path


def header(shape: str, kind: str = "<f8") -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


@pytest.mark.parametrize(
    "shape", ["(10**3,)", "(1000000000000,)", "(-8,)", f"({HUGE},)", "(1" + ",1" * 3000 + ")", "((", "5"]
)
def test_arrays_that_say_more_than_they_have_are_refused(shape: str, tmp_path: Path) -> None:
    path = archive(tmp_path / "a.npz", {"a.npy": header(shape) + bytes(64)})
    with pytest.raises(ValueError, match="an array"):
        reading.read_arrays(path, 10**6)


def test_archives_that_unpack_to_more_than_is_read_are_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "bomb.npz", {"a.npy": header("(1000000,)") + bytes(8_000_000)})
    assert path.stat().st_size < 20_000
    with pytest.raises(ValueError, match="at most 1,000,000 are read"):
        reading.read_arrays(path, 10**6)
    with pytest.raises(ValueError, match="at most"):
        reading.read_arrays(archive(tmp_path / "many.npz", {f"{n}.npy": b"" for n in range(1001)}), 10**6)


def test_archives_of_other_kinds_are_refused(tmp_path: Path) -> None:
    good = io.BytesIO()
    np.save(good, np.arange(3))
    for packing in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with pytest.raises(ValueError, match="does not pack"):
            reading.read_arrays(archive(tmp_path / "packed.npz", {"a.npy": good.getvalue()}, packing), 10**6)
    path = archive(tmp_path / "a.npz", {"a.npy": good.getvalue()})
    content = bytearray(path.read_bytes())
    for cut in (0, 1, 30, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:cut])
        with pytest.raises(ValueError, match="no archive"):
            reading.read_arrays(path, 10**6)
    path.write_bytes(good.getvalue())  # .npy
    with pytest.raises(ValueError, match="no archive"):
        reading.read_arrays(path, 10**6)


def test_names_in_archives_are_quoted_in_part(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.npz", {"a" * 5000: b""})
    path.write_bytes(path.read_bytes().replace(b"aaa", b"bbb", 1))
    with pytest.raises(ValueError, match="no archive") as refused:
        reading.read_arrays(path, 10**6)
    assert len(str(refused.value)) < 300


def test_pickles_in_arrays_are_never_read(tmp_path: Path) -> None:
    bomb = pickle.dumps(Bomb(tmp_path / "executed"))
    for kind in ("|O", "<f8"):
        path = archive(tmp_path / "problem.npz", {"format.npy": header("(1,)", kind) + bomb})
        refusal(lambda path=path: PlacementProblem.load(path))
    path.write_bytes(bomb)
    refusal(lambda: PlacementProblem.load(path))
    assert not (tmp_path / "executed").exists()


def test_arrays_come_back_as_they_were(tmp_path: Path) -> None:
    arrays = {
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "text": np.array("äöü"), "none": np.zeros((0, 3)),
        "number": np.int64(3), "flags": np.array([True, False]), "complex": np.ones(2, np.complex64),
    }  # fmt: skip
    np.savez_compressed(tmp_path / "a.npz", **arrays)
    found = reading.read_arrays(tmp_path / "a.npz", 10**6)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype and found[name].shape == array.shape and found[name].flags.writeable


def problem_with(path: Path, **changes: Any) -> Path:
    """A file of a problem with such attributes, which nobody checked; those of its graph begin with "graph_"."""
    problem = copy.copy(random_problem(np.random.default_rng(1), nodes=9))
    graph = copy.copy(problem.graph)
    object.__setattr__(problem, "graph", graph)
    for name, value in changes.items():
        owner, own = (graph, name.removeprefix("graph_")) if name.startswith("graph_") else (problem, name)
        assert hasattr(owner, own)
        object.__setattr__(owner, own, value)
    problem.save(path)
    return path


def test_problems_of_any_content_are_refused(tmp_path: Path) -> None:
    problem = random_problem(np.random.default_rng(1), nodes=9)
    graph, nodes = problem.graph, problem.graph.nodes
    PlacementProblem.load(problem_with(tmp_path / "good.npz"))
    lasting = problem.node_us.copy()
    lasting[1, 0] = np.nan
    odd: list[dict[str, Any]] = [
        {"node_us": lasting}, {"node_us": -problem.node_us - 1}, {"node_us": problem.node_us.astype(np.float32)},
        {"groups": problem.groups + 1}, {"groups": np.full(nodes, 2**31 - 1, np.int32)}, {"rule": 7}, {"rule": "x"},
        {"groups": np.full(nodes, -1, np.int32)}, {"memory_bytes": np.full_like(problem.memory_bytes, -(2**62))},
        {"submodel_us": np.full_like(problem.submodel_us, np.inf)}, {"devices": ("CPU",) * 300}, {"devices": (1, 2)},
        {"objective": "x" * 5000}, {"fused_with": np.full((nodes, len(problem.devices)), 999, np.int32)},
        {"live_bytes": np.full(graph.outputs, 2**62)}, {"moved_bytes": np.full(graph.outputs, -1)},
        {"graph_input_output": graph.input_output + graph.outputs}, {"graph_input_output": graph.input_output - 1000},
        {"graph_input_ptr": graph.input_ptr[::-1].copy()}, {"graph_kinds": np.full(nodes, 9, np.uint8)},
        {"graph_output_ptr": graph.output_ptr + 1}, {"graph_names": graph.names[:-1]}, {"graph_types": (1,) * nodes},
        {"graph_output_bytes": np.full(graph.outputs, 2**62)}, {"graph_weight_bytes": np.full(nodes, -5)},
        {"graph_output_shapes": (("x",),) * graph.outputs}, {"graph_output_shapes": ((2**70,),) * graph.outputs},
        {"graph_output_ranks": np.ones(1, np.int16)}, {"graph_flops": np.full(nodes, np.nan)},
    ]  # fmt: skip
    for number, change in enumerate(odd):
        path = problem_with(tmp_path / f"{number}.npz", **change)
        refusal(lambda path=path: PlacementProblem.load(path))


# Folders that others can write to


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners of files")
def test_a_library_that_others_could_have_written_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = extension._cache()
    cache.mkdir(parents=True)
    (cache / "library.so").write_text("")
    assert cache in extension._folders()
    for path in (cache.parent, cache, cache / "library.so"):
        mode = path.stat().st_mode
        path.chmod(0o777)
        assert cache not in extension._folders()
        path.chmod(mode)
    assert cache in extension._folders()


def test_what_others_put_into_the_temporary_folder_stops_no_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    name = files.temporary_name(tmp_path / "ov_hsdag-measure").name
    loop, link = (tmp_path / name.replace(f"-{os.getpid()}-", f"-{pid}-") for pid in (999999999, 999999998))
    loop.symlink_to(loop)
    (tmp_path / "kept").mkdir()
    os.utime(tmp_path / "kept", (1, 1))
    link.symlink_to(tmp_path / "kept")
    for path in (loop, link):
        os.utime(path, (1, 1), follow_symlinks=False)
    model = random_model(1)
    with process.WorkerPool(model, timed_inputs(model), "latency"):
        assert (tmp_path / "kept").is_dir() and not loop.is_symlink() and not link.is_symlink()


@pytest.mark.parametrize("beginning", [b"<net", b'<?xml version="1.0"?>\n<net name="x">'])
def test_the_hook_reads_a_long_file_no_further_than_a_placement_may_be(
    tmp_path: Path, beginning: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.xml"
    with open(path, "wb") as file:
        file.write(beginning + b" <ov_hsdag>")
        file.truncate(1 << 20)
    monkeypatch.setattr(ir_text, "RT_INFO", 1 << 18)
    assert not file_carries(path)
    with open(path, "rb+") as file:
        file.seek((1 << 20) - (1 << 17))
        file.write(b"</edges><rt_info><ov_hsdag>")
    assert file_carries(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_the_hook_takes_nothing_from_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.xml")
    assert not file_carries(tmp_path / "model.xml")
    assert not file_carries(os.fsencode(tmp_path / "model.xml"))


# Other texts


@pytest.mark.parametrize(
    "text", ["CPU_Ä:A=1", "CPU_A:KEY=\udc80", "CPU_A:KEY=\x1b[31m", "CPU_A:A=1;" * 5000, "CPU_A:A=1\nB"]
)
def test_texts_that_openvino_would_get_are_plain(text: str) -> None:
    told = refusal(lambda: virtual_devices(text))
    assert "printable ASCII" in told and told.startswith("the virtual devices in the placed model: ")


def test_a_model_that_names_a_file_without_end_costs_no_memory(tmp_path: Path) -> None:
    """Each of the names says that it is as long as the rest of the file."""
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x0a\x08location\x12\xff\xff\xff\xff\x0f" * 5000 + b"\x0a\x08location\x12\x01a" + bytes(10))
    assert [data.name for data in external_data(path)] == ["a"]


def test_a_model_that_names_a_file_that_no_system_has_is_its_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x0a\x08location\x12\xe8\x07" + b"x" * 1000)
    assert [len(data.name) for data in external_data(path)] == [1000]
    assert model_files_of(path) == [path]
    refuse_input(path, path, shown=path, replace_source=True)


def test_a_text_full_of_beginnings_is_searched_in_time() -> None:
    assert list(constants_of(b'type="Const" ' * 100_000)) == []
    data = b'<layer type="Const" version="opset1"><data element_type="f32" shape="" offset="8" size="4"/>'
    assert list(constants_of(data)) == [(8, 4)]


def test_the_shipped_policy_is_within_all_limits() -> None:
    assert PolicyFolder.load("base").config.min_clusters >= 1
    assert HSDAGConfig.from_dict(check_folder(SHIPPED / "base")["config"])


# What is printed


def test_names_in_files_cannot_command_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "conv\x1b]0;title\x07\x1b[31m \x9b1A \u202e[bold]"
    shown = console.table("name", "time")
    shown.add_row(evil, "5")
    console.Show()({}, f"first {evil}\nsecond", shown)
    console.Show().hint("next", evil)
    console.message(evil)
    console.fail(UserError(evil), 2)
    out, err = capsys.readouterr()
    for text in (out, err):
        assert not set(text) & set("\x1b\x07\x9b\u202e") and "\\x1b]0;title\\x07" in text and "[bold]" in text
    assert out.splitlines()[1] == "second"
