"""`weir usage reverse`: send an event that reverses all or part of what a request bills."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, print_rows
from deployment.errors import CannotRun
from metering.instants import rfc3339

if TYPE_CHECKING:
    from deployment.stack import Deployment
    from jobs.ingestion.config import IngestionConfig

TYPE = "ai.inference.reversal.v1"
COLUMNS = ("id", "source", "account", "request_id", "meter", "quantity", "reason")


def number(text: str | Decimal) -> Decimal:
    """A quantity. Raises `typer.BadParameter` if it is not above 0, or finer than six decimals."""
    try:
        quantity = Decimal(text)
        if quantity.is_finite() and 0 < quantity < 10**11 and quantity == round(quantity, 6):
            return quantity
    except InvalidOperation:
        pass
    raise typer.BadParameter(f"{text!r} is not a number above 0 with at most six decimals.")


def reverse(
    request_id: Annotated[str, typer.Argument(metavar="REQUEST_ID", help="The request, by its id.")],
    *,
    reason: Annotated[str, typer.Option("--reason", help="Why; stored with the event.")],
    account: Annotated[
        str | None, typer.Option("--account", help="The account of the request; default: looked up in the journal.")
    ] = None,
    meter: Annotated[
        str | None, typer.Option("--meter", help="Only what this meter bills; default: all meters.")
    ] = None,
    quantity: Annotated[
        Decimal | None,
        typer.Option(
            "--quantity",
            parser=number,
            metavar="NUMBER",
            help="Only this much of --meter, at most what it bills; default: all of it.",
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--source", help="The event's source; default: the first full name in reversal.sources."),
    ] = None,
    event_id: Annotated[
        str | None,
        typer.Option("--id", help="The event's id; default: a new one. Sent twice with one id, it counts once."),
    ] = None,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Send a reversal: the next audit takes back what a request bills, or --quantity of --meter.

    It also counts for what is received of the request later, within rejoin_seconds. Several with a --quantity add up.
    Nothing undoes a reversal. Nothing is sent if ingestion would reject it.
    """
    from deployment.event_topics import refuse_ending_topics
    from deployment.kafka_client import kafka_client
    from deployment.sender import Sender
    from deployment.stack import running_deployment
    from jobs.runtime.clock import MachineClock

    if quantity is not None and meter is None:
        raise typer.BadParameter("--quantity needs a meter: add --meter.")
    stack = running_deployment(data_dir)
    config = _ingestion(stack)
    if meter is not None:
        _refuse_unfit_meter(stack, meter, has_quantity=quantity is not None)
    reversal = {
        "id": event_id or str(uuid.uuid4()),
        "source": source or _source_of(config.reversal.sources or ()),
        "account": account or _account_of(stack, request_id),
        "request_id": request_id,
        "meter": meter,
        "quantity": quantity,
        "reason": reason,
    }
    now = MachineClock().now()
    event = event_of(reversal, now)
    _refuse_rejected(config, event, now)
    refuse_ending_topics(stack.postgres_url, [config.topic_of(TYPE)])
    sender = Sender(kafka_client(stack.kafka_bootstrap))
    sender.send(config.topic_of(TYPE), str(reversal["account"]).encode(), event)
    sender.flush()
    if sender.refused:
        raise CannotRun(f"The broker refused it: {sender.refused[0].reason}")
    print_rows([reversal], COLUMNS, form)
    typer.echo("Sent. The next audit applies it: `weir audit`, or the scheduled one.", err=True)


def event_of(reversal: Mapping[str, object], at: datetime) -> bytes:
    """A CloudEvent of COLUMNS."""
    given = {name: reversal[name] for name in ("request_id", "reason", "meter") if reversal[name] is not None}
    data = json.dumps(given)
    if reversal["quantity"] is not None:
        # A JSON number with each digit: no float has been near it.
        data = f'{data[:-1]}, "quantity": {reversal["quantity"]:f}}}'
    envelope = {"specversion": "1.0", "type": TYPE, "source": reversal["source"], "id": reversal["id"]}
    envelope |= {"subject": reversal["account"], "time": rfc3339(at)}
    return f'{json.dumps(envelope)[:-1]}, "data": {data}}}'.encode()


def _ingestion(stack: Deployment) -> IngestionConfig:
    from cli.redrive.offline import ingestion_of

    config = ingestion_of(stack.postgres_url)
    if not config.reversal.sources:
        raise CannotRun(
            "No source may take usage back: list one as reversal.sources in jobs.ingestion, and start ingestion again."
        )
    return config


def _source_of(sources: Sequence[str]) -> str:
    named = next((pattern for pattern in sources if "*" not in pattern and "?" not in pattern), None)
    if named is None:
        listed = ", ".join(sources)
        raise typer.BadParameter(
            f"reversal.sources lists only patterns ({listed}): add --source with a name that one of them matches."
        )
    return named


def _account_of(stack: Deployment, request_id: str) -> str:
    """The account of a request. Raises `typer.BadParameter` where the journal has none, or several."""
    import pyarrow.compute as pc

    from cli.journal_table import open_journal, rows_in_order
    from metering.vocabulary import Disposition

    where = (pc.field("request_id") == request_id) & (pc.field("disposition") == Disposition.ACCEPTED.value)
    journal = open_journal(stack.tables)
    rows = () if journal is None else rows_in_order(journal, ("account",), where)
    accounts = sorted({str(row["account"]) for row in rows if row["account"] is not None})
    if not accounts:
        raise typer.BadParameter(
            f"Nothing was received of a request {request_id}. If it is still to come, add --account: what it bills "
            "within rejoin_seconds is taken back, too."
        )
    if len(accounts) > 1:
        raise typer.BadParameter(f"{', '.join(accounts)} have a request {request_id} each: add --account.")
    return accounts[0]


def _refuse_unfit_meter(stack: Deployment, meter: str, *, has_quantity: bool) -> None:
    """Raise for a meter that was never declared, and for a quantity of a meter that bills a period by its members."""
    from cli.reading import read_only

    with read_only(stack.postgres_url) as database:
        rows = database.execute("SELECT meter, aggregation FROM meters ORDER BY meter").fetchall()
    known = {row["meter"]: row["aggregation"] for row in rows}
    if known and meter not in known:
        raise typer.BadParameter(f"There is no meter {meter}; there are {', '.join(known)}.")
    if has_quantity and known.get(meter) is not None:
        raise typer.BadParameter(
            f"{meter} bills a period by its members, and a quantity removes no member: leave out --quantity to remove "
            "the request from the period."
        )


def _refuse_rejected(config: IngestionConfig, event: bytes, now: datetime) -> None:
    from cli.redrive.offline import Offline

    [verdict] = Offline(config, lambda: now).verdicts([event], [None], [None])
    if verdict.reason is not None:
        raise CannotRun(f"Ingestion would reject it as {verdict.reason}: {verdict.violation}")
