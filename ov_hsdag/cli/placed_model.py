"""A placed model, as the user's options describe it, with its explanation: what `explain` and `report` share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ov_hsdag.cli import _common as common
from ov_hsdag.cli import console
from ov_hsdag.cli.command_lines import place_it
from ov_hsdag.costs.profile import Profile
from ov_hsdag.costs.stored import load_beside
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.devices.memory import parse_memory
from ov_hsdag.explaining.explain import explain as explain_model
from ov_hsdag.explaining.explain import placement_of
from ov_hsdag.explaining.explained_model import ExplainedModel
from ov_hsdag.model.inputs import parse_shapes
from ov_hsdag.model.placement import Placement
from ov_hsdag.problem.problem import check_objective
from ov_hsdag.utils.errors import UserError


@dataclass(frozen=True)
class PlacedModel:
    """Options that `explain` and `report` share: model of a folder, its placement, and the costs and limits to use."""

    device: Annotated[str | None, common.device_option("Devices; by default those of the placement.")] = None
    affinity: common.AffinityFile = None
    objective: Annotated[
        str | None,
        typer.Option(
            "--objective", metavar="latency|throughput", help="What moves are judged by; by default the placement's."
        ),
    ] = None
    profile: common.ProfileFile = None
    memory: common.Memory = None
    shape: common.Shapes = None
    workload: common.WorkloadOption = None
    context: common.Context = None
    part: common.Part = None


def explained(model: Path, file: Path, placed: PlacedModel) -> ExplainedModel:
    """Reads and explains a placed model.

    Args:
        model: the file or folder that the user named, for messages.
        file: the model's file.
        placed: options of the user.

    Returns:
        The explained model.

    Raises:
        UserError: an option is wrong, the model cannot be read, or it carries no placement.
    """
    if placed.objective is not None:
        check_objective(placed.objective)
    devices = DeviceSet.parse(placed.device).names if placed.device is not None else None
    examples = parse_shapes(placed.shape or ())
    costs = Profile.load(placed.profile) if placed.profile else None
    given_placement = Placement.load(placed.affinity, devices) if placed.affinity else None
    core = common.new_core()
    loaded, shapes = common.read_with_shapes(core, file, examples)
    carried = given_placement or placement_of(loaded)
    if carried is None:
        raise UserError(f"{model} carries no placement; {place_it(model, core, placed.device)}")
    limits = parse_memory(placed.memory, devices or carried.devices) if placed.memory is not None else None
    with console.progress(f"pricing {model}"):
        return explain_model(
            loaded,
            devices,
            affinity=given_placement,
            objective=placed.objective,
            profile=costs,
            core=core,
            shapes=shapes,
            memory=limits,
            costs=load_beside(file),
            workload=placed.workload,
            context=placed.context,
        )
