"""At least once, in order for each account and endpoint, however the receiver fails and the senders are killed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from standardwebhooks.webhooks import Webhook

from deployment.errors import CannotRun
from deployment.stack import POSTGRES_VARIABLE
from jobs.runtime.clock import MachineClock
from tests.rules.test_webhook_signing import verify_asymmetric
from tests.webhooks.receiver import Answer, Call, Receiver
from tests.webhooks.sending import add_endpoint, hold, next_due_at, now_clock, rows, run, send_all, states
from webhooks.__main__ import ALLOW_PRIVATE_VARIABLE
from webhooks.changing import Change, change
from webhooks.delivering import Delivering
from webhooks.endpoints import deliveries, enable, listed, resend, rotate
from webhooks.kinds import Kind
from webhooks.mail import Mailer
from webhooks.outbox import MAX_EVENTS, SILENT_SECONDS, Due, Lane, Outbox
from webhooks.outcomes import Attempt, State, outcome
from webhooks.posting import Poster
from webhooks.sender import LOOK_SECONDS, MAX_OF_RECEIVER, MAX_REST_SECONDS, MAX_RUNNING, Sender, send_until
from webhooks.signing import Signature

HOUR = timedelta(hours=1)


def lsn_of(call: Call) -> int:
    return int(call.data["straggler"].partition("/")[0])


def first_order(taken: list[Call]) -> dict[str, list[int]]:
    """By account: the events in the order in which each was first applied."""
    order: dict[str, dict[int, None]] = defaultdict(dict)
    for call in taken:
        order[call.data["account"]].setdefault(lsn_of(call))
    return {account: list(lsns) for account, lsns in order.items()}


def expected(accounts: list[str]) -> dict[str, list[int]]:
    order: dict[str, list[int]] = defaultdict(list)
    for lsn, account in enumerate(accounts, start=1):
        order[account].append(lsn)
    return dict(order)


def moody(chance: random.Random, elsewhere: str) -> Any:
    """A receiver that answers well half of the time, and otherwise as receivers do; it never fails ten times."""
    failures: dict[str, int] = defaultdict(int)
    bad = [
        Answer(500, takes=False),
        Answer(500, takes=True),  # applied, and failed afterwards: the event comes again
        Answer(None, takes=True),  # died after the commit
        Answer(None, takes=False),
        Answer(429, takes=False, headers={"retry-after": "30"}),
        Answer(302, takes=False, headers={"location": elsewhere}),
        Answer(204, delay_seconds=0.005),
    ]

    def answer(call: Call) -> Answer:
        failures[call.id] += 1
        return Answer() if failures[call.id] >= 9 or chance.random() < 0.5 else chance.choice(bad)

    return answer


@pytest.mark.parametrize(
    ("count", "accounts", "seed"),
    [(300, 7, 1), pytest.param(10_000, 50, 2, marks=[pytest.mark.long, pytest.mark.timeout(1_800)])],
)
def test_each_event_is_delivered_in_order_by_a_receiver_that_fails_delays_dies_and_redirects_and_none_to_a_private_one(
    database: str, count: int, accounts: int, seed: int
) -> None:
    chance = random.Random(seed)
    of = [f"account-{chance.randrange(accounts)}" for _ in range(count)]
    elsewhere = Receiver()

    async def deliver() -> None:
        async with elsewhere.serving():
            receiver = Receiver(moody(chance, elsewhere.url))
            async with receiver.serving():
                secret = add_endpoint(database, receiver.url).verifies_with
                private = f"https://localhost:{elsewhere.port}/hook"
                add_endpoint(database, private, accounts=["account-0"])
                hold(database, of)
                open_to_all, strict = Poster(allows_private=True), Poster(allows_private=False)

                async def post(url: str, body: bytes, headers: Any) -> Attempt:
                    return await (strict if url == private else open_to_all).post(url, body, headers)

                await send_all(database, now_clock(), post, seed=seed)
                await open_to_all.close()
                await strict.close()
        assert first_order(receiver.taken) == expected(of)
        assert len({call.id for call in receiver.calls}) == count
        assert len({(call.id, call.body) for call in receiver.calls}) == count, "each attempt posts the same bytes"
        for call in receiver.calls:
            # The reference verifier refuses timestamps that are hours away, as the clock of this test is.
            signed = Webhook(secret).sign(call.id, _timestamp(call), call.body.decode())
            assert call.headers["webhook-signature"] == signed
        assert len(receiver.calls) > count * 1.2, "the receiver was moody"

    run(deliver)
    assert elsewhere.connections == 0, "no redirect is followed, and no private address is connected to"
    assert states(database) == {"delivered": count, "dead": of.count("account-0")}


def _timestamp(call: Call) -> datetime:
    return datetime.fromtimestamp(int(call.headers["webhook-timestamp"]), UTC)


def test_a_call_is_taken_by_the_reference_verifier_also_during_a_rotation(database: str) -> None:
    receiver = Receiver()

    async def deliver() -> None:
        async with receiver.serving():
            old = add_endpoint(database, receiver.url)
            asymmetric = add_endpoint(database, receiver.url, signature=Signature.V1A)
            new = rotate(database, old.endpoint, "ada", HOUR)
            hold(database, ["acme"])
            await send_all(database, now_clock())
        symmetric, public = sorted(receiver.calls, key=lambda call: "v1a," in call.headers["webhook-signature"])
        for secret in (old.verifies_with, new.verifies_with):
            assert Webhook(secret).verify(symmetric.body, symmetric.headers)["type"] == "weir.straggler.held"
        assert symmetric.headers["webhook-signature"].count("v1,") == 2
        verify_asymmetric(asymmetric.verifies_with, public.headers, public.body)

    run(deliver)


def test_after_the_overlap_only_the_new_secret_signs(database: str) -> None:
    receiver = Receiver()

    async def deliver() -> None:
        async with receiver.serving():
            old = add_endpoint(database, receiver.url)
            new = rotate(database, old.endpoint, "ada", timedelta(0))
            hold(database, ["acme"])
            await send_all(database, now_clock())
        assert receiver.calls[0].headers["webhook-signature"].count(",") == 1
        assert Webhook(new.verifies_with).verify(receiver.calls[0].body, receiver.calls[0].headers)

    run(deliver)


def test_a_delivery_that_fails_holds_later_ones_of_its_account_and_endpoint_and_no_others(database: str) -> None:
    receiver = Receiver(lambda call: Answer(500, takes=False) if call.data["account"] == "acme" else Answer())
    healthy = Receiver()

    async def deliver() -> None:
        async with receiver.serving(), healthy.serving():
            add_endpoint(database, receiver.url)
            add_endpoint(database, healthy.url)
            hold(database, ["acme", "acme", "globex"])
            clock = now_clock()
            end = clock.now() + HOUR

            async def post(url: str, body: bytes, headers: Any) -> Attempt:
                if clock.now() > end:
                    raise TimeoutError("the hour is over")
                return await poster.post(url, body, headers)

            poster = Poster(allows_private=True)
            with pytest.raises(TimeoutError):
                await send_all(database, clock, post)
            await poster.close()

    run(deliver)
    assert {lsn_of(call) for call in receiver.calls if call.data["account"] == "acme"} == {1}
    assert first_order(receiver.taken) == {"globex": [3]}
    assert first_order(healthy.taken) == {"acme": [1, 2], "globex": [3]}


def test_an_event_of_which_a_receiver_dies_behind_its_gateway_does_not_stop_other_accounts_for_days(
    database: str,
) -> None:
    receiver = Receiver(lambda call: Answer(502, takes=False) if call.data["account"] == "acme" else Answer())
    clock = now_clock()
    waited: list[timedelta] = []

    async def deliver() -> None:
        poster = Poster(allows_private=True)
        last_lsn = 1

        async def post(url: str, body: bytes, headers: Any) -> Attempt:
            nonlocal last_lsn
            attempt = await poster.post(url, body, headers)
            if attempt.status == 502:
                # At the moment of each failure globex has something new.
                last_lsn += 1
                await asyncio.to_thread(hold, database, ["globex"], last_lsn)
                due_at[last_lsn] = clock.now()
            else:
                waited.append(clock.now() - due_at[lsn_of(Call("", {}, body))])
            return attempt

        due_at: dict[int, Any] = {}
        async with receiver.serving():
            add_endpoint(database, receiver.url)
            hold(database, ["acme"])
            await send_all(database, clock, post)
        await poster.close()

    run(deliver)
    assert states(database) == {"delivered": 10, "dead": 1}
    assert max(waited) < timedelta(minutes=6)


def test_after_ten_attempts_a_delivery_is_dead_the_next_is_sent_and_the_dead_can_be_sent_again(database: str) -> None:
    broken = {1}
    receiver = Receiver(lambda call: Answer(500, takes=False) if lsn_of(call) in broken else Answer())

    async def deliver() -> None:
        async with receiver.serving():
            endpoint = add_endpoint(database, receiver.url).endpoint
            hold(database, ["acme", "acme"])
            await send_all(database, now_clock())
            assert [lsn_of(call) for call in receiver.calls] == [1] * 10 + [2]
            (dead,) = await asyncio.to_thread(lambda: list(deliveries(database, endpoint, State.DEAD)))
            assert (dead["attempts"], dead["last_status"], dead["type"]) == (10, 500, "weir.straggler.held")
            broken.clear()
            assert await asyncio.to_thread(resend, database, endpoint, [], dead=True) == 1
            await send_all(database, now_clock())
        assert [lsn_of(call) for call in receiver.taken] == [2, 1]
        assert len({call.id for call in receiver.calls}) == 2, "sent again with the same id"

    run(deliver)
    assert states(database) == {"delivered": 2}
    assert rows(database, "SELECT count(*)::int FROM webhook_attempts") == [(12,)], "each attempt is in the log"


def test_gone_disables_the_endpoint_until_a_person_enables_it_and_nothing_that_waited_is_lost(database: str) -> None:
    gone = Receiver(lambda _: Answer(410, takes=False))

    async def deliver() -> None:
        async with gone.serving():
            endpoint = add_endpoint(database, gone.url).endpoint
            hold(database, ["acme", "acme", "globex"])
            await send_all(database, now_clock())
            assert 1 <= len(gone.calls) <= 2, "one for each account that was under way"
            (row,) = await asyncio.to_thread(listed, database)
            assert (row["state"], row["waiting"]) == ("disabled", 3)
            assert "410" in row["disabled_reason"]
            gone.answers = lambda _: Answer()
            assert await asyncio.to_thread(enable, database, endpoint, "ada") == 3
            await send_all(database, now_clock())
        assert first_order(gone.taken) == {"acme": [1, 2], "globex": [3]}

    run(deliver)


@pytest.mark.parametrize("status", [410, 503])
def test_what_the_host_answers_that_an_endpoint_has_left_neither_disables_nor_pauses_it(
    database: str, status: int
) -> None:
    old, new = "https://old.example.com/hook", "https://new.example.com/hook"
    endpoint = add_endpoint(database, old).endpoint
    hold(database, ["acme"])
    called: list[str] = []

    async def post(url: str, _body: bytes, _headers: Mapping[str, str]) -> Attempt:
        called.append(url)
        if url == new:
            return Attempt(200)
        await asyncio.to_thread(change, database, endpoint, "ada", Change(url=new))
        return Attempt(status)

    run(partial(send_all, database, now_clock(), post))
    assert called == [old, new]
    [row] = listed(database)
    assert (row["state"], row["paused_until"], states(database)) == ("enabled", None, {"delivered": 1})


@pytest.mark.parametrize("status", [500, 503])
def test_a_clock_that_was_a_year_ahead_for_a_moment_holds_no_delivery_for_a_year(database: str, status: int) -> None:
    clock = now_clock()

    async def deliver() -> None:
        add_endpoint(database, "https://example.com/")
        hold(database, ["acme"])
        outbox = await Outbox.connect(database)
        assert not await outbox.queue()
        ahead = clock.now() + timedelta(days=365)
        (lane,) = await outbox.due_lanes(ahead, 1)
        due = await outbox.head(lane, ahead)
        assert due is not None
        attempt = Attempt(status)
        await outbox.record(due, attempt, outcome(attempt, 1, ahead, lambda: 0.0), ahead, timedelta(0))
        assert await outbox.due_lanes(clock.now(), 1) == [lane]
        due = await outbox.head(lane, clock.now())
        assert due is not None
        # A failure by the right clock is tried again by the right clock.
        await outbox.record(due, attempt, outcome(attempt, 2, clock.now(), lambda: 0.0), clock.now(), timedelta(0))
        assert await outbox.due_lanes(clock.now(), 1) == []
        assert await outbox.due_lanes(clock.now() + timedelta(minutes=6), 1) == [lane]
        await outbox.close()

    run(deliver)


def test_a_mail_server_that_hangs_holds_up_no_webhook_however_many_addresses_it_has(database: str) -> None:
    hanging = asyncio.Event()
    delivered: list[int] = []

    async def deliver(due: Due, at: datetime) -> Attempt:
        del at
        if due.lane.kind is Kind.MAIL:
            await hanging.wait()
        delivered.append(due.number)
        return Attempt(204)

    async def send() -> None:
        clock, outbox = now_clock(), await Outbox.connect(database)
        for number in range(MAX_RUNNING // MAX_OF_RECEIVER):
            add_endpoint(database, f"ops-{number}@example.com", kind=Kind.MAIL)
        hold(database, [f"account-{number}" for number in range(MAX_OF_RECEIVER)])
        sender = Sender(outbox, deliver, clock)
        await sender.step()
        await asyncio.to_thread(add_endpoint, database, "https://example.com/")
        await asyncio.to_thread(hold, database, ["acme"], first_lsn=1_000)
        for _ in range(3):
            clock.go(LOOK_SECONDS + MAX_REST_SECONDS)
            await sender.step()
        assert len(delivered) == 1
        await sender.stop()
        await outbox.close()

    run(send)


def test_a_sender_that_looks_slowly_because_much_waits_looks_less_often() -> None:
    clock = now_clock()
    looks: list[float] = []

    class Slow(Outbox):
        def __init__(self) -> None:
            """Without a session: nothing is ever due."""

        async def queue(self, max_events: int = MAX_EVENTS) -> bool:
            del max_events
            return False

        async def due_lanes(self, now: datetime, per_endpoint: int) -> list[Lane]:
            del now, per_endpoint
            looks.append(clock.monotonic())
            clock.go(0.5)
            return []

    async def look() -> None:
        poster = Poster(allows_private=True)
        sender = Sender(Slow(), Delivering(poster.post, poster.post_to_slack, Mailer(None).send), clock)
        while clock.monotonic() < 100:
            assert not await sender.step()
            clock.go(LOOK_SECONDS)

    run(look)
    assert 10 <= len(looks) <= 20


def test_a_sender_rests_no_longer_than_its_session_may_be_silent() -> None:
    assert MAX_REST_SECONDS < SILENT_SECONDS / 2


def test_a_second_process_sends_nothing_while_the_first_has_the_lease_and_takes_it_when_that_ends(
    database: str,
) -> None:
    async def take() -> None:
        first, second = await Outbox.connect(database), await Outbox.connect(database)
        assert (await first.take_lease(), await second.take_lease()) == (True, False)
        await first.close()
        while not await second.take_lease():
            await asyncio.sleep(0.01)
        await second.close()

    run(take)


def test_a_sender_that_is_frozen_or_whose_machine_is_gone_loses_the_lease(database: str) -> None:
    async def take() -> None:
        second = await Outbox.connect(database)
        first = await Outbox.connect(database, silent_seconds=3)
        assert await first.take_lease()
        async with asyncio.timeout(60):
            while not await second.take_lease():
                await asyncio.sleep(0.01)
        with pytest.raises(psycopg.OperationalError):
            await first.due_lanes(datetime.now(UTC), 1)
        await first.close()
        await second.close()

    run(take)


def test_whoever_lost_its_session_can_neither_read_what_is_due_nor_store_what_became_of_it(database: str) -> None:
    async def lose() -> None:
        outbox = await Outbox.connect(database)
        assert await outbox.take_lease()
        await asyncio.to_thread(_end_sessions, database)
        with pytest.raises(psycopg.OperationalError):
            await outbox.due_lanes(datetime.now(UTC), 1)
        with pytest.raises(psycopg.OperationalError):
            await outbox.queue()

    run(lose)


def _end_sessions(database: str) -> None:
    rows(
        database,
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'weir webhooks'",
    )


def _sessions(database: str) -> int:
    """How many senders are connected."""
    (count,) = rows(
        database,
        "SELECT count(*)::int FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'weir webhooks'",
    )[0]
    return int(count)


@pytest.mark.timeout(180)
def test_two_senders_that_are_killed_again_and_again_deliver_each_event_in_order(database: str) -> None:
    chance = random.Random(5)
    of = [f"account-{chance.randrange(5)}" for _ in range(200)]
    receiver = Receiver(lambda _: Answer(delay_seconds=0.002))
    environment = {**os.environ, POSTGRES_VARIABLE: database, ALLOW_PRIVATE_VARIABLE: "true"}

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "webhooks"]
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    async def deliver() -> None:
        senders = [start(), start()]
        try:
            async with receiver.serving():
                add_endpoint(database, receiver.url)
                await asyncio.to_thread(hold, database, of)
                for kill in range(4):
                    reached = len(receiver.calls) + 25
                    while len(receiver.calls) < reached and next_due_at(database) is not None:
                        await asyncio.sleep(0.01)
                    # Whichever of them sends: one after the other is killed, and one takes its place.
                    victim = senders[kill % 2]
                    victim.send_signal(signal.SIGKILL)
                    await asyncio.to_thread(victim.wait)
                    while await asyncio.to_thread(_sessions, database) > 1:
                        await asyncio.sleep(0.01)
                    senders[kill % 2] = start()
                    if kill == 2:
                        await asyncio.to_thread(_end_sessions, database)
                while await asyncio.to_thread(next_due_at, database) is not None:
                    await asyncio.sleep(0.05)
                # Who has no session yet may still be starting, and would end by the signal.
                while await asyncio.to_thread(_sessions, database) < 2:
                    await asyncio.sleep(0.05)
        finally:
            for sender in senders:
                sender.terminate()
            statuses = [await asyncio.to_thread(sender.wait) for sender in senders]
        assert statuses == [0, 0], "asked to stop, they end between two attempts"

    run(deliver)
    assert first_order(receiver.taken) == expected(of)
    assert states(database) == {"delivered": 200}


def test_a_sender_whose_login_is_refused_ends_as_another_start_may_have_another_password(database: str) -> None:
    """A database that does not answer is waited for."""
    place = urlsplit(database)
    refused = place._replace(netloc=f"{place.username}:old@{place.netloc.rpartition('@')[2]}").geturl()

    async def deliver(due: Due, at: datetime) -> Attempt:
        raise AssertionError((due, at))

    async def send(url: str, seconds: float) -> None:
        async with asyncio.timeout(seconds):
            await send_until(asyncio.Event(), url, deliver, MachineClock())

    with pytest.raises(CannotRun, match=r"refuses \(FATAL:  password authentication failed"):
        asyncio.run(send(refused, 60))
    with pytest.raises(TimeoutError):
        asyncio.run(send("postgresql://weir@127.0.0.1:1/weir", 2))
