"""What became of an event, by the records that were received of it."""

from __future__ import annotations

import polars as pl

from jobs.explain.documents import Document
from metering.vocabulary import Disposition

SHOWN = ("type", "account", "event_time", "received_at", "first_received_at", "reason", "violation")


def event_object(source: str, id_: str, records: pl.DataFrame) -> Document:
    """`source, id, disposition`, SHOWN, `request_ids`, and how many `duplicates` and `conflicts` came of the event.

    `records` (RECORD) have at least one of it. They are of its first accepted record; where there is none, it is a dead
    letter by the last rejected one; where the records that it repeats may not be shown, of the last repeat.
    """
    mine = records.filter(pl.col("source") == source, pl.col("id") == id_).sort("lsn")
    by_kind = {kind: mine.filter(disposition=kind.value) for kind in Disposition}
    accepted, rejected = by_kind[Disposition.ACCEPTED], by_kind[Disposition.REJECTED]
    stands = (accepted.head(1) if len(accepted) else (rejected if len(rejected) else mine).tail(1)).row(0, named=True)
    place = (pl.col("topic") == stands["topic"], pl.col("partition") == stands["partition"])
    parts = mine.filter(*place, pl.col("offset") == stands["offset"])
    return {
        "source": source,
        "id": id_,
        "disposition": stands["disposition"],
        **{name: stands[name] for name in SHOWN},
        "request_ids": parts["request_id"].drop_nulls().unique(maintain_order=True).to_list(),
        "duplicates": _records(by_kind[Disposition.DUPLICATE]),
        "conflicts": _records(by_kind[Disposition.CONFLICT]),
    }


def _records(rows: pl.DataFrame) -> int:
    """Of several rows of a record, as of an event with several calls, one."""
    return rows.select(pl.struct("topic", "partition", "offset").n_unique()).item() if len(rows) else 0
