"""Random watches over random rows: what the index finds is what each condition means, row by row."""

from __future__ import annotations

import random

import polars as pl
import pytest

from jobs.analytics.watches.conditions import TYPES
from jobs.analytics.watches.index import WatchIndex
from jobs.analytics.watches.shapes import Watch
from metering.watches.parser import parse
from tests.rules.watch_conditions import COLUMNS, VALUES, some_condition, some_rows, truth, written

FRAME = {name: TYPES[kind] for name, kind in COLUMNS.items()}


def found_by(watches: list[Watch], rows: pl.DataFrame) -> list[tuple[int, int]]:
    return [pair for part in WatchIndex(watches, max_pairs=7).pairs(rows) for pair in part.iter_rows()]


def refuse_differences(texts: list[str], chance: random.Random, count: int = 40) -> None:
    watches = [Watch(number, parse(text, COLUMNS)) for number, text in enumerate(texts, 1)]
    rows = some_rows(chance, count)
    found = found_by(watches, pl.DataFrame(rows, schema=FRAME))
    expected = {
        (watch.id, place) for watch in watches for place, row in enumerate(rows) if truth(watch.when, row) is True
    }
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("seed", range(40))
def test_oracle_any_watches_hit_just_the_rows_that_each_condition_means(seed: int) -> None:
    chance = random.Random(seed)
    refuse_differences([some_condition(chance) for _ in range(60)], chance)


@pytest.mark.parametrize("seed", range(40))
def test_oracle_many_watches_of_a_few_shapes_hit_the_same_rows_as_one_by_one(seed: int) -> None:
    """Every value differs, also of tests that the first watch of a shape happens to compare with the same."""
    chance = random.Random(seed)

    def value(name: str) -> str:
        return written(chance.choice(VALUES[COLUMNS[name]]))

    def of_shape(number: int) -> str:
        low, high, text = value("output_tokens"), value("output_tokens"), value("model")
        return (
            f"output_tokens > {low} and (output_tokens > {high} or cached) and model = {text}",
            f"output_tokens >= {low} and output_tokens < {high} and account.tags.team in ({text}, {value('account')})",
            f"model = {text} and cached and not (latency_ms <= {value('latency_ms')} or gpu_seconds is null)",
            f"model = {text} and model starts with {value('model')} and gpu_seconds <= {value('gpu_seconds')}",
        )[number % 4]

    refuse_differences([of_shape(number) for number in range(60)], chance)


def test_a_column_that_outcomes_lack_is_null_whatever_its_kind() -> None:
    watches = [Watch(1, parse("output_tokens is null", COLUMNS)), Watch(2, parse("output_tokens > 0", COLUMNS))]
    found = found_by(watches, pl.DataFrame({"output_tokens": [None, None]}, schema={"output_tokens": pl.String}))
    assert sorted(found) == [(1, 0), (1, 1)]
