"""Recipes that change the model of another recipe: by quantising, by compressing weights, or for beam search."""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import openvino as ov

from research.zoo.models.base import Recipe
from research.zoo.models.inputs import Inputs

# Sets of random inputs from which NNCF takes the ranges of activations: a few suffice for random weights.
_CALIBRATION_SETS = 8


@dataclass(frozen=True)
class Quantised:
    """Quantises weights and activations to int8 by NNCF's post-training quantisation on random data."""

    base: Recipe
    transformer: bool = False

    def sources(self) -> tuple[Path, ...]:
        return (Path(__file__), *self.base.sources())

    def convert(self, inputs: Inputs, seed: int) -> ov.Model:
        import nncf

        drawn = [inputs(seed + 1 + number)[0] for number in range(_CALIBRATION_SETS)]
        kind = nncf.ModelType.TRANSFORMER if self.transformer else None
        model = self.base.convert(inputs, seed)
        with _quiet():
            return nncf.quantize(model, nncf.Dataset(drawn), model_type=kind, subset_size=len(drawn))


@dataclass(frozen=True)
class CompressedWeights:
    """Compresses weights: to f16 as ovc does, or to int8 or int4 by NNCF, as is usual for language models."""

    base: Recipe
    type: Literal["f16", "int8", "int4"]

    def sources(self) -> tuple[Path, ...]:
        return (Path(__file__), *self.base.sources())

    def convert(self, inputs: Inputs, seed: int) -> ov.Model:
        model = self.base.convert(inputs, seed)
        if self.type == "f16":
            with tempfile.TemporaryDirectory() as folder:
                ov.save_model(model, Path(folder) / "model.xml", compress_to_fp16=True)
                return ov.Core().read_model(Path(folder) / "model.xml")
        import nncf

        with _quiet():
            if self.type == "int8":
                return nncf.compress_weights(model)
            mode = nncf.CompressWeightsMode.INT4_SYM
            return nncf.compress_weights(model, mode=mode, group_size=16, ratio=1.0, all_layers=True)


@dataclass(frozen=True)
class BeamSearch:
    """Makes a stateful decoder reorder its states before using them, as deployed decoders for beam search do.

    The last input, `beams`, has for each beam the index of the beam that it continues, int64 [beams].
    """

    base: Recipe

    def sources(self) -> tuple[Path, ...]:
        return (Path(__file__), *self.base.sources())

    def convert(self, inputs: Inputs, seed: int) -> ov.Model:
        from openvino import opset13 as ops

        *given, beams = inputs.specs
        model = self.base.convert(Inputs(tuple(given), inputs.sizes), seed)
        index = ops.parameter(beams.partial_shape(), ov.Type.i64, name=beams.name)
        index.output(0).get_tensor().set_names({beams.name})
        for node in model.get_ordered_ops():
            if node.get_type_name() == "ReadValue":
                targets = node.output(0).get_target_inputs()
                reordered = ops.gather(node, index, ops.constant(0))
                for target in targets:
                    target.replace_source_output(reordered.output(0))
        model.add_parameters([index])
        model.validate_nodes_and_infer_types()
        return model


@contextmanager
def _quiet() -> Iterator[None]:
    """Redirects NNCF's progress bars and tables to standard error inside the block, and suppresses its log."""
    logging.getLogger("nncf").setLevel(logging.ERROR)
    with redirect_stdout(sys.stderr):
        yield
