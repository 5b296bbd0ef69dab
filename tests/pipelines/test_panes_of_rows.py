"""Panes of any outcomes by the driver against the same by Spark: the same numbers, and sketches that say the same."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from datasketches import hll_sketch, hll_union, kll_doubles_sketch  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from jobs.analytics.newest_panes import STORED_BYTES, Pane
from jobs.analytics.panes import panes
from jobs.analytics.panes_of_rows import can_measure, panes_of_rows
from jobs.analytics.pipeline import STAGED
from jobs.streams import INSTANT
from jobs.view_measures import LG_HLL, TOP_ITEMS, merged, shown
from metering.instants import EPOCH
from metering.views import Aggregate, Measure, View
from metering.windows import MINUTE
from tests.streaming.measured import NOON

TEXTS = ("", "a", "u-1", "Ünï·✓", 'quoted "\\/ and \t\n', "null", "0", "🜨", *(f"user-{n}" for n in range(40)))
SCHEMA = pa.schema(
    [
        pa.field("event_time", INSTANT),
        pa.field("account", pa.string()),
        pa.field("text", pa.string()),
        pa.field("flag", pa.bool_()),
        pa.field("whole", pa.int64()),
        pa.field("small", pa.int32()),
        pa.field("real", pa.float64()),
        pa.field("window", pa.string()),
        pa.field("of_all", pa.string()),
    ]
)
WHERE = (("text", ("a", "u-1", "null")), ("flag", (True,)))
NUMBERS = (Aggregate.SUM, Aggregate.MIN, Aggregate.MAX)
MEASURES = (
    Measure("all", Aggregate.COUNT),
    Measure("some", Aggregate.COUNT, None, WHERE),
    *(Measure(f"{of}_{column}", of, column) for of in NUMBERS for column in ("whole", "small")),
    *(Measure(f"{of}_some", of, "whole", WHERE) for of in NUMBERS),
    *(
        Measure(f"{of}_{column}{'_some' if where else ''}", of, column, where, 3)
        for of in (Aggregate.DISTINCT, Aggregate.TOP)
        for column in ("text", "flag", "whole")
        for where in ((), WHERE)
    ),
    *(
        Measure(f"percentiles_{column}{'_some' if where else ''}", Aggregate.PERCENTILES, column, where)
        for column in ("real", "whole")
        for where in ((), WHERE)
    ),
    Measure("gaps", Aggregate.GAPS),
    Measure("gaps_some", Aggregate.GAPS, None, WHERE),
)
VIEWS = (
    View("of_all", (), MEASURES),
    View("keyed", ("text", "flag", "account"), MEASURES),
    View("by_number", ("whole", "small"), MEASURES[:3]),
    # Contracts may name a field so; a batch that Spark measured failed for ever.
    View("by_any_name", ("window", "of_all"), MEASURES[:1]),
)


def outcomes(chance: random.Random, count: int) -> pa.Table:
    def column(values: list[Any]) -> list[Any]:
        return [chance.choice(values) for _ in range(count)]

    # A sketch keeps the first 200 numbers of a pane as they are; of more it leaves out some by chance.
    minutes = [
        NOON + timedelta(seconds=chance.choice([0, 59.999999, 60, 119, 120, 4_000, -(10**9)])) for _ in range(count)
    ]
    return pa.table(
        [
            minutes,
            column(["x", "y", None]),
            column([*TEXTS, None]),
            column([True, False, None]),
            column([0, -1, 2**63 - 1, -(2**63), 7, None]),
            column([0, -5, 2**31 - 1, None]),
            column([0.1, -0.0, 0.0, 1e300, -1e-300, 5e-324, float("nan"), float("inf"), None]),
            column(["4k", "128k", None]),
            column(["a", "b"]),
        ],
        schema=SCHEMA,
    )


def of_driver(rows: pa.Table, view: View) -> list[dict[str, Any]]:
    """Panes that the driver makes, as they are stored."""
    listed = []
    for added in panes_of_rows(rows, view):
        pane = Pane.of(view, added.keys, is_stored=False)
        pane.add(added.parts)
        start, stored = EPOCH + added.minute * MINUTE, {"keys": pane.keys, "measures": pane.measures()}
        listed.append({"view": added.view, "version": added.version, "window_start": start, **stored})
    return listed


def shown_rows(listed: list[dict[str, Any]], view: View) -> dict[Any, Any]:
    """Panes by minute and keys: numbers as stored, of a sketch all that can be asked of it."""
    rows = {}
    for row in listed:
        stored = json.loads(row["measures"])
        identity = (row["view"], row["version"], row["window_start"], *json.loads(row["keys"]))
        rows[identity] = {m.name: asked(m, stored[m.name]) for m in view.measures if m.name in stored}
    assert len(rows) == len(listed)
    return rows


def asked(measure: Measure, stored: str) -> Any:
    match measure.aggregate:
        case Aggregate.DISTINCT:
            # As a reader merges it: the registers alone decide, and not the order in which values came.
            union = hll_union(LG_HLL)
            union.update(hll_sketch.deserialize(base64.b64decode(stored)))
            return union.get_estimate(), union.get_lower_bound(2), union.get_upper_bound(2)
        case Aggregate.PERCENTILES:
            sketch = kll_doubles_sketch.deserialize(base64.b64decode(stored))
            count = sketch.n
            ranks = [(place + 0.5) / count for place in range(count)] if count <= sketch.k else []
            return count, [sketch.get_quantile(rank) for rank in ranks]
        case Aggregate.TOP:
            return shown(Measure("", Aggregate.TOP, k=TOP_ITEMS), stored)
    return stored


def refuse_differences(spark: SparkSession, rows: pa.Table, view: View) -> None:
    assert can_measure(view, rows.schema)
    frame = spark.createDataFrame(rows).coalesce(1)
    by_spark = shown_rows(panes(frame, view).toArrow().cast(STAGED).to_pylist(), view)
    assert shown_rows(of_driver(rows, view), view) == by_spark


@pytest.mark.parametrize(("seed", "count"), [(0, 0), (1, 1), (2, 30), (3, 400)])
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_differential_panes_of_the_driver_are_those_of_spark(
    spark: SparkSession, view: View, seed: int, count: int
) -> None:
    refuse_differences(spark, outcomes(random.Random(seed), count), view)


def test_differential_sketches_of_many_values_have_the_same_registers_and_counts(spark: SparkSession) -> None:
    chance, count = random.Random(4), 20_000
    rows = outcomes(chance, count).drop(["event_time", "text"])
    rows = rows.append_column(SCHEMA.field("event_time"), pa.array([NOON] * count, INSTANT))
    texts = [f"user-{int(9_000 * chance.random() ** 2)}" for _ in range(count)]
    distinct = Measure("users", Aggregate.DISTINCT, "text")
    refuse_differences(spark, rows.append_column("text", pa.array(texts)), View("many", ("flag",), (distinct,)))
    few = [text[:8] for text in texts]
    top = Measure("busiest", Aggregate.TOP, "text")
    refuse_differences(spark, rows.append_column("text", pa.array(few)), View("top", ("flag",), (top,)))


def test_a_pane_has_few_bytes_of_when_many_outcomes_occurred_the_same_of_tasks_and_driver_and_of_any_cut(
    spark: SparkSession,
) -> None:
    """Tasks send nothing else of a minute that is made again, however many outcomes it has."""
    chance = random.Random(5)
    instants = [NOON + timedelta(microseconds=chance.randrange(60_000_000)) for _ in range(20_000)]
    rows = pa.table([instants], schema=pa.schema([SCHEMA.field("event_time")]))
    view = View("busy", (), (Measure("gaps", Aggregate.GAPS),))

    def of_spark(part: pa.Table, *, of_driver: bool = False) -> Any:
        frame = spark.createDataFrame(part).repartition(2)
        [row] = panes(frame, view, of_driver=of_driver).toArrow().to_pylist()
        return json.loads(row["measures"])["gaps"]

    def stored(*parts: Any) -> str:
        pane = Pane.of(view, (), is_stored=False)
        for part in parts:
            pane.add((part,))
        found: str = json.loads(pane.measures())["gaps"]
        return found

    whole = of_spark(rows)
    [by_driver] = of_driver(rows, view)
    assert len(whole) <= STORED_BYTES[Aggregate.GAPS]
    assert json.loads(by_driver["measures"])["gaps"] == whole
    assert stored(of_spark(rows[:9]), of_spark(rows[9:], of_driver=True)) == whole


def test_no_number_that_is_too_large_makes_what_is_measured_depend_on_the_cut(spark: SparkSession) -> None:
    """A contract need not bound a number with a floating point, and sums are of decimals, which are bounded."""
    numbers = (1e308, -1e308, 9e31, 9e31, 9e31, 1e20, -1e20, 9e19, 9e19, 0.5, 1e-6)
    measures = tuple(Measure(of.value, of, "real") for of in NUMBERS)
    view = View("extremes", (), measures)

    def stored(*cut: Sequence[float]) -> dict[str, str]:
        schema = pa.schema([SCHEMA.field("event_time"), SCHEMA.field("real")])
        parts = [pa.table([[NOON] * len(part), list(part)], schema=schema) for part in cut]
        made = [panes(spark.createDataFrame(part).repartition(2), view).toArrow().to_pylist() for part in parts]
        return merged(measures, [json.loads(row["measures"]) for rows in made for row in rows])

    whole = stored(numbers)
    assert whole == stored(numbers[:3], numbers[3:]) == stored(*([number] for number in numbers))
    assert {name: Decimal(value) for name, value in whole.items()} == {
        "sum": Decimal("180000000000000000000.500001"),
        "min": Decimal("0.000001"),
        "max": Decimal(90_000_000_000_000_000_000),
    }


@pytest.mark.parametrize(
    ("by", "measure"),
    [
        ((), Measure("sum", Aggregate.SUM, "real")),
        ((), Measure("max", Aggregate.MAX, "text")),
        ((), Measure("users", Aggregate.DISTINCT, "real")),
        ((), Measure("spread", Aggregate.PERCENTILES, "text")),
        ((), Measure("some", Aggregate.COUNT, None, (("real", ("0.1",)),))),
        (("real",), Measure("all", Aggregate.COUNT)),
        (("event_time",), Measure("all", Aggregate.COUNT)),
    ],
    ids=lambda part: part.name if isinstance(part, Measure) else "",
)
def test_what_another_library_casts_otherwise_is_left_to_spark(by: tuple[str, ...], measure: Measure) -> None:
    assert not can_measure(View("view", by, (measure,)), SCHEMA)
