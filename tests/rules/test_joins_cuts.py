"""Method: journals whose partitions are far apart, cut anywhere by drivers that die and change their timeouts.

What decides is what the sink has decide (`decide`, `Known`); only its tables are lists here, and nothing is priced. Its
outcomes must be those of the rule over the whole journal, with the timeouts that each row found: so every row has
exactly one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.joins.decide import Known, decide
from jobs.joins.memory import CARRIED
from jobs.joins.recovery import RecoverySource, columns_read, is_paired
from jobs.joins.resolve import resolve
from jobs.runtime.delta.table import microseconds_of
from jobs.runtime.effective_rules import EffectiveRules, History, rules_at
from metering.joining import FINAL, Row, Side, step
from metering.quantity_events import PREFIX
from metering.ranking import merit
from metering.vocabulary import Disposition, EventType, Family, Status, UsageCause, UsageSource

START = datetime(2026, 1, 1, tzinfo=UTC)
TYPES = {Side.REQUEST: EventType.REQUEST, Side.COMPLETION: EventType.COMPLETION, Side.BOTH: EventType.USAGE}
RULES = [
    {"completion_timeout_seconds": default, "completion_timeouts": models, **ranks}
    for default in (1, 3, 6)
    for models in ({}, {"slow": 5}, {"slow": 1})
    for ranks in ({}, {"best_report_bills": False}, {"best_report_bills": True})
]
JOURNAL = pl.Schema(
    {
        **{name: CARRIED.get(name, pl.String) for name in columns_read(CARRIED)},
        "frontier": pl.Datetime("us", "UTC"),
        "disposition": pl.String,
        "side": pl.String,
        "log_date": pl.Date,
    }
)
QUANTITY = {"type": "com.example.tokens", "family": Family.QUANTITY.value, "side": Side.BOTH.value}
IDENTITIES = [f"{number:032x}" for number in range(4)]
"""Of few events, so that one may be accepted twice."""
STATUSES = st.sampled_from([None, *Status])
SOURCES = st.sampled_from([None, *UsageSource])
Told = Counter[tuple[str, int | None, int | None]]


@st.composite
def journals(draw: st.DrawFn) -> pl.DataFrame:
    """Rows in lsn order; their F is that of their commit."""
    lanes: list[list[dict[str, Any]]] = []
    for _ in range(draw(st.integers(1, 3))):
        second = 0
        lane: list[dict[str, Any]] = []
        for _ in range(draw(st.integers(1, 12))):
            second += draw(st.sampled_from([0, 0, 1, 2, 3, 7]))
            side, model = draw(st.sampled_from(Side)), draw(st.sampled_from(["m", "slow"]))
            # A row from before contracts names no family; one of a declared type says nothing by its type.
            of_side = {"type": TYPES[side].value, "family": None}
            if draw(st.booleans()):
                of_side = {"type": "com.example.declared", "family": side.value}
            key = {**of_side, "side": side.value, "request_id": f"r{draw(st.integers(0, 2))}"}
            if draw(st.integers(0, 5)) == 0:
                key = {**QUANTITY, "request_id": PREFIX + draw(st.sampled_from(IDENTITIES))}
                side = Side.BOTH
            report = {"status": draw(STATUSES), "usage_source": draw(SOURCES)} if side is not Side.REQUEST else {}
            lane.append({**key, **report, "model": None if side is Side.COMPLETION else model, "second": second})
        lanes.append([*lane, {"type": EventType.HEARTBEAT.value, "second": second + 1000}])
    rows: list[dict[str, Any]] = []
    latest: dict[int, int] = {}
    while any(lanes):
        commit = []
        for number, lane in enumerate(lanes):
            taken = lane[: draw(st.integers(1, 6))]
            lanes[number] = lane[len(taken) :]
            latest[number] = taken[-1]["second"] if taken else latest[number]
            commit += taken
        frontier = START + timedelta(seconds=min(latest.values()))
        for row in sorted(commit, key=lambda row: row["second"]):
            received_at = START + timedelta(seconds=row.pop("second"))
            common = {"lsn": len(rows) + 1, "frontier": frontier, "received_at": received_at, "event_time": received_at}
            rows.append(
                {"account": "a", "disposition": Disposition.ACCEPTED, "log_date": START.date(), **common, **row}
            )
    return pl.DataFrame(rows, schema=JOURNAL)


class Driver:
    """joins without its tables: usage, and with it the history, stay when it is started anew."""

    def __init__(self, journal: pl.DataFrame, rules: dict[str, Any], limit_bytes: int) -> None:
        self.journal = journal
        self.position = 1
        self.limit_bytes = limit_bytes
        self.usage = resolve(pl.DataFrame(schema=CARRIED), None)
        self.rules = rules
        self.kept: History = ()
        self.known = Known.derived(None, (), EffectiveRules(1, rules), CARRIED)

    def start(self, rules: dict[str, Any]) -> None:
        before, self.rules = self.known, rules
        past = None
        if self.position > 1:
            lowest = before.memory.waiting()["waiting.lsn"] or None
            usage = self.usage.with_columns(log_date=START.date(), cause=pl.lit(UsageCause.STREAM.value))
            past = RecoverySource(self.journal.lazy(), usage.lazy(), self.position, before.frontier, lowest, CARRIED)
        present = EffectiveRules(1 if self.usage.is_empty() else self.position, rules)
        self.known = Known.derived(past, self.kept, present, CARRIED)
        if self.known.history == before.history:
            assert what(self.known) == what(before), "a start knows something else"

    def process(self, end: int) -> None:
        rows = self.journal.filter(pl.col("lsn").is_between(self.position, end - 1))
        ends_table = end == len(self.journal) + 1
        outcomes, self.known = decide(self.known, rows, self.rules, self.limit_bytes, ends_table=ends_table)
        self.usage = pl.concat([self.usage, outcomes])
        if len(outcomes):
            # It is kept in the first of these rows.
            self.kept = self.known.history
        self.position = end


def what(known: Known) -> tuple[datetime | None, datetime | None, set[tuple[Any, ...]]]:
    """What is known that a row received from now on can meet: what is over may be kept or not."""
    memory, frontier = known.memory, known.frontier
    parts = [part.select("lsn", "received_at", "timeout_us", "decided_side") for part in (memory.rows, *memory.decided)]
    rows = pl.concat(parts).unique()
    if frontier is not None:
        rows = rows.filter(pl.col("received_at") + pl.duration(microseconds="timeout_us") >= frontier)
    return frontier, known.preceding_frontier, set(rows.iter_rows())


def recomputed(journal: pl.DataFrame, history: History) -> Told:
    """Every outcome of a journal that has come to its end, by the rule alone."""
    keys = defaultdict(list)
    for row in journal.filter(pl.col("request_id").is_not_null()).iter_rows(named=True):
        rules = rules_at(history, row["lsn"])
        side = Side(row["side"])
        default_s, models_s = rules["completion_timeout_seconds"], rules["completion_timeouts"]
        longest_s = max(default_s, *models_s.values(), 0)
        seconds = longest_s if side is Side.COMPLETION else models_s.get(row["model"], default_s)
        received_us = (row["received_at"] - START) // timedelta(microseconds=1)
        is_ranked = rules.get("best_report_bills") and row["family"] != Family.QUANTITY
        worth = merit(row["status"], row["usage_source"]) if is_ranked else FINAL
        timed = Row(row["lsn"], side, received_us, seconds * 1_000_000, worth, microseconds_of(row["event_time"]))
        keys[row["request_id"]].append(timed)
    decided = [decision for rows in keys.values() for decision in step((), rows, 10**15)[1]]
    return Counter((d.fate.value, d.request_lsn, d.completion_lsn) for d in decided)


@settings(max_examples=40)
@given(journal=journals(), data=st.data())
def test_oracle_any_cut_restart_and_change_of_timeouts_gives_the_outcomes_of_the_history(
    journal: pl.DataFrame, data: st.DataObject
) -> None:
    rules, limit_bytes = data.draw(st.sampled_from(RULES)), data.draw(st.sampled_from([0, 2**30]))
    driver, end = Driver(journal, rules, limit_bytes), len(journal) + 1
    size = data.draw(st.sampled_from([1, 2, 7, 500]))
    while driver.position < end:
        driver.process(min(end, driver.position + size))
        if data.draw(st.integers(0, 3)) == 0:
            driver.start(data.draw(st.sampled_from(RULES)))
    told = Counter(driver.usage.select("outcome", "request_lsn", "completion_lsn").iter_rows())
    assert told == recomputed(journal, driver.kept)
    named = Counter(lsn for _, request, completion in told.elements() for lsn in {request, completion} - {None})
    assert named == Counter(journal.filter(pl.col("request_id").is_not_null())["lsn"].to_list())


def test_before_the_first_outcome_another_timeout_decides_all_rows_that_wait() -> None:
    one, three = RULES[0], RULES[9]
    places: list[tuple[str | None, int]] = [("r0", 0), ("r0", 2), ("r1", 0), ("r1", 2), ("r0", 0), (None, 1000)]
    rows = [
        {
            "lsn": lsn,
            "type": (EventType.REQUEST if request_id else EventType.HEARTBEAT).value,
            "side": "request",
            "account": "a",
            "request_id": request_id,
            "model": "m",
            "received_at": START + timedelta(seconds=second),
            "event_time": START + timedelta(seconds=second),
            "frontier": START + timedelta(seconds=1000 if request_id is None else 0),
            "disposition": Disposition.ACCEPTED,
            "log_date": START.date(),
        }
        for lsn, (request_id, second) in enumerate(places, start=1)
    ]
    driver = Driver(pl.DataFrame(rows, schema=JOURNAL), one, 2**30)
    driver.process(5)
    assert driver.usage.is_empty(), "two seconds apart nobody supersedes anybody"
    driver.start(three)
    driver.process(6)
    # From the first outcome on, later rules decide nothing again.
    driver.start(one)
    driver.process(7)
    told = Counter(driver.usage.select("outcome", "request_lsn", "completion_lsn").iter_rows())
    assert told == recomputed(driver.journal, driver.kept)
    assert sorted(outcome for outcome, _, _ in told) == ["abandoned"] * 2 + ["superseded"] * 3


def test_a_row_without_a_request_is_no_side_of_anything() -> None:
    """Contracts do not let it in; if one were there, it must not end the driver at every start."""
    rows = pl.DataFrame({"disposition": ["accepted"] * 2, "type": ["t"] * 2, "family": ["both"] * 2})
    found = rows.with_columns(request_id=pl.Series([None, "r"])).filter(is_paired())
    assert found["request_id"].to_list() == ["r"]
