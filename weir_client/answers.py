"""What an answer of `POST /v1/events` means for the batch that it answers. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

OK, BAD_REQUEST, FORBIDDEN, TOO_LARGE = 200, 400, 403, 413
PROBLEM = "application/problem+json"
MAX_RETRY_AFTER_SECONDS = 86_400.0
"""A longer wait is a mistake, of some proxy's clock for example, or more than a thread can wait."""


@dataclass(frozen=True)
class Rejection:
    """An event of the batch that will never be taken."""

    index: int
    reason: str
    path: str | None = None
    rule: str | None = None


@dataclass(frozen=True)
class Taken:
    """Kafka has every event but these."""

    rejections: Sequence[Rejection]


@dataclass(frozen=True)
class Refused:
    """Nothing was written, since these events are refused; the others may be sent again without them."""

    rejections: Sequence[Rejection]


@dataclass(frozen=True)
class TooMuch:
    """Nothing was written: some event, or the batch as a whole, is not taken. A smaller batch shows which."""

    detail: str


@dataclass(frozen=True)
class Later:
    """The same batch may be taken later. `is_unwritten`: it is certain that none of it was."""

    detail: str
    is_unwritten: bool
    retry_after_seconds: float | None = None


Meaning = Taken | Refused | TooMuch | Later


def meaning(status: int, headers: Mapping[str, str], content: bytes, events: int, now: datetime) -> Meaning:
    """What an answer to so many events means. One that is not Weir's (a proxy's page, another address) is `Later`."""
    body = _object(content)
    detail = f"{status}: {body.get('detail') or 'no answer of Weir'}"
    if status == OK:
        return _taken(body, events) or Later("200, but no answer of Weir: is the address right?", is_unwritten=False)
    is_problem = headers.get("content-type", "").startswith(PROBLEM)
    if status == TOO_LARGE or (status == BAD_REQUEST and is_problem):
        return TooMuch(detail)
    if status == FORBIDDEN and (found := _named(body, events)):
        return Refused(found)
    # Of the others 4xx are of the key or the address; who changes one finds the events still here.
    return Later(detail, 400 <= status < 500, _retry_after(headers.get("retry-after"), now))


def _taken(body: Mapping[str, Any], events: int) -> Taken | None:
    try:
        rejections = [
            Rejection(each["index"], str(each["reason"]), each.get("path"), each.get("rule"))
            for each in body["rejected"]
        ]
        indices = {each.index for each in rejections}
        is_whole = body["accepted"] + len(indices) == events and indices <= set(range(events))
    except (KeyError, TypeError, AttributeError):
        return None
    return Taken(rejections) if is_whole else None


def _named(body: Mapping[str, Any], events: int) -> list[Rejection]:
    try:
        named = [(int(each["field"].removeprefix("/")), str(each["reason"])) for each in body["invalid_parameters"]]
    except (KeyError, TypeError, ValueError, AttributeError):
        return []
    return [Rejection(index, "forbidden", None, rule) for index, rule in named if 0 <= index < events]


def _retry_after(text: str | None, now: datetime) -> float | None:
    """Seconds, or the time until a date."""
    if not text:
        return None
    try:
        seconds = float(text) if text.isdigit() else (parsedate_to_datetime(text) - now).total_seconds()
        return min(max(0.0, seconds), MAX_RETRY_AFTER_SECONDS)
    except (ValueError, TypeError):
        return None


def _object(content: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
