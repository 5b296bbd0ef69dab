"""Whoever waits for the validator: in turn, and only as long as somebody wants to know."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock as Double

import pytest
from starlette.requests import Request as Asked

from api import validation
from api.body_budget import BodyBudget
from api.events import Services, validated_events
from api.problems import Problem
from api.validation import Validator, Verdict
from jobs.runtime.clock import MachineClock
from metering.api_keys import ApiKey


def test_cancelled_requests_are_not_validated(monkeypatch: pytest.MonkeyPatch) -> None:
    validated: list[bytes] = []

    def verdicts(documents: Sequence[bytes], _: Any) -> list[Verdict]:
        validated.extend(documents)
        return [Verdict(None, None, None) for _ in documents]

    async def ask() -> None:
        validator = Validator()
        validator.use({})
        tasks = [asyncio.create_task(validator.verdicts([b"%d" % number])) for number in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(found[1], asyncio.CancelledError)

    monkeypatch.setattr(validation, "_verdicts", verdicts)
    asyncio.run(ask())
    assert validated == [b"0", b"2"]


def calls(monkeypatch: pytest.MonkeyPatch, events_per_request: int) -> list[int]:
    """The events of each call of a validator: a first request, one that comes meanwhile, and one that comes as soon as
    the first is answered, before any pause is over.
    """
    sizes: list[int] = []
    second_waits, third_waits = threading.Event(), asyncio.Event()

    def verdicts(documents: Sequence[bytes], _: Any) -> list[Verdict]:
        sizes.append(len(documents))
        assert second_waits.wait(60)
        return [Verdict(None, None, None) for _ in documents]

    async def pause(seconds: float) -> None:
        assert 0 < seconds <= validation.MAX_PAUSE_SECONDS
        await third_waits.wait()

    async def post() -> None:
        validator = Validator()
        validator.use({})
        documents = [b"{}"] * events_per_request
        first = asyncio.create_task(validator.verdicts(documents))
        while not sizes:
            await asyncio.sleep(0.001)
        second = asyncio.create_task(validator.verdicts(documents))
        await asyncio.sleep(0)
        second_waits.set()
        await first
        third = asyncio.create_task(validator.verdicts(documents))
        await asyncio.sleep(0)
        third_waits.set()
        await asyncio.gather(second, third)

    monkeypatch.setattr(validation, "_verdicts", verdicts)
    monkeypatch.setattr(validation, "asyncio", SimpleNamespace(**(vars(asyncio) | {"sleep": pause})))
    asyncio.run(post())
    return sizes


def test_few_events_that_come_one_after_another_are_validated_together(monkeypatch: pytest.MonkeyPatch) -> None:
    assert calls(monkeypatch, 1) == [1, 2]
    assert calls(monkeypatch, validation.FEW_EVENTS - 1) == [199, 2 * 199]


def test_many_events_are_validated_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    assert calls(monkeypatch, validation.FEW_EVENTS) == [200] * 3


class Request(Asked):
    """One event without a key's limits."""

    def __init__(self) -> None:
        super().__init__({"type": "http", "headers": [(b"content-type", b"application/json")]}, self._receive)

    async def _receive(self) -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}


def test_a_request_that_waits_too_long_for_the_validator_may_be_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    is_refused = threading.Event()

    async def ask() -> Problem:
        services = Services(Double(lag_seconds=0.0), Validator(), Double(), MachineClock())
        services.validator.use({})
        with pytest.raises(Problem) as refused:
            await validated_events(Request(), services, ApiKey("1", b"", frozenset()), lambda _: None)
        is_refused.set()
        return refused.value

    def slowly(_: Sequence[bytes], __: Any) -> list[Verdict]:
        assert is_refused.wait(60)
        return []

    monkeypatch.setattr(validation, "_verdicts", slowly)
    refused = asyncio.run(ask())
    assert (refused.status, "Retry-After" in refused.headers) == (503, True)


def test_a_server_limits_pending_bytes_and_frees_answered_ones() -> None:
    budget = BodyBudget(10)
    with budget.request() as one:
        one(6)
        with budget.request() as another:
            another(4)
            with pytest.raises(Problem) as refused:
                another(1)
        assert (refused.value.status, refused.value.headers["Retry-After"], budget.used_bytes) == (429, "2", 6)
        one(4)
    assert budget.used_bytes == 0
