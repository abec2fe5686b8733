"""Applications: several models that share the devices of one machine, placed, measured and shown together."""
