"""Outcomes → panes: for each view, minute and key, every measure as a number or a mergeable sketch."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import StringType

from jobs.arrival_times import ArrivalTimes
from jobs.view_measures import LG_HLL, TOP_ITEMS
from metering.meters import QUANTITY_DECIMALS
from metering.views import Aggregate, Measure, View

NUMBER = f"decimal({20 + QUANTITY_DECIMALS},{QUANTITY_DECIMALS})"
"""Numbers are added up and compared as decimals: of floating-point numbers the order would decide the sum.

With 20 digits before the point, as many as whole numbers have at most: so Spark's sum of a batch always fits. One that
did not would be null, and how usage is cut into batches would decide about it. A larger number is no value.
"""

_MINUTE = "# minute"
"""No key has such a name, which is a column's of a contract; nor `#` and a name, as measures have."""


def panes(outcomes: DataFrame, view: View, *, of_driver: bool = False) -> DataFrame:
    """Outcomes (event_time, the view's columns) → view, version, window_start, keys and measures.

    `keys` is a JSON array of texts in the order of `by`, `measures` a JSON object: numbers as texts, sketches and times
    in Base64; a measure without any value is left out. Of outcomes that the driver has, times are a list of
    microseconds: nothing is saved on their way, and a small batch needs no worker of Python.
    """
    aggregates = AGGREGATES | {Aggregate.GAPS: _listed_times} if of_driver else AGGREGATES
    minute = F.window("event_time", "1 minute")
    grouped = outcomes.groupBy(minute.alias(_MINUTE), *[F.col(key).cast("string").alias(key) for key in view.by])
    summed = grouped.agg(
        *[aggregates[measure.aggregate](measure).alias(f"#{measure.name}") for measure in view.measures]
    )
    measures = F.to_json(F.struct(*[F.col(f"#{measure.name}").alias(measure.name) for measure in view.measures]))
    return summed.select(
        F.lit(view.name).alias("view"),
        F.lit(view.version).alias("version"),
        F.col(f"{_MINUTE}.start").alias("window_start"),
        (F.to_json(F.array(*view.by)) if view.by else F.lit("[]")).alias("keys"),
        measures.alias("measures"),
    )


def _is_taken(measure: Measure) -> Column:
    """Whether an outcome has, in each column of `where`, one of its values. Null is none of them."""
    conditions = [
        F.coalesce(F.col(column).cast("string").isin(*[text(value) for value in values]), F.lit(False))
        for column, values in measure.where
    ]
    return reduce(lambda left, right: left & right, conditions, F.lit(True))


def text(value: str | bool) -> str:
    """A value of `where` as the text of a column."""
    return str(value).lower() if isinstance(value, bool) else value


def _taken(measure: Measure, kind: str) -> Column:
    """The measure's column as `kind`, where its outcome is taken; null else, and where it is no such value."""
    return F.when(_is_taken(measure), F.col(measure.column or "").try_cast(kind))


def _count(measure: Measure) -> Column:
    return F.count_if(_is_taken(measure)).cast("string")


def _distinct(measure: Measure) -> Column:
    return F.base64(F.hll_sketch_agg(_taken(measure, "string"), LG_HLL))


def _percentiles(measure: Measure) -> Column:
    return F.base64(F.kll_sketch_agg_double(_taken(measure, "double")))


def _top(measure: Measure) -> Column:
    items = F.call_function("approx_top_k_accumulate", _taken(measure, "string"), F.lit(TOP_ITEMS))
    return F.base64(items["sketch"])


def _times(measure: Measure) -> Column:
    # Its kind is in the types of the function; the stubs of Spark want it named, of which Spark itself warns.
    made: Column = arrow_udf(_stored_times, StringType())(_listed_times(measure))  # type: ignore[call-overload]
    return made


def _listed_times(measure: Measure) -> Column:
    return F.collect_list(F.when(_is_taken(measure), F.unix_micros("event_time")))


def _stored_times(of_panes: pa.Array) -> pa.Array:
    """Lists of microseconds since the epoch → what a pane stores of each.

    Made by tasks of Spark: a busy minute has more outcomes than the driver should see one by one.
    """
    listed = []
    for instants in of_panes:
        found = ArrivalTimes()
        found.add(instants.values.to_numpy())
        listed.append(found.stored())
    return pa.array(listed, pa.string())


AGGREGATES: dict[Aggregate, Callable[[Measure], Column]] = {
    Aggregate.COUNT: _count,
    Aggregate.SUM: lambda measure: F.try_sum(_taken(measure, NUMBER)).cast("string"),
    Aggregate.MIN: lambda measure: F.min(_taken(measure, NUMBER)).cast("string"),
    Aggregate.MAX: lambda measure: F.max(_taken(measure, NUMBER)).cast("string"),
    Aggregate.DISTINCT: _distinct,
    Aggregate.PERCENTILES: _percentiles,
    Aggregate.TOP: _top,
    Aggregate.GAPS: _times,
}
