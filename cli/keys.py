"""`weir keys`: who may use the API."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.author import ByOption, author, each_checked
from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, print_rows
from metering.api_keys import RateLimits, Scope
from metering.instants import rfc3339

if TYPE_CHECKING:
    from api.key_store import NewKey

keys = typer.Typer(no_args_is_help=True, help="Make, list, rotate and revoke API keys.")
KeyArgument = Annotated[str, typer.Argument(metavar="ID", help="The key's id, as `weir keys list` has it.")]
RequestsOption = Annotated[
    int | None,
    typer.Option(
        "--requests-per-second",
        min=0,
        max=1_000_000_000,
        help="Requests that each server of the API takes with it. 0: no limit. Left out: the API's default.",
    ),
]
EventsOption = Annotated[
    int | None,
    typer.Option(
        "--events-per-minute",
        min=0,
        max=1_000_000_000,
        help="Events that each server of the API takes with it. 0: no limit. Left out: the API's default.",
    ),
]


class Shown(StrEnum):
    """How a new key is printed."""

    TEXT = "text"
    JSON = "json"


ShownOption = Annotated[Shown, typer.Option("--format", help="How to print the new key.")]


@keys.callback()
def _keys() -> None:
    """Make, list, rotate and revoke API keys."""


@keys.command()
def create(
    *,
    scope: Annotated[
        list[Scope],
        typer.Option("--scope", help="What it may be used for: ingest, read, portal, webhooks. May be repeated."),
    ],
    account: Annotated[
        list[str] | None,
        typer.Option(
            "--account",
            help="An account whose events it may send, and whose usage it may read; may be repeated. Left out: all.",
        ),
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(
            "--source",
            metavar="PATTERN",
            help="A pattern of `source` that it may send; may be repeated. Left out: all.",
        ),
    ] = None,
    expires_days: Annotated[
        int | None, typer.Option(min=1, max=3_660, help="Valid for this many days. Default: until it is revoked.")
    ] = None,
    note: Annotated[str | None, typer.Option(help="What it is for; shown in the list.")] = None,
    requests_per_second: RequestsOption = None,
    events_per_minute: EventsOption = None,
    by: ByOption = None,
    form: ShownOption = Shown.TEXT,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Make a key. It is shown once: Weir stores only its SHA-256.

    Send it as `Authorization: Bearer weir_…`. It can be used within a few seconds.
    """
    from api import key_store
    from deployment.stack import running_deployment
    from jobs.runtime.clock import MachineClock

    expires_at = None if expires_days is None else MachineClock().now() + timedelta(days=expires_days)
    url = running_deployment(data_dir).postgres_url
    accounts, sources = each_checked(account, "--account"), each_checked(source, "--source")
    _print_key(
        key_store.create(
            url,
            list(dict.fromkeys(scope)),
            author(by),
            accounts=accounts,
            sources=sources,
            note=None if note is None else each_checked([note], "--note")[0],
            expires_at=expires_at,
            limits=RateLimits(requests_per_second, events_per_minute),
        ),
        form,
    )


@keys.command("list")
def list_(*, form: FormatOption = Format.TABLE, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """List all keys: what each may do, and whether it is valid. The secrets are not listed."""
    from api import key_store
    from deployment.stack import running_deployment

    rows = key_store.listed(running_deployment(data_dir).postgres_url)
    for row in rows:
        row |= {name: ", ".join(row[name]) or None for name in ("scopes", "accounts", "sources")}
    print_rows(rows, key_store.COLUMNS, form)


@keys.command()
def rotate(
    key: KeyArgument,
    *,
    overlap_hours: Annotated[
        int, typer.Option(min=0, max=8_784, help="Both keys are valid for this long; then the old one expires.")
    ] = 24,
    by: ByOption = None,
    form: ShownOption = Shown.TEXT,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Make a new key with the same permissions, and let this one expire. Exit status 1 if there is no such key."""
    from api import key_store
    from deployment.stack import running_deployment

    url = running_deployment(data_dir).postgres_url
    _print_key(key_store.rotate(url, key, author(by), timedelta(hours=overlap_hours)), form)


@keys.command()
def limit(
    key: KeyArgument,
    *,
    requests_per_second: RequestsOption = None,
    events_per_minute: EventsOption = None,
    by: ByOption = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Give a key other rate limits, within 5 s. A limit that is left out is the API's default then."""
    from api import key_store
    from deployment.stack import running_deployment

    limits = RateLimits(requests_per_second, events_per_minute)
    key_store.limit(running_deployment(data_dir).postgres_url, key, author(by), limits)
    default = "the API's default"
    requests, events = (default if limit is None else limit or "no limit" for limit in asdict(limits).values())
    typer.echo(f"{key}: requests per second: {requests}; events per minute: {events}; of each server of the API.")


@keys.command()
def revoke(key: KeyArgument, *, by: ByOption = None, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """Revoke a key: within 5 s it is refused everywhere. Exit status 1 if there is no such key."""
    from api import key_store
    from deployment.stack import running_deployment

    key_store.revoke(running_deployment(data_dir).postgres_url, key, author(by))
    typer.echo(f"{key} is revoked.")


def _print_key(made: NewKey, form: Shown) -> None:
    if form is Shown.JSON:
        expires_at = None if made.expires_at is None else rfc3339(made.expires_at)
        shown: dict[str, Any] = {
            "id": made.id,
            "key": made.key,
            "scopes": list(made.scopes),
            "accounts": list(made.accounts),
        }
        shown |= {"sources": list(made.sources), "expires_at": expires_at, **asdict(made.limits)}
        typer.echo(json.dumps(shown, indent=2))
        return
    typer.echo(made.key)
    ends = "" if made.expires_at is None else f" It ends at {rfc3339(made.expires_at)}."
    typer.echo(f"This is key {made.id}. It is not shown again.{ends}", err=True)
