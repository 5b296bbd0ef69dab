"""Patterns in Postgres: whatever order, cut, late outcome and retraction, what stands is what all outcomes make."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import polars as pl
import psycopg
import pytest

from jobs.analytics.config import AnalyticsConfig
from jobs.analytics.patterns.blocks import INSTANT, LSN
from jobs.analytics.patterns.decide import READ_BATCH, Deciding, ReadBatch, decide
from jobs.analytics.patterns.declared import Declared, begin_again, step_of
from jobs.analytics.patterns.matches import keys_of
from jobs.analytics.patterns.reading import Blocks
from jobs.analytics.patterns.rows import rows_of as key_rows
from jobs.analytics.patterns.store import store
from jobs.runtime.errors import Refused
from metering.instants import EPOCH
from metering.patterns.pattern import Pattern
from tests.pipelines.folding import rows_of
from tests.pipelines.pattern_rows import (
    MINUTE,
    NOON,
    Happened,
    expected,
    fold,
    random_batches,
    rebuild,
    sequences,
    standing,
)

OF: dict[str, Any] = {"of": "outcomes", "grace": "PT1S"}
PATTERNS = {
    "storm": {
        **OF,
        "partition_by": ["account", "api_key_id"],
        "pattern": "A B{2,} C?",
        "define": {"A": 'status = "error"', "B": 'status = "error" and gap <= PT50S', "C": 'status = "completed"'},
        "within": "PT3M",
        "measures": {
            "errors": "count(B)",
            "first_model": "first(A.model)",
            "last_model": "last(model)",
            "tokens": "sum(output_tokens)",
            "ended": "last(C.status)",
            "with_tokens": "count(output_tokens)",
        },
    },
    "hops": {
        **OF,
        "partition_by": ["api_key_id"],
        "pattern": "A (B | C)+?  D",
        "define": {
            "B": "model != prev(model)",
            "C": "output_tokens > prev(output_tokens) or cached = true",
            "D": 'not (model in ("m-1", "100% \\"m\\"")) and output_tokens >= 1.5',
        },
        "within": "PT2M",
        "measures": {"most": "max(output_tokens)", "least": "min(B.output_tokens)", "rows": "count(*)"},
        "after_match": "skip to next row",
    },
    "silent": {
        **OF,
        "partition_by": ["account"],
        "pattern": "A{2} B",
        "define": {"A": "output_tokens is null", "B": "output_tokens is not null and not cached = true"},
        "within": "PT10M",
    },
}
CONFIG = AnalyticsConfig.model_validate({"patterns": PATTERNS})


def happened(chance: random.Random, lsn: int) -> Happened:
    columns = {
        "account": chance.choice(["a", "b"]),
        "api_key_id": chance.choice(["k-1", None]),
        "status": chance.choice(["error", "error", "completed", None]),
        "model": chance.choice(["m-1", "m-2", '100% "m"']),
        "output_tokens": chance.choice([None, 1, 2, 10]),
        "cached": chance.choice([True, False, None]),
    }
    return Happened(lsn, NOON + timedelta(seconds=chance.choice([0, 60, *range(0, 1_200, 7)])), tuple(columns.items()))


def up_to(pattern: Pattern, frontier: datetime | None) -> datetime:
    if frontier is None:
        return EPOCH
    until = frontier - pattern.grace
    return until - (until - EPOCH) % step_of(pattern.within)


def measures_of(pattern: str, of: Sequence[Happened], word: Sequence[str]) -> dict[str, Any]:
    tokens = [one["output_tokens"] for one in of if one["output_tokens"] is not None]
    of_b = [one["output_tokens"] for one, name in zip(of, word, strict=True) if name == "B"]
    least = min((value for value in of_b if value is not None), default=None)
    return {
        "storm": {
            "errors": word.count("B"),
            "first_model": of[0]["model"],
            "last_model": of[-1]["model"],
            "tokens": f"{sum(tokens):.6f}" if tokens else None,
            "ended": of[-1]["status"] if word[-1] == "C" else None,
            "with_tokens": len(tokens),
        },
        "hops": {
            "most": f"{max(tokens):.6f}" if tokens else None,
            "least": None if least is None else f"{least:.6f}",
            "rows": len(of),
        },
        "silent": {},
    }[pattern]


def refuse_differences(
    database: psycopg.Connection[Any], rows: Sequence[Happened], frontier: datetime | None, config: AnalyticsConfig
) -> int:
    count = 0
    for pattern in sequences(config):
        must = {
            (str(match["keys"]), match["rows"][0].lsn, match["rows"][-1].lsn): match
            for match in expected(pattern, rows, up_to(pattern, frontier))
        }
        found = {(str(row["keys"]), row["first_lsn"], row["last_lsn"]): row for row in standing(database, pattern.name)}
        assert found.keys() == must.keys(), pattern.name
        for key, match in must.items():
            row, of = found[key], match["rows"]
            assert (row["started_at"], row["ended_at"], row["outcomes"]) == (of[0].at, of[-1].at, len(of))
            assert row["account"] == (of[0]["account"] if "account" in pattern.partition_by else None)
            assert row["match_id"] == pattern.match_id(of[0].lsn, of[-1].lsn)
            assert row["measures"] == measures_of(pattern.name, of, match["word"])
        count += len(must)
    versions = rows_of(
        database, "SELECT max(version) AS last, count(*) AS rows FROM pattern_matches GROUP BY pattern_id, match_id"
    )
    assert all(row["last"] == row["rows"] for row in versions)
    return count


@pytest.mark.few_in_ci(6)
@pytest.mark.parametrize("seed", range(40))
def test_oracle_any_order_cut_frontier_and_retraction_leaves_the_matches_of_all_outcomes(
    connection: psycopg.Connection[Any], seed: int
) -> None:
    chance = random.Random(seed)
    time = chance.choice([timedelta(minutes=3), timedelta(days=1)])
    few = random.Random(seed).choice([1, 2, 1_000])
    read_batch = ReadBatch(time, chance.choice([2, 10_000]), starts=few, changes=few, blocks=few)
    outcomes = [happened(chance, lsn) for lsn in range(1, 101)]
    known: Sequence[Happened] = []
    for batch in random_batches(chance, outcomes, max_new=25, max_gone=3, max_frontier=1_500):
        known, frontier = batch.known, batch.frontier
        fold(connection, CONFIG, batch.added, batch.minutes, frontier=frontier, read_batch=read_batch)
        refuse_differences(connection, known, frontier, CONFIG)
        if chance.random() < 0.3:
            before, middle = changes(connection), chance.randint(0, len(known))
            rebuild(connection, CONFIG, (known[:middle], known[middle:]), frontier, read_batch)
            refuse_differences(connection, known, frontier, CONFIG)
            assert changes(connection) == before
    fold(connection, CONFIG, frontier=NOON + timedelta(hours=1), read_batch=read_batch)
    assert refuse_differences(connection, known, NOON + timedelta(hours=1), CONFIG) > 0


def errors(seconds: Sequence[float], lsn: int = 1, **columns: Any) -> list[Happened]:
    of = {"account": "a", "api_key_id": "k", "status": "error", "model": "m", "output_tokens": 3, **columns}
    return [Happened(lsn + n, NOON + timedelta(seconds=at), tuple(of.items())) for n, at in enumerate(seconds)]


def changes(database: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    found = rows_of(
        database, "SELECT * FROM pattern_matches ORDER BY changed_at, is_retracted DESC, first_lsn, version"
    )
    return [(row["first_lsn"], row["last_lsn"], row["version"], row["is_retracted"]) for row in found]


def storm_alone() -> AnalyticsConfig:
    return AnalyticsConfig.model_validate({"patterns": {"storm": PATTERNS["storm"]}})


def test_a_match_is_there_once_when_the_frontier_has_passed_and_not_before(
    connection: psycopg.Connection[Any],
) -> None:
    config = storm_alone()
    fold(connection, config, errors([0, 10, 20, 30], output_tokens=3))
    for minutes in (0, 1, 2, 3):
        fold(connection, config, frontier=NOON + minutes * MINUTE)
        assert changes(connection) == []
    for minutes in (4, 4, 5, 60):
        fold(connection, config, frontier=NOON + minutes * MINUTE)
        assert changes(connection) == [(1, 4, 1, False)]
    [row] = standing(connection, "storm")
    assert row["keys"] == {"account": "a", "api_key_id": "k"}
    assert row["measures"] == {
        "errors": 3,
        "first_model": "m",
        "last_model": "m",
        "ended": None,
        "with_tokens": 4,
        "tokens": "12.000000",
    }


def test_a_late_outcome_retracts_the_match_that_it_breaks_and_adds_a_version_to_one_that_it_changes(
    connection: psycopg.Connection[Any],
) -> None:
    config, late = storm_alone(), NOON + timedelta(minutes=30)
    fold(connection, config, errors([0, 10, 20]), frontier=late)
    [success] = errors([5], 10, status="completed")
    fold(connection, config, [success], frontier=late)
    assert changes(connection) == [(1, 3, 1, False), (1, 3, 2, True)]
    fold(connection, config, [*errors([0, 10, 20])], [NOON], frontier=late)
    assert changes(connection)[2:] == [(1, 3, 3, False)]
    fold(connection, config, errors([15], 20), frontier=late)
    assert changes(connection)[3:] == [(1, 3, 4, False)]
    assert [row["measures"]["errors"] for row in standing(connection, "storm")] == [3]
    fold(connection, config, errors([15], 20), frontier=late)
    assert len(changes(connection)) == 4


def test_after_a_rebuild_versions_go_on_and_what_is_not_found_again_is_retracted(
    connection: psycopg.Connection[Any],
) -> None:
    config, late = storm_alone(), NOON + timedelta(minutes=30)
    storm, other = errors([0, 10, 20]), errors([600, 610, 620], 50, account="b")
    [success] = errors([5], 10, status="completed")
    fold(connection, config, [*storm, *other], frontier=late)
    fold(connection, config, [success], frontier=late)
    fold(connection, config, storm, [NOON], frontier=late)
    before = [(1, 3, 1, False), (50, 52, 1, False), (1, 3, 2, True), (1, 3, 3, False)]
    assert changes(connection) == before
    with connection.cursor() as cursor:
        begin_again(cursor)
    fold(connection, config, storm)
    assert changes(connection) == before
    fold(connection, config, frontier=late)
    assert changes(connection) == [*before, (50, 52, 2, True)]
    fold(connection, config, [success], frontier=late)
    assert changes(connection)[len(before) + 1 :] == [(1, 3, 4, True)]


def test_after_a_rebuild_a_pattern_that_was_declared_again_has_each_match_once(
    connection: psycopg.Connection[Any],
) -> None:
    config, other = storm_alone(), AnalyticsConfig.model_validate({"patterns": {"silent": PATTERNS["silent"]}})
    late = NOON + timedelta(minutes=30)
    fold(connection, config, errors([0, 10, 20]), frontier=late)
    fold(connection, other, frontier=late)
    fold(connection, config, frontier=late)
    assert len(rows_of(connection, "SELECT FROM analytics_patterns WHERE pattern = 'storm'")) == 2
    with connection.cursor() as cursor:
        begin_again(cursor)
    fold(connection, config, errors([0, 10, 20]), frontier=late)
    assert changes(connection) == [(1, 3, 1, False)]
    assert rows_of(connection, "SELECT pattern FROM analytics_patterns") == [{"pattern": "storm"}]


def test_an_outcome_later_than_it_may_revise_changes_nothing_and_old_outcomes_are_removed(
    connection: psycopg.Connection[Any],
) -> None:
    config = storm_alone()
    fold(connection, config, errors([0, 10]), frontier=NOON + timedelta(days=1))
    fold(connection, config, frontier=NOON + timedelta(days=4))
    assert rows_of(connection, "SELECT * FROM pattern_outcomes") == []
    fold(connection, config, errors([20, 30, 40], 5), frontier=NOON + timedelta(days=4))
    assert rows_of(connection, "SELECT * FROM pattern_outcomes") == []
    assert changes(connection) == []


def test_matches_are_removed_when_they_are_older_than_keep_days(connection: psycopg.Connection[Any]) -> None:
    config = storm_alone()
    fold(connection, config, errors([0, 10, 20]), frontier=NOON + timedelta(days=1))
    fold(connection, config, frontier=NOON + timedelta(days=35))
    assert len(changes(connection)) == 1
    fold(connection, config, frontier=NOON + timedelta(days=35, seconds=1))
    assert changes(connection) == []


def test_a_match_is_kept_while_a_late_outcome_needs_to_know_where_it_ends(connection: psycopg.Connection[Any]) -> None:
    three = {**OF, "partition_by": ["account"], "pattern": "A{3}", "within": "PT10M"}
    config = AnalyticsConfig.model_validate({"patterns": {"three": three}, "keep_days": 1, "revise_days": 1})
    late = NOON + timedelta(days=1, seconds=100)
    fold(connection, config, errors([0, 200, 400, 500, 700, 900]), frontier=NOON + timedelta(hours=1))
    before = [(1, 3, 1, False), (4, 6, 1, False)]
    fold(connection, config, frontier=late)
    fold(connection, config, errors([1_000], 7), frontier=late)
    assert changes(connection) == before
    fold(connection, config, frontier=late + timedelta(hours=1))
    assert changes(connection) == []


def test_matches_are_removed_when_they_are_too_old_also_if_no_pattern_is_declared_any_more(
    connection: psycopg.Connection[Any],
) -> None:
    fold(connection, storm_alone(), errors([0, 10, 20]), frontier=NOON + timedelta(days=1))
    without = AnalyticsConfig.model_validate({"watches": True})
    fold(connection, without, frontier=NOON + timedelta(days=35))
    assert len(changes(connection)) == 1
    fold(connection, without, frontier=NOON + timedelta(days=35, seconds=1))
    assert changes(connection) == []


def test_a_pattern_that_is_not_declared_any_more_keeps_its_matches_and_one_that_returns_begins_anew(
    connection: psycopg.Connection[Any],
) -> None:
    config, other = storm_alone(), AnalyticsConfig.model_validate({"patterns": {"silent": PATTERNS["silent"]}})
    fold(connection, config, errors([0, 10, 20]), frontier=NOON + timedelta(minutes=10))
    fold(connection, other, errors([30], 4), frontier=NOON + timedelta(minutes=10))
    assert len(standing(connection, "storm")) == 1
    connection.execute(
        "INSERT INTO positions (job, input, next_position) VALUES ('analytics', 'usage', 5)"
        " ON CONFLICT (job, input) DO UPDATE SET next_position = 5"
    )
    fold(connection, config, errors([700, 710, 720], 7), frontier=NOON + timedelta(minutes=40))
    [first, again] = rows_of(
        connection, "SELECT is_declared, since FROM analytics_patterns WHERE pattern = 'storm' ORDER BY pattern_id"
    )
    assert first == {"is_declared": False, "since": None}
    assert again == {"is_declared": True, "since": NOON + timedelta(minutes=40)}
    assert len(standing(connection, "storm")) == 1


def test_a_view_that_is_declared_after_patterns_alone_measures_from_the_minute_that_none_of_them_has_seen(
    connection: psycopg.Connection[Any],
) -> None:
    config = storm_alone()
    fold(connection, config, errors([0, 130]))
    connection.execute("INSERT INTO positions (job, input, next_position) VALUES ('analytics', 'usage', 3)")
    both = AnalyticsConfig.model_validate(
        {"patterns": {"storm": PATTERNS["storm"]}, "views": {"n": {"of": "outcomes", "measures": {"n": "count"}}}}
    )
    fold(connection, both)
    assert rows_of(connection, "SELECT since FROM analytics_views") == [{"since": NOON + 3 * MINUTE}]


def test_what_is_declared_when_the_outcomes_of_a_changed_pattern_are_gone_begins_after_them(
    connection: psycopg.Connection[Any],
) -> None:
    fold(connection, storm_alone(), errors([0, 130]))
    connection.execute("INSERT INTO positions (job, input, next_position) VALUES ('analytics', 'usage', 3)")
    changed = AnalyticsConfig.model_validate({"patterns": {"storm": {**PATTERNS["storm"], "within": "PT4M"}}})
    fold(connection, changed)
    assert rows_of(connection, "SELECT since FROM analytics_patterns WHERE is_declared") == [
        {"since": NOON + 3 * MINUTE}
    ]
    fold(connection, AnalyticsConfig.model_validate({"watches": True}))
    fold(
        connection,
        AnalyticsConfig.model_validate({"views": {"n": {"of": "outcomes", "measures": {"n": "count"}}}}),
    )
    assert rows_of(connection, "SELECT since FROM analytics_views") == [{"since": NOON + 3 * MINUTE}]


def test_numbers_are_compared_and_added_up_exactly(connection: psycopg.Connection[Any]) -> None:
    exact = "12345678901234567890.123456"
    config = AnalyticsConfig.model_validate(
        {
            "patterns": {
                "exact": {
                    **OF,
                    "partition_by": ["account"],
                    "pattern": "A B",
                    "define": {"B": f"latency_ms > {exact[:-1]}5 and latency_ms < {exact[:-1]}7"},
                    "within": "PT1M",
                    "measures": {"all": "sum(latency_ms)"},
                }
            }
        }
    )
    of = (("account", "a"), ("latency_ms", exact))
    fold(connection, config, [Happened(1, NOON, of), Happened(2, NOON, of)], frontier=NOON + 10 * MINUTE)
    [row] = standing(connection, "exact")
    assert Decimal(row["measures"]["all"]) == 2 * Decimal(exact)


def test_without_a_view_and_a_pattern_nothing_is_folded(connection: psycopg.Connection[Any]) -> None:
    with pytest.raises(Refused, match="declare `views` or `patterns`"):
        fold(connection, AnalyticsConfig())


def test_versions_after_a_lost_database_are_above_those_of_earlier_drivers(
    connection: psycopg.Connection[Any],
) -> None:
    config, late = storm_alone(), NOON + timedelta(minutes=30)
    connection.execute(
        "INSERT INTO jobs (job, epoch, owner_pid, owner_started_at, started_at, state, config)"
        " VALUES ('analytics', 3, 1, now(), now(), 'running', '{}')"
    )
    fold(connection, config, errors([0, 10, 20]), frontier=late)
    [success] = errors([5], 10, status="completed")
    fold(connection, config, [success], frontier=late)
    assert changes(connection) == [(1, 3, 2_000_001, False), (1, 3, 2_000_002, True)]


def test_blocks_that_were_opened_last_stay_open_however_many_small_ones_were_before(
    connection: psycopg.Connection[Any],
) -> None:
    fold(connection, storm_alone(), errors([at * 60 for at in range(60)]))
    [(size,)] = connection.execute("SELECT max(length(outcomes)) FROM pattern_outcomes").fetchall()
    with connection.cursor() as cursor:
        blocks = Blocks(cursor, max_bytes=10 * size)
        last = [number for number, _, _ in blocks.listed(NOON - MINUTE, NOON + 60 * MINUTE)][-10:]
        assert [len(opened) for opened in blocks.read(NOON - MINUTE, NOON + 60 * MINUTE)] == [60]
        cursor.execute("DELETE FROM pattern_outcomes")
        assert len(blocks.get(last)) == 10
    connection.rollback()


class Counting(psycopg.Cursor[Any]):
    """Counts its statements."""

    statements = 0

    def execute(self, *arguments: Any, **options: Any) -> Counting:
        self.statements += 1
        return super().execute(*arguments, **options)


def test_postgres_hears_of_the_driver_while_it_opens_blocks_of_many_minutes(
    connection: psycopg.Connection[Any],
) -> None:
    """Those of a month took it 16 seconds at once: late outcomes may be in each of them, and each may be made again."""
    fold(connection, storm_alone(), errors([at * 60 for at in range(20)]))
    numbers = [row["block_id"] for row in rows_of(connection, "SELECT block_id FROM pattern_outcomes ORDER BY 1")]
    with Counting(connection) as cursor:
        opened = Blocks(cursor, batch_blocks=6).get(numbers)
        assert [cursor.statements, len(opened), pl.concat(opened)[LSN].is_sorted()] == [4, 20, True]
        cursor.execute("CREATE TEMP TABLE staged (view text, version text, window_start timestamptz, measures text)")
        cursor.execute("INSERT INTO staged SELECT '', '', minute, '' FROM pattern_outcomes")
        cursor.statements = 0
        made_again = store(cursor, NOON, [], batch_blocks=6)
        assert [cursor.statements, len(made_again.replaced), made_again.added] == [3 + 4, 20, []]
    connection.rollback()


def test_of_the_outcomes_before_a_step_the_last_one_of_each_key_is_held_alone(
    connection: psycopg.Connection[Any],
) -> None:
    rises = {
        **OF,
        "partition_by": ["account"],
        "pattern": "A B",
        "define": {"A": "output_tokens = prev(output_tokens)", "B": "output_tokens > prev(output_tokens)"},
        "within": "P1D",
    }
    config = AnalyticsConfig.model_validate({"patterns": {"rises": rises}})
    [pattern] = sequences(config)
    before = [
        *errors([at * 10 for at in range(3_000)]),
        *errors([at * 10 for at in range(3_000)], 5_000, account=None, output_tokens=4),
    ]
    step = [*errors([40_000], 9_000), *errors([40_000], 9_010, account=None, output_tokens=4)]
    rise = [*errors([40_001], 9_001, output_tokens=4), *errors([40_001], 9_011, account=None, output_tokens=5)]
    fold(connection, config, [*before, *step, *rise])
    after, until = NOON + timedelta(seconds=39_999), NOON + timedelta(seconds=40_002)
    keys = keys_of(pattern, [("a",), (None,)])
    with connection.cursor() as cursor:
        found = [*key_rows(Declared(1, pattern, None, EPOCH), Blocks(cursor), after, until, keys)]
    held = {of.key: of.outcomes[LSN].to_list() for of in found}
    assert held == {("a",): [3_000, 9_000, 9_001], (None,): [7_999, 9_010, 9_011]}
    fold(connection, config, frontier=NOON + timedelta(days=3))
    assert {(row["first_lsn"], row["last_lsn"]) for row in standing(connection, "rises")} == {
        (9_000, 9_001),
        (9_010, 9_011),
    }


class Counted(Blocks):
    """How many blocks were read, each as often as it was."""

    reads = 0

    def get(self, numbers: Sequence[int]) -> list[pl.DataFrame]:
        self.reads += len(numbers)
        return super().get(numbers)


def test_what_is_due_of_a_long_pattern_is_read_a_few_times_and_not_once_for_each_hour(
    connection: psycopg.Connection[Any],
) -> None:
    config = AnalyticsConfig.model_validate({"patterns": {"storm": {**PATTERNS["storm"], "within": "P1D"}}})
    [pattern] = sequences(config)
    fold(connection, config, errors([at * 600 for at in range(180)]))
    with connection.cursor() as cursor:
        blocks = Counted(cursor)
        frontier = NOON + timedelta(hours=30) + pattern.grace
        declared = Declared(1, pattern, None, NOON + timedelta(hours=24))
        names = dict.fromkeys(pattern.partition_by, pl.String)
        none = pl.DataFrame(schema={**names, "first": INSTANT, "last": INSTANT})
        now = decide(Deciding(cursor, blocks, frontier, READ_BATCH), declared, none)
    assert now.final_until == NOON + timedelta(hours=30)
    assert blocks.reads <= 3 * 180
    connection.rollback()


@pytest.mark.parametrize("stored", [1, 2])
@pytest.mark.parametrize(("count", "found"), [(1_000, 1), (1_001, 0)])
def test_of_a_key_with_very_many_outcomes_no_more_are_read_than_a_match_has_and_that_many_are(
    connection: psycopg.Connection[Any], count: int, found: int, stored: int
) -> None:
    """An outcome that is stored twice is one."""
    many = {
        **OF,
        "partition_by": ["account"],
        "pattern": f"A B{{{count - 2}}} C" if count <= 1_000 else f"A B{{{count - 3}}} B C",
        "define": {"A": 'status = "begin"', "C": 'status = "end"'},
        "within": "PT1H",
    }
    config = AnalyticsConfig.model_validate({"patterns": {"many": many}})
    outcomes = [
        *errors([0], 1, status="begin"),
        *errors([1 + at / 2 for at in range(count - 2)], 2),
        *errors([1_800], 9_000, status="end"),
        *errors([1_801 + at / 10 for at in range(2_000)], 10_000),
    ]
    for _ in range(stored):
        fold(connection, config, outcomes)
    read_batch = ReadBatch(timedelta(seconds=1), 10)
    fold(connection, config, frontier=NOON + timedelta(hours=2), read_batch=read_batch)
    assert len(standing(connection, "many")) == found


def test_a_pattern_that_is_declared_later_reads_blocks_that_lack_its_columns(
    connection: psycopg.Connection[Any],
) -> None:
    silent, storm = ({name: PATTERNS[name]} for name in ("silent", "storm"))
    fold(connection, AnalyticsConfig.model_validate({"patterns": silent}), errors([0, 10, 20]))
    connection.execute("INSERT INTO positions (job, input, next_position) VALUES ('analytics', 'usage', 4)")
    both = AnalyticsConfig.model_validate({"patterns": {**silent, **storm}})
    fold(connection, both, errors([60, 70, 80], 50))
    fold(connection, both, frontier=NOON + 30 * MINUTE)
    [match] = standing(connection, "storm")
    assert (match["first_lsn"], match["last_lsn"]) == (50, 52)
