"""What a fine-tuning run carries from measurement to measurement, its checkpoint, and what stays the same in it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ov_hsdag.calibration.correction import Corrector, Fit, Terms
from ov_hsdag.measuring.evaluator import HETERO_DEFAULT, Measurement
from ov_hsdag.placers.single import simple_placers
from ov_hsdag.policy.config import HSDAGConfig
from ov_hsdag.policy.features import PolicyInput, policy_input
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.training.finetune.settings import Settings
from ov_hsdag.training.network import HSDAGNetwork
from ov_hsdag.training.rollout import Example, impact
from ov_hsdag.training.run import ANEW, read_metadata, readable_checkpoint, restore, write_checkpoint
from ov_hsdag.utils.errors import UserError

FORMAT = "finetune-1"


@dataclass(frozen=True, eq=False)
class Entry:
    """A measured placement."""

    placement: NDArray[np.uint8]  # uint8 [groups]
    measurement: Measurement
    # "single", "hetero" (HETERO's own choice), the proposer ("policy", "search", "random"), or "measured" (refined)
    source: str
    predicted: float | None  # the ratio that the corrected simulator predicted; None for simple placements

    @property
    def simple(self) -> bool:
        """Whether it needed no search: such entries do not count against the budget."""
        return self.source in ("single", HETERO_DEFAULT)

    def to_dict(self) -> dict[str, Any]:
        """The entry without its placement, JSON-able."""
        return {"measurement": self.measurement.to_dict(), "source": self.source, "predicted": self.predicted}


@dataclass
class State:
    """Everything that a run carries from measurement to measurement."""

    network: HSDAGNetwork
    optimizer: torch.optim.Adam
    reference: str = ""  # what ratios are relative to: a device, or `HETERO_DEFAULT`
    entries: list[Entry] = field(default_factory=list)  # all measured placements, in order
    # second measurements of the finalists, pooled with the first, by their entries
    final: dict[int, Measurement] = field(default_factory=dict)
    seconds: float = 0.0  # wall time of all parts of the run so far

    @property
    def proposed(self) -> list[int]:
        """Indices of the entries that count against the budget: all but the simple placements."""
        return [index for index, entry in enumerate(self.entries) if not entry.simple]

    @property
    def measured(self) -> list[Entry]:
        """The entries that count against the budget."""
        return [self.entries[index] for index in self.proposed]

    @property
    def good(self) -> list[Entry]:
        """The entries that did not fail."""
        return [entry for entry in self.entries if not entry.measurement.failed]

    def best(self) -> Entry:
        """The entry with the highest ratio."""
        return max(self.good, key=lambda entry: entry.measurement.ratio)


def new_state(network: HSDAGNetwork, settings: Settings) -> State:
    """The state of a run that has measured nothing."""
    return State(network, torch.optim.Adam(network.parameters(), settings.learning_rate, eps=1e-7))


def save_checkpoint(path: Path, state: State, settings: Settings, about: Mapping[str, Any], fingerprint: str) -> None:
    """Writes the state, which has an entry at least, as one file; about: what the run began with, JSON-able."""
    metadata = {
        "format": FORMAT,
        "fingerprint": fingerprint,
        "about": dict(about),
        "settings": asdict(settings),
        "network": state.network.config.to_dict(),
        "reference": state.reference,
        "entries": [entry.to_dict() for entry in state.entries],
        "final": {str(index): measurement.to_dict() for index, measurement in state.final.items()},
        "seconds": state.seconds,
    }
    tensors = {"placements": torch.from_numpy(np.stack([entry.placement for entry in state.entries]))}
    write_checkpoint(path, state.network, state.optimizer, tensors, metadata)


def load_checkpoint(path: Path, problem: PlacementProblem, settings: Settings) -> State:
    """The state of a run that is to be continued on `problem`. Raises UserError for another problem, or damage."""
    metadata = read_metadata(path, FORMAT)
    if metadata.get("fingerprint") != fingerprint_of(problem):
        raise UserError(
            f"'{path}' belongs to another model, device list or profile, or to another release: resume with what the"
            f" run began with, or {ANEW}"
        )
    with readable_checkpoint(path):
        state = new_state(HSDAGNetwork(HSDAGConfig.from_dict(metadata["network"])), settings)
        tensors = restore(path, state.network, state.optimizer)
        placements = tensors["placements"].numpy()
        if placements.shape[1:] != (problem.group_count,) or placements.dtype != np.uint8:
            raise ValueError("it has placements of another model")
        if (placements >= len(problem.devices)).any():
            raise ValueError("it has placements on other devices")
        state.entries = [
            Entry(placement.copy(), Measurement.from_dict(entry["measurement"]), entry["source"], entry["predicted"])
            for placement, entry in zip(placements, metadata["entries"], strict=True)
        ]
        state.final = {int(index): Measurement.from_dict(values) for index, values in metadata["final"].items()}
        if not state.final.keys() <= set(range(len(state.entries))):
            raise ValueError("it has finalists that were not measured")
        state.reference, state.seconds = str(metadata["reference"]), float(metadata["seconds"])
    return state


def fingerprint_of(problem: PlacementProblem) -> str:
    """A digest of what a checkpoint belongs to: graph, devices, objective and every array of the problem."""
    graph = problem.graph
    digest = hashlib.sha256()
    for text in (*problem.devices, problem.objective, str(problem.rule), *graph.types):
        digest.update(text.encode() + b"\0")
    values = [getattr(owner, item.name) for owner in (graph, problem) for item in fields(owner)]
    for array in (value for value in values if value is None or isinstance(value, np.ndarray)):
        digest.update(b"\0" if array is None else f"{array.dtype.str}{array.shape}".encode())
        digest.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Task:
    """What stays the same in a run."""

    problem: PlacementProblem  # with the profile's costs
    x: PolicyInput  # its features, the same that the policy sees when the model is placed later
    weight: NDArray[np.float64]  # how much the device of each group matters, sum 1, float64 [groups]
    corrector: Corrector  # of the costs
    reference: NDArray[np.uint8]  # the reference's placement, uint8 [groups]
    # of the simulator for measured placements, by the placements' bytes; a cache
    terms: dict[bytes, Terms] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: PlacementProblem, config: HSDAGConfig, reference: str) -> Task:
        """The task of a problem with the profile's costs; reference: a device, or `HETERO_DEFAULT`."""
        placement = simple_placement(problem, reference)
        return cls(problem, policy_input(problem), impact(problem), Corrector(problem, placement), placement)

    def fit(self, state: State) -> Fit:
        """The posterior of the corrections given everything measured so far."""
        measured = [entry.measurement for entry in state.good]
        for entry in state.good:
            if (key := entry.placement.tobytes()) not in self.terms:
                self.terms[key] = self.corrector.terms(entry.placement)
        terms = Terms.join([self.terms[entry.placement.tobytes()] for entry in state.good])
        uncertain = np.array([measurement.uncertain for measurement in measured])
        return self.corrector.fit(terms, np.array([measurement.ratio for measurement in measured]), uncertain)

    def distance(self, placement: NDArray[np.uint8], others: NDArray[np.uint8]) -> NDArray[np.float64]:
        """How much of a placement, by `weight`, is elsewhere in each of the others; 0 to 1, float64 [others]."""
        return np.asarray((others != placement) @ self.weight)

    def example(self, problem: PlacementProblem, target: NDArray[np.float32], reference: float) -> Example:
        """The problem (costs corrected) as an example. target: to imitate, float32 [coarse, devices]; reference: µs."""
        return Example.of(problem, self.x, target[None], reference, reference)


def simple_placement(problem: PlacementProblem, name: str) -> NDArray[np.uint8]:
    """Everything on the device `name`, or HETERO's own choice for `HETERO_DEFAULT`; uint8 [groups]."""
    return next(placer for placer in simple_placers(problem) if placer.name == name).place(problem)
