"""What billing made of random usage is proved, however it was cut; and where something else was billed, it is not.

Method: the histories by which billing itself is tested (stragglers that wait, what corrects them, dimensions, usage of
two releases), and billing's own fold; the proof gets usage as a table, and the database.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from psycopg.types.json import Jsonb

from jobs.audit.bills import days as calendar
from jobs.billing import days, fold
from jobs.billing.config import BillingConfig
from jobs.streams import JOURNAL, USAGE, Table
from metering.windows import MINUTE
from tests.metered import listed
from tests.pipelines.billing import CONFIG, NOON, bill, written
from tests.pipelines.test_corrections import DROP_OUTPUT, History, close_until
from tests.pipelines.test_holding import ALL, CORRECTS_THEN, EITHER, LARGE, OLD, Waiting
from tests.simulation.audits import proved
from tests.simulation.left import left_by

AUDITED = 31
"""A history in which audits change windows that were shown closed."""
MADE_OF_MINUTES = """
INSERT INTO usage_days (
    account, day, model, meter, currency, price_version, quantity, unit_price, first_window, last_window_end, corrected
)
SELECT account, window_start::date, model, meter, currency, price_version, sum(quantity), max(unit_price),
       min(window_start), max(window_end), bool_or(corrected)
FROM usage_windows GROUP BY 1, 2, 3, 4, 5, 6
"""
"""As migration 0022 does."""


def billed(
    database: str,
    tables: Path,
    history: History,
    config: BillingConfig,
    frontiers: Sequence[datetime | None],
    *,
    releases: int = 1,
) -> None:
    """Bill a history in some batches, and leave its usage as a table, as so many releases wrote it."""
    rows = history.rows
    close_until(database, NOON + MINUTE)
    cuts = sorted(history.chance.sample(range(1, len(rows)), history.chance.choice([1, 8, 60])))
    with psycopg.connect(database, autocommit=True) as connection:
        for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
            bill(connection, rows[start:end], config, frontiers[end - 1])
        connection.execute(
            "INSERT INTO rules (job, first_position, rules) VALUES ('billing', 1, %s)", [Jsonb(config.deciding)]
        )
        connection.execute("UPDATE positions SET next_position = %s, frontier = %s", [len(rows) + 1, frontiers[-1]])
    nullable = pa.schema([field.with_nullable(True) for field in USAGE])
    whole = [
        {**row, "log_date": NOON.date(), "logged_at": NOON}
        for row in (written(rows) if releases > 1 else map(as_written, rows))
    ]
    write_deltalake(str(tables / Table.USAGE), pa.Table.from_pylist(whole, schema=nullable), partition_by=["log_date"])
    write_deltalake(str(tables / Table.JOURNAL), JOURNAL.empty_table(), partition_by=["log_date"])


def as_written(row: dict[str, Any]) -> dict[str, Any]:
    """With a day, without which days are only compared as one sum."""
    return row if row["cause"] == "decided" else listed(row) | {"day": row["event_time"].date()}


def found(tables: Path, database: str) -> dict[str, str]:
    return {check: wrong.first for check, wrong in proved(str(tables), database).items() if wrong.found}


@pytest.mark.few_in_ci(2)
@pytest.mark.parametrize("config", [ALL, CORRECTS_THEN, LARGE, OLD, EITHER, CONFIG, DROP_OUTPUT])
@pytest.mark.parametrize("seed", range(2))
def test_oracle_the_audit_proves_every_bill_that_billing_made(
    database: str, tmp_path: Path, seed: int, config: BillingConfig
) -> None:
    history = Waiting(seed + 10)
    billed(database, tmp_path, history, config, history.frontiers, releases=1 + seed)
    assert found(tmp_path, database) == {}
    assert {wrong.examined > 0 for wrong in proved(str(tmp_path), database).values()} == {True}


def test_days_beyond_the_cap_on_dimensions_are_proved(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "add_days", partial(days.add_days, max_combinations=1))
    monkeypatch.setattr(calendar, "crowded_out", partial(calendar.crowded_out, max_combinations=1))
    history = History(3)
    billed(database, tmp_path, history, CONFIG, [None] * len(history.rows))
    with psycopg.connect(database) as connection:
        others = connection.execute("SELECT count(*) FROM usage_days WHERE is_other").fetchone()
    assert others is not None
    assert others[0] > 0
    assert found(tmp_path, database) == {}


def test_dimensions_wrongly_folded_into_other_are_found(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "add_days", partial(days.add_days, max_combinations=0))
    monkeypatch.setattr(calendar, "crowded_out", partial(calendar.crowded_out, max_combinations=1))
    history = History(3)
    billed(database, tmp_path, history, CONFIG, [None] * len(history.rows))
    assert "there is room" in found(tmp_path, database)["I6"]


def test_migrated_days_are_compared_as_one_sum(database: str, tmp_path: Path) -> None:
    history = History(7)
    billed(database, tmp_path, history, CONFIG, [None] * len(history.rows), releases=2)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DELETE FROM usage_days")
        connection.execute(MADE_OF_MINUTES)
        assert found(tmp_path, database) == {}
        connection.execute(
            "UPDATE usage_days SET quantity = quantity + 1 WHERE quantity = (SELECT max(quantity) FROM usage_days)"
        )
    assert "all days" in found(tmp_path, database)["I6"]


@pytest.mark.parametrize("kept", ["all", "the newest", "none"])
def test_usage_billed_by_unknown_rules_is_left_out_and_reported(database: str, tmp_path: Path, kept: str) -> None:
    history = History(5)
    billed(database, tmp_path, history, CONFIG, [None] * len(history.rows))
    other = BillingConfig(grace_seconds=0)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("UPDATE rules SET rules = %s", [Jsonb(other.deciding)])
        assert found(tmp_path, database) != {}
        if kept == "the newest":
            connection.execute("UPDATE rules SET first_position = %s", [len(history.rows) + 1])
        if kept == "none":
            connection.execute("DELETE FROM rules")
    assert (found(tmp_path, database) == {}) is (kept != "all")


# As by a billing that never sees that a window had closed: all that it stores agrees with itself.
FORGOTTEN = """
DELETE FROM corrections WHERE cause <> 'stream';
UPDATE usage_windows SET corrected = EXISTS (
    SELECT FROM corrections AS left_over
    WHERE (left_over.window_start, left_over.account, left_over.meter)
        = (usage_windows.window_start, usage_windows.account, usage_windows.meter)
);
UPDATE usage_days SET corrected = corrected AND EXISTS (
    SELECT FROM corrections AS left_over
    WHERE (left_over.account, left_over.meter) = (usage_days.account, usage_days.meter)
)
"""


@pytest.mark.long
def test_a_change_of_a_closed_window_without_a_correction_is_found(tmp_path: Path) -> None:
    with left_by(AUDITED, tmp_path, is_audited=True) as world:
        assert found(world.tables, world.database) == {}
        with psycopg.connect(world.database) as connection:
            connection.execute(FORGOTTEN)
        assert "changed the window" in found(world.tables, world.database)["I8"]
