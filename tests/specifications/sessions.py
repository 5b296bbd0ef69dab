"""Specification: what a micro-batch does to the stored sessions of one user, which the fold's SQL must do to all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from metering.sessions import Session, merge


@dataclass(frozen=True)
class Stored:
    """A session as it is kept: `version` is one more for each time that a closed session had to change."""

    session: Session
    version: int = 1
    retracted: bool = False


def fold(
    stored: Iterable[Stored], minis: Iterable[Session], gap: timedelta, closed_before: datetime | None
) -> list[Stored]:
    """The rows of one user after `minis` were folded into `stored`.

    A session that somebody may have seen closed (it ended before `closed_before`) is never edited: it stays as a
    retraction and the session that takes its place has the next version. An open one is extended and keeps its version.
    """
    rows = list(stored)
    result = [row for row in rows if row.retracted]
    live = [row for row in rows if not row.retracted]
    minis = list(minis)
    for session in merge([*(row.session for row in live), *minis], gap):
        parts = [row for row in live if row.session.near(session, gap)]
        if [row.session for row in parts] == [session]:
            retracted_parts, version = [], parts[0].version
        else:
            retracted_parts = [row for row in parts if closed_before is not None and row.session.end < closed_before]
            version = max((row.version for row in parts), default=1) + bool(retracted_parts)
        result += [replace(row, retracted=True) for row in retracted_parts]
        result.append(Stored(session, version))
    return result
