"""What training runs share: the checkpoint, one safetensors file that is replaced as a whole, and a step of descent.

A checkpoint holds the network's weights ("network.…"), Adam's state ("adam.…"), torch's generator ("generator.torch"),
whatever else a run adds, and, as its metadata, one JSON object that says what the run is and where it stands.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.files import atomic_file

CHECKPOINT = "checkpoint.safetensors"
"""Name of the file in a run's folder."""


def check_settings(values: Mapping[str, Any], known: Collection[str]) -> None:
    """Raises UserError for settings of a run that are not among those this version knows."""
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise UserError(f"the run has settings that this version does not know: {', '.join(unknown)}")


def write_checkpoint(
    path: Path,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, Any],
) -> None:
    """Writes a checkpoint, whole or not at all.

    Args:
        path: of the file.
        network: its weights are stored.
        optimizer: Adam, its state is stored.
        tensors: what the run adds.
        metadata: JSON-able; "format" tells kinds of runs and their versions apart.
    """
    stored = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
    for number, values in optimizer.state_dict()["state"].items():
        stored |= {f"adam.{number}.{name}": value for name, value in values.items()}
    stored |= {"generator.torch": torch.get_rng_state(), **tensors}
    data = save({name: tensor.contiguous() for name, tensor in stored.items()}, {"run": json.dumps(metadata)})
    with atomic_file(path, "wb") as file:
        file.write(data)


def read_metadata(path: Path, version: str) -> dict[str, Any]:
    """What a checkpoint says of its run. Raises UserError where the file is none, or of another format."""
    try:
        with safe_open(path, "pt") as file:
            metadata = json.loads((file.metadata() or {})["run"])
        if metadata["format"] != version:
            raise UserError(f"checkpoint '{path}' has format {metadata['format']}, expected {version}")
    except FileNotFoundError as error:
        raise UserError(f"there is no run to resume: '{path}' is missing") from error
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise UserError(f"'{path}' is not a checkpoint of a run: {error}") from error
    return dict(metadata)


def restore(path: Path, network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Puts network, optimiser and torch's generator where the checkpoint is; all its tensors.

    Raises UserError where it has another network.
    """
    with safe_open(path, "pt") as file:
        tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 it is no dict
    try:
        network.load_state_dict({name[8:]: value for name, value in tensors.items() if name.startswith("network.")})
    except RuntimeError as error:
        raise UserError(f"'{path}' has another network than this version makes: {error}") from error
    state = optimizer.state_dict()
    for name, tensor in tensors.items():
        if name.startswith("adam."):
            _, number, key = name.split(".")
            state["state"].setdefault(int(number), {})[key] = tensor
    optimizer.load_state_dict(state)
    torch.set_rng_state(tensors["generator.torch"])
    return tensors


def descend(network: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor, most: float) -> float:
    """A step of the optimiser along the gradient of `loss`, its norm at most `most`; none where it is not finite.

    Returns the norm before it was limited.
    """
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    norm = torch.nn.utils.clip_grad_norm_(network.parameters(), most)
    if torch.isfinite(norm):
        optimizer.step()
    return float(norm)
