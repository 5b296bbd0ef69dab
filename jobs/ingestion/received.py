"""When a record was received: the latest broker stamp in its partition up to and including it.

This running maximum is a pure function of the log, the same however the input is cut. A broker's clock that steps back
(a failover to a slower one) changes neither the order within a partition nor earlier results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import polars as pl

from jobs.ingestion.record_order import by_columns
from metering.instants import EPOCH

INSTANT = pl.Datetime("us", "UTC")


@dataclass(frozen=True)
class Restamp:
    """The offsets of a partition, both ends included, whose stamps are wrong: they get the maximum before them."""

    partition: int
    first_offset: int
    last_offset: int

    def holds(self) -> pl.Expr:
        """Whether a row (partition, offset, …) is of these offsets."""
        is_between = pl.col("offset").is_between(self.first_offset, self.last_offset)
        return (pl.col("partition") == self.partition) & is_between


def believed(restamps: Iterable[Restamp] = ()) -> pl.Expr:
    """Whether the stamp of a row (partition, offset, is_broker_stamp) is its reception."""
    wrong = pl.any_horizontal(pl.lit(False), *[restamp.holds() for restamp in restamps])
    return pl.col("is_broker_stamp") & ~wrong


class Reception:
    """The latest time of receipt in each partition of a topic, and so the frontier F of what was read."""

    def __init__(
        self, partitions: Iterable[int], latest: Mapping[int, datetime], frontier: datetime | None = None
    ) -> None:
        self._partitions = set(partitions)
        self._latest = dict(latest)
        self._frontier = frontier

    @property
    def frontier(self) -> datetime | None:
        """The smallest, over the partitions, of the latest `received_at`: all received before it was read.

        It stays where it is while a partition has none, so that a new one cannot be passed over.
        """
        return self._frontier

    @property
    def latest(self) -> Mapping[int, datetime]:
        """The latest `received_at` per partition that has one."""
        return self._latest

    def forget_receptions(self, after: datetime) -> None:
        """Forget later receptions, which an earlier release took from any stamp.

        Records that arrive in such a partition were not received before F, which is all that F promises.
        """
        later = [partition for partition, at in self._latest.items() if at > after]
        self._latest |= dict.fromkeys(later, self._frontier or EPOCH)

    def add(self, partition: int) -> None:
        """A partition that the topic has from now on."""
        self._partitions.add(partition)

    def received(
        self, records: pl.DataFrame, restamps: Sequence[Restamp] = (), floor: datetime | None = None
    ) -> pl.DataFrame:
        """New records (partition, offset, stamped_at, is_broker_stamp, …) with `received_at`, by partition and offset.

        A stamp by a producer or a restamp is not believed: such a record was received with the record before it. A
        record in a partition that was never read before was not received before F: before `floor`, where other topics
        hold F back, too.
        """
        earliest = floor or self._frontier or EPOCH
        before = pl.col("partition").replace_strict(self._latest, default=earliest, return_dtype=INSTANT)
        stamp = pl.when(believed(restamps)).then("stamped_at").otherwise(pl.lit(EPOCH, INSTANT))
        return by_columns(records, ("partition", "offset")).with_columns(
            pl.max_horizontal(stamp.cum_max().over("partition"), before).cast(INSTANT).alias("received_at")
        )

    def take(self, rows: pl.DataFrame) -> dict[int, datetime]:
        """Let time come as far as rows (partition, received_at) say; gives where it then is in their partitions."""
        stamped = rows.select("partition", "received_at").filter(pl.col("received_at") > EPOCH)
        moved = dict(stamped.group_by("partition").agg(pl.col("received_at").max()).iter_rows())
        self._partitions |= moved.keys()
        self._latest |= {p: max(at, self._latest.get(p, at)) for p, at in moved.items()}
        if self._partitions and self._partitions <= self._latest.keys():
            slowest = min(self._latest[partition] for partition in self._partitions)
            self._frontier = max(slowest, self._frontier or slowest)
        return {partition: self._latest[partition] for partition in moved}
