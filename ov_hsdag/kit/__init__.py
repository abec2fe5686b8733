"""Models that are made on the spot, and what every way to run them reaches on the devices of a machine."""
