"""Corrections of periods: any cut of usage into batches gives those that a rule in plain Python gives of usage at once.

The rule: what is received before the close is on time. All that comes after it is applied to the on-time members in
the order of usage, and each row that corrects is a correction where quantity or amount change. Each row closes by the
grace of its time, unless its period had been shown closed before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from random import Random
from typing import Any

import polars as pl
import psycopg
import pyarrow as pa
import pytest

from jobs.billing.config import BillingConfig
from jobs.billing.pipeline import JOB
from jobs.billing.rules import grace as grace_of
from jobs.billing.sums import COLUMNS, sums
from jobs.rebuild.billing import PLAN
from jobs.rebuild.plan import Part
from jobs.runtime.effective_rules import EffectiveRules, History, closed_under, effective_at, effective_from
from jobs.runtime.job import Fold
from jobs.runtime.postgres.sink import stage
from jobs.streams import USAGE
from jobs.usage_members import ENTRY, written
from metering.instants import rfc3339
from metering.period_meters import NEVER, Aggregation, Member, quantity_of
from tests.pipelines.folding import rows_of

FIRST, END = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 4, 1, tzinfo=UTC)
GRACE, MINUTE = timedelta(minutes=15), timedelta(minutes=1)
CLOSE = END + GRACE
METERS: Mapping[str, dict[str, str]] = {
    "users": {"unit": "user", "unique": "user_id", "period": "month"},
    "idle": {"unit": "seat", "min": "seats", "period": "month"},
    "peak": {"unit": "seat", "max": "seats", "period": "month"},
    "last": {"unit": "gigabyte", "latest": "gigabytes", "period": "month"},
}
KINDS = {
    "users": Aggregation.UNIQUE,
    "idle": Aggregation.MIN,
    "peak": Aggregation.MAX,
    "last": Aggregation.LATEST,
}
PRICES = {7: Decimal("0.25"), 8: Decimal("0.5")}


def config_of(*, has_history: bool, grace: timedelta = GRACE) -> BillingConfig:
    until = {"history_until": rfc3339(END)} if has_history else {}
    return BillingConfig.model_validate({"meters": METERS, "grace_seconds": grace.total_seconds(), **until})


@dataclass(frozen=True)
class Restart:
    """A driver starts with another grace. F is what the driver before it had folded, which may be behind."""

    first: int
    """The first row that it decides."""
    grace: timedelta
    frontier: datetime | None


def rules_of(restarts: Sequence[Restart], *, has_history: bool) -> History:
    """The rules as the drivers store them."""
    history: History = (EffectiveRules(1, config_of(has_history=has_history).deciding),)
    for restart in restarts:
        last = history[-1]
        closed = closed_under(last, grace_of(last.rules), restart.frontier)
        rules = config_of(has_history=has_history, grace=restart.grace).deciding
        history = (*history, EffectiveRules(restart.first, rules, closed_before=closed))
    return history


@dataclass(frozen=True)
class Row:
    """A row of usage: one request that adds its user and its number to each meter, or removes them (`sign`)."""

    user: str
    number: int
    event_time: datetime
    received_at: datetime
    first_received_at: datetime | None = None
    price: int | None = 7
    sign: int = 1
    cause: str = "stream"
    corrects: tuple[int, ...] = ()
    model: str = "m"

    def member(self, meter: str) -> Member:
        if meter == "users":
            return Member(self.user)
        return Member("", Decimal(self.number), self.event_time if meter == "last" else NEVER)


@dataclass(frozen=True)
class Commit:
    """Rows that are committed at once, with F."""

    frontier: datetime
    rows: tuple[Row, ...]


@dataclass
class Usage:
    """Random usage whose F comes past the close, as joins and audits commit it.

    All that was received before F is in the commits up to it; history (`is_history`) may have been received first
    before the close, whenever it comes.
    """

    random: Random
    is_history: bool = False
    commits: list[Commit] = field(default_factory=list)
    standing: dict[int, Row] = field(default_factory=dict)
    lsn: int = 0

    def drawn(self) -> Usage:
        frontier = CLOSE - 5 * MINUTE
        for _ in range(9):
            before, frontier = frontier, frontier + self.random.choice([0, 0, 1, 4, 6]) * MINUTE
            if self.random.random() < 0.7 or not self.standing:
                self._commit(frontier, [self._report(before, frontier) for _ in range(self.random.randrange(1, 4))])
            else:
                self._audit(before)
                frontier = before
        return self

    @property
    def rows(self) -> list[tuple[int, datetime, Row]]:
        """(number of the commit, its F, row) in the order of lsn."""
        return [(number, commit.frontier, row) for number, commit in enumerate(self.commits) for row in commit.rows]

    def _commit(self, frontier: datetime, rows: Sequence[Row]) -> None:
        for row in rows:
            self.lsn += 1
            if row.sign > 0:
                self.standing[self.lsn] = row
        self.commits.append(Commit(frontier, tuple(rows)))

    def _report(self, before: datetime, frontier: datetime) -> Row:
        """One that was received after the F before; some of it far ahead of F."""
        received_at = self.random.choice([before, before + MINUTE, frontier + MINUTE, CLOSE, CLOSE + 3 * MINUTE])
        first = None
        if self.is_history and self.random.random() < 0.5:
            first = self.random.choice([END, CLOSE])
        event_time = FIRST + timedelta(days=self.random.randrange(3))
        user, number = self.random.choice("xyz"), self.random.randrange(4)
        price = self.random.choice([7, 7, 8, None])
        return Row(user, number, event_time, max(received_at, before), first, price, model=self.random.choice("mmn"))

    def _audit(self, frontier: datetime) -> None:
        rows = []
        for lsn in self.random.sample(sorted(self.standing), k=min(2, len(self.standing))):
            row = self.standing.pop(lsn)
            cause = self.random.choice(["reversed", "repriced", "restated"])
            rows.append(replace(row, sign=-1, cause=cause, corrects=(lsn,)))
            if cause == "repriced":
                rows.append(replace(row, cause=cause, corrects=(lsn,), price=self.random.choice([7, 8, None])))
            elif cause == "restated":
                rows.append(replace(row, cause=cause, corrects=(lsn,), user=self.random.choice("xyz"), number=9))
        self._commit(frontier, rows)


Found = dict[Any, list[tuple[Any, ...]]]
"""By model, meter and currency the corrections in order: the rows of usage, cause, quantities and amounts."""


def expected(history: Usage, rules: History) -> tuple[Found, dict[Any, Decimal]]:
    """The corrections by the rule, and what each set (model, meter, price version) comes to."""
    on_time: defaultdict[Any, list[Row]] = defaultdict(list)
    late: defaultdict[Any, defaultdict[Any, list[tuple[int, bool, Row]]]] = defaultdict(lambda: defaultdict(list))
    for lsn, (place, frontier, row) in enumerate(history.rows, 1):
        first = row.first_received_at or row.received_at
        effective = effective_at(rules, lsn)
        closed_before = effective.closed_before.every
        had_closed = closed_before is not None and closed_before >= END
        close = END + timedelta(seconds=effective.rules["grace_seconds"])
        is_elsewhere = history.is_history and first < min(close, row.received_at)
        was_closed = row.cause != "stream" and (had_closed or frontier >= close)
        is_late = had_closed or row.received_at >= close
        is_correction = was_closed or (is_late and not is_elsewhere)
        key = row.model, None if row.price is None else "EUR"
        if not is_late and not was_closed:
            on_time[key].append(row)
        else:
            together = (place, row.cause, *row.corrects) if row.corrects else (lsn,)
            late[key][together, is_correction].append((lsn, is_correction, row))
    corrections: Found = defaultdict(list)
    quantities: dict[Any, Decimal] = {}
    for key in on_time.keys() | late.keys():
        for meter, kind in KINDS.items():
            rows = list(on_time[key])
            state = _total(rows, meter, kind)
            for group in late[key].values():
                rows += [row for _, _, row in group]
                before, state = state, _total(rows, meter, kind)
                if group[0][1] and before != state:
                    lsns = sorted(lsn for lsn, _, _ in group)
                    corrections[(*key, meter)].append((lsns, group[0][2].cause, *before, *state))
            for version in {row.price for row in rows}:
                of_version = [row for row in rows if row.price == version]
                quantities[key[0], meter, version] = _total(of_version, meter, kind)[0]
    return dict(corrections), quantities


def _total(rows: Sequence[Row], meter: str, kind: Aggregation) -> tuple[Decimal, Decimal]:
    counts: defaultdict[Any, defaultdict[Member, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        counts[row.price][row.member(meter)] += row.sign
    found = {version: quantity_of(kind, of_version) for version, of_version in counts.items()}
    amount = sum((quantity * PRICES.get(version, Decimal(0)) for version, quantity in found.items()), Decimal(0))
    return sum(found.values(), Decimal(0)), amount


def usage_of(history: Usage) -> pa.Table:
    """The rows as usage has them."""
    rows: list[dict[str, Any]] = []
    entries: list[dict[str, Any]] = []
    for place, (commit, frontier, row) in enumerate(history.rows):
        rows.append(
            {
                "lsn": place + 1,
                "logged_at": END + commit * MINUTE,
                "account": "acme",
                "request_id": f"{place}",
                "model": row.model,
                "outcome": "matched",
                "event_time": row.event_time,
                "received_at": row.received_at,
                "first_received_at": row.first_received_at,
                "currency": None if row.price is None else "EUR",
                "sign": row.sign,
                "cause": row.cause,
                "corrects_lsns": list(row.corrects) or None,
                "day": row.event_time.date(),
                "frontier": frontier,
                "meters": [],
            }
        )
        for meter in sorted(METERS):
            is_text = meter == "users"
            entries.append(
                {
                    "row": place,
                    "meter": meter,
                    "aggregation": KINDS[meter].value,
                    "period": "month",
                    "first_day": date(2026, 3, 1),
                    "starts_at": FIRST,
                    "ends_at": END,
                    "member": row.user if is_text else None,
                    "value": None if is_text else Decimal(row.number),
                    "currency": None if row.price is None else "EUR",
                    "price_version": row.price,
                    "unit_price": None if row.price is None else PRICES[row.price],
                }
            )
    texts = dict(written(pl.DataFrame(entries, schema={"row": pl.Int64(), **ENTRY})).iter_rows())
    named = [{**row, "members": texts[place]} for place, row in enumerate(rows)]
    schema = pa.schema([each.with_nullable(True) for each in USAGE if each.name in (*COLUMNS, "logged_at")])
    return pa.Table.from_pylist(named, schema=schema)


def pieces_of(
    usage: pa.Table, rules: History, cuts: Sequence[int], restarts: Sequence[Restart] = ()
) -> Iterator[tuple[pa.Table, Fold]]:
    """What is staged, as by a driver whose batches end before these rows: F comes with the end of the table alone.

    The table ends, as that driver sees it, where a commit does and a batch, too. A driver ends where the next one
    starts, with its F.
    """
    commits, frontiers = usage["logged_at"].to_pylist(), usage["frontier"].to_pylist()
    starts = {restart.first - 1: restart.frontier for restart in restarts}
    bounds = [0, *sorted({cut for cut in (*cuts, *starts) if 0 < cut < len(usage)}), len(usage)]
    reached = None
    for first, end in pairwise(bounds):
        is_whole = end == len(usage) or commits[end] != commits[end - 1]
        reached = frontiers[end - 1] if is_whole else reached
        if later := [frontier for start, frontier in starts.items() if start >= end]:
            reached = None if None in later else min(at for at in (reached, *later) if at is not None)
        held = effective_at(rules, first + 1)
        yield sums(usage.slice(first, end - first), held), Fold(None, reached, end + 1, is_whole, (held,))


def rebuilt(usage: pa.Table, rules: History, config: BillingConfig) -> Iterator[tuple[pa.Table, Fold]]:
    """The pieces of `weir rebuild`."""
    for held, end in zip(rules, [*(later.first for later in rules[1:]), len(usage) + 1], strict=True):
        rows = usage.slice(held.first - 1, end - held.first)
        for piece in PLAN.pieces(rows, Part(held.first, config, held), ends_table=end > len(usage)):
            known = effective_from(rules, piece.next_lsn)
            yield piece.staged, Fold(None, piece.frontier, piece.next_lsn, piece.frontier is not None, known)


def folded(
    connection: psycopg.Connection[Any], pieces: Iterator[tuple[pa.Table, Fold]], config: BillingConfig
) -> tuple[Found, dict[Any, Decimal], list[Any]]:
    """The corrections, what each set comes to, and which corrections wait, of a database with these pieces alone."""
    with connection.transaction():
        for table in ("usage_windows", "usage_days", "usage_members", "corrections", "late_members"):
            connection.execute(f"DELETE FROM {table}")
    for staged, around in pieces:
        with connection.transaction(), connection.cursor() as cursor:
            stage(cursor, JOB.staged, staged)
            JOB.fold(cursor, config, around)
    corrections: Found = defaultdict(list)
    for row in rows_of(connection, "SELECT * FROM corrections ORDER BY number"):
        numbers = (row["old_quantity"], row["old_amount"] or 0, row["new_quantity"], row["new_amount"] or 0)
        corrections[row["model"], row["currency"], row["meter"]].append((row["usage_lsns"], row["cause"], *numbers))
    days = rows_of(connection, "SELECT model, meter, price_version, quantity, corrected FROM usage_days")
    found = {(row["model"], row["meter"], row["price_version"]): row["quantity"] for row in days}
    marked = {(row["model"], row["meter"]) for row in days if row["corrected"]}
    assert marked == {(model, meter) for model, _, meter in corrections}
    waiting = rows_of(connection, "SELECT usage_lsn, meter FROM late_members ORDER BY 1, 2")
    return dict(corrections), found, waiting


def restarts_in(usage: pa.Table, random: Random, count: int) -> list[Restart]:
    """Drivers that start with a longer or shorter grace; the one before may have seen less of F than the table had."""
    commits, frontiers = usage["logged_at"].to_pylist(), usage["frontier"].to_pylist()
    ends = [place for place in range(1, len(usage)) if commits[place] != commits[place - 1]]
    restarts: list[Restart] = []
    for place in sorted(random.sample(ends, k=min(count, len(ends)))):
        behind = random.choice([place - 1, *(end - 1 for end in ends if end < place)])
        known = [restart.frontier for restart in restarts if restart.frontier is not None]
        frontier = max([frontiers[behind], *known])
        restarts.append(Restart(place + 1, random.choice([5, 15, 18, 25]) * MINUTE, frontier))
    return restarts


@pytest.mark.few_in_ci(6)
@pytest.mark.parametrize("restarts", [0, 1, 3])
@pytest.mark.parametrize("seed", range(24))
def test_any_cut_and_a_rebuild_give_the_corrections_of_the_rule(
    connection: psycopg.Connection[Any], seed: int, restarts: int
) -> None:
    random = Random(seed)
    history = Usage(random, is_history=seed % 3 == 2).drawn()
    last = history.commits[-1].frontier
    history._commit(CLOSE + 30 * MINUTE, [history._report(last, last)])
    config = config_of(has_history=history.is_history)
    usage = usage_of(history)
    drivers = restarts_in(usage, random, restarts)
    rules = rules_of(drivers, has_history=history.is_history)
    corrections, quantities = expected(history, rules)
    ways = {
        "at once": pieces_of(usage, rules, (), drivers),
        "one by one": pieces_of(usage, rules, range(len(usage)), drivers),
        "anyhow": pieces_of(usage, rules, random.sample(range(len(usage)), k=4), drivers),
        "rebuilt": rebuilt(usage, rules, config),
    }
    for way, pieces in ways.items():
        found, days, waiting = folded(connection, pieces, config)
        assert found == corrections, way
        assert days == quantities, way
        assert waiting == [], way


@pytest.mark.parametrize("cuts", [(), (1,)], ids=["at once", "in two"])
def test_a_correction_waits_until_all_that_was_on_time_is_known(
    connection: psycopg.Connection[Any], cuts: Sequence[int]
) -> None:
    """A straggler is ahead of F, and what is on time follows it in usage: the bill has both at once."""
    config = config_of(has_history=False)
    rules = (EffectiveRules(1, config.deciding),)
    late, on_time = Row("x", 1, FIRST, CLOSE + MINUTE), Row("y", 3, FIRST, CLOSE - MINUTE)
    history = Usage(Random(0), commits=[Commit(CLOSE - 2 * MINUTE, (late,)), Commit(CLOSE - MINUTE, (on_time,))])
    pieces = list(pieces_of(usage_of(history), rules, cuts))
    corrections, days, waiting = folded(connection, iter(pieces), config)
    assert corrections == {}
    assert days == {("m", "users", 7): 2, ("m", "idle", 7): 1, ("m", "peak", 7): 3, ("m", "last", 7): 3}
    assert {row["usage_lsn"] for row in waiting} == {1}
    with connection.transaction(), connection.cursor() as cursor:
        assert not JOB.is_due(cursor, Fold(None, CLOSE - timedelta(microseconds=1), 3, rules=rules))
        assert JOB.is_due(cursor, Fold(None, CLOSE, 3, rules=rules))
    closed = (JOB.staged.empty_table(), Fold(None, CLOSE, 3, rules=rules))
    corrections, _, waiting = folded(connection, iter([*pieces, closed]), config)
    quarter = PRICES[7]
    assert corrections == {
        ("m", "EUR", "users"): [([1], "stream", 1, quarter, 2, 2 * quarter)],
        ("m", "EUR", "idle"): [([1], "stream", 3, 3 * quarter, 1, quarter)],
    }
    assert waiting == []
