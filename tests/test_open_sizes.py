"""Open sizes and NPUs: one rule, in the same words in every command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

import ov_hsdag
from ov_hsdag.placing.together import ModelOf
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import opset13 as ops
from tests.commands import assert_one_error_line, run
from tests.decoders import stateful_decoder

pytestmark = pytest.mark.usefixtures("fast_search")

NPU = "HETERO:NPU,CPU"
SHAPES = {"input_features": (1, 1500, 512)}
RULE = (
    "an NPU takes no open sizes, and dimension 0 of input 'input_features' [?,1500,512] is open: fix it with --static"
    " --shape 'input_features=[1,1500,512]' of ov-hsdag place or plan (ovc: --input), or leave the NPU out"
)


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


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("place",), id="place"),
        pytest.param(("plan",), id="plan"),
        pytest.param(("place", "--together"), id="place --together"),
        pytest.param(("fit",), id="fit"),
        pytest.param(("finetune", "--simulated"), id="finetune"),
    ],
)
def test_every_command_refuses_open_sizes_in_the_same_words(
    words: tuple[str, ...], pipeline: Path, tmp_path: Path
) -> None:
    command, *flags = words
    source = pipeline / "openvino_encoder_model.xml" if command == "finetune" else pipeline
    output = () if command == "fit" else ("--output", tmp_path / "out")
    done = run(command, source, *flags, "--device", NPU, "--shape", "input_features=[1,1500,512]", *output, "--quiet")
    assert_one_error_line(done, RULE)
    assert not (tmp_path / "out").exists()


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


def test_a_model_that_stays_open_beside_static_ones_gets_no_npu_and_is_named() -> None:
    models = {"encoder": ModelOf(encoder(), shapes=SHAPES), "decoder": ModelOf(stateful_decoder(1))}
    with pytest.warns(UserWarning, match=r"'decoder' keeps open sizes and gets no NPU: an NPU takes no open sizes"):
        plan = ov_hsdag.place_together(models, NPU, static=True, policy="none")
    assert "NPU" in plan.models["encoder"].devices
    assert plan.models["decoder"].devices == ("CPU",)
    # What is written can be explained: nothing of the open model is on the NPU.
    assert "NPU" not in ov_hsdag.explain(models["decoder"].model).placement.used()


def test_a_plan_names_the_model_with_open_sizes() -> None:
    models = {"fixed": ModelOf(encoder(1)), "open": ModelOf(encoder(), shapes=SHAPES)}
    with pytest.raises(UserError, match="'open': an NPU takes no open sizes"):
        ov_hsdag.place_together(models, NPU, policy="none")


def test_a_placement_on_an_npu_is_not_explained_for_open_sizes() -> None:
    model = encoder()
    ov_hsdag.place(model, "HETERO:GPU,CPU", policy="none")
    on_npu = {node.get_friendly_name(): "NPU" for node in model.get_ops()}
    with pytest.raises(UserError, match="an NPU takes no open sizes"):
        ov_hsdag.explain(model, NPU, affinity=on_npu)
