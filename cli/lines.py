"""Files of events: one JSON document a line, the bytes as they are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

from deployment.errors import FileRefused

SKIPPED_BYTES = 1 << 20
"""How many bytes of the rest of a cut line are held at once."""


@contextmanager
def opened(file: str) -> Iterator[BinaryIO]:
    """A file to read, or standard input for `-`. Raises FileRefused where it cannot be opened."""
    if file == "-":
        yield sys.stdin.buffer
        return
    try:
        with Path(file).open("rb") as lines:
            yield lines
    except OSError as problem:
        raise FileRefused(f"{file} cannot be read: {problem.strerror}.") from problem


def refuse_missing(*files: str | Path | None) -> None:
    """Raises FileRefused for one that is not there: before anything is done. It opens none: a pipe opens once."""
    for file in files:
        if file is None or file == "-":
            continue
        try:
            Path(file).stat()
        except OSError as problem:
            raise FileRefused(f"{file} cannot be read: {problem.strerror}.") from problem


def numbered(lines: BinaryIO, max_bytes: int | None = None) -> Iterator[tuple[int, bytes]]:
    """The documents, each with its line number, from 1 on; a longer one is cut to its first `max_bytes`.

    A line of only white space is no document, unless it had to be cut: its rest is unknown.
    """
    read = lines.readline if max_bytes is None else partial(_beginning, lines, max_bytes)
    for number, line in enumerate(iter(read, b""), start=1):
        document = line.removesuffix(b"\n")
        if document.strip() or (max_bytes is not None and len(document) >= max_bytes):
            yield number, document


def _beginning(lines: BinaryIO, max_bytes: int) -> bytes:
    """A line, with its end if it fits; the next one is read behind it."""
    line = rest = lines.readline(max_bytes + 1)
    while len(rest) > 0 and not rest.endswith(b"\n"):
        rest = lines.readline(SKIPPED_BYTES)
    return line if line.endswith(b"\n") else line[:max_bytes]
