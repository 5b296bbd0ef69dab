"""Gauges of views: the first keys alone, what `weir view` shows of the same minutes, and nothing that is not whole."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from jobs.analytics.config import AnalyticsConfig
from jobs.analytics.gauges import WINDOW, totals
from jobs.queries.views import Span, Whole, view_rows
from tests.database_rows import write
from tests.pipelines.panes import fold, pane
from tests.streaming.measured import NOON

MINUTE = timedelta(minutes=1)
FRONTIER = NOON + 10 * MINUTE + timedelta(seconds=20)


def config(top: int | None) -> AnalyticsConfig:
    view = {
        "of": "outcomes",
        "by": ["model", "region"],
        "measures": {"tokens_p": {"max": "output_tokens"}, "requests": "count"},
    }
    chosen = {} if top is None else {"gauges": {"top": top}}
    return AnalyticsConfig.model_validate({"views": {"health": {**view, **chosen}}})


def run_with(database: str, declared: AnalyticsConfig) -> None:
    """Panes of three keys in and around the five minutes before the frontier, and analytics configured so."""
    with psycopg.connect(database) as connection:
        fold(
            connection,
            declared,
            *(
                pane(declared, "health", NOON + at * MINUTE, [model, region], requests, tokens_p=str(at))
                for at, model, region, requests in (
                    *((4, "rare", "eu", 999), (10, "rare", "eu", 999)),
                    *((5, "rare", "eu", 1), (9, "rare", "eu", 1)),
                    *((5, "large", "eu", 10), (9, "large", "eu", 20), (7, "large", None, 9)),
                )
            ),
        )
    write(database, "positions", {"job": "analytics", "input": "usage", "next_position": 9, "frontier": FRONTIER})
    instants = dict.fromkeys(("owner_started_at", "started_at", "updated_at"), NOON)
    documents = {"config": Jsonb(declared.model_dump(mode="json")), "progress": Jsonb({})}
    job = {"job": "analytics", "epoch": 1, "owner_pid": 1, "state": "running"}
    write(database, "jobs", {**job, **instants, **documents})


def gauges(database: str) -> dict[tuple[str, ...], float]:
    with psycopg.connect(database) as connection, connection.cursor() as cursor:
        return {labels: value for found in totals("analytics") for _, labels, value in found.read(cursor)}


def test_gauges_are_of_the_first_keys_in_the_five_minutes_before_the_frontier(database: str) -> None:
    run_with(database, config(2))
    assert gauges(database) == {
        ("health", "model=large,region=eu", "requests"): 30,
        ("health", "model=large,region=eu", "tokens_p"): 9,
        ("health", "model=large,region=", "requests"): 9,
        ("health", "model=large,region=", "tokens_p"): 7,
    }


def test_no_two_keys_are_one_series(database: str) -> None:
    """Models and regions are what senders call them: with commas, quotes and equals signs, empty, or left out."""
    declared = config(9)
    run_with(database, declared)
    keys = [("a", "b,region=c"), ("a,region=b", "c"), ("z", ""), ("z", None), ("z", '""'), ("z", "\\"), ("z", "\\\\")]
    with psycopg.connect(database) as connection:
        fold(
            connection,
            declared,
            *(
                pane(declared, "health", NOON + 7 * MINUTE, list(key), 1_000 + place, tokens_p="1")
                for place, key in enumerate(keys)
            ),
        )
    counted = [value for (_, _, measure), value in gauges(database).items() if measure == "requests"]
    assert sorted(counted, reverse=True)[: len(keys)] == [1_006, 1_005, 1_004, 1_003, 1_002, 1_001, 1_000]


def test_differential_with_room_for_all_keys_gauges_are_what_the_view_shows(database: str) -> None:
    declared = config(3)
    run_with(database, declared)
    end = NOON + 10 * MINUTE
    with psycopg.connect(database, row_factory=dict_row) as connection:
        rows: list[dict[str, Any]] = view_rows(
            connection, declared.declared_views[0], Whole(end - WINDOW, end), Span(end - WINDOW, end)
        )
    expected = {
        ("health", f"model={row['model']},region={row['region'] or ''}", name): float(row[name])
        for row in rows
        for name in ("requests", "tokens_p")
    }
    assert len(expected) == 6
    assert gauges(database) == expected


def test_a_view_without_gauges_has_no_series(database: str) -> None:
    run_with(database, config(None))
    assert gauges(database) == {}


@pytest.mark.parametrize(("since", "series"), [(5, 4), (6, 0)])
def test_minutes_that_a_view_has_not_whole_are_no_gauge(database: str, since: int, series: int) -> None:
    run_with(database, config(2))
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE analytics_views SET since = %s", [NOON + since * MINUTE])
    assert len(gauges(database)) == series


def test_gauges_alone_change_no_definition_so_that_panes_go_on() -> None:
    assert len({config(top).declared_views[0].version for top in (None, 1, 50)}) == 1


def test_before_analytics_has_run_there_is_nothing(database: str) -> None:
    assert gauges(database) == {}
