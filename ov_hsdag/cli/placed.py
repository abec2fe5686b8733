"""Formats a placement for the commands: a few lines, a table, JSON, and a picture in lines of text."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from ov_hsdag.cli import console
from ov_hsdag.cli.candidates_table import Row, candidates_table, why_no_figure
from ov_hsdag.cli.command_lines import again, given, options
from ov_hsdag.devices.virtual import definition
from ov_hsdag.integration.requests import advice
from ov_hsdag.model.gains import BEST_SINGLE, placer_of, times
from ov_hsdag.model.placement import Placement
from ov_hsdag.problem.copies import COPIES
from ov_hsdag.utils.byte_sizes import format_bytes
from ov_hsdag.utils.errors import RunError
from ov_hsdag.utils.failures import out_of_time, read_failure
from ov_hsdag.utils.lazy import ov


def notes(placement: Placement, more: Sequence[str] = (), busy: float = 0.0, *, stateful: bool = False) -> list[str]:
    """Lines about a placement that was just made, to follow `Placement.summary`.

    Args:
        placement: the placement as it was written.
        more: further lines of the caller; empty ones are dropped.
        busy: cores that other programs used when placing began.
        stateful: whether the model keeps states from one request to the next.

    Returns:
        The lines, the most important first.
    """
    # The line about the bound is about the best placement, and of little use where another one may be better.
    bound = "" if placement.source is None or placement.unsure else placement.source.bound()
    own = (phases(placement), bound, placement.proposal(), advice(placement), unsure(placement, busy))
    return [line for line in (copies(placement, stateful), *more, *own) if line]


def unsure(placement: Placement, busy: float = 0.0) -> str:
    """Warns, in one line, that another candidate may be better, as trials could not prove which one is.

    Args:
        placement: the placement. Its `unsure` names the placers of these candidates.
        busy: cores that other programs used when placing began.

    Returns:
        The line; "" where `unsure` is empty.
    """
    if not placement.unsure:
        return ""
    measured = placement.measured or {}
    late = {placer_of(name) for name, one in measured.items() if out_of_time(read_failure(one))}
    no_time = late.issuperset(placement.unsure)
    why = "there was no time to run a placement" if no_time else "trials are too few or differ too much to tell"
    why = f"{', '.join(placement.unsure)} may be better, but {why}"
    if busy > 0.5:
        why += f" (other programs used {busy:.1f} cores when measuring began)"
    return (
        f"unsure: {why}. Run this again when no other program uses the devices, give it longer (--measure-seconds), or"
        " choose by prediction (--no-measure)"
    )


def show_what_next(
    show: console.Show,
    written: Mapping[Path, Sequence[str]],
    device: str,
    part: str | None,
    shape: Sequence[str] | None,
    here: bool,
) -> None:
    """Prints how to run the placed model, and the command that usually comes next.

    Args:
        show: prints them.
        written: the files or folders that were written, each with the lines about it from `notes`.
        device: the devices, as the user gave them.
        part: a model for `explain --part`, where a folder has several.
        shape: values of --shape.
        here: whether all devices are on this machine.
    """
    for output in written:
        if output.suffix == ".xml":
            show.hint("run with", f"openvino.Core().compile_model({str(output)!r}, {device!r})")
    first = next(iter(written), None)
    if any(line.startswith("unsure:") for lines in written.values() for line in lines):
        show.next(*again("--no-measure", without=("--measure",)))
    elif first is not None and here:
        show.next("verify", first, "--device", device, *options({"--shape": shape}), *given("--input"))
    elif first is not None:
        show.next("explain", first, *options({"--part": part, "--shape": shape}))


def copies(placement: Placement, stateful: bool = False) -> str:
    """Advises to run a copy of the model on each device, where that is better than the placement.

    For a stateful model no program is shown: `ov_hsdag.Copies` and AUTO spread requests over devices, so that the
    tokens of one conversation would meet different states.

    For virtual devices a program in Python is shown: AUTO with CUMULATIVE_THROUGHPUT uses only one of them
    (docs/reference/facts.md).

    Args:
        placement: the placement, with the figures of copies among its baselines.
        stateful: whether the model keeps states from one request to the next.

    Returns:
        The advice, in several lines where it has a program. "" where nothing is predicted for copies, or measuring does
        not prove them better; without a measurement, where their predicted gain is below `_COPIES_GAIN`.
    """
    predicted, measured = placement.baselines.get(COPIES), (placement.measured or {}).get(COPIES)
    rate = (placement.predicted or {}).get("throughput_ips")
    if predicted is None or not rate:
        return ""
    if measured is not None:
        if measured["failed"] or measured["times_chosen_ci"][0] <= 1:
            return ""
        gain = f"was measured {times(measured['times_chosen'], measured['times_chosen_ci'])}"
    else:
        ratio = predicted["throughput_ips"] / rate
        if ratio < _COPIES_GAIN:
            return ""
        gain = f"is predicted {times(ratio)}"
    needs = {name: size for name, size in predicted["memory_bytes"].items() if size}
    memory = ", ".join(f"{format_bytes(size)} on {name}" for name, size in needs.items())
    better = (
        f"copies: the whole model on each of {', '.join(needs)} {gain} as good as this placement and needs {memory};"
    )
    if stateful:
        return f"{better} it has states, so run each conversation in an InferRequest of its own, on one device"
    by_device = f'device "AUTO:{",".join(needs)}" with PERFORMANCE_HINT CUMULATIVE_THROUGHPUT, or in Python'
    return (
        f"{better} {'in Python' if definition(needs) else by_device}:\n"
        "    core = openvino.Core()\n"
        f"    queue = ov_hsdag.Copies([core.compile_model(model, name) for name in {[*needs]}])\n"
        "    queue.set_callback(lambda request, number: print(number, request.results))\n"
        "    for number, inputs in enumerate(requests): queue.start_async(inputs, number)\n"
        "    queue.wait_all()"
    )


# Least predicted gain of copies that is mentioned: smaller ones are within the error of the cost model.
_COPIES_GAIN = 1.05


def phases(placement: Placement) -> str:
    """Describes, in one line, the predicted and the measured time or rate of each phase of a workload.

    The phases are the prompt and the further tokens. "" without a workload.
    """
    measured = (placement.measured or {}).get(placement.chosen or "", {})
    lines = []
    for how, found in (("predicted", placement.predicted or {}), ("measured", measured)):
        phases = found.get("workload", {})
        times = [
            f"{phase['latency_us'] / 1000:.1f} ms for {_WORDS[name]}"
            if "latency_us" in phase
            else f"{phase['throughput_ips']:.1f} {_PLURALS[name]} a second"
            for name, phase in phases.items()
        ]
        lines += [f"{how}: {', '.join(times)}"] if times else []
    return f"{'; '.join(lines)}; the table has the mean" if lines else ""


# Words for the phases of a workload, in the singular and in the plural.
_WORDS = {"prompt": "the prompt", "token": "each further token"}
_PLURALS = {"prompt": "prompts", "token": "further tokens"}

# Attributes of a placement that JSON has under the same names.
_JSON_ATTRIBUTES = (
    "objective",
    "predicted",
    "measured",
    "baselines",
    "policy",
    "chosen",
    "seconds",
    "why",
    "notes",
    "same_as",
)


def as_json(output: Path, placement: Placement, lines: Sequence[str]) -> dict[str, Any]:
    """Describes a written placement as the object that --json prints.

    Args:
        output: the file that was written.
        placement: the placement in it.
        lines: the lines from `notes`.

    Returns:
        A dictionary of JSON's types.
    """
    return {
        "output": str(output),
        "placement": placement.affinity,
        "devices": placement.devices,
        **{name: getattr(placement, name) for name in _JSON_ATTRIBUTES},
        "unsure": placement.unsure,
        "messages": list(lines),
    }


def of_json(data: Mapping[str, Any]) -> Placement:
    """Makes a placement from an object of `as_json`. Raises RunError where something is missing."""
    try:
        return Placement(
            devices=tuple(data["devices"]),
            affinity=data["placement"],
            unsure=tuple(data["unsure"]),
            **{name: data[name] for name in _JSON_ATTRIBUTES},
        )
    except (KeyError, TypeError) as error:
        raise RunError(f"a machine's answer lacks what a placement has: {error}") from error


def table(placement: Placement) -> Table:
    """Makes the table of a placement's candidates, with predictions, measurements and gains over a single device.

    Gains are measured where any candidate was, else predicted. The reference is the best single device, or the one that
    there was time to measure (`Placement.measured_against`).
    """
    throughput, measured = placement.objective == "throughput", placement.measured
    key, scale = ("throughput_ips", 1.0) if throughput else ("latency_us", 1e-3)
    ran = any(not one.get("failed") for one in (measured or {}).values())
    rows = []
    for name in dict.fromkeys([placement.chosen, *placement.baselines, *(measured or {}), *placement.notes]):
        chosen = name == placement.chosen
        predicted = (placement.predicted if chosen else placement.baselines.get(name)) or {}
        real = (measured or {}).get(name, {})
        same_as = placement.same_as.get(name, "")
        note = why_no_figure(real) or ("" if same_as else placement.notes.get(name, ""))
        submodels = real.get("submodels") or predicted.get("submodels")
        figures = [None if one is None else one * scale for one in (predicted.get(key), real.get(key))]
        gain = placement.measured_gain(name) if ran else placement.predicted_gain(name)
        interval = real.get("times_best_single_ci")
        rows.append(Row(name, submodels, figures[0], figures[1], gain, interval, note, chosen, same_as))
    against = placement.measured_against() if ran else BEST_SINGLE
    return candidates_table(rows, placement.objective, measured=ran, against=against)


_WIDEST = 100  # columns of a picture, at most: a wider one is no clearer

_SHADES = " ░▒▓█"
_PLAIN = " .:+#"


def split_picture(names: Sequence[str], devices: Sequence[int], *, width: int, encoding: str = "utf-8") -> list[str]:
    """Draws the device of each operation in execution order, one line of text for each device.

    A column stands for an equal share of the operations; it is the darker the more of them run on the line's device.

    Args:
        names: names of the devices.
        devices: index of the device of each operation, in execution order.
        width: columns of a line, at most.
        encoding: of the terminal; without block characters in it plain ones are used.

    Returns:
        The lines; [] where there are fewer than 8 operations, or fewer than 8 columns beside the names.
    """
    label = max(map(len, names), default=0) + 2
    columns = min(width - label, len(devices))
    if columns < 8:
        return []
    try:
        _SHADES.encode(encoding)
        shades = _SHADES
    except (UnicodeEncodeError, LookupError):
        shades = _PLAIN
    lines = []
    for number, name in enumerate(names):
        bar = ""
        for column in range(columns):
            part = devices[column * len(devices) // columns : (column + 1) * len(devices) // columns]
            share = sum(device == number for device in part) / len(part)
            # A blank means no operation at all: any share above 0 gets at least the lightest shade.
            bar += shades[0] if share == 0 else shades[max(1, round(share * (len(shades) - 1)))]
        lines.append(f"{name:<{label}}{bar.rstrip()}".rstrip())
    return lines


def terminal_picture(operations: Sequence[ov.Node], placement: Placement) -> list[str]:
    """Draws the `split_picture` of placed operations in the width and encoding of standard output.

    Args:
        operations: the model's operations in execution order; those that the placement does not name are left out.
        placement: has the device of each operation.

    Returns:
        The lines, see `split_picture`.
    """
    homes = [placement.affinity.get(node.get_friendly_name()) for node in operations]
    numbers = [placement.devices.index(home) for home in homes if home is not None]
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    return split_picture(placement.devices, numbers, width=width, encoding=sys.stdout.encoding or "ascii")
