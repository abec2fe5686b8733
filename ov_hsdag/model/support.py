"""Finds out which devices of this machine run which operations.

A claim is a device's answer to `ov.Core.query_model` that it runs a node. Some claims are wrong, so doubtful ones are
checked by compiling the node.
"""

from __future__ import annotations

import re
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
from ov_hsdag.utils.warn import warn_caller

# Types, by kind of device, that query_model lists even where the device has no kernel for them. The GPU plugin has
# GRUSequence only from oneDNN, and so not on GPUs without matrix engines, which query_model does not check.
_UNCHECKED_CLAIMS = {"GPU": ("GRUSequence",)}

# Kinds of devices whose plugins claim operations on tensors of open rank, such as the result of an If whose branches
# differ, but do not compile them.
RANKS_FIXED = frozenset({"GPU", "NPU"})


def support(
    model: ov.Model, graph: ComputationGraph, devices: Sequence[str], core: ov.Core, part: Excerpt | None = None
) -> NDArray[np.bool_]:
    """Finds out which devices run which nodes.

    A device is asked with `ov.Core.query_model`. Where claims of its kind are known to be wrong at times, the operation
    is also compiled as a model of its own; a warning lists the types of operations that do not compile. Devices of the
    same kind, name, capabilities and precision are asked once. A device is asked about an excerpt of a large model
    first, and about the whole model only where it does not run all of the excerpt.

    Args:
        model: the normalized model, which is not changed.
        graph: the graph of the model.
        devices: names of devices that `core` has.
        core: the Core.
        part: an excerpt of a large model, where the caller has one already.

    Returns:
        Whether a device runs a node, bool [nodes, devices].

    Raises:
        RunError: a device cannot say what it supports.
    """
    if part is None and graph.nodes >= LARGE and devices:
        part = excerpt(model)
    columns: dict[tuple[object, ...], NDArray[np.bool_]] = {}
    sorts = [_equality_key(core, device) for device in devices]
    for device, sort in zip(devices, sorts, strict=True):
        if sort in columns:
            continue
        column = _claimed_nodes(model, part, graph, device, core)
        kind = kind_of(device) or device
        doubtful = column & np.isin(graph.types, _UNCHECKED_CLAIMS.get(kind, ()))
        if kind in RANKS_FIXED:
            doubtful |= column & np.isin(graph.names, with_open_ranks(model))
        column[doubtful] = _compile_alone(model, graph, np.flatnonzero(doubtful).tolist(), device, core)
        refused = np.flatnonzero(doubtful & ~column)
        if len(refused):
            kinds = ", ".join(sorted({graph.types[node] for node in refused}))
            warn_caller(
                f"{device} says that it runs {kinds} and does not compile it: {len(refused)} operations are placed"
                " elsewhere"
            )
        columns[sort] = column
    return np.stack([columns[sort] for sort in sorts], axis=1) if sorts else np.ones((graph.nodes, 0), bool)


def _claimed_nodes(
    model: ov.Model, part: Excerpt | None, graph: ComputationGraph, device: str, core: ov.Core
) -> NDArray[np.bool_]:
    """Asks a device which nodes it runs.

    Plugins transform the whole model to answer, in a time that grows faster than the model. So an excerpt comes first.

    Args:
        model: the normalized model.
        part: its excerpt; None to ask about the whole model at once.
        graph: the graph of the model.
        device: name of the device.
        core: the Core.

    Returns:
        Whether the device claims to run each node, bool [nodes].

    Raises:
        RunError: the device cannot say what it supports.
    """
    if part is not None:
        try:
            claimed = core.query_model(part.model, device)
        except RuntimeError:
            claimed = {}
        # Around an operation that the device lacks, claims depend on the surroundings: the whole model is needed.
        if all(name in claimed for name in part.names):
            return np.ones(graph.nodes, bool)
    try:
        claimed = core.query_model(model, device)
    except RuntimeError as error:
        raise RunError(f"{device} cannot say what it supports of this model: {one_line(error)}") from error
    return np.array([name in claimed for name in graph.names], bool)


def _equality_key(core: ov.Core, device: str) -> tuple[object, ...]:
    """Returns a key that is equal for devices which run the same operations, so one answer holds for eight equal GPUs.

    An answer costs a pass over the model by the device's plugin: half a second for a language model of 16 layers.
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
    """Tries to compile each of some nodes as a model that has only this node and its constant inputs.

    Compiling happens in another process, see `ov_hsdag.model.compiling`.

    Args:
        model: the normalized model, which is not changed.
        graph: the graph of the model.
        nodes: numbers of the nodes.
        device: name of the device.
        core: the Core.

    Returns:
        Whether each node compiles. False for all nodes if the plugin crashes.

    Raises:
        RunError: no process can be started.
    """
    if not nodes:
        return []
    constant = {graph.names[node] for node in np.flatnonzero(graph.legality.constant)}
    copies = {node.get_friendly_name(): node for node in model.clone().get_ops()}
    models: dict[str, ov.Model] = {}  # model of the first node of each kind
    kinds = []
    for node in (copies[graph.names[number]] for number in nodes):
        sources = [port.get_source_output() for port in node.inputs()]
        live = [source.get_node().get_friendly_name() not in constant for source in sources]
        # Nodes of equal kind get the same kernel from a plugin, as far as that is visible from outside.
        inputs = [f"{source.get_element_type()} {source.get_partial_shape()}" for source in sources]
        kind = f"{node.get_type_info()} {node.get_attributes()} {inputs} {live}"
        if bodies_of(node):  # attributes do not describe bodies, so each such node is a kind of its own
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
    compiles_kind = dict(zip(models, compiles, strict=True))
    return [compiles_kind[kind] for kind in kinds]


def _compiles(here: Here, numbers: Sequence[int], device: str) -> list[bool]:
    """Runs in the compiling process: whether the device compiles each of the models, given by their numbers."""
    compiles = []
    for number in numbers:
        try:
            here.core.compile_model(here.model(number), device, {"CACHE_DIR": ""})  # nobody uses the model later
            compiles.append(True)
        except RuntimeError:
            compiles.append(False)
    return compiles


# Names of OpenVINO's own operation sets: public ones, and those of transformations.
_OWN_VERSIONS = re.compile(r"opset\d+|ie_internal_opset|util")

# Types of OpenVINO's own operations that are in no operation set.
_OWN_TYPES = frozenset(
    {"PagedAttentionExtension", "PagedCausalConv1D", "PagedGatedDeltaNet", "PagedSelectiveSSM", "GatedDeltaNet"}
)


def with_open_ranks(model: ov.Model) -> list[str]:
    """Lists friendly names of operations that read or produce a tensor of open rank."""
    operations = (node for node in model.get_ops() if node.get_type_name() not in ("Parameter", "Result"))
    return [
        node.get_friendly_name()
        for node in (operations if model.is_dynamic() else ())
        if any(port.get_partial_shape().rank.is_dynamic for port in (*node.outputs(), *node.input_values()))
    ]


def inner_types(model: ov.Model) -> dict[str, frozenset[str]]:
    """Finds the types of the operations in the bodies of each If and loop, including nested bodies.

    Returns:
        Types by the friendly name of the If or loop, without Parameters, Results and Constants.
    """
    types_by_name = {}
    for node in model.get_ops():
        inner = {one.get_type_name() for one in _inner_operations(node)}
        if inner:
            types_by_name[node.get_friendly_name()] = frozenset(inner - {"Parameter", "Result", "Constant"})
    return types_by_name


def custom_operations(model: ov.Model) -> list[str]:
    """Lists friendly names of operations that are not OpenVINO's, or have such an operation in a body.

    Their types may have the name of an operation of OpenVINO, such as Clamp; only the operation set differs.
    """
    return [
        node.get_friendly_name()
        for node in model.get_ops()
        if _is_custom(node) or any(map(_is_custom, _inner_operations(node)))
    ]


def _is_custom(node: ov.Node) -> bool:
    """Whether an operation belongs to no operation set of OpenVINO and is none of its other operations."""
    version = str(node.get_type_info().version_id)
    return _OWN_VERSIONS.fullmatch(version) is None and node.get_type_name() not in _OWN_TYPES


def _inner_operations(node: ov.Node) -> Iterator[ov.Node]:
    """Yields the nodes in the bodies of an If or a loop, including nested bodies; nothing for other nodes."""
    for body in bodies_of(node):
        for inner in body.get_ops():
            yield inner
            yield from _inner_operations(inner)


def require_support(
    graph: ComputationGraph,
    groups: NDArray[np.int32],
    supported: NDArray[np.bool_],
    devices: Sequence[str],
    model: ov.Model | None = None,
) -> None:
    """Checks that each operation, and each co-location group, runs on one of the devices.

    Args:
        graph: the graph of the model.
        groups: co-location group of each node, int32 [nodes].
        supported: which devices run which nodes, bool [nodes, devices].
        devices: names of the devices, for the message.
        model: the normalized model, in which the message looks for tensors of open rank; None for no such hint.

    Raises:
        UserError: an operation runs on none of the devices, or no device runs all operations that must share one.
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
