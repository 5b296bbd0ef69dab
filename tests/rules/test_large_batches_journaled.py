"""ingestion's two sizes: what tasks write of a large batch is, in every column, what the driver alone writes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark import cloudpickle

from jobs.ingestion import large_batch
from jobs.ingestion.bookkeeping import Sums
from jobs.ingestion.catalog import NO_ROWS
from jobs.ingestion.conditions import rejected_of
from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.erasures import Erasures
from jobs.ingestion.handover import FILES, Left, left_in
from jobs.ingestion.large_batch import WriteRange
from jobs.ingestion.quarantine import is_quarantined, verdicts
from jobs.ingestion.sequences import KEY
from jobs.ingestion.sink import JournalSink
from jobs.ingestion.validator import EventValidator
from jobs.journal.erasing import concerned
from jobs.runtime.delta.new_files import EXCHANGE, Folder
from jobs.runtime.errors import Fenced
from jobs.runtime.kafka.records import RECORDS
from jobs.runtime.kafka.topic import Topic
from jobs.runtime.summaries import answers_of_tasks
from jobs.streams import CatalogTopic, Table
from metering.erasure import Erased, ErasureKey, People
from metering.vocabulary import Disposition, Isolation, Reason
from tests.corpus import BAD_DOCUMENTS, GOOD_DOCUMENTS
from tests.orphans import orphans, remove_orphans
from tests.rules.test_batches import TRACE, batch, trace, usage
from tests.rules.test_batches_journaled import NOW, sink_on
from tests.simulation.frames import Tasks

PARTITIONS = 3
TOPIC = Topic("events", "id", tuple(range(PARTITIONS)))
CONFIG = IngestionConfig.model_validate(
    {"clocks": {"device": ["device/*"]}, "backfill": {"sources": ["history"]}, "contracts": [TRACE]}
)
SIZES = (None, 1, 100)
Record = dict[str, Any]


class Here:
    """What ingestion uses of Spark, in this process: each task gets and gives what Arrow carries."""

    sparkContext = SimpleNamespace(defaultParallelism=3, getConf=lambda: {"spark.master": "local[2]"})  # noqa: N815

    def range(self, first: int, end: int, _step: int, tasks: int) -> Tasks:
        return Tasks([list(range(first, end))[number::tasks] for number in range(tasks)])


class Driver:
    """A driver of ingestion on a table of its own, and what it has added to the statistics."""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        driver_rows: int | None,
        config: IngestionConfig = CONFIG,
        people: People | None = None,
        *,
        range_rows: int = 17,
        topics: Sequence[Topic] = (TOPIC,),
    ) -> None:
        self.folder, self.topics = folder, topics
        self.sink: JournalSink = sink_on(folder, monkeypatch, config, *topics)
        self.sink.driver_rows, self.sink._spark = driver_rows, Here()  # type: ignore[assignment]
        self.sink.range_rows = range_rows
        self.sums: list[Sums] = []
        self.progress: list[Any] = []
        self.large = 0
        commit_files = self.sink._writer.commit_files

        def counted(*given: Any) -> None:
            self.large += 1
            commit_files(*given)

        monkeypatch.setattr(self.sink._writer, "commit_files", counted)
        keeper: Any = self.sink._bookkeeping
        keeper.add.side_effect = lambda sums, *_: self._add(sums)
        owner: Any = self.sink._ownership
        owner.epoch = self.sink._writer.known["ingestion.epoch"]
        if people is not None:
            self.sink._erasures = Erasures("", CatalogTopic)
            self.sink._erasures._people = people

    def _add(self, sums: Sums) -> dict[Any, int]:
        self.sums.append(sums)
        return {}

    def given(self, records: Sequence[Record]) -> SimpleNamespace | pa.Table:
        """Records as a batch of Spark, validated by a task for each partition; as rows without executors."""
        validator = self.sink._validator
        if self.sink.driver_rows is None:
            return validator.validate(pa.Table.from_pylist(list(records), RECORDS))
        files: list[pa.RecordBatch] = []
        for place in [(topic.name, partition) for topic in self.topics for partition in topic.partitions]:
            own = [record for record in records if (record["topic"], record["partition"]) == place]
            # Spark hands a task some records at a time.
            blocks = (
                table
                for start in range(0, len(own), 7)
                for table in validator.validated_blocks(pa.Table.from_pylist(own[start : start + 7], RECORDS))
            )
            files += left_in(self.sink._beside(), blocks, validator.schema)
        return SimpleNamespace(toArrow=lambda: pa.Table.from_batches(files, FILES))

    def take(self, records: Sequence[Record], changes: int = 0) -> Any:
        """Have it process a batch that comes after so many changes of the catalog."""
        catalog: Any = self.sink._catalog
        catalog.read_to_end.return_value = ([MagicMock(topic=lambda: None)] * changes, {})
        catalog.rows.return_value = pl.DataFrame([changed(n) for n in range(changes)], NO_ROWS.schema, orient="row")
        return self.sink.process(self.given(records))

    def rows(self) -> pl.DataFrame:
        found: pa.Table = DeltaTable(f"{self.folder}/{Table.JOURNAL}").to_pyarrow_table()
        return pl.DataFrame(found).sort("lsn")

    def known(self) -> dict[str, int | None]:
        # A driver need not know where its predecessor wrote the rules.
        left_out = ("ingestion.epoch", "rules")
        return {name: value for name, value in self.sink._writer.known.items() if name not in left_out}


def changed(number: int) -> dict[str, Any]:
    """A row of the journal of a change of the catalog."""
    place = {"topic": CatalogTopic.PLANS.value, "partition": 0, "offset": number, "value": b"{}", "received_at": NOW}
    if number:
        return {**place, "disposition": Disposition.REJECTED.value, "reason": Reason.INVALID_CATALOG_CHANGE.value}
    return {**place, "disposition": Disposition.ACCEPTED.value}


def encoded(event: dict[str, Any], ago_s: float = 0) -> bytes:
    occurred_at = NOW - timedelta(seconds=ago_s)
    return json.dumps({**event, "time": occurred_at.isoformat()}).encode()


def values(chance: random.Random) -> Iterator[tuple[bytes | None, dict[str, Any]]]:
    """Values of records, and what else is theirs: repeats, conflicts, wrong times, devices, history, bad ones."""
    documents = [document.value for document in (*BAD_DOCUMENTS, *GOOD_DOCUMENTS)]
    documents = [value for value in documents if len(value or b"") < 10_000 and not (value or b"").startswith(b"[")]
    sent: list[bytes] = []
    while True:
        name = str(chance.randrange(40))
        source = chance.choice(["s", "s", "t", "device/1", "history"])
        event = {**usage(name), "source": source, "subject": chance.choice(["a", "b", "c"])}
        event["sequence"] = chance.randrange(30)
        if chance.random() < 0.3:
            event["sourceepoch"] = "2"
        event["data"] = {**event["data"], "user_id": chance.choice(["ann", "bob"])}
        if chance.random() < 0.2:
            event["data"]["input_tokens"] = chance.randrange(3)
        if chance.random() < 0.1:
            event["type"] = chance.choice(["unknown.a", "unknown.b", "source.heartbeat.v1"])
        if source == "device/1":
            event["senttime"] = (NOW - timedelta(seconds=chance.choice([0, 5, 900]))).isoformat()
        ago = chance.choice([0, 0, 0, 1, 60, 4_000, 86_400, 40 * 86_400, -600])
        more: dict[str, Any] = {}
        if source == "history":
            more["reception_mark"] = chance.choice([None, b"no mark", (NOW - timedelta(days=3)).isoformat().encode()])
        if chance.random() < 0.15:
            more["replay_mark"] = f"events/{chance.randrange(PARTITIONS)}/{chance.randrange(40)}".encode()
        if chance.random() < 0.05:
            more["timestampType"] = 0
        value = encoded(event, ago)
        if chance.random() < 0.3 and sent:
            value = chance.choice(sent)
        sent.append(value)
        yield (chance.choice(documents) if chance.random() < 0.15 else value), more


def universe(seed: int, count: int = 160) -> list[list[Record]]:
    """Batches of records, whose partitions' stamps interleave and now and then step back."""
    chance = random.Random(seed)
    made, reached = values(chance), [0] * PARTITIONS
    batches, second = list[list[Record]](), -600.0
    for _ in range(4):
        records = []
        for _ in range(count // 4):
            partition = chance.randrange(PARTITIONS)
            value, more = next(made)
            second += chance.choice([0, 0, 0.25, -0.5, 2])
            stamp = NOW + timedelta(seconds=min(second, 0))
            place = {"topic": "events", "partition": partition, "offset": reached[partition]}
            records.append({**place, "key": b"k", "value": value, "timestamp": stamp, "timestampType": 1, **more})
            reached[partition] += 1
        chance.shuffle(records)
        # A task has the records of its partition in their order.
        batches.append(sorted(records, key=lambda record: record["offset"]))
    return batches


def driven(folder: Path, monkeypatch: pytest.MonkeyPatch, size: int | None, batches: Any, **more: Any) -> Driver:
    made = Driver(folder / str(size), monkeypatch, size, **more)
    made.progress = [made.take(records, changes=number % 3) for number, records in enumerate(batches)]
    return made


def assert_same(large: Driver, alone: Driver) -> None:
    ours, theirs = large.rows(), alone.rows()
    assert ours.schema == theirs.schema
    assert [name for name in theirs.columns if not ours[name].equals(theirs[name], null_equal=True)] == []
    assert large.known() == alone.known()
    assert large.progress == alone.progress
    assert large.sink.record_bytes() == alone.sink.record_bytes()
    assert large.sink._index.status() == alone.sink._index.status()
    for own, other in zip(large.sums, alone.sums, strict=True):
        assert own.seen.equals(other.seen)
        assert own.types.equals(other.types)
        assert numbers(own.runs).equals(numbers(other.runs))
        assert own.rejected.equals(other.rejected)


def assert_counted(driver: Driver) -> None:
    """As a restart counts what the journal has beyond the position."""
    assert Sums.added(driver.sums).rejected.equals(rejected_of(driver.rows()))


def numbers(runs: pl.DataFrame) -> pl.DataFrame:
    each = runs.with_columns(number=pl.int_ranges("first", pl.col("last") + 1)).explode("number")
    return each.select(*KEY, "minute", "number").unique().sort(*KEY, "minute", "number")


@pytest.mark.few_in_ci(3)
@pytest.mark.parametrize("seed", range(12))
def test_a_large_batch_is_journaled_by_tasks_as_the_driver_alone_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    batches = universe(seed)
    alone = driven(tmp_path, monkeypatch, None, batches)
    for size in (1, 38):
        large = driven(tmp_path, monkeypatch, size, batches)
        assert large.large
        assert_same(large, alone)
        assert_counted(large)
        assert not exchanged(large)


def exchanged(driver: Driver) -> list[Path]:
    return [*(driver.folder / Table.JOURNAL / EXCHANGE).glob("*")]


def test_these_universes_have_all_that_can_become_of_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = pl.concat([driven(tmp_path / str(seed), monkeypatch, None, universe(seed)).rows() for seed in range(3)])
    assert set(found["disposition"]) == {disposition.value for disposition in Disposition}
    assert {Reason.TOO_OLD, Reason.FUTURE, Reason.UNSTAMPED, Reason.INVALID_RECEPTION, Reason.MALFORMED} <= {
        *found["reason"].drop_nulls()
    }
    for name in ("replays_lsn", "first_received_at", "first_lsn", "clock_offset_ms"):
        assert found[name].drop_nulls().len(), name
    is_repeat_replayed = (found["disposition"] == Disposition.DUPLICATE) & found["replays_lsn"].is_not_null()
    assert is_repeat_replayed.any()


def test_up_to_driver_rows_the_driver_writes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = universe(1)
    large = driven(tmp_path, monkeypatch, 100, batches)
    assert not large.large
    assert_same(large, driven(tmp_path, monkeypatch, None, batches))
    assert not exchanged(large)


def with_several(seed: int) -> list[list[Record]]:
    """A universe in which some records are batches of events, or events with elements: sound ones, ones that are
    rejected as a whole, and ones that repeat others.
    """
    chance, batches = random.Random(seed), universe(seed)
    occurred_at = (NOW - timedelta(hours=1)).isoformat()

    def event(name: int, **more: Any) -> dict[str, Any]:
        return {**usage(str(name)), "time": occurred_at, "subject": chance.choice("ab"), **more}

    made: list[bytes] = []
    for records in batches:
        for record in chance.sample(records, 6):
            events = [event(chance.randrange(40)) for _ in range(chance.randrange(1, 5))]
            kind = chance.choice(["sound", "sound", "traced", "too old", "trace", "again", "malformed"])
            if kind == "traced":
                events.insert(1, {**trace(f"t{chance.randrange(9)}", 3), "time": occurred_at})
            elif kind == "too old":
                events.append(event(0, time=(NOW - timedelta(days=40)).isoformat()))
            elif kind == "malformed":
                events.append({"id": "of no type"})
            value = batch(events)
            if kind == "trace":
                value = json.dumps({**trace(f"t{chance.randrange(9)}", 4), "time": occurred_at}).encode()
            elif kind == "again" and made:
                value = chance.choice(made)
            made.append(value)
            record["value"] = value
    return batches


@pytest.mark.few_in_ci(3)
@pytest.mark.parametrize("seed", range(20, 32))
def test_records_of_several_rows_leave_the_others_of_a_large_batch_to_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    batches = with_several(seed)
    alone = driven(tmp_path, monkeypatch, None, batches)
    for size in (1, 38):
        large = driven(tmp_path, monkeypatch, size, batches)
        assert large.large == len(batches)
        assert_same(large, alone)
        assert_counted(large)
        assert not exchanged(large)


def test_these_universes_have_all_that_can_become_of_several_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [driven(tmp_path / str(seed), monkeypatch, None, with_several(seed)).rows() for seed in range(20, 23)]
    found = pl.concat(parts).filter(pl.col("element") > 0)
    assert {"accepted", "duplicate", "conflict"} == set(found["disposition"])
    assert {1, 2, 1_001, 1_002, 1_003, 2_001} <= set(found["element"])
    assert found["replays_lsn"].drop_nulls().len()
    in_batches = pl.concat(parts).filter(pl.col("violation").str.contains("in event"))
    assert {Reason.TOO_OLD, Reason.INVALID_SPECVERSION} <= set(in_batches["reason"])


def test_a_large_batch_of_two_topics_is_journaled_as_the_driver_alone_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Places of the second topic are those of the first, and its records interleave with them."""
    batches = with_several(33)
    for records in batches:
        for record in records:
            if record["partition"] == PARTITIONS - 1:
                record.update(topic="more", partition=0)
    topics = (Topic("events", "id", tuple(range(PARTITIONS - 1))), Topic("more", "another id", (0,)))
    large, alone = (driven(tmp_path, monkeypatch, size, batches, topics=topics) for size in (1, None))
    assert large.large == len(batches)
    assert_same(large, alone)
    assert_counted(large)
    of_several = alone.rows().filter(pl.col("element") > 0)
    assert set(of_several["topic"]) == {"events", "more"}


def test_people_who_were_forgotten_are_erased_in_records_of_several_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = with_several(24)
    found = [driven(tmp_path, monkeypatch, size, batches, people=forgotten("a", "u")) for size in (1, None)]
    assert_same(*found)
    assert found[0].large == len(batches)


def test_a_large_batch_of_which_most_are_several_rows_is_the_drivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = {**usage("late"), "time": (NOW - timedelta(days=40)).isoformat()}
    given = [batch([usage("a"), usage("b")]), batch([usage("c"), old]), json.dumps(trace("t", 3)).encode()]
    given += [encoded(usage(str(number))) for number in range(5)]
    place = {"topic": "events", "key": b"k", "timestamp": NOW, "timestampType": 1}
    records = [{**place, "partition": 0, "offset": n, "value": value} for n, value in enumerate(given)]
    large = driven(tmp_path, monkeypatch, 1, [records])
    alone = driven(tmp_path, monkeypatch, None, [records])
    assert_same(large, alone)
    assert alone.rows().filter(pl.col("element") > 0)["offset"].unique().sort().to_list() == [0, 2]
    assert alone.rows().filter(offset=1)["reason"].to_list() == [Reason.TOO_OLD]
    assert not large.large


@pytest.mark.parametrize("kind", ["skipped", "too_large", "unreadable"])
def test_an_isolated_record_leaves_the_others_of_a_large_batch_to_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    batches, config = with_several(2), CONFIG
    bad = batches[1][0]
    if kind == "too_large":
        config = CONFIG.model_copy(update={"max_record_bytes": 10_240})
        bad["value"] = b"x" * 11_000
    if kind == "unreadable":
        bad["value"] = b'{"a record": "on which the validator fails"}'
        fail_on(monkeypatch, bad["value"])
    found, added = [], dict[int | None, list[Any]]()
    for size in (1, None):
        made = Driver(tmp_path / str(size), monkeypatch, size, config)
        isolated: Any = made.sink._isolated
        added[size] = seen = list[Any]()
        isolated.add.side_effect = lambda *given, seen=seen: seen.append([*isolated_in(*given[:2])])
        for number, records in enumerate(batches):
            is_skipped = kind == "skipped" and number == 1
            place = (bad["partition"], bad["offset"])
            isolated.pending.return_value = {"events": {place: Isolation.SKIPPED} if is_skipped else {}}
            made.progress.append(made.take(records))
        found.append(made)
    large, alone = found
    assert_same(large, alone)
    assert kind in alone.rows()["reason"]
    assert large.large == len(batches)
    assert added[1] == added[None]


def fail_on(monkeypatch: pytest.MonkeyPatch, value: bytes) -> None:
    """Let the validator raise on a record, as on an error of ours."""
    validate = EventValidator._validate_block

    def failing(self: EventValidator, records: pl.DataFrame) -> pa.Table:
        if value in records["value"].to_list():
            raise ValueError("an error of ours")
        return validate(self, records)

    monkeypatch.setattr(EventValidator, "_validate_block", failing)


def isolated_in(received: pl.DataFrame, validated: pl.DataFrame) -> Iterator[Any]:
    """The verdicts of the rows that are dead letters regardless of content, as `IsolatedByTopic.add` finds them."""
    is_bad = validated.select(is_quarantined()).to_series()
    if is_bad.any():
        rows = received.filter(is_bad).with_columns(validated.filter(is_bad).select("reason", "violation"))
        yield from verdicts(rows, rows, {})


KEY_OF_PEOPLE = ErasureKey(b"a secret of thirty-two bytes long")


def forgotten(account: str, user: str) -> People:
    return People([Erased(7, account, KEY_OF_PEOPLE.person(account, user), KEY_OF_PEOPLE.id)], [KEY_OF_PEOPLE])


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("seed", [3, 4, 5])
def test_people_who_were_forgotten_are_erased_in_large_batches_and_tasks_get_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    sent, answers = list[bytes](), answers_of_tasks

    def seen(spark: Any, count: int, names: Any, make: Any) -> Any:
        sent.append(cloudpickle.dumps(make))  # type: ignore[no-untyped-call]
        return answers(spark, count, names, make)

    monkeypatch.setattr(large_batch, "answers_of_tasks", seen)
    batches = universe(seed)
    found = [driven(tmp_path, monkeypatch, size, batches, people=forgotten("a", "ann")) for size in (1, None)]
    assert_same(*found)
    rows = found[0].rows()
    assert "erased-7" in rows["user_id"]
    assert rows.filter(account="a", user_id="ann").is_empty()
    assert not rows.filter(account="b", user_id="ann").is_empty()
    assert len(sent) > found[0].large == len(batches), "ranges with rows of this account went twice"
    assert not [made for made in sent if KEY_OF_PEOPLE.secret in made]


def test_contents_that_an_earlier_digest_had_are_compared_again_in_large_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second driver has another contract, so that no digest of the first can be compared."""
    batches, found = universe(6), []
    other = CONFIG.model_copy(update={"contracts": ()})
    for size in (1, None):
        driven(tmp_path, monkeypatch, size, batches[:2], config=other)
        again = Driver(tmp_path / str(size), monkeypatch, size)
        read = list[int]()
        digests = again.sink._digests
        monkeypatch.setattr(again.sink, "_digests", lambda lsns, d=digests, r=read: r.append(len(lsns)) or d(lsns))
        again.progress = [again.take(records) for records in batches[2:]]
        assert sum(read)
        found.append(again)
    assert_same(*found)
    assert {Disposition.CONFLICT, Disposition.DUPLICATE} <= set(found[0].rows()["disposition"][80:])


def test_a_task_that_runs_twice_writes_no_record_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = universe(7)
    alone = driven(tmp_path, monkeypatch, None, batches)
    call = WriteRange.__call__
    monkeypatch.setattr(WriteRange, "__call__", lambda self, number: (call(self, number), call(self, number))[1])
    large = driven(tmp_path, monkeypatch, 1, batches)
    assert_same(large, alone)
    assert orphans(large.folder, Table.JOURNAL)
    remove_orphans(large.folder, Table.JOURNAL, NOW.date())
    assert_same(large, alone)


@pytest.mark.parametrize("step", ["read", "decided", "written", "committed"])
def test_a_driver_that_is_killed_in_a_large_batch_leaves_all_of_it_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    batches = universe(8)
    alone = driven(tmp_path, monkeypatch, None, batches)
    killed = Driver(tmp_path / "1", monkeypatch, 1)
    killed.take(batches[0], changes=0)

    def die(*_: Any) -> Any:
        raise SystemExit("killed")

    with monkeypatch.context() as dying:
        # What is killed removes nothing.
        dying.setattr(Left, "remove", lambda _: None)
        dying.setattr(Folder, "remove", lambda *_: None)
        places: dict[str, tuple[Any, str]] = {
            "read": (Left, "summaries"),
            "decided": (large_batch, "answers_of_tasks"),
            "written": (killed.sink._writer, "commit_files"),
            "committed": (killed.sink, "_learn"),
        }
        dying.setattr(*places[step], die)
        with pytest.raises(SystemExit):
            killed.take(batches[1], changes=1)
    assert orphans(killed.folder, Table.JOURNAL)
    successor = Driver(tmp_path / "1", monkeypatch, 1)
    is_taken = len(successor.rows()) > len(batches[0])
    assert is_taken == (step == "committed")
    with pytest.raises(Fenced):
        # The zombie goes on with what it has.
        killed.take(batches[1], changes=1)
    progress = successor.take(batches[1], changes=0 if is_taken else 1)
    assert (progress.records == 0) == is_taken
    for number in (2, 3):
        successor.take(batches[number], changes=number % 3)
    assert successor.rows().equals(alone.rows(), null_equal=True)
    assert successor.known() == alone.known()
    remove_orphans(successor.folder, Table.JOURNAL, NOW.date())
    assert successor.rows().equals(alone.rows(), null_equal=True)


def test_a_batch_whose_files_are_gone_is_not_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = universe(9)
    made = driven(tmp_path, monkeypatch, 1, batches[:1])
    before = made.rows()
    given: Any = made.given(batches[1])
    for path in exchanged(made):
        if "validated" in path.name:
            path.unlink()
            break
    with pytest.raises(FileNotFoundError):
        made.sink.process(given)
    assert made.rows().equals(before, null_equal=True)


def test_heartbeats_are_of_nobody_who_was_forgotten() -> None:
    """Else each range would be made twice: a heartbeat has no account."""
    columns = ("account", "disposition", "type", "family")
    rows = [
        (None, "accepted", "source.heartbeat.v1", "heartbeat"),
        (None, "rejected", None, None),
        (None, "accepted", "unknown", None),
        ("a", "accepted", "t", "usage"),
        ("b", "rejected", "t", "usage"),
    ]
    found = concerned(pl.DataFrame(rows, dict.fromkeys(columns, pl.String), orient="row"), ["a"])
    assert found.rows() == [rows[1], rows[2], rows[3]]


def test_a_task_holds_the_records_of_its_range_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions interleave in the order of receipt, so a range has a few records of each batch of each file."""
    place = {"topic": "events", "key": b"k", "timestampType": 1}
    records = [
        {**place, "partition": n % PARTITIONS, "offset": n // PARTITIONS, "timestamp": NOW + timedelta(milliseconds=n)}
        | {"value": encoded(usage(str(n)))}
        for n in range(PARTITIONS * 34)
    ]
    together, rows = list[int](), list[int]()
    events = WriteRange._events
    for library, name, joined in ((pl, "concat", pl.concat), (pa, "concat_tables", pa.concat_tables)):

        def watched(parts: Any, *given: Any, of: Any = joined, **more: Any) -> Any:
            found = of(parts, *given, **more)
            together.append(len(found))
            return found

        monkeypatch.setattr(library, name, watched)

    def made(self: WriteRange, number: int) -> pl.DataFrame:
        together.clear()
        found = events(self, number)
        rows.append(max(together) - len(found))
        return found

    monkeypatch.setattr(WriteRange, "_events", made)
    Driver(tmp_path, monkeypatch, 1).take(records)
    assert rows == [0] * 6
