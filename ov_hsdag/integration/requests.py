"""Raises the optimal number of infer requests of a compiled model that follows a placement for throughput.

HETERO reports 1 for devices with one stream each. Programs that use this number (AsyncInferQueue without a number,
benchmark_app) would keep one device busy at a time. No property of OpenVINO changes it, so `get_property` of the
compiled model returns the number that the placement needs, and AsyncInferQueue, which asks in C++, gets it as an
argument. The blob of an exported model has the number as an attribute of its header, which OpenVINO ignores.

In Python the number is an attribute (`_REQUESTS`) of the compiled model and of the objects that wrap the same model.
Models that follow no placement for throughput lack it, and nothing changes for these.

The module is imported while openvino itself is being imported, so it imports neither openvino nor large packages at the
top.
"""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ov_hsdag._env import disabled
from ov_hsdag.devices.property_values import device_properties, text
from ov_hsdag.devices.requests import requests_in_flight
from ov_hsdag.utils.lazy import ov

if TYPE_CHECKING:
    from ov_hsdag.model.placement import Placement

OPTIMAL_NUMBER = "OPTIMAL_NUMBER_OF_INFER_REQUESTS"

_REQUESTS = "_ov_hsdag_requests"
"""Attribute of compiled models and infer requests: number of requests that the placement needs."""

_HEADER = b"<hetero "
_HEADER_BYTES = 256
"""Bytes at the begin of a blob that hold its XML declaration and the first element with our attribute."""

_ATTRIBUTE = re.compile(rb'<hetero ov_hsdag_requests="([1-9][0-9]{0,2})" ')


def patch(module: ModuleType) -> None:
    """Wraps the methods of openvino._ov_api that make, export, import and query compiled models. Call it once."""
    compiled, core, request = module.CompiledModel, module.Core, module.InferRequest
    compiled.__init__ = _wrap_compiled_init(compiled.__init__)
    compiled.get_property = _wrap_get_property(compiled.get_property)
    compiled.export_model = _wrap_export_model(compiled.export_model)
    compiled.create_infer_request = _wrap_handing_on(compiled.create_infer_request)
    request.get_compiled_model = _wrap_handing_on(request.get_compiled_model)
    core.import_model = _wrap_import_model(core.import_model)
    module.AsyncInferQueue.__init__ = _wrap_queue_init(module.AsyncInferQueue.__init__)


def _wrap_compiled_init(original: Callable[..., None]) -> Callable[..., None]:
    """Wraps ``CompiledModel.__init__``, which wraps another object of the same model: the number is copied."""

    @functools.wraps(original)
    def __init__(self: ov.CompiledModel, other: Any, *args: Any, **kwargs: Any) -> None:
        original(self, other, *args, **kwargs)
        _hand_on(other, self)

    return __init__


def _wrap_handing_on(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a method that makes a request from a compiled model, or returns a request's compiled model."""

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(self, *args, **kwargs)
        _hand_on(self, made)
        return made

    return method


def _hand_on(source: object, target: object) -> None:
    """Copies the number of requests, if there is one, from one object to another of the same compiled model."""
    if wanted := getattr(source, _REQUESTS, 0):
        setattr(target, _REQUESTS, wanted)


def _wrap_export_model(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps ``CompiledModel.export_model``, so that the header of the blob has the number of requests."""

    @functools.wraps(original)
    def export_model(self: ov.CompiledModel, *args: Any, **kwargs: Any) -> Any:
        wanted = getattr(self, _REQUESTS, 0)
        stream = next(iter((*args, *kwargs.values())), None)
        if not wanted or not isinstance(stream, io.BytesIO | None):
            return original(self, *args, **kwargs)
        made = original(self)
        blob = made.getbuffer() if isinstance(made, io.BytesIO) else memoryview(made)
        target = io.BytesIO() if stream is None else stream
        at = bytes(blob[:_HEADER_BYTES]).find(_HEADER) + len(_HEADER)
        if at >= len(_HEADER):
            target.write(blob[:at])
            target.write(b'ov_hsdag_requests="%d" ' % wanted)
            target.write(blob[at:])
        else:
            target.write(blob)
        target.seek(0)
        return target if stream is None else None

    return export_model


def _wrap_import_model(original: Callable[..., ov.CompiledModel]) -> Callable[..., ov.CompiledModel]:
    """Wraps ``Core.import_model``, so that the compiled model gets the number in the header of the blob."""

    @functools.wraps(original)
    def import_model(self: ov.Core, *args: Any, **kwargs: Any) -> ov.CompiledModel:
        wanted = 0 if disabled() else _exported_requests(next(iter((*args, *kwargs.values())), None))
        compiled = original(self, *args, **kwargs)
        if wanted:
            config = kwargs.get("config", args[2] if len(args) > 2 else None)
            _set_requests(compiled, wanted, config)
        return compiled

    return import_model


def _exported_requests(blob: Any) -> int:
    """Reads the number of requests from the header of a blob; 0 where it has none.

    Args:
        blob: the blob, in any form that import_model takes. The position of a stream does not change.
    """
    if isinstance(blob, io.BytesIO):
        at = blob.tell()
        head = blob.getbuffer()[at : at + _HEADER_BYTES].tobytes()
    elif isinstance(blob, bytes):
        head = blob[:_HEADER_BYTES]
    elif type(blob).__name__ == "Tensor" and blob.element_type.size == 1:
        head = blob.data.reshape(-1)[:_HEADER_BYTES].tobytes()
    else:
        return 0
    found = _ATTRIBUTE.search(head)
    return int(found[1]) if found else 0


def _wrap_get_property(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps ``CompiledModel.get_property``, so that the optimal number of requests is at least the needed one."""

    @functools.wraps(original)
    def get_property(self: ov.CompiledModel, *args: Any, **kwargs: Any) -> Any:
        value = original(self, *args, **kwargs)
        wanted = getattr(self, _REQUESTS, 0)
        return max(value, wanted) if wanted and OPTIMAL_NUMBER in (*args, *kwargs.values()) else value

    return get_property


def _wrap_queue_init(original: Callable[..., None]) -> Callable[..., None]:
    """Wraps ``AsyncInferQueue.__init__``, so that a queue without a number of requests gets the needed one."""

    @functools.wraps(original)
    def __init__(self: ov.AsyncInferQueue, model: ov.CompiledModel, jobs: int = 0) -> None:
        original(self, model, jobs or getattr(model, _REQUESTS, 0))

    return __init__


def ask_for_requests(compiled: ov.CompiledModel, placement: Placement, config: Mapping[str, Any] | None) -> None:
    """Raises the optimal number of requests of a model compiled for HETERO to what its placement needs.

    Nothing changes for placements for latency, where one device runs all of the model, where AUTO or MULTI compiled it
    (they give HETERO one request at a time), or where `config` has a latency hint.

    Args:
        compiled: the compiled model.
        placement: the placement that it follows.
        config: properties of the call; PERFORMANCE_HINT_NUM_REQUESTS limits the number.
    """
    devices = compiled.get_property("EXECUTION_DEVICES")
    if placement.objective != "throughput" or len(devices) < 2 or "HETERO" in devices:
        return
    reported = int(compiled.get_property(OPTIMAL_NUMBER))
    submodels = int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS"))
    # HETERO's count is too low, even negative, once its Core has compiled an unplaced model with unused inputs.
    submodels = max(submodels if submodels < 1 << 31 else 0, _known_submodels(placement))
    _set_requests(compiled, requests_in_flight(reported, len(devices), submodels), config)


def _set_requests(compiled: ov.CompiledModel, wanted: int, config: Mapping[str, Any] | None) -> None:
    """Sets the number of requests of a compiled model, if OpenVINO's own number is smaller.

    Args:
        compiled: the compiled model.
        wanted: number of requests that its placement needs.
        config: properties of the call. A latency hint forbids more requests, PERFORMANCE_HINT_NUM_REQUESTS limits them.
    """
    if "LATENCY" in _hints(config, "PERFORMANCE_HINT"):
        return
    limits = [int(limit) for limit in _hints(config, "PERFORMANCE_HINT_NUM_REQUESTS") if limit.isdecimal()]
    wanted = min([wanted, *(limit for limit in limits if limit > 0)])
    if wanted > int(compiled.get_property(OPTIMAL_NUMBER)):
        setattr(compiled, _REQUESTS, wanted)


def _hints(config: Mapping[str, Any] | None, key: str) -> set[str]:
    """Values of a property as texts, both those for all devices and those for single ones."""
    return {text(properties, key) for properties in (config, *(device_properties(config) or {}).values())}


def _known_submodels(placement: Placement) -> int:
    """The number of submodels of a placement, as measured or else as predicted; 0 where it is not known."""
    figures = (placement.measured or {}).get(placement.chosen) or placement.predicted or {}
    return int(figures.get("submodels") or 0)


def advice(placement: Placement) -> str | None:
    """Writes a line about the number of requests that a split for throughput needs; None for any other placement."""
    devices = len(placement.used())
    if placement.objective != "throughput" or devices < 2:
        return None
    number = requests_in_flight(1, devices, _known_submodels(placement) or 1)
    return (
        f"requests: keep {number} in flight (Python's AsyncInferQueue and benchmark_app do by default;"
        f" C++: ov_hsdag::requests_in_flight, or benchmark_app -nireq {number})"
    )
