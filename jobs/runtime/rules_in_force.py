"""What decides, with the position from which it holds: a change never decides the past again.

A Delta job keeps the whole history as JSON in the column `rules` of one row, `[{"from": 1, "rules": {...}}, ...]`, and
the lsn of that row in the transaction `rules`. `from` is an lsn of the job's input. joins keeps its history so, billing
in the table `rules` (`rules_table.py`), sessionization in `session_gaps`; what ingestion is told is kept nowhere yet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

import polars as pl
from deltalake import DeltaTable

from jobs.runtime.delta import DeltaWriter

TRANSACTION = "rules"
Rules = Mapping[str, Any]
"""The deciding fields of a job's configuration (`JobConfig.deciding`)."""


@dataclass(frozen=True)
class Held:
    """Rules, and the first position that they decide."""

    first: int
    rules: Rules


History = tuple[Held, ...]
"""In the order of positions. Empty: nothing was ever decided, or by a version that kept no rules."""


def rules_at(history: History, position: int) -> Rules:
    """The rules that decide `position`; before the first known ones, those. Raises IndexError without any."""
    return next((held.rules for held in reversed(history) if held.first <= position), history[0].rules)


def extended(history: History, first: int, present: Rules) -> History:
    """The history when `present` rules decide from `first` on: the same when it ends with them."""
    return history if history and history[-1].rules == present else (*history, Held(first, present))


def read_history(table: DeltaTable) -> tuple[History, date | None]:
    """The rules that made a table, for whoever recomputes it, and the log date of the row that names them."""
    lsn = table.transaction_version(TRANSACTION)
    if lsn is None:
        return (), None
    rows = pl.scan_pyarrow_dataset(table.to_pyarrow_dataset()).filter(pl.col("lsn") == lsn)
    found = rows.select("rules", "log_date").collect()
    if found.is_empty() or found["rules"][0] is None:
        return (), None
    return parse_history(found["rules"][0]), found["log_date"][0]


def parse_history(text: str) -> History:
    """The column `rules` of a row that has it."""
    return tuple(Held(held["from"], held["rules"]) for held in json.loads(text))


def history_text(history: History) -> str:
    """The column `rules` for a history."""
    return json.dumps([{"from": held.first, "rules": held.rules} for held in history], sort_keys=True)


class RulesInForce:
    """The history of one Delta job's rules, and whether its next commit must say something new."""

    def __init__(self, writer: DeltaWriter, present: Rules) -> None:
        """`present`: the rules of this driver's configuration."""
        self._present = present
        self.history, self._kept_on = read_history(writer.table)

    @property
    def is_new(self) -> bool:
        """Whether the present rules are not yet those that the history ends with."""
        return not self.history or self.history[-1].rules != self._present

    def text(self, first: int, today: date) -> str | None:
        """What the first row of a commit keeps: None when the table knows it. New rules hold from `first` on.

        Each log date has its copy, because retention removes whole days from the old end.
        """
        if not self.is_new and self._kept_on == today:
            return None
        return history_text(self._with_present(first))

    def kept(self, first: int, today: date) -> None:
        """The commit with `text(first, today)` is done."""
        self.history, self._kept_on = self._with_present(first), today

    def _with_present(self, first: int) -> History:
        return extended(self.history, first, self._present)
