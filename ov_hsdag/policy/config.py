"""Settings of the HSDAG network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from ov_hsdag.policy.features import PolicyInput
from ov_hsdag.utils.errors import UserError


@dataclass(frozen=True)
class Widths:
    """Number of features of a node, an edge, a (node, device) pair and a device (`ov_hsdag.policy.features`)."""

    node: int  # features of a node
    edge: int  # features of an edge
    pair: int  # features of a (node, device) pair
    device: int  # features of a device

    @classmethod
    def of(cls, example: PolicyInput) -> Widths:
        """The widths of an input."""
        return cls(*(int(one.shape[-1]) for one in (example.node_x, example.edge_x, example.pair_x, example.device_x)))


@dataclass(frozen=True)
class HSDAGConfig:
    """Settings of the network and of its graph parsing."""

    widths: Widths  # numbers of features
    hidden: int = 64  # width of every hidden state, H
    layers: int = 4  # GNN layers of the encoder
    context: int = 3  # message passing layers between clusters, devices and the whole graph, before clusters are placed
    # whether logits are added to a constant for the best contiguous partition, whose parts no cluster crosses (Silver
    # et al. 2018, "Residual policy learning", arXiv:1812.06298)
    residual: bool = False
    dropout: float = 0.0  # share of hidden units dropped in training
    # number of times that parsing merges along dominant edges. Parsing until nothing merges, as published, leaves one
    # cluster for each connected part of a graph, which no placement can split
    levels: int = 1
    min_clusters: int = 32  # number of clusters at which parsing stops

    @classmethod
    def base(cls, widths: Widths) -> HSDAGConfig:
        """The settings of the shipped policy."""
        return cls(widths, hidden=32, layers=2, context=2, residual=True)

    def to_dict(self) -> dict[str, Any]:
        """The settings as a JSON-able dictionary."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> HSDAGConfig:
        """Inverse of `to_dict`.

        Raises:
            UserError: settings are unknown, missing or out of range.
        """
        setting_names = {field.name for field in fields(cls)}
        try:
            if unknown := sorted(set(values) - setting_names - _RETIRED.keys()):
                raise KeyError(*unknown)
            for name, only in _RETIRED.items():
                if values.get(name, only) != only:
                    raise TypeError(f"{name} can only be {only}")
            widths = Widths(**values["widths"])
            config = cls(**{name: values[name] for name in setting_names & values.keys()} | {"widths": widths})
            settings = {**vars(config), **vars(widths)}
            for name, (least, most) in _RANGES.items():
                value = settings[name]
                kinds = (int, float) if isinstance(least, float) else (type(least),)
                if type(value) not in kinds or not least <= value <= most:
                    raise TypeError(f"{name} has to be from {least} to {most}")
            return config
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"these are not the settings of an HSDAG network: {str(error)[:200]}") from error


# Smallest and largest values of settings, so that no file can define a network that does not fit into memory.
_RANGES: dict[str, tuple[float, float]] = {
    "node": (0, 10_000), "edge": (0, 10_000), "pair": (0, 10_000), "device": (0, 10_000), "hidden": (1, 1024),
    "layers": (0, 64), "context": (0, 64), "levels": (0, 10**6), "min_clusters": (1, 10**6), "dropout": (0.0, 1.0),
    "residual": (False, True),
}  # fmt: skip

# Settings that only policies of earlier releases have, with the only value that is still supported.
_RETIRED: dict[str, object] = {
    "without": [], "conv": "gated", "directed": True, "device_aware": True, "devices": None, "carry": False,
    "reward": "log", "discount": 1.0, "steps": 1,
}  # fmt: skip
