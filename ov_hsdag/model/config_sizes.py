"""Reads example shapes of a model's inputs from the transformers or diffusers configuration beside the model's file.

One function for each known input name (`_SIZES`) takes the configuration and the rank of the input. It returns the
input's shape, or None where the configuration lacks a size or the rank is another.
"""

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
"""Names of configuration files beside a model. Where several have a key, the first one counts."""

_NESTED = ("vision_config", "audio_config", "text_config", "encoder")
"""Keys of config.json whose values are configurations of parts of the model."""

_LARGEST = 2**20
"""Largest believable size. Larger values come from a damaged file, or stand for "no limit"."""

_MEL_STRIDE = 2
"""Spectrogram frames per position of Whisper's encoder, whose second convolution has this stride."""

_PROMPT_TOKENS = 77
"""Number of tokens of CLIP's text encoder, whose states condition a denoiser."""

_LATENTS = 64
"""Height and width of latents where a diffusion model's configuration has none: 512 pixels, eight per latent."""

Lookup = Callable[[str], int | None]
"""A function that finds a size by its key in the configuration, and returns None where there is none."""


def sizes_beside(model: ov.Model, path: Path, shapes: Mapping[str, Sequence[int]] | None) -> dict[str, tuple[int, ...]]:
    """Reads example shapes of inputs with open sizes from the configuration beside a model's file.

    Args:
        model: the model that was read from the file.
        path: path of the file; config.json and preprocessor_config.json are looked up in its folder.
        shapes: example shapes that are known already, by any name of the input; these inputs are left out.

    Returns:
        Whole shapes by input name. Empty where there is no configuration, where it has no sizes of these inputs, or
        where its sizes do not fit the model.
    """
    lookup = _lookup(path.parent) if model.is_dynamic() else None
    if lookup is None:
        return {}
    example_shapes: dict[str, tuple[int, ...]] = {}
    for port in model.inputs:
        shape = port.get_partial_shape()
        names = {port.get_node().get_friendly_name(), *port.get_names()}
        if shape.is_static or shape.rank.is_dynamic or names & set(shapes or {}):
            continue
        for name in sorted(names & _SIZES.keys()):
            sizes = _SIZES[name](lookup, len(shape))
            if sizes is not None and len(sizes) == len(shape):
                example_shapes[name] = tuple(
                    int(one.get_length()) if one.is_static else size for one, size in zip(shape, sizes, strict=True)
                )
    if example_shapes:
        with contextlib.suppress(UserError):
            if fitting_input_shapes(model, {**(shapes or {}), **example_shapes}) is not None:
                return example_shapes
    return {}


def with_sizes_beside(
    model: ov.Model, path: Path, shapes: Mapping[str, Sequence[int]] | None
) -> dict[str, Sequence[int]] | None:
    """Adds the shapes of `sizes_beside` to the given ones.

    Args:
        model: the model that was read from the file.
        path: path of the model's file.
        shapes: example shapes that are known already, by any name of the input.

    Returns:
        Shapes by input name, or None if there are none.
    """
    return {**(shapes or {}), **sizes_beside(model, path, shapes)} or None


def _lookup(folder: Path) -> Lookup | None:
    """Returns a function that finds a size by its key in the folder's configurations; None where there are none."""
    parts: list[Mapping[str, Any]] = []
    for name in CONFIGURATIONS:
        with contextlib.suppress(OSError, ValueError):
            read = read_json(folder / name, SETTINGS)
            if isinstance(read, dict):
                parts += [read, *(read[key] for key in _NESTED if isinstance(read.get(key), dict))]
    if not parts:
        return None

    def lookup(key: str) -> int | None:
        """Returns the first size with this key; None where no configuration has a believable one."""
        for part in parts:
            value = part.get(key)
            if isinstance(value, dict):  # image sizes: {"height": 224, "width": 224} or {"shortest_edge": 224}
                value = value.get("height", value.get("shortest_edge"))
            if isinstance(value, list):  # one size for each side or each level
                value = value[0] if value else None
            if type(value) is int and 0 < value <= _LARGEST:
                return value
        return None

    return lookup


def _spectrogram(lookup: Lookup, rank: int) -> tuple[int, ...] | None:
    """Shape of Whisper's input: [batch, mel bins, frames]."""
    bins, positions = lookup("num_mel_bins") or lookup("feature_size"), lookup("max_source_positions")
    frames = positions * _MEL_STRIDE if positions else lookup("nb_max_frames")
    return (UNBOUNDED_BATCH, bins, frames) if rank == 3 and bins and frames else None


def _waveform(lookup: Lookup, rank: int) -> tuple[int, ...] | None:
    """Shape of sound: [batch, samples] of one second for Wav2vec, else [batch, frames, mel bins].

    The Audio Spectrogram Transformer takes the latter.
    """
    if rank == 3:
        frames, bins = lookup("max_length"), lookup("num_mel_bins")
        return (UNBOUNDED_BATCH, frames, bins) if frames and bins else None
    rate = lookup("sampling_rate")
    return (UNBOUNDED_BATCH, rate) if rank == 2 and rate else None


def _image(lookup: Lookup, rank: int) -> tuple[int, ...] | None:
    """Shape of images: [batch, channels, height, width]."""
    side = lookup("image_size") or lookup("crop_size") or lookup("size")
    return (UNBOUNDED_BATCH, lookup("num_channels") or 3, side, side) if rank == 4 and side else None


def _encoder_states(lookup: Lookup, rank: int) -> tuple[int, ...] | None:
    """Shape of the encoder states that a decoder or a denoiser reads: [batch, positions, size]."""
    size, length = lookup("cross_attention_dim"), _PROMPT_TOKENS
    if size is None:
        size, length = lookup("d_model") or lookup("hidden_size"), lookup("max_source_positions") or UNBOUNDED_DIMENSION
    return (UNBOUNDED_BATCH, length, size) if rank == 3 and size else None


def _latents(lookup: Lookup, rank: int) -> tuple[int, ...] | None:
    """Shape of the latents that a denoiser reads: [batch, channels, height, width]."""
    channels = lookup("in_channels")
    side = lookup("sample_size") or _LATENTS
    return (UNBOUNDED_BATCH, channels, side, side) if rank == 4 and channels else None


def _latents_to_decode(lookup: Lookup, rank: int) -> tuple[int, ...] | None:
    """Shape of the latents that a decoder of images reads: [batch, channels, height, width]."""
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
"""Functions that find the shape of an input, by the input names that optimum-intel and transformers use."""
