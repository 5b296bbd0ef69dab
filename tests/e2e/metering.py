"""Traffic of one account with a total that is known, and the ways to look at what became of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from uuid import uuid4

import psutil
from confluent_kafka import KafkaError, Message, Producer

from deployment.stack import Stack, running_stack
from tests.waiting import wait_until

PRICES = {
    "requests": Decimal("0.000100000001"),
    "input_tokens": Decimal("0.000000150000"),
    "output_tokens": Decimal("0.000000600007"),
}
DRAIN_SECONDS = 150


def weir(stack: Stack, *arguments: str, timeout: float = DRAIN_SECONDS + 60) -> subprocess.CompletedProcess[str]:
    """Run the `weir` command against the stack, for `timeout` seconds at most."""
    command = [sys.executable, "-m", "cli.main", *arguments, "--data-dir", str(stack.data_dir)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)


def drain(stack: Stack, seconds: int = DRAIN_SECONDS) -> None:
    """Wait until all four applications have everything that was sent."""
    drained = weir(stack, "drain", "--timeout", str(seconds), timeout=seconds + 60)
    assert drained.returncode == 0, drained.stdout + drained.stderr


@contextmanager
def frozen(stack: Stack, application: str) -> Iterator[None]:
    """An application that does nothing within the block, and goes on after it."""
    process = running_stack(stack.data_dir).process(application).process
    assert process is not None
    freeze(process.pid)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGCONT)


def freeze(leader: int) -> None:
    """Stop all processes of a group, and wait until each of their threads stands: a signal arrives a moment later."""
    os.killpg(leader, signal.SIGSTOP)
    wait_until(lambda: all(_stands(each) for each in psutil.pids() if _group(each) == leader), "all of it standing")


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _stands(pid: int) -> bool:
    """Whether every thread of a process is stopped, or has ended."""
    states = set()
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):
            # After the program's name, which may hold anything but ends with the last parenthesis.
            states.add((thread / "stat").read_text().rpartition(")")[2].split()[0])
    return states <= {"T", "t", "Z", "X"}


@dataclass
class Customer:
    """One account that sends pairs of requests and completions; its bill is the sum of what it sent."""

    account: str
    pairs: int = 0
    gateway: str | None = None
    """Who sends; None: a gateway of its own."""

    def send(self, stack: Stack, folder: Path, pairs: int) -> None:
        """Produce so many requests with their completions, each sent twice."""
        numbers = range(self.pairs, self.pairs + pairs)
        lines = [json.dumps(event) for number in numbers for event in self.events(number)]
        file = folder / f"{uuid4().hex}.jsonl"
        file.write_text("\n".join(lines + lines) + "\n")
        sent = weir(stack, "produce", str(file))
        assert sent.returncode == 0, sent.stderr
        self.pairs += pairs

    @contextmanager
    def sending(self, stack: Stack, pairs_per_second: float = 5.0) -> Iterator[None]:
        """Send pairs for as long as the block lasts; what a broker cannot take yet is kept and sent when it can."""
        producer = Producer({"bootstrap.servers": stack.kafka_bootstrap, "socket.connection.setup.timeout.ms": 5_000})
        stopped, kept = threading.Event(), deque[str]()

        def send(event: str) -> None:
            def delivered(error: KafkaError | None, _: Message) -> None:
                if error is not None:
                    kept.append(event)

            producer.produce("events", event, self.account, on_delivery=delivered)

        def send_kept() -> None:
            for _ in range(len(kept)):
                send(kept.popleft())

        def run() -> None:
            while not stopped.wait(1 / pairs_per_second):
                for event in self.events(self.pairs):
                    send(json.dumps(event))
                producer.poll(0)
                send_kept()
                self.pairs += 1

        sender = threading.Thread(target=run)
        sender.start()
        try:
            yield
        finally:
            stopped.set()
            sender.join()
            while producer.flush(60) or kept:
                send_kept()

    def events(self, number: int) -> list[dict[str, object]]:
        """Request and completion of one pair, as of now."""
        now = datetime.now(UTC).isoformat()
        common = {
            "specversion": "1.0",
            "source": self.gateway or f"gateway/{self.account}",
            "subject": self.account,
            "time": now,
        }
        request_id = f"{self.account}-{number}"
        request = {"request_id": request_id, "user_id": f"u{number % 7}", "model": "m", "operation": "chat"}
        tokens = {"input_tokens": 100 + number, "output_tokens": 7 * number}
        completion = {"request_id": request_id, "status": "completed", "usage_source": "provider", **tokens}
        return [
            {**common, "id": f"r{number}", "type": "ai.inference.request.v1", "data": request},
            {**common, "id": f"c{number}", "type": "ai.inference.completion.v1", "data": completion},
        ]

    def expected(self) -> dict[str, tuple[Decimal, Decimal]]:
        """(quantity, amount) per meter."""
        numbers = range(self.pairs)
        quantities = {
            "requests": Decimal(self.pairs),
            "input_tokens": Decimal(sum(100 + number for number in numbers)),
            "output_tokens": Decimal(sum(7 * number for number in numbers)),
        }
        return {meter: (quantity, quantity * PRICES[meter]) for meter, quantity in quantities.items()}

    def billed(self, stack: Stack) -> dict[str, tuple[Decimal, Decimal]]:
        """(quantity, amount) per meter, as `weir usage` says."""
        listed = weir(
            stack, "usage", "--account", self.account, "--group-by", "meter", "--window", "P1M", "--format", "json"
        )
        assert listed.returncode == 0, listed.stderr
        total: dict[str, tuple[Decimal, Decimal]] = {}
        for row in json.loads(listed.stdout):
            quantity, amount = total.get(row["meter"], (Decimal(0), Decimal(0)))
            total[row["meter"]] = (quantity + Decimal(row["quantity"]), amount + Decimal(row["amount"]))
        return total


def new_customer(stack: Stack, folder: Path) -> Customer:
    """An account of its own, with a plan that prices everything it sends."""
    account = f"acct-{uuid4().hex[:8]}"
    plan = f"plan-{account}"
    catalog = {
        "plans": [{"plan": plan, "name": plan}],
        "accounts": [{"account": account, "name": account, "plan": plan, "currency": "EUR", "timezone": "UTC"}],
        "prices": [
            {"plan": plan, "model": "m", "meter": meter, "unit_price": f"{price:f}", "currency": "EUR"}
            | {"effective_from": "2026-01-01T00:00:00Z"}
            for meter, price in PRICES.items()
        ],
    }
    file = folder / f"{account}.json"
    file.write_text(json.dumps(catalog))
    applied = weir(stack, "catalog", "apply", str(file), "--yes")
    assert applied.returncode == 0, applied.stdout + applied.stderr
    return Customer(account)
