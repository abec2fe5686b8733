"""Writes files and folders atomically, without overwriting anything that belongs to something else."""
