"""The OpenAPI 3.1 document: every route with its parameters and what it answers with, made of what the routes read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from api import bills, explained, lists, meter_question, usage
from api.answers import JSON, to_json
from api.events import Services, authorized
from api.own_writes import DEFAULT_WAIT_SECONDS, MAX_WAIT_SECONDS
from api.problems import MEDIA_TYPE, Problem
from api.questions import AFTER, DEFAULT_ROWS, MAX_ROWS, WAIT
from jobs.queries import contracts, corrections, stragglers
from jobs.queries.periods import Window
from jobs.queries.usage import DETAILS, SUMMED
from metering.api_keys import Scope
from metering.lateness import WindowState
from metering.vocabulary import Decision, UsageCause
from monitoring.metrics import ApiRoute

PATH = "/openapi.json"
Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
INSTANT: Schema = {"type": "string", "format": "date-time"}
DECIMAL: Schema = {"type": "string", "pattern": r"^-?[0-9]+(\.[0-9]+)?$"}
WHOLE: Schema = {"type": "integer"}
LSNS: Schema = {"type": "array", "items": WHOLE}
BOOLEAN: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}


def or_null(schema: Schema) -> Schema:
    """The same, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def one_of(names: Iterable[str]) -> Schema:
    """A closed set of texts."""
    return {"type": "string", "enum": [str(name) for name in names]}


PARAMETERS: Mapping[str, tuple[Schema, str]] = {
    "from": (INSTANT, "Only windows that start at this instant or later (RFC 3339 with an offset)."),
    "to": (INSTANT, "Only windows that start before this instant."),
    "window": (one_of(Window), "Length of the windows."),
    "group_by": (TEXT, "Keys, comma-separated: account, model, meter, and for P1D and P1M dimensions."),
    "account": ({"type": "array", "items": TEXT}, "Only this account; may be repeated. The key must name it."),
    "model": ({"type": "array", "items": TEXT}, "Only this model."),
    "meter": ({"type": "array", "items": TEXT}, "Only this meter."),
    "plan": (TEXT, "Only accounts of this plan."),
    "timezone": (TEXT, "IANA time zone of the days and months of P1D and P1M; UTC by default."),
    "roll_up": (one_of(("true", "false")), "Sum each account with its descendants."),
    "month": ({"type": "string", "pattern": "^[0-9]{4}-(0[1-9]|1[0-2])$"}, "The month; each account's own calendar."),
    "at": (INSTANT, "What is in force at this instant; now by default."),
    "since": ({"type": "integer", "minimum": 0}, "Only corrections with a higher number; `next` of the last answer."),
    "cause": (one_of(UsageCause), "Only this cause."),
    "decision": (one_of(Decision), "Only this decision."),
    "days": ({"type": "integer", "minimum": 1, "maximum": explained.MAX_DAYS}, "How far to look back."),
    "limit": (
        {"type": "integer", "minimum": 1, "maximum": MAX_ROWS, "default": DEFAULT_ROWS},
        "Rows of a page at most.",
    ),
    "cursor": (TEXT, "`next` of the page before."),
    AFTER: (TEXT, "A position that POST /v1/events gave: the answer has what was posted up to it."),
    WAIT: (
        {"type": "integer", "minimum": 0, "maximum": MAX_WAIT_SECONDS, "default": DEFAULT_WAIT_SECONDS},
        "Seconds to wait for that; then 409 (`not_yet`).",
    ),
    "windowSize": (one_of(meter_question.WindowSize), "Length of the windows; without it one total."),
    "windowTimeZone": (TEXT, "IANA time zone of days and months; UTC by default."),
    "subject": ({"type": "array", "items": TEXT}, "Only this account, and group by accounts; may be repeated."),
    "groupBy": ({"type": "array", "items": TEXT}, "subject, model or a dimension; may be repeated."),
    "filterGroupBy": ({"type": "object", "additionalProperties": TEXT}, "filterGroupBy[model]=gpt-4o"),
    meter_question.ADVANCED: (TEXT, 'JSON: {"model": {"$in": ["gpt-4o"]}}'),
    "clientId": (TEXT, "Not used."),
}
NEEDED = ("month",)
"""Parameters without which there is no answer."""

COLUMNS: Mapping[str, Schema] = {
    **dict.fromkeys(("account", "meter", "plan", "plan_name", "request_id", "timezone"), TEXT),
    **dict.fromkeys(("model", "currency", "name", "parent", "decided_by", "reason"), or_null(TEXT)),
    **dict.fromkeys(("window_start", "window_end", "corrected_at", "event_time", "received_at"), INSTANT),
    **dict.fromkeys(("effective_from", "account_from", "changed_at", "period_start", "period_end"), INSTANT),
    **dict.fromkeys(("in_force_until", "hold_until", "decided_at"), or_null(INSTANT)),
    **dict.fromkeys(("quantity", "billed_quantity", "free_quantity", "unpriced_quantity", "old_quantity"), DECIMAL),
    "new_quantity": DECIMAL,
    **dict.fromkeys(("amount", "old_amount", "new_amount", "unit_price", "late_quantity"), or_null(DECIMAL)),
    **dict.fromkeys(("number", "usage_lsn", "unpriced_lines"), WHOLE),
    **dict.fromkeys(("price_version", "unmetered_requests"), or_null(WHOLE)),
    "late_seconds": {"type": "number"},
    "usage_lsns": LSNS,
    "corrected": BOOLEAN,
    "state": one_of(WindowState),
    "cause": one_of(UsageCause),
    "decision": or_null(one_of(Decision)),
    "dimensions": or_null(OBJECT),
}


def _rows(columns: Iterable[str], *, others: bool = False) -> Schema:
    """Rows with these columns. `others`: and further ones, as keys that are asked for."""
    named = {name: COLUMNS[name] for name in columns}
    row: Schema = {"type": "object", "properties": named, "required": list(named)}
    return {"type": "array", "items": row if others else {**row, "additionalProperties": False}}


def _answer(data: Schema, **more: Schema) -> Schema:
    members = {"data": data, "frontier": or_null(INSTANT), **more}
    return {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}


_NEXT = or_null(TEXT)
_USAGE = ("window_start", "window_end", "currency", *SUMMED, *DETAILS, "state")
_METER: Schema = {
    "type": "object",
    "properties": dict.fromkeys(("id", "slug", "description", "eventType", "valueProperty", "windowSize"), TEXT)
    | {"aggregation": one_of(("SUM", "COUNT"))},
    "required": ["id", "slug", "eventType", "aggregation"],
}
_METER_ROW: Schema = {
    "type": "object",
    "properties": {
        "value": {"type": "number"},
        "windowStart": INSTANT,
        "windowEnd": INSTANT,
        "subject": or_null(TEXT),
        "groupBy": {"type": "object", "additionalProperties": or_null(TEXT)},
    },
    "required": ["value", "windowStart", "windowEnd", "subject", "groupBy"],
}
_METER_ANSWER: Schema = {
    "type": "object",
    "properties": {
        "from": INSTANT,
        "to": INSTANT,
        "windowSize": one_of(meter_question.WindowSize),
        "data": {"type": "array", "items": _METER_ROW},
    },
    "required": ["data"],
}
_QUESTIONS: Mapping[ApiRoute, tuple[str, tuple[str, ...], Schema]] = {
    ApiRoute.USAGE: (
        "Quantity and amount by window.",
        usage.PARAMETERS,
        _answer(_rows(_USAGE, others=True), next=_NEXT),
    ),
    ApiRoute.BILLS: (
        "The lines of a month so far, and the totals of the accounts that have some.",
        bills.BILLS,
        _answer(_rows(bills.LINE), totals=_rows(bills.TOTAL), next=_NEXT),
    ),
    ApiRoute.PRICES: (
        "What each account pays for a unit of each meter.",
        bills.PRICES,
        _answer(_rows(contracts.COLUMNS), next=_NEXT),
    ),
    ApiRoute.CORRECTIONS: (
        "What changed windows after they had closed, in the order in which it did.",
        lists.CORRECTIONS,
        _answer(_rows(("number", *corrections.COLUMNS)), next=WHOLE),
    ),
    ApiRoute.STRAGGLERS: (
        "Usage that came after its window's grace, and what became of it.",
        lists.STRAGGLERS,
        _answer(_rows(stragglers.COLUMNS), next=_NEXT),
    ),
    ApiRoute.REQUEST: (
        "The way from a bill down to the records of a request or event.",
        explained.PARAMETERS,
        _answer(OBJECT),
    ),
    ApiRoute.METERS: ("OpenMeter's list of meters.", (), {"type": "array", "items": _METER}),
    ApiRoute.METER_QUERY: (
        "OpenMeter's question about one meter. `Accept: text/csv` gets CSV.",
        meter_question.MEMBERS,
        _METER_ANSWER,
    ),
}
_EVENTS: Schema = {"anyOf": [OBJECT, {"type": "array", "items": OBJECT, "maxItems": 1_000}]}
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
    for route, (summary, names, answer) in _QUESTIONS.items():
        shown = _path_parameters(route.value)
        asked = {"summary": summary, "parameters": [*shown, *_parameters(names)], "responses": _responses(answer)}
        paths[route.value] = {"get": asked}
    paths[ApiRoute.METER_QUERY.value]["post"] = _posted_question()
    for route, (summary, status, types, taken) in _POSTS.items():
        body = {"required": True, "content": {name: {"schema": _EVENTS} for name in types}}
        responses = _responses(taken, status)
        paths[route.value] = {"post": {"summary": summary, "requestBody": body, "responses": responses}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Weir", "version": "1", "description": "Usage metering for AI APIs: events in, usage out."},
        "security": [{"key": []}],
        "paths": dict(sorted(paths.items())),
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "`weir keys create`"}},
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


def _posted_question() -> Schema:
    listed: Schema = {"anyOf": [TEXT, {"type": "array", "items": TEXT}]}
    members = {
        **{name: PARAMETERS[name][0] for name in meter_question.MEMBERS},
        **dict.fromkeys(("subject", "groupBy"), listed),
        **dict.fromkeys(("filterGroupBy", meter_question.ADVANCED), OBJECT),
    }
    body = {"type": "object", "properties": members, "additionalProperties": False}
    return {
        "summary": "The same with its parameters in a body.",
        "parameters": _path_parameters(ApiRoute.METER_QUERY.value),
        "requestBody": {"required": True, "content": {JSON: {"schema": body}}},
        "responses": _responses(_METER_ANSWER),
    }


def _path_parameters(path: str) -> list[Schema]:
    names = [part.strip("{}") for part in path.split("/") if part.startswith("{")]
    return [{"name": name, "in": "path", "required": True, "schema": TEXT} for name in names]


def _parameters(names: Iterable[str]) -> list[Schema]:
    shown = []
    for name in (*names, AFTER, WAIT):
        schema, description = PARAMETERS[name]
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
