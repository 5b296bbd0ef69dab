"""`weir corrections`: what changed windows after they were shown closed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import typer

from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, LimitOption, Row, print_rows
from cli.reading import AccountOption, Database, FromOption, ToOption, check_range, read_only, select
from metering.vocabulary import UsageCause

COLUMNS = (
    *("window_start", "account", "model", "meter", "currency", "cause", "old_quantity", "new_quantity"),
    *("old_amount", "new_amount", "decision", "corrected_at", "dimensions", "usage_lsns"),
    "period",
)

_STATEMENT = f"""
    SELECT {", ".join(COLUMNS)}
    FROM corrections
    WHERE (%(start)s::timestamptz IS NULL OR window_start >= %(start)s)
      AND (%(end)s::timestamptz IS NULL OR window_start < %(end)s)
      AND (%(accounts)s::text[] IS NULL OR account = ANY (%(accounts)s))
      AND (%(cause)s::text IS NULL OR cause = %(cause)s)
    ORDER BY window_start, account, model, meter, currency, number
"""


@dataclass(frozen=True)
class CorrectionQuery:
    """Which corrections to list; `start` and `end` select by the start of the window that was corrected."""

    start: datetime | None = None
    end: datetime | None = None
    accounts: tuple[str, ...] = ()
    cause: UsageCause | None = None


def correction_rows(database: Database, query: CorrectionQuery) -> Iterator[Row]:
    """Rows with the keys `COLUMNS`, those of one window in the order in which they changed it.

    `old_` and `new_` are of the whole window, all price versions together; an amount is None as long as nothing of it
    has a price.
    """
    return select(
        database,
        _STATEMENT,
        {
            "start": query.start,
            "end": query.end,
            "accounts": list(query.accounts) or None,
            "cause": query.cause and query.cause.value,
        },
    )


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
