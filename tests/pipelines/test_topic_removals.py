"""Removals of topics in the database."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psycopg
import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake
from typer.testing import CliRunner

from cli.main import app
from cli.topic_removal import Left, read_pending, removal_sentences
from cli.topic_rows import topic_rows
from deployment.errors import CannotRun
from deployment.event_topics import event_topics, refuse_ending_topics
from deployment.stack import Deployment
from deployment.topic_positions import TopicPosition
from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.ledger import topic_identity
from jobs.ingestion.pipeline import JOB
from jobs.ingestion.topic_removals import check_removal, read_removals, settle_removals, store_removal
from jobs.runtime import run
from jobs.runtime.clock import MachineClock
from jobs.runtime.delta.table import LSN
from jobs.runtime.effective_rules import IN_FORCE, TRANSACTION
from jobs.runtime.errors import Refused
from jobs.runtime.kafka.topic import Topic
from jobs.runtime.postgres.ownership import Ownership
from jobs.streams import JOURNAL, Table
from tests.rules.test_event_topic_settings import NOW
from tests.streaming.journals import environment
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]


def remove(database: str, topic: str, *, unread: int | None = 0) -> None:
    with psycopg.connect(database) as connection:
        number = store_removal(connection.cursor(), topic, "moved", "me", unread=unread, waiting=0)
        assert check_removal(connection.cursor(), number, unread=unread, waiting=0)


def settled(database: str, *topics: str) -> list[tuple[str, bool, bool]]:
    """Topic, whether it ended, and whether it was withdrawn, after a driver of these topics."""
    with psycopg.connect(database) as connection:
        settle_removals(connection.cursor(), topics)
        query = "SELECT topic, ended_at IS NOT NULL, withdrawn_at IS NOT NULL FROM topic_removals ORDER BY number"
        return connection.execute(query).fetchall()


def looking(monkeypatch: pytest.MonkeyPatch, *found: Left) -> None:
    """What `weir topics remove` finds, look by look, the last again and again; it does not wait for the API."""
    looks = list(found)
    monkeypatch.setattr("cli.topic_removal.left_of", lambda *_: looks.pop(0) if len(looks) > 1 else looks[0])
    monkeypatch.setattr("cli.topic_removal.wait_for_api", lambda: None)


def test_a_removal_ends_with_a_start_without_the_topic_and_is_withdrawn_by_one_with_it(database: str) -> None:
    remove(database, "a")
    remove(database, "b")
    assert settled(database, "a", "c") == [("a", False, True), ("b", True, False)]
    # Later starts change nothing that was settled, and a topic can be removed again.
    remove(database, "a", unread=None)
    expected = [("a", False, True), ("b", True, False), ("a", True, False)]
    assert settled(database, "c") == settled(database, "a", "b", "c") == expected


def test_a_removal_that_is_stored_again_replaces_the_pending_one(database: str) -> None:
    remove(database, "a", unread=7)
    remove(database, "a")
    with psycopg.connect(database) as connection:
        [pending] = read_removals(connection)
        entries = connection.execute("SELECT count(*) FROM activity_log").fetchone()
    assert (pending.topic, pending.unread, pending.removed_by) == ("a", 0, "me")
    assert entries == (2,)


def test_the_topics_of_an_installation_are_those_that_ingestion_was_started_with(database: str) -> None:
    assert event_topics(database) == ("events",)
    Ownership.take("ingestion", database, {"topic": "mine"}).close()
    assert event_topics(database) == ("mine",)
    events = [{"topic": "a", "types": []}, {"topic": "b", "types": ["x"]}]
    Ownership.take("ingestion", database, {"topic": "a", "events": events}).close()
    assert event_topics(database) == ("a", "b")


def journaled(tables: Path, *topics: str, read: Sequence[str] = ()) -> None:
    """A journal whose rules list these topics last; `read`: what it has read of."""
    rules = {"events": [{"topic": topic, "types": []} for topic in topics]} if topics else {}
    said = {IN_FORCE: [{"from": 1, "since": NOW.isoformat(), "rules": rules}]}
    row = {"lsn": 1, "log_date": NOW.date(), "rules": json.dumps(said)}
    write_deltalake(
        str(tables / Table.JOURNAL),
        pa.Table.from_pylist([row], pa.schema([field.with_nullable(True) for field in JOURNAL])),
        partition_by=["log_date"],
        commit_properties=CommitProperties(
            app_transactions=[
                *(Transaction(TRANSACTION, 1), Transaction(LSN, 2)),
                *(Transaction(topic_identity(topic), 7) for topic in read),
            ]
        ),
    )


def test_a_start_that_is_refused_without_a_topic_leaves_the_stored_configuration(database: str, tmp_path: Path) -> None:
    """The API writes where that says: what it has acknowledged would be in a topic that nobody reads."""
    config, where = IngestionConfig.model_validate({"events": [{"topic": "b"}]}), environment(database, tmp_path)
    journaled(tmp_path, "a")
    Ownership.take("ingestion", database, {"topic": "a", "events": [{"topic": "a", "types": []}]}).close()
    with pytest.raises(Refused, match="weir topics remove a"):
        run._own(JOB, config, where, MachineClock())
    assert event_topics(database) == ("a",)
    remove(database, "a")
    run._own(JOB, config, where, MachineClock())[0].close()
    assert event_topics(database) == ("b",)


@pytest.mark.parametrize("was_read", [True, False])
def test_a_topic_that_was_configured_alone_is_guarded_as_a_list_is_once_it_was_read(
    database: str, tmp_path: Path, *, was_read: bool
) -> None:
    config, where = IngestionConfig(topic="b"), environment(database, tmp_path)
    journaled(tmp_path, read=["a"] if was_read else [])
    Ownership.take("ingestion", database, {"topic": "a"}).close()
    if was_read:
        with pytest.raises(Refused, match="weir topics remove a"):
            run._own(JOB, config, where, MachineClock())
        assert event_topics(database) == ("a",)
        remove(database, "a")
    run._own(JOB, config, where, MachineClock())[0].close()
    assert event_topics(database) == ("b",)


def test_the_only_topic_can_be_removed_for_a_start_with_another(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = SimpleNamespace(postgres_url=database, tables=str(tmp_path), kafka_bootstrap="")
    monkeypatch.setattr("deployment.stack.running_deployment", lambda _: stack)
    looking(monkeypatch, Left("a", 0, 0))
    journaled(tmp_path, "a")
    Ownership.take("ingestion", database, {"topic": "a", "events": [{"topic": "a", "types": []}]}).close()
    result = CliRunner().invoke(app, ["topics", "remove", "a", "--reason", "moved"])
    assert result.exit_code == 0, result.exception
    with psycopg.connect(database) as connection:
        assert [removal.topic for removal in read_removals(connection)] == ["a"]


@pytest.mark.parametrize("accepted", [False, True])
def test_what_the_api_writes_until_it_has_read_of_the_removal_counts_too(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, accepted: bool
) -> None:
    stack = SimpleNamespace(postgres_url=database, tables=str(tmp_path), kafka_bootstrap="")
    monkeypatch.setattr("deployment.stack.running_deployment", lambda _: stack)
    looking(monkeypatch, Left("a", 0, 0), Left("a", 3, 0))
    journaled(tmp_path, "a")
    Ownership.take("ingestion", database, {"topic": "a", "events": [{"topic": "a", "types": []}]}).close()
    result = CliRunner().invoke(
        app, ["topics", "remove", "a", "--reason", "moved", *(["--accept-loss"] if accepted else [])]
    )
    with psycopg.connect(database) as connection:
        pending = [(removal.topic, removal.unread) for removal in read_removals(connection)]
    assert pending == ([("a", 3)] if accepted else [])
    assert "a: 3 records are unread" in (result.output if accepted else str(result.exception))


@pytest.mark.parametrize("meanwhile", ["a start with the topic", "a second removal"])
def test_a_removal_that_is_no_longer_pending_after_the_wait_is_refused_and_checks_no_other(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    """The API has written to the topic again, or may do so for as long as it has not read of the other removal."""
    stack = SimpleNamespace(postgres_url=database, tables=str(tmp_path), kafka_bootstrap="")
    monkeypatch.setattr("deployment.stack.running_deployment", lambda _: stack)
    looking(monkeypatch, Left("a", 0, 0))
    journaled(tmp_path, "a")
    Ownership.take("ingestion", database, {"topic": "a", "events": [{"topic": "a", "types": []}]}).close()

    def while_it_waits() -> None:
        assert settled(database, "a") == [("a", False, True)]
        if meanwhile == "a second removal":
            with psycopg.connect(database) as connection:
                store_removal(connection.cursor(), "a", "moved", "ann", unread=0, waiting=0)

    monkeypatch.setattr("cli.topic_removal.wait_for_api", while_it_waits)
    result = CliRunner().invoke(app, ["topics", "remove", "a", "--reason", "moved"])
    assert "was withdrawn meanwhile" in str(result.exception)
    left = [(removal.removed_by, removal.is_checked) for removal in read_pending(database)]
    assert left == ([("ann", False)] if meanwhile == "a second removal" else [])


KILLED = """
import sys
import time
from types import SimpleNamespace
from cli import topic_removal
from cli.main import app
from deployment import stack

database, tables = sys.argv[1:]
stack.running_deployment = lambda _: SimpleNamespace(postgres_url=database, tables=tables, kafka_bootstrap="")
topic_removal.left_of = lambda *_: topic_removal.Left("a", 0, 0)
topic_removal.wait_for_api = lambda: time.sleep(3_600)
app(["topics", "remove", "a", "--reason", "moved"])
"""


def test_no_start_goes_on_without_a_topic_whose_removal_was_killed_and_a_second_one_finishes_it(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while it waits for the API, nobody has seen what that wrote meanwhile: it would be on no bill."""
    config, where = IngestionConfig.model_validate({"events": [{"topic": "b"}]}), environment(database, tmp_path)
    journaled(tmp_path, "a")
    Ownership.take("ingestion", database, {"topic": "a", "events": [{"topic": "a", "types": []}]}).close()

    def pending() -> list[tuple[str, bool]]:
        return [(removal.topic, removal.is_checked) for removal in read_pending(database)]

    killed = subprocess.Popen([sys.executable, "-c", KILLED, database, str(tmp_path)], cwd=ROOT)
    wait_until(lambda: pending() == [("a", False)], "the removal being stored", 60, every_seconds=0.05)
    killed.kill()
    assert killed.wait(60) == -signal.SIGKILL
    assert pending() == [("a", False)]
    with pytest.raises(Refused, match="run `weir topics remove a --reason TEXT` again"):
        run._own(JOB, config, where, MachineClock())
    assert event_topics(database) == ("a",), "the API writes where the stored configuration says"
    stack = SimpleNamespace(postgres_url=database, tables=str(tmp_path), kafka_bootstrap="")
    monkeypatch.setattr("deployment.topic_positions.existing", lambda *_: {})
    [row] = topic_rows(cast("Deployment", stack))
    assert str(row["state"]).startswith("removal not finished")
    [sentence] = removal_sentences(read_pending(database))
    assert "run `weir topics remove a --reason TEXT` again" in sentence
    assert f"since {row['since']:%Y-%m-%dT%H:%M:%SZ}" in sentence

    monkeypatch.setattr("deployment.stack.running_deployment", lambda _: stack)
    looking(monkeypatch, Left("a", 0, 0))
    assert CliRunner().invoke(app, ["topics", "remove", "a", "--reason", "moved"]).exit_code == 0
    assert pending() == [("a", True)]
    assert "start ingestion without it" in removal_sentences(read_pending(database))[0]
    run._own(JOB, config, where, MachineClock())[0].close()
    assert event_topics(database) == ("b",)


def test_a_start_with_the_topic_withdraws_a_removal_that_was_killed(database: str) -> None:
    with psycopg.connect(database) as connection:
        store_removal(connection.cursor(), "a", "moved", "me", unread=0, waiting=0)
    assert settled(database, "a", "b") == [("a", False, True)]
    assert read_pending(database) == []


def test_a_topic_of_the_journals_rules_can_be_removed_where_the_stored_configuration_leaves_it_out(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restore of the database."""
    stack = SimpleNamespace(postgres_url=database, tables=str(tmp_path), kafka_bootstrap="")
    monkeypatch.setattr("deployment.stack.running_deployment", lambda _: stack)
    looking(monkeypatch, Left("b", 0, 0))
    monkeypatch.setattr("deployment.topic_positions.existing", lambda *_: {})
    journaled(tmp_path, "a", "b")
    Ownership.take("ingestion", database, {"topic": "a", "events": [{"topic": "a", "types": []}]}).close()

    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["topics", *arguments])
        return result.exit_code, str(result.exception or result.output)

    def states() -> dict[str, str]:
        return {row["topic"]: row["state"].partition(";")[0] for row in json.loads(run("list", "--format", "json")[1])}

    assert states() == {"a": "read", "b": "left out, but not removed"}
    code, said = run("remove", "c", "--reason", "moved")
    assert code
    assert "Ingestion reads a, b" in said
    assert run("remove", "b", "--reason", "moved")[0] == 0
    assert states() == {"a": "read", "b": "removed at the next start"}
    with psycopg.connect(database) as connection:
        assert [removal.topic for removal in read_removals(connection)] == ["b"]


def test_heartbeats_that_nobody_will_read_are_not_listed_as_unread(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(database, "b")
    settled(database, "a")
    Ownership.take("ingestion", database, {"topic": "a", "events": [{"topic": "a", "types": []}]}).close()
    stack = SimpleNamespace(postgres_url=database, tables=str(tmp_path), kafka_bootstrap="")
    found = {name: Topic(name, "id", (0,)) for name in ("a", "b")}
    monkeypatch.setattr("deployment.topic_positions.existing", lambda *_: found)
    position = TopicPosition({0: 3}, 4, NOW, None)
    monkeypatch.setattr("deployment.topic_positions.topic_position", lambda *_: position)
    monkeypatch.setattr("deployment.topic_positions.unread_records", lambda *_: 0)
    read, removed = topic_rows(cast("Deployment", stack))
    assert (read["topic"], read["state"], read["unread"]) == ("a", "read", 4)
    assert (removed["topic"], removed["state"], removed["unread"]) == ("b", "removed", 0)
    assert removed["behind_seconds"] is None


def test_commands_send_nothing_to_a_topic_that_is_being_ended(database: str) -> None:
    """`weir usage reverse`, `weir backfill` and the redrive: the next start of ingestion may leave that topic out."""
    remove(database, "calls")
    refuse_ending_topics(database, ["events"])
    with pytest.raises(CannotRun, match=r"The topic calls is being ended: .* would be on no bill"):
        refuse_ending_topics(database, ["events", "calls"])
    settled(database, "events")
    refuse_ending_topics(database, ["events", "calls"])


def test_produce_refuses_a_topic_that_is_being_ended_unless_it_is_named(
    database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in (("KAFKA_BOOTSTRAP", "127.0.0.1:9"), ("POSTGRES_URL", database), ("TABLES", str(tmp_path))):
        monkeypatch.setenv(f"WEIR_{name}", value)
    remove(database, "events")
    refused = CliRunner().invoke(app, ["produce", "-"], input="")
    assert (refused.exit_code, "The topic events is being ended" in str(refused.exception)) == (1, True)
    assert CliRunner().invoke(app, ["produce", "-", "--topic", "events"], input="").exit_code == 0


def test_a_redrive_that_is_refused_is_not_in_the_activity_log(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Ownership.take("ingestion", database, IngestionConfig().model_dump(mode="json")).close()
    remove(database, "events")
    stack = SimpleNamespace(postgres_url=database, tables="", kafka_bootstrap="")
    monkeypatch.setattr("deployment.stack.running_deployment", lambda _: stack)
    monkeypatch.setattr("cli.journal_table.open_journal", lambda _: object())
    ran = CliRunner().invoke(app, ["dead-letters", "redrive", "--reason", "unknown_type"])
    assert ran.exit_code != 0
    assert "is being ended" in f"{ran.exception} {ran.output}"
    with psycopg.connect(database) as connection:
        logged = connection.execute("SELECT document FROM activity_log").fetchall()
    assert not [document for (document,) in logged if "redrive" in document]
