"""What Spark calls for each batch of a query, and what the batches and the driver's loop share.

Java keeps the objects that it calls until it collects garbage, which rarely happens in an idle driver, and Spark keeps
the error of a failed call. So neither may reference the driver, whose sink may hold much memory: drivers are recreated
in one process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from pyspark.sql import DataFrame


class Query:
    """One query, as the callable that `foreachBatch` takes."""

    def __init__(self, on_batch: Callable[[DataFrame, Query], None]) -> None:
        self._on_batch: Callable[[DataFrame, Query], None] | None = on_batch
        self._has_ended = threading.Event()
        self._left = threading.Event()
        self.failure: BaseException | None = None
        """What a batch has raised. Spark would hand back only the text of the error, not the error."""

    @property
    def is_cancelled(self) -> bool:
        """It was ended: what it still reads is another's to commit."""
        return self._has_ended.is_set()

    @property
    def restart_requested(self) -> bool:
        """Whether it must end, because the next query is to read what one of its batches held.

        Spark continues behind that batch, so everything that this query would still read has a gap before it.
        """
        return self._left.is_set()

    def leave(self) -> None:
        """Let the next query read what has come now, and all that follows."""
        self._left.set()

    def end(self) -> None:
        """From now on nothing that it reads is used."""
        self._has_ended.set()

    def forget(self) -> None:
        """Let go of the driver."""
        self._on_batch = self.failure = None

    def __call__(self, batch: DataFrame, _number: int) -> None:
        """A batch has come. Raises RuntimeError, with the text of the error, where it was not taken."""
        if problem := self._problem_of(batch):
            raise RuntimeError(problem)

    def _problem_of(self, batch: DataFrame) -> str:
        try:
            if self._on_batch is not None:
                self._on_batch(batch, self)
        except BaseException as error:  # noqa: BLE001 -- the driver raises it
            if not self.is_cancelled:
                self.failure = error
            return f"{type(error).__name__}: {error}"
        return ""
