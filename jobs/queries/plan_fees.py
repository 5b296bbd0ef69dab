"""What plans cost an account in a month beside its usage: the catalog's terms of plans, by the account's own days.

A month has its fees once it has begun by billing's frontier, whole: as long as the catalog stays as it is, the rest of
the month is under the account's plan, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

from jobs.billing_progress import Database, Row
from jobs.queries.account_periods import periods
from jobs.queries.periods import Window
from metering.months import ZoneChange
from metering.plan_terms import PLAN_MODEL, Fee, PlanKey, PlanMonth, PlanTerms, Stretch, parse_terms, plan_months
from metering.price_tiers import ZERO

if TYPE_CHECKING:
    from jobs.queries.bills import Period

_TERMS = f"""
    SELECT plan, currency, effective_from, terms::text AS terms,
           least(ended_at, lead(effective_from) OVER (PARTITION BY plan, currency ORDER BY effective_from)) AS until
    FROM (
        SELECT plan, currency, effective_from, terms, NULL::timestamptz AS ended_at
        FROM catalog.prices WHERE model = '{PLAN_MODEL}'
        UNION ALL
        SELECT plan, currency, effective_from, terms, ended_at FROM catalog.ended_prices WHERE model = '{PLAN_MODEL}'
    ) AS every
    ORDER BY plan, currency, effective_from
"""
# Of the first row of an account, whose plan prices all usage before it, too, the days begin with the row itself.
_STRETCHES = """
    WITH of_plans AS (
        SELECT DISTINCT account FROM catalog.account_history
        WHERE plan = ANY (%(plans)s) AND holds_from < %(end)s AND holds_until > %(start)s
          AND (%(accounts)s::text[] IS NULL OR account = ANY (%(accounts)s))
    )
    SELECT account, plan, currency, greatest(holds_from, effective_from) AS begins,
           nullif(holds_until, 'infinity') AS until
    FROM catalog.account_history JOIN of_plans USING (account)
    WHERE holds_from < %(end)s AND holds_until > greatest(effective_from, %(start)s)
    ORDER BY account, begins
"""
_FRONTIER = "SELECT frontier FROM closed_usage"
AROUND = timedelta(days=3)
"""No month of an account's calendar begins or ends further from that of UTC."""


Usage = dict[tuple[str, PlanKey], Decimal]
"""What the usage of an account's month costs under a plan."""

Charged = Callable[[Row], Decimal]
"""What is charged for a line (its key and its exact `amount`): that amount, or on an invoice what it is rounded to."""


def exactly(line: Row) -> Decimal:
    """What a bill says."""
    amount: Decimal = line["amount"]
    return amount


@dataclass(frozen=True)
class FeeLine:
    """One fee of an account's month. `amount` None: it depends on usage whose plan is not known yet."""

    account: str
    currency: str
    fee: Fee
    plan: str
    days: int
    amount: Decimal | None


@dataclass(frozen=True)
class PlanMonths:
    """By account: each plan that it has in the month and that has terms."""

    every: Mapping[str, Mapping[PlanKey, PlanMonth]] = field(default_factory=dict)

    @property
    def by_usage(self) -> list[str]:
        """The accounts whose fees depend on what their usage costs, or whose usage is included in part."""
        return [
            account
            for account, months in self.every.items()
            if any(month.depends_on_usage for month in months.values())
        ]

    @property
    def included(self) -> list[tuple[str, str, str, str, Decimal]]:
        """(account, plan, currency, meter, quantity) of what is included."""
        return [
            (account, *key, meter, quantity)
            for account, months in self.every.items()
            for key, month in months.items()
            for meter, quantity in month.included.items()
        ]

    def lines(
        self, usage: Mapping[tuple[str, PlanKey], Decimal], unknown: Collection[str], charged: Charged
    ) -> list[FeeLine]:
        """The fees beside `usage`, by account and plan. `unknown`: accounts with usage of which the plan is unknown."""
        return [
            line
            for account, months in self.every.items()
            for key, month in months.items()
            for line in _lines(account, key, month, usage.get((account, key), ZERO), charged, account in unknown)
        ]


def read_plan_months(
    database: Database,
    month: date,
    periods_of: Callable[[], Mapping[str, Period]],
    accounts: Collection[str] | None = None,
) -> PlanMonths:
    """The plans of the month that begins on `month`; of some accounts or (None) of all.

    `periods_of` gives the month's periods, and is called only where any plan has terms.
    """
    terms = database.execute(_TERMS).fetchall()
    progress = database.execute(_FRONTIER).fetchone() if terms else None
    if progress is None or progress["frontier"] is None:
        return PlanMonths()
    intervals = _intervals(terms)
    first = datetime(month.year, month.month, 1, tzinfo=progress["frontier"].tzinfo)
    parameters = {
        "plans": sorted({key.plan for key in intervals}),
        "start": first - AROUND,
        "end": first + timedelta(days=31) + AROUND,
        "accounts": None if accounts is None else list(accounts),
    }
    stretches: defaultdict[str, list[Row]] = defaultdict(list)
    for row in database.execute(_STRETCHES, parameters, prepare=False).fetchall():
        stretches[row["account"]].append(row)
    known = periods_of() if stretches else {}
    days: dict[tuple[ZoneChange, ...], list[tuple[datetime, datetime]]] = {}
    found = {}
    for account, rows in stretches.items():
        period = known.get(account)
        if period is None or period.start > progress["frontier"]:
            continue
        if period.zones not in days:
            days[period.zones] = _days(period, month)
        every = [stretch for row in rows for stretch in _under_terms(row, intervals)]
        if months := plan_months(days[period.zones], every):
            found[account] = months
    return PlanMonths(found)


def _lines(  # noqa: PLR0917  # what the fees of a plan are made of
    account: str, key: PlanKey, month: PlanMonth, usage: Decimal, charged: Charged, is_unknown: bool
) -> list[FeeLine]:
    def line(fee: Fee, amount: Decimal | None) -> FeeLine:
        return FeeLine(account, key.currency, fee, key.plan, month.days, amount)

    def rounded(fee: Fee | None, amount: Decimal) -> Decimal:
        of_usage = dict.fromkeys(("model", "meter", "price_version"))
        place = {"account": account, "currency": key.currency, "kind": fee, "tier": key.plan}
        return charged({**of_usage, **place, "quantity": Decimal(month.days), "amount": amount})

    if not is_unknown or not month.depends_on_usage:
        return [line(fee, amount) for fee, amount in month.fees(usage, rounded).items()]
    flat = [line(Fee.FLAT, month.flat_fee)] if month.flat_fee else []
    return [*flat, line(Fee.MAXIMUM if month.maximum is not None else Fee.MINIMUM, None)]


def _intervals(rows: list[Row]) -> Mapping[PlanKey, list[tuple[datetime, datetime | None, PlanTerms]]]:
    """By plan and currency: which terms hold from when until when, those in force one after the other."""
    found: defaultdict[PlanKey, list[tuple[datetime, datetime | None, PlanTerms]]] = defaultdict(list)
    for row in rows:
        terms = parse_terms(row["terms"])
        if isinstance(terms, PlanTerms) and (row["until"] is None or row["until"] > row["effective_from"]):
            found[PlanKey(row["plan"], row["currency"])].append((row["effective_from"], row["until"], terms))
    return found


def _under_terms(
    row: Row, intervals: Mapping[PlanKey, list[tuple[datetime, datetime | None, PlanTerms]]]
) -> list[Stretch]:
    """That an account has a plan, with each of its terms, and as a whole without any."""
    key = PlanKey(row["plan"], row["currency"])
    whole = Stretch(key, row["begins"], row["until"])
    found = [whole]
    for begins, until, terms in intervals.get(key, ()):
        start = max(begins, whole.begins)
        ends = [end for end in (until, whole.until) if end is not None]
        if not ends or min(ends) > start:
            found.append(Stretch(key, start, min(ends, default=None), terms))
    return found


def _days(period: Period, month: date) -> list[tuple[datetime, datetime]]:
    last = (month + timedelta(days=31)).replace(day=1) - timedelta(days=1)
    return [(day.start, day.end) for day in periods(Window.DAY, period.zones, month, last)]
