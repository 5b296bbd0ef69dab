"""The records that a driver is about to read, stored before it reads: the next start knows where this one failed.

After a driver that did not end cleanly, the next records are scanned first. A position from which nothing was committed
is tried again with a part of the records, until the record that ends the driver is isolated. A record is given up only
if it repeatedly cannot be read or validated alone: people and machines kill drivers too, and a failure to store a
record is the store's fault, or ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from psycopg.types.json import Jsonb

from jobs.runtime.postgres.ownership import Ownership
from metering.vocabulary import End

DIVISOR = 100
FIRST_LOOK = 32
"""So few are looked at first after a failure, then a hundred times as many: what ended a driver comes next, mostly."""
MAX_QUARANTINE_RECORDS = 10_000
"""Where batches have grown so large again, Spark reads on."""
SPARK_READS_AHEAD = 1_000
"""What ended a driver may be as many records behind its batch: twice what Java's client unpacks at a time."""
ALONE_LIMIT = 3
"""How often a record must have ended the driver while nothing else was read."""


@dataclass(frozen=True)
class Attempt:
    """How a driver reads on. `positions`: next offset by partition, where its next batch begins."""

    positions: Mapping[int, int]
    records: int
    """Most records in a batch."""
    quarantine_records: int = 0
    """How many records are scanned before Spark reads any; 0: Spark reads."""
    failures_alone: int = 0
    """How often the record at the position of `partition` has failed to be read or validated alone."""
    partition: int | None = None
    is_blameless: bool = False
    """Whether a failure from now on is no record's: each was validated, or the driver ends for another reason."""

    @property
    def is_quarantined(self) -> bool:
        """Whether a raw scan comes first."""
        return self.quarantine_records > 0

    def remedy(self, topic: str) -> str:
        """Which record of `topic` was alone when the driver failed, and how to go on without it; empty: none was."""
        if self.records > 1 or self.partition is None:
            return ""
        offset = self.positions.get(self.partition, 0)
        return (
            f"this batch held one record alone, {topic}[{self.partition}] offset {offset}; only if the error is about "
            f"it, `weir journal skip {topic} {self.partition} {offset} --reason TEXT` lets ingestion go on without it"
        )

    @property
    def must_give_up(self) -> bool:
        """Whether the next record is the one that no driver can read."""
        return self.records == 1 and self.failures_alone >= ALONE_LIMIT

    @classmethod
    def first_look(cls, positions: Mapping[int, int], most: int) -> Attempt:
        """After a driver that had committed something and then ended, or could not fetch what comes."""
        records = min(FIRST_LOOK, most)
        return cls(positions, records, records)

    @property
    def alone(self) -> Attempt:
        """The same for the next records that can only be read together: they count as one isolated record."""
        return self if self.records == 1 else replace(self, records=1, quarantine_records=1, failures_alone=0)

    def failed(self) -> Attempt:
        """Nothing was committed: the next attempt is a part of this one, until as many records are passed.

        What failed after its record had been validated is tried again as it was: another store, database or release may
        be all that it needed. A record that was to be given up is validated once more then.
        """
        if self.is_blameless:
            return replace(self, failures_alone=min(self.failures_alone, ALONE_LIMIT - 1), is_blameless=False)
        if self.is_quarantined and self.records == 1:
            return replace(self, failures_alone=self.failures_alone + 1)
        passing = self.records if self.is_quarantined else max(self.records, SPARK_READS_AHEAD)
        # A hundredth of many; of fewer, so many parts that the parts and what is in one are about as many.
        part = max(math.isqrt(passing), passing // DIVISOR) if passing > DIVISOR else 1
        return Attempt(self.positions, part, passing)

    def passed(self, records: int, positions: Mapping[int, int], most: int) -> Attempt:
        """Some were committed: when all that failed together are passed, batches grow again, until Spark reads.

        They may be more than `most` if few records fit, because they are large: a scan has its own budget.
        """
        rest = self.quarantine_records - records
        if rest > 0:
            return Attempt(positions, self.records, rest)
        larger = self.records * DIVISOR
        return Attempt(positions, most) if larger >= MAX_QUARANTINE_RECORDS else Attempt(positions, larger, larger)

    def resumed(self, positions: Mapping[int, int], most: int) -> Attempt:
        """Something was committed since, or nothing failed: as before, from `positions`."""
        if not self.is_quarantined:
            return Attempt(positions, most)
        if dict(positions) == dict(self.positions):
            return replace(self, is_blameless=False)
        return Attempt(positions, min(self.records, most), self.quarantine_records)


_COLUMNS = "positions, records, careful_records, failed_alone, partition, blameless"
_LAST = f"SELECT {_COLUMNS} FROM attempts WHERE job = %s AND topic = %s"
_NEXT = f"""
SELECT epoch, (
    SELECT how FROM exits e WHERE e.job = a.job AND e.ended_at >= a.begun_at ORDER BY ended_at DESC LIMIT 1
), {_COLUMNS} FROM attempts a WHERE job = %s AND topic = %s
"""


def _attempt(positions: Mapping[str, int], *others: Any) -> Attempt:
    return Attempt({int(partition): at for partition, at in positions.items()}, *others)


class Attempts:
    """One job's row of `attempts` for one topic."""

    def __init__(self, ownership: Ownership, topic: str) -> None:
        self._ownership = ownership
        self._topic = topic

    def next(self, positions: Mapping[int, int], most: int) -> Attempt:
        """How to go on from `positions`, by what became of the attempt that was written down last."""
        with self._ownership.transaction() as cursor:
            row = cursor.execute(_NEXT, [self._ownership.job, self._topic]).fetchone()
        if row is None:
            return Attempt(positions, most)
        epoch, how_it_ended, *written = row
        last = _attempt(*written)
        # This driver itself may have waited for something, and its predecessor may have decided to end.
        is_failure = epoch != self._ownership.epoch and how_it_ended not in (End.REFUSED, End.FENCED)
        if not is_failure:
            return last.resumed(positions, most)
        if last.positions == dict(positions):
            return last.failed()
        return last.resumed(positions, most) if last.is_quarantined else Attempt.first_look(positions, most)

    def begin(self, attempt: Attempt) -> None:
        """Write down what is read next, and from where."""
        with self._ownership.transaction() as cursor:
            cursor.execute(
                """
                INSERT INTO attempts
                    (job, topic, epoch, positions, records, careful_records, failed_alone, partition, blameless)
                VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)
                ON CONFLICT (job, topic) DO UPDATE SET epoch = excluded.epoch, positions = excluded.positions,
                    records = excluded.records, careful_records = excluded.careful_records,
                    failed_alone = excluded.failed_alone, partition = excluded.partition,
                    blameless = excluded.blameless, begun_at = clock_timestamp()
                """,
                [
                    self._ownership.job,
                    self._topic,
                    self._ownership.epoch,
                    Jsonb({str(partition): at for partition, at in attempt.positions.items()}),
                    attempt.records,
                    attempt.quarantine_records,
                    attempt.failures_alone,
                    attempt.partition,
                    attempt.is_blameless,
                ],
            )

    def blame_nothing(self) -> None:
        """The driver stops for a reason other than its records: the next start continues as this one would have."""
        with self._ownership.transaction() as cursor:
            mine = [self._ownership.job, self._topic]
            cursor.execute("DELETE FROM attempts WHERE job = %s AND topic = %s AND careful_records = 0", mine)
            cursor.execute("UPDATE attempts SET blameless = true WHERE job = %s AND topic = %s", mine)

    def last(self) -> Attempt | None:
        """What was written down last."""
        with self._ownership.transaction() as cursor:
            row = cursor.execute(_LAST, [self._ownership.job, self._topic]).fetchone()
        return None if row is None else _attempt(*row)

    def last_error(self) -> str:
        """Why the driver of the last attempt ended, as far as it could say."""
        with self._ownership.transaction() as cursor:
            cursor.execute(
                "SELECT reason FROM exits WHERE job = %s AND how = %s ORDER BY ended_at DESC LIMIT 1",
                [self._ownership.job, End.CRASHED],
            )
            row = cursor.fetchone()
        return row[0] if row else "the driver ended without a word: Java's memory, the container's, or a kill"
