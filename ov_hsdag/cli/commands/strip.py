"""`ov-hsdag strip`: a copy of a model without its placement."""

from __future__ import annotations

from ov_hsdag.cli import _common as common
from ov_hsdag.cli import console
from ov_hsdag.cli.command import Command
from ov_hsdag.model.placement import Placement
from ov_hsdag.model.stored_placement import RT_INFO
from ov_hsdag.storage.model_folder import is_model_folder, model_files, models_of


def strip(
    model: common.Model, output: common.Output, part: common.Parts = None, hardlinks: common.HardLinks = True
) -> None:
    """Write a copy of MODEL without the placement inside; of a folder, without those of all of its models.

    Args:
        model: the placed model or its folder.
        output: the IR or folder to write.
        part: models of a folder; None for all.
        hardlinks: share unchanged weights with the input folder.
    """
    common.check_model(model)
    folder = is_model_folder(model)
    files = model_files(model, part or ([*models_of(model)] if folder else ()))
    common.check_output(output, model)

    core = common.new_core()
    loaded = {file: common.read_model(core, file) for file in files}
    # A placement that is damaged or of a newer release is removed as well: the error message about it advises strip.
    carriers = {file: found for file, found in loaded.items() if found.has_rt_info([RT_INFO])}
    if not carriers:
        console.message(f"{model} carries no placement: {output} is a plain copy")
    for found in carriers.values():
        Placement.strip(found)
    written = {file: (found, False) for file, found in (carriers if folder else loaded).items()}
    common.write_models(output, model, written, hardlinks)
    console.Show().text(f"{output}: {model} without its placement")


COMMAND = Command(strip, position=190, example="ov-hsdag strip model_placed.xml --output plain.xml")
