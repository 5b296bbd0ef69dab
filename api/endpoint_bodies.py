"""Bodies of requests about endpoints of webhooks → what is asked for, checked as `weir webhooks` checks it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from enum import StrEnum
from http import HTTPStatus
from typing import Any, TypeVar

from api.parameters import MAX_ACCOUNTS, allowed_accounts, bad_request, choice_of
from api.problems import Problem
from metering.api_keys import ApiKey
from metering.texts import encodable
from webhooks.changing import Change, Switch
from webhooks.event_types import EventType
from webhooks.kinds import Kind
from webhooks.new_endpoint import EndpointRefused, NewEndpoint
from webhooks.signing import Signature

NEW = ("url", "kind", "events", "accounts", "note", "signature")
CHANGED = ("url", "events", "note", "state", "reason")
ROTATED = ("overlap_hours",)
MAX_URL_CHARACTERS, MAX_NOTE_CHARACTERS, MAX_ACCOUNT_CHARACTERS = 2_000, 500, 512
MAX_OVERLAP_HOURS, DEFAULT_OVERLAP_HOURS = 8_784, 24

E = TypeVar("E", bound=StrEnum)


def new_endpoint_in(given: Mapping[str, Any], key: ApiKey) -> NewEndpoint:
    """The endpoint that a key asks for: of its accounts where none is named.

    Raises Problem: 400 for what could never be called, 403 for an account that the key does not name, and as
    `refuse_mail` does.
    """
    kind = _choice(given, "kind", Kind, Kind.WEBHOOK)
    refuse_mail(key, kind)
    accounts = _texts(given, "accounts", MAX_ACCOUNT_CHARACTERS) or []
    wanted = NewEndpoint(
        _text(given, "url", MAX_URL_CHARACTERS) or "",
        kind,
        events_in(given) or list(EventType),
        allowed_accounts(key, tuple(accounts), "accounts") or sorted(key.accounts),
        _text(given, "note", MAX_NOTE_CHARACTERS),
        _choice(given, "signature", Signature, Signature.V1),
    )
    with refused_as_problem():
        return wanted.checked()


def refuse_mail(key: ApiKey, kind: Kind) -> None:
    """Raises Problem (403) for an address of mail from a key that names accounts.

    The operator's server would send to any address that a customer writes.
    """
    if kind is Kind.MAIL and key.accounts:
        raise Problem(HTTPStatus.FORBIDDEN, f"The key {key.id} names accounts: it chooses no address of mail.")


def change_in(given: Mapping[str, Any]) -> Change:
    """What is to be changed. A `note` of null removes it.

    Raises Problem (400), also for the state disabled without a `reason`, and for a `reason` without that.
    """
    note = _text(given, "note", MAX_NOTE_CHARACTERS)
    url, events = _text(given, "url", MAX_URL_CHARACTERS), events_in(given)
    state, reason = _choice(given, "state", Switch, None), _text(given, "reason", MAX_NOTE_CHARACTERS)
    if (state is Switch.DISABLED) != (reason is not None):
        raise bad_request("reason", "Give it with the state disabled: why, which the list shows.", "body")
    return Change(url, events, (note or "") if "note" in given else None, state, reason or "")


def events_in(given: Mapping[str, Any]) -> list[EventType] | None:
    """The types of events, each once; None where none is named. Raises Problem (400)."""
    names = _texts(given, "events", MAX_ACCOUNT_CHARACTERS)
    return None if names is None else [choice_of("events", name, EventType) for name in names]


def overlap_in(given: Mapping[str, Any]) -> timedelta:
    """How long the secret before signs beside the new one. Raises Problem (400)."""
    hours = given.get("overlap_hours", DEFAULT_OVERLAP_HOURS)
    if not isinstance(hours, int) or isinstance(hours, bool) or not 0 <= hours <= MAX_OVERLAP_HOURS:
        raise bad_request("overlap_hours", f"It must be a whole number from 0 to {MAX_OVERLAP_HOURS}.", "body")
    return timedelta(hours=hours)


@contextmanager
def refused_as_problem() -> Iterator[None]:
    """Raises Problem (400), which names the member, for EndpointRefused."""
    try:
        yield
    except EndpointRefused as refused:
        raise bad_request(refused.field, str(refused), "body") from None


def _choice(given: Mapping[str, Any], name: str, kind: type[E], default: Any) -> Any:
    text = _text(given, name, MAX_NOTE_CHARACTERS)
    return default if text is None else choice_of(name, text, kind)


def _text(given: Mapping[str, Any], name: str, max_characters: int) -> str | None:
    value = given.get(name)
    if value is None:
        return None
    if not is_text(value, max_characters):
        raise bad_request(
            name, f"It must be a text of 1 to {max_characters} characters, without control characters.", "body"
        )
    text: str = value
    return text


def _texts(given: Mapping[str, Any], name: str, max_characters: int) -> list[str] | None:
    values = given.get(name)
    if values is None:
        return None
    if not isinstance(values, list) or not 0 < len(values) <= MAX_ACCOUNTS:
        raise bad_request(name, f"It must be a list of 1 to {MAX_ACCOUNTS} texts.", "body")
    if not all(is_text(value, max_characters) for value in values):
        raise bad_request(name, f"Each must be a text of 1 to {max_characters} characters.", "body")
    return list(dict.fromkeys(values))


def is_text(value: Any, max_characters: int) -> bool:
    """Whether it is a text that people can read, and Postgres can hold."""
    if not isinstance(value, str) or not value.strip() or len(value) > max_characters:
        return False
    return value.isprintable() and encodable(value) == value
