"""What an operator's command does, in the activity log."""

from __future__ import annotations

import psycopg
from psycopg.types.json import Jsonb

from deployment.asking import asking_database


def record_command(
    postgres_url: str, action: str, target: str, made_by: str, details: dict[str, object], *, note: str = ""
) -> None:
    """Add an entry to the activity log, committed. Commands call it before they act.

    `note` says why, `details` is shown as `after`. Raises CannotRun for a database that does not answer.
    """
    with asking_database(postgres_url), psycopg.connect(postgres_url, connect_timeout=10) as database:
        database.execute(
            "SELECT record_activity(%s, %s, %s, %s, NULL, %s)", [action, target, made_by, note, Jsonb(details)]
        )
