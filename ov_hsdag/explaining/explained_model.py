"""The explanation of a placed model as objects in JSON's types: operations, submodels, cuts and moves.

A cut here is one tensor that is transferred between two devices (`Cut`), and a move the change of a placement by which
one co-location group goes to another device (`Move`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ov_hsdag.costs.profile import Profile
from ov_hsdag.explaining.bound import describe_bound
from ov_hsdag.explaining.dominant_group import describe_dominant_group
from ov_hsdag.explaining.explanation import Cut, Explanation, Move, Reason
from ov_hsdag.explaining.timeline import execution_order, submodel_us
from ov_hsdag.model.experts import experts
from ov_hsdag.model.graph import NodeKind
from ov_hsdag.model.names import matching, similar
from ov_hsdag.model.placement import Placement
from ov_hsdag.model.workload import Phase
from ov_hsdag.problem.copies import copies_summary
from ov_hsdag.problem.pricing import ModelAnalysis
from ov_hsdag.utils.errors import UserError

_FEW = 3  # moves, and types of a submodel's operations, that a summary names


@dataclass(frozen=True, eq=False)
class ExplainedModel:
    """A placed model and the explanation of its placement."""

    explanation: Explanation  # of the placement that HETERO would run
    placement: Placement  # the placement with its stored predictions and measurements
    profile: Profile  # source of the costs
    measured: tuple[str, ...]  # devices whose operations were measured
    request: str = "one request"  # the unit to which times refer
    analysis: ModelAnalysis | None = None  # of the normalized model; None in the report that follows a placing
    phases: tuple[Phase, ...] = ()  # phases of its workload

    @property
    def profiles(self) -> dict[str, str]:
        """The name of each device's built-in profile; "" where its figures come from a file."""
        return {name: self.profile.device(name).builtin for name in self.explanation.problem.devices}

    def __repr__(self) -> str:
        """The headline, as in the output of `ov-hsdag explain`."""
        return self.headline("the model")

    def headline(self, model: str) -> str:
        """One line with the devices, the objective, and the times of a request; `model` is the name to begin with."""
        problem, result = self.explanation.problem, self.explanation.evaluation
        latency, period = (f"{float(us[0]) / 1e3:,.3f} ms" for us in (result.latency_us, result.period_us))
        return (
            f"{model} on HETERO:{','.join(problem.devices)} ({problem.objective}):"
            f" {self.request} {latency}, a result every {period} with many in flight"
        )

    def summary(self, moves: bool = True) -> dict[str, Any]:
        """Summarizes the model as a whole: devices, submodels, cuts, gains and the best moves.

        Args:
            moves: whether the best moves are computed, which simulates each group on each other device.

        Returns:
            An object of JSON's types; times in µs. "together" is the line of `describe_dominant_group`, and "bound"
            that of `describe_bound`. "closest_moves" is None where moves are not computed.
        """
        explained, problem = self.explanation, self.explanation.problem
        result = explained.evaluation
        operations = np.isin(problem.graph.kinds, (NodeKind.OP, NodeKind.SINK))
        memory, limits = problem.stored_bytes(result.memory_bytes[0]), problem.stored_limits
        busy = result.busy_us[0]
        devices = {
            name: {
                "operations": int((operations & (explained.device == index)).sum()),
                "busy_us": float(busy[index]),
                "memory_bytes": memory[index],
                "memory_limit_bytes": limits[index],
            }
            for index, name in enumerate(problem.devices)
        }
        cuts = sorted(explained.cuts, key=lambda cut: -cut.us)
        return {
            "devices": devices,
            "objective": problem.objective,
            "feasible": not result.infeasible[0],
            "together": describe_dominant_group(problem.graph, problem.groups),
            "bound": describe_bound(explained),
            "latency_us": float(result.latency_us[0]),
            "period_us": float(result.period_us[0]),
            "parts_us": asdict(explained.parts),
            "gains": self._gains(),
            "submodels": self._submodels(),
            "experts": self._experts(),
            "cuts": [self._cut(cut) for cut in cuts],
            "closest_moves": [self._move(move) for move in explained.closest_moves(_FEW)] if moves else None,
        }

    def operation(self, node: int) -> dict[str, Any]:
        """Describes one node: its device, its costs there and elsewhere, its submodel, and the reason for its device.

        Args:
            node: number of the node in the graph.

        Returns:
            An object of JSON's types. "us" is the node's time on its device, µs; "share" that time as a share of the
            time of one request, all terms together (`Parts`); "us_on" its time on each device, None where the device
            does not run it; "submodel" -1 for a node in none; "moves_with" the number of other nodes in its co-location
            group; "because_of" the name of the node that the reason refers to, or None.
        """
        explained, problem = self.explanation, self.explanation.problem
        reason: Reason = explained.reason(node)
        total = max(explained.parts.total, 1e-30)
        members = int((problem.groups == problem.groups[node]).sum())
        return {
            "name": problem.graph.names[node],
            "type": problem.graph.types[node],
            "device": problem.devices[explained.device[node]],
            "submodel": int(explained.submodel[node]),
            "us": float(explained.node_us[node]),
            "share": float(explained.node_us[node]) / total,
            "us_on": {
                name: float(problem.node_us[node, index]) if problem.supported[node, index] else None
                for index, name in enumerate(problem.devices)
            },
            "moves_with": members - 1,
            "why": reason.text,
            "reason": reason.kind,
            "because_of": problem.graph.names[reason.other] if reason.other >= 0 else None,
            "best_move": None if reason.move is None else self._move(reason.move),
        }

    def nodes(self, names: Sequence[str] = (), types: Sequence[str] = ()) -> list[int]:
        """Finds the nodes that match one of the names or types.

        Args:
            names: friendly names; they may have `*` and `?`, as in file names.
            types: types of operations, with the same wildcards.

        Returns:
            Numbers of the nodes, ascending; those of all operations where neither names nor types are given.

        Raises:
            UserError: a name or type matches no node.
        """
        graph = self.explanation.problem.graph
        if not names and not types:
            return [int(node) for node in np.flatnonzero(np.isin(graph.kinds, (NodeKind.OP, NodeKind.SINK)))]
        matched: set[int] = set()
        for patterns, candidates, what in ((names, graph.names, "node"), (types, graph.types, "type")):
            for pattern in patterns:
                nodes = matching(candidates, pattern)
                if not nodes:
                    raise UserError(f"the model has no {what} '{pattern}'; {similar(pattern, candidates)}")
                matched.update(nodes)
        return sorted(matched)

    def _gains(self) -> dict[str, float | None]:
        """Predicted gain over each single device and over copies, by name, as a ratio.

        It is None for a device that cannot run the model.
        """
        explained, problem = self.explanation, self.explanation.problem
        gains: dict[str, float | None] = {
            name: float(score / explained.score_us) if np.isfinite(score) else None
            for name, score in zip(problem.devices, problem.scores(problem.singles), strict=True)
        }
        copies = copies_summary(problem)
        if copies is not None:
            gains["copies"] = 1e6 / copies["throughput_ips"] / explained.score_us
        return gains

    def _submodels(self) -> list[dict[str, Any]]:
        """Describes each submodel, by its number.

        "us" is its time in a request, µs; "order" its place in the order of execution, from 1; "first" and "last" the
        names of its first and last operation, None without operations; "types" its most frequent types with counts.
        """
        explained, problem = self.explanation, self.explanation.problem
        operations = problem.graph.kinds == NodeKind.OP
        us, places = submodel_us(explained), {one: place for place, one in enumerate(execution_order(explained), 1)}
        submodels = []
        for number, device in enumerate(explained.submodel_device.tolist()):
            inside = np.flatnonzero((explained.submodel == number) & operations)
            names = problem.graph.names
            submodel = {
                "device": problem.devices[device],
                "operations": len(inside),
                "us": us[number],
                "order": places[number],
                "first": names[inside[0]] if len(inside) else None,
                "last": names[inside[-1]] if len(inside) else None,
                "types": dict(Counter(problem.graph.types[node] for node in inside).most_common(_FEW)),
            }
            submodels.append(submodel)
        return submodels

    def _experts(self) -> list[dict[str, Any]]:
        """Describes each block of routed experts: its device, sizes ("chosen" of "all" experts), time and weights."""
        explained, problem = self.explanation, self.explanation.problem
        return [
            {
                "name": problem.graph.names[block.sum],
                "device": problem.devices[explained.device[block.sum]],
                "chosen": block.chosen,
                "all": block.all,
                "us": float(explained.node_us[block.nodes].sum()),
                "weights_bytes": int(problem.graph.weight_bytes[block.weights(problem.graph)].sum()),
            }
            for block in experts(problem.graph)
        ]

    def _cut(self, cut: Cut) -> dict[str, Any]:
        """A cut with the names of its tensor's producer and of the two devices; bytes, and time in µs."""
        problem = self.explanation.problem
        return {
            "tensor": problem.graph.names[cut.node],
            "from": problem.devices[cut.source],
            "to": problem.devices[cut.target],
            "bytes": cut.bytes,
            "us": cut.us,
        }

    def _move(self, move: Move) -> dict[str, Any]:
        """A move with the name of the group's first operation and of the new device.

        "moves" is the number of nodes in the group; "cost_us" the change of the objective, None where it is infeasible.
        """
        problem = self.explanation.problem
        members = np.flatnonzero(problem.groups == move.group)
        first = members[(problem.graph.kinds[members] == NodeKind.OP).argmax()]  # operation, or node where none is one
        return {
            "operation": problem.graph.names[first],
            "moves": len(members),
            "to": problem.devices[move.device],
            "cost_us": move.cost_us if np.isfinite(move.cost_us) else None,
            "parts_us": asdict(move.parts),
            "infeasible": move.infeasible,
        }
