"""What runs of training leave, and commands that train in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from ov_hsdag.training.run import CHECKPOINT
from tests.processes import ended

PROJECT = str(Path(__file__).parents[1])


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / CHECKPOINT)


def same(a: Path, b: Path) -> bool:
    """Whether checkpoints are equal, NaN included."""
    first, second = weights(a), weights(b)
    return first.keys() == second.keys() and all(
        torch.equal(first[name].nan_to_num(nan=-7.0), second[name].nan_to_num(nan=-7.0)) for name in first
    )


def environment() -> dict[str, str]:
    return {**os.environ, "OV_HSDAG_DISABLE": "1", "PYTHONPATH": os.pathsep.join([PROJECT, *sys.path])}


def command(*arguments: object, status: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
    """`ov-hsdag ARGUMENTS` in a new process, which ends with this status."""
    words = (sys.executable, "-c", "from ov_hsdag.cli import main; main()", *arguments)
    return ended(*words, status=status, env=environment() | variables)
