"""Which devices of this machine run which operations."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.devices import discovery
from ov_hsdag.devices.device_set import kind_of
from ov_hsdag.model.colocation import group_support
from ov_hsdag.model.compiling import Compiling, Here
from ov_hsdag.model.excerpt import LARGE, Excerpt, excerpt
from ov_hsdag.model.flops import bodies_of
from ov_hsdag.model.graph import ComputationGraph
from ov_hsdag.utils.child import ChildError
from ov_hsdag.utils.errors import RunError, UserError, one_line
from ov_hsdag.utils.lazy import op, ov

# Types of which a plugin says that it runs them, with a kernel for them on this device or without. The GPU plugin has
# GRUSequence from oneDNN alone, so not on GPUs without matrix engines; query_model does not look that far.
_CLAIMED_UNSEEN = {"GPU": ("GRUSequence",)}

# Kinds of devices whose plugins claim operations on tensors with an open number of dimensions, such as the result of an
# If whose branches differ, and then do not compile them.
RANKS_FIXED = frozenset({"GPU", "NPU"})


def support(
    model: ov.Model, graph: ComputationGraph, devices: Sequence[str], core: ov.Core, part: Excerpt | None = None
) -> NDArray[np.bool_]:
    """Which devices run which nodes, bool [nodes, devices]. RunError: a device cannot say what it supports.

    Those that they claim (`ov.Core.query_model`) and, where claims of their kind are known to be empty at times,
    compile alone; a warning says which claims were taken back. Devices of the same kind, name, capabilities and
    precision are asked once. Of a large model they are asked about an excerpt (`part`, where one is there already), and
    about all of it where they do not run all of that.
    """
    if part is None and graph.nodes >= LARGE and devices:
        part = excerpt(model)
    columns: dict[tuple[object, ...], NDArray[np.bool_]] = {}
    sorts = [_sort(core, device) for device in devices]
    for device, sort in zip(devices, sorts, strict=True):
        if sort in columns:
            continue
        column = _claimed(model, part, graph, device, core)
        kind = kind_of(device) or device
        doubtful = column & np.isin(graph.types, _CLAIMED_UNSEEN.get(kind, ()))
        if kind in RANKS_FIXED:
            doubtful |= column & np.isin(graph.names, with_open_ranks(model))
        column[doubtful] = _compile_alone(model, graph, np.flatnonzero(doubtful).tolist(), device, core)
        refused = np.flatnonzero(doubtful & ~column)
        if len(refused):
            kinds = ", ".join(sorted({graph.types[node] for node in refused}))
            warnings.warn(
                f"{device} says that it runs {kinds} and does not compile it: {len(refused)} operations are placed"
                " elsewhere",
                stacklevel=2,
            )
        columns[sort] = column
    return np.stack([columns[sort] for sort in sorts], axis=1) if sorts else np.ones((graph.nodes, 0), bool)


def _claimed(
    model: ov.Model, part: Excerpt | None, graph: ComputationGraph, device: str, core: ov.Core
) -> NDArray[np.bool_]:
    """What a device says that it runs, bool [nodes]. Raises RunError.

    Plugins transform all of a model to answer, in a time that grows faster than the model.
    """
    if part is not None:
        try:
            claimed = core.query_model(part.model, device)
        except RuntimeError:
            claimed = {}
        # Whether a device takes what is around an operation that it lacks is for the whole model to say.
        if all(name in claimed for name in part.names):
            return np.ones(graph.nodes, bool)
    try:
        claimed = core.query_model(model, device)
    except RuntimeError as error:
        raise RunError(f"{device} cannot say what it supports of this model: {one_line(error)}") from error
    return np.array([name in claimed for name in graph.names], bool)


def _sort(core: ov.Core, device: str) -> tuple[object, ...]:
    """Equal for devices that run the same operations: one answer holds for all of eight equal GPUs.

    A question costs a pass over the model by the device's plugin, half a second for a language model of 16 layers.
    """
    kind = kind_of(device)
    if kind is None:
        return (device,)
    return (
        kind,
        discovery.full_name(core, device) or device,
        discovery.capabilities(core, device),
        discovery.inference_precision(core, device),
    )


def _compile_alone(
    model: ov.Model, graph: ComputationGraph, nodes: Sequence[int], device: str, core: ov.Core
) -> list[bool]:
    """Whether the device compiles each of the nodes as a model of its own, with its constant inputs.

    In another process, see `ov_hsdag.model.compiling`. Raises RunError where none can be started.
    """
    if not nodes:
        return []
    constant = {graph.names[node] for node in np.flatnonzero(graph.legality.constant)}
    copies = {node.get_friendly_name(): node for node in model.clone().get_ops()}
    models: dict[str, ov.Model] = {}  # by kind
    kinds = []
    for node in (copies[graph.names[number]] for number in nodes):
        sources = [port.get_source_output() for port in node.inputs()]
        live = [source.get_node().get_friendly_name() not in constant for source in sources]
        # Equal for nodes that a plugin chooses the same kernel for, as far as can be told from outside.
        inputs = [f"{source.get_element_type()} {source.get_partial_shape()}" for source in sources]
        kind = f"{node.get_type_info()} {node.get_attributes()} {inputs} {live}"
        if bodies_of(node):  # which the attributes do not tell
            kind = f"{kind} {node.get_friendly_name()}"
        kinds.append(kind)
        if kind not in models:
            parameters = []
            for port, source in compress(zip(node.inputs(), sources, strict=True), live):
                parameters.append(op.Parameter(source.get_element_type(), source.get_partial_shape()))
                port.replace_source_output(parameters[-1].output(0))
            models[kind] = ov.Model(node.outputs(), parameters, node.get_friendly_name())
    with Compiling(core, [device]) as process:
        numbers = [process.keep(one) for one in models.values()]
        try:
            compiles = process.call(_compiles, numbers, device, doing=f"compiling for {device}")
        except ChildError:  # the plugin has crashed
            compiles = [False] * len(numbers)
    known = dict(zip(models, compiles, strict=True))
    return [known[kind] for kind in kinds]


def _compiles(here: Here, numbers: Sequence[int], device: str) -> list[bool]:
    """In the process that compiles: whether the device compiles each of the models, by their numbers."""
    found = []
    for number in numbers:
        try:
            here.core.compile_model(here.model(number), device, {"CACHE_DIR": ""})  # of no use to anybody later
            found.append(True)
        except RuntimeError:
            found.append(False)
    return found


# OpenVINO's operation sets: the public ones, and those of transformations.
_OWN_VERSIONS = re.compile(r"opset\d+|ie_internal_opset|util")

# Types that are in no operation set and yet OpenVINO's own.
_OWN_TYPES = frozenset(
    {"PagedAttentionExtension", "PagedCausalConv1D", "PagedGatedDeltaNet", "PagedSelectiveSSM", "GatedDeltaNet"}
)


def with_open_ranks(model: ov.Model) -> list[str]:
    """Friendly names of operations that read or make a tensor whose number of dimensions is open."""
    operations = (node for node in model.get_ops() if node.get_type_name() not in ("Parameter", "Result"))
    return [
        node.get_friendly_name()
        for node in (operations if model.is_dynamic() else ())
        if any(port.get_partial_shape().rank.is_dynamic for port in (*node.outputs(), *node.input_values()))
    ]


def inner_types(model: ov.Model) -> dict[str, frozenset[str]]:
    """Types of the operations in the bodies of each If and loop, bodies of bodies too, by the node's friendly name."""
    found = {}
    for node in model.get_ops():
        inner = {one.get_type_name() for one in _inner_operations(node)}
        if inner:
            found[node.get_friendly_name()] = frozenset(inner - {"Parameter", "Result", "Constant"})
    return found


def custom_operations(model: ov.Model) -> list[str]:
    """Friendly names of operations that are not OpenVINO's (or have one in a body): a program's, or a library's.

    Their types may have the name of an operation of OpenVINO, such as Clamp; the operation set tells them apart.
    """
    return [
        node.get_friendly_name()
        for node in model.get_ops()
        if _is_custom(node) or any(map(_is_custom, _inner_operations(node)))
    ]


def _is_custom(node: ov.Node) -> bool:
    version = str(node.get_type_info().version_id)
    return _OWN_VERSIONS.fullmatch(version) is None and node.get_type_name() not in _OWN_TYPES


def _inner_operations(node: ov.Node) -> Iterator[ov.Node]:
    for body in bodies_of(node):
        for one in body.get_ops():
            yield one
            yield from _inner_operations(one)


def require_support(
    graph: ComputationGraph,
    groups: NDArray[np.int32],
    supported: NDArray[np.bool_],
    devices: Sequence[str],
    model: ov.Model | None = None,
) -> None:
    """Raises UserError when an operation runs on none of the devices, or operations that must share one have none.

    Args:
        graph: of the model.
        groups: co-location group of each node, int32 [nodes].
        supported: which devices run which nodes, bool [nodes, devices].
        devices: their names, for the message.
        model: normalized; None where the message cannot look for tensors of open rank.
    """
    alone = np.flatnonzero(~supported.any(axis=1))
    if len(alone):
        node = alone[0]
        more = f" (and {len(alone) - 1} more)" if len(alone) > 1 else ""
        remedy = "add a device that runs it"
        if model is not None and graph.names[node] in with_open_ranks(model):
            remedy = (
                "the number of dimensions of its tensors is open: fix the sizes of the model's inputs with --static"
                " --shape (ovc: --input), or add a device that runs it"
            )
        raise UserError(
            f"operation '{graph.names[node]}' of type {graph.types[node]}{more} is supported by none of"
            f" {', '.join(devices)}; {remedy}"
        )
    stuck = np.flatnonzero(~group_support(groups, supported).any(axis=1))
    if len(stuck):
        members = [f"'{graph.names[n]}' ({graph.types[n]})" for n in np.flatnonzero(groups == stuck[0])[:4]]
        raise UserError(
            f"operations that must share a device find none of {', '.join(devices)} that runs them all:"
            f" {', '.join(members)}"
        )
