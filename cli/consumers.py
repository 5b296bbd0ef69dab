"""`weir consumers`: who acknowledges corrections, and who has not."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, print_rows
from cli.reading import read_only

consumers = typer.Typer(
    no_args_is_help=True, help="List the consumers that acknowledge corrections, and remove one that is not used."
)


@consumers.callback()
def _consumers() -> None:
    """List the consumers that acknowledge corrections, and remove one that is not used."""


@consumers.command("list")
def list_(*, form: FormatOption = Format.TABLE, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """List each consumer with its last number, how many corrections wait for it, and since when."""
    from deployment.stack import running_deployment
    from jobs.queries.correction_consumers import COLUMNS, correction_consumers

    with read_only(running_deployment(data_dir).postgres_url) as database:
        print_rows(correction_consumers(database), COLUMNS, form)


@consumers.command()
def remove(
    consumer: Annotated[str, typer.Argument(metavar="CONSUMER", help="The consumer, as `weir consumers list` has it.")],
    *,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """No longer wait for a consumer. It comes back when it acknowledges again."""
    import psycopg
    from psycopg.rows import dict_row

    from deployment.asking import asking_database
    from deployment.errors import CannotRun
    from deployment.stack import running_deployment
    from jobs.queries.correction_consumers import remove_consumer

    url = running_deployment(data_dir).postgres_url
    with asking_database(url), psycopg.connect(url, row_factory=dict_row) as database:
        if not remove_consumer(database, consumer):
            raise CannotRun(f"There is no consumer {consumer}: `weir consumers list` shows all.")
    typer.echo(f"Corrections no longer wait for {consumer}.")
