"""joins with real tables: the outcome of a request is a fact of the journal, whatever the cuts and restarts."""

from __future__ import annotations

import json
import random
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from jobs.joins.config import JoinsConfig
from jobs.joins.pipeline import JOB
from jobs.joins.sink import UsageSink
from jobs.runtime.clock import MachineClock
from jobs.runtime.delta.upstream import Upstream
from jobs.runtime.errors import Fenced, NotYet, Refused
from jobs.runtime.job import Context
from jobs.runtime.kafka.denied_topics import Denials
from jobs.runtime.postgres.ownership import Ownership
from jobs.streams import CatalogTopic, Table
from metering.instants import Clock
from metering.vocabulary import Cause, EventType
from tests.clocks import HandClock
from tests.metered import flat
from tests.streaming.journals import Journal, at, change, environment, event, heartbeat

REQUEST, COMPLETION, USAGE = EventType.REQUEST, EventType.COMPLETION, EventType.USAGE
SHARED = [HealthCheck.function_scoped_fixture]
CATALOG = [
    change(CatalogTopic.ACCOUNTS, 0, account="a", name="A", plan="p", currency="EUR", timezone="UTC"),
    change(
        CatalogTopic.PRICES,
        0,
        plan="p",
        model="m",
        meter="input_tokens",
        currency="EUR",
        unit_price="0.000000000003",
        effective_from="2025-01-01T00:00:00Z",
    ),
]


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path)


TIMEOUTS = JoinsConfig(completion_timeout_seconds=120, completion_timeouts={"slow": 300})


def driver(
    spark: SparkSession, database: str, journal: Journal, config: JoinsConfig = TIMEOUTS, clock: Clock | None = None
) -> UsageSink:
    where = environment(database, Path(journal.tables))
    ownership = Ownership.take(JOB.name, database, {})
    return UsageSink(JOB, Context(config, where, spark, ownership, clock or MachineClock(), Denials()))


def usage(journal: Journal) -> pl.DataFrame:
    """Rows of usage, flat (`tests.metered`)."""
    rows = DeltaTable(f"{journal.tables}/{Table.USAGE}").to_pyarrow_table().sort_by("lsn").to_pylist()
    return pl.DataFrame([flat(row) for row in rows], infer_schema_length=None)


def facts(rows: pl.DataFrame) -> list[tuple[Any, ...]]:
    """Everything but the order of record, which is the batch's."""
    return sorted(rows.drop("lsn", "log_date", "logged_at", "frontier", "rules").rows(), key=repr)


def test_requests_end_matched_abandoned_orphaned_or_superseded_and_are_priced(
    spark: SparkSession, database: str, journal: Journal
) -> None:
    journal.commit(CATALOG)
    journal.commit([event(REQUEST, "pair", 1), event(REQUEST, "alone", 2), event(COMPLETION, "nobody", 3)])
    journal.commit([event(COMPLETION, "pair", 4), event(COMPLETION, "pair", 5), event(USAGE, "both", 6)])
    journal.commit([heartbeat(400)])
    now = datetime(2027, 2, 3, 4, tzinfo=UTC)
    sink = driver(spark, database, journal, clock=HandClock(now))
    sink.process(journal.read(spark, JOB.columns(JOB.config())))
    assert usage(journal).select("logged_at", "log_date").unique().rows() == [(now, now.date())]
    rows = {(row["request_id"], row["outcome"]): row for row in usage(journal).iter_rows(named=True)}
    assert set(rows) == {
        ("pair", "matched"),
        ("pair", "superseded"),
        ("alone", "abandoned"),
        ("nobody", "orphaned"),
        ("both", "matched"),
    }
    assert rows["pair", "matched"]["input_tokens_amount"] == Decimal("0.000000000030")
    assert rows["alone", "abandoned"]["requests"] == 1
    assert rows["nobody", "orphaned"]["input_tokens_amount"] is None
    assert (sink.status()["waiting"], sink.status()["oldest_waiting_lsn"]) == (0, None)


def test_what_tiers_cost_is_in_the_database_before_usage_is_priced_by_them_and_again_after_a_start(
    spark: SparkSession, database: str, journal: Journal
) -> None:
    unit_price = json.loads(CATALOG[1]["value"])["after"]
    terms = '{"kind":"package","package_size":"1000","package_price":"3"}'
    tiered = {**unit_price, "unit_price": None, "terms": terms, "effective_from": at(0).isoformat()}
    journal.commit([*CATALOG, change(CatalogTopic.PRICES, 0, **tiered)])
    journal.commit([event(USAGE, "before", -1), event(USAGE, "after", 1)])
    journal.commit([heartbeat(400)])
    sink = driver(spark, database, journal)
    sink.process(journal.read(spark, JOB.columns(JOB.config())))
    names = ("input_tokens_price_version", "input_tokens_unit_price", "input_tokens_amount")
    rows = {row["request_id"]: tuple(row[name] for name in names) for row in usage(journal).iter_rows(named=True)}
    assert rows["before"][:2] == (2, Decimal("0.000000000003"))
    assert rows["after"] == (3, None, None)
    rungs = [(2, Decimal("0.000000000003"), None), (3, None, terms)]
    assert ladders(database) == rungs
    with psycopg.connect(database) as connection:
        connection.execute("DELETE FROM price_ladders")
    driver(spark, database, journal).verify(Upstream(journal.tables, JOB.reads))
    assert ladders(database) == rungs


def ladders(database: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database) as connection:
        return connection.execute(
            "SELECT price_version, unit_price, terms FROM price_ladders ORDER BY price_version"
        ).fetchall()


def test_timeouts_and_prices_hold_to_the_microsecond(spark: SparkSession, database: str, journal: Journal) -> None:
    """The end of a timeout is inside it, for two rows and for the frontier; a price holds from its own instant on."""
    microsecond = 0.000001
    price = json.loads(CATALOG[1]["value"])["after"]
    price |= {"unit_price": "2", "effective_from": at(100).isoformat()}
    journal.commit([*CATALOG, change(CatalogTopic.PRICES, 0, **price)])
    journal.commit([event(REQUEST, name, 0) for name in ("at_timeout", "after_timeout", "alone")])
    journal.commit([event(USAGE, "before_price", 100 - microsecond), event(USAGE, "at_price", 100)])
    journal.commit([event(COMPLETION, "at_timeout", 120)])
    sink = driver(spark, database, journal)
    sink.process(journal.read(spark, JOB.columns(JOB.config())))
    rows = {row["request_id"]: row for row in usage(journal).iter_rows(named=True)}
    assert {name: row["outcome"] for name, row in rows.items()} == dict.fromkeys(
        ("before_price", "at_price", "at_timeout"), "matched"
    )
    assert rows["before_price"]["input_tokens_unit_price"] == Decimal("0.000000000003")
    assert rows["at_price"]["input_tokens_unit_price"] == Decimal(2)

    journal.commit([event(COMPLETION, "after_timeout", 120 + microsecond)])
    journal.commit([heartbeat(500)])
    sink.process(journal.read(spark, JOB.columns(JOB.config())))
    later = usage(journal).filter(~pl.col("request_id").is_in(list(rows)))
    assert sorted(later.select("request_id", "outcome", "received_at").rows()) == [
        ("after_timeout", "abandoned", at(120)),
        ("after_timeout", "orphaned", at(420 + microsecond)),
        ("alone", "abandoned", at(120)),
    ]


@st.composite
def universes(draw: st.DrawFn) -> list[list[dict[str, Any]]]:
    """Commits of a journal over two partitions, whose times may be far apart; few keys, so that rows meet."""
    lanes: list[list[dict[str, Any]]] = []
    for partition in range(2):
        second, lane = 0, []
        for _ in range(draw(st.integers(6, 14))):
            second += draw(st.sampled_from([1, 20, 70, 121]))
            kind = draw(st.sampled_from([REQUEST, REQUEST, COMPLETION, COMPLETION, USAGE]))
            model = {} if kind is COMPLETION else {"model": draw(st.sampled_from(["m", "slow"]))}
            lane.append(event(kind, f"r{draw(st.integers(0, 3))}", second, partition=partition, **model))
        lanes.append([*lane, heartbeat(second + 5000, partition)])
    commits = [CATALOG]
    while any(lanes):
        # A batch of ingestion takes from every partition that has any; how much of each is chance.
        taken = [lane[: draw(st.integers(3, 8))] for lane in lanes]
        lanes = [lane[len(part) :] for lane, part in zip(lanes, taken, strict=True)]
        commits.append(sorted((row for part in taken for row in part), key=lambda row: row["received_at"]))
    return commits


@settings(max_examples=6, derandomize=True, phases=[Phase.generate], suppress_health_check=SHARED)
@given(commits=universes(), chance=st.randoms(use_true_random=False))
def test_differential_any_cut_and_any_restart_gives_the_usage_of_one_batch(
    spark: SparkSession, database: str, tmp_path_factory: pytest.TempPathFactory, commits: Any, chance: random.Random
) -> None:
    folder = tmp_path_factory.mktemp("universe")
    whole, cut = Journal(folder / "whole"), Journal(folder / "cut")
    for rows in commits:
        whole.commit(rows)
    driver(spark, database, whole).process(whole.read(spark, JOB.columns(JOB.config())))
    sink = driver(spark, database, cut)
    for rows in commits:
        cut.commit(rows)
        if chance.random() < 0.2:
            continue
        if chance.random() < 0.4:
            sink = driver(spark, database, cut)
        # A stream's batch ends with a commit, a backlog's anywhere; the first after a start holds rows that are known.
        first = max(1, sink.position() - chance.randrange(0, 3))
        end = chance.choice([cut.next_lsn, chance.randint(sink.position(), cut.next_lsn)])
        sink.process(cut.read(spark, JOB.columns(JOB.config()), first, end))
    sink.process(cut.read(spark, JOB.columns(JOB.config())))
    assert facts(usage(cut)) == facts(usage(whole))
    assert usage(cut)["lsn"].to_list() == list(range(1, len(usage(cut)) + 1))


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("chunk", [1, 5, 12])
def test_a_cut_inside_a_commit_abandons_no_row_with_a_partner_behind_it(
    spark: SparkSession, database: str, journal: Journal, chunk: int
) -> None:
    parts = [
        *(event(REQUEST, f"r{number}", number * 100) for number in range(6)),
        *(event(COMPLETION, f"r{number}", number * 100 + 3) for number in range(6)),
    ]
    journal.commit(CATALOG)
    # What ingestion writes after it was away: ten minutes in one commit, whose F is that of its last row.
    journal.commit(sorted(parts, key=lambda row: row["received_at"]))
    journal.commit([heartbeat(5000)])
    sink = driver(spark, database, journal, JoinsConfig(completion_timeout_seconds=120))
    while (first := sink.position()) < journal.next_lsn:
        sink.process(journal.read(spark, JOB.columns(JOB.config()), first, min(first + chunk, journal.next_lsn)))
    assert dict(usage(journal).group_by("outcome").len().iter_rows()) == {"matched": 6}
    assert sink.frontier() == at(5000)


def test_a_price_applies_to_rows_after_it_in_the_journal(spark: SparkSession, database: str, journal: Journal) -> None:
    journal.commit([event(USAGE, "before", 1), *CATALOG, event(USAGE, "after", 2)])
    driver(spark, database, journal).process(journal.read(spark, JOB.columns(JOB.config())))
    amounts = dict(usage(journal).select("request_id", "input_tokens_amount").iter_rows())
    assert amounts == {"before": None, "after": Decimal("0.000000000030")}


def test_a_gap_is_refused_and_a_replaced_driver_is_fenced(spark: SparkSession, database: str, journal: Journal) -> None:
    journal.commit([event(USAGE, "one", 1), event(USAGE, "two", 2)])
    old = driver(spark, database, journal)
    with pytest.raises(Refused, match="at lsn 1"):
        old.process(journal.read(spark, JOB.columns(JOB.config()), first=2))
    new = driver(spark, database, journal)
    with pytest.raises(Fenced, match=r"joins\.epoch is at 2, this driver left it at 1"):
        old.process(journal.read(spark, JOB.columns(JOB.config())))
    new.process(journal.read(spark, JOB.columns(JOB.config())))
    assert usage(journal)["request_id"].to_list() == ["one", "two"]


def test_what_waits_is_carried_bounded_and_shown(spark: SparkSession, database: str, journal: Journal) -> None:
    sink = driver(spark, database, journal)
    waiting = [event(REQUEST, f"r{number}", number) for number in range(5)]
    journal.commit([heartbeat(0), *waiting])
    sink.process(journal.read(spark, JOB.columns(JOB.config())))
    assert (sink.status()["waiting"], sink.status()["oldest_waiting_lsn"]) == (5, 2)
    journal.commit([heartbeat(122.5)])
    sink = driver(spark, database, journal)
    sink.process(journal.read(spark, JOB.columns(JOB.config())))
    assert usage(journal).select("request_id", "outcome").rows() == [(f"r{n}", "abandoned") for n in range(3)]
    assert (sink.status()["waiting"], sink.status()["oldest_waiting_lsn"]) == (2, 5)


def test_usage_has_the_day_of_its_account_and_utc_before_the_account_is_known(
    spark: SparkSession, database: str, journal: Journal
) -> None:
    berlin = change(CatalogTopic.ACCOUNTS, 0, account="a", name="A", plan="p", currency="EUR", timezone="Europe/Berlin")
    late = {"event_time": at(23.5 * 3600)}
    journal.commit([event(USAGE, "before", 1, **late), berlin, event(USAGE, "after", 2, **late)])
    driver(spark, database, journal).process(journal.read(spark, JOB.columns(JOB.config())))
    days = dict(usage(journal).select("request_id", "day").iter_rows())
    assert days == {"before": date(2026, 1, 1), "after": date(2026, 1, 2)}


def test_rows_beyond_the_memory_limit_wait_and_none_is_lost(
    spark: SparkSession, database: str, journal: Journal
) -> None:
    small = JoinsConfig(waiting_memory_mib=1)
    waiting = 12_000
    # One partition is offline: its latest receipt holds F.
    journal.commit([*CATALOG, heartbeat(0, 0), heartbeat(0, 1)])
    journal.commit([event(REQUEST, f"a-rather-long-request-id-{n}", 1 + n / 1000) for n in range(waiting)])
    sink = driver(spark, database, journal, small)
    sink.process(journal.read(spark, JOB.columns(JOB.config()), 1, 5))
    before, usage_before = sink.position(), usage(journal)
    for _ in range(2):
        with pytest.raises(NotYet, match="waiting_memory_mib") as refused:
            sink.process(journal.read(spark, JOB.columns(JOB.config())))
        assert refused.value.cause is Cause.MEMORY
        sink = driver(spark, database, journal, small)
        assert sink.position() == before
        assert usage(journal).equals(usage_before)
    journal.commit([event(COMPLETION, f"a-rather-long-request-id-{n}", 10 + n / 1000) for n in range(waiting)])
    journal.commit([heartbeat(5000, 0), heartbeat(5000, 1)])
    # Though F has moved by now, the rows before that have no room: what is said to be enough is.
    with pytest.raises(NotYet, match="Set it to that") as refused:
        driver(spark, database, journal, small).process(journal.read(spark, JOB.columns(JOB.config()), 1, 5 + waiting))
    (enough,) = re.findall(r"that follow at most (\d+)\.", str(refused.value))
    sink = driver(spark, database, journal, JoinsConfig(waiting_memory_mib=int(enough)))
    sink.process(journal.read(spark, JOB.columns(JOB.config()), 1, 5 + 3 * waiting // 2))
    sink.process(journal.read(spark, JOB.columns(JOB.config())))
    assert dict(usage(journal).group_by("outcome").len().iter_rows()) == {"matched": waiting}


def test_expired_rows_are_freed_before_joins_waits_for_memory(
    spark: SparkSession, database: str, journal: Journal
) -> None:
    pairs, batches = 1_500, 8
    for batch in range(batches):
        begun = batch * 5_000
        ids = [f"a-rather-long-request-id-{batch}-{n}" for n in range(pairs)]
        requests = [event(REQUEST, name, begun + n / 1000) for n, name in enumerate(ids)]
        completions = [event(COMPLETION, name, begun + 5 + n / 1000) for n, name in enumerate(ids)]
        journal.commit([*requests, *completions, heartbeat(begun + 100)])
    sink = driver(spark, database, journal, JoinsConfig(waiting_memory_mib=1))
    for _ in range(batches):
        first = sink.position()
        sink.process(journal.read(spark, JOB.columns(JOB.config()), first, first + 2 * pairs + 1))
    status = sink.status()
    assert status["waiting_bytes"] <= status["waiting_limit_bytes"] == 1 << 20
    assert dict(usage(journal).group_by("outcome").len().iter_rows()) == {"matched": batches * pairs}
