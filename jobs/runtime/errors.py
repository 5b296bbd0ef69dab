"""Why a job stops deliberately or waits, and the exit status that reports it to its supervisor."""

from __future__ import annotations

from enum import IntEnum

from metering.vocabulary import Cause


class ExitStatus(IntEnum):
    """Exit status of `python -m jobs`. A stream ends with 0 only if it was asked to stop."""

    STOPPED = 0
    CRASHED = 1
    BAD_CONFIGURATION = 2
    REFUSED = 3
    FENCED = 4

    @property
    def meaning(self) -> str:
        """Its meaning, for a person who looks at an ended driver."""
        return _MEANINGS[self]


_MEANINGS = {
    ExitStatus.STOPPED: "it was asked to stop",
    ExitStatus.CRASHED: "it crashed",
    ExitStatus.BAD_CONFIGURATION: "its configuration or environment is refused",
    ExitStatus.REFUSED: "continuing could lose or double money",
    ExitStatus.FENCED: "another driver has taken over",
}


class Refused(RuntimeError):
    """Going on could lose or double money. The message says what is wrong and names the command to run."""


class Fenced(RuntimeError):
    """Another driver of this job has taken over, or this driver's memory is stale: it must not write again."""


class Outrun(Fenced):
    """Another application has appended to the table: this driver's decisions still hold, but not its row numbers.

    For the only writer of a table it means, as any Fenced, that another driver has taken over.
    """


START_OVER = "or start over with no tables and an empty database, never with one of the two alone"
"""The end of a remedy. What was made of a table and the table belong together, wherever each of them is kept."""


class NotYet(RuntimeError):
    """Something cannot be done now, and nothing was changed that a retry would change twice.

    The driver keeps its process and epoch, waits, and continues from what is committed. `message` says what is missing.
    """

    def __init__(self, cause: Cause, message: str) -> None:
        super().__init__(message)
        self.cause = cause
