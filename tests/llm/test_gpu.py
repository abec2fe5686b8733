"""Decoders between a GPU and a CPU, and between two GPUs: OpenVINO's GPU plugin without a GPU (tests/rig)."""

from __future__ import annotations

import shutil
from pathlib import Path

import openvino as ov
import pytest

from tests.llm import rig
from tests.llm.families import LAYERS, model_file
from tests.llm.test_pipelines import generated, submodels
from tests.llm.test_place import split

pytestmark = pytest.mark.skipif(not rig.IS_POSSIBLE, reason="the GPU rig needs Linux on x86-64")

# Half a minute each; --family names others.
FAMILIES = ("llama", "gemma2", "gptneox", "falcon", "bloom", "mixtral", "lfm2", "mamba", "whisper")
# With four experts of which two are chosen, GPU and CPU alone are 4e-3 apart.
FURTHER_APART = {"mixtral": 1e-2}


def test_every_boundary_between_layers_can_be_cut_between_gpu_and_cpu(
    family: str, request: pytest.FixtureRequest
) -> None:
    if family not in FAMILIES and not request.config.getoption("--family"):
        pytest.skip("takes half a minute: --family names it")
    found = rig.in_rig(model_file(family))
    assert len(found.boundaries) == len(found.good) == LAYERS - 1, found
    assert found.difference <= FURTHER_APART.get(family, 1e-3), found


@pytest.mark.parametrize("backend", ["SDPA", ""])
@pytest.mark.parametrize(("device", "gpus"), [("HETERO:GPU,CPU", "1"), ("HETERO:GPU.0,GPU.1", "2")])
def test_genai_generates_the_tokens_of_one_device(
    core: ov.Core, device: str, gpus: str, backend: str, tmp_path: Path
) -> None:
    """With its default, too: the plugin has no kernel for paged attention here, and genai goes on with SDPA."""
    rig.make()
    source, target = model_file("llama"), tmp_path / "placed"
    shutil.copytree(source.parent, target)
    ov.save_model(split(core.read_model(source), core, device), target / source.name, compress_to_fp16=False)
    command = [rig.RIG / "run"]
    split_up = generated(target, device, backend, tmp_path / "cache", command=command, OV_HSDAG_RIG_GPUS=gpus)
    assert split_up == generated(target, "CPU", "SDPA", tmp_path / "none")
    assert submodels(tmp_path / "cache") == 2
