"""The scripts of tools/upstream/ say of the OpenVINO that we pin what tools/upstream/README.md says of it."""

from __future__ import annotations

import importlib.util
import platform
import re
import sys
from pathlib import Path

import pytest

from tests.processes import ended
from tools.upstream.__main__ import FAULTS, HERE, ROOT, attempt

RIG = ROOT / "tests" / "rig" / "setup"

# What this machine's OpenVINO is not expected to show.
UNTRIED = set() if importlib.util.find_spec("openvino_genai") else {"genai_extensions"}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_there(fault: str) -> None:
    """Where one is mended, what goes around it can go, and tools/upstream/README.md is to say so."""
    if fault.startswith("gpu_"):
        if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
            pytest.skip("the GPU rig is for Linux on x86-64")
        ended(sys.executable, RIG)
    status, text = attempt(fault)
    assert status == (2 if fault in UNTRIED else 0), text


def test_each_fault_has_a_report_and_a_row() -> None:
    text = Path(HERE / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `(\w+)`", text, re.MULTILINE)) == FAULTS
    assert sorted(re.findall(r"upstream[. ](\w+)`", text)) == FAULTS
