"""Devices and exports for the tests of language models, which need an environment of their own: tests/llm/run."""

from __future__ import annotations

import importlib.util
import os

import openvino as ov
import pytest

from ov_hsdag.devices import virtual
from tests.llm.cuts import DEVICES
from tests.llm.families import NAMES, model_file

# Without optimum-intel there is nothing to test: `pytest tests` passes by.
collect_ignore_glob = [] if importlib.util.find_spec("optimum") else ["test_*.py"]


def pytest_configure() -> None:
    """Declares virtual devices for every Core of this process and of those that it starts, by Python's hook."""
    if not collect_ignore_glob:
        limits = "INFERENCE_NUM_THREADS=1,INFERENCE_PRECISION_HINT=f32"
        os.environ[virtual.VIRTUAL_DEVICES_VARIABLE] = ";".join(f"{name}:{limits}" for name in DEVICES)


@pytest.fixture(scope="session")
def core() -> ov.Core:
    """A Core with the virtual devices of `DEVICES`."""
    return virtual.new_core()


@pytest.fixture
def exported(core: ov.Core, family: str) -> ov.Model:
    """The exported decoder of the family that the test runs on."""
    return core.read_model(model_file(family))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option --family."""
    parser.addoption("--family", action="append", help="families of language models; can be given several times")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test with the argument `family` on each family of --family, by default on all that are exported."""
    if "family" in metafunc.fixturenames:
        there = [name for name in NAMES if model_file(name).exists()]
        metafunc.parametrize("family", metafunc.config.getoption("--family") or there)
