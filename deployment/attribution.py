"""Who changes something in a transaction, and why: for the activity log, and for rows that store it."""

from __future__ import annotations

from typing import Any

import psycopg


def attribute(database: psycopg.Connection[Any], changed_by: str, note: str = "") -> None:
    """Attribute what the open transaction changes. An empty author is the role; an empty note, the row's reason."""
    database.execute(
        "SELECT set_config('weir.changed_by', %s, true), set_config('weir.note', %s, true)", [changed_by, note]
    )
