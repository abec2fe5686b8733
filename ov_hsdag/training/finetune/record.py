"""record.json: what a run began with, everything that it measured, and what it chose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from itertools import accumulate
from typing import Any

import torch

from ov_hsdag.calibration.correction import Fit
from ov_hsdag.measuring.evaluator import HETERO_DEFAULT
from ov_hsdag.training.finetune.finalists import Choice
from ov_hsdag.training.finetune.judges import simple_placement
from ov_hsdag.training.finetune.settings import Settings
from ov_hsdag.training.finetune.state import State
from ov_hsdag.training.finetune.task import Task


def make_record(
    state: State, task: Task, settings: Settings, about: Mapping[str, Any], fit: Fit, choice: Choice
) -> dict[str, Any]:
    """The record of a run, JSON-able.

    Measurements are counted from 1, without the simple placements, as budget, progress and table of `ov-hsdag finetune`
    do: `number` of an entry, the keys of `final`, `measurement` of `best`. Ratios are to `reference`. `name` of an
    entry is that of its device, or of HETERO's own choice, and null for other placements.
    """
    numbers = {index: number for number, index in enumerate(state.proposed, start=1)}
    # A device's name for what is both.
    names = (HETERO_DEFAULT, *reversed(task.problem.devices))
    simple = {simple_placement(task.problem, name).tobytes(): name for name in names}
    best_so_far = accumulate((entry.measurement.ratio for entry in state.measured), max, initial=1.0)
    return {
        "about": dict(about),
        "settings": asdict(settings),
        "reference": state.reference,
        "singles": {
            task.problem.devices[int(entry.placement[0])]: entry.measurement.ratio
            for entry in state.entries
            if entry.source == "single" and (entry.placement == entry.placement[0]).all()
        },
        "measurements": len(state.proposed),
        "failed": sum(entry.measurement.failed for entry in state.measured),
        "recalled": state.recalled,
        "chosen": choice.name,
        "best": {**choice.measurement.to_dict(), "measurement": numbers.get(choice.entry)},
        "best_so_far": [round(ratio, 4) for ratio in best_so_far][1:],
        "entries": [
            {
                "number": numbers.get(index),
                "name": simple.get(entry.placement.tobytes()) if entry.simple else None,
                **entry.to_dict(),
                "chosen": index == choice.entry,
            }
            for index, entry in enumerate(state.entries)
        ],
        "final": {str(numbers[index]): measurement.to_dict() for index, measurement in state.final.items()},
        "correction": {"error": round(fit.error, 4), **task.corrector.describe(fit.mean)},
        "seconds": round(state.seconds, 1),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
    }
