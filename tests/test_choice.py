"""Choosing among noisy candidates: on a simulated machine that drifts, and that now and then does something else."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from ov_hsdag.measuring.choice import GAIN, Ratio, beaten, best, challenge, choose, settled
from ov_hsdag.measuring.interleaving import race
from ov_hsdag.measuring.process import WorkerError

SIMPLE = {"A", "B", "hetero"}
RUNS = 200


class Machine:
    """Candidates that differ in speed, on a machine whose own speed wanders; one trial in twenty is disturbed."""

    def __init__(self, seed: int, noise: float) -> None:
        self._random, self._noise, self._state = np.random.default_rng(seed), noise, 0.0

    def trial(self, speed: float) -> float:
        self._state += self._random.normal(0, self._noise / 3)
        disturbed = self._random.exponential(0.3) if self._random.random() < 0.05 else 0.0
        return speed * math.exp(self._state + self._random.normal(0, self._noise) - disturbed)


class Runner:
    def __init__(self, speed: float, machine: Machine) -> None:
        self.speed, self.machine, self.trials = speed, machine, 0

    def rate(self, seconds: float) -> float:
        self.trials += 1
        return self.machine.trial(self.speed)


def selected(speeds: dict[str, float], seed: int, noise: float) -> str:
    """As `ov_hsdag.measuring.selection.select` does it."""
    machine = Machine(seed, noise)
    runners = {name: Runner(speed, machine) for name, speed in speeds.items()}
    rates = race(runners).rates
    pair = challenge(rates, SIMPLE)
    head_to_head = race({name: runners[name] for name in pair}, 16, halving=False).rates if pair else None
    return choose(rates, SIMPLE, head_to_head)


def chosen(noise: float, **speeds: float) -> Counter[str]:
    return Counter(selected(speeds, seed, noise) for seed in range(RUNS))


@pytest.mark.parametrize("noise", [0.02, 0.05, 0.15])
def test_equal_candidates_never_make_a_placement_win(noise: float) -> None:
    found = chosen(noise, A=1, B=1, hetero=1, mincut=1, pipeline=1, hsdag=1)
    assert sum(found[name] for name in SIMPLE) >= 0.95 * RUNS
    assert found.most_common()[0][0] == "A"


@pytest.mark.parametrize("noise", [0.02, 0.05, 0.15])
def test_a_far_better_placement_wins(noise: float) -> None:
    assert chosen(noise, A=1, B=1, hetero=1, mincut=0.9, hsdag=1.7)["hsdag"] >= 0.99 * RUNS


def test_a_little_better_placement_wins_where_the_noise_allows() -> None:
    assert chosen(0.01, A=1, B=1, hsdag=1.05)["hsdag"] >= 0.9 * RUNS
    assert chosen(0.01, A=1, B=1, hsdag=1.004)["hsdag"] <= 0.1 * RUNS, "hardly worth it"


@pytest.mark.parametrize("noise", [0.02, 0.05, 0.15])
def test_the_better_device_is_found_wherever_it_stands(noise: float) -> None:
    found = chosen(noise, A=1, B=5, hetero=1, hsdag=4.9)
    assert found["B"] >= 0.97 * RUNS
    assert not found["A"] and not found["hetero"]


def test_what_is_far_behind_gets_few_trials() -> None:
    machine = Machine(0, 0.02)
    runners = {
        name: Runner(speed, machine) for name, speed in {"A": 0.2, "B": 1.0, "hsdag": 1.7, "mincut": 0.3}.items()
    }
    found = race(runners)
    assert not found.failed
    assert max(len(found.rates[name]) for name in ("A", "B", "mincut")) <= 5
    assert sum(runner.trials for runner in runners.values()) <= 18


def test_a_head_to_head_ends_early_only_where_it_is_obvious() -> None:
    machine = Machine(0, 0.02)

    def rounds(**speeds: float) -> int:
        runners = {name: Runner(speed, machine) for name, speed in speeds.items()}
        return len(race(runners, 16, halving=False).rates["A"])

    assert rounds(A=1, hsdag=1.7) <= 8
    assert rounds(A=1, hsdag=0.3) <= 8
    assert rounds(A=1, hsdag=1.08) == rounds(A=1, hsdag=1) == 16


def test_a_failure_in_a_trial_costs_its_candidate_only() -> None:
    class Broken(Runner):
        def rate(self, seconds: float) -> float:
            if self.trials == 2:
                raise WorkerError("gone")
            return super().rate(seconds)

    machine = Machine(0, 0.02)
    found = race({"A": Broken(1.0, machine), "B": Runner(1.0, machine)}, 5, halving=False)
    assert found.failed == {"A": "gone"}
    assert len(found.rates["A"]) == 2
    assert race({"A": Broken(1.0, machine)}, 5).failed == {} and race({}, 5).rates == {}


def test_a_steady_drift_favours_nobody() -> None:
    class Slowing(Runner):
        count = 0

        def rate(self, seconds: float) -> float:
            Slowing.count += 1
            return self.speed * math.exp(-0.1 * Slowing.count)

    names = "ABCDE"
    machine = Machine(0, 0.0)
    rates = race({name: Slowing(1.0, machine) for name in names}, 2 * len(names), halving=False).rates
    for name in names:
        assert np.log(np.divide(rates[name], rates["A"])).mean() == pytest.approx(0, abs=1e-9)


def test_who_is_beaten_leaves_and_frees_what_it_holds() -> None:
    machine, left = Machine(0, 0.02), []
    race(
        {name: Runner(speed, machine) for name, speed in {"A": 0.2, "B": 1.0, "hsdag": 1.7}.items()},
        leave=lambda name, rates: left.append((name, len(rates[name]))),
    )
    assert {name for name, _ in left} == {"A", "B"} and max(rounds for _, rounds in left) <= 5


def test_there_is_no_time_for_another_round() -> None:
    found = race({"A": Runner(1, Machine(0, 0.1)), "B": Runner(1, Machine(1, 0.1))}, 12, until=-math.inf, halving=False)
    assert [len(rates) for rates in found.rates.values()] == [1, 1]


@pytest.mark.parametrize("rounds", [2, 3, 5, 8, 12, 16])
@pytest.mark.parametrize("draw", [np.random.Generator.standard_normal, np.random.Generator.standard_cauchy])
def test_the_interval_holds_the_truth_as_often_as_it_says(
    rounds: int, draw: Callable[[np.random.Generator, int], np.ndarray]
) -> None:
    random = np.random.default_rng(0)
    inside = 0
    for _ in range(1000):
        ratio = Ratio.of_rounds(np.exp(0.01 * draw(random, rounds) + math.log(1.1)).tolist())
        assert ratio.low <= ratio.high
        inside += ratio.low <= 1.1 <= ratio.high
    assert inside >= 930


def test_intervals_know_little_of_single_rounds() -> None:
    single = Ratio.of_rounds([1.5])
    assert single.low < 1 < single.median == 1.5 < single.high
    assert Ratio.of_rounds([]) == Ratio(1.0, 0.0, math.inf)
    assert Ratio.of([3.0, 3.0, 9.0], [2.0, 2.0]) == Ratio.of_rounds([1.5, 1.5])


@pytest.mark.parametrize("rounds", [1, 2, 3, 4])
def test_who_is_better_does_not_depend_on_the_side_that_is_asked(rounds: int) -> None:
    random = np.random.default_rng(rounds)
    own, other = np.exp(random.normal(0, 0.3, (2, rounds)))
    assert Ratio.of(own, other).median * Ratio.of(other, own).median == pytest.approx(1)
    rates = {"A": own, "B": other}
    leader = best(rates)
    assert all(Ratio.of(rates[name], rates[leader]).median <= 1 + 1e-12 for name in rates)


def test_choices() -> None:
    steady = {"A": [1.0] * 8, "B": [1.2] * 8, "hsdag": [1.5] * 8}
    assert best(steady) == "hsdag" and beaten(steady) == ["A", "B"]
    assert challenge(steady, SIMPLE) == ("B", "hsdag")
    assert choose(steady, SIMPLE) == "B", "no head-to-head, no win"
    assert choose(steady, SIMPLE, {"B": [1.2] * 8, "hsdag": [1.5] * 8}) == "hsdag"
    assert choose(steady, SIMPLE, {"B": [1.2] * 8, "hsdag": [1.2 * (1 + GAIN / 2)] * 8}) == "B"
    assert choose(steady, SIMPLE, {"hsdag": [1.5] * 8}) == "B", "its rival failed: nothing was shown"
    assert challenge({"A": [2.0], "hsdag": [1.0]}, SIMPLE) is None
    assert challenge({"hsdag": [1.0]}, SIMPLE) is None and choose({"hsdag": [1.0], "mincut": [2.0]}, SIMPLE) == "mincut"
    assert settled({"A": [1.0] * 8, "B": [0.9] * 8}) and not settled({"A": [0.9] * 8, "B": [1.0] * 8})
    assert settled({"A": [1.0] * 8, "B": [1.0] * 8}) and settled({"A": [1.0]})


def test_gains_that_were_measured_apart_multiply_with_their_intervals() -> None:
    ratio = Ratio(2.0, 1.8, 2.2).times(Ratio(1.5, 1.5, 1.5))
    assert ratio.median == pytest.approx(3.0)
    assert (ratio.low, ratio.high) == pytest.approx((2.7, 3.3))  # the second is certain
    both = Ratio(2.0, 1.8, 2.2).times(Ratio(1.5, 1.2, 1.8))
    assert both.low < 1.5 * 1.8 and both.low > 1.2 * 1.8 and 1.8 * 2.2 > both.high > 1.5 * 2.2
