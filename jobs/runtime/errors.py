"""Why a job stops by its own decision, and the exit status that tells its supervisor."""

from __future__ import annotations

from enum import IntEnum


class ExitStatus(IntEnum):
    """Exit status of `python -m jobs`. A stream never ends with 0 unless it was asked to."""

    STOPPED = 0
    CRASHED = 1
    BAD_CONFIGURATION = 2
    REFUSED = 3
    FENCED = 4


class Refused(RuntimeError):
    """Going on could lose or double money. The message says what is wrong and names the command to run."""


class Fenced(RuntimeError):
    """Another driver of this job has taken over, or this driver's memory is stale: it must not write again."""
