"""Fixtures of the tests beside benchmarks."""

from tests.conftest import two_cpu_core

__all__ = ["two_cpu_core"]
