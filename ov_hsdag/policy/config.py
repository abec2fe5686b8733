"""Settings of the HSDAG network: of the policy that ships, and what the published algorithm needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from ov_hsdag.policy.features import FeatureSet, PolicyInput
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
        """The widths of any input made with the same `FeatureSet`."""
        return cls(
            *(int(array.shape[-1]) for array in (example.node_x, example.edge_x, example.pair_x, example.device_x))
        )


@dataclass(frozen=True)
class HSDAGConfig:
    """Settings of the network and of the parsing and learning that belong to the algorithm."""

    widths: Widths
    without: tuple[str, ...] = ()  # feature groups that are switched off, fields of `FeatureSet`
    hidden: int = 64  # width of every hidden state, H
    layers: int = 4  # GNN layers of the encoder
    # "gcn" (the paper's; Kipf & Welling 2017, arXiv:1609.02907), or "gated" (Bresson & Laurent 2017, arXiv:1711.07553):
    # gates per edge and channel that see the edge's features
    conv: Literal["gcn", "gated"] = "gated"
    # one convolution per direction of the edges, summed ("gated"), or one over the symmetric graph ("gcn")
    directed: bool = True
    device_aware: bool = True  # the encoder sees what (node, device) pairs look like, pooled over devices
    context: int = 3  # message passing layers between clusters, devices and the whole graph, before clusters are placed
    # None: clusters are scored against embeddings of any number and kind of devices. A number: the paper's softmax over
    # that many fixed devices.
    devices: int | None = None
    # a cluster's embedding is added to its nodes' features for the next step of an episode, as published
    carry: bool = False
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
        return cls(widths)

    @property
    def features(self) -> FeatureSet:
        """The features to compute: all but those that are switched off."""
        return FeatureSet(**dict.fromkeys(self.without, False))

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
            if config.devices is not None and (type(config.devices) is not int or not 1 <= config.devices <= 255):
                raise TypeError("devices has to be a number from 1 to 255")
            for name, choices in _CHOICES.items():
                if given[name] not in choices:
                    raise TypeError(f"{name} has to be one of {', '.join(map(str, choices))}")
            if config.directed != (config.conv == "gated"):
                raise TypeError("gated convolutions are directed, others are not")
            config.features  # noqa: B018 knows which features there are
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
    "conv": ("gcn", "gated"), "reward": ("log", "inverse"), "directed": (False, True),
    "device_aware": (False, True), "carry": (False, True),
}  # fmt: skip
