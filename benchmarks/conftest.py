"""Fixtures of the tests beside benchmarks."""

from tests.conftest import declared, two_cpu_core

__all__ = ["declared", "two_cpu_core"]
