"""People's decisions about waiting stragglers: rows of `catalog.decisions`, captured like the whole catalog.

Billing applies a decision in the order of usage, and the first that counts wins. If billing has passed a decision and
the straggler still waits, the decision has not counted (it came too late, was lost, or was about other usage at this
lsn): then another one takes its place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import dict_row

from catalog.change import Change, envelope
from deployment.asking import asking_database
from deployment.attribution import attribute
from deployment.errors import CannotRun
from jobs.journal.catalog_problems import change_problem
from jobs.streams import CatalogTopic
from metering.instants import EPOCH
from metering.vocabulary import Decision

QUIET_SECONDS = 1.0
"""A longer wait for another's decision is reported."""

# An equal decision is written again unchanged, so that change capture publishes it again.
_STORE = """
WITH requested AS (
    SELECT usage_lsn, meter, account, request_id, %(decision)s AS decision, %(reason)s AS reason,
           %(decided_by)s AS decided_by, now() AS decided_at
    FROM unnest(%(lsns)s::bigint[], %(meters)s::text[], %(accounts)s::text[], %(requests)s::text[])
        AS requested (usage_lsn, meter, account, request_id)
), before AS (
    SELECT decisions.* FROM catalog.decisions JOIN requested USING (usage_lsn, meter, account, request_id, decision)
), stored AS (
    INSERT INTO catalog.decisions (usage_lsn, meter, account, request_id, decision, reason, decided_by, decided_at)
    SELECT usage_lsn, meter, requested.account, requested.request_id, requested.decision,
           coalesce(before.reason, requested.reason),
           coalesce(before.decided_by, requested.decided_by), coalesce(before.decided_at, requested.decided_at)
    FROM requested LEFT JOIN before USING (usage_lsn, meter)
    ORDER BY usage_lsn, meter
    ON CONFLICT (usage_lsn, meter) DO UPDATE SET
        account = excluded.account, request_id = excluded.request_id, decision = excluded.decision,
        reason = excluded.reason, decided_by = excluded.decided_by, decided_at = excluded.decided_at
    RETURNING *
)
SELECT stored.*, NOT EXISTS (
    SELECT FROM before WHERE (before.usage_lsn, before.meter) = (stored.usage_lsn, stored.meter)
) AS is_new
FROM stored ORDER BY usage_lsn, meter
"""


NAMES = ("usage_lsn", "meter", "account", "request_id")
"""All that a straggler is named by, in every table."""


@dataclass(frozen=True)
class Waiting:
    """A straggler by all its keys: a decision must be about exactly the row that somebody saw."""

    usage_lsn: int
    meter: str
    account: str
    request_id: str


@dataclass(frozen=True)
class DecisionText:
    """A decision (`approve` or `reject`), why, and whose it is."""

    decision: Decision
    reason: str
    decided_by: str


@contextmanager
def exclusive_decisions(postgres_url: str, limit_seconds: float, tell: Callable[[str], None]) -> Iterator[None]:
    """Lock out other decisions about stragglers: each decision must know the earlier ones.

    Waits for another process that decides, and reports that. Raises CannotRun on timeout, or when the database does not
    answer.
    """
    with (
        asking_database(postgres_url),
        psycopg.connect(postgres_url, autocommit=True, connect_timeout=10) as database,
    ):
        quiet_seconds = min(QUIET_SECONDS, limit_seconds)
        if not _locked(database, quiet_seconds):
            tell(f"Waiting, {limit_seconds:g} s at most, for another who decides about stragglers here.")
            if not _locked(database, limit_seconds - quiet_seconds):
                raise CannotRun(
                    f"Another `weir stragglers` command was at work on this database for {limit_seconds:g} s: nothing "
                    "was decided. Run the command again when that one has ended, or with a longer --timeout."
                )
        yield


def _locked(database: psycopg.Connection[Any], limit_seconds: float) -> bool:
    """Whether the lock is ours within the time."""
    # 0 would be: wait for ever.
    database.execute("SELECT set_config('lock_timeout', %s, false)", [f"{max(1, round(limit_seconds * 1_000))}ms"])
    try:
        database.execute("SELECT pg_advisory_lock(hashtext('weir catalog apply'))")
    except psycopg.errors.LockNotAvailable:
        return False
    return True


def decide(postgres_url: str, stragglers: Sequence[Waiting], text: DecisionText) -> list[Waiting]:
    """Store one decision each, all in one transaction, from which they are captured.

    They must be undecided, with the lock of `exclusive_decisions` held. A different decision, or one
    about something else at this lsn, is replaced; an equal one is published again unchanged, which has no effect if it
    was published before. Returns the stragglers without an equal decision before. Raises CannotRun for a reason or a
    name that no record can hold, and when the database refuses.
    """
    _refuse_unfit(text)
    parameters = {
        "lsns": [straggler.usage_lsn for straggler in stragglers],
        "meters": [straggler.meter for straggler in stragglers],
        "accounts": [straggler.account for straggler in stragglers],
        "requests": [straggler.request_id for straggler in stragglers],
        "decision": text.decision.value,
        "reason": text.reason,
        "decided_by": text.decided_by,
    }
    try:
        with psycopg.connect(postgres_url, row_factory=dict_row, connect_timeout=10) as database:
            attribute(database, text.decided_by)
            rows = database.execute(_STORE, parameters).fetchall()
    except psycopg.Error as problem:
        raise CannotRun(f"The database refused the decision: {str(problem).splitlines()[0]}") from problem
    return [Waiting(*(row[name] for name in NAMES)) for row in rows if row["is_new"]]


def change_of(straggler: Waiting, text: DecisionText, decided_at: datetime) -> Change:
    """The change that a decision is."""
    key = {"usage_lsn": straggler.usage_lsn, "meter": straggler.meter}
    texts = {"decision": text.decision.value, "reason": text.reason, "decided_by": text.decided_by}
    after = {**key, "account": straggler.account, "request_id": straggler.request_id, **texts}
    return Change(CatalogTopic.DECISIONS, key, after, "c", decided_at)


def _refuse_unfit(text: DecisionText) -> None:
    """Ingestion would make a dead letter of it, which no one who decides would see."""
    change = change_of(Waiting(1, "meter", "account", "request"), text, EPOCH)
    if problem := change_problem(change.topic, None, json.dumps(envelope(change)).encode()):
        raise CannotRun(f"This cannot be kept: {problem}.")
