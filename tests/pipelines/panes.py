"""Panes of views as analytics stages and stores them."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import psycopg
import pyarrow as pa

from jobs.analytics.config import AnalyticsConfig
from jobs.analytics.pipeline import JOB, STAGED
from tests.pipelines.folding import fold_table


def pane(
    config: AnalyticsConfig, view: str, window_start: datetime, keys: list[str | None], requests: int, **measures: str
) -> dict[str, Any]:
    """A pane of a declared view; `measures` as they are stored."""
    [declared] = [declared for declared in config.declared_views if declared.name == view]
    return {
        "view": view,
        "version": declared.version,
        "window_start": window_start,
        "keys": json.dumps(keys),
        "measures": json.dumps({"requests": str(requests), **measures}),
    }


def fold(
    connection: psycopg.Connection[Any],
    config: AnalyticsConfig,
    *panes: dict[str, Any],
    frontier: datetime | None = None,
) -> None:
    """A batch of analytics with these panes."""
    fold_table(connection, JOB, pa.Table.from_pylist(list(panes), schema=STAGED), config, frontier=frontier)
    connection.commit()
