"""Edits of the catalog by SQL reach its topics, each once in the order of its row and with who made it, whoever dies.

Method: `oracle`. Each test edits, remembers what every row has said, and asks what joins would hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any
from urllib.request import Request, urlopen
from uuid import uuid4

import psycopg
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from catalog import capture
from catalog.change import Change, compact_json
from catalog.decisions import DecisionText, Waiting, decide
from catalog.deletion import delete_row
from catalog.earlier_keys import forget_earlier_keys
from catalog.publishing import publish
from catalog.reconciliation import delete_missing, missing_deletions, publish_differences
from deployment.capture import read_capture
from jobs.joins.unpropagated_deletions import LOOK_SECONDS, UnpropagatedDeletions
from jobs.journal.catalog_changes import parse_change
from jobs.journal.catalog_problems import change_problem
from jobs.streams import SCHEMAS, CatalogTopic, Table
from metering.vocabulary import Decision
from tests.clocks import HandClock
from tests.streaming.capturing import Chain, running_chain
from tests.waiting import wait_until

JANUARY = datetime(2026, 1, 1, tzinfo=UTC)
PLANS = ("small", "large")
_UPSERT = """
    INSERT INTO catalog.accounts (account, name, plan, currency, effective_from) VALUES (%s, 'A', %s, 'EUR', %s)
    ON CONFLICT (account) DO UPDATE SET plan = excluded.plan, effective_from = excluded.effective_from
    RETURNING coalesce(effective_from, changed_at), changed_by, changed_at
"""
# As a price list says it: what is captured is the price of one unit.
_PRICED = """
    INSERT INTO catalog.prices (plan, model, meter, currency, effective_from, unit_price, per)
    VALUES (%s, %s, %s, %s, %s, %s * 1000000, 1000000)
    ON CONFLICT (plan, model, meter, currency, effective_from) DO UPDATE SET unit_price = excluded.unit_price
    RETURNING changed_by, changed_at
"""
Author = tuple[str | None, datetime | None]
Priced = tuple[Decimal, Author]
Contract = tuple[str, datetime, Author]
"""Plan, and since when."""


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Chain, Edits]]:
    """Whose topics an older release wrote, which told its changes itself; the worker has not run yet."""
    with running_chain(tmp_path_factory.mktemp("capture")) as chain:
        edits = Edits(chain, Random(7))
        with edits.transaction() as sql:
            for plan in PLANS:
                sql.execute("INSERT INTO catalog.plans VALUES (%s, %s)", [plan, plan])
            for number in range(6):
                edits.account(sql, f"old-{number}")
                edits.price(sql, unit_price=Decimal("0.5"), day=100 + number)
        edits.tell_as_older_releases_did()
        yield chain, edits


@pytest.fixture
def edited(older: tuple[Chain, Edits]) -> tuple[Chain, Edits]:
    """A chain that captures."""
    chain, edits = older
    if "connect" not in chain.processes:
        chain.start_worker()
    chain.until_captured()
    return chain, edits


class Edits:
    """Edits by SQL, and what each row has said since, and who said it first, and when. None: it was deleted."""

    def __init__(self, chain: Chain, random: Random) -> None:
        self._chain = chain
        self._random = random
        self.prices: dict[tuple[Any, ...], list[Priced | None]] = {}
        self.accounts: dict[str, list[Contract | None]] = {}

    def transaction(self) -> psycopg.Connection[Any]:
        """One person's, to be used as a context: commits at its end."""
        name = self._random.choice(("ann", "bob"))
        return psycopg.connect(self._chain.url, connect_timeout=10, options=f"-c weir.changed_by={name}")

    def price(self, sql: psycopg.Connection[Any], *, unit_price: Decimal | None = None, day: int | None = None) -> None:
        """Insert or change one of a few prices."""
        key = self._price_key(day)
        unit_price = Decimal(self._random.randrange(1, 4)) / 8 if unit_price is None else unit_price
        row = sql.execute(_PRICED, [*key, unit_price]).fetchone()
        assert row is not None
        _say(self.prices.setdefault(key, []), (unit_price, row))

    def withdraw(self, sql: psycopg.Connection[Any], day: int | None = None) -> None:
        """Delete one of them, if it is there."""
        key = self._price_key(day)
        gone = sql.execute(
            "DELETE FROM catalog.prices WHERE (plan, model, meter, currency, effective_from) = (%s, %s, %s, %s, %s)",
            key,
        )
        if gone.rowcount:
            _say(self.prices[key], None)

    def account(self, sql: psycopg.Connection[Any], name: str | None = None) -> None:
        """Insert or change one of a few accounts, from an instant on or from now on."""
        name = f"a{self._random.randrange(4)}" if name is None else name
        plan = self._random.choice(PLANS)
        since = self._random.choice((None, JANUARY + timedelta(days=self._random.randrange(3))))
        row = sql.execute(_UPSERT, [name, plan, since]).fetchone()
        assert row is not None
        since, *author = row
        _say(self.accounts.setdefault(name, []), (plan, since, tuple(author)))

    def close(self, sql: psycopg.Connection[Any], name: str | None = None) -> None:
        """Delete an account, if it is there."""
        name = f"a{self._random.randrange(4)}" if name is None else name
        if sql.execute("DELETE FROM catalog.accounts WHERE account = %s", [name]).rowcount:
            _say(self.accounts[name], None)

    def tell_as_older_releases_did(self) -> None:
        """In Debezium's envelope, by the command itself; instants are texts of another form, and nobody is named."""
        nobody: Author = None, None
        self.prices = {key: [(said[-1][0], nobody)] for key, said in self.prices.items() if said[-1] is not None}
        self.accounts = {
            name: [(*said[-1][:2], nobody)] for name, said in self.accounts.items() if said[-1] is not None
        }
        at = datetime(2026, 2, 3, 4, 5, 6, 789_000, tzinfo=UTC)
        changes = []
        for (plan, model, meter, currency, since), said in self.prices.items():
            key = {"plan": plan, "model": model, "meter": meter, "currency": currency}
            key |= {"effective_from": since.isoformat().replace("+00:00", "Z")}
            assert said[-1] is not None
            changes.append(Change(CatalogTopic.PRICES, key, {**key, "unit_price": f"{said[-1][0]:f}"}, "c", at))
        for name, states in self.accounts.items():
            state = states[-1]
            assert state is not None
            key = {"account": name}
            after = {**key, "name": "A", "plan": state[0], "currency": "EUR", "timezone": "UTC"}
            changes.append(
                Change(CatalogTopic.ACCOUNTS, key, {**after, "effective_from": state[1].isoformat()}, "c", at)
            )
        publish(self._chain.bootstrap, changes)
        row = "INSERT INTO catalog_outbox (topic, key, after, op, committed_at, published_at)"
        with self.transaction() as sql:
            for change in changes:
                texts = [change.topic.value, compact_json(change.key), compact_json(change.after)]
                sql.execute(f"{row} VALUES (%s, %s, %s, 'c', %s, now())", [*texts, at])

    def _price_key(self, day: int | None) -> tuple[Any, ...]:
        day = self._random.randrange(3) if day is None else day
        return self._random.choice(PLANS), "m", "requests", "EUR", JANUARY + timedelta(days=day)

    def assert_current(self, versions: dict[Table, list[dict[str, Any]]]) -> None:
        """These say what the database says, and of nothing else that it is there."""
        prices = {_price_key(row): _priced(row) for row in versions[Table.PRICES]}
        accounts = {row["account"]: _contract(row) for row in versions[Table.ACCOUNTS]}
        # A version that has no author yet is told by its row again, which has one.
        assert _of_anybody(prices) == _of_anybody(_last(self.prices))
        assert _of_anybody(accounts) == _of_anybody(_last(self.accounts))

    def assert_told(self, *, only_last: bool = False) -> None:
        """What joins would hold says of every row what it has said, one after the other, or at last."""
        versions = self._chain.versions()
        prices: dict[tuple[Any, ...], list[Priced | None]] = {}
        for row in versions[Table.PRICES]:
            prices.setdefault(_price_key(row), []).append(_priced(row))
        accounts: dict[str, list[Contract | None]] = {}
        for row in versions[Table.ACCOUNTS]:
            accounts.setdefault(row["account"], []).append(_contract(row))
        if only_last:
            assert _last(prices) == _last(self.prices)
            assert _last(accounts) == _last(self.accounts)
        else:
            assert prices == self.prices
            assert accounts == self.accounts


def _price_key(version: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(version[name] for name in ("plan", "model", "meter", "currency", "effective_from"))


def _priced(version: Mapping[str, Any]) -> Priced | None:
    return None if version["deleted"] else (version["unit_price"], (version["changed_by"], version["changed_at"]))


def _contract(version: Mapping[str, Any]) -> Contract | None:
    author = version["changed_by"], version["changed_at"]
    return None if version["deleted"] else (version["plan"], version["effective_from"], author)


def _last(said: Mapping[Any, list[Any]]) -> dict[Any, Any]:
    """What each row has said last."""
    return {key: states[-1] for key, states in said.items()}


def _of_anybody(last: Mapping[Any, Any]) -> dict[Any, Any]:
    """The rows that there are, without their authors."""
    return {key: state[:-1] for key, state in last.items() if state is not None}


def _say(states: list[Any], state: Any) -> None:
    """What is said twice is one state."""
    if not states or states[-1] != state:
        states.append(state)


@pytest.mark.long
def test_the_first_snapshot_changes_nothing_that_an_older_release_published(
    older: tuple[Chain, Edits],
) -> None:
    chain, edits = older
    before = chain.versions()
    assert len(before[Table.PRICES]) == len(before[Table.ACCOUNTS]) == 6
    records = len(chain.told())
    chain.start_worker()
    chain.until_captured()
    assert len(chain.told()) == records + 2 + 6 + 6, "each row is published again"
    assert chain.versions() == before
    edits.assert_told()


@pytest.mark.long
def test_a_connectors_configuration_may_name_the_variable_of_the_password_and_no_other(
    edited: tuple[Chain, Edits],
) -> None:
    """Asked by the validation of a configuration, which shows what the worker makes of the connector's name."""
    chain, _ = edited

    def seen(name: str) -> str:
        request = Request(
            f"{chain.worker.url}/connector-plugins/PostgresConnector/config/validate",
            method="PUT",
            data=json.dumps({**capture.connector(chain.url, {}), "name": name}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urlopen(request, timeout=60) as answer:
            values = {config["value"]["name"]: config["value"]["value"] for config in json.load(answer)["configs"]}
        return str(values["name"])

    assert seen(f"${{env:{capture.PASSWORD_VARIABLE}}}") == capture.password(chain.url)
    assert seen("${env:PATH}") == "${env:PATH}"


@pytest.mark.long
def test_a_price_of_an_older_release_does_not_outlive_its_deletion_in_a_compacted_topic(
    edited: tuple[Chain, Edits],
) -> None:
    """Its key was another text. A new installation reads the topic from its beginning."""
    chain, edits = edited
    before = chain.versions()
    assert forget_earlier_keys(chain.bootstrap, chain.url) == 6
    assert forget_earlier_keys(chain.bootstrap, chain.url) == 0
    assert chain.versions() == before, "a tombstone says nothing to joins"
    with edits.transaction() as sql:
        for day in (100, 101, 102):
            for _ in range(8):
                edits.withdraw(sql, day=day)
    chain.until_captured()
    edits.assert_current(chain.versions(chain.compacted()))
    edits.assert_told()


@pytest.mark.long
def test_a_snapshot_publishes_accounts_after_the_prices_of_their_plans(edited: tuple[Chain, Edits]) -> None:
    chain, _ = edited
    values = [(record.topic, json.loads(record.value)) for record in chain.told() if record.value is not None]
    read = [(value["ts_us"], topic) for topic, value in values if value["op"] == "r" and "ts_us" in value]
    tables = [CatalogTopic(topic) for _, topic in sorted(read)]
    order = [table for n, table in enumerate(tables) if n == 0 or tables[n - 1] != table]
    assert order == [CatalogTopic.PLANS, CatalogTopic.PRICES, CatalogTopic.ACCOUNTS]


def test_a_deletion_is_published_with_the_earlier_row_and_a_tombstone(edited: tuple[Chain, Edits]) -> None:
    chain, _ = edited
    name = uuid4().hex
    with psycopg.connect(chain.url) as sql:
        sql.execute("INSERT INTO catalog.accounts VALUES (%s, 'N', 'small', 'EUR', 'UTC')", [name])
    with psycopg.connect(chain.url) as sql:
        sql.execute("DELETE FROM catalog.accounts WHERE account = %s", [name])
    chain.until_captured()
    told = [record.value for record in chain.told() if json.loads(record.key or b"{}") == {"account": name}]
    values = [json.loads(value or b"{}") for value in told]
    assert [value.get("op") for value in values] == ["c", "d", None]
    assert values[1]["before"]["plan"] == "small"
    after = values[0]["after"]
    changed_at = datetime.fromisoformat(after["changed_at"])
    edited[1].accounts[name] = [("small", changed_at, (after["changed_by"], changed_at)), None]


@pytest.mark.long
def test_a_deletion_by_the_command_is_captured_with_its_time_and_author(
    edited: tuple[Chain, Edits],
) -> None:
    """As of before, and with SQL: then it is when that was committed, and nobody is named."""
    chain, edits = edited
    name, before = uuid4().hex, {table: len(rows) for table, rows in chain.versions().items()}
    key = {"plan": "large", "model": name, "meter": "requests", "currency": "EUR"}
    with psycopg.connect(chain.url) as sql:
        sql.execute("INSERT INTO catalog.accounts VALUES (%s, 'N', 'large', 'EUR', 'UTC')", [name])
        for day in range(2):
            sql.execute(_PRICED, [*key.values(), JANUARY + timedelta(days=day), 1])
    as_of = datetime.now(UTC) - timedelta(days=1)
    delete_row(chain.url, CatalogTopic.PRICES, {**key, "effective_from": JANUARY}, as_of, "ann")
    delete_row(chain.url, CatalogTopic.ACCOUNTS, {"account": name}, as_of, "ann")
    committing = datetime.now(UTC)
    with psycopg.connect(chain.url) as sql:
        sql.execute("DELETE FROM catalog.prices WHERE model = %s", [name])
    committed = datetime.now(UTC)
    chain.until_captured()
    versions = chain.versions()
    assert {table: len(rows) - before[table] for table, rows in versions.items()} == {
        Table.PRICES: 4,
        Table.ACCOUNTS: 2,
    }
    of_model = sorted((row for row in versions[Table.PRICES] if row["model"] == name), key=lambda row: row["lsn"])
    prices = sorted((row for row in of_model if row["deleted"]), key=lambda row: row["effective_from"])
    assert [(row["effective_from"] - JANUARY).days for row in prices] == [0, 1]
    assert (prices[0]["ends_at"], prices[0]["changed_by"]) == (as_of, "ann")
    assert committing <= prices[1]["ends_at"] <= committed
    assert prices[1]["changed_by"] is None
    account = [row for row in versions[Table.ACCOUNTS] if row["account"] == name][-1]
    assert (account["deleted"], account["effective_from"], account["changed_by"]) == (True, as_of, "ann")
    for day in range(2):
        edits.prices[*key.values(), JANUARY + timedelta(days=day)] = _of(of_model, name, day)
    edits.accounts[name] = [_contract(row) for row in versions[Table.ACCOUNTS] if row["account"] == name]


def _of(versions: list[dict[str, Any]], model: str, day: int) -> list[Priced | None]:
    since = JANUARY + timedelta(days=day)
    return [_priced(row) for row in versions if (row["model"], row["effective_from"]) == (model, since)]


def test_a_decision_is_published_and_a_repeated_one_unchanged(edited: tuple[Chain, Edits]) -> None:
    """What did not count is decided again: then it must come once more, behind what came meanwhile."""
    chain, _ = edited
    one = Waiting(7, "requests", "a", "r7")
    for said in (DecisionText(Decision.APPROVE, "as agreed", "ann"), DecisionText(Decision.APPROVE, "yes", "bob")):
        decide(chain.url, [one], said)
    decide(chain.url, [one], DecisionText(Decision.REJECT, "no", "eve"))
    chain.until_captured()
    records = [record for record in chain.told() if record.topic == CatalogTopic.DECISIONS]
    assert all(change_problem(record.topic, record.key, record.value) is None for record in records)
    rows = [parse_change(record.topic, record.value, lsn) or {} for lsn, record in enumerate(records)]
    told = [(row["usage_lsn"], row["decision"], row["decided_by"]) for row in rows]
    assert told == [(7, "approve", "ann"), (7, "approve", "ann"), (7, "reject", "eve")]


@pytest.mark.long
def test_columns_are_added_and_renamed_during_capture_and_a_needed_one_is_missed_until_it_is_back(
    edited: tuple[Chain, Edits], tmp_path: Path
) -> None:
    """One's own column makes no version. Of a row without ours nothing is believed, and it is published again as it
    is.
    """
    chain, edits = edited
    for statement in ("ADD COLUMN crm_id text", "RENAME COLUMN crm_id TO crm", "DROP COLUMN crm"):
        with edits.transaction() as sql:
            sql.execute(f"ALTER TABLE catalog.accounts {statement}".encode())
            edits.account(sql, "grown")
            edits.price(sql)
        if statement.startswith("ADD"):
            with psycopg.connect(chain.url) as sql:
                sql.execute("INSERT INTO catalog.accounts VALUES ('crm', 'C', 'large', 'EUR', 'UTC', '2026-01-01 UTC')")
            chain.until_captured()
            versions = chain.versions()
            with psycopg.connect(chain.url) as sql:
                sql.execute("UPDATE catalog.accounts SET crm_id = '7' WHERE account = 'crm'")
            chain.until_captured()
            assert chain.versions() == versions, "nothing that we read has changed"
            edits.accounts["crm"] = [_contract(row) for row in versions[Table.ACCOUNTS] if row["account"] == "crm"]
    chain.until_captured()
    edits.assert_told()

    before = chain.versions()
    chain.problems.add(
        "the row has no unit_price: catalog.prices has no such column any more, or it is called otherwise"
    )
    with psycopg.connect(chain.url) as sql:
        sql.execute("ALTER TABLE catalog.prices RENAME COLUMN unit_price TO price_of_unit")
        sql.execute("UPDATE catalog.prices SET price_of_unit = price_of_unit + 1 WHERE plan = 'large'")
    chain.until_captured()
    assert read_capture(chain.url).missing == ("catalog.prices.unit_price",)
    assert chain.versions() == before
    assert {change_problem(record.topic, record.key, record.value) for record in chain.told()} == {
        None,
        *chain.problems,
    }

    with psycopg.connect(chain.url) as sql:
        sql.execute("ALTER TABLE catalog.prices RENAME COLUMN price_of_unit TO unit_price")
    for table, rows in before.items():
        write_deltalake(f"{tmp_path}/{table}", pa.Table.from_pylist(rows, schema=SCHEMAS[table]))
    told = publish_differences(str(tmp_path), chain.url)
    chain.until_captured()
    with psycopg.connect(chain.url) as sql:
        found = sql.execute(
            "SELECT plan, model, meter, currency, effective_from, unit_price, changed_by, changed_at "
            "FROM catalog.prices WHERE plan = 'large'"
        ).fetchall()
    for *key, unit_price, changed_by, changed_at in found:
        _say(edits.prices[tuple(key)], (unit_price, (changed_by, changed_at)))
    assert told == len(found) > 0
    edits.assert_told()


@pytest.mark.timeout(600)
@pytest.mark.long
def test_a_lost_slot_is_followed_by_a_snapshot_that_changes_only_what_changed(edited: tuple[Chain, Edits]) -> None:
    chain, edits = edited
    before = len(chain.versions()[Table.ACCOUNTS])
    lose_slot(chain)
    with edits.transaction() as sql:
        edits.account(sql, "after-the-loss")
        edits.price(sql, unit_price=Decimal("0.875"), day=1)
    chain.start_worker()
    chain.until_captured()
    edits.assert_told(only_last=True)
    assert len(chain.versions()[Table.ACCOUNTS]) == before + 1


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_price_inserted_and_deleted_in_one_transaction_never_existed(edited: tuple[Chain, Edits]) -> None:
    """The log of changes tells both, as of one moment."""
    chain, edits = edited
    name = uuid4().hex
    with psycopg.connect(chain.url) as sql:
        sql.execute(_PRICED, ["large", name, "requests", "EUR", JANUARY, 1])
        sql.execute("DELETE FROM catalog.prices WHERE model = %s", [name])
    chain.until_captured()
    put, gone_again = (row for row in chain.versions()[Table.PRICES] if row["model"] == name)
    assert (put["deleted"], gone_again["deleted"]) == (False, True)
    assert put["source_at"] == gone_again["source_at"] > JANUARY == gone_again["ends_at"]
    edits.prices["large", name, "requests", "EUR", JANUARY] = _of([put, gone_again], name, 0)
    edits.assert_told()


@pytest.mark.timeout(600)
@pytest.mark.long
def test_deletions_during_a_lost_slot_are_published_later(edited: tuple[Chain, Edits], tmp_path: Path) -> None:
    """Whoever held it takes it off, and says nothing else of anything."""
    chain, edits = edited
    lose_slot(chain)
    with edits.transaction() as sql:
        edits.close(sql, "old-1")
        edits.withdraw(sql, day=100)
        sql.execute(
            "DELETE FROM catalog.accounts WHERE plan = 'small'; DELETE FROM catalog.prices WHERE plan = 'small'"
        )
        sql.execute("DELETE FROM catalog.plans WHERE plan = 'small'")
    for name, said in edits.accounts.items():
        if said[-1] is not None and said[-1][0] == "small":
            edits.accounts[name].append(None)
    for key, unit_prices in edits.prices.items():
        if key[0] == "small" and unit_prices[-1] is not None:
            unit_prices.append(None)
    chain.start_worker()
    chain.until_captured()
    before = chain.versions()
    for table, rows in held(before).items():
        write_deltalake(f"{tmp_path}/{table}", rows)
    clock = HandClock()
    unpropagated = UnpropagatedDeletions(chain.url, clock)

    def looks(versions: dict[Table, list[dict[str, Any]]]) -> int:
        """What joins would say, after a look and another when all that was committed is captured."""
        for _ in range(3):
            clock.go(LOOK_SECONDS)
            unpropagated.look_if_due(held(versions), datetime.now(UTC) + timedelta(hours=1))
            chain.until_captured()
        return unpropagated.rows

    never_told = looks(before)
    deleted = delete_missing(str(tmp_path), chain.url, missing_deletions(str(tmp_path), chain.url))
    assert never_told == deleted

    chain.until_captured()
    edits.assert_told(only_last=True)
    after = chain.versions()
    assert deleted > 1
    assert sum(map(len, after.values())) == sum(map(len, before.values())) + deleted
    assert looks(after) == 0, "joins has been told"
    with psycopg.connect(chain.url) as sql:
        assert sql.execute("SELECT plan FROM catalog.plans").fetchall() == [("large",)]


def held(versions: dict[Table, list[dict[str, Any]]]) -> dict[Table, pa.Table]:
    """As joins has them."""
    return {table: pa.Table.from_pylist(rows, schema=SCHEMAS[table]) for table, rows in versions.items()}


def lose_slot(chain: Chain) -> None:
    """Without a worker."""
    chain.kill("connect")
    with psycopg.connect(chain.url, autocommit=True) as sql:
        wait_until(lambda: not sql.execute("SELECT FROM pg_replication_slots WHERE active").fetchall(), "its end")
        sql.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
