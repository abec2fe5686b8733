"""Memory as devices use it: weights, states at a context, limits that hold, and `ov-hsdag fit`."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import openvino as ov
import pytest

import ov_hsdag
from ov_hsdag.cli.commands.fit import _experts
from ov_hsdag.costs.memory import States, attention_scores, held_bytes, kv_precisions, live_bytes
from ov_hsdag.costs.profile import Profile, load_builtin
from ov_hsdag.devices import discovery
from ov_hsdag.model.graph import ComputationGraph
from ov_hsdag.model.placement import Placement
from ov_hsdag.model.workload import Workload, decoder_shapes
from ov_hsdag.placers.filling import Filling
from ov_hsdag.placing.contexts import ContextProblems
from ov_hsdag.placing.host_memory import HostMemory
from ov_hsdag.placing.memory_fit import ExpertsToMove, Fit, fit, verdict
from ov_hsdag.problem.pricing import ModelAnalysis, Session, prepare, resolve_profile
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.utils.byte_sizes import format_bytes
from ov_hsdag.utils.errors import RunError, UserError
from ov_hsdag.utils.lazy import opset13 as ops
from research.zoo.catalog import ZOO
from tests.commands import assert_one_error_line, ran, run
from tests.decoders import share_states, stateful_decoder
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
    workload = Workload(128, 128, batch, context)
    return session.price(analysis, "latency", phases=workload.phases(analysis.model)).problem


def states_of(problem: PlacementProblem, device: int) -> int:
    reads = [node for node, kind in enumerate(problem.graph.types) if kind == "ReadValue"]
    held = problem.node_held[reads, device].sum()
    return int(problem.stored_bytes(np.full(len(problem.devices), held))[device])


@pytest.mark.slow
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
    asked = {"context": context, "workload": "prompt=256,generate=256"}
    whole = fit(stateful_decoder(3 * count, heads=16, size=32), hetero, **asked).singles[names[0]]
    limits = {name: int(whole.total * share) for name in names}
    model = stateful_decoder(3 * count, heads=16, size=32)
    placement = ov_hsdag.place(model, hetero, **asked, memory=limits, policy="none")
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
        of_context = Workload.of_context(5000)
        further = session.price(analysis, "latency", phases=of_context.phases(analysis.model))
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
        """Of tokens that are read after others: a first prompt has none, however long."""

        def counted(tokens: int, workload: str | None = None) -> Fit:
            return fit(stateful_decoder(2, heads=4), PAIR, context=tokens, workload=workload)

        short, long = (counted(tokens, "prompt=256,generate=64") for tokens in (1024, 2048))
        assert long.prompt == short.prompt == 256
        grown = {name: long.singles[name].overhead - short.singles[name].overhead for name in NAMES}
        assert grown == {"GPU": 0, "CPU": 4 * 4 * 256 * 1024}
        assert counted(1024).singles["CPU"].overhead == counted(2048).singles["CPU"].overhead

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

    # Two halves of the model need little more than the whole where prompts are short.
    DECODING: ClassVar[dict[str, Any]] = {"workload": "prompt=64,generate=64", "kv_precision": "f16"}

    def fit(self, **options: object) -> Fit:
        return fit(stateful_decoder(LAYERS), self.TWO, core=self.core, **self.DECODING, **options)  # type: ignore

    def alone(self) -> int:
        """The largest context that a device holds by itself, the same in all tests."""
        if not self.known:
            self.known.append(self.fit(context=1024).largest["CPU_A"] or 0)
        return self.known[0]

    @pytest.mark.slow
    def test_two_halves_of_a_model_need_the_memory_of_the_whole(self) -> None:
        alone = self.alone()
        found = self.fit(context=alone * 3 // 2)  # each device alone could hold its half
        assert not found.fits and not found.split
        assert found.sharing == self.TWO
        assert found.shared is not None
        assert found.shared.total >= min(need.total for need in found.singles.values())
        assert (found.shared.headroom or 0) < 0
        assert 0 < (found.largest_of_splits or 0) <= alone
        assert "CPU_A and CPU_B share 1.907 MiB of this machine's memory; the largest" in verdict(found, "model")

    @pytest.mark.slow
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
                stateful_decoder(LAYERS), self.TWO, core=self.core, context=context, policy="none", **self.DECODING
            )
        assert placement.predicted["submodels"] == 2

    def test_a_profile_of_a_larger_machine_counts(self) -> None:
        profile = resolve_profile(None, self.TWO, self.core)
        assert HostMemory.of(self.core, self.TWO, {}, profile=profile).room == self.bytes  # type: ignore
        entry = replace(profile.device("CPU_A"), memory_bytes=10 * self.bytes)
        larger = replace(profile, devices={**profile.devices, "CPU_A": entry})
        assert HostMemory.of(self.core, self.TWO, {}, profile=larger).room == 10 * self.bytes  # type: ignore


@pytest.mark.slow
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
    assert 0 < found["largest_context_of_splits"] < 65536
    assert found["split"] == {} and "split" not in found["largest_context"]
    assert found["singles"]["GPU"]["room"] == pytest.approx(2_000_000, abs=2)
    assert found["singles"]["GPU"]["headroom"] < 0


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


@pytest.mark.slow
def test_a_folder_counts_as_its_main_model(decoder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "exported"
    folder.mkdir()
    for suffix in (".xml", ".bin"):
        shutil.copy(decoder.with_suffix(suffix), folder / f"openvino_model{suffix}")
    options = ("--device", PAIR, "--context", 512, "--memory", "GPU=1GiB,CPU=1GiB", "--json")
    found, alone = run("fit", folder, *options), run("fit", decoder, *options)
    assert (found.returncode, json.loads(found.stdout)) == (alone.returncode, json.loads(alone.stdout))


def _embeddings(rows: int, width: int) -> ov.Model:
    tokens = ops.parameter([-1, -1], ov.Type.i64, name="input")
    tokens.output(0).get_tensor().set_names({"input"})
    table = ops.constant(np.random.default_rng(0).normal(size=(rows, width)).astype(np.float16))
    return ov.Model([ops.result(ops.convert(ops.gather(table, tokens, np.int64(0)), "f32"))], [tokens], "embeddings")


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model, and embeddings for each of its layers that are much larger, as Gemma 3n has them."""
    folder = tmp_path_factory.mktemp("pipeline")
    ov.save_model(stateful_decoder(2), folder / "openvino_language_model.xml", compress_to_fp16=False)
    ov.save_model(_embeddings(4096, 512), folder / "openvino_text_embeddings_per_layer_model.xml")
    return folder


EMBEDDED = 4 * 512
"""Bytes that `_embeddings` makes of a token."""


class TestFolders:
    """A command that takes a folder answers for all models in it."""

    def test_parts_that_place_leaves_alone_count_where_hetero_loads_them(self, pipeline: Path) -> None:
        options = ("--device", PAIR, "--context", "1024", "--memory", "GPU=2MiB,CPU=1GiB")
        done = run("fit", pipeline, *options)
        assert done.returncode == 1
        first = " ".join(done.stdout.split())
        assert (
            "text_embeddings_per_layer_model needs" in first and "of the 2 MiB on GPU, where HETERO loads it" in first
        )
        placed = run(
            "place", pipeline, *options, "--no-measure", "--policy", "none", "--output", "unwritten", "--quiet"
        )
        assert_one_error_line(placed, "text_embeddings_per_layer_model needs", status=1)

    def test_each_part_and_all_together(self, pipeline: Path) -> None:
        done = run("fit", pipeline, "--device", PAIR, "--context", "1024", "--memory", "GPU=1GiB,CPU=1GiB", "--json")
        found = json.loads(done.stdout)
        assert done.returncode == 0 and found["fits"]
        parts = found["parts"]
        assert parts["text_embeddings_per_layer_model"]["placed_by"] == "hetero"
        assert parts["language_model"]["placed_by"] == "place"
        embeddings = parts["text_embeddings_per_layer_model"]["split"]["GPU"]
        assert embeddings["weights"] == pytest.approx(4096 * 512 * 2, rel=0.01)
        assert embeddings["activations"] >= 1024 * EMBEDDED  # of all tokens of a prompt
        language = parts["language_model"]["singles"]["GPU"]
        assert found["total"]["GPU"]["needed"] == embeddings["needed"] + language["needed"]
        assert found["total"]["GPU"]["room"] == 2**30
        assert language["room"] == 2**30 - embeddings["needed"]
        # As of the language model alone, for programs that read these keys.
        assert found["single"] == "GPU" and found["context"] == 1024

    def test_limits_of_place_hold_for_the_whole_folder(self, pipeline: Path, tmp_path: Path) -> None:
        options = ("--device", PAIR, "--context", "1024")
        counted = json.loads(run("fit", pipeline, *options, "--memory", "GPU=1GiB,CPU=1GiB", "--json").stdout)
        embeddings = counted["parts"]["text_embeddings_per_layer_model"]["split"]["GPU"]["needed"]
        language = counted["parts"]["language_model"]["singles"]["GPU"]["needed"]
        limit = embeddings + language // 2  # the language model alone would fit
        done = run(
            *("place", pipeline, *options, "--memory", f"GPU={limit},CPU=1000000000", "--no-measure"),
            *("--policy", "none", "--output", tmp_path / "placed", "--json"),
        )
        assert done.returncode == 0, done.stderr
        (placed,) = json.loads(done.stdout)["models"].values()
        assert placed["predicted"]["memory_bytes"]["GPU"] <= language // 2

    def test_an_encoder_and_a_decoder_are_both_counted(self, pipeline: Path, tmp_path: Path) -> None:
        ov.save_model(ZOO["mobilenet-v2-small"].build(), tmp_path / "openvino_encoder_model.xml")
        for suffix in (".xml", ".bin"):
            shutil.copy(pipeline / f"openvino_language_model{suffix}", tmp_path / f"openvino_decoder_model{suffix}")
        options = ("--device", PAIR, "--context", "512", "--memory", "GPU=1GiB,CPU=1GiB", "--json")
        found = json.loads(run("fit", tmp_path, *options).stdout)
        assert set(found["parts"]) == {"encoder_model", "decoder_model"} and found["fits"]
        assert {part["placed_by"] for part in found["parts"].values()} == {"place"}

    def test_tokenizers_take_memory_of_the_cpu(self, pipeline: Path, tmp_path: Path) -> None:
        folder = shutil.copytree(pipeline, tmp_path / "folder")
        (folder / "openvino_tokenizer.xml").write_bytes(b"<net/>")
        (folder / "openvino_tokenizer.bin").write_bytes(bytes(3_000_000))
        options = ("--device", PAIR, "--context", "1024", "--memory", "GPU=1GiB,CPU=1GiB", "--json")
        found = json.loads(run("fit", folder, *options).stdout)
        assert found["tokenizers"] == 3_000_006
        assert found["total"]["CPU"]["needed"] == 3_000_006
        # Of a folder that has nothing else, too.
        alone = tmp_path / "alone"
        alone.mkdir()
        for file in ("language_model.xml", "language_model.bin", "tokenizer.xml", "tokenizer.bin"):
            shutil.copy(folder / f"openvino_{file}", alone)
        found = json.loads(run("fit", alone, *options).stdout)
        assert found["singles"]["CPU"]["room"] == 2**30 - 3_000_006
        assert found["singles"]["GPU"]["room"] == 2**30

    def test_a_decoder_made_for_less_is_counted_with_less(self, pipeline: Path, tmp_path: Path) -> None:
        folder = shutil.copytree(pipeline, tmp_path / "folder")
        (folder / "config.json").write_text('{"max_position_embeddings": 448}')
        done = run("fit", folder, "--device", PAIR, "--memory", "GPU=1GiB,CPU=1GiB", "--json")
        assert json.loads(done.stdout)["context"] == 448

    def test_a_context_is_refused_where_nothing_decodes(self, tmp_path: Path) -> None:
        for part in ("vision_embeddings_model", "vision_embeddings_merger_model"):
            ov.save_model(ZOO["mobilenet-v2-small"].build(), tmp_path / f"openvino_{part}.xml")
        assert_one_error_line(run("fit", tmp_path, "--device", PAIR, "--context", 512), "one of decoders")
        done = run("fit", tmp_path, "--device", PAIR, "--memory", "GPU=1GiB,CPU=1GiB")
        assert done.returncode == 0 and "next: ov-hsdag plan" in done.stdout + done.stderr
        assert "where these are open" not in done.stdout


def test_embeddings_for_each_layer_run_for_each_token(pipeline: Path) -> None:
    from ov_hsdag.storage.model_folder import pipeline as roles

    assert roles(pipeline)["text_embeddings_per_layer_model"].count > 1


def test_guessed_sizes_are_said_where_there_are_some(tmp_path: Path) -> None:
    limits = ("--device", PAIR, "--memory", "GPU=1GiB,CPU=1GiB")
    for name, model, guessed in (("fixed", fully_connected(2), False), ("open", _embeddings(16, 4), True)):
        ov.save_model(model, tmp_path / f"{name}.xml")
        counted = " ".join(run("fit", tmp_path / f"{name}.xml", *limits).stdout.split())
        assert "counted: inputs" in counted
        assert ("and input=[1,128] where these are open (--shape counts others)" in counted) == guessed
    shape = ("--shape", "input=[2,7]")
    assert "where these are open" not in run("fit", tmp_path / "open.xml", *limits, *shape).stdout


def test_given_shapes_replace_those_of_the_placement_as_a_whole(tmp_path: Path) -> None:
    """A batch of 8 that one input was placed with is nothing beside a batch of 2 that another is asked with now."""
    users, items = (ops.parameter([-1, 16], np.float32, name=name) for name in ("users", "items"))
    model = ov.Model([ops.result(ops.relu(ops.add(users, items)))], [users, items], "pairs")
    ov.save_model(model, tmp_path / "pairs.xml")
    common = ("--device", PAIR, "--memory", "GPU=1GiB,CPU=1GiB")
    placed = tmp_path / "placed.xml"
    ran("place", tmp_path / "pairs.xml", *common, "--no-measure", "--output", placed, "--shape", "users=[8,16]")
    recorded = " ".join(ran("fit", placed, *common).stdout.split())
    assert "and items=[8,16] where these are open" in recorded
    asked = " ".join(ran("fit", placed, *common, "--shape", "items=[2,16]").stdout.split())
    assert "and users=[2,16] where these are open" in asked
    assert "costs assume users=[2,16]; --shape" in ran("explain", placed, "--shape", "items=[2,16]").stdout


def fully_connected(layers: int = 12, width: int = 512) -> ov.Model:
    random = np.random.default_rng(0)
    x = last = ops.parameter([1, width], ov.Type.f32, name="x")
    for _ in range(layers):
        weights = ops.constant(random.normal(0, 0.05, (width, width)).astype(np.float32))
        last = ops.relu(ops.matmul(last, weights, False, True))
    return ov.Model([ops.result(last)], [x], "fully connected")


class TestSplitRows:
    """A row of a split is one that fits on several devices, or is not there."""

    @pytest.mark.parametrize("limit", [1 << 20, 3 << 20, 5 << 20])
    def test_a_small_device_beside_a_large_one_gets_a_part(self, limit: int) -> None:
        found = fit(fully_connected(), PAIR, memory={"GPU": limit, "CPU": 2**34})
        assert found.single == "CPU" and found.split_fits
        assert set(found.split) == set(NAMES)
        assert all((need.headroom or 0) >= 0 for need in found.split.values())
        assert found.split["GPU"].total > limit // 4

    def test_without_one_there_is_no_row(self) -> None:
        found = fit(fully_connected(), PAIR, memory={"GPU": 1000, "CPU": 2**30})
        assert found.single == "CPU" and found.fits
        assert not found.split_fits and found.split == {} and "split" not in found.largest

    def test_the_context_of_a_row_is_that_of_its_placement(self) -> None:
        limits = {"GPU": 1_000_000, "CPU": 2**30}
        found = fit(stateful_decoder(LAYERS), PAIR, context=512, workload="prompt=64,generate=64", memory=limits)
        assert set(found.split) == set(NAMES)
        # Of how many tokens the states have room, where that is least; masks take some of it.
        more = min((need.headroom or 0) * 512 / need.states for need in found.split.values() if need.states)
        assert 0.8 * more < (found.largest["split"] or 0) - 512 < more
        assert (found.largest_of_splits or 0) >= (found.largest["split"] or 0)


class TestPrompts:
    """What is read at once counts."""

    VOCABULARY = 64

    def test_a_context_alone_is_a_prompt_that_is_read_at_once(self) -> None:
        whole, short = (
            fit(stateful_decoder(2), PAIR, context=4096, workload=workload)
            for workload in (None, "prompt=128,generate=128")
        )
        assert whole.prompt == 4096 and short.prompt == 128
        assert whole.output_bytes == 4 * 4096 * self.VOCABULARY
        assert short.output_bytes == 4 * 128 * self.VOCABULARY
        assert whole.singles["CPU"].activations > short.singles["CPU"].activations + 4 * 3000 * self.VOCABULARY

    @pytest.mark.slow
    def test_fit_and_place_count_alike(self) -> None:
        for asked in ({"context": 2048}, {"workload": "prompt=1500,generate=100"}):
            need = fit(stateful_decoder(2), PAIR, **asked).singles["GPU"].total  # type: ignore[arg-type]
            for bytes_, fits in ((need + 10_000, True), (need - 10_000, False)):
                limits = {"GPU": bytes_, "CPU": 1}
                assert (fit(stateful_decoder(2), PAIR, memory=limits, **asked).single == "GPU") == fits  # type: ignore
                model = stateful_decoder(2)
                if fits:
                    ov_hsdag.place(model, PAIR, memory=limits, policy="none", **asked)
                    continue
                with pytest.raises(RunError, match="keeps within the devices' memory"):
                    ov_hsdag.place(model, PAIR, memory=limits, policy="none", **asked)

    def test_the_prompt_that_a_model_was_placed_for_counts(self) -> None:
        model = stateful_decoder(2)
        ov_hsdag.place(model, PAIR, workload="prompt=700,generate=100", policy="none")
        assert fit(model, PAIR).prompt == 700
        assert fit(model, PAIR, context=1000).prompt == 1000

    def test_a_workload_has_its_own_batch(self) -> None:
        assert fit(stateful_decoder(1), PAIR, workload="prompt=8,generate=8,batch=3").batch == 3
        with pytest.raises(UserError, match="give batch=N in it"):
            fit(stateful_decoder(1), PAIR, workload="prompt=8,generate=8", batch=2)


def sharing_decoder(layers: int = 4) -> ov.Model:
    """A decoder whose last two layers read the keys and values of the two before them, as Gemma 3n has it."""
    model = stateful_decoder(layers)
    share_states(model)
    return model


@pytest.mark.slow
def test_scores_of_attentions_that_share_a_cache_are_tensors_on_cpu_devices(two_cpu_core: ov.Core) -> None:
    pair, tokens, heads = ("CPU_A", "CPU_B"), 1024, 4
    alone, shared = (
        fit(model, pair, context=tokens, core=two_cpu_core, memory=dict.fromkeys(pair, 2**40))
        for model in (stateful_decoder(4, heads=heads), sharing_decoder())
    )
    grown = shared.singles["CPU_A"].activations - alone.singles["CPU_A"].activations
    scores = 6 * 4 * heads * tokens * tokens
    assert scores * 0.9 < grown < scores * 1.1


def test_the_cpu_plugin_takes_attentions_apart_that_share_a_cache(two_cpu_core: ov.Core) -> None:
    """What `attention_scores` counts on: each attention that is taken apart has a softmax of its own."""
    for model, apart in ((stateful_decoder(4), 0), (sharing_decoder(), 4)):
        graph = ComputationGraph.from_model(model, shapes=decoder_shapes(model, 1, 1, 64))
        assert len(attention_scores(graph, States.of(graph))) == apart
        compiled = two_cpu_core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        kinds = [node.get_rt_info()["layerType"].astype(str) for node in compiled.get_runtime_model().get_ops()]
        assert kinds.count("Softmax") == apart
