"""The journal → the usage that joins and a later audit would have made of it, as rows that billing can fold.

It uses the functions that joins and the audit decide with. A row has the lsn of the live row of the same outcome, so
people's decisions about that row apply to it; an outcome that is not live gets a number after all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from jobs.audit.recompute.examination import (
    SUM,
    USAGE_READ,
    as_table,
    contents,
    examine,
    first_rows,
    journal_read,
)
from jobs.audit.recompute.expected import OUTCOME, Pinned, recompute
from jobs.audit.recompute.late_contracts import (
    READ_OF_VALIDATED,
    VALIDATED_FROM,
    later_contracts,
    mark_late_contract,
    sent_again,
)
from jobs.audit.recompute.once_per import marked
from jobs.audit.recompute.reversals import REVERSAL, is_examined
from jobs.audit.tables.append import AUDIT
from jobs.billing.sums import COLUMNS
from jobs.joins.memory import KEY, column_of
from jobs.joins.recovery import as_carried, is_paired
from jobs.journal.families import family
from jobs.runtime.delta.table import LSN
from jobs.streams import USAGE
from metering.vocabulary import UsageCause

BATCH_ROWS = 1_000_000
MAX_PER_ROW = 4
"""Corrections per row of the journal: one negation, one replacement alone, and one in a pair."""
_NULLABLE = pa.schema([field.with_nullable(True) for field in USAGE])
FOLDED = pa.schema([_NULLABLE.field(name) for name in COLUMNS if name in _NULLABLE.names])


@dataclass(frozen=True)
class Tables:
    """One version of the journal and one of usage, which was made of it; of the journal the log dates from `since`."""

    journal: DeltaTable
    usage: DeltaTable
    since: date

    @property
    def is_audited(self) -> bool:
        """Whether an audit has ever corrected anything: then its corrections are applied here, too."""
        return self.usage.transaction_version(AUDIT) is not None


def replayed(tables: Tables, live: Pinned, assumed: Pinned, rows_at_once: int = BATCH_ROWS) -> Iterator[pa.Table]:
    """FOLDED, first of all outcomes, then of corrections, last of people's decisions."""
    journal, usage = (table.to_pyarrow_dataset() for table in (tables.journal, tables.usage))
    concerns = (pc.field("lsn") < live.position) & (pc.field("log_date") >= tables.since)
    stored = [name for name in (*journal_read(assumed), "disposition") if name in journal.schema.names]
    rows = journal.count_rows(filter=concerns)
    parts, next_lsn, late = 1 + rows // rows_at_once, tables.usage.transaction_version(LSN) or 1, []
    contracted = _contracted(tables, live, assumed, concerns)
    is_audited = tables.is_audited or (bool(assumed.contents) and assumed.history != live.history)

    def read(part: int) -> pl.DataFrame:
        concerned = pl.DataFrame(journal.to_table(columns=stored, filter=concerns))
        return concerned.filter(is_examined() & (_part(parts) == part))

    def known(concerned: pl.DataFrame, part: int) -> pl.DataFrame:
        late_rows = contracted.filter(_part(parts) == part)
        return pl.concat([mark_late_contract(concerned, late=False), late_rows], how="diagonal")

    def contents_of(part: int) -> tuple[pl.DataFrame, pl.DataFrame]:
        concerned = read(part)
        made, _ = _stream(concerned, _lsns(usage, parts, part), assumed, next_lsn)
        return contents(known(concerned, part), _as_read(made), assumed, _first(usage, parts, part))

    uncounted = None
    if is_audited and assumed.contents:
        found, blocked = zip(*(contents_of(part) for part in range(parts)), strict=True)
        uncounted = marked(pl.concat(found), pl.concat(blocked).unique(), assumed)
    for part in range(parts):
        concerned = read(part)
        made, next_lsn = _stream(concerned, _lsns(usage, parts, part), assumed, next_lsn)
        yield _folded(made)
        if is_audited:
            first = _first(usage, parts, part)
            put_right, next_lsn = _audited(known(concerned, part), made, assumed, next_lsn, first, uncounted=uncounted)
            late.append(_folded(put_right))
    yield from late
    decided = usage.to_table(
        columns=[name for name in FOLDED.names if name in usage.schema.names],
        filter=pc.field("cause") == UsageCause.DECIDED.value,
    )
    yield _folded(pl.DataFrame(decided))


def _contracted(tables: Tables, live: Pinned, assumed: Pinned, concerns: pc.Expression) -> pl.DataFrame:
    """Rows of the journal whose contract came after them, as it takes them (`journal_read`); an audit knows them."""
    later, journal = later_contracts(tables.journal, live), tables.journal.to_pyarrow_dataset()
    names = [name for name in journal_read(assumed) if name in journal.schema.names]
    is_late = concerns & pc.field("type").isin(later.types) if later else pc.scalar(False)
    stored = {*names, *VALIDATED_FROM, *READ_OF_VALIDATED} & set(journal.schema.names)
    rows = pl.DataFrame(journal.to_table(columns=sorted(stored), filter=is_late))
    if not later:
        return mark_late_contract(rows.select(names), late=True)
    unknown = rows.filter(later.wanted.is_wanted(rows))
    events = mark_late_contract(later.validated(rows), late=False), mark_late_contract(later.taken(unknown), late=True)
    return mark_late_contract(later.takes(unknown, names), sent_again(pl.concat(events)), late=True)


def _part(parts: int) -> pl.Expr:
    return (pl.col(KEY[0]).hash(1) ^ pl.col(KEY[1]).hash(2)) % parts


def _lsns(usage: ds.Dataset, parts: int, part: int) -> pl.DataFrame:
    """(OUTCOME, usage_lsn) of the rows of the stream."""
    is_stream = pc.field("cause") == UsageCause.STREAM.value
    found = pl.DataFrame(usage.to_table(columns=["lsn", *OUTCOME], filter=is_stream)).filter(_part(parts) == part)
    return found.unique(OUTCOME).rename({"lsn": "usage_lsn"})


def _first(usage: ds.Dataset, parts: int, part: int) -> pl.DataFrame:
    """(OUTCOME, usage_lsn) of the rows that audits added, by the meters of their time."""
    is_put = pc.field("cause") != UsageCause.STREAM.value
    found = pl.DataFrame(usage.to_table(columns=["lsn", "sign", *OUTCOME], filter=is_put))
    return first_rows(found.filter(_part(parts) == part))


def _stream(journal: pl.DataFrame, lsns: pl.DataFrame, pinned: Pinned, next_lsn: int) -> tuple[pl.DataFrame, int]:
    """What joins makes of rows of the journal (USAGE_READ and `frontier`), and the next number."""
    kinds = {column_of(name): kind for name, kind in pinned.schema.items()} | {"identity": pl.Binary, **REVERSAL}
    journal = journal.filter(is_paired())
    absent = [pl.lit(None, kinds.get(name)).alias(name) for name in journal_read(pinned) if name not in journal.columns]
    carried = as_carried(journal.with_columns(absent).with_columns(family()), pinned.schema)
    outcomes = recompute(carried, lsns, pinned)
    numbered = outcomes.join(lsns, on=OUTCOME, how="left", nulls_equal=True).sort("request_lsn", "completion_lsn")
    is_new = pl.col("usage_lsn").is_null()
    lsn = pl.coalesce("usage_lsn", next_lsn - 1 + is_new.cum_sum().cast(pl.Int64))
    made = numbered.with_columns(
        lsn=lsn,
        sign=pl.lit(1, pl.Int32),
        cause=pl.lit(UsageCause.STREAM.value),
        corrects_lsns=pl.lit(None, pl.List(pl.Int64)),
        frontier=pl.lit(pinned.frontier, pl.Datetime("us", "UTC")),
    ).drop("usage_lsn")
    return made, next_lsn + int(numbered.select(is_new.sum()).item())


def _as_read(made: pl.DataFrame) -> pl.DataFrame:
    """Rows of usage as an audit reads them."""
    return made.select(name for name in USAGE_READ if name in made.columns)


def _audited(
    journal: pl.DataFrame,
    made: pl.DataFrame,
    pinned: Pinned,
    next_lsn: int,
    first: pl.DataFrame,
    *,
    uncounted: pl.DataFrame | None,
) -> tuple[pl.DataFrame, int]:
    """What an audit would append to that, and the next number."""
    known = replace(pinned, max_rows=len(journal) * MAX_PER_ROW)
    found = examine(journal, _as_read(made), known, first, uncounted=uncounted)
    (stream,) = found.filter(pl.col("kind") == SUM)["corrections"]
    rows = pl.DataFrame(as_table(stream))
    numbered = rows.with_columns(
        lsn=pl.int_range(pl.len(), dtype=pl.Int64) + next_lsn,
        frontier=pl.lit(pinned.frontier, pl.Datetime("us", "UTC")),
    )
    return numbered, next_lsn + len(rows)


def _folded(rows: pl.DataFrame) -> pa.Table:
    table = rows.to_arrow()
    columns = [
        table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(len(table), field.type)
        for field in FOLDED
    ]
    return pa.table(columns, schema=FOLDED).sort_by("lsn")
