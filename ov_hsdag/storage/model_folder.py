"""The folders that optimum-intel exports: which models they hold, and which of them are worth several devices."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.reading import SETTINGS, read_json

_PREFIX, _SUFFIX = "openvino_", ".xml"

# They run strings, which only the CPU plugin does.
_NEVER_PLACED = ("tokenizer", "detokenizer")

# What is placed unless parts are named: the first of these rows that a folder has some of. The models that take most of
# the memory and the time; embeddings, vision encoders and the like are small and stay as they are.
_MAIN = (("language_model",), ("encoder_model", "decoder_model", "decoder_with_past_model"), ("model",))

# Where transformers' configurations say how many positions a model has.
_POSITIONS = ("max_position_embeddings", "n_positions", "max_target_positions", "max_seq_len")


# More say nothing: some configurations have 10^30 for "no limit".
_MOST_TOKENS = 2**31


def is_model_folder(path: Path) -> bool:
    """Whether a path is a folder, and not TensorFlow's SavedModel, which OpenVINO reads as one model."""
    return path.is_dir() and not (path / "saved_model.pb").exists()


def models_of(folder: Path) -> dict[str, Path]:
    """The models of an exported folder by their parts, "model" for openvino_model.xml; tokenizers are left out."""
    files = sorted(folder.glob(f"{_PREFIX}*{_SUFFIX}"))
    found = {file.name.removeprefix(_PREFIX).removesuffix(_SUFFIX): file for file in files}
    return {name: file for name, file in found.items() if name not in _NEVER_PLACED}


def model_files(path: Path, parts: Sequence[str] = ()) -> list[Path]:
    """The files of the models that a command works on; the path itself where it is one model (SavedModel, too).

    parts: names of models of the folder ("vision_embeddings_model", or the name of the file). By default the language
    model, else encoder and decoder, else openvino_model.xml. Raises UserError where there is no such model, none that
    is known to be the main one, or parts of something that is no folder are asked for.
    """
    if not is_model_folder(path):
        if parts:
            raise UserError(f"{path} is one model and has no parts: leave out --part")
        return [path]
    found = models_of(path)
    if not found:
        raise UserError(f"no model in folder {path}: it has no openvino_model.xml, as optimum-intel exports it")
    if parts:
        return list(dict.fromkeys(_named(path, found, part) for part in parts))
    for row in _MAIN:
        main = [found[name] for name in row if name in found]
        if main:
            return main
    raise UserError(f"{path} has several models: name those to use with --part, one or several of {', '.join(found)}")


def longest_context(model: Path) -> int | None:
    """The tokens that a language model was made for, as config.json beside its file says; None where it does not."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        config = read_json(model.parent / "config.json", SETTINGS)
        parts = [one.get(key) for one in (config, config.get("text_config") or {}) for key in _POSITIONS]
        return next((tokens for tokens in parts if type(tokens) is int and 0 < tokens < _MOST_TOKENS), None)
    return None


def _named(folder: Path, found: dict[str, Path], part: str) -> Path:
    name = part.removeprefix(_PREFIX).removesuffix(_SUFFIX)
    for one in (name, f"{name}_model"):
        if one in found:
            return found[one]
    raise UserError(f"{folder} has no part '{part}': it has {', '.join(found)}")
