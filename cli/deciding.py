"""`weir stragglers approve` and `reject`: what becomes of usage that waits, by whom and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.drain import TimeoutOption
from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, print_rows
from cli.reading import AccountOption, Database, read_only
from cli.who import who
from deployment.errors import CannotRun
from metering.instants import rfc3339
from metering.words import Decision, UsageCause

if TYPE_CHECKING:
    from catalog.decisions import Said, Waiting
    from catalog.publishing import Offsets
    from deployment.draining import Tell
    from deployment.stack import Deployment

COLUMNS = (
    *("usage_lsn", "meter", "account", "window_start", "decision", "quantity", "amount", "currency", "decided_at"),
    *("decided_by", "reason"),
)
MOST_SENTENCES = 20

say = partial(typer.echo, err=True)

_FOUND = """
    SELECT usage_lsn, meter, stragglers.account, stragglers.request_id, stragglers.decision, cause, corrects_lsns,
           hold_until, hold_until <= now() AS is_over, coalesce(stragglers.decided_by, said.decided_by) AS decided_by,
           said.decision AS said, settled IS NOT NULL AS has_waited
    FROM stragglers LEFT JOIN catalog.decisions AS said USING (usage_lsn, meter)
    WHERE (%(meters)s::text[] IS NULL OR meter = ANY (%(meters)s))
      AND (%(accounts)s::text[] IS NULL OR stragglers.account = ANY (%(accounts)s))
      AND CASE WHEN %(lsns)s::bigint[] IS NOT NULL THEN usage_lsn = ANY (%(lsns)s)
               ELSE stragglers.decision = 'hold' AND cause = 'stream' AND said.decision IS NULL END
    ORDER BY usage_lsn, meter
"""
_DECIDED = f"""
    SELECT {", ".join(COLUMNS)} FROM stragglers
    WHERE (usage_lsn, meter) IN (SELECT * FROM unnest(%(lsns)s::bigint[], %(meters)s::text[]))
    ORDER BY usage_lsn, meter
"""


@dataclass(frozen=True)
class Asked:
    """Which stragglers are to be decided: those of usage (None: all that wait), of these meters and accounts or any."""

    lsns: tuple[int, ...] | None
    meters: tuple[str, ...] | None
    accounts: tuple[str, ...] | None


LsnsArgument = Annotated[
    list[int] | None, typer.Argument(metavar="USAGE_LSN", help="Which, by `usage_lsn` of `weir stragglers`.")
]
MeterOption = Annotated[list[str] | None, typer.Option("--meter", help="Only of this meter; may be repeated.")]
AllOption = Annotated[bool, typer.Option("--all", help="All that wait, of --account and --meter where they are given.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; kept with your name.")]
ByOption = Annotated[str | None, typer.Option("--by", help="Who decides; left out: your user on this machine.")]


def approve(
    usage_lsn: LsnsArgument = None,
    *,
    meter: MeterOption = None,
    account: AccountOption = None,
    everything: AllOption = False,
    reason: ReasonOption,
    by: ByOption = None,
    timeout: TimeoutOption = 60.0,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Bill stragglers that wait, and print them as they are then: each changes its window, once.

    What corrects them is decided with them. The first decision holds; the same one again changes nothing. Exit status 1
    when one was decided otherwise or waits no more (nothing is decided then), or is not billed in time (it will be).
    """
    asked = asked_of(usage_lsn, meter, account, everything=everything)
    _decide(asked, said_of(Decision.APPROVE, reason, by), timeout, form, data_dir)


def reject(
    usage_lsn: LsnsArgument = None,
    *,
    meter: MeterOption = None,
    account: AccountOption = None,
    everything: AllOption = False,
    reason: ReasonOption,
    by: ByOption = None,
    timeout: TimeoutOption = 60.0,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Leave stragglers that wait off every bill, for good, and print them as they are then.

    As `approve`, which says what else holds.
    """
    asked = asked_of(usage_lsn, meter, account, everything=everything)
    _decide(asked, said_of(Decision.REJECT, reason, by), timeout, form, data_dir)


def asked_of(
    lsns: Sequence[int] | None, meters: Sequence[str] | None, accounts: Sequence[str] | None, *, everything: bool
) -> Asked:
    """What options ask for. Raises `typer.BadParameter` unless they name stragglers, or say that all are meant."""
    if everything == bool(lsns):
        raise typer.BadParameter("name stragglers by their USAGE_LSN, or say --all: one of both.")
    return Asked(tuple(lsns) if lsns else None, *(tuple(one) if one else None for one in (meters, accounts)))


def to_decide(database: Database, asked: Asked, decision: Decision) -> tuple[list[Waiting], list[Waiting]]:
    """What is to be decided now, and what was decided so before. Raises CannotRun when one of them cannot be."""
    from catalog.decisions import Waiting

    lsns, meters, accounts = (None if one is None else list(one) for one in (asked.lsns, asked.meters, asked.accounts))
    rows = database.execute(_FOUND, {"lsns": lsns, "meters": meters, "accounts": accounts}).fetchall()
    found: dict[bool, list[Waiting]] = {True: [], False: []}
    problems = list(_missing(asked, rows))
    # Of a row of usage that has other meters than those that wait, those are meant.
    waited = {row["usage_lsn"] for row in rows if row["has_waited"]}
    for row in (row for row in rows if row["has_waited"] or row["usage_lsn"] not in waited):
        is_so = decision in (row["said"], row["decision"])
        found[is_so].append(Waiting(row["usage_lsn"], row["meter"], row["account"], row["request_id"]))
        problems += [] if is_so else list(_problem(row))
    if problems:
        more = f"\n… and {len(problems) - MOST_SENTENCES} more." if len(problems) > MOST_SENTENCES else ""
        raise CannotRun("\n".join(["Nothing was decided.", *problems[:MOST_SENTENCES]]) + more)
    return found[False], found[True]


def _missing(asked: Asked, rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    if asked.lsns is None:
        return
    known = {row["usage_lsn"] for row in rows}
    for lsn in dict.fromkeys(asked.lsns):
        if lsn not in known:
            which = " of these accounts and meters" if asked.meters or asked.accounts else ""
            yield f"Usage {lsn} is no straggler{which}: `weir stragglers` lists them by `usage_lsn`."


def _problem(row: dict[str, Any]) -> Iterator[str]:
    """Why nobody can decide about a straggler, in a sentence; nothing where somebody can."""
    place = f"Usage {row['usage_lsn']}, {row['meter']},"
    if row["decision"] != Decision.HOLD:
        by = f" by {row['decided_by']}" if row["decided_by"] else ""
        yield f"{place} does not wait: it is `{row['decision']}`{by}."
    elif row["cause"] != UsageCause.STREAM:
        corrected = ", ".join(map(str, row["corrects_lsns"] or ()))
        yield f"{place} corrects usage {corrected}, and is decided with it: decide that."
    elif row["said"] is not None:
        yield f"{place} was decided by {row['decided_by']}: `{row['said']}`. The first decision holds."
    elif row["is_over"]:
        yield f"{place} had to be decided before {rfc3339(row['hold_until'])}: `hold.expires` decides it."


def said_of(decision: Decision, reason: str, by: str | None) -> Said:
    """The decision with its reason and its author. Raises CannotRun for a reason that says nothing."""
    from catalog.decisions import Said

    if not reason.strip():
        raise CannotRun("--reason is empty: say why, for whoever asks what became of this usage.")
    return Said(decision, reason.strip(), (by or who()).strip())


def _decide(asked: Asked, said: Said, timeout: float, form: Format, data_dir: Path) -> None:
    from cli.progress import telling
    from deployment.stack import running_deployment

    stack = running_deployment(data_dir)
    with telling("Deciding …") as tell:
        decided = decided_by(stack, asked, said, timeout, tell)
    with read_only(stack.postgres_url) as database:
        lsns, meters = [one.usage_lsn for one in decided], [one.meter for one in decided]
        rows = database.execute(_DECIDED, {"lsns": lsns, "meters": meters}).fetchall()
    print_rows(rows, COLUMNS, form)
    if other := [row for row in rows if row["decision"] != said.decision]:
        raise CannotRun(
            f"{len(other)} of {len(rows)} were decided otherwise before this decision came, as `decision` says."
        )


def decided_by(stack: Deployment, asked: Asked, said: Said, timeout: float, tell: Tell) -> list[Waiting]:
    """Store decisions, publish them, and wait until billing has them; all that are as `asked` now or were before.

    Raises CannotRun when one is refused, and then nothing is decided; and when billing does not have them in time.
    """
    from catalog.decisions import decide
    from catalog.publishing import publish_pending
    from catalog.store import alone

    with alone(stack.postgres_url, timeout, say):
        # First what a crash left behind.
        offsets = publish_pending(stack.kafka_bootstrap, stack.postgres_url)
        with read_only(stack.postgres_url) as database:
            waiting, before = to_decide(database, asked, said.decision)
        decided = decide(stack.postgres_url, waiting, said)
        offsets |= publish_pending(stack.kafka_bootstrap, stack.postgres_url)
    if decided or offsets:
        _wait_for_billing(stack, offsets, timeout, tell)
    return [*waiting, *before]


def _wait_for_billing(stack: Deployment, offsets: Offsets, timeout: float, tell: Tell) -> None:
    from deployment.draining import Stuck, Waiter
    from deployment.positions import describe
    from jobs.streams import Table

    positions = {topic.name: topic for topic in describe(stack.kafka_bootstrap, {topic for topic, _ in offsets})}
    waiter = Waiter(stack, timeout, tell)
    try:
        required = {positions[topic].position(partition): offset for (topic, partition), offset in offsets.items()}
        waiter.until_joined(waiter.until_journalled(required))
        waiter.until_billed(waiter.positions.next_lsn(Table.USAGE))
    except Stuck as stuck:
        raise CannotRun(f"The decision is stored, but billing does not have it yet. {stuck}") from stuck
