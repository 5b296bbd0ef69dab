"""`POST /v1/traces`: spans of OpenTelemetry that report calls of models become events of usage.

Only of services that the key names: an SDK and a gateway that report the same call would both be billed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from http import HTTPStatus

import structlog
from starlette.requests import Request
from starlette.responses import Response

from api.events import Services, append, authorized, received_body, refusal, verdicts_on
from api.ingestion_lag import refuse_lag
from api.otlp import JSON, PROTOBUF, NotOtlp, UsageSpan, failure, success, usage_spans
from api.problems import Problem, unavailable
from api.producer import Record
from api.request_metrics import count_events
from api.validation import Verdict
from metering.api_keys import ApiKey, Scope

log = structlog.get_logger()

MAX_SPANS = 10_000
"""Of one request that report usage; a Collector's batches have 8,192."""
MAX_BYTES = 16 << 20
"""Of a body, unpacked. A Collector's batch of calls with the usual attributes has 4.3 MiB."""
BATCH_SPANS = 1_000
_SHOWN = 3
"""Rejected spans that an answer names."""


async def traces(request: Request, services: Services) -> Response:
    """200 with an ExportTraceServiceResponse. Spans that report no usage are taken and mean nothing to Weir.

    Whoever exports spans sends them again after 429 and 503 alone, so what may succeed later is one of these.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in (PROTOBUF, JSON):
        raise Problem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"Content-Type {media_type or 'is missing and'!r} is not taken: {PROTOBUF} and {JSON} are.",
        )
    try:
        with services.body_budget.request() as reserve:
            rejected = await _take(request, services, media_type, reserve)
    except Problem as problem:
        return _failed(media_type, problem)
    except Exception as error:
        # After 500 the exporter would drop the spans.
        log.error("a request of spans failed", exc_info=error)
        return _failed(media_type, unavailable("Weir failed on this request; its log says how."))
    shown = "; ".join(f"span {span}: {reason}" for span, reason in rejected[:_SHOWN])
    more = "" if len(rejected) <= _SHOWN else f"; and {len(rejected) - _SHOWN} more"
    return Response(success(media_type, len(rejected), shown + more), media_type=media_type)


async def _take(
    request: Request, services: Services, media_type: str, reserve: Callable[[int], None]
) -> list[tuple[str, str]]:
    """Append the usage of all spans that are valid; gives (span, reason) of each other one. Raises Problem."""
    key = authorized(request, services, Scope.INGEST)
    if not key.sources:
        raise Problem(
            HTTPStatus.FORBIDDEN,
            f"The key {key.id} names no sources. Make one with `weir keys create --scope ingest --source NAME`, which"
            " names each service.name whose spans are billed: two that report the same calls would both be.",
        )
    refuse_lag(services.database.lag_seconds, services.max_lag_seconds)
    body = await received_body(request, reserve, MAX_BYTES)
    try:
        async with services.parsing:
            spans = await asyncio.to_thread(usage_spans, media_type, body, services.account_attribute)
    except NotOtlp as error:
        raise Problem(HTTPStatus.BAD_REQUEST, f"The body is {error}.") from None
    if len(spans) > MAX_SPANS:
        raise Problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"A request has at most {MAX_SPANS} spans that report usage, and this one {len(spans)}: send smaller ones.",
        )
    documents = [span.document for span in spans]
    verdicts: list[Verdict] = []
    for first in range(0, len(spans), BATCH_SPANS):
        verdicts += await verdicts_on(services, documents[first : first + BATCH_SPANS])
    reasons = [_reason(key, services, span, verdict) for span, verdict in zip(spans, verdicts, strict=True)]
    taken = [
        Record((verdict.account or "").encode(), document)
        for document, verdict, reason in zip(documents, verdicts, reasons, strict=True)
        if reason is None
    ]
    await append(services, taken)
    count_events(len(taken), (verdict for verdict in verdicts if verdict.reason is not None))
    return _rejected(spans, reasons)


def _rejected(spans: Sequence[UsageSpan], reasons: Sequence[str | None]) -> list[tuple[str, str]]:
    return [(span.id, reason) for span, reason in zip(spans, reasons, strict=True) if reason is not None]


def _reason(key: ApiKey, services: Services, span: UsageSpan, verdict: Verdict) -> str | None:
    """Why a span is rejected; None where it is not."""
    if "subject" not in span.event:
        return f"neither it nor its resource has the attribute {services.account_attribute}, which names the account"
    if verdict.reason is not None:
        return f"{verdict.reason}{f' at {verdict.path}' if verdict.path else ''}: {verdict.rule}"
    return refusal(key, verdict)


def _failed(media_type: str, problem: Problem) -> Response:
    status = problem.status
    if status is HTTPStatus.REQUEST_TIMEOUT:
        # The same spans may arrive in time when they are sent again, and nobody does that after 408.
        status = HTTPStatus.SERVICE_UNAVAILABLE
    return Response(failure(media_type, status, problem.detail), status, dict(problem.headers), media_type)


async def refuse_others(_request: Request, _services: Services) -> Response:
    """`POST /v1/metrics` and `/v1/logs`: 400, after which nobody sends them again."""
    raise Problem(
        HTTPStatus.BAD_REQUEST,
        "Weir takes spans alone (/v1/traces): a counter has no identity, so nobody could tell a repeat from more use.",
    )
