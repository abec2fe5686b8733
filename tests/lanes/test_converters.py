"""The converters of the installed OpenVINO, as commands: `ovc`, and `mo` where openvino-dev is installed.

They need the package as users install it, with its .pth file; from sources alone there is nothing to test.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import onnx
import pytest

from tests.conftest import TWO_CORES
from tests.processes import ended

BIN = Path(sys.executable).parent
SQUEEZENET = Path(onnx.__file__).parent / "backend/test/data/light/light_squeezenet.onnx"
DEVICE = "HETERO:CPU_A,CPU_B"
SCRIPT = """
import sys, numpy as np, openvino as ov
compiled = ov.Core().compile_model(sys.argv[1], "HETERO:CPU_A,CPU_B")
assert np.isfinite(compiled([np.ones((1, 3, 224, 224), np.float32)])[0]).all()
print(sorted(compiled.get_property("EXECUTION_DEVICES")), compiled.get_property("HETERO_NUMBER_OF_SUBMODELS"))
"""

CONVERTERS = {
    "ovc": ([str(SQUEEZENET)], lambda path: ["--output_model", str(path)]),
    "mo": (
        ["--input_model", str(SQUEEZENET)],
        lambda path: ["--output_dir", str(path.parent), "--model_name", path.stem],
    ),
}


def installed() -> bool:
    try:
        files = metadata.files("ov-hsdag") or []
    except metadata.PackageNotFoundError:
        return False
    return any(file.name == "ov_hsdag.pth" for file in files)


pytestmark = pytest.mark.skipif(not installed(), reason="ov-hsdag is not installed here")


@pytest.fixture(params=CONVERTERS)
def converter(request: pytest.FixtureRequest) -> str:
    if not (BIN / request.param).exists():
        pytest.skip(f"this OpenVINO has no {request.param}")
    return str(request.param)


def run(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("OV_HSDAG", "PYTHONPATH"))}
    variables |= {"OV_HSDAG_VIRTUAL_DEVICES": TWO_CORES, **environment}
    return ended(*command, status=None, env=variables, timeout=180)


def convert(converter: str, output: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    model, place_of = CONVERTERS[converter]
    return run(BIN / converter, *model, *place_of(output), *options, **environment)


@pytest.mark.slow
@pytest.mark.parametrize("compress", [True, False])
def test_a_converted_model_runs_on_both_devices_in_an_unchanged_script(
    converter: str, tmp_path: Path, compress: bool
) -> None:
    options = ("--placement", DEVICE, "--placement_objective", "throughput", f"--compress_to_fp16={compress}")
    done = convert(converter, tmp_path / "m.xml", *options)
    assert done.returncode == 0, done.stderr
    told = re.search(
        r"placement HETERO:CPU_A,CPU_B \(throughput\): \w+, (\d+) submodels, predicted 1\.\d\dx", done.stdout
    )
    assert told is not None, done.stdout
    assert {path.name for path in tmp_path.iterdir()} >= {"m.xml", "m.bin"}
    size = (tmp_path / "m.bin").stat().st_size
    assert (size < 2.7e6) == compress
    ran = run(sys.executable, "-c", SCRIPT, tmp_path / "m.xml")
    assert ran.stdout == f"['CPU_A', 'CPU_B'] {told[1]}\n", ran.stderr


def test_bad_options_end_with_one_line_and_no_file(converter: str, tmp_path: Path) -> None:
    for device, words in (("HETERO:CPU_A", "only one device"), ("HETERO:XPU,CPU", "unknown device")):
        done = convert(converter, tmp_path / "m.xml", "--placement", device)
        assert done.returncode == 2
        (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert words in line
        assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_the_option_nothing_of_ours_is_in_the_model(converter: str, tmp_path: Path) -> None:
    assert convert(converter, tmp_path / "m.xml").returncode == 0
    assert b"ov_hsdag" not in (tmp_path / "m.xml").read_bytes()
    refused = convert(converter, tmp_path / "n.xml", "--placement", DEVICE, OV_HSDAG_DISABLE="1")
    assert refused.returncode == 2
    assert "unrecognized arguments: --placement" in refused.stderr
