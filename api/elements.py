"""The JSON documents in a request's body, byte for byte: a single one, those of an array, or one a line.

Python's reader finds where each ends. The validator, which is stricter, decides whether it is a valid event.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from jobs.ingestion.json_places import element_places, member_places

_BYTES_OF_LINES_END = b"\r"


class NotJson(ValueError):
    """The documents of a body cannot be separated; the message says where."""


@dataclass(frozen=True)
class Element:
    """One document as it was sent, and its value by Python's reader; None where that fails."""

    document: bytes
    parsed: Any


def single(body: bytes) -> Element:
    """The body as one document, whatever it is."""
    try:
        return Element(body, _DECODER.decode(body.decode()))
    except (ValueError, RecursionError):
        return Element(body, None)


def is_document(body: bytes) -> bool:
    """Whether it is exactly one JSON document, so that embedding it yields one document."""
    try:
        _DECODER.decode(body.decode())
    except (ValueError, RecursionError):
        return False
    return True


def single_or_array(body: bytes, most: int | None = None) -> list[Element]:
    """An array's elements, or the body as one document; none for a blank body. Raises NotJson for a broken array.

    Here and below, elements beyond `most` are not read: finding a million would delay all other requests.
    """
    start = body.lstrip(b" \t\r\n")[:1]
    if start == b"[":
        return array(body, most)
    return [single(body)] if start else []


def array(body: bytes, most: int | None = None) -> list[Element]:
    """The elements of an array. Raises NotJson."""
    try:
        text = body.decode()
        found = islice(element_places(text, _DECODER), most)
        return [Element(text[start:end].encode(), parsed) for parsed, start, end in found]
    except UnicodeDecodeError as error:
        raise NotJson(f"not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise NotJson("nested too deeply to find where each event ends") from None
    except json.JSONDecodeError as error:
        raise NotJson(f"no JSON array: {error.msg} at character {error.pos}") from None


def lines(body: bytes, most: int | None = None) -> list[Element]:
    """One document a line (NDJSON); blank lines are skipped."""
    rows = (line.removesuffix(_BYTES_OF_LINES_END) for line in body.split(b"\n"))
    return [single(row) for row in islice((row for row in rows if row.strip()), most)]


def members_of(text: str) -> Iterator[tuple[str, int, int]]:
    """The members of an object that Python's reader takes: the name, and where the value begins and ends."""
    return member_places(text, _DECODER)


# Python refuses integers of more than 4,300 digits; no number is used here.
_DECODER = json.JSONDecoder(parse_int=float)
