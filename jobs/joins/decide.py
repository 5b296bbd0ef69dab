"""New rows of the journal and the passing of time → decisions. No Spark, no tables, no prices."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import polars as pl

from jobs.joins.frontier import batch_frontier, last_frontier
from jobs.joins.memory import Memory, Schema
from jobs.joins.recovery import RecoverySource, as_carried, is_paired, preceding_frontier, recovered_rows
from jobs.joins.resolve import resolve
from jobs.joins.timeouts import Timeouts
from jobs.journal.families import family
from jobs.runtime.effective_rules import EffectiveRules, History, Rules, extended

METERING = ("meters", "dimensions", "price_attributes")
"""Rules that an outcome's row records: all outcomes of a batch have those of the driver that decides it."""


@dataclass(frozen=True)
class Known:
    """What joins knows of the journal below its position."""

    memory: Memory
    frontier: datetime | None
    preceding_frontier: datetime | None
    """F of the row before the position; None: unknown."""
    history: History
    """The rules that decide, the last of them the next rows; at least one."""

    @classmethod
    def derived(cls, past: RecoverySource | None, stored: History, present: EffectiveRules, schema: Schema) -> Known:
        """What a start knows: all of it follows from the journal and usage. `past` None: no row was read yet.

        Where usage kept no rules, because it is empty (then `present` hold from 1 on) or because its version kept none,
        the `present` ones decide what is undecided. `schema`: what is remembered of a row.
        """
        history = stored or (present,)
        if past is None:
            return cls(Memory.empty(schema), None, None, history)
        memory = recovered_rows(past, history)
        if not stored and present.first == 1:
            # Not even that two rows are too far from each other was decided: other timeouts may bring them together.
            memory = memory.reset()
        return cls(memory, past.frontier, preceding_frontier(past.journal, past.position), history)


def decide(
    known: Known, journal: pl.DataFrame, rules: Rules, limit_bytes: int, *, ends_table: bool
) -> tuple[pl.DataFrame, Known]:
    """New rows (memory.carried, disposition, frontier; at least one) → outcomes (`resolve`), and what is known then.

    `rules` are those of the configuration: they decide from the row after these on, once there is an outcome to be
    stored with them; but METERING from these rows on, for the outcomes alone tell it. Beyond half of `limit_bytes`
    expired rows are dropped from memory; it may still be larger.
    """
    frontier = batch_frontier(journal, ends_table=ends_table, before=known.frontier, preceding=known.preceding_frontier)
    waiting = Timeouts(known.history).of_row()
    paired = as_carried(journal.filter(is_paired()).with_columns(family()), known.memory.schema)
    outcomes, memory = decide_rows(known.memory, paired.with_columns(waiting), frontier, limit_bytes)
    history = known.history
    if len(outcomes):
        first_lsn, last_lsn = int(journal["lsn"].min()), int(journal["lsn"].max())  # type: ignore[arg-type]
        history = rules_after(history, first_lsn, last_lsn + 1, rules)
    return outcomes, Known(memory, frontier, last_frontier(journal), history)


def decide_rows(
    memory: Memory, new: pl.DataFrame, frontier: datetime | None, limit_bytes: int
) -> tuple[pl.DataFrame, Memory]:
    """Requests and completions (`Memory.involved`) and F → outcomes (`resolve`), and what is remembered then.

    Of all keys, or of any part of them together with the memory of that part: no key meets another.
    """
    involved = memory.involved(new, frontier)
    outcomes = resolve(involved, frontier)
    return outcomes, memory.after(involved, outcomes, frontier).within(limit_bytes, frontier)


def rules_after(history: History, first_lsn: int, next_lsn: int, rules: Rules) -> History:
    """The rules once outcomes of a batch [first_lsn, next_lsn) are stored with those of the configuration."""
    kept = {name: rule for name, rule in history[-1].rules.items() if name not in METERING}
    metered = {**kept, **{name: rules[name] for name in METERING if name in rules}}
    return extended(extended(history, first_lsn, metered), next_lsn, rules)
