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

from ov_hsdag.costs.terms import BOUNDARY_TERMS, NODE_TERMS, CostTerm
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
    costs: Mapping[str, NDArray[Any]]  # the terms of nodes (`NODE_TERMS`) by name, [nodes] each


@dataclass(frozen=True, eq=False)
class BoundaryCosts:
    """Measured costs of submodels and transfers in one model. They hold for exactly these devices."""

    names: tuple[str, ...]  # names of the devices, [devices]
    costs: Mapping[str, NDArray[np.float64]]  # the terms of boundaries (`BOUNDARY_TERMS`) by name, shaped as they say


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
        costs = self.boundaries.costs
        return BoundaryCosts(tuple(names), {key: us[np.ix_(*[order] * us.ndim)] for key, us in costs.items()})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the costs as JSON, atomically.

        Some keys are names of the first release: "borders" for `boundaries`, and those of terms (`CostTerm.key`).

        Raises:
            UserError: the file cannot be written.
        """
        entries = {
            name: {
                "identity": dict(costs.identity),
                "measured": costs.measured,
                **{term.file_key: np.round(costs.costs[term.name], 3).tolist() for term in NODE_TERMS},
            }
            for name, costs in self.devices.items()
        }
        document: dict[str, Any] = {"version": FORMAT_VERSION, "graph": self.graph, "devices": entries}
        if self.boundaries is not None:
            arrays = {term.file_key: self.boundaries.costs[term.name].tolist() for term in BOUNDARY_TERMS}
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


def _read_boundaries(entry: Mapping[str, Any] | None) -> BoundaryCosts | None:
    """Reads the entry "borders" of a file; None where it is absent. Raises ValueError, KeyError or TypeError."""
    if entry is None:
        return None
    names = tuple(map(str, entry["names"]))
    costs = _read_terms(entry, BOUNDARY_TERMS)
    if any(costs[term.name].shape != (len(names),) * len(term.axes) for term in BOUNDARY_TERMS if term.name in costs):
        raise ValueError("arrays that do not fit together")
    return BoundaryCosts(names, costs)


def _read_device(entry: Mapping[str, Any]) -> DeviceCosts:
    """Reads the costs on one device. Raises ValueError, KeyError or TypeError where they are unsound."""
    costs = _read_terms(entry, NODE_TERMS)
    nodes = len(costs["node_us"])
    if any(values.shape != (nodes,) for values in costs.values()):
        raise ValueError("arrays that do not fit together")
    return DeviceCosts(dict(entry["identity"]), str(entry["measured"]), costs)


def _read_terms(entry: Mapping[str, Any], terms: Sequence[CostTerm]) -> dict[str, NDArray[Any]]:
    """Reads the arrays of some terms, by name; files of releases before a term lack it (`CostTerm.later`).

    Raises ValueError, KeyError or TypeError where a value is neither a time nor the number of a node.
    """
    costs = {
        term.name: np.array(entry[term.file_key], term.dtype)
        for term in terms
        if term.file_key in entry or not term.later
    }
    for term in terms:
        values = costs.get(term.name, np.zeros(0))
        least, most = (-1, len(values) - 1) if term.unit == "node" else (0, _LONGEST_US)
        if not ((values >= least) & (values <= most)).all():
            raise ValueError(f"values out of range in '{term.file_key}'")
    return costs
