"""The fine-tuning loop: it fits the corrections, learns, proposes and measures, and in the end chooses.

A ratio says how many times better than the reference a placement is. The reference is the best single device or, where
none runs the model, HETERO's own choice. Baselines are the single devices and HETERO's own choice. Finalists are the
best measured placements, which are measured again before one is chosen.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ov_hsdag.calibration.correction import Fit
from ov_hsdag.measuring.evaluator import HETERO_DEFAULT, Judge, Measurement
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.storage.files import write_json
from ov_hsdag.training import FOUND_BY, refuse_existing
from ov_hsdag.training.finetune import state as states
from ov_hsdag.training.finetune.proposals import Proposal, propose
from ov_hsdag.training.finetune.settings import Budget, Settings
from ov_hsdag.training.loss import edge_loss, imitation_loss, policy_loss
from ov_hsdag.training.network import HSDAGNetwork, export
from ov_hsdag.training.rollout import run_policy, sample
from ov_hsdag.training.run import CHECKPOINT, SummaryWriter, follow, read_metadata, readable_checkpoint
from ov_hsdag.utils.warn import warn_caller


@dataclass(frozen=True, eq=False)
class Choice:
    """The placement that a run chose.

    Attributes:
        name: name of the placer that found it ("hsdag", "search"), a device, or `HETERO_DEFAULT`.
        placement: the placement, uint8 [groups].
        measurement: its measurement; for a proposed placement, both of its measurements together.
        entry: index of its entry in `State.entries`.
    """

    name: str
    placement: NDArray[np.uint8]
    measurement: Measurement
    entry: int


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of a run.

    Attributes:
        record: the record, JSON-able, see `make_record`.
        choice: the chosen placement.
        state: the state of the run at its end.
    """

    record: dict[str, Any]
    choice: Choice
    state: states.State


Report = Callable[[int, float, states.Entry, float], None]
"""Called after each measurement with the number of measurements, the spent share of the budget, the latest entry, and
the best ratio so far."""


def run(
    output: Path,
    problem: PlacementProblem,
    judge_of: Callable[[str | None], Judge],
    network: HSDAGNetwork | None,
    budget: Budget | None = None,
    settings: Settings | None = None,
    about: Mapping[str, Any] | None = None,
    report: Report | None = None,
) -> Outcome:
    """Runs or continues a fine-tuning; writes everything but the placed model.

    Args:
        output: the run's folder.
        problem: the model on the devices, with the profile's costs.
        judge_of: makes the judge from the name of the reference that the run has used so far; with None, the judge
            finds a reference.
        network: policy to begin a new run with; None to continue the run in `output`.
        budget: budget of all parts of the run together; by default a continued run keeps its own, and a new one ends
            when nothing is left to measure.
        settings: settings of a new run; a continued run keeps its own.
        about: description of a new run, which goes into checkpoint and record, JSON-able.
        report: called after each measurement.

    Returns:
        The chosen placement, the record and the state.

    Raises:
        UserError: there is no run to continue, it has another problem, or there is already a run where a new one shall
            begin.
        RunError: neither a device alone nor HETERO runs the model.
    """
    begin, path = time.monotonic(), output / CHECKPOINT
    if network is None:
        metadata = read_metadata(path, states.FORMAT)
        with readable_checkpoint(path):
            settings, about = Settings.from_dict(metadata["settings"]), dict(metadata["about"])
            budget = budget or Budget.from_dict(about["budget"])
        state = states.load_checkpoint(path, problem, settings)
    else:
        refuse_existing(output)
        settings, budget = settings or Settings(), budget or Budget()
        state = states.new_state(network, settings)
    output.mkdir(parents=True, exist_ok=True)
    about = {**(about or {}), "budget": budget.to_dict()}
    begin -= state.seconds
    ongoing = _Run(path, problem, judge_of, state, settings, budget, about, states.fingerprint_of(problem), begin)
    ongoing.measure_singles()
    task = states.Task.of(problem, state.network.config, state.reference)
    with SummaryWriter(str(output), purge_step=len(state.measured)) as writer:
        while ongoing.spent() < 1:
            fit = task.fit(state)
            scalars = learn(state, task, settings, fit)
            proposal = propose(state, task, settings, fit)
            if proposal is None:
                break
            entry = ongoing.measure(proposal)
            best = state.best().measurement.ratio
            scalars |= {"charts/ratio": entry.measurement.ratio, "charts/best_ratio": best}
            scalars |= {"correction/predicted_ratio": proposal.predicted, "correction/error": fit.error}
            for name, value in scalars.items():
                writer.add_scalar(name, value, len(state.measured))
            if report:
                report(len(state.measured), ongoing.spent(closing=False), entry, best)
        ongoing.measure_finalists()
        ongoing.measure_hetero_default()
    if "judge" not in vars(ongoing):
        warn_caller(f"no placement was measured: {ongoing.why_idle()}")
    fit = task.fit(state)
    learn(state, task, settings, fit)
    choice = choose(state, problem, settings)
    record = make_record(state, task, settings, about, fit, choice)
    write_json(output / "record.json", record)
    export(state.network, output / "policy", {key: record[key] for key in ("about", "settings", "best", "seconds")})
    return Outcome(record, choice, state)


@dataclass
class _Run:
    """An ongoing run: its state, its judge, its clock and its checkpoint."""

    path: Path  # file of the checkpoint
    problem: PlacementProblem
    judge_of: Callable[[str | None], Judge]
    state: states.State
    settings: Settings
    budget: Budget
    about: Mapping[str, Any]
    fingerprint: str  # fingerprint of the problem, see `ov_hsdag.training.finetune.state.fingerprint_of`
    begin: float  # time of `time.monotonic` at which the run would have begun if its parts had followed without pause

    @cached_property
    def judge(self) -> Judge:
        """The judge, made on first use: measuring the reference takes time, which an exhausted run need not spend."""
        return self.judge_of(self.state.reference or None)

    def seconds(self) -> float:
        """The wall time of all parts of the run, seconds."""
        return time.monotonic() - self.begin

    def spent(self, closing: bool = True) -> float:
        """Computes the spent share of the budget, 1 or more where all of it is spent.

        Args:
            closing: whether to count the time of one more measurement and of the finalists as spent already.
        """
        more = closing_seconds(self.state, self.settings) if closing else 0.0
        return self.budget.share(len(self.state.measured), self.seconds() + more)

    def why_idle(self) -> str:
        """Says, for a warning, why nothing was measured in this part of the run."""
        made, before, budget = len(self.state.measured), self.state.seconds, self.budget
        if made >= budget.measurements:
            why = f"{made} of {budget.measurements:g} measurements were made before"
        elif (closing := closing_seconds(self.state, self.settings)) + before >= budget.seconds:
            why = f"{before:.0f} of {budget.seconds:g} s were spent before"
            if before < budget.seconds:
                why += f", and measuring one more, and the best ones again, takes about {closing:.0f} s"
        else:
            return "none is left that is new"
        return f"{why}; a budget counts all parts of a run, so give a larger one"

    def measure_singles(self) -> None:
        """Adds the single devices' measurements to the entries of a new run, and sets its reference to the judge's."""
        if self.state.entries:
            return
        self.state.reference = self.judge.reference
        for name, measurement in self.judge.singles.items():
            self.state.entries.append(
                states.Entry(states.simple_placement(self.problem, name), measurement, "single", None)
            )

    def measure(self, proposal: Proposal) -> states.Entry:
        """Measures a proposal, adds its entry to the state, writes the checkpoint, and returns the entry."""
        # Ratios are lowered by their errors here: otherwise one lucky measurement would cut short all later ones.
        worth = max(entry.measurement.sure for entry in self.state.good)
        measurement = self.judge.measure(self.problem.affinity(proposal.placement), worth=worth)
        entry = states.Entry(proposal.placement, measurement, proposal.source, proposal.predicted)
        self.state.entries.append(entry)
        self.save()
        return entry

    def measure_finalists(self) -> None:
        """Measures the finalists again; both measurements of each go together into `State.final`."""
        for index in finalists(self.state, self.settings):
            entry = self.state.entries[index]
            again = self.judge.measure(self.problem.affinity(entry.placement), rounds=self.settings.final_rounds)
            self.state.final[index] = pooled(entry.measurement, again, self.problem.objective)
            self.save()

    def measure_hetero_default(self) -> None:
        """Measures HETERO's own choice and adds its entry, unless it has been measured already."""
        placement = states.simple_placement(self.problem, HETERO_DEFAULT)
        if any(np.array_equal(placement, entry.placement) for entry in self.state.entries):
            return
        measurement = self.judge.measure(self.problem.affinity(placement), rounds=self.settings.final_rounds)
        self.state.entries.append(states.Entry(placement, measurement, HETERO_DEFAULT, None))
        self.save()

    def save(self) -> None:
        """Writes the checkpoint."""
        self.state.seconds = self.seconds()
        states.save_checkpoint(self.path, self.state, self.settings, self.about, self.fingerprint)


_NEGLIGIBLE = 1e-6  # weight below which a placement is not imitated, as it would not change the target


def learn(state: states.State, task: states.Task, settings: Settings, fit: Fit) -> dict[str, float]:
    """Updates the policy from all measurements so far.

    The loss of an update is the sum of the losses of imitation, edge scores, entropy and REINFORCE (Williams 1992,
    Machine Learning 8). Measured placements are imitated, weighted by their rewards. The samples of REINFORCE are
    scored by the simulator with corrected costs, as measuring them would take days.

    Args:
        state: state of the run; network and optimizer are updated.
        task: constant data of the run.
        settings: settings of the run.
        fit: posterior of the corrections.

    Returns:
        Scalars of the last update, by their names in TensorBoard; empty where only search proposes.
    """
    if settings.proposer == "search":
        return {}
    step = len(state.measured)
    believed = task.corrector.apply(fit.mean)
    reference = float(believed.scores(task.reference)[0])
    example = task.example(believed, imitation_target(state, task, settings), reference)
    generator = torch.Generator().manual_seed(int(np.random.default_rng([settings.seed, 2, step]).integers(2**62)))
    scalars: dict[str, float] = {}
    for update in range(settings.updates):
        # Updates alternate between the two clusterings that placing uses: parsed clusters, and single coarse groups.
        policy = run_policy(state.network, example, levels=None if update % 2 == 0 else 0)
        imitation, edges, entropy = imitation_loss(policy, example), edge_loss(policy, example), policy.entropy
        loss = imitation + settings.edge_coef * edges - settings.ent_coef * entropy
        if settings.pg_coef and math.isfinite(reference):
            rollouts = sample(policy, example, settings.samples, generator)
            gradient, _ = policy_loss(policy, rollouts)
            loss = loss + settings.pg_coef * gradient
            scalars["charts/episodic_return"] = float(rollouts.returns.mean())
        state.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        scalars["losses/grad_norm"] = follow(state.network, state.optimizer, settings.max_grad_norm)
        for name, value in {"imitation": imitation, "edges": edges, "entropy": entropy}.items():
            scalars[f"losses/{name}"] = float(value.detach())
    return scalars


def imitation_target(state: states.State, task: states.Task, settings: Settings) -> NDArray[np.float32]:
    """Computes the placement that the policy imitates: the weighted mean of good measured placements.

    Weights are a softmax of log ratios. Placements that disagree with the best one get no weight, as a mean of such
    placements would be no placement.

    Args:
        state: state of the run.
        task: constant data of the run.
        settings: settings of the run.

    Returns:
        The share of each coarse group's weight on each device, with a total of 1, float32 [coarse, devices].
    """
    good, best = state.good, state.best()
    rewards = np.log([entry.measurement.ratio for entry in good])
    weights = np.exp((rewards - rewards.max()) / settings.temperature)
    agreement = 1 - task.distance(best.placement, np.stack([entry.placement for entry in good]))
    weights *= agreement >= settings.agreement
    target = np.zeros((len(task.x.node_x), len(task.problem.devices)))
    for entry, weight in zip(good, weights / weights.sum(), strict=True):
        if weight > _NEGLIGIBLE:
            np.add.at(target, (task.x.coarse, entry.placement), weight * task.weight)
    return target.astype(np.float32)


def closing_seconds(state: states.State, settings: Settings) -> float:
    """Estimates the seconds of one more measurement and of measuring the finalists again.

    Before the first measurement, a placement is expected to take twice as long as a single device: it runs in turns
    with the reference.
    """
    known = [entry.measurement.seconds for entry in state.measured]
    expected = known or [2 * entry.measurement.seconds for entry in state.entries]
    final = min(settings.finalists, len(known) + 1)
    return (1 + 2 * final) * statistics.median(expected) if expected else 0.0


def finalists(state: states.State, settings: Settings) -> list[int]:
    """Indices of the entries to measure again: the best ones that beat the reference.

    The best of many measurements is partly luck, which a second measurement removes.
    """
    ranking = sorted(state.proposed, key=lambda index: -state.entries[index].measurement.ratio)
    best = [index for index in ranking[: settings.finalists] if state.entries[index].measurement.ratio > 1]
    return [index for index in best if index not in state.final]


def pooled(first: Measurement, second: Measurement, objective: str) -> Measurement:
    """Combines two measurements of a placement into one.

    Args:
        first: the first measurement.
        second: the second one, which supplies the reference, and counts alone where it failed.
        objective: "latency" or "throughput".

    Returns:
        The measurement with the ratios of both.
    """
    if second.failed:
        return second
    ratio = statistics.median((*first.ratios, *second.ratios))
    value = second.reference * ratio if objective == "throughput" else second.reference / ratio
    return replace(second, ratio=ratio, value=value, ratios=(*first.ratios, *second.ratios))


def choose(state: states.State, problem: PlacementProblem, settings: Settings) -> Choice:
    """Chooses the best finalist that surely beats the best baseline, by the margin; else the best baseline.

    A finalist surely beats a baseline where the 95% interval of all its measurements is above it. Baselines are the
    best single device and, where it was measured, HETERO's own choice.

    Args:
        state: state of the run.
        problem: problem of the model.
        settings: settings of the run, which supply the margin.

    Returns:
        The chosen placement.
    """
    known = [entry.measurement.reference for entry in state.good if math.isfinite(entry.measurement.reference)]
    value = statistics.median(known) if known else math.nan
    reference = states.simple_placement(problem, state.reference)
    simple: list[tuple[str, Measurement, int]] = []
    for index, entry in enumerate(state.entries):
        if entry.source == "single" and np.array_equal(entry.placement, reference):
            simple.insert(0, (state.reference, Measurement(1.0, value, value, submodels=1), index))
        elif entry.source == HETERO_DEFAULT:
            simple.append((HETERO_DEFAULT, entry.measurement, index))
    name, bar, index = max(simple, key=lambda item: item[1].ratio)
    least = bar.ratio * (1 + settings.margin)
    better = [key for key, found in state.final.items() if found.interval[0] > bar.ratio and found.ratio > least]
    if better:
        best = max(better, key=lambda key: state.final[key].ratio)
        entry = state.entries[best]
        return Choice(FOUND_BY[entry.source], entry.placement, state.final[best], best)
    return Choice(name, states.simple_placement(problem, name), bar, index)


def make_record(
    state: states.State, task: states.Task, settings: Settings, about: Mapping[str, Any], fit: Fit, choice: Choice
) -> dict[str, Any]:
    """Makes the record of a run.

    Measurements are counted from 1, without the baselines, as in the budget, the progress and the table of
    `ov-hsdag finetune`. These numbers are "number" of an entry, the keys of "final", and "measurement" of "best".
    Ratios are to "reference". "name" of an entry is that of its device, or of HETERO's own choice, and null for others.

    Args:
        state: state of the run.
        task: constant data of the run.
        settings: settings of the run.
        about: description of the run.
        fit: posterior of the corrections.
        choice: the chosen placement.

    Returns:
        The record, JSON-able.
    """
    numbers = {index: number for number, index in enumerate(state.proposed, start=1)}
    # Devices come last, so that a placement that is also HETERO's own choice gets the device's name.
    names = (HETERO_DEFAULT, *reversed(task.problem.devices))
    simple = {states.simple_placement(task.problem, name).tobytes(): name for name in names}
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
