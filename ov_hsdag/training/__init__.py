"""Training of the HSDAG policy: the only room, with the baselines, that imports torch (extra `train`)."""
