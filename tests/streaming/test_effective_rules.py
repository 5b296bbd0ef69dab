"""The history of rules in a real table: kept once, copied to each log date, and found whatever became of the files."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
from deltalake import DeltaTable
from psycopg.types.json import Jsonb

from cli.reading import read_only
from cli.rules import rule_rows
from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.journal_rows import journal_rows
from jobs.runtime.delta.compaction import compact
from jobs.runtime.delta.table import LSN, DeltaWriter
from jobs.runtime.effective_rules import TRANSACTION, EffectiveRules, RulesHistory, read_history, rules_text
from jobs.streams import Table
from metering.vocabulary import Disposition
from tests.database_rows import write

FIRST, SECOND = date(2026, 1, 1), date(2026, 1, 2)
NARROW, WIDE = IngestionConfig(accept_past_seconds=3_600), IngestionConfig(accept_past_seconds=86_400)


class Driver:
    """The part of a driver that keeps its rules, as ingestion does it."""

    def __init__(self, tables: Path, epoch: int, config: IngestionConfig) -> None:
        self._writer = DeltaWriter(str(tables), Table.JOURNAL, "ingestion", epoch)
        self._rules = RulesHistory(self._writer, config.deciding)

    def commit(self, day: date) -> bool:
        """A commit of two rows; whether it says something of rules."""
        first = self._writer.next_lsn
        logged_at = datetime(day.year, day.month, day.day, tzinfo=UTC)
        said = self._rules.document(first, logged_at)
        row: dict[str, Any] = {"topic": "events", "partition": 0, "received_at": logged_at}
        rows = [{**row, "lsn": lsn, "offset": lsn, "disposition": Disposition.REJECTED} for lsn in (first, first + 1)]
        kept = pl.DataFrame(rows).with_columns(
            rules=pl.when(pl.col("lsn") == first).then(pl.lit(rules_text(said), pl.String))
        )
        transactions = {LSN: first + 2, **({TRANSACTION: first} if said else {})}
        self._writer.commit(journal_rows(kept, self._writer.schema, None, logged_at), transactions)
        if said:
            self._rules.written(first, logged_at)
        return bool(said)


def test_rules_are_recorded_with_their_first_row_and_once_a_day(tmp_path: Path) -> None:
    def found() -> tuple[list[tuple[int, int]], date | None]:
        history, day = read_history(DeltaTable(f"{tmp_path}/{Table.JOURNAL}"))
        return [(held.first, held.rules["accept_past_seconds"]) for held in history], day

    first = Driver(tmp_path, 1, NARROW)
    assert found() == ([], None)
    assert [first.commit(FIRST), first.commit(FIRST)] == [True, False]
    assert not Driver(tmp_path, 2, NARROW).commit(FIRST)
    assert found() == ([(1, 3_600)], FIRST)
    # Who has decided nothing leaves nothing.
    Driver(tmp_path, 3, WIDE)
    wide = Driver(tmp_path, 4, WIDE)
    assert [wide.commit(FIRST), wide.commit(SECOND), wide.commit(SECOND)] == [True, True, False]
    assert found() == ([(1, 3_600), (7, 86_400)], SECOND)

    compact(str(tmp_path), Table.JOURNAL, before=SECOND + timedelta(days=1), keep=timedelta(hours=0))
    DeltaTable(f"{tmp_path}/{Table.JOURNAL}").delete(f"log_date = DATE '{FIRST}'")
    assert found() == ([(1, 3_600), (7, 86_400)], SECOND)
    assert Driver(tmp_path, 5, NARROW).commit(SECOND)
    assert found() == ([(1, 3_600), (7, 86_400), (13, 3_600)], SECOND)
    last = read_history(DeltaTable(f"{tmp_path}/{Table.JOURNAL}"))[0][-1]
    assert last == EffectiveRules(13, NARROW.deciding, datetime(2026, 1, 2, tzinfo=UTC))


def test_weir_rules_lists_the_rules_of_each_job_and_since_when(database: str, tmp_path: Path) -> None:
    midnight = datetime(2026, 1, 1, tzinfo=UTC)
    grace = {"grace_seconds": 900, "late_policy": {"requests": "drop"}}
    with read_only(database) as connection:
        assert list(rule_rows(str(tmp_path), connection)) == []
    Driver(tmp_path, 1, NARROW).commit(FIRST)
    write(database, "session_gaps", {"first_position": 1, "gap": timedelta(minutes=30), "recorded_at": midnight})
    write(database, "rules", {"job": "billing", "first_position": 7, "rules": Jsonb(grace), "since": midnight})
    closed = {"closed_before": midnight, "meter_closed_before": Jsonb({"requests": "2026-01-01T00:00:01+00:00"})}
    later = {"job": "billing", "first_position": 9, "rules": Jsonb(grace), "since": midnight, **closed}
    write(database, "rules", later)
    with read_only(database) as connection:
        assert [tuple(row.values()) for row in rule_rows(str(tmp_path), connection)] == [
            ("ingestion", "journal", 1, midnight, NARROW.deciding),
            ("sessionization", "journal", 1, midnight, {"session_gap_seconds": 1_800}),
            ("billing", "usage", 7, midnight, grace),
            (
                *("billing", "usage", 9, midnight),
                {
                    **grace,
                    "closed_before": "2026-01-01T00:00:00+00:00",
                    "meter_closed_before": {"requests": "2026-01-01T00:00:01+00:00"},
                },
            ),
        ]
