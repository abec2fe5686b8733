"""Errors that a user can meet, with the exit status that they end a command with."""


class UserError(Exception):
    """Bad input: what is wrong and what to do, in one line. Commands end with exit status 2."""


class RunError(Exception):
    """A device or OpenVINO failed on good input, in one line. Commands end with exit status 1."""
