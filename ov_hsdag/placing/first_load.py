"""The placement of a model that nobody has placed, made when it is first loaded and kept for the loads that follow.

`placement_at_load` is what ``core.compile_model(model, "HSDAG:GPU,CPU")`` asks for. It chooses by prediction unless
the request says otherwise, imports neither torch nor SciPy, and starts no process.
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
"""Factor by which a device's free memory has to have grown before a placement that memory limited is made again."""

_DRIVER_PROPERTIES = ("GPU_DRIVER_VERSION", "NPU_DRIVER_VERSION", "DEVICE_UUID")
"""Properties of devices that tell one driver or one card from another, where a plugin has them."""


@dataclass(frozen=True)
class LoadRequest:
    """How a program asks for a placement where it names the devices.

    Attributes:
        devices: names of the devices, in HETERO's order; all are on this machine.
        objective: "latency" or "throughput".
        memory: limits as `place` takes them ("GPU=2GiB"); "" for what is free on each device.
        profile: path of a file of device profiles; "" for the built-in ones.
        measure: measure candidates on the devices, and choose by that.
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
        """The request that a kept placement was made for."""
        return cls(
            devices=entry.devices,
            objective=entry.placement.objective,
            memory=entry.options.get("memory", ""),
            profile=entry.options.get("profile", ""),
            source=entry.model.source,
        )

    @property
    def options(self) -> dict[str, str]:
        """The arguments of placing beside devices, objective and memory, as a cache entry keeps them."""
        chosen = {"profile": self.profile, "memory": self.memory}
        return {name: text for name, text in chosen.items() if text}


@dataclass(frozen=True)
class LoadedPlacement:
    """What a load follows.

    Attributes:
        placement: device of each node.
        key: name of its entry in the cache.
        file: the entry's file; None where placements are not kept.
        reused: whether an earlier load made it.
        seconds: time that finding or making it took.
        notes: what went wrong on the way, a line each, though there is a placement.
    """

    placement: Placement
    key: str
    file: Path | None
    reused: bool
    seconds: float
    notes: tuple[str, ...] = ()


def placing_devices(model: ov.Model, devices: Sequence[str]) -> tuple[str, ...]:
    """The devices that a model can be placed on: without NPUs, which take no open sizes, where it has such inputs."""
    if not is_unbounded(model):
        return tuple(devices)
    return tuple(name for name in devices if not name.startswith("NPU")) or tuple(devices)


def placement_at_load(core: ov.Core, model: ov.Model, request: LoadRequest) -> LoadedPlacement:
    """The placement of a model that carries none: from the cache, else made now and kept.

    Args:
        core: has the devices.
        model: a copy of what the program loads; nodes that nobody named get names, as their generated ones differ from
            process to process.
        request: where and for what.

    Raises:
        UserError: an argument of the request is wrong.
        RunError: the model does not fit into what the devices have free.
        Exception: whatever else fails while placing.
    """
    begin = time.perf_counter()
    limits = limits_of(core, request)
    key = key_of(core, model, request)
    cache = PlacementCache.default(request.cache_dir)
    notes: list[str] = []

    def reused() -> LoadedPlacement | None:
        entry = _kept(cache, key, notes)
        if cache is None or entry is None or not _fits(entry, limits) or (request.measure and not _measured(entry)):
            return None
        seconds = time.perf_counter() - begin
        return LoadedPlacement(entry.placement, key, cache.path(key), True, seconds, tuple(notes))

    if cache is None:
        placement = _placed(core, model, request, limits)
        return LoadedPlacement(placement, key, None, False, time.perf_counter() - begin)
    if found := reused():
        return found
    with cache.locked(key):
        if found := reused():  # another thread or process has placed it meanwhile
            return found
        placement = _placed(core, model, request, limits)
        seconds = time.perf_counter() - begin
        entry = CacheEntry(
            key, request.devices, placement, _described(model, request), limits, request.options, seconds
        )
        try:
            cache.save(entry)
        except UserError as error:
            notes.append(f"the placement could not be kept: {one_line(error)}")
            return LoadedPlacement(placement, key, None, False, seconds, tuple(notes))
    return LoadedPlacement(placement, key, cache.path(key), False, seconds, tuple(notes))


def key_of(core: ov.Core, model: ov.Model, request: LoadRequest) -> str:
    """Name of the cache entry for a model and a request; nodes that nobody named get names (see `name_generated`)."""
    if not model.has_rt_info(["version"]):  # an IR has its nodes' names in the file
        name_generated(model, of_copy=True)
    return cache_key(model_digest(Nodes(model)), *_circumstances(core, request))


def place_entry(core: ov.Core, model: ov.Model, entry: CacheEntry, *, measure: bool, **more: Any) -> Placement:
    """Places the model of a cache entry again, under the conditions of the entry.

    Args:
        core: has the devices.
        model: the entry's model; it is not changed.
        entry: names devices, objective, limits and further options.
        measure: measure candidates on the devices, and choose by that.
        more: options of `ov_hsdag.place` by name.

    Raises:
        UserError, RunError: see `ov_hsdag.place`.
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
    """The placement of a copy of a model, with the devices of nodes that were fused in the copy as well.

    Loads apply it to the model as it was read: transforming that again would take longer than all else that they do.

    Args:
        core: has the devices.
        model: it is not changed.
        devices: to place on.
        options: further ones of `ov_hsdag.place` by name.

    Raises:
        UserError, RunError: see `ov_hsdag.place`.
    """
    from ov_hsdag.placing.place import place

    transformed = model.clone()
    return with_fused_nodes(place(transformed, devices, core=core, **options), transformed, model)


def with_fused_nodes(placement: Placement, transformed: ov.Model, model: ov.Model) -> Placement:
    """The placement with devices for nodes of the model that are fused in its transformed copy, too.

    Args:
        placement: of `transformed`.
        transformed: the copy that was placed, which placing has transformed.
        model: as loads get it.

    Returns:
        The placement that `model` can be given.
    """
    if len(placement.used()) < 2:
        return placement
    names = {node.get_friendly_name() for node in model.get_ops()}
    fused = affinity_of_fused(transformed, placement.affinity, names)
    return replace(placement, affinity={**placement.affinity, **fused})


def placement_without_cache(core: ov.Core, model: ov.Model, request: LoadRequest) -> Placement:
    """As `placement_at_load`, of a model that is not changed, and neither kept nor looked for. Raises as `place`."""
    return _placed(core, model, request, limits_of(core, request))


def _placed(core: ov.Core, model: ov.Model, request: LoadRequest, limits: Mapping[str, int]) -> Placement:
    """A new placement. The seconds of its phases and what reports are drawn from do not outlive this call."""
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
    """Bytes that the model may have on each device: those that the request names, else most of what is free now."""
    chosen = parse_memory(request.memory, request.devices) if request.memory else {}
    free = {name: discovery.usable_bytes(core, name, most=0) for name in request.devices}
    return {**{name: bytes_ for name, bytes_ in free.items() if bytes_ is not None}, **chosen}


def _circumstances(core: ov.Core, request: LoadRequest) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What a placement depends on beside the model: of each device, and for all of them."""
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


def _kept(cache: PlacementCache | None, key: str, notes: list[str]) -> CacheEntry | None:
    """The entry of a key, None where there is none. `notes` gets a line where it is damaged."""
    if cache is None:
        return None
    try:
        return cache.load(key)
    except ValueError as error:
        notes[:] = [f"{cache.path(key)} is damaged ({one_line(error)}); the model was placed again"]
        return None


def _measured(entry: CacheEntry) -> bool:
    return entry.placement.measured is not None


def _fits(entry: CacheEntry, limits: Mapping[str, int]) -> bool:
    """Whether a kept placement fits into what the devices have now, and memory did not limit it more than it would now.

    Args:
        entry: the kept placement, with the limits that it was made for.
        limits: bytes that the model may have on each device now.
    """
    needed: Mapping[str, int] = (entry.placement.predicted or {}).get("memory_bytes") or {}
    if any(bytes_ > limits.get(name, bytes_) for name, bytes_ in needed.items()):
        return False
    whole = sum(needed.values())
    return not any(
        before < whole and limits.get(name, before) > MORE_MEMORY * before for name, before in entry.limits.items()
    )


def _described(model: ov.Model, request: LoadRequest) -> CachedModel:
    shapes = {next(iter(sorted(port.get_names())), str(index)): str(port.get_partial_shape())
              for index, port in enumerate(model.inputs)}  # fmt: skip
    source = None if request.source is None else str(Path(request.source).absolute())
    return CachedModel(model.get_friendly_name(), len(model.get_ops()), source, shapes)
