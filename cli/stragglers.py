"""`weir stragglers`: usage that came after its window's grace, and what became of it."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.decide import approve, reject
from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, LimitOption, print_rows
from cli.reading import AccountOption, FromOption, ToOption, check_range, read_only
from jobs.queries.stragglers import COLUMNS, StragglerQuery, straggler_rows
from metering.vocabulary import Decision

stragglers = typer.Typer(invoke_without_command=True)
stragglers.command("approve")(approve)
stragglers.command("reject")(reject)


@stragglers.callback()
def _stragglers(
    context: typer.Context,
    *,
    start: FromOption = None,
    end: ToOption = None,
    account: AccountOption = None,
    decision: Annotated[Decision | None, typer.Option(help="Only this decision.")] = None,
    limit: LimitOption = None,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List stragglers: usage received after the end of its window and the grace.

    `correct` and `approve`: this quantity and amount were added to the window; `drop` and `reject`: they were left
    out; `hold`: not billed until `approve`, `reject` or `hold_until`. Without `decided_by` the policy decided,
    or the deadline (`decided_at`). `late_seconds` counts from the window's end. Rows with another cause than `stream`
    take such a row back or replace it, and are decided with it. --from and --to select by window start.
    """
    if context.invoked_subcommand is not None:
        return
    from deployment.stack import running_deployment

    check_range(start, end)
    query = StragglerQuery(start, end, tuple(account or ()), decision)
    with read_only(running_deployment(data_dir).postgres_url) as database:
        print_rows(straggler_rows(database, query), COLUMNS, form, limit)
