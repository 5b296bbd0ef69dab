"""`weir stragglers approve` and `reject`: decide about usage that waits, with a name and a reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.author import ByOption, given_reason, who
from cli.drain import TimeoutOption
from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, print_rows
from cli.reading import AccountOption, read_only
from deployment.errors import CannotRun
from jobs.queries.reading import Database
from metering.instants import rfc3339
from metering.vocabulary import Decision, UsageCause

if TYPE_CHECKING:
    from catalog.decisions import DecisionText, Waiting
    from deployment.draining import Tell, Waiter
    from deployment.stack import Deployment

COLUMNS = (
    *("usage_lsn", "meter", "account", "window_start", "decision", "quantity", "amount", "currency", "decided_at"),
    *("decided_by", "reason"),
)
MAX_SENTENCES = 20

say = partial(typer.echo, err=True)

_ASKED = """
    (%(meters)s::text[] IS NULL OR meter = ANY (%(meters)s))
      AND (%(accounts)s::text[] IS NULL OR account = ANY (%(accounts)s))
      AND (%(lsns)s::bigint[] IS NULL OR usage_lsn = ANY (%(lsns)s))
"""
_FOUND = f"""
    SELECT usage_lsn, meter, account, request_id, decision, cause, corrects_lsns, hold_until,
           hold_until <= now() AS is_expired, decided_by, settled IS NOT NULL AS has_waited
    FROM stragglers
    WHERE {_ASKED} AND (%(lsns)s::bigint[] IS NOT NULL OR (decision = 'hold' AND cause = 'stream'))
    ORDER BY usage_lsn, meter
"""
# Before a rebuild of usage another row may have had this lsn.
_HAS_DECISION = f"""
    SELECT EXISTS (
        SELECT FROM stragglers
        WHERE {_ASKED} AND decision = 'hold' AND (usage_lsn, meter, account, request_id) IN (
            SELECT usage_lsn, meter, account, request_id FROM catalog.decisions
        )
    ) AS has_decision
"""
_DECIDED = f"""
    SELECT {", ".join(COLUMNS)} FROM stragglers
    WHERE (usage_lsn, meter) IN (SELECT * FROM unnest(%(lsns)s::bigint[], %(meters)s::text[]))
    ORDER BY usage_lsn, meter
"""


@dataclass(frozen=True)
class Selection:
    """Which stragglers are to be decided: those of usage (None: all that wait), of these meters and accounts or any."""

    lsns: tuple[int, ...] | None
    meters: tuple[str, ...] | None
    accounts: tuple[str, ...] | None


LsnsArgument = Annotated[
    list[int] | None, typer.Argument(metavar="USAGE_LSN", help="The `usage_lsn` in `weir stragglers`.")
]
MeterOption = Annotated[list[str] | None, typer.Option("--meter", help="Only this meter; may be repeated.")]
AllOption = Annotated[bool, typer.Option("--all", help="All that wait; limited by --account and --meter.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; stored with your name.")]


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
    """Bill waiting stragglers, each once, and print them as they are afterwards.

    Their corrections are decided with them. The first decision counts; repeating it changes nothing. Exit status 1 if
    one was decided otherwise or no longer waits (nothing is decided then), or is not billed in time (it will be).
    --all leaves out those past their deadline.
    """
    selection = selected(usage_lsn, meter, account, everything=everything)
    _decide(selection, decision_text(Decision.APPROVE, reason, by), timeout, form, data_dir)


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
    """Leave waiting stragglers off every bill for good, and print them as they are afterwards.

    Everything else works as with `approve`.
    """
    selection = selected(usage_lsn, meter, account, everything=everything)
    _decide(selection, decision_text(Decision.REJECT, reason, by), timeout, form, data_dir)


def selected(
    lsns: Sequence[int] | None, meters: Sequence[str] | None, accounts: Sequence[str] | None, *, everything: bool
) -> Selection:
    """What options ask for. Raises `typer.BadParameter` unless they name stragglers, or say that all are meant."""
    if everything == bool(lsns):
        raise typer.BadParameter("give USAGE_LSNs or --all, and not both.")
    return Selection(tuple(lsns) if lsns else None, *(tuple(names) if names else None for names in (meters, accounts)))


def is_decided(database: Database, selection: Selection) -> bool:
    """Whether some held stragglers have decisions: billing may not have read them yet, or they did not count."""
    found = database.execute(_HAS_DECISION, _parameters(selection)).fetchone()
    return bool(found and found["has_decision"])


def to_decide(database: Database, selection: Selection, decision: Decision) -> tuple[list[Waiting], list[Waiting]]:
    """What is to be decided now, and what was already decided so, once billing has read all decisions.

    What waits then has no effective decision. Raises CannotRun when a named straggler cannot be decided; with `--all`
    those past their deadline are left out, with a message.
    """
    from catalog.decisions import NAMES, Waiting

    rows = database.execute(_FOUND, _parameters(selection)).fetchall()
    found: dict[bool, list[Waiting]] = {True: [], False: []}
    problems = list(_missing(selection, rows))
    # Of a row of usage that has other meters than those that wait, those are meant.
    waited = {row["usage_lsn"] for row in rows if row["has_waited"]}
    over = [row for row in rows if selection.lsns is None and row["is_expired"]]
    for row in (row for row in rows if (row["has_waited"] or row["usage_lsn"] not in waited) and row not in over):
        is_so = row["decision"] == decision
        found[is_so].append(Waiting(*(row[name] for name in NAMES)))
        problems += [] if is_so else list(_problem(row))
    if problems:
        more = f"\n… and {len(problems) - MAX_SENTENCES} more." if len(problems) > MAX_SENTENCES else ""
        raise CannotRun("\n".join(["Nothing was decided.", *problems[:MAX_SENTENCES]]) + more)
    if over:
        say(f"{len(over)} that wait are past their deadline: `hold.expires` decides them.")
    return found[False], found[True]


def _parameters(selection: Selection) -> dict[str, list[Any] | None]:
    lists = {"lsns": selection.lsns, "meters": selection.meters, "accounts": selection.accounts}
    return {name: None if values is None else list(values) for name, values in lists.items()}


def _missing(selection: Selection, rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    if selection.lsns is None:
        return
    known = {row["usage_lsn"] for row in rows}
    for lsn in dict.fromkeys(selection.lsns):
        if lsn not in known:
            which = " of these accounts and meters" if selection.meters or selection.accounts else ""
            yield f"Usage {lsn} is no straggler{which}: `weir stragglers` lists them by `usage_lsn`."


def _problem(row: dict[str, Any]) -> Iterator[str]:
    """Why a straggler cannot be decided, in a sentence; nothing where it can."""
    place = f"Usage {row['usage_lsn']}, {row['meter']},"
    if row["decision"] != Decision.HOLD:
        by = f" by {row['decided_by']}" if row["decided_by"] else ""
        yield f"{place} does not wait: it is `{row['decision']}`{by}."
    elif row["cause"] != UsageCause.STREAM:
        corrected = ", ".join(map(str, row["corrects_lsns"] or ()))
        yield f"{place} corrects usage {corrected}, and is decided with it: decide that."
    elif row["is_expired"]:
        yield f"{place} had to be decided before {rfc3339(row['hold_until'])}: `hold.expires` decides it."


def decision_text(decision: Decision, reason: str, by: str | None) -> DecisionText:
    """The decision with its reason and its author. Raises `typer.BadParameter` for an empty reason."""
    from catalog.decisions import DecisionText

    return DecisionText(decision, given_reason(reason, "this usage"), (by or who()).strip())


def _decide(selection: Selection, text: DecisionText, timeout: float, form: Format, data_dir: Path) -> None:
    from cli.progress import telling
    from deployment.stack import running_deployment

    stack = running_deployment(data_dir)
    with telling("Deciding …") as tell:
        decided = decided_by(stack, selection, text, timeout, tell)
    with read_only(stack.postgres_url) as database:
        lsns, meters = [straggler.usage_lsn for straggler in decided], [straggler.meter for straggler in decided]
        rows = database.execute(_DECIDED, {"lsns": lsns, "meters": meters}).fetchall()
    print_rows(rows, COLUMNS, form)
    if other := [row for row in rows if row["decision"] != text.decision]:
        raise CannotRun(
            f"{len(other)} of {len(rows)} were decided otherwise before this decision came, as `decision` says, or "
            "still wait, and can be decided again."
        )


def decided_by(
    stack: Deployment, selection: Selection, text: DecisionText, timeout: float, tell: Tell
) -> list[Waiting]:
    """Store decisions, and wait until billing has them; returns all selected stragglers as they are then.

    Raises CannotRun when one is refused, and then nothing is decided; and when billing does not have them in time.
    """
    from catalog.decisions import decide, exclusive_decisions
    from deployment.draining import Waiter

    waiter = Waiter(stack, timeout, tell)
    with exclusive_decisions(stack.postgres_url, timeout, say):
        with read_only(stack.postgres_url) as database:
            had_decisions = is_decided(database, selection)
        if had_decisions:
            unsure = "Some were decided about before, and whether it counts is not known yet: nothing was decided now."
            _wait_for_billing(waiter, unsure)
        with read_only(stack.postgres_url) as database:
            waiting, before = to_decide(database, selection, text.decision)
        decide(stack.postgres_url, waiting, text)
    if waiting:
        _wait_for_billing(waiter, "The decision is stored, but billing does not have it yet.")
    return [*waiting, *before]


def _wait_for_billing(waiter: Waiter, otherwise: str) -> None:
    """Wait until billing has read all decisions. Raises CannotRun with `otherwise` on timeout."""
    from deployment.draining import Stuck
    from jobs.streams import Table

    try:
        waiter.until_catalog_joined()
        waiter.until_billed(waiter.positions.next_lsn(Table.USAGE))
    except Stuck as stuck:
        raise CannotRun(f"{otherwise} {stuck}") from stuck
