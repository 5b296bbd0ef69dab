"""Every listing of `weir` on a running stack: what was sent is found again, in the shape that programs rely on."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from cli import dead_letter_rows, journal, sessions
from deployment.stack import Stack
from jobs.queries import stragglers
from tests.e2e.metering import PRICES, Customer, drain, new_customer, weir

PAIRS = 12
LATE = timedelta(minutes=20)
USAGE_COLUMNS = [
    *("window_start", "window_end", "account", "model", "meter", "currency"),
    *("quantity", "billed_quantity", "free_quantity", "tiered_quantity", "amount", "unpriced_quantity"),
    *("unmetered_requests", "state"),
]


@pytest.fixture(scope="module")
def customer(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Customer:
    """Has sent pairs, one usage report 20 minutes late, and three records that are no events."""
    folder = tmp_path_factory.mktemp("listings")
    customer = new_customer(stack, folder)
    customer.send(stack, folder, PAIRS)
    (folder / "late.jsonl").write_text(json.dumps(late_usage(customer.account)) + "\n")
    (folder / "bad.jsonl").write_bytes(b"\n".join(bad_records(customer.account)) + b"\n")
    for file in ("late.jsonl", "bad.jsonl"):
        sent = weir(stack, "produce", str(folder / file))
        assert sent.returncode == 0, sent.stderr
    drain(stack)
    return customer


def late_usage(account: str) -> dict[str, Any]:
    at = (datetime.now(UTC) - LATE).isoformat()
    data = {"request_id": f"{account}-late", "user_id": "late", "model": "m", "operation": "chat"}
    report = {**data, "status": "completed", "usage_source": "provider", "input_tokens": 5, "output_tokens": 3}
    envelope = {"specversion": "1.0", "type": "ai.inference.usage.v1", "source": f"gateway/{account}", "id": "late"}
    return {**envelope, "subject": account, "time": at, "data": report}


def bad_records(account: str) -> list[bytes]:
    name = account.encode()
    return [b'{"specversion": "1.0", "subject": "%s"' % name, b"\xff %s" % name, b'"%s"' % name]


def listed(stack: Stack, *arguments: str) -> list[dict[str, Any]]:
    answer = weir(stack, *arguments, "--format", "json")
    assert answer.returncode == 0, answer.stderr
    rows = json.loads(answer.stdout)
    assert isinstance(rows, list)
    return rows


def test_usage_is_what_was_sent_in_minutes_hours_days_and_months(stack: Stack, customer: Customer) -> None:
    late = {"requests": 1, "input_tokens": 5, "output_tokens": 3}
    expected = {
        meter: (quantity + late[meter], amount + late[meter] * PRICES[meter])
        for meter, (quantity, amount) in customer.expected().items()
    }
    for window in ("PT1M", "PT1H", "P1D", "P1M"):
        rows = listed(stack, "usage", "--account", customer.account, "--window", window)
        assert [list(row) for row in rows] == [USAGE_COLUMNS] * len(rows)
        assert all(row["window_start"].endswith("Z") and row["currency"] == "EUR" for row in rows)
        sums = {
            meter: tuple(
                sum(Decimal(row[measure]) for row in rows if row["meter"] == meter)
                for measure in ("quantity", "amount")
            )
            for meter in expected
        }
        assert sums == expected
        assert {row["unpriced_quantity"] for row in rows} == {"0"}


def test_a_corrected_minute_is_listed_as_corrected(stack: Stack, customer: Customer) -> None:
    (straggler, *_) = listed(stack, "stragglers", "--account", customer.account)
    rows = listed(stack, "usage", "--account", customer.account, "--from", straggler["window_start"])
    first = min(rows, key=lambda row: str(row["window_start"]))
    assert (first["window_start"], first["state"]) == (straggler["window_start"], "corrected")


def test_a_straggler_is_listed_with_account_delay_and_quantity(stack: Stack, customer: Customer) -> None:
    rows = listed(stack, "stragglers", "--account", customer.account)
    assert [list(row) for row in rows] == [list(stragglers.COLUMNS)] * 3
    by_meter = {row["meter"]: row for row in rows}
    assert {meter: Decimal(row["quantity"]) for meter, row in by_meter.items()} == {
        "requests": 1,
        "input_tokens": 5,
        "output_tokens": 3,
    }
    for meter, row in by_meter.items():
        assert (row["decision"], row["request_id"]) == ("correct", f"{customer.account}-late")
        assert Decimal(row["amount"]) == Decimal(row["quantity"]) * PRICES[meter]
        assert 300 <= row["late_seconds"] <= LATE.total_seconds() + 300


def test_sessions_count_the_requests_of_each_user_once(stack: Stack, customer: Customer) -> None:
    rows = listed(stack, "sessions", "--account", customer.account)
    assert [list(row) for row in rows] == [list(sessions.COLUMNS)] * len(rows)
    assert sum(row["events"] for row in rows) == PAIRS + 1
    assert {row["user_id"] for row in rows} == {"late", *(f"u{number}" for number in range(7))}
    assert {row["state"] for row in rows} <= {"open", "closed"}


def test_dead_letters_are_the_records_as_sent(stack: Stack, customer: Customer) -> None:
    rows = [row for row in listed(stack, "dead-letters") if customer.account in (row["value"] or "")]
    assert [list(row) for row in rows] == [[*dead_letter_rows.COLUMNS, dead_letter_rows.EARLIER_NAME]] * 3
    sent = {record.decode(errors="backslashreplace") for record in bad_records(customer.account)}
    assert {row["value"] for row in rows} == sent
    assert all(row["reason"] and row["topic"] == "events" for row in rows)


def test_the_journal_conserves_every_record(stack: Stack, customer: Customer) -> None:
    rows = listed(stack, "journal", "--summary")
    assert [list(row) for row in rows] == [[*journal.COLUMNS, *journal.EARLIER.values()]] * len(rows)
    assert {row["residual"] for row in rows} == {0}
    assert {row["topic"] for row in rows} >= {"events", "catalog.accounts", "catalog.prices"}
    assert sum(row["duplicate"] for row in rows) >= 2 * PAIRS
    by_reason = listed(stack, "journal", "--summary", "--by", "reason")
    assert sum(row["rejected"] for row in by_reason if row["reason"] is not None) >= 3
    assert {row["residual"] for row in by_reason} == {0}


def test_csv_and_table_list_the_same_rows(stack: Stack, customer: Customer) -> None:
    arguments = ("stragglers", "--account", customer.account)
    rows = listed(stack, *arguments)
    as_csv = list(csv.DictReader(StringIO(weir(stack, *arguments, "--format", "csv").stdout)))
    assert [row["request_id"] for row in as_csv] == [row["request_id"] for row in rows]
    assert [row["amount"] for row in as_csv] == [row["amount"] for row in rows]
    table = weir(stack, *arguments).stdout
    assert all(row["amount"] in table for row in rows)


def test_an_unknown_account_is_an_empty_list(stack: Stack) -> None:
    for command in ("usage", "sessions", "stragglers"):
        assert listed(stack, command, "--account", uuid4().hex) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("usage", "--window", "PT5M"),
        ("usage", "--from", "2026-01-01T00:00:00"),
        ("usage", "--group-by", "account,user"),
        ("usage", "--group-by", "account,user", "--window", "P1D"),
        ("usage", "--group-by", "account,user", "--window", "P1D", "--timezone", "Europe/Berlin"),
        ("usage", "--timezone", "Mars/Olympus"),
        ("usage", "--from", "2026-01-02T00:00:00Z", "--to", "2026-01-01T00:00:00Z"),
        ("stragglers", "--decision", "keep"),
        ("journal",),
    ],
)
def test_a_wrong_option_is_refused_with_exit_status_2(stack: Stack, arguments: tuple[str, ...]) -> None:
    answer = weir(stack, *arguments)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr


def test_without_a_stack_a_listing_explains_what_is_missing(tmp_path: Path, stack: Stack) -> None:
    for command in (("usage",), ("sessions",), ("stragglers",), ("dead-letters",), ("journal", "--summary")):
        answer = weir(replace(stack, data_dir=tmp_path), *command)
        assert answer.returncode == 1
        assert "No stack runs in" in answer.stderr


def test_an_id_and_its_minute_are_explained_down_to_the_record_and_up_to_the_bill(
    stack: Stack, customer: Customer
) -> None:
    answer = weir(stack, "explain", f"{customer.account}-late", "--format", "json")
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    (record,) = found["records"]
    assert (record["topic"], record["disposition"]) == ("events", "accepted")
    assert json.loads(record["value"])["subject"] == customer.account
    assert {meter["meter"]: meter["quantity"] for meter in found["usage"][0]["meters"]} == {
        "requests": "1",
        "input_tokens": "5",
        "output_tokens": "3",
        "cached_tokens": None,
    }
    assert {row["reported_by"] for row in found["prices"]} == {"weir"}
    assert {row["meter"] for row in found["line"]} == {"requests", "input_tokens", "output_tokens"}
    assert len(found["stragglers"]) == len(found["corrections"]) == 3
    start = found["windows"][0]["window_start"]
    minute = weir(stack, "explain", "--window", start, "--account", customer.account, "--format", "json")
    assert minute.returncode == 0, minute.stderr
    whole = json.loads(minute.stdout)
    assert (whole["adds_up"], whole["differences"]) == (True, [])
    assert "It adds up." in weir(stack, "explain", "--straggler", str(found["usage"][0]["lsn"])).stdout
    month = found["line"][0]["month"]
    of = ("--account", customer.account, "--meter", "requests")
    line = json.loads(weir(stack, "explain", "--line", month, *of, "--format", "json").stdout)
    assert (line["adds_up"], line["differences"]) == (True, [])
    assert {row["meter"] for row in [*line["line"], *line["windows"]]} == {"requests"}
    unknown = weir(stack, "explain", "nobody")
    assert (unknown.returncode, unknown.stderr.count("\n")) == (1, 1)
