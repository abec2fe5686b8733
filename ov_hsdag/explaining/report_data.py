"""Collects the data of a report as one object in JSON's types.

Nodes are stored as columns, and repeated texts as numbers in a table of texts, so that the file stays small enough to
send even with 20,000 operations. In this file `done` is a mapping of further facts about how a placement was made, and
`tell` a function that gets lines of progress.
"""

from __future__ import annotations

import platform
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag._version import __version__
from ov_hsdag.costs.profile import Profile
from ov_hsdag.explaining.bound import describe_bound
from ov_hsdag.explaining.explained_model import ExplainedModel
from ov_hsdag.explaining.explanation import Explanation
from ov_hsdag.explaining.timeline import one_request, pipelined, stages, submodel_us
from ov_hsdag.model.experts import experts
from ov_hsdag.model.graph import ComputationGraph, NodeKind
from ov_hsdag.model.names import NameTree
from ov_hsdag.model.placement import Placement
from ov_hsdag.report.picture import image
from ov_hsdag.report.write import check_report, write_report
from ov_hsdag.utils.lazy import ov
from ov_hsdag.utils.plain import plain

FORMAT = 1
"""Version of the object's format; a page reads only its own."""

REQUESTS = 4
"""Requests in the second timeline: enough to show that devices work on several at once."""

_DIGITS = 6  # significant digits of floats, to keep the file small

# Columns of cuts in a report, and the attributes of `Cut` that they come from.
_CUTS = {"from": "source", "to": "target", "bytes": "bytes", "us": "us"}

# Attributes of a placement that a report has under the same names.
_RECORD = ("predicted", "measured", "baselines", "chosen", "policy", "why", "notes", "seconds")


@dataclass(frozen=True, eq=False)
class ReportSource:
    """The data for `Placement.report`: the explanation of a placement, and the source of its costs."""

    explanation: Explanation
    profile: Profile
    measured: tuple[str, ...]  # devices whose operations were measured

    def write(
        self, placement: Placement, path: str | PathLike[str], title: str, done: Mapping[str, Any] | None = None
    ) -> None:
        """Writes the report of the placement.

        Args:
            placement: the placement that was made.
            path: the file; its suffix decides the format, see `write`.
            title: name of the model.
            done: see `report_data`.
        """
        write(path, ExplainedModel(self.explanation, placement, self.profile, self.measured), title, done)

    def bound(self) -> str:
        """The line of `describe_bound`."""
        return describe_bound(self.explanation)

    def image(self, placement: Placement) -> str:
        """Draws the split of `placement` as an HTML element, for notebooks."""
        return image(picture_data(self.explanation, placement, "model"))


def write(
    path: str | PathLike[str],
    found: ExplainedModel,
    title: str,
    done: Mapping[str, Any] | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> None:
    """Writes a report in the format of the file's suffix.

    Args:
        path: an .html for the whole report, or an .svg or .png for the picture of the split.
        found: the explained model.
        title: name of the model.
        done: see `report_data`.
        tell: called with a line of progress now and then.

    Raises:
        UserError: see `write_report`.
        RunError: see `write_report`.
    """
    check_report(path)
    if Path(path).suffix.lower() == ".html":
        write_report(path, report_data(found, title, done, tell))
    else:  # the picture alone takes no simulation of moves
        write_report(path, picture_data(found.explanation, found.placement, title))


def picture_data(explained: Explanation, placement: Placement, title: str) -> dict[str, Any]:
    """Collects the data for pictures, the part of a report that takes a single simulation.

    Args:
        explained: the explanation of the placement.
        placement: the placement with its stored predictions and measurements.
        title: name of the model.

    Returns:
        An object of JSON's types; times in µs, memory in bytes.
    """
    sequence = stages(explained)
    problem, result = explained.problem, explained.evaluation
    operations = np.isin(problem.graph.kinds, (NodeKind.OP, NodeKind.SINK))
    data = {
        "format": FORMAT,
        "title": title,
        "devices": problem.devices,
        "objective": problem.objective,
        "latency_us": result.latency_us[0],
        "period_us": result.period_us[0],
        "operations": np.bincount(explained.device[operations], minlength=len(problem.devices)),
        "busy_us": result.busy_us[0],
        "runs": _runs(explained),
        "submodels": {"device": explained.submodel_device.tolist(), "us": submodel_us(explained)},
        "cuts": {name: [getattr(cut, attribute) for cut in explained.cuts] for name, attribute in _CUTS.items()},
        "stages": {name: [getattr(stage, name) for stage in sequence] for name in ("submodel", "cut", "us")},
        "starts": {"one": one_request(sequence), "several": pipelined(sequence, REQUESTS)},
        "memory": _memory(explained),
        "record": {
            **{name: getattr(placement, name) for name in _RECORD},
            "why": "; ".join(text for text in (placement.why, describe_bound(explained)) if text),
            "gains": {
                name: [placement.predicted_gain(name), placement.measured_gain(name)]
                for name in dict.fromkeys([placement.chosen, *placement.baselines, *(placement.measured or {})])
            },
        },
    }
    return dict(plain(data, _DIGITS))


def report_data(
    found: ExplainedModel,
    title: str,
    done: Mapping[str, Any] | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Collects the data of a whole report.

    Constants, and nodes that are computed from constants alone, are not listed; their bytes count for the first node
    that reads them.

    Args:
        found: the explained model.
        title: name of the model.
        done: further facts about how the placement was made, such as {"command": "ov-hsdag place …"}.
        tell: called with a line of progress now and then.

    Returns:
        An object of JSON's types; times in µs, infinities as None. It has the keys of `picture_data`, "summary" (see
        `ExplainedModel.summary`), "nodes" (columns with a value for each node), "names" (the tree of their names),
        "edges" (pairs of nodes with the bytes of their tensors), "texts" and "done".
    """
    explained = found.explanation
    problem = explained.problem
    shown = ~problem.graph.legality.constant & (problem.graph.kinds != NodeKind.CONSTANT)
    # Results are drawn in any case, as an output may be computed from constants alone.
    drawn = np.flatnonzero(shown | (problem.graph.kinds == NodeKind.RESULT))
    texts: defaultdict[str, int] = defaultdict()
    texts.default_factory = texts.__len__
    tell("simulating moves")
    summary = found.summary()
    nodes = _nodes(explained, drawn, texts, tell)
    tree = NameTree.of(
        [problem.graph.names[node] for node in drawn], (problem.graph.kinds[drawn] == NodeKind.PARAMETER).tolist()
    )
    position = np.full(problem.graph.nodes, -1)
    position[drawn] = np.arange(len(drawn))
    for block in experts(problem.graph):
        members = position[block.nodes][position[block.nodes] >= 0]
        tree.put_together(members.tolist(), f"{block.chosen} of {block.all} experts")
    data = picture_data(explained, found.placement, title)
    data["cuts"]["node"] = [int(position[cut.node]) for cut in explained.cuts]
    more = {
        "summary": {name: value for name, value in summary.items() if name not in ("cuts", "submodels")},
        "nodes": nodes,
        "names": {**vars(tree), "part": [texts[part] for part in tree.part]},
        "edges": _edges(explained, position),
        "done": {
            "date": datetime.now().astimezone().isoformat(" ", "minutes"),
            "versions": {"ov-hsdag": __version__, "OpenVINO": ov.__version__, "Python": platform.python_version()},
            "profiles": found.profiles,
            "measured_costs": found.measured,
            **(done or {}),
        },
        "texts": list(texts),
    }
    return data | plain(more, _DIGITS)


def _nodes(
    explained: Explanation, drawn: NDArray[np.int64], texts: dict[str, int], tell: Callable[[str], None]
) -> dict[str, Any]:
    """Collects the figures of the nodes of a report as columns, and explains the device of each.

    Args:
        explained: the placement.
        drawn: numbers of the nodes in the report, ascending, int64 [drawn].
        texts: number of each text; it gets the types, shapes and reasons of the nodes.
        tell: called with a line of progress for each thousand nodes.

    Returns:
        Columns with a value for each node of the report. "type", "output", "why" and "reason" are numbers of texts;
        "other" is the place in the report of the node that a reason refers to, -1 for none; "us_on" and "move_us" have
        a column for each device, µs, inf where the device does not run the node or the move is infeasible.
    """
    problem, graph = explained.problem, explained.problem.graph
    why, kinds, other = [], [], []
    position = {node: number for number, node in enumerate(drawn.tolist())}
    for number, node in enumerate(drawn.tolist()):
        if number % 1000 == 999:
            tell(f"reasons of {number + 1:,} of {len(drawn):,} operations")
        reason = explained.reason(node)
        why.append(texts[reason.text])
        kinds.append(texts[reason.kind])
        other.append(position.get(reason.other, -1))
    weights, states = _stored_bytes(explained)
    return {
        "type": [texts[graph.types[node]] for node in drawn],
        "output": [texts[_output(graph, node)] for node in drawn.tolist()],
        "device": explained.device[drawn],
        "submodel": explained.submodel[drawn],
        "group": problem.groups[drawn],
        "us": explained.node_us[drawn],
        "us_on": np.where(problem.supported[drawn], problem.node_us[drawn], np.inf).T,
        "move_us": [explained.move_us[problem.groups[drawn], device] for device in range(len(problem.devices))],
        "weights": _bytes_by_reader(graph, weights, drawn),
        "states": states[drawn],
        "why": why,
        "reason": kinds,
        "other": other,
    }


def _output(graph: ComputationGraph, node: int) -> str:
    """Writes type and shape of a node's first output: "f32[1,128,768]"; "" for a node without outputs."""
    output = int(graph.output_ptr[node])
    if output == graph.output_ptr[node + 1]:
        return ""
    return f"{graph.output_types[output]}[{','.join(map(str, graph.output_shapes[output]))}]"


def _edges(explained: Explanation, position: NDArray[np.int64]) -> dict[str, Any]:
    """Collects the tensors between nodes of the report, each pair of nodes once.

    Args:
        explained: the placement.
        position: place of each node in the report, -1 for nodes that it leaves out, int64 [nodes].

    Returns:
        Columns "from" and "to", places of the two nodes in the report, and "bytes" that a transfer would move.
    """
    graph, problem = explained.problem.graph, explained.problem
    moved = graph.output_bytes if problem.moved_bytes is None else problem.moved_bytes
    source, target = position[graph.input_source], position[graph.input_node]
    shown = (source >= 0) & (target >= 0)
    pairs, first = np.unique(np.stack([source[shown], target[shown]], axis=1), axis=0, return_index=True)
    return {"from": pairs[:, 0], "to": pairs[:, 1], "bytes": moved[graph.input_output[shown][first]]}


def _stored_bytes(explained: Explanation) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Computes the bytes that the device of each node stores for it.

    Returns:
        Bytes of weights (of Constants), and bytes of states, each int64 [nodes].
    """
    problem = explained.problem
    nodes = np.arange(problem.graph.nodes)
    held = problem.node_held[nodes, explained.device].astype(np.float64)
    if problem.storage_ratio is not None:
        held *= problem.storage_ratio[explained.device]
    weights = problem.graph.kinds == NodeKind.CONSTANT
    return np.where(weights, held, 0).astype(np.int64), np.where(weights, 0, held).astype(np.int64)


def _bytes_by_reader(
    graph: ComputationGraph, weights: NDArray[np.int64], drawn: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Counts the bytes of nodes that a report leaves out for the first node that reads them.

    Args:
        graph: the graph of the model.
        weights: bytes of weights of each node, int64 [nodes].
        drawn: numbers of the nodes in the report, ascending, int64 [drawn].

    Returns:
        Bytes of each node of the report, with those of the constants that it reads first, int64 [drawn].
    """
    bytes_ = weights.copy()
    reader = np.full(graph.nodes, -1)
    order = np.argsort(graph.input_node, kind="stable")[::-1]
    reader[graph.input_source[order]] = graph.input_node[order]  # readers in reverse order: the first one stays
    for node in np.setdiff1d(np.arange(graph.nodes), drawn).tolist():
        if reader[node] >= 0:
            bytes_[reader[node]] += bytes_[node]
    return bytes_[drawn]


def _memory(explained: Explanation) -> list[dict[str, Any]]:
    """Lists the memory of each device, bytes: weights, states, tensors at the peak, their total, and the limit.

    The limit is None where there is none.
    """
    problem = explained.problem
    total = problem.stored_bytes(explained.evaluation.memory_bytes[0])
    weights, states = _stored_bytes(explained)
    rows = []
    for device in range(len(problem.devices)):
        here = explained.device == device
        stored = {"weights": int(weights[here].sum()), "states": int(states[here].sum())}
        tensors, limit = max(total[device] - sum(stored.values()), 0), problem.stored_limits[device]
        rows.append({**stored, "tensors": tensors, "total": total[device], "limit": limit})
    return rows


def _runs(explained: Explanation) -> dict[str, Any]:
    """Lists the runs of the placement: consecutive operations, in the order of the model, on the same device.

    Returns:
        Columns with a value for each run: "device" number, number of "operations", and time "us", µs.
    """
    graph = explained.problem.graph
    nodes = np.flatnonzero((graph.kinds == NodeKind.OP) & ~graph.legality.constant)
    device = explained.device[nodes]
    first = np.flatnonzero(np.r_[len(nodes) > 0, device[1:] != device[:-1]][: len(nodes)])
    return {
        "device": device[first],
        "operations": np.diff(np.r_[first, len(nodes)]),
        "us": np.add.reduceat(explained.node_us[nodes], first) if len(first) else [],
    }
