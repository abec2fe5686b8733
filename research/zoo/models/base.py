"""A model of the zoo, and the cache of its converted IR."""

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
SEED = 0


class Recipe(Protocol):
    """How a model is made. `repr` must tell apart two recipes that make different models."""

    def convert(self, inputs: Inputs, seed: int) -> ov.Model: ...

    def sources(self) -> tuple[Path, ...]:
        """Files whose text decides what `convert` makes."""
        ...


@dataclass(frozen=True)
class ZooModel:
    """A real architecture with seeded random weights.

    name: unique, e.g. "bert-small". family: what must not be split between training and held-out models, e.g. "bert".
    inputs: seed → input sets, each a dict of arrays by input name. dynamic: some input dimension is dynamic.
    tags: "quick" (converts in seconds, at most a few megabytes to infer with; what the tests use) and "full" (the real
        size of the published model); some models are both. "stateful": has ReadValue and Assign.
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
        """The model, read from the cache after the first time. The same weights each time, in each process."""
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
            # Another process may have been quicker: its folder holds the same model.
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
    """A zoo entry; without tags it is a quick one."""
    return ZooModel(name, family, recipe, inputs, frozenset(tags or ("quick",)))


def cache_folder() -> Path:
    """Where converted models are kept: $OV_HSDAG_ZOO_CACHE, else a folder in the user's cache."""
    if folder := os.environ.get(CACHE_VARIABLE):
        return Path(folder)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "ov_hsdag" / "zoo"
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ov_hsdag" / "zoo"


def _versions() -> tuple[tuple[str, str], ...]:
    found = []
    for package in ("openvino", "onnx", "torch", "transformers"):
        try:
            found.append((package, metadata.version(package)))
        except metadata.PackageNotFoundError:
            found.append((package, ""))
    return tuple(found)
