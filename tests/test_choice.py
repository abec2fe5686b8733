"""Choosing among noisy candidates: on simulated machines that drift, are disturbed, and whose cores are shared."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from ov_hsdag.measuring.choice import GAIN, REGRET, Decision, Ratio, Round, beaten, decide, in_order, infer, next_pair
from ov_hsdag.measuring.comparison import Comparison
from ov_hsdag.measuring.trials import FIRST_ROUNDS, Trials
from tests.simulated_machine import SharedHost, choose_on

SIMPLE = {"A", "B", "hetero"}
RUNS = 16


class Machine:
    """Candidates that differ in speed, on a machine whose own speed wanders; one trial in twenty is disturbed."""

    def __init__(self, seed: int, noise: float, speeds: Mapping[str, float]) -> None:
        self._random, self._noise, self._state, self._speeds = np.random.default_rng(seed), noise, 0.0, speeds
        self.trials = 0

    def rate(self, name: str) -> float:
        self.trials += 1
        self._state += self._random.normal(0, self._noise / 3)
        disturbed = self._random.exponential(0.3) if self._random.random() < 0.05 else 0.0
        return self._speeds[name] * math.exp(self._state + self._random.normal(0, self._noise) - disturbed)


def selected(noise: float, seed: int, predicted: Mapping[str, float], speeds: Mapping[str, float]) -> Decision:
    machine = Machine(seed, noise, speeds)
    return choose_on(machine.rate, list(speeds), SIMPLE, predicted, 0.05, lambda: machine.trials > 60)


def chosen(noise: float, predicted: Mapping[str, float] | None = None, **speeds: float) -> Counter[str]:
    return Counter(selected(noise, seed, predicted or speeds, speeds).chosen for seed in range(RUNS))


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "promised"), [(0.02, 1.2), (0.05, 1.0), (0.05, 1.2), (0.15, 1.2)])
def test_equal_candidates_never_make_a_placement_win(noise: float, promised: float) -> None:
    """Whatever was predicted."""
    predicted = dict.fromkeys(("A", "B", "hetero"), 1.0) | dict.fromkeys(("mincut", "pipeline", "hsdag"), promised)
    found = chosen(noise, predicted, A=1, B=1, hetero=1, mincut=1, pipeline=1, hsdag=1)
    assert sum(found[name] for name in SIMPLE) >= 0.9 * RUNS


@pytest.mark.parametrize("noise", [0.02, 0.05, 0.15])
def test_a_far_better_placement_wins(noise: float) -> None:
    """Also where the prediction has it worse."""
    assert chosen(noise, A=1, B=1, hetero=1, mincut=0.9, hsdag=1.7)["hsdag"] == RUNS
    wrong = {"A": 1, "B": 1, "hetero": 1, "mincut": 1.5, "hsdag": 1.45}
    assert chosen(noise, wrong, A=1, B=1, hetero=1, mincut=0.9, hsdag=1.7)["hsdag"] == RUNS


def test_a_little_better_placement_wins_where_the_noise_allows() -> None:
    assert chosen(0.01, A=1, B=1, hsdag=1.05)["hsdag"] >= 0.9 * RUNS
    assert chosen(0.01, A=1, B=1, hsdag=1.004)["hsdag"] <= 0.1 * RUNS, "hardly worth it"


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.02, 0.05, 0.15])
def test_the_better_device_is_found_wherever_it_stands(noise: float) -> None:
    found = chosen(noise, dict.fromkeys(("A", "B", "hetero", "hsdag"), 1.0), A=1, B=5, hetero=1, hsdag=4.8)
    assert found["B"] == RUNS


def test_trials_go_to_what_can_change_the_decision() -> None:
    machine = Machine(0, 0.02, {"A": 0.2, "B": 1.0, "hsdag": 1.72, "search": 1.7, "mincut": 0.3})
    count: Counter[str] = Counter()

    def rate(name: str) -> float:
        count[name] += 1
        return machine.rate(name)

    predicted = {"A": 0.2, "B": 1.0, "hsdag": 1.7, "search": 1.7, "mincut": 0.3}
    choose_on(rate, list(predicted), SIMPLE, predicted, 0.05, lambda: machine.trials > 100)
    assert max(count["A"], count["mincut"], count["B"]) <= 3 < min(count["hsdag"], count["search"])


def test_a_quiet_machine_needs_few_trials_and_a_noisy_one_uses_its_time() -> None:
    names, trials = ["A", "hsdag", "search"], Counter[float]()
    for noise in (0.01, 0.2):
        for seed in range(8):
            machine = Machine(seed, noise, dict(zip(names, (1.0, 1.7, 1.66), strict=True)))
            predicted = dict.fromkeys(names, 1.0)
            choose_on(machine.rate, names, SIMPLE, predicted, 0.14, lambda of=machine: of.trials > 100)
            trials[noise] += machine.trials
    assert trials[0.01] < 8 * 20 and trials[0.2] > 1.5 * trials[0.01]


def test_what_is_shown_never_contradicts_the_choice() -> None:
    for seed in range(RUNS):
        speeds = {"A": 1.0, "B": 0.97, "hsdag": 1.1, "search": 1.12, "mincut": 1.05}
        found = selected(0.2, seed, dict.fromkeys(speeds, 1.0), speeds)
        best = max(found.names, key=found.posterior.rate)
        if found.chosen in SIMPLE and best not in SIMPLE:
            # A better figure of a placement has an interval that says that it may be luck, or it is within 1%.
            ratio = found.ratio(best, found.rival)
            assert ratio.low <= 1 or ratio.median <= 1 + GAIN
        elif found.chosen not in SIMPLE:
            assert found.ratio(found.chosen, found.rival).median > 1
            assert all(found.ratio(name, found.chosen).median <= 1 + GAIN for name in found.proven)


@pytest.mark.slow
@pytest.mark.parametrize("error", [0.05, 0.14])
def test_on_shared_cores_the_choice_is_near_the_best(error: float) -> None:
    """Two cores at 0.6 to 1.0 of their speed, each for itself, from half second to half second; 30 s of trials."""
    shares = []
    for seed in range(20):
        host = SharedHost.drawn(seed, error)
        found = choose_on(host.rate, list(host.busy), SIMPLE, host.predicted, error, lambda of=host: of.now > 30)
        shares.append(host.true[found.chosen] / max(host.true.values()))
    assert np.mean(shares) >= 0.985 and np.mean(np.array(shares) > 0.97) >= 0.9
    assert min(shares) > 0.9


def test_a_steady_drift_favours_nobody() -> None:
    names, count = "ABCDE", 0
    rounds: list[Round] = []
    for number in range(2 * len(names)):
        one = []
        for name in in_order(names, number):
            count += 1
            one.append((name, math.exp(-0.1 * count)))
        rounds.append(one)
    found = infer(rounds)
    assert all(found.ratio(name, "A").median == pytest.approx(1, abs=0.01) for name in names)


@pytest.mark.parametrize(("rounds", "noise"), [(2, 0.1), (3, 0.02), (5, 0.1), (8, 0.02), (16, 0.1)])
@pytest.mark.parametrize(
    "draw", [np.random.Generator.standard_normal, lambda random, count: random.standard_t(3, count)]
)
def test_the_interval_holds_the_truth_as_often_as_it_says(
    rounds: int, noise: float, draw: Callable[[np.random.Generator, int], np.ndarray]
) -> None:
    random = np.random.default_rng(0)
    inside = 0
    for _ in range(200):
        ratio = Ratio.of_rounds(np.exp(noise * draw(random, rounds) + math.log(1.1)).tolist())
        assert ratio.low <= ratio.median <= ratio.high
        inside += ratio.low <= 1.1 <= ratio.high
    assert inside >= 180


def test_intervals_know_little_of_single_rounds() -> None:
    single = Ratio.of_rounds([1.1])
    assert single.low < 1 < single.median < single.high
    assert Ratio.of_rounds([]) == Ratio(1.0, 0.0, math.inf)
    one, other = Ratio.of_rounds([1.5, 1.4, 1.7]), Ratio.of_rounds([1 / 1.5, 1 / 1.4, 1 / 1.7])
    assert one.median * other.median == pytest.approx(1) and one.low * other.high == pytest.approx(1)


def test_the_prediction_decides_until_trials_know_better() -> None:
    predicted = {"A": 1.0, "hsdag": 1.7, "search": 1.6}
    noisy = [[("A", 1.0), ("hsdag", 1.2), ("search", 1.9)], [("search", 1.3), ("hsdag", 2.1), ("A", 0.8)]]
    assert infer(noisy, predicted, 0.03).best(predicted) == "hsdag"
    steady = [[("A", 1.0), ("hsdag", 1.5), ("search", 1.75)]] * 8
    assert infer(steady, predicted, 0.03).best(predicted) == "search"
    assert infer([], predicted, 0.03).ratio("hsdag", "A").median == pytest.approx(1.7)


def test_choices() -> None:
    def steady(**rates: float) -> Decision:
        return decide([list(rates.items())] * 8, list(rates), SIMPLE)

    assert steady(A=1, B=1.2, hsdag=1.5).chosen == "hsdag" and steady(A=1, B=1.2, hsdag=1.2 * 1.005).chosen == "B"
    assert steady(A=1, B=1.005).chosen == "A" and steady(A=1, hsdag=0.9).chosen == "A"
    assert steady(hsdag=1, mincut=2).chosen == "mincut" and steady(hsdag=1, mincut=2).rival == ""
    assert steady(B=1, hsdag=1.5).rival == "B" and steady(B=1, hsdag=1.5).proven == {"hsdag"}
    assert beaten(infer([[("A", 1.0), ("hsdag", 1.5)]] * 3), ["A", "hsdag"]) == ["A"]
    once = decide([[("A", 1.0), ("hsdag", 1.1)]], ["A", "hsdag"], SIMPLE, {"A": 1.0, "hsdag": 1.3}, 0.05)
    assert once.chosen == "A" and once.leader == "hsdag" and once.regret > REGRET, "not proven by one round"
    assert next_pair(once, once.names) == ("A", "hsdag")
    near = decide([[("A", 1.0), ("mincut", 1.489), ("hsdag", 1.5)]] * 20, ["A", "mincut", "hsdag"], SIMPLE)
    assert near.chosen == "hsdag" and near.regret < REGRET, "of two splits the better one"
    # A device that there was no time for may be better than a split of little gain, and hardly than one of much.
    rates, predicted = {"A": 1.0, "mincut": 1.05, "hsdag": 1.7}, {"A": 1.0, "B": 0.9, "mincut": 1.1, "hsdag": 1.6}
    for split, late, of in (("mincut", [], "mincut"), ("mincut", ["B"], "A"), ("hsdag", ["B"], "hsdag")):
        rounds = [[("A", 1.0), (split, rates[split])]] * 20
        assert decide(rounds, ["A", split], SIMPLE, predicted, 0.14, late=late).chosen == of
    assert decide([[("mincut", 1.0)]], ["mincut"], SIMPLE, predicted, 0.14, late=["B"]).chosen == "mincut", (
        "nothing else ran"
    )
    # What is least surely worse than the leader runs against it, though another is the best.
    rounds = [[("A", 1.0), ("B", rate), ("hsdag", 1.1)] for rate in (0.86, 1.06)] + [[("A", 1.0), ("hsdag", 1.1)]] * 30
    unsure = decide(rounds, ["A", "B", "hsdag"], SIMPLE)
    assert (unsure.chosen, unsure.rival, unsure.doubt) == ("A", "A", "B") and next_pair(unsure, unsure.names)[0] == "B"


@pytest.mark.parametrize(("regret", "rounds"), [(0.9 * REGRET, FIRST_ROUNDS), (1.9 * REGRET, 9), (2.1 * REGRET, 50)])
def test_long_trials_may_leave_more_regret(monkeypatch: pytest.MonkeyPatch, regret: float, rounds: int) -> None:
    class Seconds:
        """Two candidates that run, a round in a second."""

        now, ready, names = 0.0, ["A", "hsdag"], ["A", "hsdag"]
        failed: Mapping[str, str] = {}
        seconds: Mapping[str, float] = {}

        def compiled(self, names: Collection[str]) -> bool:
            return True

        def trials(self, names: Collection[str], rounds: int, *_: float, **more: float) -> list[Round]:
            self.now += rounds
            return [[("A", 1.0), ("hsdag", 1.2)]] * rounds

    known = decide([[("A", 1.0), ("hsdag", 1.2)]] * 2, ["A", "hsdag"], SIMPLE)
    ran = Seconds()
    monkeypatch.setattr("ov_hsdag.measuring.trials.time.monotonic", lambda: ran.now)
    monkeypatch.setattr("ov_hsdag.measuring.choice.decide", lambda *_: replace(known, regret=regret))
    Trials(cast(Comparison, cast(Any, ran)), SIMPLE, {"A": 1.0, "hsdag": 1.2}, 0.1, end=50.5).run()
    assert ran.now == pytest.approx(rounds, abs=1)
