"""Whether a model fits into the memory of devices, and with how many tokens of context, before it is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.costs.memory import (
    States,
    attention_scores,
    check_kv_precision,
    kv_precisions,
    returned_outputs,
    scores_are_tensors,
)
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
from ov_hsdag.model.shapes import assumed_sizes, fix_input_shapes, fix_npu_sizes
from ov_hsdag.model.workload import Workload, decoder_shapes
from ov_hsdag.placers.filling import Filling
from ov_hsdag.placers.single import HeteroDefault
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
from ov_hsdag.placing.contexts import ContextProblems
from ov_hsdag.placing.host_memory import HostMemory, feasible
from ov_hsdag.placing.options import PlaceOptions
from ov_hsdag.problem.experts_away import experts_away, fewest_away
from ov_hsdag.problem.pricing import ModelAnalysis, Session, resolve_profile
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.utils.arguments import check_argument, check_in_memory
from ov_hsdag.utils.byte_sizes import exceeding, format_bytes
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import ov

DEFAULT_CONTEXT = 4096
"""Tokens of context that `fit` assumes of decoders where none is given."""

SPLIT = "split"
"""Name of the split in `Fit.largest`, beside names of devices."""

_OVERHEAD = 4 * 2**20
"""What OpenVINO keeps of a compiled model beside its weights, about, bytes (CPU plugin of 2026.4)."""

_OVERHEAD_OF_NODE = 9 * 2**10
"""The same for each operation, bytes."""

_ATTENTION = "ScaledDotProductAttention"

_SCORE = 4
"""Bytes of a score that the CPU plugin's attention keeps where tokens are read after others (docs/facts.md)."""

_FILLED = (0.95, 0.8, 0.6, 0.4)
"""Shares to which splits fill a device that holds a part of the model, beside one that holds all of it."""


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
    # the part on each device that has one, by name: as the model is placed, else of the best split that `place` finds,
    # on two devices at least and within all limits; empty where there is none
    split: Mapping[str, Need]
    split_fits: bool  # whether that placement fits
    placed: bool  # whether the model carries that placement, or HETERO makes it of a model without one
    other_fits: bool  # whether the model fits in another way than it is placed
    # where nothing fits and the model has no states: bytes with which something does, by the devices that lack memory
    enough: Mapping[str, int]
    sharing: tuple[str, ...]  # the devices that compute in the memory of this machine, where several do
    # what the parts on those need together, and the room that they share; None where none does. Without a split that
    # fits they are those of the split that comes closest
    shared: Need | None
    # the most tokens of context that fit, on each single device by its name, and on the split ("split"); None where
    # nothing limits them; 0 where not even one fits. Empty for a model without states
    largest: Mapping[str, int | None]
    # the same of any split: with another context, another one may be the best
    largest_of_splits: int | None = None
    experts: ExpertsToMove | None = None  # how many layers' experts have to leave the first device; None without any
    tensors_counted: bool = True  # False: sizes of inputs are guesses with which nothing fits
    # bytes of the model's outputs in the longest prompt, which are logits of all its tokens; 0 without states
    output_bytes: int = 0
    by_context: bool = False  # whether a context alone was asked for, whose prompt is read at once
    # shapes that are counted with, by name, of inputs with open sizes that nothing tells; empty with a workload
    assumed: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @property
    def single(self) -> str | None:
        """The first device that holds the whole model."""
        return next((name for name, need in self.singles.items() if (need.headroom or 0) >= 0), None)

    @property
    def fits(self) -> bool:
        """Whether the model fits on a device, or split; one that carries a placement, as it is placed."""
        return self.split_fits or (self.single is not None and not self.placed)

    @property
    def needs(self) -> Mapping[str, Need]:
        """What devices need as the model would run: as it is placed, else on one device, else split; {}: nowhere."""
        if self.placed or self.single is None:
            return self.split
        return {self.single: self.singles[self.single]}

    def __repr__(self) -> str:
        """The first line of what the command prints."""
        return verdict(self, "the model")


def verdict(result: Fit, model: str) -> str:
    """The first line: whether it fits, where, and with how much context."""
    what = f"{model} with a context of {result.context:,} tokens" if result.context else model
    if result.placed:
        what = f"{what}, as it is placed on {', '.join(result.split)}"
        if result.fits:
            return f"fits: {what}{_at_most(result, SPLIT)}"
        over = describe_excess(result.split)
        other = "; another placement fits" if result.other_fits else _more(result)
        return f"does not fit: {what}{_shared(result)}{over and f'; it needs {over}'}{other}"
    if result.single is not None:
        return f"fits: {what} on {result.single} alone{_at_most(result, result.single)}"
    if result.split_fits:
        return f"fits: {what} split over {', '.join(result.split)}{_at_most(result, SPLIT)}, on no device alone"
    why = "" if result.context else f" needs more memory than {', '.join(result.devices)} have"
    return f"does not fit: {what}{why}{_shared(result)}{_more(result)}"


def describe_excess(needs: Mapping[str, Need]) -> str:
    """What devices lack, in words; "" for nothing."""
    return exceeding(needs, [need.total for need in needs.values()], [need.room for need in needs.values()])


def _more(result: Fit) -> str:
    """What would fit: less context, or more memory."""
    if not result.context:
        return describe_enough(result.enough, result.devices)
    most = max((tokens or 0 for tokens in (*result.largest.values(), result.largest_of_splits)), default=0)
    return f"; the largest context that fits is {most:,} tokens" if most else "; no context is short enough"


def _shared(result: Fit) -> str:
    """That the devices share a memory, where the split exceeds it."""
    need = result.shared
    if need is None or need.room is None or need.total <= need.room:
        return ""
    return f", where {' and '.join(result.sharing)} share {format_bytes(need.room)} of this machine's memory"


def on_at_most(result: Fit) -> str:
    """The longest context of the placement that a fitting model would have, in brackets; "" without states."""
    return _at_most(result, SPLIT if result.placed or result.single is None else result.single)


def _at_most(result: Fit, name: str) -> str:
    """The longest context of a placement, and of a split the longest of any split where that is longer."""
    most, other = result.largest.get(name), result.largest_of_splits
    if not most:
        return ""
    more = f"; another split up to {other:,}" if name == SPLIT and not result.placed and (other or 0) > most else ""
    return f" (up to {most:,} tokens{more})"


def fit(
    model: ov.Model,
    device: str | Sequence[str],
    *,
    context: int | None = None,
    workload: Workload | str | None = None,
    batch: int = 1,
    shapes: Mapping[str, Sequence[int]] | None = None,
    static: bool = False,
    memory: Mapping[str, int | str] | None = None,
    kv_precision: str | None = None,
    profile: Profile | None = None,
    core: ov.Core | None = None,
    occupied: Mapping[str, int] | None = None,
    as_loaded: bool = False,
) -> Fit:
    """Whether `model` fits into the devices' memory, alone on each of them and split over all.

    Of a model that carries a placement, this is the split that counts. Else it is the best that the search of
    `ov_hsdag.place` finds, without a learned policy: repairing what that proposes for a language model takes minutes.

    Args:
        model: any model; not changed.
        device: the devices, in order of preference.
        context: tokens that the states of a decoder hold; by default those that the model was placed for, or else
            `DEFAULT_CONTEXT`. Without a workload a prompt of all of them is read at once, as openvino.genai and
            optimum-intel do where several devices share a model.
        workload: what a decoder is asked for, such as "prompt=1024,generate=256"; its prompt is read at once.
        batch: sequences at a time, beams included; a workload has its own.
        shapes: example shapes of dynamic inputs, of a decoder's beside its tokens; by default those that it was placed
            with.
        static: count with the model's inputs at these sizes for good, as NPUs want them.
        memory: as in `ov_hsdag.place`; by default most of what is free.
        kv_precision: of KV caches, on all devices; by default what model and devices choose.
        profile: of the devices; built-in ones by default.
        core: has the devices; a new one by default.
        occupied: bytes of the memory that other models have, by device.
        as_loaded: count a model without a placement as HETERO places it by itself, and search nothing.

    Raises:
        UserError: bad input; a context for a model that has no states; a model that HETERO does not run.
    """
    check_in_memory("fit", model)
    options = {"memory": memory, "shapes": shapes, "context": context, "workload": workload, "profile": profile}
    PlaceOptions.of(None, options)
    check_argument("batch", batch, int, least=1)
    check_kv_precision(kv_precision)
    session, host = _session(device, memory or {}, occupied or {}, profile, kv_precision, core or new_core())
    request = _request(model.clone(), session, host, context, workload, batch, shapes, static, as_loaded)
    priced = _price(request)
    split = _find_split(priced, request)
    names, problem, contexts = session.devices.names, priced.problem, priced.contexts
    singles = {
        name: problem.single(number) for number, name in enumerate(names) if problem.group_supported[:, number].all()
    }
    fits_somehow = split.fits or split.other_fits
    needs = _needs(priced, split.placement, request)
    largest, largest_of_splits = _largest_contexts(contexts, singles, split, request)
    return Fit(
        devices=names,
        context=request.workload.tokens if request.workload else None,
        batch=request.workload.batch if request.workload else batch,
        prompt=max(request.workload.prompt, request.workload.longest_prompt) if request.workload else None,
        kv_precision=_kv_precisions(priced, request) if contexts else {},
        singles={name: _needs(priced, placement, request)[name] for name, placement in singles.items()},
        split=needs if split.is_row else {},
        split_fits=split.is_row and split.fits,
        placed=request.fixed,
        other_fits=split.other_fits,
        enough={} if fits_somehow or contexts or request.fixed else enough_memory(problem, priced.candidates),
        sharing=host.devices if host else (),
        shared=together([need for name, need in needs.items() if name in host.devices], host.room) if host else None,
        largest=largest,
        largest_of_splits=largest_of_splits,
        experts=_experts_to_move(problem, host),
        tensors_counted=priced.tensors_counted,
        output_bytes=_result_bytes(problem) if contexts else 0,
        by_context=request.workload is not None and request.workload.by_context,
        assumed={} if request.workload else assumed_sizes(request.model, request.shapes),
    )


@dataclass(frozen=True, eq=False)
class _Request:
    """What is to be counted, checked and read."""

    model: ov.Model  # normalized in place
    session: Session
    host: HostMemory | None
    workload: Workload | None  # of a model with states
    shapes: Mapping[str, Sequence[int]] | None  # of all inputs that the workload, or the caller, tells
    placed: Placement | None  # that the model carries
    as_loaded: bool  # whether HETERO's own choice counts where it carries none

    @property
    def fixed(self) -> bool:
        """Whether what runs where is decided already."""
        return self.placed is not None or self.as_loaded


@dataclass(frozen=True, eq=False)
class _PricedModel:
    """A model as it is counted."""

    analysis: ModelAnalysis
    problem: PlacementProblem  # with the largest sizes of all inferences
    candidates: list[NamedPlacement]  # other ways to place it
    contexts: ContextProblems | None  # of a model with states
    tensors_counted: bool  # see `Fit.tensors_counted`


@dataclass(frozen=True, eq=False)
class _FoundSplit:
    """How the model is placed, or the best split of it."""

    placement: NDArray[np.uint8]  # device of each colocation group, uint8 [groups]
    fits: bool
    other_fits: bool  # whether a candidate does
    is_row: bool  # whether it is shown: as it is decided, or fits on several devices


def _session(
    device: str | Sequence[str],
    memory: Mapping[str, int | str],
    occupied: Mapping[str, int],
    profile: Profile | None,
    kv_precision: str | None,
    core: ov.Core,
) -> tuple[Session, HostMemory | None]:
    """The devices, with what a model may have there as their memory, and the memory that some of them share."""
    names = DeviceSet.parse(device).names
    room = rooms(names, memory, profile, core)
    left = {name: max(most - occupied.get(name, 0), 0) for name, most in room.items() if most is not None}
    host = HostMemory.of(core, names, memory_limits(memory, names), free=True)
    if host is not None:
        taken = sum(occupied.get(name, 0) for name in host.devices)
        host = replace(host, room=max(host.room - taken, 0))
    return Session.of(names, core, profile, memory=left, kv_precision=kv_precision), host


def rooms(
    names: Sequence[str], memory: Mapping[str, int | str], profile: Profile | None, core: ov.Core | None
) -> dict[str, int | None]:
    """What models may have on each device, bytes: the limit in `memory`, else most of what is free, None without limit.

    No more than the profile says.
    """
    core = core or new_core()
    declared = zip(names, resolve_profile(profile, names, core).memory_bytes(names).tolist(), strict=True)
    limits = memory_limits(memory, names)
    return {name: discovery.usable_bytes(core, name, most) for name, most in declared} | limits


def _request(
    model: ov.Model,
    session: Session,
    host: HostMemory | None,
    context: int | None,
    workload: Workload | str | None,
    batch: int,
    shapes: Mapping[str, Sequence[int]] | None,
    static: bool,
    as_loaded: bool,
) -> _Request:
    """What is counted: by the arguments, else as the model was placed, else by defaults. Raises UserError."""
    if workload is not None and batch != 1:
        raise UserError("a workload has its own number of sequences: give batch=N in it")
    if static:
        if workload is not None or context is not None:
            raise UserError("--static cannot be combined with --workload or --context: a workload needs several sizes")
        fix_input_shapes(model, shapes or {})
    placed = Placement.of(model)
    if placed is not None:
        settings = placed.settings or {}
        if workload is None and context is None:
            workload, context = settings.get("workload"), settings.get("context")
        shapes = with_earlier_shapes(model, shapes or {}, settings.get("shapes", {})) or None
    names = session.devices.names
    if not as_loaded:  # HETERO gives an NPU nothing of open sizes
        fix_npu_sizes(model, names if placed is None else placed.map_to(names).used(), shapes)
    counted = Workload.asked(workload, context)
    if counted is None and model.get_sinks() and not static:
        counted = Workload.of_context(DEFAULT_CONTEXT)
    if counted is not None:
        counted = replace(counted, batch=max(counted.batch, batch))
        shapes = {**decoder_shapes(model, counted.batch, 1, counted.tokens), **(shapes or {})}
    return _Request(model, session, host, counted, shapes, placed, as_loaded)


def _price(request: _Request) -> _PricedModel:
    """The model's memory at all of its sizes, and ways to place it. Raises UserError: HETERO runs none of them."""
    session = request.session
    analysis = session.analyse(request.model, request.shapes)
    contexts = ContextProblems.of(session, analysis, request.workload) if request.workload else None
    problem = contexts.problem if contexts else session.price(analysis, "latency").problem
    if request.fixed and request.placed is None:
        return _PricedModel(analysis, problem, [run(HeteroDefault(), problem)], contexts, tensors_counted=True)
    within, candidates = find_within_memory(problem, (), guessed=sizes_are_guessed(analysis))
    require_runnable(within, candidates)
    return _PricedModel(analysis, within, candidates, contexts, tensors_counted=within is problem)


def _find_split(priced: _PricedModel, request: _Request) -> _FoundSplit:
    """The placement that the model has, else the best on several devices, or the one that exceeds the limits least."""
    problem, host, names = priced.problem, request.host, request.session.devices.names
    candidates = [one.placement for one in priced.candidates]
    other_fits = bool(feasible(problem, candidates, host).any())
    if request.placed is not None:
        affinity = complete(request.model, request.placed.map_to(names).affinity, names, problem.graph)
        placement = problem.placement_of(affinity)
    elif request.as_loaded:
        placement = candidates[0]
    else:
        placement = _best_split(problem, priced.candidates, host)
    fits = bool(feasible(problem, [placement], host)[0])
    return _FoundSplit(placement, fits, other_fits, request.fixed or (fits and len(np.unique(placement)) > 1))


def _largest_contexts(
    contexts: ContextProblems | None,
    singles: Mapping[str, NDArray[np.uint8]],
    split: _FoundSplit,
    request: _Request,
) -> tuple[dict[str, int | None], int | None]:
    """`Fit.largest` and `Fit.largest_of_splits`."""
    if contexts is None:
        return {}, None
    largest = {name: contexts.largest([placement]) for name, placement in singles.items()}
    if split.is_row:
        largest[SPLIT] = contexts.largest([split.placement], host=request.host)
    if request.fixed:
        return largest, largest[SPLIT]
    return largest, contexts.largest([split.placement], refill=True, host=request.host)


def _kv_precisions(priced: _PricedModel, request: _Request) -> dict[str, str]:
    session, names = request.session, request.session.devices.names
    precisions = kv_precisions(priced.analysis.model, session.core, session.profile, names)
    return dict(zip(names, precisions, strict=True))


def _result_bytes(problem: PlacementProblem) -> int:
    """Bytes of all outputs of the model in the largest of its inferences."""
    return int(problem.graph.output_bytes[returned_outputs(problem.graph)].sum())


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
    every = (*candidates, run(Filling(), problem), *_filled_splits(problem))
    splits = [candidate for candidate in every if len(np.unique(candidate.placement)) > 1]
    if not splits:
        return candidates[0].placement
    placements = np.stack([split.placement for split in splits])
    within = feasible(problem, placements, host)
    if within.any():
        return best_by_prediction(problem, [splits[number] for number in np.flatnonzero(within)]).placement
    evaluation = problem.evaluate(placements)
    excess = problem.memory_excess(evaluation).sum(axis=1)
    if host is not None:
        excess += [max(host.needed(problem, counted) - host.room, 0) for counted in evaluation.memory_bytes]
    least: NDArray[np.uint8] = placements[np.lexsort((excess, evaluation.broken))[0]]
    return least


def _filled_splits(problem: PlacementProblem) -> Iterator[NamedPlacement]:
    """Splits that fill devices which hold a part of the model, the rest being on those that could hold all of it.

    `Filling` gives parts in proportion to the limits, so that a device gets nothing that is small beside another.
    """
    whole = problem.stored_bytes(np.diag(problem.evaluate(problem.singles).memory_bytes))
    limits = zip(problem.devices, whole, problem.stored_limits, strict=True)
    useful = {name: max(need if most is None else min(need, most), 1) for name, need, most in limits}
    large = [name for name, need in zip(problem.devices, whole, strict=True) if useful[name] >= need]
    small = {name: most for name, most in useful.items() if name not in large}
    if not large:
        return
    for share in _FILLED if small else (1.0,):
        rest = max(max(whole) - share * sum(small.values()), 1) / len(large)
        cut = problem.with_memory({**small, **dict.fromkeys(large, int(rest / share))})
        yield NamedPlacement("filling", problem.legalized(Filling().place(cut)))


def together(needs: Sequence[Need], room: int | None) -> Need:
    """What several parts need in one memory."""
    keys = ("weights", "states", "activations", "overhead")
    return Need(**{key: sum(getattr(need, key) for need in needs) for key in keys}, room=room)


def _needs(priced: _PricedModel, placement: NDArray[np.uint8], request: _Request) -> dict[str, Need]:
    """What the parts of a placement need, by device; devices without a part are left out."""
    problem = priced.problem
    graph, names = problem.graph, problem.devices
    total = problem.evaluate(placement).memory_bytes[0]
    device = placement[problem.groups]
    held = problem.node_held[np.arange(graph.nodes), device]
    constant = graph.kinds == NodeKind.CONSTANT
    kinds = (graph.weight_bytes > 0, np.isin(graph.types, "ReadValue"))
    weights, states = (np.bincount(device, held * kind, len(names)) for kind in kinds)
    parts = [problem.stored_bytes(counted) for counted in (weights, states, total - weights - states)]
    nodes = np.bincount(device[~constant], minlength=len(names))
    scores = _score_bytes(priced, device, request)
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


def _score_bytes(priced: _PricedModel, device: NDArray[np.uint8], request: _Request) -> NDArray[np.int64]:
    """Scores of attention that CPU devices keep beside what counts as tensors, bytes, int64 [devices].

    Args:
        priced: the model.
        device: number of the device of each node, uint8 [nodes].
        request: has the workload. Attention that is fused with its states makes scores where tokens are read after
            others, so where the context holds more than the prompt and what follows it.
    """
    graph, names, workload = priced.problem.graph, priced.problem.devices, request.workload
    largest = np.zeros(len(names), np.int64)
    if workload is None:
        return largest
    continues = 0 < workload.prompt + workload.generate < workload.tokens
    of_head = _SCORE * workload.batch * workload.prompt * workload.tokens if continues else 0
    attentions = np.flatnonzero(np.isin(graph.types, _ATTENTION)).tolist()
    shapes = {node: graph.output_shapes[graph.output_ptr[node]] for node in attentions}
    sizes = {node: shape[1] * of_head for node, shape in shapes.items() if len(shape) == 4}
    if not scores_are_tensors(request.session.profile, names):
        for node, size in attention_scores(graph, States.of(graph)).items():
            sizes[node] = max(sizes.get(node, 0), size)
    for node, size in sizes.items():
        if kind_of(names[device[node]]) == "CPU":
            largest[device[node]] = max(largest[device[node]], size)
    return largest
