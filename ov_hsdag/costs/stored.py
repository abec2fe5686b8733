"""Costs of one model that were measured on devices, stored in a file in the model's folder.

Measured costs hold, and are used, only where the graph, the device, its properties, the usable cores and OpenVINO's
version are those of the measurement.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.devices import cpu, discovery, virtual
from ov_hsdag.devices.device_set import kind_of
from ov_hsdag.model.graph import ComputationGraph
from ov_hsdag.storage.files import write_json
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import ov
from ov_hsdag.utils.reading import TABLES, parse_json, read_bytes, read_json
from ov_hsdag.utils.warn import warn_caller

FORMAT_VERSION = 1  # format of the files; other versions are refused

SUFFIX = ".costs.json"  # takes the place of a model's suffix

# Properties that change the times of a device, in addition to those that a virtual device declares.
_PROPERTIES = ("INFERENCE_PRECISION_HINT", "INFERENCE_NUM_THREADS", "PERFORMANCE_HINT", "EXECUTION_MODE_HINT")


def path_beside(model: str | os.PathLike[str]) -> Path:
    """Path of a model's stored costs: model.xml → model.costs.json."""
    path = Path(model)
    return path.parent / (path.stem + SUFFIX)


def check_replaceable(path: str | os.PathLike[str]) -> None:
    """Checks that writing measured costs to a path would replace nothing but measured costs, of any version.

    Raises:
        UserError: the file is something else, or cannot be read.
    """
    try:
        text = read_bytes(path, TABLES)
        document = parse_json(text.decode("utf-8-sig")) if text.strip() else {"version": None, "devices": {}}
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"cannot read measured costs {path}: {error.strerror or error}") from error
    except ValueError:
        document = None
    if not (isinstance(document, dict) and {"version", "devices"} <= document.keys()):
        raise UserError(f"cannot write '{path}': it is there already and holds no measured costs; move it away")


def load_beside(model: str | os.PathLike[str]) -> ModelCosts | None:
    """Reads the costs that are stored beside a model, whether they hold or not; None where there are none.

    The user did not ask for that file. So if it cannot be read, is damaged or of another version, a warning is enough.
    """
    path = path_beside(model)
    if not os.path.exists(path):  # `Path.exists` raises where the name would be too long for a file
        return None
    try:
        return ModelCosts.load(path)
    except UserError as error:
        warn_caller(f"measured costs are not used: {error}")
        return None


def graph_hash(graph: ComputationGraph) -> str:
    """Hashes the properties of a graph that costs depend on: types, edges and shapes, but not names.

    Returns:
        64 hexadecimal digits.
    """
    digest = hashlib.sha256()
    shapes = [list(map(int, shape)) for shape in graph.output_shapes]
    digest.update(json.dumps([graph.types, graph.output_types, shapes]).encode())
    for array in (graph.input_ptr, graph.input_output, graph.output_ptr):
        digest.update(np.ascontiguousarray(array, np.int32).tobytes())
    digest.update(np.ascontiguousarray(graph.flops, np.float64).tobytes())
    return digest.hexdigest()


UNEQUAL = 1.25
"""Ratio of times from which devices of one identity do not count as equal: one is throttled, or has other cores."""


def identity(core: ov.Core, device: str) -> dict[str, Any]:
    """Describes the conditions under which measured costs of a device hold.

    They are the device's full name, OpenVINO's version, the properties that times depend on and, for a CPU, the number
    of cores that this process may use: a container with fewer cores is another device.

    Returns:
        A JSON-able dictionary, which is compared as a whole.
    """
    properties = dict(virtual.virtual_devices().get(device, {}))
    reported = {key: discovery.property_text(core, device, key) for key in _PROPERTIES}
    properties |= {key: text for key, text in reported.items() if text is not None}
    conditions: dict[str, Any] = {
        "full_name": discovery.full_name(core, device) or "",
        "openvino": ov.__version__,
        "properties": dict(sorted(properties.items())),
    }
    if kind_of(device) == "CPU":
        conditions["usable_cores"] = cpu.usable_cores()
    return conditions


@dataclass(frozen=True, eq=False)
class DeviceCosts:
    """Measured costs on one device."""

    identity: Mapping[str, Any]  # conditions of the measurement, see `identity`
    measured: str  # date and release of the measurement, for users
    node_us: NDArray[np.float64]  # time of each node, µs, float64 [nodes]
    # the node that each node has to share a submodel with for the device to save time on it, -1 for none, int32 [nodes]
    fused_with: NDArray[np.int32]
    # time that a node takes longer where its `fused_with` is in another submodel, µs, float64 [nodes]
    fusion_penalty_us: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class BoundaryCosts:
    """Measured costs of submodels and transfers in one model. They hold for exactly these devices."""

    names: tuple[str, ...]  # names of the devices, [devices]
    submodel_us: NDArray[np.float64]  # time of a submodel's call beyond the time of its nodes, µs, float64 [devices]
    # fixed time of a transfer from the row's device to the column's, µs, float64 [devices, devices]
    transfer_us: NDArray[np.float64]
    # time of each byte beyond that, µs, float64 [devices, devices]
    transfer_us_per_byte: NDArray[np.float64]


def _without_zero(name: str) -> str:
    """The device name without ".0" at its end, because "GPU.0" and "GPU" are the same device."""
    return name.removesuffix(".0")


@dataclass(frozen=True, eq=False)
class ModelCosts:
    """Measured costs of one model."""

    graph: str  # `graph_hash` of the normalized model
    devices: Mapping[str, DeviceCosts]  # costs of operations by device name
    boundaries: BoundaryCosts | None = None  # costs of partition boundaries; None if they were not measured

    def of(self, graph: ComputationGraph, names: Sequence[str], core: ov.Core) -> dict[str, DeviceCosts]:
        """Selects the costs that hold: measured for the same graph, and with the same `identity` of the device.

        Args:
            graph: the graph of the normalized model.
            names: names of the devices.
            core: the Core.

        Returns:
            Costs by device name.
        """
        if self.graph != graph_hash(graph):
            return {}
        measured = {name: self.device(name) for name in names}
        return {name: costs for name, costs in measured.items() if costs and costs.identity == identity(core, name)}

    def device(self, name: str) -> DeviceCosts | None:
        """The costs of a device, whether they hold or not; "GPU" and "GPU.0" are the same."""
        return next(
            (costs for other, costs in self.devices.items() if _without_zero(other) == _without_zero(name)), None
        )

    def boundaries_of(self, names: Sequence[str]) -> BoundaryCosts | None:
        """The measured costs of boundaries, with the devices in this order; None if they are for other devices."""
        measured_names = [_without_zero(name) for name in self.boundaries.names] if self.boundaries else []
        if self.boundaries is None or set(measured_names) != set(map(_without_zero, names)):
            return None
        order = [measured_names.index(_without_zero(name)) for name in names]
        grid = np.ix_(order, order)
        return BoundaryCosts(
            tuple(names),
            self.boundaries.submodel_us[order],
            self.boundaries.transfer_us[grid],
            self.boundaries.transfer_us_per_byte[grid],
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the costs as JSON, atomically.

        Some keys are names of the first release: "borders" for `boundaries`, and "torn_us" for `fusion_penalty_us`.

        Raises:
            UserError: the file cannot be written.
        """
        entries = {
            name: {
                "identity": dict(costs.identity),
                "measured": costs.measured,
                "node_us": np.round(costs.node_us, 3).tolist(),
                "fused_with": costs.fused_with.tolist(),
                "torn_us": np.round(costs.fusion_penalty_us, 3).tolist(),
            }
            for name, costs in self.devices.items()
        }
        document: dict[str, Any] = {"version": FORMAT_VERSION, "graph": self.graph, "devices": entries}
        if self.boundaries is not None:
            arrays = {key: getattr(self.boundaries, key).tolist() for key in _BOUNDARY_KEYS}
            document["borders"] = {"names": list(self.boundaries.names), **arrays}
        write_json(path, document)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ModelCosts:
        """Reads costs that `save` wrote.

        Raises:
            UserError: the file cannot be read, or holds no measured costs of this format.
        """
        try:
            document = read_json(path, TABLES)
            if document["version"] != FORMAT_VERSION:
                raise UserError(
                    f"'{path}' has format {document['version']!r:.20} of measured costs, expected {FORMAT_VERSION}"
                )
            entries = {name: _read_device(entry) for name, entry in document["devices"].items()}
            return cls(str(document["graph"]), entries, _read_boundaries(document.get("borders")))
        except OSError as error:
            raise UserError(f"cannot read measured costs {path}: {error.strerror or error}") from error
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise UserError(
                f"'{path}' holds no measured costs of a model: measure them with ov-hsdag calibrate"
            ) from error


_LONGEST_US = 1e15  # longest accepted time, µs, as in profiles; sums of such times are finite

# Keys of the costs of boundaries in a file, and attributes of `BoundaryCosts`.
_BOUNDARY_KEYS = ("submodel_us", "transfer_us", "transfer_us_per_byte")


def _read_boundaries(entry: Mapping[str, Any] | None) -> BoundaryCosts | None:
    """Reads the entry "borders" of a file; None where it is absent. Raises ValueError, KeyError or TypeError."""
    if entry is None:
        return None
    names = tuple(map(str, entry["names"]))
    arrays = [np.array(entry[key], np.float64) for key in _BOUNDARY_KEYS]
    shapes = [(len(names),), (len(names), len(names)), (len(names), len(names))]
    if [array.shape for array in arrays] != shapes or not all(map(_are_times, arrays)):
        raise ValueError("arrays that do not fit together")
    return BoundaryCosts(names, *arrays)


def _read_device(entry: Mapping[str, Any]) -> DeviceCosts:
    """Reads the costs on one device. Raises ValueError, KeyError or TypeError where they are unsound."""
    us, penalty = (np.array(entry[key], np.float64) for key in ("node_us", "torn_us"))
    fused = np.array(entry["fused_with"], np.int32)
    sound = us.ndim == 1 and us.shape == penalty.shape == fused.shape
    if not sound or not (_are_times(us) and _are_times(penalty)) or not ((fused >= -1) & (fused < len(us))).all():
        raise ValueError("arrays that do not fit together")
    return DeviceCosts(dict(entry["identity"]), str(entry["measured"]), us, fused, penalty)


def _are_times(us: NDArray[np.float64]) -> bool:
    """Whether all values are times whose sums are finite."""
    return bool(((us >= 0) & (us <= _LONGEST_US)).all())
