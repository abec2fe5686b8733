"""Device lists, virtual CPU devices, and their limits inside split models."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as op
import openvino.properties.device as device_properties
import pytest
from loky.backend import context as loky_context

from ov_hsdag.devices import cgroups, cpu, device_set, discovery, virtual
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.utils.errors import UserError
from tests.conftest import TWO_CORES
from tests.processes import ended


def one_line(error: pytest.ExceptionInfo[BaseException]) -> str:
    text = str(error.value)
    assert text and "\n" not in text
    return text


def test_a_hetero_string_gives_its_devices_in_order() -> None:
    device_set = DeviceSet.parse(" HETERO:GPU.1, NPU,CPU_A ")
    assert device_set.names == tuple(device_set) == ("GPU.1", "NPU", "CPU_A")
    assert device_set.hetero == "HETERO:GPU.1,NPU,CPU_A"
    assert len(device_set) == 3
    assert DeviceSet.parse(device_set.hetero) == device_set


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("hetero:gpu,cpu", ("GPU", "CPU")),
        ("Hetero:gpu.1, npu,cpu_a", ("GPU.1", "NPU", "CPU_A")),
        ("HETERO:my_CPU,fpga", ("my_CPU", "fpga")),  # names of others are as they are
    ],
)
def test_case_does_not_matter(text: str, names: tuple[str, ...]) -> None:
    assert DeviceSet.parse(text).names == names
    assert DeviceSet.parse(device_set.in_upper_case(text)).names == names


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("GPU,CPU", "not a HETERO device list"),
        ("HETERO", "not a HETERO device list"),
        ("MULTI:GPU,CPU", "not a HETERO device list"),
        ("multi:gpu,cpu", "not a HETERO device list"),
        ("", "not a HETERO device list"),
        ("HETERO:", "empty device name"),
        ("HETERO:GPU,,CPU", "empty device name"),
        ("HETERO:GPU,", "empty device name"),
        (
            "HETERO:CPU",
            'only one device; give at least two devices, for example "HETERO:GPU,CPU", or make two of the CPU',
        ),
        ("HETERO:CPU", "OV_HSDAG_VIRTUAL_DEVICES"),
        ("HETERO:CPU_A;CPU_B", 'separated by commas, as in "HETERO:CPU_A,CPU_B"'),
        ("HETERO:GPU CPU,NPU", 'separated by commas, as in "HETERO:GPU,CPU,NPU"'),
        (f"HETERO:{','.join(f'GPU.{number}' for number in range(17))}", "17 devices; give at most 16"),
        ("HETERO:CPU,GPU,CPU", 'lists "CPU" twice'),
        ("HETERO:GPU,CPU,GPU.0", 'lists "GPU" and "GPU.0", the same device'),
        ("HETERO:GPU(4),CPU", '"GPU(4)" is not the name of a physical device'),
        ("HETERO:GPU CPU,NPU", '"GPU CPU" is not the name of a physical device'),
        ("HETERO:AUTO,CPU", '"AUTO" is not the name of a physical device'),
    ],
)
def test_a_bad_device_list_is_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(UserError) as error:
        DeviceSet.parse(text)
    message = one_line(error)
    assert says in message
    assert f'"{text}"' in message


@pytest.mark.parametrize(
    ("name", "kind", "virtual"),
    [
        ("CPU", "CPU", False), ("CPU_A", "CPU", True), ("GPU.1", "GPU", False), ("NPU", "NPU", False),
        ("FPGA", None, False),
    ],
)  # fmt: skip
def test_kind_of_a_device(name: str, kind: str | None, virtual: bool) -> None:
    assert device_set.kind_of(name) == kind
    assert device_set.is_virtual(name) is virtual


def test_virtual_devices_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(virtual.VIRTUAL_DEVICES_VARIABLE, " CPU_A : INFERENCE_NUM_THREADS = 2 ,PERF_COUNT=YES; CPU_B;")
    assert virtual.virtual_devices() == {"CPU_A": {"INFERENCE_NUM_THREADS": "2", "PERF_COUNT": "YES"}, "CPU_B": {}}
    monkeypatch.delenv(virtual.VIRTUAL_DEVICES_VARIABLE)
    assert virtual.virtual_devices() == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("GPU_A:INFERENCE_NUM_THREADS=1", '"GPU_A" cannot name a virtual device'),
        ("CPU:INFERENCE_NUM_THREADS=1", '"CPU" cannot name a virtual device'),
        ("CPU.1:INFERENCE_NUM_THREADS=1", '"CPU.1" cannot name'),
        ("CPU_A=1", '"CPU_A=1" cannot name'),
        (":INFERENCE_NUM_THREADS=1", '"" cannot name'),
        ("CPU_A:INFERENCE_NUM_THREADS=1;CPU_A", '"CPU_A" is declared twice'),
        ("CPU_A:INFERENCE_NUM_THREADS", '"INFERENCE_NUM_THREADS" of CPU_A is not KEY=VALUE'),
        ("CPU_A:INFERENCE_NUM_THREADS=", "is not KEY=VALUE"),
        ("CPU_A:=1", "is not KEY=VALUE"),
        ("CPU_A:INFERENCE_NUM_THREADS=0", 'INFERENCE_NUM_THREADS "0"'),
        ("CPU_A:INFERENCE_NUM_THREADS=-1", 'INFERENCE_NUM_THREADS "-1"'),
        ("CPU_A:INFERENCE_NUM_THREADS=two", 'INFERENCE_NUM_THREADS "two"'),
        ("CPU_A:INFERENCE_NUM_THREADS=1,INFERENCE_NUM_THREADS=2", "INFERENCE_NUM_THREADS twice"),
        ("CPU_A:INFERENCE_PRECISION_HINT=half", 'INFERENCE_PRECISION_HINT "half"; use one of f32, f16, bf16'),
    ],
)
def test_a_bad_declaration_is_refused_in_one_line(text: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(virtual.VIRTUAL_DEVICES_VARIABLE, text)
    with pytest.raises(UserError) as error:
        virtual.virtual_devices()
    message = one_line(error)
    assert says in message
    assert message.startswith(virtual.VIRTUAL_DEVICES_VARIABLE)


def test_registering_gives_two_cpus_with_their_own_limits_and_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        virtual.VIRTUAL_DEVICES_VARIABLE,
        "CPU_A:INFERENCE_NUM_THREADS=1,INFERENCE_PRECISION_HINT=f32;CPU_B:PERF_COUNT=YES",
    )
    core = ov.Core()
    assert virtual.register(core) == virtual.register(core) == ("CPU_A", "CPU_B")
    assert core.get_property("CPU_A", "INFERENCE_NUM_THREADS") == 1
    assert core.get_property("CPU_B", "INFERENCE_NUM_THREADS") == 0
    monkeypatch.setenv(virtual.VIRTUAL_DEVICES_VARIABLE, "CPU_A:INFERENCE_NUM_THREADS=2")
    virtual.register(core)
    assert core.get_property("CPU_A", "INFERENCE_NUM_THREADS") == 2

    found = {info.name: info for info in discovery.available(core)}
    assert {"CPU", "CPU_A", "CPU_B"} <= set(found)
    assert not found["CPU"].virtual
    assert found["CPU_A"].virtual and found["CPU_A"].kind == "CPU"
    assert found["CPU_A"].full_name == found["CPU"].full_name != ""
    assert found["CPU_A"].precision == "f32"
    assert "FP32" in found["CPU_A"].capabilities
    assert found["CPU_A"].limits == {"INFERENCE_NUM_THREADS": "2"}


def test_signals_arrive_when_virtual_devices_have_gone() -> None:
    """The CPU plugin leaves a stack for signals behind that is none, in the thread that has loaded several."""
    program = """
import gc, os, signal
from ov_hsdag.devices.virtual import new_core
signal.signal(signal.SIGTERM, lambda *_: print("handled", flush=True))
for _ in range(3):
    first, second = new_core(), new_core()
    del first
    gc.collect()
    del second
    gc.collect()
    os.kill(os.getpid(), signal.SIGTERM)
"""
    environment = {**os.environ, "OV_HSDAG_VIRTUAL_DEVICES": TWO_CORES}
    assert ended(sys.executable, "-c", program, env=environment).stdout.split() == ["handled"] * 3


def test_a_device_that_a_script_registered_itself_is_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    core = ov.Core()
    core.register_plugin("openvino_intel_cpu_plugin", "CPU_A")
    monkeypatch.setenv(virtual.VIRTUAL_DEVICES_VARIABLE, "CPU_A:INFERENCE_NUM_THREADS=1")
    virtual.register(core)
    assert discovery.inference_threads(core, "CPU_A") == 1


@pytest.mark.parametrize("properties", ["NO_SUCH_PROPERTY=1", "PERF_COUNT=perhaps"])
def test_a_property_that_the_plugin_refuses_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, properties: str
) -> None:
    monkeypatch.setenv(virtual.VIRTUAL_DEVICES_VARIABLE, f"CPU_A:{properties}")
    with pytest.raises(UserError) as error:
        virtual.register(ov.Core())
    message = one_line(error)
    assert "CPU_A" in message
    assert properties.partition("=")[0] in message


LIMITS = {
    "EXCLUSIVE_ASYNC_REQUESTS": False,
    "ENABLE_CPU_PINNING": "NO",
    "INFERENCE_NUM_THREADS": "1",
    "INFERENCE_PRECISION_HINT": "f32",
}


@pytest.mark.usefixtures("declared")
def test_compile_properties_adds_the_limits_of_the_virtual_devices_only() -> None:
    completed = virtual.compile_properties("HETERO:CPU_A,CPU,CPU_B", {"CACHE_DIR": "cache"})
    assert completed == {"CACHE_DIR": "cache", "DEVICE_PROPERTIES": {"CPU_A": LIMITS, "CPU_B": LIMITS}}
    by_priorities = virtual.compile_properties("HETERO", {"MULTI_DEVICE_PRIORITIES": "CPU_B,CPU"})
    assert by_priorities["DEVICE_PROPERTIES"] == {"CPU_B": LIMITS}


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize("device", ["CPU_A", "CPU", "AUTO", "HETERO:GPU,CPU", "HETERO", "MULTI:CPU_A,CPU_B"])
def test_compile_properties_leaves_everything_else_as_it_is(device: str) -> None:
    assert virtual.compile_properties(device) == {}
    assert virtual.compile_properties(device, {"PERF_COUNT": True}) == {"PERF_COUNT": True}


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize(
    "given",
    [
        {"DEVICE_PROPERTIES": {"CPU_A": {"INFERENCE_NUM_THREADS": 2}}},
        {"DEVICE_PROPERTIES": '{"CPU_A": {"INFERENCE_NUM_THREADS": 2}}'},
        {device_properties.properties: {"CPU_A": {"INFERENCE_NUM_THREADS": 2}}},
        dict([device_properties.properties({"CPU_A": {"INFERENCE_NUM_THREADS": 2}})]),
    ],
)
def test_what_the_caller_configures_wins_over_the_declaration(given: dict[Any, Any]) -> None:
    config = {**given, "INFERENCE_PRECISION_HINT": "bf16"}
    before = dict(config)
    completed = virtual.compile_properties("HETERO:CPU_A,CPU_B", config)
    assert config == before
    assert [str(key) for key in completed] == ["DEVICE_PROPERTIES", "INFERENCE_PRECISION_HINT"]
    expected = {key: value for key, value in LIMITS.items() if key != "INFERENCE_PRECISION_HINT"}
    assert completed["DEVICE_PROPERTIES"] == {"CPU_A": {**expected, "INFERENCE_NUM_THREADS": 2}, "CPU_B": expected}


@pytest.mark.usefixtures("declared")
def test_malformed_device_properties_are_left_to_openvino_to_refuse() -> None:
    config = {"DEVICE_PROPERTIES": "{not json"}
    assert virtual.compile_properties("HETERO:CPU_A,CPU_B", config) == config


def _split_model(widths: list[int]) -> ov.Model:
    """A chain of matrix products, from width to width, whose every layer is on the other device than the one before."""
    random = np.random.default_rng(7)
    source = value = op.parameter([widths[0], widths[0]], np.float32, name="x")
    source.get_rt_info()["affinity"] = device = "CPU_A"
    for layer, (width, following) in enumerate(itertools.pairwise(widths)):
        device = "CPU_A" if layer % 2 == 0 else "CPU_B"
        weights = op.constant(random.standard_normal((width, following)).astype(np.float32) / width**0.5)
        weights.get_rt_info()["affinity"] = device
        value = op.matmul(value, weights, False, False)
        value.get_rt_info()["affinity"] = device
    result = op.result(value)
    result.get_rt_info()["affinity"] = device
    return ov.Model([result], [source], "chain")


def _without_affinity(model: ov.Model) -> ov.Model:
    copy = model.clone()
    for node in copy.get_ops():
        del node.get_rt_info()["affinity"]
    return copy


def _thread_seconds() -> dict[str, float]:
    """CPU time of each thread of this process so far."""
    seconds = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that ended meanwhile
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            seconds[task.name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


@pytest.mark.skipif(
    not Path("/proc/self/task").exists() or (os.cpu_count() or 1) < 2, reason="needs Linux and two cores"
)
def test_thread_limits_hold_in_a_split_model(two_cpu_core: ov.Core) -> None:
    # Nearly all of the work is in the first of four submodels, so that it runs in one thread or it breaks the limit:
    # without compile_properties it is shared out evenly between as many threads as the machine has cores.
    model = _split_model([1536, 1536, 8, 8, 8])
    compiled = two_cpu_core.compile_model(model, "HETERO:CPU_A,CPU_B", virtual.compile_properties("HETERO:CPU_A,CPU_B"))
    assert compiled.get_property("HETERO_NUMBER_OF_SUBMODELS") == 4
    assert list(compiled.get_property("EXECUTION_DEVICES")) == ["CPU_A", "CPU_B"]
    said = compiled.get_property("DEVICE_PROPERTIES")
    for name in ("CPU_A", "CPU_B"):
        assert said[name]["INFERENCE_NUM_THREADS"] == 1
        assert said[name]["ENABLE_CPU_PINNING"] is False  # pinned, both devices would share the first core

    request = compiled.create_infer_request()
    data = np.random.default_rng(1).standard_normal((1536, 1536)).astype(np.float32)
    single = two_cpu_core.compile_model(_without_affinity(model), "CPU_A")
    np.testing.assert_allclose(request.infer({0: data})[0], single({0: data})[0], rtol=1e-4, atol=1e-4)

    before = _thread_seconds()
    request.set_input_tensor(ov.Tensor(data))
    while (total := sum((spent := _spent_since(before)).values())) < 1.0:
        request.infer()
    assert max(spent.values()) > 0.85 * total


def _spent_since(before: dict[str, float]) -> dict[str, float]:
    return {thread: seconds - before.get(thread, 0.0) for thread, seconds in _thread_seconds().items()}


def cpuinfo(cores: list[tuple[int, int]]) -> str:
    """/proc/cpuinfo of a machine whose CPUs have these (socket, core) numbers."""
    entries = [
        f"processor\t: {number}\nphysical id\t: {socket}\ncore id\t: {core}\n"
        for number, (socket, core) in enumerate(cores)
    ]
    return "\n".join(entries)


@pytest.mark.parametrize(
    ("cpus", "cores"), [({0}, 1), ({0, 2}, 1), ({0, 1}, 2), ({0, 1, 2, 3}, 2), ({0, 1, 2, 3, 4, 5}, 4)]
)
def test_usable_cores_are_physical_and_those_that_the_process_may_run_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpus: set[int], cores: int
) -> None:
    """Two cores with two hyper-threads each, and two cores of one in a second socket that are numbered alike."""
    (tmp_path / "cpuinfo").write_text(cpuinfo([(0, 0), (0, 1), (0, 0), (0, 1), (1, 0), (1, 1)]))
    real = open
    monkeypatch.setattr(
        loky_context,
        "open",
        lambda path, *more: real(tmp_path / "cpuinfo" if path == "/proc/cpuinfo" else path, *more),
        raising=False,
    )
    monkeypatch.setattr(loky_context, "physical_cores_cache", {})
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    monkeypatch.setattr(os, "sched_getaffinity", lambda thread: cpus)
    monkeypatch.setattr(os, "sched_setaffinity", lambda thread, cpus: None)
    monkeypatch.setattr(cgroups, "cpu_limit", lambda: math.inf)
    assert cpu.usable_cores() == cores


def test_usable_cores_are_counted_without_a_word_where_no_cores_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on Arm."""
    monkeypatch.setattr(loky_context, "_count_physical_cores_linux", lambda cpus: 0)
    monkeypatch.setattr(loky_context, "physical_cores_cache", {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert 1 <= cpu.usable_cores() <= (os.cpu_count() or 1)
    assert capsys.readouterr() == ("", "")


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux")
def test_a_process_on_one_cpu_has_one_core() -> None:
    first = min(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, {{{first}}}); from ov_hsdag.devices import cpu; print(cpu.usable_cores())"
    )
    assert ended(sys.executable, "-c", code).stdout.strip() == "1"


def test_one_request_has_the_cores_that_openvino_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = discovery._threads_of_a_request(())
    assert asked is not None and 1 <= asked <= (os.cpu_count() or 1)
    assert not cpu.alike() or discovery.request_cores() == cpu.usable_cores() <= asked
    monkeypatch.setattr(cpu, "usable_cores", lambda: 16)
    monkeypatch.setattr(cpu, "alike", lambda: False)
    for told, cores in ((8, 8), (32, 16), (0, 1), (None, 16)):
        monkeypatch.setattr(discovery, "_threads_of_a_request", lambda _, told=told: told)
        assert discovery.request_cores() == cores


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux")
def test_a_thread_that_is_bound_does_not_hide_cores() -> None:
    before, cores = os.sched_getaffinity(0), cpu.usable_cores()
    other = threading.Event()
    waiting = threading.Thread(target=other.wait)
    waiting.start()
    try:
        os.sched_setaffinity(0, {min(before)})
        assert cpu.usable_cores() == cores
        assert os.sched_getaffinity(0) == {min(before)}
    finally:
        os.sched_setaffinity(0, before)
        other.set()
        waiting.join()
