"""Matches of keys, a part of the first rows at a time: the same in any parts, and Postgres hears of the driver."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any, cast

import numpy as np
import polars as pl
import psycopg
import pytest

from jobs.analytics.config import AnalyticsConfig
from jobs.analytics.patterns import matching
from jobs.analytics.patterns.blocks import AT, LSN
from jobs.analytics.patterns.matching import Heartbeat, found_in
from jobs.analytics.patterns.rows import OfKey
from metering.instants import EPOCH
from metering.patterns.pattern import Pattern

BEFORE_ALL = (0, 0)
_MICROSECOND = timedelta(microseconds=1)


class Heard:
    """A cursor that counts statements."""

    statements = 0

    def execute(self, _statement: str) -> None:
        self.statements += 1


def heartbeat(heard: Heard) -> Heartbeat:
    return Heartbeat(cast("psycopg.Cursor[Any]", heard))


def pattern_of(text: str, after_match: str) -> Pattern:
    declared = {
        "of": "outcomes",
        "partition_by": ["account"],
        "pattern": text,
        "within": "PT20S",
        "measures": {"rows": "count(*)", "of_b": "count(B)", "first": "first(model)", "last": "last(model)"},
        "after_match": after_match,
    }
    [found] = AnalyticsConfig.model_validate({"patterns": {"some": declared}}).declared_patterns
    assert isinstance(found, Pattern)
    return found


def outcomes_of(account: str, variables: list[int], first_lsn: int = 1) -> OfKey:
    count = len(variables)
    columns = {
        AT: [EPOCH + timedelta(seconds=n) for n in range(count)],
        LSN: [first_lsn + n for n in range(count)],
        "account": [account] * count,
        "model": [None if n % 5 == 0 else f"m-{n % 3}" for n in range(count)],
    }
    frame = pl.DataFrame(columns)
    micros = np.array([n * 1_000_000 for n in range(count)], np.int64)
    return OfKey((account,), frame, micros, np.array(variables, np.uint32), np.arange(count))


@pytest.mark.parametrize("after_match", ["skip past last row", "skip to next row"])
@pytest.mark.parametrize("text", ["A B*", "(A | B){3}", "A B+? A"])
def test_matches_are_the_same_however_few_first_rows_and_values_are_taken_at_a_time(
    text: str, after_match: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(text)
    pattern = pattern_of(text, after_match)
    of = outcomes_of("acme", [chance.randint(0, 3) for _ in range(300)])
    whole = list(found_in(of, pattern, BEFORE_ALL, heartbeat(Heard())))
    assert len(whole) > 20
    for at_once, page in ((1, 1), (7, 2), (50, 100)):
        monkeypatch.setattr(matching, "BATCH_STARTS", at_once)
        monkeypatch.setattr(matching, "PAGE", page)
        assert list(found_in(of, pattern, BEFORE_ALL, heartbeat(Heard()))) == whole


def test_postgres_hears_of_the_driver_after_so_many_first_rows_of_one_key_or_of_many() -> None:
    """Each abandoned request is a match of a shipped pattern, and an outage abandons many."""
    pattern, many, heard = pattern_of("A | B", "skip to next row"), matching.BATCH_STARTS, Heard()
    kept = heartbeat(heard)
    assert len(list(found_in(outcomes_of("acme", [1] * 3 * many), pattern, BEFORE_ALL, kept))) == 3 * many
    assert heard.statements == 3
    for number in range(many + 1):
        assert len(list(found_in(outcomes_of(f"account-{number}", [1]), pattern, BEFORE_ALL, kept))) == 1
    assert heard.statements == 4
