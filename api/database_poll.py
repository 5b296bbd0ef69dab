"""Polls Postgres every two seconds: valid API keys, ingestion's configuration, and its lag."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
import structlog
from psycopg.rows import dict_row

from api.ingestion_lag import Report, Retention, lag_seconds, retention_in
from deployment.asking import NO_SCHEMA, first_line
from jobs.ingestion.event_topic_settings import ENDING
from jobs.queries.portal_invalidations import live_invalidations
from jobs.runtime.postgres.api_reader import BECOME
from jobs.runtime.postgres.session import Session
from jobs.runtime.postgres.unavailable import remedy
from metering.api_keys import ApiKey, RateLimits, Scope, id_of, scopes_of
from metering.instants import Clock
from metering.portal_invalidations import Invalidations, invalidations_of
from metering.portal_tokens import PREFIX, is_signed, may_make, token_of
from metering.vocabulary import Job

log = structlog.get_logger()

READ_EVERY_SECONDS = 2.0
"""A key that is revoked is refused, and a new one taken, within twice this."""
SILENT_AFTER_SECONDS = 3.0
"""A session on which the server says nothing for so long is given up for another one."""
STALE_AFTER_SECONDS = 300.0
"""Keys are valid as they were last read: while Postgres is unavailable nobody can revoke one. After this none is."""

_KEYS = """
SELECT key_id, secret_sha256, scopes, accounts, sources, expires_at, requests_per_second, events_per_minute
FROM api_keys WHERE revoked_at IS NULL
"""
# The ids of keys (`weir forget`) are not configured.
_CONFIG = "SELECT config - 'erasure_keys' AS config FROM jobs WHERE job = %s"
_REPORTS = """
SELECT job, state, progress, extract(epoch FROM clock_timestamp() - updated_at)::float8 AS age_seconds,
    clock_timestamp() AS now
FROM jobs
"""


@dataclass(frozen=True)
class _Read:
    """What one poll has found; without `config` ingestion was never started."""

    keys: Mapping[str, ApiKey]
    config: Mapping[str, Any] | None
    reports: Sequence[Report]
    invalidations: Invalidations | None
    ending: Collection[str]


class DatabasePoll:
    """What was read last. `on_config` gets ingestion's configuration each time that it was read, and `on_ending` the
    topics of events that it may be started without.
    """

    def __init__(
        self,
        postgres_url: str,
        clock: Clock,
        on_config: Callable[[Mapping[str, Any]], None],
        on_ending: Callable[[Collection[str]], None] = lambda _: None,
    ) -> None:
        self._postgres_url = postgres_url
        self._clock = clock
        self._on_config, self._on_ending = on_config, on_ending
        self._connection: psycopg.Connection[Any] | None = None
        self._keys: Mapping[str, ApiKey] = {}
        self._invalidations: Invalidations | None = Invalidations()
        self._read_at: float | None = None
        self._is_refused = False
        self.lag_seconds = 0.0
        """Of ingestion, as `ingestion_lag` has it."""
        self.retention = Retention()
        """As it was known last: an ingestion that starts reports it later."""

    @property
    def is_fresh(self) -> bool:
        """Whether it was read, and not too long ago."""
        return self._read_at is not None and self._clock.monotonic() - self._read_at < STALE_AFTER_SECONDS

    @property
    def is_locked_out(self) -> bool:
        """Whether the database refuses this login, and no request is taken for it any more.

        Waiting does not mend it: a process has the password of its start, and another start reads the Secret anew.
        """
        return self._is_refused and not self.is_fresh

    def key(self, text: str) -> ApiKey | None:
        """The key or the portal token that this text is; None for one that is not valid."""
        if text.startswith(PREFIX):
            return self._token(text)
        found = self._keys.get(id_of(text) or "")
        return found if found is not None and found.proves(text) and not found.is_expired(self._now()) else None

    def holds(self, key: ApiKey) -> bool:
        """Whether a key is still valid as it was: not revoked, not expired, of the same scopes and accounts."""
        if not self.is_fresh or key.is_expired(self._now()):
            return False
        if key.issuer is not None:
            return True
        if key.made_by is None:
            return self._keys.get(key.id) == key
        [account] = key.accounts
        is_ended = self._is_ended(account, key.token_id, key.generation)
        return not is_ended and self._maker(key.made_by, account) is not None

    def _token(self, text: str) -> ApiKey | None:
        """What a portal token stands for; None for one that is not valid, or whose key is not."""
        token = token_of(text)
        maker = self._maker(token.key_id, token.account) if token is not None else None
        if token is None or maker is None or not is_signed(text, maker) or token.expires_at <= self._now():
            return None
        return None if self._is_ended(token.account, token.id, token.generation) else token.reading(maker)

    def _is_ended(self, account: str, token_id: str, generation: int) -> bool:
        """Whether a token was invalidated, or may have been."""
        return self._invalidations is None or self._invalidations.ends(account, token_id, generation)

    def _maker(self, key_id: str, account: str) -> ApiKey | None:
        """The valid key of an id, if it may make tokens for an account."""
        found = self._keys.get(key_id)
        is_maker = found is not None and not found.is_expired(self._now()) and may_make(found, account)
        return found if is_maker else None

    def _now(self) -> datetime:
        return self._clock.now()

    async def keep_reading(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Until cancelled."""
        while True:
            await self.read()
            await sleep(READ_EVERY_SECONDS)

    async def read(self) -> None:
        """Read once; what cannot be read stays as it was before."""
        try:
            found = await asyncio.to_thread(self._read)
            self._keys, self._invalidations = found.keys, found.invalidations
            self._read_at = self._clock.monotonic()
            self._on_ending(found.ending)
            if found.config is not None:
                self._on_config(found.config)
            self.lag_seconds = lag_seconds(found.reports)
            self.retention = retention_in(found.reports) or self.retention
        except NO_SCHEMA as error:
            log.warning("the database has the schema of another version", reason=first_line(error))
        except psycopg.Error as error:
            log.warning("the database does not answer", reason=first_line(error))
        except Exception as error:  # noqa: BLE001 -- a poll that ended would let revoked keys in, and later nobody
            log.error("ingestion's configuration cannot be read", reason=f"{type(error).__name__}: {error}")

    def _read(self) -> _Read:
        try:
            if self._connection is None:
                self._connection = Session.to(
                    self._postgres_url, "weir-api", silent_after_seconds=SILENT_AFTER_SECONDS, row_factory=dict_row
                )
            keys = {row["key_id"]: _key(row) for row in self._connection.execute(_KEYS)}
            # Before the configuration: a topic has ended only when one without it is stored.
            ending = _ending(self._connection)
            row = self._connection.execute(_CONFIG, [Job.INGESTION.value]).fetchone()
            reports = [Report(**report) for report in self._connection.execute(_REPORTS)]
            makes_tokens = any(Scope.PORTAL in key.scopes for key in keys.values())
            invalidations = _invalidations(self._connection) if makes_tokens else Invalidations()
        except psycopg.Error as error:
            self.close()
            self._is_refused = remedy(error) is not None
            raise
        self._is_refused = False
        return _Read(keys, row["config"] if row is not None else None, reports, invalidations, ending)

    def close(self) -> None:
        """End the session."""
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
        self._connection = None


def _invalidations(connection: psycopg.Connection[Any]) -> Invalidations | None:
    """As the role that writes them: an API with a login of its own has no other rights to the table.

    None where it lacks this right: then nobody may read with a token, as it may be one that was invalidated.
    """
    try:
        with connection.transaction():
            connection.execute(BECOME)
            connection.execute("SELECT set_config('weir.accounts', '*', true)")
            return invalidations_of(live_invalidations(connection))
    except (psycopg.errors.InvalidParameterValue, psycopg.errors.InsufficientPrivilege) as error:
        log.warning("portal tokens are refused: invalidated ones cannot be told apart", reason=first_line(error))
        return None


def _ending(connection: psycopg.Connection[Any]) -> Collection[str]:
    """Topics that `weir topics remove` has ended, while ingestion was not started without them."""
    try:
        with connection.transaction():
            return [row["topic"] for row in connection.execute(ENDING)]
    except psycopg.errors.InsufficientPrivilege:
        # A login that was made for an earlier release; then it is for people to stop what writes to such a topic.
        return ()


def _key(row: Mapping[str, Any]) -> ApiKey:
    return ApiKey(
        row["key_id"],
        bytes(row["secret_sha256"]),
        scopes_of(row["scopes"]),
        frozenset(row["accounts"]),
        tuple(row["sources"]),
        row["expires_at"],
        RateLimits(row["requests_per_second"], row["events_per_minute"]),
    )
