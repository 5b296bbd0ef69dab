"""A unit is billed once, by the most specific meter with a price: what is subtracted from the meter above it.

Where an event's convention declares one quantity part of another, and a meter of the part is `within` a meter of the
whole, the units of the part are subtracted from the whole as soon as the part has a price; without a price the whole
bills them. Units that another meter bills stay as an entry without a version (BILLED_AS_PART, BILLED_IN_WHOLE) at a
unit price of 0: all entries of a meter add up to what was reported, and those with a version to what is billed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import polars as pl

from jobs.joins.memory import INCLUDED
from metering.contracts.includes import wholes_of
from metering.meters import Declaration
from metering.pricing import BILLED_AS_PART, BILLED_IN_WHOLE

LISTED = ("row", "meter", "quantity", "version_lsn", "unit_price")


def billed_once(listed: pl.DataFrame, outcomes: pl.DataFrame, meters: Iterable[Declaration]) -> pl.DataFrame:
    """LISTED, each row and meter once, and the outcomes that have these rows' numbers → LISTED, by row and meter.

    The units of a meter with a price are subtracted from the nearest meter above it that has one, or, if none has, from
    the highest, so that they are not reported as unpriced. Several meters of one column subtract its units once. The
    billed quantity of a meter is never below 0.
    """
    if INCLUDED not in outcomes.columns or outcomes[INCLUDED].null_count() == len(outcomes):
        return listed.sort("row", "meter")
    listed = listed.sort("row", "meter").with_row_index("place")
    conventions = outcomes.select(pl.int_range(pl.len(), dtype=pl.UInt32).alias("row"), INCLUDED)
    above = _above(outcomes[INCLUDED].drop_nulls().unique().sort(), tuple(meters))
    is_priced = pl.col("version_lsn").is_not_null()
    reported = listed.filter(pl.col("quantity") > 0)
    met = (
        reported.select("row", "meter", is_priced.alias("has_price"), part="quantity")
        .join(conventions, on="row")
        .join(above, on=[INCLUDED, "meter"])
        .join(reported.select("row", is_priced.alias("is_priced"), whole="meter"), on=["row", "whole"])
    )
    rank = pl.when("is_priced").then("steps").otherwise(len(above) + 1 - pl.col("steps"))
    left = (
        met.filter("has_price")
        .sort(rank, maintain_order=True)
        .unique(["row", "meter"], keep="first", maintain_order=True)
        .unique(["row", "whole", "column"], keep="any")
        .group_by("row", meter="whole")
        .agg(pl.sum("part"))
    )
    wholly = met.filter(~pl.col("has_price")).select("row", "meter", in_whole=pl.lit(value=True)).unique()
    both = listed.join(left, on=["row", "meter"], how="left").join(wholly, on=["row", "meter"], how="left")
    in_whole = pl.col("in_whole").fill_null(value=False)
    is_left = pl.col("part").is_not_null() & ~in_whole
    part = pl.when(is_left).then(pl.min_horizontal("part", "quantity")).otherwise(0)
    both = both.with_columns(part=part.cast(listed.schema["quantity"]), in_whole=in_whole)
    rest = both.with_columns(quantity=pl.col("quantity") - pl.col("part")).filter(
        ~pl.col("in_whole") & ((pl.col("part") == 0) | (pl.col("quantity") != 0))
    )
    elsewhere = both.filter((pl.col("part") > 0) | pl.col("in_whole")).with_columns(
        quantity=pl.when("in_whole").then("quantity").otherwise("part"),
        version_lsn=pl.when("in_whole").then(BILLED_IN_WHOLE).otherwise(BILLED_AS_PART).cast(pl.Int64),
        unit_price=pl.lit(0, pl.Int64).cast(listed.schema["unit_price"]),
    )
    both = pl.concat([rest.select("place", *LISTED), elsewhere.select("place", *LISTED)])
    return both.sort("place", maintain_order=True).select(LISTED)


def _above(conventions: pl.Series, meters: tuple[Declaration, ...]) -> pl.DataFrame:
    """Texts of conventions → (the text, meter, its column, whole, steps): every meter that counts its units, too."""
    found = [
        (text, meter.name, meter.sums, whole, steps)
        for text in conventions
        for meter in meters
        for steps, whole in _wholes(text, meter, meters)
    ]
    texts = dict.fromkeys((INCLUDED, "meter", "column", "whole"), pl.String)
    return pl.DataFrame(found, schema={**texts, "steps": pl.Int64}, orient="row")


def _wholes(text: str, meter: Declaration, meters: tuple[Declaration, ...]) -> Iterator[tuple[int, str]]:
    """By the number of steps the meters above one that add up what its column is part of.

    Either chain may have links that the other has not: cached audio is input where nothing meters all that was cached.
    """
    known, columns = {declared.name: declared for declared in meters}, set(wholes_of(text, meter.sums or ""))
    for steps in range(1, len(meters)):
        whole = known.get(meter.within or "")
        if whole is None:
            return
        if whole.sums in columns:
            yield steps, whole.name
        meter = whole
