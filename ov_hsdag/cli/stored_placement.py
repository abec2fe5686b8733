"""The placement that a model carries, as it is stored: `ov-hsdag explain --stored`, and `ov-hsdag show`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

from ov_hsdag.cli import _common as common
from ov_hsdag.cli import console
from ov_hsdag.cli.command_lines import options, place_it
from ov_hsdag.cli.placed import terminal_picture
from ov_hsdag.model.gains import times
from ov_hsdag.model.names import operations_of
from ov_hsdag.model.placement import Placement
from ov_hsdag.model.relaxed_shapes import restore_shapes
from ov_hsdag.storage.files import check_not_input, check_writable
from ov_hsdag.storage.model_folder import is_model_folder, model_files, models_of
from ov_hsdag.utils.byte_sizes import format_bytes
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import ov

# Lines about runs of operations, and about tensors, that are shown at most: all fits on a screen; --json has the rest.
_LINES = 12

AffinityOutput = Annotated[
    Path | None, common.output_option("FILE.json", 'Write {"node": "device"}, which --affinity reads.')
]


def print_stored(model: Path, output: Path | None, part: Sequence[str] | None, as_json: bool) -> None:
    """Prints the placement inside a model as it is stored; of a folder, those of all models that carry one.

    Args:
        model: the placed model or its folder.
        output: the affinities to write, too, as .json; None for none.
        part: models of a folder; None for all.
        as_json: print JSON.

    Raises:
        UserError: a file cannot be read or written, or there is no placement.
    """
    common.check_model(model)
    files = model_files(model, part or ([*models_of(model)] if is_model_folder(model) else ()))
    if output is not None:
        if output.suffix != ".json":
            raise UserError(f"an affinity file is JSON: its name must end in .json, got '{output}'")
        check_writable(output)
        for file in files:
            check_not_input(output, file)

    core = common.new_core()
    loaded = {file: common.read_model(core, file) for file in files}
    placements = {file: placement for file, one in loaded.items() if (placement := Placement.of(one)) is not None}
    if not placements:
        raise UserError(f"{model} carries no placement; {place_it(model, core)}")
    if output is not None:
        if len(placements) > 1:
            names = ", ".join(file.stem for file in placements)
            raise UserError(f"an affinity file is of one model, and several are placed: name one with --part ({names})")
        next(iter(placements.values())).save(output)
    with console.result(as_json) as tell:
        results = {}
        for file, placement in placements.items():
            restore_shapes(loaded[file])  # as `explain` does: nodes that only carry tensors over a cut do not count
            operations = operations_of(loaded[file])
            facts = stored_facts(operations, placement, loaded[file].get_parameters())
            results[file.name] = facts
            lines = [*terminal_picture(operations, placement), *_lines(placement, facts)]
            tell.text("\n".join([f"{file}: {placement.summary()}", *lines]))
        tell.json({"models": results} if is_model_folder(model) else results[model.name])
        tell.next("explain", model, *options({"--part": next(iter(placements)).stem if len(files) > 1 else None}))


def stored_facts(
    operations: Sequence[ov.Node], placement: Placement, parameters: Sequence[ov.Node] = ()
) -> dict[str, Any]:
    """The facts of a stored placement, without predicting or measuring anything.

    Args:
        operations: the model's operations in execution order.
        placement: the placement that the model carries.
        parameters: the model's inputs, whose tensors may cross as well.

    Returns:
        An object of JSON's types. Among its keys are "devices" (operations of each), "parts" (runs of operations on
        one device), "crossing" (tensors that go from one device to another) and "unplaced" (operations that the
        placement does not name).
    """
    order = [(node.get_friendly_name(), placement.affinity.get(node.get_friendly_name())) for node in operations]
    parts = []
    for device, run in groupby((one for one in order if one[1] is not None), lambda one: one[1]):
        inside = [name for name, _ in run]
        parts.append({"device": device, "operations": len(inside), "first": inside[0], "last": inside[-1]})
    counts = {name: sum(device == name for _, device in order) for name in placement.devices}
    return {
        "devices": counts,
        "objective": placement.objective,
        "chosen": placement.chosen,
        "policy": placement.policy,
        "parts": parts,
        "crossing": _crossing([*parameters, *operations], placement),
        "unplaced": [name for name, device in order if device is None],
        "predicted": placement.predicted,
        "measured": placement.measured,
    }


def _crossing(operations: Sequence[ov.Node], placement: Placement) -> list[dict[str, Any]]:
    crossings = []
    for node in operations:
        source = placement.affinity.get(node.get_friendly_name())
        for output in node.outputs():
            readers = {
                placement.affinity.get(port.get_node().get_friendly_name())
                for port in output.get_target_inputs()
                if port.get_node().get_type_name() != "Result"
            }
            for device in placement.devices:
                if source is not None and device in readers and device != source:
                    kind, shape = output.get_element_type().get_type_name(), str(output.get_partial_shape())
                    ends = {"tensor": node.get_friendly_name(), "from": source, "to": device}
                    crossings.append({**ends, "type": kind, "shape": shape})
    return crossings


def _lines(placement: Placement, facts: dict[str, Any]) -> list[str]:
    lines = [f"{name}: {console.count(count, 'operation')}" for name, count in facts["devices"].items()]
    parts, crossing = facts["parts"], facts["crossing"]
    if len(parts) > 1:
        # Not numbered: HETERO joins some of these runs into one submodel, and `explain` numbers the submodels.
        lines.append("in the order of the model:")
        lines += [
            f"  {console.count(part['operations'], 'operation')} on {part['device']}: {part['first']} … {part['last']}"
            for part in parts[:_LINES]
        ]
        if len(parts) > _LINES:
            lines.append(f"  and {len(parts) - _LINES:,} more runs of operations (--json has all)")
    if crossing:
        lines.append(f"{console.count(len(crossing), 'tensor')} {'crosses' if len(crossing) == 1 else 'cross'}:")
        lines += [
            f"  {one['tensor']}: {one['from']} to {one['to']}, {one['type']}{one['shape']}" for one in crossing[:_LINES]
        ]
        if len(crossing) > _LINES:
            lines.append(f"  and {len(crossing) - _LINES:,} more (--json has all)")
    if facts["unplaced"]:
        lines.append(f"not placed, they follow their neighbours: {console.count(len(facts['unplaced']), 'operation')}")
    told = {"predicted": placement.predicted, "measured": (placement.measured or {}).get(placement.chosen)}
    over = placement.measured_against()
    return lines + [f"{text}: {_figures(figures, over)}" for text, figures in told.items() if figures]


def _figures(figures: dict[str, Any], over: str) -> str:
    parts = []
    if figures.get("latency_us"):
        parts.append(f"one request {figures['latency_us'] / 1e3:,.3f} ms")
    if figures.get("throughput_ips"):
        parts.append(f"{figures['throughput_ips']:,.1f} inferences/s")
    if figures.get("times_best_single"):
        parts.append(times(figures["times_best_single"], figures.get("times_best_single_ci"), over))
    memory = figures.get("memory_bytes") or {}
    parts += [f"{format_bytes(size)} on {name}" for name, size in memory.items()]
    return ", ".join(parts)
