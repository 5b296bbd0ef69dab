"""`weir retain`: remove what is older than its retention; on a cluster a job does it every night."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Annotated

import psycopg
import typer
from pydantic import ValidationError
from typer.models import OptionInfo

from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, Row, print_rows

if TYPE_CHECKING:
    from deployment.stack import Deployment
    from jobs.retention.days import Removed, Retention

COLUMNS = ("table", "before", "rows")
CONNECT_TIMEOUT_SECONDS = 10


def Days(what: str) -> OptionInfo:  # noqa: N802  # it is used like a class
    """How many days of something to keep."""
    option: OptionInfo = typer.Option(min=0, metavar="DAYS", help=f"Days to keep {what}; 0: for ever.")
    return option


def retain(
    *,
    batches_days: Annotated[int, Days("a row per batch")] = 14,
    exits_days: Annotated[int, Days("why drivers ended")] = 90,
    retired_sources_days: Annotated[int, Days("retired sources")] = 90,
    isolated_records_days: Annotated[int, Days("why records became dead letters without validation")] = 400,
    retracted_sessions_days: Annotated[int, Days("sessions that a later version replaced")] = 400,
    threshold_changes_days: Annotated[int, Days("changes of thresholds that a later version replaced")] = 400,
    delivered_webhooks_days: Annotated[int, Days("events that all their endpoints took")] = 30,
    undelivered_webhooks_days: Annotated[int, Days("events that an endpoint did not take")] = 90,
    journal_days: Annotated[int, Days("the journal with its dead letters")] = 0,
    usage_days: Annotated[int, Days("usage, one row per request")] = 0,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Remove whole days that need not be kept any longer, and list them. The applications may run meanwhile.

    While analytics is off, what views, patterns and watches have found goes after its `keep_days`; else analytics
    does that. Windows, stragglers and live sessions stay for ever. The journal and usage keep rows that a reader has
    not read, the open month and the one before, what an audit needs to correct them, and rows that say which rules
    decided. Exit status 3 where a newer version of Weir writes: nothing is removed then.
    """
    from deployment.stack import running_deployment
    from jobs.retention.days import Retention
    from jobs.settings.problems import sentence

    days = {
        "batches_days": batches_days,
        "exits_days": exits_days,
        "retired_sources_days": retired_sources_days,
        "isolated_records_days": isolated_records_days,
        "retracted_sessions_days": retracted_sessions_days,
        "threshold_changes_days": threshold_changes_days,
        "delivered_webhooks_days": delivered_webhooks_days,
        "undelivered_webhooks_days": undelivered_webhooks_days,
        "journal_days": journal_days,
        "usage_days": usage_days,
    }
    try:
        retention = Retention(**{name: kept or None for name, kept in days.items()})
    except ValidationError as refusal:
        wrong = (sentence(error, f"--{str(error['loc'][0]).replace('_', '-')}") for error in refusal.errors())
        raise typer.BadParameter("; ".join(wrong)) from None
    today = datetime.now(UTC).date()  # noqa: TID251 -- the top of the command
    print_rows(_rows(removed(running_deployment(data_dir), retention, today)), COLUMNS, form)


def _rows(removals: Iterator[Removed]) -> Iterator[Row]:
    for removal in removals:
        yield {"table": removal.table, "before": removal.before.isoformat(), "rows": removal.rows}


def removed(stack: Deployment, retention: Retention, today: date) -> Iterator[Removed]:
    """Remove, as of `today`, and say what, table by table.

    Raises `CannotRun` for a database that does not answer, and `Refused` where another version's rows would go, or by
    its rules: before any row does.
    """
    from deployment.asking import asking_database
    from jobs.joins.started import started_config
    from jobs.retention.analytics import retain_analytics
    from jobs.retention.rows import retain_rows
    from jobs.retention.tables import refuse_newer_tables, retain_days
    from jobs.retention.webhooks import retain_webhooks
    from jobs.runtime.postgres.schema_check import refuse_other_schema
    from jobs.streams import Table

    refuse_newer_tables(stack.tables)
    with (
        asking_database(stack.postgres_url),
        psycopg.connect(stack.postgres_url, autocommit=True, connect_timeout=CONNECT_TIMEOUT_SECONDS) as connection,
    ):
        refuse_other_schema(stack.postgres_url)
        started_config(connection)
        yield from retain_rows(connection, retention, today)
        yield from retain_webhooks(connection, retention, today)
        yield from retain_analytics(connection, today)
        for table, days in ((Table.JOURNAL, retention.journal_days), (Table.USAGE, retention.usage_days)):
            done = retain_days(stack.tables, table, connection, days, today)
            if done is not None:
                yield done
