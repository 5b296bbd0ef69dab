"""The dead letters to redrive: one for each record that was first rejected, as it was last sent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from deltalake import DeltaTable

from cli.dead_letter_rows import DeadLetterQuery, origin_of, replayed_as, where
from cli.journal_table import rows_in_order
from jobs.journal.erasing import is_erased_violation
from jobs.runtime.kafka.headers import COLUMN, Headers, headers_of
from jobs.runtime.kafka.replay_mark import Rejected
from jobs.streams import CatalogTopic
from metering.vocabulary import Reason

_FOUND = ("lsn", "replays_lsn", "replay_mark")
_READ = (
    *(*_FOUND, "topic", "partition", "offset", "received_at", "first_received_at"),
    *("reception_mark", "reason", "violation"),
)


@dataclass(frozen=True)
class Letter:
    """A rejected record. `first` is the place of the first rejected record, whose mark it is sent with.

    `first_received_at` is when that record was received; None without a broker's stamp.
    """

    place: Rejected
    first: Rejected
    received_at: datetime
    first_received_at: datetime | None
    reason: str
    violation: str | None
    key: bytes | None
    value: bytes | None
    problem: str | None = None
    """Why it cannot be sent again; None: it can."""
    reception_mark: str | None = None
    """Its mark of the first reception, if it is of the past."""
    headers: Headers = ()
    """As they were received."""


class DeadLetters:
    """Those of one version of the journal that a query selects."""

    def __init__(self, journal: DeltaTable, query: DeadLetterQuery) -> None:
        self._journal, self._where = journal, where(query)
        back = replayed_as(journal)
        last: dict[int, int] = {}
        self.back: list[tuple[Rejected, str, int]] = []
        """The places of accepted ones, why they were rejected, and the lsn of the accepted row."""
        for row in rows_in_order(journal, _READ, self._where):
            if (as_lsn := back.get(origin := origin_of(row))) is None:
                # What is sent again and rejected again was edited since.
                last[origin] = row["lsn"]  # type: ignore[assignment]
            else:
                self.back.append((_place(row), str(row["reason"]), as_lsn))
        self._chosen = set(last.values())

    def __len__(self) -> int:
        return len(self._chosen)

    def __iter__(self) -> Iterator[Letter]:
        """Those that were not accepted yet, in the order of record; the same again each time."""
        # An earlier release kept no headers.
        kept = [field.name for field in self._journal.schema().fields if field.name == COLUMN]
        for row in rows_in_order(self._journal, (*_READ, "key", "value", *kept), self._where):
            if row["lsn"] in self._chosen:
                yield _letter(row)


def _letter(row: dict[str, Any]) -> Letter:
    place, mark = _place(row), row["replay_mark"]
    is_again = row["replays_lsn"] is not None
    return Letter(
        place,
        Rejected.named(mark) if is_again else place,
        row["received_at"],
        row["first_received_at"] if is_again else _reception(row),
        row["reason"],
        row["violation"],
        row["key"],
        row["value"],
        _problem(row),
        row["reception_mark"],
        headers_of(row.get(COLUMN)),
    )


def _place(row: dict[str, Any]) -> Rejected:
    return Rejected(row["topic"], row["partition"], row["offset"])


def _reception(row: dict[str, Any]) -> datetime | None:
    received_at = None if row["reason"] == Reason.UNSTAMPED else row["received_at"]
    found: datetime | None = row["first_received_at"] or received_at
    return found


def _problem(row: dict[str, Any]) -> str | None:
    if row["topic"] in set(CatalogTopic):
        return "a change of the catalog is made again by `weir catalog apply`, which sends only what can be applied"
    if row["replay_mark"] is not None and row["replays_lsn"] is None:
        return "it came with a mark that names no dead letter, so none can name it: send its event by `weir produce`"
    if row["value"] is None and is_erased_violation(row["violation"]):
        return str(row["violation"])
    if row["value"] is None:
        return "the journal has no value of it: it was empty, or too large to be kept; only its producer can send it"
    return None
