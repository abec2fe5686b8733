"""Training of the HSDAG policy: the only layer that imports torch (extra `train`)."""
