"""The kit of `ov-hsdag bench --kit`: models built in memory, and their measurement on the devices of a machine."""
