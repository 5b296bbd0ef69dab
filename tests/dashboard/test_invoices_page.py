"""The page Invoices: what was issued, what corrects what, and the way from a line down to records and prices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from urllib.parse import parse_qsl

import psycopg
import pytest
from streamlit.testing.v1 import AppTest

from dashboard.queries.invoices import PAGE_ROWS
from jobs.close.void import void
from metering.invoices import USAGE, Charge, Key, Money, Rounding, own_lines
from tests.dashboard.conftest import Pages, texts
from tests.dashboard.seeding import Day, invoice_of, store_issued
from tests.pipelines.closing import DECEMBER, NOON, NOVEMBER, OCTOBER, Books, books_of
from tests.pipelines.plan_world import LATER, PRICES, account, books_with_plans, costs

MONEY = Money("EUR", 2, Rounding.HALF_EVEN)
MONTH = timedelta(days=31)


@pytest.fixture
def books(connected: str, database: str) -> Iterator[Books]:
    yield from books_of(database)


def metrics(page: AppTest) -> dict[str, str]:
    return {metric.label: metric.value for metric in page.metric}


def listed(page: AppTest, table: int = 0) -> list[dict[str, object]]:
    """The rows of a table."""
    found: list[dict[str, object]] = page.dataframe[table].value.to_dict("records")
    return found


def test_before_the_first_invoice_the_page_names_the_command_that_issues_them(open_page: Pages, connected: str) -> None:
    page = open_page("invoices")
    assert "no data yet]" in page.markdown[0].value
    assert "`weir close` issues those of a month" in texts(page)
    assert not page.dataframe


def test_an_account_sees_its_invoices_with_total_state_hash_and_what_corrects_them(
    open_page: Pages, books: Books
) -> None:
    books.open()
    books.open("other")
    books.use(1_001)
    books.use(2_000, account="other")
    books.end(OCTOBER)
    books.close()
    books.use(1_000, NOON + timedelta(hours=1))
    books.end(NOVEMBER)
    books.close(NOVEMBER)

    page = open_page("invoices", account="acme")
    november, october = listed(page)
    assert [october[name] for name in ("invoice", "month", "kind", "total", "currency", "state", "lines")] == [
        *("weir-1", "2026-10", "invoice", "1.50", "EUR", "● issued", 1)
    ]
    assert [november[name] for name in ("month", "total", "lines", "corrections")] == ["2026-11", "1.50", 2, 2]
    assert (october["corrected by"], october["corrections"]) == (november["invoice"], 0)
    issued = {row["invoice"]: row["hash"] for row in books.rows("SELECT * FROM invoice_events WHERE state = 'Issued'")}
    assert {row["invoice"]: row["hash"] for row in (november, october)}.items() <= issued.items()
    assert metrics(page) == {"EUR, issued": "3.00", "Voided": "0"}

    assert metrics(open_page("invoices")) == {"EUR, issued": "6.00", "Voided": "0"}
    assert [row["account"] for row in listed(open_page("invoices", month="2026-11"))] == ["acme"]


def test_a_pair_of_lines_names_the_line_that_it_corrects_and_all_lines_of_a_key_are_summed(
    open_page: Pages, books: Books
) -> None:
    books.open()
    books.use(1_001)
    books.end(OCTOBER)
    books.close()
    books.use(1_000, NOON + timedelta(hours=1))
    books.end(NOVEMBER)
    books.close(NOVEMBER)
    books.use(7, NOON + timedelta(hours=2))

    page = open_page("invoices", invoice="weir-2", line="2 · 2026-10 · sonnet · input_tokens · price lsn 7")
    assert "It corrects weir\\-1." in texts(page).replace("weir-1.", "weir\\-1.")
    minus, plus = listed(page, 2)
    names = ("class", "month", "quantity", "exact amount", "amount", "corrects")
    assert [minus[name] for name in names] == ["Correction", "2026-10", -1001, "-1.5015", "-1.50", "weir-1, line 1"]
    assert [plus[name] for name in names] == ["Correction", "2026-10", 2001, "3.0015", "3.00", "weir-1, line 1"]
    issued = listed(page, 3)
    assert [(row["invoice"], row["amount"]) for row in issued] == [
        *(("weir-1", "1.50"), ("weir-2", "-1.50"), ("weir-2", "3.00"))
    ]
    assert "They sum to 3.00 EUR" in texts(page)
    assert "Usage is now 2,008 at 3.012 EUR: the next close corrects it." in texts(page)
    first = open_page("invoices", invoice="weir-1")
    assert listed(first, 2)[0]["corrected by"] == "weir-2"
    assert "weir-2 corrects lines of it." in texts(first)


def test_a_voided_invoice_stays_with_its_reason_and_is_in_no_sum(open_page: Pages, books: Books) -> None:
    books.open()
    books.use(1_000)
    books.end(OCTOBER)
    books.close()
    void(books.database, "weir-1", made_by="anna", reason="wrong address", at=NOON + MONTH)
    books.close(reissues=True, reason="right address")
    page = open_page("invoices", invoice="weir-1", line="1 · 2026-10 · sonnet · input_tokens · price lsn 7")
    assert metrics(page) == {"EUR, issued": "1.50", "Voided": "1"}
    assert {row["invoice"]: row["state"] for row in listed(page)} == {"weir-1": "⊘ voided", "weir-2": "● issued"}
    assert "Its lines do not count. weir-2 replaces it." in texts(page)
    states = listed(page, 1)
    assert [row["state"] for row in states] == ["○ open", "● issued", "⊘ voided"]
    assert (states[-1]["by"], states[-1]["reason"]) == ("anna", "wrong address")
    assert "They sum to 1.50 EUR" in texts(page)
    assert "as issued" in texts(page)


def test_a_credit_note_and_a_write_off_are_called_so(open_page: Pages, books: Books) -> None:
    from jobs.close.config import CloseConfig

    config = CloseConfig(write_off_below={"EUR": Decimal("0.50")})
    books.open()
    books.use(1_000)
    books.end(OCTOBER)
    books.close(config=config)
    books.use(100, NOON + timedelta(hours=1))
    books.end(NOVEMBER)
    books.close(NOVEMBER, config=config)
    books.use(-1_000, NOON + timedelta(hours=2), cause="reversed")
    books.end(DECEMBER)
    books.close(DECEMBER, config=config)
    page = open_page("invoices", invoice="weir-2", line="3 · 2026-10 · written off")
    assert {row["invoice"]: row["kind"] for row in listed(page)}["weir-3"] == "credit note"
    assert listed(page, 2)[-1]["model"] == "written off"
    assert "Usage is now" not in texts(page)


def test_a_fee_is_called_so_and_compared_with_itself_as_invoices_round(
    open_page: Pages, connected: str, database: str
) -> None:
    for books in books_with_plans(database):
        costs(books, flat_fee="10.004", minimum_amount="20")
        account(books)
        books.use(Decimal("1.4"), price=PRICES["basic"], account="a")
        books.end(OCTOBER)
        books.close(at=LATER)
    # 0.014 and 10.004 are invoiced as 0.01 and 10.00, so 9.99 are missing and not 9.982.
    page = open_page("invoices", invoice="weir-1", line="2 · 2026-10 · plan basic · up to the minimum")
    named = [[row[name] for name in ("model", "price version", "tier", "unit", "amount")] for row in listed(page, 2)]
    assert named[:2] == [
        ["flat fee", None, "plan basic", "day", "10.00"],
        ["up to the minimum", None, "plan basic", "day", "9.99"],
    ]
    assert "They sum to 9.99 EUR" in texts(page)
    assert "It is now 9.99 EUR for 31 days: as issued." in texts(page)


def test_a_line_leads_down_to_its_price_its_windows_and_its_requests(open_page: Pages, seeded: str, day: Day) -> None:
    month = f"{day.now:%Y-%m}"
    page = open_page("invoices", invoice="weir-2", line=f"1 · {month} · small-1 · requests · price lsn 10")
    shown = texts(page)
    assert "change 10 in the journal" in shown
    windows, requests = page.dataframe[-2].value, page.dataframe[-1].value
    assert len(windows) > 3
    assert set(requests["account"]) == {"acme"}
    assert set(requests["model"]) == {"small-1"}
    assert "the next close corrects it" in shown

    (query,) = re.findall(r"\(bills\?([^)]+)\)", shown)
    bills = open_page("bills", **dict(parse_qsl(query)))
    assert "#### small-1 · requests · price lsn 10 · EUR" in texts(bills)


def test_a_page_has_a_hundred_invoices_of_a_thousand_accounts(open_page: Pages, connected: str, database: str) -> None:
    key = Key(OCTOBER, USAGE, "sonnet", "input_tokens", 7, None)
    lines = own_lines([Charge(key, Decimal(1000), Decimal("1.5"))], MONEY)
    invoices = [invoice_of(f"a{number:04d}", OCTOBER, number, lines, MONEY) for number in range(1, 1_001)]
    with psycopg.connect(database) as connection:
        store_issued(connection, invoices, datetime(2026, 11, 3, tzinfo=UTC))
    page = open_page("invoices")
    assert metrics(page)["EUR, issued"] == "1,500.00"
    assert "1,000 invoices" in [metric.delta for metric in page.metric]
    assert [row["account"] for row in listed(page)] == [f"a{number:04d}" for number in range(1_000, 900, -1)]
    third = open_page("invoices", page="3")
    assert listed(third)[0]["account"] == "a0800"
    beyond = open_page("invoices", page="3", account="a0007")
    assert [row["account"] for row in listed(beyond)] == ["a0007"]
    assert len(listed(open_page("invoices", page="10"))) == PAGE_ROWS


def test_who_may_see_some_accounts_sees_no_invoice_of_another(
    open_page: Pages, seeded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_ACCOUNTS", "acme")
    assert {row["account"] for row in listed(open_page("invoices"))} == {"acme"}
    other = open_page("invoices", invoice="weir-3")
    assert "There is no such invoice" in texts(other)
    assert "globex" not in texts(other)
