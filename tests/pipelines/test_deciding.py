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
from catalog.decisions import DecisionText, Waiting, change_of, decide, exclusive_decisions
from cli.decide import Selection, decision_text, is_decided, selected, to_decide
from cli.main import app
from cli.reading import read_only
from deployment.errors import CannotRun
from jobs.journal.catalog_changes import parse_change
from jobs.journal.catalog_problems import change_problem
from jobs.queries.stragglers import StragglerQuery, straggler_rows
from jobs.streams import CatalogTopic
from metering.vocabulary import Decision
from tests.database_rows import write
from tests.pipelines.billing import bill
from tests.pipelines.test_holding import ALL, DEADLINE, decided
from tests.pipelines.test_holding import straggler as late

NOW = datetime.now(UTC)
LATER = NOW + timedelta(days=1)
APPROVED = DecisionText(Decision.APPROVE, "as agreed", "ann")
ANY = Selection(None, None, None)


def straggler(lsn: int, decision: str = "hold", **other: Any) -> dict[str, Any]:
    times = {"window_start": NOW, "event_time": NOW, "received_at": NOW, "late_seconds": 400}
    row = {"usage_lsn": lsn, "meter": "requests", "account": "a", "request_id": f"r{lsn}", "quantity": 1}
    waits = {"hold_until": LATER, "hold_expires": "drop", "settled": 0} if decision == "hold" else {}
    return {**row, **times, **waits, "decision": decision, **other}


def found(database: str, asked: Selection, decision: Decision = Decision.APPROVE) -> tuple[list[int], list[int]]:
    with read_only(database) as connection:
        now, before = to_decide(connection, asked, decision)
    return [one.usage_lsn for one in now], [one.usage_lsn for one in before]


def of(*lsns: int, **other: Any) -> Selection:
    return Selection(lsns, other.get("meters"), other.get("accounts"))


def test_a_decision_is_captured_like_prices_and_ingestion_accepts_it(database: str) -> None:
    write(database, "stragglers", straggler(7))
    assert decide(database, [Waiting(7, "requests", "a", "r7")], APPROVED) == [Waiting(7, "requests", "a", "r7")]
    change = change_of(Waiting(7, "requests", "a", "r7"), APPROVED, NOW)
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


def kept(database: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database) as connection:
        query = "SELECT usage_lsn, account, decision, decided_by FROM catalog.decisions ORDER BY 1"
        return connection.execute(query).fetchall()


def transactions(database: str) -> dict[int, int]:
    """The transaction that wrote each row last."""
    with psycopg.connect(database) as connection:
        return dict(connection.execute("SELECT usage_lsn, xmin::text::bigint FROM catalog.decisions").fetchall())


def test_waiting_for_another_decision_is_reported_with_its_limit(database: str) -> None:
    said: list[str] = []
    with exclusive_decisions(database, 60.0, said.append):
        assert said == []
        with (
            pytest.raises(CannotRun, match=r"was at work on this database for 1\.2 s: nothing was decided"),
            exclusive_decisions(database, 1.2, said.append),
        ):
            pass
    assert said == ["Waiting, 1.2 s at most, for another who decides about stragglers here."]
    with exclusive_decisions(database, 60.0, said.append):
        assert len(said) == 1


def test_the_same_decision_is_published_again_unchanged_and_another_replaces_it(database: str) -> None:
    """Kafka may have lost it; or it came too late for billing, and then it may be decided otherwise."""
    one, other = Waiting(7, "requests", "a", "r7"), Waiting(8, "requests", "a", "r8")
    decide(database, [one], APPROVED)
    written = transactions(database)
    assert decide(database, [one, other], DecisionText(Decision.APPROVE, "yes", "bob")) == [other]
    assert kept(database) == [(7, "a", "approve", "ann"), (8, "a", "approve", "bob")]
    assert written[7] < transactions(database)[7] == transactions(database)[8], "what is not written is not captured"
    assert decide(database, [one], DecisionText(Decision.REJECT, "no", "eve")) == [one]
    assert kept(database) == [(7, "a", "reject", "eve"), (8, "a", "approve", "bob")]


def test_a_decision_about_former_usage_does_not_apply_to_the_usage_now_at_its_lsn(database: str) -> None:
    decide(database, [Waiting(7, "requests", "a", "r7")], APPROVED)
    write(database, "stragglers", straggler(7, account="b", request_id="other"))
    with read_only(database) as connection:
        assert not is_decided(connection, ANY)
        [row] = straggler_rows(connection, StragglerQuery())
    assert (row["decision"], row["decided_by"], row["reason"]) == ("hold", None, None)
    assert found(database, ANY) == found(database, of(7)) == ([7], [])
    now = Waiting(7, "requests", "b", "other")
    assert decide(database, [now], DecisionText(Decision.APPROVE, "yes", "bob")) == [now]
    assert kept(database) == [(7, "b", "approve", "bob")]


@pytest.mark.parametrize("wrong", [{}, {"account": "b"}, {"request_id": "r8"}, {"meter": "input_tokens"}])
def test_billing_is_read_first_for_waiting_stragglers_with_a_decision(database: str, wrong: dict[str, Any]) -> None:
    write(database, "stragglers", straggler(7), straggler(8))
    names = {"usage_lsn": 7, "meter": "requests", "account": "a", "request_id": "r7", **wrong}
    decide(database, [Waiting(**names)], APPROVED)
    with read_only(database) as connection:
        assert is_decided(connection, ANY) is is_decided(connection, of(7)) is (not wrong)
        assert not is_decided(connection, of(8))
        assert not is_decided(connection, Selection(None, ("input_tokens",), None))


@pytest.mark.parametrize(("reason", "by"), [("x" * 513, "ann"), ("why", "n\0l"), ("why", "\ud800")])
def test_a_decision_that_ingestion_would_reject_is_not_stored(database: str, reason: str, by: str) -> None:
    with pytest.raises(CannotRun, match="This cannot be kept"):
        decide(database, [Waiting(7, "requests", "a", "r7")], DecisionText(Decision.REJECT, reason, by))
    assert kept(database) == []


def test_all_means_pending_stragglers_within_their_deadline(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [straggler(1), straggler(2, account="b"), straggler(3, meter="input_tokens"), straggler(4, "correct")]
    write(database, "stragglers", *rows, straggler(5, cause="duplicate", corrects_lsns=[1]))
    assert found(database, ANY) == ([1, 2, 3], [])
    assert capsys.readouterr().err == ""
    write(database, "stragglers", straggler(6, hold_until=NOW - timedelta(seconds=1)))
    assert found(database, ANY) == ([1, 2, 3], [])
    assert found(database, Selection(None, None, ("a",))) == ([1, 3], [])
    assert found(database, Selection(None, ("requests",), ("a",))) == ([1], [])
    assert "1 that wait are past their deadline: `hold.expires` decides them." in capsys.readouterr().err


def test_a_row_of_usage_means_its_pending_meters(database: str) -> None:
    write(database, "stragglers", straggler(1), straggler(1, "correct", meter="input_tokens"))
    assert found(database, of(1)) == ([1], [])
    with pytest.raises(CannotRun, match="Usage 1, input_tokens, does not wait: it is `correct`"):
        found(database, of(1, meters=("input_tokens",)))


def test_the_same_decision_again_is_no_error_and_decides_nothing(database: str) -> None:
    write(database, "stragglers", straggler(1), straggler(2, "approve", settled=1, decided_by="ann"))
    assert found(database, of(1, 2)) == ([1], [2])


@pytest.mark.parametrize("decision", [Decision.APPROVE, Decision.REJECT])
def test_a_straggler_held_after_an_ineffective_decision_can_be_decided(
    database: str, connection: psycopg.Connection[Any], decision: Decision
) -> None:
    """It was stamped behind the deadline, which F has not reached; or it was lost, or written by hand."""
    bill(connection, [late(1)], ALL)
    connection.execute("UPDATE stragglers SET hold_until = %s", [LATER])
    connection.commit()
    decide(database, [Waiting(1, "requests", "acme", "request-1")], APPROVED)
    bill(connection, [decided(2, 1, "approve", LATER)], ALL)
    assert found(database, of(1), decision) == found(database, ANY, decision) == ([1], [])


@pytest.mark.parametrize(
    ("lsn", "says"),
    [
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
        straggler(2, "approve", settled=1, decided_by="eve"),
        straggler(3, "drop", settled=2),
        straggler(4, cause="repriced", corrects_lsns=[1]),
        straggler(5, hold_until=NOW - timedelta(seconds=1)),
        straggler(7, account="b"),
        straggler(8),
    )
    accounts = ("a",) if lsn == 7 else None
    with pytest.raises(CannotRun, match=f"Nothing was decided.\n{says}"):
        found(database, of(lsn, 8, accounts=accounts), Decision.REJECT)


def test_a_decision_is_listed_with_its_author_before_it_is_billed(database: str) -> None:
    write(database, "stragglers", straggler(1), straggler(2))
    decide(database, [Waiting(1, "requests", "a", "r1")], APPROVED)
    with read_only(database) as connection:
        rows = list(straggler_rows(connection, StragglerQuery(decision=Decision.HOLD)))
    said = [(row["decision"], row["decided_by"], row["reason"], row["hold_until"]) for row in rows]
    assert said == [("hold", "ann", "as agreed", LATER), ("hold", None, None, LATER)]


def test_a_straggler_decided_by_its_deadline_is_listed_without_a_name_despite_late_decisions(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    bill(connection, [late(1)], ALL)
    decide(database, [Waiting(1, "requests", "acme", "request-1")], APPROVED)
    bill(connection, [decided(2, 1, "approve", DEADLINE)], ALL, DEADLINE)
    with read_only(database) as listed:
        [row] = straggler_rows(listed, StragglerQuery())
    assert (row["decision"], row["decided_at"], row["decided_by"], row["reason"]) == ("drop", DEADLINE, None, None)


@pytest.mark.parametrize(
    "asked",
    [lambda: selected(None, None, None, everything=False), lambda: selected([1], None, None, everything=True)],
    ids=["none", "both"],
)
def test_a_decision_names_stragglers_or_all(asked: Callable[[], Selection]) -> None:
    with pytest.raises(typer.BadParameter, match="give USAGE_LSNs or --all, and not both"):
        asked()


def test_a_decision_needs_a_reason_and_has_a_name() -> None:
    with pytest.raises(typer.BadParameter, match="--reason is empty"):
        decision_text(Decision.APPROVE, " ", "ann")
    assert decision_text(Decision.REJECT, " no ", " ann ") == DecisionText(Decision.REJECT, "no", "ann")
    assert "@" in decision_text(Decision.REJECT, "no", None).decided_by
    assert CliRunner().invoke(app, ["stragglers", "approve", "1"]).exit_code == 2
