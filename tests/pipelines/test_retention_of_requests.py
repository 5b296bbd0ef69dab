"""Retention removes nothing that may still change what a request bills, and the audit doubts nothing afterwards.

Each night as many days are removed as may be, before the audit or after it. What the requests bill in the end is said
by a few lines of Python that know nothing of days; another audit appends nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from itertools import permutations
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.joins.config import JoinsConfig
from jobs.joins.correction_horizon import correction_horizon
from jobs.retention.days import first_retained
from jobs.runtime.effective_rules import EffectiveRules
from tests.pipelines.hand_made import DAY, HOUR, MINUTE, START, HandMade
from tests.pipelines.test_audit_restated import audited

REACH = 3 * DAY
REACH_SECONDS = REACH // timedelta(seconds=1)
PRESENT = JoinsConfig(best_report_bills=True, rejoin_seconds=REACH_SECONDS)
HORIZON = correction_horizon((EffectiveRules(1, PRESENT.deciding),), PRESENT, None)
TOKENS = "output_tokens"
FIRST_DAY, LAST_DAY = 4, 18
SOURCES = {"provider": 3, "estimated": 2, "partial": 1}


@dataclass(frozen=True)
class Report:
    """A report of both sides, `after` the first report of its request."""

    after: timedelta
    source: str
    tokens: int

    def happens(self, world: HandMade, name: str, at: timedelta) -> None:
        """It is received."""
        reported = {"model": "m", "status": "completed", "usage_source": self.source, TOKENS: self.tokens}
        world.event(at, "both", f"{name} {self.source}", occurred=at, name=name, **reported)


@dataclass(frozen=True)
class Side:
    """A request, or a completion with 100 tokens."""

    after: timedelta
    kind: str

    def happens(self, world: HandMade, name: str, at: timedelta) -> None:
        """It is received."""
        (world.request if self.kind == "request" else world.completion)(at, name=name)


@dataclass(frozen=True)
class Reversal:
    """A credit of tokens (`quantity`; None: of all of them), or with `is_whole` all that the request bills."""

    after: timedelta
    quantity: int | None = None
    is_whole: bool = False

    def happens(self, world: HandMade, name: str, at: timedelta) -> None:
        """It is received."""
        quantity = None if self.quantity is None else Decimal(self.quantity)
        world.reversal(at, name=name, meter=None if self.is_whole else TOKENS, quantity=quantity)


Event = Report | Side | Reversal
Request = tuple[timedelta, Sequence[Event]]
"""When its first report is received, and all that is ever received of it."""


def billed(events: Sequence[Event]) -> Decimal:
    """The tokens that a request must bill by all that was ever received of it."""
    reports = [event for event in events if isinstance(event, Report)]
    best = max(reports, key=lambda report: SOURCES[report.source], default=None)
    tokens = Decimal(100 if best is None else best.tokens)
    reversals = [event for event in events if isinstance(event, Reversal)]
    if any(reversal.is_whole or reversal.quantity is None for reversal in reversals):
        return Decimal(0)
    return max(Decimal(0), tokens - sum((Decimal(reversal.quantity or 0) for reversal in reversals), Decimal(0)))


class Nights:
    """A world that keeps no day longer than it must, and what usage ever held of it."""

    def __init__(self, folder: Path, present: JoinsConfig = PRESENT) -> None:
        self._present = present
        self._world = HandMade(folder, best_report_bills=present.best_report_bills, rejoin_seconds=REACH_SECONDS)
        self._written: dict[int, tuple[str, Decimal]] = {}

    def bill(self, requests: Sequence[Request], retained_first: Sequence[bool]) -> dict[str, Decimal]:
        """Tokens by the number of each request, when all came, was audited and was removed again."""
        schedule = [
            (begins + event.after, f"{number}", event)
            for number, (begins, events) in enumerate(requests)
            for event in events
        ]
        schedule += [(day * DAY + HOUR, f"of day {day}", Report(timedelta(), "provider", 1)) for day in range(LAST_DAY)]
        waiting = sorted(schedule, key=lambda event: event[0])
        for night, is_first in zip(range(1, LAST_DAY + 1), retained_first, strict=True):
            now = night * DAY + 2 * HOUR
            while waiting and waiting[0][0] < now:
                at, name, event = waiting.pop(0)
                event.happens(self._world, name, at)
            self._world.joined(now)
            if is_first:
                self._retain(night)
            audited(self._world, now, self._present)
            self._remember()
            if not is_first:
                self._retain(night)
        assert not waiting
        assert audited(self._world, (LAST_DAY + 1) * DAY, self._present) == 0
        names = [f"{number}" for number, _ in enumerate(requests)]
        return {
            name: sum((tokens for of, tokens in self._written.values() if of == name), Decimal(0)) for name in names
        }

    def _retain(self, night: int) -> None:
        # No month is open, and nobody asked for more days than there must be.
        self._world.removed((night - 2 * (HORIZON // DAY)) * DAY)

    def _remember(self) -> None:
        rows = pl.DataFrame(DeltaTable(f"{self._world.tables}/usage").to_pyarrow_table())
        entries = rows.explode("meters").unnest("meters").filter(pl.col("meter") == TOKENS)
        signed = entries.select("lsn", "request_id", pl.col("sign") * pl.col("quantity")).drop_nulls()
        self._written |= {lsn: (name, tokens) for lsn, name, tokens in signed.iter_rows()}


def begins(hours: float) -> timedelta:
    return FIRST_DAY * DAY + hours * HOUR


PARTIAL, ESTIMATED = Report(timedelta(), "partial", 90), Report(HOUR, "estimated", 100)
LATE = Report(REACH, "provider", 120)
HISTORIES: dict[str, Sequence[Event]] = {
    "a credit before two reports, and a better one": [Reversal(-REACH, 40), PARTIAL, ESTIMATED, LATE],
    "a credit before two reports": [Reversal(-REACH, 40), PARTIAL, ESTIMATED],
    "a credit of a meter": [Reversal(-REACH), PARTIAL, ESTIMATED, LATE],
    "a credit before a pair that was given up": [
        Reversal(-REACH, 40),
        Side(timedelta(), "request"),
        Side(REACH, "completion"),
    ],
    "a reversal of all before two reports, and a better one": [
        Reversal(-REACH, is_whole=True),
        PARTIAL,
        ESTIMATED,
        LATE,
    ],
    "a credit after its request, and a better report": [PARTIAL, Reversal(HOUR, 40), LATE],
    "credits before it and after it": [Reversal(-REACH, 30), PARTIAL, ESTIMATED, Reversal(REACH, 20)],
    "a better report": [PARTIAL, LATE],
    "a lesser report, long after it": [Report(timedelta(), "provider", 120), Report(REACH, "estimated", 100)],
    "lesser and better ones": [PARTIAL, Report(REACH / 2, "provider", 120), Report(REACH, "estimated", 100)],
}


@pytest.mark.long
@pytest.mark.parametrize("is_retained_first", [True, False], ids=["before the audit", "after it"])
def test_nightly_retention_changes_no_bill(tmp_path: Path, *, is_retained_first: bool) -> None:
    requests = [(begins(hours), events) for hours in (0, 1.5, 12, 23.9) for events in HISTORIES.values()]
    found = Nights(tmp_path).bill(requests, [is_retained_first] * LAST_DAY)
    assert found == {f"{number}": billed(events) for number, (_, events) in enumerate(requests)}


@pytest.mark.long
def test_where_the_first_report_bills_retention_keeps_reversals(tmp_path: Path) -> None:
    present = JoinsConfig(best_report_bills=False, rejoin_seconds=REACH_SECONDS)
    events: list[Sequence[Event]] = [[PARTIAL, Reversal(after, 40)] for after in (-REACH, HOUR, REACH)]
    requests = [(begins(hours), of_request) for hours in (0, 12, 23.9) for of_request in events]
    assert set(Nights(tmp_path, present).bill(requests, [True] * LAST_DAY).values()) == {Decimal(50)}


TIMES = st.integers(0, REACH // MINUTE).map(lambda minutes: minutes * MINUTE)
REVERSALS = st.builds(
    Reversal,
    st.integers(-(REACH // MINUTE), REACH // MINUTE).map(lambda minutes: minutes * MINUTE),
    st.integers(1, 60) | st.none(),
) | st.builds(Reversal, TIMES.map(lambda after: -after), is_whole=st.just(value=True))
SOURCES_IN_ORDER = st.sampled_from([order for many in (1, 2, 3) for order in permutations(SOURCES, many)])


@st.composite
def drawn_requests(draw: st.DrawFn) -> Request:
    """A request whose reports come in any order within its reach, and so do its reversals, before it or after it."""
    sources = draw(SOURCES_IN_ORDER)
    later = sorted(draw(st.lists(TIMES, min_size=len(sources) - 1, max_size=len(sources) - 1)))
    times = [timedelta(), *later]
    reports = [Report(after, source, draw(st.integers(1, 150))) for after, source in zip(times, sources, strict=True)]
    return begins(draw(st.integers(0, 47))), [*reports, *draw(st.lists(REVERSALS, max_size=3))]


@pytest.mark.long
@settings(max_examples=3, deadline=None)
@given(
    st.lists(drawn_requests(), min_size=1, max_size=12),
    st.lists(st.booleans(), min_size=LAST_DAY, max_size=LAST_DAY),
)
def test_removing_old_days_never_changes_a_bill(
    tmp_path_factory: pytest.TempPathFactory, requests: list[Request], retained_first: list[bool]
) -> None:
    found = Nights(tmp_path_factory.mktemp("nights")).bill(requests, retained_first)
    assert found == {f"{number}": billed(events) for number, (_, events) in enumerate(requests)}


def test_days_are_retained_for_the_audit_beyond_the_requested_and_open_ones() -> None:
    today, most = (START + 200 * DAY).date(), 2 * DAY
    assert first_retained(today, 36) - first_retained(today, 36, most) == 2 * DAY
    assert today - first_retained(today, 36, 100 * DAY) == 200 * DAY


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("declared_day", [0, 87], ids=["it billed all along", "it bills since the last days"])
def test_a_late_price_reaches_all_of_an_open_month_where_days_were_removed_by_a_shorter_horizon(
    tmp_path: Path, declared_day: int
) -> None:
    """On 31 March all from 27 January on is kept, as without a horizon, and February is open.

    What is final is priced again, and nothing else of it changes. What was credited by what is removed stays.
    """
    reported = {"model": "m", "status": "completed"}
    ranked, present = {"best_report_bills": True}, JoinsConfig(best_report_bills=True)
    world = HandMade(tmp_path, best_report_bills=declared_day == 0)
    world.price(timedelta(), "0.01", begins=timedelta())
    world.reversal(25 * DAY, name="credited", meter=TOKENS, quantity=Decimal(40))
    for day in (1, 29, 30, 31, 40, 87, 88):
        if day == 87 == declared_day:
            world.configure(**ranked)
        world.event(day * DAY, "both", f"{day}", occurred=day * DAY, name=f"{day}", output_tokens=100, **reported)
        if day == 40:
            world.event(day * DAY, "both", "c", occurred=day * DAY, name="credited", output_tokens=70, **reported)
        world.joined(day * DAY + HOUR)
    audited(world, 88 * DAY + 2 * HOUR, present)
    assert world.billed()[40, "m", "0.01"] == 130
    world.removed((first_retained((START + 89 * DAY).date(), 36) - START.date()).days * DAY)
    world.price(89 * DAY, "0.02", begins=35 * DAY)
    world.event(89 * DAY, "both", "x", occurred=89 * DAY, name="x", output_tokens=1, **reported)
    world.joined(89 * DAY + HOUR)
    audited(world, 89 * DAY + 2 * HOUR, present)
    of_day = {key: tokens for key, tokens in world.billed().items() if key[0] == 40}
    assert of_day == {(40, "m", "0.02"): 100, (40, "m", "0.01"): 30}
    assert audited(world, 89 * DAY + 3 * HOUR, present) == 0


@pytest.mark.parametrize("received_early", [timedelta(), DAY], ids=["as it occurs", "a day before"])
def test_a_late_price_reaches_the_first_hours_of_an_open_month_wherever_it_begins_first(
    tmp_path: Path, received_early: timedelta
) -> None:
    """In the farthest zone February begins on 31 January at 10:00 UTC; a time-out is a day, the longest there is."""
    config = {"best_report_bills": False, "completion_timeout_seconds": DAY // timedelta(seconds=1)}
    world, present = HandMade(tmp_path, **config), JoinsConfig.model_validate(config)
    world.account(timedelta(), timezone="Pacific/Kiritimati")
    world.price(timedelta(), "0.01", begins=timedelta())
    others = {f"of day {day}": day * DAY for day in (*range(20, 30), 88)}
    for name, at in (others | {"first": 30 * DAY + 10 * HOUR - received_early}).items():
        occurred = at + received_early
        world.event(at, "both", name, occurred=occurred, name=name, model="m", status="completed", output_tokens=100)
    world.joined(88 * DAY + HOUR)
    audited(world, 88 * DAY + 2 * HOUR, present)
    world.removed((first_retained((START + 88 * DAY).date(), 36) - START.date()).days * DAY)
    world.price(88 * DAY + 3 * HOUR, "0.02", begins=20 * DAY)
    world.joined(88 * DAY + 4 * HOUR)
    audited(world, 88 * DAY + 5 * HOUR, present)
    assert world.billed()[31, "m", "0.02"] == 100
