"""Usage as stored, and usage as expected by what is known now → the signed rows that turn the first into the second.

Only differences with a known cause are corrected. Any other difference is a fault: it is reported, and the rows of its
key stay as they are.
"""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from jobs.audit.compare.differences import as_differences, beside
from jobs.audit.recompute.causes import (
    changed_outcomes,
    from_another_part,
    moving_outcomes,
    with_causes,
    with_own_days,
    with_pairs,
)
from jobs.audit.recompute.decisions import Standing, decide
from jobs.audit.recompute.effective_outcomes import counted_now, recomputed
from jobs.audit.recompute.expected import (
    OUTCOME,
    PARTS,
    Pinned,
)
from jobs.audit.recompute.restatements import with_groups
from jobs.joins.memory import KEY
from jobs.streams import USAGE
from metering.vocabulary import Outcome, UsageCause

CORRECTIONS = pa.schema(
    [field for field in USAGE if field.name not in ("lsn", "log_date", "logged_at", "rules", "frontier")]
)
"""Rows of usage without an lsn."""


def corrections(
    carried: pl.DataFrame,
    expected: pl.DataFrame,
    standing: Standing,
    pinned: Pinned,
    reversals: pl.DataFrame,
    *,
    uncounted: pl.DataFrame | None = None,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The journal's rows of some keys, what the stream must have made of them, and usage → (DIFFERENCES, CORRECTIONS).

    `reversals` (`reversals.without_reversals`) take back what these or other keys bill; `uncounted`
    (`once_per.MARKED`): what does not count because another outcome of its content does (None: nothing is decided). The
    differences are those without a known cause; a key with one of them has no corrections.
    """
    found = decide(carried, expected, standing, pinned)
    now = recomputed(found, pinned, reversals)
    must, explained = counted_now(found, now.left, pinned, uncounted)
    standing = found.standing
    moving = with_pairs(moving_outcomes(beside(standing.now, must)), found.expected)
    both = with_own_days(with_groups(moving, now.members), standing.now)
    known = {
        "is_contracted": changed_outcomes(found.expected, found.every),
        "is_repeated": changed_outcomes(found.every, found.once),
        "is_joined": changed_outcomes(found.once, now.joined),
        "is_by_another": from_another_part(found.once, now.best),
        "is_content": explained,
    }
    changes = with_causes(both, known, now.taken)
    faults = changes.filter(pl.col("is_fault"))
    sound = changes.filter(pl.col("cause").is_not_null()).join(faults, on=KEY, how="anti")
    negated = _negated(sound.filter(pl.col("is_found")), standing.now)
    put = _replacements(sound.filter(pl.col("is_expected")), must, negated)
    return as_differences(faults), pl.concat([negated, put], how="diagonal").sort(*KEY, "sign", *PARTS)


def _negated(sound: pl.DataFrame, now: pl.DataFrame) -> pl.DataFrame:
    """Rows that are removed or replaced → rows that negate them."""
    rows = now.drop("cause").join(sound.select("usage_lsn", "cause", "group"), on="usage_lsn", how="inner")
    return rows.with_columns(sign=pl.lit(-1, pl.Int32), corrects_lsns=pl.concat_list("usage_lsn"))


def _replacements(sound: pl.DataFrame, must: pl.DataFrame, negated: pl.DataFrame) -> pl.DataFrame:
    """Rows that are added, or replace others → rows that name those that they replace.

    They copy the day of what occurred when they did: of the completion, and of a request without one. Of a pair that is
    taken apart the request was on the day of the completion, and is on its own from now on. A report that bills from
    now on also names all that its request billed before.
    """
    comes = sound.select(*OUTCOME, "cause", "group")
    rows = must.join(comes, on=OUTCOME, how="inner", nulls_equal=True).with_row_index("row")
    occurred = pl.coalesce("completion_lsn", "request_lsn")
    parts = [rows.select("row", *KEY, lsn=part, occurred=pl.col(part) == occurred) for part in PARTS]
    gone = [negated.select(*KEY, "usage_lsn", "day", lsn=part, had_day=pl.col(part) == occurred) for part in PARTS]
    shared = (
        pl.concat(parts)
        .join(pl.concat(gone).unique(), on=[*KEY, "lsn"], how="inner")
        .select("row", *KEY, "usage_lsn", "day", occurred=pl.col("occurred") & pl.col("had_day"))
    )
    billing = rows.filter(pl.col("outcome") != Outcome.SUPERSEDED.value).select(
        "row", *KEY, "group", occurred=pl.lit(value=False)
    )
    before = negated.filter(pl.col("cause") == UsageCause.RESTATED.value)
    of_request = billing.join(before.select(*KEY, "group", "usage_lsn", "day"), on=[*KEY, "group"], how="inner")
    replaced = (
        pl.concat([shared, of_request.select(shared.columns)])
        .sort("row", "usage_lsn")
        .group_by("row", maintain_order=True)
        .agg(
            corrects_lsns=pl.col("usage_lsn").unique().sort(),
            day_before=pl.col("day").filter(pl.col("occurred")).last(),
        )
    )
    return (
        rows.join(replaced, on="row", how="left")
        .with_columns(pl.coalesce("day_before", "day").alias("day"), sign=pl.lit(1, pl.Int32))
        .drop("row", "day_before", "group")
    )


def as_rows(made: pl.DataFrame) -> pa.Table:
    """What `corrections` gave, as CORRECTIONS; columns that only earlier releases filled are null in others."""
    table = made.drop("usage_lsn", "count", "group", strict=False).to_arrow()
    have = set(table.column_names)
    columns = [
        table[field.name].cast(field.type) if field.name in have else pa.nulls(len(table), field.type)
        for field in CORRECTIONS
    ]
    return pa.table(columns, schema=CORRECTIONS)
