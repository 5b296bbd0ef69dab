"""Which marks of redriven dead letters count: a rule about rows of the journal, and about nothing else.

A mark counts if a row of a lower lsn is at the place that it names, was rejected, and had no mark itself: a record
that is redriven and rejected again is redriven with the first one's place. Then the event's time is measured from the
first one's reception. All other records are ordinary records.
"""

from __future__ import annotations

import re

import polars as pl

from jobs.journal.elements import ELEMENTS_OF_AN_EVENT, event_place, has_elements
from jobs.journal.families import family
from jobs.runtime.kafka.records import PLACE
from jobs.runtime.kafka.replay_mark import FORM
from jobs.streams import CatalogTopic
from metering.contracts.unnest import COLUMN
from metering.vocabulary import Disposition, Reason

INSTANT = pl.Datetime("us", "UTC")
REJECTED = {**PLACE, "lsn": pl.Int64, "received_at": INSTANT}
"""A rejected record without such a mark: its place, its lsn, when it was received first; null where no broker
said so."""
COUNTED: dict[str, pl.DataType | type[pl.DataType]] = {
    "lsn": pl.Int64,
    "replays_lsn": pl.Int64,
    "first_received_at": INSTANT,
}
"""A record whose mark counts: its lsn, that of the row which it names, and when that was received, if that is known."""


def text_of(marks: pl.Series) -> pl.Series:
    """Marks (binary) as the journal keeps them; null for what is none."""
    if marks.null_count() == len(marks):
        return pl.Series(marks.name, [None], pl.String).new_from_index(0, len(marks))
    texts = [None if mark is None else mark.decode("ascii", errors="replace") for mark in marks]
    return pl.Series(marks.name, [text if text and re.fullmatch(FORM, text) else None for text in texts], pl.String)


def places(marked: pl.DataFrame) -> pl.DataFrame:
    """Rows with a mark (lsn, replay_mark, …) → lsn and the PLACE that each names."""
    part = pl.col("replay_mark").str.extract
    return marked.select(
        "lsn",
        *[part(FORM, number).cast(kind).alias(name) for number, (name, kind) in enumerate(PLACE.items(), start=1)],
    )


def rejected(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of REJECTED among validated rows (reason); only of events: a change of the catalog is not redriven."""
    is_event = ~pl.col("topic").is_in([topic.value for topic in CatalogTopic])
    kept = rows.filter(pl.col("reason").is_not_null() & pl.col("replay_mark").is_null() & is_event)
    is_stamped = pl.col("reason") != Reason.UNSTAMPED
    received_at = pl.coalesce("first_received_at", pl.when(is_stamped).then("received_at"))
    return kept.with_columns(received_at=received_at).select(pl.col(name).cast(kind) for name, kind in REJECTED.items())


def counted(marked: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
    """Rows with a mark (lsn, replay_mark, …) whose mark counts (COUNTED), given all the rows (REJECTED) they name."""
    found = places(marked).join(known, on=list(PLACE), suffix="_first")
    return found.filter(pl.col("lsn_first") < pl.col("lsn")).select(
        "lsn", pl.col("lsn_first").alias("replays_lsn"), pl.col("received_at").alias("first_received_at")
    )


def repeating(valid: pl.DataFrame) -> pl.DataFrame:
    """The valid rows that may repeat others: events with a contract, and redriven or backfilled records.

    An event without one repeats no identity and is repeated by none, so it gets one that nothing else has.
    """
    has_contract = family().is_not_null()
    asking = valid.filter(has_contract | pl.col("replays_lsn").is_not_null())
    if asking["replays_lsn"].is_null().all():
        return asking
    own = pl.col("lsn").cast(pl.String).str.zfill(16).cast(pl.Binary)
    return asking.with_columns(identity=pl.when(has_contract).then("identity").otherwise(own))


def replayed_rows(rows: pl.DataFrame) -> pl.DataFrame:
    """Dead letters that were accepted (replays_lsn, first_lsn: the lsn of that row), of rows of the journal."""
    accepted = (pl.col("disposition") == Disposition.ACCEPTED) & pl.col("replays_lsn").is_not_null()
    return by_event(rows.filter(accepted)).select("replays_lsn", pl.col("lsn").alias("first_lsn"))


def by_event(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of events (replays_lsn, and `element` where they have that), where those of one batch name different ones.

    Of each event of a redriven batch one is accepted. The first has the lsn of the dead letter, any other a negative
    number that no row has.
    """
    if not has_elements(rows.schema):
        return rows
    place, lsn = event_place(pl.col(COLUMN)), pl.col("replays_lsn").cast(pl.Int64)
    return rows.with_columns(replays_lsn=pl.when(place > 1).then(-lsn * ELEMENTS_OF_AN_EVENT - place).otherwise(lsn))
