"""Bursts in Postgres: whatever order, cut, late outcome and retraction, what stands is what all outcomes make.

The oracle counts the outcomes of each window, and those of the time before it, one by one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from jobs.analytics.config import AnalyticsConfig
from jobs.analytics.patterns.decide import ReadBatch
from jobs.analytics.patterns.fold import is_match_due
from jobs.queries.patterns import Matches, match_rows
from jobs.runtime.job import Fold
from jobs.runtime.postgres.address import in_schema
from metering.instants import EPOCH
from metering.patterns.burst import Burst
from tests.pipelines.folding import rows_of
from tests.pipelines.pattern_rows import MINUTE, NOON, Happened, fold, random_batches, rebuild, standing
from tests.pipelines.test_patterns import PATTERNS, changes, errors

BURSTS: dict[str, Any] = {
    "failing": {
        "of": "outcomes",
        "partition_by": ["account", "api_key_id"],
        "grace": "PT1S",
        "burst": {"times": 3, "at_least": 3, "over": "PT5M", "where": 'status = "error" or output_tokens >= 2'},
    },
    "of_models": {
        "of": "outcomes",
        "partition_by": ["model"],
        "grace": "PT90S",
        "burst": {"times": 2, "at_least": 5, "window": "PT3M", "over": "PT9M"},
    },
}
CONFIG = AnalyticsConfig.model_validate({"patterns": {**BURSTS, "storm": PATTERNS["storm"]}})


def is_counted(name: str, one: Happened) -> bool:
    return name == "of_models" or one["status"] == "error" or (one["output_tokens"] or 0) >= 2


def expected(burst: Burst, rows: Sequence[Happened], frontier: datetime | None) -> list[dict[str, Any]]:
    found = []
    counted = sorted((one for one in rows if is_counted(burst.name, one)), key=lambda one: (one.at, one.lsn))
    for key in {tuple(one[name] for name in burst.partition_by) for one in counted}:
        of = [one for one in counted if tuple(one[name] for name in burst.partition_by) == key]
        for start in {one.at - (one.at - EPOCH) % burst.window for one in of}:
            window = [one for one in of if start <= one.at < start + burst.window]
            before = sum(start - burst.over <= one.at < start for one in of)
            mean = Fraction(before * (burst.window // MINUTE), burst.over // MINUTE)
            is_final = frontier is not None and start + burst.window + burst.grace <= frontier
            if is_final and len(window) >= burst.at_least and len(window) >= burst.times * mean:
                found.append(
                    {
                        "keys": dict(zip(burst.partition_by, key, strict=True)),
                        "account": key[0] if burst.partition_by[0] == "account" else None,
                        "first_lsn": window[0].lsn,
                        "last_lsn": window[-1].lsn,
                        "started_at": window[0].at,
                        "ended_at": window[-1].at,
                        "outcomes": len(window),
                        "measures": {"before": before},
                    }
                )
    return found


def refuse_differences(database: psycopg.Connection[Any], rows: Sequence[Happened], frontier: datetime | None) -> int:
    count = 0
    for burst in CONFIG.declared_patterns:
        if not isinstance(burst, Burst):
            continue
        must = expected(burst, rows, frontier)
        names = [*must[0]] if must else ["first_lsn"]
        found = [{name: row[name] for name in names} for row in standing(database, burst.name)]
        assert sorted(found, key=str) == sorted(must, key=str), burst.name
        count += len(must)
    versions = rows_of(
        database, "SELECT max(version) AS last, count(*) AS rows FROM pattern_matches GROUP BY pattern_id, match_id"
    )
    assert all(row["last"] == row["rows"] for row in versions)
    return count


def happened(chance: random.Random, lsn: int) -> Happened:
    """In some minutes much more happens than in others; many outcomes at the very edge of a window."""
    columns = {
        "account": chance.choice(["a", None]),
        "api_key_id": chance.choice(["k-1", "k-1", None]),
        "status": chance.choice(["error", "completed", None]),
        "model": chance.choice(["m-1", "m-1", "m-2"]),
        "output_tokens": chance.choice([None, 1, 2]),
        "cached": None,
    }
    seconds = chance.choice([chance.randint(0, 1_500), 60 * chance.randint(0, 25), 600 + chance.randint(0, 60)])
    edge = chance.choice([timedelta(), timedelta(), -timedelta(microseconds=1)])
    return Happened(lsn, NOON + timedelta(seconds=seconds) + edge, tuple(columns.items()))


@pytest.mark.few_in_ci(6)
@pytest.mark.parametrize("seed", range(40))
def test_oracle_any_order_cut_frontier_and_retraction_leaves_the_bursts_of_all_outcomes(
    connection: psycopg.Connection[Any], seed: int
) -> None:
    chance = random.Random(seed)
    opened = chance.choice([1, 20, 100_000])
    time = chance.choice([timedelta(minutes=4), timedelta(days=1)])
    read_batch = ReadBatch(time, chance.choice([2, 10_000]), opened)
    outcomes = [happened(chance, lsn) for lsn in range(1, 141)]
    known: Sequence[Happened] = []
    for batch in random_batches(chance, outcomes, max_new=35, max_gone=5, max_frontier=1_700):
        known, frontier = batch.known, batch.frontier
        twice = chance.sample(known, chance.choice([0, min(5, len(known))]))
        fold(connection, CONFIG, [*batch.added, *twice], batch.minutes, frontier=frontier, read_batch=read_batch)
        refuse_differences(connection, known, frontier)
        if chance.random() < 0.3:
            before, middle = changes(connection), chance.randint(0, len(known))
            rebuild(connection, CONFIG, (known[:middle], known[middle:]), frontier, read_batch)
            refuse_differences(connection, known, frontier)
            assert changes(connection) == before
    fold(connection, CONFIG, frontier=NOON + timedelta(hours=1), read_batch=read_batch)
    assert refuse_differences(connection, known, NOON + timedelta(hours=1)) > 0


def hourly(**burst: Any) -> AnalyticsConfig:
    of = {"of": "outcomes", "partition_by": ["account", "api_key_id"], "burst": {"times": 10, "at_least": 20, **burst}}
    return AnalyticsConfig.model_validate({"patterns": {"burst": of}})


def an_hour_before(count: int) -> list[Happened]:
    """So many outcomes, evenly over the hour before noon."""
    return errors([-3_600 * (place + 1) / count for place in range(count)], 10_000)


@pytest.mark.parametrize(
    ("before", "count", "is_burst"), [(120, 20, True), (121, 20, False), (126, 21, True), (0, 20, True), (0, 19, False)]
)
def test_a_minute_is_a_burst_from_exactly_ten_times_the_mean_of_its_hour_and_at_least_so_many(
    connection: psycopg.Connection[Any], before: int, count: int, is_burst: bool
) -> None:
    fold(connection, hourly(), an_hour_before(before) + errors(range(count)))
    fold(connection, hourly(), frontier=NOON + timedelta(hours=2))
    assert [(row["outcomes"], row["measures"]) for row in standing(connection, "burst")] == (
        [(count, {"before": before})] if is_burst else []
    )


def test_a_burst_is_there_once_when_the_frontier_has_passed_its_minute_and_grace_and_not_before(
    connection: psycopg.Connection[Any],
) -> None:
    fold(connection, hourly(), errors([place / 10 for place in range(20)]))
    for seconds in (0, 60, 119):
        fold(connection, hourly(), frontier=NOON + timedelta(seconds=seconds))
        assert changes(connection) == []
    for seconds in (120, 120, 200, 7_200):
        fold(connection, hourly(), frontier=NOON + timedelta(seconds=seconds))
        assert changes(connection) == [(1, 20, 1, False)]


def test_late_outcomes_that_change_break_and_make_a_burst_each_add_a_version_to_it(
    connection: psycopg.Connection[Any],
) -> None:
    late = NOON + timedelta(hours=2)
    fold(connection, hourly(), errors([place + 1 for place in range(20)]), frontier=late)
    assert changes(connection) == [(1, 20, 1, False)]
    fold(connection, hourly(), errors([0], 50), frontier=late)
    assert changes(connection)[1:] == [(50, 20, 2, False)]
    fold(connection, hourly(), an_hour_before(127), frontier=late)
    assert changes(connection)[2:] == [(50, 20, 3, True)]
    fold(connection, hourly(), errors([59.9], 60), frontier=late)
    assert changes(connection)[3:] == [(50, 60, 4, False)]
    assert len({row["match_id"] for row in rows_of(connection, "SELECT match_id FROM pattern_matches")}) == 1


def test_what_is_compared_with_an_hour_that_was_not_looked_at_whole_is_no_burst(
    connection: psycopg.Connection[Any],
) -> None:
    connection.execute("INSERT INTO positions (job, input, next_position) VALUES ('analytics', 'usage', 4)")
    fold(connection, hourly(), frontier=NOON)
    storms = [errors([minute * 60 + place / 10 for place in range(20)], minute * 100) for minute in (2, 59, 60, 125)]
    fold(connection, hourly(), [one for storm in storms for one in storm])
    fold(connection, hourly(), frontier=NOON + timedelta(hours=4))
    assert [row["first_lsn"] for row in standing(connection, "burst")] == [6_000, 12_500]


@pytest.mark.parametrize("window", [1, 5])
def test_a_burst_is_due_when_its_window_has_ended_also_if_it_lies_at_the_windows_end(
    connection: psycopg.Connection[Any], window: int
) -> None:
    config = hourly(window=f"PT{window}M")
    end = NOON + window * MINUTE
    fold(connection, config, errors([window * 60 - 1 + place / 100 for place in range(20)]), frontier=NOON)
    for frontier, is_due in ((end, False), (end + MINUTE - timedelta(seconds=1), False), (end + MINUTE, True)):
        with connection.cursor() as cursor:
            assert is_match_due(cursor, Fold(None, frontier, 1)) == is_due
    fold(connection, config, frontier=end + MINUTE)
    assert len(standing(connection, "burst")) == 1
    with connection.cursor() as cursor:
        assert not is_match_due(cursor, Fold(None, end + 30 * MINUTE, 1))


def test_a_burst_whose_last_version_began_before_the_period_is_not_listed_as_it_was(
    connection: psycopg.Connection[Any], database: str
) -> None:
    second, late = timedelta(seconds=1), NOON + timedelta(hours=2)

    def listed(start: datetime) -> list[tuple[int, int]]:
        with psycopg.connect(in_schema(database), row_factory=dict_row) as reader:
            return [(row["version"], row["outcomes"]) for row in match_rows(reader, Matches(start=start))]

    fold(connection, hourly(), errors([place + 1 for place in range(20)]), frontier=late)
    assert listed(NOON + second) == [(1, 20)]
    fold(connection, hourly(), errors([0], 50), frontier=late)
    assert (listed(NOON), listed(NOON + second)) == ([(2, 21)], [])
    fold(connection, hourly(), an_hour_before(127), frontier=late)
    assert (listed(NOON), listed(NOON + second)) == ([], [])


def test_all_versions_of_a_burst_are_those_that_a_period_has_and_those_that_follow_them(
    connection: psycopg.Connection[Any], database: str
) -> None:
    second, late = timedelta(seconds=1), NOON + timedelta(hours=2)
    fold(connection, hourly(), errors([place + 1 for place in range(20)]), frontier=late)
    fold(connection, hourly(), errors([0], 50), frontier=late)
    fold(connection, hourly(), an_hour_before(127), frontier=late)

    def listed(start: datetime, end: datetime) -> list[tuple[int, bool]]:
        asked = Matches(start=start, end=end, all_versions=True)
        with psycopg.connect(in_schema(database), row_factory=dict_row) as reader:
            return sorted((row["version"], row["is_retracted"]) for row in match_rows(reader, asked))

    every = [(1, False), (2, False), (3, True)]
    for start in (NOON, NOON + second):
        assert listed(start, NOON + 2 * second) == every, "the highest version says that it does not stand"
    assert listed(NOON, NOON + second) == every
    assert listed(NOON + 2 * second, late) == []


def test_all_versions_of_a_burst_expire_at_once_so_that_no_earlier_one_stands_again(
    connection: psycopg.Connection[Any],
) -> None:
    config = hourly().model_copy(update={"keep_days": 2, "revise_days": 1})
    late = NOON + timedelta(hours=2)
    fold(connection, config, errors([place + 1 for place in range(20)]), frontier=late)
    fold(connection, config, errors([0], 50), frontier=late)
    fold(connection, config, an_hour_before(127), frontier=late)
    assert [of[-2:] for of in changes(connection)] == [(1, False), (2, False), (3, True)]
    fold(connection, config, frontier=NOON + timedelta(days=2))
    assert len(changes(connection)) == 3
    fold(connection, config, frontier=NOON + timedelta(days=2, milliseconds=500))
    assert changes(connection) == []
