"""Records in other forms than one plain JSON document → that document, as structured mode has the event.

So nothing behind this knows of forms: identity, content and the bill are those of the same event sent as plain JSON.
What is not one of these forms stays as it is, and the validator says what is wrong with it.
"""

from __future__ import annotations

import base64
import binascii
import json
import re

import polars as pl

from jobs.ingestion import strict_json
from jobs.ingestion.violations import json_of
from jobs.runtime.kafka.headers import COLUMN as HEADERS
from jobs.runtime.kafka.headers import (
    CONTENT_TYPE,
    SPECVERSION,
    Headers,
    has_structured_type,
    headers_of,
    size_bytes,
    text_of,
)
from jobs.runtime.kafka.headers import MAX_BYTES as MAX_HEADERS_BYTES
from metering.framing import FRAME_BYTES, MAGIC_BYTE, frame_problem

DOCUMENT, FORM_PROBLEM = "plain document", "form problem"
"""Columns of records: the event in structured mode, null where that is the value itself; and why none can be made.

No contract can declare columns of these names.
"""
DATA, BASE64, DATA_TYPE = "data", "data_base64", "datacontenttype"
_PREFIX = "ce_"
_SPECVERSION_KEY = f'"key":"{SPECVERSION}"'
"""In a text of headers: all records in binary mode have it."""
_ATTRIBUTE = re.compile(r"[a-z0-9]+")
_BASE64_KEY = f'"{BASE64}"'.encode()
_DECODER = json.JSONDecoder(parse_int=float)
"""Python refuses integers of more than 4,300 digits; no number is used here."""
_SPACES = b" \t\r\n"


def form_bytes() -> pl.Expr:
    """Bytes that each record (DOCUMENT, headers) takes on the driver besides its key and value."""
    return pl.col(DOCUMENT).bin.size().fill_null(0) + pl.col(HEADERS).str.len_bytes().fill_null(0)


class NoEventError(ValueError):
    """A record in binary mode of which no event can be made; the message says why."""


def of_records(values: pl.Series, headers: pl.Series) -> tuple[pl.Series, pl.Series, pl.Series]:
    """Values of records (binary) and their headers (`headers.text_of`) → the headers that are kept, the documents that
    their events are in structured mode, and what is wrong with the form of others.

    A document is null where it is the value itself, and where no event can be made of the record. Headers are null
    where they are too large.
    """
    made = documents(values)
    problems = pl.Series([None], dtype=pl.String).new_from_index(0, len(values))
    if headers.null_count() == len(headers):
        return headers, made, problems
    is_long = (headers.str.len_bytes() > MAX_HEADERS_BYTES).fill_null(value=False)
    may_be_binary = headers.str.contains(_SPECVERSION_KEY, literal=True).fill_null(value=False)
    kept = headers.zip_with(headers != "[]", _nulls(headers)) if (headers == "[]").any() else headers
    rows = (is_long | may_be_binary).arg_true()
    too_large: list[int] = []
    found: dict[int, bytes | None] = {}
    broken: dict[int, str] = {}
    several = (rows, *(series.gather(rows) for series in (headers, values, is_long, may_be_binary)))
    for row, text, value, may_be_too_large, may_be in zip(*(series.to_list() for series in several), strict=True):
        of_record = headers_of(text)
        is_too_large = may_be_too_large and size_bytes(of_record) > MAX_HEADERS_BYTES
        if is_too_large:
            too_large.append(row)
        if not (may_be and is_binary(of_record, value)):
            continue
        try:
            if is_too_large:
                raise NoEventError(f"at most {MAX_HEADERS_BYTES} bytes of headers")
            found[row] = structured(of_record, value)
        except NoEventError as problem:
            broken[row] = str(problem)
    if found:
        made = made.scatter(list(found), pl.Series(list(found.values()), dtype=pl.Binary))
    if broken:
        made = made.scatter(list(broken), None)
        problems = problems.scatter(list(broken), pl.Series(list(broken.values()), dtype=pl.String))
    return kept.scatter(too_large, None) if too_large else kept, made, problems


def documents(values: pl.Series) -> pl.Series:
    """The same without headers: documents, null where that is the value itself."""
    may_differ = values.bin.starts_with(MAGIC_BYTE) | values.bin.contains(_BASE64_KEY)
    found = _nulls(values)
    rows = may_differ.fill_null(value=False).arg_true()
    if rows.is_empty():
        return found
    made = [_document(value) for value in values.gather(rows)]
    return found.scatter(rows, pl.Series(made, dtype=pl.Binary))


def document_of(value: bytes, headers: Headers) -> bytes | None:
    """The event of one record in structured mode; None where its form is broken."""
    _, made, problems = of_records(pl.Series([value], dtype=pl.Binary), pl.Series([text_of(headers)], dtype=pl.String))
    document: bytes | None = made[0]
    if problems[0] is not None:
        return None
    return value if document is None else document


def is_binary(headers: Headers, value: bytes | None) -> bool:
    """Whether a record with the header `ce_specversion` is in binary mode (CloudEvents' Kafka binding, 3): its
    content-type names no format of CloudEvents.

    A value that is a structured event itself was read as such before Weir knew of binary mode, and still is.
    """
    if any(has_structured_type(name, header) for name, header in headers):
        return False
    if value is None or b'"specversion"' not in value:
        return True
    try:
        members = {name for name, _, _ in strict_json.places_of(unframed(value).decode())}
    except ValueError:
        return True
    return not members >= {"specversion", "id", "source", "type"}


def structured(headers: Headers, value: bytes | None) -> bytes:
    """An event in binary mode, in structured mode: attributes from headers, `data` as it was sent.

    Raises NoEventError.
    """
    members = _attributes(headers)
    text = json.dumps(members, ensure_ascii=False)
    if not value:
        return text.encode()
    if is_json(members.get(DATA_TYPE)):
        framed = frame_problem(value)
        try:
            json_text = (value if framed is None else value[FRAME_BYTES:]).decode()
            _check_one_json_text(json_text)
        except ValueError as error:
            raise NoEventError(
                f"data is no JSON (RFC 8259): {framed or error}; set a content-type that names its format"
            ) from None
        return f'{text[:-1]},"{DATA}":{json_text}}}'.encode()
    return f'{text[:-1]},"{BASE64}":"{base64.b64encode(value).decode()}"}}'.encode()


def _check_one_json_text(text: str) -> None:
    """Raise ValueError where a text is not exactly one JSON text, so that it could add members to what it is put into.

    The event's reader decides all else, such as a key that occurs twice.
    """
    try:
        _DECODER.decode(text)
    except RecursionError:
        strict_json.value_of(text)


def _attributes(headers: Headers) -> dict[str, str]:
    """Attributes by their names. A header without a value is none."""
    members: dict[str, str] = {}
    content_type: str | None = None
    for name, value in headers:
        is_type = name.lower() == CONTENT_TYPE
        if value is None or not (is_type or name.startswith(_PREFIX)):
            continue
        try:
            text = value.decode()
        except UnicodeDecodeError:
            raise NoEventError(f"the header {json_of(name)} is not UTF-8") from None
        attribute = name.removeprefix(_PREFIX)
        if (content_type is not None) if is_type else (attribute in members):
            raise NoEventError(f"the header {json_of(name)} occurs twice")
        if is_type:
            content_type = text
        elif not _ATTRIBUTE.fullmatch(attribute) or attribute == DATA:
            raise NoEventError(f"the header {json_of(name)} names no attribute: those have letters a to z, and digits")
        else:
            members[attribute] = text
    if content_type is not None:
        if members.get(DATA_TYPE, content_type) != content_type:
            raise NoEventError(f"the header ce_{DATA_TYPE} says otherwise than content-type")
        members[DATA_TYPE] = content_type
    return members


def _nulls(series: pl.Series) -> pl.Series:
    return pl.Series([None], dtype=series.dtype).new_from_index(0, len(series))


def _document(value: bytes) -> bytes | None:
    document = with_plain_data(unframed(value))
    return None if document == value else document


def unframed(value: bytes) -> bytes:
    """A value without the frame of a schema registry, where a JSON document follows."""
    is_framed = value.startswith(MAGIC_BYTE) and value[FRAME_BYTES:].lstrip(_SPACES).startswith((b"{", b"["))
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
        if packed.__class__ is not str or members.get(DATA) is not None or not is_json(members.get(DATA_TYPE)):
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
