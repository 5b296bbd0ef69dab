"""A meter may count each content once: of an account's outcomes with one content, the first in each time window."""

from __future__ import annotations

import re
from dataclasses import dataclass

DURATION = r"P([0-9]{1,2}D)?(T([0-9]{1,4}H)?([0-9]{1,5}M)?([0-9]{1,6}S)?)?"
"""An ISO 8601 duration of days, hours, minutes and whole seconds; P and T are each followed by at least one."""
MIN_WITHIN_SECONDS, MAX_WITHIN_SECONDS = 1, 86_400
_PARTS = re.compile(r"([0-9]+)([DHMS])")
_SECONDS = {"D": 86_400, "H": 3_600, "M": 60, "S": 1}


@dataclass(frozen=True)
class OncePer:
    """Of an account's outcomes with one content, a meter counts the first by (event time, identity) in each window."""

    column: str
    """A text column of the events: the content. An outcome without one counts."""
    within_seconds: int
    """The length of the windows of event time, which are aligned to the epoch."""


def seconds_of(duration: str) -> int:
    """The length of a DURATION, such as `PT1H`. Raises ValueError for anything else, and outside the limits."""
    if re.fullmatch(DURATION, duration) is None or duration.endswith(("P", "T")):
        raise ValueError(f"{duration!r} is no duration such as PT1H, PT30M or P1D")
    seconds = sum(int(count) * _SECONDS[unit] for count, unit in _PARTS.findall(duration))
    if not MIN_WITHIN_SECONDS <= seconds <= MAX_WITHIN_SECONDS:
        raise ValueError(f"{duration} is {seconds} seconds; it can be from PT1S to P1D")
    return seconds


def duration_of(seconds: int) -> str:
    """The shortest DURATION of so many seconds."""
    days, rest = divmod(seconds, _SECONDS["D"])
    hours, rest = divmod(rest, _SECONDS["H"])
    minutes, rest = divmod(rest, _SECONDS["M"])
    time = "".join(f"{count}{unit}" for count, unit in ((hours, "H"), (minutes, "M"), (rest, "S")) if count)
    return f"P{f'{days}D' if days else ''}{f'T{time}' if time or not days else ''}"
