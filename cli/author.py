"""What a command stores with the changes that it makes: who runs it, why, and other texts of options."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterable
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
    """The name that --by gives, or else `who()`. Raises `typer.BadParameter` for one that cannot be stored."""
    return checked((by or who()).strip(), "--by")


def reason_in(note: str | None) -> str:
    """What --note gives, empty for none. Raises `typer.BadParameter` for a text that cannot be stored."""
    return checked(note.strip(), "--note") if note and note.strip() else ""


def given_reason(reason: str, about: str) -> str:
    """What --reason gives. Raises `typer.BadParameter` where it is empty. `about`: what it is for, as `this usage`."""
    if not reason.strip():
        raise typer.BadParameter(f"--reason is empty: say why, for anyone who asks about {about} later.")
    return reason.strip()


def checked(text: str, option: str) -> str:
    """The text that an option gives. Raises `typer.BadParameter` for one that no column of names can store."""
    from catalog.file_values import checked_text

    try:
        return checked_text(text)
    except ValueError as problem:
        raise typer.BadParameter(f"{option} {problem}") from problem


def each_checked(texts: Iterable[str] | None, option: str) -> list[str]:
    """The same of an option that may be repeated, each text once."""
    return [checked(text, option) for text in dict.fromkeys(texts or ())]
