"""`weir view` shows what panes hold, in every kind of window; who may see which panes; a fold without any view."""

from __future__ import annotations

import csv
import io
import json
import random
import string
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb
from typer.testing import CliRunner, Result

from cli.main import app
from jobs.analytics import fold as analytics_fold
from jobs.analytics import fold_panes
from jobs.analytics.config import AnalyticsConfig
from jobs.analytics.newest_panes import NewestPanes
from jobs.analytics.pipeline import JOB, STAGED
from jobs.runtime.errors import Refused
from jobs.settings.views import MAX_KEYS
from metering.instants import rfc3339
from metering.limits import MAX_NAME_BYTES
from tests.dashboard.reader import reader_url
from tests.database_rows import write
from tests.pipelines import panes as panes_of
from tests.pipelines.folding import fold_table
from tests.streaming.measured import NOON

CONFIG = AnalyticsConfig.model_validate(
    {
        "views": {
            "health": {
                "of": "outcomes",
                "by": ["model"],
                "measures": {
                    "requests": "count",
                    "tokens": {"sum": "output_tokens"},
                    "ms": {"percentiles": "latency_ms"},
                },
            },
            "accounts": {"of": "outcomes", "by": ["account"], "measures": {"requests": "count"}},
        },
        "windows": {"hop": {"size": "PT10M", "every": "PT5M"}, "slide": "PT3M"},
    }
)
MINUTE = timedelta(minutes=1)
RANGE = ("--from", rfc3339(NOON), "--to", rfc3339(NOON + 20 * MINUTE))


HEALTH_ALONE = AnalyticsConfig(views={"health": CONFIG.views["health"]})
ACCOUNTS_ALONE = AnalyticsConfig(views={"accounts": CONFIG.views["accounts"]})


def pane(view: str, minute: int, key: str | None, requests: int, **measures: str) -> dict[str, Any]:
    return panes_of.pane(CONFIG, view, NOON + minute * MINUTE, [key], requests, **measures)


def fold(connection: psycopg.Connection[Any], *panes: dict[str, Any], config: AnalyticsConfig = CONFIG) -> None:
    panes_of.fold(connection, config, *panes)


@pytest.fixture
def panes(
    database: str, connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> psycopg.Connection[Any]:
    monkeypatch.setattr("deployment.stack.running_deployment", lambda _: SimpleNamespace(postgres_url=database))
    fold(
        connection,
        pane("health", 0, "m", 2, tokens="10.000000"),
        pane("health", 4, "m", 3, tokens="0.500000"),
        pane("health", 4, None, 1),
        pane("health", 12, "m", 7),
        pane("accounts", 0, "acme", 1),
        pane("accounts", 0, "bolt", 4),
    )
    # A late outcome comes with a batch of its own, and merges.
    fold(connection, pane("health", 0, "m", 1, tokens="5.000000"))
    return connection


def weir(*words: str) -> Result:
    return CliRunner().invoke(app, ["view", *words])


def shown(*words: str) -> list[tuple[Any, ...]]:
    answer = weir(*words, "--format", "json")
    assert answer.exit_code == 0, answer.output
    return [
        (*(row[name][11:16] for name in ("window_start", "window_end")), row["model"], row["requests"], row["tokens"])
        for row in json.loads(answer.stdout)
    ]


@pytest.mark.usefixtures("panes")
def test_tumbling_windows_add_up_their_minutes_and_numbers_keep_their_digits() -> None:
    assert shown("health", *RANGE, "--window", "PT5M") == [
        ("12:00", "12:05", "m", 6, "15.5"),
        ("12:00", "12:05", None, 1, None),
        ("12:10", "12:15", "m", 7, None),
    ]


@pytest.mark.usefixtures("panes")
def test_hopping_windows_overlap_and_those_that_begin_before_are_whole() -> None:
    assert shown("health", *RANGE, "--window", "PT6M", "--hop", "PT3M")[:4] == [
        ("11:57", "12:03", "m", 3, 15),
        ("12:00", "12:06", "m", 6, "15.5"),
        ("12:00", "12:06", None, 1, None),
        ("12:03", "12:09", "m", 3, "0.5"),
    ]
    within = ("--from", rfc3339(NOON + 5 * MINUTE), "--to", rfc3339(NOON + 6 * MINUTE))
    assert shown("health", *within, "--window", "PT6M", "--hop", "PT6M")[0] == ("12:00", "12:06", "m", 6, "15.5")


@pytest.mark.usefixtures("panes")
def test_sessions_end_where_a_key_pauses_for_longer_than_the_gap() -> None:
    assert shown("health", *RANGE, "--session", "PT3M") == [
        ("12:00", "12:05", "m", 6, "15.5"),
        ("12:04", "12:05", None, 1, None),
        ("12:12", "12:13", "m", 7, None),
    ]


@pytest.mark.usefixtures("panes")
def test_the_sliding_window_ends_at_the_frontier_and_defaults_come_from_the_configuration(database: str) -> None:
    assert json.loads(weir("health", "--sliding", "--format", "json").stdout) == []
    frontier = NOON + 5 * MINUTE + timedelta(seconds=30)
    write(database, "positions", {"job": "analytics", "input": "usage", "next_position": 9, "frontier": frontier})
    instants = dict.fromkeys(("owner_started_at", "started_at", "updated_at"), NOON)
    documents = {"config": Jsonb(CONFIG.model_dump(mode="json")), "progress": Jsonb({})}
    write(
        database, "jobs", {"job": "analytics", "epoch": 1, "owner_pid": 1, "state": "running", **instants, **documents}
    )
    assert shown("health", "--sliding") == [("12:02", "12:05", "m", 3, "0.5"), ("12:02", "12:05", None, 1, None)]
    assert shown("health", "--sliding", "--window", "PT5M")[0] == ("12:00", "12:05", "m", 6, "15.5")
    assert [row[:2] for row in shown("health", *RANGE)][:2] == [("11:55", "12:05"), ("11:55", "12:05")]


def counted(view: str, *words: str) -> list[tuple[str, Any]]:
    answer = weir(view, *RANGE, "--window", "PT1M", *words, "--format", "json")
    assert answer.exit_code == 0, answer.output
    return [(row["window_start"][11:16], row["requests"]) for row in json.loads(answer.stdout)]


@pytest.fixture
def begun(database: str, connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """`accounts` alone has measured outcomes of 12:00 and 12:04, up to lsn 8."""
    monkeypatch.setattr("deployment.stack.running_deployment", lambda _: SimpleNamespace(postgres_url=database))
    fold(connection, pane("accounts", 0, "acme", 1), pane("accounts", 4, "acme", 2), config=ACCOUNTS_ALONE)
    write(database, "positions", {"job": "analytics", "input": "usage", "next_position": 9})


@pytest.mark.usefixtures("begun")
def test_a_view_that_is_declared_later_answers_from_the_first_minute_that_it_has_whole(
    connection: psycopg.Connection[Any],
) -> None:
    # A late outcome of 12:04, of which the first two were not measured; and the minute made again has all three.
    fold(connection, pane("health", 4, "m", 3), pane("accounts", 4, "acme", 1), pane("health", 5, "m", 7))
    fold(connection, pane("health", 4, "m", 1), pane("health", 5, "m", 1))
    assert counted("health") == [("12:05", 8)]
    assert counted("accounts") == [("12:00", 1), ("12:04", 3)]
    answer = weir("health", *RANGE, "--window", "PT10M", "--format", "json")
    assert json.loads(answer.stdout) == []
    assert "health is measured since 2026-01-01T12:05:00Z" in answer.stderr
    # It may have begun at 12:04.
    assert json.loads(weir("health", *RANGE, "--session", "PT2M", "--format", "json").stdout) == []


@pytest.mark.usefixtures("begun")
def test_a_definition_that_was_dropped_and_returns_begins_anew(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    fold(connection, pane("accounts", 6, "acme", 2), config=CONFIG)
    fold(connection, pane("health", 6, "m", 5), pane("health", 7, "m", 1), config=HEALTH_ALONE)
    with psycopg.connect(database) as moved:
        moved.execute("UPDATE positions SET next_position = 20")
    fold(connection, pane("accounts", 6, "acme", 1), pane("accounts", 8, "acme", 4))
    assert counted("accounts") == [("12:08", 4)]
    listed = connection.execute("SELECT view, is_declared, first_position FROM analytics_views ORDER BY view_id")
    assert listed.fetchall() == [
        ("accounts", False, 1),
        ("health", True, 9),
        ("accounts", True, 20),
    ]


@pytest.mark.usefixtures("begun")
def test_what_another_view_has_missed_no_later_one_takes_for_whole(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    """`health` starts at 12:05 and sees an outcome of 12:01 only; panes of 12:04 are gone when `accounts` returns."""
    fold(connection, pane("health", 1, "m", 1), config=HEALTH_ALONE)
    connection.execute("DELETE FROM analytics_panes")
    connection.commit()
    fold(connection, pane("accounts", 4, "acme", 1), pane("accounts", 5, "acme", 1))
    assert counted("accounts") == [("12:05", 1)]


def test_a_window_that_has_lost_minutes_to_keep_days_is_left_out_as_one_before_the_view_began(
    panes: psycopg.Connection[Any],
) -> None:
    fold(panes, pane("health", 6, "m", 20))
    assert shown("health", *RANGE, "--window", "PT10M")[0] == ("12:00", "12:10", "m", 26, "15.5")
    panes_of.fold(panes, CONFIG, frontier=NOON + CONFIG.keeps + 4.5 * MINUTE)
    assert counted("health") == [("12:06", 20), ("12:12", 7)]
    answer = weir("health", *RANGE, "--window", "PT10M", "--format", "json")
    assert [row["requests"] for row in json.loads(answer.stdout)] == [7]
    assert "health is measured since 2026-01-01T12:05:00Z" in answer.stderr
    assert panes.execute("SELECT view, since FROM analytics_views ORDER BY view").fetchall() == [
        ("accounts", NOON + 5 * MINUTE),
        ("health", NOON + 5 * MINUTE),
    ]


@pytest.mark.usefixtures("panes")
def test_tables_have_a_column_for_each_percentile() -> None:
    answer = weir("health", *RANGE, "--window", "PT5M", "--format", "csv")
    first = next(csv.DictReader(io.StringIO(answer.stdout)))
    assert [*first] == [
        *("window_start", "window_end", "model", "requests", "tokens"),
        *("ms_p50", "ms_p90", "ms_p95", "ms_p99"),
    ]


@pytest.mark.usefixtures("panes")
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("nope",), "nope is no view that is measured; there are accounts, health."),
        (("health", "--window", "PT90S"), "PT90S is not whole minutes"),
        (("health", "--window", "5m"), "'5m' is no duration such as PT1H"),
        (("health", "--window", "PT1M", "--hop", "PT5M"), "--hop must be at most --window"),
        (("health", "--session", "PT5M", "--window", "PT1M"), "leave out --window"),
        (("health", "--sliding", *RANGE), "leave out --hop, --from and --to"),
        (
            ("health", "--from", "2020-01-01T00:00:00Z", "--to", rfc3339(NOON), "--window", "PT1M"),
            "take a longer --hop",
        ),
    ],
)
def test_a_mistake_is_refused_with_what_to_do(words: tuple[str, ...], sentence: str) -> None:
    answer = weir(*words)
    assert answer.exit_code == 2
    assert sentence in " ".join(answer.output.replace("│", " ").split())


def test_without_any_view_the_command_says_how_to_declare_one(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployment.stack.running_deployment", lambda _: SimpleNamespace(postgres_url=database))
    answer = weir("health")
    assert answer.exit_code == 2
    assert "declare it as `views` in the configuration" in " ".join(answer.output.replace("│", " ").split())


def test_keys_of_the_longest_texts_are_measured_and_merge(connection: psycopg.Connection[Any]) -> None:
    """An index takes 2,704 bytes. What producers send must not stop analytics."""
    chance = random.Random(1)
    keys = ["".join(chance.choices(string.ascii_letters + string.digits, k=MAX_NAME_BYTES)) for _ in range(MAX_KEYS)]
    for _ in range(2):
        fold(connection, {**pane("health", 0, "m", 2), "keys": json.dumps(keys)})
    found = connection.execute("SELECT keys, measures ->> 'requests' FROM analytics_panes").fetchall()
    assert found == [(keys, "4")]


def test_however_many_panes_are_stored_already_few_of_them_are_held_at_once_and_each_merges_once(
    connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Late outcomes may touch each minute that is kept. Postgres ends a session that asks for nothing meanwhile."""
    monkeypatch.setattr(analytics_fold, "NewestPanes", partial(NewestPanes, max_bytes=0, max_open=4))
    write_panes = fold_panes._write
    open_panes: list[int] = []

    def noted(cursor: psycopg.Cursor[Any], changed: Mapping[Any, Any], newest: NewestPanes) -> None:
        open_panes.append(len(changed))
        write_panes(cursor, changed, newest)

    monkeypatch.setattr(fold_panes, "_write", noted)
    for batch, minutes in enumerate((range(10), range(2, 14), range(8))):
        fold(connection, *[pane("health", minute, "m", 10**batch) for minute in minutes])
    found = connection.execute("SELECT measures ->> 'requests' FROM analytics_panes ORDER BY window_start").fetchall()
    assert [int(count) for (count,) in found] == [101, 101, *[111] * 6, 11, 11, *[10] * 4]
    assert open_panes == [4, 4, 2, 4, 4, 4, 4, 4]


def test_a_fold_without_a_view_is_refused_so_that_no_outcome_is_passed_by(connection: psycopg.Connection[Any]) -> None:
    with pytest.raises(Refused, match="no view and no pattern is declared"):
        fold_table(connection, JOB, STAGED.empty_table(), AnalyticsConfig())


@pytest.mark.usefixtures("panes")
@pytest.mark.parametrize(("setting", "seen"), [("*", 6), ('["acme"]', 1), ("", 0)])
def test_who_names_accounts_sees_their_panes_and_only_readers_of_all_see_those_of_none(
    database: str, setting: str, seen: int
) -> None:
    with psycopg.connect(reader_url(database)) as reader:
        reader.execute("SELECT set_config('weir.accounts', %s, true)", [setting])
        assert reader.execute("SELECT count(*) FROM analytics_panes").fetchone() == (seen,)
