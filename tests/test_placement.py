"""A placement survives saving, compression and odd names, and maps to the devices that are there."""

from __future__ import annotations

import inspect
import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino.preprocess import PrePostProcessor

import ov_hsdag
from ov_hsdag.model.placement import Placement
from ov_hsdag.utils.errors import PlacementNotFollowedWarning, RunError, UserError
from ov_hsdag.utils.lazy import opset13 as ops

CORE = ov.Core()
ODD = ['comma, "quoted" | piped', "line\nbreak\ttab", "été/层/名", "<a>&amp;'b'", "back\\slash {json}: [1]"]


def chain(names: list[str]) -> ov.Model:
    """x → one weighted MatMul after another, with the given friendly names."""
    generator = np.random.default_rng(0)
    node = x = ops.parameter([1, 8], np.float32, name="x")
    for index, name in enumerate(names):
        weights = ops.constant(generator.normal(size=(8, 8)).astype(np.float32))
        weights.set_friendly_name(f"weights {index}")
        node = ops.matmul(node, weights, False, False)
        node.set_friendly_name(name)
    return ov.Model([node], [x], "chain")


def halves(model: ov.Model, devices: tuple[str, ...] = ("CPU_A", "CPU_B")) -> Placement:
    """First half of the operations on the first device, the rest on the second."""
    nodes = [node.get_friendly_name() for node in model.get_ordered_ops()]
    split = [node.get_type_name() for node in model.get_ordered_ops()].index("MatMul") + len(nodes) // 2
    return Placement(devices, {name: devices[index >= split] for index, name in enumerate(nodes)})


def affinities(model: ov.Model) -> dict[str, str]:
    return {node.get_friendly_name(): node.get_rt_info()["affinity"].astype(str) for node in model.get_ops()}


def test_the_package_offers_what_programs_need() -> None:
    assert ov_hsdag.Placement is Placement
    assert ov_hsdag.UserError is UserError and ov_hsdag.RunError is RunError
    for name in ("place", "fit", "verify", "explain", "calibrate", "extension_path"):
        assert inspect.isfunction(getattr(ov_hsdag, name)), name
    for name in ov_hsdag.__all__:
        assert getattr(ov_hsdag, name) is not None
    assert set(ov_hsdag.__all__) <= set(dir(ov_hsdag))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ov_hsdag.nothing  # noqa: B018


@pytest.mark.parametrize("compress", [False, True])
def test_everything_that_is_embedded_comes_back_from_a_saved_ir(tmp_path: Path, compress: bool) -> None:
    model = chain(ODD)
    nodes = [node.get_friendly_name() for node in model.get_ordered_ops()]
    placement = Placement(
        devices=("GPU", "CPU", "NPU"),
        affinity={name: ("CPU", "GPU", "CPU")[index % 3] for index, name in enumerate(nodes)},
        objective="throughput",
        predicted={"latency_us": np.float64(12.5), "submodels": np.int64(3), "memory_bytes": {"GPU": 7, "CPU": 8}},
        measured={"hsdag": {"throughput_ips": 80.25, "ci": [1.5, 1.7]}, "CPU": {"failed": "no"}},
        baselines={"CPU": {"throughput_ips": 40.0}},
        policy="base",
        chosen="hsdag",
        settings={"shapes": {"past": [1, 4, 0, 64]}, "context": 8},
    )
    placement.embed(model)
    ov.save_model(model, tmp_path / "m.xml", compress_to_fp16=compress)
    read = Placement.of(CORE.read_model(tmp_path / "m.xml"))
    assert read == placement
    assert read is not None
    assert isinstance(read.predicted["submodels"], int)


def test_layout_of_the_embedded_entry() -> None:
    model = chain(["a", "b"])
    Placement(("GPU", "CPU"), {"x": "CPU", "a": "CPU", "b": "GPU"}).embed(model)

    def entry(key: str) -> str:
        return model.get_rt_info(["ov_hsdag", key]).astype(str)

    assert entry("version") == "1"
    assert json.loads(entry("devices")) == ["GPU", "CPU"]
    assert entry("default") == "CPU"
    assert json.loads(entry("exceptions")) == {"GPU": ["b"]}
    assert entry("objective") == "latency"
    assert not model.has_rt_info(["ov_hsdag", "policy"])


def test_entry_without_the_default_nodes_gives_all_others_the_default() -> None:
    model = chain(["a", "b"])
    Placement(("GPU", "CPU"), {"x": "CPU", "a": "CPU", "b": "GPU"}).embed(model)
    del model.rt_info["ov_hsdag"]
    for key, value in {
        "version": "1",
        "devices": '["GPU", "CPU"]',
        "default": "CPU",
        "exceptions": '{"GPU": ["b"]}',
        "objective": "latency",
        "chosen": "given",
    }.items():
        model.set_rt_info(value, ["ov_hsdag", key])
    read = Placement.of(model)
    assert read is not None
    assert {name for name, device in read.affinity.items() if device == "GPU"} == {"b"}
    assert len(read.affinity) == len(model.get_ops())


def test_embedding_again_replaces_the_first() -> None:
    model = chain(["a", "b"])
    Placement(("GPU", "CPU"), {"a": "CPU", "b": "GPU"}, policy="base").embed(model)
    second = Placement(("CPU_A", "CPU_B"), {"a": "CPU_A", "b": "CPU_B"})
    second.embed(model)
    assert Placement.of(model) == second


def test_model_without_a_placement_has_none() -> None:
    assert Placement.of(chain(["a"])) is None


def test_strip_leaves_no_trace(tmp_path: Path) -> None:
    model = chain(ODD)
    ov.save_model(model, tmp_path / "plain.xml")
    placement = halves(model)
    placement.apply(model)
    placement.embed(model)
    model.set_rt_info("kept", ["mine"])
    Placement.strip(model)
    assert Placement.of(model) is None
    assert not any("affinity" in node.get_rt_info() for node in model.get_ops())
    assert model.get_rt_info(["mine"]).astype(str) == "kept"
    del model.rt_info["mine"]
    ov.save_model(model, tmp_path / "stripped.xml")
    assert (tmp_path / "plain.xml").read_bytes() == (tmp_path / "stripped.xml").read_bytes()


def test_apply_sets_what_hetero_reads_on_every_node() -> None:
    model = chain(ODD)
    placement = halves(model)
    placement.apply(model)
    found = affinities(model)
    assert len(found) == len(model.get_ops())
    for node in model.get_ops():
        if node.get_type_name() == "MatMul":
            name = node.get_friendly_name()
            assert found[name] == placement.affinity[name]
            assert found[node.input_value(1).get_node().get_friendly_name()] == found[name]


def test_apply_completes_nodes_that_preprocessing_adds() -> None:
    model = chain(["a", "b", "c", "d"])
    placement = halves(model)
    steps = PrePostProcessor(model)
    steps.input().tensor().set_element_type(ov.Type.u8)
    steps.input().preprocess().convert_element_type(ov.Type.f32).mean(3.0)
    model = steps.build()
    assert len(model.get_ops()) > len(placement.affinity)
    placement.apply(model)
    found = affinities(model)
    assert {name: found[name] for name in "abcd"} == {name: placement.affinity[name] for name in "abcd"}
    assert all(found[node.get_friendly_name()] == "CPU_A" for node in model.get_ops() if "u8" in str(node.output(0)))


def test_apply_that_cannot_complete_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = chain(["a", "b"])
    monkeypatch.setattr("ov_hsdag.model.complete.complete", lambda model, affinity, devices: {"a": "CPU_A"})
    with pytest.raises(RunError, match="could not be completed for"):
        halves(model).apply(model)
    assert not any("affinity" in node.get_rt_info() for node in model.get_ops())


def test_json_file_round_trip(tmp_path: Path) -> None:
    placement = halves(chain(ODD))
    placement.save(tmp_path / "p.json")
    assert json.loads((tmp_path / "p.json").read_text(encoding="utf-8")) == placement.affinity
    assert Placement.load(tmp_path / "p.json").affinity == placement.affinity
    assert Placement.load(tmp_path / "p.json", ["CPU_B", "CPU_A", "GPU"]).devices == ("CPU_B", "CPU_A", "GPU")


@pytest.mark.parametrize(
    "text, reason",
    [
        ("{", "is no JSON"),
        ("[1]", "must hold one object"),
        ("{}", "must hold one object"),
        ('{"a": 1}', "the device of 'a' must be a name, got 1"),
        ('{"a": "CPU", "a": "GPU"}', "names 'a' twice"),
        ("[" * 100_000, "is no JSON"),
    ],
)
def test_bad_affinity_files_are_user_errors(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(UserError, match=reason) as error:
        Placement.load(tmp_path / "p.json")
    assert "p.json" in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_or_binary_affinity_file_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        Placement.load(tmp_path / "none.json")
    (tmp_path / "p.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="is no JSON"):
        Placement.load(tmp_path / "p.json")


def test_affinity_file_with_a_device_that_was_not_asked_for(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{"a": "CPU", "b": "NPU"}')
    with pytest.raises(UserError, match=r"uses 'NPU', which is not in HETERO:GPU,CPU"):
        Placement.load(tmp_path / "p.json", ["GPU", "CPU"])


def test_nodes_that_the_model_lacks_are_named() -> None:
    placement = Placement(("CPU",), {"a": "CPU", "b": "CPU"})
    placement.check_nodes(["a", "b", "c"])
    with pytest.raises(UserError, match=r"names 'b', which the model lacks"):
        placement.check_nodes(["a"])


def test_a_placement_of_another_model_is_not_applied() -> None:
    x = ops.parameter([1], np.float32, name="x")
    model = ov.Model([ops.relu(x)], [x])
    with pytest.raises(UserError, match="names no node of the model"):
        Placement(("GPU", "CPU"), {"a": "CPU"}).apply(model)
    assert not any("affinity" in node.get_rt_info() for node in model.get_ops())
    Placement(("GPU", "CPU"), {"x": "CPU"}).apply(model)
    assert {node.get_rt_info()["affinity"].astype(str) for node in model.get_ops()} == {"CPU"}


def test_devices_have_to_be_listed() -> None:
    with pytest.raises(UserError, match="uses 'NPU'"):
        Placement(("GPU", "CPU"), {"a": "NPU"})


THREE = Placement(("GPU", "NPU", "CPU"), {"a": "GPU", "b": "NPU", "c": "CPU", "d": "GPU"})


@pytest.mark.parametrize(
    ("available", "supports", "homes", "told"),
    [
        (("GPU", "NPU", "CPU"), None, "GPU NPU CPU GPU", []),
        (("CPU", "GPU", "NPU", "GPU.1"), None, "GPU NPU CPU GPU", []),
        (("GPU.0", "NPU", "CPU"), None, "GPU.0 NPU CPU GPU.0", []),  # another name of the same device
        (("NPU", "CPU"), None, "NPU NPU CPU NPU", ["2 on NPU"]),  # the next of the list
        (("NPU", "CPU"), lambda node, name: name == "CPU" or node != "d", "NPU NPU CPU CPU", ["1 on NPU, 1 on CPU"]),
        (("GPU",), None, "GPU GPU GPU GPU", ["1 on GPU", "1 on GPU"]),  # behind the last comes the first
        (("CPU", "NPU", "GPU.1"), None, "GPU.1 NPU CPU GPU.1", ["2 on GPU.1"]),  # of the same kind
    ],
)
def test_lost_devices_hand_their_nodes_on(available: Any, supports: Any, homes: str, told: list[str]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mapped = THREE.map_to(available, supports)
    assert [*mapped.affinity.values()] == homes.split()
    assert [str(one.message).rpartition("; its nodes run: ")[2] for one in caught] == told
    assert all(issubclass(one.category, PlacementNotFollowedWarning) and one.filename == __file__ for one in caught)


def test_devices_may_be_named_by_a_predicate() -> None:
    assert THREE.map_to(lambda device: True) is THREE
    with pytest.warns(PlacementNotFollowedWarning, match=r"uses GPU, .*\(NPU, CPU\); its nodes run: 2 on NPU"):
        assert THREE.map_to(lambda device: device != "GPU").devices == ("NPU", "CPU")


def test_no_device_left_is_a_user_error() -> None:
    with pytest.raises(UserError, match="none of the devices of HETERO:GPU,NPU,CPU"):
        THREE.map_to(lambda device: False)


def test_summary_tells_the_choice_and_the_gain() -> None:
    placement = Placement(
        ("CPU_A", "CPU_B"),
        {"a": "CPU_A", "b": "CPU_B"},
        objective="throughput",
        predicted={"throughput_ips": 90.0, "latency_us": 20.0, "submodels": 2},
        baselines={"CPU_A": {"throughput_ips": 50.0}, "CPU_B": {"throughput_ips": 40.0}, "hetero": None},
        chosen="pipeline",
    )
    told = "HETERO:CPU_A,CPU_B (throughput): pipeline, 2 submodels, predicted 1.80x the best single device"
    assert placement.summary() == told
    latency = Placement(
        ("CPU",), {"a": "CPU"}, predicted={"latency_us": 5.0, "submodels": 1}, baselines={"CPU": {"latency_us": 10.0}}
    )
    assert latency.summary() == "HETERO:CPU (latency): given, 1 submodel, predicted 2.00x the best single device"
    assert Placement(("CPU",), {"a": "CPU"}).summary() == "HETERO:CPU (latency): given"
    measured: dict[str, Any] = {
        "CPU_A": {"throughput_ips": 40.0, "submodels": 1, "failed": None},
        "CPU_B": {"throughput_ips": None, "submodels": None, "failed": "hangs"},
        "pipeline": {"throughput_ips": 60.0, "submodels": 3, "failed": None},
    }
    told = (
        "HETERO:CPU_A,CPU_B (throughput): pipeline, 3 submodels, measured 1.50x the best single device, predicted 1.80x"
    )
    assert replace(placement, measured=measured).summary() == told
    late = {**measured, "CPU_B": {"failed": "there was no time left to measure it"}}
    assert "measured 1.50x CPU_A, predicted 1.80x" in replace(placement, measured=late).summary()
    known = {"times_best_single": 1.512, "times_best_single_ci": [1.4, 1.6]}
    told = told.replace("1.50x the best single device", "1.51x the best single device (1.40 to 1.60)")
    exact = {**measured, "pipeline (less on CPU_B)": {**measured["pipeline"], **known}}
    found = replace(placement, measured=exact, chosen="pipeline (less on CPU_B)", why="as a reason")
    assert found.summary() == f"{told}; as a reason"
    failed = {name: {**figures, "throughput_ips": None} for name, figures in measured.items()}
    assert replace(placement, measured=failed).summary().endswith("predicted 1.80x the best single device")


def test_why_the_policys_placement_was_not_taken() -> None:
    figures = {name: {"throughput_ips": rate} for name, rate in {"CPU_A": 50.0, "CPU_B": 40.0, "hsdag": 120.0}.items()}
    placement = Placement(
        ("CPU_A", "CPU_B"),
        {"a": "CPU_A"},
        "throughput",
        predicted={"throughput_ips": 80.0},
        baselines=figures,
        policy="base",
        chosen="mincut",
    )
    told = "policy: HSDAG (base) proposed a placement predicted 33.3% better, not taken"
    assert placement.proposal() == told
    assert replace(placement, notes={"hsdag": "not measured: …"}).proposal() == f"{told}: not measured: …"
    twin = replace(placement, same_as={"hsdag": "partitions"}, notes={"hsdag": "same placement as partitions"})
    rates = {"CPU_A": 50.0, "partitions": 40.0, "mincut": 75.0}
    of_twin = {name: {"throughput_ips": rate, "failed": None} for name, rate in rates.items()}
    why = "measured 0.80x, and what was chosen 1.50x, the best single device"
    assert replace(twin, measured=of_twin).proposal() == f"{told}: {why}", "one placement has one figure"
    same = replace(placement, same_as={"hsdag": "partitions", "mincut": "partitions"})
    assert same.proposal() == "policy: HSDAG (base) proposed what was chosen"
    kinds = ("CPU_A", "CPU_B", "hsdag", "mincut")
    measured: dict[str, dict[str, Any]] = {name: {"throughput_ips": 50.0, "failed": None} for name in kinds}
    measured["mincut"] = {"throughput_ips": 75.0, "failed": None}
    why = "measured 1.00x, and what was chosen 1.50x, the best single device"
    assert replace(placement, measured=measured).proposal() == f"{told}: {why}"
    measured["hsdag"] = {"throughput_ips": None, "failed": "hangs"}
    assert replace(placement, measured=measured).proposal() == f"{told}: when measured, hangs"


def test_repr_is_one_short_line() -> None:
    names = {f"node{number}": "GPU" if number < 900 else "CPU" for number in range(1000)}
    placement = Placement(("GPU", "CPU", "NPU"), names, objective="throughput", chosen="mincut", predicted={"a": 1})
    nodes = "nodes={GPU: 900, CPU: 100, NPU: 0}"
    assert repr(placement) == f"<Placement HETERO:GPU,CPU,NPU objective=throughput chosen=mincut {nodes}>"
