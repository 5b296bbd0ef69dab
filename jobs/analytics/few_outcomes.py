"""The same as `outcomes` for a few rows, which the driver has read: planning Spark's joins would cost more than they.

`tests/pipelines/test_views.py` has both do the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

import polars as pl
import pyarrow as pa

from jobs.analytics.outcomes import IDENTITY, IS_MEASURED
from jobs.runtime.job import Lookup
from jobs.streams import Table
from metering.vocabulary import Family, Outcome, Status

Reader = Callable[[pl.Series, Sequence[str]], "pl.DataFrame | None"]
"""Lsns of the journal and columns → the rows, as `Lookup.few_rows`."""


def few_outcomes(
    usage: pa.Table, columns: Iterable[str], lookup: Lookup, also: Sequence[str] = ()
) -> pl.DataFrame | None:
    """Rows READ → event_time, `also` and `columns`, one row for each outcome, as `outcomes` has it.

    None where that is for Spark: outcomes of earlier batches are taken back, or with `also` any, whose rows are wanted
    each; or too much of the journal must be read.
    """
    measured = pl.DataFrame(usage).filter(pl.sql_expr(IS_MEASURED))
    if also:
        if (measured["sign"] < 0).any():
            return None
        counted = measured
    else:
        net = measured.group_by(IDENTITY).agg(net=pl.sum("sign")).filter(pl.col("net") != 0)
        if (net["net"] < 0).any():
            return None
        counted = net.with_columns(net=pl.lit(1).repeat_by("net")).explode("net")
    return looked_up(counted, columns, partial(lookup.few_rows, Table.JOURNAL), also)


def for_spark(outcomes: pl.DataFrame) -> pa.Table:
    """The same with texts as Spark takes them."""
    found = outcomes.to_arrow()
    return found.cast(pa.schema([field.with_type(_of_spark(field.type)) for field in found.schema]))


def looked_up(
    counted: pl.DataFrame, columns: Iterable[str], journal: Reader, also: Sequence[str] = ()
) -> pl.DataFrame | None:
    """Outcomes (IDENTITY) → event_time, `also` and `columns`, one row each; None where `journal` gives none."""
    columns = tuple(columns)
    lsns = pl.concat([counted["request_lsn"].alias("lsn"), counted["completion_lsn"].alias("lsn")])
    wanted = ["family", *(name for name in columns if name not in IDENTITY)]
    parts = journal(lsns.drop_nulls(), wanted)
    if parts is None:
        return None
    kinds = parts.schema
    numbers = {name for name, kind in kinds.items() if kind not in (pl.String, pl.Boolean)}
    joined = counted.join(_side(parts, "request"), on="request_lsn", how="left")
    joined = joined.join(_side(parts, "completion"), on="completion_lsn", how="left")
    is_quantity = pl.coalesce("completion_family", "request_family").eq_missing(Family.QUANTITY.value)
    values = {name: _value(name, kinds, numbers) for name in columns if name not in also}
    return joined.filter(~is_quantity).select("event_time", *also, **values)


def _side(parts: pl.DataFrame, side: str) -> pl.DataFrame:
    return parts.rename({name: f"{side}_{name}" for name in parts.columns})


def _value(name: str, looked_up: Collection[str], numbers: Collection[str]) -> pl.Expr:
    if name == "status":
        is_other = ~pl.col("status").is_in([status.value for status in Status]).fill_null(value=False)
        has_ended = (pl.col("outcome") == Outcome.MATCHED.value) & is_other
        return pl.when(has_ended).then(pl.lit(Status.COMPLETED.value)).otherwise("status")
    if name in IDENTITY:
        return pl.col(name)
    if name not in looked_up:
        return pl.lit(None, pl.String)
    if name in numbers:
        return pl.col(f"completion_{name}")
    return pl.coalesce(f"request_{name}", f"completion_{name}")


def _of_spark(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_large_string(kind) or pa.types.is_string_view(kind) else kind
