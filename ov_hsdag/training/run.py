"""What training runs share: checkpoints, steps of the optimizer, and how interrupts are delayed.

A checkpoint is one safetensors file that is replaced as a whole. It holds the network's weights ("network.…"), Adam's
state ("adam.…"), torch's generator ("generator.torch"), whatever else a run adds, and, as its metadata, one JSON object
that says what the run is and where it stands.
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

# TensorBoard looks for this module, and takes its own substitute for TensorFlow where it is there: TensorFlow is large,
# slow to import and talks a lot.
sys.modules.setdefault("tensorboard.compat.notf", ModuleType("tensorboard.compat.notf"))
from torch.utils.tensorboard import SummaryWriter as SummaryWriter  # noqa: E402

ANEW = "begin a new run in another folder"
"""What to do about a checkpoint of another release."""


def check_settings(values: Mapping[str, Any], default: Any) -> dict[str, Any]:
    """A run's settings, of a checkpoint's JSON, with names and kinds of the dataclass `default`. Raises UserError."""
    known = {item.name: getattr(default, item.name) for item in fields(default)}
    if unknown := sorted(set(values) - known.keys()):
        raise UserError(f"the run has settings that this version does not know: {', '.join(unknown)}; {ANEW}")
    for name, value in values.items():
        if not _is_like(value, known[name]):
            raise UserError(f"the run's setting '{name}' is not of the kind that this version knows; {ANEW}")
    return dict(values)


def _is_like(value: Any, default: Any) -> bool:
    """Whether a value of JSON is of the kind of a setting: a number, a text, numbers or settings."""
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
    """Writes a checkpoint, whole or not at all. metadata: JSON-able; "format" tells runs and their versions apart."""
    stored = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
    for number, values in optimizer.state_dict()["state"].items():
        stored |= {f"adam.{number}.{name}": value for name, value in values.items()}
    stored |= {"generator.torch": torch.get_rng_state(), **tensors}
    data = save({name: tensor.contiguous() for name, tensor in stored.items()}, {"run": json.dumps(metadata)})
    with atomic_file(path, "wb") as file:
        file.write(data)


def read_metadata(path: Path, version: str) -> dict[str, Any]:
    """The metadata that `write_checkpoint` was given, of the format `version`. Raises UserError."""
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
    """A block that reads a checkpoint: what damaged content of it causes is a UserError."""
    try:
        yield
    except (SafetensorError, LookupError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError) as error:
        raise UserError(f"'{path}' is a damaged checkpoint: {one_line(error)}") from error


def restore(path: Path, network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Puts network, Adam and torch's generator where the checkpoint is; all its tensors, by name. Raises UserError."""
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
    """Delays Ctrl-C (KeyboardInterrupt) to the end of the block, so that what belongs together happens as a whole."""
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
    """A step of the optimizer along the gradient, its norm clipped to `most`, if it is finite; the norm before that."""
    norm = torch.nn.utils.clip_grad_norm_(network.parameters(), most)
    if torch.isfinite(norm):
        optimizer.step()
    return float(norm)
