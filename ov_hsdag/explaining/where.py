"""The device of each operation in a compiled model, as its plugins report it, however the devices were chosen.

A layer is a node of the runtime model that a plugin makes of the operations; it names the operations that it computes.
An operation that no layer names is called folded.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ov_hsdag.model.names import operations_of
from ov_hsdag.model.relaxed_shapes import is_relaxing
from ov_hsdag.utils.errors import one_line
from ov_hsdag.utils.lazy import ov

HOMES = "_ov_hsdag_homes"
"""Attribute of a compiled model: the affinity of each operation, by name, that ov-hsdag's compile_model set."""

_SUBMODEL = re.compile(r"subgraph(\d+): ")
_DEVICE = re.compile(rb'<compiled_submodel device="([^"]*)"')

# Layers of a runtime model that compute nothing, and those whose results vary even if all of their inputs are constant.
_SILENT = ("Input", "Output", "Parameter", "Result")
_CHANGING = ("MemoryInput", "ReadValue", "RandomUniform", "Multinomial")
_LINES = 12  # runs of operations that a text lists: more do not fit on a screen


@dataclass(frozen=True)
class Operation:
    """An operation of the model and its device.

    Attributes:
        name: friendly name of the node.
        device: name of the device; "GPU.0 or CPU" where requests are distributed; None where it is folded or unknown.
        submodel: HETERO's number of its submodel, in execution order; None where that is not known.
        folded: whether no layer names the operation: it was computed while compiling, removed, or merged into others.
    """

    name: str
    device: str | None
    submodel: int | None
    folded: bool


@dataclass(frozen=True)
class Where:
    """The device of each operation of a compiled model. Constants, inputs and outputs are no operations.

    Attributes:
        operations: all operations in the order of the model.
        submodels: device of each submodel of HETERO, in execution order; () where that is not known.
        notes: sentences for users about facts that could not be determined, and how they could be.
    """

    operations: tuple[Operation, ...]
    submodels: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def counted(self) -> tuple[Operation, ...]:
        """The operations that are not folded; shares refer to these."""
        return tuple(one for one in self.operations if not one.folded)

    @property
    def devices(self) -> dict[str, int]:
        """Number of counted operations on each device; those on unknown devices are left out."""
        homes = [one.device for one in self.operations]
        return {name: homes.count(name) for name in dict.fromkeys((*self.submodels, *homes)) if name is not None}

    def on(self, device: str) -> int:
        """Counts the operations (`counted`) that always run on a device. "GPU" includes GPU.0, GPU.1 and so on."""
        return sum(count for name, count in self.devices.items() if re.fullmatch(rf"{re.escape(device)}(\.\w+)*", name))

    def to_dict(self) -> dict[str, Any]:
        """Converts everything to JSON's types; names are in the order of the model."""
        return {
            "operations": {one.name: one.device for one in self.counted if one.device is not None},
            "folded": [one.name for one in self.operations if one.folded],
            "not_known": [one.name for one in self.counted if one.device is None],
            "devices": self.devices,
            "submodels": list(self.submodels),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        """A table of devices, the runs of operations in the order of the model, and the notes, for the terminal."""
        counted, devices = self.counted, self.devices
        width = max(map(len, ["device", *devices]))
        lines = [f"{'device':<{width}}  operations   share" + "  submodels" * bool(self.submodels)]
        for name, number in devices.items():
            line = f"{name:<{width}}  {number:>10,}  {number / max(len(counted), 1):>6.1%}"
            lines.append(line + f"  {self.submodels.count(name):>9,}" * bool(self.submodels))
        runs = [[*run] for _, run in groupby(counted, lambda one: one.device)]
        lines += ["in the order of the model:"] if len(runs) > 1 else []
        for run in runs[:_LINES] if len(runs) > 1 else ():
            lines.append(f"  {len(run):,} on {run[0].device or '?'}: {run[0].name} … {run[-1].name}")
        lines += [f"  and {len(runs) - _LINES:,} more runs of operations"] if len(runs) > _LINES else []
        folded, unknown = len(self.operations) - len(counted), len(counted) - sum(devices.values())
        lines += [f"folded (computed while compiling, removed, or part of others): {folded:,}"] if folded else []
        return "\n".join([*lines, *([f"not known: {unknown:,}"] if unknown else []), *self.notes])


def where(compiled: ov.CompiledModel, model: ov.Model | None = None) -> Where:
    """Finds the device of each operation of a compiled model.

    Nothing is run and nothing is guessed; `Where.notes` says what could not be determined. A HETERO model gets an infer
    request. Where HETERO itself chose several devices, the model is also exported, which needs the memory of the
    weights once more. A GPU lists the layers of its submodels only with PERF_COUNT.

    Args:
        compiled: result of Core.compile_model or Core.import_model for any device: HETERO with or without a placement,
            AUTO, MULTI, BATCH or a single device.
        model: the model that was compiled. Without it, and where our compile_model did not follow a placement, names
            are those of the plugins, and folded operations are unknown.

    Returns:
        The devices of the operations.

    Raises:
        RuntimeError: a plugin does not report its devices.
    """
    notes: list[str] = []
    homes: Mapping[str, str] = getattr(compiled, HOMES, {})
    names = [*homes] if model is None else [node.get_friendly_name() for node in _operations(model)]
    layers: dict[str, set[str]] | None = None
    try:
        layers = _layers(compiled, names)
    except RuntimeError as error:
        notes.append(f"which operations were folded is not known: no runtime model ({one_line(error)})")
    if model is None and not homes:
        names = [*(layers or ())]
        notes.append("the model was not given: names are the plugin's, and what it folded is not known")
    reported = compiled.get_property("EXECUTION_DEVICES")
    devices = [name.strip("()") for name in reported]
    if devices != list(reported):
        notes.append("AUTO runs it there for as long as it compiles for another device: ask again")
    hetero = "HETERO_NUMBER_OF_SUBMODELS" in compiled.get_property("SUPPORTED_PROPERTIES")
    numbers, submodels = _submodels(compiled, devices, homes, notes) if hetero else ({}, ())

    def home(name: str) -> Operation:
        """Finds the device of the operation `name`."""
        if layers is not None and name not in layers:
            return Operation(name, None, None, folded=True)
        submodel_numbers = numbers.get(name) or set().union(
            *(numbers.get(one, ()) for one in (layers or {}).get(name, ()))
        )
        number = min(submodel_numbers) if len(submodel_numbers) == 1 else None
        if not hetero or len(devices) == 1:
            return Operation(name, " or ".join(devices), number, folded=False)
        on = {homes[name]} if name in homes else {submodels[one] for one in submodel_numbers} if submodels else set()
        return Operation(name, on.pop() if len(on) == 1 else None, number, folded=False)

    return Where(tuple(map(home, names)), submodels, tuple(notes))


def homes_of(model: ov.Model) -> dict[str, str]:
    """Reads the device of each operation, by name, from a model whose nodes have affinities; see `HOMES`."""
    return {node.get_friendly_name(): node.get_rt_info()["affinity"].astype(str) for node in _operations(model)}


def _operations(model: ov.Model) -> list[ov.Node]:
    """Lists the operations of a model, without those that ov-hsdag adds to relax shapes."""
    return [node for node in operations_of(model) if not is_relaxing(node.get_friendly_name())]


def _layers(compiled: ov.CompiledModel, names: Sequence[str]) -> dict[str, set[str]]:
    """Finds the layers that execute each operation.

    Layers that read only constants are left out: plugins list them, but have computed them while compiling.

    Args:
        compiled: the compiled model.
        names: names of operations to look for; [] for all that layers name.

    Returns:
        Names of layers by the operation's name, in execution order; operations without a layer are left out.

    Raises:
        RuntimeError: there is no runtime model.
    """
    layers: dict[str, set[str]] = {}
    wanted_names, commas = frozenset(names), [name for name in names if "," in name]
    constant: set[int] = set()
    for layer in compiled.get_runtime_model().get_ordered_ops():
        info = {key: str(getattr(value, "value", value)) for key, value in layer.get_rt_info().items()}
        kind, layer_name = info.get("layerType", layer.get_type_name()), layer.get_friendly_name()
        sources = [value.get_node().get_instance_id() for value in layer.input_values()]
        if kind.startswith("Const") or (sources and constant.issuperset(sources) and kind not in _CHANGING):
            constant.add(layer.get_instance_id())
        elif kind not in _SILENT and layer.get_type_name() not in _SILENT:
            text = info.get("originalLayersNames", "")
            originals = {*text.split(","), *(name for name in commas if f",{name}," in f",{text},")}
            # A layer with the name of an operation computes it, even if it does not list it among its originals.
            for name in wanted_names & (originals | {layer_name}) if names else originals - {""}:
                layers.setdefault(name, set()).add(layer_name)
    return layers


def _submodels(
    compiled: ov.CompiledModel, devices: Sequence[str], homes: Mapping[str, str], notes: list[str]
) -> tuple[dict[str, set[int]], tuple[str, ...]]:
    """Finds HETERO's submodels by profiling information, affinities or, where these do not suffice, by exporting.

    Args:
        compiled: a model compiled for HETERO.
        devices: devices that execute it.
        homes: affinity of each operation, by name; empty where it is not known.
        notes: gets a sentence for each thing that cannot be determined.

    Returns:
        Numbers of the submodels that contain each layer, by the layer's name; and the device of each submodel, in the
        order of their numbers. Both are empty where a device does not list its layers; the second is also empty where
        the devices are not known.
    """
    numbers: dict[str, set[int]] = {}
    try:
        for item in compiled.create_infer_request().profiling_info:
            if match := _SUBMODEL.match(item.node_name):
                numbers.setdefault(item.node_name[match.end() :], set()).add(int(match[1]))
    except RuntimeError:
        if len(devices) > 1 and not homes:
            notes.append("a device does not tell what is in its submodels: compile with PERF_COUNT=True, and ask again")
        return {}, ()
    every = sorted(set().union(*numbers.values()))
    if len(devices) == 1:
        return numbers, (*devices,) * len(every)
    # Where affinities determine all devices, the model need not be exported, which takes memory.
    placed = {number: homes[name] for name, found in numbers.items() if name in homes for number in found}
    if len(placed) == len(every):
        return numbers, tuple(placed[number] for number in every)
    stream = io.BytesIO()
    try:
        compiled.export_model(stream)
    except RuntimeError as error:
        notes.append(f"devices of submodels are not known: the model cannot be exported ({one_line(error)})")
    stream.seek(0)
    # The blob begins with the list of submodels, so that its first 16 MiB suffice.
    exported = _DEVICE.findall(stream.read(1 << 24).partition(b"</compiled_submodels>")[0])
    return numbers, tuple(name.decode() for name in exported) if len(exported) >= len(every) else ()
