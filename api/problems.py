"""Errors as `application/problem+json` (RFC 9457)."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from metering.digits import plain
from metering.instants import Clock
from monitoring import metrics
from monitoring.metrics import Refusal

MEDIA_TYPE = "application/problem+json"
LIMIT, RESET = "X-RateLimit-Limit", "X-RateLimit-Reset"
"""OpenMeter's names; the second is a Unix time."""
BYTES, CONCURRENT = "content-bytes", "concurrent-requests"
"""Units of the IETF's draft."""


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


def problem_handler(clock: Clock) -> Callable[[Request, Exception], Awaitable[Response]]:
    """The handler of `Problem`. It adds the Unix time after which a limit (`over_capacity`) may hold no longer."""

    async def problem_response(request: Request, error: Exception) -> Response:
        assert isinstance(error, Problem), "registered for it alone"
        response = error.response(request)
        if LIMIT in response.headers and RESET not in response.headers:
            reset = clock.now().timestamp() + int(response.headers["Retry-After"])
            response.headers[RESET] = str(math.ceil(reset))
        return response

    return problem_response


def too_many(
    reason: Refusal, detail: str, retry_after_seconds: int, headers: Mapping[str, str] | None = None
) -> Problem:
    """429, counted by its reason: nothing was written, and the same request may be sent again."""
    metrics.API_REFUSED.inc(reason=reason)
    return Problem(HTTPStatus.TOO_MANY_REQUESTS, detail, {"Retry-After": str(retry_after_seconds), **(headers or {})})


def over_capacity(
    reason: Refusal, detail: str, retry_after_seconds: int, limit: float, unit: str | None = None
) -> Problem:
    """`too_many` where the server, and not a key, has reached a limit, with the same headers.

    `unit`: what the limit counts, as the IETF's draft of RateLimit names it; None where it has no name for that.
    """
    headers = {LIMIT: digits(limit), "X-RateLimit-Remaining": "0"}
    if unit is not None:
        headers["RateLimit-Policy"] = f'"{reason}";q={digits(limit)};qu="{unit}"'
        headers["RateLimit"] = f'"{reason}";r=0;t={retry_after_seconds}'
    return too_many(reason, detail, retry_after_seconds, headers)


def digits(number: float) -> str:
    """A limit as people write it: `86400` and `0.5`, never `8.64e+04`."""
    return plain(Decimal(str(number)))


def unavailable(detail: str, retry_after_seconds: int = 5) -> Problem:
    """Nothing was written, or it is unknown: the same request may be sent again."""
    return Problem(HTTPStatus.SERVICE_UNAVAILABLE, detail, {"Retry-After": str(retry_after_seconds)})
