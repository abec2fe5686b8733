"""`ov-hsdag show`: the placement that a model carries, as it is stored. For scripts; people use `explain --stored`."""

from __future__ import annotations

from ov_hsdag.cli import _common as common
from ov_hsdag.cli.command import Command
from ov_hsdag.cli.stored_placement import AffinityOutput, print_stored


def show(
    model: common.Model, output: AffinityOutput = None, part: common.Parts = None, as_json: common.Json = False
) -> None:
    """Show the placement inside MODEL as it is stored: devices, what crosses, prediction and measurement.

    The same as `ov-hsdag explain --stored`; this name stays for scripts. Nothing is predicted or measured anew. Of a
    folder, all models that carry a placement.

    Args:
        model: the placed model or its folder.
        output: the affinities to write, too, as .json.
        part: models of a folder; None for all.
        as_json: print JSON.

    Raises:
        UserError: a file cannot be read or written, or there is no placement.
    """
    print_stored(model, output, part, as_json)


COMMAND = Command(show, position=50, example="ov-hsdag show model_placed.xml --output affinity.json", hidden=True)
