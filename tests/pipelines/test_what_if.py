"""`weir what-if` against a second live stack: the same journal, its prices changed in place, through the shipped
drivers with the assumed configuration and an audit. What the replay says is what that stack shows, to the last digit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import structlog
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from typer.testing import CliRunner

from cli.main import app
from jobs.billing.config import BillingConfig
from jobs.joins.config import JoinsConfig
from jobs.replay.assumptions import Assumptions
from jobs.replay.bills import LINE_KEY, TOTAL_KEY
from jobs.replay.run import KEY, Replay
from jobs.replay.usage import Tables
from jobs.runtime.delta.table import FRONTIER, LSN
from jobs.runtime.errors import Refused
from jobs.streams import PRICES, USAGE, CatalogTopic, Table
from metering.instants import rfc3339
from tests.simulation.applications import simulated
from tests.simulation.audits import audit
from tests.simulation.calls import Fault
from tests.simulation.conftest import dropped
from tests.simulation.history import drawn
from tests.simulation.left import left_by
from tests.simulation.simulate import emptied, quick_database
from tests.simulation.steps import Publish, Step
from tests.simulation.world import ENOUGH_CALLS, World

SEED = 31
"""A history in which prices come late, requests are rejoined, events come twice, and usage comes after grace."""
OF_CONTRACTS = 34
"""One in which a contract comes for events that there were without one."""
OF_METERS_SINCE = 206
"""One in which other meters came after such events were billed."""
BEGIN, END = datetime(2024, 1, 1, tzinfo=UTC), datetime(2030, 1, 1, tzinfo=UTC)
JOINS = {"completion_timeout_seconds": 60}
BILLING = {"grace_seconds": 60, "late_policy": {"requests": "drop", "output_tokens": "hold"}, "hold": {"seconds": 60}}
CLOCKS = {"ingestion": {"max_clock_ahead_seconds": 30}}
"""What so short a time-out asks for."""
SUPPOSED = Assumptions(joins=JoinsConfig.model_validate(JOINS), billing=BillingConfig.model_validate(BILLING))
Row = dict[str, Any]


@dataclass(frozen=True)
class Live:
    """Two stacks of one history: one as it was, and one that was started with what is assumed."""

    tables: str
    database: str
    assumed: Assumptions
    supposed_windows: dict[Any, Row]
    prices_file: str


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("live")
    configured = structlog.get_config()
    structlog.configure(processors=[dropped])
    with quick_database(folder / "postgres") as url, quick_database(folder / "other") as other_url:
        partitions, drawn_steps = drawn(SEED)
        world = World(folder / "as it was", emptied(url), SEED, partitions)
        left(world, [step for step in drawn_steps if not (isinstance(step, Publish) and step.deleted)])
        prices = repriced_journal(world, folder / "assumed" / "tables" / Table.JOURNAL)
        other = Other(folder / "assumed", emptied(other_url))
        settle_supposed(other)
        yield Live(
            str(world.tables),
            world.database,
            replace(SUPPOSED, prices=pa.Table.from_pylist(prices, schema=PRICES)),
            windows(other.database, "weir"),
            json.dumps(
                {"prices": [price_of_file(price) for price in prices if price["meter"] in JoinsConfig().meters]}
            ),
        )
    structlog.configure(**configured)


class Other(World):
    """A stack whose journal is there."""

    def __init__(self, folder: Path, database: str) -> None:
        (folder / "tables").rename(folder / "kept")
        super().__init__(folder, database, SEED, 1)
        (folder / "kept" / Table.JOURNAL).rename(folder / "tables" / Table.JOURNAL)


def left(world: World, steps: list[Step]) -> None:
    with simulated(world.kafka, world.clock, world.most_few_rows, queries_rest=world.queries_rest):
        for step in steps:
            step.do(world)
        world.settle()
        world.close()


def settle_supposed(world: World) -> None:
    world.settings["joins"], world.settings["billing"] = dict(JOINS), dict(BILLING)
    with simulated(world.kafka, world.clock, world.most_few_rows, queries_rest=world.queries_rest):
        world._is_settling = True
        for _ in range(3):
            for name in ("joins", "billing"):
                world.run(name, ENOUGH_CALLS, Fault.FREEZE)
            said = audit(str(world.tables), world.clock.now())
            assert said is not None
            assert said.faults == []
        world.close()


def repriced_journal(world: World, place: Path) -> list[Row]:
    """The journal at another place, each price another one in it; what those are."""
    journal = DeltaTable(str(world.tables / Table.JOURNAL))
    rows, prices = [], {}
    for row in journal.to_pyarrow_table().to_pylist():
        if row["topic"] == CatalogTopic.PRICES:
            change = json.loads(row["value"])
            price = change["after"]
            price["unit_price"] = str(Decimal(price["unit_price"]) * 3 + Decimal("0.000001"))
            row["value"] = json.dumps(change).encode()
            if row["disposition"] == "accepted":
                at = datetime.fromisoformat(price["effective_from"])
                key = (price["plan"], price["model"], price["meter"], price["currency"], at)
                prices[key] = Decimal(price["unit_price"])
        rows.append(row)
    said = [Transaction(name, journal.transaction_version(name) or 0) for name in (LSN, FRONTIER)]
    write_deltalake(
        str(place),
        pa.Table.from_pylist(rows, schema=pa.schema(journal.schema().to_arrow())),
        partition_by=["log_date"],
        commit_properties=CommitProperties(app_transactions=said),
    )
    names = ("plan", "model", "meter", "currency", "effective_from")
    return [
        {**dict(zip(names, key, strict=True)), "unit_price": unit, "lsn": 0, "deleted": False}
        for key, unit in prices.items()
    ]


def price_of_file(price: Row) -> Row:
    said = {name: price[name] for name in ("plan", "model", "meter", "currency")}
    return {**said, "unit_price": str(price["unit_price"]), "effective_from": rfc3339(price["effective_from"])}


def windows(database: str, schema: str) -> dict[Any, Row]:
    """By KEY quantity and amount of all price versions together."""
    with psycopg.connect(database) as connection:
        found = connection.execute(
            f"SELECT {', '.join(KEY)}, sum(quantity), sum(amount) FROM {schema}.usage_windows GROUP BY 1, 2, 3, 4, 5"
        ).fetchall()
    return {tuple(row[:5]): {"quantity": row[5], "amount": row[6]} for row in found}


def all_rows(database: str) -> dict[str, list[str]]:
    """All that is live."""
    with psycopg.connect(database) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'weir'").fetchall()
        return {
            table: sorted(str(row) for row in connection.execute(f"SELECT * FROM {table}").fetchall())
            for (table,) in tables
        }


def replay(live: Live, schema: str, assumed: Assumptions, **more: Any) -> Replay:
    return Replay(live.tables, live.database, BEGIN, END, schema, assumed, **more)


def test_its_bills_equal_those_of_a_live_stack_under_the_same_rules(live: Live) -> None:
    before = all_rows(live.database)
    found = replay(live, "what_if", live.assumed).run()
    assert windows(live.database, "what_if") == live.supposed_windows
    was = windows(live.database, "weir")
    nothing = {"quantity": Decimal(0), "amount": None}
    differing = {
        key: (was.get(key, nothing), live.supposed_windows.get(key, nothing))
        for key in was.keys() | live.supposed_windows.keys()
        if was.get(key, nothing) != live.supposed_windows.get(key, nothing)
    }
    assert differing
    told = {tuple(row[name] for name in KEY): row for row in found.windows}
    assert told.keys() == differing.keys()
    for key, (one, other) in differing.items():
        row = told[key]
        assert [row["live_quantity"], row["live_amount"]] == list(one.values())
        assert [row["replayed_quantity"], row["replayed_amount"]] == list(other.values())
        assert row["difference_quantity"] == other["quantity"] - one["quantity"]
        assert row["difference_amount"] == (other["amount"] or 0) - (one["amount"] or 0)
    for total in found.totals:
        of = [
            each
            for key, each in live.supposed_windows.items()
            if (key[1], key[4]) == (total["account"], total["currency"])
        ]
        assert (total["replayed_amount"] or 0) == sum(each["amount"] or 0 for each in of)
    assert any(total["difference_amount"] for total in found.totals)
    assert all_rows(live.database) == before, "what is live is as it was"


def test_without_anything_supposed_nothing_differs(live: Live) -> None:
    found = replay(live, "the_same", Assumptions()).run()
    assert found.windows == []
    assert {total["difference_amount"] for total in found.totals} == {0}


@pytest.mark.long
@pytest.mark.parametrize("seed", [OF_CONTRACTS, OF_METERS_SINCE])
def test_usage_billed_by_a_late_contract_is_replayed(tmp_path: Path, seed: int) -> None:
    with left_by(seed, tmp_path, is_audited=True) as world:
        causes = DeltaTable(str(world.tables / Table.USAGE)).to_pyarrow_table(columns=["cause"])["cause"]
        assert "schema_added" in causes.to_pylist()
        found = Replay(str(world.tables), world.database, BEGIN, END, "contracted", Assumptions()).run()
    assert found.windows == []


def test_a_period_has_the_windows_of_the_whole_that_are_in_it(live: Live) -> None:
    whole = replay(live, "whole", live.assumed).run().windows
    starts = sorted({row["window_start"] for row in whole})
    middle = starts[len(starts) // 2]
    parts = [replace(replay(live, "part", live.assumed, replaces=True), end=middle).run()]
    parts += [replace(replay(live, "part", live.assumed, replaces=True), start=middle).run()]
    assert [row for part in parts for row in part.windows] == whole
    assert all(part.windows for part in parts)


def test_only_a_schema_that_a_replay_made_is_replaced_and_only_on_request(live: Live) -> None:
    replay(live, "again", Assumptions()).run()
    with pytest.raises(Refused, match="is there already; name another one, or give --replace"):
        replay(live, "again", Assumptions()).run()
    replay(live, "again", Assumptions(), replaces=True).run()
    with psycopg.connect(live.database, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA IF NOT EXISTS somebodys")
    with pytest.raises(Refused, match="was not made by a replay"):
        replay(live, "somebodys", Assumptions(), replaces=True).run()


def test_the_command_reads_both_files_and_prints_the_documented_keys(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"KAFKA_BOOTSTRAP": "x:1", "POSTGRES_URL": live.database, "TABLES": live.tables}.items():
        monkeypatch.setenv(f"WEIR_{name}", value)
    file = json.loads(live.prices_file)
    plans = [{"plan": plan, "name": plan} for plan in sorted({price["plan"] for price in file["prices"]})]
    (tmp_path / "catalog.json").write_text(json.dumps({"plans": plans, **file}))
    (tmp_path / "weir.json").write_text(json.dumps({"jobs": {**CLOCKS, "joins": JOINS, "billing": BILLING}}))
    period = ["--from", rfc3339(BEGIN), "--to", rfc3339(END), "--into", "by_command", "--format", "json"]
    files = ["--catalog", str(tmp_path / "catalog.json"), "--config", str(tmp_path / "weir.json")]
    ended = CliRunner().invoke(app, ["what-if", *period, *files])
    assert ended.exit_code == 0, ended.output
    said = json.loads(ended.stdout)
    of_windows = ["totals", "windows", "periods_left_out"]
    assert list(said) == ["from", "to", "schema", *of_windows, "bills", "lines", "months_left_out"]
    of_months = ["live_amount", "replayed_amount", "difference_amount"]
    assert list(said["bills"][0]) == [*TOTAL_KEY, *of_months]
    assert list(said["lines"][0]) == [
        *LINE_KEY,
        *("live_quantity", "replayed_quantity", "difference_quantity"),
        *of_months,
    ]
    assert list(said["totals"][0]) == ["account", "currency", "live_amount", "replayed_amount", "difference_amount"]
    assert list(said["windows"][0]) == [
        *KEY,
        *("live_quantity", "replayed_quantity", "difference_quantity"),
        *("live_amount", "replayed_amount", "difference_amount"),
        "period",
    ]
    assert windows(live.database, "by_command") == live.supposed_windows


@pytest.mark.parametrize("name", ["public", "catalog", "pg_temp", "What", "a-b", "x" * 64])
def test_a_name_that_could_be_live_is_refused(name: str) -> None:
    ended = CliRunner().invoke(app, ["what-if", "--from", rfc3339(BEGIN), "--to", rfc3339(END), "--into", name])
    assert ended.exit_code == 2
    assert "cannot be the schema of a replay" in ended.output


@pytest.mark.parametrize(("cause", "is_awaited"), [("decided", True), ("stream", False)])
def test_a_decision_that_billing_has_not_read_is_awaited_though_it_was_made_after_the_period(
    tmp_path: Path, cause: str, *, is_awaited: bool
) -> None:
    """Else it would be a difference of the replay."""
    row = {"lsn": 5, "log_date": END.date(), "event_time": END, "cause": cause}
    schema = pa.schema([field.with_nullable(True) for field in USAGE])
    said = CommitProperties(app_transactions=[Transaction(LSN, 6)])
    rows = pa.Table.from_pylist([row], schema=schema)
    write_deltalake(str(tmp_path), rows, partition_by=["log_date"], commit_properties=said)
    usage = DeltaTable(str(tmp_path))
    asked = Replay(str(tmp_path), "", BEGIN, END, "waits", Assumptions())
    assert asked._is_behind(Tables(usage, usage, BEGIN.date()), 5) is is_awaited
    assert not asked._is_behind(Tables(usage, usage, BEGIN.date()), 6)
