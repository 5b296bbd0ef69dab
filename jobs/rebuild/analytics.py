"""`weir rebuild analytics`: views, patterns and watches begin at row 1 of usage, and analytics measures it again.

Panes of sketches are too many bytes for one transaction, and are no bill: so they come back little by little. Matches
of declared patterns stay, and are compared with what is found again.
"""

from __future__ import annotations

from jobs.analytics.patterns.declared import begin_again as patterns_begin_again
from jobs.rebuild.reading import whole
from jobs.runtime.errors import Refused
from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.postgres.schema_check import refuse_other_schema
from jobs.runtime.postgres.session import Session
from jobs.streams import Table
from metering.reports import Phase
from metering.vocabulary import Job

EMPTIED = (
    *("analytics_panes", "analytics_views"),
    "pattern_outcomes",
    *("watch_hits", "watch_hours", "watch_progress"),
)
# Nobody is called again about what analytics had read: it had called then, or its watch was not there yet.
BEGIN_AGAIN = """
UPDATE watches SET first_position = NULL, calls_from = greatest(calls_from, (
    SELECT next_position FROM positions WHERE job = %s AND input = 'usage'
)) WHERE removed_at IS NULL
"""
JOB = Job.ANALYTICS.value


def begin_again(tables: str, postgres_url: str) -> int:
    """Remove all panes, hits and the position: analytics begins at lsn 1. How many rows of usage there are for it.

    A running driver is fenced, and its successor begins. Raises Refused where rows of usage were removed, or analytics
    has never run; NotYet where the database becomes unavailable. Then nothing was changed.
    """
    refuse_other_schema(postgres_url)
    source = whole(tables, Table.USAGE)
    with Session.to(postgres_url, f"weir rebuild {JOB}") as connection:
        row = connection.execute("SELECT config FROM jobs WHERE job = %s", [JOB]).fetchone()
    if row is None:
        raise Refused(
            "analytics has never run here: declare `views` or `patterns`, or turn on `watches`, and start it; it "
            "measures all of usage"
        )
    ownership = Ownership.take(JOB, postgres_url, row[0], is_alone=True)
    try:
        with ownership.transaction() as cursor:
            cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            cursor.execute(BEGIN_AGAIN, [JOB])
            patterns_begin_again(cursor)
            for table in EMPTIED:
                cursor.execute(f"DELETE FROM {table}")
            for table in ("batches", "positions"):
                cursor.execute(f"DELETE FROM {table} WHERE job = %s", [JOB])
            stopped = [Phase.STOPPED, JOB, ownership.epoch]
            cursor.execute("UPDATE jobs SET state = %s WHERE job = %s AND epoch = %s", stopped)
    finally:
        ownership.close()
    return source.next_lsn - 1
