"""Hostile input: what reads files of others, and what is done to the files. `make fuzz` runs it for long."""
