"""Endpoints and their deliveries in Postgres: added, listed, rotated, disabled, enabled, removed, sent again."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, LiteralString

import psycopg
from psycopg.rows import dict_row

from deployment.asking import asking_database
from deployment.attribution import attribute
from webhooks.endpoint_errors import IsDisabled, NoDelivery, SignsNothing, TooManyEndpoints, TooManySecrets, no_endpoint
from webhooks.event_types import EventType
from webhooks.kinds import Kind
from webhooks.outcomes import State
from webhooks.signing import Signature, kind_of, new_secret, receivers_part
from webhooks.slack import shown_url

COLUMNS = (
    *("endpoint", "kind", "url", "events", "accounts", "note", "state", "waiting", "waiting_since", "dead", "removed"),
    *("changed_by", "created_at", "disabled_at", "disabled_reason", "paused_until"),
)
DELIVERY_COLUMNS = (
    *("endpoint", "number", "event_id", "type", "account", "made_at", "state", "attempts", "next_attempt_at"),
    *("last_attempt_at", "last_status", "last_error"),
)
# Deliveries that the sender has not made yet.
_NOT_MADE = """
SELECT endpoint, number, account, 'waiting' AS state, 0 AS attempts, made_at AS next_attempt_at
FROM webhook_events CROSS JOIN unnest(endpoints) AS endpoint
WHERE number > (SELECT queued_to FROM webhook_position)
"""
ALL_DELIVERIES = f"""
SELECT endpoint, number, account, state, attempts, next_attempt_at FROM webhook_deliveries UNION ALL {_NOT_MADE}
"""
# Each part has an index of its own: what was delivered is not read.
_UNDELIVERED = f"""
SELECT endpoint, number, state FROM webhook_deliveries WHERE state = 'waiting' UNION ALL
SELECT endpoint, number, state FROM webhook_deliveries WHERE state = 'dead' UNION ALL
SELECT endpoint, number, state FROM ({_NOT_MADE}) AS not_made
"""
# In each part of the list: a customer's question does not read what waits for all others.
_IS_ASKED = "(%(endpoints)s::text[] IS NULL OR endpoint = ANY (%(endpoints)s))"
LIST = f"""
SELECT endpoint, kind, url, events, accounts, note,
       CASE WHEN disabled_at IS NULL THEN 'enabled' ELSE 'disabled' END AS state,
       coalesce(waiting, 0) AS waiting, waiting_since, coalesce(dead, 0) AS dead, coalesce(removed, 0) AS removed,
       changed_by, created_at, disabled_at, disabled_reason,
       CASE WHEN paused_until > clock_timestamp() THEN paused_until END AS paused_until
FROM webhook_endpoints LEFT JOIN (
    SELECT endpoint, count(*) FILTER (WHERE state = 'waiting') AS waiting,
           count(*) FILTER (WHERE state = 'dead') AS dead,
           min(made_at) FILTER (WHERE state = 'waiting') AS waiting_since
    FROM ({_UNDELIVERED}) AS d
    CROSS JOIN LATERAL (SELECT made_at FROM webhook_events AS e WHERE e.number = d.number OFFSET 0) AS event
    WHERE {_IS_ASKED} GROUP BY endpoint
) AS undelivered USING (endpoint) LEFT JOIN (
    SELECT endpoint, sum(deliveries)::bigint AS removed FROM webhook_removals
    WHERE state <> 'delivered' AND {_IS_ASKED} GROUP BY endpoint
) AS unsent USING (endpoint)
WHERE {_IS_ASKED}
ORDER BY created_at, endpoint
"""
_INSERT = """
INSERT INTO webhook_endpoints (endpoint, kind, url, events, accounts, note, changed_by)
VALUES (%(endpoint)s, %(kind)s, %(url)s, %(events)s, %(accounts)s, %(note)s, %(by)s)
"""
# Two that are added at once would not see each other.
_COUNT_ALONE = "SELECT pg_advisory_xact_lock(hashtextextended('weir webhook endpoints of ' || current_schema(), 0))"
_COUNT = """
SELECT count(*) AS count FROM webhook_endpoints WHERE accounts && %(accounts)s
"""
_INSERT_SECRET = "INSERT INTO webhook_secrets (endpoint, secret, created_by) VALUES (%s, %s, %s)"
_NEWEST_SECRET = """
SELECT secret FROM webhook_secrets WHERE endpoint = %s ORDER BY expires_at IS NULL DESC, created_at DESC LIMIT 1
"""
_EXPIRE = """
UPDATE webhook_secrets SET expires_at = least(expires_at, clock_timestamp() + %s) WHERE endpoint = %s
"""
_FORGET = "DELETE FROM webhook_secrets WHERE endpoint = %s AND expires_at <= clock_timestamp()"
_OF_ACCOUNTS = "SELECT endpoint FROM webhook_endpoints WHERE accounts <> '{}' AND accounts <@ %s::text[]"
_COUNT_SECRETS = "SELECT count(*) AS count FROM webhook_secrets WHERE endpoint = %s"
MAX_SECRETS = 20
"""That sign at once: each call has a signature of each, and receivers take headers of a few kilobytes."""
_ACCOUNTS = "SELECT accounts FROM webhook_endpoints WHERE endpoint = %s"
_KIND = "SELECT kind FROM webhook_endpoints WHERE endpoint = %s"
_IS_DISABLED = "SELECT disabled_at IS NOT NULL AS is_disabled FROM webhook_endpoints WHERE endpoint = %s"
# Not FOR UPDATE: the sender, which makes deliveries for the endpoint, keeps its key, and neither waits for the other.
_LOCK = f"{_IS_DISABLED} FOR NO KEY UPDATE"
# For the activity log as well: who changes a row again leaves its name as it is.
AUTHOR = "set_config('weir.changed_by', %(by)s, true)"
_DISABLE = f"""
UPDATE webhook_endpoints SET disabled_at = clock_timestamp(), disabled_reason = %(reason)s, changed_by = {AUTHOR}
WHERE endpoint = %(endpoint)s
"""
_ENABLE = f"""
UPDATE webhook_endpoints SET disabled_at = NULL, disabled_reason = NULL, paused_until = NULL, changed_by = {AUTHOR}
WHERE endpoint = %(endpoint)s
"""
_DUE_NOW = "next_attempt_at = now(), attempts = 0"
_ENABLED_SEND = f"UPDATE webhook_deliveries SET {_DUE_NOW} WHERE endpoint = %s AND state = 'waiting'"
_RESEND = f"""
UPDATE webhook_deliveries SET state = 'waiting', settled_at = NULL, {_DUE_NOW}
WHERE endpoint = %(endpoint)s AND (number = ANY (%(numbers)s) OR %(dead)s AND state = 'dead')
"""
_DELIVERIES = f"""
SELECT endpoint, number, event_id, type, d.account, made_at, state, d.attempts,
       CASE WHEN state = 'waiting' THEN next_attempt_at END AS next_attempt_at,
       last.attempted_at AS last_attempt_at, last.status AS last_status, last.error AS last_error
FROM ({ALL_DELIVERIES}) AS d JOIN webhook_events USING (number) LEFT JOIN LATERAL (
    SELECT attempted_at, status, error FROM webhook_attempts AS a
    WHERE (a.number, a.endpoint) = (d.number, d.endpoint) ORDER BY attempted_at DESC LIMIT 1
) AS last ON true
WHERE endpoint = %(endpoint)s AND (%(state)s::text IS NULL OR state = %(state)s)
  AND (%(before)s::bigint IS NULL OR number < %(before)s)
ORDER BY number DESC LIMIT %(page)s
"""
PAGE_ROWS = 1_000
_COUNT_NOT_MADE = f"SELECT count(*) AS count FROM ({_NOT_MADE}) AS not_made WHERE endpoint = %s"
# The sums of what goes are stored in the transaction in which it goes.
_SUMS = """
INSERT INTO webhook_removals
    (endpoint, state, cause, deliveries, first_number, last_number, first_made_at, last_made_at)
SELECT endpoint, state, 'endpoint', count(*), min(number), max(number), min(made_at), max(made_at)
FROM ({gone}) AS going JOIN webhook_events USING (number) GROUP BY endpoint, state
"""
_REMOVE_DELIVERIES = f"""
WITH gone AS (
    SELECT endpoint, number, state FROM webhook_deliveries WHERE endpoint = %(endpoint)s AND number > %(after)s
    ORDER BY number LIMIT %(page)s FOR UPDATE
), logged AS ({_SUMS.format(gone="SELECT * FROM gone")}), removed AS (
    DELETE FROM webhook_deliveries AS d USING gone WHERE (d.number, d.endpoint) = (gone.number, gone.endpoint)
    RETURNING d.number
)
SELECT max(number) AS last FROM removed
"""
_REMOVE_NOT_MADE = _SUMS.format(gone=f"SELECT * FROM ({_NOT_MADE}) AS not_made WHERE endpoint = %(endpoint)s")
_REMOVED = """
SELECT state, sum(deliveries)::bigint AS deliveries FROM webhook_removals
WHERE endpoint = %s AND cause = 'endpoint' GROUP BY state
"""


@dataclass(frozen=True)
class NewSecret:
    """An endpoint and what its receiver verifies calls with; an empty text where it verifies none."""

    endpoint: str
    verifies_with: str


def add(
    postgres_url: str,
    url: str,
    events: Sequence[EventType],
    by: str,
    *,
    accounts: Sequence[str] = (),
    note: str | None = None,
    signature: Signature = Signature.V1,
    kind: Kind = Kind.WEBHOOK,
    max_endpoints: int | None = None,
) -> NewSecret:
    """Store an endpoint, which is called about these events of these accounts; none means all.

    Raises CannotRun; TooManyEndpoints where these accounts have `max_endpoints` already.
    """
    endpoint, secret = f"we_{secrets.token_hex(6)}", new_secret(signature)
    if kind is Kind.SLACK:
        url, secret = shown_url(url), url
    values: dict[str, Any] = {"endpoint": endpoint, "kind": kind, "url": url, "accounts": list(accounts), "note": note}
    values |= {"events": [str(event) for event in events], "by": by}
    with connected(postgres_url) as database:
        if max_endpoints is not None:
            database.execute(_COUNT_ALONE)
            row = database.execute(_COUNT, values).fetchone()
            if row and row["count"] >= max_endpoints:
                raise TooManyEndpoints(f"There are {max_endpoints} endpoints already: remove one.")
        database.execute(_INSERT, values)
        if kind is not Kind.MAIL:
            database.execute(_INSERT_SECRET, [endpoint, secret, by])
    return NewSecret(endpoint, receivers_part(secret) if kind is Kind.WEBHOOK else "")


def listed(postgres_url: str, accounts: Collection[str] = ()) -> list[dict[str, Any]]:
    """All endpoints with the keys COLUMNS, the oldest first, without their secrets. Raises CannotRun.

    With `accounts` only those that get events of some of these alone.
    """
    with connected(postgres_url) as database:
        own = None
        if accounts:
            own = [row["endpoint"] for row in database.execute(_OF_ACCOUNTS, [list(accounts)]).fetchall()]
        return database.execute(LIST, {"endpoints": own}).fetchall()


def details(postgres_url: str, endpoint: str) -> dict[str, Any]:
    """One endpoint, as `listed` has it. Raises NoEndpoint and CannotRun."""
    with connected(postgres_url) as database:
        row = database.execute(LIST, {"endpoints": [endpoint]}).fetchone()
        if row is None:
            raise no_endpoint(endpoint)
        return row


def accounts_of(postgres_url: str, endpoint: str) -> list[str]:
    """Whose events an endpoint gets; none means all. They never change. Raises NoEndpoint and CannotRun."""
    with connected(postgres_url) as database:
        row = database.execute(_ACCOUNTS, [endpoint]).fetchone()
        if row is None:
            raise no_endpoint(endpoint)
        accounts: list[str] = row["accounts"]
        return accounts


def rotate(postgres_url: str, endpoint: str, by: str, overlap: timedelta) -> NewSecret:
    """Make a new secret; those before sign for `overlap` more, beside it.

    Raises CannotRun; TooManySecrets where MAX_SECRETS would sign already.
    """
    with connected(postgres_url) as database:
        _is_disabled(database, endpoint, _LOCK)
        if (found := database.execute(_KIND, [endpoint]).fetchone()) and found["kind"] != Kind.WEBHOOK:
            raise SignsNothing(f"{endpoint} signs nothing: add an endpoint with the new address, and remove this one.")
        row = database.execute(_NEWEST_SECRET, [endpoint]).fetchone()
        secret = new_secret(kind_of(row["secret"]) if row else Signature.V1)
        # For the activity log: no column of the secret that ends says who shortened it.
        attribute(database, by)
        database.execute(_EXPIRE, [overlap, endpoint])
        database.execute(_FORGET, [endpoint])
        if (row := database.execute(_COUNT_SECRETS, [endpoint]).fetchone()) and row["count"] >= MAX_SECRETS:
            raise TooManySecrets(f"{MAX_SECRETS} secrets of {endpoint} sign already: let them overlap for less time.")
        database.execute(_INSERT_SECRET, [endpoint, secret, by])
    return NewSecret(endpoint, receivers_part(secret))


def disable(postgres_url: str, endpoint: str, by: str, reason: str) -> None:
    """Stop calling an endpoint; what waits for it waits on, and nothing more is queued. Raises CannotRun."""
    with connected(postgres_url) as database:
        disable_within(database, endpoint, by, reason)


def disable_within(database: psycopg.Connection[dict[str, Any]], endpoint: str, by: str, reason: str) -> None:
    """`disable` as part of a transaction."""
    if _is_disabled(database, endpoint, _LOCK):
        raise IsDisabled(f"{endpoint} is disabled already.")
    database.execute(_DISABLE, {"reason": reason, "by": by, "endpoint": endpoint})


def enable(postgres_url: str, endpoint: str, by: str) -> int:
    """Call an endpoint again; returns how many deliveries wait, which are sent now. Raises CannotRun."""
    with connected(postgres_url) as database:
        return enable_within(database, endpoint, by)


def enable_within(database: psycopg.Connection[dict[str, Any]], endpoint: str, by: str) -> int:
    """`enable` as part of a transaction that has not locked the endpoint before."""
    _is_disabled(database, endpoint, _IS_DISABLED)
    # The deliveries first, as the sender locks them: it would wait for this, and this for it.
    waiting = database.execute(_ENABLED_SEND, [endpoint]).rowcount
    database.execute(_ENABLE, {"by": by, "endpoint": endpoint})
    row = database.execute(_COUNT_NOT_MADE, [endpoint]).fetchone()
    return waiting + (row["count"] if row else 0)


def resend(postgres_url: str, endpoint: str, numbers: Sequence[int], *, dead: bool = False) -> int:
    """Send deliveries again, by number or all dead ones; returns how many. Raises CannotRun for an unknown number."""
    with connected(postgres_url) as database:
        _is_disabled(database, endpoint, _IS_DISABLED)
        values = {"endpoint": endpoint, "numbers": list(numbers), "dead": dead}
        count = database.execute(_RESEND, values).rowcount
        if not dead and count < len(set(numbers)):
            raise NoDelivery(
                f"Not all of these were for {endpoint}: `weir webhooks deliveries {endpoint}` lists what was."
            )
        return count


def remove(postgres_url: str, endpoint: str, by: str) -> dict[State, int]:
    """Remove an endpoint with its secrets, deliveries and log; returns how many deliveries went, by state.

    Their sums stay in `webhook_removals`, and who removed it in the activity log. Raises CannotRun.
    """
    with connected(postgres_url, autocommit=True) as database:
        # First, and by itself: nothing more is made for it, and no attempt changes its row.
        if not _is_disabled(database, endpoint, _IS_DISABLED):
            database.execute(_DISABLE, {"reason": "it is removed", "by": by, "endpoint": endpoint})
        _remove_deliveries(database, endpoint)
        with database.transaction():
            _is_disabled(database, endpoint, f"{_IS_DISABLED} FOR UPDATE")
            # The sender may have made more.
            _remove_deliveries(database, endpoint)
            database.execute(_REMOVE_NOT_MADE, {"endpoint": endpoint})
            attribute(database, by)
            database.execute("DELETE FROM webhook_secrets WHERE endpoint = %s", [endpoint])
            database.execute("DELETE FROM webhook_endpoints WHERE endpoint = %s", [endpoint])
        found = database.execute(_REMOVED, [endpoint]).fetchall()
    removed = {row["state"]: row["deliveries"] for row in found}
    return {state: removed.get(state, 0) for state in State}


def _remove_deliveries(database: psycopg.Connection[dict[str, Any]], endpoint: str) -> None:
    after: int | None = 0
    while after is not None:
        row = database.execute(_REMOVE_DELIVERIES, {"endpoint": endpoint, "after": after, "page": PAGE_ROWS}).fetchone()
        after = row["last"] if row else None


def deliveries(
    postgres_url: str, endpoint: str, state: State | None, page_rows: int = PAGE_ROWS, before: int | None = None
) -> Iterator[dict[str, Any]]:
    """What was queued for an endpoint, the newest first, with the keys DELIVERY_COLUMNS. Raises CannotRun.

    `before`: only numbers below this one. Rows are read `page_rows` at a time, each page when it is needed, and no
    transaction is open between two.
    """
    with connected(postgres_url, autocommit=True) as database:
        _is_disabled(database, endpoint, _IS_DISABLED)
        while page := database.execute(
            _DELIVERIES, {"endpoint": endpoint, "state": state, "before": before, "page": page_rows}
        ).fetchall():
            yield from page
            before = page[-1]["number"]


def _is_disabled(database: psycopg.Connection[dict[str, Any]], endpoint: str, statement: LiteralString) -> bool:
    """What the statement finds: _IS_DISABLED, or _LOCK. Raises NoEndpoint if there is no endpoint of that name."""
    row = database.execute(statement, [endpoint]).fetchone()
    if row is None:
        raise no_endpoint(endpoint)
    return bool(row["is_disabled"])


@contextmanager
def connected(postgres_url: str, *, autocommit: bool = False) -> Iterator[psycopg.Connection[dict[str, Any]]]:
    """A session as who owns the tables. Raises CannotRun."""
    with (
        asking_database(postgres_url),
        psycopg.connect(postgres_url, autocommit=autocommit, row_factory=dict_row) as database,
    ):
        yield database
