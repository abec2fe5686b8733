"""The class of the zoo's models, and the cache of their converted IRs."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import openvino as ov
from numpy.typing import NDArray

from research.zoo.models.inputs import Inputs

CACHE_VARIABLE = "OV_HSDAG_ZOO_CACHE"
SEED = 0  # of all weights, so that a model is the same in each process


class Recipe(Protocol):
    """A way to make a model. The `repr` of recipes that make different models must differ, as the cache uses it."""

    def convert(self, inputs: Inputs, seed: int) -> ov.Model:
        """Makes the model. inputs: its inputs; seed: of its weights."""
        ...

    def sources(self) -> tuple[Path, ...]:
        """The source files that determine the result of `convert`."""
        ...


@dataclass(frozen=True)
class ZooModel:
    """A real architecture with seeded random weights.

    Attributes:
        name: unique name, such as "bert-small".
        family: group of models that must not be split between training and held-out models, such as "bert".
        recipe: makes the model.
        inputs: called with a seed, returns input sets, each a dict of arrays by input name.
        tags: "quick" (converts in seconds, and needs a few megabytes; used by tests), "full" (the size of the published
            model; may be quick as well), "stateful" (has ReadValue and Assign).
        dynamic: whether an input dimension is dynamic.
    """

    name: str
    family: str
    recipe: Recipe
    inputs: Callable[[int], list[dict[str, NDArray[Any]]]]
    tags: frozenset[str]
    dynamic: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dynamic", isinstance(self.inputs, Inputs) and self.inputs.dynamic)

    def build(self) -> ov.Model:
        """The model, from the cache after the first time. Its weights are the same in all processes."""
        folder = cache_folder() / f"{self.name}-{self._key()}"
        if not (folder / "model.xml").exists():
            self._convert_into(folder)
        return ov.Core().read_model(folder / "model.xml")

    def _convert_into(self, folder: Path) -> None:
        assert isinstance(self.inputs, Inputs)
        model = self.recipe.convert(self.inputs, SEED)
        model.set_friendly_name(self.name)
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{self.name}-", dir=folder.parent))
        try:
            ov.save_model(model, temporary / "model.xml", compress_to_fp16=False)
            temporary.rename(folder)
        except OSError:
            # Another process may have been faster; its folder has the same model.
            if not (folder / "model.xml").exists():
                raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _key(self) -> str:
        digest = hashlib.sha256(repr((self.name, SEED, self.recipe, self.inputs, _versions())).encode())
        for source in sorted(
            {Path(__file__), Path(sys.modules[Inputs.__module__].__file__ or ""), *self.recipe.sources()}
        ):
            digest.update(source.read_bytes())
        return digest.hexdigest()[:16]


def model(name: str, family: str, recipe: Recipe, inputs: Inputs, *tags: str) -> ZooModel:
    """Makes a model of the zoo.

    Args:
        name: unique name.
        family: group of models that training and held-out models must not share.
        recipe: makes the model.
        inputs: inputs to infer it with.
        tags: see `ZooModel`; "quick" by default.

    Returns:
        The model.
    """
    return ZooModel(name, family, recipe, inputs, frozenset(tags or ("quick",)))


def cache_folder() -> Path:
    """The folder of converted models: $OV_HSDAG_ZOO_CACHE, else a folder in the user's cache."""
    if folder := os.environ.get(CACHE_VARIABLE):
        return Path(folder)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "ov_hsdag" / "zoo"
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ov_hsdag" / "zoo"


def _versions() -> tuple[tuple[str, str], ...]:
    versions = []
    for package in ("openvino", "onnx", "torch", "transformers"):
        try:
            versions.append((package, metadata.version(package)))
        except metadata.PackageNotFoundError:
            versions.append((package, ""))
    return tuple(versions)
