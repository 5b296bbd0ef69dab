"""A part of the journal, a fixed range of `lsn`, as the identity index holds it: rows, filters, or only its borders.

What was accepted in a completed range never changes, so rows and filters may be dropped and read again at any time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from jobs.ingestion.identity_filter import IdentityFilter, Probes
from jobs.ingestion.repeats import NO_DAY

ENTRY_BYTES = 44
MAX_HALVINGS = 4
"""Of a filter: 4 to 8 bits an identity are left, and of a hundred strangers 3 to 37 pass."""
ALWAYS = (1 << 63) - 1
ANY_DAY = (NO_DAY, 2**31 - 1)
NO_DAYS = (2**31 - 1, NO_DAY)
ALL_DAYS = 2**31 - 1
"""Instead of a day: the filter of all rows, whenever they occurred."""


@dataclass(frozen=True)
class Span:
    """What is known of journal rows [first_lsn, last_lsn] before they are read.

    None was received after `latest_us`, and those that have a day occurred within `days`, both ends included; `ALWAYS`
    and `ANY_DAY` where that is not known.
    """

    first_lsn: int
    last_lsn: int
    latest_us: int
    days: tuple[int, int]


class Asking:
    """A batch (CANDIDATE) as columns that are looked up in one segment after the other."""

    def __init__(self, batch: pl.DataFrame) -> None:
        self._batch = batch
        self._near_us = batch["near_since"].to_physical().to_numpy()
        self._far_us = batch["far_since"].to_physical().fill_null(ALWAYS).to_numpy()
        self._first_near_us = int(self._near_us.min(initial=ALWAYS))
        self.first_us = min(self._first_near_us, int(self._far_us.min(initial=ALWAYS)))
        days = batch["day"].to_numpy()
        far = np.flatnonzero(self._far_us < ALWAYS)
        self._far_of_day = {int(day): far[days[far] == day] for day in np.unique(days[far])}

    @cached_property
    def probes(self) -> Probes:
        """Its identities, made ready once for the filters of all segments."""
        return _probes(self._batch)

    def near(self, latest_us: int) -> NDArray[np.intp]:
        """Rows that may repeat what was received at `latest_us`, whenever that occurred."""
        if latest_us < self._first_near_us:
            return np.empty(0, dtype=np.intp)
        return np.flatnonzero(self._near_us <= latest_us)

    def far(self, latest_us: int) -> dict[int, NDArray[np.intp]]:
        """Rows that may repeat what was received at `latest_us` if it occurred on their day, by that day."""
        found = {day: rows[self._far_us[rows] <= latest_us] for day, rows in self._far_of_day.items()}
        return {day: rows for day, rows in found.items() if len(rows)}


class Segment:
    """Accepted identities of one range of lsn.

    `rows` is None where they are only in the journal; the open segment, which is being written, has no filters.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.latest_us = -ALWAYS
        self.rows: list[pl.DataFrame] | None = None
        self.is_page = False
        """The rows were read for a look-up, and stay until others need the memory."""
        self.filters: dict[int, IdentityFilter] | None = None
        self.filter_bytes = 0
        self.halvings = 0
        self.used = 0
        self.was_looked_up = False
        """It was looked up since the last check whether it can be dropped."""
        self.kept_until_us = -ALWAYS
        """Beyond the horizon its filters stay until then."""
        self._days = NO_DAYS

    def widen(self, latest_us: int, days: tuple[int, int]) -> None:
        """Add more rows, described by this span."""
        self.latest_us = max(self.latest_us, latest_us)
        self._days = (min(self._days[0], days[0]), max(self._days[1], days[1]))

    def add(self, accepted: pl.DataFrame) -> None:
        """Remember accepted rows (ENTRY) of the range that is being written."""
        latest, first_day, last_day = accepted.select(
            pl.col("received_at").max().to_physical(), pl.col("day").min(), pl.col("day").max().alias("last_day")
        ).row(0)
        self.rows = [*(self.rows or []), accepted]
        self.widen(latest, (first_day, last_day))

    @property
    def identities(self) -> int:
        """How many are in memory."""
        return sum(map(len, self.rows or []))

    def frame(self) -> pl.DataFrame:
        """The rows in memory as one frame (ENTRY)."""
        assert self.rows is not None
        if len(self.rows) > 1:
            self.rows = [pl.concat(self.rows, rechunk=True)]
        return self.rows[0]

    def make_filter(self) -> None:
        """One filter of all rows: every event is looked up among those of the exact horizon."""
        self._take({ALL_DAYS: IdentityFilter(_probes(self.frame()))})

    def make_filters_by_day(self) -> None:
        """One filter for each day on which any of the rows occurred: older events repeat those of their day only."""
        parts = self.frame().partition_by("day", as_dict=True)
        self._take({day: IdentityFilter(_probes(part)) for (day,), part in parts.items()})

    def halve(self) -> None:
        """Take half the memory for its filters."""
        for found in (self.filters or {}).values():
            found.halve()
        self.halvings += 1
        self._weigh()

    def release(self) -> None:
        """Keep no rows."""
        self.rows, self.is_page = None, False

    def drop(self) -> None:
        """Keep neither rows nor filters."""
        self.release()
        self.filters = None
        self._weigh()

    def _take(self, filters: dict[int, IdentityFilter]) -> None:
        self.filters = filters
        self.halvings = 0
        self._weigh()

    def _weigh(self) -> None:
        self.filter_bytes = sum(found.size_bytes for found in (self.filters or {}).values())

    def may_hold(self, asking: Asking) -> NDArray[np.intp]:
        """Positions of the rows that may repeat one of this segment."""
        near, far = asking.near(self.latest_us), asking.far(self.latest_us)
        if self.filters is None:
            of_days = [rows for day, rows in far.items() if self._days[0] <= day <= self._days[1] or day == NO_DAY]
            return _distinct([near, *of_days])
        if (of_all := self.filters.get(ALL_DAYS)) is not None:
            rows = _distinct([near, *far.values()])
            return rows[of_all.may_hold(asking.probes.at(rows))]
        filters = self.filters.values() if len(near) else ()
        probes = asking.probes.at(near)
        hits = [near[found.may_hold(probes)] for found in filters]
        for day in far.keys() & self.filters.keys():
            rows = far[day]
            hits.append(rows[self.filters[day].may_hold(asking.probes.at(rows))])
        return _distinct(hits)


def _probes(rows: pl.DataFrame) -> Probes:
    return Probes.of(rows["high"].to_numpy(), rows["low"].to_numpy())


def _distinct(parts: list[NDArray[np.intp]]) -> NDArray[np.intp]:
    """All rows of parts, each of which has its rows once and in order."""
    filled = [part for part in parts if len(part)]
    if len(filled) <= 1:
        return filled[0] if filled else np.empty(0, dtype=np.intp)
    return np.unique(np.concatenate(filled))
