"""Calibration of a machine: a profile of its devices, and the measured costs of models."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

from ov_hsdag.calibration.calibrate import calibrate_prepared
from ov_hsdag.calibration.device_profile import DeviceReport, calibrate_devices, stages_of
from ov_hsdag.calibration.node_times import NodeTimes
from ov_hsdag.costs.profile import Profile
from ov_hsdag.costs.stored import ModelCosts
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.devices.virtual import new_core
from ov_hsdag.model.inputs import example_shapes
from ov_hsdag.problem.analysis import prepare
from ov_hsdag.storage.files import write_json
from ov_hsdag.utils.arguments import check_argument, check_in_memory
from ov_hsdag.utils.lazy import ov
from ov_hsdag.utils.progress import Stages


@dataclass(frozen=True, eq=False)
class Calibration:
    """What was measured."""

    profile: Profile  # of the devices, for `ov_hsdag.place(profile=…)`
    document: dict[str, Any]  # the same as JSON
    reports: dict[str, DeviceReport]  # device → how well its figures explain what was measured
    costs: tuple[ModelCosts, ...]  # of each model, for `ov_hsdag.place(costs=…)`
    times: tuple[dict[str, NodeTimes], ...]  # of each model: device → what its operations took

    def save(self, path: str | PathLike[str]) -> None:
        """Write the profile's file. Raises UserError where it cannot be written."""
        write_json(path, self.document)


def calibrate(
    device: str | Sequence[str],
    models: Sequence[ov.Model] = (),
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seconds: float = math.inf,
    core: ov.Core | None = None,
    report: Callable[[str], None] | None = None,
) -> Calibration:
    """Measures devices of this machine, and what models cost on them.

    Args:
        device: the devices: "HETERO:GPU,CPU", or ["GPU", "CPU"].
        models: not changed.
        shapes: example shapes of the models' dynamic inputs, by input name.
        seconds: time for each model, about.
        core: has the devices; a new one by default.
        report: called with a few words at each step.

    Raises:
        UserError: bad input, or a device that is not on this machine.
        RunError: a device does not run the built-in models, or none runs a whole model.
    """
    check_argument("seconds", seconds, float, least=0)
    for model in models:
        check_in_memory("calibrate", model)
    names = DeviceSet.parse(device).names
    core = core or new_core()
    examples = example_shapes(models, shapes or {})
    stages = Stages(report or (lambda _: None), stages_of(names) + len(models))
    document, reports = calibrate_devices(core, names, stages)
    profile = Profile.of(document, "the calibration")
    measured = []
    for model, example in zip(models, examples, strict=True):
        stages.begin(model.get_friendly_name())
        analysis = prepare(model.clone(), names, core, profile, shapes=example)
        measured.append(calibrate_prepared(analysis, core, profile, stages, seconds))
    costs, times = zip(*measured, strict=True) if measured else ((), ())
    return Calibration(profile, document, reports, costs, times)
