"""The fine-tuning loop, from top to bottom: fit the corrections, learn, propose, measure; in the end, choose."""

from __future__ import annotations

import math
import statistics
import time
import warnings
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


@dataclass(frozen=True, eq=False)
class Choice:
    """The placement that a run chose."""

    name: str  # of the placer that found it ("hsdag", "search"), a device, or `HETERO_DEFAULT`
    placement: NDArray[np.uint8]  # uint8 [groups]
    measurement: Measurement  # of the placement; of a proposed one, both of its measurements together
    entry: int  # index of its entry


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a run chose."""

    record: dict[str, Any]  # JSON-able, see `make_record`
    choice: Choice
    state: states.State  # where the run stands


Report = Callable[[int, float, states.Entry, float], None]
"""Called after each measurement with the number of measurements, the share of the budget that is spent, the latest
entry, and the best ratio so far."""


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

    problem: the model on the devices, with the profile's costs. judge_of: makes the judge, given the reference that the
    run has measured against so far; None: it finds one. network: the policy to begin with; None: the run in `output` is
    continued. budget: of all parts of the run together; None: the continued run's own. settings, about: of a new run;
    the latter goes into checkpoint and record.

    Raises UserError: there is no run to continue, one of another problem, or one already where a new one was asked for;
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
        warnings.warn(f"no placement was measured: {ongoing.why_idle()}", stacklevel=2)
    fit = task.fit(state)
    learn(state, task, settings, fit)
    choice = choose(state, problem, settings)
    record = make_record(state, task, settings, about, fit, choice)
    write_json(output / "record.json", record)
    export(state.network, output / "policy", {key: record[key] for key in ("about", "settings", "best", "seconds")})
    return Outcome(record, choice, state)


@dataclass
class _Run:
    """A run that is going on: its state, its judge (made when it is first needed), its clock and its checkpoint."""

    path: Path
    problem: PlacementProblem
    judge_of: Callable[[str | None], Judge]
    state: states.State
    settings: Settings
    budget: Budget
    about: Mapping[str, Any]
    fingerprint: str
    begin: float  # as if all parts of the run were one

    @cached_property
    def judge(self) -> Judge:
        """Made here, as measuring the reference takes a while that a run with nothing left to measure can spare."""
        return self.judge_of(self.state.reference or None)

    def seconds(self) -> float:
        """Wall time of all parts of the run."""
        return time.monotonic() - self.begin

    def spent(self, closing: bool = True) -> float:
        """The share of the budget that is spent, by default with what one more measurement and the finalists take."""
        more = closing_seconds(self.state, self.settings) if closing else 0.0
        return self.budget.share(len(self.state.measured), self.seconds() + more)

    def why_idle(self) -> str:
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
        """Begins a new run with the single devices, the best of which is the reference."""
        if self.state.entries:
            return
        self.state.reference = self.judge.reference
        for name, measurement in self.judge.singles.items():
            self.state.entries.append(
                states.Entry(states.simple_placement(self.problem, name), measurement, "single", None)
            )

    def measure(self, proposal: Proposal) -> states.Entry:
        """Measures a proposal; returns its entry."""
        # A lucky best must not cut short all that follow.
        worth = max(entry.measurement.sure for entry in self.state.good)
        measurement = self.judge.measure(self.problem.affinity(proposal.placement), worth=worth)
        entry = states.Entry(proposal.placement, measurement, proposal.source, proposal.predicted)
        self.state.entries.append(entry)
        self.save()
        return entry

    def measure_finalists(self) -> None:
        for index in finalists(self.state, self.settings):
            entry = self.state.entries[index]
            again = self.judge.measure(self.problem.affinity(entry.placement), rounds=self.settings.final_rounds)
            self.state.final[index] = pooled(entry.measurement, again, self.problem.objective)
            self.save()

    def measure_hetero_default(self) -> None:
        """Measures HETERO's own choice, unless it has been measured."""
        own = states.simple_placement(self.problem, HETERO_DEFAULT)
        if any(np.array_equal(own, entry.placement) for entry in self.state.entries):
            return
        measurement = self.judge.measure(self.problem.affinity(own), rounds=self.settings.final_rounds)
        self.state.entries.append(states.Entry(own, measurement, HETERO_DEFAULT, None))
        self.save()

    def save(self) -> None:
        self.state.seconds = self.seconds()
        states.save_checkpoint(self.path, self.state, self.settings, self.about, self.fingerprint)


_NEGLIGIBLE = 1e-6  # placements with a smaller weight are not imitated


def learn(state: states.State, task: states.Task, settings: Settings, fit: Fit) -> dict[str, float]:
    """Updates the policy from everything measured so far; the last update's scalars, by their names in TensorBoard.

    The loss of an update is that of imitation, of edge scores, of entropy and of REINFORCE (Williams 1992, Machine
    Learning 8). Measured placements are imitated, weighted by their rewards; REINFORCE's samples are judged by the
    simulator with corrected costs (their posterior is `fit`), as measuring them would take days.
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
        # As placing does: clusters as parsed, and every coarse group for itself.
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
    """What the policy imitates: the mean of the good measured placements; sum 1, float32 [coarse, devices].

    Weights are a softmax of log ratios; placements that disagree with the best one have none.
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
    """About how many seconds one more measurement, and then measuring the finalists again, will take."""
    known = [entry.measurement.seconds for entry in state.measured]
    return (1 + 2 * settings.finalists) * statistics.median(known) if known else 0.0


def finalists(state: states.State, settings: Settings) -> list[int]:
    """Entries to measure again, as the best of many measurements is partly luck: the best that beat the reference."""
    ranking = sorted(state.proposed, key=lambda index: -state.entries[index].measurement.ratio)
    best = [index for index in ranking[: settings.finalists] if state.entries[index].measurement.ratio > 1]
    return [index for index in best if index not in state.final]


def pooled(first: Measurement, second: Measurement, objective: str) -> Measurement:
    """Both measurements of a placement as one; reference and failure are the second's."""
    if second.failed:
        return second
    ratio = statistics.median((*first.ratios, *second.ratios))
    value = second.reference * ratio if objective == "throughput" else second.reference / ratio
    return replace(second, ratio=ratio, value=value, ratios=(*first.ratios, *second.ratios))


def choose(state: states.State, problem: PlacementProblem, settings: Settings) -> Choice:
    """The best finalist that surely beats the simple placements, and by the margin; else the best of these.

    Surely: by the 95% interval of all its measurements.

    Simple placements are the best single device and, where it was measured, HETERO's own choice.
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
    """The record of a run, JSON-able.

    Measurements are counted from 1, without the simple placements, as budget, progress and table of `ov-hsdag finetune`
    do: `number` of an entry, the keys of `final`, `measurement` of `best`. Ratios are to `reference`. `name` of an
    entry is that of its device, or of HETERO's own choice, and null for other placements.
    """
    numbers = {index: number for number, index in enumerate(state.proposed, start=1)}
    # A device's name for what is both.
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
