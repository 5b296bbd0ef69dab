"""`weir rules`: the rules that decide, each with the position from which it applies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, Row, print_rows
from cli.reading import read_only
from jobs.queries.reading import Database, select
from jobs.runtime.delta.table import open_table
from jobs.runtime.effective_rules import read_history
from jobs.streams import Table
from metering.vocabulary import Job

COLUMNS = ("job", "table", "from_lsn", "since", "rules")

_STATEMENT = """
    SELECT 'sessionization' AS job, 'journal' AS table, first_position AS from_lsn, recorded_at AS since,
           jsonb_strip_nulls(jsonb_build_object(
               'session_gap_seconds', extract(epoch FROM gap)::bigint, 'closed_before', closed_before
           )) AS rules
    FROM session_gaps
    UNION ALL
    SELECT job, 'usage', first_position, since,
           rules || jsonb_strip_nulls(jsonb_build_object(
               'closed_before', closed_before, 'meter_closed_before', nullif(meter_closed_before, '{}')
           ))
    FROM rules
    ORDER BY 1 DESC, 3
"""


def rule_rows(tables: str, database: Database) -> Iterator[Row]:
    """Rows with the keys COLUMNS, by job in the order of the data's way, the oldest first; `table` has the lsn."""
    for job, table in ((Job.INGESTION, Table.JOURNAL), (Job.JOINS, Table.USAGE)):
        found = open_table(tables, table)
        for effective in read_history(found)[0] if found is not None else ():
            yield {
                "job": job,
                "table": "journal",
                "from_lsn": effective.first,
                "since": effective.since,
                "rules": effective.rules,
            }
    yield from select(database, _STATEMENT, {})


def shortened(row: Row) -> Row:
    """The row with the types of contracts instead of whole documents, for a person to read."""
    rules = row["rules"]
    if not isinstance(rules, Mapping) or "contracts" not in rules:
        return row
    return {**row, "rules": {**rules, "contracts": sorted(rules["contracts"])}}


def rules(*, form: FormatOption = Format.TABLE, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """List the decision rules (timeouts, grace, horizons, gaps, late policies), each from the row on where it applies.

    A change never moves the past: rows before its `from_lsn` stay as the line above decided. Before a job's first
    line the rules are unknown, unless that line starts at lsn 1. What ended by `closed_before` was closed under an
    earlier line and stays closed. The table shows only the types of contracts; JSON and CSV hold the whole contracts.
    """
    from deployment.stack import running_deployment

    stack = running_deployment(data_dir)
    with read_only(stack.postgres_url) as database:
        rows = rule_rows(stack.tables, database)
        print_rows(map(shortened, rows) if form is Format.TABLE else rows, COLUMNS, form)
