"""Whether a model fits into the memory of devices, and with how many tokens of context, before it is loaded."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.costs.memory import check_kv_precision, kv_precisions, memory_needs
from ov_hsdag.costs.profile import Profile
from ov_hsdag.devices import discovery
from ov_hsdag.devices.device_set import DeviceSet, kind_of
from ov_hsdag.devices.memory import memory_limits
from ov_hsdag.devices.virtual import new_core
from ov_hsdag.model.complete import complete
from ov_hsdag.model.experts import experts
from ov_hsdag.model.graph import NodeKind
from ov_hsdag.model.inputs import with_earlier_shapes
from ov_hsdag.model.placement import Placement
from ov_hsdag.model.shapes import check_npu_sizes
from ov_hsdag.model.workload import Workload, decoder_shapes
from ov_hsdag.placers.filling import Filling
from ov_hsdag.placing.candidates import (
    NamedPlacement,
    best_by_prediction,
    describe_enough,
    enough_memory,
    find_within_memory,
    require_runnable,
    run,
    sizes_are_guessed,
)
from ov_hsdag.placing.options import PlaceOptions
from ov_hsdag.problem.experts_away import experts_away, fewest_away
from ov_hsdag.problem.pricing import ModelAnalysis, Session, WorkloadProblem, resolve_profile
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.utils.arguments import check_argument, check_in_memory
from ov_hsdag.utils.byte_sizes import exceeding, format_bytes
from ov_hsdag.utils.lazy import ov

DEFAULT_CONTEXT = 4096  # what `fit` assumes of decoders where no context is given, tokens

# More tokens than any model reads: where not even that exceeds memory, there is no limit.
_MOST_TOKENS = 1 << 24

# What OpenVINO keeps of a compiled model beside its weights, about; bytes, and bytes for each operation. Measured on
# the CPU plugin of 2026.4.
_OVERHEAD = 4 * 2**20
_OVERHEAD_OF_NODE = 9 * 2**10

# The CPU plugin keeps the scores of attention, f32, where tokens are read after others (docs/facts.md).
_ATTENTION, _SCORE = "ScaledDotProductAttention", 4


@dataclass(frozen=True)
class Need:
    """What a part of a model needs on one device, bytes."""

    weights: int  # constants, as the device keeps them
    states: int  # of the context
    activations: int  # the most that is alive at the same time
    overhead: int  # of OpenVINO's own, about, with what attention works in; no limit counts it
    room: int | None  # that the model may have; None where nothing limits it

    @property
    def total(self) -> int:
        """What counts against the limit."""
        return self.weights + self.states + self.activations

    @property
    def headroom(self) -> int | None:
        """What is left; negative where the part does not fit."""
        return None if self.room is None else self.room - self.total


@dataclass(frozen=True)
class HostMemory:
    """Memory of this machine, where several devices compute in it: its CPU, virtual ones, integrated GPUs and NPUs."""

    devices: tuple[str, ...]  # that share it
    room: int  # of it that a model may have, bytes

    @classmethod
    def of(
        cls,
        core: ov.Core,
        names: Sequence[str],
        given: Mapping[str, int],
        free: bool = False,
        profile: Profile | None = None,
    ) -> HostMemory | None:
        """What the devices share; None where fewer than two do, and where all that do have limits of the user's.

        given: limits of the user's. profile: the user's. A machine that is said to have more than this one has is
        another machine. free: whether a model may have most of what is free, and not all memory.
        """
        sharing = tuple(name for name in names if discovery.uses_host_memory(core, name))
        if len(sharing) < 2 or set(sharing) <= set(given):
            return None
        known = discovery.free_bytes(core, "CPU") if free else discovery.memory_bytes(core, "CPU")
        if known is None:
            return None
        room = int(discovery.USABLE * known) if free else known
        declared = () if profile is None else profile.memory_bytes(sharing).tolist()
        return cls(sharing, max(room, *declared, *(given.get(name, 0) for name in sharing)))

    def warn_beyond(self, needed: int) -> None:
        """Warns where the devices need more bytes together than they share, though each holds its part."""
        if needed > self.room:
            warnings.warn(
                f"{' and '.join(self.devices)} need {format_bytes(needed)} together, and share the"
                f" {format_bytes(self.room)} of this machine",
                stacklevel=3,
            )

    def needed(self, problem: PlacementProblem, counted: NDArray[np.int64]) -> int:
        """Bytes of it that a placement needs. counted: `Evaluation.memory_bytes` of it, [devices]."""
        stored = zip(problem.devices, problem.stored_bytes(counted), strict=True)
        return sum(bytes_ for name, bytes_ in stored if name in self.devices)

    def holds(self, problem: PlacementProblem, counted: NDArray[np.int64]) -> bool:
        """Whether it has room for that; counted: see `needed`."""
        return self.needed(problem, counted) <= self.room


@dataclass(frozen=True)
class ExpertsToMove:
    """Routed experts that have to leave the first device of the list for the last one, all else being on the first."""

    # these devices
    source: str
    target: str
    layers: int | None  # whose experts have to leave; None: it does not suffice that all do
    all: int  # layers with experts


@dataclass(frozen=True)
class Fit:
    """Whether a model fits."""

    devices: tuple[str, ...]  # names, in HETERO's order
    context: int | None  # tokens that states hold, None for a model without
    batch: int  # sequences at a time
    prompt: int | None  # tokens read at once, None for a model without states
    kv_precision: Mapping[str, str]  # in which each device keeps KV caches, by name
    singles: Mapping[str, Need]  # the whole model on each device, by name; devices that lack an operation are left out
    # the part on each device that has one, by name: as the model is placed, else of the best split that `place` finds
    split: Mapping[str, Need]
    split_fits: bool  # whether that placement fits
    placed: bool  # whether the model carries that placement
    other_fits: bool  # whether the model fits in another way than it is placed
    # where nothing fits and the model has no states: bytes with which something does, by the devices that lack memory
    enough: Mapping[str, int]
    sharing: tuple[str, ...]  # the devices that compute in the memory of this machine, where several do
    # what the split's parts on those need together, and the room that they share; None where none does
    shared: Need | None
    # the most tokens of context that fit, on each single device by its name, and on the split ("split"); None where
    # nothing limits them; 0 where not even one fits. Empty for a model without states
    largest: Mapping[str, int | None]
    experts: ExpertsToMove | None = None  # how many layers' experts have to leave the first device; None without any
    tensors_counted: bool = True  # False: sizes of inputs are guesses with which nothing fits

    @property
    def single(self) -> str | None:
        """The first device that holds the whole model."""
        return next((name for name, need in self.singles.items() if (need.headroom or 0) >= 0), None)

    @property
    def fits(self) -> bool:
        """Whether the model fits on a device, or split; one that carries a placement, as it is placed."""
        return self.split_fits or (self.single is not None and not self.placed)

    def __repr__(self) -> str:
        """The first line of what the command prints."""
        return verdict(self, "the model")


def verdict(found: Fit, model: str) -> str:
    """The first line: whether it fits, where, and with how much context."""
    what = f"{model} with a context of {found.context:,} tokens" if found.context else model
    if found.placed:
        what = f"{what}, as it is placed on {', '.join(found.split)}"
        if found.fits:
            return f"fits: {what}{_at_most(found, 'split')}"
        needs = found.split.values()
        over = exceeding(found.split, [one.total for one in needs], [one.room for one in needs])
        other = "; another placement fits" if found.other_fits else _more(found)
        return f"does not fit: {what}{_shared(found)}{over and f'; it needs {over}'}{other}"
    if found.single is not None:
        return f"fits: {what} on {found.single} alone{_at_most(found, found.single)}"
    if found.split_fits:
        return f"fits: {what} split over {', '.join(found.split)}{_at_most(found, 'split')}, on no device alone"
    why = "" if found.context else f" needs more memory than {', '.join(found.devices)} have"
    return f"does not fit: {what}{why}{_shared(found)}{_more(found)}"


def _more(found: Fit) -> str:
    """What would fit: less context, or more memory."""
    if not found.context:
        return describe_enough(found.enough, found.devices)
    most = max((tokens or 0 for tokens in found.largest.values()), default=0)
    return f"; the largest context that fits is {most:,} tokens" if most else "; no context is short enough"


def _shared(found: Fit) -> str:
    """That the devices share a memory, where the split exceeds it."""
    need = found.shared
    if need is None or need.room is None or need.total <= need.room:
        return ""
    return f", where {' and '.join(found.sharing)} share {format_bytes(need.room)} of this machine's memory"


def _at_most(found: Fit, name: str) -> str:
    most = found.largest.get(name)
    return f" (up to {most:,} tokens)" if most else ""


def fit(
    model: ov.Model,
    device: str | Sequence[str],
    *,
    context: int | None = None,
    batch: int = 1,
    shapes: Mapping[str, Sequence[int]] | None = None,
    memory: Mapping[str, int | str] | None = None,
    kv_precision: str | None = None,
    profile: Profile | None = None,
    core: ov.Core | None = None,
) -> Fit:
    """Whether `model` fits into the devices' memory, alone on each of them and split over all.

    Of a model that carries a placement, this is the split that counts. Else it is the best that the search of
    `ov_hsdag.place` finds, without a learned policy: repairing what that proposes for a language model takes minutes.

    Args:
        model: any model; not changed.
        device: the devices, in order of preference.
        context: tokens that the states of a decoder hold; by default those that the model was placed for, or else
            `DEFAULT_CONTEXT`.
        batch: sequences at a time, beams included.
        shapes: example shapes of dynamic inputs, of a decoder's beside its tokens; by default those that it was placed
            with.
        memory: as in `ov_hsdag.place`; by default most of what is free.
        kv_precision: of KV caches, on all devices; by default what model and devices choose.
        profile: of the devices; built-in ones by default.
        core: has the devices; a new one by default.

    Raises:
        UserError: bad input; a context for a model that has no states; a model that HETERO does not run.
    """
    check_in_memory("fit", model)
    PlaceOptions.of(None, {"memory": memory, "shapes": shapes, "context": context, "profile": profile})
    check_argument("batch", batch, int, least=1)
    check_kv_precision(kv_precision)
    names = DeviceSet.parse(device).names
    model = model.clone()  # shares the weights
    limits = memory_limits(memory or {}, names)
    core = core or new_core()
    known = resolve_profile(profile, names, core)
    # No more than its profile says.
    declared = zip(names, known.memory_bytes(names).tolist(), strict=True)
    room = {name: discovery.usable_bytes(core, name, most) for name, most in declared} | limits
    usable = {name: bytes_ for name, bytes_ in room.items() if bytes_ is not None}
    session = Session.of(names, core, known, memory=usable, kv_precision=kv_precision)
    host = HostMemory.of(core, names, limits, free=True)
    placed = Placement.of(model)
    if placed is not None:
        made_with = placed.settings or {}
        asked = Workload.asked(made_with.get("workload"), made_with.get("context"))
        if context is None and asked is not None:
            context = asked.tokens
        shapes = with_earlier_shapes(model, shapes or {}, made_with.get("shapes", {})) or None
    check_npu_sizes(model, names if placed is None else placed.map_to(names).used(), shapes)
    decodes = bool(model.get_sinks()) or context is not None
    workload = Workload.of_context(context or DEFAULT_CONTEXT, batch) if decodes else None
    if workload:
        shapes = {**decoder_shapes(model, batch, 1, workload.tokens), **(shapes or {})}
    analysis = session.analyse(model, shapes)
    contexts = ContextProblems.of(session, analysis, workload) if workload else None
    priced = contexts.problem if contexts else session.price(analysis, "latency").problem
    problem, candidates = find_within_memory(priced, (), guessed=sizes_are_guessed(analysis))
    require_runnable(problem, candidates)
    if placed is None:
        split = _best_split(problem, candidates, host)
    else:
        split = problem.placement_of(complete(model, placed.map_to(names).affinity, names, problem.graph))
    fits = bool(_feasible(problem, [split], host)[0])
    other_fits = bool(_feasible(problem, [one.placement for one in candidates], host).any())
    parts = _needs(problem, split, workload)
    singles = {
        name: _needs(problem, problem.single(number), workload)[name]
        for number, name in enumerate(names)
        if problem.group_supported[:, number].all()
    }
    largest: dict[str, int | None] = {}
    precisions: dict[str, str] = {}
    if contexts:
        precisions = dict(zip(names, kv_precisions(model, core, session.profile, names), strict=True))
        largest |= {name: contexts.largest([problem.single(names.index(name))]) for name in singles}
        largest["split"] = contexts.largest([split], refill=placed is None, host=host)
    return Fit(
        devices=names,
        context=workload.tokens if workload else None,
        batch=batch,
        prompt=workload.prompt if workload else None,
        kv_precision=precisions,
        singles=singles,
        split=parts,
        split_fits=fits,
        placed=placed is not None,
        other_fits=other_fits,
        enough={} if fits or other_fits or contexts else enough_memory(problem, candidates),
        sharing=host.devices if host else (),
        shared=_together([need for name, need in parts.items() if name in host.devices], host.room) if host else None,
        largest=largest,
        experts=_experts_to_move(problem, host),
        tensors_counted=problem is priced,
    )


def _experts_to_move(problem: PlacementProblem, host: HostMemory | None) -> ExpertsToMove | None:
    blocks = len(experts(problem.graph))
    if not blocks or len(problem.devices) < 2:
        return None
    layers = fewest_away(problem, experts_away(problem), lambda held: host is None or host.holds(problem, held))
    return ExpertsToMove(problem.devices[0], problem.devices[-1], layers, blocks)


def _best_split(
    problem: PlacementProblem, candidates: Sequence[NamedPlacement], host: HostMemory | None
) -> NDArray[np.uint8]:
    """The best placement on several devices by the cost model, or the one that exceeds the limits least."""
    several = [one for one in (*candidates, run(Filling(), problem)) if len(np.unique(one.placement)) > 1]
    if not several:
        return candidates[0].placement
    placements = np.stack([one.placement for one in several])
    feasible = _feasible(problem, placements, host)
    if feasible.any():
        return best_by_prediction(problem, [several[number] for number in np.flatnonzero(feasible)]).placement
    found = problem.evaluate(placements)
    excess = problem.memory_excess(found).sum(axis=1)
    if host is not None:
        excess += [max(host.needed(problem, counted) - host.room, 0) for counted in found.memory_bytes]
    best: NDArray[np.uint8] = placements[np.lexsort((excess, found.broken))[0]]
    return best


def _feasible(
    problem: PlacementProblem, placements: Sequence[NDArray[np.uint8]] | NDArray[np.uint8], host: HostMemory | None
) -> NDArray[np.bool_]:
    """Which placements HETERO runs within the devices' memory, and within that of the machine, bool [placements]."""
    found = problem.evaluate(np.stack(list(placements)))
    feasible: NDArray[np.bool_] = found.infeasible == 0
    if host is not None:
        feasible &= np.array([host.holds(problem, counted) for counted in found.memory_bytes])
    return feasible


def _together(needs: Sequence[Need], room: int) -> Need:
    """What several parts need in one memory."""
    keys = ("weights", "states", "activations", "overhead")
    return Need(**{key: sum(getattr(need, key) for need in needs) for key in keys}, room=room)


def _needs(problem: PlacementProblem, placement: NDArray[np.uint8], workload: Workload | None) -> dict[str, Need]:
    """What the parts of a placement need, by device; devices without a part are left out."""
    graph, names = problem.graph, problem.devices
    total = problem.evaluate(placement).memory_bytes[0]
    device = placement[problem.groups]
    held = problem.node_held[np.arange(graph.nodes), device]
    constant = graph.kinds == NodeKind.CONSTANT
    weight = graph.weight_bytes > 0
    weights, states = (np.bincount(device, held * which, len(names)) for which in (weight, ~weight))
    parts = [problem.stored_bytes(counted) for counted in (weights, states, total - weights - states)]
    nodes = np.bincount(device[~constant], minlength=len(names))
    heads = np.zeros(len(names), np.int64)  # of attention on each CPU device
    for node in np.flatnonzero(np.isin(graph.types, _ATTENTION)):
        shape = graph.output_shapes[graph.output_ptr[node]]
        if kind_of(names[device[node]]) == "CPU" and len(shape) == 4:
            heads[device[node]] = max(heads[device[node]], shape[1])
    scores = heads * (_SCORE * workload.batch * workload.prompt * workload.tokens if workload else 0)
    return {
        name: Need(
            weights=parts[0][number],
            states=parts[1][number],
            activations=parts[2][number],
            overhead=int(_OVERHEAD + _OVERHEAD_OF_NODE * nodes[number] + scores[number]),
            room=problem.stored_limits[number],
        )
        for number, name in enumerate(names)
        if nodes[number]
    }


@dataclass(frozen=True, eq=False)
class ContextProblems:
    """The problem of a decoder at any context, linear in its sizes at two; what is read at once stays the same."""

    problem: PlacementProblem  # at the context of the workload
    _session: Session
    _analysis: ModelAnalysis
    _tokens: int
    _fixed: NDArray[np.int64]  # bytes of outputs in the phases whose sizes do not depend on the context
    _last: NDArray[np.int64]  # of a token with all of the context before it
    _further: NDArray[np.int64]  # of one with twice the context

    @classmethod
    def of(
        cls, session: Session, analysis: ModelAnalysis, workload: Workload, priced: WorkloadProblem | None = None
    ) -> ContextProblems:
        """The problems of a model with the context of a workload. priced: of its phases, where that is known."""
        model, shapes = analysis.model, decoder_shapes(analysis.model, workload.batch, 1, 2 * workload.tokens)
        others = {name: shape for name, shape in (analysis.shapes or {}).items() if name not in shapes}
        if priced is None:
            priced = session.price(analysis, "latency", phases=workload.phases_with(model, others))
        further = analysis.graph.resized(model, {**shapes, **others})
        sizes = priced.output_bytes["prompt"], priced.output_bytes["last token"], further.output_bytes
        return cls(priced.problem, session, analysis, workload.tokens, *sizes)

    def at(self, tokens: int) -> PlacementProblem:
        """The problem at a context, by its memory; times are those of the workload's."""
        growth = (self._further - self._last).astype(np.float64) / self._tokens
        last = np.rint(self._last + growth * (tokens - self._tokens)).astype(np.int64)
        graph = replace(self.problem.graph, output_bytes=np.maximum(self._fixed, last))
        names, session = self.problem.devices, self._session
        stored = np.ones(len(names)) if self.problem.storage_ratio is None else self.problem.storage_ratio
        held, live = memory_needs(self._analysis.model, graph, session.core, session.profile, names, stored)
        return replace(self.problem, held_bytes=held, live_bytes=live)

    def describe(self, candidates: Sequence[NamedPlacement]) -> str:
        """What to say where the context is too long: the largest that fits."""
        most = self.largest([one.placement for one in candidates], refill=True)
        return f"the largest context that fits is {most} tokens" if most else "no context is short enough"

    def largest(
        self, placements: Sequence[NDArray[np.uint8]], *, refill: bool = False, host: HostMemory | None = None
    ) -> int | None:
        """The most tokens with which one of the placements fits; None where nothing limits them, 0 where none do.

        refill: contiguous parts that fill the devices alike count as well. host: memory that some of the devices share.
        """

        def fits(tokens: int) -> bool:
            problem = self.at(tokens)
            if _feasible(problem, placements, host).any():
                return True
            return refill and bool(_feasible(problem, [run(Filling(), problem).placement], host)[0])

        most = max(_MOST_TOKENS, self._tokens)
        if fits(most):
            return None
        low, high = 0, most  # fits, does not fit
        while high - low > max(1, low // 1000):
            middle = (low + high) // 2 if low else max(high // 16, 1)
            if fits(middle):
                low = middle
            else:
                high = middle
            if not low and high == 1:
                return 0
        return low
