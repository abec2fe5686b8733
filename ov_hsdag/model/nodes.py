"""Reads the properties of a model's nodes once, for several uses.

On deep models every pass over all nodes takes a good part of a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.utils.lazy import ov


def is_integral(element: str) -> bool:
    """Whether an element type, given by its name, is not a floating-point type; so "i64", "u4", "boolean", "string"."""
    return not element.startswith(("f", "bf"))


def variable_of(node: ov.Node) -> str:
    """Returns the identifier of the variable of a ReadValue or an Assign."""
    return str(node.get_attributes()["variable_id"])


@dataclass(frozen=True, eq=False)
class Edges:
    """The edges of a model. An edge e is an input port: those with `ptr[n] <= e < ptr[n + 1]` belong to node n."""

    ptr: NDArray[np.int64]  # where the input ports of each node begin, int64 [nodes + 1]
    source: NDArray[np.int64]  # number of the node that feeds each input port, int64 [edges]
    output: NDArray[np.int64]  # number of the output of that node, int64 [edges]

    @cached_property
    def node(self) -> NDArray[np.int64]:
        """Node that owns each input port, int64 [edges]."""
        return np.repeat(np.arange(len(self.ptr) - 1), np.diff(self.ptr))

    @cached_property
    def port(self) -> NDArray[np.int64]:
        """Number of each input port among those of its node, int64 [edges]."""
        return np.arange(len(self.source)) - self.ptr[self.node]


class Nodes:
    """The nodes of a model with their properties, which are read at their first use and kept.

    They hold as long as nobody changes the model. A node's number is its place in `order`.

    Attributes:
        order: the nodes in topological order, that of `Model.get_ordered_ops`.
    """

    def __init__(self, model: ov.Model) -> None:
        self.order: list[ov.Node] = model.get_ordered_ops()

    def __len__(self) -> int:
        return len(self.order)

    @cached_property
    def names(self) -> list[str]:
        """Friendly names, [nodes]."""
        return [node.get_friendly_name() for node in self.order]

    @cached_property
    def types(self) -> list[str]:
        """OpenVINO operation types such as "Convolution", [nodes]."""
        return [node.get_type_name() for node in self.order]

    @cached_property
    def outputs(self) -> list[tuple[tuple[str, str], ...]]:
        """Shape and element type of each node's outputs as text, (("[?,3,224,224]", "f32"), ...), [nodes]."""
        return [
            tuple(
                (str(node.get_output_partial_shape(port)), node.get_output_element_type(port).get_type_name())
                for port in range(node.get_output_size())
            )
            for node in self.order
        ]

    @cached_property
    def edges(self) -> Edges:
        """The edges between the nodes."""
        number: dict[int, int] = {}
        source, output, ptr = [], [], [0]
        for index, node in enumerate(self.order):
            number[node.get_instance_id()] = index
            for value in node.input_values():
                source.append(number[value.get_node().get_instance_id()])
                output.append(value.get_index())
            ptr.append(len(source))
        return Edges(np.array(ptr, np.int64), np.array(source, np.int64), np.array(output, np.int64))

    def of_type(self, name: str) -> list[ov.Node]:
        """Returns the nodes of an operation type."""
        return [node for node, own in zip(self.order, self.types, strict=True) if own == name]
