"""Whoever waits for the validator: in turn, and only as long as somebody wants to know."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from api import validation
from api.validation import Validator, Verdict


def test_what_nobody_waits_for_any_more_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[bytes] = []

    def verdicts(documents: Sequence[bytes], _: Any) -> list[Verdict]:
        judged.extend(documents)
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
    assert judged == [b"0", b"2"]
