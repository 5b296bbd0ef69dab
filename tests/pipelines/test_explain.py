"""`weir explain`, over real tables and a real database. Oracle: all explanations together make what is billed."""

from __future__ import annotations

from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cli.explain import Question, explanation
from cli.reading import read_only
from cli.usage import UsageQuery, usage_rows
from metering.windows import MINUTE
from tests.pipelines.billing import EXACT
from tests.pipelines.explaining import Metered

KEY = ("window_start", "account", "model", "meter", "currency")
AMOUNTS = ("quantity", "amount", "unpriced_quantity")


def explained(database: str, tables: Path, question: Question) -> dict[str, Any]:
    with read_only(database) as connection:
        return explanation(connection, str(tables), question)


def shown(database: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    with read_only(database) as connection:
        return {tuple(row[name] for name in KEY): dict(row) for row in usage_rows(connection, UsageQuery())}


@pytest.mark.parametrize("seed", range(3))
def test_oracle_what_all_requests_add_is_every_window_to_the_last_digit(
    database: str, tmp_path: Path, seed: int
) -> None:
    history = Metered(seed)
    history.store(database, tmp_path)
    made: defaultdict[tuple[Any, ...], list[Decimal]] = defaultdict(lambda: [Decimal(0)] * 3)
    seen: set[int] = set()
    for request_id in sorted({row["request_id"] for row in history.usage}):
        found = explained(database, tmp_path, Question(request_id))
        assert found["adds_up"], found["differences"]
        for window in found["windows"]:
            key = tuple(window[name] for name in KEY)
            made[key] = [
                EXACT.add(was, window["contribution"][name]) for was, name in zip(made[key], AMOUNTS, strict=True)
            ]
        mine = [row["lsn"] for row in history.journal if row.get("request_id") == request_id]
        assert [row["lsn"] for row in found["records"]] == mine
        assert [row["lsn"] for row in found["usage"]] == [
            row["lsn"] for row in history.usage if row["request_id"] == request_id
        ]
        seen.update(mine)
    stored = shown(database)
    assert {key: sums for key, sums in made.items() if any(sums)} == {
        key: [row[name] for name in AMOUNTS] for key, row in stored.items()
    }
    assert seen == {row["lsn"] for row in history.journal if row["topic"] == "events"}


@pytest.mark.parametrize("seed", range(3))
def test_oracle_each_window_is_its_usage_and_is_what_weir_usage_shows(database: str, tmp_path: Path, seed: int) -> None:
    Metered(seed).store(database, tmp_path)
    stored = shown(database)
    for start, account in sorted({key[:2] for key in stored}):
        found = explained(database, tmp_path, Question(window=start + MINUTE / 2, accounts=(account,)))
        assert found["adds_up"], found["differences"]
        rows = {tuple(row[name] for name in KEY): row for row in found["windows"]}
        mine = {key: row for key, row in stored.items() if key[:2] == (start, account)}
        for key, row in mine.items():
            told = rows[key]
            assert {name: told[name] for name in (*AMOUNTS, "state")} == {
                name: row[name] for name in (*AMOUNTS, "state")
            }
            assert {name: told["contribution"][name] for name in AMOUNTS} == {name: row[name] for name in AMOUNTS}
        assert all(row["quantity"] == 0 for key, row in rows.items() if key not in mine)
