"""API keys: `weir_<id>_<secret>`. The id finds the key, the secret proves it; only SHA-256 of the whole is stored.

A secret has 256 random bits, so a fast hash is enough: there is nothing to guess from a dictionary.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from hashlib import sha256

_KEY = re.compile(r"weir_([0-9a-f]{12})_([0-9a-f]{64})")


class Scope(StrEnum):
    """What a key may be used for."""

    INGEST = "ingest"
    """Send events."""
    READ = "read"
    """Ask for usage and bills."""
    PORTAL = "portal"
    """Make tokens with which customers read their own usage."""
    WEBHOOKS = "webhooks"
    """Choose where events are sent: add, change and remove endpoints of webhooks."""


@dataclass(frozen=True)
class RateLimits:
    """How much one server takes with a key. 0: no limit; None: what the server has as its default."""

    requests_per_second: int | None = None
    events_per_minute: int | None = None

    def or_default(self, default: RateLimits) -> RateLimits:
        """These limits, and the default's where there is none."""
        return RateLimits(
            default.requests_per_second if self.requests_per_second is None else self.requests_per_second,
            default.events_per_minute if self.events_per_minute is None else self.events_per_minute,
        )


DEFAULT_LIMITS = RateLimits()


@dataclass(frozen=True)
class ApiKey:
    """A stored key. `accounts`: whose events it may send, and whose usage it may read; empty: of any account.

    `sources`: patterns of whose events it may send, likewise.
    """

    id: str
    digest: bytes
    scopes: frozenset[Scope]
    accounts: frozenset[str] = frozenset()
    sources: tuple[str, ...] = ()
    expires_at: datetime | None = None
    limits: RateLimits = DEFAULT_LIMITS
    made_by: str | None = None
    """Of a portal token: the key that made it."""
    issuer: str | None = None
    """Of a bearer token: the identity provider that signed it. It is stored nowhere, and holds until it expires."""
    meters: frozenset[str] = frozenset()
    """Of a portal token: the only meters that it may read; empty: all, and bills."""
    token_id: str = ""
    generation: int = 0
    """Of a portal token, by which it is invalidated (`metering.portal_invalidations`)."""

    def proves(self, key: str) -> bool:
        """Whether `key` equals this one, compared in constant time."""
        return hmac.compare_digest(self.digest, digest_of(key))

    def is_expired(self, now: datetime) -> bool:
        """Whether it has expired; revoked keys are not read at all."""
        return self.expires_at is not None and self.expires_at <= now


def new_key() -> tuple[str, str]:
    """The id of a new key, and the key, which is shown once."""
    key_id = secrets.token_hex(6)
    return key_id, f"weir_{key_id}_{secrets.token_hex(32)}"


def digest_of(key: str) -> bytes:
    """What is stored of a key: SHA-256, 32 bytes."""
    return sha256(key.encode("utf-8", "replace")).digest()


def id_of(key: str) -> str | None:
    """The id in a key; None for what has not the form of one."""
    found = _KEY.fullmatch(key)
    return found[1] if found else None


def scopes_of(names: Iterable[str]) -> frozenset[Scope]:
    """Stored scopes, without those that a newer release has added."""
    known = set(Scope)
    return frozenset(Scope(name) for name in names if name in known)
