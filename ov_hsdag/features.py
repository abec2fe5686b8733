"""What a policy sees of a placement problem: arrays over coarse groups, edges, and devices.

All features are ratios, shares or logarithms, so that what is learned on one model and machine carries over to others:
multiplying every time or every tensor's size by a constant changes no feature but those that compare flops with bytes.
Times in logarithms are clipped; nothing is ever infinite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag import _native
from ov_hsdag.graph import ComputationGraph, NodeKind
from ov_hsdag.problem import PlacementProblem
from ov_hsdag.stretches import Stretches, all_stretches, best_stretches

# Changes with the meaning or the number of features; a policy fits one version.
FEATURE_VERSION = 2

# Operation types by what they do; each line is one feature. Types in none of them count as the last one.
_TYPE_FAMILIES: tuple[tuple[str, ...], ...] = (
    ("Parameter",),
    ("Result",),
    ("Convolution", "DeformableConvolution", "BinaryConvolution"),
    ("GroupConvolution",),
    ("ConvolutionBackpropData", "GroupConvolutionBackpropData"),
    ("MatMul", "FullyConnected"),
    ("Einsum",),
    ("ScaledDotProductAttention", "PagedAttentionExtension"),
    ("LSTMSequence", "GRUSequence", "RNNSequence"),
    ("LSTMCell", "GRUCell", "RNNCell", "AUGRUCell"),
    ("Add", "Subtract"),
    ("Multiply", "Divide"),
    ("Power", "Sqrt", "Exp", "Log", "Erf", "SquaredDifference"),
    ("Relu", "PRelu", "Clamp", "Elu", "Selu"),
    ("Sigmoid", "HSigmoid", "HardSigmoid", "Tanh"),
    ("Gelu", "Swish", "HSwish", "Mish", "SoftPlus", "SoftSign"),
    ("Softmax", "LogSoftmax"),
    ("MVN", "RMS", "BatchNormInference", "LRN", "NormalizeL2"),
    ("GroupNormalization",),
    ("MaxPool", "AdaptiveMaxPool"),
    ("AvgPool", "AdaptiveAvgPool"),
    ("ReduceMean", "ReduceSum", "ReduceL1", "ReduceL2", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceLogicalAnd"),
    ("Concat",),
    ("Split", "VariadicSplit"),
    ("Reshape", "Squeeze", "Unsqueeze"),
    ("Transpose",),
    ("Slice", "StridedSlice", "Pad", "Roll", "CumSum", "ReverseSequence"),
    ("Gather", "GatherND", "GatherElements"),
    ("ScatterUpdate", "ScatterNDUpdate", "ScatterElementsUpdate"),
    ("EmbeddingBagOffsetsSum", "EmbeddingBagPackedSum", "EmbeddingSegmentsSum", "OneHot"),
    ("Interpolate", "GridSample", "ROIAlign", "ROIPooling", "PSROIPooling"),
    (
        "ShuffleChannels",
        "DepthToSpace",
        "SpaceToDepth",
        "BatchToSpace",
        "SpaceToBatch",
        "Col2Im",
        "ExtractImagePatches",
    ),
    ("Broadcast", "Tile", "Range", "Eye"),
    ("Convert", "ConvertLike", "FakeQuantize", "FakeConvert"),
    ("Select", "Maximum", "Minimum", "Abs", "Negative", "Sign", "Floor", "Ceiling", "Round", "Mod", "FloorMod"),
    ("Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual", "LogicalAnd", "LogicalOr", "LogicalNot"),
    ("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"),
    ("Sin", "Cos", "Tan", "DFT", "IDFT", "RDFT", "IRDFT", "STFT"),
    ("TopK", "NonZero", "Unique", "SearchSorted", "Bucketize"),
    ("NonMaxSuppression", "MulticlassNms", "MatrixNms", "DetectionOutput", "PriorBox", "Proposal"),
    ("ShapeOf",),
    ("ReadValue", "Assign"),
    ("If", "Loop", "TensorIterator"),
    ("RandomUniform", "Multinomial"),
)
_TYPE_COLUMN = {name: column for column, names in enumerate(_TYPE_FAMILIES) for name in names}
_TYPE_COLUMNS = len(_TYPE_FAMILIES) + 1

# Dimensions of the output shape that are seen, counted from the last.
_DIMENSIONS = 5

# Logarithms of ratios end at a factor of e^8, some 3,000.
_CLIP = 8.0

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class FeatureSet:
    """Which features of coarse groups there are; without one, its columns are gone.

    output_shape: shape of the group's output. node_id: place in the topological order. structure: degrees, fractal
    dimension, closeness. ours: what HSDAG's paper lacks: costs, bytes, weights, depth (and all of `pair_x`, `device_x`
    and `edge_x`, which are zero without it, support and the objective aside).
    """

    output_shape: bool = True
    node_id: bool = True
    structure: bool = True
    ours: bool = True


@dataclass(frozen=True, eq=False)
class PolicyInput:
    """Features of one placement problem.

    Attributes:
        node_x: features of coarse groups, float32 [coarse, F].
        edge_index: producing and consuming coarse group of each edge, int64 [2, edges]; each pair once, no loops.
        edge_x: features of edges, float32 [edges, FE].
        pair_x: features of each group on each device, float32 [coarse, devices, FP].
        device_x: features of devices, float32 [devices, FD].
        coarse: coarse group of each legality group, int32 [groups].
    """

    node_x: NDArray[np.float32]
    edge_index: NDArray[np.int64]
    edge_x: NDArray[np.float32]
    pair_x: NDArray[np.float32]
    device_x: NDArray[np.float32]
    coarse: NDArray[np.int32]


def policy_input(problem: PlacementProblem, names: FeatureSet | None = None, threads: int = 1) -> PolicyInput:
    """Features of a problem.

    Args:
        problem: any problem in which each group has a device that supports it.
        names: which features; all by default.
        threads: threads for the structural features.
    """
    names = names or FeatureSet()
    view = _View.of(problem)
    structure = _native.structure_features(view.size, view.edge_index, threads=threads)
    position = structure["position"] / max(view.size - 1, 1)

    columns = [_types(problem.graph, view)]
    if names.output_shape:
        columns.append(_output_shapes(problem.graph, view))
    if names.node_id:
        columns.append(position[:, None])
    if names.structure:
        columns.append(_structure(structure, view.size))
    if names.ours:
        columns.append(_work(problem, view, structure))
    turns = _Turns.of(problem, view, structure["position"])
    edge_x, pair_x, device_x = _edges(view, position, turns), _pairs(view, turns), _devices(problem, view, turns)
    if not names.ours:
        edge_x, pair_x, device_x = (
            np.zeros_like(edge_x),
            np.where(np.arange(pair_x.shape[2]) == _SUPPORT_COLUMN, pair_x, 0),
            np.where(np.arange(device_x.shape[1]) < _PLAIN_COLUMNS, device_x, 0),
        )
    return PolicyInput(
        node_x=np.concatenate(columns, axis=1).astype(np.float32),
        edge_index=view.edge_index,
        edge_x=edge_x.astype(np.float32),
        pair_x=pair_x.astype(np.float32),
        device_x=device_x.astype(np.float32),
        coarse=problem.coarse,
    )


@dataclass(frozen=True, eq=False)
class _View:
    """A problem by coarse groups.

    node: coarse group of each node [nodes]. us: time, µs, inf without support [size, D]. best: the least of each row.
    Tensors between coarse groups: tensor_bytes [T], producer [T]; received tensor and receiving group [R] of each
    transfer that may be. edge_of: the edge of each of those [R]. into, out_of: mean time to bring a device what a group
    receives from other devices, and to take away what it sends [size, D].
    """

    size: int
    node: NDArray[np.int32]
    us: Floats
    best: Floats
    tensor_bytes: Floats
    producer: NDArray[np.int32]
    received: NDArray[np.int64]
    receiver: NDArray[np.int32]
    edge_index: NDArray[np.int64]
    edge_of: NDArray[np.int64]
    mean_transfer: Floats
    into: Floats
    out_of: Floats

    @classmethod
    def of(cls, problem: PlacementProblem) -> _View:
        coarse = problem.coarse
        size = int(coarse.max()) + 1
        devices = len(problem.devices)
        # Infinite where any group is: the sum is, too.
        us = np.zeros((size, devices))
        np.add.at(us, coarse, problem.group_us)

        tensors = problem.tensors
        of_consumer = np.repeat(np.arange(len(tensors)), np.diff(tensors.consumer_ptr))
        producer, receiver = coarse[tensors.source], coarse[tensors.consumers]
        outside = producer[of_consumer] != receiver
        # A tensor with several consumers in one coarse group goes there once.
        keys = np.unique(of_consumer[outside].astype(np.int64) * size + receiver[outside])
        received, receiver = keys // size, (keys % size).astype(np.int32)
        pairs, edge_of = np.unique(producer[received].astype(np.int64) * size + receiver, return_inverse=True)

        sent = np.zeros(len(tensors), bool)
        sent[received] = True
        tensor_bytes = tensors.bytes.astype(np.float64)
        others = max(devices - 1, 1)
        fixed, rate = _off_diagonal(problem.transfer_us), _off_diagonal(problem.transfer_us_per_byte)

        def bring(group: NDArray[np.int32], amount: Floats, axis: int) -> Floats:
            count, size_in = np.bincount(group, minlength=size), np.bincount(group, amount, size)
            return (count[:, None] * fixed.sum(axis) + size_in[:, None] * rate.sum(axis)) / others

        pairs_of_devices = max(devices * (devices - 1), 1)
        return cls(
            size=size,
            node=coarse[problem.groups],
            us=us,
            best=us.min(axis=1),
            tensor_bytes=tensor_bytes,
            producer=producer,
            received=received,
            receiver=receiver,
            edge_index=np.stack([pairs // size, pairs % size]).astype(np.int64),
            edge_of=edge_of,
            mean_transfer=(fixed.sum() + tensor_bytes * rate.sum()) / pairs_of_devices,
            into=bring(receiver, tensor_bytes[received], 0),
            out_of=bring(producer[sent], tensor_bytes[sent], 1),
        )


def _off_diagonal(matrix: Floats) -> Floats:
    return np.where(np.eye(len(matrix), dtype=bool), 0.0, matrix)


def _log(ratio: Any) -> Floats:
    """Logarithm of a ratio, clipped and scaled to [-1, 1]; 0 / anything is the lower end."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(np.clip(np.log(ratio), -_CLIP, _CLIP), nan=0.0) / _CLIP


def _share(part: Any, whole: Any) -> Floats:
    """part / whole, 0 where there is no whole."""
    return np.asarray(part, np.float64) / np.maximum(np.asarray(whole, np.float64), 1e-30)


def _sum(view: _View, values: NDArray[Any]) -> Floats:
    """Sums of nodes' values by coarse group."""
    return np.bincount(view.node, values, view.size).astype(np.float64)


def _types(graph: ComputationGraph, view: _View) -> Floats:
    """Share of each family of types among a group's nodes, constants aside, [size, families + 1]."""
    seen = graph.kinds != NodeKind.CONSTANT
    column = np.fromiter((_TYPE_COLUMN.get(name, _TYPE_COLUMNS - 1) for name in graph.types), np.int64, graph.nodes)
    counts = np.bincount(
        view.node[seen].astype(np.int64) * _TYPE_COLUMNS + column[seen], None, view.size * _TYPE_COLUMNS
    )
    table = counts.reshape(view.size, _TYPE_COLUMNS)
    return _share(table, table.sum(axis=1, keepdims=True))


def _output_shapes(graph: ComputationGraph, view: _View) -> Floats:
    """Logarithms of the last dimensions of a group's last operation's first output, padded with 0, and the rank."""
    with_output = np.diff(graph.output_ptr) > 0
    last = np.full(view.size, -1, np.int64)
    for chosen in (with_output, with_output & (graph.kinds != NodeKind.CONSTANT)):
        # Later nodes overwrite earlier ones, and nodes that compute overwrite constants.
        last[view.node[chosen]] = np.flatnonzero(chosen)
    result = np.zeros((view.size, _DIMENSIONS + 1))
    for group, node in enumerate(last.tolist()):
        if node < 0:
            continue
        shape = graph.output_shapes[graph.output_ptr[node]]
        seen = shape[-_DIMENSIONS:]
        result[group, _DIMENSIONS - len(seen) : _DIMENSIONS] = seen
        result[group, _DIMENSIONS] = len(shape) / 8
    result[:, :_DIMENSIONS] = np.log2(1 + result[:, :_DIMENSIONS]) / 16
    return result


def _structure(structure: dict[str, Any], size: int) -> Floats:
    """Degrees, fractal dimension, closeness (also on a log scale: it spans orders of magnitude), [size, 5]."""
    closeness = structure["closeness"]
    return np.stack(
        [
            np.log2(1 + structure["in_degree"]) / 4,
            np.log2(1 + structure["out_degree"]) / 4,
            structure["fractal_dimension"] / 2,
            closeness,
            _log(closeness * size / 4),
        ],
        axis=1,
    )


def _work(problem: PlacementProblem, view: _View, structure: dict[str, Any]) -> Floats:
    """Times, bytes and places that the paper's features lack, [size, …]."""
    graph = problem.graph
    total = view.best.sum()
    flops, weights = _sum(view, graph.flops), _sum(view, graph.weight_bytes)
    bytes_in = np.bincount(view.receiver, view.tensor_bytes[view.received], view.size)
    sent = np.zeros(len(view.tensor_bytes), bool)
    sent[view.received] = True
    bytes_out = np.bincount(view.producer[sent], view.tensor_bytes[sent], view.size)
    mean_bytes = view.tensor_bytes[sent].mean() if sent.any() else 1.0
    longest = max(int((structure["depth"] + structure["height"]).max(initial=1)), 1)
    done, cut = _progress(view, structure["position"])
    return np.stack(
        [
            _share(view.best, total),
            _log(_share(view.best * view.size, total)),
            _share(weights, weights.sum()),
            _log(_share(weights * view.size, weights.sum())),
            _log(_share(bytes_in, mean_bytes)),
            _log(_share(bytes_out, mean_bytes)),
            _log(_share(flops * view.size, flops.sum())),
            _log(_share(flops, bytes_in + bytes_out + weights)),
            np.log2(1 + _sum(view, graph.kinds != NodeKind.CONSTANT)) / 8,
            structure["depth"] / longest,
            structure["height"] / longest,
            done,
            cut[0],
            cut[1],
            np.isfinite(view.us).mean(axis=1),
            _log(_share(view.into.mean(axis=1) + view.out_of.mean(axis=1), view.best)),
        ],
        axis=1,
    )


def _progress(view: _View, position: NDArray[np.int32]) -> tuple[Floats, tuple[Floats, Floats]]:
    """Share of the work up to each group, and what a cut of the topological order right behind it would cost.

    The cost is the mean time of the transfers across, as a logarithm: to all of the work, and to an average cut.
    """
    order = np.argsort(position)
    done = np.empty(view.size)
    done[order] = _share(np.cumsum(view.best[order]), view.best.sum())
    first, last = position[view.producer].astype(np.int64), np.zeros(len(view.producer), np.int64)
    np.maximum.at(last, view.received, position[view.receiver])
    forward = last > first
    change = np.bincount(first[forward], view.mean_transfer[forward], view.size + 1)
    change -= np.bincount(last[forward], view.mean_transfer[forward], view.size + 1)
    crossing = np.maximum(np.cumsum(change)[:-1], 0.0)
    cut = crossing[position]
    return done, (_log(_share(cut, view.best.sum())), _log(_share(cut, crossing.mean())))


@dataclass(frozen=True, eq=False)
class _Turns:
    """Who would have what if devices took turns along the topological order (`ov_hsdag.stretches`).

    Attributes:
        place: middle of each group in the work done in topological order, 0 … 1 [size].
        begin, end: each device's stretch, likewise [D]; equal where it has none.
        inside: groups of each device's stretch, bool [size, D].
        turn: place of each device in the sequence [D].
        value: estimate of the objective, µs.
        room: what a device's memory holds of what the model needs, at most 1 [D].
    """

    place: Floats
    begin: Floats
    end: Floats
    inside: NDArray[np.bool_]
    turn: NDArray[np.int64]
    value: float
    room: Floats

    @classmethod
    def of(cls, problem: PlacementProblem, view: _View, position: NDArray[np.int32]) -> _Turns:
        order = np.argsort(position)
        needs = _Needs.of(problem, view)
        part = _share(needs.us, needs.us.sum(axis=0)).mean(axis=1)[order]
        done = np.concatenate([[0.0], _share(part.cumsum(), part.sum())])
        found = best_stretches(len(problem.devices), _stretches(problem, view, needs, position))
        place = np.empty(view.size)
        place[order] = (done[1:] + done[:-1]) / 2
        return cls(
            place=place,
            begin=done[found.begin],
            end=done[found.end],
            inside=_inside(position, found),
            turn=found.turn,
            value=found.value,
            room=np.minimum(needs.room, 1.0),
        )


def contiguous(
    problem: PlacementProblem, shares: Sequence[float], sequences: int, orders: int = 0, seed: int = 0
) -> NDArray[np.uint8]:
    """Placements in which devices take turns along topological orders, uint8 [placements, groups].

    Args:
        problem: any problem in which each group has a device that supports it.
        shares: of the memory that devices have; how much is needed is an estimate.
        sequences: of the devices, at most so many, the best ones for each order and share.
        orders: besides the order of the features, so many random ones that finish a branch before they begin another:
            where branches are independent, each order has other splits.
        seed: of these.
    """
    view = _View.of(problem)
    needs = _Needs.of(problem, view)
    generator = np.random.default_rng(seed)
    positions = [_native.structure_features(view.size, view.edge_index)["position"]]
    positions += [_branch_by_branch(view, generator) for _ in range(orders)]
    found = [
        _inside(position, stretches).argmax(axis=1)[problem.coarse]
        for position in positions
        for share in shares
        for stretches in _stretches(problem, view, needs, position, share)[:sequences]
    ]
    placements = np.stack(found).astype(np.uint8)
    instead = problem.group_us.argmin(axis=1).astype(np.uint8)
    return np.where(problem.group_supported[np.arange(problem.group_count), placements], placements, instead)


def _branch_by_branch(view: _View, generator: np.random.Generator) -> NDArray[np.int32]:
    """Place of each group in a random topological order, from the outputs back: depth first, inputs in random order."""
    inputs: list[list[int]] = [[] for _ in range(view.size)]
    shuffled = generator.permutation(view.edge_index.shape[1])
    for producer, consumer in view.edge_index[:, shuffled].T.tolist():
        inputs[consumer].append(producer)
    ends = np.setdiff1d(np.arange(view.size), view.edge_index[0])
    position = np.full(view.size, -1, np.int32)
    opened = np.zeros(view.size, bool)
    number = 0
    # All groups follow the ends, in case of a cycle among groups, which has none.
    for end in [*generator.permutation(ends).tolist(), *range(view.size)]:
        stack = [end]
        while stack:
            at = stack[-1]
            if not opened[at]:
                opened[at] = True
                stack += [group for group in inputs[at] if not opened[group]]
                continue
            stack.pop()
            if position[at] < 0:
                position[at] = number
                number += 1
    return position


@dataclass(frozen=True, eq=False)
class _Needs:
    """What stretches of any order are made of.

    us: times with guesses for what a device lacks, where the fastest does it, for transfers in and out, µs [size, D].
    weights, largest: of each group, the first as a share of what the model needs on one device [size]; `_largest`.
    room: what of that need each device has memory for, inf where there is no limit [D].
    """

    us: Floats
    weights: Floats
    largest: Floats
    room: Floats

    @classmethod
    def of(cls, problem: PlacementProblem, view: _View) -> _Needs:
        need = max(float(problem.evaluate(problem.single(0)).memory_bytes[0].sum()), 1.0)
        return cls(
            us=np.where(np.isfinite(view.us), view.us, view.best[:, None] + view.into + view.out_of),
            weights=_sum(view, problem.graph.weight_bytes) / need,
            largest=_largest(problem.graph, view),
            room=np.where(problem.memory_bytes >= 0, problem.memory_bytes / need, np.inf),
        )


def _stretches(
    problem: PlacementProblem, view: _View, needs: _Needs, position: NDArray[np.int32], share: float = 1.0
) -> list[Stretches]:
    """Stretches of the topological order for each sequence of the devices. share: of the room that may be filled."""
    order = np.argsort(position)
    first, last = position[view.producer].astype(np.int64), np.zeros(len(view.producer), np.int64)
    np.maximum.at(last, view.received, position[view.receiver])
    forward = last > first
    count, size = (
        _crossing(amount[forward], first[forward], last[forward], view.size)
        for amount in (np.ones(len(first)), view.tensor_bytes)
    )
    # Roughly: what crosses the places around a group, or an operation's inputs and outputs inside it. All of the model
    # needs what its weights do not.
    alive = np.maximum(needs.largest[order], np.maximum(size[:-1], size[1:]))
    alive *= (1 - needs.weights.sum()) / max(alive.max(), 1e-30)
    return all_stretches(
        needs.us[order],
        (count, size),
        (problem.transfer_us, problem.transfer_us_per_byte),
        problem.submodel_us,
        needs.weights[order],
        alive,
        share * needs.room,
        problem.objective == "throughput",
    )


def _inside(position: NDArray[np.int32], stretches: Stretches) -> NDArray[np.bool_]:
    """Groups of each device's stretch, bool [size, D]."""
    return (position[:, None] >= stretches.begin) & (position[:, None] < stretches.end)


def _largest(graph: ComputationGraph, view: _View) -> Floats:
    """Bytes of the largest operation's inputs and outputs, constants aside, of each group [size]."""
    moved = np.where(graph.kinds[graph.output_node] == NodeKind.CONSTANT, 0, graph.output_bytes).astype(np.float64)
    of_node = np.bincount(graph.output_node, moved, graph.nodes)
    of_node += np.bincount(graph.input_node, moved[graph.input_output], graph.nodes)
    largest = np.zeros(view.size)
    np.maximum.at(largest, view.node, of_node)
    return largest


def _crossing(amount: Floats, first: NDArray[np.int64], last: NDArray[np.int64], size: int) -> Floats:
    """Sums of what crosses each place of an order from `first` to `last`, [size + 1]."""
    change = np.bincount(first + 1, amount, size + 2) - np.bincount(last + 1, amount, size + 2)
    return np.maximum(np.cumsum(change)[: size + 1], 0.0)


def _alone(view: _View) -> Floats:
    """Time of the model on each device, µs [D]; where it has to leave work to others, they are as fast as they can."""
    return np.where(np.isfinite(view.us), view.us, view.best[:, None]).sum(axis=0)


def _edges(view: _View, position: Floats, turns: _Turns) -> Floats:
    """Features of edges, [edges, 7]."""
    edges = view.edge_index.shape[1]
    moved = np.bincount(view.edge_of, view.tensor_bytes[view.received], edges)
    us = np.bincount(view.edge_of, view.mean_transfer[view.received], edges)
    consumers = np.bincount(view.received, minlength=len(view.tensor_bytes))
    shared = np.zeros(edges)
    np.maximum.at(shared, view.edge_of, consumers[view.received])
    source, target = view.edge_index
    return np.stack(
        [
            _log(_share(moved, moved.mean() if edges else 1.0)),
            _log(_share(us, view.best.mean())),
            _log(_share(us, view.best[source] + view.best[target])),
            _share(us, view.best.sum()).clip(0, 1),
            np.log2(shared + 1e-30).clip(0) / 4,
            position[target] - position[source],
            (turns.inside[source] == turns.inside[target]).all(axis=1),
        ],
        axis=1,
    )


# Columns of `pair_x` and `device_x` that hold without costs, too.
_SUPPORT_COLUMN = 0
_PLAIN_COLUMNS = 5


def _squash(distance: Floats) -> Floats:
    """Distances of -1 … 1 with most of the range for the small ones."""
    return np.tanh(10 * distance)


def _pairs(view: _View, turns: _Turns) -> Floats:
    """Features of groups on devices, [size, D, 13]; unsupported pairs have the worst values."""
    supported = np.isfinite(view.us)
    us = np.where(supported, view.us, np.inf)
    total = view.best.sum()
    devices = us.shape[1]
    elsewhere = np.stack(
        [np.delete(us, d, axis=1).min(axis=1) if devices > 1 else view.best for d in range(devices)], axis=1
    )
    moving = view.into + view.out_of
    with np.errstate(invalid="ignore"):
        gain = np.nan_to_num((elsewhere - us) / (np.abs(elsewhere - us) + moving + 1e-30), nan=0.0)
    begun, left = turns.place[:, None] - turns.begin, turns.end - turns.place[:, None]
    # Infinite over infinite above: support decides.
    gain = np.where(np.isfinite(elsewhere), gain, 1.0)
    gain = np.where(supported, gain, -1.0)
    return np.stack(
        [
            supported.astype(np.float64),
            _log(_share(us, view.best[:, None])),
            _log(_share(us * view.size, total)),
            np.clip(_share(us, total), 0, 1),
            _log(_share(view.into, view.best[:, None])),
            _log(_share(view.out_of, view.best[:, None])),
            _log(_share(moving * view.size, total)),
            gain,
            begun,
            left,
            _squash(begun),
            _squash(left),
            turns.inside.astype(np.float64),
        ],
        axis=2,
    )


def _devices(problem: PlacementProblem, view: _View, turns: _Turns) -> Floats:
    """Features of devices, [D, 20]."""
    devices = len(problem.devices)
    alone = _alone(view)
    total = view.best.sum()
    limited = problem.memory_bytes >= 0
    ones = np.ones(devices)
    return np.stack(
        [
            (problem.objective == "throughput") * ones,
            np.arange(devices) == 0,
            np.arange(devices) / 4,
            ones / devices,
            np.isfinite(view.us).mean(axis=0),
            _share(alone, alone.sum()),
            _log(_share(alone, alone.min())),
            _log(_share(total, alone)),
            _log(_share(view.into.sum(axis=0), total)),
            _log(_share(view.out_of.sum(axis=0), total)),
            _log(_share(problem.submodel_us, total)),
            _log(_share(problem.submodel_us, view.mean_transfer.mean() if len(view.mean_transfer) else 1.0)),
            limited,
            turns.room,
            np.minimum(turns.room.sum(), 3.0) / 3 * ones,
            _share(_share(1.0, alone), _share(1.0, alone).sum()),
            turns.begin,
            turns.end,
            turns.turn / 4,
            _log(_share(turns.value, alone)),
        ],
        axis=1,
    )
