"""`weir invoices` lists, shows, verifies and voids what `weir close` issued."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner, Result

from cli.main import app
from tests.pipelines.closing import NOON, OCTOBER, Books, books_of


@pytest.fixture
def books(database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Books]:
    monkeypatch.setattr("deployment.stack.running_deployment", lambda _: SimpleNamespace(postgres_url=database))
    for made in books_of(database):
        for account in ("acme", "bolt"):
            made.open(account)
            made.use(1_001, at=NOON, account=account)
        made.end(OCTOBER)
        made.close()
        yield made


def weir(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def test_a_list_has_the_columns_of_the_contract(books: Books) -> None:
    listed = json.loads(weir("invoices", "list", "--format", "json", "--period", "2026-10").stdout)
    assert [list(row) for row in listed] == [["invoice", "account", "period", "currency", "total", "state", "hash"]] * 2
    first = {**listed[0], "hash": re.fullmatch("[0-9a-f]{64}", listed[0]["hash"]) is not None}
    assert first == {
        "invoice": "weir-1",
        "account": "acme",
        "period": "2026-10",
        "currency": "EUR",
        "total": "1.5",
        "state": "Issued",
        "hash": True,
    }
    assert json.loads(weir("invoices", "list", "--account", "bolt", "--format", "json").stdout) == listed[1:]
    shown = json.loads(weir("invoices", "show", "weir-2", "--format", "json").stdout)
    assert shown["hash"] == listed[1]["hash"]
    assert [(line["quantity"], line["exact_amount"], line["residual"]) for line in shown["lines"]] == [
        ("1001", "1.5015", "0.0015")
    ]


@pytest.mark.parametrize("command", [("invoices", "verify"), ("close", "--verify")])
def test_verification_ends_with_1_and_names_what_differs(books: Books, command: tuple[str, ...]) -> None:
    sound = weir(*command, "--format", "json")
    assert (sound.exit_code, json.loads(sound.stdout)) == (0, [])
    assert "2 invoices verified: 0 faults." in sound.stderr
    with books.connection.transaction():
        books.connection.execute("ALTER TABLE invoice_lines DISABLE TRIGGER USER")
        books.connection.execute("UPDATE invoice_lines SET quantity = 1000 WHERE invoice = 'weir-2'")
    found = weir(*command, "--format", "json")
    assert found.exit_code == 1
    assert json.loads(found.stdout) == [
        {"account": "bolt", "fault": "line 1 of weir-2 was changed: it is not what its hash says"},
        {"account": "bolt", "fault": "weir-2 is not what was issued"},
    ]
    assert weir(*command, "--account", "acme").exit_code == 0


def test_a_voided_invoice_stays_in_the_list_with_its_hash(books: Books) -> None:
    before = json.loads(weir("invoices", "list", "--format", "json").stdout)
    assert weir("invoices", "void", "weir-1", "--reason", "wrong address", "--yes").exit_code == 0
    after = json.loads(weir("invoices", "list", "--format", "json").stdout)
    assert after == [{**before[0], "state": "Voided"}, before[1]]
    events = json.loads(weir("invoices", "show", "weir-1", "--format", "json").stdout)["events"]
    assert [(event["state"], event["reason"]) for event in events][-1] == ("Voided", "wrong address")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("close",), "name the month"),
        (("close", "2026-13"), "is not a month such as 2026-10"),
        (("close", "2026-10", "--allow", "unpriced"), "need a --reason"),
        (("close", "2026-10", "--reason", "x"), "--reason is for --allow and --reissue"),
        (("close", "2026-10", "--reissue", "--reason", "x"), "--reissue needs --account"),
    ],
)
def test_options_that_say_too_little_are_refused(words: tuple[str, ...], sentence: str) -> None:
    refused = weir(*words)
    assert refused.exit_code == 2
    assert sentence in " ".join(refused.stderr.replace("│", " ").split())
