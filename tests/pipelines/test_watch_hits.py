"""Outcomes past watches to stored hits, against all rows of usage at once: any order, cut, late row and restart."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pytest
from deltalake import write_deltalake
from psycopg.rows import dict_row
from pyspark.sql import SparkSession

from jobs.analytics.config import AnalyticsConfig
from jobs.analytics.pipeline import JOB, STAGED
from jobs.analytics.watches.past import past_hits
from jobs.analytics.watches.running import RunningWatches
from jobs.rebuild.analytics import begin_again
from jobs.streams import ACCOUNTS, Table
from metering.contracts.model import Kind
from metering.vocabulary import Outcome
from metering.watches.expressions import column_tests
from metering.watches.parser import parse
from tests.pipelines.folding import fold_table
from tests.streaming.measured import CONFIG, NOON, Happened, Measured, happened

HOUR = timedelta(hours=1)
COLUMNS = {
    **dict.fromkeys(("account", "model", "region", "user_id", "status", "outcome", "account.tags.team"), Kind.TEXT),
    "request_id": Kind.TEXT,
    "output_tokens": Kind.INTEGER,
    "latency_ms": Kind.DOUBLE,
}
ONLY_WATCHES = AnalyticsConfig.model_validate({"watches": True})
BOTH = AnalyticsConfig.model_validate({**CONFIG.model_dump(exclude_unset=True), "watches": True})
WATCHES: Mapping[str, Any] = {
    'model = "m-1" and output_tokens > 5000000000': lambda one, _: one.model == "m-1" and (one.tokens or 0) > 5 * 10**9,
    'status in ("error", "cancelled")': lambda one, _: one.effective_status in ("error", "cancelled"),
    'region is null and not (user_id in ("u1", "u2"))': lambda one, _: (
        one.region is None and one.user is not None and one.user not in ("u1", "u2")
    ),
    'account = "a" and account.tags.team = "x"': lambda one, team: one.account == "a" and team == "x",
    "latency_ms >= 0": lambda one, _: one.latency_ms is not None,
    'outcome = "abandoned"': lambda one, _: one.outcome is Outcome.ABANDONED,
}


@pytest.fixture
def stage(spark: SparkSession, database: str, tmp_path: Path) -> Measured:
    return Measured(spark, database, tmp_path, config=ONLY_WATCHES)


def add(database: str, condition: str) -> int:
    kinds = {test.column: test.kind.value for test in column_tests(parse(condition, COLUMNS))}
    with psycopg.connect(database) as connection:
        row = connection.execute(
            "INSERT INTO watches (name, condition, columns, added_by) VALUES (%s, %s, %s, 'me') RETURNING watch_id",
            [condition[:60], condition, json.dumps(kinds)],
        ).fetchone()
    assert row is not None
    return int(row[0])


def rows_of(database: str, statement: str) -> list[dict[str, Any]]:
    with psycopg.connect(database, row_factory=dict_row) as connection:
        connection.execute("SELECT set_config('TimeZone', 'UTC', false)")
        return connection.execute(statement).fetchall()


def stored(database: str) -> tuple[set[tuple[int, str, datetime]], dict[tuple[int, datetime], int]]:
    """Hits (watch, request, time), and how many there are by watch and hour."""
    found = rows_of(database, "SELECT * FROM watch_hits WHERE net > 0")
    hours = rows_of(database, "SELECT * FROM watch_hours WHERE hits <> 0")
    return (
        {(row["watch_id"], row["request_id"], row["event_time"]) for row in found},
        {(row["watch_id"], row["hour"]): row["hits"] for row in hours},
    )


def teams(stage: Measured, versions: list[tuple[int, str, datetime, str]]) -> None:
    """Write versions of accounts (lsn, account, from when on, team)."""
    rows = [
        {"lsn": lsn, "account": account, "effective_from": at, "deleted": False, "tags": json.dumps({"team": team})}
        for lsn, account, at, team in versions
    ]
    write_deltalake(
        f"{stage.tables}/{Table.ACCOUNTS}",
        pl.DataFrame(rows).to_arrow().cast(ACCOUNTS.empty_table().select(list(rows[0])).schema),
    )


def expected(
    counts: Counter[Happened], ids: Mapping[str, int], team: Any, most: int
) -> tuple[set[tuple[int, str, datetime]], dict[tuple[int, datetime], int]]:
    taken: dict[tuple[int, datetime], list[tuple[Happened, int]]] = defaultdict(list)
    for one, count in counts.items():
        for condition, watch_id in ids.items():
            is_outcome = one.outcome in (Outcome.MATCHED, Outcome.ABANDONED)
            if is_outcome and WATCHES[condition](one, team(one)):
                taken[watch_id, one.at.replace(minute=0, second=0, microsecond=0)].append((one, count))
    first = {
        (watch_id, f"r{one.number}", one.at)
        for (watch_id, _), listed in taken.items()
        for one, count in sorted(listed, key=lambda entry: entry[0].number)[:most]
        if count > 0
    }
    hours = {key: sum(count for _, count in listed) for key, listed in taken.items()}
    return first, {key: hits for key, hits in hours.items() if hits}


@pytest.mark.few_in_ci(2)
@pytest.mark.parametrize("most", [100, 4])
@pytest.mark.parametrize("seed", range(5))
def test_oracle_any_cut_order_restart_and_retraction_has_the_hits_of_all_rows_at_once(
    stage: Measured, seed: int, most: int
) -> None:
    chance = random.Random(seed)
    stage.config = chance.choice([ONLY_WATCHES, BOTH]).with_running(RunningWatches(max_hits=most))
    outcomes = [happened(chance, number) for number in range(100)]
    # Journalled by number: the first hits of an hour are those that were received first.
    stage.accept(outcomes)
    middle = stage.journal.next_lsn // 2
    teams(stage, [(0, "a", NOON, "y"), (middle, "a", NOON + HOUR / 2, "x"), (0, "b", NOON, "x")])

    def team(one: Happened) -> str:
        decided = max(lsn for lsn in stage.lsns[one.number] if lsn is not None)
        return "x" if one.account == "b" or (decided > middle and one.at >= NOON + HOUR / 2) else "y"

    ids = {condition: add(stage.database, condition) for condition in WATCHES}
    counts: Counter[Happened] = Counter()
    waiting = list(outcomes)
    chance.shuffle(waiting)
    while waiting:
        some = [waiting.pop() for _ in range(min(len(waiting), chance.randint(30, 60)))]
        back = chance.sample([one for one, count in counts.items() if count], min(len(+counts), chance.randint(0, 6)))
        signed = [(one, 1) for one in some] + [(one, -1) for one in back]
        signed += [(one, 1) for one in back if chance.random() < 0.5]
        chance.shuffle(signed)
        stage.decide(signed, NOON + 2 * HOUR)
        for one, sign in signed:
            counts[one] += sign
    driver, at, end = stage.driver(), 1, stage.usage.next_lsn
    while at < end:
        before = min(end, at + chance.randint(20, 90))
        batch = stage.rows(max(1, at - chance.choice([0, 0, 5])), before)
        driver.process(batch if chance.random() < 0.5 else stage.spark.createDataFrame(batch))
        at = before
        if chance.random() < 0.4:
            driver = stage.driver()
    must = expected(counts, ids, team, most)
    assert len(must[0]) > 20
    assert stored(stage.database) == must
    # A dry run over the past finds the same.
    for condition, watch_id in ids.items():
        tried = list(past_hits(str(stage.tables), condition, parse(condition, COLUMNS), None, None))
        assert {(watch_id, row["hour"]): row["hits"] for row in tried} == {
            key: count for key, count in must[1].items() if key[0] == watch_id
        }
        part = list(past_hits(str(stage.tables), condition, parse(condition, COLUMNS), NOON, NOON + HOUR))
        assert part == [row for row in tried if row["hour"] == NOON]


def test_a_dry_run_from_or_to_a_microsecond_takes_what_is_there(stage: Measured) -> None:
    """A table's log has times to the millisecond: a file that ended within the first one was passed over."""
    outcomes = [Happened(1, NOON + timedelta(microseconds=700), status="error")]
    stage.accept(outcomes)
    stage.decide([(one, 1) for one in outcomes], NOON)
    condition = 'status = "error"'
    before, after = (NOON + timedelta(microseconds=part) for part in (600, 800))
    for bounds, hits in {
        (before, None): 1,
        (None, after): 1,
        (before, after): 1,
        (after, None): 0,
        (None, before): 0,
    }.items():
        found = past_hits(str(stage.tables), condition, parse(condition, COLUMNS), *bounds)
        assert sum(row["hits"] for row in found) == hits, bounds


@pytest.mark.parametrize("is_large", [False, True], ids=["by the driver", "by Spark"])
def test_a_watch_may_name_the_request_which_each_hit_has_anyway(stage: Measured, is_large: bool) -> None:
    outcomes = [Happened(n, NOON, status="error") for n in range(3)]
    stage.accept(outcomes)
    stage.decide([(one, 1) for one in outcomes], NOON)
    watch_id = add(stage.database, 'request_id in ("r1", "r2") and request_id != "r2"')
    batch = stage.rows(1, 4)
    stage.driver().process(stage.spark.createDataFrame(batch) if is_large else batch)
    assert stored(stage.database) == ({(watch_id, "r1", NOON)}, {(watch_id, NOON): 1})


def test_a_watch_begins_with_the_batch_after_it_was_added_and_ends_with_the_one_after_it_was_removed(
    stage: Measured,
) -> None:
    outcomes = [Happened(n, NOON, status="error") for n in range(6)]
    stage.accept(outcomes)
    stage.decide([*((one, 1) for one in outcomes[:5]), (outcomes[0], -1), (outcomes[0], 1), (outcomes[5], 1)], NOON)
    driver = stage.driver()
    driver.process(stage.rows(1, 3))
    added = add(stage.database, 'status = "error"')
    driver.process(stage.rows(3, 5))
    # The last of them, and one that was accepted before the watch was added and only has another price now.
    driver.process(stage.rows(5, 8))
    with psycopg.connect(stage.database) as connection:
        connection.execute("UPDATE watches SET removed_by = 'me', removed_at = now()")
    driver.process(stage.rows(8, 9))
    found, hours = stored(stage.database)
    assert {request for _, request, _ in found} == {"r2", "r3", "r4"}
    assert hours == {(added, NOON): 3}
    [row] = rows_of(stage.database, "SELECT first_position, calls_from FROM watches")
    assert row == {"first_position": 3, "calls_from": 3}


def test_a_watch_waits_while_watches_are_switched_off_and_then_begins_again(stage: Measured) -> None:
    outcomes = [Happened(n, NOON, status="error") for n in range(3)]
    stage.accept(outcomes)
    stage.decide([(one, 1) for one in outcomes], NOON)
    add(stage.database, 'status = "error"')
    stage.config = ONLY_WATCHES
    stage.driver().process(stage.rows(1, 2))
    begins = "SELECT first_position, calls_from FROM watches"
    assert rows_of(stage.database, begins) == [{"first_position": 1, "calls_from": 1}]
    stage.config = CONFIG
    stage.driver().process(stage.rows(2, 3))
    assert rows_of(stage.database, begins) == [{"first_position": None, "calls_from": 1}]
    stage.config = BOTH
    stage.driver().process(stage.rows(3, 4))
    assert rows_of(stage.database, begins) == [{"first_position": 3, "calls_from": 1}]
    assert {request for _, request, _ in stored(stage.database)[0]} == {"r0", "r2"}


def test_rebuilt_all_of_usage_runs_past_each_watch_and_nobody_is_called_again(stage: Measured) -> None:
    outcomes = [Happened(n, NOON + n * HOUR, status="error") for n in range(4)]
    stage.accept(outcomes)
    stage.decide([(one, 1) for one in outcomes], NOON)
    driver = stage.driver()
    driver.process(stage.rows(1, 3))
    add(stage.database, 'status = "error"')
    driver.process(stage.rows(3, 4))
    calls = "SELECT hour, step FROM watch_calls ORDER BY hour"
    assert [row["hour"] for row in rows_of(stage.database, calls)] == [NOON + 2 * HOUR]
    begin_again(str(stage.tables), stage.database)
    driver = stage.driver()
    driver.process(stage.rows(1, 3))
    driver.process(stage.rows(3, 4))
    assert [row["hour"] for row in rows_of(stage.database, calls)] == [NOON + 2 * HOUR]
    driver.process(stage.rows(4, 5))
    assert [row["hour"] for row in rows_of(stage.database, calls)] == [NOON + 2 * HOUR, NOON + 3 * HOUR]
    assert {request for _, request, _ in stored(stage.database)[0]} == {"r0", "r1", "r2", "r3"}


def test_hits_are_removed_when_they_are_too_old_also_where_watches_are_switched_off(database: str) -> None:
    watch_id = add(database, 'status = "error"')
    kept = ("watch_hits", "watch_hours", "watch_calls")
    with psycopg.connect(database) as connection:
        connection.execute("INSERT INTO watch_hits VALUES (%s, %s, 1, 2, 1, %s, 'a', 'r0')", [watch_id, NOON, NOON])
        connection.execute("INSERT INTO watch_hours VALUES (%s, %s, NULL, 1)", [watch_id, NOON])
        connection.execute("INSERT INTO watch_calls VALUES (%s, %s, 1, NULL, 'errors', 1, '[]')", [watch_id, NOON])
    for frontier, rows in ((NOON + timedelta(days=35), 1), (NOON + timedelta(days=35, seconds=1), 0)):
        with psycopg.connect(database) as connection:
            fold_table(connection, JOB, STAGED.empty_table(), CONFIG, frontier=frontier)
        assert [len(rows_of(database, f"SELECT * FROM {table}")) for table in kept] == [rows] * 3


def test_a_driver_that_fails_in_its_transaction_has_no_hit_and_its_successor_has_each_once(
    stage: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = [Happened(n, NOON, status="error") for n in range(3)]
    stage.accept(outcomes)
    stage.decide([(one, 1) for one in outcomes], NOON)
    add(stage.database, 'status = "error"')
    driver = stage.driver()
    with monkeypatch.context() as patch:
        patch.setattr(driver, "_move", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            driver.process(stage.rows(1, 4))
    assert stored(stage.database) == (set(), {})
    stage.driver().process(stage.rows(1, 4))
    assert stage.driver().process(stage.rows(1, 4)).records == 0
    assert {request for _, request, _ in stored(stage.database)[0]} == {"r0", "r1", "r2"}


def test_a_view_that_is_declared_when_only_watches_ran_does_not_claim_minutes_that_it_did_not_measure(
    stage: Measured,
) -> None:
    outcomes = [Happened(n, NOON + n * HOUR) for n in range(3)]
    stage.accept(outcomes)
    stage.decide([(one, 1) for one in outcomes], NOON)
    stage.driver().process(stage.rows(1, 3))
    stage.config = BOTH
    stage.driver().process(stage.rows(3, 4))
    found = rows_of(stage.database, "SELECT DISTINCT since FROM analytics_views")
    assert found == [{"since": NOON + HOUR + timedelta(minutes=1)}]
