"""`weir what-if`: what other prices, or other rules, would have billed in a period, beside what is live.

Meters that bill a day or month as a whole, and bills, are compared where all of the day or month lies in the period.

Nothing live is changed: it reads one version of the tables and one snapshot of the database, and writes into a schema
of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from psycopg.rows import dict_row

from jobs.audit.recompute.basis import pin
from jobs.audit.recompute.expected import Pinned
from jobs.audit.tables.database import joins_config
from jobs.audit.tables.retained import RetainedRows, retained_rows
from jobs.billing.config import BillingConfig
from jobs.billing.fold import fold
from jobs.billing.staged import STAGED
from jobs.billing.sums import sums
from jobs.joins.price_ladders import refuse_period_tiers
from jobs.joins.recovery import CLOCK_SKEW
from jobs.joins.timeouts import Timeouts
from jobs.replay import shadow
from jobs.replay.assumptions import Assumptions
from jobs.replay.bills import ComparedBills, compared_bills, refuse_pools
from jobs.replay.periods import compared_periods, is_different, with_amounts
from jobs.replay.usage import Tables, replayed
from jobs.runtime.delta.table import LSN, open_to_change
from jobs.runtime.effective_rules import EffectiveRules, History, effective_at
from jobs.runtime.errors import Refused
from jobs.runtime.job import Fold
from jobs.runtime.postgres.rules_table import stored_history
from jobs.runtime.postgres.schema_check import refuse_other_schema
from jobs.runtime.postgres.session import Session
from jobs.runtime.postgres.sink import stage
from jobs.settings.stored_meters import restored
from jobs.streams import Table
from metering.lateness import MAX_FUTURE
from metering.period_meters import Period
from metering.vocabulary import Job, UsageCause

Row = dict[str, Any]
LOOK_SECONDS = 1.0
KEY = ("window_start", "account", "model", "meter", "currency")
NUMBERS = ("live_quantity", "replayed_quantity", "difference_quantity")
AMOUNTS = ("live_amount", "replayed_amount", "difference_amount")
COMPARED = (*KEY, *NUMBERS, *AMOUNTS, "period")
_SCRATCH = "DROP TABLE IF EXISTS pg_temp.staged, pg_temp.read_decisions, pg_temp.decided"
_POSITION = "SELECT next_position, frontier FROM positions WHERE job = %s AND input = %s"
# A price with tiers or packages has no amount in a window: then that of the other side says nothing of the difference.
_SUMS = """
SELECT window_start, account, model, meter, currency, live_quantity, replayed_quantity, is_tiered,
       live_amount IS DISTINCT FROM replayed_amount AS is_other_amount,
       CASE WHEN NOT is_tiered THEN live_amount END AS live_amount,
       CASE WHEN NOT is_tiered THEN replayed_amount END AS replayed_amount
FROM (
    SELECT window_start, account, model, meter, currency,
           coalesce(sum(quantity) FILTER (WHERE is_live), 0) AS live_quantity,
           coalesce(sum(quantity) FILTER (WHERE NOT is_live), 0) AS replayed_quantity,
           sum(amount) FILTER (WHERE is_live) AS live_amount,
           sum(amount) FILTER (WHERE NOT is_live) AS replayed_amount,
           coalesce(bool_or(price_version > 0 AND unit_price IS NULL AND quantity <> 0), false) AS is_tiered
    FROM (
        SELECT true AS is_live, {columns} FROM {live} UNION ALL SELECT false, {columns} FROM {replayed}
    ) AS either WHERE window_start >= %(start)s AND window_start < %(end)s
    GROUP BY 1, 2, 3, 4, 5
) AS both_sides
"""
_WINDOWS = """
SELECT {key}, live_quantity, replayed_quantity, replayed_quantity - live_quantity AS difference_quantity,
       live_amount, replayed_amount,
       CASE WHEN NOT is_tiered THEN coalesce(replayed_amount, 0) - coalesce(live_amount, 0) END AS difference_amount,
       NULL AS period
FROM ({sums}) AS summed
WHERE live_quantity <> replayed_quantity OR is_other_amount
ORDER BY {key}
"""
_TOTALS = """
SELECT account, currency, sum(live_amount) AS live_amount, sum(replayed_amount) AS replayed_amount,
       coalesce(sum(replayed_amount), 0) - coalesce(sum(live_amount), 0) AS difference_amount
FROM ({sums}) AS summed GROUP BY account, currency ORDER BY account, currency
"""


class NotBilledError(RuntimeError):
    """billing has not folded yet what would be compared. The message says what to do."""


@dataclass(frozen=True)
class Compared:
    """What differs, by window (KEY, NUMBERS, AMOUNTS), and the money of all windows by account and currency.

    A day or month that is billed as a whole is a window with a `period`. `periods_left_out`: how many of these lie only
    partly in the compared time. Amounts of a window in which either side has a price with tiers or packages are None,
    and in no total: `bills` have them.
    """

    windows: list[Row]
    totals: list[Row]
    periods_left_out: int = 0
    bills: ComparedBills = field(default_factory=ComparedBills)


@dataclass(frozen=True)
class Replay:
    """The windows of a period [start, end), billed again under `assumed`, into `schema`."""

    tables: str
    postgres_url: str
    start: datetime
    end: datetime
    schema: str
    assumed: Assumptions
    replaces: bool = False
    wait_seconds: float = 60
    """How long billing may take to fold what usage holds."""
    tell: Callable[[str], None] = field(default=lambda _: None)

    def run(self) -> Compared:
        """Do it. Raises Refused where days of the journal are gone, accounts pool, or the schema must not be made;
        NotBilledError.
        """
        refuse_other_schema(self.postgres_url)
        deadline = time.monotonic() + self.wait_seconds
        with Session.to(self.postgres_url, "weir what-if", is_patient=True) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            while True:
                with connection.transaction(), connection.cursor() as cursor:
                    position, frontier = cursor.execute(_POSITION, [Job.BILLING, Table.USAGE]).fetchone() or (1, None)
                    tables, live = self._opened()
                    refuse_pools(connection, self.start, self.end)
                    if not self._is_behind(tables, position):
                        return self._billed(cursor, tables, live, frontier)
                if time.monotonic() >= deadline:
                    raise NotBilledError(
                        f"after {self.wait_seconds:g} s billing has not folded all usage of the period yet; look at "
                        "`weir status`, and try again when it makes progress"
                    )
                self.tell("billing has usage of the period to fold")
                time.sleep(LOOK_SECONDS)

    def _opened(self) -> tuple[Tables, Pinned]:
        """usage, then the journal: what usage was made of is in the journal that is read after it."""
        usage, journal = open_to_change(self.tables, Table.USAGE), open_to_change(self.tables, Table.JOURNAL)
        if usage is None or journal is None:
            raise Refused(f"there is no usage in {self.tables}: nothing was metered yet")
        live = pin(usage, (), self.tables, joins_config(self.postgres_url))
        tables = Tables(journal, usage, date.min)
        since = self._since(live, self.assumed.pinned(live), is_audited=tables.is_audited)
        self._refuse_removed_rows(retained_rows(journal), since)
        return replace(tables, since=since), live

    def _since(self, live: Pinned, assumed: Pinned, *, is_audited: bool) -> date:
        """The log date from which on there is all that may belong to what occurred in the period."""
        within = timedelta(seconds=max(live.longest_content_seconds, assumed.longest_content_seconds))
        waits = [timeout.longest_us for pinned in (live, assumed) for timeout in Timeouts(pinned.history).configured]
        belongs = timedelta(microseconds=max(waits))
        if is_audited:
            belongs = max(belongs, live.rejoin_within, assumed.rejoin_within)
        try:
            return (self.start - MAX_FUTURE - CLOCK_SKEW - belongs - within).date()
        except OverflowError:
            return date.min

    def _refuse_removed_rows(self, rows: RetainedRows, since: date) -> None:
        if rows.since is not None and rows.since > since:
            raise Refused(
                f"the journal has lost the days before {rows.since} (`weir retain`), and this period needs those from "
                f"{since} on; replay a later one"
            )

    def _is_behind(self, tables: Tables, position: int) -> bool:
        """Whether usage of the period is not folded yet, or any decision."""
        if position >= (tables.usage.transaction_version(LSN) or 1):
            return False
        concerns = (pc.field("event_time") >= self.start) & (pc.field("event_time") < self.end)
        concerns |= pc.field("cause") == UsageCause.DECIDED.value
        waiting = tables.usage.to_pyarrow_dataset().count_rows(filter=(pc.field("lsn") >= position) & concerns)
        return bool(waiting > 0)

    def _billed(self, cursor: psycopg.Cursor[Any], tables: Tables, live: Pinned, frontier: datetime | None) -> Compared:
        """Fold it all, in the schema, and compare."""
        history = stored_history(cursor.connection, Job.BILLING.value)
        rules = self.assumed.rules(history or (EffectiveRules(1, BillingConfig().deciding),))
        schema = shadow.make(cursor, self.schema, replaces=self.replaces)
        config, outcomes = BillingConfig(publish=()), 0
        assumed = self.assumed.pinned(live)
        self._refuse_period_tiers(assumed)
        for rows in replayed(tables, live, assumed):
            for piece, effective in _by_rules(rows, rules):
                _fold(cursor, config, sums(piece, effective), Fold(None, None, 1, is_whole=False))
            outcomes += len(rows)
            self.tell(f"{outcomes:,} rows of usage")
        _fold(cursor, config, STAGED.empty_table(), Fold(None, frontier, 1, rules=rules[-1:]))
        found = self._compared(cursor, schema, _periods(assumed))
        self.tell("bills of whole months")
        return replace(
            found,
            bills=compared_bills(
                cursor, (schema, self.schema), self.assumed, assumed.prices, frontier, self.start, self.end
            ),
        )

    def _refuse_period_tiers(self, assumed: Pinned) -> None:
        """Raises Refused, as joins would."""
        for effective in assumed.history:
            meters = restored(effective.rules.get("meters"))
            refuse_period_tiers(assumed.prices, meters, self.end, self.end - self.start)

    def _compared(self, cursor: psycopg.Cursor[Any], live: str, assumed: Mapping[str, Period]) -> Compared:
        of_windows = (*KEY, "quantity", "amount", "price_version", "unit_price")
        columns = sql.SQL(", ").join(map(sql.Identifier, of_windows))
        names = (sql.Identifier(schema, "usage_windows") for schema in (live, self.schema))
        summed = sql.SQL(_SUMS).format(columns=columns, **dict(zip(("live", "replayed"), names, strict=True)))
        period = {"start": self.start, "end": self.end}
        reader = cursor.connection.cursor(row_factory=dict_row)
        key = sql.SQL(", ").join(map(sql.Identifier, KEY))
        windows = reader.execute(sql.SQL(_WINDOWS).format(sums=summed, key=key), period).fetchall()
        totals = reader.execute(sql.SQL(_TOTALS).format(sums=summed), period).fetchall()
        periods = compared_periods(cursor, (live, self.schema), assumed, self.start, self.end)
        differing = [{name: row[name] for name in COMPARED} for row in periods.rows if is_different(row)]
        listed = sorted([*windows, *differing], key=_place) if differing else windows
        return Compared(listed, with_amounts(totals, periods.rows), periods.left_out)


def _periods(assumed: Pinned) -> dict[str, Period]:
    """The meters of a period that any of the assumed rules declares."""
    declared = (meter for effective in assumed.history for meter in restored(effective.rules.get("meters")))
    return {meter.name: meter.of_period.period for meter in declared if meter.of_period is not None}


def _place(row: Row) -> tuple[Any, ...]:
    """By KEY, nulls last, as Postgres orders windows."""
    return tuple((row[name] is None, row[name]) for name in KEY)


def _by_rules(rows: pa.Table, history: History) -> Iterator[tuple[pa.Table, EffectiveRules]]:
    """Rows by lsn → those that the same rules decide, with these."""
    borders: Sequence[int] = [*(effective.first for effective in history[1:]), 2**62]
    first = 0
    for border in borders:
        piece = rows.filter((pc.field("lsn") >= first) & (pc.field("lsn") < border))
        if len(piece):
            yield piece, effective_at(history, max(first, 1))
        first = border


def _fold(cursor: psycopg.Cursor[Any], config: BillingConfig, staged: pa.Table, around: Fold) -> None:
    stage(cursor, STAGED, staged)
    fold(cursor, config, around)
    cursor.execute(_SCRATCH)
