"""Mistakes in arguments of any command, found before the command runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup


class Arguments(TyperGroup):
    """A group of commands whose arguments are texts: bytes that are no UTF-8 are a usage error.

    Only a file may be called so.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Raises `typer.BadParameter` for an argument that is no text."""
        for argument in args:
            try:
                argument.encode()
            except UnicodeEncodeError:
                if not _is_file(argument):
                    shown = argument.encode(errors="backslashreplace").decode()
                    raise typer.BadParameter(f"{shown} is not text in UTF-8.", ctx) from None
        return super().parse_args(ctx, args)


def renamed(arguments: list[str], names: Mapping[str, str], group: str) -> list[str]:
    """The arguments of a group with the current name of its command; `names`: current names by former ones."""
    if not arguments or (name := names.get(arguments[0])) is None:
        return arguments
    earlier, now = f"{group} {arguments[0]}", f"{group} {name}"
    typer.echo(f"`{earlier}` is called `{now}` now; the next version knows only that name.", err=True)
    return [name, *arguments[1:]]


def _is_file(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):
        return False
