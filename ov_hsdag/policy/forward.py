"""The HSDAG network without torch: `ov_hsdag.training.network` for one graph, in NumPy.

Duan et al., NeurIPS 2024 (arXiv:2405.14185), sections 2.3 to 2.5; the messages between nodes are gated (Bresson &
Laurent 2017, arXiv:1711.07553) or those of a GCN (Kipf & Welling 2017, arXiv:1609.02907), as published.

A linear map of a concatenation [h; e] of node and edge features is W_h·h + W_e·e: what depends on a node alone is
computed once for each node and not for each of its edges.

n nodes, e edges, c clusters, D devices, H hidden width; all arrays are float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag import _native

if TYPE_CHECKING:
    from ov_hsdag.policy.features import PolicyInput

Array = NDArray[np.float32]
Index = NDArray[np.integer[Any]]

# As in torch.nn.LayerNorm, and in `ov_hsdag.training.network`.
_EPSILON = np.float32(1e-5)
_LOG_UNIT = np.float32(8.0)


class _Segments:
    """Rows that belong to nodes or clusters.

    Args:
        index: node or cluster of each row, [rows].
        size: number of nodes or clusters.
    """

    def __init__(self, index: Index, size: int) -> None:
        self.index, self.size = index, size
        self.count = np.bincount(index, minlength=size).astype(np.float32)

    def sum(self, rows: Array) -> Array:
        """[rows, …] → [size, …]; 0 where there is none."""
        flat = rows.reshape(len(rows), -1) if len(rows) else np.zeros((0, math.prod(rows.shape[1:])), np.float32)
        return _native.sum_rows(flat, self.index, self.size).reshape(self.size, *rows.shape[1:])

    def mean(self, rows: Array) -> Array:
        """[rows, …] → [size, …]; 0 where there is none."""
        count = np.maximum(self.count, np.float32(1)).reshape(-1, *[1] * (rows.ndim - 1))
        return self.sum(rows) / count


# Multiply-adds of a product up to which OpenBLAS starts no threads, which keep spinning for longer than all of our
# products take.
_ONE_THREAD = 2**18


def _product(x: Array, weight: Array) -> Array:
    """x · weightᵀ, [rows…, k] and [m, k] → [rows…, m], in blocks of rows that are small enough for one thread."""
    rows, (m, k) = x.reshape(-1, x.shape[-1]), weight.shape
    block = max(_ONE_THREAD // (m * k), 1)
    out = np.empty((len(rows), m), np.float32)
    whole = len(rows) // block * block
    np.matmul(rows[:whole].reshape(-1, block, k), weight.T, out=out[:whole].reshape(-1, block, m))
    np.matmul(rows[whole:], weight.T, out=out[whole:])
    return out.reshape(*x.shape[:-1], m)


def _sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.reciprocal(1 + np.exp(-x))


@dataclass(frozen=True, eq=False)
class Network:
    """A trained network.

    Attributes:
        weights: by the names of `HSDAGNetwork.state_dict()`.
        config: `HSDAGConfig.to_dict()`: conv, layers, device_aware, context and devices are used.
    """

    weights: Mapping[str, Array]
    config: Mapping[str, Any]

    def encode(self, x: PolicyInput) -> tuple[Array, Array]:
        """Node embeddings h [n, H] and edge scores in (0, 1) [e]."""
        if self.config["device_aware"]:
            pairs = self._mix("encoder.pairs", x.pair_x, self._devices("encoder.devices", x.device_x))
            h = self._mix("encoder.input", x.node_x, pairs.mean(1), pairs.max(1))
        else:
            h = self._mix("encoder.input", x.node_x)
        convolve = self._gated if self.config["conv"] == "gated" else self._gcn
        ends = [_Segments(end, len(h)) for end in x.edge_index[::-1]]
        for layer in range(self.config["layers"]):
            name = f"encoder.layers.{layer}"
            h = self._norm(f"{name}.norm", h + np.maximum(convolve(name, h, x, ends), 0))
        source, target = x.edge_index
        scored = (h[source] * h[target],) if self.config["devices"] else (h[source] * h[target], x.edge_x)
        return h, _sigmoid(self._mix("edge_scorer", *scored)[:, 0])

    def logits(self, x: PolicyInput, h: Array, edge_score: Array, cluster: Index) -> Array:
        """Logits of devices for clusters [c, D].

        Args:
            x: the input of `encode`.
            h: its first output.
            edge_score: its second.
            cluster: cluster of each node, numbered from 0 without gaps, [n].
        """
        members = _Segments(cluster, int(cluster.max()) + 1)
        producer, consumer = cluster[x.edge_index]
        z = self._pool(h, edge_score, members, producer, consumer)
        if self.config["devices"]:  # the paper's softmax over a fixed number of devices
            return self._linear("placer.head.2", np.maximum(self._linear("placer.head.0", z), 0))
        e = self._devices("placer.devices", x.device_x)
        pair = np.maximum(self._mix("placer.pair", x.pair_x, h[:, None], e), 0)
        # Times are logarithms among the features, which sums of exponentials add up; the first sum's weights also make
        # a mean in which the nodes that matter count more.
        weight = np.exp(np.clip(_LOG_UNIT * self._linear("placer.log_weight", x.pair_x), -15, 15))
        sums = members.sum(weight)
        weighted = members.sum(weight[..., :1] * pair) / sums[..., :1]
        costs, z = members.mean(x.pair_x), z[:, None]
        agreement = z * self._linear("placer.agree", e)
        u = self._mix("placer.state", weighted, z, e, agreement, costs, np.log(sums) / _LOG_UNIT)
        crossing = producer != consumer
        producer, consumer, edge_x = producer[crossing], consumer[crossing], x.edge_x[crossing]
        entering, leaving = _Segments(consumer, len(u)), _Segments(producer, len(u))
        for layer in range(self.config["context"]):
            name = f"placer.context.{layer}"
            gates = _sigmoid(self._linear(f"{name}.gates", edge_x))[:, None]
            values = self._linear(f"{name}.values", u)
            width = u.shape[2]
            received = entering.mean(values[producer, :, :width] * gates[..., :width])
            returned = leaving.mean(values[consumer, :, width:] * gates[..., width:])
            context = (u, received, returned, u.mean(1, keepdims=True), u.mean(0, keepdims=True))
            u = self._norm(f"{name}.norm", u + self._mix(f"{name}.mix", *context))
        return (self._mix("placer.head", u) + self._linear("placer.costs", costs))[..., 0]

    def _pool(self, h: Array, edge_score: Array, members: _Segments, producer: Index, consumer: Index) -> Array:
        """DeepSets over a cluster's nodes, times the mean score of its inner edges (1 for none) [c, H]."""
        z = self._mix("whole", members.mean(self._mix("member", h)))
        inside = producer == consumer
        count = np.bincount(producer[inside], minlength=len(z))
        total = np.bincount(producer[inside], edge_score[inside], len(z))
        return z * np.where(count > 0, total / np.maximum(count, 1), 1).astype(np.float32)[:, None]

    def _gated(self, name: str, h: Array, x: PolicyInput, ends: list[_Segments]) -> Array:
        """Messages along the edges, and against them: mean over neighbours j of sigmoid(k_i + q_j) v_j, plus W h_i."""
        total, width = np.zeros_like(h), h.shape[1]
        directions = (x.edge_index, x.edge_index[::-1])
        for number, ((source, target), end) in enumerate(zip(directions, ends, strict=True)):
            conv = f"{name}.convs.{number}"
            parts = {part: self.weights[f"{conv}.lin_{part}.weight"] for part in ("key", "query", "value")}
            of_node = {
                part: _product(h, weight[:, :width]) + self._bias(f"{conv}.lin_{part}")
                for part, weight in parts.items()
            }
            gate = _product(x.edge_x, (parts["key"] + parts["query"])[:, width:])
            gate += of_node["key"][target]
            gate += of_node["query"][source]
            value = of_node["value"][source] + _product(x.edge_x, parts["value"][:, width:])
            total += end.mean(_sigmoid(gate) * value) + self._linear(f"{conv}.lin_skip", h) + self._bias(conv)
        return total

    def _gcn(self, name: str, h: Array, x: PolicyInput, ends: list[_Segments]) -> Array:
        """Both directions of the edges and loops, normalised by the square roots of the degrees."""
        source, target = np.concatenate([x.edge_index, x.edge_index[::-1]], axis=1)
        scale = (1 / np.sqrt(1 + ends[0].count + ends[1].count))[:, None]
        scaled = scale * _product(h, self.weights[f"{name}.convs.0.lin.weight"])
        return scale * (_Segments(target, len(h)).sum(scaled[source]) + scaled) + self._bias(f"{name}.convs.0")

    def _devices(self, name: str, device_x: Array) -> Array:
        """Device embeddings, each with the mean of all mixed in [D, H]."""
        e = self._mix(f"{name}.each", device_x)
        return self._mix(f"{name}.all", e, e.mean(0, keepdims=True))

    def _mix(self, name: str, *inputs: Array) -> Array:
        """A two-layer MLP on the concatenation of its inputs, which broadcast against each other."""
        total = self._linear(f"{name}.parts.0", inputs[0])
        for number, x in enumerate(inputs[1:], 1):
            total = total + self._linear(f"{name}.parts.{number}", x)
        return self._linear(f"{name}.out", np.maximum(self._norm(f"{name}.norm", total), 0))

    def _linear(self, name: str, x: Array) -> Array:
        return _product(x, self.weights[f"{name}.weight"]) + self._bias(name)

    def _bias(self, name: str) -> Array | float:
        return self.weights.get(f"{name}.bias", 0.0)

    def _norm(self, name: str, x: Array) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        scale = np.sqrt(np.square(centred).mean(-1, keepdims=True) + _EPSILON)
        return centred / scale * self.weights[f"{name}.weight"] + self._bias(name)
