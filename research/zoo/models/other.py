"""Speech, series, recommenders, recurrent nets, point clouds and graphs, and control flow."""

from __future__ import annotations

from typing import Any

from research.zoo.models.base import ZooModel, model
from research.zoo.models.inputs import Input, Inputs, inputs
from research.zoo.models.recipes import Torch, Transformers

_WAVE = inputs(Input("input_values", (1, 3200)))
_DYNAMIC_WAVE = inputs(Input("input_values", (1, "samples")), sizes=({"samples": 3200}, {"samples": 4001}))
_WAV2VEC2 = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "conv_dim": (24, 24, 24, 24, 24, 24, 24),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "vocab_size": 32,
}
_WHISPER = {
    "vocab_size": 300,
    "d_model": 48,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "num_mel_bins": 40,
    "max_source_positions": 64,
    "max_target_positions": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
_TOKENS = inputs(Input("input_ids", (1, 24), "tokens", 200))
_DYNAMIC_TOKENS = inputs(Input("input_ids", (1, "length"), "tokens", 200), sizes=({"length": 24}, {"length": 9}))


def _speech(name: str, family: str, cls: str, model_inputs: Inputs = _WAVE, **config: Any) -> ZooModel:
    return model(name, family, Transformers(cls, {**_WAV2VEC2, **config}, "logits"), model_inputs)


def _states(stateful: bool) -> tuple[Input, ...]:
    return tuple(
        Input(name, (1, 48), state=1 + index if stateful else None)
        for index, name in enumerate(("h1", "c1", "h2", "c2"))
    )


_TOKEN = Input("token", (1,), "tokens", 120)

MODELS: tuple[ZooModel, ...] = (
    # Speech and sound
    model(
        "wav2vec2-base",
        "wav2vec2",
        Transformers("Wav2Vec2Model", {}),
        inputs(Input("input_values", (1, 16000))),
        "full",
    ),
    model(
        "whisper-encoder-base",
        "whisper",
        Transformers(
            "WhisperModel",
            {
                "d_model": 512,
                "encoder_layers": 6,
                "decoder_layers": 1,
                "encoder_attention_heads": 8,
                "decoder_attention_heads": 8,
                "encoder_ffn_dim": 2048,
            },
            part="encoder",
        ),
        inputs(Input("input_features", (1, 80, 3000))),
        "full",
    ),
    _speech("wav2vec2-small", "wav2vec2", "Wav2Vec2ForCTC"),
    _speech("wav2vec2-dynamic", "wav2vec2", "Wav2Vec2ForCTC", _DYNAMIC_WAVE),
    _speech("hubert-small", "hubert", "HubertForCTC"),
    _speech("wavlm-small", "wavlm", "WavLMForCTC"),
    _speech("unispeech-small", "wav2vec2", "UniSpeechForCTC"),
    _speech("data2vec-audio-small", "data2vec", "Data2VecAudioForCTC"),
    # The number of steps must not be 4, that of heads: see timesformer-small.
    _speech(
        "sew-small",
        "sew",
        "SEWForCTC",
        inputs(Input("input_values", (1, 6400))),
        squeeze_factor=2,
        conv_stride=(5, 2, 2, 2, 2, 2, 2),
        conv_kernel=(10, 3, 3, 3, 3, 2, 2),
    ),
    model(
        "whisper-encoder-small",
        "whisper",
        Transformers("WhisperModel", _WHISPER, part="encoder"),
        inputs(Input("input_features", (1, 40, 128))),
    ),
    model(
        "whisper-small",
        "whisper",
        Transformers("WhisperForConditionalGeneration", _WHISPER, "logits", call={"use_cache": False}),
        inputs(
            Input("input_features", (1, 40, 128)),
            Input("decoder_input_ids", (1, 6), "tokens", 300, 3),
            Input("decoder_attention_mask", (1, 6), "ones"),
        ),
    ),
    model(
        "ast-small",
        "ast",
        Transformers(
            "ASTForAudioClassification",
            {
                "hidden_size": 48,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "intermediate_size": 96,
                "max_length": 128,
                "num_mel_bins": 64,
            },
            "logits",
        ),
        inputs(Input("input_values", (1, 128, 64))),
    ),
    model("wavenet-small", "wavenet", Torch("WaveNet"), inputs(Input("wave", (1, 1, 200)))),
    model(
        "speech-recogniser-small", "deepspeech", Torch("SpeechRecogniser"), inputs(Input("spectrogram", (1, 1, 40, 60)))
    ),
    # Recurrent
    model("lstm", "lstm", Torch("Recurrent"), _TOKENS),
    model("lstm-dynamic", "lstm", Torch("Recurrent"), _DYNAMIC_TOKENS),
    model("bilstm", "lstm", Torch("Recurrent", {"bidirectional": True}), _TOKENS),
    model("gru", "gru", Torch("Recurrent", {"cell": "GRU"}), _TOKENS),
    model("rnn", "rnn", Torch("Recurrent", {"cell": "RNN"}), _TOKENS),
    model("lstm-step", "lstm", Torch("StepCell"), inputs(_TOKEN, *_states(False))),
    model("lstm-stateful", "lstm", Torch("StepCell"), inputs(_TOKEN, *_states(True)), "quick", "stateful"),
    model("crnn-small", "crnn", Torch("CRNN"), inputs(Input("image", (1, 1, 32, 96)))),
    # Series
    model("tcn-small", "tcn", Torch("TCN"), inputs(Input("series", (1, 8, 64)))),
    # Recommenders
    model("dlrm", "dlrm", Torch("DLRM"), inputs(Input("dense", (16, 13)), Input("categories", (16, 8), "tokens", 500))),
    model(
        "dlrm-dynamic",
        "dlrm",
        Torch("DLRM"),
        inputs(
            Input("dense", ("batch", 13)),
            Input("categories", ("batch", 8), "tokens", 500),
            sizes=({"batch": 4}, {"batch": 9}),
        ),
    ),
    model("ncf", "ncf", Torch("NCF"), inputs(Input("user", (32,), "tokens", 400), Input("item", (32,), "tokens", 700))),
    model("wide-and-deep", "wideanddeep", Torch("WideAndDeep"), inputs(Input("categories", (16, 6), "tokens", 300))),
    # Points, graphs, experts
    model("pointnet-small", "pointnet", Torch("PointNet"), inputs(Input("points", (1, 3, 128)))),
    model(
        "gcn-small",
        "gcn",
        Torch("GraphConvolution"),
        inputs(Input("features", (40, 16)), Input("edges", (2, 120), "tokens", 40)),
    ),
    model("mixture-of-experts-small", "moe", Torch("MixtureOfExperts"), inputs(Input("sequence", (1, 12, 48)))),
    # Control flow
    model("looped-cell", "loop", Torch("LoopedCell"), inputs(Input("sequence", (1, 8, 32)))),
    model("branching", "if", Torch("Branching"), inputs(Input("features", (2, 32)))),
)
