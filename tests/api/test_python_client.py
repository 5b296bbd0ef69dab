"""The Python client and a running API: kills of the client, an API that is away, several processes on one outbox."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from laptop.ports import LOOPBACK, free_ports
from metering.api_keys import RateLimits
from tests.api.serving import Server, serving, start_ingestion
from tests.api.test_events_in import usable
from tests.waiting import wait_until
from weir_client import AsyncClient, Client, Delivery, NotFlushed, OutboxError, usage_event

FLUSHED = "flushed"
SEED = 34


@pytest.fixture(scope="module")
def key(server: Server) -> str:
    return usable(server)


def url(server: Server) -> str:
    return f"http://{LOOPBACK}:{server.port}"


def usage(account: str, number: int, **data: Any) -> dict[str, Any]:
    mark = f"{account}-{number}"
    return usage_event(account=account, source="client", model="gpt-4o", response_id=mark, input_tokens=7, **data)


def name() -> str:
    return f"client-{uuid4().hex}"


def records(server: Server, accounts: Iterable[str]) -> dict[str, list[bytes]]:
    """The records of some accounts, by the id of their event."""
    wanted = {account.encode() for account in accounts}
    found: dict[str, list[bytes]] = {}
    for subject, value, _ in server.records():
        if subject in wanted:
            found.setdefault(json.loads(value)["id"], []).append(value)
    return found


def started(
    address: str, key: str, outbox: Path, prefix: str, count: int, *, delivery: Delivery = Delivery.AT_LEAST_ONCE
) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.api.client_process", address, str(outbox), prefix, str(count), delivery]
    environment = {**os.environ, "WEIR_KEY": key}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def printed(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return process.stdout.read().split()


def killed(process: subprocess.Popen[str], after_lines: int, seconds: float) -> list[str]:
    """What it has printed until it is killed, some time after so many lines."""
    assert process.stdout is not None
    lines = [process.stdout.readline().strip() for _ in range(after_lines)]
    time.sleep(seconds)
    process.kill()
    lines += printed(process)
    process.wait(30)
    return lines


def test_an_event_is_taken_and_leaves_the_outbox(server: Server, key: str, tmp_path: Path) -> None:
    account = name()
    with Client(url(server), key, outbox=tmp_path / "outbox") as client:
        client.send(usage(account, 1))
        client.send_all(usage(account, number) for number in range(2, 2_500))
        client.flush()
        assert records(server, [account]).keys() == {f"{account}-{number}" for number in range(1, 2_500)}
        assert len(client._outbox) == 0
    with pytest.raises(OutboxError, match="is closed"):
        client.send(usage(account, 1))
    assert not (tmp_path / "outbox.dead.jsonl").exists()


def test_asyncio_has_the_same(server: Server, key: str, tmp_path: Path) -> None:
    account = name()

    async def send() -> None:
        async with AsyncClient(url(server), key, outbox=tmp_path / "outbox") as client:
            await asyncio.gather(*(client.send(usage(account, number)) for number in range(50)))
            await client.flush()
            assert len(records(server, [account])) == 50
            await client.send_all(usage(account, number) for number in range(50, 60))

    asyncio.run(send())
    assert {len(values) for values in records(server, [account]).values()} == {1}
    assert len(records(server, [account])) == 60


def test_kills_and_outages_lose_and_double_nothing(bootstrap: str, database: str, tmp_path: Path) -> None:
    start_ingestion(database)
    chance = random.Random(SEED)
    (port,) = free_ports(1)
    address, outbox = f"http://{LOOPBACK}:{port}", tmp_path / "outbox"
    accounts = [name() for _ in range(9)]
    with serving(bootstrap, database, port=port) as server:
        key = usable(server)
    kept: list[str] = []
    for account in accounts[:3]:
        kept += killed(started(address, key, outbox, account, 100_000), 20, chance.uniform(0, 0.5))
    with serving(bootstrap, database, port=port) as server:
        for account in accounts[3:8]:
            kept += killed(started(address, key, outbox, account, 100_000), 1, chance.uniform(0, 1.5))
        last = started(address, key, outbox, accounts[8], 10)
        kept += printed(last)
        assert (last.wait(60), kept.pop()) == (0, FLUSHED)
        found = records(server, accounts)
    assert set(kept) <= found.keys()
    # An event of which the client was killed before `send` returned may have been kept, or not: one a process.
    assert len(found.keys() - set(kept)) <= len(accounts)
    # What was sent again is the same to the last byte, so a duplicate that Weir bills once, and no conflict.
    assert {len(set(values)) for values in found.values()} == {1}


def test_two_processes_share_an_outbox_and_each_event_is_sent_once(server: Server, key: str, tmp_path: Path) -> None:
    accounts = [name(), name()]
    processes = [started(url(server), key, tmp_path / "outbox", account, 300) for account in accounts]
    lines = [printed(process) for process in processes]
    assert [(process.wait(60), found[-1]) for process, found in zip(processes, lines, strict=True)] == [
        (0, FLUSHED)
    ] * 2
    found = records(server, accounts)
    assert found.keys() == {line for each in lines for line in each[:-1]}
    assert Counter(len(values) for values in found.values()) == {1: 600}


def test_at_most_once_nothing_is_sent_twice_also_under_kills(server: Server, key: str, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    accounts = [name() for _ in range(5)]
    for account in accounts[:4]:
        process = started(url(server), key, tmp_path / "outbox", account, 100_000, delivery=Delivery.AT_MOST_ONCE)
        killed(process, 1, chance.uniform(0.1, 0.8))
    last = started(url(server), key, tmp_path / "outbox", accounts[4], 10, delivery=Delivery.AT_MOST_ONCE)
    assert (printed(last)[-1], last.wait(60)) == (FLUSHED, 0)
    found = records(server, accounts)
    assert {len(values) for values in found.values()} == {1}
    assert {f"{accounts[4]}-{number}" for number in range(10)} <= found.keys()


def test_rejected_events_are_in_the_dead_file_with_their_reason(server: Server, key: str, tmp_path: Path) -> None:
    account = name()
    with Client(url(server), key, outbox=tmp_path / "outbox") as client:
        client.send_all([usage(account, 1), usage(account, 2, output_tokens=-1), usage(account, 3)])
        client.send_all([usage(account, 4, route="x" * 300_000), usage(account, 5)])
        client.flush()
    assert records(server, [account]).keys() == {f"{account}-{number}" for number in (1, 3, 5)}
    dead = [json.loads(line) for line in (tmp_path / "outbox.dead.jsonl").read_text().splitlines()]
    assert {each["event"]["id"] for each in dead} == {f"{account}-2", f"{account}-4"}
    (invalid,) = (each for each in dead if each["event"]["id"] == f"{account}-2")
    assert (invalid["reason"], invalid["path"]) == ("invalid_tokens", "/data/output_tokens")


def test_accounts_that_the_key_may_not_send_for_are_dead_and_all_others_are_taken(
    server: Server, tmp_path: Path
) -> None:
    mine, others = name(), name()
    limited = usable(server, accounts=[mine])
    with Client(url(server), limited, outbox=tmp_path / "outbox") as client:
        client.send_all(usage(account, number) for number in range(20) for account in (mine, others))
        client.flush()
    assert len(records(server, [mine])) == 20
    assert records(server, [others]) == {}
    dead = [json.loads(line) for line in (tmp_path / "outbox.dead.jsonl").read_text().splitlines()]
    assert {(each["event"]["subject"], each["reason"]) for each in dead} == {(others, "forbidden")}


def test_with_an_invalid_key_events_wait_and_flush_raises_the_reason(server: Server, key: str, tmp_path: Path) -> None:
    account = name()
    wrong = f"weir_{'0' * 12}_{'0' * 64}"
    with Client(url(server), wrong, outbox=tmp_path / "outbox") as client:
        client.send(usage(account, 1))
        wait_until(lambda: client._courier.problem is not None, "an answer")
        with pytest.raises(NotFlushed, match=r"1 events wait in .*: 401: Send a valid API key"):
            client.flush(0.1)
        client.close(0)
    with Client(url(server), key, outbox=tmp_path / "outbox") as client:
        client.flush()
    assert len(records(server, [account])) == 1


def test_a_key_over_its_limit_waits_as_announced_and_loses_nothing(server: Server, tmp_path: Path) -> None:
    account = name()
    limited = usable(server, limits=RateLimits(requests_per_second=1))
    with Client(url(server), limited, outbox=tmp_path / "outbox") as client:
        for number in range(5):
            client.send(usage(account, number))
            time.sleep(0.1)
        client.flush()
    assert {len(values) for values in records(server, [account]).values()} == {1}
    assert len(records(server, [account])) == 5


@pytest.mark.parametrize("address", ["events.example.com", "ftp://events.example.com", "", "https://"])
def test_an_invalid_address_or_key_is_refused_at_once(address: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the address must be one such as"):
        Client(address, "weir_1", outbox=tmp_path / "outbox")
    with pytest.raises(ValueError, match=r"the key must be an API key"):
        Client("http://127.0.0.1", "weir_1\nX: y", outbox=tmp_path / "outbox")
