"""The sample notebook, run from its top to its end in a kernel of its own."""

from __future__ import annotations

import os
from pathlib import Path

import nbclient
import nbformat
import pytest

from tests.commands import PACKAGE


@pytest.mark.slow
def test_the_notebook_places_compiles_and_verifies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OV_HSDAG_VIRTUAL_DEVICES", raising=False)  # it makes its own
    for name in ("TMPDIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([PACKAGE, os.environ.get("PYTHONPATH", "")]))
    path = Path(__file__).resolve().parent.parent / "samples/python/placing.ipynb"
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(path.parent)}}).execute()
    _, _, placed, compiled, verified = (str(cell.outputs) for cell in notebook.cells if cell.cell_type == "code")
    assert "HETERO:CPU_A,CPU_B (throughput)" in placed and "<img" in placed
    assert "CPU_A" in compiled and "CPU_B" in compiled and "not known" not in compiled
    assert "outputs agree" in verified and "NOT VERIFIED" not in verified
