"""Measures kept placements again, and replaces them where another placement is proven better.

`improve_entry` does four steps for one entry of the placement cache. It reads the model from its file, finds candidates
(by measuring, and from the caller), compares the best with the kept placement in trials that were not used for
choosing, and writes the winner. The kept placement is the one in the entry. A placement is proven better if the lower
end of the 95% interval of its gain reaches `PROVEN`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring.choice import Ratio
from ov_hsdag.measuring.comparison import Comparison, measurements
from ov_hsdag.measuring.process import Candidate
from ov_hsdag.model import complete
from ov_hsdag.model.placement import Placement
from ov_hsdag.placing.first_load import LoadRequest, key_of, place_entry, with_fused_nodes
from ov_hsdag.placing.placement_cache import CacheEntry, PlacementCache
from ov_hsdag.problem.pricing import Session
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.utils.errors import RunError, UserError, one_line
from ov_hsdag.utils.lazy import ov

PROVEN = 1.01
"""Factor over the kept rate that the lower end of the 95% interval of a new placement's rate has to reach.

Two compilations of one placement differ by up to 2%, and a gain below 1% is not worth compiling the model anew in every
program that uses it."""

PROOF_SHARE = 0.25
"""Share of the time for an entry that is left for the deciding trials; the rest finds candidates."""

PROOF_ROUNDS = 30
"""Largest number of rounds in the deciding trials; each has a trial of every candidate."""

KEPT = "kept"
"""Name of the kept placement among the candidates."""

Report = Callable[[str], None]
"""Is called with a few words whenever another step begins."""

Proposer = Callable[["ov.Model", CacheEntry, float, Report | None], Mapping[str, Placement]]
"""Finds further placements of a model. Its arguments are a copy of the model, which it may transform, the entry, the
time in seconds and what to report to; it returns placements of what it made of the copy, by name."""


@dataclass(frozen=True)
class Improvement:
    """The result of `improve_entry`.

    Attributes:
        entry: the entry after the improvement.
        predicted: predicted gain of the kept placement over the best single device; None where it is not known.
        measured: measured gain of the placement that is kept now over the best single device; None where it is not
            known.
        gained: rate of the new placement over the kept one, from trials that were not used to choose the new one. None
            where nothing was compared.
        replaced: whether the entry has another placement now.
        why: the reason why nothing was measured or replaced; "" where the placement was replaced.
    """

    entry: CacheEntry
    predicted: float | None = None
    measured: float | None = None
    gained: Ratio | None = None
    replaced: bool = False
    why: str = ""


def improve_entry(
    core: ov.Core,
    cache: PlacementCache,
    entry: CacheEntry,
    *,
    seconds: float,
    propose: Proposer | None = None,
    report: Report | None = None,
) -> Improvement:
    """Measures the model of a kept placement again, and replaces the placement where another one is proven better.

    Args:
        core: Core of the devices.
        cache: the cache that the new entry is written to, under the same key.
        entry: the kept placement.
        seconds: about the time for everything.
        propose: proposes further candidates, such as those of a policy that was fine-tuned on the model.
        report: called with a few words whenever another step of measuring begins.

    Returns:
        What was measured, and the entry that is kept now.

    Raises:
        RunError: measuring is not possible on this machine.
        UserError: measuring is not possible on this machine.
    """
    predicted = entry.placement.predicted_gain(entry.placement.chosen)
    try:
        model = _read_model(core, entry)
    except UserError as error:
        return Improvement(entry, predicted, why=str(error))
    exploring = (1 - PROOF_SHARE) * seconds
    best = place_entry(
        core, model, entry, measure=True, measure_seconds=exploring / (2 if propose else 1), report=report
    )
    proposals = {"measured": best}
    if propose is not None:
        transformed = model.clone()
        proposed = propose(transformed, entry, exploring / 2, report)
        proposals |= {name: with_fused_nodes(placement, transformed, model) for name, placement in proposed.items()}
    name, gained = _compare_with_kept(core, model, entry, proposals, PROOF_SHARE * seconds, report)
    measured = best.measured_gain(best.chosen) if best.measured else None
    if name == KEPT or gained is None:
        return Improvement(entry, predicted, measured, gained, why="nothing was proven better")
    if gained.low < PROVEN:
        return Improvement(entry, predicted, measured, gained, why=f"{name} was not proven better")
    new = proposals[name]
    placement = replace(new, measured=new.measured or best.measured)
    improved = replace(entry, placement=placement)
    cache.save(improved)
    return Improvement(improved, predicted, placement.measured_gain(placement.chosen), gained, replaced=True)


def _read_model(core: ov.Core, entry: CacheEntry) -> ov.Model:
    """Reads the model of an entry from its file, and gives its inputs the shapes that the entry records.

    Raises:
        UserError: there is no such file or it cannot be read, or the model, the devices or the releases have changed.
    """
    source = entry.model.source
    if source is None:
        raise UserError("its program made it in memory: there is no file to read it from")
    if not Path(source).exists():
        raise UserError(f"{source} is not there any more")
    try:
        model = core.read_model(source)
        recorded = {name: ov.PartialShape(shape) for name, shape in entry.model.shapes.items()}
        inputs = {name: port for port in model.inputs for name in port.get_names()}
        if any(inputs[name].get_partial_shape() != shape for name, shape in recorded.items() if name in inputs):
            model.reshape({inputs[name]: shape for name, shape in recorded.items() if name in inputs})
    except RuntimeError as error:
        raise UserError(f"{source} cannot be read: {one_line(error)}") from error
    request = LoadRequest.of_entry(entry)
    if key_of(core, model, request) != entry.key:
        raise UserError(
            "the model in the file, a device or a release is another one now: it is placed at the next load"
        )
    return model


def _compare_with_kept(
    core: ov.Core,
    model: ov.Model,
    entry: CacheEntry,
    proposals: Mapping[str, Placement],
    seconds: float,
    report: Report | None,
) -> tuple[str, Ratio | None]:
    """Compares proposals with the kept placement in new trials.

    Args:
        core: Core of the devices.
        model: the model.
        entry: the kept placement.
        proposals: other placements by name.
        seconds: time for compiling and the trials.
        report: called with a few words at each step.

    Returns:
        Name of the best proposal that ran, and its rate over that of the kept placement. `KEPT` and None where all
        proposals equal the kept placement, or none ran.
    """
    devices = DeviceSet(entry.placement.devices)
    session = Session.of(devices, core, entry.options.get("profile"), memory=entry.limits)
    problem = session.price(session.analyse(model), entry.placement.objective).problem
    candidates: dict[str, Candidate] = {}
    needs: dict[str, Mapping[str, int]] = {}
    seen: set[tuple[str, ...]] = set()
    for name, placement in {KEPT: entry.placement, **proposals}.items():
        affinity = completed_affinity(problem, model, placement)
        if (signature := tuple(affinity.values())) in seen:
            continue
        seen.add(signature)
        candidates[name] = Candidate.placed(devices, affinity)
        needs[name] = (placement.predicted or {}).get("memory_bytes") or {}
    if len(candidates) < 2:
        return KEPT, None
    with Comparison(
        model, devices, candidates, entry.placement.objective, core, needs=needs, limit=seconds, report=report
    ) as comparison:
        if KEPT not in comparison.ready:
            raise RunError(f"the kept placement does not run: {comparison.failed.get(KEPT, 'it was not compiled')}")
        trials = comparison.trials(rounds=PROOF_ROUNDS)
        figures = measurements(candidates, comparison, trials, entry.placement.objective, KEPT)
    rates = {name: one.ratio for name, one in figures.items() if not one.failed and name != KEPT}
    if not rates:
        return KEPT, None
    best = max(rates, key=lambda name: rates[name])
    low, high = figures[best].interval
    return best, Ratio(figures[best].ratio, low, high)


def completed_affinity(problem: PlacementProblem, model: ov.Model, placement: Placement) -> dict[str, str]:
    """Completes a placement: a device for every node of the analysed model.

    Args:
        problem: the problem of the model.
        model: the model.
        placement: a placement, which may lack nodes.

    Returns:
        Device names by friendly name of the node.
    """
    affinity = complete.complete(model, placement.affinity, problem.devices, problem.graph)
    return problem.affinity(problem.placement_of(affinity))


def unmeasured_first(entries: Sequence[CacheEntry]) -> list[CacheEntry]:
    """Sorts entries into the order in which to improve them: those that were never measured come first.

    The order is otherwise kept: that of `PlacementCache.entries` has the most recently used entries first.
    """
    return sorted(entries, key=lambda entry: entry.placement.measured is not None)
