"""How far `events.ordered` is behind, for the alert and `weir status`: by the wait that is due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from psycopg.types.json import Jsonb

from cli.ordered_events import behind_sentence
from jobs.billing.ordered.state import announce_ordered, behind_seconds
from jobs.runtime.postgres.ownership import Ownership
from metering.reports import ORDERED_BEHIND_SECONDS

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def behind(database: str, waits: list[list[int]], watermark_seconds: int) -> float | None:
    """With F at noon, these waits (first lsn, seconds), and a watermark so many seconds before noon."""
    Ownership.take("ingestion", database, {})
    with psycopg.connect(database, autocommit=True) as connection:
        announce_ordered(connection.cursor(), is_wanted=True)
        connection.execute(
            "UPDATE jobs SET progress = %s WHERE job = 'ingestion'", [Jsonb({"frontier": NOON.isoformat()})]
        )
        connection.execute(
            "UPDATE ordered_events SET next_position = 7, waiting_from = 7, sequence = 6, watermark = %s, waits = %s",
            [NOON - timedelta(seconds=watermark_seconds), Jsonb(waits)],
        )
        return behind_seconds(connection)


@pytest.mark.parametrize("later", [0, 60, 3_600])
def test_a_wait_that_applies_later_changes_not_how_far_the_topic_is_behind(database: str, later: int) -> None:
    assert behind(database, [[1, 60], [1_000, later]], 60) == 0
    assert behind(database, [[1, 60], [1_000, later]], 660) == 600


def test_status_reports_it_beyond_the_limit_of_the_alert(database: str) -> None:
    behind(database, [[1, 60], [1_000, 3_600]], 60 + ORDERED_BEHIND_SECONDS)
    assert behind_sentence(database) == []
    behind(database, [[1, 60], [1_000, 3_600]], 61 + ORDERED_BEHIND_SECONDS)
    assert behind_sentence(database) == [
        f"The topic events.ordered is {ORDERED_BEHIND_SECONDS + 1} s behind: the log of billing says what it waits for."
    ]
