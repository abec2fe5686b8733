"""Reads applications: from a TOML file, or from a folder with the models of a pipeline.

A pipeline is a folder of several models that a library runs together, such as the encoder and decoder of Whisper; each
of its models is a part. A spec describes a model or an application before any model is read.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ov_hsdag.applications.application import check_count
from ov_hsdag.applications.prepared import ModelOf
from ov_hsdag.model.config_sizes import with_sizes_beside
from ov_hsdag.model.inputs import example_shapes, parse_shapes
from ov_hsdag.model.workload import TOKENS, Workload
from ov_hsdag.storage.model_folder import is_model_folder, pipeline
from ov_hsdag.utils.arguments import check_argument
from ov_hsdag.utils.errors import UserError, one_line
from ov_hsdag.utils.lazy import ov
from ov_hsdag.utils.reading import SETTINGS, read_bytes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Keys of the file and of each model's table, with the types of their values.
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
    """The description of one model of an application; its file has not been read.

    Attributes:
        path: the model's file.
        count: runs of the model in one run of the application.
        after: names of the models whose outputs it waits for.
        shape: example shapes of its inputs, as text for `parse_shapes`.
        workload: workload that the user gave; only a model with states can have one.
        usual: default workload of such a part of a pipeline, where the user gave none.
        folder: the pipeline's folder that contains the model; None for a single model.
        of: name of the model, or of its pipeline, in the application; "" for a pipeline that is the whole application.
    """

    path: Path
    count: float = 1.0
    after: tuple[str, ...] = ()
    shape: str | None = None
    workload: str | None = None
    usual: str | None = None
    folder: Path | None = None
    of: str = ""


@dataclass(frozen=True)
class ApplicationSpec:
    """The description of an application.

    Attributes:
        models: descriptions by name; parts of a pipeline are named like "whisper/encoder_model".
        device: device list of the file; None where it has none.
        objective: objective of the file; None where it has none.
        memory: memory limits of the file by device; None where it has none.
        rates: whether the counts are rates, inferences per second.
    """

    models: dict[str, ModelSpec]
    device: str | None = None
    objective: str | None = None
    memory: Mapping[str, int | str] | None = None
    rates: bool = False


def read_application(path: Path) -> ApplicationSpec:
    """Reads an application's file; paths in it are relative to its folder.

    Args:
        path: a TOML file.

    Returns:
        The description of the application, in which folders are expanded to their models.

    Raises:
        UserError: the file cannot be read, has unknown keys or values of a wrong type, or names a file that does not
            exist; some models have rates and others counts; a rate or count is not positive.
    """
    data = _read_toml(path)
    try:
        tables = _checked_tables(data)
        rates = _have_rates(tables)
        expanded = _expand_tables(tables, path.parent)
    except (UserError, OverflowError) as error:  # a whole number that is larger than any float
        raise UserError(f"{path}: {error}") from error
    models = _wait_for_last_parts(expanded, tables)
    return ApplicationSpec(models, data.get("device"), data.get("objective"), data.get("memory"), rates)


def _read_toml(path: Path) -> dict[str, Any]:
    """Reads a TOML file; raises UserError where it cannot be read or is no TOML."""
    try:
        return tomllib.loads(read_bytes(path, SETTINGS).decode("utf-8"))
    except OSError as error:
        raise UserError(f"cannot read '{path}': {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"'{path}' is no TOML: {one_line(error)}") from error


def _checked_tables(data: Mapping[str, Any]) -> dict[str, Any]:
    """Checks the keys, the names and the types of an application's file.

    Args:
        data: contents of the file.

    Returns:
        The tables [models.NAME] by NAME; there is at least one.

    Raises:
        UserError: something is wrong.
    """
    _check_table(data, _KEYS, "the application")
    tables: dict[str, Any] = data.get("models") or {}
    if not tables:
        raise UserError('it names no models: give each as [models.NAME] with path = "…"')
    for name, table in tables.items():
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise UserError(f"'{name:.40}' cannot be a model's name, and its file's: use letters, digits, -, _ and .")
        if not isinstance(table, dict):
            raise UserError(f"'models.{name}' is no table: give [models.{name}] with a path")
        _check_table(table, _MODEL_KEYS, f"[models.{name}]")
    return tables


def _have_rates(tables: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether the models have rates in place of counts.

    Args:
        tables: the tables [models.NAME] by NAME.

    Raises:
        UserError: some have rates and others have not.
    """
    without_rate = [name for name, table in tables.items() if "rate" not in table]
    if 0 < len(without_rate) < len(tables):
        raise UserError(f"some models have a rate and '{without_rate[0]}' has none: give rates of all or counts of all")
    return not without_rate


def _expand_tables(tables: Mapping[str, Mapping[str, Any]], base: Path) -> dict[str, ModelSpec]:
    """Describes the models of all tables, see `_expand_table`."""
    specs: dict[str, ModelSpec] = {}
    for name, table in tables.items():
        specs |= _expand_table(name, table, base)
    return specs


def _wait_for_last_parts(specs: Mapping[str, ModelSpec], tables: Iterable[str]) -> dict[str, ModelSpec]:
    """Makes models that wait for a pipeline wait for its last parts: those that no other part waits for.

    Args:
        specs: descriptions by name of the model or part, whose `after` may name pipelines.
        tables: names of the tables, of models and of pipelines.

    Returns:
        Descriptions whose `after` names models and parts alone.
    """
    last_parts = {}
    for table in tables:
        parts = [name for name, spec in specs.items() if spec.of == table]
        waited_for = {source for part in parts for source in specs[part].after}
        last_parts[table] = [part for part in parts if part not in waited_for]
    return {
        name: replace(spec, after=tuple(end for source in spec.after for end in last_parts.get(source, [source])))
        for name, spec in specs.items()
    }


def of_folder(
    folder: Path, counts: Mapping[str, float], workload: str | None, shapes: Sequence[str] | None
) -> ApplicationSpec:
    """Describes the models of a pipeline's folder as an application.

    Args:
        folder: the pipeline's folder.
        counts: inferences of parts in one run of the pipeline, by part; the others keep their usual counts.
        workload: workload of the parts with states, such as "prompt=1024,generate=256"; None for the usual one.
        shapes: example shapes of inputs, as texts for `parse_shapes`.

    Returns:
        The description of the application.

    Raises:
        UserError: the workload cannot be read, or a count names a part that the folder lacks.
    """
    Workload.asked(workload, None)  # also where no model has states
    shape = ",".join(shapes or ()) or None
    return ApplicationSpec(_expand_pipeline(ModelSpec(folder, shape=shape, workload=workload), counts))


def to_place(
    spec: ApplicationSpec, read: Callable[[Path], ov.Model], *, fixes_sizes: bool = False
) -> dict[str, ModelOf]:
    """Reads the models of an application and resolves their shapes and workloads.

    Args:
        spec: the description of the application.
        read: reads a model's file.
        fixes_sizes: whether the example shapes become the models' static shapes. Then only shapes that the user gave
            are used; otherwise sizes from the configuration file beside a model are added.

    Returns:
        The models by name, as `place_together` takes them.

    Raises:
        UserError: a shape does not fit its model, or a model without states has a workload.
    """
    loaded, models = {name: read(model_spec.path) for name, model_spec in spec.models.items()}, dict[str, ModelOf]()
    for name, model_spec in spec.models.items():
        model = loaded[name]
        # A shape may name an input of another part of the pipeline: only a name that no part has is an error.
        siblings = [loaded[other] for other, more in spec.models.items() if more.of == model_spec.of]
        shapes, *_ = example_shapes([model, *siblings], parse_shapes([model_spec.shape] if model_spec.shape else ()))
        if model_spec.workload is not None and not any(other.get_sinks() for other in (model, *siblings)):
            raise UserError(
                f"'{model_spec.of or model_spec.folder}' has no states, so it has no workload of prompt and tokens"
            )
        workload = (model_spec.workload or model_spec.usual) if model.get_sinks() else None
        examples = shapes if fixes_sizes else with_sizes_beside(model, model_spec.path, shapes)
        models[name] = ModelOf(model, model_spec.count, model_spec.after, examples, workload)
    return models


def parse_counts(texts: list[str] | None) -> dict[str, float]:
    """Reads counts such as "unet=30".

    Args:
        texts: the texts, each NAME=NUMBER; None for none.

    Returns:
        The number by name; any number that `float` reads.

    Raises:
        UserError: a text is not NAME=NUMBER.
    """
    counts = {}
    for text in texts or ():
        name, _, number = text.partition("=")
        try:
            counts[name] = float(number)
        except ValueError:
            raise UserError(f"cannot read count '{text}': give it as NAME=NUMBER") from None
    return counts


def _check_table(table: Mapping[str, Any], kinds: Mapping[str, Any], what: str) -> None:
    """Raises UserError where a table has an unknown key or a value of a wrong type.

    Args:
        table: the table.
        kinds: type of each known key's value.
        what: name of the table in messages.
    """
    for key, value in table.items():
        if key not in kinds:
            raise UserError(f"{what} has no '{key}'; there are {', '.join(kinds)}")
        check_argument(f"{what}: {key}", value, kinds[key])


def _expand_table(name: str, table: Mapping[str, Any], base: Path) -> dict[str, ModelSpec]:
    """Describes the models that a table [models.NAME] stands for: one model, or the parts of a folder.

    Args:
        name: NAME of the table.
        table: the table.
        base: folder that paths are relative to.

    Returns:
        Descriptions by name of the model or part.

    Raises:
        UserError: a key is missing, contradicts another one or has an invalid value, or the path does not exist.
    """
    if "path" not in table:
        raise UserError(f"[models.{name}] has no path")
    if "rate" in table and "count" in table:
        raise UserError(f"[models.{name}] has a rate and a count: give one of them")
    key = "rate" if "rate" in table else "count"
    count = float(table.get(key, 1.0))
    check_count(f"[models.{name}]", key, count)
    after = tuple(table.get("after", ()))
    check_argument(f"[models.{name}]: after", list(after), list[str])
    if name in after:
        raise UserError(f"[models.{name}] comes after itself: 'after' names other models")
    model_spec = ModelSpec(base / table["path"], count, after, table.get("shape"), table.get("workload"), of=name)
    if not model_spec.path.exists():
        raise UserError(f"[models.{name}]: there is no '{model_spec.path}'")
    parse_shapes([model_spec.shape] if model_spec.shape else ())
    Workload.asked(model_spec.workload, None)
    if is_model_folder(model_spec.path):
        return _expand_pipeline(model_spec, table.get("counts", {}))
    if "counts" in table:
        raise UserError(f"[models.{name}] is one model and has no parts: give 'count'")
    return {name: model_spec}


def _expand_pipeline(whole: ModelSpec, counts: Mapping[str, Any]) -> dict[str, ModelSpec]:
    """Describes the parts of a pipeline's folder.

    Args:
        whole: the folder, described as if it were one model. Its count multiplies those of the parts, and parts that
            wait for no other part wait for the models that it waits for.
        counts: inferences of parts in one run of the pipeline, by part; the others keep their usual counts.

    Returns:
        Descriptions by part, after the name of the pipeline and "/" where it has one.

    Raises:
        UserError: a count names a part that the folder lacks or is not allowed, or the folder has no model.
    """
    roles = pipeline(whole.path)
    if unknown := sorted(set(counts) - set(roles)):
        raise UserError(f"there is a count of '{unknown[0]}', and {whole.path} has {', '.join(roles)}")
    prefix = f"{whole.of}/" if whole.of else ""
    specs = {}
    for part, role in roles.items():
        count = float(counts.get(part, role.count))
        check_count(f"'{part}'", "count", count)
        specs[f"{prefix}{part}"] = replace(
            whole,
            path=role.path,
            count=whole.count * count,
            after=tuple(f"{prefix}{source}" for source in role.after) or whole.after,
            usual=None if any(name in (whole.shape or "") for name in TOKENS) else role.workload,
            folder=whole.path,
        )
    return specs
