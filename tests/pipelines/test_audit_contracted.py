"""Events of a type whose contract came later are billed by the audit, once, by the first contract that takes them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import copytree
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import SparkSession

from jobs.audit.recompute.expected import Pinned
from jobs.audit.recompute.late_contracts import Later, LaterContracts, later_contracts
from jobs.audit.run import Audit, NotBilledError
from jobs.ingestion.config import IngestionConfig
from jobs.joins.config import JoinsConfig
from jobs.runtime.effective_rules import IN_FORCE, TRANSACTION, EffectiveRules
from jobs.streams import ACCOUNTS, JOURNAL, PRICES, USAGE, Table
from metering.contracts.model import Contract
from metering.contracts.schema import contract_of
from metering.contracts.shipped import shipped
from tests.clocks import HandClock
from tests.simulation.applications import JOBS, simulated
from tests.simulation.audits import audit
from tests.simulation.calls import Fault
from tests.simulation.declared import CONTRACTS, OTHER, OTHER_TYPE
from tests.simulation.left import left_by
from tests.simulation.simulate import emptied, quick_database
from tests.simulation.steps import Configure, Declare, Send, Step
from tests.simulation.world import ENOUGH_CALLS, World

SEED = 34
"""A history in which such events come alone, before, behind and between known ones of the same requests."""
NOW = datetime(2026, 2, 1, tzinfo=UTC)
Row = dict[str, Any]


@pytest.fixture(scope="module")
def unaudited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with left_by(SEED, tmp_path_factory.mktemp("contracted"), is_audited=False) as world:
        yield world


@pytest.fixture
def tables(unaudited: World, tmp_path: Path) -> str:
    return str(copytree(unaudited.tables, tmp_path / "tables"))


def added(tables: str) -> list[Row]:
    rows = DeltaTable(f"{tables}/{Table.USAGE}").to_pyarrow_table().to_pylist()
    return sorted(({**row, "lsn": None} for row in rows if row["cause"] == "schema_added"), key=str)


def test_executors_validate_as_one_process_does(
    spark: SparkSession, unaudited: World, tables: str, tmp_path: Path
) -> None:
    alone = str(copytree(tables, tmp_path / "alone"))
    said = audit(alone, NOW)
    assert said is not None
    assert said.faults == []
    with pytest.raises(NotBilledError):
        list(Audit(spark, tables, unaudited.database, HandClock(NOW), wait_seconds=0).run())
    assert added(tables) == added(alone)
    assert {row["sign"] for row in added(tables)} == {1, -1}


def test_a_second_audit_adds_nothing(tables: str) -> None:
    audit(tables, NOW)
    again = audit(tables, NOW)
    assert again is not None
    assert (again.appended, again.faults) == (0, [])


PLANTED: dict[str, dict[str, Any]] = {
    "another model": {"model": "other"},
    "another user": {"user_id": "other"},
    "another minute": {"event_time": NOW - timedelta(days=3)},
    "another day": {"day": NOW.date()},
    "a token more": {},
}


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("fault", PLANTED)
def test_a_fault_in_rows_of_a_late_contract_is_reported_and_not_corrected(tables: str, fault: str) -> None:
    audit(tables, NOW)
    rows = DeltaTable(f"{tables}/{Table.USAGE}").to_pyarrow_table().to_pylist()
    chosen = next(
        row
        for row in rows
        if row["cause"] == "schema_added" and row["sign"] > 0 and any(entry["quantity"] for entry in row["meters"])
    )
    planted = {**chosen, **PLANTED[fault]}
    if fault == "a token more":
        counted = next(entry for entry in chosen["meters"] if entry["quantity"])
        rest = [entry for entry in chosen["meters"] if entry is not counted]
        planted["meters"] = [{**counted, "quantity": counted["quantity"] + 1}, *rest]
    kept = [row for row in rows if row is not chosen]
    table = pa.Table.from_pylist([*kept, planted], schema=USAGE)
    write_deltalake(f"{tables}/{Table.USAGE}", table, mode="overwrite")
    said = audit(tables, NOW)
    assert said is not None
    assert {wrong["request_id"] for wrong in said.faults if isinstance(wrong, dict)} == {chosen["request_id"]}
    assert said.appended == 0


def contract(**data: Any) -> dict[str, Contract]:
    return {OTHER_TYPE: contract_of({**OTHER, **({"properties": {"data": data}} if data else {})}, shipped())}


STRICT = contract(required=["zone"], properties={"zone": {"type": "string", "x-weir-column": "zone"}})
"""It takes no event that has no zone."""
COLUMNS = ("lsn", "family", "account", "request_id", "received_at", "input_tokens")


def event(lsn: int, **data: Any) -> Row:
    said = {"request_id": f"r{lsn}", "model": "m", "status": "completed", "input_tokens": lsn, **data}
    envelope = {"specversion": "1.0", "id": f"e{lsn}", "source": "s", "type": OTHER_TYPE, "subject": "a"}
    value = json.dumps({**envelope, "time": "2026-01-01T00:00:00Z", "data": said}).encode()
    place = {"topic": "events", "partition": 0, "offset": lsn, "key": None, "value": value, "type": OTHER_TYPE}
    known = {"family": None, "account": "a", "request_id": None, "received_at": NOW, "input_tokens": None}
    return {**place, **known, "lsn": lsn}


def rows(*events: Row) -> pl.DataFrame:
    texts, numbers = ("family", "request_id"), ("input_tokens",)
    kinds = {**dict.fromkeys(texts, pl.String), **dict.fromkeys(numbers, pl.Int64), "key": pl.Binary}
    return pl.DataFrame(list(events), schema_overrides=kinds)


def test_an_event_is_validated_by_the_first_later_contract_that_accepts_it() -> None:
    later = LaterContracts((Later(10, STRICT), Later(20, contract())))
    taken = later.takes(rows(event(1), event(2, zone="eu"), event(12, zone="eu"), event(25)), COLUMNS)
    assert taken["lsn"].sort().to_list() == [1, 2, 12]
    assert set(taken["family"]) == {"both"}
    assert taken.sort("lsn").select("request_id", "input_tokens").rows() == [("r1", 1), ("r2", 2), ("r12", 12)]


def test_no_later_contract_validates_it_again() -> None:
    renamed = {OTHER_TYPE: contract_of({**OTHER, "x-weir-family": "both"}, shipped())}
    first = LaterContracts((Later(10, contract()),))
    both = LaterContracts((*first.later, Later(20, renamed), Later(30, STRICT)))
    given = rows(event(1), event(2, zone="eu"))
    assert both.takes(given, COLUMNS).sort("lsn").equals(first.takes(given, COLUMNS).sort("lsn"))


@pytest.mark.parametrize(
    "value", [None, b"", b"{", json.dumps({"specversion": "1.0"}).encode()], ids=["erased", "empty", "broken", "bare"]
)
def test_what_no_contract_takes_stays_as_it_is(value: bytes | None) -> None:
    later = LaterContracts((Later(10, contract()),))
    assert later.takes(rows({**event(1), "value": value}, event(2)), COLUMNS)["lsn"].to_list() == [2]


def test_rules_with_a_meter_that_joins_never_had_end_no_audit(tmp_path: Path) -> None:
    """ingestion was started with it, and before joins was, somebody took it back."""
    before = IngestionConfig().deciding
    tried = before | {"max_per_event": {"audio": "100"}}
    after = IngestionConfig.model_validate({"contracts": [OTHER]}).deciding
    held = [(1, before), (5, tried), (9, after)]
    said = {IN_FORCE: [{"from": first, "since": NOW.isoformat(), "rules": rules} for first, rules in held]}
    row = {"lsn": 9, "log_date": NOW.date(), "rules": json.dumps(said)}
    schema = pa.schema([field.with_nullable(True) for field in JOURNAL])
    path = str(tmp_path / Table.JOURNAL)
    write_deltalake(
        path,
        pa.Table.from_pylist([row], schema=schema),
        partition_by=["log_date"],
        commit_properties=CommitProperties(app_transactions=[Transaction(TRANSACTION, 9)]),
    )
    told = (EffectiveRules(1, JoinsConfig().deciding),)
    pinned = Pinned(20, None, told, (), ACCOUNTS.empty_table(), PRICES.empty_table())
    assert later_contracts(DeltaTable(path), pinned).types == [OTHER_TYPE]


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("is_audited_at_once", [True, False])
def test_a_meter_declared_with_a_late_contract_counts_earlier_events(
    tmp_path: Path, *, is_audited_at_once: bool
) -> None:
    """joins tells its meters with an outcome: until there is one, nobody would count what the contract gives."""
    with quick_database(tmp_path / "postgres") as url:
        world = World(tmp_path, emptied(url), 0, 1)
        world._is_settling = True
        with simulated(world.kafka, world.clock, world.most_few_rows, queries_rest=world.queries_rest):
            metered(world, Send(0, "usage", 0, 1, 0, 10))
            metered(world, Send(0, "other", 0, 2, 0, 10, reasoning=2))
            world.end()
            metered(world, Configure("ingestion", "contracts", (*CONTRACTS, OTHER)), Declare("reasoning"))
            if is_audited_at_once:
                audit(str(world.tables), world.clock.now())
            metered(world, Send(0, "usage", 0, 3, 0, 10, reasoning=5))
            said = audit(str(world.tables), world.clock.now())
            world.close()
    assert said is not None
    assert said.faults == []
    quantities = [
        entry["quantity"]
        for row in world.rows(Table.USAGE).values()
        for entry in row["meters"]
        if entry["meter"] == "reasoning_tokens"
    ]
    assert sorted(quantities) == [2, 5]


@pytest.mark.long
@pytest.mark.parametrize("is_audited_at_once", [True, False])
def test_conditions_of_a_late_contract_apply_to_earlier_events(tmp_path: Path, *, is_audited_at_once: bool) -> None:
    """Until joins has told them, an audit would count what a meter does not look at any more."""
    with quick_database(tmp_path / "postgres") as url:
        world = World(tmp_path, emptied(url), 0, 1)
        world._is_settling = True
        with simulated(world.kafka, world.clock, world.most_few_rows, queries_rest=world.queries_rest):
            metered(world, Send(0, "usage", 0, 1, 0, 10, status="error"))
            metered(world, *[Send(0, "other", 0, n, 0, 10, status=s) for n, s in ((2, "error"), (3, "cancelled"))])
            world.end()
            metered(world, Configure("ingestion", "contracts", (*CONTRACTS, OTHER)), Declare("answered"))
            if is_audited_at_once:
                audit(str(world.tables), world.clock.now())
            metered(world, *[Send(0, "usage", 0, n, 0, 10, status=s) for n, s in ((4, "error"), (5, "completed"))])
            said = audit(str(world.tables), world.clock.now())
            world.close()
    assert said is not None
    assert said.faults == []
    counted = [
        row["request_id"]
        for row in world.rows(Table.USAGE).values()
        for entry in row["meters"]
        if entry["meter"] == "requests"
    ]
    assert sorted(counted) == ["r1", "r3", "r5"], "the first was counted before there were conditions"


def metered(world: World, *steps: Step) -> None:
    for step in steps:
        step.do(world)
    for _ in range(3):
        world.clock.go(60)
        world.beat()
        for name in ("ingestion", "joins"):
            world.run(name, ENOUGH_CALLS, Fault.FREEZE)


CALLS = [{"model": "fast", "input_tokens": tokens, "output_tokens": 0} for tokens in (10, 20, 30)]
UNNESTING = {**OTHER, "x-weir-unnest": "/data/calls"}
RENAMED = {
    "$id": OTHER_TYPE,
    "x-weir-family": "both",
    "properties": {
        "data": {
            "required": ["call"],
            "properties": {
                "call": {"type": "string", "x-weir-column": "request_id"},
                "model": {"type": "string", "x-weir-column": "model"},
                "status": {"enum": ["completed", "cancelled", "error"], "x-weir-column": "status"},
                "input_tokens": {"type": "integer", "minimum": 0, "x-weir-column": "input_tokens"},
                "output_tokens": {"type": "integer", "minimum": 0, "x-weir-column": "output_tokens"},
            },
        }
    },
}
"""It reads the request id elsewhere."""


@dataclass(frozen=True)
class Again:
    """An event that came before its type had a contract is sent again under the contract `then`, with these calls."""

    then: Row
    calls: list[Row]
    billed: dict[str, int]
    """Input tokens by request."""

    def do(self, world: World, audited: str = "never") -> None:
        """`audited`: under which contract somebody starts the audit."""
        around: Row = {"model": "fast", "status": "completed", "input_tokens": 60}
        sent, alone = (
            json.loads(world.event(OTHER_TYPE, "a0", 10, request_id=f"r{n}", call=f"call-{n}", **around))
            for n in (1, 2)
        )
        metered(world, Raw({**sent, "data": {**sent["data"], "calls": CALLS}}), Raw(alone))
        for step, contract in (("whole", OTHER), ("then", self.then)):
            world.end()
            metered(world, Configure("ingestion", "contracts", (*CONTRACTS, contract)), Send(0, "usage", 0, 9, 0, 1))
            if audited in (step, "always"):
                audit(str(world.tables), world.clock.now())
        metered(world, Raw({**sent, "data": {**sent["data"], "calls": self.calls}}))


OF_CALLS = {f"r1/{number}": 10 * number for number in (1, 2, 3)}
AGAIN = {
    "in elements": Again(UNNESTING, CALLS, OF_CALLS),
    "in elements, with one more": Again(UNNESTING, [*CALLS, {"request_id": "own"}], {**OF_CALLS, "own": 60}),
    "with another request id": Again(RENAMED, CALLS, {"call-1": 60}),
}


@pytest.fixture
def validating_as_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The validator of histories knows neither arrays nor request ids elsewhere."""
    job: Any = JOBS["ingestion"]
    monkeypatch.setitem(JOBS, "ingestion", replace(job, build=_as_shipped, validator=_shipped_validator))


@pytest.mark.long
@pytest.mark.usefixtures("validating_as_shipped")
@pytest.mark.parametrize("audited", ["never", "whole", "always"])
@pytest.mark.parametrize("again", AGAIN)
def test_an_event_re_sent_under_other_request_ids_is_billed_once(tmp_path: Path, again: str, audited: str) -> None:
    """Ingestion lets it pass once more, because nobody had been billed for it."""
    with quick_database(tmp_path / "postgres") as url:
        world = World(tmp_path, emptied(url), 0, 1)
        world._is_settling = True
        with simulated(world.kafka, world.clock, world.most_few_rows, queries_rest=world.queries_rest):
            AGAIN[again].do(world, audited)
            faults = [found.faults for _ in range(2) if (found := audit(str(world.tables), world.clock.now()))]
            rows = world.rows(Table.USAGE).values()
            world.close()
    assert faults == [[], []]
    assert standing(rows) == {**AGAIN[again].billed, "r2": 60, "r9": 1}, "what was not sent again stays billed"


@pytest.mark.long
@pytest.mark.usefixtures("validating_as_shipped")
def test_executors_find_an_event_that_was_sent_again_as_other_requests(spark: SparkSession, tmp_path: Path) -> None:
    with quick_database(tmp_path / "postgres") as url:
        world = World(tmp_path, database := emptied(url), 0, 1)
        world._is_settling = True
        with simulated(world.kafka, world.clock, world.most_few_rows, queries_rest=world.queries_rest):
            AGAIN["in elements"].do(world)
            world.close()
        tables = str(world.tables)
        with pytest.raises(NotBilledError):
            list(Audit(spark, tables, database, HandClock(NOW), wait_seconds=0).run())
    rows = DeltaTable(f"{tables}/{Table.USAGE}").to_pyarrow_table().to_pylist()
    assert standing(rows) == {**OF_CALLS, "r2": 60, "r9": 1}


def _shipped_validator(config: IngestionConfig) -> Callable[[Any], Any]:
    return config.validator().validate


def _as_shipped(records: Any, config: IngestionConfig, _folder: Path | None) -> Any:
    return records.then(_shipped_validator(config))


@dataclass(frozen=True)
class Raw:
    """Somebody sends this event."""

    event: Row

    def do(self, world: World) -> str:
        """Append it."""
        world.send(0, json.dumps(self.event).encode(), 0)
        return ""


def standing(rows: Iterable[Row]) -> dict[str, int]:
    """Input tokens by request, of all that is billed."""
    found: Counter[str] = Counter()
    for row in rows:
        for entry in row["meters"]:
            if entry["meter"] == "input_tokens":
                found[row["request_id"]] += row["sign"] * int(entry["quantity"] or 0)
    return {request_id: tokens for request_id, tokens in found.items() if tokens}
