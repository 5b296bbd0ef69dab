"""After the faults: what was lost, doubled or wrong, and the proof that this could have been seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial

import psycopg
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from deployment.stack import Deployment
from tests.e2e import test_invariants
from tests.faults.posting import PostedFound
from tests.faults.stage import Stage
from tests.faults.strikes import frozen
from traffic.compare import DUPLICATED, LOST, Check, Comparison, compare
from traffic.truth import Truth

TRIES = 20
IN_THE_JOURNAL = (f"events {LOST}", f"events {DUPLICATED}")


@dataclass(frozen=True)
class Verdict:
    """How many things are lost, doubled, wrong; `differences` has lines for people."""

    lost: int
    doubled: int
    wrong: int
    differences: tuple[str, ...]

    @property
    def failures(self) -> int:
        """All of them."""
        return self.lost + self.doubled + self.wrong


def verdict(comparison: Comparison, broken: tuple[str, ...], poison_sent: int, poison_found: int) -> Verdict:
    """What a comparison says, with the invariants that do not hold and the poison records that are no dead letters.

    Whatever is not as it must be, and neither lost nor doubled, is wrong.
    """
    others = [check for check in comparison.checks if check.name not in IN_THE_JOURNAL]
    lost, doubled = (comparison.unexpected(name) for name in IN_THE_JOURNAL)
    poison = [] if poison_sent == poison_found else [f"{poison_sent} poison records sent, {poison_found} dead letters"]
    wrong = sum(map(_wrong, others)) + len(broken) + abs(poison_sent - poison_found)
    return Verdict(lost, doubled, wrong, (*comparison.differences, *broken, *poison))


def with_posted(of_traffic: Verdict, posted: PostedFound) -> Verdict:
    """The verdict with what became of the events that were posted."""
    billed = [] if posted.billed == posted.events else [f"{posted.events} events posted, {posted.billed} billed"]
    lines = [f"posted and lost: {name}" for name in posted.lost]
    lines += [f"posted and decided more than once: {name}" for name in posted.doubled]
    return Verdict(
        of_traffic.lost + len(posted.lost),
        of_traffic.doubled + len(posted.doubled),
        of_traffic.wrong + abs(posted.events - posted.billed),
        (*of_traffic.differences, *lines, *billed),
    )


def _wrong(check: Check) -> int:
    return check.expected - check.found + check.unexpected


def broken_invariants(stage: Stage) -> tuple[str, ...]:
    """A line for each of the checks of docs/design.md that does not hold."""
    # As `stage.deployment` reaches it: past the proxies, and in the object store where the drivers' tables are.
    stack = replace(stage.stack(), **asdict(stage.deployment))
    held: dict[str, Callable[[], None]] = {
        name: partial(check, stack) for name, check in vars(test_invariants).items() if name.startswith("test_i")
    }
    return tuple(line for name, check in held.items() for line in _broken(name, check))


def _broken(name: str, check: Callable[[], None]) -> list[str]:
    try:
        check()
    except AssertionError as broken:
        return [f"{name}: {broken}"]
    return []


def poison_found(deployment: Deployment) -> int:
    """How many dead letters are too large."""
    journal = DeltaTable(f"{deployment.tables}/journal").to_pyarrow_dataset()
    return sum(reason == "too_large" for reason in journal.to_table(columns=["reason"])["reason"].to_pylist())


def plant_and_look(truth: Truth, stage: Stage) -> dict[str, bool]:
    """Lose an event in the journal and a window of the bill, really; whether each is then seen. Nothing may follow."""
    deployment = stage.deployment
    lost = next(
        record for record in truth["records"] if record["disposition"] == "accepted" and "'" not in record["id"]
    )
    # Over a store a deletion takes longer than ingestion waits between two commits, which would each undo it.
    go_on = frozen(stage, "ingestion")
    try:
        _delete(f"{deployment.tables}/journal", f"source = '{lost['source']}' AND id = '{lost['id']}'")
    finally:
        go_on()
    with psycopg.connect(deployment.postgres_url) as database:
        database.execute(
            "DELETE FROM usage_windows WHERE ctid = (SELECT ctid FROM usage_windows"
            " WHERE account = ANY (%s) AND amount > 0 LIMIT 1)",
            [truth["accounts"]],
        )
    # One of the checks before was an audit.
    seen = compare(truth, deployment.postgres_url, deployment.tables, audited=True)
    lost_events = seen.unexpected(f"events {LOST}")
    money = sum(_wrong(check) for check in seen.checks if check.is_money)
    return {"lost event": lost_events >= 1, "lost window": money >= 1}


def _delete(table: str, rows: str) -> None:
    """Delete rows of a table, to which a commit that was under way may still be added."""
    for left in reversed(range(TRIES)):
        try:
            DeltaTable(table).delete(rows)
            return
        except CommitFailedError:
            if not left:
                raise
