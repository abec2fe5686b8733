"""`ov-hsdag devices`: which devices there are, and which profile stands for each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from ov_hsdag.cli import _common as common
from ov_hsdag.cli import console
from ov_hsdag.utils.errors import UserError

if TYPE_CHECKING:
    import openvino as ov


def devices(as_json: common.Json = False, debug: common.Debug = False) -> None:
    """List the devices of this machine, virtual ones included, and the built-in profile of each."""
    import openvino as ov

    from ov_hsdag.devices.discovery import available

    with console.result(as_json) as show:
        core = ov.Core()
        found = [
            {
                "name": device.name,
                "full_name": device.full_name,
                "virtual": device.virtual,
                "precision": device.precision,
                "profile": _profile(core, device.name),
            }
            for device in available(core)
        ]
        show({"devices": found}, table=_table(found))


def _profile(core: ov.Core, name: str) -> str | None:
    from ov_hsdag.costs.builtin import builtin_profile

    try:
        return builtin_profile([name], core).device(name).description
    except UserError:  # of a kind that no built-in profile describes
        return None


def _table(found: list[dict[str, Any]]) -> Table:
    table = Table("device", "full name", "virtual", "infers in", "profile", box=None)
    for device in found:
        virtual = "yes" if device["virtual"] else "no"
        table.add_row(
            device["name"], device["full_name"], virtual, device["precision"] or "?", device["profile"] or "none"
        )
    return table
