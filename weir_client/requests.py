"""The request that both clients make."""

from __future__ import annotations

from datetime import UTC, datetime

import httpx

from weir_client.answers import Meaning, meaning

TIMEOUT = httpx.Timeout(30.0, connect=10.0)
"""The API answers within 10 s once it has a batch, and takes 15 s to receive one."""
PATH = "/v1/events"
UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
"""Then the API has seen nothing."""


def headers(key: str) -> dict[str, str]:
    """Of every request. Raises ValueError for what is no key."""
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError("the key must be an API key such as weir_…, as `weir keys create` prints it")
    return {"Authorization": f"Bearer {key}", "Content-Type": "application/cloudevents-batch+json"}


def address(url: str) -> str:
    """Where events are posted. Raises ValueError for what is no address."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL()
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError("the address must be one such as https://events.example.com")
    return url.rstrip("/") + PATH


def reason(error: Exception) -> str:
    """In a few words, without the address, which may hold a password."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def meaning_of(answer: httpx.Response, events: int) -> Meaning:
    """What an answer to so many events means."""
    return meaning(answer.status_code, answer.headers, answer.content, events, datetime.now(UTC))
