"""Progress of a long command: one changing line on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

SECONDS_BETWEEN_LINES = 15.0


@contextmanager
def telling(title: str) -> Iterator[Callable[[str], None]]:
    """Gives a function that reports progress on standard error."""
    console = Console(stderr=True, highlight=False)
    if console.is_terminal:
        with console.status(title) as status:
            yield lambda text: status.update(f"{title} {text}")
        return
    printed_at = time.monotonic()

    def tell(text: str) -> None:
        nonlocal printed_at
        if time.monotonic() - printed_at >= SECONDS_BETWEEN_LINES:
            printed_at = time.monotonic()
            print(f"{title} {text}", file=sys.stderr, flush=True)

    yield tell
