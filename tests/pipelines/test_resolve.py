"""Method: many small universes (an account each) of colliding rows in one frame; Spark and `rules.step` must agree."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from jobs.joins.pairs import pair_frames, split
from jobs.joins.resolve import resolve
from jobs.joins.rules import Decision, Fate, Row, Side, Winner, Winners, step
from jobs.streams import INSTANT, EventType

START = datetime(2026, 1, 1, tzinfo=UTC)
TIMEOUT_SECONDS = 3
TIMEOUT = timedelta(seconds=TIMEOUT_SECONDS)
TYPES = {Side.REQUEST: EventType.REQUEST, Side.COMPLETION: EventType.COMPLETION, Side.BOTH: EventType.USAGE}

ROWS = pa.schema(
    [
        ("lsn", pa.int64()),
        *[(name, pa.string()) for name in ("type", "account", "request_id", "user_id", "model", "status")],
        *[(name, pa.int64()) for name in ("input_tokens", "output_tokens", "cached_tokens")],
        ("event_time", INSTANT),
        ("received_at", INSTANT),
        ("decided_side", pa.string()),
    ]
)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def record(row: Row, account: str = "a", decided: Side | None = None) -> dict[str, Any]:
    """A journal row whose every value tells which lsn it is from."""
    begins, ends = row.side is not Side.COMPLETION, row.side is not Side.REQUEST
    return {
        "lsn": row.lsn,
        "type": TYPES[row.side].value,
        "account": account,
        "request_id": "r",
        "user_id": f"user-{row.lsn}" if begins else None,
        "model": f"model-{row.lsn}" if begins else None,
        "status": "completed" if ends else None,
        "input_tokens": row.lsn if ends else None,
        "output_tokens": row.lsn + 1000 if ends else None,
        "cached_tokens": None,
        "event_time": START + timedelta(minutes=row.lsn),
        "received_at": row.received_at,
        "decided_side": decided and decided.value,
    }


def resolved(spark: SparkSession, records: list[dict[str, Any]], frontier: datetime | None) -> list[dict[str, Any]]:
    parts = pair_frames(spark, pl.DataFrame(pa.Table.from_pylist(records, schema=ROWS)), TIMEOUT)
    outcomes: list[dict[str, Any]] = resolve(*parts, TIMEOUT_SECONDS, frontier).toArrow().to_pylist()
    return outcomes


@dataclass(frozen=True)
class Universe:
    """Rows of one key before and after a cut, and what the rule remembers of those before it."""

    before: list[Row]
    memory: Winners
    after: list[Row]

    def records(self, account: str) -> list[dict[str, Any]]:
        earlier = {row.lsn: row for row in self.before}
        kept = [(earlier[lsn], _decided(self.memory, lsn)) for lsn in sorted({winner.lsn for winner in self.memory})]
        return [record(row, account, side) for row, side in [*kept, *((row, None) for row in self.after)]]


def _decided(memory: Winners, lsn: int) -> Side | None:
    """The side on which a remembered row was matched; None while it waits."""
    sides = [winner.side for winner in memory if winner.lsn == lsn and winner.partner is not None]
    return Side.BOTH if len(sides) == 2 else next(iter(sides), None)


def universe(random: Random, cut_at: datetime) -> Universe:
    """A few rows on both sides of the cut, where some lsns and receipts are in another order than each other."""
    sides = random.choices([*Side], weights=[4, 4, 1], k=random.choice([1, 2, 2, 3, 4, 6, 9]))
    seconds = [random.randint(0, 14) for _ in sides]
    if random.random() < 0.5:
        seconds.sort()
    early = [(side, s) for side, s in zip(sides, seconds, strict=True) if at(s) < cut_at]
    late = [(side, s) for side, s in zip(sides, seconds, strict=True) if at(s) >= cut_at]
    rows = [Row(lsn, side, at(s)) for lsn, (side, s) in enumerate([*early, *late], start=1)]
    before, after = rows[: len(early)], rows[len(early) :]
    memory, _ = step((), before, TIMEOUT, cut_at)
    return Universe(before, memory, after)


def told(outcome: dict[str, Any]) -> tuple[str | None, int | None, int | None]:
    return outcome["outcome"], outcome["request_lsn"], outcome["completion_lsn"]


def expected_of(decisions: list[Decision], memory: Winners) -> Counter[tuple[str | None, int | None, int | None]]:
    waiting = [
        (None, winner.lsn, None) if winner.side is Side.REQUEST else (None, None, winner.lsn)
        for winner in memory
        if winner.partner is None
    ]
    return Counter([*((d.fate.value, d.request_lsn, d.completion_lsn) for d in decisions), *waiting])


@pytest.mark.parametrize("seed", range(4))
def test_differential_spark_and_the_rule_decide_alike_with_and_without_memory(spark: SparkSession, seed: int) -> None:
    random = Random(seed)
    # With the cut at 0 there is no memory: a batch that begins with the journal.
    cut_at, frontier = at(random.choice([0, 4, 8])), random.choice([None, at(9), at(14), at(40)])
    universes = {f"account-{number}": universe(random, cut_at) for number in range(400)}
    records = [row for account, one in universes.items() for row in one.records(account)]
    random.shuffle(records)
    actual: dict[str, Counter[tuple[str | None, int | None, int | None]]] = {name: Counter() for name in universes}
    for outcome in resolved(spark, records, frontier):
        actual[outcome["account"]][told(outcome)] += 1
    for account, one in universes.items():
        memory, decisions = step(one.memory, one.after, TIMEOUT, frontier)
        assert actual[account] == expected_of(decisions, memory), one


def test_only_keys_with_more_rows_than_a_pair_are_contested() -> None:
    request, completion, both = Row(1, Side.REQUEST, at(0)), Row(2, Side.COMPLETION, at(3)), Row(3, Side.BOTH, at(0))
    late = Row(4, Side.COMPLETION, at(3.000001))
    uncontested = {"a": [request], "b": [completion], "c": [both], "d": [request, completion]}
    contested = {"e": [request, request], "f": [request, both], "g": [request, late], "h": [request, completion, late]}
    rows = [record(row, key) for key, some in {**uncontested, **contested}.items() for row in some]
    rows.append(record(request, "i", decided=Side.REQUEST))
    pairs, rest = split(pl.DataFrame(pa.Table.from_pylist(rows, schema=ROWS)), TIMEOUT)
    assert sorted(pairs.select("account", "request_lsn", "completion_lsn").rows()) == [
        ("a", 1, None),
        ("b", None, 2),
        ("c", 3, 3),
        ("d", 1, 2),
    ]
    assert sorted(rest["account"]) == sorted([*(key for key, some in contested.items() for _ in some), "i"])


def test_a_match_takes_each_value_from_its_side(spark: SparkSession) -> None:
    rows = [Row(1, Side.REQUEST, at(0)), Row(2, Side.COMPLETION, at(2))]
    assert resolved(spark, [record(row) for row in rows], None) == [
        {
            "account": "a",
            "request_id": "r",
            "outcome": "matched",
            "request_lsn": 1,
            "completion_lsn": 2,
            "user_id": "user-1",
            "model": "model-1",
            "status": "completed",
            "event_time": START + timedelta(minutes=2),
            "received_at": at(2),
            "requests": 1,
            "input_tokens": 2,
            "output_tokens": 1002,
            "cached_tokens": None,
        }
    ]


def test_a_missing_part_makes_the_outcome_a_fact_after_the_timeout(spark: SparkSession) -> None:
    request, completion = record(Row(1, Side.REQUEST, at(1)), "a"), record(Row(2, Side.COMPLETION, at(2)), "b")
    abandoned, orphaned = sorted(resolved(spark, [request, completion], at(100)), key=lambda row: row["account"])
    assert told(abandoned) == ("abandoned", 1, None)
    assert told(orphaned) == ("orphaned", None, 2)
    assert (abandoned["requests"], abandoned["input_tokens"], abandoned["model"]) == (1, None, "model-1")
    assert (orphaned["requests"], orphaned["input_tokens"], orphaned["model"]) == (0, 2, None)
    assert (abandoned["event_time"], orphaned["event_time"]) == (request["event_time"], completion["event_time"])
    assert (abandoned["received_at"], orphaned["received_at"]) == (at(1) + TIMEOUT, at(2) + TIMEOUT)


def test_a_superseded_row_counts_nothing_at_its_own_time(spark: SparkSession) -> None:
    rows = [Row(1, Side.BOTH, at(0)), Row(2, Side.COMPLETION, at(1)), Row(3, Side.BOTH, at(2))]
    outcomes = {row["completion_lsn"]: row for row in resolved(spark, [record(row) for row in rows], at(100))}
    assert told(outcomes[1]) == ("matched", 1, 1)
    assert told(outcomes[2]) == ("superseded", None, 2)
    assert told(outcomes[3]) == ("superseded", 3, 3)
    for lsn, seconds in ((2, 1), (3, 2)):
        quantities = {outcomes[lsn][meter] for meter in ("requests", "input_tokens", "output_tokens", "cached_tokens")}
        assert quantities == {0}
        assert outcomes[lsn]["received_at"] == at(seconds)
        assert outcomes[lsn]["event_time"] == START + timedelta(minutes=lsn)


def test_a_matched_row_of_an_earlier_batch_is_not_told_again(spark: SparkSession) -> None:
    row = Row(1, Side.REQUEST, at(0))
    assert resolved(spark, [record(row, decided=Side.REQUEST)], at(100)) == []


def test_one_key_with_thousands_of_rows_is_decided(spark: SparkSession) -> None:
    sides = [Side.REQUEST, Side.COMPLETION]
    records = [record(Row(lsn, sides[lsn % 2], at(lsn / 1000))) for lsn in range(1, 3_001)]
    fates = Counter(outcome["outcome"] for outcome in resolved(spark, records, at(2)))
    assert fates == {Fate.MATCHED.value: 1, Fate.SUPERSEDED.value: 2_998}


def test_another_frontier_gives_the_same_generated_code(spark: SparkSession) -> None:
    rows = [record(Row(lsn, Side.REQUEST, at(0)), account) for lsn, account in enumerate("abb", start=1)]
    parts = pair_frames(spark, pl.DataFrame(pa.Table.from_pylist(rows, schema=ROWS)), TIMEOUT)
    assert parts[1] is not None

    def generated_code(frontier: datetime) -> list[str]:
        stages = resolve(*parts, TIMEOUT_SECONDS, frontier)._jdf.queryExecution().debug().codegenToSeq()
        return [str(stages.apply(number)._2()) for number in range(stages.size())]

    code = generated_code(at(1))
    assert any(str(TIMEOUT_SECONDS * 1_000_000) in stage for stage in code)
    assert code == generated_code(at(2))


def test_memory_and_rule_agree_on_what_a_remembered_row_is() -> None:
    both = (Winner(1, Side.REQUEST, at(0), 1), Winner(1, Side.COMPLETION, at(0), 1))
    assert _decided(both, 1) is Side.BOTH
    assert _decided((Winner(1, Side.REQUEST, at(0)),), 1) is None
