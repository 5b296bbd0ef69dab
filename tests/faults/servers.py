"""Broker, database and object store, each behind its proxy: kept running as `weir up` does it, by the same code.

Drivers know the proxies only. Traffic, draining and the comparison go past them: what a fault hides from Weir it must
not hide from whoever compares.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from deployment.processes import ProcessId, kill_session
from deployment.stack import State
from deployment.topics import answers
from laptop import broker, database
from laptop.broker import BrokerPorts
from laptop.jars import broker_jars
from laptop.ports import LOOPBACK, free_ports
from laptop.programs import Program
from laptop.supervised import Supervised
from tests.faults.plan import SERVERS, STORE
from tests.faults.proxy import Proxy

BUCKET = "metering"
STEP_SECONDS = 0.2
START_SECONDS = 300
CLOCK_LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
HOW_TO_GET_CLOCK = "the broker's clock cannot be set: install the package `faketime`"
REFUSED_503 = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
PRODUCE_AND_FETCH = (b"\x00\x00", b"\x00\x01")
"""Kafka's numbers of these requests, behind the length."""


@dataclass(frozen=True)
class Faced:
    """The same three servers as somebody reaches them."""

    kafka_bootstrap: str
    postgres_url: str
    store_url: str = ""


class Servers:
    """`direct` is how they are reached past the proxies, `proxied` through them; `proxies` by target."""

    def __init__(self, folder: Path, stack: str, *, with_store: bool) -> None:
        ports = free_ports(9)
        clients, direct, controller, postgres, store, *proxies = ports
        self._clock = folder / "clock"
        self._stack = stack
        self.proxies = {
            "kafka": Proxy(proxies[0], clients, lambda chunk: chunk[4:6] in PRODUCE_AND_FETCH),
            "postgres": Proxy(proxies[1], postgres, lambda chunk: b"COMMIT" in chunk),
        }
        if with_store:
            self.proxies[STORE] = Proxy(proxies[2], store, _is_commit, REFUSED_503)
        self.set_clock_ahead(0, folder)
        kafka = BrokerPorts(clients, controller, advertised=f"{LOOPBACK}:{proxies[0]}")
        database.prepare(folder / "postgres")
        programs = [
            Program(
                "kafka",
                partial(_broker_command, folder / "kafka", kafka, direct),
                partial(answers, f"{LOOPBACK}:{direct}"),
                _clock_variables(self._clock),
            ),
            Program(
                "postgres",
                partial(database.server_command, folder / "postgres", postgres),
                partial(database.ensure_database, folder / "postgres", postgres),
            ),
        ]
        if with_store:
            command = [sys.executable, "-m", "tests.streaming.store_server", str(store)]
            programs.append(Program(STORE, lambda: command, partial(_has_bucket, f"http://{LOOPBACK}:{store}")))
        self._supervised = {
            program.name: Supervised(program, stack, folder / "logs" / f"{program.name}.log", Path.cwd())
            for program in programs
        }
        url = partial(database.database_url, folder / "postgres")
        stores = [f"http://{LOOPBACK}:{port}" if with_store else "" for port in (store, proxies[2])]
        self.direct = Faced(f"{LOOPBACK}:{direct}", url(postgres), stores[0])
        self.proxied = Faced(kafka.bootstrap, url(proxies[1]), stores[1])
        self._stopping = threading.Event()
        self._watch = threading.Thread(target=self._keep_running, name="servers", daemon=True)

    def start(self) -> None:
        """Start all, and keep them running until `stop`."""
        self._watch.start()
        deadline = time.monotonic() + START_SECONDS
        while any(one.record.state is not State.RUNNING for one in self._supervised.values()):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the servers do not run: {[one.record for one in self._supervised.values()]}")
            time.sleep(STEP_SECONDS)

    def stop(self) -> None:
        """Kill all: their data is not needed any more."""
        self._stopping.set()
        self._watch.join()
        for name in (*SERVERS, STORE):
            if (process := self.process(name)) is not None:
                kill_session(process, self._stack)

    def process(self, name: str) -> ProcessId | None:
        """The process of a server; None between its end and its next start."""
        return self._supervised[name].record.process if name in self._supervised else None

    def set_clock_ahead(self, seconds: int, folder: Path | None = None) -> None:
        """Let the broker's clock be this far ahead of the machine's, from now on."""
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        self._clock.write_text(f"+{seconds}s\n")

    def _keep_running(self) -> None:
        while not self._stopping.wait(STEP_SECONDS):
            for one in self._supervised.values():
                one.step(time.monotonic())


def _broker_command(folder: Path, ports: BrokerPorts, direct: int) -> Sequence[str]:
    """A broker with a second listener, which leads past the proxy."""
    broker.prepare(folder, broker_jars(), ports)
    listeners = f"CLIENTS://{LOOPBACK}:{ports.clients},DIRECT://{LOOPBACK}:{direct}"
    with (folder / "server.properties").open("a") as properties:  # of two lines with one name the last holds
        properties.write(
            f"listeners={listeners},CONTROLLER://{LOOPBACK}:{ports.controller}\n"
            f"advertised.listeners=CLIENTS://{ports.bootstrap},DIRECT://{LOOPBACK}:{direct}\n"
            "listener.security.protocol.map=CLIENTS:PLAINTEXT,DIRECT:PLAINTEXT,CONTROLLER:PLAINTEXT\n"
            "inter.broker.listener.name=DIRECT\n"
        )
    return broker.server_command(folder, broker_jars())


def _clock_variables(offset: Path) -> dict[str, str]:
    if not CLOCK_LIBRARIES:
        return {}
    return {
        "LD_PRELOAD": str(CLOCK_LIBRARIES[0]),
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_NO_CACHE": "1",
        # Java waits by the monotonic clock: only the time of day is set.
        "DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",
    }


def _is_commit(chunk: bytes) -> bool:
    return chunk.startswith(b"PUT ") and b"_delta_log/" in chunk.partition(b"\r\n")[0]


def _has_bucket(url: str) -> bool:
    client = boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        config=Config(connect_timeout=2, read_timeout=2, retries={"max_attempts": 0}),
    )
    try:
        client.create_bucket(Bucket=BUCKET)
    except (BotoCoreError, ClientError):
        return False
    return True
