"""What the `weir` command says instead of a traceback."""

from __future__ import annotations


class CannotRun(RuntimeError):
    """Something outside the program prevents it from running. The message says what to do; the exit status is 1."""
