"""Each trouble raises exactly its alerts, which end with it; healthy traffic raises none. Prometheus is a real one.

Alerts of one trouble may still fire while the next one raises its own: their end is waited for once, after the last.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import psycopg
import pytest

from deployment.stack import Stack
from tests.e2e.conftest import weir_at
from tests.e2e.metering import frozen, new_customer
from tests.e2e.watched import STEADY_EPOCH, STEADY_SOURCE, Traffic, Watch, ago, hurried
from tests.waiting import wait_until

HEALTHY_SECONDS = 40
"""As many minutes of the rules' time."""
SETTLING_SECONDS = 3
"""What else the trouble raises would fire by then."""
STRAGGLERS = 60


@pytest.fixture(scope="module")
def watch(stack: Stack) -> Iterator[Watch]:
    if not (stack.prometheus_url and stack.alertmanager_url):
        assert not os.environ.get("CI"), "CI installs prometheus and prometheus-alertmanager"
        pytest.skip("Prometheus and Alertmanager are not on the PATH")
    with hurried(stack):
        yield Watch(stack)


@pytest.fixture(scope="module")
def traffic(stack: Stack, watch: Watch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traffic]:
    customer = new_customer(stack, tmp_path_factory.mktemp("catalog"))
    with Traffic(stack, customer.account).steady() as sending:
        # What the older release billed was never audited, which is told of from the upgrade on.
        audited = weir_at(stack.data_dir, "audit")
        assert audited.returncode == 0, audited.stdout + audited.stderr
        watch.falls_silent("an end of all alerts of the start")
        yield sending


def raises(watch: Watch, expected: set[str], since: datetime, before: set[str]) -> None:
    """Wait until all expected alerts fire and Alertmanager has them; no other may have begun."""
    wait_until(lambda: expected <= watch.firing(), f"{expected} firing")
    wait_until(lambda: expected <= watch.told(), f"{expected} reaching Alertmanager")
    time.sleep(SETTLING_SECONDS)
    assert (watch.fired_since(since) | watch.firing()) - before == expected


def test_healthy_traffic_raises_no_alert(watch: Watch, traffic: Traffic) -> None:
    # The stack has just caught up with the release before, whose bills were late by its age.
    wait_until(watch.is_quiet, "the end of what the start of the stack has raised", 400)
    start = datetime.now(UTC)
    time.sleep(HEALTHY_SECONDS)
    assert watch.fired_since(start) == set()


def test_stragglers_under_the_policy_drop_are_reported_with_their_money(watch: Watch, traffic: Traffic) -> None:
    start, before = datetime.now(UTC), watch.firing()
    for _ in range(STRAGGLERS):
        traffic.send(ago(minutes=20), input_tokens=10_000_000)
    raises(watch, {"StragglersDropped", "DroppedMoney", "LateRateHigh"}, start, before)


def test_a_future_dated_source_is_reported_and_delays_nobody(watch: Watch, traffic: Traffic) -> None:
    start, before = datetime.now(UTC), watch.firing()
    traffic.send(ago(days=-365))
    raises(watch, {"FutureTimestamps"}, start, before)


def test_malformed_input_is_reported(watch: Watch, traffic: Traffic) -> None:
    start, before = datetime.now(UTC), watch.firing()
    traffic.send_bytes(b'{"specversion":')
    raises(watch, {"DeadLetters"}, start, before)


def test_a_silent_source_is_reported_until_it_reports_again(watch: Watch, traffic: Traffic) -> None:
    start, before = datetime.now(UTC), watch.firing()
    traffic.send(datetime.now(UTC), source="gateway/quiet")
    raises(watch, {"SourceSilent"}, start, before)
    traffic.keep_sending_from("gateway/quiet")


def test_a_stopped_application_is_reported_until_it_goes_on(stack: Stack, watch: Watch, traffic: Traffic) -> None:
    start, before = datetime.now(UTC), watch.firing()
    with frozen(stack, "billing"):
        raises(watch, {"ApplicationDown"}, start, before)


def test_at_rest_the_gauges_agree_with_the_database(stack: Stack, watch: Watch, traffic: Traffic) -> None:
    wait_until(lambda: "ApplicationDown" not in watch.firing(), "billing's gauges being shown again")
    query = """SELECT decision, currency, count(*), sum(amount) FROM stragglers
               WHERE decision = 'drop' AND currency IS NOT NULL AND meter = 'input_tokens'
               GROUP BY decision, currency"""
    with psycopg.connect(stack.postgres_url) as connection:
        (found,) = connection.execute(query).fetchall()
    decision, currency, rows, amount = found
    shown = {"decision": decision, "meter": "input_tokens"}

    assert (decision, rows) == ("drop", STRAGGLERS)
    assert watch.value("weir_straggler_rows", **shown) == rows
    assert watch.value("weir_straggler_amount", **shown, currency=currency) == pytest.approx(float(amount))
    assert watch.value("weir_conservation_residual_records") == 0
    assert watch.value("weir_missing_sequence_numbers") == 0
    assert watch.value("weir_retention_headroom_ratio", topic="events") == pytest.approx(1, abs=0.01)
    assert 0 < (watch.value("weir_tables_free_ratio") or 0) < 1


def test_the_numbers_of_a_source_are_one_range_without_a_hole(stack: Stack, watch: Watch, traffic: Traffic) -> None:
    query = """SELECT lower(sequences), upper(sequences), sequences = range_merge(sequences)::int8multirange
               FROM sources WHERE source = %s AND source_epoch = %s"""
    with psycopg.connect(stack.postgres_url) as connection:
        ((first, end, is_whole),) = connection.execute(query, [STEADY_SOURCE, STEADY_EPOCH]).fetchall()
    assert (first, is_whole) == (0, True)
    assert end > HEALTHY_SECONDS


def test_in_the_end_every_alert_is_resolved(watch: Watch, traffic: Traffic) -> None:
    watch.falls_silent(f"quiet, while {STEADY_SOURCE} goes on sending", 100)
