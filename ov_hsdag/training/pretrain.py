"""Pretraining of the HSDAG policy: behaviour cloning of searched placements, then policy gradients on the simulator.

The second phase is REINFORCE (Williams 1992, Machine Learning 8) or PPO (Schulman et al. 2017, arXiv:1707.06347) on
sampled placements, with counterfactual advantages of single clusters, as in COMA (Foerster et al. 2018, AAAI).

A step uses these modules in order: `problems` draws the batch, `rollout` samples placements and simulates them, and
`loss` computes the loss of a problem. This module makes the update, and has the log, the checkpoint and the loop.

A run is a function of its settings: all random numbers follow from the seed, the step and the problem. So a run that
was killed and resumed ends with the same weights as one that was not.

The output folder has checkpoint.safetensors (weights, optimizer, baselines, history; replaced as a whole), TensorBoard
files, and in the end record.json and the policy folder policy/.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ov_hsdag.policy.config import HSDAGConfig, Widths
from ov_hsdag.policy.features import policy_input
from ov_hsdag.storage.files import write_json
from ov_hsdag.training import corpus as corpora
from ov_hsdag.training import refuse_existing
from ov_hsdag.training import run as runs
from ov_hsdag.training.corpus import Corpus
from ov_hsdag.training.loss import imitation_loss, problem_loss
from ov_hsdag.training.network import HSDAGNetwork, export
from ov_hsdag.training.problems import SHARD, Each, Pool, Targets, batch_indices, levels_at, shards_at
from ov_hsdag.training.rollout import Example, Rollouts, greedy_score, run_policies, run_policy
from ov_hsdag.training.settings import Settings
from ov_hsdag.utils.errors import UserError

FORMAT = "1"
"""Version of the checkpoints of pretraining."""

CORPUS = "corpus"
"""Name of the corpus folder in a run's folder, where no other corpus is given."""

Report = Callable[[int, int, dict[str, float]], None]
"""Called after each step with its number (from 1), the number of all steps, and the latest scalars."""


@dataclass
class State:
    """Everything that a run carries from step to step.

    Attributes:
        network: the network.
        optimizer: its optimizer.
        baselines: moving mean return of each problem of the pool, nan for a new one, float64 [problems].
        step: number of steps made.
        seconds: wall time of all parts of the run so far, seconds.
        history: results of the validations.
    """

    network: HSDAGNetwork
    optimizer: torch.optim.Adam
    baselines: NDArray[np.float64]
    step: int = 0
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)

    @classmethod
    def new(cls, settings: Settings, config: HSDAGConfig) -> State:
        """The state of a run that has made no step; this seeds torch's global generator."""
        torch.manual_seed(settings.seed)
        network = HSDAGNetwork(config)
        baselines = np.full(SHARD * shards_at(settings, settings.steps), np.nan)
        return cls(network, torch.optim.Adam(network.parameters(), eps=1e-7), baselines)

    def save(self, path: Path, settings: Settings, corpus: Corpus, folder: Path | None) -> None:
        """Writes a checkpoint.

        Args:
            path: file of the checkpoint, which is replaced as a whole.
            settings: settings of the run.
            corpus: corpus of the run.
            folder: folder of the corpus; None for the folder "corpus" of the run.
        """
        metadata = {
            "format": FORMAT,
            "fingerprint": corpus.fingerprint,
            "corpus": None if folder is None else str(folder.resolve()),
            "settings": asdict(settings),
            "network": self.network.config.to_dict(),
            "step": self.step,
            "seconds": self.seconds,
            "history": self.history,
        }
        runs.write_checkpoint(
            path, self.network, self.optimizer, {"baselines": torch.from_numpy(self.baselines)}, metadata
        )

    def load(self, path: Path, fingerprint: str) -> None:
        """Restores the state from a checkpoint.

        Args:
            path: file of the checkpoint.
            fingerprint: fingerprint of the corpus.

        Raises:
            UserError: the checkpoint is damaged, or belongs to another corpus or network.
        """
        metadata = runs.read_metadata(path, FORMAT)
        if metadata.get("fingerprint") != fingerprint:
            raise UserError(
                f"'{path}' belongs to another corpus: resume with the corpus and the release that the run began with"
            )
        tensors = runs.restore(path, self.network, self.optimizer)
        with runs.readable_checkpoint(path):
            self.baselines = tensors["baselines"].numpy().copy()
            self.step, self.seconds = int(metadata["step"]), float(metadata["seconds"])
            self.history = [dict(entry) for entry in metadata["history"]]


def update(state: State, settings: Settings, pool: Pool, indices: NDArray[np.int64]) -> dict[str, float]:
    """Makes a step on some problems of the pool; where it fails, the network and the optimizer are unchanged.

    Args:
        state: state of the run; network, optimizer and baselines are updated.
        settings: settings of the run.
        pool: the problems.
        indices: indices of the step's problems in the pool, int64 [batch].

    Returns:
        The scalars of the step, by their names in TensorBoard.
    """
    network, optimizer = state.network, state.optimizer
    for group in optimizer.param_groups:
        group["lr"] = settings.rate(state.step)
    examples = {index: pool[index] for index in np.sort(indices).tolist()}
    rollouts: dict[int, Rollouts | None] = dict.fromkeys(examples)
    epochs = 1 if state.step < settings.imitation_steps else settings.update_epochs
    before = deepcopy((network.state_dict(), optimizer.state_dict()))
    try:
        for epoch in range(epochs):
            optimizer.zero_grad()
            logged: Counter[str] = Counter()
            for same_devices in _by_devices(examples):
                logged.update(_backward(state, settings, epoch, same_devices, rollouts, 1 / len(examples)))
            norm = runs.follow(network, optimizer, settings.max_grad_norm)
    except BaseException:
        network.load_state_dict(before[0])
        optimizer.load_state_dict(before[1])
        raise
    means = {name: value / len(examples) for name, value in logged.items()}
    scalars = {**means, "losses/grad_norm": norm, "charts/learning_rate": settings.rate(state.step)}
    drawn = {index: one for index, one in rollouts.items() if one is not None}
    if drawn:
        returns = np.array([one.returns.mean() for one in drawn.values()])
        old = state.baselines[[*drawn]]
        if math.isfinite(explained := explained_variance(old, returns)):
            scalars["losses/explained_variance"] = explained
        state.baselines[[*drawn]] = np.where(np.isnan(old), returns, old + settings.baseline_rate * (returns - old))
    return scalars


def _by_devices(examples: Mapping[int, Example]) -> list[dict[int, Example]]:
    """Sorts the problems of a step by their number of devices, as those with equally many are run at once.

    Returns:
        Problems with equally many devices, by their index in the pool; fewest devices first.
    """
    groups: dict[int, dict[int, Example]] = {}
    for index, example in examples.items():
        groups.setdefault(len(example.problem.devices), {})[index] = example
    return [groups[devices] for devices in sorted(groups)]


def _backward(
    state: State,
    settings: Settings,
    epoch: int,
    examples: Mapping[int, Example],
    rollouts: dict[int, Rollouts | None],
    weight: float,
) -> Counter[str]:
    """Computes the losses of problems with equally many devices, and adds their gradients to those of the network.

    Args:
        state: state of the run.
        settings: settings of the run.
        epoch: number of the epoch within the step, from 0.
        examples: the problems, by their index in the pool.
        rollouts: rollouts of the problems, by the same index. They are None in the first epoch of a step, which puts
            them there; in steps of imitation they stay None.
        weight: weight of each problem's loss in the loss of the step.

    Returns:
        Scalars, summed over the problems.
    """
    origin = [settings.seed, 3, state.step, epoch]
    total: Counter[str] = Counter()
    with torch.random.fork_rng(devices=[]):
        # Dropout has no generator of its own.
        torch.manual_seed(_seed(*origin, min(examples)))
        clusters = [None if one is None else one.cluster for one in map(rollouts.get, examples)]
        levels = levels_at(settings, state.step)
        policies = run_policies(state.network, [*examples.values()], clusters, levels)
        losses = []
        for policy, (index, example) in zip(policies, examples.items(), strict=True):
            generator = torch.Generator().manual_seed(_seed(*origin, index))
            loss, rollouts[index], logged = problem_loss(
                policy, settings, state.step, example, state.baselines[index], generator, rollouts[index]
            )
            losses.append(loss)
            total.update(logged)
        (weight * torch.stack(losses).sum()).backward()  # type: ignore[no-untyped-call]
    return total


def _seed(*origin: int) -> int:
    """Mixes numbers, such as the run's seed and the step, to a seed of torch's generators."""
    return int(np.random.default_rng(origin).integers(2**62))


def explained_variance(baselines: NDArray[np.float64], returns: NDArray[np.float64]) -> float:
    """Computes 1 - Var(returns - baselines) / Var(returns) over problems with a baseline.

    Args:
        baselines: baseline of each problem, nan for none, float64 [problems].
        returns: mean return of each problem, float64 [problems].

    Returns:
        The value; nan if fewer than two problems have a baseline, or their returns are equal.
    """
    has_baseline = ~np.isnan(baselines)
    variance = float(returns[has_baseline].var()) if has_baseline.sum() > 1 else 0.0
    return 1 - float((returns - baselines)[has_baseline].var()) / variance if variance > 0 else math.nan


def validate(network: HSDAGNetwork, pool: Pool, count: int) -> dict[str, float]:
    """Compares greedy placements of validation problems with searched placements.

    Args:
        network: the network.
        pool: validation problems.
        count: number of problems that are used, the first ones.

    Returns:
        "gap", the geometric mean of score / searched score of feasible placements, less 1; "within_3", the share of
        placements within 3% of the searched ones; "infeasible", the share of infeasible ones; "imitation", the mean
        loss of imitation; "entropy", the mean entropy of the clusters' devices, nats.
    """
    examples = [pool[index] for index in range(count)]
    with torch.no_grad():
        policies = [run_policy(network, example) for example in examples]
        losses = [float(imitation_loss(policy, example)) for policy, example in zip(policies, examples, strict=True)]
    ratio = np.array([greedy_score(*each) / each[1].target_score for each in zip(policies, examples, strict=True)])
    feasible = np.isfinite(ratio)
    return {
        "gap": float(np.exp(np.log(ratio[feasible]).mean()) - 1) if feasible.any() else math.inf,
        "within_3": float((ratio <= 1.03).mean()),
        "infeasible": float((~feasible).mean()),
        "imitation": float(np.mean(losses)),
        "entropy": float(np.mean([float(policy.entropy) for policy in policies])),
    }


def pretrain(
    output: Path,
    corpus_folder: Path | None = None,
    settings: Settings | None = None,
    *,
    checkpoint_seconds: float = 120.0,
    end: bool = False,
    report: Report | None = None,
    each: Each | None = None,
) -> dict[str, Any]:
    """Runs or continues a pretraining.

    A run that is interrupted (KeyboardInterrupt) saves a checkpoint before it ends.

    Args:
        output: the run's folder.
        corpus_folder: folder of the corpus, in which searched placements are kept as well. By default a continued run
            uses the corpus that it began with, and a new one the folder "corpus" in `output`.
        settings: settings of a new run; None to continue the run in `output` with its own settings.
        checkpoint_seconds: time between checkpoints, seconds.
        end: whether to make no more steps, but write record and policy of a run that was begun.
        report: called after each step.
        each: searches all placements before the first step, such as on several machines; by default they are searched
            in this process when they are needed.

    Returns:
        The record of the run, see `make_record`.

    Raises:
        UserError: there is no corpus, no run to continue, or already a run where a new one shall begin.
    """
    # Where the policy is certain, gradients underflow; with denormal numbers, a step takes several times as long.
    torch.set_flush_denormal(True)
    run = _prepare(output, corpus_folder, settings, each)
    if end:
        if not run.state.history or run.state.history[-1]["step"] != run.state.step:
            run.validate()
    else:
        _loop(run, checkpoint_seconds, report)
    return _end(run)


@dataclass(frozen=True, eq=False)
class _Run:
    """A run that is ready to make steps, begun or continued.

    Attributes:
        output: the run's folder.
        settings: settings of the run.
        state: what changes from step to step.
        resumed: whether the run was begun earlier.
        corpus: the corpus.
        corpus_folder: folder of the corpus; None for the folder "corpus" of the run.
        pool: problems to learn from.
        checks: pool of the validation problems.
        check_count: number of validation problems, the first ones of `checks`.
    """

    output: Path
    settings: Settings
    state: State
    resumed: bool
    corpus: Corpus
    corpus_folder: Path | None
    pool: Pool
    checks: Pool
    check_count: int

    def save(self) -> None:
        """Writes a checkpoint."""
        self.state.save(self.output / runs.CHECKPOINT, self.settings, self.corpus, self.corpus_folder)

    def validate(self) -> dict[str, float]:
        """Validates the network, and adds the result to the history."""
        state = self.state
        figures = validate(state.network, self.checks, self.check_count)
        state.history.append({"step": state.step, "seconds": round(state.seconds, 1), **figures})
        return figures


def _prepare(output: Path, corpus_folder: Path | None, settings: Settings | None, each: Each | None) -> _Run:
    """Begins a run, or loads one; the arguments are those of `pretrain`.

    Raises:
        UserError: there is no corpus, no run to continue, or already a run where a new one shall begin.
    """
    path = output / runs.CHECKPOINT
    resumed = settings is None
    if settings is None:
        metadata = runs.read_metadata(path, FORMAT)
        with runs.readable_checkpoint(path):
            settings = Settings.from_dict(metadata["settings"])
            if corpus_folder is None and metadata.get("corpus"):
                corpus_folder = Path(metadata["corpus"])
    else:
        refuse_existing(output)
    output.mkdir(parents=True, exist_ok=True)

    folder = corpus_folder or output / CORPUS
    corpus = Corpus.load(folder, seed=settings.seed, max_coarse=settings.max_coarse)
    example = next(problem for number in itertools.count() if (problem := corpus.draw(number)) is not None)
    config = HSDAGConfig.base(Widths.of(policy_input(example)))
    config = HSDAGConfig.from_dict({**config.to_dict(), **settings.config})
    state = State.new(settings, config)
    if resumed:
        state.load(path, corpus.fingerprint)
    else:
        state.save(path, settings, corpus, corpus_folder)
    # Validation problems are the first shards, so that their number does not depend on that of training problems.
    targets, first_shard = Targets(corpus, folder), math.ceil(settings.validation / SHARD)
    if each is not None:
        targets.fill(first_shard + shards_at(settings, settings.steps), each)
    checks, pool = Pool(corpus, targets, 0), Pool(corpus, targets, first_shard)
    return _Run(output, settings, state, resumed, corpus, corpus_folder, pool, checks, checks.count(first_shard))


def _loop(run: _Run, checkpoint_seconds: float, report: Report | None) -> None:
    """Makes the steps that are left, with checkpoints; an interrupt writes one, too.

    Args:
        run: the run.
        checkpoint_seconds: time between checkpoints, seconds.
        report: called after each step.
    """
    state, settings = run.state, run.settings
    saved = time.monotonic()
    try:
        with runs.SummaryWriter(str(run.output), purge_step=state.step if run.resumed else None) as writer:
            begin, before = time.monotonic(), state.seconds
            while state.step < settings.steps:
                indices = batch_indices(settings, run.pool, state.step)
                # Interrupts are delayed to the end of the step, when the state is consistent.
                with runs.uninterrupted():
                    scalars = update(state, settings, run.pool, indices)
                    state.step += 1
                    state.seconds = before + time.monotonic() - begin
                    if state.step % settings.validate_every == 0 or state.step == settings.steps:
                        figures = run.validate()
                        state.history[-1] |= scalars
                        scalars |= {f"validation/{name}": value for name, value in figures.items()}
                    for name, value in scalars.items():
                        writer.add_scalar(name, value, state.step)
                if report:
                    report(state.step, settings.steps, scalars)
                if time.monotonic() - saved >= checkpoint_seconds or state.step == settings.steps:
                    run.save()
                    saved = time.monotonic()
    except KeyboardInterrupt:
        with runs.uninterrupted():
            run.save()
        raise


def _end(run: _Run) -> dict[str, Any]:
    """Writes the record of a run and its policy, and returns the record."""
    problems = run.pool.count(shards_at(run.settings, run.state.step))
    record = make_record(run.state, run.settings, run.corpus, problems, run.check_count)
    write_json(run.output / "record.json", record)
    export(run.state.network, run.output / "policy", record)
    return record


def make_record(state: State, settings: Settings, corpus: Corpus, problems: int, validation: int) -> dict[str, Any]:
    """Makes the record of a run: settings, duration, corpus and validations.

    Args:
        state: state of the run.
        settings: settings of the run.
        corpus: corpus of the run.
        problems: number of training problems that were in play at the last step.
        validation: number of validation problems.

    Returns:
        The record, JSON-able.
    """
    return {
        "settings": asdict(settings),
        "step": state.step,
        "seconds": round(state.seconds, 1),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "corpus": {
            "recipe": corpora.RECIPE,
            "fingerprint": corpus.fingerprint,
            "models": list(corpus.names),
            "generated": corpus.generated,
            "problems": problems,
            "validation_problems": validation,
        },
        "history": state.history,
    }
