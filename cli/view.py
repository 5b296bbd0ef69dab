"""`weir view`: what a declared view measures, in windows of any kind."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, print_rows
from cli.reading import FromOption, ToOption, check_range, read_only
from metering.instants import rfc3339
from metering.view_durations import minutes_of
from metering.views import Aggregate, View

if TYPE_CHECKING:
    from jobs.queries.reading import Database
    from jobs.queries.views import Hop, Sessions, Whole

HOUR = timedelta(hours=1)
MAX_WINDOWS = 50_000
"""Of one key: what a machine and a reader can take at once."""


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
    percentiles and tops are estimates. What is measured is on no bill.
    """
    from deployment.stack import running_deployment
    from jobs.queries.views import UnknownView, columns_of, measured_since, view_named, view_rows
    from jobs.runtime.clock import MachineClock

    check_range(start, end)
    _refuse_both(window=window, hop=hop, sliding=sliding, session=session, has_range=bool(start or end))
    until = end or (start + HOUR if start else MachineClock().now())
    since = start or until - HOUR
    with read_only(running_deployment(data_dir).postgres_url) as database:
        try:
            declared = view_named(database, name)
        except UnknownView as error:
            raise typer.BadParameter(f"{error}.") from None
        windows = _windows(database, window, hop, session, sliding=sliding)
        bounds = None if windows is None else _bounds(windows, since, until)
        rows = [] if windows is None or bounds is None else view_rows(database, declared, windows, *bounds)
        measured = measured_since(database, declared)
        columns = columns_of(declared)
    if measured is not None and bounds is not None and bounds[0] < measured:
        typer.echo(
            f"{name} is measured since {rfc3339(measured)}: windows that began before are left out. `weir rebuild "
            "analytics` measures all of usage.",
            err=True,
        )
    if form is not Format.JSON:
        columns, rows = _flat_columns(declared), [_flat(declared, row) for row in rows]
    print_rows(rows, columns, form)


def _refuse_both(
    *, window: timedelta | None, hop: timedelta | None, sliding: bool, session: timedelta | None, has_range: bool
) -> None:
    if session is not None and (window or hop or sliding):
        raise typer.BadParameter("--session has windows of its own: leave out --window, --hop and --sliding.")
    if sliding and (hop or has_range):
        raise typer.BadParameter("--sliding is the last --window up to the frontier: leave out --hop, --from and --to.")
    if window is not None and hop is not None and hop > window:
        raise typer.BadParameter("--hop must be at most --window, or some outcomes would be in no window.")


def _windows(
    database: Database,
    window: timedelta | None,
    hop: timedelta | None,
    session: timedelta | None,
    *,
    sliding: bool,
) -> Hop | Sessions | Whole | None:
    """None: the last hour up to a frontier that is not known yet."""
    from jobs.queries.views import Hop, Sessions, Whole, default_windows, floor_minute, measured_until

    if session is not None:
        return Sessions(session)
    defaults = default_windows(database)
    if sliding:
        frontier = measured_until(database)
        last = None if frontier is None else floor_minute(frontier)
        return None if last is None else Whole(last - (window or defaults.sliding()), last)
    size, every = defaults.lengths()
    if window is not None:
        size, every = window, window
    every = hop or every
    if every > size:
        raise typer.BadParameter("--hop must be at most --window, or some outcomes would be in no window.")
    return Hop(size, every)


def _bounds(windows: Hop | Sessions | Whole, since: datetime, until: datetime) -> tuple[datetime, datetime]:
    from jobs.queries.views import Hop, Whole, ceil_minute, floor_minute

    if isinstance(windows, Whole):
        return windows.start, windows.end
    if isinstance(windows, Hop) and (until - since) / windows.hop > MAX_WINDOWS:
        raise typer.BadParameter(
            f"between --from and --to there would be more than {MAX_WINDOWS} windows: take a longer --hop."
        )
    return floor_minute(since), ceil_minute(until)


def _flat_columns(view: View) -> tuple[str, ...]:
    """For tables and CSV: a column for each percentile."""
    from jobs.queries.views import columns_of
    from jobs.view_measures import RANKS

    split = {m.name for m in view.measures if m.aggregate is Aggregate.PERCENTILES}
    return tuple(
        flat
        for name in columns_of(view)
        for flat in ([f"{name}_{rank}" for rank in RANKS] if name in split else [name])
    )


def _flat(view: View, row: dict[str, Any]) -> dict[str, Any]:
    from jobs.view_measures import RANKS

    found = dict(row)
    for measure in view.measures:
        if measure.aggregate is Aggregate.PERCENTILES:
            percentiles = found.pop(measure.name) or {}
            found |= {f"{measure.name}_{rank}": percentiles.get(rank) for rank in RANKS}
        elif measure.aggregate is Aggregate.TOP:
            found[measure.name] = ", ".join(f"{top['value']} {top['count']}" for top in found[measure.name])
    return found
