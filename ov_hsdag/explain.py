"""What runs where in a placed model, what it costs there and elsewhere, and why it is there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from ov_hsdag.costs.profile import Profile
from ov_hsdag.costs.stored import ModelCosts
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.devices.virtual import new_core
from ov_hsdag.model import complete
from ov_hsdag.model.graph import NodeKind
from ov_hsdag.model.placement import Placement
from ov_hsdag.model.workload import Workload
from ov_hsdag.problem.analysis import prepare
from ov_hsdag.problem.copies import copies_summary
from ov_hsdag.problem.explanation import Cut, Explanation, Move, Reason
from ov_hsdag.problem.pricing import price, price_workload, resolve_profile
from ov_hsdag.utils.errors import UserError

if TYPE_CHECKING:
    import openvino as ov

# Cuts and moves that a summary names.
_FEW = 3


@dataclass(frozen=True, eq=False)
class ExplainedModel:
    """A placed model and the explanation of its placement.

    Attributes:
        explanation: of the placement that HETERO would run.
        objective: "latency" or "throughput".
    """

    explanation: Explanation
    objective: str

    def summary(self) -> dict[str, Any]:
        """Devices, submodels, cuts, gains and the moves that come closest to paying, in JSON's types; times in µs.

        Takes a simulation for each group of operations on each other device.
        """
        explained, problem = self.explanation, self.explanation.problem
        result = explained.evaluation
        operations = np.isin(problem.graph.kinds, (NodeKind.OP, NodeKind.SINK))
        memory, limits = problem.stored_bytes(result.memory_bytes[0]), problem.stored_bytes(problem.memory_bytes)
        busy = result.busy_us[0]
        devices = {
            name: {
                "operations": int((operations & (explained.device == index)).sum()),
                "busy_us": float(busy[index]),
                "memory_bytes": memory[index],
                "memory_limit_bytes": limits[index] if problem.memory_bytes[index] >= 0 else None,
            }
            for index, name in enumerate(problem.devices)
        }
        cuts = sorted(explained.cuts, key=lambda cut: -cut.us)
        return {
            "devices": devices,
            "objective": self.objective,
            "feasible": not result.infeasible[0],
            "latency_us": float(result.latency_us[0]),
            "period_us": float(result.period_us[0]),
            "parts_us": asdict(explained.parts),
            "gains": self._gains(),
            "submodels": self._submodels(),
            "cuts": [self._cut(cut) for cut in cuts],
            "closest_moves": [self._move(move) for move in explained.closest_moves(_FEW)],
        }

    def operation(self, node: int) -> dict[str, Any]:
        """All that is known of a node: device, costs here and elsewhere, submodel, and why it is here."""
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
        """Nodes with one of the names or types; all operations, in the order of the graph, where neither is given.

        Args:
            names: friendly names; `*` and `?` stand for any characters, as in file names.
            types: of operations, such as "MatMul".

        Raises:
            UserError: no node has a name or type.
        """
        import difflib
        from fnmatch import fnmatchcase

        graph = self.explanation.problem.graph
        if not names and not types:
            return [int(node) for node in np.flatnonzero(np.isin(graph.kinds, (NodeKind.OP, NodeKind.SINK)))]
        found: set[int] = set()
        for wanted, known, what in ((names, graph.names, "node"), (types, graph.types, "type")):
            for pattern in wanted:
                matching = {
                    node for node, name in enumerate(known) if name == pattern or fnmatchcase(name, pattern)
                }  # a name may have brackets of its own
                if not matching:
                    near = difflib.get_close_matches(pattern, set(known), n=3)
                    hint = f"; similar: {', '.join(near)}" if near else ""
                    raise UserError(f"the model has no {what} '{pattern}'{hint}")
                found |= matching
        return sorted(found)

    def _gains(self) -> dict[str, float | None]:
        """How many times better than each device alone, and than a copy on each; None where that is impossible."""
        explained, problem = self.explanation, self.explanation.problem
        singles = np.stack([problem.single(index) for index in range(len(problem.devices))])
        gains: dict[str, float | None] = {
            name: float(score / explained.score_us) if np.isfinite(score) else None
            for name, score in zip(problem.devices, problem.scores(singles), strict=True)
        }
        copies = copies_summary(problem)
        if copies is not None:
            gains["copies"] = 1e6 / copies["throughput_ips"] / explained.score_us
        return gains

    def _submodels(self) -> list[dict[str, Any]]:
        explained, problem = self.explanation, self.explanation.problem
        operations = problem.graph.kinds == NodeKind.OP
        found = []
        for number, device in enumerate(explained.submodel_device.tolist()):
            inside = np.flatnonzero((explained.submodel == number) & operations)
            names = problem.graph.names
            found.append(
                {
                    "device": problem.devices[device],
                    "operations": len(inside),
                    "us": float(explained.node_us[explained.submodel == number].sum() + problem.submodel_us[device]),
                    "first": names[inside[0]] if len(inside) else None,
                    "last": names[inside[-1]] if len(inside) else None,
                    "types": dict(Counter(problem.graph.types[node] for node in inside).most_common(_FEW)),
                }
            )
        return found

    def _cut(self, cut: Cut) -> dict[str, Any]:
        problem = self.explanation.problem
        return {
            "tensor": problem.graph.names[cut.node],
            "from": problem.devices[cut.source],
            "to": problem.devices[cut.target],
            "bytes": cut.bytes,
            "us": cut.us,
        }

    def _move(self, move: Move) -> dict[str, Any]:
        problem = self.explanation.problem
        operations = np.flatnonzero((problem.groups == move.group) & (problem.graph.kinds == NodeKind.OP))
        members = np.flatnonzero(problem.groups == move.group)
        first = int(operations[0]) if len(operations) else int(members[0])
        return {
            "operation": problem.graph.names[first],
            "moves": len(members),
            "to": problem.devices[move.device],
            "cost_us": move.cost_us if np.isfinite(move.cost_us) else None,
            "parts_us": asdict(move.parts),
            "infeasible": move.infeasible,
        }


def explain(
    model: ov.Model,
    device: str | Sequence[str] | None = None,
    *,
    affinity: Mapping[str, str] | Placement | None = None,
    objective: str | None = None,
    profile: Profile | str | PathLike[str] | None = None,
    core: ov.Core | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    memory: Mapping[str, int] | None = None,
    costs: ModelCosts | None = None,
    workload: Workload | str | None = None,
    context: int | None = None,
) -> ExplainedModel:
    """Explains the placement inside a model, or one that is given.

    Args:
        model: any; normalized in place.
        device: the devices, in HETERO's order; by default those of the placement.
        affinity: a placement of the model; by default the one that it carries, or affinities of its nodes.
        objective: "latency" or "throughput"; by default the placement's.
        profile: speeds of the devices, or the path of a profile's file; built-in profiles by default.
        core: asked what the devices support, where it has them. A new one by default.
        shapes: example shapes of dynamic inputs, by input name.
        memory: bytes that the model may have on a device, in place of the profile's limits.
        costs: measured costs of the model, used for the devices that they hold for.
        workload: as in `ov_hsdag.place`.
        context: as in `ov_hsdag.place`.

    Raises:
        UserError: bad input, or a model without a placement.
        RunError: a device cannot say what it supports.
    """
    given = _placement(model, affinity)
    devices = DeviceSet(given.devices) if device is None else DeviceSet.parse(device)
    if devices.names != given.devices:
        given = given.map_to(devices.names)
    chosen = objective or given.objective
    core = core or new_core()
    known = resolve_profile(profile, devices.names, core).with_memory(memory or {})
    asked = Workload.asked(workload, context)
    phases = asked.phases_with(model, shapes) if asked else ()
    original = {node.get_friendly_name() for node in model.get_ops()}
    analysis = prepare(model, devices.names, core, known, shapes=phases[-1].shapes if phases else shapes)
    given.check_nodes(original.union(analysis.graph.names))
    if phases:
        problem = price_workload(analysis, chosen, known, core, phases).problem
    else:
        problem = price(analysis, chosen, known, core, costs)
    whole = complete.complete(model, given.affinity, devices.names, problem.graph)
    return ExplainedModel(Explanation(problem, problem.placement_of(whole)), chosen)


def _placement(model: ov.Model, affinity: Mapping[str, str] | Placement | None) -> Placement:
    """The given placement, the one inside the model, or the affinities of its nodes. Raises UserError without any."""
    if isinstance(affinity, Placement):
        return affinity
    if affinity is None:
        carried = Placement.of(model)
        if carried is not None:
            return carried
        marked = [node for node in model.get_ops() if "affinity" in node.get_rt_info()]
        affinity = {node.get_friendly_name(): node.get_rt_info()["affinity"].astype(str) for node in marked}
    if not affinity:
        raise UserError("the model carries no placement; run: ov-hsdag place MODEL --device HETERO:GPU,CPU")
    return Placement(devices=tuple(dict.fromkeys(affinity.values())), affinity=dict(affinity))
