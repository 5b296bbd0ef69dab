"""Changes of usage windows reach whoever follows them: of its accounts, each after the other, also after a break."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]

from api import key_store
from api.database_poll import READ_EVERY_SECONDS
from api.window_stream import CHECK_SECONDS, HEARTBEAT_SECONDS, MAX_STREAMS_OF_A_KEY
from laptop.ports import LOOPBACK
from metering.api_keys import Scope
from tests.api.following import PATH, following, publish
from tests.api.serving import Answer, Server, serving, start_ingestion
from tests.api.test_asking import get, reads
from tests.api.test_events_in import refused
from tests.conftest import fresh_database
from tests.waiting import wait_until

SECONDS = 60


@pytest.fixture(scope="module")
def reading(bootstrap: str, postgres_url: str) -> Iterator[Server]:
    with fresh_database(postgres_url) as database:
        start_ingestion(database)
        with serving(bootstrap, database) as running:
            yield running


@pytest.fixture
def account() -> str:
    return f"a-{uuid4().hex}"


def test_a_client_is_sent_the_changes_of_its_accounts_and_no_other_ones(reading: Server, account: str) -> None:
    other = f"{account}-other"
    with following(reading, reads(reading, account)) as mine, following(reading, reads(reading)) as all_accounts:
        assert mine.answer.headers["content-type"].startswith("text/event-stream")
        publish(reading.bootstrap, other, range(3))
        publish(reading.bootstrap, account, range(3))
        all_accounts.wait_for(6)
        mine.wait_for(3)
        time.sleep(0.5)
        assert {event["subject"] for event in mine.events} == {account}
        assert {event["type"] for event in mine.events} == {"weir.window.v1"}
        assert sorted(mine.versions()) == [0, 1, 2]
        assert {event["subject"] for event in all_accounts.events} == {account, other}


def test_a_client_chooses_among_its_accounts(reading: Server, account: str) -> None:
    key = reads(reading, account, f"{account}-2")
    with following(reading, key, query=f"?account={account}-2") as follower:
        publish(reading.bootstrap, account, [1])
        publish(reading.bootstrap, f"{account}-2", [2])
        follower.wait_for(1)
        assert follower.versions() == [2]
    refused(get(reading, PATH, key, account="globex"), 403, "globex")
    refused(get(reading, PATH, key, model="m1"), 400, "model")
    refused(get(reading, PATH, reads(reading, scopes=(Scope.INGEST,))), 403, "read")


@pytest.mark.parametrize("is_another_server", [False, True], ids=["same_server", "another_server"])
def test_a_stream_goes_on_where_it_ended_without_a_gap_or_a_repeat(
    reading: Server, bootstrap: str, account: str, is_another_server: bool
) -> None:
    """Another server has only what came since it began in memory: it reads the rest in Kafka."""
    key = reads(reading, account)
    with following(reading, key) as before:
        publish(bootstrap, account, range(40))
        before.wait_for(40)
    publish(bootstrap, account, range(40, 5_000))
    with ExitStack() as stack:
        server = stack.enter_context(serving(bootstrap, reading.database)) if is_another_server else reading
        if is_another_server:
            # Another client has it read from now on.
            stack.enter_context(following(server, reads(server, "nobody")))
        after = stack.enter_context(following(server, key, before.last_id))
        publish(bootstrap, account, range(5_000, 5_100))
        after.wait_for(5_060)
        time.sleep(0.5)
        assert sorted(after.versions()) == list(range(40, 5_100))
        assert after.resets == 0


def test_a_position_of_another_topic_is_answered_with_a_reset(reading: Server, account: str) -> None:
    key = reads(reading, account)
    for number, last in enumerate(("Wm9yZy1wb3Jr/0:12", "no position", "/")):
        with following(reading, key, last) as follower:
            assert follower.resets == 1
            publish(reading.bootstrap, account, [number])
            follower.wait_for(1)
            assert follower.versions() == [number]


def test_a_position_beyond_the_end_of_the_topic_is_answered_with_a_reset(reading: Server, account: str) -> None:
    """As after a broker that lost the end of the log: what is written there next would be skipped."""
    key = reads(reading, account)
    with following(reading, key) as before:
        publish(reading.bootstrap, account, [1])
        before.wait_for(1)
    topic, _, positions = before.last_id.rpartition("/")
    beyond = ",".join(f"{part.partition(':')[0]}:{int(part.partition(':')[2]) + 50}" for part in positions.split(","))
    with following(reading, key, f"{topic}/{beyond}") as follower:
        assert follower.resets == 1
        publish(reading.bootstrap, account, [2])
        follower.wait_for(1)
        assert follower.versions() == [2]
    with following(reading, key, before.last_id) as follower:
        follower.wait_for(1)
        assert (follower.resets, follower.versions()) == (0, [2])


def test_a_stream_ends_within_five_seconds_of_the_revocation_of_its_key(reading: Server, account: str) -> None:
    made = key_store.create(reading.database, (Scope.READ,), "test", accounts=(account,))
    wait_until(lambda: get(reading, "/v1/usage", made.key).status != 401, "the key", SECONDS, every_seconds=0.1)
    with following(reading, made.key) as follower, following(reading, reads(reading, account)) as other:
        key_store.revoke(reading.database, made.id, "test")
        assert READ_EVERY_SECONDS + CHECK_SECONDS < 5
        assert follower.ended.wait(HEARTBEAT_SECONDS - 1), "a stream looks more often than it gives a sign of life"
        publish(reading.bootstrap, account, [1])
        other.wait_for(1)
        assert other.versions() == [1]
        assert follower.events == []


def test_a_client_that_does_not_read_keeps_no_other_waiting_and_goes_on_where_it_was(
    reading: Server, account: str
) -> None:
    """More is published than the server has in memory: whoever comes back reads the rest in Kafka."""
    key, changes = reads(reading, account), 2_000
    with socket.create_connection((LOOPBACK, reading.port)) as slow, following(reading, key) as fast:
        slow.sendall(f"GET {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n".encode())
        assert slow.recv(12) == b"HTTP/1.1 200"
        begun_at = fast.last_id
        publish(reading.bootstrap, account, range(changes), pad=4_000)
        fast.wait_for(changes)
        assert get(reading, "/v1/usage", key).status == 200
    with following(reading, key, begun_at) as back:
        publish(reading.bootstrap, account, [changes])
        back.wait_for(changes + 1)
        assert sorted(back.versions()) == list(range(changes + 1))


def test_a_client_that_does_not_read_is_disconnected_with_what_was_left_for_it(
    bootstrap: str, database: str, account: str
) -> None:
    start_ingestion(database)
    with serving(bootstrap, database) as server, socket.socket() as slow:
        key = reads(server, account)
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        slow.connect((LOOPBACK, server.port))
        slow.sendall(f"GET {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n".encode())
        assert slow.recv(12) == b"HTTP/1.1 200"
        assert len(server.connections) == 1
        publish(bootstrap, account, range(1_000), pad=4_000)
        wait_until(lambda: not server.connections, "the end of its connection", 2 * SECONDS)


def test_a_key_has_no_more_streams_than_it_may_and_a_stream_that_ended_counts_no_more(
    reading: Server, account: str
) -> None:
    key = reads(reading, account)
    with ExitStack() as stack:
        open_streams = [stack.enter_context(following(reading, key)) for _ in range(MAX_STREAMS_OF_A_KEY)]
        assert all(each.answer.status == 200 for each in open_streams)
        with following(reading, key) as further:
            assert further.answer.status == 429
            assert int(further.answer.headers["retry-after"]) > 0
        with following(reading, reads(reading, account)) as other:
            assert other.answer.status == 200

    def can_follow() -> bool:
        with following(reading, key) as again:
            return again.answer.status == 200

    wait_until(can_follow, "a stream for the key", SECONDS, every_seconds=0.1)


def test_a_stream_ends_with_its_server(bootstrap: str, database: str, account: str) -> None:
    start_ingestion(database)
    with ExitStack() as stack:
        # Within 20 seconds the server would end what does not end by itself.
        with serving(bootstrap, database, ends_within_seconds=3_600) as server:
            follower = stack.enter_context(following(server, reads(server, account)))
        assert follower.ended.wait(SECONDS)


def test_what_is_only_asked_for_by_head_is_no_stream(reading: Server, account: str) -> None:
    answer: Answer = reading.request("HEAD", PATH, None, {"Authorization": f"Bearer {reads(reading, account)}"})
    assert (answer.status, answer.body) == (200, b"")


def test_a_partition_that_is_added_is_followed_and_a_stream_goes_on_in_it(reading: Server, account: str) -> None:
    key = reads(reading, account)
    with following(reading, key) as before:
        added = add_partition(reading.bootstrap)
        publish(reading.bootstrap, account, range(3), partition=added)
        before.wait_for(3)
        assert before.versions() == [0, 1, 2]
    publish(reading.bootstrap, account, range(3, 6), partition=added)
    with following(reading, key, before.last_id) as after:
        after.wait_for(3)
        assert after.versions() == [3, 4, 5]


def test_a_server_that_does_not_know_a_partition_yet_repeats_nothing_of_it(reading: Server, account: str) -> None:
    key = reads(reading, account)
    with following(reading, key) as follower:
        begun_at = follower.last_id
        added = add_partition(reading.bootstrap)
        publish(reading.bootstrap, account, range(3), partition=added)
        with following(reading, key, f"{begun_at},{added}:2") as ahead:
            ahead.wait_for(1)
            follower.wait_for(3)
            assert ahead.versions() == [2]


def add_partition(bootstrap: str) -> int:
    """One more to the topic; gives its number once the broker knows it."""
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def count() -> int:
        return len(admin.list_topics("windows", timeout=10).topics["windows"].partitions)

    added = count()
    admin.create_partitions([NewPartitions("windows", added + 1)])["windows"].result()
    wait_until(lambda: count() > added, "the partition", SECONDS, every_seconds=0.1)
    return added


@pytest.mark.few_in_ci(0)
@pytest.mark.parametrize("seconds", [60])
def test_a_stream_without_changes_has_heartbeats_with_its_position(reading: Server, account: str, seconds: int) -> None:
    with following(reading, reads(reading, account)) as follower:
        first = follower.last_id
        publish(reading.bootstrap, f"{account}-other", [1])
        wait_until(lambda: follower.heartbeats > 0, "a heartbeat", seconds, every_seconds=0.1)
        assert follower.events == []
        assert follower.last_id != first
