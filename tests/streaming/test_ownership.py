"""Who may write to Postgres: the newest driver, whatever the older one was doing when it was replaced."""

from __future__ import annotations

import psycopg
import pytest

from jobs.runtime.errors import Fenced
from jobs.runtime.ownership import Ownership


def test_a_driver_that_was_replaced_is_fenced(database: str) -> None:
    old = Ownership.take("billing", database, {})
    new = Ownership.take("billing", database, {})
    assert (old.epoch, new.epoch) == (1, 2)
    with pytest.raises((Fenced, psycopg.OperationalError)), old.transaction():
        pass
    with new.transaction() as cursor:
        assert cursor.execute("SELECT 1").fetchone() == (1,)


def test_a_driver_frozen_inside_a_transaction_does_not_hold_up_its_successor(database: str) -> None:
    old = Ownership.take("billing", database, {})
    with pytest.raises(Fenced), old.transaction() as cursor:  # noqa: PT012  # the freeze is inside the transaction
        cursor.execute("INSERT INTO positions (job, input, next_position) VALUES ('billing', 'usage', 5)")
        new = Ownership.take("billing", database, {})
        with new.transaction() as other:
            other.execute("INSERT INTO positions (job, input, next_position) VALUES ('billing', 'usage', 9)")
        cursor.execute("SELECT 1")
    positions = psycopg.connect(database).execute("SELECT next_position FROM positions").fetchall()
    assert positions == [(9,)]


def test_an_epoch_taken_elsewhere_fences_a_driver_whose_session_lives(database: str) -> None:
    old = Ownership.take("billing", database, {})
    with psycopg.connect(database, autocommit=True) as other:
        other.execute("UPDATE jobs SET epoch = epoch + 1")
    with pytest.raises(Fenced, match="epoch 1 was followed by 2"), old.transaction():
        pass


def test_jobs_do_not_fence_each_other(database: str) -> None:
    billing, sessions = Ownership.take("billing", database, {}), Ownership.take("sessionization", database, {})
    for owner in (billing, sessions):
        with owner.transaction() as cursor:
            cursor.execute("SELECT 1")


def test_an_epoch_is_never_below_what_the_sink_has_seen(database: str) -> None:
    assert Ownership.take("joins", database, {}, at_least=7).epoch == 7
    assert Ownership.take("joins", database, {}, at_least=3).epoch == 8
