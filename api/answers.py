"""Answers of JSON: decimals are texts in plain notation, instants RFC 3339 in UTC. They carry an ETag."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from hashlib import sha256
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from metering.csv_lines import json_text
from metering.instants import rfc3339

FRONTIER_HEADER = "Weir-Frontier"
JSON = "application/json"


def answer(request: Request, data: Any, frontier: datetime | None, more: Mapping[str, Any] | None = None) -> Response:
    """`{"data": …, "frontier": …}` with the members of `more`; 304 where the client has the same `data`.

    The frontier moves on also while nothing changes, so it is in a header of a 304, too, and no part of the ETag.
    """
    document = {"data": data, **(more or {})}
    return tagged(request, to_json(document), frontier, {**document, "frontier": frontier})


def tagged(request: Request, identity: str, frontier: datetime | None, document: Any) -> Response:
    """`document` as JSON, or 304 where the client has what `identity` stands for. Only GET and HEAD have an ETag."""
    headers = {"Cache-Control": "private, no-cache", "Vary": "Authorization, Accept"}
    if frontier is not None:
        headers[FRONTIER_HEADER] = rfc3339(frontier)
    if request.method not in ("GET", "HEAD"):
        return Response(to_json(document), headers=headers, media_type=JSON)
    tag = f'W/"{sha256(identity.encode()).hexdigest()[:32]}"'
    headers["ETag"] = tag
    if is_known(request, tag):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    return Response(to_json(document), headers=headers, media_type=JSON)


def is_known(request: Request, tag: str) -> bool:
    """Whether `If-None-Match` names the tag, compared weakly (RFC 9110)."""
    wanted = ",".join(request.headers.getlist("if-none-match")).split(",")
    return any(text.strip() == "*" or text.strip().removeprefix("W/") == tag.removeprefix("W/") for text in wanted)


def to_json(document: Any) -> str:
    """The document; see the module. Dates are YYYY-MM-DD."""
    return json.dumps(document, default=json_text)


def columns_of(rows: Iterable[Mapping[str, Any]], columns: Iterable[str]) -> list[dict[str, Any]]:
    """The rows with these keys, in this order."""
    names = tuple(columns)
    return [{name: row[name] for name in names} for row in rows]
