"""How far usage is billed, and until when it is closed, as the database says."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import psycopg

from metering.meters import OfMeter

Row = dict[str, Any]
Database = psycopg.Connection[Row] | psycopg.Cursor[Row]
"""What reads one snapshot of Postgres, in UTC, and gives rows by name."""
Progress = tuple[datetime | None, OfMeter[datetime | None]]
"""F of billing, and until when each meter is closed."""


def billing_progress(database: Database) -> Progress:
    """F of billing, and until when each meter is closed; None before billing ever ran."""
    meters = {row["meter"]: row["closed_until"] for row in database.execute("SELECT * FROM closed_meters").fetchall()}
    progress = database.execute("SELECT frontier, closed_until FROM closed_usage").fetchone()
    return (progress["frontier"], OfMeter(progress["closed_until"], meters)) if progress else (None, OfMeter(None))
