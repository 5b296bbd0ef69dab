"""What is wrong with an argument of any command, before a command sees it."""

from __future__ import annotations

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
        for one in args:
            try:
                one.encode()
            except UnicodeEncodeError:
                if not _is_file(one):
                    shown = one.encode(errors="backslashreplace").decode()
                    raise typer.BadParameter(f"{shown} is no text in UTF-8.", ctx) from None
        return super().parse_args(ctx, args)


def _is_file(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):
        return False
