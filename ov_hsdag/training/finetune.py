"""Fine-tuning on one model and one machine: the policy proposes placements, they are measured, it learns from them.

A measurement takes seconds, so much is made of each: measured placements are remembered and never measured again;
the simulator's costs are corrected by them (`ov_hsdag.training.correction`), and refinement and REINFORCE work on the
corrected costs; the policy imitates the best measured placements. Corrections are drawn from what the measurements
allow (Thompson sampling), so that what is not known yet is tried.

Reads from top to bottom: settings, judges, checkpoint, proposing, learning, the loop, the model. A run is a function of
its settings and its measurements: everything random follows from the seed and the step. So a simulated run that was
killed and resumed ends as one that was not. A checkpoint follows each measurement.

In the output folder: checkpoint.safetensors, TensorBoard files, and in the end record.json, the policy folder policy/,
the placed model model.xml and model.bin, and its placement placement.json.
"""

from __future__ import annotations

import hashlib
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from os import PathLike, cpu_count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.tensorboard import SummaryWriter

from ov_hsdag.costs.profile import Profile
from ov_hsdag.devices import discovery, virtual
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring.evaluator import HETERO_DEFAULT, Judge, Measurement, Measurer
from ov_hsdag.model.placement import Placement, set_affinities
from ov_hsdag.placers.refine import refine
from ov_hsdag.placers.single import HeteroDefault
from ov_hsdag.policy import bundle, placer
from ov_hsdag.policy.features import PolicyInput, policy_input
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.training.config import HSDAGConfig, Widths
from ov_hsdag.training.correction import Corrector, Fit, Terms
from ov_hsdag.training.network import HSDAGNetwork
from ov_hsdag.training.rollout import (
    Batch,
    Example,
    edge_loss,
    imitation_loss,
    impact,
    parse,
    reinforce_loss,
    run_policy,
    sample,
)
from ov_hsdag.training.run import CHECKPOINT, check_settings, descend, read_metadata, restore, write_checkpoint
from ov_hsdag.utils.errors import RunError, UserError
from ov_hsdag.utils.files import save_model_atomically, write_json

if TYPE_CHECKING:
    import openvino as ov

FORMAT = "finetune-1"

SCRATCH = "none"
"""The policy to begin with that is no policy: an untrained network."""

Placed = NDArray[np.uint8]

# Placements of larger graphs take long to judge: fewer are proposed.
_LARGE = 4000

# Best measured placements that refinement starts from.
_LEADERS = 3

# New placements that differ less from a measured one (by what is placed elsewhere, as a share of all that matters) are
# worth no measurement as long as there are others.
_DIFFERENT = 0.003


@dataclass(frozen=True)
class Settings:
    """What decides a run, besides the model, the devices, the policy that it begins with and the measurements.

    Attributes:
        seed: of everything random.
        updates: of the policy before each measurement.
        learning_rate: of Adam.
        samples: placements of an update that the corrected simulator judges.
        reinforce: weight of REINFORCE on those, beside 1 for imitating measured placements. It speaks of all clusters
            together and imitation of their mean: with more, the few samples of one problem drown what was measured.
        entropy: weight of the entropy bonus.
        edges: weight of imitation by edge scores.
        gradient: largest norm of the gradient.
        temperature: of log ratios: a measured placement that is so much worse than the best is imitated e times less.
        agreement: share in which a placement has to agree with the best one to be imitated: mirror images, averaged,
            are no placement.
        draws: sampled placements for each clustering and temperature, see `ov_hsdag.policy.placer.sample`.
        refined: candidates that are refined before a measurement.
        certain: every so many measurements the likeliest correction is used instead of a drawn one.
        finalists: of the best measured placements, to be measured again in the end.
        final_rounds: of those measurements.
        margin: by how much the best has to beat the best single device, and HETERO's own choice, to be chosen.
    """

    seed: int = 0
    updates: int = 8
    learning_rate: float = 5e-4
    samples: int = 16
    reinforce: float = 0.03
    entropy: float = 0.003
    edges: float = 0.2
    gradient: float = 1.0
    temperature: float = 0.03
    agreement: float = 0.5
    draws: int = 8
    refined: int = 6
    certain: int = 2
    finalists: int = 3
    final_rounds: int = 6
    margin: float = 0.02

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Settings:
        """Raises UserError for settings that this version does not know."""
        check_settings(values, {item.name for item in fields(cls)})
        return cls(**values)


@dataclass(frozen=True)
class Budget:
    """When to stop: after so many measurements, or seconds, of all parts of a run together; whichever comes first."""

    measurements: float = math.inf
    seconds: float = math.inf

    def share(self, measurements: int, seconds: float) -> float:
        """How much of it is spent, 1 and more: all."""
        return max(measurements / self.measurements, seconds / self.seconds)


# --- judges -----------------------------------------------------------------------------------------------------------


class Simulated:
    """A `Judge` that simulates instead of measuring: the problem's own costs, or others that stand for reality."""

    def __init__(self, problem: PlacementProblem, reference: str | None = None) -> None:
        """Raises RunError where neither a device alone nor HETERO's own choice keeps within memory."""
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
        """See `Judge.measure`."""
        placement = self._problem.placement_of(affinity)
        result = self._problem.evaluate(placement)
        us = float(result.score(self._problem.objective)[0])
        if not math.isfinite(us):
            return Measurement(0.0, error="the simulator calls the placement infeasible")
        ratio = self._reference_us / us
        return Measurement(ratio, *self._values(us), ratios=(ratio,), submodels=int(result.submodels[0]))

    def _values(self, us: float) -> tuple[float, float]:
        if self._problem.objective == "latency":
            return us, self._reference_us
        return 1e6 / us, 1e6 / self._reference_us


def simple_placement(problem: PlacementProblem, name: str) -> Placed:
    """Everything on a device, or for `HETERO_DEFAULT` HETERO's own choice."""
    return HeteroDefault().place(problem) if name == HETERO_DEFAULT else problem.single(problem.devices.index(name))


# --- checkpoint -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Entry:
    """A measured placement.

    Attributes:
        placement: uint8 [groups].
        measurement: of it.
        source: "single", "hetero" (HETERO's own choice), "policy" (what the policy proposed, refined) or "measured"
            (refined from a measured one).
        predicted: the ratio that the corrected simulator predicted; None for simple placements.
    """

    placement: Placed
    measurement: Measurement
    source: str
    predicted: float | None

    def to_dict(self) -> dict[str, Any]:
        """JSON-able, without the placement."""
        return {"measurement": self.measurement.to_dict(), "source": self.source, "predicted": self.predicted}


@dataclass
class State:
    """Everything that a run carries from measurement to measurement.

    Attributes:
        network: the policy.
        optimizer: of it.
        reference: what ratios are to.
        entries: all that was measured, in order.
        final: second measurements of finalists, by the number of their entry.
        recalled: proposals that had been measured before.
        seconds: wall time so far.
    """

    network: HSDAGNetwork
    optimizer: torch.optim.Adam
    reference: str = ""
    entries: list[Entry] = field(default_factory=list)
    final: dict[int, Measurement] = field(default_factory=dict)
    recalled: int = 0
    seconds: float = 0.0

    @property
    def proposed(self) -> list[int]:
        """Numbers of the entries that count against the budget: all but the simple placements."""
        simple = ("single", HETERO_DEFAULT)
        return [number for number, entry in enumerate(self.entries) if entry.source not in simple]

    @property
    def measured(self) -> list[Entry]:
        """These entries."""
        return [self.entries[number] for number in self.proposed]

    @property
    def good(self) -> list[Entry]:
        """What ran."""
        return [entry for entry in self.entries if not entry.measurement.failed]

    def best(self) -> Entry:
        """The best that was measured."""
        return max(self.good, key=lambda entry: entry.measurement.ratio)


def save_checkpoint(path: Path, state: State, settings: Settings, about: Mapping[str, Any], fingerprint: str) -> None:
    """Writes the state as one file, whole or not at all."""
    metadata = {
        "format": FORMAT,
        "fingerprint": fingerprint,
        "about": dict(about),
        "settings": asdict(settings),
        "network": state.network.config.to_dict(),
        "reference": state.reference,
        "entries": [entry.to_dict() for entry in state.entries],
        "final": {str(number): measurement.to_dict() for number, measurement in state.final.items()},
        "recalled": state.recalled,
        "seconds": state.seconds,
    }
    tensors = {"placements": torch.from_numpy(np.stack([entry.placement for entry in state.entries]))}
    write_checkpoint(path, state.network, state.optimizer, tensors, metadata)


def load_checkpoint(path: Path, fingerprint: str, settings: Settings) -> State:
    """The state at the checkpoint. Raises UserError where it belongs to another problem."""
    metadata = read_metadata(path, FORMAT)
    if metadata["fingerprint"] != fingerprint:
        raise UserError(
            f"'{path}' belongs to another model, device list or profile: resume with what the run began with"
        )
    state = new_state(HSDAGNetwork(HSDAGConfig.from_dict(metadata["network"])), settings)
    placements = restore(path, state.network, state.optimizer)["placements"].numpy()
    state.entries = [
        Entry(placement.copy(), Measurement.from_dict(entry["measurement"]), entry["source"], entry["predicted"])
        for placement, entry in zip(placements, metadata["entries"], strict=True)
    ]
    state.final = {int(number): Measurement.from_dict(values) for number, values in metadata["final"].items()}
    state.reference, state.recalled, state.seconds = metadata["reference"], metadata["recalled"], metadata["seconds"]
    return state


def new_state(network: HSDAGNetwork, settings: Settings) -> State:
    """A run that has measured nothing."""
    return State(network, torch.optim.Adam(network.parameters(), settings.learning_rate, eps=1e-7))


def fingerprint_of(problem: PlacementProblem) -> str:
    """What a checkpoint belongs to: the graph, the devices, the objective and the uncorrected costs."""
    digest = hashlib.sha256()
    for text in (*problem.graph.names, *problem.devices, problem.objective, str(problem.rule)):
        digest.update(text.encode() + b"\0")
    for array in (problem.groups, problem.graph.input_output, problem.supported, problem.memory_bytes, problem.node_us):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


# --- proposing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Task:
    """What stays the same in a run.

    Attributes:
        problem: with the profile's costs.
        x: its features, which the policy will also see when the model is placed later.
        weight: how much the device of each group matters, sum 1, float64 [groups].
        corrector: of the costs.
        reference: the reference's placement, uint8 [groups].
        terms: of the placements that were measured, by their bytes.
    """

    problem: PlacementProblem
    x: PolicyInput
    weight: NDArray[np.float64]
    corrector: Corrector
    reference: Placed
    terms: dict[bytes, Terms] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: PlacementProblem, config: HSDAGConfig, reference: str) -> Task:
        placement = simple_placement(problem, reference)
        x = policy_input(problem, config.features)
        return cls(problem, x, impact(problem), Corrector(problem, placement), placement)

    def fit(self, state: State) -> Fit:
        """The corrections that everything measured suggests."""
        measured = [entry.measurement for entry in state.good]
        for entry in state.good:
            if (key := entry.placement.tobytes()) not in self.terms:
                self.terms[key] = self.corrector.terms(entry.placement)
        terms = Terms.join([self.terms[entry.placement.tobytes()] for entry in state.good])
        uncertain = np.array([measurement.uncertain for measurement in measured])
        return self.corrector.fit(terms, np.array([measurement.ratio for measurement in measured]), uncertain)

    def distance(self, placement: Placed, others: Placed) -> NDArray[np.float64]:
        """Share of what matters that is elsewhere in each of the others, [others]."""
        return np.asarray((others != placement) @ self.weight)


@dataclass(frozen=True, eq=False)
class Proposal:
    """A placement to measure; see `Entry`. `recalled`: better ones that had been measured before."""

    placement: Placed
    source: str
    predicted: float
    recalled: int


def propose(state: State, task: Task, settings: Settings, fit: Fit) -> Proposal | None:
    """The most promising placement that is new; None where there is nothing new to find."""
    step = len(state.measured)
    generator = np.random.default_rng([settings.seed, 1, step])
    factors = fit.mean if step % settings.certain == 0 else fit.draw(generator)
    believed = task.corrector.apply(factors)
    threads = cpu_count() or 1

    fresh = _distinct(policy_placements(state.network, task, settings, generator))
    scores = believed.scores(fresh, threads)
    if not np.isfinite(scores).any():
        repaired = [believed.repair(placement) for placement in fresh[: settings.refined]]
        fresh = np.concatenate([np.stack(repaired), believed.random(generator, settings.refined)])
        scores = believed.scores(fresh, threads)
    leaders = sorted(state.good, key=lambda entry: -entry.measurement.ratio)[:_LEADERS]
    order = np.argsort(scores, kind="stable")
    # Most starts are the best by the simulator; some are any, as it may be wrong.
    chosen = order[: max(settings.refined - 2, 1)]
    others = generator.permutation(order[len(chosen) :])[: settings.refined - len(chosen)]
    starts = np.concatenate([fresh[chosen], fresh[others], np.stack([entry.placement for entry in leaders])])
    sources = ["policy"] * (len(chosen) + len(others)) + ["measured"] * len(leaders)
    refined, refined_scores = refine(believed, starts, threads=threads, seed=int(generator.integers(2**31)))

    pool = np.concatenate([refined, fresh])
    sources += ["policy"] * len(fresh)
    ranking = np.argsort(np.concatenate([refined_scores, scores]), kind="stable")
    known = np.stack([entry.placement for entry in state.entries])
    number, recalled = _first_new(task, pool, ranking, known)
    if number is None:
        pool, sources = task.problem.random(generator, 64), ["policy"] * 64
        number, _ = _first_new(task, pool, np.arange(64), known)
        if number is None:
            return None
    placement = pool[number]
    predicted = task.corrector.log_ratio(fit.mean, task.corrector.terms(placement))
    return Proposal(placement, sources[number], float(np.exp(predicted[0])), recalled)


def policy_placements(network: HSDAGNetwork, task: Task, settings: Settings, generator: np.random.Generator) -> Placed:
    """Single devices, then what the policy proposes, as the placer `hsdag` does: uint8 [proposals, groups]."""
    problem, x = task.problem, task.x
    batch = Batch.of([_example(task, problem, np.zeros((len(x.node_x), len(problem.devices)), np.float32), 1.0)])
    large = len(x.node_x) > _LARGE
    found = [np.stack([problem.single(device) for device in range(len(problem.devices))])]
    with torch.no_grad():
        h, edge_score = network.encode(batch.graphs)
        for levels in {network.config.levels: None} if large else {network.config.levels: None, 0: None}:
            cluster, count = parse(network, batch, edge_score, levels)
            logits = network.logits(h, edge_score, batch.graphs, cluster, count).numpy()
            draws = placer.sample(logits, 1 if large else settings.draws, generator)
            choices = np.concatenate([placer.lean(logits), draws])
            found.append(placer.expand(choices, logits, cluster.numpy()[x.coarse], problem.group_supported))
    return np.concatenate(found)


def _first_new(task: Task, pool: Placed, ranking: NDArray[np.int64], known: Placed) -> tuple[int | None, int]:
    """The first of the ranking that was not measured and is not next to one that was, and how many before it were."""
    second: int | None = None
    recalled = 0
    for number in ranking.tolist():
        if (known == pool[number]).all(axis=1).any():
            recalled += second is None
            continue
        if task.distance(pool[number], known).min() >= _DIFFERENT:
            return number, recalled
        second = number if second is None else second
    return second, recalled


def _distinct(placements: Placed) -> Placed:
    return placements[np.sort(np.unique(placements, axis=0, return_index=True)[1])]


# --- learning ---------------------------------------------------------------------------------------------------------


def learn(state: State, task: Task, settings: Settings, fit: Fit) -> dict[str, float]:
    """Updates the policy by all that was measured so far. Returns the last update's scalars.

    The rewards of measured placements weigh in their imitation; REINFORCE's samples are judged by the simulator with
    corrected costs, which measuring each would take days for.
    """
    step = len(state.measured)
    believed = task.corrector.apply(fit.mean)
    reference = float(believed.scores(task.reference)[0])
    batch = Batch.of([_example(task, believed, imitated(state, task, settings), reference)])
    generator = torch.Generator().manual_seed(int(np.random.default_rng([settings.seed, 2, step]).integers(2**62)))
    scalars: dict[str, float] = {}
    for number in range(settings.updates):
        # As placing does: clusters as parsed, and every coarse group for itself.
        policy = run_policy(state.network, batch, levels=None if number % 2 == 0 else 0)
        imitation, edges = imitation_loss(policy, batch), edge_loss(policy, batch)
        loss = imitation + settings.edges * edges - settings.entropy * policy.entropy
        if settings.reinforce and math.isfinite(reference):
            rollouts = sample(policy, batch, settings.samples, generator)
            loss = loss + settings.reinforce * reinforce_loss(policy, batch, rollouts)
            scalars["charts/simulated_reward"] = float(rollouts.rewards.mean())
        scalars["losses/gradient"] = descend(state.network, state.optimizer, loss, settings.gradient)
        scalars["losses/imitation"] = float(imitation.detach())
        scalars["losses/edges"] = float(edges.detach())
        scalars["losses/entropy"] = float(policy.entropy.detach())
    return scalars


def imitated(state: State, task: Task, settings: Settings) -> NDArray[np.float32]:
    """What the policy imitates: measured placements by their rewards, float32 [coarse, devices], sum 1."""
    good, best = state.good, state.best()
    rewards = np.log([entry.measurement.ratio for entry in good])
    weights = np.exp((rewards - rewards.max()) / settings.temperature)
    agreement = 1 - task.distance(best.placement, np.stack([entry.placement for entry in good]))
    weights *= agreement >= settings.agreement
    target = np.zeros((len(task.x.node_x), len(task.problem.devices)))
    for entry, weight in zip(good, weights / weights.sum(), strict=True):
        if weight > 1e-6:
            np.add.at(target, (task.x.coarse, entry.placement), weight * task.weight)
    return target.astype(np.float32)


def _example(task: Task, problem: PlacementProblem, target: NDArray[np.float32], reference: float) -> Example:
    allowed = np.zeros(target.shape, bool)
    np.logical_or.at(allowed, task.x.coarse, problem.group_supported)
    return Example(problem, task.x, reference, reference, target, allowed)


# --- the loop ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a run chose.

    Attributes:
        record: of the run, JSON-able.
        placement: uint8 [groups].
        measurement: of it.
        name: "hsdag", a device, or `HETERO_DEFAULT`.
        state: where the run stands.
    """

    record: dict[str, Any]
    placement: Placed
    measurement: Measurement
    name: str
    state: State


Report = Callable[[int, float, Entry, float], None]
"""Is told (measurements, share of the budget that is spent, the latest, the best ratio) after each measurement."""


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
        output: folder of the run.
        problem: the model on the devices, with the profile's costs.
        judge_of: makes the judge; its argument is the reference that the run has measured against so far, if any.
        network: the policy to begin with; None: the run in `output` is continued.
        budget: of all parts of the run together; None: the continued run's own.
        settings: of a new run.
        about: goes into checkpoint and record; of a new run.
        report: see `Report`.

    Raises:
        UserError: no run to continue, one of another problem, or one already where a new one was asked for.
        RunError: neither a device alone nor HETERO runs the model.
    """
    path = output / CHECKPOINT
    fingerprint = fingerprint_of(problem)
    begin = time.monotonic()
    if network is None:
        metadata = read_metadata(path, FORMAT)
        settings, about = Settings.from_dict(metadata["settings"]), metadata["about"]
        budget = budget or Budget(**{name: math.inf if v is None else v for name, v in about["budget"].items()})
        state = load_checkpoint(path, fingerprint, settings)
    else:
        refuse_existing(output)
        settings, about, budget = settings or Settings(), about or {}, budget or Budget()
        output.mkdir(parents=True, exist_ok=True)
        state = new_state(network, settings)
    limits = {name: value if math.isfinite(value) else None for name, value in asdict(budget).items()}
    about = {**about, "budget": limits}
    _check_devices(state.network.config, problem)
    before = state.seconds

    def clock() -> float:
        return before + time.monotonic() - begin

    judge: Judge | None = None
    if not state.entries:
        judge = judge_of(None)
        state.reference = judge.reference
        for name, measurement in judge.singles.items():
            state.entries.append(Entry(simple_placement(problem, name), measurement, "single", None))
    task = Task.of(problem, state.network.config, state.reference)
    with SummaryWriter(str(output), purge_step=len(state.measured)) as writer:
        while budget.share(len(state.measured), clock() + closing_seconds(state, settings)) < 1:
            fit = task.fit(state)
            scalars = learn(state, task, settings, fit)
            proposal = propose(state, task, settings, fit)
            if proposal is None:
                break
            judge = judge or judge_of(state.reference)
            # A lucky best must not cut short all that follow.
            worth = max(entry.measurement.sure for entry in state.good)
            measurement = judge.measure(problem.affinity(proposal.placement), worth=worth)
            entry = Entry(proposal.placement, measurement, proposal.source, proposal.predicted)
            state.entries.append(entry)
            state.recalled += proposal.recalled
            state.seconds = clock()
            save_checkpoint(path, state, settings, about, fingerprint)
            best = state.best().measurement.ratio
            scalars |= {"charts/ratio": measurement.ratio, "charts/best_ratio": best}
            scalars |= {"correction/predicted_ratio": proposal.predicted, "correction/error": fit.error}
            for name, value in scalars.items():
                writer.add_scalar(name, value, len(state.measured))
            if report:
                report(len(state.measured), budget.share(len(state.measured), clock()), entry, best)

        for number in finalists(state, settings):
            judge = judge or judge_of(state.reference)
            entry = state.entries[number]
            again = judge.measure(problem.affinity(entry.placement), rounds=settings.final_rounds)
            state.final[number] = pooled(entry.measurement, again, problem.objective)
            state.seconds = clock()
            save_checkpoint(path, state, settings, about, fingerprint)
        own = simple_placement(problem, HETERO_DEFAULT)
        if not any(np.array_equal(own, entry.placement) for entry in state.entries):
            judge = judge or judge_of(state.reference)
            measurement = judge.measure(problem.affinity(own), rounds=settings.final_rounds)
            state.entries.append(Entry(own, measurement, HETERO_DEFAULT, None))
            state.seconds = clock()
            save_checkpoint(path, state, settings, about, fingerprint)
    fit = task.fit(state)
    learn(state, task, settings, fit)
    placement, measurement, name = choose(state, problem, settings)
    record = make_record(state, task, settings, about, fit, measurement, name)
    write_json(output / "record.json", record)
    from ov_hsdag.training.export import export

    export(state.network, output / "policy", {key: record[key] for key in ("about", "settings", "best", "seconds")})
    return Outcome(record, placement, measurement, name, state)


def refuse_existing(output: Path) -> None:
    """Raises UserError where there is a run in the folder."""
    if (output / CHECKPOINT).exists():
        raise UserError(f"there is a run in '{output}' already: continue it with --resume or choose another output")


def _check_devices(config: HSDAGConfig, problem: PlacementProblem) -> None:
    if config.devices not in (None, len(problem.devices)):
        raise UserError(
            f"the policy places on {config.devices} devices, not on {len(problem.devices)}; choose another policy"
        )


def closing_seconds(state: State, settings: Settings) -> float:
    """About how long measuring the finalists again will take."""
    known = [entry.measurement.seconds for entry in state.measured]
    return 2 * settings.finalists * statistics.median(known) if known else 0.0


def finalists(state: State, settings: Settings) -> list[int]:
    """Numbers of the entries to measure again before one is chosen, as the best of many noisy ones is partly luck."""
    ranking = sorted(state.proposed, key=lambda number: -state.entries[number].measurement.ratio)
    best = [number for number in ranking[: settings.finalists] if state.entries[number].measurement.ratio > 1]
    return [number for number in best if number not in state.final]


def pooled(first: Measurement, second: Measurement, objective: str) -> Measurement:
    """Both measurements of a placement as one, with the later one's reference; a failure of it is one."""
    if second.failed:
        return second
    ratio = statistics.median((*first.ratios, *second.ratios))
    value = second.reference * ratio if objective == "throughput" else second.reference / ratio
    return replace(second, ratio=ratio, value=value, ratios=(*first.ratios, *second.ratios))


def choose(state: State, problem: PlacementProblem, settings: Settings) -> tuple[Placed, Measurement, str]:
    """Placement, measurement and name of the best finalist, where it beats the simple ones by the margin; else of the
    best of these."""
    known = [entry.measurement.reference for entry in state.good if math.isfinite(entry.measurement.reference)]
    value = statistics.median(known) if known else math.nan
    simple = [(state.reference, Measurement(1.0, value, value, submodels=1))]
    simple += [("", entry.measurement) for entry in state.entries if entry.source == HETERO_DEFAULT]
    name, bar = max(simple, key=lambda item: item[1].ratio)
    found = max(state.final, key=lambda number: state.final[number].ratio, default=None)
    if found is not None and state.final[found].ratio > bar.ratio * (1 + settings.margin):
        return state.entries[found].placement, state.final[found], "hsdag"
    name = name or HETERO_DEFAULT
    return simple_placement(problem, name), bar, name


def make_record(
    state: State,
    task: Task,
    settings: Settings,
    about: Mapping[str, Any],
    fit: Fit,
    chosen: Measurement,
    name: str,
) -> dict[str, Any]:
    """The record of the run: what it began with, all measurements in order, what they say of the costs, the choice."""
    best, curve = 1.0, []
    for number in state.proposed:
        best = max(best, state.entries[number].measurement.ratio)
        curve.append(round(best, 4))
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
        "recalled": state.recalled,
        "chosen": name,
        "best": {**chosen.to_dict(), "measurement": max(state.final, key=lambda n: state.final[n].ratio, default=None)},
        "best_so_far": curve,
        "entries": [entry.to_dict() for entry in state.entries],
        "final": {str(number): measurement.to_dict() for number, measurement in state.final.items()},
        "correction": {"error": round(fit.error, 4), **task.corrector.describe(fit.mean)},
        "seconds": round(state.seconds, 1),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
    }


# --- the model --------------------------------------------------------------------------------------------------------


def begin_with(policy: str | PathLike[str] | None, problem: PlacementProblem, seed: int) -> HSDAGNetwork:
    """The network of a policy's name or folder, the shipped one by default; for `SCRATCH` an untrained one.

    Raises UserError where there is no such policy.
    """
    from ov_hsdag.training.export import load

    if policy != SCRATCH:
        return load(bundle.find(policy))
    torch.manual_seed(seed)
    return HSDAGNetwork(HSDAGConfig.base(Widths.of(policy_input(problem))))


def finetune(
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
    compress_to_fp16: bool = False,
    report: Report | None = None,
) -> tuple[dict[str, Any], Placement]:
    """Fine-tunes the policy on a model and writes the model with the best measured placement.

    Args:
        model: any model; normalized and annotated in place.
        device: "HETERO:GPU,CPU".
        output: folder of the run.
        objective: "latency" or "throughput"; of a new run.
        budget: of all parts of the run together; None: the continued run's own. Without any it ends when nothing is
            left to measure.
        profile: speeds of the devices; built-in profiles by default.
        policy: to begin with, of a new run; see `begin_with`.
        simulated: judge placements by the profile instead of measuring; of a new run.
        resume: continue the run in `output`, with its own objective, policy, settings and judge.
        settings: of a new run.
        core: has the devices; a new one by default.
        compress_to_fp16: how the placed model's weights are saved.
        report: see `Report`.

    Returns:
        The record of the run, and the placement that the model now carries.

    Raises:
        UserError: bad input, or a device that this machine lacks where it is to be measured.
        RunError: neither a device alone nor HETERO runs the model.
    """
    import openvino as ov

    devices = DeviceSet.parse(device)
    if resume:
        about = read_metadata(output / CHECKPOINT, FORMAT)["about"]
        objective, simulated = about["objective"], about["simulated"]
    else:
        refuse_existing(output)
    if core is None:
        core = ov.Core()
        virtual.register(core)
    for name in () if simulated else discovery.absent(core, devices):
        raise UserError(f"device {name} is not on this machine, so nothing can be measured there: use --simulated")
    Placement.strip(model)
    problem = build_problem(model, devices, objective=objective, profile=profile, core=core)
    network = None
    if not resume:
        settings = settings or Settings()
        network = begin_with(policy, problem, settings.seed)
        about = {
            "device": devices.hetero,
            "objective": objective,
            "policy": str(policy or bundle.DEFAULT),
            "simulated": simulated,
            "openvino": ov.__version__,
        }

    def judge_of(reference: str | None) -> Judge:
        if simulated:
            return Simulated(problem, reference)
        return Measurer(model, devices, objective, core, reference=reference)

    outcome = run(output, problem, judge_of, network, budget, settings, about, report)
    placement = _placement(outcome, problem)
    set_affinities(model, placement.affinity)
    placement.embed(model)
    save_model_atomically(model, output / "model.xml", compress_to_fp16=compress_to_fp16)
    placement.save(output / "placement.json")
    return outcome.record, placement


def _placement(outcome: Outcome, problem: PlacementProblem) -> Placement:
    """The chosen placement, with figures of itself and of single devices: measured in the same turns, or predicted."""
    key, sign = ("throughput_ips", 1) if problem.objective == "throughput" else ("latency_us", -1)
    chosen = outcome.measurement
    measured: dict[str, Any] | None = None
    singles = outcome.record["singles"]
    if not outcome.record["about"]["simulated"] and math.isfinite(chosen.value):
        measured = {
            name: {key: chosen.reference * ratio**sign, "ratio": ratio, "ci": None, "submodels": 1, "failed": None}
            for name, ratio in singles.items()
        }
        figures = {key: chosen.value, "ratio": chosen.ratio, "ci": list(chosen.interval) if chosen.ratios else None}
        measured[outcome.name] = {**figures, "submodels": chosen.submodels, "failed": None}
    return Placement(
        devices=problem.devices,
        affinity=problem.affinity(outcome.placement),
        objective=problem.objective,
        predicted=problem.summary(outcome.placement),
        measured=measured,
        baselines={name: problem.summary(simple_placement(problem, name)) for name in singles},
        policy=Path(outcome.record["about"]["policy"]).name,
        chosen=outcome.name,
    )
