"""What the alerts of webhooks look at: what waits, what was given up, and who answered that it is gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from prometheus_client import CollectorRegistry

from jobs.runtime.clock import MachineClock
from jobs.runtime.postgres.gauges import DatabaseGauges
from metering.vocabulary import Job
from tests.database_rows import totals_of
from tests.webhooks.sending import add_endpoint, hold, queue, rows
from webhooks.endpoints import disable

URL = "https://example.com/hook"
AN_HOUR_AGO = "UPDATE webhook_events SET made_at = now() - interval '1 hour' RETURNING 1"


@contextmanager
def scraped(database: str) -> Iterator[CollectorRegistry]:
    gauges, registry = (
        DatabaseGauges(Job.BILLING, database, totals_of(Job.BILLING), MachineClock()),
        CollectorRegistry(),
    )
    registry.register(gauges)
    try:
        yield registry
    finally:
        gauges.close()


def waiting(database: str) -> float:
    with scraped(database) as registry:
        value = registry.get_sample_value("weir_webhook_waiting_seconds")
    assert value is not None
    return value


def test_without_endpoints_all_are_zero(database: str) -> None:
    with scraped(database) as registry:
        for name in ("waiting_seconds", "dead_deliveries", "gone_endpoints"):
            assert registry.get_sample_value(f"weir_webhook_{name}") == 0


@pytest.mark.parametrize("sender", ["has read them", "never ran"])
def test_the_oldest_event_that_waits_is_as_old_as_it_is_whether_a_sender_runs_or_not(
    database: str, sender: str
) -> None:
    add_endpoint(database, URL)
    hold(database, ["acme"])
    if sender == "has read them":
        queue(database)
    rows(database, AN_HOUR_AGO)
    hold(database, ["acme"], first_lsn=2)
    assert 3_600 <= waiting(database) < 3_700
    queue(database)
    rows(database, "UPDATE webhook_deliveries SET state = 'delivered', settled_at = now() WHERE number = 1 RETURNING 1")
    assert waiting(database) < 100
    rows(database, "UPDATE webhook_deliveries SET state = 'delivered', settled_at = now() RETURNING 1")
    assert waiting(database) == 0


def test_what_waits_for_a_disabled_endpoint_is_not_late_and_the_dead_are_counted(database: str) -> None:
    endpoint = add_endpoint(database, URL).endpoint
    hold(database, ["acme"] * 3)
    queue(database)
    rows(database, AN_HOUR_AGO)
    rows(database, "UPDATE webhook_deliveries SET state = 'dead', settled_at = now() WHERE number < 3 RETURNING 1")
    with scraped(database) as registry:
        assert registry.get_sample_value("weir_webhook_dead_deliveries") == 2
    disable(database, endpoint, "ada", "moves")
    assert waiting(database) == 0
    with scraped(database) as registry:
        assert registry.get_sample_value("weir_webhook_gone_endpoints") == 0, "a person knows"
    rows(database, "UPDATE webhook_endpoints SET changed_by = 'weir' RETURNING 1")
    with scraped(database) as registry:
        assert registry.get_sample_value("weir_webhook_gone_endpoints") == 1
