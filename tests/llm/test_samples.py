"""The samples that use optimum-intel, on folders that `ov-hsdag` placed: what they print is what one device gives."""

from __future__ import annotations

import sys
import wave
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from typer.testing import CliRunner

from ov_hsdag.cli.app import app
from ov_hsdag.placing.plan import Plan
from tests.llm.families import VOCABULARY, _tokenizer, model_file
from tests.llm.test_parts import planned
from tests.llm.test_place import DEVICE
from tests.processes import ended

SAMPLES = Path(__file__).resolve().parents[2] / "samples" / "python"


def printed(sample: str, folder: Path, device: str, *more: object) -> list[str]:
    """Its lines but the last, which has the rate."""
    *lines, rate = ended(sys.executable, SAMPLES / sample, folder, device, *more).stdout.splitlines()
    assert rate.endswith(f"per second on {device}")
    return lines


def test_transcription(core: ov.Core, tmp_path: Path) -> None:
    from transformers import WhisperFeatureExtractor

    folder = planned(core, "whisper", tmp_path / "placed")
    WhisperFeatureExtractor().save_pretrained(folder)
    recordings = [tmp_path / f"{number}.wav" for number in range(3)]
    for number, path in enumerate(recordings):
        noise = np.random.default_rng(number).normal(0, 3000, 16000 * (number + 1)).astype(np.int16)
        with wave.open(str(path), "wb") as file:
            file.setparams((1, 2, 16000, 0, "NONE", ""))
            file.writeframes(noise.tobytes())
    lines = printed("transcription.py", folder, DEVICE, *recordings, "--tokens", 12)
    assert [line.partition(": ")[0] for line in lines] == [path.name for path in recordings]
    assert all(len(line) > len("0.wav: ''") for line in lines)
    assert lines == printed("transcription.py", folder, "CPU_A", *recordings, "--tokens", 12)


def test_retrieval(tmp_path: Path) -> None:
    import torch
    from optimum.intel import OVModelForFeatureExtraction, OVModelForSequenceClassification
    from transformers import BertConfig, BertForSequenceClassification, BertModel

    if not model_file("llama").exists():
        pytest.skip("llama was not exported")
    torch.manual_seed(0)
    size = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 128}
    config = BertConfig(vocab_size=VOCABULARY, num_labels=1, **size)
    for name, kind, loaded in (
        ("embedder", BertModel, OVModelForFeatureExtraction),
        ("reranker", BertForSequenceClassification, OVModelForSequenceClassification),
    ):
        kind(config).save_pretrained(tmp_path / f"{name}_source")
        loaded.from_pretrained(tmp_path / f"{name}_source", export=True, compile=False).save_pretrained(tmp_path / name)
        _tokenizer().save_pretrained(tmp_path / name)
    llama = model_file("llama").parent.absolute()
    (tmp_path / "app.toml").write_text(
        f"""device = "{DEVICE}"
        models.embedder.path = "embedder"
        models.reranker = {{path = "reranker", after = ["embedder"]}}
        models.decoder = {{path = "{llama}", after = ["reranker"], workload = "prompt=32,generate=8"}}
        """
    )
    done = CliRunner().invoke(app, ["plan", str(tmp_path / "app.toml"), "--no-measure", "-o", str(tmp_path / "placed")])
    assert done.exit_code == 0, done.output
    plan = Plan.load(tmp_path / "placed/plan.json")
    assert {device for one in plan.models.values() for device in one.devices} == {"CPU_A", "CPU_B"}
    (tmp_path / "passages.txt").write_text("The fox is brown.\nThe dog is lazy.\nA model runs on several devices.\n")
    given = (tmp_path / "passages.txt", "Who jumps?", "Where does a model run?", "--tokens", 8, "--best", 2)
    lines = printed("retrieval.py", tmp_path / "placed", DEVICE, *given)
    assert len(lines) == 2 and lines[0].startswith("'Who jumps?': ") and lines[0] != lines[1]
    assert lines == printed("retrieval.py", tmp_path / "placed", "CPU_A", *given)
