"""A month is closed on the running stack; what came too late is a pair of lines on the next invoice, killed or not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from deployment.stack import Stack
from tests.e2e.metering import PRICES, Customer, drain, new_customer, weir

CENT = Decimal("0.01")
INPUT_TOKENS = 1_000_000
"""Of each request, so that an amount has cents."""


def month_before(month: date) -> date:
    return (month - timedelta(days=1)).replace(day=1)


def send(stack: Stack, folder: Path, customer: Customer, month: date, numbers: range) -> None:
    """One request a minute of the month's tenth: the source may send what was received long ago."""
    first = datetime(month.year, month.month, 10, 12, tzinfo=UTC)
    lines = []
    for number in numbers:
        at = first + timedelta(minutes=number)
        past = {"time": at.isoformat(), "receivedtime": (at + timedelta(seconds=2)).isoformat()}
        request, completion = ({**event, **past} for event in customer.events(number))
        completion["data"] = {**completion["data"], "input_tokens": INPUT_TOKENS}  # type: ignore[dict-item]
        lines += [json.dumps(request), json.dumps(completion)]
    file = folder / f"{month}-{numbers.start}.jsonl"
    file.write_text("\n".join(lines) + "\n")
    sent = weir(stack, "produce", str(file))
    assert sent.returncode == 0, sent.stderr
    drain(stack)


def amounts(numbers: range) -> dict[str, Decimal]:
    """What the meters come to, each rounded once."""
    quantities = {
        "requests": len(numbers),
        "input_tokens": INPUT_TOKENS * len(numbers),
        "output_tokens": sum(7 * number for number in numbers),
    }
    return {meter: (quantity * PRICES[meter]).quantize(CENT) for meter, quantity in quantities.items()}


def close(stack: Stack, customer: Customer, month: date) -> list[dict[str, Any]]:
    done = weir(stack, "close", f"{month:%Y-%m}", "--account", customer.account, "--format", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def close_and_kill(stack: Stack, customer: Customer, month: date) -> None:
    """A close that ends by SIGKILL while its audit runs."""
    command = [sys.executable, "-m", "cli.main", "close", f"{month:%Y-%m}", "--account", customer.account]
    closing = subprocess.Popen(
        [*command, "--data-dir", str(stack.data_dir)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert closing.stderr is not None
    try:
        told = ""
        while "the audit of" not in told:
            line = closing.stderr.readline()
            assert line, f"the close ended by itself: {told}"
            told += line
    finally:
        os.killpg(closing.pid, signal.SIGKILL)
        closing.wait()


def lines(stack: Stack, invoice: str) -> list[dict[str, Any]]:
    shown = weir(stack, "invoices", "show", invoice, "--format", "json")
    assert shown.returncode == 0, shown.stderr
    found: list[dict[str, Any]] = json.loads(shown.stdout)["lines"]
    return found


@pytest.mark.long
def test_late_usage_of_a_closed_month_is_a_pair_of_lines_on_the_next_invoice_also_when_a_close_is_killed(
    stack: Stack, tmp_path: Path
) -> None:
    later = month_before(datetime.now(UTC).date().replace(day=1))
    earlier = month_before(later)
    customer = new_customer(stack, tmp_path)
    customer.gateway = f"history/{customer.account}"
    send(stack, tmp_path, customer, earlier, range(10))
    send(stack, tmp_path, customer, later, range(10, 20))

    (issued,) = close(stack, customer, earlier)
    assert (issued["outcome"], Decimal(issued["total"])) == ("issued", sum(amounts(range(10)).values()))
    first = lines(stack, issued["invoice"])
    assert {line["meter"]: Decimal(line["amount"]) for line in first} == amounts(range(10))

    send(stack, tmp_path, customer, earlier, range(20, 23))
    close_and_kill(stack, customer, later)
    (next_issued,) = close(stack, customer, later)
    assert next_issued["outcome"] == "issued"
    second = lines(stack, next_issued["invoice"])
    own = {line["meter"]: Decimal(line["amount"]) for line in second if line["charge_class"] is None}
    assert own == amounts(range(10, 20))
    corrected = [*range(10), *range(20, 23)]
    pairs = [line for line in second if line["charge_class"] == "Correction"]
    assert {line["original_period"] for line in pairs} == {f"{earlier:%Y-%m}"}
    assert {line["corrects_invoice"] for line in pairs} == {issued["invoice"]}
    for meter, amount in amounts(range(10)).items():
        minus, plus = (line for line in pairs if line["meter"] == meter)
        assert Decimal(minus["amount"]) == -amount
        quantity = {
            "requests": len(corrected),
            "input_tokens": INPUT_TOKENS * len(corrected),
            "output_tokens": sum(7 * number for number in corrected),
        }[meter]
        assert Decimal(plus["exact_amount"]) == quantity * PRICES[meter]
        assert Decimal(plus["amount"]) == (quantity * PRICES[meter]).quantize(CENT)

    verified = weir(stack, "close", "--verify", "--account", customer.account)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert [row["outcome"] for row in close(stack, customer, later)] == ["closed already"]
    assert lines(stack, issued["invoice"]) == first
