"""The samples that use optimum-intel, on folders that `ov-hsdag` placed: what they print is what one device gives."""

from __future__ import annotations

import sys
import wave
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
import torch
from optimum.intel import OVModelForFeatureExtraction, OVModelForSequenceClassification
from transformers import BertConfig, BertForSequenceClassification, BertModel, WhisperFeatureExtractor
from typer.testing import CliRunner

from ov_hsdag.applications.plan import Plan
from ov_hsdag.cli.app import app
from tests.llm.families import VOCABULARY, _tokenizer, model_file
from tests.llm.test_parts import planned
from tests.llm.test_place import DEVICE
from tests.processes import ended

SAMPLES = Path(__file__).resolve().parents[2] / "samples" / "python"


def same_lines(sample: str, folder: Path, *more: object) -> list[str]:
    """What it prints on both devices, as on one, but for the last line, which has the rate."""
    found = {}
    for device in (DEVICE, "CPU_A"):
        *found[device], rate = ended(sys.executable, SAMPLES / sample, folder, device, *more).stdout.splitlines()
        assert rate.endswith(f"per second on {device}")
    assert found[DEVICE] == found["CPU_A"]
    return found[DEVICE]


def test_transcription(core: ov.Core, tmp_path: Path) -> None:
    folder = planned(core, "whisper", tmp_path / "placed")
    WhisperFeatureExtractor().save_pretrained(folder)
    recordings = [str(tmp_path / f"{number}.wav") for number in range(3)]
    for number, path in enumerate(recordings):
        with wave.open(path, "wb") as file:
            file.setparams((1, 2, 16000, 0, "NONE", ""))
            file.writeframes(np.random.default_rng(number).normal(0, 3000, 16000).astype(np.int16).tobytes())
    lines = same_lines("transcription.py", folder, *recordings, "--tokens", 12)
    assert [line.partition(": ")[0] for line in lines] == recordings and not any(line.endswith("''") for line in lines)


def test_retrieval(tmp_path: Path) -> None:
    if not model_file("llama").exists():
        pytest.skip("llama was not exported")
    torch.manual_seed(0)
    config = BertConfig(VOCABULARY, 64, 3, 4, 128, num_labels=1)
    for name, kind, loaded in (
        ("embedder", BertModel, OVModelForFeatureExtraction),
        ("reranker", BertForSequenceClassification, OVModelForSequenceClassification),
    ):
        kind(config).save_pretrained(tmp_path / f"{name}_source")
        loaded.from_pretrained(tmp_path / f"{name}_source", export=True, compile=False).save_pretrained(tmp_path / name)
        _tokenizer().save_pretrained(tmp_path / name)
    (tmp_path / "app.toml").write_text(
        f'device = "{DEVICE}"\nmodels.embedder.path = "embedder"\nmodels.reranker.path = "reranker"\n'
        f'models.decoder.path = "{model_file("llama").parent.absolute()}"\n'
    )
    done = CliRunner().invoke(app, ["plan", str(tmp_path / "app.toml"), "--no-measure", "-o", str(tmp_path / "placed")])
    assert done.exit_code == 0, done.output
    plan = Plan.load(tmp_path / "placed/plan.json")
    assert {device for one in plan.models.values() for device in one.devices} == {"CPU_A", "CPU_B"}
    (tmp_path / "passages.txt").write_text("The fox is brown.\nThe dog is lazy.\nA model runs on several devices.\n")
    given = (tmp_path / "passages.txt", "Who jumps?", "Where does a model run?", "--tokens", 8)
    lines = same_lines("retrieval.py", tmp_path / "placed", *given)
    assert len(lines) == 2 and lines[0].startswith("'Who jumps?': ") and lines[0] != lines[1]
