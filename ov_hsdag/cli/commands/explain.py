"""`ov-hsdag explain`: what runs where in a placed model, what it costs there and elsewhere, and why it is there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ov_hsdag.applications.plan import is_plan_file
from ov_hsdag.cli import _common as common
from ov_hsdag.cli import applications, console
from ov_hsdag.cli.command import Command
from ov_hsdag.cli.command_lines import given
from ov_hsdag.cli.placed_model import PlacedModel, explained
from ov_hsdag.cli.stored_placement import print_stored
from ov_hsdag.explaining.explained_model import ExplainedModel
from ov_hsdag.model.gains import times
from ov_hsdag.problem.copies import COPIES
from ov_hsdag.utils.byte_sizes import format_bytes
from ov_hsdag.utils.errors import UserError

# Operations (those that take longest) and submodels that are shown by default, so that everything fits on one screen.
_SHOWN_OPERATIONS = 5
_SHOWN_SUBMODELS = 5

Nodes = Annotated[
    list[str] | None,
    typer.Option("--node", metavar="NAME", help="An operation, by its name; * and ? as in file names. Again for more."),
]
Types = Annotated[
    list[str] | None,
    typer.Option("--type", metavar="TYPE", help="Operations of a type, such as MatMul. Again for more."),
]
AllOperations = Annotated[bool, typer.Option("--all", help="Every submodel, and every operation in order.")]
Stored = Annotated[
    bool,
    typer.Option("--stored", help="Print the placement as it is in MODEL instead; nothing is predicted anew."),
]
StoredOutput = Annotated[
    Path | None,
    common.output_option("FILE.json", 'With --stored: write {"node": "device"}, too, which --affinity reads.'),
]


@common.with_options_of(PlacedModel, "placed")
def explain(
    model: common.Model,
    placed: PlacedModel,
    node: Nodes = None,
    kind: Types = None,
    every: AllOperations = False,
    stored: Stored = False,
    output: StoredOutput = None,
    as_json: common.Json = False,
) -> None:
    """Explain what runs where in a placed MODEL, what that costs there and elsewhere, and why it is there.

    A summary comes first, then the operations that take longest, or those of --node, --type or --all. With --node and
    --type it leaves out which single moves come closest to paying. Figures are predictions, also of placements that
    were made elsewhere (affinities of the nodes, or --affinity). Of a plan.json the whole application is explained.
    --stored prints what is stored in MODEL, the prediction and measurement of its placing among it; of a folder, of all
    models that carry a placement.

    Args:
        model: the placed model, its folder, or a plan.json.
        placed: the options that `report` has as well.
        node: patterns of names of operations to describe.
        kind: types of operations to describe.
        every: describe all operations and submodels.
        stored: print the placement that the model carries, and explain nothing.
        output: with `stored`, the affinities to write, too, as .json.
        as_json: print JSON.

    Raises:
        UserError: options contradict each other, a file cannot be read or written, or there is no placement.
    """
    if stored:
        _check_stored(model, {**vars(placed), "part": None, "node": node, "type": kind, "all": every})
        print_stored(model, output, None if placed.part is None else (placed.part,), as_json)
        return
    if output is not None:
        raise UserError("--output writes the placement that is stored in the model: give --stored, too")
    if is_plan_file(model):
        own = {name: getattr(placed, name) for name in ("affinity", "shape", "workload", "context", "part")}
        common.refuse_options({**own, "node": node, "type": kind, "all": every}, "for one model, not for a plan")
        applications.explain(model, placed, as_json)
        return
    file = common.one_file(model, placed.part, "explain")

    with console.result(as_json) as show:
        explained_model = explained(model, file, placed)
        with console.progress(f"explaining {model}"):
            nodes = explained_model.nodes(node or (), kind or ())
            if not (node or kind or every or as_json):
                nodes = sorted(nodes, key=lambda one: -explained_model.explanation.node_us[one])[:_SHOWN_OPERATIONS]
            # Moves are computed only for the summary of all operations: there may be tens of thousands.
            summary = explained_model.summary(moves=not (node or kind))
            operations = [explained_model.operation(one) for one in nodes]
            chosen = bool(node or kind or every)
            more = [] if chosen else ["--all shows every submodel and operation, --node and --type some of them"]
        show(
            {**summary, "nodes": operations},
            "\n".join([_text(explained_model, summary, str(model), every), *map(_described, operations), *more]),
        )
        show.next("report", model, "--output", "report.html", *given(*(f"--{name}" for name in vars(placed))))


def _check_stored(model: Path, options: Mapping[str, object]) -> None:
    """Raises UserError where --stored is given for a plan, or with options of an explanation. options: by name."""
    if is_plan_file(model):
        raise UserError("--stored is for one model, not for a plan: leave it out")
    for name in (name for name, value in options.items() if value):
        raise UserError(f"--stored prints the placement as it is in the model: leave out --{name}")


def _text(explained_model: ExplainedModel, summary: dict[str, Any], model: str, every: bool) -> str:
    """Describes the whole model in lines for people.

    Args:
        explained_model: the explained model.
        summary: its `ExplainedModel.summary`.
        model: the file or folder that the user named.
        every: list all submodels; otherwise the first `_SHOWN_SUBMODELS`.
    """
    parts, gains = summary["parts_us"], summary["gains"]
    lines = [explained_model.headline(model)]
    if not summary["feasible"]:
        lines.append("HETERO cannot run this placement as it is: see the reasons of its operations")
    submodels = console.count(len(summary["submodels"]), "submodel")
    lines.append(
        f"{explained_model.request.partition(' (')[0]}: operations {_ms(parts['nodes'])}, broken fusions"
        f" {_ms(parts['fusions'])}, calls of {submodels} {_ms(parts['submodels'])}, transfers {_ms(parts['transfers'])}"
    )
    for name, figures in summary["devices"].items():
        limit = figures["memory_limit_bytes"]
        may = f" of {format_bytes(limit)}" if limit is not None else ""
        lines.append(
            f"{name}: {console.count(figures['operations'], 'operation')}, {_ms(figures['busy_us'])} a request,"
            f" {format_bytes(figures['memory_bytes'])}{may}"
        )
    lines.append(_costs(explained_model, model))
    lines.append("memory: of the limits that were given, else of all that a device has; fit counts what is free now")
    if explained_model.analysis is not None and not explained_model.phases:
        assumed = common.assumed_shapes(explained_model.analysis.model, explained_model.analysis.shapes)
        lines += [assumed] if assumed else []
    if summary["together"]:
        lines.append(summary["together"])
    texts = [
        f"{times(gain)} {'copies on each device' if name == COPIES else name}" for name, gain in gains.items() if gain
    ]
    unable = [name for name, gain in gains.items() if gain is None]
    if unable:
        texts.append(f"impossible on {' and on '.join(unable)} alone")
    lines.append(f"predicted: {', '.join(texts)}")
    lines += [summary["bound"]] if summary["bound"] else []
    lines += [line for line in (explained_model.placement.proposal(),) if line]
    lines += _submodel_lines(summary["submodels"], len(summary["submodels"]) if every else _SHOWN_SUBMODELS)
    lines += [_experts(summary["experts"])] if summary["experts"] else []
    lines += _cut_lines(summary["cuts"])
    if summary["closest_moves"]:
        lines.append("the single moves that come closest to paying:")
        for move in summary["closest_moves"]:
            others = f" and {move['moves'] - 1} with it" if move["moves"] > 1 else ""
            lines.append(f"  {move['operation']}{others} to {move['to']}: {move['cost_us']:+,.1f} µs")
    return "\n".join(lines)


def _submodel_lines(submodels: list[dict[str, Any]], shown: int) -> list[str]:
    """Describes the first submodels in the order in which they run, a line for each, and counts the others.

    Args:
        submodels: of `ExplainedModel.summary`.
        shown: the most submodels to describe.
    """
    lines = []
    for submodel in sorted(submodels, key=lambda submodel: submodel["order"])[:shown]:
        if not submodel["operations"]:
            lines.append(
                f"submodel {submodel['order']} on {submodel['device']} holds inputs only, and computes nothing"
            )
            continue
        kinds = ", ".join(f"{count} {name}" for name, count in submodel["types"].items())
        lines.append(
            f"submodel {submodel['order']} on {submodel['device']}:"
            f" {console.count(submodel['operations'], 'operation')} ({kinds}),"
            f" {_ms(submodel['us'])}, {submodel['first']} … {submodel['last']}"
        )
    if len(submodels) > shown:
        lines.append(f"and {len(submodels) - shown} more submodels")
    return lines


def _cut_lines(cuts: list[dict[str, Any]]) -> list[str]:
    """Describes the tensors that cross between devices, and the three longest transfers; [] without any.

    cuts: of `ExplainedModel.summary`, longest transfers first.
    """
    if not cuts:
        return []
    total = sum(cut["bytes"] for cut in cuts)
    crossing = f"{console.count(len(cuts), 'tensor')} {'crosses' if len(cuts) == 1 else 'cross'}"
    return [
        f"{crossing}, {format_bytes(total)}; the longest transfers:",
        *(
            f"  {cut['tensor']}: {cut['from']} to {cut['to']}, {format_bytes(cut['bytes'])}, {_ms(cut['us'])}"
            for cut in cuts[:3]
        ),
    ]


def _experts(blocks: list[dict[str, Any]]) -> str:
    """Describes a model's experts: how many of them each token chooses, and for how many layers each device has them.

    blocks: the experts of each layer, of `ExplainedModel.summary`.
    """
    chosen = ", ".join(dict.fromkeys(f"{one['chosen']} of {one['all']}" for one in blocks))
    there: dict[str, list[dict[str, Any]]] = {}
    for block in blocks:
        there.setdefault(block["device"], []).append(block)
    described = [
        f"{console.count(len(group), 'layer')} on {name}"
        f" ({format_bytes(sum(block['weights_bytes'] for block in group))},"
        f" {_ms(sum(block['us'] for block in group))})"
        for name, group in there.items()
    ]
    return f"experts ({chosen} chosen by each token): {', '.join(described)}"


def _costs(explained_model: ExplainedModel, model: str) -> str:
    """Describes the costs in use, measured ones and profiles, in one line.

    The line also names measured costs that the placement was made with and that are missing now.

    Args:
        explained_model: the explained model.
        model: the file or folder that the user named, for the command that measures costs.
    """
    parts = [f"measured on {', '.join(explained_model.measured)}"] if explained_model.measured else []
    profiles = {
        name: profile for name, profile in explained_model.profiles.items() if name not in explained_model.measured
    }
    parts += [
        f"{f'built-in profile {profile}' if profile else 'profile'} of {name}" for name, profile in profiles.items()
    ]
    made_with = (explained_model.placement.predicted or {}).get("measured_costs", ())
    lost = [name for name in made_with if name not in explained_model.measured]
    text = f"costs: {', '.join(parts)}"
    if lost:
        text += (
            f"; the placement was made with costs that were measured on {', '.join(lost)} and not kept, so that what"
            f" --stored prints differs (ov-hsdag calibrate --model {model} measures them)"
        )
    return text


def _described(operation: dict[str, Any]) -> str:
    """Two lines about an operation: its device and its times in µs, and the reason for its device.

    The time on its own device is followed by its share in the time of one request. operation: the result of
    `ExplainedModel.operation`.
    """
    others = {name: us for name, us in operation["us_on"].items() if name != operation["device"]}
    elsewhere = ", ".join(f"{name} {'cannot' if us is None else f'{us:,.1f}'}" for name, us in others.items())
    costs = f"{operation['us']:,.1f} µs ({operation['share']:.1%}); {elsewhere}"
    return f"{operation['name']} ({operation['type']}) on {operation['device']}: {costs}\n  {operation['why']}"


def _ms(us: float) -> str:
    """Formats microseconds as milliseconds."""
    return f"{us / 1e3:,.3f} ms"


COMMAND = Command(explain, position=60, example="ov-hsdag explain model_placed.xml --type MatMul")
