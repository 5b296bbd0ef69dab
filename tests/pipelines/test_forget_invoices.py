"""A person of an invoiced month is forgotten: no hash changes, verification finds nothing, and nothing is corrected."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import polars as pl
import psycopg
import pytest
from psycopg.types.json import Jsonb
from typer.testing import CliRunner

from cli.main import app
from jobs.analytics.patterns.blocks import AT, LSN, staged_blocks
from jobs.analytics.pipeline import STAGED
from jobs.audit.bills.invoices import check_invoices
from jobs.audit.recompute.basis import EVERYTHING
from jobs.billing.config import BillingConfig
from jobs.forget.database import change
from jobs.forget.run import Request, record
from jobs.forget.tables import Person
from jobs.forget.verify import Canary, search
from jobs.joins.exchange import Exchange, plain_arrow
from jobs.runtime.delta.new_files import Folder
from metering.erasure import keys_of
from metering.meters import Meter
from tests.dashboard.watched import match, pattern, watch
from tests.database_rows import write
from tests.pipelines.billing import bill, usage_row
from tests.pipelines.closing import NOON, NOVEMBER, OCTOBER, PRICE, Books, books_of

KEYS = keys_of("a secret of this test that is long enough")
DIMENSIONS = BillingConfig(dimensions=("user_id",))


@pytest.fixture
def books(database: str) -> Iterator[Books]:
    yield from books_of(database)


def use(books: Books, user: str, quantity: int) -> None:
    row = usage_row(
        books.lsn,
        NOON,
        price=PRICE,
        quantities={Meter.INPUT_TOKENS: Decimal(quantity)},
        dimensions=json.dumps({"user_id": user}, separators=(",", ":")),
    )
    bill(books.connection, [row], DIMENSIONS)
    books.lsn += 1


def users(books: Books) -> set[str]:
    return {row["name"] for row in books.rows("SELECT dimensions ->> 'user_id' AS name FROM usage_days")}


def test_invoices_verify_after_a_person_of_their_month_is_forgotten_and_are_corrected_by_nothing(
    books: Books, tmp_path: Path
) -> None:
    books.open()
    use(books, "alice", 1_001)
    use(books, "bob", 333)
    books.end(OCTOBER)
    books.close()
    hashes, total = books.hashes(), books.rows("SELECT total FROM invoices")
    assert users(books) == {"alice", "bob"}

    with psycopg.connect(books.database, autocommit=True) as connection:
        number = record(connection, Request("acme", "alice", "asked by letter", "dpo"), KEYS)
        changed = {done.table: done.rows for done in change(connection, Person(number, "acme", "alice", KEYS[0]))}
    assert changed["usage_days"] == 1
    assert users(books) == {"erased-1", "bob"}
    assert (books.hashes(), books.rows("SELECT total FROM invoices")) == (hashes, total)
    assert books.faults() == []
    assert [check.holds for check in check_invoices(books.database)] == [True, True]
    environment = {
        "WEIR_TABLES": str(tmp_path),
        "WEIR_KAFKA_BOOTSTRAP": "none:9092",
        "WEIR_POSTGRES_URL": books.database,
    }
    verified = CliRunner().invoke(app, ["verify"], env=environment)
    assert (verified.exit_code, ": 0 faults." in verified.stderr) == (0, True), verified.stderr

    books.reach(NOON + timedelta(days=60))
    books.close(NOVEMBER)
    assert books.rows("SELECT FROM invoice_lines WHERE charge_class IS NOT NULL") == []


def count_twice(books: Books) -> int:
    """The number of an erasure of alice, who is a user of October under her name and, having gone on, the other one."""
    books.open()
    with psycopg.connect(books.database, autocommit=True) as connection:
        number = record(connection, Request("acme", "alice", "asked by letter", "dpo"), KEYS)
    of = {"account": "acme", "meter": "users", "model": "sonnet", "currency": "EUR", "price_version": 7}
    windows = {"first_window": NOON, "last_window_end": NOON + timedelta(minutes=1)}
    day = {**of, **windows, "day": OCTOBER, "quantity": 2, "unit_price": 5, "usage_rows": 2, "next_position": 3}
    write(books.database, "usage_days", day)
    for name in ("alice", f"erased-{number}"):
        write(books.database, "usage_members", {**of, "first_day": OCTOBER, "member": name, "member_rows": 1})
    books.lsn = 3
    books.end(OCTOBER)
    return number


def count_once(books: Books, number: int) -> None:
    """The last step of `weir forget`, with no usage since."""
    with psycopg.connect(books.database, autocommit=True) as connection:
        assert list(change(connection, Person(number, "acme", "alice", KEYS[0], ("users",))))
    assert [row["quantity"] for row in books.rows("SELECT quantity FROM usage_months")] == [1]


def test_who_was_invoiced_under_two_names_is_no_fault_and_is_credited_by_the_next_close(books: Books) -> None:
    """No usage came between the close and the last step of the erasure, so no position says that the month changed."""
    number = count_twice(books)
    assert [row["total"] for row in books.close(OCTOBER)] == [10]
    count_once(books, number)
    assert [check.holds for check in check_invoices(books.database)] == [True, True]
    books.end(NOVEMBER)
    assert [row["total"] for row in books.close(NOVEMBER)] == [-5]
    assert [check.holds for check in check_invoices(books.database)] == [True, True]
    assert books.faults() == []


def test_users_that_were_counted_again_excuse_no_fault_of_another_meter(books: Books) -> None:
    number = count_twice(books)
    books.close(OCTOBER)
    count_once(books, number)
    of = {"account": "acme", "meter": "input_tokens", "model": "sonnet", "currency": "EUR", "price_version": 8}
    windows = {"first_window": NOON, "last_window_end": NOON + timedelta(minutes=1)}
    day = {**of, **windows, "day": OCTOBER, "quantity": 7, "unit_price": 1, "usage_rows": 1, "next_position": 3}
    write(books.database, "usage_days", day)
    [fault] = [check for check in check_invoices(books.database) if not check.holds]
    assert "input_tokens of acme" in fault.says
    assert "users" not in fault.says


def test_a_month_whose_users_were_counted_again_is_audited_again_before_it_is_closed(books: Books) -> None:
    number = count_twice(books)
    books.audit(EVERYTHING)
    count_once(books, number)
    assert [row["total"] for row in books.close(OCTOBER)] == [5]
    assert len(books.audits) == 2
    entries = books.rows("SELECT document::jsonb AS entry FROM activity_log ORDER BY number DESC LIMIT 1")
    assert [(row["entry"]["target"], row["entry"]["made_by"]) for row in entries] == [("usage_members", "dpo")]


def test_rows_on_their_way_between_tasks_are_searched_as_rows_of_their_account(books: Books, tmp_path: Path) -> None:
    exchange = Exchange(Folder(str(tmp_path / "usage"), {}))
    rows = pl.DataFrame({"account": ["acme", "bolt", "acme"], "user_id": ["alice", "alice", "bob"]})
    with exchange.writing("waiting", plain_arrow(rows).schema) as file:
        file.add(rows)
    (written,) = tmp_path.rglob("*.arrow")
    with psycopg.connect(books.database, autocommit=True) as connection:
        found = {store.store: store for store in search(str(tmp_path), connection, Canary("acme", "alice"))}
    between = found["usage, rows between tasks"]
    assert (between.searched, between.found, between.where) == (3, 1, str(written.relative_to(tmp_path)))


def test_what_a_parser_quoted_of_a_record_loses_the_name_and_what_a_person_wrote_stays(books: Books) -> None:
    record_of = {"topic_id": "t", "topic": "events", "partition": 0}
    quoted = [(1, "unreadable", 'no JSON: {"user_id": "alice"', None), (2, "unreadable", "no JSON: alice2", None)]
    for offset, reason, detail, by in [*quoted, (3, "skipped", "alice asked", "anna")]:
        row = {**record_of, "offset": offset, "reason": reason, "detail": detail, "asked_by": by}
        write(books.database, "isolated_records", row)
    with psycopg.connect(books.database, autocommit=True) as connection:
        changed = {done.table: done.rows for done in change(connection, Person(1, "acme", "alice", KEYS[0]))}
    assert changed["isolated_records"] == 1
    details = books.rows('SELECT detail FROM isolated_records ORDER BY "offset"')
    assert [row["detail"] for row in details] == [
        "erased by erasure 1: the text had the name",
        "no JSON: alice2",
        "alice asked",
    ]


def places(books: Books, folder: Path, canary: Canary) -> dict[str, tuple[int | None, int]]:
    """Where the name stands: what was searched there, and in how many rows it is."""
    with psycopg.connect(books.database, autocommit=True) as connection:
        return {
            store.store: (store.searched, store.found)
            for store in search(str(folder), connection, canary)
            if store.found
        }


def test_outcomes_of_patterns_are_searched_as_rows_of_their_account(books: Books, tmp_path: Path) -> None:
    """As rows: in a block texts follow each other, those of all accounts, and a short name is in other bytes."""
    rows = {"account": ["acme", "acme", "bolt", "acme"], "user_id": ["al", "ann", "eve", "malice"]}
    outcomes = pl.DataFrame({AT: [NOON] * 4, LSN: [1, 2, 3, 4], **rows})
    block = staged_blocks(outcomes, STAGED)["measures"][0].as_py()
    write(books.database, "pattern_outcomes", {"minute": NOON, "rows": 4, "outcomes": b64decode(block)})
    where = "Postgres weir.pattern_outcomes"
    assert places(books, tmp_path, Canary("acme", "al")) == {where: (4, 1)}
    assert places(books, tmp_path, Canary("acme", "malice")) == {where: (4, 1)}
    for other in (Canary("bolt", "malice"), Canary("acme", "eve"), Canary("acme", "alannevemalice")):
        assert places(books, tmp_path, other) == {}


def test_what_is_of_no_account_is_searched_too(books: Books, tmp_path: Path) -> None:
    """Silent sources, what webhooks are told about them, and watches and matches of all accounts."""
    write(books.database, "silent_sources", {"source": "gw/alice", "last_seen_at": NOON})
    called = {"event_id": f"evt_{0:032x}", "type": "weir.source.silent", "account": "", "endpoints": []}
    write(books.database, "webhook_events", {**called, "body": json.dumps({"source": "gw/alice"})})
    watch(books.database, "hers", columns=Jsonb({"user_id": "text"}), condition="user_id = 'alice'")
    match(books.database, pattern(books.database, "by_user", "user_id"), NOON, "m", {"user_id": "alice"})
    tables = ("activity_log", "pattern_matches", "silent_sources", "watches", "webhook_events")
    assert places(books, tmp_path, Canary("acme", "alice")) == {f"Postgres weir.{table}": (1, 1) for table in tables}
