"""`ov-hsdag devices`: which devices there are, and which profile stands for each of them."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from ov_hsdag.cli import _common as common
from ov_hsdag.cli import console
from ov_hsdag.cli.command import Command
from ov_hsdag.cli.command_lines import first_placing
from ov_hsdag.costs.builtin import builtin_profile
from ov_hsdag.devices.discovery import available
from ov_hsdag.devices.virtual import new_core
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import ov


def devices(as_json: common.Json = False) -> None:
    """List the devices of this machine, virtual ones included, and the built-in profile of each.

    Of a profile, the figures that are estimates are named; docs/reference/profiles.md describes them. `ov-hsdag
    calibrate` measures.
    """
    with console.result(as_json) as show:
        with console.progress("looking for devices"):
            core = new_core()
            there = available(core)
            descriptions = [
                {name: getattr(device, name) for name in ("name", "full_name", "virtual", "precision")}
                | _profile(core, device.name)
                for device in there
            ]
        show({"devices": descriptions}, table=_table(descriptions))
        show.hint("next", first_placing(there))


def _profile(core: ov.Core, name: str) -> dict[str, Any]:
    """The built-in profile of a device, in JSON's types.

    Returns:
        The profile's description, its name for {"builtin": name}, and which of its figures are estimates; None, None
        and an empty list where no profile describes this kind of device.
    """
    try:
        profile = builtin_profile([name], core).device(name)
    except UserError:  # no built-in profile describes this kind of device
        return {"profile": None, "profile_id": None, "estimates": []}
    return {"profile": profile.description, "profile_id": profile.builtin, "estimates": list(profile.estimates)}


def _table(descriptions: list[dict[str, Any]]) -> Table:
    table = console.table("device", "name and precision; profile that stands for it; estimates in that", left=(0, 1))
    for device in descriptions:
        virtual = ", virtual" if device["virtual"] else ""
        lines = [f"{device['full_name']}{virtual}, infers in {device['precision'] or '?'}"]
        if device["profile"]:
            lines.append(f"{device['profile_id']}: {device['profile']}")
            lines.append(f"estimates: {', '.join(device['estimates']) or 'none'}")
        else:
            lines.append("no profile")
        table.add_row(device["name"], "\n".join(lines))
    return table


COMMAND = Command(devices, position=120, example="ov-hsdag devices --json")
