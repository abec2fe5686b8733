"""PyTorch Geometric: training problems as its data, and the shipped policy beside its layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, ResGatedGraphConv
from torch_geometric.utils import scatter

from ov_hsdag.policy.bundle import DEFAULT, PolicyFolder
from ov_hsdag.policy.features import policy_input
from ov_hsdag.training import ProblemDataset, placement_of, to_data
from ov_hsdag.training.corpus import Corpus, write_generated
from ov_hsdag.training.network import HSDAGNetwork, load, tensors
from tests.graphs import random_problem


class OverPyG(HSDAGNetwork):
    """The network with PyG's layers in the place of its own: convolutions by their names, and sums of rows."""

    def _gated(self, name: str, h: Tensor, x: Any, entering: Any, leaving: Any) -> Tensor:
        total = torch.zeros_like(h)
        for number, edge_index in enumerate((x.edge_index, x.edge_index.flip(0))):
            conv = ResGatedGraphConv(h.shape[1], h.shape[1], edge_dim=x.edge_x.shape[1], aggr="mean")
            prefix = f"{name}.convs.{number}."
            weights = {key.removeprefix(prefix): w for key, w in self.weights.items() if key.startswith(prefix)}
            conv.load_state_dict(weights)  # strict: the same names, and no others
            total = total + conv(h, edge_index, x.edge_x)
        return total

    def sum_rows(self, rows: Tensor, index: Tensor, size: int) -> Tensor:
        return scatter(rows, index, dim_size=size, reduce="sum")


@pytest.mark.parametrize("seed", range(3))
def test_the_shipped_policy_says_the_same_over_pygs_layers(seed: int) -> None:
    problem = random_problem(seed, nodes=60, devices=3, missing=0.1)
    item = policy_input(problem)
    shipped = PolicyFolder.load(DEFAULT)
    with torch.no_grad():
        over = OverPyG(shipped.config)
        over.load_state_dict(load(shipped.path).state_dict())
        over.eval()
        x = tensors(item)
        h, score = over.encode(x)
        cluster = np.arange(len(item.node_x)) // 2
        found = over.logits(x, h, score, torch.from_numpy(cluster))
    numpy_h, numpy_score = shipped.encode(item)
    np.testing.assert_allclose(h, numpy_h, atol=1e-5)
    np.testing.assert_allclose(found, shipped.place(item, numpy_h, numpy_score, cluster), atol=1e-5)


def test_a_problem_is_a_graph_with_labels() -> None:
    problem = random_problem(1, nodes=40, devices=3, missing=0.2)
    data = to_data(problem)
    data.validate(raise_on_error=True)
    nodes = int(problem.coarse.max()) + 1
    assert data.num_nodes == nodes and data.x.shape[0] == nodes and data.pair_x.shape[:2] == (nodes, 3)
    np.testing.assert_allclose(data.y_share.sum(1), 1, rtol=1e-5)
    assert data.us.shape == (nodes, 3) and torch.isfinite(data.us).any(1).all()
    single = problem.scores(problem.singles).min()
    score = problem.scores(placement_of(problem, data.y))[0]
    assert np.isfinite(score) and score <= single


@pytest.mark.slow
def test_a_dataset_of_a_corpus_trains_any_model(tmp_path: Path) -> None:
    """Labels are of problems with two or more devices; a batch has equally many."""
    write_generated(tmp_path / "corpus", count=3)
    dataset = ProblemDataset(Corpus.load(tmp_path / "corpus", seed=3), tmp_path / "targets")
    two = [data for data in dataset if data.pair_x.shape[1] == 2]
    assert 0 < len(two) <= len(dataset) <= 16
    torch.manual_seed(0)
    inputs = two[0].x.shape[1] + 2 * two[0].pair_x.shape[2]
    convolution, head = GCNConv(inputs, 16), torch.nn.Linear(16 + inputs, 2)
    optimizer = torch.optim.Adam([*convolution.parameters(), *head.parameters()], lr=1e-2)
    losses = []
    loader = DataLoader(two, batch_size=4)
    batches = len(loader)
    for _ in range(15):
        for batch in loader:
            features = torch.cat([batch.x, batch.pair_x.flatten(1)], 1)
            logits = head(torch.cat([convolution(features, batch.edge_index).relu(), features], 1))
            loss = torch.nn.functional.cross_entropy(logits, batch.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    # What predicting each label at its rate, without looking at the graph, would end at.
    rates = torch.bincount(torch.cat([data.y for data in two]), minlength=2).double()
    constant = float(torch.distributions.Categorical(rates).entropy())
    assert np.mean(losses[-batches:]) < 0.9 * constant
