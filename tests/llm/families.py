"""Tiny decoders with random weights as optimum-intel exports them, one of each family, with a tokenizer.

    python -m tests.llm.families FOLDER [NAME …]

writes FOLDER/NAME/openvino_model.xml and what belongs to it, unless it is there. Names that need a later transformers
are left out, with a line. Others that cannot be exported end the program with status 1, after the rest.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from importlib.metadata import version
from pathlib import Path
from typing import Any

VOCABULARY = 512
LAYERS = 6
IMAGE = "<image>"

_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
_TOKENS = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

# Class of the configuration in transformers, and what it has besides the sizes above.
_LIKE_LLAMA: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "mistral": ("MistralConfig", {"sliding_window": 32}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4}),
    "qwen2moe": (
        "Qwen2MoeConfig",
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 64,
        },
    ),
    "gemma2": ("Gemma2Config", {"head_dim": 16, "sliding_window": 32}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 16, "sliding_window": 32}),
    "phi3": ("Phi3Config", {}),
    "olmo2": ("Olmo2Config", {}),
    "granite": ("GraniteConfig", {}),
    "stablelm": ("StableLmConfig", {}),
    "gptneox": ("GPTNeoXConfig", {}),
    # Attention in every third layer, a short convolution in the others.
    "lfm2": ("Lfm2Config", {"layer_types": ["conv", "conv", "full_attention"] * (LAYERS // 3), "block_ff_dim": 128}),
    # Attention in every third layer, a state-space model in the others, experts in all.
    "granitemoehybrid": (
        "GraniteMoeHybridConfig",
        {
            "layer_types": ["mamba", "mamba", "attention"] * (LAYERS // 3),
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 64,
            "mamba_n_heads": 4,
            "mamba_d_head": 32,
            "mamba_n_groups": 1,
            "mamba_d_state": 16,
            "mamba_chunk_size": 16,
        },
    ),
}
# What optimum-intel 2.2 exports with a later transformers than tests/llm/constraints.txt has, and not before.
_SINCE = {"granitemoehybrid": (5, 5)}
_OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", {"n_embd": 64, "n_layer": LAYERS, "n_head": 4, "n_positions": 512}),
    "opt": (
        "OPTConfig",
        {
            "hidden_size": 64,
            "ffn_dim": 128,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 4,
            "max_position_embeddings": 512,
            "word_embed_proj_dim": 64,
        },
    ),
    "bloom": ("BloomConfig", {"hidden_size": 64, "n_layer": LAYERS, "n_head": 4}),
    "falcon": ("FalconConfig", {"hidden_size": 64, "num_hidden_layers": LAYERS, "num_attention_heads": 4}),
    "mpt": ("MptConfig", {"d_model": 64, "n_layers": LAYERS, "n_heads": 4, "max_seq_len": 512}),
    "mamba": ("MambaConfig", {"hidden_size": 64, "num_hidden_layers": LAYERS}),
    "whisper": (
        "WhisperConfig",
        {
            "d_model": 64,
            "encoder_layers": 2,
            "decoder_layers": LAYERS,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 128,
            "decoder_ffn_dim": 128,
            "max_source_positions": 1500,
            "max_target_positions": 256,
            "num_mel_bins": 80,
            "decoder_start_token_id": 1,
        },
    ),
}

NAMES = (*_LIKE_LLAMA, *_OTHERS, "llava")

TEXT_ONLY = tuple(name for name in NAMES if name not in ("whisper", "llava"))
"""Those that openvino.genai's LLMPipeline and OVModelForCausalLM load."""

_FILES = {"whisper": "openvino_decoder_model.xml", "llava": "openvino_language_model.xml"}


def folder_of_models() -> Path:
    """Returns the folder of the exports: the variable OV_HSDAG_LLM_MODELS, or else build/llm/models."""
    return Path(os.environ.get("OV_HSDAG_LLM_MODELS", "build/llm/models"))


def model_file(name: str) -> Path:
    """Returns the path of a family's exported decoder, whether or not it is there."""
    return folder_of_models() / name / _FILES.get(name, "openvino_model.xml")


def export(name: str, folder: Path) -> None:
    """Exports the model of a family, its tokenizer and its detokenizer, as `optimum-cli export openvino` does.

    Args:
        name: the family, one of `NAMES`.
        folder: the folder to write.
    """
    import openvino as ov
    import torch
    import transformers
    from openvino_tokenizers import convert_tokenizer

    torch.manual_seed(0)
    transformers.utils.logging.disable_progress_bar()
    tokenizer = _tokenizer()
    with tempfile.TemporaryDirectory() as source:
        tokenizer.save_pretrained(source)
        if name == "llava":
            _export_llava(tokenizer, source, folder)
        else:
            kind, sizes = _LIKE_LLAMA.get(name) or _OTHERS[name]
            common = {**_SIZES, **_TOKENS} if name in _LIKE_LLAMA else _TOKENS
            config = getattr(transformers, kind)(**{**common, **sizes})
            (export_whisper if name == "whisper" else export_decoder)(config, source, folder)
    tokenizer.save_pretrained(folder)
    for model, file in zip(
        convert_tokenizer(tokenizer, with_detokenizer=True), ("tokenizer", "detokenizer"), strict=True
    ):
        ov.save_model(model, folder / f"openvino_{file}.xml")


def export_decoder(config: Any, source: str, folder: Path) -> None:
    """Makes a language model with random weights and exports it.

    Args:
        config: configuration of transformers.
        source: a folder for the weights on the way.
        folder: the folder to write.
    """
    from optimum.intel import OVModelForCausalLM
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_config(config).save_pretrained(source)
    OVModelForCausalLM.from_pretrained(source, export=True, compile=False).save_pretrained(folder)


def export_whisper(config: Any, source: str, folder: Path) -> None:
    """Does for a Whisper what `export_decoder` does for a language model."""
    from optimum.intel import OVModelForSpeechSeq2Seq
    from transformers import WhisperForConditionalGeneration

    WhisperForConditionalGeneration(config).save_pretrained(source)
    OVModelForSpeechSeq2Seq.from_pretrained(source, export=True, compile=False).save_pretrained(folder)


def _export_llava(tokenizer: Any, source: str, folder: Path) -> None:
    """Exports a Llama that sees pictures of 32 x 32 pixels as 16 tokens, and its processor.

    Args:
        tokenizer: the tokenizer, which gets the token `IMAGE`.
        source: a folder for the weights on the way.
        folder: the folder to write.
    """
    import transformers
    from optimum.intel import OVModelForVisualCausalLM

    tokenizer.add_special_tokens({"additional_special_tokens": [IMAGE]})
    image = tokenizer.convert_tokens_to_ids(IMAGE)
    text = transformers.LlamaConfig(**{**_SIZES, **_TOKENS, "vocab_size": VOCABULARY + 8})
    vision = transformers.CLIPVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=8
    )
    config = transformers.LlavaConfig(
        text_config=text, vision_config=vision, image_token_index=image, vision_feature_layer=-1, image_seq_length=16
    )
    processor = transformers.LlavaProcessor(
        transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}),
        tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        image_token=IMAGE,
        num_additional_image_tokens=1,
    )
    transformers.LlavaForConditionalGeneration(config).save_pretrained(source)
    processor.save_pretrained(source)
    OVModelForVisualCausalLM.from_pretrained(source, export=True, compile=False).save_pretrained(folder)
    processor.save_pretrained(folder)


def _tokenizer() -> Any:
    """Trains a tokenizer on two sentences; its tokens are bytes and the most frequent pairs of tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sentences = ["The quick brown fox jumps over the lazy dog.", "A model may run on several devices at once."]
    made.train_from_iterator(sentences, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="<pad>", clean_up_tokenization_spaces=False
    )


def _installed_transformers() -> tuple[int, int]:
    """Returns the first two numbers of the release of transformers."""
    major, minor = version("transformers").split(".")[:2]
    return int(major), int(minor)


def main(folder: str, *names: str) -> int:
    """Exports families that are not exported yet, see the module's docstring.

    Args:
        folder: folder that gets a folder for each family.
        names: the families; all where none is named.

    Returns:
        The number of families that failed.
    """
    failed = 0
    for name in names or NAMES:
        done = Path(folder) / name / "exported"
        if done.exists():
            continue
        if _installed_transformers() < _SINCE.get(name, (0, 0)):
            print(f"{name}: left out, as it needs transformers {'.'.join(map(str, _SINCE[name]))}", file=sys.stderr)
            continue
        try:
            export(name, done.parent)
        except Exception:
            traceback.print_exc()
            print(f"{name}: not exported", file=sys.stderr)
            failed += 1
        else:
            done.touch()
    return failed


if __name__ == "__main__":
    sys.exit(1 if main(*sys.argv[1:]) else 0)
