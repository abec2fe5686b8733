"""Places a problem by the first choice of the learned policy, without search or refinement.

The policy divides groups into clusters and gives each cluster a logit for each device. Its first choice is the device
with the largest logit. The simulator is asked only whether a placement exceeds memory limits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.policy.placer import ClusterLogits, HSDAGPlacer, lean
from ov_hsdag.problem.problem import OVER_MEMORY, PlacementProblem


def first_choice(placer: HSDAGPlacer, problem: PlacementProblem) -> NDArray[np.uint8]:
    """The policy's first choice, uint8 [groups]; other choices are considered only where it exceeds memory.

    Whether a cluster fits depends on the other clusters on its device, which its logits do not take into account. So
    clusters are moved away from devices that are too full, those with the smallest loss first. Where that does not
    suffice, choices that favour or avoid one device (`lean`) are tried in order; where none fits, the first is
    returned.
    """
    clusters = placer.cluster_logits(problem)
    first: NDArray[np.uint8] | None = None
    for leaning in lean(clusters.logits):
        choice = within_memory(problem, leaning, clusters)
        placement = clusters.expanded(problem, choice[None])[0]
        if not problem.evaluate(placement).infeasible[0] & OVER_MEMORY:
            return placement
        first = placement if first is None else first
    assert first is not None
    return first


def within_memory(problem: PlacementProblem, choice: NDArray[np.uint8], clusters: ClusterLogits) -> NDArray[np.uint8]:
    """Moves clusters from devices that exceed their memory to devices with free memory, as far as possible.

    Args:
        problem: the problem, with its memory limits.
        choice: device of each cluster, uint8 [clusters]; it is not changed.
        clusters: the policy's logits, and the cluster of each group.

    Returns:
        Device of each cluster, uint8 [clusters].
    """
    logits, cluster = clusters.logits, clusters.of_group
    limits = problem.memory_limits
    if np.isinf(limits).all():
        return choice
    sizes = np.stack([np.bincount(cluster, held, len(choice)) for held in problem.group_held.T], axis=1)
    size = sizes.max(axis=1)
    # A small constant for the tensors of clusters without weights, which would otherwise have no size.
    worth = size / max(size.sum(), 1.0) + 0.25 / len(choice)
    choice, moved = choice.copy(), np.zeros(len(choice), bool)
    while True:
        placement = clusters.expanded(problem, choice[None])[0]
        used = problem.evaluate(placement).memory_bytes[0]
        leaving = ~moved & (used > limits)[choice]
        fits = leaving[:, None] & (used + sizes <= limits)
        fits[np.arange(len(choice)), choice] = False
        if not fits.any():
            return choice
        loss = np.where(fits, (logits[np.arange(len(choice)), choice][:, None] - logits) / worth[:, None], np.inf)
        mover, target = np.unravel_index(int(loss.argmin()), loss.shape)
        choice[mover], moved[mover] = target, True
