"""Options and fixtures that tests share."""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openvino as ov
import pytest

import ov_hsdag
from ov_hsdag.devices import virtual
from ov_hsdag.integration import extension
from ov_hsdag.measuring.process import Candidate, Worker
from ov_hsdag.placers import multilevel
from ov_hsdag.placers.settings import SearchSettings, search_settings
from ov_hsdag.policy import tuned
from ov_hsdag.utils.errors import UserError
from research.zoo.catalog import select
from tests.graphs import convolutions

ONE_CORE = "INFERENCE_NUM_THREADS=1,INFERENCE_PRECISION_HINT=f32"
TWO_CORES = f"CPU_A:{ONE_CORE};CPU_B:{ONE_CORE}"

# Converting all models of the zoo for the first time takes a quarter of an hour.
ZOO_SAMPLE = (
    "resnet50", "squeezenet", "shufflenet", "bert-small", "bert-dynamic", "gpt2-past", "llama-stateful", "t5-small",
    "t5-encoder-small", "t5-encoder-dynamic", "vit-small", "swin-small", "convnext-small", "mobilenet-v2-small",
    "unet-small", "yolos-small", "whisper-encoder-small", "lstm", "lstm-stateful", "gru", "dlrm", "branching",
    "mixture-of-experts-small", "looped-cell", "resnet-small-int8", "bert-small-fp16", "llama-small-int4-weights",
    "llama-beams", "nms-detector", "scan", "splitting", "masked-pooling", "tensor-iterator", "string-classifier",
    "mobilenet-tflite",
)  # fmt: skip


TREE = Path(__file__).resolve().parents[1] / "ov_hsdag"


def pytest_configure(config: pytest.Config) -> None:
    """Refuses to test an installed package, which replaces the tree's where the tree has no compiled core.

    It also sees that no fine-tuned policy of this machine is used.
    """
    os.environ[tuned.VARIABLE] = "0"
    found = Path(ov_hsdag.__file__).resolve().parent
    if TREE.is_dir() and found != TREE:
        raise pytest.UsageError(f"{TREE} has no compiled core, the tests would be of {found}: pip install -e .")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option --zoo."""
    parser.addoption(
        "--zoo",
        action="append",
        metavar="WORD",
        help="models that zoo tests run on, by name, family or tag; can be given several times (default: a few of each"
        " kind; quick: all that build in seconds)",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test with the argument `zoo_model` on each model of --zoo, or of `ZOO_SAMPLE`."""
    if "zoo_model" in metafunc.fixturenames:
        models = select(metafunc.config.getoption("--zoo") or ZOO_SAMPLE)
        metafunc.parametrize("zoo_model", models, ids=lambda model: model.name)


GENEROUS = 180.0
"""Seconds for measuring that are never needed on a `quiet_machine`, however busy this one is."""


@pytest.fixture
def quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes real workers return made-up rates, as a quiet machine would: 10 runs a second over the number of devices.

    So a placement on two devices is half as fast as one on a single device. Trials are run, for 0.02 s at most, and
    their rates are not used.
    """
    compile_, rate = Worker.compile, Worker.rate

    def compile_model(self: Worker, candidate: Candidate, limit: float) -> list[Any]:
        vars(self)["uses"] = len(set((candidate.affinity or {"": candidate.device}).values()))
        return compile_(self, candidate, limit)

    def known(self: Worker, seconds: float, limit: float, alone: bool = True) -> float:
        rate(self, min(seconds, 0.02), limit, alone)
        return 10.0 / vars(self)["uses"]

    monkeypatch.setattr(Worker, "compile", compile_model)
    monkeypatch.setattr(Worker, "rate", known)


@contextlib.contextmanager
def fast_searches() -> Iterator[None]:
    """Makes multilevel searches use the preset "fast" in place of "default" during the block.

    It has a fifth of the moves: enough for tests that need a placement, not the best one.
    """

    def settings(given: SearchSettings = "default") -> dict[str, dict[str, float]]:
        return search_settings("fast" if given == "default" else given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multilevel, "search_settings", settings)
        yield


@pytest.fixture
def fast_search() -> Iterator[None]:
    """Applies `fast_searches` to a test."""
    with fast_searches():
        yield


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Declares two virtual devices in the environment, CPU_A and CPU_B, of one core each in f32.

    OV_HSDAG_DISABLE is unset, so that placements are followed.
    """
    monkeypatch.setenv(virtual.VIRTUAL_DEVICES_VARIABLE, TWO_CORES)
    monkeypatch.delenv("OV_HSDAG_DISABLE", raising=False)


@pytest.fixture
def silence() -> Iterator[None]:
    """Makes any warning fail the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a model for which a placement has a choice."""
    path = tmp_path_factory.mktemp("model") / "model.xml"
    ov.save_model(convolutions(), path, compress_to_fp16=False)
    return path


@pytest.fixture(scope="session")
def library() -> Path:
    """The library that setup.py built, or else one that is built now."""
    try:
        return extension.extension_path()
    except UserError:
        return extension.build()


@pytest.fixture
def two_cpu_core(monkeypatch: pytest.MonkeyPatch) -> ov.Core:
    """A Core with the virtual devices CPU_A and CPU_B, of one core each in f32."""
    monkeypatch.setenv(virtual.VIRTUAL_DEVICES_VARIABLE, TWO_CORES)
    core = virtual.new_core()
    return core


@pytest.fixture
def core(two_cpu_core: ov.Core) -> ov.Core:
    """Another name of `two_cpu_core`, for files in which all tests need it."""
    return two_cpu_core


Children = Callable[[], dict[int, str]]


def _children() -> dict[int, str]:
    """Lists the child processes of this one: command line by number; of a zombie, its line in /proc/NUMBER/stat."""
    found = {}
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # of a thread that has ended
            for number in map(int, path.read_text().split()):
                with contextlib.suppress(OSError):
                    command = Path(f"/proc/{number}/cmdline").read_text().replace("\0", " ")
                    found[number] = command or Path(f"/proc/{number}/stat").read_text()
    return found


@pytest.fixture
def children() -> Children:
    """A function that lists the processes which this one has started since the test began and has not waited for.

    It returns what `_children` does, without processes from before: a browser's driver, a service of Ray.
    """
    others = _children()
    return lambda: {number: command for number, command in _children().items() if number not in others}


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, children: Children) -> Iterator[Path]:
    """The folder for temporary files during a test, where pools of workers put theirs.

    At the end the test fails if a file or a process is left.
    """
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert not list(folder.iterdir()) and not children()
