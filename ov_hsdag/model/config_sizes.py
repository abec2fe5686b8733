"""Example sizes of a model's inputs, from the configuration of transformers or diffusers that lies beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ov_hsdag.model.shapes import UNBOUNDED_BATCH, UNBOUNDED_DIMENSION, fitting_input_shapes
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import ov
from ov_hsdag.utils.reading import SETTINGS, read_json

CONFIGURATIONS = ("config.json", "preprocessor_config.json")
"""Files beside a model, the first that has a key first."""

_NESTED = ("vision_config", "audio_config", "text_config", "encoder")
"""Configurations inside of config.json that describe a part of the model."""

_LARGEST = 2**20
"""Larger sizes are a damaged file, or stand for "no limit"."""

_MEL_STRIDE = 2
"""Frames of a spectrogram for each position of Whisper's encoder."""

_PROMPT_TOKENS = 77
"""Tokens that CLIP's text encoder always has, whose states condition a denoiser."""

_LATENTS = 64
"""Height and width of latents of diffusion models that do not say."""

Lookup = Callable[[str], int | None]


def sizes_beside(model: ov.Model, path: Path, shapes: Mapping[str, Sequence[int]] | None) -> dict[str, tuple[int, ...]]:
    """Example shapes, by input name, that the configuration beside a model's file tells of inputs with open sizes.

    Args:
        model: read from the file.
        path: of the file; config.json and preprocessor_config.json in its folder are looked at.
        shapes: what is known of inputs already, by any of their names.

    Returns:
        Whole shapes; empty where there is no configuration, where it says nothing of these inputs, or where what it
        says does not fit the model.
    """
    lookup = _lookup(path.parent) if model.is_dynamic() else None
    if lookup is None:
        return {}
    found: dict[str, tuple[int, ...]] = {}
    for port in model.inputs:
        shape = port.get_partial_shape()
        names = {port.get_node().get_friendly_name(), *port.get_names()}
        if shape.is_static or shape.rank.is_dynamic or names & set(shapes or {}):
            continue
        for name in sorted(names & _SIZES.keys()):
            told = _SIZES[name](lookup, len(shape))
            if told is not None and len(told) == len(shape):
                found[name] = tuple(
                    int(one.get_length()) if one.is_static else size for one, size in zip(shape, told, strict=True)
                )
    if found:
        with contextlib.suppress(UserError):
            if fitting_input_shapes(model, {**(shapes or {}), **found}) is not None:
                return found
    return {}


def with_sizes_beside(
    model: ov.Model, path: Path, shapes: Mapping[str, Sequence[int]] | None
) -> dict[str, Sequence[int]] | None:
    """The shapes, completed by `sizes_beside`; None for none."""
    return {**(shapes or {}), **sizes_beside(model, path, shapes)} or None


def _lookup(folder: Path) -> Lookup | None:
    """Looks a size up by its key; None where there is no configuration."""
    parts: list[Mapping[str, Any]] = []
    for name in CONFIGURATIONS:
        with contextlib.suppress(OSError, ValueError):
            read = read_json(folder / name, SETTINGS)
            if isinstance(read, dict):
                parts += [read, *(read[key] for key in _NESTED if isinstance(read.get(key), dict))]
    if not parts:
        return None

    def lookup(key: str) -> int | None:
        for part in parts:
            value = part.get(key)
            if isinstance(value, dict):  # of images: {"height": 224, "width": 224}, {"shortest_edge": 224}
                value = value.get("height", value.get("shortest_edge"))
            if isinstance(value, list):  # of each side, or of each level
                value = value[0] if value else None
            if type(value) is int and 0 < value <= _LARGEST:
                return value
        return None

    return lookup


def _spectrogram(lookup: Lookup, rank: int) -> tuple[int, ...] | None:
    """Whisper: [batch, mel bins, frames]."""
    bins, positions = lookup("num_mel_bins") or lookup("feature_size"), lookup("max_source_positions")
    frames = positions * _MEL_STRIDE if positions else lookup("nb_max_frames")
    return (UNBOUNDED_BATCH, bins, frames) if rank == 3 and bins and frames else None


def _waveform(lookup: Lookup, rank: int) -> tuple[int, ...] | None:
    """Wav2vec: a second of samples; of the Audio Spectrogram Transformer [batch, frames, mel bins]."""
    if rank == 3:
        frames, bins = lookup("max_length"), lookup("num_mel_bins")
        return (UNBOUNDED_BATCH, frames, bins) if frames and bins else None
    rate = lookup("sampling_rate")
    return (UNBOUNDED_BATCH, rate) if rank == 2 and rate else None


def _image(lookup: Lookup, rank: int) -> tuple[int, ...] | None:
    side = lookup("image_size") or lookup("crop_size") or lookup("size")
    return (UNBOUNDED_BATCH, lookup("num_channels") or 3, side, side) if rank == 4 and side else None


def _encoder_states(lookup: Lookup, rank: int) -> tuple[int, ...] | None:
    """What a decoder, or a denoiser, reads of an encoder: [batch, positions, size]."""
    size, length = lookup("cross_attention_dim"), _PROMPT_TOKENS
    if size is None:
        size, length = lookup("d_model") or lookup("hidden_size"), lookup("max_source_positions") or UNBOUNDED_DIMENSION
    return (UNBOUNDED_BATCH, length, size) if rank == 3 and size else None


def _latents(lookup: Lookup, rank: int) -> tuple[int, ...] | None:
    channels = lookup("in_channels")
    side = lookup("sample_size") or _LATENTS
    return (UNBOUNDED_BATCH, channels, side, side) if rank == 4 and channels else None


def _latents_to_decode(lookup: Lookup, rank: int) -> tuple[int, ...] | None:
    channels = lookup("latent_channels")
    return (UNBOUNDED_BATCH, channels, _LATENTS, _LATENTS) if rank == 4 and channels else None


_SIZES: dict[str, Callable[[Lookup, int], tuple[int, ...] | None]] = {
    "input_features": _spectrogram,
    "input_values": _waveform,
    "pixel_values": _image,
    "encoder_hidden_states": _encoder_states,
    "sample": _latents,
    "latent_sample": _latents_to_decode,
}
"""By the names of inputs that optimum-intel and transformers have in common."""
