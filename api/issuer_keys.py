"""The public keys of the identity provider, fetched now and then: bounded in size, in time, and in how often.

The provider is never asked while a request is answered: a token can make this server ask at most once in ten seconds.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any, NoReturn

import httpx
import structlog
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry, Key, KeySet

from api.bearer_tokens import BadToken, TokenIssuer, UnknownKeyError, refuse_unprotected
from api.problems import unavailable
from metering.api_keys import ApiKey
from metering.instants import Clock

log = structlog.get_logger()

FETCH_EVERY_SECONDS = 300.0
FETCH_AT_MOST_EVERY_SECONDS = 10.0
KEYS_HOLD_SECONDS = 3_600.0
"""A key that the provider has withdrawn is taken no longer than this, also while the provider does not answer."""
ANSWER_WITHIN_SECONDS = 5.0
MAX_ANSWER_BYTES = 256 << 10
MAX_KEYS = 100
MAX_MISSED = 1_000
"""Of how many tokens whose keys the provider had not published it is remembered when they came first."""


class IssuerKeys:
    """Verifies the tokens of one issuer."""

    def __init__(self, issuer: TokenIssuer, clock: Clock, max_missed: int = MAX_MISSED) -> None:
        self._issuer = issuer
        self._clock = clock
        self._keys: KeySet | None = None
        self._fetched_at: float | None = None
        self._tried_at: float | None = None
        self._wanted = asyncio.Event()
        self._missed: dict[bytes, float] = {}
        self._max_missed = max_missed

    def key(self, text: str) -> ApiKey:
        """What the bearer of a token may do.

        Raises BadToken; Problem (503) where the provider's keys are not there, or a newer one may be.
        """
        now = self._clock.monotonic()
        is_fresh = self._fetched_at is not None and now - self._fetched_at < KEYS_HOLD_SECONDS
        if self._keys is None or not is_fresh:
            raise unavailable("The identity provider that signs these tokens does not answer.")
        try:
            return self._issuer.key(text, self._keys, self._clock.now())
        except UnknownKeyError as error:
            self._refuse_unknown(text, now, error)

    def _refuse_unknown(self, text: str, now: float, error: UnknownKeyError) -> NoReturn:
        """Refused for good is only a token that was there before keys were fetched which lack its own: a key is
        published before it signs, but another token may have named it before that.
        """
        since = self._missed.setdefault(sha256(text.encode()).digest(), now)
        if len(self._missed) > self._max_missed:
            del self._missed[next(iter(self._missed))]
        seconds = self._seconds_to_next_fetch(now)
        if seconds > 0 and self._fetched_at != self._tried_at:
            raise unavailable("The identity provider may have this token's key, but does not answer.") from error
        if seconds > 0 and self._fetched_at is not None and since < self._fetched_at:
            raise BadToken("the provider has no such key") from error
        self._wanted.set()
        retry_after = max(1, math.ceil(seconds))
        raise unavailable("The key of this token is being fetched: send it again.", retry_after) from error

    def _seconds_to_next_fetch(self, now: float) -> float:
        return 0.0 if self._tried_at is None else max(0.0, self._tried_at + FETCH_AT_MOST_EVERY_SECONDS - now)

    async def keep_fetching(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Until cancelled."""
        while True:
            await self.fetch()
            self._wanted.clear()
            wait = FETCH_EVERY_SECONDS if self._fetched_at == self._tried_at else FETCH_AT_MOST_EVERY_SECONDS
            try:
                async with asyncio.timeout(wait):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            await sleep(self._seconds_to_next_fetch(self._clock.monotonic()))

    async def fetch(self) -> None:
        """Once; what cannot be fetched stays as it was before."""
        self._tried_at = self._clock.monotonic()
        try:
            # No address that an answer redirects to is asked.
            async with asyncio.timeout(ANSWER_WITHIN_SECONDS), httpx.AsyncClient(follow_redirects=False) as client:
                described = await _document(
                    client, f"{self._issuer.issuer.rstrip('/')}/.well-known/openid-configuration"
                )
                if described.get("issuer") != self._issuer.issuer:
                    raise ValueError(f"it calls itself {described.get('issuer')!r}")
                address = str(described.get("jwks_uri"))
                refuse_unprotected(address)
                found = await _document(client, address)
            self._keys = _public_keys(found)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError, RecursionError) as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            log.warning("the identity provider's keys cannot be fetched", issuer=self._issuer.issuer, reason=reason)
            return
        self._fetched_at = self._tried_at


async def _document(client: httpx.AsyncClient, address: str) -> dict[str, Any]:
    """The JSON object at an address. Raises ValueError and httpx.HTTPError."""
    async with client.stream("GET", address, headers={"Accept": "application/json"}) as answer:
        if answer.status_code != httpx.codes.OK:
            raise ValueError(f"{address} answers {answer.status_code}")
        body = b""
        async for part in answer.aiter_bytes(16 << 10):
            body += part
            if len(body) > MAX_ANSWER_BYTES:
                raise ValueError(f"{address} answers more than 256 KiB")
    found = json.loads(body)
    if not isinstance(found, dict):
        raise ValueError(f"{address} answers no JSON object")
    return found


def _public_keys(document: dict[str, Any]) -> KeySet:
    """The keys of a JWKS that verify signatures. Shared secrets are left out, and what cannot be used: a provider
    also publishes keys of other curves and purposes. Raises ValueError.
    """
    listed = document.get("keys")
    if not isinstance(listed, list) or len(listed) > MAX_KEYS:
        raise ValueError(f"the provider lists no keys, or more than {MAX_KEYS}")
    found = [usable for key in listed if (usable := _public_key(key)) is not None]
    if not found:
        raise ValueError("the provider lists no RSA or EC key")
    return KeySet(found)


def _public_key(listed: object) -> Key | None:
    if not isinstance(listed, dict) or listed.get("kty") not in ("RSA", "EC"):
        return None
    try:
        return JWKRegistry.import_key(listed)
    except (JoseError, ValueError, TypeError, LookupError) as error:
        log.warning("a key of the identity provider cannot be used", kid=str(listed.get("kid")), reason=repr(error))
        return None
