"""`weir forget` as an operator runs it: what it says, what it refuses, and what it leaves when it is run again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner, Result

from cli.main import app
from jobs.ingestion.topic_removals import settle_removals, store_removal
from jobs.runtime.kafka.topic_settings import TopicSettings
from metering.erasure import keys_of
from tests.pipelines.test_forget import ACCOUNT, SECRET, USER, assert_proved, bills, settled, world
from tests.simulation.world import World

__all__ = ["world"]
ASKED = ("--account", ACCOUNT, "--user", USER)


@pytest.fixture
def weir(world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`weir forget` with this world's tables and database; its topic keeps records for a week."""
    for name, value in (("KAFKA_BOOTSTRAP", "127.0.0.1:9"), ("POSTGRES_URL", world.database)):
        monkeypatch.setenv(f"WEIR_{name}", value)
    monkeypatch.setenv("WEIR_TABLES", str(world.tables))
    monkeypatch.setenv("WEIR_ERASURE_KEYS", SECRET)
    week = TopicSettings("events", {"retention.ms": "604800000"}, 1, 1)
    monkeypatch.setattr("jobs.runtime.kafka.topic_risks.settings_of", lambda *_: week)
    return lambda *options: CliRunner().invoke(app, ["forget", *ASKED, *options])


def erasures(world: World) -> Any:
    with psycopg.connect(world.database) as connection:
        return connection.execute("SELECT erasure, asked_by, erased_at IS NULL FROM erasures").fetchall()


def test_the_command_refuses_a_reason_that_is_empty_or_has_the_name_and_a_missing_key(
    world: World, weir: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    for reason, problem in ((" ", "--reason is empty"), (f"{USER} asked", "has the name of the person")):
        result = weir("--reason", reason)
        assert (result.exit_code, problem in str(result.exception)) == (1, True)
    monkeypatch.setenv("WEIR_ERASURE_KEYS", "")
    result = weir("--reason", "by letter")
    assert (result.exit_code, "WEIR_ERASURE_KEYS is not set" in str(result.exception)) == (1, True)
    assert erasures(world) == []


def test_the_command_refuses_a_key_that_ingestion_does_not_have_and_ingestion_goes_on(
    world: World, weir: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "another secret that only the command of this test has"
    monkeypatch.setenv("WEIR_ERASURE_KEYS", f"{other},{SECRET}")
    result = weir("--reason", "by letter")
    assert result.exit_code != 0
    known, unknown = (keys_of(secret)[0].id for secret in (SECRET, other))
    assert f"ingestion does not have the key {unknown}" in str(result.exception)
    assert f"It has {known}" in str(result.exception)
    assert erasures(world) == []
    settled(world)
    assert_proved(world)


def test_a_topic_that_is_read_no_more_and_keeps_its_records_for_ever_is_refused_too(
    world: World, weir: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    def settings_of(_: AdminClient, topic: str) -> TopicSettings:
        if topic == "deleted":
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        return TopicSettings(topic, {"retention.ms": "-1" if topic == "calls" else "604800000"}, 1, 1)

    monkeypatch.setattr("jobs.runtime.kafka.topic_risks.settings_of", settings_of)
    with psycopg.connect(world.database) as connection:
        for topic in ("calls", "deleted"):
            store_removal(connection.cursor(), topic, "moved", "me", unread=0, waiting=0)
        settle_removals(connection.cursor(), ["events"])
    result = weir("--reason", "by letter")
    assert result.exit_code == 1
    assert "the topic calls keeps its records for ever" in str(result.exception)
    assert erasures(world) == []
    with psycopg.connect(world.database) as connection:
        connection.execute("DELETE FROM topic_removals WHERE topic = 'calls'")


def test_the_command_waits_for_the_applications_and_does_nothing_when_it_is_run_again(
    world: World, weir: Callable[..., Result]
) -> None:
    before, ended = bills(world), []
    for _ in range(3):
        result = weir("--reason", "by letter", "--by", "dpo", "--format", "json")
        assert isinstance(json.loads(result.stdout), list)
        ended.append((result.exit_code, erasures(world)))
        assert bills(world) == before
        assert_proved(world)
        settled(world)
    waiting, complete = (1, [(1, "dpo", True)]), (0, [(1, "dpo", False)])
    assert ended == [waiting, complete, complete]
