"""`weir drain`: wait until everything that was sent is billed."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated

import typer

from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, print_rows

COLUMNS = ("drained", "waiting", "stuck")
TimeoutOption = Annotated[float, typer.Option("--timeout", min=0, help="Seconds to wait at most.")]


def drain(
    *,
    timeout: TimeoutOption = 300.0,
    include_waiting: Annotated[
        bool, typer.Option("--include-waiting", help="Wait also until every request without a completion is decided.")
    ] = False,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Wait until all applications have processed what is in Kafka now.

    Prints how many requests and completions still wait for their partner: such a request is billed when the partner
    arrives, or at its timeout. Exit status 1 after --timeout, with what is stuck.
    """
    from cli.progress import telling
    from deployment.draining import Stuck
    from deployment.draining import drain as drain_stack
    from deployment.stack import running_deployment

    stack = running_deployment(data_dir)
    quiet = form is not Format.TABLE
    with nullcontext(lambda _: None) if quiet else telling("Draining …") as tell:
        try:
            drained = drain_stack(stack, timeout, include_waiting=include_waiting, tell=tell)
        except Stuck as stuck:
            if quiet:
                print_rows([{"drained": False, "waiting": None, "stuck": str(stuck)}], COLUMNS, form)
            raise
    if quiet:
        print_rows([{"drained": True, "waiting": drained.waiting, "stuck": None}], COLUMNS, form)
    else:
        typer.echo(
            f"All applications have processed it; {drained.waiting} requests and completions wait for their partner."
        )
