"""The nodes that a compiled model executes, their times, and the operations of the model that they compute.

Plugins fuse operations and insert conversions. In the runtime model every executed node names the operations that it
computes (`originalLayersNames`); an inserted one (a Reorder, a Convert) names none. Times are read from the plugin's
performance counters. They need a copy of the model that is compiled with PERF_COUNT, as counting makes inferences
slower. So there are copies with counters, and plain ones for latencies.
"""

from __future__ import annotations

import contextlib
import math
import re
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ov_hsdag.devices import discovery, virtual
from ov_hsdag.model.graph import NodeKind
from ov_hsdag.model.inputs import TimedInputs
from ov_hsdag.model.replay import Replay
from ov_hsdag.utils.lazy import ov
from ov_hsdag.utils.timing import UNLIMITED, Deadline, OutOfTime

if TYPE_CHECKING:
    from ov_hsdag.model.graph import ComputationGraph

# Longest time for `wait_for`, ms: its argument has 32 bits. It is 23 days.
_LONGEST_MS = 2e9

# Prefix that HETERO gives names of executed nodes, with the number of the submodel.
_SUBMODEL = re.compile(r"subgraph(\d+): ")

# Inferences after which a copy's counters are not used again. Counters are means over all inferences in whole µs, which
# is too coarse for the difference that later inferences make.
_MOST_COUNTED = 16

WARM_UP = 2
"""Inferences of a compiled model before its counters are first read, as the first ones are slow."""


class SingleRequest:
    """Runs and times inferences of one request, one after the other.

    They are started asynchronously, as in pipelines: each submodel runs in the threads of its device, which have to
    wake up. That is part of the time.

    Attributes:
        request: the infer request.
    """

    def __init__(self, compiled: ov.CompiledModel, inputs: TimedInputs) -> None:
        """Creates a request of a compiled model; `inputs` are those of the timed inferences."""
        self.request = compiled.create_infer_request()
        self._replay = Replay(self.request, inputs)
        self._runs = 0

    @property
    def inferences(self) -> int:
        """Number of inferences that were run, including those that only fill states."""
        return self._runs + self._replay.inferences

    def run(self, limit: float = math.inf) -> float:
        """Runs an inference with its inputs and initial states, and returns its time in seconds.

        Args:
            limit: seconds after which the inference is cancelled; inf for no limit.

        Raises:
            RuntimeError: the inference fails.
            OutOfTime: it was cancelled after `limit` seconds.
        """
        inputs = self._replay.next()
        self._runs += 1
        start = time.perf_counter()
        self.request.start_async(inputs)
        if not self.request.wait_for(int(min(limit * 1e3, _LONGEST_MS))):
            with contextlib.suppress(RuntimeError):  # says that it was cancelled
                self.request.cancel()
                self.request.wait()
            raise OutOfTime(f"an inference takes more than {limit:.1f} s")
        self.request.wait()
        return time.perf_counter() - start


@dataclass(eq=False)
class Compiled:
    """A compiled copy of a model."""

    model: ov.CompiledModel
    seconds: float  # time that compiling took, seconds
    counted: int = 0  # number of inferences that its performance counters include


class CompiledModels:
    """A store of compiled copies of one model, so that later phases of a workload need not compile it again.

    A copy is identified by the device string, the placement on HETERO, and whether it has counters. At most one copy is
    kept for each, and only as long as there is room.
    """

    def __init__(self, core: ov.Core, room: int = 0) -> None:
        """Prepares a store.

        Args:
            core: the Core.
            room: number of copies that are kept, as long as half of the memory that is free now stays free.
        """
        self._core, self._room, self._free = core, room, (discovery.free_bytes(core, "CPU") or 0) / 2
        self._kept: dict[tuple[str, bytes, bool], Compiled] = {}

    def keeps(self, device: str, split: bytes = b"", *, counters: bool = False) -> bool:
        """Whether a copy is kept already, with counters that are precise enough.

        Args:
            device: device string that it was compiled for.
            split: identifies a placement of HETERO, such as its bytes; empty for other devices.
            counters: whether it was compiled with PERF_COUNT.

        Returns:
            Whether `get` would return it.
        """
        kept_copy = self._kept.get((device, split, counters))
        return kept_copy is not None and kept_copy.counted <= _MOST_COUNTED

    def get(
        self,
        model: ov.Model,
        device: str,
        split: bytes = b"",
        *,
        counters: bool = False,
        again: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> Compiled:
        """Returns the kept copy for a device and a split, or compiles one.

        Args:
            model: the model, with affinities if `device` is HETERO.
            device: device string to compile for.
            split: identifies a placement of HETERO, such as its bytes; empty for other devices.
            counters: whether to compile with PERF_COUNT.
            again: whether to compile another copy in any case, which is not kept.
            now: clock that measures compiling, in seconds.

        Returns:
            The compiled model.

        Raises:
            RuntimeError: compiling fails.
        """
        key = device, split, counters
        if self.keeps(*key[:2], counters=counters) and not again:
            return self._kept[key]
        if not again:
            self._kept.pop(key, None)  # a copy whose counters are too coarse would only take memory
        begin = now()
        properties = virtual.compile_properties(device, {"PERF_COUNT": True} if counters else {})
        new_copy = Compiled(self._core.compile_model(model, device, properties), now() - begin)
        room = len(self._kept) < self._room and (discovery.free_bytes(self._core, "CPU") or 0) > self._free
        if room and not again:
            self._kept[key] = new_copy
        return new_copy


class TimedModel:
    """A compiled model whose inferences are timed.

    Attributes:
        deadline: budget of all its inferences.
        compiling: seconds that compiling took.
        typical: seconds of a typical inference.
    """

    def __init__(
        self,
        compiled: CompiledModels,
        model: ov.Model,
        device: str,
        inputs: TimedInputs,
        deadline: Deadline,
        split: bytes = b"",
    ) -> None:
        """Compiles the model and runs it.

        Args:
            compiled: store of compiled copies.
            model: the model.
            device: device string to compile for.
            inputs: inputs of the timed inferences.
            deadline: budget of all inferences.
            split: identifies a placement of HETERO.

        Raises:
            RuntimeError: compiling or running fails.
            OutOfTime: the deadline has come.
        """
        self._compiled, self._of = compiled, (model, device, split)
        self._inputs, self.deadline = inputs, deadline
        plain_copy = compiled.get(*self._of, now=deadline.now)
        self.compiling = plain_copy.seconds
        self._request = SingleRequest(plain_copy.model, inputs)
        first = self.run()
        # The first inference is slow, because it allocates memory.
        self.typical = min(first, self.run()) if deadline.left > 4 * first else first

    def counted(self, warm_up: int, *, again: bool) -> tuple[ov.CompiledModel, Counters]:
        """Compiles a copy with counters, or takes the kept one, and runs its warm-up.

        Args:
            warm_up: number of inferences that do not count.
            again: whether to compile another copy in any case.

        Returns:
            The compiled copy, and its counters after the warm-up.

        Raises:
            RuntimeError: compiling or running fails.
            OutOfTime: the deadline has come.
        """
        copy = self._compiled.get(*self._of, counters=True, again=again, now=self.deadline.now)
        return copy.model, Counters(copy, self._inputs, warm_up, self.deadline)

    def compiling_counted(self, *, again: bool) -> float:
        """Estimates the seconds that `counted` needs for compiling: those of the plain copy, or 0 if one is kept."""
        _, device, split = self._of
        return self.compiling if again or not self._compiled.keeps(device, split, counters=True) else 0.0

    def run(self, *, refill: bool = False) -> float:
        """Runs an inference and returns its time in seconds.

        Args:
            refill: whether to run another one before it, which refills caches after other models ran.

        Raises:
            RuntimeError: it fails.
            OutOfTime: the deadline has come.
        """
        if refill:
            self._request.run(self.deadline.left)
        return self._request.run(self.deadline.left)


@dataclass(frozen=True)
class Execution:
    """A node that a plugin executes."""

    name: str  # name of the plugin's node
    # operations of the graph that it computes, in topological order; empty for a node that the plugin inserted
    nodes: tuple[int, ...]
    serves: int  # for an inserted node the operation that it converts for, else -1
    leaving: bool  # whether an inserted node converts the output of `serves` for another submodel, or for the outside
    layout: str  # axes of the first output in memory order, "acdb" for channels last; "" if it is not reported
    us: float  # time in one inference, µs

    @property
    def inserted(self) -> bool:
        """Whether the plugin inserted it."""
        return not self.nodes


class Counters:
    """Runs inferences of a copy with counters, and reads the mean times of its executed nodes, without the warm-up.

    A plugin reports the mean over all inferences so far, in whole µs. Two readings give the mean between them.
    """

    def __init__(
        self, compiled: Compiled, inputs: TimedInputs, warm_up: int = WARM_UP, deadline: Deadline = UNLIMITED
    ) -> None:
        """Runs the warm-up.

        Args:
            compiled: a model that was compiled with PERF_COUNT.
            inputs: inputs of the timed inferences.
            warm_up: inferences that do not count.
            deadline: budget of all inferences.

        Raises:
            RuntimeError: an inference fails.
            OutOfTime: the deadline has come.
        """
        self._compiled, self._earlier = compiled, compiled.counted
        self._single = SingleRequest(compiled.model, inputs)
        self._deadline = deadline
        for _ in range(warm_up):
            self.run()
        self._first = self._read()
        self._before = compiled.counted

    def run(self) -> float:
        """Runs an inference, which is added to the copy's `counted`, and returns its time in seconds.

        Raises:
            RuntimeError: it fails.
            OutOfTime: the deadline has come.
        """
        try:
            return self._single.run(self._deadline.left)
        finally:
            self._compiled.counted = self._earlier + self._single.inferences

    def us(self) -> dict[tuple[int, str], float]:
        """Computes the mean times of executed nodes since the warm-up.

        Returns:
            µs of each executed node, by number of the submodel (0 without HETERO) and the node's name.

        Raises:
            ValueError: no inference was run since the warm-up.
        """
        last, whole = self._read(), self._compiled.counted
        runs = whole - self._before
        if runs == 0:
            raise ValueError("no inference was run since the warm-up")
        first, before = self._first, self._before
        return {key: max(whole * mean - before * first.get(key, 0.0), 0.0) / runs for key, mean in last.items()}

    def _read(self) -> dict[tuple[int, str], float]:
        """Reads the mean times over all inferences so far, µs, with the keys of `us`."""
        mean_us: dict[tuple[int, str], float] = {}
        for item in self._single.request.profiling_info:
            if item.status.name != "EXECUTED":
                continue
            match = _SUBMODEL.match(item.node_name)
            key = (int(match[1]) if match else 0, item.node_name[match.end() :] if match else item.node_name)
            # Plugins cut off fractions of µs, which are half a µs on average.
            mean_us[key] = mean_us.get(key, 0.0) + item.real_time.total_seconds() * 1e6 + 0.5
        return mean_us


@dataclass(frozen=True, eq=False)
class Executions:
    """All executed nodes of a compiled model."""

    items: tuple[Execution, ...]  # executed nodes that compute operations or serve one, see `Execution.serves`
    # time in one inference of the executed nodes that neither compute nor serve an operation of the graph, µs
    unexplained_us: float

    def alike(self, graph: ComputationGraph) -> Executions:
        """Replaces the time of each node by the median of all nodes that do the same work; returns a copy.

        These execute operations of equal types and shapes, and have the same layout of their outputs. The layers of a
        network repeat, and differences between their times come from other programs.
        """
        kinds: dict[object, list[int]] = {}
        for number, item in enumerate(self.items):
            served = () if item.serves < 0 else (_cost_key(graph, item.serves), item.leaving)
            kind = tuple(_cost_key(graph, node) for node in item.nodes), served, item.layout
            kinds.setdefault(kind, []).append(number)
        us = {
            number: statistics.median(self.items[other].us for other in numbers)
            for numbers in kinds.values()
            for number in numbers
        }
        return replace(self, items=tuple(replace(item, us=us[number]) for number, item in enumerate(self.items)))

    @classmethod
    def of(cls, compiled: ov.CompiledModel, graph: ComputationGraph, us: Mapping[tuple[int, str], float]) -> Executions:
        """Maps executed nodes to operations of the compiled model's graph.

        Args:
            compiled: the compiled model.
            graph: the graph of the model.
            us: times of `Counters.us`.

        Returns:
            The executed nodes. Nodes that the plugin does not execute but that name operations have a time of 0.
        """
        index = {name: number for number, name in enumerate(graph.names) if graph.kinds[number] != NodeKind.CONSTANT}
        nodes = _runtime_nodes(compiled, index)
        submodels = {name: submodel for submodel, name in us}
        by_name: dict[str, float] = {}
        for (_, name), value in us.items():
            by_name[name] = by_name.get(name, 0.0) + value
        items, unexplained = [], 0.0
        for name, value in by_name.items():
            node = nodes.get(name) or _RuntimeNode((index[name],) if name in index else (), "", [], [])
            serves, leaving = (
                (-1, False) if node.originals or name not in nodes else _served_operation(name, nodes, submodels)
            )
            if node.originals or serves >= 0:
                items.append(Execution(name, node.originals, serves, leaving, node.layout, value))
            else:
                unexplained += value
        views = [
            Execution(name, node.originals, -1, False, node.layout, 0.0)
            for name, node in nodes.items()
            if node.originals and name not in by_name
        ]
        return cls(tuple(_with_unnamed_operations([*items, *views], graph)), unexplained)


def _with_unnamed_operations(items: list[Execution], graph: ComputationGraph) -> list[Execution]:
    """Assigns operations that no executed node names to the node that computes their consumer.

    A plugin names a matrix product with a bias after the Add, and merged equal operations after one of them.

    Args:
        items: the executed nodes; changed in place.
        graph: the graph of the model.

    Returns:
        `items`.
    """
    home: dict[int, int] = {}
    for number, item in enumerate(items):
        for node in item.nodes:
            home.setdefault(node, number)
    consumers: dict[int, list[int]] = {}
    for source, target in zip(graph.input_source.tolist(), graph.input_node.tolist(), strict=True):
        consumers.setdefault(source, []).append(target)
    added: dict[int, list[int]] = {}
    for node in reversed(range(graph.nodes)):
        if node in home or graph.kinds[node] != NodeKind.OP:
            continue
        executing = next((home[target] for target in consumers.get(node, ()) if target in home), None)
        if executing is not None and items[executing].nodes:
            home[node] = executing
            added.setdefault(executing, []).append(node)
    for number, nodes in added.items():
        items[number] = replace(items[number], nodes=tuple(sorted((*items[number].nodes, *nodes))))
    return items


def _cost_key(graph: ComputationGraph, node: int) -> tuple[object, ...]:
    """A key that is equal for operations that should take equally long: type, work, shapes and element types."""
    inputs = graph.input_output[graph.input_ptr[node] : graph.input_ptr[node + 1]]
    outputs = range(graph.output_ptr[node], graph.output_ptr[node + 1])
    tensors = [(graph.output_shapes[output], graph.output_types[output]) for output in (*inputs, *outputs)]
    return graph.types[node], float(graph.flops[node]), len(inputs), tuple(tensors)


@dataclass
class _RuntimeNode:
    """A node of the runtime model."""

    originals: tuple[int, ...]  # operations of the graph that it names, ascending; empty for an inserted node
    layout: str  # layout of its first output, see `Execution.layout`
    inputs: list[str]  # names of the nodes that it reads
    consumers: list[str]  # names of the nodes that read it


def _runtime_nodes(compiled: ov.CompiledModel, index: Mapping[str, int]) -> dict[str, _RuntimeNode]:
    """Reads the runtime model of a compiled model, without its constants.

    Args:
        compiled: the compiled model.
        index: node number in the graph, by name.

    Returns:
        The nodes by name, in topological order.
    """
    nodes: dict[str, _RuntimeNode] = {}
    for op in compiled.get_runtime_model().get_ordered_ops():
        info = {key: str(getattr(value, "value", value)) for key, value in op.get_rt_info().items()}
        name = op.get_friendly_name()
        if info.get("layerType") == "Const":
            continue
        originals = {index[part] for part in info.get("originalLayersNames", "").split(",") if part in index}
        if not originals and name in index:
            originals = {index[name]}
        inputs = [value.get_node().get_friendly_name() for value in op.input_values()]
        layout = info.get("outputLayouts", "").partition(",")[0]
        nodes[name] = _RuntimeNode(tuple(sorted(originals)), layout, inputs, [])
    for name, node in nodes.items():
        for source in node.inputs:
            if source in nodes:
                nodes[source].consumers.append(name)
    return nodes


def _served_operation(name: str, nodes: Mapping[str, _RuntimeNode], submodels: Mapping[str, int]) -> tuple[int, bool]:
    """Finds the operation that an inserted node converts a tensor for.

    It is the nearest operation behind the node in its submodel, else the nearest one before it there; if there is none,
    those of other submodels are tried in the same order.

    Args:
        name: name of the inserted node.
        nodes: nodes of the runtime model, by name.
        submodels: number of the submodel of executed nodes, by name.

    Returns:
        serves: the operation's node in the graph, -1 if there is none.
        leaving: whether the inserted node converts the output of that operation, and not its input.
    """
    own_submodel = submodels.get(name, 0)

    def nearest(step: str, same: bool) -> int:
        """Searches breadth-first along `step` ("inputs" or "consumers"), within the submodel if `same`; -1 for none."""
        front, seen = [name], {name}
        while front:
            following = [other for at in front for other in getattr(nodes[at], step) if other in nodes]
            front = [other for other in dict.fromkeys(following) if other not in seen]
            seen.update(front)
            if same:
                front = [other for other in front if submodels.get(other, own_submodel) == own_submodel]
            # A Result stands for the outside, so the node before it is served.
            originals = [nodes[other].originals for other in front if nodes[other].originals and nodes[other].consumers]
            if originals:
                return originals[0][-1 if step == "inputs" else 0]
        return -1

    for step, same in (("consumers", True), ("inputs", True), ("consumers", False), ("inputs", False)):
        served = nearest(step, same)
        if served >= 0:
            return served, step == "inputs"
    return -1, False
