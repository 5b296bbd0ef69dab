"""What an audit goes by, as one version of usage says it: how far joins was, with which F, rules and prices."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, time, timedelta

import polars as pl
from deltalake import DeltaTable

from jobs.audit.kept import Kept
from jobs.audit.recomputed import Pinned
from jobs.joins.config import JoinsConfig
from jobs.joins.past import CLOCK_SKEW
from jobs.joins.timeouts import Timeouts
from jobs.runtime.delta.position import position_in
from jobs.runtime.delta.table import FRONTIER, instant_of, open_table
from jobs.runtime.rules_in_force import Held, parse_history, read_history
from jobs.streams import SCHEMAS, Table


def pin(usage: DeltaTable, held: Iterable[Kept], tables: str, present: JoinsConfig) -> Pinned:
    """What `usage` was made from, and by which rules; `held`: what it and the journal still have of their rows.

    `present` rules are those of usage that kept none, as releases before 0.2.0.
    Versions of accounts and prices that came later than the outcomes say nothing of them: each is priced as known when
    it was decided.
    """
    history = read_history(usage)[0] or (Held(1, present.deciding),)
    versions = {table: open_table(tables, table) for table in (Table.ACCOUNTS, Table.PRICES)}
    accounts, prices = (
        SCHEMAS[table].empty_table() if found is None else found.to_pyarrow_table() for table, found in versions.items()
    )
    stored = pl.scan_pyarrow_dataset(usage.to_pyarrow_dataset())
    told = stored.filter(pl.col("rules").is_not_null()).select("lsn", "rules").sort("lsn").collect()
    return Pinned(
        position=position_in(usage, Table.JOURNAL).next_lsn,
        frontier=instant_of(usage.transaction_version(FRONTIER)),
        history=history,
        metered=[(lsn, parse_history(rules)[-1].rules) for lsn, rules in told.iter_rows()],
        accounts=accounts,
        prices=prices,
        since=_since(held, Timeouts(history)),
    )


def _since(held: Iterable[Kept], timeouts: Timeouts) -> datetime | None:
    """From when on nothing that belongs together has lost a row."""
    whole = [one.since for one in held if one.since is not None]
    if not whole:
        return None
    longest = timedelta(microseconds=max(configured.longest_us for configured in timeouts.configured))
    return datetime.combine(max(whole), time(), UTC) + CLOCK_SKEW + longest
