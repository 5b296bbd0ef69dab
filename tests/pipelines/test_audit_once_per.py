"""A meter that counts each content once counts its first outcome in each window, whatever was received first.

What stands is said by a few lines of Python and `Decimal` over the set of events, which know nothing of rows, joins or
batches. Each history is audited once at its end and after every step; another audit appends nothing, and a replay bills
the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from hashlib import sha256
from itertools import permutations
from pathlib import Path
from shutil import copytree
from typing import Any

import polars as pl
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from jobs.audit.recompute.basis import Scope, first_log_date, pin
from jobs.audit.recompute.outcomes import ROWS_PER_BUCKET, Outcomes, outcomes
from jobs.audit.tables.append import append
from jobs.audit.tables.retained import retained_rows
from jobs.audit.tables.versions import Versions
from jobs.billing.config import BillingConfig
from jobs.billing.pipeline import JOB as BILLING
from jobs.billing.sums import COLUMNS, sums
from jobs.joins.config import JoinsConfig
from jobs.joins.correction_horizon import content_margin, correction_horizon
from jobs.replay.assumptions import Assumptions
from jobs.replay.usage import Tables, replayed
from jobs.retention.days import first_retained
from jobs.runtime.delta.table import committing, open_table
from jobs.runtime.effective_rules import EffectiveRules
from jobs.streams import Table
from tests.pipelines.folding import fold_table
from tests.pipelines.hand_made import DAY, HOUR, MINUTE, START, HandMade
from tests.simulation.audits import audit

Row = dict[str, Any]
Meters = dict[str, Row]
Billed = dict[tuple[str, str], Decimal]
SECOND, MICROSECOND = timedelta(seconds=1), timedelta(microseconds=1)
TOKENS, REQUESTS = "output_tokens", "requests"
ANSWERED = {"status": ["completed", "cancelled"]}
RANK = {"completed": 2, "cancelled": 1, "error": 0}


def once(column: str = "content_hash", within: str = "PT1H") -> Row:
    return {"once_per": {"column": column, "within": within}}


METERS: Meters = {
    REQUESTS: {"unit": "request", "count": "outcomes", "where": ANSWERED, **once()},
    TOKENS: {"unit": "token", "sum": TOKENS, **once(within="PT30M")},
    "calls": {"unit": "call", "count": "outcomes"},
}
WITHIN = {REQUESTS: HOUR, TOKENS: HOUR / 2}
RULES: Row = {"best_report_bills": True, "meters": METERS}


@dataclass(frozen=True)
class Report:
    """A report of a request that is request and completion in one."""

    request: str
    at: timedelta
    content: str | None
    tokens: int | None = 10
    status: str = "completed"
    number: int = 0

    @property
    def name(self) -> str:
        return f"{self.request} {self.at} {self.content} {self.tokens} {self.status} {self.number}"

    @property
    def identity(self) -> bytes:
        return sha256(self.name.encode()).digest()[:16]

    def received(self, world: HandMade, at: timedelta) -> None:
        said = {"status": self.status, "output_tokens": self.tokens, "content_hash": self.content, "model": "m"}
        world.event(at, "both", self.name, occurred=self.at, name=self.request, **said)


@dataclass(frozen=True)
class Reversal:
    """What takes back all of a request, or of a meter all or so much."""

    request: str
    meter: str | None = None
    quantity: int | None = None
    number: int = 0

    def received(self, world: HandMade, at: timedelta) -> None:
        units = None if self.quantity is None else Decimal(self.quantity)
        world.reversal(at, f"{self}", name=self.request, meter=self.meter, quantity=units)


Event = Report | Reversal


def billed(events: Sequence[Event]) -> Billed:
    """By request and meter what must stand."""
    best: dict[str, Report] = {}
    for one in events:
        if isinstance(one, Report):
            best[one.request] = max(best.get(one.request, one), one, key=_worth)
    taken = [one for one in events if isinstance(one, Reversal)]
    left = {name: one for name, one in best.items() if not any(t.request == name and t.meter is None for t in taken)}
    found: Billed = {}
    firsts: dict[Any, tuple[Any, str]] = {}
    for name, one in left.items():
        counts = one.status in ANSWERED["status"]
        each = {"calls": 1, REQUESTS: 1 if counts else None, TOKENS: one.tokens}
        for meter, reported in each.items():
            credited = [t.quantity for t in taken if (t.request, t.meter) == (name, meter)]
            gone = Decimal(reported or 0) if None in credited else sum(map(Decimal, filter(None, credited)), Decimal())
            if (quantity := Decimal(reported or 0) - gone) <= 0:
                continue
            found[name, meter] = quantity
            if meter in WITHIN and one.content is not None:
                group, rank = (meter, one.content, one.at // WITHIN[meter]), (one.at, one.identity)
                firsts[group] = min(firsts.get(group, (rank, name)), (rank, name))
    for name, one in left.items():
        for meter, within in WITHIN.items():
            first = firsts.get((meter, one.content, one.at // within))
            if first is not None and first[1] != name:
                found.pop((name, meter), None)
    return found


def _worth(one: Report) -> tuple[Any, ...]:
    return RANK[one.status], one.tokens is not None, one.at, one.identity


def present(**rules: Any) -> JoinsConfig:
    return JoinsConfig.model_validate({**RULES, **rules})


def world_of(folder: Path, **rules: Any) -> HandMade:
    world = HandMade(folder, **{**RULES, **rules})
    world.price(timedelta(), "0.01", begins=timedelta())
    return world


def audited(world: HandMade, at: timedelta, config: JoinsConfig | None = None) -> int:
    """How many rows an audit appends; it finds no fault."""
    said = audit(world.tables, START + at, present=config or present())
    if said is None:
        return 0  # Nothing is decided yet.
    assert [fault for fault in said.faults if isinstance(fault, dict)] == []
    return said.appended


def happened(
    world: HandMade, events: Sequence[Event], *, is_audited_each_time: bool = False, apart: timedelta = HOUR
) -> HandMade:
    """All of them are received, so long after one another."""
    for number, one in enumerate(events, 1):
        at = DAY + number * apart
        one.received(world, at)
        world.joined(at + apart / 2)
        if is_audited_each_time:
            audited(world, at + apart / 2)
    world.joined(3 * DAY)
    audited(world, 3 * DAY)
    return world


def stands(world: HandMade) -> Billed:
    """What usage bills, by request and meter."""
    rows = pl.DataFrame(DeltaTable(f"{world.tables}/usage").to_pyarrow_table(columns=["request_id", "sign", "meters"]))
    return _sums(rows)


def _sums(rows: pl.DataFrame) -> Billed:
    entries = rows.explode("meters").unnest("meters").filter(pl.col("quantity").is_not_null())
    counted = entries.group_by("request_id", "meter").agg(net=(pl.col("sign") * pl.col("quantity")).sum())
    return {(name, meter): net for name, meter, net in counted.iter_rows() if net}


def replays(world: HandMade, config: JoinsConfig | None = None, assumed: JoinsConfig | None = None) -> Billed:
    """What a replay of all bills, by the rules that held or by those that are assumed."""
    usage, journal = open_table(world.tables, Table.USAGE), open_table(world.tables, Table.JOURNAL)
    assert usage is not None
    assert journal is not None
    live = pin(usage, [], world.tables, config or present())
    rules = Assumptions(joins=assumed).pinned(live)
    made = [pl.DataFrame(rows) for rows in replayed(Tables(journal, usage, START.date()), live, rules, rows_at_once=3)]
    return _sums(pl.concat([rows.select("request_id", "sign", "meters") for rows in made]))


FIRST, NEXT, THIRD = (Report(name, at * MINUTE, "x") for name, at in (("a", 5), ("b", 10), ("c", 20)))
HISTORIES: dict[str, list[Event]] = {
    "one": [FIRST],
    "three of a content": [FIRST, NEXT, THIRD],
    "of two contents": [FIRST, replace(NEXT, content="y")],
    "without a content": [replace(FIRST, content=None), replace(NEXT, content=None)],
    "in two windows of tokens": [FIRST, replace(NEXT, at=40 * MINUTE)],
    "in two windows": [FIRST, replace(NEXT, at=65 * MINUTE)],
    "at one instant": [FIRST, replace(NEXT, at=FIRST.at)],
    "an error that has no tokens first": [replace(FIRST, status="error", tokens=None), NEXT, THIRD],
    "an error with tokens first": [replace(FIRST, status="error"), NEXT, THIRD],
    "no tokens first": [replace(FIRST, tokens=0), NEXT],
    "the first is reversed": [FIRST, NEXT, THIRD, Reversal("a")],
    "the first two are reversed": [FIRST, NEXT, THIRD, Reversal("a"), Reversal("b")],
    "another is reversed": [FIRST, NEXT, Reversal("b")],
    "a part of the first is reversed": [FIRST, NEXT, Reversal("a", TOKENS, 4)],
    "all tokens of the first are reversed": [FIRST, NEXT, Reversal("a", TOKENS)],
    "as many as the first has are reversed": [FIRST, NEXT, Reversal("a", TOKENS, 6), Reversal("a", TOKENS, 4)],
    "a part of another is reversed": [FIRST, NEXT, Reversal("b", TOKENS, 4), Reversal("a")],
    "a better report says another content": [
        replace(FIRST, status="cancelled"),
        NEXT,
        replace(FIRST, content="y", number=1),
    ],
    "a better report says an earlier time": [FIRST, replace(NEXT, status="error"), replace(NEXT, at=MINUTE)],
    "a better report says a later time": [
        replace(FIRST, status="cancelled"),
        NEXT,
        replace(FIRST, at=15 * MINUTE, number=1),
    ],
    "a better report leaves the window": [
        replace(FIRST, status="cancelled"),
        NEXT,
        replace(FIRST, at=70 * MINUTE, number=1),
    ],
    "accepted twice": [FIRST, NEXT, FIRST],
}


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize(
    ("apart", "is_audited_each_time"),
    [(HOUR, True), (MINUTE, False)],
    ids=["beyond the timeout", "within it"],
)
@pytest.mark.parametrize("events", HISTORIES.values(), ids=HISTORIES)
def test_the_first_outcome_of_a_content_counts_in_any_order_of_receipt(
    events: list[Event], tmp_path: Path, apart: timedelta, *, is_audited_each_time: bool
) -> None:
    orders = list(permutations(events))
    received = orders[-1] if is_audited_each_time else orders[len(orders) // 2]
    world = happened(world_of(tmp_path), received, is_audited_each_time=is_audited_each_time, apart=apart)
    assert stands(world) == billed(events), received
    assert audited(world, 4 * DAY) == 0
    assert replays(world) == billed(events)


REPORTS = st.builds(
    Report,
    st.sampled_from("abcde"),
    st.integers(0, 9).map(lambda tenth: tenth * 10 * MINUTE),
    st.sampled_from(["x", "x", "y", None]),
    st.sampled_from([None, 0, 7, 7, 30]),
    st.sampled_from(["completed", "completed", "completed", "cancelled", "error"]),
    st.integers(0, 3),
)
REVERSALS = st.builds(
    Reversal,
    st.sampled_from("abcde"),
    st.sampled_from([None, REQUESTS, TOKENS, TOKENS]),
    st.sampled_from([None, 3, 7, 40]),
    st.integers(0, 3),
).filter(lambda one: one.meter is not None or one.quantity is None)


@pytest.mark.long
@settings(max_examples=4, deadline=None)
@given(
    st.lists(REPORTS | REVERSALS, min_size=2, max_size=9, unique_by=str),
    st.sampled_from([HOUR, 20 * MINUTE, MINUTE]),
    st.booleans(),
)
def test_any_outcomes_of_any_contents_bill_as_the_rule(
    tmp_path_factory: pytest.TempPathFactory, events: list[Event], apart: timedelta, is_audited_each_time: bool
) -> None:
    world = world_of(tmp_path_factory.mktemp("world"))
    happened(world, events, is_audited_each_time=is_audited_each_time, apart=apart)
    assert stands(world) == billed(events)
    assert audited(world, 4 * DAY) == 0
    assert replays(world) == billed(events)


def test_a_what_if_replay_bills_contents_once_only_where_assumed(tmp_path: Path) -> None:
    each = {name: {key: said for key, said in meter.items() if key != "once_per"} for name, meter in METERS.items()}
    for number, meters in enumerate((each, METERS)):
        world = world_of(tmp_path / str(number), meters=meters)
        for minutes, one in enumerate((FIRST, NEXT, THIRD)):
            one.received(world, DAY + minutes * MINUTE)
        world.joined(DAY + HOUR)
        config = present(meters=meters)
        assert replays(world, config) == stands(world)
        by_day = {**METERS, REQUESTS: {**METERS[REQUESTS], **once(within="P1D")}}
        assert replays(world, config, present(meters=by_day)) == billed([FIRST, NEXT, THIRD])


def test_the_stream_bills_each_outcome_and_the_audit_takes_repeats_back(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    for minutes, one in ((0, FIRST), (1, NEXT)):
        one.received(world, DAY + minutes * MINUTE)
    world.joined(DAY + HOUR)
    assert stands(world) == {(one, meter): 10 if meter == TOKENS else 1 for one in "ab" for meter in METERS}
    audited(world, DAY + HOUR)
    rows = DeltaTable(f"{world.tables}/usage").to_pyarrow_table().sort_by("lsn").to_pylist()
    (streamed,) = [row for row in rows if row["cause"] == "stream" and row["request_id"] == "b"]
    taken, put = [row for row in rows if row["cause"] != "stream"]
    assert [(row["request_id"], row["sign"], row["cause"]) for row in (taken, put)] == [
        ("b", -1, "once_per"),
        ("b", 1, "once_per"),
    ]
    assert taken["corrects_lsns"] == put["corrects_lsns"] == [streamed["lsn"]]
    entries = {entry["meter"]: (entry["quantity"], entry["amount"]) for entry in put["meters"]}
    assert entries == {REQUESTS: (0, None), TOKENS: (0, 0), "calls": (1, None)}


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("within", ["PT1S", "PT7M", "P1D"])
def test_windows_are_aligned_to_the_epoch_and_hold_their_first_microsecond_and_not_the_next_windows(
    tmp_path: Path, within: str
) -> None:
    length = {"PT1S": SECOND, "PT7M": 7 * MINUTE, "P1D": DAY}[within]
    epoch = timedelta(seconds=START.timestamp())
    begins = (epoch + 2 * DAY) // length * length - epoch
    meters = {"calls": {"unit": "call", "count": "outcomes", **once(within=within)}}
    config = present(meters=meters)
    at = {"before": begins - MICROSECOND, "first": begins, "last": begins + length - MICROSECOND}
    at["next"] = begins + length
    world = world_of(tmp_path, meters=meters)
    for number, (name, moment) in enumerate(at.items()):
        Report(name, moment, "x").received(world, 5 * DAY + number * MINUTE)
    world.joined(6 * DAY)
    audited(world, 6 * DAY, config)
    assert stands(world) == {(name, "calls"): 1 for name in ("before", "first", "next")}


def test_the_content_of_a_request_is_that_of_its_outcome(tmp_path: Path) -> None:
    """It says when it was answered: the content may be said by one part, and the time by the other."""
    world = world_of(tmp_path)
    for name, asked, answered in (("late", 10, 50), ("soon", 15, 20)):
        world.event(
            DAY + asked * MINUTE, "request", name, occurred=asked * MINUTE, name=name, content_hash="x", model="m"
        )
        said: Row = {"status": "completed", "output_tokens": 5}
        world.event(DAY + asked * MINUTE, "completion", f"{name}!", occurred=answered * MINUTE, name=name, **said)
    world.joined(2 * DAY)
    audited(world, 2 * DAY)
    assert {name for name, meter in stands(world) if meter == REQUESTS} == {"soon"}
    assert {name for name, meter in stands(world) if meter == TOKENS} == {"late", "soon"}
    assert audited(world, 3 * DAY) == 0


@pytest.mark.parametrize("is_first_known", [True, False])
def test_an_unanswered_request_counts_where_the_meter_counts_it(tmp_path: Path, *, is_first_known: bool) -> None:
    meters = {"calls": {"unit": "call", "count": "outcomes", **once()}}
    config = present(meters=meters)
    world = world_of(tmp_path, meters=meters)
    for name, minutes in (("asked", 5), ("answered", 9)) if is_first_known else (("answered", 9), ("asked", 5)):
        kind = "request" if name == "asked" else "both"
        said: Row = {} if name == "asked" else {"status": "completed", "output_tokens": 5}
        world.event(DAY, kind, name, occurred=minutes * MINUTE, name=name, content_hash="x", model="m", **said)
    world.joined(2 * DAY)
    audited(world, 2 * DAY, config)
    assert stands(world) == {("asked", "calls"): 1}


def test_any_text_of_an_outcome_can_be_the_content(tmp_path: Path) -> None:
    """Users of a day, such as a plan that is priced by active users."""
    meters = {"users": {"unit": "user", "count": "outcomes", **once("user_id", "P1D")}}
    world = world_of(tmp_path, meters=meters)
    for number, (user, hours) in enumerate((("ann", 1), ("bob", 2), ("ann", 3), ("ann", 25), (None, 4), (None, 5))):
        said: Row = {"status": "completed", "user_id": user, "model": "m"}
        world.event(2 * DAY, "both", f"{number}", occurred=hours * HOUR, name=f"{number}", **said)
    world.joined(3 * DAY)
    audited(world, 3 * DAY, present(meters=meters))
    assert {name for name, _ in stands(world)} == {"0", "1", "3", "4", "5"}


@pytest.mark.long
def test_earlier_outcomes_stay_billed_and_do_not_use_up_a_content(tmp_path: Path) -> None:
    each = {name: {key: said for key, said in meter.items() if key != "once_per"} for name, meter in METERS.items()}
    world = world_of(tmp_path, meters=each)
    for one in (FIRST, NEXT):
        one.received(world, DAY)
    world.joined(DAY + HOUR)
    world.configure(**RULES)
    for one in (THIRD, replace(THIRD, request="d", at=THIRD.at + MINUTE)):
        one.received(world, DAY + 2 * HOUR)
    world.joined(DAY + 3 * HOUR)
    audited(world, DAY + 3 * HOUR)
    by_day = {**METERS, REQUESTS: {**METERS[REQUESTS], **once(within="P1D")}}
    world.configure(**{**RULES, "meters": by_day})
    for name, minutes in (("e", 90), ("f", 200)):
        Report(name, minutes * MINUTE, "x").received(world, DAY + 4 * HOUR)
    world.joined(2 * DAY)
    config = present(meters=by_day)
    audited(world, 2 * DAY, config)
    assert {name for name, meter in stands(world) if meter == REQUESTS} == {"a", "b", "c", "e"}
    assert audited(world, 3 * DAY, config) == 0
    assert replays(world, config) == stands(world)


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("is_first_late", [True, False])
def test_a_late_contract_gives_earlier_events_their_content(tmp_path: Path, *, is_first_late: bool) -> None:
    world = world_of(tmp_path)
    world.unknown(DAY + (1 if is_first_late else 30) * MINUTE, name="late", content_hash="x")
    Report("known", DAY + 10 * MINUTE, "x").received(world, DAY + 10 * MINUTE)
    world.joined(DAY + 2 * HOUR)
    audited(world, DAY + 2 * HOUR)
    world.contract(DAY + 3 * HOUR, meters=METERS)
    Report("other", 2 * DAY, "y").received(world, 2 * DAY)
    world.joined(3 * DAY)
    audited(world, 3 * DAY)
    counts = {name for name, meter in stands(world) if meter == REQUESTS}
    assert counts == {"other", "late" if is_first_late else "known"}
    assert audited(world, 4 * DAY) == 0
    assert replays(world) == stands(world)


def test_a_pending_request_restores_no_reversed_usage(tmp_path: Path) -> None:
    rules: Row = {"completion_timeout_seconds": 86_400}
    world, config = world_of(tmp_path, **rules), present(**rules)
    for one in (FIRST, NEXT):
        one.received(world, DAY + one.at)
    Reversal("a").received(world, DAY + HOUR)
    world.joined(3 * DAY)
    audited(world, 3 * DAY, config)
    decided = stands(world)
    assert {name for name, _ in decided} == {"b"}
    world.request(3 * DAY + HOUR, "once more", name="a")
    world.joined(3 * DAY + 2 * HOUR)
    assert audited(world, 3 * DAY + 2 * HOUR, config) == 0
    assert stands(world) == decided
    world.joined(5 * DAY)
    audited(world, 5 * DAY, config)
    assert {name for name, meter in stands(world) if meter == REQUESTS} == {"b"}


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("is_audited_before", [True, False])
@pytest.mark.parametrize(
    ("change", "last"),
    [
        (Reversal("a"), "b"),
        (Reversal("a", TOKENS), "b"),
        (Report("c", MINUTE, "x"), "c"),
        (Reversal("b"), "a"),
    ],
    ids=str,
)
def test_a_content_counts_once_while_its_request_waits(
    tmp_path: Path, change: Event, last: str, *, is_audited_before: bool
) -> None:
    """Nothing of that id is corrected before it is over, so what it bills counts until then."""
    rules: Row = {"completion_timeout_seconds": 86_400}
    world, config = world_of(tmp_path, **rules), present(**rules)
    for one in (FIRST, NEXT):
        one.received(world, DAY + one.at)
    world.joined(3 * DAY)
    if is_audited_before:
        audited(world, 3 * DAY, config)
    change.received(world, 3 * DAY + HOUR)
    world.request(3 * DAY + HOUR, "once more", name="a")
    world.joined(3 * DAY + 2 * HOUR)
    audited(world, 3 * DAY + 2 * HOUR, config)
    assert [name for name, meter in stands(world) if meter == TOKENS] == ["a"]
    world.joined(5 * DAY)
    audited(world, 5 * DAY, config)
    assert [name for name, meter in stands(world) if meter == TOKENS] == [last]
    assert audited(world, 6 * DAY, config) == 0


def test_a_pending_request_with_quantity_0_does_not_use_up_its_content(tmp_path: Path) -> None:
    rules: Row = {"completion_timeout_seconds": 86_400}
    world, config = world_of(tmp_path, **rules), present(**rules)
    for one in (FIRST, NEXT, THIRD):
        one.received(world, DAY + one.at)
    world.joined(3 * DAY)
    audited(world, 3 * DAY, config)
    Reversal("a").received(world, 3 * DAY + HOUR)
    world.request(3 * DAY + HOUR, "once more", name="b")
    world.joined(3 * DAY + 2 * HOUR)
    for at, counts in ((3 * DAY + 2 * HOUR, "c"), (5 * DAY, "b")):
        world.joined(at)
        audited(world, at, config)
        assert [name for name, meter in stands(world) if meter == TOKENS] == [counts]
    assert audited(world, 6 * DAY, config) == 0


def test_an_outcome_without_a_price_may_be_the_first(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    said: Row = {"name": "unpriced", "model": "other", "status": "completed", "output_tokens": 10, "content_hash": "x"}
    world.event(DAY, "both", "unpriced", occurred=5 * MINUTE, **said)
    NEXT.received(world, DAY + MINUTE)
    world.joined(2 * DAY)
    audited(world, 2 * DAY)
    assert world.billed() == {(0, "other", None): 10}


PARTS: Meters = {
    "input_tokens": {"unit": "token", "sum": "input_tokens", **once()},
    "cached_tokens": {"unit": "token", "sum": "cached_tokens", "within": "input_tokens", **once()},
}
CONVENTION = '{"input_tokens": ["cached_tokens"]}'


@pytest.mark.parametrize("is_audited_first", [False, True])
def test_units_billed_by_a_part_stay_with_the_part(tmp_path: Path, *, is_audited_first: bool) -> None:
    """The first has no input of its own to bill as soon as its cached tokens have a price: then the next one counts."""
    config = present(meters=PARTS)
    world = world_of(tmp_path, meters=PARTS)
    said: Row = {"status": "completed", "model": "m", "content_hash": "x", "quantity_includes": CONVENTION}
    for name, minutes, cached in (("all", 1, 100), ("half", 2, 50)):
        counts = {"input_tokens": 100, "cached_tokens": cached}
        world.event(DAY, "both", name, occurred=minutes * MINUTE, name=name, **said, **counts)
    world.joined(DAY + HOUR)
    if is_audited_first:
        audited(world, DAY + HOUR, config)
        assert by_price(world) == {("all", "input_tokens", None): 100, ("all", "cached_tokens", "part"): 100} | {
            ("half", "cached_tokens", "part"): 50
        }
    world.price(DAY + 2 * HOUR, "0.001", begins=timedelta(), meter="cached_tokens")
    Report("z", 20 * HOUR, "z").received(world, DAY + 3 * HOUR)
    world.joined(2 * DAY)
    audited(world, 2 * DAY, config)
    own = {key: many for key, many in by_price(world).items() if key[2] != "part"}
    assert own == {("all", "cached_tokens", "0.001"): 100, ("half", "input_tokens", None): 50}
    assert audited(world, 3 * DAY, config) == 0


def by_price(world: HandMade) -> dict[tuple[str, str, str | None], Decimal]:
    """By request, meter and unit price; `part` of units that another meter bills."""
    rows = pl.DataFrame(DeltaTable(f"{world.tables}/usage").to_pyarrow_table()).explode("meters").unnest("meters")
    found: dict[tuple[str, str, str | None], Decimal] = defaultdict(Decimal)
    for row in rows.drop_nulls("quantity").to_dicts():
        is_part = row["price_version"] is not None and row["price_version"] <= 0
        price = None if row["unit_price"] is None else f"{row['unit_price'].normalize():f}"
        found[row["request_id"], row["meter"], "part" if is_part else price] += row["sign"] * row["quantity"]
    return {key: quantity for key, quantity in found.items() if quantity}


def test_a_late_price_rebills_only_outcomes_that_count(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    for one in (FIRST, NEXT):
        one.received(world, DAY)
    world.joined(DAY + HOUR)
    audited(world, DAY + HOUR)
    world.price(DAY + 2 * HOUR, "0.07", begins=timedelta())
    Reversal("a").received(world, DAY + 3 * HOUR)
    world.joined(2 * DAY)
    audited(world, 2 * DAY)
    tokens = {key: many for key, many in by_price(world).items() if key[1] == TOKENS}
    assert tokens == {("b", TOKENS, "0.07"): 10}
    assert audited(world, 3 * DAY) == 0


def test_a_row_of_the_audit_with_any_other_quantity_is_a_fault(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    for one in (FIRST, NEXT):
        one.received(world, DAY)
    world.joined(DAY + HOUR)
    audited(world, DAY + HOUR)
    usage = DeltaTable(f"{world.tables}/usage")
    rows = usage.to_pyarrow_table().to_pylist()
    (put,) = [row for row in rows if row["cause"] == "once_per" and row["sign"] > 0]
    for meter, quantity in ((TOKENS, 3), ("calls", 0)):
        entries = [
            {**entry, "quantity": Decimal(quantity), "amount": None if entry["unit_price"] is None else Decimal("0.03")}
            if entry["meter"] == meter
            else entry
            for entry in put["meters"]
        ]
        wrong = [{**row, "meters": entries} if row is put else row for row in rows]
        folder = tmp_path / f"{meter} {quantity}"
        _copied(world, folder, wrong)
        said = audit(str(folder), START + 2 * DAY, present=present(), appends=False)
        assert said is not None
        assert [fault for fault in said.faults if isinstance(fault, dict)] != []


def _copied(world: HandMade, folder: Path, rows: list[Row]) -> None:
    """The tables with these rows of usage."""
    copytree(world.tables, folder)
    usage = DeltaTable(str(folder / "usage"))
    moved = {
        name: usage.transaction_version(name) for name in ("journal", "frontier", "lsn", "rules", "audit", "removed")
    }
    table = pa.Table.from_pylist(rows, schema=pa.schema(usage.schema().to_arrow()))
    write_deltalake(
        usage,
        table,
        mode="overwrite",
        commit_properties=committing({name: at for name, at in moved.items() if at is not None}),
    )


def by_spark(
    spark: SparkSession,
    world: HandMade,
    at: timedelta,
    asked: Scope,
    *,
    config: JoinsConfig | None = None,
    rows_per_bucket: int = ROWS_PER_BUCKET,
) -> Outcomes:
    """The shipped audit, which reads only the log dates of its period."""
    usage, journal = open_table(world.tables, Table.USAGE), open_table(world.tables, Table.JOURNAL)
    assert usage is not None
    assert journal is not None
    configured = config or present()
    versions = Versions(spark, world.tables, journal, usage, first_log_date(usage, configured, asked))
    pinned = pin(usage, [retained_rows(journal), retained_rows(usage)], world.tables, configured, asked)
    found = outcomes(versions, pinned, rows_per_bucket)
    assert found.faults.to_dicts() == []
    if len(found.corrections):
        append(usage, found.corrections, START + at)
    return found


EVERYTHING: list[Event] = [
    *(Report(f"{number:02}", (number * 7 % 180) * MINUTE, "xyz"[number % 3], 1 + number) for number in range(15)),
    Reversal("00"),
    Reversal("09", TOKENS),
    Report("05", 3 * MINUTE, "z", 99, number=1),
]


@pytest.mark.long
def test_outcomes_of_a_content_meet_across_partitions(spark: SparkSession, tmp_path: Path) -> None:
    world = world_of(tmp_path)
    for number, one in enumerate(EVERYTHING):
        one.received(world, DAY + number * 20 * MINUTE)
        if number % 5 == 4:
            world.joined(DAY + number * 20 * MINUTE + 15 * MINUTE)
    world.joined(3 * DAY)
    rounds = 0
    while by_spark(spark, world, 3 * DAY, Scope(max_rows=30), rows_per_bucket=5).changes:
        rounds += 1
    assert rounds > 1
    assert stands(world) == billed(EVERYTHING)
    assert audited(world, 4 * DAY) == 0


@pytest.mark.long
def test_an_audit_of_a_period_decides_nothing_about_contents_and_undoes_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    """It reads some outcomes of a content, and not all."""
    world = world_of(tmp_path)
    day = Scope(since=START + 10 * DAY)
    Report("early", 10 * DAY - MINUTE, "x").received(world, 9 * DAY)
    for name, minutes in (("first", 5), ("second", 10), ("third", 15)):
        Report(name, 10 * DAY + minutes * MINUTE, "x").received(world, 10 * DAY + minutes * MINUTE)
    world.joined(10 * DAY + 2 * HOUR)
    assert by_spark(spark, world, 10 * DAY + 2 * HOUR, day).changes == 0
    assert {name for name, meter in stands(world) if meter == REQUESTS} == {"early", "first", "second", "third"}
    by_spark(spark, world, 10 * DAY + 2 * HOUR, Scope())
    once_decided = stands(world)
    assert {name for name, meter in once_decided if meter == REQUESTS} == {"early", "first"}
    assert by_spark(spark, world, 10 * DAY + 3 * HOUR, day).changes == 0
    world.price(10 * DAY + 3 * HOUR, "0.02", begins=timedelta())
    Reversal("first").received(world, 10 * DAY + 3 * HOUR)
    world.joined(11 * DAY)
    by_spark(spark, world, 11 * DAY, day)
    assert stands(world) == {key: many for key, many in once_decided.items() if key[0] != "first"}
    by_spark(spark, world, 11 * DAY, Scope())
    assert {name for name, meter in stands(world) if meter == REQUESTS} == {"early", "second"}
    assert by_spark(spark, world, 12 * DAY, day).changes == 0
    assert audited(world, 12 * DAY) == 0


SHORT: Row = {"rejoin_seconds": 3_600}


def first_is_removed(world: HandMade) -> None:
    """The first of a content came long before another one that occurred in its window, and is removed."""
    Report("first", DAY + MINUTE, "x").received(world, DAY + 2 * MINUTE)
    world.joined(DAY + HOUR)
    Report("kept", 5 * DAY, "z").received(world, 5 * DAY)
    world.joined(5 * DAY + HOUR)
    Report("second", DAY + 30 * MINUTE, "x").received(world, 9 * DAY)
    world.joined(9 * DAY + HOUR)


def id_is_used_again(world: HandMade) -> None:
    """A request id that was used at the border is used again: of its content nothing is decided any more."""
    Report("again", 5 * DAY, "y").received(world, 5 * DAY)
    world.joined(5 * DAY + HOUR)
    Report("again", 9 * DAY, "x", number=1).received(world, 9 * DAY)
    Report("second", 9 * DAY + MINUTE, "x").received(world, 9 * DAY + MINUTE)
    world.joined(9 * DAY + HOUR)


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("history", [first_is_removed, id_is_used_again])
def test_nothing_is_billed_again_once_retention_has_removed_what_counted(
    tmp_path: Path, history: Callable[[HandMade], None]
) -> None:
    config = present(**SHORT)
    world = world_of(tmp_path, **SHORT)
    history(world)
    audited(world, 10 * DAY, config)
    before = stands(world)
    assert ("second", REQUESTS) not in before
    world.removed(5 * DAY)
    assert audited(world, 11 * DAY, config) == 0
    kept = {key: many for key, many in before.items() if key[0] == "second"}
    assert {key: many for key, many in stands(world).items() if key[0] == "second"} == kept


def test_windows_that_are_kept_whole_are_decided_after_retention_and_others_are_not(tmp_path: Path) -> None:
    """Kept from day 5 on: with two days and an hour of corrections, and a day of the future."""
    config = present(**SHORT)
    world = world_of(tmp_path, **SHORT)
    whole = 8 * DAY + HOUR
    for name, at in (("old", DAY), ("at the border", 5 * DAY), ("before", whole - HOUR), ("from then on", whole)):
        for number in range(2):
            Report(f"{name} {number}", at + number * MINUTE, name).received(world, at + (10 + number) * MINUTE)
        world.joined(at + 30 * MINUTE)
    world.joined(15 * DAY)
    world.removed(5 * DAY)
    audited(world, 15 * DAY, config)
    counts = {name for name, meter in stands(world) if meter == REQUESTS}
    # The first row of usage says the rules, and stays.
    assert counts - {"old 0"} == {
        *(f"{name} {number}" for name in ("at the border", "before") for number in range(2)),
        "from then on 0",
    }


@pytest.mark.long
@pytest.mark.parametrize("is_retained_first", [True, False], ids=["before the audit", "after it"])
def test_nightly_retention_does_not_change_which_outcomes_count(tmp_path: Path, *, is_retained_first: bool) -> None:
    """Contents come back each day; some are reported a day late, and some that counted are taken back."""
    config, world, events = present(**SHORT), world_of(tmp_path, **SHORT), []
    history = (EffectiveRules(1, config.deciding),)
    horizon, margin = correction_horizon(history, config, None), content_margin(history)
    ever: dict[tuple[int, str], tuple[str, str, Decimal]] = {}
    for night in range(1, 17):
        now, day = night * DAY, (night - 1) * DAY
        came: list[Event] = [
            *(Report(f"{night} {number}", day + number * 25 * MINUTE, "xy"[number % 2]) for number in range(8)),
            Report(f"{night} late", day - DAY + 4 * HOUR, "x"),
            *(Reversal(f"{night} {number}") for number in (0, 3)),
        ]
        for number, one in enumerate(came):
            one.received(world, now - HOUR + number * MINUTE)
        events += came
        world.joined(now + HOUR / 2)
        kept = now - (2 * -(-horizon // DAY) + margin // DAY) * DAY
        if is_retained_first:
            world.removed(kept)
        audited(world, now + HOUR / 2, config)
        rows = pl.DataFrame(DeltaTable(f"{world.tables}/usage").to_pyarrow_table()).explode("meters").unnest("meters")
        for lsn, name, meter, sign, quantity in (
            rows.select("lsn", "request_id", "meter", "sign", "quantity").drop_nulls().iter_rows()
        ):
            ever[lsn, meter] = (name, meter, sign * quantity)
        if not is_retained_first:
            world.removed(kept)
    assert world_has_lost_days(world)
    found: Billed = defaultdict(Decimal)
    for name, meter, quantity in ever.values():
        found[name, meter] += quantity
    assert {key: many for key, many in found.items() if many} == billed(events)


def world_has_lost_days(world: HandMade) -> bool:
    rows = DeltaTable(f"{world.tables}/journal").to_pyarrow_table(columns=["log_date"])
    return bool(pc.min(rows["log_date"]).as_py() > START.date() + 5 * DAY)


def test_in_windows_before_the_period_only_new_contents_count(
    tmp_path: Path,
) -> None:
    """The limit: another outcome of the content may have been removed."""
    config = present(**SHORT)
    world = world_of(tmp_path, **SHORT)
    before = 7 * DAY + 12 * HOUR
    for day in range(1, 7):
        Report(f"of day {day}", day * DAY, f"of day {day}").received(world, day * DAY)
        world.joined(day * DAY + HOUR)
    for number in range(3):
        Report(f"new {number}", before + number * MINUTE, "x").received(world, before + (10 + number) * MINUTE)
    world.joined(8 * DAY)
    audited(world, 8 * DAY, config)
    assert {name for name, meter in stands(world) if meter == REQUESTS and "new" in name} == {"new 0"}
    world.removed(5 * DAY)
    Reversal("new 0").received(world, before + HOUR)
    Report("late", before, "x").received(world, 10 * DAY)
    world.joined(11 * DAY)
    audited(world, 11 * DAY, config)
    assert {name for name, meter in stands(world) if meter == REQUESTS and "day" not in name} == {"late"}


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("at_border", ["x", "y"])
def test_contents_of_skipped_days_are_decided_in_later_windows(tmp_path: Path, at_border: str) -> None:
    config = present(**SHORT)
    world = world_of(tmp_path, **SHORT)
    Report("old", DAY, "z").received(world, DAY)
    world.joined(DAY + HOUR)
    Report("at the border", 5 * DAY + HOUR, at_border).received(world, 5 * DAY + HOUR)
    world.joined(6 * DAY)
    for number in range(3):
        Report(f"new {number}", 60 * DAY + number * MINUTE, "x").received(world, 60 * DAY + (10 + number) * MINUTE)
    world.joined(60 * DAY + HOUR)
    world.removed(5 * DAY)
    audited(world, 61 * DAY, config)
    counts = {name for name, meter in stands(world) if meter == REQUESTS}
    assert counts == {"at the border", "new 0"} | counts & {"old"}


@pytest.mark.long
@pytest.mark.parametrize(("content", "is_by_spark"), [("x", False), ("y", False), ("x", True)])
def test_a_window_with_a_removed_content_is_not_decided(
    request: pytest.FixtureRequest, tmp_path: Path, content: str, *, is_by_spark: bool
) -> None:
    """A request came days before its answer, and was removed: the answer may be the first of any content."""
    rules: Row = {"best_report_bills": False, "rejoin_seconds": 10 * DAY // SECOND}
    config, world = present(**rules), world_of(tmp_path, **rules)
    world.event(4 * DAY, "request", "asked", occurred=4 * DAY, name="asked", model="m", content_hash=content)
    for day in (5, 6, 7):
        Report(f"of day {day}", day * DAY, "z").received(world, day * DAY)
        world.joined(day * DAY + HOUR)
    answer: Row = {"name": "asked", "status": "completed", "output_tokens": 5}
    world.event(9 * DAY, "completion", "answer", occurred=9 * DAY, **answer)
    for name, at in (("beside", 9 * DAY + MINUTE), ("next", 9 * DAY + HOUR), ("last", 9 * DAY + 61 * MINUTE)):
        Report(name, at, "x").received(world, at)
    world.joined(10 * DAY)
    audited(world, 10 * DAY, config)
    before = stands(world)
    assert (("beside", REQUESTS) in before) is (content != "x")
    world.removed(5 * DAY)
    Reversal("next").received(world, 11 * DAY)
    world.joined(12 * DAY)
    if is_by_spark:
        by_spark(request.getfixturevalue("spark"), world, 12 * DAY, Scope(), config=config, rows_per_bucket=4)
    else:
        audited(world, 12 * DAY, config)
    after = stands(world)
    assert {key for key in after if key[0] in ("asked", "beside")} == {
        key for key in before if key[0] in ("asked", "beside")
    }
    assert {name for name, meter in after if meter == REQUESTS} >= {"last"}
    assert ("next", REQUESTS) not in after


@pytest.mark.long
@pytest.mark.parametrize("is_retained", [True, False])
@pytest.mark.parametrize(
    ("change", "counts"),
    [(Report("b", 80 * DAY + 10 * MINUTE, "x"), "a"), (Reversal("a"), "b")],
    ids=["a better report", "a reversal"],
)
def test_contents_of_open_months_are_decided_after_retention(
    tmp_path: Path, change: Event, counts: str, *, is_retained: bool
) -> None:
    """By the reach that Weir ships; on 1 April, March is open."""
    world, config = world_of(tmp_path), present()
    for day in range(0, 82, 2):
        Report(f"of day {day}", day * DAY, f"of day {day}").received(world, day * DAY)
        world.joined(day * DAY + HOUR)
    Report("a", 80 * DAY + 5 * MINUTE, "x").received(world, 80 * DAY + 2 * HOUR)
    Report("b", 80 * DAY + 10 * MINUTE, "x", status="cancelled").received(world, 80 * DAY + 2 * HOUR)
    world.joined(81 * DAY)
    audited(world, 81 * DAY, config)
    world.joined(90 * DAY)
    if is_retained:
        history = (EffectiveRules(1, config.deciding),)
        horizon = correction_horizon(history, config, None)
        today = (START + 90 * DAY).date()
        world.removed((first_retained(today, 36, horizon, content_margin(history)) - START.date()).days * DAY)
    change.received(world, 90 * DAY + HOUR)
    world.joined(91 * DAY)
    audited(world, 91 * DAY, config)
    assert {name for name, meter in stands(world) if meter == REQUESTS and name in "ab"} == {counts}
    assert audited(world, 92 * DAY, config) == 0


def test_stragglers_that_repeat_a_content_are_taken_off_the_bill(
    connection: psycopg.Connection[Any], tmp_path: Path
) -> None:
    """All come hours after their windows; the audit takes the second off, and bills it when the first is reversed."""
    config = BillingConfig.model_validate({"meters": METERS})
    world, folded = world_of(tmp_path), 0
    steps: list[tuple[Event, set[str]]] = [(NEXT, {"b"}), (FIRST, {"a"}), (Reversal("a"), {"b"}), (THIRD, {"b"})]
    for number, (one, counts) in enumerate(steps, 1):
        one.received(world, DAY + number * HOUR)
        world.joined(DAY + number * HOUR + HOUR / 2)
        audited(world, DAY + number * HOUR + HOUR / 2)
        rows = DeltaTable(f"{world.tables}/usage").to_pyarrow_table(columns=list(COLUMNS)).sort_by("lsn")
        came = rows.filter(pc.greater(rows["lsn"], folded))
        fold_table(connection, BILLING, sums(came, EffectiveRules(1, config.deciding)), config)
        folded = rows["lsn"][-1].as_py()
        summed = "SELECT meter, sum(quantity) FROM usage_windows GROUP BY 1 HAVING sum(quantity) <> 0"
        windows = dict(connection.execute(summed).fetchall())
        connection.commit()
        net: dict[str, Decimal] = defaultdict(Decimal)
        for (_, meter), quantity in stands(world).items():
            net[meter] += quantity
        assert windows == dict(net)
        assert {name for name, meter in stands(world) if meter == REQUESTS} == counts
