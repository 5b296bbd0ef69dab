"""The interface of a driver's input: the topics of events or a Delta table."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession

from jobs.runtime.job import Batch


class Source(Protocol):
    """The input of one driver."""

    @property
    def trigger(self) -> str:
        """How often Spark polls, after `stream` was called."""

    @property
    def look_seconds(self) -> float:
        """How often the driver looks around."""

    def found(self) -> Batch | None:
        """What there is to process between batches: for jobs of tables."""

    def exists(self) -> bool:
        """Whether there is anything to read from yet."""

    def backlog(self, spark: SparkSession, /) -> Iterator[Batch]:
        """Batches to fold before the streaming query, in order."""

    def stream(self, spark: SparkSession) -> DataFrame:
        """The streaming frame from the sink's position on."""

    def has_news(self) -> bool:
        """Whether a batch that comes now may hold records that are not committed."""

    def instead_of(self, batch: DataFrame) -> Batch:
        """What is to be processed of a batch that has come: itself, or all that is new, where a driver reads it."""

    def must_restart(self) -> bool:
        """Whether the query must be rebuilt."""

    def can_go_on(self) -> bool:
        """Whether a query that failed is to be rebuilt, because its input is not as it was when it was built."""

    def close(self) -> None:
        """Give back what it holds."""

    def stopped(self) -> None:
        """Called when the driver is asked to stop reading."""

    def failed(self, error: Exception) -> None:
        """Called when reading has ended with `error`, to which it may add a note with the place."""

    def advance(self) -> None:
        """Called between batches."""

    def lag(self) -> tuple[int, datetime | None]:
        """Records that are there and not committed, and the frontier of the input if it is known."""

    def lag_by_topic(self) -> list[dict[str, Any]]:
        """The last `lag` by topic (`topic_lags`), where there are several; else nothing."""

    def retention(self) -> dict[str, Any]:
        """For how long the input is kept, as the last `lag` found it (`least_retention`); else nothing."""
