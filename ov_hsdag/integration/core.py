"""Makes ``Core.compile_model`` follow the placement that a model carries; all other calls pass through unchanged.

A load on "HSDAG:…" (see `ov_hsdag.integration.device_name`) is a load on "HETERO:…" that first places a model without a
placement.

The device string decides which devices are used, as it does without a placement: "HETERO:GPU,CPU" means these two.
Where the placement has other devices, or the machine lacks one, the nodes of these devices go to the remaining ones
(see :meth:`ov_hsdag.model.placement.Placement.mapped`), with a warning. "HETERO" alone means the placement's devices.

Warnings are issued after the model is compiled: a filter that turns them into errors must not change the result. Until
then functions collect them in a list, `notes`.

A load on HSDAG, or on HETERO with ``OV_HSDAG_AUTO``, is automatic: it places the model first. A model is partly placed
where only some of its nodes have affinities; HETERO refuses such a model.

The module is imported while openvino itself is being imported, so it imports neither openvino nor large packages at the
top.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ov_hsdag._env import disabled, has_virtual_devices
from ov_hsdag.devices.property_values import PRIORITIES, device_properties, listed_devices, names_in, plain
from ov_hsdag.integration import device_name, loaded_libraries, requests
from ov_hsdag.storage.ir_text import file_carries, has_entry
from ov_hsdag.utils.errors import DoesNotFitError, PlacementNotFollowedWarning, UserError, one_line
from ov_hsdag.utils.lazy import opset13, ov
from ov_hsdag.utils.warn import warn_caller

if TYPE_CHECKING:
    from ov_hsdag.integration.device_name import AutomaticLoad
    from ov_hsdag.model.placement import Placement
    from ov_hsdag.placing.first_load import LoadedPlacement

_PATCHED = "__ov_hsdag__"

_LIBRARY = b"ov_hsdag_extension"
"""Part of the file name of the library for C++ that is the same on every system."""


def patch(module: ModuleType) -> None:
    """Wraps the methods of ``Core`` and of compiled models in openvino._ov_api. A second call does nothing."""
    core = module.Core
    if getattr(core.compile_model, _PATCHED, False):
        return
    core.__init__ = _wrap_init(core.__init__)
    core.add_extension = _wrap_add_extension(core.add_extension)
    core.register_plugin = _wrap_register_plugin(core.register_plugin)
    core.compile_model = _wrap_compile_model(core.compile_model)
    if hasattr(core, "query_model"):
        core.query_model = _wrap_query_model(core.query_model)
    device_name.patch(core)
    requests.patch(module)


def _wrap_init(original: Callable[..., None]) -> Callable[..., None]:
    """Wraps ``Core.__init__``, so that each Core has the virtual devices of the environment."""

    @functools.wraps(original)
    def __init__(self: ov.Core, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if has_virtual_devices():  # even with OV_HSDAG_DISABLE, which turns off placements and not devices
            from ov_hsdag.devices import virtual

            virtual.register(self)

    return __init__


def _wrap_add_extension(original: Callable[..., None]) -> Callable[..., None]:
    """Wraps ``Core.add_extension``, so that processes which measure can load the same extensions."""

    @functools.wraps(original)
    def add_extension(self: ov.Core, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        with contextlib.suppress(Exception):
            from ov_hsdag.devices import extensions

            extensions.note(self, next(iter((*args, *kwargs.values()))))

    return add_extension


def _wrap_query_model(original: Callable[..., dict[str, str]]) -> Callable[..., dict[str, str]]:
    """Wraps ``Core.query_model``, so that it answers for HSDAG with the placement that a load would follow."""

    @functools.wraps(original)
    def query_model(self: ov.Core, *args: Any, **kwargs: Any) -> dict[str, str]:
        arguments = dict(zip(("model", "device_name", "config"), args, strict=False)) | kwargs
        device = arguments.get("device_name")
        if not device_name.is_hsdag(device) or disabled():
            return original(self, *args, **kwargs)
        load = device_name.automatic_load(self, str(device), arguments.get("config"))
        return _affinities_at_load(self, arguments["model"], load)

    return query_model


def _wrap_register_plugin(original: Callable[..., None]) -> Callable[..., None]:
    """Wraps ``Core.register_plugin``, so that processes which measure can register the same plugins."""

    @functools.wraps(original)
    def register_plugin(self: ov.Core, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        with contextlib.suppress(Exception):
            from ov_hsdag.devices import virtual

            plugin = os.fspath(args[0] if args else kwargs["plugin"])
            name = args[1] if len(args) > 1 else kwargs["device_name"]
            virtual.note_plugin(self, os.path.abspath(plugin) if os.path.exists(plugin) else plugin, name)

    return register_plugin


def _wrap_compile_model(original: Callable[..., ov.CompiledModel]) -> Callable[..., ov.CompiledModel]:
    """Wraps ``Core.compile_model``, so that loads on HETERO and HSDAG follow placements."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def compile_model(self: ov.Core, *args: Any, **kwargs: Any) -> ov.CompiledModel:
        arguments: Mapping[str, Any] = {}  # stays empty for arguments that OpenVINO will refuse
        with contextlib.suppress(TypeError):
            arguments = signature.bind(self, *args, **kwargs).arguments
        device = arguments.get("device_name")
        call_as_is: Callable[[], ov.CompiledModel] = functools.partial(original, self, *args, **kwargs)
        if not isinstance(device, str) or not ("HETERO" in device or device_name.is_hsdag(device)):
            return call_as_is()
        call = _Call(self, original, arguments["model"], arguments.get("weights"), device, arguments.get("config"))
        notes: list[Warning] = []
        try:
            compiled = _compiled_call(call, call_as_is, notes)
        finally:
            loaded_libraries.keep_hetero()
        for note in notes:
            warn_caller(note)
        return compiled

    setattr(compile_model, _PATCHED, True)
    return compile_model


def _compiled_call(call: _Call, call_as_is: Callable[[], ov.CompiledModel], notes: list[Warning]) -> ov.CompiledModel:
    """Compiles the model of a call whose device string contains HETERO or HSDAG.

    Args:
        call: the call.
        call_as_is: makes the user's call unchanged.
        notes: gets the warnings to issue afterwards.

    Raises:
        RuntimeError: OpenVINO's error, a property has no valid value, or no placement fits into memory.
    """
    if disabled() and call.is_hetero and has_virtual_devices():
        return call.compile(call.model, _with_limits(call.device, call.config))
    if device_name.is_hsdag(call.device):
        call, call_as_is = _on_hetero(call)
    elif disabled():
        return call_as_is()
    elif device_name.is_automatic(call.device):
        call = _automatic(call)
    return _compile_on_hetero(call, call_as_is, notes) if call.is_hetero else _compile_on_auto(call, call_as_is, notes)


@dataclass(frozen=True)
class _Call:
    """The arguments of a call of Core.compile_model whose device string contains HETERO or HSDAG."""

    core: ov.Core
    original: Callable[..., ov.CompiledModel]  # compile_model as OpenVINO has it, a method without its Core
    model: Any  # the model, in any form that compile_model takes
    weights: bytes | None  # weights of a model that is given as the text of an IR; None for others
    device: str  # device string
    config: Mapping[str, Any] | None  # properties
    automatic: AutomaticLoad | None = None  # settings of an automatic load; None for others, which place nothing

    @property
    def is_hetero(self) -> bool:
        """Whether HETERO itself compiles the model, not AUTO, MULTI or BATCH with HETERO among their devices."""
        return self.device.partition(":")[0] == "HETERO"

    def compile(self, model: object, config: Mapping[str, Any] | None) -> ov.CompiledModel:
        """Calls OpenVINO's compile_model with another model, which has the same weights, and other properties."""
        rest = {} if self.weights is None else {"weights": self.weights}
        return self.original(self.core, model, self.device, config, **rest)


def _on_hetero(call: _Call) -> tuple[_Call, Callable[[], ov.CompiledModel]]:
    """Translates a call for HSDAG into one for HETERO that places the model.

    Args:
        call: the call for HSDAG.

    Returns:
        The call for HETERO, and a function that makes it without a placement.

    Raises:
        RuntimeError: a property has no valid value.
    """
    if disabled():
        on_hetero = replace(call, device=device_name.hetero_device(call.core, call.device, call.config))
    else:
        try:
            load = device_name.automatic_load(call.core, call.device, call.config, _source(call.model, call.weights))
        except UserError as error:
            raise RuntimeError(f"ov_hsdag: {error}") from None
        on_hetero = replace(call, device=load.device, config=load.config, automatic=load)
    return on_hetero, lambda: on_hetero.compile(on_hetero.model, _with_limits(on_hetero.device, on_hetero.config))


def _automatic(call: _Call) -> _Call:
    """Completes a call for HETERO by the settings of an automatic load; unchanged, with a warning, if one is wrong."""
    try:
        load = device_name.automatic_load(call.core, call.device, call.config, _source(call.model, call.weights))
    except UserError as error:
        warn_caller(f"ov_hsdag: no model is placed: {error}")
        return call
    return replace(call, device=load.device, config=load.config, automatic=load)


def _source(model: object, weights: object) -> str | None:
    """The absolute path of the file of a call's model; None where it is not known.

    Args:
        model: the model, in any form that compile_model takes.
        weights: weights of the call; None if it has none.
    """
    if isinstance(model, str | bytes | os.PathLike):
        return None if weights is not None else os.path.abspath(os.fsdecode(model))
    source = getattr(model, device_name.SOURCE, None)
    return None if source is None else os.path.abspath(source)


def _compile_on_hetero(
    call: _Call, call_as_is: Callable[[], ov.CompiledModel], notes: list[Warning]
) -> ov.CompiledModel:
    """Compiles a model on HETERO, with its placement if it has one.

    Where the placement cannot be followed, the model is compiled without it, with a warning.

    Args:
        call: the call for HETERO.
        call_as_is: makes the user's call unchanged.
        notes: gets the warnings to issue afterwards.

    Returns:
        The compiled model.

    Raises:
        RuntimeError: OpenVINO's error, or no placement fits into memory.
    """
    compiled = failure = too_large = None
    try:
        placed = _placed(call.core, call.model, call.weights, call.device, call.config, notes, call.automatic)
        if placed is not None:
            compiled = _compiled(functools.partial(call.original, call.core), placed, notes)
            if placed.loaded is not None:
                device_name.record(placed.loaded, placed.model, _source(call.model, call.weights))
    except DoesNotFitError as error:
        too_large = one_line(error)
    except Exception as error:
        failure = one_line(error)
    if too_large is not None:
        raise RuntimeError(f"ov_hsdag: {too_large}")
    # Raised outside of the except clauses, so that OpenVINO's error is not chained to ours.
    if compiled is not None:
        compiled._ov_hsdag_weights = call.weights  # keeps this memory alive, as constants may refer to it
        return compiled
    if failure is not None:
        return _compiled_without_placement(call, failure, notes)
    return _compiled_unplaced(call, call_as_is, notes)


def _compiled_unplaced(
    call: _Call, call_as_is: Callable[[], ov.CompiledModel], notes: list[Warning]
) -> ov.CompiledModel:
    """Compiles a model that carries no placement on HETERO; completes affinities that only some nodes have.

    HETERO refuses a model in which only some nodes have affinities. Looking at every node takes a tenth of a second for
    5,000 nodes, so HETERO is tried first. This does not work where the library for C++ is loaded: it completes
    the copies that HETERO makes (transformations/src/hetero_copy.hpp), so nodes are looked at first.

    Args:
        call: the call for HETERO.
        call_as_is: makes the user's call unchanged.
        notes: gets a warning where affinities are completed.

    Raises:
        RuntimeError: OpenVINO's error.
    """
    refusal = completed = failure = None
    if not _library_is_loaded():
        try:
            return (
                call.compile(call.model, _properties_without_placement(call)) if has_virtual_devices() else call_as_is()
            )
        except RuntimeError as error:
            refusal = error
    try:
        completed = _completed(call, notes)
    except Exception as error:
        failure = one_line(error)
    if failure is not None:
        return _compiled_without_placement(call, failure, notes)
    if completed is not None:
        return call.compile(completed, _properties_without_placement(call))
    if refusal is not None:
        raise refusal
    return call.compile(call.model, _properties_without_placement(call)) if has_virtual_devices() else call_as_is()


def _library_is_loaded() -> bool:
    """Whether this process has loaded the extension library, which makes C++ programs follow placements.

    False where the system does not list loaded files, as on Windows; there the library does not touch HETERO's copies.
    """
    return bool(loaded_libraries.paths_of(_LIBRARY))


def _compiled_without_placement(call: _Call, failure: str, notes: list[Warning]) -> ov.CompiledModel:
    """Compiles a model as if it had no affinities.

    Args:
        call: the call for HETERO.
        failure: the reason why its placement cannot be followed; it is also logged for an automatic load.
        notes: all warnings in it are replaced by one with the reason.
    """
    without = "its placement" if call.automatic is None else "a placement"
    text = f"ov_hsdag: the model was compiled without {without}: {failure[:300]}"
    notes[:] = [PlacementNotFollowedWarning(text)]
    if call.automatic is not None:
        device_name.record_failure(_source(call.model, call.weights) or "a model in memory", failure)
    chosen = None
    with contextlib.suppress(Exception):  # compiling below raises OpenVINO's error for a model that is wrong
        chosen = _as_hetero_chooses(call)
    if chosen is not None:
        return replace(call, weights=None).compile(chosen, _properties_without_placement(call))
    return call.compile(_without_affinities(call.model), _properties_without_placement(call))


def _as_hetero_chooses(call: _Call) -> ov.Model | None:
    """Copies a model that has an input which nothing reads, and gives the copy HETERO's own choice as affinities.

    Without affinities HETERO turns such an input into an additional first output and changes the order of inputs.

    Returns:
        The copy; None for a model without such an input.

    Raises:
        RuntimeError: the model cannot be read, or a device does not say what it supports.
        UserError: see `Placement.apply`.
        RunError: see `Placement.apply`.
    """
    from ov_hsdag.model.affinities import remove_affinities
    from ov_hsdag.model.placement import Placement

    copy = _private_copy(call.core, call.model, call.weights)
    if all(node.output(0).get_target_inputs() for node in copy.get_parameters()):
        return None
    remove_affinities(copy)
    _make_names_unique(copy)
    devices = _requested(call.core, call.device, call.config)
    affinity: dict[str, str] = {}
    for device in reversed(devices):
        affinity |= dict.fromkeys(call.core.query_model(copy, device), device)
    Placement(devices, affinity).apply(copy)
    return copy


def _compile_on_auto(call: _Call, call_as_is: Callable[[], ov.CompiledModel], notes: list[Warning]) -> ov.CompiledModel:
    """Compiles a model on AUTO, MULTI or BATCH, which pass it to HETERO with the affinities of its placement.

    HETERO's devices come from the properties of the call for HETERO, else from the Core, else from the placement.

    Args:
        call: the call for AUTO, MULTI or BATCH.
        call_as_is: makes the user's call unchanged.
        notes: gets the warnings to issue afterwards.

    Returns:
        The compiled model; without the placement, and with a warning, where it cannot be followed.
    """
    compiled = failure = None
    try:
        inner = (device_properties(call.config) or {}).get("HETERO", {})
        placed = _placed(call.core, call.model, call.weights, "HETERO", inner, notes)
        if placed is not None:
            compiled = call.original(call.core, placed.model, call.device, call.config)
            requests.ask_for_requests(compiled, placed.placement, call.config)
    except Exception as error:
        failure = one_line(error)
    if compiled is not None:
        compiled._ov_hsdag_weights = call.weights
        return compiled
    if failure is not None:
        text = f"ov_hsdag: {call.device} was compiled without the model's placement: {failure[:300]}"
        notes[:] = [PlacementNotFollowedWarning(text)]
    return call_as_is()


@dataclass(frozen=True)
class _Placed:
    """Arguments with which OpenVINO follows a placement, and the means to reduce it to fewer devices."""

    model: ov.Model  # a copy of the call's model, with affinities
    device: str  # HETERO's device string
    config: Mapping[str, Any] | None  # properties
    placement: Placement  # that the affinities come from
    supports: Callable[[str, str], bool] | None  # whether a node (name) runs on a device; None on a single device
    path: str  # the model's file, "MODEL" where it is in memory
    loaded: LoadedPlacement | None = None  # of an automatic load; None where the model carried its placement

    def on(self, devices: Sequence[str]) -> _Placed:
        """Moves the nodes of all other devices to `devices`: changes the affinities of `model` in place."""
        placement, _ = self.placement.mapped(devices, self.supports)
        placement.apply(self.model)
        return replace(self, device=placement.hetero, placement=placement)


def _compiled(
    compile_model: Callable[..., ov.CompiledModel], placed: _Placed, notes: list[Warning]
) -> ov.CompiledModel:
    """Compiles a placed model, and raises its optimal number of requests to what the placement needs.

    A device answers query_model without compiling, so it may refuse its part in the end (driver, memory, other models
    on it). Its nodes are then moved to the other devices, with a warning. No device is left out because of a wrong
    property, which the user has to correct.

    Args:
        compile_model: the original method of a Core.
        placed: the model and its placement.
        notes: gets the warning.

    Returns:
        The compiled model, with the attribute `HOMES` of `ov_hsdag.explaining.where`.

    Raises:
        RuntimeError: OpenVINO's first error, where no set of devices compiles the model.
    """

    def tried(attempt: _Placed) -> ov.CompiledModel:
        """Compiles the model once. Raises RuntimeError where OpenVINO does."""
        from ov_hsdag.explaining.where import HOMES, homes_of

        compiled = compile_model(attempt.model, attempt.device, attempt.config)
        requests.ask_for_requests(compiled, attempt.placement, attempt.config)
        setattr(compiled, HOMES, homes_of(attempt.model))
        return compiled

    try:
        return tried(placed)
    except RuntimeError as error:
        first = error
    devices = placed.placement.devices
    if any(_refuses_property(compile_model, name, placed.config) for name in placed.placement.used()):
        raise first
    fewer = [tuple(name for name in devices if name != lost) for lost in placed.placement.used()]
    for kept in dict.fromkeys([*fewer, *((name,) for name in devices)]):
        if not kept or len(kept) == len(devices):
            continue
        smaller = placed.on(kept)
        try:
            compiled = tried(smaller)
        except RuntimeError:
            continue
        lost = ", ".join(name for name in devices if name not in kept)
        text = (
            f"ov_hsdag: the placement does not compile with {lost}; the model runs on"
            f" {', '.join(smaller.placement.used())}: {one_line(first)}"
        )
        if all(_compiles_anything(compile_model, name, placed.config) for name in devices if name not in kept):
            text += (
                f"; placed on this machine, where {lost} is asked and tried, the rest of the model can use {lost}:"
                f" ov-hsdag place {shlex.quote(placed.path)} --device {placed.device}"
            )
        notes.append(PlacementNotFollowedWarning(text))
        return compiled
    raise first


def _refuses_property(
    compile_model: Callable[..., ov.CompiledModel], device: str, config: Mapping[str, Any] | None
) -> bool:
    """Whether a device refuses properties: it compiles a model of one operation without them, and not with them.

    Args:
        compile_model: the original method of a Core.
        device: name of the device.
        config: the properties; None for none, which no device refuses.
    """
    if not config or _compiles_anything(compile_model, device, config):
        return False
    return _compiles_anything(compile_model, device, None)


def _compiles_anything(
    compile_model: Callable[..., ov.CompiledModel], device: str, config: Mapping[str, Any] | None
) -> bool:
    """Whether a device compiles a model of one operation with these properties."""
    x = opset13.parameter([1, 1], ov.Type.f32)
    probe = ov.Model([opset13.relu(x)], [x], "ov_hsdag_probe")
    try:
        compile_model(probe, f"HETERO:{device}", config)
    except RuntimeError:
        return False
    return True


def _placed(
    core: ov.Core,
    model_or_path: object,
    weights: bytes | None,
    device: str,
    config: Mapping[str, Any] | None,
    notes: list[Warning],
    automatic: AutomaticLoad | None = None,
) -> _Placed | None:
    """Applies the placement of a model to a copy of it.

    Args:
        core: the Core of the call.
        model_or_path: the model, in any form that compile_model takes.
        weights: weights of a model in memory.
        device: HETERO's device string.
        config: properties of the call.
        notes: gets the warnings to issue afterwards.
        automatic: settings of an automatic load, which places a model that carries no placement for these devices;
            None for other loads, which do not place it.

    Returns:
        Arguments for compiling; None where there is no placement to follow.
    """
    model = _carrier(core, model_or_path, weights) if automatic is None else _private_copy(core, model_or_path, weights)
    if model is None:
        return None
    from ov_hsdag.devices import runtime_options
    from ov_hsdag.model.clean_up import fold_static_shapes
    from ov_hsdag.model.placement import Placement

    placement, loaded = Placement.of(model), None
    if automatic is not None and not _is_for(placement, automatic.request.devices):
        loaded = _placed_at_load(core, model, automatic, notes)
        if loaded is None:
            return None
        placement = loaded.placement
    if placement is None:
        return None
    _make_names_unique(model)
    if loaded is None:
        placement = _with_affinities_of_nodes(placement, model)
        if not _is_for_model(placement, model, notes):
            return None
    usable = _usable(core, _requested(core, device, config) or placement.devices, placement, notes)
    if not usable:
        return None
    supports = _support_query(core, model) if len(usable) > 1 else None
    placement, replaced = placement.mapped(usable, supports)
    notes += map(PlacementNotFollowedWarning, replaced)
    if len(placement.used()) > 1:
        fold_static_shapes(model)
    placement.apply(model)
    homes = _homes(model)
    if loaded is not None and not _was_followed(placement, homes):
        model = _normalized_copy(core, model_or_path, weights)
        placement.apply(model)
        homes = _homes(model)
    notes += _emptied_devices(placement, homes)
    device = f"HETERO:{','.join(usable)}"
    # The property that lists devices is dropped, as the device string has the list.
    rest = config and {key: value for key, value in config.items() if key != PRIORITIES}
    properties = runtime_options.compile_properties(core, model, device, rest) or rest
    path = (
        os.fsdecode(model_or_path)
        if isinstance(model_or_path, str | bytes | os.PathLike) and weights is None
        else "MODEL"
    )
    return _Placed(model, device, properties, placement, supports, path, loaded)


def _is_for(placement: Placement | None, devices: Sequence[str]) -> bool:
    """Whether all devices that a placement uses are among these; False without a placement."""
    return placement is not None and set(placement.used()) <= set(devices)


def _placed_at_load(
    core: ov.Core, model: ov.Model, automatic: AutomaticLoad, notes: list[Warning]
) -> LoadedPlacement | None:
    """Finds the placement of a model in the cache, or makes it.

    Args:
        core: the Core of the call.
        model: a copy of the call's model. A placement for other devices is removed from it.
        automatic: settings of the load.
        notes: gets the warnings to issue afterwards.

    Returns:
        The placement; None for a single device, and for a model without a placement whose nodes have affinities, which
        the user has set.
    """
    from ov_hsdag.model.affinities import affinities_of
    from ov_hsdag.model.placement import Placement
    from ov_hsdag.placing.first_load import placement_at_load

    for name in automatic.missing:
        notes.append(UserWarning(f"ov_hsdag: {name} is not available here and is left out"))
    if len(automatic.request.devices) < 2:
        return None
    if Placement.of(model) is not None:
        Placement.strip(model)
    elif affinities_of(model):
        return None
    loaded = placement_at_load(core, model, automatic.request)
    notes += [UserWarning(f"ov_hsdag: {note}") for note in loaded.notes]
    return loaded


def _affinities_at_load(core: ov.Core, model: ov.Model, automatic: AutomaticLoad) -> dict[str, str]:
    """Finds the device that an automatic load would give each node of a model.

    Args:
        core: the Core of the call.
        model: the model; it is not changed.
        automatic: settings of the load.

    Returns:
        Device by friendly name. Nodes that exist only in the normalized copy, which would be compiled, are left out.

    Raises:
        UserError: see `placement_at_load`.
        RunError: see `placement_at_load`.
    """
    from ov_hsdag.model.affinities import affinities_of

    placed = _placed(core, model, None, automatic.device, automatic.config, [], automatic)
    affinity = affinities_of(model if placed is None else placed.model)
    names = [node.get_friendly_name() for node in model.get_ordered_ops()]
    return {name: affinity[name] for name in names if name in affinity}


def _private_copy(core: ov.Core, model_or_path: object, weights: bytes | None) -> ov.Model:
    """Copies or reads the model of a call.

    Args:
        core: the Core of the call.
        model_or_path: the model, in any form that compile_model takes.
        weights: weights of a model that is given as the text of an IR; None for others.

    Raises:
        RuntimeError: the model cannot be read.
    """
    from openvino._pyopenvino import Model as NativeModel

    if isinstance(model_or_path, ov.Model | NativeModel):
        copy = model_or_path.clone()
        return copy if isinstance(copy, ov.Model) else ov.Model(copy)
    if weights is not None:
        text = model_or_path.encode() if isinstance(model_or_path, str) else model_or_path
        return core.read_model(text, weights)
    return core.read_model(os.fsdecode(model_or_path) if isinstance(model_or_path, bytes) else model_or_path)


def _carrier(core: ov.Core, model_or_path: object, weights: bytes | None) -> ov.Model | None:
    """Copies or reads the model of a call if it carries a placement; None if it carries none.

    For the arguments see `_private_copy`.
    """
    from openvino._pyopenvino import Model as NativeModel

    if isinstance(model_or_path, ov.Model | NativeModel):  # openvino.compile_model hands over the latter
        if not model_or_path.has_rt_info(["ov_hsdag"]):
            return None
        return _private_copy(core, model_or_path, weights)
    if weights is not None:  # in this case OpenVINO reads the argument as the text of an .xml
        text = model_or_path.encode() if isinstance(model_or_path, str) else model_or_path
        return _private_copy(core, text, weights) if isinstance(text, bytes) and has_entry(text) else None
    if isinstance(model_or_path, str | bytes | os.PathLike) and file_carries(model_or_path):
        return _private_copy(core, os.fsdecode(model_or_path), None)
    return None


def _make_names_unique(model: ov.Model) -> None:
    """Makes repeated names of nodes unique, in place, as placements and HETERO identify nodes by name."""
    names = [node.get_friendly_name() for node in model.get_ops()]
    if len(set(names)) < len(names):
        from ov_hsdag.model.normalize import unique_names

        unique_names(model)


def _with_affinities_of_nodes(placement: Placement, model: ov.Model) -> Placement:
    """Overrides a placement by the affinities of the model's nodes: these differ only where the user changed them."""
    from ov_hsdag.model.affinities import affinities_of

    affinity = affinities_of(model)
    devices = tuple(dict.fromkeys([*placement.devices, *affinity.values()]))
    return replace(placement, devices=devices, affinity={**placement.affinity, **affinity})


def _is_for_model(placement: Placement, model: ov.Model, notes: list[Warning]) -> bool:
    """Whether the placement has any node of this model.

    A warning goes to `notes` where the two have less than half of their nodes in common. The model may be a part of the
    placed one, or contain it, so the share is of the smaller of the two.
    """
    names = [node.get_friendly_name() for node in model.get_ops()]
    common = len(placement.affinity.keys() & names)
    if 2 * common < min(len(names), len(placement.affinity)):
        share = f"only {common} of the model's {len(names)}" if common else "none of the model's"
        rest = "the others follow these" if common else "HETERO decides"
        text = f"ov_hsdag: the placement knows {share} nodes, and {rest}: place the model again"
        notes.append(PlacementNotFollowedWarning(text))
    return common > 0


def _homes(model: ov.Model) -> dict[str, str]:
    """Lists the device of each node of a model with affinities, by friendly name; constants are left out."""
    return {
        node.get_friendly_name(): node.get_rt_info()["affinity"].astype(str)
        for node in model.get_ops()
        if node.get_type_name() != "Constant"
    }


def _emptied_devices(placement: Placement, homes: Mapping[str, str]) -> list[Warning]:
    """Checks that each device of a placement still has nodes in a model whose affinities were completed.

    Args:
        placement: the placement.
        homes: the device of each node of the model, see `_homes`.

    Returns:
        A warning that names the devices that lost all of their nodes because the model was changed after placing; []
        where there are none.
    """
    if len(placement.used()) < 2:
        return []
    had = {placement.affinity.get(name) for name in homes}
    lost = [name for name in placement.devices if name in had - set(homes.values())]
    text = (
        f"ov_hsdag: nothing runs on {', '.join(lost)}: shapes or nodes were changed after placing, and the model cannot"
        " be split there any more; place it as it is now"
    )
    return [PlacementNotFollowedWarning(text)] if lost else []


def _was_followed(placement: Placement, homes: Mapping[str, str]) -> bool:
    """Whether each node of a model whose affinities were completed has the placement's device.

    Nodes of which there are copies do not count, as each device may have one.

    Args:
        placement: the placement.
        homes: the device of each node of the model, see `_homes`.
    """
    from ov_hsdag.model.normalize import name_of_original

    copied = {original for name in (*homes, *placement.affinity) if (original := name_of_original(name)) != name}
    return all(name in copied or placement.affinity.get(name, home) == home for name, home in homes.items())


def _normalized_copy(core: ov.Core, model_or_path: object, weights: bytes | None) -> ov.Model:
    """Copies or reads the model of a call, and changes the copy as placing changed its own.

    Automatic loads apply a placement to the model as it was read, because normalizing that takes time. Some models have
    tensors, such as lengths, that tie nodes together as they were read, and do not once they are normalized.

    For the arguments see `_private_copy`.
    """
    from ov_hsdag.model.normalize import normalize
    from ov_hsdag.placing.first_load import name_as_kept

    model = _private_copy(core, model_or_path, weights)
    name_as_kept(model)
    _make_names_unique(model)
    normalize(model)
    return model


def _requested(core: ov.Core, device: str, config: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Finds the devices that the device string, the properties or the Core list for HETERO; () where none does."""
    listed = names_in(device.partition(":")[2]) or listed_devices(config)
    if not listed:
        with contextlib.suppress(Exception):  # not every release has this property
            listed = names_in(str(plain(core.get_property("HETERO", PRIORITIES))))
    return listed


def _usable(core: ov.Core, requested: Sequence[str], placement: Placement, notes: list[Warning]) -> tuple[str, ...]:
    """Selects the requested devices that the machine has.

    Args:
        core: the Core of the call.
        requested: names of devices.
        placement: the placement to follow.
        notes: gets a warning for each missing device that the placement does not use. `Placement.mapped` warns of those
            that it uses.
    """
    from ov_hsdag.devices.discovery import absent

    missing = absent(core, requested)
    usable = tuple(name for name in requested if name not in missing)
    for name in requested:
        if usable and name not in usable and name not in placement.used():
            notes.append(UserWarning(f"ov_hsdag: {name} is not available here and is left out"))
    return usable


def _support_query(core: ov.Core, model: ov.Model) -> Callable[[str, str], bool]:
    """Makes a function ``supports(node, device)``, which says whether the node of that name runs on the device.

    The function calls Core.query_model once per device, when it first needs the answer.
    """
    # Every device supports constants, inputs and outputs.
    kinds = {node.get_friendly_name(): node.get_type_name() for node in model.get_ops()}
    computing = {name for name, kind in kinds.items() if kind not in ("Constant", "Parameter", "Result")}

    @functools.cache
    def supported(device: str) -> frozenset[str]:
        """Names of the nodes that a device runs."""
        return frozenset(core.query_model(model, device))

    def supports(name: str, device: str) -> bool:
        """Whether the node `name` runs on a device."""
        return name not in computing or name in supported(device)

    return supports


def _without_affinities(model_or_path: object) -> object:
    """Removes affinities from a copy of a call's model, as HETERO refuses a partly placed model.

    A model without affinities, and one that is given as a file or text, is returned as it is.
    """
    from openvino._pyopenvino import Model as NativeModel

    from ov_hsdag.model.affinities import remove_affinities

    if not isinstance(model_or_path, ov.Model | NativeModel):
        return model_or_path
    if not any("affinity" in node.get_rt_info() for node in model_or_path.get_ops()):
        return model_or_path
    copy = model_or_path.clone()
    remove_affinities(copy)
    return copy


def _completed(call: _Call, notes: list[Warning]) -> ov.Model | None:
    """Copies a partly placed model, and gives the remaining nodes of the copy the devices of their neighbours.

    Programs make such models of parts of a placed one. HETERO refuses them.

    Args:
        call: the call for HETERO.
        notes: gets a warning.

    Returns:
        The copy; None for a model that is not partly placed, and for one that is given as a file or text.
    """
    from openvino._pyopenvino import Model as NativeModel

    from ov_hsdag.model.affinities import affinities_of
    from ov_hsdag.model.placement import Placement

    if not isinstance(call.model, ov.Model | NativeModel):
        return None
    affinity, nodes = affinities_of(call.model), len(call.model.get_ops())
    if not 0 < len(affinity) < nodes:
        return None
    copy = _private_copy(call.core, call.model, None)
    _make_names_unique(copy)
    affinity = affinities_of(copy)
    requested = _requested(call.core, call.device, call.config)
    Placement(tuple(dict.fromkeys([*requested, *affinity.values()])), affinity).apply(copy)
    text = (
        f"ov_hsdag: {nodes - len(affinity)} of the model's {nodes} nodes have no affinity, and follow their neighbours:"
        " place the model as it is now"
    )
    notes.append(PlacementNotFollowedWarning(text))
    return copy


def _properties_without_placement(call: _Call) -> Mapping[str, Any] | None:
    """Completes the properties of a call by those that HETERO would drop, for compiling without a placement."""
    with contextlib.suppress(Exception):  # compiling afterwards raises OpenVINO's error for a model that is wrong
        model = _carrier(call.core, call.model, call.weights)
        if model is not None:
            from ov_hsdag.devices import runtime_options

            return runtime_options.compile_properties(call.core, model, call.device, call.config) or call.config
    return _with_limits(call.device, call.config)


def _with_limits(device: str, config: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Completes properties by those of virtual devices, which HETERO would drop in a split model."""
    if not has_virtual_devices():
        return config
    from ov_hsdag.devices import virtual

    return virtual.compile_properties(device, config)
