"""Which report of a request bills, by looking at all of its rows: the rule in its own words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from metering.vocabulary import Family

STATUSES = ("error", "cancelled", "completed")
SOURCES = ("partial", "estimated", "provider")


@dataclass(frozen=True)
class Reported:
    """A row of one key: its family, when it was first received and occurred, and what it says."""

    lsn: int
    family: str
    received: int
    occurred: int
    identity: bytes
    status: str | None
    source: str | None
    is_counted: bool


def requests(rows: Iterable[Reported], reach: int) -> Iterator[list[Reported]]:
    """The rows of each request of a key, by when they were received."""
    left = sorted(rows, key=lambda row: (row.received, row.occurred, row.identity, row.family))
    while left:
        first = left[0].received
        together = [row for row in left if row.received <= first + reach]
        beyond = left[len(together) :]
        if beyond and len(together) > 1 and _asks(together[-1], beyond[0], reach):
            together.pop()
        left = left[len(together) :]
        yield together


def billed(rows: Iterable[Reported], reach: int) -> Iterator[tuple[int | None, int | None]]:
    """The lsns of the request and of the report that bill, for each request of the key."""
    for together in requests(rows, reach):
        reports = [row for row in together if row.family != Family.REQUEST]
        if not reports:
            yield max(together, key=lambda row: (row.occurred, row.identity)).lsn, None
            continue
        best = max(reports, key=_worth)
        yield _asked(best, together), best.lsn


def _asks(last: Reported, following: Reported, reach: int) -> bool:
    """Whether the border would part a request from what answers it."""
    is_pair = last.family == Family.REQUEST and following.family != Family.REQUEST
    return is_pair and following.received - last.received <= reach


def _worth(row: Reported) -> tuple[int, int, bool, int, bytes, str]:
    status, source = STATUSES.index(row.status or "completed"), SOURCES.index(row.source or "provider")
    return status, source, row.is_counted, row.occurred, row.identity, row.family


def _asked(best: Reported, together: list[Reported]) -> int | None:
    """The nearest request before the report, or else after it."""
    requests = [row for row in together if row.family == Family.REQUEST]
    if not requests and best.family == Family.BOTH:
        return best.lsn
    requests = requests or [row for row in together if row.family == Family.BOTH]
    key = {row.lsn: (row.received, row.occurred, row.identity) for row in requests}
    before = [row.lsn for row in requests if (row.received, row.occurred) <= (best.received, best.occurred)]
    after = [row.lsn for row in requests if row.lsn not in before]
    return max(before, key=key.__getitem__) if before else min(after, key=key.__getitem__, default=None)
