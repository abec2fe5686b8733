"""place() on real devices: what is measured, what wins, and what memory limits do."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

import ov_hsdag
from ov_hsdag.calibration.calibrate import calibrate_prepared
from ov_hsdag.cli.placed import notes
from ov_hsdag.costs.builtin import builtin_profile
from ov_hsdag.costs.stored import DeviceCosts, ModelCosts, graph_hash, identity
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.devices.discovery import inference_precision
from ov_hsdag.devices.memory import MOST, parse_memory
from ov_hsdag.devices.virtual import compile_properties, register
from ov_hsdag.measuring import choice, process
from ov_hsdag.measuring.agreement import TOLERANCE, tolerance
from ov_hsdag.measuring.evaluator import PIPELINE_HINT
from ov_hsdag.measuring.process import Worker
from ov_hsdag.model.placement import Placement
from ov_hsdag.placers.contiguous import Contiguous
from ov_hsdag.placing import corrected_search, operation_costs, selection
from ov_hsdag.problem.copies import COPIES
from ov_hsdag.problem.pricing import build_problem, prepare
from ov_hsdag.utils.byte_sizes import format_bytes, round_up
from ov_hsdag.utils.errors import RunError, UserError
from ov_hsdag.utils.failures import NO_TIME_TO_MEASURE, Failure, FailureKind
from research.zoo.catalog import ZOO
from tests.conftest import GENEROUS
from tests.decoders import decoder_of_experts
from tests.graphs import convolutions, unfused_costs
from tests.simulated_machine import Machine
from tests.test_measure import problem_of
from tests.worker_faults import starting

pytestmark = pytest.mark.usefixtures("quiet_machine", "fast_search")

PAIR = "HETERO:CPU_A,CPU_B"
PROFILED = {"PERF_COUNT": True}
DEVICES = DeviceSet(("CPU_A", "CPU_B"))


def uncalibrated(*_: object, **__: object) -> object:
    raise RunError("no device runs the whole model")


@pytest.fixture
def searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No search follows what was measured: tests/test_learning_by_measuring.py has these."""
    monkeypatch.setattr(corrected_search, "_SEARCHES", 0)


@pytest.mark.slow
def test_place_measures_and_tells(core: ov.Core) -> None:
    model = ZOO["squeezenet"].build()
    told: list[str] = []
    placement = ov_hsdag.place(
        model, PAIR, objective="throughput", core=core, measure=True, measure_seconds=GENEROUS, report=told.append
    )
    measured = placement.measured
    assert measured is not None
    simple = {"CPU_A", "CPU_B", "hetero", PIPELINE_HINT}
    # Of placers that agree the first is named.
    again = [corrected_search.CORRECTED, *(f"search (corrected, {number})" for number in range(2, 6))]
    placed = set(measured) - simple - {COPIES}
    placers = {"mincut", "pipeline", "partitions", "search", "hsdag"}
    by_profile = {f"{name} {selection.BY_PROFILE}" for name in placers}
    assert {*simple, COPIES} < set(measured) and placed <= {*placers, *by_profile, *again}
    assert "measuring operations on CPU_A, CPU_B" in told
    for name in measured.keys() - {"hetero", PIPELINE_HINT}:  # which may be a device
        assert any(text.startswith(f"compiling {name} (") and text.endswith(" s left)") for text in told)
    rounds = [text for text in told if ", round " in text]
    assert all(text.startswith("measuring ") and text.endswith(" s left)") for text in rounds)
    assert any("round 2 (" in text for text in rounds)
    phases = ("OpenVINO's transformations", "asking the devices what they run", "searching", "measuring placements")
    assert sorted(phases, key=told.index) == list(phases) and told[-1] == "annotating the model"
    assert (placement.predicted or {})["measured_costs"] == ["CPU_A", "CPU_B"]
    for name, figures in measured.items():
        more = {"times_best_single", "times_best_single_ci"}
        more |= {"times_chosen", "times_chosen_ci"} if name == COPIES else set()
        assert set(figures) == {"throughput_ips", "ratio", "ci", "submodels", "failed", "failed_kind"} | more
        assert figures["failed"] is None, (name, figures)
        assert figures["throughput_ips"] > 0 and 0 < figures["ci"][0] <= figures["ci"][1]
    assert 1.0 in {measured[name]["ratio"] for name in ("CPU_A", "CPU_B", "hetero", PIPELINE_HINT)}
    assert measured["CPU_A"]["submodels"] == measured["hetero"]["submodels"] == 1
    for name in placed:
        assert measured[name]["submodels"] == placement.baselines[name]["submodels"] > 1
    assert placement.chosen in measured
    assert max(measured[name]["times_best_single"] for name in ("CPU_A", "CPU_B")) == 1
    assert (placement.why == "") == (placement.chosen in placed)
    assert set(placement.notes) == set(placement.baselines) - set(measured)
    assert "measured " in placement.summary() and "predicted " in placement.summary()
    embedded = Placement.of(model)
    assert embedded is not None and embedded.measured == measured
    compiled = core.compile_model(model, PAIR, compile_properties(PAIR))
    assert compiled.get_property("HETERO_NUMBER_OF_SUBMODELS") == measured[placement.chosen]["submodels"]
    json.dumps(measured, allow_nan=False)


@pytest.mark.slow
@pytest.mark.usefixtures("searched_once")
def test_a_placement_that_is_slower_is_not_chosen_whatever_was_predicted(core: ov.Core) -> None:
    """A die for each group: dozens of submodels. Equal ones and the single devices' own are measured once."""
    model, problem = problem_of("squeezenet", core, "latency")
    scattered = problem.random(np.random.default_rng(0), 1)[0]
    candidates = {"hetero": problem.single(0), "same": problem.single(1), "die": scattered, "again": scattered}
    result = selection.select(model, problem, candidates, core, seconds=GENEROUS)
    assert list(result.measured) == ["CPU_A", "CPU_B", "hetero", "die"]
    assert result.chosen in ("CPU_A", "CPU_B")
    assert result.measured["die"]["failed"] is None and result.measured["die"]["ratio"] < 1
    assert result.measured["die"]["submodels"] > 10
    assert "no placement was better than " in result.why
    assert result.measured["die"]["times_best_single"] < 1
    assert 1.0 in (result.measured[name]["times_best_single"] for name in ("CPU_A", "CPU_B"))


def test_figures_are_the_posterior_and_hetero_with_all_on_a_device_is_that_device(core: ov.Core) -> None:
    """HETERO's own rule gives CPU_A everything, and runs it in a slower way; what comes of it is in one unit."""
    model, problem = problem_of("squeezenet", core, "throughput")
    split = Contiguous().place(problem)
    known = {"CPU_A": 10.0, "CPU_B": 5.0, "hetero": 9.0, PIPELINE_HINT: 9.0, "split": 18.0, COPIES: 15.0}
    told: list[str] = []
    machine = Machine(defaultdict(lambda: 17.0, known))  # what the search finds later is slower
    candidates = {"hetero": problem.single(0), "split": split}
    options: dict[str, Any] = {"start_worker": machine.start, "report": told.append}
    result = selection.select(model, problem, candidates, core, seconds=GENEROUS, **options)
    measured = result.measured
    first = [text.split()[1] for text in told if text.startswith("compiling ")][:5]
    assert first[:4] == ["CPU_A", "split", "CPU_B", COPIES] and "hetero" not in first, "devices, then what is no choice"
    assert result.chosen == "split" and result.why == "" and list(measured)[:3] == ["CPU_A", "CPU_B", "hetero"]
    for name, gain in {"CPU_A": 1.0, "CPU_B": 0.5, "hetero": 1.0, "split": 1.8, COPIES: 1.5}.items():
        figures = measured[name]
        assert figures["times_best_single"] == pytest.approx(gain, rel=0.1), (name, figures)
        low, high = figures["times_best_single_ci"]
        assert low <= figures["times_best_single"] <= high
        ips = measured["CPU_A"]["throughput_ips"] * figures["times_best_single"]
        assert figures["throughput_ips"] == pytest.approx(ips, rel=1e-3)
    assert measured["CPU_A"]["times_best_single_ci"] == measured["CPU_A"]["ci"] == [1.0, 1.0]
    assert measured[COPIES]["times_chosen"] == pytest.approx(15 / 18, rel=0.1)
    assert machine.trials < 60, "the choice is clear"


def decided(**rates: float) -> choice.Decision:
    """After some rounds."""
    return choice.decide([list(rates.items())] * 6, list(rates), ("CPU_A", "CPU_B", "hetero"))


def test_why_says_what_the_trials_showed() -> None:
    on_a, on_b, split = np.zeros(4, np.uint8), np.ones(4, np.uint8), np.array([0, 0, 1, 1], np.uint8)
    simple = {"CPU_A": on_a, "CPU_B": on_b}

    def why(decision: choice.Decision, **more: Any) -> str:
        given: dict[str, Any] = {"others": ["hsdag"], "simple": simple, "failed": {}} | more
        return selection._why(decision, given["others"], DEVICES, given["simple"], given["failed"])

    better = decided(CPU_A=10, CPU_B=5, hsdag=18)
    assert better.chosen == "hsdag" and why(better) == ""
    # HETERO's pipeline that uses both devices is none of them.
    other = {**simple, "hetero": split}
    told = why(decided(CPU_A=10, CPU_B=5, hetero=11, hsdag=18), simple=other)
    assert told.startswith("the best that needs no placement is hetero, 1.1") and "x the best single device (" in told
    assert why(decided(CPU_A=10, CPU_B=5, hsdag=10.05)) == "hsdag is within 1% of CPU_A, kept simple"
    assert why(decided(CPU_A=10, CPU_B=5, hsdag=9)) == "no placement was better than CPU_A"
    noisy = [[("CPU_A", 10.0), ("hsdag", 10.0 * factor)] for factor in (0.8, 1.6, 1.1, 0.9)]
    unproven = choice.decide(noisy, ["CPU_A", "hsdag"], simple, {"CPU_A": 1.0, "hsdag": 1.3}, 0.05)
    assert why(unproven).startswith("hsdag is not better than CPU_A beyond the noise, 1.")
    assert "x the best single device (" in why(unproven)
    # What is doubted is another device than the best: the figure is the table's all the same.
    doubted = replace(decided(CPU_A=10, CPU_B=5, hsdag=16), chosen="CPU_A", doubt="CPU_B")
    assert why(doubted).startswith("hsdag is not better than CPU_B beyond the noise, 1.6")
    assert selection._unsure(unproven, simple, {}) == ("hsdag",) and unproven.ratio("hsdag", "CPU_A").low < 1
    predicted = {"CPU_A": 1.0, "CPU_B": 2.0, "hsdag": 1.8}
    trials = [[("CPU_A", 10.0), ("hsdag", 18.0)]] * 6
    late = choice.decide(trials, ["CPU_A", "hsdag"], simple, predicted, late=["CPU_B"])
    told = why(late, failed={"CPU_B": NO_TIME_TO_MEASURE})
    assert late.chosen == "CPU_A" and told.startswith("hsdag may be worse than CPU_B, which there was no time to")
    alone = decided(CPU_A=10)
    assert why(alone, others=[]) == "no placer finds a better split"
    for failed, told in (
        (Failure("it hangs", FailureKind.NO_ANSWER), "no placement ran"),
        (Failure("no minute was left", FailureKind.OUT_OF_TIME), "the time for measuring was too short"),
    ):
        assert told in why(alone, failed={"hsdag": failed})


@pytest.mark.slow
@pytest.mark.usefixtures("searched_once")
def test_devices_of_other_precisions_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the machine has bf16: what is accepted follows from what the devices say they infer in."""
    limits = "INFERENCE_NUM_THREADS=1,INFERENCE_PRECISION_HINT"
    monkeypatch.setenv("OV_HSDAG_VIRTUAL_DEVICES", f"CPU_A:{limits}=bf16;CPU_B:{limits}=f32")
    core = ov.Core()
    register(core)
    model, problem = problem_of("vit-small", core, "throughput")
    assert tolerance(core, ["CPU_B"], model) == TOLERANCE
    routed = decoder_of_experts(1)  # rounding decides between experts
    assert tolerance(core, ["CPU_B"], routed) == TOLERANCE
    if inference_precision(core, "CPU_A") == "bf16":
        assert tolerance(core, DEVICES.names, routed) > tolerance(core, DEVICES.names, model) > TOLERANCE
    result = selection.select(model, problem, {"split": Contiguous().place(problem)}, core, seconds=GENEROUS)
    assert all(figures["failed"] is None for figures in result.measured.values()), result.measured


@pytest.mark.usefixtures("searched_once")
@pytest.mark.parametrize(
    "name",
    [
        "resnet-small-int8",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("vit-small-int8", "gpt2-small-int8-weights")),
    ],
)
def test_quantised_models_may_be_split(name: str, core: ov.Core) -> None:
    """Where a border parts an int8 operation from its quantisation, roundings tip: no reason to drop a placement."""
    model, problem = problem_of(name, core, "throughput")
    assert tolerance(core, DEVICES.names, model) > TOLERANCE
    split = problem.random(np.random.default_rng(0), 1)[0]
    result = selection.select(model, problem, {"split": split}, core, seconds=GENEROUS)
    assert result.measured["split"]["failed"] is None and result.measured["split"]["submodels"] > 10


@pytest.mark.slow
def test_failures_are_told_and_the_rest_is_measured(core: ov.Core) -> None:
    model, problem = problem_of("squeezenet", core, "throughput")
    split = Contiguous().place(problem)
    mirrored = (1 - split).astype(np.uint8)
    candidates = {"hetero": problem.single(0), "split": split, "mirrored": mirrored}
    faults = {"split": "wrong", "mirrored": "killed_running", "CPU_A": "killed_compiling"}
    start = starting(faults)
    result = selection.select(model, problem, candidates, core, seconds=GENEROUS, start_worker=start)
    for name in faults:
        figures = result.measured[name]
        assert figures["failed"] and figures["throughput_ips"] is figures["ratio"] is figures["ci"] is None
    # HETERO's own choice is CPU_A.
    assert result.measured["CPU_B"]["failed"] is None and result.measured["hetero"] == result.measured["CPU_A"]
    assert result.chosen == "CPU_B"


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_where_nothing_runs_the_prediction_decides(
    core: ov.Core, monkeypatch: pytest.MonkeyPatch, objective: str
) -> None:
    def broken(folder: Path, objective: str, name: str) -> Worker:
        return Worker(folder, objective, name, entry="tests.worker_faults:killed_at_start")

    monkeypatch.setattr(process, "Worker", broken)
    monkeypatch.setattr(operation_costs, "calibrate_where_it_runs", uncalibrated)
    model = ZOO["squeezenet"].build()
    with pytest.warns(UserWarning) as warned:
        placement = ov_hsdag.place(model, PAIR, core=core, measure=True, objective=objective)
    told = "\n".join(str(warning.message) for warning in warned)
    assert "calibrating failed: no device runs the whole model" in told
    assert "nothing could be measured" in told and "CPU_A: its worker was ended by SIGKILL" in told
    assert placement.chosen == "CPU_A"  # a split that failed is not chosen, however well it is predicted
    assert placement.measured is not None and placement.measured["CPU_A"]["failed"]
    assert objective == "latency" or "pipeline" in placement.measured
    assert "predicted 1.00x the best single device" in placement.summary()


def test_where_there_is_no_time_to_measure_the_prediction_decides(core: ov.Core) -> None:
    """That nothing was measured says nothing against a split."""
    model = ZOO["squeezenet"].build()
    split = ov_hsdag.place(model, PAIR, core=core, objective="throughput")
    with pytest.warns(UserWarning) as warned:
        placement = ov_hsdag.place(model, PAIR, core=core, objective="throughput", measure=True, measure_seconds=1e-3)
    told = [str(one.message) for one in warned]
    assert any("calibrating failed: the time is too short" in text for text in told)
    assert any(text.endswith("chosen by prediction: the time is too short (--measure-seconds)") for text in told)
    assert len(split.used()) == 2 and placement.chosen == split.chosen and placement.why == ""


class Varying(Machine):
    """Devices that are equal, and placements whose speed varies from trial to trial around theirs."""

    def __init__(self, gain: float, noise: float) -> None:
        super().__init__({})
        self.gain, self.noise, self.random = gain, noise, np.random.default_rng(0)

    def speed(self, name: str) -> float:
        if name in {"CPU_A", "CPU_B", "hetero", PIPELINE_HINT}:
            return 10.0
        return 10.0 * self.gain * float(np.exp(self.random.normal(0, self.noise)))


def placed_on(machine: Machine, core: ov.Core, monkeypatch: pytest.MonkeyPatch, busy: float = 0.0) -> Placement:
    """What is placed by measuring on a simulated machine, of which other programs use so many cores."""
    monkeypatch.setattr(process, "Worker", machine.start)
    placing = import_module("ov_hsdag.placing.place")  # the package's `place` is the function
    monkeypatch.setattr(operation_costs, "calibrate_where_it_runs", uncalibrated)
    monkeypatch.setattr(placing, "busy_cores", lambda: busy)
    machine.keep_time(monkeypatch)
    with pytest.warns(UserWarning, match="no device runs the whole model"):
        return ov_hsdag.place(ZOO["squeezenet"].build(), PAIR, objective="throughput", core=core, measure=True)


@pytest.mark.slow
@pytest.mark.usefixtures("searched_once")
@pytest.mark.parametrize(
    ("gain", "noise", "chosen", "unsure"),
    [(1.0, 0.8, True, True), (1.0, 0.005, True, False), (0.8, 0.005, True, False), (2.0, 0.005, False, False)],
)
def test_the_result_says_what_measuring_could_not_tell(
    core: ov.Core, monkeypatch: pytest.MonkeyPatch, gain: float, noise: float, chosen: bool, unsure: bool
) -> None:
    placement = placed_on(Varying(gain, noise), core, monkeypatch)
    assert (placement.chosen in DEVICES.names) == chosen
    placers = {"mincut", "pipeline", "partitions", "search", "hsdag"}
    assert bool(placement.unsure) == unsure and set(placement.unsure) <= placers


def test_what_there_was_no_time_to_run_is_unsure_and_bounds_nothing(
    core: ov.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Varying(1.0, 0.005)
    machine.compiling = 0.7 * selection.SECONDS
    placement = placed_on(machine, core, monkeypatch)
    assert placement.chosen in DEVICES.names and "too short to run a placement" in placement.why
    assert len(placement.unsure) == 1
    lines = notes(placement)
    assert any("may be better, but there was no time to run a placement" in line for line in lines)
    assert not any(line.startswith("bound:") for line in lines)


def test_no_gain_on_busy_cores_is_no_answer(core: ov.Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is predicted to be nearly twice as fast cannot be so while another program has the second core."""
    for busy, unsure in ((1.4, True), (0.1, False)):
        placement = placed_on(Varying(0.98, 0.001), core, monkeypatch, busy)
        assert placement.chosen in DEVICES.names and bool(placement.unsure) == unsure


def test_a_device_that_fails_is_not_chosen_where_there_was_no_time_for_the_other(
    core: ov.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPU_A and the best placement are compiled first."""
    machine = Machine({}, broken=("CPU_A", "pipeline", "partitions", "search"))
    machine.compiling = 0.35 * selection.SECONDS
    placement = placed_on(machine, core, monkeypatch)
    assert machine.compiled == 2 and placement.chosen == "CPU_B", placement.measured


def test_what_the_profile_would_choose_runs_whatever_was_measured_of_costs(
    core: ov.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Costs in which CPU_B takes a thousand times as long, on a machine where it does not."""
    model = ZOO["squeezenet"].build()
    graph = build_problem(ZOO["squeezenet"].build(), DEVICES, core=core).graph
    nodes, times = graph.nodes, {"CPU_A": 100.0, "CPU_B": 100_000.0}
    costs = {
        name: DeviceCosts(identity(core, name), "", unfused_costs(np.full(nodes, us))) for name, us in times.items()
    }
    machine = Varying(1.8, 0.005)
    monkeypatch.setattr(process, "Worker", machine.start)
    machine.keep_time(monkeypatch)
    placement = ov_hsdag.place(
        model, PAIR, objective="throughput", core=core, measure=True, costs=ModelCosts(graph_hash(graph), costs)
    )
    assert placement.measured is not None
    (name,) = (name for name in placement.measured if name.endswith(selection.BY_PROFILE))
    assert placement.measured[name]["ratio"] > 1.7
    assert placement.chosen not in DEVICES.names


@pytest.mark.slow
def test_costs_that_hold_are_not_measured_again(core: ov.Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is the model normalized twice, which gives BERT another graph than the costs are of."""
    profile = builtin_profile(DEVICES.names, core)
    costs, _ = calibrate_prepared(prepare(ZOO["bert-small"].build(), DEVICES.names, core, profile), core, profile)
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    monkeypatch.delattr(operation_costs, "calibrate_where_it_runs")
    with pytest.warns(UserWarning, match="nothing could be measured") as warned:
        placement = ov_hsdag.place(ZOO["bert-small"].build(), PAIR, core=core, measure=True, costs=costs)
    assert len(warned) == 1, [str(one.message) for one in warned]
    assert placement.predicted is not None and placement.predicted["measured_costs"] == list(DEVICES.names)


@pytest.mark.slow
def test_costs_that_do_not_hold_are_measured_again_with_a_warning(core: ov.Core) -> None:
    graph = build_problem(ZOO["squeezenet"].build(), DEVICES, core=core).graph
    other = DeviceCosts({"usable_cores": 1000}, "", unfused_costs(np.zeros(graph.nodes)))
    stale = ModelCosts(graph_hash(graph), dict.fromkeys(DEVICES.names, other))
    with pytest.warns(UserWarning, match="do not hold for all of CPU_A, CPU_B and are measured anew"):
        placement = ov_hsdag.place(
            ZOO["squeezenet"].build(), PAIR, core=core, measure=True, measure_seconds=GENEROUS, costs=stale
        )
    assert placement.predicted is not None and placement.predicted["measured_costs"] == list(DEVICES.names)
    assert placement.predicted["latency_us"] > 0


@pytest.mark.slow
@pytest.mark.usefixtures("searched_once")
def test_a_given_placement_is_measured_and_kept(core: ov.Core) -> None:
    model = ZOO["squeezenet"].build()
    names = [node.get_friendly_name() for node in model.get_ordered_ops() if node.get_type_name() == "Convolution"]
    affinity = {name: ("CPU_A", "CPU_B")[index % 2] for index, name in enumerate(names)}
    placement = ov_hsdag.place(model, PAIR, core=core, affinity=affinity, measure=True, measure_seconds=GENEROUS)
    assert placement.chosen == "affinity"
    assert placement.measured is not None and placement.measured["affinity"]["submodels"] > 2


def test_devices_that_are_not_here_cannot_be_measured(core: ov.Core) -> None:
    with pytest.raises(UserError, match="device NPU is not on this machine"):
        ov_hsdag.place(ZOO["squeezenet"].build(), "HETERO:CPU_A,NPU", core=core, measure=True)


# --- memory ---


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("CPU=8GiB,GPU=2GiB", {"CPU": 8 * 2**30, "GPU": 2 * 2**30}),
        (" CPU = 1.5 MB ", {"CPU": 1_500_000}),
        ("CPU=100B,GPU=3KiB", {"CPU": 100, "GPU": 3072}),
        ("gpu=2KB", {"GPU": 2000}),
        ("GPU=123456789012,CPU=1048576", {"GPU": 123_456_789_012, "CPU": 2**20}),
        ("GPU=1GB,CPU=7MiB", {"GPU": 10**9, "CPU": 7 * 2**20}),
        (f"GPU={'9' * 30}GiB,CPU={'9' * 400}B", {"GPU": 10**15, "CPU": 10**15}),
    ],
)
def test_memory_as_users_write_it(text: str, limits: dict[str, int]) -> None:
    assert parse_memory(text, ("CPU", "GPU")) == limits


@pytest.mark.parametrize(
    ("text", "told"),
    [
        *((text, "not DEVICE=AMOUNT") for text in ("", "CPU", "CPU=8.", "CPU=-8GiB", "CPU=8gib", "CPU=8GiB,", "=8GiB")),
        ("CPU=8", "not DEVICE=AMOUNT"),
        ("CPU=0GiB", "no memory"),
        ("CPU=0.1B", "no memory"),
        ("NPU=8GiB", "'NPU', which is not among CPU, GPU"),
        ("CPU=1GiB,CPU=2GiB", "twice"),
    ],
)
def test_what_is_no_memory_limit(text: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        parse_memory(text, ("CPU", "GPU"))


@pytest.mark.parametrize(
    ("size", "told"),
    [
        (0, "0 bytes"), (1, "1 byte"), (1000, "1,000 bytes"), (1024, "1 KiB"), (57_461_965, "54.8 MiB"),
        (2**30 - 2**20, "1,023 MiB"), (2**31 + 2**22, "2.004 GiB"), (10**15, "909.5 TiB"),
    ],
)  # fmt: skip
def test_memory_as_users_read_it(size: int, told: str) -> None:
    assert format_bytes(size) == told
    rounded = round_up(size)
    assert size <= rounded <= size * 1.02 + 1
    if 2**10 <= rounded <= MOST:  # it is what is shown, as it can be given again
        assert parse_memory(f"CPU={format_bytes(rounded).replace(',', '')}", ("CPU",)) == {"CPU": rounded}


@pytest.mark.parametrize(
    ("memory", "told"),
    [
        ({"NPU": 1}, "not among"),
        ({"CPU": 0}, "positive"),
        ({"CPU": 1.5}, "memory must be Mapping"),
        ({"CPU": "8"}, "'CPU=8' is not DEVICE=AMOUNT"),
        ({"CPU": "1GiB,GPU=2GiB"}, "is not DEVICE=AMOUNT"),
    ],
)
def test_bad_limits_are_refused(memory: dict[str, int | str], told: str) -> None:
    with pytest.raises(UserError, match=told):
        ov_hsdag.place(ZOO["squeezenet"].build(), "HETERO:GPU,CPU", memory=memory)


def test_limits_override_the_profile() -> None:
    with pytest.raises(RunError, match=r"GPU holds 1,000 bytes"):
        ov_hsdag.place(convolutions(), "HETERO:GPU,CPU", memory={"GPU": "1KB", "CPU": 1000})
    assert builtin_profile(["GPU"]).memory_bytes(["GPU"])[0] > 1000


def submodels(compiled: ov.CompiledModel, affinity: dict[str, str]) -> list[tuple[str, int, int]]:
    """Device, bytes of weights and bytes of tensors alive at once of each submodel that HETERO compiled.

    From what the plugin says of its executable submodels: which submodel each executed node is in (HETERO puts
    "subgraph<number>: " before its name in the profile, in the order of execution), its weights and tensors in the
    runtime model, and the original nodes that it stands for, which have to be on one device by the placement.
    """
    request = compiled.create_infer_request()
    request.infer([np.zeros(port.shape, np.float32) for port in compiled.inputs])
    order: dict[str, list[str]] = {}
    for info in request.profiling_info:
        number, _, name = info.node_name.partition(": ")
        order.setdefault(number, []).append(name)
    nodes = {node.get_friendly_name(): node for node in compiled.get_runtime_model().get_ops()}

    def told(node: ov.Node, key: str) -> str:
        return str(node.get_rt_info()[key].astype(str))

    def size(node: ov.Node) -> int:
        count = int(np.prod(list(node.output(0).shape)))
        return count and count * {"f32": 4, "i32": 4}[told(node, "outputPrecisions").split(",")[0]]

    found = []
    for names in order.values():
        executed = [nodes[name] for name in names if name in nodes]
        originals = {one for node in executed for one in told(node, "originalLayersNames").split(",")}
        on = {affinity[one] for one in originals if one in affinity}
        assert len(on) == 1, "a submodel is on one device"
        weights: dict[str, int] = {}
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for step, node in enumerate(executed):
            sources = [node.input_value(port).get_node() for port in range(node.get_input_size())]
            for one in (*sources, node):
                name = one.get_friendly_name()
                if told(one, "layerType") == "Const":
                    weights[name] = size(one)
                else:
                    # What comes from another submodel is there from the beginning.
                    first.setdefault(name, step if one is node else 0)
                    last[name] = step
        alive = [
            sum(size(nodes[name]) for name in first if first[name] <= step <= last[name])
            for step in range(len(executed))
        ]
        found.append((on.pop(), sum(weights.values()), max(alive)))
    return found


@pytest.mark.parametrize(
    ("objective", "measure"),
    [("latency", False), ("throughput", False), pytest.param("throughput", True, marks=pytest.mark.slow)],
)
def test_a_model_larger_than_a_device_is_split_so_that_it_fits(core: ov.Core, objective: str, measure: bool) -> None:
    """Checked on what was compiled: the weights of a device's submodels, and the most tensors alive in one of them."""
    name = "resnet-bottleneck-small" if measure else "resnet50"  # candidates of resnet50 take minutes to measure
    model = ZOO[name].build()
    problem = build_problem(model, DEVICES, objective=objective, core=core)
    whole = int(problem.evaluate(problem.single(0)).memory_bytes[0, 0])
    alone = submodels(
        core.compile_model(model, PAIR, compile_properties(PAIR, PROFILED)), problem.affinity(problem.single(0))
    )
    assert len(alone) == 1 and sum(alone[0][1:]) > 0.9 * whole
    limits = {"CPU_A": int(0.7 * whole), "CPU_B": int(0.5 * whole)}
    model = ZOO[name].build()
    placement = ov_hsdag.place(
        model, PAIR, objective=objective, core=core, memory=limits, measure=measure, measure_seconds=GENEROUS
    )
    if measure:
        assert placement.measured is not None and not {"CPU_A", "CPU_B", "hetero"} & set(placement.measured)
    compiled = core.compile_model(model, PAIR, compile_properties(PAIR, PROFILED))
    parts = submodels(compiled, placement.affinity)
    assert len(parts) == compiled.get_property("HETERO_NUMBER_OF_SUBMODELS") > 1
    # Nothing is lost from sight: all weights are somewhere.
    assert sum(weights for _, weights, _ in parts) == pytest.approx(alone[0][1], rel=0.01)
    for device, limit in limits.items():
        own = [part for part in parts if part[0] == device]
        assert sum(weights for _, weights, _ in own) + max(alive for *_, alive in own) <= limit
