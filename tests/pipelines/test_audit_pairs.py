"""Which request a completion answers that came too late for the stream, and what is billed for it.

Each history is audited once at its end and after every step: both bill the same, and another audit appends nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable

from tests.pipelines.hand_made import DAY, HOUR, MINUTE, START, HandMade
from tests.simulation.audits import audit

Billed = dict[tuple[Any, ...], int]


def audited(world: HandMade, at: timedelta) -> int:
    """How many rows an audit appends; it finds no fault."""
    said = audit(world.tables, START + at)
    assert said is not None
    assert [fault for fault in said.faults if isinstance(fault, dict)] == []
    return said.appended


def requests(world: HandMade) -> dict[str, Decimal]:
    """Requests that are billed, by model."""
    rows = pl.DataFrame(DeltaTable(f"{world.tables}/usage").to_pyarrow_table()).explode("meters").unnest("meters")
    counted = rows.filter(meter="requests").group_by("model").agg(net=(pl.col("sign") * pl.col("quantity")).sum())
    return dict(counted.filter(pl.col("net") != 0).iter_rows())


def mended_request(world: HandMade) -> None:
    """The request was a dead letter, and comes back a day later: its completion has been given up."""
    world.completion(HOUR + MINUTE)
    world.joined(3 * HOUR)
    world.request(DAY, first=HOUR)
    world.joined(2 * DAY)


def mended_request_after_its_limit(world: HandMade) -> None:
    """It comes back after `rejoin_seconds`: they count from its first reception."""
    world.completion(HOUR + MINUTE)
    world.joined(3 * HOUR)
    world.request(50 * DAY, first=HOUR)
    world.joined(51 * DAY)


def mended_completion(world: HandMade) -> None:
    """The completion was the dead letter."""
    world.request(HOUR)
    world.joined(3 * HOUR)
    world.completion(50 * DAY, first=HOUR + MINUTE)
    world.joined(51 * DAY)


def sent_anew(world: HandMade) -> None:
    """The request comes after its completion, and nothing says that it is an older one."""
    world.completion(HOUR)
    world.joined(3 * HOUR)
    world.request(DAY)
    world.joined(2 * DAY)


def fallback(world: HandMade) -> None:
    """A gateway falls back to a cheaper model after 20 minutes, and that one answers, after 11."""
    world.request(HOUR, model="big")
    world.joined(HOUR + 15 * MINUTE)
    world.request(HOUR + 20 * MINUTE)
    world.completion(HOUR + 31 * MINUTE)
    world.joined(DAY)


def fallback_that_was_mended(world: HandMade) -> None:
    """The cheaper one's request was a dead letter."""
    world.request(HOUR, model="big")
    world.joined(HOUR + 15 * MINUTE)
    world.request(3 * HOUR, first=HOUR + 20 * MINUTE)
    world.completion(3 * HOUR + 31 * MINUTE, first=HOUR + 31 * MINUTE)
    world.joined(DAY)


def id_used_again(world: HandMade) -> None:
    """A dead letter's id is used again and matched; then the dead letter comes back."""
    world.completion(HOUR + MINUTE)
    world.joined(3 * HOUR)
    world.request(5 * HOUR, model="big")
    world.completion(5 * HOUR + MINUTE)
    world.joined(8 * HOUR)
    world.request(DAY, first=HOUR)
    world.joined(2 * DAY)


def reported_twice(world: HandMade) -> None:
    """A request is completed, reported again an hour later, and its id is used again without an answer."""
    world.request(HOUR)
    world.completion(HOUR + MINUTE)
    world.completion(3 * HOUR)
    world.joined(5 * HOUR)
    world.request(DAY, model="big")
    world.joined(2 * DAY)


class AuditedEachTime(HandMade):
    """The same, audited whenever joins has decided."""

    def joined(self, until: timedelta) -> None:
        """And the audit."""
        super().joined(until)
        audited(self, until)


HISTORIES: list[tuple[Callable[[HandMade], None], Billed, dict[str, int]]] = [
    (mended_request, {(0, "m", "0.01"): 100}, {"m": 1}),
    (mended_request_after_its_limit, {(0, "m", "0.01"): 100}, {"m": 1}),
    (mended_completion, {(0, "m", "0.01"): 100}, {"m": 1}),
    (sent_anew, {(0, "m", "0.01"): 100}, {"m": 1}),
    (fallback, {(0, "m", "0.01"): 100}, {"big": 1, "m": 1}),
    (fallback_that_was_mended, {(0, "m", "0.01"): 100}, {"big": 1, "m": 1}),
    (id_used_again, {(0, "big", "0.2"): 100, (0, "m", "0.01"): 100}, {"big": 1, "m": 1}),
    (reported_twice, {(0, "m", "0.01"): 100, (0, None, None): 100}, {"big": 1, "m": 1}),
]
"""Each with the tokens that are billed of it, by day, model and unit price, and the requests by model."""


@pytest.mark.few_in_ci(2)
@pytest.mark.parametrize("kind", [HandMade, AuditedEachTime])
@pytest.mark.parametrize(
    ("history", "tokens", "of_requests"), HISTORIES, ids=[history.__name__ for history, *_ in HISTORIES]
)
def test_an_abandoned_request_is_billed_once_to_the_answered_one(
    history: Callable[[HandMade], None],
    kind: type[HandMade],
    tokens: Billed,
    of_requests: dict[str, int],
    tmp_path: Path,
) -> None:
    world = kind(tmp_path)
    for model, price in (("m", "0.01"), ("big", "0.2")):
        world.price(timedelta(), price, begins=timedelta(), model=model)
    history(world)
    audited(world, 60 * DAY)
    assert audited(world, 61 * DAY) == 0
    assert world.billed() == tokens
    assert requests(world) == of_requests


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("kind", [HandMade, AuditedEachTime])
@pytest.mark.parametrize("order", [("m", "big"), ("big", "m")])
def test_requests_of_one_instant_are_billed_alike_in_any_order_of_arrival(
    order: tuple[str, str], kind: type[HandMade], tmp_path: Path
) -> None:
    """Two dead letters of one instant come back an hour apart: the one that occurred later is answered."""
    world = kind(tmp_path)
    for model, price in (("m", "0.01"), ("big", "0.2")):
        world.price(timedelta(), price, begins=timedelta(), model=model)
    occurred = {"m": HOUR, "big": HOUR - MINUTE}
    for number, model in enumerate(order, 3):
        came: dict[str, Any] = {"first_received_at": START + HOUR, "model": model}
        world.event(number * HOUR, "request", model, occurred=occurred[model], **came)
        world.joined(number * HOUR + 30 * MINUTE)
    world.completion(6 * HOUR, first=HOUR + MINUTE)
    world.joined(DAY)
    audited(world, 2 * DAY)
    assert audited(world, 3 * DAY) == 0
    assert world.billed() == {(0, "m", "0.01"): 100}
    assert requests(world) == {"m": 1, "big": 1}
