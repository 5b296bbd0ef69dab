"""A broker or a database that is gone for ten minutes under traffic: one right page, no wrong one, no digit changed."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from deployment.stack import Stack
from metering.vocabulary import Job
from tests.attack.conftest import attacked
from tests.e2e.metering import new_customer
from tests.e2e.test_away import frozen, restart, undisturbed, waits_for
from tests.e2e.watched import Watch
from tests.waiting import wait_until

pytestmark = pytest.mark.attack

AWAY_SECONDS = 600
TRUE_MEANWHILE = {"FreshnessBurnFast", "FreshnessBurnSlow", "LateRateHigh", "SourceSilent"}
"""Bills are late; what producers could not send comes late; whoever cannot send is silent."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """As it comes: in the chunks of the other attacks, ten minutes of events are a backlog of minutes."""
    with attacked(tmp_path_factory.mktemp("away"), {}) as running:
        yield running


@pytest.mark.timeout(AWAY_SECONDS + 600)
@pytest.mark.parametrize(("server", "alert"), [("broker", "WaitingForKafka"), ("database", "WaitingForDatabase")])
def test_ten_minutes_without_a_server_raise_one_alert_and_cost_nothing(
    stack: Stack, tmp_path: Path, server: str, alert: str
) -> None:
    customer, watch, began = new_customer(stack, tmp_path), Watch(stack), datetime.now(UTC)
    with undisturbed(stack, customer), frozen(stack, server):
        time.sleep(AWAY_SECONDS)
        assert alert in watch.firing()
    assert watch.fired_since(began) - TRUE_MEANWHILE == {alert}


def test_every_application_waits_for_a_frozen_database(stack: Stack, tmp_path: Path) -> None:
    customer = new_customer(stack, tmp_path)
    with undisturbed(stack, customer), frozen(stack, "database"):
        for job in Job:
            wait_until(partial(waits_for, stack, job, "database"), f"{job} noticing it")


@pytest.mark.parametrize(
    ("server", "how"),
    [("broker", signal.SIGKILL), ("database", signal.SIGINT), ("database", signal.SIGQUIT)],
    ids=["broker", "database, in order", "database, in recovery"],
)
def test_a_server_that_is_restarted_costs_nothing(
    stack: Stack, tmp_path: Path, server: str, how: signal.Signals
) -> None:
    customer = new_customer(stack, tmp_path)
    with undisturbed(stack, customer):
        restart(stack, server, how)
