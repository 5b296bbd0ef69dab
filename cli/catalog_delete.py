"""`weir catalog delete`: end a price or an account, now or as of a moment, and return when joins has it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.author import ByOption, NoteOption, author, reason_in
from cli.confirmation import BackdateOption, agreed
from cli.drain import TimeoutOption
from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.price_options import EffectiveFromOption, KeyOption, ModelKeyOption
from deployment.errors import CannotRun
from jobs.audit.period import instant
from jobs.streams import CatalogTopic
from metering.instants import rfc3339
from metering.price_models import ALIAS_CURRENCY, ALIAS_METER, PricedModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from catalog.change import Change
    from catalog.deletion import Deleted
    from deployment.draining import Tell
    from deployment.stack import Deployment

delete = typer.Typer(
    no_args_is_help=True, help="End a price, an alias or an account, or remove a plan that nothing uses."
)

AtOption = Annotated[
    datetime | None,
    typer.Option("--at", parser=instant, metavar="INSTANT", help="When it ends (RFC 3339); default: now."),
]
WaitOption = Annotated[bool, typer.Option(help="Return when joins applies it, or as soon as it is deleted.")]


@delete.callback()
def _delete() -> None:
    """End a price, an alias or an account, or remove a plan that nothing uses."""


@delete.command()
def price(
    *,
    plan: KeyOption,
    model: ModelKeyOption,
    meter: KeyOption,
    currency: KeyOption,
    effective_from: EffectiveFromOption,
    at: AtOption = None,
    by: ByOption = None,
    note: NoteOption = None,
    backdate: BackdateOption = False,
    timeout: TimeoutOption = 60.0,
    wait: WaitOption = True,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """End a price: usage from then on has no price, until another begins. A price that has not begun is withdrawn.

    With --at in the past, the next `weir audit` takes the price off usage that has it already; in ended months only
    with --backdate. Exit status 1 if there is no such price, or if joins does not have the change in time (it is made
    all the same).
    """
    key = {"plan": plan, "model": model, "meter": meter, "currency": currency, "effective_from": effective_from}
    _delete_row(
        CatalogTopic.PRICES, key, _Asked(at, author(by), reason_in(note), backdate, timeout if wait else None, data_dir)
    )


@delete.command()
def alias(
    name: Annotated[str, typer.Argument(metavar="ALIAS", help="The name that has the prices of another.")],
    *,
    plan: KeyOption,
    model: KeyOption,
    effective_from: EffectiveFromOption,
    at: AtOption = None,
    by: ByOption = None,
    note: NoteOption = None,
    backdate: BackdateOption = False,
    timeout: TimeoutOption = 60.0,
    wait: WaitOption = True,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """End an alias: usage from then on has no price by it or by an earlier alias, until another begins.

    With --at in the past, the next `weir audit` takes the price off usage that has it already; in ended months only
    with --backdate. Exit status 1 if there is no such alias, or if joins does not have the change in time (it is made
    all the same).
    """
    try:
        text = PricedModel.alias(name, model).text
    except ValueError as problem:
        raise typer.BadParameter(str(problem)) from None
    of_plan = {"plan": plan, "model": text, "meter": ALIAS_METER, "currency": ALIAS_CURRENCY}
    key = {**of_plan, "effective_from": effective_from}
    _delete_row(
        CatalogTopic.PRICES, key, _Asked(at, author(by), reason_in(note), backdate, timeout if wait else None, data_dir)
    )


@delete.command()
def account(
    name: Annotated[str, typer.Argument(metavar="ACCOUNT", help="Its name.")],
    *,
    at: AtOption = None,
    by: ByOption = None,
    note: NoteOption = None,
    backdate: BackdateOption = False,
    timeout: TimeoutOption = 60.0,
    wait: WaitOption = True,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """End an account: usage from that moment on has no plan, so no price and no currency. What is billed stays.

    With --at in the past, the next `weir audit` takes the price off usage since then; in ended months only with
    --backdate.

    Exit status 1 if there is no such account, or if joins does not have the change in time (it is made all the same).
    """
    deletion = _Asked(at, author(by), reason_in(note), backdate, timeout if wait else None, data_dir)
    _delete_row(CatalogTopic.ACCOUNTS, {"account": name}, deletion)


@delete.command()
def plan(
    name: Annotated[str, typer.Argument(metavar="PLAN", help="Its name.")],
    *,
    by: ByOption = None,
    note: NoteOption = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Remove a plan that no account and no price uses. Exit status 1 if one does."""
    from catalog.deletion import delete_plan
    from deployment.stack import running_deployment

    delete_plan(running_deployment(data_dir).postgres_url, name, author(by), reason_in(note))
    typer.echo(f"Plan {name} is deleted.")


@dataclass(frozen=True)
class _Asked:
    """As of when, by whom, why, whether in ended months, how many seconds to wait for joins (None: none), where."""

    at: datetime | None
    by: str
    note: str
    backdates: bool
    timeout: float | None
    data_dir: Path


def _delete_row(topic: CatalogTopic, key: dict[str, Any], deletion: _Asked) -> None:
    from catalog.closed_months import ClosedMonthsTouched
    from catalog.deletion import delete_row
    from cli.progress import telling
    from deployment.stack import running_deployment

    stack = running_deployment(deletion.data_dir)
    deleted = agreed(
        lambda backdates: delete_row(
            stack.postgres_url, topic, key, deletion.at, deletion.by, note=deletion.note, backdates=backdates
        ),
        deletion.backdates,
        ClosedMonthsTouched,
    )
    sentence = _sentence(topic, deleted)
    if deletion.timeout is None:
        typer.echo(f"{sentence}; joins will have it.")
        return
    with telling("Deleting …") as tell:
        wait_until_deleted(stack, [deleted.change], deletion.timeout, tell, sentence)
    typer.echo(f"{sentence}; joins has it.")


def _sentence(topic: CatalogTopic, row: Deleted) -> str:
    what = "The account" if topic is CatalogTopic.ACCOUNTS else "The price"
    if topic is CatalogTopic.PRICES and row.begins_at is not None and row.ends_at <= row.begins_at:
        return f"The price is deleted; it would have begun at {rfc3339(row.begins_at)} and never does"
    return f"{what} is deleted: it {'ends' if row.is_to_come else 'ended'} at {rfc3339(row.ends_at.astimezone(UTC))}"


def wait_until_deleted(stack: Deployment, deleted: Sequence[Change], timeout: float, tell: Tell, done: str) -> None:
    """Wait until joins applies these deletions. Raises CannotRun on timeout."""
    from catalog.joined_versions import PendingDeletions
    from deployment.draining import CAPTURE, Stuck, Waiter, condition

    waiter = Waiter(stack, timeout, tell)
    try:
        # What was stored just before may not be there yet: then it would not seem to be held.
        waiter.until_catalog_joined()
        waiter.until_known(PendingDeletions(stack.tables, stack.postgres_url, deleted))
    except Stuck as stuck:
        captured = condition(stack, CAPTURE)
        raise CannotRun(f"{done}, but joins does not have it yet. {stuck}. Of the capture: {captured}.") from stuck
