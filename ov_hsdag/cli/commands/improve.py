"""`ov-hsdag improve`: measure the placements in this machine's cache again, and replace those that are beaten.

The cache has an entry for each model that was placed when a program loaded it on HSDAG: the placement, the devices and
a description of the model (`CacheEntry`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from ov_hsdag.cli import _common as common
from ov_hsdag.cli import console
from ov_hsdag.cli.command import Command
from ov_hsdag.devices.discovery import absent
from ov_hsdag.model.gains import BEST_SINGLE, times
from ov_hsdag.model.placement import Placement
from ov_hsdag.placing.improvement import Improvement, Proposer, Report, improve_entry, unmeasured_first
from ov_hsdag.placing.placement_cache import CacheEntry, PlacementCache
from ov_hsdag.storage.scratch import require_temporary_folder
from ov_hsdag.utils.errors import RunError, UserError, one_line
from ov_hsdag.utils.lazy import ov
from ov_hsdag.utils.timing import Deadline

Budget = Annotated[str, typer.Option("--budget", metavar="10m", help="Time for all of them, as 90s, 10m or 1h.")]
List = Annotated[bool, typer.Option("--list", help="Show what is kept, and measure nothing.")]
Clear = Annotated[bool, typer.Option("--clear", help="Remove all that is kept, and measure nothing.")]
CacheDir = Annotated[
    Path | None,
    typer.Option("--cache-dir", metavar="DIR", help="The CACHE_DIR of the program; by default the user's own cache."),
]
FineTune = Annotated[
    bool,
    typer.Option(
        "--finetune/--no-finetune",
        help="Also fine-tune the policy on each model's measured times, where the extra train is installed.",
    ),
]

LEAST_SECONDS = 20.0
"""Seconds of measuring below which a model is left for the next time: less does not tell placements apart."""


def improve(
    budget: Budget = "10m",
    list_: List = False,
    clear: Clear = False,
    cache_dir: CacheDir = None,
    finetune: FineTune = True,
    as_json: common.Json = False,
) -> None:
    """Measure the models that were placed when they were loaded on HSDAG, and replace placements that are proven worse.

    A program has the new placement from its next start on. The devices should be idle.

    Args:
        budget: time for all models, such as "10m".
        list_: show the cache and measure nothing.
        clear: empty the cache and measure nothing.
        cache_dir: CACHE_DIR of the program; None for the user's own cache.
        finetune: also fine-tune the policy, where the extra `train` is installed.
        as_json: print JSON.

    Raises:
        UserError: options contradict each other, or the cache cannot be used.
        RunError: there is no folder for the temporary files of measuring.
    """
    if list_ and clear:
        raise UserError("--list and --clear are mutually exclusive")
    seconds = common.parse_duration(budget)
    cache = PlacementCache.default("" if cache_dir is None else str(cache_dir))
    if cache is None:
        raise UserError("placements are not kept here: the cache folder cannot be used, or OV_HSDAG_CACHE is 0")
    with console.result(as_json) as show:
        if clear:
            removed = cache.clear()
            show({"folder": str(cache.folder), "removed": removed}, f"{cache.folder}: removed {removed}")
            return
        entries = unmeasured_first(cache.entries())
        if list_:
            _list(show, cache, entries)
            return
        _improve(show, cache, entries, seconds, finetune)


def _list(show: console.Show, cache: PlacementCache, entries: list[CacheEntry]) -> None:
    """Shows the entries of the cache."""
    table = console.table("model", "devices", "objective", "placement", left=(0, 1, 2, 3))
    for entry in entries:
        table.add_row(
            _title(entry), ",".join(entry.devices), entry.placement.objective, entry.placement.summary()
        )  # fmt: skip
    rows = [_entry_json(cache, entry) for entry in entries]
    text = f"{cache.folder}: {console.count(len(entries), 'placement')}"
    show({"folder": str(cache.folder), "entries": rows}, text, table if entries else None)
    if entries:
        show.next("improve")


def _improve(
    show: console.Show, cache: PlacementCache, entries: list[CacheEntry], seconds: float, finetune: bool
) -> None:
    """Improves entries one after the other, and shows the results.

    Args:
        show: prints text or JSON.
        cache: the cache, in which placements are replaced.
        entries: its entries, in the order in which they are measured.
        seconds: time for all. Each entry gets an equal share of the time that is left when its turn comes.
        finetune: also fine-tune the policy, where torch is installed.

    Raises:
        RunError: there is no folder for the temporary files of measuring.
    """
    require_temporary_folder()
    core = common.new_core()
    rows: list[dict[str, Any]] = []
    table = console.table("model", "devices", "predicted", "measured", "gained", "", left=(0, 1, 5))
    propose = _fine_tuned(core) if finetune and find_spec("torch") is not None else None
    deadline = Deadline(seconds)
    for number, entry in enumerate(entries):
        share = deadline.left / (len(entries) - number)
        with console.progress(_title(entry)) as tell:
            result = _improve_entry(core, cache, entry, share, propose, tell)
        rows.append(_result_json(cache, result))
        table.add_row(*_row(result))
    replaced = sum(row["replaced"] for row in rows)
    text = f"{cache.folder}: {console.count(len(entries), 'placement')}, {replaced} replaced"
    table.caption = (
        f"predicted, measured: times {BEST_SINGLE}. gained: times the placement that was kept before, with the"
        " interval of trials that did not choose it."
    )
    show({"folder": str(cache.folder), "entries": rows, "replaced": replaced}, text, table if entries else None)


def _improve_entry(
    core: ov.Core, cache: PlacementCache, entry: CacheEntry, seconds: float, propose: Proposer | None, tell: Any
) -> Improvement:
    """Improves one entry. A failure becomes the result's `why`, so that the other entries still get their turn.

    Args:
        core: Core of the devices.
        cache: the cache, in which the placement is replaced.
        entry: the entry.
        seconds: about the time for everything; below `LEAST_SECONDS` nothing is measured.
        propose: proposes further candidates; None for none.
        tell: called with a few words at each step.
    """
    missing = absent(core, entry.devices)
    if missing:
        return Improvement(entry, why=f"there is no {', '.join(missing)} here")
    if seconds < LEAST_SECONDS:
        return Improvement(entry, why=f"no time left: less than {LEAST_SECONDS:.0f} s")
    try:
        return improve_entry(core, cache, entry, seconds=seconds, propose=propose, report=tell)
    except (RunError, UserError, RuntimeError) as error:
        return Improvement(entry, why=one_line(error))


def _fine_tuned(core: ov.Core) -> Proposer:
    """Makes the proposer that fine-tunes the policy on a model's measured times.

    Fine-tuning keeps the policy, so that later placings on the same devices use it.
    """

    def propose(model: ov.Model, entry: CacheEntry, seconds: float, report: Report | None) -> Mapping[str, Placement]:
        """Fine-tunes on `model` for about `seconds`, and proposes the resulting placement; see `Proposer`."""
        from ov_hsdag.training import finetune as tuning

        def measured(number: int, *_: object) -> None:
            if report is not None:
                report(f"fine-tuning the policy: {console.count(number, 'placement')} measured")

        with tempfile.TemporaryDirectory(prefix="ov_hsdag-improve-") as folder:
            record, placement = tuning.finetune(
                model,
                f"HETERO:{','.join(entry.placement.devices)}",
                Path(folder) / "run",
                objective=entry.placement.objective,
                budget=tuning.Budget(seconds=seconds),
                profile=entry.options.get("profile"),
                core=core,
                report=measured,
            )
        # Without a measurement the placement is a single device, which the trials of `place` have compared already.
        return {"fine-tuned": placement} if record["measurements"] else {}

    return propose


def _title(entry: CacheEntry) -> str:
    """Names the model of an entry: its file, or its name where it was made in memory."""
    return entry.model.source or f"{entry.model.name} (in memory)"


def _row(result: Improvement) -> tuple[str, ...]:
    """Makes the row of an entry in the table; "-" stands for a figure that is not known."""
    gained = result.gained
    return (
        _title(result.entry),
        ",".join(result.entry.devices),
        "-" if result.predicted is None else f"{result.predicted:.2f}",
        "-" if result.measured is None else f"{result.measured:.2f}",
        "-" if gained is None else times(gained.median, (gained.low, gained.high)),
        "replaced" if result.replaced else f"kept: {result.why}",
    )


def _entry_json(cache: PlacementCache, entry: CacheEntry) -> dict[str, Any]:
    """Describes an entry of the cache in JSON's types. "measured" says whether its placement was ever measured."""
    return {
        "file": str(cache.path(entry.key)),
        "model": entry.model.name,
        "source": entry.model.source,
        "devices": list(entry.devices),
        "objective": entry.placement.objective,
        "chosen": entry.placement.chosen,
        "measured": entry.placement.measured is not None,
        "predicted": entry.placement.predicted,
    }


def _result_json(cache: PlacementCache, result: Improvement) -> dict[str, Any]:
    """Describes what improving an entry came to, in JSON's types; null stands for a figure that is not known."""
    gained = result.gained
    return {
        **_entry_json(cache, result.entry),
        "predicted_gain": result.predicted,
        "measured_gain": result.measured,
        "gained": None if gained is None else {"ratio": gained.median, "ci": [gained.low, gained.high]},
        "replaced": result.replaced,
        "why": result.why,
    }


COMMAND = Command(improve, position=100, example="ov-hsdag improve --budget 30m")
