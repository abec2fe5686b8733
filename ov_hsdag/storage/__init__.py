"""Writing files and folders whole or not at all, without overwriting what belongs to something else."""
