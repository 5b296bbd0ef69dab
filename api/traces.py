"""`POST /v1/traces`: spans of OpenTelemetry that report calls of models become events of usage.

Only of services that the key names: an SDK and a gateway that report the same call would both be billed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus

import structlog
from starlette.requests import Request
from starlette.responses import Response

from api.events import Services, append, authorized, received_body, refusal_by, topic_for, verdicts_on
from api.ingestion_lag import refuse_lag
from api.otlp import failure, spans_in, success
from api.otlp_json import JSON
from api.otlp_protobuf import PROTOBUF
from api.problems import Problem, unavailable
from api.producer import Record
from api.request_metrics import FORBIDDEN, count_events
from api.span_record import NotOtlp, TooLarge
from api.span_usage import OPERATION, SpanUsage, UsageSpan, usage_of
from api.validation import Verdict
from metering.api_keys import Scope
from metering.vocabulary import Reason

log = structlog.get_logger()

MAX_BYTES = 16 << 20
"""Of a body, unpacked. A Collector's batch of calls with the usual attributes has 4.3 MiB."""
BATCH_SPANS = 1_000
READ_WITHIN_SECONDS = 15.0
"""How long a request may wait until it is read; one is read at a time."""
_SHOWN = 3
"""Rejected spans that an answer names."""


@dataclass
class _Taken:
    """What became of the spans of a request."""

    rejected: list[tuple[str, str]] = field(default_factory=list)
    """(span, reason)"""
    unknown: dict[str, int] = field(default_factory=dict)

    @property
    def message(self) -> str:
        """What the sender should know; empty where all is well."""
        found = [f"span {span}: {reason}" for span, reason in self.rejected[:_SHOWN]]
        if len(self.rejected) > _SHOWN:
            found.append(f"and {len(self.rejected) - _SHOWN} more")
        if self.unknown:
            names = ", ".join(repr(name) for name in list(self.unknown)[:_SHOWN])
            found.append(
                f"{sum(self.unknown.values())} spans report tokens and are not billed: their {OPERATION} ({names}) is"
                " no call of a model that Weir knows"
            )
        return "; ".join(found)


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
            taken = await _take(request, services, media_type, reserve)
    except Problem as problem:
        return _failed(media_type, problem)
    except Exception as error:
        # After 500 the exporter would drop the spans.
        log.error("a request of spans failed", exc_info=error)
        return _failed(media_type, unavailable("Weir failed on this request; its log says how."))
    return Response(success(media_type, len(taken.rejected), taken.message), media_type=media_type)


async def _take(request: Request, services: Services, media_type: str, reserve: Callable[[int], None]) -> _Taken:
    """Append the usage of all spans that are valid. Raises Problem."""
    key = authorized(request, services, Scope.INGEST)
    if not key.sources:
        raise Problem(
            HTTPStatus.FORBIDDEN,
            f"The key {key.id} names no sources. Make one with `weir keys create --scope ingest --source NAME`, which"
            " names each service.name whose spans are billed: two that report the same calls would both be.",
        )
    refuse_lag(services.database.lag_seconds, services.max_lag_seconds, services.database.retention)
    usage = await _read(services, media_type, await received_body(request, reserve, MAX_BYTES))
    services.rate_limiter.take_events(key, len(usage.spans))
    readable = [span for span in usage.spans if span.problem is None]
    verdicts: list[Verdict] = []
    for first in range(0, len(readable), BATCH_SPANS):
        batch = readable[first : first + BATCH_SPANS]
        verdicts += await verdicts_on(services, [span.document for span in batch])
    taken = _Taken([(span.id, span.problem) for span in usage.spans if span.problem is not None], usage.unknown)
    reasons = [Reason.UNREADABLE.value] * len(taken.rejected)
    records = []
    refused = refusal_by(key)
    for span, verdict in zip(readable, verdicts, strict=True):
        problem = _problem(services, span, verdict) or refused(verdict)
        if problem is None:
            topic = topic_for(services, verdict.type)
            records.append(Record((verdict.account or "").encode(), span.document, topic))
        else:
            taken.rejected.append((span.id, problem))
            reasons.append(verdict.reason or FORBIDDEN)
    await append(services, records)
    count_events(len(records), reasons)
    if taken.message:
        log.warning("spans are not billed", key=key.id, rejected=len(taken.rejected), reason=taken.message)
    return taken


async def _read(services: Services, media_type: str, body: bytes) -> SpanUsage:
    """Raises Problem."""

    def read() -> SpanUsage:
        return usage_of(spans_in(media_type, body), services.account_attribute)

    try:
        async with asyncio.timeout(READ_WITHIN_SECONDS):
            await services.parsing.acquire()
    except TimeoutError:
        raise unavailable("More spans come in than can be read: send the same request again later.") from None
    try:
        return await asyncio.to_thread(read)
    except NotOtlp as error:
        raise Problem(HTTPStatus.BAD_REQUEST, f"The body is {error}.") from None
    except TooLarge as error:
        raise Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The request is too large ({error}): send less.") from None
    finally:
        services.parsing.release()


def _problem(services: Services, span: UsageSpan, verdict: Verdict) -> str | None:
    """What is wrong with a span; None: nothing."""
    if not span.has_account:
        return f"neither it nor its resource has the attribute {services.account_attribute}, which names the account"
    if verdict.reason is not None:
        return f"{verdict.reason}{f' at {verdict.path}' if verdict.path else ''}: {verdict.rule}"
    return None


def _failed(media_type: str, problem: Problem) -> Response:
    status = problem.status
    if status is HTTPStatus.REQUEST_TIMEOUT:
        # The same spans may arrive in time when they are sent again, and nobody does that after 408.
        status = HTTPStatus.SERVICE_UNAVAILABLE
    return Response(failure(media_type, status, problem.detail), status, dict(problem.headers), media_type)


async def refuse_others(request: Request, services: Services) -> Response:
    """`POST /v1/metrics` and `/v1/logs`: 400, after which nobody sends them again."""
    authorized(request, services, Scope.INGEST)
    raise Problem(
        HTTPStatus.BAD_REQUEST,
        "Weir accepts spans only (/v1/traces): a counter has no identity, so a repeat would look like more usage.",
    )
