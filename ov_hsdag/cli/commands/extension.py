"""`ov-hsdag extension`: the library that lets programs without Python follow a placement."""

from __future__ import annotations

from typing import Annotated

import typer

from ov_hsdag.cli import console
from ov_hsdag.cli.command import Command
from ov_hsdag.integration import extension as library


def extension(
    build: Annotated[bool, typer.Option("--build", help="Compile it for the installed OpenVINO (needs g++).")] = False,
) -> None:
    """Print the path of the library for Core::add_extension and benchmark_app -extensions."""
    if build:
        with console.progress("compiling the extension library"):
            library.build()
    print(library.extension_path())


COMMAND = Command(extension, position=180, example="ov-hsdag extension --build")
