"""optimum-intel and openvino.genai, unmodified, on folders whose model was placed: tokens of one device."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openvino as ov
import pytest

import ov_hsdag
from ov_hsdag.placing.placement_cache import FOLDER_VARIABLE
from tests.llm.families import TEXT_ONLY, model_file
from tests.llm.test_place import DEVICE, split
from tests.processes import ended

PROMPT = "The quick brown fox"


@pytest.fixture
def folder(core: ov.Core, family: str, tmp_path: Path) -> Path:
    """The export with a placement on two devices in its model."""
    if family not in TEXT_ONLY:
        pytest.skip("no causal language model")
    target = tmp_path / "placed"
    shutil.copytree(model_file(family).parent, target)
    model = split(core.read_model(model_file(family)), core)
    ov.save_model(model, target / "openvino_model.xml", compress_to_fp16=False)
    return target


def encoded(folder: Path) -> dict[str, Any]:
    """Two prompts as inputs of `generate`, by the tokenizer of a folder."""
    from transformers import AutoTokenizer

    inputs = AutoTokenizer.from_pretrained(folder)([PROMPT, PROMPT[:9] * 2], return_tensors="pt", padding=True)
    return {name: value for name, value in inputs.items() if name != "token_type_ids"}


def test_optimum_generates_the_tokens_of_one_device(folder: Path) -> None:
    from optimum.intel import OVModelForCausalLM

    inputs = encoded(folder)
    found: dict[str, list[Any]] = {}
    for device in ("CPU_A", DEVICE):
        model = OVModelForCausalLM.from_pretrained(folder, device=device)
        found[device] = [
            model.generate(**inputs, max_new_tokens=12, min_new_tokens=12, do_sample=False, num_beams=beams).tolist()
            for beams in (1, 3)
        ]
    assert model.request.get_compiled_model().get_property("HETERO_NUMBER_OF_SUBMODELS") > 1
    assert found[DEVICE] == found["CPU_A"]


def test_optimum_generates_the_tokens_of_one_device_by_the_device_name(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export that nobody placed, for which throughput asks for both devices."""
    if family not in TEXT_ONLY:
        pytest.skip("no causal language model")
    from optimum.intel import OVModelForCausalLM

    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    export = model_file(family).parent
    inputs = encoded(export)
    tokens: dict[str, list[Any]] = {}
    for device in ("CPU_A", "HSDAG:CPU_A,CPU_B"):
        config = {"PERFORMANCE_HINT": "THROUGHPUT"} if device.startswith("HSDAG") else {}
        model = OVModelForCausalLM.from_pretrained(export, device=device, ov_config=config)
        tokens[device] = model.generate(**inputs, max_new_tokens=12, min_new_tokens=12, do_sample=False).tolist()
    assert model.request.get_compiled_model().get_property("HETERO_NUMBER_OF_SUBMODELS") > 1
    assert tokens["HSDAG:CPU_A,CPU_B"] == tokens["CPU_A"]


# A process of its own: openvino.genai has a Core in C++, which gets its devices from plugins.xml beside OpenVINO's
# libraries (tests/llm/run writes it) and knows nothing of Python's hook.
GENAI = """
    import json, sys
    import openvino_genai as genai
    folder, device, extension, cache, backend, prompt = sys.argv[1:]
    more = {"ATTENTION_BACKEND": backend} if backend else {}
    if device.startswith("HETERO"):
        more |= {"extensions": [extension], "CACHE_DIR": cache}
    more["INFERENCE_PRECISION_HINT" if "GPU" in device else "KV_CACHE_PRECISION"] = "f32" if "GPU" in device else "f16"
    pipe = genai.LLMPipeline(folder, device, **json.loads(json.dumps(more)))  # as servers have it in a file
    found = []
    for beams in (1, 3):
        config = genai.GenerationConfig(max_new_tokens=12, min_new_tokens=12, num_beams=beams, do_sample=False)
        if beams > 1:
            config.num_beam_groups, config.num_return_sequences = 1, 1
        found.append([list(map(int, one)) for one in pipe.generate(pipe.get_tokenizer().encode(prompt), config).tokens])
    print(json.dumps(found))
"""


def generated(folder: Path, device: str, backend: str, cache: Path, **more: Any) -> list[Any]:
    """Tokens by greedy and by beam search."""
    if "position_ids" not in (folder / "openvino_model.xml").read_text(encoding="utf-8"):
        pytest.skip("openvino.genai gives positions to every model, and this one takes none")
    found: list[Any] = json.loads(run(GENAI, folder, device, cache, backend, PROMPT, **more))
    return found


def run(program: str, folder: Path, device: str, *more: object, command: Sequence[Path] = (), **variables: str) -> str:
    """The last line that a program prints which gets folder, device, the extension library and more as arguments.

    By way of a command, with further variables of the environment.
    """
    words = (*command, sys.executable, "-c", textwrap.dedent(program), folder, device, ov_hsdag.extension_path(), *more)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OV_HSDAG_VIRTUAL")}
    return ended(*words, env=environment | variables).stdout.splitlines()[-1]


def submodels(cache: Path, every: bool = False) -> int:
    """Of the HETERO model in a cache, whose blob begins with a list of them. Every: of the one that has fewest."""
    found = [path.read_bytes().count(b"<compiled_submodel ") for path in cache.glob("*.blob")]
    return min(one for one in found if one) if every else max(found)


def test_genai_follows_the_placement_with_sdpa(folder: Path, tmp_path: Path) -> None:
    split_up = generated(folder, DEVICE, "SDPA", tmp_path / "cache")
    assert split_up == generated(folder, "CPU_A", "SDPA", tmp_path / "none")
    assert submodels(tmp_path / "cache") > 1


def test_genai_follows_the_placement_with_its_default(folder: Path, tmp_path: Path) -> None:
    """It changes the model for its own backend, which takes one CPU alone; what it goes on with is split as well."""
    split_up = generated(folder, DEVICE, "", tmp_path / "cache")
    assert split_up == generated(folder, "CPU_A", "", tmp_path / "none")
    assert submodels(tmp_path / "cache", every=True) > 1
