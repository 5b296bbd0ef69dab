"""`weir rebuild`: the tables of an application, made again from Delta after the database was lost."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, print_rows
from cli.progress import telling
from deployment.errors import CannotRun
from metering.vocabulary import Job

COLUMNS = ("table", "rows")


class Rebuilt(StrEnum):
    """What can be made again of Delta alone."""

    BILLING = Job.BILLING.value
    SESSIONIZATION = Job.SESSIONIZATION.value


def rebuild(
    application: Annotated[Rebuilt, typer.Argument(metavar="billing|sessionization", help="Whose tables.")],
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="The file of `weir up --config`; only where nobody remembers what decided."),
    ] = None,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Make an application's tables in Postgres again, from usage (billing) or the journal (sessionization).

    By the rules that held at each row, and with what people decided: the same windows, days, stragglers, corrections
    and sessions, to the last digit. One transaction: until it ends the old rows are read, and whatever ends it before
    changes nothing. The application's driver is followed, and goes on with the new tables. Whoever follows `windows`
    and `corrections` is sent all of them again, windows with higher versions.

    Exit status 3 where that cannot be done: days of the table are gone, or nobody knows what decided.
    """
    from deployment.asking import asking_database
    from deployment.stack import running_deployment
    from jobs.rebuild.run import PLANS, Rebuild
    from jobs.runtime.errors import NotYet
    from jobs.runtime.postgres.schema import refuse_other_schema
    from jobs.stack import load_stack_config

    job = Job(application.value)
    try:
        given = None if config is None else getattr(load_stack_config(config).jobs, job.value)
    except ValueError as refusal:
        typer.echo(str(refusal), err=True)
        raise typer.Exit(2) from None
    stack = running_deployment(data_dir)
    tables = ", ".join(PLANS[job].emptied)
    with asking_database(stack.postgres_url):
        # Before anybody is asked whether to go on.
        refuse_other_schema(stack.postgres_url)
        if not yes:
            typer.confirm(f"All rows of {tables} are replaced by what {PLANS[job].job.reads} says. Go on?", abort=True)
        with telling(f"Making {job} again:") as tell:
            try:
                made = Rebuild(job, stack.tables, stack.postgres_url, given, tell).run()
            except NotYet as obstacle:
                raise CannotRun(f"{obstacle} Nothing was changed: try again.") from None
    print_rows(({"table": name, "rows": rows} for name, rows in made.items()), COLUMNS, form)
