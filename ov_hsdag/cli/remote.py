"""Commands that run on the machines of a Ray cluster: --ray and --on."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ov_hsdag.cli import command_lines, console
from ov_hsdag.cli.command_lines import given_options, options
from ov_hsdag.fleet.job import Inputs, Job
from ov_hsdag.fleet.machines import Kind, parse_on
from ov_hsdag.placing.options import flags
from ov_hsdag.storage.scratch import require_temporary_folder
from ov_hsdag.utils.errors import RunError, UserError
from ov_hsdag.utils.lazy import ov

if TYPE_CHECKING:
    from ov_hsdag.fleet.cluster import Cluster

Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Measure on machines of this Ray cluster, where `ov-hsdag worker` runs, and not here.",
    ),
]
On = Annotated[
    list[str] | None,
    typer.Option(
        "--on",
        metavar="GPU=NAME",
        help='With --ray: which machines, by words of a device\'s name, as "GPU=Arc A770"; can be given several times.'
        " Without it one of each kind that has the devices.",
    ),
]


def check_on(ray: str | None, on: Sequence[str] | None) -> None:
    """Raises UserError where machines are named, and no cluster that has them."""
    if on and ray is None:
        raise UserError("--on names machines of a Ray cluster: give its address, too (--ray)")
    for text in on or ():
        parse_on(text)


class Fleet:
    """The kinds of machines of a cluster that a command is for, in the order in which results are shown."""

    def __init__(self, cluster: Cluster, kinds: Sequence[Kind], several: bool) -> None:
        """See `connected`. several: whether results are named by the kind: unless one is named with --on."""
        self._cluster, self.kinds, self.several = cluster, kinds, several

    def target(self, path: Path, kind: Kind) -> Path:
        """The output of a kind: NAME.KIND.xml for NAME.xml; of a folder a folder in it."""
        if not self.several:
            return path
        return path.with_name(f"{path.stem}.{kind.name}{path.suffix}") if path.suffix else path / kind.name

    def run(self, what: str, jobs: Sequence[tuple[Kind, Job, Path]]) -> list[str | UserError | RunError]:
        """Run jobs (see `Cluster.run`); what each printed, or why it failed. what: they do: "placing model.xml"."""
        with console.progress(what) as tell:
            return self._cluster.run(jobs, tell, lambda text: console.warn(text.replace("warning: ", "")))

    def each(
        self,
        what: str,
        jobs: Sequence[tuple[Kind, Job, Path]],
        use: Callable[[Kind, dict[str, Any]], dict[str, Any]],
        show: console.Show,
    ) -> list[Exception]:
        """Run a job for each kind; the failures of jobs, and of `use`.

        `use` takes a result, writes and shows it, and returns what is reported of it, which `show` prints as JSON.
        """
        failures: list[Exception] = []
        found = []
        for kind, result in zip(self.kinds, self.run(what, jobs), strict=True):
            try:
                found.append(use(kind, parsed(kind, result)))
            except (UserError, RunError) as error:
                failures.append(error)
                found.append(failed(kind, error))
        show.json({"machines": found} if self.several else found[0])
        return failures


@contextlib.contextmanager
def connected(ray: str, devices: Sequence[str], on: Sequence[str] | None) -> Iterator[Fleet]:
    """The machines of a Ray cluster that have some devices; on: values of --on. UserError: no such one."""
    from ov_hsdag.fleet.cluster import Cluster

    with contextlib.ExitStack() as stack:
        with console.progress(f"joining the Ray cluster at {ray}"):
            cluster = stack.enter_context(Cluster(ray))
            kinds, others = cluster.kinds(devices, ov.__version__, on or ())
        for machine in others:
            console.warn(
                f"{machine.host} is left out: it has OpenVINO {machine.openvino} and ov-hsdag"
                f" {machine.version}, unlike this machine"
            )
        yield Fleet(cluster, kinds, several=len(on or ()) != 1)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder for what comes back. Raises RunError where there is none."""
    require_temporary_folder()
    with tempfile.TemporaryDirectory(prefix="ov-hsdag-fleet-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def words(inputs: Inputs, names: Sequence[str], instead: Mapping[str, object]) -> list[str]:
    """The words of the command as a job for `names`, with options as given, or `instead`; files travel with it."""
    found: list[object] = [*names]
    for option, value in given_options():
        name = option.opts[0]
        if name in _HERE or name in instead:
            continue
        if isinstance(value, bool):
            found += [name] if value else option.secondary_opts
            continue
        if name in _read_files():
            value = [inputs.file(Path(one)) for one in (value if option.multiple else [value])]
        elif name == flags()["inputs"].word("inputs"):
            value = [inputs.named_file(one) for one in value]
        elif name == "--policy":
            value = policy(inputs, value)
        found += options({name: value})
    command = command_lines.running.command.name if command_lines.running else None
    return [str(word) for word in (command, *found, *options(instead), "--json")]


def _read_files() -> set[str]:
    """Options whose values are files that a command reads; what it writes is no business of a job's files."""
    return {flag.word(name) for name, flag in flags().items() if flag.kind == "file"} | {"--extension"}


# Options about what is printed here, and about where the work is done.
_HERE = ("--ray", "--on", "--json", "--quiet", "--debug")


def policy(inputs: Inputs, name: str) -> str | None:
    """A policy for a job: a folder travels, a name is known there."""
    return inputs.file(Path(name)) if Path(name).is_dir() else name


def parsed(kind: Kind, printed: str | UserError | RunError) -> dict[str, Any]:
    """The JSON that a job printed, and which machine it is of. Raises why it failed, or RunError of no object."""
    if isinstance(printed, Exception):
        raise printed
    try:
        found = json.loads(printed)
        if not isinstance(found, dict):
            raise ValueError("it is no object")
    except ValueError as error:
        raise RunError(f"{kind.describe()}: what the command printed there cannot be read: {error}") from error
    return {"machine": about(kind), **found}


def about(kind: Kind) -> dict[str, Any]:
    """A kind of machine, JSON-able."""
    return {"kind": kind.number, "devices": dict(kind.devices), "machines": kind.machines}


def failed(kind: Kind, error: Exception) -> dict[str, Any]:
    """What takes the place of a result."""
    return {"machine": about(kind), "failed": str(error)}


def end(failures: Sequence[Exception]) -> None:
    """Raises the first of the failures; the others are printed before."""
    for error in failures[1:]:
        console.message(f"error: {error}")
    if failures:
        raise failures[0]
