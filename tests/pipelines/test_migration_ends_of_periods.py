"""Rows that wait for the close of their period: each keeps the end that its close was made of."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import psycopg
from alembic import command
from psycopg.types.json import Jsonb

from jobs.runtime.postgres.schema import migrate, migrator
from tests.database_rows import write

END, MINUTE = datetime(2026, 4, 1, tzinfo=UTC), timedelta(minutes=1)
RULES = {
    1: ({"grace_seconds": 900}, None, {}),
    20: ({"grace_seconds": 300, "meter_grace_seconds": {"own": 3_600}}, END - MINUTE, {"shut": END.isoformat()}),
}
"""From which row on: the rules, and what had been shown closed, of all meters and of some."""
CLOSES = {
    (3, "m"): END + 15 * MINUTE,
    (20, "m"): END + 5 * MINUTE,
    (21, "own"): END + 60 * MINUTE,
    (22, "shut"): END,
}


def test_a_row_that_waits_keeps_the_end_of_its_period(database: str) -> None:
    with migrator(database) as config:
        command.downgrade(config, "0055")
    for first, (rules, closed, of_meters) in RULES.items():
        row = {"job": "billing", "first_position": first, "rules": Jsonb(rules), "closed_before": closed}
        write(database, "rules", {**row, "meter_closed_before": Jsonb(of_meters)})
    for (lsn, meter), closes_at in CLOSES.items():
        row = {"usage_lsn": lsn, "meter": meter, "is_correction": True, "cause": "stream", "account": "a"}
        row |= {"first_day": date(2026, 3, 1), "aggregation": "max", "period": "month", "window_start": END}
        write(database, "late_members", {**row, "closes_at": closes_at, "member": "7", "member_rows": 1})
    migrate(database)
    with psycopg.connect(database) as connection:
        found = connection.execute("SELECT usage_lsn, meter, ends_at FROM late_members").fetchall()
    assert {(lsn, meter): at for lsn, meter, at in found} == dict.fromkeys(CLOSES, END)
