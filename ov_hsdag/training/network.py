"""The HSDAG network with gradients: `ov_hsdag.policy.forward` on torch tensors, with the weights as parameters.

`export` writes a network as a policy folder, which places without torch. `load` reads a policy folder as a network for
further training.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors.numpy import save_file
from torch import Tensor, nn

from ov_hsdag.policy.bundle import WEIGHTS_FILE, PolicyFolder, write_record
from ov_hsdag.policy.config import HSDAGConfig
from ov_hsdag.policy.features import PolicyInput
from ov_hsdag.policy.forward import Forward
from ov_hsdag.utils.errors import UserError, one_line

_SUMS = 4  # number of weighted sums over a cluster's nodes whose weights the placer learns (`placer.log_weight`)


@dataclasses.dataclass(frozen=True, eq=False)
class GraphBatch:
    """Inputs of several problems with equally many devices, joined to one graph of n nodes; see `PolicyInput`."""

    node_x: Tensor
    edge_index: Tensor
    edge_x: Tensor
    pair_x: Tensor
    device_x: Tensor  # [graphs, D, FD]
    graph: Tensor  # number of the problem that each node belongs to, int64 [n]

    @classmethod
    def of(cls, inputs: Sequence[Any]) -> GraphBatch:
        """Joins inputs; each is a `PolicyInput` with torch tensors, as `tensors` returns it."""
        counts = [len(x.node_x) for x in inputs]
        firsts = itertools.accumulate(counts[:-1], initial=0)
        return cls(
            node_x=torch.cat([x.node_x for x in inputs]),
            edge_index=torch.cat([x.edge_index + first for x, first in zip(inputs, firsts, strict=True)], dim=1),
            edge_x=torch.cat([x.edge_x for x in inputs]),
            pair_x=torch.cat([x.pair_x for x in inputs]),
            device_x=torch.stack([x.device_x for x in inputs]),
            graph=torch.repeat_interleave(torch.arange(len(inputs)), torch.tensor(counts)),
        )


def tensors(x: PolicyInput) -> Any:
    """Replaces the arrays of a `PolicyInput` by torch tensors, which share their memory."""
    values: Any = {field.name: torch.from_numpy(getattr(x, field.name)) for field in dataclasses.fields(x)}
    return dataclasses.replace(x, **values)


def parameter_shapes(config: HSDAGConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields names and shapes of the network's parameters."""
    width, sizes = config.hidden, config.widths

    def linear(name: str, inputs: int, outputs: int, bias: bool = True) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Parameters of a linear layer."""
        yield f"{name}.weight", (outputs, inputs)
        if bias:
            yield f"{name}.bias", (outputs,)

    def norm(name: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Parameters of a layer normalization."""
        yield from ((f"{name}.{part}", (width,)) for part in ("weight", "bias"))

    def mix(name: str, inputs: Sequence[int], outputs: int = width) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Parameters of `Forward.mix` with inputs of these sizes."""
        for number, size in enumerate(inputs):
            yield from linear(f"{name}.parts.{number}", size, width, bias=number == 0)
        yield from norm(f"{name}.norm")
        yield from linear(f"{name}.out", width, outputs)

    def devices(name: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Parameters of `Forward._device_embeddings`."""
        yield from mix(f"{name}.each", [sizes.device])
        yield from mix(f"{name}.all", [width, width])

    yield from devices("encoder.devices")
    yield from mix("encoder.pairs", [sizes.pair, width])
    yield from mix("encoder.input", [sizes.node, width, width])
    for layer in range(config.layers):
        name = f"encoder.layers.{layer}"
        for number in range(2):
            conv = f"{name}.convs.{number}"
            yield f"{conv}.bias", (width,)
            for part in ("key", "query", "value"):
                yield from linear(f"{conv}.lin_{part}", width + sizes.edge, width)
            yield from linear(f"{conv}.lin_skip", width, width, bias=False)
        yield from norm(f"{name}.norm")
    yield from mix("edge_scorer", [width, sizes.edge], 1)
    yield from mix("member", [width])
    yield from mix("whole", [width])
    yield from devices("placer.devices")
    yield from linear("placer.agree", width, width)
    yield from mix("placer.pair", [sizes.pair, width, width])
    yield from linear("placer.log_weight", sizes.pair, _SUMS)
    yield from mix("placer.state", [width, width, width, width, sizes.pair, _SUMS])
    for layer in range(config.context):
        name = f"placer.context.{layer}"
        yield from linear(f"{name}.gates", sizes.edge, 2 * width)
        yield from linear(f"{name}.values", width, 2 * width)
        yield from mix(f"{name}.mix", [width] * 5)
        yield from norm(f"{name}.norm")
    yield from mix("placer.head", [width], 1)
    yield from linear("placer.costs", sizes.pair, 1, bias=False)


class HSDAGNetwork(nn.Module, Forward):
    """The policy network on torch tensors; for inputs and outputs see `Forward`."""

    xp = torch
    one = torch.ones(())
    parameter_shapes = staticmethod(parameter_shapes)

    def __init__(self, config: HSDAGConfig) -> None:
        """Makes a network with random weights, drawn from torch's global generator."""
        super().__init__()
        self.config = config
        shapes = dict(self.parameter_shapes(config))
        for name, shape in shapes.items():
            *path, leaf = name.split(".")
            module: nn.Module = self
            for part in path:
                if part not in dict(module.named_children()):
                    module.add_module(part, nn.Module())
                module = module.get_submodule(part)
            module.register_parameter(leaf, nn.Parameter(_initial(name, shape, shapes)))
        self.weights: Mapping[str, Tensor] = dict(self.named_parameters())

    def graph_of_nodes(self, x: Any) -> Tensor | None:
        """The graph that each node of a `GraphBatch` belongs to, int64 [n]; None for the input of a single graph."""
        return x.graph if isinstance(x, GraphBatch) else None

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """Multiplies rows, [..., inputs], by a weight, [outputs, inputs]: [..., outputs]."""
        return nn.functional.linear(x, weight)

    def sum_rows(self, rows: Tensor, index: Tensor, size: int) -> Tensor:
        """Sums rows of equal index.

        Args:
            rows: the rows, [n, H].
            index: number of the sum that each row belongs to, int64 [n].
            size: number of sums.

        Returns:
            The sums, [size, H], with zeros where there are no rows.
        """
        return rows.new_zeros(size, rows.shape[1]).index_add(0, index, rows)

    def norm(self, name: str, x: Tensor) -> Tensor:
        """Applies the layer normalization of this name to the last axis."""
        return nn.functional.layer_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def sigmoid(self, x: Tensor) -> Tensor:
        """The logistic function of each element."""
        return x.sigmoid()

    def dropout(self, x: Tensor) -> Tensor:
        """Drops hidden units at random in training mode."""
        return nn.functional.dropout(x, self.config.dropout, self.training)


def _initial(name: str, shape: tuple[int, ...], shapes: Mapping[str, tuple[int, ...]]) -> Tensor:
    """The initial value of a parameter, drawn as torch's and torch_geometric's layers draw theirs.

    Args:
        name: name of the parameter.
        shape: its shape.
        shapes: shapes of all parameters, by name. A bias without a weight in them is that of a convolution.
    """
    layer, _, kind = name.rpartition(".")
    if layer.endswith("norm"):
        return torch.ones(shape) if kind == "weight" else torch.zeros(shape)
    if f"{layer}.weight" not in shapes:  # the bias of a convolution
        return torch.zeros(shape)
    inputs = shapes[f"{layer}.weight"][1]
    bound = 1 / math.sqrt(inputs)
    return torch.empty(shape).uniform_(-bound, bound)


def export(network: HSDAGNetwork, folder: str | PathLike[str], run: Mapping[str, Any] | None = None) -> None:
    """Writes a network as a policy folder, which replaces a policy that is there.

    Results of the network and of the policy agree within 1e-5.

    Args:
        network: the network.
        folder: the policy folder.
        run: record of the run that trained the network, JSON-able.

    Raises:
        UserError: the folder cannot be written.
    """
    folder = Path(folder)
    weights = {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in network.state_dict().items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # The record comes last, so that a write that is interrupted leaves no policy rather than a mixed one.
        (folder / "policy.json").unlink(missing_ok=True)
        save_file(weights, folder / WEIGHTS_FILE)
        for name in ("policy.xml", "policy.bin"):  # files of format 1
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot write '{folder}': {error}; choose another output") from error
    write_record(folder, network.config, dict(run or {}))


def load(folder: str | PathLike[str]) -> HSDAGNetwork:
    """Loads the network of a policy folder, with the exact weights that were exported.

    Raises UserError where the folder is no policy, or its weights do not fit the network.
    """
    policy = PolicyFolder.load(Path(folder))
    network = HSDAGNetwork(policy.config)
    weights = policy.network.weights
    try:
        network.load_state_dict({name: torch.from_numpy(weights[name].copy()) for name in network.state_dict()})
    except (KeyError, RuntimeError) as error:
        raise UserError(f"policy '{folder}' has not the weights of its network: {one_line(error)}") from error
    return network
