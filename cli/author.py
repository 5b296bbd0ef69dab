"""Who runs a command: the name that is stored with the changes that it makes."""

from __future__ import annotations

import getpass
import os
import socket
from typing import Annotated

import typer

from metering.texts import encodable

ByOption = Annotated[
    str | None, typer.Option("--by", help="The author, stored with the change; default: your user on this machine.")
]
NoteOption = Annotated[str | None, typer.Option("--note", help="Why; stored with the change in the activity log.")]


def who() -> str:
    """The operating system's user, and the machine."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        # A pod's user has a number, and perhaps no name.
        name = f"user {os.getuid()}"
    return encodable(f"{name}@{socket.gethostname()}")


def author(by: str | None) -> str:
    """The name that --by gives, or else `who()`. Raises `typer.BadParameter` for one that nothing can be kept under."""
    from catalog.file_values import checked_text

    try:
        return checked_text((by or who()).strip())
    except ValueError as problem:
        raise typer.BadParameter(f"--by {problem}") from problem


def reason_in(note: str | None) -> str:
    """What --note gives, empty for none. Raises `typer.BadParameter` for a text that cannot be stored."""
    from catalog.file_values import checked_text

    try:
        return checked_text(note.strip()) if note and note.strip() else ""
    except ValueError as problem:
        raise typer.BadParameter(f"--note {problem}") from problem
