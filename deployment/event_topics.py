"""The topics of events that an installation reads, by the configuration that ingestion was started with last."""

from __future__ import annotations

from collections.abc import Collection

import psycopg

from deployment.asking import asking_database
from deployment.errors import CannotRun
from jobs.ingestion.event_topic_settings import ENDING, topics_in

_CONFIG = "SELECT jsonb_build_object('topic', config -> 'topic', 'events', config -> 'events') FROM jobs WHERE job = %s"


def event_topics(postgres_url: str) -> tuple[str, ...]:
    """Their names, in their order; the default where ingestion never ran. Raises CannotRun without a database."""
    with asking_database(postgres_url), psycopg.connect(postgres_url, connect_timeout=10) as database:
        row = database.execute(_CONFIG, ["ingestion"]).fetchone()
    return topics_in(row[0] if row else None)


def refuse_ending_topics(postgres_url: str, topics: Collection[str]) -> None:
    """Before events are sent to `topics`. Raises CannotRun while one of them is being ended: nobody may read them.

    `weir topics remove` has ended it, and ingestion has not been started since.
    """
    with asking_database(postgres_url), psycopg.connect(postgres_url, connect_timeout=10) as database:
        ending = sorted({topic for (topic,) in database.execute(ENDING)} & {*topics})
    if ending:
        raise CannotRun(
            f"The topic {ending[0]} is being ended: the next start of ingestion may leave it out, and what comes into "
            "it from now on would be on no bill. Start ingestion with the new list of topics, and run this again."
        )
