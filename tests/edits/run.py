"""One run on a running stack: edits by SQL, traffic beside them, kills in turn; then all of it is compared."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import polars as pl
from deltalake import DeltaTable

from deployment.draining import Waiter, drain
from deployment.processes import session_members
from deployment.stack import Stack, running_stack
from tests.edits.editor import Editor
from tests.edits.told import Captured, captured, versions_differ
from tests.edits.traffic import Traffic
from tests.edits.verdict import PLANTED, compared

KILLED = ("connect", "database", "joins")
"""The worker of Connect with its Java, Postgres, and the driver of joins with its Java."""
PATIENCE_SECONDS = 900.0
HOURS = timedelta(hours=1)
BEGINNINGS = (
    *(timedelta(days=-21), timedelta(days=-5), timedelta(days=-1), -2 * HOURS, timedelta(minutes=-20)),
    *(timedelta(minutes=minutes) for minutes in (-3, 1, 3, 6, 9, 13, 20)),
    timedelta(days=1),
)
"""When prices and accounts hold from, since the run began."""
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What is done. `pause_seconds`: between two kills, and on average between two transactions."""

    seed: int
    edits: int
    kill_every_seconds: float = 20.0
    edit_every_seconds: float = 0.8
    rate: float = 10.0
    abandons: bool = True


@dataclass(frozen=True)
class Done:
    """A run that is over, but for its comparison. `begun`: in monotonic seconds."""

    plan: Plan
    begun: float
    kills: Counter[str]


@dataclass(frozen=True)
class Result:
    """`counts`: what was done and compared, by name; `wrong`: a line for each difference."""

    plan: Plan
    seconds: float
    counts: Mapping[str, int]
    kills: Mapping[str, int]
    wrong: tuple[str, ...]
    planted_seen: bool
    """Whether a price that was altered by the last decimal in what is compared was seen."""


def run(stack: Stack, plan: Plan, tell: Tell) -> Result:
    """Run it, under names of its own. Raises Stuck when the stack does not come to an end."""
    begun, random = time.monotonic(), Random(plan.seed)
    start = datetime.now(UTC).replace(microsecond=0)
    instants = [start + beginning for beginning in BEGINNINGS]
    names = f"edits-{plan.seed}-{start:%H%M%S}"
    editor = Editor(stack.postgres_url, names, Random(random.random()), instants)
    editor.begin()
    edited = editor.history.counts
    edited.clear()
    traffic = Traffic(
        stack.kafka_bootstrap,
        names,
        [*editor.accounts, f"{names}-nobody"],
        Random(random.random()),
        instants,
        rate=plan.rate,
        abandons=plan.abandons,
    )
    with traffic.flowing(), killing(stack, plan.kill_every_seconds) as kills:
        while edited["edits"] < plan.edits or len(kills) < len(KILLED):
            editor.edit()
            time.sleep(random.expovariate(1 / plan.edit_every_seconds))
            if sum(edited.values()) % 50 == 0:
                tell(f"{edited['edits']} edits, {len(traffic.sent)} requests, {sum(kills.values())} kills")
    tell(f"{edited['edits']} edits in {edited['transactions']} transactions: draining …")
    drain(stack, PATIENCE_SECONDS, include_waiting=plan.abandons)
    Waiter(stack, PATIENCE_SECONDS).until_catalog_joined()
    if traffic.refused:
        raise RuntimeError(f"records were not taken, so nobody knows what must come of them: {traffic.refused[0]}")
    return _compared(stack, editor, traffic, names, Done(plan, begun, kills))


@contextmanager
def killing(stack: Stack, every_seconds: float) -> Iterator[Counter[str]]:
    """Kill one of KILLED after the other, each with all that it has started, as long as the block lasts."""
    stopped, kills = threading.Event(), Counter[str]()

    def run() -> None:
        for name in itertools.cycle(KILLED):
            if stopped.wait(every_seconds):
                return
            process = running_stack(stack.data_dir).process(name).process
            # One that is between two lives is left alone: the next has its turn.
            if process is not None and process.is_running:
                for member in [process] if name == "database" else session_members(process, stack.id):
                    member.signal(signal.SIGKILL)
                kills[name] += 1

    thread = threading.Thread(target=run, name="killing", daemon=True)
    thread.start()
    try:
        yield kills
    finally:
        stopped.set()
        thread.join()


def _compared(stack: Stack, editor: Editor, traffic: Traffic, names: str, done: Done) -> Result:
    journal = pl.scan_pyarrow_dataset(DeltaTable(f"{stack.tables}/journal").to_pyarrow_dataset())
    told = (
        journal.filter(pl.col("topic").str.starts_with("catalog.") & (pl.col("disposition") == "accepted"))
        .select("lsn", "topic", "value")
        .sort("lsn")
        .collect()
    )
    found = captured(editor.history, told.iter_rows(named=True), names)
    prices, accounts = (
        _rows(stack, table, names, "plan" if table == "prices" else "account") for table in ("prices", "accounts")
    )
    differ = list(versions_differ(editor.history, found, prices, accounts))
    events = journal.filter((pl.col("source") == f"gateway/{names}") & (pl.col("disposition") == "accepted"))
    lsns: dict[str, list[int]] = defaultdict(list)
    for lsn, request_id in events.select("lsn", "request_id").collect().iter_rows():
        lsns[request_id].append(lsn)
    usage = [row for row in _rows(stack, "usage", names, "account") if row["cause"] == "stream"]
    end = told["lsn"].max() or 0
    assert isinstance(end, int)
    verdict = compared(traffic.sent, found, usage, lsns, end + 1)
    counts = Counter(editor.history.counts) + verdict.counts
    counts["changes published again"] = found.repeats
    counts["rows of the catalog with versions"] = len(editor.history.prices) + len(editor.history.accounts)
    counts["versions"] = len(prices) + len(accounts)
    wrong = (*found.wrong, *differ, *verdict.wrong)
    planted = compared(traffic.sent, _altered(found), usage, lsns, end + 1)
    return Result(done.plan, time.monotonic() - done.begun, counts, done.kills, wrong, bool(planted.wrong))


def _rows(stack: Stack, table: str, names: str, column: str) -> list[dict[str, Any]]:
    rows = pl.scan_pyarrow_dataset(DeltaTable(f"{stack.tables}/{table}").to_pyarrow_dataset())
    return rows.filter(pl.col(column).str.starts_with(names)).sort("lsn").collect().to_dicts()


def _altered(found: Captured) -> Captured:
    """Every price by its last decimal."""
    prices = {
        key: [one if one.unit_price is None else replace(one, unit_price=one.unit_price + PLANTED) for one in said]
        for key, said in found.prices.items()
    }
    return replace(found, prices=prices)
