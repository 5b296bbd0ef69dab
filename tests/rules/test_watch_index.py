"""Random watches over random rows: what the index finds is what each condition means, row by row."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime
from decimal import Decimal
from itertools import product

import polars as pl
import pytest

from jobs.analytics.watches.atoms import AtomTests, Rows, in_order
from jobs.analytics.watches.attributes import with_attributes
from jobs.analytics.watches.candidates import Ints
from jobs.analytics.watches.conditions import TYPES
from jobs.analytics.watches.hits import columns_read
from jobs.analytics.watches.index import WatchIndex
from jobs.analytics.watches.running import RunningWatches
from jobs.analytics.watches.terms import Term, Watch, negations_inward, terms_of
from metering.contracts.model import Kind
from metering.watches.expressions import And, Expression, Not
from metering.watches.parser import parse
from tests.rules.watch_conditions import COLUMNS, VALUES, some_condition, some_rows, truth, written

FRAME = {name: TYPES[kind] for name, kind in COLUMNS.items()}


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ALL_ALONE = -1_000
"""Every watch is an expression of its own."""


def found_by(watches: list[Watch], rows: pl.DataFrame, max_found: int = 1_000) -> list[tuple[int, int]]:
    index = WatchIndex(watches, max_pairs=150, max_found=max_found)
    return [pair for part in index.pairs(rows) for pair in part.iter_rows()]


def refuse_differences(texts: list[str], chance: random.Random, count: int = 40) -> None:
    watches = [Watch(number, parse(text, COLUMNS)) for number, text in enumerate(texts, 1)]
    rows = some_rows(chance, count)
    max_found = chance.choice((ALL_ALONE, 0, 20, 1_000))
    found = found_by(watches, pl.DataFrame(rows, schema=FRAME), max_found)
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


@pytest.mark.parametrize("seed", range(20))
def test_oracle_a_row_is_taken_by_a_condition_just_if_one_of_its_terms_takes_it(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(60):
        when = parse(some_condition(chance, depth=4), COLUMNS)
        inward, terms = negations_inward(when), [as_condition(term) for term in terms_of(when)]
        for row in some_rows(chance, 10):
            assert truth(inward, row) is truth(when, row)
            assert any(truth(term, row) is True for term in terms) is (truth(when, row) is True)


def as_condition(term: Term) -> Expression:
    parts = [Not(atom.test) if atom.is_negated else atom.test for atom in term.atoms]
    return And((*parts, *(() if term.rest is None else (term.rest,))))


def test_numbers_in_order_are_compared_as_polars_compares_them() -> None:
    numbers = [-math.inf, -1e9, -2.5, -5e-324, -0.0, 0.0, 5e-324, 0.1, 2.5, 1e9, math.inf, math.nan]
    pairs = pl.DataFrame(list(product(numbers, repeat=2)), schema={"a": pl.Float64(), "b": pl.Float64()}, orient="row")
    a, b = in_order(pairs["a"]), in_order(pairs["b"])
    assert (a < b).tolist() == pairs.select(pl.col("a") < pl.col("b")).to_series().to_list()
    assert (a == b).tolist() == pairs.select(pl.col("a") == pl.col("b")).to_series().to_list()


def test_whole_numbers_that_one_floating_point_number_stands_for_are_told_apart_and_found_once() -> None:
    first = 2**53
    texts = [f"output_tokens in ({first}, {first + 1})", f"output_tokens > {first}", f"output_tokens = {first + 1}"]
    rows = pl.DataFrame({"output_tokens": [first, first + 1, first + 2]}, schema={"output_tokens": pl.Int64})
    found = found_by([Watch(number, parse(text, COLUMNS)) for number, text in enumerate(texts, 1)], rows)
    assert sorted(found) == [(1, 0), (1, 1), (2, 1), (2, 2), (3, 1)]


def test_watches_that_share_no_form_are_tested_on_the_few_rows_that_may_meet_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 2,000 conditions over 5,000 rows none has an expression of its own, nor looks at rows that it cannot take."""
    tested: list[int] = []
    passing = AtomTests.passing

    def counted(self: AtomTests, rows: Rows, terms: Ints, places: Ints) -> tuple[Ints, Ints]:
        tested.append(len(terms))
        return passing(self, rows, terms, places)

    def refused(*_: object) -> pl.Expr:
        raise AssertionError("a watch was tested alone")

    monkeypatch.setattr(AtomTests, "passing", counted)
    rare = ("output_tokens > 100000", 'account = "rare"', "gpu_seconds <= 0.5", "latency_ms = 0.1")
    texts = [
        f'{rare[number % 4]} and not (model in ("m-{number}", "x") or cached or latency_ms < {number})'
        + f" and (account is null or {rare[(number + 1) % 4]})" * (number % 2)
        for number in range(2_000)
    ]
    watches = [Watch(number, parse(text, COLUMNS)) for number, text in enumerate(texts)]
    index = WatchIndex(watches)
    monkeypatch.setattr("jobs.analytics.watches.index.condition", refused)
    usual = {"account": "usual", "model": "m", "output_tokens": 7, "gpu_seconds": Decimal(12), "latency_ms": 5.0}
    rows = [{**dict.fromkeys(COLUMNS), **usual, "cached": False} for _ in range(5_000)]
    rows[9] |= {"output_tokens": 100_001, "latency_ms": 1e9}
    rows[10] |= {"account": "rare", "latency_ms": 1e9}
    found = sorted(pair for part in index.pairs(pl.DataFrame(rows, schema=FRAME)) for pair in part.iter_rows())
    expected = [(watch.id, place) for watch in watches for place in (9, 10) if truth(watch.when, rows[place]) is True]
    assert found == sorted(expected)
    assert len(found) > 400
    assert sum(tested) <= len(watches)


def test_lists_of_many_columns_have_more_combinations_than_64_bits_count_and_none_is_made() -> None:
    """2**64 of them: that was counted as 0, and all were listed."""
    columns = [f"account.tags.t{number}" for number in range(16)]
    listed = ", ".join(f'"{value}"' for value in range(16))
    watch = Watch(1, parse(" and ".join(f"{column} in ({listed})" for column in columns), COLUMNS))
    rows = [dict.fromkeys(columns, "7"), dict.fromkeys(columns, "7") | {columns[9]: "16"}]
    assert found_by([watch], pl.DataFrame(rows)) == [(1, 0)]


def test_a_column_that_outcomes_lack_is_null_whatever_its_kind() -> None:
    watches = [Watch(1, parse("output_tokens is null", COLUMNS)), Watch(2, parse("output_tokens > 0", COLUMNS))]
    found = found_by(watches, pl.DataFrame({"output_tokens": [None, None]}, schema={"output_tokens": pl.String}))
    assert sorted(found) == [(1, 0), (1, 1)]


def test_a_field_of_a_contract_may_have_any_name_that_contracts_allow() -> None:
    """A watch of a field `row` ended each batch of analytics: that was what the index named the place of a row."""
    names = ("row", "watch", "hour", "net")
    columns = {**dict.fromkeys(names, Kind.TEXT), "account.tags.team": Kind.TEXT}
    texts = [f'{name} in ("a", "b") and account.tags.team = "x"' for name in names]
    watches = [Watch(number, parse(text, columns)) for number, text in enumerate(texts)]
    rows = {"account": ["acme"] * 3, "request_lsn": [5, 6, 7], "completion_lsn": [8, 9, 10], "event_time": [NOON] * 3}
    versions = {"account": ["acme"], "effective_us": [0], "account.tags.team": ["x"], "version_lsn": [1]}
    outcomes = pl.DataFrame({**rows, **{key: ["a", "c", "b"] for key in names}})
    found = found_by(watches, with_attributes(outcomes, pl.DataFrame(versions), ["account.tags.team"]))
    assert sorted(found) == sorted(product(range(len(names)), (0, 2)))


def test_a_watch_may_name_the_request_which_each_hit_has_anyway() -> None:
    """The column was selected twice for tasks, so each large batch failed, for ever."""
    running = RunningWatches((1, 1), ((1, 'request_id = "r-1"', (("request_id", "text"),)),))
    read = columns_read(running)
    assert sorted(read) == sorted({*read})
    assert {"event_time", "account", "request_id", "sign"} <= {*read}
