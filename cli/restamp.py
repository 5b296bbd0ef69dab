"""`weir journal restamp`: records with a wrong broker stamp count as received with the record before them."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.options import DEFAULT_DATA_DIR, DataDir
from deployment.errors import CannotRun

_ASK = "INSERT INTO restamps (topic_id, partition, first_offset, last_offset) VALUES (%s, %s, %s, %s)"


def restamp(
    partition: Annotated[int, typer.Argument(min=0, help="The partition.")],
    first: Annotated[int, typer.Argument(metavar="FROM", min=0, help="The first offset.")],
    last: Annotated[int, typer.Argument(metavar="TO", min=0, help="The last offset; it is included.")],
    *,
    topic: Annotated[str | None, typer.Option(help="The topic of events; needed where there are several.")] = None,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait until ingestion has done it.")] = 60.0,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Ignore timestamps of a broker whose clock was wrong: its records count as received with the one before them.

    Only for records that are not in the journal yet; the journal keeps which they were. Without this, ingestion waits
    until the time of their timestamps has come. Exit status 1 if ingestion has not done it in time: it does it later.
    """
    import psycopg

    from cli.journalled import wait_until_journalled
    from deployment.asking import asking_database
    from deployment.event_topics import event_topics
    from deployment.positions import Positions, describe, ends
    from deployment.stack import running_deployment
    from jobs.streams import Table

    stack = running_deployment(data_dir)
    read = event_topics(stack.postgres_url)
    if topic is None and len(read) > 1:
        raise CannotRun(f"Ingestion reads {', '.join(read)}: say which one by --topic.")
    name = topic or read[0]
    described = describe(stack.kafka_bootstrap, [name])[0]
    position, positions = described.position(partition), Positions(stack.tables, stack.postgres_url)
    refuse_wrong_range(
        f"{name}[{partition}]",
        first,
        last,
        read=positions.transaction(Table.JOURNAL, position) or 0,
        end=ends(stack.kafka_bootstrap, [described]).get(position, 0),
    )
    typer.echo(
        f"Offsets {first} to {last} of {name}[{partition}] will count as received when the record before them was."
    )
    with (
        asking_database(stack.postgres_url),
        psycopg.connect(stack.postgres_url, autocommit=True, connect_timeout=10) as database,
    ):
        database.execute(_ASK, [described.topic_id, partition, first, last])
    wait_until_journalled(positions, position, last, timeout)
    typer.echo("Done: they are in the journal.")


def refuse_wrong_range(place: str, first: int, last: int, *, read: int, end: int) -> None:
    """Raise CannotRun unless all offsets [first, last] exist and the journal, which ends before `read`, has none."""
    if last < first:
        raise CannotRun(f"TO is {last}, which is before FROM, {first}: both are offsets, and TO is included.")
    if first < read:
        raise CannotRun(
            f"{place}: the journal holds the offsets below {read}, and what it holds never changes; give offsets from "
            f"{read} on."
        )
    if last >= end:
        raise CannotRun(f"{place} ends before offset {end}: there are no records up to {last}.")
