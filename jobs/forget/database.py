"""A person's rows in Postgres, changed in one transaction that no application's batch can come between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg

from jobs.forget.sessions import merge_sessions
from jobs.forget.tables import Person
from metering.erasure import mention

_LOCK = "SELECT FROM jobs WHERE job IN ('billing', 'sessionization') ORDER BY job FOR UPDATE"
"""A batch holds a share lock on its row until it is committed."""
_LOCK_BILLS = "SELECT FROM positions WHERE job = 'billing' AND input = 'usage' FOR UPDATE"
"""A close holds a share lock on it, as its statements must see one state of what is billed."""
_SESSIONS = """
UPDATE sessions SET user_id = %(name)s, updated_at = updated_at
WHERE account = %(account)s AND user_id = %(user)s
"""
# Rows of the person that came meanwhile already have the other name: then two rows become one. So of each table the
# rows of `theirs` that have a twin in `known` are added to it and removed, and the others are renamed.
_OF_THEIRS = "theirs.account = %(account)s AND theirs.dimensions ->> 'user_id' = %(user)s"
_RENAMED = "dimensions || jsonb_build_object('user_id', %(name)s::text)"
_OF_PERSON = "account = %(account)s AND dimensions ->> 'user_id' = %(user)s"
_SAME_PRICE = """
(known.model, known.currency, known.price_version)
  IS NOT DISTINCT FROM (theirs.model, theirs.currency, theirs.price_version)
"""
_DAY_TWINS = f"""
{_OF_THEIRS} AND known.dimensions = theirs.{_RENAMED} AND {_SAME_PRICE}
  AND (known.account, known.day, known.meter, known.is_other) = (theirs.account, theirs.day, theirs.meter, false)
"""
_DAYS_ADD = f"""
UPDATE usage_days AS known SET
    quantity = known.quantity + theirs.quantity, usage_rows = known.usage_rows + theirs.usage_rows,
    first_window = least(known.first_window, theirs.first_window),
    last_window_end = greatest(known.last_window_end, theirs.last_window_end),
    corrected = known.corrected OR theirs.corrected,
    next_position = greatest(known.next_position, theirs.next_position)
FROM usage_days AS theirs WHERE {_DAY_TWINS}
"""
_DAYS_REMOVE = f"DELETE FROM usage_days AS theirs USING usage_days AS known WHERE {_DAY_TWINS}"
# Triggers have changed the sums of limits of a person. What they have crossed is decided again with the next fold.
_DECIDE_AGAIN = """
INSERT INTO thresholds_due (account) SELECT %(account)s WHERE EXISTS (
    SELECT FROM limited_dimensions WHERE dimension = 'user_id' AND value IN (%(user)s, %(name)s)
)
"""
_OF_VALUE = "account = %(account)s AND dimension = 'user_id' AND {value} = %(user)s"
_SUMS_REMOVE = f"DELETE FROM usage_dimensions WHERE {_OF_VALUE.format(value='value')}"
_THRESHOLDS_REMOVE = """
DELETE FROM threshold_changes AS theirs USING threshold_changes AS known
WHERE theirs.account = %(account)s AND theirs.dimension = 'user_id' AND theirs.dimension_value = %(user)s
  AND known.dimension_value = %(name)s
  AND (known.account, known.first_day, known.period, known.meter, known.model, known.dimension, known.threshold)
    = (theirs.account, theirs.first_day, theirs.period, theirs.meter, theirs.model, theirs.dimension, theirs.threshold)
"""
_THRESHOLDS = f"""
UPDATE threshold_changes SET dimension_value = %(name)s WHERE {_OF_VALUE.format(value="dimension_value")}
"""
_COMBINATION_TWINS = f"""
{_OF_THEIRS} AND known.dimensions = theirs.{_RENAMED}
  AND (known.account, known.day) = (theirs.account, theirs.day)
"""
_COMBINATIONS_ADD = f"""
UPDATE usage_day_dimensions AS known SET first_lsn = least(known.first_lsn, theirs.first_lsn)
FROM usage_day_dimensions AS theirs WHERE {_COMBINATION_TWINS}
"""
_COMBINATIONS_REMOVE = f"""
DELETE FROM usage_day_dimensions AS theirs USING usage_day_dimensions AS known WHERE {_COMBINATION_TWINS}
"""
_MEMBER_TWINS = f"""
theirs.account = %(account)s AND theirs.member = %(user)s AND theirs.meter = ANY (%(aggregated)s)
  AND known.member = %(name)s AND {_SAME_PRICE}
  AND (known.account, known.first_day, known.meter) = (theirs.account, theirs.first_day, theirs.meter)
"""
# Who went on meanwhile was counted under both names, and is one person: such periods are counted again, as billing does
# after a removal.
_PERIOD_TWINS = f"""
SELECT DISTINCT known.account, known.first_day, known.meter, known.model, known.currency, known.price_version
FROM usage_members AS theirs JOIN usage_members AS known ON {_MEMBER_TWINS}
"""
_COUNTED_AGAIN = f"""
UPDATE usage_days AS days SET
    next_position = greatest(next_position, (
        SELECT next_position FROM positions WHERE job = 'billing' AND input = 'usage'
    )),
    updated_at = now(),
    quantity = (
        SELECT count(*) FROM (
            SELECT FROM usage_members AS theirs
            WHERE (theirs.account, theirs.first_day, theirs.meter) = (known.account, known.first_day, known.meter)
              AND {_SAME_PRICE}
            GROUP BY CASE WHEN member = %(user)s THEN %(name)s ELSE member END HAVING sum(member_rows) > 0
        ) AS present
    )
FROM ({_PERIOD_TWINS}) AS known
WHERE (days.account, days.day, days.meter) = (known.account, known.first_day, known.meter)
  AND {_SAME_PRICE.replace("theirs", "days")}
"""
_DECIDE_COUNTS_AGAIN = f"""
INSERT INTO thresholds_due (account)
SELECT %(account)s WHERE EXISTS (SELECT FROM catalog.limits) AND EXISTS ({_PERIOD_TWINS})
"""
_METERS_COUNTED_AGAIN = f"SELECT array_agg(DISTINCT meter) FROM ({_PERIOD_TWINS}) AS counted"
# Where no usage comes, billing's position stays, and only this says that a month which was proved or is on an invoice
# has changed (`jobs.queries.counted_again`).
_LOG_COUNTED_AGAIN = """
SELECT record_activity('forget', 'usage_members', asked_by, reason, NULL,
    jsonb_build_object('erasure', erasure, 'account', account, 'meters', %(counted_again)s::text[]))
FROM erasures WHERE erasure = %(erasure)s
"""
_MEMBERS_ADD = f"""
UPDATE usage_members AS known SET member_rows = known.member_rows + theirs.member_rows
FROM usage_members AS theirs WHERE {_MEMBER_TWINS}
"""
_MEMBERS_REMOVE = f"DELETE FROM usage_members AS theirs USING usage_members AS known WHERE {_MEMBER_TWINS}"
_MEMBERS = """
UPDATE {table} SET member = %(name)s
WHERE account = %(account)s AND member = %(user)s AND meter = ANY (%(aggregated)s)
"""
_FAILURES = """
UPDATE isolated_records SET detail = %(note)s WHERE asked_by IS NULL AND detail ~ %(named)s
"""
"""What a parser says of a record that it could not read may quote it. What a person wrote stays."""


def _renaming(table: str) -> str:
    return f"UPDATE {table} SET dimensions = {_RENAMED} WHERE {_OF_PERSON}"


STEPS = {
    "sessions": (_SESSIONS,),
    "stragglers": (_renaming("stragglers"),),
    "corrections": (_renaming("corrections"),),
    "usage_days": (_DECIDE_AGAIN, _DAYS_ADD, _DAYS_REMOVE, _renaming("usage_days")),
    "usage_dimensions": (_SUMS_REMOVE,),
    "threshold_changes": (_THRESHOLDS_REMOVE, _THRESHOLDS),
    "usage_day_dimensions": (_COMBINATIONS_ADD, _COMBINATIONS_REMOVE, _renaming("usage_day_dimensions")),
    "usage_members": (
        _DECIDE_COUNTS_AGAIN,
        _COUNTED_AGAIN,
        _MEMBERS_ADD,
        _MEMBERS_REMOVE,
        _MEMBERS.format(table="usage_members"),
    ),
    "late_members": (_MEMBERS.format(table="late_members"),),
    "isolated_records": (_FAILURES,),
}
"""By table the statements that change a person's rows; the last two of each count how many those were."""


@dataclass(frozen=True)
class Changed:
    """How many rows of a table had the name."""

    table: str
    rows: int


def counting_users(connection: psycopg.Connection[Any]) -> list[str]:
    """The meters that count different users: in their members the name stands."""
    found = connection.execute("SELECT meter FROM meters WHERE aggregation = 'unique' AND sums = 'user_id'")
    return [meter for (meter,) in found.fetchall()]


def change(connection: psycopg.Connection[Any], person: Person) -> Iterator[Changed]:
    """Give a person's rows the other name, in a transaction of its own; quantities and sums stay as they are.

    But who was counted under both names, or has sessions under both, has one from then on.
    """
    values = {
        "erasure": person.erasure,
        "account": person.account,
        "user": person.user_id,
        "name": person.pseudonym,
        "aggregated": list(person.aggregated),
        "named": mention(person.user_id),
        "note": f"erased by erasure {person.erasure}: the text had the name",
    }
    done = []
    with connection.transaction():
        connection.execute(_LOCK)
        connection.execute(_LOCK_BILLS)
        merge_sessions(connection, values)
        [[counted_again]] = connection.execute(_METERS_COUNTED_AGAIN, values).fetchall()
        for table, statements in STEPS.items():
            counts = [connection.execute(statement.encode(), values).rowcount for statement in statements]
            done.append(Changed(table, sum(counts[-2:])))
        if counted_again:
            # Last, as all who lock the log do.
            connection.execute(_LOG_COUNTED_AGAIN, {**values, "counted_again": counted_again})
    yield from done
