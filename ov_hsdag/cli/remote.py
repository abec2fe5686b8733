"""Commands that run on the machines of a Ray cluster: --ray and --on."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ov_hsdag.cli import console
from ov_hsdag.cli.command_lines import options
from ov_hsdag.utils.errors import RunError, UserError

if TYPE_CHECKING:
    from ov_hsdag.fleet.cluster import Cluster
    from ov_hsdag.fleet.job import Inputs, Job
    from ov_hsdag.fleet.machines import Kind

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
    from ov_hsdag.fleet.machines import parse_on

    if on and ray is None:
        raise UserError("--on names machines of a Ray cluster: give its address, too (--ray)")
    for text in on or ():
        parse_on(text)


class Fleet:
    """The kinds of machines of a cluster that a command is for.

    Attributes:
        kinds: in the order in which results are shown.
        several: whether results are told apart by the kind: unless one is named with --on.
    """

    def __init__(self, cluster: Cluster, kinds: Sequence[Kind], several: bool) -> None:
        """See `connected`."""
        self._cluster, self.kinds, self.several = cluster, kinds, several

    def target(self, path: Path, kind: Kind) -> Path:
        """The output of a kind: NAME.KIND.xml for NAME.xml; of a folder a folder in it."""
        if not self.several:
            return path
        return path.with_name(f"{path.stem}.{kind.name}{path.suffix}") if path.suffix else path / kind.name

    def run(self, what: str, jobs: Sequence[tuple[Kind, Job, Path]]) -> list[str | UserError | RunError]:
        """Run jobs (see `Cluster.run`); what each printed, or why it failed. what: they do: "placing model.xml"."""
        with console.progress(what) as tell:
            done = self._cluster.run(jobs, lambda _, text: tell(text), lambda _, text: console.message(_warning(text)))
        return [one if isinstance(one, UserError | RunError) else one.out for one in done]


def _warning(text: str) -> str:
    return f"warning: {text.replace('warning: ', '')}"


@contextlib.contextmanager
def connected(ray: str, devices: Sequence[str], on: Sequence[str] | None) -> Iterator[Fleet]:
    """The machines of a Ray cluster that have some devices; on: values of --on. UserError: no such one."""
    import openvino as ov

    from ov_hsdag.fleet.cluster import Cluster

    with contextlib.ExitStack() as stack:
        with console.progress(f"joining the Ray cluster at {ray}"):
            cluster = stack.enter_context(Cluster(ray))
            kinds, others = cluster.kinds(devices, ov.__version__, on or ())
        for machine in others:
            console.message(
                f"warning: {machine.host} is left out: it has OpenVINO {machine.openvino} and ov-hsdag"
                f" {machine.version}, unlike this machine"
            )
        yield Fleet(cluster, kinds, several=len(on or ()) != 1)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder for what comes back. Raises RunError where there is none."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="ov-hsdag-fleet-", ignore_cleanup_errors=True)
    except OSError as error:
        raise RunError(f"there is no folder for temporary files: {error}") from error
    with folder as name:
        yield Path(name)


def words(
    inputs: Inputs, command: str, names: Sequence[str], given: Mapping[str, object], flags: Mapping[str, bool]
) -> list[str]:
    """The words of a job: a command for `names`, options by their names, flags, and what all commands share."""
    libraries = [inputs.file(Path(one)) for one in console.extension or ()]
    given = {**given, "--extension": libraries}
    found = [command, *names, *map(str, options(given)), *(name for name, there in flags.items() if there)]
    return [*found, *(["--verbose"] if console.verbose else []), "--json"]


def policy(inputs: Inputs, name: str | None) -> str | None:
    """A policy for a job: a folder travels, a name is known there."""
    return inputs.file(Path(name)) if name is not None and Path(name).is_dir() else name


def parsed(kind: Kind, printed: str) -> dict[str, Any]:
    """The JSON that a job printed, and which machine it is of. Raises RunError where it is none."""
    try:
        found = json.loads(printed)
        if not isinstance(found, dict):
            raise ValueError("it is no object")
    except ValueError as error:
        raise RunError(f"{kind.told()}: what the command printed there cannot be read: {error}") from error
    return {"machine": about(kind), **found}


def about(kind: Kind) -> dict[str, Any]:
    """A kind of machine, JSON-able."""
    return {"kind": kind.number, "devices": dict(kind.devices), "machines": kind.machines}


def failed(kind: Kind, error: Exception) -> dict[str, Any]:
    """What takes the place of a result."""
    return {"machine": about(kind), "failed": str(error)}


def collect(
    fleet: Fleet,
    results: Sequence[str | UserError | RunError],
    use: Callable[[Kind, dict[str, Any]], dict[str, Any]],
    failures: list[Exception],
) -> list[dict[str, Any]]:
    """What the jobs of a fleet, one for each kind, gave.

    `use` takes a result, writes and shows it, and returns what is reported of it; `failures` gets the errors of both.
    """
    found = []
    for kind, result in zip(fleet.kinds, results, strict=True):
        try:
            if isinstance(result, Exception):
                raise result
            found.append(use(kind, parsed(kind, result)))
        except (UserError, RunError) as error:
            failures.append(error)
            found.append(failed(kind, error))
    return found


def end(failures: Sequence[Exception]) -> None:
    """Raises the first of the failures; the others are told before."""
    for error in failures[1:]:
        console.message(f"error: {error}")
    if failures:
        raise failures[0]
