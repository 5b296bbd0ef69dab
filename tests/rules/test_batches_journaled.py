"""Batches in the journal: ingestion's own sink on a table of its own, with neither a broker nor a database."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cli.conflicts import ConflictQuery, conflict_rows
from cli.journal import summary_rows
from cli.redrive.offline import Offline
from jobs.audit.compare.conservation import count_records_and_events, count_rows
from jobs.audit.compare.partition_balance import PartitionRange
from jobs.explain.files import Files
from jobs.explain.records import Period, Tables
from jobs.ingestion import ledger
from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.declared_columns import declared_columns
from jobs.ingestion.documents import records_of
from jobs.ingestion.earlier_rules import looked_for
from jobs.ingestion.earlier_topics import TRANSACTION as ELSEWHERE
from jobs.ingestion.elements import TRANSACTION
from jobs.ingestion.erasures import Erasures
from jobs.ingestion.event_topics import EventTopic, EventTopics
from jobs.ingestion.identity_index import IdentityIndex
from jobs.ingestion.identity_journal import JournalIdentities
from jobs.ingestion.ledger import OffsetLedger
from jobs.ingestion.pipeline import settle
from jobs.ingestion.sink import JournalSink
from jobs.runtime.delta.newest_batch import newest_batch
from jobs.runtime.delta.table import DeltaWriter
from jobs.runtime.effective_rules import RulesHistory
from jobs.runtime.kafka import headers
from jobs.runtime.kafka.topic import Topic
from jobs.streams import CatalogTopic, Table
from metering.instants import EPOCH
from tests.rules.test_batches import BAD, CONFIG, TRACE, batch, trace, usage
from tests.streaming.journals import environment

EVENTS = Topic("events", "id", (0,))
NOW = datetime(2026, 7, 1, 12, 1, tzinfo=UTC)


def sink_on(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: IngestionConfig = CONFIG,
    *topics: Topic,
) -> JournalSink:
    """A driver's sink that begins where the table in the folder ends; what it asks of others has no answer."""
    monkeypatch.setattr(ledger, "refuse_lost_records", lambda *_: None)
    monkeypatch.setattr(ledger, "offsets", lambda _admin, topic, _at: dict.fromkeys(topic.partitions, 0))
    made = object.__new__(JournalSink)
    fields: dict[str, Any] = {name: MagicMock() for name in ("_catalog", "_isolated")}
    fields |= {name: MagicMock() for name in ("_bookkeeping", "_pace", "_ownership")}
    validator = config.validator()
    stored = [*validator.fields, headers.FIELD]
    number = len(list(folder.glob("**/*.json"))) + 1
    writer = DeltaWriter(str(folder), Table.JOURNAL, "ingestion", number, 0, declared=declared_columns(stored, None))
    ledgers = [OffsetLedger(writer, MagicMock(), topic, decides_frontier=True) for topic in topics or (EVENTS,)]
    absent = MagicMock()
    absent.prove.return_value = {}
    events = EventTopics([EventTopic(of_topic, absent) for of_topic in ledgers])
    identities = JournalIdentities(writer)
    index = IdentityIndex(identities, config.horizons, config.identity_memory_bytes)
    writer.recall(TRANSACTION)
    fields["_elsewhere"] = writer.recall(ELSEWHERE) or 0
    index.restore(writer.next_lsn, events.frontier())
    rules = RulesHistory(writer, config.deciding)
    fields |= {"_validator": validator, "_fields": tuple(field.name for field in validator.fields), "_writer": writer}
    fields |= {"_events": events, "_ledgers": ledgers, "_config": config, "_rules": rules, "_index": index}
    fields |= {"_identities": identities, "_looked_for": looked_for(config, rules.history)}
    fields |= {"_clock": SimpleNamespace(now=lambda: NOW), "_look": lambda: SimpleNamespace(now=NOW, restamps={})}
    fields |= {"_erasures": Erasures("", CatalogTopic)}
    fields |= {"driver_rows": None, "_spark": None}
    fields |= {"_follow_topics": lambda: None, "_settle": lambda _: None}
    for name, value in fields.items():
        setattr(made, name, value)
    fields["_catalog"].read_to_end.return_value = ([], {})
    fields["_catalog"].rows.return_value = pl.DataFrame(schema={"topic": pl.String})
    fields["_catalog"].taken.return_value = {}
    fields["_isolated"].pending.return_value = {}
    fields["_bookkeeping"].add.return_value = {}
    return made


def records(values: list[tuple[bytes, str | None]], first: int) -> pa.Table:
    """Records from the offset `first` on, each with the place of the dead letter that it replays."""
    made = pl.DataFrame(records_of([value for value, _ in values]))
    marks = [None if place is None else place.encode() for _, place in values]
    return made.with_columns(
        pl.col("offset") + first,
        pl.lit(NOW).cast(pl.Datetime("us", "UTC")).alias("timestamp"),
        pl.Series("replay_mark", marks, pl.Binary),
    ).to_arrow()


def accounted(folder: Path, made: JournalSink) -> pl.DataFrame:
    """The rows by lsn; I1 and I2 hold of them."""
    table = DeltaTable(f"{folder}/{Table.JOURNAL}")
    found = pl.DataFrame(table.to_pyarrow_table()).sort("lsn")
    assert found["lsn"].to_list() == list(range(1, len(found) + 1))
    assert made._unaccounted() == 0
    assert sum(count_rows(table).values()) == found["offset"].n_unique()
    for _, record in found.group_by("offset"):
        assert record["lsn"].max() - record["lsn"].min() == len(record) - 1  # type: ignore[operator]
        assert record["element"].n_unique() == len(record)
    return found


@pytest.fixture
def take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., pl.DataFrame]:
    """Have a new driver take records after those before; gives all rows of the journal."""

    def taken(*values: bytes | tuple[bytes, str], config: IngestionConfig = CONFIG, cuts: int = 1) -> pl.DataFrame:
        made = sink_on(tmp_path, monkeypatch, config)
        first = made._events.positions()["events"].get(0, 0)
        given = records([value if isinstance(value, tuple) else (value, None) for value in values], first)
        validated = made._validator.validate(given)
        size = -(-len(values) // cuts)
        for start in range(0, len(values), size):
            is_part = [first + start <= offset < first + start + size for offset in validated["offset"].to_pylist()]
            assert made.process(validated.filter(pa.array(is_part))).records == len(values[start : start + size])
        # What was read is read again, as after a crash.
        assert made.process(validated).records == 0
        return accounted(tmp_path, made)

    return taken


@pytest.mark.parametrize("cuts", [1, 3])
def test_each_event_of_a_batch_is_a_row_with_its_own_fate(
    take: Callable[..., pl.DataFrame], cuts: int, tmp_path: Path
) -> None:
    first, second, third = (usage(name) for name in ("b1", "b2", "b3"))
    mixed = batch([first, trace("t", 3), second, {**second, "subject": "other"}])
    take(json.dumps(first).encode(), mixed, json.dumps(usage("x")).encode(), cuts=cuts)
    found = take(batch([third, second]), json.dumps(second).encode(), json.dumps(trace("t", 3)).encode(), cuts=cuts)
    assert found.select("id", "disposition", "element").rows() == [
        *[("b1", "accepted", 0), ("b1", "duplicate", 1)],
        *[("t", "accepted", 1_000 + number) for number in (1, 2, 3)],
        *[("b2", "accepted", 2_001), ("b2", "conflict", 3_001), ("x", "accepted", 0)],
        *[("b3", "accepted", 1), ("b2", "duplicate", 1_001), ("b2", "duplicate", 0)],
        *[("t", "duplicate", number) for number in (1, 2, 3)],
    ]
    stored = found.filter(pl.col("value").is_not_null())
    assert all(json.loads(value)["id"] == name for name, value in stored.select("id", "value").iter_rows())
    assert found.filter(id="t")["request_id"].to_list() == [f"r-t/{number}" for number in (1, 2, 3)] * 2
    assert found.filter(id="t")["first_lsn"].to_list() == [None] * 3 + [3] * 3
    table = DeltaTable(f"{tmp_path}/{Table.JOURNAL}")
    assert [(row["id"], row["differs"]) for row in conflict_rows(table, ConflictQuery())] == [("b2", "/subject")]
    tables = Tables(Files.of(table, Table.JOURNAL), Files.none(Table.USAGE), None, 100)
    of_call = tables.of_id("r-t/3", Period(EPOCH)).records
    assert of_call["element"].to_list() == [1_003, 3]
    assert [json.loads(value)["id"] for value in of_call["value"]] == ["t", "t"]
    kinds = tables.of_id("b2", Period(EPOCH)).records["disposition"].to_list()
    assert kinds == ["accepted", "conflict", "duplicate", "duplicate"]


@pytest.mark.parametrize("cuts", [1, 3])
def test_a_batch_with_an_old_event_is_a_dead_letter_and_comes_back_whole(
    take: Callable[..., pl.DataFrame], cuts: int
) -> None:
    old = {**usage("c2"), "time": (NOW - timedelta(seconds=200)).isoformat()}
    events = [usage("c1"), old, usage("c3")]
    strict = CONFIG.model_copy(update={"accept_past_seconds": 100})
    [dead, _] = take(batch(events), json.dumps(usage("c1")).encode(), config=strict).to_dicts()
    assert (dead["reason"], dead["id"], dead["element"], dead["input_tokens"]) == ("too_old", "c2", 0, None)
    assert dead["violation"].endswith("; in event 2 (/1)")
    assert dead["value"] == batch(events)
    again = (batch(events), "events/0/0")
    found = take(again, again, json.dumps(usage("y")).encode(), cuts=cuts)
    back = found.filter(replays_lsn=dead["lsn"])
    assert back.select("id", "disposition").rows() == [
        *[("c1", "duplicate"), ("c2", "accepted"), ("c3", "accepted")],
        *[("c1", "duplicate"), ("c2", "duplicate"), ("c3", "duplicate")],
    ]


@pytest.mark.parametrize("cuts", [1, 4])
def test_of_an_edited_dead_letter_each_event_is_accepted_once(take: Callable[..., pl.DataFrame], cuts: int) -> None:
    """Also if the one who edits it gives its events other ids each time; and in one batch with what it replays."""
    edited = [(batch([usage(f"{name}1"), usage(f"{name}2")]), "events/0/0") for name in "ab"]
    found = take(batch([usage("d1"), BAD]), *edited, batch([usage("z1"), usage("z2")]), cuts=cuts)
    assert found.filter(pl.col("replays_lsn").is_not_null()).select("id", "disposition", "replays_lsn").rows() == [
        *[("a1", "accepted", 1), ("a2", "accepted", 1), ("b1", "duplicate", 1), ("b2", "duplicate", 1)],
    ]
    assert found.filter(pl.col("id").str.starts_with("z"))["disposition"].to_list() == ["accepted"] * 2
    assert TRACE["$id"] not in found["type"].to_list()


def test_a_dry_run_of_redriving_a_batch_names_the_event_that_would_be_rejected() -> None:
    old = {**usage("c2"), "time": (NOW - timedelta(seconds=200)).isoformat()}
    events = [
        batch([usage("c1"), old]),
        json.dumps(usage("x")).encode(),
        batch([usage("y")]),
        batch([usage("c1"), BAD]),
    ]
    strict = CONFIG.model_copy(update={"accept_past_seconds": 100})
    found = list(Offline(strict, lambda: NOW).verdicts(events, [None] * 4, [None] * 4))
    assert [verdict.reason for verdict in found] == ["too_old", None, None, "invalid_tokens"]
    assert [(verdict.violation or "").rpartition("; in ")[2] for verdict in found] == [
        "event 2 (/1)",
        "",
        "",
        "event 2 (/1)",
    ]
    assert {
        verdict.reason for verdict in Offline(CONFIG, lambda: NOW).verdicts(events[:3], [None] * 3, [None] * 3)
    } == {None}


@pytest.mark.parametrize(("kind", "taken"), [(pa.string(), False), (pa.int32(), True)])
def test_a_journal_whose_column_is_an_earlier_contracts_takes_no_batches(
    kind: pa.DataType, taken: bool, tmp_path: Path
) -> None:
    DeltaTable.create(f"{tmp_path}/{Table.JOURNAL}", pa.schema([("lsn", pa.int64()), ("element", kind)]))
    assert settle(IngestionConfig(), environment("", tmp_path)).batches is taken


def test_the_newest_batch_is_the_last_record_with_a_second_event(
    take: Callable[..., pl.DataFrame], tmp_path: Path
) -> None:
    assert newest_batch(str(tmp_path)) is None
    take(json.dumps(usage("one")).encode(), batch([usage("alone")]), json.dumps(trace("t", 3)).encode())
    assert newest_batch(str(tmp_path)) is None
    take(batch([usage("n1"), usage("n2")]))
    assert newest_batch(str(tmp_path)) == NOW


def test_the_summary_counts_records_once_and_each_accepted_event_of_a_batch(
    take: Callable[..., pl.DataFrame], tmp_path: Path
) -> None:
    # Of the second record the first event is a repeat, and the second is new; a trace is one event of three calls.
    first, second = usage("s1"), usage("s2")
    take(json.dumps(first).encode(), batch([first, second]), batch([usage("s3"), usage("s4"), trace("t", 3)]))
    table = DeltaTable(f"{tmp_path}/{Table.JOURNAL}")
    rows, events = count_records_and_events(table)
    [line] = summary_rows({("events", 0): PartitionRange(0, 3, 0)}, rows, by_reason=False, events=events)
    assert (line["accepted"], line["duplicate"], line["accepted_events"], line["residual"]) == (2, 1, 5, 0)
    split = list(summary_rows({("events", 0): PartitionRange(0, 3, 0)}, rows, by_reason=True, events=events))
    assert [row["accepted_events"] for row in split] == [5]
