"""What a contract may use of JSON Schema, which columns its fields fill, and the limits of both."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from metering.contracts.includes import COLUMN as INCLUDES_COLUMN
from metering.contracts.includes import INCLUDES
from metering.contracts.model import Kind
from metering.contracts.reversals import REASON as REVERSAL_REASON
from metering.contracts.unnest import UNNEST
from metering.limits import PLAIN_NAME
from metering.meters import REPORTED_COLUMNS
from metering.vocabulary import Family, Reason

Document = Mapping[str, Any]
"""A JSON Schema, as Python's `json` reads it."""

ENVELOPE: tuple[str, ...] = ("specversion", "id", "source", "type", "subject", "time")
"""Attributes of CloudEvents that are texts in every event; a contract may give one a column."""

ENVELOPE_OTHER: tuple[str, ...] = (
    "senttime",
    "sequence",
    "sourceepoch",
    "data_base64",
    "datacontenttype",
    "dataschema",
)
"""Attributes that Weir reads itself, or never."""

COLUMNS: Mapping[str, Kind] = {
    **dict.fromkeys(("request_id", "model", "user_id", "api_key_id", "operation", "route", "region"), Kind.TEXT),
    **dict.fromkeys(("content_hash", "status", "usage_source"), Kind.TEXT),
    **dict.fromkeys((*REPORTED_COLUMNS, "reasoning_tokens"), Kind.INTEGER),
    "cached": Kind.BOOLEAN,
    "latency_ms": Kind.DOUBLE,
}
"""Columns that every journal has for fields of events, and what they hold, in the order in which they are validated."""

NEEDED: Mapping[Family, tuple[str, ...]] = {
    Family.REQUEST: ("request_id", "model"),
    Family.COMPLETION: ("request_id",),
    Family.BOTH: ("request_id", "model"),
    Family.QUANTITY: ("model",),
    Family.HEARTBEAT: (),
    Family.REVERSAL: ("request_id", REVERSAL_REASON),
}
"""Columns that a contract of each family fills, from fields that are required: what speaks of a request names it, and
and a row that begins one, or is an outcome by itself, needs its model."""

RESERVED = frozenset(
    (
        *(
            "lsn",
            "log_date",
            "topic",
            "partition",
            "offset",
            "received_at",
            "first_received_at",
            "reception_mark",
            "replay_mark",
            "replays_lsn",
            "logged_at",
            "frontier",
        ),
        *("rules", "disposition", "reason", "violation", "first_lsn", "identity", "content_digest", "source", "id"),
        *("type", "family", "account", "occurred_at", "sent_at", "event_time", "clock_offset_ms", "source_epoch"),
        *("sequence", "key", "value", INCLUDES_COLUMN, "record_headers"),
        # What a batch has besides on its way into the journal.
        *("number", "stamped_at", "is_broker_stamp", "occurred_us", "sent_us", "device_sent_us", "isolated", "same"),
    )
)
"""Columns that no field may fill."""

MAX_FIELDS = 210

MAX_LEVELS = 8

MAX_FIELDS_OF_ALL = 420
"""Of all contracts together: each is a column of every batch."""

LARGEST_INTEGER = 10**11 - 1
"""Of an integer without a maximum of its own: what a quantity can be."""

MAX_UNITS = 10**10
"""That a completion may report of a meter; fewer than 0 it cannot."""

COLUMN_NAME = re.compile(PLAIN_NAME)

ATTRIBUTE = re.compile(r"[a-z0-9]+")

_OF_NO_FIELD = (Reason.INVALID_CATALOG_CHANGE, Reason.INVALID_RECEPTION)

REASONS = tuple(reason.value for reason in Reason if reason.startswith("invalid_") and reason not in _OF_NO_FIELD)
"""Why an event may break its contract; the other reasons are about more than that."""

TEXTS = frozenset(("$schema", "title", "description"))

_MEMBERS = TEXTS | {"type"}

OBJECT_KEYWORDS = _MEMBERS | {"required", "properties"}

ROOT_KEYWORDS = OBJECT_KEYWORDS | {"$id", "allOf", "x-weir-family", INCLUDES, UNNEST}

VALUE_KEYWORDS = _MEMBERS | {"enum", "minLength", "minimum", "maximum", "format"}

NUMBER, TEXT_OR_NUMBER = "x-weir-number", "text_or_number"
"""The annotation by which a string that holds a number is that number, and its one value."""

ANNOTATIONS = frozenset(("x-weir-column", "x-weir-max-bytes", NUMBER, "x-weir-reason"))

TYPES = {"string": Kind.TEXT, "integer": Kind.INTEGER, "number": Kind.DECIMAL, "boolean": Kind.BOOLEAN}
