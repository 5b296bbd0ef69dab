"""Bills: what each account owes for a month so far, line by line. A month is the sum of the days that belong to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from jobs.billing_progress import Database, Row
from jobs.queries.pages import Page, paged
from jobs.queries.plan_fees import Charged, FeeLine, Usage, exactly, read_plan_months
from jobs.queries.roll_up import PARENTS
from metering.digits import EXACT, exact_sum
from metering.months import ZoneChange, billing_month
from metering.parents import ParentStretch, parents_of_month
from metering.plan_terms import PlanKey
from metering.pools import member_lines
from metering.price_tiers import Kind, PriceTerms
from metering.pricing import BILLED_AS_PART

LINE_KEY = ("account", "model", "meter", "currency", "first_window", "price_version")
"""What lines are ordered by; lines of one price version by their tier."""
PAGE_KEY = ("account", "model", "meter", "currency", "price_version")
"""What pages of lines are ordered by: usage that comes between two pages moves no line to another place. All lines of
a price version, one for each tier, are on one page."""

# Some accounts with all that were ever above them.
_UP = """
    (%(accounts)s::text[] IS NULL OR account IN (
        WITH RECURSIVE up AS (
            SELECT unnest(%(accounts)s::text[]) AS account
            UNION
            SELECT parent FROM catalog.account_history JOIN up USING (account) WHERE parent IS NOT NULL
        )
        SELECT account FROM up
    ))
"""
# An account that was deleted has its months still.
_ACCOUNTS = f"""
    SELECT account, name,
           array_agg(nullif(holds_from, '-infinity') ORDER BY holds_from) AS held_from,
           array_agg(account_zones.timezone ORDER BY holds_from) AS timezones
    FROM catalog.account_zones LEFT JOIN catalog.accounts USING (account)
    WHERE {_UP} GROUP BY account, name
"""
_PARENTS = f"SELECT * FROM ({PARENTS}) AS every WHERE {_UP}"
# A price version has one unit price: a line's amount is its quantity times that, multiplied once. A version with terms
# is one row for all models that it prices, with its part of the account's ladder: the units after `ladder_start` up to
# `ladder_end`, of `ladder_total`. Versions with a unit price lie on the ladder, too, and are lines as any other. What a
# plan includes of a meter is shared by all its models and versions in proportion to their quantities, the last
# millionths by the largest remainder: only the rest of each is priced. Where a meter reported negative values a plan
# includes of what is left of the others, and a version may have a negative part. An account of a pool has the part of
# the pool's ladder, which it shares with others whose quantities are given beside its own.
_LINES = """
    WITH summed AS (
        SELECT account, model, meter, currency, price_version, max(unit_price) AS unit_price,
               sum(quantity) AS quantity, min(first_window) AS first_window, max(last_window_end) AS last_window_end,
               bool_or(corrected) AS corrected
        FROM usage_months
        WHERE month = %(month)s AND (%(accounts)s::text[] IS NULL OR account = ANY (%(accounts)s))
        GROUP BY account, model, meter, currency, price_version
        HAVING sum(quantity) <> 0
    ), granted AS (
        SELECT summed.account, model, summed.meter, summed.currency, price_version, summed.quantity, rung.plan,
               least(given.quantity, greatest(sum(summed.quantity) OVER of_plan, 0)) AS granted,
               given.quantity > sum(summed.quantity) OVER of_plan AS has_left,
               sum(greatest(summed.quantity, 0)) OVER of_plan AS total
        FROM summed JOIN (SELECT price_version, plan FROM price_ladders) AS rung USING (price_version)
        JOIN unnest(
            %(included_accounts)s::text[], %(included_plans)s::text[], %(included_currencies)s::text[],
            %(included_meters)s::text[], %(included_quantities)s::numeric[]
        ) AS given (account, plan, currency, meter, quantity)
          ON (given.account, given.plan, given.currency, given.meter)
           = (summed.account, rung.plan, summed.currency, summed.meter)
        WINDOW of_plan AS (PARTITION BY summed.account, rung.plan, summed.currency, summed.meter)
    ), shared AS (
        SELECT *, granted * 1000000 AS steps, div(granted * 1000000 * quantity, total) AS share
        FROM granted WHERE quantity > 0 AND granted < total
    ), ranked AS (
        SELECT *, steps - sum(share) OVER of_plan AS rest, row_number() OVER (
                   PARTITION BY account, plan, currency, meter
                   ORDER BY steps * quantity - share * total DESC, model COLLATE "C", price_version
               ) AS place
        FROM shared WINDOW of_plan AS (PARTITION BY account, plan, currency, meter)
    ), included AS (
        SELECT account, model, meter, currency, price_version, has_left, quantity AS included
        FROM granted WHERE quantity > 0 AND granted >= total
        UNION ALL
        SELECT account, model, meter, currency, price_version, has_left,
               (share + CASE WHEN place <= rest THEN 1 ELSE 0 END) * 0.000001
        FROM ranked
    ), used AS (
        SELECT summed.account, summed.model, summed.meter, summed.currency, summed.price_version, unit_price,
               summed.quantity - coalesce(included, 0) AS quantity, coalesce(included, 0) AS included, has_left,
               first_window, last_window_end, corrected
        FROM summed LEFT JOIN included
          ON included.account = summed.account AND included.model IS NOT DISTINCT FROM summed.model
         AND included.meter = summed.meter AND included.currency IS NOT DISTINCT FROM summed.currency
         AND included.price_version = summed.price_version
    ), parts AS (
        SELECT used.account, rung.plan, rung.model, used.meter, used.currency, price_version, rung.effective_from,
               rung.terms, sum(used.quantity) AS quantity, sum(included) AS included, bool_or(has_left) AS has_left,
               min(first_window) AS first_window, max(last_window_end) AS last_window_end,
               bool_or(corrected) AS corrected
        FROM used JOIN price_ladders AS rung USING (price_version)
        GROUP BY used.account, rung.plan, rung.model, used.meter, used.currency, price_version, rung.effective_from,
                 rung.terms
        HAVING sum(used.quantity) <> 0 OR sum(included) <> 0
    ), ladder AS (
        SELECT *, sum(quantity) OVER below AS ladder_end, sum(quantity) OVER whole AS ladder_total,
               coalesce(bool_or(quantity <> 0) OVER above, false) AS has_above
        FROM parts
        WINDOW whole AS (PARTITION BY account, plan, model, meter, currency),
               below AS (
                   PARTITION BY account, plan, model, meter, currency ORDER BY effective_from, price_version
                   ROWS UNBOUNDED PRECEDING
               ),
               above AS (
                   PARTITION BY account, plan, model, meter, currency ORDER BY effective_from, price_version
                   ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
               )
    )
    SELECT used.account, used.model, used.meter, used.currency, used.price_version, used.unit_price, quantity,
           quantity * used.unit_price AS amount, first_window, last_window_end, corrected,
           NULL::text AS terms, NULL::numeric AS ladder_start, NULL::numeric AS ladder_end,
           NULL::numeric AS ladder_total, NULL::boolean AS has_above, rung.plan, included, has_left,
           NULL::numeric[] AS quantities, NULL::integer AS place
    FROM used LEFT JOIN price_ladders AS rung USING (price_version) WHERE rung.terms IS NULL
    UNION ALL
    SELECT account, model, meter, currency, price_version, NULL, quantity, NULL,
           first_window, last_window_end, corrected,
           terms, coalesce(of_pool.ladder_start, ladder.ladder_end - quantity),
           coalesce(of_pool.ladder_end, ladder.ladder_end), coalesce(of_pool.ladder_total, ladder.ladder_total),
           coalesce(of_pool.has_above, ladder.has_above), plan, included, has_left, quantities, place
    FROM ladder LEFT JOIN pool_parts(%(month)s, %(accounts)s) AS of_pool USING (account, meter, currency, price_version)
    WHERE terms IS NOT NULL
"""
# One row for all fees of an account and currency, which is after its usage.
_WITH_FEES = f"""
    {_LINES}
    UNION ALL
    SELECT account, NULL, NULL, currency, NULL, NULL, 0, amount, first_window, last_window_end, false,
           NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL
    FROM unnest(
        %(fee_accounts)s::text[], %(fee_currencies)s::text[], %(fee_amounts)s::numeric[],
        %(fee_starts)s::timestamptz[], %(fee_ends)s::timestamptz[]
    ) AS fees (account, currency, amount, first_window, last_window_end)
"""
_INCLUDED = (
    *("included_accounts", "included_plans", "included_currencies", "included_meters"),
    "included_quantities",
)
TIER_INCLUDED = "included"
"""The `tier` of the units that the plan includes."""
_ORDERED = f"SELECT * FROM ({_WITH_FEES}) AS every ORDER BY {', '.join(LINE_KEY)}"
_OF_TERMS = f"SELECT * FROM ({_LINES}) AS every WHERE terms IS NOT NULL"
_TOTALS = f"""
    SELECT account, currency, sum(amount) AS amount,
           count(*) FILTER (WHERE amount IS NULL AND terms IS NULL) AS unpriced_lines, bool_or(corrected) AS corrected
    FROM ({_WITH_FEES}) AS lines GROUP BY account, currency ORDER BY account, currency
"""
_BY_METER = f"""
    SELECT account, currency, meter, sum(amount) AS amount FROM ({_LINES}) AS lines
    WHERE amount IS NOT NULL AND currency IS NOT NULL GROUP BY account, currency, meter
"""


@dataclass(frozen=True)
class Period:
    """An account's month: `[start, end)` in UTC. `name` is None for an account the catalog does not know.

    Usage from before the account's zone was known is on days of UTC, and may lie outside (I12 of `weir audit`).
    """

    account: str
    name: str | None
    timezone: str
    start: datetime
    end: datetime
    parent: str | None = None
    """Whose bill it is part of: the parent that the account had when the month began."""
    zones: tuple[ZoneChange, ...] = ()
    """The account's time zones, of which its calendar is made."""


@dataclass(frozen=True)
class Month:
    """`lines` have LINE_KEY, `kind`, `tier`, `unit_price`, `quantity`, `amount`, `last_window_end`, `corrected`,
    `next_unit_price` and `pooled`.

    `kind` is that of the price (`metering.price_tiers.Kind`); None: the usage has no price. A price of another kind
    than `unit` has one line per tier that prices any of its units (`tier`: `1: up to 1000000`), whose `model` is what
    the price is for, such as `gpt-4o*`. `amount` is exact: quantity x unit price, with the flat price of the tier; or
    the packages that the units open. `next_unit_price` (else None) is what the next unit of such a price would add: an
    estimate, which no sum contains. `pooled`: its tiers are of a total that the account shares with others.

    What an account's plan costs beside its usage are lines of a `kind` of `metering.plan_terms.Fee`, without model and
    meter: `tier` is the plan, `quantity` the days that the account has it in the month. `periods` are those of the
    accounts that have lines, and of all above them.
    """

    lines: Sequence[Row]
    periods: Mapping[str, Period]


def read_month(
    database: Database,
    month: date,
    accounts: Sequence[str] | None = None,
    page: Page | None = None,
    charged: Charged = exactly,
) -> Month:
    """The lines of the month that begins on `month`, a first of a month; of some accounts or (None) of all.

    A page has at most its limit of price versions (PAGE_KEY), each with all of its lines. All fees of an account in one
    currency count as one more. `charged`: what the lines are charged with, to which minimum and maximum of a plan are
    compared; their `amount` is exact regardless.
    """
    periods = read_periods(database, month, accounts)
    fees = _read_fees(database, month, lambda: periods, accounts, charged)
    statement, more = paged(_ORDERED, PAGE_KEY, page)
    parameters = {"month": month, "accounts": None if accounts is None else list(accounts), **fees.parameters, **more}
    lines = [line for row in _planned(database, statement, parameters) for line in _lines_of(row, fees)]
    used: dict[str, Period] = {}
    for line in lines:
        account: str | None = line["account"]
        while account is not None and account not in used:
            used[account] = periods.get(account) or unknown_period(month, account)
            # One that may not be seen is not named either.
            account = used[account].parent if used[account].parent in periods else None
    return Month(lines, used)


def read_periods(database: Database, month: date, accounts: Sequence[str] | None = None) -> dict[str, Period]:
    """The month of each account that the catalog knows or knew, also of those without usage; of all, or of some
    `accounts` with all that were ever above them.
    """
    parameters = {"accounts": None if accounts is None else list(accounts)}
    rows = _planned(database, _ACCOUNTS, parameters)
    parents = _parents(month, rows, _planned(database, _PARENTS, parameters))
    return {row["account"]: _period(month, **row, parent=parents.get(row["account"])) for row in rows}


def _planned(database: Database, statement: str, parameters: Mapping[str, Any]) -> list[Row]:
    """The rows of a statement that is planned for these parameters each time.

    Postgres plans a prepared one for any accounts after ten executions, and that plan is ten times as slow for 500.
    """
    return database.execute(statement, parameters, prepare=False).fetchall()


def unknown_period(month: date, account: str) -> Period:
    """The month of an account that the catalog does not know: in UTC."""
    return _period(month, account, [], [])


def read_totals(database: Database, month: date, accounts: Sequence[str], *, with_fees: bool = True) -> list[Row]:
    """What each of these accounts owes for the whole month: `account, currency, amount, unpriced_lines, corrected`.

    Each currency separately. `amount` is the exact sum of the lines that have a price; None where none has one. Without
    fees only of its usage, of which plans may include a part.
    """
    fees = _read_fees(database, month, lambda: read_periods(database, month, accounts), accounts, exactly)
    return _totals(database, month, accounts, fees if with_fees else _Fees(included=fees.included))


def read_meter_amounts(database: Database, month: date, accounts: Sequence[str]) -> dict[tuple[str, str, str], Decimal]:
    """What the usage of the month cost that has a price: by account, currency and meter, and with an empty meter all.

    As if no plan included any: what is billed so far decides it, and no catalog.
    """
    parameters = {"month": month, "accounts": list(accounts), **_Fees().parameters}
    apart: defaultdict[tuple[str, str, str], list[Decimal]] = defaultdict(list)
    for row in _planned(database, _BY_METER, parameters):
        apart[row["account"], row["currency"], row["meter"]].append(row["amount"])
    for row in _planned(database, _OF_TERMS, parameters):
        of_meter = row["account"], row["currency"], row["meter"]
        apart[of_meter] += [line["amount"] for line in _lines_of(row, _Fees())]
    for (account, currency, _), amounts in list(apart.items()):
        apart[account, currency, ""] += amounts
    return {place: exact_sum(amounts) for place, amounts in apart.items()}


def _totals(database: Database, month: date, accounts: Sequence[str], fees: _Fees) -> list[Row]:
    parameters = {"month": month, "accounts": list(accounts), **fees.parameters}
    apart: defaultdict[tuple[str, str | None], list[Decimal]] = defaultdict(list)
    for row in _planned(database, _OF_TERMS, parameters):
        apart[row["account"], row["currency"]] += [line["amount"] for line in _lines_of(row, fees)]
    for (account, currency), lines in fees.every.items():
        if _sum_of(lines) is None:
            apart[account, currency] += [line.amount for line in lines if line.amount is not None]
    totals = _planned(database, _TOTALS, parameters)
    for total in totals:
        for amount in apart[total["account"], total["currency"]]:
            total["amount"] = amount if total["amount"] is None else EXACT.add(total["amount"], amount)
    return totals


@dataclass(frozen=True)
class _Fees:
    """The fees of each account and currency that has any, and its period."""

    every: Mapping[tuple[str, str], Sequence[FeeLine]] = field(default_factory=dict)
    included: Sequence[tuple[str, str, str, str, Decimal]] = ()
    periods: Mapping[str, Period] = field(default_factory=dict)

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Of `_LINES` and `_WITH_FEES`."""
        accounts = [account for account, _ in self.every]
        amounts = [_sum_of(lines) for lines in self.every.values()]
        return {
            "fee_accounts": accounts,
            "fee_currencies": [currency for _, currency in self.every],
            "fee_amounts": amounts,
            "fee_starts": [self.periods[account].start for account in accounts],
            "fee_ends": [self.periods[account].end for account in accounts],
            **{name: [given[place] for given in self.included] for place, name in enumerate(_INCLUDED)},
        }


def _sum_of(fees: Sequence[FeeLine]) -> Decimal | None:
    """Of all of them; None where one is not known."""
    amounts = [line.amount for line in fees if line.amount is not None]
    return exact_sum(amounts) if len(amounts) == len(fees) else None


def _read_fees(
    database: Database,
    month: date,
    periods_of: Callable[[], Mapping[str, Period]],
    accounts: Sequence[str] | None,
    charged: Charged,
) -> _Fees:
    months = read_plan_months(database, month, periods_of, accounts)
    if not months.every:
        return _Fees()
    usage: Usage = {}
    unknown = set()
    if by_usage := months.by_usage:
        included = _Fees(included=months.included).parameters
        for row in _planned(database, _LINES, {"month": month, "accounts": by_usage, **included}):
            account, plan = row["account"], row.pop("plan")
            is_priced = row["price_version"] is not None and row["price_version"] > BILLED_AS_PART
            lines = list(_lines_of(row, _Fees()))
            if is_priced and (plan is None or any(line["amount"] is None for line in lines)):
                unknown.add(account)
            elif is_priced:
                key = account, PlanKey(plan, row["currency"])
                usage[key] = exact_sum([usage.get(key, Decimal(0)), *map(charged, lines)])
    found: defaultdict[tuple[str, str], list[FeeLine]] = defaultdict(list)
    for line in months.lines(usage, unknown, charged):
        found[line.account, line.currency].append(line)
    return _Fees(found, months.included, periods_of())


def _lines_of(row: Row, fees: _Fees) -> Iterator[Row]:
    """A row of `_LINES` as it is, or by the tiers of its price; or the fees of an account and currency."""
    terms, start, end, total = (row.pop(name) for name in ("terms", "ladder_start", "ladder_end", "ladder_total"))
    has_above, quantities, place = (row.pop(name) for name in ("has_above", "quantities", "place"))
    row.pop("plan", None)
    included, has_left = row.pop("included"), row.pop("has_left")
    row["pooled"] = quantities is not None
    if row["meter"] is None:
        of_fee = {**row, "next_unit_price": None}
        for fee in fees.every[row["account"], row["currency"]]:
            days = Decimal(fee.days)
            yield {**of_fee, "kind": fee.fee.value, "tier": fee.plan, "quantity": days, "amount": fee.amount}
        return
    if terms is None:
        kind = None if row["unit_price"] is None else Kind.UNIT.value
        of_price = {**row, "kind": kind, "next_unit_price": None}
    else:
        price = PriceTerms.parse(terms)
        next_unit_price = Decimal(0) if has_left else price.next_unit_price(total)
        of_price = {**row, "kind": price.kind.value, "next_unit_price": next_unit_price}
    if included:
        yield {**of_price, "tier": TIER_INCLUDED, "quantity": included, "unit_price": Decimal(0), "amount": Decimal(0)}
    if terms is None:
        if row["quantity"] or not included:
            yield {**of_price, "tier": None}
        return
    tiers = () if start == end else price.lines(start, end, total, is_last=not has_above)
    for line in tiers if quantities is None else member_lines(tiers, quantities, place):
        of_tier = {"tier": line.tier, "quantity": line.quantity, "unit_price": line.unit_price, "amount": line.amount}
        yield {**of_price, **of_tier}


def _parents(month: date, accounts: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The parent of each account's month that has one."""
    zones = {row["account"]: tuple(map(ZoneChange, row["held_from"], row["timezones"])) for row in accounts}
    history = {row["account"]: tuple(map(ParentStretch, row["starts"], row["ends"], row["parents"])) for row in rows}
    return parents_of_month(history, lambda account: zones.get(account, ()), month)


def _period(
    month: date, account: str, held_from: Sequence[datetime | None], timezones: Sequence[str], **known: str | None
) -> Period:
    """The account's month that begins on `month`; in UTC where its time zone is unknown."""
    zones = tuple(map(ZoneChange, held_from, timezones))
    found = billing_month(zones, month)
    return Period(account, known.get("name"), found.zone.key, found.start, found.end, known.get("parent"), zones)
