"""Makes three pipelines of several models with random weights, for `benchmarks.field.several_models`.

    PYTHONPATH=. build/llm/env/bin/python -m benchmarks.field.pipelines FOLDER

Models are of classes of transformers. The command needs the environment of tests/llm/run, which has optimum-intel. It
writes whisper.toml (Whisper by optimum-intel), retrieval.toml (a BERT embedder once, a reranker four times, a stateful
Llama) and vision.toml (YOLOS once, a ResNet and a MobileNetV2 four times each), with their models, to FOLDER.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openvino as ov

from research.zoo.models.inputs import Inputs, image, text
from research.zoo.models.recipes import Transformers
from tests.llm.families import export_decoder, export_whisper

_TOKENS = {"vocab_size": 8192, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
_PART = {"layers": 4, "attention_heads": 4, "ffn_dim": 1024}
_WHISPER = {f"{part}_{key}": value for part in ("encoder", "decoder") for key, value in _PART.items()}
_WHISPER |= {**_TOKENS, "d_model": 256}
_TOWER = {"vocab_size": 8192, "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6}
_LLAMA = {**_TOWER, "intermediate_size": 1024, "num_key_value_heads": 2}
_BERT = {**_TOWER, "intermediate_size": 1536}
_YOLOS: dict[str, Any] = {**_BERT, "image_size": [224, 224], "num_detection_tokens": 50}
_RESNET = {"embedding_size": 32, "hidden_sizes": [32, 64, 128, 256], "depths": [2, 2, 2, 2], "layer_type": "basic"}

_OTHERS: dict[str, tuple[Transformers, Inputs]] = {
    "embedder": (Transformers("BertModel", _BERT), text(64, 8192)),
    "reranker": (Transformers("BertForSequenceClassification", {**_BERT, "num_labels": 1}, "logits"), text(128, 8192)),
    "detector": (Transformers("YolosForObjectDetection", _YOLOS, ("logits", "pred_boxes")), image(224)),
    "resnet": (Transformers("ResNetForImageClassification", _RESNET, "logits"), image(160)),
    "mobilenet": (Transformers("MobileNetV2ForImageClassification", {}, "logits"), image(160)),
}

APPLICATIONS = {
    "whisper": """\
whisper = {path = "whisper", shape = "input_features=[1,80,3000]", workload = "prompt=4,generate=64"}
""",
    "retrieval": """\
embedder = {path = "embedder.xml"}
reranker = {path = "reranker.xml", count = 4, after = ["embedder"]}
decoder = {path = "llama", after = ["reranker"], workload = "prompt=192,generate=32"}
""",
    "vision": """\
detector = {path = "detector.xml"}
resnet = {path = "resnet.xml", count = 4, after = ["detector"]}
mobilenet = {path = "mobilenet.xml", count = 4, after = ["detector"]}
""",
}
"""The text of the section [models] in each application's file."""


def exported(export: Callable[[Any, str, Path], None], config: Any, folder: Path) -> None:
    """Exports a model of random weights with optimum-intel.

    Args:
        export: function of tests.llm.families: configuration, temporary folder, folder of the IR.
        config: configuration of transformers.
        folder: folder of the IR.
    """
    with tempfile.TemporaryDirectory() as source:
        export(config, source, folder)


def main(path: str) -> int:
    """Writes the models and applications. path: the folder."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # else optimum-intel asks the hub for minutes where there is no network
    import torch
    import transformers

    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    exported(export_whisper, transformers.WhisperConfig(**_WHISPER), folder / "whisper")
    exported(export_decoder, transformers.LlamaConfig(**_LLAMA), folder / "llama")
    for name, (recipe, inputs) in _OTHERS.items():
        ov.save_model(recipe.convert(inputs, 0), folder / f"{name}.xml", compress_to_fp16=False)
    for name, written in APPLICATIONS.items():
        (folder / f"{name}.toml").write_text(f"[models]\n{written}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
