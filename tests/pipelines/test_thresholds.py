"""Thresholds: what is crossed in the end, against an oracle that recomputes it from all rows and the final catalog.

`differential`: the oracle adds up the rows that the test made, picks each limit by reading the list, and compares with
fractions; it shares no code with billing's statements.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import partial
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from typer.testing import CliRunner

from catalog.file import parse_catalog
from catalog.store import store_file
from cli.main import app
from jobs.billing import thresholds
from jobs.billing.config import BillingConfig
from jobs.billing.pipeline import JOB
from jobs.billing.thresholds import note_members
from jobs.queries.bills import read_meter_amounts
from jobs.queries.limits import LimitUse
from jobs.retention.days import Retention
from jobs.retention.rows import retain_rows
from jobs.runtime.job import Fold
from metering.meters import Meter
from metering.vocabulary import LatePolicy
from tests.conftest import fresh_database
from tests.database_rows import write
from tests.pipelines.billing import NOON, Price, bill, usage_row
from tests.pipelines.folding import rows_of
from tests.pipelines.test_members_folded import Added
from tests.pipelines.test_members_folded import fold as fold_members
from tests.pipelines.threshold_oracle import reversal, thresholds_of
from tests.webhooks.receiver import Call, Receiver
from tests.webhooks.sending import add_endpoint, now_clock, queue, send_all, states
from webhooks.event_types import EventType

DROPS = BillingConfig(late_policy={Meter.INPUT_TOKENS: LatePolicy.DROP})
LONG_AGO = datetime(2025, 1, 1, tzinfo=UTC)
JANUARY, MARCH, APRIL = date(2026, 1, 1), date(2026, 3, 1), date(2026, 4, 1)
IN_APRIL = datetime(2026, 4, 9, tzinfo=UTC)
PRICES = (Price(7, Decimal("0.01")), Price(9, Decimal("0.25")), None)
METERS = (Meter.REQUESTS, Meter.INPUT_TOKENS)
ZONES = {"acme": "UTC", "bolt": "Pacific/Kiritimati", "corp": "America/Los_Angeles", "dune": "Europe/Berlin"}
PLANS = ("gold", "iron")
MODELS = ("sonnet", "haiku", "opus/v2")
KEY = ("account", "period", "first_day", "meter", "currency", "model", "threshold")
Crossed = set[tuple[str, str, date, str, str, str, Decimal]]
"""Account, period, first day, meter, currency, model and threshold."""


@pytest.mark.few_in_ci(2)
@pytest.mark.parametrize("seed", range(20))
def test_in_any_cut_and_order_what_is_crossed_is_what_the_oracle_finds(seed: int, postgres_url: str) -> None:
    """Late rows, reversals, and limits and plans that change in between; the last state of each threshold counts."""
    world = _World.of(random.Random(seed))
    expected = world.crossed()
    assert expected
    for cut in range(2):
        with fresh_database(postgres_url) as database:
            world.run(database, random.Random(f"{seed}/{cut}"))
            with psycopg.connect(database) as connection:
                assert crossed(connection) == expected, cut
                assert_versions(connection)


def test_a_threshold_is_crossed_by_the_unit_that_reaches_it_and_not_by_the_one_before(
    connection: psycopg.Connection[Any], database: str
) -> None:
    declare(database, limit("10", plan="gold", steps=["5", "50%"]), limit("10", account="acme", period="P1D"))
    bill(connection, [used(lsn) for lsn in range(1, 5)])
    assert crossed(connection) == set()
    bill(connection, [used(5)])
    step = ("acme", "P1M", MARCH, "requests", "", "", Decimal(5))
    assert crossed(connection) == {step}
    bill(connection, [used(lsn) for lsn in range(6, 10)])
    assert crossed(connection) == {step}
    bill(connection, [used(10)])
    day = ("acme", "P1D", NOON.date(), "requests", "", "", Decimal(10))
    assert crossed(connection) == {step, day, (*step[:6], Decimal(10))}
    bill(connection, [used(11)])
    assert [row["version"] for row in changes(connection)] == [1, 1, 1], "each was decided once"


def test_a_limit_of_a_model_counts_that_model_alone_and_one_of_all_models_counts_it_too(
    connection: psycopg.Connection[Any], database: str
) -> None:
    declare(database, limit("2", account="acme", model="haiku"), limit("3", account="*"))
    bill(connection, [used(1, model="haiku"), used(2, model="sonnet")])
    assert crossed(connection) == set()
    bill(connection, [used(3, model="haiku")])
    month = ("acme", "P1M", MARCH, "requests", "")
    assert crossed(connection) == {(*month, "haiku", Decimal(2)), (*month, "", Decimal(3))}
    bill(connection, [used(4, sign=-1, cause="reversed", corrects_lsns=[3], model="haiku")])
    assert crossed(connection) == set()


def test_a_limit_that_recurs_calls_at_each_multiple_once_and_at_no_more_than_a_hundred_of_a_period(
    connection: psycopg.Connection[Any], database: str
) -> None:
    declare(database, {**limit("5", account="acme"), "every": "2.5"})
    bill(connection, [used(1, quantities={Meter.REQUESTS: Decimal(9)})])
    assert {row["threshold"] for row in changes(connection)} == {Decimal("2.5"), 5, Decimal("7.5")}
    bill(connection, [used(2)])
    assert [row["threshold"] for row in changes(connection)] == [Decimal("2.5"), 5, Decimal("7.5"), 10]
    bill(connection, [used(3, sign=-1, cause="reversed", corrects_lsns=[2])])
    assert {place[-1] for place in crossed(connection)} == {Decimal("2.5"), 5, Decimal("7.5")}
    bill(connection, [used(4, quantities={Meter.REQUESTS: Decimal(10**9)})])
    reached = sorted(place[-1] for place in crossed(connection))
    assert reached == [Decimal("2.5") * turn for turn in range(1, 101)]
    assert {row["version"] for row in changes(connection) if row["threshold"] == 5} == {1}


@pytest.mark.parametrize(
    ("used_so_far", "every", "near"),
    [
        ("-3", "2", ["2"]),
        ("0", "2", ["2"]),
        ("1.9", "2", ["2"]),
        ("2", "2", ["2", "4"]),
        ("199.9", "2", ["198", "200"]),
        ("200", "2", ["200"]),
        ("203", "2", ["200"]),
        ("100000000000000000", "0.000000000001", ["0.0000000001"]),
    ],
)
def test_the_multiples_that_usage_is_between_are_found_whatever_was_used(
    used_so_far: str, every: str, near: list[str]
) -> None:
    use = LimitUse("acme", "t", "", "", "P1M", MARCH, None, Decimal(used_so_far), every=Decimal(every))
    assert use.thresholds == [Decimal(step) for step in near]


def test_a_correction_that_takes_it_back_under_retracts_it_with_the_next_version(
    connection: psycopg.Connection[Any], database: str
) -> None:
    declare(database, limit("2", account="acme"))
    bill(connection, [used(1), used(2)])
    bill(connection, [used(3, sign=-1, cause="reversed", corrects_lsns=[2])])
    bill(connection, [used(4)])
    assert [(row["version"], row["is_crossed"], row["used"]) for row in changes(connection)] == [
        (1, True, Decimal(2)),
        (2, False, Decimal(1)),
        (3, True, Decimal(2)),
    ]


def test_a_limit_that_comes_goes_or_changes_is_decided_without_any_usage(
    connection: psycopg.Connection[Any], database: str
) -> None:
    bill(connection, [used(lsn) for lsn in range(1, 6)])
    assert not is_due(connection)
    declare(database, limit("3", account="acme"))
    assert is_due(connection)
    bill(connection, [])
    three = ("acme", "P1M", MARCH, "requests", "", "", Decimal(3))
    assert crossed(connection) == {three}
    assert not is_due(connection)
    declare(database, limit("4", account="acme"))
    bill(connection, [])
    assert crossed(connection) == {(*three[:6], Decimal(4))}
    edit(connection, "DELETE FROM catalog.limits")
    bill(connection, [])
    assert crossed(connection) == set()
    assert changes(connection)[-1]["used"] is None, "no limit counts it any more"
    declare(database, limit("1", plan="gold"))
    bill(connection, [])
    edit(connection, "TRUNCATE catalog.limits")
    bill(connection, [])
    assert crossed(connection) == set()


def test_a_limit_that_is_announced_is_decided_when_it_begins(
    connection: psycopg.Connection[Any], database: str
) -> None:
    bill(connection, [used(1)])
    ahead = datetime.now(UTC) + timedelta(days=400)
    declare(database, limit("1", account="acme", since=ahead))
    assert not is_due(connection)
    assert rows_of(connection, "SELECT due_at FROM thresholds_due") == [{"due_at": ahead}]


def test_a_move_to_another_plan_that_is_announced_before_any_limit_is_decided_when_it_holds(
    connection: psycopg.Connection[Any], database: str
) -> None:
    declare(database)
    ahead = datetime.now(UTC) + timedelta(days=3)
    edit(connection, f"UPDATE catalog.accounts SET plan = 'iron', effective_from = '{ahead}' WHERE account = 'acme'")
    declare_limits(database, [limit("1", plan="iron")])
    bill(connection, [])
    assert rows_of(connection, "SELECT account, due_at FROM thresholds_due") == [{"account": "acme", "due_at": ahead}]


@pytest.mark.parametrize(
    "edit_of_nothing",
    [
        "UPDATE catalog.accounts SET name = name",
        "UPDATE catalog.accounts SET name = 'Other', currency = 'USD'",
        "UPDATE catalog.accounts SET timezone = timezone",
        "UPDATE catalog.limits SET quantity = quantity",
        "DELETE FROM catalog.accounts WHERE account = 'acme' AND false",
    ],
)
def test_an_edit_that_changes_no_plan_calendar_or_limit_decides_nothing(
    connection: psycopg.Connection[Any], database: str, edit_of_nothing: str
) -> None:
    """Also of an account that has moved between plans, whose history the edit writes again."""
    declare(database, limit("1", account="*"))
    edit(connection, "UPDATE catalog.accounts SET plan = 'iron', effective_from = '2026-03-09Z' WHERE account = 'bolt'")
    bill(connection, [used(1)])
    edit(connection, edit_of_nothing)
    assert rows_of(connection, "SELECT * FROM thresholds_due") == []


@pytest.mark.parametrize(
    ("move", "decided"),
    [
        ("UPDATE catalog.accounts SET plan = 'iron', effective_from = '2026-04-10Z' WHERE account = 'acme'", {APRIL}),
        ("UPDATE catalog.limits SET quantity = 3 WHERE effective_from > '2026-01-01Z'", {APRIL}),
        ("UPDATE catalog.limits SET quantity = 3 WHERE effective_from < '2026-01-01Z'", {JANUARY, MARCH, APRIL}),
    ],
)
def test_a_change_decides_the_periods_that_end_after_it_began_and_no_earlier_ones(
    connection: psycopg.Connection[Any], database: str, move: str, decided: set[date]
) -> None:
    """Of a decided one the row is lost before, so that who decides again writes another."""
    declare(database, limit("2", plan="gold"), limit("2", plan="iron"), limit("2", plan="gold", since=IN_APRIL))
    bill(connection, [used(n, day=day) for n, day in enumerate([JANUARY, MARCH, APRIL] * 3, start=1)])
    assert {place[2] for place in crossed(connection)} == {JANUARY, MARCH, APRIL}
    edit(connection, "DELETE FROM threshold_changes")
    edit(connection, move)
    bill(connection, [])
    assert {place[2] for place in crossed(connection)} == decided


def test_an_account_that_moves_to_another_zone_is_decided_by_the_ends_of_its_new_months(
    connection: psycopg.Connection[Any], database: str
) -> None:
    declare(database, limit("1", account="acme", since=datetime(2026, 4, 1, 3, tzinfo=UTC)))
    bill(connection, [used(1, day=MARCH)])
    assert crossed(connection) == set()
    edit(connection, "UPDATE catalog.account_zones SET timezone = 'America/Los_Angeles' WHERE account = 'acme'")
    bill(connection, [])
    assert {place[2] for place in crossed(connection)} == {MARCH}


def test_a_zone_that_is_announced_leaves_nothing_to_decide_when_it_begins(
    connection: psycopg.Connection[Any], database: str
) -> None:
    """It moves no border of a month that has begun, and what begins later is counted by it from the first unit on."""
    declare(database, limit("1", account="acme"), limit("1", account="acme", period="P1D"))
    bill(connection, [used(1)])
    before = changes(connection)
    assert len(before) == 2
    ahead = datetime.now(UTC) + timedelta(days=3)
    zone = f"UPDATE catalog.accounts SET timezone = 'Asia/Tokyo', effective_from = '{ahead}' WHERE account = 'acme'"
    edit(connection, zone)
    assert rows_of(connection, "SELECT since FROM thresholds_due WHERE due_at <= now()") == [{"since": ahead}]
    bill(connection, [])
    assert rows_of(connection, "SELECT * FROM thresholds_due") == []
    assert changes(connection) == before


def test_versions_go_on_above_all_earlier_ones_after_the_rows_of_a_database_were_lost(
    connection: psycopg.Connection[Any], database: str
) -> None:
    """A lost database, one restored from a backup, and a downgrade lose rows; each driver has a higher epoch."""
    driver = "INSERT INTO jobs (job, epoch, owner_pid, owner_started_at, started_at, state, config)"
    edit(connection, f"{driver} VALUES ('billing', 1, 1, now(), now(), 'running', '{{}}')")
    declare(database, limit("2", account="acme"))
    bill(connection, [used(1), used(2)])
    bill(connection, [used(3, sign=-1, cause="reversed", corrects_lsns=[2])])
    bill(connection, [used(4)])
    versions = [row["version"] for row in changes(connection)]
    assert versions == [1, 2, 3]
    edit(connection, "DELETE FROM threshold_changes WHERE version > 1")
    edit(connection, "UPDATE jobs SET epoch = 2")
    bill(connection, [used(5, sign=-1, cause="reversed", corrects_lsns=[4])])
    lost = changes(connection)[-1]
    assert lost["version"] > max(versions)
    assert not lost["is_crossed"], "the retraction is newer than any crossing that a receiver has"
    edit(connection, "DELETE FROM threshold_changes")
    edit(connection, "UPDATE jobs SET epoch = 3")
    bill(connection, [used(6)])
    again = changes(connection)[-1]
    assert again["version"] > lost["version"]
    assert again["is_crossed"]


def test_retention_removes_old_changes_of_thresholds_and_keeps_what_holds(
    connection: psycopg.Connection[Any], database: str
) -> None:
    declare(database, limit("2", account="acme", steps=["1"]))
    bill(connection, [used(1), used(2)])
    bill(connection, [used(3, sign=-1, cause="reversed", corrects_lsns=[2])])
    bill(connection, [used(4)])
    edit(connection, "UPDATE threshold_changes SET changed_at = now() - interval '500 days' WHERE version < 3")
    before = crossed(connection)
    today = datetime.now(UTC).date()
    assert _removed_changes(database, today, threshold_changes_days=None) is None
    assert _removed_changes(database, today, threshold_changes_days=501) == 0
    assert _removed_changes(database, today) == 2
    assert crossed(connection) == before
    assert {(row["threshold"], row["version"]) for row in changes(connection)} == {(1, 1), (2, 3)}
    bill(connection, [used(5)])
    assert len(changes(connection)) == 2, "what is known is not decided again"


def test_retention_keeps_what_holds_of_each_model(connection: psycopg.Connection[Any], database: str) -> None:
    """Of the same account, month, meter and number: one model was crossed once, the other one three times."""
    declare(database, limit("2", account="acme", model="haiku"), limit("2", account="acme", model="sonnet"))
    bill(connection, [used(lsn, model=model) for lsn, model in enumerate(["haiku", "haiku", "sonnet", "sonnet"], 1)])
    bill(connection, [used(5, model="sonnet", sign=-1, cause="reversed", corrects_lsns=[4])])
    bill(connection, [used(6, model="sonnet")])
    edit(connection, "UPDATE threshold_changes SET changed_at = now() - interval '500 days'")
    before = crossed(connection)
    assert {place[5] for place in before} == {"haiku", "sonnet"}
    assert _removed_changes(database, datetime.now(UTC).date()) == 2
    assert crossed(connection) == before


def _removed_changes(database: str, today: date, **days: int | None) -> int | None:
    with psycopg.connect(database, autocommit=True) as connection:
        found = {removed.table: removed.rows for removed in retain_rows(connection, Retention(**days), today)}
    return found.get("threshold_changes")


def test_the_month_of_a_limit_is_that_of_the_accounts_own_zone(
    connection: psycopg.Connection[Any], database: str
) -> None:
    """Kiritimati's March ends 14 hours before that of UTC, Los Angeles' seven hours after it."""
    declare(database, limit("1", account="*", since=datetime(2026, 3, 31, 12, tzinfo=UTC)))
    bill(connection, [used(lsn, account=name, day=MARCH) for lsn, name in enumerate(ZONES, start=1)])
    assert {name for name, *_ in crossed(connection)} == {"acme", "corp", "dune"}
    edit(connection, "DELETE FROM catalog.limits")
    declare(database, limit("1", account="*", since=datetime(2026, 4, 1, 0, tzinfo=UTC)))
    bill(connection, [])
    assert {name for name, *_ in crossed(connection)} == {"corp"}


def test_an_amount_counts_what_tiers_cost_in_the_whole_month(
    connection: psycopg.Connection[Any], database: str
) -> None:
    """The first 10 units cost 1 each, all further ones 0.1: 30 units cost 12."""
    terms = {"kind": "graduated", "tiers": [{"up_to": "10", "unit_price": "1"}, {"unit_price": "0.1"}]}
    write(
        database,
        "price_ladders",
        {
            "price_version": 5,
            "plan": "gold",
            "model": "sonnet",
            "meter": "requests",
            "currency": "EUR",
            "effective_from": LONG_AGO,
            "unit_price": None,
            "terms": json.dumps(terms),
        },
    )
    declare(database, {"account": "acme", "currency": "EUR", "period": "P1M", "amount": "12.00", "steps": ["11.95"]})
    tiered = {"price": None, "requests_price_version": 5}
    bill(connection, [used(lsn, **tiered) for lsn in range(1, 30)])
    assert crossed(connection) == set()
    bill(connection, [used(30, **tiered)])
    of_month = ("acme", "P1M", MARCH, "", "EUR", "")
    assert crossed(connection) == {(*of_month, Decimal("11.95")), (*of_month, Decimal(12))}
    assert {row["used"] for row in changes(connection)} == {Decimal(12)}


def test_a_limit_of_what_a_meter_costs_counts_its_usage_alone_and_holds_beside_that_of_all(
    connection: psycopg.Connection[Any], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = {"account": "acme", "currency": "EUR", "period": "P1M"}
    declare(database, {**spent, "meter": "requests", "amount": "0.02"}, {**spent, "amount": "0.05"})
    today = datetime.now(UTC).date()
    quantities = {Meter.REQUESTS: 1, Meter.INPUT_TOKENS: 3}
    bill(connection, [used(1, day=today, price=PRICES[0], quantities=quantities)])
    month = ("acme", "P1M", today.replace(day=1))
    assert crossed(connection) == set(), "0.01 of 0.02, and 0.04 of 0.05"
    bill(connection, [used(2, day=today, price=PRICES[0])])
    of_meter, of_all = (*month, "requests", "EUR", "", Decimal("0.02")), (*month, "", "EUR", "", Decimal("0.05"))
    assert crossed(connection) == {of_meter, of_all}
    shown = [
        (row["meter"], row["currency"], row["used"])
        for row in limits_command(database, monkeypatch)("status")
        if row["account"] == "acme"
    ]
    assert shown == [(None, "EUR", "0.05"), ("requests", "EUR", "0.02")]
    bill(connection, [used(3, sign=-1, cause="reversed", corrects_lsns=[2], day=today, price=PRICES[0])])
    assert crossed(connection) == set()


def test_money_is_computed_for_few_accounts_at_a_time_and_each_crosses_what_it_has_spent(
    connection: psycopg.Connection[Any], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiers are priced by the driver, and Postgres ends a session that asks for nothing meanwhile."""
    asked: list[list[str]] = []

    def read(rows: Any, month: date, accounts: Sequence[str]) -> Any:
        asked.append([*accounts])
        return read_meter_amounts(rows, month, accounts)

    monkeypatch.setattr(thresholds, "_amounts", partial(thresholds._amounts, batch_accounts=2))
    monkeypatch.setattr(thresholds, "read_meter_amounts", read)
    declare(database, {"account": "*", "currency": "EUR", "period": "P1M", "amount": "0.02"})
    spending = ["acme", *["bolt"] * 2, *["dune"] * 3]
    bill(connection, [used(lsn, account=name, price=PRICES[0]) for lsn, name in enumerate(spending, 1)])
    assert asked == [["acme", "bolt"], ["dune"]]
    assert {row[0] for row in crossed(connection)} == {"bolt", "dune"}


def test_a_meter_that_bills_whole_periods_crosses_thresholds_too(connection: psycopg.Connection[Any]) -> None:
    """Distinct users of a month: the second comes twice and counts once, and one is taken back."""
    edit(
        connection,
        "INSERT INTO catalog.limits (account, meter, period, effective_from, quantity)"
        " VALUES ('acme', 'users', 'P1M', '2025-01-01Z', 3)",
    )
    fold_members(connection, [Added("users", 1), Added("users", 2), Added("users", 2)])
    assert crossed(connection) == set()
    fold_members(connection, [Added("users", 3)], 4)
    assert [(row["version"], row["used"]) for row in changes(connection)] == [(1, 3)]
    fold_members(connection, [Added("users", 3, sign=-1)], 5)
    assert crossed(connection) == set()


def test_without_limits_a_batch_pays_one_statement(connection: psycopg.Connection[Any]) -> None:
    executed: list[Any] = []

    class Recorded(psycopg.Cursor[Any]):
        def execute(self, query: Any, *arguments: Any, **more: Any) -> Recorded:
            executed.append(query)
            return super().execute(query, *arguments, **more)

    with connection.transaction(), Recorded(connection) as cursor:
        assert not note_members(cursor)
    assert len(executed) == 1


def test_events_of_crossed_and_retracted_thresholds_are_queued_once_with_the_row(
    connection: psycopg.Connection[Any], database: str
) -> None:
    types = ["weir.threshold.crossed", "weir.threshold.retracted"]
    added = add_endpoint(database, "https://example.com", [EventType(name) for name in types])
    declare(database, {**limit("2", account="acme"), "code": "guard"})
    with connection.transaction(force_rollback=True):
        bill(connection, [used(1), used(2)])
    assert rows_of(connection, "SELECT * FROM webhook_events") == []
    bill(connection, [used(1), used(2)])
    bill(connection, [used(3, sign=-1, cause="reversed", corrects_lsns=[2])])
    queued = rows_of(connection, "SELECT type, account, body, event_id, endpoints FROM webhook_events ORDER BY number")
    assert [(row["type"], row["account"]) for row in queued] == [(name, "acme") for name in types]
    assert [row["endpoints"] for row in queued] == [[added.endpoint]] * 2
    assert len({row["event_id"] for row in queued}) == 2
    assert [json.loads(row["body"])["data"] for row in queued] == [
        {
            "account": "acme",
            "period": "P1M",
            "period_start": "2026-03-01",
            "meter": "requests",
            "currency": None,
            "model": None,
            "dimension": None,
            "dimension_value": None,
            "threshold": "2",
            "value": value,
            "version": version,
            "frontier": None,
            "rule": "guard",
        }
        for value, version in (("2", 1), ("1", 2))
    ]
    edit(connection, "DELETE FROM threshold_changes WHERE version = 2; DELETE FROM catalog.limits")
    bill(connection, [])
    assert changes(connection)[-1]["rule"] == "guard", "also where no limit counts it any more"
    queue(database)
    assert set(states(database)) == {"waiting"}


def test_a_receiver_gets_the_thresholds_of_an_account_in_the_order_in_which_they_were_crossed(
    connection: psycopg.Connection[Any], database: str
) -> None:
    declare(database, limit("4", account="*", steps=["50%"]))

    async def delivered() -> list[Call]:
        async with Receiver().serving() as receiver:
            add_endpoint(database, receiver.url, accounts=["acme"], events=[EventType.THRESHOLD_CROSSED])
            add_endpoint(database, receiver.url, accounts=["acme"], events=[EventType.THRESHOLD_RETRACTED])
            bill(connection, [used(lsn) for lsn in range(1, 6)] + [used(6, account="bolt") for _ in range(4)])
            bill(connection, [used(7, sign=-1, cause="reversed", corrects_lsns=[5])])
            bill(connection, [used(8, sign=-1, cause="reversed", corrects_lsns=[4])])
            await send_all(database, now_clock())
        return receiver.taken

    taken = asyncio.run(delivered())
    assert len({call.id for call in taken}) == 3
    of_type: dict[str, list[tuple[str, int, str]]] = defaultdict(list)
    for call in taken:
        assert call.data["account"] == "acme"
        of_type[json.loads(call.body)["type"]].append(
            (call.data["threshold"], call.data["version"], call.data["value"])
        )
    assert of_type == {
        "weir.threshold.crossed": [("2", 1, "5"), ("4", 1, "5")],
        "weir.threshold.retracted": [("4", 2, "3")],
    }


def test_the_commands_list_limits_how_near_accounts_are_and_what_changed(
    connection: psycopg.Connection[Any], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weir = limits_command(database, monkeypatch)

    spent = {"plan": "gold", "currency": "EUR", "period": "P1M", "amount": "0.10", "steps": ["50%"]}
    declare(database, limit("8", account="*", steps=["5"]), spent)
    today = datetime.now(UTC).date()
    bill(connection, [used(lsn, day=today, price=Price(7, Decimal("0.01"))) for lsn in range(1, 7)])
    listed = [(row["account"], row["plan"], row["quantity"], row["amount"], row["steps"]) for row in weir("list")]
    assert listed == [("*", None, "8", None, "5"), (None, "gold", None, "0.1", "0.05")]
    shown = [
        (row["meter"], row["currency"], row["used"], row["limit"], row["percent"], row["crossed"])
        for row in weir("status", "--account", "acme")
    ]
    assert shown == [
        (None, "EUR", "0.06", "0.1", "60", "0.05"),
        ("requests", None, "6", "8", "75", "5"),
    ]
    assert {row["used"] for row in weir("status") if row["account"] == "bolt"} == {"0"}
    made = [(row["threshold"], row["version"], row["is_crossed"]) for row in weir("changes")]
    assert sorted(made) == [("0.05", 1, True), ("5", 1, True)]


def limit(quantity: str | None, *, since: datetime = LONG_AGO, period: str = "P1M", **of: Any) -> dict[str, Any]:
    return {"meter": "requests", "period": period, "quantity": quantity, "effective_from": since.isoformat(), **of}


def declare(database: str, *limits: dict[str, Any]) -> None:
    """Accounts of the plan gold, and these limits."""
    if not any("requests" in row["meter"] for row in rows_in(database, "SELECT meter FROM meters")):
        write(database, "meters", *({"meter": meter, "unit": "u", "is_declared": True} for meter in METERS))
    with_dates = [{"effective_from": LONG_AGO.isoformat(), **row} for row in limits]
    document = {"plans": [{"plan": name, "name": name} for name in PLANS], "limits": with_dates}
    store_file(database, parse_catalog(json.dumps({**document, "accounts": accounts()})), backdates=True)


def accounts(plan: str = "gold", since: datetime = LONG_AGO) -> list[dict[str, Any]]:
    shared = {"plan": plan, "currency": "EUR", "effective_from": since.isoformat()}
    return [{"account": name, "name": name, "timezone": zone, **shared} for name, zone in ZONES.items()]


def used(lsn: int, **other: Any) -> dict[str, Any]:
    return usage_row(lsn, **{"day": NOON.date(), **other})


def edit(connection: psycopg.Connection[Any], statement: str) -> None:
    with connection.transaction():
        connection.execute(statement.encode())


def is_due(connection: psycopg.Connection[Any]) -> bool:
    with connection.transaction(), connection.cursor() as cursor:
        return JOB.is_due(cursor, Fold(None, None, 1))


def changes(connection: psycopg.Connection[Any]) -> list[dict[str, Any]]:
    return rows_of(connection, "SELECT * FROM threshold_changes ORDER BY changed_at, version, threshold")


def crossed(connection: psycopg.Connection[Any], key: Sequence[str] = KEY) -> set[Any]:
    """By the last version of each `key`."""
    last: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows_of(connection, "SELECT * FROM threshold_changes ORDER BY version"):
        last[tuple(row[name] for name in key)] = row
    return {place for place, row in last.items() if row["is_crossed"]}


def assert_versions(connection: psycopg.Connection[Any], key: Sequence[str] = KEY) -> None:
    holes = f"SELECT 1 AS one FROM threshold_changes GROUP BY {', '.join(key)} HAVING max(version) <> count(*)"
    assert rows_of(connection, holes) == [], "within one epoch the versions of a threshold have no holes"


def limits_command(database: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`weir limits` of a stack with this database: what it prints as JSON."""
    monkeypatch.setattr("deployment.stack.running_deployment", lambda _: SimpleNamespace(postgres_url=database))

    def weir(*arguments: str) -> Any:
        found = CliRunner().invoke(app, ["limits", *arguments, "--format", "json"])
        assert found.exit_code == 0, found.output
        return json.loads(found.stdout)

    return weir


def rows_in(database: str, query: str) -> list[dict[str, Any]]:
    with psycopg.connect(database) as connection:
        return rows_of(connection, query)


@dataclass(frozen=True)
class _World:
    """Rows of usage, limits, and since when accounts have the plan iron instead of gold."""

    rows: Sequence[dict[str, Any]]
    limits: Sequence[dict[str, Any]]
    moved: datetime

    @staticmethod
    def of(chance: random.Random) -> _World:
        rows: list[dict[str, Any]] = []
        for lsn in range(1, chance.randint(60, 140)):
            first = chance.choice([MARCH, MARCH, APRIL])
            if taken_back := reversal(chance, rows, lsn):
                rows.append(taken_back)
                continue
            quantities = {meter: Decimal(chance.randint(0, 4_000)) / 1_000 for meter in METERS}
            row = used(
                lsn,
                delay=chance.choice([timedelta(seconds=1), timedelta(seconds=1), timedelta(hours=2)]),
                account=chance.choice([*ZONES]),
                day=first + timedelta(days=chance.choice([0, 0, 1, 29])),
                price=chance.choice(PRICES),
                quantities=quantities,
                model=chance.choice(MODELS),
            )
            rows.append({**row, "corrects_lsns": None})
        starts = [LONG_AGO, *(datetime(2026, month, 1, tzinfo=UTC) for month in (3, 4, 5))]
        starts += [start + timedelta(hours=chance.choice([-12, -8, -1, 5, 9])) for start in starts[1:]]
        limits = {}
        for _ in range(chance.randint(8, 20)):
            of = chance.choice([{"account": chance.choice(["*", *ZONES])}, {"plan": chance.choice(PLANS)}])
            what = chance.choice([{"meter": meter.value, "period": period} for meter in METERS for period in PERIODS])
            if chance.random() < 0.3:
                what = {"currency": "EUR", "period": "P1M"}
                what |= {"meter": chance.choice(METERS).value} if chance.random() < 0.5 else {}
            elif chance.random() < 0.4:
                what["model"] = chance.choice(MODELS)
            most = chance.choice([None, "0", f"{chance.randint(1, 40)}", f"{chance.randint(1, 9)}.25"])
            steps = [f"{chance.randint(1, 20)}.5" for _ in range(chance.randint(0, 2))]
            since = chance.choice(starts)
            row = {**of, **what, "steps": steps, "effective_from": since.isoformat()}
            row["amount" if "currency" in what else "quantity"] = most
            if chance.random() < 0.3:
                row["every"] = chance.choice(["0.5", "3", "7.25"])
            limits[json.dumps([of, what, since.isoformat()])] = row
        return _World(rows, [*limits.values()], chance.choice(starts[1:]))

    def run(self, database: str, chance: random.Random) -> None:
        """Fold the rows in some cut, while the catalog becomes what it is in the end."""
        declare(database)
        others = [{**row, "steps": ["1.5"]} for row in self.limits if chance.random() < 0.3]
        last = chance.sample(self.limits, len(self.limits))
        edits = [others, *(last[place : place + 5] for place in range(0, len(last), 5))]
        at = sorted(chance.randint(0, len(self.rows)) for _ in edits)
        moved_at, begin = chance.randint(0, len(self.rows)), 0
        with psycopg.connect(database) as connection:
            while begin < len(self.rows):
                for limits in [edits[number] for number, place in enumerate(at) if place == begin]:
                    declare_limits(database, limits)
                if moved_at == begin:
                    self._move(connection)
                # An edit has its place between two batches.
                places = [place for place in (*at, moved_at, len(self.rows)) if place > begin]
                end = min(begin + chance.choice([1, 5, 40, 200]), *places)
                bill(connection, list(self.rows[begin:end]), DROPS)
                begin = end
            for limits in [edits[number] for number, place in enumerate(at) if place == begin]:
                declare_limits(database, limits)
            if moved_at == begin:
                self._move(connection)
            if is_due(connection):
                bill(connection, [], DROPS)

    def _move(self, connection: psycopg.Connection[Any]) -> None:
        with connection.transaction():
            connection.execute("UPDATE catalog.accounts SET plan = 'iron', effective_from = %s", [self.moved])

    def crossed(self) -> Crossed:
        totals: dict[tuple[str, str, date, str, str, str], Fraction] = defaultdict(Fraction)
        for row in self.rows:
            is_late = row["received_at"] - row["event_time"] > timedelta(hours=1)
            for meter in METERS:
                quantity = Fraction(row["sign"]) * Fraction(row[meter])
                if not quantity or (is_late and meter is Meter.INPUT_TOKENS):
                    continue
                month = row["day"].replace(day=1)
                for model in ("", row["model"]):
                    totals[row["account"], "P1D", row["day"], meter.value, "", model] += quantity
                    totals[row["account"], "P1M", month, meter.value, "", model] += quantity
                # A period whose usage has no price has a total, too, which is 0.
                for of_meter in ("", meter.value):
                    totals[row["account"], "P1M", month, of_meter, "EUR", ""] += quantity * Fraction(
                        row.get(f"{meter}_unit_price") or 0
                    )
        return {
            (*place, Decimal(step))
            for place, total in totals.items()
            for step in self._thresholds(place, total)
            if 0 < Fraction(step) <= total
        }

    def _thresholds(self, place: tuple[str, str, date, str, str, str], total: Fraction) -> Iterator[str]:
        account, period, first, meter, currency, model = place
        ends = _following(period, first, ZoneInfo(ZONES[account]))
        plan = "iron" if self.moved < ends else "gold"

        def counts(row: dict[str, Any]) -> bool:
            of = [row.get(name, "") for name in ("meter", "currency", "model", "period")]
            return of == [meter, currency, model, period] and datetime.fromisoformat(row["effective_from"]) < ends

        return thresholds_of(self.limits, account, plan, total, counts)


PERIODS = ("P1D", "P1M")


def declare_limits(database: str, limits: Sequence[dict[str, Any]]) -> None:
    store_file(database, parse_catalog(json.dumps({"limits": list(limits)})))


def _following(period: str, first: date, zone: ZoneInfo) -> datetime:
    day = first + timedelta(days=1) if period == "P1D" else (first + timedelta(days=31)).replace(day=1)
    return datetime(day.year, day.month, day.day, tzinfo=zone)
