"""Device profiles: the built-in ones, the format and its errors, and the costs of transfers that follow."""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import openvino as ov
import openvino.opset13 as op
import pytest

from ov_hsdag.costs import cost_model, profile
from ov_hsdag.costs.builtin import builtin_profile
from ov_hsdag.costs.profile import Profile, builtin_names, load_builtin
from ov_hsdag.costs.schema import Violation, check
from ov_hsdag.devices import cpu, discovery, virtual
from ov_hsdag.model.graph import ComputationGraph
from ov_hsdag.utils.errors import UserError

SCHEMA = json.loads(profile.SCHEMA_PATH.read_text(encoding="utf-8"))
REFERENCE = jsonschema.Draft202012Validator(SCHEMA, format_checker=jsonschema.FormatChecker(["regex"]))
FIGURES = {
    "peak_gflops", "efficiency", "memory_gbps", "memory_bytes", "launch_us", "submodel_us", "link_us", "link_gbps",
}  # fmt: skip


def good_profile() -> dict[str, Any]:
    def figure(value: Any) -> dict[str, Any]:
        return {"value": value, "source": "invented for a test"}

    gpu = {
        "kind": "GPU",
        "description": "a card",
        "matches": [r"Card \d+"],
        "precision": "f16",
        "peak_gflops": figure({"f32": 1000, "f16": 2000.5, "i8": 4000}),
        "efficiency": figure({"default": 0.5, "MatMul": 1, "MatMul@f16": 0.25, "default@i8": 0.125}),
        "memory_gbps": figure(100),
        "memory_bytes": figure(2**33),
        "launch_us": figure(5),
        "submodel_us": figure(0),
        "link_us": figure(10),
        "link_gbps": figure(20),
        "unsupported": ["NonZero"],
    }
    cpu = {
        **copy.deepcopy(gpu),
        "kind": "CPU",
        "precision": "f32",
        "memory_gbps": figure(50),
        "submodel_us": figure(3),
        "link_us": figure(0),
        "link_gbps": figure(None),
    }
    del cpu["matches"], cpu["unsupported"]
    links = [{"from": "GPU.1", "to": "GPU", "us": figure(2), "gbps": figure(64.0)}]
    return {"version": 1, "devices": {"GPU": gpu, "GPU.1": {"builtin": "arc_a770"}, "CPU": cpu}, "links": links}


def written(directory: Path, document: Any) -> Path:
    path = directory / "mine.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return path


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as error:
        Profile.load(path)
    message = str(error.value)
    assert "\n" not in message
    assert str(path) in message
    return message


# The built-in profiles.


def test_there_is_a_builtin_profile_for_each_promised_device() -> None:
    assert builtin_names() == (
        "arc_a770", "arc_lunar_lake", "arc_meteor_lake", "core_ultra_7_155h", "cpu_core", "cpu_core_amx", "flex_170",
        "iris_xe", "npu_core_ultra", "xeon_platinum_8480",
    )  # fmt: skip


@pytest.mark.parametrize("stem", builtin_names())
def test_builtin_profiles_fit_the_schema_and_give_every_source(stem: str) -> None:
    document = json.loads((profile.BUILTIN_DIRECTORY / f"{stem}.json").read_text(encoding="utf-8"))
    REFERENCE.validate(document)
    builtin = load_builtin(stem)
    assert set(builtin.sources) == FIGURES
    datasheet = r"Intel|AMD|estimate|computes in host memory"
    assert all(re.match(datasheet, source) and len(source) > 15 for source in builtin.sources.values())
    assert builtin.sources["efficiency"].startswith("estimate")
    # Plausible orders of magnitude: a factor of 1000 (GB and MB, ms and µs) would be caught.
    assert 100 <= builtin.peak_gflops.get("f32", 1000) <= 20_000
    assert 10 <= builtin.memory_gbps <= 600
    assert 2**32 <= builtin.memory_bytes <= 2**39
    assert 0.5 <= builtin.launch_us <= 10
    assert (builtin.link_gbps is None) == (builtin.kind == "CPU")
    rates = [builtin.peak_gflops[name] for name in ("f32", "f16", "i8") if name in builtin.peak_gflops]
    assert rates == sorted(rates)


class Machine:
    """Stands for a Core on a machine with these devices: answers properties and raises as OpenVINO does."""

    def __init__(self, **properties: dict[str, Any]) -> None:
        self._properties = {name.replace("__", "."): values for name, values in properties.items()}

    def get_property(self, name: str, key: str) -> Any:
        try:
            return self._properties[name][key]
        except KeyError as error:
            raise RuntimeError(f"no {key} of {name}") from error

    def compile_model(self, *_: Any) -> None:
        raise RuntimeError("compiles nothing")


def named(full_name: str, **properties: Any) -> dict[str, Any]:
    return {"FULL_DEVICE_NAME": full_name, **properties}


@pytest.mark.parametrize(
    ("name", "full_name", "expected"),
    [
        ("CPU", "Intel(R) Xeon(R) Platinum 8480+", "xeon_platinum_8480"),
        ("CPU", "Intel(R) Core(TM) Ultra 7 155H", "core_ultra_7_155h"),
        ("GPU.0", "Intel(R) Iris(R) Xe Graphics (iGPU)", "iris_xe"),
        ("GPU", "Intel(R) Arc(TM) Graphics (iGPU)", "arc_meteor_lake"),
        ("GPU", "Intel(R) Arc(TM) 140V GPU (16GB) (iGPU)", "arc_lunar_lake"),
        ("GPU.1", "Intel(R) Arc(TM) A770 Graphics (dGPU)", "arc_a770"),
        ("GPU.1", "Intel(R) Data Center GPU Flex 170 (dGPU)", "flex_170"),
        ("GPU", "Some GPU of Tomorrow", "iris_xe"),
        ("NPU", "Intel(R) AI Boost", "npu_core_ultra"),
    ],
)
def test_a_device_at_hand_is_matched_by_its_full_name(
    monkeypatch: pytest.MonkeyPatch, name: str, full_name: str, expected: str
) -> None:
    monkeypatch.setattr(cpu, "usable_cores", lambda: 56)
    machine = Machine(**{name.replace(".", "__"): named(full_name)})
    found = builtin_profile([name], machine).device(name)  # type: ignore[arg-type]
    assert found.name == name
    assert found.description == load_builtin(expected).description


@pytest.mark.parametrize(
    ("full_name", "cores", "amx", "counts_as", "share"),
    [
        ("Intel(R) Xeon(R) Platinum 8480+", 56, True, "xeon_platinum_8480", 1),
        ("Intel(R) Xeon(R) Platinum 8480+", 112, True, "xeon_platinum_8480", 1),
        ("Intel(R) Xeon(R) Platinum 8480+", 8, True, "xeon_platinum_8480", (8 / 56) ** 0.85),
        ("Intel(R) Core(TM) Ultra 7 155H", 7, False, "core_ultra_7_155h", 0.5**0.85),
        ("Some CPU of Tomorrow", 4, True, "cpu_core_amx", 4**0.85),
        ("Some CPU of Tomorrow", 4, False, "cpu_core", 4**0.85),
    ],
)
def test_a_cpu_at_hand_counts_with_the_cores_that_the_process_has(
    monkeypatch: pytest.MonkeyPatch, full_name: str, cores: int, amx: bool, counts_as: str, share: float
) -> None:
    monkeypatch.setattr(cpu, "usable_cores", lambda: cores)
    monkeypatch.setattr(discovery, "request_cores", lambda: cores)
    monkeypatch.setattr(cpu, "has_amx_bf16", lambda: amx)
    monkeypatch.setattr(discovery, "memory_bytes", lambda core, name: 2**36)
    machine = Machine(CPU=named(full_name, INFERENCE_PRECISION_HINT=ov.Type.f32))
    found = builtin_profile(["CPU"], machine).device("CPU")  # type: ignore[arg-type]
    expected = load_builtin(counts_as)
    assert found.peak_gflops["f32"] == pytest.approx(expected.peak_gflops["f32"] * share)
    assert (found.name, found.precision, found.memory_bytes) == ("CPU", "f32", 2**36)
    assert found.launch_us == expected.launch_us
    assert (found.sources["peak_gflops"] == expected.sources["peak_gflops"]) == (share == 1)


def test_figures_of_another_device_are_estimates(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a profile cites is of the device itself: no Intel CPU has its peak rate from AMD."""
    monkeypatch.setattr(cpu, "has_amx_bf16", lambda: False)
    machine = Machine(
        CPU=named("Intel(R) Core(TM) i7-1185G7"), GPU=named("Some GPU of Tomorrow"), NPU=named("Intel(R) AI Boost")
    )
    profile = builtin_profile(["CPU", "GPU", "NPU"], machine)  # type: ignore[arg-type]
    found = {name: profile.device(name) for name in ("CPU", "GPU", "NPU")}
    assert [found[name].builtin for name in found] == ["cpu_core", "iris_xe", "npu_core_ultra"]
    for name in ("CPU", "GPU"):
        assert {"peak_gflops", "efficiency", "memory_gbps", "launch_us", "submodel_us"} <= set(found[name].estimates)
        assert "built-in profile" in found[name].sources["peak_gflops"]
        assert "ARK" not in json.dumps(found[name].sources)
    assert "AMD" not in found["CPU"].sources["peak_gflops"]
    assert "link_gbps" not in found["CPU"].estimates and "link_gbps" in found["GPU"].estimates
    assert "efficiency" in found["NPU"].estimates and "peak_gflops" not in found["NPU"].estimates
    fewer = load_builtin("xeon_platinum_8480").with_fewer_cores(8)
    assert fewer.estimates == load_builtin("xeon_platinum_8480").estimates != ()
    assert builtin_profile(["GPU"]).device("GPU").estimates[0] == "peak_gflops"


def test_a_model_for_another_machine_does_not_count_with_this_ones_cpu() -> None:
    machine = Machine(
        CPU=named("Intel(R) Xeon(R) Platinum 8480+"), GPU=named("Intel(R) Data Center GPU Flex 170 (dGPU)")
    )
    common, mine = load_builtin("core_ultra_7_155h").description, load_builtin("xeon_platinum_8480").description
    for names, expected in ((["NPU", "CPU"], common), (["GPU", "CPU"], mine), (["GPU", "NPU", "CPU"], mine)):
        found = builtin_profile(names, machine).device("CPU")  # type: ignore[arg-type]
        assert found.description.endswith(expected), names


def test_a_device_has_the_memory_that_it_says_it_has() -> None:
    machine = Machine(
        GPU=named("Some GPU", GPU_DEVICE_TOTAL_MEM_SIZE=2**31), NPU=named("Intel(R) AI Boost"), CPU=named("Some CPU")
    )
    profile = builtin_profile(["GPU", "NPU", "CPU"], machine)  # type: ignore[arg-type]
    gpu, npu, cpu = profile.memory_bytes(["GPU", "NPU", "CPU"]).tolist()
    assert (gpu, npu) == (2**31, load_builtin("npu_core_ultra").memory_bytes)
    assert profile.device("GPU").sources["memory_bytes"] == "this machine's GPU"
    if hasattr(os, "sysconf"):
        assert cpu == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_a_gpu_that_infers_in_16_bits_holds_twice_the_weights_of_32() -> None:
    x = op.parameter([1, 64], np.float32)
    weights = [op.constant(np.ones((64, 64), kind)) for kind in (np.float32, np.float16)]
    wide, narrow = op.matmul(x, weights[0], False, False), op.matmul(x, op.convert(weights[1], "f32"), False, False)
    graph = ComputationGraph.from_model(ov.Model([op.add(wide, narrow)], [x]))
    gpu, cpu = load_builtin("iris_xe"), load_builtin("core_ultra_7_155h").at_precision("bf16")
    profile = Profile({"GPU": gpu, "CPU": cpu}).with_memory({"GPU": 2**20, "CPU": 2**20})
    # 16 KiB and 8 KiB, of which the GPU keeps 8 each.
    assert cost_model.storage_ratios(profile, graph, ["GPU", "CPU"]).tolist() == [pytest.approx(2 / 3), 1]
    assert profile.memory_bytes(["GPU", "CPU"]).tolist() == [2**20, 2**20]
    in_f32 = replace(profile, devices={"GPU": replace(profile.devices["GPU"], precision="f32")})
    assert cost_model.storage_ratios(in_f32, graph, ["GPU"]).tolist() == [1]


def test_devices_that_are_not_at_hand_count_as_the_common_one_of_their_kind() -> None:
    profile = builtin_profile(["GPU", "NPU", "CPU"])
    found = [profile.device(name).builtin for name in ("GPU", "NPU", "CPU")]
    assert found == ["iris_xe", "npu_core_ultra", "core_ultra_7_155h"]


def test_of_several_gpus_those_that_are_not_at_hand_count_as_cards() -> None:
    integrated = Machine(GPU=named("Intel(R) Iris(R) Xe Graphics (iGPU)"))
    for machine, first in ((None, "arc_a770"), (integrated, "iris_xe")):
        profile = builtin_profile(["GPU", "GPU.1", "CPU"], machine)  # type: ignore[arg-type]
        assert [profile.device(name).builtin for name in ("GPU", "GPU.1")] == [first, "arc_a770"]
        assert profile.device("GPU.1").estimates


def test_a_device_at_hand_counts_at_the_precision_it_infers_in() -> None:
    machine = Machine(
        CPU=named("Intel(R) Xeon(R) Platinum 8480+", INFERENCE_PRECISION_HINT=ov.Type.f32),
        GPU=named("Intel(R) Iris(R) Xe Graphics (iGPU)", INFERENCE_PRECISION_HINT=ov.Type.bf16),
    )
    profile = builtin_profile(["CPU", "GPU"], machine)  # type: ignore[arg-type]
    assert profile.device("CPU").precision == "f32"
    assert profile.device("GPU").precision == "f16"  # its profile has no rate for bf16


@pytest.mark.parametrize(("name", "hint"), [("FPGA", "give a profile"), ("CPU_Z", virtual.VIRTUAL_DEVICES_VARIABLE)])
def test_an_unknown_device_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, hint: str) -> None:
    monkeypatch.delenv(virtual.VIRTUAL_DEVICES_VARIABLE, raising=False)
    for core in (None, ov.Core()):
        with pytest.raises(UserError, match=f'unknown device "{name}"') as error:
            builtin_profile(["CPU", name], core)
        assert hint in str(error.value)


def test_virtual_devices_count_as_their_threads_and_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        virtual.VIRTUAL_DEVICES_VARIABLE,
        "CPU_A:INFERENCE_NUM_THREADS=1;CPU_B:INFERENCE_NUM_THREADS=2,INFERENCE_PRECISION_HINT=bf16;"
        "CPU_C:INFERENCE_NUM_THREADS=64",
    )
    profile = builtin_profile(["CPU_A", "CPU_B", "CPU_C"])
    one, two, many = (profile.device(name) for name in ("CPU_A", "CPU_B", "CPU_C"))
    core = load_builtin("cpu_core")
    assert (one.precision, two.precision) == ("f32", "bf16")
    assert one.peak_gflops == core.peak_gflops
    assert two.peak_gflops == {name: 2**0.85 * rate for name, rate in core.peak_gflops.items()}
    assert two.memory_gbps == 2 * core.memory_gbps
    assert many.memory_gbps == load_builtin("core_ultra_7_155h").memory_gbps  # cores share the machine's memory


def test_a_registered_virtual_device_is_asked_for_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    core = ov.Core()
    core.register_plugin("openvino_intel_cpu_plugin", "CPU_MINE")
    core.set_property("CPU_MINE", {"INFERENCE_NUM_THREADS": 3, "INFERENCE_PRECISION_HINT": "f32"})
    monkeypatch.delenv(virtual.VIRTUAL_DEVICES_VARIABLE, raising=False)
    for amx, stem in ((False, "cpu_core"), (True, "cpu_core_amx")):
        monkeypatch.setattr(cpu, "has_amx_bf16", lambda amx=amx: amx)
        monkeypatch.setattr(cpu, "usable_cores", lambda: 4)  # threads beyond the usable cores do not count
        found = builtin_profile(["CPU_MINE"], core).device("CPU_MINE")
        assert found.precision == "f32"
        assert found.peak_gflops["f32"] == 3**0.85 * load_builtin(stem).peak_gflops["f32"]


# The format.


def test_a_profile_is_read_as_it_is_written(tmp_path: Path) -> None:
    profile = Profile.load(written(tmp_path, good_profile()))
    assert list(profile.devices) == ["GPU", "GPU.1", "CPU"]
    gpu = profile.device("GPU")
    assert (gpu.name, gpu.kind, gpu.precision, gpu.matches) == ("GPU", "GPU", "f16", (r"Card \d+",))
    assert gpu.peak_gflops == {"f32": 1000.0, "f16": 2000.5, "i8": 4000.0}
    assert (gpu.memory_gbps, gpu.memory_bytes, gpu.launch_us, gpu.submodel_us) == (100.0, 2**33, 5.0, 0.0)
    assert (gpu.link_us, gpu.link_gbps, gpu.unsupported) == (10.0, 20.0, ("NonZero",))
    assert profile.device("CPU").link_gbps is None
    assert gpu.sources["memory_gbps"] == "invented for a test"
    assert profile.device("GPU.1").name == "GPU.1"
    assert profile.device("GPU.1").peak_gflops == load_builtin("arc_a770").peak_gflops


def test_efficiency_prefers_type_and_precision_over_type_over_precision(tmp_path: Path) -> None:
    gpu = Profile.load(written(tmp_path, good_profile())).device("GPU")
    asked = [("MatMul", "f16"), ("MatMul", "i8"), ("Relu", "i8"), ("Relu", "f16")]
    assert [gpu.efficiency_of(*question) for question in asked] == [0.25, 1.0, 0.125, 0.5]


def test_numbered_devices_fall_back_to_the_unnumbered_entry(tmp_path: Path) -> None:
    document = good_profile()
    del document["links"]
    profile = Profile.load(written(tmp_path, document))
    assert profile.device("GPU.0").name == profile.device("GPU.7").name == "GPU"
    assert profile.device("GPU.1").name == "GPU.1"
    document["devices"] = {"GPU.0": document["devices"]["GPU"]}
    profile = Profile.load(written(tmp_path, document))
    assert profile.device("GPU").name == "GPU.0"
    with pytest.raises(UserError, match=r'no device "GPU.1"; it has GPU.0'):
        profile.device("GPU.1")


@pytest.mark.parametrize("name", ["NPU", "CPU_A"])  # CPU_A is a part of the machine: the figures of CPU are not its own
def test_a_device_that_the_profile_lacks_is_named_with_those_it_has(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, good_profile())
    with pytest.raises(UserError) as error:
        cost_model.transfer_costs(Profile.load(path), ["GPU", name])
    message = str(error.value)
    assert "\n" not in message
    assert f'{path} has no device "{name}"; it has GPU, GPU.1, CPU' in message


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("devices.GPU.memry_gbps", 1), '$.devices.GPU: expected only the keys kind, description'),
        (("devices.GPU.memry_gbps", 1), 'got the unknown key "memry_gbps"'),
        (("devices.GPU.kind", ...), '$.devices.GPU: expected the key "kind", got ["description"'),
        (("devices.GPU.kind", "TPU"), '$.devices.GPU.kind: expected one of "CPU", "GPU", "NPU", got "TPU"'),
        (("devices.GPU.memory_gbps", 100), "$.devices.GPU.memory_gbps: expected type object, got 100"),
        (("devices.GPU.memory_gbps.source", ...), '.memory_gbps: expected the key "source", got ["value"]'),
        (("devices.GPU.memory_gbps.value", "fast"), 'GPU.memory_gbps.value: expected type number, got "fast"'),
        (("devices.GPU.memory_gbps.value", True), "$.devices.GPU.memory_gbps.value: expected type number, got true"),
        (("devices.GPU.memory_gbps.value", 0), ".memory_gbps.value: expected a number of at least 1e-09, got 0"),
        (("devices.GPU.memory_gbps.value", 1e-300), ".value: expected a number of at least 1e-09, got 1e-300"),
        (("devices.GPU.link_gbps.value", 1e-300), ".link_gbps.value: expected a number of at least 1e-09, got 1e-300"),
        (("devices.GPU.peak_gflops.value.f16", 1e-300), ".f16: expected a number of at least 1e-09, got 1e-300"),
        (("devices.GPU.efficiency.value.MatMul", 1e-300), ".MatMul: expected a number of at least 1e-09, got 1e-300"),
        (("devices.GPU.launch_us.value", -1), "$.devices.GPU.launch_us.value: expected a number of at least 0, got -1"),
        (("devices.GPU.memory_bytes.value", 1.5), "$.devices.GPU.memory_bytes.value: expected type integer, got 1.5"),
        (("devices.GPU.efficiency.value.MatMul", 1.5), ".value.MatMul: expected a number of at most 1, got 1.5"),
        (("devices.GPU.efficiency.value.default", ...), '.efficiency.value: expected the key "default"'),
        (("devices.GPU.precision", "bf16"), '$.devices.GPU.peak_gflops.value: expected the key "bf16"'),
        (("devices.GPU.matches", ["("]), "$.devices.GPU.matches[0]: expected a regular expression"),
        (("devices.GPU_1 ", {}), '$.devices (key): expected a name like'),
        (("devices.GPU.builtin", "x"), '$.devices.GPU: expected only the keys builtin, got the unknown key "kind"'),
        (("devices.CPU", {"builtin": "pentium"}), '$.devices.CPU.builtin: expected one of arc_a770, '),
        (("devices", {}), "$.devices: expected at least one key, got {}"),
        (("devices", []), "$.devices: expected type object, got []"),
        (("version", 2), "$.version: expected 1, got 2"),
        (("version", True), "$.version: expected 1, got true"),
        (("links", {}), "$.links: expected type array, got {}"),
        (("links.0.to", "NPU"), '$.links[0].to: expected one of GPU, GPU.1, CPU, got "NPU"'),
    ],
)  # fmt: skip
def test_a_profile_that_breaks_the_schema_is_refused(tmp_path: Path, change: tuple[str, Any], says: str) -> None:
    document: Any = good_profile()
    *path, last = change[0].split(".")
    place = document
    for key in path:
        place = place[int(key) if key.isdigit() else key]
    if change[1] is ...:
        del place[last]
    else:
        place[last] = change[1]
    assert says in refusal(written(tmp_path, document))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is no JSON"),
        ('{"version": 1,', "in line 1"),
        ("[]", "$: expected type object, got []"),
        ("null", "$: expected type object, got null"),
        ('{"version": 1, "version": 1, "devices": {}}', "names 'version' twice"),
        ('{"version": NaN}', "got NaN"),
        ('{"version": ' + "9" * 5000 + "}", ""),
        ("[" * 100_000, ""),
    ],
)
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, text: str, says: str) -> None:
    assert says in refusal(written(tmp_path, text))


def test_a_number_without_end_is_refused(tmp_path: Path) -> None:
    text = json.dumps(good_profile()).replace("64.0", "1e999")
    assert "$.links[0].gbps.value: expected a number of at most 1e+15" in refusal(written(tmp_path, text))


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    assert "cannot read profile" in refusal(tmp_path / "missing.json")
    assert "cannot read profile" in refusal(tmp_path)
    assert '{"builtin": "arc_a770"}' in refusal(Path("arc_a770"))
    (tmp_path / "mine.json").write_bytes(b"\xff\xfe\x00")
    assert "is no text file" in refusal(tmp_path / "mine.json")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*path, key))


# `...` stands for removing a key.
REPLACEMENTS: tuple[Any, ...] = (
    None, True, -1, 0, 1, 0.5, 1e-10, 7.0, 1e16, "", "f32", "GPU", "(", [], ["("], {}, {"default": 1}, ...
)  # fmt: skip


def mutations(document: Any) -> Iterator[Any]:
    """Every value of a document replaced by wrong and by other good ones, removed, or given an unknown key."""
    for path in places(document):
        if not path:
            continue
        for replacement in REPLACEMENTS:
            mutant = copy.deepcopy(document)
            place = mutant
            for key in path[:-1]:
                place = place[key]
            if replacement is not ...:
                place[path[-1]] = replacement
            elif isinstance(place[path[-1]], dict):
                place[path[-1]]["surprise"] = 1
            else:
                del place[path[-1]]
            yield mutant


@pytest.mark.slow
def test_every_breach_of_the_schema_is_told_in_a_line() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    document = good_profile()
    REFERENCE.validate(document)
    del document["devices"]["CPU"]  # one entry of each kind is left
    document["devices"]["GPU"]["memory_bytes"]["value"] = 7.0
    verdicts = {True: 0, False: 0}
    for mutant in [document, *mutations(document)]:
        expected = REFERENCE.is_valid(mutant)
        if expected:
            check(SCHEMA, mutant)
        else:
            with pytest.raises(Violation, match=r"^\$[^\n]*: expected [^\n]+, got [^\n]+$"):
                check(SCHEMA, mutant)
        verdicts[expected] += 1
    assert min(verdicts.values()) > 100


def test_a_name_with_a_newline_at_its_end_is_refused() -> None:
    for change in ({"devices": {"GPU\n": {"builtin": "arc_a770"}}}, {"devices": {"GPU": {"builtin": "arc_a770\n"}}}):
        with pytest.raises(Violation, match=r": expected a name like \^[^\n]+\$, got \"[^\n]+$"):
            check(SCHEMA, {**good_profile(), **change})


@pytest.mark.parametrize("pattern", ["x{99999999999999}", "(" * 5000 + ")" * 5000, "[z-a]"])
def test_what_is_no_regular_expression_is_refused(pattern: str) -> None:
    document = good_profile()
    document["devices"]["GPU"]["matches"] = [pattern]
    with pytest.raises(Violation, match=r"^\$\.devices\.GPU\.matches\[0\]: expected a regular expression"):
        check(SCHEMA, document)


# Transfers and other costs of devices.


def test_transfers_go_through_host_memory_unless_there_is_a_direct_link(tmp_path: Path) -> None:
    names = ["GPU", "CPU", "GPU.1"]
    profile = Profile.load(written(tmp_path, good_profile()))
    fixed_us, us_per_byte = cost_model.transfer_costs(profile, names)
    assert fixed_us.shape == us_per_byte.shape == (3, 3)
    assert fixed_us.dtype == us_per_byte.dtype == np.float64
    assert not np.diag(fixed_us).any() and not np.diag(us_per_byte).any()
    gpu, cpu = 1 / 20e3, 2 / 50e3  # the CPU reads and writes each byte once, in its own memory
    assert fixed_us[0, 1] == fixed_us[1, 0] == 10.0
    assert us_per_byte[0, 1] == us_per_byte[1, 0] == pytest.approx(gpu + cpu)
    assert fixed_us[0, 2] == 10.0 + load_builtin("arc_a770").link_us
    assert (fixed_us[2, 0], us_per_byte[2, 0]) == (2.0, pytest.approx(1 / 64e3))


def test_other_costs_come_in_the_order_of_the_devices(tmp_path: Path) -> None:
    profile = Profile.load(written(tmp_path, good_profile()))
    assert profile.submodel_us(["CPU", "GPU"]).tolist() == [3.0, 0.0]
    memory = profile.memory_bytes(["GPU.1", "CPU"])
    assert memory.dtype == np.int64
    assert memory.tolist() == [16 * 2**30, 2**33]
