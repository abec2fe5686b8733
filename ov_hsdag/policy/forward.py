"""The forward pass of the HSDAG network with NumPy; `ov_hsdag.training.network` runs it with torch, for gradients.

The network follows Duan et al., NeurIPS 2024 (arXiv:2405.14185), sections 2.3 to 2.5. Clusters come from graph parsing
(Song et al., ICLR 2024, "Graph Parsing Networks", arXiv:2402.14393), and their embeddings are DeepSets (Zaheer et al.
2017, arXiv:1703.06114). The messages between nodes are gated (Bresson & Laurent 2017, arXiv:1711.07553).

    encode  features → node embeddings h [n, H], edge scores in (0, 1) [e]
    parse   edge scores → cluster of each node [n]        native, no gradient: `ov_hsdag._native.parse`
    logits  h, edge scores, clusters → logits of devices [c, D]; the policy gradient reaches the edge scores through the
            factor in `pool`

A linear map of a concatenation [h; e] of node and edge features is W_h·h + W_e·e, so the part of the nodes is computed
once for each node and not for each of its edges.

There are n nodes, e edges, c clusters and D devices; H is the hidden width. All arrays are float32. Several graphs
with equally many devices can be one input, as in training (`Forward.graph_of_nodes`); nothing of one reaches another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ov_hsdag import _native
from ov_hsdag.policy.config import HSDAGConfig

# An array of NumPy, or a tensor of torch.
Array = Any

_EPSILON = np.float32(1e-5)  # as in torch.nn.LayerNorm
_LOG_UNIT = 8.0  # scale of logarithms of times among the features (`_CLIP` in features.py)
# Constant that is added to the logit of a cluster's device in the contiguous partition. The shipped policy was trained
# with 4. With 6, fewer clusters leave the partition wrongly (chosen on the validation problems of its training).
_PARTITION_LOGIT = 6.0

# Multiply-adds of a product up to which OpenBLAS starts no threads. Its threads spin longer than our products take.
_ONE_THREAD = 2**18


class PerGraph(NamedTuple):
    """Embeddings of devices by graph, as an input of `Forward.mix` besides rows of nodes or clusters.

    A linear layer is applied to each row once, and not once for each node of the graph.

    Attributes:
        rows: [D, H], or of several graphs [graphs, D, H].
        graph: the graph of each node or cluster, int64; None: there is one graph, and rows broadcast.
    """

    rows: Array
    graph: Array | None


class Forward:
    """The forward pass of the network, for any array library.

    A subclass may replace the library's operations, which are at the end of this class, and NumPy's here. Layers are
    called by the names of their weights, such as "encoder.input".

    Attributes:
        xp: module of the array library.
        one: the number 1 as an array.
    """

    weights: Mapping[str, Array]  # weights by name, see `ov_hsdag.training.network.parameter_shapes`
    config: HSDAGConfig  # settings of the network

    def encode(self, x: Any) -> tuple[Array, Array]:
        """Computes node embeddings h [n, H] and edge scores in (0, 1) [e]; `x` is a `PolicyInput` of arrays."""
        devices = PerGraph(self._device_embeddings("encoder.devices", x.device_x), self.graph_of_nodes(x))
        pairs = self.mix("encoder.pairs", self._pair_features(x), devices)
        h = self.mix("encoder.input", x.node_x, pairs.mean(1), self.xp.amax(pairs, 1))
        source, target = x.edge_index
        ends = (Segments(self, target, len(h)), Segments(self, source, len(h)))
        for layer in range(self.config.layers):
            name = f"encoder.layers.{layer}"
            message = self.dropout(self._gated(name, h, x, *ends).clip(0))
            h = self.norm(f"{name}.norm", h + message)
        return h, self.sigmoid(self.mix("edge_scorer", h[source] * h[target], x.edge_x)[:, 0])

    def pool(self, x: Any, h: Array, edge_score: Array, cluster: Array) -> Array:
        """Computes embeddings of clusters by DeepSets, times the mean score of the edges within each cluster.

        The factor is 1 for a cluster without such edges.

        Args:
            x: a `PolicyInput` of arrays.
            h: node embeddings [n, H].
            edge_score: scores of edges [e].
            cluster: cluster of each node, without gaps [n].

        Returns:
            Embeddings [c, H].
        """
        members = Segments(self, cluster, int(cluster.max()) + 1)
        z = self.mix("whole", members.mean(self.mix("member", h)))
        producer, consumer = cluster[x.edge_index]
        inside = producer == consumer
        inner = Segments(self, producer[inside], len(z))
        return z * self.xp.where(inner.count[:, None] > 0, inner.mean(edge_score[inside][:, None]), self.one)

    def logits(self, x: Any, h: Array, edge_score: Array, cluster: Array) -> Array:
        """Computes logits of devices for clusters.

        Args:
            x: a `PolicyInput` of arrays.
            h: node embeddings [n, H], from `encode`.
            edge_score: scores of edges [e], from `encode`.
            cluster: cluster of each node, without gaps [n].

        Returns:
            Logits [c, D].
        """
        return self.place(x, h, cluster, self.pool(x, h, edge_score, cluster))

    def place(self, x: Any, h: Array, cluster: Array, z: Array) -> Array:
        """Computes logits of devices for clusters from the clusters' embeddings.

        Args:
            x: a `PolicyInput` of arrays.
            h: node embeddings [n, H].
            cluster: cluster of each node, without gaps [n].
            z: embeddings of clusters [c, H], from `pool`.

        Returns:
            Logits [c, D].
        """
        members = Segments(self, cluster, len(z))
        devices = self._device_embeddings("placer.devices", x.device_x)
        graph_of_nodes = self.graph_of_nodes(x)
        graph = self._graph_of_clusters(graph_of_nodes, cluster, len(z))
        e = PerGraph(devices, graph)
        pair_x = self._pair_features(x)
        pair = self.mix("placer.pair", pair_x, h[:, None], PerGraph(devices, graph_of_nodes)).clip(0)
        # The features have logarithms of times, so sums of exponentials add times up. The weights of the first sum also
        # give a mean in which nodes with more time count more.
        weight = self.xp.exp((_LOG_UNIT * self.linear("placer.log_weight", pair_x)).clip(-15, 15))
        sums = members.sum(weight)
        weighted = members.sum(weight[..., :1] * pair) / sums[..., :1]
        costs, z = members.mean(pair_x), z[:, None]
        agreement = z * self._part("placer.agree", e)
        u = self.mix("placer.state", weighted, z, e, agreement, costs, self.xp.log(sums) / _LOG_UNIT)
        producer, consumer = cluster[x.edge_index]
        crossing = producer != consumer
        producer, consumer, edge_x = producer[crossing], consumer[crossing], x.edge_x[crossing]
        entering, leaving = Segments(self, consumer, len(u)), Segments(self, producer, len(u))
        for layer in range(self.config.context):
            name = f"placer.context.{layer}"
            gates = self.sigmoid(self.linear(f"{name}.gates", edge_x))[:, None]
            values = self.linear(f"{name}.values", u)
            width = u.shape[2]
            received = entering.mean(values[producer, :, :width] * gates[..., :width])
            returned = leaving.mean(values[consumer, :, width:] * gates[..., width:])
            of_graph = PerGraph(u.mean(0, keepdims=True), None)
            if graph is not None:
                of_graph = PerGraph(Segments(self, graph, len(devices)).mean(u), graph)
            context = (u, received, returned, u.mean(1, keepdims=True), of_graph)
            u = self.norm(f"{name}.norm", u + self.mix(f"{name}.mix", *context))
        logits = (self.mix("placer.head", u) + self.linear("placer.costs", costs))[..., 0]
        return logits + _PARTITION_LOGIT * costs[..., -1] if self.config.residual else logits

    def graph_of_nodes(self, x: Any) -> Array | None:
        """The graph that each node of an input belongs to, int64 [n]; None if the input is a single graph."""
        return None

    def _graph_of_clusters(self, graph: Array | None, cluster: Array, count: int) -> Array | None:
        """Finds the graph that each cluster belongs to, from its nodes.

        Args:
            graph: the graph of each node, int64 [n]; None if there is one graph.
            cluster: cluster of each node [n].
            count: number of clusters, c.

        Returns:
            The graph of each cluster, int64 [c]; None if there is one graph.
        """
        if graph is None:
            return None
        found = self.xp.zeros(count, dtype=graph.dtype)
        found[cluster] = graph
        return found

    def _pair_features(self, x: Any) -> Array:
        """Features of (node, device) pairs, the first ones, as many as the network was trained with, [n, D, FP]."""
        return x.pair_x[..., : self.config.widths.pair]

    def _gated(self, name: str, h: Array, x: Any, entering: Segments, leaving: Segments) -> Array:
        """Computes gated messages along and against the edges, with separate weights, and adds them up.

        Each is the mean over neighbours j of sigmoid(k_i + q_j) v_j, plus W h_i.

        Args:
            name: name of the layer.
            h: node embeddings [n, H].
            x: a `PolicyInput` of arrays.
            entering: the edges, by the node that they lead to.
            leaving: the edges, by the node that they come from.

        Returns:
            The messages [n, H].
        """
        total, width = 0.0, h.shape[1]
        for number, (end, other) in enumerate(((entering, leaving), (leaving, entering))):
            conv = f"{name}.convs.{number}"
            parts = {part: self.weights[f"{conv}.lin_{part}.weight"] for part in ("key", "query", "value")}
            key, query, value = (
                self.product(h, weight[:, :width]) + self.bias(f"{conv}.lin_{part}") for part, weight in parts.items()
            )
            gate = self.product(x.edge_x, (parts["key"] + parts["query"])[:, width:])
            gate = gate + key[end.index] + query[other.index]
            message = value[other.index] + self.product(x.edge_x, parts["value"][:, width:])
            total = (
                total + end.mean(self.sigmoid(gate) * message) + self.linear(f"{conv}.lin_skip", h) + self.bias(conv)
            )
        return total

    def _device_embeddings(self, name: str, device_x: Array) -> Array:
        """Device embeddings, each with the mean of all mixed in [D, H], or of several graphs [graphs, D, H]."""
        e = self.mix(f"{name}.each", device_x)
        return self.mix(f"{name}.all", e, e.mean(-2, keepdims=True))

    def mix(self, name: str, *inputs: Array | PerGraph) -> Array:
        """Applies a two-layer MLP to the concatenation of its inputs, which broadcast against each other."""
        total = self._part(f"{name}.parts.0", inputs[0])
        for number, x in enumerate(inputs[1:], 1):
            total = total + self._part(f"{name}.parts.{number}", x)
        return self.linear(f"{name}.out", self.norm(f"{name}.norm", total).clip(0))

    def _part(self, name: str, x: Array | PerGraph) -> Array:
        """Applies a linear layer to rows of nodes or clusters.

        Rows of graphs (`PerGraph`) are transformed first, and then taken for each node or cluster of their graph.
        """
        if not isinstance(x, PerGraph):
            return self.linear(name, x)
        rows = self.linear(name, x.rows)
        return rows if x.graph is None else rows[x.graph]

    def bias(self, name: str) -> Array | float:
        """The bias of the layer of this name, 0 if it has none."""
        return self.weights.get(f"{name}.bias", 0.0)

    def linear(self, name: str, x: Array) -> Array:
        """Applies the linear layer of this name to the last axis, [..., inputs] → [..., outputs]."""
        return self.product(x, self.weights[f"{name}.weight"]) + self.bias(name)

    # Operations of the array library.

    xp: Any = np
    one: Array = np.float32(1)

    def product(self, x: Array, weight: Array) -> Array:
        """Computes x · weightᵀ, [rows…, k] and [m, k] → [rows…, m], in blocks of rows small enough for one thread."""
        rows, (m, k) = x.reshape(-1, x.shape[-1]), weight.shape
        block = max(_ONE_THREAD // (m * k), 1)
        out = np.empty((len(rows), m), np.float32)
        whole = len(rows) // block * block
        np.matmul(rows[:whole].reshape(-1, block, k), weight.T, out=out[:whole].reshape(-1, block, m))
        np.matmul(rows[whole:], weight.T, out=out[whole:])
        return out.reshape(*x.shape[:-1], m)

    def sum_rows(self, rows: Array, index: Array, size: int) -> Array:
        """Sums the rows with the same index.

        Args:
            rows: the rows [rows, columns].
            index: number of the sum that each row belongs to [rows].
            size: number of sums.

        Returns:
            The sums [size, columns].
        """
        return _native.sum_rows(rows, index, size)

    def norm(self, name: str, x: Array) -> Array:
        """Applies the layer normalization of this name to the last axis."""
        centred = x - x.mean(-1, keepdims=True)
        scale = np.sqrt(np.square(centred).mean(-1, keepdims=True) + _EPSILON)
        return centred / scale * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def sigmoid(self, x: Array) -> Array:
        """The logistic function of each element."""
        with np.errstate(over="ignore"):
            return np.reciprocal(1 + np.exp(-x))

    def dropout(self, x: Array) -> Array:
        """Returns its argument, because units are dropped only in training."""
        return x


class Segments:
    """Sums and means of rows by segment: rows of edges, nodes or clusters, by node, cluster or graph.

    Attributes:
        over: the network, with the operations of its array library.
        index: number of each row's segment [rows].
        size: number of segments.
        count: number of rows of each segment, float32 [size].
    """

    def __init__(self, over: Forward, index: Array, size: int) -> None:
        """Counts the rows of each segment.

        Args:
            over: the network.
            index: segment of each row [rows].
            size: number of segments.
        """
        self.over, self.index, self.size = over, index, size
        self.count = over.xp.asarray(over.xp.bincount(index, minlength=size), dtype=over.xp.float32)

    def sum(self, rows: Array) -> Array:
        """Sums rows by segment, [rows, …] → [size, …]; 0 for segments without rows."""
        sums = self.over.sum_rows(rows.reshape(len(rows), math.prod(rows.shape[1:])), self.index, self.size)
        return sums.reshape(self.size, *rows.shape[1:])

    def mean(self, rows: Array) -> Array:
        """Means of rows by segment, [rows, …] → [size, …]; 0 for segments without rows."""
        return self.sum(rows) / self.count.clip(1).reshape(-1, *[1] * (rows.ndim - 1))


class Network(Forward):
    """A trained network with NumPy."""

    def __init__(self, weights: Mapping[str, NDArray[np.float32]], config: HSDAGConfig) -> None:
        self.weights, self.config = weights, config
