"""Fixtures for the tests in this folder."""

from tests.conftest import declared, two_cpu_core

__all__ = ["declared", "two_cpu_core"]
