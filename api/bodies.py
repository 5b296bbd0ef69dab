"""A request's headers and body → its events, as they are written to Kafka.

CloudEvents 1.0 over HTTP: structured, batched and binary mode; also arrays and lines of JSON, as OpenMeter's and Weir's
clients send them. `Content-Encoding: gzip` is unpacked within the limits.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from http import HTTPStatus
from urllib.parse import unquote

from api.elements import Element, NotJson, array, is_document, lines, single, single_or_array
from api.problems import Problem

MAX_EVENTS = 1_000
MAX_BODY_BYTES = 4 << 20
"""Also of what a compressed body holds."""
MAX_EVENT_BYTES = 252 << 10
"""The topic takes 256 KiB with the key, the headers and what Kafka adds to a batch."""

STRUCTURED = ("application/cloudevents+json", "application/json")
BATCH = "application/cloudevents-batch+json"
LINES = ("application/x-ndjson", "application/ndjson", "application/jsonl")
_CE, _FORMATS = "ce-", "application/cloudevents"
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_GZIP_WINDOW = 16 + zlib.MAX_WBITS


async def read_body(
    chunks: AsyncIterator[bytes], encoding: str, reserve: Callable[[int], None], max_bytes: int = MAX_BODY_BYTES
) -> bytes:
    """The body, unpacked; `reserve` is called with the size of each part, and may raise.

    Raises Problem: too large, an unknown encoding, or no gzip.
    """
    name = encoding.strip().lower()
    if name not in ("", "identity", "gzip"):
        raise Problem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"Content-Encoding {encoding!r} is not supported: gzip is, or none."
        )
    unpacker = zlib.decompressobj(_GZIP_WINDOW) if name == "gzip" else None
    found = bytearray()
    async for chunk in chunks:
        part = chunk if unpacker is None else _unpacked(unpacker, chunk, max_bytes + 1 - len(found))
        reserve(len(part))
        found += part
        if len(found) > max_bytes:
            raise Problem(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"A body has at most {max_bytes} bytes, unpacked: send fewer events at once.",
            )
    if unpacker is not None and (not unpacker.eof or unpacker.unused_data):
        raise Problem(HTTPStatus.BAD_REQUEST, "The body is not one gzip stream: it is cut off, or data follows it.")
    return bytes(found)


def _unpacked(unpacker: zlib._Decompress, chunk: bytes, at_most: int) -> bytes:
    try:
        # What is beyond the limit stays packed.
        return unpacker.decompress(chunk, at_most)
    except zlib.error:
        raise Problem(HTTPStatus.BAD_REQUEST, "The body is not gzip, or was damaged on its way.") from None


def events_in(headers: Mapping[str, str], body: bytes) -> list[Element]:
    """The events of a request, in their order. Raises Problem."""
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        found = _events(media_type, headers, body)
    except NotJson as error:
        raise Problem(HTTPStatus.BAD_REQUEST, f"The body is {error}.") from None
    if not found:
        raise Problem(HTTPStatus.BAD_REQUEST, "The body holds no event.")
    if len(found) > MAX_EVENTS:
        raise Problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"A request has at most {MAX_EVENTS} events; this one has {len(found)} or more.",
        )
    for index, event in enumerate(found):
        if len(event.document) > MAX_EVENT_BYTES:
            raise Problem(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"An event has at most {MAX_EVENT_BYTES} bytes; that at index {index} has {len(event.document)}.",
            )
    return found


def _events(media_type: str, headers: Mapping[str, str], body: bytes) -> list[Element]:
    if media_type == BATCH:
        return array(body, MAX_EVENTS + 1)
    if media_type == STRUCTURED[0]:
        return single_or_array(body, MAX_EVENTS + 1)
    # Any other format of CloudEvents holds the whole event, whatever else the headers say.
    if f"{_CE}specversion" in headers and not media_type.startswith(_FORMATS):
        return [_binary(media_type, headers, body)]
    if media_type in STRUCTURED:
        return single_or_array(body, MAX_EVENTS + 1)
    if media_type in LINES:
        return lines(body, MAX_EVENTS + 1)
    taken = ", ".join((*STRUCTURED, BATCH, LINES[0]))
    raise Problem(
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        f"Content-Type {media_type or 'is missing and'!r} is not taken: {taken} are, and any with ce-specversion.",
    )


def _attribute(name: str, value: str) -> str:
    """An attribute from its header, by CloudEvents' HTTP binding 3.1.3.2: out of its quotes, then percent-decoded."""
    if quoted := _QUOTED.fullmatch(value):
        value = re.sub(r"\\(.)", r"\1", quoted[1])
    try:
        if value.isascii():
            return unquote(value, errors="strict")
    except UnicodeDecodeError:
        pass
    # Nobody could tell UTF-8 from Latin-1: the usage would be another account's.
    raise Problem(HTTPStatus.BAD_REQUEST, f"The header {name} must be ASCII, and all else percent-encoded as UTF-8.")


def _binary(media_type: str, headers: Mapping[str, str], body: bytes) -> Element:
    """An event in binary mode, written in structured mode: attributes from `ce-` headers, `data` as it was sent."""
    members: dict[str, str] = {}
    for name, value in headers.items():
        if name.startswith(_CE):
            if (attribute := name.removeprefix(_CE)) in members:
                raise Problem(HTTPStatus.BAD_REQUEST, f"The header {name} appears twice.")
            members[attribute] = _attribute(name, value)
    if media_type:
        members["datacontenttype"] = headers["content-type"]
    text = json.dumps(members, ensure_ascii=False).encode()
    if not body:
        return single(text)
    if media_type in ("", "application/json") or media_type.endswith("+json"):
        if not is_document(body):
            raise Problem(HTTPStatus.BAD_REQUEST, "The body is not JSON, although its Content-Type says it is.")
        return single(text[:-1] + b', "data": ' + body + b"}")
    return single(text[:-1] + b', "data_base64": "' + base64.b64encode(body) + b'"}')
