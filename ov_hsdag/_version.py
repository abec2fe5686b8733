"""The version of the package; setup reads it without importing anything else."""

__version__ = "0.2.0"
