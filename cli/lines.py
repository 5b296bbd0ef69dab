"""Files of events: one JSON document a line, the bytes as they are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from deployment.errors import CannotRun


@contextmanager
def opened(file: str) -> Iterator[BinaryIO]:
    """A file to read, or standard input for `-`. Raises CannotRun where it cannot be opened."""
    if file == "-":
        yield sys.stdin.buffer
        return
    try:
        with Path(file).open("rb") as lines:
            yield lines
    except OSError as problem:
        raise CannotRun(f"{file} cannot be read: {problem.strerror}.") from problem


def numbered(lines: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The documents, each with the number of its line, from 1 on."""
    for number, line in enumerate(lines, start=1):
        yield number, line.removesuffix(b"\n")
