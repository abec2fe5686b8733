"""A trained network as a policy folder, which places without torch; and back, for further training.

The folder holds policy.xml and policy.bin (one OpenVINO model: encoder and placer as two disconnected parts),
policy.safetensors (the few weights that conversion folds away) and policy.json (see `ov_hsdag.policy.bundle`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from torch import Tensor, nn

from ov_hsdag.policy.bundle import ENCODER, PLACER, check_folder, write_record
from ov_hsdag.storage.files import save_model_atomically
from ov_hsdag.training.config import HSDAGConfig, Widths
from ov_hsdag.training.network import GraphBatch, HSDAGNetwork
from ov_hsdag.utils.errors import UserError, one_line


def export(network: HSDAGNetwork, folder: str | PathLike[str], run: Mapping[str, Any] | None = None) -> None:
    """Writes a policy folder; results of the two agree within 1e-5.

    Args:
        network: trained; not changed.
        folder: made where it does not exist; a policy in it is replaced.
        run: the record of the run that made it, JSON-able.

    Raises:
        UserError: the folder cannot be written.
    """
    folder = Path(folder)
    model = to_openvino(network)
    in_model = _constants(model)
    weights = {name: tensor.detach().cpu().numpy() for name, tensor in network.state_dict().items()}
    apart = {
        name: np.ascontiguousarray(value)
        for name, value in weights.items()
        if name not in in_model or not np.array_equal(in_model[name], value)
    }
    save_model_atomically(model, folder / "policy.xml", compress_to_fp16=False)
    try:
        save_file(apart, folder / "policy.safetensors")
    except OSError as error:
        raise UserError(f"cannot write '{folder}': {error}; choose another output") from error
    write_record(folder, network.config.to_dict(), dict(run or {}))


def load(folder: str | PathLike[str]) -> HSDAGNetwork:
    """The network of a policy folder, with the exact weights that were exported.

    Raises:
        UserError: the folder is no policy, or a damaged one.
    """
    record = check_folder(folder)
    network = HSDAGNetwork(HSDAGConfig.from_dict(record["config"]))
    try:
        weights = _constants(ov.Core().read_model(Path(folder) / "policy.xml"))
        weights.update(load_file(Path(folder) / "policy.safetensors"))
        names = network.state_dict().keys()
        network.load_state_dict({name: torch.from_numpy(weights[name]) for name in names})
    except (KeyError, TypeError, ValueError, RuntimeError, OSError, SafetensorError) as error:
        raise UserError(f"policy '{folder}' has not the weights of its network: {one_line(error)}") from error
    return network


def to_openvino(network: HSDAGNetwork) -> ov.Model:
    """Encoder and placer as one model with dynamic numbers of nodes, edges, devices and clusters.

    Inputs and outputs are those of `ov_hsdag.policy.bundle.ENCODER` and `PLACER`, with these names.
    """
    example = _example(network.config.widths, network.config.devices or 2)
    training, device = network.training, next(network.parameters()).device
    network = network.eval().cpu()
    try:
        with torch.no_grad(), warnings.catch_warnings():
            # Tracing warns of each check of a shape, and of its age; OpenVINO's frontend traces too.
            warnings.filterwarnings("ignore", category=torch.jit.TracerWarning)  # type: ignore[attr-defined]
            warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch.jit")
            h, edge_score = network.encode(_batch(example))
            clusters = int(example["cluster"].max()) + 1
            example |= {"h": h, "edge_score": edge_score, "clusters": torch.arange(clusters)}
            parts = [
                _convert(_Encoder(network), example, ENCODER.inputs, ENCODER.outputs),
                _convert(_Placer(network), example, PLACER.inputs, PLACER.outputs),
            ]
    finally:
        network.train(training).to(device)
    results = [result for part in parts for result in part.get_results()]
    parameters = [parameter for part in parts for parameter in part.get_parameters()]
    return ov.Model(results, parameters, "hsdag")


class _Encoder(nn.Module):
    def __init__(self, network: HSDAGNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        return self.network.encode(_batch(dict(zip(ENCODER.inputs, inputs, strict=True))))


class _Placer(nn.Module):
    def __init__(self, network: HSDAGNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, *inputs: Tensor) -> Tensor:
        named = dict(zip(PLACER.inputs, inputs, strict=True))
        batch = _batch({"node_x": named["h"], **named})
        # The number of clusters is the size of an input: a number itself would be a constant of the traced graph.
        clusters = named["clusters"].size(0)
        return self.network.logits(named["h"], named["edge_score"], batch, named["cluster"], clusters)


def _batch(named: Mapping[str, Tensor]) -> GraphBatch:
    return GraphBatch(
        named["node_x"], named["edge_index"], named["edge_x"], named["pair_x"], named["device_x"].unsqueeze(0)
    )


def _convert(
    module: nn.Module, example: Mapping[str, Tensor], inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> ov.Model:
    arguments = tuple(example[name] for name in inputs)
    # Without check_trace, which runs everything twice more: `export` is tested on other sizes than the example's.
    traced = torch.jit.trace(module, arguments, check_trace=False)  # type: ignore[no-untyped-call]
    model = ov.convert_model(traced, example_input=arguments)
    for port, name in zip(model.inputs, inputs, strict=True):
        # The same tensor enters both parts, and names are unique in a model.
        full = name if module.__class__ is _Encoder else f"placer.{name}"
        port.get_tensor().set_names({full})
        port.get_node().set_friendly_name(full)
    for port, name in zip(model.outputs, outputs, strict=True):
        port.get_tensor().set_names({name})
        port.get_node().set_friendly_name(name)
    return model


def _example(widths: Widths, devices: int) -> dict[str, Tensor]:
    """Inputs to trace with: sizes that are all different, so that none is mistaken for another."""
    nodes, edges = 23, 31
    generator = torch.Generator().manual_seed(0)
    start = torch.randint(0, nodes - 1, (edges,), generator=generator)
    return {
        "node_x": torch.randn(nodes, widths.node, generator=generator),
        "edge_index": torch.stack([start, start + 1]),
        "edge_x": torch.randn(edges, widths.edge, generator=generator),
        "pair_x": torch.randn(nodes, devices, widths.pair, generator=generator),
        "device_x": torch.randn(devices, widths.device, generator=generator),
        "cluster": torch.arange(nodes) // 4,
    }


def _constants(model: ov.Model) -> dict[str, NDArray[Any]]:
    """Weights by their name in the network, as far as conversion has kept the name."""
    marker = "self.network."
    return {
        node.get_friendly_name()[len(marker) :]: np.array(node.data)
        for node in model.get_ops()
        if node.get_type_name() == "Constant" and node.get_friendly_name().startswith(marker)
    }
