"""`weir corrections`: what changed windows after they were shown closed."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, LimitOption, print_rows
from cli.reading import AccountOption, FromOption, ToOption, check_range, read_only
from jobs.queries.corrections import COLUMNS, CorrectionQuery, correction_rows
from metering.vocabulary import UsageCause


def corrections(
    *,
    start: FromOption = None,
    end: ToOption = None,
    account: AccountOption = None,
    cause: Annotated[UsageCause | None, typer.Option(help="Only this cause.")] = None,
    limit: LimitOption = None,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List corrections: what a closed window was, what it became, and the rows of usage that did it.

    A window's value when it closed, plus its corrections, is its value now in `weir usage`, to the last digit.
    `decision` is that of the straggler that the correction bills or takes back. --from and --to select by window start.
    `period` is `day` or `month` if a whole day or month begins at `window_start`, and null for a minute.
    """
    from deployment.stack import running_deployment

    check_range(start, end)
    query = CorrectionQuery(start, end, tuple(account or ()), cause)
    with read_only(running_deployment(data_dir).postgres_url) as database:
        print_rows(correction_rows(database, query), COLUMNS, form, limit)
