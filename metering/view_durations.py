"""How long a window of a view is: an ISO 8601 duration of whole minutes, up to a day."""

from __future__ import annotations

from datetime import timedelta

from metering.once_per import seconds_of
from metering.windows import MINUTE


def minutes_of(duration: str) -> timedelta:
    """The length. Raises ValueError for anything else, and says what is allowed."""
    length = timedelta(seconds=seconds_of(duration))
    if length % MINUTE:
        raise ValueError(f"{duration} is not whole minutes, which windows of views are made of: such as PT5M")
    return length
