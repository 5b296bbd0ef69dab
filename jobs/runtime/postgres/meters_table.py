"""Table `meters`: the meaning of every declared or removed meter. A name keeps its meaning for ever."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from jobs.runtime.errors import Refused
from metering.meters import Declaration

_KEEP = """
INSERT INTO meters (meter, unit, sums, aggregation, period, within, is_declared) VALUES (%s, %s, %s, %s, %s, %s, true)
ON CONFLICT (meter) DO UPDATE SET within = excluded.within, is_declared = true
WHERE (meters.unit, meters.sums, meters.aggregation, meters.period)
      IS NOT DISTINCT FROM (excluded.unit, excluded.sums, excluded.aggregation, excluded.period)
  AND ((meters.within, meters.is_declared) IS DISTINCT FROM (excluded.within, true))
"""
_DECLARED = "SELECT meter, unit, sums, aggregation, period, within FROM meters WHERE is_declared"
_MEANINGS = "SELECT meter, unit, sums, aggregation, period FROM meters WHERE meter = ANY (%s)"
_REMOVED = "UPDATE meters SET is_declared = false WHERE is_declared AND meter <> ALL (%s)"


def ever_declared(connection: psycopg.Connection[Any]) -> int:
    """How many meters there ever were: old rows may have meters that are no longer declared."""
    return next((count for (count,) in connection.execute("SELECT count(*) FROM meters").fetchall()), 0)


def declare(connection: psycopg.Connection[Any], meters: Sequence[Declaration], *, are_all: bool = True) -> None:
    """Store the declared meters, and mark the others, where these `are_all`, as no longer declared.

    Raises Refused, and changes nothing, where a name had another meaning before: quantities of two meanings would be
    summed.
    """
    wanted = {(meter.name, *meter.meaning, meter.within) for meter in meters}
    found = set(connection.execute(_DECLARED).fetchall())
    if found == wanted or (found > wanted and not are_all):
        # The usual start changes nothing, and waits for no other application that is frozen inside a change.
        return
    names = [meter.name for meter in meters]
    with connection.transaction():
        # Four applications start at once, in any order: each key is taken in one order.
        for meter in sorted(meters, key=lambda meter: meter.name):
            connection.execute(_KEEP, [meter.name, *meter.meaning, meter.within])
        meant = {name: tuple(meaning) for name, *meaning in connection.execute(_MEANINGS, [names]).fetchall()}
        for meter in meters:
            if (before := meant[meter.name]) != meter.meaning:
                raise Refused(
                    f"meter {meter.name} is declared as {_unit(*meter.meaning)}, but it was {_unit(*before)}, and its "
                    "usage is kept; give what it counts now another name, or declare it as it was"
                )
        if are_all:
            connection.execute(_REMOVED, [names])


def _unit(unit: str, column: str | None, aggregation: str | None, period: str | None) -> str:
    quantity = "outcomes" if column is None else f"the {aggregation or 'sum'} of {column}"
    return f"{quantity}{'' if period is None else f' in each {period}'} in the unit {unit}"
