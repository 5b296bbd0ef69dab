"""A receiver whose name is not answered takes nothing from the others."""

from __future__ import annotations

import asyncio
import socket
from threading import Event
from typing import Any

import pytest

from tests.webhooks.receiver import Receiver
from webhooks.__main__ import look_up_in_own_threads
from webhooks.posting import Poster
from webhooks.sender import MAX_OF_RECEIVER


def test_names_that_no_server_answers_do_not_hold_the_calls_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    healthy, released, real = Receiver(), Event(), socket.getaddrinfo

    def getaddrinfo(host: str, *more: Any, **named: Any) -> Any:
        if host == "silent.example":
            released.wait()
            raise socket.gaierror("no answer")
        return real(host, *more, **named)

    async def call() -> None:
        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        look_up_in_own_threads()
        poster = Poster(allows_private=True)
        async with healthy.serving():
            silent = [
                asyncio.create_task(poster.post("http://silent.example/", b"{}", {})) for _ in range(MAX_OF_RECEIVER)
            ]
            try:
                await asyncio.sleep(0)
                assert (await poster.post(healthy.url, b"{}", {})).status == 204
            finally:
                released.set()
                await asyncio.gather(*silent)
        await poster.close()

    asyncio.run(call())
