"""The period of an audit: `--from` with `--to`, `--date` or `--last`, for the command and the application."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

EARLIEST_YEAR, LATEST_YEAR = 1970, 9999
LONGEST = timedelta(days=366)
_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}
_DURATION = re.compile(r"([1-9][0-9]{0,6})([mhd])")

Period = tuple[datetime | None, datetime | None]
"""What was received from the first on and occurred before the second, both whole minutes; None: no bound."""


def instant(text: str) -> datetime:
    """An RFC 3339 instant, in UTC.

    Raises `typer.BadParameter` for anything else; without an offset it could mean any zone.
    """
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not an instant such as 2026-01-31T10:00:00Z.") from None
    if value.tzinfo is None:
        raise typer.BadParameter(f"{text!r} has no offset: end it with Z or +02:00, as in 2026-01-31T10:00:00Z.")
    try:
        value = value.astimezone(UTC)
    except OverflowError:
        value = datetime.max.replace(tzinfo=UTC)
    if not EARLIEST_YEAR <= value.year < LATEST_YEAR:
        raise typer.BadParameter(f"{text!r} is not in the years {EARLIEST_YEAR} to {LATEST_YEAR - 1}.")
    return value


def duration(text: str | timedelta) -> timedelta:
    """Minutes, hours or days: `90m`, `6h`, `1d`. Raises `typer.BadParameter` for anything else."""
    if isinstance(text, timedelta):
        return text
    found = _DURATION.fullmatch(text)
    value = int(found[1]) * _UNITS[found[2]] if found else timedelta()
    if not timedelta() < value <= LONGEST:
        raise typer.BadParameter(f"{text!r} is no time such as 1d, 6h or 90m, of at most {LONGEST.days} days.")
    return value


ReceivedFrom = Annotated[
    datetime | None,
    typer.Option("--from", parser=instant, metavar="INSTANT", help="What was received from here on (RFC 3339)."),
]
OccurredTo = Annotated[
    datetime | None,
    typer.Option("--to", parser=instant, metavar="INSTANT", help="What occurred before here (RFC 3339)."),
]
OneDay = Annotated[
    datetime | None,
    typer.Option(
        "--date",
        formats=["%Y-%m-%d"],
        help="One day (UTC): what was received from its start on, and occurred before its end.",
    ),
]
Last = Annotated[
    timedelta | None,
    typer.Option("--last", parser=duration, metavar="TIME", help="What was received in the last 1d, 6h or 90m."),
]

Unpriced = Annotated[
    bool,
    typer.Option(
        "--unpriced", help="What was received since two days before the earliest usage that has got a price since."
    ),
]


def check_range(start: datetime | None, end: datetime | None) -> None:
    """Raise `typer.BadParameter` for a range that ends before it starts: its empty list would look like an answer."""
    if start is not None and end is not None and end < start:
        raise typer.BadParameter(f"--to {end.isoformat()} is before --from {start.isoformat()}.")


def period(
    start: datetime | None,
    end: datetime | None,
    day: datetime | None,
    last: timedelta | None,
    now: datetime,
    *,
    unpriced: bool = False,
) -> Period:
    """The period of one of the options; `last` begins with a whole minute. Raises `typer.BadParameter`.

    With `unpriced` it is read from the database.
    """
    check_range(start, end)
    if sum(bound is not None for bound in (start if start is not None else end, day, last, unpriced or None)) > 1:
        raise typer.BadParameter(
            "--from with --to, --date, --last and --unpriced are each a period by themselves: give one."
        )
    if day is not None:
        midnight = instant(day.replace(tzinfo=UTC).isoformat())
        return midnight, midnight + _UNITS["d"]
    if last is not None:
        since = now - last
        return since - timedelta(seconds=since.second, microseconds=since.microsecond), None
    if any(bound is not None and (bound.second or bound.microsecond) for bound in (start, end)):
        raise typer.BadParameter("--from and --to must be whole minutes, as windows are.")
    return start, end
