"""Thresholds of periods that roll: what is crossed in the end, against an oracle over all rows, the catalog and F.

`differential`: the oracle adds up the rows that the test made, by the hours that the window at F has; it shares no code
with billing's statements.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import psycopg
import pytest

from deployment.errors import CannotRun
from jobs.billing.pipeline import JOB
from jobs.runtime.job import Fold
from metering.meters import Meter
from tests.conftest import fresh_database
from tests.database_rows import progress, write
from tests.pipelines.billing import built
from tests.pipelines.folding import fold_table, rows_of
from tests.pipelines.test_thresholds import (
    DROPS,
    LONG_AGO,
    METERS,
    MODELS,
    PLANS,
    ZONES,
    assert_versions,
    changes,
    crossed,
    declare,
    declare_limits,
    edit,
    limit,
    limits_command,
    used,
)
from tests.pipelines.threshold_oracle import any_thresholds, reversal, thresholds_of
from tests.webhooks.sending import add_endpoint
from webhooks.event_types import EventType
from webhooks.wording import sentence

HOUR = timedelta(hours=1)
START = datetime(2026, 3, 1, tzinfo=UTC)
NO_DAY = date(1970, 1, 1)
ROLLING = ("PT2H", "PT5H", "PT24H")
MOVED = datetime(2026, 3, 1, 9, tzinfo=UTC)


@dataclass
class Driver:
    """Billing as its sink calls it: each fold has F before it and after it, and so has one that time alone makes."""

    connection: psycopg.Connection[Any]
    frontier: datetime | None = None

    def bill(self, rows: Sequence[dict[str, Any]], frontier: datetime | None) -> None:
        staged = built(list(rows), DROPS)
        position = max((row["lsn"] for row in rows), default=0) + 1
        previous = self.frontier
        fold_table(self.connection, JOB, staged, DROPS, previous, frontier=frontier, next_position=position)
        self.frontier = frontier

    def advance(self, frontier: datetime | None) -> bool:
        """Whether anything was to be decided."""
        with self.connection.transaction(), self.connection.cursor() as cursor:
            is_due = JOB.is_due(cursor, Fold(self.frontier, frontier, 1))
        if is_due:
            self.bill([], frontier)
        self.frontier = frontier
        return is_due


@pytest.mark.few_in_ci(2)
@pytest.mark.parametrize("seed", range(20))
def test_in_any_cut_and_order_and_by_any_way_of_f_what_is_crossed_is_what_the_oracle_finds(
    seed: int, postgres_url: str
) -> None:
    """Late and negative rows, reversals, F that steps and goes back, limits and plans that change in between."""
    world = _World.of(random.Random(seed))
    expected = world.crossed()
    for cut in range(3):
        with fresh_database(postgres_url) as database:
            world.run(database, random.Random(f"{seed}/{cut}"))
            with psycopg.connect(database) as connection:
                assert crossed(connection) == expected, cut
                assert_versions(connection)


def test_the_worlds_cross_thresholds() -> None:
    assert sum(len(_World.of(random.Random(seed)).crossed()) for seed in range(20)) > 100


def test_usage_leaves_by_time_alone_with_the_hour_in_which_it_was(
    connection: psycopg.Connection[Any], database: str
) -> None:
    """At 12:59 the last 3 hours begin at 10:00, and at 13:00 at 11:00."""
    declare(database, limit("2", account="acme", period="PT3H", model="haiku"))
    driver = Driver(connection)
    driver.bill([at(1, 10, model="haiku"), at(2, 11, model="haiku"), at(3, 12)], START + 12 * HOUR)
    three = ("acme", "PT3H", NO_DAY, "requests", "", "haiku", Decimal(2))
    assert crossed(connection) == {three}
    assert not driver.advance(START + 13 * HOUR - timedelta(microseconds=1)), "within the hour nothing is decided"
    assert driver.advance(START + 13 * HOUR)
    assert crossed(connection) == set()
    assert [(row["version"], row["used"]) for row in changes(connection)] == [(1, 2), (2, 1)]
    assert driver.advance(START + 12 * HOUR), "F goes back"
    assert crossed(connection) == {three}


def test_negative_usage_that_leaves_raises_a_total_by_time_alone(
    connection: psycopg.Connection[Any], database: str
) -> None:
    """Of somebody who has crossed nothing before."""
    declare(database, limit("3", account="*", period="PT2H"))
    driver = Driver(connection)
    rows = [at(1, 10, quantities={Meter.REQUESTS: Decimal(-2)}), at(2, 11, quantities={Meter.REQUESTS: Decimal(3)})]
    driver.bill(rows, START + 11 * HOUR)
    assert changes(connection) == []
    driver.advance(START + 12 * HOUR)
    assert crossed(connection) == {("acme", "PT2H", NO_DAY, "requests", "", "", Decimal(3))}


def test_until_there_is_an_f_nothing_is_decided_and_with_the_first_one_everybody_is(
    connection: psycopg.Connection[Any], database: str
) -> None:
    declare(database, limit("1", account="*", period="PT24H"))
    driver = Driver(connection)
    driver.bill([at(1, 10), at(2, 11, account="bolt")], None)
    assert changes(connection) == []
    assert driver.advance(START + 12 * HOUR)
    assert {place[0] for place in crossed(connection)} == {"acme", "bolt"}


def test_usage_ahead_of_f_counts_at_once_and_usage_before_the_window_changes_nothing(
    connection: psycopg.Connection[Any], database: str
) -> None:
    declare(database, limit("2", account="acme", period="PT2H"))
    driver = Driver(connection)
    driver.bill([at(1, 9), at(2, 9)], START + 12 * HOUR)
    assert changes(connection) == []
    driver.bill([at(3, 12), at(4, 14)], START + 12 * HOUR)
    assert [(row["threshold"], row["used"]) for row in changes(connection)] == [(2, 2)]


def test_a_calendars_limits_and_a_rolling_one_are_apart_and_f_decides_only_what_rolls(
    connection: psycopg.Connection[Any], database: str
) -> None:
    declare(database, limit("1", account="acme", period="P1D"))
    driver = Driver(connection)
    driver.bill([at(1, 10)], START + 10 * HOUR)
    assert not driver.advance(START + 20 * HOUR), "no limit rolls"
    declare(database, limit("1", account="acme", period="PT168H"))
    driver.advance(START + 20 * HOUR)
    assert {place[1] for place in crossed(connection)} == {"P1D", "PT168H"}
    edit(connection, "DELETE FROM catalog.limits WHERE period = 'PT168H'")
    driver.advance(START + 20 * HOUR + timedelta(seconds=1))
    assert {place[1] for place in crossed(connection)} == {"P1D"}


def test_a_webhook_says_which_hours_and_a_sentence_names_no_day(
    connection: psycopg.Connection[Any], database: str
) -> None:
    add_endpoint(database, "https://example.com", [EventType.THRESHOLD_CROSSED])
    declare(database, limit("1", account="acme", period="PT24H"))
    Driver(connection).bill([at(1, 10)], START + 10 * HOUR)
    [event] = rows_of(connection, "SELECT body, type FROM webhook_events")
    data = json.loads(event["body"])["data"]
    assert (data["period"], data["period_start"], data["threshold"], data["value"]) == ("PT24H", "1970-01-01", "1", "1")
    assert sentence(event["type"], data) == "acme has reached 1 of requests in the last 24 hours: 1"


def test_status_and_changes_show_what_was_used_in_the_window_that_billing_decides_by(
    connection: psycopg.Connection[Any], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weir = limits_command(database, monkeypatch)

    declare(database, limit("4", account="acme", period="PT3H", steps=["1"]), limit("9", account="acme", period="P1D"))
    Driver(connection).bill([at(1, 9), at(2, 10), at(3, 12)], START + 12 * HOUR)
    names = ("period", "period_start", "used", "limit", "percent", "crossed")
    before = {row["period"]: [row[name] for name in names] for row in weir("status")}
    assert before["PT3H"] == ["PT3H", None, "0", "4", "0", "1"], "before billing has an F nothing counts"
    progress(database, "billing", START + 12 * HOUR + timedelta(minutes=7))
    after = {row["period"]: [row[name] for name in names] for row in weir("status")}
    assert after["PT3H"] == ["PT3H", "2026-03-01T10:00:00Z", "2", "4", "50", "1"]
    [change] = weir("changes")
    assert (change["period"], change["period_start"], change["used"]) == ("PT3H", "1970-01-01", "2")


def test_a_limit_of_the_last_hours_is_refused_for_a_meter_that_bills_whole_months(database: str) -> None:
    whole = {"unit": "u", "sums": "user_id", "aggregation": "unique", "period": "month", "is_declared": True}
    write(database, "meters", {"meter": "users", **whole})
    with pytest.raises(CannotRun, match=r"limits.0.period is 'PT24H': must be one of P1D, P1M, as users bills"):
        declare(database, {**limit("3", plan="gold", period="PT24H"), "meter": "users"})


@pytest.mark.parametrize("period", ["PT1H", "PT169H", "PT02H", "PT24M", "P7D"])
def test_the_table_refuses_other_hours(connection: psycopg.Connection[Any], period: str) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        edit(
            connection,
            "INSERT INTO catalog.limits (account, meter, period, effective_from, quantity)"
            f" VALUES ('acme', 'requests', '{period}', '2025-01-01Z', 3)",
        )


def at(lsn: int, hour: int, **other: Any) -> dict[str, Any]:
    return used(lsn, event_time=START + hour * HOUR + timedelta(minutes=30), day=START.date(), **other)


Crossed = set[tuple[str, str, date, str, str, str, Decimal]]


@dataclass(frozen=True)
class _World:
    """Rows of usage, limits whose period rolls, and where F is in the end."""

    rows: Sequence[dict[str, Any]]
    limits: Sequence[dict[str, Any]]
    frontier: datetime
    moves: bool

    @staticmethod
    def of(chance: random.Random) -> _World:
        rows: list[dict[str, Any]] = []
        for lsn in range(1, chance.randint(60, 140)):
            if taken_back := reversal(chance, rows, lsn):
                rows.append(taken_back)
                continue
            minutes = chance.choice([0, 1, 30, 59])
            row = used(
                lsn,
                event_time=START + chance.randint(0, 30) * HOUR + timedelta(minutes=minutes),
                delay=chance.choice([timedelta(seconds=1), timedelta(seconds=1), timedelta(hours=2)]),
                account=chance.choice([*ZONES]),
                quantities={meter: Decimal(chance.randint(-1_500, 4_000)) / 1_000 for meter in METERS},
                model=chance.choice(MODELS),
            )
            rows.append({**row, "corrects_lsns": None})
        limits = {}
        for _ in range(chance.randint(6, 16)):
            of = chance.choice([{"account": chance.choice(["*", *ZONES])}, {"plan": chance.choice(PLANS)}])
            what: dict[str, Any] = {"meter": chance.choice(METERS).value, "period": chance.choice(ROLLING)}
            if chance.random() < 0.3:
                what["model"] = chance.choice(MODELS)
            since = chance.choice([LONG_AGO, LONG_AGO + 5 * HOUR])
            row = {**of, **what, "effective_from": since.isoformat(), **any_thresholds(chance)}
            limits[json.dumps([of, what, since.isoformat()])] = row
        minutes = chance.choice([0, 30, 59])
        frontier = START + chance.randint(2, 33) * HOUR + timedelta(minutes=minutes)
        return _World(rows, [*limits.values()], frontier, chance.random() < 0.5)

    def run(self, database: str, chance: random.Random) -> None:
        """Fold the rows in some cut and by some way of F, while the catalog becomes what it is in the end."""
        declare(database)
        others = [{**row, "steps": ["1.5"]} for row in self.limits if chance.random() < 0.3]
        last = chance.sample(self.limits, len(self.limits))
        edits = [others, *(last[place : place + 5] for place in range(0, len(last), 5))]
        with psycopg.connect(database) as connection:
            driver, begin = Driver(connection), 0
            moved_at = chance.choice([0, len(self.rows) // 2, len(self.rows)]) if self.moves else None
            while begin < len(self.rows):
                if edits and chance.random() < 0.3:
                    declare_limits(database, edits.pop(0))
                if moved_at is not None and begin >= moved_at:
                    _move(connection)
                    moved_at = None
                end = min(begin + chance.choice([1, 5, 40, 200]), len(self.rows))
                driver.bill(self.rows[begin:end], self._frontier(driver, chance))
                if chance.random() < 0.5:
                    driver.advance(self._frontier(driver, chance))
                if chance.random() < 0.3:
                    # A driver that starts again reads F with its position.
                    driver = Driver(connection, driver.frontier)
                begin = end
            for limits in edits:
                declare_limits(database, limits)
            if moved_at is not None:
                _move(connection)
            driver.advance(self.frontier)

    def _frontier(self, driver: Driver, chance: random.Random) -> datetime | None:
        """Anywhere: F stays, moves within its hour or by many, and goes back."""
        if chance.random() < 0.3:
            return driver.frontier
        return START + timedelta(minutes=chance.randint(0, 35 * 60))

    def crossed(self) -> Crossed:
        totals: dict[tuple[str, str, str, str], Fraction] = defaultdict(Fraction)
        for row in self.rows:
            is_late = row["received_at"] - row["event_time"] > HOUR
            for meter in METERS:
                if is_late and meter is Meter.INPUT_TOKENS:
                    continue
                quantity = Fraction(row["sign"]) * Fraction(row[meter])
                for period in ROLLING:
                    whole = self.frontier.replace(minute=0, second=0, microsecond=0)
                    if row["event_time"] >= whole - HOUR * (int(period[2:-1]) - 1):
                        for model in ("", row["model"]):
                            totals[row["account"], period, meter.value, model] += quantity
        return {
            (account, period, NO_DAY, meter, "", model, Decimal(step))
            for (account, period, meter, model), total in totals.items()
            for step in self._thresholds(account, period, meter, model, total)
            if 0 < Fraction(step) <= total
        }

    def _thresholds(self, account: str, period: str, meter: str, model: str, total: Fraction) -> Iterator[str]:
        plan = "iron" if self.moves else "gold"

        def counts(row: dict[str, Any]) -> bool:
            return (row["period"], row["meter"], row.get("model", "")) == (period, meter, model)

        return thresholds_of(self.limits, account, plan, total, counts)


def _move(connection: psycopg.Connection[Any]) -> None:
    with connection.transaction():
        connection.execute("UPDATE catalog.accounts SET plan = 'iron', effective_from = %s", [MOVED])
