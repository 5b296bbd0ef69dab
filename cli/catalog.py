"""`weir catalog`: store accounts, plans and prices, and return when joins has them."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.drain import TimeoutOption
from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.who import ByOption, author, who
from deployment.errors import CannotRun

if TYPE_CHECKING:
    from catalog.file import CatalogFile
    from catalog.publishing import Offsets
    from deployment.draining import Tell
    from deployment.stack import Deployment

say = partial(typer.echo, err=True)

catalog = typer.Typer(no_args_is_help=True, help="Accounts, plans and prices.")


@catalog.callback()
def _catalog() -> None:
    """Accounts, plans and prices."""


@catalog.command()
def apply(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML or JSON with `plans`, `accounts` and `prices`.")],
    *,
    by: ByOption = None,
    timeout: TimeoutOption = 60.0,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Upsert the file's rows, all or none, and return when joins prices with them. Rows that change keep your name.

    Exit status 2 for a file that is refused; 1 when joins does not have it in time (the catalog is stored then), or
    when another `weir catalog` command does not end in time (nothing is stored then).
    """
    from catalog.file import CatalogFileError, load_catalog_file
    from cli.progress import telling
    from deployment.stack import running_deployment

    name = author(by)
    try:
        content = load_catalog_file(file)
    except CatalogFileError as refusal:
        typer.echo(str(refusal), err=True)
        raise typer.Exit(2) from None
    with telling("Applying the catalog …") as tell:
        typer.echo(apply_catalog(running_deployment(data_dir), content, timeout, tell, name))


@catalog.command()
def publish(*, timeout: TimeoutOption = 60.0, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """Send changes that the database holds and Kafka does not have, after an `apply` that was interrupted.

    Exit status 1 when joins does not have it in time (it is published then), or when another `weir catalog` command
    does not end in time (nothing is published then).
    """
    from catalog.publishing import publish_pending
    from catalog.store import alone
    from cli.progress import telling
    from deployment.stack import running_deployment

    stack = running_deployment(data_dir)
    with telling("Publishing the catalog …") as tell:
        with alone(stack.postgres_url, timeout, say):
            offsets = publish_pending(stack.kafka_bootstrap, stack.postgres_url)
        wait_for_joins(stack, offsets, timeout, tell, "The catalog is published")
    typer.echo("The catalog is published; joins has it." if offsets else "Nothing was left to publish.")


def apply_catalog(
    stack: Deployment, content: CatalogFile, timeout: float, tell: Tell, changed_by: str | None = None
) -> str:
    """Store a catalog, publish its changes, and wait until joins has them; says what changed.

    Raises CannotRun when it is refused, or when joins does not have it in time.
    """
    done, offsets = change_catalog(stack, content, timeout, changed_by)
    wait_for_joins(stack, offsets, timeout, tell, f"The catalog is stored ({done})")
    return f"{done}; joins has them."


def change_catalog(
    stack: Deployment, content: CatalogFile, timeout: float, changed_by: str | None = None
) -> tuple[str, Offsets]:
    """Store a catalog and publish its changes; what changed, and the offsets after what was published.

    `changed_by` None: whoever runs the command.

    An event that is sent from now on is journalled after it. Raises CannotRun when it is refused.
    """
    from catalog.publishing import Known, publish_pending
    from catalog.store import alone, store

    with alone(stack.postgres_url, timeout, say):
        # First what a crash left behind: the changes of a row are told in the order in which they were made.
        offsets = publish_pending(stack.kafka_bootstrap, stack.postgres_url)
        changes = store(stack.postgres_url, content, Known(stack.tables), changed_by or who())
        offsets |= publish_pending(stack.kafka_bootstrap, stack.postgres_url)
    counts = Counter(change.op for change in changes)
    return f"{counts['c']} created, {counts['u']} changed, {counts['r']} as they were", offsets


def wait_for_joins(stack: Deployment, offsets: Offsets, timeout: float, tell: Tell, done: str) -> None:
    """Wait until joins has what stands below these offsets of topics. Raises CannotRun when it has not in time."""
    from deployment.draining import Stuck, Waiter
    from deployment.positions import describe

    if not offsets:
        return
    positions = {topic.name: topic for topic in describe(stack.kafka_bootstrap, {topic for topic, _ in offsets})}
    waiter = Waiter(stack, timeout, tell)
    try:
        required = {positions[topic].position(partition): offset for (topic, partition), offset in offsets.items()}
        waiter.until_joined(waiter.until_journalled(required))
    except Stuck as stuck:
        raise CannotRun(f"{done}, but joins does not have it yet. {stuck}") from stuck
