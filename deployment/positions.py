"""How far each application is, read where it keeps its position: with the data, in Delta and in Postgres."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import psycopg
from confluent_kafka import IsolationLevel, TopicCollection, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from deployment.asking import asking_kafka
from jobs.runtime.delta.followed import FollowedTable
from jobs.runtime.delta.table import LSN, open_table
from jobs.runtime.kafka.topic import Topic
from jobs.streams import Table
from metering.reports import OFF_AFTER, Phase

ANSWER_SECONDS = 15.0
JOURNAL_POSITION = "journal"


def describe(bootstrap: str, names: Iterable[str], limit_seconds: float = ANSWER_SECONDS) -> list[Topic]:
    """The topics with their ids. Raises CannotRun when the broker does not answer or lacks one."""
    with asking_kafka(bootstrap) as admin:
        described = admin.describe_topics(TopicCollection(list(names)), request_timeout=limit_seconds)
        return [Topic.of(name, answer.result()) for name, answer in described.items()]


def ends(bootstrap: str, topics: Iterable[Topic]) -> dict[str, int]:
    """Where the topics end now, as the journal's positions must be: next offset by transaction.

    Empty partitions are left out, and so is what an open transaction has not committed.
    """
    found = _offsets(bootstrap, topics, OffsetSpec.latest())  # type: ignore[no-untyped-call]
    return {position: offset for position, offset in found.items() if offset > 0}


def beginnings(bootstrap: str, topics: Iterable[Topic]) -> dict[str, int]:
    """Where the topics begin now, after what retention took: first offset by transaction."""
    return _offsets(bootstrap, topics, OffsetSpec.earliest())  # type: ignore[no-untyped-call]


def _offsets(bootstrap: str, topics: Iterable[Topic], at: OffsetSpec) -> dict[str, int]:
    partitions = {TopicPartition(topic.name, p): topic.position(p) for topic in topics for p in topic.partitions}
    with asking_kafka(bootstrap) as admin:
        answers = admin.list_offsets(
            dict.fromkeys(partitions, at),
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=ANSWER_SECONDS,
        )
        return {partitions[partition]: answer.result().offset for partition, answer in answers.items()}


class Positions:
    """Reads positions; each read is of the newest commit."""

    def __init__(self, tables: str, postgres_url: str) -> None:
        self._tables = tables
        self._postgres_url = postgres_url
        self._followed: dict[Table, FollowedTable] = {}

    def transaction(self, table: Table, name: str) -> int | None:
        """A version that the table's last commit carries; None before the table or the transaction exists."""
        if table in self._followed:
            opened = self._followed[table].refresh()
        else:
            found = open_table(self._tables, table)
            if found is None:
                return None
            self._followed[table] = FollowedTable(found)
            opened = found
        version: int | None = opened.transaction_version(name)
        return version

    def missing(self, required: Mapping[str, int]) -> int:
        """How many records of Kafka the journal lacks until it has reached these next offsets."""
        return sum(max(0, offset - (self.transaction(Table.JOURNAL, name) or 0)) for name, offset in required.items())

    def next_lsn(self, table: Table) -> int:
        """The lsn that the table's next row will have."""
        return self.transaction(table, LSN) or 1

    def joined(self) -> int:
        """The journal's lsn up to which usage was made, exclusive."""
        return self.transaction(Table.USAGE, JOURNAL_POSITION) or 1

    def waiting(self) -> tuple[int, int | None]:
        """How many requests and completions wait for their partner, and the lowest lsn among them."""
        return self.transaction(Table.USAGE, "waiting") or 0, self.transaction(Table.USAGE, "waiting.lsn") or None

    def folded(self, job: str) -> int:
        """The lsn up to which a Postgres sink has folded its input, exclusive."""
        with psycopg.connect(self._postgres_url, connect_timeout=5, autocommit=True) as database:
            row = database.execute("SELECT next_position FROM positions WHERE job = %s", [job]).fetchone()
        return 1 if row is None else int(row[0])

    def runs(self, job: str) -> bool:
        """Whether a job has started on this database, and is not off: it has not stopped, and reports (`OFF_AFTER`)."""
        with psycopg.connect(self._postgres_url, connect_timeout=5, autocommit=True) as database:
            row = database.execute(
                "SELECT state <> %s AND updated_at > clock_timestamp() - %s FROM jobs WHERE job = %s",
                [Phase.STOPPED, OFF_AFTER, job],
            ).fetchone()
        return row is not None and row[0]
