"""The model zoo that tests, benchmarks and the training corpus share.

Architectures come from the onnx wheel, from transformers' configurations and from torch modules in this package;
weights are drawn from a seed, and nothing is downloaded. The extra `bench` is needed when a model is built for the
first time; later it is read from a cache.

How models are made: a `ZooModel` (models/base.py) has a recipe, the inputs to infer it with (models/inputs.py) and
tags. A recipe (models/recipes.py, derived.py, formats.py) turns a class of transformers, a torch module or a graph of
onnx, OpenVINO or TFLite operations into an `ov.Model`. The models are listed in models/onnx_light.py, text.py,
vision.py, other.py and formats.py: a new one is a line in one of them. The cache is keyed by the recipe's settings, the
text of its sources and the versions of the packages, so an edit of a source builds its models again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from ov_hsdag.utils.errors import UserError
from research.zoo.models import formats, onnx_light, other, text, vision
from research.zoo.models.base import CACHE_VARIABLE, ZooModel, cache_folder

# torch makes this folder when a model is built; by default it would be among the temporary files.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "torch"))

__all__ = ["CACHE_VARIABLE", "ZOO", "ZooModel", "cache_folder", "select"]


def _registry(models: Iterable[ZooModel]) -> dict[str, ZooModel]:
    """The models by name. Raises ValueError if two have the same name."""
    registry: dict[str, ZooModel] = {}
    for model in models:
        if model.name in registry:
            raise ValueError(f"two models of the zoo are called '{model.name}'")
        registry[model.name] = model
    return registry


ZOO: dict[str, ZooModel] = _registry((*onnx_light.MODELS, *text.MODELS, *vision.MODELS, *other.MODELS, *formats.MODELS))


def select(wanted: Iterable[str]) -> list[ZooModel]:
    """Selects models of the zoo.

    Args:
        wanted: names of models, families or tags.

    Returns:
        The models in the zoo's order, each once.

    Raises:
        UserError: a word is no name, family or tag.
    """
    chosen: set[str] = set()
    for word in wanted:
        alike = {name for name, model in ZOO.items() if word == model.family or word in model.tags}
        names = {word} if word in ZOO else alike
        if not names:
            raise UserError(f"the model zoo has no model, family or tag '{word}'; the names are: {', '.join(ZOO)}")
        chosen |= names
    return [model for name, model in ZOO.items() if name in chosen]
