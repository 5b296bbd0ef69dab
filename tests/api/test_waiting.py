"""What the API answers while something that it needs is away, or a client takes its time."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # its stub leaves NewTopic out
from psycopg.types.json import Jsonb

from api import key_store
from api.app import LIVE, READY, application
from api.bodies import MAX_BODY_BYTES
from api.database_poll import READ_EVERY_SECONDS, DatabasePoll
from api.ingestion_lag import MAX_LAG_SECONDS
from api.server import services_of
from api.slow_clients import MAX_CONNECTIONS, REQUEST_WITHIN_SECONDS
from deployment.stack import KAFKA_VARIABLE, POSTGRES_VARIABLE
from jobs.runtime.clock import MachineClock
from laptop.ports import LOOPBACK, free_ports
from metering.api_keys import Scope
from tests.api.serving import Answer, Server, serving, start_ingestion
from tests.api.test_events_in import OPENMETER, OWN, V3, encoded, event, refused, usable
from tests.waiting import wait_until


def test_before_the_first_start_of_ingestion_the_api_reports_it(bootstrap: str, database: str) -> None:
    with serving(bootstrap, database, is_ready=False) as server:
        key = key_store.create(database, [Scope.INGEST], "test").key

        def waits_for() -> tuple[int, list[str]]:
            answer = server.request("GET", "/health/ready", None, {})
            return answer.status, answer.json["waits_for"]

        wait_until(lambda: waits_for() == (503, ["ingestion"]), "the database being read", 60, every_seconds=0.2)
        wait_until(
            lambda: server.post(OWN, encoded(event()), key).status == 503, "the key being known", 60, every_seconds=0.2
        )
        start_ingestion(database)
        wait_until(
            lambda: server.post(OWN, encoded(event()), key).status == 200,
            "ingestion being known",
            60,
            every_seconds=0.2,
        )


def test_events_go_to_the_topic_that_ingestion_reads(bootstrap: str, database: str) -> None:
    administrator = AdminClient({"bootstrap.servers": bootstrap})
    administrator.create_topics([NewTopic("own.events", 2, 1)])["own.events"].result(30)
    start_ingestion(database, topic="own.events")
    with serving(bootstrap, database) as server:
        sent = event()
        answer = server.post(OWN, encoded(sent), usable(server))
        assert answer.json["position"].startswith("own.events/")
        assert [value for _, value, _ in server.records("own.events")] == [encoded(sent)]


@pytest.mark.parametrize(("path", "status"), [(OWN, 200), (OPENMETER, 204), (V3, 202)])
def test_each_event_of_a_posted_batch_goes_to_the_topic_of_its_type(
    bootstrap: str, database: str, path: str, status: int
) -> None:
    one, other = (f"{name}.{uuid4().hex}" for name in ("takes.all", "takes.gpu"))
    administrator = AdminClient({"bootstrap.servers": bootstrap})
    for created in administrator.create_topics([NewTopic(name, 1, 1) for name in (one, other)]).values():
        created.result(30)
    start_ingestion(database, events=[{"topic": one}, {"topic": other, "types": ["gpu.v1"]}])
    with serving(bootstrap, database) as server:
        key = usable(server)
        # Of no contract, so that both are valid.
        sent = [event(type=kind) for kind in ("gpu.v1", "other.v1", "gpu.v1")]
        answer = server.post(path, encoded(sent), key)
        assert answer.status == status
        if path == OWN:
            assert sorted(answer.json["position"].split(",")) == sorted([f"{one}/0/0", f"{other}/0/1"])
        assert [value for _, value, _ in server.records(one)] == [encoded(sent[1])]
        assert [value for _, value, _ in server.records(other)] == [encoded(sent[0]), encoded(sent[2])]


def test_without_a_broker_no_event_is_acknowledged(database: str) -> None:
    start_ingestion(database)
    with serving(f"{LOOPBACK}:{free_ports(1)[0]}", database) as server:
        answer = server.post(OWN, encoded(event()), usable(server))
        refused(answer, 503, "Kafka", "send the same request again")
        assert int(answer.headers["retry-after"]) > 0


def test_events_are_refused_on_every_route_while_ingestion_is_too_far_behind(bootstrap: str, database: str) -> None:
    start_ingestion(database)
    with serving(bootstrap, database) as server, psycopg.connect(database, autocommit=True) as administrator:

        def report(state: str, seconds_ago: int, **progress: Any) -> None:
            administrator.execute(
                "UPDATE jobs SET state = %s, updated_at = clock_timestamp(), progress = %s || jsonb_build_object("
                "'frontier', clock_timestamp() - make_interval(secs => %s)) WHERE job = 'ingestion'",
                [state, Jsonb(progress), seconds_ago],
            )

        def post(path: str = OWN) -> Answer:
            return server.post(path, encoded(event()), key)

        key = usable(server)
        report("stopped", MAX_LAG_SECONDS - 30)
        time.sleep(2 * READ_EVERY_SECONDS)
        assert post().status == 200
        report("stopped", MAX_LAG_SECONDS + 1)
        wait_until(lambda: post().status == 429, "the lag being known", 60, every_seconds=0.2)
        written, began = len(server.records()), int(time.time())
        for path in (OWN, OPENMETER, V3):
            refused(answer := post(path), 429, "behind", "send the same request again")
            assert answer.headers["retry-after"] == "60"
            assert answer.headers["x-ratelimit-limit"] == str(MAX_LAG_SECONDS)
            assert answer.headers["x-ratelimit-remaining"] == "0"
            assert int(answer.headers["x-ratelimit-reset"]) >= began + 60
        assert server.post(OWN, encoded(event()), None).status == 401
        assert len(server.records()) == written
        report("running", MAX_LAG_SECONDS + 1, records_behind=0)
        wait_until(lambda: post().status == 200, "ingestion being up to date", 60, every_seconds=0.2)


def test_while_the_database_is_unavailable_cached_keys_are_valid(server: Server, postgres_url: str) -> None:
    key = usable(server)
    name = server.database.rsplit("/", 1)[1].partition("?")[0]
    with psycopg.connect(postgres_url, autocommit=True) as administrator:
        administrator.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        administrator.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
        try:
            time.sleep(5)
            assert server.post(OWN, encoded(event()), key).status == 200
        finally:
            administrator.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")


@pytest.mark.parametrize(("answer", "is_live"), [("none", True), ("rows", True), ("refusal", False)])
def test_a_server_that_the_database_refuses_is_started_again_as_another_start_reads_another_secret(
    bootstrap: str, database: str, answer: str, *, is_live: bool
) -> None:
    """One that cannot reach the database waits; one that may not sign in would wait for ever with its old password."""
    place = urlsplit(database)
    old = place._replace(netloc=f"{place.username}:old@{place.netloc.rpartition('@')[2]}").geturl()
    urls = {"none": "postgresql://weir@127.0.0.1:1/weir", "rows": database, "refusal": old}
    services = services_of({KAFKA_VARIABLE: bootstrap, POSTGRES_VARIABLE: urls[answer]}, "test")

    async def answers() -> tuple[int, int]:
        transport = httpx.ASGITransport(app=application(services))
        async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
            assert (await client.get(LIVE)).status_code == 200, "nobody has refused it yet"
            await services.database.read()
            return (await client.get(LIVE)).status_code, (await client.get(READY)).status_code

    try:
        assert asyncio.run(answers()) == (200 if is_live else 503, 503)
    finally:
        services.database.close()
        services.producer.close()


def test_a_client_that_sends_no_request_is_disconnected_and_delays_no_other(server: Server) -> None:
    started = time.monotonic()
    silent = [socket.create_connection((LOOPBACK, server.port), timeout=60) for _ in range(200)]
    try:
        silent[0].sendall(b"POST /v1/events HTTP/1.1\r\nHost: a\r\nX-Slow: ")
        assert server.request("GET", "/health/live", None, {}).status == 200
        assert [each.recv(1) for each in silent] == [b""] * len(silent)
    finally:
        for each in silent:
            each.close()
    assert time.monotonic() - started >= REQUEST_WITHIN_SECONDS - 1


@pytest.mark.parametrize("count", [MAX_CONNECTIONS + 100, pytest.param(10_000, marks=pytest.mark.long)])
def test_a_client_is_answered_while_others_hold_connections_and_send_no_request(server: Server, count: int) -> None:
    key = usable(server)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, count + MAX_CONNECTIONS + 1_000)), hard))
    slow = []
    try:
        for number in range(count):
            slow.append(socket.create_connection((LOOPBACK, server.port), timeout=60))
            with suppress(ConnectionError):
                slow[-1].sendall(b"POST /v1/events HTTP/1.1\r\nHost: a\r\nX-Slow: ")
            if number % 500 == 0:
                assert server.post(OWN, encoded(event()), key).status == 200
        assert server.post(OWN, encoded(event()), key).status == 200
        assert len(server.connections) <= MAX_CONNECTIONS + 1
    finally:
        for each in slow:
            each.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_body_of_a_gigabyte_is_refused_and_delays_no_other(server: Server) -> None:
    key = usable(server)
    with socket.create_connection((LOOPBACK, server.port), timeout=60) as client:
        head = f"POST {OWN} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {1 << 30}\r\n\r\n".encode())
        part = b" " * (1 << 20)
        with suppress(ConnectionError):  # it may be closed before all of it was sent
            for number in range(1 << 10):
                client.sendall(part)
                if number == MAX_BODY_BYTES >> 20:
                    assert client.recv(64).startswith(b"HTTP/1.1 413"), "answered before the rest is sent"
                if number % 256 == 0:
                    assert server.post(OWN, encoded(event()), key).status == 200
    assert server.post(OWN, encoded(event()), key).status == 200


def test_a_megabyte_of_headers_is_refused(server: Server) -> None:
    with socket.create_connection((LOOPBACK, server.port), timeout=30) as client:
        try:
            client.sendall(b"POST /v1/events HTTP/1.1\r\nHost: a\r\n" + b"X-Flood: " + b"x" * (1 << 20))
            assert client.recv(64).startswith(b"HTTP/1.1 400")
        except ConnectionError:
            pass  # it was closed while the rest was sent
    assert server.request("GET", "/health/live", None, {}).status == 200


def test_the_secret_of_a_key_is_in_no_answer_and_no_table(server: Server) -> None:
    made = key_store.create(server.database, [Scope.INGEST], "test", note="a note")
    listed = json.dumps(key_store.listed(server.database), default=str)
    assert made.id in listed
    assert made.key.rsplit("_", 1)[1] not in listed


def test_a_configuration_that_this_release_cannot_use_ends_no_reading(database: str) -> None:
    def fails(_: Mapping[str, Any]) -> None:
        raise KeyError("a part that a later release names otherwise")

    async def keys() -> tuple[bool, bool]:
        poll = DatabasePoll(database, MachineClock(), fails)
        made = key_store.create(database, [Scope.INGEST], "test")
        reading = asyncio.create_task(poll.keep_reading())
        try:
            async with asyncio.timeout(60):
                while poll.key(made.key) is None:
                    await asyncio.sleep(0.1)
                key_store.revoke(database, made.id, "test")
                while poll.key(made.key) is not None and not reading.done():
                    await asyncio.sleep(0.1)
            return poll.key(made.key) is None, reading.done()
        finally:
            reading.cancel()
            poll.close()

    start_ingestion(database)
    assert asyncio.run(keys()) == (True, False)


def test_a_session_on_which_the_database_is_silent_is_given_up_so_that_keys_go_on_being_read(
    bootstrap: str, database: str
) -> None:
    start_ingestion(database)
    with serving(bootstrap, database) as server, psycopg.connect(database, autocommit=True) as administrator:
        key = usable(server)
        find = "SELECT pid FROM pg_stat_activity WHERE application_name = 'weir-api' AND datname = current_database()"
        (frozen,) = (pid for (pid,) in administrator.execute(find))
        os.kill(frozen, signal.SIGSTOP)
        try:
            key_store.revoke(database, key.split("_")[1], "test")
            wait_until(lambda: server.post(OWN, b"", key).status == 401, "the revocation", 60, every_seconds=0.2)
            assert {pid for (pid,) in administrator.execute(find)} - {frozen}, "it reads on another session"
        finally:
            os.kill(frozen, signal.SIGCONT)
