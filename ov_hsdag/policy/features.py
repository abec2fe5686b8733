"""The features of a placement problem for the policy: arrays over coarse groups, edges and devices.

Nodes of the network's graph are coarse groups (`coarse_groups`), which are sets of co-location groups. In this file a
"group" is a coarse group, `size` is their number, and D is the number of devices; only the axis [groups] is that of
co-location groups. A pair is a group on a device.

All features are ratios, shares or logarithms, so that a policy learned on one model and machine can be used for others.
Multiplying all times, or all tensors' sizes, by a constant changes only features that compare flops with bytes.
Logarithms of times are clipped, so no feature is infinite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag import _native
from ov_hsdag.model.graph import ComputationGraph, Floats, NodeKind
from ov_hsdag.placers.contiguous import CoarsePartitions, Contiguous
from ov_hsdag.problem.coarse import CoarseView, crossing, off_diagonal, share
from ov_hsdag.problem.problem import PlacementProblem

# Version of the features; it changes with their meaning or number. Version 3 has the features of 2, and further ones of
# pairs behind them.
FEATURE_VERSION = 3

# Families of operation types: each line is one feature. Types in no family count as one further feature, the last.
_TYPE_FAMILIES = """
Parameter
Result
Convolution DeformableConvolution BinaryConvolution
GroupConvolution
ConvolutionBackpropData GroupConvolutionBackpropData
MatMul FullyConnected
Einsum
ScaledDotProductAttention PagedAttentionExtension
LSTMSequence GRUSequence RNNSequence
LSTMCell GRUCell RNNCell AUGRUCell
Add Subtract
Multiply Divide
Power Sqrt Exp Log Erf SquaredDifference
Relu PRelu Clamp Elu Selu
Sigmoid HSigmoid HardSigmoid Tanh
Gelu Swish HSwish Mish SoftPlus SoftSign
Softmax LogSoftmax
MVN RMS BatchNormInference LRN NormalizeL2
GroupNormalization
MaxPool AdaptiveMaxPool
AvgPool AdaptiveAvgPool
ReduceMean ReduceSum ReduceL1 ReduceL2 ReduceProd ReduceMax ReduceMin ReduceLogicalAnd
Concat
Split VariadicSplit
Reshape Squeeze Unsqueeze
Transpose
Slice StridedSlice Pad Roll CumSum ReverseSequence
Gather GatherND GatherElements
ScatterUpdate ScatterNDUpdate ScatterElementsUpdate
EmbeddingBagOffsetsSum EmbeddingBagPackedSum EmbeddingSegmentsSum OneHot
Interpolate GridSample ROIAlign ROIPooling PSROIPooling
ShuffleChannels DepthToSpace SpaceToDepth BatchToSpace SpaceToBatch Col2Im ExtractImagePatches
Broadcast Tile Range Eye
Convert ConvertLike FakeQuantize FakeConvert
Select Maximum Minimum Abs Negative Sign Floor Ceiling Round Mod FloorMod
Equal NotEqual Greater GreaterEqual Less LessEqual LogicalAnd LogicalOr LogicalNot
BitwiseAnd BitwiseOr BitwiseXor BitwiseNot
Sin Cos Tan DFT IDFT RDFT IRDFT STFT
TopK NonZero Unique SearchSorted Bucketize
NonMaxSuppression MulticlassNms MatrixNms DetectionOutput PriorBox Proposal
ShapeOf
ReadValue Assign
If Loop TensorIterator
RandomUniform Multinomial
"""
# Number of the feature of each operation type.
TYPE_COLUMN = {name: n for n, line in enumerate(_TYPE_FAMILIES.split("\n")[1:-1]) for name in line.split()}
TYPE_COLUMNS = max(TYPE_COLUMN.values()) + 2
"""Number of features of operation types, one for types in no family included."""

MOST_NODES = 1000
"""Largest number of nodes of the graphs that the network gets; larger graphs are coarsened to about 0.7 of it."""

# Number of dimensions of the output shape that are features, counted from the last.
_DIMENSIONS = 5

# Largest absolute value of logarithms of ratios: a factor of e^8, some 3,000.
_CLIP = 8.0


@dataclass(frozen=True, eq=False)
class PolicyInput:
    """Features of one placement problem."""

    node_x: NDArray[np.float32]  # features of coarse groups, float32 [coarse, F]
    # producing and consuming coarse group of each edge, int64 [2, edges]; each pair once, without self-loops
    edge_index: NDArray[np.int64]
    edge_x: NDArray[np.float32]  # features of edges, float32 [edges, FE]
    pair_x: NDArray[np.float32]  # features of each group on each device, float32 [coarse, devices, FP]
    device_x: NDArray[np.float32]  # features of devices, float32 [devices, FD]
    coarse: NDArray[np.int32]  # coarse group of each co-location group, int32 [groups]; see `coarse_groups`
    partition: NDArray[np.uint8]  # device of each co-location group in the best contiguous partition, uint8 [groups]


def policy_input(problem: PlacementProblem) -> PolicyInput:
    """Computes the features of a problem. Each of its co-location groups must have a device that supports it."""
    coarse = coarse_groups(problem)
    partitions = CoarsePartitions.of(problem, coarse)
    view = partitions.view
    structure = view.structure
    position = structure["position"] / max(view.size - 1, 1)

    columns = [
        _type_features(problem.graph, view),
        _shape_features(problem.graph, view),
        position[:, None],
        _structure_features(structure, view.size),
        _work_features(problem, view, structure),  # last, so that the features of HSDAG's paper come first
    ]
    contiguous = _Contiguous.of(partitions)
    partition = problem.where_supported(Contiguous().place(problem))
    counted = np.bincount(coarse.astype(np.int64) * len(problem.devices) + partition, None, view.us.size)
    parts = share(counted.reshape(view.us.shape), np.bincount(coarse, None, view.size)[:, None])
    pairs = [_pair_features(view, contiguous), _move_features(partitions, parts.argmax(1)), parts[..., None]]
    return PolicyInput(
        node_x=np.concatenate(columns, axis=1).astype(np.float32),
        edge_index=view.edge_index,
        edge_x=_edge_features(view, position, contiguous).astype(np.float32),
        pair_x=np.concatenate(pairs, axis=2).astype(np.float32),
        device_x=_device_features(problem, view, contiguous).astype(np.float32),
        coarse=coarse,
        partition=partition,
    )


def coarse_groups(problem: PlacementProblem) -> NDArray[np.int32]:
    """Returns the coarse group of each co-location group, int32 [groups]; these are the nodes of the network's graph.

    They are those of `PlacementProblem.coarse`. If there are more than `MOST_NODES`, edges between them are contracted,
    those of the dearest transfers first, until about 0.7 of that number are left.
    """
    if int(problem.coarse.max()) < MOST_NODES:
        return problem.coarse
    alike = np.array_equal(problem.chains, problem.coarse)  # making a space takes longer than contracting
    space = problem.search_space if alike else _native.SearchSpace(problem.native, problem.coarse)
    # Contracting may end at up to twice its target, if further nodes would become too large.
    return space.contracted(7 * MOST_NODES // 10)


def _clipped_log(ratio: Any) -> Floats:
    """Logarithm of a ratio, clipped and scaled to [-1, 1]; 0 and nan become the lower end and 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(np.clip(np.log(ratio), -_CLIP, _CLIP), nan=0.0) / _CLIP


def _type_features(graph: ComputationGraph, view: CoarseView) -> Floats:
    """Share of each family of types among a group's nodes other than constants, [size, TYPE_COLUMNS]."""
    seen = graph.kinds != NodeKind.CONSTANT
    columns = {name: TYPE_COLUMN.get(name, TYPE_COLUMNS - 1) for name in set(graph.types)}
    column = np.fromiter(map(columns.__getitem__, graph.types), np.int64, graph.nodes)
    places = view.node.astype(np.int64) * TYPE_COLUMNS + column
    table = np.bincount(places[seen], None, view.size * TYPE_COLUMNS).reshape(view.size, TYPE_COLUMNS)
    return share(table, table.sum(axis=1, keepdims=True))


def _shape_features(graph: ComputationGraph, view: CoarseView) -> Floats:
    """Logarithms of the last dimensions of a group's output, padded with 0, and its rank, [size, 6].

    The output is the first one of the group's last operation.
    """
    with_output = np.diff(graph.output_ptr) > 0
    last_node = np.full(view.size, -1, np.int64)
    for chosen in (with_output, with_output & (graph.kinds != NodeKind.CONSTANT)):
        # Later nodes overwrite earlier ones, and nodes that compute overwrite constants.
        last_node[view.node[chosen]] = np.flatnonzero(chosen)
    result = np.zeros((view.size, _DIMENSIONS + 1))
    for group, node in enumerate(last_node.tolist()):
        if node < 0:
            continue
        shape = graph.output_shapes[graph.output_ptr[node]]
        seen = shape[-_DIMENSIONS:]
        result[group, _DIMENSIONS - len(seen) : _DIMENSIONS] = seen
        result[group, _DIMENSIONS] = len(shape) / 8
    result[:, :_DIMENSIONS] = np.log2(1 + result[:, :_DIMENSIONS]) / 16
    return result


def _structure_features(structure: dict[str, Any], size: int) -> Floats:
    """Degrees, fractal dimension, closeness and its logarithm, as it spans orders of magnitude, [size, 5]."""
    closeness = structure["closeness"]
    columns = [
        np.log2(1 + structure["in_degree"]) / 4,
        np.log2(1 + structure["out_degree"]) / 4,
        structure["fractal_dimension"] / 2,
        closeness,
        _clipped_log(closeness * size / 4),
    ]
    return np.stack(columns, axis=1)


def _work_features(problem: PlacementProblem, view: CoarseView, structure: dict[str, Any]) -> Floats:
    """Features of groups that HSDAG's paper lacks, [size, 16]: times, weights, bytes, work, positions, support."""
    graph = problem.graph
    total = view.best.sum()
    flops, weights = view.sums(graph.flops), view.sums(view.problem.node_held.max(axis=1))
    bytes_in = np.bincount(view.receiver, view.tensor_bytes[view.received], view.size)
    sent = np.unique(view.received)
    bytes_out = np.bincount(view.producer[sent], view.tensor_bytes[sent], view.size)
    mean_bytes = view.tensor_bytes[sent].mean() if len(sent) else 1.0
    longest = max(int((structure["depth"] + structure["height"]).max(initial=1)), 1)
    done, cut = _work_and_cuts(view, structure["position"])
    columns = [
        share(view.best, total),
        _clipped_log(share(view.best * view.size, total)),
        share(weights, weights.sum()),
        _clipped_log(share(weights * view.size, weights.sum())),
        _clipped_log(share(bytes_in, mean_bytes)),
        _clipped_log(share(bytes_out, mean_bytes)),
        _clipped_log(share(flops * view.size, flops.sum())),
        _clipped_log(share(flops, bytes_in + bytes_out + weights)),
        np.log2(1 + view.sums(graph.kinds != NodeKind.CONSTANT)) / 8,
        structure["depth"] / longest,
        structure["height"] / longest,
        done,
        cut[0],
        cut[1],
        np.isfinite(view.us).mean(axis=1),
        _clipped_log(share(view.into.mean(axis=1) + view.out_of.mean(axis=1), view.best)),
    ]
    return np.stack(columns, axis=1)


def _work_and_cuts(view: CoarseView, position: NDArray[np.int32]) -> tuple[Floats, tuple[Floats, Floats]]:
    """Computes the work up to each group, and the cost of a cut of the topological order right behind it.

    The cost of a cut is the sum of the mean times of the transfers across it.

    Args:
        view: the problem by coarse groups.
        position: position of each group in the topological order, int32 [size].

    Returns:
        done: share of the work up to each group and including it, float64 [size].
        cut: two logarithms of the cost of the cut, relative to the whole work and to an average cut, float64 [size]
            each.
    """
    order = np.argsort(position)
    done = np.empty(view.size)
    done[order] = share(np.cumsum(view.best[order]), view.best.sum())
    first, last = view.spans(position)
    forward = last > first
    behind = crossing(view.mean_transfer[forward], first[forward], last[forward], view.size)[1:]
    cut = behind[position]
    return done, (_clipped_log(share(cut, view.best.sum())), _clipped_log(share(cut, behind.mean())))


@dataclass(frozen=True, eq=False)
class _Contiguous:
    """The best contiguous partition of the topological order (`CoarsePartitions.best`), in shares of the work.

    The work of a group is its share of the whole time on a device, mean over the devices. A device's part is the groups
    that it has.
    """

    place: Floats  # share of the work done up to the middle of each group in topological order, 0 … 1 [size]
    begin: Floats  # share of the work before each device's part, 0 … 1 [D]
    end: Floats  # share of the work up to the part's end; equal to `begin` if the device has no part [D]
    inside: NDArray[np.bool_]  # whether a group is in a device's part, bool [size, D]
    rank: NDArray[np.int64]  # position of each device in the sequence of parts [D]
    value: float  # estimate of the objective, µs
    room: Floats  # share of the model's memory that a device's memory can hold, at most 1 [D]

    @classmethod
    def of(cls, partitions: CoarsePartitions) -> _Contiguous:
        """Finds the best partition; `partitions` has the problem's figures."""
        view = partitions.view
        order = np.argsort(view.position)
        part = share(partitions.us, partitions.us.sum(axis=0)).mean(axis=1)[order]
        done = np.concatenate([[0.0], share(part.cumsum(), part.sum())])
        best = partitions.best(view.position)
        rank = np.argsort(best.sequence)
        place = np.empty(view.size)
        place[order] = (done[1:] + done[:-1]) / 2
        return cls(
            place=place,
            begin=done[best.bounds[:-1][rank]],
            end=done[best.bounds[1:][rank]],
            inside=best.devices[view.position][:, None] == np.arange(len(rank)),
            rank=rank,
            value=best.value,
            room=np.minimum(partitions.room, 1.0),
        )


def _edge_features(view: CoarseView, position: Floats, contiguous: _Contiguous) -> Floats:
    """Features of edges, [edges, 7]: bytes, time of transfers in relation to work, consumers, distance, same part.

    Args:
        view: the problem by coarse groups.
        position: position of each group in the topological order, 0 to 1, [size].
        contiguous: the best contiguous partition.
    """
    edges = view.edge_index.shape[1]
    moved = np.bincount(view.edge_of, view.tensor_bytes[view.received], edges)
    us = np.bincount(view.edge_of, view.mean_transfer[view.received], edges)
    consumers = np.bincount(view.received, minlength=len(view.tensor_bytes))
    shared = np.zeros(edges)
    np.maximum.at(shared, view.edge_of, consumers[view.received])
    source, target = view.edge_index
    columns = [
        _clipped_log(share(moved, moved.mean() if edges else 1.0)),
        _clipped_log(share(us, view.best.mean())),
        _clipped_log(share(us, view.best[source] + view.best[target])),
        share(us, view.best.sum()).clip(0, 1),
        np.log2(shared + 1e-30).clip(0) / 4,
        position[target] - position[source],
        (contiguous.inside[source] == contiguous.inside[target]).all(axis=1),
    ]
    return np.stack(columns, axis=1)


def _pair_features(view: CoarseView, contiguous: _Contiguous) -> Floats:
    """Features of groups on devices, [size, D, 13]: support, times, transfers, gain, and place in the partition.

    The gain, from -1 to 1, compares the time with the least time on other devices. Unsupported pairs have the worst
    values.
    """
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
    distance_from_begin, distance_to_end = (
        contiguous.place[:, None] - contiguous.begin,
        contiguous.end - contiguous.place[:, None],
    )
    # Infinite times gave nan or infinities above, so the gain follows from support there.
    gain = np.where(supported, np.where(np.isfinite(elsewhere), gain, 1.0), -1.0)
    columns = [
        supported.astype(np.float64),
        _clipped_log(share(us, view.best[:, None])),
        _clipped_log(share(us * view.size, total)),
        np.clip(share(us, total), 0, 1),
        _clipped_log(share(view.into, view.best[:, None])),
        _clipped_log(share(view.out_of, view.best[:, None])),
        _clipped_log(share(moving * view.size, total)),
        gain,
        distance_from_begin,
        distance_to_end,
        np.tanh(10 * distance_from_begin),  # uses most of its range for small distances
        np.tanh(10 * distance_to_end),
        contiguous.inside.astype(np.float64),
    ]
    return np.stack(columns, axis=2)


def _move_features(partitions: CoarsePartitions, device: NDArray[np.int64]) -> Floats:
    """Features of moving a single group of a placement to each device, [size, D, 4].

    They are the change of the sum of all times; the change of the busiest device's time; the time of the device before
    the move, as a share of the busiest one's; and its held bytes after the move, as a share of its limit (0 without a
    limit).

    Args:
        partitions: the coarse problem.
        device: device of each group now, [size].
    """
    view, us = partitions.view, partitions.us
    problem = view.problem
    size, count = us.shape
    rows, places = np.arange(size), np.arange(count)
    is_device = np.eye(count)[device]
    source, target = view.producer[view.received], view.receiver
    fixed, rate = off_diagonal(problem.transfer_us), off_diagonal(problem.transfer_us_per_byte)

    def summed(group: NDArray[Any], values: Floats, rows: int = size) -> Floats:
        """Sums rows of `values` that have the same number in `group`, [R, D] → [rows, D]."""
        return np.stack([np.bincount(group, column, rows) for column in values.T], axis=1)

    # A tensor goes to each device once, however many groups read it there.
    readers = summed(view.received, is_device[target], len(view.producer))
    alone = readers[view.received] == is_device[target]
    per_byte = rate[device[source]] * view.tensor_bytes[view.received][:, None]
    received = summed(target * count + device[source], alone * (fixed[device[source]] + per_byte), size * count)
    # Times of transfers between the device to which a group moves and each device, [size, D, D].
    between = received.reshape(size, count, count).transpose(0, 2, 1)
    us_to = ((readers > 0) * (fixed[place] + rate[place] * view.tensor_bytes[:, None]) for place in places)
    sent = np.stack([summed(view.producer, one) for one in us_to], axis=1)
    between = between + sent
    # A group without a neighbour on its new device becomes a submodel there. A group between two groups of its old
    # device leaves two submodels behind.
    reads, feeds = summed(target, is_device[source]) > 0, summed(source, is_device[target]) > 0
    computing = us + problem.submodel_us * ~(reads | feeds)
    behind = np.where(is_device > 0, 0.0, (problem.submodel_us[device] * (reads & feeds)[rows, device])[:, None])
    total = computing + between.sum(axis=2)
    change = total - total[rows, device][:, None] + behind
    # Work of each device (last axis) after each move; both ends of a transfer are busy.
    shares = problem.transfer_shares
    busy = between * shares
    busy[:, places, places] = computing + between.sum(axis=2) * shares
    load = is_device.T @ us.astype(np.float64)
    load = (
        load.diagonal()
        + (sent[rows, device] * shares).sum(axis=0)
        + is_device.T @ sent[rows, device].sum(axis=1) * shares
    )
    after = load + busy - busy[rows, device][:, None]
    after[rows, :, device] += behind
    worst = after.max(axis=2) - load.max()
    held = (is_device.T @ partitions.weights).diagonal() + np.where(is_device > 0, 0.0, partitions.weights)
    columns = [
        _signed_log(share(change * size, view.best.sum())),
        _signed_log(share(worst * size, view.best.sum())),
        np.broadcast_to(share(load, load.max()), us.shape),
        np.where(np.isfinite(partitions.room), share(held, partitions.room), 0.0).clip(0, 2),
    ]
    return np.stack(columns, axis=2)


def _signed_log(ratio: Floats) -> Floats:
    """Scales ratios around 0 to [-1, 1]: log(1 + 10 |ratio|), clipped, with the sign of the ratio."""
    return np.asarray(np.sign(ratio) * np.log1p(10 * np.abs(ratio)).clip(0, _CLIP) / _CLIP)


def _device_features(problem: PlacementProblem, view: CoarseView, contiguous: _Contiguous) -> Floats:
    """Features of devices, [D, 20]: objective, number in the device list, support, times, memory, its part."""
    devices = len(problem.devices)
    # Time of the model on each device. Groups that it does not run take their least time on others.
    alone = np.where(np.isfinite(view.us), view.us, view.best[:, None]).sum(axis=0)
    total = view.best.sum()
    limited = np.isfinite(problem.memory_limits)
    ones = np.ones(devices)
    columns = [
        (problem.objective == "throughput") * ones,
        np.arange(devices) == 0,
        np.arange(devices) / 4,
        ones / devices,
        np.isfinite(view.us).mean(axis=0),
        share(alone, alone.sum()),
        _clipped_log(share(alone, alone.min())),
        _clipped_log(share(total, alone)),
        _clipped_log(share(view.into.sum(axis=0), total)),
        _clipped_log(share(view.out_of.sum(axis=0), total)),
        _clipped_log(share(problem.submodel_us, total)),
        _clipped_log(share(problem.submodel_us, view.mean_transfer.mean() if len(view.mean_transfer) else 1.0)),
        limited,
        contiguous.room,
        np.minimum(contiguous.room.sum(), 3.0) / 3 * ones,
        share(share(1.0, alone), share(1.0, alone).sum()),
        contiguous.begin,
        contiguous.end,
        contiguous.rank / 4,
        _clipped_log(share(contiguous.value, alone)),
    ]
    return np.stack(columns, axis=1)
