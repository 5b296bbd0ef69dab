"""A month is closed once it is over and proved; its invoices never change, and what comes later corrects them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from jobs.audit.bills.invoices import check_invoices
from jobs.audit.recompute.basis import EVERYTHING, Scope
from jobs.billing.config import BillingConfig
from jobs.close.config import CloseConfig
from jobs.close.issue import Batch, issue
from jobs.close.readiness import Open
from jobs.close.void import void
from metering.invoices import Rounding
from metering.meters import Meter
from metering.price_tiers import PriceTerms
from tests.database_rows import write
from tests.pipelines.billing import Price, bill, usage_row
from tests.pipelines.closing import DECEMBER, JANUARY, NOON, NOVEMBER, OCTOBER, Books, books_of
from tests.waiting import wait_until

PRICE = Price(7, Decimal("0.0015"))
IN_NOVEMBER = NOON + timedelta(days=31)
TIERED: dict[str, Any] = {"input_tokens_unit_price": None, "input_tokens_amount": None}
TIER_LINES = "SELECT tier, quantity, amount FROM invoice_lines ORDER BY invoice, line"
TABLES = ("invoices", "invoice_lines", "invoice_events")


@pytest.fixture
def books(database: str) -> Iterator[Books]:
    yield from books_of(database)


def refusals(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return [row["reason"] for row in rows if row["outcome"] == "refused"]


def test_a_month_that_is_over_and_proved_becomes_an_invoice(books: Books) -> None:
    books.open()
    books.use(1_001)
    books.end(OCTOBER)
    (row,) = books.close()
    assert row == {
        "account": "acme",
        "period": "2026-10",
        "currency": "EUR",
        "invoice": "weir-1",
        "total": Decimal("1.50"),
        "outcome": "issued",
        "reason": None,
    }
    assert books.lines() == [(OCTOBER, None, 7, 1001, Decimal("1.50"))]
    assert books.rows("SELECT exact_amount, residual FROM invoice_lines") == [
        {"exact_amount": Decimal("1.5015"), "residual": Decimal("0.0015")}
    ]
    assert [row["state"] for row in books.rows("SELECT state FROM invoice_events ORDER BY sequence")] == [
        "Open",
        "Issued",
    ]
    assert books.faults() == []


def test_a_month_is_refused_until_the_frontier_has_passed_its_end_and_every_grace(books: Books) -> None:
    books.open()
    books.use(1, frontier=datetime(2026, 11, 1, 0, 14, 59, tzinfo=UTC))
    (reason,) = refusals(books.close())
    assert reason == ("the month ends at 2026-11-01T00:00:00Z, and windows are closed until 2026-10-31T23:59:59Z")
    assert books.audits == []
    books.reach(datetime(2026, 11, 1, 0, 15, tzinfo=UTC))
    assert [row["outcome"] for row in books.close()] == ["issued"]


def test_each_account_has_the_month_of_its_calendar(books: Books) -> None:
    books.open("berlin", timezone="Europe/Berlin")
    books.open("lima", timezone="America/Lima")
    for account in ("berlin", "lima"):
        books.use(1_000, account=account, day=NOON.date())
    # Midnight in Berlin is 23:00 UTC, in Lima 05:00.
    books.reach(datetime(2026, 11, 1, 0, 0, tzinfo=UTC))
    assert {row["account"]: row["outcome"] for row in books.close()} == {"berlin": "issued", "lima": "refused"}
    books.end(OCTOBER)
    assert [(row["account"], row["invoice"]) for row in books.close()] == [("lima", "weir-2")]


def test_the_audit_runs_once_and_only_where_nothing_proves_the_month(books: Books) -> None:
    books.open()
    books.use(1_000)
    books.end(OCTOBER)
    books.close()
    (scope,) = books.audits
    assert (scope.since, scope.until) == (datetime(2026, 9, 29, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC))
    books.open("later")
    books.close()
    assert len(books.audits) == 1
    books.use(5, account="later")
    assert [row["account"] for row in books.close()] == ["later"]
    assert len(books.audits) == 2


def test_a_backdated_plan_or_price_is_audited_before_the_month_is_closed(books: Books) -> None:
    """Until an audit has priced the usage again, an invoice would have it at the price of before."""
    for name in ("moved", "priced", "calm", "renamed"):
        books.open(name)
        books.use(1_000, account=name)
    books.connection.execute("INSERT INTO catalog.plans (plan, name) VALUES ('other', 'Other'), ('calm', 'Calm')")
    books.connection.execute("UPDATE catalog.accounts SET plan = 'calm' WHERE account IN ('calm', 'renamed')")
    books.connection.commit()
    books.end(OCTOBER)
    books.audit(Scope(None, None))
    changes = {
        "moved": "UPDATE catalog.accounts SET plan = 'other', effective_from = '2026-10-02' WHERE account = 'moved'",
        "priced": (
            "INSERT INTO catalog.prices (plan, model, meter, currency, effective_from, unit_price)"
            " VALUES ('pro', 'sonnet', 'input_tokens', 'EUR', '2026-10-02', 1)"
        ),
        "renamed": "UPDATE catalog.accounts SET name = 'B', effective_from = '2026-12-31' WHERE account = 'renamed'",
    }
    for account, change in changes.items():
        with books.connection.transaction():
            books.connection.execute(change)
        audits = len(books.audits)
        assert [row["outcome"] for row in books.close(accounts=[account])] == ["issued"]
        assert len(books.audits) == audits + (account != "renamed"), account
    books.close(accounts=["calm"])
    assert len(books.audits) == 3


def test_an_audit_that_found_a_fault_stops_the_close_until_a_later_one_is_clean(books: Books) -> None:
    books.open()
    books.use(1_000)
    books.end(OCTOBER)
    books.audit_finds = lambda _: False
    assert refusals(books.close()) == ["the audit found what it cannot explain: see `weir audit`"]
    assert books.rows("SELECT 1 FROM invoices") == []
    books.audit_finds = lambda _: True
    assert [row["outcome"] for row in books.close()] == ["issued"]


def test_a_later_audit_with_a_fault_takes_the_proof_away(books: Books) -> None:
    books.open()
    books.use(1_000)
    books.end(OCTOBER)
    span = Scope(None, None)
    books.audit(span)
    books.audit_finds = lambda _: False
    books.audit(span)
    assert refusals(books.close()) == ["the audit found what it cannot explain: see `weir audit`"]


def test_a_month_of_which_a_part_was_removed_before_an_audit_proved_it_is_closed_only_by_an_audit_of_what_is_left(
    books: Books,
) -> None:
    books.open()
    books.use(1_000)
    books.end(OCTOBER)
    books.removed_before = NOON - timedelta(days=3)
    (row,) = books.close()
    assert row["outcome"] == "refused"
    assert "run `weir audit` without a period" in row["reason"]
    assert len(books.audits) == 1
    books.audit(EVERYTHING)
    assert [row["outcome"] for row in books.close()] == ["issued"]


def test_what_was_proved_before_a_part_was_removed_stays_proved(books: Books) -> None:
    books.open()
    books.use(1_000)
    books.end(OCTOBER)
    books.audit(Scope(NOON - timedelta(days=30), NOON + timedelta(days=30)))
    books.removed_before = NOON
    books.audit(Scope(NOON - timedelta(days=30), NOON + timedelta(days=30)))
    assert [row["outcome"] for row in books.close()] == ["issued"]


def test_an_account_that_has_used_nothing_for_long_needs_no_proof_of_months_that_were_removed_for_what_others_use(
    books: Books,
) -> None:
    """Its months since its last invoice are open. An audit of everything proved them, and late usage of others not."""
    for account in ("acme", "gone"):
        books.open(account)
        books.use(1_000, account=account)
    books.end(OCTOBER)
    books.close()
    for month in (NOVEMBER, DECEMBER):
        books.use(2_000, datetime(month.year, month.month, 20, tzinfo=UTC))
    books.end(NOVEMBER)
    books.close(NOVEMBER)
    books.end(DECEMBER)
    books.removed_before = datetime(2026, 11, 25, tzinfo=UTC)
    books.audit(EVERYTHING)
    books.use(3_000, datetime(2026, 12, 31, tzinfo=UTC))
    books.audits.clear()
    (row,) = books.close(DECEMBER)
    assert (row["account"], row["outcome"], row["reason"], row["total"]) == ("acme", "issued", None, Decimal("7.50"))
    assert [scope.since for scope in books.audits] == [datetime(2026, 11, 29, tzinfo=UTC)]


def test_late_usage_of_an_account_of_which_a_part_was_removed_is_refused_with_what_to_do(books: Books) -> None:
    """Also where an audit had proved it as it was before: no further audit of the period could."""
    for account in ("acme", "calm"):
        books.open(account)
        books.use(1_000, account=account)
    books.end(OCTOBER)
    books.audit(EVERYTHING)
    books.removed_before = NOON
    books.use(1)
    rows = {row["account"]: row for row in books.close()}
    assert rows["calm"]["outcome"] == "issued"
    assert "run `weir audit` without a period" in rows["acme"]["reason"]
    assert len(books.audits) == 2
    books.audit(EVERYTHING)
    assert [row["outcome"] for row in books.close()] == ["issued"]


def test_usage_that_keeps_coming_leaves_the_month_open(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    books.open()
    books.open("calm")
    books.use(1_000)
    books.use(1_000, account="calm")
    books.end(OCTOBER)
    proving = books.audit

    def audit(scope: Scope) -> bool:
        clean = proving(scope)
        books.use(1)
        return clean

    monkeypatch.setattr(books, "audit", audit)
    outcomes = {row["account"]: (row["outcome"], row["reason"]) for row in books.close()}
    assert outcomes == {
        "calm": ("issued", None),
        "acme": ("refused", "usage of it came after the audit, 3 times; close it again later"),
    }


def test_what_is_unpriced_held_or_waiting_is_listed_and_may_stay_open_for_a_reason(books: Books) -> None:
    for account in ("unpriced", "held", "waiting"):
        books.open(account)
    books.use(1_000, account="unpriced", price=None)
    books.use(1_000, account="held")
    books.use(1_000, account="waiting")
    with books.connection.transaction():
        books.connection.execute(
            "INSERT INTO stragglers (usage_lsn, meter, account, request_id, window_start, event_time, received_at,"
            " late_seconds, decision, quantity, cause, sign, settled, day)"
            " VALUES (90, 'input_tokens', 'held', 'r', %s, %s, %s, 1, 'hold', 1, 'stream', 1, 0, %s)",
            [NOON, NOON, NOON, NOON.date()],
        )
        books.connection.execute(
            "INSERT INTO late_members (usage_lsn, meter, is_correction, cause, account, first_day, currency,"
            " aggregation, period, window_start, ends_at, member, member_rows)"
            " VALUES (91, 'users', true, 'stream', 'waiting', %s, 'EUR', 'unique', 'month', %s, %s, 'm', 1)",
            [OCTOBER, NOON, NOON],
        )
    books.end(OCTOBER)
    reasons = {row["account"]: row["reason"] for row in books.close()}
    assert reasons == {
        "held": "2026-10: 1 straggler waits for a decision: `weir stragglers --decision hold --account held` "
        "(or --allow held)",
        "unpriced": "2026-10: usage has no price: sonnet input_tokens; add prices, then run `weir audit` "
        "(or --allow unpriced)",
        "waiting": "2026-10: 1 late row waits until the period has closed for all accounts (or --allow waiting)",
    }
    rows = books.leave_open(OCTOBER, *Open)
    assert {row["account"]: row["total"] for row in rows} == {
        "held": Decimal("1.50"),
        "unpriced": Decimal("0.00"),
        "waiting": Decimal("1.50"),
    }
    (event,) = books.rows("SELECT reason, allowed FROM invoice_events WHERE account = 'held' AND state = 'Open'")
    assert event == {"reason": "agreed with the customer", "allowed": ["held", "unpriced", "waiting"]}
    assert books.faults() == []


def test_usage_of_an_account_in_no_catalog_is_listed_with_what_to_do_and_fails_no_close(books: Books) -> None:
    books.open()
    books.use(1_000)
    books.use(500, account="typo", price=None, currency=None)
    books.end(OCTOBER)
    for _ in range(2):
        rows = {row["account"]: row for row in books.close()}
        assert refusals(list(rows.values())) == []
        assert rows["typo"]["outcome"] == "no account"
        assert "`weir catalog apply`" in rows["typo"]["reason"]
    (named,) = books.close(accounts=["typo"])
    assert named["outcome"] == "refused"
    # What the sentence says leads to an invoice.
    books.open("typo")
    books.use(-500, account="typo", price=None, currency=None)
    books.use(500, account="typo", cause="repriced")
    assert [(row["account"], row["total"]) for row in books.close()] == [("typo", Decimal("0.75"))]


def test_a_zone_that_is_corrected_while_the_audit_runs_is_that_of_the_invoice(books: Books) -> None:
    books.open(timezone="Asia/Tokyo")
    books.use(1_000, day=NOON.date())
    books.end(OCTOBER)

    def correct_zone(_: Scope) -> bool:
        with books.connection.transaction():
            books.connection.execute("UPDATE catalog.account_zones SET timezone = 'Europe/Berlin'")
        return True

    books.audit_finds = correct_zone
    books.close()
    (invoice,) = books.rows("SELECT timezone, period_start FROM invoices")
    assert invoice == {"timezone": "Europe/Berlin", "period_start": datetime(2026, 9, 30, 22, tzinfo=UTC)}


def test_usage_of_no_model_stops_no_close_and_stands_on_the_invoice_at_nothing(books: Books) -> None:
    books.open()
    books.use(1_000, price=None, model=None)
    books.end(OCTOBER)
    (row,) = books.close()
    assert (row["outcome"], row["total"]) == ("issued", 0)
    assert books.lines() == [(OCTOBER, None, None, 1000, Decimal("0.00"))]


def test_a_second_close_changes_nothing(books: Books) -> None:
    books.open()
    books.use(1_000)
    books.end(OCTOBER)
    books.close()
    hashes = books.hashes()
    assert books.close() == []
    assert [row["outcome"] for row in books.close(accounts=["acme"])] == ["closed already"]
    assert books.hashes() == hashes


def test_a_dry_run_shows_the_invoices_and_writes_nothing(books: Books) -> None:
    books.open()
    books.use(1_000)
    books.end(OCTOBER)
    (row,) = books.close(is_dry_run=True)
    assert (row["outcome"], row["invoice"], row["total"]) == ("would be issued", None, Decimal("1.50"))
    assert books.audits == []
    assert books.rows("SELECT 1 FROM invoices") == []


def test_one_accounts_trouble_stops_no_other_and_leaves_no_hole_in_the_numbers(books: Books) -> None:
    for account, currency in (("a", "EUR"), ("b", "XXX"), ("c", "EUR")):
        books.open(account, currency)
        books.use(1_000, account=account, currency=currency)
    books.end(OCTOBER)
    rows = {row["account"]: row for row in books.close()}
    assert [rows[account]["invoice"] for account in "ac"] == ["weir-1", "weir-2"]
    assert "XXX" in str(rows["b"]["reason"])
    (row,) = books.close(config=CloseConfig(minor_units={"XXX": 4}))
    assert (row["invoice"], row["total"]) == ("weir-3", Decimal("1.5000"))
    assert books.faults() == []


def test_a_line_is_rounded_once_as_configured_to_the_currencys_smallest_unit(books: Books) -> None:
    for account, currency in (("eur", "EUR"), ("jpy", "JPY"), ("kwd", "KWD")):
        books.open(account, currency)
        books.use(1_000, price=Price(7, Decimal("0.0005")), account=account, currency=currency)
        books.use(1_000, price=Price(8, Decimal("0.002125")), account=account, currency=currency)
        books.use(1_000, price=Price(9, Decimal("0.0000125")), account=account, currency=currency)
    books.end(OCTOBER)
    even = {row["account"]: row["total"] for row in books.close(is_dry_run=True)}
    up = {
        row["account"]: row["total"]
        for row in books.close(is_dry_run=True, config=CloseConfig(rounding=Rounding.HALF_UP))
    }
    # 0.50 + 2.125 + 0.0125
    assert even == {"eur": Decimal("2.63"), "jpy": Decimal(2), "kwd": Decimal("2.637")}
    assert up == {"eur": Decimal("2.64"), "jpy": Decimal(3), "kwd": Decimal("2.638")}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(
    "statement", ["UPDATE {} SET account = 'b'", "DELETE FROM {}", "TRUNCATE {} CASCADE"], ids=lambda text: text[:6]
)
def test_no_role_may_change_what_was_issued(books: Books, table: str, statement: str) -> None:
    books.open()
    books.use(1_000)
    books.end(OCTOBER)
    books.close()
    for setting in ("origin", "replica"):
        books.connection.execute(f"SET session_replication_role = {setting}")
        books.connection.commit()
        with (
            pytest.raises(psycopg.errors.RaiseException, match="what was issued never changes"),
            books.connection.transaction(),
        ):
            books.connection.execute(statement.format(table))


def test_an_issued_invoice_gets_no_further_line_and_no_earlier_state(books: Books) -> None:
    books.open()
    books.use(1_000)
    books.end(OCTOBER)
    books.close()
    with (
        pytest.raises(psycopg.errors.RaiseException, match="a line of weir-1 is refused: it was issued"),
        books.connection.transaction(),
    ):
        books.connection.execute(
            "INSERT INTO invoice_lines SELECT invoice, 2, account, kind, charge_class, original_period, null, null,"
            " model, meter, 99, tier, unit_price, quantity, exact_amount, amount, residual, hash FROM invoice_lines"
        )
    for state in ("Open", "Issued"):
        with (
            pytest.raises(psycopg.errors.RaiseException, match="is refused as state 3 of weir-1"),
            books.connection.transaction(),
        ):
            books.connection.execute(
                "INSERT INTO invoice_events SELECT account, 3, invoice, %s, at, made_by, reason, allowed, document,"
                " previous, hash FROM invoice_events WHERE sequence = 1",
                [state],
            )


def test_late_usage_and_another_price_become_pairs_of_lines_in_the_next_month(books: Books) -> None:
    books.open()
    books.use(1_000)
    books.end(OCTOBER)
    books.close()
    hashes = books.hashes()
    # A straggler of 30 days at the old price, and 200 of the tokens at another one.
    books.use(500, frontier=IN_NOVEMBER)
    books.use(-200)
    books.use(200, price=Price(8, Decimal("0.0100")), cause="repriced")
    books.use(2_000, at=IN_NOVEMBER)
    books.end(NOVEMBER)
    (row,) = books.close(NOVEMBER)
    assert books.lines("weir-2") == [
        (NOVEMBER, None, 7, 2000, Decimal("3.00")),
        (OCTOBER, "Correction", 7, -1000, Decimal("-1.50")),
        (OCTOBER, "Correction", 7, 1300, Decimal("1.95")),
        (OCTOBER, "Correction", 8, 200, Decimal("2.00")),
    ]
    assert row["total"] == Decimal("5.45")
    named = books.rows(
        "SELECT DISTINCT corrects_invoice, corrects_line FROM invoice_lines WHERE quantity IN (-1000, 1300)"
    )
    assert named == [{"corrects_invoice": "weir-1", "corrects_line": 1}]
    assert books.hashes()[:2] == hashes
    assert books.faults() == []
    books.end(DECEMBER)
    assert books.close(DECEMBER) == []


def test_a_change_too_small_to_see_is_a_pair_too(books: Books) -> None:
    books.open()
    books.use(1_000)
    books.end(OCTOBER)
    books.close()
    books.use(1, price=Price(7, Decimal("0.0015")))
    books.end(NOVEMBER)
    (row,) = books.close(NOVEMBER)
    assert row["total"] == 0
    assert [quantity for *_, quantity, _ in books.lines("weir-2")] == [-1000, 1001]


def test_who_gets_money_back_and_uses_nothing_more_gets_a_credit_note(books: Books) -> None:
    books.open()
    books.use(1_000)
    books.end(OCTOBER)
    books.close()
    books.use(-1_000, cause="reversed")
    books.end(NOVEMBER)
    (row,) = books.close(NOVEMBER)
    assert row["total"] == Decimal("-1.50")
    assert books.rows("SELECT kind FROM invoices WHERE invoice = 'weir-2'") == [{"kind": "credit_note"}]
    assert books.faults() == []


def test_a_small_later_charge_is_written_off_as_a_line_and_what_is_owed_to_the_account_never(books: Books) -> None:
    config = CloseConfig(write_off_below={"EUR": Decimal(1)})
    for account in ("charged", "credited", "much"):
        books.open(account)
        books.use(1_000, account=account)
    books.end(OCTOBER)
    books.close(config=config)
    books.use(600, account="charged")
    books.use(-600, account="credited", cause="reversed")
    books.use(700, account="much")
    books.end(NOVEMBER)
    totals = {row["account"]: row["total"] for row in books.close(NOVEMBER, config=config)}
    assert totals == {"charged": 0, "credited": Decimal("-0.90"), "much": Decimal("1.05")}
    assert books.rows("SELECT account, amount FROM invoice_lines WHERE kind = 'write_off'") == [
        {"account": "charged", "amount": Decimal("-0.90")}
    ]
    assert books.faults() == []
    books.end(DECEMBER)
    assert books.close(DECEMBER, config=config) == []


def test_what_was_written_off_is_credited_first_so_that_nobody_gets_back_what_was_never_paid(books: Books) -> None:
    config = CloseConfig(write_off_below={"EUR": Decimal(1)})
    books.open()
    books.use(1_000)
    books.end(OCTOBER)
    books.close(config=config)
    books.use(600)
    books.end(NOVEMBER)
    books.close(NOVEMBER, config=config)
    books.use(-600, cause="reversed")
    books.end(DECEMBER)
    assert [row["total"] for row in books.close(DECEMBER, config=config)] == [0]
    # The rest is what was paid.
    books.use(-1_000, cause="reversed")
    books.end(JANUARY)
    assert [row["total"] for row in books.close(JANUARY, config=config)] == [Decimal("-1.50")]
    assert books.rows("SELECT amount FROM invoice_lines WHERE kind = 'write_off' ORDER BY invoice") == [
        {"amount": Decimal("-0.90")},
        {"amount": Decimal("0.90")},
    ]
    assert books.faults() == []


def test_usage_that_had_no_currency_is_invoiced_once_it_has_one_also_after_the_next_month(books: Books) -> None:
    books.open()
    books.use(1_000, price=None, currency=None)
    books.end(OCTOBER)
    assert books.leave_open(OCTOBER, Open.UNPRICED) == []
    books.use(-1_000, price=None, currency=None)
    books.use(1_000, cause="repriced")
    books.use(2_000, at=IN_NOVEMBER)
    books.end(NOVEMBER)
    assert [row["total"] for row in books.close(NOVEMBER)] == [Decimal("3.00")]
    assert [row["total"] for row in books.close(OCTOBER)] == [Decimal("1.50")]
    assert books.faults() == []
    assert [check.holds for check in check_invoices(books.database)] == [True, True]


def test_a_closed_month_whose_tiers_are_not_known_is_refused_and_never_credited(books: Books) -> None:
    books.open()
    terms = {"kind": "graduated", "tiers": [{"up_to": "1000", "unit_price": "0.0015"}, {"unit_price": "0.001"}]}
    rung = {"price_version": 7, "plan": "pro", "model": "gpt*", "meter": "input_tokens", "currency": "EUR"}
    ladder = {**rung, "effective_from": OCTOBER, "unit_price": None, "terms": PriceTerms.of(terms).text}
    write(books.database, "price_ladders", ladder)
    books.use(1_500, **TIERED)
    books.end(OCTOBER)
    books.close()
    with books.connection.transaction():
        books.connection.execute("DELETE FROM price_ladders")
    books.use(1_000, at=IN_NOVEMBER, price=Price(8, Decimal("0.0015")))
    books.end(NOVEMBER)
    (reason,) = refusals(books.close(NOVEMBER))
    assert reason.startswith("2026-10: input_tokens of sonnet has the price version 7, whose tiers are not known")


def test_a_month_that_was_left_out_is_closed_before_the_next(books: Books) -> None:
    books.open()
    books.use(1_000)
    books.end(OCTOBER)
    books.close()
    books.use(2_000, at=IN_NOVEMBER)
    books.use(3_000, at=IN_NOVEMBER + timedelta(days=30))
    books.end(DECEMBER)
    rows = books.close(DECEMBER)
    assert [(row["period"], row["invoice"], row["total"]) for row in rows] == [
        ("2026-11", "weir-2", Decimal("3.00")),
        ("2026-12", "weir-3", Decimal("4.50")),
    ]
    assert books.faults() == []


def test_usage_from_before_the_first_invoice_is_on_none(books: Books) -> None:
    books.open()
    books.use(1_000)
    books.use(2_000, at=IN_NOVEMBER)
    books.end(NOVEMBER)
    assert [row["period"] for row in books.close(NOVEMBER)] == ["2026-11"]


@pytest.mark.parametrize("is_late", [True, False])
def test_a_first_month_that_was_refused_or_came_late_is_listed_until_it_is_closed(
    books: Books, *, is_late: bool
) -> None:
    """Its first invoice would be that of the next month: no close would ever issue the one before."""
    books.open()
    books.open("bolt")
    books.use(1_000)
    if not is_late:
        books.use(1_000, account="bolt", price=None)
    books.end(OCTOBER)
    assert [row["outcome"] for row in books.close()] == (["issued"] if is_late else ["issued", "refused"])
    books.use(1_000, account="bolt")
    if not is_late:
        books.use(-1_000, account="bolt", price=None)
    books.use(1_000, NOON + timedelta(days=31), account="bolt")
    books.end(NOVEMBER)
    for _ in range(2):
        (listed,) = (row for row in books.close(NOVEMBER) if row["outcome"] == "not invoiced")
        assert (listed["account"], listed["period"]) == ("bolt", "2026-10")
        assert "`weir close 2026-10 --account bolt`" in listed["reason"]
    assert [row["outcome"] for row in books.close(OCTOBER, ["bolt"])] == ["issued"]
    assert books.close(NOVEMBER) == []
    assert books.rows("SELECT period, total FROM invoices WHERE account = 'bolt' ORDER BY period") == [
        {"period": OCTOBER, "total": Decimal("1.50")},
        {"period": NOVEMBER, "total": Decimal("1.50")},
    ]
    assert books.faults() == []


def test_tiers_are_lines_of_their_own_and_late_usage_is_corrected_on_the_tier_where_it_lies(books: Books) -> None:
    books.open()
    terms = {"kind": "graduated", "tiers": [{"up_to": "1000", "unit_price": "0.0015"}, {"unit_price": "0.001"}]}
    rung = {"price_version": 7, "plan": "pro", "model": "gpt*", "meter": "input_tokens", "currency": "EUR"}
    ladder = {**rung, "effective_from": OCTOBER, "unit_price": None, "terms": PriceTerms.of(terms).text}
    write(books.database, "price_ladders", ladder)
    books.use(1_500, **TIERED)
    books.end(OCTOBER)
    assert [row["outcome"] for row in books.close()] == ["issued"]
    assert [(row["tier"], row["quantity"], row["amount"]) for row in books.rows(TIER_LINES)] == [
        ("1: up to 1000", 1_000, Decimal("1.50")),
        ("2: above 1000", 500, Decimal("0.50")),
    ]
    assert books.faults() == []
    books.use(700, **TIERED)
    books.end(NOVEMBER)
    assert [row["total"] for row in books.close(NOVEMBER)] == [Decimal("0.70")]
    assert [(row["tier"], row["quantity"], row["amount"]) for row in books.rows(TIER_LINES)][2:] == [
        ("2: above 1000", -500, Decimal("-0.50")),
        ("2: above 1000", 1_200, Decimal("1.20")),
    ]
    assert [check.holds for check in check_invoices(books.database)] == [True, True]
    dearer = {**terms, "tiers": [{"up_to": "1000", "unit_price": "0.0015"}, {"unit_price": "0.002"}]}
    with books.connection.transaction():
        books.connection.execute("UPDATE price_ladders SET terms = %s", [PriceTerms.of(dearer).text])
    lines, unchanged = check_invoices(books.database)
    assert not lines.holds, lines.says
    assert "is not what its price makes of its quantity" in lines.says
    assert unchanged.holds, unchanged.says


def test_another_rounding_takes_back_what_was_issued_and_verification_agrees(books: Books) -> None:
    books.open()
    books.use(1_000, price=Price(7, Decimal("0.002125")))
    books.end(OCTOBER)
    books.close()
    books.use(1_000, price=Price(7, Decimal("0.002125")))
    books.end(NOVEMBER)
    (row,) = books.close(NOVEMBER, config=CloseConfig(rounding=Rounding.HALF_UP, minor_units={"EUR": 1}))
    assert [amount for *_, amount in books.lines("weir-2")] == [Decimal("-2.12"), Decimal("4.3")]
    assert row["total"] == Decimal("2.18")
    assert books.faults() == []
    assert [check.holds for check in check_invoices(books.database)] == [True, True]


def test_a_month_is_issued_again_by_another_issuer_once(books: Books) -> None:
    books.open()
    books.use(1_000)
    books.end(OCTOBER)
    books.close()
    void(books.database, "weir-1", made_by="test", reason="wrong issuer", at=IN_NOVEMBER)
    other = CloseConfig(issuer="acme-inc")
    rows = books.close(accounts=["acme"], config=other, reissues=True, reason="right issuer")
    assert [row["invoice"] for row in rows] == ["acme-inc-1"]
    assert books.close(config=other) == []
    books.use(2_000, at=IN_NOVEMBER)
    books.end(NOVEMBER)
    assert [row["invoice"] for row in books.close(NOVEMBER, config=other)] == ["acme-inc-2"]
    assert books.faults() == []


def test_a_voided_month_of_which_nothing_is_left_stops_no_later_one(books: Books) -> None:
    books.open()
    books.use(1_000)
    books.end(OCTOBER)
    books.close()
    void(books.database, "weir-1", made_by="test", reason="a test customer", at=IN_NOVEMBER)
    books.use(-1_000, cause="reversed")
    books.use(2_000, at=IN_NOVEMBER)
    books.end(NOVEMBER)
    assert [(row["period"], row["total"]) for row in books.close(NOVEMBER)] == [("2026-11", Decimal("3.00"))]
    assert books.faults() == []


def test_a_voided_currency_of_which_nothing_is_left_leaves_the_other_to_be_corrected(books: Books) -> None:
    books.open()
    books.use(1_000)
    books.use(1_000, price=Price(8, Decimal("0.0020")), currency="USD")
    books.end(OCTOBER)
    assert [row["currency"] for row in books.close()] == ["EUR", "USD"]
    void(books.database, "weir-1", made_by="test", reason="dollars only", at=IN_NOVEMBER)
    books.use(-1_000, cause="reversed")
    books.use(500, price=Price(8, Decimal("0.0020")), currency="USD")
    books.end(NOVEMBER)
    (row,) = books.close(NOVEMBER)
    assert (row["period"], row["currency"], row["total"]) == ("2026-11", "USD", Decimal("1.00"))
    assert books.lines("weir-3") == [
        (OCTOBER, "Correction", 8, -1000, Decimal("-2.00")),
        (OCTOBER, "Correction", 8, 1500, Decimal("3.00")),
    ]
    assert books.faults() == []


def test_a_month_that_is_invoiced_after_a_later_one_hides_no_change_of_that(books: Books) -> None:
    books.open()
    books.use(1_000)
    books.use(2_000, at=IN_NOVEMBER)
    books.end(NOVEMBER)
    books.close(NOVEMBER)
    books.use(500, at=IN_NOVEMBER)
    assert [row["period"] for row in books.close(OCTOBER)] == ["2026-10"]
    lines, unchanged = check_invoices(books.database)
    assert (lines.holds, unchanged.holds) == (True, True), lines.says
    books.end(DECEMBER)
    assert [row["total"] for row in books.close(DECEMBER)] == [Decimal("0.75")]
    assert books.faults() == []


def hold_straggler(books: Books) -> BillingConfig:
    """At the end of October 1,000 tokens are billed, and 2,000 wait for ten days, and are billed then."""
    waits: Any = {"late_policy": {"input_tokens": "hold"}, "hold": {"seconds": 864_000, "expires": "correct"}}
    holding = BillingConfig.model_validate(waits)
    books.open()
    books.use(1_000)
    late = usage_row(books.lsn, NOON, timedelta(days=28), price=PRICE, quantities={Meter.INPUT_TOKENS: 2_000})
    bill(books.connection, [late], holding)
    books.lsn += 1
    books.end(OCTOBER)
    return holding


def end_wait(books: Books, holding: BillingConfig) -> None:
    """F passes the deadline, and no usage comes."""
    passed = NOON + timedelta(days=40)
    bill(books.connection, [], holding, frontier=passed, next_position=books.lsn)
    books.reach(passed)


def test_a_straggler_whose_wait_ends_after_the_close_is_no_fault_and_is_on_the_next_invoice(books: Books) -> None:
    """F passes the deadline while nobody uses anything: no position of usage says that the month has changed."""
    holding = hold_straggler(books)
    assert [row["total"] for row in books.leave_open(OCTOBER, Open.HELD)] == [Decimal("1.50")]
    end_wait(books, holding)
    assert [row["quantity"] for row in books.rows("SELECT quantity FROM usage_months")] == [Decimal(3_000)]
    assert [check.holds for check in check_invoices(books.database)] == [True, True]
    books.end(NOVEMBER)
    assert [row["total"] for row in books.close(NOVEMBER)] == [Decimal("3.00")]
    assert [check.holds for check in check_invoices(books.database)] == [True, True]


def test_a_straggler_whose_wait_ends_after_the_audit_is_audited_before_it_is_on_an_invoice(books: Books) -> None:
    """Nobody uses anything between an audit and the close, but what has waited is billed."""
    holding = hold_straggler(books)
    books.audit(EVERYTHING)
    end_wait(books, holding)
    assert [row["total"] for row in books.close(OCTOBER)] == [Decimal("4.50")]
    assert len(books.audits) == 2
    books.close(OCTOBER)
    assert len(books.audits) == 2


def test_a_correction_that_has_waited_in_another_currency_is_no_fault_once_it_is_billed(books: Books) -> None:
    """A straggler of an account that nobody knew waits, and with it the price that an audit has found since."""
    holding = BillingConfig.model_validate(
        {"late_policy": {"input_tokens": "hold"}, "hold": {"seconds": 864_000, "expires": "correct"}}
    )
    books.open()
    books.use(1_000)
    first, delay, tokens = books.lsn, timedelta(days=28), {Meter.INPUT_TOKENS: 2_000}
    of_nobody: Any = {"price": None, "quantities": tokens, "currency": None, "request_id": "late"}
    correcting: Any = {"cause": "repriced", "corrects_lsns": [first], "request_id": "late", "quantities": tokens}
    bill(books.connection, [usage_row(first, NOON, delay, **of_nobody)], holding)
    taken_back = usage_row(first + 1, NOON, delay, **{**of_nobody, **correcting, "sign": -1})
    priced = usage_row(first + 2, NOON, delay, price=PRICE, **correcting)
    bill(books.connection, [taken_back, priced], holding)
    books.lsn += 3
    books.end(OCTOBER)
    assert [row["total"] for row in books.leave_open(OCTOBER, Open.HELD)] == [Decimal("1.50")]
    end_wait(books, holding)
    billed = books.rows("SELECT currency, quantity FROM usage_months ORDER BY currency")
    assert [row["quantity"] for row in billed if row["currency"] == "EUR"] == [Decimal(3_000)]
    assert [check.holds for check in check_invoices(books.database)] == [True, True]
    books.end(NOVEMBER)
    assert [row["total"] for row in books.close(NOVEMBER)] == [Decimal("3.00")]
    assert [check.holds for check in check_invoices(books.database)] == [True, True]


def test_an_audit_that_knew_no_frontier_proves_nothing_of_what_has_waited(books: Books) -> None:
    """One of an earlier release, or one while a partition without a record kept F unknown."""
    holding = hold_straggler(books)
    books.audit(EVERYTHING)
    with books.connection.transaction():
        books.connection.execute("UPDATE audits SET billed_frontier = NULL")
    end_wait(books, holding)
    assert [row["total"] for row in books.close(OCTOBER)] == [Decimal("4.50")]
    assert len(books.audits) == 2


def test_a_close_goes_on_where_another_one_issues_an_earlier_month_meanwhile(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The account's months begin with October only when those of November have been read."""
    books.open()
    books.use(1_000)
    books.use(2_000, IN_NOVEMBER)
    books.end(NOVEMBER)

    def after_another(*given: Any, **how: Any) -> Batch:
        monkeypatch.undo()
        assert [row["total"] for row in books.close(OCTOBER)] == [Decimal("1.50")]
        return issue(*given, **how)

    monkeypatch.setattr("jobs.close.run.issue", after_another)
    assert [row["total"] for row in books.close(NOVEMBER)] == [Decimal("3.00")]
    assert books.faults() == []


def test_a_close_that_has_waited_for_a_rebuild_goes_on_by_what_that_made(books: Books) -> None:
    """A rebuild deletes the position and stores another one, as one transaction; a close that waits sees it deleted."""
    books.open()
    books.use(1_000)
    books.end(OCTOBER)
    with psycopg.connect(books.database) as rebuild, ThreadPoolExecutor(1) as pool:
        columns = "job, input, next_position, frontier"
        position = rebuild.execute(f"DELETE FROM positions RETURNING {columns}").fetchone()
        rebuild.execute(f"INSERT INTO positions ({columns}) VALUES (%s, %s, %s, %s)", position)
        closed = pool.submit(books.close)
        waits = "SELECT FROM pg_locks WHERE NOT granted"
        wait_until(lambda: closed.done() or rebuild.execute(waits).fetchone() is not None, "the close waits")
        rebuild.commit()
        assert [row["outcome"] for row in closed.result(timeout=30)] == ["issued"]
