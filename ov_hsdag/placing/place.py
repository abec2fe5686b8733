"""The entry point: chooses a device for each operation of a model and annotates the model."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.calibration.calibrate import Calibrating, calibrate_where_it_runs
from ov_hsdag.costs.memory import check_kv_precision
from ov_hsdag.costs.profile import Profile
from ov_hsdag.costs.stored import ModelCosts
from ov_hsdag.devices.cores import SharedCores
from ov_hsdag.devices.cpu import busy_cores, usable_cores
from ov_hsdag.devices.device_set import DeviceSet, kind_of
from ov_hsdag.devices.memory import memory_limits
from ov_hsdag.devices.virtual import definition, new_core
from ov_hsdag.explaining.dominant_group import describe_dominant_group
from ov_hsdag.explaining.explanation import Explanation
from ov_hsdag.explaining.report_data import ReportSource
from ov_hsdag.model import complete
from ov_hsdag.model.affinities import set_affinities
from ov_hsdag.model.experts import experts
from ov_hsdag.model.gains import HSDAG, placer_of
from ov_hsdag.model.graph import NodeKind
from ov_hsdag.model.pins import Pin, parse_pins, pinned_nodes, pinned_support
from ov_hsdag.model.placement import Placement
from ov_hsdag.model.samples import describe_files, samples_of
from ov_hsdag.model.shapes import UNBOUNDED_DIMENSION, fix_input_shapes, fix_npu_sizes
from ov_hsdag.model.workload import Phase, Workload
from ov_hsdag.placers.experts import ExpertsApart
from ov_hsdag.placers.multilevel import Multilevel
from ov_hsdag.placing import selection
from ov_hsdag.placing.candidates import (
    MARGIN,
    NamedPlacement,
    best_by_prediction,
    describe_enough,
    enough_memory,
    find_candidates,
    find_within_memory,
    placement_of,
    policy_placers,
    require_runnable,
    required_gain,
    sizes_are_guessed,
    why_left_out,
    why_not_taken,
)
from ov_hsdag.placing.contexts import ContextProblems
from ov_hsdag.placing.host_memory import HostMemory
from ov_hsdag.placing.options import PlaceOptions, flags
from ov_hsdag.policy.placer import HSDAGPlacer
from ov_hsdag.problem.copies import COPIES, copies_summary
from ov_hsdag.problem.pricing import ModelAnalysis, Session, graph_of
from ov_hsdag.problem.problem import PlacementProblem, check_objective
from ov_hsdag.utils.arguments import check_in_memory
from ov_hsdag.utils.errors import RunError, UserError, one_line
from ov_hsdag.utils.failures import out_of_time, read_failure
from ov_hsdag.utils.lazy import ov
from ov_hsdag.utils.timing import Clock

# Cores that other programs use before what is measured on CPU devices is doubted.
_BUSY = 0.5

# A difference of predictions that is shown as 0.00% is none.
_SAID_OF_MARGIN = 5e-5

# A given placement may ask for what a device does not support: somebody may want to see what happens.
_UNSUPPORTED = 2


def place(
    model: ov.Model,
    device: str | Sequence[str],
    *,
    objective: str | None = None,
    measure: bool | None = None,
    memory: Mapping[str, int | str] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    profile: Profile | str | PathLike[str] | None = None,
    policy: str | PathLike[str] | None = None,
    core: ov.Core | None = None,
    report: Callable[[str], None] | None = None,
    options: PlaceOptions | None = None,
    **more: Any,
) -> Placement:
    """Decides where each operation of `model` runs; the model is normalized, annotated and carries the placement.

    Args:
        model: any model; changed in place.
        device: the devices, in order of preference: "HETERO:GPU,CPU", or ["GPU", "CPU"].
        objective: "latency" (the default) of one request or "throughput" of many in flight.
        measure: measure the best predicted placements on the devices, and choose by that; by default the choice is the
            prediction's.
        memory: what the model may have on a device, by the device's name, in place of the profile's limits: a number of
            bytes, or "8GiB".
        shapes: example shapes of dynamic inputs for the cost model, and for measuring, by input name. An NPU takes no
            open sizes: where one is among the devices, a model without states gets these for good, with a warning.
        profile: speeds of the devices, or the path of a profile's file; built-in profiles by default.
        policy: name or folder of the HSDAG policy that proposes a placement as well; "none" for no policy.
        core: asked what the devices support, where it has them. A new one by default.
        report: called with a few words whenever a phase begins or something else is measured.
        options: all of these, and the rarer ones; what is given by name goes before them.
        more: rarer options by name, see `PlaceOptions`.

    Returns:
        The placement, which is also written into `model`.

    Raises:
        UserError: bad input, or a device that is to be measured and is not on this machine; `model` may have been
            normalized, but carries no placement of this call.
        RunError: a policy that was asked for does not run, or there is no folder for the temporary files of measuring.
        RunError: no placement keeps within the devices' memory; with a context, the largest that fits is named.
    """
    clock = Clock(begins=None if report is None else lambda phase: report(_PHASES.get(phase, phase)))
    everyday = {
        "objective": objective,
        "measure": measure,
        "memory": memory,
        "shapes": shapes,
        "profile": profile,
        "policy": policy,
    }
    options = PlaceOptions.of(options, {**everyday, **more})
    request = _resolve(model, device, options, core)
    samples = samples_of(model, options.inputs, options.shapes)
    if samples is not None:
        options = replace(options, shapes=samples.shapes or None)
    if options.static:
        fix_input_shapes(model, options.shapes or {})
    else:
        fix_npu_sizes(model, request.session.devices, options.shapes)
    measure, shapes = options.measure, options.shapes
    if measure and not request.decided and request.costs is None:
        with suppress(RunError):  # told where it is needed
            request.calibrating.start()  # it imports OpenVINO meanwhile
    busy = busy_cores() if any(kind_of(name) == "CPU" for name in request.session.devices) else 0.0
    by_name = request.given is not None or bool(request.pins)
    original = {node.get_friendly_name(): node.get_type_name() for node in model.get_ops()} if by_name else {}
    asked = Workload.asked(options.workload, options.context)
    phases = asked.phases_with(model, shapes) if asked else ()
    if phases:
        shapes = phases[-1].shapes
    session = request.session
    analysis = session.analyse(model, shapes, phases, clock)
    pins = _Pins.of(analysis, request.pins, original)
    if request.given is not None:
        # Its names may be those of the model as it is in the file, or as placements are reported.
        request.given.check_nodes({*original, *analysis.graph.names})
        named = [name for name in request.given.affinity if original.get(name) != "Constant"]
        kept = len({*named} & {*analysis.graph.names})
        if 2 * kept < len(named):
            told = f"only {kept} of the affinity's operations have the same names in the normalized model"
            warnings.warn(f"{told}, and the others follow these: ov-hsdag show --output has its names", stacklevel=2)
    costs = request.costs
    if phases and costs is not None:
        warnings.warn("the measured costs beside the model are not those of a workload", stacklevel=2)
        costs = None
    phase_costs: dict[str, ModelCosts] = {}
    if measure and not request.decided and (costs is None or not _holds(costs, analysis, request)):
        with clock("calibrate"), request.calibrating:
            seconds = selection.CALIBRATING * request.measure_seconds
            if phases:
                phase_costs = _calibrated_phases(analysis, request, phases, seconds, report)
            else:
                analysis, costs = _calibrated(analysis, request, seconds, report)
                if analysis.shapes and analysis.shapes is not shapes:
                    shapes = analysis.shapes
                    options = replace(options, shapes=shapes)
    with clock("costs"):
        priced = session.price(analysis, options.objective, costs, phases, phase_costs)
        problem = pins.keep(priced.problem)
    with clock("placers"):
        problem, candidates = _candidates(problem, analysis, request)
        if measure and not request.decided and (costs is not None or phase_costs):
            unmeasured = pins.keep(session.price(analysis, options.objective, None, phases).problem)
            candidates += _by_profile(unmeasured, candidates, request)
    calibrated = _all_calibrated(analysis, request, costs, phases, phase_costs)
    with clock("choose"):
        if request.given is not None:
            affinity = complete.complete(model, request.given.affinity, problem.devices, problem.graph)
            chosen = NamedPlacement("affinity", problem.placement_of(affinity))
            require_runnable(problem, [chosen], ignored=_UNSUPPORTED)
            _warn_of_empty_devices(problem, chosen)
        else:
            try:
                asked_for = [_experts_apart(problem, request.experts)] if request.experts else candidates
                chosen = best_by_prediction(problem, asked_for, calibrated=calibrated)
            except RunError as error:
                if request.experts:  # of other placements it says nothing
                    raise
                told = describe_enough(enough_memory(problem, candidates), problem.devices)
                if asked is not None:
                    contexts = ContextProblems.of(session, analysis, asked, priced)
                    told += f"; {contexts.describe(candidates)}"
                raise type(error)(f"{error}{told}") from error
            except UserError as error:
                raise UserError(f"{error}; the pins are {pins}" if request.pins else str(error)) from error
    why = _why_predicted(chosen, problem, request, analysis, candidates, calibrated=calibrated)
    choice = _Choice(chosen, candidates, why=why)
    if measure:
        # Calibrating may take longer than its share, by a compilation; measuring has its own all the same.
        share = (1 - selection.CALIBRATING) * request.measure_seconds
        left = max(request.measure_seconds - clock.seconds.get("calibrate", 0.0), share)
        with clock("measure"):
            how: dict[str, Any] = {
                "shapes": shapes,
                "phases": phases,
                "seconds": left,
                "measured_costs": calibrated,
                "report": report,
            }
            how["samples"] = samples
            how["pinned"] = bool(request.pins)
            choice = _measured(choice, model, problem, request, disturbed=busy > _BUSY, **how)
    if request.host is not None:
        counted = problem.evaluate(choice.chosen.placement).memory_bytes[0]
        request.host.warn_beyond(request.host.needed(problem, counted))
    if options.objective == "throughput" and (shared := SharedCores.of(session.core, session.devices.names)):
        warnings.warn(shared.describe(), stacklevel=2)
    with clock("choose"):
        measured_costs = list(costs.of(problem.graph, problem.devices, session.core)) if costs else []
        for one in phase_costs.values():
            measured_costs += [name for name in problem.devices if one.device(name) and name not in measured_costs]
        placement = _placement(choice, problem, pins, request, measured_costs, clock)
        made_with = replace(options, measure=bool(options.measure))  # the command line's default is another one
        settings = settings_of(made_with, request.limits, session.devices.names)
        placement = replace(placement, settings=settings)
        if phases and placement.predicted is not None:
            placement.predicted["workload"] = priced.summary(choice.chosen.placement)
    with clock("write"):
        placement = replace(placement, affinity=set_affinities(model, placement.affinity))
        placement.embed(model)
        if options.kv_precision is not None:
            model.set_rt_info(options.kv_precision, ["runtime_options", "KV_CACHE_PRECISION"])
    return placement


_PHASES = {
    "normalise": "OpenVINO's transformations",
    "graph": "reading its graph",
    "legality": "finding what stays together",
    "support": "asking the devices what they run",
    "calibrate": "measuring its operations",
    "costs": "predicting costs",
    "placers": "searching",
    "choose": "choosing",
    "measure": "measuring placements",
    "write": "annotating the model",
}
"""Phases of `Placement.seconds`, as people are told them."""

_LONGEST_SECONDS = 10**6  # clocks of the system end somewhere; eleven days are more than anyone waits


def settings_of(
    options: PlaceOptions, limits: Mapping[str, int], devices: Sequence[str], command: str = "place"
) -> dict[str, Any]:
    """What the caller gave, for `Placement.settings`: every option that command lines have, where it was given.

    Args:
        options: as they were given; of files their names are recorded, and nothing of what was given in memory.
        limits: what the model may have on devices, bytes by device.
        devices: names, whose declarations are recorded where they are virtual.
        command: of `ov-hsdag` that makes such a placement.
    """
    given = {name: getattr(options, name) for name in flags() if name != "objective"}
    for name in ("affinity", "policy", "profile"):
        given[name] = Path(given[name]).name if isinstance(given[name], str | PathLike) else None
    if isinstance(options.workload, Workload):
        given["workload"] = None if options.workload.by_context else options.workload.describe()
        given["context"] = options.context or options.workload.context or None
    # Sizes may be NumPy's, and are to be JSON's.
    given["shapes"] = {name: [int(size) for size in shape] for name, shape in (options.shapes or {}).items()} or None
    given["inputs"] = describe_files(options.inputs) or None
    given["memory"] = dict(limits) or None
    given["pin"] = [str(pin) for pin in parse_pins(options.pin or (), devices)] or None
    given["virtual_devices"] = definition(devices) or None
    return {"command": command} | {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class _Request:
    """What the caller wants, checked and read."""

    session: Session
    learned: list[HSDAGPlacer]
    given: Placement | None
    pins: tuple[Pin, ...]
    experts: ExpertsApart | None
    costs: ModelCosts | None
    host: HostMemory | None
    search: Multilevel
    limits: Mapping[str, int]
    measure_seconds: float
    calibrating: Calibrating  # which has not begun

    @property
    def decided(self) -> bool:
        """Whether the caller says what runs where."""
        return self.given is not None or self.experts is not None


@dataclass(frozen=True, eq=False)
class _Pins:
    """Pins of a model: what they leave to the search, and what is known of the problem without them."""

    nodes: Mapping[int, Pin]  # pins by the numbers of their nodes
    allowed: NDArray[np.bool_]  # which devices may have which nodes, bool [nodes, devices]
    supported: NDArray[np.bool_]  # which devices run which nodes, bool [nodes, devices]

    @classmethod
    def of(cls, analysis: ModelAnalysis, pins: Sequence[Pin], original: Collection[str]) -> _Pins:
        """Raises UserError: a pin cannot be kept; original: names of operations before normalization, for messages."""
        nodes = pinned_nodes(analysis.graph, pins, original)
        allowed = pinned_support(analysis.graph, analysis.supported, analysis.devices, nodes)
        return cls(nodes, allowed, analysis.supported)

    def __str__(self) -> str:
        return ", ".join(dict.fromkeys(f"'{pin}'" for pin in self.nodes.values()))

    def keep(self, problem: PlacementProblem) -> PlacementProblem:
        """The problem in which no placer can break a pin."""
        return replace(problem, supported=self.allowed) if self.nodes else problem

    def leave_out(self, problem: PlacementProblem) -> PlacementProblem:
        """Inverse of `keep`."""
        return replace(problem, supported=self.supported) if self.nodes else problem


def _warn_of_empty_devices(problem: PlacementProblem, chosen: NamedPlacement) -> None:
    """Warns where a given placement leaves devices of the list without an operation."""
    used = set(chosen.placement[problem.groups[problem.graph.kinds == NodeKind.OP]].tolist())
    empty = [name for number, name in enumerate(problem.devices) if number not in used]
    if empty:
        warnings.warn(
            f"the affinity leaves {', '.join(empty)} without an operation: what it lacks follows its neighbours;"
            " --pin NAME=DEVICE (pin= in Python) keeps some operations and searches the rest",
            stacklevel=3,
        )


def check_seconds(what: str, seconds: float | None) -> None:
    """UserError: a time limit that cannot be kept."""
    if seconds is not None and not 0 < seconds <= _LONGEST_SECONDS:
        raise UserError(f"{what} must have more than 0 and at most {_LONGEST_SECONDS} seconds, got {seconds}")


def _resolve(model: ov.Model, device: str | Sequence[str], options: PlaceOptions, core: ov.Core | None) -> _Request:
    """Everything that can be wrong with the arguments is found here, before the model is changed."""
    check_in_memory("place", model)
    measure_seconds = selection.SECONDS if options.measure_seconds is None else options.measure_seconds
    search_seconds, costs, profile = options.search_seconds, options.costs, options.profile
    for what, seconds in (("measuring", measure_seconds), ("the search", search_seconds)):
        check_seconds(what, seconds)
    check_objective(options.objective)
    devices = DeviceSet.parse(device)
    if options.inputs and (options.workload is not None or options.context is not None):
        raise UserError("a workload makes up its inputs, and others are given: leave out one of them")
    if options.static and (options.workload is not None or options.context is not None):
        raise UserError(
            "--static cannot be combined with --workload or --context: a workload needs several input sizes"
        )
    given, apart = _given(options.affinity, devices), _experts(options.experts, devices)
    if given is not None and apart is not None:
        raise UserError("a placement is given in two ways, by an affinity and by where experts are: give one of them")
    pins = parse_pins(options.pin or (), devices.names)
    if pins and (given is not None or apart is not None):
        raise UserError("pins leave the rest to the search, and an affinity or where experts are decides it: give one")
    core = core or new_core()
    learned = policy_placers(options.policy, core, devices.names) if given is None and apart is None else []
    if options.measure:
        selection.check_possible(core, devices)
    limits = memory_limits(options.memory or {}, devices.names)
    if costs is not None and not isinstance(costs, ModelCosts):
        costs = ModelCosts.load(costs)
    check_kv_precision(options.kv_precision)
    session = Session.of(devices, core, profile, memory=limits, kv_precision=options.kv_precision)
    search = Multilevel()
    if search_seconds is not None:
        search = Multilevel(seconds=search_seconds, threads=usable_cores())
    host = HostMemory.of(core, devices.names, limits, profile=None if profile is None else session.profile)
    calibrating = Calibrating(core, devices.names)
    return _Request(session, learned, given, pins, apart, costs, host, search, limits, measure_seconds, calibrating)


def _given(
    affinity: Mapping[str, str] | Placement | str | PathLike[str] | None, devices: DeviceSet
) -> Placement | None:
    if affinity is None or isinstance(affinity, Placement):
        return affinity if affinity is None or affinity.devices == devices.names else affinity.map_to(devices.names)
    if isinstance(affinity, Mapping):
        unknown = sorted(set(affinity.values()) - set(devices.names))
        if unknown:
            raise UserError(f"affinity uses device '{unknown[0]}', which is not in {devices.hetero}")
        return Placement(devices=devices.names, affinity=dict(affinity))
    return Placement.load(affinity, devices.names)


def _experts(text: str | None, devices: DeviceSet) -> ExpertsApart | None:
    """Reads "CPU" and "CPU:20". Raises UserError."""
    if text is None:
        return None
    names = sorted(devices.names, key=len, reverse=True)
    name = next((one for one in names if f"{text}:".upper().startswith(f"{one}:".upper())), "")
    layers = text[len(name) + 1 :] or None
    counted = layers is None or (layers.isdecimal() and int(layers[:6]) > 0)
    if not name or not counted or (layers is None) != (len(text) == len(name)):
        raise UserError(
            f"cannot read where experts are, '{text:.40}': give it as {devices.names[-1]} or {devices.names[-1]}:20,"
            f" a device of {devices.hetero} and a number of layers"
        )
    return ExpertsApart(devices.names.index(name), None if layers is None else int(layers[:6]))


def _experts_apart(problem: PlacementProblem, placer: ExpertsApart) -> NamedPlacement:
    """The placement that a caller asked for by where experts are. Raises UserError for a model without experts."""
    blocks = len(experts(problem.graph))
    if not blocks:
        raise UserError("the model has no experts that could be elsewhere, or none that OpenVINO's plugins recognise")
    if placer.layers is not None and placer.layers > blocks:
        warnings.warn(f"experts are in {blocks} layers, not in {placer.layers}: those of all layers move", stacklevel=3)
    where = problem.groups[[block.sum for block in experts(problem.graph)]]
    assert placer.device is not None  # the option names it
    if not problem.group_supported[where, placer.device].all():
        raise UserError(f"{problem.devices[placer.device]} does not run the experts of this model")
    found = NamedPlacement(placer.name, replace(placer, layers=placer.layers or blocks).place(problem))
    require_runnable(problem, [found])
    return found


def _calibrated(
    analysis: ModelAnalysis,
    request: _Request,
    seconds: float,
    report: Callable[[str], None] | None,
) -> tuple[ModelAnalysis, ModelCosts | None]:
    """The analysis and the model's costs on these devices, measured now.

    The analysis has smaller inputs where those that were assumed do not run. seconds: time budget.
    """
    names, costs = analysis.devices, request.costs
    if costs is not None:
        warnings.warn(
            f"the measured costs beside the model do not hold for all of {', '.join(names)} and are measured anew;"
            " ov-hsdag calibrate --model writes them",
            stacklevel=3,
        )
    report = report or (lambda _: None)
    report(f"measuring operations on {', '.join(names)}")
    try:
        return calibrate_where_it_runs(analysis, request.calibrating, request.session.profile, report, seconds)
    except (RunError, RuntimeError) as error:
        # Predictions are then a profile's, and the measured choice among placements is as good as ever.
        warnings.warn(f"ov-hsdag places by its profiles: calibrating failed: {one_line(error)}", stacklevel=3)
        return analysis, costs


def _holds(costs: ModelCosts, analysis: ModelAnalysis, request: _Request) -> bool:
    """Whether measured costs hold for all devices of a placing."""
    return len(costs.of(analysis.graph, analysis.devices, request.session.core)) == len(analysis.devices)


def _all_calibrated(
    analysis: ModelAnalysis,
    request: _Request,
    costs: ModelCosts | None,
    phases: Sequence[Phase],
    phase_costs: Mapping[str, ModelCosts],
) -> bool:
    """Whether measured costs hold for all devices, and all phases that occur.

    Args:
        analysis: of the model.
        request: names the devices.
        costs: measured of a model without a workload.
        phases: of its workload, if it has one.
        phase_costs: measured of them, by the phase's name.
    """
    if not phases:
        return costs is not None and _holds(costs, analysis, request)
    measured = [phase_costs.get(phase.name) for phase in phases if phase.count]
    return all(one is not None and all(map(one.device, request.session.devices)) for one in measured)


def _calibrated_phases(
    analysis: ModelAnalysis,
    request: _Request,
    phases: Sequence[Phase],
    seconds: float,
    report: Callable[[str], None] | None,
) -> dict[str, ModelCosts]:
    """The model's costs in each phase that occurs, by its name, measured now. seconds: time budget of all."""
    occurring = [phase for phase in phases if phase.count]
    end, found = time.monotonic() + seconds, {}
    for left, phase in zip(range(len(occurring), 0, -1), occurring, strict=True):
        of_phase = replace(analysis, graph=graph_of(analysis, phase), shapes=phase.shapes)
        share = max((end - time.monotonic()) / left, 1.0)
        _, costs = _calibrated(of_phase, replace(request, costs=None), share, report)
        if costs is not None:
            found[phase.name] = costs
    return found


def _candidates(
    problem: PlacementProblem, analysis: ModelAnalysis, request: _Request
) -> tuple[PlacementProblem, list[NamedPlacement]]:
    """What all placers find, simplest first, and the problem that they found it for."""
    guessed = sizes_are_guessed(analysis)
    found_for, candidates = find_within_memory(problem, request.learned, guessed=guessed, search=request.search)
    if found_for is not problem:
        warnings.warn(
            "the memory limits hold for weights and states alone: inputs without bounds, counted as"
            f" {UNBOUNDED_DIMENSION} in each dimension, would not fit; give example shapes (shapes= in Python,"
            " --shape on the command line)",
            stacklevel=3,
        )
    return found_for, candidates


def _by_profile(problem: PlacementProblem, known: Sequence[NamedPlacement], request: _Request) -> list[NamedPlacement]:
    """What would be chosen without measured costs, where nothing else found it: on a machine that others use, costs
    that were measured while they worked may be the worse ones.

    problem: priced by the profile.
    """
    try:
        found = best_by_prediction(problem, find_candidates(problem, request.learned))
    except (RunError, UserError):  # what the costs do not change has been told
        return []
    if any(np.array_equal(found.placement, one.placement) for one in known):
        return []
    return [NamedPlacement(f"{found.name} {selection.BY_PROFILE}", found.placement, by_profile=True)]


@dataclass(frozen=True)
class _Choice:
    """The chosen candidate, what it was chosen from, what was measured of them, and why (see `Placement`)."""

    chosen: NamedPlacement
    candidates: list[NamedPlacement]
    measured: dict[str, dict[str, Any]] | None = None
    why: str = ""
    unsure: tuple[str, ...] = ()


def _measured(
    choice: _Choice, model: ov.Model, problem: PlacementProblem, request: _Request, **options: Any
) -> _Choice:
    """The choice by measuring; a given placement is measured beside the others and stays chosen.

    options: see `selection.select`.
    """
    placements = {one.name: one.placement for one in (*choice.candidates, choice.chosen)}
    by_profile = [one.name for one in choice.candidates if one.by_profile]
    held = selection.select(model, problem, placements, request.session.core, by_profile=by_profile, **options)
    found = [NamedPlacement(name, one) for name, one in held.placements.items() if name not in placements]
    choice = replace(choice, candidates=choice.candidates + found, measured=held.measured or None)
    failure = read_failure(held.measured.get(choice.chosen.name, {}))
    if not request.decided and held.chosen is not None:
        chosen = NamedPlacement(held.chosen, held.placements[held.chosen])
        return replace(choice, chosen=chosen, why=held.why, unsure=held.unsure)
    if not request.decided and failure and not out_of_time(failure):
        return replace(choice, chosen=_least_risky(problem, choice.candidates, held), why="no placement ran")
    return choice


def _least_risky(
    problem: PlacementProblem, candidates: Sequence[NamedPlacement], held: selection.Result
) -> NamedPlacement:
    """What is chosen where nothing ran: a single device if possible, and best one that has not been seen to fail."""
    failed = {
        held.placements[name].tobytes()
        for name, figures in held.measured.items()
        if name in held.placements and not out_of_time(read_failure(figures))
    }
    possible = [one for one in candidates if np.isfinite(problem.scores(one.placement)[0])]
    possible = [one for one in possible if one.name in problem.devices] or possible
    untried = [one for one in possible if one.placement.tobytes() not in failed]
    return best_by_prediction(problem, untried or possible)


def _margin_that_decides(
    chosen: NamedPlacement, problem: PlacementProblem, candidates: Sequence[NamedPlacement], *, calibrated: bool
) -> str:
    """That a simpler placement was chosen than the best, as people are told; "" where it is the best."""
    evaluation = problem.evaluate(np.stack([candidate.placement for candidate in candidates]))
    scores = evaluation.score(problem.objective)
    best = int(scores.argmin())
    taken = problem.evaluate(chosen.placement)
    gain = float(taken.score(problem.objective)[0] / scores[best]) - 1
    if candidates[best].name == chosen.name or gain < _SAID_OF_MARGIN:
        return ""
    submodels, simpler = int(evaluation.submodels[best]), int(taken.submodels[0])
    required = required_gain(submodels, simpler, calibrated=calibrated)
    told = f"{placer_of(candidates[best].name)} is predicted {gain:.2%} better and not taken:"
    if submodels > simpler:
        return f"{told} {submodels} submodels instead of {simpler} have to gain {required:.1%}"
    return f"{told} a less simple placement has to gain {required:.1%}"


def _why_predicted(
    chosen: NamedPlacement,
    problem: PlacementProblem,
    request: _Request,
    analysis: ModelAnalysis,
    candidates: Sequence[NamedPlacement],
    *,
    calibrated: bool,
) -> str:
    """Why a single device was chosen by prediction, or a placement that is not the best, as people are told.

    Args:
        chosen: by prediction.
        problem: with the costs that it was chosen by.
        request: says whether the caller decided.
        analysis: of the model.
        candidates: that it was chosen from.
        calibrated: see `required_gain`.
    """
    if request.decided or len(problem.devices) == 1:
        return ""
    margin = _margin_that_decides(chosen, problem, candidates, calibrated=calibrated)
    if len(np.unique(chosen.placement)) > 1:
        return margin
    scores = problem.scores(np.stack([candidate.placement for candidate in candidates]))
    if scores.min() < problem.scores(chosen.placement)[0] * (1 - MARGIN):
        return margin
    together = describe_dominant_group(problem.graph, problem.groups, analysis.model, analysis.shapes)
    told = f"no split is predicted to gain {MARGIN:.1%}" if problem.groups.max() else "no split of it is possible"
    return f"{told}: {together}" if together else told


def _notes(choice: _Choice, problem: PlacementProblem, pins: _Pins, *, decided: bool) -> dict[str, str]:
    """Why candidates were left out, not taken or not measured, in some words.

    decided: the caller decided the placement, so that there was nothing to take.
    """
    by_prediction = choice.measured is None and not decided
    notes = why_not_taken(problem, choice.candidates, choice.chosen) if by_prediction else {}
    same_as = _same_as(choice.candidates)
    for one in choice.candidates:
        left_out = why_left_out(problem, one.placement)
        if left_out and pins.nodes and not why_left_out(pins.leave_out(problem), one.placement):
            notes[one.name] = f"left out: does not keep {pins}"
        elif left_out:
            notes[one.name] = left_out
        elif one.name in (choice.measured or {}):
            continue
        elif one.name in same_as:
            notes[one.name] = f"same placement as {same_as[one.name]}"
        elif choice.measured is not None:
            notes[one.name] = "not measured: others are predicted to be better"
    return notes


def _same_as(candidates: Sequence[NamedPlacement]) -> dict[str, str]:
    """The first candidate that is the same placement as another, by the name of that other."""
    first: dict[bytes, str] = {}
    found = {one.name: first.setdefault(one.placement.tobytes(), one.name) for one in candidates}
    return {name: other for name, other in found.items() if other != name}


def _placement(
    choice: _Choice,
    problem: PlacementProblem,
    pins: _Pins,
    request: _Request,
    measured_costs: list[str],
    clock: Clock,
) -> Placement:
    """The placement with all that is known about it. measured_costs: devices whose operations were measured."""
    chosen, learned, copies = choice.chosen, request.learned, copies_summary(problem)
    asked = any(placer_of(candidate.name) == HSDAG for candidate in choice.candidates)
    unpinned = pins.leave_out(problem)
    explanation = Explanation(unpinned, chosen.placement, {node: str(pin) for node, pin in pins.nodes.items()})
    placement = placement_of(
        problem,
        chosen,
        choice.candidates,
        measured_costs,
        measured=choice.measured,
        policy=Path(learned[0].policy).name if learned and learned[0].policy and asked else None,
        seconds=clock.seconds,
        why=choice.why,
        notes=_notes(choice, problem, pins, decided=request.decided),
        same_as=_same_as(choice.candidates),
        unsure=choice.unsure,
        source=ReportSource(explanation, request.session.profile, tuple(measured_costs)),
    )
    if pins.nodes:  # gains are over the best single device, pins or not
        for name, single in zip(problem.devices, problem.singles, strict=True):
            if np.isfinite(unpinned.scores(single)[0]):
                placement.baselines.setdefault(name, unpinned.summary(single))
    placement.baselines.update({} if copies is None else {COPIES: copies})
    return placement
