"""Records what this version leaves behind: `python -m tests.e2e.older.record FILE.tar.xz`, as README.md says.

Requests of one customer wait in the tables, and what completes them is in the broker, unread: whoever goes on from the
folder, however much later, has to match them. Copies of these requests, and further pairs, are unread there too.
"""

from __future__ import annotations

import json
import lzma
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stub leaves these out
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from deployment import topics
from deployment.stack import KAFKA_VARIABLE, POSTGRES_VARIABLE, TABLES_VARIABLE, running_stack
from jobs.streams import EVENTS_TOPIC
from laptop import broker
from laptop.broker import BrokerPorts
from laptop.database import embedded_database, program
from laptop.folders import Folders
from laptop.jars import broker_jars
from laptop.ports import free_ports
from tests.e2e import older
from tests.e2e.conftest import up, weir_at
from tests.e2e.metering import Customer, new_customer
from tests.waiting import wait_until

EVENTS = 1_100
SEED = 14
PAIRS = 30
WAITING = 20
"""So many further requests are completed only after the stack has stopped."""
UNREAD_PAIRS = 7
"""So many pairs are sent only then: the sessions of their users, which are open, go on."""
SHOWN = ("usage", "stragglers", "sessions")
KEPT = ["database.sql", "kafka/log", "tables", older.TRUTH, older.CUSTOMER, older.SHOWN]


def record(file: Path, folder: Path) -> None:
    """Run a stack in `folder`, and pack what it leaves into `file`."""
    data_dir = folder / "weir"
    try:
        _checked(up(data_dir))
        customer, unread = _meter(data_dir)
    finally:
        stopped = weir_at(data_dir, "down")
    _checked(stopped)
    with _running_broker(Folders(data_dir).broker) as bootstrap:
        _send(bootstrap, customer.account, [*unread, *_further(customer)])
    known = {"account": customer.account, "pairs": customer.pairs, "waiting": WAITING}
    (data_dir / older.CUSTOMER).write_text(json.dumps(known))
    with embedded_database(Folders(data_dir).database) as url:
        shown = _shown(url, Folders(data_dir).tables)
        dump = [str(program("pg_dump")), "--no-owner", "--no-privileges", "--inserts", url]
        dumped = _checked(subprocess.run(dump, capture_output=True, text=True, check=False))
    (data_dir / "database.sql").write_text(dumped)
    (data_dir / older.SHOWN).write_text(json.dumps(shown))
    _forget_place(data_dir)
    with lzma.open(file, "wb", preset=9 | lzma.PRESET_EXTREME) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for name in KEPT:
            tar.add(data_dir / name, name, filter=_nobodys)


def _checked(ended: subprocess.CompletedProcess[str]) -> str:
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def _keep_for_ever(bootstrap: str) -> None:
    """Kafka removes nothing of the events, however old the folder is."""
    setting = ConfigEntry("retention.ms", "-1", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, EVENTS_TOPIC, incremental_configs=[setting])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for changed in admin.incremental_alter_configs([resource]).values():
        changed.result()


def _meter(data_dir: Path) -> tuple[Customer, list[dict[str, Any]]]:
    """Send traffic, and what a customer does; what of the latter is to be sent later."""
    stack = running_stack(data_dir)
    _keep_for_ever(stack.kafka_bootstrap)
    customer = new_customer(stack, data_dir.parent)
    customer.send(stack, data_dir.parent, PAIRS)
    traffic = ["traffic", "--events", str(EVENTS), "--seed", str(SEED)]
    _checked(weir_at(data_dir, *traffic, "--truth", str(data_dir / older.TRUTH)))
    parts = [customer.events(customer.pairs + number) for number in range(WAITING)]
    requests = [request for request, _ in parts]
    file = data_dir.with_name("requests.jsonl")
    file.write_text("".join(f"{json.dumps(request)}\n" for request in requests))
    _checked(weir_at(data_dir, "produce", str(file)))
    _checked(weir_at(data_dir, "drain"))
    customer.pairs += WAITING
    completions = [_v2(completion) if number % 2 else completion for number, (_, completion) in enumerate(parts)]
    return customer, [*requests, *completions]


def _further(customer: Customer) -> list[dict[str, Any]]:
    events = [event for number in range(UNREAD_PAIRS) for event in customer.events(customer.pairs + number)]
    customer.pairs += UNREAD_PAIRS
    return events


def _v2(completion: dict[str, Any]) -> dict[str, Any]:
    data = dict(completion["data"])
    usage = {name.removesuffix("_tokens"): data.pop(name) for name in ("input_tokens", "output_tokens")}
    return {**completion, "type": "ai.inference.completion.v2", "data": {**data, "usage": usage}}


def _send(bootstrap: str, account: str, events: list[dict[str, Any]]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for event in events:
        producer.produce(EVENTS_TOPIC, json.dumps(event), account)
    assert producer.flush(60) == 0


@contextmanager
def _running_broker(folder: Path) -> Iterator[str]:
    """The address of the broker alone, which is stopped cleanly: what it leaves needs no repair."""
    clients, controller = free_ports(2)
    ports = BrokerPorts(clients, controller)
    broker.prepare(folder, broker_jars(), ports)
    with (folder / "alone.log").open("ab") as log:
        process = subprocess.Popen(broker.server_command(folder, broker_jars()), stdout=log, stderr=log)
    try:
        wait_until(lambda: topics.answers(ports.bootstrap), "the broker answering", every_seconds=0.1)
        yield ports.bootstrap
    finally:
        process.terminate()
        process.wait(60)


def _shown(database: str, tables: Path) -> dict[str, Any]:
    """What this version's commands list, of the stopped stack: nothing is decided between them."""
    where = {POSTGRES_VARIABLE: database, TABLES_VARIABLE: str(tables), KAFKA_VARIABLE: "localhost:1"}
    shown = {}
    for name in SHOWN:
        command = [sys.executable, "-m", "cli.main", name, "--format", "json"]
        listed = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **where})
        shown[name] = json.loads(_checked(listed))
    return shown


def _forget_place(data_dir: Path) -> None:
    """The tables' logs say where they were made, which nobody reads and is no one's business."""
    for log in (data_dir / "tables").glob("*/_delta_log/*.json"):
        log.write_text(log.read_text().replace(str(data_dir), "/data"))


def _nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        record(Path(sys.argv[1]).resolve(), Path(folder))
