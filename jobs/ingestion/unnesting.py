"""An event with an array → one event for each element, as if each had been sent alone with the surrounding members.

A member of an element is placed in `data`, and replaces a surrounding one of the same name. Null means absent, as
everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
import polars as pl

from jobs.ingestion import strict_json
from jobs.ingestion.conformance import REQUEST_ID
from jobs.ingestion.violations import Rule, json_of
from metering.contracts.model import Contract, Field, Path
from metering.contracts.unnest import COLUMN, MAX_ELEMENTS, MAX_UNNESTED_BYTES, element_text

OF_ELEMENTS: dict[str, pl.DataType | type[pl.DataType]] = {
    "record": pl.UInt32,
    COLUMN: pl.Int32,
    "has_own_request_id": pl.Boolean,
}
"""The number of the record, the element's place in it, and whether the element has its own request id."""
ELEMENT_BYTES = 512
"""What an element takes at least while its batch is made, beside its texts: few bytes of a record may be many rows."""
SEPARATOR = "/"
"""Between a request id that surrounds the array and the place of an element: `trace-1/3`."""


class NoElements(ValueError):
    """An event whose elements cannot be read; the message says what is wrong with its array."""


Members = Mapping[str, Any]


def elements_of(event: Members, array: Path, read: strict_json.Tree) -> tuple[Members, list[Members], int]:
    """Of an event (`strict_json.document`, read with `array`) the members of `data` around the array, and those of each
    element; and how many bytes of texts they are together.

    `read`: the members of `data` that are read. Raises NoElements.
    """
    around = without(event["data"], array[1:])
    elements = list(_members(event, array, read))
    size_bytes = len(elements) * _text_bytes(around) + sum(map(_text_bytes, elements))
    if size_bytes > MAX_UNNESTED_BYTES:
        text = f"at most {MAX_UNNESTED_BYTES} bytes of elements with what surrounds the array in each"
        raise NoElements(f"{text}; it has {size_bytes}")
    return around, elements, size_bytes


def _members(event: Members, array: Path, read: strict_json.Tree) -> Iterator[Members]:
    found: Any = event
    for name in array:
        found = found.get(name) if isinstance(found, dict) else None
    if found is None:
        raise NoElements("required")
    if found.__class__ is not list:
        # An object is a list of its members here, of another class.
        raise NoElements(f"type is array; it is {json_of(found)}")
    if not 1 <= len(found) <= MAX_ELEMENTS:
        raise NoElements(f"1 to {MAX_ELEMENTS} elements; it has {len(found)}")
    for element, item in enumerate(found, start=1):
        if (members := strict_json.members_of(item, read)) is None:
            raise NoElements(f"type of each element is object; {element_text(array, element)} is {json_of(item)}")
        yield {name: member for name, member in members.items() if member is not None}


def _text_bytes(members: Any) -> int:
    """Bytes (UTF-8) of the texts and numbers in a value."""
    pending, found = [members], 0
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            found += len(value.encode())
        elif isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, list | tuple):
            pending += value
    return found


def without(members: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """An object without the member at a path."""
    name, *below = path
    rest = {key: member for key, member in members.items() if key != name}
    if below and isinstance(within := members.get(name), dict):
        rest[name] = without(within, tuple(below))
    return rest


def whole_digests(elements: pl.DataFrame) -> pl.DataFrame:
    """Elements (record, content_digest, has_own_request_id; in order) → `record` and 64 bits of all its event says.

    An element that repeats the request id around it is of that request, and without it of one with its number.
    """
    of_records = elements.group_by("record", maintain_order=True).agg("content_digest", "has_own_request_id")
    hashed = b"".join(
        blake2b(np.array(digests, "<i8").tobytes() + bytes(has_own), digest_size=8).digest()
        for digests, has_own in of_records.select("content_digest", "has_own_request_id").iter_rows()
    )
    return of_records.select("record", pl.Series("content_digest", np.frombuffer(hashed, "<i8"), pl.Int64))


def request_id_of(contract: Contract) -> Field | None:
    """The field with the request id of an event; None where it is derived from the identity."""
    return next((field for field in contract.fields if field.column == REQUEST_ID), None)


def rules_of(contract: Contract) -> Iterator[Rule]:
    """A request id that gets the number of an element has room for it: of elements (`Paths.schema`, OF_ELEMENTS)."""
    field = request_id_of(contract)
    if field is None or field.max_bytes is None:
        return
    value, number = pl.col(field.pointer), pl.col(COLUMN).cast(pl.String)
    size = (value + SEPARATOR + number).str.len_bytes()
    is_long = ~pl.col("has_own_request_id") & (size > field.max_bytes).fill_null(value=False)
    text = f"at most {field.max_bytes} bytes with the number of an element"
    yield Rule(is_long, field.reason, f"{contract.type} {field.pointer}", text, field.pointer, value, field.kind)


def numbered(elements: pl.DataFrame, contract: Contract) -> pl.DataFrame:
    """Elements with the columns of the contract and OF_ELEMENTS → with the request id that each has in the journal."""
    given = pl.col(REQUEST_ID)
    made = pl.when("has_own_request_id").then(given).otherwise(given + SEPARATOR + pl.col(COLUMN).cast(pl.String))
    named = elements if request_id_of(contract) is None else elements.with_columns(made.alias(REQUEST_ID))
    return named.drop("record", "has_own_request_id")
