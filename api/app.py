"""The routes: OpenMeter's two as its clients use them, Weir's own, OTLP's, and health."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from api.events import Services, Validated, append, authorized, validated_events
from api.problems import Problem, problem_handler
from api.read_routes import query_routes
from api.readiness import keep_reporting, waits_for
from api.request_metrics import PATH_ENDS, RequestMetrics, count_events
from api.traces import refuse_others, traces
from api.webhook_endpoints import endpoint_routes
from metering.api_keys import Scope
from monitoring.metrics import ApiRoute

log = structlog.get_logger()

OPENMETER, OPENMETER_V3, OWN = ApiRoute.OPENMETER.value, ApiRoute.OPENMETER_V3.value, ApiRoute.OWN.value
TRACES = ApiRoute.TRACES.value
OTHER_SIGNALS = ("/v1/metrics", "/v1/logs")
LIVE, READY = "/health/live", "/health/ready"


def application(services: Services) -> Starlette:
    """The ASGI application; while it runs keys and contracts are read again and again."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        running = [services.database.keep_reading(), keep_reporting(services)]
        if services.issuer is not None:
            running.append(services.issuer.keep_fetching())
        tasks = [asyncio.create_task(task) for task in running]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            services.database.close()
            opened = (services.reader, services.explaining, services.streams, services.tables, services.endpoints)
            for service in opened:
                if service is not None:
                    service.close()
            await asyncio.to_thread(services.producer.close)

    def route(path: str, endpoint: Callable[[Request, Services], Any]) -> Route:
        async def answer(request: Request) -> Response:
            response: Response = await endpoint(request, services)
            return response

        return Route(path, answer, methods=["POST"])

    async def live(_: Request) -> Response:
        if services.database.is_locked_out:
            return JSONResponse({"status": "locked out of the database"}, HTTPStatus.SERVICE_UNAVAILABLE)
        return JSONResponse({"status": "live"})

    async def ready(_: Request) -> Response:
        waits = waits_for(services)
        status = HTTPStatus.SERVICE_UNAVAILABLE if waits else HTTPStatus.OK
        return JSONResponse({"status": "waiting" if waits else "ready", "waits_for": waits}, status)

    app = Starlette(
        routes=[
            *(route(path + end, endpoint) for path, endpoint in POSTED.items() for end in PATH_ENDS),
            *(route(path, refuse_others) for path in OTHER_SIGNALS),
            *query_routes(services),
            *(() if services.endpoints is None else endpoint_routes(services, services.endpoints)),
            Route(LIVE, live),
            Route(READY, ready),
        ],
        exception_handlers={Problem: problem_handler(services.clock), HTTPException: _http_problem, Exception: _failed},
        middleware=[Middleware(RequestMetrics, clock=services.clock, uncounted=frozenset((LIVE, READY)))],
        lifespan=lifespan,
    )
    # Behind a proxy with TLS a redirect would lead to plain HTTP, and some clients send the key there.
    app.router.redirect_slashes = False
    return app


async def openmeter(request: Request, services: Services) -> Response:
    """`POST /api/v1/events`: all events or none; 204."""
    await _all_or_none(request, services)
    return Response(status_code=HTTPStatus.NO_CONTENT)


async def openmeter_v3(request: Request, services: Services) -> Response:
    """`POST /api/v3/openmeter/events`: all events or none; 202."""
    await _all_or_none(request, services)
    return Response(status_code=HTTPStatus.ACCEPTED)


async def own(request: Request, services: Services) -> Response:
    """`POST /v1/events`: the valid events are taken, of each other one the answer says what is wrong.

    200 `{"accepted": 3, "rejected": [{"index", "id", "reason", "path", "rule"}], "position": "events/3/81234"}`:
    `position` is the last record of each partition that has one, comma-separated; null where nothing was taken.
    """
    with services.body_budget.request() as reserve:
        found = await _validated(request, services, reserve)
        last = await append(services, found.valid)
    count_events(len(found.valid), (verdict.reason for _, verdict in found.invalid))
    rejected = [
        {"index": index, "id": verdict.id, "reason": verdict.reason, "path": verdict.path, "rule": verdict.rule}
        for index, verdict in found.invalid
    ]
    position = ",".join(f"{topic}/{partition}/{offset}" for (topic, partition), offset in sorted(last.items()))
    return JSONResponse(
        {"accepted": len(found.records) - len(rejected), "rejected": rejected, "position": position or None}
    )


POSTED = {OPENMETER: openmeter, OPENMETER_V3: openmeter_v3, OWN: own, TRACES: traces}
"""What takes events."""


async def _validated(request: Request, services: Services, reserve: Callable[[int], None]) -> Validated:
    key = authorized(request, services, Scope.INGEST)
    return await validated_events(request, services, key, reserve)


async def _all_or_none(request: Request, services: Services) -> None:
    """Raises Problem (400) where one event is not valid; then none was taken."""
    with services.body_budget.request() as reserve:
        found = await _validated(request, services, reserve)
        _refuse_invalid(found)
        await append(services, found.records)
    count_events(len(found.records))


def _refuse_invalid(found: Validated) -> None:
    if found.invalid:
        count_events(0, (verdict.reason for _, verdict in found.invalid))
        invalid = [
            {
                "field": f"/{index}{verdict.path or ''}",
                "rule": verdict.reason or "",
                "source": "body",
                "reason": verdict.rule or "",
            }
            for index, verdict in found.invalid
        ]
        first_index, first = found.invalid[0]
        where = f" at {first.path}" if first.path else ""
        raise Problem(
            HTTPStatus.BAD_REQUEST,
            f"{len(invalid)} of {len(found.records)} events are not valid, and none was taken. Event {first_index}: "
            f"{first.reason}{where}: {first.rule}",
            invalid=invalid,
        )


async def _http_problem(request: Request, error: Exception) -> Response:
    """404 and 405, in the form of all others."""
    assert isinstance(error, HTTPException), "registered for it alone"
    return Problem(HTTPStatus(error.status_code), error.detail, error.headers or {}).response(request)


async def _failed(request: Request, error: Exception) -> Response:
    log.error("a request failed", path=request.url.path, exc_info=error)
    return Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "Weir failed on this request; its log says how.").response(request)
