"""Explains a placed model: the device of each operation, its cost there and elsewhere, and the reason."""
