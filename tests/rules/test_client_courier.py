"""The Python client without HTTP: what each answer means, and that no event is lost whatever comes after what."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import TIMEOUT_MAX
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir_client.answers import MAX_RETRY_AFTER_SECONDS, Later, Meaning, Refused, Rejection, Taken, TooMuch, meaning
from weir_client.async_client import AsyncClient
from weir_client.courier import FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS, Batch, Courier, Delivery
from weir_client.dead_file import DeadEvent, DeadFile
from weir_client.encoding import encoded
from weir_client.outbox import Outbox

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
PROBLEM = {"content-type": "application/problem+json"}
POISON, FORBIDDEN, INVALID = 7, 8, 9
"""Remainders of an event's number by ten: what fails every batch it is in, is refused by name, or is rejected."""


def answer(status: int, body: Any, headers: dict[str, str] | None = None, events: int = 3) -> Meaning:
    return meaning(status, headers or {}, json.dumps(body).encode(), events, NOW)


def test_events_are_taken_or_refused_as_the_answer_lists() -> None:
    rejected = [{"index": 1, "id": "x", "reason": "invalid_tokens", "path": "/data/input_tokens", "rule": "at least 0"}]
    found = answer(200, {"accepted": 2, "rejected": rejected, "position": "events/0/1"})
    assert found == Taken([Rejection(1, "invalid_tokens", "/data/input_tokens", "at least 0")])
    assert answer(200, {"accepted": 3, "rejected": [], "position": "events/0/1"}) == Taken([])


@pytest.mark.parametrize(
    "body",
    [
        {"accepted": 2, "rejected": []},
        {"accepted": 4, "rejected": []},
        {"accepted": 2, "rejected": [{"index": 3, "reason": "x"}]},
        {"accepted": 2, "rejected": [{"index": -1, "reason": "x"}]},
        {"accepted": 2, "rejected": [{}]},
        {"accepted": "3", "rejected": []},
        {"accepted": 3, "rejected": None},
        {},
        [],
        "welcome to the hotel",
    ],
)
def test_a_200_that_omits_events_is_not_an_acknowledgement(body: Any) -> None:
    found = answer(200, body)
    assert isinstance(found, Later)
    assert not found.is_unwritten


@given(st.integers(100, 599), st.binary(max_size=200), st.sampled_from(["", "text/html", PROBLEM["content-type"]]))
def test_only_an_answer_of_weir_removes_an_event_from_the_outbox(status: int, body: bytes, kind: str) -> None:
    found = meaning(status, {"content-type": kind}, body, 3, NOW)
    assert isinstance(found, Later) or (isinstance(found, TooMuch) and status in (400, 413))


def test_events_that_the_key_may_not_send_are_named_and_a_key_without_the_scope_names_none() -> None:
    invalid = [{"field": "/2", "rule": "forbidden", "source": "body", "reason": "not for its subject"}]
    assert answer(403, {"detail": "…", "invalid_parameters": invalid}, PROBLEM) == Refused(
        [Rejection(2, "forbidden", None, "not for its subject")]
    )
    assert answer(403, {"detail": "has not the scope ingest"}, PROBLEM) == Later("403: has not the scope ingest", True)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("7", 7.0), ("Sat, 28 Nov 2026 12:00:30 GMT", 30.0), ("Sat, 28 Nov 2026 11:00:00 GMT", 0.0), ("soon", None)],
)
def test_retry_after_is_seconds_or_a_date(text: str, seconds: float | None) -> None:
    found = answer(429, {"detail": "x"}, PROBLEM | {"retry-after": text})
    assert found == Later("429: x", True, seconds)


@pytest.mark.parametrize("text", ["99999999999", "9" * 400, "Fri, 28 Nov 9000 12:00:00 GMT"])
def test_no_retry_after_ends_the_thread_or_keeps_it_waiting_for_years(text: str) -> None:
    found = answer(503, {}, {"retry-after": text})
    assert isinstance(found, Later)
    assert found.retry_after_seconds == MAX_RETRY_AFTER_SECONDS < TIMEOUT_MAX


def courier(folder: Path, delivery: Delivery = Delivery.AT_LEAST_ONCE, jitter: float = 0.5) -> tuple[Courier, Outbox]:
    outbox = Outbox(folder / "outbox")
    return Courier(outbox, DeadFile(folder / "dead"), delivery, lambda: jitter), outbox


def batch_of(found: Courier) -> Batch:
    batch = found.next_batch()
    assert batch is not None
    return batch


@given(st.floats(0, 1), st.integers(0, 3_000), st.integers(0, 12))
def test_the_client_waits_as_long_as_the_api_asks(jitter: float, retry_after: int, failures: int) -> None:
    with TemporaryDirectory() as folder:
        found, outbox = courier(Path(folder), jitter=jitter)
        outbox.append([b"{}"])
        batch = batch_of(found)
        for _ in range(failures):
            delay = found.answered(batch, Later("x", True))
            assert FIRST_DELAY_SECONDS / 2 <= delay <= MAX_DELAY_SECONDS
        delay = found.answered(batch, Later("x", True, retry_after))
        assert retry_after <= delay <= retry_after + MAX_DELAY_SECONDS
        outbox.close()


def test_delays_grow_and_restart_sequences_after_a_success(tmp_path: Path) -> None:
    found, outbox = courier(tmp_path, jitter=1.0)
    outbox.append([b"{}"])
    batch = batch_of(found)
    assert [found.answered(batch, Later("x", True)) for _ in range(4)] == [0.5, 1.0, 2.0, 4.0]
    assert found.answered(batch, Taken([])) == 0.0
    outbox.append([b"{}"])
    assert found.answered(batch_of(found), Later("x", True)) == 0.5


def numbered(batch: Batch) -> list[int]:
    return [int(body) for body in batch.bodies]


def meaning_of(numbers: list[int], taken: list[int]) -> Meaning:
    """An API that takes events by their remainder, as the real one takes them by what they are."""
    if any(number % 10 == POISON for number in numbers):
        return TooMuch("too large")
    if forbidden := [index for index, number in enumerate(numbers) if number % 10 == FORBIDDEN]:
        return Refused([Rejection(index, "forbidden") for index in forbidden])
    invalid = [index for index, number in enumerate(numbers) if number % 10 == INVALID]
    taken += [number for number in numbers if number % 10 != INVALID]
    return Taken([Rejection(index, "invalid") for index in invalid])


STEPS = st.lists(st.sampled_from(["answer", "answer", "lost", "unsent", "append", "killed", "killed between"]))


def run(folder: Path, delivery: Delivery, steps: list[str]) -> tuple[list[int], list[int], int]:
    """Events that the API has, those in the dead file, and how many were sent in all: after everything was settled."""
    taken: list[int] = []
    found, outbox = courier(folder, delivery)
    appended = 0

    def begin_again() -> None:
        nonlocal found, outbox
        outbox.close()
        found, outbox = courier(folder, delivery)

    def kill_before_the_answer(batch: Batch) -> None:
        meaning_of(numbered(batch), taken)
        begin_again()

    actions: dict[str, Callable[[Batch], object]] = {
        "answer": lambda batch: found.answered(batch, meaning_of(numbered(batch), taken)),
        "lost": lambda batch: (meaning_of(numbered(batch), taken), found.failed(batch, "lost", is_unwritten=False)),
        "unsent": lambda batch: found.failed(batch, "refused", is_unwritten=True),
        "killed": lambda _: begin_again(),
        "killed between": kill_before_the_answer,
    }
    for step in ["append", *steps]:
        if step == "append":
            outbox.append([b"%d" % number for number in range(appended, appended + 15)])
            appended += 15
        elif (batch := found.next_batch()) is not None:
            actions[step](batch)
    while (batch := found.next_batch()) is not None:
        actions["answer"](batch)
    assert len(outbox) == 0
    outbox.close()
    lines = (folder / "dead").read_text().splitlines() if (folder / "dead").exists() else []
    return taken, [json.loads(line)["event"] for line in lines], appended


def dead_of(numbers: range) -> set[int]:
    return {number for number in numbers if number % 10 in (POISON, FORBIDDEN, INVALID)}


@given(STEPS)
def test_every_event_is_delivered_or_written_to_the_dead_file(steps: list[str]) -> None:
    with TemporaryDirectory() as folder:
        taken, dead, appended = run(Path(folder), Delivery.AT_LEAST_ONCE, steps)
    numbers = range(appended)
    assert set(dead) == dead_of(numbers)
    assert set(taken) == set(numbers) - dead_of(numbers)
    if "lost" not in steps and "killed between" not in steps:
        assert Counter(taken) == Counter(set(taken))


@given(STEPS)
def test_at_most_once_no_event_is_taken_twice(steps: list[str]) -> None:
    with TemporaryDirectory() as folder:
        taken, dead, appended = run(Path(folder), Delivery.AT_MOST_ONCE, steps)
    assert max(Counter(taken).values(), default=0) <= 1
    assert set(taken).isdisjoint(dead)
    if not {"lost", "killed", "killed between"} & set(steps):
        assert set(taken) | set(dead) == set(range(appended))


def test_an_event_is_complete_before_it_is_stored() -> None:
    (body,) = encoded([{"source": "s", "type": "t", "subject": "a", "data": {"x": "ä"}}])
    found = json.loads(body)
    assert found.keys() == {"specversion", "id", "time", "source", "type", "subject", "data"}
    assert datetime.fromisoformat(found["time"]).utcoffset() is not None


@pytest.mark.parametrize(
    "event", [{}, {"source": "s", "type": "t"}, {"source": "s", "type": "t", "subject": "a", "data": float("nan")}]
)
def test_what_is_no_event_is_refused_where_it_is_sent(event: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"lacks|JSON"):
        encoded([event])


def test_a_line_that_a_kill_cut_off_spoils_no_other_line_of_the_dead_file(tmp_path: Path) -> None:
    dead = DeadFile(tmp_path / "dead")
    bodies = encoded([{"source": "s", "type": "t", "subject": "a", "id": name} for name in ("1", "2", "3")])
    dead.append([DeadEvent(bodies[0], "x")], "2026-11-01T10:00:00Z")
    dead.append([DeadEvent(bodies[1], "x")], "2026-11-01T10:00:00Z")
    whole = dead.path.read_bytes()
    dead.path.write_bytes(whole[:-20])
    dead.append([DeadEvent(bodies[1], "x"), DeadEvent(bodies[2], "x")], "2026-11-01T10:01:00Z")
    lines = dead.path.read_text().splitlines()
    assert len(lines) == 4
    assert [json.loads(lines[place])["event"]["id"] for place in (0, 2, 3)] == ["1", "2", "3"]


@pytest.mark.parametrize("turns", range(4))
def test_closing_ends_at_whatever_moment_the_task_is_woken(
    turns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Python 3.12 `asyncio.wait_for` loses a cancellation that comes as what it waits for is done."""

    async def closes() -> bool:
        client = AsyncClient("http://127.0.0.1:1", "key", outbox=tmp_path / "outbox")
        await client.flush()
        await asyncio.sleep(0.1)

        async def woken(_timeout_seconds: float) -> None:
            client._wake.set()
            for _ in range(turns):
                await asyncio.sleep(0)

        monkeypatch.setattr(client, "flush", woken)
        closing = asyncio.create_task(client.close())
        done, _ = await asyncio.wait({closing}, timeout=60)
        closing.cancel()
        return bool(done)

    assert asyncio.run(closes())
