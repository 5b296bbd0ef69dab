"""Stragglers that wait: decided once, by whoever is first and in time, else by their deadline; by a second rule."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import psycopg
import pytest

from jobs.billing import days, fold
from jobs.billing.config import BillingConfig
from jobs.billing.holding import is_due
from jobs.runtime.effective_rules import EffectiveRules
from metering.meters import Meter
from metering.vocabulary import Decision, Outcome, UsageCause
from metering.windows import MINUTE, tumbling
from monitoring import metrics
from tests.pipelines.billing import MICROSECOND, NOON, Price, bill, billed, policy_of, stored, usage_row
from tests.pipelines.folding import rows_of
from tests.pipelines.test_corrections import (
    DROP_ALL,
    LATE,
    PRICES,
    History,
    Row,
    close_until,
    corrections,
    explains_every_window,
    taken_back,
)
from tests.specifications.lateness import Arrival, arrival

HOLD_SECONDS = 1_200
HOLD = timedelta(seconds=HOLD_SECONDS)
RECEIVED = NOON + LATE
DEADLINE = RECEIVED + HOLD
HELD = (Meter.REQUESTS, Meter.OUTPUT_TOKENS)


def holding(**how: Any) -> BillingConfig:
    """Two meters whose stragglers wait; a third corrects."""
    policies = dict.fromkeys(HELD, "hold")
    return BillingConfig.model_validate({"late_policy": policies, "hold": {"seconds": HOLD_SECONDS, **how}})


ALL = holding()
CORRECTS_THEN = holding(expires="correct")
LARGE = holding(above_amount="0.2")
OLD = holding(above_age_seconds=900)
BY_CURRENCY = holding(above_amount_by_currency={"EUR": "0.2"})
EITHER = holding(expires="correct", above_amount="0.5", above_age_seconds=905)


def decided(lsn: int, straggler: int, decision: str, at: datetime, meter: Meter = Meter.REQUESTS, **other: Any) -> Row:
    """The row of usage that says a decision."""
    said = {"decision": decision, "decided_by": f"ann {lsn}", "reason": 'she said "yes"\n, or so'}
    row: Row = {
        "lsn": lsn,
        "account": "acme",
        "request_id": f"request-{straggler}",
        "outcome": "decided",
        "cause": "decided",
        "request_lsn": lsn,
        "event_time": at,
        "received_at": at,
        "sign": 1,
        "corrects_lsns": [straggler],
        "meters": [{"meter": meter.value}],
        "dimensions": json.dumps(said),
    }
    return {**row, **other}


class Waiting(History):
    """Random usage with decisions in it, and F as it stands after each row."""

    def __init__(self, seed: int) -> None:
        self.frontiers: list[datetime | None] = []
        super().__init__(seed)

    def _add(self, said: Row, *, stays: bool = True) -> None:
        super()._add(said, stays=stays)
        self._pass()
        while self.chance.random() < 0.4:
            self._say()
            self._pass()

    def _say(self) -> None:
        """A decision about what came late, or any row that there is or will be; in time or not; by wrong names, too."""
        late = [one["lsn"] for one in self.rows if one["cause"] == "stream" and one["received_at"] >= RECEIVED]
        lsn, straggler = len(self.rows) + 1, self.chance.randint(1, len(self.rows) + 1)
        if late and self.chance.random() < 0.8:
            straggler = self.chance.choice(late)
        row = self.rows[min(straggler, len(self.rows)) - 1]
        at = NOON + timedelta(seconds=self.chance.randint(0, 3_000))
        if (frontier := self.frontiers[-1]) is not None:
            at = max(at, frontier)
        names = {"account": row["account"], "request_id": row["request_id"]}
        if self.chance.random() < 0.1:
            names |= {self.chance.choice(sorted(names)): "another"}
        meter = self.chance.choice([*HELD, Meter.INPUT_TOKENS])
        self.rows.append(decided(lsn, straggler, self.chance.choice(["approve", "reject"]), at, meter, **names))

    def _pass(self) -> None:
        """Time passes, mostly not, and in the end beyond some deadlines."""
        before = self.frontiers[-1] if self.frontiers else None
        if len(self.rows) > 5 and self.chance.random() < 0.15:
            before = (before or NOON) + timedelta(seconds=self.chance.choice([0, 1, 20, 150]))
        self.frontiers.append(before)


def settled(rows: Sequence[Row], frontiers: Sequence[datetime | None], config: BillingConfig) -> dict[Any, Decision]:
    """What became of those that waited: row by row, with F after each."""
    waiting: dict[tuple[int, str], tuple[Row, datetime]] = {}
    found: dict[tuple[int, str], Decision] = {}
    for row, frontier in zip(rows, frontiers, strict=True):
        if row["cause"] == UsageCause.DECIDED:
            key = (row["corrects_lsns"][0], row["meters"][0]["meter"])
            straggler, until = waiting.get(key, (None, None))
            named = straggler and (straggler["account"], straggler["request_id"]) == (row["account"], row["request_id"])
            if named and until is not None and row["received_at"] < until:
                found[key] = Decision(json.loads(row["dimensions"])["decision"])
                del waiting[key]
        elif row["cause"] == UsageCause.STREAM:
            waiting |= {(row["lsn"], meter.value): (row, row["received_at"] + HOLD) for meter in _waits(row, config)}
        over = [key for key, (_, until) in waiting.items() if frontier is not None and until <= frontier]
        for key in over:
            found[key] = Decision(config.hold.expires)
            del waiting[key]
    return found


def _waits(row: Row, config: BillingConfig) -> Iterator[Meter]:
    grace = timedelta(seconds=config.grace_seconds)
    if arrival(row["received_at"], tumbling(row["event_time"]), grace) is Arrival.STRAGGLER:
        held = EffectiveRules(1, config.deciding)
        yield from (meter for meter in Meter if policy_of(row, meter, held) is Decision.HOLD)


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize(
    "config",
    [ALL, CORRECTS_THEN, LARGE, OLD, BY_CURRENCY, EITHER],
    ids=["all", "correct then", "above an amount", "above an age", "above that of a currency", "above either"],
)
@pytest.mark.parametrize("seed", range(3, 6))
def test_oracle_any_cut_decides_the_same_and_bills_it_once_to_the_last_digit(
    database: str, connection: psycopg.Connection[Any], seed: int, config: BillingConfig
) -> None:
    """I6 and I8 with all that waits, is approved, rejected, or was not decided in time; each cut has its F."""
    closed_until = NOON + MINUTE
    close_until(database, closed_until)
    history = Waiting(seed)
    rows, frontiers = history.rows, history.frontiers
    cuts = sorted(history.chance.sample(range(1, len(rows)), history.chance.choice([0, 1, 8, 60])))
    for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        bill(connection, rows[start:end], config, frontiers[end - 1])
        if history.chance.random() < 0.3:
            # Time passes by itself, and what was decided is folded again by nobody.
            bill(connection, [], config, frontiers[end - 1])
    became = settled(rows, frontiers, config)
    expected = billed(rows, config, closed_until, became)
    found = stored(connection)
    assert found.stragglers == expected.stragglers
    assert found.windows == expected.windows
    made = corrections(connection)
    told = [(lsn, one["meter"]) for one in made for lsn in one["usage_lsns"]]
    assert sorted(told) == sorted(expected.corrections), "each row that corrects is in one correction"
    explains_every_window(
        [row for row in rows if row["cause"] != "decided"],
        expected.corrections,
        made,
        found.windows,
        expected.dropped,
    )
    assert set(became.values()) >= {Decision.APPROVE, Decision.REJECT}, "the history decides something"
    days = "SELECT meter, trim_scale(sum(quantity)) AS q FROM {} GROUP BY 1 HAVING sum(quantity) <> 0 ORDER BY 1"
    assert rows_of(connection, days.format("usage_days")) == rows_of(connection, days.format("usage_windows"))


def test_the_histories_above_let_deadlines_pass_and_leave_others_waiting() -> None:
    became = [settled(history.rows, history.frontiers, ALL) for history in map(Waiting, range(3, 6))]
    assert any(Decision.DROP in one.values() for one in became)
    assert any(
        (row["lsn"], meter.value) not in one
        for history, one in zip(map(Waiting, range(3, 6)), became, strict=True)
        for row in history.rows
        if row["cause"] == "stream"
        for meter in _waits(row, ALL)
    )


def straggler(lsn: int, **other: Any) -> Row:
    return usage_row(lsn, NOON, LATE, **{"outcome": Outcome.ABANDONED, **other})


def test_a_held_straggler_is_billed_once_when_approved(
    connection: psycopg.Connection[Any],
) -> None:
    on_time, late = usage_row(1, outcome=Outcome.ABANDONED), straggler(2, price=Price(9, Decimal("0.5")))
    counts = bill(connection, [on_time, late], ALL)
    assert counts[metrics.STRAGGLERS, "requests", "hold"] == 1
    assert [cell["quantity"] for cell in stored(connection).windows.values()] == [1]
    assert corrections(connection) == []
    for _ in range(2):
        counts = bill(connection, [decided(3, 2, "approve", RECEIVED)], ALL)
        assert counts.get((metrics.UNPRICED, "requests"), 0) == 0
    assert sum(cell["quantity"] for cell in stored(connection).windows.values()) == 2
    [made] = corrections(connection)
    assert (made["usage_lsns"], made["cause"], made["decision"]) == ([2], "stream", "approve")
    assert (made["old_quantity"], made["new_quantity"]) == (1, 2)
    old = Decimal("0.000003141593")
    assert (made["old_amount"], made["new_amount"]) == (old, old + Decimal("0.5"))


def test_a_straggler_records_its_decision_and_its_deadline(connection: psycopg.Connection[Any]) -> None:
    names = ("decision", "hold_until", "decided_at", "decided_by", "reason", "decided_lsn")
    query = f"SELECT {', '.join(names)} FROM stragglers ORDER BY usage_lsn"
    bill(connection, [straggler(1), straggler(2)], ALL)
    assert [tuple(row.values()) for row in rows_of(connection, query)] == [("hold", DEADLINE, *[None] * 4)] * 2
    bill(connection, [decided(3, 1, "reject", RECEIVED)], ALL)
    bill(connection, [], ALL, DEADLINE)
    rejected, expired = (tuple(row.values()) for row in rows_of(connection, query))
    assert rejected == ("reject", DEADLINE, RECEIVED, "ann 3", 'she said "yes"\n, or so', 3)
    assert expired == ("drop", DEADLINE, DEADLINE, None, None, None)


@pytest.mark.parametrize("first", ["approve", "reject"])
def test_the_first_decision_is_final(connection: psycopg.Connection[Any], first: str) -> None:
    second = "reject" if first == "approve" else "approve"
    bill(connection, [straggler(1), straggler(2)], ALL)
    bill(connection, [decided(3, 1, first, RECEIVED), decided(4, 1, second, RECEIVED)], ALL)
    bill(connection, [decided(5, 2, first, RECEIVED)], ALL)
    bill(connection, [decided(6, 2, second, RECEIVED)], ALL, DEADLINE)
    assert [one["decision"] for one in stored(connection).stragglers.values()] == [first, first]


@pytest.mark.parametrize(("at", "became"), [(DEADLINE - MICROSECOND, "approve"), (DEADLINE, "correct")])
@pytest.mark.parametrize("cut", [1, 2], ids=["apart", "in one batch"])
def test_a_decision_counts_if_it_was_received_before_the_deadline(
    connection: psycopg.Connection[Any], at: datetime, became: str, cut: int
) -> None:
    rows = [straggler(1), decided(2, 1, "approve", at)]
    bill(connection, rows[:cut], CORRECTS_THEN)
    bill(connection, rows[cut:], CORRECTS_THEN, DEADLINE)
    [found] = stored(connection).stragglers.values()
    assert found["decision"] == became


def test_the_deadline_passes_when_f_reaches_it_and_not_before(connection: psycopg.Connection[Any]) -> None:
    bill(connection, [straggler(1)], CORRECTS_THEN)
    for frontier, is_over in [(None, False), (DEADLINE - MICROSECOND, False), (DEADLINE, True)]:
        with connection.transaction(), connection.cursor() as cursor:
            assert is_due(cursor, frontier) is is_over
        counts = bill(connection, [], CORRECTS_THEN, frontier)
        assert counts.get((metrics.STRAGGLERS, "requests", "correct"), 0) == is_over
        [found] = stored(connection).stragglers.values()
        assert found["decision"] == ("correct" if is_over else "hold")
    with connection.transaction(), connection.cursor() as cursor:
        assert not is_due(cursor, DEADLINE + HOLD)
    assert [one["usage_lsns"] for one in corrections(connection)] == [[1]]


@pytest.mark.parametrize("wrong", [{"account": "bolt"}, {"request_id": "request-9"}, {"corrects_lsns": [9]}])
def test_a_decision_about_another_version_changes_nothing(connection: psycopg.Connection[Any], wrong: Row) -> None:
    bill(connection, [straggler(1), decided(2, 1, "approve", RECEIVED, **wrong)], ALL)
    bill(connection, [decided(3, 1, "approve", RECEIVED, **wrong)], ALL)
    bill(connection, [decided(4, 1, "approve", RECEIVED, Meter.OUTPUT_TOKENS)], ALL)
    assert [one["decision"] for one in stored(connection).stragglers.values()] == ["hold"]


def test_what_was_decided_before_it_came_is_not_decided(connection: psycopg.Connection[Any]) -> None:
    at_once = [decided(1, 2, "approve", RECEIVED), straggler(2)]
    for part in (at_once, [decided(3, 4, "approve", RECEIVED)], [straggler(4)]):
        bill(connection, part, ALL)
    assert [one["decision"] for one in stored(connection).stragglers.values()] == ["hold", "hold"]


@pytest.mark.parametrize("decision", ["approve", "reject"])
@pytest.mark.parametrize("cuts", [(1, 2, 3), (3, 4, 4), (2, 4, 4), (4, 4, 4), (1, 1, 4)], ids=str)
def test_what_corrects_it_waits_and_is_decided_with_it(
    connection: psycopg.Connection[Any], decision: str, cuts: tuple[int, int, int]
) -> None:
    """A refund of what waits, and what takes the refund back; before the decision and after it."""
    rows = [
        straggler(1),
        taken_back(2, 1),
        decided(3, 1, decision, RECEIVED),
        taken_back(4, 2, sign=1),
    ]
    for start, end in zip((0, *cuts), (*cuts, 4), strict=True):
        bill(connection, rows[start:end], ALL)
    found = stored(connection)
    assert {lsn: one["decision"] for (lsn, _), one in found.stragglers.items()} == dict.fromkeys((1, 2, 4), decision)
    assert sum(cell["quantity"] for cell in found.windows.values()) == (1 if decision == "approve" else 0)


def test_a_row_that_replaces_two_waits_while_one_of_them_waits(connection: psycopg.Connection[Any]) -> None:
    bill(connection, [straggler(1), straggler(2), straggler(3)], ALL)
    bill(connection, [straggler(4, cause="rejoined", corrects_lsns=[1, 2]), taken_back(5, 3)], ALL)
    bill(connection, [decided(6, 1, "reject", RECEIVED)], ALL)
    assert stored(connection).stragglers[4, "requests"]["decision"] == "hold"
    bill(connection, [decided(7, 2, "approve", RECEIVED)], ALL)
    decisions = {lsn: one["decision"] for (lsn, _), one in stored(connection).stragglers.items()}
    assert decisions == {1: "reject", 2: "approve", 3: "hold", 4: "approve", 5: "hold"}


@pytest.mark.parametrize(
    ("config", "waits"),
    [
        (ALL, {1, 2, 3, 4, 5}),
        (LARGE, {2, 3, 5}),
        (OLD, {4, 5}),
        (EITHER, {2, 3, 4, 5}),
    ],
    ids=["all", "above an amount", "above an age", "above either"],
)
def test_only_stragglers_above_an_amount_or_age_are_held(
    connection: psycopg.Connection[Any], config: BillingConfig, waits: set[int]
) -> None:
    """What has no price may be worth anything, and of a negative amount it is its size."""
    small, large = Price(3, Decimal("0.2")), Price(9, Decimal("0.500000000001"))
    older = {"received_at": NOON + LATE + timedelta(seconds=10)}
    rows = [
        straggler(1, price=small),
        straggler(2, price=large),
        straggler(3, price=None),
        straggler(4, price=small, **older),
        straggler(5, price=large, sign=-1, **older),
    ]
    bill(connection, rows, config)
    decisions = {lsn: one["decision"] for (lsn, _), one in stored(connection).stragglers.items()}
    assert decisions == {lsn: "hold" if lsn in waits else "correct" for lsn in range(1, 6)}


@pytest.mark.parametrize(
    ("others", "waits"),
    [({}, {2, 4, 5, 6}), ({"above_amount": 1}, {2, 4, 6}), ({"above_age_seconds": 900}, {2, 4, 5, 6})],
    ids=["no amount of others", "an amount of others", "an age"],
)
def test_each_currency_has_its_own_amount_above_which_a_straggler_waits(
    connection: psycopg.Connection[Any], others: dict[str, Any], waits: set[int]
) -> None:
    """In a currency without one nothing is known to be little, unless there is an amount of all others."""
    config = holding(above_amount_by_currency={"EUR": "0.2", "JPY": 30}, **others)
    amounts = [("EUR", "0.2"), ("EUR", "0.3"), ("JPY", "30"), ("JPY", "30.1"), ("USD", "0.2"), ("USD", "1.1")]
    rows = [
        straggler(lsn, price=Price(lsn, Decimal(amount)), currency=currency)
        for lsn, (currency, amount) in enumerate(amounts, 1)
    ]
    bill(connection, rows, config)
    decisions = {lsn: one["decision"] for (lsn, _), one in stored(connection).stragglers.items()}
    assert decisions == {lsn: "hold" if lsn in waits else "correct" for lsn in range(1, 7)}


def test_what_was_not_reported_does_not_wait(connection: psycopg.Connection[Any]) -> None:
    """It is no quantity that somebody could decide about, and is counted as it comes."""
    counts = bill(connection, [usage_row(1, NOON, LATE, quantities={Meter.OUTPUT_TOKENS: None})], ALL)
    assert counts[metrics.UNMETERED, "output_tokens"] == 1
    found = stored(connection)
    assert found.stragglers == {}
    assert {key[3]: cell["unmetered_rows"] for key, cell in found.windows.items()}["output_tokens"] == 1


def test_a_straggler_that_is_decided_cannot_be_folded_again(connection: psycopg.Connection[Any]) -> None:
    bill(connection, [straggler(1)], DROP_ALL)
    with pytest.raises(psycopg.errors.NotNullViolation):
        bill(connection, [straggler(1)], DROP_ALL)


def test_price_changes_while_held_become_one_correction(database: str, connection: psycopg.Connection[Any]) -> None:
    close_until(database, NOON + MINUTE)
    bill(connection, [straggler(1)], ALL)
    again: Row = {"cause": "repriced", "corrects_lsns": [1]}
    bill(connection, [taken_back(2, 1, cause="repriced"), straggler(3, price=PRICES[2], **again)], ALL)
    bill(connection, [decided(4, 1, "approve", RECEIVED)], ALL)
    assert [(one["usage_lsns"], one["decision"]) for one in corrections(connection)] == [
        ([1], "approve"),
        ([2, 3], "approve"),
    ]


MADE = "usage_lsns, meter, window_start, account, model, currency, cause, decision, dimensions"
SIDES = "old_quantity, new_quantity, old_amount, new_amount"
TABLES = ("usage_windows", "usage_days", "usage_day_dimensions", "stragglers", "corrections")


def emptied(connection: psycopg.Connection[Any]) -> None:
    for table in TABLES:
        with connection.transaction():
            connection.execute(f"DELETE FROM {table}")


def decisions_and_refunds(seed: int) -> list[Row]:
    """Stragglers that wait and that correct at once, in one window; decisions about any of them, and a refund of some.

    One of each: which of two come as one correction may depend on the cut. What is last approves one that has waited.
    """
    chance, waits = random.Random(seed), straggler(3, price=PRICES[2])
    rows, refunded = [straggler(1, price=PRICES[2]), straggler(2, price=PRICES[1]), waits], set[int]()
    while len(rows) < 19:
        lsn, of = len(rows) + 1, chance.choice([row for row in rows if row["cause"] != "decided" and row is not waits])
        price = {"price": chance.choice(PRICES)}
        match chance.randint(0, 3):
            case 0:
                rows.append(straggler(lsn, **price))
            case 1 if of["lsn"] not in refunded:
                refunded.add(of["lsn"])
                rows.append(taken_back(lsn, of["lsn"], sign=-of["sign"], **price))
            case _:
                rows.append(decided(lsn, of["lsn"], chance.choice(["approve", "approve", "reject"]), RECEIVED))
    return [*rows, decided(20, waits["lsn"], "approve", RECEIVED)]


@pytest.mark.few_in_ci(3)
@pytest.mark.parametrize("end", [None, DEADLINE], ids=["some wait on", "deadlines pass in the end"])
@pytest.mark.parametrize("seed", range(4))
def test_however_usage_is_cut_its_corrections_are_the_same_and_in_the_same_order(
    database: str, connection: psycopg.Connection[Any], seed: int, end: datetime | None
) -> None:
    close_until(database, NOON + MINUTE)
    rows, chance = decisions_and_refunds(seed), random.Random(seed)
    config = holding(above_amount="0.1", expires="correct")
    made = []
    for cuts in ([], range(1, len(rows)), *(sorted(chance.sample(range(1, len(rows)), 4)) for _ in range(2))):
        emptied(connection)
        for first, last in zip([0, *cuts], [*cuts, len(rows)], strict=True):
            bill(connection, rows[first:last], config, end if not cuts else None)
        bill(connection, [], config, end, len(rows) + 1)
        made.append(rows_of(connection, f"SELECT {MADE}, {SIDES} FROM corrections ORDER BY number"))
    assert made[1:] == made[:1] * 3
    assert {one["decision"] for one in made[0]} >= {"approve", "correct"}


def test_a_straggler_that_waits_takes_effect_where_it_is_decided(connection: psycopg.Connection[Any]) -> None:
    """Decided with what came meanwhile it is behind that, as when they are billed apart."""
    large, small = straggler(1, price=Price(9, Decimal("0.5"))), straggler(2, price=Price(3, Decimal("0.1")))
    rows = [large, small, decided(3, 1, "approve", RECEIVED)]
    for cut in (2, 3):
        emptied(connection)
        for part in (rows[:cut], rows[cut:]):
            bill(connection, part, LARGE, next_position=3)
        told = {row["usage_lsns"][0]: (row["old_quantity"], row["new_quantity"]) for row in corrections(connection)}
        assert told == {2: (0, 1), 1: (1, 2)}


@pytest.mark.parametrize("sign", [1, -1])
def test_a_held_row_keeps_its_sign(connection: psycopg.Connection[Any], sign: int) -> None:
    """A declared meter may report less than nothing; what takes it back has a positive quantity."""
    found = []
    for config, more in ((BillingConfig(), []), (ALL, [decided(2, 1, "approve", RECEIVED, Meter.OUTPUT_TOKENS)])):
        emptied(connection)
        row = straggler(1, quantities={Meter.OUTPUT_TOKENS: Decimal("-2.5")}, sign=sign)
        for part in ([row], more):
            bill(connection, part, config)
        found.append(rows_of(connection, "SELECT quantity, usage_rows FROM usage_days"))
    assert found == [[{"quantity": sign * Decimal("-2.5"), "usage_rows": sign}]] * 2


def test_rows_of_releases_without_a_sign_have_it_in_the_quantity(connection: psycopg.Connection[Any]) -> None:
    bill(connection, [straggler(1, sign=-1)], ALL)
    connection.execute("UPDATE stragglers SET sign = NULL")
    connection.commit()
    bill(connection, [decided(2, 1, "approve", RECEIVED)], ALL)
    assert rows_of(connection, "SELECT quantity, usage_rows FROM usage_days") == [{"quantity": -1, "usage_rows": -1}]


@pytest.mark.parametrize("how", ["approved", "expired"])
def test_which_dimensions_have_a_row_of_their_own_does_not_depend_on_when_time_passed(
    connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """What waited, and what takes it back, come behind what was billed before them."""
    monkeypatch.setattr(fold, "add_days", partial(days.add_days, max_combinations=1))
    rows = [
        straggler(1, dimensions='{"team": "a"}'),
        taken_back(2, 1, dimensions='{"team": "b"}'),
        usage_row(3, outcome=Outcome.ABANDONED, dimensions='{"team": "c"}'),
    ]
    last = [decided(4, 1, "approve", RECEIVED)] if how == "approved" else []
    end = DEADLINE if how == "expired" else None
    for batches in ([rows, last], [[*rows, *last]]):
        emptied(connection)
        for number, batch in enumerate(batches, 1):
            bill(connection, batch, CORRECTS_THEN, end if number == len(batches) else None, 4)
        found = rows_of(connection, "SELECT dimensions FROM usage_days WHERE NOT is_other")
        assert found == [{"dimensions": {"team": "c"}}]


def test_a_reversal_of_a_straggler_is_a_correction_as_the_straggler_was(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    """Who adds corrections up would else have one half of the pair; and the audit misses it for good."""
    close_until(database, NOON)
    straggler = usage_row(1, NOON, LATE)
    taken = {**usage_row(2, NOON, LATE), "request_id": "request-1", "sign": -1, "cause": "duplicate"}
    taken |= {"corrects_lsns": [1], "frontier": NOON + LATE}
    bill(connection, [straggler, taken], ALL)
    bill(connection, [decided(3, 1, "approve", RECEIVED)], ALL)
    made = [(one["usage_lsns"], one["old_quantity"], one["new_quantity"]) for one in corrections(connection)]
    assert made == [([1], 0, 1), ([2], 1, 0)]
