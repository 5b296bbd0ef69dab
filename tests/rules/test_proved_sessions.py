"""Sessions made in columns are those of `metering.sessions`, however the journal comes and whatever gaps held."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from jobs.audit.compare.sessions import MINI, SESSIONS, mini_sessions, unequal_sessions
from metering.sessions import Session, merge

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
REQUESTS = {
    "lsn": pl.Int64(),
    "account": pl.String(),
    "user_id": pl.String(),
    "event_time": pl.Datetime("us", "UTC"),
}
events = st.lists(st.tuples(st.sampled_from(["u0", "u1"]), st.integers(0, 60)), max_size=25)
gaps = st.lists(st.tuples(st.integers(2, 25), st.integers(1, 12)), max_size=2, unique_by=lambda change: change[0])


@given(events, st.integers(1, 12), gaps, st.integers(1, 25))
def test_sessions_in_columns_are_those_of_the_rule(
    found: list[tuple[str, int]], first_gap_s: int, changes: list[tuple[int, int]], cut: int
) -> None:
    held = [(lsn, timedelta(seconds=gap_s)) for lsn, gap_s in sorted([(1, first_gap_s), *changes])]
    rows = [(lsn, "a", user, NOON + timedelta(seconds=at_s)) for lsn, (user, at_s) in enumerate(found, 1)]
    users: dict[str, list[Session]] = defaultdict(list)
    for (first, gap), (end, _) in pairwise([*held, (len(rows) + 1, timedelta(0))]):
        for lsn, _, user, at in rows:
            if first <= lsn < end:
                users[user].append(Session(at, at, 1))
        users = defaultdict(list, {user: merge(sessions, gap) for user, sessions in users.items()})
    wanted = pl.DataFrame(
        [("a", user, s.start, s.end, s.events) for user, sessions in users.items() for s in sessions],
        schema=SESSIONS,
        orient="row",
    )
    parts = [pl.DataFrame(part, schema=REQUESTS, orient="row") for part in (rows[:cut], rows[cut:])]
    minis = pl.concat([pl.DataFrame(schema=MINI), *(mini_sessions(part, held) for part in parts)])
    said = unequal_sessions(minis, wanted, held)
    assert (said.examined, said.found, said.first) == (len(wanted), 0, "")
    if len(wanted):
        moved = wanted.with_columns(pl.col("session_start") - timedelta(microseconds=1))
        assert unequal_sessions(minis, moved, held).found == 2 * len(wanted)


def session(start_s: int, end_s: int, events: int) -> pl.DataFrame:
    at = [NOON + timedelta(seconds=seconds) for seconds in (start_s, end_s)]
    return pl.DataFrame([("a", "u0", *at, events)], schema=SESSIONS, orient="row")


def test_without_the_first_gap_all_sessions_of_a_user_are_compared_as_one() -> None:
    rows = pl.DataFrame(
        [(lsn, "a", "u0", NOON + timedelta(seconds=at_s)) for lsn, at_s in ((1, 0), (2, 9), (3, 40))],
        schema=REQUESTS,
        orient="row",
    )
    gaps = [(3, timedelta(seconds=5))]
    minis = mini_sessions(rows, gaps)
    assert unequal_sessions(minis, pl.concat([session(0, 9, 2), session(40, 40, 1)]), gaps).found == 0
    assert unequal_sessions(minis, pl.concat([session(0, 9, 1), session(40, 40, 1)]), gaps).found == 1
