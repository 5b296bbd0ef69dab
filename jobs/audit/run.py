"""One audit: recompute, correct what has a known cause, wait until billing has it, and prove billing's tables."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa
from pyspark.sql import SparkSession

from jobs.audit import checks
from jobs.audit.bills.invoices import check_invoices
from jobs.audit.bills.journal_decisions import wrong_decisions
from jobs.audit.bills.ladders import wrong_ladders
from jobs.audit.bills.proof import prove_bills, span_of
from jobs.audit.check import Check
from jobs.audit.compare.journal_versions import wrong_versions
from jobs.audit.recompute.basis import EVERYTHING, Scope, first_log_date, pin
from jobs.audit.recompute.expected import Pinned
from jobs.audit.recompute.outcomes import Outcomes, outcomes
from jobs.audit.tables.append import AuditedMeanwhile, append, refuse_unfit
from jobs.audit.tables.database import billing_position, joins_config, stored
from jobs.audit.tables.retained import RetainedRows, has_each_once, retained_rows
from jobs.audit.tables.versions import Versions
from jobs.joins.config import JoinsConfig
from jobs.runtime.delta.table import open_table
from jobs.streams import Table
from metering.instants import Clock

LOOK_SECONDS = 1.0


class NotBilledError(RuntimeError):
    """What was appended is not in the windows yet. The message says what to do."""


@dataclass(frozen=True)
class Audit:
    """Where and how one audit runs."""

    spark: SparkSession
    tables: str
    postgres_url: str
    clock: Clock
    scope: Scope = EVERYTHING
    appends: bool = True
    """False: it reports differences and changes nothing."""
    wait_seconds: float = 600
    """How long billing may take to have the rows that were appended."""
    tell: Callable[[str], None] = field(default=lambda _: None)
    appended: Callable[[pa.Table], None] = field(default=lambda _: None)
    """Called with CORRECTIONS as soon as they are rows of usage."""
    compared: Callable[[int, datetime | None, datetime | None], None] = field(default=lambda _lsn, _f, _since: None)
    """Called with the lsn before which usage was billed when it is compared with windows and days, with billing's F
    then, and with what was received from when on is examined, without what was removed (None: all)."""

    def run(self) -> Iterator[Check]:
        """The checks, in the order in which they are made.

        Raises Refused for tables that this version must not write, NotBilledError where billing does not get on.
        """
        present = joins_config(self.postgres_url)
        found, pinned, corrected = self._append_corrections(present)
        if found is None or pinned is None:
            yield from checks.no_usage(stored(self.postgres_url))
            yield from check_invoices(self.postgres_url)
            return
        made = stored(self.postgres_url, self.scope)
        self.compared(made.billed.position, made.billed.frontier, pinned.since)
        opened = self._opened(present)
        assert opened is not None
        versions, retained = opened
        known = {Table.ACCOUNTS: pinned.accounts, Table.PRICES: pinned.prices}
        first = retained[Table.JOURNAL].first
        versions_differ = wrong_versions(versions.journal, known, first, pinned.position)
        decided = wrong_decisions(versions.journal, versions.usage, retained, pinned.position)
        yield from checks.streamed(found, pinned, [*versions_differ, *decided])
        tables = {Table.JOURNAL: versions.journal, Table.USAGE: versions.usage}
        doubled = [name for name, table in tables.items() if not has_each_once(table, retained[name])]
        yield checks.numbers(retained, made, doubled)
        if (lost := retained[Table.JOURNAL].since) is not None:
            yield Check("I5", 0, 0, f"the journal has lost the days before {lost}, and sessions stay for ever")
        elif self.scope.is_everything:
            yield checks.sessions(versions, made.sessions)
        else:
            yield Check("I5", 0, 0, "sessions have no period; audit without one")
        span = span_of(self.scope, retained[Table.USAGE].since, versions.usage, made.billed)
        proof = prove_bills(versions, made.billed, span)
        beside = wrong_ladders(made.ladders, pinned.prices) + made.roll_ups
        yield checks.windows(proof, span, retained[Table.USAGE].next - made.billed.position, beside)
        yield checks.corrections(found, proof, corrected)
        yield checks.months(made, pinned)
        yield from check_invoices(self.postgres_url)

    def _append_corrections(self, present: JoinsConfig) -> tuple[Outcomes | None, Pinned | None, Counter[str]]:
        """What was found first, the state that it was compared with, and how many rows were appended, by cause."""
        first: tuple[Outcomes, Pinned] | None = None
        corrected: Counter[str] = Counter()
        while True:
            if (opened := self._opened(present)) is None:
                return None, None, corrected
            versions, retained = opened
            pinned = pin(versions.usage, retained.values(), self.tables, present, self.scope)
            found = outcomes(versions, pinned)
            first = first or (found, pinned)
            self.tell(f"{found.outcomes:,} outcomes recomputed, {found.changes:,} rows correct them")
            if not self.appends or not found.changes:
                return *first, corrected
            try:
                after = append(versions.usage, found.corrections, self.clock.now())
            except AuditedMeanwhile as error:
                self.tell(f"{error}; this audit starts over")
                first = None
                continue
            self.appended(found.corrections)
            corrected.update(found.causes)
            self._wait_for_billing(after)
            if found.is_all:
                return *first, corrected

    def _opened(self, present: JoinsConfig) -> tuple[Versions, dict[Table, RetainedRows]] | None:
        """usage, then the journal: what usage was made of is in the journal that is read after it."""
        usage, journal = open_table(self.tables, Table.USAGE), open_table(self.tables, Table.JOURNAL)
        if usage is None or journal is None:
            return None
        refuse_unfit(usage)
        retained = {Table.JOURNAL: retained_rows(journal), Table.USAGE: retained_rows(usage)}
        since = first_log_date(usage, present, self.scope)
        return Versions(self.spark, self.tables, journal, usage, since), retained

    def _wait_for_billing(self, next_lsn: int) -> None:
        """Until billing has folded the usage before `next_lsn`, so that readers see what the audit wrote."""
        deadline = self.clock.monotonic() + self.wait_seconds
        while (rest := next_lsn - billing_position(self.postgres_url)) > 0:
            self.tell(f"waiting until billing has read {rest:,} rows of usage")
            if self.clock.monotonic() >= deadline:
                raise NotBilledError(
                    f"what was found is corrected in usage, but after {self.wait_seconds:g} s billing still has {rest} "
                    "rows of it to fold; look at `weir status`, and audit again when billing makes progress"
                )
            time.sleep(LOOK_SECONDS)
