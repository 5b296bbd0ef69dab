"""What analytics and billing found of a run of traffic, read from their database, compared with the brute force."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
from psycopg.rows import dict_row

from jobs.analytics.watches.running import MAX_HITS_AN_HOUR
from jobs.queries.views import Hop, Span, view_named, view_rows
from jobs.view_measures import KLL_RANK_ERROR
from metering.views import RANKS
from tests.incidents.brute_force import (
    BY,
    HOUR,
    Hits,
    Match,
    Seen,
    ambiguous,
    crossings,
    distinct,
    exact_measures,
    hits,
    leaks,
    seen,
    storms,
    windows,
)
from traffic.scenarios.incidents import LIMIT_TOKENS, PLANTED, IncidentKind
from traffic.truth import Truth

MINUTE = timedelta(minutes=1)
WINDOWS = ((MINUTE, MINUTE), (5 * MINUTE, MINUTE), (HOUR, HOUR))
"""Sizes and hops of windows: a pane, hopping and tumbling ones."""
HLL_ERROR = 0.05
"""Three standard errors of a distinct count."""
MAX_RANK_MISSES = 0.02
"""Of percentiles: a rank is off by more than KLL_RANK_ERROR in one of 100 cases."""
NAMES = {IncidentKind.STORM: "retry_storm", IncidentKind.LEAK: "regions_in_turn"}
_MATCHES = """
SELECT * FROM (
    SELECT DISTINCT ON (pattern_id, match_id) keys, started_at, ended_at, outcomes, measures, is_retracted
    FROM pattern_matches JOIN analytics_patterns USING (pattern_id)
    WHERE pattern = %s ORDER BY pattern_id, match_id, pattern_matches.version DESC
) AS last WHERE NOT is_retracted
"""
_CROSSED = """
SELECT account, first_day FROM (
    SELECT DISTINCT ON (account, period, first_day, meter, currency, model, threshold) account, first_day, is_crossed
    FROM threshold_changes WHERE meter = 'output_tokens' AND period = 'P1M' AND model = '' AND threshold = %s
    ORDER BY account, period, first_day, meter, currency, model, threshold, version DESC
) AS last WHERE is_crossed
"""


def refuse_differences(database: str, truth: Truth, watches: Mapping[str, int]) -> None:
    """Raise AssertionError where anything was found that the brute force does not find, or the other way round.

    `watches`: the id of each of WATCHES, by condition. `truth`: of traffic with incidents, which is all that the
    database has.
    """
    outcomes = seen(truth)
    with psycopg.connect(database, row_factory=dict_row) as connection:
        connection.execute("SELECT set_config('TimeZone', 'UTC', false)")
        for size, hop in WINDOWS:
            _refuse_other_windows(connection, outcomes, size, hop)
        _refuse_other_matches(connection, truth, outcomes)
        _refuse_other_hits(connection, watches, hits(outcomes))
        assert _crossed(connection) == (must := crossings(truth))
    assert len(must) == PLANTED[IncidentKind.CROSSING]


def _refuse_other_windows(connection: Any, outcomes: Sequence[Seen], size: timedelta, hop: timedelta) -> None:
    must = windows(outcomes, size, hop)
    span = Span(min(start for start, *_ in must), max(end for _, end, *_ in must))
    rows = view_rows(connection, view_named(connection, "health"), Hop(size, hop), span)
    found = {(row["window_start"], row["window_end"], *(row[key] for key in BY)): row for row in rows}
    assert len(found) == len(rows)
    assert found.keys() - must.keys() == must.keys() - found.keys() == set()
    ranks = misses = 0
    for key, of_window in must.items():
        row, exact = found[key], exact_measures(of_window)
        assert {name: row[name] for name in exact} == exact, key
        for name, column in (("keys", "api_key_id"), ("users", "user_id")):
            count = distinct(of_window, column)
            assert abs(row[name] - count) <= HLL_ERROR * count, (key, name)
        latencies = [one["latency_ms"] for one in of_window if one["latency_ms"] is not None]
        assert (row["latency_ms"] is None) == (not latencies), key
        for rank, share in RANKS.items() if latencies else ():
            ranks += 1
            misses += not _is_near(latencies, row["latency_ms"][rank], share)
    assert misses <= MAX_RANK_MISSES * ranks


def _is_near(values: Collection[int], found: float, share: float) -> bool:
    """Whether the share of values below what was found, or up to it, is nearly what was asked for."""
    below = sum(value < found for value in values) / len(values)
    up_to = sum(value <= found for value in values) / len(values)
    return below - KLL_RANK_ERROR <= share <= up_to + KLL_RANK_ERROR


def _refuse_other_matches(connection: Any, truth: Truth, outcomes: Sequence[Seen]) -> None:
    both = ((IncidentKind.STORM, "status", storms), (IncidentKind.LEAK, "region", leaks))
    for kind, column, of_brute_force in both:
        unknown = ambiguous(outcomes, column)
        must = {match for match in of_brute_force(outcomes) if match[:2] not in unknown}
        found = {match for match in _matches(connection, NAMES[kind]) if match[:2] not in unknown}
        assert found - must == must - found == set(), kind
        planted = {(of["account"], of["api_key"]) for of in truth["incidents"]["planted"] if of["kind"] == kind}
        assert len(planted) == PLANTED[kind]
        assert planted <= {match[:2] for match in found}
        if kind is IncidentKind.STORM:
            assert len(found) == PLANTED[kind], "ordinary traffic has no storm"


def _matches(connection: Any, pattern: str) -> set[Match]:
    return {
        (
            row["keys"]["account"],
            row["keys"]["api_key_id"],
            row["started_at"],
            row["ended_at"],
            row["outcomes"],
            tuple((name, _number(name, value)) for name, value in sorted(row["measures"].items())),
        )
        for row in connection.execute(_MATCHES, [pattern])
    }


def _number(name: str, value: Any) -> Any:
    return Decimal(value) if name == "tokens" and value is not None else value


def _refuse_other_hits(connection: Any, watches: Mapping[str, int], must: Hits) -> None:
    conditions = {watch_id: condition for condition, watch_id in watches.items()}
    listed = {
        (conditions[row["watch_id"]], row["request_id"], row["event_time"])
        for row in connection.execute("SELECT * FROM watch_hits WHERE net > 0")
    }
    hours = {
        (conditions[row["watch_id"]], row["hour"]): row["hits"]
        for row in connection.execute("SELECT * FROM watch_hours WHERE hits <> 0")
    }
    assert hours == must[1]
    # Of an hour with more hits the first are listed.
    full = {hour for hour, count in hours.items() if count > MAX_HITS_AN_HOUR}
    assert listed <= must[0]
    assert {hit for hit in must[0] if _hour(hit) not in full} <= listed
    assert {condition for condition, *_ in listed} == set(watches)


def _hour(hit: tuple[str, str, datetime]) -> tuple[str, datetime]:
    return hit[0], hit[2].replace(minute=0, second=0, microsecond=0)


def _crossed(connection: Any) -> set[tuple[str, date]]:
    return {(row["account"], row["first_day"]) for row in connection.execute(_CROSSED, [LIMIT_TOKENS])}
