"""Measures the kit's models on the devices of a machine, with every way to run them, for `ov-hsdag bench --kit`.

A comparison is one model on one device list for one objective. In it, all ways to run the model (single devices,
HETERO's own choice, copies, placements) are measured in turns.
"""

from __future__ import annotations

import getpass
import os
import platform
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from ov_hsdag._version import __version__
from ov_hsdag.devices import cpu, discovery
from ov_hsdag.devices.device_set import DeviceSet, kind_of
from ov_hsdag.kit.models import KIT, KitModel
from ov_hsdag.measuring.process import Candidate
from ov_hsdag.model.names import name_generated
from ov_hsdag.placing.candidates import policy_placers
from ov_hsdag.placing.first_load import LoadRequest, limits_of, placement_without_cache
from ov_hsdag.placing.improvement import completed_affinity
from ov_hsdag.placing.rivals import Rival, contenders, mark_twins, measure
from ov_hsdag.policy.bundle import DEFAULT, ships
from ov_hsdag.problem.pricing import Session
from ov_hsdag.utils.errors import RunError, UserError, one_line
from ov_hsdag.utils.lazy import ov
from ov_hsdag.utils.timing import Deadline

FORMAT = "ov-hsdag kit, 1"
"""Value of the key "format" in a file of results."""

MINUTES = 15.0
"""Default time for the whole kit, in minutes."""

BY_PREDICTION = "HSDAG:"
"""Name of the row for `core.compile_model(model, "HSDAG:…")`, which places by prediction."""

OBJECTIVES = ("throughput", "latency")

_MOST_ROUNDS = 60
"""Largest number of rounds; each has a trial of every candidate that may still be the best.

On shared cores that change their speed by a third within half a second, so many trials tell rates apart by 5%."""

_FEWEST_ROUNDS = 6
"""Number of rounds that the length of a trial leaves time for, where all candidates stay."""

_TRIAL_SECONDS = (0.03, 0.25)
"""Least and greatest length of a trial, s: an inference of the slowest model takes 0.3 s, of the fastest 0.01 s."""

_COMPILING_SHARE = 0.5
"""Share of a comparison's time that compiling takes, as seen on two CPU cores."""


@dataclass(frozen=True)
class Cell:
    """One comparison to make: a model on a device list, for "latency" or "throughput"."""

    model: KitModel
    devices: DeviceSet
    objective: str


def device_lists(names: Sequence[str]) -> list[DeviceSet]:
    """The device lists to compare on: all devices, then each pair of them.

    Args:
        names: devices of the machine in HETERO's order.

    Raises:
        UserError: there are fewer than two devices.
    """
    if len(names) < 2:
        raise UserError(f"the kit compares lists of devices, and this machine has {', '.join(names) or 'none'} alone")
    lists = [tuple(names), *combinations(names, 2)]
    return [DeviceSet(one) for one in dict.fromkeys(lists)]


def run_kit(
    core: ov.Core,
    lists: Sequence[DeviceSet],
    *,
    minutes: float = MINUTES,
    models: Sequence[KitModel] = KIT,
    report: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Measures the kit's models on device lists.

    Args:
        core: runs the models on its devices.
        lists: device lists to compare on; the first one is measured first.
        minutes: time for everything, about. Comparisons for which it does not suffice are named in the result.
        models: the models to measure.
        report: called with a line of progress before each comparison.

    Returns:
        An object of JSON's types with the keys "format", "ov_hsdag", "openvino", "machine", "devices", "minutes" and
        "comparisons". Each comparison has "model", "operations", "objective", "device", "rows" (see
        `ov_hsdag.placing.rivals.Result`), "predicted_gain" of the placement by prediction, and "failed" ("" for a
        success). It has no name of a user or a machine.
    """
    deadline = Deadline(60 * minutes)
    cells = [Cell(*both, objective) for both in _pairs(lists, models) for objective in OBJECTIVES]
    comparisons = []
    for number, cell in enumerate(cells):
        if report is not None:
            report(f"{number + 1} of {len(cells)}: {cell.model.name}, {cell.objective} on {cell.devices.hetero}")
        comparisons.append(_compared(core, cell, deadline.left / (len(cells) - number), deadline))
    return {
        "format": FORMAT,
        "ov_hsdag": __version__,
        "openvino": ov.__version__,
        "machine": _machine(),
        "devices": [_device(core, name) for name in dict.fromkeys(name for one in lists for name in one.names)],
        "minutes": minutes,
        "comparisons": comparisons,
    }


def _pairs(lists: Sequence[DeviceSet], models: Sequence[KitModel]) -> Iterator[tuple[KitModel, DeviceSet]]:
    """Yields each model with each device list, no pair twice.

    Models with open sizes get the lists without the NPU, which does not run such models.
    """
    seen = set()
    for devices in lists:
        for model in models:
            names = tuple(name for name in devices.names if not (model.shapes and kind_of(name) == "NPU"))
            if len(names) > 1 and (model.name, names) not in seen:
                seen.add((model.name, names))
                yield model, DeviceSet(names)


def _compared(core: ov.Core, cell: Cell, seconds: float, deadline: Deadline) -> dict[str, Any]:
    """Measures one comparison.

    Args:
        core: Core of the devices.
        cell: the comparison.
        seconds: about the time for it, seconds.
        deadline: end of the time for the whole kit; once it is over nothing is measured.

    Returns:
        The comparison in JSON's types, see `run_kit`; where it fails, the reason is under "failed".
    """
    entry: dict[str, Any] = {
        "model": cell.model.name,
        "operations": 0,
        "objective": cell.objective,
        "device": cell.devices.hetero,
        "rows": [],
        "predicted_gain": None,
        "failed": "",
    }
    begin = time.monotonic()
    if deadline.left <= 0:
        return {**entry, "failed": "left out: the time was over"}
    try:
        model = cell.model.build()
        name_generated(model)  # gives nodes lasting names, so that copies of the model have the same ones
        entry["operations"] = len(model.get_ops())
        rivals, gain = _rivals(core, cell, model)
        least, most = _TRIAL_SECONDS
        trial = min(max((1 - _COMPILING_SHARE) * seconds / (_FEWEST_ROUNDS * len(rivals)), least), most)
        results = measure(
            model,
            cell.devices,
            cell.objective,
            core,
            rivals,
            rounds=_MOST_ROUNDS,
            seconds=trial,
            total_seconds=seconds - (time.monotonic() - begin),
            shapes=dict(cell.model.shapes) or None,
        )
    except (RunError, UserError) as error:
        return {**entry, "failed": anonymous(one_line(error))}
    rows = [result.to_dict() for result in results]
    for row in rows:
        row["failed"] = row["failed"] and anonymous(row["failed"])
    return {**entry, "rows": rows, "predicted_gain": gain}


def _rivals(core: ov.Core, cell: Cell, model: ov.Model) -> tuple[list[Rival], float | None]:
    """Places a model, and lists all ways to run it.

    Args:
        core: Core of the devices.
        cell: the comparison.
        model: the model, which is normalized in place.

    Returns:
        The ways to run the model, the placement of `BY_PREDICTION` last; and that placement's predicted gain over the
        best single device, as a ratio, None where it is not known.
    """
    request = LoadRequest(cell.devices.names, objective=cell.objective)
    chosen = placement_without_cache(core, model, request)  # like a first load, which has no example shapes
    session = Session.of(cell.devices, core, memory=limits_of(core, request) or None)
    analysis = session.analyse(model, dict(cell.model.shapes) or None)
    problem = session.price(analysis, cell.objective).problem
    policies = policy_placers(DEFAULT) if ships(DEFAULT) else []
    rivals, _ = contenders(problem, cell.devices, policies, by_hand=False)
    affinity = completed_affinity(problem, model, chosen)
    by_prediction = Rival(
        BY_PREDICTION, Candidate.placed(cell.devices, affinity), problem.placement_of(affinity), chosen.predicted
    )
    return mark_twins([*rivals, by_prediction]), chosen.predicted_gain(chosen.chosen)


def anonymous(text: str) -> str:
    """Replaces the names of the user, the machine and the home folder in a text."""
    with suppress(RuntimeError):  # the user has no home folder
        text = text.replace(str(Path.home()), "~")
    names = {socket.gethostname(): "MACHINE"}
    with suppress(OSError, KeyError):  # the user has no name, as in some containers
        names[getpass.getuser()] = "USER"
    for name, instead in names.items():
        if len(name) > 3 and name != "root":  # shorter ones are parts of words, and "root" is nobody's name
            text = text.replace(name, instead)
    return text


def _machine() -> dict[str, Any]:
    """Describes this machine in JSON's types, without its name."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "cores": cpu.usable_cores(),
        "logical_cpus": os.cpu_count(),
    }


def _device(core: ov.Core, name: str) -> dict[str, Any]:
    """Describes a device in JSON's types: names, driver, memory, precision of inference, and threads."""
    properties = ("GPU_DRIVER_VERSION", "NPU_DRIVER_VERSION")
    drivers = (discovery.property_text(core, name, key) for key in properties)
    return {
        "name": name,
        "full_name": discovery.full_name(core, name),
        "driver": next(filter(None, drivers), ""),
        "memory_bytes": discovery.memory_bytes(core, name),
        "precision": discovery.inference_precision(core, name),
        "threads": discovery.inference_threads(core, name),
    }
