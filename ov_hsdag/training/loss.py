"""The loss of a training problem, and the gradient of a step, wherever its parts are computed.

The loss of a step is the mean of its problems' losses. With `Settings.parts`, the problems of a step are dealt into
parts, and the gradient of the step is the sum of theirs, in their order: synchronous data parallelism (Chen et al.
2016, arXiv:1604.00981, "Revisiting Distributed Synchronous SGD"), without its backup workers, which drop what comes
last. What is drawn for a problem follows from the seed, the step and the problem. So a run is a function of its
settings, whoever computes the parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from ov_hsdag.policy.config import HSDAGConfig
from ov_hsdag.training.network import HSDAGNetwork
from ov_hsdag.training.problems import Pool, levels_at
from ov_hsdag.training.rollout import Example, Policy, Rollouts, joint_log_probability, run_policy, sample
from ov_hsdag.training.settings import Settings
from ov_hsdag.utils.errors import UserError


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
    network: HSDAGNetwork,
    settings: Settings,
    step: int,
    example: Example,
    baseline: float,
    generator: torch.Generator,
    rollouts: Rollouts | None = None,
) -> tuple[Tensor, Rollouts | None, dict[str, float]]:
    """The loss of a problem: behaviour cloning at first, then policy gradients with behaviour cloning besides.

    step: from 0. baseline: the problem's moving mean return, nan for a new one. rollouts: of the first epoch of the
    step; None: this is the first. Returns the loss, the rollouts (None in steps of imitation) and what is logged.
    """
    policy = run_policy(network, example, None if rollouts is None else rollouts.cluster, levels_at(settings, step))
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


@dataclass(frozen=True, eq=False)
class Update:
    """What all parts of an update share."""

    step: int  # from 0
    epoch: int  # number of the update in the step, from 0
    problems: int  # of all parts
    weights: NDArray[np.float32]  # of the network, one parameter after the other, float32 [parameters]


@dataclass(frozen=True, eq=False)
class Part:
    """Some problems of a step."""

    indices: NDArray[np.int64]  # of its problems in the pool, int64 [problems]
    baselines: NDArray[np.float64]  # their moving mean returns, nan for new ones, float64 [problems]
    rollouts: tuple[Rollouts, ...] = ()  # of the first epoch of the step; none: this is the first


@dataclass(frozen=True, eq=False)
class PartGradient:
    """What a part adds to an update."""

    gradient: NDArray[np.float32]  # of its share of the loss, by the weights, float32 [parameters]
    rollouts: tuple[Rollouts, ...]  # of its problems; none in steps of imitation
    logged: dict[str, float]  # its share of the means over the step's problems


Compute = Callable[[Update, Sequence[Part]], Sequence[PartGradient]]
"""Computes all parts of an update; results in the order of the parts."""

Spread = Callable[[Callable[[Update, Part], PartGradient]], Compute]
"""Says who computes parts, given how (`ov_hsdag.fleet.cluster.Cluster.rounds`)."""


def here(function: Callable[[Update, Part], PartGradient]) -> Compute:
    """Computes parts in this process, one after the other."""
    return lambda update, parts: [function(update, part) for part in parts]


def deal(settings: Settings, pool: Pool, indices: NDArray[np.int64], baselines: NDArray[np.float64]) -> list[Part]:
    """Deals the problems of a step into parts that take about as long: the largest first, to the part with least.

    indices: of the step's problems, int64 [problems]; baselines: of all problems of the pool, float64.
    """
    dealt: list[list[int]] = [[] for _ in range(min(settings.parts, len(indices)))]
    load = [0] * len(dealt)
    for index in sorted(indices.tolist(), key=pool.groups, reverse=True):
        least = load.index(min(load))
        dealt[least].append(index)
        load[least] += pool.groups(index)
    return [Part(np.array(sorted(part)), baselines[sorted(part)]) for part in dealt]


class Gradients:
    """Computes gradients of parts. Each process that does so has one, and in it the examples that it has made."""

    def __init__(self, pool: Pool, settings: Settings, config: HSDAGConfig) -> None:
        """Takes what it needs in other processes, such as the pool of all problems of the run."""
        self._pool, self._settings, self._config = pool, settings, config
        self._torch, self._threads = str(torch.__version__), torch.get_num_threads()
        self._network: HSDAGNetwork | None = None

    def __call__(self, update: Update, part: Part) -> PartGradient:
        """The gradient of a part. Raises UserError where this process has another torch than the one that asks."""
        network = self._prepared()
        # A copy: what comes from other processes cannot be written to.
        vector_to_parameters(torch.from_numpy(update.weights.copy()), network.parameters())
        network.zero_grad(set_to_none=True)
        found: list[Rollouts] = []
        logged: Counter[str] = Counter()
        for place, (index, baseline) in enumerate(zip(part.indices.tolist(), part.baselines, strict=True)):
            origin = [self._settings.seed, 3, update.step, update.epoch, index]
            drawn = part.rollouts[place] if part.rollouts else None
            with torch.random.fork_rng(devices=[]):
                # Of all draws, those of dropout among them, which has no generator of its own.
                generator = torch.manual_seed(int(np.random.default_rng(origin).integers(2**62)))
                loss, rollouts, one = problem_loss(
                    network, self._settings, update.step, self._pool[index], baseline, generator, drawn
                )
                (loss / update.problems).backward()  # type: ignore[no-untyped-call]
            found += [rollouts] if rollouts else []
            logged.update({name: value / update.problems for name, value in one.items()})
        return PartGradient(gradient(network), tuple(found), dict(logged))

    def _prepared(self) -> HSDAGNetwork:
        if self._network is None:
            if str(torch.__version__) != self._torch:
                raise UserError(
                    f"a node of the cluster has torch {torch.__version__}, this run torch {self._torch}:"
                    " what it learns would depend on who computes"
                )
            torch.set_flush_denormal(True)
            torch.set_num_threads(self._threads)
            with torch.random.fork_rng(devices=[]):
                self._network = HSDAGNetwork(self._config)
        return self._network


def weights(network: nn.Module) -> NDArray[np.float32]:
    """The parameters one after the other, float32 [parameters]. Networks here have no other state."""
    return parameters_to_vector(network.parameters()).detach().numpy()


def gradient(network: nn.Module) -> NDArray[np.float32]:
    """The gradients of the parameters one after the other, 0 where there is none, float32 [parameters]."""
    return parameters_to_vector(torch.zeros_like(p) if p.grad is None else p.grad for p in network.parameters()).numpy()


def set_gradient(network: nn.Module, values: NDArray[np.float32]) -> None:
    """Sets the gradients of the parameters to what `gradient` has returned."""
    parameters = list(network.parameters())
    parts = np.split(values.copy(), np.cumsum([parameter.numel() for parameter in parameters])[:-1])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = torch.from_numpy(part).view_as(parameter)
