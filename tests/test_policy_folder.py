"""Policy folders that cannot be used are refused with one line, and pickles are never executed."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import pickle
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
import safetensors.numpy
import torch

from ov_hsdag.placing.candidates import policy_placers
from ov_hsdag.policy import bundle, tuned
from ov_hsdag.policy.bundle import FORMAT_VERSION, WEIGHTS_FILE, PolicyFolder
from ov_hsdag.policy.config import HSDAGConfig, Widths
from ov_hsdag.policy.features import PolicyInput, policy_input
from ov_hsdag.policy.placer import HSDAGPlacer
from ov_hsdag.policy.safetensors import read_tensors
from ov_hsdag.training.network import HSDAGNetwork, export, load
from ov_hsdag.utils.errors import UserError
from tests.graphs import random_problem
from tests.policy_inputs import WIDTHS, random_input
from tests.test_hostile_input import Bomb


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    config = dataclasses.replace(HSDAGConfig.base(Widths(**WIDTHS)), hidden=16, layers=1, context=1)
    export(HSDAGNetwork(config), folder)
    return folder


@pytest.fixture
def policy(exported: Path, tmp_path: Path) -> Path:
    """A good policy to damage."""
    return Path(shutil.copytree(exported, tmp_path / "policy"))


def edit(folder: Path, **values: object) -> None:
    record = json.loads((folder / "policy.json").read_text())
    (folder / "policy.json").write_text(json.dumps({**record, **values}))


def cut(folder: Path, name: str, size: int) -> None:
    path = folder / name
    path.write_bytes(path.read_bytes()[:size])


def flip(folder: Path, name: str) -> None:
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 0xFF
    (folder / name).write_bytes(content)


def vouch(folder: Path, name: str, content: bytes) -> None:
    """Replaces a file and its fingerprint: a folder that is wrong although nothing was damaged on the way."""
    (folder / name).write_bytes(content)
    files = json.loads((folder / "policy.json").read_text())["files"]
    files[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    edit(folder, files=files)


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "no policy.json": (lambda f: (f / "policy.json").unlink(), r"policy\.json is missing; give a folder"),
    "no weights": (lambda f: (f / WEIGHTS_FILE).unlink(), r"incomplete: policy\.safetensors is missing; export"),
    "newer format": (
        lambda f: edit(f, format=FORMAT_VERSION + 1),
        rf"has format version 3, expected {FORMAT_VERSION};",
    ),
    "older features": (lambda f: edit(f, features=0), r"has features version 0, expected \d+; train it anew"),
    "cut weights": (lambda f: cut(f, WEIGHTS_FILE, 1000), r"damaged: policy\.safetensors has 1000 bytes, expected"),
    "cut policy.json": (lambda f: cut(f, "policy.json", 100), r"not readable JSON; export"),
    "nested too deep": (lambda f: (f / "policy.json").write_text("[" * 100_000), r"not readable JSON; export"),
    "flipped bits": (lambda f: flip(f, WEIGHTS_FILE), r"damaged: policy\.safetensors is not the file that"),
    "a list": (lambda f: (f / "policy.json").write_text("[1]"), r"describes no policy: 'format' is missing"),
    "no files": (lambda f: edit(f, files={}), r"does not say what policy\.safetensors should hold"),
    "files of the wrong kind": (lambda f: edit(f, files={WEIGHTS_FILE: 3}), r"does not say what policy\.safetensors"),
    "format of the wrong kind": (lambda f: edit(f, format="1"), r"'format' is missing or malformed"),
    "no settings": (lambda f: edit(f, config=None), r"'config' is missing or malformed"),
    "empty settings": (lambda f: edit(f, config={}), r"describes no policy: .*'widths'"),
    "unknown features": (
        lambda f: edit(f, config={**HSDAGConfig.base(Widths(1, 1, 1, 1)).to_dict(), "without": ["colour"]}),
        r"describes no policy: .*without can only be \[\]",
    ),
    "levels below 0": (
        lambda f: edit(f, config={**HSDAGConfig.base(Widths(1, 1, 1, 1)).to_dict(), "levels": -1}),
        r"describes no policy: .*levels",
    ),
    "no tensors": (lambda f: vouch(f, WEIGHTS_FILE, b"<net"), r"policy\.safetensors: it is no safetensors file"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_folder_is_refused_in_one_line(name: str, policy: Path) -> None:
    damage, message = BAD[name]
    damage(policy)
    with pytest.raises(UserError, match=message) as raised:
        PolicyFolder.load(policy)
    text = str(raised.value)
    assert "\n" not in text and str(policy) in text
    with pytest.raises(UserError):  # a failure is not remembered as a policy either
        PolicyFolder.load(policy)


def test_another_networks_settings_are_refused_for_training(policy: Path) -> None:
    config = json.loads((policy / "policy.json").read_text())["config"]
    edit(policy, config={**config, "hidden": 32})
    with pytest.raises(UserError, match="has not the weights of its network"):
        load(policy)


@pytest.mark.parametrize("target", ["policy.json", "policy.safetensors"])
@pytest.mark.parametrize("vouched", [False, True])
def test_a_pickle_in_the_place_of_a_file_is_never_executed(
    target: str, vouched: bool, policy: Path, tmp_path: Path
) -> None:
    content = pickle.dumps(Bomb(tmp_path / "executed"))
    if vouched and target != "policy.json":
        vouch(policy, target, content)
    else:
        (policy / target).write_bytes(content)
    for reader in (PolicyFolder.load, load):
        with pytest.raises(UserError) as raised:
            reader(policy)
        assert "\n" not in str(raised.value)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("zipped", [False, True])
def test_a_torch_checkpoint_is_refused_by_name(zipped: bool, policy: Path, tmp_path: Path) -> None:
    file = tmp_path / "network.pt"
    bomb = pickle.dumps(Bomb(tmp_path / "executed"))
    if zipped:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("network/data.pkl", bomb)
    else:
        file.write_bytes(bomb)
    with pytest.raises(UserError, match=r"network\.pt' is a file \(it looks like a pickle\); give a folder"):
        PolicyFolder.load(file)
    (policy / "policy.json").unlink()
    torch.save({}, policy / "network.pt")
    with pytest.raises(UserError, match=r"policy\.json is missing \(network\.pt is a pickle, which is never read\)"):
        PolicyFolder.load(policy)
    assert not (tmp_path / "executed").exists()


def test_a_policy_that_is_not_there_is_answered_with_the_shipped_ones(
    monkeypatch: pytest.MonkeyPatch, exported: Path, tmp_path: Path
) -> None:
    shipped = tmp_path / "policies"
    shutil.copytree(exported, shipped / "base")
    shutil.copytree(exported, shipped / "large")
    monkeypatch.setattr(bundle, "SHIPPED", shipped)
    assert PolicyFolder.load().path == PolicyFolder.load("base").path == shipped / "base"
    assert PolicyFolder.load("large").path == shipped / "large"
    for wanted in ("medium", "no/such/folder", tmp_path / "x", "../policies/base"):
        with pytest.raises(UserError, match=r"there is no policy '.*'; give a folder .*\(base, large\)"):
            PolicyFolder.load(wanted)


@pytest.mark.parametrize("left", ["file", "folder", "policy"])
def test_what_lies_in_the_working_directory_does_not_replace_the_shipped_policy(
    monkeypatch: pytest.MonkeyPatch, exported: Path, tmp_path: Path, left: str
) -> None:
    shipped = tmp_path / "policies"
    shutil.copytree(exported, shipped / bundle.DEFAULT)
    monkeypatch.setattr(bundle, "SHIPPED", shipped)
    here = tmp_path / "here" / bundle.DEFAULT
    here.parent.mkdir()
    if left == "file":
        here.write_text("a file of the user's")
    elif left == "folder":
        here.mkdir()
    else:
        shutil.copytree(exported, here)
    monkeypatch.chdir(here.parent)
    assert PolicyFolder.load().path == PolicyFolder.load(bundle.DEFAULT).path == shipped / bundle.DEFAULT
    if left == "policy":
        # A path is a path.
        for path in (here, Path(bundle.DEFAULT), f".{os.sep}{bundle.DEFAULT}"):
            assert PolicyFolder.load(path).path == here


@contextlib.contextmanager
def no_permission(path: Path) -> Iterator[None]:
    """Takes away all permissions; root, who needs none, is another user meanwhile."""
    mode, user = path.stat().st_mode, os.geteuid()
    path.chmod(0)
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        if user == 0:
            os.seteuid(0)
        path.chmod(mode)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="permissions of POSIX")
@pytest.mark.parametrize("locked", [".", "policy.json", "policy.safetensors"])
def test_a_policy_that_may_not_be_read_is_told_in_one_line(exported: Path, locked: str) -> None:
    # pytest's own folders are closed to other users.
    with tempfile.TemporaryDirectory() as parent:
        Path(parent).chmod(0o755)
        folder = Path(shutil.copytree(exported, Path(parent) / "policy"))
        folder.chmod(0o755)
        with (
            no_permission(folder / locked),
            pytest.raises(UserError, match=r"^policy '.*' cannot be read: Permission denied; check .*$"),
        ):
            PolicyFolder.load(folder)


def test_a_policy_is_read_once_and_again_when_it_changes(policy: Path) -> None:
    first = PolicyFolder.load(policy)
    assert PolicyFolder.load(str(policy)) is first
    export(HSDAGNetwork(load(policy).config), policy)
    second = PolicyFolder.load(policy)
    assert second is not first
    x = random_input(np.random.default_rng(0), 20, 2)
    assert not np.allclose(first.encode(x)[0], second.encode(x)[0])


def test_threads_share_a_policy(policy: Path) -> None:
    loaded = PolicyFolder.load(policy)
    inputs = [random_input(np.random.default_rng(seed), 20 + seed, 2) for seed in range(8)]

    def logits(item: PolicyInput) -> np.ndarray:
        return loaded.place(item, *loaded.encode(item), np.arange(len(item.node_x)))

    expected = [logits(item) for item in inputs]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            for one, other in zip(pool.map(logits, inputs), expected, strict=True):
                np.testing.assert_array_equal(one, other)


def tensors(**entries: object) -> bytes:
    header = json.dumps(entries).encode()
    return len(header).to_bytes(8, "little") + header + bytes(16)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\xff" * 64, (2**62).to_bytes(8, "little") + b"{}", tensors(a=1), (2).to_bytes(8, "little") + b"[]",
        tensors(a={"dtype": "I64", "shape": [2], "data_offsets": [0, 16]}),
        tensors(a={"dtype": "F32", "shape": [5], "data_offsets": [0, 20]}),
        tensors(a={"dtype": "F32", "shape": [-2, -2], "data_offsets": [0, 16]}),
        tensors(a={"dtype": "F32", "shape": [4], "data_offsets": [0, 12]}),
        tensors(a={"dtype": "F32", "shape": [4.0], "data_offsets": [0, 16]}),
        tensors(a={"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}),
    ],
)  # fmt: skip
def test_malformed_tensors_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"^it is no safetensors file|^its header|^the tensor 'a' is malformed"):
        read_tensors(content)


def test_tensors_are_those_that_safetensors_wrote() -> None:
    written = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.ones((), np.float16),
        "c": np.zeros((0, 4), "f4"),
    }
    found = read_tensors(safetensors.numpy.save(written, {"made": "by"}))
    assert found.keys() == written.keys()
    for name, value in written.items():
        assert found[name].dtype == np.float32
        np.testing.assert_array_equal(found[name], value)


def test_a_policy_of_one_machine_is_kept_for_its_devices(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, two_cpu_core: ov.Core
) -> None:
    monkeypatch.setenv(tuned.VARIABLE, str(tmp_path / "kept"))
    devices = ("CPU_A", "CPU_B")
    assert tuned.find(two_cpu_core, devices) is None
    for _ in range(2):  # a later one replaces an earlier one
        tuned.keep(policy, two_cpu_core, devices)
    found = tuned.find(two_cpu_core, devices)
    assert found is not None and PolicyFolder.load(found).config == PolicyFolder.load(policy).config
    assert [Path(str(placer.policy)) for placer in policy_placers(None, two_cpu_core, devices)] == [found]
    assert tuned.find(two_cpu_core, ("CPU_B", "CPU_A")) is None and tuned.find(two_cpu_core, ("CPU_A", "GPU")) is None
    (found / "policy.json").write_text("{")
    with pytest.warns(UserWarning, match="the policy is not asked: .*not readable JSON"):
        (fallback,) = policy_placers(None, two_cpu_core, devices)
    assert Path(str(fallback.policy)).name == bundle.DEFAULT
    assert policy_placers("none", two_cpu_core, devices) == []


def test_a_policy_of_the_features_before_is_asked_as_it_was(tmp_path: Path) -> None:
    """It knows the first thirteen features of pairs, and of no partition to begin with."""
    problem = random_problem(3, nodes=60, objective="throughput")
    widths = dataclasses.replace(Widths.of(policy_input(problem)), pair=13)
    config = HSDAGConfig(widths, hidden=16, layers=1, context=1)
    export(HSDAGNetwork(config), tmp_path)
    record = json.loads((tmp_path / "policy.json").read_text())
    del record["config"]["residual"]  # which that release did not write
    (tmp_path / "policy.json").write_text(json.dumps({**record, "features": 2}))
    found = HSDAGPlacer(tmp_path).cluster_logits(problem)
    assert found.partition is None and np.isfinite(found.logits).all()
    assert load(tmp_path).config == config
