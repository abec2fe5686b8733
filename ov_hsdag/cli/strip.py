"""`ov-hsdag strip`: a copy of a model without its placement."""

from __future__ import annotations

from ov_hsdag.cli import _common as common
from ov_hsdag.cli import console


def strip(model: common.Model, output: common.Output, debug: common.Debug = False) -> None:
    """Write a copy of MODEL without the placement inside."""
    common.check_model(model)
    common.check_output(output, model)

    import openvino as ov

    from ov_hsdag.model.placement import RT_INFO, Placement
    from ov_hsdag.utils.files import save_model_atomically

    loaded = common.read_model(ov.Core(), model)
    # One that cannot be read, or is newer than this release, goes as well: that is what its error message advises.
    if not loaded.has_rt_info([RT_INFO]):
        console.message(f"{model} carries no placement: {output} is a plain copy")
    Placement.strip(loaded)
    save_model_atomically(loaded, output, compress_to_fp16=False)
