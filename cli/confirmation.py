"""Confirmation of changes: beforehand by an option, or by the user at the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from catalog.agreement import NeedsAgreement

Result = TypeVar("Result")

BackdateOption = Annotated[
    bool, typer.Option("--backdate", help="Bill ended months again where the change touches what they have billed.")
]
YesOption = Annotated[
    bool, typer.Option("--yes", help="Store and confirm prices that are 100 times above or below another.")
]


def agreed(change: Callable[[bool], Result], is_given: bool, refusal: type[NeedsAgreement]) -> Result:
    """Make a change, with whether it is confirmed (`is_given`). On a terminal the user may confirm afterwards.

    Raises the refusal without a terminal, and `typer.Abort` when the answer is no.
    """
    try:
        return change(is_given)
    except refusal as refused:
        # No lock is held while the user decides: afterwards the change is made again.
        if not sys.stdin.isatty():
            raise
        typer.echo(str(refused), err=True)
        typer.confirm(refused.question, abort=True, err=True)
        return change(True)
