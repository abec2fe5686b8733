"""Training of the HSDAG policy: the only layer that imports torch (extra `train`)."""

CHECKPOINT = "checkpoint.safetensors"
"""Name of the file in a run's folder that it continues from."""
