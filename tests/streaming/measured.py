"""Outcomes in a journal and a usage table, drivers of analytics that fold them, and what they must measure by force."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from deltalake import DeltaTable
from psycopg.rows import dict_row
from pyspark.sql import SparkSession

from jobs.analytics.config import AnalyticsConfig
from jobs.analytics.pipeline import JOB
from jobs.queries.reading import Database
from jobs.runtime.clock import MachineClock
from jobs.runtime.delta.table import FRONTIER, LSN, DeltaWriter, microseconds_of
from jobs.runtime.job import Context
from jobs.runtime.kafka.denied_topics import Denials
from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.postgres.sink import PostgresSink
from jobs.streams import USAGE, Table
from metering.vocabulary import EventType, Outcome, UsageCause
from tests.streaming.journals import Journal, environment

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MODELS, REGIONS, USERS = ("m-1", "m-2"), ("eu", "us", None), tuple(f"u{n}" for n in range(8))
STATUSES = ("completed", "error", "cancelled", None)
MEASURES = {
    "requests": "count",
    "errors": {"count": {"where": {"status": ["error"]}}},
    "users": {"distinct": "user_id"},
    "latency_ms": {"percentiles": "latency_ms"},
    "slowest_ms": {"max": "latency_ms"},
    "fastest_ms": {"min": {"of": "latency_ms", "where": {"status": ["completed"]}}},
    "latency_total_ms": {"sum": "latency_ms"},
    "tokens": {"sum": "output_tokens"},
    "busiest": {"top": {"of": "user_id", "k": 3}},
    "gap_ms": "gaps",
    "error_gap_ms": {"gaps": {"where": {"status": ["error"]}}},
}
REAL = ("slowest_ms", "fastest_ms", "latency_total_ms")
"""Numbers with a floating point, which Spark casts."""
VIEWS = {
    "health": {"of": "outcomes", "by": ["model", "region"], "measures": MEASURES},
    "whole": {
        "of": "outcomes",
        "by": ["model", "region"],
        "measures": {name: measure for name, measure in MEASURES.items() if name not in REAL},
    },
    "accounts": {"of": "outcomes", "by": ["account"], "measures": {"requests": "count"}},
}
"""Of one Spark makes what the driver makes of the others, unless all are Spark's."""
CONFIG = AnalyticsConfig.model_validate({"views": VIEWS})


@dataclass(frozen=True)
class Happened:
    """An outcome; `latency_ms` and `tokens` None: its completion says nothing of them, or it has none."""

    number: int
    at: datetime
    account: str = "a"
    model: str | None = "m-1"
    region: str | None = None
    user: str | None = None
    outcome: Outcome = Outcome.MATCHED
    status: str | None = None
    latency_ms: float | None = None
    tokens: int | None = None
    is_one_event: bool = False

    @property
    def effective_status(self) -> str | None:
        """What a view sees."""
        return self.status or ("completed" if self.outcome is Outcome.MATCHED else None)


def happened(chance: random.Random, number: int) -> Happened:
    """An outcome of the hour from noon on; some are measured by no view."""
    outcome = chance.choices([Outcome.MATCHED, Outcome.ABANDONED, Outcome.ORPHANED, Outcome.SUPERSEDED], [8, 1, 1, 1])[
        0
    ]
    has_report = outcome is not Outcome.ABANDONED
    return Happened(
        number,
        NOON + timedelta(seconds=chance.choice([0, 59.999999, 60, *range(0, 3600, 7)])),
        chance.choice(["a", "b"]),
        chance.choice(MODELS),
        chance.choice(REGIONS),
        chance.choice([*USERS, None]),
        outcome,
        chance.choice(STATUSES) if has_report else None,
        chance.choice([None, chance.randint(0, 5000) / 8]) if has_report else None,
        chance.choice([None, chance.randint(0, 10**10)]) if has_report else None,
        chance.random() < 0.3 and outcome is Outcome.MATCHED,
    )


@dataclass
class Measured:
    """The tables, and the drivers one after the other."""

    spark: SparkSession
    database: str
    tables: Path
    config: AnalyticsConfig = CONFIG
    lsns: dict[int, tuple[int | None, int | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.journal = Journal(self.tables)
        self.usage = DeltaWriter(str(self.tables), Table.USAGE, "joins", 1)

    def accept(self, outcomes: Iterable[Happened]) -> None:
        """Write the events of these outcomes to the journal, in one commit."""
        rows: list[dict[str, Any]] = []
        for one in outcomes:
            first = self.journal.next_lsn + len(rows)
            of_request = {"user_id": one.user, "model": one.model, "region": one.region}
            of_report = {"status": one.status, "latency_ms": one.latency_ms, "output_tokens": one.tokens}
            common = {
                "account": one.account,
                "request_id": f"r{one.number}",
                "event_time": one.at,
                "received_at": one.at,
            }
            request = {**common, **of_request, "type": EventType.REQUEST.value, "family": "request"}
            report = {**common, **of_report, "type": EventType.COMPLETION.value, "family": "completion"}
            if one.is_one_event:
                rows.append({**request, **report, "type": EventType.USAGE.value, "family": "both"})
                self.lsns[one.number] = first, first
            elif one.outcome is Outcome.ABANDONED:
                rows.append(request)
                self.lsns[one.number] = first, None
            elif one.outcome is Outcome.ORPHANED:
                rows.append(report)
                self.lsns[one.number] = None, first
            else:
                rows += [request, report]
                self.lsns[one.number] = first, first + 1
        self.journal.commit(rows)

    def decide(self, signed: Iterable[tuple[Happened, int]], frontier: datetime) -> None:
        """Write these outcomes with their signs to usage, in one commit."""
        first = self.usage.next_lsn
        rows = [self._row(first + n, one, sign) for n, (one, sign) in enumerate(signed)]
        moved = {LSN: first + len(rows), FRONTIER: microseconds_of(frontier)}
        self.usage.commit(pa.Table.from_pylist(rows, schema=USAGE), moved)

    def _row(self, lsn: int, one: Happened, sign: int) -> dict[str, Any]:
        request, completion = self.lsns[one.number]
        return {
            "lsn": lsn,
            "log_date": NOON.date(),
            "logged_at": NOON,
            "account": one.account,
            "request_id": f"r{one.number}",
            "user_id": one.user,
            "model": one.model,
            "status": one.status,
            "outcome": one.outcome.value,
            "request_lsn": request,
            "completion_lsn": completion,
            "event_time": one.at,
            "received_at": one.at,
            "sign": sign,
            "cause": (UsageCause.STREAM if sign > 0 else UsageCause.REJOINED).value,
        }

    def driver(self) -> PostgresSink:
        """A new driver, from what is committed."""
        ownership = Ownership.take(JOB.name, self.database, self.config.model_dump(mode="json"))
        where = environment(self.database, self.tables)
        return PostgresSink(JOB, Context(self.config, where, self.spark, ownership, MachineClock(), Denials()))

    def rows(self, first: int, end: int) -> pa.Table:
        """Rows [first, end) of usage, as the driver itself reads them."""
        wanted = [("lsn", ">=", first), ("lsn", "<", end)]
        table = DeltaTable(f"{self.tables}/{Table.USAGE}")
        return table.to_pyarrow_table(columns=list(JOB.columns(self.config)), filters=wanted)


def reading(database: str) -> psycopg.Connection[Any]:
    """A connection as the queries of `jobs.queries` want it."""
    connection: Database = psycopg.connect(database, row_factory=dict_row)
    connection.execute("SELECT set_config('TimeZone', 'UTC', false)")
    return connection


Key = tuple[datetime, datetime, str | None, str | None]


def windows_of(size: timedelta, hop: timedelta, at: datetime) -> Iterable[tuple[datetime, datetime]]:
    """Each window [n * hop, n * hop + size) that has this instant."""
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    start = epoch + (at - epoch) // hop * hop
    while start + size > at:
        yield start, start + size
        start -= hop


def expected(counts: Counter[Happened], size: timedelta, hop: timedelta) -> dict[Key, list[Happened]]:
    """By window, model and region the outcomes that a view measures, each as often as it counts."""
    found: dict[Key, list[Happened]] = defaultdict(list)
    for one, count in counts.items():
        if one.outcome in (Outcome.MATCHED, Outcome.ABANDONED):
            for start, end in windows_of(size, hop, one.at):
                found[start, end, one.model, one.region] += [one] * count
    return {key: listed for key, listed in found.items() if listed}


def exact_measures(of_window: Sequence[Happened]) -> dict[str, Any]:
    """What the exact measures of the view `health` must be."""
    latencies = [Decimal(str(one.latency_ms)) for one in of_window if one.latency_ms is not None]
    completed = [
        Decimal(str(one.latency_ms))
        for one in of_window
        if one.latency_ms is not None and one.effective_status == "completed"
    ]
    tokens = [one.tokens for one in of_window if one.tokens is not None]
    return {
        "requests": len(of_window),
        "errors": sum(one.effective_status == "error" for one in of_window),
        "slowest_ms": max(latencies, default=None),
        "fastest_ms": min(completed, default=None),
        "latency_total_ms": sum(latencies) if latencies else None,
        "tokens": sum(tokens) if tokens else None,
        "users": len({one.user for one in of_window if one.user is not None}),
        "gap_ms": gaps_ms([one.at for one in of_window]),
        "error_gap_ms": gaps_ms([one.at for one in of_window if one.effective_status == "error"]),
    }


def gaps_ms(instants: Iterable[datetime]) -> dict[str, float] | None:
    """Percentiles of the time from each to the next: the least gap that so many in a hundred are not above."""
    gaps = sorted((later - at) / timedelta(milliseconds=1) for at, later in pairwise(sorted(instants)))
    percents = (50, 90, 95, 99) if gaps else ()
    return {f"p{percent}": gaps[(percent * len(gaps) + 99) // 100 - 1] for percent in percents} or None
