"""Months are closed on the running stack: late usage is a pair of lines on the next invoice, also after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from deployment.stack import Stack
from laptop.folders import Folders
from laptop.jars import connector_jars
from laptop.java import find_java
from laptop.programs import job_environment
from tests.e2e.metering import PRICES, Customer, drain, new_customer, weir

CENT = Decimal("0.01")
INPUT_TOKENS = 1_000_000
OUTPUT_TOKENS = 1_000_000
"""Of each request, so that an amount has cents and something is left over."""
SECONDS = 600
"""For each step: a close audits first, and the machine may be busy."""
WAITING = """
SELECT FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE NOT granted AND relation = 'invoice_events'::regclass AND application_name LIKE 'weir close%'
"""


def month_before(month: date) -> date:
    return (month - timedelta(days=1)).replace(day=1)


def send(stack: Stack, folder: Path, customer: Customer, month: date, numbers: range) -> None:
    """One request a minute of the month's tenth, each with as many tokens: history of a source that may send it."""
    first = datetime(month.year, month.month, 10, 12, tzinfo=UTC)
    tokens = {"input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS}
    sent = []
    for number in numbers:
        at = first + timedelta(minutes=number)
        past = {"time": at.isoformat(), "receivedtime": (at + timedelta(seconds=2)).isoformat()}
        request, completion = ({**event, **past} for event in customer.events(number))
        data = completion["data"]
        assert isinstance(data, dict)
        sent += [json.dumps(request), json.dumps({**completion, "data": {**data, **tokens}})]
    file = folder / f"{month}-{numbers.start}.jsonl"
    file.write_text("\n".join(sent) + "\n")
    done = weir(stack, "backfill", str(file), timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    drain(stack, SECONDS)


def exact(requests: int) -> dict[str, Decimal]:
    """What so many requests come to, by meter."""
    quantities = {"requests": 1, "input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS}
    return {meter: requests * quantity * PRICES[meter] for meter, quantity in quantities.items()}


def rounded(amounts: dict[str, Decimal]) -> dict[str, Decimal]:
    """Each amount in cents."""
    return {meter: amount.quantize(CENT) for meter, amount in amounts.items()}


def close(stack: Stack, customer: Customer, month: date) -> dict[str, Any]:
    """The only row of `weir close`."""
    options = ("--account", customer.account, "--format", "json")
    done = weir(stack, "close", f"{month:%Y-%m}", *options, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    row: dict[str, Any]
    (row,) = json.loads(done.stdout)
    return row


def job_close(stack: Stack, customer: Customer, month: date, log: Path) -> subprocess.Popen[bytes]:
    """`python -m jobs close`, as a cluster runs it."""
    find_java()
    variables = job_environment(
        Folders(stack.data_dir),
        kafka_bootstrap=stack.kafka_bootstrap,
        postgres_url=stack.postgres_url,
        jars=connector_jars(),
    )
    command = [sys.executable, "-m", "jobs", "close", "--month", f"{month:%Y-%m}", "--account", customer.account]
    with log.open("wb") as output:
        return subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, **variables}, start_new_session=True
        )


def kill_before_its_commit(stack: Stack, customer: Customer, month: date, log: Path) -> None:
    """A close that ends by SIGKILL when it has written an invoice and its lines, and is about to write its states."""
    with psycopg.connect(stack.postgres_url) as holder, psycopg.connect(stack.postgres_url, autocommit=True) as reader:
        holder.execute("LOCK TABLE invoice_events IN SHARE MODE")
        closing = job_close(stack, customer, month, log)
        try:
            until = time.monotonic() + SECONDS
            while not reader.execute(WAITING).fetchall():
                assert closing.poll() is None, f"the close ended by itself: {log.read_text()}"
                assert time.monotonic() < until, f"the close does not come to its invoice: {log.read_text()}"
                time.sleep(0.2)
        finally:
            os.killpg(closing.pid, signal.SIGKILL)
            closing.wait()
        holder.rollback()


def shown(stack: Stack, customer: Customer) -> list[dict[str, Any]]:
    """All invoices of the customer, with their lines, states and hashes."""
    listed = weir(stack, "invoices", "list", "--account", customer.account, "--format", "json")
    assert listed.returncode == 0, listed.stderr
    found = []
    for row in json.loads(listed.stdout):
        document = weir(stack, "invoices", "show", row["invoice"], "--format", "json")
        assert document.returncode == 0, document.stderr
        found.append(json.loads(document.stdout))
    return found


def by_meter(lines: Sequence[dict[str, Any]]) -> dict[str, list[tuple[Decimal, Decimal]]]:
    """(exact amount, amount) of the lines of each meter, in their order."""
    found: dict[str, list[tuple[Decimal, Decimal]]] = {}
    for line in lines:
        found.setdefault(line["meter"], []).append((Decimal(line["exact_amount"]), Decimal(line["amount"])))
    return found


@pytest.mark.long
@pytest.mark.timeout(2_400)
def test_late_usage_of_a_closed_month_is_a_pair_of_lines_on_the_next_invoice_also_after_a_killed_close(
    stack: Stack, tmp_path: Path
) -> None:
    later = month_before(datetime.now(UTC).date().replace(day=1))
    earlier = month_before(later)
    customer = new_customer(stack, tmp_path)
    customer.gateway = f"history/{customer.account}"
    send(stack, tmp_path, customer, earlier, range(10))

    assert close(stack, customer, earlier)["outcome"] == "issued"
    (first,) = shown(stack, customer)
    due, charged = exact(10), rounded(exact(10))
    assert by_meter(first["lines"]) == {meter: [(due[meter], charged[meter])] for meter in due}
    assert Decimal(first["total"]) == sum(charged.values())
    assert close(stack, customer, earlier)["outcome"] == "closed already"
    assert shown(stack, customer) == [first]

    send(stack, tmp_path, customer, later, range(10, 17))
    send(stack, tmp_path, customer, earlier, range(20, 23))
    kill_before_its_commit(stack, customer, later, tmp_path / "close.log")
    assert shown(stack, customer) == [first]
    assert close(stack, customer, later)["outcome"] == "issued"
    still, second = shown(stack, customer)
    assert still == first
    assert second["invoice"] == f"weir-{int(first['invoice'].removeprefix('weir-')) + 1}"
    own = [line for line in second["lines"] if line["charge_class"] is None]
    pairs = [line for line in second["lines"] if line["charge_class"] == "Correction"]
    due = exact(7)
    assert by_meter(own) == {meter: [(due[meter], due[meter].quantize(CENT))] for meter in due}
    before, now = exact(10), exact(13)
    assert by_meter(pairs) == {
        meter: [(-before[meter], -charged[meter]), (now[meter], now[meter].quantize(CENT))] for meter in before
    }
    assert {line["original_period"] for line in pairs} == {f"{earlier:%Y-%m}"}
    assert {line["corrects_invoice"] for line in pairs} == {first["invoice"]}

    assert [close(stack, customer, month)["outcome"] for month in (earlier, later)] == ["closed already"] * 2
    assert shown(stack, customer) == [first, second]
    verified = weir(stack, "invoices", "verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr
