"""Devices: their names, the devices of a machine, and virtual CPU devices."""
