"""Errors as `application/problem+json` (RFC 9457)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from monitoring import metrics
from monitoring.metrics import Refusal

MEDIA_TYPE = "application/problem+json"


@dataclass
class Problem(Exception):
    """A request that is refused: `detail` says why, and what to do. `invalid`: the fields that are wrong.

    `code` tells a program which of several problems of a status it is.
    """

    status: HTTPStatus
    detail: str
    headers: Mapping[str, str] = field(default_factory=dict)
    invalid: Sequence[Mapping[str, str]] = ()
    code: str | None = None

    def response(self, request: Request) -> Response:
        """The answer. `type` is about:blank: the status, and a code, are all that a program may act upon."""
        content: dict[str, Any] = {
            "type": "about:blank",
            "title": self.status.phrase,
            "status": self.status.value,
            "detail": self.detail,
            "instance": request.url.path,
        }
        if self.code is not None:
            content["code"] = self.code
        if self.invalid:
            content["invalid_parameters"] = list(self.invalid)
        return Response(json.dumps(content), self.status, dict(self.headers), MEDIA_TYPE)


async def problem_response(request: Request, error: Exception) -> Response:
    """The handler of `Problem`."""
    assert isinstance(error, Problem), "registered for it alone"
    return error.response(request)


def too_many(
    reason: Refusal, detail: str, retry_after_seconds: int, headers: Mapping[str, str] | None = None
) -> Problem:
    """429, counted by its reason: nothing was written, and the same request may be sent again."""
    metrics.API_REFUSED.inc(reason=reason)
    return Problem(HTTPStatus.TOO_MANY_REQUESTS, detail, {"Retry-After": str(retry_after_seconds), **(headers or {})})


def unavailable(detail: str, retry_after_seconds: int = 5) -> Problem:
    """Nothing was written, or it is unknown: the same request may be sent again."""
    return Problem(HTTPStatus.SERVICE_UNAVAILABLE, detail, {"Retry-After": str(retry_after_seconds)})
