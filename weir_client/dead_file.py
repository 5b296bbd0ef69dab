"""What the API will never take: one JSON object a line, beside the outbox."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from weir_client.errors import OutboxError


@dataclass(frozen=True)
class DeadEvent:
    """An event that was rejected, and why: `reason`, `path` and `rule` as the API names them."""

    body: bytes
    reason: str
    path: str | None = None
    rule: str | None = None


class DeadFile:
    """Appends rejected events; they are on disk when `append` returns.

    Part of a line, which a kill or a full disk has left, is ended first: a reader of the file loses only that line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, events: Sequence[DeadEvent], rejected_at: str) -> None:
        """Write a line for each. Raises OutboxError."""
        lines = "".join(f"{_line(event, rejected_at)}\n" for event in events).encode()
        try:
            with self.path.open("a+b") as file:
                file.write(lines if _ends_a_line(file) else b"\n" + lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise OutboxError(f"{self.path}, which takes rejected events, cannot be written: {error}.") from error


def _ends_a_line(file: BinaryIO) -> bool:
    """Whether what is written next begins a line."""
    if file.seek(0, os.SEEK_END) == 0:
        return True
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def _line(event: DeadEvent, rejected_at: str) -> str:
    why = {"reason": event.reason, "path": event.path, "rule": event.rule}
    return json.dumps({"rejected_at": rejected_at, **why, "event": json.loads(event.body)}, ensure_ascii=False)
