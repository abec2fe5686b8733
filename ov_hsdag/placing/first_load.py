"""Places a model without a placement when it is first loaded, and keeps the placement for later loads.

``core.compile_model(model, "HSDAG:GPU,CPU")`` calls `placement_at_load`. Unless the request asks for measuring, it
chooses by prediction, imports neither torch nor SciPy, and starts no process. A kept placement is an entry of the
placement cache (`ov_hsdag.placing.placement_cache`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ov_hsdag.costs.stored import identity
from ov_hsdag.devices import discovery
from ov_hsdag.devices.memory import parse_memory
from ov_hsdag.model.fused_names import affinity_of_fused
from ov_hsdag.model.names import name_generated
from ov_hsdag.model.nodes import Nodes
from ov_hsdag.model.placement import Placement
from ov_hsdag.model.shapes import is_unbounded
from ov_hsdag.placing.placement_cache import CachedModel, CacheEntry, PlacementCache, cache_key, model_digest
from ov_hsdag.utils.errors import UserError, one_line
from ov_hsdag.utils.lazy import ov
from ov_hsdag.utils.reading import file_digest

MORE_MEMORY = 1.25
"""Factor by which a device's free memory must have grown before a placement that memory limited is made again.

Free memory differs a little from load to load; without a margin, such a model would often be placed again."""

_DRIVER_PROPERTIES = ("GPU_DRIVER_VERSION", "NPU_DRIVER_VERSION", "DEVICE_UUID")
"""Properties that distinguish drivers and cards, where a plugin has them; they are part of the cache key."""


@dataclass(frozen=True)
class LoadRequest:
    """A program's request for a placement, made by the device name that it loads a model with.

    Attributes:
        devices: names of the devices, in HETERO's order; all are on this machine.
        objective: "latency" or "throughput".
        memory: memory limits as texts of the command line ("GPU=2GiB"); "" for what is free on each device.
        profile: path of a file of device profiles; "" for the built-in ones.
        measure: whether candidates are measured on the devices and the choice is made by that.
        cache_dir: the CACHE_DIR property of the load; "" where it has none.
        source: absolute path of the file that the model was read from; None where there is none.
    """

    devices: tuple[str, ...]
    objective: str = "latency"
    memory: str = ""
    profile: str = ""
    measure: bool = False
    cache_dir: str = ""
    source: str | None = None

    @classmethod
    def of_entry(cls, entry: CacheEntry) -> LoadRequest:
        """Makes the request that led to a cache entry; whether it asked for measuring is not recorded there."""
        return cls(
            devices=entry.devices,
            objective=entry.placement.objective,
            memory=entry.options.get("memory", ""),
            profile=entry.options.get("profile", ""),
            source=entry.model.source,
        )

    @property
    def options(self) -> dict[str, str]:
        """The profile and the memory limits of the request where it has them, as a cache entry stores them."""
        chosen = {"profile": self.profile, "memory": self.memory}
        return {name: text for name, text in chosen.items() if text}


@dataclass(frozen=True)
class LoadedPlacement:
    """The placement that a load follows, and where it came from.

    Attributes:
        placement: device of each node.
        key: name of its entry in the cache.
        file: the entry's file; None where placements are not kept.
        reused: whether an earlier load made it.
        seconds: time that finding or making it took.
        notes: problems that did not prevent a placement, one line each.
    """

    placement: Placement
    key: str
    file: Path | None
    reused: bool
    seconds: float
    notes: tuple[str, ...] = ()


def placing_devices(model: ov.Model, devices: Sequence[str]) -> tuple[str, ...]:
    """Selects the devices that a model can be placed on.

    Args:
        model: the model.
        devices: names of the devices.

    Returns:
        All devices but NPUs where an input has an open size, which NPUs refuse; all where there are only NPUs.
    """
    if not is_unbounded(model):
        return tuple(devices)
    return tuple(name for name in devices if not name.startswith("NPU")) or tuple(devices)


def placement_at_load(core: ov.Core, model: ov.Model, request: LoadRequest) -> LoadedPlacement:
    """Finds the placement of a model in the cache, else makes one and keeps it there.

    Args:
        core: Core of the devices.
        model: a copy of the model that the program loads. Nodes without a name get one, as names that OpenVINO
            generates differ from process to process.
        request: the devices, the objective and what else was asked for.

    Returns:
        The placement.

    Raises:
        UserError: an argument of the request is wrong.
        RunError: the model does not fit into the memory that the devices have free.
        Exception: anything else that fails while placing.
    """
    begin = time.perf_counter()
    limits = limits_of(core, request)
    key = key_of(core, model, request)
    cache = PlacementCache.default(request.cache_dir)
    notes: list[str] = []

    def reused() -> LoadedPlacement | None:
        """The placement in the cache; None where there is none that suits the request."""
        entry = _load_entry(cache, key, notes)
        if (
            cache is None
            or entry is None
            or not _still_suits(entry, limits)
            or (request.measure and not _was_measured(entry))
        ):
            return None
        seconds = time.perf_counter() - begin
        return LoadedPlacement(entry.placement, key, cache.path(key), True, seconds, tuple(notes))

    if cache is None:
        placement = _placed(core, model, request, limits)
        return LoadedPlacement(placement, key, None, False, time.perf_counter() - begin)
    if loaded := reused():
        return loaded
    with cache.locked(key):
        if loaded := reused():  # another thread or process has placed it meanwhile
            return loaded
        placement = _placed(core, model, request, limits)
        seconds = time.perf_counter() - begin
        entry = CacheEntry(
            key, request.devices, placement, _describe_model(model, request), limits, request.options, seconds
        )
        try:
            cache.save(entry)
        except UserError as error:
            notes.append(f"the placement could not be kept: {one_line(error)}")
            return LoadedPlacement(placement, key, None, False, seconds, tuple(notes))
    return LoadedPlacement(placement, key, cache.path(key), False, seconds, tuple(notes))


def key_of(core: ov.Core, model: ov.Model, request: LoadRequest) -> str:
    """Computes the name of the cache entry for a model and a request.

    Args:
        core: Core of the devices, whose drivers and memory are part of the key.
        model: the model; nodes without a name get one, in place (see `name_generated`).
        request: the devices, the objective and what else was asked for.

    Returns:
        The key, see `cache_key`.
    """
    name_as_kept(model)
    return cache_key(model_digest(Nodes(model)), *_key_parts(core, request))


def name_as_kept(model: ov.Model) -> None:
    """Gives nodes without a name the names that they have in kept placements, in place.

    Args:
        model: a copy of the model that the program loads. An IR has its nodes' names in the file.
    """
    if not model.has_rt_info(["version"]):
        name_generated(model, of_copy=True)


def place_entry(core: ov.Core, model: ov.Model, entry: CacheEntry, *, measure: bool, **more: Any) -> Placement:
    """Places the model of a cache entry again, under the conditions of the entry.

    Args:
        core: Core of the devices.
        model: the entry's model; it is not changed.
        entry: supplies devices, objective, limits and profile.
        measure: whether candidates are measured on the devices to choose among them.
        more: further options of `ov_hsdag.place`, by name.

    Returns:
        The new placement.

    Raises:
        UserError: see `ov_hsdag.place`.
        RunError: see `ov_hsdag.place`.
    """
    return _place_copy(
        core,
        model,
        entry.placement.devices,
        objective=entry.placement.objective,
        memory=entry.limits or None,
        profile=entry.options.get("profile"),
        measure=measure,
        **more,
    )


def _place_copy(core: ov.Core, model: ov.Model, devices: Sequence[str], **options: Any) -> Placement:
    """Places a copy of a model; nodes that were fused in the copy get devices as well.

    Loads apply the placement to the model as it was read: transforming that again would take longer than all else that
    a load does.

    Args:
        core: Core of the devices.
        model: the model; it is not changed.
        devices: names of the devices to place on.
        options: further options of `ov_hsdag.place`, by name.

    Returns:
        The placement, see `with_fused_nodes`.

    Raises:
        UserError: see `ov_hsdag.place`.
        RunError: see `ov_hsdag.place`.
    """
    from ov_hsdag.placing.place import place

    transformed = model.clone()
    return with_fused_nodes(place(transformed, devices, core=core, **options), transformed, model)


def with_fused_nodes(placement: Placement, transformed: ov.Model, model: ov.Model) -> Placement:
    """Adds devices for the nodes of a model that were fused in the transformed copy of it that was placed.

    Args:
        placement: the placement of `transformed`.
        transformed: the copy of `model` that was placed, and transformed by that.
        model: the model as programs load it.

    Returns:
        The placement with a device for the nodes of both models. One that uses a single device is returned as it is.
    """
    if len(placement.used()) < 2:
        return placement
    names = {node.get_friendly_name() for node in model.get_ops()}
    fused = affinity_of_fused(transformed, placement.affinity, names)
    return replace(placement, affinity={**placement.affinity, **fused})


def placement_without_cache(core: ov.Core, model: ov.Model, request: LoadRequest) -> Placement:
    """Makes the placement of `placement_at_load` without using the cache.

    Args:
        core: Core of the devices.
        model: the model; it is not changed.
        request: the devices, the objective and what else was asked for.

    Returns:
        The placement.

    Raises:
        UserError: see `ov_hsdag.place`.
        RunError: see `ov_hsdag.place`.
    """
    return _placed(core, model, request, limits_of(core, request))


def _placed(core: ov.Core, model: ov.Model, request: LoadRequest, limits: Mapping[str, int]) -> Placement:
    """Makes a new placement of a copy of the model, on the devices that it can be placed on.

    Args:
        core: Core of the devices.
        model: the model; it is not changed.
        request: devices, objective, profile, and whether to measure.
        limits: memory limits by device, bytes.
    """
    return _place_copy(
        core,
        model,
        placing_devices(model, request.devices),
        objective=request.objective,
        memory=limits or None,
        profile=request.profile or None,
        measure=request.measure,
    )


def limits_of(core: ov.Core, request: LoadRequest) -> dict[str, int]:
    """Finds the memory limits by device, bytes: those of the request, else most of what is free now.

    A device that reports no free memory, and that the request does not limit, is left out.
    """
    chosen = parse_memory(request.memory, request.devices) if request.memory else {}
    free = {name: discovery.usable_bytes(core, name, most=0) for name in request.devices}
    return {**{name: bytes_ for name, bytes_ in free.items() if bytes_ is not None}, **chosen}


def _key_parts(core: ov.Core, request: LoadRequest) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Collects everything except the model that a placement depends on, for `cache_key`.

    Returns:
        A record of each device (name, identity, driver, memory), and the settings (objective, memory limits, digest of
        the profile's file).
    """
    devices = []
    for name in request.devices:
        driver = {key: discovery.property_text(core, name, key) for key in _DRIVER_PROPERTIES}
        memory = discovery.memory_bytes(core, name)
        devices.append({"name": name, **identity(core, name), "driver": driver, "memory": memory})
    settings = {
        "objective": request.objective,
        "memory": request.memory,
        "profile": file_digest(request.profile) if request.profile else "",
    }
    return devices, settings


def _load_entry(cache: PlacementCache | None, key: str, notes: list[str]) -> CacheEntry | None:
    """Reads the cache entry of a key.

    Args:
        cache: the cache; None where placements are not kept.
        key: name of the entry.
        notes: its contents are replaced by a line for users where the entry is damaged.

    Returns:
        The entry; None where there is none, or it is damaged.
    """
    if cache is None:
        return None
    try:
        return cache.load(key)
    except ValueError as error:
        notes[:] = [f"{cache.path(key)} is damaged ({one_line(error)}); the model was placed again"]
        return None


def _was_measured(entry: CacheEntry) -> bool:
    """Whether the placement of an entry was chosen by measuring."""
    return entry.placement.measured is not None


def _still_suits(entry: CacheEntry, limits: Mapping[str, int]) -> bool:
    """Whether a kept placement still suits the devices' memory.

    It must fit into the present limits. Where a limit was too small for the whole model, that limit must not have grown
    by more than `MORE_MEMORY` since, as a better placement may be possible now.

    Args:
        entry: the kept placement, with the limits that it was made for.
        limits: memory limits by device now, bytes.
    """
    needed: Mapping[str, int] = (entry.placement.predicted or {}).get("memory_bytes") or {}
    if any(bytes_ > limits.get(name, bytes_) for name, bytes_ in needed.items()):
        return False
    whole = sum(needed.values())
    return not any(
        before < whole and limits.get(name, before) > MORE_MEMORY * before for name, before in entry.limits.items()
    )


def _describe_model(model: ov.Model, request: LoadRequest) -> CachedModel:
    """Describes the model of a request so that it can be read and placed again later."""
    shapes = {next(iter(sorted(port.get_names())), str(index)): str(port.get_partial_shape())
              for index, port in enumerate(model.inputs)}  # fmt: skip
    source = None if request.source is None else str(Path(request.source).absolute())
    return CachedModel(model.get_friendly_name(), len(model.get_ops()), source, shapes)
