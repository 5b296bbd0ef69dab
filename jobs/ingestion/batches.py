"""A record that is an array of events (CloudEvents' JSON batch format) → its events, each as if it had come alone.

All events of a record are accepted or none, so a rejected batch is one dead letter: the record as it came.
"""

from __future__ import annotations

import json

import polars as pl

from jobs.ingestion.formats import DOCUMENT, FORM_PROBLEM, documents, unframed
from jobs.ingestion.json_places import element_places
from jobs.journal.elements import ELEMENTS_OF_AN_EVENT, KIND, event_place
from jobs.runtime.kafka.headers import COLUMN as HEADERS
from jobs.runtime.kafka.records import PLACE
from metering.contracts.unnest import COLUMN
from metering.vocabulary import Isolation, Reason

MAX_EVENTS = ELEMENTS_OF_AN_EVENT
MAX_ROWS = 1_000
"""Events and elements of events in one record: as many rows as an event with an array may be."""
RECORD, EVENT = "number of the record", "place in the batch"
"""Columns of events on their way: of which record each is, and its place in that from 1 on, null if it came alone."""
OF_RECORD = ("key", "value", DOCUMENT, HEADERS)
"""What only the first row of a record has, beside the documents of its events."""
OF_WHOLE_RECORD = (*(reason.value for reason in Isolation), Reason.UNSTAMPED.value)
"""Reasons that are of no single event."""
_DECODER = json.JSONDecoder(parse_int=float)
"""Python refuses integers of more than 4,300 digits; no number is used here."""
_SPACES = b" \t\r\n"


def may_be_batches(values: pl.Series) -> pl.Series:
    """Which records or documents (binary) begin as an array, which no event does; behind a registry's frame, too."""
    rows = (~values.bin.starts_with(b"{")).fill_null(value=False).arg_true()
    is_array = [unframed(value).lstrip(_SPACES).startswith(b"[") for value in values.gather(rows)]
    return pl.Series([False], dtype=pl.Boolean).new_from_index(0, len(values)).scatter(rows, is_array)


def expanded(records: pl.DataFrame, values: pl.Series) -> pl.DataFrame:
    """Records (OF_RECORD, FORM_PROBLEM, …) and their documents → their events, with RECORD and EVENT.

    An event of a batch has its own text as its DOCUMENT, and of OF_RECORD only the first one has more. An array that
    cannot be read stays: the reader of events reports what is wrong with it.
    """
    records = records.with_row_index(RECORD).with_columns(pl.lit(None, pl.UInt32).alias(EVENT))
    found: list[tuple[int, int, bytes]] = []
    problems: dict[int, str] = {}
    for row in may_be_batches(values).arg_true():
        events = _events(values[row])
        if events is None:
            continue
        if not 1 <= len(events) <= MAX_EVENTS:
            count = "more" if events else "none"
            problems[row] = f"a batch has 1 to {MAX_EVENTS} events; it has {count}"
            continue
        found += [(row, place, event) for place, event in enumerate(events, start=1)]
    if problems:
        broken = pl.Series(list(problems.values()), dtype=pl.String)
        records = records.with_columns(records[FORM_PROBLEM].scatter(list(problems), broken))
    if not found:
        return records
    split = pl.DataFrame(found, {RECORD: pl.UInt32, EVENT: pl.UInt32, "event": pl.Binary}, orient="row")
    split = split.with_columns(pl.coalesce(documents(split["event"]), "event").alias("event"))
    rows = records.drop(EVENT, *OF_RECORD).join(split, on=RECORD, how="left", maintain_order="left_right")
    is_first = pl.col(EVENT).is_null() | (pl.col(EVENT) == 1)
    # By Arrow: behind each null that Polars gathers would be the whole record, a thousand times.
    first = rows.select(pl.when(is_first).then(RECORD)).to_series().to_arrow()
    once = [pl.Series(name, records[name].to_arrow().take(first), records.schema[name]) for name in OF_RECORD]
    return rows.with_columns(once).with_columns(pl.coalesce("event", DOCUMENT).alias(DOCUMENT)).drop("event")


def _events(value: bytes) -> list[bytes] | None:
    """The texts of an array's elements, at most one more than allowed; None where they cannot be separated."""
    found: list[bytes] = []
    try:
        text = value.decode()
        for _, start, end in element_places(text, _DECODER):
            found.append(text[start:end].encode())
            if len(found) > MAX_EVENTS:
                return found
    except (ValueError, RecursionError):
        return None
    return found


def numbered(validated: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Validated events and elements (`number` of the event, reason, violation, …; in order) of `expanded` events → the
    same of sound records with their `element`, and one row for each batch with an unsound one.
    """
    places = events.select(RECORD, EVENT).with_row_index("number")
    rows = validated.join(places, on="number", how="left", maintain_order="left")
    of_event = pl.col(COLUMN).fill_null(0) if COLUMN in rows.columns else pl.lit(0, KIND)
    before = (pl.col(EVENT).cast(pl.Int32) - 1) * ELEMENTS_OF_AN_EVENT
    of_batch = before + pl.max_horizontal(of_event, 1)
    is_batch = pl.col(EVENT).is_not_null()
    rows = rows.with_columns(pl.when(is_batch).then(of_batch).otherwise(of_event).cast(KIND).alias(COLUMN))
    size = pl.len().over(RECORD)
    has_too_many = is_batch & (size > MAX_ROWS) & pl.col("reason").is_null().all().over(RECORD)
    too_many = pl.format(
        f"CloudEvents over Kafka: at most {MAX_ROWS} events and elements of events in a record; it has {{}}", size
    )
    rows = rows.with_columns(
        pl.when(has_too_many).then(pl.lit(Reason.INVALID_DATA.value)).otherwise("reason").alias("reason"),
        pl.when(has_too_many).then(too_many).otherwise("violation").alias("violation"),
        has_too_many.alias("is of all"),
    )
    is_broken = pl.col("reason").is_not_null().any().over(RECORD) & is_batch
    broken = rows.filter(is_broken & pl.col("reason").is_not_null()).unique(RECORD, keep="first", maintain_order=True)
    heads = rows.filter(is_broken).unique(RECORD, keep="first", maintain_order=True).select(RECORD, head="number")
    rejected = broken.join(heads, on=RECORD, how="left").with_columns(
        pl.when("is of all").then("violation").otherwise(_in_event(pl.col(EVENT))).alias("violation"),
        pl.col("head").alias("number"),
        pl.lit(0, KIND).alias(COLUMN),
    )
    sound = rows.filter(~is_broken)
    found = pl.concat([sound, rejected.select(sound.columns)]).sort("number", COLUMN)
    return found.drop(RECORD, EVENT, "is of all")


def rejected_whole(events: pl.DataFrame) -> pl.DataFrame:
    """Events by their reception (PLACE, `element`, reason, violation, OF_RECORD, …) → one row for each record of which
    one is rejected: that one, with what is of the record.
    """
    several = pl.len().over(*PLACE) > 1
    is_broken = several & pl.col("reason").is_not_null().any().over(*PLACE)
    rows = events.filter(is_broken)
    if rows.is_empty():
        return events
    rows = rows.sort(*PLACE, COLUMN)
    head = rows.unique(list(PLACE), keep="first", maintain_order=True).select(*PLACE, *OF_RECORD)
    first = rows.filter(pl.col("reason").is_not_null()).unique(list(PLACE), keep="first", maintain_order=True)
    is_of_event = ~pl.col("reason").is_in(OF_WHOLE_RECORD)
    violation = pl.when(is_of_event).then(_in_event(event_place(pl.col(COLUMN)))).otherwise("violation")
    rejected = (
        first.drop(OF_RECORD)
        .join(head, on=list(PLACE), how="left")
        .with_columns(violation.alias("violation"), pl.lit(1, KIND).alias(COLUMN))
    )
    return pl.concat([events.filter(~is_broken), rejected.select(events.columns)])


def _in_event(place: pl.Expr) -> pl.Expr:
    """The violation with the event that it is of: its number, and its pointer, which counts from 0."""
    place = place.cast(pl.Int64)
    return pl.format("{}; in event {} (/{})", pl.col("violation"), place, place - 1)
