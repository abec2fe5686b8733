"""Inputs that users give, as arrays and as files, and those that are made up."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset15

import ov_hsdag
from ov_hsdag.cli.command_lines import command_of
from ov_hsdag.measuring.verification import verify
from ov_hsdag.model.inputs import random_inputs, timed_inputs
from ov_hsdag.model.samples import inputs_of_each, parse_inputs, samples_of
from ov_hsdag.utils import png
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import opset13 as ops
from tests.commands import DEVICE, assert_one_error_line, ran, run
from tests.decoders import stateful_decoder
from tests.images import chunk, png_of

RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 256, (9, 7, 3), dtype=np.uint8)


def named(shape: list[int], element: Any = np.float32, name: str = "image") -> ov.Node:
    parameter = ops.parameter(shape, element, name=name)
    parameter.output(0).set_names({name})
    return parameter


def of_inputs(*parameters: ov.Node) -> ov.Model:
    return ov.Model([ops.result(ops.relu(one)) for one in parameters], list(parameters), "inputs")


def finds_bright_areas(size: int = 32) -> ov.Model:
    """A detector in little: it keeps boxes of areas, of 8 by 8 pixels, that are bright from end to end."""
    image = named([1, 3, size, size])
    mean = ops.reduce_mean(image, np.array([1]), True)
    areas = ops.multiply(ops.max_pool(ops.multiply(mean, np.float32(-1)), [8, 8], [1, 1], [0, 0], [0, 0], [8, 8])
                         .output(0), np.float32(-1))  # fmt: skip
    scores = ops.reshape(areas, np.array([1, 1, -1]), False)
    corner = np.arange((size // 8) ** 2, dtype=np.float32)[:, None]
    boxes = ops.constant(np.concatenate([corner, corner, corner + 0.5, corner + 0.5], axis=1)[None])
    kept = opset15.non_max_suppression(boxes, scores, np.int64(5), np.float32(0.5), np.float32(0.9))
    weighted = ops.matmul(scores, ops.constant(np.eye((size // 8) ** 2, dtype=np.float32)), False, False)
    picked = ops.gather_nd(weighted, kept.output(0))
    return ov.Model([ops.result(picked, name="found")], [image], "detector")


def lengths_of_texts() -> ov.Model:
    """Texts [?] to a vector each that depends on how many characters the text has."""
    text = named([-1], ov.Type.string, "text")
    begins, ends, _ = opset15.string_tensor_unpack(text).outputs()
    lengths = ops.unsqueeze(ops.convert(ops.subtract(ends, begins), np.float32), np.int64(1))
    weights = ops.constant(RANDOM.standard_normal((1, 16)).astype(np.float32))
    y = ops.matmul(ops.sigmoid(ops.matmul(lengths, weights, False, False)), np.eye(16, dtype=np.float32), False, False)
    return ov.Model([ops.result(y, name="vector")], [text], "lengths")


@pytest.fixture(scope="module")
def bright(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image with a bright area."""
    pixels = np.zeros((32, 32, 3), np.uint8)
    pixels[8:24, 8:16] = 250
    path = tmp_path_factory.mktemp("image") / "bright.png"
    path.write_bytes(png_of(pixels))
    return path


class TestPng:
    @pytest.mark.parametrize("channels", [1, 2, 3, 4])
    def test_pixels_are_those_that_were_written(self, channels: int) -> None:
        for height, width in ((1, 1), (1, 9), (8, 1), (13, 6)):
            pixels = RANDOM.integers(0, 256, (height, width, channels), dtype=np.uint8)
            np.testing.assert_array_equal(png.decode(png_of(pixels)), pixels)
        for one in range(5):
            np.testing.assert_array_equal(png.decode(png_of(PIXELS, [one])), PIXELS)

    def test_palettes(self) -> None:
        colors = RANDOM.integers(0, 256, (5, 3), dtype=np.uint8)
        numbers = RANDOM.integers(0, 5, (4, 6, 1), dtype=np.uint8)
        np.testing.assert_array_equal(png.decode(png_of(numbers, palette=colors)), colors[numbers[:, :, 0]])
        with pytest.raises(ValueError, match="palette is too short"):
            png.decode(png_of(numbers, palette=colors[:3]))

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "no PNG image"),
            (b"\xff\xd8\xff\xe0 a JPEG", "no PNG image"),
            (png_of(PIXELS)[:-20], "ends too soon|checksum"),
            (png_of(PIXELS).replace(b"IDAT", b"IDAX", 1), "checksum is wrong"),
            (png_of(PIXELS, header=(7, 9, 16, 2, 0, 0, 0)), "16 bits a channel: 8-bit PNG .* Pillow"),
            (png_of(PIXELS, header=(7, 9, 8, 2, 0, 0, 1)), "interlaced: 8-bit PNG .* Pillow"),
            (png_of(PIXELS, header=(2**31, 9, 8, 2, 0, 0, 0)), "pixels, at most"),
            (png_of(PIXELS, header=(0, 9, 8, 2, 0, 0, 0)), "pixels, at most"),
            (png_of(PIXELS, header=(4000, 2000, 8, 2, 0, 0, 0)), "fewer pixels than it says"),
            (b"\x89PNG\r\n\x1a\n" + chunk(b"IEND", b""), "no header"),
            (png_of(PIXELS, header=(7, 9, 8, 2, 0, 0, 0)).replace(chunk(b"IEND", b""), b""), "ends too soon"),
        ],
    )
    def test_what_is_none_or_of_another_kind(self, content: bytes, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            png.decode(content)

    def test_no_more_is_unpacked_than_the_image_has(self) -> None:
        header = chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 2, 8, 0, 0, 0, 0))
        bomb = chunk(b"IDAT", zlib.compress(bytes(10**8)))
        assert png.decode(b"\x89PNG\r\n\x1a\n" + header + bomb + chunk(b"IEND", b"")).shape == (2, 2, 1)


class TestFitting:
    def only(self, model: ov.Model, given: Any, **more: Any) -> Any:
        found = samples_of(model, given, **more)
        assert found is not None
        ((array,),) = found.inferences
        return array

    def image(self, tmp_path: Path, pixels: Any = PIXELS) -> Path:
        (tmp_path / "it.png").write_bytes(png_of(pixels))
        return tmp_path / "it.png"

    def test_an_image_is_laid_out_scaled_and_resized(self, tmp_path: Path) -> None:
        path = self.image(tmp_path)
        expected = PIXELS.astype(np.float32) / 255
        np.testing.assert_allclose(
            self.only(of_inputs(named([1, 3, 9, 7])), {"": path})[0], expected.transpose(2, 0, 1)
        )
        np.testing.assert_allclose(self.only(of_inputs(named([2, 9, 7, 3])), {"": path})[1], expected)
        np.testing.assert_array_equal(self.only(of_inputs(named([1, 9, 7, 3], np.uint8)), {"": path})[0], PIXELS)
        np.testing.assert_allclose(self.only(of_inputs(named([9, 7, 3])), {"": path}), expected)
        gray = self.only(of_inputs(named([1, 1, 9, 7])), {"": path})
        np.testing.assert_allclose(gray[0, 0], expected.mean(axis=2), atol=1e-6)
        open_size = self.only(of_inputs(named([-1, 3, -1, -1])), {"image": [str(path)]})
        assert open_size.shape == (1, 3, 9, 7)
        half = self.only(of_inputs(named([-1, 3, -1, -1])), {"image": path}, shapes={"image": [1, 3, 5, 4]})
        assert half.shape == (1, 3, 5, 4) and abs(half.mean() - expected.mean()) < 0.05
        assert self.only(of_inputs(named([-1, 3, -1, -1])), {"": path}, images={"image": [1, 3, 8, 8]}).shape[2:] == (
            8,
            8,
        )
        flat = np.full((6, 6, 3), 51, np.uint8)
        resized = self.only(of_inputs(named([1, 3, 17, 2])), {"": self.image(tmp_path, flat)})
        np.testing.assert_allclose(resized, 0.2, rtol=1e-6)

    def test_alpha_is_left_out_and_gray_repeated(self, tmp_path: Path) -> None:
        pixels = RANDOM.integers(0, 256, (4, 5, 4), dtype=np.uint8)
        model = of_inputs(named([1, 3, 4, 5]))
        found = self.only(model, {"": self.image(tmp_path, pixels)})
        np.testing.assert_allclose(found[0], pixels[:, :, :3].transpose(2, 0, 1) / np.float32(255))
        found = self.only(model, {"": self.image(tmp_path, pixels[:, :, 2:])})
        np.testing.assert_allclose(found[0, 1], pixels[:, :, 2] / np.float32(255))

    def test_a_layout_says_where_channels_are(self, tmp_path: Path) -> None:
        parameter = named([-1, -1, -1, -1])
        parameter.set_layout(ov.Layout("NHWC"))
        assert self.only(of_inputs(parameter), {"": self.image(tmp_path)}).shape == (1, 9, 7, 3)

    def test_arrays_get_a_batch_and_the_inputs_type(self) -> None:
        array = np.arange(6).reshape(2, 3)
        found = self.only(of_inputs(named([1, 2, 3])), {"": array})
        assert found.shape == (1, 2, 3) and found.dtype == np.float32
        assert self.only(of_inputs(named([-1, 3], np.int64)), {"image": array.astype(np.float64)}).dtype == np.int64

    def test_samples_of_several_inputs_and_what_is_made_up(self) -> None:
        ids, mask = named([-1, -1], np.int64, "input_ids"), named([-1, -1], np.int64, "attention_mask")
        model = of_inputs(ids, mask)
        found = samples_of(model, {"input_ids": [np.ones((1, 5)), np.ones((1, 9))]})
        assert found is not None and found.shapes == {"input_ids": (1, 5), "attention_mask": (1, 5)}
        assert [[one.shape for one in inputs] for inputs in found.inferences] == [[(1, 5)] * 2, [(1, 9)] * 2]
        assert all((mask == 1).all() for _, mask in found.inferences)
        (timed,) = timed_inputs(model, samples=found)
        assert timed.steps is found.inferences

    def test_files(self, tmp_path: Path) -> None:
        first, second = np.ones((1, 4), np.float32), np.zeros((1, 4), np.float32)
        np.save(tmp_path / "a.npy", first)
        np.savez(tmp_path / "both.npz", image=first, other=second)
        np.savez(tmp_path / "many.npz", first, second)
        one, two = of_inputs(named([1, 4])), of_inputs(named([1, 4]), named([1, 4], name="other"))

        def read(model: ov.Model, *texts: str) -> list[list[float]]:
            found = samples_of(model, parse_inputs([str(tmp_path / text) if "=" not in text else
                               text.replace("=", f"={tmp_path}/") for text in texts]))  # fmt: skip
            assert found is not None
            return [[float(array.sum()) for array in inputs] for inputs in found.inferences]

        assert read(one, "a.npy") == read(one, "image=a.npy") == read(one, "image=both.npz") == [[4]]
        assert read(one, "many.npz") == [[4], [0]]
        assert read(two, "both.npz") == [[4, 0]]
        assert read(two, "image=many.npz", "other=a.npy") == [[4, 4], [0, 4]]

    def test_lines_of_a_text_file_are_samples(self, tmp_path: Path) -> None:
        (tmp_path / "texts.txt").write_text("one text\nanother one\n", encoding="utf-8")
        found = samples_of(lengths_of_texts(), parse_inputs([f"text={tmp_path / 'texts.txt'}"]))
        assert found is not None
        assert [inputs[0].tolist() for inputs in found.inferences] == [["one text"], ["another one"]]
        batch = of_texts(3)
        found = samples_of(batch, {"": np.array(["same"])})
        assert found is not None and found.inferences[0][0].tolist() == ["same"] * 3

    def test_several_texts_must_have_the_example_shape(self) -> None:
        texts = np.array(["one", "two"])
        found = samples_of(lengths_of_texts(), {"text": texts}, {"text": [2]})
        assert found is not None and found.inferences[0][0].tolist() == ["one", "two"]
        with pytest.raises(UserError, match=r"texts of shape \[2\] are given for input 'text' of shape \[3\]"):
            samples_of(lengths_of_texts(), {"text": texts}, {"text": [3]})

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"other": np.ones((1, 4))}, "unknown input 'other'; inputs of the model: image"),
            ({"image": np.ones((1, 5))}, r"of shape \[1,? ?5\], and input 'image' takes \[1,4\]"),
            ({"image": np.array(["text"] * 4)}, "takes float32"),
            ({"image": np.ones((1, 4), complex)}, "an array of numbers or texts"),
            ({"image": object()}, "an array of numbers or texts"),
            ({"image": [[1, 2], [3]]}, "of shape"),
            ({"image": "missing.npy"}, "cannot read input 'missing.npy': No such file"),
            ({"image": "missing.jpg"}, "none of .npy, .npz, .png, .txt"),
            ({"image": [np.ones((1, 4))] * 65}, "65 samples"),
        ],
    )
    def test_what_does_not_fit(self, given: Any, message: str) -> None:
        with pytest.raises(UserError, match=message) as error:
            samples_of(of_inputs(named([1, 4])), given)
        assert "\n" not in str(error.value)

    def test_values_that_the_type_cannot_have(self) -> None:
        for array in (np.full((1, 4), 0.5), np.full((1, 4), 300), np.full((1, 4), np.nan)):
            with pytest.raises(UserError, match=r"its values of type .* are not all uint8"):
                samples_of(of_inputs(named([1, 4], np.uint8)), {"": array})

    def test_pickles_are_not_read(self, tmp_path: Path) -> None:
        np.save(tmp_path / "a.npy", np.array([{"a": 1}], object), allow_pickle=True)
        with pytest.raises(UserError, match="an array is damaged: Object arrays cannot be loaded"):
            samples_of(of_inputs(named([1, 4])), {"": tmp_path / "a.npy"})

    def test_models_with_states_and_several_models(self) -> None:
        with pytest.raises(UserError, match="model with states"):
            samples_of(stateful_decoder(2), {"input_ids": np.ones((1, 4))})
        models = [of_inputs(named([1, 4])), of_inputs(named([1, 4], name="b"))]
        assert inputs_of_each(models, {"image": 1, "b": 2}) == [{"image": 1}, {"b": 2}]
        with pytest.raises(UserError, match="unknown input 'c'; inputs: b, image"):
            inputs_of_each(models, {"c": 1})

    @pytest.mark.parametrize("text", ["a", "=a.npy", "x=", "x=a.jpg", ""])
    def test_texts_that_name_no_file(self, text: str) -> None:
        with pytest.raises(UserError, match=r"cannot read input .*: give it as NAME=FILE"):
            parse_inputs([text])


def of_texts(batch: int) -> ov.Model:
    text = named([batch], ov.Type.string, "text")
    return ov.Model([ops.result(opset15.string_tensor_unpack(text).output(1))], [text], "texts")


class TestMadeUp:
    def test_images_have_edges(self) -> None:
        for shape, element in (([1, 3, 64, 64], np.float32), ([1, 64, 48, 1], np.uint8)):
            (image,) = random_inputs(of_inputs(named(shape, element)))
            plane = image[0, 0] if element == np.float32 else image[0, :, :, 0]
            plane = plane.astype(np.float64)
            # Neighbours are alike but for some: of noise they would differ by as much as any two pixels.
            steps = np.abs(np.diff(plane, axis=1))
            assert np.median(steps) < 0.35 * plane.std() and steps.max() > plane.std()

    def test_texts_are_words_of_several_lengths(self) -> None:
        texts = [str(random_inputs(of_texts(1), seed)[0][0]) for seed in range(10)]
        assert len({len(text.split()) for text in texts}) > 3 and all(text.islower() for text in texts)

    def test_a_model_of_texts_is_verified(self, two_cpu_core: ov.Core) -> None:
        model = lengths_of_texts()
        ov_hsdag.place(model, DEVICE, core=two_cpu_core)
        done = verify(model, core=two_cpu_core)
        assert done.good and done.result["verified"] and done.result["equal"] is True, done


class TestVerifying:
    @pytest.fixture
    def detector(self, two_cpu_core: ov.Core) -> ov.Model:
        model = finds_bright_areas()
        ov_hsdag.place(model, DEVICE, core=two_cpu_core)
        return model

    def test_what_finds_nothing_in_made_up_images_is_verified_with_one_that_has_it(
        self, detector: ov.Model, bright: Path, two_cpu_core: ov.Core
    ) -> None:
        nothing = np.zeros((1, 3, 32, 32), np.float32)
        done = verify(detector, core=two_cpu_core, inputs={"": [nothing, nothing]})
        assert not done.good and done.result["verified"] is False and done.result["equal"] is None
        assert done.result["reasons"] == ["all outputs are empty: --input NAME=FILE gives inputs of your own"]
        done = verify(detector, core=two_cpu_core, inputs={"image": [bright, nothing]})
        assert done.good and done.result["reasons"] == []
        assert verify(detector, core=two_cpu_core, inputs={"image": str(bright)}).good

    def test_the_command(self, detector: ov.Model, bright: Path, tmp_path: Path) -> None:
        placed = tmp_path / "placed.xml"
        ov.save_model(detector, placed, compress_to_fp16=False)
        np.save(tmp_path / "nothing.npy", np.zeros((2, 1, 3, 32, 32), np.float32)[0])
        done = run("verify", placed, "--json", "--input", tmp_path / "nothing.npy", "--input", tmp_path / "nothing.npy")
        told = json.loads(done.stdout)
        assert done.returncode == 1 and told["verified"] is False and told["equal"] is None and told["reasons"]
        assert told["device"] == DEVICE  # of the file
        ran("verify", placed, "--input", f"image={bright}", "--device", DEVICE)
        assert_one_error_line(run("verify", placed, "--input", f"picture={bright}"), "unknown input 'picture'")
        (tmp_path / "broken.png").write_bytes(bright.read_bytes()[:50])
        assert_one_error_line(run("verify", placed, "--input", tmp_path / "broken.png"), "damaged PNG image")


class TestMeasuring:
    @pytest.mark.slow
    def test_placing_measures_with_them(self, bright: Path, tmp_path: Path) -> None:
        model = tmp_path / "m.xml"
        image = named([-1, 3, -1, -1])
        weights = ops.constant(RANDOM.standard_normal((8, 3, 3, 3)).astype(np.float32))
        y = ops.convolution(image, weights, [1, 1], [1, 1], [1, 1], [1, 1])
        ov.save_model(ov.Model([ops.result(ops.relu(y))], [image], "m"), model, compress_to_fp16=False)
        placed = tmp_path / "placed.xml"
        options = ("-d", DEVICE, "-o", placed, "--measure-seconds", 5, "--policy", "none", "--json")
        told = json.loads(ran("place", model, *options, "--input", bright).stdout)
        assert any(one["failed"] is None for one in told["measured"].values())
        assert not any("costs assume" in line for line in told["messages"])
        placement = ov_hsdag.Placement.of(ov.Core().read_model(placed))
        assert placement is not None and placement.settings is not None
        assert placement.settings["shapes"] == {"image": [1, 3, 32, 32]}
        assert placement.settings["inputs"] == ["bright.png"]
        assert "--input bright.png" in command_of(placement)
        rows = json.loads(
            ran("bench", model, "-d", DEVICE, "--policies", "none", "--rounds", 1, "--json", "--input", bright).stdout
        )["models"][0]["results"]
        assert any(not row["failed"] for row in rows)

    @pytest.mark.slow
    def test_samples_take_turns(self, two_cpu_core: ov.Core, tmp_path: Path) -> None:
        model = lengths_of_texts()
        (tmp_path / "t.txt").write_text("short\n" + "a much longer text " * 20 + "\nmiddle of the two\n")
        placement = ov_hsdag.place(
            model, DEVICE, core=two_cpu_core, measure=True, measure_seconds=5, policy="none",
            inputs={"text": tmp_path / "t.txt"},
        )  # fmt: skip
        assert placement.measured and any(one["failed"] is None for one in placement.measured.values())

    def test_a_workload_makes_up_its_own(self) -> None:
        with pytest.raises(UserError, match="leave out one of them"):
            ov_hsdag.place(stateful_decoder(2), DEVICE, workload="prompt=4,generate=4", inputs={"input_ids": [1]})
