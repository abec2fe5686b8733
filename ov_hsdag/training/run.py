"""Functions that training runs share: checkpoints, steps of the optimizer, and the delay of interrupts.

A checkpoint is one safetensors file that is replaced as a whole. It holds the network's weights ("network.…"), Adam's
state ("adam.…"), torch's generator ("generator.torch") and further tensors of the run. Its metadata is one JSON object
that identifies the run and says how far it is.
"""

from __future__ import annotations

import json
import math
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from ov_hsdag.storage.files import atomic_file
from ov_hsdag.training import CHECKPOINT as CHECKPOINT
from ov_hsdag.utils.errors import UserError, one_line
from ov_hsdag.utils.reading import opened, parse_json

# Where this module exists, TensorBoard uses its own substitute for TensorFlow, which is large, slow to import and
# prints a lot.
sys.modules.setdefault("tensorboard.compat.notf", ModuleType("tensorboard.compat.notf"))
from torch.utils.tensorboard import SummaryWriter as SummaryWriter  # noqa: E402

ANEW = "begin a new run in another folder"
"""The remedy, in error messages, for a checkpoint of another release."""


def check_settings(values: Mapping[str, Any], default: Any) -> dict[str, Any]:
    """Checks the settings in a checkpoint's JSON.

    Args:
        values: the settings, by name.
        default: a dataclass with the known settings and values of their kinds.

    Returns:
        The settings.

    Raises:
        UserError: a setting is unknown, or its value is of another kind.
    """
    defaults = {item.name: getattr(default, item.name) for item in fields(default)}
    if unknown := sorted(set(values) - defaults.keys()):
        raise UserError(f"the run has settings that this version does not know: {', '.join(unknown)}; {ANEW}")
    for name, value in values.items():
        if not _is_of_kind(value, defaults[name]):
            raise UserError(f"the run's setting '{name}' is not of the kind that this version knows; {ANEW}")
    return dict(values)


def _is_of_kind(value: Any, default: Any) -> bool:
    """Whether a JSON value is of the kind of a setting's default: a number, a text, a list of integers or a dict."""
    if isinstance(default, str | dict):
        return isinstance(value, type(default))
    if isinstance(default, tuple):
        return isinstance(value, list) and all(type(item) is int for item in value)
    number = isinstance(value, int | float) and math.isfinite(value)
    return number or (value is None and default is None)


def write_checkpoint(
    path: Path,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, Any],
) -> None:
    """Writes a checkpoint, whole or not at all.

    Args:
        path: its file.
        network: the network.
        optimizer: its optimizer, Adam.
        tensors: further tensors of the run, by name.
        metadata: description of the run, JSON-able; "format" distinguishes kinds of runs and their versions.
    """
    stored = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
    for number, values in optimizer.state_dict()["state"].items():
        stored |= {f"adam.{number}.{name}": value for name, value in values.items()}
    stored |= {"generator.torch": torch.get_rng_state(), **tensors}
    data = save({name: tensor.contiguous() for name, tensor in stored.items()}, {"run": json.dumps(metadata)})
    with atomic_file(path, "wb") as file:
        file.write(data)


def read_metadata(path: Path, version: str) -> dict[str, Any]:
    """Reads the metadata of a checkpoint.

    Args:
        path: its file.
        version: the "format" that the metadata must have.

    Returns:
        The metadata that `write_checkpoint` was given.

    Raises:
        UserError: there is no such file, it is no checkpoint, or it has another format.
    """
    try:
        with opened(path), safe_open(path, "pt") as file:
            metadata = parse_json((file.metadata() or {})["run"])
        if metadata["format"] != version:
            raise UserError(f"checkpoint '{path}' has format {metadata['format']!r:.40}, expected {version}; {ANEW}")
    except FileNotFoundError as error:
        raise UserError(f"there is no run to resume: '{path}' is missing") from error
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise UserError(f"'{path}' is not a checkpoint of a run: {error}") from error
    return dict(metadata)


@contextmanager
def readable_checkpoint(path: Path) -> Iterator[None]:
    """Turns errors inside of the block, which damaged content of a checkpoint causes, into a UserError."""
    try:
        yield
    except (SafetensorError, LookupError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError) as error:
        raise UserError(f"'{path}' is a damaged checkpoint: {one_line(error)}") from error


def restore(path: Path, network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Restores the network, Adam and torch's global generator from a checkpoint.

    Args:
        path: file of the checkpoint.
        network: the network, which gets the stored weights.
        optimizer: Adam, which gets the stored state.

    Returns:
        All tensors of the checkpoint, by name.

    Raises:
        UserError: the checkpoint is damaged, or has another network.
    """
    with readable_checkpoint(path), safe_open(path, "pt") as file:
        tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 it is no dict
    try:
        network.load_state_dict({name[8:]: value for name, value in tensors.items() if name.startswith("network.")})
    except RuntimeError as error:
        raise UserError(f"'{path}' has another network than this version makes: {one_line(error)}; {ANEW}") from error
    with readable_checkpoint(path):
        state = optimizer.state_dict()
        for name, tensor in tensors.items():
            if name.startswith("adam."):
                _, number, key = name.split(".")
                state["state"].setdefault(int(number), {})[key] = tensor
        optimizer.load_state_dict(state)
        torch.set_rng_state(tensors["generator.torch"])
    return tensors


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delays Ctrl-C (KeyboardInterrupt) to the end of the block, so that the block is done as a whole."""
    before, pressed = signal.getsignal(signal.SIGINT), threading.Event()
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: pressed.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed.is_set():
        raise KeyboardInterrupt


def follow(network: nn.Module, optimizer: torch.optim.Optimizer, most: float) -> float:
    """Clips the gradient and makes a step of the optimizer; without a step if the gradient is not finite.

    Args:
        network: the network with its gradient.
        optimizer: its optimizer.
        most: largest norm of the gradient, to which a larger one is scaled down.

    Returns:
        The norm of the gradient before clipping.
    """
    norm = torch.nn.utils.clip_grad_norm_(network.parameters(), most)
    if torch.isfinite(norm):
        optimizer.step()
    return float(norm)
