"""`weir catalog`: store accounts, plans and prices, and return when joins has them."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.author import ByOption, NoteOption, author, reason_in, who
from cli.catalog_contracts import contracts
from cli.catalog_delete import delete
from cli.catalog_jumps import confirm_price, jumps
from cli.confirmation import BackdateOption, YesOption, agreed
from cli.drain import TimeoutOption
from cli.options import DEFAULT_DATA_DIR, DataDir
from deployment.errors import CannotRun, FileRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from catalog.change import Change
    from catalog.file import CatalogFile
    from deployment.draining import Tell
    from deployment.stack import Deployment

catalog = typer.Typer(no_args_is_help=True, help="Change and list accounts, plans and prices.")


catalog.command()(contracts)
catalog.command()(jumps)
catalog.command("confirm-price")(confirm_price)
catalog.add_typer(delete, name="delete")


@catalog.callback()
def _catalog() -> None:
    """Change and list accounts, plans and prices."""


@catalog.command()
def apply(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="YAML or JSON with `plans`, `accounts`, `prices`, `aliases`, `limits`, `plan_terms`, `pools`.",
        ),
    ],
    *,
    by: ByOption = None,
    note: NoteOption = None,
    yes: YesOption = False,
    backdate: BackdateOption = False,
    timeout: TimeoutOption = 60.0,
    wait: Annotated[
        bool, typer.Option(help="Return when joins prices with them, or as soon as they are stored.")
    ] = True,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Upsert the file's rows, all or none, and return when joins prices with them. Rows that change keep your name.

    A price that is 100 times above or below the one before it, or the median of its meter and currency, needs --yes.
    A change of what an ended month was billed needs --backdate; usage that had no price may get one without it. On a
    terminal you are asked, otherwise the exit status is 1. Exit status 2 for a file that is refused; 1 if joins does
    not have the change in time (it is stored all the same).
    """
    from catalog.closed_months import ClosedMonthsTouched
    from catalog.file import CatalogFileError, load_catalog_file
    from catalog.price_jumps import PricesJump
    from cli.progress import telling
    from deployment.stack import running_deployment

    name, reason = author(by), reason_in(note)
    try:
        content = load_catalog_file(file)
    except CatalogFileError as refusal:
        raise FileRefused(str(refusal)) from None
    stack = running_deployment(data_dir)

    def applied(confirms: bool, backdates: bool) -> str:
        with telling("Applying the catalog …") as tell:
            limit = timeout if wait else None
            return apply_catalog(stack, content, limit, tell, name, note=reason, backdates=backdates, confirms=confirms)

    def confirmed(confirms: bool) -> str:
        return agreed(lambda backdates: applied(confirms, backdates), backdate, ClosedMonthsTouched)

    typer.echo(agreed(confirmed, yes, PricesJump))


@catalog.command()
def connector(data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """Print the JSON configuration with which your own Kafka Connect captures the catalog.

    Its workers need Debezium's connector for Postgres, JSON converters without schemas, and the password in the
    environment variable WEIR_CAPTURE_PASSWORD, by Kafka's EnvVarConfigProvider named `env`.
    """
    from catalog.capture import CONNECTOR
    from catalog.capture import connector as connector_config
    from deployment.capture import refuse_without_log
    from deployment.stack import running_deployment

    url = running_deployment(data_dir).postgres_url
    refuse_without_log(url)
    config = connector_config(url, os.environ)
    typer.echo(json.dumps({"name": CONNECTOR, "config": config}, indent=2))


@catalog.command()
def reconcile(*, timeout: TimeoutOption = 60.0, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """Send joins the catalog again where the two differ: after a replication slot was lost, or changes were rejected.

    A row that was deleted meanwhile is in no snapshot: it is deleted again and ends now, because it is unknown when it
    was deleted, and usage was priced by it until now. Exit status 1 if joins does not have in time what was committed
    before (nothing is done then).
    """
    from catalog.reconciliation import delete_missing, missing_deletions, publish_differences
    from cli.progress import telling
    from deployment.asking import asking_database
    from deployment.draining import Waiter
    from deployment.stack import running_deployment

    stack = running_deployment(data_dir)
    with telling("Comparing the catalog …") as tell, asking_database(stack.postgres_url):
        before = missing_deletions(stack.tables, stack.postgres_url)
        Waiter(stack, timeout, tell).until_catalog_joined()
        deleted = delete_missing(stack.tables, stack.postgres_url, before)
        published = publish_differences(stack.tables, stack.postgres_url)
    typer.echo(
        f"{deleted} accounts and prices deleted once more." if deleted else "joins has nothing that was deleted."
    )
    typer.echo(f"{published} published again." if published else "All other rows are equal.")


def apply_catalog(
    stack: Deployment,
    content: CatalogFile,
    timeout: float | None,
    tell: Tell,
    changed_by: str | None = None,
    *,
    note: str = "",
    backdates: bool = False,
    confirms: bool = False,
) -> str:
    """Store a catalog, and wait until joins has its rows unless `timeout` is None; says what changed.

    `changed_by` None: the user who runs the command; `note`: why. Raises CannotRun when it is refused, or joins does
    not have it in time; unless `confirms`, PricesJump; and, unless `backdates`, ClosedMonthsTouched.
    """
    from catalog.earlier_keys import forget_earlier_keys
    from catalog.store import store_file

    stored = store_file(
        stack.postgres_url, content, changed_by or who(), note=note, backdates=backdates, confirms=confirms
    )
    changes, counts = stored.changes, Counter(change.op for change in stored.changes) + stored.limits + stored.pools
    done = f"{counts['c']} created, {counts['u']} changed, {counts['r']} as they were"
    if not changes:
        return f"{done}."
    if timeout is None:
        return f"{done}; joins will have them."
    wait_for_joins(stack, changes, timeout, tell, f"The catalog is stored ({done})")
    forget_earlier_keys(stack.kafka_bootstrap, stack.postgres_url)
    return f"{done}; joins has them."


def wait_for_joins(stack: Deployment, changes: Sequence[Change], timeout: float, tell: Tell, done: str) -> None:
    """Wait until joins prices with these rows as the database has them. Raises CannotRun on timeout.

    It checks what joins has, not how it got there: changes may be lost, killed or published twice on the way.
    """
    from catalog.joined_versions import NotJoined
    from deployment.draining import CAPTURE, Stuck, Waiter, condition

    try:
        Waiter(stack, timeout, tell).until_known(NotJoined(stack.tables, stack.postgres_url, changes))
    except Stuck as stuck:
        captured = condition(stack, CAPTURE)
        raise CannotRun(f"{done}, but joins does not have it yet. {stuck}. Of the capture: {captured}.") from stuck
