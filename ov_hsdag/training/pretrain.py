"""Pretraining of the HSDAG policy: imitation of searched placements, then REINFORCE on the simulator.

The second part is REINFORCE (Williams 1992, Machine Learning 8) or PPO (Schulman et al. 2017, arXiv:1707.06347) on
sampled placements, and counterfactual advantages of single clusters, as in COMA (Foerster et al. 2018, AAAI), see
`ov_hsdag.training.rollout`.

Settings and problems are in `ov_hsdag.training.pool`, losses in `ov_hsdag.training.gradients`; here are the checkpoint
and the loop. A run is a function of its settings: batches and problems follow from the seed and the step, what else is
random has a generator whose state is in the checkpoint, or, in parts of a step, one that follows from the seed. So a
run that was killed and resumed ends with the same weights as one that was not.

In the output folder: checkpoint.safetensors (weights, optimiser, generators, history; replaced as a whole), TensorBoard
files, and in the end record.json and the policy folder policy/.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ov_hsdag.policy.features import policy_input
from ov_hsdag.storage.files import write_json
from ov_hsdag.training import corpus as corpora
from ov_hsdag.training.config import HSDAGConfig, Widths
from ov_hsdag.training.corpus import Corpus
from ov_hsdag.training.curves import plot_of_pretraining, write_plot
from ov_hsdag.training.events import SummaryWriter
from ov_hsdag.training.gradients import (
    Compute,
    Drawn,
    Gradients,
    Spread,
    Update,
    deal,
    here,
    set_gradient,
    step_loss,
    weights,
)
from ov_hsdag.training.network import HSDAGNetwork
from ov_hsdag.training.pool import Pool, batch_indices, shards_at
from ov_hsdag.training.pool import Settings as Settings
from ov_hsdag.training.rollout import Batch, greedy_scores, imitation_loss, run_policy
from ov_hsdag.training.run import (
    CHECKPOINT,
    damage_told,
    descend,
    follow,
    interruptible,
    read_metadata,
    restore,
    uninterrupted,
    write_checkpoint,
)
from ov_hsdag.training.targets import SHARD, Each, Targets
from ov_hsdag.utils.errors import RunError, UserError

FORMAT = "1"

CORPUS = "corpus"
"""Name of the corpus in a run's folder, unless another one is given."""


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


def update(
    state: State, settings: Settings, pool: Pool, indices: NDArray[np.int64], compute: Compute
) -> dict[str, float]:
    """Makes one step: imitation at first, then REINFORCE.

    Args:
        state: of the run; its network, optimizer and baselines are changed, or nothing where the step fails.
        settings: of the run.
        pool: of the problems.
        indices: of the step's problems in the pool.
        compute: computes parts, where there are several.

    Returns:
        The step's scalars, by their names in TensorBoard.
    """
    for group in state.optimizer.param_groups:
        group["lr"] = settings.rate(state.step)
    if settings.parts > 1:
        rewards, scalars = _in_parts(state, settings, pool, indices, compute)
    else:
        rewards, scalars = _as_a_whole(state, settings, pool, indices)
    if len(rewards):
        old = state.baselines[indices]
        state.baselines[indices] = np.where(np.isnan(old), rewards, old + settings.baseline * (rewards - old))
    scalars["charts/learning_rate"] = settings.rate(state.step)
    return scalars


def _as_a_whole(
    state: State, settings: Settings, pool: Pool, indices: NDArray[np.int64]
) -> tuple[NDArray[np.float64], dict[str, float]]:
    """Updates by the gradient of the whole batch; mean rewards of the problems, if any, and the last scalars."""
    examples = Batch.of([pool[int(index)] for index in indices])
    drawn: Drawn | None = None
    scalars: dict[str, float] = {}
    for _ in range(settings.epochs_at(state.step)):
        baselines = state.baselines[indices]
        loss = step_loss(state.network, settings, state.step, examples, baselines, state.generator, drawn)
        norm = descend(state.network, state.optimizer, loss.value, settings.gradient)
        drawn, scalars = loss.drawn, {**loss.scalars, "losses/gradient": norm}
    return np.zeros(0) if drawn is None else drawn.rollouts.rewards.mean(axis=0), scalars


def _in_parts(
    state: State, settings: Settings, pool: Pool, indices: NDArray[np.int64], compute: Compute
) -> tuple[NDArray[np.float64], dict[str, float]]:
    """As `_as_a_whole`, by the sum of gradients of parts."""
    parts = deal(settings, pool, indices, state.baselines)
    scalars: dict[str, float] = {}
    with _whole_or_not_at_all(state) if settings.epochs_at(state.step) > 1 else nullcontext():
        for epoch in range(settings.epochs_at(state.step)):
            with interruptible():
                found = compute(Update(state.step, epoch, weights(state.network)), parts)
            total = found[0].gradient.copy()
            for one in found[1:]:
                total += one.gradient
            set_gradient(state.network, total)
            norm = follow(state.network, state.optimizer, settings.gradient)
            if epoch == 0:
                parts = [replace(part, drawn=one.drawn) for part, one in zip(parts, found, strict=True)]
            scalars = {name: sum(one.scalars[name] for one in found) for name in found[0].scalars}
            scalars["losses/gradient"] = norm
    rewards = np.zeros(len(indices) if len(found[0].rewards) else 0)
    if len(rewards):
        place = {int(index): number for number, index in enumerate(indices)}
        for part, one in zip(parts, found, strict=True):
            rewards[[place[int(index)] for index in part.indices]] = one.rewards
    return rewards, scalars


@contextmanager
def _whole_or_not_at_all(state: State) -> Iterator[None]:
    """Puts weights and optimizer back where an exception ends the block between two updates."""
    network, optimizer = deepcopy(state.network.state_dict()), deepcopy(state.optimizer.state_dict())
    try:
        yield
    except BaseException:
        state.network.load_state_dict(network)
        state.optimizer.load_state_dict(optimizer)
        raise


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
    spread: Spread | None = None,
    searching: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Runs or continues a pretraining.

    A run that is interrupted (KeyboardInterrupt), or that loses the machines which compute for it (RunError), saves the
    steps that it has made before it leaves.

    Args:
        output: folder of the run.
        corpus_folder: templates (`python -m research.corpus`); searched placements are kept there too. None: the
            one that the continued run began with; of a new run the folder "corpus" in `output`.
        settings: of a new run; None: the run in `output` is continued with its own.
        checkpoint_seconds: time between checkpoints.
        stop_at: leave, after a checkpoint, before this step.
        end: make no more steps: write record and policy of a run that was begun.
        report: see `Report`.
        each: searches all placements first, on several machines; None: they are searched here, when they are needed.
        spread: who computes the parts of steps; None: this process. Elsewhere, all placements are searched first.
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

    if spread is None or settings.parts == 1:
        spread = here
    else:
        pool.count(shards_at(settings, settings.steps))
    compute = spread(Gradients(pool, settings, config))

    def checked() -> dict[str, float]:
        return validate(state.network, checks, check_count, settings.batch)

    if end:
        if not state.history or state.history[-1]["step"] != state.step:
            state.history.append({"step": state.step, "seconds": round(state.seconds, 1), **checked()})
    else:
        last_step = settings.steps if stop_at is None else min(stop_at, settings.steps)
        try:
            with SummaryWriter(str(output), purge_step=state.step if resumed else None) as writer:
                _train(state, settings, pool, compute, last_step, checked, save, checkpoint_seconds, writer, report)
        except (KeyboardInterrupt, RunError):
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
    compute: Compute,
    last_step: int,
    checked: Callable[[], dict[str, float]],
    save: Callable[[], None],
    checkpoint_seconds: float,
    writer: SummaryWriter,
    report: Report | None,
) -> None:
    """The loop: draws problems, updates the policy, validates, reports and saves; up to `last_step`.

    An interrupt comes between two steps, where the state is whole, or ends a step that waits for its parts.
    """
    begin = saved = time.monotonic()
    before = state.seconds
    while state.step < last_step:
        indices = batch_indices(settings, pool, state.step)
        with uninterrupted():
            scalars = update(state, settings, pool, indices, compute)
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
