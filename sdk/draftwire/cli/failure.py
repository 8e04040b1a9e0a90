"""A command that cannot go on."""


class Failure(Exception):
    """Ends the command with its message on stderr and the exit code 1."""
