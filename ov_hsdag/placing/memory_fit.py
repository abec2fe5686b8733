"""Checks whether a model fits into the memory of devices, and with how long a context, without loading it.

A single is the whole model on one device, and a split the model on several devices. The context is the number of tokens
that the states of a decoder hold. A placement is decided if `fit` does not search one: the model carries it, or HETERO
makes it.
"""

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
    find_within_memory,
    require_runnable,
    run,
    sizes_are_guessed,
)
from ov_hsdag.placing.contexts import ContextProblems
from ov_hsdag.placing.host_memory import HostMemory, feasible
from ov_hsdag.placing.least_memory import describe_enough, enough_memory
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
"""Key of the split in `Fit.largest`, whose other keys are names of devices."""

_OVERHEAD = 4 * 2**20
"""About the bytes that OpenVINO keeps of a compiled model beside its weights (CPU plugin of 2026.4)."""

_OVERHEAD_OF_NODE = 9 * 2**10
"""About the bytes that OpenVINO keeps for each operation of a compiled model (CPU plugin of 2026.4)."""

_ATTENTION = "ScaledDotProductAttention"
"""Type of attention operations, whose scores count for the overhead."""

_SCORE = 4
"""Bytes of an attention score in f32, which the CPU plugin keeps where tokens are read after others
(docs/reference/facts.md)."""

_FILLED = (0.95, 0.8, 0.6, 0.4)
"""Shares of its memory to which splits fill a device that cannot hold the whole model, beside one that can.

Several are tried, as the fullest split may exceed the limit once its live tensors are counted."""


@dataclass(frozen=True)
class Need:
    """The memory that a part of a model needs on one device, bytes.

    Attributes:
        weights: constants, as the device stores them.
        states: states of the context, such as KV caches.
        activations: the most bytes of tensors that are alive at the same time.
        overhead: about the memory of OpenVINO itself and of the buffers of attention; limits do not count it.
        room: memory that the model may have there; None without a limit.
    """

    weights: int
    states: int
    activations: int
    overhead: int
    room: int | None

    @property
    def total(self) -> int:
        """Bytes that count against the limit: all but the overhead."""
        return self.weights + self.states + self.activations

    @property
    def headroom(self) -> int | None:
        """Bytes of `room` that remain, negative where the part does not fit; None without a limit."""
        return None if self.room is None else self.room - self.total


@dataclass(frozen=True)
class ExpertsToMove:
    """The number of layers whose routed experts have to move for a model to fit.

    They move from the first to the last device; everything else is on the first device.

    Attributes:
        source: name of the first device.
        target: name of the last device.
        layers: number of layers whose experts have to move; None where moving all of them does not suffice.
        all: number of layers with experts.
    """

    source: str
    target: str
    layers: int | None
    all: int


@dataclass(frozen=True)
class Fit:
    """The result of `fit`: whether a model fits, where, and with how long a context.

    "The placement" is the one that the model carries, or HETERO's own choice where `as_loaded` was given. Otherwise it
    is the best split that `place` finds on two devices at least and within all limits.

    Attributes:
        devices: names of the devices, in HETERO's order.
        context: tokens that the states hold; None for a model without states.
        batch: sequences at a time.
        prompt: tokens that are read at once; None for a model without states.
        kv_precision: precision of KV caches on each device, by name; empty for a model without states.
        singles: memory of the whole model on each device, by name; devices that lack an operation are left out.
        split: memory of each device's part of the placement, by name; empty where there is no placement.
        split_fits: whether the placement fits.
        placed: whether the placement is decided already: the model carries it, or HETERO makes it.
        other_fits: whether the model fits with another placement.
        enough: where nothing fits and the model has no states, limits in bytes with which a placement fits, by name of
            the devices that lack memory.
        sharing: names of the devices that share the main memory of this machine; empty where fewer than two do.
        shared: memory of the parts on those devices together, with the room that they share; None where none do. Where
            no split fits, the parts are those of the split that exceeds the limits least.
        largest: longest context that fits on each single device, by name, and with the placement ("split"), tokens;
            None where memory does not limit it, 0 where not even one token fits. Empty for a model without states.
        largest_of_splits: longest context that fits with any split, tokens; for another context, another split may be
            best. None where memory does not limit it, or without states.
        experts: how many layers' experts have to leave the first device; None for a model without routed experts.
        tensors_counted: False where sizes of inputs are guesses with which nothing fits: only weights and states are
            counted then.
        output_bytes: bytes of the model's outputs in the longest prompt, logits of all its tokens; 0 without states.
        by_context: whether a context was given without a workload, so that a prompt of that length is read at once.
        assumed: assumed shapes, by name, of inputs with open sizes that were not given; empty with a workload.
    """

    devices: tuple[str, ...]
    context: int | None
    batch: int
    prompt: int | None
    kv_precision: Mapping[str, str]
    singles: Mapping[str, Need]
    split: Mapping[str, Need]
    split_fits: bool
    placed: bool
    other_fits: bool
    enough: Mapping[str, int]
    sharing: tuple[str, ...]
    shared: Need | None
    largest: Mapping[str, int | None]
    largest_of_splits: int | None = None
    experts: ExpertsToMove | None = None
    tensors_counted: bool = True
    output_bytes: int = 0
    by_context: bool = False
    assumed: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @property
    def single(self) -> str | None:
        """Name of the first device that holds the whole model; None where none does."""
        return next((name for name, need in self.singles.items() if (need.headroom or 0) >= 0), None)

    @property
    def fits(self) -> bool:
        """Whether the model fits on a single device or split; where its placement is decided, with that placement."""
        return self.split_fits or (self.single is not None and not self.placed)

    @property
    def needs(self) -> Mapping[str, Need]:
        """Memory by device as the model would run: as placed, else on one device, else split; {} where none fits."""
        if self.placed or self.single is None:
            return self.split
        return {self.single: self.singles[self.single]}

    def __repr__(self) -> str:
        """The verdict, as the first line of the command's output."""
        return verdict(self, "the model")


def verdict(result: Fit, model: str) -> str:
    """Writes one line that says whether a model fits, where, and with how long a context.

    Args:
        result: the result of `fit`.
        model: name of the model in the line.
    """
    what = f"{model} with a context of {result.context:,} tokens" if result.context else model
    if result.placed:
        what = f"{what}, as it is placed on {', '.join(result.split)}"
        if result.fits:
            return f"fits: {what}{_describe_longest_context(result, SPLIT)}"
        over = describe_excess(result.split)
        other = "; another placement fits" if result.other_fits else _describe_remedy(result)
        return f"does not fit: {what}{_describe_sharing(result)}{over and f'; it needs {over}'}{other}"
    if result.single is not None:
        return f"fits: {what} on {result.single} alone{_describe_longest_context(result, result.single)}"
    if result.split_fits:
        most = _describe_longest_context(result, SPLIT)
        return f"fits: {what} split over {', '.join(result.split)}{most}, on no device alone"
    why = "" if result.context else f" needs more memory than {', '.join(result.devices)} have"
    return f"does not fit: {what}{why}{_describe_sharing(result)}{_describe_remedy(result)}"


def describe_excess(needs: Mapping[str, Need]) -> str:
    """Describes the memory that devices lack; `needs` has the need of each device by name. "" where they lack none."""
    return exceeding(needs, [need.total for need in needs.values()], [need.room for need in needs.values()])


def _describe_remedy(result: Fit) -> str:
    """Describes a remedy for a model that does not fit: a shorter context, or more memory."""
    if not result.context:
        return describe_enough(result.enough, result.devices)
    most = max((tokens or 0 for tokens in (*result.largest.values(), result.largest_of_splits)), default=0)
    return f"; the largest context that fits is {most:,} tokens" if most else "; no context is short enough"


def _describe_sharing(result: Fit) -> str:
    """Describes the memory that devices share, where the split exceeds it; otherwise ""."""
    need = result.shared
    if need is None or need.room is None or need.total <= need.room:
        return ""
    return f", where {' and '.join(result.sharing)} share {format_bytes(need.room)} of this machine's memory"


def on_at_most(result: Fit) -> str:
    """Describes, in brackets, the longest context with the placement that a fitting model would have; "" if unlimited.

    It is also "" for a model without states.
    """
    return _describe_longest_context(result, SPLIT if result.placed or result.single is None else result.single)


def _describe_longest_context(result: Fit, name: str) -> str:
    """Describes, in brackets, the longest context of an entry of `Fit.largest`; for the split, also that of others.

    Args:
        result: the result of `fit`.
        name: key of the entry.

    Returns:
        The description; "" where there is no such entry, or memory does not limit the context.
    """
    longest, longest_of_splits = result.largest.get(name), result.largest_of_splits
    if not longest:
        return ""
    more = (
        f"; another split up to {longest_of_splits:,}"
        if name == SPLIT and not result.placed and (longest_of_splits or 0) > longest
        else ""
    )
    return f" (up to {longest:,} tokens{more})"


def fit(  # noqa: PLR0913 settings, all by keyword
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
    """Checks whether a model fits into the devices' memory, alone on each of them and split over them.

    The split of a model that carries a placement is that placement. Otherwise it is the best that the search of
    `ov_hsdag.place` finds without a learned policy: repairing a policy's placement of a language model takes minutes.

    Args:
        model: any model; it is not changed.
        device: the devices, in order of preference.
        context: tokens that the states of a decoder hold; by default those that the model was placed for, or else
            `DEFAULT_CONTEXT`. Without a workload a prompt of all of them is read at once, as openvino.genai and
            optimum-intel do where several devices share a model.
        workload: workload of a decoder, such as "prompt=1024,generate=256"; its prompt is read at once.
        batch: sequences at a time, beams included; a workload has its own number.
        shapes: example shapes of dynamic inputs, by input name; for a decoder, of the inputs other than its tokens. By
            default those that the model was placed with.
        static: whether the inputs get these shapes for good, as NPUs require.
        memory: limits by device, bytes or "8GiB"; by default most of what is free.
        kv_precision: precision of KV caches on all devices; by default what model and devices choose.
        profile: profile of the devices; built-in ones by default.
        core: Core of the devices; a new one by default.
        occupied: bytes that other models have of each device's memory, by name.
        as_loaded: whether a model without a placement counts as HETERO places it by itself; nothing is searched then.

    Returns:
        Memory on single devices and of the split, and the longest contexts that fit.

    Raises:
        UserError: bad input; a context for a model that has no states; a model that HETERO does not run.
    """
    check_in_memory("fit", model)
    PlaceOptions.of(
        None, {"memory": memory, "shapes": shapes, "context": context, "workload": workload, "profile": profile}
    )
    check_argument("batch", batch, int, least=1)
    check_kv_precision(kv_precision)
    session, host = _session(device, memory or {}, occupied or {}, profile, kv_precision, core or new_core())
    sizes = _Sizes(workload, context, shapes, batch, static)
    request = _request(model.clone(), session, host, sizes, as_loaded)
    priced = _price(request)
    split = _find_split(priced, request)
    singles = _single_placements(priced.problem)
    needs = _needs_by_device(priced, split.placement, request)
    largest, largest_of_splits = _largest_contexts(priced.contexts, singles, split, request)
    return Fit(
        devices=session.devices.names,
        context=request.context,
        batch=request.batch,
        prompt=request.prompt,
        kv_precision=_kv_precisions(priced, request),
        singles={name: _needs_by_device(priced, placement, request)[name] for name, placement in singles.items()},
        split=needs if split.is_row else {},
        split_fits=split.is_row and split.fits,
        placed=request.fixed,
        other_fits=split.other_fits,
        enough=_enough(priced, split, request),
        sharing=host.devices if host else (),
        shared=_shared(needs, host),
        largest=largest,
        largest_of_splits=largest_of_splits,
        experts=_experts_to_move(priced.problem, host),
        tensors_counted=priced.tensors_counted,
        output_bytes=_output_bytes(priced),
        by_context=request.workload is not None and request.workload.by_context,
        assumed={} if request.workload else assumed_sizes(request.model, request.shapes),
    )


@dataclass(frozen=True, eq=False)
class _Sizes:
    """The sizes of inputs and states that a check counts with, as they were asked for; see `fit`."""

    workload: Workload | str | None
    context: int | None
    shapes: Mapping[str, Sequence[int]] | None
    batch: int
    static: bool

    def check(self) -> None:
        """Checks that the arguments do not exclude each other.

        Raises:
            UserError: they do.
        """
        if self.workload is not None and self.batch != 1:
            raise UserError("a workload has its own number of sequences: give batch=N in it")
        if self.static and (self.workload is not None or self.context is not None):
            raise UserError("--static cannot be combined with --workload or --context: a workload needs several sizes")

    def or_those_of(self, placed: Placement, model: ov.Model) -> _Sizes:
        """Fills in what the caller left open with the sizes that the model was placed for.

        Args:
            placed: placement of the model.
            model: the model.
        """
        settings = placed.settings or {}
        shapes = with_earlier_shapes(model, self.shapes or {}, settings.get("shapes", {})) or None
        if self.workload is not None or self.context is not None:
            return replace(self, shapes=shapes)
        return replace(self, shapes=shapes, workload=settings.get("workload"), context=settings.get("context"))

    def workload_of(self, model: ov.Model) -> Workload | None:
        """Resolves the workload; a decoder without a context or workload gets `DEFAULT_CONTEXT`.

        Args:
            model: the model; its states make it a decoder.

        Returns:
            The workload, with the larger number of sequences; None without one.
        """
        asked = Workload.asked(self.workload, self.context)
        is_default = asked is None and bool(model.get_sinks()) and not self.static
        workload = Workload.of_context(DEFAULT_CONTEXT) if is_default else asked
        return None if workload is None else replace(workload, batch=max(workload.batch, self.batch))


@dataclass(frozen=True, eq=False)
class _Request:
    """The arguments of `fit` after they were checked and resolved."""

    model: ov.Model  # the caller's copy, which the analysis normalizes in place
    session: Session  # devices and costs; its memory limits are what the model may have
    host: HostMemory | None  # main memory that several devices share; None where none do
    workload: Workload | None  # None for a model without states
    shapes: Mapping[str, Sequence[int]] | None  # shapes of all inputs that the workload or the caller determines
    batch: int  # sequences at a time, that of the workload where there is one
    placed: Placement | None  # placement that the model carries; None where it carries none
    as_loaded: bool  # whether HETERO's own choice counts where the model carries no placement

    @property
    def fixed(self) -> bool:
        """Whether the placement is decided already."""
        return self.placed is not None or self.as_loaded

    @property
    def context(self) -> int | None:
        """See `Fit.context`."""
        return self.workload.tokens if self.workload else None

    @property
    def prompt(self) -> int | None:
        """See `Fit.prompt`."""
        return max(self.workload.prompt, self.workload.longest_prompt) if self.workload else None


@dataclass(frozen=True, eq=False)
class _PricedModel:
    """A model with its placement problem and candidates."""

    analysis: ModelAnalysis
    problem: PlacementProblem  # with the largest tensor sizes of all inferences
    candidates: list[NamedPlacement]
    contexts: ContextProblems | None  # None for a model without states
    tensors_counted: bool  # see `Fit.tensors_counted`


@dataclass(frozen=True, eq=False)
class _FoundSplit:
    """The placement that the model carries, or the best split of it."""

    placement: NDArray[np.uint8]  # device number of each colocation group, uint8 [groups]
    fits: bool
    other_fits: bool  # whether one of the candidates fits
    is_row: bool  # whether `Fit.split` has it: it is decided already, or fits on several devices


def _session(
    device: str | Sequence[str],
    memory: Mapping[str, int | str],
    occupied: Mapping[str, int],
    profile: Profile | None,
    kv_precision: str | None,
    core: ov.Core,
) -> tuple[Session, HostMemory | None]:
    """Makes the session of a check, with the memory that the model may have.

    Args:
        device: the devices, in order of preference.
        memory: limits that the user set, by device, bytes or "8GiB".
        occupied: bytes that other models have on each device, by name; the model may not have these.
        profile: device profile; built-in ones where it is None.
        kv_precision: precision of KV caches; None for what model and devices choose.
        core: Core of the devices.

    Returns:
        The session, and the memory that devices share, None where none do.
    """
    names = DeviceSet.parse(device).names
    room = rooms(names, memory, profile, core)
    remaining = {name: max(most - occupied.get(name, 0), 0) for name, most in room.items() if most is not None}
    shared = HostMemory.of(core, names, memory_limits(memory, names), free=True)
    session = Session.of(names, core, profile, memory=remaining, kv_precision=kv_precision)
    if shared is None:
        return session, None
    occupied_by_others = sum(occupied.get(name, 0) for name in shared.devices)
    return session, replace(shared, room=max(shared.room - occupied_by_others, 0))


def rooms(
    names: Sequence[str], memory: Mapping[str, int | str], profile: Profile | None, core: ov.Core | None
) -> dict[str, int | None]:
    """Finds the memory that models may have on each device.

    Args:
        names: names of the devices.
        memory: limits that the user set, by device, bytes or "8GiB".
        profile: device profile, whose memory sizes bound what counts as free; built-in ones where it is None.
        core: Core of the devices; a new one where it is None.

    Returns:
        Bytes by device: the user's limit, else most of what is free now; None where neither is known.
    """
    core = core or new_core()
    declared = zip(names, resolve_profile(profile, names, core).memory_bytes(names).tolist(), strict=True)
    limits = memory_limits(memory, names)
    return {name: discovery.usable_bytes(core, name, most) for name, most in declared} | limits


def _request(model: ov.Model, session: Session, host: HostMemory | None, sizes: _Sizes, as_loaded: bool) -> _Request:
    """Resolves the arguments of `fit`: what the caller leaves open is as in the model's placement, else the default.

    Args:
        model: a copy of the caller's model; its input shapes are fixed in place where `static` or an NPU asks for that.
        session: the devices and their costs.
        host: memory that several devices share; None where none do.
        sizes: the sizes that the caller asks for.
        as_loaded: see `fit`.

    Returns:
        The resolved arguments.

    Raises:
        UserError: arguments exclude each other or do not fit the model.
    """
    sizes.check()
    if sizes.static:
        fix_input_shapes(model, sizes.shapes or {})
    placed = Placement.of(model)
    resolved = sizes if placed is None else sizes.or_those_of(placed, model)
    names = session.devices.names
    if not as_loaded:  # by itself, HETERO gives an NPU no operation with open sizes
        fix_npu_sizes(model, names if placed is None else placed.map_to(names).used(), resolved.shapes)
    workload = resolved.workload_of(model)
    if workload is None:
        return _Request(model, session, host, None, resolved.shapes, sizes.batch, placed, as_loaded)
    shapes = {**decoder_shapes(model, workload.batch, 1, workload.tokens), **(resolved.shapes or {})}
    return _Request(model, session, host, workload, shapes, workload.batch, placed, as_loaded)


def _price(request: _Request) -> _PricedModel:
    """Analyses the model, in place, computes its costs, and finds candidates.

    Raises:
        UserError: HETERO runs no candidate.
    """
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
    """Finds the placement to check: the decided one, else the best split, else the least excessive split."""
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


def _single_placements(problem: PlacementProblem) -> dict[str, NDArray[np.uint8]]:
    """Returns the placements on single devices that support the whole model, by name, uint8 [groups]."""
    return {
        name: problem.single(number)
        for number, name in enumerate(problem.devices)
        if problem.group_supported[:, number].all()
    }


def _enough(priced: _PricedModel, split: _FoundSplit, request: _Request) -> dict[str, int]:
    """Determines `Fit.enough`: {} where something fits, the model has states, or the placement is decided already."""
    if split.fits or split.other_fits or priced.contexts or request.fixed:
        return {}
    return enough_memory(priced.problem, priced.candidates)


def _shared(needs: Mapping[str, Need], host: HostMemory | None) -> Need | None:
    """Determines `Fit.shared`; `needs` has the need of each part by the name of its device."""
    if host is None:
        return None
    return together([need for name, need in needs.items() if name in host.devices], host.room)


def _largest_contexts(
    contexts: ContextProblems | None,
    singles: Mapping[str, NDArray[np.uint8]],
    split: _FoundSplit,
    request: _Request,
) -> tuple[dict[str, int | None], int | None]:
    """Determines `Fit.largest` and `Fit.largest_of_splits`.

    Args:
        contexts: problems of the model at all contexts; None for a model without states.
        singles: placements on single devices, by name, uint8 [groups].
        split: the split that was found.
        request: the request.
    """
    if contexts is None:
        return {}, None
    largest = {name: contexts.largest([placement]) for name, placement in singles.items()}
    if split.is_row:
        largest[SPLIT] = contexts.largest([split.placement], host=request.host)
    if request.fixed:
        return largest, largest[SPLIT]
    return largest, contexts.largest([split.placement], refill=True, host=request.host)


def _kv_precisions(priced: _PricedModel, request: _Request) -> dict[str, str]:
    """Finds the precision of KV caches on each device, by name, such as "u8"; {} for a model without states."""
    if priced.contexts is None:
        return {}
    session, names = request.session, request.session.devices.names
    precisions = kv_precisions(priced.analysis.model, session.core, session.profile, names)
    return dict(zip(names, precisions, strict=True))


def _output_bytes(priced: _PricedModel) -> int:
    """Sums the bytes of all outputs, each in the largest of the model's inferences; 0 for a model without states."""
    graph = priced.problem.graph
    return int(graph.output_bytes[returned_outputs(graph)].sum()) if priced.contexts else 0


def _experts_to_move(problem: PlacementProblem, host: HostMemory | None) -> ExpertsToMove | None:
    """Finds `Fit.experts`; None for a model without routed experts, and where there is only one device."""
    blocks = len(experts(problem.graph))
    if not blocks or len(problem.devices) < 2:
        return None
    layers = fewest_away(problem, experts_away(problem), lambda held: host is None or host.holds(problem, held))
    return ExpertsToMove(problem.devices[0], problem.devices[-1], layers, blocks)


def _best_split(
    problem: PlacementProblem, candidates: Sequence[NamedPlacement], host: HostMemory | None
) -> NDArray[np.uint8]:
    """Finds the best placement on several devices by the cost model, or the one that exceeds the limits least.

    Args:
        problem: the problem.
        candidates: candidates of all placers; further ones that fill memory are tried.
        host: memory that several devices share; None where none do.

    Returns:
        The placement, uint8 [groups]; the first candidate where no placement has several devices.
    """
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
    """Yields splits that fill the small devices to the shares of `_FILLED`, and put the rest on the large ones.

    A large device could hold the whole model, a small one could not. Without a large device there are no such splits.

    `Filling` itself gives each device a part in proportion to its limit, so a small device beside a large one gets
    almost nothing.
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
    """Adds up what several parts need in one memory.

    Args:
        needs: the need of each part.
        room: bytes that they may have there together; None without a limit.
    """
    keys = ("weights", "states", "activations", "overhead")
    return Need(**{key: sum(getattr(need, key) for need in needs) for key in keys}, room=room)


def _needs_by_device(priced: _PricedModel, placement: NDArray[np.uint8], request: _Request) -> dict[str, Need]:
    """Computes the memory that the parts of a placement need, by device.

    Args:
        priced: the model.
        placement: device number of each co-location group, uint8 [groups].
        request: the request.

    Returns:
        Need of each device by name; devices without an operation are left out.
    """
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
    """Estimates the bytes of attention scores that CPU devices keep in addition to the tensors of the graph.

    Attention that is fused with its states keeps scores where tokens are read after others: where the context of the
    workload is longer than its prompt and the generated tokens.

    Args:
        priced: the model.
        device: device number of each node, uint8 [nodes].
        request: supplies the workload.

    Returns:
        Bytes of the largest scores on each device, int64 [devices]; 0 for other devices than the CPU.
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
