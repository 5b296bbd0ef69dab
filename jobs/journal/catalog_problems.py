"""Why a record of a catalog topic cannot be applied: what ingestion rejects."""

from __future__ import annotations

from typing import Any

from jobs.journal.catalog_changes import InvalidChangeError, json_object, parse_change
from jobs.journal.catalog_fields import checked_text, known_position
from jobs.streams import CatalogTopic
from metering.members import member_twice
from metering.tags import checked_tags

MAX_LEVELS = 64
"""Of objects and arrays in each other. Far more than Debezium writes, and far less than Python's stack takes: how much
that is depends on who calls, so that one application could read a change which another could not."""
_CHANGED = ("changed_by", "changed_at")
CAPTURED_COLUMNS: dict[str, tuple[str, ...]] = {
    CatalogTopic.ACCOUNTS: ("account", "name", "plan", "currency", "timezone", "effective_from", *_CHANGED),
    CatalogTopic.PLANS: ("plan",),
    CatalogTopic.PRICES: ("plan", "model", "meter", "currency", "effective_from", "unit_price", *_CHANGED),
    CatalogTopic.DECISIONS: ("usage_lsn", "meter", "account", "request_id", "decision", "reason", "decided_by"),
}
"""Columns of every captured row, of any release that captures: a row without one of them would be misread."""
GROWN_COLUMNS: dict[str, tuple[str, ...]] = {
    CatalogTopic.ACCOUNTS: ("deleted_at", "tags", "parent"),
    CatalogTopic.PRICES: ("deleted_at",),
}
"""Columns of a row since migration 0031: all of them or (published before) none."""
KEY_COLUMNS: dict[str, tuple[str, ...]] = {
    CatalogTopic.ACCOUNTS: ("account",),
    CatalogTopic.PLANS: ("plan",),
    CatalogTopic.PRICES: ("plan", "model", "meter", "currency", "effective_from"),
    CatalogTopic.DECISIONS: ("usage_lsn", "meter"),
}
"""Columns of a deleted row, under any replica identity of the table."""


def change_problem(topic: str, key: bytes | None, value: bytes | None) -> str | None:
    """Why this record cannot be applied, as a sentence; None when it can.

    Stricter than `parse_change`, which reads what an earlier version let into the journal as that version meant it.
    """
    try:
        change = None if value is None else _strict_object(value, "the value")
        if change is not None:
            _check_columns(topic, change)
        parse_change(topic, value, 0)
        if key is not None and change is not None:
            _check_key(_strict_object(key, "the key"), change)
        if topic == CatalogTopic.ACCOUNTS and change is not None and change["op"] != "d":
            _check_growth(change["after"])
    except InvalidChangeError as error:
        return str(error)
    return None


def _check_key(key: dict[str, Any], value: dict[str, Any]) -> None:
    """Compaction keeps the last record of a key: one under another's key would make that one's changes vanish."""
    state = value["before" if value["op"] == "d" else "after"]
    if other := sorted(field for field in key if field in state and state[field] != key[field]):
        raise InvalidChangeError(f"the key names another {', '.join(other)} than the value")


def _check_columns(topic: str, change: dict[str, Any]) -> None:
    """A column that was renamed is not there: one that may be null would be taken for empty, and billed by."""
    source, is_gone = change.get("source"), change.get("op") == "d"
    row = change.get("before" if is_gone else "after")
    is_captured = isinstance(source, dict) and all(
        known_position(source.get(name)) is not None for name in ("lsn", "ts_us")
    )
    if not is_captured or not isinstance(row, dict):
        return
    grown = GROWN_COLUMNS.get(topic, ())
    needed = KEY_COLUMNS[topic] if is_gone else CAPTURED_COLUMNS[topic]
    needed += grown if not is_gone and any(name in row for name in grown) else ()
    if missing := [name for name in needed if name not in row]:
        raise InvalidChangeError(
            f"the row has no {', '.join(missing)}: {topic} has no such column any more, or it is called otherwise"
        )


def _check_growth(account: dict[str, Any]) -> None:
    """Members that earlier releases did not read: they accepted an account with any value there."""
    try:
        checked_text(account.get("parent"))
        if (tags := account.get("tags")) is not None:
            checked_tags(json_object(tags.encode(), "tags", _each_once) if isinstance(tags, str) else tags)
    except ValueError as problem:
        raise InvalidChangeError(f"tags or parent: {problem}") from problem


def _strict_object(document: bytes, what: str) -> dict[str, Any]:
    """As `json_object`; a duplicate member is an error, because it is ambiguous."""
    parsed = json_object(document, what, _each_once)
    inner: list[Any] = [parsed]
    for _ in range(MAX_LEVELS):
        inner = [part for outer in inner for part in (outer.values() if isinstance(outer, dict) else outer)]
        inner = [part for part in inner if isinstance(part, dict | list)]
    if inner:
        raise InvalidChangeError(f"{what} is nested deeper than {MAX_LEVELS} levels")
    return parsed


def _each_once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    if (twice := member_twice(members)) is not None:
        raise InvalidChangeError(f"{twice} occurs twice")
    return dict(members)
