"""Makes a corpus for `ov-hsdag pretrain --corpus` of the model zoo.

The command is python -m research.corpus DIR [MODEL …]. Each model becomes DIR/FAMILY/MODEL.npz, a problem template:
a placement problem whose graph and groups are used, but not its devices and costs. Existing files are kept. It needs
the extra `bench`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import openvino as ov

from ov_hsdag.costs.profile import Profile, load_builtin
from ov_hsdag.model.colocation import split_rule
from ov_hsdag.model.normalize import normalize
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.training.corpus import assemble, named_devices, unpriced
from ov_hsdag.utils.errors import RunError, UserError, one_line
from research.zoo.catalog import ZOO, select


def make(folder: Path, names: Iterable[str] | None = None, report: Callable[[str], None] = print) -> None:
    """Extracts models of the zoo into a corpus.

    Args:
        folder: the corpus; files that exist are left alone.
        names: models, families or tags of the zoo; None for all.
        report: called with a line about each model.

    Raises:
        UserError: the zoo has no model, family or tag of a name.
        RunError: a model cannot be built or extracted; the message names it.
    """
    for entry in ZOO.values() if names is None else select(names):
        path = folder / entry.family / f"{entry.name}.npz"
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        template = template_of(entry.name)
        template.save(path)
        coarse = int(template.coarse.max()) + 1
        report(f"{entry.name}: {template.graph.nodes} nodes, {template.group_count} groups, {coarse} coarse groups")


def device_set(stems: Sequence[str]) -> tuple[tuple[str, ...], Profile]:
    """Makes a set of devices of built-in profiles.

    Args:
        stems: names of the profiles, without ".json".

    Returns:
        The devices' names, and a profile that has them, see `named_devices`.
    """
    return named_devices([load_builtin(stem) for stem in stems])


def extract(model: ov.Model, rule: int) -> PlacementProblem:
    """Extracts the problem template of a model.

    Args:
        model: the model; it is normalized in place.
        rule: number of HETERO's splitting rule, see `split_rule`.
    """
    names, profile = device_set(("iris_xe", "core_ultra_7_155h"))
    return assemble(unpriced(normalize(model), names, rule), names, profile, "latency")


def template_of(name: str) -> PlacementProblem:
    """The problem template of a model of the zoo. Raises RunError where it cannot be built or extracted."""
    try:
        return extract(ZOO[name].build(), split_rule(ov.__version__))
    except Exception as error:
        raise RunError(
            f"the zoo's model '{name}' cannot be made with {_installed()}: {one_line(error)};"
            " constraints.txt has the versions that were tested"
        ) from error


def _installed() -> str:
    """Names and versions of the packages that the zoo's models are made with."""
    versions = []
    for package in ("transformers", "torch", "onnx", "openvino"):
        with suppress(metadata.PackageNotFoundError):
            versions.append(f"{package} {metadata.version(package)}")
    return ", ".join(versions)


def main() -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="names, families or tags of the zoo; default: all")
    arguments = parser.parse_args()
    try:
        make(arguments.folder, arguments.models or None)
    except (UserError, RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
