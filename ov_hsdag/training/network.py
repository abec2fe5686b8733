"""The HSDAG network: node embeddings, edge scores, cluster embeddings and device logits.

It is that of Duan et al., NeurIPS 2024 (arXiv:2405.14185), sections 2.3 to 2.5. Clusters come from graph parsing (Song
et al., ICLR 2024, "Graph Parsing Networks", arXiv:2402.14393), their embeddings are DeepSets (Zaheer et al. 2017,
arXiv:1703.06114).

One pass over a batch of graphs (their disjoint union: n nodes, e edges, c clusters, G graphs of at most D devices):

    encode  node_x [n, F], edge_index [2, e], edge_x [e, FE], pair_x [n, D, FP], device_x [G, D, FD]
            → h [n, H], edge_score [e] in (0, 1)
    parse   edge_score → cluster [n]              native, no gradient: `ov_hsdag._native.parse`, graph by graph
    pool    h, edge_score, cluster → z [c, H]     DeepSets over a cluster's nodes × mean score of its inner edges
    place   z, h, pair_x, device_x → logits [c, D]

A cluster belongs to one graph: graph i's clusters follow those of graph i - 1, as its nodes do (`join_clusters`).
Logits of devices that a graph does not have are `MASKED`. Logits do not depend on support: whoever samples masks the
devices that a cluster's nodes do not run on. REINFORCE reaches the edge scores through the factor in `pool`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, ResGatedGraphConv
from torch_geometric.utils import scatter

from ov_hsdag.training.config import HSDAGConfig

if TYPE_CHECKING:
    from ov_hsdag.policy.features import PolicyInput

MASKED = -1e9
"""Logit of a device that is not there: its probability is 0, and its share of the entropy too."""

# Sums over a cluster's nodes that the placer learns to make, and the unit of the logarithms among features.
_SUMS = 4
_LOG_UNIT = 8.0


@dataclass(frozen=True, eq=False)
class GraphBatch:
    """Graphs with their devices, as tensors; graph 0's nodes first.

    Attributes:
        node_x: float32 [n, F].
        edge_index: (producer, consumer), int64 [2, e].
        edge_x: float32 [e, FE].
        pair_x: float32 [n, D, FP], D the largest number of devices; padding is 0.
        device_x: float32 [G, D, FD].
        device_mask: which devices there are, bool [G, D]. None: all.
        graph: graph of each node, int64 [n]. None: there is one graph.
    """

    node_x: Tensor
    edge_index: Tensor
    edge_x: Tensor
    pair_x: Tensor
    device_x: Tensor
    device_mask: Tensor | None = None
    graph: Tensor | None = None

    @classmethod
    def of(cls, inputs: Sequence[PolicyInput], device: torch.device | str = "cpu") -> GraphBatch:
        """Returns the disjoint union of some graphs.

        Args:
            inputs: at least one, all made with the same `FeatureSet`.
            device: of torch.
        """
        nodes = [len(item.node_x) for item in inputs]
        most = max(len(item.device_x) for item in inputs)
        mask = np.stack([np.arange(most) < len(item.device_x) for item in inputs])
        first = np.cumsum([0, *nodes[:-1]])
        join = zip(inputs, first, strict=True)
        tensor = torch.from_numpy
        batch = cls(
            node_x=tensor(np.concatenate([item.node_x for item in inputs])),
            edge_index=tensor(np.concatenate([item.edge_index + start for item, start in join], axis=1)),
            edge_x=tensor(np.concatenate([item.edge_x for item in inputs])),
            pair_x=tensor(np.concatenate([_pad(item.pair_x, 1, most) for item in inputs])),
            device_x=tensor(np.stack([_pad(item.device_x, 0, most) for item in inputs])),
            device_mask=None if mask.all() else tensor(mask),
            graph=None if len(inputs) == 1 else tensor(np.repeat(np.arange(len(inputs)), nodes)),
        )
        return batch.to(device)

    def to(self, device: torch.device | str) -> GraphBatch:
        """Returns the batch on another device of torch."""
        values: dict[str, Tensor | None] = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {name: None if value is None else value.to(device) for name, value in values.items()}
        return replace(self, **moved)


def _pad(array: NDArray[np.float32], axis: int, size: int) -> NDArray[np.float32]:
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, size - array.shape[axis])
    return np.pad(array, widths)


def join_clusters(clusters: Sequence[NDArray[np.int32]]) -> tuple[NDArray[np.int64], int]:
    """Numbers the clusters of several graphs one after the other.

    Args:
        clusters: cluster of each node of each graph, numbered from 0, int32 [nodes of the graph].

    Returns:
        Cluster of each node of the union, int64 [n], and the number of clusters.
    """
    first = np.cumsum([0, *(int(cluster.max()) + 1 for cluster in clusters)])
    joined = [cluster.astype(np.int64) + start for cluster, start in zip(clusters, first, strict=False)]
    return np.concatenate(joined), int(first[-1])


class HSDAGNetwork(nn.Module):
    """The policy network; see the module's docstring for what goes in and out."""

    def __init__(self, config: HSDAGConfig) -> None:
        super().__init__()
        self.config = config
        width, sizes = config.hidden, config.widths
        self.encoder = _Encoder(config)
        self.edge_scorer = _Mix([width] if config.devices else [width, sizes.edge], width, 1)
        self.member = _Mix([width], width, width)
        self.whole = _Mix([width], width, width)
        self.output = nn.Linear(width, sizes.node) if config.carry else None
        self.placer = _DevicePlacer(config) if config.devices is None else _SoftmaxPlacer(config)

    def encode(self, batch: GraphBatch, carried: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Embeds nodes and scores edges.

        Args:
            batch: the graphs.
            carried: what earlier steps of an episode have added to node_x, float32 [n, F]; see `carry`.

        Returns:
            Node embeddings h, float32 [n, H], and edge scores in (0, 1), float32 [e].
        """
        node_x = batch.node_x if carried is None else batch.node_x + carried
        h = self.encoder(node_x, batch)
        pairs = h[batch.edge_index[0]] * h[batch.edge_index[1]]
        scorer_x = (pairs,) if self.config.devices else (pairs, batch.edge_x)
        return h, torch.sigmoid(self.edge_scorer(*scorer_x).squeeze(-1))

    def pool(self, h: Tensor, edge_index: Tensor, edge_score: Tensor, cluster: Tensor, clusters: int) -> Tensor:
        """Pools nodes to clusters: DeepSets over the nodes, times the mean score of the inner edges (1 for none).

        Args:
            h: float32 [n, H].
            edge_index: int64 [2, e].
            edge_score: float32 [e].
            cluster: int64 [n], each of 0 … clusters - 1 at least once.
            clusters: their number, c.

        Returns:
            Cluster embeddings z, float32 [c, H].
        """
        z = self.whole(_mean(self.member(h), cluster, clusters))
        start = cluster[edge_index[0]]
        inside = (start == cluster[edge_index[1]]).to(h.dtype)
        sums = scatter(torch.stack([inside, inside * edge_score], 1), start, 0, clusters, "sum")
        count, total = sums[:, 0], sums[:, 1]
        scale = torch.where(count > 0, total / count.clamp(min=1), torch.ones_like(total))
        return z * scale[:, None]

    def place(self, z: Tensor, h: Tensor, batch: GraphBatch, cluster: Tensor) -> Tensor:
        """Scores devices for clusters.

        Args:
            z: cluster embeddings, float32 [c, H].
            h: node embeddings, float32 [n, H].
            batch: the graphs.
            cluster: cluster of each node, int64 [n].

        Returns:
            Logits, float32 [c, D]; `MASKED` for devices that a cluster's graph does not have.

        Raises:
            ValueError: the network places on a fixed number of devices, and the graphs have another one.
        """
        logits: Tensor = self.placer(z, h, batch, cluster)
        if batch.device_mask is None:
            return logits
        return logits.masked_fill(~_of_graph(batch.device_mask, _cluster_graph(batch, cluster, z.size(0))), MASKED)

    def logits(self, h: Tensor, edge_score: Tensor, batch: GraphBatch, cluster: Tensor, clusters: int) -> Tensor:
        """`pool` and `place` in one: logits, float32 [c, D]."""
        z = self.pool(h, batch.edge_index, edge_score, cluster, clusters)
        return self.place(z, h, batch, cluster)

    def carry(self, z: Tensor, cluster: Tensor) -> Tensor:
        """Returns what a step of an episode adds to its nodes' features (paper: x_v ← x_v + z of v's cluster).

        Args:
            z: cluster embeddings, float32 [c, H].
            cluster: cluster of each node, int64 [n].

        Returns:
            float32 [n, F].

        Raises:
            ValueError: the configuration has `carry=False`.
        """
        if self.output is None:
            raise ValueError("expected a configuration with carry=True")
        added: Tensor = self.output(z)[cluster]
        return added


class _Mix(nn.Module):
    """A two-layer MLP on the concatenation of its inputs, which may broadcast against each other."""

    def __init__(self, inputs: Sequence[int], hidden: int, outputs: int) -> None:
        super().__init__()
        # A linear map of a concatenation is a sum of linear maps: nothing is expanded before it is small.
        self.parts = nn.ModuleList(nn.Linear(width, hidden, bias=i == 0) for i, width in enumerate(inputs))
        self.norm = nn.LayerNorm(hidden)
        self.out = nn.Linear(hidden, outputs)

    def forward(self, *inputs: Tensor) -> Tensor:
        total = self.parts[0](inputs[0])
        for part, x in zip(self.parts[1:], inputs[1:], strict=True):
            total = total + part(x)
        mixed: Tensor = self.out(torch.relu(self.norm(total)))
        return mixed


class _Encoder(nn.Module):
    """Input MLP, then GNN layers with residual and LayerNorm: h [n, H]."""

    def __init__(self, config: HSDAGConfig) -> None:
        super().__init__()
        width, sizes = config.hidden, config.widths
        self.devices = _Devices(sizes.device, width) if config.device_aware else None
        self.pairs = _Mix([sizes.pair, width], width, width) if config.device_aware else None
        self.input = _Mix([sizes.node, width, width] if config.device_aware else [sizes.node], width, width)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.layers))

    def forward(self, node_x: Tensor, batch: GraphBatch) -> Tensor:
        if self.devices is None or self.pairs is None:
            h: Tensor = self.input(node_x)
        else:
            e = self.devices(batch.device_x, batch.device_mask)
            pairs = self.pairs(batch.pair_x, _of_graph(e, batch.graph))
            mask = None if batch.device_mask is None else _of_graph(batch.device_mask, batch.graph)
            h = self.input(node_x, _device_mean(pairs, mask), _device_max(pairs, mask))
        for layer in self.layers:
            h = layer(h, batch.edge_index, batch.edge_x)
        return h


class _Layer(nn.Module):
    """LayerNorm(h + activation of the convolutions), as in the paper's code; the directions of the edges summed."""

    def __init__(self, config: HSDAGConfig) -> None:
        super().__init__()
        self.directed = config.directed
        self.convs = nn.ModuleList(_convolution(config) for _ in range(2 if config.directed else 1))
        self.dropout = nn.Dropout(config.dropout)
        self.norm = nn.LayerNorm(config.hidden)

    def forward(self, h: Tensor, edge_index: Tensor, edge_x: Tensor) -> Tensor:
        back = edge_index.flip(0)
        if self.directed:
            message = self.convs[0](h, edge_index, edge_x) + self.convs[1](h, back, edge_x)
        else:
            message = self.convs[0](h, torch.cat([edge_index, back], 1))
        normed: Tensor = self.norm(h + self.dropout(torch.relu(message)))
        return normed


def _convolution(config: HSDAGConfig) -> nn.Module:
    width = config.hidden
    if config.conv == "gcn":
        return GCNConv(width, width)
    return ResGatedGraphConv(width, width, edge_dim=config.widths.edge, aggr="mean")


class _Devices(nn.Module):
    """Device embeddings [G, D, H], each with the mean of its graph's devices mixed in."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.each = _Mix([features], width, width)
        self.all = _Mix([width, width], width, width)

    def forward(self, device_x: Tensor, mask: Tensor | None) -> Tensor:
        e = self.each(device_x)
        embedded: Tensor = self.all(e, _device_mean(e, mask).unsqueeze(-2))
        return embedded


class _DevicePlacer(nn.Module):
    """Scores a cluster c against a device d: logit(c, d) = MLP(z_c, e_d, z_c * W e_d, pairs (v, d) of its nodes v)."""

    def __init__(self, config: HSDAGConfig) -> None:
        super().__init__()
        width, sizes = config.hidden, config.widths
        self.devices = _Devices(sizes.device, width)
        self.agree = nn.Linear(width, width)
        self.pair = _Mix([sizes.pair, width, width], width, width)
        self.log_weight = nn.Linear(sizes.pair, _SUMS)
        self.state = _Mix([width, width, width, width, sizes.pair, _SUMS], width, width)
        self.context = nn.ModuleList(_Context(width, sizes.edge) for _ in range(config.context))
        self.head = _Mix([width], width, 1)
        # Logits start from what the costs alone say of each device.
        self.costs = nn.Linear(sizes.pair, 1, bias=False)

    def forward(self, z: Tensor, h: Tensor, batch: GraphBatch, cluster: Tensor) -> Tensor:
        clusters = z.size(0)
        graph = _cluster_graph(batch, cluster, clusters)
        e = self.devices(batch.device_x, batch.device_mask)
        pair = torch.relu(self.pair(batch.pair_x, h.unsqueeze(1), _of_graph(e, batch.graph)))
        # Times are logarithms among the features; sums of exponentials can add them up. The first sum's weights also
        # make a mean in which the nodes that matter (such as those with the work) count more.
        weight = torch.exp((_LOG_UNIT * self.log_weight(batch.pair_x)).clamp(-15, 15))
        sums = scatter(weight, cluster, 0, clusters, "sum")
        weighted = scatter(weight[..., :1] * pair, cluster, 0, clusters, "sum") / sums[..., :1]
        x = _mean(batch.pair_x, cluster, clusters)

        e = _of_graph(e, graph)
        z = z.unsqueeze(1)
        u = self.state(weighted, z, e, z * self.agree(e), x, sums.log() / _LOG_UNIT)
        if len(self.context):
            crossing = _Crossing(batch, cluster, clusters)
            mask = None if batch.device_mask is None else _of_graph(batch.device_mask, graph)
            for layer in self.context:
                u = layer(u, crossing, batch, graph, mask)
        return (self.head(u) + self.costs(x)).squeeze(-1)


class _Crossing:
    """The edges between clusters, as a weight of every edge: its share in the mean over edges that enter (or leave)."""

    def __init__(self, batch: GraphBatch, cluster: Tensor, clusters: int) -> None:
        self.producer, self.consumer = cluster[batch.edge_index[0]], cluster[batch.edge_index[1]]
        crossing = (self.producer != self.consumer).to(batch.edge_x.dtype)
        self.entering = crossing / scatter(crossing, self.consumer, 0, clusters, "sum").clamp(min=1)[self.consumer]
        self.leaving = crossing / scatter(crossing, self.producer, 0, clusters, "sum").clamp(min=1)[self.producer]


class _Context(nn.Module):
    """A round of messages about a device d between clusters that share edges, and from the whole graph and all devices.

    u [c, D, H] → u [c, D, H]. Neighbouring clusters can so agree on a device. A message is the other cluster's state,
    multiplied by a gate that depends on the edge's features (Bresson & Laurent 2017, arXiv:1711.07553).
    """

    def __init__(self, width: int, edge_features: int) -> None:
        super().__init__()
        self.gates = nn.Linear(edge_features, 2 * width)
        self.values = nn.Linear(width, 2 * width)
        self.mix = _Mix([width] * 5, width, width)
        self.norm = nn.LayerNorm(width)

    def forward(
        self, u: Tensor, crossing: _Crossing, batch: GraphBatch, graph: Tensor | None, mask: Tensor | None
    ) -> Tensor:
        gate_in, gate_out = torch.sigmoid(self.gates(batch.edge_x)).chunk(2, -1)
        value_in, value_out = self.values(u).chunk(2, -1)
        gate_in, gate_out = gate_in * crossing.entering[:, None], gate_out * crossing.leaving[:, None]
        entering = value_in[crossing.producer] * gate_in.unsqueeze(1)
        leaving = value_out[crossing.consumer] * gate_out.unsqueeze(1)
        entering = scatter(entering, crossing.consumer, 0, u.size(0), "sum")
        leaving = scatter(leaving, crossing.producer, 0, u.size(0), "sum")
        devices = _device_mean(u, mask).unsqueeze(1)
        whole = u.mean(0, keepdim=True) if graph is None else _mean(u, graph, batch.device_x.size(0))[graph]
        normed: Tensor = self.norm(u + self.mix(u, entering, leaving, devices, whole))
        return normed


class _SoftmaxPlacer(nn.Module):
    """The paper's: an MLP from a cluster's embedding to a fixed number of devices."""

    def __init__(self, config: HSDAGConfig) -> None:
        super().__init__()
        assert config.devices is not None
        self.devices = config.devices
        self.head = nn.Sequential(
            nn.Linear(config.hidden, config.hidden), nn.ReLU(), nn.Linear(config.hidden, config.devices)
        )

    def forward(self, z: Tensor, h: Tensor, batch: GraphBatch, cluster: Tensor) -> Tensor:
        if batch.device_x.size(1) != self.devices:
            raise ValueError(f"expected graphs on {self.devices} devices (got {batch.device_x.size(1)})")
        logits: Tensor = self.head(z)
        return logits


def _mean(x: Tensor, index: Tensor, size: int) -> Tensor:
    """Means of the rows of x with the same index, [size, …]; 0 where there is none."""
    ones = x.new_ones(x.size(0))
    count = scatter(ones, index, 0, size, "sum").clamp(min=1)
    return scatter(x, index, 0, size, "sum") / count.view(-1, *[1] * (x.dim() - 1))


def _of_graph(values: Tensor, graph: Tensor | None) -> Tensor:
    """Rows [G, …] of each node's (or cluster's) graph; with one graph the row as it is, to broadcast: [1, …]."""
    return values if graph is None else values[graph]


def _cluster_graph(batch: GraphBatch, cluster: Tensor, clusters: int) -> Tensor | None:
    """Graph of each cluster, int64 [c]; None where there is one graph."""
    if batch.graph is None:
        return None
    return cluster.new_zeros(clusters).index_copy(0, cluster, batch.graph)


def _device_mean(x: Tensor, mask: Tensor | None) -> Tensor:
    """Mean over the devices that are there: [rows, D, H] → [rows, H]."""
    if mask is None:
        return x.mean(-2)
    there = mask.to(x.dtype).unsqueeze(-1)
    return (x * there).sum(-2) / there.sum(-2)


def _device_max(x: Tensor, mask: Tensor | None) -> Tensor:
    """Maximum over the devices that are there: [rows, D, H] → [rows, H]."""
    if mask is None:
        return x.amax(-2)
    return x.masked_fill(~mask.unsqueeze(-1), torch.finfo(x.dtype).min).amax(-2)


def parameters(network: nn.Module) -> int:
    """Returns the number of trained values."""
    return sum(p.numel() for p in network.parameters() if p.requires_grad)
