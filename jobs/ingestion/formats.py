"""Records in other forms than one plain JSON document → that document, as structured mode has the event.

So nothing behind this knows of forms: identity, content and the bill are those of the same event sent as plain JSON.
What is not one of these forms stays as it is, and the validator says what is wrong with it.
"""

from __future__ import annotations

import base64
import binascii

import polars as pl

from jobs.ingestion import strict_json
from metering.framing import FRAME_BYTES, MAGIC_BYTE

DATA, BASE64 = "data", "data_base64"
_BASE64_KEY = f'"{BASE64}"'.encode()
_SPACES = b" \t\r\n"


def documents(values: pl.Series) -> pl.Series:
    """Values of records (binary) → the documents that their events are in structured mode; null where that is the
    value itself.
    """
    may_differ = values.bin.starts_with(MAGIC_BYTE) | values.bin.contains(_BASE64_KEY)
    found = pl.Series([None], dtype=pl.Binary).new_from_index(0, len(values))
    rows = may_differ.fill_null(value=False).arg_true()
    if rows.is_empty():
        return found
    made = [_document(value) for value in values.gather(rows)]
    return found.scatter(rows, pl.Series(made, dtype=pl.Binary))


def _document(value: bytes) -> bytes | None:
    document = with_plain_data(unframed(value))
    return None if document == value else document


def unframed(value: bytes) -> bytes:
    """A value without the frame of a schema registry, where a JSON document follows."""
    is_framed = value.startswith(MAGIC_BYTE) and value[FRAME_BYTES:].lstrip(_SPACES).startswith(b"{")
    return value[FRAME_BYTES:] if is_framed else value


def with_plain_data(document: bytes) -> bytes:
    """An event whose `data_base64` holds a JSON document → the event with it as `data`; any other as it is.

    It has either of the two, or neither (CloudEvents' JSON format, 3.1). A null is absent.
    """
    if _BASE64_KEY not in document:
        return document
    try:
        text = document.decode()
        places = {name: (start, end) for name, start, end in strict_json.places_of(text)}
        members = {name: strict_json.value_of(text[start:end]) for name, (start, end) in places.items()}
        packed = members.get(BASE64)
        if packed.__class__ is not str or members.get(DATA) is not None or not is_json(members.get("datacontenttype")):
            return document
        data = base64.b64decode(packed, validate=True).decode()
        strict_json.value_of(data)
    except (ValueError, binascii.Error):
        return document
    start, end = places[BASE64]
    if DATA not in places:
        return f'{text[:start]}null,"{DATA}":{data}{text[end:]}'.encode()
    changes = sorted([(start, end, "null"), (*places[DATA], data)], reverse=True)
    for start, end, instead in changes:
        text = text[:start] + instead + text[end:]
    return text.encode()


def is_json(media_type: object) -> bool:
    """Whether data of this media type (`datacontenttype`) is JSON, which is what it is if there is none."""
    if media_type is None:
        return True
    if not isinstance(media_type, str):
        return False
    name = media_type.partition(";")[0].strip().lower()
    return name in ("", "application/json", "text/json") or name.endswith("+json")
