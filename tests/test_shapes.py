"""Example shapes on the command line: `--shape`, read once and checked against the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from ov_hsdag.model.inputs import example_shapes, parse_shapes, random_inputs
from ov_hsdag.model.placement import Placement
from ov_hsdag.model.shapes import assumed_sizes, counted_input_shapes
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import opset13 as ops
from tests.commands import DEVICE, assert_one_error_line, ran, run
from tests.conftest import GENEROUS


def sequences(inputs: int = 2) -> ov.Model:
    """One or two inputs of any length, [?, ?, 16], that are projected and added."""
    random = np.random.default_rng(0)
    parameters = [ops.parameter(ov.PartialShape([-1, -1, 16]), np.float32, name=f"in{n}") for n in range(inputs)]
    total = None
    for number, parameter in enumerate(parameters):
        parameter.output(0).set_names({f"in{number}", f"alias{number}"})
        weights = random.standard_normal((16, 64)).astype(np.float32)
        projected = ops.relu(ops.matmul(parameter, ops.constant(weights), False, False))
        total = projected if total is None else ops.add(total, projected)
    return ov.Model([ops.result(total, name="out")], parameters, "sequences")


def forty_tokens() -> ov.Model:
    """A model that only runs where both inputs have 40 tokens."""
    model = sequences(2)
    (result,) = model.get_results()
    pattern = ops.constant(np.array([-1, 40 * 64]))
    result.input(0).replace_source_output(ops.reshape(result.input_value(0), pattern, False).output(0))
    model.validate_nodes_and_infer_types()
    return model


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Models of one and of two inputs."""
    folder = tmp_path_factory.mktemp("shapes")
    for inputs in (1, 2):
        ov.save_model(sequences(inputs), folder / f"model{inputs}.xml", compress_to_fp16=False)
    return {inputs: folder / f"model{inputs}.xml" for inputs in (1, 2)}


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["input_ids=[1,128]"], {"input_ids": (1, 128)}),
        (["input_ids[1,128]"], {"input_ids": (1, 128)}),
        (["[1,3,224,224]"], {"": (1, 3, 224, 224)}),
        (["a=[1,2],b/c:0=[3]", "d = [ 4 , 5 ] "], {"a": (1, 2), "b/c:0": (3,), "d": (4, 5)}),
        (["scalar=[]"], {"scalar": ()}),
        ([], {}),
    ],
)
def test_shapes_are_read(texts: list[str], expected: dict[str, tuple[int, ...]]) -> None:
    assert parse_shapes(texts) == expected


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ([""], ["cannot read shape ''"]),
        (["input_ids"], ["cannot read", "input_ids", '"input_ids=[1,128]"']),
        (["a=1,128"], ["cannot read"]),
        (["a=[1,128"], ["cannot read"]),
        (["a=[1],b"], ["cannot read"]),
        (["a=[1]b=[2]"], ["cannot read"]),
        (["a=[0,128]"], ["positive", "[0,128]"]),
        (["a=[-1,128]"], ["positive"]),
        (["a=[?,128]"], ["positive"]),
        (["a=[1..4]"], ["positive"]),
        (["a=[1,,2]"], ["positive"]),
        (["a=[1.5]"], ["positive"]),
        (["a=[1]", "a=[2]"], ["'a'", "already"]),
        (["[1],[2]"], ["already"]),
    ],
)
def test_what_is_no_shape_is_refused(texts: list[str], words: list[str]) -> None:
    with pytest.raises(UserError) as raised:
        parse_shapes(texts)
    for word in words:
        assert word in str(raised.value)
    assert "\n" not in str(raised.value)


def test_each_of_several_models_gets_the_shapes_of_its_inputs() -> None:
    one, two = sequences(1), sequences(2)
    shapes = {"alias0": (1, 8, 16), "in1": (2, 9, 16)}
    assert example_shapes([one, two], shapes) == [{"alias0": (1, 8, 16)}, shapes]
    assert example_shapes([one, two], {}) == [None, None]
    (named,) = example_shapes([one], {"": (1, 8, 16)})
    assert random_inputs(one, shapes=named)[0].shape == (1, 8, 16)


# What is wrong with a shape, for the model of so many inputs.
REFUSED: list[tuple[int, str, list[str]]] = [
    (2, "tokens=[1,8,16]", ["unknown input 'tokens'", "in0", "in1"]),
    (2, "in0=[8,16]", ["[8, 16]", "'in0'", "[?,?,16]"]),
    (2, "in0=[1,8,32]", ["[1, 8, 32]", "[?,?,16]"]),
    (2, "[1,8,16]", ["name of its input", "in0", "in1"]),
    (2, "in0=[0,8,16]", ["positive"]),
    (1, "[8,16]", ["[8, 16]", "[?,?,16]"]),
    (1, "[1,99999999999999999999,16]", ["99999999999999999999", "invalid dimension"]),
]


@pytest.mark.parametrize(("inputs", "shape", "words"), REFUSED)
def test_what_does_not_fit_the_model_is_refused(inputs: int, shape: str, words: list[str]) -> None:
    with pytest.raises(UserError) as raised:
        example_shapes([sequences(inputs)], parse_shapes([shape]))
    for word in words:
        assert word in str(raised.value)
    assert "\n" not in str(raised.value)


class TestCommands:
    @pytest.mark.parametrize("command", ["verify", "calibrate", "bench", "finetune"])
    def test_every_command_checks_them_before_it_begins(
        self, command: str, files: dict[int, Path], tmp_path: Path
    ) -> None:
        model = files[2]
        if command == "verify":
            model = tmp_path / "placed.xml"
            done = ran("place", files[2], "--device", DEVICE, "--no-measure", "--output", model)
        arguments: dict[str, tuple[object, ...]] = {
            "verify": (model,),
            "calibrate": ("--model", model, "--output", tmp_path / "profile.json"),
            "bench": (model,),
            "finetune": (model, "--output", tmp_path / "run", "--policy", "none"),
        }
        done = run(command, *arguments[command], "--device", DEVICE, "--shape", "in0=[1,8,32]")
        assert_one_error_line(done, "[1, 8, 32]", "[?,?,16]")
        assert not (tmp_path / "profile.json").exists() and not (tmp_path / "run").exists()

    def test_calibrate_needs_a_model_for_them(self, tmp_path: Path) -> None:
        done = run("calibrate", "--device", DEVICE, "--output", tmp_path / "profile.json", "--shape", "[1]")
        assert_one_error_line(done, "--model")

    def test_place_counts_with_them_and_leaves_the_model_dynamic(self, files: dict[int, Path], tmp_path: Path) -> None:
        predicted = []
        for number, shapes in enumerate((["in0=[1,8,16],in1=[1,8,16]"], ["in0=[1,800,16]", "in1=[1,800,16]"])):
            output = tmp_path / f"{number}.xml"
            options = [word for shape in shapes for word in ("--shape", shape)]
            done = ran("place", files[2], "--device", DEVICE, "--no-measure", "--output", output, "--json", *options)
            predicted.append(json.loads(done.stdout)["predicted"]["memory_bytes"])
            placed = ov.Core().read_model(output)
            assert [str(port.get_partial_shape()) for port in placed.inputs] == ["[?,?,16]", "[?,?,16]"]
            assert Placement.of(placed) is not None
        # Activations are [1, length, 64] in f32.
        assert sum(predicted[1].values()) - sum(predicted[0].values()) >= 792 * 64 * 4

    @pytest.mark.slow
    @pytest.mark.usefixtures("quiet_machine")
    def test_place_measures_with_them(self, files: dict[int, Path], tmp_path: Path) -> None:
        """Two inputs of different lengths cannot be added: what made-up inputs of 128 tokens would not show."""
        output = tmp_path / "o.xml"
        options = ("--measure", "--measure-seconds", GENEROUS, "--json")
        done = run(
            "place", files[2], "--device", DEVICE, "--output", output, *options, "--shape",
            "in0=[1,40,16],in1=[1,30,16]",
        )  # fmt: skip
        assert_one_error_line(done, "example shapes do not fit the model: ")
        # The other one follows, where that fits.
        done = ran(
            "place", files[2], "--device", DEVICE, "--no-measure", "--output", output, "--shape", "in0=[1,40,16]"
        )
        assert "costs assume alias1=[1,40,16]; --shape" in done.stdout
        shape = "in0=[3,40,16],in1=[3,40,16]"
        done = ran("place", files[2], "--device", DEVICE, "--output", output, *options, "--shape", shape)
        measured: dict[str, Any] = json.loads(done.stdout)["measured"]
        assert measured["CPU_A"]["failed"] is None

    def test_place_fixes_them(self, files: dict[int, Path], tmp_path: Path) -> None:
        options = (files[2], "--device", DEVICE, "--no-measure", "--static", "--output", tmp_path / "fixed.xml")
        assert_one_error_line(run("place", *options), "dimension 0 of input 'alias0' [?,?,16]", "--shape 'alias0=[1,")
        ran("place", *options, "--shape", "in0=[1,40,16],in1=[1,40,16]")
        placed = ov.Core().read_model(tmp_path / "fixed.xml")
        assert [list(port.shape) for port in placed.inputs] == [[1, 40, 16]] * 2
        assert Placement.of(placed) is not None

    def test_place_writes_a_model_for_each_size(
        self, files: dict[int, Path], tmp_path: Path, two_cpu_core: ov.Core
    ) -> None:
        files_out = ("--output", tmp_path / "placed.xml", "--report", tmp_path / "a.svg")
        options = ("--device", DEVICE, "--no-measure", *files_out)
        assert_one_error_line(run("place", files[2], *options, "--bucket", "64,none"), "64,none")
        ov.save_model(forty_tokens(), tmp_path / "forty.xml", compress_to_fp16=False)
        assert_one_error_line(
            run("place", tmp_path / "forty.xml", *options, "--bucket", "40,64"), "does not take these"
        )
        for more in ("--together", "--count", "model=2"), ("--part", "decoder"), ("--on", "GPU=Arc"):
            assert_one_error_line(run("place", files[2], *options, "--bucket", "16", *more), "")
        assert_one_error_line(run("place", files[2], *options, "--bucket", "16,64", "--json"), "leave out --ray and")
        assert not list(tmp_path.glob("placed_*"))
        (tmp_path / "forty.xml").unlink()
        ran("place", files[2], *options, "--bucket", "16,64")
        written = sorted(one.name for one in tmp_path.iterdir() if one.suffix != ".bin")
        assert written == ["a_16.svg", "a_64.svg", "placed_16.xml", "placed_64.xml"]
        whole = two_cpu_core.compile_model(files[2], "CPU_A")
        for size in (16, 64):
            model = two_cpu_core.read_model(tmp_path / f"placed_{size}.xml")
            values = random_inputs(model)
            assert [value.shape for value in values] == [(1, size, 16)] * 2
            expected = whole(values)[0]
            found = two_cpu_core.compile_model(model, DEVICE)(values)[0]
            np.testing.assert_allclose(found, expected, atol=1e-3 * np.abs(expected).max())

    def test_a_model_for_an_npu_has_fixed_sizes(self, files: dict[int, Path], tmp_path: Path) -> None:
        options = (files[1], "--device", "HETERO:NPU,CPU", "--no-measure", "--output", tmp_path / "npu.xml")
        done = run("place", *options)
        assert_one_error_line(done, "dimension 0 of input 'alias0'", "fix it with --shape 'alias0=[1,128,16]'")
        assert not list(tmp_path.iterdir())
        ran("place", *options, "--static", "--shape", "alias0=[1,128,16]")
        npuw = {"NPU_USE_NPUW": "YES", "NPUW_DEVICES": "CPU"}
        ov.Core().compile_model(tmp_path / "npu.xml", "NPU", npuw)
        with pytest.raises(RuntimeError, match="dynamic shape"):
            ov.Core().compile_model(files[1], "NPU", npuw)

    def test_verify_runs_with_them(self, files: dict[int, Path], tmp_path: Path) -> None:
        ov.save_model(forty_tokens(), tmp_path / "model.xml", compress_to_fp16=False)
        placed = tmp_path / "placed.xml"
        shape = ("--shape", "in0=[1,40,16],in1=[1,40,16]")
        options = ("--device", DEVICE, "--no-measure", "--output", placed)
        assert run("place", tmp_path / "model.xml", *options, *shape).returncode == 0
        ran("verify", placed, "--device", DEVICE, *shape)
        assert run("verify", placed, "--device", DEVICE, "--shape", "in0=[1,41,16],in1=[1,41,16]").returncode != 0

    @pytest.mark.slow
    def test_finetune_measures_with_them_and_goes_on_with_them(self, tmp_path: Path) -> None:
        ov.save_model(forty_tokens(), tmp_path / "model.xml", compress_to_fp16=False)
        options = ("finetune", tmp_path / "model.xml", "--device", DEVICE, "--output", tmp_path / "run", "--json")
        # By an input's tensor name and by its friendly name.
        done = ran(*options, "--policy", "none", "--measurements", 1, "--shape", "alias0=[1,40,16],in1=[1,40,16]")
        shapes = {"in0": [1, 40, 16], "in1": [1, 40, 16]}
        record: dict[str, Any] = json.loads(done.stdout)
        assert record["about"]["shapes"] == shapes
        assert set(record["singles"]) == {"CPU_A", "CPU_B"} and record["measurements"] == 1 and not record["failed"]
        placed = ov.Core().read_model(tmp_path / "run" / "model.xml")
        assert [str(port.get_partial_shape()) for port in placed.inputs] == ["[?,?,16]", "[?,?,16]"]

        other = run(*options, "--resume", "--measurements", 2, "--shape", "in0=[1,80,16],in1=[1,80,16]")
        assert_one_error_line(other, "in0=[1, 40, 16]", "leave out --shape")
        more = ran(*options, "--resume", "--measurements", 2)
        record = json.loads(more.stdout)
        assert record["about"]["shapes"] == shapes and record["measurements"] == 2 and not record["failed"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:no placement was measured")
def test_a_simulated_run_counts_with_them_and_keeps_them(tmp_path: Path) -> None:
    tuning = pytest.importorskip("ov_hsdag.training.finetune")

    def tune(measurements: int, shapes: dict[str, tuple[int, ...]] | None, resume: bool = False) -> dict[str, Any]:
        budget = tuning.Budget(measurements=measurements)
        options = {"resume": True} if resume else {"policy": "none", "settings": tiny}
        record, placement = tuning.finetune(
            sequences(2), "HETERO:GPU,CPU", output, budget=budget, shapes=shapes, simulated=True, **options
        )
        return {**record["about"], "bytes": sum(placement.predicted["memory_bytes"].values())}

    tiny = tuning.Settings(updates=1, samples=2, draws=1, refined=1, finalists=1)
    output = tmp_path / "short"
    short = {"in0": (1, 8, 16), "alias1": (1, 8, 16)}
    begun = tune(1, short)
    assert begun["shapes"] == {"in0": [1, 8, 16], "in1": [1, 8, 16]}
    assert tune(1, {"in1": (1, 8, 16), "alias0": (1, 8, 16)}, resume=True) == begun
    with pytest.raises(UserError, match=r"began with in0=\[1, 8, 16\], in1=\[1, 8, 16\]: leave out --shape"):
        tune(2, {"in0": (1, 8, 16)}, resume=True)
    output = tmp_path / "none"
    default = tune(1, None)
    assert default["shapes"] == {} and default["bytes"] >= begun["bytes"] + (128 - 8) * 64 * 4
    with pytest.raises(UserError, match="began with no example shapes: leave out --shape"):
        tune(2, short, resume=True)


class TestSizesThatExamplesTell:
    """Sizes of inputs without an example follow those that others have."""

    def inputs(self, *shapes: list[object]) -> list[ov.Node]:
        return [
            ops.parameter(ov.PartialShape(shape), np.float32, name=f"x{number}") for number, shape in enumerate(shapes)
        ]

    def test_the_batch_of_one_input_is_that_of_the_others(self) -> None:
        one, two = self.inputs([-1, 4], [-1, 4])
        model = ov.Model([ops.result(ops.add(one, two))], [one, two], "pairs")
        assert counted_input_shapes(model, {"x0": [8, 4]}) == [(8, 4), (8, 4)]
        assert assumed_sizes(model, {"x0": [8, 4]}) == {"x1": (8, 4)}
        assert counted_input_shapes(model) == [(1, 4), (1, 4)]

    def test_a_first_dimension_that_is_no_batch_keeps_its_size(self) -> None:
        one, two = self.inputs([-1, 4], [-1])
        # The second input has as many elements as the weights: a batch does not fit.
        result = ops.result(ops.add(ops.reduce_sum(one, np.int64(0), False), ops.reshape(two, np.array([1]), False)))
        model = ov.Model([result], [one, two], "scalar")
        assert counted_input_shapes(model, {"x0": [8, 4]}) == [(8, 4), (1,)]

    def test_a_length_that_an_example_has_is_tried_for_others(self) -> None:
        one, two = self.inputs([-1, -1], [-1, -1])
        model = ov.Model([ops.result(ops.concat([one, two], 0))], [one, two], "lengths")
        assert counted_input_shapes(model, {"x0": [8, 77]}) == [(8, 77), (8, 77)]

    def test_sizes_that_are_assumed_and_do_not_fit_are_named(self) -> None:
        one, two = self.inputs([-1, -1], [-1, -1])
        halves = ops.reshape(one, np.array([2, -1]), False)
        model = ov.Model([ops.result(ops.concat([halves, two], 0))], [one, two], "halves")
        with pytest.raises(
            UserError, match=r"do not fit the model where x1=\[1,\d+\] is assumed \(give sizes of that, too\)"
        ):
            counted_input_shapes(model, {"x0": [1, 154]})

    def test_dimensions_with_one_symbol_have_one_size(self) -> None:
        length = ov.Dimension(-1)
        length.set_symbol(ov.Symbol())
        one, two = self.inputs([-1, length], [3, length])
        model = ov.Model([ops.result(ops.relu(one)), ops.result(ops.relu(two))], [one, two], "symbols")
        assert counted_input_shapes(model, {"x0": [8, 77]}) == [(8, 77), (3, 77)]
