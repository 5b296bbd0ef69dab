"""Counts requests and events; not requests that never reach the application, such as unfinished ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from starlette.convertors import PathConvertor, register_url_convertor
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from metering.instants import Clock
from metering.vocabulary import Disposition
from monitoring import metrics
from monitoring.metrics import ApiRoute, ApiStatus

FORBIDDEN = "forbidden"
"""The reason of a valid span whose service or account the key does not name."""
UNANSWERED = 500
"""Of a request that failed before it had an answer: the server gives it this one."""
PATH_ENDS = ("", "/")
"""Of the paths of events: a client whose address ends with a slash too many is understood."""
_POSTED = {
    route.value + end: route
    for route in (ApiRoute.OPENMETER, ApiRoute.OPENMETER_V3, ApiRoute.OWN, ApiRoute.TRACES)
    for end in PATH_ENDS
}


class IdentityConvertor(PathConvertor):
    """A source and an id: never empty, so that `/v1/events/` is the route of events."""

    regex = ".+"


register_url_convertor("identity", IdentityConvertor())


def path_of(route: ApiRoute) -> str:
    """The form of its paths. An id or a source may have slashes."""
    return route.value.replace("{source}/{id}", "{event:identity}").replace("{id}", "{id:path}")


_READ_QUERIES = [
    (compile_path(path_of(route))[0], route)
    for route in ApiRoute
    if route is not ApiRoute.OTHER and route not in _POSTED.values()
]
_METHODS = {
    **{route: ("GET",) for _, route in _READ_QUERIES},
    ApiRoute.METER_QUERY: ("GET", "POST"),
    ApiRoute.METER_QUERY_V3: ("POST",),
    ApiRoute.ENTITLEMENT_ACCESS: ("POST",),
    ApiRoute.PORTAL_TOKENS: ("POST",),
    ApiRoute.PORTAL_INVALIDATE: ("POST",),
    ApiRoute.CORRECTIONS_ACK: ("POST",),
    ApiRoute.WEBHOOK_ENDPOINTS: ("GET", "POST"),
    ApiRoute.WEBHOOK_ENDPOINT: ("GET", "PATCH", "DELETE"),
    ApiRoute.WEBHOOK_ROTATE: ("POST",),
    ApiRoute.WEBHOOK_RESEND: ("POST",),
}


class RequestMetrics:
    """ASGI middleware that counts each request and measures how long it took; `uncounted` are paths that are not."""

    def __init__(self, app: ASGIApp, clock: Clock, uncounted: frozenset[str]) -> None:
        self._app = app
        self._clock = clock
        self._uncounted = uncounted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request as the application does."""
        if scope["type"] != "http" or scope["path"] in self._uncounted:
            await self._app(scope, receive, send)
            return
        started, status = self._clock.monotonic(), UNANSWERED

        async def send_noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_noting_status)
        finally:
            route = route_of(scope["method"], scope["path"])
            metrics.API_REQUESTS.inc(route=route, status=status_class(status))
            if route is not ApiRoute.WINDOW_STREAM:
                metrics.API_REQUEST_DURATION.observe(self._clock.monotonic() - started, route=route)


def route_of(method: str, path: str) -> ApiRoute:
    """The route of a request: OTHER for whatever strangers may think of."""
    if method == "POST" and path in _POSTED:
        return _POSTED[path]
    routes = (route for form, route in _READ_QUERIES if method in _METHODS[route] and form.match(path))
    return next(routes, ApiRoute.OTHER)


def status_class(status: int) -> ApiStatus:
    """The class of an HTTP status."""
    return ApiStatus.TOO_MANY if status == 429 else ApiStatus(f"{status // 100}xx")


def count_events(accepted: int, rejected: Iterable[str | None] = ()) -> None:
    """Count the events of one request: how many Kafka has, and why each of the others was rejected."""
    metrics.API_EVENTS.inc(accepted, result=Disposition.ACCEPTED, reason="")
    for reason, count in Counter(reason or "" for reason in rejected).items():
        metrics.API_EVENTS.inc(count, result=Disposition.REJECTED, reason=reason)
