"""`weir forget`: what names a person goes, and no sum changes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.author import ByOption, author
from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, Row, print_rows
from deployment.errors import CannotRun

if TYPE_CHECKING:
    import psycopg

    from deployment.stack import Deployment
    from jobs.forget.run import Request
    from metering.erasure import ErasureKey

COLUMNS = ("store", "part", "rows", "state")
SEARCH_COLUMNS = ("store", "searched", "found", "where", "note")


def forget(
    *,
    account: Annotated[str, typer.Option("--account", help="The account whose user it is.")],
    user: Annotated[str, typer.Option("--user", help="The person, as user_id of the events.")],
    reason: Annotated[
        str, typer.Option("--reason", help="Why; stored with your name. Without the person's name.")
    ] = "",
    verify: Annotated[
        bool, typer.Option("--verify", help="Change nothing; search every store for the person, and list them.")
    ] = False,
    by: ByOption = None,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Forget a person: remove the name from the tables that Weir writes. No sum changes.

    Journal, usage, dead letters, sessions, dimensions and members of meters are rewritten: `erased-N` stands in the
    place of the name. The applications may run meanwhile, and events that come later are stored already erased. It may
    be interrupted anywhere, and run again. Kafka deletes events by its retention, and `weir compact` the replaced files
    after a week: run --verify then. WEIR_ERASURE_KEYS has the secret by which the person is recognised without the
    name.

    Exit status 0 when it is complete. 1 while an application may still write the name (run it again), or with --verify
    where the name was found. 3 where it is refused: then nothing was changed.
    """
    from deployment.stack import running_deployment

    stack = running_deployment(data_dir)
    if verify:
        _verify(stack, account, user, data_dir, form)
        return
    rows = list(_forgotten(stack, account, user, reason, author(by)))
    print_rows(rows, COLUMNS, form)
    if any(row["rows"] is None for row in rows):
        typer.echo("Not complete yet: what it waits for is listed. Run it again then.", err=True)
        raise typer.Exit(1)


def _forgotten(stack: Deployment, account: str, user: str, reason: str, by: str) -> Iterator[Row]:
    from deployment.asking import asking_database
    from jobs.forget.run import Request, Waiting, carry_out, record
    from jobs.forget.tables import Person, Rewritten
    from jobs.runtime.errors import Refused
    from jobs.runtime.postgres.schema_check import refuse_other_schema

    with asking_database(stack.postgres_url), _connected(stack.postgres_url) as connection:
        refuse_other_schema(stack.postgres_url)
        keys = _keys()
        if problems := list(_refusals(stack, connection, Request(account, user, reason, by), keys[0])):
            raise Refused("; ".join(problems))
        number = record(connection, Request(account, user, reason, by), keys)
        typer.echo(f"Erasure {number}: erased-{number} stands in the place of the name.", err=True)
        for done in carry_out(stack.tables, connection, Person(number, account, user, keys[0])):
            if isinstance(done, Waiting):
                yield {"store": done.application, "part": None, "rows": None, "state": f"waits until {done.until}"}
            elif isinstance(done, Rewritten):
                part = done.log_date.isoformat()
                yield {"store": done.table, "part": part, "rows": done.rows, "state": "rewritten"}
            else:
                yield {"store": f"Postgres {done.table}", "part": None, "rows": done.rows, "state": "rewritten"}


def _keys() -> tuple[ErasureKey, ...]:
    from metering.erasure import KEYS_VARIABLE, MIN_KEY_CHARACTERS, keys_of

    try:
        keys = keys_of(os.environ.get(KEYS_VARIABLE, ""))
    except ValueError as unfit:
        raise CannotRun(f"{KEYS_VARIABLE}: {unfit}") from None
    if not keys:
        raise CannotRun(
            f"{KEYS_VARIABLE} is not set. Give it a secret of {MIN_KEY_CHARACTERS} characters or more (`openssl rand "
            "-hex 32`), here and to ingestion, and keep it: by it a person is recognised without the name."
        )
    return keys


def _refusals(
    stack: Deployment, connection: psycopg.Connection[Any], request: Request, key: ErasureKey
) -> Iterator[str]:
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient

    from deployment.event_topics import event_topics
    from deployment.kafka_client import kafka_client
    from jobs.forget.refusals import refusals, refusals_of_keys, refusals_of_topic
    from jobs.ingestion.topic_removals import ended_topics
    from jobs.runtime.kafka.topic_risks import settings_of

    yield from refusals(stack.tables, request.account, request.user_id, request.reason)
    yield from refusals_of_keys(connection, key)
    admin = AdminClient(dict(kafka_client(stack.kafka_bootstrap)))
    read = event_topics(stack.postgres_url)
    for topic in (*read, *sorted(ended_topics(connection) - {*read})):
        try:
            settings = settings_of(admin, topic)
        except KafkaException as error:
            # A topic that ended may be deleted by now.
            if topic in read or error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
        else:
            yield from refusals_of_topic(settings)


def _connected(postgres_url: str) -> psycopg.Connection[Any]:
    import psycopg

    return psycopg.connect(postgres_url, autocommit=True, connect_timeout=10)


def _verify(stack: Deployment, account: str, user: str, data_dir: Path, form: Format) -> None:
    from deployment.asking import asking_database
    from jobs.forget.verify import Canary, search

    folder = data_dir.resolve() if (data_dir / "stack.json").exists() else None
    with asking_database(stack.postgres_url), _connected(stack.postgres_url) as connection:
        found = list(search(stack.tables, connection, Canary(account, user), folder))
    print_rows(map(asdict, found), SEARCH_COLUMNS, form)
    if places := [store for store in found if store.found]:
        typer.echo(f"Found in {len(places)} of {len(found)} stores.", err=True)
        raise typer.Exit(1)
