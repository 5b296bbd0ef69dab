"""What nobody should do to invoices is named, by `verify` and by the audit; and a close survives being killed anywhere.

The faults are planted by the owner of the tables, with the triggers disabled.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from jobs.audit.bills.invoices import check_invoices
from jobs.audit.recompute.basis import Scope
from jobs.close import issue, store
from jobs.close import run as close_run
from jobs.close.config import CloseConfig
from jobs.close.void import NotVoidedError, void
from jobs.queries.invoices import InvoiceQuery, invoice_document, invoice_rows
from jobs.runtime.postgres.address import in_schema
from metering.invoice_chain import BEGINNING
from tests.pipelines.billing import Price
from tests.pipelines.closing import DECEMBER, NOON, NOVEMBER, OCTOBER, Books, books_of

IN_NOVEMBER = NOON + timedelta(days=31)
TABLES = ("invoices", "invoice_lines", "invoice_events")
SWAP = ";".join(
    f"UPDATE invoice_lines SET invoice = '{new}' WHERE invoice = '{old}'"
    for old, new in (("weir-1", "x"), ("weir-3", "weir-1"), ("x", "weir-3"))
)
CENT = (
    "UPDATE invoice_lines SET amount = amount + 0.01 WHERE invoice = 'weir-2';"
    "UPDATE invoices SET total = total + 0.01 WHERE invoice = 'weir-2'"
)
_COPIED = (
    *("invoice", "account", "charge_class", "corrects_invoice", "corrects_line", "unit_price", "quantity"),
    *("exact_amount", "amount", "residual", "hash", "original_period", "kind", "model", "meter", "price_version"),
    "tier",
)
TWICE = (
    f"INSERT INTO invoice_lines (line, {', '.join(_COPIED)}) SELECT line + 10, {', '.join(_COPIED)} FROM invoice_lines"
    " WHERE invoice = 'weir-3' AND charge_class IS NOT NULL"
)
PLANTED = {
    "a line changed": (
        "UPDATE invoice_lines SET quantity = 999 WHERE invoice = 'weir-1'",
        "line 1 of weir-1 was changed: it is not what its hash says",
    ),
    "a line removed": ("DELETE FROM invoice_lines WHERE invoice = 'weir-1' AND line = 1", "weir-1 lacks line 1"),
    "two invoices swapped": (SWAP, "weir-1 and weir-3 were swapped: each has content of the other"),
    "a number skipped": (
        "UPDATE invoices SET number = 9 WHERE invoice = 'weir-4'",
        "the series of weir lacks number 4 to 8",
    ),
    "an invoice removed": (
        ";".join(f"DELETE FROM {table} WHERE invoice = 'weir-2'" for table in reversed(TABLES)),
        "the series of weir lacks number 2",
    ),
    "a correction applied twice": (TWICE, "weir-3 has more than its lines: line 12"),
    "a rounding of 1 in the twelfth place": (
        "UPDATE invoice_lines SET exact_amount = exact_amount + 0.000000000001 WHERE invoice = 'weir-1'",
        "line 1 of weir-1: its amount and what rounding left over are not its exact amount",
    ),
    "a cent more, with the total": (
        CENT,
        "line 1 of weir-2 is 3.01, and 3 rounded half-even is 3",
    ),
    "an earlier time of issue": (
        "UPDATE invoice_events SET at = at - interval '1 day' WHERE invoice = 'weir-2' AND state = 'Issued'",
        "event 2 of bolt (weir-2 Issued) is not what its hash says",
    ),
}


@pytest.fixture
def books(database: str) -> Iterator[Books]:
    """Two accounts with two months: weir-1 and weir-3 of acme, weir-2 and weir-4 of bolt; weir-3 corrects weir-1."""
    for made in books_of(database):
        made.open("acme")
        made.open("bolt")
        made.use(1_000, account="acme")
        made.use(2_000, account="bolt")
        made.end(OCTOBER)
        made.close()
        made.use(500, account="acme")
        for account in ("acme", "bolt"):
            made.use(3_000, at=IN_NOVEMBER, account=account)
        made.end(NOVEMBER)
        made.close(NOVEMBER)
        assert made.faults() == []
        yield made


def disable(books: Books, *statements: str) -> None:
    with books.connection.transaction():
        for table in TABLES:
            books.connection.execute(f"ALTER TABLE {table} DISABLE TRIGGER ALL")
        for statement in statements:
            books.connection.execute(statement)


@pytest.mark.parametrize("planted", PLANTED)
def test_what_the_owner_does_with_triggers_disabled_is_named_by_verify_and_by_the_audit(
    books: Books, planted: str
) -> None:
    statements, sentence = PLANTED[planted]
    disable(books, *statements.split(";"))
    assert sentence in books.faults()
    found = {check.check: check for check in check_invoices(books.database)}
    assert not found["I9"].holds
    assert found["I9"].examined >= 3


def test_lines_that_are_not_what_usage_comes_to_are_found_by_the_audit(books: Books) -> None:
    """Whoever writes all hashes anew makes a chain that verifies: usage says otherwise."""
    assert [check.holds for check in check_invoices(books.database)] == [True, True]
    disable(books, "UPDATE invoice_lines SET quantity = quantity + 1 WHERE invoice = 'weir-3' AND line = 1")
    found = {check.check: check for check in check_invoices(books.database)}
    assert found["I7"].says == "input_tokens of acme, sonnet, in 2026-11: line 1 of weir-3 has 3001, and usage 3000"
    disable(books, "DELETE FROM invoice_lines WHERE invoice = 'weir-2'")
    found = {check.check: check for check in check_invoices(books.database)}
    assert found["I7"].found == 2
    assert found["I7"].says == (
        "input_tokens of bolt, sonnet, in 2026-10: 2000 of usage are on no invoice, at price version 7"
    )


def test_what_came_after_the_close_is_no_fault(books: Books) -> None:
    books.use(7, account="acme")
    assert [check.holds for check in check_invoices(books.database)] == [True, True]


def test_after_a_void_only_that_month_is_not_compared_until_it_is_issued_again(books: Books) -> None:
    void(books.database, "weir-4", made_by="ann", reason="wrong address", at=IN_NOVEMBER)
    compared, unchanged = check_invoices(books.database)
    assert (compared.holds, compared.examined, unchanged.holds) == (True, 3, True)
    (row,) = books.close(NOVEMBER, accounts=["bolt"], reissues=True, reason="the right address")
    assert row["outcome"] == "issued"
    compared, _ = check_invoices(books.database)
    assert (compared.holds, compared.examined) == (True, 4)
    disable(books, "UPDATE invoice_lines SET quantity = quantity + 1 WHERE invoice = 'weir-5'")
    compared, _ = check_invoices(books.database)
    assert compared.says == "input_tokens of bolt, sonnet, in 2026-11: line 1 of weir-5 has 3001, and usage 3000"


def test_what_came_between_a_close_and_a_reissue_of_another_currency_is_no_fault(books: Books) -> None:
    books.use(1_000, at=IN_NOVEMBER, account="bolt", currency="USD")
    books.use(1_000, at=IN_NOVEMBER + timedelta(days=30), account="bolt", currency="USD")
    books.use(1_000, at=IN_NOVEMBER + timedelta(days=30), account="bolt")
    books.end(DECEMBER)
    books.close(DECEMBER)
    assert check_holds(books)
    euros, _ = (row["invoice"] for row in books.rows("SELECT invoice FROM invoices WHERE period = %s", DECEMBER))
    void(books.database, str(euros), made_by="ann", reason="wrong address", at=IN_NOVEMBER)
    books.use(5, at=IN_NOVEMBER, account="bolt", currency="USD")
    books.close(DECEMBER, accounts=["bolt"], reissues=True, reason="the right address")
    assert check_holds(books), "dollars of November are corrected by the next invoice in dollars"
    assert books.faults() == []


def check_holds(books: Books) -> bool:
    return all(check.holds for check in check_invoices(books.database))


def test_an_audit_that_can_compare_no_invoice_does_not_say_that_there_is_none(books: Books) -> None:
    for account in ("acme", "bolt"):
        books.use(7, account=account)
        books.use(7, at=IN_NOVEMBER, account=account)
    later, unchanged = check_invoices(books.database)
    assert (later.examined, unchanged.examined) == (0, 4)
    assert later.says == "of each invoice, usage of its account came since or an invoice was voided: none is compared"


def test_a_fault_of_an_invoice_keeps_every_month_open(books: Books) -> None:
    disable(books, PLANTED["a line changed"][0])
    books.use(1, at=IN_NOVEMBER + timedelta(days=30), account="bolt")
    books.audit_finds = lambda _: all(check.holds for check in check_invoices(books.database))
    books.end(NOVEMBER.replace(month=12))
    rows = books.close(NOVEMBER.replace(month=12))
    assert {row["reason"] for row in rows} == {"the audit found what it cannot explain: see `weir audit`"}


def test_a_voided_invoice_is_issued_again_under_a_new_number_for_a_reason(books: Books) -> None:
    def voided(invoice: str) -> None:
        void(books.database, invoice, made_by="ann", reason="wrong address", at=IN_NOVEMBER)

    with pytest.raises(NotVoidedError, match="void weir-3 first"):
        voided("weir-1")
    for invoice in ("weir-3", "weir-1"):
        voided(invoice)
    with pytest.raises(NotVoidedError, match="is voided already"):
        voided("weir-1")
    assert [row["reason"] for row in books.close(NOVEMBER, ["acme"])] == [
        "2026-10: weir-1 is voided; close this month with --reissue to issue it again"
    ]
    rows = books.close(OCTOBER, ["acme"], reissues=True, reason="right address")
    # The late 500 tokens are now in the invoice of their own month.
    assert [(row["invoice"], row["total"]) for row in rows] == [("weir-5", Decimal("2.25"))]
    rows = books.close(NOVEMBER, ["acme"], reissues=True, reason="right address")
    assert [(row["invoice"], row["total"]) for row in rows] == [("weir-6", Decimal("4.50"))]
    assert books.rows("SELECT replaces FROM invoices WHERE invoice = 'weir-5'") == [{"replaces": "weir-1"}]
    with psycopg.connect(books.database, row_factory=dict_row) as reader:
        listed = {row["invoice"]: row["state"] for row in invoice_rows(reader, InvoiceQuery(("acme",)))}
        shown = invoice_document(reader, "weir-1")
    assert listed == {"weir-1": "Voided", "weir-3": "Voided", "weir-5": "Issued", "weir-6": "Issued"}
    assert shown is not None
    assert [(event["state"], event["reason"]) for event in shown["events"]] == [
        ("Open", None),
        ("Issued", None),
        ("Voided", "wrong address"),
    ]
    assert books.faults() == []
    assert [check.holds for check in check_invoices(books.database)] == [True, True]


def test_each_chain_begins_at_nothing_and_each_event_has_the_hash_before_it(books: Books) -> None:
    for account in ("acme", "bolt"):
        rows = books.rows("SELECT * FROM invoice_events WHERE account = %s ORDER BY sequence", account)
        assert [row["previous"] for row in rows] == [BEGINNING, *(row["hash"] for row in rows[:-1])]


class KilledError(BaseException):
    """The process is gone."""


def many(books: Books, count: int = 12) -> None:
    for number in range(count):
        books.open(f"account-{number:02}")
        books.use(1_000 + number, account=f"account-{number:02}")
    books.end(OCTOBER)


@pytest.mark.parametrize("place", range(10))
@pytest.mark.few_in_ci(3)
def test_a_close_killed_anywhere_leaves_the_invoices_and_hashes_of_one_that_was_not(
    database: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    from tests.conftest import fresh_database

    with fresh_database(postgres_url) as other:
        for whole in books_of(other):
            many(whole)
            whole.close(account_batch=3)
            expected = whole.hashes()
    calls = {"left": place}

    def killing(function: Any) -> Any:
        def called(*arguments: Any, **named: Any) -> Any:
            if calls["left"] == 0:
                calls["left"] = -1
                raise KilledError
            calls["left"] -= 1
            return function(*arguments, **named)

        return called

    for module, name in ((store, "_copy"), (issue, "read_month"), (issue, "invoiced"), (close_run, "issue")):
        monkeypatch.setattr(module, name, killing(getattr(module, name)))
    for books in books_of(database):
        many(books)
        with suppress(KilledError):
            books.close(account_batch=3)
        assert calls["left"] == -1
        assert books.hashes() == [hash_ for hash_ in expected if hash_ in books.hashes()]
        books.close(account_batch=3)
        assert books.hashes() == expected
        assert books.faults() == []


@pytest.mark.parametrize("issuers", [("weir", "weir"), ("weir", "other")])
def test_two_closes_at_once_issue_each_month_once(books: Books, issuers: tuple[str, str]) -> None:
    """One holds the series of numbers; the other waits, and finds the month closed. Other issuers meet in the chain."""
    from threading import Thread

    december = NOVEMBER.replace(month=12)
    for account in ("acme", "bolt"):
        books.use(100, at=IN_NOVEMBER + timedelta(days=30), account=account, price=Price(9, Decimal("0.5")))
    books.end(december)
    books.audit(Scope(None, None))
    rows: list[Any] = []

    def close(issuer: str) -> None:
        rows.extend(books.close(december, config=CloseConfig(issuer=issuer)))

    threads = [Thread(target=close, args=[issuer]) for issuer in issuers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(row["account"] for row in rows if row["outcome"] == "issued") == ["acme", "bolt"]
    assert books.rows("SELECT count(*) AS count FROM invoices") == [{"count": 6}]
    assert books.faults() == []


def test_an_account_sees_its_own_invoices_only(books: Books) -> None:
    with psycopg.connect(in_schema(books.database)) as reader:
        for table in TABLES:
            with reader.transaction(force_rollback=True):
                reader.execute("SET LOCAL ROLE weir_api_reader")
                reader.execute("SELECT set_config('weir.accounts', '[\"acme\"]', true)")
                assert reader.execute(f"SELECT DISTINCT account FROM {table}").fetchall() == [("acme",)]
                reader.execute("SELECT set_config('weir.accounts', '', true)")
                assert reader.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
