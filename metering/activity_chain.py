"""The hash chain of the activity log (migration 0075), and what is wrong with it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any


@dataclass(frozen=True)
class Entry:
    """One row: `hash` is SHA-256, in hexadecimal, of `previous` (the hash of the entry before it) and `document`."""

    number: int
    document: str
    previous: str
    hash: str


@dataclass
class Chain:
    """Entries that are verified one after the other, in the order of their numbers."""

    count: int = 0
    last: Entry | None = None

    def faults(self, entries: Iterable[Entry], wanted: Iterable[str] = ()) -> Iterator[str]:
        """A sentence for each fault. `wanted`: hashes of entries that must be there."""
        missing = set(wanted)
        for entry in entries:
            yield from self._of(entry)
            self.count += 1
            self.last = entry
            missing.discard(entry.hash)
        for hash_ in sorted(missing):
            yield f"no entry of the activity log has the hash {hash_}: entries were removed, or the chain was rewritten"

    def _of(self, entry: Entry) -> Iterator[str]:
        before = self.last or Entry(0, "", "", "")
        if entry.number > before.number + 1:
            first, last = before.number + 1, entry.number - 1
            yield f"entry {first} is missing" if first == last else f"entries {first} to {last} are missing"
        if sha256((entry.previous + entry.document).encode()).hexdigest() != entry.hash:
            yield f"entry {entry.number} was changed: it is not what its hash says"
        elif _number(entry.document) != entry.number:
            yield f"entry {entry.number} is another one: its document has the number {_number(entry.document)}"
        if entry.number == before.number + 1 and entry.previous != before.hash:
            yield f"entry {entry.number} does not follow entry {before.number}: it has another hash of the entry before"


def parsed(document: str) -> Any:
    """A JSON text as an object. Numbers keep their digits: fractions, and what Python takes for no int, are texts."""
    return json.loads(document, parse_float=str, parse_int=_whole)


def _whole(digits: str) -> int | str:
    return int(digits) if len(digits) < sys.int_info.default_max_str_digits else digits


def _number(document: str) -> object:
    try:
        return parsed(document).get("number")
    except (ValueError, AttributeError, RecursionError):
        return None
