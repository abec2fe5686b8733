"""Decoders cut between layers on GPU and CPU: OpenVINO's GPU plugin without a GPU (tests/rig).

    tests/rig/run python -m tests.llm.rig FOLDER/openvino_model.xml …

prints a line of JSON for each model: its cuts, and how far the two devices alone are apart.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import openvino as ov

from ov_hsdag.devices import virtual
from tests.llm.cuts import EXACT, Computed, computed, largest_difference, problem_of
from tests.llm.layers import cut, generate, layers
from tests.processes import ended

RIG = Path(__file__).resolve().parent.parent / "rig"
DEVICES = ("GPU", "CPU")

IS_POSSIBLE = (platform.system(), platform.machine()) == ("Linux", "x86_64")


@dataclasses.dataclass(frozen=True)
class OnBoth:
    """What `on_both` finds: a decoder that is cut between GPU and CPU, compared with the two devices alone."""

    boundaries: list[Computed]  # a cut each; the devices take turns in being the first
    same_tokens: bool  # whether the greedy tokens of the devices alone are the same
    apart: float  # largest difference between the logits of the devices alone

    @property
    def good(self) -> list[Computed]:
        """Boundaries with the submodels as predicted and the tokens of both devices alone."""
        return [one for one in self.boundaries if one.good and self.same_tokens]

    @property
    def difference(self) -> float:
        """The largest of all logits: of the cuts from either device alone, and of these from each other."""
        return max(self.apart, *(one.difference for one in self.boundaries))


def on_both(core: ov.Core, model: ov.Model) -> OnBoth:
    """Cuts a decoder at every boundary, and compares what it computes with the GPU alone and the CPU alone."""
    references = [generate(model, core.compile_model(model.clone(), device, EXACT)) for device in DEVICES]
    own = model.clone()  # preparing a model changes it
    problem = problem_of(core, own, DEVICES)
    found = []
    for boundary in range(1, int(layers(problem).max()) + 1):
        placement = cut(problem, [boundary], [1 - boundary % 2, boundary % 2])
        found.append(computed(core, own, problem, placement, len(DEVICES), references))
    apart = largest_difference(references[0][1], [references[1][1]])
    return OnBoth(found, references[0][0] == references[1][0], apart)


def make() -> None:
    """Sets up the rig (tests/rig/setup), unless that has been done."""
    subprocess.run([sys.executable, str(RIG / "setup")], check=True, capture_output=True, timeout=600)


def in_rig(file: Path) -> OnBoth:
    """Runs `on_both` on a model file in a new process in the rig, and returns its result."""
    make()
    environment = {key: value for key, value in os.environ.items() if key != virtual.VIRTUAL_DEVICES_VARIABLE}
    done = ended(RIG / "run", sys.executable, "-m", "tests.llm.rig", file, env=environment, timeout=900)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return OnBoth(**(found | {"boundaries": [Computed(**one) for one in found["boundaries"]]}))


def main(*files: str) -> None:
    """Runs `on_both` on model files, and prints each result as a line of JSON."""
    core = ov.Core()
    for file in files:
        print(json.dumps(dataclasses.asdict(on_both(core, core.read_model(file)))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
