"""Which of several reports of a request bills: the best one, in any order of receipt.

Rows of one key (account, request id) are one request while they were first received within reach of the earliest of
them; then the next request begins. So what a key bills is a function of the set of its rows, and does not depend on
their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from metering.joining import Side
from metering.vocabulary import Status, UsageSource

OF_STATUS = {Status.CANCELLED.value: 8, Status.ERROR.value: 4}
"""What a report is worth by its status; any other, or none, has completed."""
OF_COMPLETED = 12
OF_SOURCE = {UsageSource.ESTIMATED.value: 2, UsageSource.PARTIAL.value: 1}
"""And by whose count it is; any other, or none, is the provider's."""
OF_PROVIDER = 3
Rank = tuple[int, int, bool, int, bytes, str]


class Criterion(StrEnum):
    """What two reports are compared by, one after the other: the parts of a `Rank`."""

    STATUS = "status"
    USAGE_SOURCE = "usage_source"
    QUANTITIES = "quantities"
    TIME = "time"
    IDENTITY = "identity"
    SIDE = "side"


def merit(status: str | None, usage_source: str | None) -> int:
    """What a report is worth: by its status, and within that by whose count it is; `joining.FINAL` is the most."""
    return sum(_merits(status, usage_source))


def _merits(status: str | None, usage_source: str | None) -> tuple[int, int]:
    return OF_STATUS.get(status or "", OF_COMPLETED), OF_SOURCE.get(usage_source or "", OF_PROVIDER)


@dataclass(frozen=True)
class Received:
    """A row of one key: when it was first received, when it occurred, and what it reports.

    A request reports nothing. A completion without a status is completed; a count without a source is the provider's.
    """

    lsn: int
    side: Side
    first_received_us: int
    occurred_us: int
    identity: bytes
    status: str | None = None
    usage_source: str | None = None
    has_quantities: bool = False

    @property
    def rank(self) -> Rank:
        """The higher one bills: by status, source of the count, whether there is one, time, identity.

        A request ranks below all reports, as one that was abandoned.
        """
        is_report = self.side is not Side.REQUEST
        worth = _merits(self.status, self.usage_source) if is_report else (0, 0)
        return *worth, is_report and self.has_quantities, self.occurred_us, self.identity, self.side

    @property
    def order(self) -> tuple[int, int, bytes, str]:
        """By first reception. What came at one instant is in the order of its time and identity, not of its lsn."""
        return self.first_received_us, self.occurred_us, self.identity, self.side


def deciding_criterion(row: Received, other: Received) -> Criterion | None:
    """The first criterion that the two differ by, so the one that ranks them; None: they rank the same."""
    compared = zip(Criterion, row.rank, other.rank, strict=True)
    return next((criterion for criterion, mine, theirs in compared if mine != theirs), None)


@dataclass(frozen=True)
class Ranked:
    """What one request comes to: the rows that bill, and all others, which bill nothing.

    `request`, `completion`: the lsns of the outcome's parts, None where it has none; of a report that is both sides and
    answers no other request they are the same.
    """

    request: int | None
    completion: int | None
    superseded: tuple[Received, ...]


def reach_seconds(rules: Mapping[str, Any], default: float) -> int:
    """How long after its first row others of a request may be received, by the rules of joins that held for that row.

    A release that kept no `rejoin_seconds` had the `default`. What the stream joins within a time-out is one request,
    so it is no less than the longest of these.
    """
    timeouts = (rules["completion_timeout_seconds"], *rules["completion_timeouts"].values())
    return int(max(rules.get("rejoin_seconds", default), *timeouts))


def ranked(rows: Iterable[Received], reach_us: Callable[[int], int]) -> Iterator[Ranked]:
    """The rows of one key, each event once, in any order → its requests. `reach_us` of an lsn: what held for it.

    A request that was received last before the border begins the next one, if what comes beyond the border answers it.
    """
    group: list[Received] = []
    for row in sorted(rows, key=lambda row: row.order):
        if group and row.first_received_us - group[0].first_received_us > reach_us(group[0].lsn):
            answered = [group.pop()] if len(group) > 1 and _is_answer(row, group[-1], reach_us) else []
            yield _request(group)
            group = answered
        group.append(row)
    if group:
        yield _request(group)


def _is_answer(row: Received, last: Received, reach_us: Callable[[int], int]) -> bool:
    is_within = row.first_received_us - last.first_received_us <= reach_us(last.lsn)
    return last.side is Side.REQUEST and row.side is not Side.REQUEST and is_within


def _request(group: Sequence[Received]) -> Ranked:
    """One request, of its rows by first reception."""
    best = max(group, key=lambda row: row.rank)
    if best.side is Side.REQUEST:
        return Ranked(best.lsn, None, tuple(row for row in group if row is not best))
    request = _answered(best, group)
    superseded = tuple(row for row in group if row is not best and row is not request)
    return Ranked(None if request is None else request.lsn, best.lsn, superseded)


def _answered(report: Received, group: Sequence[Received]) -> Received | None:
    """The request that a report answers: the latest received before it, else the earliest after it.

    A request that was received at the same instant came before it unless it occurred later.
    A report that is both sides answers itself if there is no request; otherwise it also counts as a request.
    """
    requests = [row for row in group if row.side is Side.REQUEST]
    if not requests:
        if report.side is Side.BOTH:
            return report
        requests = [row for row in group if row.side is Side.BOTH]
    received = report.first_received_us, report.occurred_us
    before = [row for row in requests if (row.first_received_us, row.occurred_us) <= received]
    return before[-1] if before else next(iter(requests), None)
