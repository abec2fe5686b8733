"""Training of the HSDAG policy: the only layer that imports torch (extra `train`)."""

import importlib
from os import PathLike
from pathlib import Path

from ov_hsdag.storage.files import check_model_output, check_not_input
from ov_hsdag.utils.errors import UserError

CHECKPOINT = "checkpoint.safetensors"
"""Name of the checkpoint in a run's folder, from which the run is resumed."""

FOUND_BY = {"policy": "hsdag", "measured": "search", "search": "search", "random": "random"}
"""Name of the placer that a placement of a fine-tuning run is attributed to, by the source of its entry.

Entries with the source "random" are of runs that version 0.2 began.
"""


def check_outputs(output: Path, source: str | PathLike[str] | None = None) -> None:
    """Checks that a run's files can be written to its folder.

    Args:
        output: the run's folder.
        source: file of the model that the run works on, if any.

    Raises:
        UserError: files cannot be written, or would replace `source`, its data, or another model.
    """
    for model in ("model.xml", "policy/policy.xml"):  # the second belongs to policies of format 1; export removes it
        check_model_output(output / model, source)
    policy = ("policy/policy.json", "policy/policy.safetensors")
    for name in (CHECKPOINT, "record.json", "placement.json", *policy):
        if source is not None:
            check_not_input(output / name, source)


def refuse_existing(output: Path) -> None:
    """Raises UserError where the folder has a run already."""
    if (output / CHECKPOINT).exists():
        raise UserError(f"there is a run in '{output}' already: continue it with --resume or choose another output")


def __getattr__(name: str) -> object:
    """Provides names of `ov_hsdag.training.pyg`, which is imported on first use, with torch and PyTorch Geometric."""
    if name in ("ProblemDataset", "placement_of", "to_data"):
        return getattr(importlib.import_module("ov_hsdag.training.pyg"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
