"""Effective rules: each with the position from which it applies, so a change never decides the past again.

A Delta job keeps the whole history as JSON in the column `rules` of one row, `{"in_force": [{"from": 1, ...}, ...]}`,
and the lsn of that row in the transaction `rules`. `from` is an lsn of the rows that the rules decide: of the journal
for ingestion, which numbers it, and for joins, which reads it. billing has the table `rules` (`rules_table.py`),
sessionization `session_gaps`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from jobs.runtime.delta.rows_by_lsn import rows_at
from jobs.runtime.delta.table import DeltaWriter
from metering.lateness import still_closed
from metering.meters import OfMeter

TRANSACTION = "rules"
IN_FORCE = "in_force"
Rules = Mapping[str, Any]
"""The deciding fields of a job's configuration (`JobConfig.deciding`)."""


NOTHING_CLOSED: OfMeter[datetime | None] = OfMeter(None)


@dataclass(frozen=True)
class EffectiveRules:
    """Rules, the first position that they decide, and when that was written down.

    `closed_before`: what ended by then was shown closed under earlier rules, and stays so.
    """

    first: int
    rules: Rules
    since: datetime | None = None
    closed_before: OfMeter[datetime | None] = NOTHING_CLOSED


History = tuple[EffectiveRules, ...]
"""In the order of positions. Empty: nothing is decided yet, or a version that stored no rules decided it."""


def effective_at(history: History, position: int) -> EffectiveRules:
    """What decides `position`; before the first known rules, those. Raises IndexError without any."""
    return next((held for held in reversed(history) if held.first <= position), history[0])


def effective_from(history: History, position: int) -> History:
    """What decides the rows from `position` on; nothing without any."""
    return (effective_at(history, position), *(held for held in history if held.first > position)) if history else ()


def closed_under(
    held: EffectiveRules, after: OfMeter[timedelta], frontier: datetime | None
) -> OfMeter[datetime | None]:
    """By when ended what is closed under rules at this F, `after` so long: now, or before they held."""
    before = held.closed_before
    every = still_closed(frontier, after.every, before.every)
    own = {meter: still_closed(frontier, after.of(meter), before.of(meter)) for meter in {*after.own, *before.own}}
    return OfMeter(every, {meter: closed for meter, closed in own.items() if closed != every})


def rules_at(history: History, position: int) -> Rules:
    """The rules of `effective_at`."""
    return effective_at(history, position).rules


def parts_by_rules(rows: pa.Table, history: History) -> Iterator[tuple[pa.Table, EffectiveRules]]:
    """The rows (lsn, …) that each rules decide, with these rules; rows before the first known rules by those.

    Where there are several, those that decide none of the rows are left out.
    """
    if len(history) == 1:
        yield rows, history[0]
        return
    lsn = pc.field("lsn")
    for place, held in enumerate(history):
        after = pc.scalar(True) if place == 0 else lsn >= held.first
        part = rows.filter(after & (lsn < history[place + 1].first) if place + 1 < len(history) else after)
        if len(part):
            yield part, held


def extended(history: History, first: int, present: Rules, now: datetime | None = None) -> History:
    """The history when `present` rules decide from `first` on: the same when it ends with them."""
    return history if history and history[-1].rules == present else (*history, EffectiveRules(first, present, now))


def read_history(table: DeltaTable) -> tuple[History, date | None]:
    """The rules that made a table, for recomputing it, and the log date of the row that holds them."""
    lsn = table.transaction_version(TRANSACTION)
    if lsn is None:
        return (), None
    for found, log_date in rows_at(table, lsn, ["rules"]):
        return parse_history(found["rules"][0]), log_date
    return (), None


def parse_history(text: str) -> History:
    """The column `rules` of a row that has the history."""
    return tuple(
        EffectiveRules(held["from"], held["rules"], datetime.fromisoformat(held["since"]))
        for held in json.loads(text)[IN_FORCE]
    )


def rules_text(document: Mapping[str, Any]) -> str | None:
    """The column `rules` of a row that holds rules (`RulesHistory.said`, a job's own words)."""
    return json.dumps(document, sort_keys=True) if document else None


class RulesHistory:
    """The history of one Delta job's rules, and whether its next commit must say something new."""

    def __init__(self, writer: DeltaWriter, present: Rules) -> None:
        """`present`: the rules of this driver's configuration."""
        self._present = present
        self.history, self._kept_on = read_history(writer.table)

    def document(self, first: int, now: datetime) -> Mapping[str, Any]:
        """What the first row of a commit must say: nothing when the table knows it. New rules hold from `first` on.

        Each log date has its copy, because retention removes whole days from the old end.
        """
        return self.document_of(extended(self.history, first, self._present), now)

    def document_of(self, history: History, now: datetime) -> Mapping[str, Any]:
        """As `document`, for a job in which several changes may take effect at once: `history` continues where it
        ended.
        """
        dated = self._dated(history, now)
        if dated == self.history and self._kept_on == now.date():
            return {}
        return {IN_FORCE: [_written(held) for held in dated]}

    def written(self, first: int, now: datetime) -> None:
        """The commit with `document(first, now)` is done."""
        self.written_of(extended(self.history, first, self._present), now)

    def written_of(self, history: History, now: datetime) -> None:
        """The commit with `document_of(history, now)` is done."""
        self.history, self._kept_on = self._dated(history, now), now.date()

    def _dated(self, history: History, now: datetime) -> History:
        return (*self.history, *(replace(held, since=now) for held in history[len(self.history) :]))


def _written(held: EffectiveRules) -> Mapping[str, Any]:
    return {"from": held.first, "since": held.since and held.since.isoformat(), "rules": held.rules}
