"""Answers of CSV, to those who send `Accept: text/csv`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from io import StringIO
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from api.answers import FRONTIER_HEADER, JSON
from metering.csv_lines import write_csv
from metering.instants import rfc3339

CSV = "text/csv"
_QUALITY = re.compile(r"[01](?:\.[0-9]{0,3})?")


def wants_csv(request: Request) -> bool:
    """Whether the client would rather have CSV than JSON, by its `Accept` (RFC 9110).

    Clients are generated that name all that a route may answer with: of two that they take equally, the one that they
    name itself, and then the first.
    """
    given = ",".join(request.headers.getlist("accept")).split(",")
    ranges = [_media_range(text) for text in given if text.strip()]
    return _rank(ranges, CSV) > max(_rank(ranges, JSON), (0.0, 0, 0))


def _rank(ranges: Sequence[tuple[str, float]], media_type: str) -> tuple[float, int, int]:
    """How much a media type is wanted; the most specific range that has it counts."""
    names = (media_type, f"{media_type.partition('/')[0]}/*", "*/*")
    found = [(names.index(name), place, quality) for place, (name, quality) in enumerate(ranges) if name in names]
    if not found:
        return 0.0, 0, 0
    specific, place, quality = min(found)
    return quality, -specific, -place


def _media_range(text: str) -> tuple[str, float]:
    name, *parameters = (part.strip().lower() for part in text.split(";"))
    quality = next((parameter[2:] for parameter in parameters if parameter.startswith("q=")), "1")
    return name, float(quality) if _QUALITY.fullmatch(quality) else 0.0


def as_csv(
    name: str,
    columns: Sequence[str],
    lines: Iterable[Sequence[Any]],
    frontier: datetime | None,
    more: Mapping[str, str] | None = None,
) -> Response:
    """A file that is named after what was asked for, with the headers of `more`."""
    out = StringIO()
    write_csv(columns, lines, out)
    file = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
    headers = {
        "Content-Disposition": f'attachment; filename="{file}.csv"',
        "Cache-Control": "private, no-cache",
        "Vary": "Authorization, Accept",
        **(more or {}),
    }
    if frontier is not None:
        headers[FRONTIER_HEADER] = rfc3339(frontier)
    return Response(out.getvalue(), headers=headers, media_type=CSV)
