"""Models that run in the same trials as a first model, such as the other models of an application.

A worker compiles a candidate of each of these models. A runner factory, which the worker gets by name, combines the
compiled models into one runner. The factory alone knows how often and in which order the models run, and what the rate
of a trial counts (for applications `ov_hsdag.applications.runner`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from numpy.typing import NDArray

from ov_hsdag.measuring.runner import TrialLoad
from ov_hsdag.model.inputs import TimedInputs
from ov_hsdag.utils.lazy import ov


class TrialRunner(Protocol):
    """A compiled candidate, warmed up and ready for trials; `ov_hsdag.measuring.runner.Runner` is one."""

    @property
    def submodels(self) -> int:
        """Number of submodels that HETERO made."""

    @property
    def busy_us(self) -> Sequence[float]:
        """Processor time of each submodel in an inference of the last trial, µs; empty where it is not known."""

    @property
    def rates(self) -> Mapping[str, float]:
        """Inferences per second in the last trial, by phase; empty where the runner has no phases."""

    @property
    def load(self) -> TrialLoad | None:
        """Load of the cores in the last trial; None where it is not known."""

    @property
    def shortest_trial(self) -> float:
        """About the shortest possible time of a trial, seconds."""

    def rate(self, seconds: float, alone: bool = True) -> float:
        """Runs a trial of about `seconds`; returns inferences per second. Arguments and errors: see `Runner.rate`."""

    def outputs(self) -> list[NDArray[Any]]:
        """Returns outputs, which are equal but for rounding where candidates compute the same, see `Runner.outputs`."""


RunnerFactory = Callable[[Sequence[TrialRunner], str, Mapping[str, Any]], TrialRunner]
"""Makes one runner of the runners of all models, the objective, and `CoRunningModels.arguments`."""


@dataclass(frozen=True, eq=False)
class CoRunningModels:
    """The models that run in the same trials as a first one, and what combines them with it.

    Attributes:
        models: the models without the first one, normalized.
        inputs: for each of them, the inputs of its phases.
        factory: a `RunnerFactory` as "module:function", which workers import.
        arguments: arguments for the factory, JSON-able.
    """

    models: Sequence[ov.Model]
    inputs: Sequence[Sequence[TimedInputs]]
    factory: str
    arguments: Mapping[str, Any]


def runner_factory(name: str) -> RunnerFactory:
    """Imports a factory that is named as "module:function". Raises ImportError, AttributeError without it."""
    module, _, function = name.partition(":")
    factory: RunnerFactory = getattr(import_module(module), function)
    return factory
