"""What the API logs of a request on which it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import structlog
from starlette.requests import Request

from api.app import _failed
from jobs.logs import log_for_people
from metering.api_keys import new_key


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    configured = structlog.get_config()
    yield
    structlog.configure(**configured)


def test_a_traceback_in_the_log_holds_no_key(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    log_for_people()
    _, key = new_key()

    def fail() -> None:
        headers = {"authorization": f"Bearer {key}"}
        raise TypeError(len(headers))

    async def failed() -> int:
        try:
            fail()
        except TypeError as error:
            return (await _failed(Request({"type": "http", "path": "/", "headers": []}), error)).status_code
        return 0

    assert asyncio.run(failed()) == 500
    logged = capsys.readouterr().out
    assert ("TypeError" in logged, key[:20] in logged) == (True, False)
