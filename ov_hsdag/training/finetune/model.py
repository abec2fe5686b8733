"""Fine-tuning of the policy on a model, from the model to its placed IR.

A judge measures placements relative to a reference, the best single device (`ov_hsdag.measuring.evaluator.Judge`).
`Simulated` is a judge that simulates instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ov_hsdag.costs.profile import Profile
from ov_hsdag.devices import discovery
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.devices.virtual import definition, new_core
from ov_hsdag.measuring.evaluator import HETERO_DEFAULT, Judge, Measurement
from ov_hsdag.measuring.measurer import TRIAL_SECONDS, Measurer
from ov_hsdag.model.affinities import set_affinities
from ov_hsdag.model.placement import Placement
from ov_hsdag.model.shapes import fix_npu_sizes, input_shapes
from ov_hsdag.policy import bundle, tuned
from ov_hsdag.policy.config import HSDAGConfig, Widths
from ov_hsdag.policy.features import policy_input
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.storage.files import save_model_atomically
from ov_hsdag.training import check_outputs, refuse_existing
from ov_hsdag.training.finetune.loop import Outcome, Report, run
from ov_hsdag.training.finetune.settings import SCRATCH, Budget, Settings
from ov_hsdag.training.finetune.state import FORMAT, simple_placement
from ov_hsdag.training.network import HSDAGNetwork, load
from ov_hsdag.training.run import CHECKPOINT, read_metadata, readable_checkpoint
from ov_hsdag.utils.errors import RunError, UserError
from ov_hsdag.utils.lazy import ov
from ov_hsdag.utils.warn import warn_caller

REFERENCE_SHARE = 0.25
"""Share of the budget's time after which the single devices, from which the reference is found, have no further round.

A device that is far slower than the others would otherwise take all of it: one round takes at least four inferences."""


def finetune(  # noqa: PLR0913 settings, all by keyword
    model: ov.Model,
    device: str,
    output: Path,
    *,
    objective: str = "latency",
    budget: Budget | None = None,
    profile: Profile | str | PathLike[str] | None = None,
    policy: str | PathLike[str] | None = None,
    simulated: bool = False,
    resume: bool = False,
    settings: Settings | None = None,
    core: ov.Core | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    compress_to_fp16: bool = False,
    report: Report | None = None,
    trial_seconds: float = TRIAL_SECONDS,
) -> tuple[dict[str, Any], Placement]:
    """Fine-tunes the policy on a model, and writes the model with the best measured placement.

    A resumed run keeps its own objective, policy, settings and shapes, and whether it is simulated.

    Args:
        model: any model; it is normalized and annotated in place, and carries the placement.
        device: the devices, in order of preference: "HETERO:GPU,CPU".
        output: the run's folder.
        objective: "latency" or "throughput", of a new run.
        budget: budget of all parts of the run together; by default a resumed run keeps its own. Without a budget, the
            run ends when nothing is left to measure.
        profile: speeds of the devices, or the path of a profile's file; built-in profiles by default.
        policy: policy to begin a new run with, see `initial_network`.
        simulated: whether a new run simulates placements with the profile's costs instead of measuring them.
        resume: whether to continue the run in `output`.
        settings: settings of a new run.
        core: Core of the devices; a new one by default.
        shapes: example shapes of dynamic inputs, by any of their names. A resumed run accepts only its own.
        compress_to_fp16: whether weights of the placed model are saved in f16.
        report: called after each measurement.
        trial_seconds: time of a trial of a placement, and of one of its reference, seconds.

    Returns:
        The record of the run, and the placement.

    Raises:
        UserError: bad input, or a device that shall be measured is not on this machine.
        RunError: neither a device alone nor HETERO runs the model.
    """
    devices = DeviceSet.parse(device)
    check_outputs(output)
    examples = _shapes_by_input(model, shapes or {})
    if resume:
        terms = _Terms.of_run(output, examples)
    else:
        refuse_existing(output)
        terms = _Terms.of_new_run(devices, objective, policy, simulated, examples)
    used_core = core or new_core()
    if not terms.simulated:
        _check_present(used_core, devices)
    Placement.strip(model)
    fix_npu_sizes(model, devices, terms.shapes)
    problem = build_problem(
        model, devices, objective=terms.objective, profile=profile, core=used_core, shapes=terms.shapes
    )
    network = None if resume else initial_network(policy, problem, (settings or Settings()).seed)

    def judge_of(reference: str | None) -> Judge:
        """Makes the judge that compares placements with a reference of this name; with None, the judge finds one."""
        if terms.simulated:
            return Simulated(problem, reference)
        return Measurer(
            model,
            devices,
            terms.objective,
            used_core,
            reference=reference,
            shapes=terms.shapes,
            seconds=trial_seconds,
            reference_seconds=REFERENCE_SHARE * (budget or Budget()).seconds,
        )

    outcome = run(output, problem, judge_of, network, budget, settings, terms.about, report)
    if not terms.simulated and outcome.state.measured:
        _keep_policy(output, used_core, devices)
    placement = _write_placed(model, output, outcome, problem, terms, compress_to_fp16)
    return outcome.record, placement


@dataclass(frozen=True, eq=False)
class _Terms:
    """What a run begins with and keeps when it is resumed.

    Attributes:
        objective: "latency" or "throughput".
        simulated: whether placements are simulated in place of being measured.
        shapes: example shapes of dynamic inputs, by the inputs' friendly names.
        about: description of the run, for its checkpoint and record, JSON-able.
    """

    objective: str
    simulated: bool
    shapes: Mapping[str, list[int]]
    about: Mapping[str, Any]

    @classmethod
    def of_new_run(
        cls,
        devices: DeviceSet,
        objective: str,
        policy: str | PathLike[str] | None,
        simulated: bool,
        shapes: Mapping[str, list[int]],
    ) -> _Terms:
        """Makes the terms of a new run.

        Args:
            devices: the devices.
            objective: "latency" or "throughput".
            policy: the policy that the run begins with; None for the shipped one.
            simulated: whether placements are simulated.
            shapes: example shapes of dynamic inputs, by the inputs' friendly names.
        """
        about = {
            "device": devices.hetero,
            "objective": objective,
            "policy": str(policy or bundle.DEFAULT),
            "simulated": simulated,
            "openvino": ov.__version__,
            "shapes": shapes,
        }
        return cls(objective, simulated, shapes, about)

    @classmethod
    def of_run(cls, output: Path, shapes: Mapping[str, list[int]]) -> _Terms:
        """Reads the terms of the run that is resumed.

        Args:
            output: the run's folder.
            shapes: example shapes that the caller gave, by the inputs' friendly names; empty for none.

        Raises:
            UserError: there is no run, its checkpoint is damaged, or it began with other example shapes.
        """
        metadata = read_metadata(output / CHECKPOINT, FORMAT)
        with readable_checkpoint(output / CHECKPOINT):
            about = dict(metadata["about"])
            terms = cls(str(about["objective"]), bool(about["simulated"]), about.get("shapes") or {}, about)
        if shapes not in ({}, terms.shapes):
            listed = ", ".join(f"{name}={sizes}" for name, sizes in terms.shapes.items()) or "no example shapes"
            raise UserError(f"the run in '{output}' began with {listed}: leave out --shape or begin another run")
        return terms


def _check_present(core: ov.Core, devices: DeviceSet) -> None:
    """Raises UserError where a device that shall be measured is not on this machine."""
    for name in discovery.absent(core, devices):
        raise UserError(f"device {name} is not on this machine, so nothing can be measured there: use --simulated")


def _keep_policy(output: Path, core: ov.Core, devices: DeviceSet) -> None:
    """Stores the policy of a run where later placings on these devices find it; warns where that fails.

    Args:
        output: the run's folder.
        core: Core of the devices.
        devices: the devices.
    """
    try:
        tuned.keep(output / "policy", core, devices.names)
    except OSError as error:  # the run's own folder has the policy anyway
        warn_caller(f"later placings do not find the policy of this run: {error}")


def _write_placed(
    model: ov.Model, output: Path, outcome: Outcome, problem: PlacementProblem, terms: _Terms, compress_to_fp16: bool
) -> Placement:
    """Writes the chosen placement into the model, and both into the run's folder.

    Args:
        model: the normalized model.
        output: the run's folder.
        outcome: the result of the run.
        problem: the problem.
        terms: the terms of the run.
        compress_to_fp16: whether weights are saved in f16.

    Returns:
        The placement.
    """
    settings: dict[str, Any] = {"command": "finetune"}
    if terms.shapes:
        settings["shapes"] = {name: list(shape) for name, shape in terms.shapes.items()}
    if virtual := definition(problem.devices):
        settings["virtual_devices"] = virtual
    chosen = replace(_placement(outcome, problem), settings=settings)
    placement = replace(chosen, affinity=set_affinities(model, chosen.affinity))
    placement.embed(model)
    save_model_atomically(model, output / "model.xml", compress_to_fp16=compress_to_fp16)
    placement.save(output / "placement.json")
    return placement


def initial_network(policy: str | PathLike[str] | None, problem: PlacementProblem, seed: int) -> HSDAGNetwork:
    """The network that a new run begins with.

    Args:
        policy: name or folder of a policy; the shipped one by default, and an untrained network for `SCRATCH`.
        problem: the problem, which determines the numbers of features of an untrained network.
        seed: seed of the weights of an untrained network.

    Returns:
        The network.

    Raises:
        UserError: there is no such policy, or its folder is damaged.
    """
    if policy != SCRATCH:
        return load(bundle.find(policy))
    torch.manual_seed(seed)
    return HSDAGNetwork(HSDAGConfig.base(Widths.of(policy_input(problem))))


def _shapes_by_input(model: ov.Model, shapes: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """Renames example shapes, by any names of inputs, to the inputs' friendly names, so that runs can be compared.

    Inputs without an example shape are left out.

    Raises:
        UserError: a shape does not fit its input.
    """
    sizes = input_shapes(model, shapes)
    named: dict[str, list[int]] = {}
    for port, size in zip(model.inputs, sizes, strict=True):
        name = port.get_node().get_friendly_name()
        if not shapes.keys().isdisjoint({name, *port.get_names()}):
            named[name] = size
    return named


def _placement(outcome: Outcome, problem: PlacementProblem) -> Placement:
    """Makes the placement to write: the chosen one, with predicted and measured figures of it and of single devices.

    Its predicted latency or throughput is scaled so that its gain over the best single device is the one that the
    corrected costs predicted when the run proposed it. The simulator's own gain, with uncorrected costs, is replaced.
    """
    # A figure times `gain ** sign` is the figure of a placement that is `gain` times better.
    key, sign = ("throughput_ips", 1) if problem.objective == "throughput" else ("latency_us", -1)
    chosen = outcome.choice.measurement
    measured: dict[str, Any] | None = None
    singles = outcome.record["singles"]  # ratio of each measured single device to the reference

    def figures_of(value: float, ratio: float, interval: Sequence[float] | None, submodels: int) -> dict[str, Any]:
        """Figures for `Placement.measured`.

        Ratios are over the run's reference. That is the best single device or, where none runs the model, HETERO's own
        choice; "times_best_single" is left out then.
        """
        ends = None if interval is None else list(interval)
        over_single = outcome.record["reference"] in problem.devices
        single = {"times_best_single": ratio, "times_best_single_ci": ends} if over_single else {}
        return {key: value, "ratio": ratio, "ci": ends, **single, "submodels": submodels, "failed": None}

    if not outcome.record["about"]["simulated"] and math.isfinite(chosen.value):
        measured = {
            name: figures_of(chosen.reference * ratio**sign, ratio, interval=None, submodels=1)
            for name, ratio in singles.items()
        }
        interval = chosen.interval if chosen.ratios else None
        measured[outcome.choice.name] = figures_of(chosen.value, chosen.ratio, interval, chosen.submodels)
    placement = Placement(
        devices=problem.devices,
        affinity=problem.affinity(outcome.choice.placement),
        objective=problem.objective,
        predicted=problem.summary(outcome.choice.placement),
        measured=measured,
        baselines={name: problem.summary(simple_placement(problem, name)) for name in singles},
        policy=Path(outcome.record["about"]["policy"]).name,
        chosen=outcome.choice.name,
    )
    corrected_gain = outcome.state.entries[outcome.choice.entry].predicted  # over the reference; None for baselines
    simulated_gain = placement.predicted_gain(placement.chosen)  # over the best single device; None without one
    if measured and corrected_gain and simulated_gain and placement.predicted:
        figures = {**placement.predicted, key: placement.predicted[key] * (corrected_gain / simulated_gain) ** sign}
        placement = replace(placement, predicted=figures)
    return placement


class Simulated:
    """A `Judge` that simulates placements with a problem's costs instead of measuring them.

    Attributes:
        reference: name of the reference, a device or `HETERO_DEFAULT`.
        singles: simulated measurements by name: of each single device that holds the model, and of HETERO's own choice
            if that is the reference.
    """

    def __init__(self, problem: PlacementProblem, reference: str | None = None) -> None:
        """Simulates the baselines.

        Args:
            problem: the problem, whose costs stand for reality.
            reference: name of the reference; by default the best single device, or HETERO's own choice without one.

        Raises:
            RunError: the reference does not keep within the devices' memory.
        """
        self._problem = problem
        names = [*problem.devices, HETERO_DEFAULT]
        scores = problem.scores(np.stack([simple_placement(problem, name) for name in names]))
        single = scores[:-1]
        if reference is None:
            reference = names[int(single.argmin())] if np.isfinite(single).any() else HETERO_DEFAULT
        self.reference = reference
        self._reference_us = float(scores[names.index(reference)])
        if not math.isfinite(self._reference_us):
            raise RunError(f"no device of {', '.join(problem.devices)} has the memory for the model")
        self.singles = {
            name: Measurement(self._reference_us / us, *self._values(us))
            for name, us in zip(names, scores.tolist(), strict=True)
            if math.isfinite(us) and (name != HETERO_DEFAULT or name == reference)
        }

    def measure(self, affinity: Mapping[str, str], *, worth: float = 0.0, rounds: int | None = None) -> Measurement:
        """Simulates a placement, see `Judge.measure`.

        Args:
            affinity: device of each node, by friendly name.
            worth: the ratio to beat; ignored, as simulating takes no rounds.
            rounds: number of rounds; ignored.

        Returns:
            The simulated figures; a failed measurement where the placement is infeasible.
        """
        result = self._problem.evaluate(self._problem.placement_of(affinity))
        us = float(result.score(self._problem.objective)[0])
        if not math.isfinite(us):
            return Measurement(0.0, error="the simulator calls the placement infeasible")
        ratio = self._reference_us / us
        value, reference = self._values(us)
        submodels = int(result.submodels[0])
        return Measurement(ratio, value, reference, ratios=(ratio,), submodels=submodels, bounds=(ratio, ratio))

    def _values(self, us: float) -> tuple[float, float]:
        """Converts a score to the values of a `Measurement`.

        Args:
            us: score of a placement, µs.

        Returns:
            The values of the placement and of the reference: latency in µs, or throughput in results per second.
        """
        if self._problem.objective == "latency":
            return us, self._reference_us
        return 1e6 / us, 1e6 / self._reference_us
