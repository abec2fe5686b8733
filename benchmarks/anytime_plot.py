"""Draws the curves of anytime.py: score / best known (geometric mean) over processor time, one panel for each size.

    python -m benchmarks.anytime_plot benchmarks/results/anytime.json docs/anytime.svg

Needs matplotlib, which nothing else here does.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot

from benchmarks.anytime import best_known, ratios

_STYLES = {
    "multilevel": ("#0b5fa5", "-"),
    "random edges": ("#5da5da", "--"),
    "repeated structure": ("#60bd68", "--"),
    "before": ("#555555", "-"),
    "METIS": ("#f17cb0", "-."),
    "Mt-KaHyPar": ("#b2912f", "-."),
}


def main() -> None:
    """Writes the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("picture", type=Path, help="SVG or PNG")
    arguments = parser.parse_args()
    records = json.loads(arguments.results.read_text(encoding="utf-8"))["problems"]
    records = [record for record in records if np.isfinite(best_known(record))]
    sizes = sorted({record["size"] for record in records})
    pyplot.rcParams["svg.hashsalt"] = "anytime"
    figure, panels = pyplot.subplots(1, len(sizes), figsize=(4 * len(sizes), 3.4), sharey=True, squeeze=False)
    for panel, size in zip(panels[0], sizes, strict=True):
        chosen = [record for record in records if record["size"] == size]
        times = np.geomspace(1e-3, min(record["seconds"] for record in chosen), 60).tolist()
        best = [best_known(record) for record in chosen]
        for name in _STYLES:
            if not all(name in record["curves"] for record in chosen):
                continue
            values = ratios([record["curves"][name] for record in chosen], best, times)
            color, line = _STYLES[name]
            panel.plot(times, np.exp(np.log(values).mean(axis=0)), line, color=color, label=name)
        panel.set(xscale="log", xlabel="processor time, s", title=f"{size:,} operations, {len(chosen)} problems")
        panel.set_yscale("log")
        panel.set_yticks([1, 1.05, 1.2, 1.5, 2, 3], ["1", "1.05", "1.2", "1.5", "2", "3"])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("score / best known")
    max(panels[0], key=lambda panel: len(panel.get_lines())).legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(arguments.picture, metadata={"Date": None} if arguments.picture.suffix == ".svg" else None)


if __name__ == "__main__":
    main()
