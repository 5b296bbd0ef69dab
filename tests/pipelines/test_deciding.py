"""What `weir stragglers approve` and `reject` may decide, and that it is told as it was stored, once."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
import typer
from typer.testing import CliRunner

from catalog.change import compact_json, envelope
from catalog.decisions import Said, Waiting, decide
from catalog.outbox import pending
from cli.deciding import Asked, asked_of, said_of, to_decide
from cli.main import app
from cli.reading import read_only
from cli.stragglers import StragglerQuery, straggler_rows
from deployment.errors import CannotRun
from jobs.runtime.catalog_changes import change_problem, parse_change
from jobs.streams import CatalogTopic
from metering.words import Decision
from tests.database_rows import write

NOW = datetime.now(UTC)
LATER = NOW + timedelta(days=1)
APPROVED = Said(Decision.APPROVE, "as agreed", "ann")
ANY = Asked(None, None, None)


def straggler(lsn: int, decision: str = "hold", **other: Any) -> dict[str, Any]:
    times = {"window_start": NOW, "event_time": NOW, "received_at": NOW, "late_seconds": 400}
    row = {"usage_lsn": lsn, "meter": "requests", "account": "a", "request_id": f"r{lsn}", "quantity": 1}
    waits = {"hold_until": LATER, "hold_expires": "drop", "settled": 0} if decision == "hold" else {}
    return {**row, **times, **waits, "decision": decision, **other}


def found(database: str, asked: Asked, decision: Decision = Decision.APPROVE) -> tuple[list[int], list[int]]:
    with read_only(database) as connection:
        now, before = to_decide(connection, asked, decision)
    return [one.usage_lsn for one in now], [one.usage_lsn for one in before]


def of(*lsns: int, **other: Any) -> Asked:
    return Asked(lsns, other.get("meters"), other.get("accounts"))


def test_a_decision_is_told_as_prices_are_and_ingestion_takes_it(database: str) -> None:
    write(database, "stragglers", straggler(7))
    assert decide(database, [Waiting(7, "requests", "a", "r7")], APPROVED) == [Waiting(7, "requests", "a", "r7")]
    [(_, change)] = pending(database)
    key, value = compact_json(change.key).encode(), compact_json(envelope(change)).encode()
    assert (change.topic, json.loads(key)) == (CatalogTopic.DECISIONS, {"usage_lsn": 7, "meter": "requests"})
    assert change_problem(change.topic, key, value) is None
    assert parse_change(change.topic, value, 3) == {
        "usage_lsn": 7,
        "meter": "requests",
        "account": "a",
        "request_id": "r7",
        "lsn": 3,
        "deleted": False,
        "decision": "approve",
        "reason": "as agreed",
        "decided_by": "ann",
    }


def test_the_first_decision_is_stored_and_no_other_is_told(database: str) -> None:
    one, other = Waiting(7, "requests", "a", "r7"), Waiting(8, "requests", "a", "r8")
    decide(database, [one], APPROVED)
    assert decide(database, [one, other], Said(Decision.REJECT, "no", "bob")) == [other]
    with psycopg.connect(database) as connection:
        stored = connection.execute("SELECT usage_lsn, decision, decided_by FROM catalog.decisions ORDER BY 1")
        assert stored.fetchall() == [(7, "approve", "ann"), (8, "reject", "bob")]
    assert [change.after["decision"] for _, change in pending(database)] == ["approve", "reject"]


@pytest.mark.parametrize(("reason", "by"), [("x" * 513, "ann"), ("why", "n\0l"), ("why", "\ud800")])
def test_what_ingestion_would_reject_is_refused_before_it_is_stored(database: str, reason: str, by: str) -> None:
    with pytest.raises(CannotRun, match="This cannot be kept"):
        decide(database, [Waiting(7, "requests", "a", "r7")], Said(Decision.REJECT, reason, by))
    assert pending(database) == []


def test_all_are_those_that_wait_and_that_nobody_has_decided_about(database: str) -> None:
    rows = [straggler(1), straggler(2, account="b"), straggler(3, meter="input_tokens"), straggler(4, "correct")]
    write(database, "stragglers", *rows, straggler(5, cause="duplicate", corrects_lsns=[1]), straggler(6))
    decide(database, [Waiting(6, "requests", "a", "r6")], APPROVED)
    assert found(database, ANY) == ([1, 2, 3], [])
    assert found(database, Asked(None, None, ("a",))) == ([1, 3], [])
    assert found(database, Asked(None, ("requests",), ("a",))) == ([1], [])


def test_of_a_row_of_usage_the_meters_that_wait_are_meant(database: str) -> None:
    write(database, "stragglers", straggler(1), straggler(1, "correct", meter="input_tokens"))
    assert found(database, of(1)) == ([1], [])
    with pytest.raises(CannotRun, match="Usage 1, input_tokens, does not wait: it is `correct`"):
        found(database, of(1, meters=("input_tokens",)))


def test_the_same_decision_again_is_no_error_and_decides_nothing(database: str) -> None:
    write(database, "stragglers", straggler(1), straggler(2, "approve", settled=1, decided_by="ann"))
    decide(database, [Waiting(1, "requests", "a", "r1")], APPROVED)
    assert found(database, of(1, 2)) == ([], [1, 2])


@pytest.mark.parametrize(
    ("lsn", "says"),
    [
        (1, "Usage 1, requests, was decided by ann: `approve`. The first decision holds"),
        (2, "Usage 2, requests, does not wait: it is `approve` by eve"),
        (3, "Usage 3, requests, does not wait: it is `drop`"),
        (4, "Usage 4, requests, corrects usage 1, and is decided with it"),
        (5, r"Usage 5, requests, had to be decided before .*: `hold.expires` decides it"),
        (6, "Usage 6 is no straggler"),
        (7, "Usage 7 is no straggler of these accounts and meters"),
    ],
)
def test_nothing_is_decided_when_one_of_them_cannot_be(database: str, lsn: int, says: str) -> None:
    write(
        database,
        "stragglers",
        straggler(1),
        straggler(2, "approve", settled=1, decided_by="eve"),
        straggler(3, "drop", settled=2),
        straggler(4, cause="repriced", corrects_lsns=[1]),
        straggler(5, hold_until=NOW - timedelta(seconds=1)),
        straggler(7, account="b"),
        straggler(8),
    )
    decide(database, [Waiting(1, "requests", "a", "r1")], APPROVED)
    accounts = ("a",) if lsn == 7 else None
    with pytest.raises(CannotRun, match=f"Nothing was decided.\n{says}"):
        found(database, of(lsn, 8, accounts=accounts), Decision.REJECT)


def test_what_was_decided_is_listed_with_its_name_before_it_is_billed(database: str) -> None:
    write(database, "stragglers", straggler(1), straggler(2))
    decide(database, [Waiting(1, "requests", "a", "r1")], APPROVED)
    with read_only(database) as connection:
        rows = list(straggler_rows(connection, StragglerQuery(decision=Decision.HOLD)))
    said = [(row["decision"], row["decided_by"], row["reason"], row["hold_until"]) for row in rows]
    assert said == [("hold", "ann", "as agreed", LATER), ("hold", None, None, LATER)]


@pytest.mark.parametrize(
    "asked",
    [lambda: asked_of(None, None, None, everything=False), lambda: asked_of([1], None, None, everything=True)],
    ids=["none", "both"],
)
def test_stragglers_are_named_or_all_are_meant(asked: Callable[[], Asked]) -> None:
    with pytest.raises(typer.BadParameter, match="name stragglers by their USAGE_LSN, or say --all"):
        asked()


def test_a_decision_needs_a_reason_and_has_a_name() -> None:
    with pytest.raises(CannotRun, match="--reason is empty"):
        said_of(Decision.APPROVE, " ", "ann")
    assert said_of(Decision.REJECT, " no ", " ann ") == Said(Decision.REJECT, "no", "ann")
    assert "@" in said_of(Decision.REJECT, "no", None).decided_by
    assert CliRunner().invoke(app, ["stragglers", "approve", "1"]).exit_code == 2
