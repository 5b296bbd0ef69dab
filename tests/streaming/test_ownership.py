"""Who may write to Postgres: the newest driver, whatever the older one was doing when it was replaced."""

from __future__ import annotations

import os
import signal

import psycopg
import pytest

from jobs.runtime.errors import Fenced, NotYet
from jobs.runtime.postgres.ownership import Ownership
from metering.vocabulary import Cause


def test_a_driver_that_was_replaced_is_fenced(database: str) -> None:
    old = Ownership.take("billing", database, {})
    new = Ownership.take("billing", database, {})
    assert (old.epoch, new.epoch) == (1, 2)
    with pytest.raises(Fenced, match="billing: epoch 1 is no longer the newest"), old.transaction():
        pass
    with new.transaction() as cursor:
        assert cursor.execute("SELECT 1").fetchone() == (1,)


def test_a_driver_frozen_inside_a_transaction_does_not_hold_up_its_successor(database: str) -> None:
    old = Ownership.take("billing", database, {})
    replaced = pytest.raises(Fenced, match="billing: epoch 1 is no longer the newest")
    with replaced, old.transaction() as cursor:
        cursor.execute("INSERT INTO positions (job, input, next_position) VALUES ('billing', 'usage', 5)")
        new = Ownership.take("billing", database, {})
        with new.transaction() as other:
            other.execute("INSERT INTO positions (job, input, next_position) VALUES ('billing', 'usage', 9)")
        cursor.execute("SELECT 1")
    positions = psycopg.connect(database).execute("SELECT next_position FROM positions").fetchall()
    assert positions == [(9,)]


def test_a_fenced_driver_stays_fenced(database: str) -> None:
    old = Ownership.take("job", database, {})
    Ownership.take("job", database, {}).close()
    with pytest.raises(Fenced, match="epoch 1"), old.transaction():
        pass
    with pytest.raises(Fenced, match="epoch 1 is no longer the newest"):
        old.fence_if_followed()


def test_a_failed_driver_is_fenced_only_if_it_has_a_successor(database: str) -> None:
    old = Ownership.take("billing", database, {})
    old.fence_if_followed()
    end_sessions_of(database, "billing")
    old.fence_if_followed()
    Ownership.take("billing", database, {})
    with pytest.raises(Fenced, match="billing: epoch 1 is no longer the newest"):
        old.fence_if_followed()


def test_a_newer_epoch_fences_a_driver_with_a_live_session(database: str) -> None:
    old = Ownership.take("billing", database, {})
    with psycopg.connect(database, autocommit=True) as other:
        other.execute("UPDATE jobs SET epoch = epoch + 1")
    with pytest.raises(Fenced, match="epoch 1 was followed by 2"), old.transaction():
        pass


def test_the_epoch_does_not_change_under_a_transaction_that_has_checked_it(database: str) -> None:
    owner = Ownership.take("billing", database, {})
    with psycopg.connect(database, autocommit=True) as other:
        other.execute("SET lock_timeout = '100ms'")
        with owner.transaction(), pytest.raises(psycopg.errors.LockNotAvailable):
            other.execute("UPDATE jobs SET epoch = epoch + 1")
        other.execute("UPDATE jobs SET epoch = epoch + 1")


def test_jobs_do_not_fence_each_other(database: str) -> None:
    billing, sessions = Ownership.take("billing", database, {}), Ownership.take("sessionization", database, {})
    for owner in (billing, sessions):
        with owner.transaction() as cursor:
            cursor.execute("SELECT 1")


def test_a_new_epoch_is_above_the_last_one_in_the_sink(database: str) -> None:
    assert Ownership.take("joins", database, {}, at_least=7).epoch == 7
    assert Ownership.take("joins", database, {}, at_least=3).epoch == 8


def end_sessions_of(database: str, job: str) -> None:
    """As a database that is restarted does, or an administrator."""
    with psycopg.connect(database, autocommit=True) as other:
        ended = other.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = %s", [f"weir {job}"]
        )
        assert ended.fetchone() == (True,)


def test_a_session_that_the_database_ended_is_no_rival_and_is_recreated_with_the_same_epoch(database: str) -> None:
    owner = Ownership.take("billing", database, {})
    insert = "INSERT INTO positions (job, input, next_position) VALUES ('billing', 'usage', 5)"
    with pytest.raises(NotYet) as found, owner.transaction() as cursor:  # noqa: PT012  # it ends inside the transaction
        cursor.execute(insert)
        end_sessions_of(database, "billing")
        cursor.execute("SELECT 1")
    assert found.value.cause is Cause.DATABASE
    with owner.transaction() as cursor:
        cursor.execute(insert)
    assert owner.epoch == 1
    assert psycopg.connect(database).execute("SELECT count(*) FROM positions").fetchone() == (1,)


def test_a_successor_ends_a_recreated_session(database: str) -> None:
    owner = Ownership.take("billing", database, {})
    end_sessions_of(database, "billing")
    owner.resume()
    owner.connection.execute("SELECT 1")
    Ownership.take("billing", database, {})
    with pytest.raises(psycopg.errors.AdminShutdown):
        owner.connection.execute("SELECT 1")


def test_a_driver_replaced_during_an_outage_stays_replaced(database: str) -> None:
    old = Ownership.take("billing", database, {})
    end_sessions_of(database, "billing")
    new = Ownership.take("billing", database, {})
    with pytest.raises(Fenced, match="billing: epoch 1 is no longer the newest"):
        old.resume()
    with new.transaction() as cursor:
        assert cursor.execute("SELECT 1").fetchone() == (1,)


def test_locks_of_a_lost_session_are_released_when_its_driver_goes_on(database: str) -> None:
    """A connection that was cut between the two leaves a session at work on the server's side."""
    owner = Ownership.take("billing", database, {})
    held = owner.connection
    held.execute("BEGIN")
    held.execute("INSERT INTO positions (job, input, next_position) VALUES ('billing', 'usage', 5)")
    owner.connection = psycopg.connect(database)
    owner.connection.close()
    owner.resume()
    with owner.transaction() as cursor:
        cursor.execute("INSERT INTO positions (job, input, next_position) VALUES ('billing', 'usage', 9)")
    with pytest.raises(psycopg.errors.AdminShutdown):
        held.execute("COMMIT")
    assert psycopg.connect(database).execute("SELECT next_position FROM positions").fetchall() == [(9,)]


def test_a_driver_waits_until_its_previous_session_has_ended(database: str) -> None:
    """Whatever that session still has under way could commit beside what the driver does next."""
    owner = Ownership.take("billing", database, {})
    last = owner.connection
    last.execute("BEGIN")
    last.execute("INSERT INTO positions (job, input, next_position) VALUES ('billing', 'usage', 5)")
    owner.connection = psycopg.connect(database)
    owner.connection.close()
    os.kill(last.info.backend_pid, signal.SIGSTOP)
    try:
        for _ in range(2):
            with pytest.raises(NotYet, match="has not ended this driver's last session yet"):
                owner.resume(ends_within_seconds=0.05)
    finally:
        os.kill(last.info.backend_pid, signal.SIGCONT)
    owner.resume()
    with psycopg.connect(database) as other:
        owners = other.execute("SELECT owner_pid FROM jobs").fetchall()
        assert owners == [(owner.connection.info.backend_pid,)]
    with pytest.raises(psycopg.errors.AdminShutdown):
        last.execute("COMMIT")


def test_a_driver_begins_as_soon_as_the_rebuild_of_its_tables_has_closed(database: str) -> None:
    """The server ends a session some time after its client: what it held alone must be free before."""
    for _ in range(100):
        Ownership.take("billing", database, {}, is_alone=True).close()
        Ownership.take("billing", database, {}).close()
