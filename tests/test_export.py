"""The exported policy is the trained network: same numbers, same weights, no torch."""

from __future__ import annotations

import dataclasses
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from ov_hsdag import _native
from ov_hsdag.policy import bundle
from ov_hsdag.policy.bundle import PolicyFolder
from ov_hsdag.policy.config import HSDAGConfig, Widths
from ov_hsdag.policy.features import policy_input
from ov_hsdag.training.network import HSDAGNetwork, export, load, tensors
from tests.graphs import random_problem
from tests.policy_inputs import WIDTHS, random_clusters, random_input

SMALL = dataclasses.replace(HSDAGConfig.base(Widths(**WIDTHS)), hidden=16, layers=2, context=2)
CONFIGS = {"with context": SMALL, "one clustering's own": dataclasses.replace(SMALL, context=0)}


@pytest.fixture(autouse=True)
def _torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OV_HSDAG_DISABLE", "1")
    torch.manual_seed(0)


def assert_same(
    network: HSDAGNetwork, policy: PolicyFolder, nodes: int, devices: int, edges: int | None = None
) -> None:
    generator = np.random.default_rng(nodes)
    x, cluster = random_input(generator, nodes, devices, edges), random_clusters(generator, nodes)
    with torch.no_grad():
        h, edge_score = network.encode(tensors(x))
        logits = network.logits(tensors(x), h, edge_score, torch.from_numpy(cluster).long())
    ours = policy.encode(x)
    np.testing.assert_allclose(ours[0], h.numpy(), atol=1e-5, rtol=0)
    np.testing.assert_allclose(ours[1], edge_score.numpy(), atol=1e-5, rtol=0)
    np.testing.assert_allclose(policy.place(x, *ours, cluster), logits.numpy(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", CONFIGS)
def test_numpy_and_torch_agree_at_any_size(name: str, tmp_path: Path) -> None:
    network = HSDAGNetwork(CONFIGS[name]).eval()
    export(network, tmp_path)
    policy = PolicyFolder.load(tmp_path)
    for nodes, devices in ((2, 2), (50, 2), (51, 3), (700, 4), (50, 2)):
        assert_same(network, policy, nodes, devices)
    assert_same(network, policy, 1, 2, edges=0)
    assert_same(network, policy, 9, 2, edges=0)


def test_the_network_that_ships_agrees_at_20_000_nodes_and_fits_its_limit(tmp_path: Path) -> None:
    wide = Widths(node=160, edge=16, pair=24, device=24)  # more features than there are
    export(HSDAGNetwork(HSDAGConfig.base(wide)), tmp_path)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 5e6

    network = HSDAGNetwork(HSDAGConfig.base(SMALL.widths)).eval()
    export(network, tmp_path)
    assert_same(network, PolicyFolder.load(tmp_path), 20_000, 2)


def test_the_shipped_policy_says_in_numpy_what_it_says_in_torch() -> None:
    policy, network = PolicyFolder.load(), load(bundle.find(None)).eval()
    for seed in range(20):
        objective = ("latency", "throughput")[seed % 2]
        problem = random_problem(seed, nodes=40 + 20 * seed, devices=2 + seed % 4, objective=objective, missing=0.1)
        x = policy_input(problem)
        h, edge_score = policy.encode(x)
        with torch.no_grad():
            h_torch, score_torch = network.encode(tensors(x))
            found = [
                _native.parse(len(x.node_x), x.edge_index, scores, policy.config.levels, policy.config.min_clusters)
                for scores in (edge_score, score_torch.numpy())
            ]
            np.testing.assert_array_equal(found[0], found[1])
            cluster = torch.from_numpy(found[1]).long()
            wanted = network.logits(tensors(x), h_torch, score_torch, cluster).numpy()
        logits = policy.place(x, h, edge_score, found[0])
        np.testing.assert_allclose(logits, wanted, atol=1e-4, rtol=0)
        np.testing.assert_array_equal(logits.argmax(1), wanted.argmax(1))


def test_a_loaded_network_has_the_exact_weights(tmp_path: Path) -> None:
    network = HSDAGNetwork(SMALL)
    export(network, tmp_path, {"seconds": 3})
    loaded = load(tmp_path)
    assert loaded.config == network.config
    assert loaded.state_dict().keys() == network.state_dict().keys()
    assert all(torch.equal(value, loaded.state_dict()[key]) for key, value in network.state_dict().items())
    assert PolicyFolder.load(tmp_path).record["run"] == {"seconds": 3}


def test_exporting_leaves_the_network_as_it_was(tmp_path: Path) -> None:
    network = HSDAGNetwork(SMALL).train()
    before = {key: value.clone() for key, value in network.state_dict().items()}
    export(network, tmp_path / "new" / "folder")
    assert network.training and all(module.training for module in network.modules())
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())


def test_a_policy_of_format_1_is_read(tmp_path: Path) -> None:
    """Exported by the release before: weights in an OpenVINO model; outputs of that release for one input beside it."""
    with zipfile.ZipFile(Path(__file__).parent / "data" / "policy_format_1.zip") as archive:
        archive.extractall(tmp_path)
    expected = np.load(tmp_path / "outputs.npz")
    x, cluster = random_input(np.random.default_rng(3), 40, 3), expected["cluster"]
    for folder in (tmp_path, tmp_path / "new"):
        policy = PolicyFolder.load(folder)
        h, edge_score = policy.encode(x)
        np.testing.assert_allclose(edge_score, expected["edge_score"], atol=1e-5, rtol=0)
        np.testing.assert_allclose(policy.place(x, h, edge_score, cluster), expected["logits"], atol=1e-5, rtol=0)
        if folder == tmp_path:
            export(load(folder), tmp_path / "new", policy.record["run"])
    assert PolicyFolder.load(tmp_path / "new").record["format"] == 2
