"""What the `weir` command says instead of a traceback."""

from __future__ import annotations


class CannotRun(RuntimeError):
    """Something outside the program stands in the way. The message says what to do; the exit status is 1."""
