"""A supervisor sees that a job works by a later epoch than before its start, in one session that it does not keep."""

from __future__ import annotations

import psycopg

from deployment.job_states import JobStates
from jobs.runtime.postgres.ownership import Ownership
from metering.reports import Phase
from tests.waiting import wait_until

SESSIONS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'weir up' AND datname = current_database()"


def start(database: str, job: str, state: Phase) -> None:
    """As a driver does: it takes the next epoch, and reports."""
    Ownership.take(job, database, {}).close()
    report(database, job, state)


def report(database: str, job: str, state: Phase) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("UPDATE jobs SET state = %s WHERE job = %s", [state, job])


def sessions(database: str) -> list[int]:
    with psycopg.connect(database, autocommit=True) as connection:
        return [pid for (pid,) in connection.execute(SESSIONS)]


def test_a_job_works_when_a_later_epoch_than_before_its_start_says_so(database: str) -> None:
    start(database, "joins", Phase.RUNNING)
    states = JobStates(database)
    states.starting("joins")
    assert not states.is_working("joins"), "what its predecessor said last"
    start(database, "joins", Phase.STARTING)
    wait_until(lambda: not states.is_working("joins") and len(sessions(database)) == 1, "a look that sees it starting")
    report(database, "joins", Phase.RUNNING)
    wait_until(lambda: states.is_working("joins"), "a look that sees it running", every_seconds=0.05)
    wait_until(lambda: sessions(database) == [], "the end of the session", every_seconds=0.05)


def test_a_session_that_was_lost_is_followed_by_another_until_all_jobs_work(database: str) -> None:
    states = JobStates(database)
    for job in ("joins", "billing"):
        states.starting(job)
    start(database, "joins", Phase.RUNNING)
    wait_until(lambda: states.is_working("joins"), "joins working", every_seconds=0.05)
    (lost,) = sessions(database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(%s, 10000)", [lost])
    start(database, "billing", Phase.RUNNING)
    wait_until(lambda: states.is_working("billing"), "billing working", every_seconds=0.05)
    wait_until(lambda: sessions(database) == [], "the end of the session", every_seconds=0.05)
