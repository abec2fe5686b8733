"""The request of a placing: the caller's arguments, checked and read before the model is changed.

A placement is decided if the caller gave it, by an affinity or by where experts go; otherwise it is chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from ov_hsdag.calibration.calibrate import Calibrating
from ov_hsdag.costs.memory import check_kv_precision
from ov_hsdag.costs.stored import ModelCosts
from ov_hsdag.devices.cpu import usable_cores
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.devices.memory import memory_limits
from ov_hsdag.devices.virtual import definition, new_core
from ov_hsdag.model.pins import Pin, parse_pins
from ov_hsdag.model.placement import Placement
from ov_hsdag.model.samples import Samples, describe_files, samples_of
from ov_hsdag.model.workload import Workload
from ov_hsdag.placers.experts import ExpertsApart
from ov_hsdag.placers.multilevel import Multilevel
from ov_hsdag.placing import selection
from ov_hsdag.placing.candidates import policy_placers
from ov_hsdag.placing.host_memory import HostMemory
from ov_hsdag.placing.options import PlaceOptions, flags
from ov_hsdag.policy.placer import HSDAGPlacer
from ov_hsdag.problem.pricing import Session
from ov_hsdag.problem.problem import check_objective
from ov_hsdag.utils.arguments import check_in_memory
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import ov

_LONGEST_SECONDS = 10**6
"""The longest time limit, seconds: clocks of the system end somewhere, and eleven days are more than anyone waits."""


@dataclass(frozen=True)
class PlacingRequest:
    """The checked arguments of one call of `place`.

    Attributes:
        options: the options of the call. Where the caller gave inputs, `shapes` are those of the inputs.
        session: the machine, the devices and their profiles.
        policies: placers that run a policy; empty where the placement is decided.
        fixed_placement: the placement that the caller gave; None where it is not given.
        fixed_experts: placer that puts the experts of a mixture of experts where the caller wants them, or None.
        pins: operations that the caller keeps on a device; the rest is searched.
        stored_costs: costs that were measured earlier, or None.
        samples: inferences with inputs that the caller gave, to measure with; None where inputs are generated.
        workload: numbers of prompt and generated tokens that a decoder is placed for, or None.
        host: main memory that several devices share, to warn where a placement needs more; None where none do.
        search: the multilevel search, with the caller's time limit.
        limits: memory that the model may have, bytes by device.
        measure_seconds: time budget of calibrating and measuring together.
        calibration_process: the process that measures operations. It starts with `start` or the first measurement, and
            ends with the `with` block that it is used in.
    """

    options: PlaceOptions
    session: Session
    policies: list[HSDAGPlacer]
    fixed_placement: Placement | None
    fixed_experts: ExpertsApart | None
    pins: tuple[Pin, ...]
    stored_costs: ModelCosts | None
    samples: Samples | None
    workload: Workload | None
    host: HostMemory | None
    search: Multilevel
    limits: Mapping[str, int]
    measure_seconds: float
    calibration_process: Calibrating

    @property
    def decided(self) -> bool:
        """Whether the caller decided the placement, by an affinity or by where experts are."""
        return self.fixed_placement is not None or self.fixed_experts is not None

    @property
    def measured_choice(self) -> bool:
        """Whether the placement is chosen by measuring: measuring was asked for and the caller did not decide it."""
        return bool(self.options.measure) and not self.decided

    @property
    def names_operations(self) -> bool:
        """Whether the caller named operations, by their names in the model before normalization."""
        return self.fixed_placement is not None or bool(self.pins)


def resolve_request(
    model: ov.Model, device: str | Sequence[str], options: PlaceOptions, core: ov.Core | None
) -> PlacingRequest:
    """Checks and reads the arguments of `place`, before the model is changed.

    Args:
        model: the model to place, which is not changed.
        device: "HETERO:GPU,CPU", or names of devices.
        options: all other options.
        core: the Core of the devices; None for a new one.

    Returns:
        The request. Its processes have not been started.

    Raises:
        UserError: arguments are wrong or exclude each other.
        RunError: the policy of the options cannot run, or there is no folder for temporary files.
    """
    check_in_memory("place", model)
    measure_seconds = selection.SECONDS if options.measure_seconds is None else options.measure_seconds
    check_seconds("measuring", measure_seconds)
    check_seconds("the search", options.search_seconds)
    check_objective(options.objective)
    devices = DeviceSet.parse(device)
    fixed_placement = _fixed_placement(options.affinity, devices)
    fixed_experts = _fixed_experts(options.experts, devices)
    pins = parse_pins(options.pin or (), devices.names)
    _check_exclusive(options, fixed_placement, fixed_experts, pins)
    core = core or new_core()
    decided = fixed_placement is not None or fixed_experts is not None
    policies = [] if decided else policy_placers(options.policy, core, devices.names)
    if options.measure:
        selection.check_possible(core, devices)
    limits = memory_limits(options.memory or {}, devices.names)
    costs = options.costs
    stored_costs = costs if costs is None or isinstance(costs, ModelCosts) else ModelCosts.load(costs)
    check_kv_precision(options.kv_precision)
    session = Session.of(devices, core, options.profile, memory=limits, kv_precision=options.kv_precision)
    own_profile = None if options.profile is None else session.profile
    samples = samples_of(model, options.inputs, options.shapes)
    return PlacingRequest(
        options=options if samples is None else replace(options, shapes=samples.shapes or None),
        session=session,
        policies=policies,
        fixed_placement=fixed_placement,
        fixed_experts=fixed_experts,
        pins=pins,
        stored_costs=stored_costs,
        samples=samples,
        workload=Workload.asked(options.workload, options.context),
        host=HostMemory.of(core, devices.names, limits, profile=own_profile),
        search=_search_of(options.search_seconds),
        limits=limits,
        measure_seconds=measure_seconds,
        calibration_process=Calibrating(core, devices.names),
    )


def check_seconds(purpose: str, seconds: float | None) -> None:
    """Checks a time limit.

    Args:
        purpose: what the time is for, as the subject of the message: "measuring".
        seconds: the limit, seconds; None where none was given.

    Raises:
        UserError: it is not positive, or longer than `_LONGEST_SECONDS`.
    """
    if seconds is not None and not 0 < seconds <= _LONGEST_SECONDS:
        raise UserError(f"{purpose} must have more than 0 and at most {_LONGEST_SECONDS} seconds, got {seconds}")


def settings_of(
    options: PlaceOptions, limits: Mapping[str, int], devices: Sequence[str], command: str = "place"
) -> dict[str, Any]:
    """Collects the options that the caller gave, for `Placement.settings`. Those that command lines lack are left out.

    Args:
        options: the options as they were given. Files are recorded by name; an affinity, a policy, a profile or inputs
            given in memory are not recorded.
        limits: memory limits, bytes by device.
        devices: names of the devices; the declarations of virtual ones are recorded.
        command: command of `ov-hsdag` that makes such a placement.

    Returns:
        Values for JSON by option name.
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


def _check_exclusive(
    options: PlaceOptions,
    fixed_placement: Placement | None,
    fixed_experts: ExpertsApart | None,
    pins: Sequence[Pin],
) -> None:
    """Checks that options do not exclude each other.

    Args:
        options: the options.
        fixed_placement: the placement that the caller gave, or None.
        fixed_experts: where the caller wants experts, or None.
        pins: the pins of the caller.

    Raises:
        UserError: they do.
    """
    has_workload = options.workload is not None or options.context is not None
    if options.inputs and has_workload:
        raise UserError("a workload makes up its inputs, and others are given: leave out one of them")
    if options.static and has_workload:
        raise UserError(
            "--static cannot be combined with --workload or --context: a workload needs several input sizes"
        )
    if fixed_placement is not None and fixed_experts is not None:
        raise UserError("a placement is given in two ways, by an affinity and by where experts are: give one of them")
    if pins and (fixed_placement is not None or fixed_experts is not None):
        raise UserError("pins leave the rest to the search, and an affinity or where experts are decides it: give one")


def _search_of(seconds: float | None) -> Multilevel:
    """Makes the multilevel search.

    Args:
        seconds: time of the search on all cores, seconds; None for one that ends when its searches agree.
    """
    return Multilevel() if seconds is None else Multilevel(seconds=seconds, threads=usable_cores())


def _fixed_placement(
    affinity: Mapping[str, str] | Placement | str | PathLike[str] | None, devices: DeviceSet
) -> Placement | None:
    """Reads the placement that the caller gave.

    Args:
        affinity: the placement, or device by friendly name, or the path of a file; None where none was given.
        devices: the devices of the request.

    Returns:
        The placement on these devices; None where none was given.

    Raises:
        UserError: it cannot be read, or uses other devices.
    """
    if affinity is None:
        return None
    if isinstance(affinity, Placement):
        return affinity if affinity.devices == devices.names else affinity.map_to(devices.names)
    if isinstance(affinity, Mapping):
        unknown = sorted(set(affinity.values()) - set(devices.names))
        if unknown:
            raise UserError(f"affinity uses device '{unknown[0]}', which is not in {devices.hetero}")
        return Placement(devices=devices.names, affinity=dict(affinity))
    return Placement.load(affinity, devices.names)


def _fixed_experts(text: str | None, devices: DeviceSet) -> ExpertsApart | None:
    """Parses where experts go.

    Args:
        text: "CPU", or "CPU:20" for the experts of the first 20 layers; None where the caller does not say.
        devices: the devices of the request, one of which the text names.

    Returns:
        The placer that puts them there; None where the caller does not say.

    Raises:
        UserError: the text is malformed.
    """
    if text is None:
        return None
    longest_first = sorted(devices.names, key=len, reverse=True)
    device = next((name for name in longest_first if f"{text}:".upper().startswith(f"{name}:".upper())), "")
    layers = text[len(device) + 1 :] or None
    counted = layers is None or (layers.isdecimal() and int(layers[:6]) > 0)
    if not device or not counted or (layers is None) != (len(text) == len(device)):
        raise UserError(
            f"cannot read where experts are, '{text:.40}': give it as {devices.names[-1]} or {devices.names[-1]}:20,"
            f" a device of {devices.hetero} and a number of layers"
        )
    return ExpertsApart(devices.names.index(device), None if layers is None else int(layers[:6]))
