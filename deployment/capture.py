"""How far the catalog's changes are captured, as Postgres knows it: the connector's slot, and its beats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from math import ceil
from typing import Any

import psycopg

from deployment.asking import asking_database
from deployment.errors import CannotRun
from deployment.kept_session import KeptSession
from jobs.runtime.unreachable import place
from metering.reports import CATALOG_BEHIND_SECONDS

_CAPTURE = """
SELECT is_active, captured_until,
       extract(epoch FROM clock_timestamp() - coalesce(captured_until, first_beat_at))::float8,
       missing_columns
FROM catalog.capture
"""


@dataclass(frozen=True)
class Capture:
    """`is_active`: the connector reads the log of changes, behind its snapshot.

    Everything committed before `captured_until` is in Kafka; None: not reported by the slot yet.
    `behind_seconds` is since then, or at least since (the hour that beats are kept); None: there never was a beat.
    """

    is_active: bool = False
    captured_until: datetime | None = None
    behind_seconds: float | None = None
    missing: Sequence[str] = ()
    """Columns without which changes are rejected."""

    @property
    def is_late(self) -> bool:
        """Whether changes do not arrive: what its alert waits for."""
        return bool(self.missing) or self.behind_seconds is None or self.behind_seconds > CATALOG_BEHIND_SECONDS

    @property
    def sentence(self) -> str:
        """How it is, without the end of a sentence."""
        if self.behind_seconds is None:
            return "the catalog's changes have never been captured on this database"
        reads = "reads" if self.is_active else "does not read"
        behind = f"{self.behind_seconds:.0f} s" if self.captured_until else f"{self.behind_seconds:.0f} s or more"
        state = f"the connector {reads} the catalog's changes and is {behind} behind"
        if not self.missing:
            return state
        return (
            f"{state}; changes are rejected while there is no {', '.join(self.missing)}: name it so again, and run "
            "`weir catalog reconcile`"
        )

    def lacks_seconds(self, moment: datetime) -> int:
        """How far it is behind the commits before `moment`, at least 1; 0: not at all."""
        if not self.is_active or self.captured_until is None:
            return 1
        return max(0, ceil((moment - self.captured_until).total_seconds()))


def read_capture(postgres_url: str) -> Capture:
    """How far it is. Raises `psycopg.Error` when the database does not answer, or has no schema yet."""
    with psycopg.connect(postgres_url, connect_timeout=5, autocommit=True) as database:
        return _capture(database.execute(_CAPTURE).fetchall())


def _capture(rows: Sequence[tuple[Any, ...]]) -> Capture:
    if not rows:
        return Capture()
    is_active, captured_until, behind_seconds, missing = rows[0]
    return Capture(is_active, captured_until, behind_seconds, tuple(missing))


def refuse_without_log(postgres_url: str) -> None:
    """Raises CannotRun where the database does not write what changes are captured from, or does not answer."""
    with asking_database(postgres_url):
        read_capture(postgres_url)
        with psycopg.connect(postgres_url, connect_timeout=5, autocommit=True) as database:
            level = database.execute("SHOW wal_level").fetchone()
    assert level is not None
    if level[0] != "logical":
        raise CannotRun(
            f"The database at {place(postgres_url)} has wal_level={level[0]}, so changes of the catalog cannot be "
            "captured: set wal_level=logical, and restart it."
        )


def is_captured(postgres_url: str) -> bool:
    """Whether the first snapshot is done, and changes are followed; False while the database does not answer."""
    try:
        return read_capture(postgres_url).is_active
    except psycopg.Error:
        return False


class Capturing:
    """Whether changes are followed, asked until they are."""

    def __init__(self, postgres_url: str) -> None:
        self._session = KeptSession(postgres_url, "weir up")

    def is_active(self) -> bool:
        """As `is_captured`."""
        try:
            found = _capture(self._session.rows(_CAPTURE)).is_active
        except psycopg.Error:
            return False
        if found:
            self._session.close()
        return found
