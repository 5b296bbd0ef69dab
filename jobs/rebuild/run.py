"""Rebuilds the tables of an application in one transaction: readers see the old tables or the new ones.

If it is killed, nothing has changed; run twice, it gives the same. The application may be running: this takes its place
as its next driver would, and the application continues when the tables are ready.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import obstore
import psycopg

from jobs.rebuild import billing, sessions
from jobs.rebuild.plan import Part, Piece, Plan
from jobs.rebuild.reading import Whole, whole
from jobs.runtime.config import JobConfig
from jobs.runtime.delta.object_store import store_of
from jobs.runtime.delta.position import Position
from jobs.runtime.effective_rules import effective_from
from jobs.runtime.errors import Refused
from jobs.runtime.job import Fold
from jobs.runtime.postgres.meters_table import declare
from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.postgres.rules_backup import Rows, RulesBackup, read_backup, restore, stored_rules, write_backup
from jobs.runtime.postgres.rules_table import RulesTable
from jobs.runtime.postgres.schema_check import refuse_other_schema
from jobs.runtime.postgres.session import Session
from jobs.runtime.postgres.sink import place_position, stage
from jobs.runtime.stored_config import parse_stored_config
from metering.reports import Phase
from metering.vocabulary import Job

PLANS: Mapping[Job, Plan] = {Job.BILLING: billing.PLAN, Job.SESSIONIZATION: sessions.PLAN}
_SCRATCH = """
DROP TABLE IF EXISTS pg_temp.staged, pg_temp.read_decisions, pg_temp.decided, pg_temp.touched, pg_temp.merged
"""
_BATCH = """
INSERT INTO batches (job, first_position, next_position, epoch, records, duration_ms)
VALUES (%(job)s, 1, %(next)s, %(epoch)s, %(records)s,
        extract(epoch FROM clock_timestamp() - transaction_timestamp()) * 1000)
"""
_HIGHEST = "SELECT coalesce(max(version), 0) FROM usage_windows"


@dataclass(frozen=True)
class Known:
    """The rules until now: from the database, or else from their copy beside the tables."""

    config: JobConfig
    history: Rows
    epoch: int


@dataclass(frozen=True)
class Rebuild:
    """Which tables are rebuilt, from which source, and where."""

    job: Job
    tables: str
    postgres_url: str
    config: JobConfig | None = None
    """If no other is stored: that of a first start."""
    tell: Callable[[str], None] = field(default=lambda _: None)

    @property
    def plan(self) -> Plan:
        """How that is done."""
        return PLANS[self.job]

    def run(self) -> dict[str, int]:
        """Rebuild them; returns how many rows they have now, by table.

        Raises Refused where rows of the Delta table were removed, or the rules are unknown; NotYet where the database
        becomes unavailable. Then nothing was changed.
        """
        refuse_other_schema(self.postgres_url)
        whole(self.tables, self.plan.job.reads)
        known = self.known()
        dumped = known.config.model_dump(mode="json")
        ownership = Ownership.take(self.job.value, self.postgres_url, dumped, 1 + known.epoch, is_alone=True)
        try:
            declare(ownership.connection, known.config.declared, are_all=False)
            with ownership.transaction() as cursor:
                cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
                # `weir forget` waits from here on: what it has rewritten until now is read without the name.
                source = whole(self.tables, self.plan.job.reads)
                self._empty(cursor)
                records = self._fold_all(cursor, source, known)
                floor = self._floor(cursor, source.next_lsn)
                self.plan.ending(cursor, known.config, source.next_lsn, floor)
                self._restore(cursor, known)
                history = stored_rules(ownership.connection, self.plan.job)
                if records:
                    values = {"job": self.job.value, "epoch": ownership.epoch, "records": records}
                    cursor.execute(_BATCH, {**values, "next": source.next_lsn})
                counted = {name: _one(cursor, statement) for name, statement in self.plan.counted.items()}
            write_backup(self.tables, self.job.value, RulesBackup(ownership.epoch, dumped, history))
            ownership.connection.execute(
                "UPDATE jobs SET state = %s WHERE job = %s AND epoch = %s",
                [Phase.STOPPED, self.job.value, ownership.epoch],
            )
        finally:
            ownership.close()
        return counted

    def known(self) -> Known:
        """The rules. Raises Refused where neither the database nor the store of the tables has them."""
        beside = read_backup(self.tables, self.job.value)
        with Session.to(self.postgres_url, f"weir rebuild {self.job}") as connection:
            stored = stored_rules(connection, self.plan.job)
            row = connection.execute("SELECT config FROM jobs WHERE job = %s", [self.job.value]).fetchone()
        config_document = row[0] if row and stored else beside.config if beside else row[0] if row else None
        config = self.config
        if config_document is not None:
            config = parse_stored_config(self.job.value, self.plan.job.config, config_document)
        if config is None:
            raise Refused(
                f"neither the database nor {self.tables} has the configuration that {self.job} decided by; give one "
                "with --config FILE: everything is then decided by it"
            )
        history = stored or (beside.history if beside else [])
        return Known(config, history, beside.epoch if beside else 0)

    def _restore(self, cursor: psycopg.Cursor[Any], known: Known, before: int | None = None) -> None:
        """Restore the known rules, those `before` an lsn if given; without known rules nothing changes."""
        if known.history:
            rows = [row for row in known.history if before is None or row["first_position"] < before]
            restore(cursor, self.plan.job, rows)

    def _begin(self, cursor: psycopg.Cursor[Any], known: Known) -> None:
        """Store the rules in the database; where they are unknown, the configuration, as at a first start."""
        restore(cursor, self.plan.job, known.history)
        if not known.history:
            rules = RulesTable(cursor.connection, self.plan.job, known.config.deciding)
            rules.keep(cursor, rules.in_force(1, None))

    def _empty(self, cursor: psycopg.Cursor[Any]) -> None:
        for statement in self.plan.keeping:
            cursor.execute(statement)
        cursor.execute("CREATE TEMP TABLE highest ON COMMIT DROP AS " + _HIGHEST)
        for table in self.plan.emptied:
            cursor.execute(f"DELETE FROM {table}")
        for table in ("batches", "positions"):
            cursor.execute(f"DELETE FROM {table} WHERE job = %s", [self.job.value])

    def _fold_all(self, cursor: psycopg.Cursor[Any], source: Whole, known: Known) -> int:
        """Fold every row as of its place; how many. What decided from a position on is stored when that is reached."""
        job, config, records, before = self.plan.job, known.config, 0, 1
        self._begin(cursor, known)
        parts = self.plan.parts(cursor, config)
        frontier: datetime | None = None
        borders = [part.first for part in parts]
        for rows, after in source.chunks(job.name, self.plan.columns, config.rows_at_once, borders):
            first = rows["lsn"][0].as_py()
            self._restore(cursor, known, before=first)
            part = next((part for part in reversed(parts) if part.first <= first), parts[0])
            for piece in self.plan.pieces(rows, part, ends_table=after.next_lsn >= source.next_lsn):
                frontier = self._fold(cursor, piece, part.config, self._around(piece, parts, frontier))
                place_position(cursor, job, Position(piece.next_lsn, after.table), frontier)
            place_position(cursor, job, after, frontier)
            records, before = records + len(rows), after.next_lsn
            self.tell(f"{records:,} of {source.next_lsn - 1:,} rows of {source.name}")
        self._restore(cursor, known)
        last = Piece(job.staged.empty_table(), before, source.frontier)
        if before > 1:
            around = self._around(last, parts, frontier)
            if job.is_due(cursor, around):
                self._fold(cursor, last, parts[-1].config, around)
            cursor.execute(
                "UPDATE positions SET frontier = %s WHERE job = %s AND input = %s",
                [source.frontier, job.name, job.reads],
            )
        return records

    def _around(self, piece: Piece, parts: Sequence[Part], previous: datetime | None) -> Fold:
        frontier = max((instant for instant in (previous, piece.frontier) if instant is not None), default=None)
        history = tuple(part.effective for part in parts if part.effective is not None)
        rules = effective_from(history, piece.next_lsn)
        return Fold(previous, frontier, piece.next_lsn, is_whole=piece.frontier is not None, rules=rules)

    def _fold(self, cursor: psycopg.Cursor[Any], piece: Piece, config: Any, around: Fold) -> datetime | None:
        stage(cursor, self.plan.job.staged, piece.staged)
        self.plan.job.fold(cursor, config, around)
        cursor.execute(_SCRATCH)
        return around.frontier

    def _floor(self, cursor: psycopg.Cursor[Any], next_lsn: int) -> int:
        """A version that none has had, also in a database that is lost: written down before it is used.

        A window's version grows as the position does, and by 1 with each straggler. So between two rebuilds none grows
        by twice the rows of usage.
        """
        store, place = store_of(self.tables, os.environ), f"_rebuilt/{self.job}.json"
        try:
            last = int(json.loads(bytes(obstore.get(store, place).bytes()))["version"])
        except FileNotFoundError:
            last = 0
        floor = max(last + 2 * next_lsn, _one(cursor, "SELECT coalesce + 1 FROM highest"))
        obstore.put(store, place, json.dumps({"version": floor}).encode(), mode="overwrite")
        return floor


def _one(cursor: psycopg.Cursor[Any], statement: str) -> int:
    row = cursor.execute(statement).fetchone()
    assert row is not None
    return int(row[0])
