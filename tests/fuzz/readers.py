"""Every kind of file that is read: good ones to begin with, and what reading any other may end with."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import openvino as ov

from ov_hsdag.costs.profile import BUILTIN_DIRECTORY, Profile
from ov_hsdag.costs.stored import BoundaryCosts, DeviceCosts, ModelCosts
from ov_hsdag.costs.terms import BOUNDARY_TERMS
from ov_hsdag.devices.virtual import virtual_devices
from ov_hsdag.model.config_sizes import sizes_beside
from ov_hsdag.model.placement import Placement
from ov_hsdag.model.samples import samples_of
from ov_hsdag.model.stored_placement import RT_INFO
from ov_hsdag.policy.bundle import SHIPPED, WEIGHTS_FILE, check_folder
from ov_hsdag.policy.config import HSDAGConfig
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.storage import folder_writing, overwriting
from ov_hsdag.storage.model_folder import longest_context
from ov_hsdag.utils import child, reading
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import opset13 as ops
from tests.graphs import random_model, random_problem
from tests.images import png_of

LONGEST_MESSAGE = 2000
"""Characters of a message; one that quotes a file without end is no clear line."""


@dataclass(frozen=True)
class Reader:
    """A kind of file."""

    name: str  # of the file that holds it
    seeds: Callable[[], list[bytes]]  # good content, without and with what is optional
    read: Callable[[Path], object]  # reads the file, and uses what was read as far as that is quick
    refuses: tuple[type[Exception], ...] = (UserError,)  # what it may raise


class Unclear(Exception):
    """A file was refused, but not in one clear line."""


def attempt(reader: Reader, content: bytes) -> bool:
    """Lets a reader read content.

    Returns whether it took it. Raises Unclear: the message is none; any other Exception of the reading is a fault.
    """
    with TemporaryDirectory(prefix="ov-hsdag-fuzz-", dir=_memory()) as folder:
        path = Path(folder) / reader.name
        path.write_bytes(content)
        try:
            reader.read(path)
        except reader.refuses as error:
            if isinstance(error, UserError) and ("\n" in str(error) or len(str(error)) > LONGEST_MESSAGE):
                raise Unclear(str(error)[:LONGEST_MESSAGE]) from error
            return False
        return True


@cache
def _memory() -> str | None:
    """Where files cost no disk."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _json(*values: Any) -> list[bytes]:
    return [json.dumps(value).encode() for value in values]


def _profiles() -> list[bytes]:
    gpu = json.loads((BUILTIN_DIRECTORY / "arc_a770.json").read_text(encoding="utf-8"))["devices"]
    (entry,) = gpu.values()
    figure = {"value": 12.5, "source": "a test"}
    link = {"from": "GPU", "to": "CPU", "us": figure, "gbps": figure}
    builtin = {"version": 1, "devices": {"GPU": {"builtin": "arc_a770"}, "CPU": {"builtin": "cpu_core"}}}
    return _json({**builtin, "devices": {"GPU": entry, "CPU": {"builtin": "cpu_core"}}, "links": [link]}, builtin)


def _read_profile(path: Path) -> None:
    profile = Profile.load(path)
    names = list(profile.devices)
    assert np.isfinite(profile.submodel_us(names)).all() and np.isfinite(profile.layout_us_per_byte(names)).all()
    assert (profile.memory_bytes(names) > 0).all()


def _costs() -> list[bytes]:
    def device(nodes: int) -> DeviceCosts:
        times = np.linspace(0, 5, nodes)
        identity = {"full_name": "a CPU", "openvino": "2026", "properties": {}, "usable_cores": 2}
        fused_with = np.arange(-1, nodes - 1, dtype=np.int32)
        costs = {"node_us": times, "fused_with": fused_with, "fusion_penalty_us": times / 2}
        return DeviceCosts(identity, "today", costs)

    boundaries = BoundaryCosts(("CPU", "GPU"), {term.name: np.ones((2,) * len(term.axes)) for term in BOUNDARY_TERMS})
    found = []
    with TemporaryDirectory() as folder:
        for costs in (ModelCosts("0" * 64, {"CPU": device(3), "GPU": device(3)}, boundaries), ModelCosts("", {})):
            costs.save(Path(folder) / "costs")
            found.append((Path(folder) / "costs").read_bytes())
    return found


def _read_costs(path: Path) -> None:
    with contextlib.suppress(UserError):
        from ov_hsdag.costs.stored import check_replaceable

        check_replaceable(path)
    costs = ModelCosts.load(path)
    for name, device in costs.devices.items():
        assert all(np.isfinite(values).all() for values in device.costs.values())
        assert (device.costs["fused_with"] < len(device.costs["node_us"])).all()
        costs.boundaries_of([name, "CPU"])


def _placed() -> list[bytes]:
    """Entries of rt_info as a JSON object of texts."""
    figures = {"latency_us": 5.0, "throughput_ips": 2.5, "submodels": 2, "memory_bytes": {"CPU_A": 5}}
    measured = {"mincut": {**figures, "ratio": 1.5, "ci": [1.4, 1.6], "times_best_single": 1.5, "failed": None}}
    entries = {
        "version": "1", "devices": '["CPU_A", "CPU_B"]', "default": "CPU_A", "default_nodes": '["a", "b"]',
        "exceptions": '{"CPU_B": ["c"]}', "objective": "latency", "chosen": "mincut", "policy": "base",
        "prediction": json.dumps(figures), "measured": json.dumps(measured),
        "baselines": json.dumps({"CPU_A": figures}),
    }  # fmt: skip
    least = {key: entries[key] for key in ("version", "devices", "default", "exceptions", "objective", "chosen")}
    return _json(entries, least)


def _read_placed(path: Path) -> None:
    try:
        entries = json.loads(path.read_bytes())
        pairs = [(str(key), value if isinstance(value, str) else json.dumps(value)) for key, value in entries.items()]
        texts = [(key.encode().decode(), value.encode().decode()) for key, value in pairs]
    except (ValueError, AttributeError, RecursionError):
        return  # no entries: a fault of nobody
    model = _small_model().clone()
    for key, text in texts:
        model.set_rt_info(text, [RT_INFO, key])
    placement = Placement.of(model)
    if placement is not None:
        _show(placement)


@cache
def _small_model() -> ov.Model:
    return random_model(3)


def _show(placement: Placement) -> None:
    assert repr(placement) and placement.summary() and placement.used() is not None and placement._repr_html_()
    for candidate in (*(placement.measured or {}), *placement.baselines, placement.chosen):
        placement.measured_gain(candidate)
        placement.predicted_gain(candidate)


def _records() -> list[bytes]:
    return [(SHIPPED / "base" / "policy.json").read_bytes()]


def _read_record(path: Path) -> None:
    (path.parent / WEIGHTS_FILE).symlink_to(SHIPPED / "base" / WEIGHTS_FILE)
    HSDAGConfig.from_dict(check_folder(path.parent)["config"])


def _problems() -> list[bytes]:
    found = []
    with TemporaryDirectory() as folder:
        for seed in (0, 1):
            random_problem(np.random.default_rng(seed), nodes=9).save(Path(folder) / "problem")
            found.append((Path(folder) / "problem").read_bytes())
    return found


def _read_problem(path: Path) -> None:
    problem = PlacementProblem.load(path)
    problem.evaluate(problem.singles, most_work=10**6)
    problem.summary(problem.single(0))
    assert len(problem.coarse) == len(problem.chains) == problem.group_count
    problem.repair(problem.singles[-1])


def _read_config(path: Path) -> None:
    tokens = longest_context(path.parent / "model.xml")
    assert tokens is None or 0 < tokens < 2**31
    sizes = sizes_beside(_open_image(), path.parent / "model.xml", None)
    assert all(0 < size < 2**31 for shape in sizes.values() for size in shape)


def _npy(array: Any) -> list[bytes]:
    stream = io.BytesIO()
    np.save(stream, array)
    return [stream.getvalue()]


def _images() -> list[bytes]:
    pixels = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)
    colors = np.arange(180, dtype=np.uint8).reshape(60, 3)
    return [png_of(pixels), png_of(pixels[:, :, :1]), png_of(pixels[:, :, :1], palette=colors)]


def _read_sample(model: Callable[[], ov.Model]) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        samples = samples_of(model(), {"": path})
        assert samples is not None
        for (array,) in samples.inferences:
            assert model().inputs[0].get_partial_shape().compatible(ov.PartialShape(list(array.shape)))

    return read


@cache
def _open_numbers() -> ov.Model:
    data = ops.parameter([-1, 4], np.float32, name="x")
    return ov.Model([ops.result(ops.relu(data))], [data], "numbers")


@cache
def _open_texts() -> ov.Model:
    data = ops.parameter([-1], ov.Type.string, name="x")
    return ov.Model([ops.result(data)], [data], "texts")


@cache
def _open_image() -> ov.Model:
    data = ops.parameter([-1, -1, -1, -1], np.float32, name="pixel_values")
    return ov.Model([ops.result(ops.relu(data))], [data], "image")


def _configs() -> list[bytes]:
    image = {"vision_config": {"image_size": 224, "num_channels": 3}, "size": {"height": 8}, "crop_size": [2, 2]}
    return _json({"text_config": {"n_positions": 512}}, image)


def _markers() -> list[bytes]:
    return _json({"files": ["other"], "digests": {"other": hashlib.sha256(b"").hexdigest()}}, {"files": ["other"]})


def _read_marker(path: Path) -> None:
    (path.parent / "other").write_text("")
    folder_writing._refuse_foreign(path.parent, path.parent)


def _read_onnx(path: Path) -> None:
    for data in overwriting.external_data(path):
        os.path.exists(data)


def _irs() -> list[bytes]:
    with TemporaryDirectory() as folder:
        ov.save_model(_small_model(), Path(folder) / "model.xml")
        return [(Path(folder) / "model.xml").read_bytes()]


def _read_replaced(path: Path) -> None:
    path.with_suffix(".bin").write_bytes(bytes(1000))
    overwriting.refuse_foreign_model(path, path)


def _read_frame(path: Path) -> None:
    child.read_frame(io.BytesIO(path.read_bytes()))


def _frames() -> list[bytes]:
    stream = io.BytesIO()
    child.write_frame(stream, {"rate": 5.0, "rates": {"prompt": 1.0}})
    return [stream.getvalue()]


def _variables() -> list[bytes]:
    return [b"CPU_A:INFERENCE_NUM_THREADS=1,INFERENCE_PRECISION_HINT=f32;CPU_B:INFERENCE_NUM_THREADS=2", b""]


def _checkpoints() -> list[bytes]:
    from safetensors.numpy import save

    metadata = {"format": "ov_hsdag finetune 1", "settings": {"seed": 1}, "about": {}, "entries": []}
    return [save({"placements": np.zeros((2, 3), np.uint8)}, {"run": json.dumps(metadata)})]


def _read_checkpoint(path: Path) -> None:
    from ov_hsdag.training.finetune.settings import Settings
    from ov_hsdag.training.run import read_metadata, readable_checkpoint

    metadata = read_metadata(path, "ov_hsdag finetune 1")
    with readable_checkpoint(path):
        Settings.from_dict(metadata["settings"])


READERS: dict[str, Reader] = {
    "profile": Reader("profile.json", _profiles, _read_profile),
    "affinity": Reader("affinity.json", lambda: _json({"a": "CPU", "b": "GPU"}), lambda it: _show(Placement.load(it))),
    "costs": Reader("model.costs.json", _costs, _read_costs),
    "placement": Reader("rt_info.json", _placed, _read_placed),
    "policy": Reader("policy.json", _records, _read_record),
    "problem": Reader("problem.npz", _problems, _read_problem),
    "arrays": Reader("arrays.npz", _problems, lambda path: reading.read_arrays(path, 10**6), (OSError, ValueError)),
    "config": Reader("config.json", _configs, _read_config, ()),
    "array": Reader("x.npy", lambda: _npy(np.ones((2, 4), np.float32)), _read_sample(_open_numbers)),
    "image": Reader("x.png", _images, _read_sample(_open_image)),
    "texts": Reader("x.txt", lambda: [b"a text\nanother", "\ufeffgr\u00fcn\r\n".encode()], _read_sample(_open_texts)),
    "marker": Reader(folder_writing.MARKER, _markers, _read_marker),
    "onnx": Reader("m.onnx", lambda: [b"\x0a\x08location\x12\x05m.bin" * 3], _read_onnx, ()),
    "replaced": Reader("model.xml", _irs, _read_replaced),
    "frame": Reader("frame", _frames, _read_frame, (ValueError, struct.error)),
    "virtual": Reader("text", _variables, lambda path: virtual_devices(path.read_bytes().decode("latin-1"))),
    "checkpoint": Reader("checkpoint.safetensors", _checkpoints, _read_checkpoint),
}  # fmt: skip
