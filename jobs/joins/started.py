"""The configuration that joins was started with last: for whoever judges what it has made, or removes it."""

from __future__ import annotations

from typing import Any

import psycopg

from jobs.joins.config import JoinsConfig


def started_config(connection: psycopg.Connection[Any]) -> JoinsConfig:
    """The defaults where it never was started."""
    row = connection.execute("SELECT config FROM jobs WHERE job = 'joins'").fetchone()
    return JoinsConfig.model_validate(row[0]) if row else JoinsConfig()
