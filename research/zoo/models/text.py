"""Text: encoders, decoders, encoder-decoders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from research.zoo.models.base import ZooModel, model
from research.zoo.models.inputs import Input, Inputs, dynamic_text, inputs, text
from research.zoo.models.recipes import Torch, Transformers

_VOCABULARY = 500  # different tokens of small models
_TEXT = text(32, _VOCABULARY)
_DYNAMIC = dynamic_text(_VOCABULARY)

_ENCODER = {
    "vocab_size": _VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 128,
}
_DECODER = {**_ENCODER, "num_key_value_heads": 2, "use_cache": False, "pad_token_id": 0}
_T5 = {
    "vocab_size": _VOCABULARY,
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 128,
    "num_layers": 3,
    "num_heads": 4,
    "dropout_rate": 0.0,
}
_BART = {
    "vocab_size": _VOCABULARY,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "max_position_embeddings": 128,
}
_TRANSLATION = inputs(
    Input("input_ids", (1, 24), "tokens", _VOCABULARY, 3),
    Input("attention_mask", (1, 24), "mask"),
    Input("decoder_input_ids", (1, 8), "tokens", _VOCABULARY, 3),
)


def _encoder(
    name: str, family: str, cls: str, model_inputs: Inputs = _TEXT, base: Mapping[str, Any] = _ENCODER, **config: Any
) -> ZooModel:
    return model(name, family, Transformers(cls, {**base, **config}), model_inputs)


def _decoder(name: str, family: str, cls: str, config: Mapping[str, Any] | None = None, **more: Any) -> ZooModel:
    recipe = Transformers(
        cls, {**(_DECODER if config is None else config), **more}, "logits", call={"use_cache": False}
    )
    return model(name, family, recipe, text(24, _VOCABULARY))


def _translator(name: str, family: str, cls: str, **config: Any) -> ZooModel:
    recipe = Transformers(cls, {**_BART, **config}, "logits", call={"use_cache": False})
    return model(name, family, recipe, _TRANSLATION)


def _past(layers: int, heads: int, size: int, past: int, *, stateful: bool) -> Inputs:
    """Inputs of a decoder's step: a token, and keys and values of earlier tokens, as states if `stateful` is true."""
    names = [f"past_{layer}_{kind}" for layer in range(layers) for kind in ("key", "value")]
    shape: tuple[int | str, ...] = (1, heads, "past", size)
    states = tuple(Input(name, shape, state=1 + index if stateful else None) for index, name in enumerate(names))
    token = Input("input_ids", (1, 1), "tokens", _VOCABULARY, 3)
    return inputs(token, *states, sizes=({"past": past}, {"past": past + 7}))


_GPT2_STEP = Torch(
    "DecoderStep",
    {
        "model": "GPT2LMHeadModel",
        "config": {"vocab_size": _VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128},
    },
)
_LLAMA_STEP = Torch(
    "DecoderStep", {"model": "LlamaForCausalLM", "config": {**_DECODER, "num_hidden_layers": 2, "use_cache": True}}
)

MODELS: tuple[ZooModel, ...] = (
    # Real sizes
    model("bert-base", "bert", Transformers("BertModel", {}), text(128, 30522), "full"),
    model("distilbert-base", "bert", Transformers("DistilBertModel", {}), text(128, 30522), "full"),
    model("gpt2-base", "gpt2", Transformers("GPT2Model", {}, call={"use_cache": False}), text(64, 50257), "full"),
    model(
        "t5-encoder-base",
        "t5",
        Transformers("T5EncoderModel", {"d_model": 512}, keep_linear=True),
        text(128, 32128),
        "full",
    ),
    # Encoders
    _encoder("bert-small", "bert", "BertModel"),
    _encoder("bert-dynamic", "bert", "BertModel", _DYNAMIC),
    _encoder(
        "distilbert-small",
        "bert",
        "DistilBertModel",
        base={"vocab_size": _VOCABULARY, "dim": 64, "n_layers": 3, "n_heads": 4, "hidden_dim": 128},
    ),
    _encoder("roberta-small", "roberta", "RobertaModel"),
    _encoder("albert-small", "albert", "AlbertModel", embedding_size=32),
    _encoder(
        "deberta-v2-small",
        "deberta",
        "DebertaV2Model",
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
    ),
    _encoder("electra-small", "electra", "ElectraModel", embedding_size=32),
    _encoder("mobilebert-small", "mobilebert", "MobileBertModel", embedding_size=32, intra_bottleneck_size=32),
    _encoder("squeezebert-small", "squeezebert", "SqueezeBertModel", embedding_size=64),
    _encoder("mpnet-small", "mpnet", "MPNetModel"),
    _encoder("roformer-small", "roformer", "RoFormerModel", embedding_size=64),
    _encoder("convbert-small", "convbert", "ConvBertModel", embedding_size=64),
    _encoder("megatron-bert-small", "bert", "MegatronBertModel"),
    _encoder("rembert-small", "rembert", "RemBertModel", input_embedding_size=32, output_embedding_size=32),
    _encoder("ibert-small", "roberta", "IBertModel"),
    _encoder("layoutlm-small", "layoutlm", "LayoutLMModel"),
    _encoder("modernbert-small", "modernbert", "ModernBertModel", pad_token_id=0),
    _encoder("modernbert-dynamic", "modernbert", "ModernBertModel", _DYNAMIC, pad_token_id=0),
    _encoder(
        "fnet-small",
        "fnet",
        "FNetModel",
        text(32, _VOCABULARY, mask=False),
        {"vocab_size": _VOCABULARY, "hidden_size": 64, "num_hidden_layers": 3, "intermediate_size": 128},
    ),
    _encoder(
        "funnel-small",
        "funnel",
        "FunnelModel",
        base={
            # The default, "relative_shift", is wrong on one CPU device already (docs/reference/facts.md).
            "attention_type": "factorized",
            "vocab_size": _VOCABULARY,
            "d_model": 64,
            "d_head": 16,
            "n_head": 4,
            "d_inner": 128,
            "block_sizes": [2, 2],
        },
    ),
    _encoder(
        "xlnet-small",
        "xlnet",
        "XLNetModel",
        base={"vocab_size": _VOCABULARY, "d_model": 64, "n_layer": 3, "n_head": 4, "d_inner": 128},
    ),
    # Decoders
    _decoder(
        "gpt2-small",
        "gpt2",
        "GPT2LMHeadModel",
        {"vocab_size": _VOCABULARY, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128},
    ),
    model("gpt2-past", "gpt2", _GPT2_STEP, _past(2, 4, 16, 12, stateful=False)),
    model("llama-past", "llama", _LLAMA_STEP, _past(2, 2, 16, 12, stateful=False)),
    model("llama-stateful", "llama", _LLAMA_STEP, _past(2, 2, 16, 12, stateful=True), "quick", "stateful"),
    _decoder(
        "opt-small",
        "opt",
        "OPTForCausalLM",
        {
            "vocab_size": _VOCABULARY,
            "hidden_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "ffn_dim": 128,
            "max_position_embeddings": 128,
            "word_embed_proj_dim": 64,
        },
    ),
    _decoder(
        "bloom-small",
        "bloom",
        "BloomForCausalLM",
        {"vocab_size": _VOCABULARY, "hidden_size": 64, "n_layer": 3, "n_head": 4},
    ),
    _decoder(
        "falcon-small",
        "falcon",
        "FalconForCausalLM",
        {"vocab_size": _VOCABULARY, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4},
    ),
    _decoder(
        "mpt-small",
        "mpt",
        "MptForCausalLM",
        {"vocab_size": _VOCABULARY, "d_model": 64, "n_layers": 3, "n_heads": 4, "max_seq_len": 128},
    ),
    _decoder(
        "gpt-neo-small",
        "gptneo",
        "GPTNeoForCausalLM",
        {
            "vocab_size": _VOCABULARY,
            "hidden_size": 64,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "max_position_embeddings": 128,
        },
    ),
    _decoder("gpt-neox-small", "gptneox", "GPTNeoXForCausalLM"),
    _decoder(
        "gptj-small",
        "gptj",
        "GPTJForCausalLM",
        {"vocab_size": _VOCABULARY, "n_embd": 64, "n_layer": 3, "n_head": 4, "rotary_dim": 8, "n_positions": 128},
    ),
    _decoder("llama-small", "llama", "LlamaForCausalLM"),
    _decoder("mistral-small", "mistral", "MistralForCausalLM"),
    _decoder(
        "mixtral-small",
        "mixtral",
        "MixtralForCausalLM",
        num_local_experts=4,
        num_experts_per_tok=2,
        experts_implementation="batched_mm",
    ),
    _decoder("qwen2-small", "qwen", "Qwen2ForCausalLM"),
    _decoder("qwen3-small", "qwen", "Qwen3ForCausalLM", head_dim=16),
    _decoder("gemma-small", "gemma", "GemmaForCausalLM", head_dim=16),
    _decoder("gemma2-small", "gemma", "Gemma2ForCausalLM", head_dim=16),
    _decoder("phi-small", "phi", "PhiForCausalLM"),
    _decoder("phi3-small", "phi", "Phi3ForCausalLM"),
    _decoder("stablelm-small", "stablelm", "StableLmForCausalLM"),
    _decoder("olmo2-small", "olmo", "Olmo2ForCausalLM"),
    _decoder("granite-small", "granite", "GraniteForCausalLM"),
    _decoder("cohere-small", "cohere", "CohereForCausalLM"),
    _decoder("starcoder2-small", "starcoder", "Starcoder2ForCausalLM"),
    model(
        "mamba-small",
        "mamba",
        Transformers(
            "MambaForCausalLM",
            {"vocab_size": _VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "use_cache": False},
            "logits",
            call={"use_cache": False},
        ),
        text(12, _VOCABULARY, mask=False),
    ),
    # Encoder-decoders
    model("t5-encoder-small", "t5", Transformers("T5EncoderModel", _T5, keep_linear=True), _TEXT),
    model("t5-encoder-dynamic", "t5", Transformers("T5EncoderModel", _T5, keep_linear=True), _DYNAMIC),
    model(
        "t5-small",
        "t5",
        Transformers("T5ForConditionalGeneration", _T5, "logits", call={"use_cache": False}, keep_linear=True),
        _TRANSLATION,
    ),
    _translator("bart-small", "bart", "BartForConditionalGeneration"),
    _translator("pegasus-small", "pegasus", "PegasusForConditionalGeneration"),
    _translator("marian-small", "marian", "MarianMTModel", pad_token_id=0, decoder_start_token_id=0),
    _translator("m2m100-small", "m2m100", "M2M100ForConditionalGeneration"),
)
