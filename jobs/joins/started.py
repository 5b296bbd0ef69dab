"""The configuration that joins was last started with: to check what it has made, or to remove it."""

from __future__ import annotations

from typing import Any

import psycopg

from jobs.joins.config import JoinsConfig
from jobs.runtime.stored_config import parse_stored_config


def started_config(connection: psycopg.Connection[Any]) -> JoinsConfig:
    """The defaults where it never was started. Raises Refused for a configuration of another version."""
    row = connection.execute("SELECT config FROM jobs WHERE job = 'joins'").fetchone()
    return parse_stored_config("joins", JoinsConfig, row[0]) if row else JoinsConfig()
