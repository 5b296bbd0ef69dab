"""Ten minutes of events through the Python client, while its process, the API and the broker are killed at random."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from uuid import uuid4

import pytest
from deltalake import DeltaTable

from deployment.stack import Stack, running_stack
from jobs.streams import Table
from laptop.folders import Folders
from tests.attack.conftest import attacked
from tests.e2e.metering import drain, weir
from weir_client import Client

pytestmark = pytest.mark.attack

LASTS_SECONDS = 600
SEED = 34
PAUSE_SECONDS = (5.0, 15.0)
BETWEEN_EVENTS_SECONDS = 0.02
TOKENS = 7
"""Of each event that `tests.api.client_process` sends."""
KILLED = ("client", "api", "broker", "api and broker")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """As `weir up` starts it."""
    with attacked(tmp_path_factory.mktemp("posted"), {}) as running:
        yield running


class Sender:
    """The client's process; each of its lives sends for an account of its own, from one outbox.

    `promised`: ids of the events for which `send` has returned.
    """

    def __init__(self, stack: Stack, key: str, folder: Path) -> None:
        self.mark = uuid4().hex[:12]
        self.outbox = folder / "outbox"
        self.promised: set[str] = set()
        self.lives = 0
        self._stack, self._key, self._folder = stack, key, folder
        self._start()

    def _start(self) -> None:
        self.lives += 1
        account = f"{self.mark}-{self.lives}"
        command = [sys.executable, "-m", "tests.api.client_process", self._stack.api_url, str(self.outbox), account]
        options = [str(10**9), "at_least_once", str(BETWEEN_EVENTS_SECONDS)]
        with self._printed.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, *options], env={**os.environ, "WEIR_KEY": self._key}, stdout=output
            )

    @property
    def _printed(self) -> Path:
        return self._folder / f"{self.lives}.txt"

    def kill(self, *, and_start: bool = True) -> None:
        self._process.kill()
        self._process.wait()
        # The last line may be cut off.
        self.promised |= set(self._printed.read_text().rpartition("\n")[0].split())
        if and_start:
            self._start()


def kill(stack: Stack, name: str) -> None:
    process = running_stack(stack.data_dir).process(name).process
    if process is not None:
        process.signal(signal.SIGKILL)


@pytest.mark.timeout(LASTS_SECONDS + 900)
def test_each_event_that_is_on_disk_is_billed_once_whatever_is_killed(stack: Stack, tmp_path: Path) -> None:
    made = weir(stack, "keys", "create", "--scope", "ingest", "--source", "client", "--format", "json")
    assert made.returncode == 0, made.stderr
    key = json.loads(made.stdout)["key"]
    sender, chance, killed = Sender(stack, key, tmp_path), Random(SEED), Counter[str]()
    until = time.monotonic() + LASTS_SECONDS
    while time.monotonic() < until:
        time.sleep(chance.uniform(*PAUSE_SECONDS))
        target = chance.choice(KILLED)
        killed[target] += 1
        for name in target.split(" and "):
            sender.kill() if name == "client" else kill(stack, name)
    sender.kill(and_start=False)
    with Client(stack.api_url, key, outbox=sender.outbox) as client:
        client.flush(300)
    drain(stack)

    assert set(killed) == set(KILLED), killed
    assert not Path(f"{sender.outbox}.dead.jsonl").exists()
    usage = DeltaTable(str(Folders(stack.data_dir).tables / Table.USAGE)).to_pyarrow_table(
        columns=["account", "request_id"]
    )
    rows = zip(usage["account"].to_pylist(), usage["request_id"].to_pylist(), strict=True)
    decided = Counter(request for account, request in rows if account.startswith(sender.mark))
    assert sender.promised - decided.keys() == set(), "lost"
    assert [request for request, count in decided.items() if count != 1] == [], "doubled"
    # Of each life one event may have been on disk before it was printed.
    assert len(decided) <= len(sender.promised) + sender.lives
    quantities = Counter[str]()
    for life in range(1, sender.lives + 1):
        listed = weir(stack, "usage", "--window", "P1M", "--account", f"{sender.mark}-{life}", "--format", "json")
        for row in json.loads(listed.stdout):
            quantities[row["meter"]] += int(row["quantity"])
    # No event reports output, which each should: `weir usage` lists 0 of it.
    assert quantities == {"requests": len(decided), "input_tokens": TOKENS * len(decided), "output_tokens": 0}
    print(f"{len(decided)} events, {sender.lives} lives of the client, killed: {dict(killed)}")
