"""Decoders that are changed between reading and compiling, as openvino.genai does by default: states become inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from openvino._offline_transformations import paged_attention_transformation

from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.model.placement import Placement
from ov_hsdag.problem.pricing import build_problem
from tests.decoders import EXACT, layered, stateful_decoder

LAYERS = 4
DEVICES = DeviceSet.parse("HETERO:CPU_A,CPU_B")
BLOCKS = 2
"""Of 32 tokens, for keys and values."""


def logits(compiled: ov.CompiledModel, steps: int = 6) -> list[NDArray[Any]]:
    """Of a prompt of five tokens and of further ones, each the most probable."""
    request = compiled.create_infer_request()
    for port in compiled.inputs:
        shape = port.get_partial_shape()
        if "_cache." in port.get_any_name():
            shape[0] = BLOCKS
            request.set_tensor(port, ov.Tensor(np.zeros(shape.to_shape(), np.float32)))
    found: list[NDArray[Any]] = []
    tokens, past = [5, 9, 17, 3, 40], 0
    for _ in range(steps):
        request.infer(
            {
                "input_ids": np.array(tokens),
                "position_ids": np.arange(past, past + len(tokens)),
                "past_lens": np.array([past], np.int32),
                "subsequence_begins": np.array([0, len(tokens)], np.int32),
                "block_indices": np.arange(BLOCKS, dtype=np.int32),
                "block_indices_begins": np.array([0, BLOCKS], np.int32),
                "max_context_len": np.array(past + len(tokens), np.int32),
            }
        )
        past += len(tokens)
        found.append(request.get_output_tensor(0).data.reshape(len(tokens), -1)[-1].copy())
        tokens = [int(found[-1].argmax())]
    return found


def paged(core: ov.Core, path: Path) -> ov.Model:
    model = core.read_model(path)
    paged_attention_transformation(model)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("boundary", range(1, LAYERS))
@pytest.mark.parametrize("way", ["library", "python"])
def test_paged_attention_is_where_its_layer_is(
    two_cpu_core: ov.Core, library: Path, boundary: int, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = stateful_decoder(LAYERS)
    problem = build_problem(model, DEVICES, core=two_cpu_core)
    Placement(DEVICES.names, problem.affinity(layered(problem, boundary))).embed(model)
    path = tmp_path / "placed.xml"
    ov.save_model(model, path, compress_to_fp16=False)
    expected = logits(two_cpu_core.compile_model(paged(two_cpu_core, path), "CPU_A", EXACT))

    if way == "library":
        monkeypatch.setattr(
            ov.Core, "compile_model", getattr(ov.Core.compile_model, "__wrapped__", ov.Core.compile_model)
        )
        monkeypatch.setenv("OV_HSDAG_DEVICE", DEVICES.hetero)
        two_cpu_core.add_extension(library)
    changed = paged(two_cpu_core, path)
    assert not changed.get_sinks()
    # HETERO mends shapes of these inputs in its automatic path alone (fix_submodel_with_paged_attention).
    attention = [node for node in changed.get_ops() if node.get_type_name() == "PagedAttentionExtension"]
    shapes = [node.get_input_partial_shape(port) for node in attention for port in range(3)]
    assert len(attention) == LAYERS and all(shape.rank == 2 and shape[1].is_static for shape in shapes)
    compiled = two_cpu_core.compile_model(changed, DEVICES.hetero, EXACT)
    assert compiled.get_property("HETERO_NUMBER_OF_SUBMODELS") == 2
    for own, other in zip(logits(compiled), expected, strict=True):
        np.testing.assert_allclose(own, other, atol=1e-5)
