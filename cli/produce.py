"""`weir produce`: send CloudEvents, one JSON document a line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from cli.lines import numbered, opened
from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, print_rows
from deployment.sender import Sender
from jobs.ingestion.documents import subject_of

if TYPE_CHECKING:
    from deployment.stack import Deployment

REFUSALS_SHOWN = 20
LINES_PER_REPORT = 50_000


def produce(
    file: Annotated[str, typer.Argument(metavar="FILE", help="One JSON document a line; - for standard input.")],
    *,
    topic: Annotated[
        str | None, typer.Option("--topic", help="The topic of events; default: the first that ingestion reads.")
    ] = None,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Send CloudEvents to Kafka, one a line, unchanged and keyed by their subject. Blank lines are skipped.

    Prints how many the broker acknowledged and which it refused. Exit status 1 if any was refused. Ingestion decides
    whether an event is valid: see `weir dead-letters`, or run `weir contracts check` before you send it.
    """
    from deployment.kafka_client import kafka_client
    from deployment.stack import running_deployment

    with opened(file) as lines:
        stack = running_deployment(data_dir)
        sender = Sender(kafka_client(stack.kafka_bootstrap))
        _send_lines(sender, topic or _first_topic(stack), lines)
    _print_result(sender, form)
    if sender.refused:
        raise typer.Exit(1)


def _first_topic(stack: Deployment) -> str:
    """The first topic of events; while the database does not answer, the one that an installation has by default."""
    from deployment.errors import CannotRun
    from deployment.event_topics import event_topics, refuse_ending_topics
    from jobs.streams import EVENTS_TOPIC

    try:
        topic = event_topics(stack.postgres_url)[0]
    except CannotRun as problem:
        typer.echo(f"{problem} Sending to the topic {EVENTS_TOPIC}; --topic names another.", err=True)
        return EVENTS_TOPIC
    refuse_ending_topics(stack.postgres_url, [topic])
    return topic


def _send_lines(sender: Sender, topic: str, lines: BinaryIO) -> None:
    for number, document in numbered(lines):
        sender.send(topic, subject_of(document), document, number=number)
        if number % LINES_PER_REPORT == 0:
            typer.echo(f"{number} lines read, {sender.acknowledged} acknowledged", err=True)
    sender.flush()


def _print_result(sender: Sender, form: Format) -> None:
    refused = sorted(sender.refused, key=lambda refusal: refusal.number)
    if form is Format.JSON:
        listed = [{"line": refusal.number, "reason": refusal.reason} for refusal in refused]
        typer.echo(json.dumps({"acknowledged": sender.acknowledged, "refused": listed}, indent=2))
        return
    if form is Format.CSV:
        print_rows(({"line": r.number, "reason": r.reason} for r in refused), ["line", "reason"], form)
        return
    typer.echo(f"{sender.acknowledged} acknowledged, {len(refused)} refused")
    for refusal in refused[:REFUSALS_SHOWN]:
        typer.echo(f"line {refusal.number} was refused by the broker: {refusal.reason}", err=True)
    if len(refused) > REFUSALS_SHOWN:
        typer.echo(f"and {len(refused) - REFUSALS_SHOWN} more; --format json lists all", err=True)
