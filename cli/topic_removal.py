"""What would be missing without a topic of events: its unread records, and requests whose completion may yet come."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    import psycopg

    from deployment.positions import Positions
    from deployment.stack import Deployment
    from jobs.ingestion.topic_removals import Removal

POLL_SECONDS = 0.5
API_STOPS_SECONDS = 15.0
"""After a removal is stored: the API reads it within 4 s, and has until then sent what it acknowledges within 10 s."""


@dataclass(frozen=True)
class Left:
    """What is left of a topic. `unread` None: Kafka no longer has the topic, so nobody knows."""

    topic: str
    unread: int | None
    waiting: int

    @property
    def sentence(self) -> str:
        """What is lost with it; empty: nothing."""
        parts = []
        if self.unread is None:
            parts.append("Kafka no longer has it, so what it held unread is not known")
        elif self.unread:
            parts.append(f"{self.unread} records are unread, and would be on no bill")
        if self.waiting:
            parts.append(
                f"{self.waiting} requests or completions of it wait for the other part, and may be billed without it"
            )
        return f"{self.topic}: {'; '.join(parts)}." if parts else ""


def left_out(tables: str, read: Collection[str]) -> list[str]:
    """The topics that ingestion has read last, by the journal's rules, and that are not among `read`.

    The database was restored, or a start without them was killed before its first commit.
    """
    from jobs.ingestion.topic_removals import topics_listed
    from jobs.runtime.delta.table import open_table
    from jobs.runtime.effective_rules import read_history
    from jobs.streams import Table

    journal = open_table(tables, Table.JOURNAL)
    listed = topics_listed(read_history(journal)[0]) if journal is not None else ()
    return [topic for topic in listed if topic not in read]


def left_of(stack: Deployment, topic: str, timeout_seconds: float) -> Left:
    """What is left of it; waits so long until nothing is unread. Raises CannotRun when a server does not answer."""
    from deployment.positions import Positions
    from deployment.topic_positions import existing, topic_position, unread_records

    positions = Positions(stack.tables, stack.postgres_url)
    found = existing(stack.kafka_bootstrap, [topic]).get(topic)
    if found is None:
        return Left(topic, None, waiting_of(stack, topic, positions))
    deadline = time.monotonic() + timeout_seconds
    while True:
        unread = unread_records(stack.kafka_bootstrap, found, topic_position(stack.kafka_bootstrap, found, positions))
        if not unread or time.monotonic() >= deadline:
            return Left(topic, unread, waiting_of(stack, topic, positions))
        time.sleep(POLL_SECONDS)


@contextmanager
def removing(postgres_url: str) -> Iterator[psycopg.Cursor[Any]]:
    """To change removals of topics. Raises CannotRun."""
    import psycopg

    from deployment.asking import asking_database

    with asking_database(postgres_url), psycopg.connect(postgres_url, connect_timeout=10) as database:
        yield database.cursor()


def read_pending(postgres_url: str) -> list[Removal]:
    """The removals that have not taken effect. Raises psycopg.Error."""
    import psycopg

    from jobs.ingestion.topic_removals import read_removals

    with psycopg.connect(postgres_url, connect_timeout=10) as database:
        return read_removals(database)


def removal_sentences(removals: Iterable[Removal]) -> list[str]:
    """Who removes which topics since when, and what is left to do."""
    found = []
    for removal in removals:
        left = (
            "start ingestion without it, or with it to withdraw the removal"
            if removal.is_checked
            else f"the removal is not finished: unless it runs, run `weir topics remove {removal.topic} --reason TEXT` "
            "again, or start ingestion with the topic to withdraw it"
        )
        since = f"{removal.removed_at:%Y-%m-%dT%H:%M:%SZ}"
        found.append(
            f"The API writes no events to the topic {removal.topic}, which {removal.removed_by} removes since {since}: "
            f"{left}."
        )
    return found


def wait_for_api() -> None:
    """Until the API, which has read that a topic ends, has written its last event to it."""
    time.sleep(API_STOPS_SECONDS)


def waiting_of(stack: Deployment, topic: str, positions: Positions) -> int:
    """How many accepted requests and completions of a topic are not decided: joins has not read them, or they wait."""
    import pyarrow.compute as pc

    from jobs.runtime.delta.table import open_table
    from jobs.streams import Table
    from metering.vocabulary import Disposition, Family

    journal = open_table(stack.tables, Table.JOURNAL)
    if journal is None:
        return 0
    joined, (waiting, lowest) = positions.joined(), positions.waiting()
    start = joined if lowest is None else min(lowest, joined)
    is_half = pc.field("family").isin([Family.REQUEST.value, Family.COMPLETION.value])
    is_its = (pc.field("topic") == topic) & (pc.field("disposition") == Disposition.ACCEPTED.value) & is_half
    halves = journal.to_pyarrow_dataset().to_table(columns=["lsn"], filter=is_its & (pc.field("lsn") >= start))
    usage = open_table(stack.tables, Table.USAGE)
    if not halves.num_rows or usage is None:
        return int(halves.num_rows)
    parts = ["request_lsn", "completion_lsn"]
    since = (pc.field(parts[0]) >= start) | (pc.field(parts[1]) >= start)
    decided = usage.to_pyarrow_dataset().to_table(columns=parts, filter=since)
    known = {lsn for part in parts for lsn in decided[part].to_pylist()}
    undecided = [lsn for lsn in halves["lsn"].to_pylist() if lsn not in known]
    unjoined = sum(lsn >= joined for lsn in undecided)
    return int(unjoined + min(waiting, len(undecided) - unjoined))
