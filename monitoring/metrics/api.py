"""Metrics of the API: its requests, the events in them, and its memory."""

from __future__ import annotations

from enum import StrEnum

from metering.vocabulary import Disposition
from monitoring.instruments import CounterMetric, GaugeMetric, HistogramMetric
from monitoring.metrics.labels import API, GIVEN_AT_START

IN_API = (API,)


class ApiRoute(StrEnum):
    """Routes that take events and spans, that answer queries, and of endpoints. Health probes are not counted."""

    OPENMETER = "/api/v1/events"
    OPENMETER_V3 = "/api/v3/openmeter/events"
    OWN = "/v1/events"
    TRACES = "/v1/traces"
    USAGE = "/v1/usage"
    BILLS = "/v1/bills"
    INVOICES = "/v1/invoices"
    INVOICE = "/v1/invoices/{id}"
    PRICES = "/v1/prices"
    CORRECTIONS = "/v1/corrections"
    CORRECTIONS_ACK = "/v1/corrections/ack"
    STRAGGLERS = "/v1/stragglers"
    MODELS = "/v1/models"
    FORECAST = "/v1/forecast"
    VIEW = "/v1/views/{name}"
    THRESHOLDS = "/v1/thresholds"
    WATCHES = "/v1/watches"
    WATCH_HITS = "/v1/watches/{name}/hits"
    PATTERN_MATCHES = "/v1/patterns/{name}/matches"
    REQUEST = "/v1/requests/{id}"
    EVENT = "/v1/events/{source}/{id}"
    WINDOW_STREAM = "/v1/windows/stream"
    WEBHOOK_ENDPOINTS = "/v1/webhook-endpoints"
    WEBHOOK_ENDPOINT = "/v1/webhook-endpoints/{endpoint}"
    WEBHOOK_ROTATE = "/v1/webhook-endpoints/{endpoint}/rotate"
    WEBHOOK_DELIVERIES = "/v1/webhook-endpoints/{endpoint}/deliveries"
    WEBHOOK_ATTEMPTS = "/v1/webhook-endpoints/{endpoint}/deliveries/{number}/attempts"
    WEBHOOK_RESEND = "/v1/webhook-endpoints/{endpoint}/deliveries/{number}/resend"
    METERS = "/api/v1/meters"
    METER_QUERY = "/api/v1/meters/{slug}/query"
    PORTAL_TOKENS = "/api/v1/portal/tokens"
    PORTAL_INVALIDATE = "/api/v1/portal/tokens/invalidate"
    PORTAL_QUERY = "/api/v1/portal/meters/{slug}/query"
    METER_QUERY_V3 = "/api/v3/openmeter/meters/{slug}/query"
    ENTITLEMENT_ACCESS = "/api/v3/openmeter/entitlement-access/query"
    OTHER = "other"
    """Any other path, or any other method: strangers choose both."""


EVENT_ROUTES = (ApiRoute.OPENMETER, ApiRoute.OPENMETER_V3, ApiRoute.OWN, ApiRoute.TRACES)
"""Where events are posted."""


class ApiStatus(StrEnum):
    """The class of an answer's status."""

    OK = "2xx"
    ELSEWHERE = "3xx"
    CLIENT_ERROR = "4xx"
    """But for 429."""
    TOO_MANY = "429"
    """The API works as intended, and refuses requests because it is overloaded."""
    SERVER_ERROR = "5xx"


class Refusal(StrEnum):
    """Why a request was answered 429."""

    REQUEST_RATE = "requests_per_second"
    """Its key has sent more requests than it may."""
    EVENT_RATE = "events_per_minute"
    """Its key has sent more events than it may."""
    LAG = "ingestion_lag"
    KAFKA = "kafka"
    """Too many records wait for the brokers."""
    STREAMS = "streams"
    """Its key has as many streams as it may."""
    BODIES = "bodies"
    """Bodies of requests fill the memory that they may have."""


KEY_LIMITS = (Refusal.REQUEST_RATE, Refusal.EVENT_RATE, Refusal.STREAMS)
"""What a key is allowed; the other refusals are for want of room."""


API_REQUESTS = CounterMetric(
    "weir_api_requests_total",
    "requests",
    "Requests that were answered, by route and by class of the status; 429 is a class of its own.",
    {"route": tuple(ApiRoute), "status": tuple(ApiStatus)},
    IN_API,
)
API_REQUEST_DURATION = HistogramMetric(
    "weir_api_request_duration_seconds",
    "seconds",
    "Time from a request's headers to the end of its answer: to read the body, to validate, and for Kafka; or"
    " to ask the database. Streams, which do not end, are not in it.",
    {"route": tuple(ApiRoute)},
    IN_API,
    buckets=(0.01, 0.05, 0.1, 0.25, 1, 5, 15),
)
API_EVENTS = CounterMetric(
    "weir_api_events_total",
    "events",
    "Events that were accepted (Kafka has them), or rejected for a reason. A repeat is accepted, too: ingestion finds"
    " it. Valid events of a request that was refused are not counted.",
    {"result": (Disposition.ACCEPTED, Disposition.REJECTED), "reason": GIVEN_AT_START},
    IN_API,
)
API_REFUSED = CounterMetric(
    "weir_api_refused_requests_total",
    "requests",
    "Requests that were answered 429: because their key is over its limit (`requests_per_second`, `events_per_minute`,"
    " `streams`),"
    " or for want of room.",
    {"reason": tuple(Refusal)},
    IN_API,
)
API_READY = GaugeMetric(
    "weir_api_ready",
    "bool",
    "1 if the server is ready for requests; 0 while it waits for the database, or for ingestion to have been started.",
    programs=IN_API,
)
API_BODY_BYTES = GaugeMetric(
    "weir_api_body_bytes",
    "bytes",
    "Bodies, unpacked, of requests that are not answered yet.",
    programs=IN_API,
)
API_PENDING_RECORDS = GaugeMetric(
    "weir_api_pending_records",
    "records",
    "Records that wait for Kafka to acknowledge them.",
    programs=IN_API,
)
