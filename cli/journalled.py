"""Waits for ingestion: an instruction about later records is done when the journal has passed them."""

from __future__ import annotations

import time

from deployment.errors import CannotRun
from deployment.positions import Positions
from jobs.streams import Table

POLL_SECONDS = 0.5


def wait_until_journalled(positions: Positions, position: str, offset: int, timeout_seconds: float) -> None:
    """Wait until the journal's `position`, of one partition, is beyond `offset`. Raises CannotRun after the timeout."""
    deadline = time.monotonic() + timeout_seconds
    while (positions.transaction(Table.JOURNAL, position) or 0) <= offset:
        if time.monotonic() > deadline:
            raise CannotRun(
                f"Ingestion has not read that far within {timeout_seconds:g} s. Your request is stored, and carried "
                f"out when it does; `weir status` says what ingestion waits for."
            )
        time.sleep(POLL_SECONDS)
