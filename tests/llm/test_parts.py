"""Models of several parts in optimum-intel and openvino.genai, unmodified: the decoder alone is placed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from typer.testing import CliRunner

from ov_hsdag.cli.app import app
from ov_hsdag.model.placement import Placement
from tests.llm.families import IMAGE, model_file
from tests.llm.test_pipelines import run, submodels
from tests.llm.test_place import DEVICE, split

How = Callable[[ov.Core, str, Path], Path]


def placed(core: ov.Core, family: str, target: Path) -> Path:
    """The export with a placement on two devices in its decoder."""
    source = model_file(family)
    if not source.exists():
        pytest.skip(f"{family} was not exported")
    shutil.copytree(source.parent, target)
    ov.save_model(split(core.read_model(source), core), target / source.name, compress_to_fp16=False)
    return target


def planned(core: ov.Core, family: str, target: Path) -> Path:
    """The export with all models of its pipeline placed together."""
    source = model_file(family)
    if not source.exists():
        pytest.skip(f"{family} was not exported")
    command = ["place", str(source.parent), "--together", "--device", DEVICE, "--no-measure", "--output", str(target)]
    done = CliRunner().invoke(app, [*command, "--objective", "throughput", "--workload", "prompt=4,generate=12"])
    assert done.exit_code == 0, done.output
    placements = [Placement.of(core.read_model(path)) for path in target.glob("openvino_*coder_model.xml")]
    used = {device for one in placements if one is not None for device in one.used()}
    assert len(placements) > 1 and None not in placements and used == {"CPU_A", "CPU_B"}
    return target


BOTH = pytest.mark.parametrize("how", [placed, planned])


def generated(model: Any, inputs: dict[str, Any]) -> list[Any]:
    """Tokens by greedy and by beam search."""
    return [
        model.generate(**inputs, max_new_tokens=12, min_new_tokens=12, do_sample=False, num_beams=beams).tolist()
        for beams in (1, 3)
    ]


@BOTH
def test_speech_to_text_generates_the_tokens_of_one_device(core: ov.Core, how: How, tmp_path: Path) -> None:
    import torch
    from optimum.intel import OVModelForSpeechSeq2Seq

    folder = how(core, "whisper", tmp_path / "placed")
    features = np.random.default_rng(0).standard_normal((2, 80, 3000)).astype(np.float32)
    found = {}
    for device in ("CPU_A", DEVICE):
        model = OVModelForSpeechSeq2Seq.from_pretrained(folder, device=device)
        found[device] = generated(model, {"input_features": torch.from_numpy(features)})
    if how is placed:
        assert model.decoder.request.get_compiled_model().get_property("HETERO_NUMBER_OF_SUBMODELS") == 2
    assert found[DEVICE] == found["CPU_A"]


def test_pictures_and_text_generate_the_tokens_of_one_device(core: ov.Core, tmp_path: Path) -> None:
    from optimum.intel import OVModelForVisualCausalLM
    from PIL import Image
    from transformers import AutoProcessor

    folder = placed(core, "llava", tmp_path / "placed")
    pixels = np.random.default_rng(0).integers(0, 256, (40, 48, 3), dtype=np.uint8)
    inputs = AutoProcessor.from_pretrained(folder)(
        images=Image.fromarray(pixels), text=f"{IMAGE} The quick brown fox", return_tensors="pt"
    )
    inputs.pop("token_type_ids", None)
    found = {}
    for device in ("CPU_A", DEVICE):
        model = OVModelForVisualCausalLM.from_pretrained(folder, device=device)
        found[device] = generated(model, dict(inputs))
    compiled = model.language_model.request.get_compiled_model()
    assert compiled.get_property("HETERO_NUMBER_OF_SUBMODELS") == 2
    assert found[DEVICE] == found["CPU_A"]


# In processes of their own, as in test_pipelines.py. A WhisperPipeline takes no extensions. All pipelines of a process
# have one Core, and an LLMPipeline gives them to it before it misses its model in the folder.
SPEECH = """
    import sys
    import numpy as np
    import openvino_genai as genai
    folder, device, extension, cache = sys.argv[1:]
    try:
        genai.LLMPipeline(folder, "CPU_A", extensions=[extension])
    except RuntimeError as error:
        assert "find a model in the directory" in str(error), error
    more = {"CACHE_DIR": cache} if device.startswith("HETERO") else {}
    pipe = genai.WhisperPipeline(folder, device, KV_CACHE_PRECISION="f16", **more)
    config = pipe.get_generation_config()
    config.max_new_tokens = config.min_new_tokens = 12
    speech = np.random.default_rng(0).standard_normal(32000).astype(np.float32)
    print(ascii(pipe.generate(speech, config).texts))
"""

PICTURES = """
    import sys
    import numpy as np
    import openvino as ov
    import openvino_genai as genai
    folder, device, extension, cache, backend = sys.argv[1:]
    more = {"ATTENTION_BACKEND": backend} if backend else {}
    if device.startswith("HETERO"):
        more |= {"extensions": [extension], "CACHE_DIR": cache}
    pipe = genai.VLMPipeline(folder, device, KV_CACHE_PRECISION="f16", **more)
    config = genai.GenerationConfig(max_new_tokens=12, min_new_tokens=12, do_sample=False, apply_chat_template=False)
    picture = ov.Tensor(np.random.default_rng(0).integers(0, 256, (1, 32, 32, 3), dtype=np.uint8))
    print(ascii(pipe.generate("The quick brown fox", images=[picture], generation_config=config).texts))
"""


@BOTH
def test_genai_turns_speech_to_the_text_of_one_device(core: ov.Core, how: How, tmp_path: Path) -> None:
    from transformers import WhisperFeatureExtractor

    folder = how(core, "whisper", tmp_path / "placed")
    WhisperFeatureExtractor().save_pretrained(folder)
    file = folder / "generation_config.json"
    config = json.loads(file.read_text(encoding="utf-8")) | {"is_multilingual": False, "no_timestamps_token_id": 3}
    file.write_text(json.dumps(config | {"begin_suppress_tokens": [], "suppress_tokens": []}), encoding="utf-8")
    found = [run(SPEECH, folder, device, tmp_path / "cache") for device in ("CPU_A", DEVICE)]
    assert found[0] == found[1] and len(found[0]) > 12
    assert how is planned or submodels(tmp_path / "cache") == 2


@pytest.mark.parametrize("backend", ["SDPA", ""])
def test_genai_tells_of_pictures_what_one_device_tells(core: ov.Core, backend: str, tmp_path: Path) -> None:
    folder = placed(core, "llava", tmp_path / "placed")
    processor = json.loads((folder / "processor_config.json").read_text(encoding="utf-8"))
    (folder / "preprocessor_config.json").write_text(json.dumps(processor["image_processor"]), encoding="utf-8")
    found = [run(PICTURES, folder, device, tmp_path / "cache", backend) for device in ("CPU_A", DEVICE)]
    assert found[0] == found[1] and len(found[0]) > 4
    assert submodels(tmp_path / "cache") == 2
