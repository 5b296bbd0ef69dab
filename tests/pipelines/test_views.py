"""Outcomes to panes to windows of every kind, against all outcomes at once: any order, cut, late event and restart."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from pyspark.sql import SparkSession

from jobs.analytics.pipeline import JOB
from jobs.queries.views import Hop, Span, measured_since, view_named, view_rows
from jobs.rebuild.analytics import begin_again
from jobs.runtime.delta.source import TableSource
from jobs.runtime.delta.table import REMOVED
from jobs.runtime.delta.upstream import Upstream
from jobs.runtime.errors import Fenced, NotYet, Refused
from jobs.streams import Table
from metering.vocabulary import Outcome
from tests.database_rows import write
from tests.streaming.journals import environment
from tests.streaming.measured import (
    NOON,
    REAL,
    VIEWS,
    Happened,
    Measured,
    exact_measures,
    expected,
    happened,
    reading,
)

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
WINDOWS = [
    (MINUTE, MINUTE),
    (5 * MINUTE, MINUTE),
    (5 * MINUTE, 5 * MINUTE),
    (7 * MINUTE, 3 * MINUTE),
    (HOUR, 10 * MINUTE),
]


@pytest.fixture
def stage(spark: SparkSession, database: str, tmp_path: Path) -> Measured:
    return Measured(spark, database, tmp_path)


def measured(stage: Measured, size: timedelta, hop: timedelta, view: str = "health") -> dict[Any, dict[str, Any]]:
    with reading(stage.database) as database:
        rows = view_rows(database, view_named(database, view), Hop(size, hop), Span(NOON - HOUR, NOON + 3 * HOUR))
    keys = ("window_start", "window_end", "model", "region")
    found = {tuple(row[key] for key in keys): row for row in rows}
    assert len(found) == len(rows)
    return found


def refuse_differences(stage: Measured, counts: Counter[Happened]) -> None:
    for (size, hop), view in product(WINDOWS, ("health", "whole")):
        found, must = measured(stage, size, hop, view), expected(counts, size, hop)
        assert found.keys() == must.keys()
        for key, of_window in must.items():
            refuse_difference(found[key], of_window, () if view == "health" else REAL)


def refuse_difference(row: dict[str, Any], of_window: list[Happened], lacking: Sequence[str]) -> None:
    exact = {name: value for name, value in exact_measures(of_window).items() if name not in lacking}
    assert {name: row[name] for name in exact} == exact
    assert not {*lacking} & row.keys()
    top = Counter(one.user for one in of_window if one.user is not None)
    assert {one["value"]: one["count"] for one in row["busiest"]}.items() <= top.items()
    assert sorted((one["count"] for one in row["busiest"]), reverse=True) == sorted(top.values())[::-1][:3]
    values = sorted(one.latency_ms for one in of_window if one.latency_ms is not None)
    if not values:
        assert row["latency_ms"] is None
    elif len(values) <= 200:
        # A sketch keeps the first 200 values as they are.
        assert row["latency_ms"]["p50"] == values[max(0, -(-len(values) // 2) - 1)]


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("seed", range(10))
def test_oracle_any_cut_order_restart_and_retraction_measures_what_all_outcomes_do(stage: Measured, seed: int) -> None:
    chance = random.Random(seed)
    outcomes = [happened(chance, number) for number in range(100)]
    chance.shuffle(outcomes)
    counts: Counter[Happened] = Counter()
    waiting = list(outcomes)
    while waiting:
        some = [waiting.pop() for _ in range(min(len(waiting), chance.randint(40, 90)))]
        stage.accept(some)
        signed = [(one, 1) for one in some]
        back = chance.sample([one for one, count in counts.items() if count], min(len(+counts), chance.randint(0, 4)))
        signed += [(one, -1) for one in back]
        # Some are replaced by themselves, as an audit does that only prices anew, and some come and go in one commit.
        signed += [(one, 1) for one in back if chance.random() < 0.5]
        signed += [(some[0], sign) for sign in (-1, 1)]
        chance.shuffle(signed)
        # Usage takes back only what it has: a row with the sign -1 names an earlier one.
        turns = iter((1, -1, 1))
        signed = [(one, next(turns) if one is some[0] else sign) for one, sign in signed]
        stage.decide(signed, NOON + 2 * HOUR)
        for one, sign in signed:
            counts[one] += sign
    driver, at, end = stage.driver(), 1, stage.usage.next_lsn
    while at < end:
        before = min(end, at + chance.randint(20, 150))
        first = max(1, at - chance.choice([0, 0, 5]))
        batch = stage.rows(first, before)
        driver.process(batch if chance.random() < 0.5 else stage.spark.createDataFrame(batch))
        at = before
        if chance.random() < 0.4:
            driver = stage.driver()
    refuse_differences(stage, counts)


def test_a_driver_that_fails_in_its_transaction_has_measured_nothing_and_its_successor_measures_once(
    stage: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same driver, too, if it went on: it remembers panes as of its last commit."""
    outcomes = [Happened(n, NOON, user=f"u{n}", tokens=n) for n in range(9)]
    stage.accept(outcomes)
    stage.decide([(one, 1) for one in outcomes], NOON + HOUR)
    driver = stage.driver()

    def fail(rows: pa.Table) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(driver, "_move", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                driver.process(rows)

    fail(stage.rows(1, 7))
    with reading(stage.database) as database:
        assert database.execute("SELECT count(*) AS panes FROM analytics_panes").fetchone() == {"panes": 0}
    driver = stage.driver()
    driver.process(stage.rows(1, 7))
    assert stage.driver().process(stage.rows(1, 7)).records == 0
    driver = stage.driver()
    driver.process(stage.rows(7, 8))
    fail(stage.rows(8, 10))
    driver.process(stage.rows(8, 10))
    refuse_differences(stage, Counter(outcomes))


def test_a_few_outcomes_cost_one_job_of_spark_and_the_same_taken_back_at_once_too(stage: Measured) -> None:
    outcomes = [Happened(n, NOON, user=f"u{n}", tokens=n, latency_ms=n / 2) for n in range(20)]
    stage.accept(outcomes)
    signed = [*((one, 1) for one in outcomes), (outcomes[0], -1), (outcomes[0], 1)]
    stage.decide(signed, NOON)
    driver, context = stage.driver(), stage.spark.sparkContext
    context.setJobGroup("few", "few outcomes")
    driver.process(stage.rows(1, 23))
    assert len(context.statusTracker().getJobIdsForGroup("few")) == 1
    refuse_differences(stage, Counter(outcomes))


def test_views_of_texts_and_whole_numbers_cost_no_job_of_spark(stage: Measured) -> None:
    views = {name: view for name, view in VIEWS.items() if name != "health"}
    stage.config = type(stage.config).model_validate({"views": views})
    outcomes = [Happened(n, NOON, user=f"u{n}", tokens=n, latency_ms=n / 2) for n in range(20)]
    stage.accept(outcomes)
    stage.decide([(one, 1) for one in outcomes], NOON)
    driver, context = stage.driver(), stage.spark.sparkContext
    context.setJobGroup("none", "no job")
    assert driver.process(stage.rows(1, 21)).records == 20
    assert len(context.statusTracker().getJobIdsForGroup("none")) == 0
    [row] = measured(stage, MINUTE, MINUTE, "whole").values()
    refuse_difference(row, outcomes, REAL)


@pytest.mark.long
def test_the_driver_takes_a_batch_of_outcomes_up_to_its_limit_and_leaves_larger_ones_to_spark(
    stage: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = [Happened(n, NOON, tokens=n) for n in range(8)]
    stage.accept(outcomes)
    stage.decide([(outcomes[0], 1)], NOON)
    sink, config = stage.driver(), stage.config.model_copy(update={"min_batch_interval_seconds": 0.0})
    sink.driver_rows = 3
    table = TableSource(JOB, config, environment(stage.database, stage.tables), sink)
    assert table.exists()
    for batch in table.backlog(stage.spark):
        sink.process(batch)
    monkeypatch.setattr(table, "_is_idle", True)
    table.has_news()
    stage.decide([(one, 1) for one in outcomes[1:4]], NOON)
    found = table.found()
    assert isinstance(found, pa.Table)
    assert sink.process(found).records == 3
    stage.decide([(one, 1) for one in outcomes[4:]], NOON)
    assert table.found() is None
    sink.process(stage.rows(5, 9))
    refuse_differences(stage, Counter(outcomes))


def test_the_last_outcome_of_a_minute_that_is_taken_back_leaves_no_pane(stage: Measured) -> None:
    one = Happened(1, NOON, user="u", latency_ms=5.0)
    stage.accept([one])
    stage.decide([(one, 1)], NOON)
    stage.decide([(one, -1)], NOON)
    driver = stage.driver()
    driver.process(stage.rows(1, 2))
    assert len(measured(stage, MINUTE, MINUTE)) == 1
    driver.process(stage.rows(2, 3))
    assert measured(stage, MINUTE, MINUTE) == {}


def test_a_minute_whose_usage_was_removed_keeps_its_pane_and_still_gets_late_outcomes(
    stage: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = [Happened(n, NOON, user=f"u{n}") for n in range(3)]
    stage.accept(outcomes)
    stage.decide([(one, 1) for one in outcomes[:2]], NOON)
    stage.decide([(outcomes[0], -1), (outcomes[0], 1), (outcomes[1], -1), (outcomes[2], 1)], NOON)
    driver = stage.driver()
    driver.process(stage.rows(1, 3))
    asked = list[Table]()
    monkeypatch.setattr(type(driver._lookup), "has_all_since", lambda _self, table, _day: asked.append(table))
    driver.process(stage.rows(3, 7))
    assert asked == [Table.USAGE]
    [row] = measured(stage, MINUTE, MINUTE).values()
    assert row["requests"] == 3


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("is_rebuilt", [True, False])
def test_rebuilt_or_on_an_empty_database_it_measures_all_of_usage_again_also_for_a_later_view(
    stage: Measured, *, is_rebuilt: bool
) -> None:
    outcomes = [Happened(n, NOON, user=f"u{n}", tokens=n) for n in range(4)]
    stage.accept(outcomes)
    stage.decide([*((one, 1) for one in outcomes), (outcomes[3], -1)], NOON)
    other = type(stage.config).model_validate({"views": {"n": {"of": "outcomes", "measures": {"n": "count"}}}})
    config, stage.config = stage.config, other
    stage.driver().process(stage.rows(1, 4))
    stage.config = config
    fenced = stage.driver()
    fenced.process(stage.rows(4, 6))
    assert measured(stage, MINUTE, MINUTE) == {}
    if is_rebuilt:
        assert begin_again(str(stage.tables), stage.database) == 5
        with pytest.raises((Fenced, NotYet)):
            fenced._ownership.resume()
    else:
        with psycopg.connect(stage.database) as database:
            database.execute("TRUNCATE analytics_views, positions, batches, jobs, exits, rules CASCADE")
    driver = stage.driver()
    assert driver.position() == 1
    driver.process(stage.rows(1, 6))
    refuse_differences(stage, Counter(outcomes[:3]))


def test_it_is_not_rebuilt_where_usage_has_lost_rows_and_keeps_its_panes(
    spark: SparkSession, database: str, tmp_path: Path
) -> None:
    stage = Measured(spark, database, tmp_path)
    outcomes = [Happened(n, NOON) for n in range(3)]
    stage.accept(outcomes)
    stage.decide([(one, 1) for one in outcomes], NOON)
    with pytest.raises(Refused, match="analytics has never run here"):
        begin_again(str(tmp_path), database)
    stage.driver()
    usage = DeltaTable(f"{tmp_path}/{Table.USAGE}")
    usage.delete("lsn = 1", commit_properties=CommitProperties(app_transactions=[Transaction(REMOVED, 1)]))
    write(database, "positions", {"job": "analytics", "input": "usage", "next_position": 4})
    with pytest.raises(Refused, match="restore the database from a backup instead"):
        begin_again(str(tmp_path), database)
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT next_position FROM positions").fetchone() == (4,)


@pytest.mark.parametrize(("position", "removed"), [(1, 2), (3, 1), (4, None)])
def test_it_does_not_start_on_usage_of_which_retention_has_removed_what_it_has_not_read(
    spark: SparkSession, database: str, tmp_path: Path, position: int, removed: int | None
) -> None:
    """Row 1 is left, as the rows are that hold rules."""
    stage = Measured(spark, database, tmp_path)
    outcomes = [Happened(n, NOON) for n in range(6)]
    stage.accept(outcomes)
    for some in (outcomes[:3], outcomes[3:]):
        stage.decide([(one, 1) for one in some], NOON)
    usage = DeltaTable(f"{tmp_path}/{Table.USAGE}")
    usage.delete("lsn IN (2, 3)", commit_properties=CommitProperties(app_transactions=[Transaction(REMOVED, 2)]))
    upstream = Upstream(str(tmp_path), Table.USAGE)
    upstream.refresh()
    write(database, "positions", {"job": "analytics", "input": "usage", "next_position": position})
    if removed is None:
        stage.driver().verify(upstream)
        return
    with pytest.raises(Refused, match=f"has removed {removed} rows from there on; .*, or run without analytics$"):
        stage.driver().verify(upstream)


@pytest.mark.long
def test_orphaned_and_superseded_reports_and_quantities_are_no_outcomes(stage: Measured) -> None:
    kinds = [Outcome.MATCHED, Outcome.ABANDONED, Outcome.ORPHANED, Outcome.SUPERSEDED]
    outcomes = [Happened(n, NOON, outcome=kind) for n, kind in enumerate(kinds)]
    stage.accept(outcomes)
    stage.decide([(one, 1) for one in outcomes], NOON)
    quantity = Happened(9, NOON, outcome=Outcome.MATCHED, is_one_event=True)
    stage.lsns[9] = stage.journal.next_lsn, stage.journal.next_lsn
    stage.journal.commit([{"family": "quantity", "type": "gpu.v1", "received_at": NOON, "event_time": NOON}])
    stage.decide([(quantity, 1)], NOON)
    stage.driver().process(stage.rows(1, 6))
    [row] = measured(stage, MINUTE, MINUTE).values()
    assert row["requests"] == 2


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
def test_oracle_a_view_that_is_declared_later_measures_its_first_minute_and_all_after_it_as_if_it_always_had(
    stage: Measured, seed: int
) -> None:
    """Outcomes come about in the order of their minutes, some late; some are taken back, some of them after."""
    chance = random.Random(seed)
    outcomes = sorted((happened(chance, number) for number in range(80)), key=lambda one: one.at)
    order = sorted(outcomes, key=lambda one: one.at + timedelta(minutes=chance.choice([0, 0, 0, 20])))
    stage.accept(order)
    counts: Counter[Happened] = Counter()
    for at in range(0, len(order), 20):
        signed = [(one, 1) for one in order[at : at + 20]]
        signed += [(one, -1) for one in chance.sample([one for one in counts if counts[one]], min(len(+counts), 3))]
        stage.decide(signed, NOON + 2 * HOUR)
        for one, sign in signed:
            counts[one] += sign
    other = type(stage.config).model_validate({"views": {"n": {"of": "outcomes", "measures": {"n": "count"}}}})
    before, stage.config = stage.config, other
    end, at = stage.usage.next_lsn, 1
    declared_at = chance.randint(15, 45)
    while at < end:
        until = min(end, at + chance.randint(10, 40))
        if at >= declared_at:
            stage.config = before
        stage.driver().process(stage.rows(at, until))
        at = until
    with reading(stage.database) as database:
        view = view_named(database, "health")
        since = measured_since(database, view)
        assert since is not None
        assert since < NOON + HOUR
        found = view_rows(database, view, Hop(MINUTE, MINUTE), Span(NOON, NOON + 2 * HOUR))
    must = {key: of for key, of in expected(counts, MINUTE, MINUTE).items() if key[0] >= since}
    assert {(row["window_start"], row["window_end"], row["model"], row["region"]): row for row in found}.keys() == (
        must.keys()
    )
    for row in found:
        exact = exact_measures(must[row["window_start"], row["window_end"], row["model"], row["region"]])
        assert {name: row[name] for name in exact} == exact


@pytest.mark.long
def test_panes_older_than_keep_days_before_the_frontier_are_removed(stage: Measured) -> None:
    old, new = Happened(1, NOON), Happened(2, NOON + timedelta(days=40))
    stage.accept([old, new])
    stage.decide([(old, 1)], NOON)
    stage.decide([(new, 1)], NOON + timedelta(days=40))
    driver = stage.driver()
    driver.process(stage.rows(1, 2))
    driver.advance()
    driver.process(stage.rows(2, 3))
    with reading(stage.database) as database:
        found = database.execute("SELECT DISTINCT window_start FROM analytics_panes").fetchall()
    assert [row["window_start"] for row in found] == [new.at]


def test_without_any_outcome_panes_are_removed_by_the_hour_and_never_too_early(stage: Measured) -> None:
    old = Happened(1, NOON)
    stage.accept([old])
    stage.decide([(old, 1)], NOON)
    driver = stage.driver()
    driver.process(stage.rows(1, 2))
    keeps = stage.config.keeps
    for frontier, is_kept in (
        (NOON + keeps, True),
        # It is too old, but this hour has had its turn.
        (NOON + keeps + timedelta(hours=1, microseconds=-1), True),
        (NOON + keeps + timedelta(hours=1), False),
    ):
        stage.decide([], frontier)
        while driver.frontier() != frontier:
            driver.advance()
        with reading(stage.database) as database:
            left = database.execute("SELECT count(*) AS panes FROM analytics_panes").fetchone()
        assert left is not None
        assert bool(left["panes"]) is is_kept, frontier
