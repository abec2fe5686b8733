"""Policy folders: trained HSDAG networks as OpenVINO models, checked before they are used. No torch here.

A policy folder holds policy.json and the files that it lists with their sizes and digests. Nothing in it is ever
unpickled: weights are OpenVINO IR and safetensors.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.devices import cpu
from ov_hsdag.policy.features import FEATURE_VERSION, FeatureSet
from ov_hsdag.storage.files import write_json
from ov_hsdag.utils.errors import UserError, one_line
from ov_hsdag.utils.reading import SETTINGS, WEIGHTS, opened, read_json

if TYPE_CHECKING:
    import openvino as ov

    from ov_hsdag.policy.features import PolicyInput

FORMAT_VERSION = 1

SHIPPED = Path(__file__).parent.parent / "policies"
"""Policies of the package: a folder each, known by name."""

DEFAULT = "base"

FILES = ("policy.xml", "policy.bin", "policy.safetensors")

_PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib")

# What placing needs of the network's settings.
_SETTINGS: dict[str, type | tuple[type, ...]] = {
    "levels": int,
    "min_clusters": int,
    "devices": (int, type(None)),
    "without": list,
}

_RANGES = {"levels": (0, 10**6), "min_clusters": (1, 10**6), "devices": (1, 255)}

# Graphs are small: more threads wait for each other longer than they work.
_THREADS = 2


@dataclass(frozen=True)
class Part:
    """A part of a policy's model: names of its inputs and outputs, in the order of the network's arguments."""

    prefix: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


ENCODER = Part("", ("node_x", "edge_index", "edge_x", "pair_x", "device_x"), ("h", "edge_score"))
"""n nodes, e edges, D devices: float32 [n, F], int64 [2, e], float32 [e, FE], float32 [n, D, FP], float32 [D, FD] →
float32 [n, H], float32 [e]."""

PLACER = Part(
    "placer.",
    ("h", "edge_score", "cluster", "clusters", "edge_index", "edge_x", "pair_x", "device_x"),
    ("logits",),
)
"""The encoder's h and edge_score, the cluster of each node int64 [n], any int64 [c] (its size is the number of
clusters) and the encoder's inputs → float32 [c, D]."""


def write_record(folder: Path, config: Mapping[str, Any], run: Mapping[str, Any]) -> None:
    """Writes policy.json, the last step of an export: the other files are there.

    Args:
        folder: where.
        config: settings of the network, `HSDAGConfig.to_dict()`.
        run: what made the policy; for the reader.
    """
    record = {
        "format": FORMAT_VERSION,
        "features": FEATURE_VERSION,
        "config": dict(config),
        "files": {name: _fingerprint(folder / name) for name in FILES},
        "run": dict(run),
    }
    write_json(folder / "policy.json", record)


def find(policy: str | PathLike[str] | None) -> Path:
    """The folder of a policy.

    Args:
        policy: a shipped policy's name (a string without a separator, whatever the working directory holds), a folder,
            or None for the shipped policy `DEFAULT`.

    Raises:
        UserError: there is none, or it may not be read.
    """
    name = DEFAULT if policy is None else str(policy)
    if not isinstance(policy, PathLike) and _is_name(name) and ships(name):
        return SHIPPED / name
    if policy is not None:
        with _reading(policy):
            folder = Path(policy)
            if folder.is_dir():
                return folder
            if folder.exists():
                raise UserError(
                    f"policy '{policy}' is a file{_what(folder)};"
                    " give a folder that holds policy.json (pickles are never read)"
                )
    names = ", ".join(sorted(path.parent.name for path in SHIPPED.glob("*/policy.json"))) or "none"
    raise UserError(f"there is no policy '{name}'; give a folder that holds policy.json, or a shipped policy ({names})")


def _is_name(policy: str) -> bool:
    """Whether a string has no separator: "base" is a name, "./base" a folder."""
    return not any(separator in policy for separator in (os.sep, os.altsep) if separator)


def ships(policy: str) -> bool:
    """Whether the package has a policy of this name."""
    return (SHIPPED / policy / "policy.json").is_file()


def check_folder(folder: str | PathLike[str]) -> dict[str, Any]:
    """The content of policy.json, after checking all files.

    Raises:
        UserError: a file is missing, damaged, of another version, or may not be read.
    """
    with _reading(folder):
        return _checked(Path(folder))


@contextmanager
def _reading(policy: str | PathLike[str]) -> Iterator[None]:
    """Turns what the file system refuses into a UserError."""
    try:
        yield
    except OSError as error:
        path, reason = error.filename or policy, error.strerror or type(error).__name__
        advice = "check its permissions" if isinstance(error, PermissionError) else "export or copy it again"
        raise UserError(f"policy '{path}' cannot be read: {reason}; {advice}") from error


def _checked(folder: Path) -> dict[str, Any]:
    path = folder / "policy.json"
    if not path.is_file():
        pickles = sorted(file.name for file in folder.glob("*") if file.suffix in _PICKLES)
        hint = f" ({pickles[0]} is a pickle, which is never read)" if pickles else ""
        raise UserError(f"'{folder}' is no policy: policy.json is missing{hint}; give a folder that ov-hsdag exported")
    record = _read_record(path)
    _check_version(folder, record, "format", FORMAT_VERSION, "install the release that wrote it, or train it anew")
    _check_version(folder, record, "features", FEATURE_VERSION, "train it anew with this release")
    for key, kinds in _SETTINGS.items():
        if key not in record["config"] or not isinstance(record["config"][key], kinds):
            raise UserError(
                f"'{path}' describes no policy: the setting '{key}' is missing or malformed; export it again"
            )
    for key, (least, most) in _RANGES.items():
        value = record["config"][key]
        if value is not None and not least <= value <= most:
            raise UserError(f"'{path}' describes no policy: '{key}' has to be from {least} to {most}; export it again")
    for name in record["config"]["without"]:
        if not isinstance(name, str) or name not in FeatureSet.__dataclass_fields__:
            raise UserError(f"'{path}' names the unknown feature set {name!r:.60}; export it again")
    for name in FILES:
        _check_file(folder, name, record["files"].get(name))
    return record


def _read_record(path: Path) -> dict[str, Any]:
    try:
        record = read_json(path, SETTINGS)
    except ValueError as error:
        raise UserError(f"'{path}' is not readable JSON{_what(path)}; export the policy again") from error
    kinds = {"format": int, "features": int, "config": dict, "files": dict}
    wrong = [key for key, kind in kinds.items() if not (isinstance(record, dict) and isinstance(record.get(key), kind))]
    if wrong:
        raise UserError(f"'{path}' describes no policy: '{wrong[0]}' is missing or malformed; export the policy again")
    return dict(record)


def _check_version(folder: Path, record: Mapping[str, Any], key: str, expected: int, advice: str) -> None:
    if record[key] != expected:
        raise UserError(f"policy '{folder}' has {key} version {record[key]!r:.20}, expected {expected}; {advice}")


def _check_file(folder: Path, name: str, expected: object) -> None:
    path = folder / name
    if not path.is_file():
        raise UserError(f"policy '{folder}' is incomplete: {name} is missing; export or copy it again")
    if not isinstance(expected, dict) or "bytes" not in expected or "sha256" not in expected:
        raise UserError(f"policy '{folder}' does not say what {name} should hold; export it again")
    size, wanted = path.stat().st_size, f"{expected['bytes']!r:.20}"
    if size != expected["bytes"]:
        raise UserError(
            f"policy '{folder}' is damaged: {name} has {size} bytes, expected {wanted}{_what(path)};"
            " export or copy it again"
        )
    if _fingerprint(path) != expected:
        raise UserError(f"policy '{folder}' is damaged: {name} is not the file that was exported; copy it again")


def _fingerprint(path: Path) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
    with opened(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
            size += len(block)
            if size > WEIGHTS:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return {"bytes": size, "sha256": digest.hexdigest()}


def _what(path: Path) -> str:
    """A remark on files that hold pickles, by their first bytes (torch.save writes zip archives)."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        start = file.read(2)
    return " (it looks like a pickle)" if start[:1] == b"\x80" or start == b"PK" else ""


@dataclass(frozen=True, eq=False)
class PolicyFolder:
    """A policy, compiled for the CPU. Safe to use from several threads.

    Attributes:
        path: its folder.
        config: settings of the network, as `HSDAGConfig.to_dict()` wrote them.
        run: the record of the run that made it.
    """

    path: Path
    config: Mapping[str, Any]
    run: Mapping[str, Any]
    _encoder: ov.CompiledModel
    _placer: ov.CompiledModel
    _local: threading.local = field(default_factory=threading.local)

    @staticmethod
    def load(policy: str | PathLike[str] | None = None) -> PolicyFolder:
        """A policy by name or folder; the shipped one by default. Compiled once in a process as long as it is the same.

        Raises:
            UserError: there is none, or its folder does not pass `check_folder`.
        """
        folder = find(policy).resolve()
        record = check_folder(folder)
        return _compile(folder, json.dumps(record, sort_keys=True))

    @property
    def features(self) -> FeatureSet:
        """The features that it was trained on."""
        return FeatureSet(**dict.fromkeys(self.config["without"], False))

    @property
    def levels(self) -> int:
        """How often its parsing merges clusters."""
        return int(self.config["levels"])

    @property
    def min_clusters(self) -> int:
        """Where its parsing stops."""
        return int(self.config["min_clusters"])

    @property
    def devices(self) -> int | None:
        """The only number of devices that it places on; None: any."""
        devices = self.config["devices"]
        return None if devices is None else int(devices)

    def encode(self, x: PolicyInput) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Node embeddings [n, H] and edge scores [e]; see `ENCODER`."""
        values = {name: getattr(x, name) for name in ENCODER.inputs}
        h, edge_score = self._infer("encoder", self._encoder, ENCODER, values)
        nodes, edges = len(x.node_x), x.edge_index.shape[1]
        self._expect(h.ndim == 2 and len(h) == nodes and edge_score.shape == (edges,), h, edge_score)
        return h, edge_score

    def place(
        self,
        x: PolicyInput,
        h: NDArray[np.float32],
        edge_score: NDArray[np.float32],
        cluster: NDArray[np.integer[Any]],
    ) -> NDArray[np.float32]:
        """Logits [c, D]; see `PLACER`.

        Args:
            x: the input of `encode`.
            h: its first output.
            edge_score: its second.
            cluster: cluster of each node, numbered from 0 without gaps, [n].
        """
        cluster = cluster.astype(np.int64)
        values = {name: getattr(x, name, None) for name in PLACER.inputs}
        count = int(cluster.max()) + 1
        values |= {"h": h, "edge_score": edge_score, "cluster": cluster, "clusters": np.arange(count)}
        (logits,) = self._infer("placer", self._placer, PLACER, values)
        self._expect(logits.shape == (count, len(x.device_x)), logits)
        return logits

    def _infer(
        self, key: str, compiled: ov.CompiledModel, part: Part, values: Mapping[str, Any]
    ) -> list[NDArray[np.float32]]:
        request = getattr(self._local, key, None)
        if request is None:
            request = compiled.create_infer_request()
            setattr(self._local, key, request)
        named = {part.prefix + name: np.ascontiguousarray(value) for name, value in values.items()}
        wanted = {port.any_name for port in compiled.inputs}
        try:
            request.infer({name: value for name, value in named.items() if name in wanted}, share_inputs=True)
            return [np.array(request.get_tensor(name).data) for name in part.outputs]
        except RuntimeError as error:
            raise UserError(
                f"policy '{self.path}' does not run on this model's features: {one_line(error)}; export it again"
            ) from error

    def _expect(self, fits: bool, *outputs: NDArray[np.float32]) -> None:
        """Raises UserError where outputs have not the documented shapes, or are no finite numbers."""
        if not fits or not all(array.dtype.kind == "f" and np.isfinite(array).all() for array in outputs):
            raise UserError(f"policy '{self.path}' computes no scores of nodes and devices: train or export it again")


@lru_cache(maxsize=4)
def _compile(folder: Path, record: str) -> PolicyFolder:
    import openvino as ov

    core = ov.Core()
    # bf16 would be the default of CPUs with AMX, and candidates would depend on the machine.
    properties = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": min(_THREADS, cpu.usable_cores()),
        "NUM_STREAMS": 1,
    }

    def compile_part(part: Part) -> ov.CompiledModel:
        return core.compile_model(_part(model, part), "CPU", properties)

    values = json.loads(record)
    try:
        model = core.read_model(folder / "policy.xml")
        with ThreadPoolExecutor(2) as pool:
            encoder, placer = pool.map(compile_part, (ENCODER, PLACER))
    except RuntimeError as error:
        raise UserError(f"OpenVINO cannot read policy '{folder}': {one_line(error)}; export it again") from error
    run = values.get("run")
    return PolicyFolder(folder, values["config"], run if isinstance(run, dict) else {}, encoder, placer)


def _part(model: ov.Model, part: Part) -> ov.Model:
    import openvino as ov

    results = [result for result in model.get_results() if set(part.outputs) & result.input_value(0).get_names()]
    parameters = [
        parameter
        for parameter in model.get_parameters()
        if parameter.get_friendly_name().startswith(PLACER.prefix) == (part is PLACER)
    ]
    return ov.Model(results, parameters, "hsdag")
