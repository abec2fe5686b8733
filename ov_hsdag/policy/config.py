"""Settings of the HSDAG network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from ov_hsdag.policy.features import PolicyInput
from ov_hsdag.utils.errors import UserError


@dataclass(frozen=True)
class Widths:
    """Number of features of a node, an edge, a (node, device) pair and a device (`ov_hsdag.policy.features`)."""

    node: int
    edge: int
    pair: int
    device: int

    @classmethod
    def of(cls, example: PolicyInput) -> Widths:
        """The widths of any input."""
        return cls(
            *(int(array.shape[-1]) for array in (example.node_x, example.edge_x, example.pair_x, example.device_x))
        )


@dataclass(frozen=True)
class HSDAGConfig:
    """Settings of the network and of its parsing.

    Some have one value in a policy: others are of the algorithm as published (`research.baselines.published`).
    """

    widths: Widths
    without: tuple[str, ...] = ()  # feature groups that are left out
    hidden: int = 64  # width of every hidden state, H
    layers: int = 4  # GNN layers of the encoder
    # Bresson & Laurent 2017, arXiv:1711.07553: gates per edge and channel that see the edge's features
    conv: Literal["gcn", "gated"] = "gated"
    directed: bool = True  # one convolution per direction of the edges, summed
    device_aware: bool = True  # the encoder sees what (node, device) pairs look like, pooled over devices
    context: int = 3  # message passing layers between clusters, devices and the whole graph, before clusters are placed
    devices: int | None = None  # None: clusters are scored against embeddings of any number and kind of devices
    # logits are added to those of the contiguous partition that the simulator finds best, and no cluster crosses its
    # parts (Silver et al. 2018, "Residual policy learning", arXiv:1812.06298)
    residual: bool = False
    carry: bool = False  # a cluster's embedding is added to its nodes' features for the next step of an episode
    dropout: float = 0.0  # share of hidden units dropped in training
    # how often parsing merges along dominant edges. Parsing until nothing merges, as published, leaves one cluster for
    # each connected part of a graph, on which no placement can be split.
    levels: int = 1
    min_clusters: int = 32  # parsing stops here
    reward: Literal["log", "inverse"] = "log"  # log(best single device / achieved), or 1/latency, the paper's
    discount: float = 1.0  # of the rewards of an episode's later steps
    steps: int = 1  # placements in an episode

    @classmethod
    def base(cls, widths: Widths) -> HSDAGConfig:
        """The settings of the policy that ships."""
        return cls(widths, hidden=32, layers=2, context=2, residual=True)

    def to_dict(self) -> dict[str, Any]:
        """The settings, JSON-able."""
        return {**asdict(self), "without": list(self.without)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> HSDAGConfig:
        """Inverse of `to_dict`. Raises UserError where settings are unknown, missing or out of range."""
        known = {field.name for field in fields(cls)}
        try:
            if unknown := sorted(set(values) - known):
                raise KeyError(*unknown)
            widths = Widths(**values["widths"])
            config = cls(**{**values, "widths": widths, "without": tuple(values.get("without", ()))})
            given = {**vars(config), **vars(widths)}
            for name, (least, most) in _RANGES.items():
                value = given[name]
                kinds = (int,) if isinstance(least, int) else (int, float)
                if type(value) not in kinds or not least <= value <= most:
                    raise TypeError(f"{name} has to be a number from {least} to {most}")
            for name, choices in _CHOICES.items():
                if given[name] not in choices:
                    raise TypeError(f"{name} has to be one of {', '.join(map(str, choices))}")
            return config
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"these are not the settings of an HSDAG network: {str(error)[:200]}") from error


# What settings may be, so that no file makes a network that no machine holds.
_RANGES: dict[str, tuple[float, float]] = {
    "node": (0, 10_000), "edge": (0, 10_000), "pair": (0, 10_000), "device": (0, 10_000), "hidden": (1, 1024),
    "layers": (0, 64), "context": (0, 64), "levels": (0, 10**6), "min_clusters": (1, 10**6),
    "steps": (1, 10**6), "dropout": (0.0, 1.0), "discount": (0.0, 1.0),
}  # fmt: skip
_CHOICES: dict[str, tuple[object, ...]] = {
    "conv": ("gated",), "reward": ("log", "inverse"), "directed": (True,), "device_aware": (True,),
    "carry": (False,), "residual": (True, False), "devices": (None,), "without": ((),),
}  # fmt: skip
