"""New rows of the journal → what they and the passing of time decide. No Spark, no tables, no prices."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import polars as pl

from jobs.joins.frontier import held_frontier, last_frontier
from jobs.joins.memory import Memory
from jobs.joins.past import Past, is_paired, preceding_frontier, remembered
from jobs.joins.resolve import resolve
from jobs.joins.timeouts import Timeouts
from jobs.runtime.families import family
from jobs.runtime.rules_in_force import Held, History, Rules, extended


@dataclass(frozen=True)
class Known:
    """What joins knows of the journal below its position."""

    memory: Memory
    frontier: datetime | None
    preceding_frontier: datetime | None
    """What the row before the position says of F; None: unknown."""
    history: History
    """The rules that decide, the last of them the next rows; at least one."""

    @classmethod
    def derived(cls, past: Past | None, kept: History, present: Held) -> Known:
        """What a start knows: all of it follows from the journal and usage. `past` None: no row was read yet.

        Where usage kept no rules, because it is empty (then `present` hold from 1 on) or because its version kept none,
        the `present` ones decide what is undecided.
        """
        history = kept or (present,)
        if past is None:
            return cls(Memory.empty(), None, None, history)
        memory = remembered(past, history)
        if not kept and present.first == 1:
            # Not even that two rows are too far from each other was decided: other timeouts may bring them together.
            memory = memory.anew()
        return cls(memory, past.frontier, preceding_frontier(past.journal, past.position), history)


def decide(
    known: Known, journal: pl.DataFrame, rules: Rules, limit_bytes: int, *, ends_table: bool
) -> tuple[pl.DataFrame, Known]:
    """New rows (memory.CARRIED, disposition, frontier; at least one) → outcomes (`resolve`), and what is known then.

    `rules` are those of the configuration: they decide from the row after these on, once there is an outcome to be
    stored with them. Beyond half of `limit_bytes` memory is freed of what is over; it may still be larger.
    """
    frontier = held_frontier(journal, ends_table=ends_table, before=known.frontier, preceding=known.preceding_frontier)
    timeout_us = Timeouts(known.history).of_row()
    paired = journal.filter(is_paired()).with_columns(family())
    involved = known.memory.involved(paired.with_columns(timeout_us), frontier)
    outcomes = resolve(involved, frontier)
    memory = known.memory.after(involved, outcomes, frontier).within(limit_bytes, frontier)
    next_lsn = int(journal["lsn"].max()) + 1  # type: ignore[arg-type]
    history = known.history if outcomes.is_empty() else extended(known.history, next_lsn, rules)
    return outcomes, Known(memory, frontier, last_frontier(journal), history)
