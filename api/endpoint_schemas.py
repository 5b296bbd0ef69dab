"""The operations of `/v1/webhook-endpoints` in the OpenAPI document."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from http import HTTPStatus

from api import endpoint_bodies
from api.openapi_schemas import INSTANT, NEXT, PARAMETERS, TEXT, WHOLE, Schema, one_of, or_null
from api.parameters import MAX_ACCOUNTS
from api.webhook_endpoints import STAFF
from monitoring.metrics import ApiRoute
from webhooks.changing import Switch
from webhooks.event_types import EventType
from webhooks.kinds import Kind
from webhooks.outcomes import State
from webhooks.signing import Signature

_TEXTS: Schema = {"type": "array", "items": TEXT}
_ENDPOINT: Mapping[str, Schema] = {
    "endpoint": TEXT,
    "kind": one_of(Kind),
    "url": TEXT,
    "events": {"type": "array", "items": TEXT},
    "accounts": {**_TEXTS, "description": "None: the events of all."},
    "note": or_null(TEXT),
    "state": one_of(Switch),
    **dict.fromkeys(("waiting", "dead", "removed"), WHOLE),
    **dict.fromkeys(("waiting_since", "disabled_at", "paused_until"), or_null(INSTANT)),
    "changed_by": TEXT,
    "created_at": INSTANT,
    "disabled_reason": or_null(TEXT),
}
_SECRET: Schema = {**TEXT, "description": "What its receiver verifies calls with; it is not shown again."}
_DELIVERY: Mapping[str, Schema] = {
    **dict.fromkeys(("endpoint", "event_id", "type", "account"), TEXT),
    **dict.fromkeys(("number", "attempts"), WHOLE),
    "made_at": INSTANT,
    "state": one_of(State),
    **dict.fromkeys(("next_attempt_at", "last_attempt_at"), or_null(INSTANT)),
    "last_status": or_null(WHOLE),
    "last_error": or_null(TEXT),
}
_ATTEMPT: Mapping[str, Schema] = {
    "attempted_at": INSTANT,
    "status": or_null(WHOLE),
    "error": or_null(TEXT),
    "duration_ms": WHOLE,
}
_NAMES: Schema = {
    "type": "array",
    "items": {**TEXT, "minLength": 1, "maxLength": endpoint_bodies.MAX_ACCOUNT_CHARACTERS},
    "minItems": 1,
    "maxItems": MAX_ACCOUNTS,
}
_URL: Schema = {**TEXT, "minLength": 1, "maxLength": endpoint_bodies.MAX_URL_CHARACTERS}
_NOTE: Schema = {**TEXT, "minLength": 1, "maxLength": endpoint_bodies.MAX_NOTE_CHARACTERS}
_EVENTS: Schema = {"type": "array", "items": one_of(EventType), "minItems": 1}
_NEW: Mapping[str, Schema] = {
    "url": {**_URL, "description": "Where events are posted, by https; or an address of mail."},
    "kind": {**one_of(Kind), "default": Kind.WEBHOOK.value},
    "events": {**_EVENTS, "description": "All types of this release by default."},
    "accounts": {**_NAMES, "description": "Those of the key by default; without any, all."},
    "note": or_null(_NOTE),
    "signature": {**one_of(Signature), "default": Signature.V1.value},
}
_CHANGED: Mapping[str, Schema] = {
    "url": _URL,
    "events": _EVENTS,
    "note": or_null(_NOTE),
    "state": one_of(Switch),
    "reason": {**_NOTE, "description": "Why it is disabled; with that state alone."},
}
_OVERLAP: Schema = {
    "type": "integer",
    "minimum": 0,
    "maximum": endpoint_bodies.MAX_OVERLAP_HOURS,
    "default": endpoint_bodies.DEFAULT_OVERLAP_HOURS,
    "description": "So long the secrets before sign beside the new one.",
}
_STATE: Schema = {
    "name": "state",
    "in": "query",
    "description": "Only deliveries in this state.",
    "schema": one_of(State),
}


def endpoint_paths() -> dict[str, Schema]:
    """By path: the operations, each of which needs a key of the scope `webhooks`."""
    endpoint = _object(_ENDPOINT, STAFF)
    made = _object({**_ENDPOINT, "verifies_with": or_null(_SECRET)}, STAFF)
    counts = _object(dict.fromkeys(State, WHOLE))
    removed = _object({"endpoint": TEXT, "deliveries": counts})
    deliveries = {"type": "array", "items": _object(_DELIVERY)}
    of_one, page = [_path("endpoint")], [_query("limit"), _query("cursor")]
    return {
        ApiRoute.WEBHOOK_ENDPOINTS.value: {
            "get": _operation("Endpoints of webhooks, the oldest first.", {"type": "array", "items": endpoint}),
            "post": _operation(
                "Add an endpoint; it receives events that happen from then on.",
                made,
                body=_object(_NEW, set(_NEW) - {"url"}),
                status=HTTPStatus.CREATED,
            ),
        },
        ApiRoute.WEBHOOK_ENDPOINT.value: {
            "get": _operation("An endpoint.", endpoint, of_one),
            "patch": _operation("Change an endpoint.", endpoint, of_one, body=_object(_CHANGED, _CHANGED)),
            "delete": _operation("Remove an endpoint with its deliveries: how many, by state.", removed, of_one),
        },
        ApiRoute.WEBHOOK_ROTATE.value: {
            "post": _operation(
                "Make a new secret; the ones before sign beside it for a while.",
                _object({"endpoint": TEXT, "verifies_with": _SECRET}),
                of_one,
                body=_object({"overlap_hours": _OVERLAP}, ("overlap_hours",)),
            )
        },
        ApiRoute.WEBHOOK_DELIVERIES.value: {
            "get": _operation(
                "Deliveries to an endpoint, the newest first, each with its last attempt.",
                deliveries,
                [*of_one, _STATE, *page],
                more={"next": NEXT},
            )
        },
        ApiRoute.WEBHOOK_ATTEMPTS.value: {
            "get": _operation(
                "Every attempt of a delivery, the first one first.",
                {"type": "array", "items": _object(_ATTEMPT)},
                [*of_one, _path("number", {"type": "integer", "minimum": 0})],
            )
        },
        ApiRoute.WEBHOOK_RESEND.value: {
            "post": _operation(
                "Send a delivery again, with the same id.",
                _object({"endpoint": TEXT, "number": WHOLE}),
                [*of_one, _path("number", {"type": "integer", "minimum": 0})],
                status=HTTPStatus.ACCEPTED,
            )
        },
    }


def _operation(
    summary: str,
    data: Schema,
    parameters: Collection[Schema] = (),
    *,
    body: Schema | None = None,
    status: HTTPStatus = HTTPStatus.OK,
    more: Mapping[str, Schema] | None = None,
) -> Schema:
    answer = _object({"data": data, **(more or {})})
    content = {"application/json": {"schema": answer}}
    request = (
        {} if body is None else {"requestBody": {"required": True, "content": {"application/json": {"schema": body}}}}
    )
    return {
        "summary": summary,
        "parameters": list(parameters),
        **request,
        "responses": {
            str(status.value): {"description": status.phrase, "content": content},
            "default": {"$ref": "#/components/responses/Problem"},
        },
    }


def _object(members: Mapping[str, Schema], optional: Collection[str] = ()) -> Schema:
    return {
        "type": "object",
        "properties": {str(name): schema for name, schema in members.items()},
        "required": [str(name) for name in members if name not in optional],
        "additionalProperties": False,
    }


def _path(name: str, schema: Schema = TEXT) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _query(name: str) -> Schema:
    schema, description = PARAMETERS[name]
    return {"name": name, "in": "query", "description": description, "schema": schema}
