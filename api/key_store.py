"""API keys in Postgres: made, listed, rotated and revoked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg.rows import dict_row

from deployment.asking import asking_database
from deployment.attribution import attribute
from deployment.errors import CannotRun
from metering.api_keys import DEFAULT_LIMITS, RateLimits, Scope, digest_of, new_key

COLUMNS = (
    *("id", "scopes", "accounts", "sources", "note", "state", "created_by", "created_at", "expires_at"),
    *("revoked_by", "revoked_at", "requests_per_second", "events_per_minute"),
)
_LIST = """
SELECT key_id AS id, scopes, accounts, sources, note,
       CASE WHEN revoked_at IS NOT NULL THEN 'revoked' WHEN expires_at <= clock_timestamp() THEN 'expired' ELSE 'valid'
       END AS state,
       created_by, created_at, expires_at, revoked_by, revoked_at, requests_per_second, events_per_minute
FROM api_keys ORDER BY created_at, key_id
"""
_INSERT = """
INSERT INTO api_keys (key_id, secret_sha256, scopes, accounts, sources, note, created_by, expires_at,
    requests_per_second, events_per_minute)
VALUES (%(id)s, %(digest)s, %(scopes)s, %(accounts)s, %(sources)s, %(note)s, %(by)s, %(expires_at)s,
    %(requests_per_second)s, %(events_per_minute)s)
"""
_VALID = "revoked_at IS NULL AND (expires_at IS NULL OR expires_at > clock_timestamp())"
_REVOKE = f"UPDATE api_keys SET revoked_by = %s, revoked_at = clock_timestamp() WHERE key_id = %s AND {_VALID}"
_READ = f"""
SELECT scopes, accounts, sources, note, expires_at, requests_per_second, events_per_minute
FROM api_keys WHERE key_id = %s AND {_VALID} FOR UPDATE
"""
_LIMIT = f"UPDATE api_keys SET requests_per_second = %s, events_per_minute = %s WHERE key_id = %s AND {_VALID}"
_SHORTEN = """
UPDATE api_keys SET expires_at = least(expires_at, clock_timestamp() + %s) WHERE key_id = %s
"""


@dataclass(frozen=True)
class NewKey:
    """A key that was just made; `key` is nowhere else."""

    id: str
    key: str
    scopes: Sequence[str]
    accounts: Sequence[str]
    sources: Sequence[str]
    expires_at: datetime | None
    limits: RateLimits


def create(
    postgres_url: str,
    scopes: Sequence[Scope],
    by: str,
    *,
    accounts: Sequence[str] = (),
    sources: Sequence[str] = (),
    note: str | None = None,
    expires_at: datetime | None = None,
    limits: RateLimits = DEFAULT_LIMITS,
) -> NewKey:
    """Make a key for these accounts and patterns of sources; none means all. Raises CannotRun."""
    with _connected(postgres_url) as database:
        given = {"accounts": list(accounts), "sources": list(sources), "note": note, "expires_at": expires_at}
        given |= asdict(limits)
        return _made(database, [scope.value for scope in scopes], by, given)


def rotate(postgres_url: str, key_id: str, by: str, overlap: timedelta) -> NewKey:
    """Make a key that may do what `key_id` may, which holds for `overlap` more. Raises CannotRun without it."""
    with _connected(postgres_url) as database:
        row = database.execute(_READ, [key_id]).fetchone()
        if row is None:
            raise _unknown(key_id)
        made = _made(database, row.pop("scopes"), by, row)
        # No column of the key that ends says who shortened it.
        attribute(database, by)
        database.execute(_SHORTEN, [overlap, key_id])
        return made


def limit(postgres_url: str, key_id: str, by: str, limits: RateLimits) -> None:
    """Give a key other rate limits. Raises CannotRun if there is no valid one."""
    with _connected(postgres_url) as database:
        attribute(database, by)
        values = [limits.requests_per_second, limits.events_per_minute, key_id]
        if database.execute(_LIMIT, values).rowcount == 0:
            raise _unknown(key_id)


def revoke(postgres_url: str, key_id: str, by: str) -> None:
    """End a key. Raises CannotRun if there is no valid one."""
    with _connected(postgres_url) as database:
        if database.execute(_REVOKE, [by, key_id]).rowcount == 0:
            raise _unknown(key_id)


def listed(postgres_url: str) -> list[dict[str, Any]]:
    """All keys with the keys COLUMNS, the oldest first, without what opens anything. Raises CannotRun."""
    with _connected(postgres_url) as database:
        return database.execute(_LIST).fetchall()


def _made(
    database: psycopg.Connection[dict[str, Any]], scopes: Sequence[str], by: str, given: dict[str, Any]
) -> NewKey:
    key_id, key = new_key()
    values = {**given, "id": key_id, "digest": digest_of(key), "scopes": list(scopes), "by": by}
    database.execute(_INSERT, values)
    limits = RateLimits(given["requests_per_second"], given["events_per_minute"])
    return NewKey(key_id, key, scopes, given["accounts"], given["sources"], given["expires_at"], limits)


def _unknown(key_id: str) -> CannotRun:
    return CannotRun(f"There is no valid key {key_id}: `weir keys list` shows all.")


@contextmanager
def _connected(postgres_url: str) -> Iterator[psycopg.Connection[dict[str, Any]]]:
    with asking_database(postgres_url), psycopg.connect(postgres_url, row_factory=dict_row) as database:
        yield database
