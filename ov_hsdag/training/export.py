"""A trained network as a policy folder, which places without torch; and back, for further training."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors.numpy import save_file

from ov_hsdag.policy.bundle import WEIGHTS_FILE, PolicyFolder, write_record
from ov_hsdag.training.network import HSDAGNetwork
from ov_hsdag.utils.errors import UserError, one_line


def export(network: HSDAGNetwork, folder: str | PathLike[str], run: Mapping[str, Any] | None = None) -> None:
    """Writes a policy folder, in place of the one that is there; results of the two agree within 1e-5.

    run: the record of the run that made it, JSON-able. Raises UserError where it cannot be written.
    """
    folder = Path(folder)
    weights = {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in network.state_dict().items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "policy.json").unlink(missing_ok=True)  # of another policy, whose weights are replaced
        save_file(weights, folder / WEIGHTS_FILE)
        for name in ("policy.xml", "policy.bin"):  # of format 1
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot write '{folder}': {error}; choose another output") from error
    write_record(folder, network.config, dict(run or {}))


def load(folder: str | PathLike[str]) -> HSDAGNetwork:
    """The network of a policy folder, with the exact weights that were exported. Raises UserError."""
    policy = PolicyFolder.load(Path(folder))
    network = HSDAGNetwork(policy.config)
    weights = policy.network.weights
    try:
        network.load_state_dict({name: torch.from_numpy(weights[name].copy()) for name in network.state_dict()})
    except (KeyError, RuntimeError) as error:
        raise UserError(f"policy '{folder}' has not the weights of its network: {one_line(error)}") from error
    return network
