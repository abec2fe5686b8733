"""Sizes of open inputs that nobody gave: from the configuration beside a model, from the model itself, or none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

import ov_hsdag
from ov_hsdag.model.config_sizes import sizes_beside
from ov_hsdag.model.own_sizes import fixed_by_weights, suggested_sizes
from ov_hsdag.model.shapes import fitting_input_shapes
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import opset13 as ops
from tests.commands import DEVICE, assert_one_error_line, ran, run

WHISPER = {"model_type": "whisper", "num_mel_bins": 80, "max_source_positions": 1500, "d_model": 16}


def weights(*shape: int) -> ov.Node:
    return ops.constant((np.random.default_rng(0).standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32))


def open_input(name: str, rank: int) -> ov.Node:
    parameter = ops.parameter([-1] * rank, np.float32, name=name)
    parameter.output(0).set_names({name})
    return parameter


def speech_encoder(positions: int = 1500, bins: int = 80) -> ov.Model:
    """Two convolutions over a spectrogram, the second of stride 2, and a table of positions, as Whisper has them."""
    data = open_input("input_features", 3)
    y = ops.relu(ops.convolution(data, weights(16, bins, 3), [1], [1], [1], [1]))
    y = ops.relu(ops.convolution(y, weights(16, 16, 3), [2], [1], [1], [1]))
    y = ops.add(ops.transpose(y, np.array([0, 2, 1])), weights(positions, 16))
    return ov.Model([ops.result(ops.matmul(y, weights(16, 16), False, False))], [data], "encoder")


def classifier(size: int) -> ov.Model:
    """Pools over a window of half of an image that it takes in this size alone."""
    data = open_input("pixel_values", 4)
    y = ops.relu(ops.convolution(data, weights(8, 3, 2, 2), [2, 2], [0, 0], [0, 0], [1, 1]))
    window = [size // 2, size // 2]
    y = ops.reshape(ops.avg_pool(y, window, [0, 0], [0, 0], window, False), np.array([-1, 8]), False)
    return ov.Model([ops.result(ops.matmul(y, weights(8, 10), False, False))], [data], "classifier")


def only_of_40_rows(rows: int = 40) -> ov.Model:
    """A model whose one size is in the target of a Reshape alone."""
    data = open_input("x", 3)
    y = ops.matmul(data, weights(16, 64), False, False)
    return ov.Model([ops.result(ops.reshape(y, np.array([1, rows * 64]), False))], [data], "rows")


def test_weights_and_tables_tell_what_a_model_takes() -> None:
    model = speech_encoder()
    assert fixed_by_weights(model.inputs[0]) == {1: 80}
    assert suggested_sizes(model) == [3000]
    assert fitting_input_shapes(model) == [(1, 80, 3000)]
    assert fitting_input_shapes(classifier(800)) == [(1, 3, 800, 800)]
    open_rows = only_of_40_rows()
    assert fixed_by_weights(open_rows.inputs[0]) == {2: 16}


def test_a_model_is_never_counted_with_sizes_that_it_does_not_take(core: ov.Core, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not known which sizes the model takes.*x=\[1,128,16\].*--shape"):
        ov_hsdag.place(only_of_40_rows(), "HETERO:GPU,CPU", core=core)
    ov.save_model(only_of_40_rows(), tmp_path / "rows.xml")
    output = tmp_path / "placed.xml"
    refused = run("place", tmp_path / "rows.xml", "-d", DEVICE, "--no-measure", "-o", output)
    assert_one_error_line(refused, "x=[1,128,16] does not fit")
    assert not output.exists()
    ran("place", tmp_path / "rows.xml", "-d", DEVICE, "--no-measure", "-o", output, "--shape", "x=[1,40,16]")


@pytest.mark.parametrize(
    ("config", "model", "expected"),
    [
        (WHISPER, speech_encoder(), {"input_features": (1, 80, 3000)}),
        ({"image_size": 96}, classifier(96), {"pixel_values": (1, 3, 96, 96)}),
        ({"vision_config": {"image_size": [96, 96]}}, classifier(96), {"pixel_values": (1, 3, 96, 96)}),
        ({"size": {"height": 96, "width": 96}}, classifier(96), {"pixel_values": (1, 3, 96, 96)}),
        # What it says does not fit, or is no size.
        ({"image_size": 97}, classifier(224), {}),
        ({"image_size": -5}, classifier(96), {}),
        ({"image_size": 10**30}, classifier(96), {}),
        ({"image_size": True}, classifier(96), {}),
        ([WHISPER], speech_encoder(), {}),
        ({"num_mel_bins": 128, "max_source_positions": 1500}, speech_encoder(), {}),
    ],
)  # fmt: skip
def test_the_configuration_beside_a_model_tells(config: Any, model: ov.Model, expected: Any, tmp_path: Path) -> None:
    assert sizes_beside(model, tmp_path / "m.xml", None) == {}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert sizes_beside(model, tmp_path / "m.xml", None) == expected
    name = next(iter(model.inputs[0].get_names()))
    assert sizes_beside(model, tmp_path / "m.xml", {name: [1] * len(model.inputs[0].get_partial_shape())}) == {}


def test_a_decoder_reads_as_many_positions_as_its_encoder_makes(tmp_path: Path) -> None:
    data = open_input("encoder_hidden_states", 3)
    model = ov.Model([ops.result(ops.matmul(data, weights(16, 16), False, False))], [data], "decoder")
    (tmp_path / "config.json").write_text(json.dumps(WHISPER))
    assert sizes_beside(model, tmp_path / "m.xml", {}) == {"encoder_hidden_states": (1, 1500, 16)}


def test_a_damaged_configuration_changes_nothing(tmp_path: Path) -> None:
    for content in (b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"image_size": {"height": {}}}', b'{"image_size": []}'):
        (tmp_path / "config.json").write_bytes(content)
        assert sizes_beside(classifier(96), tmp_path / "m.xml", None) == {}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "speech"
    path.mkdir()
    ov.save_model(speech_encoder(), path / "openvino_encoder_model.xml", compress_to_fp16=False)
    (path / "config.json").write_text(json.dumps(WHISPER))
    return path


def test_a_folder_is_placed_and_planned_with_its_configuration(folder: Path, tmp_path: Path) -> None:
    def placed(*more: object) -> Any:
        told = json.loads(
            ran("place", folder, "-d", DEVICE, "--no-measure", "-o", tmp_path / "out", "--json", *more).stdout
        )
        return told["models"]["openvino_encoder_model.xml"]

    found, exact = placed(), placed("--shape", "input_features=[1,80,3000]")
    line = "costs assume input_features=[1,80,3000] (from its configuration); --shape assumes other sizes"
    assert line in found["messages"] and line not in exact["messages"]
    assert found["predicted"] == exact["predicted"]
    other = placed("--shape", "input_features=[2,80,3000]")
    assert other["predicted"]["latency_us"] > 1.5 * exact["predicted"]["latency_us"]

    app = tmp_path / "app.toml"
    figures = []
    for shape in ("", 'shape = "input_features=[1,80,3000]"'):
        app.write_text(f'[models.hear]\npath = "{folder}"\n{shape}\n')
        done = ran("plan", app, "-d", DEVICE, "--no-measure", "-o", tmp_path / "plan", "--json")
        figures.append(json.loads(done.stdout)["predicted"])
    assert figures[0] == figures[1]


def test_what_a_model_was_placed_with_goes_before_its_configuration(folder: Path, tmp_path: Path) -> None:
    shape = ("--shape", "input_features=[2,80,3000]")
    ran("place", folder, "-d", DEVICE, "--no-measure", "-o", tmp_path / "out", *shape)
    assert (tmp_path / "out" / "config.json").exists()
    told = [ran("explain", tmp_path / "out", "--json", *more).stdout for more in ((), shape)]
    assert json.loads(told[0])["parts_us"] == json.loads(told[1])["parts_us"]
