"""A quarter from its first record to the last audit: time passes, records come, audits correct; all is compared."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import psycopg
from deltalake import DeltaTable

from jobs.streams import EVENTS_TOPIC, Table
from metering.vocabulary import Disposition
from tests.quarter.catalog_of_truth import DAY
from tests.quarter.compare import Compared, compared
from tests.quarter.generate import SOURCE
from tests.quarter.shown import Shown
from tests.quarter.stack import PARTITIONS, SETTLED_AFTER, Stack, running_stack, tell_zones
from tests.quarter.truth import BEGIN, DAYS, Truth
from tests.simulation.audits import proved

Tell = Callable[[str], None]
AFTERWARDS = DAY
"""How long a turn is when the quarter is over, and only what is late comes."""


@dataclass
class Result:
    """What a run measured."""

    cells: list[Compared] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    unexplained: int = 0
    """Closed windows that are not what they showed and their corrections."""
    closed_windows: int = 0
    moved_windows: int = 0
    audits: int = 0
    put_right: int = 0
    made: dict[str, Counter[str]] = field(default_factory=dict)
    """What the applications have made, by table."""
    seconds: float = 0.0


@dataclass
class Quarter:
    """A quarter that has been run: its stack still stands."""

    truth: Truth
    stack: Stack
    shown: Shown
    result: Result

    def compared(self) -> list[Compared]:
        """All cells, as they are now."""
        return list(compared(self.truth, str(self.stack.tables), self.stack.database))


@contextmanager
def lived(truth: Truth, folder: Path, turn: timedelta, audit_every: timedelta, tell: Tell) -> Iterator[Quarter]:
    """The quarter run and audited, before anything is compared."""
    begun, result = time.monotonic(), Result()
    with running_stack(folder, truth.seed) as stack, Shown(stack.database) as shown:
        tell_zones(stack.database, truth.zones)
        audited_at = BEGIN
        for until in _pass(truth, stack, turn):
            shown.look()
            if until - audited_at >= audit_every:
                audited_at = until
                _audit(stack, result)
                tell(f"{until:%Y-%m-%d}, {time.monotonic() - begun:.0f} s: {result.put_right} rows corrected so far")
                stack.start_anew()
        stack.turn(stack.clock.now() + SETTLED_AFTER)
        shown.look()
        for _ in range(2):
            # The second finds nothing more; billing has taken the rows of the first in between.
            _audit(stack, result)
            stack.turn(stack.clock.now() + DAY)
            shown.look()
        result.seconds = time.monotonic() - begun
        yield Quarter(truth, stack, shown, result)


def _pass(truth: Truth, stack: Stack, turn: timedelta) -> Iterator[datetime]:
    """Let time pass turn by turn until every record has come; when each turn ended."""
    partitions = {account: number % PARTITIONS for number, account in enumerate(truth.zones)}
    changes, records, until = deque(truth.changes), deque(truth.records), BEGIN
    while changes or records:
        until += turn if until < BEGIN + DAYS * DAY else max(turn, AFTERWARDS)
        while changes and changes[0].at < until:
            stack.tell(changes.popleft())
        while records and records[0].at < until:
            record = records.popleft()
            stack.receive(record, partitions[record.account])
        stack.turn(until)
        yield until


def _audit(stack: Stack, result: Result) -> None:
    result.put_right += stack.audited().appended
    result.audits += 1


def measured(quarter: Quarter) -> Result:
    """The result, with all that was compared, counted and proved."""
    result, stack = quarter.result, quarter.stack
    result.cells, unexplained = quarter.compared(), list(quarter.shown.unexplained())
    result.unexplained = len(unexplained)
    result.wrong = [wrong for each in result.cells for wrong in each.wrong]
    result.wrong += unexplained
    result.wrong += _left_over(stack)
    result.closed_windows, result.moved_windows = quarter.shown.closed(), quarter.shown.moved()
    result.made = made(stack)
    result.wrong += _miscounted(quarter.truth, result.made)
    return result


def _left_over(stack: Stack) -> Iterator[str]:
    """What one more audit would change, or finds unproved."""
    said = stack.audited(appends=False)
    if said.appended:
        yield f"another audit would put {said.appended} rows right"
    for check, found in proved(str(stack.tables), stack.database).items():
        if found.found:
            yield f"{check}: {found.first} ({found.found} in all)"


def made(stack: Stack) -> dict[str, Counter[str]]:
    """How many rows of which kind the applications have made."""
    journal = DeltaTable(f"{stack.tables}/{Table.JOURNAL}").to_pyarrow_table(columns=["topic", "source", "disposition"])
    usage = DeltaTable(f"{stack.tables}/{Table.USAGE}").to_pyarrow_table(columns=["outcome", "cause", "sign"])
    # Not what ingestion sends itself; what cannot be read names no source.
    events = [row for row in journal.to_pylist() if row["topic"] == EVENTS_TOPIC and row["source"] in (SOURCE, None)]
    with psycopg.connect(stack.database) as connection:
        stragglers, corrections = (
            Counter({str(name): count for name, count in connection.execute(query).fetchall()})
            for query in (_STRAGGLERS, _CORRECTIONS)
        )
    return {
        "records": Counter(row["disposition"] for row in events),
        "usage": Counter(f"{row['cause']}: {row['outcome']}, {row['sign']:+}" for row in usage.to_pylist()),
        "stragglers": stragglers,
        "corrections": corrections,
    }


_STRAGGLERS = """
SELECT decision || CASE WHEN hold_until IS NULL THEN '' ELSE ', after it waited' END, count(*)
FROM stragglers GROUP BY 1
"""
_CORRECTIONS = "SELECT cause, count(*) FROM corrections GROUP BY 1"


def _miscounted(truth: Truth, made: dict[str, Counter[str]]) -> Iterator[str]:
    """Records that became something else than the truth says."""
    for count, disposition in DISPOSITIONS.items():
        if truth.counts[count] != made["records"][disposition]:
            yield f"{truth.counts[count]} {count}, but {made['records'][disposition]} are {disposition}"


DISPOSITIONS = {
    "records: unreadable": Disposition.REJECTED.value,
    "records: the same again, up to 30 days later": Disposition.DUPLICATE.value,
    "records: another under the same identity": Disposition.CONFLICT.value,
}
