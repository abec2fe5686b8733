"""Training of the HSDAG policy: the only layer that imports torch (extra `train`)."""

import importlib
from os import PathLike
from pathlib import Path

from ov_hsdag.storage.files import check_model_output, check_not_input
from ov_hsdag.utils.errors import UserError

CHECKPOINT = "checkpoint.safetensors"
"""Name of the file in a run's folder that it continues from."""

FOUND_BY = {"policy": "hsdag", "measured": "search", "search": "search", "random": "random"}
"""Placer that a placement of a fine-tuning run counts for, by the source of its entry."""


def check_outputs(output: Path, source: str | PathLike[str] | None = None) -> None:
    """Raises UserError where a run's files cannot be written, or would replace `source`, its data, or another model."""
    for model in ("model.xml", "policy/policy.xml"):  # the second is of format 1, and removed
        check_model_output(output / model, source)
    policy = ("policy/policy.json", "policy/policy.safetensors")
    for name in (CHECKPOINT, "record.json", "placement.json", *policy):
        if source is not None:
            check_not_input(output / name, source)


def refuse_existing(output: Path) -> None:
    """Raises UserError where there is a run in the folder."""
    if (output / CHECKPOINT).exists():
        raise UserError(f"there is a run in '{output}' already: continue it with --resume or choose another output")


def __getattr__(name: str) -> object:
    """Names of `ov_hsdag.training.pyg`, which imports torch and PyTorch Geometric when they are asked for."""
    if name in ("ProblemDataset", "placement_of", "to_data"):
        return getattr(importlib.import_module("ov_hsdag.training.pyg"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
