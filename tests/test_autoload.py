"""The startup files: nobody notices them until openvino is imported, and then only Core and ovc are extended."""

from __future__ import annotations

import ast
import importlib.machinery
import os
import re
import shutil
import subprocess
import sys
import tarfile
import textwrap
from pathlib import Path

import pytest

from ov_hsdag import _source_tree
from tests.processes import ended

ROOT = Path(__file__).resolve().parent.parent
STARTUP = ROOT / "startup"
PTH = STARTUP / "ov_hsdag.pth"
START = STARTUP / "ov_hsdag.start"
START_MODULE = STARTUP / "_ov_hsdag_start.py"
PATCHED = "getattr(sys.modules['openvino'].Core.compile_model, '__ov_hsdag__', False)"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This environment's packages without its .pth files and without an ov_hsdag that may be installed in it."""
    directory = tmp_path_factory.mktemp("library")
    for path in sys.path:
        if Path(path).name in ("site-packages", "dist-packages") and Path(path).is_dir():
            for entry in Path(path).iterdir():
                ours = "ov_hsdag" in entry.name or entry.suffix == ".pth"
                if not ours and not (directory / entry.name).exists():
                    (directory / entry.name).symlink_to(entry)
    return directory


# How Python 3.15 and later read .start files (PEP 829; "site" in the library reference).
READ_START_FILES = """
import pkgutil, pathlib
for _file in sorted(pathlib.Path(SITE).glob("*.start")):
    for _line in _file.read_text(encoding="utf-8-sig").splitlines():
        if _line.strip() and not _line.startswith("#"):
            pkgutil.resolve_name(_line.strip())()
"""


class Interpreter:
    """Starts Pythons that have a site directory of their own, whose startup files are read before the program."""

    def __init__(
        self, directory: Path, library: Path, pth: bool = True, start: bool = False, package: bool = False
    ) -> None:
        self.directory, self.site = directory, directory / "site"
        self.site.mkdir(parents=True)
        self.reads_start = start and sys.version_info < (3, 15)
        for file in [PTH] * pth + [START, START_MODULE] * start:
            shutil.copy(file, self.site)
        if package:
            (self.site / "ov_hsdag").symlink_to(ROOT / "ov_hsdag")
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("OV_HSDAG")}
        self.environment["PYTHONPATH"] = f"{library}{os.pathsep}{self.site}"

    def __call__(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        variables = {**self.environment, **environment}
        return ended(sys.executable, "-S", *arguments, status=None, cwd=self.directory, env=variables)

    def execute(self, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        start = f"import site; site.addsitedir({str(self.site)!r})\n"
        if self.reads_start:
            start += READ_START_FILES.replace("SITE", repr(str(self.site)))
        return self("-c", start + textwrap.dedent(code), **environment)

    def run(self, code: str, **environment: str) -> str:
        """Standard output of a program that has to succeed without a word on standard error."""
        result = self.execute(code, **environment)
        assert (result.returncode, result.stderr) == (0, "")
        return result.stdout.strip()


@pytest.fixture
def installed(tmp_path: Path, library: Path) -> Interpreter:
    return Interpreter(tmp_path / "installed", library, package=True)


@pytest.fixture
def without(tmp_path: Path, library: Path) -> Interpreter:
    """The same without the .pth line; the package can be imported."""
    return Interpreter(tmp_path / "without", library, pth=False, package=True)


@pytest.fixture
def started(tmp_path: Path, library: Path) -> Interpreter:
    """With the .start file, as from Python 3.15 on, and without import lines of .pth files, as from 3.18 on."""
    return Interpreter(tmp_path / "started", library, pth=False, start=True, package=True)


def test_the_line_is_one_that_site_executes() -> None:
    (line,) = PTH.read_text().splitlines()
    assert line.startswith("import ")


def test_the_start_file_names_an_entry_point() -> None:
    """The strict form, module:function; a file of the same name switches the .pth file's import lines off."""
    assert START.stem == PTH.stem
    (line,) = START.read_text(encoding="utf-8").splitlines()
    assert re.fullmatch(r"[A-Za-z_]\w*:[A-Za-z_]\w*", line)
    assert line.partition(":")[0] == START_MODULE.stem


def test_both_startup_files_put_the_same_finder_first() -> None:
    (code,) = (
        ast.literal_eval(node.args[0])
        for node in ast.walk(ast.parse(PTH.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "exec"
    )
    _, of_pth, insert = ast.parse(code).body
    module = {
        node.name: node
        for node in ast.parse(START_MODULE.read_text()).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }
    of_module = module["OvHsdagWaits"]
    del of_module.body[0]  # its docstring
    assert ast.dump(of_pth) == ast.dump(of_module)
    assert ast.dump(insert) == ast.dump(module["wait"].body[1])


def test_entry_point_imports_one_module_and_patches_when_openvino_is_imported(
    started: Interpreter, without: Interpreter
) -> None:
    listed = "import sys; print(*sorted(sys.modules))"
    read = READ_START_FILES.replace("SITE", "'/nowhere'") if sys.version_info < (3, 15) else ""
    more = set(started.run(listed).split()) ^ set(without.run(f"{read}\n{listed}").split())
    assert more - {"encodings.utf_8_sig"} == {"_ov_hsdag_start"}
    assert started.run("import sys; print('openvino' in sys.modules, 'ov_hsdag' in sys.modules)") == "False False"
    assert started.run(f"import sys, openvino; print({PATCHED})") == "True"
    assert started.run(f"import sys, openvino; print({PATCHED})", OV_HSDAG_DISABLE="1") == "False"


def test_a_start_file_without_its_package_breaks_no_interpreter(tmp_path: Path, library: Path) -> None:
    removed = Interpreter(tmp_path / "removed", library, pth=False, start=True)
    assert removed.run(f"import sys, openvino; print({PATCHED})") == "False"


def test_building_places_the_startup_files_beside_the_package(tmp_path: Path) -> None:
    pytest.importorskip("pybind11")
    for part in ("ov_hsdag", "cpp_ext", "transformations", "startup"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("*.so*", "__pycache__", "policies"))
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    command = (sys.executable, "setup.py", "-q", "build_py", "--build-lib", "built", "sdist", "--formats", "tar")
    ended(*command, cwd=tmp_path)
    startup = {PTH.name, START.name, START_MODULE.name}
    assert startup | {"ov_hsdag"} == {path.name for path in (tmp_path / "built").iterdir()}
    (archive,) = (tmp_path / "dist").iterdir()
    with tarfile.open(archive) as packed:
        assert startup <= {name.rpartition("/")[2] for name in packed.getnames()}


# A source tree before the installed package


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A source tree without its compiled core, with a script that runs a placed model on two devices."""
    folder = tmp_path / "checkout"
    shutil.copytree(ROOT / "ov_hsdag", folder / "ov_hsdag", ignore=shutil.ignore_patterns("*.so*", "__pycache__"))
    shutil.copy(ROOT / "setup.py", folder)  # which an installed package does not have
    (folder / "script.py").write_text(RUN_PLACED)
    return folder


RUN_PLACED = """
import os, sys
import numpy as np, openvino as ov
import openvino.opset13 as ops
x = ops.parameter([1, 8], np.float32, name="x")
model = ov.Model([ops.result(ops.sigmoid(ops.relu(x, name="a"), name="b"), name="r")], [x], "m")
import ov_hsdag
affinity = {"x": "CPU_A", "a": "CPU_A", "b": "CPU_B", "r": "CPU_B"}
ov_hsdag.Placement(("CPU_A", "CPU_B"), affinity).embed(model)
compiled = ov.Core().compile_model(model, "HETERO:CPU_A,CPU_B")
print(*compiled.get_property("EXECUTION_DEVICES"), os.path.dirname(ov_hsdag.__file__))
"""
TWO = {"OV_HSDAG_VIRTUAL_DEVICES": "CPU_A:INFERENCE_NUM_THREADS=1;CPU_B:INFERENCE_NUM_THREADS=1"}


def in_checkout(interpreter: Interpreter, checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a Python with startup files (unless with -S), standing in a source tree."""
    start = f"import site; site.addsitedir({str(interpreter.site)!r})"
    (interpreter.site / "sitecustomize.py").write_text(start)
    environment = {key: value for key, value in interpreter.environment.items() if key != "PYTHONPATH"}
    library = interpreter.environment["PYTHONPATH"].split(os.pathsep)[0]
    environment["PYTHONPATH"] = os.pathsep.join([str(interpreter.site), library])
    return ended(sys.executable, *arguments, status=None, cwd=checkout, env={**environment, **TWO})


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("script.py",),
        ("-c", "import script"),
        ("-m", "script"),
        ("-m", "ov_hsdag", "script.py"),
        ("-c", "import ov_hsdag.model.placement, ov_hsdag, script"),
    ],
)
def test_a_source_tree_without_its_core_gives_way_to_the_installed_package(
    installed: Interpreter, checkout: Path, arguments: tuple[str, ...]
) -> None:
    done = in_checkout(installed, checkout, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["CPU_A", "CPU_B", str(installed.site / "ov_hsdag")]


def test_a_source_tree_with_its_core_comes_first(installed: Interpreter, checkout: Path) -> None:
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        for core in (ROOT / "ov_hsdag").glob(f"_native{suffix}"):
            (checkout / "ov_hsdag" / core.name).symlink_to(core)
    done = in_checkout(installed, checkout, "script.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["CPU_A", "CPU_B", str(checkout / "ov_hsdag")]


def test_a_source_tree_alone_says_what_to_do(tmp_path: Path, library: Path, checkout: Path) -> None:
    alone = Interpreter(tmp_path / "alone", library)
    done = in_checkout(alone, checkout, "-S", "script.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "CPU_A"
    assert f"without its placement: the source tree {checkout} has no compiled core" in done.stderr
    assert "run `pip install -e .` there" in done.stderr
    done = in_checkout(alone, checkout, "-S", "-c", "from ov_hsdag import place")
    assert done.stderr.splitlines()[-1].startswith(f"ImportError: the source tree {checkout} has no compiled core")


def test_an_installed_package_without_its_core_is_installed_again_and_not_in_place(tmp_path: Path) -> None:
    installed = tmp_path / "site-packages/ov_hsdag"
    told = _source_tree.advice(str(installed))
    assert told.startswith(f"the package {installed} has no compiled core for Python 3.")
    assert "pip install -e" not in told and "install ov-hsdag again" in told


def test_starting_imports_nothing(installed: Interpreter, without: Interpreter) -> None:
    listed = "import sys; print(*sorted(sys.modules))"
    more = set(installed.run(listed).split()) ^ set(without.run(listed).split())
    assert more <= {"encodings.utf_8_sig"}  # which reads .pth files since Python 3.13, whatever they say
    assert "OvHsdagWaits" in installed.run("import sys; print(sys.meta_path[0])")


def test_importing_the_package_imports_neither_openvino_nor_numpy(without: Interpreter) -> None:
    loaded = without.run("""
        import sys
        before = set(sys.modules)
        import ov_hsdag
        assert callable(ov_hsdag._autoload.install) and ov_hsdag.__version__
        print(*sorted(set(sys.modules) - before))
    """)
    assert loaded == "__future__ ov_hsdag ov_hsdag._autoload ov_hsdag._env ov_hsdag._source_tree ov_hsdag._version"


def test_openvino_is_extended_when_it_is_imported(installed: Interpreter) -> None:
    assert installed.run(f"import sys, openvino; print({PATCHED})") == "True"
    assert installed.run(f"import sys; from openvino import Core; print({PATCHED})") == "True"
    assert installed.run(f"import sys; import openvino.properties.hint; print({PATCHED})") == "True"


def test_explicit_import_works_before_and_after_openvino(without: Interpreter) -> None:
    assert without.run(f"import sys, openvino; print({PATCHED})") == "False"
    assert without.run(f"import sys, ov_hsdag, openvino; print({PATCHED})") == "True"
    assert without.run(f"import sys, openvino, ov_hsdag; print({PATCHED})") == "True"


def test_extending_happens_once(installed: Interpreter) -> None:
    assert (
        installed.run("""
        import inspect, openvino, ov_hsdag
        ov_hsdag._autoload.install()
        original = openvino.Core.compile_model.__wrapped__
        print(hasattr(original, "__wrapped__"), hasattr(openvino.Core.__init__.__wrapped__, "__wrapped__"))
    """)
        == "False False"
    )


def test_disabled_leaves_openvino_alone(installed: Interpreter) -> None:
    code = f"""
        import sys, ORDER
        print({PATCHED}, any(type(finder).__module__ == "ov_hsdag._autoload" for finder in sys.meta_path))
    """
    for order in ("openvino, ov_hsdag", "ov_hsdag, openvino", "openvino"):
        assert installed.run(code.replace("ORDER", order), OV_HSDAG_DISABLE="1") == "False False"
    assert installed.run(code.replace("ORDER", "openvino"), OV_HSDAG_DISABLE="0") == "True True"
    devices = "import openvino; print('CPU_A' in openvino.Core().available_devices)"
    declared = {"OV_HSDAG_VIRTUAL_DEVICES": "CPU_A:INFERENCE_NUM_THREADS=1"}
    assert installed.run(devices, OV_HSDAG_DISABLE="1", **declared) == "True"


def test_sources_of_extended_modules_can_be_read_as_ever(installed: Interpreter, without: Interpreter) -> None:
    code = """
        import inspect, openvino, pickle
        module = openvino._ov_api
        print(type(module.__loader__), vars(module.__loader__), module.__spec__.origin)
        print(inspect.getsource(openvino.Core), inspect.signature(openvino.Core.compile_model))
        print(openvino.Core.compile_model.__qualname__, openvino.Core.__init__.__qualname__, openvino.Core.__doc__)
        print(pickle.loads(pickle.dumps(openvino.Core.compile_model)) is openvino.Core.compile_model)
    """
    assert installed.run(code) == without.run(code)


def test_reloading_openvinos_module_extends_the_new_class(installed: Interpreter) -> None:
    assert (
        installed.run("""
        import importlib, openvino
        module = importlib.reload(openvino._ov_api)
        print(module.Core is openvino.Core, module.Core.compile_model.__ov_hsdag__)
    """)
        == "False True"
    )


def test_calls_raise_the_same_errors(installed: Interpreter, without: Interpreter) -> None:
    code = """
        import traceback
        for line in (
            "import openvino.nothing",
            "from openvino import nothing",
            "import not_a_package",
            "import openvino as ov; ov.Core().compile_model('missing.xml', 'HETERO:CPU')",
            "ov.compile_model('missing.xml')",
            "ov.Core().compile_model()",
            "ov.Core('missing_plugins.xml')",
            "ov.Core().no_such_method()",
        ):
            try:
                exec(line)
            except Exception:
                told = traceback.format_exc()
                print(line, told.splitlines()[-1], told.count("Traceback"))
    """
    ours, theirs = installed.run(code), without.run(code)
    assert ours == theirs and len(ours.splitlines()) >= 8


@pytest.mark.parametrize(
    "code",
    [
        "import openvino.nothing",
        "import openvino as ov; ov.Core().compile_model('missing.xml', 'CPU')",
        "import sys; sys.exit(7)",
    ],
)
def test_scripts_see_the_same_errors(installed: Interpreter, without: Interpreter, code: str) -> None:
    ours, theirs = installed.execute(code), without.execute(code)
    assert ours.returncode == theirs.returncode != 0
    assert ours.stdout == theirs.stdout
    # The line of the exception; the traceback has the wrapper's frame in it.
    assert ours.stderr.splitlines()[-1:] == theirs.stderr.splitlines()[-1:]
    assert ours.stderr.count("Traceback") == theirs.stderr.count("Traceback")


def test_broken_or_removed_package_breaks_no_interpreter(tmp_path: Path, library: Path) -> None:
    removed = Interpreter(tmp_path / "removed", library)
    broken = Interpreter(tmp_path / "broken", library)
    (broken.site / "ov_hsdag").mkdir()
    (broken.site / "ov_hsdag" / "__init__.py").write_text("this is no Python")
    for interpreter in (removed, broken):
        assert interpreter.run(f"import sys, openvino; print({PATCHED})") == "False"


def test_release_of_openvino_that_we_do_not_know_still_imports(installed: Interpreter) -> None:
    package = installed.directory / "openvino"
    package.mkdir()
    (package / "__init__.py").write_text("from openvino import _ov_api")
    (package / "_ov_api.py").write_text("works = True")
    result = installed.execute("import openvino; print(openvino._ov_api.works)")
    assert (result.returncode, result.stdout.strip()) == (0, "True")
    assert "RuntimeWarning: ov_hsdag could not extend openvino._ov_api" in result.stderr


def test_what_we_cannot_extend_imports_where_warnings_are_errors(installed: Interpreter) -> None:
    package = installed.directory / "openvino"
    package.mkdir()
    (package / "__init__.py").write_text("from openvino import _ov_api")
    (package / "_ov_api.py").write_text("works = True")
    code = "import warnings; warnings.simplefilter('error'); import openvino; print(openvino._ov_api.works)"
    result = installed.execute(code)
    assert (result.returncode, result.stdout.strip()) == (0, "True")
    assert result.stderr.startswith("RuntimeWarning: ov_hsdag could not extend openvino._ov_api")


SCRIPT = """
import sys, openvino
print(__name__, __file__, sys.argv[1:], sys.path[0] == sys.argv[0].rpartition("/")[0])
print(getattr(openvino.Core.compile_model, "__ov_hsdag__", False))
sys.exit(int(sys.argv[1]))
"""


def test_running_a_script_with_the_hooks(without: Interpreter) -> None:
    folder = without.directory / "scripts"
    folder.mkdir()
    script = folder / "script.py"
    script.write_text(SCRIPT)
    result = without("-m", "ov_hsdag", str(script), "3", "--flag", "-m")
    assert result.stderr == ""
    assert result.returncode == 3
    assert result.stdout.splitlines() == [f"__main__ {script} ['3', '--flag', '-m'] True", "True"]


def test_running_a_module_with_the_hooks(without: Interpreter) -> None:
    (without.site / "a_module.py").write_text(SCRIPT)
    result = without("-m", "ov_hsdag", "-m", "a_module", "0", "x")
    assert (result.returncode, result.stderr) == (0, "")
    assert "['0', 'x']" in result.stdout
    assert result.stdout.splitlines()[-1] == "True"


def test_script_that_raises_fails_as_it_would(without: Interpreter) -> None:
    (without.directory / "script.py").write_text("raise ValueError('mine')")
    result = without("-m", "ov_hsdag", "script.py")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == "ValueError: mine"


def test_running_nothing_tells_how(without: Interpreter) -> None:
    for arguments in ([], ["-m"], ["--flag"]):
        result = without("-m", "ov_hsdag", *arguments)
        assert result.returncode == 2
        assert result.stderr.startswith("usage: python -m ov_hsdag script.py")
    assert without("-m", "ov_hsdag", "--help").returncode == 0
    missing = without("-m", "ov_hsdag", "missing.py")
    assert (missing.returncode, missing.stderr) == (2, "error: no such script: missing.py\n")
