"""Journal rows to mini-sessions to sessions in Postgres, against the rules and against all events at once."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from jobs.sessionization.config import SessionizationConfig
from jobs.sessionization.gaps import gap_in_force
from jobs.sessionization.pipeline import JOB, STAGED, build
from jobs.streams import JOURNAL
from metering.sessions import Session, merge
from metering.vocabulary import Disposition, EventType
from monitoring import metrics
from tests.pipelines.folding import fold_table, frame, rows_of
from tests.specifications.sessions import Stored
from tests.specifications.sessions import fold as fold_rule

CONFIG = SessionizationConfig()
GAP = CONFIG.session_gap
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
User = tuple[str, str]
ALICE: User = ("acme", "alice")


def event(user: User, event_time: datetime | None, **other: Any) -> dict[str, Any]:
    defaults = {"disposition": Disposition.ACCEPTED, "type": EventType.REQUEST}
    return {"account": user[0], "user_id": user[1], "event_time": event_time, **defaults, **other}


def minis(user: User, *sessions: Session) -> list[dict[str, Any]]:
    names = {"account": user[0], "user_id": user[1]}
    return [{**names, "session_start": s.start, "session_end": s.end, "events": s.events} for s in sessions]


def table(rows: Iterable[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=STAGED)


def built(spark: SparkSession, events: list[dict[str, Any]]) -> pa.Table:
    return build(frame(spark, JOURNAL, events), CONFIG).toArrow()


def stored_sessions(connection: psycopg.Connection[Any]) -> dict[User, list[Stored]]:
    sessions: dict[User, list[Stored]] = defaultdict(list)
    for row in rows_of(connection, "SELECT * FROM sessions ORDER BY account, user_id, session_start, version"):
        session = Session(row["session_start"], row["session_end"], row["events"])
        sessions[row["account"], row["user_id"]].append(
            Stored(session, row["version"], retracted=row["retracted_at"] is not None)
        )
    return dict(sessions)


def in_order(stored: Iterable[Stored]) -> list[Stored]:
    return sorted(stored, key=lambda row: (row.session.start, row.version, row.session.end))


def by_user(rows: list[dict[str, Any]]) -> dict[User, list[Session]]:
    sessions: dict[User, list[Session]] = defaultdict(list)
    for row in rows:
        sessions[row["account"], row["user_id"]].append(
            Session(row["session_start"], row["session_end"], row["events"])
        )
    return {user: sorted(found) for user, found in sessions.items()}


@pytest.mark.long
def test_a_batch_becomes_mini_sessions_split_by_more_than_a_gap_to_the_microsecond(spark: SparkSession) -> None:
    steps = {"just_less": GAP - MICROSECOND, "exactly": GAP, "just_more": GAP + MICROSECOND}
    events = [event(("acme", user), at) for user, step in steps.items() for at in (NOON + step, NOON)]
    staged = built(spark, events)
    assert staged.schema.names == STAGED.names
    assert by_user(staged.cast(STAGED).to_pylist()) == {
        ("acme", "just_less"): [Session(NOON, NOON + GAP - MICROSECOND, 2)],
        ("acme", "exactly"): [Session(NOON, NOON + GAP, 2)],
        ("acme", "just_more"): [Session(NOON, NOON, 1), Session(NOON + GAP + MICROSECOND, NOON + GAP + MICROSECOND, 1)],
    }


def test_only_accepted_requests_with_a_user_count(spark: SparkSession) -> None:
    uncounted = [
        event(ALICE, NOON, disposition=Disposition.DUPLICATE),
        event(ALICE, NOON, disposition=Disposition.CONFLICT),
        event(ALICE, NOON, disposition=Disposition.REJECTED),
        event(ALICE, None, disposition=Disposition.REJECTED),
        event(ALICE, NOON, type=EventType.COMPLETION),
        event(ALICE, NOON, type=EventType.HEARTBEAT),
        event(ALICE, NOON, type="another.type.v1"),
        event(ALICE, NOON, user_id=None),
    ]
    assert built(spark, uncounted).num_rows == 0
    counted = [event(ALICE, NOON), event(ALICE, NOON, type=EventType.USAGE)]
    assert by_user(built(spark, [*uncounted, *counted]).to_pylist()) == {ALICE: [Session(NOON, NOON, 2)]}


def test_a_user_of_one_account_is_not_the_same_user_of_another(spark: SparkSession) -> None:
    staged = built(spark, [event(ALICE, NOON), event(("umbrella", "alice"), NOON)])
    assert sorted(by_user(staged.to_pylist())) == [ALICE, ("umbrella", "alice")]


@pytest.mark.few_in_ci(2)
@pytest.mark.parametrize("seed", range(4))
def test_oracle_any_cut_in_any_order_gives_the_sessions_of_all_events(
    spark: SparkSession, connection: psycopg.Connection[Any], seed: int
) -> None:
    chance = random.Random(seed)
    users = [(f"account-{n % 2}", f"user-{n}") for n in range(5)]
    halves = [NOON + n * GAP / 2 + offset * MICROSECOND for n in range(60) for offset in (-1, 0, 1)]
    happened = [(chance.choice(users), chance.choice(halves)) for _ in range(200)]
    chance.shuffle(happened)
    cuts = sorted(chance.sample(range(len(happened)), 5))
    for start, end in zip([0, *cuts], [*cuts, len(happened)], strict=True):
        staged = built(spark, [event(user, at) for user, at in happened[start:end]])
        fold_table(connection, JOB, staged, CONFIG, chance.choice([None, *halves]))
    expected: dict[User, list[Session]] = defaultdict(list)
    for user, at in happened:
        expected[user].append(Session(at, at, 1))
    live = {
        user: [row.session for row in stored if not row.retracted]
        for user, stored in stored_sessions(connection).items()
    }
    assert live == {user: merge(sessions, GAP) for user, sessions in expected.items()}


@pytest.mark.parametrize("seed", range(10))
def test_differential_the_fold_in_sql_agrees_with_the_rule(connection: psycopg.Connection[Any], seed: int) -> None:
    """Mini-sessions of every shape: overlapping, nested, exactly a gap apart, several of a user in one batch."""
    chance = random.Random(seed)
    users = [("acme", "ann"), ("acme", "bob"), ("bolt", "ann")]
    expected: dict[User, list[Stored]] = {user: [] for user in users}
    for _ in range(25):
        frontier = chance.choice([None, NOON + chance.randint(0, 80) * GAP / 2])
        batch: dict[User, list[Session]] = defaultdict(list)
        for _ in range(chance.randint(0, 5)):
            start = NOON + chance.randint(0, 60) * GAP / 2 + chance.randint(-1, 1) * MICROSECOND
            length = chance.choice([0, 0, 1, 2, 8]) * GAP / 2
            batch[chance.choice(users)].append(Session(start, start + length, chance.randint(1, 9)))
        staged = table(row for user, sessions in batch.items() for row in minis(user, *sessions))
        fold_table(connection, JOB, staged, CONFIG, frontier)
        for user, sessions in batch.items():
            expected[user] = fold_rule(expected[user], sessions, GAP, frontier and frontier - GAP)
        found = stored_sessions(connection)
        assert {user: in_order(found.get(user, [])) for user in users} == {
            user: in_order(rows) for user, rows in expected.items()
        }


@pytest.mark.parametrize("seed", range(6))
def test_differential_any_history_of_gaps_folds_as_the_rule_says(
    connection: psycopg.Connection[Any], seed: int
) -> None:
    """Gaps grow and shrink between batches; a batch may have nothing of a user whose sessions a larger gap joins."""
    chance = random.Random(seed)
    users = [("acme", "ann"), ("acme", "bob"), ("bolt", "ann")]
    expected: dict[User, list[Stored]] = {user: [] for user in users}
    frontiers = sorted(NOON + chance.randint(0, 40) * GAP for _ in range(20))
    last_gap: timedelta | None = None
    kept_before: datetime | None = None
    events = 0
    for frontier in frontiers:
        seconds = chance.choice([last_gap.total_seconds() if last_gap else 600, 300, 600, 1_800, 5_400])
        config = SessionizationConfig(session_gap_seconds=int(seconds))
        gap = config.session_gap
        batch: dict[User, list[Session]] = defaultdict(list)
        for _ in range(chance.randint(1, 6)):
            start = NOON + chance.randint(0, 240) * GAP / 6 + chance.randint(-1, 1) * MICROSECOND
            batch[chance.choice(users)].append(Session(start, start, chance.randint(1, 9)))
        events += sum(session.events for sessions in batch.values() for session in sessions)
        staged = table(row for user, sessions in batch.items() for row in minis(user, *merge(sessions, gap)))
        fold_table(connection, JOB, staged, config, frontier)
        taken = gap_in_force(gap, frontier, last_gap, kept_before)
        if gap != last_gap:
            last_gap, kept_before = gap, taken.closed_before if last_gap else None
        for user in users:
            expected[user] = fold_rule(expected[user], batch[user], gap, taken.closed_before)
        found = stored_sessions(connection)
        assert {user: in_order(found.get(user, [])) for user in users} == {
            user: in_order(rows) for user, rows in expected.items()
        }
        live = {user: [row.session for row in rows if not row.retracted] for user, rows in found.items()}
        assert all(merge(sessions, gap) == sorted(sessions) for sessions in live.values())
        assert sum(session.events for sessions in live.values() for session in sessions) == events


def test_a_larger_gap_joins_what_is_stored_with_the_first_batch_that_it_decides(
    connection: psycopg.Connection[Any],
) -> None:
    """Seen closed under the old gap: two retractions and one successor, also of a user that the batch does not name."""
    apart = [Session(NOON, NOON, 1), Session(NOON + 2 * GAP, NOON + 2 * GAP, 2)]
    fold_table(connection, JOB, table(minis(ALICE, *apart)), CONFIG)
    wider = SessionizationConfig(session_gap_seconds=2 * CONFIG.session_gap_seconds)
    bob = minis(("acme", "bob"), Session(NOON, NOON, 1))
    counts = fold_table(connection, JOB, table(bob), wider, NOON + 10 * GAP)
    assert in_order(stored_sessions(connection)[ALICE]) == in_order(
        [*(Stored(session, 1, retracted=True) for session in apart), Stored(Session(NOON, NOON + 2 * GAP, 3), 2)]
    )
    assert (counts[metrics.SESSIONS, "retracted"], counts[metrics.SESSIONS, "begun"]) == (2, 2)
    fold_table(connection, JOB, table(minis(ALICE, Session(NOON + 4 * GAP, NOON + 4 * GAP, 1))), CONFIG)
    assert [row.session.events for row in stored_sessions(connection)[ALICE] if not row.retracted] == [3, 1]


def test_a_late_event_joins_two_closed_sessions_two_retractions_and_one_new_version(
    spark: SparkSession, connection: psycopg.Connection[Any]
) -> None:
    fold_table(connection, JOB, built(spark, [event(ALICE, NOON), event(ALICE, NOON + 2 * GAP)]), CONFIG)
    long_after = NOON + timedelta(days=2)
    counts = fold_table(connection, JOB, built(spark, [event(ALICE, NOON + GAP)]), CONFIG, long_after)
    assert stored_sessions(connection)[ALICE] == [
        Stored(Session(NOON, NOON, 1), 1, retracted=True),
        Stored(Session(NOON, NOON + 2 * GAP, 3), 2),
        Stored(Session(NOON + 2 * GAP, NOON + 2 * GAP, 1), 1, retracted=True),
    ]
    assert counts == {
        (metrics.SESSIONS, "retracted"): 2,
        (metrics.SESSIONS, "absorbed"): 0,
        (metrics.SESSIONS, "extended"): 0,
        (metrics.SESSIONS, "begun"): 1,
    }


def test_an_open_session_is_extended_in_place_and_absorbs_another(connection: psycopg.Connection[Any]) -> None:
    apart = minis(ALICE, Session(NOON, NOON, 1), Session(NOON + 2 * GAP, NOON + 3 * GAP, 2))
    fold_table(connection, JOB, table(apart), CONFIG)
    before = rows_of(connection, "SELECT session_id FROM sessions ORDER BY session_start")
    between = minis(ALICE, Session(NOON + GAP, NOON + GAP, 1))
    # The frontier is exactly a gap after the first session's end: nothing is closed yet.
    counts = fold_table(connection, JOB, table(between), CONFIG, NOON + GAP)
    after = rows_of(connection, "SELECT session_id, session_start, session_end, events, version FROM sessions")
    assert after == [
        {
            "session_id": before[0]["session_id"],
            "session_start": NOON,
            "session_end": NOON + 3 * GAP,
            "events": 4,
            "version": 1,
        }
    ]
    assert (counts[metrics.SESSIONS, "extended"], counts[metrics.SESSIONS, "absorbed"]) == (1, 1)


def test_a_session_longer_than_any_reach_is_found_from_its_middle(connection: psycopg.Connection[Any]) -> None:
    whole = Session(NOON, NOON + 100 * GAP, 150)
    fold_table(connection, JOB, table(minis(ALICE, whole)), CONFIG)
    inside = Session(NOON + 50 * GAP, NOON + 50 * GAP, 1)
    fold_table(connection, JOB, table(minis(ALICE, inside)), CONFIG)
    assert stored_sessions(connection)[ALICE] == [Stored(Session(whole.start, whole.end, 151), 1)]


def test_names_that_would_upset_a_csv_arrive_as_they_are(
    spark: SparkSession, connection: psycopg.Connection[Any]
) -> None:
    users = [("a,b", 'quo"te'), ("new\nline", "\\N"), ("", ""), ("null", "NULL"), ("ünï", "人 \U0001f600")]
    fold_table(connection, JOB, built(spark, [event(user, NOON) for user in users]), CONFIG)
    assert sorted(stored_sessions(connection)) == sorted(users)


def test_sessions_split_at_the_configured_gap(spark: SparkSession, connection: psycopg.Connection[Any]) -> None:
    config = SessionizationConfig(session_gap_seconds=1)
    second = timedelta(seconds=1)
    events = [event(ALICE, at) for at in (NOON, NOON + second, NOON + 2 * second + MICROSECOND)]
    fold_table(connection, JOB, build(frame(spark, JOURNAL, events), config).toArrow(), config)
    assert [row.session.events for row in stored_sessions(connection)[ALICE]] == [2, 1]
