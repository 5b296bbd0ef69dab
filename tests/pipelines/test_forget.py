"""A person is forgotten while the applications run: no sum changes, an audit finds nothing, and the name is nowhere.

Method: the simulator's applications on real tables and a real database, with users in dimensions, in the members of
meters, in dead letters and in events without a contract. What stood there before is compared with what stands there
after, with the pseudonym in the place of the name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pytest
import structlog
from deltalake.exceptions import CommitFailedError

from jobs.forget.run import Request, Waiting, carry_out, record
from jobs.forget.tables import Person, replace_rows, stretches
from jobs.forget.verify import Canary, search
from jobs.ingestion.erasures import people_of
from jobs.rebuild.run import Known, Rebuild
from jobs.runtime.delta.compaction import compact
from jobs.runtime.delta.table import open_table
from jobs.runtime.errors import Refused
from jobs.streams import Table
from metering.erasure import keys_of
from metering.vocabulary import Disposition, Job
from tests.simulation.applications import JOBS, simulated
from tests.simulation.audits import audit, proof
from tests.simulation.calls import Fault
from tests.simulation.conftest import dropped
from tests.simulation.declared import OTHER_TYPE, SHIPPED, USERS
from tests.simulation.dimensions import Tell
from tests.simulation.simulate import emptied, quick_database
from tests.simulation.steps import ENOUGH, Configure, Pass, Publish, Run, Send, Step
from tests.simulation.world import World

SECRET = "a secret of this test that is long enough"
ACCOUNT, USER = "a0", "u0"
ROUND: list[Step] = [Run(job, ENOUGH, Fault.FREEZE) for job in JOBS]
METERS = {**SHIPPED, **USERS}
BILLS = {
    "usage_windows": "account, window_start, model, meter, price_version, quantity, amount, late_rows, corrected",
    "usage_days": "account, day, model, meter, price_version, dimensions, is_other, quantity, amount, usage_rows",
    "usage_day_dimensions": "account, day, dimensions, first_lsn",
    "usage_months": "account, month, model, meter, price_version, quantity, amount, usage_rows",
    "usage_members": "account, first_day, meter, model, price_version, member, member_rows",
    "stragglers": "usage_lsn, meter, account, decision, quantity, dimensions",
    "corrections": "usage_lsn, meter, account, cause, dimensions",
    "sessions": "account, user_id, session_start, session_end, events, retracted_at IS NULL",
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Usage of two users of each of two accounts, all of it billed."""
    configured = structlog.get_config()
    structlog.configure(processors=[dropped])
    with quick_database(tmp_path / "postgres") as url:
        world = World(tmp_path, emptied(url), 0, 1)
        world.where = world.where.model_copy(update={"erasure_keys": SECRET})
        with simulated(world.kafka, world.clock, world.most_few_rows, queries_rest=False):
            for step in history():
                step.do(world)
            odd_ones(world)
            settled(world)
            yield world
            world.close()
    structlog.configure(**configured)


def history() -> list[Step]:
    steps: list[Step] = [
        *[Configure(job, "meters", METERS) for job in ("ingestion", "joins", "billing")],
        Configure("joins", "dimensions", ("account.plan", "user_id")),
        *[Publish(name, 0, "EUR", 7, -90 * 86_400) for name in ("requests", "input_tokens", "users_of_a_month")],
        *[Tell(number, 0, {}) for number in range(2)],
    ]
    for request in range(8):
        steps += [Send(0, "usage", request // 2 % 2, request, 0, 7), Pass(30, (0,))]
    steps += [Send(0, "request", 0, 20, 0, None), Send(0, "completion", 0, 20, 0, 5), Pass(3_600, (0,)), *ROUND]
    # A straggler, and a session that has to grow at its beginning.
    return [*steps, Send(0, "usage", 0, 30, 3_500, 9), Pass(60, (0,)), *ROUND]


def odd_ones(world: World) -> None:
    """A dead letter, and an event that nothing reads."""
    world.send(0, json.dumps({"subject": ACCOUNT, "user_id": USER}).encode()[:-1])
    world.send(0, world.event(OTHER_TYPE, ACCOUNT, 0, request_id="unread", user_id=USER))


def settled(world: World) -> None:
    for _ in range(3):
        world.clock.go(24 * 3_600)
        world.beat()
        for _ in range(3):
            for step in ROUND:
                step.do(world)


def named(value: Any) -> Any:
    """What must stand there instead: the user of the other account is another person."""
    return json.loads(json.dumps(value).replace('"u0"', '"erased-1"'))


def bills(world: World) -> dict[str, list[Any]]:
    with psycopg.connect(world.database) as connection:
        return {
            table: sorted(
                (
                    named(row) if row.get("account") == ACCOUNT else row
                    for (row,) in connection.execute(
                        f"SELECT to_jsonb(r) FROM (SELECT {columns} FROM {table}) AS r".encode()
                    ).fetchall()
                ),
                key=repr,
            )
            for table, columns in BILLS.items()
        }


def person(world: World) -> Person:
    keys = keys_of(SECRET)
    with psycopg.connect(world.database, autocommit=True) as connection:
        number = record(connection, Request(ACCOUNT, USER, "asked by letter", "dpo"), keys)
    return Person(number, ACCOUNT, USER, keys[0])


def forget(world: World, commits: int | None = None) -> list[Any]:
    """Everything, or so many commits and no more."""
    whom = person(world)
    with psycopg.connect(world.database, autocommit=True) as connection:
        steps = carry_out(str(world.tables), connection, whom)
        return list(steps) if commits is None else [step for step, _ in zip(steps, range(commits), strict=False)]


def places(world: World) -> dict[str, int]:
    with psycopg.connect(world.database, autocommit=True) as connection:
        found = search(str(world.tables), connection, Canary(ACCOUNT, USER))
        return {store.store: store.found for store in found if store.found}


def dispositions(world: World) -> list[tuple[str, Any]]:
    return [(row["disposition"], row["first_lsn"]) for _, row in sorted(world.rows(Table.JOURNAL).items())]


def assert_proved(world: World) -> None:
    found = audit(str(world.tables), world.clock.now())
    assert found is not None
    assert (found.faults, found.appended) == ([], 0)
    assert list(proof(str(world.tables), world.database, world.clock.now())) == []


def test_a_person_is_forgotten_and_no_sum_no_check_and_no_redelivery_changes(world: World) -> None:
    assert_proved(world)
    before, journal = bills(world), world.rows(Table.JOURNAL)
    assert {"usage_days", "usage_members", "sessions", "stragglers"} <= {name for name, rows in before.items() if rows}
    assert len(places(world)) >= 6
    waiting = [step for step in forget(world) if isinstance(step, Waiting)]
    assert [step.application for step in waiting] == ["ingestion"], "it has not committed a batch since"
    assert bills(world) == before
    assert_proved(world)
    settled(world)
    assert [step for step in forget(world) if isinstance(step, Waiting)] == []

    rows = world.rows(Table.JOURNAL)
    kept = ("identity", "content_digest", "disposition", "first_lsn", "topic", "offset", "logged_at", "family")
    assert all(rows[lsn][name] == row[name] for lsn, row in journal.items() for name in kept)
    assert {row["user_id"] for row in rows.values() if row["account"] == ACCOUNT} == {"erased-1", "u1", None}
    assert {row["user_id"] for row in rows.values() if row["account"] == "a1"} >= {"u0", "u1"}
    (letter,) = [row for row in rows.values() if row["disposition"] == Disposition.REJECTED]
    assert (letter["value"], letter["violation"][:20]) == (None, "erased by erasure 1:")

    # All of it once more, and something new: nothing of it is billed twice, nothing has the name.
    for value in list(world.sent):
        world.send(0, value)
    repeated = len(world.rows(Table.JOURNAL))
    settled(world)
    again = [row for row in dispositions(world)[repeated:] if row[0] != Disposition.ACCEPTED]
    assert [kind for kind, _ in again].count(Disposition.CONFLICT) == 0
    # All but the one that has no contract, which is never a repeat.
    assert [kind for kind, _ in again].count(Disposition.DUPLICATE) == 11
    for step in (Send(0, "usage", 0, 40, 0, 11), Send(0, "usage", 1, 40, 0, 11)):
        step.do(world)
    settled(world)
    assert_proved(world)
    new = [row for row in world.rows(Table.JOURNAL).values() if row["request_id"] == "r40"]
    assert {(row["account"], row["user_id"]) for row in new} == {(ACCOUNT, "erased-1"), ("a1", USER)}
    assert {place for place in places(world) if "replaced" not in place} == set()
    assert {place for place in places(world) if "replaced" in place} != set()
    for table in Table:
        compact(str(world.tables), table, before=world.clock.now().date(), keep=timedelta(0))
    assert places(world) == {}
    with psycopg.connect(world.database) as connection:
        kept_rows = connection.execute("SELECT erasure, account, reason, asked_by, erased_at IS NULL FROM erasures")
        assert kept_rows.fetchall() == [(1, ACCOUNT, "asked by letter", "dpo", False)]
        activity = connection.execute("SELECT document FROM activity_log WHERE document LIKE '%forget%'").fetchall()
        assert len(activity) == 1


def test_who_goes_on_while_being_forgotten_is_counted_once_and_has_one_session(world: World) -> None:
    """What joins remembers still has the name, and new events at the same instant have the pseudonym already."""
    before = users_of_the_month(world)
    one_more = 1 + sum(quantity for _, quantity in before)
    with psycopg.connect(world.database) as connection:
        connection.execute(
            "INSERT INTO catalog.limits (account, meter, period, quantity, effective_from)"
            " VALUES (%s, 'users_of_a_month', 'P1M', %s, '2025-01-01Z')",
            [ACCOUNT, one_more],
        )
    for step in (Send(0, "request", 0, 50, 0, None), *ROUND):
        step.do(world)
    person(world)
    for step in (Send(0, "usage", 0, 52, 0, 7), *ROUND):
        step.do(world)
    assert forget(world)
    assert users_of_the_month(world) == before
    for step in (Send(0, "completion", 0, 50, 0, 5), *ROUND):
        step.do(world)
    assert users_of_the_month(world) != before, "billing has just heard of the one that joins remembered"
    settled(world)
    assert [step for step in forget(world) if isinstance(step, Waiting)] == []
    assert users_of_the_month(world) == before
    assert_proved(world)
    settled(world)
    with psycopg.connect(world.database) as connection:
        found = connection.execute("SELECT threshold, is_crossed FROM threshold_changes ORDER BY version").fetchall()
    assert found[:1] == [(one_more, True)]
    assert found[-1:] == [(one_more, False)], "nobody has one user more"


@pytest.mark.parametrize("job", [Job.BILLING, Job.SESSIONIZATION])
def test_a_rebuild_that_began_before_the_name_was_gone_does_not_bring_it_back(world: World, job: Job) -> None:
    before = bills(world)

    class Begun(Rebuild):
        """It has looked at the table, and somebody is forgotten before it takes the application's place."""

        def known(self) -> Known:
            found = super().known()
            forget(world)
            return found

    Begun(job, str(world.tables), world.database).run()
    assert [place for place in places(world) if place.startswith("Postgres")] == []
    assert bills(world) == before


def users_of_the_month(world: World) -> Any:
    with psycopg.connect(world.database) as connection:
        return connection.execute(
            "SELECT model, quantity FROM usage_months WHERE meter = 'users_of_a_month' AND account = %s ORDER BY 1",
            [ACCOUNT],
        ).fetchall()


@pytest.mark.long
def test_who_is_killed_after_any_commit_goes_on_with_the_next_run(world: World) -> None:
    before = bills(world)
    commits = 0
    while True:
        done = forget(world, commits)
        if len(done) < commits or (done and isinstance(done[-1], Waiting)):
            break
        commits += 1
    assert commits >= 3, "a commit for each day of each table, and one in the database"
    assert bills(world) == before
    assert_proved(world)
    assert {place for place in places(world) if "replaced" not in place} == set()


def test_rows_that_go_meanwhile_do_not_come_back(world: World) -> None:
    """As by `weir retain`, between what was read and the commit; rows that come meanwhile stay."""
    stale, other = (open_table(str(world.tables), Table.JOURNAL) for _ in range(2))
    assert stale is not None
    assert other is not None
    day = min(part["log_date"] for part in stale.partitions())
    first = stretches(stale, date.fromisoformat(day))[0]
    new = pl.DataFrame({"lsn": [first[0]], "user_id": ["erased-9"]})
    other.delete(f"log_date = DATE '{day}' AND lsn = {first[1]}")
    with pytest.raises(CommitFailedError):
        replace_rows(stale, Table.JOURNAL, date.fromisoformat(day), first, new)
    before = world.rows(Table.JOURNAL)
    assert first[1] not in before
    assert "erased-9" not in {row["user_id"] for row in before.values()}

    again = open_table(str(world.tables), Table.JOURNAL)
    assert again is not None
    Send(0, "usage", 0, 60, 0, 3).do(world)
    settled(world)
    stretch = stretches(again, date.fromisoformat(day))[0]
    replace_rows(again, Table.JOURNAL, date.fromisoformat(day), stretch, new)
    after = world.rows(Table.JOURNAL)
    assert after.keys() > before.keys()
    assert {lsn: row for lsn, row in after.items() if lsn in before} == {
        lsn: {**row, "user_id": "erased-9"} if lsn == first[0] else row for lsn, row in before.items()
    }


def test_ingestion_refuses_to_go_on_without_the_key(world: World) -> None:
    forget(world)
    with psycopg.connect(world.database) as connection:
        assert people_of(connection, f"{'n' * 40},{SECRET}").accounts == [ACCOUNT]
        with pytest.raises(Refused, match="WEIR_ERASURE_KEYS does not have") as refused:
            people_of(connection, "n" * 40)
    assert "nnnn" not in str(refused.value)


def test_ingestion_goes_on_where_the_key_is_said_to_be_lost_and_who_is_forgotten_again_is_recognised(
    world: World,
) -> None:
    forget(world)
    new = "n" * 40
    with (
        psycopg.connect(world.database) as connection,
        pytest.raises(Refused, match=r"lost:[0-9a-f]{16} among them") as refused,
    ):
        people_of(connection, new)
    said = re.search("lost:[0-9a-f]{16}", str(refused.value))
    assert said is not None
    world.where = world.where.model_copy(update={"erasure_keys": f"{new},{said.group()}"})
    world.run("ingestion", 0, Fault.CRASH)
    before = len(world.rows(Table.JOURNAL))
    Send(0, "usage", 0, 40, 0, 11).do(world)
    settled(world)
    late = [row for lsn, row in world.rows(Table.JOURNAL).items() if lsn > before and row["request_id"] == "r40"]
    assert [row["user_id"] for row in late] == [USER], "nobody can recognise the person"
    with psycopg.connect(world.database, autocommit=True) as connection:
        keys = keys_of(world.where.erasure_keys)
        number = record(connection, Request(ACCOUNT, USER, "asked by letter", "dpo"), keys)
        assert number == 2
        list(carry_out(str(world.tables), connection, Person(number, ACCOUNT, USER, keys[0])))
    Send(0, "usage", 0, 42, 0, 11).do(world)
    settled(world)
    assert_proved(world)
    kept = {row["request_id"]: row["user_id"] for row in world.rows(Table.JOURNAL).values()}
    assert (kept["r40"], kept["r42"]) == ("erased-2", "erased-2")
