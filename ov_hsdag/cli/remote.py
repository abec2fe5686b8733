"""Commands that run on the machines of a Ray cluster: --ray and --on.

This module alone names `ov_hsdag.fleet`, and imports it when it is used. Commands describe their work as jobs
(`ov_hsdag.jobs`) and pass them to a `Fleet`.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ov_hsdag.cli import command_lines, console
from ov_hsdag.cli.command_lines import given_options, options
from ov_hsdag.jobs.job import Inputs, Job
from ov_hsdag.jobs.machine_kind import Kind
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


TaskMap = Callable[[Callable[[int], Any], Sequence[int]], Iterator[Any]]
"""Calls a function for each number, in other processes; yields the results in the order of the numbers."""


def check_on(ray: str | None, on: Sequence[str] | None) -> None:
    """Raises UserError where --on is given without --ray, or is malformed."""
    if on and ray is None:
        raise UserError("--on names machines of a Ray cluster: give its address, too (--ray)")
    if on:
        from ov_hsdag.fleet.machines import parse_on

        for text in on:
            parse_on(text)


class Fleet:
    """The kinds of machines of a cluster on which a command runs, in the order in which results are shown."""

    def __init__(self, cluster: Cluster, kinds: Sequence[Kind], several: bool) -> None:
        """Use `connected` to make one.

        Args:
            cluster: the cluster, joined.
            kinds: one machine of each kind runs the command.
            several: whether outputs have the kind in their names; False only where --on names a single kind.
        """
        self._cluster, self.kinds, self.several = cluster, kinds, several

    def target(self, path: Path, kind: Kind) -> Path:
        """The path of a kind's output: NAME.KIND.xml for NAME.xml, and FOLDER/KIND for a folder."""
        if not self.several:
            return path
        return path.with_name(f"{path.stem}.{kind.name}{path.suffix}") if path.suffix else path / kind.name

    def run(self, what: str, jobs: Sequence[tuple[Kind, Job, Path]]) -> list[str | UserError | RunError]:
        """Runs jobs, see `Cluster.run`, and returns what each printed, or its error. what: "placing model.xml"."""
        with console.progress(what) as tell:
            return self._cluster.run(jobs, tell, lambda text: console.warn(text.replace("warning: ", "")))

    def each(
        self,
        what: str,
        jobs: Sequence[tuple[Kind, Job, Path]],
        use: Callable[[Kind, dict[str, Any]], dict[str, Any]],
        show: console.Show,
    ) -> list[Exception]:
        """Runs a job for each kind of machine, and prints the results as JSON where that was asked for.

        Args:
            what: the work, for the progress line: "placing model.xml".
            jobs: a job for each kind with the folder for its output files, in the order of `kinds`.
            use: called with the kind and the JSON that its job printed; it writes and shows the result, and returns
                the object for JSON.
            show: prints the objects.

        Returns:
            The errors of jobs and of `use`.
        """
        failures: list[Exception] = []
        entries = []
        for kind, result in zip(self.kinds, self.run(what, jobs), strict=True):
            try:
                entries.append(use(kind, parsed(kind, result)))
            except (UserError, RunError) as error:
                failures.append(error)
                entries.append(failed(kind, error))
        show.json({"machines": entries} if self.several else entries[0])
        return failures


@contextlib.contextmanager
def connected(ray: str, devices: Sequence[str], on: Sequence[str] | None) -> Iterator[Fleet]:
    """Joins a Ray cluster for the duration of the block.

    Args:
        ray: address of the cluster.
        devices: devices that a machine must have.
        on: values of --on; None for one machine of each kind.

    Returns:
        A context manager that yields the kinds of machines with these devices. It raises UserError where there are
        none, and warns of machines with other releases of OpenVINO or ov-hsdag.
    """
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
def task_map(ray: str) -> Iterator[TaskMap]:
    """Joins a Ray cluster for the duration of the block, and yields its `map`, which uses the cores of all machines.

    Args:
        ray: address of the cluster.

    Returns:
        A context manager. It raises UserError where the cluster cannot be used.
    """
    from ov_hsdag.fleet.cluster import Cluster

    with contextlib.ExitStack() as stack:
        with console.progress(f"joining the Ray cluster at {ray}"):
            cluster = stack.enter_context(Cluster(ray))
        yield cluster.map


def announcement(core: ov.Core) -> dict[str, str]:
    """The labels by which other machines of a Ray cluster know this one: its kind, its releases, each device's model.

    core: lists the devices of this machine.
    """
    from ov_hsdag.fleet import machines

    return machines.announcement(core)


def serve(ray: str, labels: Mapping[str, str], cores: int) -> None:
    """Lends this machine to a Ray cluster, and warns where strangers could use it; returns when the cluster has gone.

    Args:
        ray: address of the head of the cluster.
        labels: from `announcement`.
        cores: cores for tasks (`task_map`) at the same time as jobs.
    """
    from ov_hsdag.fleet import node

    if advice := node.token_advice(os.environ, Path.home()):  # Ray's authentication token, which keeps strangers out
        console.warn(advice)
    node.serve(ray, labels, cores)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Yields a temporary folder for the output files of jobs. Raises RunError where none can be made."""
    require_temporary_folder()
    with tempfile.TemporaryDirectory(prefix="ov-hsdag-fleet-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def words(inputs: Inputs, names: Sequence[str], instead: Mapping[str, object]) -> list[str]:
    """The running command's name and options as the words of a job, with --json.

    Options are those of the user's command line; files that they name are added to the job's files.

    Args:
        inputs: the job's files; options that name files are replaced by their names there.
        names: the arguments of the command, such as the model's name among `inputs`.
        instead: values of options in place of those given; None omits the option.

    Returns:
        The words after "ov-hsdag".
    """
    command_words: list[object] = [*names]
    for option, value in given_options():
        name = option.opts[0]
        if name in _HERE or name in instead:
            continue
        if isinstance(value, bool):
            command_words += [name] if value else option.secondary_opts
            continue
        if name in _read_files():
            value = [inputs.file(Path(one)) for one in (value if option.multiple else [value])]
        elif name == flags()["inputs"].word("inputs"):
            value = [inputs.named_file(one) for one in value]
        elif name == "--policy":
            value = policy(inputs, value)
        command_words += options({name: value})
    command = command_lines.running.command.name if command_lines.running else None
    return [str(word) for word in (command, *command_words, *options(instead), "--json")]


def _read_files() -> set[str]:
    """Options whose values are files that a command reads, so that these travel with a job."""
    return {flag.word(name) for name, flag in flags().items() if flag.kind == "file"} | {"--extension"}


# Options that hold for this machine and are not passed to a job: where the work is done, and what is printed.
_HERE = ("--ray", "--on", "--json", "--quiet", "--debug")


def policy(inputs: Inputs, name: str) -> str | None:
    """The value of --policy for a job: a folder is added to the job's files, a name stays as it is."""
    return inputs.file(Path(name)) if Path(name).is_dir() else name


def parsed(kind: Kind, printed: str | UserError | RunError) -> dict[str, Any]:
    """The JSON that a job printed, with its machine. Raises the job's error, or RunError where it is no object."""
    if isinstance(printed, Exception):
        raise printed
    try:
        printed_object = json.loads(printed)
        if not isinstance(printed_object, dict):
            raise ValueError("it is no object")
    except ValueError as error:
        raise RunError(f"{kind.describe()}: what the command printed there cannot be read: {error}") from error
    return {"machine": about(kind), **printed_object}


def about(kind: Kind) -> dict[str, Any]:
    """A kind of machine in JSON's types."""
    return {"kind": kind.number, "devices": dict(kind.devices), "machines": kind.machines}


def failed(kind: Kind, error: Exception) -> dict[str, Any]:
    """The object that JSON has in place of the result of a failed job."""
    return {"machine": about(kind), "failed": str(error)}


def end(failures: Sequence[Exception]) -> None:
    """Ends a command with jobs: prints all their failures but the first and raises the first, if there are any."""
    for error in failures[1:]:
        console.message(f"error: {error}")
    if failures:
        raise failures[0]
