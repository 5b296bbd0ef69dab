"""What a change of the catalog would bill again: usage of ended months that has a price and would get another.

The next audit bills it by the catalog as it is then. Adding a price where there was none is no such change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, LiteralString

import psycopg

from catalog.agreement import NeedsAgreement
from catalog.change import Change
from jobs.queries.bills import read_periods
from jobs.queries.plan_fees import read_plan_months
from jobs.streams import CatalogTopic
from metering.months import FIRST_WALKED, ZoneChange, billing_month
from metering.plan_terms import PLAN_MODEL
from metering.price_models import ANY, PricedModel

MAX_NAMED = 5
FURTHEST_ZONE = timedelta(hours=15)
"""No calendar is further ahead of UTC's, or behind it: a month of UTC has begun while another's has not ended."""

Connection = psycopg.Connection[dict[str, Any]]
Sums = dict[str, Decimal]
"""Amounts by currency."""

PRICE_AT: LiteralString = """
    SELECT accounts.currency, CASE WHEN price.ended_at IS NULL OR price.ended_at > at THEN price.unit_price END
        AS unit_price, price.terms IS NOT NULL AND (price.ended_at IS NULL OR price.ended_at > at) AS is_tiered
    FROM catalog.account_history AS accounts
    CROSS JOIN LATERAL (
        SELECT unit_price, terms, effective_from, NULL::timestamptz AS ended_at FROM catalog.prices
        WHERE (plan, model, meter, currency) = (accounts.plan, used.model, used.meter, accounts.currency)
          AND effective_from <= at
        UNION ALL
        SELECT unit_price, terms, effective_from, ended_at FROM catalog.ended_prices
        WHERE (plan, model, meter, currency) = (accounts.plan, used.model, used.meter, accounts.currency)
          AND effective_from <= at
        ORDER BY effective_from DESC LIMIT 1
    ) AS price
    WHERE accounts.account = used.account AND accounts.holds_from <= at AND accounts.holds_until > at
"""
"""The price of one unit for `used` (account, model, meter, at): as `catalog.contracts_at`, of a single one.

Null where the price has tiers or packages (`is_tiered`)."""

# The day in which a change begins is read by the minute: each has the price of its start, or that of the change.
# What is billed by the period has no minutes, and is on the first day of it: all of it is taken to get the new price.
_BILLED: LiteralString = f"""
    WITH touched AS (
        SELECT account, NULL AS model, NULL AS meter, starts
        FROM unnest(%(accounts)s::text[], %(account_starts)s::timestamptz[]) AS changed (account, starts)
        UNION
        SELECT accounts.account, changed.model, changed.meter, greatest(changed.starts, accounts.holds_from)
        FROM unnest(
            %(plans)s::text[], %(models)s::text[], %(meters)s::text[], %(currencies)s::text[],
            %(price_starts)s::timestamptz[]
        ) AS changed (plan, model, meter, currency, starts)
        JOIN catalog.account_history AS accounts USING (plan, currency)
        WHERE accounts.holds_until > changed.starts
    ), days AS (
        SELECT account, day, model, meter, currency, price_version, unit_price, sum(quantity) AS quantity,
               min(first_window) AS first_window, max(last_window_end) AS last_window_end
        FROM usage_days
        WHERE account IN (SELECT account FROM touched) AND unit_price IS NOT NULL
          AND day >= (SELECT date_trunc('month', (min(starts) AT TIME ZONE 'UTC')::date - 1) FROM touched)
          AND day < date_trunc('month', now() AT TIME ZONE 'UTC' + %(earliest)s)
        GROUP BY account, day, model, meter, currency, price_version, unit_price
    ), begun AS (
        SELECT days.*, max(starts) FILTER (WHERE starts > first_window) AS starts
        FROM days JOIN touched ON touched.account = days.account AND starts < last_window_end
         AND (touched.model IS NULL OR (touched.model, touched.meter) = (days.model, days.meter))
        GROUP BY {{days}}
    ), used AS (
        SELECT account, day, model, meter, currency, unit_price, quantity, first_window AS at
        FROM begun WHERE starts IS NULL
        UNION ALL
        SELECT begun.account, day, begun.model, begun.meter, begun.currency, begun.unit_price, minutes.quantity,
               coalesce(
                   (
                       SELECT max(touched.starts) FROM touched
                       WHERE touched.account = begun.account AND touched.starts > minutes.window_start
                         AND touched.starts < minutes.window_end
                   ),
                   minutes.window_start
               )
        FROM begun JOIN usage_windows AS minutes
          ON minutes.account = begun.account AND minutes.model = begun.model AND minutes.meter = begun.meter
         AND minutes.currency = begun.currency AND minutes.price_version = begun.price_version
         AND minutes.window_start >= begun.first_window AND minutes.window_start < begun.last_window_end
        WHERE begun.starts IS NOT NULL
        UNION ALL
        SELECT account, day, model, meter, currency, unit_price, quantity, starts FROM begun
        WHERE starts IS NOT NULL AND meter IN (SELECT meter FROM meters WHERE period IS NOT NULL)
    )
    SELECT used.account, date_trunc('month', used.day)::date AS month, used.model, used.meter,
           used.currency, used.unit_price, price.currency AS new_currency, price.unit_price AS new_unit_price,
           coalesce(price.is_tiered, false) AS is_tiered, sum(used.quantity) AS quantity
    FROM used LEFT JOIN LATERAL ({PRICE_AT}) AS price ON true
    GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9
""".replace(
    "{days}",
    "days.account, day, days.model, days.meter, currency, price_version, unit_price, quantity, "
    "first_window, last_window_end",
)
_PERHAPS: LiteralString = """
    SELECT used.account, date_trunc('month', used.day)::date AS month, used.day, used.model, used.meter, used.currency,
           sum(used.quantity * used.unit_price) AS amount
    FROM usage_days AS used
    WHERE used.meter = coalesce(%s, used.meter) AND used.currency = coalesce(%s, used.currency)
      AND used.last_window_end > %s AND used.day >= date_trunc('month', (%s AT TIME ZONE 'UTC')::date - 2)
      AND (used.model = %s OR left(used.model, length(%s)) = %s)
      AND EXISTS (
          SELECT FROM catalog.account_history AS accounts
          WHERE accounts.account = used.account AND accounts.plan = %s
            AND used.first_window < accounts.holds_until AND used.last_window_end > accounts.holds_from
      )
      AND used.unit_price IS NOT NULL
      AND used.day < date_trunc('month', now() AT TIME ZONE 'UTC' + %s)
    GROUP BY 1, 2, 3, 4, 5, 6
"""
"""Usage that a price of more than its model, or with conditions, may be for; without a meter and currency, of all.

What the members of a month come to is on its first day, whenever they came."""
_ALIASES: LiteralString = """
    SELECT DISTINCT plan, split_part(model, '{"', 1) AS name, catalog.aliased_model(model) AS aliased
    FROM (SELECT plan, model FROM catalog.prices UNION ALL SELECT plan, model FROM catalog.ended_prices) AS priced
    WHERE plan = ANY (%(plans)s) AND strpos(model, '{"="') > 1
"""
_BY_TERMS: LiteralString = """
    SELECT used.account, date_trunc('month', used.day)::date AS month, used.day, used.model, used.meter, used.currency,
           sum(used.quantity * used.unit_price) AS amount, terms.plan, terms.currency AS pays, stored.columns
    FROM usage_days AS used LEFT JOIN LATERAL (
        SELECT DISTINCT plan, currency FROM catalog.account_history AS accounts
        WHERE accounts.account = used.account
          AND used.first_window < accounts.holds_until AND used.last_window_end > accounts.holds_from
    ) AS terms ON true
    LEFT JOIN LATERAL (
        SELECT jsonb_build_object('name', name, 'parent', parent, 'timezone', timezone, 'tags', tags)::text AS columns
        FROM catalog.accounts JOIN unnest(%(accounts)s::text[], %(account_starts)s::timestamptz[]) AS changed (
            account, starts
        ) USING (account)
        WHERE account = used.account AND used.last_window_end > starts
          AND EXISTS (
              SELECT FROM (SELECT model FROM catalog.prices UNION ALL SELECT model FROM catalog.ended_prices) AS every
              WHERE position('"account.' IN every.model) > 0
          )
    ) AS stored ON true
    WHERE used.account = ANY (%(accounts)s) AND used.unit_price IS NOT NULL
      AND used.day < date_trunc('month', now() AT TIME ZONE 'UTC' + %(earliest)s)
      AND EXISTS (
          SELECT FROM (
              SELECT meter, model, unnest(catalog.models_of(model)) AS name FROM catalog.prices
              UNION ALL
              SELECT meter, model, unnest(catalog.models_of(model)) FROM catalog.ended_prices
          ) AS priced
          WHERE (priced.meter = used.meter OR strpos(priced.model, '{"="') > 1) AND priced.model <> used.model
            AND strpos(priced.model, '{"+"') = 0 AND (
              priced.name = used.model OR right(name, 1) = '*' AND starts_with(used.model, left(name, -1))
          )
      )
    GROUP BY 1, 2, 3, 4, 5, 6, 8, 9, 10
"""
"""Usage of accounts that such a price may be for, each plan and currency that it is under, and what the account says
from the change on, where conditions are about that."""
# What tiers or packages make of a month is a function of its total, to which usage after theirs may be added: a change
# anywhere in the month counts. An alias is of all meters and currencies.
_TIERED: LiteralString = """
    WITH touched AS (
        SELECT account, NULL AS meter, starts
        FROM unnest(%(accounts)s::text[], %(account_starts)s::timestamptz[]) AS changed (account, starts)
        UNION
        SELECT accounts.account, CASE WHEN changed.currency <> 'XXX' THEN changed.meter END,
               greatest(changed.starts, accounts.holds_from)
        FROM unnest(
            %(plans)s::text[], %(meters)s::text[], %(currencies)s::text[], %(price_starts)s::timestamptz[]
        ) AS changed (plan, meter, currency, starts)
        JOIN catalog.account_history AS accounts
          ON accounts.plan = changed.plan AND changed.currency IN (accounts.currency, 'XXX')
        WHERE accounts.holds_until > changed.starts
    )
    SELECT used.account, date_trunc('month', used.day)::date AS month, min(touched.starts) AS starts,
           max(used.last_window_end) AS used_until
    FROM usage_days AS used JOIN touched ON touched.account = used.account
     AND coalesce(touched.meter, used.meter) = used.meter
     AND touched.starts < greatest(
         used.last_window_end,
         (date_trunc('month', used.day) + interval '1 month') AT TIME ZONE 'UTC' + %(earliest)s
     )
    WHERE used.unit_price IS NULL AND used.price_version > 0 AND used.quantity <> 0
      AND used.day < date_trunc('month', now() AT TIME ZONE 'UTC' + %(earliest)s)
    GROUP BY used.account, month, used.meter ORDER BY used.account, month
"""
_WITH_PLANS: LiteralString = """
    SELECT DISTINCT account FROM catalog.account_history AS accounts
    WHERE account = ANY (%(accounts)s) OR EXISTS (
        SELECT FROM unnest(%(fee_plans)s::text[], %(fee_currencies)s::text[], %(fee_starts)s::timestamptz[])
            AS changed (plan, currency, starts)
        WHERE (changed.plan, changed.currency) = (accounts.plan, accounts.currency) AND holds_until > starts
    )
"""
"""Accounts whose fees a change may concern."""
MAX_MONTHS_OF_FEES = 120
_ZONES = """
    SELECT account, array_agg(nullif(holds_from, '-infinity') ORDER BY holds_from) AS starts,
           array_agg(timezone ORDER BY holds_from) AS zones
    FROM catalog.account_zones WHERE account = ANY (%s) GROUP BY account
"""


@dataclass(frozen=True)
class ClosedMonth:
    """An ended month of an account: what a change removes from its bill, and what it adds instead."""

    account: str
    month: date
    billed: Sums = field(default_factory=lambda: defaultdict(Decimal))
    becomes: Sums = field(default_factory=lambda: defaultdict(Decimal))
    is_certain: bool = True
    """Whether it becomes that; else it may become something else."""
    priced: str = "what tiers or packages price"
    """What that is, where nothing says how much it was."""


class ClosedMonthsTouched(NeedsAgreement):
    """Nothing is changed; the message says what would be billed again, and how to agree."""

    question = "Bill them again?"

    def __init__(self, months: Sequence[ClosedMonth]) -> None:
        self.months = tuple(months)
        named = "; ".join(_named(month) for month in months[:MAX_NAMED])
        more = f"; and {len(months) - MAX_NAMED} more" if len(months) > MAX_NAMED else ""
        counted = f"{len(months)} ended month{'s' * (len(months) > 1)}"
        super().__init__(
            f"This bills {counted} again, with the next audit: {named}{more}. Nothing is stored. "
            "If that is what you mean, add --backdate; else let the change begin (effective_from, --at) now or later."
        )


def refuse_closed(
    before_url: str, database: Connection, changes: Sequence[Change], ends: datetime | None = None
) -> None:
    """Raise ClosedMonthsTouched where these changes, made in `database` and not committed, bill ended months again.

    `ends`: when a deleted row ends. `before_url` reads the catalog as it was.
    """
    touched = _touched(database, changes, ends)
    if touched is None:
        return
    from psycopg.rows import dict_row

    with psycopg.connect(before_url, row_factory=dict_row, connect_timeout=10) as earlier:
        terms = {tuple(row.values()) for row in earlier.execute(_BY_TERMS, touched)}
        if months := list(ended(database, _perhaps(database, touched, terms))):
            raise ClosedMonthsTouched(months)
        if months := list(ended(database, _by_total(database, touched))):
            raise ClosedMonthsTouched(months)
        if months := list(ended(database, _other_fees(database, earlier, touched))):
            raise ClosedMonthsTouched(months)
        after = list(database.execute(_BILLED, touched))
        before = {tuple(row.values()) for row in earlier.execute(_BILLED, touched)} if after else set()
    other = [row for row in after if tuple(row.values()) not in before and _is_other(row)]
    if months := list(ended(database, _by_month(other))):
        raise ClosedMonthsTouched(months)


def _by_total(database: Connection, touched: Mapping[str, Any]) -> list[ClosedMonth]:
    """Months with tiers or packages in which something changes, by the account's own calendar."""
    rows = database.execute(_TIERED, touched).fetchall()
    calendars = _calendars(database, {row["account"] for row in rows})
    found = {
        (row["account"], row["month"])
        for row in rows
        if row["starts"] < max(row["used_until"], billing_month(calendars[row["account"]], row["month"]).end)
    }
    return [ClosedMonth(*key, is_certain=False) for key in sorted(found)]


def _touched(database: Connection, changes: Sequence[Change], ends: datetime | None) -> dict[str, Any] | None:
    """The parameters of `_BILLED`; None where nothing begins before a month that may have ended."""
    row = database.execute("SELECT date_trunc('month', now() AT TIME ZONE 'UTC' + %s) AS first", [FURTHEST_ZONE])
    last = (row.fetchone() or {})["first"].replace(tzinfo=UTC) + FURTHEST_ZONE
    begun = [
        (change, starts)
        for change in changes
        if change.op in ("c", "u", "d") and (starts := _starts(change, ends)) is not None and starts < last
    ]
    accounts = [(change.after["account"], starts) for change, starts in begun if change.topic is CatalogTopic.ACCOUNTS]
    every = [(change.after, starts) for change, starts in begun if change.topic is CatalogTopic.PRICES]
    prices = [(price, starts) for price, starts in every if price["model"] != PLAN_MODEL]
    fees = [(price, starts) for price, starts in every if price["model"] == PLAN_MODEL]
    if not accounts and not every:
        return None
    return {
        "earliest": FURTHEST_ZONE,
        "accounts": [account for account, _ in accounts],
        "account_starts": [starts for _, starts in accounts],
        "plans": [price["plan"] for price, _ in prices],
        "models": [price["model"] for price, _ in prices],
        "meters": [price["meter"] for price, _ in prices],
        "currencies": [price["currency"] for price, _ in prices],
        "price_starts": [starts for _, starts in prices],
        "fee_plans": [price["plan"] for price, _ in fees],
        "fee_currencies": [price["currency"] for price, _ in fees],
        "fee_starts": [starts for _, starts in fees],
    }


def _other_fees(database: Connection, earlier: Connection, touched: Mapping[str, Any]) -> list[ClosedMonth]:
    """Months in which plans would cost other fees; what they come to may also depend on usage."""
    rows = list(database.execute(_WITH_PLANS, touched)) + list(earlier.execute(_WITH_PLANS, touched))
    accounts = sorted({row["account"] for row in rows})
    if not accounts:
        return []
    now = (database.execute("SELECT now() AS now").fetchone() or {})["now"]
    last = (now.astimezone(UTC) + FURTHEST_ZONE).date().replace(day=1)
    starts = max(min([*touched["account_starts"], *touched["fee_starts"]]), FIRST_WALKED)
    first = (starts - FURTHEST_ZONE).date().replace(day=1)
    found = []
    for _ in range(MAX_MONTHS_OF_FEES):
        last = (last - timedelta(days=1)).replace(day=1)
        if last < first:
            break
        before, after = (_fees(connection, last, accounts) for connection in (earlier, database))
        found += [
            ClosedMonth(account, last, is_certain=False, priced="the fees of plans")
            for account in accounts
            if before.get(account) != after.get(account)
        ]
    return sorted(found, key=lambda month: (month.account, month.month))


def _fees(connection: Connection, month: date, accounts: Sequence[str]) -> Mapping[str, Any]:
    return read_plan_months(connection, month, lambda: read_periods(connection, month), accounts).every


def _perhaps(database: Connection, touched: Mapping[str, Any], terms: Collection[tuple[Any, ...]]) -> list[ClosedMonth]:
    """Months with usage that prices of more than one model, or with conditions, may be for, or by an alias: what they
    become only the audit knows, which reads the events. `terms`: the rows of `_BY_TERMS` before the change.
    """
    aliases = list(database.execute(_ALIASES, touched))
    rows = [row for row in database.execute(_BY_TERMS, touched) if tuple(row.values()) not in terms]
    names = ("models", "meters", "currencies", "price_starts", "plans")
    for model, *of_meter, plan in zip(*(touched[name] for name in names), strict=True):
        priced = PricedModel.parse(model)
        meter, currency, starts = of_meter if priced.aliased is None else (None, None, of_meter[-1])
        of_aliases = {alias["name"] for alias in aliases if alias["plan"] == plan and priced.names(alias["aliased"])}
        for name in sorted(of_aliases | (set() if priced.is_plain else {*priced.members})):
            prefix = name.removesuffix(ANY) if name.endswith(ANY) else None
            parameters = [meter, currency, starts, starts, name, prefix, prefix, plan, touched["earliest"]]
            rows += database.execute(_PERHAPS, parameters)
    used = {tuple(row[name] for name in ("account", "month", "day", "model", "meter", "currency")): row for row in rows}
    found: dict[tuple[str, date], ClosedMonth] = {}
    for row in used.values():
        month = found.setdefault(
            (row["account"], row["month"]), ClosedMonth(row["account"], row["month"], is_certain=False)
        )
        month.billed[row["currency"]] += row["amount"]
    return [found[key] for key in sorted(found)]


def _starts(change: Change, ends: datetime | None) -> datetime | None:
    """From when on a change differs; None for plans, which have only names."""
    if change.topic not in (CatalogTopic.ACCOUNTS, CatalogTopic.PRICES):
        return None
    begins = datetime.fromisoformat(change.after["effective_from"] or change.after["changed_at"])
    if change.op != "d":
        return begins
    assert ends is not None
    return max(begins, ends) if change.topic is CatalogTopic.PRICES else ends


def _is_other(row: Mapping[str, Any]) -> bool:
    return row["is_tiered"] or (row["currency"], row["unit_price"]) != (row["new_currency"], row["new_unit_price"])


def _by_month(rows: Sequence[Mapping[str, Any]]) -> list[ClosedMonth]:
    found: dict[tuple[str, date], ClosedMonth] = {}
    by_total = {(row["account"], row["month"]) for row in rows if row["is_tiered"]}
    for row in rows:
        key = row["account"], row["month"]
        month = found.setdefault(key, ClosedMonth(*key, is_certain=key not in by_total))
        month.billed[row["currency"]] += row["quantity"] * row["unit_price"]
        if row["new_unit_price"] is not None:
            month.becomes[row["new_currency"]] += row["quantity"] * row["new_unit_price"]
    return [found[key] for key in sorted(found)]


def ended(database: Connection, months: Sequence[ClosedMonth]) -> Iterator[ClosedMonth]:
    """Those that have ended by the account's own calendar."""
    if not months:
        return
    now = (database.execute("SELECT now() AS now").fetchone() or {})["now"]
    calendars = _calendars(database, {month.account for month in months})
    for month in months:
        is_same = month.is_certain and month.billed == month.becomes
        if billing_month(calendars[month.account], month.month).end <= now and not is_same:
            yield month


def _calendars(database: Connection, accounts: Collection[str]) -> Mapping[str, Sequence[ZoneChange]]:
    """The time zones of each of these accounts."""
    found: dict[str, Sequence[ZoneChange]] = dict.fromkeys(accounts, ())
    for row in database.execute(_ZONES, [sorted(accounts)]):
        found[row["account"]] = list(map(ZoneChange, row["starts"], row["zones"]))
    return found


def _named(month: ClosedMonth) -> str:
    becomes = f"becomes {_amounts(month.becomes)}" if month.is_certain else "may change"
    billed = _amounts(month.billed) if month.is_certain or month.billed else month.priced
    return f"{month.account} {month.month:%Y-%m} ({billed} {becomes})"


def _amounts(sums: Mapping[str, Decimal]) -> str:
    return " and ".join(f"{amount.normalize():f} {name}" for name, amount in sorted(sums.items())) or "no price"
