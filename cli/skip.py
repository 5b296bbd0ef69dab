"""`weir journal skip`: ingestion passes over a record without validating it. It becomes a dead letter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from cli.author import given_reason, who
from cli.options import DEFAULT_DATA_DIR, DataDir
from deployment.errors import CannotRun

if TYPE_CHECKING:
    import psycopg

    from jobs.runtime.kafka.quarantine.isolated_records import Place
    from jobs.runtime.kafka.topic import Topic

_KNOWN = """
SELECT reason, detail, coalesce(asked_by, 'ingestion'), isolated_at::timestamptz(0)
FROM isolated_records WHERE topic_id = %s AND partition = %s AND "offset" = %s
"""
_WITHDRAW = """
DELETE FROM isolated_records
WHERE topic_id = %s AND partition = %s AND "offset" = %s AND reason = 'skipped' AND journalled_at IS NULL
"""


def skip(
    topic: Annotated[str, typer.Argument(help="The topic: one of events, or one of the catalog's.")],
    partition: Annotated[int, typer.Argument(min=0, help="The partition.")],
    offset: Annotated[int, typer.Argument(min=0, help="The record's offset.")],
    *,
    reason: Annotated[str, typer.Option("--reason", help="Why; stored with your name.")],
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait until ingestion has done it.")] = 60.0,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Skip a record that keeps crashing ingestion: it becomes a dead letter without being validated.

    Only for a record that is not in the journal yet. Its value is kept, but it is on no bill, and a change of the
    catalog does not take effect. Exit status 1 if ingestion has not done it in time (it does it later), or was
    already working on the record (then it was not skipped).
    """
    from cli.journalled import wait_until_journalled
    from deployment.positions import Positions, beginnings, describe, ends
    from deployment.stack import running_deployment
    from jobs.streams import Table

    why = given_reason(reason, "this record")
    stack = running_deployment(data_dir)
    _refuse_other_topic(stack.postgres_url, topic)
    described = describe(stack.kafka_bootstrap, [topic])[0]
    where = f"{topic}[{partition}]"
    if partition not in described.partitions:
        raise CannotRun(f"{topic} has no partition {partition}; it has {len(described.partitions)}, counted from 0.")
    position, positions = described.position(partition), Positions(stack.tables, stack.postgres_url)
    refuse_wrong_offset(
        where,
        offset,
        first=beginnings(stack.kafka_bootstrap, [described])[position],
        read=positions.transaction(Table.JOURNAL, position) or 0,
        end=ends(stack.kafka_bootstrap, [described]).get(position, 0),
    )
    _ask(stack.postgres_url, described, (partition, offset), why)
    typer.echo(f"Offset {offset} of {where} will become a dead letter, `skipped`, and count for nothing.")
    wait_until_journalled(positions, position, offset, timeout)
    if problem := _what_else(stack.tables, topic, (partition, offset)):
        _withdraw(stack.postgres_url, described, (partition, offset))
        raise CannotRun(f"{where}: {problem}")
    typer.echo("Done: `weir dead-letters --reason skipped` shows it.")


def refuse_wrong_offset(place: str, offset: int, *, first: int, read: int, end: int) -> None:
    """Raise CannotRun unless Kafka, [first, end), has the offset and the journal, which ends before `read`, has not."""
    if offset < read:
        raise CannotRun(
            f"{place}: the journal holds the offsets below {read}, and what it holds never changes. If this record was "
            "rejected, `weir dead-letters` shows it, and it is on no bill; if it was accepted, it counts, and only "
            "its producer can correct it."
        )
    if offset < first:
        raise CannotRun(f"{place} begins at offset {first}: Kafka's retention has deleted this record.")
    if offset >= end:
        raise CannotRun(f"{place} ends before offset {end}: there is no record {offset} yet.")


@contextmanager
def _database(postgres_url: str) -> Iterator[psycopg.Connection]:
    """One transaction. Raises CannotRun for a database that does not answer."""
    import psycopg

    from deployment.asking import asking_database

    with asking_database(postgres_url), psycopg.connect(postgres_url, connect_timeout=10) as database:
        yield database


def _refuse_other_topic(postgres_url: str, topic: str) -> None:
    from deployment.event_topics import event_topics
    from jobs.streams import CatalogTopic

    read = (*event_topics(postgres_url), *CatalogTopic)
    if topic not in read:
        raise CannotRun(f"Ingestion reads the topics {', '.join(read)}, and only their records can be skipped.")


def _ask(postgres_url: str, topic: Topic, place: Place, reason: str) -> None:
    from jobs.runtime.kafka.quarantine.isolated_records import add_isolated
    from metering.vocabulary import Isolation

    with _database(postgres_url) as database, database.cursor() as cursor:
        if add_isolated(cursor, topic, place, Isolation.SKIPPED, detail=reason, asked_by=who()):
            return
        known = cursor.execute(_KNOWN, [topic.topic_id, *place]).fetchone()
    if known is None:
        raise CannotRun(f"{topic.name}[{place[0]}]: ingestion is working on this record; run the command again.")
    why, detail, asked_by, when = known
    raise CannotRun(
        f"{topic.name}[{place[0]}]: offset {place[1]} will already become a dead letter, as `{why}`, since {when}, by "
        f"{asked_by}: {detail}"
    )


def _what_else(tables: str, topic: str, place: Place) -> str | None:
    """What became of a record in the journal, where it was not skipped."""
    import pyarrow.compute as pc

    from cli.journal_table import open_journal, rows_in_order
    from metering.vocabulary import Isolation

    journal = open_journal(tables)
    assert journal is not None, "it has a position"
    is_it = (pc.field("topic") == topic) & (pc.field("partition") == place[0]) & (pc.field("offset") == place[1])
    row = next(rows_in_order(journal, ["disposition", "reason"], is_it), None)
    if row is None:
        return (
            f"offset {place[1]} holds no record, only the end of a transaction or an aborted record: nothing was "
            "skipped."
        )
    if row["reason"] == Isolation.SKIPPED:
        return None
    reason = f" ({row['reason']})" if row["reason"] else ""
    return (
        f"ingestion was already working on offset {place[1]}: the journal has it as "
        f"{row['disposition']}{reason}, which never changes. It was not skipped."
    )


def _withdraw(postgres_url: str, topic: Topic, place: Place) -> None:
    with _database(postgres_url) as database:
        database.execute(_WITHDRAW, [topic.topic_id, *place])
