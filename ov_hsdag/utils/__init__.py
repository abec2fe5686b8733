"""Modules for all layers: arguments, errors, child processes, reading of files, timing, and lazy imports."""
