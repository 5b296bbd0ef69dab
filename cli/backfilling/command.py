"""`weir backfill`: events of the past, sent like all others, each with its first reception."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from cli.lines import refuse_missing
from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, print_rows
from deployment.errors import CannotRun

if TYPE_CHECKING:
    from cli.backfilling.sending import Backfill, IsClosed

COLUMNS = ("file", "line", "fate", "detail", "value")
NO_SOURCE_LISTED = (
    "Ingestion accepts the past of no source: list the sources in jobs.ingestion.backfill.sources and how far back in "
    'accept_past_seconds (`jobs: {ingestion: {backfill: {sources: ["history/*"], accept_past_seconds: 94608000}}}` in '
    "the file of `weir up --config FILE`; on a cluster jobs.ingestion.config.backfill), and start ingestion with it."
)
_CLOSED = "SELECT closed_until FROM closed_usage"
_BILLING = "SELECT config ->> 'history_until' FROM jobs WHERE job = 'billing'"


def backfill(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE", help="CloudEvents: JSON lines, also packed by gzip, or Parquet; - for stdin."),
    ],
    *,
    per_second: Annotated[
        int,
        typer.Option("--per-second", min=1, max=1_000_000, help="Send at most this many, so that live events pass."),
    ] = 2_000,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Send nothing; list the verdict on each event.")] = False,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Send events of the past, before or beside live traffic; each counts once, however often it is sent.

    Lateness and the accept window go by when an event was first received: its extension `receivedtime`, else its
    `time`; in Parquet, with the event in the column `value`, the column `first_received_at` or `received_at`. Only
    sources in jobs.ingestion.backfill are trusted with this. Several files are merged in the order of these instants,
    because a request and its completion must arrive within the completion timeout. Events that ingestion would reject
    by its present configuration are listed, not sent. Only ingestion knows whether an event is a duplicate.

    Exit status 1 when some were not sent or were refused by the broker; all others are sent.
    """
    from cli.backfilling.records import past_events, several
    from cli.backfilling.sending import Backfill, Sending
    from cli.dead_letter_rows import shortened
    from cli.progress import telling
    from cli.redrive.offline import Offline, ingestion_of
    from cli.validated_lines import BATCH_EVENTS
    from deployment.event_topics import refuse_ending_topics
    from deployment.kafka_client import kafka_client
    from deployment.sender import Sender
    from deployment.stack import running_deployment
    from jobs.ingestion.reading import MAX_BLOCK_BYTES
    from jobs.runtime.clock import MachineClock

    refuse_missing(*files)
    stack = running_deployment(data_dir)
    config = ingestion_of(stack.postgres_url)
    if not config.backfill.sources:
        raise CannotRun(NO_SOURCE_LISTED)
    sending = None
    if not dry_run:
        refuse_ending_topics(stack.postgres_url, config.topics)
        sending = Sending(Sender(kafka_client(stack.kafka_bootstrap)), config.topic_of_record, per_second)
    offline = Offline(config, MachineClock().now)
    backfill = Backfill(files, offline, sending, _is_closed(stack.postgres_url))
    most = min(BATCH_EVENTS, per_second)
    try:
        with telling("Backfill:") as tell, past_events(files, MAX_BLOCK_BYTES + 1) as events:
            rows = backfill.rows(several(events, most, MAX_BLOCK_BYTES), tell)
            print_rows(
                map(shortened, rows) if form is Format.TABLE else rows, COLUMNS, form, earlier={"detail": "says"}
            )
    except KeyboardInterrupt:
        if sending is not None:
            sending.refused()
        _tell(backfill)
        typer.echo(_interrupted(backfill, files), err=True)
        raise typer.Exit(1) from None
    _tell(backfill)
    if backfill.fails:
        raise typer.Exit(1)


def _is_closed(postgres_url: str) -> IsClosed:
    import psycopg

    from cli.backfilling.sending import IsClosed
    from deployment.asking import asking_database

    with asking_database(postgres_url), psycopg.connect(postgres_url, connect_timeout=10) as database:
        closed_until, until = (database.execute(query).fetchone() for query in (_CLOSED, _BILLING))
    history_until = None if until is None or until[0] is None else datetime.fromisoformat(until[0])
    return IsClosed(None if closed_until is None else closed_until[0], history_until)


def _tell(backfill: Backfill) -> None:
    typer.echo(backfill.summary, err=True)
    if backfill.correcting:
        typer.echo(
            f"{backfill.correcting} are of minutes that have closed: each is a straggler, which the late policy of its "
            "meters corrects, holds or drops. If they were billed elsewhere, set jobs.billing.history_until to the end "
            "of that time.",
            err=True,
        )


def _interrupted(backfill: Backfill, files: list[str]) -> str:
    last = backfill.last
    place = "before the first" if last is None else f"after line {last.line} of {files[last.file]} ({last.mark})"
    return f"Interrupted {place}. Run the same again: what was sent already is found to be a duplicate."
