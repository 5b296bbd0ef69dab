"""The month of a close: `2026-10`, for the command and the application."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta
from typing import Annotated

import typer

from jobs.close.readiness import Open

_MONTH = re.compile(r"((?:19|20|21)[0-9]{2})-(0[1-9]|1[0-2])")


def month_of(text: str | date) -> date:
    """The first day of a month. Raises `typer.BadParameter` for anything else."""
    if isinstance(text, date):
        return text
    found = _MONTH.fullmatch(text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a month such as 2026-10.")
    return date(int(found[1]), int(found[2]), 1)


def last_month(now: datetime) -> date:
    """The month before that of `now`, by the calendar of UTC."""
    return (now.date().replace(day=1) - timedelta(days=1)).replace(day=1)


def checked_allowed(allowed: list[Open] | None, reason: str | None, *, reissues: bool = False) -> tuple[Open, ...]:
    """What may stay open. Raises `typer.BadParameter` where that, or a reissue, has no reason, or a reason nothing."""
    if (allowed or reissues) and not (reason and reason.strip()):
        raise typer.BadParameter("--allow and --reissue need a --reason: it is kept with the invoice.")
    if reason and not allowed and not reissues:
        raise typer.BadParameter("--reason is for --allow and --reissue: give one of them, or leave it out.")
    return tuple(sorted(set(allowed or ())))


AccountOption = Annotated[list[str] | None, typer.Option("--account", help="Only this account; may be repeated.")]
AllowOption = Annotated[
    list[Open] | None,
    typer.Option("--allow", help="What may stay open: unpriced, held, waiting. May be repeated; needs --reason."),
]
ReasonOption = Annotated[str | None, typer.Option("--reason", help="Why; kept with the invoice.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show the invoices, audit nothing and write nothing.")]
