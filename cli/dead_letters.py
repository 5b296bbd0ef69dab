"""`weir dead-letters`: the records that ingestion rejected, as they were received; `redrive` sends them again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cli.arguments import renamed
from cli.dead_letter_rows import COLUMNS, EARLIER_NAME, DeadLetterQuery, dead_letter_rows, shortened, with_earlier_name
from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, LimitOption, Row, print_rows
from cli.reading import FromOption, ToOption, check_range
from cli.redrive.command import redrive


class _Renamed(TyperGroup):
    """The group, which takes an earlier name of a command, too."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is to run."""
        return super().resolve_command(ctx, renamed(args, {"replay": "redrive"}, "weir dead-letters"))


dead_letters = typer.Typer(cls=_Renamed, invoke_without_command=True)
dead_letters.command()(redrive)


@dead_letters.callback()
def _dead_letters(
    context: typer.Context,
    *,
    start: FromOption = None,
    end: ToOption = None,
    reason: Annotated[list[str] | None, typer.Option("--reason", help="Only this reason; may be repeated.")] = None,
    limit: LimitOption = None,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    r"""List dead letters: records that were rejected, with the reason, the broken rule, and the value as received.

    --from and --to select by the time of receipt. Bytes that are not UTF-8 are printed as \xNN. The table shows the
    first 200 characters of a value; JSON and CSV hold all of it. replayed_as is the lsn of the accepted row if the
    record was sent again (`weir dead-letters redrive`).
    """
    from cli.journal_table import open_journal
    from deployment.stack import running_deployment

    if context.invoked_subcommand is not None:
        return
    check_range(start, end)
    journal = open_journal(running_deployment(data_dir).tables)
    query = DeadLetterQuery(start, end, tuple(reason or ()))
    rows: Iterator[Row] = dead_letter_rows(journal, query) if journal else iter(())
    if form is Format.TABLE:
        print_rows(map(shortened, rows), COLUMNS, form, limit)
    else:
        print_rows(map(with_earlier_name, rows), (*COLUMNS, EARLIER_NAME), form, limit)
