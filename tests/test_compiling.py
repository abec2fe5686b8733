"""What compiles to learn of a model does so in a process of its own, with a Core like the caller's."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from pathlib import Path

import openvino as ov
import pytest

import ov_hsdag
from ov_hsdag.calibration import calibrate
from ov_hsdag.devices import same_core
from ov_hsdag.model.compiling import Compiling, Here
from ov_hsdag.utils.child import ChildError
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.failures import out_of_time, read_failure
from tests.commands import PACKAGE
from tests.conftest import TWO_CORES
from tests.graphs import convolutions
from tests.processes import ended

PAIR = "HETERO:CPU_A,CPU_B"

PARENT = """
import os, signal, sys, warnings
import numpy as np, openvino as ov, ov_hsdag
from tests.graphs import convolutions
warnings.simplefilter("ignore")
model, core = convolutions(8), ov.Core()
{act}
child = os.fork()
if child == 0:
    signal.alarm(60)
    ov.Core().compile_model(model, "CPU_A")(np.ones((1, 3, 32, 32), np.float32))
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.parametrize(
    "act",
    [
        f"ov_hsdag.place(model, '{PAIR}', objective='throughput', measure=True, measure_seconds=4, core=core)",
        "ov_hsdag.place(model, 'HETERO:CPU,CPU_A', objective='throughput', core=core)",
        pytest.param(f"ov_hsdag.calibrate('{PAIR}', core=core)", marks=pytest.mark.slow),
    ],
)
def test_a_child_that_is_forked_afterwards_compiles(act: str) -> None:
    environment = {**os.environ, "PYTHONPATH": PACKAGE, "OV_HSDAG_VIRTUAL_DEVICES": TWO_CORES}
    done = ended(sys.executable, "-c", PARENT.format(act=act), env=environment)
    assert done.stdout.strip() == "0", "it hangs where its parent has compiled"


def properties(here: Here, *names: str) -> list[object]:
    """Threads and precision of devices."""
    told = [(name, key) for name in names for key in ("INFERENCE_NUM_THREADS", "INFERENCE_PRECISION_HINT")]
    return [str(here.core.get_property(name, key)) for name, key in told]


def test_the_other_core_has_the_plugins_and_properties_of_the_callers(two_cpu_core: ov.Core) -> None:
    core = two_cpu_core
    core.register_plugin("openvino_intel_cpu_plugin", "SECOND_CPU")
    core.set_property("SECOND_CPU", {"INFERENCE_NUM_THREADS": 1, "ENABLE_CPU_PINNING": "NO"})
    core.set_property("CPU_A", {"INFERENCE_NUM_THREADS": 2, "PERFORMANCE_HINT": "THROUGHPUT"})
    with Compiling(core, ["CPU_A", "SECOND_CPU"]) as process:
        threads = process.call(properties, "CPU_A", "SECOND_CPU", doing="asking")
        wanted = same_core.describe(core, ["CPU_A", "SECOND_CPU"])
        assert process.call(described, doing="asking")["properties"] == wanted["properties"]
    assert threads == ["2", str(core.get_property("CPU_A", "INFERENCE_PRECISION_HINT")), "1", threads[3]]


def described(here: Here) -> dict[str, object]:
    return same_core.describe(here.core, ["CPU_A", "SECOND_CPU"])


@pytest.mark.slow
def test_devices_that_the_caller_registered_are_calibrated_and_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OV_HSDAG_VIRTUAL_DEVICES", raising=False)
    core = ov.Core()
    for name in ("FIRST_CPU", "SECOND_CPU"):
        core.register_plugin("openvino_intel_cpu_plugin", name)
        core.set_property(name, {"INFERENCE_NUM_THREADS": 1, "ENABLE_CPU_PINNING": "NO"})
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*(calibrating failed|nothing could be measured)")
        options = {"objective": "throughput", "measure_seconds": 12, "policy": "none"}
        placed = ov_hsdag.place(convolutions(8), "HETERO:FIRST_CPU,SECOND_CPU", core=core, measure=True, **options)
    assert placed.measured is not None
    failures = {read_failure(placed.measured[name]) for name in ("FIRST_CPU", "SECOND_CPU")}
    assert all(failure is None or out_of_time(failure) for failure in failures)


def refuse(here: Here) -> None:
    here.report("trying")
    warnings.warn("it is late", stacklevel=1)
    raise UserError("this is no model")


def killed(here: Here) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def inputs(here: Here, number: int) -> int:
    return len(here.model(number).inputs)


def test_results_errors_reports_and_warnings_come_back(two_cpu_core: ov.Core) -> None:
    told: list[str] = []
    with Compiling(two_cpu_core, ["CPU_A"]) as process:
        folder = process._folder
        assert process.call(inputs, process.keep(convolutions(8)), doing="counting") == 1
        with (
            pytest.warns(UserWarning, match="it is late") as warned,
            pytest.raises(UserError, match="this is no model"),
        ):
            process.call(refuse, doing="refusing", report=told.append)
        assert told == ["trying"]
        assert warned[0].filename == __file__
        with pytest.raises(ChildError, match="its process was ended by SIGKILL while dying"):
            process.call(killed, doing="dying")
        with pytest.raises(ChildError, match="has ended"):
            process.call(killed, doing="dying")
    assert not folder.exists()


def test_a_device_that_crashes_while_it_is_calibrated_costs_a_warning(
    two_cpu_core: ov.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "_calibrate_here", crash)
    options = {"objective": "throughput", "measure_seconds": 2, "policy": "none", "measure": True}
    with pytest.warns(UserWarning, match="calibrating failed: its process was ended by SIGSEGV while calibrating"):
        assert ov_hsdag.place(convolutions(8), PAIR, core=two_cpu_core, **options).used()


def crash(here: Here, *_: object) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def test_it_ends_with_its_parent_and_takes_its_folder_along(tmp_path: Path) -> None:
    script = (
        "import os, openvino as ov\nfrom ov_hsdag.model.compiling import Compiling\n"
        "process = Compiling(ov.Core(), ['CPU'])\nprocess.wait()\n"
        "print(process._process.pid, process._folder, flush=True)\nos.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "PYTHONPATH": PACKAGE, "TMPDIR": str(tmp_path)}
    done = ended(sys.executable, "-c", script, status=-signal.SIGKILL, env=environment)
    pid, folder = done.stdout.split()
    end = time.monotonic() + 30
    while (Path(folder).exists() or Path(f"/proc/{pid}/stat").exists()) and time.monotonic() < end:
        time.sleep(0.05)
    assert not Path(folder).exists()


def test_there_has_to_be_a_place_for_its_files(two_cpu_core: ov.Core, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr("ov_hsdag.storage.scratch.tempfile.gettempdir", none)
    with pytest.raises(ov_hsdag.RunError, match="TMPDIR"):
        Compiling(two_cpu_core, ["CPU_A"])
