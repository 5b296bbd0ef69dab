"""What a driver was about to read is written down by topic: one that fails is no reason to blame another's records."""

from __future__ import annotations

from contextlib import closing

import psycopg
from psycopg.types.json import Jsonb

from jobs.runtime.kafka.quarantine.attempts import Attempt, Attempts
from jobs.runtime.postgres.downgrade import downgrade
from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.postgres.schema import migrate

MOST = 1_000
ALONE = Attempt({0: 7}, 1, 1, partition=0)
AT_SEVEN = {0: 7}


def test_a_failure_in_one_topic_counts_against_no_record_of_another(database: str) -> None:
    with closing(Ownership.take("ingestion", database, {})) as ownership:
        # Both stand at the same partition and offset, and only one driver is about to read that alone.
        Attempts(ownership, "events").begin(ALONE)
        Attempts(ownership, "gateway").begin(Attempt(AT_SEVEN, MOST, is_blameless=True))
    with closing(Ownership.take("ingestion", database, {})) as ownership:
        events, gateway = (Attempts(ownership, topic) for topic in ("events", "gateway"))
        failed, other = events.next(AT_SEVEN, MOST), gateway.next(AT_SEVEN, MOST)
        assert (failed.failures_alone, failed.partition) == (1, 0)
        assert (other.failures_alone, other.is_quarantined) == (0, False)
        assert events.last() == ALONE
        events.blame_nothing()
        assert (events.last() or ALONE).is_blameless
        gateway.begin(Attempt({0: 9}, MOST))
        gateway.blame_nothing()
        assert gateway.last() is None
        assert events.last() is not None


def test_an_attempt_of_an_earlier_release_is_of_the_topic_that_it_reads(database: str) -> None:
    with closing(Ownership.take("ingestion", database, {"topic": "usage"})) as ownership:
        Attempts(ownership, "usage").begin(ALONE)
        Attempts(ownership, "gateway").begin(ALONE)
    downgrade(database, "0084")
    with psycopg.connect(database) as connection:
        kept = "SELECT positions FROM attempts WHERE job = 'ingestion'"
        assert connection.execute(kept).fetchall() == [({"0": 7},)]
        connection.execute("UPDATE attempts SET positions = %s", [Jsonb({"0": 8})])
    migrate(database)
    with closing(Ownership.take("ingestion", database, {"topic": "usage"})) as ownership:
        assert (Attempts(ownership, "usage").last() or ALONE).positions == {0: 8}
        assert Attempts(ownership, "gateway").last() is None
