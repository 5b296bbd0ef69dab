"""`weir webhooks`: who is called, and what became of each call."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from cli.author import ByOption, author, each_checked
from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, LimitOption, print_rows
from webhooks.event_types import EventType
from webhooks.kinds import Kind
from webhooks.outcomes import State

if TYPE_CHECKING:
    from webhooks.endpoints import NewSecret

webhooks = typer.Typer(
    no_args_is_help=True,
    help="Add, list, change, rotate, disable, enable and remove endpoints; list deliveries, and send them again.",
)
EndpointArgument = Annotated[
    str, typer.Argument(metavar="ENDPOINT", help="The endpoint, as `weir webhooks list` has it.")
]
AllowPrivateOption = Annotated[
    bool, typer.Option("--allow-private", help="Private addresses and plain HTTP may be called: for tests.")
]

OPTIONS = {
    "url": "URL",
    "kind": "--kind",
    "events": "--event",
    "accounts": "--account",
    "note": "--note",
    "signature": "--asymmetric",
}
"""By the field of `NewEndpoint` that is refused."""


@webhooks.callback()
def _webhooks() -> None:
    """Add, list, change, rotate, disable, enable and remove endpoints; list deliveries, and send them again."""


@webhooks.command()
def add(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="Where events are posted, or the address of mail; - reads it from standard input."
        ),
    ],
    *,
    kind: Annotated[
        Kind,
        typer.Option(help="Events as JSON, signed (webhook); messages for people (slack); mail (mail)."),
    ] = Kind.WEBHOOK,
    event: Annotated[
        list[EventType] | None,
        typer.Option(
            "--event", help="A type of event that it receives; may be repeated. Left out: all types of this release."
        ),
    ] = None,
    account: Annotated[
        list[str] | None,
        typer.Option("--account", help="An account whose events it receives; may be repeated. Left out: all."),
    ] = None,
    asymmetric: Annotated[
        bool, typer.Option("--asymmetric", help="Sign by an ed25519 key pair (v1a) instead of a shared secret (v1).")
    ] = False,
    note: Annotated[str | None, typer.Option(help="What it is for; shown in the list.")] = None,
    allow_private: AllowPrivateOption = False,
    by: ByOption = None,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Add an endpoint. It receives events that happen from now on.

    Prints what its receiver verifies calls with: a shared secret `whsec_…`, or a public key `whpk_…`. It is shown once.
    Slack verifies nothing: its URL is the secret, and no command shows it. Mail needs a server (`WEIR_SMTP_URL`).
    """
    from deployment.stack import running_deployment
    from webhooks.endpoints import add as add_endpoint
    from webhooks.new_endpoint import NewEndpoint
    from webhooks.signing import Signature

    notes = each_checked(None if note is None else [note], "--note")
    wanted = NewEndpoint(
        _url(url),
        kind,
        list(dict.fromkeys(event or EventType)),
        each_checked(account, "--account"),
        notes[0] if notes else None,
        Signature.V1A if asymmetric else Signature.V1,
    )
    with _refused_as_option():
        wanted = wanted.checked(allows_private=allow_private)
    made = add_endpoint(running_deployment(data_dir).postgres_url, by=author(by), **asdict(wanted))
    _print_secret(made, form)


@webhooks.command("list")
def list_(*, form: FormatOption = Format.TABLE, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """List all endpoints: what each receives, since when its oldest delivery has waited, and how many are dead.

    `removed`: how many were removed before they were delivered.
    """
    from deployment.stack import running_deployment
    from webhooks.endpoints import COLUMNS, listed

    rows = listed(running_deployment(data_dir).postgres_url)
    for row in rows:
        row |= {name: ", ".join(row[name]) or None for name in ("events", "accounts")}
    print_rows(rows, COLUMNS, form)


@webhooks.command()
def change(
    endpoint: EndpointArgument,
    *,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Where events are posted from now on, also those that wait.")
    ] = None,
    event: Annotated[
        list[EventType] | None,
        typer.Option("--event", help="All types of events that it receives from now on; may be repeated."),
    ] = None,
    note: Annotated[str | None, typer.Option(help="What it is for; an empty text removes the note.")] = None,
    allow_private: AllowPrivateOption = False,
    by: ByOption = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Change where an endpoint is called, about what, and its note. Its accounts stay: add another for others."""
    from deployment.stack import running_deployment
    from webhooks.changing import Change
    from webhooks.changing import change as change_endpoint

    if url is None and not event and note is None:
        raise typer.BadParameter("give --url, --event or --note.")
    notes = each_checked([note], "--note") if note else [note]
    wanted = Change(None if url is None else _url(url), list(dict.fromkeys(event)) if event else None, notes[0])
    with _refused_as_option():
        change_endpoint(
            running_deployment(data_dir).postgres_url, endpoint, author(by), wanted, allows_private=allow_private
        )
    typer.echo(f"{endpoint} is changed.")


@webhooks.command()
def rotate(
    endpoint: EndpointArgument,
    *,
    overlap_hours: Annotated[
        int, typer.Option(min=0, max=8_784, help="Both secrets sign for this long; then the old one expires.")
    ] = 24,
    by: ByOption = None,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Make a new secret of the same kind; the old one signs beside it for a while."""
    from deployment.stack import running_deployment
    from webhooks.endpoints import rotate as rotate_secret

    url = running_deployment(data_dir).postgres_url
    _print_secret(rotate_secret(url, endpoint, author(by), timedelta(hours=overlap_hours)), form)


@webhooks.command()
def disable(
    endpoint: EndpointArgument,
    *,
    reason: Annotated[str, typer.Option(help="Why; shown in the list.")],
    by: ByOption = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Stop calling an endpoint. Its queued deliveries are kept; events in the meantime are not queued for it."""
    from deployment.stack import running_deployment
    from webhooks.endpoints import disable as disable_endpoint

    reasons = each_checked([reason], "--reason")
    disable_endpoint(running_deployment(data_dir).postgres_url, endpoint, author(by), reasons[0])
    typer.echo(f"{endpoint} is disabled.")


@webhooks.command()
def enable(endpoint: EndpointArgument, *, by: ByOption = None, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """Call an endpoint again, beginning with its queued deliveries."""
    from deployment.stack import running_deployment
    from webhooks.endpoints import enable as enable_endpoint

    waiting = enable_endpoint(running_deployment(data_dir).postgres_url, endpoint, author(by))
    typer.echo(f"{endpoint} is enabled; {waiting:,} deliveries wait for it.")


@webhooks.command()
def remove(endpoint: EndpointArgument, *, by: ByOption = None, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """Remove an endpoint, with its secrets, deliveries and log. Their sums, and who did it, stay.

    Deliveries that wait are never sent. `weir webhooks disable` stops the calls, and removes nothing.
    """
    from deployment.stack import running_deployment
    from webhooks.endpoints import remove as remove_endpoint

    counts = remove_endpoint(running_deployment(data_dir).postgres_url, endpoint, author(by))
    listed = ", ".join(f"{count:,} {state}" for state, count in counts.items())
    typer.echo(f"{endpoint} is removed, with its deliveries: {listed}.")


@webhooks.command()
def deliveries(
    endpoint: EndpointArgument,
    *,
    state: Annotated[State | None, typer.Option(help="Only those in this state.")] = None,
    limit: LimitOption = None,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List deliveries to an endpoint, sent or waiting, newest first, each with its last attempt."""
    from deployment.stack import running_deployment
    from webhooks.endpoints import DELIVERY_COLUMNS
    from webhooks.endpoints import deliveries as listed_deliveries

    rows = listed_deliveries(running_deployment(data_dir).postgres_url, endpoint, state)
    print_rows(rows, DELIVERY_COLUMNS, form, limit)


@webhooks.command()
def attempts(
    endpoint: EndpointArgument,
    number: Annotated[int, typer.Argument(metavar="NUMBER", help="The delivery, by number.")],
    *,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List every attempt of a delivery, the first one first: status or the error, and its duration."""
    from deployment.stack import running_deployment
    from webhooks.delivery_log import COLUMNS
    from webhooks.delivery_log import attempts as listed_attempts

    print_rows(listed_attempts(running_deployment(data_dir).postgres_url, endpoint, number), COLUMNS, form)


@webhooks.command()
def resend(
    endpoint: EndpointArgument,
    number: Annotated[list[int] | None, typer.Argument(metavar="NUMBER", help="Deliveries, by number.")] = None,
    *,
    dead: Annotated[bool, typer.Option("--dead", help="All that are dead.")] = False,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Send deliveries again, with the same ids: those of the given numbers, or all dead ones."""
    from deployment.stack import running_deployment
    from webhooks.endpoints import resend as resend_deliveries

    if bool(number) == dead:
        raise typer.BadParameter("give the numbers of deliveries, or --dead.")
    count = resend_deliveries(running_deployment(data_dir).postgres_url, endpoint, number or [], dead=dead)
    typer.echo(f"{count:,} deliveries are sent again.")


@webhooks.command()
def send(*, allow_private: AllowPrivateOption = False, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """Send due deliveries until Ctrl-C. If several processes run, one sends and the others stand by."""
    from deployment.stack import running_deployment
    from webhooks.__main__ import run

    run(running_deployment(data_dir).postgres_url, allows_private=allow_private)


def _print_secret(made: NewSecret, form: Format) -> None:
    if form is Format.JSON:
        typer.echo(json.dumps({"endpoint": made.endpoint, "verifies_with": made.verifies_with}, indent=2))
        return
    if not made.verifies_with:
        typer.echo(f"{made.endpoint} is added.")
        return
    typer.echo(made.verifies_with)
    typer.echo(f"The receiver of {made.endpoint} verifies calls with it. It is not shown again.", err=True)


def _url(given: str) -> str:
    return typer.get_text_stream("stdin").readline().strip() if given == "-" else given


@contextmanager
def _refused_as_option() -> Iterator[None]:
    """Raises `typer.BadParameter`, which names the option, for EndpointRefused."""
    from webhooks.new_endpoint import EndpointRefused

    try:
        yield
    except EndpointRefused as refused:
        raise typer.BadParameter(str(refused), param_hint=OPTIONS.get(refused.field)) from refused
