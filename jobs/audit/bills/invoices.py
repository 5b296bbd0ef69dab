"""I7 and I9: each invoice is what was issued, and its lines are what usage comes to, rounded once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property, partial
from typing import Any

import psycopg
from psycopg.rows import dict_row

from jobs.audit.check import Check, first_sentence
from jobs.audit.tables.database import STATEMENT_SECONDS
from jobs.billing.staged import IS_BILLED
from jobs.billing_progress import Database, Row
from jobs.queries.bills import TIER_INCLUDED, read_month
from jobs.queries.catalog_changes import CHANGES
from jobs.queries.counted_again import counted_again
from jobs.queries.invoices import (
    charged_lines,
    closed_moneys,
    last_lines,
    money_of,
    month_text,
    numbers_by_issuer,
    stored_invoices,
)
from jobs.queries.pools import POOLED_IN, pools_of
from jobs.runtime.postgres.address import in_schema
from metering.digits import exact_sum, plain
from metering.invoice_verification import wrong_account, wrong_numbers
from metering.invoices import FEES, USAGE, IssuedLine, Key, Money
from metering.plan_terms import PLAN_MODEL

_ACCOUNT_BATCH = 500
_NONE = "there are no invoices yet"
_NOT_COMPARED = "of each invoice, usage of its account came since or an invoice was voided: none is compared"
# Of each month and currency: up to where usage and the activity log are on an invoice. An invoice corrects earlier
# months of its account, and no later one; one that is issued again is of its own currency alone. What has changed since
# is not wrong: the next close corrects it. What was voided is on no invoice until it is issued again. The row without a
# currency is of those that no invoice has.
_LAST = """
    WITH voided AS (SELECT invoice FROM invoice_events WHERE state = 'Voided'),
    currencies AS (
        SELECT DISTINCT account, currency FROM invoices UNION ALL SELECT DISTINCT account, NULL FROM invoices
    ),
    months AS (
        SELECT account, period, currencies.currency,
               max(usage_position) FILTER (WHERE voided.invoice IS NULL) AS position,
               max(activity_number) FILTER (WHERE voided.invoice IS NULL) AS activity_number,
               max(frontier) FILTER (WHERE voided.invoice IS NULL) AS frontier,
               bool_or(
                   voided.invoice IS NOT NULL AND invoices.currency = currencies.currency
                   AND NOT EXISTS (SELECT FROM invoices AS next WHERE next.replaces = invoices.invoice)
               ) AS is_voided
        FROM invoices JOIN currencies USING (account) LEFT JOIN voided USING (invoice)
        WHERE replaces IS NULL OR invoices.currency = currencies.currency
        GROUP BY account, period, currencies.currency
    )
    SELECT account, period, currency, coalesce(is_voided, false) AS is_voided, max(position) OVER later AS position,
           max(activity_number) OVER later AS activity_number, max(frontier) OVER later AS frontier
    FROM months WINDOW later AS (PARTITION BY account, currency ORDER BY period DESC)
    ORDER BY period, account
"""
# Usage of one member of a pool is another share of its tiers for all.
_OF_POOLS = f"""
    (
        SELECT account, account FROM unnest(%(accounts)s::text[]) AS asked (account) UNION {POOLED_IN}
    ) AS of_pools (account, member)
"""
_USED = f"""
    SELECT of_pools.account, currency, max(next_position) AS position
    FROM {_OF_POOLS} JOIN usage_months ON usage_months.account = member
    WHERE usage_months.month = %(month)s GROUP BY 1, 2
"""
# What waited until F has passed its deadline is billed then, perhaps without a row of usage: the position stays. What
# corrects it has waited with it, has no deadline of its own, and may be in another currency or month.
_EXPIRED = f"""
    WITH RECURSIVE waited AS (
        SELECT of_pools.account, currency, meter, hold_until, corrects_lsns
        FROM {_OF_POOLS} JOIN stragglers ON stragglers.account = member
        WHERE (hold_until IS NOT NULL OR corrects_lsns IS NOT NULL)
          AND settled > 0 AND decided_lsn IS NULL AND {IS_BILLED}
          AND coalesce(day, window_start::date) >= %(month)s
          AND coalesce(day, window_start::date) < (%(month)s::date + interval '1 month')::date
        UNION
        SELECT waited.account, waited.currency, meter, corrected.hold_until, corrected.corrects_lsns
        FROM waited CROSS JOIN LATERAL unnest(waited.corrects_lsns) AS named (usage_lsn)
        JOIN stragglers AS corrected USING (usage_lsn, meter)
        WHERE waited.hold_until IS NULL AND corrected.settled > 0 AND corrected.decided_lsn IS NULL
    )
    SELECT account, currency, max(hold_until) AS until FROM waited WHERE hold_until IS NOT NULL GROUP BY 1, 2
"""
_MONEY = """
    SELECT DISTINCT ON (account, currency) account, currency, minor_unit, rounding FROM invoices
    WHERE account = ANY (%s) ORDER BY account, currency, usage_position DESC, number DESC
"""
# Fees, and which units a plan includes, are by the catalog, too. A table that was emptied is of all accounts.
_CHANGED_CATALOG = f"""
    WITH changes AS ({CHANGES})
    SELECT account, max(number) AS number FROM (
        SELECT side ->> 'account' AS account, number FROM changes WHERE target = 'catalog.accounts'
        UNION ALL
        SELECT history.account, number FROM changes JOIN catalog.account_history AS history ON plan = side ->> 'plan'
        WHERE target = 'catalog.prices' AND side ->> 'model' = '{PLAN_MODEL}'
        UNION ALL
        SELECT NULL, number FROM changes WHERE side IS NULL
    ) AS of_accounts GROUP BY account
"""


def check_invoices(postgres_url: str) -> Iterator[Check]:
    """I7 and I9 of all invoices, in one snapshot of the database."""
    with psycopg.connect(in_schema(postgres_url), row_factory=dict_row, connect_timeout=10) as database:
        database.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        database.read_only = True
        for setting, value in (("TimeZone", "UTC"), ("statement_timeout", f"{STATEMENT_SECONDS}s")):
            database.execute("SELECT set_config(%s, %s, true)", [setting, value])
        yield lines_of_usage(database)
        yield unchanged(database)


def unchanged(database: Database) -> Check:
    """I9: hashes, chain, arithmetic, numbers and corrections of all invoices."""
    examined, broken = 0, []
    for stored in stored_invoices(database):
        examined += len(stored.invoices)
        broken += wrong_account(stored)
    broken += wrong_numbers(numbers_by_issuer(database))
    return first_sentence("I9", examined, broken, "each invoice is what was issued" if examined else _NONE)


def lines_of_usage(database: Database) -> Check:
    """I7: where nothing came since, the last line of each key is what usage of its month comes to now."""
    months: defaultdict[date, dict[str, dict[str | None, Row]]] = defaultdict(dict)
    for row in database.execute(_LAST).fetchall():
        months[row["period"]].setdefault(row["account"], {})[row["currency"]] = row
    activity = _Activity(database)
    examined = 0
    broken: list[str] = []
    for month, invoiced in months.items():
        accounts = list(invoiced)
        for start in range(0, len(accounts), _ACCOUNT_BATCH):
            some = accounts[start : start + _ACCOUNT_BATCH]
            parameters = {"accounts": some, "month": month}
            used, expired = (database.execute(query, parameters).fetchall() for query in (_USED, _EXPIRED))
            compared = _Compared(
                invoiced,
                {(row["account"], row["currency"]): row["position"] for row in used},
                {(row["account"], row["currency"]): row["until"] for row in expired},
            )
            every = last_lines(database, some, month)
            closed = closed_moneys(database, some, month, every)
            charged = charged_lines(month, every, _moneys(database, some).get, closed)
            there = read_month(database, month, some, charged=charged).lines
            last = {key: lines for key, lines in every.items() if compared.has(*key)}
            lines = [line for line in there if line["currency"] and compared.has(line["account"], line["currency"])]
            examined += sum(map(len, last.values()))
            broken += _differing(month, lines, last, partial(activity.since, compared, month))
    if examined:
        sound = "each line is what its usage comes to"
    else:
        sound = _NOT_COMPARED if numbers_by_issuer(database) else _NONE
    return first_sentence("I7", examined, broken, sound)


def _moneys(database: Database, accounts: Sequence[str]) -> Mapping[tuple[str, str], Money]:
    """By account and currency: how its last close rounded."""
    return {(row["account"], row["currency"]): money_of(row) for row in database.execute(_MONEY, [accounts]).fetchall()}


@dataclass(frozen=True)
class _Compared:
    """Which currencies of a month are compared. `invoiced`: rows of _LAST; `used`: up to where there is usage of it;
    `expired`: the last deadline with which something that waited was billed.
    """

    invoiced: Mapping[str, Mapping[str | None, Row]]
    used: Mapping[tuple[str, str | None], int | None]
    expired: Mapping[tuple[str, str | None], datetime]

    def row(self, account: str, currency: str) -> Row:
        return self.invoiced[account].get(currency) or self.invoiced[account][None]

    def has(self, account: str, currency: str) -> bool:
        last = self.row(account, currency)
        if last["is_voided"] or last["position"] is None:
            return False
        billed: int = last["position"]
        expired = self.expired.get((account, currency))
        is_later = expired is not None and expired > last["frontier"]
        return not is_later and (self.used.get((account, currency)) or 0) <= billed


@dataclass(frozen=True)
class _Since:
    """What the activity log has of an account since its last invoice: other terms, or users counted again."""

    has_other_terms: bool
    counted_again: Collection[str]
    """The meters of them."""


@dataclass(frozen=True)
class _Activity:
    """The activity log, read only where anything differs."""

    database: Database

    @cached_property
    def _changes(self) -> Mapping[str | None, int]:
        return {
            row["account"]: row["number"] for row in self.database.execute(_CHANGED_CATALOG, {"after": 0}).fetchall()
        }

    @cached_property
    def _counted_again(self) -> Mapping[tuple[str, str], int]:
        return counted_again(self.database)

    def since(self, compared: _Compared, month: date, account: str, currency: str) -> _Since:
        """Of an account and currency; what came since an invoice of before 0077 nobody knows."""
        known: int | None = compared.row(account, currency)["activity_number"]
        terms = max(self._changes.get(key, 0) for key in (account, None))
        meters = {key for key, number in self._counted_again.items() if number > (known or 0)}
        if meters:
            pooled = {account}.union(pools_of(self.database, month, [account]).get(account, ()))
            meters = {key for key in meters if key[0] in pooled}
        return _Since(known is None or terms > known, {meter for _, meter in meters})


def _differing(
    month: date,
    lines: Sequence[Row],
    last: Mapping[tuple[str, str], Mapping[Key, IssuedLine]],
    since: Callable[[str, str], _Since],
) -> Iterator[str]:
    """`since`: of an account and currency."""
    present = {_place(line): line for line in lines}
    issued = {
        (account, currency, key.model, key.meter, key.price_version, key.tier, key.kind): line
        for (account, currency), keys in last.items()
        for key, line in keys.items()
        if key.kind in {USAGE, *FEES}
    }
    places = present.keys() | issued.keys()
    included = {
        (account, currency, meter) for account, currency, _, meter, _, tier, _ in places if tier == TIER_INCLUDED
    }
    before = _included_too_much(issued)
    for place in sorted(places, key=repr):
        line, known = present.get(place), issued.get(place)
        sentence = _difference(month, place, line, known)
        if sentence is None:
            continue
        account, currency, _, meter, *_, kind = place
        found = since(account, currency)
        if meter in found.counted_again or (kind in FEES and found.counted_again):
            continue
        if found.has_other_terms and (kind in FEES or (account, currency, meter) in included):
            continue
        if any(of == (account, currency, meter) or (kind in FEES and of[:2] == (account, currency)) for of in before):
            continue
        yield sentence


def _included_too_much(issued: Mapping[tuple[Any, ...], IssuedLine]) -> set[tuple[Any, ...]]:
    """(account, currency, meter) of which more is included than is used: so a release before billed negative values
    (decision 0138). The next close corrects them, and none would be made while this were a fault.
    """
    used: defaultdict[tuple[Any, ...], list[Decimal]] = defaultdict(list)
    included: defaultdict[tuple[Any, ...], list[Decimal]] = defaultdict(list)
    for (account, currency, _, meter, _, tier, kind), known in issued.items():
        if kind == USAGE:
            used[account, currency, meter].append(known.line.quantity)
            if tier == TIER_INCLUDED:
                included[account, currency, meter].append(known.line.quantity)
    return {of for of, parts in included.items() if exact_sum(parts) > max(exact_sum(used[of]), Decimal())}


def _difference(month: date, place: tuple[Any, ...], line: Row | None, known: IssuedLine | None) -> str | None:
    name = f"{place[3] or place[-1]} of {place[0]}, {place[2] or place[5]}, in {month_text(month)}"
    quantity = line["quantity"] if line else Decimal()
    if known is None:
        return f"{name}: {plain(quantity)} of usage are on no invoice, at price version {place[4]}"
    where = f"line {known.line.line} of {known.invoice}"
    if quantity != known.line.quantity:
        return f"{name}: {where} has {plain(known.line.quantity)}, and usage {plain(quantity)}"
    if line and line["amount"] != known.line.exact_amount:
        return f"{name}: {where} is not what its price makes of its quantity"
    return None


def _place(line: Row) -> tuple[Any, ...]:
    kind = line["kind"] if line["kind"] in FEES else USAGE
    return (*(line[name] for name in ("account", "currency", "model", "meter", "price_version", "tier")), kind)
