"""Method: many small universes (an account each) of colliding rows in one frame; columns and rule must agree."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import polars as pl
import pytest

from jobs.joins.memory import Memory, carried
from jobs.joins.pairs import split
from jobs.joins.resolve import resolve
from metering.joining import FINAL, Decision, Row, Side, Winner, step
from metering.vocabulary import EventType, Outcome

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = carried(["gpu_seconds"], ["region"])
TIMEOUT = timedelta(seconds=3)
TIMEOUTS_US = (3_000_000, 1_000_000, 6_000_000)
TYPES = {Side.REQUEST: EventType.REQUEST, Side.COMPLETION: EventType.COMPLETION, Side.BOTH: EventType.USAGE}
Winners = tuple[Winner, ...]


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def us(instant: datetime) -> int:
    return (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def row_of(lsn: int, side: Side, seconds: float, timeout_us: int = TIMEOUTS_US[0], merit: int = FINAL) -> Row:
    return Row(lsn, side, us(at(seconds)), timeout_us, merit, us(START + timedelta(minutes=lsn)))


def record(row: Row, account: str = "a", decided: Side | None = None, *, is_remembered: bool = False) -> dict[str, Any]:
    """A journal row whose every value tells which lsn it is from."""
    begins, ends = row.side is not Side.COMPLETION, row.side is not Side.REQUEST
    return {
        "lsn": row.lsn,
        "family": row.side.value,
        "account": account,
        "request_id": "r",
        "user_id": f"user-{row.lsn}" if begins else None,
        "model": f"model-{row.lsn}" if begins else None,
        "status": "completed" if ends else None,
        "quantity:gpu_seconds": Decimal(row.lsn) / 8 if ends else None,
        "text:region": f"region-{row.lsn}" if begins else "of the completion",
        "reported:quantity_includes": f"convention-{row.lsn}" if ends else None,
        "event_time": START + timedelta(minutes=row.lsn),
        "received_at": datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=row.received_us),
        "timeout_us": row.timeout_us,
        "merit": row.merit,
        "remembered": is_remembered or decided is not None,
        "decided_side": decided and decided.value,
    }


def frame(records: list[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(records, schema=SCHEMA)


def resolved(records: list[dict[str, Any]], frontier: datetime | None) -> list[dict[str, Any]]:
    return resolve(frame(records), frontier).to_dicts()


@dataclass(frozen=True)
class Universe:
    """Rows of one key before and after a cut, and what the rule remembers of those before it."""

    before: list[Row]
    memory: Winners
    after: list[Row]

    def records(self, account: str) -> list[dict[str, Any]]:
        earlier = {row.lsn: row for row in self.before}
        # A row that was matched waits what its pair has; one that waits, what it came with.
        kept = [
            (_kept(earlier[winner.lsn], winner), _decided(self.memory, winner.lsn))
            for winner in {winner.lsn: winner for winner in self.memory}.values()
        ]
        remembered = [record(row, account, side, is_remembered=True) for row, side in kept]
        return [*remembered, *(record(row, account) for row in self.after)]


def _kept(row: Row, winner: Winner) -> Row:
    return row if winner.partner is None else replace(row, timeout_us=winner.timeout_us)


def _decided(memory: Winners, lsn: int) -> Side | None:
    """The side on which a remembered row was matched; None while it waits."""
    sides = [winner.side for winner in memory if winner.lsn == lsn and winner.partner is not None]
    return Side.BOTH if len(sides) == 2 else next(iter(sides), None)


def universe(random: Random, cut_at: datetime, first_lsn: int) -> Universe:
    """A few rows on both sides of the cut, where some lsns and receipts are in another order than each other."""
    sides = random.choices([*Side], weights=[4, 4, 1], k=random.choice([1, 2, 2, 3, 4, 6, 9]))
    seconds = [random.randint(0, 14) for _ in sides]
    if random.random() < 0.5:
        seconds.sort()
    merits = random.choices([FINAL, 14, 10, 7], weights=[3, 1, 1, 1], k=len(sides))
    waits = [max(TIMEOUTS_US) if side is Side.COMPLETION else random.choice(TIMEOUTS_US) for side in sides]
    early = [event for event in zip(sides, seconds, waits, merits, strict=True) if at(event[1]) < cut_at]
    late = [event for event in zip(sides, seconds, waits, merits, strict=True) if at(event[1]) >= cut_at]
    rows = [row_of(lsn, *event) for lsn, event in enumerate([*early, *late], start=first_lsn)]
    before, after = rows[: len(early)], rows[len(early) :]
    memory, _ = step((), before, us(cut_at))
    return Universe(before, memory, after)


def told(outcome: dict[str, Any]) -> tuple[str | None, int | None, int | None]:
    return outcome["outcome"], outcome["request_lsn"], outcome["completion_lsn"]


def expected_of(decisions: list[Decision]) -> Counter[tuple[str | None, int | None, int | None]]:
    return Counter((d.fate.value, d.request_lsn, d.completion_lsn) for d in decisions)


@pytest.mark.parametrize("seed", range(12))
def test_differential_columns_and_the_rule_decide_alike_with_and_without_memory(seed: int) -> None:
    random = Random(seed)
    # With the cut at 0 there is no memory: a batch that begins with the journal.
    cut_at, frontier = at(random.choice([0, 4, 8])), random.choice([None, at(9), at(14), at(40)])
    universes = {f"account-{number}": universe(random, cut_at, 10 * number + 1) for number in range(400)}
    records = [row for account, one in universes.items() for row in one.records(account)]
    random.shuffle(records)
    actual: dict[str, Counter[tuple[str | None, int | None, int | None]]] = {name: Counter() for name in universes}
    for outcome in resolved(records, frontier):
        actual[outcome["account"]][told(outcome)] += 1
    for account, one in universes.items():
        _, decisions = step(one.memory, one.after, None if frontier is None else us(frontier))
        assert actual[account] == expected_of(decisions), one


def test_only_keys_with_more_rows_than_a_pair_are_contested() -> None:
    request, completion, both = row_of(1, Side.REQUEST, 0), row_of(2, Side.COMPLETION, 3), row_of(3, Side.BOTH, 0)
    late = row_of(4, Side.COMPLETION, 3.000001)
    uncontested = {"a": [request], "b": [completion], "c": [both], "d": [request, completion]}
    uncontested["g"] = [request, late]
    contested = {"e": [request, request], "f": [request, both], "h": [request, completion, late]}
    rows = [record(row, key) for key, some in {**uncontested, **contested}.items() for row in some]
    rows.append(record(request, "i", decided=Side.REQUEST))
    pairs, rest = split(frame(rows))
    assert sorted(pairs.select("account", "request_lsn", "completion_lsn").rows(), key=str) == [
        ("a", 1, None),
        ("b", None, 2),
        ("c", 3, 3),
        ("d", 1, 2),
        ("g", 1, None),
        ("g", None, 4),
    ]
    assert sorted(rest["account"]) == sorted([*(key for key, some in contested.items() for _ in some), "i"])


def test_a_match_takes_each_value_from_its_side() -> None:
    rows = [row_of(1, Side.REQUEST, 0), row_of(2, Side.COMPLETION, 2)]
    assert resolved([record(row) for row in rows], None) == [
        {
            "account": "a",
            "request_id": "r",
            "outcome": "matched",
            "request_lsn": 1,
            "completion_lsn": 2,
            "user_id": "user-1",
            "model": "model-1",
            "family": "completion",
            "status": "completed",
            "event_time": START + timedelta(minutes=2),
            "received_at": at(2),
            "first_received_at": None,
            "quantity:gpu_seconds": Decimal("0.25"),
            "text:region": "region-1",
            "reported:quantity_includes": "convention-2",
            "timeout_us": TIMEOUTS_US[0],
            "is_lesser": False,
        }
    ]


def test_a_match_reads_quantities_by_the_convention_of_their_report() -> None:
    [found] = resolved([record(row_of(1, Side.COMPLETION, 0)), record(row_of(2, Side.BOTH, 2))], None)
    assert (found["request_lsn"], found["completion_lsn"]) == (2, 1)
    assert (found["quantity:gpu_seconds"], found["reported:quantity_includes"]) == (Decimal("0.125"), "convention-1")


def test_a_missing_part_makes_the_outcome_a_fact_after_the_timeout() -> None:
    request, completion = record(row_of(1, Side.REQUEST, 1), "a"), record(row_of(2, Side.COMPLETION, 2), "b")
    abandoned, orphaned = sorted(resolved([request, completion], at(100)), key=lambda row: row["account"])
    assert told(abandoned) == ("abandoned", 1, None)
    assert told(orphaned) == ("orphaned", None, 2)
    assert (abandoned["quantity:gpu_seconds"], abandoned["text:region"], abandoned["model"]) == (
        None,
        "region-1",
        "model-1",
    )
    assert (orphaned["quantity:gpu_seconds"], orphaned["text:region"]) == (Decimal("0.25"), "of the completion")
    assert orphaned["model"] is None
    assert (abandoned["event_time"], orphaned["event_time"]) == (request["event_time"], completion["event_time"])
    assert (abandoned["received_at"], orphaned["received_at"]) == (at(1) + TIMEOUT, at(2) + TIMEOUT)


def test_a_redriven_record_is_paired_by_its_first_receipt() -> None:
    def again(row: Row, seconds: float, account: str) -> dict[str, Any]:
        return record(row, account) | {"first_received_at": at(seconds)}

    request, completion = row_of(1, Side.REQUEST, 50), row_of(2, Side.COMPLETION, 52)
    rows = [record(request, "a"), again(completion, 49, "a"), again(request, 4, "b"), again(completion, 6, "b")]
    rows += [again(request, 5, "c"), record(completion, "d")]
    found = {row["account"]: row for row in resolved(rows, at(100))}
    assert {key: row["outcome"] for key, row in found.items()} == {
        **dict.fromkeys("ab", "matched"),
        "c": "abandoned",
        "d": "orphaned",
    }
    assert {key: row["received_at"] for key, row in found.items()} == {
        **dict.fromkeys("ab", at(52)),
        "c": at(50) + TIMEOUT,
        "d": at(52) + TIMEOUT,
    }
    # A request that was never rejected became a part of the outcome when it came.
    assert {key: row["first_received_at"] for key, row in found.items()} == {
        "a": at(50),
        "b": at(6),
        "c": at(5) + TIMEOUT,
        "d": None,
    }


def test_a_superseded_row_is_decided_at_its_own_time() -> None:
    rows = [row_of(1, Side.BOTH, 0), row_of(2, Side.COMPLETION, 1), row_of(3, Side.BOTH, 2)]
    outcomes = {row["completion_lsn"]: row for row in resolved([record(row) for row in rows], at(100))}
    assert told(outcomes[1]) == ("matched", 1, 1)
    assert told(outcomes[2]) == ("superseded", None, 2)
    assert told(outcomes[3]) == ("superseded", 3, 3)
    for lsn, seconds in ((2, 1), (3, 2)):
        assert outcomes[lsn]["received_at"] == at(seconds)
        assert outcomes[lsn]["event_time"] == START + timedelta(minutes=lsn)


def test_a_matched_row_of_an_earlier_batch_gives_no_second_outcome() -> None:
    row = row_of(1, Side.REQUEST, 0)
    assert resolved([record(row, decided=Side.REQUEST)], at(100)) == []


def test_one_key_with_thousands_of_rows_is_decided() -> None:
    sides = [Side.REQUEST, Side.COMPLETION]
    records = [record(row_of(lsn, sides[lsn % 2], lsn / 1000)) for lsn in range(1, 3_001)]
    fates = Counter(outcome["outcome"] for outcome in resolved(records, at(2)))
    assert fates == {Outcome.MATCHED.value: 1, Outcome.SUPERSEDED.value: 2_998}


def test_a_request_is_given_up_after_its_models_timeout_and_a_completion_after_the_longest() -> None:
    short, long = (record(row_of(1, Side.REQUEST, 0, wait_us), str(wait_us)) for wait_us in TIMEOUTS_US[1:])
    completion = record(row_of(2, Side.COMPLETION, 0, max(TIMEOUTS_US)), "c")
    assert [(row["account"], row["received_at"]) for row in resolved([short, long, completion], at(2))] == [
        ("1000000", at(1))
    ]
    assert {row["outcome"]: row["received_at"] for row in resolved([long, completion], at(6.1))} == {
        Outcome.ABANDONED: at(6),
        Outcome.ORPHANED: at(6),
    }


@pytest.mark.parametrize("seed", range(4))
def test_differential_memory_keeps_of_a_batch_the_rows_sides_and_timeouts_that_the_rule_keeps(seed: int) -> None:
    random, cut_at = Random(seed), at(8)
    universes = [universe(random, cut_at, 10 * number + 1) for number in range(400)]
    batch = frame([record(row, f"account-{number}") for number, one in enumerate(universes) for row in one.before])
    involved = Memory.empty(SCHEMA).involved(batch.drop("decided_side", "remembered"), cut_at)
    memory = Memory.empty(SCHEMA).after(involved, resolve(involved, cut_at), cut_at).within(0, cut_at)
    columns = ("account", "lsn", "decided_side", "timeout_us")
    kept = pl.concat([memory.rows.select(columns), *(part.select(columns) for part in memory.decided)])
    assert sorted(kept.rows()) == sorted(
        tuple(row[name] for name in columns)
        for number, one in enumerate(universes)
        for row in replace(one, after=[]).records(f"account-{number}")
    )
