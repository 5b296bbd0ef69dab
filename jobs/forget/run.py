"""The order of an erasure: it is recorded, so that events that come are erased, and then what is stored is rewritten.

Each step is a commit, and does nothing where it was done: who was killed runs it again. It is complete once every
application has passed what was stored with the name, and a pass over everything has followed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg

from jobs.forget.database import Changed, change, counting_users
from jobs.forget.tables import Person, Rewritten, rewrite
from jobs.journal.erasing import TRANSACTION
from jobs.runtime.delta.table import LSN, open_table
from jobs.runtime.errors import Refused
from jobs.streams import Table
from metering.erasure import ErasureKey

_KNOWN = "SELECT erasure FROM erasures WHERE account = %s AND person = ANY (%s) ORDER BY erasure LIMIT 1"
_ADD = """
INSERT INTO erasures (erasure, account, person, key_id, reason, asked_by)
SELECT coalesce(max(erasure), 0) + 1, %(account)s, %(person)s, %(key_id)s, %(reason)s, %(by)s FROM erasures
RETURNING erasure
"""
_LOG = """
SELECT record_activity('forget', 'erasures', %(by)s, %(reason)s, NULL,
    jsonb_build_object('erasure', %(erasure)s::bigint, 'account', %(account)s::text))
"""
_REACHED = "SELECT journal_until, usage_until, erased_at FROM erasures WHERE erasure = %s"
_UNTIL_JOURNAL = "UPDATE erasures SET journal_until = %s WHERE erasure = %s AND journal_until IS NULL"
_UNTIL_USAGE = "UPDATE erasures SET usage_until = %s WHERE erasure = %s AND usage_until IS NULL"
_COMPLETE = "UPDATE erasures SET erased_at = coalesce(erased_at, clock_timestamp()) WHERE erasure = %s"
_POSITION = "SELECT next_position FROM positions WHERE job = %s AND input = %s"


@dataclass(frozen=True)
class Request:
    """Who asked to forget whom, and why."""

    account: str
    user_id: str
    reason: str
    by: str


def record(connection: psycopg.Connection[Any], request: Request, keys: Sequence[ErasureKey]) -> int:
    """The number of the erasure: that of an earlier run for the same person, or a new row. Raises Refused without key.

    The activity log gets an entry in the same transaction. The name is in neither.
    """
    if not keys:
        raise Refused("no key is given by which the person is recognised without the name")
    people = [key.person(request.account, request.user_id) for key in keys]
    values = {"account": request.account, "reason": request.reason.strip(), "by": request.by}
    with connection.transaction():
        connection.execute("LOCK TABLE erasures IN SHARE ROW EXCLUSIVE MODE")
        if (known := connection.execute(_KNOWN, [request.account, people]).fetchone()) is not None:
            return int(known[0])
        row = connection.execute(_ADD, {**values, "person": people[0], "key_id": keys[0].id}).fetchone()
        assert row is not None
        connection.execute(_LOG, {**values, "erasure": row[0]})
    return int(row[0])


def carry_out(
    tables: str, connection: psycopg.Connection[Any], person: Person
) -> Iterator[Rewritten | Changed | Waiting]:
    """Rewrite all that names the person, commit by commit; last comes what it waits for, if for anything.

    `connection` commits by itself. Raises Refused for a newer version's tables.
    """
    known = replace(person, aggregated=frozenset(counting_users(connection)))
    # What is read before the pass: nobody can add a row with the name after it.
    waiting = list(waits(tables, connection, person.erasure))
    for table in (Table.JOURNAL, Table.USAGE):
        yield from rewrite(tables, table, known)
    yield from change(connection, known)
    if not waiting:
        connection.execute(_COMPLETE, [person.erasure])
    yield from waiting


@dataclass(frozen=True)
class Waiting:
    """Why an erasure is not complete: who may still write a row with the name, and when that is over."""

    application: str
    until: str


def waits(tables: str, connection: psycopg.Connection[Any], erasure: int) -> Iterator[Waiting]:
    """What an erasure waits for. How far each application must come is stored when it is first known."""
    journal, usage = open_table(tables, Table.JOURNAL), open_table(tables, Table.USAGE)
    if journal is None:
        return
    if (journal.transaction_version(TRANSACTION) or 0) < erasure:
        yield Waiting("ingestion", "it has committed a batch")
        return
    connection.execute(_UNTIL_JOURNAL, [journal.transaction_version(LSN) or 1, erasure])
    journal_until, usage_until, _ = _reached(connection, erasure)
    yield from _behind(connection, "sessionization", Table.JOURNAL, journal_until)
    joined = 1 if usage is None else usage.transaction_version(Table.JOURNAL.value) or 1
    waiting = 0 if usage is None else usage.transaction_version("waiting.lsn") or 0
    if joined < journal_until:
        yield Waiting("joins", f"it has read the journal up to lsn {journal_until - 1}")
        return
    if 0 < waiting < journal_until:
        yield Waiting("joins", f"requests before lsn {journal_until} no longer wait for their completion")
        return
    if usage is not None and usage_until is None:
        usage_until = usage.transaction_version(LSN) or 1
        connection.execute(_UNTIL_USAGE, [usage_until, erasure])
    if usage_until is not None:
        yield from _behind(connection, "billing", Table.USAGE, usage_until)


def _reached(connection: psycopg.Connection[Any], erasure: int) -> tuple[Any, Any, Any]:
    row = connection.execute(_REACHED, [erasure]).fetchone()
    assert row is not None
    return row[0], row[1], row[2]


def _behind(connection: psycopg.Connection[Any], job: str, table: Table, until: int) -> Iterator[Waiting]:
    row = connection.execute(_POSITION, [job, table.value]).fetchone()
    if (1 if row is None else row[0]) < until:
        yield Waiting(job, f"it has read {table} up to lsn {until - 1}")
