"""`weir meters`: the meters in use, and earlier ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, Row, print_rows
from cli.reading import read_only
from jobs.queries.reading import Database, select
from metering.meter_sentences import explanation
from metering.meters import DEFAULT, Declaration, meaning_of

COLUMNS = ("meter", "unit", "counts", "within", "declared", "declared_at", "explanation")

_STATEMENT = """
    SELECT meter, unit, coalesce(sums, 'outcomes') AS counts, within, is_declared AS declared, declared_at, sums,
           aggregation, period
    FROM meters ORDER BY NOT is_declared, meter
"""
_CONFIGURED = "SELECT config -> 'meters' AS meters FROM jobs WHERE job = 'joins'"


def meter_rows(database: Database) -> Iterator[Row]:
    """Rows with the keys `COLUMNS`, those that are declared first.

    `counts`: the column that the meter reads, or outcomes. `explanation`: the declaration as a sentence.
    """
    from monitoring.alerts.money import UNMETERED_SHARE

    configured = _configured(database)
    rows = list(select(database, _STATEMENT, {}))
    for row in rows:
        name = row["meter"]
        parts = [row["meter"] for row in rows if row["within"] == name and row["declared"]]
        meaning = meaning_of(row["unit"], row.pop("sums"), row.pop("aggregation"), row.pop("period"))
        stored = Declaration(name, within=row["within"], **meaning)
        declared = configured.get(name)
        # A meaning that joins was not started with yet is not in effect.
        meter = declared if declared is not None and declared.meaning == stored.meaning else stored
        yield {**row, "explanation": explanation(meter, UNMETERED_SHARE, is_declared=row["declared"], parts=parts)}


def _configured(database: Database) -> Mapping[str, Declaration]:
    """The meters that joins was started with last; the defaults where it never was."""
    from jobs.settings.known_part import known_part
    from jobs.settings.meters import MeterConfig

    row = database.execute(_CONFIGURED).fetchone()
    meters = row["meters"] if row is not None else None
    if meters is None:
        return {meter.name: meter for meter in DEFAULT}
    return {name: known_part(MeterConfig, document)[0].declaration(name) for name, document in meters.items()}


def meters(*, form: FormatOption = Format.TABLE, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """List the meters: what each counts, whether the configuration still declares it, and a sentence that explains it.

    `counts` is `outcomes`, or the column that the meter reads. A meter that is no longer declared keeps its quantities,
    and its name its meaning.
    """
    from deployment.stack import running_deployment

    with read_only(running_deployment(data_dir).postgres_url) as database:
        print_rows(meter_rows(database), COLUMNS, form)
