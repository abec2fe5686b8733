"""Finds the models in folders that optimum-intel exports, and what each of them does in a pipeline.

A folder has one file openvino_PART.xml for each model. The part is its name, such as "decoder_model".
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.reading import SETTINGS, read_json

# Names of models' files in an exported folder: openvino_model.xml.
_PREFIX, _SUFFIX = "openvino_", ".xml"

# Models of strings, which only the CPU plugin runs.
_NEVER_PLACED = ("tokenizer", "detokenizer")

# Models that are placed unless parts are named: those of the first row that a folder has any of. They take most of the
# memory and the time; embeddings, vision encoders and the like are small and stay as they are.
_MAIN_PARTS = (("language_model",), ("encoder_model", "decoder_model", "decoder_with_past_model"), ("model",))

# Models that a pipeline runs after its encoders, and those that it runs after these; and models that are only run in
# other uses of a pipeline.
_DENOISERS = ("unet", "transformer")
_STAGES = (("decoder_model", "decoder_with_past_model", "language_model", *_DENOISERS), ("vae_decoder",))
_NOT_IN_RUNS = ("vae_encoder",)

DENOISING_STEPS = 20.0
"""Runs of a UNet, or of a diffusion transformer, for one image, unless another count is given."""

# Assumed workloads of models with states, and runs of other models in one run of the pipeline: for each token, or for
# each denoising step.
_CHAT_WORKLOAD = "prompt=256,generate=64"
_WORKLOADS = {"decoder_model": "prompt=4,generate=64", "language_model": _CHAT_WORKLOAD, "model": _CHAT_WORKLOAD}
_PER_TOKEN = ("decoder_with_past_model", "text_embeddings_model", "text_embeddings_per_layer_model")
_COUNTS = dict.fromkeys(_DENOISERS, DENOISING_STEPS) | dict.fromkeys(_PER_TOKEN, 64.0)

# Keys of transformers' configurations for the number of positions of a model.
_POSITIONS = ("max_position_embeddings", "n_positions", "max_target_positions", "max_seq_len")

# Tokens from which on a number means "no limit": some configurations have 10^30.
_MOST_TOKENS = 2**31


def is_model_folder(path: Path) -> bool:
    """Whether a path is a folder, except for TensorFlow's SavedModel, which OpenVINO reads as one model."""
    return path.is_dir() and not (path / "saved_model.pb").exists()


def models_of(folder: Path) -> dict[str, Path]:
    """Lists the models of an exported folder: files by part, "model" for openvino_model.xml, without tokenizers."""
    files = sorted(folder.glob(f"{_PREFIX}*{_SUFFIX}"))
    files_by_part = {file.name.removeprefix(_PREFIX).removesuffix(_SUFFIX): file for file in files}
    return {name: file for name, file in files_by_part.items() if name not in _NEVER_PLACED}


def model_files(path: Path, parts: Sequence[str] = ()) -> list[Path]:
    """Lists the files of the models that a command works on.

    Args:
        path: an exported folder, or a model (including SavedModel).
        parts: names of models of the folder ("vision_embeddings_model", or the name of the file). By default the
            language model, else encoder and decoder, else openvino_model.xml.

    Returns:
        The files; the path itself if it is a model.

    Raises:
        UserError: there is no such model, none is known to be the main one, or parts of a single model are asked for.
    """
    if not is_model_folder(path):
        if parts:
            raise UserError(f"{path} is one model and has no parts: leave out --part")
        return [path]
    files_by_part = models_of(path)
    if not files_by_part:
        raise UserError(f"no model in folder {path}: it has no openvino_model.xml, as optimum-intel exports it")
    if parts:
        return list(dict.fromkeys(_find_part(path, files_by_part, part) for part in parts))
    for row in _MAIN_PARTS:
        main = [files_by_part[name] for name in row if name in files_by_part]
        if main:
            return main
    raise UserError(
        f"{path} has several models: name those to use with --part, one or several of {', '.join(files_by_part)}"
    )


@dataclass(frozen=True)
class Role:
    """A model of an exported folder, as one run of the folder's pipeline uses it."""

    path: Path  # the model's file
    count: float  # number of its runs; for a model with states, a run is the prompt with all tokens
    after: tuple[str, ...]  # parts whose outputs it waits for
    workload: str | None  # assumed workload of a model with states


def pipeline(folder: Path) -> dict[str, Role]:
    """Finds the models that a pipeline of openvino.genai or optimum-intel runs, in the order of their runs.

    Encoders run once, decoders for a prompt and tokens (those without states once for each token), denoisers for
    `DENOISING_STEPS`, then the decoder of images. In a folder of folders, as pipelines of diffusers are exported, the
    part is the name of the inner folder.

    Returns:
        Roles by part.

    Raises:
        UserError: the folder has no model.
    """
    files_by_part = models_of(folder) if is_model_folder(folder) else {}
    files_by_part |= {
        path.parent.name: path
        for path in sorted(folder.glob(f"*/{_PREFIX}model{_SUFFIX}"))
        if not path.parent.name.startswith(_NEVER_PLACED)
    }
    files_by_part = {name: path for name, path in files_by_part.items() if name not in _NOT_IN_RUNS}
    if not files_by_part:
        raise UserError(f"no model in folder {folder}: it has no openvino_*.xml, as optimum-intel exports them")
    stages: list[list[str]] = [[], [], []]
    for name in files_by_part:
        stages[next((n for n, names in enumerate(_STAGES, 1) if name in names), 0)].append(name)
    roles, previous_stage = {}, tuple[str, ...]()
    for stage in stages:
        for name in stage:
            first = name == "decoder_with_past_model" and "decoder_model" in stage
            after = ("decoder_model",) if first else previous_stage
            roles[name] = Role(files_by_part[name], _COUNTS.get(name, 1.0), after, _WORKLOADS.get(name))
        previous_stage = tuple(stage) or previous_stage
    return roles


def tokenizers_size(folder: Path) -> int:
    """Returns the bytes of all files of a folder's tokenizers."""
    files = [folder / f"{_PREFIX}{name}{_SUFFIX}" for name in _NEVER_PLACED]
    return sum(file.stat().st_size + weights_size(file) for file in files if file.is_file())


def weights_size(model: Path) -> int:
    """Returns the bytes of the .bin file beside an IR's .xml; 0 if there is none."""
    weights = model.with_suffix(".bin")
    return weights.stat().st_size if weights.is_file() else 0


def longest_context(model: Path) -> int | None:
    """Reads the largest number of tokens for which a language model was made from config.json beside its file.

    Returns:
        The number; None if there is no such file, or it has no such number.
    """
    with contextlib.suppress(OSError, ValueError, AttributeError):
        config = read_json(model.parent / "config.json", SETTINGS)
        parts = [one.get(key) for one in (config, config.get("text_config") or {}) for key in _POSITIONS]
        return next((tokens for tokens in parts if type(tokens) is int and 0 < tokens < _MOST_TOKENS), None)
    return None


def _find_part(folder: Path, files_by_part: dict[str, Path], part: str) -> Path:
    """Returns the file of the part that a user named.

    Args:
        folder: the folder, for messages.
        files_by_part: its models.
        part: name of the part or of its file; the ending "_model" may be left out.

    Raises:
        UserError: the folder has no such part.
    """
    name = part.removeprefix(_PREFIX).removesuffix(_SUFFIX)
    for candidate in (name, f"{name}_model"):
        if candidate in files_by_part:
            return files_by_part[candidate]
    raise UserError(f"{folder} has no part '{part}': it has {', '.join(files_by_part)}")
