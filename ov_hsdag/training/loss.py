"""The loss of a training problem, and what it consists of."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from ov_hsdag.training.rollout import Example, Policy, Rollouts, joint_log_probability, sample
from ov_hsdag.training.settings import Settings


def imitation_loss(policy: Policy, example: Example) -> Tensor:
    """Cross entropy against the searched placement that the policy finds likeliest, groups weighted by their impact.

    The mean of several placements would be none.
    """
    # A coarse group can mix groups of different support: what its cluster cannot have is no mistake of the policy.
    log_probability = policy.log_probability[policy.cluster].clamp(min=-15)
    return -(example.elites * log_probability).sum((1, 2)).max()


def edge_loss(policy: Policy, example: Example) -> Tensor:
    """Binary cross entropy of edge scores against whether the searched placements keep both ends together.

    Parsing merges along the highest scores, so it should not merge what the answer cuts.
    """
    if not len(example.together):
        return policy.edge_score.sum()
    return nn.functional.binary_cross_entropy(policy.edge_score.clamp(1e-6, 1 - 1e-6), example.together)


def policy_loss(policy: Policy, rollouts: Rollouts, clip: float | None = None) -> tuple[Tensor, dict[str, float]]:
    """The loss of REINFORCE (Williams 1992, Machine Learning 8) or PPO (Schulman et al. 2017, arXiv:1707.06347, eq. 7).

    policy: of now, on the rollouts' clusters. clip: PPO's ε; None: REINFORCE. Returned with it are approx_kl
    (Schulman's k3 estimator) and the share of clipped ratios.
    """
    log_probability = joint_log_probability(policy, rollouts.actions)
    log_ratio = (log_probability - rollouts.log_probability).clamp(-10, 10)
    ratio = log_ratio.exp()
    logged = {
        "losses/approx_kl": (ratio - 1 - log_ratio).mean().item(),
        "losses/clipfrac": ((ratio - 1).abs() > (clip or np.inf)).float().mean().item(),
    }
    if clip is None:
        return -(rollouts.advantages * log_probability).mean(), logged
    clipped = ratio.clamp(1 - clip, 1 + clip)
    return -torch.minimum(rollouts.advantages * ratio, rollouts.advantages * clipped).mean(), logged


def counterfactual_loss(policy: Policy, advantages: Tensor, unit: float = 0.05, clip: float = 3.0) -> Tensor:
    """Minus the expected counterfactual advantage of giving one cluster another device, mean over clusters.

    For devices drawn from the policy its gradient is REINFORCE's, with the sum over a cluster's devices in place of the
    sample (an all-action policy gradient): what other clusters' draws add to a return, most of its variance, cancels.
    advantages: float32 [c, D], counted in units, so that small ones matter, and clipped.
    """
    return -(policy.log_probability.exp() * (advantages / unit).clamp(-clip, clip)).sum(-1).mean()


def problem_loss(
    policy: Policy,
    settings: Settings,
    step: int,
    example: Example,
    baseline: float,
    generator: torch.Generator,
    rollouts: Rollouts | None = None,
) -> tuple[Tensor, Rollouts | None, dict[str, float]]:
    """The loss of a problem: behaviour cloning at first, then policy gradients with behaviour cloning besides.

    Args:
        policy: on the problem, of the network as it is now.
        settings: of the training.
        step: from 0.
        example: the problem.
        baseline: the problem's moving mean return; nan for a new one.
        generator: of what is drawn.
        rollouts: of the first epoch of the step; None: this is the first.

    Returns:
        The loss, the rollouts (None in steps of imitation), and scalars to log by their names.
    """
    imitation, edges, entropy = imitation_loss(policy, example), edge_loss(policy, example), policy.entropy
    cloning = imitation + settings.edge_coef * edges
    bonus = settings.ent_coef * entropy.clamp(max=settings.target_entropy)
    logged = {
        "losses/imitation": imitation.item(),
        "losses/edges": edges.item(),
        "losses/entropy": entropy.item(),
        "charts/clusters": float(len(policy.log_probability)),
    }
    if step < settings.imitation_steps:
        return cloning - bonus, None, logged
    if rollouts is None:
        rollouts = sample(policy, example, settings.samples, generator, baseline, around_greedy=step % 2 == 1)
    gradient, more = policy_loss(policy, rollouts, settings.clip_coef)
    counterfactual = counterfactual_loss(policy, rollouts.counterfactual)
    loss = settings.pg_coef * gradient + settings.cf_coef * counterfactual + settings.bc_coef * cloning
    best = float(np.log(example.reference / example.target_score))
    logged |= {
        **more,
        "losses/policy_loss": gradient.item(),
        "losses/counterfactual_loss": counterfactual.item(),
        "charts/episodic_return": float(rollouts.returns.mean()),
        "charts/regret": best - float(rollouts.returns.mean()),
    }
    return loss - bonus, rollouts, logged
