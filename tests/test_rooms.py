"""The order of the package's rooms: a room imports only from rooms below it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "ov_hsdag"

# From the top to the bottom. `__init__` is above all: its names are lazy. CONTRIBUTING.md points here.
ROOMS = (
    "__main__", "cli", "fleet", "training", "_autoload", "integration", "placing",
    "measuring", "policy", "placers", "calibration", "explaining", "problem", "costs", "model", "report", "devices",
    "storage", "utils", "_version", "_env", "_source_tree", "_native",
)  # fmt: skip

# Where torch may be imported.
TORCH_ROOMS = {"training"}


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module inside the package) of each import; those under TYPE_CHECKING and in functions as well."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            if node.module == "ov_hsdag" or (node.module or "").startswith("ov_hsdag."):
                inside = (node.module or "")[len("ov_hsdag.") :]
                for alias in node.names:
                    full = f"{inside}.{alias.name}".lstrip(".")
                    yield node.lineno, full if full in MODULES or full == "_native" else inside
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("ov_hsdag."):
                    yield node.lineno, alias.name[len("ov_hsdag.") :]


def room(module: str) -> str:
    return module.split(".")[0]


def test_every_module_is_in_a_room() -> None:
    unknown = {room(module) for module in MODULES} - set(ROOMS) - {""}
    assert not unknown, f"not in ROOMS: {unknown}"


@pytest.mark.parametrize("module", [name for name in MODULES if name])
def test_a_room_imports_only_from_rooms_below(module: str) -> None:
    place = {name: number for number, name in enumerate(ROOMS)}
    up = [
        f"{MODULES[module].relative_to(PACKAGE.parent)}:{line} imports {target}"
        for line, target in imports(MODULES[module])
        if target and place[room(target)] < place[room(module)]
    ]
    assert not up


def test_commands_leave_their_names_to_functions() -> None:
    """Importing a module `ov_hsdag.fit` would replace a function of that name."""
    assert not MODULES.keys() & {"calibrate", "explain", "fit", "verify"}


def test_what_is_not_in_the_wheel_is_not_imported() -> None:
    found = [
        name
        for name, path in MODULES.items()
        if re.search(r"^\s*(from|import) (research|benchmarks|tests)\b", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert not found


def test_there_is_no_circle() -> None:
    graph = {
        module: {target for _, target in imports(path) if target and target != module}
        for module, path in MODULES.items()
        if module
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"circle: {' -> '.join(error.args[1])}")


def test_torch_stays_in_its_rooms() -> None:
    """Commands that train import it when they run."""
    for module, path in MODULES.items():
        if room(module) in TORCH_ROOMS:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body if room(module) == "cli" else ast.walk(tree):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            assert not {name.split(".")[0] for name in names} & {"torch", "torch_geometric"}, module
