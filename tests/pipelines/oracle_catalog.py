"""An independent reader of catalog changes: their contract written down a second time, without pydantic."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

from jobs.streams import CatalogTopic
from metering.instants import EPOCH
from tests.pipelines.deep_json import levels_of

MAX_LEVELS = 64
MAX_MS = (datetime.max.replace(tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1)
NAMES = {
    CatalogTopic.ACCOUNTS: ["account"],
    CatalogTopic.PLANS: ["plan"],
    CatalogTopic.PRICES: ["plan", "model", "meter"],
    CatalogTopic.DECISIONS: ["meter"],
}
MAKES_NO_VERSION = (CatalogTopic.PLANS, CatalogTopic.DECISIONS)


WORDS = ("decision", "reason", "decided_by")


class Refused(Exception):
    """No change that anybody could apply."""


def change_of(topic: CatalogTopic, key: bytes | None, value: bytes | None) -> dict[str, Any] | None:
    """What a version table must hold of a change; None of what makes no version. Raises Refused."""
    if value is None:
        return None
    envelope = _object(value)
    op, committed_ms = envelope.get("op"), _committed_ms(envelope)
    _insist(op in ("c", "u", "d", "r"))
    for name in ("before", "after"):
        _insist(envelope.get(name) is None or isinstance(envelope[name], dict))
    state: Any = envelope.get("before" if op == "d" else "after")
    _insist(isinstance(state, dict))
    row = _row(topic, state, deleted=op == "d")
    _insist(committed_ms is not None)
    if op == "d" and topic not in MAKES_NO_VERSION and state.get("deleted_at") is not None:
        _instant(state["deleted_at"])
    if key is not None:
        named = _object(key)
        _insist(all(state[name] == named[name] for name in named if name in state))
    if topic in MAKES_NO_VERSION:
        return None
    assert committed_ms is not None
    committed_at = EPOCH + timedelta(milliseconds=committed_ms)
    given_at = state.get("deleted_at") if op == "d" else None
    is_nobodys = op == "d" and given_at is None
    row |= dict.fromkeys(("changed_by", "changed_at")) if is_nobodys else _author(state)
    made_at = row["changed_at"] or committed_at
    if topic is CatalogTopic.ACCOUNTS:
        row["committed_at"] = made_at
        row["effective_from"] = row["effective_from"] if given_at is None else _instant(given_at)
    elif op == "d":
        row["ends_at"] = _committed_us(envelope) if given_at is None else _instant(given_at)
    else:
        row["ends_at"] = None
    return {**row, "effective_from": row["effective_from"] or made_at, "deleted": op == "d"}


def _row(topic: CatalogTopic, state: dict[str, Any], *, deleted: bool) -> dict[str, Any]:
    row: dict[str, Any] = {name: _name(state.get(name)) for name in NAMES[topic]}
    if topic is CatalogTopic.PLANS:
        return row
    if topic is CatalogTopic.DECISIONS:
        lsn = state.get("usage_lsn")
        _insist(type(lsn) is int and 1 <= lsn < 2**63)
        said = {} if deleted else {name: _name(state.get(name)) for name in ("account", "request_id", *WORDS)}
        _insist(deleted or said["decision"] in ("approve", "reject"))
        return row | said
    if topic is CatalogTopic.PRICES:
        row["currency"] = _currency(state.get("currency"))
        row["unit_price"] = None if deleted else _unit_price(state.get("unit_price"))
    elif deleted:
        return row | dict.fromkeys(("name", "plan", "currency", "timezone", "effective_from", "tags", "parent"))
    else:
        row |= {"plan": _name(state.get("plan")), "currency": _currency(state.get("currency"))}
        row["name"] = _name(state["name"], least=0) if state.get("name") is not None else None
        row["timezone"] = _name(state["timezone"]) if state.get("timezone") is not None else None
        row["parent"] = _name(state["parent"]) if state.get("parent") else None
        row["tags"] = _tags(state.get("tags"))
    row["effective_from"] = _instant(state["effective_from"]) if state.get("effective_from") is not None else None
    return row


def _tags(value: Any) -> str | None:
    tags = _object(value.encode()) if isinstance(value, str) else value
    _insist(tags is None or isinstance(tags, dict))
    for name, text in (tags or {}).items():
        _insist(isinstance(text, str) and 1 <= len(name.encode()) <= 64 and len(text.encode()) <= 256)
    _insist(len(tags or {}) <= 50)
    said = json.dumps(tags, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return said if tags else None


def _author(state: dict[str, Any]) -> dict[str, Any]:
    """Who changed it, and when; what cannot be that is nobody's fault."""
    author: dict[str, Any] = {}
    for name, read in (("changed_by", _name), ("changed_at", _instant)):
        try:
            author[name] = read(state.get(name))
        except Refused:
            author[name] = None
    return author


def _committed_ms(envelope: dict[str, Any]) -> int | None:
    source = envelope.get("source")
    _insist(source is None or isinstance(source, dict))
    moments = [envelope.get("ts_ms"), source.get("ts_ms") if source else None]
    for moment in moments:
        _insist(moment is None or (type(moment) is int and 0 <= moment <= MAX_MS))
    return moments[0] if moments[1] is None else moments[1]


def _committed_us(envelope: dict[str, Any]) -> datetime:
    """When it was committed, as exactly as it is told."""
    source: dict[str, Any] = envelope.get("source") or {}
    lsn, micros = source.get("lsn"), source.get("ts_us", "")
    if all(type(part) is int and 0 <= part < 2 * 10**17 for part in (lsn, micros)):
        return EPOCH + timedelta(microseconds=int(micros))
    committed_ms = _committed_ms(envelope)
    assert committed_ms is not None
    return EPOCH + timedelta(milliseconds=committed_ms)


def _name(value: Any, least: int = 1) -> str:
    _insist(isinstance(value, str) and "\0" not in value)
    try:
        _insist(least <= len(value.encode()) <= 512)
    except UnicodeEncodeError:
        raise Refused from None
    return str(value)


def _currency(value: Any) -> str:
    _insist(isinstance(value, str) and re.fullmatch("[A-Z]{3}", value) is not None)
    return str(value)


def _unit_price(value: Any) -> Decimal:
    _insist(type(value) in (str, int, Decimal))
    try:
        price = Decimal(value)
    except InvalidOperation:
        raise Refused from None
    _insist(price.is_finite() and 0 <= price < 10**8)
    # No digit that counts stands behind the twelfth decimal.
    _, digits, exponent = price.as_tuple()
    _insist(isinstance(exponent, int) and (exponent >= -12 or not any(digits[exponent + 12 :])))
    return abs(price)


def _instant(value: Any) -> datetime:
    _insist(isinstance(value, str))
    try:
        instant = datetime.fromisoformat(value)
        _insist(instant.tzinfo is not None)
        return instant.astimezone(UTC)
    except (ValueError, OverflowError):
        raise Refused from None


def _object(text: bytes) -> dict[str, Any]:
    try:
        decoded = text.decode()
        if levels_of(decoded) > MAX_LEVELS:
            raise Refused
        parsed = json.loads(decoded, parse_float=Decimal, parse_constant=_constant, object_pairs_hook=_unique)
    except (ValueError, InvalidOperation):
        raise Refused from None
    _insist(isinstance(parsed, dict))
    return dict(parsed)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _insist(len(dict(pairs)) == len(pairs))
    return dict(pairs)


def _constant(name: str) -> None:
    raise ValueError(name)


def _insist(holds: bool) -> None:
    if not holds:
        raise Refused
