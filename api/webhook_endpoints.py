"""`/v1/webhook-endpoints`: endpoints and their deliveries over HTTP, by what `weir webhooks` calls, too.

A key needs the scope `webhooks`: whoever adds an endpoint chooses where data goes. One that names accounts sees and
changes the endpoints whose accounts it all names, and no other. Nobody may add a private address here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from http import HTTPStatus
from itertools import islice
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from api.answers import JSON, columns_of, to_json
from api.endpoint_bodies import (
    CHANGED,
    NEW,
    ROTATED,
    change_in,
    new_endpoint_in,
    overlap_in,
    refuse_mail,
    refused_as_problem,
)
from api.endpoint_store import NO_ENDPOINT, EndpointStore
from api.events import Services, authorized
from api.meter_query_request import body_of
from api.parameters import Parameters, bad_request
from api.problems import Problem
from api.read_request import page_of, sees_staff
from metering.api_keys import ApiKey, Scope
from monitoring.metrics import ApiRoute
from webhooks import endpoints
from webhooks.addresses import without_address
from webhooks.changing import change
from webhooks.delivery_log import COLUMNS as ATTEMPT_COLUMNS
from webhooks.delivery_log import attempts
from webhooks.kinds import Kind
from webhooks.outcomes import State

DELIVERIES = ("state", "limit", "cursor")
MAX_ENDPOINTS = 100
"""Of the accounts of a key that names some. A key that names none adds as many as there are customers."""
MAX_NUMBER_DIGITS = 18
STAFF = ("changed_by",)


def endpoint_routes(services: Services, store: EndpointStore) -> list[Route]:
    """The routes of C4."""

    def route(path: ApiRoute, methods: Mapping[str, Callable[[Request, Services, EndpointStore], Any]]) -> Route:
        async def answer(request: Request) -> Response:
            response: Response = await methods[request.method](request, services, store)
            return response

        return Route(path.value, answer, methods=[name for name in methods if name != "HEAD"])

    return [
        route(ApiRoute.WEBHOOK_ENDPOINTS, {"GET": list_all, "HEAD": list_all, "POST": add}),
        route(ApiRoute.WEBHOOK_ENDPOINT, {"GET": get, "HEAD": get, "PATCH": patch, "DELETE": delete}),
        route(ApiRoute.WEBHOOK_ROTATE, {"POST": rotate}),
        route(ApiRoute.WEBHOOK_DELIVERIES, {"GET": list_deliveries, "HEAD": list_deliveries}),
        route(ApiRoute.WEBHOOK_ATTEMPTS, {"GET": list_attempts, "HEAD": list_attempts}),
        route(ApiRoute.WEBHOOK_RESEND, {"POST": resend}),
    ]


async def list_all(request: Request, services: Services, store: EndpointStore) -> Response:
    """`{"data": […]}`: the endpoints of the key's accounts, the oldest first, without their secrets."""
    key = authorized(request, services, Scope.WEBHOOKS)
    Parameters.of(request.query_params, ())
    rows = await store.run(partial(endpoints.listed, accounts=key.accounts))
    return _answer([_shown(row, key) for row in rows])


async def add(request: Request, services: Services, store: EndpointStore) -> Response:
    """201 with the endpoint and `verifies_with`, which is not shown again; null where calls are not signed."""
    key = authorized(request, services, Scope.WEBHOOKS)
    wanted = new_endpoint_in(await body_of(request, NEW), key)
    limit = MAX_ENDPOINTS if key.accounts else None

    def make(database: str) -> dict[str, Any]:
        made = endpoints.add(database, by=_author(key), max_endpoints=limit, **asdict(wanted))
        return {**_shown(endpoints.details(database, made.endpoint), key), "verifies_with": made.verifies_with or None}

    return _answer(await store.run(make), HTTPStatus.CREATED)


async def get(request: Request, services: Services, store: EndpointStore) -> Response:
    """One endpoint, with the keys of the list."""
    key = authorized(request, services, Scope.WEBHOOKS)
    Parameters.of(request.query_params, ())
    return _answer(
        await _run(request, key, store, lambda database, endpoint: _shown(endpoints.details(database, endpoint), key))
    )


async def patch(request: Request, services: Services, store: EndpointStore) -> Response:
    """Change `url`, `events`, `note` and `state`; what waits for it is sent to the new URL. As `get`."""
    key = authorized(request, services, Scope.WEBHOOKS)
    wanted = change_in(await body_of(request, CHANGED))

    def write(database: str, endpoint: str) -> dict[str, Any]:
        if wanted.url is not None:
            # Its kind never changes.
            refuse_mail(key, Kind(endpoints.details(database, endpoint)["kind"]))
        change(database, endpoint, _author(key), wanted)
        return _shown(endpoints.details(database, endpoint), key)

    with refused_as_problem():
        return _answer(await _run(request, key, store, write))


async def delete(request: Request, services: Services, store: EndpointStore) -> Response:
    """Remove an endpoint with its deliveries: how many there were, by their state. Those that wait are never sent."""
    key = authorized(request, services, Scope.WEBHOOKS)
    Parameters.of(request.query_params, ())

    def remove(database: str, endpoint: str) -> dict[str, Any]:
        return {"endpoint": endpoint, "deliveries": endpoints.remove(database, endpoint, _author(key))}

    return _answer(await _run(request, key, store, remove))


async def rotate(request: Request, services: Services, store: EndpointStore) -> Response:
    """A new secret, shown once; the ones before sign beside it for `overlap_hours`."""
    key = authorized(request, services, Scope.WEBHOOKS)
    overlap = overlap_in(await body_of(request, ROTATED))
    return _answer(
        await _run(
            request,
            key,
            store,
            lambda database, endpoint: asdict(endpoints.rotate(database, endpoint, _author(key), overlap)),
        )
    )


async def list_deliveries(request: Request, services: Services, store: EndpointStore) -> Response:
    """What was queued for an endpoint, the newest first, each with its last attempt."""
    key = authorized(request, services, Scope.WEBHOOKS)
    given = Parameters.of(request.query_params, DELIVERIES)
    state, limit, cursor = given.choice("state", State), given.limit(), given.cursor(1)
    before = _number(cursor[0], "cursor") if cursor else None

    def read(database: str, endpoint: str) -> list[dict[str, Any]]:
        return list(islice(endpoints.deliveries(database, endpoint, state, limit + 1, before), limit + 1))

    rows, following = page_of(await _run(request, key, store, read), limit, lambda row: [row["number"]])
    return _answer(_without_addresses(columns_of(rows, endpoints.DELIVERY_COLUMNS), "last_error", key), more=following)


async def list_attempts(request: Request, services: Services, store: EndpointStore) -> Response:
    """Every attempt of a delivery, the first one first."""
    key = authorized(request, services, Scope.WEBHOOKS)
    Parameters.of(request.query_params, ())
    read = partial(attempts, number=_number(request.path_params["number"], "number"))
    return _answer(_without_addresses(columns_of(await _run(request, key, store, read), ATTEMPT_COLUMNS), "error", key))


async def resend(request: Request, services: Services, store: EndpointStore) -> Response:
    """202: the delivery is sent again, with the id of its event, delivered or not."""
    key = authorized(request, services, Scope.WEBHOOKS)
    Parameters.of(request.query_params, ())
    number = _number(request.path_params["number"], "number")
    send_again = partial(_resend, number=number)
    return _answer(await _run(request, key, store, send_again), HTTPStatus.ACCEPTED)


async def _run(request: Request, key: ApiKey, store: EndpointStore, call: Callable[[str, str], Any]) -> Any:
    """What `call` returns for the endpoint of the path. Raises Problem: 404 for one that the key does not see."""
    endpoint: str = request.path_params["endpoint"]
    if "\0" in endpoint or not endpoint.isascii():
        raise Problem(HTTPStatus.NOT_FOUND, NO_ENDPOINT)

    def checked(database: str) -> Any:
        # Its accounts never change, so what holds here holds in `call`.
        if not _is_of(key, endpoints.accounts_of(database, endpoint)):
            raise Problem(HTTPStatus.NOT_FOUND, NO_ENDPOINT)
        return call(database, endpoint)

    return await store.run(checked)


def _is_of(key: ApiKey, accounts: list[str]) -> bool:
    return not key.accounts or (bool(accounts) and key.accounts.issuperset(accounts))


def _shown(row: Mapping[str, Any], key: ApiKey) -> dict[str, Any]:
    hidden = () if sees_staff(key) else STAFF
    return {name: row[name] for name in endpoints.COLUMNS if name not in hidden}


def _without_addresses(rows: list[dict[str, Any]], error: str, key: ApiKey) -> list[dict[str, Any]]:
    return rows if sees_staff(key) else [{**row, error: without_address(row[error])} for row in rows]


def _resend(database: str, endpoint: str, number: int) -> dict[str, Any]:
    endpoints.resend(database, endpoint, [number])
    return {"endpoint": endpoint, "number": number}


def _number(text: str | None, name: str) -> int:
    if text is None or not (text.isascii() and text.isdigit() and len(text) <= MAX_NUMBER_DIGITS):
        raise bad_request(name, "It must be the number of a delivery.", "path" if name == "number" else "query")
    return int(text)


def _author(key: ApiKey) -> str:
    return f"key {key.id}"


def _answer(data: Any, status: HTTPStatus = HTTPStatus.OK, more: Mapping[str, Any] | None = None) -> Response:
    document = to_json({"data": data, **(more or {})})
    return Response(document, status, headers={"Cache-Control": "no-store"}, media_type=JSON)
