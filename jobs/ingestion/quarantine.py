"""Records that are dead letters regardless of content: too large, unreadable, or skipped by an operator."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import polars as pl
from deltalake import DeltaTable

from jobs.runtime.kafka.protocol.log_records import MAX_KEY_BYTES
from jobs.runtime.kafka.quarantine.isolated_records import Isolated, Place
from jobs.runtime.kafka.records import PLACE
from jobs.runtime.kafka.topic import Topic
from metering.vocabulary import Isolation, Reason

QUARANTINED = {*PLACE, "stamped_at", "is_broker_stamp", "replay_mark", "reception_mark", "key"}
"""The columns of `EventValidator.schema` that are filled for a record that is too large."""


def quarantine(records: pl.DataFrame, isolated: Mapping[str, Isolated], largest_bytes: int) -> pl.DataFrame:
    """Records of `EventValidator.schema` with the reason for isolated ones (by topic) and those above `largest_bytes`.

    A record that is too large keeps neither value nor columns, and only a short key, like an unreadable record.
    """
    rows = records
    places = isolated_places(isolated)
    if len(places):
        found = rows.join(places, on=list(PLACE), how="left", maintain_order="left")
        # It was not validated, so nothing that depends on its content is filled.
        violation = pl.when(pl.col("isolated").is_null()).then("violation")
        rows = found.with_columns(reason=pl.coalesce("isolated", "reason"), violation=violation).drop("isolated")
    is_large = rows.select(sizes() > largest_bytes).to_series() | (rows["reason"] == Reason.TOO_LARGE).fill_null(False)
    if not is_large.any():
        return rows
    blank = [pl.when(~is_large).then(pl.col(name)).alias(name) for name in rows.columns if name not in QUARANTINED]
    short_key = pl.col("key").bin.size() <= MAX_KEY_BYTES
    verdict = {"reason": Reason.TOO_LARGE.value, "violation": f"Weir: at most {largest_bytes} bytes, key and value"}
    return rows.with_columns(*blank, pl.when(~is_large | short_key).then("key").alias("key")).with_columns(
        pl.when(is_large).then(pl.lit(text)).otherwise(name).alias(name) for name, text in verdict.items()
    )


def isolated_places(isolated: Mapping[str, Isolated]) -> pl.DataFrame:
    """Where they are (PLACE), and the reason of each (`isolated`)."""
    places = [
        (topic, *place, reason.value) for topic, of_topic in isolated.items() for place, reason in of_topic.items()
    ]
    return pl.DataFrame(places, {**PLACE, "isolated": pl.String}, orient="row")


def verdicts(
    received: pl.DataFrame, validated: pl.DataFrame, known: Isolated
) -> Iterator[tuple[dict[Place, int], Isolation, str]]:
    """Records of one topic that are too large, or that Weir failed on: sizes by place, the reason, and the detail.

    `received` has the records as they came (partition, offset, key, value), `validated` their result in the same order
    (reason, violation): without the value where it is too large. Without those that are `known`.
    """
    rows = received.select("partition", "offset", sizes().alias("bytes"), validated["reason"], validated["violation"])
    for reason in (Isolation.TOO_LARGE, Isolation.UNREADABLE):
        found = rows.filter(reason=reason.value)
        places = found.select("partition", "offset", "bytes").iter_rows()
        size_bytes = {(p, at): size for p, at, size in places if (p, at) not in known}
        if size_bytes:
            details = [] if reason is Isolation.TOO_LARGE else found["violation"].drop_nulls().to_list()
            yield size_bytes, reason, next(iter(details), reason.value)


def quarantined_places(records: pl.DataFrame) -> list[Place]:
    """Where the records of one topic are that `quarantine` has given a reason."""
    return records.filter(is_quarantined()).select("partition", "offset").rows()


def is_quarantined() -> pl.Expr:
    """Whether a row (reason) is a dead letter regardless of its content."""
    return pl.col("reason").is_in(list(Isolation)).fill_null(value=False)


def skipped_in(journal: DeltaTable, topic: Topic, places: Collection[Place]) -> list[Place]:
    """The places in a topic that the journal has as skipped. Its files' statistics show which offsets they hold."""
    partitions, offsets = {place[0] for place in places}, {place[1] for place in places}
    rows = pl.scan_pyarrow_dataset(journal.to_pyarrow_dataset()).filter(
        pl.col("partition").is_in(list(partitions)),
        pl.col("offset").is_in(list(offsets)),
        topic=topic.name,
        reason=Isolation.SKIPPED.value,
    )
    return [place for place in rows.select("partition", "offset").collect().rows() if place in places]


def sizes() -> pl.Expr:
    """Bytes of key and value of each record."""
    return pl.col("value").bin.size().fill_null(0) + pl.col("key").bin.size().fill_null(0)
