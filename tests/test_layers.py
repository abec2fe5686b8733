"""The layers of the package: what is in a layer imports only from layers below it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "ov_hsdag"

# From the top to the bottom; what is side by side in a layer does not import each other. `__init__` is above all: its
# names are lazy. CONTRIBUTING.md points here, and docs/contributing/layout.md has the picture.
LAYERS = (
    ("cli", "__main__"),
    ("integration", "fleet", "kit", "_autoload"),
    ("applications",),
    ("placing", "training", "jobs"),
    ("policy",),
    ("placers", "calibration", "measuring", "explaining"),
    ("problem",),
    ("costs",),
    ("model", "report"),
    ("devices", "storage"),
    ("utils", "_env", "_version", "_source_tree", "_native"),
)

TORCH = {"training"}  # where torch may be imported


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


def part(module: str) -> str:
    """The folder, or the file, of the package that a module is in."""
    return module.split(".")[0]


LAYER_OF = {name: number for number, layer in enumerate(LAYERS) for name in layer}


def test_every_module_is_in_a_layer() -> None:
    assert {part(module) for module in MODULES} - {""} | {"_native"} == set(LAYER_OF)


@pytest.mark.parametrize("module", [name for name in MODULES if name])
def test_a_layer_imports_only_from_layers_below(module: str) -> None:
    own = part(module)
    wrong = [
        f"{MODULES[module].relative_to(PACKAGE.parent)}:{line} imports {target}"
        for line, target in imports(MODULES[module])
        if target and part(target) != own and LAYER_OF[part(target)] <= LAYER_OF[own]
    ]
    assert not wrong


def test_the_picture_of_the_layers_is_right() -> None:
    """docs/contributing/layout.md draws a layer as lines that begin with a corner, or a tee, and then bars."""
    text = (PACKAGE.parent / "docs/contributing/layout.md").read_text(encoding="utf-8")
    drawn: list[list[str]] = []
    for line in re.findall(r"^    ([┌├│] +\S+)", text, re.MULTILINE):
        drawn += [[]] if line[0] in "┌├" else []
        drawn[-1].append(line[1:].strip().removesuffix("/").removesuffix(".py"))
    assert [set(layer) for layer in drawn] == [set(layer) - {"_native"} for layer in LAYERS]


def test_one_module_of_the_command_line_names_the_fleet() -> None:
    """The package works without Ray, and without fleet/: cli/remote.py imports it when a command needs machines."""
    named = {name for name, path in MODULES.items() if "ov_hsdag.fleet" in path.read_text(encoding="utf-8")}
    assert {name for name in named if part(name) != "fleet"} == {"cli.remote"}
    remote = ast.parse(MODULES["cli.remote"].read_text(encoding="utf-8"))
    modules = {node.module or "" for node in remote.body if isinstance(node, ast.ImportFrom)}
    assert not {module for module in modules if module.startswith("ov_hsdag.fleet")}


def test_commands_share_modules_and_not_each_other() -> None:
    """What several commands use is in a module beside cli/commands/; plan.py reads the plans that others take."""
    commands = {name for name in MODULES if name.startswith("cli.commands.")}
    assert not {
        (module, target)
        for module, path in MODULES.items()
        for _, target in imports(path)
        if target in commands - {module, "cli.commands.plan"}
    }


def test_commands_leave_their_names_to_functions() -> None:
    """Importing a module `ov_hsdag.fit` would replace a function of that name."""
    assert not MODULES.keys() & {"calibrate", "explain", "fit", "verify"}


def test_what_is_not_in_the_wheel_is_not_imported() -> None:
    imported = re.compile(r"^\s*(from|import) (research|benchmarks|tests|tools)\b", re.MULTILINE)
    found = [name for name, path in MODULES.items() if imported.search(path.read_text(encoding="utf-8"))]
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


def test_torch_stays_in_training() -> None:
    """Commands that train import it when they run."""
    for module, path in MODULES.items():
        if part(module) in TORCH:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body if part(module) == "cli" else ast.walk(tree):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            assert not {name.split(".")[0] for name in names} & {"torch"}, module
