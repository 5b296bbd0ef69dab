"""Method: journals cut anywhere by drivers with other timeouts, compared with the rule in Python and the history.

Every accepted request or completion is in exactly one outcome, and what the history says makes the same outcomes again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from jobs.joins.config import JoinsConfig
from jobs.joins.pipeline import JOB
from jobs.runtime.delta.table import microseconds_of
from jobs.runtime.effective_rules import History, read_history, rules_at
from jobs.streams import Table
from metering.joining import Row, Side, step
from metering.vocabulary import EventType
from tests.streaming.journals import Journal, at, event, heartbeat
from tests.streaming.test_usage_sink import COMPLETION, REQUEST, SHARED, driver, universes, usage

SIDES = {EventType.REQUEST: Side.REQUEST, EventType.COMPLETION: Side.COMPLETION, EventType.USAGE: Side.BOTH}
CONFIGS = [
    JoinsConfig(completion_timeout_seconds=default, completion_timeouts=models)
    for default in (30, 120, 600)
    for models in ({}, {"slow": 300}, {"slow": 10})
]
Told = Counter[tuple[str, int | None, int | None]]


def history_of(journal: Journal) -> History:
    return read_history(DeltaTable(f"{journal.tables}/{Table.USAGE}"))[0]


def timeout_us(row: dict[str, Any], history: History) -> int:
    rules = rules_at(history, row["lsn"])
    default_s, by_model_s = rules["completion_timeout_seconds"], rules["completion_timeouts"]
    if row["type"] == COMPLETION:
        return int(max(default_s, *by_model_s.values(), 0)) * 1_000_000
    return int(by_model_s.get(row["model"], default_s)) * 1_000_000


def recomputed(rows: list[dict[str, Any]], history: History) -> Told:
    """Every outcome of a journal that has come to its end, by the rule alone."""
    keys = defaultdict(list)
    for row in rows:
        keys[row["request_id"]].append(
            Row(
                row["lsn"], SIDES[EventType(row["type"])], microseconds_of(row["received_at"]), timeout_us(row, history)
            )
        )
    decided = [decision for of_key in keys.values() for decision in step((), of_key, microseconds_of(at(10**7)))[1]]
    return Counter((d.fate.value, d.request_lsn, d.completion_lsn) for d in decided)


def told(journal: Journal) -> Told:
    return Counter(usage(journal).select("outcome", "request_lsn", "completion_lsn").iter_rows())


def paired_rows(journal: Journal) -> list[dict[str, Any]]:
    rows = pl.DataFrame(DeltaTable(f"{journal.tables}/{Table.JOURNAL}").to_pyarrow_table())
    return rows.filter(pl.col("request_id").is_not_null()).sort("lsn").to_dicts()


@pytest.mark.long
@settings(max_examples=6, derandomize=True, phases=[Phase.generate], suppress_health_check=SHARED)
@given(commits=universes(), chance=st.randoms(use_true_random=False))
def test_oracle_a_changed_timeout_loses_nothing_and_decides_nothing_again(
    spark: SparkSession, database: str, tmp_path_factory: pytest.TempPathFactory, commits: Any, chance: Any
) -> None:
    journal = Journal(tmp_path_factory.mktemp("universe"))
    sink = driver(spark, database, journal, chance.choice(CONFIGS))
    for rows in commits:
        journal.commit(rows)
        end = chance.choice([journal.next_lsn, chance.randint(sink.position(), journal.next_lsn)])
        sink.process(journal.read(spark, JOB.columns(JOB.config()), sink.position(), end))
        if chance.random() < 0.6:
            sink = driver(spark, database, journal, chance.choice(CONFIGS))
    # Far enough that nobody waits; an outcome may be what brings the last change into force.
    for second in (10**6, 2 * 10**6):
        journal.commit([heartbeat(second, 0), heartbeat(second, 1)])
        sink.process(journal.read(spark, JOB.columns(JOB.config()), sink.position()))
    rows, found = paired_rows(journal), told(journal)
    named = Counter(lsn for _, request, completion in found.elements() for lsn in {request, completion} - {None})
    assert named == Counter(row["lsn"] for row in rows)
    assert found == recomputed(rows, history_of(journal))


def test_requests_that_wait_when_the_timeout_is_lowered_are_all_decided(
    spark: SparkSession, database: str, tmp_path: Any
) -> None:
    journal = Journal(tmp_path)
    journal.commit([event(REQUEST, f"r{second}", second) for second in range(0, 100, 10)])
    journal.commit([event(EventType.USAGE, "both", 110)])
    sink = driver(spark, database, journal, JoinsConfig(completion_timeout_seconds=120))
    sink.process(journal.read(spark, JOB.columns(JOB.config())))
    # Between the new timeout and the old one: such a row was in no usage row ever after.
    sink = driver(spark, database, journal, JoinsConfig(completion_timeout_seconds=30))
    assert sink.status()["waiting"] == 10
    journal.commit([event(COMPLETION, "r90", 115), event(REQUEST, "later", 116), heartbeat(400)])
    sink.process(journal.read(spark, JOB.columns(JOB.config()), sink.position()))
    fates = Counter(outcome for outcome, _, _ in told(journal).elements())
    assert fates == {"matched": 2, "abandoned": 10}
    assert [(held.first, held.rules["completion_timeout_seconds"]) for held in history_of(journal)] == [
        (1, 120),
        (sink.position(), 30),
    ]


def test_a_changed_condition_counts_outcomes_from_its_batch_on(
    spark: SparkSession, database: str, tmp_path: Any
) -> None:
    journal, said = Journal(tmp_path), {"cached": True, "region": "eu"}
    before, after = ({"cached": True}, {"cached": False, "region": ["eu", "us"], "status": ["completed"]})
    journal.commit([event(REQUEST, "waits", 1, region="us"), event(EventType.USAGE, "first", 2, **said)])
    sink = driver(spark, database, journal, looking_at(before))
    sink.process(journal.read(spark, JOB.columns(looking_at(before))))
    sink = driver(spark, database, journal, looking_at(after))
    journal.commit(
        [
            event(EventType.USAGE, "second", 3, **said),
            event(COMPLETION, "waits", 4, cached=False),
            event(EventType.USAGE, "third", 5, **said | {"cached": False}),
            event(EventType.USAGE, "failed", 6, **said | {"cached": False, "status": "error"}),
        ]
    )
    sink.process(journal.read(spark, JOB.columns(looking_at(after)), sink.position()))
    counted = {
        (row["request_id"], entry["meter"])
        for row in DeltaTable(f"{journal.tables}/{Table.USAGE}").to_pyarrow_table().to_pylist()
        for entry in row["meters"]
        if entry["meter"] in ("requests", "input_tokens")
    }
    assert counted == {(name, meter) for name in ("first", "waits", "third") for meter in ("requests", "input_tokens")}
    assert [held.rules["meters"]["requests"]["where"]["cached"] for held in history_of(journal)] == [[True], [False]]


def looking_at(where: dict[str, Any]) -> JoinsConfig:
    requests = {"unit": "request", "count": "outcomes", "where": where}
    tokens = {"unit": "token", "sum": "input_tokens", "where": where}
    return JoinsConfig.model_validate({"meters": {"requests": requests, "input_tokens": tokens}})
