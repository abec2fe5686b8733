"""`ovc MODEL --placement HETERO:…` writes a placed model; errors are one line, and without the option ovc is ovc."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import openvino as ov
import pytest
from openvino.tools.ovc import main as ovc_main

import ov_hsdag
from ov_hsdag.devices.requests import requests_in_flight
from ov_hsdag.integration import converters
from ov_hsdag.model.placement import Placement
from ov_hsdag.utils import progress
from tests import commands
from tests.conftest import TWO_CORES
from tests.processes import ended
from tests.test_first_contact import write_onnx

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
SQUEEZENET = LIGHT / "light_squeezenet.onnx"
DEVICE = "HETERO:CPU_A,CPU_B"


@dataclass
class Ended:
    """What a run of ovc left: exit status, standard output, and the lines of standard error that are ours.

    ovc and what it imports write there too: warnings of deprecated modules, log records, tracebacks of their own.
    """

    status: int
    out: str
    err: str

    @property
    def errors(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("error: ")]


Ovc = Callable[..., Ended]
pytestmark = pytest.mark.usefixtures("fast_search")


@pytest.fixture
def ovc(monkeypatch: pytest.MonkeyPatch, declared: None, tmp_path: Path) -> Ovc:
    """Runs ovc's main() in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Ended:
        done = commands.ovc(*arguments)
        return Ended(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is converted at once."""
    path = tmp_path_factory.mktemp("onnx") / "small.onnx"
    write_onnx(path)
    return path


def entries(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def promised(path: Path) -> int:
    """Submodels that the placement in a model predicts; both devices have some."""
    placement = Placement.of(ov.Core().read_model(path))
    assert placement is not None and placement.predicted is not None
    assert set(placement.affinity.values()) == {"CPU_A", "CPU_B"}
    return int(placement.predicted["submodels"])


def five_lines(path: Path) -> list[str]:
    """What a script that knows nothing of ov_hsdag sees."""
    compiled = ov.Core().compile_model(path, DEVICE)
    assert np.isfinite(compiled([np.zeros((1, 3, 224, 224), np.float32)])[0]).all()
    return list(compiled.get_property("EXECUTION_DEVICES"))


def test_throughput_placement_runs_on_both_devices(ovc: Ovc, tmp_path: Path) -> None:
    ended = ovc(
        SQUEEZENET, "--placement", DEVICE, "--placement_objective", "throughput", "--output_model", "new/out.xml"
    )
    assert (ended.status, ended.errors) == (0, [])
    assert "[ INFO ] placement HETERO:CPU_A,CPU_B (throughput): " in ended.out
    assert f" {promised(tmp_path / 'new' / 'out.xml')} submodels, predicted 1." in ended.out
    requests = requests_in_flight(1, 2, promised(tmp_path / "new" / "out.xml"))
    assert f"[ INFO ] requests: keep {requests} in flight " in ended.out
    assert "[ SUCCESS ] XML file: new/out.xml" in ended.out
    assert entries(tmp_path / "new") == {"out.xml", "out.bin"}
    assert five_lines(tmp_path / "new/out.xml") == ["CPU_A", "CPU_B"]


@pytest.mark.slow
@pytest.mark.usefixtures("quiet_machine")
def test_placements_are_measured_where_that_is_asked_for(
    ovc: Ovc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.5)
    ended = ovc(SQUEEZENET, "--placement", DEVICE, "--placement_measure", "--output_model", "out.xml")
    assert (ended.status, ended.errors) == (0, [])
    assert re.search(
        r"\[ INFO \] placement HETERO:CPU_A,CPU_B \(latency\): \w+, \d+ submodels?, measured \d\.", ended.out
    )
    # A minute of silence would be long; these lines come every ten seconds, unless a test wants more of them.
    assert re.search(rf"^\[ INFO \] \d+ s: placing on {DEVICE}: .+", ended.out, re.MULTILINE)
    placement = Placement.of(ov.Core().read_model(tmp_path / "out.xml"))
    assert placement is not None and placement.measured is not None
    assert {"CPU_A", "CPU_B", "hetero"} <= set(placement.measured)


def test_weights_are_compressed_as_ovc_does(ovc: Ovc, small: Path, tmp_path: Path) -> None:
    assert ovc(small, "--placement", DEVICE, "--output_model", "half").status == 0
    assert ovc(small, "--placement", DEVICE, "--output_model", "full", "--compress_to_fp16=False").status == 0
    half, full = ((tmp_path / f"{name}.bin").stat().st_size for name in ("half", "full"))
    assert full > 1.9 * half
    for name in ("half", "full"):
        placement = Placement.of(ov.Core().read_model(tmp_path / f"{name}.xml"))
        assert placement is not None
        assert placement.devices == ("CPU_A", "CPU_B")
        assert placement.objective == "latency"


def test_devices_need_not_be_there(ovc: Ovc, small: Path, tmp_path: Path) -> None:
    ended = ovc(small, "--placement", "HETERO:GPU,CPU")
    assert (ended.status, ended.errors) == (0, [])
    assert entries(tmp_path) == {"small.xml", "small.bin"}
    placement = Placement.of(ov.Core().read_model(tmp_path / "small.xml"))
    assert placement is not None
    assert placement.devices == ("GPU", "CPU")
    assert "[ INFO ] costs: built-in profiles iris_xe for GPU, " in ended.out
    assert "--placement_profile gives others)\n[ INFO ] not measured: --placement_measure measures\n" in ended.out


def test_profile_decides(ovc: Ovc, small: Path, tmp_path: Path) -> None:
    for fast, slow in (("CPU_A", "CPU_B"), ("CPU_B", "CPU_A")):
        devices = {fast: {"builtin": "core_ultra_7_155h"}, slow: {"builtin": "cpu_core"}}
        (tmp_path / "profile.json").write_text(json.dumps({"version": 1, "devices": devices}))
        ended = ovc(small, "--placement", DEVICE, "--placement_profile", "profile.json", "--output_model", "m")
        assert (ended.status, ended.errors) == (0, [])
        placement = Placement.of(ov.Core().read_model(tmp_path / "m.xml"))
        assert placement is not None
        assert placement.used() == (fast,)


def test_a_report_is_written_beside(ovc: Ovc, small: Path, tmp_path: Path) -> None:
    assert ovc(small, "--placement", DEVICE, "--placement_report", "r.html", "--output_model", "placed").status == 0
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "--placement_report" in text
    assert '"profiles":{"CPU_A":' in text


def test_options_of_ours_are_not_stored_as_conversion_parameters(ovc: Ovc, small: Path, tmp_path: Path) -> None:
    ovc(small, "--placement", DEVICE, "--output_model", "placed")
    ovc(small, "--output_model", "plain")
    parameters = [
        set(ov.Core().read_model(tmp_path / name).get_rt_info(["conversion_parameters"]).value)
        for name in ("placed.xml", "plain.xml")
    ]
    assert parameters[0] == parameters[1]


def test_without_the_option_the_model_is_the_same(
    ovc: Ovc, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def files() -> dict[str, bytes]:
        # OpenVINO numbers the nodes that it names itself through the life of a process.
        found = {path.name: re.sub(rb"_[0-9]+", b"", path.read_bytes()) for path in tmp_path.glob("*.xml")}
        found |= {path.name: path.read_bytes() for path in tmp_path.glob("*.bin")}
        for name in found:
            (tmp_path / name).unlink()  # ovc stores whether they were there
        return found

    ours = ovc(small, "--output_model", "m.xml")
    written = files()
    assert written.keys() == {"m.xml", "m.bin"}
    assert b"ov_hsdag" not in written["m.xml"]
    monkeypatch.setenv("OV_HSDAG_DISABLE", "1")
    theirs = ovc(small, "--output_model", "m.xml")
    assert (ours.status, ours.out, ours.errors) == (theirs.status, theirs.out, [])
    assert files() == written


def test_disabled_ovc_does_not_know_the_option(ovc: Ovc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OV_HSDAG_DISABLE", "1")
    ended = ovc(SQUEEZENET, "--placement", DEVICE)
    assert ended.status == 2
    assert "unrecognized arguments: --placement" in ended.err
    assert "--placement" not in ovc("--help").out


def test_help_explains_the_options(ovc: Ovc) -> None:
    ended = ovc("--help")
    assert ended.status == 0
    for option in (
        "--placement HETERO:A,B",
        "--placement_objective latency|throughput",
        "--placement_profile FILE.json",
        "--placement_measure",
        "--placement_report FILE.html|svg|png",
    ):
        assert option in ended.out
    told = " ".join(ended.out.split())
    assert "ov-hsdag place does so by default where all devices are here, ovc and mo do not." in told


def test_patching_again_adds_nothing(ovc: Ovc) -> None:
    converters.patch(ovc_main)
    assert ovc("--help").out.count("placement (ov-hsdag)") == 1


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["--placement", "GPU"], "not a HETERO device list"),
        (["--placement", "HETERO:GPU"], "only one device"),
        (["--placement", "HETERO:GPU,GPU"], "twice"),
        (["--placement", "HETERO:GPU,XPU"], "unknown device"),
        (["--placement", ""], "not a HETERO device list"),
        (["--placement", DEVICE, "--placement_objective", "speed"], "unknown objective 'speed'"),
        (["--placement", DEVICE, "--placement_profile", "none.json"], "cannot read profile none.json"),
        (["--placement", DEVICE, "--placement_profile", "broken.json"], "broken.json"),
        (["--placement", DEVICE, "--output_model", "plain.txt/out.xml"], "cannot write .*Not a directory"),
        (["--placement", DEVICE, "--output_model", "/proc/none/out.xml"], "cannot write '/proc/none/out.xml'"),
        (["--placement_objective", "latency"], "--placement_objective needs --placement"),
        (["--placement_measure"], "--placement_measure needs --placement"),
        (["--placement", "HETERO:CPU_A,NPU", "--placement_measure"], "device NPU is not on this machine"),
        (["--placement_profile", "none.json"], "--placement_profile needs --placement"),
        (["--placement_report", "report.html"], "--placement_report needs --placement"),
        (["--placement", DEVICE, "--placement_report", "report.doc"], "a report is a .html"),
    ],
)
def test_bad_options_end_before_the_conversion(
    ovc: Ovc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], reason: str
) -> None:
    (tmp_path / "plain.txt").write_text("a file")
    (tmp_path / "broken.json").write_text('{"version": 1')

    def convert(*args: object) -> None:
        raise AssertionError("the conversion was started")

    monkeypatch.setattr("openvino.tools.ovc.convert_impl.driver", convert)
    ended = ovc(SQUEEZENET, *arguments)
    assert ended.status == 2
    assert ended.out == ""
    (line,) = ended.err.splitlines()
    assert line.startswith("error: ")
    assert re.search(reason, line)
    assert entries(tmp_path) == {"plain.txt", "broken.json"}


def test_existing_directory_is_a_place_for_the_output(ovc: Ovc, small: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert ovc(small, "--placement", DEVICE, "--output_model", "out").status == 0
    assert entries(tmp_path / "out") == {"small.xml", "small.bin"}


def test_errors_of_the_conversion_stay_ovcs_own(ovc: Ovc, tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    for model in ("missing.onnx", "bad.onnx"):
        ours, theirs = ovc(model, "--placement", DEVICE), ovc(model)
        assert (ours.status, ours.out) == (theirs.status, theirs.out)
        assert ours.status != 0
    assert entries(tmp_path) == {"bad.onnx"}


@pytest.mark.parametrize("kind, status", [("UserError", 2), ("RunError", 1), ("ZeroDivisionError", 1)])
def test_failing_placement_is_one_line_and_leaves_no_file(
    ovc: Ovc, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, status: int
) -> None:
    error = getattr(ov_hsdag.utils.errors, kind, None) or ZeroDivisionError

    def broken(*args: object, **kwargs: object) -> None:
        raise error("operation 'a' of type B\nfails")

    monkeypatch.setattr(converters, "_place", broken)
    ended = ovc(small, "--placement", DEVICE)
    assert ended.status == status
    (line,) = ended.errors
    assert "fails" in line
    assert entries(tmp_path) == set()


@pytest.mark.parametrize("cause", [None, KeyboardInterrupt()])
def test_interrupted_while_placing_is_130_without_a_word(
    ovc: Ovc, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: BaseException | None
) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        if cause is None:
            raise KeyboardInterrupt
        raise ImportError("initialization failed") from cause  # what pybind11 makes of it

    monkeypatch.setattr(converters, "_place", interrupted)
    ended = ovc(small, "--placement", DEVICE)
    assert (ended.status, ended.errors) == (130, [])
    assert "Traceback" not in ended.err
    assert entries(tmp_path) == set()


def test_command_line_in_a_fresh_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OV_HSDAG_VIRTUAL_DEVICES", TWO_CORES)
    monkeypatch.setenv("PYTHONPATH", str(Path(ov_hsdag.__file__).parent.parent))
    run = (sys.executable, "-m", "ov_hsdag")
    options = ("--placement", DEVICE, "--placement_objective=throughput")
    ended(*run, "-m", "openvino.tools.ovc", SQUEEZENET, *options, cwd=tmp_path)
    (tmp_path / "script.py").write_text(
        textwrap.dedent("""
            import openvino as ov
            compiled = ov.Core().compile_model("light_squeezenet.xml", "HETERO:CPU_A,CPU_B")
            print(compiled.get_property("EXECUTION_DEVICES"), compiled.get_property("HETERO_NUMBER_OF_SUBMODELS"))
        """)
    )
    told = ended(*run, "script.py", cwd=tmp_path).stdout
    assert told == f"['CPU_A', 'CPU_B'] {promised(tmp_path / 'light_squeezenet.xml')}\n"
