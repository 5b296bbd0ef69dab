"""Panes that a driver remembers between batches, against all outcomes at once: whatever it forgets, rows are equal."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import psycopg
import pytest

from jobs.analytics import fold_panes
from jobs.analytics.config import AnalyticsConfig
from jobs.analytics.fold import OfDriver, fold
from jobs.analytics.newest_panes import OPEN_BYTES, STORED_BYTES, AddedPane, Key, NewestPanes, Pane
from jobs.analytics.pipeline import STAGED
from jobs.runtime.job import Fold
from jobs.runtime.postgres.sink import stage
from jobs.view_measures import shown
from metering.instants import EPOCH
from metering.views import Aggregate, Measure
from metering.windows import MINUTE
from tests.pipelines.folding import rows_of

USERS = [f"u{n}" for n in range(30)]
CONFIG = AnalyticsConfig.model_validate(
    {
        "views": {
            name: {
                "of": "outcomes",
                "by": by,
                "measures": {
                    "requests": "count",
                    "tokens": {"sum": "output_tokens"},
                    "fewest": {"min": "output_tokens"},
                    "users": {"distinct": "user_id"},
                    "latency_ms": {"percentiles": "latency_ms"},
                    "busiest": {"top": {"of": "user_id", "k": 3}},
                },
            }
            for name, by in (("accounts", ["account", "model"]), ("whole", []))
        }
    }
)
FIRST = 30_000_000
"""A minute of 2027."""
PANES = """
SELECT view, window_start, account, keys, measures FROM analytics_panes JOIN analytics_views USING (view_id)
"""
Outcome = tuple[str | None, int, float]
"""User, tokens, latency."""


def added(view: str, minute: int, keys: tuple[str | None, ...], outcomes: Sequence[Outcome]) -> AddedPane:
    [declared] = [of for of in CONFIG.declared_views if of.name == view]
    users = [user for user, _, _ in outcomes if user is not None]
    tokens = [tokens for _, tokens, _ in outcomes]
    latencies = np.array([latency for _, _, latency in outcomes])
    parts = (str(len(outcomes)), f"{sum(tokens)}.000000", f"{min(tokens)}.000000", users, latencies, users)
    return AddedPane(view, declared.version, minute, keys, parts)


def fold_added(
    connection: psycopg.Connection[Any],
    newest: NewestPanes | None,
    *panes: AddedPane,
    frontier: datetime | None = None,
) -> None:
    with connection.transaction(), connection.cursor() as cursor:
        stage(cursor, STAGED, STAGED.empty_table())
        fold(cursor, CONFIG, Fold(None, frontier, 1, beside=OfDriver(panes), memory=newest))


def stored(connection: psycopg.Connection[Any]) -> dict[Any, Any]:
    """What a reader is shown of each pane."""
    measures = {view.name: view.measures for view in CONFIG.declared_views}
    return {
        (row["view"], (row["window_start"] - EPOCH) // MINUTE, tuple(row["keys"])): {
            "account": row["account"],
            **{of.name: shown(of, row["measures"].get(of.name)) for of in measures[row["view"]]},
        }
        for row in rows_of(connection, PANES)
    }


def must_be(outcomes: Mapping[Any, Sequence[Outcome]]) -> dict[Any, Any]:
    """The same of all outcomes at once."""
    found = {}
    for (view, minute, keys), listed in outcomes.items():
        users = Counter(user for user, _, _ in listed if user is not None)
        ordered = sorted(latency for _, _, latency in listed)
        ranks = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
        first = sorted(users.items(), key=lambda found: (-found[1], found[0]))[:3]
        found[view, minute, keys] = {
            "account": keys[0] if keys else None,
            "requests": len(listed),
            "tokens": sum(tokens for _, tokens, _ in listed),
            "fewest": min(tokens for _, tokens, _ in listed),
            "users": len(users),
            "latency_ms": {
                name: ordered[max(0, int(np.ceil(rank * len(ordered))) - 1)] for name, rank in ranks.items()
            },
            "busiest": [{"value": user, "count": count} for user, count in first],
        }
    return found


@pytest.mark.parametrize("seed", range(4))
def test_oracle_what_a_driver_remembers_or_forgets_of_panes_changes_no_row(database: str, seed: int) -> None:
    """It has room for all, for a few, or for none; it starts anew; its transaction fails, or expires minutes."""
    chance = random.Random(seed)
    room = [2_000, 18_000, 1 << 20][seed % 3], [10_000, 3][seed % 2]
    newest, all_of = NewestPanes(*room), defaultdict[Any, list[Outcome]](list)
    with psycopg.connect(database, autocommit=True) as connection:
        fold_added(connection, None)
        for batch in range(12):
            if chance.random() < 0.2:
                newest = NewestPanes(*room)
            batch_of = defaultdict[Any, list[Outcome]](list)
            for _ in range(chance.randint(1, 30)):
                one = chance.choice([*USERS, None]), chance.randrange(10**10), chance.randrange(10**6) / 8
                minute = FIRST + batch // 4 + chance.randrange(3)
                keys = chance.choice(["a", "b", 'Ünï "\\ \n']), chance.choice(["m", None])
                batch_of["accounts", minute, keys].append(one)
                batch_of["whole", minute, ()].append(one)
            panes = [added(view, minute, keys, listed) for (view, minute, keys), listed in batch_of.items()]
            if chance.random() < 0.3:
                with connection.transaction(force_rollback=True):
                    fold_added(connection, newest, *panes)
                # As the sink does.
                newest = NewestPanes(*room)
            fold_added(connection, newest, *panes)
            for key, listed in batch_of.items():
                all_of[key] += listed
            if chance.random() < 0.2:
                least = FIRST + batch // 4
                frontier = EPOCH + least * MINUTE + CONFIG.keeps
                fold_added(connection, newest, frontier=frontier)
                all_of = defaultdict(list, {key: listed for key, listed in all_of.items() if key[1] >= least})
            assert stored(connection) == must_be(all_of)


def test_a_pane_that_retention_removed_while_its_driver_was_frozen_stays_removed(database: str) -> None:
    keys, newest = ("a", "m"), NewestPanes()
    one, more = [("u", 5, 1.0)], [("v", 7, 2.0)]
    with psycopg.connect(database, autocommit=True) as connection:
        fold_added(connection, newest, *(added("accounts", FIRST + n, keys, one) for n in range(3)))
        connection.execute("DELETE FROM analytics_panes WHERE window_start <= to_timestamp(%s)", [FIRST * 60])
        connection.execute("UPDATE analytics_views SET since = to_timestamp(%s)", [(FIRST + 1) * 60])
        for _ in range(2):
            fold_added(connection, newest, *(added("accounts", FIRST + n, keys, more) for n in range(2)))
        left = {("accounts", FIRST + 1, keys): one + more + more, ("accounts", FIRST + 2, keys): one}
        assert stored(connection) == must_be(left)


def test_a_driver_forgets_the_panes_that_were_changed_longest_ago(database: str) -> None:
    newest = NewestPanes(3 * 6_500)
    with psycopg.connect(database, autocommit=True) as connection:
        for minute in (0, 1, 2, 0, 3):
            fold_added(connection, newest, added("whole", FIRST + minute, (), [("u", 5, 1.0)]))
        [row] = rows_of(connection, "SELECT view_id FROM analytics_views WHERE view = 'whole'")
        held = [minute for minute in range(4) if newest.get((row["view_id"], FIRST + minute, ()))]
        assert held == [0, 2, 3]
        newest.forget_before(EPOCH + (FIRST + 2) * MINUTE + timedelta(seconds=1))
        assert [minute for minute in range(4) if newest.get((row["view_id"], FIRST + minute, ()))] == [3]


def test_panes_with_long_sketches_are_open_as_few_at_a_time_as_their_bytes_want(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 2,000 panes with a top of users the driver needed a gigabyte, and was silent for six of its ten seconds."""
    write_panes = fold_panes._write
    open_panes: list[int] = []

    def noted(cursor: psycopg.Cursor[Any], changed: Mapping[Key, Pane], newest: NewestPanes) -> None:
        open_panes.append(len(changed))
        write_panes(cursor, changed, newest)

    monkeypatch.setattr(fold_panes, "_write", noted)
    [view] = [of for of in CONFIG.declared_views if of.name == "whole"]
    newest = NewestPanes(max_open_bytes=2 * NewestPanes().bytes_of((1, FIRST, ()), view))
    one = [("u", 5, 1.0)]
    with psycopg.connect(database, autocommit=True) as connection:
        for _ in range(2):
            fold_added(connection, newest, *(added("whole", FIRST + n, (), one) for n in range(5)))
        assert stored(connection) == must_be({("whole", FIRST + n, ()): one + one for n in range(5)})
    # Those in memory are as small as they are; of others it is not known before they are read.
    assert open_panes == [2, 2, 1, 5]


def test_a_row_has_no_more_of_a_sketch_than_is_expected_before_it_is_read() -> None:
    [view] = [of for of in CONFIG.declared_views if of.name == "whole"]
    view = replace(view, measures=(*view.measures, Measure("gap_ms", Aggregate.GAPS)))
    pane = Pane.of(view, (), is_stored=False)
    users = [f"{n:036d}" for n in range(1_536)]
    chance = np.random.default_rng(1)
    times = FIRST * 60_000_000 + chance.integers(0, 60_000_000, 1_024)
    # A count of so many outcomes at one instant has four bytes, and with it all counts of the minute.
    times = np.concatenate([times, np.repeat(times[:1], 1 << 16)])
    pane.add((None, None, None, users, chance.random(10**6), users, times))
    listed = zip(view.measures, pane.accumulators, strict=True)
    bytes_of = {of.aggregate: len(found.stored()) for of, found in listed if found is not None}
    assert bytes_of.keys() == STORED_BYTES.keys()
    assert all(STORED_BYTES[aggregate] / 2 < size <= STORED_BYTES[aggregate] for aggregate, size in bytes_of.items())
    assert NewestPanes().bytes_of((1, FIRST, ()), view) * 100 < OPEN_BYTES
