"""I7 and I9: each invoice is what was issued, and its lines are what usage comes to, rounded once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import Any

import psycopg
from psycopg.rows import dict_row

from jobs.audit.check import Check, first_sentence
from jobs.audit.tables.database import STATEMENT_SECONDS
from jobs.billing_progress import Database, Row
from jobs.queries.bills import read_month
from jobs.queries.invoices import last_lines, month_text, numbers_by_issuer, stored_invoices
from jobs.runtime.postgres.address import in_schema
from metering.digits import plain
from metering.invoice_verification import wrong_account, wrong_numbers
from metering.invoices import FEES, USAGE, IssuedLine, Key
from metering.plan_terms import PLAN_MODEL

_ACCOUNT_BATCH = 500
_NONE = "there are no invoices yet"
_NOT_COMPARED = "of each invoice, usage of its account came since or an invoice was voided: none is compared"
# What has changed since is not wrong: the next close corrects it. An invoice corrects its account's earlier months, and
# no later one.
_UNCHANGED = """
    WITH last AS (
        SELECT account, period,
               max(max(usage_position)) OVER (PARTITION BY account ORDER BY period DESC) AS position
        FROM invoices GROUP BY account, period
    ), changed AS (
        SELECT DISTINCT account, period FROM usage_days JOIN last USING (account)
        WHERE date_trunc('month', day)::date = period AND next_position > position
    )
    SELECT DISTINCT period, account FROM invoices
    WHERE (account, period) NOT IN (SELECT account, period FROM changed)
      AND account NOT IN (SELECT account FROM invoice_events WHERE state = 'Voided')
    ORDER BY period, account
"""
# Fees are by the catalog, too: where an account or its plan's terms were changed since its last invoice, the next close
# corrects them. When an account or terms were deleted is not known.
_CHANGED_CATALOG = f"""
    WITH last AS (
        SELECT account, max(at) AS at FROM invoice_events WHERE account = ANY (%(accounts)s) AND state = 'Issued'
        GROUP BY account
    )
    SELECT account FROM last JOIN catalog.account_history AS history USING (account)
    GROUP BY account, at
    HAVING max(history.changed_at) > at OR max(history.holds_until) < 'infinity' OR EXISTS (
        SELECT FROM catalog.prices
        WHERE model = '{PLAN_MODEL}' AND prices.changed_at > last.at AND prices.plan = ANY (array_agg(history.plan))
    ) OR EXISTS (
        SELECT FROM catalog.ended_prices
        WHERE model = '{PLAN_MODEL}' AND ended_prices.plan = ANY (array_agg(history.plan))
    )
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
    by_month: defaultdict[date, list[str]] = defaultdict(list)
    for row in database.execute(_UNCHANGED).fetchall():
        by_month[row["period"]].append(row["account"])
    examined = 0
    broken: list[str] = []
    for month, accounts in by_month.items():
        for start in range(0, len(accounts), _ACCOUNT_BATCH):
            some = accounts[start : start + _ACCOUNT_BATCH]
            last = last_lines(database, some, month)
            lines = read_month(database, month, some).lines
            examined += sum(map(len, last.values()))
            changed = {row["account"] for row in database.execute(_CHANGED_CATALOG, {"accounts": some}).fetchall()}
            broken += _differing(month, lines, last, changed)
    if examined:
        sound = "each line is what its usage comes to"
    else:
        sound = _NOT_COMPARED if numbers_by_issuer(database) else _NONE
    return first_sentence("I7", examined, broken, sound)


def _differing(
    month: date,
    lines: Sequence[Row],
    last: Mapping[tuple[str, str], Mapping[Key, IssuedLine]],
    changed: Collection[str],
) -> Iterator[str]:
    """`changed`: accounts whose fees may be other ones since."""
    present = {_place(line): line for line in lines if line["currency"]}
    issued = {
        (account, currency, key.model, key.meter, key.price_version, key.tier, key.kind): line
        for (account, currency), keys in last.items()
        for key, line in keys.items()
        if key.kind in {USAGE, *FEES}
    }
    for place in sorted(present.keys() | issued.keys(), key=repr):
        line, known = present.get(place), issued.get(place)
        if place[-1] in FEES and place[0] in changed:
            continue
        name = f"{place[3] or place[-1]} of {place[0]}, {place[2] or place[5]}, in {month_text(month)}"
        quantity = line["quantity"] if line else Decimal()
        if known is None:
            yield f"{name}: {plain(quantity)} of usage are on no invoice, at price version {place[4]}"
        elif quantity != known.line.quantity:
            where = f"line {known.line.line} of {known.invoice}"
            yield f"{name}: {where} has {plain(known.line.quantity)}, and usage {plain(quantity)}"
        elif line and line["amount"] != known.line.exact_amount:
            yield f"{name}: line {known.line.line} of {known.invoice} is not what its price makes of its quantity"


def _place(line: Row) -> tuple[Any, ...]:
    kind = line["kind"] if line["kind"] in FEES else USAGE
    return (*(line[name] for name in ("account", "currency", "model", "meter", "price_version", "tier")), kind)
