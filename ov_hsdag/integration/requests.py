"""How many requests a compiled model asks for where it follows a placement for throughput.

HETERO's own number is 1 for devices with one stream each, and programs that take it (AsyncInferQueue without a number,
benchmark_app) would run one device at a time. No property of OpenVINO raises it, so the compiled model says what is
needed in its place, and AsyncInferQueue, which asks in C++, gets it as an argument.

Imported while openvino itself is being imported: nothing of weight at the top, and no openvino.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ov_hsdag.devices.requests import requests_in_flight
from ov_hsdag.utils.lazy import ov

if TYPE_CHECKING:
    from ov_hsdag.model.placement import Placement

OPTIMAL_NUMBER = "OPTIMAL_NUMBER_OF_INFER_REQUESTS"

_REQUESTS = "_ov_hsdag_requests"


def patch(module: ModuleType) -> None:
    """Wrap ``CompiledModel`` and ``AsyncInferQueue`` of the module openvino._ov_api. To be called once."""
    module.CompiledModel.get_property = _wrap_get_property(module.CompiledModel.get_property)
    module.AsyncInferQueue.__init__ = _wrap_queue_init(module.AsyncInferQueue.__init__)


def _wrap_get_property(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def get_property(self: ov.CompiledModel, *args: Any, **kwargs: Any) -> Any:
        value = original(self, *args, **kwargs)
        wanted = getattr(self, _REQUESTS, 0)
        return max(value, wanted) if wanted and OPTIMAL_NUMBER in (*args, *kwargs.values()) else value

    return get_property


def _wrap_queue_init(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self: ov.AsyncInferQueue, model: ov.CompiledModel, jobs: int = 0) -> None:
        original(self, model, jobs or getattr(model, _REQUESTS, 0))

    return __init__


def ask_for_requests(compiled: ov.CompiledModel, placement: Placement, config: Mapping[str, Any] | None) -> None:
    """Let a model that is compiled for HETERO ask for the requests that its placement for throughput needs.

    Left alone where one device runs all of it. Of the call's properties a latency hint leaves HETERO's number, and
    PERFORMANCE_HINT_NUM_REQUESTS limits ours.
    """
    if placement.objective != "throughput" or "LATENCY" in _hints(config, "PERFORMANCE_HINT"):
        return
    reported = int(compiled.get_property(OPTIMAL_NUMBER))
    devices = len(compiled.get_property("EXECUTION_DEVICES"))
    submodels = int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS"))
    # A Core that has compiled unplaced models with unused inputs counts too few from then on, below 0 as well.
    submodels = max(submodels if submodels < 1 << 31 else 0, _known_submodels(placement) if devices > 1 else 0)
    wanted = requests_in_flight(reported, devices, submodels)
    limits = [int(limit) for limit in _hints(config, "PERFORMANCE_HINT_NUM_REQUESTS") if limit.isdecimal()]
    wanted = min([wanted, *(limit for limit in limits if limit > 0)])
    if wanted > reported:
        setattr(compiled, _REQUESTS, wanted)


def _hints(config: Mapping[str, Any] | None, key: str) -> set[str]:
    """Values of a property, for all devices or for one, as OpenVINO writes them."""
    from ov_hsdag.devices.virtual import device_properties

    given = config or {}
    every = (given, *(device_properties(given.get("DEVICE_PROPERTIES")) or {}).values())
    values = [properties[key] for properties in every if key in properties]
    plain = [value.value if type(value).__name__ == "OVAny" else value for value in values]
    return {str(value).rpartition(".")[2] for value in plain}  # of "PerformanceMode.LATENCY"


def _known_submodels(placement: Placement) -> int:
    """As they were measured or predicted of the placement; 0: not known."""
    figures = (placement.measured or {}).get(placement.chosen) or placement.predicted or {}
    return int(figures.get("submodels") or 0)


def advice(placement: Placement) -> str | None:
    """One line about the requests that a placement for throughput needs; None for any other."""
    devices = len(placement.used())
    if placement.objective != "throughput" or devices < 2:
        return None
    number = requests_in_flight(1, devices, _known_submodels(placement) or 1)
    return (
        f"requests: keep {number} in flight (Python's AsyncInferQueue and benchmark_app do by default;"
        f" C++: ov_hsdag::requests_in_flight, or benchmark_app -nireq {number})"
    )
