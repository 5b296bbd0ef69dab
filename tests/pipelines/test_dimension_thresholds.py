"""Limits of one value of a dimension: what is crossed in the end, against an oracle over all rows and the catalog.

`differential`: the oracle adds up the rows that the test made, by the values that they name; it shares no code with
billing's statements.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from deployment.errors import CannotRun
from jobs.audit.bills.roll_ups import unequal_roll_ups
from jobs.billing import thresholds
from jobs.billing.days import add_days
from jobs.billing.fold import fold
from jobs.billing.pipeline import JOB
from jobs.forget.database import change
from jobs.forget.tables import Person
from jobs.forget.verify import Canary, search
from jobs.queries.limits import limits_in_use
from jobs.rebuild.billing import PLAN
from jobs.runtime.effective_rules import EffectiveRules
from jobs.runtime.job import Fold
from jobs.runtime.postgres.sink import stage
from metering.erasure import keys_of
from metering.meters import Meter
from tests.conftest import fresh_database
from tests.database_rows import progress, write
from tests.pipelines.billing import NOON, bill, built
from tests.pipelines.folding import rows_of
from tests.pipelines.test_thresholds import (
    DROPS,
    LONG_AGO,
    MARCH,
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
    is_due,
    limit,
    limits_command,
    rows_in,
    used,
)
from tests.pipelines.threshold_oracle import any_thresholds, reversal, thresholds_of
from tests.webhooks.sending import add_endpoint
from webhooks.event_types import EventType
from webhooks.wording import sentence

DIMENSIONS = ("team", "account.tags.tier", "user_id")
VALUES = ("search", "a ]/? %é", "x")
SEARCH = {"team": "search"}
KEY = ("account", "period", "first_day", "meter", "model", "dimension", "dimension_value", "threshold")
Place = tuple[str, str, date, str, str, str, str, Decimal]
"""Account, period, first day, meter, model, dimension, value and threshold."""


@pytest.mark.few_in_ci(2)
@pytest.mark.parametrize("seed", range(20))
def test_in_any_cut_and_order_what_is_crossed_is_what_the_oracle_finds(seed: int, postgres_url: str) -> None:
    """Late and negative rows, reversals, drivers that are killed, limits that come, change and go in between."""
    world = _World.of(random.Random(seed))
    expected = world.crossed()
    for cut in range(2):
        with fresh_database(postgres_url) as database:
            world.run(database, random.Random(f"{seed}/{cut}"))
            with psycopg.connect(database) as connection:
                assert crossed(connection, KEY) == expected, cut
                assert_summed(connection)


def test_the_worlds_cross_thresholds() -> None:
    assert sum(len(_World.of(random.Random(seed)).crossed()) for seed in range(20)) > 100


def test_a_limit_that_is_declared_in_mid_month_counts_the_usage_that_there_is(
    connection: psycopg.Connection[Any], database: str
) -> None:
    declare(database)
    of_team = [used(lsn, dimensions=tags(team="search")) for lsn in range(1, 4)]
    bill(connection, [*of_team, used(4, dimensions=tags(team="x")), used(5)])
    with_dimensions(database)
    declare(database, limit("3", account="acme", dimension=SEARCH), limit("2", plan="gold", dimension={"team": "x"}))
    assert is_due(connection)
    bill(connection, [])
    three = ("acme", "P1M", MARCH, "requests", "", "team", "search", Decimal(3))
    assert crossed(connection, KEY) == {three}
    bill(connection, [used(6, dimensions=tags(team="search"), sign=-1, cause="reversed", corrects_lsns=[3])])
    assert crossed(connection, KEY) == set()
    assert [(row["version"], row["used"]) for row in changes(connection)] == [(1, 3), (2, 2)]


def test_the_accounts_own_limit_of_a_value_replaces_that_of_its_plan_and_no_limit_of_another_value_or_of_all(
    connection: psycopg.Connection[Any], database: str
) -> None:
    with_dimensions(database)
    declare(
        database,
        limit("1", account="*", dimension=SEARCH),
        limit("2", plan="gold", dimension=SEARCH),
        limit("3", account="acme", dimension=SEARCH),
        limit("4", account="acme"),
        limit("1", account="acme", dimension={"team": "x"}, model="haiku", period="P1D"),
    )
    of = {"dimensions": tags(team="search")}
    bill(connection, [used(lsn, account=name, **of) for lsn, name in enumerate(["acme", "acme", "bolt"], 1)])
    assert crossed(connection, KEY) == set()
    rows = [used(4, **of), used(5, account="bolt", **of), used(6, dimensions=tags(team="x"), model="haiku")]
    bill(connection, rows)
    named = ("requests", "", "team", "search")
    assert crossed(connection, KEY) == {
        ("acme", "P1M", MARCH, *named, Decimal(3)),
        ("bolt", "P1M", MARCH, *named, Decimal(2)),
        ("acme", "P1D", NOON.date(), "requests", "haiku", "team", "x", Decimal(1)),
        ("acme", "P1M", MARCH, "requests", "", "", "", Decimal(4)),
    }


def test_a_limit_that_is_declared_while_a_batch_is_folded_is_decided_by_the_next_one(
    connection: psycopg.Connection[Any], database: str
) -> None:
    """The batch has seen no such limit when its days were written: its sums are read when all of it is committed."""
    with_dimensions(database)
    declare(database, limit("1", account="bolt"))
    with folded(connection, [used(lsn, dimensions=tags(team="search")) for lsn in (1, 2)]):
        declare(database, limit("2", account="acme", dimension=SEARCH))
    assert crossed(connection, KEY) == set()
    assert is_due(connection)
    bill(connection, [])
    assert crossed(connection, KEY) == {("acme", "P1M", MARCH, "requests", "", "team", "search", Decimal(2))}
    assert not is_due(connection)


def test_sums_go_with_the_last_limit_that_names_them_and_come_back_with_it(
    connection: psycopg.Connection[Any], database: str
) -> None:
    with_dimensions(database)
    declare(database, limit("1", account="acme", dimension=SEARCH))
    bill(connection, [used(1, dimensions=tags(team="search"))])
    named = "SELECT meter, dimension, value FROM limited_dimensions ORDER BY value"
    assert [row["value"] for row in rows_of(connection, named)] == ["", "search"]
    edit(connection, "DELETE FROM catalog.limits")
    bill(connection, [used(2, dimensions=tags(team="search"))])
    assert rows_of(connection, named) == rows_of(connection, "SELECT * FROM usage_dimensions") == []
    assert crossed(connection, KEY) == set()
    declare(database, limit("2", account="acme", dimension=SEARCH))
    bill(connection, [])
    assert {place[-1] for place in crossed(connection, KEY)} == {Decimal(2)}
    assert_summed(connection)


def test_sums_go_also_when_the_last_limit_is_removed_while_a_batch_is_folded(
    connection: psycopg.Connection[Any], database: str
) -> None:
    """By who began before the batch: it decides what it takes from `thresholds_due`, so nothing is due afterwards."""
    with_dimensions(database)
    declare(database, limit("1", account="acme", dimension=SEARCH))
    bill(connection, [used(1, dimensions=tags(team="search"))])
    with psycopg.connect(database) as other:
        other.execute("DELETE FROM catalog.limits")
        with folded(connection, [used(2, dimensions=tags(team="search"))]):
            other.commit()
    assert crossed(connection, KEY) == set()
    assert not is_due(connection)
    bill(connection, [used(3, dimensions=tags(team="search"))])
    left = "SELECT value FROM limited_dimensions UNION ALL SELECT value FROM usage_dimensions"
    assert rows_of(connection, left) == []
    declare(database, limit("3", account="acme", dimension=SEARCH))
    bill(connection, [])
    assert {place[-1] for place in crossed(connection, KEY)} == {Decimal(3)}
    assert_summed(connection)


CHANGES = {
    "a value that nobody names": 'UPDATE usage_days SET dimensions = dimensions || \'{"team": "unseen"}\''
    " WHERE dimensions ->> 'team' = 'search'",
    "another value": 'UPDATE usage_days SET dimensions = dimensions || \'{"team": "search"}\''
    " WHERE dimensions ->> 'team' = 'x'",
    "a quantity": "UPDATE usage_days SET quantity = quantity + 1.000000000001 WHERE meter = 'requests'",
    "another day": "UPDATE usage_days SET day = day + 40 WHERE model = 'sonnet'",
    "another account": "UPDATE usage_days SET account = 'initech' WHERE account = 'acme' AND model = 'haiku'",
    "no value": "UPDATE usage_days SET dimensions = NULL, is_other = true"
    " WHERE ctid = (SELECT min(ctid) FROM usage_days WHERE dimensions ->> 'team' = 'search')",
    "nothing at all": "UPDATE usage_days SET quantity = 7 WHERE false",
    "some rows": "DELETE FROM usage_days WHERE model = 'sonnet'",
    "all rows": "TRUNCATE usage_days",
}


def test_the_sums_follow_whatever_else_writes_days(connection: psycopg.Connection[Any], database: str) -> None:
    world = _World.of(random.Random(3))
    with_dimensions(database)
    declare(database, *(limit("1", account="*", dimension={"team": value}) for value in VALUES))
    bill(connection, list(world.rows), DROPS)
    for name, statement in CHANGES.items():
        edit(connection, statement)
        assert_summed(connection, name)


def test_a_rebuild_sums_the_values_again_at_its_end(connection: psycopg.Connection[Any], database: str) -> None:
    """By the plan of `weir rebuild`, whose rows of usage this test gives."""
    rows = list(_World.of(random.Random(4)).rows)
    with_dimensions(database)
    declare(database, *(limit("1", account="*", dimension={"team": value}) for value in VALUES))
    bill(connection, rows, DROPS)
    before, decided = sums(connection), crossed(connection, KEY)
    assert before
    with connection.transaction(), connection.cursor() as cursor:
        for statement in PLAN.keeping:
            cursor.execute(statement)
        for table in PLAN.emptied:
            cursor.execute(f"DELETE FROM {table}")
        stage(cursor, JOB.staged, built(rows, DROPS))
        PLAN.job.fold(cursor, DROPS, Fold(None, None, 999, rules=(EffectiveRules(1, DROPS.deciding),)))
        PLAN.ending(cursor, DROPS, 999, 1)
    names = sorted(map(str, before))
    assert sorted(map(str, sums(connection))) == names
    assert_summed(connection)
    bill(connection, [])
    assert crossed(connection, KEY) == decided


def test_the_audit_names_a_sum_of_a_value_that_is_wrong_or_lost(
    connection: psycopg.Connection[Any], database: str
) -> None:
    with_dimensions(database)
    declare(database, limit("9", account="acme", dimension=SEARCH))
    bill(connection, [used(1, dimensions=tags(team="search"))])
    one = "period = 'P1M' AND value = 'search'"
    place = "P1M from 2026-03-01, requests of acme, sonnet, of team search"
    for fault, found in (
        (f"UPDATE usage_dimensions SET quantity = quantity + 0.000001 WHERE {one}", "1.000001"),
        (f"DELETE FROM usage_dimensions WHERE {one}", "0"),
    ):
        with connection.transaction(force_rollback=True):
            connection.execute(fault.encode())
            wrong = unequal_roll_ups(connection, None, None)
            assert wrong.found == 1
            assert wrong.first == f"{place}: {found} in usage_dimensions instead of 1 as in usage_days"
            assert unequal_roll_ups(connection, MARCH, MARCH).found == 1
            assert unequal_roll_ups(connection, date(2026, 4, 1), None).found == 0


def test_usage_of_combinations_beyond_the_first_of_a_day_is_in_no_value_and_the_status_says_how_much_it_is(
    connection: psycopg.Connection[Any], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.billing.fold.add_days", lambda cursor, position: add_days(cursor, position, 2))
    with_dimensions(database)
    declare(database, limit("9", account="acme", dimension=SEARCH), limit("9", account="acme", dimension={"team": "z"}))
    of = [used(lsn, dimensions=tags(team="search", user_id=f"u{lsn}")) for lsn in range(1, 6)]
    bill(connection, of)
    reached = {row["value"]: row["quantity"] for row in sums(connection) if row["period"] == "P1M"}
    assert reached == {"search": 2, "": 3}
    with psycopg.connect(database, row_factory=dict_row) as reader:
        uses = list(limits_in_use(reader, ["acme"], None, NOON))
    assert [(use.dimension_value, use.used, use.other) for use in uses] == [
        ("search", Decimal(2), Decimal(3)),
        ("z", Decimal(0), Decimal(3)),
    ]


def test_until_billing_has_summed_a_new_limit_the_status_adds_up_days(
    connection: psycopg.Connection[Any], database: str
) -> None:
    with_dimensions(database)
    declare(database)
    days = [timedelta(0), timedelta(1), timedelta(40)]
    rows = [used(n, day=NOON.date() + day, dimensions=tags(team="search")) for n, day in enumerate(days, 1)]
    bill(connection, [*rows, used(9, dimensions=tags(team="x")), used(10)])
    declare(
        database,
        limit("9", account="acme", dimension=SEARCH),
        limit("9", account="acme", dimension=SEARCH, period="P1D", model="sonnet"),
        limit("9", account="acme", period="P1D"),
    )

    def status() -> list[tuple[Any, ...]]:
        with psycopg.connect(database, row_factory=dict_row) as reader:
            return [
                (use.period, use.model, use.dimension_value, use.used)
                for use in limits_in_use(reader, ["acme"], None, NOON)
            ]

    before = status()
    assert before == [("P1D", "", "", 3), ("P1M", "", "search", 2), ("P1D", "sonnet", "search", 1)]
    bill(connection, [])
    assert status() == before


def test_the_commands_and_webhooks_name_the_value(
    connection: psycopg.Connection[Any], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weir = limits_command(database, monkeypatch)

    add_endpoint(database, "https://example.com", [EventType.THRESHOLD_CROSSED])
    with_dimensions(database)
    today = datetime.now(UTC).date()
    declare(database, limit("4", account="acme", dimension=SEARCH, steps=["1"]), limit("1", account="acme"))
    bill(connection, [used(1, dimensions=tags(team="search"), day=today)])
    of = {"dimension": "team", "dimension_value": "search"}
    none = {"dimension": None, "dimension_value": None}
    listed = {row["quantity"]: row for row in weir("list")}
    assert listed["4"].items() >= of.items()
    assert listed["1"].items() >= none.items()
    [plain, of_team] = weir("status")
    assert plain.items() >= {**none, "used": "1", "crossed": "1", "other": None}.items()
    assert of_team.items() >= {**of, "used": "1", "limit": "4", "percent": "25", "crossed": "1"}.items()
    assert [row["dimension_value"] for row in weir("changes")] == [None, "search"]
    events = rows_of(connection, "SELECT type, body FROM webhook_events ORDER BY number")
    [without, data] = [json.loads(event["body"])["data"] for event in events]
    assert without.items() >= none.items()
    assert data.items() >= {**of, "threshold": "1", "value": "1"}.items()
    words = f"acme has reached 1 of requests of team search in its month from {today.replace(day=1)}: 1"
    assert sentence(events[1]["type"], data) == words


def test_a_person_who_is_forgotten_leaves_no_name_and_no_sum_and_what_their_limit_had_crossed_is_retracted(
    connection: psycopg.Connection[Any], database: str, tmp_path: Path
) -> None:
    add_endpoint(database, "https://example.com", [EventType.THRESHOLD_CROSSED])
    with_dimensions(database)
    limits = [limit("2", account="*", dimension={"user_id": name}) for name in ("ada", "erased-1")]
    declare(database, *limits, limit("1", account="*", dimension=SEARCH))
    of_ada = tags(team="search", user_id="ada")
    rows = [used(1, dimensions=of_ada), used(2, dimensions=of_ada), used(3, account="bolt", dimensions=of_ada)]
    bill(connection, rows)
    bill(connection, [used(4, dimensions=tags(team="search", user_id="erased-1"))])
    two = ("acme", "P1M", MARCH, "requests", "", "user_id", "ada", Decimal(2))
    assert two in crossed(connection, KEY)
    with psycopg.connect(database, autocommit=True) as eraser:
        [key] = keys_of("a secret of this test that is long enough")
        list(change(eraser, Person(1, "acme", "ada", key)))
    assert_summed(connection)
    assert is_due(connection)
    bill(connection, [])
    named = ("requests", "", "user_id", "erased-1")
    assert {place for place in crossed(connection, KEY) if place[5] == "user_id"} == {
        ("acme", "P1M", MARCH, *named, Decimal(2))
    }, "the limit of the pseudonym, which has all that they used"
    theirs = "FROM {} WHERE account = 'acme' AND {} = 'ada'"
    for table, column in (("usage_dimensions", "value"), ("threshold_changes", "dimension_value")):
        assert rows_of(connection, f"SELECT 1 AS one {theirs.format(table, column)}") == []
    assert {row["quantity"] for row in sums(connection) if row["account"] == "bolt" and row["value"] == "ada"} == {1}
    with psycopg.connect(database) as reader:
        left = {store.where: store.note for store in search(str(tmp_path), reader, Canary("acme", "ada"))}
    for table in ("catalog.limits", "weir.limited_dimensions", "weir.webhook_events"):
        assert left[table], "it says what becomes of it"


def test_a_meter_that_bills_whole_periods_and_a_dimension_that_nobody_configured_are_refused(database: str) -> None:
    whole = {"unit": "u", "sums": "user_id", "aggregation": "unique", "period": "month", "is_declared": True}
    write(database, "meters", {"meter": "users", **whole})
    with pytest.raises(CannotRun, match=r"limits.0.dimension names team: must be one of dimensions in the config"):
        declare(database, limit("3", plan="gold", dimension=SEARCH))
    with_dimensions(database)
    with pytest.raises(CannotRun, match=r"limits.0.dimension is of users: must be left out, as users bills a day or"):
        declare(database, {**limit("3", plan="gold", dimension=SEARCH), "meter": "users"})
    declare(database, limit("3", plan="gold", dimension=SEARCH))
    with_dimensions(database, "user_id")
    declare(database, limit(None, plan="gold", dimension=SEARCH))


@pytest.mark.parametrize(
    ("columns", "values"),
    [
        ("meter, period, dimension, dimension_value, quantity", "'requests', 'PT24H', 'team', 'x', 1"),
        ("currency, period, dimension, dimension_value, amount", "'EUR', 'P1M', 'team', 'x', 1"),
        ("meter, period, dimension, quantity", "'requests', 'P1M', 'team', 1"),
        ("meter, period, dimension_value, quantity", "'requests', 'P1M', 'x', 1"),
    ],
)
def test_the_table_refuses_hours_and_money_of_a_dimension(
    connection: psycopg.Connection[Any], columns: str, values: str
) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        edit(connection, f"INSERT INTO catalog.limits (effective_from, {columns}) VALUES ('2025-01-01Z', {values})")


def tags(**values: str) -> str:
    return json.dumps(values)


def with_dimensions(database: str, *names: str) -> None:
    """Have billing configured with these dimensions (none: DIMENSIONS)."""
    if not rows_in(database, "SELECT 1 AS one FROM jobs WHERE job = 'billing'"):
        progress(database, "billing", None)
    with psycopg.connect(database) as connection:
        config = json.dumps({"dimensions": list(names or DIMENSIONS)})
        connection.execute("UPDATE jobs SET config = %s WHERE job = 'billing'", [config])


@contextmanager
def folded(connection: psycopg.Connection[Any], rows: Sequence[dict[str, Any]]) -> Iterator[None]:
    """Bill `rows`, while the block is run between what is noted before the fold and the fold."""
    around = Fold(None, None, 3, is_whole=True, rules=(EffectiveRules(1, DROPS.deciding),))
    with connection.transaction(), connection.cursor() as cursor:
        stage(cursor, JOB.staged, built(list(rows), DROPS))
        assert thresholds.note_members(cursor)
        yield
        fold(cursor, DROPS, around)
        thresholds.decide_thresholds(cursor, around)


def sums(connection: psycopg.Connection[Any]) -> list[dict[str, Any]]:
    return rows_of(connection, "SELECT * FROM usage_dimensions WHERE quantity <> 0")


def assert_summed(connection: psycopg.Connection[Any], after: str = "") -> None:
    """What is stored is what the days that there are add up to, by the values that limits name."""
    named = {
        (row["meter"], row["dimension"], row["dimension_value"])
        for row in rows_of(connection, "SELECT * FROM catalog.limits")
        if row["dimension"]
    }
    must: dict[tuple[Any, ...], Fraction] = defaultdict(Fraction)
    for row in rows_of(connection, "SELECT * FROM usage_days"):
        values = [("", "")] if row["is_other"] else (row["dimensions"] or {}).items()
        for dimension, value in values:
            if (row["meter"], dimension, value) in named or (
                not dimension and row["meter"] in {meter for meter, *_ in named}
            ):
                for period, first in (("P1D", row["day"]), ("P1M", row["day"].replace(day=1))):
                    place = (row["account"], first, period, row["meter"], dimension, value, row["model"])
                    must[place] += Fraction(row["quantity"])
    names = ("account", "first_day", "period", "meter", "dimension", "value", "model")
    stored = {tuple(row[name] for name in names): Fraction(row["quantity"]) for row in sums(connection)}
    assert stored == {place: total for place, total in must.items() if total}, after
    with connection.transaction():
        assert unequal_roll_ups(connection, None, None).found == 0, after


@dataclass(frozen=True)
class _World:
    """Rows of usage, and limits of values of their dimensions."""

    rows: Sequence[dict[str, Any]]
    limits: Sequence[dict[str, Any]]

    @staticmethod
    def of(chance: random.Random) -> _World:
        rows: list[dict[str, Any]] = []
        for lsn in range(1, chance.randint(80, 180)):
            if taken_back := reversal(chance, rows, lsn):
                rows.append(taken_back)
                continue
            named = {name: chance.choice(VALUES) for name in DIMENSIONS if chance.random() < 0.7}
            row = used(
                lsn,
                delay=chance.choice([timedelta(seconds=1), timedelta(seconds=1), timedelta(hours=2)]),
                account=chance.choice([*ZONES]),
                day=chance.choice([MARCH, date(2026, 4, 1)]) + timedelta(days=chance.choice([0, 0, 1, 29])),
                quantities={meter: Decimal(chance.randint(-1_500, 4_000)) / 1_000 for meter in METERS},
                model=chance.choice(MODELS),
                dimensions=json.dumps(named) if named else None,
            )
            rows.append({**row, "corrects_lsns": None})
        limits = {}
        for _ in range(chance.randint(12, 30)):
            of_whom = chance.choice([{"account": chance.choice(["*", *ZONES])}, {"plan": chance.choice(PLANS)}])
            what: dict[str, Any] = {"meter": chance.choice(METERS).value, "period": chance.choice(["P1D", "P1M"])}
            if chance.random() < 0.9:
                what["dimension"] = {chance.choice(DIMENSIONS): chance.choice(VALUES)}
            if chance.random() < 0.2:
                what["model"] = chance.choice(MODELS)
            since = chance.choice([LONG_AGO, LONG_AGO + timedelta(hours=5)])
            row = {**of_whom, **what, "effective_from": since.isoformat(), **any_thresholds(chance)}
            limits[json.dumps([of_whom, what, since.isoformat()])] = row
        return _World(rows, [*limits.values()])

    def run(self, database: str, chance: random.Random) -> None:
        """Fold the rows in some cut, while the catalog becomes what it is in the end."""
        with_dimensions(database)
        declare(database)
        others = [{**row, "steps": ["1.5"]} for row in self.limits if chance.random() < 0.3]
        gone = {"account": "acme", "meter": "requests", "period": "P1M", "dimension": {"team": "gone"}, "quantity": "1"}
        last = chance.sample(self.limits, len(self.limits))
        edits = [
            [*others, {**gone, "effective_from": LONG_AGO.isoformat()}],
            *(last[place : place + 7] for place in range(0, len(last), 7)),
        ]
        with psycopg.connect(database) as connection:
            begin = 0
            while begin < len(self.rows):
                if edits and chance.random() < 0.3:
                    declare_limits(database, edits.pop(0))
                if chance.random() < 0.2:
                    edit(connection, "DELETE FROM catalog.limits WHERE dimension_value = 'gone'")
                rows = list(self.rows[begin : begin + chance.choice([1, 5, 40, 200])])
                if chance.random() < 0.2:
                    # The driver is killed before it commits, and another one folds the same rows or others.
                    with connection.transaction(force_rollback=True):
                        bill(connection, rows, DROPS)
                    rows = rows[: chance.randint(1, len(rows))]
                bill(connection, rows, DROPS)
                begin += len(rows)
            for limits in edits:
                declare_limits(database, limits)
            edit(connection, "DELETE FROM catalog.limits WHERE dimension_value = 'gone'")
            if is_due(connection):
                bill(connection, [], DROPS)
            assert not is_due(connection)
            assert_versions(connection, KEY)

    def crossed(self) -> set[Place]:
        totals: dict[tuple[str, str, date, str, str, str, str], Fraction] = defaultdict(Fraction)
        for row in self.rows:
            is_late = row["received_at"] - row["event_time"] > timedelta(hours=1)
            values = [("", ""), *json.loads(row["dimensions"] or "{}").items()]
            for meter in METERS:
                if is_late and meter is Meter.INPUT_TOKENS:
                    continue
                for period, first in (("P1D", row["day"]), ("P1M", row["day"].replace(day=1))):
                    for model in ("", row["model"]):
                        for value in values:
                            place = (row["account"], period, first, meter.value, model, *value)
                            totals[place] += Fraction(row["sign"]) * Fraction(row[meter])
        return {
            (*place, Decimal(step))
            for place, total in totals.items()
            for step in self._thresholds(place, total)
            if 0 < Fraction(step) <= total
        }

    def _thresholds(self, place: tuple[Any, ...], total: Fraction) -> Iterator[str]:
        account, period, _, meter, model, dimension, value = place

        def counts(row: dict[str, Any]) -> bool:
            of = (row["period"], row["meter"], row.get("model", ""), row.get("dimension", {"": ""}))
            return of == (period, meter, model, {dimension: value})

        return thresholds_of(self.limits, account, "gold", total, counts)
