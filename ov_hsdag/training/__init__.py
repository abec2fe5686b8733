"""Training of the HSDAG policy: the only layer that imports torch (extra `train`)."""

from pathlib import Path

from ov_hsdag.utils.errors import UserError

CHECKPOINT = "checkpoint.safetensors"
"""Name of the file in a run's folder that it continues from."""

FOUND_BY = {"policy": "hsdag", "measured": "search", "search": "search", "random": "random"}
"""Placer that a placement of a fine-tuning run counts for, by the source of its entry."""


def refuse_existing(output: Path) -> None:
    """Raises UserError where there is a run in the folder."""
    if (output / CHECKPOINT).exists():
        raise UserError(f"there is a run in '{output}' already: continue it with --resume or choose another output")
