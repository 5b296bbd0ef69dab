"""Whether ended months may be billed anew: --backdate, or the answer of whoever sits at the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, TypeVar

import typer

Result = TypeVar("Result")

BackdateOption = Annotated[
    bool, typer.Option("--backdate", help="Bill ended months anew where the change touches what they have billed.")
]


def agreed(change: Callable[[bool], Result], backdates: bool) -> Result:
    """Make a change, which is told whether it may touch ended months. On a terminal somebody may agree afterwards.

    Raises ClosedMonthsTouched without a terminal, and `typer.Abort` when the answer is no.
    """
    from catalog.closed import ClosedMonthsTouched

    try:
        return change(backdates)
    except ClosedMonthsTouched as touched:
        # Nobody holds a lock while somebody thinks: the change is made anew.
        if not sys.stdin.isatty():
            raise
        typer.echo(str(touched), err=True)
        typer.confirm("Bill them anew?", abort=True, err=True)
        return change(True)
