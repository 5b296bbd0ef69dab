"""`weir meters`: what is counted and priced, and what was."""

from __future__ import annotations

from collections.abc import Iterator

from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, Row, print_rows
from cli.reading import Database, read_only, select

COLUMNS = ("meter", "unit", "counts", "within", "declared", "declared_at")

_STATEMENT = """
    SELECT meter, unit, coalesce(sums, 'outcomes') AS counts, within, is_declared AS declared, declared_at
    FROM meters ORDER BY NOT is_declared, meter
"""


def meter_rows(database: Database) -> Iterator[Row]:
    """Rows with the keys `COLUMNS`, those that are declared first. `counts`: a column that is added up, or outcomes."""
    return select(database, _STATEMENT, {})


def meters(*, form: FormatOption = Format.TABLE, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """List the meters: what each counts, and whether the configuration still declares it.

    `counts` is `outcomes`, or the column that is added up. One that is declared no more keeps what it counted, and its
    name its meaning.
    """
    from deployment.stack import running_deployment

    with read_only(running_deployment(data_dir).postgres_url) as database:
        print_rows(meter_rows(database), COLUMNS, form)
