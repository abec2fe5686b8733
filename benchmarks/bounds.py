"""Lower bounds for the problems of anytime.py, and which of those without a placement are proven to have none.

    python benchmarks/bounds.py benchmarks/results/anytime.json --corpus FOLDER --sizes 300 1000

`ov_hsdag.baselines.relaxation` says what is relaxed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from ov_hsdag.baselines.relaxation import Bracket, bracket, relaxed

__all__ = ["Bracket", "bracket", "relaxed"]


def main() -> None:
    """Bounds the problems of a file that anytime.py wrote."""
    # Beside this file: as a script alone.
    from anytime import HELD_OUT, best_known, cells

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("records", type=Path, help="that anytime.py wrote with --output")
    parser.add_argument("--corpus", type=Path, required=True, help="folder of graphs that anytime.py had")
    parser.add_argument("--sizes", type=int, nargs="+", default=[300, 1000])
    parser.add_argument("--seeds", type=int, default=1, help="problems of each model and size")
    parser.add_argument("--solver-seconds", type=float, help="solve integer programmes too, for so long each")
    arguments = parser.parse_args()
    records = {
        (record["size"], record["name"]): record for record in json.loads(arguments.records.read_text())["problems"]
    }
    for size in arguments.sizes:
        above = []
        for cell in cells(arguments.corpus, sorted(HELD_OUT), size, range(arguments.seeds)):
            if (size, cell.name) not in records:
                continue
            best = best_known(records[size, cell.name])
            if arguments.solver_seconds:
                solved = bracket(cell.problem, seconds=arguments.solver_seconds)
                bound, best = solved.bound, min(best, solved.score)
            else:
                bound = relaxed(cell.problem)
            if np.isinf(bound):
                print(f"{size} {cell.name}: proven to have no feasible placement", flush=True)
            elif np.isinf(best):
                print(f"{size} {cell.name}: at least {bound:.6g}, no placement is known, none is excluded", flush=True)
            else:
                above.append(best / bound)
                print(f"{size} {cell.name}: {best:.6g}, at least {bound:.6g}: {best / bound:.3f}", flush=True)
        if above:
            mean = float(np.exp(np.log(above).mean()))
            print(f"{size}: best known / bound {mean:.3f} in the geometric mean of {len(above)}", flush=True)


if __name__ == "__main__":
    main()
