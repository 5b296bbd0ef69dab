"""An independent reader of events: the contract written down a second time, over `strict_json`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

from metering.instants import EPOCH
from tests.pipelines.strict_json import Refused, document

CONTROLS = {chr(code) for code in [*range(0x20), *range(0x7F, 0xA0)]}
REQUEST_TEXTS = ["user_id", "api_key_id", "operation", "route", "region", "content_hash"]
TOKENS = ["input_tokens", "output_tokens", "cached_tokens"]
MICROSECOND = timedelta(microseconds=1)
DAY_US, MINUTE_US, SECOND_US = 86_400_000_000, 60_000_000, 1_000_000
FIRST_STORABLE_US, END_STORABLE_US = 0, 32_503_680_000_000_000
"""1970 and 3000."""
TOLERANCE_US = 2 * SECOND_US
"""Of a device's clock."""
INSTANT = re.compile(r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:[Zz]|([+-])(\d\d):(\d\d))", re.ASCII)


@dataclass(frozen=True)
class Said:
    """What an event says: why it is rejected (None: it is not), and if not, what the journal must hold of it."""

    reason: str | None
    columns: dict[str, Any]
    document: dict[str, Any]


def reason_of(value: bytes, received_at: datetime) -> str | None:
    """Why an event is rejected, or None; for events of trusted sources and the default accept window."""
    return said(value, received_at).reason


def said(value: bytes | None, received_at: datetime, device: str = "", *, of_texts: Collection[str] = ()) -> Said:
    """What a record of `events` says; `device` is the pattern of the sources whose clocks are corrected.

    `of_texts`: types of events whose tokens may be texts.
    """
    try:
        event = document(value)
    except Refused as refused:
        return Said(str(refused), {}, {})
    if event.get("type") in of_texts:
        event = _with_numbers(event)
    reason = _envelope(event) or _data(event)
    if reason is not None:
        return Said(reason, {}, event)
    received_us = (received_at - EPOCH) // MICROSECOND
    event_us, offset_us = _event_us(event, received_us, device)
    columns = _columns(event, event_us, offset_us)
    if event_us < received_us - 35 * DAY_US:
        return Said("too_old", columns, event)
    return Said("future" if event_us > received_us + 5 * MINUTE_US else None, columns, event)


def _with_numbers(event: dict[str, Any]) -> dict[str, Any]:
    """Its token counts as numbers, where they are texts of whole ones."""
    data = event.get("data")
    if not isinstance(data, dict):
        return event
    written = {name: data[name] for name in TOKENS if isinstance(data.get(name), str)}
    numbers = {name: int(text) for name, text in written.items() if re.fullmatch("-?(0|[1-9][0-9]{0,99})", text)}
    return {**event, "data": {**data, **numbers}}


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 1 <= len(value.encode()) <= 512


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def instant_us(value: Any) -> int | None:
    """Microseconds since 1970 of a text; the calendar reaches from the year 0, which Python's does not."""
    match = INSTANT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    fraction, sign, hours, minutes = match.groups()[6:]
    offset = (int(hours) * 60 + int(minutes)) if sign else 0
    if hour > 23 or minute > 59 or second > 59 or int(minutes or 0) > 59 or offset > 18 * 60:
        return None
    try:
        # 400 years are always as many days.
        days = (date(2000 + year % 400, month, day) - date(1970, 1, 1)).days + (year // 400 - 5) * 146_097
    except ValueError:
        return None
    time_us = ((hour * 60 + minute) * 60 + second) * SECOND_US + int(f"{fraction or '':0<6.6}")
    return days * DAY_US + time_us - offset * MINUTE_US * (-1 if sign == "-" else 1)


def _envelope(event: dict[str, Any]) -> str | None:
    if event.get("specversion") != "1.0":
        return "invalid_specversion"
    for name in ("id", "source", "type"):
        if not _is_attribute(event.get(name)):
            return f"invalid_{name}"
    if event.get("subject") is None:
        if event["type"] != "source.heartbeat.v1":
            return "missing_subject"
    elif not _is_attribute(event["subject"]):
        return "invalid_subject"
    return _clock(event)


def _is_attribute(value: Any) -> bool:
    return _is_name(value) and not CONTROLS & set(value)


def _clock(event: dict[str, Any]) -> str | None:
    if instant_us(event.get("time")) is None:
        return "invalid_time"
    if event.get("senttime") is not None and instant_us(event["senttime"]) is None:
        return "invalid_senttime"
    is_read = _sequence(event) is not None or event.get("sequence") is None
    return None if is_read and _is_epoch(event.get("sourceepoch")) else "invalid_sequence"


def _sequence(event: dict[str, Any]) -> int | None:
    sequence: Any = event.get("sequence")
    if isinstance(sequence, str) and re.fullmatch(r"[0-9]{1,18}", sequence):
        sequence = int(sequence)
    return sequence if _is_integer(sequence) and 0 <= sequence < 10**18 else None


def _is_epoch(epoch: Any) -> bool:
    return epoch is None or _is_name(epoch) or (_is_integer(epoch) and -(2**63) <= epoch < 2**63)


def _family(event: dict[str, Any]) -> str | None:
    family = event["type"].removeprefix("ai.inference.").removesuffix(".v1")
    is_ours = event["type"] == f"ai.inference.{family}.v1" and family in {"request", "completion", "usage"}
    return family if is_ours else None


def _data(event: dict[str, Any]) -> str | None:
    family = _family(event)
    if family is None:
        return None
    data = event.get("data")
    if not isinstance(data, dict) or event.get("data_base64") is not None:
        return "invalid_data"
    if not _is_name(data.get("request_id")):
        return "invalid_request_id"
    return (_request(data) if family != "completion" else None) or (_completion(data) if family != "request" else None)


def _request(data: dict[str, Any]) -> str | None:
    if not _is_name(data.get("model")):
        return "invalid_model"
    texts = [data[name] for name in REQUEST_TEXTS if data.get(name) is not None]
    return None if all(isinstance(text, str) and len(text.encode()) <= 512 for text in texts) else "invalid_data"


def _completion(data: dict[str, Any]) -> str | None:
    tokens = [data[name] for name in TOKENS if data.get(name) is not None]
    latency: Any = data.get("latency_ms")
    is_number = _is_integer(latency) or (isinstance(latency, float) and math.isfinite(latency))
    problems: dict[str, Callable[[], bool]] = {
        "invalid_status": lambda: data.get("status") not in ("completed", "cancelled", "error"),
        "invalid_usage_source": lambda: data.get("usage_source") not in (None, "provider", "estimated", "partial"),
        "invalid_tokens": lambda: not all(_is_integer(count) and 0 <= count <= 10**10 for count in tokens),
        "invalid_cached": lambda: not isinstance(data.get("cached"), bool | None),
        "invalid_latency": lambda: latency is not None and not (is_number and 0 <= latency <= 10**12),
        # Cached tokens are a part of the input.
        "inconsistent_quantities": lambda: (
            None not in (data.get("input_tokens"), data.get("cached_tokens"))
            and data["cached_tokens"] > data["input_tokens"]
        ),
    }
    return next((reason for reason, holds in problems.items() if holds()), None)


def _event_us(event: dict[str, Any], received_us: int, device: str) -> tuple[int, int | None]:
    """When it occurred, and how far its device's clock was behind."""
    occurred_us, sent_us = instant_us(event["time"]), instant_us(event.get("senttime"))
    assert occurred_us is not None
    if sent_us is None or not fnmatchcase(event["source"], device):
        return occurred_us, None
    offset_us = received_us - sent_us
    return occurred_us + (offset_us if abs(offset_us) > TOLERANCE_US else 0), offset_us


def _columns(event: dict[str, Any], event_us: int, offset_us: int | None) -> dict[str, Any]:
    family, data = _family(event), event.get("data")
    epoch = event.get("sourceepoch")
    columns = {
        **{name: event[name] for name in ("source", "id", "type")},
        "account": event.get("subject"),
        "occurred_at": _storable(instant_us(event["time"])),
        "sent_at": _storable(instant_us(event.get("senttime"))),
        "event_time": _storable(event_us),
        "clock_offset_ms": None if offset_us is None else offset_us // 1_000,
        "sequence": _sequence(event),
        "source_epoch": str(epoch) if _is_integer(epoch) else epoch,
    }
    fields: list[str] = []
    if family is not None:
        fields = ["request_id"]
        fields += ["model", *REQUEST_TEXTS] if family != "completion" else []
        fields += ["status", "usage_source", *TOKENS, "cached", "latency_ms"] if family != "request" else []
    of_data = {name: data.get(name) for name in fields} if isinstance(data, dict) else {}
    all_fields = ["request_id", "model", *REQUEST_TEXTS, "status", "usage_source", *TOKENS, "cached", "latency_ms"]
    # An empty text is no name, and where none is needed, nothing.
    return columns | {name: None if of_data.get(name) == "" else of_data.get(name) for name in all_fields}


def _storable(instant: int | None) -> datetime | None:
    is_storable = instant is not None and FIRST_STORABLE_US <= instant < END_STORABLE_US
    return EPOCH + timedelta(microseconds=instant) if is_storable and instant is not None else None
