"""`ov-hsdag bench --kit` and the report of its results.

The kit is a set of eight models that are built on the spot (`ov_hsdag.kit`). Measuring it shows what placing gains on a
machine. Its results are a document of JSON's types. A comparison in it is one model on one device list for one
objective, with the measured rate of each way to run the model.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.table import Table

from ov_hsdag.cli import _common as common
from ov_hsdag.cli import console
from ov_hsdag.cli.command_lines import in_order
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.devices.discovery import absent, available
from ov_hsdag.measuring.evaluator import HETERO_DEFAULT
from ov_hsdag.problem.copies import COPIES
from ov_hsdag.report.kit_page import kit_page
from ov_hsdag.storage.files import check_not_input, check_writable, write_json, write_text
from ov_hsdag.storage.scratch import require_temporary_folder
from ov_hsdag.utils.byte_sizes import format_bytes
from ov_hsdag.utils.errors import RunError, UserError, one_line
from ov_hsdag.utils.reading import SETTINGS, read_json


def run(output: Path, device: str | None, minutes: float, as_json: bool) -> None:
    """Measures the kit's models and writes the results.

    Args:
        output: file of the results, .json.
        device: the only device list to compare on; None for all lists of this machine's devices.
        minutes: time for all measurements, about.
        as_json: print the results as JSON.

    Raises:
        UserError: the file or the devices cannot be used.
        RunError: nothing could be measured.
    """
    if output.suffix != ".json":
        raise UserError(f"results of the kit are written as .json, got '{output}'")
    check_writable(output)
    require_temporary_folder()

    from ov_hsdag.kit.measure import device_lists, run_kit

    core = common.new_core()
    lists = device_lists(in_order(available(core))) if device is None else [DeviceSet.parse(device)]
    if device is not None and (missing := absent(core, lists[0].names)):
        there = ", ".join(core.available_devices)
        raise UserError(f"the kit measures, and this machine has no {', '.join(missing)}; it has {there}")
    begin = time.perf_counter()
    with console.result(as_json) as show:
        with console.progress("measuring the kit") as tell:
            document = run_kit(core, lists, minutes=minutes, report=tell)
        write_json(output, document)
        failed = Counter(one["failed"] for one in document["comparisons"] if one["failed"])
        done = len(document["comparisons"]) - failed.total()
        text = f"{output}: {done} comparisons in {(time.perf_counter() - begin) / 60:.0f} minutes"
        lines = [f"{count} not made: {why}" for why, count in failed.items()]
        show({"output": str(output), **document}, "\n".join([text, *lines]), _table(document["comparisons"]))
        show.next("report", output)
    if not done:
        raise RunError("nothing could be measured")


def read_results(path: Path) -> dict[str, Any] | None:
    """Reads a file of results that `run` wrote; returns None where it has other contents, or cannot be read."""
    from ov_hsdag.kit.measure import FORMAT

    try:
        document = read_json(path, SETTINGS)
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) and document.get("format") == FORMAT else None


def report(document: dict[str, Any], results: Path, output: Path | None, as_json: bool) -> None:
    """Writes results of the kit as a page.

    Args:
        document: results as `read_results` returns them.
        results: the file that they were read from.
        output: the .html to write; None for one in the current folder that is named after the file.
        as_json: print the name and size of the page as JSON.

    Raises:
        UserError: the results are damaged, or the page cannot be written.
    """
    from ov_hsdag.kit.measure import BY_PREDICTION

    output = Path(f"{results.stem}.html") if output is None else output
    if output.suffix.lower() != ".html":
        raise UserError(f"the report of a kit is a .html, got '{output}'")
    check_writable(output)
    check_not_input(output, results)
    with console.result(as_json) as show:
        try:
            text = kit_page(document, predicted=BY_PREDICTION)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{results}: is damaged: {one_line(error)}") from error
        write_text(output, text)
        size = output.stat().st_size if output.is_file() else 0
        show({"output": str(output), "bytes": size}, f"{output}: {format_bytes(size)}, for any browser")


def _table(comparisons: list[dict[str, Any]]) -> Table:
    """Makes the table of comparisons: their measured rates, relative to the best single device.

    There is a column for each way to run a model. "HSDAG:" (`BY_PREDICTION`) is measured; "predicted" is the gain that
    was predicted for that placement. A cell is empty where a way failed; comparisons that failed are left out.
    """
    from ov_hsdag.kit.measure import BY_PREDICTION

    table = Table(box=None, pad_edge=False)
    for name in ("model", "objective", "devices"):
        table.add_column(name)
    for name in ("HETERO", "copies", BY_PREDICTION, "predicted", "best"):
        table.add_column(name, justify="right")
    for comparison in comparisons:
        if comparison["failed"]:
            continue
        ratios = {row["placer"]: row["ratio"] for row in comparison["rows"] if not row["failed"]}
        gains = [ratios.get(name) for name in (HETERO_DEFAULT, COPIES, BY_PREDICTION)]
        gains += [comparison["predicted_gain"], max(ratios.values(), default=None)]
        figures = ["" if gain is None else f"{gain:.2f}" for gain in gains]
        table.add_row(comparison["model"], comparison["objective"], comparison["device"], *figures)
    return table
