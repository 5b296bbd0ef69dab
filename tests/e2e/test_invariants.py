"""What must always hold (docs/design.md, The checks), looked up in the stack that the other tests used and hurt."""

from __future__ import annotations

import copy
import json
from collections import defaultdict
from decimal import Decimal
from typing import Any

import polars as pl
import psycopg
import pytest
from deltalake import DeltaTable

from deployment.stack import Stack, running_stack
from jobs.journal.elements import is_record
from jobs.journal.families import family
from metering.vocabulary import BILLABLE, REQUESTS, Published
from tests.e2e.conftest import weir_at
from tests.e2e.metering import drain, weir
from tests.following import Follower, committed, refuse_other_windows, truth
from tests.following import table as last_of_each_key
from tests.waiting import wait_until
from traffic.compare import compare
from traffic.found import numbers_are_counted

DECISION_SECONDS = 270
OF_WATCHING = (
    "analytics_views",
    "analytics_panes",
    "analytics_patterns",
    "pattern_outcomes",
    "pattern_matches",
    "watches",
    "watch_hits",
    "watch_hours",
    "watch_calls",
    "watch_progress",
    "threshold_changes",
)
METERS = ["requests", "input_tokens", "output_tokens", "cached_tokens"]


@pytest.fixture(scope="module", autouse=True)
def at_rest(stack: Stack) -> None:
    drain(stack)


def table(stack: Stack, name: str) -> pl.DataFrame:
    return pl.DataFrame(DeltaTable(f"{stack.tables}/{name}").to_pyarrow_table())


def query(stack: Stack, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(stack.postgres_url) as connection:
        return connection.execute(sql).fetchall()


def test_generated_traffic_is_billed_as_its_truth_says(stack: Stack, truth_of_traffic: dict[str, Any]) -> None:
    # Abandoned requests are decided two minutes after they came.
    drained = weir_at(stack.data_dir, "drain", "--include-waiting", "--timeout", str(DECISION_SECONDS))
    assert drained.returncode == 0, drained.stdout + drained.stderr
    with psycopg.connect(stack.postgres_url, autocommit=True) as database:
        wait_until(lambda: numbers_are_counted(database, truth_of_traffic["tag"]), "the end of the last minute")
    comparison = compare(truth_of_traffic, stack.postgres_url, stack.tables)
    assert comparison.differences == []
    assert comparison.is_equal
    # A comparison that could not fail would prove nothing.
    wrong = copy.deepcopy(truth_of_traffic)
    wrong["totals"][0]["amount"] += "1"
    wrong["outcomes"].pop()
    assert len(compare(wrong, stack.postgres_url, stack.tables).differences) > 2


def test_an_audit_bills_generated_traffic_as_its_truth(stack: Stack, truth_of_traffic: dict[str, Any]) -> None:
    audited = weir_at(stack.data_dir, "audit", "--format", "json")
    assert audited.returncode == 0, audited.stdout + audited.stderr
    comparison = compare(truth_of_traffic, stack.postgres_url, stack.tables, audited=True)
    assert comparison.differences == []
    # What was taken back is not on the bill as it was before.
    wrong = copy.deepcopy(truth_of_traffic)
    for outcome in wrong["outcomes"]:
        outcome.pop("left", None)
    wrong["audited"] = {name: wrong[name] for name in ("totals", "stragglers")}
    names = {line.split(":")[0] for line in compare(wrong, stack.postgres_url, stack.tables, audited=True).differences}
    assert {"requests matched that stand", "windows of requests"} <= names


def test_i1_lsns_and_offsets_are_contiguous_each_once(stack: Stack) -> None:
    for name in ("journal", "usage"):
        lsn = table(stack, name)["lsn"].sort()
        assert lsn.to_list() == list(range(1, len(lsn) + 1)), name
    journal = table(stack, "journal")
    # Of an event with elements the first stands for the record.
    offsets = (
        journal.filter(is_record(journal.schema))
        .group_by("topic", "partition")
        .agg(pl.col("offset").n_unique().alias("distinct"), pl.len().alias("rows"))
    )
    assert offsets.filter(pl.col("distinct") != pl.col("rows")).is_empty()
    assert offsets["distinct"].sum() == journal.select("topic", "partition", "offset").n_unique()


def test_i2_every_record_is_accounted_for(stack: Stack) -> None:
    summary = json.loads(weir(stack, "journal", "--summary", "--format", "json").stdout)
    assert summary
    assert [row["residual"] for row in summary if int(row["residual"]) != 0] == []


def test_i3_no_identity_is_accepted_twice(stack: Stack) -> None:
    accepted = table(stack, "journal").filter((pl.col("disposition") == "accepted") & pl.col("identity").is_not_null())
    assert accepted["identity"].n_unique() == len(accepted)


def test_i4_every_decided_event_is_in_exactly_one_outcome(stack: Stack) -> None:
    journal, usage = table(stack, "journal"), table(stack, "usage").filter(pl.col("cause") == "stream")
    events = journal.filter((pl.col("disposition") == "accepted") & family().is_in(list(BILLABLE)))
    named = pl.concat(
        [
            usage.select(pl.col("request_lsn").alias("lsn")).drop_nulls(),
            usage.filter(pl.col("completion_lsn").ne_missing(pl.col("request_lsn")))
            .select(pl.col("completion_lsn").alias("lsn"))
            .drop_nulls(),
        ]
    )
    assert named["lsn"].n_unique() == len(named)
    assert named.join(events, on="lsn", how="anti").is_empty()
    undecided = events.join(named, on="lsn", how="anti")
    waiting = DeltaTable(f"{stack.tables}/usage").transaction_version("waiting") or 0
    position = DeltaTable(f"{stack.tables}/usage").transaction_version("journal") or 1
    assert len(undecided.filter(pl.col("lsn") < position)) == waiting


def test_i5_sessions_are_disjoint_and_count_every_request_with_a_user(stack: Stack) -> None:
    closer = """
        SELECT count(*) FROM sessions a JOIN sessions b
        ON a.account = b.account AND a.user_id = b.user_id AND a.session_id < b.session_id
        WHERE a.retracted_at IS NULL AND b.retracted_at IS NULL
          AND a.session_start <= b.session_end + interval '30 minutes'
          AND b.session_start <= a.session_end + interval '30 minutes'
    """
    assert query(stack, closer) == [(0,)]
    position = query(stack, "SELECT next_position FROM positions WHERE job = 'sessionization'")[0][0]
    counted = table(stack, "journal").filter(
        (pl.col("disposition") == "accepted")
        & family().is_in(list(REQUESTS))
        & pl.col("user_id").is_not_null()
        & (pl.col("lsn") < position)
    )
    folded = query(stack, "SELECT coalesce(sum(events), 0)::bigint FROM sessions WHERE retracted_at IS NULL")
    assert folded == [(len(counted),)]


def test_i6_signed_usage_is_what_windows_and_dropped_stragglers_hold(stack: Stack) -> None:
    """Of every meter that there ever was, to the last digit; and the days hold what the windows do."""
    position = query(stack, "SELECT next_position FROM positions WHERE job = 'billing'")[0][0]
    said: defaultdict[str, Decimal] = defaultdict(Decimal)
    for row in table(stack, "usage").filter(pl.col("lsn") < position).iter_rows(named=True):
        for meter, quantity in quantities(row):
            said[meter] += row["sign"] * Decimal(quantity)
    sums = "SELECT meter, sum(quantity) FROM ({}) AS held GROUP BY meter HAVING sum(quantity) <> 0 ORDER BY meter"
    windows, dropped = (
        "SELECT meter, quantity FROM usage_windows",
        "FROM stragglers WHERE decision NOT IN ('correct', 'approve')",
    )
    held = query(stack, sums.format(f"{windows} UNION ALL SELECT meter, quantity {dropped}"))
    assert held == sorted((meter, quantity) for meter, quantity in said.items() if quantity)
    assert {meter for meter, _ in held} >= {*METERS, "gpu_seconds"}
    # A period is in no window; the audit proves it by its members.
    of_periods = "SELECT meter FROM meters WHERE period IS NOT NULL"
    days = f"SELECT meter, quantity FROM usage_days WHERE meter NOT IN ({of_periods})"
    assert query(stack, sums.format(days)) == query(stack, sums.format(windows))


def quantities(row: dict[str, Any]) -> list[tuple[str, Any]]:
    """(meter, quantity) of a row; an earlier release had a column for each."""
    listed = row.get("meters")
    named = (
        [(meter, row[meter]) for meter in METERS] if listed is None else [(e["meter"], e["quantity"]) for e in listed]
    )
    return [(meter, quantity) for meter, quantity in named if quantity is not None]


@pytest.mark.usefixtures("truth_of_traffic")
def test_a_subscriber_has_every_window_as_it_is_and_every_correction_once(stack: Stack) -> None:
    with psycopg.connect(stack.postgres_url, autocommit=True) as database:
        wait_until(lambda: query(stack, "SELECT count(*) FROM unsent_windows") == [(0,)], "all being published", 60)
        for topic in Published:
            messages, wanted = committed(stack.kafka_bootstrap, topic), truth(database, topic)
            follower = Follower()
            for message in messages:
                follower.take(topic, message.value() or b"")
            assert follower.held[topic] == wanted != {}
            if topic is Published.WINDOWS:
                assert last_of_each_key(messages) == wanted
                assert refuse_other_windows(database, messages) == len(wanted)


@pytest.mark.usefixtures("truth_of_traffic")
def test_foreign_records_are_compared_and_replayed_too(stack: Stack) -> None:
    assert len(table(stack, "usage").filter(pl.col("cause") == "stream")) > 30_000


@pytest.mark.usefixtures("truth_of_traffic")
def test_i10_a_batch_and_a_replay_equal_the_stream(stack: Stack) -> None:
    """Of generated traffic, of a stranger's 60,000 records, and of what kills left behind.

    An older release kept no rules: what began under it is not computed again.
    """
    audited = weir_at(stack.data_dir, "audit", "--format", "json")
    assert audited.returncode == 0, audited.stdout + audited.stderr
    found = {row["check"]: row for row in json.loads(audited.stdout)}
    assert found["I10"]["holds"], found["I10"]
    made = table(stack, "usage").filter((pl.col("cause") == "stream") & pl.col("meters").is_not_null())
    assert 0 < 0.99 * len(made) < found["I10"]["examined"] <= len(made), (len(made), found["I10"]["examined"])
    ends = "SELECT min(window_start), max(window_start) + interval '1 minute' FROM usage_windows"
    start, end = (bound.isoformat() for bound in query(stack, ends)[0])
    replayed = weir_at(
        stack.data_dir, "what-if", "--from", start, "--to", end, "--into", "again", "--replace", "--format", "json"
    )
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    document = json.loads(replayed.stdout)
    assert document["windows"] == [], document["windows"][:3]
    assert {total["difference_amount"] for total in document["totals"]} <= {"0", None}, document["totals"]
    live = query(stack, "SELECT count(*), sum(quantity) FROM usage_windows")
    assert query(stack, "SELECT count(*), sum(quantity) FROM again.usage_windows") == live


def test_without_views_patterns_watches_and_limits_nothing_of_them_runs_or_is_stored(stack: Stack) -> None:
    started = {process.name for process in running_stack(stack.data_dir).processes}
    assert {"joins", "billing"} <= started
    assert "analytics" not in started
    for table in OF_WATCHING:
        assert query(stack, f"SELECT count(*) FROM {table}") == [(0,)], table
    for table in ("jobs", "positions", "batches", "rules", "exits"):
        assert query(stack, f"SELECT count(*) FROM {table} WHERE job = 'analytics'") == [(0,)], table
