"""The identities that were accepted within the dedupe horizon: ingestion's state, derived from the journal.

Whether an event repeats another is a fact of the journal (`repeats`). Memory only decides what the answer costs: it has
the rows of the exact horizon; for older rows, and those without room, it has filters, made when first needed. Rows that
pass a filter are read from the journal. So the answer is the same however the input was cut, after any restart, and
with any amount of memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Protocol

import polars as pl

from jobs.ingestion.identity_segment import ENTRY_BYTES, MAX_HALVINGS, Asking, Segment, Span
from jobs.ingestion.repeats import ENTRY, REPLAYED, Horizons, repeats
from jobs.runtime.delta.table import microseconds_of
from jobs.runtime.job import Counts
from monitoring import metrics
from monitoring.instruments import GaugeMetric

SEGMENT_LSNS = 1 << 20
"""Rows of the journal in one segment: 35 minutes at 500 events/s, and 46 MB when it is read."""
NONE_REPLAYED = pl.DataFrame(schema=REPLAYED)


class AcceptedIdentities(Protocol):
    """What the index derives itself from."""

    def spans(self) -> Iterable[Span]:
        """What is known of all rows without reading them."""

    def read(self, first_lsn: int, end_lsn: int) -> pl.DataFrame:
        """Accepted rows (ENTRY) with lsn in [first_lsn, end_lsn)."""


class IdentityIndex:
    """Accepted identities in segments of `lsn`. It takes `memory_bytes`, and two segments more while it reads one."""

    def __init__(
        self, journal: AcceptedIdentities, horizons: Horizons, memory_bytes: int, segment_lsns: int = SEGMENT_LSNS
    ) -> None:
        self._journal = journal
        self._horizons = horizons
        self._memory_bytes = memory_bytes
        self._segment_lsns = segment_lsns
        self._segments: dict[int, Segment] = {}
        self._open = self._segment(0)
        self._near_us: int | None = None
        self._looked_back = False
        self._uses = 0
        self._reads = 0
        self._dropped = 0

    def __len__(self) -> int:
        return sum(segment.identities for segment in self._all())

    def _all(self) -> list[Segment]:
        """A copy, because reporting runs in another thread than adding segments."""
        return list(self._segments.values())

    def restore(self, next_lsn: int, frontier: datetime | None) -> None:
        """Derive the index from a journal that ends before `next_lsn`; rows without room are read when needed."""
        for span in self._journal.spans():
            for number in range(span.first_lsn // self._segment_lsns, span.last_lsn // self._segment_lsns + 1):
                self._segment(number).widen(span.latest_us, span.days)
        self._open = self._segment(next_lsn // self._segment_lsns)
        first_lsn = self._open.number * self._segment_lsns
        self._open.rows = [self._journal.read(first_lsn, next_lsn)]
        if frontier is None:
            return
        self.forget(frontier)
        newest_first = sorted(self._segments.values(), key=lambda segment: -segment.number)
        for segment in newest_first:
            if self._row_bytes() + self._segment_lsns * ENTRY_BYTES > self._memory_bytes // 2:
                break
            if segment.rows is None and self._is_near(segment):
                self._read(segment)

    def find_repeats(self, batch: pl.DataFrame, redriven: pl.DataFrame = NONE_REPLAYED) -> pl.DataFrame:
        """The rows of `batch` (CANDIDATE, in lsn order) that repeat an accepted record, with `first_lsn` and `same`.

        `redriven`: the accepted rows of dead letters that the batch replays (REPLAYED).

        Columns: lsn, first_lsn (the lowest that it repeats), same (whether the content is the same; always for an
        accepted dead letter, however it was edited). All other rows are to be accepted. The index does not change.
        """
        accepted = self._accepted_like(batch)
        replays = not batch["replays_lsn"].is_null().all()
        # Most records share their identity with nothing, so nothing of them has to be compared.
        rest, found = _suspected(batch, accepted), list[pl.DataFrame]()
        while True:
            candidates = rest
            if replays:
                replayed = rest.join(redriven, on="replays_lsn").select("lsn", "first_lsn", same=pl.lit(True))
                found.append(replayed)
                rest = rest.join(replayed, on="lsn", how="anti", maintain_order="left")
                # What an earlier one of the same dead letter becomes decides about the others.
                candidates = rest.filter(pl.col("replays_lsn").is_null() | pl.col("replays_lsn").is_first_distinct())
            pairs = repeats(candidates, accepted).unique("lsn", keep="first", maintain_order=True)
            found.append(pairs)
            rest = rest.join(pairs, on="lsn", how="anti", maintain_order="left")
            firsts = rest.unique(["high", "low"], keep="first", maintain_order=True)
            if replays:
                firsts = firsts.join(candidates, on="lsn", how="semi", maintain_order="left")
            if len(firsts) == len(rest):
                return pl.concat(found)
            # Each round accepts one more record of every identity that is left; the next are its repeats or new again.
            accepted = pl.concat([accepted, firsts.select(*ENTRY)]) if replays else firsts.select(*ENTRY)
            redriven = firsts.select("replays_lsn", first_lsn="lsn")
            rest = rest.join(firsts, on="lsn", how="anti", maintain_order="left")

    def _accepted_like(self, batch: pl.DataFrame) -> pl.DataFrame:
        asking = Asking(batch)
        parts = [batch.select(*ENTRY).clear()]
        for segment in self._segments.values():
            if segment is self._open:
                parts.append(pl.concat([*parts[:1], *(segment.rows or [])]).join(batch, on="high", how="semi"))
            elif segment.latest_us >= asking.first_us:
                segment.was_looked_up = True
                if len(rows := segment.may_hold(asking)):
                    parts.append(self._page(segment).join(batch[rows], on="high", how="semi"))
                    self._fit()
        return pl.concat(parts).sort("lsn")

    def _page(self, segment: Segment) -> pl.DataFrame:
        self._uses += 1
        segment.used = self._uses
        if segment.rows is None:
            self._looked_back = segment.is_page = True
            self._reads += 1
            self._read(segment)
        return segment.frame()

    def add(self, accepted: pl.DataFrame) -> None:
        """Remember accepted records (ENTRY, in lsn order, above all that are known)."""
        numbered = accepted.with_columns((pl.col("lsn") // self._segment_lsns).alias("segment"))
        for (number,), part in numbered.partition_by("segment", as_dict=True, include_key=False).items():
            if number != self._open.number:
                closed, self._open = self._open, self._segment(int(number))
                if closed.rows:
                    closed.make_filter()
            self._open.add(part)

    def forget(self, frontier: datetime | None) -> None:
        """Drop identities that no record received at or after `frontier` can repeat, and those without room."""
        if frontier is None:
            self._fit()
            return
        self._near_us = microseconds_of(frontier - self._horizons.exact)
        oldest_us = microseconds_of(frontier - self._horizons.whole)
        for segment in list(self._segments.values()):
            if segment is self._open or self._is_near(segment):
                continue
            if segment.latest_us < oldest_us and not segment.is_page:
                # Only who is of the past may still ask for it: then as many as come with it do.
                if segment.was_looked_up:
                    segment.was_looked_up, segment.kept_until_us = (
                        False,
                        microseconds_of(frontier + self._horizons.exact),
                    )
                if segment.kept_until_us <= microseconds_of(frontier):
                    segment.drop()
                elif segment.rows is not None:
                    self._leave(segment)
            elif segment.rows is not None and not segment.is_page:
                self._leave(segment)
        self._fit()

    def _leave(self, segment: Segment) -> None:
        if self._looked_back:
            segment.make_filters_by_day()
            segment.release()
        else:  # Nothing older has been looked up: it is read when needed.
            segment.drop()

    def status(self) -> dict[str, Any]:
        """Identities and bytes in memory, and segments of the exact horizon that have no room."""
        missing = [s for s in self._all() if s.rows is None and self._is_near(s)]
        return {
            "identities": len(self),
            "identity_memory_bytes": self._row_bytes() + self._filter_bytes(),
            "identity_segments_evicted": len(missing),
        }

    def gauges(self) -> dict[GaugeMetric, float]:
        """The same for Prometheus."""
        status = self.status()
        return {
            metrics.IDENTITIES: status["identities"],
            metrics.IDENTITY_MEMORY: status["identity_memory_bytes"],
            metrics.IDENTITIES_EVICTED: status["identity_segments_evicted"],
        }

    def counts(self) -> Counts:
        """Counts since the last call: segments read for look-ups, segments whose filters were dropped."""
        counts: Counts = {
            (metrics.IDENTITY_READS,): self._reads,
            (metrics.IDENTITY_FILTERS_DROPPED,): self._dropped,
        }
        self._reads = self._dropped = 0
        return counts

    def _segment(self, number: int) -> Segment:
        return self._segments.setdefault(number, Segment(number))

    def _read(self, segment: Segment) -> None:
        first_lsn = segment.number * self._segment_lsns
        segment.rows = [self._journal.read(first_lsn, first_lsn + self._segment_lsns)]
        if segment.filters is None and self._is_near(segment):
            segment.make_filter()
        elif segment.filters is None:
            segment.make_filters_by_day()

    def _is_near(self, segment: Segment) -> bool:
        return self._near_us is not None and segment.latest_us >= self._near_us

    def _row_bytes(self) -> int:
        return len(self) * ENTRY_BYTES

    def _filter_bytes(self) -> int:
        return sum(segment.filter_bytes for segment in self._all())

    def _fit(self) -> None:
        """Bring memory within its bounds: rows to half of it, filters to what rows leave."""
        over = self._row_bytes() - self._memory_bytes // 2
        while over > 0 and (held := [s for s in self._segments.values() if s.rows is not None and s is not self._open]):
            # First what is older than the exact horizon; of each the least used, then the oldest.
            victim = min(held, key=lambda s: (self._is_near(s), s.used, s.number))
            over -= victim.identities * ENTRY_BYTES
            victim.release()
        over = self._row_bytes() + self._filter_bytes() - self._memory_bytes
        while over > 0 and (filtered := [s for s in self._segments.values() if s.filters is not None]):
            victim = min(filtered, key=lambda s: (s.halvings, s.number))
            before = victim.filter_bytes + victim.identities * ENTRY_BYTES
            if victim.halvings < MAX_HALVINGS:
                victim.halve()
            else:
                victim.drop()
                self._dropped += 1
            over -= before - victim.filter_bytes - victim.identities * ENTRY_BYTES


def _suspected(batch: pl.DataFrame, accepted: pl.DataFrame) -> pl.DataFrame:
    """The rows of `batch` that may be a repeat or have one: half an identity is there twice, or a row is replayed."""
    is_there_twice = pl.col("high").is_duplicated() | pl.col("high").is_in(accepted["high"].implode())
    return batch.filter(is_there_twice | pl.col("replays_lsn").is_not_null())
