"""Plots of runs: what a pretraining and a fine-tuning learned, from their records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ov_hsdag.measuring.evaluator import HETERO_DEFAULT
from ov_hsdag.utils.plot import Axis, Series, plot

PLOT = "curves.svg"
"""Name of the plot in a run's folder."""

_VALIDATED = {"gap": "gap to searched placements", "within_3": "within 3% of them", "infeasible": "infeasible"}

# Sources of measured placements, as people know them, in the order of their colours.
_SOURCES = {"policy": "policy", "search": "search", "measured": "search from a measured one", "random": "random"}


def plot_of_pretraining(record: Mapping[str, Any]) -> str:
    """The validations of a pretraining as SVG. record: see `ov_hsdag.training.pretrain.make_record`."""
    history, settings = record["history"], record["settings"]
    series = [
        Series(name, [(entry["step"], 100 * entry[key]) for entry in history]) for key, name in _VALIDATED.items()
    ]
    imitation, reinforce = settings["imitation_steps"], settings["reinforce_steps"]
    steps = f"steps ({imitation:,} of imitation, then {reinforce:,} of REINFORCE)"
    return plot("Pretraining", Axis(steps, shown=(0,), whole=True), Axis("% (validation problems)", shown=(0,)), series)


def plot_of_finetuning(record: Mapping[str, Any]) -> str:
    """The measurements of a fine-tuning as SVG. record: see `ov_hsdag.training.finetune.closing.make_record`."""
    entries = [entry for entry in record["entries"] if entry["number"] is not None]
    good = [entry for entry in entries if not entry["measurement"]["error"]]
    found = {
        source: [(entry["number"], entry["measurement"]["ratio"]) for entry in good if entry["source"] == source]
        for source in _SOURCES
    }
    series = [
        Series(_SOURCES[source], points, "dots", colour)
        for colour, (source, points) in enumerate(found.items())
        if points
    ]
    best = [*enumerate([1.0, *record["best_so_far"]])]  # before any measurement: the best simple placement
    over = "HETERO's own rule" if record["reference"] == HETERO_DEFAULT else "the best single device"
    how = "simulated" if record["about"].get("simulated") else "measured"
    return plot(
        "Fine-tuning",
        Axis("measurements", shown=(0,), whole=True),
        Axis(f"x {over}, {how}", shown=(1.0,)),
        [*series, Series("best so far", best, "line", len(_SOURCES))],
    )
