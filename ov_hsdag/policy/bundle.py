"""Policy folders: trained HSDAG networks, which are checked before they are used. This module does not need torch.

A policy folder has policy.json and policy.safetensors, with the size and digest of the latter in policy.json. Folders
of format 1, with weights in an OpenVINO model, can be read as well. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.policy.config import HSDAGConfig
from ov_hsdag.policy.features import FEATURE_VERSION, PolicyInput
from ov_hsdag.policy.forward import Network
from ov_hsdag.policy.safetensors import read_tensors
from ov_hsdag.storage.files import write_json
from ov_hsdag.utils.errors import UserError, one_line
from ov_hsdag.utils.lazy import ov
from ov_hsdag.utils.reading import SETTINGS, WEIGHTS, read_bytes, read_json

FORMAT_VERSION = 2  # format of policy folders, see `FILES`

# Versions of features that networks can be trained with: each begins with the features of the one before.
_FEATURES = (2, FEATURE_VERSION)

SHIPPED = Path(__file__).parent.parent / "policies"
"""Folder with the policies of the package: one folder each, known by its name."""

DEFAULT = "base"  # name of the shipped policy that is used by default

WEIGHTS_FILE = "policy.safetensors"  # name of the file with a network's weights

FILES = {1: ("policy.xml", "policy.bin", WEIGHTS_FILE), 2: (WEIGHTS_FILE,)}
"""Files of a policy besides policy.json, by the version of its format."""

# Suffixes of pickles, for messages.
_PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib")


def write_record(folder: Path, config: HSDAGConfig, run: Mapping[str, Any]) -> None:
    """Writes policy.json, the last step of an export, after the weights.

    Args:
        folder: the policy folder, with the weights.
        config: settings of the network.
        run: record of the training run.

    Raises:
        OSError: the weights cannot be read.
        UserError: policy.json cannot be written.
    """
    record = {
        "format": FORMAT_VERSION,
        "features": FEATURE_VERSION,
        "config": config.to_dict(),
        "files": {WEIGHTS_FILE: _fingerprint(read_bytes(folder / WEIGHTS_FILE, WEIGHTS))},
        "run": dict(run),
    }
    write_json(folder / "policy.json", record)


def find(policy: str | PathLike[str] | None) -> Path:
    """Finds the folder of a policy.

    Args:
        policy: name of a shipped policy (without a separator), a folder, or None for `DEFAULT`.

    Raises:
        UserError: there is no such policy, or the folder cannot be read.
    """
    name = DEFAULT if policy is None else str(policy)
    # "base" is a name, "./base" a folder.
    if not isinstance(policy, PathLike) and not {os.sep, os.altsep} & {*name} and ships(name):
        return SHIPPED / name
    if policy is not None:
        with _reading(policy):
            folder = Path(policy)
            if folder.is_dir():
                return folder
            if folder.exists():
                raise UserError(
                    f"policy '{policy}' is a file{_pickle_remark(folder)};"
                    " give a folder that holds policy.json (pickles are never read)"
                )
    names = ", ".join(sorted(path.parent.name for path in SHIPPED.glob("*/policy.json"))) or "none"
    raise UserError(f"there is no policy '{name}'; give a folder that holds policy.json, or a shipped policy ({names})")


def ships(policy: str) -> bool:
    """Whether the package has a policy of this name."""
    return (SHIPPED / policy / "policy.json").is_file()


def check_folder(folder: str | PathLike[str]) -> Mapping[str, Any]:
    """Reads the whole policy in a folder and returns the content of policy.json.

    Raises:
        UserError: it is not a valid policy.
    """
    return _load(Path(folder)).record


@contextmanager
def _reading(policy: str | PathLike[str]) -> Iterator[None]:
    """Turns errors of the file system into a UserError."""
    try:
        yield
    except OSError as error:
        path, reason = error.filename or policy, error.strerror or type(error).__name__
        advice = "check its permissions" if isinstance(error, PermissionError) else "export or copy it again"
        raise UserError(f"policy '{path}' cannot be read: {reason}; {advice}") from error


def _load(folder: Path) -> PolicyFolder:
    """Returns the policy in a folder, from a cache as long as its files stay the same.

    Raises:
        UserError: it is not a valid policy, or cannot be read.
    """
    with _reading(folder):
        paths = [path for name in ("policy.json", *FILES[1]) if (path := folder / name).is_file()]
        stats = [path.stat() for path in paths]
        return _read(folder, tuple((stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats))


@lru_cache(maxsize=4)
def _read(folder: Path, unchanged: tuple[tuple[int, ...], ...]) -> PolicyFolder:
    """Reads and checks a policy folder.

    Args:
        folder: the folder.
        unchanged: inode, size and time of each file. It is only a part of the cache's key, so that a folder is read
            again after its files have changed.

    Raises:
        UserError: it is not a valid policy, or of another version.
        OSError: a file cannot be read.
    """
    path = folder / "policy.json"
    if not path.is_file():
        pickles = sorted(file.name for file in folder.glob("*") if file.suffix in _PICKLES)
        hint = f" ({pickles[0]} is a pickle, which is never read)" if pickles else ""
        raise UserError(f"'{folder}' is no policy: policy.json is missing{hint}; give a folder that ov-hsdag exported")
    record = _read_record(path)
    expected = 1 if record["format"] == 1 else FORMAT_VERSION
    _check_version(folder, record, "format", expected, "install the release that wrote it, or train it anew")
    if record["features"] not in _FEATURES:
        _check_version(folder, record, "features", FEATURE_VERSION, "train it anew with this release")
    try:
        config = HSDAGConfig.from_dict(record["config"])
    except UserError as error:
        raise UserError(f"'{path}' describes no policy: {error}; export it again") from error
    contents = {name: _read_checked(folder, name, record["files"].get(name)) for name in FILES[record["format"]]}
    try:
        weights = read_tensors(contents[WEIGHTS_FILE])
    except ValueError as error:
        raise UserError(f"policy '{folder}' is damaged: {WEIGHTS_FILE}: {error}; export or copy it again") from error
    if record["format"] == 1:
        weights = {**weights_of_model(folder / "policy.xml"), **weights}
    return PolicyFolder(folder, record, config, Network(weights, config))


def weights_of_model(path: Path) -> dict[str, NDArray[np.float32]]:
    """Reads weights from the OpenVINO model of a policy of format 1, by their names in the network.

    Raises:
        UserError: OpenVINO cannot read the model.
    """
    marker = "self.network."
    try:
        constants = [node for node in ov.Core().read_model(path).get_ops() if node.get_type_name() == "Constant"]
    except RuntimeError as error:
        raise UserError(f"OpenVINO cannot read policy '{path}': {one_line(error)}; export it again") from error
    named = {node.get_friendly_name(): node for node in constants}
    return {
        name.removeprefix(marker): np.array(node.data, np.float32)
        for name, node in named.items()
        if name.startswith(marker)
    }


def _read_record(path: Path) -> dict[str, Any]:
    """Reads policy.json. Raises UserError where it is no JSON, or lacks a key that every policy has."""
    try:
        record = read_json(path, SETTINGS)
    except ValueError as error:
        raise UserError(f"'{path}' is not readable JSON{_pickle_remark(path)}; export the policy again") from error
    kinds = {"format": int, "features": int, "config": dict, "files": dict}
    wrong = [key for key, kind in kinds.items() if not (isinstance(record, dict) and isinstance(record.get(key), kind))]
    if wrong:
        raise UserError(f"'{path}' describes no policy: '{wrong[0]}' is missing or malformed; export the policy again")
    return dict(record)


def _check_version(folder: Path, record: Mapping[str, Any], key: str, expected: int, advice: str) -> None:
    """Checks a version in policy.json.

    Args:
        folder: the policy folder, for the message.
        record: content of policy.json.
        key: the key of the version, "format" or "features".
        expected: the version that this release reads.
        advice: what the user can do, for the message.

    Raises:
        UserError: it is another version.
    """
    if record[key] != expected:
        raise UserError(f"policy '{folder}' has {key} version {record[key]!r:.20}, expected {expected}; {advice}")


def _read_checked(folder: Path, name: str, expected: object) -> bytes:
    """Reads a file and checks that it is the one that was exported.

    Args:
        folder: the policy folder.
        name: name of the file in it.
        expected: its entry under "files" in policy.json, {"bytes": size, "sha256": digest}; None if there is none.

    Raises:
        UserError: the file is missing or another one, or there is no valid entry.
    """
    path = folder / name
    if not path.is_file():
        raise UserError(f"policy '{folder}' is incomplete: {name} is missing; export or copy it again")
    if not isinstance(expected, dict) or "bytes" not in expected or "sha256" not in expected:
        raise UserError(f"policy '{folder}' does not say what {name} should hold; export it again")
    size, expected_size = path.stat().st_size, f"{expected['bytes']!r:.20}"
    if size != expected["bytes"]:
        raise UserError(
            f"policy '{folder}' is damaged: {name} has {size} bytes, expected {expected_size}{_pickle_remark(path)};"
            " export or copy it again"
        )
    content = read_bytes(path, WEIGHTS)
    if _fingerprint(content) != expected:
        raise UserError(f"policy '{folder}' is damaged: {name} is not the file that was exported; copy it again")
    return content


def _fingerprint(content: bytes) -> dict[str, Any]:
    """The entry of a file under "files" in policy.json."""
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _pickle_remark(path: Path) -> str:
    """Returns a remark for messages if a file looks like a pickle by its first bytes, else "".

    Zip archives count as well, because torch.save writes them.
    """
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        start = file.read(2)
    return " (it looks like a pickle)" if start[:1] == b"\x80" or start == b"PK" else ""


@dataclass(frozen=True, eq=False)
class PolicyFolder:
    """A policy, ready to run. It can be used from several threads."""

    path: Path  # the policy's folder
    record: Mapping[str, Any]  # the content of policy.json
    config: HSDAGConfig  # settings of the network
    network: Network  # the network with its weights

    @staticmethod
    def load(policy: str | PathLike[str] | None = None) -> PolicyFolder:
        """Returns a policy by name or folder, the shipped one by default; it is read once as long as it stays the same.

        Raises:
            UserError: there is no such policy, or it is not valid.
        """
        return _load(find(policy).resolve())

    def encode(self, x: PolicyInput) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Computes node embeddings [n, H] and edge scores [e]; see `Network.encode`.

        Raises:
            UserError: the network does not run on these features, or its outputs are not finite.
        """
        h, edge_score = self._run_checked(lambda: self.network.encode(x))
        return h, edge_score

    def place(
        self, x: PolicyInput, h: NDArray[np.float32], edge_score: NDArray[np.float32], cluster: NDArray[np.integer[Any]]
    ) -> NDArray[np.float32]:
        """Computes the logits of devices for clusters; see `Network.logits`.

        Args:
            x: the features.
            h: node embeddings, float32 [n, H].
            edge_score: scores of edges, float32 [e].
            cluster: cluster of each node, without gaps, [n].

        Returns:
            Logits, float32 [c, D].

        Raises:
            UserError: the network does not run on these features, or its outputs are not finite.
        """
        return self._run_checked(lambda: (self.network.logits(x, h, edge_score, cluster),))[0]

    def _run_checked(self, run: Callable[[], tuple[NDArray[np.float32], ...]]) -> tuple[NDArray[np.float32], ...]:
        """Runs a part of the network and checks its outputs.

        Raises:
            UserError: weights have other names or shapes, or outputs are not finite.
        """
        try:
            outputs = run()
        except (KeyError, ValueError, IndexError) as error:
            raise UserError(
                f"policy '{self.path}' does not run on this model's features: {one_line(error)}; export it again"
            ) from error
        if not all(np.isfinite(array).all() for array in outputs):
            raise UserError(f"policy '{self.path}' computes no scores of nodes and devices: train or export it again")
        return outputs
