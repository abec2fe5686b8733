"""Describes why a candidate has no figures, or a child process no answer: a text for users, and a kind for programs."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any


class FailureKind(Enum):
    """Kinds of failures of a candidate or a child process; the values are stored in files."""

    REFUSED = "refused"
    """OpenVINO or a device refused, or an answer could not be read."""

    OUT_OF_TIME = "out of time"
    """The time limit came first, which is not the candidate's fault."""

    NO_ANSWER = "no answer"
    """Its process did not answer within the time that the work may take."""

    KILLED = "killed"
    """The system ended its process by SIGKILL, as Linux does when memory runs out."""

    CRASHED = "crashed"
    """Its process ended by itself."""

    OTHER_OUTPUTS = "other outputs"
    """Its outputs differ from those of a single device."""

    NOT_MEASURED = "not measured"
    """It was not run, for reasons other than its own."""


class Failure(str):
    """The reason of a failure, a string for users, with its kind."""

    kind: FailureKind  # what happened, for programs

    def __new__(cls, text: str, kind: FailureKind = FailureKind.REFUSED) -> Failure:
        """Makes a failure.

        Args:
            text: the reason in one line.
            kind: what happened.
        """
        failure = super().__new__(cls, text)
        failure.kind = kind
        return failure

    def __getnewargs__(self) -> tuple[str, FailureKind]:  # type: ignore[override]
        """Returns the arguments of `__new__`, so that failures can be pickled."""
        return str(self), self.kind

    def of(self, what: str) -> Failure:
        """Returns this failure as that of a whole: `what`, the name of the part that failed, comes before the text."""
        return Failure(f"{what}: {self}", self.kind)


# Failures of candidates that were not run; files have their texts, see `read_failure`.
NO_TIME_TO_COMPILE = Failure("there was no time left to compile it", FailureKind.OUT_OF_TIME)
NO_TIME_TO_MEASURE = Failure("there was no time left to measure it", FailureKind.OUT_OF_TIME)
NOT_MEASURED = Failure("it was not measured", FailureKind.NOT_MEASURED)


def failure_figures(failure: Failure | None) -> dict[str, str | None]:
    """Converts a failure to entries for JSON, beside a candidate's other figures.

    Returns:
        "failed", the text, and "failed_kind", the kind; both are None if there was no failure.
    """
    return {"failed": str(failure) if failure else None, "failed_kind": failure.kind.value if failure else None}


def read_failure(figures: Mapping[str, Any]) -> Failure | None:
    """Reads the failure of a candidate from its figures, see `failure_figures`.

    Args:
        figures: figures of the candidate. Those of earlier releases have no kind, which is found by the text then.

    Returns:
        The failure; None if the candidate did not fail.
    """
    text, kind = figures.get("failed"), figures.get("failed_kind")
    if not text:
        return None
    kinds = {one.value: one for one in FailureKind}
    if kind in kinds:
        return Failure(text, kinds[kind])
    late = text.endswith((NO_TIME_TO_COMPILE, NO_TIME_TO_MEASURE))  # releases without kinds had the same texts
    return Failure(text, FailureKind.OUT_OF_TIME if late else FailureKind.REFUSED)


def out_of_time(failure: Failure | None) -> bool:
    """Whether a candidate failed only because of the time limit."""
    return failure is not None and failure.kind is FailureKind.OUT_OF_TIME
