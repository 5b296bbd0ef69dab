"""All rows of some keys, of the journal and of usage → how much was examined, the faults, and the corrections."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

import polars as pl
import pyarrow as pa

from jobs.audit.compare.differences import DIFFERENCES, differences, net, standing
from jobs.audit.compare.prices import wrong_prices
from jobs.audit.recompute.corrections import as_rows, corrections
from jobs.audit.recompute.decisions import Standing, repeats, suspects
from jobs.audit.recompute.effective_outcomes import each_counted
from jobs.audit.recompute.expected import EXPECTED, IS_CONTRACTED, IS_SENT_AGAIN, OUTCOME, PARTS, Pinned, recompute
from jobs.audit.recompute.once_per import blocked, candidates, marked
from jobs.audit.recompute.restatements import REPORT
from jobs.audit.recompute.reversals import REVERSAL, without_reversals
from jobs.joins.memory import KEY, column_of
from jobs.joins.recovery import as_carried, columns_read
from jobs.journal.families import family
from jobs.streams import USAGE
from jobs.usage_entries import METERED_COLUMNS
from metering.vocabulary import UsageCause

SUM, STANDING = "sum", "standing"
EXAMINATION = pl.Schema(
    {
        **DIFFERENCES,
        "rows": pl.Int64(),
        "outcomes": pl.Int64(),
        "changes": pl.Int64(),
        "corrections": pl.Binary(),
    }
)
"""DIFFERENCES of the stream's rows (`of` null) and of effective usage (STANDING), and one row of the kind SUM. It
counts the examined rows of the journal, the examined outcomes and the rows that correct them, and has the first of
these (an Arrow stream of `corrections.CORRECTIONS`)."""
_KINDS = pl.DataFrame(USAGE.empty_table()).schema
_COLUMNS = [name for name in EXPECTED if name not in METERED_COLUMNS]
USAGE_READ = tuple(dict.fromkeys(("lsn", "sign", "cause", "corrects_lsns", "logged_at", *EXPECTED, *METERED_COLUMNS)))


def journal_read(pinned: Pinned) -> tuple[str, ...]:
    """The columns of the journal that `examine` wants."""
    return tuple(dict.fromkeys((*columns_read(pinned.schema), *REPORT, *REVERSAL)))


def examine(
    journal: pl.DataFrame,
    usage: pl.DataFrame,
    pinned: Pinned,
    first: pl.DataFrame | None = None,
    *,
    without: pl.DataFrame | None = None,
    uncounted: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Accepted requests, completions and reversals below the position (`journal_read`), usage (USAGE_READ) →
    EXAMINATION.

    Rows of the journal that are IS_CONTRACTED the stream has not decided, and those that are IS_SENT_AGAIN are billed
    as other requests; without these columns all are as it has them.
    A column that a table has not got yet is null. Keys with a row from before `pinned.since` or
    `pinned.known_from` are left out, and those of which all that occurred is from `pinned.until` on. So are those whose
    usage tells of a row of the journal that is not read. Of those from `pinned.priced_since` on only prices change.

    `first` (OUTCOME, usage_lsn): the first rows of outcomes, where other rows than these decide their meters.
    `without` (KEY): of these nothing is corrected. `uncounted` (`once_per.MARKED`): what does not count of these keys,
    as another outcome of its content does; None: these are all keys, so they say it.
    """
    read = _read(journal, usage, pinned, first)
    if not pinned.decides_contents:
        uncounted = None
    elif uncounted is None and pinned.contents:
        uncounted = marked(*_of_contents(read, pinned), pinned)
    keys = read.keys if uncounted is None else pl.concat([read.keys, read.sound(uncounted)]).unique()
    concerned, decided = (rows.join(keys, on=KEY, how="semi") for rows in (read.carried, read.expected))
    faults, rows = corrections(concerned, decided, read.known.of(keys), pinned, read.reversals, uncounted=uncounted)
    rows = rows.join(_otherwise(rows, read.final), on=KEY, how="anti", maintain_order="left")
    rows = rows if without is None else rows.join(without, on=KEY, how="anti", maintain_order="left")
    counted = pl.DataFrame(
        {
            "kind": [SUM],
            "rows": [read.decided_rows],
            "outcomes": [len(read.known.stream)],
            "changes": [len(rows)],
            "corrections": [_as_stream(as_rows(_first(rows, pinned.max_rows)))],
        }
    )
    differing = [read.wrong, pl.concat([read.broken, faults]).with_columns(of=pl.lit(STANDING))]
    parts = [*(rows.join(read.final, on=KEY, how="anti", maintain_order="left") for rows in differing), counted]
    return pl.concat(parts, how="diagonal").select(pl.col(name).cast(kind) for name, kind in EXAMINATION.items())


def contents(
    journal: pl.DataFrame, usage: pl.DataFrame, pinned: Pinned, first: pl.DataFrame | None = None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """What `examine` is given of some keys → (`once_per.CANDIDATES`, BLOCKED): what they bill of meters that count a
    content once, and what cannot be known of them.
    """
    return _of_contents(_read(journal, usage, pinned, first), pinned)


@dataclass(frozen=True)
class _Read:
    """The rows of keys that are not left out, and what the stream must have made of them."""

    journal: pl.DataFrame
    """As it has them, but for reversals."""
    carried: pl.DataFrame
    reversals: pl.DataFrame
    known: Standing
    expected: pl.DataFrame
    wrong: pl.DataFrame
    """DIFFERENCES of the stream's rows."""
    broken: pl.DataFrame
    """DIFFERENCES of effective usage."""
    keys: pl.DataFrame
    """The keys (KEY) of which something else may be known by now."""
    final: pl.DataFrame
    """The keys (KEY) of which only prices change: a row of them may have been removed."""
    left_out: pl.DataFrame
    """Rows of the journal of these and of other keys, but for reversals."""
    partial: pl.DataFrame
    """Those of the other keys (KEY) of which usage names a row that is not read."""

    @property
    def decided_rows(self) -> int:
        """How many rows the stream has decided."""
        return int((~self.carried[IS_CONTRACTED]).sum())

    def sound(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The keys (KEY) of rows: what is made wrong is nothing to build upon."""
        return rows.select(KEY).join(pl.concat([self.wrong, self.broken]), on=KEY, how="anti").unique()


def _read(journal: pl.DataFrame, usage: pl.DataFrame, pinned: Pinned, first: pl.DataFrame | None) -> _Read:
    kinds = {column_of(name): kind for name, kind in pinned.schema.items()}
    kinds |= {"identity": pl.Binary(), "usage_source": pl.String(), **REVERSAL}
    missing = {IS_CONTRACTED, IS_SENT_AGAIN}.difference(journal.columns)
    journal = journal.with_columns(pl.lit(value=False).alias(name) for name in missing)
    absent = [pl.lit(None, kinds.get(name)).alias(name) for name in journal_read(pinned) if name not in journal.columns]
    every = journal.with_columns(absent).with_columns(family())
    # A decision about a straggler is no outcome.
    stored = usage.filter(pl.col("cause") != UsageCause.DECIDED.value)
    journal, usage = _within(every, stored, pinned)
    final = _before(pinned.since, journal, usage)
    examined = journal.select(KEY).unique().join(final, on=KEY, how="anti")
    left_out, partial = _left_out(every, stored, examined) if pinned.contents else (every.clear(), examined.clear())
    journal, reversals = without_reversals(journal)
    carried = as_carried(journal, pinned.schema)
    usage = usage.with_columns(pl.lit(None, _KINDS[name]).alias(name) for name in _COLUMNS if name not in usage.columns)
    stream = net(usage.filter(pl.col("cause") == UsageCause.STREAM.value))
    is_untouched = bool((usage["cause"] == UsageCause.STREAM.value).all())
    now, broken = (stream, pl.DataFrame(schema=DIFFERENCES)) if is_untouched else standing(usage)
    broken = pl.concat([broken, wrong_prices(now, pinned)])
    known = Standing(stream, now, first_rows(usage) if first is None else first)
    decided = carried.filter(~pl.col(IS_CONTRACTED))
    expected = recompute(decided, stream.select(*OUTCOME, "usage_lsn"), pinned)
    wrong = differences(stream, expected)
    doubtful = pl.concat([suspects(carried, expected, known, pinned), reversals.select(KEY)]).unique()
    read = _Read(journal, carried, reversals, known, expected, wrong, broken, doubtful, final, left_out, partial)
    return replace(read, keys=read.sound(doubtful))


def _left_out(every: pl.DataFrame, usage: pl.DataFrame, examined: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """All rows of the journal and of usage, and the keys (KEY) that are examined → `_Read.left_out`, `partial`."""
    rows = without_reversals(every.join(examined, on=KEY, how="anti"))[0]
    others = usage.join(examined, on=KEY, how="anti")
    named = pl.concat([others.select(*KEY, lsn=part).drop_nulls("lsn") for part in PARTS])
    return rows, named.join(every.select("lsn"), on="lsn", how="anti").select(KEY).unique()


def _of_contents(read: _Read, pinned: Pinned) -> tuple[pl.DataFrame, pl.DataFrame]:
    keys = pl.concat([read.keys, read.sound(_waiting(read))]).unique()
    concerned, decided = (rows.join(keys, on=KEY, how="semi") for rows in (read.carried, read.expected))
    known, fixed = each_counted(concerned, decided, read.known.of(keys), pinned, read.reversals)
    others = read.expected.join(keys, on=KEY, how="anti")
    found = candidates(pl.concat([known, others], how="vertical_relaxed"), read.carried)
    stands = candidates(fixed, read.carried, is_fixed=True)
    unknown = fixed.filter(pl.col("is_known").is_null()).select(KEY)
    alone = pl.concat([read.left_out, read.journal.join(unknown, on=KEY, how="semi")])
    return pl.concat([found, stands]), blocked(alone, read.partial, pinned)


def _waiting(read: _Read) -> pl.DataFrame:
    """Rows of keys that bill something already, while another row of theirs waits."""
    named = pl.concat([read.expected[part] for part in PARTS]).drop_nulls().implode()
    return read.carried.filter(~pl.col("lsn").is_in(named)).join(read.expected, on=KEY, how="semi")


def first_rows(usage: pl.DataFrame) -> pl.DataFrame:
    """Rows of usage (lsn, sign, OUTCOME) → (OUTCOME, usage_lsn) of the first of each outcome."""
    return usage.filter(pl.col("sign") > 0).group_by(OUTCOME).agg(usage_lsn=pl.min("lsn"))


def _within(journal: pl.DataFrame, usage: pl.DataFrame, pinned: Pinned) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Without the keys that are left out."""
    left_out = []
    if pinned.known_from > 1:
        parts = [journal.filter(pl.col("lsn") < pinned.known_from)]
        parts += [usage.filter(pl.col(part) < pinned.known_from) for part in PARTS]
        left_out += [rows.select(KEY) for rows in parts]
    if pinned.since is not None:
        left_out += [_before(pinned.priced_since or pinned.since, journal, usage), *_unread(journal, usage)]
    if pinned.until is not None:
        is_later = pl.min("event_time") >= pinned.until
        times = pl.concat([rows.select(*KEY, "event_time") for rows in (journal, usage)])
        left_out.append(times.group_by(KEY).agg(is_later=is_later).filter("is_later").select(KEY))
    if not left_out:
        return journal, usage
    keys = pl.concat(left_out).unique()
    return journal.join(keys, on=KEY, how="anti"), usage.join(keys, on=KEY, how="anti")


def _before(since: datetime | None, journal: pl.DataFrame, usage: pl.DataFrame) -> pl.DataFrame:
    """The keys (KEY) with a row that was received before."""
    is_before = pl.lit(value=False) if since is None else pl.col("received_at") < since
    return pl.concat([rows.filter(is_before).select(KEY) for rows in (journal, usage)]).unique()


def _otherwise(rows: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
    """CORRECTIONS → those of the keys (KEY) that change by anything else than a price."""
    is_priced = pl.col("cause") == UsageCause.REPRICED.value
    return rows.filter(~is_priced).select(KEY).unique().join(keys, on=KEY, how="semi")


def _unread(journal: pl.DataFrame, usage: pl.DataFrame) -> list[pl.DataFrame]:
    """Keys whose usage names a row from before all that are read, or takes back a repeat whose first is not read."""
    named = [usage.select(*KEY, "sign", "cause", lsn=part).drop_nulls("lsn") for part in PARTS]
    parts = pl.concat(named)
    gone = parts.filter(pl.col("lsn") < pl.lit(journal["lsn"].min())).select(KEY) if len(journal) else parts.select(KEY)
    is_repeat = (pl.col("cause") == UsageCause.DUPLICATE.value) & (pl.col("sign") < 0)
    repeated = parts.filter(is_repeat).select(KEY).unique()
    return [gone, repeated.join(repeats(journal), on=KEY, how="anti")]


def _first(rows: pl.DataFrame, most: int) -> pl.DataFrame:
    """About `most` rows, all of the last key."""
    # Numbered before grouping by key: an expression over keys would number the rows of each.
    return rows.with_row_index("_row").filter(pl.col("_row").min().over(KEY) < most).drop("_row")


def _as_stream(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return bytes(sink.getvalue())


def as_table(stream: bytes) -> pa.Table:
    """`corrections` of EXAMINATION."""
    return pa.ipc.open_stream(stream).read_all()
