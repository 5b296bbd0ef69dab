"""The verdict of ingestion on events that replay dead letters, except whether they repeat others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

import polars as pl
import psycopg
from pydantic import ValidationError

from deployment.asking import asking_database
from deployment.errors import CannotRun
from jobs.ingestion.batches import rejected_whole
from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.documents import ANY_TOPIC, records_of
from jobs.ingestion.event_times import validated_by_reception
from jobs.ingestion.quarantine import quarantine
from jobs.ingestion.receptions import mark_texts
from jobs.ingestion.validator import one_each
from jobs.journal.elements import has_elements, is_event
from jobs.runtime.kafka.headers import Headers, text_of
from metering.vocabulary import Job

# The ids of keys are not configured.
_CONFIG = "SELECT config - 'erasure_keys' FROM jobs WHERE job = %s"


class Verdict(NamedTuple):
    """Why an event would be rejected, and what it breaks; None: it would be accepted, or found to repeat another.

    `first_received_at` is None where no mark counts.
    """

    reason: str | None
    violation: str | None
    source: str | None
    first_received_at: datetime | None
    event_time: datetime | None
    reception_mark: str | None
    types: Sequence[str | None]
    """Of its events, each once: several for a batch."""


def ingestion_of(postgres_url: str) -> IngestionConfig:
    """What ingestion was started with last; the default where it never was. Raises CannotRun for another version's."""
    with asking_database(postgres_url), psycopg.connect(postgres_url, connect_timeout=10) as database:
        row = database.execute(_CONFIG, [Job.INGESTION.value]).fetchone()
    try:
        return IngestionConfig.model_validate(row[0] if row and row[0] else {})
    except ValidationError as problem:
        raise CannotRun(
            "Ingestion runs with a configuration that this version of `weir` does not know: use the one that was "
            f"installed with it. ({problem.error_count()} fields)"
        ) from problem


def bytes_of(mark: str) -> bytes:
    """A mark as a header has it."""
    return mark.encode(errors="replace")


class Offline:
    """Validates by a configuration of ingestion. `now` is the time of receipt where no other is known."""

    def __init__(self, config: IngestionConfig, now: Callable[[], datetime]) -> None:
        self.config, self._validator, self._now = config, config.validator(), now

    def verdicts(
        self,
        events: Sequence[bytes],
        first_received_at: Sequence[datetime | None],
        marks: Sequence[str | None],
        headers: Sequence[Headers] | None = None,
        topics: Sequence[str] | None = None,
    ) -> Iterator[Verdict]:
        """The verdict on each event, sent with its headers: received now, first received at its given time or at a mark
        that counts. `topics`: where each is sent; None: each goes where its type belongs.
        """
        instant = pl.Datetime("us", "UTC")
        mark_headers = [None if mark is None else bytes_of(mark) for mark in marks]
        texts = None if headers is None else [text_of(of_event) for of_event in headers]
        records = records_of(events, texts, topics or [ANY_TOPIC] * len(events))
        read = pl.DataFrame(self._validator.validate(records))
        of_events = read.filter(is_event(read.schema))
        record = of_events["offset"]
        received = quarantine(of_events, {}, self.config.max_record_bytes).with_columns(
            pl.Series("first_received_at", first_received_at, instant).gather(record),
            mark_texts(pl.Series("reception_mark", mark_headers, pl.Binary)).gather(record),
            received_at=pl.lit(self._now()).cast(instant),
        )
        by_event = validated_by_reception(received, self.config)
        found = one_each(rejected_whole(by_event) if has_elements(by_event.schema) else by_event).sort("offset")
        types = by_event.group_by("offset").agg(types=pl.col("type").unique())
        verdicts = found.join(types, on="offset", how="left", maintain_order="left").select(Verdict._fields)
        return (Verdict(**row) for row in verdicts.iter_rows(named=True))
