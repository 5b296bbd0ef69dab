"""The routes that answer queries. Each needs a key of the scope `read`, and sees the accounts of that key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from api.acknowledgements import acknowledge
from api.bills import bills, prices
from api.entitlement_access import entitlement_access
from api.events import Services, authorized
from api.explanations import Explainer
from api.forecasts import forecast
from api.invoices import invoice, invoices
from api.lists import corrections, stragglers
from api.meter_query import meter_query, meters
from api.meter_query_v3 import meter_query_v3
from api.models import Ranking
from api.openapi import PATH as OPENAPI
from api.openapi import openapi
from api.own_writes import await_own_writes
from api.portal import invalidate_tokens, make_token, portal_query
from api.problems import Problem
from api.read_request import ReadRequest
from api.request_metrics import path_of
from api.usage import usage
from api.views import view
from api.watches import hits, matches, thresholds, watches
from metering.api_keys import Scope
from monitoring.metrics import ApiRoute

ReadQuery = Callable[[ReadRequest], Awaitable[Response]]

READ_QUERIES: tuple[tuple[ApiRoute, tuple[str, ...], ReadQuery], ...] = (
    (ApiRoute.USAGE, ("GET",), usage),
    (ApiRoute.BILLS, ("GET",), bills),
    (ApiRoute.INVOICES, ("GET",), invoices),
    (ApiRoute.INVOICE, ("GET",), invoice),
    (ApiRoute.PRICES, ("GET",), prices),
    (ApiRoute.CORRECTIONS, ("GET",), corrections),
    (ApiRoute.CORRECTIONS_ACK, ("POST",), acknowledge),
    (ApiRoute.STRAGGLERS, ("GET",), stragglers),
    (ApiRoute.FORECAST, ("GET",), forecast),
    (ApiRoute.VIEW, ("GET",), view),
    (ApiRoute.THRESHOLDS, ("GET",), thresholds),
    (ApiRoute.WATCHES, ("GET",), watches),
    (ApiRoute.WATCH_HITS, ("GET",), hits),
    (ApiRoute.PATTERN_MATCHES, ("GET",), matches),
    (ApiRoute.METERS, ("GET",), meters),
    (ApiRoute.METER_QUERY, ("GET", "POST"), meter_query),
    (ApiRoute.PORTAL_QUERY, ("GET",), portal_query),
    (ApiRoute.METER_QUERY_V3, ("POST",), meter_query_v3),
    (ApiRoute.ENTITLEMENT_ACCESS, ("POST",), entitlement_access),
)


TOKEN_ROUTES = (ApiRoute.USAGE, ApiRoute.BILLS, ApiRoute.WINDOW_STREAM, ApiRoute.PORTAL_QUERY)
"""What is also read with a portal token: its account's usage and bills."""


def query_routes(services: Services) -> list[Route]:
    """The routes; none where there is nothing to read from."""
    if services.reader is None:
        return []
    assert services.explaining is not None, "whoever reads also explains"
    explainer = Explainer(services.tables, services.explaining)
    streamed = () if services.streams is None else ((ApiRoute.WINDOW_STREAM, ("GET",), services.streams.stream),)
    queries = (
        *READ_QUERIES,
        *streamed,
        (ApiRoute.MODELS, ("GET",), Ranking(services.tables, services.explaining).models),
        (ApiRoute.REQUEST, ("GET",), explainer.request),
        (ApiRoute.EVENT, ("GET",), explainer.event),
    )

    async def described(request: Request) -> Response:
        return await openapi(request, services)

    async def portal_token(request: Request) -> Response:
        return await make_token(request, services)

    async def portal_invalidate(request: Request) -> Response:
        return await invalidate_tokens(request, services)

    return [
        *(_route(services, route, methods, query) for route, methods, query in queries),
        Route(ApiRoute.PORTAL_TOKENS.value, portal_token, methods=["POST"]),
        Route(ApiRoute.PORTAL_INVALIDATE.value, portal_invalidate, methods=["POST"]),
        Route(OPENAPI, described),
    ]


def _route(services: Services, route: ApiRoute, methods: tuple[str, ...], query: ReadQuery) -> Route:
    async def respond(request: Request) -> Response:
        key = authorized(request, services, Scope.READ, takes_tokens=route in TOKEN_ROUTES)
        if key.meters and route is not ApiRoute.PORTAL_QUERY:
            raise Problem(HTTPStatus.FORBIDDEN, f"This token reads only its meters: GET {ApiRoute.PORTAL_QUERY}.")
        assert services.reader is not None, "routes are made where there is one"
        read_request = ReadRequest(request, key, services.reader)
        await await_own_writes(read_request, services.tables, services.validator)
        return await query(read_request)

    return Route(path_of(route), respond, methods=list(methods))
