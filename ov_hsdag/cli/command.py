"""How a module describes its subcommand of `ov-hsdag`, and how the program finds all of them."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from ov_hsdag.cli import commands


@dataclass(frozen=True)
class Command:
    """A subcommand. Each module in `ov_hsdag/cli/commands/` has one, named `COMMAND`."""

    function: Callable[..., None]  # runs it; its name and its docstring are those of the subcommand
    # Commands are listed by this number in `--help`, in the order in which users come to need them. Numbers are tens,
    # so that a new command fits between two others.
    position: int
    example: str  # a command line
    hidden: bool = False  # not listed in `--help` and in the documentation; it stays for scripts
    runs_program: bool = False  # words after the first argument are a program's own, even if they look like options

    @property
    def name(self) -> str:
        """The word after "ov-hsdag"."""
        return self.function.__name__

    @property
    def help(self) -> str:
        """The text of `--help`: the docstring without its sections for callers in Python."""
        return inspect.cleandoc(self.function.__doc__ or "").partition("\n\nArgs:\n")[0]

    @property
    def short_help(self) -> str:
        """The first paragraph of the docstring, for the list of commands."""
        return (self.function.__doc__ or "").partition("\n\n")[0]


def find_commands() -> list[Command]:
    """Imports the modules in `ov_hsdag/cli/commands/`, and returns their commands in the order of `--help`."""
    names = [module.name for module in pkgutil.iter_modules(commands.__path__)]
    found: list[Command] = [import_module(f"{commands.__name__}.{name}").COMMAND for name in names]
    return sorted(found, key=lambda command: command.position)
