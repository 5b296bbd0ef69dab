"""A session of the database for questions that are asked again and again until the answer is yes."""

from __future__ import annotations

from typing import Any, LiteralString

import psycopg

from jobs.runtime.postgres.session import Session


class KeptSession:
    """Begun with the first question and kept for the next ones, because to begin one takes 34 ms."""

    def __init__(self, postgres_url: str, name: str) -> None:
        self._postgres_url = postgres_url
        self._name = name
        self._session: Session | None = None

    def rows(self, statement: LiteralString) -> list[tuple[Any, ...]]:
        """The answer. Raises psycopg.Error; the next question begins another session then."""
        if self._session is None:
            self._session = Session.to(self._postgres_url, self._name)
        try:
            return self._session.execute(statement).fetchall()
        except psycopg.Error:
            self.close()
            raise

    def close(self) -> None:
        """End the session; another question begins a new one."""
        if self._session is not None:
            self._session.close()
            self._session = None
