"""`weir pattern`: what is declared, which matches stand, and every version of them; and who sees which rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from jobs.analytics.config import AnalyticsConfig
from jobs.queries.patterns import MATCH_COLUMNS, PATTERN_COLUMNS, Matches, UnknownPattern, match_rows, pattern_rows
from jobs.runtime.postgres.address import in_schema
from tests.pipelines.pattern_rows import MINUTE, NOON, Happened, fold

CONFIG = AnalyticsConfig.model_validate(
    {
        "patterns": {
            name: {
                "of": "outcomes",
                "partition_by": keys,
                "pattern": "A{2,}",
                "within": "PT5M",
                "grace": "PT1S",
                "define": {"A": 'status = "error"'},
                "measures": {"failures": "count(A)"},
            }
            for name, keys in (("of_accounts", ["account"]), ("of_models", ["model"]))
        }
    }
)


def errors(account: str, seconds: Sequence[int], lsn: int, status: str = "error") -> list[Happened]:
    of = (("account", account), ("model", f"m-{account}"), ("status", status))
    return [Happened(lsn + n, NOON + timedelta(seconds=at), of) for n, at in enumerate(seconds)]


@pytest.fixture
def folded(connection: psycopg.Connection[Any], database: str) -> psycopg.Connection[Any]:
    late = NOON + 30 * MINUTE
    fold(connection, CONFIG, [*errors("a", [0, 10, 20], 1), *errors("b", [600, 610], 10)], frontier=late)
    # One late success breaks that of b, and one late failure makes that of a longer.
    fold(connection, CONFIG, [*errors("b", [605], 20, "completed"), *errors("a", [15], 21)], frontier=late)
    return psycopg.connect(in_schema(database), row_factory=dict_row)


def found(database: psycopg.Connection[Any], **how: Any) -> list[tuple[Any, ...]]:
    rows = list(match_rows(database, Matches(**how)))
    assert all(tuple(row) == MATCH_COLUMNS for row in rows)
    return [(row["pattern"], row["version"], row["is_retracted"], row["measures"]["failures"]) for row in rows]


def test_matches_that_stand_are_listed_once_and_all_versions_if_asked(folded: psycopg.Connection[Any]) -> None:
    assert found(folded) == [("of_accounts", 2, False, 4), ("of_models", 2, False, 4)]
    assert found(folded, pattern="of_accounts", all_versions=True) == [
        ("of_accounts", 2, True, 2),
        ("of_accounts", 1, False, 2),
        ("of_accounts", 2, False, 4),
        ("of_accounts", 1, False, 3),
    ]
    assert found(folded, accounts=["a"]) == [("of_accounts", 2, False, 4)]
    assert found(folded, accounts=["b"]) == []
    assert found(folded, start=NOON + MINUTE) == []
    assert found(folded, end=NOON) == []
    assert len(found(folded, start=NOON, end=NOON + MINUTE)) == 2


def test_matches_of_a_pattern_that_never_was_are_refused_and_those_of_one_that_was_are_shown(
    folded: psycopg.Connection[Any], connection: psycopg.Connection[Any]
) -> None:
    with pytest.raises(UnknownPattern, match="there is no pattern of_account: `weir pattern list` shows all"):
        found(folded, pattern="of_account")
    only_models = AnalyticsConfig(patterns={"of_models": CONFIG.patterns["of_models"]})
    fold(connection, only_models, frontier=NOON + 30 * MINUTE)
    folded.rollback()
    assert found(folded, pattern="of_accounts") == [("of_accounts", 2, False, 4)]


def test_patterns_are_listed_with_how_far_they_are_and_how_many_matches_stand(folded: psycopg.Connection[Any]) -> None:
    rows = list(pattern_rows(folded))
    assert [row["pattern"] for row in rows] == ["of_accounts", "of_models"]
    assert tuple(rows[0]) == PATTERN_COLUMNS
    assert rows[0] == {
        "pattern": "of_accounts",
        "partition_by": "account",
        "look_for": "A{2,}",
        "within": "PT5M",
        "grace": "PT1S",
        "since": None,
        "final_until": NOON + timedelta(minutes=28, seconds=45),
        "matches": 1,
    }


@pytest.mark.parametrize(("accounts", "seen"), [('["a"]', 2), ('["b"]', 2), ("*", 8), ("", 0), ('["c"]', 0)])
def test_a_reader_sees_matches_of_its_accounts_and_of_no_single_account_only_if_it_sees_all_and_no_outcomes(
    folded: psycopg.Connection[Any], accounts: str, seen: int
) -> None:
    assert folded.execute("SELECT FROM pattern_outcomes").fetchall() != []
    folded.execute("GRANT SELECT ON pattern_matches, pattern_outcomes TO weir_api_reader")
    folded.execute("SET LOCAL ROLE weir_api_reader")
    folded.execute("SELECT set_config('weir.accounts', %s, true)", [accounts])
    rows = folded.execute("SELECT account FROM pattern_matches").fetchall()
    assert len(rows) == seen
    assert folded.execute("SELECT FROM pattern_outcomes").fetchall() == []
