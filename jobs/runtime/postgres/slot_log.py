"""How much WAL Postgres retains for a replication slot without a reader: without a limit, until its disk is full."""

from __future__ import annotations

import psycopg

from jobs.runtime.postgres.session import CONNECT_TIMEOUT_SECONDS

UNLIMITED = "-1"


def slot_log_risk(postgres_url: str) -> str | None:
    """A sentence where the server has no limit, None where it has one. Raises psycopg.Error when it does not answer."""
    with psycopg.connect(postgres_url, connect_timeout=CONNECT_TIMEOUT_SECONDS, autocommit=True) as database:
        limit = database.execute("SHOW max_slot_wal_keep_size").fetchone()
    return risk_of(limit[0]) if limit else None


def risk_of(limit: str) -> str | None:
    """The same, of the setting's value."""
    if limit != UNLIMITED:
        return None
    return (
        "max_slot_wal_keep_size is -1: while the catalog is not captured, Postgres retains its log until the disk is "
        "full. Set a limit of what the disk can spare, such as ALTER SYSTEM SET max_slot_wal_keep_size = '10GB', and "
        "SELECT pg_reload_conf(). A slot that exceeds it is lost, and a new snapshot follows."
    )
