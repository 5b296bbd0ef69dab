"""Meters that count each content once → which outcomes of all keys count; the others bill 0 of that meter.

Of an account's outcomes with one content, the first by (event time, identity) in each window counts. That is a function
of the set of billed outcomes, so neither the order of arrival nor an audit in between changes it. If the first is
reversed, the next one counts.
"""

from __future__ import annotations

import polars as pl

from jobs.audit.recompute.expected import CONTENTS, OUTCOME, PARTS, Pinned
from jobs.joins.credits import UNCOUNTED
from jobs.joins.memory import KEY
from jobs.joins.timeouts import SECOND_US
from jobs.runtime.delta.table import microseconds_of
from jobs.usage_entries import METERS
from metering.lateness import MAX_FUTURE
from metering.pricing import BILLED_AS_PART

CONTENT = ("account", "column", "content")
_GROUP = (*CONTENT, "meter", "within_us", "window")
_ORDER = ("is_other", "event_us", "identity", "request_id", *PARTS)
_TEXTS = dict.fromkeys(("account", "request_id"), pl.String())
_OUTCOME = {**_TEXTS, **dict.fromkeys(PARTS, pl.Int64())}
CANDIDATES = pl.Schema(
    {
        **_OUTCOME,
        **dict.fromkeys(("meter", "column", "content"), pl.String()),
        **dict.fromkeys(("within_us", "window", "event_us"), pl.Int64()),
        "identity": pl.Binary(),
        "is_fixed": pl.Boolean(),
    }
)
"""Outcomes of which a meter that counts each content once bills something, and their order among others. One that
`is_fixed` always counts, so none of the others does."""
_PLACE = ("within_us", "window")
BLOCKED = pl.Schema({**dict.fromkeys(CONTENT, pl.String()), **dict.fromkeys(_PLACE, pl.Int64())})
"""Contents and windows in which an outcome may be that an audit leaves alone: there nothing is decided. Without a
content it may be of any."""
MARKED = pl.Schema({**_OUTCOME, "meter": pl.String(), "is_decided": pl.Boolean()})
"""Outcomes that do not count for a meter, and those of which that is not decided: they stay as they are."""


def candidates(outcomes: pl.DataFrame, rows: pl.DataFrame, *, is_fixed: bool = False) -> pl.DataFrame:
    """Outcomes (`expected_usage`) that each count → CANDIDATES; `rows` (lsn, identity) of the journal are theirs.

    What another meter bills is nothing that a meter bills itself, and neither is 0.
    """
    counted = _counted_once(outcomes)
    own = counted.filter(pl.col("has_own"))
    identities = rows.select("lsn", pl.col("identity").fill_null(b""))
    placed = own.with_columns(lsn=pl.coalesce("completion_lsn", "request_lsn")).join(identities, on="lsn", how="left")
    window = pl.col("event_us") // pl.col("within_us")
    return placed.with_columns(window.alias("window"), is_fixed=pl.lit(is_fixed)).select(
        pl.col(name).cast(kind) for name, kind in CANDIDATES.items()
    )


def blocked(journal: pl.DataFrame, partial: pl.DataFrame, pinned: Pinned) -> pl.DataFrame:
    """Rows of the journal (KEY, event_time) of keys that are left alone → BLOCKED.

    What such a key bills has a content that one of its rows says, and the time of one of them. `partial` (KEY): those
    of which a row is removed that may say the content.
    """
    timed = journal.select(*KEY, event_us=pl.col("event_time").dt.epoch("us"))
    if (whole_from := _whole_from_us(pinned)) is not None:
        timed = timed.filter(pl.col("event_us") >= whole_from)
    parts = [pl.DataFrame(schema=BLOCKED)]
    for column, within_us in {(rule.column, rule.within_seconds * SECOND_US) for rule in pinned.once_per}:
        windows = timed.select(*KEY, within_us=pl.lit(within_us, pl.Int64), window=pl.col("event_us") // within_us)
        value = pl.col(column) if column in journal.columns else pl.lit(None)
        contents = journal.select(*KEY, content=value.cast(pl.String)).drop_nulls()
        unknown = partial.select(*KEY, content=pl.lit(None, pl.String))
        found = windows.unique().join(pl.concat([contents, unknown]).unique(), on=KEY)
        parts.append(found.with_columns(column=pl.lit(column)).select(pl.col(n).cast(k) for n, k in BLOCKED.items()))
    return pl.concat(parts).unique()


def of_any_content() -> pl.Expr:
    """Whether BLOCKED is of each content of its account."""
    return pl.col("content").is_null()


def marked(found: pl.DataFrame, unknown: pl.DataFrame, pinned: Pinned) -> pl.DataFrame:
    """All CANDIDATES of some contents, and what is BLOCKED of these → MARKED: what is not in it counts."""
    ordered = found.with_columns(is_other=~pl.col("is_fixed")).sort(_ORDER)
    ranked = ordered.with_columns(is_first=pl.int_range(pl.len()).over(_GROUP) == 0, is_decided=_is_whole(pinned))
    is_any = unknown.filter(of_any_content())
    of_account = [name for name in BLOCKED.names() if name != "content"]
    for name, rows, of in (("is_blocked", unknown, BLOCKED.names()), ("is_any", is_any, of_account)):
        named = rows.select(of).unique().with_columns(pl.lit(value=True).alias(name))
        ranked = ranked.join(named, on=of, how="left", maintain_order="left")
    is_decided = pl.col("is_decided") & pl.col("is_blocked").is_null() & pl.col("is_any").is_null()
    ranked = ranked.with_columns(is_decided=is_decided)
    return ranked.filter(~(pl.col("is_first") & pl.col("is_decided"))).select(MARKED.names())


def _is_whole(pinned: Pinned) -> pl.Expr:
    """Whether no outcome of a window is of removed rows alone.

    Rows from before `pinned.since` are removed or left alone; they were received at most MAX_FUTURE before they
    occurred.
    """
    whole_from = _whole_from_us(pinned)
    return pl.lit(value=True) if whole_from is None else pl.col("window") * pl.col("within_us") >= whole_from


def _whole_from_us(pinned: Pinned) -> int | None:
    return None if pinned.since is None else microseconds_of(pinned.since + MAX_FUTURE)


def uncounted(outcomes: pl.DataFrame, now: pl.DataFrame, found: pl.DataFrame | None) -> pl.DataFrame:
    """Outcomes that each count (`expected_usage`), effective usage (`differences.net`) and MARKED → (OUTCOME,
    UNCOUNTED).

    Undecided contents stay as they are; without any decision (None), all do.
    """
    counted = _counted_once(outcomes).filter(pl.col("has_own")).select(*OUTCOME, "meter")
    known = pl.DataFrame(schema=MARKED) if found is None else found
    known_outcomes = counted.join(
        known, on=[*OUTCOME, "meter"], how="left" if found is None else "inner", nulls_equal=True
    )
    is_decided = pl.col("is_decided").fill_null(value=False)
    stays = known_outcomes.filter(~is_decided).join(_zeros(now), on=[*OUTCOME, "meter"], how="semi", nulls_equal=True)
    both = pl.concat([known_outcomes.filter(is_decided), stays])
    return both.group_by(OUTCOME).agg(pl.col("meter").sort().alias(UNCOUNTED))


def explained(outcomes: pl.DataFrame, now: pl.DataFrame) -> pl.DataFrame:
    """Outcomes that each count, and effective usage → the outcomes (OUTCOME) that differ only in how much
    counts of the meters that count a content once: all of it, or 0.
    """
    counted = _counted_once(outcomes).select(*OUTCOME, "meter", is_counted_once=pl.lit(value=True))
    names = [*OUTCOME, "meter"]
    must, stands = (
        _quantities(rows.join(counted, on=OUTCOME, how="semi", nulls_equal=True)) for rows in (outcomes, now)
    )
    both = must.join(stands, on=names, how="full", suffix="_found", nulls_equal=True, coalesce=True)
    both = both.join(counted, on=names, how="left", nulls_equal=True)
    quantity, was = (pl.col(name).fill_null(0) for name in ("quantity", "quantity_found"))
    is_right = (quantity == was) | ((was == 0) & pl.col("is_counted_once").fill_null(value=False))
    concerned = counted.select(OUTCOME).unique()
    return concerned.join(both.filter(~is_right), on=OUTCOME, how="anti", nulls_equal=True)


def _counted_once(outcomes: pl.DataFrame) -> pl.DataFrame:
    """Outcomes (`expected_usage`) → a row for each of their meters that counts a content once, and of which they report
    something: OUTCOME, event_us, meter, column, within_us, content, and whether the meter `has_own` units to bill.
    """
    rows = outcomes.filter(pl.col(CONTENTS).list.len() > 0).with_row_index("row")
    entries = rows.select("row", METERS).explode(METERS).unnest(METERS).filter(pl.col("quantity") > 0)
    is_own = (pl.col("price_version") > BILLED_AS_PART).fill_null(value=True)
    reported = entries.group_by("row", "meter").agg(has_own=is_own.any())
    contents = rows.select("row", *OUTCOME, pl.col("event_time").dt.epoch("us").alias("event_us"), CONTENTS)
    counted = contents.explode(CONTENTS).unnest(CONTENTS).filter(pl.col("content").is_not_null())
    return counted.join(reported, on=["row", "meter"], how="inner").drop("row")


def _quantities(rows: pl.DataFrame) -> pl.DataFrame:
    """(OUTCOME, meter, quantity) of all that rows with METERS report."""
    entries = rows.select(*OUTCOME, METERS).explode(METERS).unnest(METERS).filter(pl.col("quantity") != 0)
    return entries.group_by(*OUTCOME, "meter").agg(pl.sum("quantity"))


def _zeros(now: pl.DataFrame) -> pl.DataFrame:
    """(OUTCOME, meter) of effective usage with an explicit quantity 0 of a meter."""
    entries = now.select(*OUTCOME, METERS).explode(METERS).unnest(METERS).filter(pl.col("quantity").is_not_null())
    return entries.group_by(*OUTCOME, "meter").agg(pl.sum("quantity")).filter(pl.col("quantity") == 0)


def of_content(buckets: int) -> pl.Expr:
    """The bucket, of this many, of all outcomes of a content."""
    return (pl.struct(CONTENT).hash(1) % buckets).cast(pl.Int64)
