"""joins' two sizes: what tasks of Spark decide, price and write is, to the byte, what the driver alone writes."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from jobs.joins.exchange import Exchange
from jobs.joins.large_batch import DecidePart, Sizes, WriteRange
from jobs.joins.memory import Memory
from jobs.joins.pipeline import JOB
from jobs.joins.sink import UsageSink
from jobs.runtime.delta.compaction import compact
from jobs.runtime.delta.pieces import Pieces, pieces_of_lsns
from jobs.runtime.delta.source import TableSource
from jobs.runtime.delta.table import DeltaWriter, committing
from jobs.runtime.errors import Fenced
from jobs.runtime.job import Context
from jobs.runtime.kafka.denied_topics import Denials
from jobs.runtime.postgres.ownership import Ownership
from jobs.streams import CatalogTopic, Table
from metering.contracts.includes import COLUMN, includes_of, text_of
from metering.price_models import ANY, PricedModel
from metering.pricing import BILLED_AS_PART
from metering.vocabulary import Disposition
from tests.clocks import HandClock
from tests.orphans import let_grow_old, orphans, remove_orphans
from tests.simulation.frames import Tasks
from tests.streaming.journals import WRITTEN, Journal, at, change, environment, event, heartbeat
from tests.streaming.test_usage_sink import CATALOG, COMPLETION, REQUEST, TIMEOUTS, USAGE

NOW = datetime(2027, 2, 3, 4, tzinfo=UTC)


class Here:
    """What joins uses of Spark, in this process: each task gets and gives what Arrow carries."""

    sparkContext = SimpleNamespace(defaultParallelism=3, getConf=lambda: {"spark.master": "local[2]"})  # noqa: N815

    def range(self, first: int, end: int, _step: int, tasks: int) -> Tasks:
        return Tasks([list(range(first, end))[number::tasks] for number in range(tasks)])


RICH = TIMEOUTS.model_copy(
    update={"price_attributes": ("operation",), "dimensions": ("source", "account.plan", "account.currency")}
).settled((), is_new=True)
DECLARED = [
    pa.field(name, pa.string() if name == "operation" else pa.int64())
    for name in JOB.columns(RICH)
    if name not in WRITTEN.names
]
BATCH = PricedModel.of("m", {"operation": "batch"}).text
STATED = {"within": {"cached_tokens": 4, COLUMN: text_of(includes_of({"input_tokens": ["cached_tokens"]}))}}


def account(received_s: float, name: str, **more: Any) -> dict[str, Any]:
    said = {"name": name, "plan": "p", "currency": "EUR", "timezone": "UTC"} | more
    return change(CatalogTopic.ACCOUNTS, received_s, account=name, **said)


def price(received_s: float, model: str, meter: str, unit_price: str, effective_s: float = -86_400) -> dict[str, Any]:
    said = {"plan": "p", "currency": "EUR", "effective_from": at(effective_s).isoformat()}
    return change(CatalogTopic.PRICES, received_s, model=model, meter=meter, unit_price=unit_price, **said)


def decision(received_s: float, usage_lsn: int) -> dict[str, Any]:
    said = {"account": "a", "request_id": "r0", "decision": "approve", "reason": "it is é", "decided_by": "ann"}
    return change(CatalogTopic.DECISIONS, received_s, usage_lsn=usage_lsn, meter="requests", **said)


def changes(chance: random.Random, second: float) -> list[dict[str, Any]]:
    """Of the catalog: accounts that become known late or move, prices that follow, conditions, prefixes, decisions."""
    effective_s = second + chance.choice([-400, -50, 0, 60])
    amount = str(chance.randint(1, 9))
    model = chance.choice(["m", "slow", BATCH, f"s{ANY}", f"{ANY}"])
    meter = chance.choice(["requests", "input_tokens", "output_tokens", "cached_tokens"])
    known = [
        account(second, "b", currency=chance.choice(["EUR", "USD"])),
        account(second, "a", timezone="Europe/Berlin"),
        price(second, model, meter, amount, effective_s),
        price(second, model, meter, amount, effective_s),
        decision(second, chance.randint(1, 5)),
    ]
    return chance.sample(known, chance.randint(0, 3))


def enriched(commits: list[list[dict[str, Any]]], chance: random.Random) -> list[list[dict[str, Any]]]:
    """With a catalog that grows, unknown accounts, dead letters, duplicates and quantities that contain each other."""
    found = []
    for rows in commits:
        second = (rows[0]["received_at"] - at(0)).total_seconds()
        events = []
        for row in rows:
            more: dict[str, Any] = {}
            if row.get("request_id") is not None:
                more = {"account": chance.choice("aaab"), "source": chance.choice(["x", "y"])}
                more |= {"operation": chance.choice([None, "batch"])} | chance.choice([{}, STATED["within"]])
                if row["type"] != REQUEST:
                    more |= {"status": chance.choice(["completed", "error", None])}
                    more |= {"usage_source": chance.choice([None, "estimated"])}
            dispositions = [Disposition.ACCEPTED] * 8 + [Disposition.DUPLICATE, Disposition.REJECTED]
            is_event = row.get("request_id") is not None
            events.append({**row, **more} | ({"disposition": chance.choice(dispositions).value} if is_event else {}))
        found.append([*events, *changes(chance, second)])
    return found


def driver(spark: Any, database: str, journal: Journal, driver_rows: int | None) -> UsageSink:
    where = environment(database, Path(journal.tables))
    config = RICH.model_copy(update={"driver_rows": driver_rows})
    return UsageSink(
        JOB, Context(config, where, spark, Ownership.take(JOB.name, database, {}), HandClock(NOW), Denials())
    )


def take(driven: UsageSink, journal: Journal, first: int, end: int) -> Any:
    """A batch as its source gives it: files where it is large."""
    found = pieces_of_lsns(DeltaTable(f"{journal.tables}/{Table.JOURNAL}"), JOB.columns(RICH), first, end)
    is_large = driven.driver_rows is not None and end - first > driven.driver_rows
    return driven.process(found if is_large else found.read())


def stored(journal: Journal) -> pa.Table:
    return DeltaTable(f"{journal.tables}/{Table.USAGE}").to_pyarrow_table().sort_by("lsn")


def waits(driven: UsageSink) -> list[Any]:
    remembered = driven._memory
    memory = remembered if isinstance(remembered, Memory) else remembered.gathered()
    return [memory.rows.sort("lsn").rows(), remembered.waiting(), driven.frontier(), driven.position()]


def universe(seed: int) -> list[list[dict[str, Any]]]:
    """Commits of a journal over two partitions, whose times may be far apart; few keys, so that rows meet."""
    chance = random.Random(seed)
    lanes: list[list[dict[str, Any]]] = []
    for partition in range(2):
        second, lane = 0, []
        for _ in range(chance.randint(15, 60)):
            second += chance.choice([1, 1, 20, 70, 121])
            kind = chance.choice([REQUEST, REQUEST, COMPLETION, COMPLETION, USAGE])
            model = {} if kind is COMPLETION else {"model": chance.choice(["m", "slow", "slower"])}
            lane.append(event(kind, f"r{chance.randint(0, 9)}", second, partition=partition, **model))
        lanes.append([*lane, heartbeat(second + 5000, partition)])
    commits = [CATALOG]
    while any(lanes):
        taken = [lane[: chance.randint(3, 12)] for lane in lanes]
        lanes = [lane[len(part) :] for lane, part in zip(lanes, taken, strict=True)]
        commits.append(sorted((row for part in taken for row in part), key=lambda row: row["received_at"]))
    return enriched(commits, chance)


@pytest.mark.few_in_ci(3)
@pytest.mark.parametrize("seed", range(30))
def test_tasks_write_the_usage_of_the_driver_to_the_byte_and_leave_the_same_waiting(
    database: str, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `driver_rows` by default, of 1 and of 9; batches end anywhere, and have many parts, ranges and files."""
    in_many_ranges(monkeypatch)
    compared(Here(), database, tmp_path, seed)


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("seed", range(30, 33))
def test_workers_of_spark_do_the_same(spark: SparkSession, database: str, tmp_path: Path, seed: int) -> None:
    compared(spark, database, tmp_path, seed)


def in_many_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UsageSink, "sizes", Sizes(part_rows=20, range_rows=7, step_rows=3))


def test_the_files_of_a_commit_are_in_the_order_of_lsn(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a reader that takes a part of them takes the first rows."""
    in_many_ranges(monkeypatch)
    journal = Journal(tmp_path, declared=DECLARED)
    for commit in universe(6):
        journal.commit(commit)
    take(driver(Here(), database, journal, 1), journal, 1, journal.next_lsn)
    log = max((tmp_path / Table.USAGE / "_delta_log").glob("*.json"))
    actions = [json.loads(line)["add"] for line in log.read_text().splitlines() if "add" in json.loads(line)]
    ends = [(said["minValues"]["lsn"], said["maxValues"]["lsn"]) for said in (json.loads(a["stats"]) for a in actions)]
    assert len(ends) > 3
    assert ends == sorted(ends)
    assert [first for first, _ in ends] == [1, *(last + 1 for _, last in ends[:-1])]


def test_the_universes_hold_every_kind_of_row(database: str, tmp_path: Path) -> None:
    found = []
    for seed in range(6):
        journal = Journal(tmp_path / str(seed), declared=DECLARED)
        for commit in universe(seed):
            journal.commit(commit)
        take(driver(Here(), database, journal, 1), journal, 1, journal.next_lsn)
        found.append(stored(journal))
    rows = pl.DataFrame(pa.concat_tables(found))
    assert set(rows["outcome"]) == {"matched", "abandoned", "orphaned", "superseded", "decided"}
    entries = rows.explode("meters").unnest("meters")
    assert entries.filter(pl.col("meter") == "cached_tokens")["price_version"].null_count() > 0
    assert entries.filter(pl.col("price_version") == BILLED_AS_PART).height > 0
    assert rows["plan"].null_count() > 0, "of accounts that are not known yet"
    assert entries.filter((pl.col("meter") == "requests") & (pl.col("amount") > 0)).height > 0
    assert set(rows["currency"]) >= {"EUR", "USD"}


def compared(spark: Any, database: str, folder: Path, seed: int) -> None:
    """A universe through drivers with each `driver_rows`: rows of usage, what waits and positions are the same."""
    chance = random.Random(seed)
    journals = [Journal(folder / name, declared=DECLARED) for name in ("driver", "tasks", "both")]
    sinks = [driver(spark, database, journal, rows) for journal, rows in zip(journals, (None, 1, 9), strict=True)]
    cuts = []
    for rows in universe(seed):
        for journal in journals:
            journal.commit(rows)
        if chance.random() < 0.4:
            cuts.append(chance.choice([journals[0].next_lsn, chance.randint(1, journals[0].next_lsn)]))
    for end in [*sorted(cuts), journals[0].next_lsn]:
        known = []
        for driven, journal in zip(sinks, journals, strict=True):
            if driven.position() < end:
                take(driven, journal, driven.position(), end)
            known.append(waits(driven))
        assert known[1] == known[0]
        assert known[2] == known[0]
    expected = stored(journals[0])
    assert len(expected) > 10
    for journal in journals[1:]:
        assert stored(journal).equals(expected)
        assert transactions(journal) == transactions(journals[0])


def transactions(journal: Journal) -> dict[str, int | None]:
    """Positions in the journal, F and what waits, as the log of usage has them."""
    table = DeltaTable(f"{journal.tables}/{Table.USAGE}")
    names = ("lsn", "frontier", "rules", "waiting", "waiting.lsn", "journal", "accounts.journal", "prices.journal")
    found = {name: table.transaction_version(name) for name in names}
    assert found["lsn"] is not None
    return found


class KilledError(Exception):
    """The driver ends here, and does nothing more."""


@pytest.mark.parametrize("step", ["read", "outcomes", "commit"])
def test_files_of_a_driver_that_was_killed_or_replaced_are_never_read_and_weir_compact_removes_them(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    journals = [Journal(tmp_path / name, declared=DECLARED) for name in ("whole", "killed")]
    for rows in universe(3):
        for journal in journals:
            journal.commit(rows)
    whole, killed = journals
    take(driver(Here(), database, whole, None), whole, 1, whole.next_lsn)

    def kill(*_: Any) -> None:
        raise KilledError

    with monkeypatch.context() as until:
        until.setattr(Exchange, "remove", lambda *_: None)
        if step == "commit":
            until.setattr(DeltaWriter, "commit_files", kill)
        else:
            until.setattr(Exchange, "read", kill if step == "read" else Exchange.read)
            until.setattr(WriteRange, "__call__", kill)
        with pytest.raises(KilledError):
            take(driver(Here(), database, killed, 1), killed, 1, killed.next_lsn)
    left = files(killed)
    assert left
    assert any("parquet" in name for name in left) == (step == "commit")
    assert stored(killed).num_rows == 0
    zombie = driver(Here(), database, killed, 1)
    take(driver(Here(), database, killed, 1), killed, 1, killed.next_lsn)
    with pytest.raises(Fenced):
        take(zombie, killed, 1, killed.next_lsn)
    assert stored(killed).equals(stored(whole))
    assert left < files(killed)
    remove_orphans(killed.tables, Table.USAGE, NOW.date())
    assert stored(killed).equals(stored(whole))


@pytest.mark.parametrize("step", ["outcomes", "ranges", "commit"])
def test_a_compaction_within_a_large_batch_takes_nothing_that_the_batch_needs(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """However short the time for which replaced files are kept."""
    in_many_ranges(monkeypatch)
    owner, name = {
        "outcomes": (DecidePart, "__call__"),
        "ranges": (WriteRange, "__call__"),
        "commit": (DeltaWriter, "commit_files"),
    }[step]
    called, compacted = getattr(owner, name), list[tuple[int, bool]]()

    def after_compaction(self: Any, *what: Any) -> Any:
        before = files(grown)
        compact(grown.tables, Table.USAGE, before=NOW.date() + timedelta(days=1), keep=timedelta(0))
        compacted.append((len(before), files(grown) == before))
        return called(self, *what)

    journals = [Journal(tmp_path / each, declared=DECLARED) for each in ("whole", "compacted")]
    for rows in universe(8):
        for journal in journals:
            journal.commit(rows)
    whole, grown = journals
    take(driver(Here(), database, whole, None), whole, 1, whole.next_lsn)
    monkeypatch.setattr(owner, name, after_compaction)
    take(driver(Here(), database, grown, 1), grown, 1, grown.next_lsn)
    assert all(found > 0 and is_whole for found, is_whole in compacted)
    assert compacted
    assert stored(grown).equals(stored(whole))


def test_a_driver_whose_waiting_files_were_removed_ends_and_the_next_one_derives_what_waits(
    database: str, tmp_path: Path
) -> None:
    """As by `weir compact`, where the journal has not grown for a day."""
    journals = [Journal(tmp_path / each, declared=DECLARED) for each in ("whole", "removed")]
    for rows in universe(9):
        for journal in journals:
            journal.commit(rows)
    whole, removed = journals
    half = whole.next_lsn // 2
    for journal, size in zip(journals, (None, 1), strict=True):
        sink = driver(Here(), database, journal, size)
        take(sink, journal, 1, half)
    let_grow_old(removed.tables, Table.USAGE)
    compact(removed.tables, Table.USAGE, before=NOW.date(), keep=timedelta(0))
    assert not files(removed)
    before = stored(removed)
    with pytest.raises(FileNotFoundError):
        take(sink, removed, half, removed.next_lsn)
    assert stored(removed).equals(before)
    for journal, size in zip(journals, (None, 1), strict=True):
        take(driver(Here(), database, journal, size), journal, half, journal.next_lsn)
    assert stored(removed).equals(stored(whole))


def files(journal: Journal) -> set[str]:
    return orphans(journal.tables, Table.USAGE)


def test_usage_that_others_append_meanwhile_gives_the_rows_other_numbers(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path, declared=DECLARED)
    for rows in universe(4):
        journal.commit(rows)
    sink = driver(Here(), database, journal, 1)
    half = journal.next_lsn // 2
    take(sink, journal, 1, half)
    before, append = len(stored(journal)), DeltaWriter.commit_files
    audit = stored(journal).slice(before - 1).set_column(0, "lsn", pa.array([before + 1], pa.int64()))

    def after_another(self: DeltaWriter, *what: Any) -> None:
        monkeypatch.setattr(DeltaWriter, "commit_files", append)
        write_deltalake(
            self.path,
            audit,
            mode="append",
            commit_properties=committing({"lsn": before + 2}),
        )
        append(self, *what)

    monkeypatch.setattr(DeltaWriter, "commit_files", after_another)
    take(sink, journal, half, journal.next_lsn)
    assert stored(journal)["lsn"].to_pylist() == list(range(1, len(stored(journal)) + 1))
    assert len(stored(journal)) > before + 1


def test_each_file_of_a_large_batch_has_the_statistics_that_delta_rs_writes(database: str, tmp_path: Path) -> None:
    journals = [Journal(tmp_path / name, declared=DECLARED) for name in ("driver", "tasks")]
    said = []
    for journal, rows in zip(journals, (None, 1), strict=True):
        for commit in universe(5):
            journal.commit(commit)
        take(driver(Here(), database, journal, rows), journal, 1, journal.next_lsn)
        actions = DeltaTable(f"{journal.tables}/{Table.USAGE}").get_add_actions(flatten=True)
        said.append(pa.table(actions).drop_columns(["path", "size_bytes", "modification_time"]).to_pylist())
    assert said[0] == said[1]


def test_joins_source_gives_files_where_rows_are_many_and_rows_where_they_are_few(
    spark: SparkSession, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journals = [Journal(tmp_path / name, declared=DECLARED) for name in ("source", "driver")]
    grown, whole = journals
    commits = universe(7)

    def grow(some: list[list[dict[str, Any]]]) -> None:
        for rows in some:
            for journal in journals:
                journal.commit(rows)

    grow([[row for commit in commits[:4] for row in commit]])
    driven = driver(spark, database, grown, 10)
    monkeypatch.setattr(driven, "task_rows", grown.next_lsn // 2 - 5)
    table = TableSource(JOB, RICH, environment(database, Path(grown.tables)), driven)
    assert table.exists()
    kinds = []
    for batch in table.backlog(spark):
        kinds.append(type(batch))
        driven.process(batch)
    assert kinds[:2] == [Pieces, Pieces], kinds
    assert Pieces not in kinds[2:], "the last chunk has few rows, which Spark reads without what events said"
    table.stream(spark)
    grow([[row for commit in commits[4:12] for row in commit], [heartbeat(90_000, 0), heartbeat(90_000, 1)]])
    found = []
    while (batch := table.found()) is not None:
        found.append(isinstance(batch, Pieces))
        driven.process(batch)
    assert found == [True, False]
    one = driver(spark, database, whole, None)
    take(one, whole, 1, whole.next_lsn)
    assert without_cut(stored(grown)) == without_cut(stored(whole))


def test_large_batches_do_not_carry_along_what_no_row_can_meet_any_more(database: str, tmp_path: Path) -> None:
    journal = Journal(tmp_path, declared=DECLARED)
    driven, remembered = driver(Here(), database, journal, 1), []
    for second in range(0, 50_000, 10_000):
        journal.commit([event(kind, f"r{second}", second) for kind in (REQUEST, COMPLETION)])
        journal.commit([heartbeat(second + 9_000)])
        take(driven, journal, driven.position(), journal.next_lsn)
        remembered.append(driven._memory.records())
    assert remembered == [0] * 5
    assert set(stored(journal)["outcome"].to_pylist()) == {"matched"}


def without_cut(rows: pa.Table) -> list[str]:
    """Rows but for what says in which batch they were decided."""
    return sorted(map(repr, rows.drop_columns(["lsn", "frontier", "rules"]).to_pylist()))
