"""Sessions of Postgres that never hang: a server that is frozen or cut off is noticed.

Neither a statement timeout nor TCP notices a frozen server: the first is the server's own, the second its kernel's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any, Self, TypeVar

import psycopg

from jobs.runtime.postgres.address import in_schema, options_of
from jobs.runtime.postgres.ping import is_there

CONNECT_TIMEOUT_SECONDS = 5
SILENT_AFTER_SECONDS = 10.0
"""A statement may take longer. Then another session checks whether the server answers at all."""
TCP_TIMEOUT_MS = 30_000

R = TypeVar("R")


class ServerIsSilent(psycopg.OperationalError):
    """No byte came from the server for too long; its last statement may have been executed."""


class Session(psycopg.Connection[Any]):
    """A connection that fails when its server is silent: raises ServerIsSilent, and is closed."""

    silent_after_seconds = SILENT_AFTER_SECONDS
    is_patient = False
    """Whether a server that answers another session gets more time for its statement."""
    address = ""

    @classmethod
    def to(
        cls,
        postgres_url: str,
        name: str,
        *,
        options: str = "",
        silent_after_seconds: float = SILENT_AFTER_SECONDS,
        is_patient: bool = False,
        **more: Any,
    ) -> Self:
        """A new session in autocommit; `name` is shown in `pg_stat_activity`. `more` goes to `psycopg.connect`."""
        postgres_url = in_schema(postgres_url)
        session = cls.connect(
            postgres_url,
            autocommit=True,
            application_name=name,
            # Instants of another zone are of another type to Polars, so the session's zone is fixed.
            options=f"{options_of(postgres_url)} -c timezone=UTC {options}",
            connect_timeout=CONNECT_TIMEOUT_SECONDS,
            tcp_user_timeout=TCP_TIMEOUT_MS,
            keepalives_idle=10,
            keepalives_interval=5,
            keepalives_count=3,
            **more,
        )
        session.silent_after_seconds, session.is_patient, session.address = (
            silent_after_seconds,
            is_patient,
            postgres_url,
        )
        return session

    def wait(self, gen: Generator[Any, Any, R], interval: float = 0.1, timeout: float | None = None) -> R:  # noqa: ARG002
        """What psycopg calls for everything that is sent or received."""
        try:
            return super().wait(_answered(gen, self.silent_after_seconds, self._is_there), interval)
        except ServerIsSilent:
            # Else the end of a transaction would be sent after it, and waited for again.
            self.pgconn.finish()
            raise

    def _is_there(self) -> bool:
        if not self.is_patient:
            return False
        try:
            psycopg.connect(self.address, connect_timeout=CONNECT_TIMEOUT_SECONDS).close()
        except psycopg.Error as error:
            return is_there(error)
        return True


def _answered(
    steps: Generator[Any, Any, R], limit_seconds: float, is_there: Callable[[], bool]
) -> Generator[Any, Any, R]:
    """The same steps, which fail when for so long nothing could be read or written and `is_there` denies it."""
    quiet_since = time.monotonic()
    try:
        wanted = next(steps)
        while True:
            ready = yield wanted
            if ready:
                quiet_since = time.monotonic()
            elif time.monotonic() - quiet_since > limit_seconds:
                if not is_there():
                    raise ServerIsSilent(f"the server has not answered for {limit_seconds:g} s")
                quiet_since = time.monotonic()
            wanted = steps.send(ready)
    except StopIteration as done:
        result: R = done.value
        return result
    finally:
        steps.close()
