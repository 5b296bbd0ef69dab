"""Usage rows to windows and stragglers in Postgres, against a second computation one row at a time."""

from __future__ import annotations

import random
from datetime import timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from jobs.billing.config import BillingConfig
from metering.meters import Meter
from metering.vocabulary import Decision, LatePolicy, Outcome
from metering.windows import MINUTE
from monitoring import metrics
from tests.pipelines.billing import CONFIG, NOON, Billed, Price, bill, billed, stored, usage_row

GRACE = timedelta(seconds=CONFIG.grace_seconds)
MICROSECOND = timedelta(microseconds=1)
DROP_OUTPUT = BillingConfig(late_policy={Meter.OUTPUT_TOKENS: LatePolicy.DROP})
HISTORY = BillingConfig(late_policy={Meter.OUTPUT_TOKENS: LatePolicy.DROP}, history_until=NOON + 2 * MINUTE)


def random_row(chance: random.Random, lsn: int) -> dict[str, Any]:
    outcome = chance.choice([Outcome.MATCHED] * 5 + [Outcome.ABANDONED, Outcome.ORPHANED, Outcome.SUPERSEDED])
    tokens = [Meter.INPUT_TOKENS, Meter.OUTPUT_TOKENS, Meter.CACHED_TOKENS]
    reported: dict[Meter, int | None] = {
        meter: chance.choice([None, 0, 1, chance.randint(1, 10**10)]) for meter in tokens
    }
    reports: dict[Outcome, dict[Meter, int | None]] = {
        Outcome.MATCHED: {Meter.REQUESTS: 1, **reported},
        Outcome.ABANDONED: {Meter.REQUESTS: 1},
        Outcome.ORPHANED: {Meter.REQUESTS: 0, **reported},
        Outcome.SUPERSEDED: dict.fromkeys(Meter, 0),
    }
    price = chance.choice([None, Price(3, Decimal("0.000000000001")), Price(9, Decimal("0.123456789012"))])
    unpriced = outcome in (Outcome.ORPHANED, Outcome.SUPERSEDED)
    edges = [MINUTE, MINUTE + GRACE, timedelta(seconds=chance.randint(0, 900))]
    event_time, delay = NOON + chance.randint(0, 2) * MINUTE, chance.choice(edges) + chance.randint(-1, 1) * MICROSECOND
    first = event_time + min(delay - MICROSECOND, chance.choice(edges) + chance.randint(-1, 1) * MICROSECOND)
    return usage_row(
        lsn,
        event_time,
        delay,
        first_received_at=chance.choice([None, None, None, first]),
        price=None if unpriced else price,
        quantities=reports[outcome],
        account=chance.choice(["acme", "bolt"]),
        model=None if outcome is Outcome.ORPHANED else chance.choice(["sonnet", "opus"]),
        outcome=outcome,
        currency=None if unpriced and chance.random() < 0.5 else chance.choice(["EUR", "USD"]),
        sign=chance.choice([1, 1, 1, -1]),
    )


@pytest.mark.parametrize("config", [CONFIG, DROP_OUTPUT, HISTORY], ids=["correct", "drop", "history"])
@pytest.mark.parametrize("seed", range(2))
def test_oracle_any_cut_in_any_order_bills_the_same_to_the_last_digit(
    connection: psycopg.Connection[Any], seed: int, config: BillingConfig
) -> None:
    chance = random.Random(seed)
    rows = [random_row(chance, lsn) for lsn in range(1, 301)]
    chance.shuffle(rows)
    cuts = sorted(chance.sample(range(len(rows)), 5))
    for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        bill(connection, rows[start:end], config)
    expected = billed(rows, config)
    found = stored(connection)
    assert found.stragglers == expected.stragglers
    assert found.windows == expected.windows


def test_signed_usage_is_windows_plus_dropped_stragglers(connection: psycopg.Connection[Any]) -> None:
    chance = random.Random(11)
    rows = [random_row(chance, lsn) for lsn in range(1, 201)]
    bill(connection, rows, DROP_OUTPUT)
    found = stored(connection)
    for meter in Meter:
        kept = sum(cell["quantity"] for key, cell in found.windows.items() if key[3] == meter)
        dropped = sum(
            row["quantity"]
            for (_, of), row in found.stragglers.items()
            if of == meter and row["decision"] == Decision.DROP
        )
        assert kept + dropped == sum(row["sign"] * (row.get(meter) or 0) for row in rows)


@pytest.mark.parametrize(
    ("after_the_end", "late_rows", "corrected"),
    [(-MICROSECOND, 0, False), (timedelta(), 1, False), (GRACE - MICROSECOND, 1, False), (GRACE, 0, True)],
    ids=["on time", "late from the end on", "late before grace is over", "straggler from grace on"],
)
def test_lateness_is_exact_to_the_microsecond_of_reception(
    connection: psycopg.Connection[Any],
    after_the_end: timedelta,
    late_rows: int,
    *,
    corrected: bool,
) -> None:
    row = usage_row(1, NOON + timedelta(seconds=59), timedelta(seconds=1) + after_the_end, outcome=Outcome.ABANDONED)
    bill(connection, [row])
    [cell] = stored(connection).windows.values()
    assert (cell["quantity"], cell["late_rows"], cell["corrected"]) == (1, late_rows, corrected)
    assert len(stored(connection).stragglers) == corrected


@pytest.mark.parametrize("config", [CONFIG, DROP_OUTPUT], ids=["correct", "drop"])
@pytest.mark.parametrize(
    ("first", "again", "is_straggler", "late_rows", "drops"),
    [
        (-MICROSECOND, GRACE - MICROSECOND, False, 0, False),
        (timedelta(), GRACE - MICROSECOND, False, 1, False),
        (-MICROSECOND, GRACE, True, 0, False),
        (GRACE - MICROSECOND, timedelta(days=40), True, 0, False),
        (GRACE, timedelta(days=40), True, 0, True),
    ],
    ids=["on time twice", "late twice", "on time at first", "late at first", "a straggler at first"],
)
def test_a_redriven_dead_letter_is_late_by_its_first_receipt(
    connection: psycopg.Connection[Any],
    config: BillingConfig,
    first: timedelta,
    again: timedelta,
    *,
    is_straggler: bool,
    late_rows: int,
    drops: bool,
) -> None:
    """And what changes a window that has closed is a correction, whenever it was received first."""
    end = NOON + MINUTE
    quantities: dict[Meter, int | Decimal | None] = {Meter.OUTPUT_TOKENS: 7}
    row = usage_row(1, NOON, MINUTE + again, quantities=quantities, first_received_at=end + first)
    bill(connection, [row], config)
    found = stored(connection)
    is_dropped = drops and config is DROP_OUTPUT
    assert {key: one["decision"] for key, one in found.stragglers.items()} == (
        {(1, Meter.OUTPUT_TOKENS): "drop" if is_dropped else "correct"} if is_straggler else {}
    )
    cells = [cell for cell in found.windows.values() if cell["quantity"]]
    expected = [] if is_dropped else [(7, late_rows, is_straggler)]
    assert [(cell["quantity"], cell["late_rows"], cell["corrected"]) for cell in cells] == expected
    corrections = connection.execute("SELECT usage_lsn, new_quantity - old_quantity FROM corrections").fetchall()
    assert corrections == ([(1, 7)] if is_straggler and not is_dropped else [])


def test_each_meters_policy_decides_and_every_straggler_has_its_row(connection: psycopg.Connection[Any]) -> None:
    quantities: dict[Meter, int | None] = {Meter.REQUESTS: 1, Meter.INPUT_TOKENS: 10, Meter.OUTPUT_TOKENS: 20}
    late = timedelta(hours=1, microseconds=5)
    counts = bill(connection, [usage_row(5, NOON, late, quantities=quantities)], DROP_OUTPUT)
    found = stored(connection)
    decisions = {meter: row["decision"] for (_, meter), row in found.stragglers.items()}
    assert decisions == {"requests": "correct", "input_tokens": "correct", "output_tokens": "drop"}
    assert {row["late_seconds"] for row in found.stragglers.values()} == {Decimal("3540.000005")}
    assert {key[3] for key, cell in found.windows.items() if cell["quantity"]} == {"requests", "input_tokens"}
    assert counts[metrics.STRAGGLERS, "output_tokens", "drop"] == 1
    assert counts[metrics.STRAGGLERS, "input_tokens", "correct"] == 1
    assert counts.get((metrics.STRAGGLERS, "cached_tokens", "correct"), 0) == 0


def test_two_stragglers_of_one_window_are_two_rows_and_one_window(connection: psycopg.Connection[Any]) -> None:
    late = [usage_row(lsn, NOON, timedelta(hours=1), outcome=Outcome.ABANDONED) for lsn in (1, 2)]
    bill(connection, [usage_row(3, outcome=Outcome.ABANDONED)])
    bill(connection, late)
    found = stored(connection)
    assert sorted(found.stragglers) == [(1, "requests"), (2, "requests")]
    [cell] = found.windows.values()
    assert (cell["quantity"], cell["corrected"]) == (3, True)


def test_a_window_with_only_dropped_stragglers_is_not_stored(
    connection: psycopg.Connection[Any],
) -> None:
    config = BillingConfig(late_policy=dict.fromkeys(Meter, LatePolicy.DROP))
    bill(connection, [usage_row(1, NOON, timedelta(hours=1))], config)
    found = stored(connection)
    assert found.windows == {}
    assert list(found.stragglers) == [(1, "requests")]


def test_null_is_not_zero_and_is_counted_as_unmetered(connection: psycopg.Connection[Any]) -> None:
    reported: dict[Meter, int | None] = {Meter.REQUESTS: 1, Meter.INPUT_TOKENS: None, Meter.OUTPUT_TOKENS: 0}
    counts = bill(connection, [usage_row(lsn, quantities=reported) for lsn in (1, 2)])
    unmetered = {key[3]: (cell["quantity"], cell["unmetered_rows"]) for key, cell in stored(connection).windows.items()}
    unreported = {meter.value: (0, 2) for meter in Meter if reported.get(meter) is None}
    assert unmetered == {"requests": (2, 0), **unreported}
    assert counts[metrics.UNMETERED, "input_tokens"] == 2


def test_a_superseded_outcome_changes_nothing_however_late(connection: psycopg.Connection[Any]) -> None:
    nothing = usage_row(
        1, NOON, timedelta(hours=1), price=None, quantities=dict.fromkeys(Meter, 0), outcome=Outcome.SUPERSEDED
    )
    bill(connection, [nothing])
    assert stored(connection) == Billed()
