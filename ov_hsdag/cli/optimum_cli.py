"""`optimum-cli place`: runs `ov-hsdag place` as one of optimum's commands."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from types import ModuleType


def patch(module: ModuleType) -> None:
    """Registers the command with optimum, by optimum's decorator for commands of other packages.

    module: optimum.commands.optimum_cli, just imported.
    """
    from optimum.commands.base import BaseOptimumCLICommand, CommandInfo

    @module.optimum_cli_subcommand()
    class PlaceCommand(BaseOptimumCLICommand):  # type: ignore[misc]
        COMMAND = CommandInfo("place", "Decide on which devices a model of OpenVINO runs (ov-hsdag place --help).")

        @staticmethod
        def parse_args(parser: ArgumentParser) -> None:
            parser.add_argument("model", help="an exported folder, or what OpenVINO reads")
            parser.add_argument("options", nargs="...", help="those of ov-hsdag place")

        def run(self) -> None:
            from ov_hsdag.cli import main

            sys.argv = ["ov-hsdag", "place", self.args.model, *self.args.options]
            main()
