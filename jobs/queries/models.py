"""Which models are used most: requests, tokens, money and users of a span, beside the span of equal length before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, localcontext
from enum import StrEnum
from functools import partial
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from jobs.queries.bills import read_periods
from jobs.queries.plan_fees import AROUND, read_plan_months
from jobs.queries.reading import Database, select
from metering.meters import Declaration, meaning_of, totals_of
from metering.vocabulary import UsageCause

COLUMNS = (
    *("rank", "model", "currency", "requests", "requests_change", "tokens", "tokens_change", "amount", "amount_change"),
    *("users", "users_change", "peak_minute", "peak_requests"),
)


class Measure(StrEnum):
    """What models are ranked by."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    AMOUNT = "amount"
    USERS = "users"


Key = tuple[str | None, str | None]
"""Model and currency: amounts of two currencies are never compared."""

_METERS = "SELECT meter AS name, unit, sums, aggregation, period, within FROM meters"
_MODELS = """
    WITH minutes AS (
        SELECT model, currency, window_start,
               coalesce(sum(quantity) FILTER (WHERE meter = ANY (%(requests)s)), 0) AS requests,
               coalesce(sum(quantity) FILTER (WHERE meter = ANY (%(tokens)s)), 0) AS tokens,
               coalesce(sum(amount), 0) AS amount,
               bool_or(quantity <> 0 AND price_version > 0 AND (
                   amount IS NULL OR EXISTS (
                       SELECT FROM unnest(
                           %(included_accounts)s::text[], %(included_plans)s::text[], %(included_currencies)s::text[],
                           %(included_meters)s::text[], %(included_starts)s::timestamptz[],
                           %(included_ends)s::timestamptz[]
                       ) AS given (account, plan, currency, meter, starts, ends)
                       JOIN price_ladders AS rung ON rung.plan = given.plan
                       WHERE rung.price_version = usage_windows.price_version
                         AND (given.account, given.currency, given.meter)
                           = (usage_windows.account, usage_windows.currency, usage_windows.meter)
                         AND window_start >= given.starts AND window_start < given.ends
                   )
               )) AS is_by_month
        FROM usage_windows
        WHERE window_start >= %(start)s AND window_start < %(end)s
          AND (%(accounts)s::text[] IS NULL OR account = ANY (%(accounts)s))
        GROUP BY model, currency, window_start
    )
    SELECT model, currency, sum(requests) AS requests, sum(tokens) AS tokens,
           CASE WHEN NOT coalesce(bool_or(is_by_month), false) THEN sum(amount) END AS amount,
           (array_agg(window_start ORDER BY requests DESC, window_start))[1] AS peak_minute,
           max(requests) AS peak_requests
    FROM minutes GROUP BY model, currency
    HAVING sum(requests) <> 0 OR sum(tokens) <> 0 OR sum(amount) <> 0 OR bool_or(is_by_month)
"""
_NOTHING = {"requests": Decimal(0), "tokens": Decimal(0), "amount": Decimal(0)}
MIN_MERGED_ROWS = 200_000
_USED = ("account", "user_id", "model", "currency", "sign")


@dataclass(frozen=True)
class ModelQuery:
    """Models in `[start, end)`, whole minutes; of some accounts or (none) of all."""

    start: datetime
    end: datetime
    by: Measure = Measure.REQUESTS
    accounts: Sequence[str] = ()

    @property
    def before(self) -> tuple[datetime, datetime]:
        """The span of equal length before."""
        return self.start - (self.end - self.start), self.start


@dataclass(frozen=True)
class UserLimits:
    """Up to how much users are counted: a row costs CPU, and a user memory."""

    max_rows: int
    """Of usage that is read, for both spans."""
    max_users: int
    """Of all accounts and models of a span."""


def model_rows(
    database: Database, usage: DeltaTable | None, query: ModelQuery, limits: UserLimits | None = None
) -> Iterator[dict[str, Any]]:
    """Rows with the keys COLUMNS by rank, one per model and currency; ranks of amounts count within a currency.

    Changes are in percent of the span before, null where that has nothing. `amount` is null where tiers or packages
    price any of the usage, or a plan includes any, which only a whole month does: by amount such a row has no rank, and
    comes last. The peak is
    the first minute with the most requests. `users` counts the user ids with usage, from the Delta table; null without
    one, and beyond the limits. What is billed by the day or month as a whole has no minutes, and is left out.
    """
    meters = _meters(database)
    spans = ((query.start, query.end), query.before)
    now, before = (dict(_sums(database, query, span, meters)) for span in spans)
    users = _users(usage, query, limits)
    rows = [_row(key, now[key], before.get(key, _NOTHING), users) for key in now]
    by_currency = query.by is Measure.AMOUNT
    rows.sort(
        key=lambda row: (
            row["currency"] or "" if by_currency else "",
            by_currency and row["amount"] is None,
            -(row[query.by] or 0),
            row["model"] or "",
        )
    )
    ranks: Counter[str | None] = Counter()
    for row in rows:
        group = row["currency"] if by_currency else None
        ranks[group] += 1
        yield {"rank": None if by_currency and row["amount"] is None else ranks[group], **row}


def _users(usage: DeltaTable | None, query: ModelQuery, limits: UserLimits | None) -> list[Counter[Key] | None]:
    """`users_by_model` of the span and of the one before; None of both without a table or beyond the limits."""
    nothing: list[Counter[Key] | None] = [None, None]
    if usage is None or (limits is not None and rows_to_read(usage, query) > limits.max_rows):
        return nothing
    max_users = None if limits is None else limits.max_users
    found: list[Counter[Key] | None] = []
    for span in ((query.start, query.end), query.before):
        counted = users_by_model(usage, span, query.accounts, max_users)
        if counted is None:
            # The answer has no users: those of the other span do not matter.
            return nothing
        found.append(counted)
    return found


def users_by_model(
    usage: DeltaTable,
    span: tuple[datetime, datetime],
    accounts: Sequence[str],
    max_users: int | None = None,
    min_merged_rows: int = MIN_MERGED_ROWS,
) -> Counter[Key] | None:
    """How many users each model has in a currency, of the accounts' usage that was not taken back.

    Users of two accounts are two, also with one id. None where there are more than `max_users` of all models.
    """
    start, end = span
    where = (pc.field("event_time") >= pa.scalar(start)) & (pc.field("event_time") < pa.scalar(end))
    where &= pc.field("user_id").is_valid() & (pc.field("cause") != UsageCause.DECIDED.value)
    if accounts:
        where &= pc.field("account").isin(list(accounts))
    parts = [pl.DataFrame(schema={name: pl.Int32 if name == "sign" else pl.String for name in _USED})]
    for batch in usage.to_pyarrow_dataset().to_batches(columns=list(_USED), filter=where):
        parts.append(_summed([pl.DataFrame(pa.Table.from_batches([batch])).select(_USED)]))
        # Not with each batch: of many users every one of them would be hashed each time.
        if sum(map(len, parts[1:])) > max(min_merged_rows, len(parts[0])):
            parts = [_summed(parts)]
            if max_users is not None and len(parts[0]) > max_users:
                return None
    found = _summed(parts)
    if max_users is not None and len(found) > max_users:
        return None
    kept = found.filter(pl.col("sign") > 0).group_by("model", "currency").len()
    return Counter({(model, currency): count for model, currency, count in kept.iter_rows()})


def _summed(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Rows with the keys _USED, those of one user of a model added up."""
    return pl.concat(parts).group_by(_USED[:-1]).agg(pl.col("sign").sum())


def rows_to_read(usage: DeltaTable, query: ModelQuery) -> int:
    """How many rows the files hold that `users_by_model` reads for both spans, by their statistics.

    Each is read, also for one account: files are by time.
    """
    files = pl.DataFrame(pa.table(usage.get_add_actions(flatten=True)))
    if files.is_empty() or "min.event_time" not in files.columns:
        return 0 if files.is_empty() else int(files["num_records"].sum())
    begins, ends = query.before[0], query.end
    is_before, is_after = pl.col("max.event_time") < begins, pl.col("min.event_time") >= ends
    read = files.filter(~(is_before | is_after).fill_null(value=False))
    return int(read["num_records"].sum())


def _meters(database: Database) -> dict[str, list[str]]:
    """The meters that add up to requests, and to tokens."""
    known = [
        Declaration(
            row["name"],
            within=row["within"],
            **meaning_of(row["unit"], row["sums"], row["aggregation"], row["period"]),
        )
        for row in database.execute(_METERS).fetchall()
    ]
    counted = totals_of(meter for meter in known if meter.counts_outcomes)
    requests = counted.get("request") or next(iter(counted.values()), ())
    return {"requests": list(requests), "tokens": list(totals_of(known).get("token", ()))}


def _sums(
    database: Database, query: ModelQuery, span: tuple[datetime, datetime], meters: Mapping[str, Any]
) -> Iterator[tuple[Key, dict[str, Any]]]:
    included = _included(database, query, span)
    parameters = {**meters, **included, "start": span[0], "end": span[1], "accounts": list(query.accounts) or None}
    for row in select(database, _MODELS, parameters):
        yield (row["model"], row["currency"]), row


def _included(database: Database, query: ModelQuery, span: tuple[datetime, datetime]) -> Mapping[str, list[Any]]:
    """Parameters of _MODELS: of which meters plans include units, in which months of accounts in or near the span."""
    found: list[tuple[Any, ...]] = []
    month = (span[0] - AROUND).astimezone(UTC).date().replace(day=1)
    while month <= (span[1] + AROUND).astimezone(UTC).date():
        known = partial(read_periods, database, month)
        included = read_plan_months(database, month, known, query.accounts or None).included
        periods = known() if included else {}
        for account, plan, currency, meter, _ in included:
            found.append((account, plan, currency, meter, periods[account].start, periods[account].end))
        month = (month + timedelta(days=31)).replace(day=1)
    names = ("accounts", "plans", "currencies", "meters", "starts", "ends")
    return {f"included_{name}": [row[place] for row in found] for place, name in enumerate(names)}


def _row(
    key: Key, row: Mapping[str, Any], before: Mapping[str, Any], users: Sequence[Counter[Key] | None]
) -> dict[str, Any]:
    now, earlier = (None if counts is None else counts[key] for counts in users)
    return {
        "model": key[0],
        "currency": key[1],
        **{name: row[name] for name in _NOTHING},
        **{f"{name}_change": change_percent(row[name], before[name]) for name in _NOTHING},
        "users": now,
        "users_change": None if now is None or earlier is None else change_percent(Decimal(now), Decimal(earlier)),
        "peak_minute": row["peak_minute"],
        "peak_requests": row["peak_requests"],
    }


def change_percent(now: Decimal | None, before: Decimal | None) -> Decimal | None:
    """By how many percent something grew; None where there was nothing before, or one of them is not known."""
    if now is None or before is None:
        return None
    with localcontext(prec=1_000):  # Python's own 28 digits would be an error
        return None if before <= 0 else round((now - before) * 100 / before, 1)
