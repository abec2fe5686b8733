"""``ovc MODEL --placement HETERO:…``: OpenVINO's converter with a placement step and options for it.

Its main() asks for a parser, converts and saves through names that can be replaced; without ``--placement`` the
replacements do exactly what the originals do.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from ov_hsdag.integration.converters import wrap_convert, wrap_parser, wrap_save
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import ov


def patch(module: Any) -> None:
    """Replace what main() of the module openvino.tools.ovc.main calls. A second call does nothing."""
    from openvino.tools.ovc import cli_parser

    if getattr(module._convert, "__ov_hsdag__", False):
        return
    placed: list[ov.Model] = []
    cli_parser.get_all_cli_parser = wrap_parser(cli_parser.get_all_cli_parser, _output)
    module._convert = wrap_convert(module._convert, placed)
    module.save_model = wrap_save(module.save_model, placed, lambda compress_to_fp16=True: compress_to_fp16)


def _output(namespace: argparse.Namespace) -> str:
    """The .xml file that ovc will write."""
    from openvino.tools.ovc.cli_parser import get_model_name_from_args
    from openvino.tools.ovc.error import Error

    try:
        return os.fsdecode(get_model_name_from_args(namespace))
    except Error as error:
        raise UserError(str(error)) from error
