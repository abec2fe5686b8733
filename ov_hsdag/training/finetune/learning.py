"""Updates of the policy from measured placements: imitation of the best, REINFORCE on the corrected simulator."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from ov_hsdag.calibration.correction import Fit
from ov_hsdag.training.finetune.settings import Settings
from ov_hsdag.training.finetune.state import State
from ov_hsdag.training.finetune.task import Task
from ov_hsdag.training.loss import edge_loss, imitation_loss, policy_loss
from ov_hsdag.training.rollout import run_policy, sample
from ov_hsdag.training.run import follow

# Placements with a smaller weight are not imitated.
_NEGLIGIBLE = 1e-6


def learn(state: State, task: Task, settings: Settings, fit: Fit) -> dict[str, float]:
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


def imitation_target(state: State, task: Task, settings: Settings) -> NDArray[np.float32]:
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
