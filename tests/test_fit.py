"""Memory as devices use it: weights, states at a context, limits that hold, and `ov-hsdag fit`."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import openvino as ov
import pytest

import ov_hsdag
from ov_hsdag.cli.fit import _experts
from ov_hsdag.costs.memory import States, held_bytes, kv_precisions, live_bytes
from ov_hsdag.costs.profile import Profile, load_builtin
from ov_hsdag.devices import discovery
from ov_hsdag.model.graph import ComputationGraph
from ov_hsdag.model.placement import Placement
from ov_hsdag.model.workload import Workload, decoder_shapes
from ov_hsdag.placers.filling import Filling
from ov_hsdag.placing.memory_fit import ContextProblems, ExpertsToMove, Fit, HostMemory, fit, verdict
from ov_hsdag.problem.pricing import ModelAnalysis, Session, prepare, resolve_profile
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.utils.byte_sizes import format_bytes
from ov_hsdag.utils.errors import RunError, UserError
from ov_hsdag.utils.lazy import opset13 as ops
from research.zoo.catalog import ZOO
from tests.commands import assert_one_error_line, run
from tests.decoders import stateful_decoder
from tests.graphs import random_model

LAYERS, SHARED, SIZE = 6, 2, 8
pytestmark = pytest.mark.usefixtures("fast_search")

NAMES = ("GPU", "CPU")
PAIR = "HETERO:GPU,CPU"
ELEMENTS = 2 * LAYERS * SHARED * SIZE  # of all states, for each token


@pytest.fixture(scope="module")
def analysis() -> ModelAnalysis:
    model, core = stateful_decoder(LAYERS, shared=SHARED, size=SIZE), ov.Core()
    shapes = decoder_shapes(model, 1, 1, 1024)
    return prepare(model, NAMES, core, resolve_profile(None, NAMES, core), shapes=shapes)


def problem_at(analysis: ModelAnalysis, context: int, precision: str = "f16", batch: int = 1) -> PlacementProblem:
    core = ov.Core()
    session = Session.of(NAMES, core, kv_precision=precision)
    workload = Workload.of_context(context, batch)
    return session.price(analysis, "latency", phases=workload.phases(analysis.model)).problem


def states_of(problem: PlacementProblem, device: int) -> int:
    reads = [node for node, kind in enumerate(problem.graph.types) if kind == "ReadValue"]
    held = problem.node_held[reads, device].sum()
    return int(problem.stored_bytes(np.full(len(problem.devices), held))[device])


@pytest.mark.parametrize(
    ("precision", "bytes_of_head"), [("f32", 4 * SIZE), ("f16", 2 * SIZE), ("bf16", 2 * SIZE), ("u8", SIZE + 8)]
)
def test_kv_caches_are_held_at_the_context(analysis: ModelAnalysis, precision: str, bytes_of_head: int) -> None:
    for context, batch in ((512, 1), (4096, 1), (512, 3)):
        problem = problem_at(analysis, context, precision, batch)
        expected = batch * context * ELEMENTS // SIZE * bytes_of_head
        for device in range(2):
            assert states_of(problem, device) == pytest.approx(expected, rel=1e-3)


def test_a_state_counts_once_wherever_it_is_read_and_written(analysis: ModelAnalysis) -> None:
    """What a longer context adds to a device's memory is states and a mask, not copies of states."""
    short, long = (problem_at(analysis, context) for context in (8192, 16384))
    for device in range(2):
        grown = [
            problem.stored_bytes(problem.evaluate(problem.single(device)).memory_bytes[0])[device]
            for problem in (short, long)
        ]
        states = states_of(long, device) - states_of(short, device)
        masks = 80 * 8192  # bytes, of the mask and what is computed from it
        assert states - 1 <= grown[1] - grown[0] <= states + masks


def test_states_of_no_attention_have_two_buffers_on_a_cpu() -> None:
    model = stateful_decoder(1)
    graph = ComputationGraph.from_model(model, shapes=decoder_shapes(model, 1, 1, 64))
    states = States.of(graph)
    assert states.cache.all()
    recurrent = replace(states, cache=np.zeros_like(states.cache))
    core = ov.Core()
    profile = resolve_profile(None, NAMES, core)
    for found, factor in ((states, [1, 1]), (recurrent, [1, 2])):
        held = held_bytes(graph, profile, NAMES, ("f32", "f32"), found)[found.node]
        np.testing.assert_array_equal(held, np.outer(found.bytes, factor))


def test_decompressed_weights_are_no_tensors() -> None:
    """They are decompressed inside the multiplication that reads them, or once for all."""
    model = stateful_decoder(1)
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Constant" and node.get_byte_size() > 1000:
            decompressed = ops.convert(ops.constant(node.data.astype(np.float16)), "f32")
            decompressed.set_friendly_name(f"decompressed {node.get_friendly_name()}")
            for reader in node.output(0).get_target_inputs():
                reader.replace_source_output(decompressed.output(0))
    graph = ComputationGraph.from_model(model, shapes=decoder_shapes(model, 1, 1, 64))
    live = live_bytes(graph, States.of(graph))
    found = [node for node, name in enumerate(graph.names) if name.startswith("decompressed")]
    assert found
    assert not live[graph.output_ptr[found]].any()
    assert live[graph.output_ptr[graph.types.index("MatMul")]] > 0


def test_the_precision_of_kv_caches_is_the_models_or_the_devices() -> None:
    model, core = stateful_decoder(1), ov.Core()
    profile = resolve_profile(None, NAMES, core)
    assert kv_precisions(model, core, profile, NAMES) == ("u8", "u8")  # an Iris Xe has no matrix engines
    card = Profile({**profile.devices, "GPU": replace(load_builtin("arc_a770"), name="GPU")}, profile.links)
    assert kv_precisions(model, core, card, NAMES) == ("f16", "u8")
    model.set_rt_info("bf16", ["runtime_options", "KV_CACHE_PRECISION"])
    assert kv_precisions(model, core, profile, NAMES) == ("bf16", "bf16")
    assert kv_precisions(model, core, profile.with_kv_precision("f32"), NAMES) == ("f32", "f32")
    with pytest.raises(UserError, match="unknown precision of KV caches 'i4'"):
        ov_hsdag.place(model, PAIR, context=64, kv_precision="i4")


def test_a_chosen_precision_travels_in_the_model() -> None:
    model = stateful_decoder(1)
    ov_hsdag.place(model, PAIR, context=64, kv_precision="f16", policy="none")
    assert model.get_rt_info(["runtime_options", "KV_CACHE_PRECISION"]).astype(str) == "f16"


@pytest.mark.parametrize(
    ("count", "share", "context"), [(2, 0.6, 1024), pytest.param(4, 0.3, 16384, marks=pytest.mark.slow)]
)
def test_a_placement_keeps_the_limits_where_a_share_of_the_need_is_enough(
    count: int, share: float, context: int
) -> None:
    names = [f"GPU.{number}" for number in range(count)]
    hetero = f"HETERO:{','.join(names)}"
    whole = fit(stateful_decoder(3 * count, heads=16, size=32), hetero, context=context).singles[names[0]]
    limits = {name: int(whole.total * share) for name in names}
    model = stateful_decoder(3 * count, heads=16, size=32)
    placement = ov_hsdag.place(model, hetero, context=context, memory=limits, policy="none")
    assert placement.predicted is not None
    assert set(placement.used()) == set(names)
    assert all(placement.predicted["memory_bytes"][name] <= limit for name, limit in limits.items())


def test_guessed_sizes_leave_the_limits_to_weights_and_states() -> None:
    model = stateful_decoder(LAYERS, heads=8, size=32)
    weights = sum(node.get_byte_size() for node in model.get_ops() if node.get_type_name() == "Constant")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        placement = ov_hsdag.place(
            model, PAIR, memory={"GPU": int(weights * 0.4), "CPU": int(weights * 0.8)}, policy="none"
        )
    assert set(placement.used()) == set(NAMES)
    assert not told or "weights and states alone" in str(told[0].message)


@pytest.mark.slow
def test_where_nothing_fits_the_largest_context_is_told() -> None:
    limits = {"GPU": 1_000_000, "CPU": 1_000_000}
    with pytest.raises(
        RunError, match=r"keeps within the devices' memory: .*; the largest context that fits is \d+ tokens"
    ):
        ov_hsdag.place(stateful_decoder(2), PAIR, context=65536, memory=limits, policy="none")
    with pytest.raises(RunError, match="no context is short enough"):
        ov_hsdag.place(stateful_decoder(2), PAIR, context=65536, memory={"GPU": 1000, "CPU": 1000}, policy="none")


class TestFit:
    def test_the_largest_contexts_fit_and_longer_ones_do_not(self, analysis: ModelAnalysis) -> None:
        core = ov.Core()
        limits = {"GPU": 4_000_000, "CPU": 6_000_000}
        session = Session.of(NAMES, core, memory=limits)
        contexts = ContextProblems.of(session, analysis, Workload.of_context(256))
        for device in range(2):
            most = contexts.largest([contexts.problem.single(device)])
            assert most
            for tokens, fits in ((most, True), (int(most * 1.01) + 1, False)):
                own = contexts.at(tokens)
                assert (own.evaluate(own.single(device)).infeasible[0] == 0) == fits
        alone = [contexts.largest([contexts.problem.single(device)]) or 0 for device in range(2)]
        split = contexts.largest([Filling().place(contexts.problem)], refill=True)
        assert split is not None
        assert split >= max(alone)

    def test_sizes_between_are_those_of_the_model(self, analysis: ModelAnalysis) -> None:
        core = ov.Core()
        session = Session.of(NAMES, core)
        workload = Workload.of_context(256)
        contexts = ContextProblems.of(session, analysis, workload)
        further = session.price(analysis, "latency", phases=replace(workload, context=5000).phases(analysis.model))
        assert further.problem.live_bytes is not None
        found = contexts.at(5000)
        np.testing.assert_array_equal(found.node_held, further.problem.node_held)
        for device in range(2):
            placement = found.single(device)
            assert (
                found.evaluate(placement).memory_bytes.tolist()
                == further.problem.evaluate(placement).memory_bytes.tolist()
            )

    def test_scores_of_the_cpu_plugins_attention_are_openvinos_own_memory(self) -> None:
        short, long = (fit(stateful_decoder(2, heads=4), PAIR, context=tokens) for tokens in (1024, 2048))
        assert long.prompt == short.prompt == 256
        grown = {name: long.singles[name].overhead - short.singles[name].overhead for name in NAMES}
        assert grown == {"GPU": 0, "CPU": 4 * 4 * 256 * 1024}

    def test_parts_add_up(self) -> None:
        found = fit(stateful_decoder(LAYERS), PAIR, context=2048, memory={"GPU": 2**30, "CPU": 2**30})
        assert isinstance(found, Fit)
        assert found.single == "GPU"
        assert found.fits
        whole = found.singles["CPU"]
        assert whole.headroom == 2**30 - whole.total
        split: Mapping[str, object] = found.split
        assert set(split) == set(NAMES)
        assert sum(need.states for need in found.split.values()) >= min(need.states for need in found.singles.values())

    def test_a_model_without_states(self) -> None:
        found = fit(random_model(0), PAIR, memory={"GPU": 2**30, "CPU": 2**30})
        assert found.context is None
        assert found.largest == {}
        assert all(need.states == 0 for need in found.singles.values())
        with pytest.raises(UserError, match="has no input such as input_ids"):
            fit(random_model(0), PAIR, context=100)


@pytest.fixture(scope="module")
def whole() -> dict[str, int]:
    found = fit(ZOO["mobilenet-v2-small"].build(), PAIR, memory=dict.fromkeys(NAMES, 2**40))
    return {name: need.total for name, need in found.singles.items()}


_UNEQUAL = ((0.1, 0.3), (0.001, 1e-6))


class TestOneTruth:
    """`fit` and `place` answer alike."""

    def placed(self, limits: dict[str, int]) -> ov.Model:
        model = ZOO["mobilenet-v2-small"].build()
        ov_hsdag.place(model, PAIR, memory=limits, policy="none")
        return model

    @pytest.mark.parametrize("share", [0.52, pytest.param(0.6, marks=pytest.mark.slow)])
    def test_what_place_finds_fits(self, whole: dict[str, int], share: float) -> None:
        limits = {name: int(bytes_ * share) for name, bytes_ in whole.items()}
        model = self.placed(limits)
        found = fit(ZOO["mobilenet-v2-small"].build(), PAIR, memory=limits)
        assert found.fits and found.single is None and not found.placed
        # Of the placed model, the placement inside.
        carried = Placement.of(model)
        assert carried is not None and carried.predicted is not None
        needs = carried.predicted["memory_bytes"]
        found = fit(model, PAIR, memory=limits)
        assert found.fits and found.placed
        assert {name: need.total for name, need in found.split.items()} == pytest.approx(needs, abs=2)
        assert verdict(found, "model") == "fits: model, as it is placed on GPU, CPU"
        # It may exceed limits within which the model fits otherwise.
        less = limits | {"GPU": needs["GPU"] - 1000, "CPU": 2 * whole["CPU"]}
        found = fit(model, PAIR, memory=less)
        assert found.single == "CPU" and found.other_fits and not found.fits
        assert verdict(found, "model").endswith(" on GPU; another placement fits")

    @pytest.mark.parametrize("shares", [(0.3, 0.3), *(pytest.param(s, marks=pytest.mark.slow) for s in _UNEQUAL)])
    def test_too_little_memory_names_what_would_do(self, whole: dict[str, int], shares: tuple[float, float]) -> None:
        most = max(whole.values())
        limits = {name: int(most * share) for name, share in zip(NAMES, shares, strict=True)}
        with pytest.raises(RunError, match=" would do") as refused:
            self.placed(limits)
        told = str(refused.value).rpartition("; ")[2]
        found = fit(ZOO["mobilenet-v2-small"].build(), PAIR, memory=limits)
        assert not found.fits and verdict(found, "model").endswith(told)
        for name in found.enough:
            assert format_bytes(found.enough[name]) in told
        assert (f"{format_bytes(found.enough['GPU'])} on each would do" == told) == (shares[0] == shares[1])
        self.placed(limits | found.enough)
        with pytest.raises(RunError):
            self.placed({name: int(bytes_ * 0.9) for name, bytes_ in (limits | found.enough).items()})


def test_what_would_do_is_named_where_the_search_needs_room(two_cpu_core: ov.Core) -> None:
    """Within just the bytes of the best placement that is known, the search finds none."""
    pair, limits = ("CPU_A", "CPU_B"), {"CPU_A": 40 << 20, "CPU_B": 55 << 20}
    found = fit(ZOO["resnet50"].build(), pair, memory=limits, core=two_cpu_core)
    assert not found.fits and set(found.enough) == set(pair)
    assert sum(found.enough.values()) < 1.25 * sum(limits.values())
    assert fit(ZOO["resnet50"].build(), pair, memory=found.enough, core=two_cpu_core).split_fits


class TestSharedMemory:
    """Devices that compute in the machine's memory have it once."""

    TWO = ("CPU_A", "CPU_B")
    known: ClassVar[list[int]] = []

    @pytest.fixture(autouse=True)
    def machine(self, monkeypatch: pytest.MonkeyPatch, two_cpu_core: ov.Core) -> None:
        self.core, self.bytes = two_cpu_core, 2_000_000
        monkeypatch.setattr(discovery, "free_bytes", lambda core, name: int(self.bytes / 0.9) + 1)
        monkeypatch.setattr(discovery, "memory_bytes", lambda core, name: self.bytes)

    def fit(self, **options: object) -> Fit:
        return fit(stateful_decoder(LAYERS), self.TWO, core=self.core, kv_precision="f16", **options)  # type: ignore

    def alone(self) -> int:
        """The largest context that a device holds by itself, the same in all tests."""
        if not self.known:
            self.known.append(self.fit(context=1024).largest["CPU_A"] or 0)
        return self.known[0]

    def test_two_halves_of_a_model_need_the_memory_of_the_whole(self) -> None:
        alone = self.alone()
        found = self.fit(context=alone * 3 // 2)  # each device alone could hold its half
        assert all((need.headroom or 0) > 0 for need in found.split.values())
        assert not found.fits
        assert found.sharing == self.TWO
        assert found.shared is not None
        assert found.shared.total == sum(need.total for need in found.split.values())
        assert (found.shared.headroom or 0) < 0
        assert 0 < (found.largest["split"] or 0) <= alone
        assert "CPU_A and CPU_B share 1.907 MiB of this machine's memory; the largest" in verdict(found, "model")

    def test_limits_of_the_user_count_as_they_are(self) -> None:
        context = self.alone() * 3 // 2
        found = self.fit(context=context, memory=dict.fromkeys(self.TWO, self.bytes))
        assert found.split_fits
        assert found.shared is None
        # The user speaks of another, larger machine.
        larger = self.fit(context=context, memory={"CPU_A": 10 * self.bytes})
        assert larger.single == "CPU_A"
        assert larger.shared is not None
        assert larger.shared.room == 10 * self.bytes

    def test_place_says_that_the_machine_has_less(self) -> None:
        context = self.alone() * 3 // 2
        with pytest.warns(
            UserWarning, match=r"CPU_A and CPU_B need [\d.]+ MiB together, and share the 1\.907 MiB of this machine"
        ):
            placement = ov_hsdag.place(
                stateful_decoder(LAYERS), self.TWO, core=self.core, context=context, policy="none", kv_precision="f16"
            )
        assert placement.predicted["submodels"] == 2

    def test_a_profile_of_a_larger_machine_counts(self) -> None:
        profile = resolve_profile(None, self.TWO, self.core)
        assert HostMemory.of(self.core, self.TWO, {}, profile=profile).room == self.bytes  # type: ignore
        entry = replace(profile.device("CPU_A"), memory_bytes=10 * self.bytes)
        larger = replace(profile, devices={**profile.devices, "CPU_A": entry})
        assert HostMemory.of(self.core, self.TWO, {}, profile=larger).room == 10 * self.bytes  # type: ignore


def test_no_limit_is_said_of_a_context_that_does_not_fit() -> None:
    context = 1 << 26  # beyond what searching for the largest begins with
    found = fit(stateful_decoder(LAYERS), PAIR, context=context, memory={"GPU": 2**33, "CPU": 2**28})
    assert not found.fits
    assert all(tokens is not None and 0 < tokens < context for tokens in found.largest.values())
    assert "the largest context that fits is" in verdict(found, "model")


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fit") / "decoder.xml"
    ov.save_model(stateful_decoder(LAYERS), path, compress_to_fp16=False)
    return path


def test_what_notebooks_show_is_the_verdict(two_cpu_core: ov.Core, decoder: Path) -> None:
    found = ov_hsdag.fit(two_cpu_core.read_model(decoder), "HETERO:CPU_A,CPU_B", context=64, core=two_cpu_core)
    assert repr(found).startswith("fits: the model with a context of 64 tokens on CPU_A alone")
    moved = replace(found, experts=ExpertsToMove("CPU_A", "CPU_B", None, 4))
    assert _experts(moved) == ["experts: with those of all 4 layers on CPU_B it does not fit"]


@pytest.mark.slow
def test_the_command_tells_the_verdict_first(decoder: Path) -> None:
    enough = run("fit", decoder, "--device", PAIR, "--context", "2048", "--memory", "GPU=1GiB,CPU=1000000000")
    assert enough.returncode == 0
    assert " ".join(enough.stdout.split()).startswith(f"fits: {decoder} with a context of 2,048 tokens on GPU alone")
    assert "assumed:" not in enough.stdout and "may have:" not in enough.stdout
    guessed = " ".join(run("fit", decoder, "--device", PAIR).stdout.split())
    assert re.search(r"assumed: GPU has \d+ GiB, as the built-in profile iris_xe; --memory sets it ", guessed)
    assert "may have: 90% of the memory that is free now or assumed; --memory gives other limits" in guessed
    short = run("fit", decoder, "--device", PAIR, "--context", "65536", "--memory", "GPU=2000000,CPU=2000000", "--json")
    assert short.returncode == 1
    found = json.loads(short.stdout)
    assert not found["fits"]
    assert 0 < found["largest_context"]["split"] < 65536
    assert found["split"]["GPU"]["room"] == pytest.approx(2_000_000, abs=2)
    assert found["split"]["GPU"]["headroom"] < 0 or found["split"]["CPU"]["headroom"] < 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--context", "64", "--kv-precision", "u4"], "unknown precision of KV caches 'u4'"),
        (["--memory", "GPU=much"], "or a number of bytes"),
        (["--context", "1"], "2"),
    ],
)
def test_bad_input_is_one_line(decoder: Path, options: list[str], told: str) -> None:
    assert_one_error_line(run("fit", decoder, "--device", PAIR, *options), told)


@pytest.mark.slow
def test_a_context_that_cannot_fit_writes_nothing(decoder: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.xml"
    done = run(
        *("place", decoder, "--device", PAIR, "--output", output, "--context", "65536"),
        *("--memory", "GPU=2000000,CPU=2000000", "--policy", "none", "--quiet"),
    )
    assert_one_error_line(done, "the largest context that fits is", status=1)
    assert not list(tmp_path.iterdir())


def test_a_folder_counts_as_its_main_model(decoder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "exported"
    folder.mkdir()
    for suffix in (".xml", ".bin"):
        shutil.copy(decoder.with_suffix(suffix), folder / f"openvino_model{suffix}")
    options = ("--device", PAIR, "--context", 512, "--memory", "GPU=1GiB,CPU=1GiB", "--json")
    found, alone = run("fit", folder, *options), run("fit", decoder, *options)
    assert (found.returncode, json.loads(found.stdout)) == (alone.returncode, json.loads(alone.stdout))
    (folder / "openvino_model.xml").rename(folder / "openvino_encoder_model.xml")
    shutil.copy(decoder, folder / "openvino_decoder_model.xml")
    assert_one_error_line(run("fit", folder, *options), "--part")
