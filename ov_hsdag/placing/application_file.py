"""Applications as people write them: a file in TOML, or a folder of a pipeline's models."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ov_hsdag.model.config_sizes import with_sizes_beside
from ov_hsdag.model.inputs import example_shapes, parse_shapes
from ov_hsdag.model.workload import TOKENS, Workload
from ov_hsdag.placing.application import check_count
from ov_hsdag.placing.together import ModelOf
from ov_hsdag.storage.model_folder import is_model_folder, pipeline
from ov_hsdag.utils.arguments import check_argument
from ov_hsdag.utils.errors import UserError, one_line
from ov_hsdag.utils.lazy import ov
from ov_hsdag.utils.reading import SETTINGS, read_bytes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_KEYS: dict[str, Any] = {"device": str, "objective": str, "memory": dict, "models": dict}
_MODEL_KEYS: dict[str, Any] = {
    "path": str,
    "count": float | int,
    "rate": float | int,
    "after": list,
    "shape": str,
    "workload": str,
    "counts": dict[str, float],
}


@dataclass(frozen=True)
class ModelSpec:
    """A model of an application, not read yet."""

    path: Path  # its file
    count: float = 1.0  # runs of it in one run of the application
    after: tuple[str, ...] = ()  # models whose outputs it waits for
    shape: str | None = None  # example shapes of its inputs, as `parse_shapes` reads them
    workload: str | None = None  # that was asked for, if it has states
    usual: str | None = None  # workload of such a part of a pipeline otherwise
    folder: Path | None = None  # the pipeline's folder that it is in
    of: str = ""  # name of the model, or of the pipeline, in the application


@dataclass(frozen=True)
class ApplicationSpec:
    """An application as it is asked for."""

    models: dict[str, ModelSpec]  # by name; of a pipeline "whisper/encoder_model"
    device: str | None = None
    objective: str | None = None
    memory: Mapping[str, int | str] | None = None
    rates: bool = False  # whether counts are rates, inferences a second


def read_application(path: Path) -> ApplicationSpec:
    """Reads an application's file; paths in it are relative to its folder.

    UserError: it cannot be read, or asks for what cannot be: unknown keys, models that are not there, rates of some
    models and counts of others, or one that is not positive.
    """
    try:
        data = tomllib.loads(read_bytes(path, SETTINGS).decode("utf-8"))
    except OSError as error:
        raise UserError(f"cannot read '{path}': {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"'{path}' is no TOML: {one_line(error)}") from error
    try:
        _check(data, _KEYS, "the application")
        models = data.get("models") or {}
        if not models:
            raise UserError('it names no models: give each as [models.NAME] with path = "…"')
        for name, one in models.items():
            if not re.fullmatch(r"\w[\w.-]*", name):
                raise UserError(
                    f"'{name:.40}' cannot be a model's name, and its file's: use letters, digits, -, _ and ."
                )
            if not isinstance(one, dict):
                raise UserError(f"'models.{name}' is no table: give [models.{name}] with a path")
            _check(one, _MODEL_KEYS, f"[models.{name}]")
        rates = {name: "rate" in one for name, one in models.items()}
        if len(set(rates.values())) > 1:
            lacks = next(name for name, given in rates.items() if not given)
            raise UserError(f"some models have a rate and '{lacks}' has none: give rates of all or counts of all")
        found: dict[str, ModelSpec] = {}
        for name, one in models.items():
            found |= _expanded(name, one, path.parent)
    except (UserError, OverflowError) as error:  # a whole number that is larger than any float
        raise UserError(f"{path}: {error}") from error
    # Whoever waits for a pipeline waits for its last models.
    ends = {name: [other for other, spec in found.items() if spec.of == name] for name in models}
    for name, parts in ends.items():
        waited = {source for part in parts for source in found[part].after}
        ends[name] = [part for part in parts if part not in waited]
    found = {
        name: replace(spec, after=tuple(end for other in spec.after for end in ends.get(other, [other])))
        for name, spec in found.items()
    }
    return ApplicationSpec(found, data.get("device"), data.get("objective"), data.get("memory"), any(rates.values()))


def of_folder(
    folder: Path, counts: Mapping[str, float], workload: str | None, shapes: Sequence[str] | None
) -> ApplicationSpec:
    """The application that a pipeline's folder is. counts: of its parts, instead of the usual ones. UserError."""
    Workload.asked(workload, None)  # also where no model has states
    shape = ",".join(shapes or ()) or None
    return ApplicationSpec(_of_pipeline(ModelSpec(folder, shape=shape, workload=workload), counts))


def to_place(
    spec: ApplicationSpec, read: Callable[[Path], ov.Model], *, fixes_sizes: bool = False
) -> dict[str, ModelOf]:
    """The models of an application, with what they are run for.

    Args:
        spec: of the application.
        read: reads a model's file.
        fixes_sizes: example shapes become the models' own, so that they are those that the user gave alone.

    Raises:
        UserError: a shape or a workload does not fit.
    """
    loaded, found = {name: read(one.path) for name, one in spec.models.items()}, dict[str, ModelOf]()
    for name, one in spec.models.items():
        model = loaded[name]
        beside = [loaded[other] for other, more in spec.models.items() if more.of == one.of]  # inputs may be theirs
        shapes, *_ = example_shapes([model, *beside], parse_shapes([one.shape] if one.shape else ()))
        if one.workload is not None and not any(other.get_sinks() for other in (model, *beside)):
            raise UserError(f"'{one.of or one.folder}' has no states, so it has no workload of prompt and tokens")
        workload = (one.workload or one.usual) if model.get_sinks() else None
        examples = shapes if fixes_sizes else with_sizes_beside(model, one.path, shapes)
        found[name] = ModelOf(model, one.count, one.after, examples, workload)
    return found


def parse_counts(texts: list[str] | None) -> dict[str, float]:
    """Reads "unet=30". UserError: it cannot be read."""
    found = {}
    for text in texts or ():
        name, _, number = text.partition("=")
        try:
            found[name] = float(number)
        except ValueError:
            raise UserError(f"cannot read count '{text}': give it as NAME=NUMBER") from None
    return found


def _check(given: Mapping[str, Any], known: Mapping[str, Any], what: str) -> None:
    """UserError: a key that there is not, or a value of another type."""
    for key, value in given.items():
        if key not in known:
            raise UserError(f"{what} has no '{key}'; there are {', '.join(known)}")
        check_argument(f"{what}: {key}", value, known[key])


def _expanded(name: str, given: Mapping[str, Any], base: Path) -> dict[str, ModelSpec]:
    """The models that an entry stands for."""
    if "path" not in given:
        raise UserError(f"[models.{name}] has no path")
    if "rate" in given and "count" in given:
        raise UserError(f"[models.{name}] has a rate and a count: give one of them")
    key = "rate" if "rate" in given else "count"
    count = float(given.get(key, 1.0))
    check_count(f"[models.{name}]", key, count)
    after = tuple(given.get("after", ()))
    check_argument(f"[models.{name}]: after", list(after), list[str])
    if name in after:
        raise UserError(f"[models.{name}] comes after itself: 'after' names other models")
    one = ModelSpec(base / given["path"], count, after, given.get("shape"), given.get("workload"), of=name)
    if not one.path.exists():
        raise UserError(f"[models.{name}]: there is no '{one.path}'")
    parse_shapes([one.shape] if one.shape else ())
    Workload.asked(one.workload, None)
    if is_model_folder(one.path):
        return _of_pipeline(one, given.get("counts", {}))
    if "counts" in given:
        raise UserError(f"[models.{name}] is one model and has no parts: give 'count'")
    return {name: one}


def _of_pipeline(whole: ModelSpec, counts: Mapping[str, Any]) -> dict[str, ModelSpec]:
    """The parts of a folder that is given as if it were one model."""
    roles = pipeline(whole.path)
    if unknown := sorted(set(counts) - set(roles)):
        raise UserError(f"there is a count of '{unknown[0]}', and {whole.path} has {', '.join(roles)}")
    prefix = f"{whole.of}/" if whole.of else ""
    found = {}
    for part, role in roles.items():
        own = float(counts.get(part, role.count))
        check_count(f"'{part}'", "count", own)
        found[f"{prefix}{part}"] = replace(
            whole,
            path=role.path,
            count=whole.count * own,
            after=tuple(f"{prefix}{source}" for source in role.after) or whole.after,
            usual=None if any(name in (whole.shape or "") for name in TOKENS) else role.workload,
            folder=whole.path,
        )
    return found
