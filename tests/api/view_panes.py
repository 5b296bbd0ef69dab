"""A database with panes of two views, one of them by account."""

from __future__ import annotations

from datetime import timedelta

import psycopg
from psycopg.types.json import Jsonb

from jobs.analytics.config import AnalyticsConfig
from tests.database_rows import write
from tests.pipelines.panes import fold, pane
from tests.streaming.measured import NOON

MINUTE = timedelta(minutes=1)
FRONTIER = NOON + 5 * MINUTE + timedelta(seconds=30)
COUNTED = {"requests": "count"}
CONFIG = AnalyticsConfig.model_validate(
    {
        "views": {
            "health": {
                "of": "outcomes",
                "by": ["model"],
                "measures": {**COUNTED, "ms": {"percentiles": "latency_ms"}, "busiest": {"top": "user_id"}},
            },
            "accounts": {"of": "outcomes", "by": ["account", "model"], "measures": COUNTED},
        },
        "windows": {"hop": {"size": "PT10M", "every": "PT5M"}, "slide": "PT3M"},
    }
)


def fill_views(database: str) -> None:
    """Panes of two accounts, and what analytics leaves beside them."""
    with psycopg.connect(database) as connection:
        fold(
            connection,
            CONFIG,
            *(pane(CONFIG, "health", NOON + at * MINUTE, [key], 2) for at in (0, 4, 12) for key in ("m", None)),
            *(
                pane(CONFIG, "accounts", NOON + at * MINUTE, [account, model], at + 1)
                for at in (0, 4)
                for account in ("acme", "globex", None)
                for model in ("m", None)
            ),
        )
    write(database, "positions", {"job": "analytics", "input": "usage", "next_position": 9, "frontier": FRONTIER})
    instants = dict.fromkeys(("owner_started_at", "started_at", "updated_at"), NOON)
    documents = {"config": Jsonb(CONFIG.model_dump(mode="json")), "progress": Jsonb({})}
    job = {"job": "analytics", "epoch": 1, "owner_pid": 1, "state": "running"}
    write(database, "jobs", {**job, **instants, **documents})
