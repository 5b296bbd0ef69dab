"""The windows that a reader of a view asks for: what may be asked together, defaults, and the range that is shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from jobs.billing_progress import Database
from jobs.queries.views import (
    Hop,
    Sessions,
    Span,
    Whole,
    Windows,
    ceil_minute,
    default_windows,
    floor_minute,
    measured_until,
)

HOUR = timedelta(hours=1)
MAX_WINDOWS = 50_000
"""Of one key: what a machine and a reader can take at once."""


class WindowMistake(ValueError):
    """Windows that cannot be shown. `field` is what to change: a field of ViewWindows, `from` or `to`."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(reason)
        self.field, self._reason = field, reason

    def sentence(self, name: Callable[[str], str]) -> str:
        """What is wrong, with fields as the reader knows them."""
        names = ("window", "hop", "sliding", "session", "from", "to")
        return self._reason.format(**{field: name(field) for field in names})


@dataclass(frozen=True)
class ViewWindows:
    """What is asked for; None: by default. Raises WindowMistake for what excludes each other."""

    window: timedelta | None = None
    hop: timedelta | None = None
    session: timedelta | None = None
    start: datetime | None = None
    end: datetime | None = None
    is_sliding: bool = False

    def __post_init__(self) -> None:
        if self.session is not None and (self.window or self.hop or self.is_sliding):
            raise WindowMistake("session", "{session} has windows of its own: leave out {window}, {hop} and {sliding}.")
        if self.is_sliding and (self.hop or self.start or self.end):
            raise WindowMistake(
                "sliding", "{sliding} is the last {window} up to the frontier: leave out {hop}, {from} and {to}."
            )
        if self.window is not None and self.hop is not None:
            _refuse_gaps(self.window, self.hop)

    def resolve(self, database: Database, now: datetime) -> tuple[Windows, Span] | None:
        """The windows and the range of minutes, by default the last hour before `now`.

        None where the last so long up to the frontier is asked for, and nothing was measured. Raises WindowMistake.
        """
        if self.session is not None:
            return Sessions(self.session), self._span(now)
        defaults = default_windows(database)
        if self.is_sliding:
            frontier = measured_until(database)
            if frontier is None:
                return None
            end = floor_minute(frontier)
            start = end - (self.window or defaults.sliding())
            return Whole(start, end), Span(start, end)
        size, every = (self.window, self.window) if self.window is not None else defaults.lengths()
        windows = Hop(size, self.hop or every)
        _refuse_gaps(windows.size, windows.hop)
        span = self._span(now)
        if (span.end - span.start) / windows.hop > MAX_WINDOWS:
            raise WindowMistake(
                "hop",
                f"Between {{from}} and {{to}} there would be more than {MAX_WINDOWS} windows: take a longer {{hop}}.",
            )
        return windows, span

    def _span(self, now: datetime) -> Span:
        end = self.end or (self.start + HOUR if self.start else now)
        return Span(floor_minute(self.start or end - HOUR), ceil_minute(end))


def _refuse_gaps(window: timedelta, hop: timedelta) -> None:
    if hop > window:
        raise WindowMistake("hop", "{hop} must be at most {window}, or some outcomes would be in no window.")
