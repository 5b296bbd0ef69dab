"""`weir view`: what a declared view measures, in windows of any kind."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, print_rows
from cli.reading import FromOption, ToOption, check_range, read_only
from metering.instants import rfc3339
from metering.view_durations import minutes_of


def whole_minutes(text: str | timedelta) -> timedelta:
    """An ISO 8601 duration of whole minutes. Raises `typer.BadParameter` for anything else."""
    if isinstance(text, timedelta):
        return text
    try:
        return minutes_of(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}.") from None


def view(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A view of the configuration.")],
    *,
    window: Annotated[
        timedelta | None,
        typer.Option(
            parser=whole_minutes,
            metavar="DURATION",
            help="Length of the windows (ISO 8601, whole minutes up to P1D). Default: that of `windows` in the "
            "configuration, else PT5M.",
        ),
    ] = None,
    hop: Annotated[
        timedelta | None,
        typer.Option(
            parser=whole_minutes,
            metavar="DURATION",
            help="How often a window begins. Default: its length, so that windows tumble; without --window that of "
            "`windows`.",
        ),
    ] = None,
    sliding: Annotated[
        bool,
        typer.Option("--sliding", help="One window instead: the last --window up to the frontier (default PT1H)."),
    ] = False,
    session: Annotated[
        timedelta | None,
        typer.Option(
            parser=whole_minutes,
            metavar="GAP",
            help="Windows of activity instead: each ends where a key has no outcome for longer than this.",
        ),
    ] = None,
    start: FromOption = None,
    end: ToOption = None,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Show what a view measures: a row for each window and key with an outcome, in the last hour.

    --from and --to select windows that overlap what lies between them; each is shown whole. Windows are made of
    minutes, and begin at multiples of the hop since 1970. Counts, sums, minima and maxima are exact; distinct counts,
    percentiles and tops are estimates; gaps are off by less than 66 ms. What is measured is on no bill.
    """
    from deployment.stack import running_deployment
    from jobs.queries.view_windows import ViewWindows, WindowMistake
    from jobs.queries.views import (
        UnknownView,
        columns_of,
        flat,
        flat_columns,
        measured_since,
        view_named,
        view_rows,
    )
    from jobs.runtime.clock import MachineClock

    check_range(start, end)
    with read_only(running_deployment(data_dir).postgres_url) as database:
        try:
            declared = view_named(database, name)
            windows = ViewWindows(window, hop, session, start, end, sliding)
            resolved = windows.resolve(database, MachineClock().now())
        except UnknownView as error:
            raise typer.BadParameter(f"{error}.") from None
        except WindowMistake as mistake:
            raise typer.BadParameter(mistake.sentence("--{}".format)) from None
        rows = [] if resolved is None else view_rows(database, declared, *resolved)
        measured = measured_since(database, declared)
    if measured is not None and resolved is not None and resolved[1].start < measured:
        typer.echo(
            f"{name} is measured since {rfc3339(measured)}: windows that began before are left out. `weir rebuild "
            "analytics` measures all of usage that is not older than `keep_days`.",
            err=True,
        )
    if form is Format.JSON:
        print_rows(rows, columns_of(declared), form)
    else:
        print_rows([flat(declared, row) for row in rows], flat_columns(declared), form)
