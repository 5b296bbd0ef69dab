"""`examples/stripe_invoice_items.py` hands each line of an issued invoice to Stripe once, whatever fails on the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.main import app
from tests.exports.stripe_double import KEY, Stripe, serving
from tests.pages import ROOT
from tests.pipelines.billing import Price
from tests.pipelines.closing import NOON, NOVEMBER, OCTOBER, Books, books_of
from tests.pipelines.plan_world import LATER, PRICES, account, books_with_plans, costs

EXAMPLE = ROOT / "examples" / "stripe_invoice_items.py"
MODELS = ("opus", "sonnet", "haiku", "mini")


@pytest.fixture
def books(database: str) -> Iterator[Books]:
    yield from books_of(database)


@pytest.fixture
def stripe() -> Iterator[Stripe]:
    with serving() as double:
        yield double


@pytest.fixture
def shown(books: Books, tmp_path: Path) -> dict[str, Any]:
    """The second invoice of an account: own lines, and a pair for the month before."""
    books.open()
    books.use(1_001)
    books.end(OCTOBER)
    books.close()
    books.use(-1_000, NOON + timedelta(hours=1), cause="reversed")
    for model in MODELS:
        books.use(1_234, NOON + timedelta(days=31), Price(7, Decimal("0.0125")), model=model)
    books.end(NOVEMBER)
    books.close(NOVEMBER)
    return show(books, tmp_path, "weir-2")


def show(books: Books, folder: Path, invoice: str) -> dict[str, Any]:
    """As `weir invoices show` prints it."""
    environment = {"WEIR_TABLES": str(folder), "WEIR_KAFKA_BOOTSTRAP": "none:9092", "WEIR_POSTGRES_URL": books.database}
    done = CliRunner().invoke(app, ["invoices", "show", invoice, "--format", "json"], env=environment)
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def send(stripe: Stripe, folder: Path, invoice: dict[str, Any], key: str = KEY) -> subprocess.CompletedProcess[str]:
    customers = folder / "customers.json"
    customers.write_text(json.dumps({"acme": "cus_1", "tokyo": "cus_2"}))
    return subprocess.run(
        [sys.executable, str(EXAMPLE), str(customers)],
        input=json.dumps(invoice),
        env={**os.environ, "STRIPE_KEY": key, "STRIPE_API": stripe.address},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_each_line_becomes_an_item_and_they_add_up_to_the_invoice(
    stripe: Stripe, shown: dict[str, Any], tmp_path: Path
) -> None:
    sent = send(stripe, tmp_path, shown)
    assert sent.returncode == 0, sent.stderr
    assert sent.stdout == "weir-2 is in_1: 5 items, 60.18 EUR\n"
    (draft,) = stripe.invoices
    assert (draft["customer"], draft["currency"], draft["auto_advance"]) == ("cus_1", "eur", "false")
    assert draft["metadata"] == {"weir_invoice": "weir-2", "weir_hash": shown["hash"]}
    # What the October line comes to now is nothing, and needs no item.
    assert [(item["amount"], item["description"]) for item in stripe.items] == [
        *((1542, f"{model} input_tokens: 1,234") for model in sorted(MODELS)),
        (-150, "sonnet input_tokens, correction of 2026-10: -1,001"),
    ]
    assert sum(item["amount"] for item in stripe.items) == Decimal(shown["total"]) * 100


def test_a_fee_is_described_as_what_it_is(stripe: Stripe, database: str, tmp_path: Path) -> None:
    for books in books_with_plans(database):
        costs(books, flat_fee="10", minimum_amount="20")
        account(books, name="acme")
        books.use(100, price=PRICES["basic"])
        books.end(OCTOBER)
        books.close(at=LATER)
        sent = send(stripe, tmp_path, show(books, tmp_path, "weir-1"))
    assert sent.returncode == 0, sent.stderr
    assert [(item["amount"], item["description"]) for item in stripe.items] == [
        (1000, "flat fee of the plan basic"),
        (900, "up to the minimum of the plan basic"),
        (100, "sonnet input_tokens: 100"),
    ]


@pytest.mark.parametrize("place", range(1, 10))
@pytest.mark.parametrize("how", [("before", 500), ("after", 500), ("after", 0), ("before", 429)])
@pytest.mark.few_in_ci(6)
def test_no_line_is_charged_twice_whichever_answer_is_lost(
    stripe: Stripe, shown: dict[str, Any], tmp_path: Path, place: int, how: tuple[str, int]
) -> None:
    stripe.fails = lambda number: how if number == place else None
    sent = send(stripe, tmp_path, shown)
    assert sent.returncode == 0, sent.stderr
    assert [item["metadata"]["weir_line"] for item in stripe.items] == ["1", "2", "3", "4", "5"]
    assert len(stripe.invoices) == 1


@pytest.mark.parametrize("place", [2, 4, 6])
def test_a_run_that_ended_in_the_middle_is_finished_by_the_next_also_after_keys_are_forgotten(
    stripe: Stripe, shown: dict[str, Any], tmp_path: Path, place: int
) -> None:
    stripe.fails = lambda number: ("after", 400) if number == place else None
    ended = send(stripe, tmp_path, shown)
    assert ended.returncode == 1
    assert "Run it again: nothing is done twice." in ended.stderr
    stripe.forget_keys()
    for _ in range(2):
        assert send(stripe, tmp_path, shown).returncode == 0
    assert [item["metadata"]["weir_line"] for item in stripe.items] == ["1", "2", "3", "4", "5"]
    assert len(stripe.invoices) == 1


def test_what_stripe_cannot_take_is_refused_before_anything_is_sent(
    stripe: Stripe, shown: dict[str, Any], tmp_path: Path
) -> None:
    line = shown["lines"][0]
    for change, reason in (
        ({"state": "Voided"}, "weir-2 is Voided: only an issued invoice is paid"),
        ({"account": "other"}, "has no customer for the account other"),
        ({"currency": "JPY"}, "Stripe takes no 15.42 JPY: set close.minor_units"),
        ({"currency": "KWD", "lines": [{**line, "amount": "1.235"}]}, "Stripe takes no 1.235 KWD"),
        ({"lines": [line] * 251}, "has 251 lines with an amount, and Stripe takes 250"),
    ):
        refused = send(stripe, tmp_path, {**shown, **change})
        assert refused.returncode == 1
        assert reason in refused.stderr
    assert stripe.requests == 0


def test_another_invoice_of_the_same_name_and_one_that_was_finalized_are_left_alone(
    stripe: Stripe, shown: dict[str, Any], tmp_path: Path
) -> None:
    assert send(stripe, tmp_path, shown).returncode == 0
    other = send(stripe, tmp_path, {**shown, "hash": "0" * 64})
    assert "in_1 has another weir-2" in other.stderr
    stripe.invoices[0]["status"] = "open"
    assert "in_1 is open: weir-2 was sent before" in send(stripe, tmp_path, shown).stderr
    assert len(stripe.items) == 5
    refused = send(stripe, tmp_path, shown, key="wrong")
    assert "401" in refused.stderr


def test_currencies_without_decimals_are_counted_as_stripe_counts_them(
    stripe: Stripe, books: Books, tmp_path: Path
) -> None:
    books.open("tokyo", "JPY")
    books.use(1_000, price=Price(7, Decimal("1.5")), account="tokyo", currency="JPY")
    books.end(OCTOBER)
    books.close()
    sent = send(stripe, tmp_path, show(books, tmp_path, "weir-1"))
    assert sent.returncode == 0, sent.stderr
    assert [item["amount"] for item in stripe.items] == [1_500]
    krona = show(books, tmp_path, "weir-1") | {"currency": "ISK", "hash": "1", "invoice": "weir-9"}
    assert send(stripe, tmp_path, krona).returncode == 0
    assert stripe.items[-1]["amount"] == 150_000
