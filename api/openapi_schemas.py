"""Schemas of the OpenAPI document: parameters, columns, and answers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from api import explanations, meter_query_request
from api.entitlement_access import CUSTOMER_NOT_FOUND, Denied
from api.own_writes import DEFAULT_WAIT_SECONDS, MAX_WAIT_SECONDS
from api.parameters import AFTER, DEFAULT_ROWS, MAX_ROWS, WAIT
from jobs.queries.models import Measure
from jobs.queries.periods import Window
from jobs.queries.usage import DETAILS, SUMMED
from metering.invoices import Kind, State
from metering.lateness import WindowState
from metering.limits import CALENDAR_PERIODS, ROLLING_PERIODS
from metering.once_per import DURATION
from metering.period_meters import Period
from metering.plan_terms import Fee
from metering.price_tiers import Kind as PriceKind
from metering.views import RANKS
from metering.vocabulary import Decision, Disposition, UsageCause

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
    "period": ({"type": "string", "pattern": "^[0-9]{4}-(0[1-9]|1[0-2])$"}, "Only invoices of this month."),
    "at": (INSTANT, "What is in force at this instant; now by default."),
    "since": ({"type": "integer", "minimum": 0}, "Only corrections with a higher number; `next` of the last answer."),
    "cause": (one_of(UsageCause), "Only this cause."),
    "by": (one_of(Measure), "What to rank by; amounts by currency. requests by default."),
    "decision": (one_of(Decision), "Only this decision."),
    "days": ({"type": "integer", "minimum": 1, "maximum": explanations.MAX_DAYS}, "How far to look back."),
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
    "windowSize": (one_of(meter_query_request.WindowSize), "Length of the windows; without it one total."),
    "windowTimeZone": (TEXT, "IANA time zone of days and months; UTC by default."),
    "subject": ({"type": "array", "items": TEXT}, "Only this account, and group by accounts; may be repeated."),
    "groupBy": ({"type": "array", "items": TEXT}, "subject, model or a dimension; may be repeated."),
    "filterGroupBy": ({"type": "object", "additionalProperties": TEXT}, "filterGroupBy[model]=gpt-4o"),
    meter_query_request.ADVANCED: (TEXT, 'JSON: {"model": {"$in": ["gpt-4o"]}}'),
    "clientId": (TEXT, "Not used."),
}
_LENGTH: Schema = {"type": "string", "pattern": f"^{DURATION}$"}
VIEW_PARAMETERS: Mapping[str, tuple[Schema, str]] = {
    "from": (INSTANT, "Only windows that end after this instant; each is shown whole. The last hour by default."),
    "to": (INSTANT, "Only windows that begin before this instant."),
    "window": (_LENGTH, "Length of the windows, in whole minutes; that of `windows` of the configuration, else PT5M."),
    "hop": (_LENGTH, "How often a window begins; its length by default."),
    "session": (_LENGTH, "Windows of activity instead: each ends where a key has no outcome for longer than this."),
    "sliding": (one_of(("true", "false")), "One window instead: the last `window` up to the frontier."),
    "account": ({"type": "array", "items": TEXT}, "Only this account, of a view by account; may be repeated."),
}
WATCHED_PARAMETERS: Mapping[str, tuple[Schema, str]] = {
    "from": (INSTANT, "Only hits that occurred, or matches that began, at this instant or later."),
    "to": (INSTANT, "Only those before this instant."),
    "all_versions": (one_of(("true", "false")), "Each change of each match, retracted ones too."),
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
    "tiered_quantity": DECIMAL,
    **dict.fromkeys(("amount", "old_amount", "new_amount", "unit_price", "late_quantity"), or_null(DECIMAL)),
    "next_unit_price": or_null(DECIMAL),
    "kind": or_null(one_of(PriceKind)),
    "fee": one_of(Fee),
    "days": WHOLE,
    **dict.fromkeys(("tier", "terms"), or_null(TEXT)),
    **dict.fromkeys(("number", "usage_lsn", "unpriced_lines"), WHOLE),
    **dict.fromkeys(("price_version", "unmetered_requests"), or_null(WHOLE)),
    **dict.fromkeys(("rank", "users", "months_measured"), or_null(WHOLE)),
    **dict.fromkeys(("requests", "tokens"), DECIMAL),
    **dict.fromkeys(("requests_change", "tokens_change", "amount_change", "users_change"), or_null(DECIMAL)),
    **dict.fromkeys(("peak_requests", "forecast", "error_percent"), or_null(DECIMAL)),
    "so_far": DECIMAL,
    "peak_minute": or_null(INSTANT),
    **dict.fromkeys(("month_start", "month_end", "known_until"), INSTANT),
    "late_seconds": {"type": "number"},
    "usage_lsns": LSNS,
    **dict.fromkeys(("corrected", "pooled"), BOOLEAN),
    "state": one_of(WindowState),
    "cause": one_of(UsageCause),
    "decision": or_null(one_of(Decision)),
    "period": or_null(one_of(Period)),
    "dimensions": or_null(OBJECT),
}


def rows_of(columns: Iterable[str], *, others: bool = False, optional: Collection[str] = ()) -> Schema:
    """Rows with these columns, of which some keys are not shown the `optional` ones.

    `others`: and further ones, as keys that are asked for.
    """
    named = {name: COLUMNS[name] for name in columns}
    row: Schema = {
        "type": "object",
        "properties": named,
        "required": [name for name in named if name not in optional],
    }
    return {"type": "array", "items": row if others else {**row, "additionalProperties": False}}


def answer_of(data: Schema, **more: Schema) -> Schema:
    """An answer with these data, and further members."""
    members = {"data": data, "frontier": or_null(INSTANT), **more}
    return {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}


NEXT = or_null(TEXT)
VIEW_ROWS: Schema = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": dict.fromkeys(("window_start", "window_end"), INSTANT),
        "required": ["window_start", "window_end"],
        "additionalProperties": {"anyOf": [or_null(TEXT), WHOLE, OBJECT, {"type": "array", "items": OBJECT}]},
        "description": "And each key and measure of the view by its name. Percentiles are an object of "
        f"{', '.join(RANKS)}, a top is a list of objects of value and count.",
    },
}
_EVENT: Mapping[str, Schema] = {
    **dict.fromkeys(("source", "id"), TEXT),
    "disposition": one_of(Disposition),
    **dict.fromkeys(("type", "account", "reason", "violation"), or_null(TEXT)),
    **dict.fromkeys(("event_time", "first_received_at"), or_null(INSTANT)),
    "received_at": INSTANT,
    "request_ids": {"type": "array", "items": TEXT},
    **dict.fromkeys(("duplicates", "conflicts"), WHOLE),
}
EXPLAINED_EVENT: Schema = {
    "type": "object",
    "properties": {"event": {"type": "object", "properties": _EVENT, "required": list(_EVENT)}},
    "required": ["event"],
}
_MONTH: Schema = {"type": "string", "pattern": "^[0-9]{4}-(0[1-9]|1[0-2])$"}
_HASH: Schema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_INVOICE: Mapping[str, Schema] = {
    **dict.fromkeys(("invoice", "account", "timezone", "currency"), TEXT),
    "kind": one_of(Kind),
    "period": _MONTH,
    **dict.fromkeys(("period_start", "period_end", "issued_at"), INSTANT),
    "total": DECIMAL,
    "state": one_of((State.ISSUED, State.VOIDED)),
    "hash": _HASH,
    "replaces": or_null(TEXT),
}
_INVOICE_LINE: Mapping[str, Schema] = {
    "line": WHOLE,
    "kind": TEXT,
    "original_period": _MONTH,
    **dict.fromkeys(("charge_class", "corrects_invoice", "model", "meter", "tier"), or_null(TEXT)),
    **dict.fromkeys(("corrects_line", "price_version"), or_null(WHOLE)),
    **dict.fromkeys(("unit_price", "exact_amount"), or_null(DECIMAL)),
    **dict.fromkeys(("quantity", "amount", "residual"), DECIMAL),
}
_INVOICE_EVENT: Mapping[str, Schema] = {
    "state": one_of(State),
    "at": INSTANT,
    "hash": _HASH,
    "made_by": TEXT,
    "reason": or_null(TEXT),
    "allowed": {"type": "array", "items": TEXT},
}


def _row(columns: Mapping[str, Schema], optional: Collection[str] = ()) -> Schema:
    needed = [name for name in columns if name not in optional]
    return {"type": "object", "properties": dict(columns), "required": needed, "additionalProperties": False}


INVOICE = _row(_INVOICE)
WHOLE_INVOICE = _row(
    {
        **_INVOICE,
        "lines": {"type": "array", "items": _row(_INVOICE_LINE)},
        "events": {"type": "array", "items": _row(_INVOICE_EVENT, ("made_by", "reason", "allowed"))},
    }
)
THRESHOLD = _row(
    {
        "account": TEXT,
        "period": one_of((*CALENDAR_PERIODS, *ROLLING_PERIODS)),
        # 1970-01-01: the period rolls.
        "period_start": {"type": "string", "format": "date"},
        **dict.fromkeys(("meter", "currency", "model", "dimension", "dimension_value"), or_null(TEXT)),
        "threshold": DECIMAL,
        "version": WHOLE,
        "is_crossed": BOOLEAN,
        "used": or_null(DECIMAL),
        "changed_at": INSTANT,
        "frontier": or_null(INSTANT),
        "rule": or_null(TEXT),
    }
)
WATCH = _row(
    {
        **dict.fromkeys(("name", "condition"), TEXT),
        "account": or_null(TEXT),
        "state": one_of(("off", "waiting", "running")),
        "hits": WHOLE,
        "added_at": INSTANT,
    }
)
HIT = _row(
    {
        **dict.fromkeys(("hour", "event_time"), INSTANT),
        **dict.fromkeys(("account", "request_id"), or_null(TEXT)),
        **dict.fromkeys(("request_lsn", "completion_lsn"), or_null(WHOLE)),
    }
)
MATCH = _row(
    {
        **dict.fromkeys(("started_at", "ended_at", "changed_at"), INSTANT),
        **dict.fromkeys(("pattern", "match"), TEXT),
        **dict.fromkeys(("version", "outcomes"), WHOLE),
        "is_retracted": BOOLEAN,
        **dict.fromkeys(("keys", "measures"), OBJECT),
        "frontier": or_null(INSTANT),
    }
)
USAGE_COLUMNS = ("window_start", "window_end", "currency", *SUMMED, *DETAILS, "state")
METER: Schema = {
    "type": "object",
    "properties": dict.fromkeys(("id", "slug", "description", "eventType", "valueProperty", "windowSize"), TEXT)
    | {"aggregation": one_of(("SUM", "COUNT", "UNIQUE_COUNT", "MIN", "MAX", "LATEST"))},
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
METER_ANSWER: Schema = {
    "type": "object",
    "properties": {
        "from": INSTANT,
        "to": INSTANT,
        "windowSize": one_of(meter_query_request.WindowSize),
        "data": {"type": "array", "items": _METER_ROW},
    },
    "required": ["data"],
}
_METER_ROW_V3: Schema = {
    "type": "object",
    "properties": {
        "value": DECIMAL,
        "from": INSTANT,
        "to": INSTANT,
        "dimensions": {"type": "object", "additionalProperties": or_null(TEXT)},
    },
    "required": ["value", "from", "to", "dimensions"],
}
METER_ANSWER_V3: Schema = {
    "type": "object",
    "properties": {"from": INSTANT, "to": INSTANT, "data": {"type": "array", "items": _METER_ROW_V3}},
    "required": ["data"],
}
_REASON: Schema = {
    "type": "object",
    "properties": {"code": one_of(Denied), "message": TEXT},
    "required": ["code", "message"],
}
_ACCESS: Schema = {
    "type": "object",
    "properties": {
        "has_access": BOOLEAN,
        "reason": _REASON,
        "may_be_more": {
            "type": "array",
            "items": TEXT,
            "description": "A sentence for each limit of a dimension of which more may have been used than is known.",
        },
    },
    "required": ["has_access"],
}
_CUSTOMER: Schema = {
    "type": "object",
    "properties": {
        **dict.fromkeys(("id", "key", "name"), TEXT),
        **dict.fromkeys(("created_at", "updated_at"), INSTANT),
    },
    "required": ["id", "key", "name", "created_at", "updated_at"],
}
_ACCESS_OF_CUSTOMER: Schema = {
    "type": "object",
    "properties": {
        "matched": {"type": "array", "items": TEXT},
        "customer": _CUSTOMER,
        "features": {"type": "object", "additionalProperties": _ACCESS},
        "updated_at": INSTANT,
    },
    "required": ["matched", "customer", "features", "updated_at"],
}
_NO_CUSTOMER: Schema = {
    "type": "object",
    "properties": {"code": one_of((CUSTOMER_NOT_FOUND,)), "customer": TEXT, "message": TEXT},
    "required": ["code", "customer", "message"],
}
ACCESS_ANSWER: Schema = {
    "type": "object",
    "properties": {
        "data": {"type": "array", "items": _ACCESS_OF_CUSTOMER},
        "errors": {"type": "array", "items": _NO_CUSTOMER},
        "meta": {"type": "object", "properties": {"page": OBJECT}, "required": ["page"]},
    },
    "required": ["data", "errors", "meta"],
}
