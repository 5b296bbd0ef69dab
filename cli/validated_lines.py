"""Events of a file, each validated as ingestion validates a record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cli.event_hints import likely_type, missing_quantities, unread_fields
from cli.lines import numbered, opened
from cli.output import Row
from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.documents import validated, violation_parts
from jobs.ingestion.reading import MAX_BLOCK_BYTES
from jobs.ingestion.validator import EventValidator
from metering.contracts.model import Contract
from metering.texts import encodable

COLUMNS = ("file", "line", "type", "disposition", "reason", "contract", "path", "rule", "unread", "hint")
VALID, INVALID = "valid", "invalid"
UNKNOWN = "unknown type: kept and counted, on no bill"
BATCH_EVENTS = 2_000
"""And at most MAX_BLOCK_BYTES, or one line. A larger line is not read beyond the byte that shows it."""


class ValidatedLines:
    """Validates files, and counts the results."""

    def __init__(self, contracts: Mapping[str, Contract]) -> None:
        self._contracts = contracts
        self._validator = EventValidator(contracts, takes_batches=True)
        self._largest_bytes = IngestionConfig().max_record_bytes
        self.counts: Counter[str] = Counter()
        """By VALID, INVALID and, of the valid, UNKNOWN."""

    @property
    def summary(self) -> str:
        """How many were what."""
        unknown = self.counts[UNKNOWN]
        more = f" ({unknown} of a type without a contract: kept and counted, on no bill)" if unknown else ""
        return f"{self.counts[VALID]} valid{more}, {self.counts[INVALID]} invalid"

    def rows(self, file: str) -> Iterator[Row]:
        """Rows with the keys COLUMNS, one for each line; `-` is standard input. Raises FileRefused for no file."""
        with opened(file) as lines:
            for several in _several(numbered(lines, MAX_BLOCK_BYTES + 1)):
                events = self._verdicts([document for _, document in several])
                for (line, document), event in zip(several, events, strict=True):
                    row = {"file": encodable(file), "line": line, **self._row(event)}
                    yield row | self._hints(document, event)

    def _verdicts(self, documents: Sequence[bytes]) -> Iterable[Mapping[str, Any]]:
        rows = validated(documents, self._validator, self._largest_bytes)
        return rows.select("type", "reason", "violation").iter_rows(named=True)

    def _row(self, event: Mapping[str, Any]) -> Row:
        contract = self._contracts.get(event["type"] or "")
        if event["reason"] is None:
            self.counts.update([VALID] if contract else [VALID, UNKNOWN])
            name, rule = (contract.type, None) if contract else (None, UNKNOWN)
            violation: dict[str, str | None] = {"contract": name, "path": None, "rule": rule}
        else:
            self.counts[INVALID] += 1
            violation = violation_parts(event["violation"], contract)
        disposition = VALID if event["reason"] is None else INVALID
        return {"type": event["type"], "disposition": disposition, "reason": event["reason"], **violation}

    def _hints(self, document: bytes, event: Mapping[str, Any]) -> dict[str, str | None]:
        """`unread` and `hint` of a valid event; for an invalid one its rule says what to change."""
        contract = self._contracts.get(event["type"] or "")
        if event["reason"] is not None:
            return {"unread": None, "hint": None}
        if contract is None:
            likely = likely_type(event["type"], self._contracts)
            return {"unread": None, "hint": likely and f"did you mean {likely}?"}
        return {"unread": unread_fields(document, contract), "hint": missing_quantities(document, contract)}


def _several(documents: Iterable[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    """The documents, as many together as are validated at once."""
    several: list[tuple[int, bytes]] = []
    size_bytes = 0
    for number, document in documents:
        if several and (len(several) == BATCH_EVENTS or size_bytes + len(document) > MAX_BLOCK_BYTES):
            yield several
            several, size_bytes = [], 0
        several.append((number, document))
        size_bytes += len(document)
    if several:
        yield several
