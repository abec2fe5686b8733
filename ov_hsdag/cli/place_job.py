"""`ov-hsdag place --ray`: runs the command as a job on machines of a cluster, and writes their results here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from ov_hsdag.cli import _common as common
from ov_hsdag.cli import console, placed, remote
from ov_hsdag.jobs.job import OUT, Inputs, Job, model_files_of
from ov_hsdag.jobs.machine_kind import Kind
from ov_hsdag.model.gains import placer_of
from ov_hsdag.model.placement import Placement
from ov_hsdag.storage.files import write_bytes
from ov_hsdag.storage.model_folder import is_model_folder
from ov_hsdag.utils.lazy import ov


def place(
    fleet: remote.Fleet,
    show: console.Show,
    model: Path,
    files: Sequence[Path],
    output: Path,
    device: str,
    report: Path | None,
    shapes: Sequence[str] | None,
    hardlinks: bool,
) -> None:
    """Places a model on each kind of machine of a cluster, writes the outputs on this machine, and shows the results.

    Args:
        fleet: the kinds of machines.
        show: prints the results.
        model: a model's file or an exported folder.
        files: the models to place.
        output: the IR or folder to write; with several kinds of machines the name of the kind is added.
        device: devices in the order of preference.
        report: the page or picture to write, too; None for none.
        shapes: values of --shape.
        hardlinks: share unchanged weights with the input folder.
    """
    for kind in fleet.kinds:
        common.check_output(fleet.target(output, kind), model)
    rows: list[tuple[Kind, str, Placement]] = []
    written: dict[Path, list[str]] = {}

    with remote.scratch() as scratch:
        job = _job(model, files, report)

        def use(kind: Kind, data: dict[str, Any]) -> dict[str, Any]:
            target = fleet.target(output, kind)
            _write(model, files, scratch / kind.number, target, hardlinks)
            if report is not None:
                write_bytes(fleet.target(report, kind), [(scratch / kind.number / report.name).read_bytes()])
            written[target] = []
            for name, entry in data.get("models", {model.name: data}).items():
                entry["output"] = str(target / name if "models" in data else target)
                entry["messages"] = [job.translated(line) for line in entry.get("messages", ())]
                written[target] += entry["messages"]
                placement = placed.of_json(entry)
                rows.append((kind, name, placement))
                lines = [f"on {kind.describe()}", f"{entry['output']}: {placement.summary()}", *entry["messages"]]
                show.text("\n".join(lines), placed.table(placement))
            return data | ({"output": str(target)} if "models" in data else {})

        jobs = [(kind, job, scratch / kind.number) for kind in fleet.kinds]
        failures = fleet.each(f"placing {model}", jobs, use, show)
    if fleet.several and rows:
        show.text("all machines:", _overview(rows))
    named = files[0].stem if len(files) > 1 else None
    placed.show_what_next(show, written, device, named, shapes, here=False)
    remote.end(failures)


def _job(model: Path, files: Sequence[Path], report: Path | None) -> Job:
    """The command as a job for a machine."""
    inputs = Inputs()
    folder = is_model_folder(model)
    if folder:
        # All .xml files travel, as --part chooses among them; weights travel for the models that are placed.
        needed = [*model.glob("*.xml"), *(one for file in files for one in model_files_of(file))]
        name = inputs.folder(model, list(dict.fromkeys(needed)))
    else:
        name = inputs.model(model)
    options = {
        "--output": f"{OUT}/{_PLACED}" if folder else f"{OUT}/{_PLACED}.xml",
        "--report": None if report is None else f"{OUT}/{report.name}",
        "--hardlinks": None,
    }
    return Job(tuple(remote.words(inputs, [name], options)), inputs.files, inputs.shown)


def _write(model: Path, files: Sequence[Path], came: Path, target: Path, hardlinks: bool) -> None:
    """Writes the models that a machine placed, from the folder `came`, as placing on this machine writes them."""
    core = common.new_core()

    def read(path: Path) -> tuple[ov.Model, bool]:
        one = common.read_model(core, path)
        return one, common.has_fp16_weights(one)

    folder = is_model_folder(model)
    models = {file: read(came / _PLACED / file.name if folder else came / f"{_PLACED}.xml") for file in files}
    common.write_models(target, model, models, hardlinks)


_PLACED = "placed"  # name of the placed model among the output files of a job


def _overview(rows: Sequence[tuple[Kind, str, Placement]]) -> Table:
    """A table of the chosen placements: one row for each kind of machine and each model."""
    throughput = rows[0][2].objective == "throughput"
    key, scale, unit = ("throughput_ips", 1.0, "inf/s") if throughput else ("latency_us", 1e-3, "ms")
    table = console.table(
        "machine", "model", "chosen", "devices used", f"predicted\n{unit}", f"measured\n{unit}", left=(0, 1, 2, 3)
    )
    for kind, name, placement in rows:
        predicted = (placement.predicted or {}).get(key)
        measured = (placement.measured or {}).get(placement.chosen, {}).get(key)
        figures = ["-" if one is None else f"{one * scale:.4g}" for one in (predicted, measured)]
        table.add_row(kind.describe(), name, placer_of(placement.chosen), ", ".join(placement.used()), *figures)
    return table
