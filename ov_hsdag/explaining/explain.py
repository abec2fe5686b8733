"""The entry point of explanations: `explain` computes the costs of a placed model and returns an `ExplainedModel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

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
from ov_hsdag.model.workload import Phase, Workload
from ov_hsdag.problem.pricing import ModelAnalysis, Session
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
    copy = model.clone()  # shares the weights
    given = _given_or_carried(copy, affinity)
    devices = DeviceSet(given.devices) if device is None else DeviceSet.parse(device)
    placement = given if devices.names == given.devices else given.map_to(devices.names)
    session = _open_session(placement, devices, core or new_core(), profile, memory or {})
    inference = _Inference.of(copy, placement.settings or {}, shapes, workload, context)
    analysis = _analyse(session, copy, placement, inference, is_carried=affinity is None)
    problem = session.price(analysis, objective or placement.objective, costs, inference.phases).problem
    completed = complete.complete(copy, placement.affinity, devices.names, problem.graph)
    pins = _pins_kept(problem, completed, (placement.settings or {}).get("pin", ()))
    measured = tuple(costs.of(problem.graph, devices.names, session.core)) if costs and not inference.phases else ()
    explanation = Explanation(problem, problem.placement_of(completed), pins)
    return ExplainedModel(
        explanation, placement, session.profile, measured, inference.description, analysis, inference.phases
    )


def _given_or_carried(model: ov.Model, affinity: Mapping[str, str] | Placement | None) -> Placement:
    """Returns the placement to explain.

    Args:
        model: the model.
        affinity: the placement that the caller gave; None for the one that the model carries.

    Raises:
        UserError: there is none.
    """
    given = placement_of(model) if affinity is None else affinity
    placement = given if given is None or isinstance(given, Placement) else _by_name(given)
    if placement is None:
        raise UserError("the model carries no placement: place it first, with ov_hsdag.place or ov-hsdag place")
    return placement


def _open_session(
    placement: Placement,
    devices: DeviceSet,
    core: ov.Core,
    profile: Profile | str | PathLike[str] | None,
    memory: Mapping[str, int | str],
) -> Session:
    """Opens a session on the devices, with the virtual devices and memory limits that the placement was made with.

    Args:
        placement: the placement.
        devices: the devices.
        core: the Core, where virtual devices are registered.
        profile: speeds of the devices, or the path of a profile's file; None for built-in profiles, with a warning
            where the placement was made with another one.
        memory: limits by device, which replace those of the placement.

    Returns:
        The session.
    """
    settings = placement.settings or {}
    register_defined(core, settings.get("virtual_devices", ""), devices.names)
    if profile is None and "profile" in settings:
        warn_caller(
            f"the placement was made with the profile {settings['profile']}, and here the built-in ones count:"
            " --profile (in Python, profile=) gives others"
        )
    kept_limits = {name: limit for name, limit in settings.get("memory", {}).items() if name in devices.names}
    return Session.of(devices, core, profile, memory=kept_limits | memory_limits(memory, devices.names))


@dataclass(frozen=True, eq=False)
class _Inference:
    """What one inference is: the sizes of its inputs, or the phases of a workload.

    Attributes:
        shapes: example shapes of dynamic inputs, by input name.
        phases: phases of the workload; empty without one.
        description: words for the unit to which times refer.
    """

    shapes: Mapping[str, Sequence[int]] | None
    phases: tuple[Phase, ...]
    description: str

    @classmethod
    def of(
        cls,
        model: ov.Model,
        settings: Mapping[str, Any],
        shapes: Mapping[str, Sequence[int]] | None,
        workload: Workload | str | None,
        context: int | None,
    ) -> _Inference:
        """Takes what the caller gave. Without a workload and a context, the placement's settings are defaults.

        Args:
            model: the model.
            settings: settings with which the placement was made.
            shapes: example shapes that the caller gave, by input name.
            workload: workload that the caller gave.
            context: context that the caller gave, tokens.

        Raises:
            UserError: the workload is wrong, or does not fit the model.
        """
        if workload is not None or context is not None:
            return cls._with(model, shapes, Workload.asked(workload, context))
        earlier_shapes = with_earlier_shapes(model, shapes or {}, settings.get("shapes", {}))
        return cls._with(model, earlier_shapes, Workload.asked(settings.get("workload"), settings.get("context")))

    @classmethod
    def _with(
        cls, model: ov.Model, shapes: Mapping[str, Sequence[int]] | None, workload: Workload | None
    ) -> _Inference:
        """Makes the phases of a workload and the description; None for no workload."""
        if workload is None:
            return cls(shapes, (), "one request")
        phases = workload.phases_with(model, shapes)
        return cls(shapes, phases, f"an inference (the mean of {workload.describe()})")


def _analyse(
    session: Session, model: ov.Model, placement: Placement, inference: _Inference, *, is_carried: bool
) -> ModelAnalysis:
    """Normalizes and analyses the model, and checks that the placement is one of it.

    Args:
        session: the devices.
        model: the model, which is changed in place.
        placement: the placement.
        inference: the sizes of the inputs.
        is_carried: whether the model carries the placement. It may then name operations that are gone from the model,
            with a warning.

    Returns:
        The analysis.

    Raises:
        UserError: the placement names no node of the model, or, if the caller gave it, one that the model lacks.
    """
    original_names = {node.get_friendly_name() for node in model.get_ops()}
    restore_shapes(model)
    fix_npu_sizes(model, placement.used(), inference.shapes)
    operations = {node.get_friendly_name() for node in operations_of(model)}
    is_placed = is_carried and model.has_rt_info([RT_INFO]) and operations <= placement.affinity.keys()
    analysis = session.analyse(model, inference.shapes, inference.phases, placed=is_placed)
    known_names = original_names.union(analysis.graph.names)
    if not is_carried or known_names.isdisjoint(placement.affinity):
        placement.check_nodes(known_names)
    elif gone := placement.missing(known_names):
        warn_caller(f"the placement names operations that are gone from the model: {listed(gone)}")
    return analysis


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
