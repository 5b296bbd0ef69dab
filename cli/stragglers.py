"""`weir stragglers`: usage that came after its window's grace, and what became of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import typer

from cli.decide import approve, reject
from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, LimitOption, Row, print_rows
from cli.reading import AccountOption, Database, FromOption, ToOption, check_range, read_only, select
from metering.vocabulary import Decision

COLUMNS = (
    *("account", "model", "meter", "window_start", "event_time", "received_at", "late_seconds", "decision"),
    *("quantity", "amount", "currency", "request_id", "usage_lsn", "cause"),
    *("hold_until", "decided_at", "decided_by", "reason"),
)

# What was decided and is not billed yet has the name and the reason already, and still waits. Of what waits no more the
# deadline may have been first, and at a lsn another may have stood once.
_STATEMENT = """
    SELECT account, model, meter, window_start, event_time, received_at, late_seconds::float8,
           stragglers.decision, quantity, amount, currency, request_id, usage_lsn, cause, hold_until,
           stragglers.decided_at,
           CASE stragglers.decision WHEN 'hold' THEN decided.decided_by ELSE stragglers.decided_by END AS decided_by,
           CASE stragglers.decision WHEN 'hold' THEN decided.reason ELSE stragglers.reason END AS reason
    FROM stragglers
    LEFT JOIN catalog.decisions AS decided USING (usage_lsn, meter, account, request_id)
    WHERE (%(start)s::timestamptz IS NULL OR window_start >= %(start)s)
      AND (%(end)s::timestamptz IS NULL OR window_start < %(end)s)
      AND (%(accounts)s::text[] IS NULL OR account = ANY (%(accounts)s))
      AND (%(decision)s::text IS NULL OR stragglers.decision = %(decision)s)
    ORDER BY window_start, account, usage_lsn, meter
"""


@dataclass(frozen=True)
class StragglerQuery:
    """Which stragglers to list; `start` and `end` select by the start of the window they belong to."""

    start: datetime | None = None
    end: datetime | None = None
    accounts: tuple[str, ...] = ()
    decision: Decision | None = None


def straggler_rows(database: Database, query: StragglerQuery) -> Iterator[Row]:
    """Rows with the keys `COLUMNS`. `amount` is None where no price matched; `quantity` and it are signed."""
    return select(
        database,
        _STATEMENT,
        {
            "start": query.start,
            "end": query.end,
            "accounts": list(query.accounts) or None,
            "decision": query.decision and query.decision.value,
        },
    )


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
    out; `hold`: nobody is billed until `approve`, `reject` or `hold_until`. Without `decided_by` the policy decided,
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
