"""`weir rebuild`: rebuild the tables of an application from Delta after the database was lost."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cli.author import NoteOption, reason_in, who
from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, print_rows
from cli.progress import telling
from deployment.errors import CannotRun, FileRefused
from metering.vocabulary import Job

COLUMNS = ("table", "rows")


class Rebuilt(StrEnum):
    """What can be made again of Delta alone."""

    ANALYTICS = Job.ANALYTICS.value
    BILLING = Job.BILLING.value
    SESSIONIZATION = Job.SESSIONIZATION.value


def rebuild(
    application: Annotated[Rebuilt, typer.Argument(metavar="analytics|billing|sessionization", help="Whose tables.")],
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="The file of `weir up --config`; needed only if the rules are lost."),
    ] = None,
    note: NoteOption = None,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Make an application's tables in Postgres again, from usage (billing, analytics) or the journal (sessionization).

    It applies the rules that were in force at each row, and all manual decisions, so the windows, days, stragglers,
    corrections and sessions are the same to the last digit. It is one transaction: readers see the old rows until it
    ends, and if it fails nothing has changed. The running driver continues with the new tables. Consumers of `windows`
    and `corrections` get all of them again, windows with higher versions.

    Of analytics all panes are removed in that transaction, and the application itself then measures all of usage by the
    views that are declared now: `weir status` shows how far it is. Matches of patterns stay, and are revised then.

    Exit status 3 if that is impossible: days of the table are gone, or the rules that decided are unknown.
    """
    from deployment.activity import record_command
    from deployment.asking import asking_database
    from deployment.stack import running_deployment
    from jobs.rebuild.analytics import EMPTIED, begin_again
    from jobs.rebuild.run import PLANS, Rebuild
    from jobs.runtime.errors import NotYet
    from jobs.runtime.postgres.schema_check import refuse_other_schema
    from jobs.stack import load_stack_config
    from jobs.streams import Table

    job, why = Job(application.value), reason_in(note)
    try:
        given = None if config is None else getattr(load_stack_config(config).jobs, job.value)
    except ValueError as refusal:
        raise FileRefused(str(refusal)) from None
    stack = running_deployment(data_dir)
    plan = PLANS.get(job)
    emptied, reads = (EMPTIED, Table.USAGE) if plan is None else (plan.emptied, plan.job.reads)
    tables = ", ".join(emptied)
    with asking_database(stack.postgres_url):
        # Before asking for confirmation.
        refuse_other_schema(stack.postgres_url)
        if not yes:
            typer.confirm(f"All rows of {tables} are replaced by what {reads} says. Go on?", abort=True)
        record_command(stack.postgres_url, "rebuild", job.value, who(), {"tables": list(emptied)}, note=why)
        with telling(f"Making {job} again:") as tell:
            try:
                if plan is None:
                    rows = begin_again(stack.tables, stack.postgres_url)
                    made = dict.fromkeys(emptied, 0)
                    tell(f"{rows:,} rows of {reads} are measured as soon as analytics runs")
                else:
                    made = Rebuild(job, stack.tables, stack.postgres_url, given, tell).run()
            except NotYet as error:
                raise CannotRun(f"{error} Nothing was changed: try again.") from None
    print_rows(({"table": name, "rows": rows} for name, rows in made.items()), COLUMNS, form)
