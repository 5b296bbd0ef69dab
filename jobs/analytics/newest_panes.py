"""The panes that a driver changed last: they stay in its memory, so that it does not read and open them again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

from jobs.view_measures import Accumulator, accumulator, written
from metering.views import Aggregate, View
from metering.windows import MINUTE

MAX_BYTES = 32 << 20
"""Of panes in memory, about: those of some thousand keys in the last minutes."""
OPEN_PANES = 2_000
"""Panes of a batch that are open at once, beside those that stay in memory: late outcomes may touch every minute that
is kept, and all at once were more than a driver holds, and took longer than Postgres lets a session be idle."""
OPEN_BYTES = 16 << 20
"""Of rows of these: of each pane a driver has about seven times as much, as it is read, opened, and written."""
STORED_BYTES = {Aggregate.DISTINCT: 6_000, Aggregate.PERCENTILES: 7_000, Aggregate.TOP: 100_000, Aggregate.GAPS: 11_000}
"""The most that a row has of a measure, of a top with values as long as a UUID; a number has next to nothing."""
MEASURE_BYTES = 1_000
"""Of each measure of a pane beside what it stores."""
_JSON = json.JSONEncoder(ensure_ascii=False).encode

Key: TypeAlias = tuple[int, int, tuple[str | None, ...]]
"""A pane: view_id, minute since the epoch, keys."""


class AddedPane(NamedTuple):
    """What outcomes of a batch add to a pane; `minute` since the epoch, `parts` of the view's measures in their order
    (`Accumulator.add`), None of one without any value.
    """

    view: str
    version: str
    minute: int
    keys: tuple[str | None, ...]
    parts: tuple[Any, ...]


@dataclass(slots=True)
class Pane:
    """The measures of a pane, its keys as JSON, and whether there is a row of it."""

    view: View
    keys: str
    is_stored: bool
    accumulators: list[Accumulator | None]
    size: int = 0
    """While it is in memory: about how many bytes it takes."""

    @classmethod
    def of(cls, view: View, keys: Sequence[str | None], *, is_stored: bool) -> Pane:
        """A pane to which nothing was added."""
        return cls(view, _JSON(keys), is_stored, [None] * len(view.measures))

    def add(self, parts: Sequence[Any]) -> None:
        """Add parts of the measures, in their order."""
        for place, part in enumerate(parts):
            if part is None:
                continue
            found = self.accumulators[place]
            if found is None:
                found = self.accumulators[place] = accumulator(self.view.measures[place].aggregate)
            found.add(part)

    def measures(self) -> str:
        """As a row has them."""
        listed = zip(self.view.measures, self.accumulators, strict=True)
        return written({measure.name: found.stored() for measure, found in listed if found is not None})


class NewestPanes:
    """The panes that the last batches of a driver changed, as they are stored, for as long as its transactions are
    committed: nobody else changes panes meanwhile, and `weir retain` alone removes some.
    """

    def __init__(
        self, max_bytes: int = MAX_BYTES, max_open: int = OPEN_PANES, max_open_bytes: int = OPEN_BYTES
    ) -> None:
        self.max_open = max_open
        self.max_open_bytes = max_open_bytes
        self._max_bytes = max_bytes
        self._bytes = 0
        self._panes: dict[Key, Pane] = {}

    def get(self, key: Key) -> Pane | None:
        """A pane, if it is here."""
        return self._panes.get(key)

    def bytes_of(self, key: Key, view: View) -> int:
        """About how many bytes a pane takes; of one that is not here, at most."""
        pane = self._panes.get(key)
        return sum(STORED_BYTES.get(of.aggregate, 0) for of in view.measures) if pane is None else pane.size

    def keep(self, changed: Mapping[Key, Pane], measures: Sequence[str]) -> None:
        """Keep these, whose rows have these measures, and of the others those that were changed last, as far as there
        is room.
        """
        for (key, pane), stored in zip(changed.items(), measures, strict=True):
            if key in self._panes:
                self._forget(key)
            pane.size = MEASURE_BYTES * len(pane.accumulators) + len(stored)
            self._panes[key] = pane
            self._bytes += pane.size
        while self._bytes > self._max_bytes:
            self._forget(next(iter(self._panes)))

    def forget_before(self, instant: datetime) -> None:
        """Forget those of minutes that begin before it."""
        for key in [key for key in self._panes if key[1] * MINUTE.seconds < instant.timestamp()]:
            self._forget(key)

    def forget_all(self) -> None:
        """Forget all: rows are not as they were."""
        self._panes.clear()
        self._bytes = 0

    def _forget(self, key: Key) -> None:
        self._bytes -= self._panes.pop(key).size


def account_of(view: View, keys: Sequence[str | None]) -> str | None:
    """Whose a pane is; None of a view that has no account as a key."""
    return keys[view.by.index("account")] if "account" in view.by else None
