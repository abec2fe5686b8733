"""Workloads: prompts and tokens, what they cost and what they need."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

import ov_hsdag
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.model.workload import Workload, decoder_shapes, past_length
from ov_hsdag.placers.mincut import MinCut
from ov_hsdag.problem.pricing import ModelAnalysis, Session, prepare, resolve_profile
from ov_hsdag.utils.errors import UserError
from tests.commands import ran, run
from tests.conftest import GENEROUS
from tests.decoders import stateful_decoder
from tests.graphs import random_model, random_problem

DEVICES = DeviceSet.parse("HETERO:GPU,CPU")
WORKLOAD = Workload(prompt=64, generate=10, batch=2)


@pytest.fixture(scope="module")
def analysis() -> ModelAnalysis:
    model, core = stateful_decoder(3), ov.Core()
    shapes = WORKLOAD.phases(model)[-1].shapes
    return prepare(model, DEVICES.names, core, resolve_profile(None, DEVICES.names, core), shapes=shapes)


class TestWorkload:
    def test_text(self) -> None:
        assert Workload.parse("prompt=1024,generate=256") == Workload(1024, 256)
        assert Workload.parse(" generate = 2, batch=4 ,prompt=1") == Workload(1, 2, 4)
        assert Workload.parse("prompt=8,generate=2", context=99).tokens == 99
        assert Workload.parse("prompt=8,generate=2").tokens == 10

    @pytest.mark.parametrize(
        "text",
        [
            *("", "prompt=8", "generate=8", "prompt=8,generate=0", "prompt=8,generate=-1"),
            *("prompt=8,generate=2,prompt=8", "prompt=8,generate=2,beams=2", "prompt=1e3,generate=2"),
            *("prompt=8;generate=2", "prompt=8,generate=2,"),
        ],
    )
    def test_text_that_is_none(self, text: str) -> None:
        with pytest.raises(UserError, match="workload"):
            Workload.parse(text)

    def test_the_phases_of_a_decoder(self) -> None:
        phases = {phase.name: phase for phase in Workload(100, 20, 3, 4096).phases(stateful_decoder(1))}
        assert {name: phase.count for name, phase in phases.items()} == {"prompt": 1, "token": 20, "last token": 0}
        assert phases["prompt"].shapes == {
            "input_ids": (3, 100),
            "attention_mask": (3, 100),
            "position_ids": (3, 100),
            "beam_idx": (3,),
        }
        assert phases["token"].shapes["input_ids"] == (3, 1)
        assert phases["token"].shapes["attention_mask"] == (3, 110)
        assert phases["last token"].shapes["attention_mask"] == (3, 4096)

    def test_a_model_without_states_has_no_context(self) -> None:
        with pytest.raises(UserError, match="no input such as input_ids"):
            decoder_shapes(random_model(0), 1, 1, 1)
        ids = ops.parameter([-1, -1], ov.Type.i64, name="input_ids")
        ids.output(0).get_tensor().set_names({"input_ids"})
        with pytest.raises(UserError, match="has no states"):
            decoder_shapes(ov.Model([ops.result(ops.abs(ids))], [ids], "encoder"), 1, 1, 1)

    def test_embeddings_and_three_kinds_of_positions(self) -> None:
        inputs = {"inputs_embeds": [-1, -1, 64], "position_ids": [3, -1, -1], "attention_mask": [-1, -1]}
        parameters = [ops.parameter(shape, ov.Type.f32, name=name) for name, shape in inputs.items()]
        for parameter in parameters:
            parameter.output(0).get_tensor().set_names({parameter.get_friendly_name()})
        read = ops.read_value(np.zeros((1, 1), np.float32), "state")
        sink = ops.assign(read, "state")
        model = ov.Model([ops.result(ops.abs(parameter)) for parameter in parameters], [sink], parameters, "decoder")
        assert decoder_shapes(model, 2, 5, 9) == {
            "inputs_embeds": (2, 5, 64),
            "position_ids": (3, 2, 5),
            "attention_mask": (2, 9),
        }


def test_the_past_is_what_the_mask_has_beyond_the_tokens() -> None:
    model = stateful_decoder(1)
    assert past_length(model) is None
    model.reshape({"input_ids": [1, 3], "attention_mask": [1, 11], "position_ids": [1, 3], "beam_idx": [1]})
    assert past_length(model) == 8


def test_costs_are_the_mean_over_the_inferences(analysis: ModelAnalysis) -> None:
    core = ov.Core()
    profile = resolve_profile(None, DEVICES.names, core)
    found = Session(core, DEVICES, profile).price(analysis, "latency", phases=WORKLOAD.phases(analysis.model))
    assert found.counts == {"prompt": 1, "token": 10}
    alone = found.phases
    placement = found.problem.random(np.random.default_rng(0), 1)[0]
    mean = (alone["prompt"].node_us + 10 * alone["token"].node_us) / 11
    np.testing.assert_allclose(found.problem.node_us, mean)
    # Where nothing is fused, times of placements are means as well; moved bytes are rounded to whole ones.
    bare = {"fused_with": None, "fusion_penalty_us": None}
    whole, prompt, token = (
        float(replace(problem, **bare).evaluate(placement).latency_us[0])
        for problem in (found.problem, alone["prompt"], alone["token"])
    )
    assert whole == pytest.approx((prompt + 10 * token) / 11, rel=1e-4)
    assert found.summary(placement)["token"] == {
        "count": 10,
        **{key: alone["token"].summary(placement)[key] for key in ("latency_us", "throughput_ips")},
    }


def test_memory_is_that_of_the_largest_inference(analysis: ModelAnalysis) -> None:
    core = ov.Core()
    session = Session(core, DEVICES, resolve_profile(None, DEVICES.names, core))

    def need(workload: Workload) -> int:
        problem = session.price(analysis, "latency", phases=workload.phases(analysis.model)).problem
        return int(problem.evaluate(problem.single(1)).memory_bytes[0].sum())

    assert need(Workload(64, 10, 2)) < need(Workload(64, 10, 2, context=2048)) < need(Workload(64, 10, 4, context=2048))
    phases = WORKLOAD.phases(analysis.model)
    problem = session.price(analysis, "latency", phases=phases).problem
    largest = session.price(analysis, "latency").problem.graph  # made for the last token
    assert (problem.graph.output_bytes >= largest.output_bytes).all()


def test_transfers_move_the_mean_and_memory_holds_the_largest() -> None:
    problem = random_problem(3, devices=3)
    twice = replace(problem, moved_bytes=2 * problem.graph.output_bytes)
    placements = problem.random(np.random.default_rng(0), 8)
    before, after = problem.evaluate(placements), twice.evaluate(placements)
    np.testing.assert_array_equal(after.transfer_bytes, 2 * before.transfer_bytes)
    np.testing.assert_array_equal(after.memory_bytes, before.memory_bytes)
    np.testing.assert_array_equal(twice.tensors.bytes, 2 * problem.tensors.bytes)
    with pytest.raises(ValueError, match="'moved_bytes' of shape"):
        replace(problem, moved_bytes=np.zeros(1, np.int64))


def test_refinement_counts_what_transfers_move() -> None:
    """With transfers that cost nothing in effect, each group is where it is fastest."""
    problem = random_problem(5, devices=2)
    free = replace(problem, moved_bytes=np.zeros_like(problem.graph.output_bytes), transfer_us=np.zeros((2, 2)))
    best = MinCut().place(free)
    np.testing.assert_allclose(free.scores(best)[0], problem.group_us.min(axis=1).sum())


class TestPlace:
    def test_the_prediction_tells_prompt_and_token(self) -> None:
        placement = ov_hsdag.place(
            stateful_decoder(2), "HETERO:GPU,CPU", workload="prompt=32,generate=4", measure=False, policy="none"
        )
        assert placement.predicted is not None
        parts = placement.predicted["workload"]
        assert {name: part["count"] for name, part in parts.items()} == {"prompt": 1, "token": 4}
        mean = (parts["prompt"]["latency_us"] + 4 * parts["token"]["latency_us"]) / 5
        assert placement.predicted["latency_us"] == pytest.approx(mean, rel=1e-3)

    @pytest.mark.slow
    @pytest.mark.usefixtures("quiet_machine")
    def test_both_parts_are_measured_and_calibrated(self, two_cpu_core: ov.Core) -> None:
        model = stateful_decoder(2)
        placement = ov_hsdag.place(
            model,
            "HETERO:CPU_A,CPU_B",
            workload="prompt=32,generate=4",
            context=600,
            core=two_cpu_core,
            measure=True,
            measure_seconds=GENEROUS,
            policy="none",
        )
        assert placement.predicted is not None and placement.measured is not None
        assert set(placement.predicted["measured_costs"]) <= {"CPU_A", "CPU_B"}
        ran = {name: one for name, one in placement.measured.items() if not one["failed"]}
        assert {"CPU_A", "CPU_B"} <= ran.keys()
        for one in ran.values():
            parts = one["workload"]
            assert {name: part["count"] for name, part in parts.items()} == {"prompt": 1, "token": 4}
            assert parts["prompt"]["latency_us"] > 0 and parts["token"]["latency_us"] > 0

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ({"workload": "prompt=8"}, "needs both"),
            ({"context": 1}, "at least two tokens"),
            ({"context": 64, "shapes": {"input_ids": [1, 8]}}, "gives the shape of 'input_ids'"),
        ],
    )
    def test_what_cannot_be_counted_is_refused(
        self, two_cpu_core: ov.Core, arguments: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(UserError, match=words):
            ov_hsdag.place(stateful_decoder(1), "HETERO:CPU_A,CPU_B", core=two_cpu_core, **arguments)

    def test_command(self, tmp_path: Path) -> None:
        ov.save_model(stateful_decoder(2), tmp_path / "model.xml")
        options = ("--device", "HETERO:GPU,CPU", "--output", tmp_path / "placed.xml", "--policy", "none")
        done = ran("place", tmp_path / "model.xml", *options, "--workload", "prompt=32,generate=4", "--json")
        assert set(json.loads(done.stdout)["predicted"]["workload"]) == {"prompt", "token"}
        done = run("place", tmp_path / "model.xml", *options, "--context", 256)
        assert "for the prompt" in done.stdout and "for each further token" in done.stdout

    @pytest.mark.slow
    def test_benchmarks_count_and_measure_it(self, tmp_path: Path) -> None:
        ov.save_model(stateful_decoder(1), tmp_path / "model.xml")
        options = ("--device", "HETERO:CPU_A,CPU_B", "--policies", "none", "--rounds", 1, "--json")
        done = ran("bench", tmp_path / "model.xml", *options, "--workload", "prompt=32,generate=4")
        rows = {row["placer"]: row for row in json.loads(done.stdout)["models"][0]["results"]}
        assert rows["CPU_A"]["measured"] > 0 and rows["CPU_A"]["predicted_latency_us"] > 0
        done = run("bench", tmp_path / "model.xml", *options, "--context", "1024", "--shape", "input_ids=[1,4]")
        assert done.returncode == 2
        assert "gives the shape of 'input_ids'" in done.stderr.splitlines()[-1]
