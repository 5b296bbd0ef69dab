"""Views: what is measured of outcomes, minute by minute, and how minutes become windows. A view is never money."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from operator import itemgetter
from typing import Any

from metering.instants import EPOCH
from metering.meters import Where
from metering.windows import MINUTE

RANKS = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
"""What `percentiles` shows, by name."""


class Aggregate(StrEnum):
    """What a measure makes of the outcomes of a window. The first four are exact, the next three are sketches."""

    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    DISTINCT = "distinct"
    PERCENTILES = "percentiles"
    TOP = "top"
    GAPS = "gaps"


OF_RANKS = (Aggregate.PERCENTILES, Aggregate.GAPS)
"""What is shown as a number for each of RANKS, in the order in which a page prefers them."""


@dataclass(frozen=True)
class Measure:
    """One measure of a view; `where` are conditions on the outcome, as of a meter.

    `column` is None of a count and of gaps.
    """

    name: str
    aggregate: Aggregate
    column: str | None = None
    where: Where = ()
    k: int = 0
    """Of a top: how many values."""


@dataclass(frozen=True)
class View:
    """Outcomes by keys, with measures."""

    name: str
    by: tuple[str, ...]
    measures: tuple[Measure, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of outcomes that it reads, by name."""
        read = {*self.by, *(column for measure in self.measures for column, _ in measure.where)}
        read |= {measure.column for measure in self.measures if measure.column is not None}
        return tuple(sorted(read))

    @property
    def definition(self) -> dict[str, Any]:
        """Keys and measures as JSON values, in their order; `view_of` is the inverse."""
        return {
            "by": list(self.by),
            "measures": [
                {
                    "name": measure.name,
                    "aggregate": measure.aggregate.value,
                    "column": measure.column,
                    "where": [[column, list(values)] for column, values in measure.where],
                    "k": measure.k,
                }
                for measure in self.measures
            ],
        }

    @property
    def version(self) -> str:
        """A hash of the definition, in which measures have no order: panes of two are never merged."""
        definition = self.definition
        canonical = {**definition, "measures": sorted(definition["measures"], key=itemgetter("name"))}
        return hashlib.sha256(json.dumps(canonical, sort_keys=True).encode()).hexdigest()[:16]


def view_of(name: str, definition: dict[str, Any]) -> View:
    """The view that has this `View.definition`."""
    measures = (
        Measure(
            measure["name"],
            Aggregate(measure["aggregate"]),
            measure["column"],
            tuple((column, tuple(values)) for column, values in measure["where"]),
            measure["k"],
        )
        for measure in definition["measures"]
    )
    return View(name, tuple(definition["by"]), tuple(measures))


def hopping(panes: Sequence[datetime], size: timedelta, hop: timedelta) -> Iterator[tuple[datetime, list[datetime]]]:
    """The starts of panes, in order → each window with a pane in it, by start: its start, and its panes.

    Windows are [n * hop, n * hop + size) since the epoch, as in Flink and Spark; with `hop` = `size` they tumble. Both
    are whole minutes.
    """
    if not panes:
        return
    start = _floor(panes[0] - size, hop) + hop
    first = 0
    while start <= panes[-1]:
        while panes[first] < start:
            first += 1
        if panes[first] >= start + size:
            # Nothing is in it: on to the first window that has the next pane.
            start = _floor(panes[first] - size, hop) + hop
            continue
        last = first
        while last < len(panes) and panes[last] < start + size:
            last += 1
        yield start, list(panes[first:last])
        start += hop


def sessions(panes: Sequence[datetime], gap: timedelta) -> Iterator[tuple[datetime, datetime, list[datetime]]]:
    """The starts of panes, in order → runs of panes with at most `gap` without one between them: start, end, panes."""
    run: list[datetime] = []
    for pane in panes:
        if run and pane - (run[-1] + MINUTE) > gap:
            yield run[0], run[-1] + MINUTE, run
            run = []
        run.append(pane)
    if run:
        yield run[0], run[-1] + MINUTE, run


def _floor(instant: datetime, length: timedelta) -> datetime:
    return instant - (instant - EPOCH) % length
