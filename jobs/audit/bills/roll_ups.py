"""I6: hours are the sums of windows and months those of days, in each of their columns; and so are values that limits
name.

Windows and days are compared with usage elsewhere, so this compares within the database.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import psycopg
from psycopg.rows import dict_row

from jobs.audit.compare.columns import Wrong

MEMORY = "SET LOCAL work_mem = '64MB'"


@dataclass(frozen=True)
class RollUp:
    """A table of sums: `period` names its hour or month; `place` is that of a row of `source`, found by `at`.

    `columns`: how each follows from those of `source`.
    """

    table: str
    source: str
    period: str
    place: str
    at: str
    columns: Mapping[str, str]


ROLL_UPS = (
    RollUp(
        "usage_hours",
        "usage_windows",
        "hour",
        "date_trunc('hour', window_start, 'UTC')",
        "window_start",
        {"quantity": "sum", "late_quantity": "sum", "unmetered_rows": "sum", "corrected": "bool_or"},
    ),
    RollUp(
        "usage_months",
        "usage_days",
        "month",
        "date_trunc('month', day::timestamp)::date",
        "day",
        {
            "quantity": "sum",
            "usage_rows": "sum",
            "first_window": "min",
            "last_window_end": "max",
            "corrected": "bool_or",
            "next_position": "max",
        },
    ),
)
KEY = ("account", "model", "meter", "currency", "price_version", "unit_price")
# A key that only one of them has differs, too: what is stored is compared with the number of its rows.
_COMPARED = """
SELECT {period}, {key}, {values}, count(*) OVER () AS wrong
FROM (
    SELECT {period}, {key}, {columns}, true AS is_stored FROM {table} WHERE {stored_range}
    UNION ALL
    SELECT {place}, {key}, {columns}, false FROM {source} WHERE {source_range}
) AS both_sides
GROUP BY {period}, {key}
HAVING ({found}) IS DISTINCT FROM ({must})
ORDER BY {period}, {key} LIMIT 1
"""
# Once billing has decided all limits: until then it sums what others named before. A row may stay at 0.
_OF_VALUES = """
WITH found AS (
    SELECT account, first_day, period, meter, dimension, value, model, quantity AS stored, 0 AS must
    FROM usage_dimensions WHERE {stored_range}
    UNION ALL
    SELECT account, CASE period WHEN 'P1D' THEN day ELSE date_trunc('month', day::timestamp)::date END, period, meter,
           dimension, value, model, 0, quantity
    FROM (
        SELECT * FROM usage_days CROSS JOIN LATERAL (
            SELECT key AS dimension, value FROM jsonb_each_text(dimensions)
            UNION ALL SELECT '', '' WHERE is_other
        ) AS of_value WHERE {source_range} OFFSET 0
    ) AS split JOIN limited_dimensions USING (meter, dimension, value)
    CROSS JOIN unnest('{{P1D,P1M}}'::text[]) AS period
)
SELECT account, first_day, period, meter, dimension, value, model, trim_scale(sum(stored)) AS stored,
       trim_scale(sum(must)) AS must, count(*) OVER () AS wrong
FROM found GROUP BY account, first_day, period, meter, dimension, value, model
HAVING sum(stored) <> sum(must) ORDER BY 1, 2, 3, 4, 5, 6, 7 LIMIT 1
"""
_RANGE = "(%(since)s::date IS NULL OR {at} >= %(since)s) AND (%(until)s::date IS NULL OR {at} < %(until)s)"


def unequal_roll_ups(connection: psycopg.Connection[Any], since: date | None, until: date | None) -> Wrong:
    """Hours, months and values of dimensions that are not the sums beside them.

    Of the whole months from `since` to before `until`, within the caller's transaction.
    """
    connection.execute(MEMORY)
    parameters = {
        "since": None if since is None else since.replace(day=1),
        "until": None if until is None else (until.replace(day=1) + timedelta(days=31)).replace(day=1),
    }
    found = Wrong()
    for roll_up in ROLL_UPS:
        found += _unequal(connection, roll_up, parameters)
    return found + _unequal_values(connection, parameters)


def _unequal_values(connection: psycopg.Connection[Any], parameters: Mapping[str, Any]) -> Wrong:
    ranges = {name: _RANGE.format(at=at) for name, at in (("stored_range", "first_day"), ("source_range", "day"))}
    counted = f"SELECT count(*) AS rows FROM usage_dimensions WHERE {ranges['stored_range']}"
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(counted, parameters).fetchall()[0]["rows"]
        row = cursor.execute(_OF_VALUES.format(**ranges), parameters).fetchone()
    if row is None:
        return Wrong(rows)
    place = f"{row['period']} from {row['first_day']}, {row['meter']} of {row['account']}, {row['model']}"
    of_value = f"{row['dimension']} {row['value']}" if row["dimension"] else "no value"
    sentence = f"{place}, of {of_value}: {row['stored']} in usage_dimensions instead of {row['must']} as in usage_days"
    return Wrong(rows, row["wrong"], sentence)


def _unequal(connection: psycopg.Connection[Any], roll_up: RollUp, parameters: Mapping[str, Any]) -> Wrong:
    sides = [
        {name: f"{of}({name}) FILTER (WHERE {side})" for name, of in roll_up.columns.items()}
        for side in ("is_stored", "NOT is_stored")
    ]
    ranges = {name: _RANGE.format(at=at) for name, at in (("stored", roll_up.period), ("source", roll_up.at))}
    statement = _COMPARED.format(
        **{name: getattr(roll_up, name) for name in ("table", "source", "period", "place")},
        key=", ".join(KEY),
        columns=", ".join(roll_up.columns),
        values=", ".join(
            f"{side[name]} AS {word}_{name}"
            for word, side in zip(("found", "must"), sides, strict=True)
            for name in roll_up.columns
        ),
        found=", ".join(["bool_or(is_stored)", *sides[0].values()]),
        must=", ".join(["bool_or(NOT is_stored)", *sides[1].values()]),
        stored_range=ranges["stored"],
        source_range=ranges["source"],
    )
    counted = f"SELECT count(*) AS rows FROM {roll_up.table} WHERE {ranges['stored']}"
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(counted, parameters).fetchall()[0]["rows"]
        row = cursor.execute(statement, parameters).fetchone()
    return Wrong(rows, row["wrong"], _sentence(roll_up, row)) if row else Wrong(rows)


def _sentence(roll_up: RollUp, row: Mapping[str, Any]) -> str:
    begins = row[roll_up.period]
    place = f"the {roll_up.period} {begins:%Y-%m}" if roll_up.period == "month" else f"the hour {begins:%Y-%m-%dT%HZ}"
    words = f"{place}, {row['meter']} of {row['account']}, {row['model']}, at price version {row['price_version']}"
    name = next(
        (name for name in roll_up.columns if row[f"found_{name}"] != row[f"must_{name}"]), next(iter(roll_up.columns))
    )
    found, must = row[f"found_{name}"], row[f"must_{name}"]
    return f"{words} ({row['currency']}): {name} is {found} in {roll_up.table} instead of {must} as in {roll_up.source}"
