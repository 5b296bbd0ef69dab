"""`examples/patterns.yaml`: of usual traffic with trouble planted in it, each pattern finds what was planted, and only
that, also where some of it comes late or twice.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from jobs.stack import load_stack_config
from tests.pipelines.folding import rows_of
from tests.pipelines.pattern_rows import MINUTE, NOON, Happened, fold, standing

CONFIG = load_stack_config(Path("examples/patterns.yaml")).jobs.analytics
HOUR = 60 * MINUTE
Planted = list[tuple[str, str | None, int]]
"""(pattern, key, outcomes) of each match."""
SECOND = timedelta(seconds=1)


class Traffic:
    """Outcomes of keys; lsns go up as they are made."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.outcomes: list[Happened] = []

    def add(self, key: str | None, at: timedelta, **columns: Any) -> None:
        of = {
            "account": "acme",
            "api_key_id": key,
            "status": "completed",
            "outcome": "matched",
            "model": "m-1",
            "region": "eu",
            "output_tokens": 200,
            **columns,
        }
        self.outcomes.append(Happened(len(self.outcomes) + 1, NOON + at, tuple(of.items())))

    def usual(self) -> None:
        """Six hours of ten keys and of none: some failures, some abandoned, one model and region mostly."""
        for key in (*(f"usual-{n}" for n in range(10)), None):
            at = timedelta(seconds=self.chance.randint(0, 300))
            while at < 6 * HOUR:
                trouble = self.chance.choices(["", "error", "abandoned", "other"], [80, 10, 5, 5])[0]
                self.add(
                    key,
                    at,
                    **({"status": "error"} if trouble == "error" else {}),
                    **({"status": None, "outcome": "abandoned"} if trouble == "abandoned" else {}),
                    **({"model": "m-2"} if trouble == "other" else {}),
                )
                at += timedelta(seconds=self.chance.randint(90, 400))

    def plant(self) -> Iterator[tuple[str, str, int]]:
        """What each pattern is to find."""
        for n, count in enumerate((10, 11, 25)):
            for one in range(count):
                self.add(f"storm-{n}", n * HOUR + one * 20 * SECOND, status="error")
            yield "retry_storm", f"storm-{n}", count
        # Nine are too few; ten of which one waits a minute are no storm.
        for one in range(9):
            self.add("calm-1", one * SECOND, status="error")
        for one in range(10):
            self.add("calm-2", (one * 20 + (60 if one > 4 else 0)) * SECOND, status="error")
        for one in range(7):
            self.add("lost", HOUR + one * 4 * MINUTE, status=None, outcome="abandoned")
        yield "abandoned_in_a_row", "lost", 7
        for one in range(9):
            # The fifth was answered: four and four are too few.
            self.add("slow", HOUR + one * 4 * MINUTE, outcome="matched" if one == 4 else "abandoned")
        for one, region in enumerate(["eu", "us", "us", None, "us", "ap", "ap", "sa"]):
            self.add("leaked", 2 * HOUR + one * MINUTE, region=region)
        yield "regions_in_turn", "leaked", 8
        for one, region in enumerate(["eu", "us", "ap", "sa"]):
            self.add("travels", 2 * HOUR + one * HOUR, region=region)
        for one in range(6):
            self.add("curious", 3 * HOUR + one * 10 * SECOND, model=f"m-{one % 3}", output_tokens=one)
        yield "price_probing", "curious", 6
        for one in range(6):
            self.add("chats", 3 * HOUR + one * 10 * SECOND, model=f"m-{one % 3}", output_tokens=100)

    def plant_bursts(self) -> Iterator[tuple[str, str, int]]:
        """The same of bursts."""
        # Sixty after an hour of six a minute are ten times as many, and fifty-nine are not.
        for key, count in (("bursts", 60), ("busy", 59)):
            for one in range(360):
                self.add(key, 4 * HOUR + one * 10 * SECOND)
            for one in range(count):
                self.add(key, 5 * HOUR + one * SECOND)
        yield "burst_of_its_hour", "bursts", 60
        # A key that had none before has a burst from fifty on.
        for one in range(49):
            self.add("begins", 5 * HOUR + one * SECOND)


@pytest.mark.few_in_ci(2)
@pytest.mark.parametrize("seed", range(10))
def test_of_usual_traffic_each_shipped_pattern_finds_what_was_planted_and_nothing_else(
    connection: psycopg.Connection[Any], seed: int
) -> None:
    traffic = Traffic(seed)
    traffic.usual()
    planted: Planted = [*traffic.plant(), *traffic.plant_bursts()]
    abandoned = sum(one["outcome"] == "abandoned" for one in traffic.outcomes)
    planted += [("request_without_completion", None, 1)] * abandoned
    assert {pattern for pattern, _, _ in planted} == {pattern.name for pattern in CONFIG.declared_patterns}
    chance, end = traffic.chance, NOON + 8 * HOUR
    arrival = {
        one: one.at + chance.choice([0, 0, 0, 0, 1]) * chance.randint(0, 7_200) * SECOND for one in traffic.outcomes
    }
    waiting = sorted(traffic.outcomes, key=lambda one: (arrival[one], one.lsn))
    while waiting:
        count = chance.randint(1, 200)
        some, waiting = waiting[:count], waiting[count:]
        # The same once more is the same.
        fold(connection, CONFIG, [*some, *chance.sample(some, min(3, len(some)))], frontier=arrival[some[-1]])
    fold(connection, CONFIG, frontier=end)
    found: Planted = [
        (pattern.name, row["keys"].get("api_key_id"), row["outcomes"])
        for pattern in CONFIG.declared_patterns
        for row in standing(connection, pattern.name)
    ]
    assert sorted(found, key=str) == sorted(planted, key=str)
    [burst] = standing(connection, "burst_of_its_hour")
    assert burst["measures"] == {"before": 360}
    [leaked] = standing(connection, "regions_in_turn")
    assert leaked["measures"] == {"changes": 3, "regions": 4, "first_region": "eu", "last_region": "sa"}
    [curious] = standing(connection, "price_probing")
    assert curious["measures"] == {
        "models_tried": 6,
        "models": 3,
        "first_model": "m-0",
        "last_model": "m-2",
        "tokens": "15.000000",
    }


def test_a_key_that_is_not_known_is_no_key_to_any_of_them(connection: psycopg.Connection[Any]) -> None:
    """A request of no known key may be one without completion, for that is about no key."""
    traffic = Traffic(1)
    for one in range(60):
        columns: Sequence[dict[str, Any]] = [
            {"status": "error"},
            {"outcome": "abandoned"},
            {"region": f"r-{one}"},
            {"model": f"m-{one}", "output_tokens": 1},
        ]
        for shift, of in enumerate(columns):
            traffic.add(None, (shift * 60 + one) * SECOND, **of)
    fold(connection, CONFIG, traffic.outcomes, frontier=NOON + 8 * HOUR)
    found = rows_of(
        connection, "SELECT DISTINCT pattern FROM pattern_matches JOIN analytics_patterns USING (pattern_id)"
    )
    assert found == [{"pattern": "request_without_completion"}]
