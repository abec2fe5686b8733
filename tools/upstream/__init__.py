"""Faults of OpenVINO, each with a script that shows it. README.md has them ready to report."""
