"""The parts of tokens that shipped contracts also read: cache writes, reasoning, audio and images.

An installation that began without these parts keeps metering without them. Its own contract wins where it fills one of
these columns or describes the field, so its bills do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from metering.contracts.includes import INCLUDES
from metering.meters import DETAILS, columns_of

COLUMNS = frozenset(columns_of(DETAILS))
_EARLIER = frozenset({("ai.inference.completion.v2", "reasoning_tokens")})
"""(Type, column) that shipped contracts read before the others were added."""
_EARLIER_INCLUDED = frozenset({"cache_write_tokens", "reasoning_tokens"})
"""What their conventions named before: contracts of one's own could fill it."""

Document = Mapping[str, Any]
Path = tuple[str, ...]


def has_details(document: Document) -> bool:
    """Whether a shipped contract reads these parts, or its convention names them."""
    columns = {column for _, column in _fields(document)}
    parts = {part for listed in document.get(INCLUDES, {}).values() for part in listed}
    return not (COLUMNS - _EARLIER_INCLUDED).isdisjoint(columns | parts)


def without_details(documents: Mapping[str, Document]) -> dict[str, Document]:
    """The shipped contracts as they were before these parts were read."""
    return {name: _as_before(_without(document, lambda _path, _column: True)) for name, document in documents.items()}


def yielding(documents: Mapping[str, Document], own: Iterable[Any]) -> dict[str, Document]:
    """The shipped contracts without those parts that `own` contracts have a field for: its path, or its column."""
    paths: set[Path] = set()
    columns: set[str] = set()
    for path, column in (field for document in own for field in _fields(document)):
        if column is not None:
            paths |= {path[:length] for length in range(1, len(path) + 1)}
            columns.add(column)
    return {
        name: _without(document, lambda path, column: path in paths or column in columns)
        for name, document in documents.items()
    }


def _as_before(document: Document) -> Document:
    if INCLUDES not in document:
        return document
    later = COLUMNS - _EARLIER_INCLUDED
    includes = {whole: [part for part in parts if part not in later] for whole, parts in document[INCLUDES].items()}
    return {**document, INCLUDES: includes}


def _without(document: Document, is_dropped: Callable[[Path, str], bool]) -> Document:
    """The document without those fields of these parts for which the condition holds."""

    def rest(schema: Document, path: Path) -> Document:
        if not isinstance(schema.get("properties"), Mapping):
            return schema
        found = {
            name: rest(member, (*path, name))
            for name, member in schema["properties"].items()
            if not (
                (column := member.get("x-weir-column")) in COLUMNS
                and (document["$id"], column) not in _EARLIER
                and is_dropped((*path, name), column)
            )
        }
        return {**schema, "properties": found}

    return rest(document, ())


def _fields(schema: Any, path: Path = ()) -> Iterator[tuple[Path, str | None]]:
    """(Path, column) of each value that a document describes; it need not be a contract. None: it names no column."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    for name, member in properties.items() if isinstance(properties, Mapping) else ():
        if not isinstance(name, str) or not isinstance(member, Mapping):
            continue
        if isinstance(member.get("properties"), Mapping):
            yield from _fields(member, (*path, name))
        else:
            column = member.get("x-weir-column")
            yield (*path, name), column if isinstance(column, str) else None
