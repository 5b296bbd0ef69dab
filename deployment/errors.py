"""What the `weir` command says instead of a traceback."""

from __future__ import annotations


class CannotRun(RuntimeError):
    """Something outside the program prevents it from running. The message says what to do; the exit status is 1."""


class FileRefused(CannotRun):
    """A file that a command was given cannot be read, or does not hold what it must. The exit status is 2."""
