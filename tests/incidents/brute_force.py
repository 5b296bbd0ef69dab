"""What analytics must have found of generated traffic, recomputed from the generator's truth in plain Python.

Each outcome of the truth is looked at anew for every window, match, hit and limit, and no code of the applications is
used. What is declared (DECLARED, WATCHES) is written down beside what it means.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

from traffic.scenarios.incidents import INCIDENT_MS, LEAK_CHANGES, LIMIT_TOKENS, STORM_ERRORS, STORM_GAP_MS
from traffic.truth import Truth

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
WITHIN, GAP = timedelta(milliseconds=INCIDENT_MS), timedelta(milliseconds=STORM_GAP_MS)
MAX_ROWS = 1_000
"""Outcomes of a match."""
BY = ("model", "region")
DECLARED: Mapping[str, Any] = {
    "views": {
        "health": {
            "of": "outcomes",
            "by": list(BY),
            "measures": {
                "requests": "count",
                "errors": {"count": {"where": {"status": ["error"]}}},
                "tokens": {"sum": "output_tokens"},
                "slowest_ms": {"max": "latency_ms"},
                "fastest_ms": {"min": "latency_ms"},
                "keys": {"distinct": "api_key_id"},
                "users": {"distinct": "user_id"},
                "latency_ms": {"percentiles": "latency_ms"},
                "gap_ms": "gaps",
            },
        }
    },
    "patterns": {
        "retry_storm": {
            "of": "outcomes",
            "partition_by": ["account", "api_key_id"],
            "pattern": f"A B{{{STORM_ERRORS - 1},}}",
            "define": {
                "A": 'api_key_id is not null and status = "error"',
                "B": f'status = "error" and gap <= PT{STORM_GAP_MS // 1000}S',
            },
            "within": f"PT{INCIDENT_MS // 60_000}M",
            "measures": {"failures": "count(*)", "tokens": "sum(output_tokens)"},
        },
        "regions_in_turn": {
            "of": "outcomes",
            "partition_by": ["account", "api_key_id"],
            "pattern": f"A SAME* OTHER (SAME* OTHER){{{LEAK_CHANGES - 1},}}",
            "define": {
                "A": "api_key_id is not null",
                "SAME": "region = prev(region) or region is null or prev(region) is null",
                "OTHER": "region != prev(region)",
            },
            "within": f"PT{INCIDENT_MS // 60_000}M",
            "measures": {
                "changes": "count(OTHER)",
                "first_region": "first(A.region)",
                "last_region": "last(OTHER.region)",
            },
        },
    },
    "watches": True,
}
"""What analytics is configured with."""
KEEP_DAYS = 60
"""How long it keeps what it found: longer than the oldest events that are accepted."""


@dataclass(frozen=True)
class Seen:
    """An outcome that analytics sees: matched or abandoned, once of each request."""

    account: str
    request_id: str
    at: datetime
    columns: Mapping[str, Any]

    def __getitem__(self, column: str) -> Any:
        return self.columns.get(column)


WATCHES: Mapping[str, Callable[[Seen], bool]] = {
    "output_tokens > 1000000": lambda one: (one["output_tokens"] or 0) > 1_000_000,
    'status = "error" and region in ("eu", "edge")': lambda one: (
        one["status"] == "error" and one["region"] in ("eu", "edge")
    ),
    'outcome = "abandoned"': lambda one: one["outcome"] == "abandoned",
    'latency_ms >= 5000 and not (region = "gateway-eu")': lambda one: (
        (one["latency_ms"] or 0) >= 5_000 and one["region"] != "gateway-eu"
    ),
}
Match = tuple[str, str, datetime, datetime, int, tuple[tuple[str, Any], ...]]
"""Account, key, time of the first and the last outcome, how many they are, and its measures by name."""
Hits = tuple[set[tuple[str, str, datetime]], dict[tuple[str, datetime], int]]
"""(condition, request, time) of each hit, and how many there are by condition and hour."""


def seen(truth: Truth) -> list[Seen]:
    """The outcomes of a run with incidents; quantities that name no request are none."""
    return [
        Seen(
            outcome["account"],
            outcome["request_id"],
            EPOCH + timedelta(microseconds=outcome["event_us"]),
            outcome["columns"],
        )
        for outcome in truth["incidents"]["outcomes"]
    ]


Window = tuple[datetime, datetime, str | None, str | None]


def windows(outcomes: Iterable[Seen], size: timedelta, hop: timedelta) -> dict[Window, list[Seen]]:
    """By start, end, model and region the outcomes of each window [n * hop, n * hop + size) that has any."""
    found: dict[Window, list[Seen]] = defaultdict(list)
    for one in outcomes:
        start = EPOCH + (one.at - EPOCH) // hop * hop
        while start + size > one.at:
            found[start, start + size, one["model"], one["region"]].append(one)
            start -= hop
    return dict(found)


def exact_measures(of_window: Sequence[Seen]) -> dict[str, Any]:
    """The exact measures of a window of the view."""
    latencies = [one["latency_ms"] for one in of_window if one["latency_ms"] is not None]
    tokens = [one["output_tokens"] for one in of_window if one["output_tokens"] is not None]
    return {
        "requests": len(of_window),
        "errors": sum(one["status"] == "error" for one in of_window),
        "tokens": sum(tokens) if tokens else None,
        "slowest_ms": max(latencies, default=None),
        "fastest_ms": min(latencies, default=None),
        "gap_ms": _gaps_ms([one.at for one in of_window]),
    }


def _gaps_ms(instants: Iterable[datetime]) -> dict[str, float] | None:
    gaps = sorted((later - at) / timedelta(milliseconds=1) for at, later in pairwise(sorted(instants)))
    percents = (50, 90, 95, 99) if gaps else ()
    return {f"p{percent}": gaps[(percent * len(gaps) + 99) // 100 - 1] for percent in percents} or None


def distinct(of_window: Sequence[Seen], column: str) -> int:
    """How many different values a column has."""
    return len({one[column] for one in of_window} - {None})


def by_key(outcomes: Iterable[Seen]) -> dict[tuple[str, str], list[Seen]]:
    """The outcomes of each account and key in the order of event time."""
    found: dict[tuple[str, str], list[Seen]] = defaultdict(list)
    for one in sorted(outcomes, key=lambda one: one.at):
        if one["api_key_id"] is not None:
            found[one.account, one["api_key_id"]].append(one)
    return found


def ambiguous(outcomes: Iterable[Seen], column: str) -> set[tuple[str, str]]:
    """Keys of which two outcomes occurred at one instant and differ in a column: the broker decides on their order."""
    return {
        key
        for key, rows in by_key(outcomes).items()
        if any(one.at == other.at and one[column] != other[column] for one, other in pairwise(rows))
    }


def storms(outcomes: Iterable[Seen]) -> set[Match]:
    """What `retry_storm` finds: as many errors in a row as there are, no two of them further apart than GAP."""
    return {match for key, rows in by_key(outcomes).items() for match in _matches(key, rows, _storm)}


def leaks(outcomes: Iterable[Seen]) -> set[Match]:
    """What `regions_in_turn` finds: from any outcome on to the last change of region."""
    return {match for key, rows in by_key(outcomes).items() for match in _matches(key, rows, _leak)}


def _matches(
    key: tuple[str, str],
    rows: Sequence[Seen],
    measured: Callable[[Sequence[Seen]], tuple[int, Mapping[str, Any]] | None],
) -> Iterator[Match]:
    """Matches one after the other; `measured`: how long the one from the first of some outcomes on is, and of what."""
    first = 0
    while first < len(rows):
        begun = [one for one in rows[first : first + MAX_ROWS] if one.at - rows[first].at <= WITHIN]
        match = measured(begun)
        if match is None:
            first += 1
            continue
        length, measures = match
        yield (*key, begun[0].at, begun[length - 1].at, length, tuple(sorted(measures.items())))
        first += length


def _storm(rows: Sequence[Seen]) -> tuple[int, Mapping[str, Any]] | None:
    length = 0
    while (
        length < len(rows)
        and rows[length]["status"] == "error"
        and (not length or rows[length].at - rows[length - 1].at <= GAP)
    ):
        length += 1
    if length < STORM_ERRORS:
        return None
    tokens = [one["output_tokens"] for one in rows[:length] if one["output_tokens"] is not None]
    return length, {"failures": length, "tokens": Decimal(sum(tokens)) if tokens else None}


def _leak(rows: Sequence[Seen]) -> tuple[int, Mapping[str, Any]] | None:
    changes = [
        place
        for place in range(1, len(rows))
        if None not in (rows[place]["region"], rows[place - 1]["region"])
        and rows[place]["region"] != rows[place - 1]["region"]
    ]
    if len(changes) < LEAK_CHANGES:
        return None
    last = changes[-1]
    regions = {"first_region": rows[0]["region"], "last_region": rows[last]["region"]}
    return last + 1, {"changes": len(changes), **regions}


def hits(outcomes: Iterable[Seen]) -> Hits:
    """What each of WATCHES takes."""
    found, hours = set(), defaultdict[tuple[str, datetime], int](int)
    for one in outcomes:
        for condition, takes in WATCHES.items():
            if takes(one):
                found.add((condition, one.request_id, one.at))
                hours[condition, EPOCH + (one.at - EPOCH) // HOUR * HOUR] += 1
    return found, dict(hours)


def crossings(truth: Truth) -> set[tuple[str, date]]:
    """Accounts and the first day of months of theirs in which they reach the limit; no straggler may be dropped."""
    assert not truth["policy"]["late_policy"]
    tokens: dict[tuple[str, date], Decimal] = defaultdict(Decimal)
    for outcome in truth["outcomes"]:
        month = date.fromisoformat(outcome["day"]).replace(day=1)
        tokens[outcome["account"], month] += Decimal(outcome["quantities"].get("output_tokens") or 0)
    limited = {row["account"] for row in truth["incidents"]["limits"]}
    return {place for place, used in tokens.items() if used >= LIMIT_TOKENS and place[0] in limited}
