"""The entry point of explanations: `explain` computes the costs of a placed model and returns an `ExplainedModel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike

from ov_hsdag.costs.profile import Profile
from ov_hsdag.costs.stored import ModelCosts
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.devices.memory import memory_limits
from ov_hsdag.devices.virtual import new_core, register_defined
from ov_hsdag.explaining.explained_model import ExplainedModel
from ov_hsdag.explaining.explanation import Explanation
from ov_hsdag.model import complete
from ov_hsdag.model.inputs import with_earlier_shapes
from ov_hsdag.model.names import operations_of
from ov_hsdag.model.pins import parse_pins, pinned_nodes
from ov_hsdag.model.placement import Placement
from ov_hsdag.model.relaxed_shapes import restore_shapes
from ov_hsdag.model.shapes import fix_npu_sizes
from ov_hsdag.model.stored_placement import RT_INFO
from ov_hsdag.model.workload import Workload
from ov_hsdag.problem.pricing import Session
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.utils.arguments import check_in_memory
from ov_hsdag.utils.errors import UserError, listed
from ov_hsdag.utils.lazy import ov
from ov_hsdag.utils.warn import warn_caller


def explain(  # noqa: PLR0913 settings, all by keyword
    model: ov.Model,
    device: str | Sequence[str] | None = None,
    *,
    affinity: Mapping[str, str] | Placement | None = None,
    objective: str | None = None,
    profile: Profile | str | PathLike[str] | None = None,
    core: ov.Core | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    memory: Mapping[str, int | str] | None = None,
    costs: ModelCosts | None = None,
    workload: Workload | str | None = None,
    context: int | None = None,
) -> ExplainedModel:
    """Explains the placement that a model carries, or another one.

    The settings with which the placement was made (example shapes, memory limits, workload) are defaults for the
    arguments below.

    Args:
        model: any model; it is not changed.
        device: the devices, in HETERO's order; by default those of the placement.
        affinity: a placement of the model; by default the one that it carries, or affinities of its nodes. Nodes of a
            carried placement that the model has lost are left out, with a warning.
        objective: "latency" or "throughput"; by default the placement's.
        profile: speeds of the devices, or the path of a profile's file; built-in profiles by default.
        core: asked what the devices support, where it has them. A new one by default.
        shapes: example shapes of dynamic inputs, by input name.
        memory: as in `ov_hsdag.place`.
        costs: measured costs of the model, used for those devices for which they are valid.
        workload: as in `ov_hsdag.place`.
        context: as in `ov_hsdag.place`.

    Returns:
        The explained model.

    Raises:
        UserError: bad input, a model without a placement, or one that knows none of the model's nodes.
        RunError: a device cannot say what it supports.
    """
    check_in_memory("explain", model)
    model = model.clone()  # shares the weights
    placement = placement_of(model) if affinity is None else affinity
    placement = placement if placement is None or isinstance(placement, Placement) else _by_name(placement)
    if placement is None:
        raise UserError("the model carries no placement: place it first, with ov_hsdag.place or ov-hsdag place")
    devices = DeviceSet(placement.devices) if device is None else DeviceSet.parse(device)
    names = devices.names
    if names != placement.devices:
        placement = placement.map_to(names)
    core = core or new_core()
    made_with = placement.settings or {}
    register_defined(core, made_with.get("virtual_devices", ""), names)
    if profile is None and "profile" in made_with:
        warn_caller(
            f"the placement was made with the profile {made_with['profile']}, and here the built-in ones count:"
            " --profile (in Python, profile=) gives others"
        )
    limits = {name: limit for name, limit in made_with.get("memory", {}).items() if name in names}
    session = Session.of(devices, core, profile, memory=limits | memory_limits(memory or {}, names))
    if workload is None and context is None:
        workload, context = made_with.get("workload"), made_with.get("context")
        shapes = with_earlier_shapes(model, shapes or {}, made_with.get("shapes", {}))
    parsed_workload = Workload.asked(workload, context)
    phases = parsed_workload.phases_with(model, shapes) if parsed_workload else ()
    original = {node.get_friendly_name() for node in model.get_ops()}
    restore_shapes(model)
    fix_npu_sizes(model, placement.used(), shapes)
    stored = {node.get_friendly_name() for node in operations_of(model)}
    placed = affinity is None and model.has_rt_info([RT_INFO]) and stored <= placement.affinity.keys()
    analysis = session.analyse(model, shapes, phases, placed=placed)
    known_names = original.union(analysis.graph.names)
    if affinity is None and not known_names.isdisjoint(placement.affinity):
        if gone := placement.missing(known_names):
            warn_caller(f"the placement names operations that are gone from the model: {listed(gone)}")
    else:
        placement.check_nodes(known_names)
    problem = session.price(analysis, objective or placement.objective, costs, phases).problem
    whole = complete.complete(model, placement.affinity, names, problem.graph)
    measured = tuple(costs.of(problem.graph, names, core)) if costs and not phases else ()
    request = f"an inference (the mean of {parsed_workload.describe()})" if parsed_workload else "one request"
    explanation = Explanation(
        problem, problem.placement_of(whole), _pins_kept(problem, whole, made_with.get("pin", ()))
    )
    return ExplainedModel(explanation, placement, session.profile, measured, request, analysis, tuple(phases))


def _pins_kept(problem: PlacementProblem, affinity: Mapping[str, str], pins: Sequence[str]) -> dict[int, str]:
    """Finds the nodes of pins, and leaves out the nodes that are not on the device of their pin.

    A pin may be violated because the model has changed, other devices are given, or the file was edited.

    Args:
        problem: the problem.
        affinity: device of each node, by friendly name.
        pins: texts of the pins, "PATTERN=DEVICE"; texts that cannot be read or match no node are ignored.

    Returns:
        Text of the pin by the number of each node that it keeps.
    """
    kept: dict[int, str] = {}
    for text in pins:
        try:
            (pin,) = parse_pins([text], problem.devices)
            nodes = pinned_nodes(problem.graph, [pin])
        except UserError:
            continue
        kept |= {node: text for node in nodes if affinity[problem.graph.names[node]] == pin.device}
    return kept


def placement_of(model: ov.Model) -> Placement | None:
    """Reads the placement that a model carries, else makes one of its nodes' affinities; None where it has neither."""
    carried = Placement.of(model)
    if carried is not None:
        return carried
    marked = [node for node in model.get_ops() if "affinity" in node.get_rt_info()]
    return _by_name({node.get_friendly_name(): node.get_rt_info()["affinity"].astype(str) for node in marked})


def _by_name(affinity: Mapping[str, str]) -> Placement | None:
    """Makes a placement of affinities by friendly name, on the devices that they name; None where there are none."""
    return Placement(devices=tuple(dict.fromkeys(affinity.values())), affinity=dict(affinity)) if affinity else None
