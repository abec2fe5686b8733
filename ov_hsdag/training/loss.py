"""The loss of a training problem and its terms.

Searched placements, the elites of an `Example`, are the targets of behaviour cloning. Sampled placements (`Rollouts`)
give policy gradients.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from ov_hsdag.training.rollout import Example, Policy, Rollouts, joint_log_probability, sample
from ov_hsdag.training.settings import Settings


def imitation_loss(policy: Policy, example: Example) -> Tensor:
    """Cross entropy of devices against one searched placement, with co-location groups weighted by `impact`, a scalar.

    Of several searched placements, the one that the policy finds likeliest counts: their mean would be no placement.
    """
    # A coarse group can mix groups of different support. The policy is not to blame for devices that its cluster cannot
    # have, so their log-probability is bounded.
    log_probability = policy.log_probability[policy.cluster].clamp(min=-15)
    return -(example.elites * log_probability).sum((1, 2)).max()


def edge_loss(policy: Policy, example: Example) -> Tensor:
    """Binary cross entropy of edge scores against `Example.together`, a scalar; 0 without edges.

    Parsing merges nodes along the highest scores, so edges that the searched placements cut should have low scores.
    """
    if not len(example.together):
        return policy.edge_score.sum()
    return nn.functional.binary_cross_entropy(policy.edge_score.clamp(1e-6, 1 - 1e-6), example.together)


def policy_loss(policy: Policy, rollouts: Rollouts, clip: float | None = None) -> tuple[Tensor, dict[str, float]]:
    """The loss of REINFORCE (Williams 1992, Machine Learning 8) or PPO (Schulman et al. 2017, arXiv:1707.06347, eq. 7).

    Args:
        policy: the present policy, on the clusters of the rollouts.
        rollouts: sampled placements with their advantages.
        clip: ε of PPO, the largest useful deviation of a probability ratio from 1; None for REINFORCE.

    Returns:
        The loss, a scalar; and figures to log: the approximate KL divergence from the sampling policy (Schulman's k3
        estimator), and the share of clipped ratios.
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

    Its gradient is that of REINFORCE with the sum over a cluster's devices in place of a sample (an all-action policy
    gradient). The draws of other clusters, which make most of the variance of a return, cancel.

    Args:
        policy: the present policy, on c clusters and D devices.
        advantages: counterfactual advantages, float32 [c, D].
        unit: advantages are divided by it, so that small ones matter.
        clip: largest magnitude of an advantage after that.

    Returns:
        The loss, a scalar.
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
    """The loss of a problem: behaviour cloning at first, then policy gradients together with behaviour cloning.

    Args:
        policy: the policy on the problem, of the network as it is now.
        settings: settings of the run.
        step: number of the step, from 0.
        example: the problem.
        baseline: moving mean return of the problem, nan for a new one.
        generator: source of the random numbers.
        rollouts: rollouts of the step's first epoch; None in the first epoch, which draws them.

    Returns:
        The loss, a scalar; the rollouts, None in steps of imitation; and figures to log, by name.
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
