"""The state of a fine-tuning run, its checkpoint, and the data that stay the same in a run.

A ratio says how many times better than the reference a placement is. The reference, and the baselines, which do not
count against the budget, are those of `ov_hsdag.training.finetune.loop`.
"""

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
"""Kind and version of the checkpoints of fine-tuning."""


@dataclass(frozen=True, eq=False)
class Entry:
    """A measured placement.

    Attributes:
        placement: the placement, uint8 [groups].
        measurement: its measurement.
        source: "single"; "hetero", HETERO's own choice; the proposer, "policy" or "search"; or "measured",
            where a measured placement was refined or varied.
        predicted: the ratio to the reference that the simulator predicted with corrected costs when the placement was
            proposed; None for baselines.
    """

    placement: NDArray[np.uint8]
    measurement: Measurement
    source: str
    predicted: float | None

    @property
    def simple(self) -> bool:
        """Whether the placement is a baseline; baselines do not count against the budget."""
        return self.source in ("single", HETERO_DEFAULT)

    def to_dict(self) -> dict[str, Any]:
        """The entry without its placement, as JSON-able values."""
        return {"measurement": self.measurement.to_dict(), "source": self.source, "predicted": self.predicted}


@dataclass
class State:
    """Everything that a run carries from measurement to measurement.

    Attributes:
        network: the policy.
        optimizer: its optimizer.
        reference: name of the reference of all ratios: a device, or `HETERO_DEFAULT`.
        entries: all measured placements, in order.
        final: both measurements of each finalist together, by index of its entry.
        seconds: wall time of all parts of the run so far, seconds.
    """

    network: HSDAGNetwork
    optimizer: torch.optim.Adam
    reference: str = ""
    entries: list[Entry] = field(default_factory=list)
    final: dict[int, Measurement] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def proposed(self) -> list[int]:
        """Indices of the entries that count against the budget: all but the baselines."""
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
    """Writes a checkpoint.

    Args:
        path: its file.
        state: state of the run, with at least one entry.
        settings: settings of the run.
        about: description of the run, JSON-able.
        fingerprint: fingerprint of the problem, see `fingerprint_of`.
    """
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
    """Reads the state of a run from a checkpoint.

    Args:
        path: its file.
        problem: problem of the run.
        settings: settings of the run.

    Returns:
        The state.

    Raises:
        UserError: the checkpoint belongs to another problem, or is damaged.
    """
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
    """A digest of a problem: its graph, devices, objective and all of its arrays."""
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
    """The data that stay the same in a run.

    Attributes:
        problem: the problem, with the profile's costs.
        x: its features, the same that the policy sees when the model is placed later.
        weight: how much the device of each group matters, see `impact`; sum 1, float64 [groups].
        corrector: corrects the problem's costs by measurements.
        reference: the reference's placement, uint8 [groups].
        terms: cache of the simulator's terms of measured placements, by the placements' bytes.
    """

    problem: PlacementProblem
    x: PolicyInput
    weight: NDArray[np.float64]
    corrector: Corrector
    reference: NDArray[np.uint8]
    terms: dict[bytes, Terms] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: PlacementProblem, config: HSDAGConfig, reference: str) -> Task:
        """Computes the data of a problem.

        Args:
            problem: the problem, with the profile's costs.
            config: settings of the network; they are not used.
            reference: name of the reference, a device or `HETERO_DEFAULT`.

        Returns:
            The data.
        """
        placement = simple_placement(problem, reference)
        return cls(problem, policy_input(problem), impact(problem), Corrector(problem, placement), placement)

    def fit(self, state: State) -> Fit:
        """Fits the corrections to all measurements so far; terms of new placements are added to the cache `terms`.

        Returns:
            The posterior of the corrections.
        """
        measured = [entry.measurement for entry in state.good]
        for entry in state.good:
            if (key := entry.placement.tobytes()) not in self.terms:
                self.terms[key] = self.corrector.terms(entry.placement)
        terms = Terms.join([self.terms[entry.placement.tobytes()] for entry in state.good])
        uncertain = np.array([measurement.uncertain for measurement in measured])
        return self.corrector.fit(terms, np.array([measurement.ratio for measurement in measured]), uncertain)

    def distance(self, placement: NDArray[np.uint8], others: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Computes the distance of a placement, uint8 [groups], from others, uint8 [others, groups].

        Returns:
            The share of the groups, by `weight`, whose devices differ, 0 to 1, float64 [others].
        """
        return np.asarray((others != placement) @ self.weight)

    def example(self, problem: PlacementProblem, target: NDArray[np.float32], reference: float) -> Example:
        """Makes an example of the problem with other costs.

        Args:
            problem: the problem with corrected costs.
            target: placement to imitate, as weights of devices, float32 [coarse, devices].
            reference: score of the reference with these costs, µs.

        Returns:
            The example.
        """
        return Example.of(problem, self.x, target[None], reference, reference)


def simple_placement(problem: PlacementProblem, name: str) -> NDArray[np.uint8]:
    """The placement of a baseline, uint8 [groups]: everything on the device `name`, or HETERO's own choice."""
    return next(placer for placer in simple_placers(problem) if placer.name == name).place(problem)
