"""Pretraining of the HSDAG policy: imitation of searched placements, then REINFORCE on the simulator.

The second part is REINFORCE (Williams 1992, Machine Learning 8) or PPO (Schulman et al. 2017, arXiv:1707.06347) on
sampled placements, and counterfactual advantages of single clusters, as in COMA (Foerster et al. 2018, AAAI), see
`ov_hsdag.training.rollout`.

Reads from top to bottom: settings, problems, checkpoint, the loop. A run is a function of its settings: batches and
problems follow from the seed and the step, what else is random has a generator whose state is in the checkpoint. So a
run that was killed and resumed ends with the same weights as one that was not.

In the output folder: checkpoint.safetensors (weights, optimiser, generators, history; replaced as a whole), TensorBoard
files, and in the end record.json and the policy folder policy/.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.tensorboard import SummaryWriter

from ov_hsdag.policy.features import policy_input
from ov_hsdag.training import corpus as corpora
from ov_hsdag.training.config import HSDAGConfig, Widths
from ov_hsdag.training.corpus import Corpus
from ov_hsdag.training.curves import plot_of_pretraining, write_plot
from ov_hsdag.training.network import HSDAGNetwork
from ov_hsdag.training.rollout import (
    Batch,
    Example,
    Policy,
    counterfactual_advantages,
    counterfactual_loss,
    edge_loss,
    greedy_scores,
    imitation_loss,
    reinforce_loss,
    run_policy,
    sample,
)
from ov_hsdag.training.run import (
    CHECKPOINT,
    check_settings,
    damage_told,
    descend,
    read_metadata,
    restore,
    uninterrupted,
    write_checkpoint,
)
from ov_hsdag.training.targets import SHARD, Each, Target, Targets, worth_learning
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.files import write_json

FORMAT = "1"

CORPUS = "corpus"
"""Name of the corpus in a run's folder, unless another one is given."""


@dataclass(frozen=True)
class Settings:
    """Everything that decides a run.

    Attributes:
        seed: of problems, initial weights, batches and samples.
        problems: training problems that are drawn; most of those with a single device for an answer are left out.
        first_problems: those that the first step draws from; all of them are in play when imitation ends.
        validation: problems that only measure, drawn from the same distribution.
        levels: of parsing; each step takes one of them, as placing tries several.
        imitation_steps: steps that imitate searched placements.
        reinforce_steps: steps of REINFORCE after those.
        batch: problems in a step.
        samples: placements of each problem in a step of REINFORCE.
        learning_rate: of imitation; falls to a tenth along a cosine.
        reinforce_rate: learning rate of REINFORCE, likewise.
        warmup: steps in which the learning rate rises from 0.
        entropy: weight of the entropy bonus.
        sampled: weight of whole sampled placements in steps of REINFORCE; it counts for every cluster of a problem.
        switches: weight of the counterfactual advantages of single clusters in steps of REINFORCE
            (`ov_hsdag.training.rollout.counterfactual_loss`).
        imitation: weight of imitation in steps of REINFORCE.
        edges: weight of imitation by edge scores, in both.
        clip: ε of PPO; None: plain REINFORCE.
        epochs: updates from the same samples (PPO).
        gradient: largest norm of the gradient.
        baseline: weight of the latest mean reward in a problem's exponential moving average.
        config: fields of `HSDAGConfig` that differ from `HSDAGConfig.base`.
        validate_every: steps between validations.
        max_coarse: larger graphs are left out.
    """

    seed: int = 0
    problems: int = 4096
    first_problems: int = 2048
    validation: int = 256
    levels: tuple[int, ...] = (0, 1, 1, 1, 2)
    imitation_steps: int = 1500
    reinforce_steps: int = 3500
    batch: int = 16
    samples: int = 8
    learning_rate: float = 1e-3
    reinforce_rate: float = 3e-4
    warmup: int = 100
    entropy: float = 0.02
    sampled: float = 0.1
    switches: float = 4.0
    imitation: float = 0.1
    edges: float = 0.5
    clip: float | None = None
    epochs: int = 1
    gradient: float = 1.0
    baseline: float = 0.3
    config: dict[str, Any] = field(default_factory=dict)
    validate_every: int = 500
    max_coarse: int = corpora.MAX_COARSE

    @property
    def steps(self) -> int:
        """Number of steps of both parts."""
        return self.imitation_steps + self.reinforce_steps

    def rate(self, step: int) -> float:
        """Returns the learning rate of a step (from 0): a linear warmup, then a cosine to a tenth, in each part."""
        imitating = step < self.imitation_steps
        start, length = (0, self.imitation_steps) if imitating else (self.imitation_steps, self.reinforce_steps)
        top = self.learning_rate if imitating else self.reinforce_rate
        share = (step - start) / max(length, 1)
        rise = min(1.0, (step - start + 1) / max(self.warmup, 1))
        return top * rise * (0.1 + 0.45 * (1 + math.cos(math.pi * share)))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Settings:
        """Settings from a checkpoint's JSON.

        Raises:
            UserError: there are settings that this version does not know.
        """
        check_settings(values, cls())
        return cls(**{**values, "levels": tuple(values["levels"])})


# --- problems ---------------------------------------------------------------------------------------------------------


class Pool:
    """Training problems of a corpus with their searched placements, each computed when it is first asked for."""

    def __init__(self, corpus: Corpus, targets: Targets, first_shard: int, config: HSDAGConfig) -> None:
        self._corpus = corpus
        self._targets = targets
        self._next = first_shard
        self._features = config.features
        self._problems: list[tuple[int, Target]] = []
        self._count: dict[int, int] = {0: 0}
        self._examples: dict[int, Example] = {}

    def count(self, shards: int) -> int:
        """Returns how many problems worth learning the first `shards` shards hold; searches placements as needed."""
        while len(self._count) <= shards:
            first = self._next * SHARD
            for number, target in enumerate(self._targets.shard(self._next), start=first):
                if worth_learning(target, number):
                    self._problems.append((number, target))
            self._next += 1
            self._count[len(self._count)] = len(self._problems)
        return self._count[shards]

    def __getitem__(self, index: int) -> Example:
        if index not in self._examples:
            number, target = self._problems[index]
            problem = self._corpus.draw(number)
            assert problem is not None
            x = policy_input(problem, self._features)
            self._examples[index] = Example.of(problem, x, target.placement, target.score, target.reference)
        return self._examples[index]


def shards_at(settings: Settings, step: int) -> int:
    """Returns how many shards of problems a step draws from: more and more until imitation ends.

    So the search for placements is spread over the steps.
    """
    share = min(1.0, step / max(settings.imitation_steps, 1))
    first = min(settings.first_problems, settings.problems)
    return max(1, math.ceil((first + share * (settings.problems - first)) / SHARD))


def batch_indices(settings: Settings, pool: Pool, step: int) -> NDArray[np.int64]:
    """Returns the indices of a step's problems, which follow from seed and step; int64 [batch]."""
    available = pool.count(shards_at(settings, step))
    generator = np.random.default_rng([settings.seed, 1, step])
    return generator.permutation(available)[: settings.batch]


def levels_at(settings: Settings, step: int) -> int:
    """Returns how often parsing merges in a step."""
    return int(np.random.default_rng([settings.seed, 2, step]).choice(settings.levels))


# --- checkpoint -------------------------------------------------------------------------------------------------------


@dataclass
class State:
    """Everything that a run carries from step to step.

    Attributes:
        network: the policy.
        optimizer: its optimizer.
        generator: of all draws in steps of REINFORCE.
        baselines: moving mean reward of each problem of the pool, nan for a new one, float64 [problems].
        step: number of steps made.
        seconds: wall time of all parts of the run so far.
        history: results of the validations.
    """

    network: HSDAGNetwork
    optimizer: torch.optim.Adam
    generator: torch.Generator
    baselines: NDArray[np.float64]
    step: int = 0
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)


def new_state(settings: Settings, config: HSDAGConfig) -> State:
    """Returns the state of a run that has made no step; torch's generator is seeded."""
    torch.manual_seed(settings.seed)
    network = HSDAGNetwork(config)
    return State(
        network=network,
        optimizer=torch.optim.Adam(network.parameters(), eps=1e-7),
        generator=torch.Generator().manual_seed(settings.seed),
        baselines=np.full(SHARD * shards_at(settings, settings.steps), np.nan),
    )


def save_checkpoint(path: Path, state: State, settings: Settings, corpus: Corpus, folder: Path | None) -> None:
    """Writes the state as one file, whole or not at all.

    Args:
        path: of the file.
        state: to save.
        settings: of the run.
        corpus: that the run learns from.
        folder: of the corpus; None: the folder "corpus" of the run.
    """
    tensors = {"generator": state.generator.get_state(), "baselines": torch.from_numpy(state.baselines)}
    metadata = {
        "format": FORMAT,
        "fingerprint": corpus.fingerprint,
        "corpus": None if folder is None else str(folder.resolve()),
        "settings": asdict(settings),
        "network": state.network.config.to_dict(),
        "step": state.step,
        "seconds": state.seconds,
        "history": state.history,
    }
    write_checkpoint(path, state.network, state.optimizer, tensors, metadata)


def load_checkpoint(path: Path, state: State, fingerprint: str) -> None:
    """Puts `state` where the checkpoint is.

    Raises:
        UserError: the checkpoint belongs to another corpus or to other settings.
    """
    metadata = read_metadata(path, FORMAT)
    if metadata.get("fingerprint") != fingerprint:
        raise UserError(f"'{path}' belongs to another corpus: resume with the one that the run began with")
    tensors = restore(path, state.network, state.optimizer)
    with damage_told(path):
        state.generator.set_state(tensors["generator"])
        state.baselines = tensors["baselines"].numpy().copy()
        state.step, state.seconds = int(metadata["step"]), float(metadata["seconds"])
        state.history = [dict(entry) for entry in metadata["history"]]


# --- the run ----------------------------------------------------------------------------------------------------------


def validate(network: HSDAGNetwork, pool: Pool, count: int, batch: int) -> dict[str, float]:
    """Compares greedy placements with searched ones.

    Args:
        network: the policy.
        pool: of validation problems.
        count: how many of them to use.
        batch: problems per pass.

    Returns:
        gap: geometric mean of score / searched score, less 1, where feasible; within_3: share within 3%;
        infeasible: share; imitation: the loss.
    """
    ratios, losses = [], []
    for first in range(0, count, batch):
        examples = Batch.of([pool[index] for index in range(first, min(first + batch, count))])
        with torch.no_grad():
            losses.append(float(imitation_loss(run_policy(network, examples), examples)) * len(examples.examples))
        targets = np.array([example.target_score for example in examples.examples])
        ratios.append(greedy_scores(network, examples) / targets)
    ratio = np.concatenate(ratios)
    feasible = np.isfinite(ratio)
    return {
        "gap": float(np.exp(np.log(ratio[feasible]).mean()) - 1) if feasible.any() else math.inf,
        "within_3": float((ratio <= 1.03).mean()),
        "infeasible": float((~feasible).mean()),
        "imitation": sum(losses) / len(ratio),
    }


def update(state: State, settings: Settings, examples: Batch, indices: NDArray[np.int64]) -> dict[str, float]:
    """Makes one step: imitation at first, then REINFORCE.

    Args:
        state: of the run; its network, optimizer and baselines are changed.
        settings: of the run.
        examples: the problems of the step.
        indices: their indices in the pool.

    Returns:
        The step's scalars, by their names in TensorBoard.
    """
    for group in state.optimizer.param_groups:
        group["lr"] = settings.rate(state.step)
    policy = run_policy(state.network, examples, levels=levels_at(settings, state.step))
    if state.step < settings.imitation_steps:
        scalars = _imitate(state, settings, examples, policy)
    else:
        policy, scalars = _reinforce(state, settings, examples, indices, policy)
    scalars["losses/entropy"] = float(policy.entropy.detach())
    scalars["charts/learning_rate"] = settings.rate(state.step)
    scalars["charts/clusters"] = len(policy.log_probability) / len(examples.examples)
    return scalars


def _imitate(state: State, settings: Settings, examples: Batch, policy: Policy) -> dict[str, float]:
    """A step that imitates searched placements."""
    imitation, edges = imitation_loss(policy, examples), edge_loss(policy, examples)
    norm = descend(state.network, state.optimizer, imitation + settings.edges * edges, settings.gradient)
    return {
        "losses/gradient": norm,
        "losses/imitation": float(imitation.detach()),
        "losses/edges": float(edges.detach()),
    }


def _reinforce(
    state: State, settings: Settings, examples: Batch, indices: NDArray[np.int64], policy: Policy
) -> tuple[Policy, dict[str, float]]:
    """A step of REINFORCE or PPO, with counterfactual advantages of single clusters; the last epoch's policy."""
    rollouts = sample(policy, examples, settings.samples, state.generator, state.baselines[indices])
    # Around the greedy choice, which is what counts in the end, and every other step around a draw.
    actions = policy.log_probability.argmax(-1) if state.step % 2 else rollouts.actions[0]
    advantages = counterfactual_advantages(policy, examples, actions, state.generator)
    for epoch in range(settings.epochs):
        if epoch:
            policy = run_policy(state.network, examples, rollouts.cluster)
        reinforce = reinforce_loss(policy, examples, rollouts, settings.clip)
        imitation, edges = imitation_loss(policy, examples), edge_loss(policy, examples)
        imitate = imitation + settings.edges * edges
        loss = settings.sampled * reinforce - settings.entropy * policy.entropy + settings.imitation * imitate
        loss = loss + settings.switches * counterfactual_loss(policy, advantages)
        norm = descend(state.network, state.optimizer, loss, settings.gradient)
    mean, old = rollouts.rewards.mean(axis=0), state.baselines[indices]
    state.baselines[indices] = np.where(np.isnan(old), mean, old + settings.baseline * (mean - old))
    best = np.log([example.reference / example.target_score for example in examples.examples])
    return policy, {
        "losses/gradient": norm,
        "losses/imitation": float(imitation.detach()),
        "losses/edges": float(edges.detach()),
        "charts/reward": float(mean.mean()),
        "charts/regret": float((best - mean).mean()),
    }


Report = Callable[[int, int, dict[str, float]], None]
"""Called after each step with its number (from 1), the number of all steps, and the latest scalars."""


def pretrain(
    output: Path,
    corpus_folder: Path | None = None,
    settings: Settings | None = None,
    *,
    checkpoint_seconds: float = 120.0,
    stop_at: int | None = None,
    end: bool = False,
    report: Report | None = None,
    each: Each | None = None,
    searching: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Runs or continues a pretraining.

    A run that is interrupted (KeyboardInterrupt) saves the steps that it has made before it leaves.

    Args:
        output: folder of the run.
        corpus_folder: templates (`ov_hsdag.training.corpus.make`); searched placements are kept there too. None: the
            one that the continued run began with; of a new run the folder "corpus" in `output`.
        settings: of a new run; None: the run in `output` is continued with its own.
        checkpoint_seconds: time between checkpoints.
        stop_at: leave, after a checkpoint, before this step.
        end: make no more steps: write record and policy of a run that was begun.
        report: see `Report`.
        each: searches all placements first, on several machines; None: they are searched here, when they are needed.
        searching: with `each`, takes the number of searched shards and that of all of them.

    Returns:
        The record of the run.

    Raises:
        UserError: there is no corpus, no run to continue, or a run already where a new one was asked for.
    """
    # Where the network is sure, gradients underflow, and with denormal numbers a step takes several times longer.
    torch.set_flush_denormal(True)
    path = output / CHECKPOINT
    resumed = settings is None
    if settings is None:
        metadata = read_metadata(path, FORMAT)
        with damage_told(path):
            settings = Settings.from_dict(metadata["settings"])
            if corpus_folder is None and metadata.get("corpus"):
                corpus_folder = Path(metadata["corpus"])
    elif path.exists():
        raise UserError(f"there is a run in '{output}' already: continue it with --resume or choose another output")
    output.mkdir(parents=True, exist_ok=True)

    folder = corpus_folder or output / CORPUS
    corpus = Corpus.load(folder, seed=settings.seed, max_coarse=settings.max_coarse)
    config = HSDAGConfig.base(_widths(corpus))
    config = HSDAGConfig.from_dict({**config.to_dict(), **settings.config})
    state = new_state(settings, config)

    def save() -> None:
        save_checkpoint(path, state, settings, corpus, corpus_folder)

    if resumed:
        load_checkpoint(path, state, corpus.fingerprint)
    else:
        save()
    # Validation comes first, so that more training problems do not change it.
    targets, first_shard = Targets(corpus, folder), math.ceil(settings.validation / SHARD)
    if each is not None:
        shards = first_shard + shards_at(settings, settings.steps)
        for done in targets.fill(shards, each):
            if searching:
                searching(done, shards)
    checks, pool = Pool(corpus, targets, 0, config), Pool(corpus, targets, first_shard, config)
    check_count = checks.count(first_shard)

    def checked() -> dict[str, float]:
        return validate(state.network, checks, check_count, settings.batch)

    if end:
        if not state.history or state.history[-1]["step"] != state.step:
            state.history.append({"step": state.step, "seconds": round(state.seconds, 1), **checked()})
    else:
        last_step = settings.steps if stop_at is None else min(stop_at, settings.steps)
        try:
            with SummaryWriter(str(output), purge_step=state.step if resumed else None) as writer:
                _train(state, settings, pool, last_step, checked, save, checkpoint_seconds, writer, report)
        except KeyboardInterrupt:
            with uninterrupted():
                save()
            raise
    record = make_record(state, settings, corpus, pool.count(shards_at(settings, state.step)), check_count)
    if end or state.step == settings.steps:
        finish(output, state, record)
    return record


def _train(
    state: State,
    settings: Settings,
    pool: Pool,
    last_step: int,
    checked: Callable[[], dict[str, float]],
    save: Callable[[], None],
    checkpoint_seconds: float,
    writer: SummaryWriter,
    report: Report | None,
) -> None:
    """The loop: draws problems, updates the policy, validates, reports and saves; up to `last_step`.

    An interrupt comes between two steps, where the state is whole.
    """
    begin = saved = time.monotonic()
    before = state.seconds
    while state.step < last_step:
        indices = batch_indices(settings, pool, state.step)
        examples = Batch.of([pool[index] for index in indices])
        with uninterrupted():
            scalars = update(state, settings, examples, indices)
            state.step += 1
            state.seconds = before + time.monotonic() - begin
            for name, value in scalars.items():
                writer.add_scalar(name, value, state.step)
            if state.step % settings.validate_every == 0 or state.step == settings.steps:
                found = checked()
                state.history.append({"step": state.step, "seconds": round(state.seconds, 1), **found, **scalars})
                found = {f"validation/{name}": value for name, value in found.items()}
                for name, value in found.items():
                    writer.add_scalar(name, value, state.step)
                scalars |= found
        if report:
            report(state.step, settings.steps, scalars)
        if time.monotonic() - saved >= checkpoint_seconds or state.step == last_step:
            save()
            saved = time.monotonic()


def _widths(corpus: Corpus) -> Widths:
    """Feature widths by the first problem that can be drawn."""
    number = 0
    while (problem := corpus.draw(number)) is None:
        number += 1
    return Widths.of(policy_input(problem))


def make_record(state: State, settings: Settings, corpus: Corpus, problems: int, validation: int) -> dict[str, Any]:
    """Returns the record of the run: settings, curves, what the corpus was, duration; JSON-able."""
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
            "held_out_families": sorted(corpora.HELD_OUT_FAMILIES),
            "held_out_profiles": sorted(corpora.HELD_OUT_PROFILES),
            "held_out_sets": {name: list(stems) for name, stems in corpora.HELD_OUT_SETS.items()},
            "problems": problems,
            "validation_problems": validation,
        },
        "history": state.history,
    }


def finish(output: Path, state: State, record: dict[str, Any]) -> None:
    """Writes the record, the plot of the validations and the policy folder."""
    from ov_hsdag.training.export import export

    write_json(output / "record.json", record)
    write_plot(output, plot_of_pretraining(record))
    export(state.network, output / "policy", record)
