"""Devices: names, what a machine has, virtual CPU devices."""
