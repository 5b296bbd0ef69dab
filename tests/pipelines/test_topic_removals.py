"""Removals of topics in the database."""

from __future__ import annotations

import psycopg

from deployment.event_topics import event_topics
from jobs.ingestion.topic_removals import read_removals, settle_removals, store_removal
from jobs.runtime.postgres.ownership import Ownership


def remove(database: str, topic: str, *, unread: int | None = 0) -> None:
    with psycopg.connect(database) as connection:
        store_removal(connection.cursor(), topic, "moved", "me", unread=unread, waiting=0)


def settled(database: str, *topics: str) -> list[tuple[str, bool, bool]]:
    """Topic, whether it ended, and whether it was withdrawn, after a driver of these topics."""
    with psycopg.connect(database) as connection:
        settle_removals(connection.cursor(), topics)
        query = "SELECT topic, ended_at IS NOT NULL, withdrawn_at IS NOT NULL FROM topic_removals ORDER BY number"
        return connection.execute(query).fetchall()


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
