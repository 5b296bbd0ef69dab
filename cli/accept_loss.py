"""`weir journal accept-loss`: ingestion goes on after records that Kafka's retention deleted before they were read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.author import given_reason, who
from cli.options import DEFAULT_DATA_DIR, DataDir
from deployment.errors import CannotRun

if TYPE_CHECKING:
    from deployment.positions import Positions
    from jobs.runtime.kafka.topic import Topic

_STORE = """
INSERT INTO accepted_losses (topic_id, topic, partition, first_offset, end_offset, reason, accepted_by)
VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING
"""


def accept_loss(
    topic: Annotated[str, typer.Argument(help="The topic of events; one of them, where there are several.")],
    partition: Annotated[int, typer.Argument(min=0, help="The partition.")],
    *,
    reason: Annotated[str, typer.Option("--reason", help="Why they cannot be restored; stored with your name.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait until ingestion goes on.")] = 120.0,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Accept that records are lost: Kafka's retention deleted them before ingestion had read them.

    Ingestion refuses to start at such a gap. After this it goes on with the first record that is left. The lost offsets
    are on no bill; the journal counts them (`weir journal --summary`, column lost) and says which they were, who
    accepted it, and why. Let the producers send these events again first, if they still have them: an event that was
    read already is a duplicate and counts once.

    Only what is gone at this moment is accepted: if retention deletes more before ingestion starts, run it again. Exit
    status 1 if nothing is lost, or ingestion has not gone on in time (it does later).
    """
    import psycopg

    from cli.journalled import wait_until_journalled
    from deployment.asking import asking_database
    from deployment.event_topics import event_topics
    from deployment.positions import Positions, beginnings, describe
    from deployment.stack import running_deployment

    why, stack = given_reason(reason, "these records"), running_deployment(data_dir)
    if topic not in (events := event_topics(stack.postgres_url)):
        names = " and ".join(events)
        raise CannotRun(f"Only records of {names} can be lost like this: the catalog's topics are never cut off.")
    described = describe(stack.kafka_bootstrap, [topic])[0]
    where = f"{topic}[{partition}]"
    if partition not in described.partitions:
        raise CannotRun(f"{topic} has no partition {partition}; it has {len(described.partitions)}, counted from 0.")
    place, positions = described.position(partition), Positions(stack.tables, stack.postgres_url)
    first = read_up_to(positions, described, partition)
    end = beginnings(stack.kafka_bootstrap, [described])[place]
    if end <= first:
        raise CannotRun(f"{where}: nothing is lost. The journal ends before {first}, and Kafka begins at {end}.")
    typer.echo(f"{where}: offsets {first} to {end - 1} were deleted unread. They will be on no bill.")
    if not yes:
        typer.confirm(f"Accept that {end - first} offsets are lost?", abort=True)
    with asking_database(stack.postgres_url), psycopg.connect(stack.postgres_url, connect_timeout=10) as database:
        database.execute(_STORE, [described.topic_id, topic, partition, first, end, why, who()])
    wait_until_journalled(positions, place, end - 1, timeout)
    typer.echo("Done: `weir journal --summary` counts them as lost.")


def read_up_to(positions: Positions, topic: Topic, partition: int) -> int:
    """The next offset that the journal expects. Raises CannotRun where it has never read the topic."""
    from jobs.streams import Table

    if not any(positions.transaction(Table.JOURNAL, topic.position(number)) for number in topic.partitions):
        raise CannotRun(f"The journal has no record of {topic.name} yet: ingestion begins where Kafka does.")
    return positions.transaction(Table.JOURNAL, topic.position(partition)) or 0
