"""People's decisions in the journal, compared with the rows of usage that record them for billing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl
import pyarrow.compute as pc
from deltalake import DeltaTable

from jobs.audit.tables.retained import RetainedRows
from jobs.joins.decisions import decisions
from jobs.joins.recovery import CLOCK_SKEW
from jobs.streams import CatalogTopic, Table
from metering.vocabulary import Disposition, UsageCause

_DECIDED = ("request_lsn", "account", "request_id", "sign", "dimensions", "straggler", "meter")
_READ = ("request_lsn", "account", "request_id", "sign", "dimensions", "corrects_lsns", "meters", "received_at")


def wrong_decisions(
    journal: DeltaTable, usage: DeltaTable, retained: Mapping[Table, RetainedRows], position: int
) -> Iterator[str]:
    """A sentence for each way in which decisions in usage are not those that the journal below lsn `position` tells.

    Those of days that are not whole in both tables are not checked. joins says that one was received when it
    was, or when F had come that far before it: F with its row is never less.
    """
    begin = _first(journal, retained)
    changes = (
        pl.scan_pyarrow_dataset(journal.to_pyarrow_dataset())
        .filter((pl.col("lsn") >= begin) & (pl.col("lsn") < position))
        .filter((pl.col("topic") == CatalogTopic.DECISIONS.value) & (pl.col("disposition") == Disposition.ACCEPTED))
        .select("lsn", "topic", "value", "received_at")
        .collect()
    )
    is_one = (
        (pc.field("cause") == UsageCause.DECIDED.value)
        & (pc.field("request_lsn") >= begin)
        & (pc.field("request_lsn") < position)
    )
    found = usage.to_pyarrow_dataset().to_table(columns=[*_READ, "frontier"], filter=is_one)
    must, made = (_with_stragglers(pl.DataFrame(rows)) for rows in (decisions(changes, None), found))
    for left, other, verb in (
        (must, made, "lacks, or differs from, what was decided"),
        (made, must, "has a decision that the journal lacks, or that differs from it,"),
    ):
        if differs := _lsns(left.join(other, on=_DECIDED, how="anti", nulls_equal=True)):
            yield f"usage {verb} at lsn {differs[0]} of the journal ({len(differs)} in all)"
    if twice := _lsns(made.filter(pl.col("request_lsn").is_duplicated())):
        yield f"usage has what was decided at lsn {twice[0]} of the journal more than once ({len(twice)} in all)"
    both = made.join(must, on=_DECIDED, suffix="_first", nulls_equal=True)
    is_moved = (pl.col("received_at") < pl.col("received_at_first")) | (
        (pl.col("received_at") > pl.col("received_at_first")) & (pl.col("received_at") > pl.col("frontier"))
    )
    if moved := _lsns(both.filter(is_moved)):
        yield f"usage has another time for the decision at lsn {moved[0]} of the journal ({len(moved)} in all)"


def _lsns(rows: pl.DataFrame) -> list[int]:
    return rows["request_lsn"].unique().sort().to_list()


def _first(journal: DeltaTable, retained: Mapping[Table, RetainedRows]) -> int:
    """The lsn of the journal from which on it is whole, and usage has what was made of it."""
    first, since = retained[Table.JOURNAL].first, retained[Table.USAGE].since
    if since is None:
        return first
    files = pl.DataFrame(journal.get_add_actions(flatten=True))
    later = files.filter(pl.col("partition.log_date").cast(pl.Date) >= since + CLOCK_SKEW)["min.lsn"].drop_nulls()
    return max([first, *([min(later.to_list())] if len(later) else [retained[Table.JOURNAL].next])])


def _with_stragglers(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of usage that say decisions, with the straggler and the meter that they are about."""
    return rows.with_columns(
        straggler=pl.col("corrects_lsns").list.first(), meter=pl.col("meters").list.first().struct.field("meter")
    ).drop("corrects_lsns", "meters")
