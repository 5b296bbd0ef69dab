"""The basis of an audit, from one version of usage: the position of joins, its F, rules and prices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

import polars as pl
from deltalake import DeltaTable

from jobs.audit.recompute.expected import MAX_ROWS, Pinned
from jobs.audit.tables.retained import RetainedRows
from jobs.joins.config import JoinsConfig
from jobs.joins.correction_horizon import correction_horizon
from jobs.joins.recovery import CLOCK_SKEW
from jobs.joins.timeouts import Timeouts
from jobs.retention.days import oldest_open_day
from jobs.runtime.delta.growth import with_stored_columns
from jobs.runtime.delta.position import position_in
from jobs.runtime.delta.table import FRONTIER, instant_of, open_table
from jobs.runtime.effective_rules import EffectiveRules, parse_history, read_history
from jobs.streams import SCHEMAS, Table


@dataclass(frozen=True)
class Scope:
    """What is audited: all that the tables hold, or what was received from `since` on and occurred before `until`."""

    since: datetime | None = None
    until: datetime | None = None
    max_rows: int = MAX_ROWS

    @property
    def is_everything(self) -> bool:
        """Whether no period was requested."""
        return self.since is None and self.until is None


EVERYTHING = Scope()


def pin(
    usage: DeltaTable, retained: Iterable[RetainedRows], tables: str, present: JoinsConfig, scope: Scope = EVERYTHING
) -> Pinned:
    """The position, F and rules that `usage` was made by; `retained`: the rows that it and the journal still have.

    `present`: the configuration that joins was last started with. Its rules are used for usage without stored rules, as
    of releases before 0.2.0. Versions of accounts and prices that came later than the outcomes are ignored: each is
    priced as known when it was decided.
    """
    history = read_history(usage)[0] or (EffectiveRules(1, present.deciding),)
    versions = {table: open_table(tables, table) for table in (Table.ACCOUNTS, Table.PRICES)}
    accounts, prices = (
        # Of an older release they lack columns until joins begins.
        SCHEMAS[table].empty_table() if found is None else with_stored_columns(found.to_pyarrow_table(), SCHEMAS[table])
        for table, found in versions.items()
    )
    stored = pl.scan_pyarrow_dataset(usage.to_pyarrow_dataset())
    rules_rows = stored.filter(pl.col("rules").is_not_null()).select("lsn", "rules").sort("lsn").collect()
    frontier = instant_of(usage.transaction_version(FRONTIER))
    horizon = correction_horizon(history, present, open_table(tables, Table.JOURNAL))
    since, priced_since = _since(_complete_from(retained), frontier, Timeouts(history), horizon, scope)
    return Pinned(
        position=position_in(usage, Table.JOURNAL).next_lsn,
        frontier=frontier,
        history=history,
        metered=[(lsn, parse_history(rules)[-1].rules) for lsn, rules in rules_rows.iter_rows()],
        accounts=accounts,
        prices=prices,
        known_from=history[0].first,
        since=since,
        priced_since=priced_since,
        until=scope.until,
        rejoin_within=present.rejoin_within,
        max_rows=scope.max_rows,
        decides_contents=scope.is_everything,
    )


def first_log_date(usage: DeltaTable, present: JoinsConfig, scope: Scope) -> date | None:
    """The first log date that can have rows belonging to what was received since `scope.since`."""
    if scope.since is None:
        return None
    history = read_history(usage)[0] or (EffectiveRules(1, present.deciding),)
    return (scope.since - CLOCK_SKEW - _longest(Timeouts(history))).date()


def _complete_from(retained: Iterable[RetainedRows]) -> datetime | None:
    """From when on every row is there that was logged; None where none was removed."""
    return max((datetime.combine(rows.since, time(), UTC) for rows in retained if rows.since is not None), default=None)


def _since(
    complete_from: datetime | None, frontier: datetime | None, timeouts: Timeouts, horizon: timedelta, scope: Scope
) -> tuple[datetime | None, datetime | None]:
    """From when on nothing that belongs together lacks a row that was removed, or is not read (`Pinned.since`), and
    from when on prices may change what is final (`Pinned.priced_since`).

    What was received within the horizon after rows that were removed may lack one of its own, so it is left alone once
    it cannot change any more. `weir retain` removes nothing near to what may, nor near to a month that is open; but it
    removed by a shorter horizon before this one held.
    """
    if complete_from is None:
        return scope.since, None
    whole = max(complete_from + CLOCK_SKEW + _longest(timeouts), scope.since or complete_from)
    if frontier is None:
        return max(whole, complete_from + horizon), None
    since = max(whole, min(complete_from + horizon, frontier - horizon))
    priced_since = max(whole, datetime.combine(oldest_open_day(frontier.date()), time(), UTC))
    return since, priced_since if priced_since < since else None


def _longest(timeouts: Timeouts) -> timedelta:
    return timedelta(microseconds=max(configured.longest_us for configured in timeouts.configured))
