"""How a driver ended, written for its successor: its own metrics are gone before they can be scraped."""

from __future__ import annotations

from contextlib import suppress

import psycopg

from jobs.runtime.postgres.session import Session
from metering.texts import encodable
from metering.vocabulary import End

MAX_REASON = 2_000


def record_exit(postgres_url: str, job: str, how: End, reason: str) -> None:
    """Add a row to `exits`. A database that is the reason keeps none."""
    text = encodable(reason, MAX_REASON)
    with (
        suppress(psycopg.Error),
        Session.to(postgres_url, f"weir {job} exit", options="-c statement_timeout=5s") as connection,
    ):
        connection.execute("INSERT INTO exits (job, how, reason) VALUES (%s, %s, %s)", [job, how, text])
