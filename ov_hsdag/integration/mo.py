"""``mo --input_model MODEL --placement HETERO:…``: the converter of openvino-dev 2024.6, as ovc does it.

``mo`` runs its main.py as a script in a second process, whose first import is openvino.tools.mo.convert_impl. The
script takes its convert function, its parser and ``serialize`` from there and from two other modules when it is run, so
they are replaced where they are defined.
"""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Callable
from typing import Any

from ov_hsdag.integration.converters import wrap_convert, wrap_parser, wrap_save
from ov_hsdag.utils.lazy import ov


def patch(module: Any) -> None:
    """Replace what mo's main.py calls; ``module`` is openvino.tools.mo.convert_impl. A second call does nothing."""
    from openvino import runtime
    from openvino.tools.mo.utils import cli_parser

    if getattr(module._convert, "__ov_hsdag__", False):
        return
    placed: list[ov.Model] = []
    compressed: list[bool] = []  # whether mo was asked for f16 weights
    cli_parser.get_all_cli_parser = wrap_parser(cli_parser.get_all_cli_parser, _output)
    module._convert = wrap_convert(_noting(module._convert, compressed), placed)
    # mo compresses before it serializes, but placing may fold the conversions away again.
    runtime.serialize = wrap_save(runtime.serialize, placed, lambda *_, **__: compressed == [True])


def _output(namespace: argparse.Namespace) -> str:
    """The .xml file that mo will write."""
    from openvino.tools.mo.utils.cli_parser import get_model_name_from_args

    # A copy: the function stores the name, and mo would then take it for an option that the user gave.
    name = get_model_name_from_args(argparse.Namespace(**vars(namespace)))
    return os.path.join(namespace.output_dir, f"{name}.xml")


def _noting(original: Callable[..., Any], compressed: list[bool]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _convert(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        compressed[:] = [bool(getattr(result[1], "compress_to_fp16", False))]
        return result

    return _convert
