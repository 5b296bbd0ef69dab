"""The OpenAPI 3.1 document: every route with its parameters and what it answers with, made of what the routes read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from api import (
    bills,
    explanations,
    forecasts,
    invoices,
    lists,
    meter_query_request,
    models,
    usage,
    views,
    watches,
    window_stream,
)
from api.answers import JSON, to_json
from api.endpoint_schemas import endpoint_paths
from api.events import Services, authorized
from api.openapi_schemas import (
    ACCESS_ANSWER,
    BOOLEAN,
    EXPLAINED_EVENT,
    HIT,
    INSTANT,
    INVOICE,
    MATCH,
    METER,
    METER_ANSWER,
    METER_ANSWER_V3,
    NEEDED,
    NEXT,
    OBJECT,
    PARAMETERS,
    TEXT,
    THRESHOLD,
    USAGE_COLUMNS,
    VIEW_PARAMETERS,
    VIEW_ROWS,
    WATCH,
    WATCHED_PARAMETERS,
    WHOLE,
    WHOLE_INVOICE,
    Schema,
    answer_of,
    one_of,
    or_null,
    rows_of,
)
from api.parameters import AFTER, MAX_ACCOUNTS, MAX_NAME_CHARACTERS, WAIT
from api.problems import MEDIA_TYPE, Problem
from api.read_request import STAFF
from jobs.queries import contracts, corrections, stragglers
from jobs.queries import forecasts as forecast_query
from jobs.queries import models as model_query
from jobs.queries.periods import Window
from metering.api_keys import Scope
from monitoring.metrics import ApiRoute

PATH = "/openapi.json"
_READ_QUERIES: Mapping[ApiRoute, tuple[str, tuple[str, ...], Schema]] = {
    ApiRoute.USAGE: (
        "Quantity and amount by window.",
        usage.PARAMETERS,
        answer_of(rows_of(USAGE_COLUMNS, others=True), next=NEXT),
    ),
    ApiRoute.BILLS: (
        "The lines of a month so far, and the totals of the accounts that have some.",
        bills.BILLS,
        answer_of(rows_of(bills.LINE), fees=rows_of(bills.FEE), totals=rows_of(bills.TOTAL), next=NEXT),
    ),
    ApiRoute.INVOICES: (
        "Invoices in the order of their numbers.",
        invoices.INVOICES,
        answer_of({"type": "array", "items": INVOICE}, next=NEXT),
    ),
    ApiRoute.INVOICE: (
        "An invoice with its lines, and its states with their hashes.",
        (),
        answer_of(WHOLE_INVOICE),
    ),
    ApiRoute.PRICES: (
        "What each account pays for a unit of each meter.",
        bills.PRICES,
        answer_of(rows_of(contracts.COLUMNS), next=NEXT),
    ),
    ApiRoute.CORRECTIONS: (
        "What changed windows after they had closed, in the order in which it did.",
        lists.CORRECTIONS,
        answer_of(rows_of(("number", *corrections.COLUMNS)), next=WHOLE),
    ),
    ApiRoute.STRAGGLERS: (
        "Usage that came after its window's grace, and what became of it.",
        lists.STRAGGLERS,
        answer_of(rows_of(stragglers.COLUMNS, optional=STAFF), next=NEXT),
    ),
    ApiRoute.MODELS: (
        "The models that are used most, beside the span of equal length before; the last seven days by default.",
        models.PARAMETERS,
        answer_of(rows_of(model_query.COLUMNS)),
    ),
    ApiRoute.FORECAST: (
        "What the usage of accounts will cost in a month, with the error of the same forecast in months before.",
        forecasts.PARAMETERS,
        answer_of(rows_of(forecast_query.COLUMNS), next=NEXT),
    ),
    ApiRoute.VIEW: (
        "What a declared view measures, in windows of any kind. `Accept: text/csv` gets CSV.",
        views.PARAMETERS,
        answer_of(VIEW_ROWS, since=or_null(INSTANT), next=NEXT),
    ),
    ApiRoute.THRESHOLDS: (
        "The thresholds of limits that were crossed, and whether each is crossed now.",
        watches.THRESHOLDS,
        answer_of({"type": "array", "items": THRESHOLD}, next=NEXT),
    ),
    ApiRoute.WATCHES: (
        "The stored queries past which every outcome runs, by name.",
        watches.WATCHES,
        answer_of({"type": "array", "items": WATCH}, next=NEXT),
    ),
    ApiRoute.WATCH_HITS: (
        "Outcomes that a watch took: of each hour the first 100 that were received.",
        watches.HITS,
        answer_of({"type": "array", "items": HIT}, next=NEXT),
    ),
    ApiRoute.PATTERN_MATCHES: (
        "Final matches of a pattern that hold, the earliest first.",
        watches.MATCHES,
        answer_of({"type": "array", "items": MATCH}, next=NEXT),
    ),
    ApiRoute.REQUEST: (
        "The way from a bill down to the records of a request or event.",
        explanations.PARAMETERS,
        answer_of(OBJECT),
    ),
    ApiRoute.EVENT: (
        "What became of an event, and the way from a bill down to its records.",
        explanations.PARAMETERS,
        answer_of(EXPLAINED_EVENT),
    ),
    ApiRoute.METERS: ("OpenMeter's list of meters.", (), {"type": "array", "items": METER}),
    ApiRoute.PORTAL_QUERY: (
        "The query of a meter, also with a portal token.",
        meter_query_request.MEMBERS,
        METER_ANSWER,
    ),
    ApiRoute.METER_QUERY: (
        "OpenMeter's query of one meter. `Accept: text/csv` gets CSV.",
        meter_query_request.MEMBERS,
        METER_ANSWER,
    ),
}
_OWN_PARAMETERS: Mapping[ApiRoute, Mapping[str, tuple[Schema, str]]] = {
    ApiRoute.VIEW: VIEW_PARAMETERS,
    ApiRoute.WATCH_HITS: WATCHED_PARAMETERS,
    ApiRoute.PATTERN_MATCHES: WATCHED_PARAMETERS,
}
_EVENT: Schema = {
    "type": "object",
    "properties": {
        **{name: {**TEXT, "minLength": 1} for name in ("id", "source", "type")},
        "specversion": one_of(("1.0",)),
        "subject": {"type": "string", "description": "The account."},
        "time": or_null(INSTANT),
        "data": {"description": "As the contract of `type` has it."},
    },
    "required": ["specversion", "id", "source", "type"],
    "description": "A CloudEvent 1.0 in structured JSON; extensions may stand beside these members.",
}
_EVENTS: Schema = {"anyOf": [_EVENT, {"type": "array", "items": _EVENT, "maxItems": 1_000}]}
_CLOUD_EVENTS = ("application/cloudevents+json", "application/cloudevents-batch+json", "application/json")
_TAKEN: Schema = {
    "type": "object",
    "properties": {
        "accepted": WHOLE,
        "rejected": {"type": "array", "items": OBJECT},
        "position": or_null(TEXT),
    },
    "required": ["accepted", "rejected", "position"],
}
_POSTS: Mapping[ApiRoute, tuple[str, HTTPStatus, tuple[str, ...], Schema | None]] = {
    ApiRoute.OPENMETER: ("All events or none.", HTTPStatus.NO_CONTENT, _CLOUD_EVENTS, None),
    ApiRoute.OPENMETER_V3: ("All events or none.", HTTPStatus.ACCEPTED, _CLOUD_EVENTS, None),
    ApiRoute.OWN: (
        "Valid events are taken, and the answer names each other one.",
        HTTPStatus.OK,
        (*_CLOUD_EVENTS, "application/x-ndjson"),
        _TAKEN,
    ),
    ApiRoute.TRACES: (
        "Spans of OpenTelemetry (OTLP).",
        HTTPStatus.OK,
        ("application/x-protobuf", "application/json"),
        OBJECT,
    ),
}


def document() -> Schema:
    """The whole document."""
    paths: dict[str, Any] = {}
    for route, (summary, names, answer) in _READ_QUERIES.items():
        shown = _path_parameters(route.value)
        parameters = [*shown, *_parameters(names, _OWN_PARAMETERS.get(route, {}))]
        operation = {"summary": summary, "parameters": parameters, "responses": _responses(answer)}
        paths[route.value] = {"get": operation}
    paths[ApiRoute.WINDOW_STREAM.value] = {"get": _stream()}
    paths[ApiRoute.METER_QUERY.value]["post"] = _posted_query()
    paths[ApiRoute.PORTAL_TOKENS.value] = {"post": _portal_tokens()}
    paths[ApiRoute.PORTAL_INVALIDATE.value] = {"post": _portal_invalidation()}
    paths[ApiRoute.METER_QUERY_V3.value] = {"post": _posted_query_v3()}
    paths[ApiRoute.CORRECTIONS_ACK.value] = {"post": _acknowledgement()}
    paths[ApiRoute.ENTITLEMENT_ACCESS.value] = {"post": _entitlement_access()}
    paths |= endpoint_paths()
    for route, (summary, status, types, taken) in _POSTS.items():
        schema = OBJECT if route is ApiRoute.TRACES else _EVENTS
        body = {"required": True, "content": {name: {"schema": schema} for name in types}}
        responses = _responses(taken, status)
        paths[route.value] = {"post": {"summary": summary, "requestBody": body, "responses": responses}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Weir", "version": "1", "description": "Usage metering for AI APIs: events in, usage out."},
        "security": [{"key": []}],
        "paths": dict(sorted(paths.items())),
        "components": {
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "`weir keys create`, or a token of the configured identity provider",
                }
            },
            "schemas": {"Problem": _problem()},
            "responses": {
                "Problem": {
                    "description": "What is wrong, and what to do.",
                    "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
                }
            },
        },
    }


async def openapi(request: Request, services: Services) -> Response:
    """`GET /openapi.json`, for any key that holds."""
    try:
        authorized(request, services, Scope.READ)
    except Problem as problem:
        if problem.status is not HTTPStatus.FORBIDDEN:
            raise
    return Response(to_json(document()), media_type=JSON)


def _stream() -> Schema:
    last = {
        "name": window_stream.LAST_EVENT_ID,
        "in": "header",
        "schema": TEXT,
        "description": "`id` of the last event that the client has: the stream goes on after it.",
    }
    content = {window_stream.MEDIA_TYPE: {"schema": TEXT}}
    return {
        "summary": "Changes of usage windows, as server-sent events (`weir.window.v1`), until the client leaves.",
        "parameters": [*_parameters(window_stream.PARAMETERS), last],
        "responses": {**_responses(None), "200": {"description": HTTPStatus.OK.phrase, "content": content}},
    }


def _posted_query() -> Schema:
    listed: Schema = {"anyOf": [TEXT, {"type": "array", "items": TEXT}]}
    members = {
        **{name: PARAMETERS[name][0] for name in meter_query_request.MEMBERS},
        **dict.fromkeys(("subject", "groupBy"), listed),
        **dict.fromkeys(("filterGroupBy", meter_query_request.ADVANCED), OBJECT),
    }
    return {
        "summary": "The same with its parameters in a body.",
        "parameters": _path_parameters(ApiRoute.METER_QUERY.value),
        "requestBody": _body(members),
        "responses": _responses(METER_ANSWER),
    }


def _posted_query_v3() -> Schema:
    strings: Schema = {"type": "array", "items": TEXT}
    wanted: Schema = {"type": "object", "properties": {"eq": TEXT, "in": strings}, "additionalProperties": False}
    dimensions = {"type": "object", "additionalProperties": wanted}
    members: Schema = {
        **{name: PARAMETERS[name][0] for name in ("from", "to")},
        "granularity": one_of(Window),
        "time_zone": PARAMETERS["windowTimeZone"][0],
        "group_by_dimensions": strings,
        "filters": {"type": "object", "properties": {"dimensions": dimensions}, "additionalProperties": False},
    }
    return {
        "summary": "OpenMeter's v3 query of one meter. `Accept: text/csv` gets CSV.",
        "parameters": _path_parameters(ApiRoute.METER_QUERY_V3.value),
        "requestBody": _body(members),
        "responses": _responses(METER_ANSWER_V3),
    }


def _entitlement_access() -> Schema:
    keys = {"type": "array", "items": TEXT, "maxItems": MAX_ACCOUNTS}
    named = {"type": "object", "properties": {"keys": keys}, "required": ["keys"], "additionalProperties": False}
    members = {"customer": named, "feature": named, "include_credits": BOOLEAN}
    return {
        "summary": "OpenMeter's question of a gateway: which customers (accounts) may use which features (meters).",
        "requestBody": _body(members, needed=("customer",)),
        "responses": _responses(ACCESS_ANSWER),
    }


def _acknowledgement() -> Schema:
    name = {**TEXT, "minLength": 1, "maxLength": MAX_NAME_CHARACTERS}
    members = {"consumer": name, "number": {"type": "integer", "minimum": 0, "maximum": lists.MAX_NUMBER}}
    answer = {**members, "waiting": WHOLE}
    return {
        "summary": "A consumer has applied all corrections up to a number.",
        "requestBody": _body(members, needed=members),
        "responses": _responses({"type": "object", "properties": answer, "required": list(answer)}),
    }


def _portal_tokens() -> Schema:
    members = {"subject": TEXT, "allowedMeterSlugs": {"type": "array", "items": TEXT}, "expiresAt": INSTANT}
    answer = {"id": TEXT, **members, "createdAt": INSTANT, "expired": BOOLEAN, "token": TEXT}
    needed = [name for name in answer if name != "allowedMeterSlugs"]
    return {
        "summary": "A token with which a customer reads its own usage; the key needs the scope `portal`.",
        "requestBody": _body(members, needed=("subject",)),
        "responses": _responses({"type": "object", "properties": answer, "required": needed}),
    }


def _portal_invalidation() -> Schema:
    return {
        "summary": "End the token with an id, or all tokens of a subject that were made so far: one of the two.",
        "requestBody": _body({"id": TEXT, "subject": TEXT}),
        "responses": _responses(None, HTTPStatus.NO_CONTENT),
    }


def _body(members: Schema, needed: Iterable[str] = ()) -> Schema:
    schema = {"type": "object", "properties": members, "required": list(needed), "additionalProperties": False}
    return {"required": True, "content": {JSON: {"schema": schema}}}


def _path_parameters(path: str) -> list[Schema]:
    names = [part.strip("{}") for part in path.split("/") if part.startswith("{")]
    return [{"name": name, "in": "path", "required": True, "schema": TEXT} for name in names]


def _parameters(names: Iterable[str], own: Mapping[str, tuple[Schema, str]] = MappingProxyType({})) -> list[Schema]:
    """`own`: those that mean something else on this route."""
    shown = []
    for name in (*names, AFTER, WAIT):
        schema, description = {**PARAMETERS, **own}[name]
        style = {"style": "deepObject"} if schema.get("type") == "object" else {}
        needed = {"required": True} if name in NEEDED else {}
        shown.append({"name": name, "in": "query", "description": description, "schema": schema, **style, **needed})
    return shown


def _responses(answer: Schema | None, status: HTTPStatus = HTTPStatus.OK) -> Schema:
    content = {} if answer is None else {"content": {JSON: {"schema": answer}}}
    return {
        str(status.value): {"description": status.phrase, **content},
        "default": {"$ref": "#/components/responses/Problem"},
    }


def _problem() -> Schema:
    invalid = {"type": "object", "properties": dict.fromkeys(("field", "rule", "source", "reason"), TEXT)}
    members = {
        **dict.fromkeys(("type", "title", "detail", "instance", "code"), TEXT),
        "status": WHOLE,
        "invalid_parameters": {"type": "array", "items": invalid},
    }
    return {"type": "object", "properties": members, "required": ["type", "title", "status", "detail", "instance"]}
