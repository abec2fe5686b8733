"""Why a candidate gave no figure: a text for people, and a kind by which programs decide."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any


class FailureKind(Enum):
    """What happened to a candidate, or to a process that was asked for something; values stand in files."""

    REFUSED = "refused"
    """OpenVINO or a device refused, or an answer could not be read."""

    OUT_OF_TIME = "out of time"
    """The time limit came first: no fault of the candidate's."""

    NO_ANSWER = "no answer"
    """Its process did not answer in the time that its work may take."""

    KILLED = "killed"
    """The system ended its process by SIGKILL, as Linux does where memory runs out."""

    CRASHED = "crashed"
    """Its process ended by itself."""

    OTHER_OUTPUTS = "other outputs"
    """It computes something else than a single device."""

    NOT_MEASURED = "not measured"
    """No trial of it ran, for no reason of its own."""


class Failure(str):
    """The reason as people read it, which is a string, with its kind."""

    kind: FailureKind

    def __new__(cls, text: str, kind: FailureKind = FailureKind.REFUSED) -> Failure:
        """A failure.

        Args:
            text: one line.
            kind: what happened.
        """
        failure = super().__new__(cls, text)
        failure.kind = kind
        return failure

    def __getnewargs__(self) -> tuple[str, FailureKind]:  # type: ignore[override]
        return str(self), self.kind

    def of(self, what: str) -> Failure:
        """The same failure as that of something whose part has failed, which is named."""
        return Failure(f"{what}: {self}", self.kind)


NO_TIME_TO_COMPILE = Failure("there was no time left to compile it", FailureKind.OUT_OF_TIME)
NO_TIME_TO_MEASURE = Failure("there was no time left to measure it", FailureKind.OUT_OF_TIME)
NOT_MEASURED = Failure("it was not measured", FailureKind.NOT_MEASURED)


def failure_figures(failure: Failure | None) -> dict[str, str | None]:
    """What JSON has of a failure, beside a candidate's other figures; of None that there was none."""
    return {"failed": str(failure) if failure else None, "failed_kind": failure.kind.value if failure else None}


def read_failure(figures: Mapping[str, Any]) -> Failure | None:
    """Inverse of `failure_figures`, None where there was no failure; figures of earlier releases have no kind."""
    text, kind = figures.get("failed"), figures.get("failed_kind")
    if not text:
        return None
    kinds = {one.value: one for one in FailureKind}
    if kind in kinds:
        return Failure(text, kinds[kind])
    late = text.endswith((NO_TIME_TO_COMPILE, NO_TIME_TO_MEASURE))  # of the release before kinds, and never reworded
    return Failure(text, FailureKind.OUT_OF_TIME if late else FailureKind.REFUSED)


def out_of_time(failure: Failure | None) -> bool:
    """Whether a candidate failed for the time limit alone."""
    return failure is not None and failure.kind is FailureKind.OUT_OF_TIME
