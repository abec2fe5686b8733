"""Several models on one machine, placed together."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from xml.etree import ElementTree

import numpy as np
import openvino as ov
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import ov_hsdag
from ov_hsdag.applications import application as applications
from ov_hsdag.applications import model_timing, plan_trials, planning
from ov_hsdag.applications.application import Application, Member
from ov_hsdag.applications.application_file import read_application
from ov_hsdag.applications.runner import ApplicationRunner
from ov_hsdag.cli.command_lines import command_of
from ov_hsdag.measuring import choice
from ov_hsdag.measuring.runner import Copies, Runner
from ov_hsdag.model.affinities import set_affinities
from ov_hsdag.model.inputs import timed_inputs
from ov_hsdag.model.replay import Replay
from ov_hsdag.model.workload import Workload
from ov_hsdag.placers.multilevel import Multilevel
from ov_hsdag.placing.candidates import NamedPlacement, find_candidates
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.storage.model_folder import pipeline
from ov_hsdag.utils.errors import RunError, UserError
from tests.commands import assert_one_error_line, ran, run
from tests.conftest import GENEROUS
from tests.decoders import stateful_decoder
from tests.graphs import convolutions, every_placement, random_inputs, random_problem
from tests.worker_faults import starting

PAIR = "HETERO:CPU_A,CPU_B"
FAST = Multilevel(settings="fast")


def application(
    seed: int, models: int, devices: int, objective: str, *, room: float = 0.0, chain: bool = False, nodes: int = 6
) -> Application:
    """Random models; room: share of their memory that each device has, 0 for no limit."""
    random = np.random.default_rng(seed)
    problems = [
        random_problem(1000 * seed + number, nodes=nodes, devices=devices, objective=objective, submodel_us=2.0)
        for number in range(models)
    ]
    if room:
        needs = sum(problem.evaluate(problem.singles).memory_bytes.max() for problem in problems)
        problems = [replace(one, memory_bytes=np.full(devices, int(room * needs), np.int64)) for one in problems]
    counts = random.integers(1, 4, models).tolist()
    after = [(f"m{number - 1}",) if chain and number else () for number in range(models)]
    members = zip(problems, counts, after, strict=True)
    return Application(
        tuple(
            Member(f"m{number}", problem, float(count), find_candidates(problem, []), sources)
            for number, (problem, count, sources) in enumerate(members)
        ),
        objective,
    )


def best_possible(app: Application) -> float:
    """Over all placements of two models, by brute force."""
    first, second = app.members
    every = [every_placement(one.problem) for one in app.members]
    one, two = (member.problem.evaluate(batch) for member, batch in zip(app.members, every, strict=True))
    memory = one.memory_bytes[:, None] + two.memory_bytes[None]
    able = (~one.broken[:, None]) & (~two.broken[None]) & (memory <= app.limits).all(axis=2)
    if app.objective == "throughput":
        value = (first.count * one.busy_us[:, None] + second.count * two.busy_us[None]).max(axis=2)
    else:
        alone, other = first.count * one.latency_us[:, None], second.count * two.latency_us[None]
        shared = ((one.busy_us > 0)[:, None] & (two.busy_us > 0)[None]).any(axis=2) | bool(second.after)
        value = np.where(shared, alone + other, np.maximum(alone, other))
    return float(np.where(able, value, np.inf).min())


def with_kinds(problem: PlacementProblem, kinds: list[int]) -> PlacementProblem:
    """The problem with equal links, on devices of which those of one number are equal."""
    links = np.ones((len(kinds), len(kinds)))
    node_us = problem.node_us[:, :1] * (1.0 + np.array(kinds))
    return replace(problem, node_us=node_us, transfer_us=links, transfer_us_per_byte=links)


class TestPlans:
    @pytest.mark.slow
    @pytest.mark.parametrize("objective", ["throughput", "latency"])
    def test_close_to_the_best_of_all_placements(self, objective: str) -> None:
        ratios = []
        for seed in range(12):
            app = application(seed, 2, 2, objective, chain=seed % 3 == 0)
            plans = app.plan(FAST)
            ratios.append(float(app.scores(plans[app.best(plans)][None])[0]) / best_possible(app))
            split = [way not in one.whole for way, one in zip(plans["one split"], app.members, strict=True)]
            whole, single = app.scores(np.stack([plans["whole"], plans["one split"]]))
            assert sum(split) <= 1 and single <= whole
        assert min(ratios) >= 1 - 1e-9
        assert np.mean(ratios) < 1.02 and max(ratios) < 1.2

    @pytest.mark.slow
    @settings(max_examples=8, deadline=None)
    @given(st.integers(0, 10**6), st.sampled_from(["throughput", "latency"]), st.booleans())
    def test_never_worse_than_any_assignment_of_whole_models(self, seed: int, objective: str, chain: bool) -> None:
        app = application(seed, 4, 3, objective, chain=chain)
        plans = app.plan(FAST)
        chosen = float(app.scores(plans[app.best(plans)][None])[0])
        whole = [self._value(app, devices) for devices in product(range(3), repeat=4)]
        assert chosen <= min(whole) * (1 + 1e-9)

    @staticmethod
    def _value(app: Application, devices: Sequence[int]) -> float:
        """An assignment's objective, added up by hand."""
        busy, ends, free = np.zeros(3), dict[str, float](), np.zeros(3)
        for number in app.order:
            member, device = app.members[number], devices[number]
            us = member.count * float(member.problem.evaluate(member.problem.single(device)).latency_us[0])
            busy[device] += us
            ends[member.name] = max(free[device], *(ends[name] for name in member.after), 0.0) + us
            free[device] = ends[member.name]
        return float(busy.max() if app.objective == "throughput" else max(ends.values()))

    def test_more_assignments_than_can_be_enumerated(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(applications, "_ENUMERATED", 10)
        app = application(3, 7, 3, "throughput")
        found = app.scores(app.whole_assignments())
        everything = np.array(list(product(*(member.whole for member in app.members))), np.int64)
        assert found[0] == found.min() <= 1.05 * app.scores(everything).min()

    @pytest.mark.slow
    @pytest.mark.parametrize("seed", [0, 2])
    def test_memory_is_that_of_all_models(self, seed: int) -> None:
        app = application(seed, 2, 2, "throughput", room=0.65)
        plans = app.plan(FAST)
        chosen = app.evaluate(plans[app.best(plans)][None])
        assert (chosen.memory_bytes <= app.limits).all()
        assert float(chosen.score("throughput")[0]) <= 1.3 * best_possible(app)
        with pytest.raises(RunError, match=r"do not fit together: they need .* of the "):
            application(seed, 2, 2, "throughput", room=0.3).plan(FAST)

    def test_what_is_wrong_with_an_application_is_told(self) -> None:
        one, two = application(0, 2, 2, "latency").members
        for members, told in (
            ((), "at least one model"),
            ((replace(one, count=0.0),), "has a count of 0"),
            ((replace(one, after=("other",)),), "'other', which is no model"),
            ((replace(one, after=("m1",)), replace(two, after=("m0",))), "goes in a circle"),
        ):
            with pytest.raises(UserError, match=told):
                Application(members, "latency")
        model = convolutions(8)
        for wrong, told in (
            ({"a": model, "b": model}, "a model has two names"),
            ({"a": ov_hsdag.ModelOf(model, count=0.5)}, "runs 0.5 times: a run alone"),
            ({"a": ov_hsdag.ModelOf(model, after=("a",))}, "goes in a circle"),  # before anything is analysed
        ):
            with pytest.raises(UserError, match=told):
                ov_hsdag.place_together(wrong, "HETERO:GPU.7,NPU.7", objective="latency")
        for seconds in (0.0, 1e12, math.nan):
            with pytest.raises(UserError, match="measuring must have more than 0 and at most"):
                ov_hsdag.place_together({"a": model}, "HETERO:GPU.7,NPU.7", measure_seconds=seconds)

    def test_equal_devices_leave_room_for_what_differs(self) -> None:
        """Of four models on eight equal devices 1,680 assignments are the same."""
        problem = random_problem(5, nodes=4, devices=8, objective="throughput")
        problem = with_kinds(problem, [0] * 8)
        ways = [NamedPlacement(name, problem.single(place)) for place, name in enumerate(problem.devices)]
        members = [Member(f"m{number}", problem, count, [*ways]) for number, count in enumerate((2.0, 2.0, 2.0, 2.5))]
        app = Application(tuple(members), "throughput")
        best, second = app.distinct_whole(2)
        assert len(set(best.tolist())) == 4 and len(set(second.tolist())) == 3

    def test_what_costs_as_much_on_unequal_devices_is_no_exchange(self) -> None:
        """Measured, the two may differ by what costs do not tell."""
        problem = random_problem(5, nodes=4, devices=2, objective="throughput")
        for equal in (False, True):
            own = with_kinds(problem, [0, 0 if equal else 1])
            ways = [NamedPlacement(name, own.single(place)) for place, name in enumerate(own.devices)]
            app = Application(tuple(Member(name, own, 1.0, [*ways]) for name in ("a", "b")), "throughput")
            swapped = np.array([[0, 1], [1, 0], [0, 0], [1, 1]])
            judged = app.evaluate(swapped)
            assert sorted(judged.busy_us[0]) == sorted(judged.busy_us[1])
            assert app.distinct(swapped).tolist() == ([0, 2] if equal else [0, 1, 2, 3])

    @pytest.mark.parametrize("kinds", [[0, 0, 0], [0, 1, 0], [0, 1, 1], [0, 1, 2]])
    def test_assignments_are_distinct_up_to_exchanges_of_equal_devices(self, kinds: list[int]) -> None:
        problem = with_kinds(random_problem(5, nodes=6, devices=3, objective="throughput"), kinds)
        assert (problem.kinds[:, None] == problem.kinds).tolist() == [
            [one == other for other in kinds] for one in kinds
        ]
        placements = problem.random(np.random.default_rng(0), 6)
        ways = [NamedPlacement(str(number), one) for number, one in enumerate(placements)]
        app = Application(tuple(Member(name, problem, 1.0, [*ways]) for name in ("a", "b")), "throughput")
        every = [
            np.array(order, np.uint8)
            for order in permutations(range(3))
            if all(kinds[device] == kinds[other] for device, other in enumerate(order))
        ]
        for member in app.members:  # each way with its devices exchanged
            for placement in placements:
                for order in every:
                    member.way(order[placement])
        assignments = np.array(list(product(*(range(len(member.ways)) for member in app.members))), np.int64)

        def least(assignment: list[int]) -> bytes:
            pairs = zip(app.members, assignment, strict=True)
            both = np.concatenate([member.ways[way].placement for member, way in pairs])
            return min(order[both].tobytes() for order in every)

        first: dict[bytes, int] = {}
        for number, assignment in enumerate(assignments.tolist()):
            first.setdefault(least(assignment), number)
        assert app.distinct(assignments).tolist() == list(first.values())

    def test_the_order_is_the_same_whatever_splits_are_known(self) -> None:
        members = []
        for one, share in zip(application(0, 2, 2, "throughput").members, (1.0, 0.9), strict=True):
            every, alone = every_placement(one.problem), one.problem.evaluate(one.problem.singles).latency_us.min()
            slow = NamedPlacement("slow", every[one.problem.evaluate(every).latency_us.argmax()])
            members.append(replace(one, count=share / float(alone), ways=one.ways if share == 1 else [slow]))
        assert Application(tuple(members), "throughput").order == [0, 1]

    def test_a_plan_without_splits_has_to_gain_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        app = application(0, 2, 2, "throughput")
        found = {name: np.array([row, row], np.int64) for row, name in enumerate(("on D0", "whole", "together"))}
        monkeypatch.setattr(Application, "scores", lambda *_: np.array([1000.0, 999.0, 998.0]))
        assert app.best(found) == "whole"


def models() -> dict[str, ov.Model]:
    return {"detector": convolutions(48), "who": convolutions(16), "what": convolutions(24)}


def application_file(folder: Path, key: str, values: Sequence[int], more: str = "") -> Path:
    """A file of these models, beside it; key: "count" or "rate" of each."""
    text = f'device = "{PAIR}"\n{more}\n'
    for (name, model), value in zip(models().items(), values, strict=True):
        ov.save_model(model, folder / f"{name}.xml", compress_to_fp16=False)
        after = "" if name == "detector" else 'after = ["detector"]\n'
        text += f'[models.{name}]\npath = "{name}.xml"\n{key} = {value}\n{after}'
    (folder / "app.toml").write_text(text)
    return folder / "app.toml"


def outputs(core: ov.Core, model: ov.Model | Path, device: str, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    return [np.array(one) for one in core.compile_model(model, device)(list(inputs)).values()]


@pytest.mark.parametrize("factor", [0.5, 1.0, 4.0])
def test_a_split_tells_what_boundaries_take(factor: float) -> None:
    problem = random_problem(3, nodes=40, devices=2, objective="throughput", submodel_us=3.0)
    split = problem.repair(np.arange(problem.group_count) * 2 // problem.group_count)
    assert split.min() != split.max()
    took = float(applications.scale_costs(problem, np.ones(2), factor).scores(split)[0])
    found = model_timing.boundary_factor(problem, split, took)
    assert found == pytest.approx(factor, rel=0.15)
    scaled = applications.scale_costs(problem, np.ones(2), found)
    np.testing.assert_allclose(scaled.scores(problem.singles), problem.scores(problem.singles), rtol=1e-6)


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The arguments of each comparison of plans, none of which runs."""
    asked = list[tuple[tuple[Any, ...], dict[str, Any]]]()

    def refuse(*arguments: Any, **more: Any) -> None:
        asked.append((arguments, more))
        raise RunError("not now")

    for module in (model_timing, plan_trials):
        monkeypatch.setattr(module, "Comparison", refuse)
    return asked


@pytest.mark.usefixtures("declared", "fast_search")
class TestOnDevices:
    def test_models_compute_the_same_and_follow_the_plan(self, core: ov.Core) -> None:
        given, plain = models(), models()
        plan = ov_hsdag.place_together(given, PAIR, counts={"who": 4, "what": 4}, core=core)
        made_with = plan.placements["who"].settings or {}
        assert not command_of(plan.placements["who"]), "it would name one model of several"
        assert made_with["virtual_devices"] and made_with["command"] == "plan"
        assert plan.gain is not None and plan.gain > 1.5 and plan.chosen in ("whole", "one split", "together")
        assert set(plan.models) == set(given) and plan.models["who"].count == 4
        total = {device: sum(one.busy_us[device] for one in plan.models.values()) for device in plan.devices}
        assert total == pytest.approx(plan.predicted["busy_us"], rel=1e-3)
        for name, model in given.items():
            assert ov_hsdag.Placement.of(model) is not None
            inputs = random_inputs(plain[name])
            expected = outputs(core, plain[name], "CPU_A", inputs)
            for one, other in zip(expected, outputs(core, model, PAIR, inputs), strict=True):
                np.testing.assert_allclose(other, one, rtol=1e-3, atol=1e-4)

    def test_a_model_that_there_is_no_time_to_time_is_told(self, core: ov.Core) -> None:
        with pytest.warns(UserWarning) as told:
            ov_hsdag.place_together({"one": convolutions(8)}, PAIR, measure=True, measure_seconds=1e-3, core=core)
        assert "'one' could not be timed" in str(told[0].message)

    @pytest.mark.slow
    def test_plans_that_do_not_fit_are_not_measured(self, core: ov.Core, refused: list[Any]) -> None:
        given = {name: convolutions(16) for name in ("one", "two")}
        alone = ov_hsdag.place_together({name: convolutions(16) for name in given}, PAIR, core=core)
        limits = dict.fromkeys(alone.devices, max(alone.predicted["memory_bytes"].values()))
        with pytest.warns(UserWarning, match="not now"):
            ov_hsdag.place_together(given, PAIR, measure=True, core=core, memory=limits)
        tried = refused[-1][0][2]
        assert "whole" in tried and not {"whole, 2", "on CPU_A", "on CPU_B"} & tried.keys()

    def test_the_best_plan_by_the_profile_runs_too(
        self, core: ov.Core, monkeypatch: pytest.MonkeyPatch, refused: list[Any]
    ) -> None:
        expected = ov_hsdag.place_together({"one": convolutions(16), "other": convolutions(8)}, PAIR, core=core)
        assert expected.chosen in ("one split", "together")
        # Boundaries seem to take much longer than they do.
        monkeypatch.setattr(planning, "time_model", lambda *_: {"CPU_A": 1.0, "CPU_B": 1.0, "boundaries": 1e3})
        with pytest.warns(UserWarning, match="not now"):
            given = {"one": convolutions(16), "other": convolutions(8)}
            plan = ov_hsdag.place_together(given, PAIR, measure=True, core=core)
        assert plan.baselines[f"{expected.chosen} (by profile)"]["where"] == expected.predicted["where"]
        assert f"{expected.chosen} (by profile)" in refused[-1][0][2]

    @pytest.mark.slow
    def test_the_best_as_measured_is_chosen(self, core: ov.Core, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(choice, "REGRET", math.inf)  # the first rounds are enough
        plan = ov_hsdag.place_together(models(), PAIR, measure=True, measure_seconds=GENEROUS, core=core)
        assert plan.measured is not None and plan.measured[plan.chosen]["failed"] is None
        ran = {name: one for name, one in plan.measured.items() if not one["failed"]}
        best = max(one["ratio"] for one in ran.values() if one["ratio"])
        # A better one that two rounds have not proven stays out.
        assert best >= plan.measured[plan.chosen]["ratio"] >= 1 / (1 + choice.GAIN)

    def test_the_best_plan_without_splits_runs_first(self, core: ov.Core, refused: list[Any]) -> None:
        with pytest.warns(UserWarning, match="not now"):
            plan = ov_hsdag.place_together(models(), PAIR, measure=True, core=core)
        rates = {name: one["runs_per_second"] for name, one in (plan.baselines | {plan.chosen: plan.predicted}).items()}
        order = refused[-1][1]["first"]
        simple, *others = order
        whole = [name for name in order if name.startswith(("whole", "on "))]
        assert simple == max(whole, key=rates.__getitem__) and len({*others, simple}) == len(order)
        assert len({"on CPU_A", "on CPU_B"} & {*order}) == 1 and others.pop(0).startswith("on "), "devices are equal"
        assert others == sorted(others, key=rates.__getitem__, reverse=True)
        first, second = (
            list(plan.baselines.get(name, plan.predicted)["where"].values()) for name in sorted(whole)[-2:]
        )
        assert [one == first[0] for one in first] != [one == second[0] for one in second], "devices are equal"

    @pytest.mark.slow
    def test_workers_that_are_killed_leave_a_plan_by_prediction(self, core: ov.Core) -> None:
        split = [f"{name}{by}" for name in ("one split", "together") for by in ("", " (by profile)")]
        plans = ("whole", "whole, 2", "alone", *split, "on CPU_A", "on CPU_B")
        killed = starting(dict.fromkeys(plans, "killed_running"))
        with pytest.warns(UserWarning, match="the plan is chosen by prediction: .*SIGKILL"):
            plan = ov_hsdag.place_together(
                models(), PAIR, measure=True, measure_seconds=GENEROUS, core=core, policy="none", start_worker=killed
            )
        assert plan.measured is None and plan.predicted["runs_per_second"] > 0

    def test_files(self, tmp_path: Path, core: ov.Core) -> None:
        file = application_file(tmp_path, "rate", [1000, 4000, 4000])
        done = ran("plan", file, "--no-measure", "--output", tmp_path / "out", "--json")
        told = json.loads(done.stdout)
        assert told["asked"] == 1.0 and told["models"]["who"]["after"] == ["detector"]
        plan = ov_hsdag.Plan.load(tmp_path / "out/plan.json")
        assert json.loads(json.dumps(plan.to_dict())) == json.loads((tmp_path / "out/plan.json").read_text()) == told
        for one in plan.models.values():
            assert ov_hsdag.Placement.of(core.read_model(tmp_path / "out" / (one.path or ""))) is not None
        verified = ran("verify", tmp_path / "out/plan.json", "--device", PAIR, "--json")
        found = json.loads(verified.stdout)["models"]
        assert found.keys() == models().keys() and all(one["equal"] for one in found.values())
        again = run("report", tmp_path / "out/plan.json", "--output", tmp_path / "plan.svg")
        drawn = {one.text for one in ElementTree.parse(tmp_path / "plan.svg").iter("{http://www.w3.org/2000/svg}text")}
        assert {"one run alone", "memory", "CPU_A", "CPU_B"} <= drawn
        assert any(one and one.startswith("who: 4000 in a run") for one in drawn)
        assert_one_error_line(run("plan", tmp_path / "out/plan.json", "--report", "plan.png"), "is an .svg")
        for option, value in {"--objective": "latency", "--memory": "CPU_A=1GiB", "--device": PAIR}.items():
            shown = run("plan", tmp_path / "out/plan.json", option, value)
            assert_one_error_line(shown, f"{option} is for placing, and this plan is only shown")
        assert_one_error_line(run("report", tmp_path / "out/plan.json", "--part", "who"), "--part is for one model")
        assert again.returncode == 0 and "rates: not reached" in again.stdout and "is full" in again.stdout
        slow = replace(plan, objective="latency", measured={plan.chosen: {"latency_us": 3.0, "ratio": 1, "ci": [1, 1]}})
        reached = f"rates: not reached, {plan.predicted['runs_per_second']:.2f} times"
        assert reached in slow.fullest(), "where a latency was measured"
        damaged = {key: one for key, one in told["predicted"].items() if key != "latency_us"}
        measured = {plan.chosen: {"runs_per_second": 1.0, "ratio": 1.0, "ci": [1.0]}}
        for wrong in ({"models": {"a": 3}}, {"predicted": damaged}, {"asked": 0}, {"measured": measured}):
            (tmp_path / "out/plan.json").write_text(json.dumps({**told, **wrong}))
            assert_one_error_line(run("plan", tmp_path / "out/plan.json"), "is no plan of several models")

    def test_nothing_is_measured_without_a_temporary_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = application_file(tmp_path, "count", [1, 1, 1])

        monkeypatch.setattr("ov_hsdag.storage.scratch.tempfile", Mock(gettempdir=Mock(side_effect=OSError("none"))))
        done = ran("plan", file, "--output", tmp_path / "out", "--json")
        assert json.loads(done.stdout)["measured"] is None
        assert done.stderr.startswith("warning: nothing is measured, the placement is chosen by prediction: measuring")

    @pytest.mark.slow
    def test_a_pipeline_as_one_folder(self, tmp_path: Path, core: ov.Core, monkeypatch: pytest.MonkeyPatch) -> None:
        source = tmp_path / "pipeline"
        for part, width in {"text_encoder": 8, "unet": 32, "vae_decoder": 16, "vae_encoder": 8}.items():
            (source / part).mkdir(parents=True)
            model = convolutions(width)
            model.inputs[0].set_names({f"{part}_input"})
            ov.save_model(model, source / part / "openvino_model.xml", compress_to_fp16=False)
        (source / "model_index.json").write_text("{}")
        out = tmp_path / "placed"
        command = ("place", source, "--together", "--device", PAIR, "--no-measure", "--output", out)
        shape = ("--shape", "unet_input=[1,3,32,32]")
        done = ran(*command, "--count", "unet=5", "--objective", "throughput", *shape, "--json")
        told = json.loads(done.stdout)["models"]
        assert {name: one["count"] for name, one in told.items()} == {"text_encoder": 1, "unet": 5, "vae_decoder": 1}
        assert told["vae_decoder"]["after"] == ["unet"] and told["unet"]["after"] == ["text_encoder"]
        assert (out / "model_index.json").exists() and (out / "vae_encoder/openvino_model.xml").exists()
        for name in told:
            path = out / name / "openvino_model.xml"
            placement = ov_hsdag.Placement.of(core.read_model(path))
            assert placement is not None and ("shapes" in (placement.settings or {})) == (name == "unet")
            inputs = random_inputs(core.read_model(path))
            expected = outputs(core, source / name / "openvino_model.xml", "CPU_A", inputs)
            np.testing.assert_allclose(outputs(core, path, PAIR, inputs)[0], expected[0], rtol=1e-3, atol=1e-4)
        for option, value, told_of in (
            ("--count", "unet=0", "'unet' has a count of 0"),
            ("--count", "u=2", "there is a count of 'u'"),
            ("--shape", "other=[1]", "unknown input 'other'"),
            ("--report", "page.html", "is an .svg"),
            ("--workload", "nonsense", "cannot read workload"),
            ("--workload", "prompt=1,generate=2", "has no states, so it has no workload"),
        ):
            assert_one_error_line(run(*command, option, value), told_of)
        monkeypatch.chdir(source / "unet")
        assert_one_error_line(run("plan", "..", "--device", PAIR), "cannot write 'pipeline_plan': it is inside")
        (tmp_path / "empty").mkdir()
        monkeypatch.chdir(tmp_path / "empty")
        ran("plan", source, "--device", PAIR, "--no-measure", *shape, "--output", ".")
        assert ov_hsdag.Plan.load(tmp_path / "empty.plan.json").models["unet"].path == "empty/unet/openvino_model.xml"
        for option, value in {"--context": "64", "--part": "unet", "--experts": "CPU_A"}.items():
            assert_one_error_line(run(*command, option, value), f"{option} is for one model, not for --together")


@pytest.fixture(scope="class")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of three models, by prediction."""
    file = application_file(tmp_path_factory.mktemp("written"), "count", [1, 4, 4], 'memory = {CPU_A = "1GiB"}')
    ran("plan", file, "--no-measure", "--output", file.with_name("out"))
    return file.with_name("out") / "plan.json"


@pytest.mark.usefixtures("declared", "fast_search")
class TestWrittenPlans:
    @pytest.mark.slow
    def test_bench_runs_the_whole(self, written: Path, tmp_path: Path) -> None:
        done = ran("bench", written, "-d", PAIR, "--rounds", 2, "--json", "--output", tmp_path / "rows.csv")
        told, plan = json.loads(done.stdout), ov_hsdag.Plan.load(written)
        assert told["objective"] == "throughput" and not told["models"][0]["left_out"]
        rows = {row["placer"]: row for row in told["models"][0]["results"]}
        assert list(rows) == ["CPU_A", "CPU_B", "whole", "whole, 2", "plan"]
        assert all(row["measured"] > 0 and row["rounds"] and not row["failed"] for row in rows.values())
        assert max(rows[name]["ratio"] for name in ("CPU_A", "CPU_B")) == pytest.approx(1)
        for name, known in (("plan", plan.predicted), ("whole", plan.baselines["whole"])):
            assert rows[name]["predicted_ips"] == pytest.approx(known["runs_per_second"], rel=1e-3)
        assert rows["whole"]["predicted_ips"] >= rows["whole, 2"]["predicted_ips"] >= rows["CPU_A"]["predicted_ips"]
        assert len((tmp_path / "rows.csv").read_text().splitlines()) == 6

    @pytest.mark.slow
    def test_bench_leaves_out_what_does_not_fit(self, written: Path) -> None:
        plan, small = ov_hsdag.Plan.load(written), written.with_name("small.json")
        most = plan.baselines["on CPU_A"]["memory_bytes"]["CPU_A"] - 1
        replace(plan, memory=dict.fromkeys(plan.devices, most)).save(small)
        done = ran("bench", small, "-d", PAIR, "--rounds", 1, "--objective", "latency", COLUMNS="200")
        assert done.stdout.count("left out: does not fit") == 2 and "latency on" in done.stdout
        # An application of one model that runs several times is none of single inferences.
        replace(plan, models={"who": replace(plan.models["who"], after=())}).save(small)
        told = json.loads(ran("bench", small, "-d", PAIR, "--rounds", 1, "--json").stdout)
        assert all(row["measured"] > 0 for row in told["models"][0]["results"])

    def test_explain_tells_what_moves_cost(self, written: Path) -> None:
        plan, told = ov_hsdag.Plan.load(written), json.loads(ran("explain", written, "--json").stdout)
        busy = told["predicted"]["busy_us"]
        assert busy == pytest.approx(plan.predicted["busy_us"], rel=1e-3) and told["memory"]["CPU_A"] == 2**30
        assert told["chosen"] == plan.chosen and told["baselines"] == plan.to_dict()["baselines"]
        assert [one["path"] for one in told["models"].values()] == [one.path for one in plan.models.values()]
        assert "CPU_A" not in json.loads(ran("explain", written, "-d", "HETERO:CPU_B,CPU", "--json").stdout)["memory"]
        whole = {name: one for name, one in told["models"].items() if one["where"] in busy}
        assert whole and told["moves"].keys() == told["models"].keys()
        for name, one in whole.items():  # the devices are alike
            (other,) = busy.keys() - {one["where"]}
            work = one["busy_us"][one["where"]]
            period = max(busy[one["where"]] - work, busy[other] + work)
            assert told["moves"][name] == {other: pytest.approx(period - max(busy.values()), abs=0.1)}
        tight = json.loads(ran("explain", written, "--memory", "CPU_A=1KiB,CPU_B=1KiB", "--json").stdout)
        assert {us for moves in tight["moves"].values() for us in moves.values()} == {None}
        text = ran("explain", written, "--objective", "latency", COLUMNS="200").stdout
        full = f"the fullest device is {told['full']}, and "
        assert all(part in text for part in (full, "moved to", " of 1 GiB", "(latency): plan, predicted "))

    def test_explain_counts_what_was_timed(self, written: Path) -> None:
        data, slow = json.loads(written.read_text()), written.with_name("slow.json")
        timed = {"CPU_A": 3.0, "CPU_B": 2.0}
        for one in data["models"].values():
            one["timed"] = timed
        slow.write_text(json.dumps(data))
        told = json.loads(ran("explain", slow, "--json").stdout)
        for name, one in data["models"].items():
            if one["where"] in timed:
                expected = timed[one["where"]] * one["busy_us"][one["where"]]
                assert told["models"][name]["busy_us"][one["where"]] == pytest.approx(expected, rel=1e-3)
        data["models"]["who"]["timed"] = {"CPU_A": "fast"}
        slow.write_text(json.dumps(data))
        assert_one_error_line(run("explain", slow), "is no plan of several models: timed of 'who' must be")

    def test_what_was_timed_holds_for_its_own_prices(self, written: Path) -> None:
        data, other = json.loads(written.read_text()), written.with_name("other.json")
        data["models"]["who"] |= {"timed": {"CPU_A": 3.0, "CPU_B": 2.0}, "count": 0.5}
        other.write_text(json.dumps(data))
        told = "'who' runs 0.5 times: a run alone, for latency, has whole inferences"
        assert_one_error_line(run("explain", other, "--objective", "latency"), told)
        data["models"]["who"]["count"] = 4
        other.write_text(json.dumps(data))
        words = ("--objective", "latency", "--json")
        scaled, plain = (json.loads(ran("explain", one, *words).stdout) for one in (other, written))
        assert scaled["predicted"] == plain["predicted"]

    def test_what_is_wrong_is_told(self, written: Path, tmp_path: Path) -> None:
        saved, plan, plain = tmp_path / "saved.json", ov_hsdag.Plan.load(written), convolutions(8)
        replace(plan, models={name: replace(one, path=None) for name, one in plan.models.items()}).save(saved)
        for words in (("verify", saved, "-d", PAIR), ("bench", saved, "-d", PAIR), ("explain", saved)):
            assert_one_error_line(run(*words), "was saved in Python, without its models' files")
        assert_one_error_line(run("explain", written, "--node", "a"), "--node is for one model, not for a plan")
        assert_one_error_line(run("bench", written, written, "-d", PAIR), "--model is for one model, not for a plan")
        ov.save_model(plain, tmp_path / "plain.xml")
        replace(plan, models={"who": replace(plan.models["who"], path="plain.xml", after=())}).save(saved)
        assert_one_error_line(run("explain", saved), "'who': the model carries no placement")


def test_copies_are_refused_and_not_left_out(core: ov.Core) -> None:
    model = convolutions(8)
    inputs = timed_inputs(model)
    runner = Runner(core.compile_model(model, "CPU_A"), inputs, "throughput", 1)
    with pytest.raises(RuntimeError, match="not as copies"):
        ApplicationRunner([runner, Copies([runner], inputs)], "throughput", [1.0, 1.0], [[], []], [0, 1])


def test_requests_go_on_where_another_begins_with_a_prompt(core: ov.Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each conversation has its own states: only the request that had the prompt is set back for tokens."""
    model, rewound = stateful_decoder(1), list[Replay]()
    rewind = Replay.rewind
    monkeypatch.setattr(Replay, "rewind", lambda self: (rewound.append(self), rewind(self)))
    inputs = timed_inputs(model, phases=Workload(prompt=8, generate=6).phases(model))
    runner = Runner(core.compile_model(model, "CPU_A"), inputs, "throughput", 4)
    together = ApplicationRunner([runner], "throughput", [7.0], [[]], [0])
    tokens = runner.phases[1]
    rewound.clear()
    assert together.rate(0.0) > 0
    runs = together._at[0] / 7
    assert together._at[0] == len(runner.finished) >= 3 * 7
    assert sum(one in tokens._replays for one in rewound) <= runs + 1, "not all four for each prompt"
    begins, start, before = list[int](), Runner.start_next, together._at[0]
    monkeypatch.setattr(Runner, "start_next", lambda self, number: (begins.append(number), start(self, number)))
    together.rate(0.0)
    assert begins[0] == before, "a trial may have less than a workload, and others of them the rest"
    time.sleep(0.02)  # OpenVINO's callbacks still want the GIL, with which freeing their queues waits for them


@pytest.mark.parametrize(("long", "runs"), [(math.inf, 3), (0.0, 1)])
def test_trials_leave_nothing_behind(core: ov.Core, monkeypatch: pytest.MonkeyPatch, long: float, runs: int) -> None:
    monkeypatch.setattr("ov_hsdag.applications.runner._LONG", long)
    made = [convolutions(8), convolutions(16)]
    for objective, kept in (("latency", [runs, 3 * runs]), ("throughput", None)):
        runners = [Runner(core.compile_model(one, "CPU_A"), timed_inputs(one), objective, 8) for one in made]
        together = ApplicationRunner(runners, objective, [1.0, 3.0], [[], [0]], [0, 1])
        for _ in range(2):
            assert together.rate(0.0) > 0 and together._ends.empty()
            done = [len(one.finished) for one in runners]
            assert kept in (None, done) and abs(done[0] - done[1] / 3) <= 2, "none goes on alone"
        for _ in range(2 if kept else 0):
            assert runners[0].rate(0.0) > 0 and len(runners[0].finished) == 1
        time.sleep(0.02)  # OpenVINO's callbacks still want the GIL, with which freeing their queues waits for them


@pytest.mark.parametrize(
    ("long", "counts", "least"), [(math.inf, [10.0, 30.0], [60, 180]), (0.1, [20.0, 4e6], [1, 60])]
)
def test_trials_have_whole_workloads(
    core: ov.Core, monkeypatch: pytest.MonkeyPatch, long: float, counts: list[float], least: list[int]
) -> None:
    monkeypatch.setattr("ov_hsdag.applications.runner._LONG", long)
    step, frame = timed_inputs(convolutions(8)), timed_inputs(convolutions(16))
    phases = [replace(step[0], name=name, count=count) for name, count in (("prompt", 1.0), ("token", 9.0))]
    runners = [
        Runner(core.compile_model(convolutions(width), "CPU_A"), inputs, "throughput", 2)
        for width, inputs in ((8, phases), (16, frame))
    ]
    together = ApplicationRunner(runners, "throughput", counts, [[], []], [0, 1])
    assert together.shortest_trial < 5 and together.rate(0.0) > 0
    assert all(len(one.finished) >= number for one, number in zip(runners, least, strict=True))
    time.sleep(0.02)  # as above


@pytest.mark.parametrize("others", ["CPU_A", "CPU_B", "HETERO:CPU_A,CPU_B"])
def test_devices_work_at_the_same_time(core: ov.Core, others: str) -> None:
    """A run takes as long as the device that has most to do; a split holds all of its devices."""
    split = convolutions(16)
    names = [one.get_friendly_name() for one in split.get_ordered_ops()]
    set_affinities(split, {name: f"CPU_{'AB'[2 * number // len(names)]}" for number, name in enumerate(names)})
    models = (convolutions(8), "CPU_A"), (split, others)
    runners = [Runner(core.compile_model(one, on), timed_inputs(one), "throughput", 2) for one, on in models]
    seconds = [count * one.mean_inference for count, one in zip((1.0, 3.0), runners, strict=True)]
    run = max(seconds) if others == "CPU_B" else sum(seconds)
    assert ApplicationRunner(runners, "throughput", [1.0, 3.0], [[], []], [0, 1]).shortest_trial == pytest.approx(
        6 * run
    )
    time.sleep(0.02)  # as above


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("device = 3", "must be str"),
        ("[models.a", "is no TOML"),
        (f"a = {'[' * 10**5}", "is no TOML"),
        ("speed = 1", "has no 'speed'"),
        ("", "it names no models"),
        ("[models.a]\ncount = 1", "has no path"),
        ('[models."../a"]\npath = "a.xml"', "'../a' cannot be a model's name"),
        ('[models.a]\npath = "none.xml"', "there is no '"),
        ('[models.a]\npath = "a.xml"\nrate = 0', "has a rate of 0"),
        ('[models.a]\npath = "a.xml"\nrate = -inf', "has a rate of -inf"),
        (
            '[models.a]\npath = "a.xml"\ncount = 1e308',
            "has a count of 1e+308: it has to be more than 0, and at",
        ),
        ('[models.a]\npath = "a.xml"\nafter = ["a"]', "[models.a] comes after itself"),
        (f'[models.a]\npath = "a.xml"\ncount = {10**400}', "int too large to convert to float"),
        ('[models.a]\npath = "a.xml"\nrate = 1\ncount = 1', "a rate and a count"),
        ('[models.a]\npath = "a.xml"\nrate = 1\n[models.b]\npath = "a.xml"', "'b' has none"),
        ('[models.a]\npath = "a.xml"\nafter = ["b"]', "'b', which is no model"),
        ('[models.a]\npath = "a.xml"\nafter = ["b"]\n[models.b]\npath = "a.xml"\nafter = ["a"]', "goes in a circle"),
        ('[models.a]\npath = "a.xml"\nafter = [["b"]]', "after must be list[str]"),
        ('[models.a]\npath = "a.xml"\ncounts = {unet = "a"}', "counts must be dict[str, float]"),
        ('[models.a]\npath = "a.xml"\nworkload = "prompt=1"', "needs both"),
        ('[models.a]\npath = "a.xml"\nworkload = "prompt=1,generate=2"', "has no states"),
        ('[models.a]\npath = "a.xml"\nshape = "[1"', "cannot read shape"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(tmp_path: Path, model: Path, text: str, told: str) -> None:
    for suffix in (".xml", ".bin"):
        (tmp_path / f"a{suffix}").write_bytes(model.with_suffix(suffix).read_bytes())
    file = tmp_path / "app.toml"
    file.write_text(text)
    done = run("plan", file, "--device", "HETERO:CPU,GPU", "--no-measure", "--output", tmp_path / "out")
    assert_one_error_line(done, told)
    assert not (tmp_path / "out").exists()


def test_no_output_takes_the_place_of_another_model(tmp_path: Path, model: Path) -> None:
    for name in ("a", "b"):
        for suffix in (".xml", ".bin"):
            (tmp_path / name).with_suffix(suffix).write_bytes(model.with_suffix(suffix).read_bytes())
    (tmp_path / "app.toml").write_text('[models.a]\npath = "b.xml"\n[models.b]\npath = "a.xml"')
    done = run("plan", tmp_path / "app.toml", "--device", "HETERO:CPU,GPU", "--no-measure", "--output", tmp_path)
    assert_one_error_line(done, "a.xml': it is the input; choose another output")


def test_who_waits_for_a_pipeline_waits_for_its_end(tmp_path: Path) -> None:
    folder = tmp_path / "whisper"
    folder.mkdir()
    for name in ("encoder_model", "decoder_model", "decoder_with_past_model", "tokenizer"):
        (folder / f"openvino_{name}.xml").write_text("")
    (tmp_path / "a.xml").write_text("")
    (tmp_path / "openvino_model.xml").write_text("")  # as optimum-intel exports language models
    assert pipeline(tmp_path)["model"].workload == "prompt=256,generate=64"
    assert {name: (role.after, role.count) for name, role in pipeline(folder).items()} == {
        "encoder_model": ((), 1),
        "decoder_model": (("encoder_model",), 1),
        "decoder_with_past_model": (("decoder_model",), 64),  # of an export without states, for each token
    }
    file = tmp_path / "app.toml"
    file.write_text('[models.hear]\npath = "whisper"\n[models.sum]\npath = "a.xml"\nafter = ["hear"]\ncount = 2')
    found: Mapping[str, Any] = read_application(file).models
    assert found["sum"].after == ("hear/decoder_with_past_model",) and found["sum"].count == 2
    assert found["hear/decoder_model"].usual == "prompt=4,generate=64"
