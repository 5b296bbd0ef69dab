"""What people decide about stragglers that wait: rows of `catalog.decisions`, told as all changes of the catalog are.

Billing applies a decision where it comes in the order of usage, and the first that counts holds. One that billing has
passed while the straggler waits on has not counted (it came too late, was lost, or was about something else that stood
at this lsn): then another takes its place.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import dict_row

from catalog import outbox as catalog_outbox
from catalog.change import Change, envelope
from deployment.errors import CannotRun
from jobs.runtime.catalog_changes import change_problem
from jobs.streams import CatalogTopic
from metering.instants import EPOCH
from metering.words import Decision

_STORE = """
WITH stored AS (
    INSERT INTO catalog.decisions AS old (usage_lsn, meter, account, request_id, decision, reason, decided_by)
    SELECT usage_lsn, meter, account, request_id, %(decision)s, %(reason)s, %(decided_by)s
    FROM unnest(%(lsns)s::bigint[], %(meters)s::text[], %(accounts)s::text[], %(requests)s::text[])
        AS asked (usage_lsn, meter, account, request_id)
    ORDER BY usage_lsn, meter
    ON CONFLICT (usage_lsn, meter) DO UPDATE SET
        account = excluded.account, request_id = excluded.request_id, decision = excluded.decision,
        reason = excluded.reason, decided_by = excluded.decided_by, decided_at = excluded.decided_at
    WHERE (old.account, old.request_id, old.decision)
       <> (excluded.account, excluded.request_id, excluded.decision)
    RETURNING *
)
SELECT *, true AS is_new FROM stored
UNION ALL
SELECT *, false FROM catalog.decisions
WHERE (usage_lsn, meter) IN (SELECT * FROM unnest(%(lsns)s::bigint[], %(meters)s::text[]))
  AND (usage_lsn, meter) NOT IN (SELECT usage_lsn, meter FROM stored)
ORDER BY usage_lsn, meter
"""


NAMES = ("usage_lsn", "meter", "account", "request_id")
"""All that a straggler is named by, in every table."""


@dataclass(frozen=True)
class Waiting:
    """A straggler by all its names: what it is decided by must be what somebody saw."""

    usage_lsn: int
    meter: str
    account: str
    request_id: str


@dataclass(frozen=True)
class Said:
    """A decision (`approve` or `reject`), why, and whose it is."""

    decision: Decision
    reason: str
    decided_by: str


def decide(postgres_url: str, stragglers: Sequence[Waiting], said: Said) -> list[Waiting]:
    """Store a decision of each, all in one transaction, and write to the outbox what must be told.

    Nobody may have decided about them with effect, or be doing so (`store.alone`). What was decided otherwise, or about
    something else at this lsn, is replaced; what was decided so is told again as it stands, which changes nothing if it
    was told before. Returns those that nobody had decided so before. Raises CannotRun for a reason or a name that no
    record can have, and when the database refuses.
    """
    _refuse_unfit(said)
    asked = {
        "lsns": [one.usage_lsn for one in stragglers],
        "meters": [one.meter for one in stragglers],
        "accounts": [one.account for one in stragglers],
        "requests": [one.request_id for one in stragglers],
        "decision": said.decision.value,
        "reason": said.reason,
        "decided_by": said.decided_by,
    }
    try:
        with psycopg.connect(postgres_url, row_factory=dict_row, connect_timeout=10) as database:
            rows = database.execute(_STORE, asked).fetchall()
            changes = [_stored(row) for row in rows]
            with database.cursor() as cursor:
                catalog_outbox.add(cursor, changes)
    except psycopg.Error as problem:
        raise CannotRun(f"The database refused the decision: {str(problem).splitlines()[0]}") from problem
    return [Waiting(*(row[name] for name in NAMES)) for row in rows if row["is_new"]]


def _stored(row: dict[str, Any]) -> Change:
    said = Said(Decision(row["decision"]), row["reason"], row["decided_by"])
    return _change(Waiting(*(row[name] for name in NAMES)), said, row["decided_at"])


def _change(one: Waiting, said: Said, decided_at: datetime) -> Change:
    key = {"usage_lsn": one.usage_lsn, "meter": one.meter}
    texts = {"decision": said.decision.value, "reason": said.reason, "decided_by": said.decided_by}
    after = {**key, "account": one.account, "request_id": one.request_id, **texts}
    return Change(CatalogTopic.DECISIONS, key, after, "c", decided_at)


def _refuse_unfit(said: Said) -> None:
    """Ingestion would make a dead letter of it, which no one who decides would see."""
    change = _change(Waiting(1, "meter", "account", "request"), said, EPOCH)
    if problem := change_problem(change.topic, None, json.dumps(envelope(change)).encode()):
        raise CannotRun(f"This cannot be kept: {problem}.")
