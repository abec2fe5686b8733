"""A table of families of decoders: where they can be cut, and what the parts compute.

    tests/llm/run --table [FAMILY …]

or, in its environment, python -m tests.llm.table [FAMILY …]
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import nncf
import openvino as ov

from ov_hsdag.devices import virtual
from tests.llm import rig
from tests.llm.cuts import DEVICES, boundaries, growth, random_cuts
from tests.llm.families import NAMES, model_file
from tests.llm.test_place import verified

COLUMNS = (
    "family",
    "boundaries",
    "grows, bytes/token",
    "random cuts",
    "logits differ by",
    "f16 verified",
    "int8 verified",
    "GPU + CPU",
    "logits differ by",
)


def row(core: ov.Core, family: str) -> list[str]:
    """The cells of a family."""
    model = core.read_model(model_file(family))
    cuts = boundaries(core, model)
    fine = sum(one.feasible and one.predicted == one.submodels == 2 for one in cuts)
    sets = random_cuts(core, model)
    same = sum(one.good for one in sets)
    cells = [family, f"{fine} of {len(cuts)}", f"{growth(core, model):.0f}", f"{same} of {len(sets)}"]
    cells.append(f"{max(one.difference for one in sets):.0e}")
    for weights in ("f16", "int8"):
        with tempfile.TemporaryDirectory() as folder:
            found = verified(core, model.clone(), weights, Path(folder))
        good = found["equal"] and found["followed"] and found["submodels"] == 2
        cells.append("yes" if good else f"no: {found}")
    if rig.IS_POSSIBLE:
        both = rig.in_rig(model_file(family))
        cells += [f"{len(both.good)} of {len(both.boundaries)}", f"{both.difference:.0e}"]
    return cells + ["-"] * (len(COLUMNS) - len(cells))


def main(*families: str) -> None:
    nncf.set_log_level("ERROR")
    core = virtual.new_core()
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    for family in families or [name for name in NAMES if model_file(name).exists()]:
        print("| " + " | ".join(row(core, family)) + " |", flush=True)


if __name__ == "__main__":
    limits = "INFERENCE_NUM_THREADS=1,INFERENCE_PRECISION_HINT=f32"
    os.environ[virtual.VIRTUAL_DEVICES_VARIABLE] = ";".join(f"{name}:{limits}" for name in DEVICES)
    main(*sys.argv[1:])
