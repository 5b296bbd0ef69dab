"""`weir watch`: stored queries, past which every outcome runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from cli.author import ByOption, author, checked
from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, LimitOption, print_rows
from cli.reading import FromOption, ToOption, check_range, read_only

if TYPE_CHECKING:
    from jobs.queries.reading import Database

HELP = "Add, list, try and remove stored queries, and list their hits."
watch = typer.Typer(no_args_is_help=True, help=HELP)
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="A name, as `weir watch list` has it.")]
WHEN = 'The condition, such as \'model = "gpt-4o" and output_tokens > 100000 and account.tags.team = "x"\'.'


@watch.callback()
def _watch() -> None:
    """Add, list, try and remove stored queries, and list their hits."""


@watch.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name that no other watch has.")],
    *,
    when: Annotated[str, typer.Option("--when", metavar="CONDITION", help=WHEN)],
    by: ByOption = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Store a query: every outcome runs past it from the next batch of analytics on. At most 10,000 are stored.

    A test is `column = value` (or !=, <, <=, >, >=), `column in (value, …)`, `column not in (…)`, `column starts with
    text`, `column is null` or `is not null`, or a column of true and false; `and`, `or`, `not` and parentheses join
    them. Columns are those of outcomes by the contracts, and account.tags.KEY, account.name, account.parent,
    account.plan and account.timezone. What is null meets no test but `is null`, as in SQL. A mistake is shown in its
    place. Without `watches: true` in the configuration nothing runs past it, and this says so.
    """
    from jobs.analytics.watches.store import add_watch, is_run

    with _saying(), _writing(data_dir) as database:
        add_watch(database, checked(name.strip(), "this text"), _condition(when), author(by))
        runs = is_run(database)
    typer.echo(f"{name} is stored.")
    if not runs:
        typer.echo("Nothing runs past it yet: analytics is off, or was started without `watches: true`.", err=True)


@watch.command("list")
def list_(
    *, limit: LimitOption = None, form: FormatOption = Format.TABLE, data_dir: DataDir = DEFAULT_DATA_DIR
) -> None:
    """List the stored queries, who added them, and how many hits of each are stored.

    `state` is off where nothing runs past any, because analytics is off or was started without `watches: true`; else
    waiting until analytics has begun with it, then running. `first_position` is the first row of usage that runs past
    it.
    """
    from deployment.stack import running_deployment
    from jobs.analytics.watches.store import COLUMNS, watch_rows

    with read_only(running_deployment(data_dir).postgres_url) as database:
        print_rows(watch_rows(database), COLUMNS, form, limit)


@watch.command()
def remove(name: NameArgument, *, by: ByOption = None, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """Remove a stored query. Its hits stay until they are too old (`keep_days`); the activity log has who did it."""
    from jobs.analytics.watches.store import remove_watch

    with _saying(), _writing(data_dir) as database:
        remove_watch(database, name, author(by))
    typer.echo(f"{name} is removed.")


@watch.command("try")
def try_(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A stored query; or give --when.")] = None,
    *,
    when: Annotated[str | None, typer.Option("--when", metavar="CONDITION", help=WHEN)] = None,
    start: FromOption = None,
    end: ToOption = None,
    limit: LimitOption = None,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Try a query on the past: a row for each hour with hits, how many, and the first of them. Nothing is stored.

    It reads usage and the journal as they are now, so outcomes that were taken back are no hits; what `weir retain` has
    removed is not there. Without --from it reads all of it.
    """
    from deployment.stack import running_deployment
    from jobs.analytics.watches.past import COLUMNS, past_hits
    from jobs.analytics.watches.store import columns_in_force, condition_of
    from metering.watches.parser import parse

    check_range(start, end)
    if (name is None) == (when is None):
        raise typer.BadParameter("give the name of a stored query, or --when.")
    deployment = running_deployment(data_dir)
    with _saying(), read_only(deployment.postgres_url) as database:
        if name is not None:
            condition, expression = condition_of(database, name)
        else:
            condition = _condition(str(when))
            expression = parse(condition, columns_in_force(database))
    print_rows(past_hits(deployment.tables, condition, expression, start, end), COLUMNS, form, limit)


@watch.command()
def hits(
    name: NameArgument,
    *,
    start: FromOption = None,
    end: ToOption = None,
    limit: LimitOption = None,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List the hits of a stored query: of each hour of event time the first 100 that were received.

    An outcome that was taken back is no hit any more. `weir explain` shows what became of a request.
    """
    from deployment.stack import running_deployment
    from jobs.analytics.watches.store import HIT_COLUMNS, hit_rows

    check_range(start, end)
    with _saying(), read_only(running_deployment(data_dir).postgres_url) as database:
        print_rows(hit_rows(database, name, start, end), HIT_COLUMNS, form, limit)


@contextmanager
def _writing(data_dir: DataDir) -> Iterator[Database]:
    import psycopg
    from psycopg.rows import dict_row

    from deployment.asking import asking_database
    from deployment.stack import running_deployment

    url = running_deployment(data_dir).postgres_url
    with asking_database(url), psycopg.connect(url, row_factory=dict_row) as database:
        yield database


@contextmanager
def _saying() -> Iterator[None]:
    """Raises `typer.BadParameter` for a mistake in a condition, with its place, and CannotRun for an unknown name."""
    from deployment.errors import CannotRun
    from jobs.analytics.watches.store import Unaccepted, UnknownWatch
    from metering.watches.tokens import Mistake

    try:
        yield
    except Mistake as mistake:
        raise typer.BadParameter(f"{mistake}\n\n{mistake.pointing}") from None
    except (Unaccepted, UnknownWatch) as refused:
        raise CannotRun(f"{str(refused)[0].upper()}{str(refused)[1:]}.") from None


def _condition(given: str) -> str:
    if not all(character.isprintable() or character in "\n\t" for character in given):
        raise typer.BadParameter("a condition must not hold control characters")
    return given.strip()
