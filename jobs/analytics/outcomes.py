"""Rows of usage → outcomes with the columns that views read, looked up in the journal.

usage has what is billed; the latency, the region and all else that contracts read stand in the journal rows of the
request and the completion, which a row of usage names by lsn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobs.analytics.ranges import Range, merged_blocks, within
from jobs.runtime.job import Lookup
from jobs.streams import Table
from metering.vocabulary import Family, Outcome, Status

OF_USAGE = ("account", "user_id", "model", "status", "outcome", "plan")
"""The columns of outcomes that usage has; all others are looked up."""
IDENTITY = (*OF_USAGE, "request_lsn", "completion_lsn", "event_time")
"""What tells one outcome from another: a row that takes one back has all of it, and the sign -1."""
READ = ("lsn", *IDENTITY, "sign")
MEASURED = (Outcome.MATCHED.value, Outcome.ABANDONED.value)
IS_MEASURED = f"outcome IN ({', '.join(repr(outcome) for outcome in MEASURED)})"
"""One outcome of each request: a report whose request never came is none until an audit joins them."""
NEAR = 65_536
"""The journal is looked up in blocks of so many lsns."""


def blocks_of(usage: DataFrame) -> tuple[Sequence[Range], int, bool]:
    """Of rows READ: ranges of the journal's lsn that hold their parts; their highest lsn; whether one takes back."""
    found = usage.agg(
        F.collect_set(_block("request_lsn")).alias("requests"),
        F.collect_set(_block("completion_lsn")).alias("completions"),
        F.coalesce(F.max("lsn"), F.lit(0)).alias("highest"),
        F.coalesce(F.bool_or(F.col("sign") < 0), F.lit(False)).alias("takes_back"),
    ).collect()[0]
    return merged_blocks({*found["requests"], *found["completions"]}, NEAR), found["highest"], found["takes_back"]


def _block(lsn: str) -> Column:
    return F.floor(F.col(lsn) / NEAR)


def outcomes(
    usage: DataFrame, columns: Iterable[str], ranges: Sequence[Range], lookup: Lookup, also: Sequence[str] = ()
) -> DataFrame:
    """Rows with IDENTITY → event_time and `columns`, one row each; `ranges`: where the journal has their parts.

    `also` are columns of the rows themselves, which stay as they are.

    Texts and booleans are the request's, else the completion's; numbers the completion's alone. A completion that names
    no status has completed. Quantities of their own (the family quantity) are no requests, and left out.
    """
    columns = tuple(columns)
    journal = lookup.rows(Table.JOURNAL, within("lsn", ranges))
    own = [name for name in columns if name not in IDENTITY and name in journal.columns]
    parts = journal.select("lsn", "family", *own)
    numbers = {name for name, kind in parts.dtypes if kind not in ("string", "boolean")}
    joined = usage.join(_side(parts, "request"), on="request_lsn", how="left")
    joined = joined.join(_side(parts, "completion"), on="completion_lsn", how="left")
    is_quantity = F.coalesce("completion_family", "request_family").eqNullSafe(F.lit(Family.QUANTITY.value))
    values = [_value(name, own, numbers).alias(name) for name in columns if name not in also]
    return joined.where(~is_quantity).select("event_time", *also, *values)


def _side(parts: DataFrame, side: str) -> DataFrame:
    return parts.select(*[F.col(name).alias(f"{side}_{name}") for name in parts.columns])


def _value(name: str, looked_up: Collection[str], numbers: Collection[str]) -> Column:
    if name == "status":
        is_other = ~F.coalesce(F.col("status").isin(*[status.value for status in Status]), F.lit(False))
        has_ended = (F.col("outcome") == Outcome.MATCHED.value) & is_other
        return F.when(has_ended, F.lit(Status.COMPLETED.value)).otherwise(F.col("status"))
    if name in IDENTITY:
        return F.col(name)
    if name not in looked_up:
        return F.lit(None).cast("string")
    if name in numbers:
        return F.col(f"completion_{name}")
    return F.coalesce(f"request_{name}", f"completion_{name}")
