"""Open sizes and NPUs: one rule, in the same words in every command."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

import ov_hsdag
from ov_hsdag.applications.prepared import ModelOf
from ov_hsdag.model.placement import Placement
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import opset13 as ops
from tests.commands import assert_one_error_line, run
from tests.decoders import stateful_decoder

pytestmark = pytest.mark.usefixtures("fast_search")

NPU = "HETERO:NPU,CPU"
SHAPES = {"input_features": (1, 1500, 512)}
RULE = (
    "an NPU takes no open sizes, and dimension 0 of input 'input_features' [?,1500,512] is open: fix it with"
    " --shape 'input_features=[1,1500,512]' (ovc: --input), or leave the NPU out"
)
FIXED = "an NPU takes no open sizes, so input_features=[1,1500,512] is fixed: the placed model takes no other sizes"


def encoder(batch: int = -1) -> ov.Model:
    random = np.random.default_rng(0)
    x = ops.parameter([batch, 1500, 512], ov.Type.f32, name="input_features")
    x.output(0).get_tensor().set_names({"input_features"})
    last = x
    for _ in range(8):
        weights = ops.constant(random.normal(0, 0.05, (512, 512)).astype(np.float32))
        last = ops.relu(ops.matmul(last, weights, False, True))
    return ov.Model([ops.result(last)], [x], "encoder")


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pipeline")
    ov.save_model(encoder(), folder / "openvino_encoder_model.xml")
    return folder


COMMANDS = [
    pytest.param(("place",), id="place"),
    pytest.param(("plan",), id="plan"),
    pytest.param(("place", "--together"), id="place --together"),
    pytest.param(("fit",), id="fit"),
    pytest.param(("finetune", "--simulated", "--measurements", "2"), id="finetune"),
]


def run_on_npu(words: tuple[str, ...], pipeline: Path, output: Path, *more: object) -> subprocess.CompletedProcess[str]:
    command, *flags = words
    source = pipeline / "openvino_encoder_model.xml" if command == "finetune" else pipeline
    written = () if command == "fit" else ("--output", output)
    return run(command, source, *flags, "--device", NPU, *more, *written)


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_refuses_open_sizes_in_the_same_words(
    words: tuple[str, ...], pipeline: Path, tmp_path: Path
) -> None:
    done = run_on_npu(words, pipeline, tmp_path / "out", "--quiet")
    assert_one_error_line(done, RULE)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_fixes_the_sizes_that_are_given_and_says_so(
    words: tuple[str, ...], pipeline: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = run_on_npu(words, pipeline, out, "--shape", "input_features=[1,1500,512]")
    assert done.returncode == 0, done.stderr
    assert FIXED in " ".join((done.stdout + done.stderr).split())
    for written in out.glob("*model.xml"):
        model = ov.Core().read_model(written)
        assert model.input(0).get_partial_shape() == ov.PartialShape([1, 1500, 512])
        assert "NPU" in Placement.of(model).used()
    assert words[0] == "fit" or list(out.glob("*model.xml"))


def test_sizes_of_the_configuration_alone_are_not_fixed(pipeline: Path, tmp_path: Path) -> None:
    folder = tmp_path / "whisper"
    shutil.copytree(pipeline, folder)
    (folder / "config.json").write_text('{"num_mel_bins": 1500, "max_source_positions": 256}')
    assert_one_error_line(run("plan", folder, "--device", NPU, "--output", tmp_path / "out", "--quiet"), RULE)


def test_states_keep_an_open_model_from_being_fixed() -> None:
    sizes = {"input_ids": (1, 1), "attention_mask": (1, 8), "position_ids": (1, 1), "beam_idx": (1,)}
    model = stateful_decoder(1)
    sizes = {name: shape for name, shape in sizes.items() if any(name in port.get_names() for port in model.inputs)}
    with pytest.raises(UserError, match=r"an NPU takes no open sizes.*fix it with --static --shape"):
        ov_hsdag.place(model, NPU, shapes=sizes, policy="none")


@pytest.mark.parametrize("words", [("plan",), ("place", "--together")])
def test_a_plan_with_static_sizes_uses_the_npu(words: tuple[str, ...], pipeline: Path, tmp_path: Path) -> None:
    command, *flags = words
    out = tmp_path / "out"
    done = run(
        *(command, pipeline, *flags, "--device", NPU, "--shape", "input_features=[1,1500,512]", "--static"),
        *("--objective", "latency", "--no-measure", "--output", out, "--json"),
    )
    assert done.returncode == 0, done.stderr
    planned = json.loads(done.stdout)["models"]["encoder_model"]
    assert planned["devices"] == ["NPU"]
    written = ov.Core().read_model(out / "openvino_encoder_model.xml")
    assert written.input(0).get_partial_shape() == ov.PartialShape([1, 1500, 512])


@pytest.mark.slow
def test_a_model_that_stays_open_beside_static_ones_gets_no_npu_and_is_named() -> None:
    models = {"encoder": ModelOf(encoder(), shapes=SHAPES), "decoder": ModelOf(stateful_decoder(1))}
    with pytest.warns(UserWarning, match=r"'decoder' keeps open sizes and gets no NPU: an NPU takes no open sizes"):
        plan = ov_hsdag.place_together(models, NPU, static=True, policy="none")
    assert "NPU" in plan.models["encoder"].devices
    assert plan.models["decoder"].devices == ("CPU",)
    # What is written can be explained: nothing of the open model is on the NPU.
    assert "NPU" not in ov_hsdag.explain(models["decoder"].model).placement.used()


def test_a_plan_names_the_model_with_open_sizes() -> None:
    models = {"fixed": ModelOf(encoder(1)), "open": ModelOf(encoder())}
    with pytest.raises(UserError, match="'open': an NPU takes no open sizes"):
        ov_hsdag.place_together(models, NPU, policy="none")


def test_a_placement_on_an_npu_is_not_explained_for_open_sizes() -> None:
    model = encoder()
    ov_hsdag.place(model, "HETERO:GPU,CPU", policy="none")
    on_npu = {node.get_friendly_name(): "NPU" for node in model.get_ops()}
    with pytest.raises(UserError, match="an NPU takes no open sizes"):
        ov_hsdag.explain(model, NPU, affinity=on_npu)
