"""How near accounts are to the thresholds of their limits, and which were crossed and retracted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal

from dashboard.backend import Backend
from dashboard.exact import Quantity, plain, with_plain
from dashboard.model_columns import share
from dashboard.queries.feed import Feed, feed_of
from dashboard.queries.stragglers import newest_usage_of
from jobs.queries.limit_lists import with_crossed
from jobs.queries.limits import LimitUse, TooManyLimits, limits_in_use
from metering.digits import EXACT
from metering.limits import ROLLING_FIRST_DAY
from metering.vocabulary import Job

MAX_LIMITS = 5_000
"""In force, and added up for one page."""
MAX_ROWS = 1_000
_CHANGES = f"""
    SELECT changed_at, account, period, nullif(first_day, '{ROLLING_FIRST_DAY}') AS first_day,
           meter, currency, model, dimension, dimension_value, threshold, version, is_crossed, used
    FROM threshold_changes AS changes WHERE %(account)s::text IS NULL OR account = %(account)s
    ORDER BY changed_at DESC, account, changes.first_day, period, meter, currency, model, dimension, dimension_value,
             threshold, version DESC
    LIMIT %(limit)s
"""


@dataclass(frozen=True)
class Nearness:
    """A limit of an account in its day or month that runs (`period` P1D or P1M), or in the hours that roll (PT24H).

    `period_start`: its first day, or from which instant the hours count, as ISO 8601; None: billing has no F yet.
    It is of a `meter`, and with a `model` of that alone, with a `dimension` of its one value; or (then these are empty)
    of money in a `currency`. `other`: usage that is in no value of a dimension, so `used` may be that much more.
    `near_percent`: what was used of `threshold`, which is the next one, or the highest when all are reached; None with
    no threshold, which is a limit of 0. Where the next is a multiple of one that recurs, what was used since the
    multiple before: of the whole, everybody would be near from the fourth on.
    `crossed`: the thresholds that billing has recorded.
    """

    account: str
    meter: str
    currency: str
    model: str
    dimension: str
    dimension_value: str
    period: str
    period_start: str | None
    used: Quantity
    threshold: Quantity | None
    near_percent: float | None
    limit: Quantity | None
    crossed: tuple[Quantity, ...]
    other: Quantity


@dataclass(frozen=True)
class ThresholdChange:
    """A threshold that was crossed, or retracted, at `changed_at`; of its versions the highest holds.

    `first_day` is None where the period rolls.
    `used` was the total then; None where the limit was gone.
    """

    changed_at: datetime
    account: str
    period: str
    first_day: date | None
    meter: str
    currency: str
    model: str
    dimension: str
    dimension_value: str
    threshold: Quantity
    version: int
    is_crossed: bool
    used: Quantity | None


@dataclass(frozen=True)
class Thresholds:
    """`limits` has the nearest first, and the last MAX_ROWS `changes`; `is_too_much`: too many limits are in force to
    add up what was used of each.
    """

    feed: Feed
    newest_usage: datetime | None
    limits: tuple[Nearness, ...]
    changes: tuple[ThresholdChange, ...]
    is_too_much: bool = False


def read_thresholds(backend: Backend, account: str | None, max_limits: int = MAX_LIMITS) -> Thresholds:
    """Of one account or all that the viewer may see."""
    with backend.snapshot() as cursor:
        feed = feed_of(cursor, Job.BILLING)
        newest_usage = newest_usage_of(cursor)
        changes = cursor.execute(_CHANGES, {"account": account, "limit": MAX_ROWS}).fetchall()
        accounts = None if account is None else [account]
        try:
            uses = list(limits_in_use(cursor.connection, accounts, None, feed.read_at, max_limits))
        except TooManyLimits:
            uses, is_too_much = [], True
        else:
            is_too_much = False
        limits = [_nearness(use, crossed) for use, crossed in with_crossed(cursor.connection, uses)]
    limits.sort(key=lambda limit: -1.0 if limit.near_percent is None else limit.near_percent, reverse=True)
    return Thresholds(
        feed,
        newest_usage,
        tuple(limits),
        tuple(ThresholdChange(**with_plain(row, "threshold", "used")) for row in changes),
        is_too_much,
    )


def _nearness(use: LimitUse, crossed: Sequence[Decimal]) -> Nearness:
    thresholds = use.thresholds
    above = [threshold for threshold in thresholds if threshold > use.used]
    threshold = above[0] if above else thresholds[-1] if thresholds else None
    used, whole = use.used, threshold
    if above and use.every is not None and above[0] not in {*use.steps, use.maximum}:
        used, whole = EXACT.subtract(used, EXACT.subtract(above[0], use.every)), use.every
    return Nearness(
        account=use.account,
        meter=use.meter,
        currency=use.currency,
        model=use.model,
        dimension=use.dimension,
        dimension_value=use.dimension_value,
        period=use.period,
        period_start=use.period_start,
        used=plain(use.used),
        threshold=None if threshold is None else plain(threshold),
        near_percent=share(used, whole),
        limit=None if use.maximum is None else plain(use.maximum),
        crossed=tuple(map(plain, crossed)),
        other=plain(use.other),
    )
