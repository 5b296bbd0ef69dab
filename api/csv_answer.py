"""Answers of CSV, to those who send `Accept: text/csv`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from io import StringIO
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from api.answers import FRONTIER_HEADER
from metering.csv_lines import write_csv
from metering.instants import rfc3339

CSV = "text/csv"


def wants_csv(request: Request) -> bool:
    """Whether the client asks for CSV."""
    return CSV in request.headers.get("accept", "")


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
