"""The topics of events that an installation reads, by the configuration that ingestion was started with last."""

from __future__ import annotations

import psycopg

from deployment.asking import asking_database
from jobs.ingestion.event_topic_settings import topics_in

_CONFIG = "SELECT jsonb_build_object('topic', config -> 'topic', 'events', config -> 'events') FROM jobs WHERE job = %s"


def event_topics(postgres_url: str) -> tuple[str, ...]:
    """Their names, in their order; the default where ingestion never ran. Raises CannotRun without a database."""
    with asking_database(postgres_url), psycopg.connect(postgres_url, connect_timeout=10) as database:
        row = database.execute(_CONFIG, ["ingestion"]).fetchone()
    return topics_in(row[0] if row else None)
