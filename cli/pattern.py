"""`weir pattern`: which patterns are declared, and what matched."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, LimitOption, print_rows
from cli.reading import AccountOption, FromOption, ToOption, check_range, read_only

pattern = typer.Typer(no_args_is_help=True, help="List the patterns that analytics looks for, and their matches.")


@pattern.callback()
def _pattern() -> None:
    """List the patterns that analytics looks for, and their matches."""


@pattern.command("list")
def list_(*, form: FormatOption = Format.TABLE, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """List the declared patterns: what each looks for, up to when its matches are final, and how many there are.

    `final_until`: matches that end before it are final. `since`: earlier outcomes were not searched.
    """
    from deployment.stack import running_deployment
    from jobs.queries.patterns import PATTERN_COLUMNS, pattern_rows

    with read_only(running_deployment(data_dir).postgres_url) as database:
        print_rows(pattern_rows(database), PATTERN_COLUMNS, form)


@pattern.command()
def matches(
    name: Annotated[str | None, typer.Argument(metavar="PATTERN", help="Only of this pattern.")] = None,
    *,
    account: AccountOption = None,
    start: FromOption = None,
    end: ToOption = None,
    all_versions: Annotated[
        bool, typer.Option("--all-versions", help="Every version of every match, retracted ones too.")
    ] = False,
    limit: LimitOption = None,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List final matches, the latest first; --from and --to select by their start.

    Each match once, by its highest version, without retracted ones. With --all-versions every version of every match.
    --account selects matches of patterns that have account in `partition_by`.
    """
    from deployment.stack import running_deployment
    from jobs.queries.patterns import MATCH_COLUMNS, Matches, UnknownPattern, match_rows

    check_range(start, end)
    selection = Matches(name, account or (), start, end, all_versions)
    with read_only(running_deployment(data_dir).postgres_url) as database:
        try:
            rows = match_rows(database, selection)
        except UnknownPattern as unknown:
            raise typer.BadParameter(f"{unknown}.") from None
        print_rows(rows, MATCH_COLUMNS, form, limit)
