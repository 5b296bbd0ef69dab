"""What people decide about stragglers that wait: rows of `catalog.decisions`, told as all changes of the catalog are.

Whoever is first has decided: a row is never changed. Billing applies it where it comes in the order of usage.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

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
INSERT INTO catalog.decisions (usage_lsn, meter, account, request_id, decision, reason, decided_by)
SELECT usage_lsn, meter, account, request_id, %(decision)s, %(reason)s, %(decided_by)s
FROM unnest(%(lsns)s::bigint[], %(meters)s::text[], %(accounts)s::text[], %(requests)s::text[])
    AS asked (usage_lsn, meter, account, request_id)
ORDER BY usage_lsn, meter
ON CONFLICT (usage_lsn, meter) DO NOTHING
RETURNING usage_lsn, meter, account, request_id, decided_at
"""


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

    Returns those that nobody had decided before. Raises CannotRun for a reason or a name that no record can have, and
    when the database refuses.
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
            decided = [Waiting(row["usage_lsn"], row["meter"], row["account"], row["request_id"]) for row in rows]
            changes = [_change(one, said, row["decided_at"]) for one, row in zip(decided, rows, strict=True)]
            with database.cursor() as cursor:
                catalog_outbox.add(cursor, changes)
    except psycopg.Error as problem:
        raise CannotRun(f"The database refused the decision: {str(problem).splitlines()[0]}") from problem
    return decided


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
