"""When an audit is made, how often, and of which period changes nothing of what stands in the end.

Each history is audited at one moment more than another: both end with the same rows, and the next audit finds nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest
from pyspark.sql import SparkSession

from jobs.audit.recompute.basis import Scope, first_log_date, pin
from jobs.audit.recompute.outcomes import ROWS_PER_BUCKET, Outcomes, outcomes
from jobs.audit.tables.append import append
from jobs.audit.tables.retained import retained_rows
from jobs.audit.tables.versions import Versions
from jobs.joins.config import JoinsConfig
from jobs.replay.usage import Tables, replayed
from jobs.runtime.delta.table import open_table
from jobs.streams import Table
from tests.pipelines.hand_made import DAY, HOUR, MINUTE, START, HandMade
from tests.simulation.audits import audit

DEFAULT = JoinsConfig()
LATE = JoinsConfig(completion_timeout_seconds=3_600)


def audited(world: HandMade, at: timedelta, present: JoinsConfig = DEFAULT) -> int:
    """How many rows an audit adds; it finds no fault."""
    said = audit(world.tables, START + at, present=present)
    assert said is not None
    # Its rows of the catalog hold no changes, so only outcomes are compared.
    assert [fault for fault in said.faults if isinstance(fault, dict)] == []
    return said.appended


def by_spark(
    spark: SparkSession, world: HandMade, at: timedelta, asked: Scope, rows_per_bucket: int = ROWS_PER_BUCKET
) -> Outcomes:
    """The shipped audit of a period, which reads only its log dates."""
    usage, journal = open_table(world.tables, Table.USAGE), open_table(world.tables, Table.JOURNAL)
    assert usage is not None
    assert journal is not None
    versions = Versions(spark, world.tables, journal, usage, first_log_date(usage, JoinsConfig(), asked))
    pinned = pin(usage, [retained_rows(journal), retained_rows(usage)], world.tables, JoinsConfig(), asked)
    found = outcomes(versions, pinned, rows_per_bucket)
    assert found.faults.to_dicts() == []
    if len(found.corrections):
        append(usage, found.corrections, START + at)
    return found


def asked_twice(world: HandMade) -> None:
    """A client asks for one request again days later; the completion comes too late for it."""
    world.price(timedelta(), "0.05", begins=timedelta(), model="n")
    world.request(HOUR, model="n")
    world.joined(DAY)
    world.request(10 * DAY)
    world.completion(10 * DAY + HOUR)
    world.joined(10 * DAY + 3 * HOUR)


def accepted_again(world: HandMade) -> None:
    """A request that was matched is accepted again days later, and a second completion comes an hour after it."""
    world.request(HOUR, "A")
    world.completion(HOUR + MINUTE, "B")
    world.joined(DAY)
    world.request(10 * DAY, "A")
    world.completion(10 * DAY + HOUR, "C")
    world.joined(10 * DAY + 3 * HOUR)


def asked_within_a_repeat(world: HandMade) -> None:
    """A request waits behind a repeat of another, which was matched; its completion comes too late for both."""
    world.request(HOUR, "A")
    world.completion(HOUR + MINUTE, "B")
    world.joined(DAY)
    world.request(10 * DAY, "A")
    world.request(10 * DAY + MINUTE, "C")
    world.joined(10 * DAY + HOUR)
    world.completion(10 * DAY + 2 * HOUR, "D")
    world.joined(10 * DAY + 3 * HOUR)


def completed_within_a_repeat(world: HandMade) -> None:
    """The completion of a request that was given up waits behind a repeat of another one."""
    world.request(HOUR, "A")
    world.completion(HOUR + MINUTE, "B")
    world.joined(DAY)
    world.request(10 * DAY, "C")
    world.joined(10 * DAY + HOUR)
    world.completion(10 * DAY + 2 * HOUR, "B")
    world.completion(10 * DAY + 2 * HOUR + MINUTE, "D")
    world.joined(10 * DAY + 3 * HOUR)


def both_again(world: HandMade) -> None:
    """A whole request is accepted again days later."""
    for at in (HOUR, 10 * DAY):
        world.request(at, "A")
        world.completion(at + MINUTE, "B")
        world.joined(at + 3 * HOUR)


def redriven(world: HandMade) -> None:
    """A request that was a dead letter comes back, beside an unanswered one of its id."""
    world.completion(HOUR + MINUTE)
    world.joined(DAY)
    world.request(10 * DAY, first=HOUR)
    world.request(10 * DAY + HOUR)
    world.joined(10 * DAY + 3 * HOUR)


@pytest.mark.long
@pytest.mark.parametrize(
    "history", [asked_twice, accepted_again, both_again, asked_within_a_repeat, completed_within_a_repeat, redriven]
)
def test_daily_audits_agree_with_one_of_everything(
    history: Callable[[HandMade], None], spark: SparkSession, tmp_path: Path
) -> None:
    at = 10 * DAY + 3 * HOUR
    worlds = [HandMade(tmp_path / name) for name in ("hourly", "nightly")]
    for world in worlds:
        world.price(timedelta(), "0.01", begins=timedelta())
        history(world)
    by_spark(spark, worlds[0], at, Scope(since=START + at - DAY))
    for world in worlds:
        audited(world, 11 * DAY)
        assert audited(world, 12 * DAY) == 0
    assert worlds[0].billed() == worlds[1].billed()
    assert by_spark(spark, worlds[0], at, Scope(since=START + at - DAY)).changes == 0


def test_the_audit_of_a_day_sees_a_partner_that_came_after_it_on_either_side(
    spark: SparkSession, tmp_path: Path
) -> None:
    world = HandMade(tmp_path)
    world.price(timedelta(), "0.01", begins=timedelta())
    world.request(DAY + HOUR, name="answered late")
    world.completion(DAY + HOUR, name="asked late")
    world.joined(2 * DAY)
    world.completion(5 * DAY, name="answered late")
    world.request(5 * DAY, name="asked late")
    world.joined(6 * DAY)
    found = by_spark(spark, world, 6 * DAY, Scope(since=START + DAY, until=START + 2 * DAY))
    assert found.causes == {"rejoined": 6}
    assert audited(world, 7 * DAY) == 0


@pytest.mark.long
def test_keys_that_a_period_cannot_correct_do_not_hide_others(spark: SparkSession, tmp_path: Path) -> None:
    """The first rows that would correct are of keys with a row from before: those behind them are put, too."""
    world = HandMade(tmp_path)
    world.price(timedelta(), "0.01", begins=timedelta())
    for name in ("a", "b"):
        world.request(HOUR, name=name)
    world.joined(DAY)
    for name in ("a", "b", "y", "z"):
        world.request(10 * DAY, name=name)
    for name in ("a", "b", "y", "z"):
        world.completion(10 * DAY + HOUR, name=name)
    at = 10 * DAY + 3 * HOUR
    world.joined(at)
    asked = Scope(since=START + at - DAY, max_rows=1)
    first = by_spark(spark, world, at, asked)
    assert {row["request_id"] for row in first.corrections.to_pylist()} == {"y"}
    assert not first.is_all
    second = by_spark(spark, world, at + MINUTE, asked)
    assert {row["request_id"] for row in second.corrections.to_pylist()} == {"z"}
    assert by_spark(spark, world, at + 2 * MINUTE, asked).changes == 0


def test_a_repeat_before_its_contract_is_not_billed_by_an_audit_of_its_period(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The earlier copy is not read, and is the one that counts: an audit without a period bills it."""
    worlds = [HandMade(tmp_path / name) for name in ("hourly", "nightly")]
    at = 10 * DAY
    for world in worlds:
        world.price(timedelta(), "0.01", begins=timedelta())
        world.request(HOUR, name="known")
        world.completion(HOUR, name="known")
        for moment, name in ((HOUR, "twice"), (at, "twice"), (at, "once")):
            world.unknown(moment, name=name)
        world.contract(at + MINUTE)
        world.joined(at + HOUR)
    asked = Scope(since=START + at - HOUR)
    found = by_spark(spark, worlds[0], at + 2 * HOUR, asked)
    assert [row["request_id"] for row in found.corrections.to_pylist()] == ["once"]
    for world in worlds:
        audited(world, 11 * DAY)
        assert audited(world, 12 * DAY) == 0
    assert worlds[0].billed() == worlds[1].billed() == {(0, "m", "0.01"): 200, (10, "m", "0.01"): 100}


class AuditedEachTime(HandMade):
    """The same, audited whenever joins has decided."""

    def joined(self, until: timedelta) -> None:
        """And the audit."""
        super().joined(until)
        audited(self, until)


@pytest.mark.few_in_ci(2)
@pytest.mark.parametrize("history", [asked_within_a_repeat, completed_within_a_repeat])
@pytest.mark.parametrize("kind", [HandMade, AuditedEachTime])
def test_a_request_superseded_only_by_a_repeat_is_rejoined(
    kind: type[HandMade], history: Callable[[HandMade], None], tmp_path: Path
) -> None:
    """It was billed to nobody, so nothing of it goes; the repeat that stood in its place does."""
    world = kind(tmp_path)
    world.price(timedelta(), "0.01", begins=timedelta())
    history(world)
    audited(world, 11 * DAY)
    assert audited(world, 12 * DAY) == 0
    assert world.billed() == {(0, "m", "0.01"): 100, (10, "m", "0.01"): 100}


@pytest.mark.long
def test_the_driver_never_has_more_rows_than_are_corrected_at_once(spark: SparkSession, tmp_path: Path) -> None:
    """However many parts of the keys there are: a price for the past changes rows of all of them."""
    world = HandMade(tmp_path)
    for number in range(40):
        world.request(HOUR, name=f"r{number}")
        world.completion(HOUR + MINUTE, name=f"r{number}")
    world.joined(2 * HOUR)
    world.price(3 * HOUR, "0.01", begins=timedelta())
    world.joined(3 * HOUR)
    asked, parts = Scope(max_rows=20), list[int]()
    while (found := by_spark(spark, world, 3 * HOUR, asked, rows_per_bucket=20)).changes:
        parts.append(len(found.corrections))
    assert sum(parts) == 80
    assert max(parts) <= asked.max_rows
    assert world.billed() == {(0, "m", "0.01"): 4_000}


def test_a_repeat_that_was_taken_back_stays_so_when_retention_has_removed_its_first(tmp_path: Path) -> None:
    world = HandMade(tmp_path)
    world.request(timedelta(), name="whose row keeps the rules")
    world.joined(30 * MINUTE)
    for at, others in ((HOUR, 6 * DAY), (20 * DAY, 21 * DAY)):
        world.request(at, "A")
        world.completion(at + MINUTE, "B")
        world.joined(at + 3 * HOUR)
        world.request(others, name="other")
        world.joined(others + 3 * HOUR)
    world.request(30 * DAY, name="other")
    world.joined(30 * DAY + 2 * HOUR)
    assert audited(world, 30 * DAY + 2 * HOUR) == 1
    world.removed(5 * DAY)
    assert audited(world, 31 * DAY) == 0


def test_what_waits_is_left_alone_until_it_is_decided(tmp_path: Path) -> None:
    """An audit while the completion of a repeated request waits would take its match back, and put it elsewhere."""
    worlds = [HandMade(tmp_path / name, completion_timeout_seconds=3_600) for name in ("between", "end")]
    for world in worlds:
        world.price(timedelta(), "0.01", begins=timedelta())
        world.request(HOUR, "A")
        world.request(3 * DAY, "A")
        world.completion(3 * DAY + MINUTE, "B")
        world.joined(3 * DAY + 2 * MINUTE)
        if world is worlds[0]:
            assert audited(world, 3 * DAY + 3 * MINUTE, LATE) == 0
        world.request(3 * DAY + 5 * HOUR, name="other")
        world.joined(3 * DAY + 5 * HOUR)
        audited(world, 3 * DAY + 5 * HOUR, LATE)
        assert audited(world, 3 * DAY + 5 * HOUR, LATE) == 0
    assert worlds[0].billed() == worlds[1].billed() == {(3, "m", "0.01"): 100}


def test_a_pair_stays_joined_when_more_could_be(tmp_path: Path) -> None:
    """Within 3 days the completion answers the request after it, within 35 the one before it."""
    world = HandMade(tmp_path, rejoin_seconds=3 * 86_400)
    world.request(HOUR)
    world.completion(10 * DAY)
    world.request(11 * DAY)
    world.joined(12 * DAY)
    assert audited(world, 12 * DAY, JoinsConfig(rejoin_seconds=3 * 86_400)) == 3
    assert audited(world, 12 * DAY, DEFAULT) == 0
    assert audited(world, 12 * DAY, JoinsConfig(rejoin_seconds=0)) == 0


@pytest.mark.long
def test_a_partition_that_lags_makes_no_pair_that_is_a_fault_later(tmp_path: Path) -> None:
    worlds = [HandMade(tmp_path / name, completion_timeout_seconds=3_600) for name in ("between", "end")]
    for world in worlds:
        world.request(14 * HOUR)
        world.joined(19 * HOUR)
        world.request(24 * HOUR)
        world.completion(22 * HOUR)
        world.joined(24 * HOUR + MINUTE)
        if world is worlds[0]:
            audited(world, 24 * HOUR + MINUTE, LATE)
        world.completion(24 * HOUR + 30 * MINUTE)
        world.joined(24 * HOUR + 40 * MINUTE)
        audited(world, 25 * HOUR, LATE)
        assert audited(world, 25 * HOUR, LATE) == 0
    assert worlds[0].billed() == worlds[1].billed()


@pytest.mark.few_in_ci(2)
@pytest.mark.parametrize("is_audited_between", [True, False])
@pytest.mark.parametrize("is_withdrawn", [True, False], ids=["as joins of before took it", "as of its beginning"])
def test_a_mistaken_price_deleted_as_of_its_beginning_bills_nothing(
    tmp_path: Path, *, is_withdrawn: bool, is_audited_between: bool
) -> None:
    world = HandMade(tmp_path)
    world.price(timedelta(), "0.01", begins=timedelta())
    world.request(HOUR)
    world.completion(HOUR + MINUTE)
    world.joined(2 * HOUR)
    world.price(3 * HOUR, "99", begins=30 * MINUTE)
    world.joined(3 * HOUR)
    if is_audited_between:
        assert audited(world, 3 * HOUR) == 2
        assert world.billed() == {(0, "m", "99"): 100}
    if is_withdrawn:
        world.price(4 * HOUR, None, begins=30 * MINUTE)
    else:
        world.deleted(4 * HOUR, begins=30 * MINUTE, ends=30 * MINUTE)
    world.joined(4 * HOUR)
    assert audited(world, 5 * HOUR) == (2 if is_audited_between else 0)
    assert world.billed() == {(0, "m", "0.01"): 100}


def test_a_completion_with_the_identity_of_its_request_is_no_repeat_of_it(tmp_path: Path) -> None:
    world = HandMade(tmp_path, completion_timeout_seconds=6 * 3_600)
    world.request(HOUR, "same")
    world.completion(3 * HOUR, "same")
    world.joined(DAY)
    assert audited(world, DAY) == 0
    assert list(world.billed().values()) == [100]


def test_a_what_if_replay_has_all_corrections_of_partial_audits(tmp_path: Path) -> None:
    world = HandMade(tmp_path)
    for number in range(9):
        world.request(HOUR, name=f"r{number}")
        world.completion(HOUR + MINUTE, name=f"r{number}")
    world.joined(2 * HOUR)
    world.price(3 * HOUR, "0.01", begins=timedelta())
    world.joined(3 * HOUR)
    assert audited(world, 3 * HOUR) == 18
    usage, journal = open_table(world.tables, Table.USAGE), open_table(world.tables, Table.JOURNAL)
    assert usage is not None
    assert journal is not None
    live = pin(usage, [], world.tables, DEFAULT, Scope(max_rows=1))
    rows = pl.concat([pl.DataFrame(part) for part in replayed(Tables(journal, usage, START.date()), live, live)])
    assert rows.filter(cause="repriced").height == 18


def amounts(world: HandMade) -> list[tuple[int, str | None]]:
    """Minute and amount of what stands in usage, by minute."""
    usage = open_table(world.tables, Table.USAGE)
    assert usage is not None
    sums: Counter[tuple[int, Decimal | None]] = Counter()
    for row in usage.to_pyarrow_table().to_pylist():
        (entry,) = [one for one in row["meters"] if one["meter"] == "output_tokens"]
        sums[(row["event_time"] - START) // MINUTE, entry["amount"]] += row["sign"]
    stand = sorted((minute, str(amount and amount.normalize())) for (minute, amount), count in sums.items() if count)
    assert all(count in (0, 1) for count in sums.values())
    return [(minute, None if amount == "None" else amount) for minute, amount in stand]


def ended_in_the_past(world: HandMade, told: timedelta) -> None:
    """Usage before a price begins, while it holds, and when it has ended, as is told then or later."""
    world.price(timedelta(), "0.01", begins=timedelta())
    world.price(timedelta(), "0.02", begins=20 * MINUTE)
    deletion = timedelta(minutes=30)
    for at in (10 * MINUTE, 29 * MINUTE, 30 * MINUTE, 40 * MINUTE):
        if told <= at:
            world.deleted(told, begins=20 * MINUTE, ends=deletion)
            told = timedelta.max
        world.request(at - MINUTE, name=f"r{at}")
        world.completion(at, name=f"r{at}")
    world.joined(HOUR)
    if told != timedelta.max:
        world.deleted(told, begins=20 * MINUTE, ends=deletion)
    world.joined(told + HOUR if told != timedelta.max else 2 * HOUR)


@pytest.mark.few_in_ci(2)
@pytest.mark.parametrize(("told", "rows"), [(30 * MINUTE, 0), (35 * MINUTE, 2), (HOUR, 4), (3 * HOUR, 4)])
def test_a_backdated_deletion_of_a_price_unprices_usage_since_then_and_nothing_else(
    tmp_path: Path, told: timedelta, rows: int
) -> None:
    """However late it is told: in the end usage stands as if it had been told at once. Two rows for each outcome."""
    world = HandMade(tmp_path)
    ended_in_the_past(world, told)
    assert audited(world, DAY) == rows
    assert amounts(world) == [(10, "1"), (29, "2"), (30, None), (40, None)]
    assert audited(world, DAY + HOUR) == 0


def test_what_an_earlier_joins_withdrew_stays_as_it_was(tmp_path: Path) -> None:
    """Billed by a price that was deleted when that meant that another goes on: nothing is decided again."""
    world = HandMade(tmp_path)
    world.price(timedelta(), "0.01", begins=timedelta())
    world.price(timedelta(), "0.02", begins=20 * MINUTE)
    for at in (30 * MINUTE, 90 * MINUTE):
        world.request(at - MINUTE, name=f"r{at}")
        world.completion(at, name=f"r{at}")
        world.joined(at + 15 * MINUTE)
        world.price(HOUR, None, begins=20 * MINUTE)
    before = amounts(world)
    assert before == [(30, "2"), (90, "1")]
    assert audited(world, DAY) == 0
    assert amounts(world) == before


def test_a_recreated_price_bills_usage_of_the_gap(tmp_path: Path) -> None:
    world = HandMade(tmp_path)
    world.price(timedelta(), "0.01", begins=timedelta())
    world.deleted(30 * MINUTE, begins=timedelta(), ends=30 * MINUTE)
    world.request(39 * MINUTE)
    world.completion(40 * MINUTE)
    world.joined(HOUR)
    assert amounts(world) == [(40, None)]
    world.price(2 * HOUR, "0.03", begins=timedelta())
    world.joined(3 * HOUR)
    assert audited(world, DAY) == 2
    assert amounts(world) == [(40, "3")]
