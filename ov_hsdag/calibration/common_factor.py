"""What measured placements of other models say about a model that was never measured: a prior of its correction.

One factor is learned from other models, that of several devices at work at once: how much slower than predicted
placements on several of these devices are, as the median over models of each model's median, taken towards 1 where
models are few. A prior of all factors (devices, kinds of operations, transfers, submodels) from a hierarchical model
predicted held-out models no better (docs/decisions.md).

Nothing is carried over to other devices. An experience counts where the devices' identities (full name, OpenVINO's
version, properties, cores that may be used), the profile behind the costs and the objective are the same; anywhere else
the prior is what it is without any experience.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ov_hsdag.calibration.correction import Corrector, Factors, Prior
from ov_hsdag.calibration.experience import Experience
from ov_hsdag.costs.stored import graph_hash

# So many models count as much as knowing nothing does.
_NOTHING = 2


def relevant(corrector: Corrector, keys: Sequence[str], experiences: Sequence[Experience]) -> list[Experience]:
    """Returns what says something about a model: experiences of other models on the same devices, in its order of them.

    Args:
        corrector: of the model.
        keys: of its devices, see `ov_hsdag.calibration.experience.device_keys`.
        experiences: of any models on any devices.
    """
    graph, objective = graph_hash(corrector.problem.graph), corrector.problem.objective
    others = [one.on(keys) for one in experiences if one.graph != graph and one.objective == objective]
    return [one for one in others if one is not None and len(one.ratios)]


def prior_of(factors: Factors, experiences: Sequence[Experience]) -> Prior | None:
    """Returns the prior of a model's factors that measurements of other models make; None where they say nothing.

    Args:
        factors: of the model.
        experiences: of `relevant`.
    """
    slower: dict[str, list[float]] = {}
    if factors.objective == "throughput":  # a latency's factors do not include this one
        for one in experiences:
            predicted = factors.log_us(factors.nothing, one.reference) - factors.log_us(factors.nothing, one.terms)
            off = (predicted - np.log(one.ratios))[one.terms.on_several]
            if len(off):
                slower.setdefault(one.graph, []).append(float(np.median(off)))
    if not slower:
        return None
    mean = factors.nothing
    models = [float(np.median(own)) for own in slower.values()]
    mean[-1] = np.median(models) * len(models) / (len(models) + _NOTHING)
    return replace(factors.vague, mean=mean)
