"""The device name HSDAG: a load that places the model, keeps the placement, and never stands in the way."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

import ov_hsdag
from ov_hsdag.devices import discovery
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.integration import device_name
from ov_hsdag.model.affinities import set_affinities
from ov_hsdag.model.fused_names import affinity_of_fused
from ov_hsdag.model.normalize import normalize
from ov_hsdag.model.placement import Placement
from ov_hsdag.placing import first_load, improvement, placement_cache
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.utils.errors import PlacementNotFollowedWarning
from tests.commands import MAIN, ran, run
from tests.conftest import ONE_CORE
from tests.graphs import random_inputs

DEVICE = "HSDAG:CPU_A,CPU_B"
THROUGHPUT = {"PERFORMANCE_HINT": "THROUGHPUT"}


def mlp(layers: int = 8, width: int = 256, batch: int = 32) -> ov.Model:
    """A chain of products that two equal devices share for throughput."""
    random = np.random.default_rng(0)
    x = y = op.parameter([batch, width], ov.Type.f32, name="x")
    x.output(0).set_names({"x"})
    for number in range(layers):
        weights = random.normal(0, 0.06, (width, width)).astype(np.float32)
        y = op.relu(op.matmul(y, weights, False, True, name=f"product{number}"), name=f"relu{number}")
    return ov.Model([op.result(y, name="y")], [x], "mlp")


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, declared: None) -> Path:
    """The folder of kept placements, of this test alone."""
    monkeypatch.setenv(placement_cache.FOLDER_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv(device_name.AUTO_VARIABLE, raising=False)
    return tmp_path / "cache" / "ov_hsdag" / "placements"


@pytest.fixture
def no_search(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """After a call of it, placing a model fails."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the model is placed again")

    return lambda: monkeypatch.setattr(first_load, "_placed", refuse)


def ov_hsdag_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`ov-hsdag ARGUMENTS` in a process of its own, with this process's environment as it is now."""
    return subprocess.run([sys.executable, "-c", MAIN, *arguments], capture_output=True, text=True)


def entries(kept: Path) -> list[Path]:
    return sorted(kept.glob("*.placement.json"))


def used(compiled: ov.CompiledModel) -> set[str]:
    return set(compiled.get_property("EXECUTION_DEVICES"))


def as_on_one_device(model: ov.Model, compiled: ov.CompiledModel) -> bool:
    inputs = random_inputs(model)
    expected = ov.Core().compile_model(model, "CPU_A")(inputs)
    return np.allclose(compiled(inputs)[0], expected[0], rtol=1e-3, atol=1e-4)


FORMS: dict[str, Callable[[ov.Core, ov.Model, str], ov.CompiledModel]] = {
    "model": lambda core, model, path: core.compile_model(model, DEVICE, THROUGHPUT),
    "read model": lambda core, model, path: core.compile_model(core.read_model(path), DEVICE, THROUGHPUT),
    "file": lambda core, model, path: core.compile_model(path, DEVICE, THROUGHPUT),
    "path": lambda core, model, path: core.compile_model(Path(path), DEVICE, THROUGHPUT),
    "keywords": lambda core, model, path: core.compile_model(model=path, device_name=DEVICE, config=THROUGHPUT),
    "bytes": lambda core, model, path: core.compile_model(
        Path(path).read_text(), DEVICE, THROUGHPUT, weights=Path(path).with_suffix(".bin").read_bytes()
    ),
    "function": lambda core, model, path: ov.compile_model(model, DEVICE, THROUGHPUT),
    "list as a property": lambda core, model, path: core.compile_model(
        path, "HSDAG", dict([ov.properties.device.priorities("CPU_A", "CPU_B")]) | THROUGHPUT
    ),
    "all devices": lambda core, model, path: core.compile_model(path, "HSDAG", THROUGHPUT),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_load_places_models_of_every_form(form: str, tmp_path: Path, kept: Path, silence: None) -> None:
    model = mlp()
    path = str(tmp_path / "mlp.xml")
    ov.save_model(model, path, compress_to_fp16=False)
    compiled = FORMS[form](ov.Core(), model, path)
    assert used(compiled) == {"CPU_A", "CPU_B"}
    assert compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") >= 2
    assert as_on_one_device(model, compiled)
    assert len(entries(kept)) == 1


def test_the_users_model_is_not_changed() -> None:
    model = mlp()
    before = [(node.get_friendly_name(), dict(node.get_rt_info())) for node in model.get_ordered_ops()]
    ov.Core().compile_model(model, DEVICE, THROUGHPUT)
    assert [(node.get_friendly_name(), dict(node.get_rt_info())) for node in model.get_ordered_ops()] == before
    assert Placement.of(model) is None


@pytest.mark.parametrize(
    ("config", "environment", "objective"),
    [
        ({}, "", "latency"),
        ({"PERFORMANCE_HINT": "LATENCY"}, "throughput", "latency"),
        ({"PERFORMANCE_HINT": "THROUGHPUT"}, "latency", "throughput"),
        (dict([ov.properties.hint.performance_mode(ov.properties.hint.PerformanceMode.THROUGHPUT)]), "", "throughput"),
        ({"HSDAG_OBJECTIVE": "throughput", "PERFORMANCE_HINT": "LATENCY"}, "", "throughput"),
        ({}, "throughput", "throughput"),
    ],
)
def test_the_objective_follows_the_hint(
    config: dict[str, Any], environment: str, objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(device_name.AUTO_VARIABLE, environment)
    load = device_name.automatic_load(ov.Core(), DEVICE, config)
    assert load.request.objective == objective
    assert not load.config.keys() & set(device_name.PROPERTIES)


def test_a_second_load_does_not_search(kept: Path, no_search: Callable[[], None], silence: None) -> None:
    model = mlp()
    first = ov.Core().compile_model(model, DEVICE, THROUGHPUT)
    no_search()
    second = ov.Core().compile_model(model.clone(), DEVICE, THROUGHPUT)
    assert used(first) == used(second) == {"CPU_A", "CPU_B"}
    assert first.get_property("HETERO_NUMBER_OF_SUBMODELS") == second.get_property("HETERO_NUMBER_OF_SUBMODELS")
    assert len(entries(kept)) == 1


def unfused_attentions(layers: int = 4, tokens: int = 32, width: int = 128) -> ov.Model:
    """An encoder as frameworks export it: attention as single operations, and a mask whose size is computed."""
    random = np.random.default_rng(0)

    def product(x: ov.Node) -> ov.Node:
        return op.matmul(x, random.normal(0, 0.06, (width, width)).astype(np.float32), False, True)

    x = y = op.parameter([1, tokens, width], ov.Type.f32, name="x")
    x.output(0).set_names({"x"})
    length = op.gather(op.shape_of(x), op.constant(1), op.constant(0))
    positions = op.range(op.constant(0, np.int64), length, op.constant(1, np.int64), ov.Type.i64)
    sizes = op.concat([op.unsqueeze(length, op.constant(0)) for _ in range(2)], 0)
    later = op.greater(op.broadcast(positions, sizes), op.unsqueeze(positions, op.constant(1)))
    mask = op.unsqueeze(op.select(later, op.constant(np.float32(-1e4)), op.constant(np.float32(0))), op.constant(0))
    for layer in range(layers):
        query, key, value = (product(y) for _ in range(3))
        scores = op.matmul(query, key, False, True, name=f"scores{layer}")
        scaled = op.multiply(scores, op.constant(np.float32(width**-0.5)), name=f"scaled{layer}")
        masked = op.add(scaled, mask, name=f"masked{layer}")
        attended = op.matmul(
            op.softmax(masked, 2, name=f"softmax{layer}"), value, False, False, name=f"attended{layer}"
        )
        y = op.add(y, product(op.gelu(product(attended), "erf")))
    return ov.Model([op.result(y, name="y")], [x], "unfused")


def recurrent() -> ov.Model:
    """Two recurrent layers whose sequence lengths are computed from the shape of their input."""
    random = np.random.default_rng(0)
    x = y = op.parameter([2, 8, 16], ov.Type.f32, name="x")
    x.output(0).set_names({"x"})
    sizes = op.shape_of(op.relu(x))
    batch, length = (op.gather(sizes, op.constant([axis]), op.constant(0)) for axis in (0, 1))
    lengths = op.broadcast(length, batch)
    state = np.zeros((2, 1, 16), np.float32)
    for _ in range(2):
        weights = (random.normal(0, 0.3, size).astype(np.float32) for size in ((1, 48, 16), (1, 48, 16), (1, 48)))
        layer = op.gru_sequence(y, op.constant(state), lengths, *map(op.constant, weights), 16, "forward")
        y = op.squeeze(layer.output(0), op.constant([1]))
    return ov.Model([op.result(y, name="y")], [x], "recurrent")


def shared_lengths(layers: int = 3, width: int = 32) -> ov.Model:
    """Layers that all reshape by the same tensor of lengths, of which the first is open and the second is known."""
    random = np.random.default_rng(0)
    x = y = op.parameter(ov.PartialShape([-1, 8, width]), ov.Type.f32, name="x")
    x.output(0).set_names({"x"})
    lengths = op.gather(op.shape_of(x), op.constant([0, 1]), op.constant(0))
    heads = op.concat([lengths, op.constant([4, width // 4])], 0)
    merged = op.concat([lengths, op.constant([width])], 0)
    for _ in range(layers):
        weights = op.constant(random.normal(0, 0.1, (width, width)).astype(np.float32))
        split = op.reshape(op.matmul(y, weights, False, False), heads, False)
        y = op.reshape(op.softmax(split, 3), merged, False)
    return ov.Model([op.result(y, name="y")], [x], "lengths")


def test_parts_of_a_fused_operation_have_its_device() -> None:
    """The mask, on another device, is part of the first attention, too."""
    model = unfused_attentions()
    transformed = model.clone()
    normalize(transformed)
    attentions = {node.get_friendly_name() for node in transformed.get_ops() if "Attention" in node.get_type_name()}
    assert attentions == {f"attended{layer}" for layer in range(4)}
    names = [node.get_friendly_name() for node in transformed.get_ops()]
    affinity = {name: "CPU_A" if name in attentions else "CPU_B" for name in names}
    fused = affinity_of_fused(transformed, affinity, [node.get_friendly_name() for node in model.get_ops()])
    assert not fused.keys() & affinity.keys()
    parts = [f"{part}{layer}" for part in ("scores", "scaled", "masked", "softmax") for layer in range(4)]
    assert {fused[part] for part in parts} == {"CPU_A"}


@pytest.mark.parametrize("build", [recurrent, shared_lengths])
def test_a_model_as_it_was_read_splits_as_the_transformed_one(
    build: Callable[[], ov.Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Placements are made for models whose shape arithmetic is folded, and whose layers share no lengths."""
    core, model = ov.Core(), build()
    expected: list[int] = []

    def place_at_random(transformed: ov.Model, *_: object, **__: object) -> Placement:
        problem = build_problem(transformed, DeviceSet(("CPU_A", "CPU_B")), core=core)
        affinity = problem.affinity(problem.random(np.random.default_rng(len(expected)), 1)[0])
        expected.append(submodels(core, transformed, affinity))
        return Placement(("CPU_A", "CPU_B"), affinity)

    monkeypatch.setattr("ov_hsdag.placing.place.place", place_at_random)
    for gib in range(1, 7):
        compiled = core.compile_model(model, DEVICE, {"HSDAG_MEMORY": f"CPU_A={gib}GiB"})  # each is placed anew
        assert compiled.get_property("HETERO_NUMBER_OF_SUBMODELS") == expected[-1]
        assert as_on_one_device(model, compiled)
    assert len(expected) == 6 and max(expected) > 2


def submodels(core: ov.Core, model: ov.Model, affinity: dict[str, str]) -> int:
    """Number of submodels that HETERO makes of a model with these affinities."""
    placed = model.clone()
    set_affinities(placed, affinity)
    return int(core.compile_model(placed, "HETERO:CPU_A,CPU_B").get_property("HETERO_NUMBER_OF_SUBMODELS"))


def test_another_model_objective_or_device_list_is_another_entry(kept: Path) -> None:
    core = ov.Core()
    for model, device, config in (
        (mlp(), DEVICE, THROUGHPUT),
        (mlp(), DEVICE, {}),
        (mlp(), "HSDAG:CPU_B,CPU_A", THROUGHPUT),
        (mlp(), "HSDAG:CPU_A", THROUGHPUT),
        (mlp(layers=9), DEVICE, THROUGHPUT),
    ):
        core.compile_model(model, device, config)
    assert len(entries(kept)) == 4  # on one device there is nothing to place


def test_a_model_that_carries_a_placement_is_followed(kept: Path, no_search: Callable[[], None], silence: None) -> None:
    no_search()
    model = mlp()
    affinity = {f"product{number}": "CPU_B" if number == 3 else "CPU_A" for number in range(8)}
    ov_hsdag.place(model, "HETERO:CPU_A,CPU_B", affinity=affinity)
    compiled = ov.Core().compile_model(model, DEVICE)
    assert compiled.get_property("HETERO_NUMBER_OF_SUBMODELS") == 3
    assert not entries(kept)


def test_a_placement_for_other_devices_is_made_anew(kept: Path) -> None:
    model = mlp()
    affinity = {f"product{number}": "GPU" if number else "CPU" for number in range(8)}
    ov_hsdag.place(model, "HETERO:GPU,CPU", affinity=affinity)
    assert used(ov.Core().compile_model(model, DEVICE, THROUGHPUT)) == {"CPU_A", "CPU_B"}
    assert len(entries(kept)) == 1


def test_affinities_that_somebody_set_are_followed(kept: Path, silence: None) -> None:
    model = mlp()
    for node in model.get_ops():
        node.get_rt_info()["affinity"] = "CPU_B"
    assert used(ov.Core().compile_model(model, DEVICE)) == {"CPU_B"}
    assert not entries(kept)


def test_the_environment_makes_loads_on_hetero_place(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp()
    assert used(ov.Core().compile_model(model, "HETERO:CPU_A,CPU_B")) == {"CPU_A"}
    assert not entries(kept)
    monkeypatch.setenv(device_name.AUTO_VARIABLE, "throughput")
    assert used(ov.Core().compile_model(model, "HETERO:CPU_A,CPU_B")) == {"CPU_A", "CPU_B"}
    monkeypatch.setenv(device_name.AUTO_VARIABLE, "speed")
    with pytest.warns(UserWarning, match="OV_HSDAG_AUTO must be latency or throughput, got 'speed'"):
        assert used(ov.Core().compile_model(model, "HETERO:CPU_A,CPU_B")) == {"CPU_A"}


def test_devices_that_the_machine_lacks_are_left_out() -> None:
    with pytest.warns(UserWarning, match="GPU is not available here and is left out"):
        compiled = ov.Core().compile_model(mlp(), "HSDAG:GPU,CPU_A,CPU_B", THROUGHPUT)
    assert used(compiled) == {"CPU_A", "CPU_B"}


def test_disabled_it_is_hetero(monkeypatch: pytest.MonkeyPatch, kept: Path) -> None:
    monkeypatch.setenv("OV_HSDAG_DISABLE", "1")
    assert used(ov.Core().compile_model(mlp(), DEVICE, THROUGHPUT)) == {"CPU_A"}
    assert not entries(kept)


def test_the_core_answers_for_the_device() -> None:
    core = ov.Core()
    assert core.get_property("HSDAG", "FULL_DEVICE_NAME") == "HSDAG"
    assert {*device_name.PROPERTIES, "PERFORMANCE_HINT"} <= set(core.get_property("HSDAG", "SUPPORTED_PROPERTIES"))
    assert "HETERO" in core.get_versions(DEVICE)
    core.set_property("HSDAG", {"PERFORMANCE_HINT": "THROUGHPUT"})
    assert core.get_property("HSDAG", "PERFORMANCE_HINT") == "THROUGHPUT"
    assert used(core.compile_model(mlp(), DEVICE)) == {"CPU_A", "CPU_B"}
    assert core.get_property("HSDAG", "HSDAG_MEMORY") == ""
    with pytest.raises(Exception, match="HSDAG_OBJECTIVE must be latency or throughput"):
        core.set_property("HSDAG", {"HSDAG_OBJECTIVE": "speed"})
    with pytest.raises(RuntimeError):
        core.get_property("HSDAG", "NO_SUCH_PROPERTY")


def test_query_model_tells_what_a_load_would_do() -> None:
    core, model = ov.Core(), mlp()
    answer = core.query_model(model, DEVICE, THROUGHPUT)
    assert set(answer) == {node.get_friendly_name() for node in model.get_ops()}
    assert set(answer.values()) == {"CPU_A", "CPU_B"}


def test_an_exported_model_is_imported_under_the_name() -> None:
    core, model = ov.Core(), mlp()
    blob = core.compile_model(model, DEVICE, THROUGHPUT).export_model()
    imported = core.import_model(blob, DEVICE)
    assert used(imported) == {"CPU_A", "CPU_B"}
    assert as_on_one_device(model, imported)


def test_whatever_fails_while_placing_hetero_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("no way")

    monkeypatch.setattr(first_load, "_placed", fail)
    model = mlp()
    with pytest.warns(PlacementNotFollowedWarning, match="compiled without a placement: no way") as caught:
        compiled = ov.Core().compile_model(model, DEVICE, THROUGHPUT)
    assert len(caught) == 1
    assert used(compiled) == {"CPU_A"}
    assert as_on_one_device(model, compiled)


@pytest.mark.parametrize("from_file", [False, True])
def test_where_placing_fails_inputs_that_nothing_reads_stay_inputs(
    from_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HETERO makes an output of such an input, before the model's own, and changes the order of inputs."""

    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("no way")

    monkeypatch.setattr(first_load, "_placed", fail)
    unused, x = op.parameter([-1], np.int64, name="unused"), op.parameter([-1, 4], np.float32, name="x")
    model = ov.Model([op.relu(x), op.multiply(x, x)], [unused, x], "model")
    for port, name in zip((*model.inputs, *model.outputs), ("unused", "x", "relu", "square"), strict=True):
        port.set_names({name})
    path = str(tmp_path / "model.xml")
    ov.save_model(model, path, compress_to_fp16=False)
    with pytest.warns(PlacementNotFollowedWarning, match="compiled without a placement: no way"):
        compiled = ov.Core().compile_model(path if from_file else model, DEVICE)
    assert [port.get_any_name() for port in compiled.inputs] == ["unused", "x"]
    assert [port.get_any_name() for port in compiled.outputs] == ["relu", "square"]
    results = compiled({"x": np.array([[-1, 0, 1, 2]], np.float32), "unused": np.array([7])})
    assert results["relu"].tolist() == [[0, 0, 1, 2]] and results["square"].tolist() == [[1, 0, 1, 4]]


def test_a_damaged_entry_is_placed_again(kept: Path, no_search: Callable[[], None]) -> None:
    model = mlp()
    ov.Core().compile_model(model, DEVICE, THROUGHPUT)
    (path,) = entries(kept)
    path.write_text(path.read_text()[:100])
    with pytest.warns(UserWarning, match="is damaged .* placed again"):
        assert used(ov.Core().compile_model(model, DEVICE, THROUGHPUT)) == {"CPU_A", "CPU_B"}
    no_search()
    assert used(ov.Core().compile_model(model, DEVICE, THROUGHPUT)) == {"CPU_A", "CPU_B"}


def test_a_model_that_no_device_holds_is_split(monkeypatch: pytest.MonkeyPatch, silence: None) -> None:
    model = mlp(layers=20, width=512)  # 20 MiB of weights
    monkeypatch.setenv("OV_HSDAG_VIRTUAL_DEVICES", f"CPU_A:{ONE_CORE},MEMORY=12MiB;CPU_B:{ONE_CORE},MEMORY=12MiB")
    compiled = ov.Core().compile_model(model, DEVICE)
    assert used(compiled) == {"CPU_A", "CPU_B"}
    assert as_on_one_device(model, compiled)


def test_too_little_memory_everywhere_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OV_HSDAG_VIRTUAL_DEVICES", f"CPU_A:{ONE_CORE},MEMORY=4MiB;CPU_B:{ONE_CORE},MEMORY=4MiB")
    with pytest.raises(RuntimeError) as caught:
        ov.Core().compile_model(mlp(layers=20, width=512), DEVICE)
    expected = r"ov_hsdag: no placement on CPU_A, CPU_B keeps within the devices' memory: .* would do"
    assert re.fullmatch(expected, str(caught.value)), caught.value


def test_a_kept_placement_that_does_not_fit_any_more_is_replaced(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, core = mlp(layers=20, width=512), ov.Core()
    free = {"CPU_A": 2**30, "CPU_B": 2**30}
    monkeypatch.setattr(discovery, "usable_bytes", lambda core, name, most: free[name])
    assert used(core.compile_model(model, DEVICE)) == {"CPU_A"}
    free |= {"CPU_A": 14 * 2**20, "CPU_B": 14 * 2**20}
    assert used(core.compile_model(model, DEVICE)) == {"CPU_A", "CPU_B"}
    free |= {"CPU_A": 2**30, "CPU_B": 2**30}
    assert used(core.compile_model(model, DEVICE)) == {"CPU_A"}
    assert len(entries(kept)) == 1


def test_threads_that_load_at_once_place_once(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    placed, original = [], first_load._placed

    def counted(*arguments: Any) -> Placement:
        placed.append(threading.get_ident())
        return original(*arguments)

    monkeypatch.setattr(first_load, "_placed", counted)
    model, results = mlp(), list[set[str]]()
    threads = [
        threading.Thread(target=lambda: results.append(used(ov.Core().compile_model(model, DEVICE, THROUGHPUT))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [{"CPU_A", "CPU_B"}] * 4
    assert len(placed) == 1
    assert len(entries(kept)) == 1


PROGRAM = """
import sys
import openvino as ov
compiled = ov.Core().compile_model(sys.argv[1], sys.argv[2], {"PERFORMANCE_HINT": "THROUGHPUT"})
print(",".join(sorted(compiled.get_property("EXECUTION_DEVICES"))))
"""

CHECKED = """
import subprocess, sys, os
def refuse(*_, **__): raise AssertionError("a process is started")
subprocess.Popen.__init__ = os.fork = refuse
exec(compile(sys.stdin.read(), "program", "exec"))
print([name for name in ("torch", "scipy") if name in sys.modules])
"""


@pytest.fixture
def saved(tmp_path: Path) -> str:
    ov.save_model(mlp(), tmp_path / "mlp.xml", compress_to_fp16=False)
    return str(tmp_path / "mlp.xml")


def test_a_load_imports_little_and_starts_no_process(saved: str) -> None:
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", CHECKED, saved, DEVICE]
    done = subprocess.run(command, input=PROGRAM, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["CPU_A,CPU_B", "[]"], done.stdout + done.stderr


def test_processes_that_load_at_once_leave_one_entry(saved: str, kept: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, saved, DEVICE]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for process in started:
        assert process.communicate() == ("CPU_A,CPU_B\n", "")
    assert len(entries(kept)) == 1


@pytest.fixture
def killed_early(saved: str) -> Iterator[str]:
    """Loads that are killed at random moments of placing and writing."""
    random = np.random.default_rng(1)
    for _ in range(6):
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, saved, DEVICE], stdout=subprocess.DEVNULL)
        try:
            process.wait(random.uniform(0.2, 3.0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    yield saved


@pytest.mark.slow
def test_a_load_after_killed_ones_works(killed_early: str, kept: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", PROGRAM, killed_early, DEVICE]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "CPU_A,CPU_B\n"
    assert [path.name for path in kept.iterdir() if ".tmp" in path.name] == []


def test_openvinos_own_cache_knows_one_placement_from_another(tmp_path: Path) -> None:
    config = {"CACHE_DIR": str(tmp_path / "blobs")}
    model = mlp()
    for split, submodels in ((4, 2), (None, 1), (3, 2)):
        placed = model.clone()
        affinity = {f"product{number}": "CPU_A" if split is None or number < split else "CPU_B" for number in range(8)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # CPU_B may be left without an operation
            ov_hsdag.place(placed, "HETERO:CPU_A,CPU_B", affinity=affinity)
        for _ in range(2):  # the second time from the cache
            compiled = ov.Core().compile_model(placed, DEVICE, config)
            assert len(used(compiled)) == submodels
            assert as_on_one_device(model, compiled)
    kinds = [used(ov.Core().compile_model(model, DEVICE, config | THROUGHPUT)) for _ in range(2)]
    assert kinds == [{"CPU_A", "CPU_B"}] * 2
    assert used(ov.Core().compile_model(model, DEVICE, config)) == {"CPU_A"}


def test_placements_are_kept_in_the_cache_dir_of_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(placement_cache.FOLDER_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    ov.Core().compile_model(mlp(), DEVICE, {"CACHE_DIR": str(tmp_path / "blobs"), **THROUGHPUT})
    assert len(entries(tmp_path / "blobs" / "ov_hsdag" / "placements")) == 1
    ov.Core().compile_model(mlp(), DEVICE, THROUGHPUT)
    assert len(entries(tmp_path / "home" / "ov_hsdag" / "placements")) == 1


def test_nothing_is_kept_where_the_folder_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(placement_cache.FOLDER_VARIABLE, str(tmp_path / "file"))
    assert used(ov.Core().compile_model(mlp(), DEVICE, THROUGHPUT)) == {"CPU_A", "CPU_B"}


def test_run_places_what_a_program_loads(saved: str, tmp_path: Path, kept: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM + "sys.exit(5)\n")
    command = ["run", "--objective", "throughput", str(program), saved, "HETERO:CPU_A,CPU_B"]
    for how in ("placed in", "kept from an earlier load"):
        done = ov_hsdag_command(*command)
        assert (done.returncode, done.stdout) == (5, "CPU_A,CPU_B\n"), done.stderr
        assert how in done.stderr
        assert f"{saved}: HETERO:CPU_A,CPU_B (throughput)" in done.stderr
        assert str(entries(kept)[0]) in done.stderr


def test_an_unmodified_benchmark_app_runs_the_device(saved: str, kept: Path) -> None:
    """The wheel's benchmark_app sets properties of the devices that it reads from the name, before it loads."""
    code = "from ov_hsdag import _autoload; _autoload.install(); from openvino.tools.benchmark.main import main; main()"
    options = ("-d", DEVICE, "-hint", "throughput", "-niter", "24")
    done = subprocess.run([sys.executable, "-c", code, "-m", saved, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    requests = re.search(r"Start inference asynchronously, (\d+) inference requests", done.stdout)
    assert requests is not None and int(requests[1]) >= 2
    assert re.search(r"EXECUTION_DEVICES: .*CPU_A.*CPU_B", done.stdout), done.stdout
    assert len(entries(kept)) == 1


def test_run_says_what_could_not_be_placed(tmp_path: Path) -> None:
    """A model of which no sizes are known."""
    x = op.parameter([-1, -1], np.float32, name="x")
    fixed = op.reshape(x, np.array([7, 13]), False)
    path, program = tmp_path / "model.xml", tmp_path / "program.py"
    ov.save_model(ov.Model([op.relu(fixed)], [x], "model"), path)
    program.write_text("import openvino as ov, sys; ov.Core().compile_model(sys.argv[1], 'HETERO:CPU_A,CPU_B')")
    done = ov_hsdag_command("run", str(program), str(path))
    assert f"{path}: not placed: " in " ".join(done.stderr.split()), done.stderr
    assert "no model without a placement" not in done.stderr


@pytest.mark.parametrize("program", ["no_such_program", "no_such_script.py"])
def test_run_without_such_a_program_is_bad_input(program: str) -> None:
    done = ov_hsdag_command("run", program)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_improve_lists_and_clears_what_is_kept(saved: str, kept: Path) -> None:
    ov.Core().compile_model(saved, DEVICE, THROUGHPUT)
    listed = json.loads(ran("improve", "--list", "--json").stdout)
    assert listed["folder"] == str(kept) and [entry["source"] for entry in listed["entries"]] == [saved]
    assert "1 placement" in ran("improve", "--list").stdout
    assert run("improve", "--list", "--clear").returncode == 2
    assert "removed 1" in ran("improve", "--clear").stdout
    assert not entries(kept)


def test_improve_says_why_it_keeps_a_placement(saved: str, kept: Path) -> None:
    ov.Core().compile_model(saved, DEVICE, THROUGHPUT)
    assert "kept: no time left" in ran("improve", "--budget", "1s", COLUMNS="200").stdout
    (result,) = json.loads(ran("improve", "--json", OV_HSDAG_VIRTUAL_DEVICES=f"CPU_A:{ONE_CORE}").stdout)["entries"]
    assert not result["replaced"] and result["why"] == "there is no CPU_B here"
    assert len(entries(kept)) == 1


@pytest.mark.slow
def test_improve_replaces_a_placement_that_is_beaten(saved: str, kept: Path) -> None:
    """Everything on one device, kept for throughput, is half as fast as a split."""
    ov.Core().compile_model(saved, DEVICE, THROUGHPUT)
    cache = placement_cache.PlacementCache(kept)
    (entry,) = cache.entries()
    names = entry.placement.affinity
    slow = Placement(("CPU_A", "CPU_B"), dict.fromkeys(names, "CPU_A"), "throughput", entry.placement.predicted)
    cache.save(placement_cache.CacheEntry(**{**vars(entry), "placement": slow}))
    done = ov_hsdag_command("improve", "--budget", "60s", "--no-finetune", "--json")
    assert done.returncode == 0, done.stderr
    (improved,) = cache.entries()
    assert improved.key == entry.key
    assert improved.placement.measured is not None or "noise" in done.stdout or "proven" in done.stdout
    if set(improved.placement.used()) == {"CPU_A", "CPU_B"}:
        assert used(ov.Core().compile_model(saved, DEVICE, THROUGHPUT)) == {"CPU_A", "CPU_B"}


def test_what_is_proposed_to_improve_has_devices_for_fused_nodes(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy that is fine-tuned places the transformed model, and loads place the model as it was read."""
    file = str(tmp_path / "unfused.xml")
    ov.save_model(unfused_attentions(), file)
    core = ov.Core()
    core.compile_model(file, DEVICE, THROUGHPUT)
    cache = placement_cache.PlacementCache(kept)
    (entry,) = cache.entries()
    proposals: dict[str, Placement] = {}

    def propose(model: ov.Model, *_: object) -> dict[str, Placement]:
        normalize(model)
        devices = {
            node.get_friendly_name(): "CPU_A" if "Attention" in node.get_type_name() else "CPU_B"
            for node in model.get_ops()
        }
        return {"fine-tuned": Placement(("CPU_A", "CPU_B"), devices)}

    def keep(core: ov.Core, model: ov.Model, entry: object, found: dict[str, Placement], *_: object) -> Any:
        proposals.update(found)
        return improvement.KEPT, None

    monkeypatch.setattr(improvement, "place_entry", lambda *_, **__: entry.placement)
    monkeypatch.setattr(improvement, "_compare_with_kept", keep)
    improvement.improve_entry(core, cache, entry, seconds=1.0, propose=propose)
    assert {proposals["fine-tuned"].affinity[f"softmax{layer}"] for layer in range(4)} == {"CPU_A"}
