"""Why candidates give no figure: kinds decide, texts are for people."""

from __future__ import annotations

import ast
import copy
import json
import pickle
from pathlib import Path

import openvino as ov
import pytest

from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring.comparison import Comparison, measurements
from ov_hsdag.measuring.evaluator import Measurement
from ov_hsdag.measuring.process import Candidate, WorkerError, WorkerTimeout
from ov_hsdag.utils.failures import Failure, FailureKind, failure_figures, read_failure
from tests.test_comparison import tiny_model
from tests.worker_faults import starting

DEVICES = DeviceSet(("CPU_A", "CPU_B"))
# Modules in which a `name` is a candidate's; elsewhere it is a device's or a file's.
ABOUT_CANDIDATES = (
    "comparison",
    "corrected_search",
    "measurer",
    "placement_trials",
    "plan",
    "processor_times",
    "rivals",
    "selection",
    "together",
    "trials",
)
PACKAGE = Path(__file__).parents[1] / "ov_hsdag"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("killed_running", FailureKind.KILLED),
        ("hangs_compiling", FailureKind.NO_ANSWER),
        ("wrong", FailureKind.OTHER_OUTPUTS),
        ("ends_early", FailureKind.CRASHED),
        ("refuses_to_compile", FailureKind.REFUSED),
    ],
)
def test_each_failure_of_a_worker_has_its_kind(two_cpu_core: ov.Core, fault: str, kind: FailureKind) -> None:
    ways = {name: Candidate(name) for name in DEVICES}
    start = starting({"CPU_B": fault})
    with Comparison(tiny_model(), DEVICES, ways, "throughput", two_cpu_core, start_worker=start) as comparison:
        rounds = comparison.trials(rounds=1, seconds=0.0)
        assert {name: failure.kind for name, failure in comparison.failed.items()} == {"CPU_B": kind}
        found = measurements([*ways], comparison, rounds, "throughput")["CPU_B"]
    assert found.failure is not None and found.failure.kind is kind


def test_the_limit_of_time_is_no_fault_of_a_candidate(two_cpu_core: ov.Core) -> None:
    ways = {name: Candidate(name) for name in DEVICES}
    with Comparison(tiny_model(), DEVICES, ways, "throughput", two_cpu_core, limit=0.0) as comparison:
        assert {failure.kind for failure in comparison.failed.values()} == {FailureKind.OUT_OF_TIME}


def test_kinds_travel_with_files_and_copies() -> None:
    failure = Failure("too late", FailureKind.OUT_OF_TIME).of("CPU_A")
    assert failure == "CPU_A: too late" and failure.kind is FailureKind.OUT_OF_TIME
    for again in (copy.deepcopy(failure), pickle.loads(pickle.dumps(failure))):
        assert again == failure and again.kind is failure.kind
    figures = json.loads(json.dumps(failure_figures(failure)))
    assert figures == {"failed": "CPU_A: too late", "failed_kind": "out of time"}
    read = read_failure(figures)
    assert read is not None and read.kind is FailureKind.OUT_OF_TIME
    assert (
        failure_figures(None) == {"failed": None, "failed_kind": None} and read_failure(failure_figures(None)) is None
    )
    unknown = read_failure({"failed": "too late", "failed_kind": "a later release's"})
    assert unknown is not None and unknown.kind is FailureKind.REFUSED


def test_errors_have_kinds_of_their_own() -> None:
    assert WorkerError("no kernel").failure.kind is FailureKind.REFUSED
    assert WorkerTimeout("no answer").failure.kind is FailureKind.NO_ANSWER
    late = WorkerTimeout("no time", FailureKind.OUT_OF_TIME)
    assert str(late) == late.failure == "no time" and late.failure.kind is FailureKind.OUT_OF_TIME
    assert Measurement(1.0).failure is None
    kept = Measurement.from_dict(Measurement(0.0, error="no kernel").to_dict())
    assert kept.failure == "no kernel"


def test_no_decision_of_measuring_or_placing_hangs_on_the_words_of_an_error() -> None:
    """No `"words" in str(error)`, and nothing that begins or ends with words of a candidate's name."""
    found = []
    for path in (*(PACKAGE / "measuring").glob("*.py"), *(PACKAGE / "placing").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
                left, right = node.left, node.comparators[0]
                words = isinstance(left, ast.Constant) and isinstance(left.value, str)
                if words and isinstance(right, ast.Call) and getattr(right.func, "id", "") == "str":
                    found.append(f"{path.name}:{node.lineno}")
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("startswith", "endswith"):
                value = getattr(node.func, "value", None)
                if getattr(value, "id", "") == "name" and path.stem in ABOUT_CANDIDATES:
                    found.append(f"{path.name}:{node.lineno}")
    assert not found
